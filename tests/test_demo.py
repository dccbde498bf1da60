"""`make demo` fits a screen, and what it proposes works."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from ibwire.cli import main

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What `make demo` prints where its environment exists."""
    if shutil.which("make") is None:
        pytest.skip("make not installed")
    bin_directory = tmp_path_factory.mktemp("bin")
    command = bin_directory / "ibwire"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m ibwire "$@"\n')
    command.chmod(0o755)
    stamp = tmp_path_factory.mktemp("environment")
    for name in ("python.stamp", "run.stamp"):
        (stamp / name).touch()
    done = subprocess.run(
        ["make", "demo", f"VENV={stamp}", f"BIN={bin_directory}"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'layers'}"},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.replace(str(bin_directory), ".venv/bin")


def test_demo_fits_a_screen_and_finds_the_loss(demo: str) -> None:
    lines = demo.splitlines()

    assert 24 <= len(lines) <= 40
    assert max(map(len, lines)) <= 120
    assert any("PSN 103 did not arrive" in line for line in lines)


@pytest.mark.slow
def test_what_the_demo_proposes_works(
    demo: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proposed = re.findall(r"^  \S+/ibwire (\S.*?)   ", demo, re.MULTILINE)
    for shared in ("captures", "tests"):
        (tmp_path / shared).symlink_to(ROOT / shared)
    monkeypatch.chdir(tmp_path)

    results = {line: CliRunner().invoke(main, line.split()) for line in proposed}

    assert len(results) == 5
    assert {line: result.exit_code for line, result in results.items() if result.exit_code} == {}


def test_pages_that_the_demo_names_exist(demo: str) -> None:
    pages = re.findall(r"docs/[\w/-]+\.md", demo)

    assert pages
    assert all((ROOT / page).is_file() for page in pages)
