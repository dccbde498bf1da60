"""Frames that are sent when a run ends early, so that no peer stays paused.

A sender of pause frames must end with a resume frame. `ResumeOnExit` sends it when it
is closed, unless it was sent already. In case this process is killed, a watchdog process
waits at the end of a pipe with the socket and the frames; when the pipe closes without the
message that the frames were sent, it sends them.

Signals of a terminal do not reach the watchdog. When the machine loses power, no process
sends anything, and a pause ends by itself after at most 65535 quanta (IEEE 802.1Qbb).
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

from ibwire.base.closing import Closing
from ibwire.base.errors import LinkError
from ibwire.traffic import watchdog
from ibwire.traffic.sender import Sender
from ibwire.traffic.watchdog import DONE, READY


class ResumeOnExit(Closing):
    """Sends frames on an interface when it is closed, and from its construction on when this
    process dies.

    It sends none when `is_done` was set, because the frames were sent already.

    Raises `LinkError` as `Sender` does, also at the end.
    """

    def __init__(
        self, name: str, frames: Sequence[bytes], *, allow_default_route: bool = False
    ) -> None:
        self.name = name
        self.frames = list(frames)
        self.is_done = False
        """Whether the frames were sent."""
        self._sender = Sender(name, allow_default_route=allow_default_route)
        self._watchdog = self._start()

    def close(self) -> None:
        """Send the frames if necessary; a second call does nothing."""
        if self._watchdog is None:
            return
        process, self._watchdog = self._watchdog, None
        message = b""
        try:
            if not self.is_done:
                self._sender.send_frames(self.frames)
                self.is_done = True
            message = DONE
        finally:
            # Without the message the watchdog also tries: the link may come back meanwhile.
            process.communicate(message)
            self._sender.close()

    def _start(self) -> subprocess.Popen[bytes] | None:
        descriptor = self._sender.fileno()
        frames = [each.hex() for each in self.frames]
        try:
            process = subprocess.Popen(
                # As a file, not as a module: it starts without the imports of this package.
                [sys.executable, "-I", watchdog.__file__, str(descriptor), *frames],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                cwd="/",
                pass_fds=[descriptor],
                start_new_session=True,
            )
        except OSError as error:
            self._sender.close()
            raise LinkError(self.name, f"no watchdog process: {error.strerror}") from None
        assert process.stdout is not None
        if process.stdout.readline() != READY:
            process.communicate()
            self._sender.close()
            raise LinkError(self.name, "the watchdog process has died")
        return process
