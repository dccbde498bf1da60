"""Frames of the packets in a script, and comparison of received frames with them.

In packets to the device every field that a script does not set is right: addresses, P_Key,
destination queue pair, pad count, lengths, checksums and the ICRC, which is computed last. In
packets of the device every field that a script does not mention must be right.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ibwire.drill.language import manager_messages as management
from ibwire.drill.language.expressions import Scope
from ibwire.drill.language.literals import (
    ICRCS,
    LIMITS,
    NAMES,
    WRAPPING,
    Literal,
    Place,
    short_name,
    single,
)
from ibwire.drill.language.tokens import Token
from ibwire.rc.unreliable import QP1
from ibwire_layers import headers as h
from ibwire_layers import syndrome as aeth
from ibwire_layers.build import Icrc
from ibwire_layers.build import build as build_frame
from ibwire_layers.errors import DecodeError
from ibwire_layers.mad import GSI_QKEY
from ibwire_layers.opcodes import INFO, OpCode, Payload
from ibwire_layers.outer import MAC_CONTROL_ADDRESS, PFC, Ethernet, EtherType
from ibwire_layers.packet import (
    CrcStatus,
    Packet,
    RoCEv2Route,
    Route,
)
from ibwire_layers.psn import MASK, distance
from ibwire_layers.schema import Header
from ibwire_layers.syndrome import AckKind

FULL_MEMBER = 0x8000
"""In a P_Key: of a full member, which may talk to limited ones."""

SHORTEST = 60
"""Bytes of an Ethernet frame without FCS."""

GOOD, BAD, SWAPPED, NONE = (ICRCS[name] for name in ("good", "bad", "swapped", "none"))
"""ICRCs besides numbers of 32 bits; those from `GOOD` on say which bits of it are flipped."""


def pattern(at: int, length: int) -> bytes:
    """Bytes of the test pattern, which repeats after 2^16 and differs at near offsets."""
    at &= 0xFFFF
    return (_PATTERN * ((at + length >> 16) + 1))[at : at + length]


@dataclass(frozen=True, slots=True)
class Wire:
    """The constants of the packets of one connection, as the peer of the device sends them."""

    route: Route
    """From the peer to the device."""
    qpn: int
    peer_qpn: int
    pkey: int
    mtu: int
    rq_psn: int
    sq_psn: int
    va: int
    rkey: int
    qkey: int = GSI_QKEY
    is_datagram: bool = False
    srqn: int = 0
    """The number of the device's shared receive queue, for XRC."""


def psn_base(wire: Wire, *, to_device: bool, is_response: bool) -> int:
    """The value of `psn` in a packet: the first PSN of the requests that it belongs to."""
    return wire.rq_psn if to_device != is_response else wire.sq_psn


def aim(
    literal: Literal, wire: Wire, scope: Scope, *, to_device: bool, packet: Packet | None = None
) -> None:
    """Set `psn` to the first PSN of a packet's direction; for `any`, of the received packet."""
    is_response = literal.is_response
    if literal.is_any and packet is not None:
        is_response = _is_response(packet)
    scope.symbols["psn"] = psn_base(wire, to_device=to_device, is_response=is_response)


