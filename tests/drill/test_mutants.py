"""Every shipped script passes on a right device, and fails on one with a fault that it is about."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from drill.mutants import KNOWN, MUTANTS, UNSEEN
from ibwire.drill import Script, parse, run
from mutations import MUTATIONS, Mutation, applied

SCRIPTS = Path(__file__).parents[1] / "conformance"

BY_NAME = {mutation.fault: mutation for mutation in MUTATIONS}

PAIRS = [
    *MUTANTS,
    *((name, BY_NAME[fault]) for fault, names in KNOWN.items() for name in names),
]


@cache
def script(name: str) -> Script:
    path = SCRIPTS / f"{name}.drill"
    return parse(path.read_bytes(), name)


@pytest.mark.parametrize(("name", "mutation"), PAIRS, ids=str)
def test_script_fails_when(name: str, mutation: Mutation) -> None:
    read = script(name)
    with applied(mutation):
        passed = all(run(read, case).passed for case in read.cases)

    assert not passed
    assert all(run(read, case).passed for case in read.cases)


def test_every_script_is_seen_to_fail() -> None:
    names = {
        path.relative_to(SCRIPTS).with_suffix("").as_posix() for path in SCRIPTS.rglob("*.drill")
    }

    assert names == {name for name, _ in PAIRS}


def test_every_known_fault_is_shown_by_a_script_or_has_a_reason() -> None:
    assert {*KNOWN, *UNSEEN} == set(BY_NAME)
    assert not {*KNOWN} & {*UNSEEN}


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
