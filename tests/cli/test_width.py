"""What people read fits a terminal of 80 columns; in a pipe each result stays one line."""

import click
import pytest
from click.testing import CliRunner

from each_case import each_case
from ibwire.cli import SECTIONS, main

CAPTURE = "captures/chaos.b.pcap"

COMMANDS = [
    ["--help"],
    ["fabric", "--help"],
    ["flows", CAPTURE],
    ["flows", CAPTURE, "captures/retry-exceeded.pcap"],
    ["check", CAPTURE],
    ["check", "--rules"],
    ["dissect", "-c", "40", CAPTURE],
    ["explain", CAPTURE],
    ["fields"],
    ["run", "--list"],
    ["tap", "--list"],
]


def shown(command: list[str], monkeypatch: pytest.MonkeyPatch, *, on_terminal: bool) -> list[str]:
    """The lines of a command on a terminal of 80 columns, or in a pipe."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("click.testing._NamedTextIOWrapper.isatty", lambda _: on_terminal)
    result = CliRunner().invoke(main, command, prog_name="ibwire")
    assert result.exit_code == 0, result.output
    return click.unstyle(result.stdout).splitlines()


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_no_line_is_wider_than_the_terminal(
    command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = shown(command, monkeypatch, on_terminal=True)

    assert lines
    assert [line for line in lines if len(line) > 80] == []


def test_a_finding_is_one_line_in_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = shown(["check", CAPTURE], monkeypatch, on_terminal=False)

    assert lines[-1].startswith("captures/chaos.b.pcap: 560 RDMA packets: ")
    assert {line.split()[0] for line in lines[:-1]} <= {"error", "warning", "note"}


def test_nothing_is_lost_where_a_line_continues(monkeypatch: pytest.MonkeyPatch) -> None:
    narrow = shown(["check", "--rules"], monkeypatch, on_terminal=True)
    wide = shown(["check", "--rules"], monkeypatch, on_terminal=False)

    assert " ".join(narrow).split() == " ".join(wide).split()


def test_the_help_lists_commands_by_what_they_are_for(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = shown(["--help"], monkeypatch, on_terminal=False)

    for title, commands in SECTIONS.items():
        first = lines.index(f"{title}:") + 1
        section = lines[first : lines.index("", first) if "" in lines[first:] else None]
        assert [line.split()[0] for line in section if line[2] != " "] == list(commands)


@each_case("group", ["fabric", "fuzz", "inject", "lab", "perf"])
def test_the_help_of_a_group_has_whole_sentences(group: str) -> None:
    result = CliRunner().invoke(main, [group, "--help"], prog_name="ibwire")

    below = result.stdout.partition("Commands:\n")[2].splitlines()
    assert below
    assert [line for line in below if line.endswith("...")] == []
