"""Packets of a case as frames, for the connection that the case runs on.

What a step does not say is right, whatever happened before: destination, P_Key, lengths,
padding, checksums and, last of all, the ICRC.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import replace
from struct import Struct
from typing import Any

from ibwire.drill.packets import pattern
from ibwire.errors import EncodeError
from ibwire.fuzz.case import BAD, GOOD, NONE, CaseError, Packet, Value
from ibwire.node import Frame
from ibwire.rc.device import gid_of, mac_of
from ibwire.rc.path import Path, ethernet_route
from ibwire_layers import headers as h
from ibwire_layers.crc import internet_checksum
from ibwire_layers.opcodes import INFO
from ibwire_layers.outer import IPv4
from ibwire_layers.packet import Packet as WholePacket
from ibwire_layers.packet import RoCEv2Route, headers_before_bth, with_lengths
from ibwire_layers.psn import MASK
from ibwire_layers.schema import Header

SOURCE_PORT = 0xC000
OUTER = ("eth", "ip", "udp")
"""Headers before the BTH that a step may change."""

_NOTHING: Mapping[str, int] = {}
_OUTER = tuple(f"{part}." for part in OUTER)

Symbols = Mapping[str, int]


class Binding:
    """The way from the fuzzer to one device.

    source, destination: IP addresses. macs: of both, if they are not those that an
    emulated network gives.
    """

    def __init__(
        self, source: str, destination: str, macs: tuple[bytes, bytes] | None = None
    ) -> None:
        ends = gid_of(source), gid_of(destination)
        source_mac, destination_mac = macs or (mac_of(ends[0]), mac_of(ends[1]))
        self.route = ethernet_route(
            source=ends[0],
            destination=ends[1],
            source_mac=source_mac,
            destination_mac=destination_mac,
            source_port=SOURCE_PORT,
        )
        self._path = Path(self.route)

    def frame(self, packet: Packet, psn: int, symbols: Symbols) -> Frame:
        """The frame of a step. psn: what its PSN counts from, as a number."""
        return self.enclosed(packet, encode(packet, psn, symbols), symbols)

    def enclosed(self, packet: Packet, transport: bytes, symbols: Symbols) -> Frame:
        """The frame with these bytes from the BTH to the padding."""
        if len(transport) < h.BTH.SIZE:
            return self._odd_frame(packet, transport, symbols)
        for name in packet.fields:
            if name.startswith(_OUTER):
                return self._odd_frame(packet, transport, symbols)
        frame = self._path.frame(transport)
        return frame if packet.icrc == GOOD else _with_icrc(frame, packet.icrc)

    def _odd_frame(self, packet: Packet, transport: bytes, symbols: Symbols) -> Frame:
        """One that is shorter than a BTH, or whose outer headers are not as usual."""
        assert isinstance(self.route, RoCEv2Route)
        route = with_lengths(self.route, len(transport))
        assert isinstance(route, RoCEv2Route)
        for name, value in packet.fields.items():
            part, _, key = name.partition(".")
            if part in OUTER:
                route = _changed(route, part, key, number_of(value, symbols))
        if isinstance(route.ip, IPv4) and "ip.checksum" not in packet.fields:
            ip = replace(route.ip, checksum=0)
            route = replace(route, ip=replace(ip, checksum=internet_checksum(ip.pack())))
        try:
            before = headers_before_bth(route)
        except EncodeError as error:
            raise CaseError(str(error)) from None
        if len(transport) < h.BTH.SIZE:  # no room for what the ICRC masks: any number is right
            return _with_icrc(before + transport + bytes(4), packet.icrc)
        bth = h.BTH.unpack(transport[: h.BTH.SIZE])
        whole = WholePacket(route, bth, (), transport[h.BTH.SIZE :], b"")
        return _with_icrc(before + transport + whole.computed_icrc(), packet.icrc)


def encode(packet: Packet, psn: int, symbols: Symbols) -> bytes:
    """The bytes from the BTH to the padding."""
    payload = pattern(packet.at, packet.length)
    pad = -packet.length & 3 if packet.pad is None else packet.pad
    given = packet.fields
    parts: dict[str, dict[str, int]] = {}
    for name, value in given.items():
        part, _, key = name.partition(".")
        number = value if type(value) is int else number_of(value, symbols)
        if part in parts:
            parts[part][key] = number
        else:
            parts[part] = {key: number}
    psn = psn + packet.psn[1] & MASK
    if "bth" in parts:
        bth = _odd_bth(packet.opcode, pad, psn, parts["bth"], symbols)
    else:
        bth = _BTH.pack(packet.opcode, 0x40 | (pad & 3) << 4, 0xFFFF, symbols["qpn"], 1 << 31 | psn)
    extensions = b""
    for part, kind, write in _EXTENSIONS[packet.opcode]:
        own = parts.get(part, _NOTHING)
        if own and not own.keys() <= _NAMES.get(part, _NOTHING.keys()):
            extensions += _odd_header(kind, part, own)
        else:
            extensions += write(own, packet.length, symbols)
    whole = bth + extensions + payload + bytes(pad + packet.more)
    return whole if packet.cut is None else whole[: packet.cut]


def _odd_bth(opcode: int, pad: int, psn: int, own: Mapping[str, int], symbols: Symbols) -> bytes:
    get = own.get
    flags = (
        (get("se", 0) & 1) << 7
        | (get("mig_req", 1) & 1) << 6
        | (get("pad_count", pad) & 3) << 4
        | get("tver", 0) & 15
    )
    marks = (get("fecn", 0) & 1) << 7 | (get("becn", 0) & 1) << 6 | get("resv6a", 0) & 0x3F
    return _BTH.pack(
        get("opcode", opcode) & 0xFF,
        flags,
        get("pkey", symbols["pkey"]) & 0xFFFF,
        marks << 24 | get("dest_qp", symbols["qpn"]) & MASK,
        (get("ack_req", 1) & 1) << 31 | (get("resv7", 0) & 0x7F) << 24 | psn,
    )


def _odd_header(kind: type[Header], part: str, own: Mapping[str, int]) -> bytes:
    """A header with fields that its quick writer does not know."""
    numbers = {entry.name: 0 for entry in kind.FIELDS}
    if part == "feth":
        numbers["plt"] = 1
    for entry in kind.FIELDS:
        if entry.name in own:
            numbers[entry.name] = own[entry.name] & (1 << entry.width) - 1
    return kind(**numbers).pack()


def number_of(value: Value, symbols: Symbols) -> int:
    """A value on a connection; raises `CaseError` for what the connection does not have."""
    if isinstance(value, int):
        return value
    name, offset = value
    try:
        return symbols[name] + offset
    except KeyError:
        raise CaseError(f"this connection has no {name}") from None


def _with_icrc(frame: Frame, icrc: int) -> Frame:
    if icrc == GOOD:
        return frame
    if icrc == NONE:
        return frame[:-4]
    if icrc == BAD:
        return frame[:-4] + bytes([frame[-4] ^ 1]) + frame[-3:]
    return frame[:-4] + icrc.to_bytes(4)


def _changed(route: RoCEv2Route, part: str, key: str, number: int) -> RoCEv2Route:
    header: Any = getattr(route, part)
    known = {entry.name: entry for entry in header.FIELDS} if header is not None else {}
    if key not in known:
        raise CaseError(f"no field {part}.{key}")
    changes: dict[str, Any] = {key: number & (1 << known[key].width) - 1}
    changes = {part: replace(header, **changes)}
    return replace(route, **changes)


Write = Callable[[Mapping[str, int], int, Symbols], bytes]

_BTH = Struct(">BBHII")
_RETH = Struct(">QII")
_ATOMIC = Struct(">QIQQ")
_WORD = Struct(">I")
_LONG = Struct(">Q")
_64, _32 = (1 << 64) - 1, (1 << 32) - 1


def _write_reth(own: Mapping[str, int], length: int, symbols: Symbols) -> bytes:
    get = own.get
    return _RETH.pack(
        get("va", symbols["va"]) & _64,
        get("rkey", symbols["rkey"]) & _32,
        get("dma_len", length) & _32,
    )


def _write_atomic(own: Mapping[str, int], length: int, symbols: Symbols) -> bytes:
    get = own.get
    return _ATOMIC.pack(
        get("va", symbols["va"]) & _64,
        get("rkey", symbols["rkey"]) & _32,
        get("swap", 0) & _64,
        get("compare", 0) & _64,
    )


def _write_aeth(own: Mapping[str, int], length: int, symbols: Symbols) -> bytes:
    return _WORD.pack((own.get("syndrome", 0x1F) & 0xFF) << 24 | own.get("msn", 0) & MASK)


def _write_feth(own: Mapping[str, int], length: int, symbols: Symbols) -> bytes:
    return _WORD.pack((own.get("sel", 0) & 3) << 4 | own.get("plt", 1) & 15)


_QUICK: Mapping[type[Header], tuple[frozenset[str], Write]] = {
    h.RETH: (frozenset({"va", "rkey", "dma_len"}), _write_reth),
    h.AtomicETH: (frozenset({"va", "rkey", "swap", "compare"}), _write_atomic),
    h.AETH: (frozenset({"syndrome", "msn"}), _write_aeth),
    h.FETH: (frozenset({"sel", "plt"}), _write_feth),
    h.AtomicAckETH: (
        frozenset({"orig"}),
        lambda own, length, symbols: _LONG.pack(own.get("orig", 0) & _64),
    ),
    h.ImmDt: (
        frozenset({"imm_data"}),
        lambda own, length, symbols: _WORD.pack(own.get("imm_data", 0x1A2B3C4D) & _32),
    ),
    h.IETH: (
        frozenset({"rkey"}),
        lambda own, length, symbols: _WORD.pack(own.get("rkey", symbols["mw.rkey"]) & _32),
    ),
}
_NAMES: Mapping[str, Set[str]] = {kind.KEY: names for kind, (names, _) in _QUICK.items()}


def _extensions(opcode: int) -> tuple[tuple[str, type[Header], Write], ...]:
    info = INFO.get(opcode)
    return tuple(
        (kind.KEY, kind, _QUICK[kind][1] if kind in _QUICK else _zeros(kind))
        for kind in (info.headers if info else ())
    )


def _zeros(kind: type[Header]) -> Write:
    zeros = bytes(kind.SIZE)
    return lambda own, length, symbols: zeros


_EXTENSIONS = tuple(_extensions(opcode) for opcode in range(256))
"""Extension headers by opcode: their keys, their kinds, how they are written."""
