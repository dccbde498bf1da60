"""Options of links and switches: adaptive routing, retry, interrupted links, stalled lanes."""

from __future__ import annotations

import pytest

from fabric.infiniband.test_network import assert_nothing_lost, fabric_of, hosts_of, port_at
from ibwire.base.errors import EncodeError
from ibwire.base.units import MS, NS, US
from ibwire.fabric.infiniband.adaptive import Alternatives
from ibwire.fabric.infiniband.generated import generate
from ibwire.fabric.infiniband.netfile import parse_topology
from ibwire.fabric.infiniband.network import set_limits
from ibwire.fabric.infiniband.routing import bring_up
from ibwire.fabric.infiniband.settings import FabricSettings
from ibwire.fabric.infiniband.tap import tap
from ibwire.fabric.llr import LLR
from ibwire.rc.attributes import QPType
from ibwire.scenario.infiniband import FabricTraffic, Operation
from ibwire_layers.attributes import PortPhysicalState, PortState

RETRY = FabricSettings(retry=LLR(pcs_lost_timeout=1 * MS))


# Adaptive routing.


def test_all_ports_up_are_as_good_in_a_fat_tree() -> None:
    """Leaves with 4 hosts and one link to each of 4 spines."""
    subnet = generate("fattree:ports=8")
    bring_up(subnet)
    leaf, spine = subnet.nodes["leaf0"], subnet.nodes["spine0"]
    near, far = subnet.nodes["node-0-1"].ports[1], subnet.nodes["node-5-0"].ports[1]
    found = Alternatives()

    assert found.ports(leaf, near.lid) == (2,)
    assert sorted(found.ports(leaf, far.lid)) == [5, 6, 7, 8]
    assert found.ports(leaf, far.lid)[0] == leaf.route(far.lid)
    assert found.ports(spine, far.lid) == (spine.route(far.lid),)
    assert found.ports(leaf, 999) == (255,)


def test_links_that_are_down_are_left_out() -> None:
    subnet = generate("fattree:ports=8")
    bring_up(subnet)
    leaf, far = subnet.nodes["leaf0"], subnet.nodes["node-5-0"].ports[1]
    other = next(port for port in (5, 6, 7, 8) if port != leaf.route(far.lid))
    found = Alternatives()
    before = found.ports(leaf, far.lid)
    subnet.disconnect(leaf.ports[other])

    found.clear()

    assert set(before) - set(found.ports(leaf, far.lid)) == {other}


def spread(*, adaptive: bool) -> tuple[int, int, list[int]]:
    """Two hosts of a leaf send to hosts whose routes share an uplink.

    When the last one ended, datagrams that arrived, and packets on each uplink.
    """
    subnet = generate("fattree:ports=8")
    bring_up(subnet)
    set_limits(subnet)
    traffic = FabricTraffic(subnet, FabricSettings(adaptive=adaptive))
    leaf = subnet.nodes["leaf0"]
    hosts = hosts_of(subnet)
    out = leaf.route(hosts[4].lid)
    shared = [host for host in hosts[4:] if leaf.route(host.lid) == out][:2]
    for source, destination in zip(hosts, shared, strict=False):
        traffic.add(source, destination, 60 * 4096, message=4096, operation=Operation.SEND,
                    qp_type=QPType.UD)  # fmt: skip

    traffic.run(5 * MS)
    traffic.simulator.run(6 * MS)

    assert_nothing_lost(traffic)
    arrived = sum(port.counters.port_rcv_pkts for port in shared)
    end = max(transfer.end or 0 for transfer in traffic.transfers)
    return end, arrived, [leaf.ports[port].counters.port_xmit_pkts for port in (5, 6, 7, 8)]


@pytest.mark.slow
def test_adaptive_routing_uses_uplinks_that_are_free() -> None:
    fixed, adaptive = spread(adaptive=False), spread(adaptive=True)

    assert (fixed[1], adaptive[1]) == (120, 120)
    assert sorted(fixed[2]) == [0, 0, 0, 120]
    assert min(adaptive[2]) > 0
    assert sum(adaptive[2]) == 120
    assert adaptive[0] < 0.6 * fixed[0]


# Link-level retry.


def test_a_link_with_retry_loses_nothing() -> None:
    """At this error rate one packet in ten is damaged."""
    traffic = fabric_of("star:hosts=2", settings=RETRY)
    a, b = hosts_of(traffic.subnet)
    errors = traffic.fabric.damage(a, 3e-6)
    transfer = traffic.add(a, b, 1 << 18)

    traffic.run(100 * MS)

    assert errors.frames > 3
    assert port_at(a).counters.symbol_error_counter == errors.frames
    assert transfer.arrived
    assert transfer.qp.counters.retransmitted == 0
    assert_nothing_lost(traffic)


def test_a_switch_with_retry_waits_for_whole_packets() -> None:
    """It sends nothing that it may have to receive again; also to a link that is faster."""
    subnet = parse_topology(
        'Switch 2 "sw0"\n[1] "a"[1] # 4xEDR\n[2] "b"[1] # 4xHDR\n\nCa 1 "a"\n\nCa 1 "b"\n'
    )
    bring_up(subnet)
    set_limits(subnet)
    traffic = FabricTraffic(subnet, RETRY)
    a, b = hosts_of(subnet)
    arrivals: dict[int, int] = {}
    tap(traffic.fabric, b, lambda frame, now: arrivals.setdefault(len(frame), now))
    traffic.add(a, b, 4096)

    traffic.run(1 * MS)

    # LRH, BTH, RETH, payload, ICRC, VCRC, delimiters; 80 and 40 ps for each byte.
    packet = 8 + 12 + 16 + 4096 + 4 + 2 + 2
    credits = (6 + 2) * 80 + 10 * NS  # a flow-control packet comes first
    assert arrivals[packet - 2] == credits + packet * (80 + 40) + (10 + 130 + 10) * NS


