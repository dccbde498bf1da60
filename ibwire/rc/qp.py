"""A queue pair: commands of the application, input from the network, output to send.

It has three kinds of method. Commands come from the application: `modify`, `post_send`,
`post_recv`; they fail at once with a `VerbsError` or not at all. `handle_packet` and
`handle_timeout` take input. `poll_transmit` and `poll_timeout` give output: after any
command or input the caller drains the first until `None`, then reads the second.
Completions and events appear in completion queues and in the device.

The work is done by five parts. The send queue keeps posted sends, PSNs, retries and timers;
the requester makes request packets from it, the completer applies responses to it. The
receive queue keeps posted receives, which the responder fills. The parts see the queue pair
as a `QPContext`. Responses leave before requests (qib_make_rc_req).
"""

from __future__ import annotations

import errno
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from ibwire.base.errors import VerbsError
from ibwire.base.telemetry import EMPTY
from ibwire.base.units import Time
from ibwire.rc.attributes import (
    MTU_BYTES,
    AsyncEvent,
    EventType,
    MigState,
    QPAttr,
    QPAttrMask,
    QPCap,
    QPState,
    QPType,
)
from ibwire.rc.completer import Completer
from ibwire.rc.congestion.feedback import FeedbackLoop
from ibwire.rc.congestion.rate import FeedbackControl, RateControl
from ibwire.rc.congestion.window import SendWindow
from ibwire.rc.context import QPContext
from ibwire.rc.counters import QPCounters
from ibwire.rc.cq import CompletionQueue
from ibwire.rc.memory import ProtectionDomain
from ibwire.rc.modification import check_migration, check_values, names_of, power_of_two
from ibwire.rc.packet import TransportPacket
from ibwire.rc.path import Path
from ibwire.rc.posting import check_send
from ibwire.rc.receive import ReceiveQueue
from ibwire.rc.requester import Requester
from ibwire.rc.responder import Responder
from ibwire.rc.run import PacketRun
from ibwire.rc.send_queue import SendQueue
from ibwire.rc.srq import SharedReceiveQueue
from ibwire.rc.states import (
    ACCEPTS_REQUESTS,
    ACCEPTS_RESPONSES,
    POST_RECV,
    POST_SEND,
    Post,
    check_transition,
    state_of,
)
from ibwire.rc.unreliable import UCResponder, UDResponder, UnreliableRequester
from ibwire.rc.work import WC, RecvWR, SendWR, WCStatus
from ibwire.rc.xrc import XRCDomain
from ibwire_layers.opcodes import Service
from ibwire_layers.psn import MASK

if TYPE_CHECKING:
    from ibwire.rc.device import Device

SERVICES = {
    QPType.RC: Service.RC,
    QPType.UC: Service.UC,
    QPType.UD: Service.UD,
    QPType.XRC_SEND: Service.XRC,
    QPType.XRC_RECV: Service.XRC,
}


# Plain numbers: combining members of an enumeration is slow.
_M = QPAttrMask
_STATE, _CUR_STATE, _PATH_MIG_STATE = map(int, (_M.STATE, _M.CUR_STATE, _M.PATH_MIG_STATE))
_AV, _ALT_PATH, _DEST_QPN, _PATH_MTU = map(int, (_M.AV, _M.ALT_PATH, _M.DEST_QPN, _M.PATH_MTU))
_ACCESS_FLAGS, _PKEY_INDEX = int(_M.ACCESS_FLAGS), int(_M.PKEY_INDEX)
_TIMEOUT, _RETRY_CNT, _RNR_RETRY = map(int, (_M.TIMEOUT, _M.RETRY_CNT, _M.RNR_RETRY))

# A member is found faster without its class: 73 ns against 4 (Python 3.11), 16 against 7 (3.13).
# Compiled code finds it as fast only if it is final.
_RESET, _INIT, _RTR, _RTS, _SQD = QPState.RESET, QPState.INIT, QPState.RTR, QPState.RTS, QPState.SQD
_ERR: Final[QPState] = QPState.ERR
_SUCCESS: Final = WCStatus.SUCCESS
_FLUSH_ERR: Final = WCStatus.WR_FLUSH_ERR
_REFUSED: Final = Post.REFUSED
_FLUSHED: Final = Post.FLUSHED
_CNP: Final = Service.CNP
_RC: Final = Service.RC
_UD: Final = Service.UD
_XRC: Final = Service.XRC
_MIGRATED: Final = MigState.MIGRATED


