"""Prepared frames with times, as a source."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ibwire.traffic.blocks import Block, Template


class TimedFrames:
    """A `Source` of frames in order of time."""

    def __init__(
        self, frames: Sequence[bytes], times: Sequence[int], final: Sequence[bytes] = ()
    ) -> None:
        """times: nanoseconds after the start, not decreasing."""
        self.frames = frames
        self.times = times
        self.final = final

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self.frames)

    def blocks(self, size: int) -> Iterator[Block]:
        """All frames from the first on, at most `size` in a block."""
        for first in range(0, len(self.frames), size):
            part = self.frames[first : first + size]
            lengths = np.array([len(each) for each in part], np.int64)
            stride = int(lengths.max())
            data = b"".join(each.ljust(stride, b"\0") for each in part)
            yield Block(np.frombuffer(data, np.uint8).reshape(len(part), stride), lengths)

    def templates(self) -> list[Template] | None:
        """`None`: the frames are not a cycle."""
        return None
