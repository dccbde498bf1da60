"""Laws of InfiniBand fabrics, on random topologies under random load.

No packet is dropped on a link with credits, a buffer never holds more than its size, credits are
never negative, RC loses nothing, and counters are the sums of what was on the link.
"""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fabric.infiniband.test_network import assert_nothing_lost, hosts_of
from ibwire.base.node import Frame
from ibwire.base.units import MS, NS, US, Time
from ibwire.fabric.infiniband.credits import LARGEST_GRANT
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
        self.link = traffic.fabric.link(port)
        assert port.peer is not None
        self.far = traffic.fabric.link(port.peer)
        tap(traffic.fabric, port, self.record, arriving=False)

    def record(self, frame: Frame, now: Time) -> None:
        if len(frame) == 6:
            return
        self.words += words_of(frame)
        self.packets += 1
        vl = frame[0] >> 4
        limit = self.link.credits.limits[vl]
        assert limit is not None
        # What is left after this packet: never below 0, which would be a large number here.
        assert self.link.credits.left(vl) <= min(self.far.buffer.size, LARGEST_GRANT)


def check(
    subnet: Subnet, flows: list[tuple[int, int, int, Operation, int]], blocks: int, lanes: int
) -> None:
    bring_up(subnet, Engine.UPDN)
    set_limits(subnet, lanes=lanes)
    traffic = FabricTraffic(subnet, FabricSettings(buffer=blocks, delay=50 * NS))
    hosts = hosts_of(subnet)
    watches = [Watch(traffic, port) for ends in subnet.links() for port in ends]
    for source, target, size, operation, sl in flows:
        if source % len(hosts) != target % len(hosts):
            ends = hosts[source % len(hosts)], hosts[target % len(hosts)]
            traffic.add(*ends, size, operation=operation, sl=sl)

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
    subnet: Subnet, flows: list[tuple[int, int, int, Operation, int]], blocks: int, lanes: int
) -> None:
    check(subnet, flows, blocks, lanes)


@pytest.mark.slow
@settings(max_examples=60)
@given(subnets(), FLOWS, BUFFERS, st.sampled_from([1, 4]))
def test_many_fabrics_with_credits_lose_nothing(
    subnet: Subnet, flows: list[tuple[int, int, int, Operation, int]], blocks: int, lanes: int
) -> None:
    check(subnet, flows, blocks, lanes)
