"""Header fields that get a value on purpose, right or wrong, by any of their names.

A field is named as in our classes ("bth.dest_qp", "ipv4.ttl"), as in our columns
("bth.destqp", "ip.ttl") or as in Wireshark ("infiniband.bth.destqp").
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from ibwire.base.errors import EncodeError
from ibwire_layers import crc, opcodes, outer
from ibwire_layers import headers as h
from ibwire_layers.packet import IBRoute, Packet, RoCEv1Route, RoCEv2Route
from ibwire_layers.schema import Field, Header

Changes = Mapping[type[Header], Mapping[str, int]]
"""By class of header: attributes and their values."""


def changes_of(fields: Mapping[str, int]) -> Changes:
    """The changes that names and values stand for; `EncodeError` names the one that is wrong."""
    changes: dict[type[Header], dict[str, int]] = {}
    for name, value in fields.items():
        meant = NAMES.get(name)
        if meant is None:
            close = difflib.get_close_matches(name, NAMES, 1)
            hint = f"; did you mean {close[0]}?" if close else ", such as bth.psn or ip.ttl"
            raise EncodeError(name, name, f"a header field that is a number{hint}")
        for kind, field in meant:
            if not isinstance(value, int) or isinstance(value, bool) or value >> field.width:
                raise EncodeError(name, value, f"a number of {field.width} bits")
            changes.setdefault(kind, {})[field.name] = value
    return changes


def overridden(packet: Packet, changes: Changes) -> Packet:
    """A packet with other values, and an IPv4 checksum that fits them unless that is one.

    The ICRC is as it was; no length changes but those that are asked for.
    """
    route = packet.route
    assert not isinstance(route, IBRoute)
    parts: dict[str, Any] = {}
    for name in ("eth", "ip", "udp") if isinstance(route, RoCEv2Route) else ("eth", "grh"):
        header = getattr(route, name)
        parts[name] = _with(header, changes)
    if isinstance(route, RoCEv2Route) and isinstance(parts["ip"], outer.IPv4):
        ip = parts["ip"]
        if "checksum" not in changes.get(outer.IPv4, {}):
            blank = replace(ip, checksum=0)
            parts["ip"] = replace(blank, checksum=crc.internet_checksum(blank.pack()))
    route = replace(route, vlans=tuple(_with(tag, changes) for tag in route.vlans), **parts)
    return replace(
        packet,
        route=route,
        bth=_with(packet.bth, changes),
        extensions=tuple(_with(header, changes) for header in packet.extensions),
    )


def headers_of(packet: Packet) -> set[type[Header]]:
    """The classes of all headers of a packet."""
    route = packet.route
    assert not isinstance(route, IBRoute)
    found: set[type[Header]] = {outer.Ethernet, h.BTH, *map(type, packet.extensions)}
    found |= set(map(type, route.vlans))
    return found | ({h.GRH} if isinstance(route, RoCEv1Route) else {type(route.ip), outer.UDP})


def _with(header: Any, changes: Changes) -> Any:
    return replace(header, **changes.get(type(header), {}))


def _names() -> Iterator[tuple[str, type[Header], Field]]:
    for kind in _HEADERS:
        for field in kind.FIELDS:
            if field.is_octets or field.is_array:
                continue
            names = {f"{kind.__name__.lower()}.{field.name}", field.key, field.wireshark}
            yield from ((name, kind, field) for name in names if name)


_HEADERS: tuple[type[Header], ...] = (
    *(outer.Ethernet, outer.VLAN, outer.IPv4, outer.IPv6, outer.UDP, h.GRH, h.BTH),
    *opcodes.EXTENSION_HEADERS,
)


def _catalogue() -> dict[str, tuple[tuple[type[Header], Field], ...]]:
    found: dict[str, tuple[tuple[type[Header], Field], ...]] = {}
    for name, kind, field in _names():
        found[name] = (*found.get(name, ()), (kind, field))
    return found


NAMES = _catalogue()
"""Name -> the fields that it stands for: Wireshark has one name for several now and then."""
