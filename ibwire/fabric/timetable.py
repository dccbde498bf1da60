"""Functions that are called at times of a run: a node without ports."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count

from ibwire.base.node import OPEN, Frame, Grant
from ibwire.base.units import Time


class Timetable:
    """Calls functions at their times, those of one time in the order in which they were added.

    After one was added, the simulator has to `kick` this node.
    """

    def __init__(self, name: str = "timetable") -> None:
        self.name = name
        self._due: list[tuple[Time, int, Callable[[], None]]] = []
        self._number = count().__next__

    def add(self, time: Time, action: Callable[[], None]) -> None:
        """Call `action` at a time."""
        heapq.heappush(self._due, (time, self._number(), action))

    def receive(self, frame: Frame, now: Time, port: int = 0) -> None:
        """Does nothing: it has no ports."""

    def poll_transmit(self, now: Time, port: int = 0, grant: Grant = OPEN) -> Frame | None:
        """`None`: it has no ports."""
        return None

    def poll_timeout(self) -> Time | None:
        """When the next function is called."""
        return self._due[0][0] if self._due else None

    def handle_timeout(self, now: Time) -> None:
        """Call the functions that are due."""
        while self._due and self._due[0][0] <= now:
            heapq.heappop(self._due)[2]()
