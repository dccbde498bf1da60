"""Frames, the nodes that exchange them, and the stages on the way.

A wire asks a node for its next frame when the line is free, so back-pressure needs
no special case: a paused priority or missing credits are "not yet". A node never
reads a clock; the time comes in as an argument and never goes back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from ibwire.base.errors import TooManyFrames
from ibwire.base.units import Time

Frame = bytes
"""Bytes on a link, without preamble and FCS."""


class DamagedFrame(bytes):
    """A frame with flipped bits, whose check sequence (FCS) is therefore wrong."""


class Grant(Protocol):
    """May this much leave on this lane now? A lane is a PFC priority or an IB virtual lane."""

    def allows(self, lane: int, size: int) -> bool:
        """Whether a frame of `size` bytes may leave."""
        ...


class Open:
    """The grant of a line without flow control."""

    def allows(self, lane: int, size: int) -> bool:
        """True."""
        return True


OPEN: Grant = Open()


class Node(Protocol):
    """A device, a switch, an injector or a replayed capture.

    After `receive`, `handle_timeout` or a command of its application, the
    driver of the node drains `poll_transmit` of each port as its line allows, then
    reads `poll_timeout`.
    """

    def receive(self, frame: Frame, now: Time, port: int = 0) -> None:
        """Take a frame that has arrived whole."""
        ...

    def poll_transmit(self, now: Time, port: int = 0, grant: Grant = OPEN) -> Frame | None:
        """The next frame to send; `None` when no frame may leave now."""
        ...

    def poll_timeout(self) -> Time | None:
        """When `handle_timeout` is due; `None` for never. May be in the past."""
        ...

    def handle_timeout(self, now: Time) -> None:
        """Do what is due by `now`."""
        ...


Stage = Callable[[Frame, Time], Iterable[tuple[Time, Frame]]]
"""A middlebox: the frames that come out for one that goes in, each with an extra delay.

No result drops, two duplicate, a delay reorders, other bytes corrupt or mark.
"""


class Pipe:
    """Stages one after the other: what leaves one enters the next, later by its delay.

    Raises `TooManyFrames` when one frame becomes more than `MOST`.
    """

    MOST = 100_000

    __slots__ = ("stages",)

    def __init__(self, *stages: Stage) -> None:
        self.stages: Sequence[Stage] = stages

    def __call__(self, frame: Frame, now: Time) -> list[tuple[Time, Frame]]:
        """The frames that leave the last stage, with their delays from `now`."""
        passing: list[tuple[Time, Frame]] = [(0, frame)]
        for stage in self.stages:
            entering, passing = passing, []
            for delay, each in entering:
                passing += [(delay + extra, out) for extra, out in stage(each, now + delay)]
                if len(passing) > self.MOST:
                    raise TooManyFrames(
                        f"the rules make more than {self.MOST:,} frames of one: lower the "
                        "`copies` of `duplicate`, or use fewer of them in a row"
                    )
        return passing
