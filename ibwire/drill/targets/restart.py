"""A command of the user that restarts a dead device: it boots a host, reloads a driver."""

from __future__ import annotations

import shlex
import subprocess
import tempfile
from collections.abc import Callable
from typing import IO

from ibwire.base.errors import LinkError, NoResponse, PeerError, ScriptError
from ibwire.programs.endpoint import Endpoint

SECONDS = 120.0
"""That the command may take."""

RETURN_SECONDS = 60.0
"""Seconds until a restarted device must respond."""

PAUSE = 0.2
"""Seconds between two attempts to reach it."""

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


def bring_back(restart: Restart, endpoint: Endpoint, reach: Callable[[], object]) -> None:
    """Restart a device and wait until it can be reached.

    reach: raises `LinkError` or `PeerError` if it cannot. Raises `PeerError` when the command
    fails, or the device is not back in time.
    """
    restart.run()
    end = endpoint.now_ns + int(RETURN_SECONDS * 1e9)
    while True:
        try:
            reach()
            return
        except (LinkError, PeerError) as error:
            if endpoint.now_ns >= end:
                late = f"the device is not back after {RETURN_SECONDS:g} s: {error}"
                raise PeerError(f"{restart}: {late}") from None
            endpoint.run(seconds=PAUSE)


def reach_at_start(restart: Restart | None, endpoint: Endpoint, gid: int) -> int:
    """Index of the own GID towards a device, which is restarted if its host does not respond.

    Raises `LinkError` and `PeerError` as `Endpoint.gid_towards` and `bring_back` do.
    """
    try:
        return endpoint.gid_towards(gid)
    except NoResponse as error:
        if restart is None:
            raise
        endpoint.tell(f"the device is dead: {error.reason}; {restart}")
        bring_back(restart, endpoint, lambda: endpoint.gid_towards(gid))
        return endpoint.gid_towards(gid)


def _last_words(said: IO[bytes]) -> str:
    said.seek(max(said.tell() - WORDS, 0))
    text = said.read(WORDS).decode(errors="replace")
    words = " ".join("".join(each if each.isprintable() else " " for each in text).split())
    return f": {words}" * bool(words)
