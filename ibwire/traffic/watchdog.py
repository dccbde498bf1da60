"""The process that sends the frames of `ibwire.traffic.resume_on_exit` when its parent was killed.

Arguments: the descriptor of a socket, and frames in hexadecimal. It writes `READY` to its
standard output, then waits for the end of its standard input.
"""

from __future__ import annotations

import signal
import socket
import sys
import time
from collections.abc import Sequence

READY = b"ready\n"
DONE = b"done"
"""Its input when the frames were sent already."""


def main(arguments: Sequence[str]) -> None:
    """Wait for the end of the parent process, then send the frames unless it has sent them."""
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, signal.SIG_IGN)
    descriptor, *frames = arguments
    with socket.socket(fileno=int(descriptor)) as sending:
        sys.stdout.buffer.write(READY)
        sys.stdout.buffer.flush()
        if sys.stdin.buffer.read() == DONE:
            return
        sending.settimeout(_STEP)
        _send(sending, [bytes.fromhex(each) for each in frames])


def _send(sending: socket.socket, frames: list[bytes]) -> None:
    """Send frames in order; retry for a limited time when there is no room or no link."""
    end = time.monotonic() + _RETRY_SECONDS
    while frames and time.monotonic() < end:
        try:
            sending.send(frames[0])
            del frames[0]
        except OSError:
            time.sleep(_STEP)


_RETRY_SECONDS = 2.0
_STEP = 0.02
"""Seconds for all attempts, and between two attempts."""

if __name__ == "__main__":
    main(sys.argv[1:])
