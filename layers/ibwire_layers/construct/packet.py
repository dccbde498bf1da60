"""Whole frames as a grammar, written apart from the fast readers.

A frame is read into one flat Container: `ethernet`, `vlan` (a list), `ipv4`,
`ipv4_options`, `ipv6`, `udp`, `lrh`, `rwh`, `grh`, `bth`, `extensions`,
`payload`, `padding`, `icrc`, `vcrc`, `trailer`, each None where the frame has
none. `data` is what is not an RDMA packet. Tunnels and IPv6 extension headers
are not followed.

The end of a packet comes from the IP total length, IPv6 payload length, GRH
PayLen or LRH PktLen; what the capture holds after it is `trailer` (Ethernet
padding, FCS). The UDP length decides nothing.
"""

from __future__ import annotations

from typing import Any

from construct import Bytes, Computed, GreedyBytes, If, RepeatUntil, Struct, Switch

from ibwire_layers import crc
from ibwire_layers import headers as h
from ibwire_layers import outer as o
from ibwire_layers.construct.headers import (
    HEADERS,
    Annotation,
    annotate,
    left,
    named,
    parts,
    peek,
    read,
    struct_of,
    tell,
    write,
)
from ibwire_layers.construct.mad import annotate_mad
from ibwire_layers.errors import DecodeError, EncodeError, Fault
from ibwire_layers.mad import MAD_SIZE
from ibwire_layers.opcodes import INFO, Service
from ibwire_layers.outer import EtherType, IPProto, LinkType
from ibwire_layers.schema import Bytes as Data
from ibwire_layers.schema import Show

MAX_TAGS = 4
"""802.1Q tags inside one another that are read."""

TAGS = (EtherType.VLAN, EtherType.QINQ, EtherType.QINQ_OLD)
IBA_NEXT_HEADER = 0x1B
PAUSE, PFC = 0x0001, 0x0101


def parse_frame(frame: Data, link_type: int = LinkType.ETHERNET) -> Any:
    """The Container of a frame; `DecodeError` if it contradicts itself or is cut off."""
    return read(grammar_of(link_type), frame, "frame")


def build_frame(value: Any, link_type: int = LinkType.ETHERNET) -> bytes:
    """The bytes of a Container as `parse_frame` gives it; `EncodeError` if it does not fit.

    `icrc` and `vcrc` are computed where they are None and the packet has one.
    Lengths and checksums are written as given.
    """
    grammar = grammar_of(link_type)
    missing = [name for name in _CRC_SIZES if _wants(value, name)]
    if not missing:
        return write(grammar, value, "frame")
    filled = value.copy()
    for name in missing:
        filled[name] = bytes(_CRC_SIZES[name])
    for name in missing:
        built = write(grammar, filled, "frame")
        filled[name] = icrc_of(filled, built) if name == "icrc" else vcrc_of(filled, built)
    return write(grammar, filled, "frame")


def annotate_frame(frame: Data, link_type: int = LinkType.ETHERNET) -> list[Annotation]:
    """Every field of a frame in wire order, and of the MAD in its payload if it carries one."""
    found = parse_frame(frame, link_type)
    rows: list[Annotation] = []
    for row in annotate(found):
        if row[0] == "payload" and _carries_mad(found):
            _, start, width, payload = row
            nested = annotate_mad(payload, start)
            rows += [(f"payload.{path}", *rest) for path, *rest in nested]
            if width > 8 * MAD_SIZE:
                extra = payload[MAD_SIZE:]
                rows.append(("payload.extra", start + MAD_SIZE, 8 * len(extra), extra))
        else:
            rows.append(row)
    return rows


def describe(frame: Data, link_type: int = LinkType.ETHERNET) -> str:
    """A line for every field: byte offset, bits, path, value."""
    lines = [
        f"{offset:5} {width:5}  {path} = {_shown(path, value)}"
        for path, offset, width, value in annotate_frame(frame, link_type)
    ]
    return "\n".join(lines)


