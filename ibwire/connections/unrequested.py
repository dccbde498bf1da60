"""Responses where no request is seen: the PSNs inside a READ, and NAKs."""

from __future__ import annotations

from ibwire.connections.naks import demand_of, refuse
from ibwire.connections.opcode_sets import ACKNOWLEDGE, FULL, STARTS
from ibwire.connections.packets import TransportPacket
from ibwire.connections.tracked_requests import TrackedRequests
from ibwire_layers.psn import HALF, MASK
from ibwire_layers.syndrome import AckKind, kind


def take_unrequested(requests: TrackedRequests, packet: TransportPacket) -> None:
    """Follow the PSNs inside a READ, and note what a NAK demands."""
    counts = requests.connection.directions[1 - requests.end]
    if packet.opcode in ACKNOWLEDGE:
        if kind(packet.syndrome) is not AckKind.ACK:
            refuse(requests, packet.psn, packet)
    else:
        expected = requests.unrequested_next
        step = 0 if expected is None else (packet.psn - expected + HALF & MASK) - HALF
        if step > 0 and packet.opcode not in STARTS:
            requests.connection.count_lost(1 - requests.end, psn=packet.psn, count=step)
        if step < 0:
            counts.retransmitted += 1
        else:
            is_followed = packet.opcode in FULL
            requests.unrequested_next = packet.psn + 1 & MASK if is_followed else None
    nak = requests.unrequested_nak
    if nak is None or (packet.psn - nak[1] & MASK) < HALF:
        asked = demand_of(packet)
        requests.unrequested_nak = None if asked is None else (asked, packet.psn)
    requests.last_ns = packet.time_ns
