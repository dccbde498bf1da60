"""docs/pytest.md: its examples are tests that pass, and it names everything there is."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from drill.pytest_run import pytest_in
from each_case import each_case
from ibwire import strategies
from ibwire.testing import Pair, Peer

DOCUMENT = (Path(__file__).parents[2] / "docs" / "pytest.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_examples_pass(tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", DOCUMENT, re.DOTALL)
    for number, block in enumerate(blocks):
        (tmp_path / f"test_{number}.py").write_text(block)

    result = pytest_in(tmp_path, "--strict-markers")

    assert result.returncode == 0, result.stdout
    assert f"{DOCUMENT.count('def test_')} passed" in result.stdout


def options_of(made: type) -> list[str]:
    parameters = inspect.signature(made).parameters.values()
    return [each.name for each in parameters if each.kind is each.KEYWORD_ONLY]


@each_case("name", [*options_of(Pair), *options_of(Peer), *strategies.__all__])
def test_option_or_strategy_is_named(name: str) -> None:
    if name[0].isupper():
        pytest.skip("a type or a constant")
    assert re.search(rf"`{name}\b", DOCUMENT)


@pytest.mark.parametrize("name", ["packets", "work_requests", "recv_requests", "fault_plans"])
def test_strategy_is_named_with_its_options(name: str) -> None:
    (line,) = re.findall(rf"^\| `{name}\(([^\"`]*)\)`", DOCUMENT, re.MULTILINE)
    parameters = inspect.signature(getattr(strategies, name)).parameters.values()

    told = [each.name for each in parameters if each.kind is each.KEYWORD_ONLY]
    assert re.findall(r"(\w+)=", line) == told