def grammar_of(link_type: int) -> Any:
    """The Construct of frames of a link type; `DecodeError` for an unsupported one."""
    match link_type:
        case LinkType.ETHERNET:
            return ethernet
        case (
            LinkType.RAW_IP
            | LinkType.RAW_OLD
            | LinkType.RAW_OPENBSD
            | LinkType.IPV4
            | LinkType.IPV6
        ):
            return raw_ip
        case LinkType.INFINIBAND:
            return infiniband
    raise DecodeError(Fault.LINK_TYPE, "frame", 0, f"no grammar for link type {link_type}")


def icrc_of(value: Any, frame: Data) -> bytes:
    """The correct ICRC of a frame, as sent; `value` is the parsed frame."""
    starts = {path: offset for path, offset, _ in parts(value)}
    covered = next((name for name in ("ipv4", "ipv6", "grh", "lrh") if name in starts), None)
    if covered is None or "icrc" not in starts:
        raise EncodeError("icrc", value, "a packet with a network or link header")
    first = starts[covered]
    masks = tuple(
        (starts[name] - first, mask)
        for name, mask in _MASKS.items()
        if starts.get(name, -1) >= first
    )
    seed = 0 if covered == "lrh" else crc.ICRC_SEED
    return crc.icrc(bytes(frame[first : starts["icrc"]]), masks, seed)


def vcrc_of(value: Any, frame: Data) -> bytes:
    """The VCRC that a native frame should carry, as sent."""
    starts = {path: offset for path, offset, _ in parts(value)}
    return crc.vcrc(frame[: starts["vcrc"]])


_CRC_SIZES = {"icrc": h.ICRC_SIZE, "vcrc": h.VCRC_SIZE}

_MASKS = {
    "lrh": crc.LRH_MASK,
    "grh": crc.GRH_MASK,
    "ipv4": crc.IPV4_MASK,
    "ipv6": crc.IPV6_MASK,
    "udp": crc.UDP_MASK,
    "bth": crc.BTH_MASK,
}


def _wants(value: Any, name: str) -> bool:
    """Whether a CRC must be computed: it is None and the packet has one."""
    carrier = "bth" if name == "icrc" else "lrh"
    return value.get(name) is None and value.get(carrier) is not None


def _carries_mad(found: Any) -> bool:
    info = INFO.get(found.bth.opcode) if found.get("bth") else None
    return (
        info is not None
        and info.service is Service.UD
        and found.bth.dest_qp in (0, 1)
        and len(found.payload) >= MAD_SIZE
    )


def _shown(path: str, value: Any) -> str:
    if isinstance(value, bytes):
        return value.hex() if value.strip(b"\0") else f"{len(value)} zero bytes"
    if isinstance(value, list):
        return " ".join(map(str, value))
    *_, name, field_name = path.split(".")
    described = HEADERS[name.partition("[")[0]]
    field = next(entry for entry in described.FIELDS if entry.name == field_name)
    if field.show in (Show.DEC, Show.FLAG):
        return str(value)
    return f"0x{value:0{(field.width + 3) // 4}x}"


# Conditions. When reading they look at what was read, when writing at what is
# to be written; both are in the context under the same names.


def _end_at(this: Any, end: int, header: str) -> int:
    """End of the packet, if the frame is long enough."""
    if this._parsing:
        size = tell(this) + left(this)
        if end < tell(this):
            raise DecodeError(Fault.LENGTH, header, tell(this), "its length ends inside headers")
        if end > size:
            detail = f"the packet ends at byte {end}, the frame at {size}"
            raise DecodeError(Fault.TRUNCATED, header, size, detail)
    return end


def _require(this: Any, good: bool, header: str, detail: str) -> None:
    if this._parsing and not good:
        raise DecodeError(Fault.VERSION, header, tell(this), detail)


