"""A command of the user that restarts a dead device: it boots a host, reloads a driver."""

from __future__ import annotations

import shlex
import subprocess
import tempfile
from typing import IO

from ibwire.base.errors import PeerError, ScriptError

SECONDS = 120.0
"""That the command may take."""

WORDS = 300
"""Bytes of the end of its output that are reported when it fails."""


class Restart:
    """A command and its arguments, without a shell.

    Raises `ScriptError` for a text that is not a command.
    """

    def __init__(self, command: str, *, seconds: float = SECONDS) -> None:
        self._command = command
        self._seconds = seconds
        try:
            self._arguments = shlex.split(command)
        except ValueError as error:
            raise ScriptError("--restart", None, None, f"{command!r}: {error}") from None
        if not self._arguments:
            raise ScriptError("--restart", None, None, "no command")

    def __str__(self) -> str:
        return f"restart by {self._command}"

    def run(self) -> None:
        """Run it, and wait for its end; raises `PeerError` if it fails or takes too long.

        Its processes in the background continue.
        """
        # A file, for a pipe is only at its end when all have ended that the command has started.
        with tempfile.TemporaryFile() as said:
            try:
                ended = subprocess.run(
                    self._arguments,
                    stdin=subprocess.DEVNULL,
                    stdout=said,
                    stderr=subprocess.STDOUT,
                    timeout=self._seconds,
                )
            except subprocess.TimeoutExpired:
                raise PeerError(f"{self}: not ended after {self._seconds:g} s") from None
            except OSError as error:
                raise PeerError(f"{self}: {error.strerror}") from None
            except ValueError as error:  # a NUL in it
                raise PeerError(f"{self}: {error}") from None
            if ended.returncode:
                raise PeerError(f"{self}: exit status {ended.returncode}{_last_words(said)}")


def _last_words(said: IO[bytes]) -> str:
    said.seek(max(said.tell() - WORDS, 0))
    text = said.read(WORDS).decode(errors="replace")
    words = " ".join("".join(each if each.isprintable() else " " for each in text).split())
    return f": {words}" * bool(words)
