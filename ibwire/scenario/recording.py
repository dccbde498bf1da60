"""What a run leaves behind: queues, pauses, rates, link loads and drops over time.

A `Recording` looks at the network from time to time, between two events: it changes nothing, so
a run with it is the same as without. Its memory is bounded: where a run is long, samples are
further apart, and of the pauses the first are kept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from functools import partial
from typing import Any, NamedTuple

from ibwire.base.node import Frame
from ibwire.base.trace import SENT
from ibwire.base.units import US, Time
from ibwire.fabric import Simulator
from ibwire.fabric.line import Direction
from ibwire.fabric.pause import LANES
from ibwire.fabric.switch import Switch
from ibwire.rc.qp import QueuePair
from ibwire.scenario.sampling import Key, Samples, counted, last
from ibwire.scenario.tcp import Segment
from ibwire.scenario.tcp_hosts import TcpFlow
from ibwire.scenario.workload import Tally

FIRST_INTERVAL = 1 * US
"""Time between samples at the beginning; it doubles when there are too many of them."""

MOST_PAUSES = 200_000

MOST_SEGMENTS = 1_000_000
"""TCP segments that are kept, at each of their ends: some 200 MB."""


class PortKey(NamedTuple):
    """A port, by its node and the node at the other end of its link."""

    node: str
    neighbour: str


class Sender(NamedTuple):
    """A queue pair that sends."""

    connection: str
    number: int
    """Of the queue pairs with this name, from 0."""
    qp: QueuePair
    tally: Tally


class Pause(NamedTuple):
    """A time in which a node could not send a priority on a link."""

    start: Time
    end: Time
    node: str
    neighbour: str
    priority: int


class SegmentRow(NamedTuple):
    """A TCP segment that left a host or arrived there."""

    time: Time
    connection: str
    node: str
    is_sent: bool
    sequence: int
    acknowledgement: int
    flags: str
    size: int
    """Bytes of data."""
    window: int
    is_marked: bool


class Recording:
    """Records one run; made before it, attached to its network, closed after it."""

    def __init__(self) -> None:
        self.interval = FIRST_INTERVAL
        """Time between samples."""
        self.queues = Samples(max)
        """Bytes by port and priority."""
        self.rates = Samples(last)
        """Rate, target and alpha by connection and index."""
        self.loads = Samples(counted)
        """Bytes of line time by port, since the sample before."""
        self.drops = Samples(counted)
        """Frames by port and reason, since the sample before."""
        self.pauses: list[Pause] = []
        self.left_out = 0
        """Pauses that are not kept."""
        self.segments: list[SegmentRow] = []
        self.segments_left_out = 0
        """Segments that are not kept."""
        self.sent: Counter[Key] = Counter()
        """Bytes of line time that each port has sent."""
        self._next: Time = 0
        self._simulator: Simulator | None = None
        self._switches: Mapping[str, Switch] = {}
        self._lines: list[tuple[PortKey, Direction]] = []
        self._pairs: Sequence[Sender] = []
        self._overhead: Mapping[tuple[str, str], int] = {}
        self._host_ports: dict[str, PortKey] = {}
        self._host_bytes: Counter[Key] = Counter()
        self._before_drops: Counter[Key] = Counter()
        self._before_rates: dict[Key, float] = {}

    def attach(
        self,
        simulator: Simulator,
        pairs: Sequence[Sender],
        overhead: Mapping[tuple[str, str], int],
    ) -> None:
        """Take the network of the run.

        pairs: those that send. overhead: bytes of line time of each frame besides its own, by node
        and neighbour.
        """
        self._simulator, self._pairs, self._overhead = simulator, pairs, overhead
        self._host_ports = {node: PortKey(node, neighbour) for node, neighbour in overhead}

    def attach_switches(
        self,
        switches: Mapping[str, Switch],
        lines: Mapping[tuple[str, str], Sequence[Direction]],
    ) -> None:
        """Take the switches of the network. lines: by node and neighbour, also of hosts."""
        self._switches = switches
        for name in switches:
            self._host_ports.pop(name, None)
        for (node, neighbour), parallel in lines.items():
            for line in parallel:
                key = PortKey(node, neighbour)
                self._lines.append((key, line))
                if line.pause is not None:
                    line.pause.ended = partial(self._paused, key)

    def attach_tcp(self, flows: Iterable[TcpFlow]) -> None:
        """Take the TCP flows of the run."""
        for flow in flows:
            for node, end in zip((flow.spec.source, flow.spec.target), flow.ends, strict=True):
                end.observe = partial(self._segment, flow.spec.name, node)

    def _segment(
        self, connection: str, node: str, is_sent: bool, segment: Segment, now: Time
    ) -> None:
        if len(self.segments) >= MOST_SEGMENTS:
            self.segments_left_out += 1
            return
        self.segments.append(
            SegmentRow(
                now,
                connection,
                node,
                is_sent,
                segment.sequence,
                segment.acknowledgement,
                " ".join(flag.name or "" for flag in segment.flags),
                len(segment.payload),
                segment.window,
                segment.is_marked,
            )
        )

    def __call__(self, node: str, event: str, frame: Frame, now: Time) -> None:
        """Observe a frame of a host."""
        if event == SENT and node in self._host_ports:
            key = self._host_ports[node]
            self._host_bytes[key] += len(frame) + self._overhead[key]

    def tick(self) -> bool:
        """Called after each event; takes a sample when it is time. Never ends the run."""
        assert self._simulator is not None
        now = self._simulator.now
        if now >= self._next:
            self._sample(now)
            self._next = now + self.interval
        return False

    def close(self) -> None:
        """Take the last sample, and the pauses that have not ended."""
        assert self._simulator is not None
        now = self._simulator.now
        self._sample(now)
        for key, line in self._lines:
            for lane in range(LANES):
                began = line.pause.stopped_since(lane) if line.pause is not None else None
                if began is not None:
                    self._paused(key, lane, began, now)
        self.pauses.sort()

    def _paused(self, key: PortKey, lane: int, start: Time, end: Time) -> None:
        if len(self.pauses) < MOST_PAUSES:
            self.pauses.append(Pause(start, end, key.node, key.neighbour, lane))
        else:
            self.left_out += 1

    def _sample(self, now: Time) -> None:
        queues, loads, drops = self._look_at_switches()
        loads.update(self._host_bytes)
        self.queues.take(now, queues)
        self.loads.take(now, _positive(loads - self.sent))
        self.sent = loads
        self.drops.take(now, _positive(drops - self._before_drops))
        self._before_drops = drops
        self.rates.take(now, self._changed_rates(now))
        tables = (self.queues, self.loads, self.drops, self.rates)
        while any(table.is_full for table in tables):
            self.interval *= 2
            for table in tables:
                table.thin()

    def _look_at_switches(
        self,
    ) -> tuple[dict[Key, float], Counter[Key], Counter[Key]]:
        """Queues now; bytes sent and frames dropped so far."""
        queues: dict[Key, float] = {}
        loads: Counter[Key] = Counter()
        drops: Counter[Key] = Counter()
        for key, line in self._lines:
            switch = self._switches.get(key.node)
            if switch is None:
                continue
            counters = switch.counters_of(line.port)
            loads[key] += sum(counters.sent_bytes) + sum(counters.sent) * line.overhead
            for reason, count in (counters.dropped + counters.discarded).items():
                drops[(*key, reason)] += count
            if not switch.queued(line.port):
                continue
            for lane in range(LANES):
                size = switch.queued(line.port, lane)
                if size:
                    queues[(*key, lane)] = max(queues.get((*key, lane), 0), size)
        return queues, loads, drops

    def _changed_rates(self, now: Time) -> dict[Key, float]:
        changed: dict[Key, float] = {}
        for connection, index, qp, tally in self._pairs:
            control: Any = qp.rate
            if control is None or tally.started is None or not tally.unfinished:
                continue
            if hasattr(control, "advance"):  # of a copy: the run goes on as without a recording
                control = copy(control)
                control.advance(now)
            for name in RATE_VALUES:
                value = getattr(control, name, None)
                key = (connection, index, name)
                if value is not None and self._before_rates.get(key) != value:
                    self._before_rates[key] = changed[key] = value
        return changed


RATE_VALUES = ("rate", "target", "alpha", "window")
"""Attributes of a congestion control that are recorded."""


def _positive(counts: Counter[Key]) -> dict[Key, float]:
    return {key: count for key, count in counts.items() if count > 0}
