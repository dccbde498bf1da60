"""The future events of a simulator, in the order of their times.

Only those of the next moment are kept in order, in a heap. Later ones lie in slots of time until
theirs is the next: a large network has thousands of events, and a heap of them all would look at
many at each step, which are no longer in a cache of the processor.

Compiled, an event in the queue is an object whose numbers are compared without calls, in a heap
written here; interpreted, it is the tuple itself in a heap of Python's `heapq`, which would have to
call back for objects. Both give the same order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import heapify, heappop, heappush
from itertools import chain
from typing import Final

from ibwire.base.node import Frame
from ibwire.base.unbuilt import UnbuiltFrame
from ibwire.base.units import Time
from ibwire.fabric.line import Direction, Event, Flight, Station

IS_COMPILED: Final = not __file__.endswith(".py")

SLOT: Final = 16
"""Bits of the picoseconds of a slot: 66 ns, less than a packet of 1 KiB takes at 100 Gb/s."""

FEW: Final = 64
"""Events up to which the heap takes those of further slots too: two devices need no slots."""

AHEAD: Final = 1 << 6
"""Slots that it takes at once: 4 us."""

NEAR: Final = AHEAD << SLOT
"""Picoseconds to an event that it takes so. A timer far ahead would make it take all."""


class EventQueue:
    """Events by time, then by when they were scheduled, then by their order."""

    __slots__ = ("_count", "_entries", "_events", "_later", "_slots", "_start", "order")

    def __init__(self) -> None:
        self._events: list[Event] = []
        """A heap of the events before `_start`, interpreted."""
        self._entries: list[Entry] = []
        """The same, compiled."""
        self._later: dict[int, list[Event | Entry]] = {}
        """The others by slot."""
        self._slots: list[int] = []
        """A heap of those slots."""
        self._start: Time = 0
        """When the first slot begins, at the earliest."""
        self._count = 0
        self.order = 0
        """The last number that an event has got for its order."""

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Event]:
        """All events, in no order."""
        held = chain(self._events, self._entries, *self._later.values())
        return iter([each.event() if isinstance(each, Entry) else each for each in held])

    def next_order(self) -> int:
        """The number of an event that is scheduled now."""
        self.order += 1
        return self.order

    def schedule(
        self,
        time: Time,
        since: Time,
        station: Station,
        line: Direction | None = None,
        frame: Frame | UnbuiltFrame | Flight | None = None,
    ) -> int:
        """Add an event that is scheduled now, and return its number."""
        order = self.order = self.order + 1
        event = (time, since, order, station, line, frame)
        if not IS_COMPILED and time < self._start:  # `push`, inlined
            self._count += 1
            heappush(self._events, event)
        else:
            self.push(event)
        return order

    def push(self, event: Event) -> None:
        """Add an event that has got its number before."""
        self._count += 1
        time = event[0]
        if time < self._start:
            if IS_COMPILED:
                push_entry(self._entries, Entry(event))
            else:
                heappush(self._events, event)
            return
        slot = time >> SLOT
        slots = self._slots
        if self._count <= FEW and time - self._start < NEAR and (not slots or slot < slots[0]):
            # With it the heap takes all events before the next slot that has some, or for a while.
            end = slot + AHEAD
            self._start = (slots[0] if slots and slots[0] < end else end) << SLOT
            if IS_COMPILED:
                push_entry(self._entries, Entry(event))
            else:
                heappush(self._events, event)
            return
        held = self._later.get(slot)
        if held is None:
            self._later[slot] = [Entry(event) if IS_COMPILED else event]
            heappush(self._slots, slot)
        else:
            held.append(Entry(event) if IS_COMPILED else event)

    def first(self) -> Event:
        """The next event, which stays; there has to be one."""
        if IS_COMPILED:
            if not self._entries:
                self._advance()
            return self._entries[0].event()
        if not self._events:
            self._advance()
        return self._events[0]

    def pop(self, last: Time | None = None) -> Event | None:
        """Remove and return the next event, unless there is none, or none up to the time `last`."""
        if not self._count:
            return None
        if IS_COMPILED:
            if not self._entries:
                self._advance()
            if last is not None and self._entries[0].time > last:
                return None
            self._count -= 1
            return pop_entry(self._entries).event()
        if not self._events:
            self._advance()
        if last is not None and self._events[0][0] > last:
            return None
        self._count -= 1
        return heappop(self._events)

    def remove(self, events: Iterable[Event]) -> None:
        """Remove some of the events."""
        gone = {event[2] for event in events}
        kept = [event for event in self if event[2] not in gone]
        self._events, self._entries, self._later, self._slots = [], [], {}, []
        self._count = 0
        for event in kept:
            self.push(event)

    def _advance(self) -> None:
        """Put the events of the first slot in order; there are none before it."""
        slot = heappop(self._slots)
        self._start = slot + 1 << SLOT
        held = self._later.pop(slot)
        if IS_COMPILED:
            for entry in held:
                assert isinstance(entry, Entry)
                push_entry(self._entries, entry)
        else:
            self._events = held  # type: ignore[assignment]  # which holds events only
            heapify(self._events)


class Entry:
    """An event as an object."""

    __slots__ = ("frame", "line", "order", "since", "station", "time")

    def __init__(self, event: Event) -> None:
        self.time: Time = event[0]
        self.since: Time = event[1]
        self.order: int = event[2]
        self.station: Station = event[3]
        self.line: Direction | None = event[4]
        self.frame = event[5]

    def event(self) -> Event:
        """The same as a tuple."""
        return self.time, self.since, self.order, self.station, self.line, self.frame

    def precedes(self, other: Entry) -> bool:
        """Whether it takes place before another one."""
        if self.time != other.time:
            return self.time < other.time
        if self.since != other.since:
            return self.since < other.since
        return self.order < other.order


def push_entry(heap: list[Entry], entry: Entry) -> None:
    """Add an entry to a heap."""
    at = len(heap)
    heap.append(entry)
    while at:
        above = (at - 1) >> 1
        parent = heap[above]
        if not entry.precedes(parent):
            break
        heap[at] = parent
        at = above
    heap[at] = entry


def pop_entry(heap: list[Entry]) -> Entry:
    """Remove and return the first entry of a heap."""
    last = heap.pop()
    count = len(heap)
    if not count:
        return last
    first = heap[0]
    at, below = 0, 1
    while below < count:
        child = heap[below]
        if below + 1 < count:
            other = heap[below + 1]
            if other.precedes(child):
                child = other
                below += 1
        if last.precedes(child):
            break
        heap[at] = child
        at = below
        below = 2 * at + 1
    heap[at] = last
    return first
