"""ICMP messages that say that a packet of RoCEv2 did not reach its destination, and why.

They quote the packet that they are about. Source: RFC 792 (destination unreachable), RFC 1812
5.2.7.1 (codes 9 to 13), RFC 4443 3.1 and 3.2 (the same for IPv6).
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from ibwire.connections.connection import Connection
from ibwire.dissect import Columns
from ibwire_layers import outer
from ibwire_layers.walk import Protocol

MOST = 1024
"""Destinations that are remembered."""

_PORT = 4791
"""UDP port of RoCEv2 (IBA annex A17.3.2)."""

_REASONS = {
    (4, 3, 0): "network unreachable",
    (4, 3, 1): "host unreachable",
    (4, 3, 2): "protocol unreachable",
    (4, 3, 3): "port unreachable",
    (4, 3, 4): "packet too big",
    (4, 3, 9): "prohibited",
    (4, 3, 10): "prohibited",
    (4, 3, 13): "prohibited",
    (6, 1, 0): "network unreachable",
    (6, 1, 1): "prohibited",
    (6, 1, 3): "host unreachable",
    (6, 1, 4): "port unreachable",
    (6, 2, 0): "packet too big",
}
"""By version of IP, type and code of the message."""


class Destination(NamedTuple):
    """Whose packets are meant."""

    src: str
    dst: str
    dst_qpn: int | None
    """`None` where the quoted packet ends before it."""


class Unreachable:
    """What ICMP says of the destinations of a capture."""

    def __init__(self) -> None:
        self._newest: dict[Destination, tuple[int, str]] = {}
        """Time and reason of the newest message."""

    def take(self, columns: Columns) -> None:
        """Take the next chunk of a capture."""
        protocol = columns.frames.protocol
        rows = np.flatnonzero((protocol == Protocol.ICMP) | (protocol == Protocol.ICMPV6))
        for row in rows.tolist():
            for destination, reason in _quoted(columns, row):
                if len(self._newest) < MOST or destination in self._newest:
                    time_ns = int(columns.frames.batch.time_ns[row])
                    self._newest[destination] = time_ns, reason

    def merge(self, later: Unreachable) -> None:
        """Add what a later capture has."""
        self._newest.update(later._newest)

    def note(self, connection: Connection) -> None:
        """Note why the packets of a connection are refused, if nothing came back since."""
        for direction, answers in enumerate(reversed(connection.directions)):
            source, destination = connection.ends[direction], connection.ends[1 - direction]
            for qpn in (destination.qpn, None):
                found = self._newest.get(Destination(source.address, destination.address, qpn))
                if found is not None and (answers.last_ns or 0) < found[0]:
                    connection.refused = found[1]
                    return


def _quoted(columns: Columns, row: int) -> Iterator[tuple[Destination, str]]:
    """The destination that an ICMP message is about, and what it says; nothing for others."""
    frames = columns.frames
    limit = int(frames.limit[row])
    at = int(frames.position(outer.IPv4)[row])
    version = 4 if at >= 0 else 6
    if version == 4:
        at += 4 * (int(frames.data[at]) & 0xF)
    else:
        at = int(frames.position(outer.IPv6)[row]) + outer.IPv6.SIZE  # without extensions
    message = frames.data[at:limit].tobytes()
    reason = _REASONS.get((version, *message[:2])) if len(message) >= 2 else None
    packet = message[8:]
    if reason is None or not packet or packet[0] >> 4 != version:
        return
    if version == 4:
        udp, protocol, addresses = 4 * (packet[0] & 0xF), packet[9:10], packet[12:20]
    else:
        udp, protocol, addresses = outer.IPv6.SIZE, packet[6:7], packet[8:40]
    size = len(addresses) // 2
    is_rocev2 = packet[udp + 2 : udp + 4] == _PORT.to_bytes(2)
    if protocol != bytes([outer.IPProto.UDP]) or not is_rocev2 or size != (4, 16)[version == 6]:
        return
    bth = packet[udp + 8 : udp + 20]
    qpn = int.from_bytes(bth[5:8]) if len(bth) >= 8 else None
    source, destination = (
        str(ipaddress.ip_address(each)) for each in (addresses[:size], addresses[size:])
    )
    yield Destination(source, destination, qpn), reason
