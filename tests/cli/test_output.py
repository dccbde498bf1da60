"""Errors of standard output are told from all others."""

import os
import subprocess
import sys

import pytest

ELSEWHERE = """
import errno, os, click, ibwire.cli as cli
def fail(): raise OSError({number}, os.strerror({number}))
@click.command()
def command():
    click.echo("begun")
    fail()
cli._Main.get_command = lambda *_: command
cli.main(["any"])
"""
"""A command in which something else than standard output has failed."""


@pytest.mark.parametrize("number", [5, 32], ids=["EIO", "EPIPE"])
def test_error_of_something_else_is_not_called_one_of_standard_output(number: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", ELSEWHERE.format(number=number)],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 1
    assert done.stdout == "begun\n"
    assert "standard output" not in done.stderr


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
def test_full_disk_under_standard_output_is_a_sentence() -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "ibwire", "fields"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )

    assert done.returncode == 1
    assert done.stderr == "Error: standard output: No space left on device\n"
