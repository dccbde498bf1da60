"""Frames that leave one after the other as one event of a network.

The MIDDLE packets of a long message differ in their PSN and data alone, and nobody answers them. A
network may so take them from a device as one run, and give them to the next device as one run. The
frames are those that the device would have sent one by one, at the same times; what happens to
either device while they are on their way takes effect between the same two frames.
"""

from __future__ import annotations

from collections.abc import Sequence

from ibwire.base.node import Frame
from ibwire.base.unbuilt import UnbuiltFrame


class FrameRun:
    """Frames of one size, from one node to the next without a pause."""

    __slots__ = ("count",)

    count: int
    """Its frames; fewer after the last ones were taken back."""

    def frame(self, index: int) -> UnbuiltFrame:
        """One of its frames."""
        raise NotImplementedError

    def build(self, first: int, last: int) -> Sequence[Frame]:
        """The bytes of its frames from `first` up to, without, `last`."""
        raise NotImplementedError