def build(literal: Literal, wire: Wire, scope: Scope) -> bytes:
    """The frame of a packet to the device; raises `ScriptError` for values that do not fit."""
    given = _numbers(literal, scope)
    payload = _payload(literal, given, scope)
    pad = _word(literal, scope, "pad", -len(payload) % 4)
    padding = bytes([_word(literal, scope, "fill", 0)]) * pad
    padding += bytes(_word(literal, scope, "more", 0))
    is_management = literal.form is not None
    defaults = {
        "pkey": wire.pkey | FULL_MEMBER,
        "mig_req": 1,
        "dest_qp": QP1 if is_management else wire.qpn,
        "pad_count": pad & 3,
        "psn": psn_base(wire, to_device=True, is_response=literal.is_response),
        "va": wire.va,
        "reth.rkey": wire.rkey,
        "atomiceth.rkey": wire.rkey,
        "feth.plt": 1,
        "syndrome": _syndrome(literal, scope),
        "qkey": GSI_QKEY if is_management else wire.qkey,
        "src_qp": QP1 if is_management else wire.peer_qpn,
        "xrc_srq": wire.srqn,
    }
    if is_management:
        defaults["psn"] = 0
    _check_route(literal, wire.route, given, scope)
    parts = {h.BTH.KEY, *(kind.KEY for kind in literal.headers), *_OUTER}
    fields: dict[str, Any] = {
        f"{part}.{name}": number
        for part, numbers in given.items()
        if part in parts
        for name, number in numbers.items()
    }
    cut = None
    if "cut" in literal.words:
        size = h.BTH.SIZE + sum(kind.SIZE for kind in literal.headers)
        cut = _word(literal, scope, "cut", 0, (0, size + len(payload) + len(padding)))
    icrc = _icrc(literal, scope)
    frame = build_frame(
        literal.opcode,
        route=wire.route,
        payload=payload,
        padding=padding,
        icrc=built_icrc(icrc),
        cut=cut,
        defaults=defaults,
        **fields,
    )
    return with_icrc(frame, icrc)


def built_icrc(icrc: int) -> Icrc:
    """What a frame is built with, before `with_icrc`."""
    if icrc < GOOD:
        return icrc
    return "none" if icrc == NONE else "good"


def with_icrc(frame: bytes, icrc: int) -> bytes:
    """A frame that was built with `built_icrc`, with its ICRC changed as it shall be."""
    if icrc == SWAPPED:
        return frame[:-4] + frame[:-5:-1]
    if not GOOD < icrc < SWAPPED:
        return frame
    number = int.from_bytes(frame[-4:]) ^ icrc & GOOD - 1
    return frame[:-4] + number.to_bytes(4)


def pause_frame(source: bytes, priorities: int, quanta: int) -> bytes:
    """A PFC frame from a port (IEEE 802.1Q 36; reference/wire-formats#pfc).

    source: its MAC address. priorities: a bit for each. quanta: times of 512 bits.
    """
    times = tuple(quanta * (priorities >> number & 1) for number in range(8))
    ethernet = Ethernet(MAC_CONTROL_ADDRESS, int.from_bytes(source), EtherType.MAC_CONTROL)
    frame = ethernet.pack() + PFC(class_enable=priorities, time=times).pack()
    return frame.ljust(SHORTEST, b"\0")


def icrc_text(icrc: int) -> str:
    """An ICRC as scripts have it."""
    for name, number in ICRCS.items():
        if icrc == number:
            return name
    return hex(icrc) if icrc < GOOD else f"good^{icrc & GOOD - 1:#x}"


def has_no_icrc(literal: Literal, scope: Scope) -> bool:
    """Whether a packet is sent without an ICRC."""
    return _icrc(literal, scope) == NONE


def parse(frame: bytes) -> Packet | str:
    """A frame of the device as a packet, or its error as text."""
    try:
        packet = Packet.parse(frame)
    except DecodeError as error:
        return str(error)
    if packet.icrc_status() in (CrcStatus.BAD, CrcStatus.ABSENT):
        return f"{short_name(packet.bth.opcode)} whose ICRC is {packet.icrc_status().value}"
    return packet


