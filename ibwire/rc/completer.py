"""The completer: from responses to completions, or to a retransmission.

A response acknowledges everything before it. When a READ or atomic is among that, its
answer was lost: it is not completed but asked for again (the implied NAK). Work
requests complete in the order in which they were posted, each once.

Source: IBA 9.7.5 to 9.7.7; rxe_comp.c, qib_rc.c `do_rc_ack`, `rc_rcv_resp`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ibwire.base.units import Time
from ibwire.rc.attributes import QPState
from ibwire.rc.memory import scatter
from ibwire.rc.packet import TransportPacket
from ibwire.rc.requester import SendWQE
from ibwire.rc.timers import rnr_wait
from ibwire.rc.work import WCStatus
from ibwire_layers import syndrome as aeth
from ibwire_layers.opcodes import Operation
from ibwire_layers.psn import HALF, MASK
from ibwire_layers.syndrome import AckKind, NakCode

if TYPE_CHECKING:
    from ibwire.rc.qp import QueuePair


# A member is found faster without its class (measured: ibwire/rc/qp.py).
_ACKNOWLEDGE, _READ_RESPONSE = Operation.ACKNOWLEDGE, Operation.READ_RESPONSE
_READ, _ACK = Operation.READ, AckKind.ACK
_SUCCESS, _RTS, _ERR = WCStatus.SUCCESS, QPState.RTS, QPState.ERR


class Completer:
    """The part of the sending half that reads responses."""

    __slots__ = ("_kinds", "qp")

    def __init__(self, qp: QueuePair) -> None:
        self.qp = qp
        self._kinds = _KINDS[qp.profile.reserved_bit_fails]

    def handle_packet(self, packet: TransportPacket, now: Time) -> None:
        """Take a response in."""
        qp = self.qp
        requester = qp.requester
        psn = packet.psn
        operation = packet.form.operation
        is_ack = operation is _ACKNOWLEDGE
        ahead = (psn - requester.una) & MASK
        if ahead >= HALF and not (qp.profile.acks_unsent and self._is_beyond_oldest(psn)):
            # A duplicate; but an ACK like the last one brings new credits (IBA 9.7.7.2.4).
            qp.counters.ghost_acks += 1
            if ahead == MASK and requester.wants_more:
                requester.complete(requester.wqes[0], WCStatus.SUCCESS)
                self.retire()
            if is_ack and ahead == MASK and self._kinds[packet.syndrome >> 5] is AckKind.ACK:
                requester.credits.update(packet.syndrome, packet.msn)
            return
        if ahead >= (requester.next_psn - requester.una) & MASK:
            qp.counters.unexpected_responses += 1
            if qp.profile.acks_unsent:
                self._acknowledge_before(requester.next_psn, now)
            return  # an answer to what was never sent
        if requester.exact and ahead:
            return
        if not is_ack:
            self._take_response(packet, now)
            return
        kind = self._kinds[packet.syndrome >> 5]
        if qp.profile.acks_answer and self._answers(packet, now):
            return
        if kind is _ACK:
            if self._acknowledge_before(psn + 1 & MASK, now):
                requester.credits.update(packet.syndrome, packet.msn)
        elif kind is AckKind.RNR_NAK:
            self._take_rnr_nak(psn, aeth.code(packet.syndrome), now)
        elif kind is AckKind.NAK:
            self._take_nak(psn, aeth.code(packet.syndrome), now)
        elif qp.profile.reserved_syndrome_fails or (
            packet.syndrome >> 7 and qp.profile.reserved_bit_fails
        ):
            self.fail(qp.profile.misplaced_response)

    def retire(self) -> None:
        """Complete what is done at the head of the queue, and fail it if its turn has come."""
        requester = self.qp.requester
        wqes = requester.wqes
        while wqes and wqes[0].done:
            requester.complete(wqes[0], WCStatus.SUCCESS)
        wqe = wqes[0] if wqes else None
        # What has not begun waits in SQD, for its failure too.
        if wqe and wqe.status is not None and (wqe.started or self.qp.state is _RTS):
            self.fail(wqe.status)
        self.qp.check_drained()

    def fail(self, status: WCStatus) -> None:
        """The oldest work request ends with this status, and with it the connection."""
        requester = self.qp.requester
        if requester.wqes:
            requester.complete(requester.wqes[0], status)
        self.qp.enter_error()

    def _acknowledge_before(self, psn: int, now: Time) -> bool:
        """Everything before `psn` has been executed.

        `False` if a READ or atomic without an answer is among it, for its answer was
        lost, or if a completion was lost and the connection with it.
        """
        requester = self.qp.requester
        wqes = requester.wqes
        before = requester.una
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
                # Inside a READ it says nothing: each response counts by itself.
                lost = behind >= wqe.packets
                break
            if behind < wqe.packets:
                una = psn
                break
            una = (wqe.first_psn + wqe.packets) & MASK
            requester.complete(wqe, _SUCCESS)
            while wqes and wqes[0].done:
                requester.complete(wqes[0], WCStatus.SUCCESS)
        if self.qp.state is _ERR:
            return False  # a completion found no room
        if una != before:
            requester.acknowledge(una, now)
            self.retire()
        if lost and not self._is_recovering(psn):
            self._restart(requester.una, now, implied=True)
        return not lost

    def _is_recovering(self, psn: int) -> bool:
        """Whether what is before `psn` is on its way again and may have been answered since.

        A duplicate is acknowledged up to the newest PSN, and so beyond a READ or atomic
        that has been asked for again a moment ago. What was sent after all this tells.
        """
        requester = self.qp.requester
        recover = requester.recover
        if recover is None or not self.qp.profile.waits_for_recovery:
            return False
        return (recover - psn) & MASK < HALF

    def _restart(self, psn: int, now: Time, *, implied: bool) -> None:
        """Go back to `psn` because of a NAK or of an answer that is missing; costs a retry."""
        requester = self.qp.requester
        if requester.wants_more and not requester.outstanding:
            requester.use_up_retry()  # though there is nothing to send (rxe_completer)
            return
        if psn in (requester.restart_psn, requester.psn) or requester.timers.rnr is not None:
            return  # it is going back already, or will after the wait
        if requester.restart_psn is not None and not self.qp.profile.nak_is_progress:
            return
        if implied:
            self.qp.counters.implied_naks += 1
        if requester.use_up_retry():
            requester.restart_psn = psn
            requester.exact = implied
            requester.recover = requester.next_psn
            requester.restart(psn)
            requester.arm(now)

    def _take_nak(self, psn: int, code: int, now: Time) -> None:
        qp = self.qp
        wqe = self._refused_inside(psn)
        if not self._acknowledge_before(psn if wqe is None else wqe.first_psn, now):
            return
        if code == NakCode.PSN_SEQUENCE_ERROR:
            qp.counters.sequence_naks_received += 1
            if wqe is not None:
                self._move_on(psn, now)
            self._restart(psn, now, implied=False)
            return
        status = _NAK_STATUS.get(code)
        if status is None and qp.profile.reserved_syndrome_fails:
            status = WCStatus.REM_OP_ERR
        if status is not None:
            qp.counters.fatal_naks_received += 1
            self.fail(status)

    def _take_rnr_nak(self, psn: int, code: int, now: Time) -> None:
        qp = self.qp
        requester = qp.requester
        profile = qp.profile
        wqe = self._refused_inside(psn)
        if not self._acknowledge_before(psn if wqe is None else wqe.first_psn, now):
            return
        if wqe is None and psn != requester.una:
            return
        if requester.timers.rnr is not None and not profile.counts_every_rnr_nak:
            return  # it is waiting already
        qp.counters.rnr_naks_received += 1
        if requester.rnr_retries == 0:
            self.fail(WCStatus.RNR_RETRY_EXC_ERR)
            return
        if requester.rnr_retries != 7:
            requester.rnr_retries -= 1
        requester.timers.rnr = now + rnr_wait(code, qp.profile)
        requester.timers.ack = None
        if profile.nak_is_progress:
            requester.restart_psn = None

    def _take_response(self, packet: TransportPacket, now: Time) -> None:
        """A READ response or an atomic acknowledge."""
        qp = self.qp
        requester = qp.requester
        psn = packet.psn
        wqe = self._find(psn)
        if wqe is None:
            return
        if requester.wqes[0] is not wqe:
            if not self._acknowledge_before(wqe.first_psn, now):
                return
            if requester.wqes[0] is not wqe:
                return  # an older one completed in error
        status: WCStatus | None
        if not wqe.plan.is_answered:
            status = self._misfit(packet)
        elif wqe.plan.operation is _READ:
            if psn != requester.una:
                if qp.profile.restarts_on_read_gap:
                    self._restart(requester.una, now, implied=True)
                return
            status = self._take_read(wqe, packet)
        else:
            status = self._take_answer(wqe, packet)
        if status is not None:
            self.fail(status)
            return
        if packet.form.has_aeth:
            requester.credits.update(packet.syndrome, packet.msn)
        una, end = psn + 1 & MASK, (wqe.first_psn + wqe.packets) & MASK
        is_done = una == end
        if not qp.profile.checks_response_length and wqe.plan.operation is Operation.READ:
            is_done = packet.form.is_last and wqe.received == wqe.length
        if is_done:
            una = end
            requester.complete(wqe, _SUCCESS)
            if qp.state is _ERR:
                return  # the completion found no room
        requester.acknowledge(una, now)
        self.retire()

    def _find(self, psn: int) -> SendWQE | None:
        """The work request that a PSN belongs to."""
        for wqe in self.qp.requester.wqes:
            if not wqe.started:
                return None
            if wqe.plan.operation is not None and (psn - wqe.first_psn) & MASK < wqe.packets:
                return wqe
        return None

    def _take_read(self, wqe: SendWQE, packet: TransportPacket) -> WCStatus | None:
        """Store a READ response that is the next one; a status if it is wrong."""
        qp = self.qp
        form = packet.form
        if form.operation is not _READ_RESPONSE or self._is_failure(packet):
            return qp.profile.misplaced_response
        if form.is_first and wqe.in_response:
            return qp.profile.misplaced_response
        # After a restart inside the READ a peer may go on where it was (rxe does).
        if not form.is_first and not wqe.in_response and not wqe.received:
            return qp.profile.misplaced_response
        size = len(packet.payload)
        rest = wqe.length - wqe.received
        right = size == rest <= qp.mtu if form.is_last else size == qp.mtu < rest
        if not qp.profile.checks_response_length:
            if size > rest:
                return WCStatus.LOC_PROT_ERR
        elif not right:
            return qp.profile.bad_response_length
        if size and not scatter(qp.keys, qp.pd, wqe.wr.sg_list, wqe.received, packet.payload):
            return WCStatus.LOC_PROT_ERR
        wqe.received += size
        wqe.in_response = not form.is_last
        return None

    def _take_answer(self, wqe: SendWQE, packet: TransportPacket) -> WCStatus | None:
        """Take the answer to an atomic, a FLUSH or an ATOMIC WRITE; a status if it is wrong."""
        qp = self.qp
        if self._is_failure(packet):
            return qp.profile.misplaced_response
        if wqe.plan.operation in _ATOMICS:
            if packet.form.operation is not Operation.ATOMIC_ACKNOWLEDGE:
                return self._misfit(packet)
            original = packet.original.to_bytes(8, "little")  # memory is in the host's order
            if not scatter(qp.keys, qp.pd, wqe.wr.sg_list, 0, original):
                return WCStatus.LOC_PROT_ERR
            return None
        form = packet.form
        whole = form.operation is Operation.READ_RESPONSE and form.is_first and form.is_last
        return None if whole and not packet.payload else self._misfit(packet)

    def _misfit(self, packet: TransportPacket) -> WCStatus:
        """Status for an answer to something else than the request."""
        form, profile = packet.form, self.qp.profile
        is_read = form.operation is Operation.READ_RESPONSE and form.is_first
        if is_read and not self._is_failure(packet):
            return profile.bad_response
        return profile.misplaced_response

    def _move_on(self, psn: int, now: Time) -> None:
        """What is before `psn` in the oldest message is acknowledged, which is no progress."""
        requester = self.qp.requester
        requester.una = psn
        if (requester.psn - psn) & MASK >= HALF:
            requester.restart(requester.una)
        requester.arm(now)

    def _refused_inside(self, psn: int) -> SendWQE | None:
        """The SEND or WRITE that a NAK is about, where it is no progress inside it."""
        if self.qp.profile.nak_is_progress:
            return None
        wqe = self._find(psn)
        return None if wqe is None or wqe.plan.is_answered else wqe

    def _is_failure(self, packet: TransportPacket) -> bool:
        """Whether a response with data carries an AETH that is no ACK."""
        return packet.form.has_aeth and self._kinds[packet.syndrome >> 5] is not AckKind.ACK

    def _is_beyond_oldest(self, psn: int) -> bool:
        """Whether a PSN is less than 2^23 behind the end of the oldest request."""
        wqes = self.qp.requester.wqes
        if not wqes or not wqes[0].started:
            return False
        return (psn - wqes[0].first_psn - wqes[0].packets) & MASK < HALF - 1

    def _answers(self, packet: TransportPacket, now: Time) -> bool:
        """Let an ACK of its PSN complete a READ or an atomic, if that is the oldest request.

        `False` if it is to be taken otherwise. Where responses have begun to come nothing
        else fits, not even a NAK.
        """
        requester, psn = self.qp.requester, packet.psn
        if not self._acknowledge_before(psn, now):
            return True
        wqe = requester.wqes[0]
        if not wqe.plan.is_answered or self._find(psn) is not wqe:
            return False
        if psn != requester.una:
            return True  # nothing but the next response counts
        if wqe.in_response:
            self.fail(self.qp.profile.misplaced_response)
            return True
        if self._kinds[packet.syndrome >> 5] is not AckKind.ACK:
            return False
        after = psn + 1 & MASK
        if after == (wqe.first_psn + wqe.packets) & MASK:
            requester.complete(wqe, WCStatus.SUCCESS)
        requester.acknowledge(after, now)
        self.retire()
        return True


_KINDS = (tuple(AckKind) * 2, (*AckKind, *[AckKind.RESERVED] * 4))
"""By the upper three bits of a syndrome, where bit 7 says nothing and where it does."""

_ATOMICS = (Operation.COMPARE_SWAP, Operation.FETCH_ADD)

_NAK_STATUS: dict[int, WCStatus] = {
    NakCode.INVALID_REQUEST: WCStatus.REM_INV_REQ_ERR,
    NakCode.REMOTE_ACCESS_ERROR: WCStatus.REM_ACCESS_ERR,
    NakCode.REMOTE_OPERATIONAL_ERROR: WCStatus.REM_OP_ERR,
}
"""Completion of the work request that was NAKed (IBA 9.9.2.4.2)."""
