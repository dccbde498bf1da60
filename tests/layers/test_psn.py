"""Laws of 24-bit sequence numbers (IBA 9.7.1)."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from each_case import each_case
from ibwire_layers import psn

SIZE = 1 << 24

numbers = st.integers(0, SIZE - 1)
steps = st.integers(-(SIZE // 2), SIZE // 2 - 1)


@given(numbers, steps)
def test_distance_undoes_add(start: int, count: int) -> None:
    assert psn.distance(start, psn.add(start, count)) == count


@given(numbers, numbers)
def test_add_undoes_distance(start: int, end: int) -> None:
    assert psn.add(start, psn.distance(start, end)) == end


@given(numbers, st.integers())
def test_add_stays_on_the_circle(start: int, count: int) -> None:
    assert 0 <= psn.add(start, count) < SIZE
    assert (psn.add(start, count) - start - count) % SIZE == 0


@given(numbers, numbers)
@example(0, SIZE // 2)
def test_distance_is_antisymmetric_except_at_half_the_circle(start: int, end: int) -> None:
    forth, back = psn.distance(start, end), psn.distance(end, start)

    if (end - start) % SIZE == SIZE // 2:
        assert forth == back == -(SIZE // 2)
    else:
        assert forth == -back


@given(numbers, numbers)
def test_of_two_numbers_one_is_newer_unless_equal_or_half_apart(one: int, other: int) -> None:
    ties = (0, SIZE // 2)

    assert psn.is_newer(one, other) + psn.is_newer(other, one) == ((one - other) % SIZE not in ties)


@given(numbers, st.integers(0, 40), st.integers(-50, 50))
def test_window_holds_what_counting_from_its_first_reaches(
    first: int, count: int, step: int
) -> None:
    window = [(first + i) % SIZE for i in range(count)]
    number = (first + step) % SIZE

    assert psn.in_window(number, first, count) == (number in window)


@each_case(
    ("start", "end", "steps"),
    [
        (0, 0, 0),
        (0xFFFFFF, 0, 1),
        (0, 0xFFFFFF, -1),
        (0, 0x7FFFFF, 0x7FFFFF),  # the last of the half ahead
        (0, 0x800000, -0x800000),  # the duplicate region reaches 2^23 back
        (0x123456, 0x123400, -0x56),
    ],
)
def test_distance_by_hand(start: int, end: int, steps: int) -> None:
    assert psn.distance(start, end) == steps
    assert psn.is_newer(end, start) == (steps > 0)
