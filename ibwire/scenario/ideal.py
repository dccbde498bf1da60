"""How long messages take in an idle network: what a slowdown is measured against."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence

from ibwire.base.units import S, Time
from ibwire.fabric.switch.cut_through import HEADER_BYTES
from ibwire.rc.attributes import QPType
from ibwire.scenario.specs import SwitchSpec, WireSpec
from ibwire.scenario.workload import Flow

RETH_SIZE = 16
AETH_SIZE = 4
ETHERNET_HEADERS = 58
"""Bytes of a packet besides its payload and extension headers: Ethernet, IPv4, UDP, BTH, ICRC."""

_HEADERS = {"rocev2": ETHERNET_HEADERS, "rocev1": 70, "ib": 26}
"""By link: RoCEv1 has a GRH, InfiniBand LRH, BTH, ICRC and VCRC."""


class IdealTimes:
    """Times over the shortest way between two nodes of a network, on which nothing else is sent."""

    def __init__(
        self,
        wires: Iterable[WireSpec],
        switches: Mapping[str, SwitchSpec] | None = None,
        link: str = "rocev2",
    ) -> None:
        self._switches = switches or {}
        self._headers = _HEADERS[link]
        self._wires: dict[str, list[tuple[str, WireSpec]]] = {}
        for wire in wires:
            a, b = wire.between
            self._wires.setdefault(a, []).append((b, wire))
            self._wires.setdefault(b, []).append((a, wire))
        self._before: dict[str, dict[str, tuple[str, WireSpec]]] = {}
        """By source, and then by node: the node before it and the wire between them."""

    def of_flow(self, flow: Flow, mtu: int) -> Time:
        """From the first post of a flow to its last completion, with its window and its pace."""
        source, target = flow.qp.device.name, flow.peer.device.name
        traffic, has_ack = flow.traffic, flow.qp.qp_type is QPType.RC
        single: dict[int, tuple[Time, Time]] = {}
        ended: deque[Time] = deque(maxlen=traffic.window)
        last: Time = 0
        for number, size in enumerate(flow.posted_sizes()):
            if size not in single:
                alone = self.of_messages(source, target, [size], mtu, has_ack=has_ack)
                two = self.of_messages(source, target, [size, size], mtu, has_ack=has_ack)
                single[size] = alone, two - alone
            alone, following = single[size]
            posted = number * traffic.every
            if len(ended) == traffic.window:
                posted = max(posted, ended[0])
            last = max(posted + alone, last + following if number else 0)
            ended.append(last)
        return last

    def of_messages(
        self, source: str, target: str, sizes: Sequence[int], mtu: int, *, has_ack: bool = True
    ) -> Time:
        """From the post of messages to the last ACK."""
        way = self._way(source, target)
        headers = self._headers
        packets = sum(max(-(-size // mtu), 1) for size in sizes)
        frames = sum(sizes) + packets * headers + len(sizes) * RETH_SIZE
        first = min(sizes[0], mtu) + headers + RETH_SIZE
        last = (sizes[-1] % mtu or min(sizes[-1], mtu)) + headers
        ack = headers + AETH_SIZE
        slowest = max(range(len(way)), key=lambda at: -way[at][1].rate_bps)
        time = 0
        for at, (node, wire) in enumerate(way):
            size = frames + packets * wire.overhead
            answer = ack + wire.overhead
            if at < slowest:
                size = HEADER_BYTES if self._passes(way, at) else first + wire.overhead
            elif at > slowest:
                size = HEADER_BYTES if self._passes(way, at - 1) else last + wire.overhead
            if at and self._passes(way, at - 1):
                answer = HEADER_BYTES
            latency = self._switches[node].latency if node in self._switches else 0
            bits = 8 * size + (8 * answer if has_ack else 0)
            time += (1 + has_ack) * (wire.delay + latency) + bits * S // wire.rate_bps
        return time

    def _passes(self, way: Sequence[tuple[str, WireSpec]], at: int) -> bool:
        """Whether frames pass the node behind a wire of a way while they still arrive."""
        node, wire = way[at]
        spec = self._switches.get(node)
        if spec is None or not spec.is_cut_through or at + 1 == len(way):
            return False
        return way[at + 1][1].rate_bps == wire.rate_bps

    def _way(self, source: str, target: str) -> list[tuple[str, WireSpec]]:
        """The wires of a shortest way, each with the node that it leads to."""
        if source not in self._before:
            self._before[source] = self._search(source)
        before = self._before[source]
        way = []
        node = target
        while node != source:
            previous, wire = before[node]
            way.append((node, wire))
            node = previous
        return way[::-1]

    def _search(self, source: str) -> dict[str, tuple[str, WireSpec]]:
        found: dict[str, tuple[str, WireSpec]] = {}
        waiting = deque([source])
        while waiting:
            node = waiting.popleft()
            for other, wire in self._wires.get(node, ()):
                if other != source and other not in found:
                    found[other] = node, wire
                    waiting.append(other)
        return found
