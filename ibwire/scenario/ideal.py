"""How long messages take in an idle network: what a slowdown is measured against."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
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


class _Run(NamedTuple):
    """Packets of one size, one after the other. Sizes: extension headers, payload, padding."""

    packets: int
    size: int
    """Of each."""


_Train = tuple[_Run, ...]
"""Packets one after the other; neighbours of one size are in one run."""


class Pace(NamedTuple):
    """The fixed rate of a queue pair."""

    rate_bps: int
    burst: int = 0
    """Bytes that may leave at once before it."""


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

    def of_messages(self, flow: Flow, mtu: int, pace: Pace | None = None) -> Time:
        """From the post of all messages of a flow, at once, to the last completion."""
        way = self._way(flow.qp.device.name, flow.peer.device.name)
        return self._time(way, list(flow.posted_messages()), mtu, flow.qp.service, pace)

    def _time(
        self,
        way: _Way,
        messages: Sequence[Message],
        mtu: int,
        service: Service,
        pace: Pace | None = None,
    ) -> Time:
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
            return self._one_way(way, _joined([known[each][0] for each in messages]), pace)
        requests = _joined([known[each][0] for each in messages])
        responses = _joined([response for each in messages if (response := known[each][1])])
        if _size(requests) >= _size(responses):
            responses = last[1]
        else:
            requests = first[0]
        return self._one_way(way, requests, pace) + self._one_way(back, responses)

    def _one_way(self, way: _Way, train: _Train, pace: Pace | None = None) -> Time:
        """From the first bit of some packets at the source to the last one at the target.

        Lines are stages in a row: a packet is on one when it has left the one before, and when the
        packet before it is through. So the end is the longest of all sums in which each packet
        follows the one before it on the same line, or itself on the line before; for packets of one
        size the step from line to line is best taken at the first or at the last of them.
        """
        fixed: Time = 0
        stages: list[WireSpec] = []
        for at, (node, wire) in enumerate(way):
            latency = self._switches[node].latency if node in self._switches else 0
            fixed += wire.delay + latency
            if self._passes(way, at):
                fixed += 8 * HEADER_BYTES * S // wire.rate_bps
            else:
                stages.append(wire)
        if pace is not None and pace.rate_bps >= way[0][1].rate_bps:
            pace = None
        allowed = 0 if pace is None else -_line_time(pace.burst, pace.rate_bps)
        through = [0] * len(stages)
        for packets, size in train:
            sizes = [size + self._headers + wire.overhead for wire in stages]
            times = [
                _line_time(each, wire.rate_bps) for each, wire in zip(sizes, stages, strict=True)
            ]
            gap = 0 if pace is None else _line_time(sizes[0], pace.rate_bps)
            through = _passed(packets, times, through, (allowed, gap))
            allowed += packets * gap
        return fixed + through[-1]

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
        return (_Run(1, INFO[codes[3]].header_size - BTH.SIZE + padded),)
    first, middle, last = (INFO[code].header_size - BTH.SIZE for code in codes[:3])
    return _joined(
        [
            (_Run(1, first + mtu),),
            (_Run(packets - 2, middle + mtu),) if packets > 2 else (),
            (_Run(1, last + padded - (packets - 1) * mtu),),
        ]
    )


def _joined(trains: Iterable[_Train]) -> _Train:
    runs: list[_Run] = []
    for run in chain.from_iterable(trains):
        if runs and runs[-1].size == run.size:
            runs[-1] = _Run(runs[-1].packets + run.packets, run.size)
        else:
            runs.append(run)
    return tuple(runs)


def _size(train: _Train) -> int:
    return sum(packets * size for packets, size in train)


def _line_time(size: int, rate_bps: int) -> Time:
    return 8 * size * S // rate_bps


def _passed(
    packets: int, times: Sequence[Time], through: Sequence[Time], pace: tuple[Time, Time]
) -> list[Time]:
    """When packets of one size are through each line.

    times: of a packet on each line. through: when the packets before them were. pace: when the
    first may leave, and the time from one to the next.
    """
    allowed, gap = pace
    ends = [0] * len(times)
    for begin, before in enumerate(through):
        once, longest = 0, 0
        for at in range(begin, len(times)):
            once += times[at]
            longest = max(longest, times[at])
            start = before if begin else max(before, allowed)
            end = start + once + (packets - 1) * longest
            if not begin:
                end = max(end, allowed + (packets - 1) * gap + once)
            ends[at] = max(ends[at], end)
    return ends


_RELIABLE = (Service.RC, Service.XRC)
_READ_RESPONSES = (
    OpCode.RC_RDMA_READ_RESPONSE_FIRST,
    OpCode.RC_RDMA_READ_RESPONSE_MIDDLE,
    OpCode.RC_RDMA_READ_RESPONSE_LAST,
    OpCode.RC_RDMA_READ_RESPONSE_ONLY,
)
