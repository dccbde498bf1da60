"""ACKs that a device may send or leave out: the reference does what the device has done.

A packet without AckReq may be acknowledged, and an ACK may be left out before a later ACK or
response with data, which acknowledges as much. So the responder of the reference queues an ACK for
each packet, and those that need not be sent are dropped if the device has not sent them. The
reference really sends the others, with its own MSN and credits: what is wrong in them is seen, and
both go on with the same credits.

Source: reference/transport#ack-due, #ack-coalescing.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable

from ibwire.base.node import Frame
from ibwire.fuzz.targets.emulated_device import Emulation
from ibwire.fuzz.targets.link.frames import transport
from ibwire.rc.replies import Reply
from ibwire_layers import headers as h
from ibwire_layers import syndrome as aeth
from ibwire_layers.opcodes import OpCode, Service
from ibwire_layers.psn import HALF, MASK
from ibwire_layers.syndrome import AckKind

Acks = Counter[tuple[int, int]]
"""How many ACKs there are, by the queue pair that they go to and their PSN."""


def offer_acks(reference: Emulation) -> None:
    """Let the queue pairs of a reference queue ACKs that they need not send."""
    for qp in reference.pairs:
        qp.responder.offers_acks = qp.service in _RELIABLE


def has_open_acks(reference: Emulation) -> bool:
    """Whether a reference has an ACK to send that it may leave out."""
    for qp in reference.pairs:
        replies = qp.responder.replies
        if replies and (len(replies) > 1 or not replies[0].is_due):
            return True
    return False


def acks_in(frames: Iterable[Frame]) -> Acks:
    """The ACKs among the frames of a device."""
    found: Acks = Counter()
    for frame in frames:
        packet = transport(frame)
        if (
            packet is not None
            and len(packet) > h.BTH.SIZE
            and packet[0] & _OPERATION == _ACKNOWLEDGE
            and aeth.kind(packet[h.BTH.SIZE]) is AckKind.ACK
        ):
            found[int.from_bytes(packet[5:8]), int.from_bytes(packet[9:12])] += 1
    return found


def follow_acks(reference: Emulation, sent: Acks) -> None:
    """Drop the ACKs of a reference that need not be sent and that the device has not sent."""
    for qp in reference.pairs:
        responder = qp.responder
        if responder.replies:
            responder.replies = _kept(responder.replies, qp.attr.dest_qp_num, sent)
        if responder.replies:
            qp.wake()


def _kept(replies: Iterable[Reply], peer: int, sent: Acks) -> deque[Reply]:
    """The responses without the ACKs that are left out. peer: the queue pair that gets them."""
    left = sent.copy()
    kept: deque[Reply] = deque()
    newest: int | None = None  # what later responses acknowledge
    for reply in reversed(list(replies)):
        if reply.resource is None and reply.syndrome is None:
            is_needed = newest is None or (newest - reply.psn) & MASK >= HALF
            if left[peer, reply.psn] > 0:
                left[peer, reply.psn] -= 1
            elif not (reply.is_due and is_needed):
                continue
        if reply.syndrome is None and (newest is None or (reply.psn - newest) & MASK < HALF):
            newest = reply.psn
        kept.appendleft(reply)
    return kept


_RELIABLE = (Service.RC, Service.XRC)
_OPERATION = 0x1F
"""The bits of an opcode without those of the service."""
_ACKNOWLEDGE = int(OpCode.RC_ACKNOWLEDGE)
