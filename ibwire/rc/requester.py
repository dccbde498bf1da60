"""The requester: from send work requests to request packets.

A request restarts in the middle of a message: a SEND or WRITE continues with a MIDDLE
or LAST, a READ becomes a new READ REQUEST for the rest. All state is in the send queue,
which also decides what to retransmit; nothing here reads a response.

Source: IBA 9.7.2 to 9.7.8; rxe_req.c, qib_rc.c `qib_make_rc_req`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from ibwire.base.units import Time
from ibwire.rc.attributes import QPState
from ibwire.rc.context import QPContext
from ibwire.rc.packet import TransportPacket
from ibwire.rc.plan import PLANS
from ibwire.rc.send_queue import SendQueue
from ibwire.rc.send_state import SendWQE
from ibwire.rc.sge import gather
from ibwire.rc.work import WCStatus, WROpcode
from ibwire_layers.opcodes import Operation
from ibwire_layers.psn import HALF, MASK

# A member is found faster without its class (measured: ibwire/rc/qp.py).
_RTS: Final = QPState.RTS
_READ: Final = Operation.READ
_WRITE: Final = Operation.WRITE
_FLUSH: Final = Operation.FLUSH
_UNCOUNTED: Final = replace(PLANS[WROpcode.FLUSH], is_answered=False)
"""What a FLUSH is where it does not count as a READ."""

SHORTEST: Final = 3
"""Packets that a run needs after its first: fewer are sent one by one, which costs no more."""


class Requester:
    """Makes the request packets of a reliable queue pair."""

    __slots__ = ("_ack_interval", "_most_unacked", "qp", "sends")

    def __init__(self, qp: QPContext, sends: SendQueue) -> None:
        self.qp = qp
        self.sends = sends
        self._ack_interval = qp.profile.ack_request_interval
        self._most_unacked = qp.profile.max_unacked_psns

    def poll_transmit(self, now: Time) -> TransportPacket | None:
        """The next request packet, or `None` if no request may be sent."""
        sends = self.sends
        wqes = sends.wqes
        if sends.resend:
            packet = self._retransmit(now)
            if packet is not None:
                return packet
        if sends.cursor >= len(wqes) or sends.probing:
            return self._blocked()
        qp, timers = self.qp, sends.timers
        if timers.rnr is not None and qp.habits.requester.rnr_wait_blocks():
            return self._blocked()
        while sends.cursor < len(wqes):
            wqe = wqes[sends.cursor]
            if wqe.status is not None:
                sends.retire()
                return self._blocked()  # it completes when everything before it is done
            if not wqe.started and (qp.state is not _RTS or not self._start(wqe)):
                return self._blocked()
            if not wqe.is_sent:
                if wqe.done:
                    sends.cursor += 1
                sends.retire()
                continue
            psn = sends.psn
            if (psn - sends.una) & MASK > self._most_unacked:
                return self._blocked()
            index = (psn - wqe.first_psn) & MASK
            window = sends.window
            if window is not None and not window.allows(psn, wqe.packets - index, now):
                return None
            if wqe.is_segmented:
                if index and wqe.limited and self._holds_back(wqe):
                    return None
                packet = self._segment(wqe, index, psn)
                if packet is None:  # its memory is not accessible
                    wqe.status = WCStatus.LOC_PROT_ERR
                    sends.retire()
                    return None
                following = psn + 1 & MASK
                if packet.form.is_last:
                    sends.cursor += 1
            else:
                packet = self._single(wqe, index, psn)
                following = (wqe.first_psn + wqe.packets) & MASK
                sends.cursor += 1
            if window is not None and window.ends_at(psn):
                packet.ack_req = 1
                sends.since_ack_request = 0
            qp.address(packet, wqe.wr)
            self._advance(following)
            if sends.probe:
                packet.ack_req = 1
                sends.probe, sends.probing = False, True
            if timers.ack is None and sends.ack_wait is not None and timers.rnr is None:
                timers.ack = now + sends.ack_wait
            return packet
        return self._blocked()

    def extend(self, packet: TransportPacket, sent: int, most: int) -> memoryview | None:
        """Data of at most so many MIDDLE packets that follow one that was sent; they count as sent.

        sent: packets that have followed it already. They end before one that asks for an ACK.
        `None` where each has to be asked for.
        """
        sends, qp = self.sends, self.qp
        if sends.cursor >= len(sends.wqes) or packet.ack_req:
            return None
        wqe, psn = sends.wqes[sends.cursor], sends.psn
        if (
            (packet.psn + 1 + sent - psn) & MASK
            or psn != sends.next_psn
            or sends.resend
            or sends.probe
            or sends.probing
            or sends.window is not None
            or sends.timers.rnr is not None
            or wqe.status is not None
            or (wqe.limited and qp.habits.requester.holds_back(sends, wqe))
        ):
            return None
        mtu = qp.mtu
        index = (psn - wqe.first_psn) & MASK
        count = min(
            most,
            wqe.packets - 1 - index,
            self._ack_interval - 1 - sends.since_ack_request,
            self._most_unacked - ((psn - sends.una) & MASK) + 1,
        )
        if count < SHORTEST or wqe.view is None or wqe.generation != qp.keys.generation:
            return None
        start = index * mtu
        self._skip(count)
        return wqe.view[start : start + count * mtu]

    def take_back(self, packet: TransportPacket, sent: int, count: int) -> bool:
        """Undo `extend` for the last packets; `False` if the queue has gone on since.

        packet: as given to `extend`. sent: packets that have followed it, `count` among them.
        """
        sends = self.sends
        at = packet.psn + 1 + sent & MASK
        if sends.psn != at or sends.next_psn != at or sends.cursor >= len(sends.wqes):
            return False
        self._skip(-count)
        return True

    def _skip(self, count: int) -> None:
        sends = self.sends
        sends.psn = sends.next_psn = sends.psn + count & MASK
        sends.since_ack_request += count

    def _retransmit(self, now: Time) -> TransportPacket | None:
        """The next single packet to retransmit, which asks for an ACK (selective repeat)."""
        sends, qp = self.sends, self.qp
        if sends.timers.rnr is not None and qp.habits.requester.rnr_wait_blocks():
            return None
        while sends.resend:
            psn = sends.resend.pop(0)
            if (psn - sends.una) & MASK >= (sends.next_psn - sends.una) & MASK:
                continue  # acknowledged meanwhile
            wqe = sends.find(psn)
            if wqe is None or wqe.status is not None:
                continue
            index = (psn - wqe.first_psn) & MASK
            if not wqe.plan.is_segmented:
                if index:
                    continue  # of a READ only the request itself can be lost
                packet: TransportPacket | None = self._single(wqe, 0, psn)
            else:
                packet = self._segment(wqe, index, psn)
            if packet is None:
                wqe.status = WCStatus.LOC_PROT_ERR
                sends.retire()
                return None
            packet.ack_req = 1
            qp.address(packet, wqe.wr)
            qp.counters.retransmitted += 1
            if sends.timers.ack is None and sends.ack_wait is not None:
                sends.timers.ack = now + sends.ack_wait
            return packet
        return None

    def _advance(self, following: int) -> None:
        """Continue with the PSN after the packet that is sent."""
        sends = self.sends
        if sends.psn == sends.next_psn:
            sends.next_psn = following
        else:
            self.qp.counters.retransmitted += 1
            if (following - sends.next_psn) & MASK < HALF:
                sends.next_psn = following
        sends.psn = following

    def _start(self, wqe: SendWQE) -> bool:
        """Start a work request unless it must wait."""
        plan = wqe.plan
        if plan.operation is None:
            return self._run_local(wqe)
        sends = self.sends
        if wqe.fence and sends.reads:
            return False
        profile = self.qp.profile
        if wqe.fence and sends.cursor and profile.fence_waits_for_all:
            return False
        if plan.operation is _FLUSH and not profile.counts_flushes:
            plan = _UNCOUNTED
        if plan.is_segmented and sends.reads and profile.messages_wait_for_reads:
            return False
        if 0 < profile.max_unacked_messages <= sends.cursor:
            return False
        if plan.is_answered and sends.reads >= self.qp.attr.max_rd_atomic:
            return False
        if plan.is_answered and sends.reads and self._has_enough_reads():
            return False
        in_flight = (sends.next_psn - sends.una) & MASK
        if in_flight > profile.max_unacked_psns or in_flight + wqe.packets > HALF:
            return False
        if plan.takes_credit:
            beyond = sends.credits.beyond(wqe.ssn)
            if beyond > 1:
                self._count_stall()
                return False
            sends.stalled = False
            wqe.limited = beyond == 1
        else:
            sends.credits.skip_one()
        if plan.is_answered:
            sends.reads += 1
            wqe.holds_slot = True
        wqe.first_psn = sends.next_psn
        wqe.started = True
        return True

    def _has_enough_reads(self) -> bool:
        """Whether so many READs and atomics are on their way as this requester lets be."""
        profile, reads = self.qp.profile, self.sends.reads
        if 0 < profile.max_unacked_reads <= reads:
            return True
        part = profile.reads_divided_by
        return part > 1 and reads >= max(self.qp.attr.max_rd_atomic // part, 1)

    def _holds_back(self, wqe: SendWQE) -> bool:
        """Whether the rest of a message that was begun beyond the credits has to wait."""
        if self.qp.habits.requester.holds_back(self.sends, wqe):
            self._count_stall()
            return True
        self.sends.stalled = False
        return False

    def _count_stall(self) -> None:
        """Count a wait for credits, once."""
        if not self.sends.stalled:
            self.sends.stalled = True
            self.qp.counters.credit_stalls += 1

    def _single(self, wqe: SendWQE, index: int, psn: int) -> TransportPacket:
        """The packet of a one-packet request; a READ asks for its responses from `index` on."""
        operation, wr = wqe.plan.operation, wqe.wr
        sends = self.sends
        packet = TransportPacket(wqe.forms[3], psn)
        packet.ack_req = 1
        packet.rkey = wr.rkey
        packet.va = wr.remote_addr
        if operation is _READ:
            done = index * self.qp.mtu + wqe.skipped
            wqe.in_response = False
            packet.va = wr.remote_addr + done - done % self.qp.mtu
            packet.dma_len = wqe.length - done
        elif operation is Operation.FLUSH:
            packet.dma_len = wr.length
            packet.plt, packet.sel = wr.flush_type, wr.flush_level
        elif operation is Operation.ATOMIC_WRITE:
            packet.dma_len = 8
            packet.payload = wr.atomic_data
        elif operation is Operation.COMPARE_SWAP:
            packet.swap, packet.compare = wr.swap, wr.compare_add
        else:
            packet.swap, packet.compare = wr.compare_add, 0
        sends.since_ack_request = 0
        return packet

    def _blocked(self) -> TransportPacket | None:
        """Nothing may be sent now: another queue pair may take the room of a shared window."""
        if self.sends.window is not None:
            self.sends.window.pass_on()
        return None

    def _segment(self, wqe: SendWQE, index: int, psn: int) -> TransportPacket | None:
        """Packet `index` of a SEND or WRITE; `None` if its memory is not accessible."""
        qp, sends, wr = self.qp, self.sends, wqe.wr
        mtu = qp.mtu
        start = index * mtu
        size = wqe.length - start
        ends = size <= mtu
        if ends:
            form = wqe.forms[2 if index else 3]
        else:
            size = mtu
            form = wqe.forms[1 if index else 0]
        if wqe.inline is not None:
            payload: bytes | None = wqe.inline[start : start + size]
        elif wqe.generation == qp.keys.generation:
            assert wqe.view is not None
            payload = wqe.view[start : start + size].tobytes()
        elif not size:
            payload = b""
        elif size == wqe.length:
            payload = gather(qp.keys, qp.pd, wr.sg_list, 0, size)
        else:
            payload = self._gather(wqe, start, size)
        if payload is None:
            return None
        packet = TransportPacket(form, psn, payload)
        if not index and wqe.plan.operation is _WRITE:
            packet.va, packet.rkey, packet.dma_len = wr.remote_addr, wr.rkey, wqe.length
        if ends:
            packet.ack_req = 1
            sends.since_ack_request = 0
            if form.has_imm:
                packet.imm_data = wr.imm_data
            elif form.has_invalidate:
                packet.invalidate_rkey = wr.invalidate_rkey
            if wqe.solicited:
                packet.se = 1
            return packet
        sends.since_ack_request += 1
        if sends.since_ack_request >= self._ack_interval:
            packet.ack_req = 1
            sends.since_ack_request = 0
        elif not index and wqe.limited:
            packet.ack_req = 1
        return packet

    def _gather(self, wqe: SendWQE, start: int, size: int) -> bytes | None:
        """Bytes of a longer message; one in a single SGE keeps its view for the next packets."""
        qp, sges = self.qp, wqe.wr.sg_list
        if len(sges) == 1:
            sge = sges[0]
            region = qp.keys.find_local(qp.pd, sge.lkey, sge.addr, sge.length, 0)
            if region is not None:
                first = sge.addr - region.iova
                wqe.view = region.buffer[first : first + sge.length]
                wqe.generation = qp.keys.generation
        return gather(qp.keys, qp.pd, sges, start, size)

    def _run_local(self, wqe: SendWQE) -> bool:
        """Execute a local operation."""
        wr, qp = wqe.wr, self.qp
        if wr.opcode is WROpcode.LOCAL_INV:
            if self.sends.wqes[0] is not wqe:  # the local invalidate fence
                return False
            done = qp.keys.invalidate(wr.invalidate_rkey, qp.pd, qp.number)
            status = WCStatus.LOC_QP_OP_ERR
        else:
            done = (
                wr.mw is not None
                and wr.bind_info is not None
                and qp.keys.bind(wr.mw, qp.number, qp.pd, wr.bind_info, wr.rkey)
            )
            status = WCStatus.MW_BIND_ERR
        wqe.started = True
        if not done:
            wqe.status = status
        wqe.done = done
        return True
