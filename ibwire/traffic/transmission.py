"""One run of sending: takes packets, sends each when it is due, counts, and ends in order.

`transmit` drives an outlet, which knows the packets and how they leave: `Feed` for frames that
somebody builds, `LiveFrames` for those that the kernel makes. It ends when there are no more,
at a count, at a time, or at a signal, and every end is in order: final frames leave, and
the device's counters tell whether what the kernel has accepted was sent.

Waiting is sleeping and then, for the last tenth of a millisecond, looking at the clock again
and again: a sleep alone ends that much too late. When the process could not run for a while,
what became due meanwhile leaves at once, but no more than `DEPTH` allows.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ibwire.base.errors import LinkError
from ibwire.base.histogram import Histogram
from ibwire.link.signals import Signals
from ibwire.traffic.pacing import Numbers, Pacing
from ibwire.traffic.resume_on_exit import Farewell
from ibwire.traffic.sender import DeviceCounters, Sender, device_counters

TOLERANCE = 0.01
"""Part by which a run may be slower than its pace."""


class Outlet(Protocol):
    """Packets in their order, and the way out for them."""

    @property
    def name(self) -> str:
        """The interface."""
        ...

    @property
    def sent(self) -> int:
        """Packets that the kernel has accepted."""
        ...

    @property
    def waits(self) -> Counter[str]:
        """How often there was no room, by why."""
        ...

    @property
    def keeps_times(self) -> bool:
        """Whether few packets at a time can be sent as well as many."""
        ...

    def next(self, most: int) -> Numbers:
        """Lengths of the next packets; none when there are no more.

        Asked again only when all that it told were sent.
        """
        ...

    def send(self, count: int) -> int:
        """Send the next packets; how many left. None: `wait`. Raises `LinkError`."""
        ...

    def wait(self) -> None:
        """Wait a little for room."""
        ...


class Block(Protocol):
    """Frames that follow one another."""

    @property
    def frames(self) -> npt.NDArray[np.uint8]:
        """(n, width): a frame a row."""
        ...

    @property
    def lengths(self) -> Numbers:
        """(n,) bytes of each frame."""
        ...


class Source(Protocol):
    """Who builds frames."""

    def blocks(self, size: int) -> Iterator[Block]:
        """All frames in order, at most `size` in a block, which may be used until the next one
        is asked for."""
        ...


class Feed:
    """Sends what a source builds."""

    keeps_times = True

    BLOCK = 512
    """Frames that are built at a time: with half as many the share of Python is 3 to 6 %, and
    with twice as many it is no smaller (measured on a veth)."""

    def __init__(self, sender: Sender, source: Source) -> None:
        self._sender = sender
        self._blocks = source.blocks(self.BLOCK)
        self._block: Block | None = None
        self._begin = self._end = 0
        """Rows of the block that were told but not sent."""

    @property
    def name(self) -> str:
        """The interface."""
        return self._sender.name

    @property
    def sent(self) -> int:
        """Packets that the kernel has accepted."""
        return self._sender.sent

    @property
    def waits(self) -> Counter[str]:
        """How often there was no room, by why."""
        return self._sender.waits

    def next(self, most: int) -> Numbers:
        """Lengths of the next packets; none when there are no more."""
        while self._block is None or self._end == len(self._block.lengths):
            self._block = next(self._blocks, None)
            if self._block is None:
                return np.zeros(0, np.int64)
            self._end = 0
            self._sender.load(self._block.frames, self._block.lengths)
        self._begin = self._end
        self._end = min(self._begin + most, len(self._block.lengths))
        return self._block.lengths[self._begin : self._end]

    def send(self, count: int) -> int:
        """Send the next packets; how many left."""
        taken = self._sender.send(self._begin, count)
        self._begin += taken
        return taken

    def wait(self) -> None:
        """Wait a little for room."""
        self._sender.wait()


class Ended(StrEnum):
    """Why a run ended."""

    COUNT = "count"
    """All packets that there were, or that were asked for, have been sent."""
    TIME = "time"
    SIGNAL = "signal"
    ERROR = "error"


@dataclass(slots=True)
class Report:
    """What came of a run."""

    ended: Ended = Ended.ERROR
    signal: int | None = None
    """The signal that ended it."""
    error: LinkError | None = None
    """Why it could not go on, or could not end in order."""
    offered: int = 0
    """Packets that were due and handed to the kernel."""
    accepted: int = 0
    """Packets that the kernel has taken."""
    bytes: int = 0
    """Of those."""
    final: int = 0
    """Frames that left because the end came early."""
    device: DeviceCounters | None = None
    """What the interface has sent meanwhile, final frames and what others send included; `None`
    when it has gone."""
    seconds: float = 0.0
    """From the first packet to where the next one would have left."""
    asked_seconds: float | None = None
    """The same by the pace; `None` without one."""
    waits: Counter[str] = field(default_factory=Counter)
    """How often there was no room, by why."""
    gaps: Histogram = field(default_factory=Histogram)
    """Nanoseconds between packets; of those that left in one system call their mean."""
    gap_errors: Histogram = field(default_factory=Histogram)
    """Nanoseconds by which gaps were not those of the pace."""
    tolerance: float = TOLERANCE

    @property
    def rate(self) -> float | None:
        """Packets a second; `None` if there were none."""
        return self.accepted / self.seconds if self.seconds else None

    @property
    def rate_bps(self) -> float | None:
        """Bits of frames a second."""
        return 8 * self.bytes / self.seconds if self.seconds else None

    @property
    def asked_rate(self) -> float | None:
        """Packets a second by the pace; `None` without one."""
        return self.accepted / self.asked_seconds if self.asked_seconds else None

    @property
    def held(self) -> bool:
        """Whether the pace was kept, to within the tolerance and 10 ms."""
        if self.asked_seconds is None:
            return True
        allowed = max(self.tolerance * self.asked_seconds, _HICCUP)
        return self.seconds - self.asked_seconds <= allowed

    @property
    def lost(self) -> int | None:
        """Packets that the kernel has accepted and the device has not counted as sent."""
        if self.device is None:
            return None
        return max(self.accepted + self.final - self.device.packets, 0)


class Clock:
    """The monotonic clock."""

    def now_ns(self) -> int:
        """Nanoseconds since some moment."""
        return time.perf_counter_ns()

    def wait_until(self, moment: int) -> None:
        """Wait until that moment, or for less when it is far away."""
        left = moment - time.perf_counter_ns()
        if left > _SPIN:
            time.sleep(min(left - _SPIN, _NAP) / 1e9)
            return
        while time.perf_counter_ns() < moment:
            pass


def transmit(
    outlet: Outlet,
    pacing: Pacing | None = None,
    *,
    count: int | None = None,
    seconds: float | None = None,
    final: Sequence[bytes] = (),
    tolerance: float = TOLERANCE,
    certain: bool = False,
    clock: Clock | None = None,
) -> Report:
    """Send until one of the limits is reached, or a signal comes.

    pacing: `None` for as fast as possible. count: packets. final: frames that leave when the
    end comes before the last packet, even because this process is killed: what the last packets
    would have said. certain: for them also where the default route lies. Outside the main
    thread signals are not looked at.

    Raises `LinkError` when nothing could begin: without a limit, with a pace that the outlet
    cannot keep, and when there is no interface for the final frames. What goes wrong later is
    in the report; what the source raises is raised, after the final frames.
    """
    if count is None and seconds is None:
        raise LinkError(outlet.name, "refused: sending needs a limit, of packets or of time")
    if pacing is not None and not outlet.keeps_times:
        raise LinkError(outlet.name, "refused: this way of sending knows no rate but the highest")
    clock = clock or Clock()
    before = device_counters(outlet.name)
    in_main = threading.current_thread() is threading.main_thread()
    with Signals() if in_main else nullcontext() as signals:
        farewell = Farewell(outlet.name, final, certain=certain) if final else None
        run = _Run(outlet, pacing, count, seconds, clock, signals)
        report = run.report
        report.tolerance = tolerance
        try:
            report.ended = run.loop()
        except LinkError as error:
            report.error = error
        finally:
            # Before anything else, and while signals end nothing.
            if farewell is not None:
                is_early = report.ended is not Ended.COUNT
                farewell.is_done = not is_early
                try:
                    farewell.close()
                    report.final = len(final) if is_early else 0
                except LinkError as error:
                    report.error = report.error or error
        run.conclude()
    with suppress(LinkError):
        report.device = settled(outlet.name, before, report.accepted + report.final, clock)
    if not outlet.keeps_times and report.lost and 2 * report.lost > report.accepted:
        report.error = report.error or LinkError(
            outlet.name,
            f"of {report.accepted} frames made in the kernel {report.lost} were not sent: the "
            "driver has no room for them, or takes none; a veth takes them when its peer has NAPI: "
            "ethtool -K PEER gro on",
        )
    return report


class _Run:
    """The state of one run."""

    def __init__(
        self,
        outlet: Outlet,
        pacing: Pacing | None,
        count: int | None,
        seconds: float | None,
        clock: Clock,
        signals: Signals | None,
    ) -> None:
        self.report = Report()
        self._outlet = outlet
        self._pacing = pacing
        self._count = count
        self._clock = clock
        self._seconds = seconds
        self._before = outlet.sent
        self._waits_before = outlet.waits.copy()
        self._signals = signals
        self._start = 0
        """When the first packet could leave."""
        self._end: int | None = None
        self._behind = 0
        """Nanoseconds that the pace was put off by."""
        self._first: int | None = None
        """When the first packet has left."""
        self._last = 0
        self._first_due = 0
        self._last_due: int | None = None
        """When the first and the last packet were due, since the start, if they were at a time."""
        self._left: int | None = None
        """When the next packet is due of which that is known already."""

    def loop(self) -> Ended:
        while True:
            most = self._most()
            lengths = self._outlet.next(most) if most else None
            if lengths is None or not len(lengths):
                return Ended.COUNT
            due = None if self._pacing is None else self._pacing.due(lengths)
            if self._first is None:
                # What building the first packets takes is not part of the run.
                self._start = self._clock.now_ns()
                if self._seconds is not None:
                    self._end = self._start + round(self._seconds * 1e9)
            ended = self._send(lengths, due)
            if ended is not None:
                return ended

    def conclude(self) -> None:
        """Write down what came of it."""
        report = self.report
        if self._signals is not None:
            report.signal = self._signals.number
        report.accepted = self._outlet.sent - self._before
        report.waits = self._outlet.waits - self._waits_before
        if self._first is None:
            return
        if self._last_due is None:
            report.seconds = (self._last - self._start) / 1e9
            return
        # Rates are what they are from one packet to the next, not from a pause to its end.
        following = self._left
        if following is None and self._pacing is not None:
            following = int(self._pacing.due(np.zeros(1, np.int64))[0])
        rest = 0 if following is None else following - self._last_due
        report.seconds = (self._last - self._first + rest) / 1e9
        report.asked_seconds = (self._last_due - self._first_due + rest) / 1e9

    def _most(self) -> int:
        """How many packets may be taken at once."""
        done = self._outlet.sent - self._before
        most = _MOST if self._count is None else self._count - done
        if self._end is not None:
            # One system call may be about a second of packets: not more than there is time for.
            left, passed = self._end - self._last, max(self._last - self._start, 1)
            return min(most, max(done * left // passed, _FEW))
        return most if self._seconds is None else min(most, _FEW)

    def _send(self, lengths: Numbers, due: Numbers | None) -> Ended | None:
        """Send packets when they are due; why the run is over, if it is."""
        outlet, clock, report = self._outlet, self._clock, self.report
        total = len(lengths)
        sizes = np.cumsum(lengths)
        times = None if due is None else due.tolist()
        position, size_before = 0, 0
        while position < total:
            if self._signals is not None and self._signals.number is not None:
                return Ended.SIGNAL
            now = clock.now_ns()
            if self._end is not None and now >= self._end:
                return Ended.TIME
            ready = total
            if times is not None:
                moment = self._start + self._behind + times[position]
                if now < moment:
                    clock.wait_until(moment if self._end is None else min(moment, self._end))
                    continue
                self._behind += max(now - moment - DEPTH, 0)
                ready = bisect_right(times, now - self._start - self._behind, position)
            report.offered = outlet.sent - self._before + ready - position
            taken = outlet.send(ready - position)
            if not taken:
                outlet.wait()
                continue
            size = int(sizes[position + taken - 1])
            report.bytes += size - size_before
            size_before = size
            self._record(now, taken, times, position)
            position += taken
        return None

    def _record(self, called: int, taken: int, times: list[int] | None, position: int) -> None:
        """Take down that packets left in one call."""
        now = self._clock.now_ns()
        report = self.report
        gap = (now - called) // taken
        first = called + gap if taken > 1 else now
        if self._first is None:
            self._first = first
            self._first_due = 0 if times is None else times[position]
        elif times is not None and self._last_due is not None:
            report.gaps.add_one(first - self._last)
            asked = times[position] - self._last_due
            report.gap_errors.add_one(abs(first - self._last - asked))
        if taken > 1:
            report.gaps.add_one(gap, taken - 1)
        if times is not None:
            last = times[position + taken - 1]
            if taken > 1:
                asked = (last - times[position]) // (taken - 1)
                report.gap_errors.add_one(abs(gap - asked), taken - 1)
            self._last_due = last
            after = position + taken
            self._left = times[after] if after < len(times) else None
        self._last = now


def settled(name: str, before: DeviceCounters, wanted: int, clock: Clock) -> DeviceCounters:
    """What an interface has sent since; waits for what is still in its queue."""
    end = clock.now_ns() + _SETTLING
    while True:
        found = device_counters(name).since(before)
        now = clock.now_ns()
        if found.packets + found.dropped >= wanted or now > end:
            return found
        clock.wait_until(now + _STEP)


DEPTH = 100_000_000
"""Nanoseconds by which a run may be behind its pace and still catch up."""

_MOST = 1 << 21
_FEW = 1 << 15
"""Packets that are taken at once when there is a time limit, until it is known how fast it
goes."""
_SPIN = 120_000
"""Nanoseconds before a moment from which on the clock is looked at instead of sleeping."""
_NAP = 50_000_000
"""Nanoseconds for which nobody looks at signals."""
_HICCUP = 0.01
"""Seconds by which a process may be late because others run."""
_SETTLING = 500_000_000
_STEP = 5_000_000
"""Nanoseconds for which the device's counters may lag behind, and between two looks at them."""