def differences(
    literal: Literal, packet: Packet, wire: Wire, scope: Scope, *, from_device: bool = True
) -> list[str]:
    """The differences of a packet from the one that a script expects; empty if there are none.

    from_device: fields that the script does not mention must be correct.

    Captured variables are set in `scope` only when nothing differs.
    """
    aim(literal, wire, scope, to_device=not from_device, packet=packet)
    opcode = literal.opcode
    if not literal.is_any and packet.bth.opcode != opcode:
        return [f"opcode {short_name(packet.bth.opcode)}, not {short_name(opcode)}"]
    found: list[str] = []
    captured: dict[str, int] = {}
    if literal.form is not None:
        if not management.is_message(literal.form, packet):
            return [f"{management.describe(packet)}, not {literal.name}"]
        fields = frozenset(place.field.name for place in literal.fields)
        found = management.differences(literal.form, packet, fields, literal.data, scope.symbols)
    for place, (token, value) in literal.fields.items():
        actual = _number_at(packet, place)
        if actual is None and literal.is_any:
            found.append(f"no {token.text}")
            continue
        if actual is None:
            raise scope.error(token, f"the packets of this connection have no {token.text}")
        names = management.names_of(place.field)
        _compare(found, captured, place.field.name, value, actual, scope, names)
    if literal.form is None:
        found += _payload_differences(literal, packet, captured, scope)
    if not literal.is_any:
        found += _syndrome_differences(literal, packet, captured, scope)
    if from_device:
        named = frozenset(place.field.name for place in literal.fields)
        found += wrong_anyway(packet, wire, named)
    if not found:
        scope.captured.update(captured)
    return found


def wrong_anyway(packet: Packet, wire: Wire, named: frozenset[str] = frozenset()) -> list[str]:
    """Errors that no packet of the device may have, except in fields named by the script."""
    bth = packet.bth
    found = []
    is_managed = bth.opcode == OpCode.UD_SEND_ONLY and not wire.is_datagram
    qpn = QP1 if is_managed else wire.peer_qpn
    if bth.dest_qp != qpn and "dest_qp" not in named:
        found.append(f"dest_qp {bth.dest_qp:#x}, not {qpn:#x}")
    if bth.tver and "tver" not in named:
        found.append(f"tver {bth.tver}, not 0")
    if bth.pkey & 0x7FFF != wire.pkey & 0x7FFF and "pkey" not in named:
        found.append(f"pkey {bth.pkey:#x}, not {wire.pkey:#x}")
    if bth.pad_count != -len(packet.payload) % 4 and "pad_count" not in named:
        found.append(f"pad_count {bth.pad_count} with {len(packet.payload)} bytes of payload")
    if packet.padding and any(packet.padding):
        found.append(f"padding {packet.padding.hex()}, not zeros")
    deth = packet.extension(h.DETH) if wire.is_datagram else None
    if deth is not None and deth.src_qp != wire.qpn and "src_qp" not in named:
        found.append(f"src_qp {deth.src_qp:#x}, not {wire.qpn:#x}")
    if deth is not None and deth.qkey != wire.qkey and "qkey" not in named:
        found.append(f"qkey {deth.qkey:#x}, not {wire.qkey:#x}")
    info = INFO.get(bth.opcode)
    if info is None:
        found.append("a reserved opcode")
    elif not _size_fits(info.payload, len(packet.payload), wire.mtu):
        found.append(f"{len(packet.payload)} bytes of payload with a path MTU of {wire.mtu}")
    return found


def describe(packet: Packet, wire: Wire, *, to_device: bool) -> str:
    """A packet as a line of text, with its PSN relative to the first of the connection."""
    if management.is_management(packet):
        return management.describe(packet)
    info = INFO.get(packet.bth.opcode)
    base = psn_base(wire, to_device=to_device, is_response=_is_response(packet))
    bth = packet.bth
    words = [short_name(bth.opcode), _relative(bth.psn, base)]
    ack = packet.extension(h.AETH)
    if ack is not None:
        words += [aeth.describe(ack.syndrome), f"msn={ack.msn}"]
    reth = packet.extension(h.RETH)
    if reth is not None:
        words += [f"va={reth.va:#x}", f"rkey={reth.rkey:#x}", f"dma_len={reth.dma_len}"]
    atomic = packet.extension(h.AtomicETH)
    if atomic is not None:
        words += [f"va={atomic.va:#x}", f"swap={atomic.swap:#x}", f"compare={atomic.compare:#x}"]
    original = packet.extension(h.AtomicAckETH)
    if original is not None:
        words.append(f"orig={original.orig:#x}")
    if packet.payload or (info is not None and info.payload is not Payload.NONE):
        words.append(f"len={len(packet.payload)}")
    words += ["ack"] * bth.ack_req + ["se"] * bth.se
    return " ".join(words)


