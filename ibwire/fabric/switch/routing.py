"""Where a frame leaves a switch: ports by destination, and which of several.

A switch has a table from MAC address to the ports that lead there. Where several do, the
strategy chooses: by a hash of the flow (ECMP), packet by packet, or for each burst of a flow
(flowlet).

Source: docs/reference/fabric.md#ecmp, docs/reference/fabric.md#flowlets.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from math import gcd

from ibwire.base.errors import EncodeError
from ibwire.base.node import Frame
from ibwire.base.units import US, Time
from ibwire_layers.outer import EtherType

_TAGS = tuple(tag.to_bytes(2) for tag in (EtherType.VLAN, EtherType.QINQ, EtherType.QINQ_OLD))
_IPV4, _IPV6 = EtherType.IPV4.to_bytes(2), EtherType.IPV6.to_bytes(2)
_UDP = 17
_IPV4_SIZE, _IPV6_SIZE = 20, 40


FLOWLET_GAP: Time = 10 * US
"""More than the ways of a network differ in their delay."""

MAXIMUM_WEIGHT = 64


class Strategy(StrEnum):
    """How one of several ports is chosen."""

    ECMP = "ecmp"
    """By a hash of addresses, protocol and ports: all packets of a flow take one path."""
    SPRAY = "spray"
    """Each packet takes a random port."""
    ROUND_ROBIN = "round-robin"
    """Packets take the ports in turn."""
    ADAPTIVE = "adaptive"
    """Each packet takes the port with the fewest bytes in its queues."""
    FLOWLET = "flowlet"
    """A flow keeps its port until it has sent nothing for a while; then it takes the port with the
    fewest bytes in its queues."""


class Router:
    """The forwarding table of a switch.

    table: ports by MAC address. seed: of the hash, one for each switch; with the same one in
    all, the switches of one path choose alike and paths stay unused (hash polarisation).
    queued: bytes that wait at a port, for `ADAPTIVE` and `FLOWLET`. weights: how often a port is
    taken, beside the others of a destination; 1 where none is given. flowlet_gap: the time without
    a packet that ends a flowlet.
    """

    __slots__ = (
        "_draw",
        "_flowlets",
        "_flows",
        "_gap",
        "_queued",
        "_seed",
        "_strategy",
        "_turn",
        "_weights",
        "known",
        "table",
    )

    table: dict[bytes, tuple[int, ...]]

    LIMIT_FLOWS = 1 << 16
    """Flows whose hash is kept."""

    def __init__(
        self,
        table: Mapping[bytes, Sequence[int]],
        *,
        strategy: Strategy = Strategy.ECMP,
        seed: int = 0,
        queued: Callable[[int], int] | None = None,
        draw: random.Random | None = None,
        weights: Mapping[int, int] | None = None,
        flowlet_gap: Time = FLOWLET_GAP,
    ) -> None:
        for port, weight in (weights or {}).items():
            if not 1 <= weight <= MAXIMUM_WEIGHT:
                raise EncodeError(f"weight of port {port}", weight, f"1 to {MAXIMUM_WEIGHT}")
        if flowlet_gap <= 0:
            raise EncodeError("flowlet_gap", flowlet_gap, "above 0")
        self._weights = weights or {}
        self._gap = flowlet_gap
        self._flowlets: dict[bytes, tuple[int, Time]] = {}
        """Port and time of the last packet, by flow."""
        self.known: dict[bytes, tuple[int, int]] = {}
        """Port and priority by `flow_key`, which a switch keeps here while the table stays."""
        self.update(table)
        self._strategy = strategy
        self._seed = seed
        self._queued = queued or (lambda port: 0)
        self._draw = draw or random.Random(seed)
        self._flows: dict[bytes, int] = {}
        self._turn = 0

    def port(self, frame: Frame, now: Time = 0) -> int | None:
        """The port by which a frame leaves; `None` if no port leads to its destination."""
        ports = self.table.get(frame[:6])
        if not ports:
            return None
        if len(ports) == 1:
            return ports[0]
        if self._strategy is Strategy.ECMP:
            return ports[self._hash(frame) % len(ports)]
        if self._strategy is Strategy.SPRAY:
            return self._draw.choice(ports)
        if self._strategy is Strategy.ROUND_ROBIN:
            self._turn += 1
            return ports[self._turn % len(ports)]
        if self._strategy is Strategy.FLOWLET:
            return self._flowlet(frame, ports, now)
        return self._emptiest(ports)

    def update(self, table: Mapping[bytes, Sequence[int]]) -> None:
        """Replace the table; flows may take other ports from now on."""
        shared: dict[tuple[int, ...], tuple[int, ...]] = {}
        self.table = {}
        for mac, given in table.items():
            ports = self._weighted(given)
            self.table[mac] = shared.setdefault(ports, ports)  # many hosts, few ways
        self.known.clear()

    def _weighted(self, ports: Sequence[int]) -> tuple[int, ...]:
        """The ports of a destination, each as often as its weight says."""
        if len(ports) < 2 or not self._weights:
            return tuple(ports)
        weights = [self._weights.get(port, 1) for port in ports]
        shared = gcd(*weights)
        return tuple(
            port
            for port, weight in zip(ports, weights, strict=True)
            for _ in range(weight // shared)
        )

    def _emptiest(self, ports: Sequence[int]) -> int:
        fewest = min(map(self._queued, ports))
        return self._draw.choice([port for port in ports if self._queued(port) == fewest])

    def _flowlet(self, frame: Frame, ports: Sequence[int], now: Time) -> int:
        flow = frame[:6] + flow_of(frame)
        port, last = self._flowlets.get(flow, (-1, 0))
        if port not in ports or now - last >= self._gap:
            port = self._emptiest(ports)
            if len(self._flowlets) >= self.LIMIT_FLOWS:
                self._flowlets.clear()
        self._flowlets[flow] = port, now
        return port

    def withdraw(self, port: int) -> None:
        """Stop using a port for destinations to which other ports lead too."""
        for mac, ports in self.table.items():
            others = tuple(each for each in ports if each != port)
            if others and port in ports:
                self.table[mac] = others
        self.known.clear()

    def keeps(self, frame: Frame) -> bool:
        """Whether all frames with the same `flow_key` take the same port as this one."""
        if frame[12:15] != _PLAIN_IPV4 or len(frame) < _KEY_END:
            return False
        ports = self.table.get(frame[:6], ())
        return self._strategy is Strategy.ECMP or len(ports) == 1

    def _hash(self, frame: Frame) -> int:
        flow = flow_of(frame)
        known = self._flows.get(flow)
        if known is None:
            if len(self._flows) >= self.LIMIT_FLOWS:
                self._flows.clear()
            known = self._flows[flow] = murmur3(flow, self._seed)
        return known


def flow_key(frame: Frame) -> bytes:
    """The fields of a frame on which port and priority depend, if it `keeps` them.

    Of IPv4 without options: MAC addresses, type, DSCP, protocol, addresses and UDP ports.
    """
    return frame[:16] + frame[22:24] + frame[26:_KEY_END]


def flow_of(frame: Frame) -> bytes:
    """What all packets of a flow share: addresses, and the ports of UDP; else the MAC addresses.

    For IPv4 the two addresses and both ports, in network order.
    """
    kind, at = frame[12:14], 14
    while kind in _TAGS:
        kind, at = frame[at + 2 : at + 4], at + 4
    if kind == _IPV4 and len(frame) >= at + _IPV4_SIZE:
        addresses = frame[at + 12 : at + 20]
        if frame[at + 9] != _UDP:
            return addresses
        end = at + 4 * (frame[at] & 15)
        return addresses + frame[end : end + 4]
    if kind == _IPV6 and len(frame) >= at + _IPV6_SIZE:
        addresses = frame[at + 8 : at + 40]
        return addresses + frame[at + 40 : at + 44] if frame[at + 6] == _UDP else addresses
    return frame[:12]


def murmur3(data: bytes, seed: int) -> int:
    """MurmurHash3_x86_32 of data whose length is a multiple of four bytes.

    Source: docs/reference/fabric.md#ecmp.
    """
    value = seed & _MASK
    for at in range(0, len(data), 4):
        block = int.from_bytes(data[at : at + 4], "little")
        block = block * 0xCC9E2D51 & _MASK
        block = (block << 15 | block >> 17) & _MASK
        value ^= block * 0x1B873593 & _MASK
        value = (value << 13 | value >> 19) & _MASK
        value = (value * 5 + 0xE6546B64) & _MASK
    value ^= len(data)
    value = (value ^ value >> 16) * 0x85EBCA6B & _MASK
    value = (value ^ value >> 13) * 0xC2B2AE35 & _MASK
    return value ^ value >> 16


_PLAIN_IPV4 = _IPV4 + b"\x45"
_KEY_END = 38
"""Where the ports of UDP end, after IPv4 without options."""

_MASK = 0xFFFFFFFF
