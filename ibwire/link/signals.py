"""SIGINT and SIGTERM as something to wait for, so that a loop ends where it may."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from types import FrameType

from ibwire.base.closing import Closing


class Signals(Closing):
    """Signals are noted instead of ending the process; a context manager of the main thread.

    The descriptor is readable from the moment on at which a signal has come: one that
    comes between a look at `number` and a wait ends the wait.
    """

    def __init__(self, numbers: Sequence[signal.Signals] = (signal.SIGINT, signal.SIGTERM)) -> None:
        self.number: int | None = None
        """The last one that has come."""
        self._inner, self._outer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._wakeup = signal.set_wakeup_fd(self._outer, warn_on_full_buffer=False)
        self._handlers = {each: signal.signal(each, self._note) for each in numbers}

    def fileno(self) -> int:
        """Readable when a signal has come."""
        return self._inner

    def close(self) -> None:
        """Restore the previous signal handlers."""
        for number, handler in self._handlers.items():
            # None: a handler that was not set by Python, and cannot be set again by it.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        signal.set_wakeup_fd(self._wakeup)
        os.close(self._inner)
        os.close(self._outer)

    def _note(self, number: int, _: FrameType | None) -> None:
        self.number = number
