"""A switch with a shared buffer, priorities, pause frames and ECN marks, as a `Node`.

A frame that has arrived whole gets a priority and an output port, and its bytes are charged
to its input port in the shared buffer. Where that account reaches its threshold, a lossless
priority sends a PFC frame back, and a lossy one drops. At the output port frames wait by
priority; when one leaves, it may be marked, and its input port may be allowed to go on.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from ibwire.base import telemetry
from ibwire.base.errors import EncodeError
from ibwire.base.node import OPEN, DamagedFrame, Frame, Grant
from ibwire.base.unbuilt import UnbuiltFrame, headers_of
from ibwire.base.units import S, Time
from ibwire.fabric.pause import LANES, LONGEST, QUANTUM_BITS, PauseGrant, pfc_frame
from ibwire.fabric.switch.buffer import RESUME_OFFSET, Account, SharedBuffer
from ibwire.fabric.switch.classes import Classifier, Remark
from ibwire.fabric.switch.marking import Ramp
from ibwire.fabric.switch.routing import Router, flow_key
from ibwire.fabric.switch.scheduling import Scheduler
from ibwire.fabric.switch.watchdog import Action, QueueWatch, Watchdog
from ibwire.impair.stages import mark_ce

FCS = 4
"""Bytes of the frame check sequence, which frames here do not have but buffers keep."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PriorityRules:
    """How a port treats the frames of one priority."""

    is_lossless: bool = False
    """Whether it pauses its sender instead of dropping."""
    reserve: int = 0
    """Bytes of the buffer that it has for itself."""
    headroom: int = 0
    """Bytes for what arrives after a pause."""
    alpha: Fraction = Fraction(1, 8)
    """Threshold as a share of the free shared bytes."""
    resume_offset: int = RESUME_OFFSET
    """Bytes below the threshold at which a paused sender may go on."""
    ramp: Ramp | None = None
    """When frames that leave by the port are marked; `None` for never."""


@dataclass(frozen=True, slots=True)
class PortSettings:
    """A port of a switch."""

    rate_bps: int
    priorities: Mapping[int, PriorityRules] = field(default_factory=dict)
    """Rules of those that are not lossy without a reserve."""


@dataclass(slots=True)
class PortCounters:
    """What one port has done, by priority."""

    sent: list[int] = field(default_factory=lambda: [0] * LANES)
    """Frames."""
    sent_bytes: list[int] = field(default_factory=lambda: [0] * LANES)
    marked: list[int] = field(default_factory=lambda: [0] * LANES)
    """Frames that got a CE mark here."""
    largest_queue: list[int] = field(default_factory=lambda: [0] * LANES)
    """Bytes."""
    pauses_sent: list[int] = field(default_factory=lambda: [0] * LANES)
    """Pauses, without those that only prolong one."""
    resumes_sent: list[int] = field(default_factory=lambda: [0] * LANES)
    stomped: int = 0
    """Damaged frames that had left (cut-through) before their end arrived here."""
    first_mark: Time | None = None
    """When the first frame was marked here."""
    first_pause: Time | None = None
    """When the first pause was sent from here."""
    dropped: Counter[str] = field(default_factory=Counter)
    """Frames that arrived here and were dropped, by reason."""
    discarded: Counter[str] = field(default_factory=Counter)
    """Frames that waited here to be sent and were dropped, by reason."""


