"""The tap between two interfaces: forwards batches of frames and applies a plan to some."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from ibwire.base.node import Frame
from ibwire.base.units import NS, Time
from ibwire.link.live import MonotonicClock
from ibwire.link.signals import Signals
from ibwire.tap.bridge import Arrived, Side, losses
from ibwire.tap.plan import Event, Plan, ReportEvent, header_of
from ibwire.tap.record import TapRecord


class LiveTap:
    """Applies a plan to frames between two interfaces.

    record: where frames are written; `None`: nowhere. report: takes events. spin: never
    sleep, which is faster and uses one processor.
    """

    FLUSH_NS = 500_000_000
    """How long frames that have arrived may delay the end."""

    def __init__(
        self,
        plan: Plan,
        sides: tuple[Side, Side],
        report: ReportEvent,
        record: TapRecord | None = None,
        *,
        spin: bool = False,
    ) -> None:
        self.plan = plan
        self.sides = sides
        self._report = report
        self._record = record
        self._spin = spin
        self._clock = MonotonicClock()
        self._begin_ns = self._clock.now_ns()

    @property
    def arrived(self) -> int:
        """Frames that have arrived from both sides."""
        return sum(way.arrived for way in self.plan.ways)

    def run(self, *, seconds: float | None = None, count: int | None = None) -> int | None:
        """Forward frames until the time is over, `count` have arrived, or a signal comes.

        Returns the number of the signal. Frames that have arrived by then still pass, for at most
        half a second, and delayed frames leave at once. Raises `LinkError`.
        """
        end = None if seconds is None else self._clock.now_ns() + int(seconds * 1e9)
        with Signals() as signals:
            try:
                while signals.number is None and (end is None or self._clock.now_ns() < end):
                    if count is not None and self.arrived >= count:
                        break
                    if not self._pass(count) and not self._spin:
                        descriptors = [*(side.fileno() for side in self.sides), signals.fileno()]
                        self._clock.wait(descriptors, (), self._until(end))
                last = self._clock.now_ns() + self.FLUSH_NS
                while self._clock.now_ns() < last and self._pass(count):
                    pass
            finally:
                self._finish()
            return signals.number

    def problems(self) -> list[str]:
        """Sentences about lost frames and other problems."""
        problems = [text for side in self.sides for text in losses(side)]
        for way, side in zip(self.plan.ways, self.sides, strict=True):
            if way.overflow:
                problems.append(
                    f"{side.name}: {way.overflow} delayed frames are lost: too many waited"
                )
            if way.unread:
                problems.append(
                    f"{side.name}: {way.unread} frames are merged packets, seen by no rule: "
                    f"ethtool -K {side.name} rx-udp-gro-forwarding off rx-gro-list off gro off"
                )
        return problems

    def counters(self) -> dict[str, Any]:
        """Counts of frames by interface."""
        return {
            side.name: {name: count for name, count in side.counters.items() if count}
            for side in self.sides
        }

    @property
    def _now(self) -> Time:
        return (self._clock.now_ns() - self._begin_ns) * NS

    def _pass(self, count: int | None) -> bool:
        """Forward one batch of each side, and due delayed frames; whether there were batches."""
        busy = False
        for number in range(2):
            busy = self._take(number, count) or busy
        for number, way in enumerate(self.plan.ways):
            if way.poll_timeout() is not None:
                self._leave(number, [frame for _, frame in way.due(self._now)])
        return busy

    def _take(self, number: int, count: int | None) -> bool:
        """Forward one batch of a side; whether there was one."""
        most = Side.BATCH if count is None else min(Side.BATCH, count - self.arrived)
        arrived = self.sides[number].receive(most) if most else None
        if arrived is None:
            return False
        way, other = self.plan.ways[number], self.sides[1 - number]
        rows = way.concerned(arrived.data, arrived.starts, arrived.lengths)
        if rows or way.rules.holding:
            self._pass_some(number, arrived, rows)
        else:
            other.forward(arrived)
            if self._record is not None:
                every = range(len(arrived))
                self._record.passed(number, arrived, every, {}, time.time_ns())
        way.arrived += len(arrived)
        return True

    def _pass_some(self, number: int, arrived: Arrived, rows: Sequence[int]) -> None:
        """Pass some frames of a batch to the rules, and all frames while a rule holds one."""
        way, now, time_ns = self.plan.ways[number], self._now, time.time_ns()
        wanted = frozenset(rows)
        leaving: list[Frame | int] = []
        answers: list[Frame] = []
        events: dict[int, list[Event]] = {}
        for row in range(len(arrived)):
            if row not in wanted and not way.rules.holding:
                leaving.append(row)
                continue
            frame = arrived.frame(row)
            if arrived.merged[row]:
                way.unread += bool(header_of(frame))
                leaving.append(row)
                continue
            taken = way.take(frame, now)
            leaving += [row if each is frame else each for each in taken.leaving]
            answers += taken.answers
            if taken.met:
                events[row] = self._events(number, row, frame, taken.met, time_ns)
        self.sides[1 - number].send(leaving, arrived)
        self.sides[number].send(answers)
        if self._record is not None:
            self._record.passed(number, arrived, leaving, events, time_ns)
            self._record.left(number, answers, time_ns)
        for several in events.values():
            for event in several:
                self._report(event)

    def _events(
        self, number: int, row: int, frame: Frame, met: Sequence[tuple[int, str]], time_ns: int
    ) -> list[Event]:
        packet = None if self._record is None else self._record.count(number) + row + 1
        name, header = self.sides[number].name, header_of(frame)
        place = self.plan.ways[number].arrived + row + 1
        return [
            Event(
                time_ns=time_ns,
                side=name,
                rule=rule,
                action=action,
                frame=place,
                packet=packet,
                header=header,
            )
            for rule, action in met
        ]

    def _finish(self) -> None:
        for number, way in enumerate(self.plan.ways):
            self._leave(number, [frame for _, frame in way.rest(self._now)])
        for side in self.sides:
            side.count_losses()

    def _leave(self, number: int, frames: Sequence[Frame]) -> None:
        """Send frames from one side on the other."""
        if frames:
            self.sides[1 - number].send(frames)
            if self._record is not None:
                self._record.left(1 - number, frames, time.time_ns())

    def _until(self, end: int | None) -> int | None:
        """When the loop must wake up, in nanoseconds of the clock; `None` for never."""
        times = [] if end is None else [end]
        for way in self.plan.ways:
            due = way.poll_timeout()
            if due is not None:
                times.append(self._begin_ns + -(-due // NS))
        return min(times, default=None)
