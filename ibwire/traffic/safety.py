"""Whether test traffic may leave an interface: not on the interface of the default route.

The default route may use the interface itself, or a bridge, bond or VLAN on top of it. Frames
sent on any of these reach the same wire.

Source: rtnetlink(7), linux/rtnetlink.h, linux/if_link.h.
"""

from __future__ import annotations

import socket
import sys
from struct import Struct

from ibwire.base.errors import LinkError
from ibwire.link import netlink
from ibwire.link.interface import Interface, interface


def injectable_interface(name: str, *, allow_default_route: bool = False) -> Interface:
    """The interface of that name, if it is fit for test traffic.

    allow_default_route: its routes do not matter. Raises `LinkError` when it is missing, down,
    without a carrier, or used by the default route.
    """
    found = interface(name)
    if not found.is_up:
        raise LinkError(name, f"is down: ip link set {name} up")
    if not found.has_carrier:
        raise LinkError(name, "is up, but has no carrier: nothing is connected at the other end")
    if not allow_default_route:
        carrier = _default_route_over(found)
        if carrier is not None:
            where = "it" if carrier == name else f"{carrier}, which is built on it"
            raise LinkError(
                name,
                f"refused: the default route of this machine uses {where}; test traffic there can "
                "cut off the machine and reaches foreign hosts (--default-route-too allows it)",
            )
    return found


def _default_route_over(found: Interface) -> str | None:
    """The interface with a default route that is this one or is built on it."""
    name, links = found.name, _links(found.name)
    for owner in sorted(_owners_of_default_routes(name)):
        below, seen = [owner], {owner}
        while below:
            index = below.pop()
            if index == found.index:
                return links[owner].name if owner in links else str(owner)
            lower = links[index].lower if index in links else None
            parts = {each for each in links if links[each].master == index or each == lower}
            below += parts - seen
            seen |= parts
    return None


def _owners_of_default_routes(name: str) -> set[int]:
    owners = set()
    for family in (socket.AF_INET, socket.AF_INET6):
        request = _RTMSG.pack(family, 0, 0, 0, 0, 0, 0, 0, 0)
        for answer in netlink.ask(name, _RTM_GETROUTE, request, netlink.DUMP):
            # Where the kernel lacks this family it may return the routes of all.
            of, length, *_, kind, _ = _RTMSG.unpack_from(answer)
            if of != family or length or kind != _RTN_UNICAST:
                continue
            attributes = netlink.attributes(answer[_RTMSG.size :])
            if _RTA_OIF in attributes:
                owners.add(int.from_bytes(attributes[_RTA_OIF], sys.byteorder))
            hops = attributes.get(_RTA_MULTIPATH, b"")
            while len(hops) >= _RTNEXTHOP.size:
                size, index = _RTNEXTHOP.unpack_from(hops)
                owners.add(index)
                hops = hops[max(size + 3 & ~3, _RTNEXTHOP.size) :]
    return owners


class _Link:
    """How an interface depends on others."""

    __slots__ = ("lower", "master", "name")

    def __init__(self, attributes: dict[int, bytes]) -> None:
        self.name = attributes.get(_IFLA_IFNAME, b"").rstrip(b"\0").decode(errors="replace")
        self.master = _number(attributes.get(_IFLA_MASTER))
        """The bridge or bond that it is a port of."""
        # A veth names its peer here, possibly by the index of another namespace.
        kind = netlink.attributes(attributes.get(_IFLA_LINKINFO, b"")).get(_IFLA_INFO_KIND, b"")
        foreign = _IFLA_LINK_NETNSID in attributes or kind.rstrip(b"\0") == b"veth"
        self.lower = None if foreign else _number(attributes.get(_IFLA_LINK))
        """The interface below it, as a VLAN has one."""


def _links(name: str) -> dict[int, _Link]:
    """All interfaces of this namespace by index."""
    request = _IFINFOMSG.pack(socket.AF_UNSPEC, 0, 0, 0, 0)
    found = {}
    for answer in netlink.ask(name, _RTM_GETLINK, request, netlink.DUMP):
        index = _IFINFOMSG.unpack_from(answer)[2]
        found[index] = _Link(netlink.attributes(answer[_IFINFOMSG.size :]))
    return found


def _number(value: bytes | None) -> int | None:
    return None if value is None else int.from_bytes(value, sys.byteorder)


_RTM_GETLINK = 18
_RTM_GETROUTE = 26
_RTMSG = Struct("=BBBBBBBBI")
"""struct rtmsg: family, lengths of destination and source, TOS, table, protocol, scope, type,
flags."""
_RTN_UNICAST = 1
_RTA_OIF = 4
_RTA_MULTIPATH = 9
_RTNEXTHOP = Struct("=H2xi")
"""struct rtnexthop: length, flags and hops, interface."""
_IFINFOMSG = Struct("=BxHiII")
"""struct ifinfomsg: family, padding, type, index, flags, change."""
_IFLA_IFNAME = 3
_IFLA_LINK = 5
_IFLA_MASTER = 10
_IFLA_LINKINFO = 18
_IFLA_LINK_NETNSID = 37
_IFLA_INFO_KIND = 1
