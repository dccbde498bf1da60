"""Small deliberate faults of the transport are each caught, by a named law or test."""

from __future__ import annotations

from pathlib import Path

import pytest

from law_examples import EXAMPLES, RECOVERING
from laws import every_request_succeeds
from laws_wire import ALL_LAWS, nothing_is_sent_twice
from mutations import MUTATIONS, Mutation, StaleMutation, applied
from schedules import Run

TESTS = Path(__file__).parents[1]

BY_LAW = [each for each in MUTATIONS if each.law is not None]
BY_TEST = [each for each in MUTATIONS if each.test]


@pytest.mark.parametrize("mutation", BY_LAW, ids=str)
def test_law_is_broken_when(mutation: Mutation) -> None:
    schedule = EXAMPLES[mutation.example]
    assert mutation.law is not None
    mutation.law(Run(schedule))

    with applied(mutation), pytest.raises(AssertionError):
        mutation.law(Run(schedule))

    mutation.law(Run(schedule))


@pytest.mark.parametrize("mutation", BY_TEST, ids=str)
def test_named_test_fails_when(mutation: Mutation) -> None:
    with applied(mutation):
        outcome = pytest.main(["-q", "-x", "-p", "no:cacheprovider", str(TESTS / mutation.test)])

    assert outcome is pytest.ExitCode.TESTS_FAILED


def test_every_law_is_broken_by_some_fault() -> None:
    assert {*ALL_LAWS, every_request_succeeds, nothing_is_sent_twice} == {
        each.law for each in BY_LAW
    }


def test_there_are_many_faults_and_each_says_how_it_is_caught() -> None:
    assert len(MUTATIONS) >= 25
    assert len({each.fault for each in MUTATIONS}) == len(MUTATIONS)
    assert all(bool(each.law) != bool(each.test) for each in MUTATIONS)
    assert all(each.example in RECOVERING for each in BY_LAW if each.law is every_request_succeeds)


@pytest.mark.parametrize("old", ["there is no such line", "self", '"""The responder: from'])
def test_a_snippet_that_does_not_fit_is_told(old: str) -> None:
    mutation = Mutation("nothing", "rc/responder.py", old, f"{old} ")
    with pytest.raises(StaleMutation), applied(mutation):
        pass
