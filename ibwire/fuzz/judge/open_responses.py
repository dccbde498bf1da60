"""Responses that a device may send or leave out: the reference does what the device has done.

A packet without AckReq may be acknowledged, an ACK may be left out before a later ACK or
response with data, which acknowledges as much, and a device may keep the responses to more READs
and atomics than it must. So the responder of the reference queues an ACK for each packet, and the
response to each duplicate; those that need not be sent are dropped if the device has not sent them.
The reference really sends the others, with its own MSN, credits and data: what is wrong in them is
seen, and both go on with the same credits.

Source: reference/transport#ack-due, #ack-coalescing, #saved-resources.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Sequence

from ibwire.base.node import Frame
from ibwire.fuzz.targets.emulated_device import Emulation
from ibwire.fuzz.targets.link.frames import transport
from ibwire.rc.replies import Reply
from ibwire_layers import headers as h
from ibwire_layers import syndrome as aeth
from ibwire_layers.opcodes import OpCode, Service
from ibwire_layers.psn import HALF, MASK
from ibwire_layers.syndrome import AckKind

Responses = Counter[tuple[int, int, bool]]
"""How many ACKs and responses with data there are, by the queue pair that they go to, their PSN,
and whether they are ACKs."""


def offer_responses(reference: Emulation) -> None:
    """Let the queue pairs of a reference queue responses that they need not send."""
    for qp in reference.pairs:
        qp.responder.offers = qp.service in _RELIABLE


def has_open_responses(reference: Emulation) -> bool:
    """Whether a reference has a response to send that it may leave out."""
    for qp in reference.pairs:
        replies = qp.responder.replies
        if replies and (len(replies) > 1 or not replies[0].is_due):
            return True
    return False


def responses_in(frames: Iterable[Frame]) -> Responses:
    """The ACKs and responses with data among the frames of a device."""
    found: Responses = Counter()
    for frame in frames:
        packet = transport(frame)
        if packet is None or len(packet) <= h.BTH.SIZE:
            continue
        operation = packet[0] & _OPERATION
        is_ack = operation == _ACKNOWLEDGE
        if is_ack and aeth.kind(packet[h.BTH.SIZE]) is not AckKind.ACK:
            continue
        if is_ack or operation in _WITH_DATA:
            found[int.from_bytes(packet[5:8]), int.from_bytes(packet[9:12]), is_ack] += 1
    return found


def follow_responses(reference: Emulation, sent: Responses) -> None:
    """Drop what a reference need not send and the device has not sent."""
    for qp in reference.pairs:
        responder = qp.responder
        if responder.replies:
            responder.replies = _kept(responder.replies, qp.attr.dest_qp_num, sent)
        if responder.replies:
            qp.wake()


def _kept(replies: Iterable[Reply], peer: int, sent: Responses) -> deque[Reply]:
    """The responses without those that are left out. peer: the queue pair that gets them."""
    newest_first = list(reversed(list(replies)))
    matched = _matched(newest_first, peer, sent)
    kept: deque[Reply] = deque()
    newest: int | None = None  # what later responses acknowledge
    for reply in newest_first:
        if _may_be_left_out(reply) and id(reply) not in matched:
            is_needed = newest is None or (newest - reply.psn) & MASK >= HALF
            if not (reply.is_due and is_needed):
                continue
        if reply.syndrome is None and (newest is None or (reply.psn - newest) & MASK < HALF):
            newest = reply.psn
        kept.appendleft(reply)
    return kept


def _matched(newest_first: Sequence[Reply], peer: int, sent: Responses) -> set[int]:
    """The responses, by their identity, that a device has sent: those that are due before others.

    An ACK that it has sent with a PSN which none has takes the place of one that is not due.
    """
    left = sent.copy()
    matched: set[int] = set()
    in_order = sorted(filter(_may_be_left_out, newest_first), key=lambda each: not each.is_due)
    for reply in in_order:
        which = peer, reply.psn + reply.position & MASK, reply.resource is None
        if left[which] > 0:
            left[which] -= 1
            matched.add(id(reply))
    known = {each.psn for each in newest_first}
    odd = sum(
        count
        for (to, psn, is_ack), count in left.items()
        if to == peer and is_ack and psn not in known
    )
    spare = [each for each in in_order if not each.is_due and each.resource is None]
    return matched | {id(each) for each in spare[:odd]}


def _may_be_left_out(reply: Reply) -> bool:
    """Whether a response is an ACK, or need not be sent."""
    return reply.syndrome is None and (reply.resource is None or not reply.is_due)


_RELIABLE = (Service.RC, Service.XRC)
_OPERATION = 0x1F
"""The bits of an opcode without those of the service."""
_ACKNOWLEDGE = int(OpCode.RC_ACKNOWLEDGE)
_WITH_DATA = frozenset(
    int(each)
    for each in (
        OpCode.RC_RDMA_READ_RESPONSE_FIRST,
        OpCode.RC_RDMA_READ_RESPONSE_MIDDLE,
        OpCode.RC_RDMA_READ_RESPONSE_LAST,
        OpCode.RC_RDMA_READ_RESPONSE_ONLY,
        OpCode.RC_ATOMIC_ACKNOWLEDGE,
    )
)
"""Those of responses with data."""
