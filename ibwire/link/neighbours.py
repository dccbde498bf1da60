"""The MAC address that leads to an IP address, from the kernel.

The kernel knows the routes, and resolves with ARP and neighbour discovery for its own
addresses; a node with its own address does that itself.

Source: rtnetlink(7), linux/rtnetlink.h, linux/neighbour.h.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import sys
import time
from struct import Struct

from ibwire.base.errors import LinkError, NoResponse
from ibwire.link import netlink
from ibwire.link.interface import interface


def mac_towards(name: str, address: str, *, seconds: float = 3.0) -> bytes:
    """The MAC address to which frames for an IP address are sent on this interface.

    That of the host itself or of the router before it. If the kernel does not have it, an
    empty UDP packet to port 9, discard, makes it resolve the address, on this interface and no
    other. Raises `LinkError` when there is no route, or no response.
    """
    target = _parsed(name, address)
    index = interface(name).index
    hop = _next_hop(name, index, target.packed)
    end = time.monotonic() + seconds
    asked = False
    while (mac := _known(name, index, hop)) is None:
        if not asked:
            _provoke(name, index, str(ipaddress.ip_address(hop)))
            asked = True
        if time.monotonic() >= end:
            next_hop = ipaddress.ip_address(hop)
            router = "" if hop == target.packed else f", the router to {address},"
            raise NoResponse(name, f"{next_hop}{router} has not answered for {seconds:g} s")
        time.sleep(_STEP)
    return mac


def next_hop(name: str, address: str) -> str:
    """The IP address of the next hop: the address itself, or that of the router to it.

    Raises `LinkError` when there is no route.
    """
    hop = _next_hop(name, interface(name).index, _parsed(name, address).packed)
    return str(ipaddress.ip_address(hop))


def _parsed(name: str, address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    try:
        return ipaddress.ip_address(address)
    except ValueError:
        raise LinkError(name, f"{address!r} is not an IP address") from None


def _next_hop(name: str, index: int, target: bytes) -> bytes:
    shown = ipaddress.ip_address(target)
    try:
        kind, owner, hop = _route(name, target)
        if owner != index and kind != _RTN_LOCAL:
            # Two interfaces may lead there. Asked only now: for an interface that was named
            # the kernel takes every address to be on its link, rather than say that there is
            # no route.
            kind, _, hop = _route(name, target, index)
    except LinkError as error:
        raise LinkError(name, f"no route to {shown}: {error.reason}") from None
    if kind == _RTN_LOCAL:
        raise LinkError(name, f"{shown} is this machine itself")
    if kind == _RTN_BROADCAST:
        raise LinkError(name, f"{shown} is not a single host: it is for all on this link")
    return hop


def _route(name: str, target: bytes, index: int | None = None) -> tuple[int, int, bytes]:
    """Type of the kernel's route, its interface, and the next hop."""
    request = _RTMSG.pack(_family(target), 8 * len(target), 0, 0, 0, 0, 0, 0, 0)
    request += netlink.attribute(_RTA_DST, target)
    if index is not None:
        request += netlink.attribute(_RTA_OIF, index.to_bytes(4, sys.byteorder))
    (answer,) = netlink.ask(name, _RTM_GETROUTE, request)
    found = netlink.attributes(answer[_RTMSG.size :])
    kind = _RTMSG.unpack_from(answer)[7]
    owner = int.from_bytes(found.get(_RTA_OIF, b""), sys.byteorder)
    # The router to an IPv4 address may have an IPv6 address.
    other = found.get(_RTA_VIA, b"")[_VIA_FAMILY_SIZE:]
    return kind, owner, found.get(_RTA_GATEWAY) or other or target


def _known(name: str, index: int, address: bytes) -> bytes | None:
    """What stands in the kernel's table."""
    request = _NDMSG.pack(_family(address), 0, 0, 0, 0, 0, 0)
    for answer in netlink.ask(name, _RTM_GETNEIGH, request, netlink.DUMP):
        _, _, _, owner, state, _, _ = _NDMSG.unpack_from(answer)
        found = netlink.attributes(answer[_NDMSG.size :])
        if owner == index and found.get(_NDA_DST) == address and state & _NUD_VALID:
            mac = found.get(_NDA_LLADDR, b"")
            return mac if len(mac) == _MAC_SIZE else None
    return None


def _provoke(name: str, index: int, address: str) -> None:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    target = (address, _DISCARD, 0, index) if ":" in address else (address, _DISCARD)
    try:
        with socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as asking:
            asking.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, os.fsencode(name) + b"\0")
            asking.sendto(b"", target)
    except OSError as error:
        raise LinkError(name, f"{address} cannot be asked for: {error.strerror}") from None


def _family(address: bytes) -> int:
    return socket.AF_INET if len(address) == _V4_SIZE else socket.AF_INET6


_V4_SIZE = 4
_MAC_SIZE = 6
_DISCARD = 9
"""RFC 863."""
_STEP = 0.005
"""Seconds between looks at the table."""

_RTM_GETROUTE = 26
_RTM_GETNEIGH = 30
_RTMSG = Struct("=BBBBBBBBI")
"""struct rtmsg: family, lengths of destination and source, TOS, table, protocol, scope, type,
flags."""
_RTA_DST = 1
_RTA_OIF = 4
_RTA_GATEWAY = 5
_RTA_VIA = 18
_VIA_FAMILY_SIZE = 2
"""Bytes of struct rtvia before the address."""
_RTN_LOCAL = 2
_RTN_BROADCAST = 3
_NDMSG = Struct("=BBHiHBB")
"""struct ndmsg: family, padding, padding, interface, state, flags, type."""
_NDA_DST = 1
_NDA_LLADDR = 2
_NUD_VALID = 0x02 | 0x04 | 0x08 | 0x10 | 0x40 | 0x80
"""REACHABLE, STALE, DELAY, PROBE, NOARP, PERMANENT: the states with a MAC address."""
