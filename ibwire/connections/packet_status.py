"""What a packet is whose PSN is not new: a retransmission, a duplicate, or late.

The identification of IPv4 distinguishes them where the sender increments it (rxe does);
elsewhere the earlier responses and the time decide.
"""

from __future__ import annotations

from typing import Final

from ibwire.connections.gaps import within
from ibwire.connections.opcode_sets import ANSWERED
from ibwire.connections.packets import TransportPacket
from ibwire.connections.retransmissions import SILENCE_NS, may_be_late, take_back
from ibwire.connections.states import (
    DUPLICATE,
    NEW,
    REORDERED,
    RETRANSMITTED,
    STALE,
    UNKNOWN,
    PacketStatus,
)
from ibwire.connections.tracked_requests import TrackedRequests
from ibwire_layers.psn import MASK
from ibwire_layers.syndrome import KIND_BITS

ACK_COPY_NS: Final = 10_000
"""An ACK that comes again later than this, without a retransmission, may have another cause."""


def status_of_old_request(
    requests: TrackedRequests, psn: int, packet: TransportPacket
) -> PacketStatus:
    """The status of a request whose PSN is not new."""
    identity = requests.connection.identities[requests.end]
    was_seen = psn >= requests.start and within(requests.unseen.requests, psn) is None
    if identity.decides(packet):
        if was_seen and identity.is_copy(packet):
            return DUPLICATE
        if not requests.connection.is_reliable:
            return DUPLICATE if was_seen else REORDERED
        is_late = identity.is_overtaken(packet, otherwise=False)
        return REORDERED if is_late else RETRANSMITTED
    before = requests.recent_requests.get(psn)
    since = (-1, 0) if before is None else before.place
    run = requests.run
    is_due = any(each.psn <= psn and each.place > since for each in requests.refusals)
    is_due |= run is not None and run.place > since
    # The first of a retransmission may have been a late one, and this the first.
    is_due |= run is not None and run.event.count == 1 and run.psn == psn
    is_due |= packet.time_ns - requests.last_ns > SILENCE_NS
    if packet.opcode in ANSWERED:  # a response may have been lost after this point
        answer = requests.recent_responses.last_added
        is_due |= answer is not None and answer.place > since and requests.acked > psn
    if run is not None and run.psn == psn and may_be_late(requests, run):
        take_back(requests, run)
        return RETRANSMITTED
    is_due |= any(each.psn == psn for each in requests.refusals)
    if not is_due and was_seen and _may_come_late(requests, psn):
        return REORDERED  # the first, after its retransmission
    if was_seen and identity.is_duplicate(packet, before, has_cause=is_due):
        return DUPLICATE
    if not requests.connection.is_reliable:
        return DUPLICATE if was_seen else REORDERED
    if _has_cause(requests, psn, packet, since):
        return RETRANSMITTED
    if not was_seen or _may_come_late(requests, psn):
        return REORDERED
    return RETRANSMITTED


def _may_come_late(requests: TrackedRequests, psn: int) -> bool:
    """Whether the first request of this PSN has not passed here, not even damaged."""
    is_unseen = requests.unseen.is_unseen(requests.end, psn)
    return is_unseen and psn & MASK not in requests.connection.damaged.requests[requests.end]


def _has_cause(
    requests: TrackedRequests, psn: int, packet: TransportPacket, since: tuple[int, int]
) -> bool:
    """Whether something that was seen could have made the requester retransmit this.

    since: file and number of the newest packet of this PSN.
    """
    run = requests.run
    if run is not None and run.end <= psn and run.place > since:
        return True  # the retransmission goes on
    if packet.time_ns - requests.last_ns > SILENCE_NS:
        return True
    was_seen = requests.recent_requests.get(psn) is not None
    return any(
        (each.psn == psn or (was_seen and each.psn < psn)) and each.place > since
        for each in requests.refusals
    )


def status_of_acknowledge(
    requests: TrackedRequests, psn: int, packet: TransportPacket
) -> PacketStatus:
    """The status of an ACK, NAK or RNR NAK."""
    assert requests.next is not None
    identity = requests.connection.identities[1 - requests.end]
    is_ack = packet.syndrome & KIND_BITS == 0
    if identity.decides(packet):
        is_duplicate = identity.is_copy(packet)
    else:
        before = requests.recent_responses.get(psn)
        run = requests.retransmission
        if is_ack:
            has_cause = not _is_ack_twice(requests, packet, before)
        else:
            has_cause = run is not None and before is not None and run.place > before.place
        is_duplicate = identity.is_duplicate(packet, before, has_cause=has_cause)
    if is_duplicate:
        return DUPLICATE
    if (psn if is_ack else psn - 1) >= requests.next:
        return UNKNOWN
    if not is_ack or psn > requests.acked:
        return NEW
    is_late = identity.is_overtaken(packet, otherwise=False)
    return REORDERED if is_late else STALE


def _is_ack_twice(
    requests: TrackedRequests, packet: TransportPacket, before: TransportPacket | None
) -> bool:
    """Whether an ACK comes again at once, where nothing has been retransmitted or lost."""
    if before is None or requests.run is not None or requests.disturbed_end:
        return False
    request = requests.recent_requests.last_added
    is_next = request is None or request.place < before.place
    return is_next and packet.time_ns - before.time_ns < ACK_COPY_NS


def status_of_old_response(
    requests: TrackedRequests, psn: int, packet: TransportPacket
) -> PacketStatus:
    """The status of a response whose PSN is not new."""
    assert requests.next is not None
    if psn >= requests.next or psn < requests.start:
        return UNKNOWN
    identity = requests.connection.identities[1 - requests.end]
    was_seen = within(requests.unseen.responses, psn) is None
    if identity.decides(packet):
        if was_seen and identity.is_copy(packet):
            return DUPLICATE
        is_late = identity.is_overtaken(packet, otherwise=False)
        return REORDERED if is_late else RETRANSMITTED
    before = requests.recent_responses.get(psn)
    repeats = 0
    for first, end in requests.repeated_reads:
        if first <= psn < end:
            repeats += 1
    was_repeated = repeats > requests.answered_again.get(psn, 0)
    if not was_repeated and requests.unseen.is_unseen(1 - requests.end, psn):
        return REORDERED
    if was_seen and identity.is_duplicate(packet, before, has_cause=was_repeated):
        return DUPLICATE
    # A responder answers again only what it is asked again.
    is_copy = not was_repeated and before is not None
    return DUPLICATE if is_copy else RETRANSMITTED
