"""A device: queue pairs behind one port, as a `Node` of a network.

It finds the queue pair of each frame, drops damaged and misdirected frames, and polls
the queue pairs that have something to send in turn. In its turn a queue pair sends up to
`Profile.burst_packets` packets; priorities take turns packet by packet. The cost of a packet does
not depend on the number of queue pairs: idle ones are not polled.
"""

from __future__ import annotations

import errno
import heapq
import ipaddress
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Final

from ibwire.base import telemetry
from ibwire.base.errors import VerbsError
from ibwire.base.node import OPEN, Frame, Grant
from ibwire.base.run import FrameRun
from ibwire.base.unbuilt import UnbuiltFrame
from ibwire.base.units import ETHERNET_OVERHEAD, Time
from ibwire.rc import sack
from ibwire.rc.attributes import AddressVector, AsyncEvent, QPType
from ibwire.rc.congestion.notification import NotificationPoint
from ibwire.rc.congestion.rate import RateControl
from ibwire.rc.congestion.window import PathWindow
from ibwire.rc.cq import CompletionChannel, CompletionQueue
from ibwire.rc.habits import habits_of
from ibwire.rc.limits import DeviceLimits
from ibwire.rc.memory import KeyTable, ProtectionDomain
from ibwire.rc.packet import FORMS, TransportPacket, decode
from ibwire.rc.path import (
    V4_MAPPED,
    Arrival,
    Arrivals,
    Headers,
    Path,
    ethernet_route,
    ib_route,
    icrc_fits,
    is_v4,
    run_data,
)
from ibwire.rc.profile import PROFILES, SPEC, Profile, SourcePort
from ibwire.rc.qp import QPInit, QueuePair
from ibwire.rc.run import PacketRun
from ibwire.rc.srq import SharedReceiveQueue
from ibwire.rc.xrc import XRCDomain
from ibwire_layers.opcodes import OpCode, Service
from ibwire_layers.outer import LinkType
from ibwire_layers.packet import Route

MULTICAST_QPN = 0xFFFFFF

CNP_FORM = FORMS[OpCode.CNP]
_UD: Final = Service.UD
ECT_0 = 2
"""The ECN field of CNPs (RFC 3168 5; a ConnectX sets it: docs/reference/wire-formats.md#cnp)."""

MAXIMUM_ARRIVALS = 1 << 15
"""Flows whose headers a device keeps, of frames that are not built."""

MAXIMUM_ROUTES = 1024
"""Routes and datagram paths that a device caches."""


class CongestionEvent:
    """A queue pair has received a CNP (`cnp`) or a CE-marked packet (`ce`)."""

    __slots__ = ("kind", "qp", "time")

    def __init__(self, qp: QueuePair, kind: str, time: Time) -> None:
        self.qp = qp
        self.kind = kind
        self.time = time


