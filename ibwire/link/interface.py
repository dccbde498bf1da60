"""The state of a network interface in the kernel: flags, addresses, offloads.

It is read with ioctl and netlink, which use the network namespace of the process;
/sys shows the namespace in which it was mounted.

Source: linux/if.h, linux/sockios.h, linux/ethtool.h, linux/rtnetlink.h, linux/if_addr.h.
"""

from __future__ import annotations

import ctypes
import fcntl
import ipaddress
import os
import socket
import sys
from contextlib import suppress
from dataclasses import dataclass
from struct import Struct
from typing import Any

from ibwire.base.closing import Closing
from ibwire.base.errors import LinkError
from ibwire.link import netlink


@dataclass(frozen=True, slots=True)
class Interface:
    """The state of an interface at the time of the query."""

    name: str
    index: int
    mac: bytes
    mtu: int
    is_up: bool
    """Whether it is administratively up."""
    has_carrier: bool
    """Whether the kernel has detected a carrier."""
    addresses: tuple[str, ...]
    """IPv4, then global IPv6, then link-local IPv6."""
    unusable: tuple[str, ...]
    """IPv6 addresses in duplicate address detection, or found to be duplicates."""
    driver: str
    """Name of the driver; empty if unknown."""
    tx_checksum: bool
    """Whether the kernel leaves checksums of its packets to the driver."""


class OnInterface(Closing):
    """Base of what is open on an interface."""

    interface: Interface
    """Its state when it was opened."""

    @property
    def name(self) -> str:
        """The interface."""
        return self.interface.name

    @property
    def mac(self) -> bytes:
        """Its MAC address."""
        return self.interface.mac

    @property
    def mtu(self) -> int:
        """Bytes of the largest IP packet."""
        return self.interface.mtu

    @property
    def addresses(self) -> tuple[str, ...]:
        """IPv4, then global, then link-local IPv6."""
        return self.interface.addresses


def interface(name: str) -> Interface:
    """The interface of that name; raises `LinkError` if it is missing or not Ethernet."""
    try:
        known = {each: index for index, each in socket.if_nameindex()}
        asking = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
    except OSError as problem:
        raise LinkError(name, f"cannot be queried: {problem.strerror}") from None
    with asking:
        if name not in known:
            there = ", ".join(known) or "none"
            raise LinkError(name, f"no such interface; existing ones: {there}")
        try:
            kind, mac = _ask(asking, name, _SIOCGIFHWADDR, _HARDWARE)
            (flags,) = _ask(asking, name, _SIOCGIFFLAGS, _FLAGS)
            (mtu,) = _ask(asking, name, _SIOCGIFMTU, _MTU)
        except OSError as problem:
            raise LinkError(name, f"cannot be queried: {problem.strerror}") from None
        if kind not in (_ARPHRD_ETHER, _ARPHRD_LOOPBACK):
            raise LinkError(name, f"is not an Ethernet interface (its type is {kind})")
        driver = b""
        with suppress(OSError):  # a driver without this query
            answer = _ethtool(asking, name, _DRVINFO.pack(_ETHTOOL_GDRVINFO, b""))
            driver = _DRVINFO.unpack(answer)[1].rstrip(b"\0")
        tx_checksum = bool(_ethtool_value(asking, name, _ETHTOOL_GTXCSUM))
        # The flag follows the state of the link only after a while.
        linked = _ethtool_value(asking, name, _ETHTOOL_GLINK) != 0
    return Interface(
        name,
        known[name],
        mac,
        mtu,
        bool(flags & _IFF_UP),
        bool(flags & _IFF_RUNNING) and linked,
        *_addresses(name, known[name]),
        driver.decode(errors="replace"),
        tx_checksum,
    )


def notes(found: Interface) -> list[str]:
    """Sentences for the user about this interface, before RoCE frames pass."""
    sentences = []
    if found.tx_checksum and found.driver in _VIRTUAL:
        sentences.append(
            f"{found.name}: checksums are left to the driver {found.driver}, which computes none: "
            "captures show incomplete checksums in packets of the kernel, and a virtual "
            f"machine at the other end may drop them: ethtool -K {found.name} tx off"
        )
    if not largest_path_mtu(found.mtu):
        sentences.append(
            f"{found.name}: MTU {found.mtu} is too small for a path MTU of 256 bytes, "
            f"which needs {256 + HEADERS}"
        )
    if found.unusable:
        sentences.append(
            f"{found.name}: not usable: {', '.join(found.unusable)}: duplicate address detection "
            "takes a second or two, or has found a duplicate"
        )
    now = current_mtu(found)
    if now != found.mtu:
        sentences.append(
            f"{found.name}: its MTU has changed from {found.mtu} to {now} since the command began: "
            "packets that did not fit are lost"
        )
    if not found.addresses:
        sentences.append(
            f"{found.name}: no IP address, so the kernel answers no ARP or neighbour solicitation"
        )
    return sentences


def current_mtu(found: Interface) -> int:
    """The MTU that an interface has now; that of the beginning if it has gone."""
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        (mtu,) = _ask(asking, found.name, _SIOCGIFMTU, _MTU)
        return int(mtu)
    return found.mtu


