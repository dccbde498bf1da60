"""Runs a node on real links, as the simulator does, with sockets and the monotonic clock.

Time is picoseconds since the loop was created; the node is polled for frames while its ports
accept them, and its timeouts are handled when they are due. Between events the process
sleeps. With `spin` it polls instead, which uses one processor and saves the tens of
microseconds of waking up.
"""

from __future__ import annotations

import ctypes
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from typing import Protocol

from ibwire.base.node import Frame, Node
from ibwire.base.units import NS, Time
from ibwire.link.port import Port


class Ended(StrEnum):
    """Why a run ended."""

    STOPPED = "stopped"
    """`stop` returned true."""
    TIME = "time"
    """The given time is over."""
    FRAMES = "frames"
    """The given number of frames has arrived."""
    SIGNAL = "signal"
    """SIGINT or SIGTERM has come."""


class Clock(Protocol):
    """Time, and waiting for it to pass."""

    def now_ns(self) -> int:
        """Nanoseconds since an arbitrary time; never decreases."""
        ...

    def wait(
        self, readable: Sequence[int], writable: Sequence[int], until_ns: int | None
    ) -> Sequence[int]:
        """Wait until descriptors are ready, or until a time, or shorter; returns those ready."""
        ...


class MonotonicClock:
    """The clock of the machine, and ppoll(2), which waits to the nanosecond."""

    def now_ns(self) -> int:
        """Nanoseconds of CLOCK_MONOTONIC."""
        return time.monotonic_ns()

    def wait(
        self, readable: Sequence[int], writable: Sequence[int], until_ns: int | None
    ) -> Sequence[int]:
        """Wait; a signal ends it."""
        wanted = [_Descriptor(each, _POLLIN) for each in readable]
        wanted += [_Descriptor(each, _POLLOUT) for each in writable]
        descriptors = (_Descriptor * len(wanted))(*wanted)
        span = None
        if until_ns is not None:
            left = max(until_ns - time.monotonic_ns(), 0)
            span = ctypes.byref(_Timespec(*divmod(left, 1_000_000_000)))
        if _ppoll(descriptors, len(wanted), span, None) <= 0:
            return ()
        return [each.fd for each in descriptors if each.found]


