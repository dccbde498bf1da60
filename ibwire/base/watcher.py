"""Stages that only look at frames: a tap, a counter."""

from __future__ import annotations

from collections.abc import Iterable

from ibwire.base.node import Frame
from ibwire.base.units import Time


class FrameWatcher:
    """A `Stage` that lets each frame through as it is, without a delay.

    A simulator calls `record` alone: so a frame costs less.
    """

    def __call__(self, frame: Frame, now: Time) -> Iterable[tuple[Time, Frame]]:
        """Look at the frame, and return it."""
        self.record(frame, now)
        return ((0, frame),)

    def record(self, frame: Frame, now: Time) -> None:
        """Look at a frame that passes."""
        raise NotImplementedError
