"""What the bytes of a message must be, when all that arrives is a message and its number.

ibwire sends pieces of a long row of bytes that follows from the numbers of the queue pair:
both ends know it, and each message of a round is another piece, so that none can stand for
another.

perftest fills its buffers with the low bytes of `rand()` and does not say from which seed.
But the generator of the GNU C library adds: each number is the sum of those 3 and 31 before
it, and a byte that of two bytes and a carry. So a message of more than 31 bytes can be
checked without knowing the seed, and damage passes in 2 of 256 cases for each wrong byte.

Source: glibc stdlib/random_r.c (TYPE_3, x**31 + x**3 + 1); perftest 4.5-0.17
perftest_resources.c create_single_mr; the payloads of captures/send-lat.pcap,
read-bw-ipv6.pcap and uc-write-bw.pcap.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from ibwire.programs.perftest import Layout, Record

ROUND = 256
"""Pieces that ibwire's messages are at least half as many of, before they repeat."""

CARRY_LAG, LONG_LAG = 3, 31


class Contents(Protocol):
    """What messages from one queue pair must be."""

    @property
    def how(self) -> str:
        """How it is known, as a sentence goes on after "verified"."""
        ...

    def fits(self, number: int, data: memoryview) -> bool:
        """Whether this is message `number`, from 0."""
        ...


class Pieces:
    """Contents that are known: pieces of a row of bytes, one after the other and again."""

    def __init__(self, row: bytes, offsets: Sequence[int]) -> None:
        self.row = row
        self.offsets = offsets

    @property
    def how(self) -> str:
        """Every byte is known."""
        return "every byte"

    def fits(self, number: int, data: memoryview) -> bool:
        """Whether this is the piece that is due."""
        return self.row.startswith(data, self.offsets[number % len(self.offsets)])

    def holds(self, place: int, places: int, data: memoryview) -> bool:
        """Whether this is any of the pieces that are due in one of so many places."""
        return any(self.row.startswith(data, each) for each in self.offsets[place::places])


class RandomRun:
    """Contents that perftest does not tell: runs of `rand()`, one for each place.

    steady: whether each place is said to always hold the same, as of memory that is read.
    """

    def __init__(self, layout: Layout, *, steady: bool) -> None:
        self._steady = steady
        self._size = layout.size
        self._known: list[bytes | None] = [None] * layout.places
        self._follows: bool | None = None
        """Whether the first message was such a run: some C libraries have another `rand()`."""

    @property
    def how(self) -> str:
        """By the law of the generator, where it has been seen."""
        again = " and the same each time" if self._steady else ""
        if self._size <= LONG_LAG:
            return "equal each time" if self._steady else "by length alone: too short for more"
        if not self._follows:
            return "equal each time" if self._steady else "by length alone: no rand() of glibc"
        return f"as runs of glibc's rand(){again}"

    def fits(self, number: int, data: memoryview) -> bool:
        """Whether this can be what perftest sends."""
        place = number % len(self._known)
        known = self._known[place]
        if known is not None and known.startswith(data):
            return True
        if known is not None and self._steady:
            return False
        kept = self._known[place] = bytes(data)
        if self._follows is None:
            self._follows = is_random_run(kept)
            return True
        return not self._follows or is_random_run(kept)


def is_random_run(data: bytes) -> bool:
    """Whether bytes can be the low bytes of numbers that glibc's `rand()` gives in a row."""
    row = np.frombuffer(data, np.uint8)
    if len(row) <= LONG_LAG:
        return True
    carry = row[LONG_LAG:] - row[LONG_LAG - CARRY_LAG : -CARRY_LAG] - row[:-LONG_LAG]
    return bool((carry <= 1).all())


def row_of(record: Record, length: int) -> bytes:
    """The row of bytes of an ibwire's queue pair."""
    return hashlib.shake_128(b"%06x:%06x" % (record.qpn, record.psn)).digest(length)


def pieces_sent(record: Record, layout: Layout) -> Pieces:
    """What an ibwire sends or writes from this queue pair.

    The number of pieces is a multiple of that of places, so each belongs to one place.
    """
    count = ROUND // layout.places * layout.places
    return Pieces(row_of(record, layout.size + count), range(count))


def pieces_kept(record: Record, layout: Layout) -> Pieces:
    """What stands in the buffer that an ibwire lets its peer read, by place."""
    end = layout.places * layout.step
    return Pieces(row_of(record, layout.length), range(0, end, layout.step))
