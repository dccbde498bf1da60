"""An end to calls of a device under test that never come back.

A timer of processor time looks at the stack now and then. When it meets the same call of
the device a second time, it raises `RunsAway` in there, which is a difference like any
other. Packets cost nothing, a machine that is busy or asleep does not make a device look
endless, and what is not the device's is left alone. C code that does not come back is not
reached.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TypeVar

from ibwire.fuzz.case import RunsAway
from ibwire.fuzz.judge.comparison import ExactComparison

Result = TypeVar("Result")

INTERVAL = 1.0
"""Seconds between two looks. The slowest steps that are right take 0.03."""

SHORT_INTERVAL = 0.1
"""The same interval once a device has not come back: it is asked repeatedly."""


@contextmanager
def watchdog(interval: float = INTERVAL) -> Iterator[None]:
    """Watch devices in duels and in `supervised`; does nothing but in the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGVTALRM, Watch(interval).look)
    signal.setitimer(signal.ITIMER_VIRTUAL, interval, interval)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def be_patient() -> None:
    """Let calls take as long again as before the first one that did not come back.

    Where other programs use the processors, some systems count the time of those, too: the short
    interval may then be over in a call that comes back.
    """
    watch = getattr(signal.getsignal(signal.SIGVTALRM), "__self__", None)
    if isinstance(watch, Watch):
        watch.begin()


def supervised(call: Callable[[], Result]) -> Result:
    """What a device does outside of duels."""
    return call()


class Watch:
    """What was seen at the last look."""

    def __init__(self, interval: float) -> None:
        self._first = self._interval = interval
        self._seen: FrameType | None = None

    def begin(self) -> None:
        """Look at the interval of the beginning again."""
        self._interval = self._first
        signal.setitimer(signal.ITIMER_VIRTUAL, self._interval, self._interval)

    def look(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal that has come in this frame; raises `RunsAway`."""
        call = _call_of_device(frame)
        if call is None or call is not self._seen:
            self._seen = call
            return
        self._seen = None
        passed, self._interval = self._interval, min(self._interval, SHORT_INTERVAL)
        signal.setitimer(signal.ITIMER_VIRTUAL, self._interval, self._interval)
        raise RunsAway(f"does not come back for {passed:g} s of processor time")


def _call_of_device(frame: FrameType | None) -> FrameType | None:
    """The call in which the device is at work, of all that are under way."""
    while frame is not None:
        if frame.f_code is supervised.__code__:
            return frame
        if frame.f_code is ExactComparison.step.__code__:
            comparison = frame.f_locals["self"]
            return frame if comparison.in_target else None
        frame = frame.f_back
    return None
