"""Frames to and from a device on a link: their addresses, and their rate."""

from __future__ import annotations

import struct

from ibwire.base.node import Frame
from ibwire.base.units import NS, S, Time
from ibwire.drill.packets import SHORTEST
from ibwire.drill.targets.live import ETHERNET_SIZE
from ibwire.fuzz.case import CaseError
from ibwire.rc.device import gid_of
from ibwire.rc.path import V4_MAPPED, address_of, is_v4
from ibwire_layers import headers as h
from ibwire_layers.outer import MAC_CONTROL_ADDRESS, UDP, EtherType, IPv4, IPv6

PACE: Time = S // 1000
"""How early a packet may be for the rate: sleeping takes longer than most pauses."""

BTH = ETHERNET_SIZE + IPv4.SIZE + UDP.SIZE
"""Where it is in a frame with IPv4."""

TAG_SIZE = 4
"""Of a VLAN tag."""


class Pacer:
    """Keeps to a rate. rate: packets a second at most."""

    def __init__(self, rate: int) -> None:
        self._interval = S // rate
        self._due: Time = 0
        """When the next packet may leave."""

    def pause(self, now: Time) -> Time:
        """How long it is from a packet that leaves now to the next one."""
        self._due = max(self._due, now - PACE) + self._interval
        return max(self._due - now, 0)


def behind_ip(frame: Frame) -> bytes:
    """The bytes from the BTH to the padding of a frame of `Path`, without a tag."""
    ip = IPv6 if frame[12:14] == _IPV6 else IPv4
    return frame[ETHERNET_SIZE + ip.SIZE + UDP.SIZE : -h.ICRC_SIZE]


def transport(frame: Frame) -> bytes | None:
    """The bytes from the BTH to the padding of a RoCEv2 frame, with or without a VLAN tag.

    `None` where there is no room for a BTH and an ICRC. Ethernet pads short frames.
    """
    ip = ETHERNET_SIZE + TAG_SIZE * (frame[12:14] == _VLAN)
    kind = frame[ip - 2 : ip]
    if kind == _IPV4 and len(frame) >= ip + IPv4.SIZE:
        size, end = (frame[ip] & 15) * 4, ip + int.from_bytes(frame[ip + 2 : ip + 4])
    elif kind == _IPV6 and len(frame) >= ip + IPv6.SIZE:
        size, end = IPv6.SIZE, ip + IPv6.SIZE + int.from_bytes(frame[ip + 4 : ip + 6])
    else:
        return None
    start = ip + size + UDP.SIZE
    if end > len(frame) or end - start < h.BTH.SIZE + h.ICRC_SIZE:
        return None
    return frame[start : end - h.ICRC_SIZE]


def is_pause(frame: Frame) -> bool:
    """Whether a frame is a PFC frame: for whatever port is on the link, and no farther."""
    return frame.startswith(_PORTS) and frame[12:16] == _PFC and len(frame) == SHORTEST


def stops(frame: Frame) -> dict[int, Time]:
    """How long a PFC frame stops the priorities that it names, on a link of 1 Gb/s or more."""
    named, *quanta = struct.unpack_from(">9H", frame, ETHERNET_SIZE + 2)
    return {number: time * 512 * NS for number, time in enumerate(quanta) if named >> number & 1}


def check_addressee(frame: Frame, *, mac: bytes, own_mac: bytes, address: str) -> None:
    """Raises `CaseError` for a frame that is not from us to the peer with this IP address.

    Without an IP header it does not go farther than the peer's MAC address, and a PFC frame
    not farther than the link.
    """
    if is_pause(frame) and frame[6:12] == own_mac:
        return
    if not frame.startswith(mac + own_mac):
        ends = f"{frame[6:12].hex(':')} to {frame[:6].hex(':')}"
        raise CaseError(f"a frame from {ends}: only the peer is sent to")
    ip = ETHERNET_SIZE
    while frame[ip - 2 : ip] in _TAGS:
        ip += TAG_SIZE
    kind, wanted = frame[ip - 2 : ip], gid_of(address)
    if kind == _IPV4:
        destination = V4_MAPPED | int.from_bytes(frame[ip + 16 : ip + 20])
    elif kind == _IPV6 and not is_v4(wanted):
        destination = int.from_bytes(frame[ip + 24 : ip + 40])
    elif kind == _IPV6:
        raise CaseError("a frame of IPv6: only the peer is sent to, which has an IPv4 address")
    else:
        return
    if destination != wanted:
        raise CaseError(f"a packet to {address_of(destination)}: only the peer is sent to")


_PORTS = MAC_CONTROL_ADDRESS.to_bytes(6)
_PFC = EtherType.MAC_CONTROL.to_bytes(2) + b"\1\1"
_VLAN = EtherType.VLAN.to_bytes(2)
_TAGS = _VLAN, EtherType.QINQ.to_bytes(2)
_IPV4 = EtherType.IPV4.to_bytes(2)
_IPV6 = EtherType.IPV6.to_bytes(2)
