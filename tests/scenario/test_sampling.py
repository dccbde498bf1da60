"""Samples over time: bounded, and honest about what they join."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ibwire.scenario import sampling
from ibwire.scenario.sampling import Samples, counted, last

VALUES = st.lists(
    st.dictionaries(st.sampled_from("abc"), st.integers(1, 9), max_size=3), max_size=12
)


def filled(samples: Samples, values: list[dict[str, int]]) -> Samples:
    for now, each in enumerate(values):
        samples.take(now, {(key,): value for key, value in each.items()})
    return samples


@given(VALUES)
def test_joined_counts_have_the_same_sum(values: list[dict[str, int]]) -> None:
    samples = filled(Samples(counted), values)
    before = Counter[str]()
    for each in values:
        before.update(each)

    samples.thin()

    after = Counter[str]()
    for _, key, count in samples.rows():
        after[key[0]] += int(count)
    assert +after == +before


@given(VALUES)
def test_joined_levels_have_the_same_peak(values: list[dict[str, int]]) -> None:
    samples = filled(Samples(max), values)

    samples.thin()

    for key in "abc":
        peak = max((each.get(key, 0) for each in values), default=0)
        assert (
            max((value for _, name, value in samples.rows() if name == (key,)), default=0) == peak
        )


@given(VALUES)
def test_joined_states_end_with_the_same_value(values: list[dict[str, int]]) -> None:
    samples = filled(Samples(last), values)

    samples.thin()

    for key in "abc":
        final = [each[key] for each in values if key in each][-1:]
        assert [value for _, name, value in samples.rows() if name == (key,)][-1:] == final


def test_zero_stands_before_and_after_other_values() -> None:
    samples = filled(Samples(max), [{}, {}, {"a": 5}, {"a": 6}, {}, {}])

    assert sorted(samples.rows()) == [
        (1, ("a",), 0),
        (2, ("a",), 5),
        (3, ("a",), 6),
        (4, ("a",), 0),
    ]


def test_many_samples_and_many_values_fill_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "MOST_SAMPLES", 4)
    monkeypatch.setattr(sampling, "MOST_VALUES", 10)

    assert not filled(Samples(), [{}] * 4).is_full
    assert filled(Samples(), [{}] * 5).is_full
    assert filled(Samples(), [dict.fromkeys("abcdefghijk", 1)]).is_full
