"""One packet of a stream as bytes, and the places of the fields that vary between packets.

`ibwire_layers` builds the packet once, with zeros in the fields that vary. All other
fields, also those overridden with wrong values, are in the bytes.
`ibwire.traffic.builder` fills in the varying fields.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

from ibwire.base.errors import EncodeError
from ibwire.rc.device import gid_of, mac_of
from ibwire.rc.path import ethernet_route
from ibwire.traffic.stream import Icrc, Link, Payload, Stream, Verb
from ibwire_layers import headers as h
from ibwire_layers import opcodes, outer
from ibwire_layers.build import build_packet
from ibwire_layers.fields import NAMES, Changes, change, changes_of, header_kinds
from ibwire_layers.opcodes import OpCode, Position
from ibwire_layers.packet import (
    IBRoute,
    Packet,
    RoCEv2Route,
    Route,
    headers_before_bth,
    with_ip_checksum,
)
from ibwire_layers.schema import Header


class VaryingField(Enum):
    """A field that may vary between packets of the same layout."""

    IP_ID = "IPv4 identification"
    SRC_PORT = "UDP source port"
    DEST_QP = "destination QP"
    SRC_QP = "source QP"
    PSN = "PSN"
    ACK_REQ = "AckReq"
    VA = "virtual address"
    ATOMIC_VA = "virtual address of an atomic"
    MSN = "MSN"
    COUNT = "number of the packet in its stream"


@dataclass(frozen=True, slots=True)
class FieldColumn:
    """The place of a varying field."""

    field: VaryingField
    at: int
    """Bytes from the start of the frame."""
    width: int
    """Bytes."""


@dataclass(frozen=True, slots=True)
class PacketLayout:
    """A packet of a stream at one position of a message."""

    frame: bytes
    """The packet with zeros in the columns, and its ICRC with these zeros."""
    columns: tuple[FieldColumn, ...]
    ip_at: int
    """Offset of the IP header; -1 without one."""
    checksum_at: int
    """Offset of the IPv4 checksum; -1 without one, or when it is overridden."""
    payload_at: int
    payload_size: int
    """Bytes of payload without padding."""

    @property
    def icrc_at(self) -> int:
        """Offset of the ICRC, which ends the frame."""
        return len(self.frame) - h.ICRC_SIZE


def positions(stream: Stream) -> Sequence[Position]:
    """The positions of the packets of a message, each once and in order."""
    if stream.packets == 1:
        return (Position.ONLY,)
    if stream.packets == 2:
        return (Position.FIRST, Position.LAST)
    return (Position.FIRST, Position.MIDDLE, Position.LAST)


def make_layouts(stream: Stream) -> list[PacketLayout]:
    """The layout of each of `positions`; layouts without overridden fields come first, if any.

    Raises `EncodeError` for a field that no packet has.
    """
    changes = changes_of(stream.fields)
    correct = [_packet(stream, position) for position in positions(stream)]
    present = {
        kind
        for packet in correct
        for kind in (*header_kinds(packet.route), *_transport_headers(packet))
    }
    for name in stream.fields:
        if not any(kind in present for kind, _ in NAMES[name]):
            raise EncodeError(name, stream.fields[name], f"in any packet of {stream.verb}")
    layouts = [] if stream.fields_every == 1 else [_layout(stream, each, {}) for each in correct]
    for packet in correct:
        made = overridden(packet, changes)
        sound = packet if stream.icrc is Icrc.STALE else made
        icrc = sound.computed_icrc()
        if stream.icrc is Icrc.WRONG:
            icrc = bytes(each ^ 0xFF for each in icrc)
        layouts.append(_layout(stream, replace(made, icrc=icrc), changes))
    return layouts


def overridden(packet: Packet, changes: Changes) -> Packet:
    """A packet with changed fields, and a matching IPv4 checksum unless that is changed too."""
    packet = change(packet, changes)
    if "checksum" in changes.get(outer.IPv4, {}):
        return packet
    return replace(packet, route=with_ip_checksum(packet.route))


def _transport_headers(packet: Packet) -> tuple[type[Header], ...]:
    """The classes of the transport headers of a packet."""
    return (h.BTH, *map(type, packet.extensions))


def _packet(stream: Stream, position: Position) -> Packet:
    """A correct packet with zeros in the varying fields."""
    info = opcodes.INFO[opcode_of(stream, position)]
    ends = position in (Position.LAST, Position.ONLY)
    size = stream.mtu
    if ends:
        size = stream.message_size - stream.mtu * (stream.packets - 1)
    if stream.verb in (Verb.READ, Verb.CAS, Verb.FADD):
        size = 0
    has_event = (ends and info.operation is opcodes.Operation.SEND) or h.ImmDt in info.headers
    defaults = {
        "se": int(stream.solicited and has_event),
        "mig_req": int(stream.mig_req),
        "pkey": stream.pkey,
        "becn": int(stream.verb is Verb.CNP),
        "ack_req": int(stream.ack_every is None and ends and _requests_ack(stream)),
        "va": 0 if stream.va_step else stream.va,
        "rkey": stream.rkey,
        "dma_len": stream.message_size,
        "swap": stream.swap,
        "compare": stream.compare,
        "syndrome": stream.syndrome,
        "qkey": stream.qkey,
        "imm_data": stream.imm,
    }
    return build_packet(
        info.opcode, route=_route(stream), payload=_payload(stream, size), defaults=defaults
    )


def opcode_of(stream: Stream, position: Position) -> OpCode:
    """The opcode of the packets at a position of the messages of a stream."""
    if stream.verb is Verb.CNP:
        return OpCode.CNP
    operation, ending = _OPERATIONS[stream.verb]
    where = f"_{position.name}" if operation in ("SEND", "RDMA_WRITE") else ""
    if position in (Position.FIRST, Position.MIDDLE):
        ending = ""
    return OpCode[f"{stream.service.name}_{operation}{where}{ending}"]


def _requests_ack(stream: Stream) -> bool:
    """Whether the last packet of a message requests an acknowledgement by default."""
    return stream.service is opcodes.Service.RC and stream.verb not in (Verb.ACK, Verb.CNP)


def _payload(stream: Stream, size: int) -> bytes:
    """The payload with zeros where it varies."""
    pattern = stream.payload
    if isinstance(pattern, Payload):
        return bytes(size)
    return (pattern * (size // len(pattern) + 1))[:size]


def _route(stream: Stream) -> Route:
    source, destination = gid_of(stream.src), gid_of(stream.dst)
    return ethernet_route(
        source=source,
        destination=destination,
        source_mac=stream.src_mac or mac_of(source),
        destination_mac=stream.dst_mac or mac_of(destination),
        source_port=0,
        traffic_class=stream.dscp << 2 | stream.ecn,
        hop_limit=stream.ttl,
        vlan=stream.vlan,
        priority=stream.pcp,
        version=1 if stream.link is Link.ROCEV1 else 2,
    )


def _layout(stream: Stream, packet: Packet, changes: Changes) -> PacketLayout:
    """The layout of a packet, with columns for the varying fields that are not overridden."""
    offsets = _offsets(packet)
    payload_at = len(headers_before_bth(packet.route)) + h.BTH.SIZE
    payload_at += sum(header.SIZE for header in packet.extensions)
    columns = []
    for number, (kind, name) in _FIELDS.items():
        if kind not in offsets or name in changes.get(kind, {}):
            continue
        if number in _varying(stream):
            (field,) = (each for each in kind.FIELDS if each.name == name)
            first = offsets[kind] + field.offset // 8
            columns.append(FieldColumn(number, first, -(-field.width // 8)))
    if stream.payload is Payload.COUNTER and packet.payload:
        columns.append(FieldColumn(VaryingField.COUNT, payload_at, min(8, len(packet.payload))))
    ip_at = next((offsets[kind] for kind in (outer.IPv4, outer.IPv6) if kind in offsets), -1)
    fits = outer.IPv4 in offsets and "checksum" not in changes.get(outer.IPv4, {})
    return PacketLayout(
        frame=packet.build(),
        columns=tuple(columns),
        ip_at=ip_at,
        checksum_at=ip_at + 10 if fits else -1,
        payload_at=payload_at,
        payload_size=len(packet.payload),
    )


def _offsets(packet: Packet) -> dict[type[Header], int]:
    """Offsets of the headers of a packet."""
    route = packet.route
    assert not isinstance(route, IBRoute)
    offsets: dict[type[Header], int] = {}
    at = outer.Ethernet.SIZE + len(route.vlans) * outer.VLAN.SIZE
    network = [route.ip, route.udp] if isinstance(route, RoCEv2Route) else [route.grh]
    for header in (*network, packet.bth, *packet.extensions):
        offsets[type(header)] = at
        at += header.SIZE
    return offsets


def _varying(stream: Stream) -> set[VaryingField]:
    """The fields that vary in this stream."""
    found = {
        VaryingField.SRC_PORT,
        VaryingField.DEST_QP,
        VaryingField.SRC_QP,
        VaryingField.PSN,
        VaryingField.MSN,
    }
    if stream.ack_every:
        found.add(VaryingField.ACK_REQ)
    if stream.count_ip_id:
        found.add(VaryingField.IP_ID)
    if stream.va_step:
        found |= {VaryingField.VA, VaryingField.ATOMIC_VA}
    return found


_FIELDS: dict[VaryingField, tuple[type[Header], str]] = {
    VaryingField.IP_ID: (outer.IPv4, "id"),
    VaryingField.SRC_PORT: (outer.UDP, "src_port"),
    VaryingField.DEST_QP: (h.BTH, "dest_qp"),
    VaryingField.SRC_QP: (h.DETH, "src_qp"),
    VaryingField.PSN: (h.BTH, "psn"),
    VaryingField.ACK_REQ: (h.BTH, "ack_req"),
    VaryingField.VA: (h.RETH, "va"),
    VaryingField.ATOMIC_VA: (h.AtomicETH, "va"),
    VaryingField.MSN: (h.AETH, "msn"),
}

_OPERATIONS: dict[Verb, tuple[str, str]] = {
    Verb.SEND: ("SEND", ""),
    Verb.SEND_IMM: ("SEND", "_WITH_IMMEDIATE"),
    Verb.SEND_INV: ("SEND", "_WITH_INVALIDATE"),
    Verb.WRITE: ("RDMA_WRITE", ""),
    Verb.WRITE_IMM: ("RDMA_WRITE", "_WITH_IMMEDIATE"),
    Verb.READ: ("RDMA_READ_REQUEST", ""),
    Verb.CAS: ("COMPARE_SWAP", ""),
    Verb.FADD: ("FETCH_ADD", ""),
    Verb.ACK: ("ACKNOWLEDGE", ""),
}
"""Verb -> operation in the name of the opcode, and the suffix for its last packet."""
