"""The results of a test, in the units of perftest's tables."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ibwire.programs.perftest import Report

MEGABYTE = 1 << 20
"""Bytes of perftest's MB."""

PEAK_LIMIT = 10_000
"""Largest number of messages for which the peak is computed, from all pairs of them."""


@dataclass(slots=True)
class Bandwidth:
    """Times in ns at which messages in one direction were posted and completed."""

    size: int
    """Bytes of a message."""
    messages: int = 0
    begun_ns: int = 0
    ended_ns: int = 0
    posted_ns: list[int] | None = None
    """Of each message; `None` for too many."""
    completed_ns: list[int] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        """From the first post to the last completion."""
        return max(self.ended_ns - self.begun_ns, 1) / 1e9

    def report(self) -> Report:
        """The numbers that both ends exchange."""
        average = self.messages * self.size / MEGABYTE / self.seconds
        rate = self.messages / self.seconds / 1e6
        return Report(self.size, self.messages, self._peak(), average, rate)

    def _peak(self) -> float:
        """The highest rate between the post of a message and a later completion; 0 if unknown."""
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
    """Latencies in us: one way for SENDs and WRITEs, the round trip for READs and atomics."""

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
        """From the times at which consecutive messages were posted.

        ways: messages per round, 1 or 2. The first round is left out: in it perftest measures
        the speed of its processor's clock for 0.2 s (get_clock.c).
        """
        times = np.sort(np.diff(np.array(posted_ns[1:], np.float64))) / 1e3 / ways
        if not len(times):
            times = np.zeros(1)

        def percentile(share: float) -> float:
            return float(times[math.ceil(len(times) * share) - 1])

        return cls(
            size=size,
            messages=len(posted_ns),
            t_min=float(times[0]),
            t_max=float(times[-1]),
            t_typical=float(np.median(times)),
            t_avg=float(times.mean()),
            t_stdev=float(times.std()),
            p99=percentile(0.99),
            p99_9=percentile(0.999),
        )


@dataclass(slots=True)
class Result:
    """The result of a test."""

    own: str
    peer: str
    is_ibwire: bool
    """Whether the peer is ibwire."""
    mtu: int
    size: int
    """Bytes of a message."""
    qpns: list[tuple[int, int]]
    """Own and peer's QP number of each connection."""
    sent: int = 0
    """Completed requests."""
    received: int = 0
    """SENDs that arrived; in a latency test also WRITEs."""
    lost: int = 0
    """Messages of an unreliable service that did not arrive, or WRITEs that arrived in part."""
    wrong: int = 0
    """Messages, results or memory with unexpected contents."""
    verified: dict[str, str] = field(default_factory=dict)
    """How contents were verified, by kind of contents."""
    report: Report | None = None
    """The table of a bandwidth test."""
    latency: Latency | None = None

    @property
    def passed(self) -> bool:
        """Whether all verified contents were correct."""
        return not self.wrong
