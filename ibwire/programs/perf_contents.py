"""The expected bytes of a message, given its queue pair and its number.

ibwire sends pieces of a long byte sequence derived from the numbers of the queue pair, which
both ends know. Each message of a round is another piece, so that no two are equal.

perftest fills its buffers with the low bytes of `rand()` from an unknown seed. In the GNU C
library each number is the sum of those 3 and 31 before it, so each byte is the sum of two
bytes and a carry. A message of more than 31 bytes can be checked without the seed; each wrong
byte is missed in 2 of 256 cases.

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
"""Number of different messages before they repeat: at least half of it."""

CARRY_LAG, LONG_LAG = 3, 31


class Contents(Protocol):
    """The expected messages from one queue pair."""

    @property
    def how(self) -> str:
        """How messages are verified, to follow the word "verified"."""
        ...

    def fits(self, number: int, data: memoryview) -> bool:
        """Whether this is message `number`, from 0."""
        ...


class Pieces:
    """Known contents: pieces of a byte sequence, used in turn."""

    def __init__(self, row: bytes, offsets: Sequence[int]) -> None:
        self.row = row
        self.offsets = offsets

    @property
    def how(self) -> str:
        """Every byte is compared."""
        return "every byte"

    def fits(self, number: int, data: memoryview) -> bool:
        """Whether this is the expected piece."""
        return self.row.startswith(data, self.offsets[number % len(self.offsets)])

    def holds(self, place: int, places: int, data: memoryview) -> bool:
        """Whether this is any of the pieces expected at one of `places` addresses."""
        return any(self.row.startswith(data, each) for each in self.offsets[place::places])


class RandomRun:
    """Unknown contents of perftest: runs of `rand()`, one for each address.

    steady: whether each address always holds the same bytes, as memory that is read.
    """

    def __init__(self, layout: Layout, *, steady: bool) -> None:
        self._steady = steady
        self._size = layout.size
        self._known: list[bytes | None] = [None] * layout.places
        self._follows: bool | None = None
        """Whether the first message was such a run: other C libraries have another `rand()`."""

    @property
    def how(self) -> str:
        """By the recurrence of the generator, if the first message follows it."""
        again = " and the same each time" if self._steady else ""
        if self._size <= LONG_LAG:
            return "equal each time" if self._steady else "by length only: too short for more"
        if not self._follows:
            return "equal each time" if self._steady else "by length only: not rand() of glibc"
        return f"as runs of glibc's rand(){again}"

    def fits(self, number: int, data: memoryview) -> bool:
        """Whether perftest can have sent this."""
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
    """Whether bytes can be the low bytes of consecutive numbers of glibc's `rand()`."""
    values = np.frombuffer(data, np.uint8)
    if len(values) <= LONG_LAG:
        return True
    carry = values[LONG_LAG:] - values[LONG_LAG - CARRY_LAG : -CARRY_LAG] - values[:-LONG_LAG]
    return bool((carry <= 1).all())


def row_of(record: Record, length: int) -> bytes:
    """The byte sequence of a queue pair of ibwire."""
    return hashlib.shake_128(b"%06x:%06x" % (record.qpn, record.psn)).digest(length)


def pieces_sent(record: Record, layout: Layout) -> Pieces:
    """The pieces that ibwire sends or writes from this queue pair.

    Their number is a multiple of the number of addresses, so each belongs to one address.
    """
    count = ROUND // layout.places * layout.places
    return Pieces(row_of(record, layout.size + count), range(count))


def pieces_kept(record: Record, layout: Layout) -> Pieces:
    """The initial contents of the buffer that ibwire lets its peer read, by address."""
    end = layout.places * layout.step
    return Pieces(row_of(record, layout.length), range(0, end, layout.step))
