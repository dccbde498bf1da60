"""ICMP messages that say that a packet of RoCEv2 did not reach its destination, and why.

They quote the packet that they are about, as far as its UDP header at least. A message counts if
that packet is not acknowledged when the capture ends, and nothing came from its destination since:
one late message does not refuse a connection whose requests are all acknowledged.

Source: RFC 792 (destination unreachable), RFC 1812 5.2.7.1 (codes 9 to 13), RFC 4443 3.1 and 3.2
(the same for IPv6).
"""

from __future__ import annotations

import ipaddress
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from ibwire.connections.connection import Connection
from ibwire.connections.opcode_sets import RESPONSES
from ibwire.dissect import Columns
from ibwire_layers import outer
from ibwire_layers.opcodes import OpCode
from ibwire_layers.psn import MASK
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


class Refusal(NamedTuple):
    """What the newest message about a destination says."""

    time_ns: int
    reason: str
    is_response: bool
    """Whether it quotes a response."""
    psn: int | None
    """Of the quoted packet; `None` where it ends before its PSN."""

    def concerns(self, connection: Connection, direction: int) -> bool:
        """Whether the quoted packet of this direction is open, and nothing came back since."""
        if (connection.directions[1 - direction].last_ns or 0) >= self.time_ns:
            return False
        if not connection.is_reliable:
            return True
        requester = 1 - direction if self.is_response else direction
        first, count = connection.unacknowledged[requester]
        return count > 0 if self.psn is None else (self.psn - first & MASK) < count


class Unreachable:
    """What ICMP says of the destinations of a capture."""

    def __init__(self) -> None:
        self._newest: dict[Destination, Refusal] = {}

    def take(self, columns: Columns) -> None:
        """Take the next chunk of a capture."""
        protocol = columns.frames.protocol
        rows = np.flatnonzero((protocol == Protocol.ICMP) | (protocol == Protocol.ICMPV6))
        for row in rows.tolist():
            for destination, refusal in _quoted(columns, row):
                self._keep(destination, refusal)

    def merge(self, later: Unreachable) -> None:
        """Add what a later capture has."""
        for destination, refusal in later._newest.items():
            self._keep(destination, refusal)

    def _keep(self, destination: Destination, refusal: Refusal) -> None:
        """Keep what is newest by time: captures overlap, and frames may be out of order."""
        known = self._newest.get(destination)
        if known is None and len(self._newest) >= MOST:
            return
        if known is None or known.time_ns <= refusal.time_ns:
            self._newest[destination] = refusal

    def note(self, connections: Iterable[Connection]) -> None:
        """Note why packets of these connections, which are all of the capture, are refused."""
        if not self._newest:
            return
        without_qpn: defaultdict[Destination, list[Connection]] = defaultdict(list)
        for connection in connections:
            for direction, source in enumerate(connection.ends):
                end = connection.ends[1 - direction]
                pair = Destination(source.address, end.address, None)
                if end.qpn is not None:
                    found = self._newest.get(pair._replace(dst_qpn=end.qpn))
                    if found is not None and found.concerns(connection, direction):
                        connection.refused = found.reason
                found = self._newest.get(pair)
                is_open = found is not None and found.concerns(connection, direction)
                if is_open and connection.is_reliable:
                    without_qpn[pair].append(connection)
        for pair, open_connections in without_qpn.items():
            if len(open_connections) == 1:  # of several it may be any
                open_connections[0].refused = self._newest[pair].reason


def _quoted(columns: Columns, row: int) -> Iterator[tuple[Destination, Refusal]]:
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
    if bth[:1] == bytes([OpCode.CNP]):
        return  # no response is expected
    qpn = int.from_bytes(bth[5:8]) if len(bth) >= 8 else None
    psn = int.from_bytes(bth[9:12]) if len(bth) >= 12 else None
    is_response = len(bth) > 0 and bth[0] in RESPONSES
    source, destination = (
        str(ipaddress.ip_address(each)) for each in (addresses[:size], addresses[size:])
    )
    time_ns = int(frames.batch.time_ns[row])
    yield Destination(source, destination, qpn), Refusal(time_ns, reason, is_response, psn)
