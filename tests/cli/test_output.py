"""Errors: their prefix, their exit status, and those of standard output."""

import os
import signal
import subprocess
import sys
from typing import BinaryIO

import pytest
from click.testing import CliRunner

from ibwire.cli import main

FAILING = """
import os, signal, click, ibwire.cli as cli
@click.command()
def command():
    click.echo("begun")
    {fails}
cli._Main.get_command = lambda *_: command
cli.main(["any"])
"""
"""A command that fails for another reason than its standard output."""


def failing(fails: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-c", FAILING.format(fails=fails)],
        capture_output=True,
        text=True,
        check=False,
    )


def writing(output: BinaryIO) -> "subprocess.CompletedProcess[str]":
    """Run a command that writes much."""
    return subprocess.run(
        [sys.executable, "-m", "ibwire", "fields"],
        stdout=output,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "Missing argument 'CAPTURE...'."),
        (["--profile", "x", "f"], "Invalid value for '--profile'"),
    ],
)
def test_wrong_usage_of_a_command_shows_the_usage_and_the_error(
    arguments: list[str], message: str
) -> None:
    result = CliRunner().invoke(main, ["check", *arguments], prog_name="ibwire")

    assert result.exit_code == 2
    first, *_, last = result.stderr.splitlines()
    assert first.startswith("Usage: ibwire check [OPTIONS]")
    assert "Try 'ibwire check --help' for help." in result.stderr
    assert last.startswith(f"error: {message}")


def test_wrong_option_of_the_program_is_an_error_message() -> None:
    result = CliRunner().invoke(main, ["--nonsense", "check"], prog_name="ibwire")

    assert result.exit_code == 2
    assert result.stderr.startswith("Usage: ibwire [OPTIONS] COMMAND [ARGS]...\n")
    assert "error: No such option" in result.stderr


def test_missing_command_shows_the_help() -> None:
    result = CliRunner().invoke(main, [], prog_name="ibwire")

    assert "Captures:\n  flows " in result.output
    assert "error: " not in result.output


@pytest.mark.parametrize("number", [5, 32], ids=["EIO", "EPIPE"])
def test_other_error_is_not_reported_as_one_of_standard_output(number: int) -> None:
    done = failing(f"raise OSError({number}, os.strerror({number}))")

    assert done.returncode == 1
    assert done.stdout == "begun\n"
    assert "standard output" not in done.stderr


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
def test_full_disk_under_standard_output_is_an_error_message() -> None:
    with open("/dev/full", "wb") as full:
        done = writing(full)

    assert done.returncode == 1
    assert done.stderr == "error: standard output: No space left on device\n"


def test_interrupt_has_the_exit_status_of_its_signal() -> None:
    """Also if the tests run in the background of a shell, which ignores SIGINT."""
    done = failing(
        "signal.signal(signal.SIGINT, signal.default_int_handler); "
        "signal.raise_signal(signal.SIGINT)"
    )

    assert done.returncode == 128 + signal.SIGINT
    assert (done.stdout, done.stderr) == ("begun\n", "error: interrupted\n")


@pytest.mark.slow
def test_closed_pipe_has_the_exit_status_of_its_signal() -> None:
    """An incomplete result is not reported as success."""
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as output:
        done = writing(output)

    assert done.returncode == 128 + signal.SIGPIPE
    assert done.stderr == ""
