"""Packets that go on with a retransmission, several at a time.

Requests that are retransmitted, and READ responses that are sent again, mostly come one after the
other. Where the sender counts up the IP identification by one, nothing is missing between them,
and what they change is added up. They change the trackers as if `ConnectionTracker.take` had
taken them one by one; tests require the same results.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ibwire.connections.connection import Connection
from ibwire.connections.events import Cause
from ibwire.connections.identity import KEEP
from ibwire.connections.opcode_sets import ACKNOWLEDGE, ANSWERED, FULL, RESPONSES, VERB
from ibwire.connections.packet_observer import PacketObserver
from ibwire.connections.packets import TransportPacket
from ibwire.connections.retransmissions import PAUSE_NS
from ibwire.connections.states import RETRANSMITTED
from ibwire.connections.tracked_requests import Retransmission
from ibwire.connections.tracker import ANSWERED_AGAIN, JUMP, RequestTracker
from ibwire_layers.psn import MASK
from ibwire_layers.syndrome import INVALID_CREDITS

FEWEST: Final = 2
"""Fewer packets are taken one by one."""
REQUESTS = frozenset(VERB) - RESPONSES - ANSWERED
"""Opcodes of requests that take one PSN, and that any ACK answers."""
ANSWERS = RESPONSES - ACKNOWLEDGE
"""Opcodes of responses to READs and atomics."""


def advance(
    requests: Sequence[RequestTracker],
    observer: PacketObserver | None,
    ways: Sequence[int],
    packets: Sequence[TransportPacket],
    at: int,
    *,
    were_held: bool = False,
) -> int:
    """Take the packets from a place on that go on with a retransmission; returns how many.

    requests: of both ends of a connection. ways: which end sent each packet.
    were_held: they have waited for a response, as those of which an ACK has passed do.
    """
    packet = packets[at]
    if not requests[0].connection.is_reliable:
        return 0
    if packet.opcode in REQUESTS:
        tracker = requests[ways[at]]
        run = tracker.run
        if run is None or run.end & MASK != packet.psn or not _goes_on(tracker, run, packet):
            return 0
        if run.end <= tracker.acked and not were_held:
            return 0
        first, end = run.end, _end_of_requests(tracker, run.end)
        count = _count(tracker, ways, packets, at, first=first, end=end, opcodes=REQUESTS)
        if count:
            _take_requests(tracker, observer, run, packets[at : at + count])
        return count
    if packet.opcode in ANSWERS:
        tracker = requests[1 - ways[at]]
        first = tracker.replay_end or 0
        if not first or first & MASK != packet.psn:
            return 0
        end = _end_of_responses(tracker, first)
        count = _count(tracker, ways, packets, at, first=first, end=end, opcodes=ANSWERS)
        if count:
            _take_responses(tracker, observer, first, packets[at : at + count])
        return count
    return 0


def _goes_on(tracker: RequestTracker, run: Retransmission, packet: TransportPacket) -> bool:
    """Whether nothing but the next packet of a run of retransmitted requests decides what it is."""
    before = tracker.recent_requests.get(run.psn)
    return (
        run.interrupted is None
        and tracker.failed is None
        and not tracker.start_psns
        and before is not None
        and before.ip_id + 1 & 0xFFFF == packet.ip_id
    )


def _end_of_requests(tracker: RequestTracker, first: int) -> int:
    """PSN before which retransmitted requests change nothing else.

    All of them were seen before, and none is refused.
    """
    assert tracker.next is not None
    if tracker.next - first > JUMP:
        return first
    ends = [tracker.next, *(each.psn for each in tracker.refusals if each.psn >= first)]
    for gap in tracker.unseen.requests:
        if first < gap.end:
            ends.append(gap.first)
    return min(ends)


def _end_of_responses(tracker: RequestTracker, first: int) -> int:
    """PSN before which responses that are sent again change nothing else.

    All of them were seen before, and none is the last that is missing.
    """
    if tracker.next is None or first < tracker.start:
        return first
    ends = [tracker.next]
    if not tracker.unseen.is_settled and not tracker.is_retransmitting:
        ends.append(first + KEEP - tracker.unseen.unsettled.age)
    if tracker.disturbed_end:
        ends.append(tracker.disturbed_end - 1)
    ends += (each.next_response for each in tracker.reads if first <= each.last)
    for gap in tracker.unseen.responses:
        if first < gap.end:
            ends.append(gap.first)
    return min(ends)


def _count(
    tracker: RequestTracker,
    ways: Sequence[int],
    packets: Sequence[TransportPacket],
    at: int,
    *,
    first: int,
    end: int,
    opcodes: frozenset[int],
) -> int:
    """How many packets from a place on have the next PSNs and identifications; 0 for too few."""
    way, mtu = ways[at], tracker.connection.mtu
    identity = tracker.connection.identities[way]
    if not identity.counts_up or end - first < FEWEST:
        return 0
    ip_id = identity.high
    last_ns = tracker.last_ns
    count = 0
    for place in range(at, min(len(packets), at + end - first)):
        packet = packets[place]
        ip_id = ip_id + 1 & 0xFFFF
        if (
            ways[place] != way
            or packet.opcode not in opcodes
            or packet.psn != first + count & MASK
            or packet.ip_id != ip_id
            or identity.icrc_of(ip_id) >= 0
            or packet.damaged
            or packet.marked
            or packet.syndrome > INVALID_CREDITS
            or packet.time_ns - last_ns > PAUSE_NS
            or (packet.opcode in FULL and packet.size != mtu)
        ):
            break
        last_ns = packet.time_ns
        count += 1
    return count if count >= FEWEST else 0


def _take_requests(
    tracker: RequestTracker,
    observer: PacketObserver | None,
    run: Retransmission,
    packets: Sequence[TransportPacket],
) -> None:
    """Take requests that are retransmitted, from the PSN on with which the run goes on."""
    assert tracker.next is not None
    first, last = run.end, packets[-1]
    is_doubtful = run.event.cause not in (Cause.NAK, Cause.RNR)
    for psn, packet in enumerate(packets, first):
        if observer is not None:
            observer.request(tracker, packet, RETRANSMITTED)
        for message in tracker.messages:
            if message.first <= psn <= message.last:
                message.retransmitted += 1
                message.is_doubtful |= is_doubtful
                break
        run.psn, run.end, tracker.last_ns = psn, psn + 1, packet.time_ns
        tracker.recent_requests.add(psn, packet)
    tracker.disturb(tracker.next, packets[0])
    tracker.answered_end, tracker.replay_end = 0, None
    run.event.count += len(packets)
    run.event.last_psn, run.event.last_number = last.psn, last.number
    tracker.last_place = last.place
    _count_packets(tracker.connection, tracker.end, packets)
    tracker.age_by(len(packets))


def _take_responses(
    tracker: RequestTracker,
    observer: PacketObserver | None,
    first: int,
    packets: Sequence[TransportPacket],
) -> None:
    """Take responses that are sent again, from this PSN on."""
    again, last = tracker.answered_again, packets[-1]
    for psn, packet in enumerate(packets, first):
        if observer is not None:
            observer.response(tracker, packet, RETRANSMITTED)
        if 0 <= packet.syndrome < INVALID_CREDITS:
            counts = tracker.connection.directions[tracker.end]
            counts.note_credits(lowest=packet.syndrome, highest=packet.syndrome)
        again[psn] = again.pop(psn, 0) + 1
        if len(again) > ANSWERED_AGAIN:
            del again[next(iter(again))]
        tracker.last_ns = packet.time_ns
        tracker.recent_responses.add(psn, packet)
    tracker.replay_end = first + len(packets)
    if tracker.disturbed_end:
        tracker.answered_end = tracker.replay_end
    tracker.last_place = last.place
    _count_packets(tracker.connection, 1 - tracker.end, packets)
    tracker.age_by(len(packets))


def _count_packets(connection: Connection, way: int, packets: Sequence[TransportPacket]) -> None:
    """Count retransmitted packets of a direction, and remember their identifications."""
    counts, identity = connection.directions[way], connection.identities[way]
    counts.packets += len(packets)
    counts.retransmitted += len(packets)
    counts.last_ns = packets[-1].time_ns
    for each in packets:
        counts.bytes += each.length
        counts.payload_bytes += each.size
        identity.note(each)
