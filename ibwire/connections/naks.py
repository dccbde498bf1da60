"""NAKs and RNR NAKs: what they refuse, and what they demand of the requester."""

from __future__ import annotations

from typing import Final

from ibwire.connections.ending import Trouble
from ibwire.connections.events import Cause, FlowEvent, FlowEventKind
from ibwire.connections.opcode_sets import ACKNOWLEDGE
from ibwire.connections.packets import TransportPacket
from ibwire.connections.tracked_requests import TrackedRequests
from ibwire_layers.syndrome import KIND_BITS, RNR_TIMER_US, AckKind, NakCode, code, kind

OLD_NAKS: Final = 4
"""NAKs that are remembered when what they ask for has arrived meanwhile."""
NAK_NAMES = {value.value: value.name.lower() for value in NakCode}


def refuse(requests: TrackedRequests, psn: int, packet: TransportPacket) -> None:
    """Count and report a NAK or an RNR NAK."""
    counts = requests.connection.directions[requests.end]
    value = code(packet.syndrome)
    requests.disturb(psn + 1, packet)
    event, wait_ns = FlowEventKind.NAK, None
    if kind(packet.syndrome) is AckKind.RNR_NAK:
        counts.rnr_naks += 1
        event, wait_ns = FlowEventKind.RNR_NAK, RNR_TIMER_US[value] * 1000
        requests.refusals.add(psn, packet, Cause.RNR, wait_ns)
    else:
        counts.count_nak(NAK_NAMES.get(value, f"code_{value}"))
        if value == NakCode.PSN_SEQUENCE_ERROR:
            requests.refusals.add(psn, packet, Cause.NAK)
            requests.old_naks = [*requests.old_naks[1 - OLD_NAKS :], psn]
        else:
            requests.refusals.fail()
            requests.failed = packet
    requests.reports.event(
        FlowEvent(
            kind=event,
            connection=requests.connection.number,
            direction=requests.end,
            number=packet.number,
            time_ns=packet.time_ns,
            psn=packet.psn,
            last_psn=packet.psn,
            opcode=packet.opcode,
            delay_ns=wait_ns,
            code=packet.syndrome,
        )
    )


def demand_of(packet: TransportPacket) -> Trouble | None:
    """What a response asks a requester for that was never seen."""
    if packet.opcode not in ACKNOWLEDGE or packet.syndrome & KIND_BITS == 0:
        return None
    if kind(packet.syndrome) is AckKind.RNR_NAK:
        return Trouble.RNR
    return Trouble.NAK if code(packet.syndrome) == NakCode.PSN_SEQUENCE_ERROR else None