class Device:
    """An RDMA adapter with one port.

    address: the port's IPv4 or IPv6 addresses, first GIDs first; for a native
    InfiniBand port its GIDs. mac: `None` for the one that `mac_of` gives.
    profile: how it behaves, itself or by name. link: `rocev2`, `rocev1` or `ib`.
    vlan: VLAN ID of all its frames. lid: of a native InfiniBand port. rate_control: makes the
    congestion control of each queue pair. notification: sends CNPs for packets with a CE mark.
    arrivals: headers that were read before, of devices with the same `link`.
    """

    LIMIT_EVENTS = 4096
    """Congestion events kept until they are polled; the oldest are dropped first."""

    def __init__(  # long: one attribute a line
        self,
        name: str = "ibwire0",
        address: str | Sequence[str] = "10.0.0.1",
        *,
        mac: bytes | None = None,
        profile: Profile | str = SPEC,
        link: str = "rocev2",
        vlan: int | None = None,
        lid: int = 1,
        limits: DeviceLimits | None = None,
        first_qpn: int = 0x11,
        key_start: int = 0,
        rate_control: Callable[[], RateControl] | None = None,
        notification: NotificationPoint | None = None,
        arrivals: Arrivals | None = None,
    ) -> None:
        _check_names(profile, link)
        self.name = name
        self.profile = PROFILES[profile] if isinstance(profile, str) else profile
        if self.profile.burst_packets < 1:
            raise VerbsError(
                errno.EINVAL, f"burst_packets {self.profile.burst_packets}, not 1 or more"
            )
        self.habits = habits_of(self.profile)
        self.link = link
        self.vlan = vlan
        self.lid = lid
        self.limits = limits or DeviceLimits()
        addresses = [address] if isinstance(address, str) else list(address)
        self.gids = [gid_of(each) for each in addresses]
        self.mac = mac_of(self.gids[0]) if mac is None else mac
        self.neighbours: dict[int, bytes] = {}
        """MAC by GID; for any other GID `mac_of` applies."""
        self.pkeys = [0xFFFF]
        self.rate_control = rate_control
        self.notification = notification and notification.with_scope(self.profile.cnp_scope)
        self.keys = KeyTable(
            key_start,
            bounds_windows=self.profile.bounds_windows,
            frees_again=self.profile.frees_windows_again,
        )
        self.reserved_pd = ProtectionDomain(self.keys)
        self.qps: dict[int, QueuePair] = {}
        self.srqs: dict[int, SharedReceiveQueue] = {}
        self.multicast: dict[int, list[QueuePair]] = {}
        """Queue pairs by the multicast GID they are attached to."""
        self.counters: Counter[str] = Counter()
        self.on_bad_key: Callable[[bool], None] | None = None
        """Called when a queue pair drops a packet by its Q_Key (`True`) or its P_Key (`False`)."""
        self.ready_ports: list[int] = []
        """Holds 0 where it may have a frame to send; a driver that polls always may ignore it."""
        self.events: deque[AsyncEvent] = deque()
        self.congestion: deque[CongestionEvent] = deque(maxlen=self.LIMIT_EVENTS)
        self._own = {*self.gids, lid} if link == "ib" else set(self.gids)
        self._largest = self.limits.port_mtu + 128
        """Bytes of the largest frame, with all headers."""
        if arrivals is None:
            arrivals = Arrivals(LinkType.INFINIBAND if link == "ib" else LinkType.ETHERNET)
        self._arrivals = arrivals
        self._unbuilt_arrivals: dict[bytes, Arrival] = {}
        """Those to this device by `flow_key`; only lengths, checksum and identification differ
        between frames."""
        self._lanes: dict[int, deque[QueuePair]] = {}
        """Queue pairs that may have something to send, by priority; the first has its turn."""
        self._burst = self.profile.burst_packets
        self._turns: list[tuple[int, deque[QueuePair]]] = []
        """The same: whose turn it is."""
        self._timers: list[tuple[Time, int, QueuePair]] = []
        self._timer_number = 0
        self._cnps: dict[int, deque[TransportPacket]] = {}
        """CNPs that wait, by priority; none of them is empty."""
        self._paced: list[tuple[Time, int, QueuePair]] = []
        """When queue pairs may send again that their congestion control holds back."""
        self._next_qpn = first_qpn
        self._next_srq = 1
        self._windows: dict[int, PathWindow] = {}
        self._headers: dict[tuple[AddressVector, bytes], Headers] = {}
        self._cnp_paths: dict[int, tuple[AddressVector, Path]] = {}
        """By number of a queue pair: its address, and the path of CNPs to there."""
        self._datagram_paths: dict[tuple[AddressVector, int], Path] = {}

    # Objects.

    def alloc_pd(self) -> ProtectionDomain:
        """A new protection domain."""
        return ProtectionDomain(self.keys)

    def create_channel(self) -> CompletionChannel:
        """A new completion channel."""
        return CompletionChannel()

    def create_cq(self, cqe: int, channel: CompletionChannel | None = None) -> CompletionQueue:
        """A new completion queue for `cqe` completions; EINVAL for too many."""
        if cqe > self.limits.max_cqe:
            raise VerbsError(errno.EINVAL, f"{cqe} completions, at most {self.limits.max_cqe}")
        return CompletionQueue(self.emit, cqe, channel)

    def open_xrc_domain(self) -> XRCDomain:
        """A new XRC domain."""
        return XRCDomain()

    def create_srq(
        self,
        pd: ProtectionDomain,
        *,
        max_wr: int = 128,
        max_sge: int = 16,
        limit: int = 0,
        xrc_domain: XRCDomain | None = None,
        cq: CompletionQueue | None = None,
    ) -> SharedReceiveQueue:
        """A new shared receive queue; with a domain and a CQ, one for XRC."""
        if max_wr > self.limits.max_srq_wr or max_sge > self.limits.max_sge:
            raise VerbsError(errno.EINVAL, f"an SRQ of {max_wr} requests of {max_sge} SGEs")
        if xrc_domain is not None:
            xrc_domain.attach()
        number = self._next_srq
        try:
            srq = SharedReceiveQueue(
                self.emit,
                pd,
                max_wr=max_wr,
                max_sge=max_sge,
                limit=limit,
                number=number,
                xrc_domain=xrc_domain,
                cq=cq,
                on_close=self._forget_srq,
            )
        except VerbsError:
            if xrc_domain is not None:
                xrc_domain.detach()
            raise
        self._next_srq += 1
        self.srqs[number] = srq
        return srq

    def create_qp(self, init: QPInit, number: int | None = None) -> QueuePair:
        """A new queue pair in RESET; `number` sets its QPN (EBUSY if it is taken)."""
        cap = init.cap
        limits = self.limits
        if max(cap.max_send_wr, cap.max_recv_wr) > limits.max_qp_wr:
            raise VerbsError(
                errno.EINVAL, f"a queue pair for more than {limits.max_qp_wr} requests"
            )
        if max(cap.max_send_sge, cap.max_recv_sge) > limits.max_sge:
            raise VerbsError(errno.EINVAL, f"more than {limits.max_sge} SGEs a request")
        if cap.max_inline_data > limits.max_inline_data:
            raise VerbsError(errno.EINVAL, f"more than {limits.max_inline_data} bytes inline")
        if init.pd is None and init.qp_type is not QPType.XRC_RECV:
            raise VerbsError(errno.EINVAL, "a queue pair needs a protection domain")
        if init.pd is not None and init.pd.keys is not self.keys:
            raise VerbsError(errno.EINVAL, "the protection domain belongs to another device")
        if init.send_cq is None and init.qp_type is not QPType.XRC_RECV:
            raise VerbsError(errno.EINVAL, "a queue pair needs a completion queue for sends")
        if init.qp_type is QPType.XRC_RECV and init.xrc_domain is None:
            raise VerbsError(errno.EINVAL, "an XRC_RECV queue pair needs an XRC domain")
        if len(self.qps) >= limits.max_qp:
            raise VerbsError(errno.ENOMEM, f"{limits.max_qp} queue pairs exist already")
        if number is None:
            number = self._free_qpn()
        elif number in self.qps or not 0 <= number < MULTICAST_QPN:
            raise VerbsError(errno.EBUSY, f"QP number {number:#x} is taken")
        _attach(init)
        qp = self.qps[number] = QueuePair(self, number, init)
        return qp

    def _free_qpn(self) -> int:
        while self._next_qpn in self.qps:
            self._next_qpn += 1
        number = self._next_qpn
        self._next_qpn = number + 1 if number + 1 < MULTICAST_QPN else 2
        return number

    def _forget_srq(self, srq: SharedReceiveQueue) -> None:
        del self.srqs[srq.number]
        if isinstance(srq.xrc_domain, XRCDomain):
            srq.xrc_domain.detach()

    def forget_qp(self, qp: QueuePair) -> None:
        """Remove a closed queue pair."""
        del self.qps[qp.number]
        for listeners in self.multicast.values():
            if qp in listeners:
                listeners.remove(qp)
        for user in (qp.send_cq, qp.recv_cq, qp.receives.srq):
            if user is not None:
                user.detach()
        if qp.pd is not self.reserved_pd:
            qp.pd.detach()
        if qp.xrc_domain is not None:
            qp.xrc_domain.detach()

    def poll_event(self) -> AsyncEvent | None:
        """The next asynchronous event, or `None`."""
        return self.events.popleft() if self.events else None

    # As a node.

    def receive_unbuilt(self, packet: UnbuiltFrame, now: Time, port: int = 0) -> None:
        """Process a received frame whose bytes were not made, as `receive` does."""
        arrival = self._unbuilt_arrivals.get(packet.flow_key)
        if arrival is None:
            arrival = self._arrivals.read(packet.build())
            if arrival is None:
                self.counters["not_for_rdma"] += 1
                return
            if arrival.destination not in self._own:
                self.receive(packet.build(), now)
                return
            if len(self._unbuilt_arrivals) >= MAXIMUM_ARRIVALS:
                self._unbuilt_arrivals.clear()
            self._unbuilt_arrivals[packet.flow_key] = arrival
        qp = self.qps.get(packet.dest_qp) if isinstance(packet, TransportPacket) else None
        if qp is None:
            self.receive(packet.build(), now)
            return
        assert isinstance(packet, TransportPacket)
        packet.arrival = arrival
        packet.pad_count = -len(packet.payload) & 3
        if packet.trailer:
            self._read_trailer(packet, qp)
        qp.handle_packet(packet, now)
        if qp.scheduled:
            self.note_timer(qp)

    def _read_trailer(self, packet: TransportPacket, qp: QueuePair) -> None:
        """Look at what follows a received packet."""
        if len(packet.trailer) not in _TRAILERS:
            packet.trailer = b""
            return
        is_new = not packet.form.is_response and not telemetry.is_echoed(packet.trailer)
        if is_new and len(packet.trailer) == telemetry.SIZE:
            qp.telemetry = packet.trailer

    def receive(self, frame: Frame, now: Time, port: int = 0) -> None:
        """Process a received frame."""
        arrival = self._arrivals.read(frame)
        if arrival is None:
            self.counters["not_for_rdma"] += 1
            return
        if not icrc_fits(frame, arrival):
            self.counters["bad_icrc"] += 1
            return
        if arrival.destination not in self._own and arrival.destination not in self.multicast:
            self.counters["not_our_address"] += 1
            return
        packet = decode(frame, arrival.size, arrival.end - 4)
        if packet is None:
            self.counters["malformed"] += 1
            return
        packet.arrival = arrival
        qp = self.qps.get(packet.dest_qp)
        if qp is None:
            self._receive_other(packet.dest_qp, frame, now)
            return
        if len(frame) != arrival.end and self.link != "ib":
            packet.trailer = frame[arrival.end :]
            self._read_trailer(packet, qp)
        qp.handle_packet(packet, now)
        if qp.scheduled:
            self.note_timer(qp)

    def poll_transmit(self, now: Time, port: int = 0, grant: Grant = OPEN) -> Frame | None:
        """The next frame to send: CNPs first, then lanes and queue pairs in turn."""
        packet = self._poll_packet(now, grant)
        return None if packet is None else packet.build()

    def poll_unbuilt(
        self, now: Time, port: int = 0, grant: Grant = OPEN
    ) -> Frame | UnbuiltFrame | None:
        """The next frame, not built yet if it is a packet of a connection over plain IPv4."""
        packet = self._poll_packet(now, grant)
        if packet is None or (packet.flow_key and packet.form.service is not _UD):
            return packet
        return packet.build()

    def extend_run(self, packet: UnbuiltFrame) -> FrameRun | None:
        """The run that a frame just polled begins, within a turn of its queue pair: `FrameRun`."""
        active = self._senders()
        if active is None or not isinstance(packet, TransportPacket):
            return None
        qp = active[0]
        if packet.path is not qp.path:
            return None  # its turn is over
        run = qp.extend(packet, self._left_in_turn(active))
        if run is not None:
            self._count_in_turn(active, run.count - 1)
        return run

    def resume_run(self, run: FrameRun) -> int:
        """Let a run go on whose frames have left; how many more; see `FrameRun`."""
        assert isinstance(run, PacketRun)
        active = self._senders()
        if active is None or active[0].number != run.sender:
            return 0
        count = active[0].resume(run, self._left_in_turn(active))
        if count:
            self._count_in_turn(active, count)
        return count

    def _senders(self) -> deque[QueuePair] | None:
        """The queue pairs that may have something to send, if of one priority and no CNP waits."""
        if self._cnps:
            return None
        found: deque[QueuePair] | None = None
        for active in self._lanes.values():
            if active:
                if found is not None:
                    return None
                found = active
        return found

    def _left_in_turn(self, active: deque[QueuePair]) -> int:
        """Packets that the first of these queue pairs may send before the next one does."""
        return _NO_LIMIT if len(active) == 1 else self._burst - active[0].sent_in_turn

    def _count_in_turn(self, active: deque[QueuePair], count: int) -> None:
        """Count packets that the first of these queue pairs sends, as one by one."""
        qp = active[0]
        qp.sent_in_turn = (qp.sent_in_turn + count) % self._burst
        if not qp.sent_in_turn:
            active.rotate(-1)

    def take_back(self, run: FrameRun, count: int) -> None:
        """Take back the last frames of a run, which have not left."""
        assert isinstance(run, PacketRun)
        qp = self.qps.get(run.sender)
        if qp is not None:
            qp.take_back(run, count)
            self._resume_turn(qp, count)
        run.count -= count

    def _resume_turn(self, qp: QueuePair, count: int) -> None:
        """Give packets that have not left back to the turn of their queue pair."""
        if not qp.scheduled:
            return
        active = self._lanes[qp.lane]
        if active[-1] is qp:  # its turn would have ended with the last of them
            active.rotate(1)
        qp.sent_in_turn = (qp.sent_in_turn - count) % self._burst

    def expects_run(self, run: FrameRun, first: int) -> bool:
        """Whether it takes the frames of a run from `first` on without an answer."""
        if not isinstance(run, PacketRun):
            return False
        qp = self.qps.get(run.packet.dest_qp)
        return qp is not None and qp.expects(run.frame(first), run.count - first)

    def overwrites(self, run: FrameRun, first: int, other: FrameRun) -> bool:
        """Whether frames that it expects, from `first` on, change what `other` is read from."""
        assert isinstance(run, PacketRun)
        assert isinstance(other, PacketRun)
        return self.qps[run.packet.dest_qp].overwrites(run, first, other)

    def receive_run(self, run: FrameRun, first: int, last: int, now: Time, port: int = 0) -> None:
        """Process frames of a run whose bytes were not made; `now` is when the last arrived."""
        assert isinstance(run, PacketRun)
        arrival = self._unbuilt_arrivals.get(run.packet.flow_key)
        qp = self.qps.get(run.packet.dest_qp)
        if qp is not None and arrival is not None:
            packet = run.frame(first)
            packet.arrival = arrival
            if qp.take_run(packet, run.data(first, last), last - first, now):
                if qp.scheduled:
                    self.note_timer(qp)
                return
        for index in range(first, last):
            self.receive_unbuilt(run.frame(index), now)

    def receive_frames(self, frames: Sequence[Frame], now: Time, port: int = 0) -> None:
        """Process the frames of a run; `now` is when the last arrived."""
        arrival = self._arrivals.read(frames[0])
        if (
            arrival is not None
            and arrival.end == len(frames[0])
            and arrival.destination in self._own
        ):
            packet = decode(frames[0], arrival.size, arrival.end - 4)
            qp = None if packet is None else self.qps.get(packet.dest_qp)
            if packet is not None and packet.form.continues and qp is not None:
                packet.arrival = arrival
                data = run_data(frames, arrival)
                if data is not None and qp.take_run(packet, data, len(frames), now):
                    if qp.scheduled:
                        self.note_timer(qp)
                    return
        for frame in frames:
            self.receive(frame, now)

    def _poll_packet(self, now: Time, grant: Grant) -> TransportPacket | None:
        """The packet of the next frame, with what `build` needs."""
        if self._cnps and (cnp := self._next_cnp(grant)) is not None:
            if self.has_more:
                self._note_ready()
            return cnp
        turns = self._turns
        for at in range(len(turns)):
            lane, active = turns[at]
            if not active or (grant is not OPEN and not grant.allows(lane, self._largest)):
                continue
            while active:
                qp = active[0]
                packet = qp.poll_transmit(now)
                rate = qp.rate
                if packet is None:
                    active.popleft()
                    qp.scheduled = False
                    self.note_timer(qp)
                    if rate is not None and rate.next_send > now and qp.has_more:
                        self._pace(qp, rate.next_send)
                    continue
                sends = qp.sends
                if not (  # `has_more`, inlined
                    qp.responder.replies or sends.cursor < len(sends.wqes) or sends.resend
                ):
                    active.popleft()
                    qp.scheduled = False
                    self.note_timer(qp)
                else:
                    qp.sent_in_turn += 1
                    if qp.sent_in_turn >= self._burst:
                        qp.sent_in_turn = 0
                        if len(active) > 1:
                            active.rotate(-1)
                    if qp.timer_entry is None:
                        self.note_timer(qp)
                if at + 1 < len(turns):
                    turns.append(turns.pop(at))
                path = packet.path or qp.path
                assert path is not None
                if packet.trailer and self.link == "ib":
                    packet.trailer = b""
                elif qp.telemetry and not packet.trailer and packet.form.has_aeth:
                    packet.trailer = telemetry.echoed(qp.telemetry)
                    qp.telemetry = b""
                size = packet.send_by(path)
                if active and active[0] is not qp:
                    packet.continues = False
                if rate is not None and (packet.payload or not packet.form.is_response):
                    rate.sent(size + ETHERNET_OVERHEAD, now)
                    if len(active) == 1 and qp.scheduled and rate.next_send > now:
                        self._hold_back(qp, active, rate.next_send)
                if active or ((len(turns) > 1 or self._cnps) and self.has_more):
                    self._note_ready()
                return packet
        return None

    def _hold_back(self, qp: QueuePair, active: deque[QueuePair], until: Time) -> None:
        """Ask the only scheduled queue pair of a priority no earlier than it may send again.

        Unless it has acknowledgements to send, or they may change its rate.
        """
        if qp.feedback is None and not qp.responder.replies:
            active.popleft()
            qp.scheduled = False
            self.note_timer(qp)
            self._pace(qp, until)

    @property
    def has_more(self) -> bool:
        """Whether a CNP or a queue pair waits for its turn."""
        if self._cnps:
            return True
        for _, active in self._turns:  # noqa: SIM110 - a generator would cost more
            if active:
                return True
        return False

    def poll_timeout(self) -> Time | None:
        """When to call `handle_timeout` next; may be earlier than needed."""
        if self._paced:
            paced = self._paced[0][0]
            return min(paced, self._timers[0][0]) if self._timers else paced
        return self._timers[0][0] if self._timers else None

    def handle_timeout(self, now: Time) -> None:
        """Handle the timers that are due by `now`."""
        paced = self._paced
        while paced and paced[0][0] <= now:
            until, _, qp = heapq.heappop(paced)
            if qp.paced_until == until:  # otherwise an earlier entry has taken its place
                qp.paced_until = None
                qp.wake()
        timers = self._timers
        while timers and timers[0][0] <= now:
            entry, _, qp = heapq.heappop(timers)
            if qp.timer_entry != entry:
                continue  # an earlier entry has taken its place
            qp.timer_entry = None
            due = qp.poll_timeout()
            if due is not None and due <= now:
                qp.handle_timeout(now)
            self.note_timer(qp)

    # The interface for its queue pairs.

    def schedule(self, qp: QueuePair) -> None:
        """Add a queue pair to those that may have something to send."""
        qp.scheduled = True
        qp.sent_in_turn = 0
        active = self._lanes.get(qp.lane)
        if active is None:
            active = self._lanes[qp.lane] = deque()
            self._turns.append((qp.lane, active))
        active.append(qp)
        if not self.ready_ports:  # `_note_ready`, inlined
            self.ready_ports.append(0)

    def _note_ready(self) -> None:
        if not self.ready_ports:
            self.ready_ports.append(0)

    def change_lane(self, qp: QueuePair) -> None:
        """Move a queue pair to the lane of its address, if it may have something to send."""
        if qp.scheduled:
            for active in self._lanes.values():
                if qp in active:
                    active.remove(qp)
            self.schedule(qp)

    def note_timer(self, qp: QueuePair) -> None:
        """Make sure that a queue pair is called when its timer is due."""
        timers = qp.sends.timers
        due = timers.ack if timers.rnr is None else timers.next_timeout()
        if due is not None and (qp.timer_entry is None or due < qp.timer_entry):
            qp.timer_entry = due
            self._timer_number += 1
            heapq.heappush(self._timers, (due, self._timer_number, qp))
            if len(self._timers) > 2 * len(self.qps) + _MAXIMUM_STALE:
                self._drop_stale_timers()

    def _pace(self, qp: QueuePair, due: Time) -> None:
        """Wake a queue pair that its congestion control holds back, when it may send."""
        if qp.paced_until is None or due < qp.paced_until:
            qp.paced_until = due
            self._timer_number += 1
            heapq.heappush(self._paced, (due, self._timer_number, qp))

    def emit(self, event: AsyncEvent) -> None:
        """Raise an asynchronous event."""
        self.events.append(event)

    def note_congestion(self, qp: QueuePair, kind: str, now: Time) -> None:
        """Record a received CNP or CE mark, and send the CNP that a mark asks for."""
        self.congestion.append(CongestionEvent(qp, kind, now))
        if kind == "ce" and self.notification is not None and qp.service is not _UD:
            peer = qp.attr.ah_attr.dgid
            if self.notification.answers(qp.number, peer, now):
                self._send_cnp(qp, self.notification)

    def _send_cnp(self, qp: QueuePair, settings: NotificationPoint) -> None:
        """Queue a CNP to the peer of a queue pair (docs/reference/wire-formats.md#cnp)."""
        packet = TransportPacket(CNP_FORM, 0)
        packet.pkey, packet.mig_req = self.pkeys[qp.attr.pkey_index], 0
        packet.dest_qp, packet.becn = qp.attr.dest_qp_num, 1
        self._note_ready()
        lane = qp.lane if settings.follows_priority else settings.priority
        packet.send_by(self._cnp_path(qp, settings, lane))
        self._cnps.setdefault(lane, deque()).append(packet)

    def _next_cnp(self, grant: Grant) -> TransportPacket | None:
        """The first CNP of a priority that may be sent; then it is the turn of the others."""
        for lane, waiting in self._cnps.items():
            if grant.allows(lane, self._largest):
                packet = waiting.popleft()
                del self._cnps[lane]
                if waiting:
                    self._cnps[lane] = waiting
                return packet
        return None

    def _cnp_path(self, qp: QueuePair, settings: NotificationPoint, lane: int) -> Path:
        """The path of CNPs to the peer of a queue pair, kept while its address stays."""
        own = qp.attr.ah_attr
        address, path = self._cnp_paths.get(qp.number, (None, None))
        if path is None or address is not own:
            if len(self._cnp_paths) >= MAXIMUM_ROUTES:
                self._cnp_paths.clear()
            dscp = settings.dscp << 2 | ECT_0
            there = replace(own, traffic_class=dscp, sl=lane, udp_source_port=0)
            path = self.path_to(there, qp.number, 0)
            self._cnp_paths[qp.number] = own, path
        return path

    def path_to(self, av: AddressVector, qpn: int, dest_qpn: int) -> Path:
        """The path to an address, for a queue pair (`dest_qpn`) or for datagrams (0)."""
        if dest_qpn:
            return self._make_path(av, qpn, dest_qpn)
        key = av, qpn
        path = self._datagram_paths.get(key)
        if path is None:
            if len(self._datagram_paths) >= MAXIMUM_ROUTES:
                self._datagram_paths.clear()
            path = self._datagram_paths[key] = self._make_path(av, qpn, 0)
        return path

    def ends_of(self, av: AddressVector) -> tuple[int, int]:
        """The local GID and the peer's that received packets must have; LIDs without a GRH."""
        if self.link == "ib" and not av.is_global:
            return self.lid, av.dlid
        return self.gids[av.sgid_index], av.dgid

    def window_towards(self, peer: int) -> PathWindow:
        """The window that queue pairs towards a GID, or a LID, share."""
        window = self._windows.get(peer)
        if window is None:
            if len(self._windows) >= MAXIMUM_ROUTES:
                self._windows.clear()  # queue pairs keep theirs
            window = self._windows[peer] = PathWindow()
        return window

    def _make_path(self, av: AddressVector, qpn: int, dest_qpn: int) -> Path:
        dmac = av.dmac or self.neighbours.get(av.dgid) or mac_of(av.dgid)
        headers = self._headers.get((av, dmac))
        if headers is None:
            if len(self._headers) >= MAXIMUM_ROUTES:
                self._headers.clear()
            headers = self._headers[av, dmac] = Headers(self._route_to(av, dmac))
        if self.link != "rocev2":
            return Path(headers)
        return Path(
            headers,
            source_port=self._source_port(av, qpn, dest_qpn),
            counts_identification=self.profile.counts_identification and is_v4(av.dgid),
        )

    def _route_to(self, av: AddressVector, dmac: bytes) -> Route:
        source = self.gids[av.sgid_index]
        hop_limit = self.profile.route_hop_limit or av.hop_limit
        if self.link == "ib":
            return ib_route(
                source=source,
                destination=av.dgid,
                slid=self.lid | av.src_path_bits,
                dlid=av.dlid,
                sl=av.sl,
                is_global=av.is_global,
                traffic_class=av.traffic_class,
                hop_limit=hop_limit,
                flow_label=av.flow_label,
            )
        return ethernet_route(
            source=source,
            destination=av.dgid,
            source_mac=self.mac,
            destination_mac=dmac,
            source_port=0,
            traffic_class=av.traffic_class,
            hop_limit=hop_limit,
            flow_label=0 if self.link == "rocev2" else av.flow_label,
            vlan=self.vlan,
            priority=av.sl & 7,
            version=1 if self.link == "rocev1" else 2,
        )

    def _source_port(self, av: AddressVector, qpn: int, dest_qpn: int) -> int:
        if av.udp_source_port is not None:
            return av.udp_source_port
        if self.profile.source_port is SourcePort.QPN:
            return qpn & 0xFFFF
        if not dest_qpn and not av.flow_label:
            return datagram_source_port(qpn)
        return flow_source_port(av.flow_label or flow_label_of(qpn, dest_qpn))

    def _receive_other(self, dest_qp: int, frame: Frame, now: Time) -> None:
        """Process a frame for an unknown queue pair or a multicast group."""
        arrival = self._arrivals.read(frame)
        listeners = self.multicast.get(arrival.destination, ()) if arrival else ()
        if dest_qp != MULTICAST_QPN or not listeners:
            self.counters["unknown_qp"] += 1
            return
        assert arrival is not None
        for qp in listeners:
            packet = decode(frame, arrival.size, arrival.end - 4)
            if packet is not None and packet.form.service is Service.UD:
                packet.arrival = arrival
                qp.handle_packet(packet, now)
                self.note_timer(qp)

    def _drop_stale_timers(self) -> None:
        """Remove entries of timers that have moved to an earlier time, and of closed queue pairs.

        Otherwise a peer that sends RNR NAKs could add an entry for each until the ACK
        timeout, which may be hours.
        """
        waiting = [qp for qp in self.qps.values() if qp.timer_entry is not None]
        self._timers = [
            (qp.timer_entry, number, qp)
            for number, qp in enumerate(waiting)
            if qp.timer_entry is not None
        ]
        heapq.heapify(self._timers)


