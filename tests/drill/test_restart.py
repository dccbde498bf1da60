"""The command that brings a device back: carried out without a shell, and never waited for long."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

from ibwire.base.errors import PeerError, ScriptError
from ibwire.drill.targets.restart import WORDS, Restart


def python(program: str, *arguments: str) -> str:
    return shlex.join([sys.executable, "-c", program, *arguments])


def test_arguments_are_split_as_a_shell_does_and_no_shell_sees_them(tmp_path: Path) -> None:
    said = tmp_path / "said"
    program = "import sys; open(sys.argv[1], 'w').write('|'.join(sys.argv[2:]))"

    Restart(python(program, str(said)) + " 'two words' $HOME ;").run()

    assert said.read_text() == "two words|$HOME|;"


def test_what_it_leaves_in_the_background_is_not_waited_for() -> None:
    """Though that keeps the command's output open."""
    program = "import os, signal; os.fork() or (signal.alarm(20), signal.pause())"

    Restart(python(program), seconds=10).run()


@pytest.mark.parametrize("command", ["", "  ", "'no end", '"'])
def test_text_that_is_not_a_command_is_refused(command: str) -> None:
    with pytest.raises(ScriptError):
        Restart(command)


def test_failure_is_reported_with_the_last_output() -> None:
    program = f"import sys; print('x' * {2 * WORDS}, flush=True); sys.exit('no\\x1b[31m power')"

    with pytest.raises(PeerError) as failed:
        Restart(python(program)).run()

    text = str(failed.value)
    assert ": exit status 1: xxx" in text
    assert text.endswith("x no [31m power")
    assert text.count("x") < 2 * WORDS


def test_missing_command_is_reported() -> None:
    with pytest.raises(PeerError, match="restart by /nowhere/at-all: No such file or directory"):
        Restart("/nowhere/at-all").run()


def test_nul_in_a_command_is_reported() -> None:
    with pytest.raises(PeerError, match="null byte"):
        Restart("true \0").run()


def test_a_command_that_does_not_end_is_ended() -> None:
    with pytest.raises(PeerError, match=r"not ended after 0\.2 s"):
        Restart(python("import signal; signal.pause()"), seconds=0.2).run()