class _Port:
    """The state of a port: the queues of its output, the accounts of its input."""

    __slots__ = (
        "accounts",
        "announce",
        "counters",
        "first_sizes",
        "grant",
        "is_up",
        "pause_time",
        "paused",
        "queued",
        "queues",
        "ramps",
        "rate_bps",
        "refresh_at",
        "scheduler",
        "sent",
        "stormed",
        "waiting",
        "watches",
    )

    def __init__(
        self,
        settings: PortSettings,
        scheduler: Scheduler,
        pause_quanta: int,
        watchdog: Watchdog | None,
    ) -> None:
        rules = [settings.priorities.get(lane, PriorityRules()) for lane in range(LANES)]
        self.accounts = [_account(rule) for rule in rules]
        self.ramps = [rule.ramp for rule in rules]
        self.rate_bps = settings.rate_bps
        self.sent = 0
        """Bytes sent, as the buffer counts them; kept for telemetry only."""
        self.scheduler = scheduler
        self.pause_time = pause_quanta * QUANTUM_BITS * S // settings.rate_bps
        """How long a pause lasts that is sent here."""
        self.queues: list[deque[_Queued]] = [deque() for _ in range(LANES)]
        self.queued = [0] * LANES
        """Bytes in each queue."""
        self.first_sizes = [0] * LANES
        """Bytes of the first frame of each queue, 0 for an empty queue."""
        self.waiting = 0
        """Priorities with frames in their queue, as bits."""
        self.paused = 0
        """Priorities that this switch has paused at the neighbour, as bits."""
        self.announce: dict[int, int] = {}
        """Quanta by priority that the next PFC frame tells the neighbour."""
        self.refresh_at: list[Time] = [0] * LANES
        """When the pause of each priority has to be repeated."""
        self.counters = PortCounters()
        self.is_up = True
        """Whether its link works."""
        self.watches: dict[int, QueueWatch] = {}
        """The watchdogs of its queues, by priority."""
        if watchdog is not None:
            lossless = [lane for lane in range(LANES) if rules[lane].is_lossless]
            self.watches = {lane: QueueWatch(watchdog) for lane in lossless}
        self.stormed = 0
        """Priorities whose frames the watchdog drops, as bits."""
        self.grant: Grant = OPEN
        """What the neighbour allows to be sent."""


_Queued = tuple[Frame | UnbuiltFrame, int, int]
"""A frame, its bytes in the buffer, and its input port."""


