"""Completion, manual pages, and names that are misspelled."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner, Result

from each_case import each_case
from ibwire.cli import main
from ibwire.cli.man import _pages
from ibwire.rc.profile import PROFILES
from ibwire.scenario import shipped

ROOT = Path(__file__).parents[2]


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(each) for each in arguments])


def offered(*words: str) -> list[str]:
    """What a shell is offered for the last word."""
    completion = ShellComplete(main, {}, "ibwire", "_IBWIRE_COMPLETE")
    return [item.value for item in completion.get_completions(list(words[:-1]), words[-1])]


def test_names_of_commands_scenarios_fields_rules_scripts_and_profiles_are_offered() -> None:
    assert offered("diss") == ["dissect"]
    assert offered("run", "r") == [name for name in shipped() if name.startswith("r")]
    assert offered("dissect", "--fields", "ip.src,bth.ps") == ["ip.src,bth.psn"]
    assert "aeth.msn" in offered("fields", "aeth")
    assert {"naks", "naks.once"} <= set(offered("check", "--only", "na"))
    assert "conformance/acks" in offered("drill", "conf")
    assert set(PROFILES) <= set(offered("check", "--profile", ""))


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_installed_where_the_shell_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shell: str
) -> None:
    for name in ("XDG_DATA_HOME", "XDG_CONFIG_HOME", "ZDOTDIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SHELL", f"/bin/{shell}")

    result = run("completion", "--install")

    assert result.exit_code == 0, result.output
    (path,) = map(Path, result.stdout.splitlines())
    assert path.is_relative_to(tmp_path)
    assert path.read_text() == run("completion", shell).stdout
    assert "_IBWIRE_COMPLETE" in path.read_text()


@pytest.mark.parametrize(
    "command", ["completion bash --install", "man --install", "wireshark --install"]
)
def test_nothing_is_installed_in_a_home_that_does_not_exist(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    for name in (*os.environ,):
        if name.startswith(("XDG_", "WIRESHARK_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "nobody"))

    result = run(*command.split())

    assert result.exit_code == 1
    assert f"error: the home directory {tmp_path}/nobody does not exist" in result.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_bash_completes_with_it(tmp_path: Path) -> None:
    if shutil.which("bash") is None:
        pytest.skip("bash not installed")
    (tmp_path / "c.bash").write_text(run("completion", "bash").stdout)
    (tmp_path / "ibwire").write_text(f'#!/bin/sh\nexec {sys.executable} -m ibwire "$@"\n')
    (tmp_path / "ibwire").chmod(0o755)
    script = (
        f"source {tmp_path}/c.bash; COMP_WORDS=(ibwire run one); COMP_CWORD=2; "
        f"_ibwire_completion {tmp_path}/ibwire; echo ${{COMPREPLY[@]}}"
    )
    done = subprocess.run(
        ["bash", "-c", script],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'layers'}"},
    )

    assert done.stdout.split() == ["one-lost-packet", "one-percent-loss"]


def test_without_a_known_shell_one_must_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHELL", "/bin/false")

    result = run("completion")

    assert result.exit_code == 2
    assert "One of bash, zsh, fish" in result.stderr


@pytest.mark.slow
def test_every_command_has_a_page_with_its_options() -> None:
    pages = dict(_pages(main, ("ibwire",)))

    assert {"ibwire", "ibwire-explain", "ibwire-perf-send", "ibwire-lab-up"} <= set(pages)
    for name, text in pages.items():
        assert text.startswith(f'.TH "{name.upper()}" 1 ')
        assert ".SH SYNOPSIS" in text
    assert "\\fB\\-Y, \\-\\-where EXPR\\fR" in pages["ibwire-dissect"]


@pytest.mark.skipif(shutil.which("man") is None, reason="man not installed")
@pytest.mark.slow
def test_man_reads_every_page_without_a_warning(tmp_path: Path) -> None:
    result = run("man", "-o", tmp_path)

    assert result.exit_code == 0, result.output
    for path in sorted(tmp_path.glob("*.1")):
        done = subprocess.run(
            ["man", "--warnings", "-E", "UTF-8", "-l", path],
            capture_output=True,
            text=True,
            check=True,
            env=os.environ | {"LC_ALL": "C.UTF-8", "MANPAGER": "cat"},
        )
        assert done.stderr == "", path.name
        assert "DESCRIPTION" in done.stdout


def test_man_prints_the_page_of_a_subcommand() -> None:
    assert run("man", "perf", "send").stdout.startswith('.TH "IBWIRE-PERF-SEND" 1')
    assert run("man", "nothing").exit_code == 2


@each_case(
    ("arguments", "hint"),
    [
        (("disect",), "'dissect'"),
        (("perf", "sned"), "Did you mean 'send'?"),
        (("dissect", "--jsn", "x"), "'--json'"),
        (("dissect", "--fields", "bth.pns", "x"), "did you mean bth.psn?"),
        (("check", "--ignore", "nask", "x"), "did you mean naks?"),
        (("run", "one-lost-paket"), "did you mean one-lost-packet?"),
    ],
)
def test_misspelled_name_is_an_error_with_the_name_that_was_meant(
    arguments: tuple[str, ...], hint: str
) -> None:
    result = run(*arguments)

    assert result.exit_code == 2
    (line,) = (line for line in result.stderr.splitlines() if line.startswith("error: "))
    assert hint in line


def test_very_long_name_of_a_command_is_not_compared() -> None:
    result = run("x" * 1_000_000)

    assert result.exit_code == 2
    assert "Did you mean" not in result.stderr


def test_every_command_is_in_the_help() -> None:
    text = run("--help").stdout

    for name in main.list_commands(click.Context(main)):
        assert f"\n  {name} " in text
