"""The timers of all connections in one heap."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from ibwire.base.units import Time
from ibwire.cm.connection import Connection


class Timers:
    """At most one timer for each connection, at its `deadline`.

    The entry of a moved or stopped timer stays in the heap until its time, or until such
    entries outnumber the valid ones.
    """

    __slots__ = ("_heap", "_number")

    LIMIT_STALE = 64
    """Leftovers that are always tolerated."""

    def __init__(self) -> None:
        self._heap: list[tuple[Time, int, Connection]] = []
        self._number = 0

    def __len__(self) -> int:
        """Timers, with leftovers."""
        return len(self._heap)

    def set(self, connection: Connection, deadline: Time, connections: int) -> None:
        """Move a connection's timer. connections: how many there are."""
        connection.deadline = deadline
        self._number += 1
        heapq.heappush(self._heap, (deadline, self._number, connection))
        if len(self._heap) > 2 * connections + self.LIMIT_STALE:
            newest = {
                id(entry[2]): entry for entry in sorted(self._heap) if entry[2].deadline == entry[0]
            }
            self._heap = list(newest.values())
            heapq.heapify(self._heap)

    def next_timeout(self) -> Time | None:
        """When the next one is due; earlier is possible."""
        return self._heap[0][0] if self._heap else None

    def take_due(self, now: Time) -> Iterator[Connection]:
        """Every connection whose time is at most `now`, also those set meanwhile."""
        while self._heap and self._heap[0][0] <= now:
            deadline, _, connection = heapq.heappop(self._heap)
            if connection.deadline == deadline:
                connection.deadline = None
                yield connection
