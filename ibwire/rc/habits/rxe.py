"""The behaviour of Linux Soft-RoCE (rxe) where it differs from the specification.

Source: rxe_comp.c `check_psn`, `check_ack`, `do_read`, `rxe_completer`; rxe_req.c
`req_retry`; rxe_resp.c `find_resource`, `duplicate_request`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from ibwire.base.units import Time
from ibwire.rc.habits import spec
from ibwire.rc.memory import KeyTable, ProtectionDomain
from ibwire.rc.packet import TransportPacket
from ibwire.rc.replies import Reply, Resource
from ibwire.rc.send_state import SendState, SendWQE
from ibwire.rc.srq import SharedReceiveQueue
from ibwire.rc.work import WCStatus
from ibwire_layers.opcodes import Operation
from ibwire_layers.psn import HALF, MASK
from ibwire_layers.syndrome import AckKind, kind


def rnr_wait_blocks() -> bool:
    """An RNR wait delays retransmissions only, and no acknowledgement ends it."""
    return False


def takes_rnr_nak(sends: SendState) -> bool:
    """Every RNR NAK takes a retry and restarts the wait."""
    return True


def acknowledged_by_nak(sends: SendState, psn: int) -> int:
    """A NAK acknowledges the messages before the message that it refuses."""
    wqe = _refused_message(sends, psn)
    return psn if wqe is None else wqe.first_psn


def nak_moves_una(sends: SendState, psn: int) -> bool:
    """A sequence NAK moves `una` inside its message, which does not count as progress."""
    return _refused_message(sends, psn) is not None


def rnr_nak_is_for_oldest(sends: SendState, psn: int) -> bool:
    """An RNR NAK counts for the oldest packet, and for any packet of a SEND or WRITE."""
    return psn == sends.una or _refused_message(sends, psn) is not None


def may_go_back(sends: SendState) -> bool:
    """After going back the requester waits for an ACK or its timer (`started_retry`)."""
    return sends.restart_psn is None


def restart_psn_after_timeout(sends: SendState) -> int | None:
    """A timeout counts as going back (`started_retry`)."""
    return sends.una


def restart_psn_after_rnr_nak(sends: SendState) -> int | None:
    """An RNR NAK does not end the wait for an ACK."""
    return sends.restart_psn


def is_recovering(sends: SendState, psn: int) -> bool:
    """Any later response shows that a response was lost, whenever its packet was sent."""
    return False


def renumber(sends: SendState, mtu: int) -> None:
    """The oldest READ gets a PSN for each missing packet, and the following requests the next PSNs.

    `req_retry` counts missing packets, which differ from the missing PSNs when responses
    were shorter than the path MTU.
    """
    if not sends.wqes or not sends.wqes[0].started:
        return
    wqe = sends.wqes[0]
    if wqe.plan.operation is not Operation.READ:
        return
    end = wqe.first_psn + wqe.packets
    wqe.skipped = wqe.received
    wqe.first_psn = sends.una
    wqe.packets = max(-(-(wqe.length - wqe.received) // mtu), 1)
    moved = sends.una + wqe.packets - end
    sends.next_psn = sends.next_psn + moved & MASK
    for behind in sends.wqes:
        if behind is not wqe:
            behind.first_psn = behind.first_psn + moved & MASK


def oldest_read_incomplete(sends: SendState) -> bool:
    """Whether the oldest request is a READ whose PSNs are all acknowledged before its data."""
    if not sends.wqes or not sends.wqes[0].started:
        return False
    wqe = sends.wqes[0]
    is_read = wqe.plan.operation is Operation.READ
    return is_read and (wqe.first_psn + wqe.packets) & MASK == sends.una


def read_length_fault(
    wqe: SendWQE, packet: TransportPacket, mtu: int, status: WCStatus
) -> WCStatus | None:
    """A READ response of any length is stored if it fits (`do_read`)."""
    rest = wqe.length - wqe.received
    return WCStatus.LOC_PROT_ERR if len(packet.payload) > rest else None


def completes(wqe: SendWQE, packet: TransportPacket) -> bool:
    """A READ is complete with a last response when all its bytes have arrived."""
    if wqe.plan.operation is Operation.READ:
        return packet.form.is_last and wqe.received == wqe.length
    return spec.completes(wqe, packet)


def is_old_response(sends: SendState, psn: int) -> bool:
    """A response counts as new up to 2^23 PSNs after the end of the oldest request."""
    wqes = sends.wqes
    if not wqes or not wqes[0].started:
        return True
    return (psn - wqes[0].first_psn - wqes[0].packets) & MASK >= HALF - 1


def acknowledged_by_unsent(sends: SendState) -> int | None:
    """A response to a PSN that was never sent acknowledges every sent packet."""
    return sends.next_psn


def stop_ack_timer(sends: SendState) -> None:
    """The ACK timer keeps running, and expires during a later request."""


def retries_left(retries: int) -> int:
    """A retry count of 7 is infinite (`rxe_completer`)."""
    return retries if retries == 7 else retries - 1


def take_ack_as_answer(completer: spec.Answering, psn: int, *, is_ack: bool, now: Time) -> bool:
    """An ACK of its PSN answers the oldest READ or atomic (`check_ack`).

    Returns `False` if the packet must be processed as usual. After the first response of a
    READ any acknowledgement, a NAK too, is misplaced.
    """
    sends = completer.sends
    if not completer.acknowledge_before(psn, now):
        return True
    wqe = sends.wqes[0]
    if not wqe.plan.is_answered or sends.find(psn) is not wqe:
        return False
    if psn != sends.una:
        return True  # only the next response counts
    if wqe.in_response:
        completer.refuse_misplaced()
        return True
    if is_ack:
        completer.answer(wqe, psn, now)
    return is_ack


def read_gap_restarts() -> bool:
    """A gap in the responses of a READ waits for the ACK timer (drop-read-response)."""
    return False


def ack_kind(syndrome: int) -> AckKind:
    """A syndrome with bit 7 is none of the known kinds: `AETH_TYPE_MASK` has three bits."""
    return AckKind.RESERVED if syndrome >> 7 else kind(syndrome)


def fails_for_reserved(syndrome: int) -> bool:
    """A reserved syndrome ends the connection (`rxe_completer`)."""
    return True


def fails_for_reserved_bit(syndrome: int) -> bool:
    """A syndrome with bit 7 ends the connection: `AETH_TYPE_MASK` has three bits (`check_ack`)."""
    return bool(syndrome >> 7)


def status_of_reserved_nak() -> WCStatus | None:
    """A NAK with a reserved code is one of an operation that failed (`rxe_completer`)."""
    return WCStatus.REM_OP_ERR


def replaced_ack(replies: deque[Reply]) -> Reply | None:
    """Each request that asks for an ACK gets one (`acknowledge`)."""
    return None


def has_receive(receives: spec.Receives, srq: SharedReceiveQueue | None) -> bool:
    """A WRITE with immediate data takes its receive request at once (`check_resource`)."""
    return receives.take(srq)


def checks_alignment_first() -> bool:
    """The R_Key is checked before alignment (`check_rkey`, then `atomic_reply`)."""
    return False


def msn_of(reply: Reply, msn: int) -> int:
    """A response has the MSN of its request: it is made before the next request is processed."""
    return reply.msn


def withdraw_naks(replies: deque[Reply]) -> deque[Reply]:
    """A NAK is sent even if the missing packet has arrived."""
    return replies


def queue_replay(replies: deque[Reply], reply: Reply) -> None:
    """A replayed response is sent after those that wait."""
    replies.append(reply)


def has_slot(resources: Iterable[Resource], limit: int) -> bool:
    """A READ or atomic takes the oldest slot, answered or not."""
    return limit > 0


def forget_oldest(resources: list[Resource]) -> Resource | None:
    """The oldest slot is taken, answered or not."""
    return resources.pop(0)


def find_result(resources: Iterable[Resource], packet: TransportPacket) -> Resource | None:
    """A duplicate atomic is answered with the record for its PSN (`struct resp_res`).

    The records of an atomic and of a READ share their memory: the response may be the result
    of another atomic, or the address of a READ.
    """
    for resource in resources:
        if (packet.psn - resource.psn) & MASK < resource.count:
            found = Resource(packet, 1, resource.pd)
            found.original = resource.original
            if resource.form.operation is Operation.READ:
                found.original = resource.va
            return found
    return None


def accepts_replay(resource: Resource, position: int, end: int) -> bool:
    """A duplicate READ must begin no earlier than the last replay, which narrows the record."""
    if position < resource.narrowed:
        return False
    resource.narrowed = position
    return True


def gap_ends_on_arrival() -> bool:
    """A gap is over when the missing packet arrives, even if that causes an RNR NAK."""
    return True


def psn_of_duplicate_ack(newest: int, executed: int) -> int:
    """It has the PSN of the newest executed SEND, WRITE or atomic."""
    return executed


def first_of_replay(position: int) -> int:
    """A READ that is replayed from a later packet begins with MIDDLE or LAST."""
    return 0


def acknowledges_failed_invalidate(packet: TransportPacket) -> bool:
    """A SEND that cannot invalidate its key is acknowledged first (`execute`, `acknowledge`)."""
    return bool(packet.ack_req)


def refused_receive_status(*, is_send: bool, is_access: bool) -> WCStatus | None:
    """A refused WRITE completes the receive request that it has taken (`check_resource`)."""
    if is_send:
        return None
    return WCStatus.REM_ACCESS_ERR if is_access else WCStatus.REM_INV_REQ_ERR


def ends_write(packet: TransportPacket, rest: int, mtu: int) -> bool:
    """A packet is the last of a WRITE when the rest fits into it (`check_rkey`)."""
    return rest <= mtu


def is_any_size(packet: TransportPacket, mtu: int) -> bool:
    """The size of a packet does not depend on its position (probe-odd-frames)."""
    return True


def may_replay_read(
    keys: KeyTable, pd: ProtectionDomain, qp_num: int, packet: TransportPacket
) -> bool:
    """A duplicate READ of no bytes needs a known key (`rxe_recheck_mr`)."""
    return bool(packet.dma_len) or keys.grants(pd, qp_num, packet.rkey, None, 0, 0)


def _refused_message(sends: SendState, psn: int) -> SendWQE | None:
    """The SEND or WRITE that the PSN of a NAK belongs to."""
    wqe = sends.find(psn)
    return None if wqe is None or wqe.plan.is_answered else wqe
