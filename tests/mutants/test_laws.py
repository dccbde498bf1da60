"""Small deliberate faults of the transport are each caught, by a named law or test."""

from __future__ import annotations

from pathlib import Path

import pytest

from examples import sampled
from law_examples import EXAMPLES, RECOVERING
from laws import every_request_succeeds
from laws_wire import ALL_LAWS, nothing_is_sent_twice
from mutants.engine import StaleMutant, applied
from mutants.table import MUTANTS, Mutant, Patch
from schedules import Run

TESTS = Path(__file__).parents[1]

BY_LAW = [each for each in MUTANTS.values() if each.law]
BY_TEST = [each for each in MUTANTS.values() if each.test]

LAWS = {law.__name__: law for law in (*ALL_LAWS, every_request_succeeds, nothing_is_sent_twice)}


@pytest.mark.parametrize("mutant", sampled(BY_LAW, 3), ids=str)
def test_law_is_broken_when(mutant: Mutant) -> None:
    schedule, law = EXAMPLES[mutant.example], LAWS[mutant.law]
    law(Run(schedule))

    with applied(mutant), pytest.raises(AssertionError):
        law(Run(schedule))

    law(Run(schedule))


@pytest.mark.slow
@pytest.mark.parametrize("mutant", sampled(BY_TEST, 3), ids=str)
def test_named_test_fails_when(mutant: Mutant) -> None:
    with applied(mutant):
        outcome = pytest.main(["-q", "-x", "-p", "no:cacheprovider", str(TESTS / mutant.test)])

    assert outcome is pytest.ExitCode.TESTS_FAILED


def test_every_law_is_broken_by_some_fault() -> None:
    assert set(LAWS) == {each.law for each in BY_LAW}


def test_a_mutant_is_noticed_by_a_law_or_a_test_not_both() -> None:
    assert len(BY_LAW) + len(BY_TEST) >= 25
    assert not [each.name for each in BY_LAW if each.test]
    assert all(
        each.example in RECOVERING for each in BY_LAW if each.law == "every_request_succeeds"
    )


@pytest.mark.parametrize("old", ["there is no such line", "self", '"""The responder: from'])
def test_a_snippet_that_does_not_fit_is_an_error(old: str) -> None:
    mutant = Mutant("nothing", (Patch("rc/responder.py", old, f"{old} "),))

    with pytest.raises(StaleMutant), applied(mutant):
        pass