def _check_names(profile: Profile | str, link: str) -> None:
    """Raise `VerbsError` EINVAL for the name of a profile or link that does not exist."""
    if isinstance(profile, str) and profile not in PROFILES:
        raise VerbsError(errno.EINVAL, f"profile {profile!r}, not {', '.join(PROFILES)}")
    if link not in ("rocev2", "rocev1", "ib"):
        raise VerbsError(errno.EINVAL, f"link {link!r}, not rocev2, rocev1 or ib")


@lru_cache(1 << 12)
def gid_of(address: str) -> int:
    """The GID of an IPv4 or IPv6 address, 128 bits; raises `VerbsError` EINVAL."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        raise VerbsError(errno.EINVAL, f"{address!r} is not an IP address") from None
    return V4_MAPPED | int(parsed) if parsed.version == 4 else int(parsed)


def mac_of(gid: int) -> bytes:
    """The MAC address of a device with this GID in a network without ARP.

    For IPv4 02:00 and the address; for an IPv6 address derived from a MAC, that MAC
    (RFC 4291 appendix A); for any other 02:00 and its last four bytes. For a multicast
    address the group MAC (RFC 1112 6.4, RFC 2464 7).
    """
    if is_v4(gid) and gid >> 28 & 15 == 14:
        return b"\x01\x00\x5e" + (gid & 0x7FFFFF).to_bytes(3)
    if gid >> 120 == 0xFF:
        return b"\x33\x33" + (gid & 0xFFFFFFFF).to_bytes(4)
    if not is_v4(gid) and gid >> 24 & 0xFFFF == 0xFFFE:
        low = gid & (1 << 64) - 1
        high = (low >> 40 ^ 0x020000).to_bytes(3)
        return high + (low & 0xFFFFFF).to_bytes(3)
    return b"\x02\x00" + (gid & 0xFFFFFFFF).to_bytes(4)


def flow_label_of(qpn: int, dest_qpn: int) -> int:
    """The flow label of a connection without one (Linux `rdma_calc_flow_label`), 20 bits."""
    value = qpn * dest_qpn
    value ^= value >> 20
    value ^= value >> 40
    return value & 0xFFFFF


def flow_source_port(flow_label: int) -> int:
    """The UDP source port of a flow label (rdma-core `ibv_flow_label_to_udp_sport`)."""
    return (flow_label & 0x3FFF) ^ (flow_label & 0xFC000) >> 14 | 0xC000


def datagram_source_port(qpn: int) -> int:
    """The UDP source port of a UD queue pair: Linux `hash_32` (rxe, ud-pingpong)."""
    return 0xC000 + ((qpn * 0x61C88647 & 0xFFFFFFFF) >> 18)


def _attach(init: QPInit) -> None:
    """Add a queue pair as user of its parts, once for each use; undo everything on an error."""
    counted: list[ProtectionDomain | CompletionQueue | SharedReceiveQueue | XRCDomain] = []
    for part in (init.pd, init.send_cq, init.recv_cq, init.srq, init.xrc_domain):
        if part is None:
            continue
        try:
            part.attach()
        except VerbsError:
            for done in counted:
                done.detach()
            raise
        counted.append(part)


_TRAILERS = (telemetry.SIZE, sack.SIZE)
"""Bytes after the packet that mean something here."""

_NO_LIMIT: Final = 1 << 31
"""More packets than any message has."""

_MAXIMUM_STALE = 64
"""Outdated timer entries allowed besides one for each queue pair."""
