from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from each_case import each_case
from ibwire.base.histogram import Histogram, buckets, percentiles

VALUES = st.lists(st.integers(0, 2**63 - 1) | st.integers(0, 5_000), max_size=50)


def of(values: list[int]) -> Histogram:
    histogram = Histogram()
    histogram.add(np.array(values, np.int64))
    return histogram


def nearest_rank(values: list[int], percent: float) -> int:
    return sorted(values)[max(1, math.ceil(len(values) * percent / 100)) - 1]


def test_percentiles_of_small_numbers_are_exact() -> None:
    histogram = of(list(range(1, 101)))

    assert [histogram.percentile(p) for p in (0, 1, 50, 99, 100)] == [1, 1, 50, 99, 100]
    assert histogram.to_json() == {"count": 100, "min": 1, "p50": 50, "p99": 99, "max": 100}


def test_nothing_counted_has_no_percentiles() -> None:
    histogram = Histogram()
    histogram.add(np.zeros(0, np.int64))
    histogram.merge(Histogram())

    assert histogram == Histogram()
    assert (len(histogram), histogram.percentile(50), histogram.low) == (0, None, None)


def test_a_negative_time_counts_as_zero() -> None:
    histogram = of([-5, 7])
    histogram.add_one(-1)

    assert (histogram.low, histogram.high, histogram.percentile(50)) == (0, 7, 0)


@given(VALUES.filter(bool), st.sampled_from((0.1, 1, 25, 50, 75, 99, 99.9)))
def test_percentiles_are_right_to_half_a_percent(values: list[int], percent: float) -> None:
    expected = nearest_rank(values, percent)

    found = of(values).percentile(percent)

    assert found == pytest.approx(expected, rel=1 / 200, abs=0)


@given(st.lists(VALUES, max_size=5), st.sampled_from((1, 25, 50, 99, 100)))
def test_percentiles_of_many_histograms_are_those_of_each(
    parts: list[list[int]], percent: int
) -> None:
    counted = [
        np.unique(buckets(np.array(values, np.int64)), return_counts=True) for values in parts
    ]
    none = np.zeros(0, np.int64)
    index = np.concatenate([none, *[each for each, _ in counted]])
    below = np.concatenate([[0], np.cumsum(np.concatenate([none, *[each for _, each in counted]]))])
    ends = np.cumsum([len(each) for each, _ in counted], dtype=np.int64)
    starts = np.concatenate([[0], ends])[: len(parts)]
    low, high = (np.array([least(v, default=0) for v in parts], np.int64) for least in (min, max))

    found = percentiles(index, below, (starts, ends), (low, high), percent)

    assert found == [of(values).percentile(percent) for values in parts]


@given(VALUES, VALUES)
def test_merging_is_counting_everything(one: list[int], other: list[int]) -> None:
    merged = of(one)
    merged.merge(of(other))

    assert merged == of(one + other)


@given(VALUES)
def test_one_at_a_time_is_the_same_as_all_at_once(values: list[int]) -> None:
    histogram = Histogram()
    for value in values:
        histogram.add_one(value)

    assert histogram == of(values)


@each_case("bits", range(8, 63))
def test_powers_of_two_begin_a_bucket(bits: int) -> None:
    """Where floats round up: the last number below a power is not counted with the power."""
    histogram = of([2**bits - 1] * 2 + [2**bits])

    assert histogram.percentile(50) == pytest.approx(2**bits - 1, rel=1 / 200)
    assert histogram != of([2**bits - 1] + [2**bits] * 2)


def test_buckets_are_few_over_the_whole_range() -> None:
    """12 decades of times, one value in each of a million buckets a percent wide would fit."""
    histogram = of(np.geomspace(1, 1e12, 100_000).astype(np.int64).tolist())

    assert len(histogram._buckets) <= 256 + 128 * 32
