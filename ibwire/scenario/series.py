"""Values of a run over time: queues of switches, pauses and rates, sampled in bounded memory."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence

from ibwire.base.node import OPEN, Frame, Grant
from ibwire.base.units import US, Time

FIRST_INTERVAL: Time = 1 * US

MOST_SAMPLES = 4096
"""Samples of a series, at most: then every second one is forgotten, and the interval doubles."""

MOST_VALUES = 1 << 22
"""Values of all series together."""


class Series:
    """Samples at equal intervals: `times`, and as many `values` of each name."""

    def __init__(self) -> None:
        self.interval: Time = FIRST_INTERVAL
        self.times = array("q")
        self.values: dict[tuple[str, str], array[int]] = {}
        """By what it is (`queue`, `paused`, `rate`, `sent`) and of what (`s0 to h1`)."""

    def of(self, what: str, name: str) -> Sequence[int]:
        """The values of one series; `KeyError` if there is none."""
        return self.values[what, name]

    def add(self, now: Time, found: Sequence[tuple[tuple[str, str], int]]) -> None:
        """Take one sample of each; a name that was not there yet had the value 0 before."""
        count = len(self.times)
        self.times.append(now)
        for key, value in found:
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


class Sampler:
    """A node without ports that samples a network until it has nothing more to do.

    read: the values now. is_over: whether to stop.
    """

    def __init__(
        self,
        read: Callable[[Time], Sequence[tuple[tuple[str, str], int]]],
        is_over: Callable[[], bool],
    ) -> None:
        self.name = "sampler"
        self.series = Series()
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
        self.series.add(now, self._read(now))
        self._due = None if self._is_over() else now + self.series.interval
