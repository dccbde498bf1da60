"""Findings: severity by profile, their order, and how much is kept."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from ibwire.rules.findings import (
    EXAMPLES,
    PLACES,
    UNVERIFIED,
    Finding,
    FindingCollector,
    Location,
    Rule,
    Severity,
    worst_first,
)

LAW = Rule("family.check", "Nobody does it.", Severity.ERROR, "IBA 1", "somewhere")
HABIT = replace(LAW, id="family.habit", habits=("rxe", "e810"))


def test_a_law_without_habits_is_the_same_for_everybody() -> None:
    assert {LAW.severity_for(profile) for profile in ("spec", "rxe", "hns")} == {Severity.ERROR}


def test_a_habit_is_a_note_unless_one_expects_it_or_expects_another_implementation() -> None:
    assert HABIT.severity_for("spec") is Severity.NOTE
    assert HABIT.severity_for("rxe") is None
    assert HABIT.severity_for("hns") is Severity.ERROR


def test_counts_are_exact_and_examples_are_the_first_packets() -> None:
    ledger = FindingCollector([LAW])
    for number in range(5000, 0, -1):
        ledger.add(LAW, ("flow", 0, 0), number, f"packet {number}")

    ((rule, key, breach),) = ledger.occurrences()
    assert (rule, key) == (LAW, ("flow", 0, 0))
    assert breach.count == 5000
    assert breach.numbers == list(range(1, EXAMPLES + 1))
    assert breach.text == "packet 1"


def test_a_rule_broken_everywhere_takes_bounded_memory() -> None:
    ledger = FindingCollector([LAW])
    for flow in range(PLACES + 500):
        ledger.add(LAW, ("flow", flow, 0), flow, "")

    found = {key: breach.count for _, key, breach in ledger.occurrences()}
    assert len(found) == PLACES + 1
    assert found[None] == 500


def test_a_rule_broken_only_in_packets_that_were_cut_takes_four_of_them() -> None:
    ledger = FindingCollector([LAW])
    for number in range(UNVERIFIED):
        assert list(ledger.occurrences()) == []
        ledger.add(LAW, ("flow", 0, 0), number, "", verified=False)

    assert len(list(ledger.occurrences())) == 1


def test_a_rule_that_was_not_asked_for_is_not_found() -> None:
    ledger = FindingCollector([LAW])
    ledger.add(HABIT, ("flow", 0, 0), 1, "")

    assert list(ledger.occurrences()) == []
    assert not FindingCollector([HABIT], "rxe").wants(HABIT)


@given(st.lists(st.tuples(st.sampled_from(Severity), st.integers(1, 9))))
def test_the_worst_come_first_and_then_the_most_frequent(drawn: list[tuple[Severity, int]]) -> None:
    place = Location("a", "b", 1)
    findings = [Finding(LAW, severity, place, "", count) for severity, count in drawn]

    order = [(finding.severity, finding.count) for finding in worst_first(findings)]
    assert order == sorted(drawn, reverse=True)
