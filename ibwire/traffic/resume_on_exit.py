"""Frames that leave when the end comes early, however it comes: nobody stays paused for ever.

Who pauses a peer owes it the frame that lets it go on. `Farewell` sends such frames when it
is closed, unless they have left already. For the case that this process cannot do it, because
it is killed, another one waits at the end of a pipe: it holds the socket and the frames, and
when the pipe closes without the word that all is done it sends them.

Signals that a terminal sends to all processes in it do not reach the other one; a machine
that loses its power keeps both from their duty, and a pause then ends by itself after 65535
quanta (IEEE 802.1Qbb).
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence

from ibwire.base.closing import Closing
from ibwire.base.errors import LinkError
from ibwire.traffic.sender import Sender
from ibwire.traffic.watchdog import DONE, READY


class Farewell(Closing):
    """Sends frames at its end, on an interface; when it is made it already would.

    It sends none once it has been told, by `is_done`, that somebody else has.

    Raises `LinkError` as `Sender` does, also at the end.
    """

    def __init__(self, name: str, frames: Sequence[bytes], *, certain: bool = False) -> None:
        self.name = name
        self.frames = list(frames)
        self.is_done = False
        """Whether the frames have left."""
        self._sender = Sender(name, certain=certain)
        self._watchdog = self._start()

    def close(self) -> None:
        """Send the frames if need be; a second time it does nothing."""
        if self._watchdog is None:
            return
        watchdog, self._watchdog = self._watchdog, None
        said = b""
        try:
            if not self.is_done:
                self._sender.send_frames(self.frames)
                self.is_done = True
            said = DONE
        finally:
            # Without the word it tries as well: the link may come back before it does.
            watchdog.communicate(said)
            self._sender.close()

    def _start(self) -> subprocess.Popen[bytes] | None:
        descriptor = self._sender.fileno()
        places = os.pathsep.join(os.path.abspath(each) for each in sys.path)
        frames = [each.hex() for each in self.frames]
        try:
            watchdog = subprocess.Popen(
                [sys.executable, "-m", "ibwire.traffic.watchdog", str(descriptor), *frames],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={**os.environ, "PYTHONPATH": places},
                cwd="/",
                pass_fds=[descriptor],
                start_new_session=True,
            )
        except OSError as error:
            self._sender.close()
            raise LinkError(self.name, f"no watchdog process: {error.strerror}") from None
        assert watchdog.stdout is not None
        if watchdog.stdout.readline() != READY:
            watchdog.communicate()
            self._sender.close()
            raise LinkError(self.name, "the watchdog process has died")
        return watchdog
