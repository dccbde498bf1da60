"""Credit loops: tables with a circle stop under load and are named, others never stop."""

from __future__ import annotations

from typing import Any

import pytest

from fabric.infiniband.test_network import assert_nothing_lost, fabric_of, hosts_of
from fabric.infiniband.test_routing import recorded
from ibwire.base.units import MS, US, S
from ibwire.fabric.infiniband.credit_loops import find_credit_loop
from ibwire.fabric.infiniband.generated import generate
from ibwire.fabric.infiniband.network import set_limits
from ibwire.fabric.infiniband.routing import Engine, bring_up, install
from ibwire.fabric.infiniband.settings import FabricSettings
from ibwire.fabric.infiniband.waiting import explain
from ibwire.rc.attributes import QPType
from ibwire.rc.work import WCStatus
from ibwire.scenario.infiniband import FabricTraffic, Operation
from ibwire_layers.attributes import PortState

SMALL = FabricSettings(buffer=132)
"""Room for two packets of 4 KiB."""


def shifted(traffic: FabricTraffic, by: int, size: int = 100_000) -> None:
    """A transfer from every host to that which is so many further."""
    hosts = hosts_of(traffic.subnet)
    for number, host in enumerate(hosts):
        traffic.add(host, hosts[(number + by) % len(hosts)], size)


def test_a_ring_with_shortest_paths_stops() -> None:
    traffic = fabric_of("ring:switches=5,hosts=1", Engine.MINHOP, SMALL)
    shifted(traffic, 2)

    traffic.run(5 * MS)

    assert find_credit_loop(traffic.subnet)
    assert len(traffic.deadlock) == 5
    sentence = explain(traffic.deadlock)
    assert sentence.startswith("deadlock: sw0[")
    assert sentence.count(" VL0 waits for sw") == 5
    assert {wait.queue.node for wait in traffic.deadlock} == {f"sw{n}" for n in range(5)}
    for wait, following in zip(traffic.deadlock, traffic.deadlock[1:], strict=False):
        assert following.queue in wait.reasons
    assert not any(transfer.end for transfer in traffic.transfers)
    assert_nothing_lost(traffic)


def test_a_deadlock_is_named_where_room_of_packets_that_have_left_was_not_asked_for() -> None:
    """Second hosts of the switches, which send nothing, have first got a packet of one block, which
    makes no limit as it leaves. Then the others stop each other."""
    settings = FabricSettings(buffer=66, update_symbols=0)
    traffic = fabric_of("ring:switches=5,hosts=2", Engine.MINHOP, settings)
    hosts, seconds = hosts_of(traffic.subnet)[::2], hosts_of(traffic.subnet)[1::2]
    datagrams: dict[str, Any] = {"operation": Operation.SEND, "qp_type": QPType.UD}
    for number, host in enumerate(hosts):
        traffic.add(host, seconds[(number + 1) % 5], 16, **datagrams)
    traffic.simulator.run(2 * US)
    for number, host in enumerate(hosts):
        traffic.add(host, hosts[(number + 2) % 5], 400_000, message=4000, **datagrams)

    traffic.run(5 * MS)

    assert len(traffic.deadlock) == 5


def test_the_same_ring_with_up_down_does_not_stop() -> None:
    traffic = fabric_of("ring:switches=5,hosts=1", Engine.UPDN, SMALL)
    shifted(traffic, 2)

    traffic.run(5 * MS)

    assert not find_credit_loop(traffic.subnet)
    assert traffic.deadlock == []
    assert all(transfer.arrived for transfer in traffic.transfers)
    assert_nothing_lost(traffic)


@pytest.mark.parametrize(
    ("name", "waiting"), [("node-0-0", ["node-0-0"]), ("sw0", ["node-0-0", "sw0"])]
)
def test_a_run_ends_early_when_nothing_can_move(name: str, waiting: list[str]) -> None:
    """No table of VL arbitration has the lane: a port sends flow-control packets only."""
    traffic = fabric_of("star:hosts=2")
    source, target = hosts_of(traffic.subnet)
    port = source if name == source.node.name else target.peer
    assert port is not None
    port.arbitration.update({part: bytes(64) for part in (1, 2, 3, 4)})
    traffic.fabric.read_tables()
    transfer = traffic.add(source, target, 50_000, timeout=0)

    traffic.run(20 * MS)

    assert traffic.has_stopped
    assert traffic.deadlock == []
    assert transfer.status is None
    assert traffic.simulator.now < 1 * MS
    assert [port.node.name for port in traffic.waiting_ports()] == waiting


def test_a_run_goes_on_while_a_timer_runs() -> None:
    """All is lost; timeout 10 is 4.2 ms, and after one retry the transfer ends with an error."""
    traffic = fabric_of("star:hosts=2")
    source, target = hosts_of(traffic.subnet)
    traffic.subnet.nodes["sw0"].lft[target.lid] = 255
    transfer = traffic.add(source, target, 5_000, timeout=10, retry_cnt=1)

    traffic.run(10 * S)

    assert not traffic.has_stopped
    assert transfer.status is WCStatus.RETRY_EXC_ERR
    assert traffic.simulator.now > 8 * MS


@pytest.mark.slow
@pytest.mark.parametrize(
    ("recording", "is_loop"),
    [("ring6-minhop", True), ("ring6-updn", False), ("fattree32-minhop", False)],
)
def test_what_ibdmchk_calls_a_credit_loop_stops_and_nothing_else(
    recording: str, is_loop: bool
) -> None:
    """Tables of opensm 3.3.23; ibdmchk 1.5.7 (ibutils) found a loop in the first ones only."""
    subnet, tables = recorded(recording)
    install(tables)
    for ends in subnet.links():
        for port in ends:
            port.state = PortState.ACTIVE
    set_limits(subnet)
    traffic = FabricTraffic(subnet, SMALL)
    for by in (2, 4, 6):
        shifted(traffic, by, size=60_000)

    traffic.run(20 * MS)

    assert traffic.has_stopped == is_loop
    assert is_loop or all(transfer.arrived for transfer in traffic.transfers)
    assert_nothing_lost(traffic)


def test_hoq_life_ends_a_deadlock_and_rc_gets_through() -> None:
    """HOQLife of 4.096 us x 2^3: the switches discard, and queue pairs send again."""
    subnet = generate("ring:switches=5,hosts=1")
    bring_up(subnet, Engine.MINHOP)
    set_limits(subnet, hoq_life=3)
    traffic = FabricTraffic(subnet, SMALL)
    shifted(traffic, 2, size=30_000)

    traffic.run(2 * S)

    discards = [link.counters.port_xmit_discards for link in traffic.fabric.links()]
    assert sum(discards) > 0
    assert (len(traffic.deadlock), traffic.has_stopped) == (5, False)
    assert all(transfer.arrived for transfer in traffic.transfers)
