"""Mergeable histograms with buckets about one percent wide, for percentiles.

Each value below 256 has its own bucket. Above, every power of two is cut into 128
equal buckets, so that a bucket is never wider than 1/128 of its values.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.int64]

PERCENTILES = (50, 99)
"""What `to_json` reports between the smallest and the largest value."""


class Histogram:
    """Counts of whole numbers, such as nanoseconds; a negative one counts as 0.

    Negative times come from clocks that step back.
    """

    __slots__ = ("_buckets", "count", "high", "low")

    def __init__(self) -> None:
        self.count = 0
        self.low: int | None = None
        """The smallest value, exactly."""
        self.high: int | None = None
        """The largest value, exactly."""
        self._buckets: dict[int, int] = {}

    def add(self, values: npt.NDArray[np.integer]) -> None:
        """Count (n,) values, each within 63 bits."""
        if not len(values):
            return
        indices, counts = np.unique(buckets(values), return_counts=True)
        found = dict(zip(indices.tolist(), counts.tolist(), strict=True))
        self.add_buckets(found, int(values.min()), int(values.max()))

    def add_buckets(self, counts: dict[int, int], low: int, high: int) -> None:
        """Count values by their `buckets`, the smallest and the largest of which are these."""
        for index, count in counts.items():
            self._buckets[index] = self._buckets.get(index, 0) + count
        self._widen(sum(counts.values()), max(low, 0), max(high, 0))

    def add_one(self, value: int, times: int = 1) -> None:
        """Count one value, once or more often."""
        value = max(value, 0)
        excess = max(value.bit_length() - _BITS, 0)
        index = (excess << _BITS - 1) + (value >> excess)
        self._buckets[index] = self._buckets.get(index, 0) + times
        self._widen(times, value, value)

    def merge(self, other: Histogram) -> None:
        """Add the counts of another histogram."""
        if other.low is None or other.high is None:
            return
        for index, count in other._buckets.items():
            self._buckets[index] = self._buckets.get(index, 0) + count
        self._widen(other.count, other.low, other.high)

    def percentile(self, percent: float) -> int | None:
        """The value that `percent` of all values do not exceed, to about half a percent.

        percent: 0 to 100. `None` when nothing was counted. By nearest rank: 50 of
        an even number of values is the lower of the two in the middle.
        """
        if self.low is None or self.high is None:
            return None
        rank = max(1, -(-self.count * percent // 100))
        if rank >= self.count:
            return self.high
        below = 0
        for index in sorted(self._buckets):
            below += self._buckets[index]
            if below >= rank:
                return min(max(_middle(index), self.low), self.high)
        return self.high

    def to_json(self) -> dict[str, int | None]:
        """Count, smallest, percentiles and largest."""
        between = {f"p{percent}": self.percentile(percent) for percent in PERCENTILES}
        return {"count": self.count, "min": self.low, **between, "max": self.high}

    def __len__(self) -> int:
        return self.count

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Histogram):
            return NotImplemented
        mine = self.count, self.low, self.high, self._buckets
        return mine == (other.count, other.low, other.high, other._buckets)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Histogram({self.to_json()})"

    def _widen(self, count: int, low: int, high: int) -> None:
        self.count += count
        self.low = low if self.low is None else min(self.low, low)
        self.high = high if self.high is None else max(self.high, high)


def percentiles(
    index: npt.NDArray[np.integer],
    below: Numbers,
    parts: tuple[Numbers, Numbers],
    limits: tuple[Numbers, Numbers],
    percent: int,
) -> list[int | None]:
    """`Histogram.percentile` of n histograms.

    index: their buckets in ascending order. below: how many values all buckets before each have,
    and all together. parts: where the buckets of each histogram begin and end. limits: their
    smallest and largest values.
    """
    (starts, ends), (low, high) = parts, limits
    total = below[ends] - below[starts]
    rank = np.maximum(-(-total * percent // 100), 1)
    at = np.searchsorted(below, below[starts] + rank) - 1
    last = np.minimum(at, len(index) - 1)
    middle = _middles(index[last].astype(np.int64)) if len(index) else high
    found = np.where(rank < total, np.clip(middle, low, high), high)
    return [
        value if count else None
        for value, count in zip(found.tolist(), total.tolist(), strict=True)
    ]


def buckets(values: npt.NDArray[np.integer]) -> npt.NDArray[np.int64]:
    """(n,) the bucket of each value."""
    numbers = np.maximum(values.astype(np.int64), 0)
    # The exponent of a float that had to be rounded up to a power of two is one too large;
    # the bucket comes out the same, because it is the last one below that power.
    excess = np.maximum(np.frexp(numbers.astype(np.float64))[1] - _BITS, 0).astype(np.int64)
    found: npt.NDArray[np.int64] = (excess << _BITS - 1) + (numbers >> excess)
    return found


_BITS = 8
"""Leading bits of a value that decide its bucket."""


def _middles(index: Numbers) -> Numbers:
    """(n,) the value in the middle of each bucket."""
    excess = np.maximum((index >> _BITS - 1) - 1, 0)
    middle: Numbers = (index - (excess << _BITS - 1) << excess) + (1 << excess >> 1)
    return middle


def _middle(index: int) -> int:
    """The value in the middle of a bucket."""
    excess = max((index >> _BITS - 1) - 1, 0)
    low = index - (excess << _BITS - 1) << excess
    return low + (1 << excess >> 1)