@dataclass(slots=True)
class QPInit:
    """Attributes for the creation of a queue pair: `ibv_qp_init_attr`."""

    qp_type: QPType
    pd: ProtectionDomain | None = None
    """`None` only for XRC_RECV, which uses the domains of its SRQs."""
    send_cq: CompletionQueue | None = None
    recv_cq: CompletionQueue | None = None
    srq: SharedReceiveQueue | None = None
    cap: QPCap = field(default_factory=QPCap)
    sq_sig_all: bool = False
    xrc_domain: XRCDomain | None = None


class QueuePair(QPContext):
    """One end of a connection (RC, UC, XRC) or of datagrams (UD); made by `Device.create_qp`."""

    __slots__ = (
        "_accepts_responses",
        "_alternate",
        "_dest_qp",
        "_is_plain",
        "_mig_req",
        "_peer",
        "_pkey",
        "_source",
        "_trusted_pkey",
        "closed",
        "completer",
        "device",
        "feedback",
        "first_error",
        "lane",
        "paced_until",
        "path",
        "rate",
        "receives",
        "requester",
        "responder",
        "scheduled",
        "sends",
        "sent_in_turn",
        "telemetry",
        "timer_entry",
        "xrc_domain",
    )

    def __init__(self, device: Device, number: int, init: QPInit) -> None:
        self.device = device
        self.number = number
        self.qp_type = init.qp_type
        self.service = SERVICES[init.qp_type]
        self.profile = device.profile
        self.habits = device.habits
        self.keys = device.keys
        self.pd = init.pd if init.pd is not None else device.reserved_pd
        self.cap = replace(init.cap)
        self.sq_sig_all = init.sq_sig_all
        self.send_cq = init.send_cq
        self.recv_cq = init.recv_cq
        self.xrc_domain = init.xrc_domain
        self.receives = ReceiveQueue(self, init.srq)
        self.counters = QPCounters()
        self.attr = QPAttr(cap=self.cap)
        self._set_state(QPState.RESET)
        self.mtu = 1024
        self.path: Path | None = None
        self._alternate: Path | None = None
        self._source = self._peer = self._dest_qp = 0
        self._trusted_pkey = -1
        """P_Key of the peer that was accepted before."""
        self._pkey = 0xFFFF
        self._mig_req = self.profile.mig_req
        self._is_plain = self.service in (Service.RC, Service.UC) and not (
            self.profile.request_reserved
        )
        self.closed = False
        self.first_error: WCStatus | None = None
        """Status of the first completion in error that is not the flush after it."""
        self.refused_request = None
        """The request that the responder has refused, which has ended the connection."""
        self.wrong_response = None
        """The response that has ended the connection, because it did not fit its request."""
        self.lane = 0
        """The service level of its address: the priority of what it sends."""
        self.scheduled = False
        """Whether the device has it in its list of queue pairs that may have something to send."""
        self.sent_in_turn = 0
        """Packets that it has sent in its turn, fewer than `burst_packets` of the profile."""
        self.rate = self._make_rate()
        """Its congestion control; `None` to send as fast as the line."""
        self.paced_until: Time | None = None
        """When the device wakes it because its congestion control held it back."""
        self.telemetry = b""
        """The record of the newest request, for the peer; its next response returns it."""
        self.timer_entry: Time | None = None
        """The earliest time at which the device calls it for its timers."""
        self.sends = SendQueue(self)
        self.feedback = self._make_feedback()
        """What acknowledgements tell the congestion control, if it wants to know."""
        self.completer = Completer(self, self.sends)
        is_reliable = self.service not in (Service.UC, Service.UD)
        self.requester = (Requester if is_reliable else UnreliableRequester)(self, self.sends)
        self.responder: Responder = _RESPONDERS.get(self.service, Responder)(self, self.receives)

    def _make_rate(self) -> RateControl | None:
        make = self.device.rate_control
        return None if make is None or self.service is Service.UD else make()

    def _make_feedback(self) -> FeedbackLoop | None:
        rate = self.rate  # most have none; `isinstance` with a protocol takes 20 us
        if rate is None or self.service is Service.UC or not isinstance(rate, FeedbackControl):
            return None
        return FeedbackLoop(rate, self.sends)

    def __repr__(self) -> str:
        return (
            f"<QueuePair {self.device.name} {self.number:#x} {self.qp_type.name} {self.state.name}>"
        )

    @property
    def is_xrc(self) -> bool:
        """Whether it belongs to an XRC domain."""
        return self.service is _XRC

    def modify(self, attr: QPAttr, mask: int) -> None:
        """Set the attributes that `mask` names, and move to another state.

        Raises `VerbsError` EINVAL, and then nothing has changed.
        """
        self._refuse_closed()
        mask = int(mask)
        target = state_of(attr.qp_state) if mask & _STATE else self.state
        if mask & _CUR_STATE and attr.cur_qp_state != self.state:
            raise VerbsError(errno.EINVAL, f"the queue pair is in {self.state.name}")
        draining = bool(self.attr.sq_draining)
        check_transition(self.qp_type, self.state, mask, target, draining=draining)
        check_values(self.device, attr, mask)
        if mask & _PATH_MIG_STATE:
            has_alternate = self._alternate is not None or bool(mask & _ALT_PATH)
            check_migration(self.attr, attr, target, has_alternate=has_alternate)
            if attr.path_mig_state == MigState.MIGRATED:
                self.migrate()  # at once, if it is armed
        for name in names_of(mask):
            setattr(self.attr, name, getattr(attr, name))
        self._apply(mask)
        if mask & _STATE:
            self._enter(target)

    def query(self) -> QPAttr:
        """The current attributes."""
        return replace(
            self.attr,
            qp_state=self.state,
            cur_qp_state=self.state,
            sq_psn=self.sends.next_psn if self.state >= QPState.RTS else self.attr.sq_psn,
            rq_psn=self.responder.epsn if self.state >= QPState.RTR else self.attr.rq_psn,
            cap=replace(self.cap),
        )

    def post_send(self, wr: SendWR) -> None:
        """Queue a send work request; raises `VerbsError` EINVAL or ENOMEM."""
        if self.closed:
            self._refuse_closed()
        rule = _SEND_RULES[self.state]
        if rule is _REFUSED:
            raise VerbsError(errno.EINVAL, f"no send in {self.state.name}")
        wqe = check_send(self, wr, self.device)
        if self.sends.in_use >= self.cap.max_send_wr:
            raise VerbsError(errno.ENOMEM, f"the send queue of {self.cap.max_send_wr} is full")
        self.sends.post(wqe)
        if rule is _FLUSHED:
            self.sends.flush()
        else:
            self.wake()

    def post_recv(self, wr: RecvWR) -> None:
        """Queue a receive work request; raises `VerbsError` EINVAL or ENOMEM."""
        if self.closed:
            self._refuse_closed()
        rule = _RECV_RULES[self.state]
        if rule is _REFUSED:
            raise VerbsError(errno.EINVAL, f"no receive in {self.state.name}")
        if self.receives.srq is not None or self.service is _XRC:
            raise VerbsError(errno.EINVAL, "the queue pair has no receive queue")
        if len(wr.sg_list) > self.cap.max_recv_sge:
            raise VerbsError(
                errno.EINVAL, f"{len(wr.sg_list)} SGEs, at most {self.cap.max_recv_sge}"
            )
        self.receives.post(wr)
        if rule is _FLUSHED:
            if self.profile.flushes_late_receives:
                self.receives.flush()
        elif self.accepts_requests:
            self.responder.send_credits()

    def handle_packet(self, packet: TransportPacket, now: Time) -> None:
        """Process a packet with a good ICRC; no content of it raises."""
        form = packet.form
        if not self._is_ours(packet):
            self.counters.dropped += 1
            return
        self.counters.packets_received += 1
        self.counters.bytes_received += len(packet.payload)
        arrival = packet.arrival
        if arrival is not None and arrival.ecn == 3:
            self.counters.ce_marked += 1
            if form.service is not _CNP:  # otherwise two ends could answer each other for ever
                self.device.note_congestion(self, "ce", now)
        if form.service is _CNP:
            self.counters.cnps_received += 1
            self.device.note_congestion(self, "cnp", now)
            if self.rate is not None:
                self.rate.notified(now)
            return
        if self.attr.path_mig_state is not _MIGRATED:
            self._follow_migration(packet.mig_req)
        if form.is_response:
            self.completer.handle_packet(packet, now)
            if self.feedback is not None:
                self.feedback.take(packet, now)
            if self.has_more:
                self.wake()
            else:
                self.device.note_timer(self)
        else:
            self.responder.handle_packet(packet, now)  # wakes it when it has a response

    def handle_timeout(self, now: Time) -> None:
        """Handle the timers that are due by `now`."""
        self.sends.handle_timeout(now)
        self.wake()

    def poll_transmit(self, now: Time) -> TransportPacket | None:
        """The next packet, or `None` if no packet may be sent."""
        replies = self.responder.replies
        if self.rate is not None and self.rate.next_send > now:
            # Acknowledgements are not held back.
            if not replies or replies[0].resource is not None:
                return None
            packet = self.responder.poll_transmit(now)
            if packet is None:
                return None
        else:
            packet = self.responder.poll_transmit(now) if replies else None
        if packet is None:
            feedback = self.feedback
            if feedback is not None and feedback.is_full(self.mtu) and not self.sends.resend:
                return None
            packet = self.requester.poll_transmit(now)
            if packet is None:
                return None
            if feedback is not None:
                packet.ack_req = 1
                feedback.note_sent(packet.psn, now)
                if feedback.control.has_telemetry:
                    packet.trailer = EMPTY
        self.counters.packets_sent += 1
        self.counters.bytes_sent += len(packet.payload)
        return packet

    def extend(self, packet: TransportPacket, most: int) -> PacketRun | None:
        """The run of a MIDDLE packet that was just sent and of those after it; they count as sent.

        most: packets after it. `None` where they have to be asked for one by one.
        """
        data = self._data_after(packet, 0, most)
        if data is None:
            return None
        run = PacketRun(packet, data, self.number)
        self._count_sent(run, run.count - 1)
        return run

    def resume(self, run: PacketRun, most: int) -> int:
        """Let a run go on whose packets have left; how many more, which count as sent.

        None where the next has to be asked for.
        """
        data = self._data_after(run.packet, run.count - 1, most)
        if data is None:
            return 0
        count = run.append(data)
        self._count_sent(run, count)
        return count

    def _data_after(self, packet: TransportPacket, sent: int, most: int) -> memoryview | None:
        """Data of at most so many MIDDLE packets after this one and as many more as `sent`."""
        if self.rate is not None or self.feedback is not None or packet.trailer:
            return None
        if packet.form.is_response:
            return self.responder.extend(packet, sent, most)
        return None if self.responder.replies else self.requester.extend(packet, sent, most)

    def take_back(self, run: PacketRun, count: int) -> None:
        """Undo `extend` for the last packets of a run, which have not left."""
        packet, sent = run.packet, run.count - 1
        if packet.form.is_response:
            done = self.responder.take_back(packet, sent, count)
        else:
            done = self.requester.take_back(packet, sent, count)
        if done:
            self._count_sent(run, -count)

    def _count_sent(self, run: PacketRun, count: int) -> None:
        self.counters.packets_sent += count
        self.counters.bytes_sent += count * run.mtu
        assert run.packet.path is not None
        run.packet.path.skip_identifications(count)

    def expects(self, packet: TransportPacket, count: int) -> bool:
        """Whether so many MIDDLE packets from this one on are taken without an answer."""
        form = packet.form
        if packet.pkey != self._trusted_pkey or form.service is not self.service:
            return False
        if self.attr.path_mig_state is not _MIGRATED or self.feedback is not None:
            return False
        if form.is_response:
            return self._accepts_responses and self.completer.expects(packet, count)
        return self.accepts_requests and self.responder.expects(packet, count)

    def overwrites(self, run: PacketRun, first: int, other: PacketRun) -> bool:
        """Whether expected packets, from `first` on, are stored where another run is read from."""
        part = self.completer if run.packet.form.is_response else self.responder
        found = part.room_for((run.count - first) * run.mtu) or ()
        return any(other.is_read_from(piece) for piece in found)

    def take_run(self, packet: TransportPacket, data: bytes, count: int, now: Time) -> bool:
        """Process MIDDLE packets with this data at once, of which `packet` is the first.

        now: when the last arrived. Returns `False`, and does nothing, where each has to be
        processed by itself.
        """
        arrival = packet.arrival
        if (
            arrival is None
            or arrival.source != self._peer
            or arrival.destination != self._source
            or arrival.ecn == 3
            or not self.expects(packet, count)
        ):
            return False
        if not packet.form.is_response:
            if not self.responder.take_run(packet, data, count):
                return False
        else:
            if not self.completer.take_run(packet, data, count, now):
                return False
            if self.has_more:
                self.wake()
            else:
                self.device.note_timer(self)
        self.counters.packets_received += count
        self.counters.bytes_received += len(data)
        return True

    @property
    def has_more(self) -> bool:
        """Whether it may have another packet to send."""
        if self.responder.replies:
            return True
        sends = self.sends
        return sends.cursor < len(sends.wqes) or bool(sends.resend)

    def poll_timeout(self) -> Time | None:
        """When to call `handle_timeout` next, or `None`."""
        return self.sends.timers.next_timeout()

    def close(self) -> None:
        """Destroy the queue pair; posted work requests are dropped."""
        if not self.closed:
            self._enter(QPState.RESET)
            self.closed = True
            self.device.forget_qp(self)

    # The interface for its parts: `QPContext`.

    def wake(self) -> None:
        """Report that there may be a packet to send."""
        if not self.scheduled:
            self.device.schedule(self)

    def emit(self, event_type: EventType) -> None:
        """Raise an asynchronous event."""
        self.device.emit(AsyncEvent(event_type, self))

    def report(self, cq: CompletionQueue | None, wc: WC) -> None:
        """Put a completion into its queue; if it is lost, the queue pair moves to ERR (class G)."""
        status = wc.status
        if status is not _SUCCESS and status is not _FLUSH_ERR and self.first_error is None:
            self.first_error = status
        if cq is not None and not cq.push(wc) and self.state is not _ERR:
            self.emit(EventType.QP_FATAL)
            self.enter_error()

    def address(self, packet: TransportPacket, wr: SendWR | None) -> None:
        """Fill in the destination of a packet; `wr` is the work request of a request packet."""
        packet.pkey = self._pkey
        packet.mig_req = self._mig_req
        packet.dest_qp = self._dest_qp
        if wr is not None and not self._is_plain:
            packet.reserved = self.profile.request_reserved
            if self.service is Service.UD:
                self._address_datagram(packet, wr)
            elif self.service is Service.XRC:
                packet.xrc_srq = wr.remote_srqn

    def count_bad_qkey(self) -> None:
        """Count a datagram that is dropped by its Q_Key, and report it to the device's owner."""
        self.counters.bad_qkey += 1
        if self.device.on_bad_key is not None:
            self.device.on_bad_key(True)

    def enter_error(self) -> None:
        """Move to ERR after a failure: flush both queues."""
        if self.state is not QPState.ERR:
            self._enter(QPState.ERR)

    def enter_send_error(self) -> None:
        """Move to SQE after a failed send of an unreliable queue pair: flush the send queue."""
        if self.state is QPState.ERR:
            return  # its completion was lost
        self._set_state(QPState.SQE)
        self.sends.flush()

    def check_drained(self) -> None:
        """In SQD: end the draining when no started send is left."""
        if self.attr.sq_draining and self.sends.is_drained:
            self.attr.sq_draining = 0
            if self.attr.en_sqd_async_notify:
                self.emit(EventType.SQ_DRAINED)

    def find_srq(self, number: int) -> SharedReceiveQueue | None:
        """The shared receive queue of its XRC domain with this number."""
        srq = self.device.srqs.get(number)
        return srq if srq is not None and srq.xrc_domain is self.xrc_domain else None

    def migrate(self) -> bool:
        """Take the alternate path if it is armed (IBA 17.2.8)."""
        if self.attr.path_mig_state is not MigState.ARMED or self._alternate is None:
            return False
        attr = self.attr
        attr.ah_attr, attr.pkey_index = attr.alt_ah_attr, attr.alt_pkey_index
        attr.path_mig_state = MigState.MIGRATED
        self._apply(_AV | _PKEY_INDEX | _PATH_MIG_STATE)
        self.emit(EventType.PATH_MIG)
        return True

    def _follow_migration(self, mig_req: int) -> None:
        """Apply the peer's MigReq bit (IBA 17.2.8; qib_ruc_check_hdr)."""
        attr = self.attr
        if attr.path_mig_state is MigState.REARM and not mig_req and self.state is QPState.RTS:
            attr.path_mig_state = MigState.ARMED
            self._mig_req = self._migration_bit()
        elif attr.path_mig_state is MigState.ARMED and mig_req:
            self.migrate()

    def _migration_bit(self) -> int:
        migrated = self.attr.path_mig_state is MigState.MIGRATED
        return self.profile.mig_req if migrated else 0

    def _refuse_closed(self) -> None:
        if self.closed:
            raise VerbsError(errno.EINVAL, "the queue pair is closed")

    def _is_ours(self, packet: TransportPacket) -> bool:
        """Whether a packet may reach the state machines (IBA 9.6.1)."""
        form = packet.form
        if not (self._accepts_responses if form.is_response else self.accepts_requests):
            return False
        profile = self.profile
        service = form.service
        arrival = packet.arrival
        if (
            packet.pkey == self._trusted_pkey
            and service is self.service
            and form.is_known
            and arrival is not None
            and arrival.source == self._peer
            and arrival.destination == self._source
            and not (len(packet.payload) + packet.pad_count) & 3
        ):
            return True  # the same as a packet that was accepted before
        if service is not self.service and service is not _CNP:
            return False
        if service is not _CNP and self.qp_type is (
            QPType.XRC_RECV if form.is_response else QPType.XRC_SEND
        ):
            return False
        if not form.is_known and not (profile.naks_reserved_opcode and service is _RC):
            return False
        if not self._accepts_pkey(packet.pkey):
            self.device.counters["bad_pkey"] += 1
            if self.device.on_bad_key is not None:
                self.device.on_bad_key(False)
            return False
        if profile.discards_unpadded and len(packet.payload) + packet.pad_count & 3:
            return False
        if arrival is None:
            return True
        if self.service is _UD:
            self._trusted_pkey = packet.pkey
            return True
        if arrival.source != self._peer or arrival.destination != self._source:
            # The peer may have moved to the alternate path (qib_ruc_check_hdr).
            return (
                self.attr.path_mig_state is MigState.ARMED
                and bool(packet.mig_req)
                and (arrival.destination, arrival.source)
                == self.device.ends_of(self.attr.alt_ah_attr)
            )
        if service is _RC:
            self._trusted_pkey = packet.pkey
        return True

    def _accepts_pkey(self, pkey: int) -> bool:
        """Whether the partitions match and at least one end is a full member (IBA 10.9.3)."""
        if pkey == self._trusted_pkey:
            return True
        if self.profile.fixed_pkeys:
            return pkey in self.profile.fixed_pkeys
        own = self._pkey
        return pkey & 0x7FFF == own & 0x7FFF and bool((pkey | own) & 0x8000) and pkey & 0x7FFF != 0

    def _address_datagram(self, packet: TransportPacket, wr: SendWR) -> None:
        assert wr.ah is not None
        packet.dest_qp = wr.remote_qpn & MASK
        # With the highest bit set, the Q_Key of the queue pair is sent instead (IBA 10.2.5).
        packet.qkey = self.attr.qkey if wr.remote_qkey & 1 << 31 else wr.remote_qkey
        packet.src_qp = self.number
        packet.path = self.device.path_to(wr.ah, self.number, 0)

    def _apply(self, mask: int) -> None:
        """Update everything derived from the changed attributes."""
        attr = self.attr
        if mask & _PATH_MTU:
            self.mtu = MTU_BYTES[attr.path_mtu]
        if mask & _ACCESS_FLAGS:
            attr.qp_access_flags = int(attr.qp_access_flags)
        if mask & _PKEY_INDEX:
            fixed = self.profile.fixed_pkeys  # used for sending too, whatever the table holds
            self._pkey = fixed[0] if fixed else self.device.pkeys[attr.pkey_index]
            self._trusted_pkey = -1
        if mask & _PATH_MIG_STATE:
            attr.path_mig_state = MigState(attr.path_mig_state)
            self._mig_req = self._migration_bit()
        if mask & (_AV | _DEST_QPN):
            self._dest_qp = attr.dest_qp_num = attr.dest_qp_num & MASK
            self.path = self.device.path_to(attr.ah_attr, self.number, attr.dest_qp_num)
            self._source, self._peer = self.device.ends_of(attr.ah_attr)
            self.lane = attr.ah_attr.sl
            self.device.change_lane(self)
            self._control_congestion()
        if mask & _ALT_PATH:
            self._alternate = self.device.path_to(attr.alt_ah_attr, self.number, attr.dest_qp_num)
        if mask & (_TIMEOUT | _RETRY_CNT | _RNR_RETRY):
            self.sends.configure()
        if self.profile.rounds_read_depth:
            attr.max_rd_atomic = power_of_two(attr.max_rd_atomic)
            attr.max_dest_rd_atomic = power_of_two(attr.max_dest_rd_atomic)

    def _control_congestion(self) -> None:
        """Share a window with the other queue pairs towards the peer, if the profile has one."""
        if not self.profile.controls_congestion or self.service not in (Service.RC, Service.XRC):
            return
        if self.sends.window is not None:
            self.sends.window.stop()
        path = self.device.window_towards(self._peer)
        longest = self.profile.ack_request_interval
        self.sends.window = SendWindow(path, self.sends, self.wake, longest)
        self.sends.window.configure(self.sends.ack_wait)

    def _set_state(self, state: QPState) -> None:
        self.state = state
        # Read for every packet, and looking up an enumeration member in a set is slow.
        self.accepts_requests = state in ACCEPTS_REQUESTS
        self._accepts_responses = state in ACCEPTS_RESPONSES

    def _enter(self, state: QPState) -> None:
        """Move to a state, with the actions on entry."""
        before = self.state
        self._set_state(state)
        attr = self.attr
        if state is _RESET:
            self.sends.reset()
            if self.feedback is not None:
                self.feedback.reset()
            self.telemetry = b""
            self.completer.reset()
            self.responder.reset()
            self.receives.clear()
            self.attr = QPAttr(cap=self.cap)
            self.lane = 0
            self._mig_req = self._migration_bit()
            self.path = self._alternate = None
            self.first_error = self.refused_request = self.wrong_response = None
        elif state is _RTR and before is _INIT:
            attr.rq_psn &= MASK
            self.responder.epsn = attr.rq_psn
            if self.service is _UD:
                self.mtu = self.device.limits.port_mtu
        elif state is _RTS and before is _RTR:
            attr.sq_psn &= MASK
            self.sends.start_at(attr.sq_psn)
        elif state is _SQD and before is _RTS:
            attr.sq_draining = 1
            self.check_drained()
        elif state is _ERR and before is not _ERR:
            attr.sq_draining = 0
            self.responder.stop()
            self.sends.flush()
            self.receives.flush()
            if self.receives.srq is not None:
                self.emit(EventType.QP_LAST_WQE_REACHED)
        if self.has_more:
            self.wake()


_RESPONDERS: dict[Service, type[Responder]] = {Service.UC: UCResponder, Service.UD: UDResponder}

# Looked up by number: members of an enumeration are slow keys.
_SEND_RULES: Final = tuple(POST_SEND[state] for state in QPState)
_RECV_RULES: Final = tuple(POST_RECV[state] for state in QPState)
