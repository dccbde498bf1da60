"""Every field that a packet can have: its name, kind, meaning, and how its column is read.

Fields of headers come from their descriptions in `ibwire_layers`; only what no
header holds (frame numbers, verdicts, names) is written here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ibwire.dissect import icrc
from ibwire.dissect.column import Column, FieldType, Kind
from ibwire.dissect.frames import Frames, Rows
from ibwire_layers import cm, opcodes, outer
from ibwire_layers import headers as h
from ibwire_layers.errors import Fault
from ibwire_layers.mad import MAD, MgmtClass
from ibwire_layers.schema import WIRESHARK_PREFIX, Field, Header, Show
from ibwire_layers.syndrome import AckKind
from ibwire_layers.walk import Protocol


@dataclass(frozen=True, slots=True)
class FieldSpec:
    """One field of the catalogue."""

    name: str
    type: FieldType
    doc: str
    read: Callable[[Frames], Column]
    wireshark: str | None = None
    section: str = ""
    common: bool = True
    """Whether it is printed when no fields are named."""
    bits: int = 32
    """Bits that a number needs."""

    @property
    def digits(self) -> int:
        """Hexadecimal digits of bytes that are shown as they stand on the wire, else 0."""
        return self.type.digits


def spec_of(name: str) -> FieldSpec:
    """The field of this name, with or without the `infiniband.` prefix; else `KeyError`."""
    return FIELDS[name if name in FIELDS else name.removeprefix(WIRESHARK_PREFIX)]


def type_of(name: str) -> FieldType | None:
    """What the values of a field are, `None` for an unknown name."""
    name = name.removeprefix(WIRESHARK_PREFIX)
    spec = FIELDS.get(name)
    return spec.type if spec else None


def gather(data: npt.NDArray[np.uint8], at: Rows, field: Field) -> npt.NDArray[np.unsignedinteger]:
    """The field of the headers that start at these positions of `data`.

    Returns (n,) of the narrowest unsigned type, (n, count) for an array and
    (n, bytes) of uint8 for a number of more than 64 bits.
    """
    first = at + field.offset // 8
    if field.is_array:
        rows = _window(data, first, field.size // 8)
        return rows.view(f">u{field.width // 8}").astype(_unsigned(field.width))
    last = (field.offset + field.size - 1) // 8
    count = last - field.offset // 8 + 1
    if count > 8:
        return _window(data, first, count)
    if count == 1:
        words = data[first]
    else:
        size = 2 if count == 2 else 4 if count <= 4 else 8
        # An unaligned big-endian word at every byte; the buffer is padded after its last frame.
        view = np.ndarray((len(data) - size + 1,), f">u{size}", data, strides=(1,))
        words = view[first].astype(_unsigned(8 * size))
        words >>= 8 * (size - count)
    shift = 8 * (last + 1) - field.offset - field.size
    if shift:
        words = words >> np.uint8(shift)
    if field.width < 8 * count:
        words = words & words.dtype.type((1 << field.width) - 1)
    return words.astype(_unsigned(field.width), copy=False)


def _window(data: npt.NDArray[np.uint8], first: Rows, size: int) -> npt.NDArray[np.uint8]:
    """(n, size) bytes from each position on."""
    return np.ndarray((len(data) - size + 1, size), np.uint8, data, strides=(1, 1))[first]


def _unsigned(width: int) -> np.dtype[np.unsignedinteger]:
    return np.dtype(f"u{next(size for size in (1, 2, 4, 8) if width <= 8 * size)}")


def _spread(rows: npt.NDArray[np.bool_], found: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
    """Values of the marked rows among zeros for the others."""
    values = np.zeros((len(rows), *found.shape[1:]), found.dtype)
    values[rows] = found
    return values


def _read_at(frames: Frames, at: Rows, field: Field) -> Column:
    present = at >= 0
    if present.all():
        return Column(gather(frames.data, at, field), None)
    return Column(_spread(present, gather(frames.data, at[present], field)), present)


_KINDS = {
    Show.DEC: Kind.UINT,
    Show.FLAG: Kind.UINT,
    Show.HEX: Kind.HEX,
    Show.MAC: Kind.MAC,
    Show.IPV4: Kind.IPV4,
    Show.IPV6: Kind.IPV6,
}


def _of_header(header: type[Header]) -> Iterable[FieldSpec]:
    if all(field.key != header.KEY for field in header.FIELDS):
        yield FieldSpec(
            header.KEY,
            FieldType(Kind.FLAG),
            f"{header.TITLE} is present",
            _number(lambda frames: frames.position(header) >= 0),
            section=header.SECTION,
            common=False,
        )
    for field in header.FIELDS:
        yield _of_field(header, field, lambda frames: frames.position(header))


def _of_field(header: type[Header], field: Field, at: Callable[[Frames], Rows]) -> FieldSpec:
    kind = Kind.LIST if field.is_array else _KINDS[field.show]
    if kind is Kind.HEX and field.width > 64:
        kind = Kind.OCTETS
    return FieldSpec(
        field.key,
        FieldType(kind, constants=_OPCODES if field.key == "bth.opcode" else {}),
        field.doc or field.label,
        lambda frames: _read_at(frames, at(frames), field),
        field.wireshark,
        header.SECTION,
        common=not field.name.startswith("reserved"),
        bits=field.width,
    )


_OPCODES = {opcode.name: int(opcode) for opcode in opcodes.OpCode}


def _number(read: Callable[[Frames], npt.NDArray[np.generic]]) -> Callable[[Frames], Column]:
    """A column that every packet has."""
    return lambda frames: Column(read(frames), None)


def _where(
    rows: Callable[[Frames], npt.NDArray[np.bool_]],
    values: Callable[[Frames], npt.NDArray[np.generic]],
) -> Callable[[Frames], Column]:
    """A column that the marked packets have."""
    return lambda frames: Column(values(frames), rows(frames))


def _comments(frames: Frames) -> Column:
    values = np.full(len(frames), "", object)
    present = np.zeros(len(frames), np.bool_)
    for row, comments in frames.batch.comments.items():
        values[row], present[row] = "\n".join(comments), True
    return Column(values, present)


def _has_bth(frames: Frames) -> npt.NDArray[np.bool_]:
    return frames.bth >= 0


def _payload_length(frames: Frames) -> Column:
    payload = frames.payload
    length = frames.payload_end - payload - (frames.data[frames.bth + 1] >> 4 & 3)
    known = (payload >= 0) & (length >= 0)
    return Column(np.where(known, length, 0).astype(np.uint32), known)


def _icrc(frames: Frames) -> Column:
    held = frames.has_icrc & (frames.bth >= 0) & (frames.end <= frames.limit)
    words = np.ndarray((len(frames.data) - 3,), ">u4", frames.data, strides=(1,))
    found = words[frames.end[held] - h.ICRC_SIZE].astype(np.uint32)
    return Column(_spread(held, found), held)


def _vcrc(frames: Frames) -> Column:
    held = (frames.position(h.LRH) >= 0) & (frames.end + h.VCRC_SIZE <= frames.limit)
    words = np.ndarray((len(frames.data) - 1,), ">u2", frames.data, strides=(1,))
    return Column(_spread(held, words[frames.end[held]].astype(np.uint16)), held)


def _has_transport_or_raw(frames: Frames) -> npt.NDArray[np.bool_]:
    raw: npt.NDArray[np.bool_] = frames.protocol == Protocol.IB_RAW
    return raw | (frames.bth >= 0)


def _pfc_classes(frames: Frames) -> Column:
    vector, present = spec_of("macc.cbfc.enbv").read(frames)
    return Column(vector[:, None] >> np.arange(8, dtype=np.uint8) & 1, present)


def _syndrome_part(kind: AckKind | None, shift: int, mask: int) -> Callable[[Frames], Column]:
    def read(frames: Frames) -> Column:
        syndrome, present = spec_of("aeth.syndrome").read(frames)
        if present is None:
            present = np.ones(len(frames), np.bool_)
        if kind is not None:
            present = present & (syndrome >> 5 & 3 == kind)
        return Column(syndrome >> shift & mask, present)

    return read


def _mad_at(frames: Frames) -> Rows:
    """Where a MAD starts: the payload of a UD packet to QP 0 or 1."""
    if MAD not in frames.kept:
        frames.kept[MAD] = _find_mads(frames)
    return frames.kept[MAD]


def _find_mads(frames: Frames) -> Rows:
    payload = frames.payload
    queue = gather(frames.data, frames.bth, _DEST_QP)
    held = (payload >= 0) & (frames.opcode == opcodes.OpCode.UD_SEND_ONLY) & (queue <= 1)
    held &= np.minimum(frames.payload_end, frames.limit) - payload >= MAD.SIZE
    return np.where(held, payload, -1)


def _of_mad() -> Iterable[FieldSpec]:
    for field in MAD.FIELDS:
        yield _of_field(MAD, field, _mad_at)


def _cm_at(frames: Frames, message: type[Header], field: Field) -> Rows:
    """Where a message of the connection manager starts, if it was captured up to this field."""
    at = frames.kept.get(message)
    if at is None:
        mad = _mad_at(frames)
        held = np.flatnonzero(mad >= 0)
        kind = gather(frames.data, mad[held], _MAD_CLASS) == MgmtClass.COMM_MGT
        kind &= gather(frames.data, mad[held], _MAD_ATTRIBUTE) == _CM_MESSAGES[message]
        at = np.full(len(frames), -1, np.int64)
        at[held[kind]] = mad[held[kind]] + MAD.SIZE
        frames.kept[message] = at
    end = at + -(-(field.offset + field.size) // 8)
    return np.where(end <= np.minimum(frames.payload_end, frames.limit), at, -1)


def _of_cm() -> Iterable[FieldSpec]:
    """Fields of the messages of connection managers, except bytes of private data."""
    for message in _CM_MESSAGES:
        for field in message.FIELDS:
            if field.show is not Show.BYTES:
                yield _of_cm_field(message, field)


def _of_cm_field(message: type[Header], field: Field) -> FieldSpec:
    """One field; enumerated values have their names."""
    spec = _of_field(message, field, lambda frames: _cm_at(frames, message, field))
    is_plain = field.size <= 64 and not field.name.startswith(("reserved", "primary", "alternate"))
    members = () if field.names is None else field.names.__members__.values()
    names = {each.name: int(each.value) for each in members}
    return replace(
        spec,
        type=replace(spec.type, constants=names) if names else spec.type,
        # tshark 4.0 knows six of the messages only; tests/layers/test_cm.py compares these.
        wireshark=None,
        common=is_plain,
    )


def _cm_words(frames: Frames) -> Column:
    """Index of the message of the connection manager in `_CM_WORDS`."""
    index = np.zeros(len(frames), np.uint8)
    present = np.zeros(len(frames), np.bool_)
    for number, message in enumerate(_CM_MESSAGES):
        held = _cm_at(frames, message, message.FIELDS[0]) >= 0
        index[held] = number
        present |= held
    return Column(index, present)


def _reject_reason(frames: Frames) -> Column:
    reason, present = spec_of("cm.rej.reason").read(frames)
    return Column(np.minimum(reason, len(_REASON_WORDS) - 1).astype(np.uint8), present)


_CM_MESSAGES: dict[type[Header], cm.CMAttribute] = {
    getattr(cm, each.name): each
    for each in cm.CMAttribute
    if each is not cm.CMAttribute.CLASS_PORT_INFO
}
"""Message -> its attribute ID."""

_CM_WORDS = tuple(each.name for each in _CM_MESSAGES.values())
_REASONS = {int(each): each.name for each in cm.RejectReason}
_REASON_WORDS = (
    *(_REASONS.get(code, f"reason {code}") for code in range(max(_REASONS) + 1)),
    "unknown",
)

_MAD_CLASS, _MAD_ATTRIBUTE = (
    next(field for field in MAD.FIELDS if field.name == name)
    for name in ("mgmt_class", "attribute_id")
)


def _of_outer_vlan() -> Iterable[FieldSpec]:
    for field in outer.VLAN.FIELDS:
        spec = _of_field(outer.VLAN, field, lambda frames: frames.outer_vlan)
        name = spec.name.replace("vlan.", "vlan.outer.")
        doc = f"{spec.doc}, first of several tags"
        yield replace(spec, name=name, doc=doc, wireshark=None)


_DEST_QP = next(field for field in h.BTH.FIELDS if field.name == "dest_qp")

_UINT = FieldType(Kind.UINT)
_STATUS = FieldType(Kind.TEXT, words=icrc.STATUS_WORDS)

_FRAME_FIELDS = (
    FieldSpec(
        name="frame.number",
        type=_UINT,
        doc="number in the capture, from 1",
        read=_number(
            lambda f: np.arange(len(f), dtype=np.uint64) + np.uint64(f.batch.first_number)
        ),
        wireshark="frame.number",
        bits=64,
    ),
    FieldSpec(
        name="frame.time_ns",
        type=_UINT,
        doc="nanoseconds since the epoch",
        read=_number(lambda f: f.batch.time_ns.view(np.uint64)),
    ),
    FieldSpec(
        name="frame.time_epoch",
        type=FieldType(Kind.SECONDS),
        doc="seconds since the epoch",
        read=_number(lambda f: f.batch.time_ns),
        wireshark="frame.time_epoch",
        common=False,
        bits=64,
    ),
    FieldSpec(
        name="frame.time_relative",
        type=FieldType(Kind.SECONDS),
        doc="seconds since the first frame of the capture",
        read=_number(lambda f: f.batch.time_ns - f.batch.start_ns),
        wireshark="frame.time_relative",
        common=False,
        bits=64,
    ),
    FieldSpec(
        name="frame.len",
        type=_UINT,
        doc="bytes on the wire",
        read=_number(lambda f: f.batch.wire_len.astype(np.uint32)),
        wireshark="frame.len",
    ),
    FieldSpec(
        name="frame.cap_len",
        type=_UINT,
        doc="bytes captured",
        read=_number(lambda f: f.batch.cap_len.astype(np.uint32)),
        wireshark="frame.cap_len",
    ),
    FieldSpec(
        name="frame.interface",
        type=_UINT,
        doc="interface of a pcapng capture",
        read=_number(lambda f: f.batch.interface),
        wireshark="frame.interface_id",
        common=False,
    ),
    FieldSpec(
        name="frame.protocol",
        type=FieldType(Kind.TEXT, words=tuple(p.name for p in Protocol)),
        doc="what the frame carries",
        read=_number(lambda f: f.protocol),
    ),
    FieldSpec(
        name="frame.tunnelled",
        type=_UINT,
        doc="inside GRE, ERSPAN, VXLAN, MPLS or IP in IP",
        read=_where(lambda f: f.tunnelled, lambda f: f.tunnelled.view(np.uint8)),
    ),
    FieldSpec(
        name="frame.comment",
        type=FieldType(Kind.STRING),
        doc="comments in a pcapng capture, one a line",
        read=_comments,
        wireshark="frame.comment",
    ),
    FieldSpec(
        name="frame.file",
        type=FieldType(Kind.STRING),
        doc="the capture that the packet is in",
        read=_number(lambda f: np.full(len(f), f.source, object)),
        common=False,
    ),
)

_DERIVED_FIELDS = (
    FieldSpec(
        "bth.opcode_name",
        FieldType(Kind.TEXT, words=tuple(opcodes.name_of(code) for code in range(256))),
        "the opcode in the specification's words",
        _where(_has_bth, lambda f: f.opcode),
        section=h.BTH.SECTION,
    ),
    FieldSpec(
        name="aeth.syndrome.opcode",
        type=FieldType(
            Kind.UINT,
            constants={kind.name: kind for kind in AckKind if kind is not AckKind.RESERVED},
        ),
        doc="kind: 0 ACK, 1 RNR_NAK, 3 NAK",
        read=_syndrome_part(None, 5, 3),
        wireshark="infiniband.aeth.syndrome.opcode",
        section=h.AETH.SECTION,
    ),
    FieldSpec(
        name="aeth.syndrome.credit_count",
        type=_UINT,
        doc="credit code of an ACK; 31 says nothing",
        read=_syndrome_part(AckKind.ACK, 0, 31),
        wireshark="infiniband.aeth.syndrome.credit_count",
        section=h.AETH.SECTION,
    ),
    FieldSpec(
        name="aeth.syndrome.timer",
        type=_UINT,
        doc="timer code of an RNR NAK; 0 is the longest",
        read=_syndrome_part(AckKind.RNR_NAK, 0, 31),
        wireshark="infiniband.aeth.syndrome.timer",
        section=h.AETH.SECTION,
    ),
    FieldSpec(
        name="aeth.syndrome.error_code",
        type=_UINT,
        doc="NAK code",
        read=_syndrome_part(AckKind.NAK, 0, 31),
        wireshark="infiniband.aeth.syndrome.error_code",
        section=h.AETH.SECTION,
    ),
    FieldSpec(
        name="macc.pfc.classes",
        type=FieldType(Kind.LIST),
        doc="1 for each class that is spoken of",
        read=_pfc_classes,
        section=outer.PFC.SECTION,
    ),
    FieldSpec("payload.len", _UINT, "bytes of payload, without padding", _payload_length),
    FieldSpec(
        name="icrc",
        type=FieldType(Kind.HEX, digits=8),
        doc="ICRC as it stands on the wire",
        read=_icrc,
        wireshark="infiniband.invariant.crc",
        section="IBA 7.8.1",
    ),
    FieldSpec(
        name="icrc.status",
        type=_STATUS,
        doc="whether the ICRC is correct",
        read=_where(_has_transport_or_raw, icrc.icrc_status),
        section="IBA 7.8.1",
    ),
    FieldSpec(
        name="vcrc",
        type=FieldType(Kind.HEX, digits=4),
        doc="VCRC as it stands on the wire",
        read=_vcrc,
        wireshark="infiniband.variant.crc",
        section="IBA 7.8.2",
    ),
    FieldSpec(
        name="vcrc.status",
        type=_STATUS,
        doc="whether the VCRC is right",
        read=_where(lambda f: f.position(h.LRH) >= 0, icrc.vcrc_status),
        section="IBA 7.8.2",
    ),
    FieldSpec(
        name="lpcrc.status",
        type=_STATUS,
        doc="whether the LPCRC is right",
        read=_where(lambda f: f.position(h.FlowControl) >= 0, icrc.lpcrc_status),
        section="IBA 7.9.4",
    ),
)

_CM_FIELDS = (
    FieldSpec(
        name="cm.message",
        type=FieldType(Kind.TEXT, words=_CM_WORDS),
        doc="message of the connection manager: REQ, REP and so on",
        read=_cm_words,
        section="IBA 12.6",
    ),
    FieldSpec(
        name="cm.rej.reason_name",
        type=FieldType(Kind.TEXT, words=_REASON_WORDS),
        doc="why a REJ was sent, by name",
        read=_reject_reason,
        section="IBA 12.6.7",
    ),
)

_FAULT_FIELD = FieldSpec(
    name="fault",
    type=FieldType(Kind.TEXT, words=tuple(f.name.lower() for f in Fault)),
    doc="why reading the packet stopped early",
    read=_where(lambda f: f.fault != Fault.NONE, lambda f: f.fault),
)

_HEADERS: tuple[type[Header], ...] = (
    outer.Ethernet,
    outer.VLAN,
    outer.Pause,
    outer.PFC,
    outer.IPv4,
    outer.IPv6,
    outer.UDP,
    h.LRH,
    h.RWH,
    h.GRH,
    h.FlowControl,
    h.BTH,
    *opcodes.EXTENSION_HEADERS,
)


def _catalogue() -> dict[str, FieldSpec]:
    catalogue: dict[str, FieldSpec] = {}
    headers = [spec for header in _HEADERS for spec in _of_header(header)]
    for spec in (
        *_FRAME_FIELDS,
        *headers,
        *_of_outer_vlan(),
        *_DERIVED_FIELDS,
        *_of_mad(),
        *_of_cm(),
        *_CM_FIELDS,
        _FAULT_FIELD,
    ):
        known = catalogue.get(spec.name)
        catalogue[spec.name] = _either(known, spec) if known else spec
    return catalogue


def _either(first: FieldSpec, second: FieldSpec) -> FieldSpec:
    """One field that stands in two headers, never in both at once."""

    def read(frames: Frames) -> Column:
        one, other = first.read(frames), second.read(frames)
        if second.type.kind is Kind.FLAG:
            return Column(one.values | other.values, None)
        if one.valid is None or other.valid is None:
            return one if one.valid is None else other
        chosen = one.valid if one.values.ndim == 1 else one.valid[:, None]
        return Column(np.where(chosen, one.values, other.values), one.valid | other.valid)

    return replace(second, read=read)


FIELDS: dict[str, FieldSpec] = _catalogue()
"""Every field by name, in the order in which they are printed."""

GROUPS: dict[str, tuple[str, str]] = {
    "eth.addr": ("eth.src", "eth.dst"),
    "ip.addr": ("ip.src", "ip.dst"),
    "ipv6.addr": ("ipv6.src", "ipv6.dst"),
    "udp.port": ("udp.srcport", "udp.dstport"),
}
"""Names in filters that stand for either of two fields."""

PROTOCOLS: dict[str, str] = {
    "frame": "frame.len",
    "infiniband": "bth or lrh",
    "roce": "frame.protocol in {ROCEV1, ROCEV2}",
    "rocev1": "frame.protocol == ROCEV1",
    "rocev2": "frame.protocol == ROCEV2",
    "arp": "frame.protocol == ARP",
    "icmp": "frame.protocol == ICMP",
    "icmpv6": "frame.protocol == ICMPV6",
    "lldp": "frame.protocol == LLDP",
    "tcp": "frame.protocol == TCP",
    "pause": "frame.protocol == PAUSE",
    "pfc": "frame.protocol == PFC",
    "cm": "mad.mgmtclass == 7",
}
"""Protocol names in filters, and the filter that each stands for; headers stand for themselves."""
