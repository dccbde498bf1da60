"""The plug-in collects scripts: each case is a test, and a failure is the report."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def pytest_in(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    (directory / "pytest.ini").write_text(f"[pytest]\npythonpath = {ROOT} {ROOT / 'layers'}\n")
    (directory / "conftest.py").write_text('pytest_plugins = ["ibwire.drill.pytest_plugin"]\n')
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments],
        cwd=directory,
        env={"PYTHONPATH": f"{ROOT}:{ROOT / 'layers'}", "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )


def test_each_case_is_a_test_and_a_failure_is_the_report(tmp_path: Path) -> None:
    (tmp_path / "two.drill").write_text(
        "cases what, number {\n right, psn\n wrong, psn+1\n}\n"
        "+1us < WRITE_ONLY psn ack len=8\n> ACK $number\n"
    )

    result = pytest_in(tmp_path, "-v")

    assert result.returncode == 1
    assert "two.drill::right PASSED" in result.stdout
    assert "two.drill::wrong FAILED" in result.stdout
    assert "  expected  ACKNOWLEDGE psn=psn+1 (101)" in result.stdout
    assert "Traceback" not in result.stdout


def test_a_script_that_cannot_be_read_is_an_error_with_its_place(tmp_path: Path) -> None:
    (tmp_path / "bad.drill").write_text("state NOWHERE\n")

    result = pytest_in(tmp_path)

    assert result.returncode == 2
    assert "bad.drill:1:7: NOWHERE is no state" in result.stdout


def test_the_profile_is_an_option_and_the_fixture_runs_text(tmp_path: Path) -> None:
    (tmp_path / "silent.drill").write_text("+1us < OPCODE_0x1F psn\n+1us silence\n")
    (tmp_path / "test_mine.py").write_text(
        "def test_mine(ibwire_drill):\n"
        "    (verdict,) = ibwire_drill('state RTS')\n"
        "    assert verdict.passed\n"
    )

    assert "2 passed" in pytest_in(tmp_path, "--drill-profile", "rxe").stdout
    assert "1 failed, 1 passed" in pytest_in(tmp_path).stdout