# Links that are interrupted.


@pytest.mark.parametrize("settings", [FabricSettings(), RETRY], ids=["without", "with retry"])
def test_an_interrupted_link_defers_and_goes_on(settings: FabricSettings) -> None:
    traffic = fabric_of("star:hosts=2", settings=settings)
    a, b = hosts_of(traffic.subnet)
    transfer = traffic.add(a, b, 1 << 18, timeout=5)
    traffic.simulator.run(5 * US)

    traffic.fabric.interrupt(b, 20 * US)
    traffic.simulator.run(24 * US)
    states = {(port.state, port.physical_state) for port in (b, port_at(b))}
    traffic.run(100 * MS)

    assert states == {(PortState.ACTIVE_DEFER, PortPhysicalState.LINK_ERROR_RECOVERY)}
    assert {port.state for port in (b, port_at(b))} == {PortState.ACTIVE}
    for port in (b, port_at(b)):
        assert port.counters.link_error_recovery_counter == 1
        assert port.counters.link_downed_counter == 0
        assert port.counters.port_xmit_discards == 0
    assert transfer.arrived
    assert (transfer.qp.counters.retransmitted > 0) == (settings.retry is None)


def test_a_link_that_is_interrupted_too_long_goes_down_and_comes_back() -> None:
    traffic = fabric_of("star:hosts=2", settings=FabricSettings(defer_limit=10 * US))
    a, b = hosts_of(traffic.subnet)
    transfer = traffic.add(a, b, 1 << 18, timeout=5)
    traffic.simulator.run(5 * US)

    traffic.fabric.interrupt(b, 40 * US)
    traffic.simulator.run(16 * US)
    state = b.state
    traffic.run(100 * MS)

    assert state == PortState.DOWN
    assert b.state == PortState.ACTIVE
    assert b.counters.link_downed_counter == 1
    assert b.counters.link_error_recovery_counter == 0
    assert transfer.arrived


def test_a_link_that_was_restored_after_a_failure_comes_back_by_itself_again() -> None:
    traffic = fabric_of("star:hosts=2", settings=FabricSettings(defer_limit=10 * US))
    fabric = traffic.fabric
    a, _ = hosts_of(traffic.subnet)
    fabric.plan_failure(a, 1 * US)
    traffic.simulator.run(2 * US)
    fabric.restore(a)
    traffic.simulator.run(4 * US)

    fabric.interrupt(a, 40 * US)
    traffic.simulator.run(50 * US)

    assert a.state == PortState.ACTIVE


def test_only_an_active_link_is_interrupted() -> None:
    traffic = fabric_of("star:hosts=2")
    a, _ = hosts_of(traffic.subnet)
    traffic.fabric.interrupt(a, 10 * US)

    with pytest.raises(EncodeError, match="a port in the state ACTIVE"):
        traffic.fabric.interrupt(a, 10 * US)
    with pytest.raises(EncodeError, match="duration"):
        traffic.fabric.interrupt(a, 0)


# Stalled lanes.

HOQ_LIFE = 4.096 * US * 2


def stalled(count: int) -> FabricTraffic:
    """A host that grants no credits gets 20 datagrams; HOQLife is 8.192 us."""
    subnet = generate("star:hosts=2")
    bring_up(subnet)
    set_limits(subnet, hoq_life=1)
    a, b = hosts_of(subnet)
    port_at(b).vl_stall_count = count
    traffic = FabricTraffic(subnet, FabricSettings(update_symbols=0))
    traffic.fabric.line(b).stage = lambda frame, now: ()
    traffic.add(a, b, 20 * 256, message=256, operation=Operation.SEND, qp_type=QPType.UD)
    return traffic


@pytest.mark.parametrize(("count", "discarded"), [(0, 3), (3, 20), (4, 3)])
def test_a_lane_that_discards_too_often_stalls(count: int, discarded: int) -> None:
    """After VLStallCount packets in a row that got too old, all are discarded (IBA 18.2.5.4)."""
    traffic = stalled(count)
    counters = port_at(hosts_of(traffic.subnet)[1]).counters

    traffic.simulator.run(round(3.5 * HOQ_LIFE))

    assert counters.port_xmit_discards == discarded
    assert counters.port_sw_hoq_lifetime_limit_discards == discarded


def test_what_was_too_long_in_the_switch_is_counted_apart() -> None:
    """LifeTimeValue is 4.096 us, so all packets end before HOQLife, which is twice as long."""
    traffic = stalled(0)
    traffic.subnet.nodes["sw0"].life_time = 0
    traffic.fabric.read_tables()
    counters = port_at(hosts_of(traffic.subnet)[1]).counters

    traffic.simulator.run(round(3.5 * HOQ_LIFE))

    assert counters.port_xmit_discards == counters.port_sw_lifetime_limit_discards == 20


@pytest.mark.parametrize(("lives", "waits"), [(9, False), (12, True)])
def test_a_stalled_lane_discards_at_once_for_eight_lives(lives: int, waits: bool) -> None:
    """It stalls at 3 lives, so a packet at 9 is discarded as it comes, and one at 12 waits."""
    traffic = stalled(3)
    a, b = hosts_of(traffic.subnet)
    counters = port_at(b).counters
    traffic.simulator.run(round(lives * HOQ_LIFE))
    assert counters.port_xmit_discards == 20

    traffic.add(a, b, 256, operation=Operation.SEND, qp_type=QPType.UD)
    traffic.simulator.run(round((lives + 0.5) * HOQ_LIFE))

    assert counters.port_xmit_discards == (20 if waits else 21)
    assert len(traffic.fabric.switches["sw0"].ports[2].lanes[0].packets()) == waits
