"""The completer: from responses to completions, or to a retransmission.

A response acknowledges all earlier requests. If a READ or atomic without its
response is among them, the response was lost and the request is retransmitted (implied NAK).

Source: IBA 9.7.5 to 9.7.7; rxe_comp.c, qib_rc.c `do_rc_ack`, `rc_rcv_resp`.
"""

from __future__ import annotations

from typing import Final

from ibwire.base.units import Time
from ibwire.rc.attributes import QPState
from ibwire.rc.context import QPContext
from ibwire.rc.early import early_packets
from ibwire.rc.packet import TransportPacket
from ibwire.rc.send_queue import SendQueue
from ibwire.rc.send_state import SendWQE
from ibwire.rc.sge import scatter, writable_pieces
from ibwire.rc.work import WCStatus
from ibwire_layers import syndrome as aeth
from ibwire_layers.opcodes import Operation
from ibwire_layers.psn import HALF, MASK
from ibwire_layers.syndrome import AckKind, NakCode

# A member is found faster without its class (measured: ibwire/rc/qp.py).
_ACKNOWLEDGE: Final = Operation.ACKNOWLEDGE
_READ_RESPONSE: Final = Operation.READ_RESPONSE
_READ: Final = Operation.READ
_ACK: Final = AckKind.ACK
_SUCCESS: Final = WCStatus.SUCCESS
_PROT_ERR: Final = WCStatus.LOC_PROT_ERR
_ERR: Final[QPState] = QPState.ERR


