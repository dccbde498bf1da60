"""What a test has measured, in the units of perftest's tables."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ibwire.programs.perftest import Report

MEGABYTE = 1 << 20
"""Bytes: perftest counts so unless asked for gigabits."""

PEAK_LIMIT = 10_000
"""Messages up to which the peak is looked for, among all pairs of them."""


@dataclass(slots=True)
class Bandwidth:
    """When the messages of one half of an end were posted and completed, in ns."""

    size: int
    """Bytes of a message."""
    messages: int = 0
    begun_ns: int = 0
    ended_ns: int = 0
    posted_ns: list[int] | None = None
    """Of each message; `None` where there are too many."""
    completed_ns: list[int] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        """From the first posted to the last completed."""
        return max(self.ended_ns - self.begun_ns, 1) / 1e9

    def report(self) -> Report:
        """The numbers that both ends tell each other."""
        average = self.messages * self.size / MEGABYTE / self.seconds
        rate = self.messages / self.seconds / 1e6
        return Report(self.size, self.messages, self._peak(), average, rate)

    def _peak(self) -> float:
        """The best rate between any message posted and any later one completed; 0 if unknown."""
        if not self.posted_ns:
            return 0.0
        posted = np.array(self.posted_ns, np.float64)
        completed = np.array(self.completed_ns, np.float64)
        counts = np.arange(1.0, len(posted) + 1)
        shortest = min(
            float(((completed[first:] - posted[first]) / counts[: len(posted) - first]).min())
            for first in range(len(posted))
        )
        return self.size / MEGABYTE / (max(shortest, 1.0) / 1e9)


@dataclass(frozen=True, slots=True)
class Latency:
    """Times of messages, us: one way of SENDs and WRITEs, the whole round of the others."""

    size: int
    messages: int
    t_min: float
    t_max: float
    t_typical: float
    """The median."""
    t_avg: float
    t_stdev: float
    p99: float
    p99_9: float

    @classmethod
    def of(cls, size: int, posted_ns: Sequence[int], ways: int) -> Latency:
        """From the times at which messages were posted, one after the other's end.

        ways: how many messages there are in a round, 1 or 2. The first round is left out:
        in it perftest's end finds out how fast its processor's clock is, for 0.2 s
        (get_clock.c).
        """
        times = np.sort(np.diff(np.array(posted_ns[1:], np.float64))) / 1e3 / ways
        if not len(times):
            times = np.zeros(1)

        def percentile(share: float) -> float:
            return float(times[math.ceil(len(times) * share) - 1])

        return cls(
            size,
            len(posted_ns),
            float(times[0]),
            float(times[-1]),
            float(np.median(times)),
            float(times.mean()),
            float(times.std()),
            percentile(0.99),
            percentile(0.999),
        )


@dataclass(slots=True)
class Result:
    """What came of a test."""

    own: str
    peer: str
    is_ibwire: bool
    """Whether the peer is."""
    mtu: int
    size: int
    """Bytes of a message."""
    qpns: list[tuple[int, int]]
    """Own and the peer's of each connection."""
    sent: int = 0
    """Requests that were completed."""
    received: int = 0
    """SENDs that arrived; of ping-pong also WRITEs."""
    lost: int = 0
    """Messages of an unreliable service that did not arrive; places that its WRITEs left torn."""
    wrong: int = 0
    """Messages, results or places that were not what they must be."""
    verified: dict[str, str] = field(default_factory=dict)
    """How contents were verified, by what they were."""
    report: Report | None = None
    """What the table shows of a bandwidth test."""
    latency: Latency | None = None

    @property
    def passed(self) -> bool:
        """Whether all that could be verified was right."""
        return not self.wrong
