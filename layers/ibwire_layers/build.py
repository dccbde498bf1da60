"""From named fields to a frame: `build` makes its bytes, `build_packet` a `Packet`.

    build(OpCode.RC_SEND_ONLY, route=route, payload=b"hello", dest_qp=0x11, psn=7)
    build(OpCode.RC_ACKNOWLEDGE, route=route, psn=7, icrc="bad", **{"ip.ttl": 1})

Names of fields:

- A bare name, `psn` or `rkey`, is a field of the transport headers: the BTH and the
  extension headers of the opcode. Where several of them have the field, it is set in all.
- A name with its header, `reth.va` or `ip.ttl`, is set in that header only, and takes
  precedence over the bare name. The headers before the BTH are `eth`, `vlan` (every tag),
  `ip` (IPv4 or IPv6), `udp`, `grh` and `lrh`; their fields always need the header.
- The column name (`bth.destqp`) and Wireshark's name (`infiniband.bth.destqp`) of a field
  are names with a header too (`ibwire_layers.fields`).

Fields that are not given have correct values: padding and pad count, the DMA length, all
lengths, the IPv4 header checksum, ICRC and VCRC. The UDP checksum is 0, which RoCEv2 allows
and most adapters send. All other fields have the default of their header class.

`enclose` makes a frame of other bytes, such as the beginning of a packet.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Literal

from ibwire_layers import crc
from ibwire_layers import headers as h
from ibwire_layers.errors import EncodeError
from ibwire_layers.fields import NAMES, change_route, header_kinds
from ibwire_layers.opcodes import EXTENSION_HEADERS, INFO, name_of
from ibwire_layers.outer import UDP, Ethernet, IPv4
from ibwire_layers.packet import (
    IBRoute,
    Packet,
    RoCEv2Route,
    Route,
    headers_before_bth,
    with_ip_checksum,
    with_lengths,
)
from ibwire_layers.schema import Header

Icrc = Literal["good", "bad", "none"] | int
"""The ICRC of a frame: right, with one wrong bit, missing, or its four bytes as sent, as a
big-endian number."""

ROCEV2 = RoCEv2Route(IPv4(), UDP(), Ethernet())
"""RoCEv2 over IPv4 and untagged Ethernet, with every address 0."""


def build(
    opcode: int,
    /,
    *,
    route: Route = ROCEV2,
    payload: bytes = b"",
    padding: bytes | None = None,
    icrc: Icrc = "good",
    cut: int | None = None,
    defaults: Mapping[str, int] | None = None,
    **fields: int,
) -> bytes:
    """The frame of a packet with these fields.

    cut: bytes of the packet that are kept from its BTH on, before the ICRC is appended; `None`
    for all. The ICRC of less than a BTH is 0.

    The rest is as for `build_packet`. Raises `EncodeError`.
    """
    packet = build_packet(
        opcode,
        route=route,
        payload=payload,
        padding=padding,
        icrc=icrc,
        defaults=defaults,
        **fields,
    )
    if cut is None:
        return packet.build()
    values, _ = _resolve((h.BTH, *map(type, packet.extensions)), route, (defaults or {}, fields))
    return _enclosed(packet.transport()[:cut], route, icrc, values)


def enclose(
    transport: bytes, *, route: Route = ROCEV2, icrc: Icrc = "good", **fields: int
) -> bytes:
    """The frame of any bytes from the BTH to the padding, with fields of the headers before it.

    If there is less than a BTH, the ICRC is 0. Raises `EncodeError`.
    """
    values, unknown = _resolve((), route, (fields,))
    if unknown:
        raise _unknown_field(unknown[0], "this route", values)
    return _enclosed(transport, route, icrc, values)


def build_packet(
    opcode: int,
    /,
    *,
    route: Route = ROCEV2,
    payload: bytes = b"",
    padding: bytes | None = None,
    icrc: Icrc = "good",
    defaults: Mapping[str, int] | None = None,
    **fields: int,
) -> Packet:
    """The packet with these fields, named as the module's docstring explains.

    opcode: selects the extension headers; a field `opcode` changes the number only.
    route: headers before the BTH; their lengths and checksums are replaced.
    padding: `None` for as many zeros as the payload needs.
    icrc: a missing one is not counted in the lengths.
    defaults: fields by name that `fields` overrides; ignored where the packet has no such field.

    Raises `EncodeError` for a field that the packet does not have. A value that does not fit
    its field raises it when the packet is built.
    """
    if padding is None:
        padding = bytes(-len(payload) % 4)
    info = INFO.get(opcode)
    kinds: tuple[type[Header], ...] = (h.BTH, *(info.headers if info else ()))
    computed = {"opcode": opcode, "pad_count": len(padding) & 3, "dma_len": len(payload)}
    values, unknown = _resolve(kinds, route, (computed, defaults or {}, fields))
    for name in unknown:
        if name in fields:
            raise _unknown_field(name, f"{name_of(opcode)} on this route", values)
    bth, *extensions = (kind(**values[kind]) for kind in kinds)
    assert isinstance(bth, h.BTH)
    size = sum(kind.SIZE for kind in kinds) + len(payload) + len(padding)
    packet = Packet(
        _before_bth(route, size, icrc, values), bth, tuple(extensions), payload, padding
    )
    return packet if icrc == "good" else replace(packet, icrc=_icrc_bytes(packet, icrc))


Values = dict[type[Header], dict[str, int]]
"""Fields by header class and attribute, of every header of a packet."""


def _resolve(
    kinds: Iterable[type[Header]], route: Route, sources: Iterable[Mapping[str, int]]
) -> tuple[Values, list[str]]:
    """Values of the headers of a packet, and the names that it does not have.

    kinds: its transport headers. sources: values by name, later ones take precedence.
    """
    transport = tuple(kinds)
    values: Values = {kind: {} for kind in (*transport, *header_kinds(route))}
    unknown = []
    for source in sources:
        exact: Values = {}
        for name, value in source.items():
            if name in NAMES:
                targets = [(kind, field.name) for kind, field in NAMES[name] if kind in values]
                for kind, attribute in targets:
                    exact.setdefault(kind, {})[attribute] = value
            else:
                targets = [(kind, name) for kind in transport if name in _ATTRIBUTES[kind]]
                for kind, attribute in targets:
                    values[kind][attribute] = value
            if not targets:
                unknown.append(name)
        for kind, changes in exact.items():
            values[kind] |= changes
    return values, unknown


def _before_bth(route: Route, size: int, icrc: Icrc, values: Values) -> Route:
    """The route of a packet of `size` bytes from BTH to padding, with changed fields."""
    route = with_lengths(route, size - (h.ICRC_SIZE if icrc == "none" else 0))
    changed = change_route(route, {kind: each for kind, each in values.items() if each})
    if changed is route or "checksum" in values.get(IPv4, {}):
        return changed
    return with_ip_checksum(changed)


def _enclosed(transport: bytes, route: Route, icrc: Icrc, values: Values) -> bytes:
    """The frame of the bytes from the BTH to the padding."""
    route = _before_bth(route, len(transport), icrc, values)
    if len(transport) >= h.BTH.SIZE:
        packet = Packet(route, h.BTH.unpack(transport), (), transport[h.BTH.SIZE :], b"")
        return replace(packet, icrc=_icrc_bytes(packet, icrc)).build()
    frame = headers_before_bth(route) + transport + _encode_icrc(bytes(h.ICRC_SIZE), icrc)
    return frame + crc.vcrc(frame[len(route.prefix) :]) if isinstance(route, IBRoute) else frame


def _icrc_bytes(packet: Packet, icrc: Icrc) -> bytes:
    """The ICRC of a packet as it is sent."""
    return _encode_icrc(packet.computed_icrc() if icrc in ("good", "bad") else b"", icrc)


def _encode_icrc(right: bytes, icrc: Icrc) -> bytes:
    """The four bytes that `icrc` selects, given the right ones."""
    if isinstance(icrc, int) and 0 <= icrc < 1 << 32:
        return icrc.to_bytes(h.ICRC_SIZE)
    if icrc == "bad":
        return bytes([right[0] ^ 1]) + right[1:]
    if icrc not in ("good", "none"):
        raise EncodeError("icrc", icrc, "good, bad, none or a number of 32 bits")
    return right if icrc == "good" else b""


def _unknown_field(name: str, owner: str, values: Values) -> EncodeError:
    """The error for a name that a packet does not have."""
    import difflib

    possible = [each for each, targets in NAMES.items() if any(t[0] in values for t in targets)]
    possible += [each.name for kind in values for each in kind.FIELDS]
    close = difflib.get_close_matches(name, possible, 1)
    hint = f"; did you mean {close[0]}?" if close else ""
    return EncodeError(name, name, f"a field of {owner}{hint}")


_TRANSPORT: tuple[type[Header], ...] = (h.BTH, *EXTENSION_HEADERS)
_ATTRIBUTES = {kind: frozenset(field.name for field in kind.FIELDS) for kind in _TRANSPORT}
