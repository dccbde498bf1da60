"""Lengths of the queues of switches, sampled at equal intervals in bounded memory for percentiles.

What a run writes to a directory is in `ibwire.scenario.recording`, which samples after events.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping
from typing import NamedTuple

from ibwire.base.node import OPEN, Frame, Grant
from ibwire.base.units import US, Time

FIRST_INTERVAL: Time = 1 * US

MOST_SAMPLES = 4096
"""Samples of a queue, at most: then every second one is removed, and the interval doubles."""

MOST_VALUES = 1 << 22
"""Values of all queues together."""


class QueueKey(NamedTuple):
    """A queue of a switch."""

    switch: str
    port: int
    priority: int


class QueueLengths:
    """Samples at equal intervals: `times`, and as many `values` of each queue, in bytes."""

    def __init__(self) -> None:
        self.interval: Time = FIRST_INTERVAL
        self.times = array("q")
        self.values: dict[QueueKey, array[int]] = {}

    def between(self, key: QueueKey, start: Time, end: Time) -> list[int]:
        """The values of one queue from start to end; none if it has always been empty."""
        found = zip(self.times, self.values.get(key, ()), strict=False)
        return [value for time, value in found if start <= time <= end]

    def add(self, now: Time, found: Mapping[QueueKey, int]) -> None:
        """Take one sample of each queue; one that is not in `found` is empty."""
        count = len(self.times)
        self.times.append(now)
        for key, value in found.items():
            values = self.values.get(key)
            if values is None:
                values = self.values[key] = array("q", bytes(8 * count))
            values.append(value)
        for values in self.values.values():
            if len(values) == count:
                values.append(0)
        # With an even number before it the newest one stays, and the intervals stay equal.
        is_full = count >= MOST_SAMPLES or count * len(self.values) >= MOST_VALUES
        if is_full and count % 2 == 0:
            self._thin()

    def _thin(self) -> None:
        self.interval *= 2
        self.times = self.times[::2]
        self.values = {key: values[::2] for key, values in self.values.items()}


class QueueSampler:
    """A node without ports that samples queues until the network has nothing more to do.

    read: the queues now. is_over: whether to stop.
    """

    def __init__(
        self, read: Callable[[], Mapping[QueueKey, int]], is_over: Callable[[], bool]
    ) -> None:
        self.name = "sampler"
        self.lengths = QueueLengths()
        self._read = read
        self._is_over = is_over
        self._due: Time | None = 0

    def receive(self, frame: Frame, now: Time, port: int = 0) -> None:
        """Take a frame that has arrived whole."""

    def poll_transmit(self, now: Time, port: int = 0, grant: Grant = OPEN) -> Frame | None:
        """`None`: it sends nothing."""
        return None

    def poll_timeout(self) -> Time | None:
        """When the next sample is due."""
        return self._due

    def handle_timeout(self, now: Time) -> None:
        """Take a sample."""
        self.lengths.add(now, self._read())
        self._due = None if self._is_over() else now + self.lengths.interval