def shown(literal: Literal, scope: Scope | None) -> str:
    """A packet of a script as a line of text, with the values of its symbols.

    Without a scope, as for `any` before a packet has come, it is as written.
    """
    words = ["any" if literal.is_any else literal.name]
    for place, (_, value) in literal.fields.items():
        name = f"{place.part}." * (place.part in _OUTER) + place.field.name
        words.append(f"{name}={value.shown(scope, _mask(place.field.name))}")
    words += [f"{name}={value.shown(scope)}" for name, (_, value) in literal.words.items()]
    if literal.data is not None:
        words.append(f'data="{literal.data.hex()}"')
    return " ".join(words)


def _is_response(packet: Packet) -> bool:
    info = INFO.get(packet.bth.opcode)
    return info is not None and info.is_response


def _relative(psn: int, base: int) -> str:
    ahead = distance(base, psn)
    if abs(ahead) > 0xFFFF:
        return f"psn={psn}"
    return f"psn{ahead:+d} ({psn})" if ahead else f"psn ({psn})"


def _payload(literal: Literal, given: Mapping[str, Mapping[str, int]], scope: Scope) -> bytes:
    data, is_whole = literal.data, "len" in literal.words
    if data is None:
        length = _word(literal, scope, "len", 0)
        data = pattern(_word(literal, scope, "at", 0), length)
    if literal.form is not None:
        return management.build(literal.form, given, data, scope.symbols, is_whole=is_whole)
    return data


def _word(
    literal: Literal,
    scope: Scope,
    name: str,
    default: int,
    limits: tuple[int, int] | None = None,
) -> int:
    if name not in literal.words:
        return default
    low, high = limits or LIMITS[name]
    token, value = literal.words[name]
    number = single(value).evaluate(scope)
    if not low <= number <= high:
        raise scope.error(token, f"{name} is {number}, not from {low} to {high}")
    return number


def _icrc(literal: Literal, scope: Scope) -> int:
    return _word(literal, scope, "icrc", GOOD, (0, NONE))


def _syndrome(literal: Literal, scope: Scope) -> int:
    for name, kind in _KINDS.items():
        if name in literal.words:
            return kind << 5 | _word(literal, scope, name, 0)
    return aeth.INVALID_CREDITS


def _numbers(literal: Literal, scope: Scope) -> dict[str, dict[str, int]]:
    """Fields by part and name."""
    given: dict[str, dict[str, int]] = {}
    for place, (token, value) in literal.fields.items():
        number = single(value).evaluate(scope) & _mask(place.field.name)
        width = 64 if place.field.is_octets else place.field.width
        _check_width(token, number, width, scope)
        given.setdefault(place.part, {})[place.field.name] = number
    return given


def _check_width(token: Token, number: int, width: int, scope: Scope) -> None:
    if not 0 <= number < 1 << width:
        reason = f"{token.text} is {number:#x}, which does not fit {width} bits"
        raise scope.error(token, reason)


def _check_route(
    literal: Literal, route: Route, given: Mapping[str, Mapping[str, int]], scope: Scope
) -> None:
    """Raise `ScriptError` for a field before the BTH that does not exist or does not fit."""
    for place, (token, _) in literal.fields.items():
        if place.part not in _OUTER:
            continue
        widths = _widths_of(_outer(route, place.part))
        if place.field.name not in widths:
            raise scope.error(token, f"the packets of this connection have no {token.text}")
        _check_width(token, given[place.part][place.field.name], widths[place.field.name], scope)


def _outer(route: Route, part: str) -> Header | None:
    if not isinstance(route, RoCEv2Route):
        return None
    return {"ip": route.ip, "udp": route.udp, "eth": route.eth}.get(part)


def _widths_of(header: Header | None) -> dict[str, int]:
    """Bits by the names of a header's fields."""
    return {} if header is None else {entry.name: entry.width for entry in header.FIELDS}