class Completer:
    """Applies responses to the send queue of a reliable queue pair."""

    __slots__ = ("_acknowledged", "_early", "_habits", "_kinds", "qp", "sends")

    def __init__(self, qp: QPContext, sends: SendQueue) -> None:
        self.qp = qp
        self.sends = sends
        self._habits = qp.habits.requester
        self._kinds = tuple(map(self._habits.ack_kind, range(0, 256, 32)))
        """By bits 7:5 of the syndrome."""
        self._early = early_packets(qp.profile)
        """Responses with data that wait for an earlier one."""
        self._acknowledged: int | None = None
        """PSN before which an ACK acknowledged everything while an earlier response was missing."""

    def reset(self) -> None:
        """Forget the responses that wait."""
        self._early.packets.clear()
        self._acknowledged = None

    def handle_packet(self, packet: TransportPacket, now: Time) -> None:
        """Process a response packet."""
        qp = self.qp
        sends = self.sends
        psn = packet.psn
        operation = packet.form.operation
        is_ack = operation is _ACKNOWLEDGE
        ahead = (psn - sends.una) & MASK
        habits = self._habits
        if ahead >= HALF and habits.is_old_response(sends, psn):
            # A duplicate; but an ACK that repeats the last PSN brings new credits (IBA 9.7.7.2.4).
            qp.counters.ghost_acks += 1
            if ahead == MASK and habits.oldest_read_incomplete(sends):
                sends.complete(sends.wqes[0], WCStatus.SUCCESS)
                sends.retire()
            if is_ack and ahead == MASK and self._kinds[packet.syndrome >> 5] is AckKind.ACK:
                sends.credits.update(packet.syndrome, packet.msn)
            return
        if ahead >= (sends.next_psn - sends.una) & MASK:
            qp.counters.unexpected_responses += 1
            acknowledged = habits.acknowledged_by_unsent(sends)
            if acknowledged is not None:
                self.acknowledge_before(acknowledged, now)
            return  # a response to a PSN that was never sent
        if sends.exact and ahead:
            return
        if not is_ack:
            self._take_response(packet, now)
            if self._early.packets or self._acknowledged is not None:
                self._take_kept(now)
            return
        kind = self._kinds[packet.syndrome >> 5]
        if habits.take_ack_as_answer(self, psn, is_ack=kind is _ACK, now=now):
            return
        if not qp.profile.ack_restarts_read and kind is _ACK and self._is_answered(psn):
            psn = psn - 1 & MASK
        if kind is _ACK:
            if self.acknowledge_before(psn + 1 & MASK, now):
                sends.credits.update(packet.syndrome, packet.msn)
        elif kind is AckKind.RNR_NAK:
            self._take_rnr_nak(psn, aeth.code(packet.syndrome), now)
        elif kind is AckKind.NAK:
            self._take_nak(packet, aeth.code(packet.syndrome), now)
        elif habits.fails_for_reserved(packet.syndrome):
            self.refuse_misplaced()

    def _is_answered(self, psn: int) -> bool:
        """Whether a PSN is of a READ, an atomic or another request that an ACK does not answer."""
        wqe = self.sends.find(psn)
        return wqe is not None and wqe.plan.is_answered

    def expects(self, packet: TransportPacket, count: int) -> bool:
        """Whether so many MIDDLE responses from this one on continue the oldest READ."""
        qp, sends = self.qp, self.sends
        wqe = sends.wqes[0] if sends.wqes else None
        if (
            wqe is None
            or packet.form.operation is not _READ_RESPONSE
            or wqe.plan.operation is not _READ
            or not wqe.in_response
            or packet.psn != sends.una
            or self._early.packets
            or self._acknowledged is not None
            or sends.psn != sends.next_psn
            or sends.window is not None
            or sends.resent
            or sends.timers.rnr is not None
            or len(packet.payload) != qp.mtu
        ):
            return False
        if sends.cursor < len(sends.wqes):
            in_flight = (sends.next_psn - sends.una) & MASK
            next_one = sends.wqes[sends.cursor]
            if in_flight > qp.profile.max_unacked_psns or in_flight + next_one.packets > HALF:
                return False  # each response may let a request start
        size = count * qp.mtu
        return (
            (packet.psn - wqe.first_psn & MASK) + count < wqe.packets
            and size < wqe.length - wqe.received
            and self.room_for(size) is not None
        )

    def room_for(self, size: int) -> list[memoryview] | None:
        """Where the next bytes of the oldest READ are stored; `None` if they cannot be."""
        wqe = self.sends.wqes[0]
        return writable_pieces(self.qp.keys, self.qp.pd, wqe.wr.sg_list, wqe.received, size)

    def take_run(self, packet: TransportPacket, data: bytes, count: int, now: Time) -> bool:
        """Store MIDDLE responses with this data, of which `packet` is the first.

        now: when the last arrived. Returns `False`, and does nothing, unless it expects them.
        """
        qp, sends = self.qp, self.sends
        if not self.expects(packet, count):
            return False
        wqe = sends.wqes[0]
        if not scatter(qp.keys, qp.pd, wqe.wr.sg_list, wqe.received, data):
            return False
        wqe.received += len(data)
        sends.acknowledge(packet.psn + count & MASK, now)
        sends.retire()
        return True

    def acknowledge_before(self, psn: int, now: Time) -> bool:
        """Apply the acknowledgement of everything before `psn`.

        Returns `False` if a READ or atomic without its response is among it, because that
        response was lost, or if the queue pair is in error after it: a completion queue has
        overrun, or the oldest request that is left cannot be sent.
        """
        sends = self.sends
        wqes = sends.wqes
        before = sends.una
        una = before
        lost = False
        while wqes:
            wqe = wqes[0]
            if not wqe.started or wqe.plan.operation is None:
                break
            behind = (psn - wqe.first_psn) & MASK
            if behind >= HALF or behind == 0:
                break
            if wqe.plan.is_answered:
                # Inside a READ it acknowledges nothing: each response counts by itself.
                lost = behind >= wqe.packets
                break
            if behind < wqe.packets:
                una = psn
                break
            una = (wqe.first_psn + wqe.packets) & MASK
            sends.complete(wqe, _SUCCESS)
            while wqes and wqes[0].done:
                sends.complete(wqes[0], WCStatus.SUCCESS)
        if self.qp.state is _ERR:
            return False  # a completion queue has overrun
        if una != before:
            sends.acknowledge(una, now)
            sends.retire()
            if self.qp.state is _ERR:
                return False  # the next request is one whose memory is not accessible
        if lost and self._habits.waits_for_early():
            known = self._acknowledged
            if known is None or 0 < (psn - known) & MASK < HALF:
                self._acknowledged = psn
        elif lost and not self._habits.is_recovering(sends, psn):
            sends.go_back(sends.una, now, implied=True)
        return not lost

    def _keep(self, packet: TransportPacket) -> bool:
        """Keep a response that is ahead, if the profile does so."""
        return self._habits.waits_for_early() and self._early.add(packet, self.sends.una)

    def _take_kept(self, now: Time) -> None:
        """Apply what has waited for the response that has just come."""
        sends, qp = self.sends, self.qp
        before = -1
        while sends.una != before and qp.state is not _ERR:
            before = sends.una
            psn, self._acknowledged = self._acknowledged, None
            if psn is not None and 0 < (psn - sends.una) & MASK < HALF:
                self.acknowledge_before(psn, now)
            packet = self._early.take_first(sends.una)
            if packet is not None and qp.state is not _ERR:
                self._take_response(packet, now)

    def _take_nak(self, packet: TransportPacket, code: int, now: Time) -> None:
        qp, sends, habits, psn = self.qp, self.sends, self._habits, packet.psn
        if not self.acknowledge_before(habits.acknowledged_by_nak(sends, psn), now):
            return
        if code == NakCode.PSN_SEQUENCE_ERROR:
            qp.counters.sequence_naks_received += 1
            if habits.nak_moves_una(sends, psn):
                sends.acknowledge_inside(psn, now)
            if not habits.retransmits_missing(sends, packet, qp.profile.nak_distance):
                sends.go_back(psn, now, implied=False)
            return
        status = _NAK_STATUS.get(code) or habits.status_of_reserved_nak()
        if status is not None:
            qp.counters.fatal_naks_received += 1
            sends.fail(status)

    def _take_rnr_nak(self, psn: int, code: int, now: Time) -> None:
        sends, habits = self.sends, self._habits
        if not self.acknowledge_before(habits.acknowledged_by_nak(sends, psn), now):
            return
        if habits.rnr_nak_is_for_oldest(sends, psn):
            sends.wait_out_rnr(code, now)

    def _take_response(self, packet: TransportPacket, now: Time) -> None:
        """A READ response or an atomic acknowledge."""
        qp = self.qp
        sends = self.sends
        psn = packet.psn
        wqe = sends.find(psn)
        if wqe is None:
            return
        if sends.wqes[0] is not wqe:
            if not self.acknowledge_before(wqe.first_psn, now):
                self._keep(packet)
                return
            if sends.wqes[0] is not wqe:
                return  # an older request completed in error
        status: WCStatus | None
        if not wqe.plan.is_answered:
            status = self._misfit(packet)
        elif wqe.plan.operation is _READ:
            if psn != sends.una:
                if not self._keep(packet) and self._habits.read_gap_restarts():
                    sends.go_back(sends.una, now, implied=True)
                return
            status = self._take_read(wqe, packet)
        else:
            status = self._take_answer(wqe, packet)
        if status is not None:
            if status is not _PROT_ERR:
                qp.wrong_response = packet
            sends.fail(status)
            return
        if packet.form.has_aeth:
            sends.credits.update(packet.syndrome, packet.msn)
        una = psn + 1 & MASK
        if self._habits.completes(wqe, packet):
            una = (wqe.first_psn + wqe.packets) & MASK
            sends.complete(wqe, _SUCCESS)
            if qp.state is _ERR:
                return  # the completion queue has overrun
        sends.acknowledge(una, now)
        sends.retire()

    def _take_read(self, wqe: SendWQE, packet: TransportPacket) -> WCStatus | None:
        """Store the next READ response; returns a status for a wrong one."""
        qp = self.qp
        form = packet.form
        if form.operation is not _READ_RESPONSE or self._is_failure(packet):
            return qp.profile.misplaced_response
        if form.is_first and wqe.in_response:
            return qp.profile.misplaced_response
        # After a restart inside the READ a peer may continue with MIDDLE or LAST (rxe does).
        if not form.is_first and not wqe.in_response and not wqe.received:
            return qp.profile.misplaced_response
        usual = qp.profile.bad_response_length
        fault = self._habits.read_length_fault(wqe, packet, qp.mtu, usual)
        if fault is not None:
            return fault
        size = len(packet.payload)
        if size and not scatter(qp.keys, qp.pd, wqe.wr.sg_list, wqe.received, packet.payload):
            return WCStatus.LOC_PROT_ERR
        wqe.received += size
        wqe.in_response = not form.is_last
        return None

    def _take_answer(self, wqe: SendWQE, packet: TransportPacket) -> WCStatus | None:
        """Apply the response to an atomic, FLUSH or ATOMIC WRITE; a status for a wrong one."""
        qp = self.qp
        if self._is_failure(packet):
            return qp.profile.misplaced_response
        if wqe.plan.operation in _ATOMICS:
            if packet.form.operation is not Operation.ATOMIC_ACKNOWLEDGE:
                return self._misfit(packet)
            original = packet.original.to_bytes(8, "little")  # memory is in host order
            if not scatter(qp.keys, qp.pd, wqe.wr.sg_list, 0, original):
                return WCStatus.LOC_PROT_ERR
            return None
        form = packet.form
        whole = form.operation is Operation.READ_RESPONSE and form.is_first and form.is_last
        return None if whole and not packet.payload else self._misfit(packet)

    def _misfit(self, packet: TransportPacket) -> WCStatus:
        """Status for a response of another kind than the request."""
        form, profile = packet.form, self.qp.profile
        is_read = form.operation is Operation.READ_RESPONSE and form.is_first
        if is_read and not self._is_failure(packet):
            return profile.bad_response
        return profile.misplaced_response

    def _is_failure(self, packet: TransportPacket) -> bool:
        """Whether a response with data carries an AETH that is not an ACK."""
        return packet.form.has_aeth and self._kinds[packet.syndrome >> 5] is not AckKind.ACK

    def answer(self, wqe: SendWQE, psn: int, now: Time) -> None:
        """Take an ACK as the response with this PSN, which completes a request by its last."""
        after = psn + 1 & MASK
        if after == (wqe.first_psn + wqe.packets) & MASK:
            self.sends.complete(wqe, WCStatus.SUCCESS)
        self.sends.acknowledge(after, now)
        self.sends.retire()

    def refuse_misplaced(self) -> None:
        """Fail because of a response that does not fit."""
        self.sends.fail(self.qp.profile.misplaced_response)


"""Kind by the upper three bits of a syndrome; first where bit 7 is ignored."""

_ATOMICS = (Operation.COMPARE_SWAP, Operation.FETCH_ADD)

_NAK_STATUS: dict[int, WCStatus] = {
    NakCode.INVALID_REQUEST: WCStatus.REM_INV_REQ_ERR,
    NakCode.REMOTE_ACCESS_ERROR: WCStatus.REM_ACCESS_ERR,
    NakCode.REMOTE_OPERATIONAL_ERROR: WCStatus.REM_OP_ERR,
}
"""Completion of the work request that was NAKed (IBA 9.9.2.4.2)."""
