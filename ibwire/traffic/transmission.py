"""One run of sending: takes packets, sends each when it is due, counts, and ends in order.

`transmit` drives an outlet: `SourceOutlet` for frames that a source builds, `KernelSender` for
frames that the kernel builds. It ends after the last packet, at a count, at a time, or at a
signal. Every end is orderly: final frames are sent, and the counters of the device show
whether the frames that the kernel accepted were sent.

Waiting is sleeping and then, for the last tenth of a millisecond, polling the clock: a sleep
alone ends that much too late. After a time in which the process could not run, the packets
that became due are sent at once, but no more than `MAXIMUM_LAG_NS` allows.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

import numpy as np

from ibwire.base.errors import LinkError
from ibwire.base.histogram import Histogram
from ibwire.link.signals import Signals
from ibwire.traffic.blocks import Block, Source
from ibwire.traffic.pace import Numbers, Pacing
from ibwire.traffic.resume_on_exit import ResumeOnExit
from ibwire.traffic.sender import DeviceCounters, Sender, device_counters

TOLERANCE = 0.01
"""Fraction by which a run may be slower than its pace."""


class Outlet(Protocol):
    """A sequence of packets and the means to send them."""

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
        """How often there was no room, by reason."""
        ...

    @property
    def keeps_times(self) -> bool:
        """Whether sending a few packets at a time is as efficient as sending many."""
        ...

    def next(self, most: int) -> Numbers:
        """Lengths of the next packets; empty when there are no more.

        Called again only when all these packets were sent.
        """
        ...

    def send(self, count: int) -> int:
        """Send the next packets; returns how many. After 0 call `wait`. Raises `LinkError`."""
        ...

    def wait(self) -> None:
        """Wait a short time for room."""
        ...


class SourceOutlet:
    """Sends the frames that a source builds."""

    keeps_times = True

    BLOCK = 512
    """Frames built at a time: with half as many Python takes 3 to 6 % of the time, with twice as
    many no less (measured on a veth)."""

    def __init__(self, sender: Sender, source: Source) -> None:
        self._sender = sender
        self._blocks = source.blocks(self.BLOCK)
        self._block: Block | None = None
        self._begin = self._end = 0
        """Rows of the block that `next` has returned and that are not sent."""

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
        """How often there was no room, by reason."""
        return self._sender.waits

    def next(self, most: int) -> Numbers:
        """Lengths of the next packets; empty when there are no more."""
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
        """Send the next packets; returns how many."""
        taken = self._sender.send(self._begin, count)
        self._begin += taken
        return taken

    def wait(self) -> None:
        """Wait a short time for room."""
        self._sender.wait()


class EndReason(StrEnum):
    """Why a run ended."""

    COUNT = "count"
    """All packets were sent, or as many as were requested."""
    TIME = "time"
    SIGNAL = "signal"
    ERROR = "error"


@dataclass(slots=True)
class SendReport:
    """The result of a run."""

    ended: EndReason = EndReason.ERROR
    signal: int | None = None
    """The signal that ended it."""
    error: LinkError | None = None
    """Why the run or its end failed."""
    offered: int = 0
    """Packets that were due and handed to the kernel."""
    accepted: int = 0
    """Packets that the kernel accepted."""
    bytes: int = 0
    """Bytes of these packets."""
    final: int = 0
    """Final frames sent because the run ended early."""
    device: DeviceCounters | None = None
    """What the interface has sent meanwhile, final frames and frames of other programs included;
    `None` when the interface has gone."""
    seconds: float = 0.0
    """From the first packet to the time at which the next one would have left."""
    requested_seconds: float | None = None
    """The same according to the pace; `None` without one."""
    waits: Counter[str] = field(default_factory=Counter)
    """How often there was no room, by reason."""
    gaps: Histogram = field(default_factory=Histogram)
    """Nanoseconds between packets; the mean for packets of one system call."""
    gap_errors: Histogram = field(default_factory=Histogram)
    """Nanoseconds by which gaps differ from the pace."""
    tolerance: float = TOLERANCE

    @property
    def rate(self) -> float | None:
        """Packets per second; `None` if there were none."""
        return self.accepted / self.seconds if self.seconds else None

    @property
    def rate_bps(self) -> float | None:
        """Bits of frames per second."""
        return 8 * self.bytes / self.seconds if self.seconds else None

    @property
    def requested_rate(self) -> float | None:
        """Packets per second according to the pace; `None` without one."""
        return self.accepted / self.requested_seconds if self.requested_seconds else None

    @property
    def rate_kept(self) -> bool:
        """Whether the pace was kept, within the tolerance or 10 ms."""
        if self.requested_seconds is None:
            return True
        allowed = max(self.tolerance * self.requested_seconds, _SCHEDULING_SECONDS)
        return self.seconds - self.requested_seconds <= allowed

    @property
    def lost(self) -> int | None:
        """Packets that the kernel accepted and the device did not count as sent."""
        if self.device is None:
            return None
        return max(self.accepted + self.final - self.device.packets, 0)


class Clock:
    """The monotonic clock."""

    def now_ns(self) -> int:
        """Nanoseconds since an arbitrary time."""
        return time.perf_counter_ns()

    def wait_until(self, moment: int) -> None:
        """Wait until that time, or shorter when it is far away."""
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
    allow_default_route: bool = False,
    clock: Clock | None = None,
) -> SendReport:
    """Send until a limit is reached or a signal comes.

    pacing: `None` for as fast as possible. count: packets. final: frames that are sent when the
    run ends before the last packet, even when this process is killed. allow_default_route: final
    frames may leave on the interface of the default route. Signals are handled in the main
    thread only.

    Raises `LinkError` when nothing could be sent: without a limit, with a pace that the outlet
    cannot keep, and without an interface for the final frames. Later errors are in the report;
    errors of the source are raised, after the final frames.
    """
    if count is None and seconds is None:
        raise LinkError(outlet.name, "refused: sending needs a limit of packets or of time")
    if pacing is not None and not outlet.keeps_times:
        raise LinkError(outlet.name, "refused: this sender supports no rate but the highest")
    clock = clock or Clock()
    before = device_counters(outlet.name)
    in_main = threading.current_thread() is threading.main_thread()
    with Signals() if in_main else nullcontext() as signals:
        resume = (
            ResumeOnExit(outlet.name, final, allow_default_route=allow_default_route)
            if final
            else None
        )
        run = _Run(outlet, pacing, count, seconds, clock, signals)
        report = run.report
        report.tolerance = tolerance
        try:
            report.ended = run.loop()
        except LinkError as error:
            report.error = error
        finally:
            # Before anything else, and while signals are held back.
            if resume is not None:
                is_early = report.ended is not EndReason.COUNT
                resume.is_done = not is_early
                try:
                    resume.close()
                    report.final = len(final) if is_early else 0
                except LinkError as error:
                    report.error = report.error or error
        run.conclude()
    with suppress(LinkError):
        report.device = settled(outlet.name, before, report.accepted + report.final, clock)
    if not outlet.keeps_times and report.lost and 2 * report.lost > report.accepted:
        report.error = report.error or _not_sent_by_the_driver(outlet.name, report)
    return report


def _not_sent_by_the_driver(name: str, report: SendReport) -> LinkError:
    return LinkError(
        name,
        f"{report.lost} of {report.accepted} frames built in the kernel were not sent: the "
        "driver has no room for them or supports none; a veth needs NAPI at its peer: "
        "ethtool -K PEER gro on",
    )


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
        self.report = SendReport()
        self._outlet = outlet
        self._pacing = pacing
        self._count = count
        self._clock = clock
        self._seconds = seconds
        self._before = outlet.sent
        self._waits_before = outlet.waits.copy()
        self._signals = signals
        self._start = 0
        """When the first packet was ready to leave."""
        self._end: int | None = None
        self._postponed = 0
        """Nanoseconds by which the pace was postponed."""
        self._first: int | None = None
        """When the first packet left."""
        self._last = 0
        self._first_due = 0
        self._last_due: int | None = None
        """When the first and the last packet were due, since the start, with a pace."""
        self._left: int | None = None
        """When the next packet is due, if it is known."""

    def loop(self) -> EndReason:
        while True:
            most = self._most()
            lengths = self._outlet.next(most) if most else None
            if lengths is None or not len(lengths):
                return EndReason.COUNT
            due = None if self._pacing is None else self._pacing.due(lengths)
            if self._first is None:
                # Building the first packets is not part of the run.
                self._start = self._clock.now_ns()
                if self._seconds is not None:
                    self._end = self._start + round(self._seconds * 1e9)
            ended = self._send(lengths, due)
            if ended is not None:
                return ended

    def conclude(self) -> None:
        """Complete the report."""
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
        # A rate covers the time to the next packet, so that a pause at the end counts.
        following = self._left
        if following is None and self._pacing is not None:
            following = int(self._pacing.due(np.zeros(1, np.int64))[0])
        rest = 0 if following is None else following - self._last_due
        report.seconds = (self._last - self._first + rest) / 1e9
        report.requested_seconds = (self._last_due - self._first_due + rest) / 1e9

    def _most(self) -> int:
        """How many packets may be requested at once."""
        done = self._outlet.sent - self._before
        most = _MOST if self._count is None else self._count - done
        if self._end is not None:
            # One system call may take about a second of packets: not more than the time left.
            left, passed = self._end - self._last, max(self._last - self._start, 1)
            return min(most, max(done * left // passed, _FEW))
        return most if self._seconds is None else min(most, _FEW)

    def _send(self, lengths: Numbers, due: Numbers | None) -> EndReason | None:
        """Send packets when they are due; returns why the run is over, if it is."""
        outlet, clock, report = self._outlet, self._clock, self.report
        total = len(lengths)
        sizes = np.cumsum(lengths)
        times = None if due is None else due.tolist()
        position, size_before = 0, 0
        while position < total:
            if self._signals is not None and self._signals.number is not None:
                return EndReason.SIGNAL
            now = clock.now_ns()
            if self._end is not None and now >= self._end:
                return EndReason.TIME
            ready = total
            if times is not None:
                moment = self._start + self._postponed + times[position]
                if now < moment:
                    clock.wait_until(moment if self._end is None else min(moment, self._end))
                    continue
                self._postponed += max(now - moment - MAXIMUM_LAG_NS, 0)
                ready = bisect_right(times, now - self._start - self._postponed, position)
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
        """Record the packets that left in one call."""
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
    """What an interface has sent since `before`; waits for frames still in its queue."""
    end = clock.now_ns() + _SETTLING
    while True:
        found = device_counters(name).since(before)
        now = clock.now_ns()
        if found.packets + found.dropped >= wanted or now > end:
            return found
        clock.wait_until(now + _STEP)


MAXIMUM_LAG_NS = 100_000_000
"""Nanoseconds by which a run may lag behind its pace and still catch up."""

_MOST = 1 << 21
_FEW = 1 << 15
"""Packets per call when there is a time limit, until the speed is known."""
_SPIN = 120_000
"""Nanoseconds before a due time in which the clock is polled instead of sleeping."""
_NAP = 50_000_000
"""Longest sleep in nanoseconds: signals are checked afterwards."""
_SCHEDULING_SECONDS = 0.01
"""Seconds by which a process may be late because other processes run."""
_SETTLING = 500_000_000
_STEP = 5_000_000
"""Nanoseconds for which the device's counters may lag, and between two reads of them."""
