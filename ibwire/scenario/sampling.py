"""Values over time in bounded memory: when there are too many, neighbours in time become one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from operator import add
from typing import Any

from ibwire.base.units import Time

Key = tuple[Any, ...]
"""What a value is of: a port and priority, or a queue pair."""

MOST_VALUES = 200_000
"""Values of one series of samples that are kept."""

MOST_SAMPLES = 4000
"""Times at which there are samples."""


def last(before: float, after: float) -> float:
    """The later of two values."""
    return after


class Samples:
    """What several things have at each of several times, by their keys.

    merge: makes one value of two neighbours in time: `max` of levels, `add` of counts, `last` of
    what stays until it changes. What a sample does not have is 0, and with `last` unchanged.
    """

    def __init__(self, merge: Callable[[float, float], float] = max) -> None:
        self._merge = merge
        self._samples: list[tuple[Time, dict[Key, float]]] = []
        self._values = 0

    @property
    def is_full(self) -> bool:
        """Whether neighbours must become one before more is added."""
        return self._values > MOST_VALUES or len(self._samples) > MOST_SAMPLES

    def take(self, now: Time, values: dict[Key, float]) -> None:
        """Add a sample."""
        self._samples.append((now, values))
        self._values += len(values)

    def thin(self) -> None:
        """Make one sample of each two."""
        thinned = []
        for index in range(0, len(self._samples) - 1, 2):
            (_, first), (now, second) = self._samples[index : index + 2]
            thinned.append((now, self._joined(first, second)))
        if len(self._samples) % 2:
            thinned.append(self._samples[-1])
        self._samples = thinned
        self._values = sum(len(values) for _, values in thinned)

    def rows(self) -> Iterator[tuple[Time, Key, float]]:
        """Time, key and value; with the 0 before and after each run of other values."""
        if self._merge is last:
            for now, values in self._samples:
                yield from ((now, key, value) for key, value in values.items())
            return
        empty: Mapping[Key, float] = {}
        for index, (now, values) in enumerate(self._samples):
            before = self._samples[index - 1][1] if index else empty
            after = self._samples[index + 1][1] if index + 1 < len(self._samples) else empty
            yield from ((now, key, value) for key, value in values.items())
            around = dict.fromkeys([*before, *after])
            yield from ((now, key, 0) for key in around if key not in values)

    def _joined(self, first: dict[Key, float], second: dict[Key, float]) -> dict[Key, float]:
        joined = dict(first)
        for key, value in second.items():
            joined[key] = self._merge(joined[key], value) if key in joined else value
        return joined


counted = add
"""How counts of two neighbours in time become one."""