def _ipv4_options(this: Any) -> int:
    _require(this, this.ipv4.version == 4, "IPv4", f"version {this.ipv4.version}")
    if this.ipv4.ihl < 5 and this._parsing:
        raise DecodeError(Fault.LENGTH, "IPv4", tell(this), f"IHL {this.ipv4.ihl}")
    size: int = 4 * this.ipv4.ihl - o.IPv4.SIZE
    return size


def _ip_end(this: Any) -> int:
    if this.ipv4 is not None:
        start = tell(this) - 4 * this.ipv4.ihl
        return _end_at(this, start + this.ipv4.total_length, "IPv4")
    _require(this, this.ipv6.version == 6, "IPv6", f"version {this.ipv6.version}")
    return _end_at(this, tell(this) + this.ipv6.payload_length, "IPv6")


def _grh_end(this: Any) -> int:
    _require(this, this.grh.ip_ver == 6, "GRH", f"version {this.grh.ip_ver}")
    return _end_at(this, tell(this) + this.grh.pay_len, "GRH")


def _is_udp(this: Any) -> bool:
    """UDP in a packet that is not a fragment."""
    if this.ipv4 is not None:
        whole = not this.ipv4.mf and not this.ipv4.fragment_offset
        return bool(whole and this.ipv4.protocol == IPProto.UDP)
    return this.ipv6 is not None and bool(this.ipv6.next_header == IPProto.UDP)


def _is_rdma(this: Any) -> bool:
    """Whether a BTH follows."""
    if this.get("udp") is not None:
        return o.is_rocev2(this.udp.src_port, this.udp.dst_port)
    if this.get("grh") is not None:
        return bool(this.grh.nxt_hdr == IBA_NEXT_HEADER)
    return this.get("lrh") is not None and bool(this.lrh.lnh == 2)


def _room(this: Any) -> int:
    """Bytes between the headers and the ICRC."""
    room: int = this._end - tell(this) - h.ICRC_SIZE
    if room < 0:
        raise DecodeError(Fault.LENGTH, "BTH", tell(this), "no room for headers and ICRC")
    return room


def _pad(this: Any) -> int:
    """PadCnt for known opcodes; the padding of an unknown one cannot be located."""
    return int(this.bth.pad_count) if this.bth.opcode in INFO else 0


def _payload_size(this: Any) -> int:
    """0 if PadCnt is larger than the payload, as in frames of some devices."""
    return max(_room(this) - _pad(this), 0) if this._parsing else len(this.payload)


def _padding_size(this: Any) -> int:
    return _room(this) if this._parsing else len(this.padding)


def _data_size(this: Any) -> int:
    if not this._parsing:
        return len(this.data)
    size: int = this._end - tell(this)
    if size < 0:
        raise DecodeError(Fault.LENGTH, "UDP", tell(this), "no room for the header")
    return size


def _chosen(name: str, condition: Any) -> Any:
    """Read by a condition on the bytes that follow, written if there is something to write."""
    return lambda this: condition(this) if this._parsing else this.get(name) is not None


def _ether_type(this: Any) -> int:
    last = this.vlan[-1] if this.vlan else this.ethernet
    number: int = last.type
    return number


def _control(opcode: int) -> Any:
    def condition(this: Any) -> bool:
        return this._type == EtherType.MAC_CONTROL and peek(this, 0, 2) == opcode

    return condition


def _ethernet_end(this: Any) -> int:
    if this.ipv4 is not None or this.ipv6 is not None:
        return _ip_end(this)
    if this.grh is not None:
        return _grh_end(this)
    if this.pause is not None or this.pfc is not None:
        return tell(this)
    return tell(this) + left(this)


def _lrh_end(this: Any) -> int:
    end = _end_at(this, 4 * this.lrh.pkt_len, "LRH")
    if this.grh is not None and _grh_end(this) != end and this._parsing:
        detail = f"PayLen {this.grh.pay_len} contradicts PktLen {this.lrh.pkt_len}"
        raise DecodeError(Fault.LENGTH, "GRH", tell(this), detail)
    return end


