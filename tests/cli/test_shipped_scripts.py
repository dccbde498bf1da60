"""`ibwire drill conformance` and other words for what is not a file."""

import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from ibwire.cli import main
from ibwire.drill import shipped

ROOT = Path(__file__).parents[2]


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_conformance_is_the_scripts_of_the_repository(empty: Path) -> None:
    result = run("drill", "conformance/acks")

    scripts = list((ROOT / "tests" / "conformance" / "acks").glob("*.drill"))
    assert result.exit_code == 0, result.output
    # One of them has six cases.
    expected = f"{len(scripts)} scripts, {len(scripts) + 5} cases, profile spec: all passed"
    assert expected in result.stdout


def test_installed_scripts_come_first(empty: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shipped, "_PACKAGE", empty / "ibwire")
    script = empty / "ibwire" / "conformance" / "mine" / "one.drill"
    script.parent.mkdir(parents=True)
    acks = ROOT / "tests" / "conformance" / "acks"
    script.write_text((acks / "asked-for.drill").read_text())

    result = run("drill", "conformance")

    assert "1 script, 1 case" in result.stdout
    assert shipped.parts() == ["mine"]


def test_a_file_of_that_name_comes_before_the_shipped_scripts(empty: Path) -> None:
    os.mkdir("conformance")

    result = run("drill", "conformance")

    assert result.exit_code == 2
    assert "no *.drill file in conformance" in result.stderr


@pytest.mark.parametrize("name", ["conformance/nothing", "conformance/../acks", "conformanc"])
def test_other_names_are_files_that_do_not_exist(empty: Path, name: str) -> None:
    result = run("drill", name)

    assert result.exit_code == 2
    assert f"no such script or directory: {name}" in result.stderr


@pytest.mark.parametrize("sql", ["SELECT 1 AS one", "SELECT count(*) FROM packets"])
def test_query_fails_before_it_prints_a_result(empty: Path, sql: str) -> None:
    result = run("query", str(ROOT / "captures" / "rcx-all-ops.pcap"), "nofile.pcap", sql)

    assert result.exit_code == 3
    assert result.stdout == ""
    assert result.stderr == "error: nofile.pcap: cannot be opened: no such file or directory\n"


def test_lab_down_without_a_lab_is_no_error() -> None:
    result = run("lab", "down", "--name", "test-none")

    assert result.exit_code == 0
    assert result.stderr == "note: no lab is up with the name 'test-none': nothing to remove\n"


def test_lab_shell_without_a_lab_says_how_to_create_one() -> None:
    result = run("lab", "shell", "--name", "test-none")

    assert result.exit_code == 1
    assert "`ibwire lab up --name test-none` creates one" in result.stderr
