"""The input of a sender: frames in blocks, or templates for a sender that numbers packets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt


class Block(NamedTuple):
    """Consecutive frames; valid until the next block is requested."""

    frames: npt.NDArray[np.uint8]
    """(count, stride), C order: a frame a row, its bytes from the first on."""
    lengths: npt.NDArray[np.int64]
    """(count,) bytes of each frame."""


class Template(NamedTuple):
    """A packet of a repeating cycle in which only the PSN and the ICRC change."""

    frame: bytes
    """Its first occurrence."""
    psn_at: int
    icrc_at: int
    psn_step: int
    """Increase of the PSN with each repetition."""
    tables: npt.NDArray[np.uint32]
    """(3, 256), a table for each byte of the PSN: the ICRC, read as a little-endian number,
    changes by the XOR of the entries for `old ^ new`."""


class Source(Protocol):
    """A sequence of packets."""

    @property
    def count(self) -> int | None:
        """How many there are; `None`: endless."""
        ...

    @property
    def final(self) -> Sequence[bytes]:
        """Frames that must be sent when the run ends before the last packet."""
        ...

    def blocks(self, size: int) -> Iterator[Block]:
        """All packets from the first on, at most `size` in a block."""
        ...