def _number_at(packet: Packet, place: Place) -> int | None:
    """The number in a field of a packet, `None` if it has no such field."""
    header: Header | None
    if place.part in _OUTER:
        header = _outer(packet.route, place.part)
    else:
        headers = (packet.bth, *packet.extensions)
        if place.part not in (each.KEY for each in headers):
            header = management.header_of(packet, place.part)
            headers = (*headers, header) if header else headers
        header = next((each for each in headers if place.part == each.KEY), None)
    if header is None or place.field.name not in _widths_of(header):
        return None
    number = getattr(header, place.field.name)
    return number if isinstance(number, int) else None


def _compare(
    found: list[str],
    captured: dict[str, int],
    name: str,
    value: Any,
    actual: int,
    scope: Scope,
    names: Mapping[str, int] | None = None,
) -> None:
    if value.name:
        captured[value.name] = actual
    elif not value.accepts(actual, scope, _mask(name)):
        came = hex(actual) if actual >= 1 << 24 else str(actual)
        own = next((each for each, number in (names or {}).items() if number == actual), None)
        came = came if own is None else f"{own} ({came})"
        found.append(f"{name} {came}, not {value.shown(scope, _mask(name))}")


def _mask(name: str) -> int:
    """Mask of a number in a field of this name; -1 keeps all of it."""
    return MASK if name in WRAPPING else -1


def _payload_differences(
    literal: Literal, packet: Packet, captured: dict[str, int], scope: Scope
) -> list[str]:
    found: list[str] = []
    payload = packet.payload
    if "len" in literal.words:
        _compare(found, captured, "len", literal.words["len"][1], len(payload), scope)
    expected = literal.data
    if "at" in literal.words:
        token, value = literal.words["at"]
        if len(value.choices) != 1:
            raise scope.error(token, "the payload begins at one place of the pattern")
        expected = pattern(_word(literal, scope, "at", 0), len(payload))
        if literal.is_any and not payload:
            found.append("no payload")
    if expected is not None and expected != payload:
        found.append(byte_difference(expected, payload))
    return found


def byte_difference(expected: bytes, actual: bytes) -> str:
    """Where bytes begin to differ."""
    if len(expected) != len(actual):
        return f"{len(actual)} bytes, not {len(expected)}"
    first = next(i for i, (a, b) in enumerate(zip(expected, actual, strict=True)) if a != b)
    few = slice(first, first + 8)
    return f"bytes from {first} on are {actual[few].hex()}, not {expected[few].hex()}"


def _syndrome_differences(
    literal: Literal, packet: Packet, captured: dict[str, int], scope: Scope
) -> list[str]:
    """An answer is positive unless a script expects something else of it."""
    found: list[str] = []
    ack = packet.extension(h.AETH)
    if ack is None:
        return found
    kind, code = aeth.kind(ack.syndrome), aeth.code(ack.syndrome)
    for name, wanted in _KINDS.items():
        if name in literal.words:
            if kind is not wanted:
                return [f"{aeth.describe(ack.syndrome)}, not {_KIND_NAMES[name]}"]
            names = NAMES.get(name)
            _compare(found, captured, name, literal.words[name][1], code, scope, names)
            return found
    is_named = any(place.field.name == "syndrome" for place in literal.fields)
    if kind is not AckKind.ACK and not is_named:
        found.append(f"{aeth.describe(ack.syndrome)}, not an ACK")
    return found


def _size_fits(rule: Payload, size: int, mtu: int) -> bool:
    if rule is Payload.PMTU:
        return size == mtu
    if rule is Payload.NONE:
        return size == 0
    if rule is Payload.EIGHT:
        return size == 8
    return (rule is Payload.ANY or size > 0) and size <= mtu


_PATTERN = bytes((i * 167 + (i >> 8) * 59 + 1) & 0xFF for i in range(1 << 16))
_KINDS = {"nak": AckKind.NAK, "rnr": AckKind.RNR_NAK, "credits": AckKind.ACK}
_KIND_NAMES = {"nak": "a NAK", "rnr": "an RNR NAK", "credits": "an ACK"}
_OUTER = ("ip", "udp", "eth", "vlan")
"""Headers before the BTH."""
