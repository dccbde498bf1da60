"""A switch with a shared buffer, priorities, pause frames and ECN marks, as a `Node`.

A frame that has arrived whole gets a priority and an output port, and its bytes are charged
to its input port in the shared buffer. Where that account reaches its threshold, a lossless
priority sends a PFC frame back, and a lossy one drops. At the output port frames wait by
priority; when one leaves, it may be marked, and its input port may be allowed to go on.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from ibwire.base import telemetry
from ibwire.base.errors import EncodeError
from ibwire.base.node import OPEN, DamagedFrame, Frame, Grant
from ibwire.base.unbuilt import UnbuiltFrame, headers_of
from ibwire.base.units import Time
from ibwire.fabric.pause import LANES, LONGEST, PauseGrant, pause_frame, pfc_frame
from ibwire.fabric.switch.buffer import SharedBuffer
from ibwire.fabric.switch.classes import Classifier, Remark
from ibwire.fabric.switch.marking import Ramp
from ibwire.fabric.switch.port import Lane, Port, PortCounters, PortSettings
from ibwire.fabric.switch.routing import Router, flow_key
from ibwire.fabric.switch.scheduling import Scheduler
from ibwire.fabric.switch.watchdog import Action, QueueWatch, Watchdog
from ibwire.impair.stages import mark_ce

FCS = 4
"""Bytes of the frame check sequence, which frames here do not have but buffers keep."""


class Switch:
    """A switch; by itself it stores and forwards (`CutThrough`).

    ports: numbered from 0. router: which of them leads where. buffer: bytes of all together.
    strict, weights: how the priorities of a port share it (`Scheduler`).
    pause_quanta: of each PFC frame; a pause that has to last is repeated after half of it.
    overhead: bytes that a frame takes in the buffer besides its own. watchdog: for queues that a
    neighbour pauses for too long. pauses_port: whether its pauses are of IEEE 802.3x, for all
    priorities of the neighbour, and not of PFC. has_telemetry: whether it writes into packets that
    have room for it (`ibwire.base.telemetry`). remarks: what it writes into frames, by priority.
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
        pauses_port: bool = False,
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
        self._pauses_port = pauses_port
        self._has_telemetry = has_telemetry
        self._remarks = dict(remarks or {})
        self._draw = draw or random.Random(name)
        self._ports = tuple(
            [Port(each, Scheduler(strict, weights), pause_quanta, watchdog) for each in ports]
        )
        self._watchdog = watchdog
        self._buffer = SharedBuffer(
            buffer, (lane.account for port in self._ports for lane in port.lanes)
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
        return sum(port.queued for port in self._ports)

    def queued(self, port: int, priority: int | None = None) -> int:
        """Bytes that wait at a port, of one priority or of all."""
        found = self._ports[port]
        return found.queued if priority is None else found.lanes[priority].queued

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
            target.counters.discarded["link down"] += 1
            return
        if target.stormed >> lane & 1:
            target.counters.discarded["watchdog"] += 1
            return
        leaving = target.lanes[lane]
        limit = leaving.egress_alpha
        if limit is not None and not self._buffer.has_room_for(leaving.queued + size, limit):
            target.counters.discarded["queue full"] += 1
            return
        account = source.lanes[lane].account
        if not self._buffer.admit(account, size):
            source.counters.dropped["buffer full"] += 1
            return
        if (
            account.is_lossless
            and not source.paused >> lane & 1
            and self._buffer.must_pause(account)
        ):
            self._pause(port, lane, now)
        if self._remarks and lane in self._remarks:
            built = frame.build() if isinstance(frame, UnbuiltFrame) else frame
            frame = self._remarks[lane].apply(built)
        ramp = leaving.ramp
        if ramp is not None and ramp.at_enqueue:
            frame = self._marked(frame, target, leaving, ramp, now)
        if not target.waiting >> lane & 1:
            target.first_sizes[lane] = size
            target.waiting |= 1 << lane
        leaving.queue.append((frame, size, port))
        queued = leaving.queued = leaving.queued + size
        if queued > leaving.largest_queue:  # a call of max would cost more
            leaving.largest_queue = queued
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
            if self._pauses_port:
                pause = pause_frame(self._mac + port, self._quanta if target.paused else 0)
            else:
                pause = pfc_frame(self._mac + port, times)
            return self._sent(pause, port, now)
        waiting = target.waiting
        if not waiting:
            return None
        blocked = grant.paused if isinstance(grant, PauseGrant) else _blocked(grant, target)
        if target.has_watches:
            blocked = self._watched(target, port, grant, blocked, now)
        number = target.scheduler.pick(target.first_sizes, blocked, waiting)
        if number < 0:
            return None
        lane = target.lanes[number]
        queue = lane.queue
        frame, size, came_by = queue.popleft()
        if queue:
            target.first_sizes[number] = queue[0][1]
        else:
            target.first_sizes[number] = 0
            waiting = target.waiting = waiting & ~(1 << number)
        if waiting:
            self.ready_ports.append(port)
        lane.queued -= size
        ramp = lane.ramp
        if ramp is not None and not ramp.at_enqueue:
            frame = self._marked(frame, target, lane, ramp, now)
        if self._has_telemetry:
            frame = _with_hop(frame, target, now)
            target.sent += size
        self._release(came_by, number, size)
        if lane.watch is not None:
            lane.watch.sent()
        lane.sent += 1
        lane.sent_bytes += size - self._overhead
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
            if source.paused >> lane & 1 and source.lanes[lane].refresh_at == due:
                self._announce(port, lane, now)
        while self._polls and self._polls[0][0] <= now:
            due, port, lane = heapq.heappop(self._polls)
            watch = self._ports[port].lanes[lane].watch
            if watch is not None and watch.due == due:
                self._look_for_storm(port, lane, watch, now)

    def watch(self, port: int, priority: int) -> QueueWatch | None:
        """The watchdog of a queue."""
        return self._ports[port].lanes[priority].watch

    def waiting_by_source(self, port: int, priority: int) -> Counter[int]:
        """Frames that wait at a port, by the port by which they came."""
        return Counter(came_by for _, _, came_by in self._ports[port].lanes[priority].queue)

    def _watched(self, target: Port, port: int, grant: Grant, blocked: int, now: Time) -> int:
        """Tell queues with a watchdog that they are blocked; the priorities that stay so, as bits.

        blocked: those that the grant does not allow.
        """
        target.grant = grant
        forwards = self._watchdog is not None and self._watchdog.action is Action.FORWARD
        for number, lane in enumerate(target.lanes):
            watch = lane.watch
            if watch is None or not target.waiting & blocked & 1 << number:
                continue
            if watch.is_stormed:
                if forwards:
                    blocked &= ~(1 << number)
            elif watch.blocked_since is None:
                watch.blocked(now)
                assert watch.due is not None
                heapq.heappush(self._polls, (watch.due, port, number))
        return blocked

    def _look_for_storm(self, port: int, lane: int, watch: QueueWatch, now: Time) -> None:
        target = self._ports[port]
        grant = target.grant
        pauses = grant.pauses[lane] if isinstance(grant, PauseGrant) else 0
        watch.poll(
            now,
            has_frames=bool(target.waiting >> lane & 1),
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

    def _discard(self, target: Port, number: int, reason: str) -> None:
        """Drop all frames of a queue."""
        lane = target.lanes[number]
        if not lane.queue:
            return
        target.counters.discarded[reason] += len(lane.queue)
        for _, size, came_by in lane.queue:
            self._release(came_by, number, size)
        lane.queue.clear()
        target.waiting &= ~(1 << number)
        lane.queued = target.first_sizes[number] = 0

    def _release(self, port: int, lane: int, size: int) -> None:
        """Give back the bytes of a frame that came by a port; its sender may go on by that."""
        source = self._ports[port]
        account = source.lanes[lane].account
        self._buffer.release(account, size)
        if source.paused >> lane & 1 and self._buffer.may_resume(account):
            source.paused &= ~(1 << lane)
            source.announce[lane] = 0
            source.lanes[lane].resumes_sent += 1
            self.ready_ports.append(port)

    def _pause(self, port: int, lane: int, now: Time) -> None:
        source = self._ports[port]
        source.paused |= 1 << lane
        source.lanes[lane].pauses_sent += 1
        if source.counters.first_pause is None:
            source.counters.first_pause = now
        self._announce(port, lane, now)

    def _announce(self, port: int, lane: int, now: Time) -> None:
        source = self._ports[port]
        source.announce[lane] = self._quanta
        self.ready_ports.append(port)
        due = source.lanes[lane].refresh_at = now + source.pause_time // 2
        heapq.heappush(self._refreshes, (due, port, lane))

    def _marked(
        self, frame: Frame | UnbuiltFrame, target: Port, lane: Lane, ramp: Ramp, now: Time
    ) -> Frame | UnbuiltFrame:
        if lane.queued <= ramp.minimum:  # nearly always
            return frame
        if not ramp.hits(lane.queued, self._draw):
            return frame
        marked: Frame | UnbuiltFrame | None = frame
        if isinstance(frame, UnbuiltFrame):
            if not frame.mark():
                return frame
        else:
            marked = mark_ce(frame)
        if marked is None:
            return frame
        lane.marked += 1
        if target.counters.first_mark is None:
            target.counters.first_mark = now
        return marked


def _blocked(grant: Grant, port: Port) -> int:
    """The priorities that may not send their first frame, as bits."""
    if grant is OPEN:
        return 0
    sizes = port.first_sizes
    return sum(
        1 << lane for lane in range(LANES) if sizes[lane] and not grant.allows(lane, sizes[lane])
    )


def _with_hop(frame: Frame | UnbuiltFrame, port: Port, now: Time) -> Frame | UnbuiltFrame:
    """The frame with a hop in its record, if it has one."""
    queued = port.queued
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


_HEADER = 14