class Live:
    """Runs a node whose port `n` is `ports[n]`.

    spin: never sleep. signals: end a run early; ignored outside the main thread. clock: for
    tests.
    """

    BATCH = 32
    """Frames polled from the node before they are sent: more would delay the first of
    them, and the next arrivals."""

    FLUSH_NS = 100_000_000
    """Longest time that the end of a run waits for frames still to be sent."""

    def __init__(
        self,
        node: Node,
        *ports: Port,
        spin: bool = False,
        signals: Sequence[signal.Signals] = (signal.SIGINT, signal.SIGTERM),
        clock: Clock | None = None,
    ) -> None:
        self.node = node
        self.ports = ports
        self.spin = spin
        self.received = 0
        """Frames."""
        self.sent = 0
        self.signal: int | None = None
        """The signal that ended the last run."""
        self._signals = tuple(signals)
        self._clock: Clock = MonotonicClock() if clock is None else clock
        self._begin_ns = self._clock.now_ns()
        self.epoch_ns = time.time_ns()
        """Time of day when the loop was created, for taps."""
        self._unsent: list[list[Frame]] = [[] for _ in ports]
        """Frames of the node that a busy port has not accepted yet."""
        self._wake: int | None = None
        """During a run, the descriptor that signals make readable."""

    @property
    def now(self) -> Time:
        """Picoseconds since the loop was created."""
        return (self._clock.now_ns() - self._begin_ns) * NS

    def run(
        self,
        *,
        seconds: float | None = None,
        frames: int | None = None,
        stop: Callable[[], bool] | None = None,
        watch: Sequence[int] = (),
    ) -> Ended:
        """Run the node until a limit is reached or a signal comes.

        stop: called after every step; it may also give the node work, and read the descriptors
        in `watch`, which wake it. frames: number of arrivals in this
        run. Without any limit only a signal ends it. It can be called again: the clock
        continues, and arrivals and timeouts of the meantime are handled first. Starting and
        ending a run cost some 25 us, so a closed loop posts its next message in `stop`.

        Frames that the node still has at the end are sent, if its ports accept them at
        once. Raises `LinkError`, and the exceptions of the node and of `stop`.
        """
        self.signal = None
        with self._listening():
            ended = self._loop(seconds, frames, stop, watch)
            self._flush()
        # The signal takes precedence, because only this run has recorded it.
        return ended if self.signal is None else Ended.SIGNAL

    def _loop(
        self,
        seconds: float | None,
        frames: int | None,
        stop: Callable[[], bool] | None,
        watch: Sequence[int],
    ) -> Ended:
        clock, node = self._clock, self.node
        end = None if seconds is None else clock.now_ns() + int(seconds * 1e9)
        last = None if frames is None else self.received + frames
        while True:
            # Before the timeouts: after a long step, responses that they wait for have arrived.
            busy = self._receive()
            now = self.now
            due = node.poll_timeout()
            if due is not None and due <= now:
                node.handle_timeout(now)
            if stop is not None and stop():
                return Ended.STOPPED
            busy = self._transmit() or busy
            if self.signal is not None:
                return Ended.SIGNAL
            if last is not None and self.received >= last:
                return Ended.FRAMES
            if end is not None and clock.now_ns() >= end:
                return Ended.TIME
            if not busy and not self.spin:
                self._wait(end, watch)

    def _receive(self) -> bool:
        """Pass one batch of each port to the node; whether there was any."""
        received = 0
        for number, port in enumerate(self.ports):
            frames = port.receive()
            now = self.now
            for frame in frames:
                self.node.receive(frame, now, number)
            received += len(frames)
        self.received += received
        return received > 0

    def _transmit(self) -> bool:
        """Send one batch on each port; whether more may be sent at once."""
        more = False
        for number, port in enumerate(self.ports):
            unsent = self._unsent[number]
            now = self.now
            while len(unsent) < self.BATCH:
                frame = self.node.poll_transmit(now, number)
                if frame is None:
                    break
                unsent.append(frame)
            if not unsent:
                continue
            full = len(unsent) == self.BATCH
            taken = port.send(unsent)
            self.sent += taken
            del unsent[:taken]
            more = more or (full and not unsent)
        return more

    def _wait(self, end: int | None, watch: Sequence[int]) -> None:
        """Sleep until a frame arrives, a busy port is free, a timeout is due, or the run ends."""
        due = self.node.poll_timeout()
        if due is not None:
            at = self._begin_ns + -(-due // NS)
            end = at if end is None else min(end, at)
        readable = [port.fileno() for port in self.ports]
        writable = [
            port.fileno() for port, unsent in zip(self.ports, self._unsent, strict=True) if unsent
        ]
        if self._wake is not None:
            readable.append(self._wake)
        ready = self._clock.wait((*readable, *watch), writable, end)
        if self._wake is not None and self._wake in ready:
            # Also for signals with other handlers.
            os.read(self._wake, _WAKES)

    def _flush(self) -> None:
        """Send the remaining frames of the node, unless a port stays busy."""
        end = self._clock.now_ns() + self.FLUSH_NS
        while self._clock.now_ns() < end:
            more = self._transmit()
            busy = [
                port.fileno()
                for port, unsent in zip(self.ports, self._unsent, strict=True)
                if unsent
            ]
            if busy:
                # With a descriptor for several sockets, room makes it readable.
                self._clock.wait(busy, busy, end)
            elif not more:
                return

    @contextmanager
    def _listening(self) -> Iterator[None]:
        """Record signals during a run."""
        if not self._signals or threading.current_thread() is not threading.main_thread():
            yield
            return
        # A handler alone is not enough: a signal between the last check of `self.signal` and
        # the wait would not end the wait.
        inner, outer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._wake = inner
        before_wake = signal.set_wakeup_fd(outer, warn_on_full_buffer=False)
        before = {each: signal.signal(each, self._note) for each in self._signals}
        try:
            yield
        finally:
            for number, handler in before.items():
                # None: a handler that Python did not set and cannot restore.
                signal.signal(number, signal.SIG_DFL if handler is None else handler)
            signal.set_wakeup_fd(before_wake)
            self._wake = None
            os.close(inner)
            os.close(outer)

    def _note(self, number: int, _: object) -> None:
        self.signal = number


class _Descriptor(ctypes.Structure):
    """struct pollfd."""

    _fields_ = (("fd", ctypes.c_int), ("events", ctypes.c_short), ("found", ctypes.c_short))


class _Timespec(ctypes.Structure):
    """struct timespec."""

    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


_ppoll = ctypes.CDLL(None, use_errno=True).ppoll
_ppoll.argtypes = (ctypes.c_void_p, ctypes.c_ulong, ctypes.c_void_p, ctypes.c_void_p)

_WAKES = 4096
"""Bytes read from the pipe of signals at a time, one for each signal."""

_POLLIN = 0x001  # poll(2)
_POLLOUT = 0x004