def _vcrc_size(this: Any) -> int:
    """Some captures of native packets leave the VCRC out."""
    if not this._parsing:
        return len(this.vcrc)
    return h.VCRC_SIZE if left(this) >= h.VCRC_SIZE else 0


# In each list of parts the packet's end is known before what depends on it.

_UDP = "udp" / If(_is_udp, struct_of(o.UDP))

_TRANSPORT = [
    "_rdma" / Computed(_is_rdma),
    "bth" / If(lambda this: this._rdma, struct_of(h.BTH)),
    "extensions"
    / If(
        lambda this: this._rdma,
        Switch(
            lambda this: this.bth.opcode,
            {opcode: Struct(*map(named, info.headers)) for opcode, info in INFO.items()},
            default=Struct(),
        ),
    ),
    "payload" / If(lambda this: this._rdma, Bytes(_payload_size)),
    "padding" / If(lambda this: this._rdma, Bytes(_padding_size)),
    "icrc" / If(lambda this: this._rdma, Bytes(h.ICRC_SIZE)),
    "data" / If(lambda this: not this._rdma, Bytes(_data_size)),
]

_IPV4_OPTIONS = "ipv4_options" / If(lambda this: this.ipv4 is not None, Bytes(_ipv4_options))

ethernet = "ethernet" / Struct(
    named(o.Ethernet),
    "vlan"
    / If(
        lambda this: this.ethernet.type in TAGS,
        RepeatUntil(
            lambda tag, tags, this: tag.type not in TAGS or len(tags) >= MAX_TAGS,
            struct_of(o.VLAN),
        ),
    ),
    "_type" / Computed(_ether_type),
    "ipv4" / If(lambda this: this._type == EtherType.IPV4, struct_of(o.IPv4)),
    _IPV4_OPTIONS,
    "ipv6" / If(lambda this: this._type == EtherType.IPV6, struct_of(o.IPv6)),
    "grh" / If(lambda this: this._type == EtherType.ROCE, struct_of(h.GRH)),
    "pause" / If(_chosen("pause", _control(PAUSE)), struct_of(o.Pause)),
    "pfc" / If(_chosen("pfc", _control(PFC)), struct_of(o.PFC)),
    "_end" / Computed(_ethernet_end),
    _UDP,
    *_TRANSPORT,
    "trailer" / GreedyBytes,
)
"""Ethernet: RoCEv2, RoCEv1, MAC control, anything else as data."""

raw_ip = "raw_ip" / Struct(
    "ipv4" / If(_chosen("ipv4", lambda this: peek(this, 0, 1) >> 4 == 4), struct_of(o.IPv4)),
    _IPV4_OPTIONS,
    "ipv6" / If(lambda this: this.ipv4 is None, struct_of(o.IPv6)),
    "_end" / Computed(_ip_end),
    _UDP,
    *_TRANSPORT,
    "trailer" / GreedyBytes,
)
"""IP without a link header."""

infiniband = "infiniband" / Struct(
    named(h.LRH),
    "rwh" / If(lambda this: this.lrh.lnh == 0, struct_of(h.RWH)),
    "ipv6" / If(lambda this: this.lrh.lnh == 1, struct_of(o.IPv6)),
    "grh" / If(lambda this: this.lrh.lnh == 3, struct_of(h.GRH)),
    "_end" / Computed(_lrh_end),
    *_TRANSPORT,
    "vcrc" / Bytes(_vcrc_size),
    "trailer" / GreedyBytes,
)
"""Native InfiniBand from the LRH on; raw packets have no ICRC."""

link_packet = "link_packet" / Struct(named(h.FlowControl), "trailer" / GreedyBytes)
"""A flow-control packet of the link layer."""
