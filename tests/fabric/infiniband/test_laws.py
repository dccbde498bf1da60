"""Laws of InfiniBand fabrics, on random topologies under random load.

No packet is dropped on a link with credits, a buffer never holds more than its size, credits are
never negative, RC loses nothing, and counters are the sums of what was on the link.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterable
from operator import itemgetter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fabric.infiniband.test_network import assert_nothing_lost, hosts_of
from ibwire.base.node import Frame
from ibwire.base.units import MS, NS, US, S, Time
from ibwire.fabric.infiniband.credits import LARGEST_GRANT, NO_LIMIT, read_flow_control
from ibwire.fabric.infiniband.lrh import words_of
from ibwire.fabric.infiniband.network import set_limits
from ibwire.fabric.infiniband.routing import Engine, bring_up
from ibwire.fabric.infiniband.settings import FabricSettings
from ibwire.fabric.infiniband.speeds import Speed, Width
from ibwire.fabric.infiniband.subnet import Node, Port, Subnet
from ibwire.fabric.infiniband.tap import tap
from ibwire.rc.work import WCStatus
from ibwire.scenario.infiniband import FabricTraffic, Operation

RATES = [(Width.X1, Speed.SDR), (Width.X4, Speed.QDR), (Width.X4, Speed.EDR), (Width.X4, Speed.XDR)]


def differ(pair: tuple[int, int]) -> bool:
    return pair[0] != pair[1]


@st.composite
def subnets(draw: st.DrawFn) -> Subnet:
    """Up to five switches, joined by a tree and some further links; a host or two at each."""
    subnet = Subnet()
    count = draw(st.integers(1, 5))
    switches = [
        subnet.add(Node(f"sw{n}", is_switch=True, guid=0x100 + n, num_ports=32))
        for n in range(count)
    ]
    taken: Counter[int] = Counter()

    def free(number: int) -> Port:
        taken[number] += 1
        return switches[number].ports[taken[number]]

    pairs = [(draw(st.integers(0, n - 1)), n) for n in range(1, count)]
    if count > 1:
        numbers = st.integers(0, count - 1)
        pairs += draw(
            st.lists(
                st.tuples(numbers, numbers).filter(lambda each: each[0] != each[1]), max_size=4
            )
        )
    for a, b in pairs:
        subnet.connect(free(a), free(b), *draw(st.sampled_from(RATES)))
    for number in range(max(2, draw(st.integers(count, 2 * count)))):
        host = subnet.add(
            Node(f"h{number}", is_switch=False, guid=0x10000 + 0x10 * number, num_ports=1)
        )
        subnet.connect(host.ports[1], free(number % count), *draw(st.sampled_from(RATES)))
    return subnet


class Watch:
    """Adds up what leaves a port, and checks its credits at each packet."""

    def __init__(self, traffic: FabricTraffic, port: Port) -> None:
        self.port = port
        self.words = self.packets = 0
        self.left: list[tuple[Time, Frame]] = []
        """What has left, and when it began to."""
        self.link = traffic.fabric.link(port)
        assert port.peer is not None
        self.far = traffic.fabric.link(port.peer)
        tap(traffic.fabric, port, self.record, arriving=False)

    def record(self, frame: Frame, now: Time) -> None:
        self.left.append((now, frame))
        if len(frame) == 6:
            return
        self.words += words_of(frame)
        self.packets += 1
        vl = frame[0] >> 4
        credits, buffer = self.link.credits[vl], self.far.buffers[vl]
        assert credits.limit != NO_LIMIT
        # What is left after this packet: never below 0, which would be a large number here.
        assert credits.left <= min(buffer.size, LARGEST_GRANT)

    def after(self, size: int) -> Time:
        """The time of so many bytes on the line."""
        return -(-8 * S * size // self.link.line.rate_bps)


DELAY = 50 * NS
LRH = 9
"""Bytes of a start delimiter and an LRH, after which a switch has a packet in its buffer."""


def blocks(frame: Frame) -> int:
    return -(-len(frame) // 64)


def assert_senders_keep_to_limits_that_have_arrived(watch: Watch, back: Watch) -> None:
    """No packet leaves before the flow-control packet is there that allows it (IBA 7.9)."""
    limits = deque(
        (now + watch.after(6 + 2) + DELAY, read_flow_control(frame))
        for now, frame in back.left
        if len(frame) == 6
    )
    limit: dict[int, int] = {}
    sent: Counter[int] = Counter()
    for now, frame in watch.left:
        while limits and limits[0][0] <= now:
            _, found = limits.popleft()
            assert found is not None
            limit[found[1]] = found[3]
        if len(frame) == 6:
            found = read_flow_control(frame)
            assert found is not None
            assert found[2] == sent[found[1]] % 4096  # FCTBS
        else:
            sent[frame[0] >> 4] += blocks(frame)
            assert (limit[frame[0] >> 4] - sent[frame[0] >> 4]) % 4096 <= 2048


def assert_buffers_have_room(node: Node, watches: Iterable[Watch], size: int) -> None:
    """A buffer of a switch never holds more than its size, and no limit promises more than is free.

    Only what was on the links is counted: a packet is in the buffer from its LRH until its last
    byte has left. Its lane and VCRC may change on the way.
    """
    events: list[tuple[Time, int, int, Frame]] = []
    for watch in watches:
        end, peer = watch.port, watch.port.peer
        assert peer is not None
        for now, frame in watch.left:
            if end.node is node and len(frame) == 6:
                events.append((now, 2, end.number, frame))
            elif end.node is node:
                events.append((now + watch.after(len(frame) + 2), 1, end.number, frame))
            elif peer.node is node and len(frame) > 6:
                events.append((now + watch.after(LRH) + DELAY, 0, peer.number, frame))
    held: Counter[tuple[int, int]] = Counter()
    arrived: Counter[tuple[int, int]] = Counter()
    places: dict[bytes, deque[tuple[int, int]]] = defaultdict(deque)
    for _, what, port, frame in sorted(events, key=itemgetter(0, 1)):
        if what == 0:
            place = port, frame[0] >> 4
            arrived[place] += blocks(frame)
            held[place] += blocks(frame)
            assert held[place] <= size
            places[frame[1:-2]].append(place)
        elif what == 1:
            held[places[frame[1:-2]].popleft()] -= blocks(frame)
        else:
            found = read_flow_control(frame)
            assert found is not None
            place = port, found[1]
            assert (found[3] - arrived[place]) % 4096 <= size - held[place]
    assert not +held


def check(
    subnet: Subnet,
    flows: list[tuple[int, int, int, Operation, int]],
    size: int,
    lanes: int,
    mtu: int | None = None,
) -> None:
    bring_up(subnet, Engine.UPDN)
    set_limits(subnet, lanes=lanes)
    traffic = FabricTraffic(subnet, FabricSettings(buffer=size, delay=DELAY))
    hosts = hosts_of(subnet)
    watches = [Watch(traffic, port) for ends in subnet.links() for port in ends]
    for source, target, count, operation, sl in flows:
        if source % len(hosts) != target % len(hosts):
            ends = hosts[source % len(hosts)], hosts[target % len(hosts)]
            traffic.add(*ends, count, operation=operation, sl=sl, mtu=mtu)

    traffic.run(5 * MS)
    traffic.simulator.run(traffic.simulator.now + 100 * US)

    assert traffic.deadlock == []
    for transfer in traffic.transfers:
        assert (transfer.status, transfer.arrived) == (WCStatus.SUCCESS, True)
        assert transfer.qp.counters.retransmitted == 0
    assert_nothing_lost(traffic)
    for watch in watches:
        counters = watch.port.counters
        assert (counters.port_xmit_data, counters.port_xmit_pkts) == (watch.words, watch.packets)
        assert watch.far.counters.port_rcv_data == watch.words
    for near, far in zip(watches[::2], watches[1::2], strict=True):
        assert_senders_keep_to_limits_that_have_arrived(near, far)
        assert_senders_keep_to_limits_that_have_arrived(far, near)
    for node in subnet.nodes.values():
        if node.is_switch:
            assert_buffers_have_room(node, watches, size)
    for switch in traffic.fabric.switches.values():
        for number, switch_port in switch.ports.items():
            switch.settle(number, traffic.simulator.now)
            assert switch_port.draining == []
            assert {buffer.leaving for buffer in switch_port.link.buffers} == {0}


FLOWS = st.lists(
    st.tuples(
        st.integers(0, 9),
        st.integers(0, 9),
        st.integers(1, 20_000),
        st.sampled_from(list(Operation)),
        st.integers(0, 3),
    ),
    max_size=8,
)
BUFFERS = st.sampled_from([65, 66, 100, 256, 2048])


@settings(max_examples=5)
@given(subnets(), FLOWS, BUFFERS, st.sampled_from([1, 4]))
def test_a_fabric_with_credits_loses_nothing(
    subnet: Subnet, flows: list[tuple[int, int, int, Operation, int]], size: int, lanes: int
) -> None:
    check(subnet, flows, size, lanes)


@pytest.mark.slow
@settings(max_examples=60)
@given(subnets(), FLOWS, BUFFERS, st.sampled_from([1, 4]))
def test_many_fabrics_with_credits_lose_nothing(
    subnet: Subnet, flows: list[tuple[int, int, int, Operation, int]], size: int, lanes: int
) -> None:
    check(subnet, flows, size, lanes)
