"""How long messages take in an idle network: what a slowdown is measured against."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from ibwire.base.units import S, Time
from ibwire.fabric.switch.cut_through import HEADER_BYTES
from ibwire.rc.plan import PLANS
from ibwire.rc.work import WROpcode
from ibwire.scenario.specs import SwitchSpec, WireSpec
from ibwire.scenario.workload import ATOMICS, Flow
from ibwire_layers.headers import BTH
from ibwire_layers.opcodes import INFO, OpCode, Service

ETHERNET_HEADERS = 58
"""Bytes of a packet besides its payload and extension headers: Ethernet, IPv4, UDP, BTH, ICRC."""

Message = tuple[WROpcode, int]
"""Opcode and bytes."""

_Way = Sequence[tuple[str, WireSpec]]
"""Wires, each with the node that it leads to."""

_HEADERS = {"rocev2": ETHERNET_HEADERS, "rocev1": 70, "ib": 26}
"""By link: RoCEv1 has a GRH, InfiniBand LRH, BTH, ICRC and VCRC."""


class _Train(NamedTuple):
    """Packets one after the other. Sizes are those of extension headers, payload and padding."""

    packets: int
    size: int
    """Of all of them."""
    first: int
    last: int


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
        """From the first post of a flow to its last completion, with its window and its pace.

        Messages of an unreliable service complete when they are sent: no window holds them back.
        """
        way = self._way(flow.qp.device.name, flow.peer.device.name)
        traffic, service = flow.traffic, flow.qp.service
        single: dict[Message, tuple[Time, Time]] = {}
        ended: deque[Time] = deque(maxlen=traffic.window)
        last: Time = 0
        for number, message in enumerate(flow.posted_messages()):
            if message not in single:
                alone = self._time(way, [message], mtu, service)
                two = self._time(way, [message, message], mtu, service)
                single[message] = alone, two - alone
            alone, following = single[message]
            posted = number * traffic.every
            if len(ended) == traffic.window and service in _RELIABLE:
                posted = max(posted, ended[0])
            last = max(posted + alone, last + following if number else 0)
            ended.append(last)
        return last

    def of_messages(self, flow: Flow, mtu: int) -> Time:
        """From the post of all messages of a flow, at once, to the last completion."""
        way = self._way(flow.qp.device.name, flow.peer.device.name)
        return self._time(way, list(flow.posted_messages()), mtu, flow.qp.service)

    def _time(self, way: _Way, messages: Sequence[Message], mtu: int, service: Service) -> Time:
        """Time of messages that are posted at once.

        Requests and responses overlap: the direction with more bytes takes the time of all of
        them, the other one that of a message.
        """
        known = {
            each: (_request(*each, mtu, service), _response(*each, mtu, service))
            for each in dict.fromkeys(messages)
        }
        back = [(way[at - 1][0] if at else "", wire) for at, (_, wire) in enumerate(way)][::-1]
        first, last = known[messages[0]], known[messages[-1]]
        if last[1] is None:
            return self._one_way(way, _joined([known[each][0] for each in messages]))
        requests = _joined([known[each][0] for each in messages])
        responses = _joined([response for each in messages if (response := known[each][1])])
        if requests.size >= responses.size:
            responses = last[1]
        else:
            requests = first[0]
        return self._one_way(way, requests) + self._one_way(back, responses)

    def _one_way(self, way: _Way, train: _Train) -> Time:
        """From the first bit of some packets at the source to the last one at the target."""
        headers = self._headers
        slowest = max(range(len(way)), key=lambda at: -way[at][1].rate_bps)
        time = 0
        for at, (node, wire) in enumerate(way):
            each = headers + wire.overhead
            size = train.size + train.packets * each
            if at < slowest:
                size = HEADER_BYTES if self._passes(way, at) else train.first + each
            elif at > slowest:
                size = HEADER_BYTES if self._passes(way, at - 1) else train.last + each
            latency = self._switches[node].latency if node in self._switches else 0
            time += wire.delay + latency + 8 * size * S // wire.rate_bps
        return time

    def _passes(self, way: _Way, at: int) -> bool:
        """Whether frames pass the node behind a wire of a way while they still arrive."""
        node, wire = way[at]
        spec = self._switches.get(node)
        if spec is None or not spec.is_cut_through or at + 1 == len(way):
            return False
        return way[at + 1][1].rate_bps == wire.rate_bps

    def _way(self, source: str, target: str) -> _Way:
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


def _request(opcode: WROpcode, size: int, mtu: int, service: Service) -> _Train:
    """The request packets of a message."""
    plan = PLANS[opcode]
    sent = 0 if opcode is WROpcode.RDMA_READ or opcode in ATOMICS else size
    return _train([service << 5 | code & 0x1F for code in plan.opcodes], sent, mtu)


def _response(opcode: WROpcode, size: int, mtu: int, service: Service) -> _Train | None:
    """The packets that complete a message; `None` where the service has none."""
    if service not in _RELIABLE:
        return None
    if opcode in ATOMICS:
        return _train([OpCode.RC_ATOMIC_ACKNOWLEDGE] * 4, 0, mtu)
    if opcode is WROpcode.RDMA_READ:
        return _train(_READ_RESPONSES, size, mtu)
    if PLANS[opcode].is_answered:
        return _train(_READ_RESPONSES, 0, mtu)
    return _train([OpCode.RC_ACKNOWLEDGE] * 4, 0, mtu)


def _train(codes: Sequence[int], size: int, mtu: int) -> _Train:
    """The packets of a message. codes: opcodes of first, middle, last and only packets."""
    padded = size + (-size & 3)
    packets = max(-(-size // mtu), 1)
    if packets == 1:
        only = INFO[codes[3]].header_size - BTH.SIZE + padded
        return _Train(1, only, only, only)
    first, middle, last = (INFO[code].header_size - BTH.SIZE for code in codes[:3])
    end = last + padded - (packets - 1) * mtu
    whole = first + (packets - 2) * middle + last + padded
    return _Train(packets, whole, first + mtu, end)


def _joined(trains: Sequence[_Train]) -> _Train:
    packets = sum(each.packets for each in trains)
    size = sum(each.size for each in trains)
    return _Train(packets, size, trains[0].first, trains[-1].last)


_RELIABLE = (Service.RC, Service.XRC)
_READ_RESPONSES = (
    OpCode.RC_RDMA_READ_RESPONSE_FIRST,
    OpCode.RC_RDMA_READ_RESPONSE_MIDDLE,
    OpCode.RC_RDMA_READ_RESPONSE_LAST,
    OpCode.RC_RDMA_READ_RESPONSE_ONLY,
)
