"""One packet with every bit explained: place, width, bits, value, meaning, source."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from typing import Any

from ibwire_layers import headers as h
from ibwire_layers import opcodes, syndrome
from ibwire_layers.errors import DecodeError, Fault
from ibwire_layers.mad import MAD_SIZE
from ibwire_layers.management import read_mad
from ibwire_layers.outer import EtherType, IPProto
from ibwire_layers.packet import Packet
from ibwire_layers.schema import Bytes, Field, Header, Show
from ibwire_layers.walk import Protocol, Walk, walk


@dataclass(frozen=True, slots=True)
class Part:
    """Consecutive bytes of a frame: a header, the payload, or a CRC."""

    title: str
    offset: int
    size: int
    section: str = ""
    header: Header | None = None
    """The decoded header, if the part is one."""
    notes: tuple[str, ...] = ()


def render(data: Bytes, link_type: int) -> Iterator[str]:
    """The tree of a frame and its bytes, line by line."""
    frame = bytes(data)
    found = walk(frame, link_type)
    parts = list(_parts(frame, found, link_type))
    for part in parts:
        yield from _tree(part, frame)
    if found.fault:
        yield f"fault: {found.fault.name.lower()} ({fault_meaning(found.fault)})"
    yield ""
    for part in parts:
        yield from _dump(part, frame)


def field_rows(data: Bytes, link_type: int) -> Iterator[dict[str, Any]]:
    """Every field of a frame in order, and the parts that have no fields, as rows of a table.

    `byte` counts from the start of the frame, `bit` from 7, the highest of its byte, to 0.
    """
    frame = bytes(data)
    for part in _parts(frame, walk(frame, link_type), link_type):
        place = {"part": part.title, "section": part.section or None}
        if part.header is None:
            raw = frame[part.offset : part.offset + part.size].hex()
            about = {"field": None, "name": None, "value": raw, "meaning": "; ".join(part.notes)}
            yield place | {"byte": part.offset, "bit": 7, "width": 8 * part.size} | about
            continue
        for field, value in part.header.items():
            yield place | {
                "byte": part.offset + field.offset // 8,
                "bit": 7 - field.offset % 8,
                "width": field.size,
                "field": field.key,
                "name": field.label,
                "value": value.hex() if isinstance(value, bytes) else value_text(field, value),
                "meaning": meaning(field, value),
            }


def fault_meaning(fault: Fault) -> str:
    """A fault in words."""
    return _FAULTS[fault]


def meaning(field: Field, value: Any) -> str:
    """Meaning of the value of a field, or of the field."""
    known = _MEANINGS.get(field.key)
    if known is not None:
        return str(known(value))
    if field.names is not None and value in [member.value for member in field.names]:
        return str(field.names(value).name)
    return field.doc


def value_text(field: Field, value: Any) -> str:
    """A value as people write it."""
    if field.is_array:
        return str(list(value))
    match field.show:
        case Show.BYTES:
            return f"{len(value)} bytes"
        case Show.MAC:
            return str(value.to_bytes(6).hex(":"))
        case Show.IPV4:
            return str(IPv4Address(value))
        case Show.IPV6:
            return str(IPv6Address(value))
        case Show.HEX:
            return f"0x{value:0{-(-field.width // 4)}x}"
    return str(value)


def _parts(frame: bytes, found: Walk, link_type: int) -> Iterator[Part]:
    """Every part of the frame in order, without gaps."""
    position = 0
    for layer in found.layers:
        if layer.offset > position:
            yield Part("data", position, layer.offset - position)
        header = layer.header.unpack(frame, layer.offset)
        yield Part(header.TITLE, layer.offset, header.SIZE, header.SECTION, header)
        position = layer.offset + header.SIZE
        if layer.size > header.SIZE:
            yield Part("options", position, layer.size - header.SIZE)
            position = layer.offset + layer.size
    if found.bth >= 0:
        packet = Packet.parse(frame, link_type, strict=False)
        yield from _after_headers(packet, position)
        position = len(frame)
    elif found.protocol is Protocol.IB_RAW and position < found.end:
        stop = min(found.end, len(frame))
        yield Part("payload", position, stop - position)
        yield from _vcrc(frame[stop : stop + h.VCRC_SIZE], stop)
        position = min(stop + h.VCRC_SIZE, len(frame))
    if position < len(frame):
        yield Part("data", position, len(frame) - position)


def _after_headers(packet: Packet, position: int) -> Iterator[Part]:
    """Payload, padding, CRCs and what follows them."""
    payload = packet.payload
    if packet.bth.dest_qp <= 1 and len(payload) == MAD_SIZE and packet.extension(h.DETH):
        yield from _management(payload, position)
    elif payload:
        yield Part("payload", position, len(payload))
    position += len(payload)
    padding, icrc, vcrc = packet.padding or b"", packet.icrc or b"", packet.vcrc or b""
    if padding:
        yield Part("padding", position, len(padding))
        position += len(padding)
    status = packet.icrc_status()
    if icrc:
        notes = [f"{icrc.hex()} {status}"]
        if status == "bad":
            notes.append(f"should be {packet.computed_icrc().hex()}")
        yield Part("ICRC", position, len(icrc), "IBA 7.8.1", notes=tuple(notes))
        position += len(icrc)
    yield from _vcrc(vcrc, position)
    position += len(vcrc)
    if packet.trailer:
        yield Part(
            title="trailer",
            offset=position,
            size=len(packet.trailer),
            notes=("Ethernet padding or FCS, not part of the packet",),
        )


def _vcrc(vcrc: bytes, position: int) -> Iterator[Part]:
    if vcrc:
        yield Part("VCRC", position, len(vcrc), "IBA 7.8.2", notes=(vcrc.hex(),))


def _management(payload: bytes, start: int) -> Iterator[Part]:
    """The parts of a MAD; bytes outside of headers are data."""
    position = 0
    try:
        found = read_mad(payload)
    except DecodeError:
        found = []
    for _name, offset, header in found:
        if offset > position:
            yield Part("data", start + position, offset - position)
        # Addresses stand inside the private data of the message before them.
        yield Part(header.TITLE, start + offset, header.SIZE, header.SECTION, header)
        position = max(position, offset + header.SIZE)
    if position < len(payload):
        yield Part("data", start + position, len(payload) - position)


def _tree(part: Part, frame: bytes) -> Iterator[str]:
    section = f"  [{part.section}]" if part.section else ""
    last = part.offset + part.size - 1
    yield f"{part.title}, bytes {part.offset}-{last}{section}"
    for note in part.notes:
        yield f"  {note}"
    if part.header is None:
        return
    for field, value in part.header.items():
        place = f"{part.offset + field.offset // 8}:{7 - field.offset % 8}"
        yield (
            f"  {place:>7} {field.size:>4}  {_bits(part, field, frame):<35}  "
            f"{field.label:<20} {value_text(field, value):<24} {meaning(field, value)}"
        ).rstrip()


def _bits(part: Part, field: Field, frame: bytes) -> str:
    """The bits of a short field, dots for its neighbours in the same bytes; hex of a long one."""
    first = part.offset + field.offset // 8
    last = part.offset + (field.offset + field.size - 1) // 8
    raw = frame[first : last + 1]
    if len(raw) > 4 or (field.offset % 8 == 0 and field.size % 8 == 0 and len(raw) > 2):
        text = raw.hex()
        return text if len(text) <= 32 else f"{text[:29]}..."
    bits = "".join(f"{byte:08b}" for byte in raw)
    start = field.offset % 8
    shown = "." * start + bits[start : start + field.size]
    shown = shown.ljust(len(bits), ".")
    return " ".join(shown[i : i + 8] for i in range(0, len(shown), 8))


_WIDTH = 16


def _dump(part: Part, frame: bytes) -> Iterator[str]:
    """The bytes of a part, sixteen a line, each line with its offset in the frame."""
    title = part.header.__class__.__name__ if part.header else part.title
    for start in range(part.offset, part.offset + part.size, _WIDTH):
        raw = frame[start : min(start + _WIDTH, part.offset + part.size)]
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in raw)
        yield f"{title:<14} {start:04x}  {raw.hex(' '):<{3 * _WIDTH}} {text}"
        title = ""


def _named(kind: type[EtherType | IPProto]) -> Any:
    names = {int(member): member.name for member in kind}
    return lambda value: names.get(value, "")


_ECN = ("not ECN-capable", "ECT(1)", "ECT(0)", "congestion experienced")
_LNH = ("raw, EtherType follows", "raw, IPv6 follows", "IBA local", "IBA global, GRH follows")

_MEANINGS: dict[str, Any] = {
    "bth.opcode": opcodes.name_of,
    "aeth.syndrome": syndrome.describe,
    "eth.type": _named(EtherType),
    "vlan.etype": _named(EtherType),
    "gre.proto": _named(EtherType),
    "ip.proto": _named(IPProto),
    "ipv6.nxt": _named(IPProto),
    "ip.dsfield.ecn": _ECN.__getitem__,
    "ipv6.tclass.ecn": _ECN.__getitem__,
    "lrh.lnh": _LNH.__getitem__,
}

_FAULTS = {
    Fault.NONE: "the packet was read whole",
    Fault.TRUNCATED: "the capture ends inside a header",
    Fault.LENGTH: "a length field contradicts the frame or leaves no room for the headers",
    Fault.VERSION: "a version that does not exist",
    Fault.FRAGMENT: "an IP fragment: RoCEv2 is never fragmented",
    Fault.NEXT_HEADER: "unknown next header",
    Fault.OPCODE: "the BTH opcode is not in the table",
    Fault.UDP_LENGTH: "the UDP length disagrees with the IP length, which was used",
    Fault.PAD_COUNT: "the pad count is larger than what follows the headers",
    Fault.NESTING: "too many headers inside one another",
    Fault.LINK_TYPE: "unsupported link type",
}
"""Texts of the faults."""
