"""Live: Linux rxe treats the conformance scripts as the documents say."""

import difflib

import pytest

from interop.rxe import boot, network
from interop.rxe.conformance import PAGE, Case, Outcome, differing, measure, page, scripts
from interop.rxe.deviations import REASONS, reason_of


@pytest.fixture(scope="module")
def found() -> dict[Case, Outcome]:
    """What came of all scripts."""
    if reason := boot.missing() or network.missing():
        pytest.skip(reason)
    outcomes = measure(scripts())
    for _ in range(REPETITIONS):
        if different := differing(outcomes):
            outcomes |= measure(different)
    return outcomes


REPETITIONS = 2
"""Of scripts that differ from the page: a busy machine may be late, but not always in the same."""


def test_the_page_of_the_documents_is_true(found: dict[Case, Outcome]) -> None:
    """`PYTHONPATH=tests python -m interop.rxe.conformance` writes it again."""
    written = PAGE.read_text(encoding="utf-8").splitlines()
    measured = page(found).splitlines()
    difference = difflib.unified_diff(written, measured, "documents", "guests", n=0, lineterm="")

    assert "\n".join(difference) == ""


def test_every_failure_has_a_known_reason(found: dict[Case, Outcome]) -> None:
    unexplained = {
        case: outcome.evidence
        for case, outcome in found.items()
        if outcome.result == "fail" and reason_of(*case, outcome.evidence) is None
    }

    assert unexplained == {}


def test_every_reason_is_needed(found: dict[Case, Outcome]) -> None:
    given = {
        reason_of(*case, outcome.evidence)
        for case, outcome in found.items()
        if outcome.result == "fail"
    }

    assert given == {text for *_, text in REASONS}
