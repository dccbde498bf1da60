"""The scripts of `tests/conformance`: each passes with every profile."""

from __future__ import annotations

from pathlib import Path

import pytest

from ibwire.drill import parse, report, run
from ibwire.rc.profile import PROFILES

CONFORMANCE = Path(__file__).parents[1] / "conformance"
SCRIPTS = sorted(CONFORMANCE.rglob("*.drill"))


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_shipped_script_passes_with_every_profile(path: Path) -> None:
    for profile in PROFILES:
        script = parse(path.read_bytes(), path.name, profile)

        for case in script.cases:
            verdict = run(script, case, profile)
            assert verdict.passed, f"{profile}: {report(verdict)}"
