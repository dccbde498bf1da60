"""Every shipped script passes on a right device, and fails on one with a fault that it is about."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from examples import sampled
from ibwire.drill import Script, parse, run
from mutants.engine import applied
from mutants.table import MUTANTS, Mutant

SCRIPTS = Path(__file__).parents[1] / "conformance"

PAIRS = [(name, mutant) for mutant in MUTANTS.values() for name in mutant.scripts]


@cache
def script(name: str) -> Script:
    path = SCRIPTS / f"{name}.drill"
    return parse(path.read_bytes(), name)


@pytest.mark.parametrize(("name", "mutant"), sampled(PAIRS, 6, are_tuples=True), ids=str)
def test_script_fails_when(name: str, mutant: Mutant) -> None:
    read = script(name)
    with applied(mutant):
        passed = all(run(read, case).passed for case in read.cases)

    assert not passed
    assert all(run(read, case).passed for case in read.cases)


def test_every_script_is_seen_to_fail() -> None:
    names = {
        path.relative_to(SCRIPTS).with_suffix("").as_posix() for path in SCRIPTS.rglob("*.drill")
    }

    assert names == {name for name, _ in PAIRS}


def test_every_mutant_of_a_law_or_test_is_shown_by_a_script_or_has_a_reason() -> None:
    mutants = [each for each in MUTANTS.values() if each.law or each.test]

    assert [each.name for each in mutants if bool(each.scripts) == bool(each.unseen)] == []


def test_every_row_of_the_responders_checks_has_a_script() -> None:
    """The entries of docs/reference/transport.md, as the scripts cite them."""
    page = (SCRIPTS.parents[1] / "docs" / "reference" / "transport.md").read_text()
    part = page.partition("## Responder: checks of a request")[2].partition("\n## ")[0]
    checks = part[part.index("check-headers") :].partition('id="write-checked-once"')[0]
    cited: set[str] = set()
    for path in SCRIPTS.rglob("*.drill"):
        cited |= set(re.findall(r"reference/transport#([\w-]+)", path.read_text()))

    assert cited >= {"check-headers", *re.findall(r'<a id="([\w-]+)">', checks)}


def test_there_are_many_scripts_and_each_states_its_rule_and_section() -> None:
    scripts = [
        script(path.relative_to(SCRIPTS).with_suffix("").as_posix())
        for path in SCRIPTS.rglob("*.drill")
    ]

    assert len(scripts) >= 80
    assert all(each.rule and each.section for each in scripts)
