"""What a response is, read from its AETH."""

from __future__ import annotations

from ibwire.rc.packet import TransportPacket
from ibwire_layers import syndrome as aeth
from ibwire_layers.opcodes import Operation
from ibwire_layers.syndrome import AckKind


def nak_code(packet: TransportPacket) -> int | None:
    """The code of a NAK; `None` for any other response."""
    if not packet.form.has_aeth or aeth.kind(packet.syndrome) is not AckKind.NAK:
        return None
    return aeth.code(packet.syndrome)


def is_acknowledge(packet: TransportPacket) -> bool:
    """Whether it is an ACK, an RNR NAK or a NAK, of its own."""
    return packet.form.operation is Operation.ACKNOWLEDGE


def is_refusal(packet: TransportPacket) -> bool:
    """Whether it is an RNR NAK or a NAK."""
    return packet.form.has_aeth and aeth.kind(packet.syndrome) is not AckKind.ACK


def is_plain_ack(packet: TransportPacket) -> bool:
    """Whether it acknowledges requests without data."""
    is_ack = packet.form.operation is Operation.ACKNOWLEDGE
    return is_ack and aeth.kind(packet.syndrome) is AckKind.ACK
