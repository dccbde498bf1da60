"""Cases that are one test: each is looked at, and those that fail are named."""

import inspect
from typing import Any

import pytest

from each_case import each_case


def failures(test: Any, **fixtures: Any) -> list[str]:
    """What each failing case says last: its name."""
    with pytest.raises(ExceptionGroup) as raised:
        test(**fixtures)
    return [error.__notes__[-1] for error in raised.value.exceptions]


def test_every_case_is_looked_at_and_those_that_fail_are_named() -> None:
    seen = []

    @each_case("number", [1, 2, 3, 4], ids=lambda number: f"n{number}")
    def even(number: int) -> None:
        seen.append(number)
        assert number % 2 == 0

    assert failures(even) == ["case n1", "case n3"]
    assert seen == [1, 2, 3, 4]


def test_fixtures_are_passed_on() -> None:
    @each_case(("a", "b"), [(1, 2), (2, 2)])
    def sums_up(a: int, b: int, total: int) -> None:
        assert a + b == total

    assert list(inspect.signature(sums_up).parameters) == ["total"]
    assert failures(sums_up, total=4) == ["case 1, 2"]


def test_cases_with_a_mark_are_a_test_of_their_own() -> None:
    slow = pytest.param(3, 4, marks=pytest.mark.slow, id="three")

    @each_case("a, b", [(1, 1), slow])
    def equal(a: int, b: int) -> None:
        assert a == b

    (parametrized,) = equal.pytestmark  # type: ignore[attr-defined]
    name, tests = parametrized.args
    assert [each.id for each in tests] == ["usual", "slow"]
    assert [mark.name for mark in tests[1].marks] == ["slow"]
    equal(**{name: tests[0].values[0]})
    assert failures(equal, **{name: tests[1].values[0]}) == ["case three"]


def test_cases_of_two_arguments_are_all_combined() -> None:
    @each_case("a", [1, 2])
    @each_case("b", [1, 2])
    def small(a: int, b: int) -> None:
        assert a * b < 4

    with pytest.raises(ExceptionGroup, match="1 of 2 cases") as raised:
        small()
    (of_a,) = raised.value.exceptions
    assert isinstance(of_a, ExceptionGroup)
    assert of_a.__notes__ == ["case 2"]
    assert of_a.exceptions[0].__notes__[-1] == "case 2"


def test_an_expected_error_that_does_not_come_is_a_failure() -> None:
    @each_case("error", [ValueError])
    def raises(error: type[Exception]) -> None:
        with pytest.raises(error):
            pass

    assert failures(raises) == [f"case {ValueError!r}"]


def test_failures_beyond_those_shown_are_named() -> None:
    @each_case("number", range(12))
    def none(number: int) -> None:
        raise AssertionError(number)

    with pytest.raises(ExceptionGroup, match=r"12 of 12 cases; .*: case 10, case 11"):
        none()


def test_a_skipped_case_hides_no_failure() -> None:
    @each_case("number", [1, 2, 3])
    def second_is_skipped(number: int) -> None:
        if number == 2:
            pytest.skip("not here")
        raise AssertionError

    assert failures(second_is_skipped) == ["case 1", "case 3"]
