"""The offset and drift of two clocks, from the times of frames that both have seen.

A frame from the first point to the second arrives later than it was sent, one in
the other direction earlier than it would seem: the difference of the two times is
the clocks' offset *plus* the delay in one direction, and *minus* it in the other.
So every frame bounds the offset, from above or from below, and it lies in the
middle of the remaining range, if the fastest frame takes as long there as back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Times = npt.NDArray[np.int64]

MOST_DRIFT = 1e-3
"""Ten times what a quartz that is worth the name is wrong by (IEEE 802.3 allows 100 ppm)."""

RESOLUTION_NS = 2_000
"""Two times that differ by less are the same: captures in microseconds round both."""

_MOST_SAMPLES = 2**14


class Samples:
    """Differences of the times of frames; every k-th of them when there are many."""

    def __init__(self) -> None:
        self._parts: list[Times] = []
        self._held = 0
        self._stride = 1
        self._skip = 0

    def add(self, times: Times, differences: Times) -> None:
        """Times at the first point, and how much later the clock of the second point is."""
        part = np.stack([times, differences])[:, self._skip :: self._stride]
        self._skip = (self._skip - len(times)) % self._stride
        self._parts.append(part)
        self._held += part.shape[1]
        while self._held > _MOST_SAMPLES:
            self._parts = [self.all()[:, ::2]]
            self._held = self._parts[0].shape[1]
            self._stride *= 2
            self._skip = 0

    def all(self) -> Times:
        """(2, n) times and differences."""
        return np.concatenate([np.zeros((2, 0), np.int64), *self._parts], axis=1)


@dataclass(frozen=True, slots=True)
class Clocks:
    """How the second clock relates to the first."""

    offset_ns: int
    """How far it is ahead, at `origin_ns`."""
    uncertain_ns: int | None
    """What the offset may be wrong by; None where only one direction bounds it."""
    drift: float = 0.0
    """Seconds that it gains in a second."""
    origin_ns: int = 0
    consistent: bool = True
    """Whether an offset and a drift explain all times."""

    def delays(self, samples: Times, forward: bool) -> Times | None:
        """(n,) ns that frames were in transit, `None` where that is not known."""
        if self.uncertain_ns is None or not self.consistent:
            return None
        times, differences = samples
        drifted = (self.drift * (times - self.origin_ns)).astype(np.int64)
        delay: Times = differences - self.offset_ns - drifted
        return delay if forward else -delay


def compare_clocks(forward: Times, backward: Times) -> Clocks | None:
    """What explains the samples (2, n) of frames to the second point and from it."""
    if not forward.size and not backward.size:
        return None
    if not backward.size:
        return Clocks(int(forward[1].min()), None)
    if not forward.size:
        return Clocks(int(backward[1].max()), None)
    origin = int(min(forward[0].min(), backward[0].min()))

    def bounds(drift: float) -> tuple[float, float]:
        upper = forward[1] - drift * (forward[0] - origin)
        lower = backward[1] - drift * (backward[0] - origin)
        return float(upper.min()), float(lower.max())

    drift = 0.0
    upper, lower = bounds(drift)
    if upper - lower < -RESOLUTION_NS:
        drift = _widest(bounds)
        upper, lower = bounds(drift)
    return Clocks(
        offset_ns=int((upper + lower) / 2),
        uncertain_ns=int(abs(upper - lower) / 2),
        drift=drift,
        origin_ns=origin,
        consistent=upper - lower >= -RESOLUTION_NS,
    )


def _widest(bounds: Callable[[float], tuple[float, float]]) -> float:
    """The drift that leaves most room between the bounds, which is a concave function of it."""
    low, high = -MOST_DRIFT, MOST_DRIFT
    while high - low > 1e-10:
        first, second = low + (high - low) / 3, high - (high - low) / 3
        rooms = [upper - lower for upper, lower in (bounds(first), bounds(second))]
        if rooms[0] < rooms[1]:
            low = first
        else:
            high = second
    return (low + high) / 2
