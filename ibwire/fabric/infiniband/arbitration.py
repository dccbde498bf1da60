"""Which virtual lane of a port sends next: VL arbitration with its two tables.

Each table is a list of lanes with weights in units of 64 bytes. An entry sends until its weight is
used up or it has nothing that may be sent; the last packet may exceed it. The table of high
priority goes first, until it has sent its limit while the other one was waiting.

Source: IBA 7.6.9; docs/reference/infiniband.md#arbitration.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

UNIT: Final = 64
"""Bytes of a weight of 1."""
LIMIT_UNIT: Final = 4096
"""Bytes of a limit of 1."""
NO_LIMIT: Final = 255


class Arbiter:
    """Chooses among the lanes of a port.

    high, low: entries of both tables, each a lane and its weight. limit: LimitOfHighPriority.
    """

    __slots__ = ("_high", "_left", "_limit", "_low", "lanes")

    def __init__(
        self, high: Sequence[tuple[int, int]], low: Sequence[tuple[int, int]], limit: int
    ) -> None:
        self._high = _Table(high)
        self._low = _Table(low)
        self._limit = limit
        self._left = self._budget()
        self.lanes = self._high.lanes | self._low.lanes
        """Bits of the lanes that are in a table: others never send."""

    def choose(self, sendable: int, size_of: Sequence[int]) -> int:
        """The lane whose next packet leaves; -1 if none may.

        sendable: bits of the lanes whose next packet may leave. size_of: its bytes, by lane.
        """
        from_high = sendable & self._high.lanes
        from_low = sendable & self._low.lanes
        if from_high and (self._left > 0 or not from_low):
            if not from_low:
                self._left = self._budget()
            vl = self._high.choose(from_high, size_of)
            if self._limit != NO_LIMIT:
                self._left -= size_of[vl]
            return vl
        if not from_low:
            return -1
        self._left = self._budget()
        return self._low.choose(from_low, size_of)

    def _budget(self) -> int:
        """Bytes of high priority before the other table has its turn: at least one packet."""
        return self._limit * LIMIT_UNIT or 1


class _Table:
    """A table, and where in it the port is."""

    __slots__ = ("entries", "lanes", "left", "position")

    def __init__(self, entries: Sequence[tuple[int, int]]) -> None:
        self.entries = [(vl, weight * UNIT) for vl, weight in entries if weight and vl < 15]
        self.lanes = 0
        for vl, _ in self.entries:
            self.lanes |= 1 << vl
        self.position = 0
        self.left = self.entries[0][1] if self.entries else 0

    def choose(self, sendable: int, size_of: Sequence[int]) -> int:
        """The lane of the entry whose turn it is; one of `sendable` is in the table."""
        entries = self.entries
        while True:
            vl, _ = entries[self.position]
            if self.left > 0 and sendable >> vl & 1:
                self.left -= size_of[vl]
                return vl
            self.position = (self.position + 1) % len(entries)
            self.left = entries[self.position][1]


def read_table(*parts: bytes) -> list[tuple[int, int]]:
    """The entries of a table, given its attributes of 32 entries each (IBA 14.2.5.9)."""
    data = b"".join(parts)
    return [(data[at] & 15, data[at + 1]) for at in range(0, len(data), 2)]
