"""What a sender is fed with: frames in blocks, and the cycle for who numbers packets itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt


class Block(NamedTuple):
    """Frames that follow one another; valid until the next block is asked for."""

    frames: npt.NDArray[np.uint8]
    """(count, stride), C order: a frame a row, its bytes from the first on."""
    lengths: npt.NDArray[np.int64]
    """(count,) bytes of each frame."""


class Template(NamedTuple):
    """A packet of a cycle that repeats, each time with another PSN and otherwise the same."""

    frame: bytes
    """As it is the first time."""
    psn_at: int
    icrc_at: int
    psn_step: int
    """What the PSN advances with each repetition."""
    tables: npt.NDArray[np.uint32]
    """(3, 256), a table for each byte of the PSN: the ICRC, read as a little-endian number,
    changes by the exclusive or of the entries for `old ^ new`."""


class Source(Protocol):
    """Packets in their order."""

    @property
    def count(self) -> int | None:
        """How many there are; `None`: without end."""
        ...

    @property
    def final(self) -> Sequence[bytes]:
        """Frames that must leave when the end comes before the last packet."""
        ...

    def blocks(self, size: int) -> Iterator[Block]:
        """All packets from the first on, at most `size` in a block."""
        ...