class Switch:
    """A switch; by itself it stores and forwards (`CutThrough`).

    ports: numbered from 0. router: which of them leads where. buffer: bytes of all together.
    strict, weights: how the priorities of a port share it (`Scheduler`).
    pause_quanta: of each PFC frame; a pause that has to last is repeated after half of it.
    overhead: bytes that a frame takes in the buffer besides its own. watchdog: for queues that a
    neighbour pauses for too long. has_telemetry: whether it writes into packets that have room for
    it (`ibwire.base.telemetry`). remarks: what it writes into frames, by priority.
    Raises `BufferTooSmall` where headroom and reserves take all of the buffer.
    """

    LIMIT_FLOWS = 1 << 16
    """Flows whose port and priority are kept."""

    def __init__(
        self,
        ports: Sequence[PortSettings],
        router: Router,
        *,
        buffer: int,
        name: str = "switch",
        mac: int = 0x02_00_53_00_00_00,
        classifier: Classifier | None = None,
        strict: Sequence[int] = (),
        weights: Mapping[int, int] | None = None,
        pause_quanta: int = LONGEST,
        overhead: int = FCS,
        has_telemetry: bool = False,
        draw: random.Random | None = None,
        watchdog: Watchdog | None = None,
        remarks: Mapping[int, Remark] | None = None,
    ) -> None:
        if not ports:
            raise EncodeError("ports", len(ports), "one or more")
        if not 2 <= pause_quanta <= LONGEST:
            raise EncodeError("pause_quanta", pause_quanta, f"from 2 to {LONGEST}")
        self.name = name
        self.router = router
        self.ready_ports: list[int] = []
        """Ports that may have a frame to send since the list was emptied last."""
        self._mac = mac
        self._classifier = classifier or Classifier()
        self._quanta = pause_quanta
        self._overhead = overhead
        self._has_telemetry = has_telemetry
        self._remarks = dict(remarks or {})
        self._draw = draw or random.Random(name)
        self._ports = [
            _Port(each, Scheduler(strict, weights), pause_quanta, watchdog) for each in ports
        ]
        self._watchdog = watchdog
        self._buffer = SharedBuffer(
            buffer, (account for port in self._ports for account in port.accounts)
        )
        self._refreshes: list[tuple[Time, int, int]] = []
        """When to repeat which pause: time, port, priority."""
        self._polls: list[tuple[Time, int, int]] = []
        """When to look at which queue for a storm: time, port, priority."""
        self.observe: Callable[[int, bool, Frame, Time], None] | None = None
        """Called with the port of each frame, and whether it is sent or has arrived; pause frames
        do not arrive here."""

    @property
    def counters(self) -> list[PortCounters]:
        """The counters of each port."""
        return [port.counters for port in self._ports]

    @property
    def resolves_storms(self) -> bool:
        """Whether a watchdog drops or sends the frames of a queue that is paused for too long."""
        return self._watchdog is not None and self._watchdog.action is not Action.ALERT

    def counters_of(self, port: int) -> PortCounters:
        """The counters of one port."""
        return self._ports[port].counters

    @property
    def buffered(self) -> int:
        """Bytes in the queues of all ports."""
        return sum(sum(port.queued) for port in self._ports)

    def queued(self, port: int, priority: int | None = None) -> int:
        """Bytes that wait at a port, of one priority or of all."""
        waiting = self._ports[port].queued
        return sum(waiting) if priority is None else waiting[priority]

    def is_pausing(self, port: int, priority: int) -> bool:
        """Whether this switch has paused a priority of the neighbour at a port."""
        return bool(self._ports[port].paused >> priority & 1)

    def receive(
        self, frame: Frame, now: Time, port: int = 0, way: tuple[int, int] | None = None
    ) -> None:
        """Queue a frame at its output port, or drop it.

        way: output port and priority, where they are known (`way_of`); then a damaged frame goes
        on too.
        """
        if self.observe is not None:
            self.observe(port, False, frame, now)
        if way is None:
            if type(frame) is not bytes and isinstance(frame, DamagedFrame):
                self._ports[port].counters.dropped["damaged"] += 1
                return
            key = frame[:16] + frame[22:24] + frame[26:38]  # `flow_key`, inlined
            way = self.router.known.get(key)
            if way is None:
                way = self._classify(frame, key, now)
                if way is None:
                    reason = "no route" if len(frame) >= _HEADER else "malformed"
                    self._ports[port].counters.dropped[reason] += 1
                    return
        self._queue(frame, len(frame) + self._overhead, way, now, port)

    def receive_unbuilt(self, frame: UnbuiltFrame, now: Time, port: int = 0) -> None:
        """Queue a frame whose bytes were not made, as `receive` does."""
        if self.observe is not None:
            self.observe(port, False, frame.build(), now)
        key = frame.flow_key
        known = self.router.known.get(key)
        if known is None:
            known = self._classify(headers_of(key), key, now)
            if known is None:
                self._ports[port].counters.dropped["no route"] += 1
                return
        self._queue(frame, frame.size + self._overhead, known, now, port)

    def _queue(
        self,
        frame: Frame | UnbuiltFrame,
        size: int,
        known: tuple[int, int],
        now: Time,
        port: int,
    ) -> None:
        """Queue a frame with known output port and priority, or drop it."""
        source = self._ports[port]
        out, lane = known
        target = self._ports[out]
        if not target.is_up:
            source.counters.dropped["link down"] += 1
            return
        if target.stormed >> lane & 1:
            target.counters.discarded["watchdog"] += 1
            return
        account = source.accounts[lane]
        if not self._buffer.admit(account, size):
            source.counters.dropped["buffer full"] += 1
            return
        if (
            account.is_lossless
            and not source.paused >> lane & 1
            and self._buffer.must_pause(account)
        ):
            self._pause(port, lane, now)
        if lane in self._remarks:
            built = frame.build() if isinstance(frame, UnbuiltFrame) else frame
            frame = self._remarks[lane].apply(built)
        ramp = target.ramps[lane]
        if ramp is not None and ramp.at_enqueue:
            frame = self._marked(frame, target, lane, ramp, now)
        queue = target.queues[lane]
        if not queue:
            target.first_sizes[lane] = size
            target.waiting |= 1 << lane
        queue.append((frame, size, port))
        queued = target.queued[lane] = target.queued[lane] + size
        if queued > target.counters.largest_queue[lane]:
            target.counters.largest_queue[lane] = queued
        self.ready_ports.append(out)

    def way_of(self, frame: Frame, now: Time) -> tuple[int, int] | None:
        """Output port and priority of a frame; `None` for one that has no way."""
        return self.router.known.get(flow_key(frame)) or self._classify(frame, flow_key(frame), now)

    def is_idle(self, port: int) -> bool:
        """Whether nothing waits at a port that works."""
        target = self._ports[port]
        return target.is_up and not target.waiting and not target.announce

    def _classify(self, frame: Frame, key: bytes, now: Time) -> tuple[int, int] | None:
        """Output port and priority of a frame; `None` for one that has no way."""
        out = self.router.port(frame, now)
        if out is None or len(frame) < _HEADER:
            return None
        found = out, self._classifier.priority(frame)
        if self.router.keeps(frame):
            known = self.router.known
            if len(known) >= self.LIMIT_FLOWS:
                known.clear()
            known[key] = found
        return found

    def poll_transmit(self, now: Time, port: int = 0, grant: Grant = OPEN) -> Frame | None:
        """The next frame of a port: a PFC frame first, then by priority and weight."""
        frame = self.poll_unbuilt(now, port, grant)
        return frame.build() if isinstance(frame, UnbuiltFrame) else frame

    def poll_unbuilt(
        self, now: Time, port: int = 0, grant: Grant = OPEN
    ) -> Frame | UnbuiltFrame | None:
        """As `poll_transmit`, but a frame that has come unbuilt leaves so."""
        target = self._ports[port]
        if target.announce:
            times, target.announce = target.announce, {}
            if target.waiting:
                self.ready_ports.append(port)
            return self._sent(pfc_frame(self._mac + port, times), port, now)
        waiting = target.waiting
        if not waiting:
            return None
        if target.watches:
            grant = self._watched(target, port, grant, now)
        lane = target.scheduler.pick(target.first_sizes, grant, waiting)
        if lane < 0:
            return None
        queue = target.queues[lane]
        frame, size, came_by = queue.popleft()
        if queue:
            target.first_sizes[lane] = queue[0][1]
        else:
            target.first_sizes[lane] = 0
            waiting = target.waiting = waiting & ~(1 << lane)
        if waiting:
            self.ready_ports.append(port)
        target.queued[lane] -= size
        ramp = target.ramps[lane]
        if ramp is not None and not ramp.at_enqueue:
            frame = self._marked(frame, target, lane, ramp, now)
        if self._has_telemetry:
            frame = _with_hop(frame, target, now)
            target.sent += size
        self._release(came_by, lane, size)
        if lane in target.watches:
            target.watches[lane].sent()
        counters = target.counters
        counters.sent[lane] += 1
        counters.sent_bytes[lane] += size - self._overhead
        return frame if self.observe is None else self._sent(frame, port, now)

    def _sent(self, frame: Frame | UnbuiltFrame, port: int, now: Time) -> Frame | UnbuiltFrame:
        """A frame that leaves, reported to whoever observes the switch."""
        if self.observe is not None:
            frame = frame.build() if isinstance(frame, UnbuiltFrame) else frame
            self.observe(port, True, frame, now)
        return frame

    def link_down(self, port: int) -> None:
        """The link of a port has failed: what waits there is dropped, and its pauses end."""
        target = self._ports[port]
        target.is_up = False
        target.paused = 0
        target.announce.clear()
        self.router.withdraw(port)
        for lane in range(LANES):
            self._discard(target, lane, "link down")

    def link_up(self, port: int) -> None:
        """The link of a port works again; `router` does not use it until its table says so."""
        self._ports[port].is_up = True

    def poll_timeout(self) -> Time | None:
        """When a pause has to be repeated, or the watchdog looks at a queue."""
        due = self._refreshes[0][0] if self._refreshes else None
        if self._polls and (due is None or self._polls[0][0] < due):
            return self._polls[0][0]
        return due

    def handle_timeout(self, now: Time) -> None:
        """Repeat the pauses that would run out, and look for storms."""
        while self._refreshes and self._refreshes[0][0] <= now:
            due, port, lane = heapq.heappop(self._refreshes)
            source = self._ports[port]
            # An entry of an earlier pause has another time.
            if source.paused >> lane & 1 and source.refresh_at[lane] == due:
                self._announce(port, lane, now)
        while self._polls and self._polls[0][0] <= now:
            due, port, lane = heapq.heappop(self._polls)
            if self._ports[port].watches[lane].due == due:
                self._look_for_storm(port, lane, now)

    def watch(self, port: int, priority: int) -> QueueWatch | None:
        """The watchdog of a queue."""
        return self._ports[port].watches.get(priority)

    def waiting_by_source(self, port: int, priority: int) -> Counter[int]:
        """Frames that wait at a port, by the port by which they came."""
        return Counter(came_by for _, _, came_by in self._ports[port].queues[priority])

    def _watched(self, target: _Port, port: int, grant: Grant, now: Time) -> Grant:
        """What may be sent from queues with a watchdog, which learn here that they are blocked."""
        target.grant = grant
        ignored = 0
        for lane, watch in target.watches.items():
            size = target.first_sizes[lane]
            if not size or grant.allows(lane, size):
                continue
            if watch.is_stormed:
                ignored |= 1 << lane
            elif watch.blocked_since is None:
                watch.blocked(now)
                assert watch.due is not None
                heapq.heappush(self._polls, (watch.due, port, lane))
        if ignored and self._watchdog is not None and self._watchdog.action is Action.FORWARD:
            return _Ignoring(grant, ignored)
        return grant

    def _look_for_storm(self, port: int, lane: int, now: Time) -> None:
        target = self._ports[port]
        watch, grant = target.watches[lane], target.grant
        pauses = grant.pauses[lane] if isinstance(grant, PauseGrant) else 0
        watch.poll(
            now,
            has_frames=bool(target.queues[lane]),
            is_paused=not grant.allows(lane, 1),
            pauses=pauses,
        )
        if self._watchdog is not None and self._watchdog.action is Action.DROP:
            target.stormed &= ~(1 << lane)
            if watch.is_stormed:
                target.stormed |= 1 << lane
                self._discard(target, lane, "watchdog")
        if watch.due is not None:
            heapq.heappush(self._polls, (watch.due, port, lane))
        self.ready_ports.append(port)

    def _discard(self, target: _Port, lane: int, reason: str) -> None:
        """Drop all frames of a queue."""
        queue = target.queues[lane]
        if not queue:
            return
        target.counters.discarded[reason] += len(queue)
        for _, size, came_by in queue:
            self._release(came_by, lane, size)
        queue.clear()
        target.waiting &= ~(1 << lane)
        target.queued[lane] = target.first_sizes[lane] = 0

    def _release(self, port: int, lane: int, size: int) -> None:
        """Give back the bytes of a frame that came by a port; its sender may go on by that."""
        source = self._ports[port]
        account = source.accounts[lane]
        self._buffer.release(account, size)
        if source.paused >> lane & 1 and self._buffer.may_resume(account):
            source.paused &= ~(1 << lane)
            source.announce[lane] = 0
            source.counters.resumes_sent[lane] += 1
            self.ready_ports.append(port)

    def _pause(self, port: int, lane: int, now: Time) -> None:
        source = self._ports[port]
        source.paused |= 1 << lane
        source.counters.pauses_sent[lane] += 1
        if source.counters.first_pause is None:
            source.counters.first_pause = now
        self._announce(port, lane, now)

    def _announce(self, port: int, lane: int, now: Time) -> None:
        source = self._ports[port]
        source.announce[lane] = self._quanta
        self.ready_ports.append(port)
        due = source.refresh_at[lane] = now + source.pause_time // 2
        heapq.heappush(self._refreshes, (due, port, lane))

    def _marked(
        self, frame: Frame | UnbuiltFrame, target: _Port, lane: int, ramp: Ramp, now: Time
    ) -> Frame | UnbuiltFrame:
        if target.queued[lane] <= ramp.minimum:  # nearly always
            return frame
        if not ramp.hits(target.queued[lane], self._draw):
            return frame
        marked: Frame | UnbuiltFrame | None = frame
        if isinstance(frame, UnbuiltFrame):
            if not frame.mark():
                return frame
        else:
            marked = mark_ce(frame)
        if marked is None:
            return frame
        target.counters.marked[lane] += 1
        if target.counters.first_mark is None:
            target.counters.first_mark = now
        return marked


