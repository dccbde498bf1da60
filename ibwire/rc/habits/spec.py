"""The behaviour of the specification where implementations are known to differ.

Source: IBA 9.7.5 to 9.7.8.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Protocol

from ibwire.base.units import Time
from ibwire.rc.early import EarlyPackets
from ibwire.rc.memory import KeyTable, ProtectionDomain
from ibwire.rc.packet import TransportPacket
from ibwire.rc.plan import ANNEX_A19
from ibwire.rc.replies import Reply, Resource, put_back
from ibwire.rc.send_state import SendState, SendWQE
from ibwire.rc.srq import SharedReceiveQueue
from ibwire.rc.work import WCStatus
from ibwire_layers.psn import HALF, MASK
from ibwire_layers.syndrome import AckKind, kind


def rnr_wait_blocks() -> bool:
    """All requests wait, until the time is over or the refused request is acknowledged."""
    return True


def takes_rnr_nak(sends: SendState) -> bool:
    """During an RNR wait another RNR NAK is ignored."""
    return sends.timers.rnr is None


def acknowledged_by_nak(sends: SendState, psn: int) -> int:
    """A NAK acknowledges every packet before its PSN (IBA 9.7.5.1.1)."""
    return psn


def nak_moves_una(sends: SendState, psn: int) -> bool:
    """The packets that a sequence NAK acknowledges count as progress."""
    return False


def rnr_nak_is_for_oldest(sends: SendState, psn: int) -> bool:
    """An RNR NAK counts for the oldest unacknowledged packet."""
    return psn == sends.una


def may_go_back(sends: SendState) -> bool:
    """Any NAK or missing response makes the requester go back."""
    return True


def restart_psn_after_timeout(sends: SendState) -> int | None:
    """A NAK after a timeout makes the requester go back again."""
    return None


def restart_psn_after_rnr_nak(sends: SendState) -> int | None:
    """A NAK after an RNR wait makes the requester go back again."""
    return None


def is_recovering(sends: SendState, psn: int) -> bool:
    """Whether the packets before `psn` were retransmitted and may have been answered since.

    A duplicate is acknowledged with the newest PSN, which may be beyond a READ or atomic
    that has just been retransmitted. Only a response to a packet sent after the restart shows
    that its response was lost again. The specification leaves this open.
    """
    recover = sends.recover
    return recover is not None and (recover - psn) & MASK < HALF


def renumber(sends: SendState, mtu: int) -> None:
    """A retransmitted READ keeps its PSNs."""


def oldest_read_incomplete(sends: SendState) -> bool:
    """A READ has its data when all its PSNs are acknowledged."""
    return False


def read_length_fault(
    wqe: SendWQE, packet: TransportPacket, mtu: int, status: WCStatus
) -> WCStatus | None:
    """A READ response is as long as the path MTU, the last one as long as the rest."""
    size = len(packet.payload)
    rest = wqe.length - wqe.received
    right = size == rest <= mtu if packet.form.is_last else size == mtu < rest
    return None if right else status


def completes(wqe: SendWQE, packet: TransportPacket) -> bool:
    """A READ or atomic is complete with the response to its last PSN."""
    return not (packet.psn + 1 - wqe.first_psn - wqe.packets) & MASK


def is_old_response(sends: SendState, psn: int) -> bool:
    """A response before `una` is for an acknowledged packet."""
    return True


def acknowledged_by_unsent(sends: SendState) -> int | None:
    """A response to a PSN that was never sent acknowledges nothing."""
    return None


def stop_ack_timer(sends: SendState) -> None:
    """The ACK timer stops when everything is acknowledged."""
    sends.timers.ack = None


def retries_left(retries: int) -> int:
    """Each retry counts (IBA 9.7.6)."""
    return retries - 1


def holds_back(sends: SendState, wqe: SendWQE) -> bool:
    """The rest of a limited message waits for the response to its first packet (IBA 9.7.7.2.5)."""
    if not sends.credits.beyond(wqe.ssn):
        wqe.limited = False
        return False
    return (sends.una - wqe.first_psn - 1) & MASK >= HALF


class Answering(Protocol):
    """The completer, as far as a habit acts with it."""

    @property
    def sends(self) -> SendState:
        """The send queue."""
        ...

    def acknowledge_before(self, psn: int, now: Time) -> bool:
        """Apply the acknowledgement of everything before a PSN; whether nothing was lost."""
        ...

    def answer(self, wqe: SendWQE, psn: int, now: Time) -> None:
        """Take a response with this PSN, which completes the request if it is its last."""
        ...

    def refuse_misplaced(self) -> None:
        """Fail because of a response that does not fit."""
        ...


def take_ack_as_answer(completer: Answering, psn: int, *, is_ack: bool, now: Time) -> bool:
    """An ACK or NAK answers no READ or atomic."""
    return False


def read_gap_restarts() -> bool:
    """A gap in the responses of a READ is an implied NAK (IBA 9.7.5.2.8)."""
    return True


def ack_kind(syndrome: int) -> AckKind:
    """The kind is in bits 6:5; bit 7 is reserved and ignored."""
    return kind(syndrome)


def fails_for_reserved(syndrome: int) -> bool:
    """A response with a reserved syndrome is ignored."""
    return False


def status_of_reserved_nak() -> WCStatus | None:
    """A NAK with a reserved code is ignored."""
    return None


def replaced_ack(replies: deque[Reply]) -> Reply | None:
    """A newer ACK replaces the last waiting one: it acknowledges more (IBA 9.7.5.1.2)."""
    last = replies[-1] if replies else None
    is_plain = last is not None and last.resource is None and last.syndrome is None and last.is_due
    return last if is_plain else None


class Receives(Protocol):
    """The receive queue, as far as a habit acts with it."""

    def take(self, srq: SharedReceiveQueue | None) -> bool:
        """Take the next request for a message; whether there was one."""
        ...

    def has_next(self, srq: SharedReceiveQueue | None) -> bool:
        """Whether `take` would take a request."""
        ...


def has_receive(receives: Receives, srq: SharedReceiveQueue | None) -> bool:
    """A WRITE with immediate data takes its receive request when it is complete."""
    return receives.has_next(srq)


def checks_alignment_first() -> bool:
    """Alignment before the R_Key; the specification leaves the order open (IBA 9.7.5.2.4)."""
    return True


def msn_of(reply: Reply, msn: int) -> int:
    """A response has the MSN at the time it is sent; a NAK that at the time it was queued."""
    return msn if reply.syndrome is None else reply.msn


def withdraw_naks(replies: deque[Reply]) -> deque[Reply]:
    """A NAK that is not sent yet is dropped when the missing packet arrives (qib_rc.c)."""
    return deque(reply for reply in replies if reply.syndrome is None)


def queue_replay(replies: deque[Reply], reply: Reply) -> None:
    """A replayed response takes its place in the order of PSNs."""
    put_back(replies, reply)


def has_slot(resources: Iterable[Resource], limit: int) -> bool:
    """A READ or atomic is executed while fewer than `limit` are unanswered (IBA 9.7.5.2.3)."""
    unanswered = [each.form.operation for each in resources if not each.answered]
    return sum(operation not in ANNEX_A19 for operation in unanswered) < limit


def forget_oldest(resources: list[Resource]) -> Resource | None:
    """The oldest request whose response was sent makes room for a new one.

    One that is unanswered takes its place until then (IBA 9.7.5.2.3), whatever comes behind it.
    """
    place = next((place for place, each in enumerate(resources) if each.answered), None)
    return None if place is None else resources.pop(place)


def find_result(resources: Iterable[Resource], packet: TransportPacket) -> Resource | None:
    """A duplicate atomic is answered with the result kept for it."""
    for resource in resources:
        if resource.psn == packet.psn and resource.form is packet.form:
            return resource
    return None


def accepts_replay(resource: Resource, position: int, end: int) -> bool:
    """A duplicate READ may ask for any part of the original."""
    return True


def gap_ends_on_arrival() -> bool:
    """A gap is over when the missing packet is executed; an RNR NAK of it leaves the gap."""
    return False


def gap_outlasts_duplicate() -> bool:
    """The response to a duplicate does not change the gap."""
    return True


def acknowledges_duplicate(packet: TransportPacket) -> bool:
    """Every duplicate SEND and WRITE packet is acknowledged."""
    return True


def acknowledges_last_duplicate(packet: TransportPacket) -> bool:
    """A duplicate SEND or WRITE packet is acknowledged when it asks for that or ends a message."""
    return bool(packet.ack_req) or packet.form.is_last


def psn_of_duplicate_ack(newest: int, executed: int) -> int:
    """It has the newest PSN."""
    return newest


def first_of_replay(position: int) -> int:
    """A READ that is replayed from a later packet begins with FIRST or ONLY."""
    return position


def acknowledges_failed_invalidate(packet: TransportPacket) -> bool:
    """A SEND that cannot invalidate its key is not acknowledged (IBA 9.9.3, class J)."""
    return False


def refused_receive_status(*, is_send: bool, is_access: bool) -> WCStatus | None:
    """The receive request of a refused message gets no particular status."""
    return None


def ends_write(packet: TransportPacket, rest: int, mtu: int) -> bool:
    """A packet is the last of a WRITE by its opcode."""
    return packet.form.is_last


def may_replay_read(
    keys: KeyTable, pd: ProtectionDomain, qp_num: int, packet: TransportPacket
) -> bool:
    """A duplicate READ of no bytes needs no key, as the first did not."""
    return True


def waits_for_early() -> bool:
    """A response that is ahead shows that one was lost (IBA 9.7.5.2.8)."""
    return False


def retransmits_missing(sends: SendState, packet: TransportPacket, distance: int) -> bool:
    """Everything from the PSN of the NAK on is retransmitted."""
    return False


def keeps_early(responder: object, packet: TransportPacket) -> bool:
    """A packet that is ahead is dropped; the first one causes a NAK (IBA 9.7.5.2.4)."""
    return False


def record_of_nak(early: EarlyPackets, expected: int) -> bytes:
    """A NAK names the missing packet only."""
    return b""
