"""A pytest plug-in that collects `*.drill` files: each case of each script is a test.

    pytest_plugins = ["ibwire.drill.pytest_plugin"]        # in a conftest.py

A script is run on the emulator with the profile of `--drill-profile`. The fixture
`ibwire_drill` runs a script that a test has as text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ibwire.drill import Case, Script, Verdict, load, parse, report, run
from ibwire.errors import ScriptError
from ibwire.rc.profile import PROFILES


class DrillFailed(Exception):
    """A device did not do what a script expects of it; the text is the report."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """The profile of the device."""
    group = parser.getgroup("ibwire", "drill scripts")
    group.addoption("--drill-profile", choices=list(PROFILES), default="spec")


def pytest_collect_file(parent: pytest.Collector, file_path: Path) -> pytest.Collector | None:
    """Scripts are test files."""
    if file_path.suffix != ".drill":
        return None
    collector: pytest.Collector = DrillFile.from_parent(parent, path=file_path)
    return collector


class DrillFile(pytest.File):
    """A script."""

    def collect(self) -> Iterator[pytest.Item]:
        """Its cases."""
        script = load(self.path, _profile(self.config))
        for case in script.cases:
            name = case.name or self.path.stem
            yield DrillItem.from_parent(self, name=name, script=script, case=case)

    def repr_failure(self, excinfo: Any, style: Any = None) -> Any:
        """What is wrong with the script."""
        if isinstance(excinfo.value, ScriptError):
            return str(excinfo.value)
        return super().repr_failure(excinfo)


class DrillItem(pytest.Item):
    """A case of a script."""

    def __init__(self, *, script: Script, case: Case, **options: Any) -> None:
        super().__init__(**options)
        self._script = script
        self._case = case

    def runtest(self) -> None:
        """Carry the case out on the emulator."""
        verdict = run(self._script, self._case, _profile(self.config))
        if not verdict.passed:
            raise DrillFailed(report(verdict))

    def repr_failure(self, excinfo: Any, style: Any = None) -> Any:
        """The report in the place of a traceback."""
        if isinstance(excinfo.value, DrillFailed | ScriptError):
            return str(excinfo.value)
        return super().repr_failure(excinfo)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """Where the case is, and its name."""
        return self.path, None, self.name


@pytest.fixture
def ibwire_drill() -> Callable[..., list[Verdict]]:
    """Runs the text of a script: `ibwire_drill(text, profile="spec")`, a verdict for each case."""

    def drill(text: str, profile: str = "spec") -> list[Verdict]:
        script = parse(text.encode(), "script", profile)
        return [run(script, case, profile) for case in script.cases]

    return drill


def _profile(config: pytest.Config) -> str:
    """`spec` where only the collector is used and the option is not there."""
    profile: str = config.getoption("--drill-profile", default="spec")
    return profile
