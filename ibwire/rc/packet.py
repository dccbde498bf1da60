"""A packet as the transport uses it, and its bytes from the BTH to the padding.

`ibwire_layers.Packet` keeps every bit of every header; the state machines need a few
fields, a hundred thousand times a second. The layouts here are those of
`ibwire_layers.headers`, and a test compares the bytes of the two.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import TYPE_CHECKING, Final

from ibwire.base.unbuilt import UnbuiltFrame, set_ce
from ibwire_layers import headers as h
from ibwire_layers import opcodes
from ibwire_layers.opcodes import OpCode, Operation, Position, Service
from ibwire_layers.schema import Header

if TYPE_CHECKING:
    from ibwire.rc.path import Arrival, Path

_BTH = Struct(">BBHII")
_PACK_BTH: Final = _BTH.pack
_UNPACK_BTH: Final = _BTH.unpack_from
_PACK_BTH_START: Final = Struct(">BBHI").pack
_RETH = Struct(">QII")
_ATOMIC = Struct(">QIQQ")
_WORD = Struct(">I")
_PACK_WORD: Final = _WORD.pack
_UNPACK_WORD: Final = _WORD.unpack_from
_LONG = Struct(">Q")
_DETH = Struct(">II")

LOW24: Final = 0xFFFFFF

_IP_AT: Final = 14
"""Where the IP header of an unbuilt frame is: it has no tags."""


class TransportPacket(UnbuiltFrame):
    """The fields of a packet for a queue pair; fields of headers that it lacks are unset.

    A `Device` that sends it on a simulated wire sets `path`, `size`, `flow_key`, `is_marked` and
    `identification`: then it is a frame that is not built.
    """

    __slots__ = (
        "ack_req",
        "arrival",
        "becn",
        "compare",
        "dest_qp",
        "dma_len",
        "form",
        "identification",
        "imm_data",
        "invalidate_rkey",
        "mig_req",
        "msn",
        "original",
        "pad_count",
        "path",
        "payload",
        "pkey",
        "plt",
        "psn",
        "qkey",
        "reserved",
        "rkey",
        "se",
        "sel",
        "src_qp",
        "swap",
        "syndrome",
        "va",
        "xrc_srq",
    )

    form: Form
    psn: int
    dest_qp: int
    payload: bytes
    pad_count: int
    """As received; sent packets are padded to a multiple of four."""
    arrival: Arrival | None
    """The headers before the BTH, of a packet that was received."""
    path: Path | None
    """The path of a datagram, and of a packet that is sent; otherwise that of its queue pair."""
    identification: int
    """Of its IPv4 header, if the path counts it."""
    ack_req: int
    se: int
    mig_req: int
    pkey: int
    becn: int
    reserved: int
    """Bits 5:0 of BTH byte 4."""
    va: int
    rkey: int
    dma_len: int
    swap: int
    """The value to swap in or to add."""
    compare: int
    syndrome: int
    msn: int
    original: int
    imm_data: int
    invalidate_rkey: int
    xrc_srq: int
    qkey: int
    src_qp: int
    sel: int
    plt: int

    def __init__(self, form: Form, psn: int, payload: bytes = b"") -> None:
        self.form = form
        self.psn = psn
        self.payload = payload
        self.ack_req = self.se = self.pad_count = self.becn = self.reserved = 0
        self.arrival = self.path = None
        self.trailer = b""

    def send_by(self, path: Path) -> int:
        """Make it a frame on a path, which can be built from now on; returns the bytes of it."""
        size = self.form.header_size + (len(self.payload) + 3 & -4) + path.around
        if self.trailer:
            size += len(self.trailer)
        self.size = size
        self.path = path
        self.flow_key = path.flow_key
        self.is_marked = False
        self.built = None
        self.continues = self.form.continues
        self.identification = path.next_identification() if path.counts else -1
        return size

    def build(self) -> bytes:
        """The bytes of a frame that is sent."""
        if self.built is not None:
            return self.built
        path = self.path
        assert path is not None
        if self.identification < 0 and not self.form.writers and not len(self.payload) & 3:
            start = _PACK_BTH_START(
                self.form.opcode,
                self.se << 7 | self.mig_req << 6,
                self.pkey,
                self.becn << 30 | self.reserved << 24 | self.dest_qp,
            )
            frame = path.plain(start, _PACK_WORD(self.ack_req << 31 | self.psn), self.payload)
        else:
            frame = path.frame(encode(self), self.identification)
        if self.is_marked:
            frame = set_ce(frame, _IP_AT)
        if self.trailer:
            frame += self.trailer
        self.built = frame
        return frame

    def __repr__(self) -> str:
        held = (f"{name}={getattr(self, name, None)!r}" for name in FIELDS if name != "form")
        return f"<{self.form.name} {' '.join(each for each in held if '=None' not in each)}>"


FIELDS = tuple(
    name
    for name in dir(TransportPacket)
    if not (
        name.startswith("_")
        or hasattr(UnbuiltFrame, name)
        or callable(getattr(TransportPacket, name))
    )
)
"""The names of its fields; a compiled class has no `__slots__` that could be asked for them."""

Reader = Callable[[TransportPacket, bytes, int], None]
Writer = Callable[[TransportPacket], bytes]


class Form:
    """The properties of an opcode, precomputed for the state machines."""

    __slots__ = (
        "continues",
        "has_aeth",
        "has_imm",
        "has_invalidate",
        "header_size",
        "is_first",
        "is_known",
        "is_last",
        "is_response",
        "name",
        "opcode",
        "operation",
        "payload_rule",
        "readers",
        "service",
        "takes_receive",
        "writers",
    )

    def __init__(self, opcode: int) -> None:
        info = opcodes.INFO.get(opcode)
        self.opcode = opcode
        self.name = opcodes.name_of(opcode)
        self.is_known = info is not None
        self.service: Service | None = _service(opcode)
        self.operation: Operation | None = info.operation if info else None
        self.payload_rule = info.payload if info else opcodes.Payload.ANY
        position = info.position if info else Position.ONLY
        headers = info.headers if info else ()
        self.is_first = position in (Position.FIRST, Position.ONLY)
        self.is_last = position in (Position.LAST, Position.ONLY)
        self.is_response = info is not None and info.is_response
        self.has_imm = h.ImmDt in headers
        self.has_invalidate = h.IETH in headers
        self.has_aeth = h.AETH in headers
        self.takes_receive = (self.operation is Operation.SEND and self.is_first) or (
            self.operation is Operation.WRITE and self.has_imm
        )
        """Whether the packet is the one of its message that consumes a receive work request."""
        self.continues = position is Position.MIDDLE and self.service is Service.RC
        """Whether a run may begin with it."""
        self.header_size = h.BTH.SIZE + sum(header.SIZE for header in headers)
        self.readers: tuple[tuple[Reader, int], ...] = ()
        self.writers: tuple[Writer, ...] = ()
        offset = h.BTH.SIZE
        for header in headers:
            if header in _CODECS:
                reader, writer = _CODECS[header]
                self.readers += ((reader, offset),)
                self.writers += (writer,)
            offset += header.SIZE


def encode(packet: TransportPacket) -> bytes:
    """The bytes from the BTH to the padding."""
    form = packet.form
    payload = packet.payload
    pad = -len(payload) & 3
    bth: bytes = _PACK_BTH(
        form.opcode,
        packet.se << 7 | packet.mig_req << 6 | pad << 4,
        packet.pkey,
        packet.becn << 30 | packet.reserved << 24 | packet.dest_qp,
        packet.ack_req << 31 | packet.psn,
    )
    writers = form.writers
    if writers:
        extensions = writers[0](packet)
        for write in writers[1:]:
            extensions += write(packet)
        return bth + extensions + payload + _PADS[pad] if pad else bth + extensions + payload
    return bth + payload + _PADS[pad] if pad else bth + payload


def decode(data: bytes, start: int, end: int) -> TransportPacket | None:
    """Read a packet from its BTH at `start` to the end of its padding; `None` if it is malformed.

    Malformed: shorter than its headers, a pad count larger than what follows them, or
    a transport version that is not 0 (IBA 9.6.1.1: discarded silently).
    """
    if end - start < 12:
        return None
    # Compiled code computes with numbers only where it is told that they are.
    opcode: int
    flags: int
    destination: int
    psn: int
    opcode, flags, pkey, destination, psn = _UNPACK_BTH(data, start)
    form = FORMS[opcode]
    pad = flags >> 4 & 3
    first = start + form.header_size
    last = end - pad
    if first > last or flags & 15:
        return None
    packet = TransportPacket(form, psn & LOW24, data[first:last])
    packet.dest_qp = destination & LOW24
    packet.pkey = pkey
    packet.pad_count = pad
    packet.mig_req = flags >> 6 & 1
    if flags & 0x80:
        packet.se = 1
    if psn >> 31:
        packet.ack_req = 1
    if destination >> 24:
        packet.becn = destination >> 30 & 1
        packet.reserved = destination >> 24 & 63
    for reader, offset in form.readers:
        reader(packet, data, start + offset)
    return packet


def _service(opcode: int) -> Service | None:
    """The service by the upper three bits, also for unknown opcodes."""
    if opcode >> 5 == Service.CNP:
        return Service.CNP if opcode == OpCode.CNP else None
    return Service(opcode >> 5) if opcode >> 5 <= Service.XRC else None


def _read_reth(packet: TransportPacket, data: bytes, offset: int) -> None:
    packet.va, packet.rkey, packet.dma_len = _RETH.unpack_from(data, offset)


def _read_atomic(packet: TransportPacket, data: bytes, offset: int) -> None:
    fields = _ATOMIC.unpack_from(data, offset)
    packet.va, packet.rkey, packet.swap, packet.compare = fields


def _read_aeth(packet: TransportPacket, data: bytes, offset: int) -> None:
    word: int
    (word,) = _UNPACK_WORD(data, offset)
    packet.syndrome = word >> 24
    packet.msn = word & LOW24


def _read_original(packet: TransportPacket, data: bytes, offset: int) -> None:
    (packet.original,) = _LONG.unpack_from(data, offset)


def _read_imm(packet: TransportPacket, data: bytes, offset: int) -> None:
    (packet.imm_data,) = _WORD.unpack_from(data, offset)


def _read_invalidate(packet: TransportPacket, data: bytes, offset: int) -> None:
    (packet.invalidate_rkey,) = _WORD.unpack_from(data, offset)


def _read_xrc(packet: TransportPacket, data: bytes, offset: int) -> None:
    packet.xrc_srq = _WORD.unpack_from(data, offset)[0] & LOW24


def _read_deth(packet: TransportPacket, data: bytes, offset: int) -> None:
    packet.qkey, source = _DETH.unpack_from(data, offset)
    packet.src_qp = source & LOW24


def _read_feth(packet: TransportPacket, data: bytes, offset: int) -> None:
    (word,) = _WORD.unpack_from(data, offset)
    packet.sel = word >> 4 & 3
    packet.plt = word & 15


_CODECS: dict[type[Header], tuple[Reader, Writer]] = {
    h.RETH: (_read_reth, lambda p: _RETH.pack(p.va, p.rkey, p.dma_len)),
    h.AtomicETH: (_read_atomic, lambda p: _ATOMIC.pack(p.va, p.rkey, p.swap, p.compare)),
    h.AETH: (_read_aeth, lambda p: _PACK_WORD(p.syndrome << 24 | p.msn)),
    h.AtomicAckETH: (_read_original, lambda p: _LONG.pack(p.original)),
    h.ImmDt: (_read_imm, lambda p: _WORD.pack(p.imm_data)),
    h.IETH: (_read_invalidate, lambda p: _WORD.pack(p.invalidate_rkey)),
    h.XRCETH: (_read_xrc, lambda p: _WORD.pack(p.xrc_srq)),
    h.DETH: (_read_deth, lambda p: _DETH.pack(p.qkey, p.src_qp)),
    h.FETH: (_read_feth, lambda p: _WORD.pack(p.sel << 4 | p.plt)),
    h.CNPReserved: (lambda p, data, offset: None, lambda p: bytes(16)),
}

_PADS: Final = (b"", bytes(1), bytes(2), bytes(3))

FORMS: Final[tuple[Form, ...]] = tuple(Form(opcode) for opcode in range(256))
"""By opcode byte, unknown opcodes included."""