class _Ignoring:
    """A grant with priorities whose pause is ignored, as bits."""

    def __init__(self, grant: Grant, ignored: int) -> None:
        self._grant = grant
        self._ignored = ignored

    def allows(self, lane: int, size: int) -> bool:
        return bool(self._ignored >> lane & 1) or self._grant.allows(lane, size)


def _with_hop(frame: Frame | UnbuiltFrame, port: _Port, now: Time) -> Frame | UnbuiltFrame:
    """The frame with a hop in its record, if it has one."""
    queued = sum(port.queued)
    if not isinstance(frame, UnbuiltFrame):
        return telemetry.write_hop(
            frame, now=now, sent=port.sent, queued=queued, rate_bps=port.rate_bps
        )
    if len(frame.trailer) == telemetry.SIZE:
        record = telemetry.add_hop(
            frame.trailer, now=now, sent=port.sent, queued=queued, rate_bps=port.rate_bps
        )
        frame.replace_trailer(record)
    return frame


def _account(rule: PriorityRules) -> Account:
    return Account(
        reserve=rule.reserve,
        headroom=rule.headroom if rule.is_lossless else 0,
        alpha=rule.alpha,
        is_lossless=rule.is_lossless,
        resume_offset=rule.resume_offset,
    )


_HEADER = 14
