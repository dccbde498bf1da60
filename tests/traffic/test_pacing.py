"""When frames are due: expected times are calculated by hand."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from each_case import each_case
from ibwire.base.errors import EncodeError
from ibwire.base.units import MS, S
from ibwire.traffic.pace import Pace, Pacer, Phase, RecordedTimes, Unit


def due(
    phases: Any, count: int, *, unit: Unit = Unit.PACKETS, repeat: bool = False, length: int = 1000
) -> Any:
    """Milliseconds."""
    pacer = Pacer(Pace(tuple(phases), unit, repeat))
    return pacer.due(np.full(count, length, np.int64)) / 1e6


def test_steady_rate_is_evenly_spaced() -> None:
    assert due([Phase(S, 10_000.0)], 4).tolist() == [0, 0.1, 0.2, 0.3]


def test_steady_rate_goes_on_behind_its_phase() -> None:
    assert due([Phase(MS, 1_000.0)], 4).tolist() == [0, 1, 2, 3]


def test_rate_in_bits_counts_the_bits_before_each_frame() -> None:
    """8 Mb/s are 1000 bytes a millisecond."""
    pacer = Pacer(Pace((Phase(S, 8e6),), Unit.BITS))

    times = pacer.due(np.array([1000, 500, 2000, 64]))

    assert (times / 1e6).tolist() == [0, 1, 1.5, 3.5]


def test_burst_leaves_at_once_and_the_next_a_period_later() -> None:
    times = due([Phase(10 * MS, burst=3)], 7, repeat=True)

    assert times.tolist() == [0, 0, 0, 10, 10, 10, 20]


def test_frame_after_a_pause_is_due_at_its_end() -> None:
    times = due([Phase(2 * MS, 1_000.0), Phase(5 * MS)], 5, repeat=True)

    assert times.tolist() == [0, 1, 7, 8, 14]


def test_pause_in_the_middle_delays_what_follows() -> None:
    times = due([Phase(2 * MS, 1_000.0), Phase(5 * MS), Phase(3 * MS, 500.0)], 5)

    assert times.tolist() == [0, 1, 7, 9, 11]


def test_ramp_from_nothing_follows_the_square_root() -> None:
    """5 packets a second more every second: n packets after sqrt(2 n / 5) seconds."""
    times = due([Phase(2 * S, 0.0, 10.0)], 12)

    expected = [1e3 * (2 * n / 5) ** 0.5 for n in range(11)] + [2100.0]
    assert times == pytest.approx(expected, abs=1e-5)


def test_ramp_downwards_goes_on_with_its_last_rate() -> None:
    """10 to 2 a second in a second is 6 packets, 1 - (1 - 0.4) ... then one every half second."""
    times = due([Phase(S, 10.0, 2.0)], 9)

    # 10 t - 4 t^2 = n
    expected = [1e3 * (10 - (100 - 16 * n) ** 0.5) / 8 for n in range(7)] + [1500.0, 2000.0]
    assert times == pytest.approx(expected, abs=1e-5)


@pytest.mark.slow
def test_ten_thousand_a_second_are_exact_after_a_thousand_seconds() -> None:
    pacer = Pacer(Pace((Phase(S, 10_000.0),), Unit.PACKETS))
    for _ in range(100):
        pacer.due(np.ones(100_000, np.int64))

    assert pacer.due(np.ones(2, np.int64)).tolist() == [10**12, 10**12 + 100_000]


@given(
    phases=st.lists(
        st.builds(
            Phase,
            st.integers(0, S),
            st.floats(0, 1e6),
            st.none() | st.floats(0, 1e6),
            st.integers(0, 100).map(float),
        ),
        min_size=1,
        max_size=4,
    ),
    repeat=st.booleans(),
    unit=st.sampled_from(Unit),
    lengths=st.lists(st.integers(14, 9000), min_size=1, max_size=50),
    cut=st.integers(0, 50),
)
def test_times_never_go_back_and_blocks_make_no_difference(
    phases: Any, repeat: bool, unit: Any, lengths: list[int], cut: int
) -> None:
    pace = Pace((*phases, Phase(S, 1000.0)), unit, repeat)
    sizes = np.array(lengths)

    whole = Pacer(pace).due(sizes)
    pacer = Pacer(pace)
    parts = np.concatenate((pacer.due(sizes[:cut]), pacer.due(sizes[cut:])))

    assert (parts == whole).all()
    assert whole[0] >= 0
    assert (np.diff(whole) >= 0).all()


@each_case(
    ("phases", "repeat"),
    [
        ((), False),
        ((Phase(S),), True),
        ((Phase(S, 10.0, 0.0),), False),
        ((Phase(S, 10.0), Phase(S)), False),
        ((Phase(0, burst=3.0),), True),
    ],
)
def test_pace_that_comes_to_nothing_is_refused(phases: Any, repeat: bool) -> None:
    with pytest.raises(EncodeError, match="never stops"):
        Pacer(Pace(phases, Unit.PACKETS, repeat))


def test_recorded_times_count_from_the_first_and_never_go_back() -> None:
    recorded = RecordedTimes(np.array([50, 70, 60, 100]))

    assert recorded.due(np.ones(2)).tolist() == [0, 20]
    assert recorded.due(np.ones(3)).tolist() == [20, 50, 50]
