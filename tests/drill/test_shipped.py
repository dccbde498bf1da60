"""The scripts of `tests/conformance`: each passes with every profile."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from examples import sampled
from ibwire.drill import parse, report, run
from ibwire.rc.profile import PROFILES

CONFORMANCE = Path(__file__).parents[1] / "conformance"
SCRIPTS = sorted(CONFORMANCE.rglob("*.drill"))
NAMES = [f"{path.parent.name}/{path.stem}" for path in SCRIPTS]


def check(path: Path, profiles: Sequence[str]) -> None:
    for profile in profiles:
        script = parse(path.read_bytes(), path.name, profile)
        for case in script.cases:
            verdict = run(script, case, profile)
            assert verdict.passed, f"{profile}: {report(verdict)}"


@pytest.mark.parametrize("number", sampled(range(len(SCRIPTS)), 6), ids=NAMES.__getitem__)
def test_shipped_script_passes_with_two_profiles_in_turn(number: int) -> None:
    profiles = list(PROFILES)
    check(SCRIPTS[number], [profiles[(number + more) % len(profiles)] for more in (0, 2)])


@pytest.mark.slow
@pytest.mark.parametrize("path", SCRIPTS, ids=NAMES)
def test_shipped_script_passes_with_every_profile(path: Path) -> None:
    check(path, list(PROFILES))