def too_long(found: Interface, size: int) -> str:
    """Why a packet of so many bytes could not be sent."""
    now = current_mtu(found)
    change = "" if now == found.mtu else f"; it was {found.mtu} when the command began"
    return (
        f"a packet of {size} bytes does not fit its MTU of {now}, which allows a path MTU of "
        f"{largest_path_mtu(now)}{change}"
    )


def largest_path_mtu(mtu: int) -> int:
    """The largest path MTU whose packets fit an interface's MTU; 0 if none does.

    80 bytes are reserved for headers, as in Soft-RoCE (reference/wire-formats#path-mtu).
    """
    return next((each for each in (4096, 2048, 1024, 512, 256) if each + HEADERS <= mtu), 0)


HEADERS = 80
"""Largest size of RoCE headers (rxe_param.h RXE_MAX_HDR_LENGTH)."""


def set_tx_checksum(name: str, on: bool) -> None:
    """Leave the checksums of the kernel's packets to the adapter, or not."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as asking:
        try:
            _ethtool(asking, name, _ETHTOOL_VALUE.pack(_ETHTOOL_STXCSUM, on))
        except OSError as problem:
            raise LinkError(name, f"tx-checksum cannot be set: {problem.strerror}") from None


def _ask(asking: socket.socket, name: str, request: int, answer: Struct) -> tuple[Any, ...]:
    """The values after the name in the `struct ifreq` of the response."""
    found = fcntl.ioctl(asking, request, _IFREQ.pack(os.fsencode(name), b""))
    return answer.unpack_from(found, _NAME_SIZE)


def _ethtool_value(asking: socket.socket, name: str, command: int) -> int | None:
    """A number from the driver; `None` if it does not support the query."""
    try:
        answer = _ethtool(asking, name, _ETHTOOL_VALUE.pack(command, 0))
    except OSError:
        return None
    return int(_ETHTOOL_VALUE.unpack(answer)[1])


def _ethtool(asking: socket.socket, name: str, argument: bytes) -> bytes:
    """The driver's response to the structure that begins with a command.

    Raises `OSError` for a driver without the command.
    """
    # The request holds the address of the structure, where the answer goes.
    structure = ctypes.create_string_buffer(argument, len(argument))
    pointer = ctypes.addressof(structure).to_bytes(ctypes.sizeof(ctypes.c_void_p), sys.byteorder)
    fcntl.ioctl(asking, _SIOCETHTOOL, _IFREQ.pack(os.fsencode(name), pointer))
    return structure.raw


def _addresses(name: str, index: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The usable addresses and the others."""
    found: list[tuple[bool, bool, bool, str]] = []
    everything = _IFADDRMSG.pack(0, 0, 0, 0, 0)
    for answer in netlink.ask(name, _RTM_GETADDR, everything, netlink.DUMP):
        family, _, flags, scope, owner = _IFADDRMSG.unpack_from(answer)
        attributes = netlink.attributes(answer[_IFADDRMSG.size :])
        # IFA_ADDRESS of IPv4 is the other end's on a point-to-point link, IFA_LOCAL ours.
        own = attributes.get(_IFA_LOCAL) or attributes.get(_IFA_ADDRESS)
        if own is None or owner != index or family not in (socket.AF_INET, socket.AF_INET6):
            continue
        unusable = bool(flags & (_IFA_F_TENTATIVE | _IFA_F_DADFAILED))
        address = str(ipaddress.ip_address(own))
        found.append((unusable, family == socket.AF_INET6, scope == _RT_SCOPE_LINK, address))
    # Stable: several of a kind stay in the kernel's order.
    found.sort(key=lambda each: each[:3])
    return (
        tuple(address for unusable, *_, address in found if not unusable),
        tuple(address for unusable, *_, address in found if unusable),
    )


_NAME_SIZE = 16
_IFREQ = Struct("=16s24s")
"""struct ifreq: the name, and a union that is as large as struct ifmap."""

_SIOCGIFFLAGS = 0x8913
_SIOCGIFMTU = 0x8921
_SIOCGIFHWADDR = 0x8927
_SIOCETHTOOL = 0x8946
_FLAGS = Struct("=H")
_MTU = Struct("=i")
_HARDWARE = Struct("=H6s")
"""struct sockaddr: ARPHRD type as the family, then the address."""

_IFF_UP = 0x1
_IFF_RUNNING = 0x40
_ARPHRD_ETHER = 1
_ARPHRD_LOOPBACK = 772

_VIRTUAL = ("veth", "tun")
"""Drivers without hardware that computes checksums."""

_ETHTOOL_GDRVINFO = 0x03
_ETHTOOL_GLINK = 0x0A
_ETHTOOL_GTXCSUM = 0x16
_ETHTOOL_STXCSUM = 0x17
_ETHTOOL_VALUE = Struct("=II")
"""struct ethtool_value: command, value."""
_DRVINFO = Struct("=I32s160x")
"""struct ethtool_drvinfo: command, driver, and unused fields."""

_RTM_GETADDR = 22
_IFADDRMSG = Struct("=BBBBI")
"""struct ifaddrmsg: family, prefix length, flags, scope, interface."""
_IFA_ADDRESS = 1
_IFA_LOCAL = 2
_IFA_F_DADFAILED = 0x08
_IFA_F_TENTATIVE = 0x40
_RT_SCOPE_LINK = 253
