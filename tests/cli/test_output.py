"""Errors of standard output are told from all others."""

import os
import signal
import subprocess
import sys
from typing import BinaryIO

import pytest

FAILING = """
import os, signal, click, ibwire.cli as cli
@click.command()
def command():
    click.echo("begun")
    {fails}
cli._Main.get_command = lambda *_: command
cli.main(["any"])
"""
"""A command in which something else than standard output fails."""


def failing(fails: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-c", FAILING.format(fails=fails)],
        capture_output=True,
        text=True,
        check=False,
    )


def telling(output: BinaryIO) -> "subprocess.CompletedProcess[str]":
    """A command that writes much."""
    return subprocess.run(
        [sys.executable, "-m", "ibwire", "fields"],
        stdout=output,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("number", [5, 32], ids=["EIO", "EPIPE"])
def test_error_of_something_else_is_not_called_one_of_standard_output(number: int) -> None:
    done = failing(f"raise OSError({number}, os.strerror({number}))")

    assert done.returncode == 1
    assert done.stdout == "begun\n"
    assert "standard output" not in done.stderr


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
def test_full_disk_under_standard_output_is_a_sentence() -> None:
    with open("/dev/full", "wb") as full:
        done = telling(full)

    assert done.returncode == 1
    assert done.stderr == "Error: standard output: No space left on device\n"


def test_interrupt_wherever_it_comes_has_the_status_of_its_signal() -> None:
    """Also where a shell has the suite in the background, and it was ignored so far."""
    done = failing(
        "signal.signal(signal.SIGINT, signal.default_int_handler); "
        "signal.raise_signal(signal.SIGINT)"
    )

    assert done.returncode == 128 + signal.SIGINT
    assert (done.stdout, done.stderr) == ("begun\n", "ibwire: interrupted\n")


def test_pipe_that_nobody_reads_has_the_status_of_its_signal() -> None:
    """What was not told is not told to be nothing."""
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as output:
        done = telling(output)

    assert done.returncode == 128 + signal.SIGPIPE
    assert done.stderr == ""
