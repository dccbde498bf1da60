"""The responder: from request packets to memory, receive completions and responses.

A request is new, a duplicate or ahead of the expected PSN. New requests are checked in the
order of reference/transport#responder-checks, and the first check that fails decides the
response. Duplicates change nothing and are answered again. A request ahead causes one NAK
until the missing packet arrives.

Responses wait in the order of their PSNs. READ responses are made one by one when the
line is free, so later requests are executed while a READ is being answered. A fatal NAK is
the last packet sent: then the queue pair moves to ERR.

Source: IBA 9.7.4, 9.7.5, 9.9.3; rxe_resp.c, qib_rc.c `qib_rc_rcv`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import cache
from typing import Final

from ibwire.base.units import Time
from ibwire.rc.attributes import EventType, QPState
from ibwire.rc.context import QPContext
from ibwire.rc.credits import credit_code
from ibwire.rc.early import early_packets
from ibwire.rc.memory import Access, ProtectionDomain
from ibwire.rc.packet import FORMS, Form, TransportPacket
from ibwire.rc.plan import ANNEX_A19
from ibwire.rc.profile import UnaskedAck
from ibwire.rc.receive import ReceiveQueue
from ibwire.rc.replies import Reply, Resource, find_read
from ibwire.rc.requester import SHORTEST
from ibwire.rc.sizes import has_odd_payload, is_too_long
from ibwire.rc.srq import SharedReceiveQueue
from ibwire.rc.work import FlushLevel, WCOpcode, WCStatus
from ibwire_layers.opcodes import OpCode, Operation, Service
from ibwire_layers.psn import HALF, MASK
from ibwire_layers.syndrome import CREDITS, INVALID_CREDITS, AckKind, NakCode

_NOTHING = memoryview(b"")

_NAK = AckKind.NAK << 5
_RNR_NAK = AckKind.RNR_NAK << 5
_SEQUENCE_NAK = _NAK | NakCode.PSN_SEQUENCE_ERROR

# A member is found faster without its class (measured: ibwire/rc/qp.py).
_SEND: Final = Operation.SEND
_WRITE: Final = Operation.WRITE
_READ: Final = Operation.READ
_XRC: Final = Service.XRC
_RTR: Final = QPState.RTR


class Responder:
    """The receiving half of a reliable queue pair."""

    LIMIT_REPLIES = 1024
    """The largest number of waiting responses; further requests are dropped as if the network
    had lost them. Only duplicates, or small requests behind a large READ, reach it."""

    __slots__ = (
        "_acknowledgement",
        "_advertised",
        "_dma_len",
        "_established",
        "_generation",
        "_habits",
        "_handlers",
        "_message",
        "_nak_sent",
        "_rest",
        "_rkey",
        "_srq",
        "_va",
        "_view",
        "_view_rest",
        "early",
        "epsn",
        "executed_psn",
        "failed",
        "forgotten",
        "msn",
        "offers",
        "own",
        "qp",
        "receives",
        "replies",
        "resources",
    )

    def __init__(self, qp: QPContext, receives: ReceiveQueue) -> None:
        self.qp = qp
        self._habits = qp.habits.responder
        self.receives = receives
        self.own = qp.profile
        self.early = early_packets(qp.profile)
        """Requests that wait for an earlier one."""
        own = qp.profile
        fields = own.naks_reserved_opcode, own.refuses_annex_a19, own.discards_annex_a19
        self._handlers = _handlers(*fields)
        self._acknowledgement = self._form(OpCode.RC_ACKNOWLEDGE)
        self.resources: list[Resource] = []
        self.replies: deque[Reply] = deque()
        self.offers = False
        """Whether responses are queued that need not be sent, for an owner who decides on them,
        and wakes the queue pair, before anything is sent (`ibwire.fuzz.judge.open_responses`):
        ACKs of packets without AckReq and for new credits, responses to what is `forgotten`."""
        self.forgotten: list[Resource] = []
        """READs and atomics of which another responder may have kept the responses."""
        self.reset()

    def reset(self) -> None:
        """Drop all state, as after creation."""
        self.resources.clear()
        self.replies.clear()
        self.early.packets.clear()
        self.forgotten.clear()
        self.epsn = 0
        """The expected PSN."""
        self.msn = 0
        """Messages completed."""
        self.executed_psn = MASK
        """Newest SEND, WRITE or atomic packet executed."""
        self.failed = False
        """Whether a fatal NAK waits or has been sent."""
        self._nak_sent = False
        self._message: Operation | None = None
        self._srq: SharedReceiveQueue | None = None
        self._va = self._rkey = self._rest = self._dma_len = 0
        self._view = _NOTHING
        """Memory for the rest of a WRITE, valid while `_generation` is that of the key table."""
        self._view_rest = 0
        """Missing bytes of the message at the time of the lookup."""
        self._generation = -1
        self._advertised = 0
        """Last message that the sent credits allow."""
        self._established = False

    @property
    def under_way(self) -> Operation | None:
        """SEND or WRITE during a message of several packets, otherwise `None`."""
        return self._message

    @property
    def missing(self) -> int:
        """Missing bytes of the current WRITE."""
        return self._rest

    def stop(self) -> None:
        """Drop the waiting responses and the view of memory: the queue pair is in error."""
        self.replies.clear()
        self.early.packets.clear()
        self._view = _NOTHING
        self._generation = -1

    def handle_packet(self, packet: TransportPacket, now: Time) -> None:
        """Process a request packet."""
        if self.failed:
            return
        if len(self.replies) >= self.LIMIT_REPLIES:
            self.qp.counters.dropped += 1
            return
        if self._handlers[packet.form.opcode & 0x1F] is None:
            return
        ahead = (packet.psn - self.epsn) & MASK
        if ahead:
            if ahead >= HALF:
                self._handle_duplicate(packet)
            elif not self._habits.keeps_early(self, packet):
                self._handle_gap()
            return
        self._execute_in_order(packet)
        if self.early.packets:
            self._execute_kept()

    def _execute_kept(self) -> None:
        """Execute the packets that have waited for the one just executed."""
        while not self.failed and self.qp.accepts_requests:
            packet = self.early.take(self.epsn)
            if packet is None:
                return
            before = self.epsn
            self._execute_in_order(packet)
            if self.epsn == before:
                return  # refused, with an RNR NAK: it will be retransmitted

    def place(self, packet: TransportPacket) -> None:
        """Write the data of an early packet to memory, if its address is known."""
        form, qp = packet.form, self.qp
        if form.operation is not _WRITE or not packet.payload or qp.is_xrc:
            return
        if form.is_first:
            va, rkey, length, offset = packet.va, packet.rkey, packet.dma_len, 0
        else:
            va, rkey, length = self._va, self._rkey, self._rest
            offset = ((packet.psn - self.epsn) & MASK) * qp.mtu
            if self._message is not _WRITE or offset >= length:
                first = self.early.write_start(packet.psn, qp.mtu)
                if first is None:
                    return
                va, rkey, length = first.va, first.rkey, first.dma_len
                offset = ((packet.psn - first.psn) & MASK) * qp.mtu
        size = len(packet.payload)
        if offset + size > length or not self._permits(_REMOTE_WRITE):
            return  # it will be refused in its turn
        found = qp.keys.find_remote(self._pd, qp.number, rkey, va + offset, size, _REMOTE_WRITE)
        if found is not None:
            region, at = found
            region.buffer[at : at + size] = packet.payload

    def _is_acknowledged_unasked(self, packet: TransportPacket) -> bool:
        """Whether a packet without AckReq is acknowledged all the same (IBA 9.7.5.1.2)."""
        form = packet.form
        is_meant = form.is_last or self._habits.acks_unasked is _EVERY
        return is_meant and not packet.ack_req and form.operation in _ACKNOWLEDGED

    def _execute_in_order(self, packet: TransportPacket) -> None:
        """Execute the request with the expected PSN."""
        qp = self.qp
        form = packet.form
        operation = form.operation
        handler = self._handlers[form.opcode & 0x1F]
        assert handler is not None
        if self._nak_sent and self._habits.gap_ends_on_arrival():
            self._nak_sent = False
            kept = self._habits.withdraw_naks(self.replies)
            self.replies = kept
        if not self._established:
            self._established = True
            if qp.state is _RTR and qp.profile.reports_first_request:
                qp.emit(EventType.COMM_EST)
        if self._message is None:
            if not form.is_first:
                self._refuse(packet)
                return
        elif form.is_first or operation is not self._message:
            self._refuse(packet)
            return
        if form.service is _XRC and form.is_first and not self._choose_srq(packet):
            self._refuse(packet)
            return
        if handler(self, packet) and self.qp.accepts_requests:  # not after a CQ overrun
            if self._nak_sent:
                self._nak_sent = False
                self.replies = self._habits.withdraw_naks(self.replies)
            if self.offers and not packet.ack_req and operation in _ACKNOWLEDGED:
                self.replies.append(Reply(packet.psn, self.msn, None, is_due=False))
            elif self._habits.acks_unasked is not _NEVER and self._is_acknowledged_unasked(packet):
                self._acknowledge(self.executed_psn)
            if packet.ack_req and operation in _ACKNOWLEDGED:
                self._acknowledge(packet.psn)

    def poll_transmit(self, now: Time) -> TransportPacket | None:
        """The next response packet, or `None`."""
        replies = self.replies
        if not replies:
            return None
        reply = replies[0]
        resource = reply.resource
        msn = self._habits.msn_of(reply, self.msn)
        if resource is None:
            replies.popleft()
            packet = TransportPacket(self._acknowledgement, reply.psn)
            if reply.syndrome is None:
                packet.syndrome = self._credits(msn)
            else:
                packet.syndrome = reply.syndrome
                self.qp.counters.count_nak(reply.syndrome)
                if reply.syndrome == _SEQUENCE_NAK and self.early.packets:
                    self._describe_early(packet)
        elif resource.form.operation is _READ:
            cut = self._cut_read(reply, resource)
            if cut is None:
                return self.poll_transmit(now)
            packet = cut
        else:
            replies.popleft()
            resource.answered = True
            if resource.form.operation in ANNEX_A19:
                form = self._form(OpCode.RC_RDMA_READ_RESPONSE_ONLY)
                packet = TransportPacket(form, resource.psn)
            else:
                packet = TransportPacket(self._form(OpCode.RC_ATOMIC_ACKNOWLEDGE), resource.psn)
                packet.original = resource.original
            packet.syndrome = self._credits(msn)
        packet.msn = msn
        self.qp.address(packet, None)
        if self.failed and not replies:
            self.qp.enter_error()
        return packet

    def extend(self, packet: TransportPacket, sent: int, most: int) -> memoryview | None:
        """Data of at most so many MIDDLE responses to a READ that follow one that was sent.

        They count as sent. sent: packets that have followed it already. `None` where each has to
        be asked for.
        """
        if self.failed or not self.replies:
            return None
        qp, reply = self.qp, self.replies[0]
        resource = reply.resource
        if resource is None or resource.form.operation is not _READ:
            return None
        if (resource.psn + reply.position - 1 - packet.psn - sent) & MASK:
            return None
        start = reply.position * qp.mtu
        count = min(most, -(-(reply.length - start) // qp.mtu) - 1)
        if count < SHORTEST:
            return None
        size = count * qp.mtu
        found = qp.keys.find_remote(
            resource.pd, qp.number, resource.rkey, resource.va + start, size, _REMOTE_READ
        )
        if found is None:
            return None
        region, offset = found
        reply.position += count
        return region.buffer[offset : offset + size]

    def take_back(self, packet: TransportPacket, sent: int, count: int) -> bool:
        """Undo `extend` for the last packets; `False` if the response has ended since.

        packet: as given to `extend`. sent: packets that have followed it, `count` among them.
        """
        reply = self.replies[0] if self.replies else None
        if reply is None or reply.resource is None:
            return False
        if (reply.resource.psn + reply.position - 1 - packet.psn - sent) & MASK:
            return False
        reply.position -= count
        return True

    def expects(self, packet: TransportPacket, count: int) -> bool:
        """Whether so many MIDDLE packets from this one on are executed without an answer."""
        qp, size = self.qp, len(packet.payload)
        if (
            self.failed
            or self._nak_sent
            or self._habits.acks_unasked is _EVERY
            or packet.psn != self.epsn
            or packet.form.operation is not self._message
            or size != qp.mtu
            or self.early.packets
            or len(self.replies) >= self.LIMIT_REPLIES
        ):
            return False
        if self._message is _WRITE:
            return self._generation == qp.keys.generation and count * size < self._rest
        return self.receives.room_for(count * size) is not None

    def room_for(self, size: int) -> list[memoryview] | None:
        """Where the next bytes of the current SEND or WRITE are stored; `None` if nowhere."""
        if self._message is not _WRITE:
            return self.receives.room_for(size)
        start = self._view_rest - self._rest
        return [self._view[start : start + size]]

    def take_run(self, packet: TransportPacket, data: bytes, count: int) -> bool:
        """Execute MIDDLE packets with this data, of which `packet` is the first.

        Returns `False`, and does nothing, unless it expects them.
        """
        if not self.expects(packet, count):
            return False
        if self._message is _WRITE:
            start = self._view_rest - self._rest
            self._view[start : start + len(data)] = data
            self._va += len(data)
            self._rest -= len(data)
        elif not self.receives.fill(data):
            return False
        self.executed_psn = packet.psn + count - 1 & MASK
        self.epsn = packet.psn + count & MASK
        return True

    def _describe_early(self, packet: TransportPacket) -> None:
        """Complete a NAK by what has arrived; then the next early packet causes another."""
        record = self._habits.record_of_nak(self.early, self.epsn)
        if record:
            packet.psn = self.epsn
            packet.trailer = record
            self._nak_sent = False

    def send_credits(self) -> None:
        """Send new credits to a peer that may wait for them; called for each posted receive.

        An acknowledgement that repeats the last PSN carries them (IBA 9.7.7.2.4).
        """
        if not self._established or self.failed:
            return
        if 0 < (self._advertised - self.msn) & MASK < HALF:
            return  # there are credits that it has not used
        if self.offers and self._credit_code() != INVALID_CREDITS:
            self.replies.append(Reply(self.epsn - 1 & MASK, self.msn, None, is_due=False))
            self.qp.wake()
            return
        if self._credit_code() != INVALID_CREDITS:
            self._acknowledge(self.epsn - 1 & MASK)

    def _form(self, opcode: OpCode) -> Form:
        return FORMS[opcode | self.qp.service << 5]

    def _credit_code(self) -> int:
        qp = self.qp
        # `respond` may replace the profile of a queue pair that has begun.
        if qp.profile.live_credits and self.receives.srq is None and qp.service is not _XRC:
            if qp.profile.credits_divided_by > 1:
                return credit_code(len(self.receives.waiting) // qp.profile.credits_divided_by)
            return credit_code(len(self.receives.waiting))
        return INVALID_CREDITS

    def _credits(self, msn: int) -> int:
        """Syndrome of a positive acknowledgement with this MSN that is sent now."""
        code = self._credit_code()
        if code != INVALID_CREDITS:
            self._advertised = msn + CREDITS[code] & MASK
        return code

    def _acknowledge(self, psn: int) -> None:
        replaced = self._habits.replaced_ack(self.replies) if self.replies else None
        if replaced is not None:
            replaced.psn, replaced.msn = psn, self.msn
            return
        self.replies.append(Reply(psn, self.msn, None))
        self.qp.wake()

    def _answer(self, resource: Resource) -> None:
        self.replies.append(Reply(resource.psn, self.msn, None, resource))
        self.qp.wake()

    def _handle_gap(self) -> None:
        if not self._nak_sent:
            self._nak_sent = True
            self.replies.append(Reply(self.epsn, self.msn, _SEQUENCE_NAK))
            self.qp.wake()

    def _refuse(
        self,
        packet: TransportPacket,
        code: NakCode = NakCode.INVALID_REQUEST,
        status: WCStatus | None = None,
    ) -> bool:
        """Queue a fatal NAK; the queue pair moves to ERR after it. Returns `False`."""
        self.qp.refused_request = packet
        self._fail(packet.psn, code, status)
        return False

    def _fail(self, psn: int, code: NakCode, status: WCStatus | None = None) -> None:
        qp = self.qp
        self.failed = True
        self.replies.append(Reply(psn, self.msn, _NAK | code))
        profile = qp.profile
        is_access = code == NakCode.REMOTE_ACCESS_ERROR
        if status is None:
            is_send = self._message is _SEND
            status = self._habits.refused_receive_status(is_send=is_send, is_access=is_access)
        if self.receives.current is not None and (status or not is_access):
            self.receives.fail(status or profile.invalid_request_status)
        elif code in _EVENTS and profile.reports_refusals:
            qp.emit(_EVENTS[code])
        qp.wake()

    def _refuse_not_ready(self, packet: TransportPacket) -> bool:
        """Queue an RNR NAK: no receive request is posted. Returns `False`."""
        qp = self.qp
        timer = qp.attr.min_rnr_timer & 31
        if timer and qp.profile.rnr_nak_steps:  # code 0 is the longest
            timer = min(timer + qp.profile.rnr_nak_steps, 31)
        self.replies.append(Reply(packet.psn, self.msn, _RNR_NAK | timer))
        self._nak_sent = not self._habits.gap_ends_on_arrival()
        qp.wake()
        return False

    def _choose_srq(self, packet: TransportPacket) -> bool:
        self._srq = self.qp.find_srq(packet.xrc_srq)
        return self._srq is not None

    @property
    def _pd(self) -> ProtectionDomain:
        """The domain of the keys: for XRC that of the SRQ which the request names."""
        return self.qp.pd if self._srq is None else self._srq.pd

    def _permits(self, access: int) -> bool:
        return access & ~self.qp.attr.qp_access_flags == 0

    def _handle_send(self, packet: TransportPacket) -> bool:
        qp = self.qp
        form = packet.form
        receives = self.receives
        if form.is_first and not receives.take(self._srq):
            return self._refuse_not_ready(packet)
        if not receives.fits(len(packet.payload)):
            return self._refuse(packet, qp.profile.oversized_send, qp.profile.oversized_send_status)
        if not self._habits.is_send_size(packet, qp.mtu):
            return self._refuse(packet)
        if not receives.fill(packet.payload):
            return self._refuse(
                packet, NakCode.REMOTE_OPERATIONAL_ERROR, qp.profile.receive_fault_status
            )
        if not form.is_last:
            self._advance(packet, _SEND)
            return True
        if form.has_invalidate and not qp.keys.invalidate(
            packet.invalidate_rkey, self._pd, qp.number
        ):
            # Class J: the queue pair moves to ERR without a NAK (IBA 9.9.3, rxe_resp.c).
            receives.fail(WCStatus.REM_INV_REQ_ERR)
            if self._habits.acknowledges_failed_invalidate(packet):
                self.failed = True
                self._acknowledge(packet.psn)
            else:
                qp.enter_error()
            return False
        self._advance(packet, None)
        receives.finish(packet)
        return True

    def _handle_write(self, packet: TransportPacket) -> bool:
        qp = self.qp
        form = packet.form
        size = len(packet.payload)
        if form.is_first:
            if not self._permits(_REMOTE_WRITE):
                return self._refuse(packet)
            if form.has_imm and not self._habits.has_receive(self.receives, self._srq):
                return self._refuse_not_ready(packet)
            va, rkey, rest = packet.va, packet.rkey, packet.dma_len
            is_right = self._habits.is_write_size(packet, qp.mtu)
            if not is_right or is_too_long(rest, qp.profile):
                return self._refuse(packet)
            # Once for the whole message, and before its length (C9-90, rxe check_rkey).
            if rest and not qp.keys.grants(self._pd, qp.number, rkey, va, rest, _REMOTE_WRITE):
                return self._refuse(packet, NakCode.REMOTE_ACCESS_ERROR)
            self._dma_len = rest
        else:
            va, rkey, rest = self._va, self._rkey, self._rest
            if form.has_imm and not self._habits.has_receive(self.receives, self._srq):
                return self._refuse_not_ready(packet)
        if self._habits.ends_write(packet, rest, qp.mtu):
            if size != rest or size > qp.mtu or packet.pad_count != -size & 3:
                return self._refuse(packet)
        elif size != qp.mtu or size >= rest or packet.pad_count:
            return self._refuse(packet)
        if size:
            if self._generation != qp.keys.generation or form.is_first:
                found = qp.keys.find_remote(self._pd, qp.number, rkey, va, rest, _REMOTE_WRITE)
                if found is None:  # revoked since the message began
                    return self._refuse(packet, NakCode.REMOTE_ACCESS_ERROR)
                region, offset = found
                self._view = region.buffer[offset : offset + rest]
                self._generation = qp.keys.generation
                self._view_rest = rest
            start = self._view_rest - rest
            self._view[start : start + size] = packet.payload
        if not form.is_last:
            self._va, self._rkey, self._rest = va + size, rkey, rest - size
            self._advance(packet, _WRITE)
            return True
        self._view = _NOTHING
        self._generation = -1
        if form.has_imm and self.receives.current is None:
            self.receives.take(self._srq)
        self._advance(packet, None)
        if form.has_imm:
            self.receives.finish(packet, WCOpcode.RECV_RDMA_WITH_IMM, self._dma_len)
        return True

    def _handle_read(self, packet: TransportPacket) -> bool:
        qp = self.qp
        length = packet.dma_len
        if not self._permits(_REMOTE_READ) or not self._has_slot():
            return self._refuse(packet)
        if is_too_long(length, qp.profile) or has_odd_payload(packet, qp.profile):
            return self._refuse(packet)
        if (
            length
            and qp.keys.find_remote(
                self._pd, qp.number, packet.rkey, packet.va, length, _REMOTE_READ
            )
            is None
        ):
            return self._refuse(packet, NakCode.REMOTE_ACCESS_ERROR)
        resource = Resource(packet, max(-(-length // qp.mtu), 1), self._pd)
        resource.length = length
        self._keep(resource)
        # At acceptance, not when it has been answered: the next request follows (C9-148).
        self.epsn = self.epsn + resource.count & MASK
        self.msn = self.msn + 1 & MASK
        self._answer(resource)
        return True

    def _handle_atomic(self, packet: TransportPacket) -> bool:
        qp = self.qp
        if not self._permits(_REMOTE_ATOMIC) or not self._has_slot():
            return self._refuse(packet)
        unaligned = bool(packet.va & 7)
        early = unaligned and self._habits.checks_alignment_first()
        if early or has_odd_payload(packet, qp.profile):
            return self._refuse(packet)
        found = qp.keys.find_remote(self._pd, qp.number, packet.rkey, packet.va, 8, _REMOTE_ATOMIC)
        if found is None:
            return self._refuse(packet, NakCode.REMOTE_ACCESS_ERROR)
        if unaligned:
            return self._refuse(packet)
        region, offset = found
        original = region.load64(offset)
        if packet.form.operation is Operation.FETCH_ADD:
            region.store64(offset, original + packet.swap)
        elif original == packet.compare:
            region.store64(offset, packet.swap)
        self._execute(packet, original)
        return True

    def _handle_flush(self, packet: TransportPacket) -> bool:
        qp = self.qp
        access = 0
        if packet.plt & 1:
            access |= int(Access.FLUSH_GLOBAL)
        if packet.plt & 2:
            access |= int(Access.FLUSH_PERSISTENT)
        whole = packet.sel == FlushLevel.MR
        if not access or packet.plt > 3 or packet.sel > FlushLevel.MR or packet.payload:
            return self._refuse(packet)
        if not self._permits(access):
            return self._refuse(packet)
        va, length = (None, 0) if whole else (packet.va, packet.dma_len)
        if not qp.keys.grants(self._pd, qp.number, packet.rkey, va, length, access):
            return self._refuse(packet, NakCode.REMOTE_ACCESS_ERROR)
        # The memory of the emulator is always visible and persistent.
        self._execute(packet, 0)
        return True

    def _handle_atomic_write(self, packet: TransportPacket) -> bool:
        qp = self.qp
        if not self._permits(_REMOTE_WRITE):
            return self._refuse(packet)
        if packet.va & 7 and not qp.profile.atomic_write_alignment_first:
            is_whole = packet.dma_len == len(packet.payload) == 8
            if is_whole and not qp.keys.grants(
                self._pd, qp.number, packet.rkey, packet.va, 8, _REMOTE_WRITE
            ):
                return self._refuse(packet, NakCode.REMOTE_ACCESS_ERROR)
        if packet.va & 7 or packet.dma_len != 8 or len(packet.payload) != 8:
            return self._refuse(packet)
        found = qp.keys.find_remote(self._pd, qp.number, packet.rkey, packet.va, 8, _REMOTE_WRITE)
        if found is None:
            return self._refuse(packet, NakCode.REMOTE_ACCESS_ERROR)
        region, offset = found
        region.buffer[offset : offset + 8] = packet.payload
        self._execute(packet, 0)
        return True

    def _execute(self, packet: TransportPacket, original: int) -> None:
        """Keep the result of a one-packet operation, count it and queue its response."""
        resource = Resource(packet, 1, self._pd)
        resource.original = original
        self._keep(resource)
        self._advance(packet, None)
        self._answer(resource)

    def _advance(self, packet: TransportPacket, message: Operation | None) -> None:
        """Count an executed packet; `message` is the operation that continues after it."""
        self.executed_psn = packet.psn
        self.epsn = packet.psn + 1 & MASK
        self._message = message
        if message is None:
            self.msn = self.msn + 1 & MASK

    def _has_slot(self) -> bool:
        """Whether one more READ or atomic may be executed."""
        return self._habits.has_slot(self.resources, self.qp.attr.max_dest_rd_atomic)

    def _keep(self, resource: Resource) -> None:
        """Keep a request for duplicates, in the place of the oldest."""
        resources = self.resources
        resources.append(resource)
        if len(resources) > max(self.qp.attr.max_dest_rd_atomic, 1):
            oldest = self._habits.forget_oldest(resources)
            # The peer has sent one more request, so it has the response to this one.
            if oldest is not None and oldest.answered:
                if self.offers:
                    self._may_keep(oldest)
                    return
                self.replies = deque(r for r in self.replies if r.resource is not oldest)

    def _may_keep(self, resource: Resource) -> None:
        """Let an owner decide whether a response is kept for duplicates, and still sent."""
        self.forgotten.append(resource)
        for reply in self.replies:
            if reply.resource is resource:
                reply.is_due = False

    def _handle_duplicate(self, packet: TransportPacket) -> None:
        if self.forgotten:
            self._offer_forgotten(packet)
        qp = self.qp
        qp.counters.duplicates += 1
        operation = packet.form.operation
        if operation is _READ:
            found = find_read(self.resources, packet, qp.mtu, self._habits.accepts_replay)
            if found is None:
                return
            if self._habits.may_replay_read(qp.keys, self._pd, qp.number, packet):
                self._replay(*found)
            else:
                self._refuse(packet, NakCode.REMOTE_ACCESS_ERROR)
        elif operation not in _ACKNOWLEDGED:
            result = self._habits.find_result(self.resources, packet)
            if result is not None:
                self._replay(result, 0)
        elif self._habits.acknowledges_duplicate(packet):
            self._nak_sent &= self._habits.gap_outlasts_duplicate()
            newest = self.epsn - 1 & MASK
            self._acknowledge(self._habits.psn_of_duplicate_ack(newest, self.executed_psn))

    def _offer_forgotten(self, packet: TransportPacket) -> None:
        """Queue the response to a duplicate READ or atomic that another responder may have kept."""
        if packet.form.operation is _READ:
            read = find_read(self.forgotten, packet, self.qp.mtu, self._habits.accepts_replay)
            if read is not None:
                self._replay(*read, is_due=False)
        elif packet.form.operation not in _ACKNOWLEDGED:
            result = self._habits.find_result(self.forgotten, packet)
            if result is not None:
                self._replay(result, 0, is_due=False)

    def _replay(
        self, resource: Resource, position: int, length: int = 0, *, is_due: bool = True
    ) -> None:
        reply = Reply(resource.psn, self.msn, None, resource, is_due=is_due)
        reply.position = position
        reply.first = self._habits.first_of_replay(position)
        reply.length = length
        self._nak_sent &= self._habits.gap_outlasts_duplicate()
        self._habits.queue_replay(self.replies, reply)
        self.qp.wake()

    def _cut_read(self, reply: Reply, resource: Resource) -> TransportPacket | None:
        """The next response packet of a READ; `None` if its memory is not accessible any more."""
        qp = self.qp
        position = reply.position
        start = position * qp.mtu
        size = min(qp.mtu, reply.length - start)
        payload = b""
        psn = resource.psn + position & MASK
        if size:
            found = qp.keys.find_remote(
                resource.pd,
                qp.number,
                resource.rkey,
                resource.va + start,
                size,
                _REMOTE_READ,
            )
            if found is None:
                self.replies.clear()
                self._fail(psn, NakCode.REMOTE_ACCESS_ERROR)
                return None
            region, offset = found
            payload = bytes(region.buffer[offset : offset + size])
        is_first = position == reply.first
        if start + size == reply.length:
            resource.answered = resource.answered or reply.length == resource.length
            self.replies.popleft()
            opcode = OpCode.RC_RDMA_READ_RESPONSE_LAST
            if is_first:
                opcode = OpCode.RC_RDMA_READ_RESPONSE_ONLY
        else:
            reply.position += 1
            opcode = OpCode.RC_RDMA_READ_RESPONSE_MIDDLE
            if is_first:
                opcode = OpCode.RC_RDMA_READ_RESPONSE_FIRST
        packet = TransportPacket(self._form(opcode), psn, payload)
        packet.syndrome = (
            self._credits(self._habits.msn_of(reply, self.msn)) if packet.form.has_aeth else 0
        )
        return packet


# Plain numbers: they are combined for every packet.
_REMOTE_WRITE: Final = int(Access.REMOTE_WRITE)
_REMOTE_READ: Final = int(Access.REMOTE_READ)
_REMOTE_ATOMIC: Final = int(Access.REMOTE_ATOMIC)

_NEVER, _EVERY = UnaskedAck.NEVER, UnaskedAck.EVERY
_ACKNOWLEDGED: Final = (Operation.SEND, Operation.WRITE)
"""Operations with the response ACKNOWLEDGE."""

_EVENTS = {
    NakCode.INVALID_REQUEST: EventType.QP_REQ_ERR,
    NakCode.REMOTE_ACCESS_ERROR: EventType.QP_ACCESS_ERR,
}
"""Event for a refused request when no receive request completes with the error."""

_Handler = Callable[[Responder, TransportPacket], bool]

_BY_OPERATION: dict[Operation | None, _Handler | None] = {
    Operation.SEND: Responder._handle_send,
    Operation.WRITE: Responder._handle_write,
    Operation.READ: Responder._handle_read,
    Operation.COMPARE_SWAP: Responder._handle_atomic,
    Operation.FETCH_ADD: Responder._handle_atomic,
    Operation.FLUSH: Responder._handle_flush,
    Operation.ATOMIC_WRITE: Responder._handle_atomic_write,
}


@cache
def _handlers(naks: bool, refuses_a19: bool, discards_a19: bool) -> tuple[_Handler | None, ...]:
    """Handlers by the operation part of the opcode; `None` for a discarded request."""
    by_operation = {**_BY_OPERATION}
    if refuses_a19 or discards_a19:
        by_operation |= dict.fromkeys(ANNEX_A19, None if discards_a19 else Responder._refuse)
    reserved = Responder._refuse if naks else None
    return tuple(by_operation.get(FORMS[opcode].operation, reserved) for opcode in range(0x20))
