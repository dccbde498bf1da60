"""Header fields by name: which header a name belongs to, and packets with other values.

A name is a header and a field, in one of three spellings: the header's key or class and the
attribute (`ip.ttl`, `ipv4.ttl`, `bth.dest_qp`), the column name (`bth.destqp`) or Wireshark's
name (`infiniband.bth.destqp`). `ip` is the IP header of either version. `vlan` is every tag.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ibwire_layers import headers as h
from ibwire_layers.errors import EncodeError
from ibwire_layers.opcodes import EXTENSION_HEADERS
from ibwire_layers.outer import UDP, VLAN, Ethernet, IPv4, IPv6
from ibwire_layers.packet import Packet, RoCEv1Route, RoCEv2Route, Route
from ibwire_layers.schema import Field, Header

Changes = Mapping[type[Header], Mapping[str, int]]
"""Values by header class and attribute."""


def changes_of(fields: Mapping[str, int]) -> Changes:
    """The changes that names and values stand for.

    Raises `EncodeError` for an unknown name and for a value that does not fit its field.
    """
    changes: dict[type[Header], dict[str, int]] = {}
    for name, value in fields.items():
        if name not in NAMES:
            import difflib

            close = difflib.get_close_matches(str(name), NAMES, 1)
            hint = f"; did you mean {close[0]}?" if close else ", such as bth.psn or ip.ttl"
            raise EncodeError(str(name), name, f"the name of a header field{hint}")
        for kind, field in NAMES[name]:
            if not isinstance(value, int) or isinstance(value, bool) or value >> field.width:
                raise EncodeError(name, value, f"a number of {field.width} bits")
            changes.setdefault(kind, {})[field.name] = value
    return changes


def change(packet: Packet, changes: Changes) -> Packet:
    """The packet with other values in some fields, and nothing else changed.

    Fields that it does not have are ignored; without any the result is the packet itself.
    """
    changed: dict[str, Any] = {}
    route = change_route(packet.route, changes)
    if route is not packet.route:
        changed["route"] = route
    if h.BTH in changes:
        changed["bth"] = packet.bth.altered(**changes[h.BTH])
    if any(type(header) in changes for header in packet.extensions):
        changed["extensions"] = tuple(
            header.altered(**changes.get(type(header), {})) for header in packet.extensions
        )
    return replace(packet, **changed) if changed else packet


def change_route(route: Route, changes: Changes) -> Route:
    """The route with other values in some fields, as `change` makes them."""
    changed: dict[str, Any] = {}
    for name, header in _headers_of(route).items():
        if isinstance(header, tuple):
            if VLAN in changes:
                changed[name] = tuple(tag.altered(**changes[VLAN]) for tag in header)
        elif type(header) in changes:
            changed[name] = header.altered(**changes[type(header)])
    return replace(route, **changed) if changed else route


def header_kinds(route: Route) -> tuple[type[Header], ...]:
    """The classes of the headers of a route, each once."""
    headers = _headers_of(route).values()
    return tuple(type(each[0] if isinstance(each, tuple) else each) for each in headers)


def _headers_of(route: Route) -> dict[str, Header | tuple[Header, ...]]:
    """The headers of a route by attribute, tags as a tuple."""
    found: dict[str, Header | tuple[Header, ...] | None]
    if isinstance(route, RoCEv2Route):
        found = {"eth": route.eth, "vlans": route.vlans, "ip": route.ip, "udp": route.udp}
    elif isinstance(route, RoCEv1Route):
        found = {"eth": route.eth, "vlans": route.vlans, "grh": route.grh}
    else:
        found = {"lrh": route.lrh, "grh": route.grh}
    return {name: header for name, header in found.items() if header}


_HEADERS: tuple[type[Header], ...] = (
    Ethernet, VLAN, IPv4, IPv6, UDP, h.GRH, h.LRH, h.BTH, *EXTENSION_HEADERS,
)  # fmt: skip


def _catalogue() -> dict[str, tuple[tuple[type[Header], Field], ...]]:
    found: dict[str, tuple[tuple[type[Header], Field], ...]] = {}
    for kind in _HEADERS:
        prefixes = [kind.KEY, kind.__name__.lower(), *(["ip"] if kind is IPv6 else [])]
        for field in kind.FIELDS:
            names = [f"{prefix}.{field.name}" for prefix in prefixes] + [field.key]
            names += [field.wireshark] if field.wireshark else []
            for name in dict.fromkeys(names):
                found[name] = (*found.get(name, ()), (kind, field))
    return found


NAMES: Mapping[str, tuple[tuple[type[Header], Field], ...]] = _catalogue()
"""The fields that a name stands for; several where Wireshark or `ip` has one name for them."""
