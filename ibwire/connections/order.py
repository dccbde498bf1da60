"""Counts packets that were reordered or duplicated on the way, requests and responses alike."""

from __future__ import annotations

from typing import Final

from ibwire.connections.events import FlowEventKind
from ibwire.connections.identity import COPY_NS, REORDER_IDS
from ibwire.connections.opcode_sets import ACKNOWLEDGE, PARTS, STARTS
from ibwire.connections.packets import TransportPacket
from ibwire.connections.retransmissions import count_late
from ibwire.connections.states import DUPLICATE, REORDERED, PacketStatus
from ibwire.connections.tracked_requests import TrackedRequests

SHORTEST_RNR_NS: Final = 10_000
"""No requester retransmits its newest packet sooner: the shortest wait after an RNR NAK (IBA table
45), and nothing shows a responder that this packet was lost."""


def note_order(
    requests: TrackedRequests,
    direction: int,
    psn: int,
    packet: TransportPacket,
    status: PacketStatus,
) -> None:
    """Count a packet that was reordered.

    rxe numbers requests and responses together, and may send them in another
    order: where PSNs are in order, only a packet of the same kind counts.
    """
    is_late = status is REORDERED
    identity = requests.connection.identities[direction]
    is_overtaken = identity.is_overtaken(packet, otherwise=is_late)
    if status is DUPLICATE or not is_overtaken:
        return
    newest = requests.recent(direction).last_added
    if not is_late and (
        newest is None or not 0 < (newest.ip_id - packet.ip_id & 0xFFFF) < REORDER_IDS
    ):
        return
    if direction == requests.end:
        requests.unseen.unsettled.ip_ids.discard(packet.ip_id)
    counts = requests.connection.directions[direction]
    counts.reordered += 1
    gap = None if identity.decides(packet) else requests.unseen.gap_of(direction, psn)
    late_ns = None if gap is None else packet.time_ns - gap.time_ns
    if late_ns is not None and direction == requests.end and requests.connection.is_reliable:
        is_asked = any(each.psn <= psn for each in requests.refusals)
        counts.perhaps_resent += is_asked or late_ns > COPY_NS
    cause = None
    was_sent_before = _was_sent_before(requests, direction, psn, packet)
    if is_late and packet.opcode not in ACKNOWLEDGE and was_sent_before:
        counts.retransmitted += 1
        cause = count_late(requests, psn, packet) if direction == requests.end else None
    requests.reports.packet(
        FlowEventKind.REORDERED,
        direction,
        packet,
        cause=cause,
        cause_number=_first_overtaking(requests, direction, packet),
        delay_ns=late_ns,
    )


def _first_overtaking(requests: TrackedRequests, direction: int, packet: TransportPacket) -> int:
    """The first packet seen here that was sent later than this one; 0 where that is open."""
    if not requests.connection.identities[direction].decides(packet):
        return 0
    return min(
        (
            each.number
            for each in requests.recent(direction).all().values()
            if 0 < (each.ip_id - packet.ip_id & 0xFFFF) < REORDER_IDS
        ),
        default=0,
    )


def _was_sent_before(
    requests: TrackedRequests, direction: int, psn: int, packet: TransportPacket
) -> bool:
    """Whether a packet that was reordered is not the first of its PSN."""
    run = requests.retransmission
    if direction == requests.end and run is not None and requests.unseen.was_skipped(psn):
        was_seen = not requests.unseen.is_unseen(direction, psn)
        return was_seen or 0 < (packet.ip_id - run.ip_id & 0xFFFF) < REORDER_IDS
    before = requests.recent(direction).get(psn)
    if before is not None and 0 < (packet.ip_id - before.ip_id & 0xFFFF) < REORDER_IDS:
        return True
    return psn >= requests.start and not requests.unseen.is_unseen(direction, psn)


def note_duplicate(
    requests: TrackedRequests,
    direction: int,
    packet: TransportPacket,
    first: TransportPacket | None,
) -> None:
    """Count a duplicate, or what may have been retransmitted as well.

    first: the newest packet of its PSN before it.
    """
    counts = requests.connection.directions[direction]
    number = first.number if first and first.icrc == packet.icrc else 0
    decides = requests.connection.identities[direction].decides(packet)
    if not decides and not _is_copy(requests, direction, packet, first):
        counts.repeated += 1
        if direction == requests.end:
            requests.repeated_place = packet.place
        requests.reports.packet(FlowEventKind.REPEATED, direction, packet, cause_number=number)
        return
    counts.duplicates += 1
    run = requests.retransmission
    if not decides and first is not None and run is not None and first.place >= run.place:
        number = 0  # there are two
    requests.reports.packet(FlowEventKind.DUPLICATE, direction, packet, cause_number=number)


def _is_copy(
    requests: TrackedRequests,
    direction: int,
    packet: TransportPacket,
    first: TransportPacket | None,
) -> bool:
    """Whether the sender of a duplicate cannot have retransmitted it."""
    is_next = first is not None and first.place == requests.last_place
    if direction != requests.end:
        # A responder sends a response twice if its request is duplicated after this point.
        return is_next and packet.opcode in PARTS - STARTS
    if first is None or not requests.connection.is_reliable:
        return True
    after_ns = packet.time_ns - first.time_ns
    if not requests.connection.is_paired:  # a NAK may have asked for it
        return is_next and after_ns < SHORTEST_RNR_NS
    answer = requests.recent_responses.last_added
    is_quiet = answer is None or answer.place < first.place
    if requests.repeated_place == requests.last_place:
        return False  # all of them may be one retransmission
    return after_ns < COPY_NS and (is_next or is_quiet) and not requests.disturbed_end
