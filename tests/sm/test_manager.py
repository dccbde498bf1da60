"""The subnet manager: subnets come up, changes are followed, and one manager is master."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from each_case import each_case
from ibwire.base.errors import EncodeError
from ibwire.fabric.infiniband import routing
from ibwire.fabric.infiniband.credit_loops import find_credit_loop
from ibwire.fabric.infiniband.routing import Engine
from ibwire.fabric.infiniband.subnet import IS_SM, Port
from ibwire.sm.asking import Ask, packed
from ibwire.sm.configuration import Partition, Settings
from ibwire.sm.control import Control, route
from ibwire.sm.mads import Datagram
from ibwire_layers.attributes import PortInfo, PortState, SMAttribute, SMInfo, SMState
from ibwire_layers.mad import MAD, Method, MgmtClass
from sm.managed import Managed

QUIET = Settings(sweep_interval=0)


def problems(fabric: Managed) -> list[str]:
    """Why packets do not arrive, over all pairs of adapters."""
    ends = fabric.adapters
    rows = [route(a, b)[-1] for a in ends for b in ends if a is not b]
    return [row["problem"] for row in rows if "problem" in row]


@pytest.mark.parametrize("engine", list(Engine))
@pytest.mark.parametrize("topology", ["star2", "fattree:ports=4", "fattree:ports=4,levels=3"])
def test_a_subnet_comes_up(topology: str, engine: Engine) -> None:
    fabric = Managed(topology)

    manager = fabric.start(Settings(engine=engine))
    fabric.run(1)

    assert manager.is_up
    assert manager.view.problems == []
    assert {port.state for link in fabric.subnet.links() for port in link} == {PortState.ACTIVE}
    lids = [port.lid for port in fabric.adapters]
    assert len(set(lids)) == len(lids)
    assert {port.master_sm_lid for port in fabric.adapters} == {fabric.adapters[0].lid}
    assert problems(fabric) == []


def test_up_down_has_no_credit_loop_where_shortest_paths_have_one() -> None:
    for engine, is_loop in ((Engine.MINHOP, True), (Engine.UPDN, False)):
        fabric = Managed("ring6")
        fabric.start(Settings(engine=engine))
        fabric.run(1)

        assert bool(find_credit_loop(fabric.subnet)) == is_loop


def test_an_engine_that_does_not_fit_is_replaced() -> None:
    fabric = Managed("ring6")
    manager = fabric.start(Settings(engine=Engine.FTREE))
    fabric.run(1)

    assert "ftree cannot route this: not a fat tree" in manager.view.problems[0]
    assert problems(fabric) == []


@pytest.mark.parametrize("lanes", [0, 4])
def test_a_second_sweep_writes_nothing(lanes: int) -> None:
    fabric = Managed("ring6")
    manager = fabric.start(Settings(sweep_interval=0, lanes=lanes))
    fabric.run(1)
    tables = [bytes(node.lft) for node in fabric.subnet.nodes.values()]
    sets: list[Datagram] = []
    send = fabric.management.send

    def watch(datagram: Datagram, port: Port) -> None:
        if datagram.mad[1] == 0x81 and datagram.mad[3] == 2:
            sets.append(datagram)
        send(datagram, port)

    fabric.management.send = watch  # type: ignore[method-assign]
    manager._change(fabric.now)
    fabric.run(1)

    assert manager.sweeps == 2
    assert [datagram.mad[16:18].hex() for datagram in sets] == []
    assert tables == [bytes(node.lft) for node in fabric.subnet.nodes.values()]


def test_a_link_that_fails_is_routed_around_after_its_trap() -> None:
    fabric = Managed("ring6")
    manager = fabric.start(QUIET)
    fabric.run(1)

    fabric.subnet.disconnect(fabric.subnet.nodes["sw0"].ports[7])
    assert problems(fabric)
    fabric.run(10)

    assert manager.sweeps > 1
    assert problems(fabric) == []
    assert fabric.management.traps.poll_timeout() is None, "traps are repressed"


def test_light_sweeps_find_what_no_trap_has_told() -> None:
    fabric = Managed("ring6")
    fabric.start(Settings())
    fabric.run(1)

    fabric.subnet.on_change = None
    fabric.subnet.disconnect(fabric.subnet.nodes["sw0"].ports[7])
    fabric.run(11)

    assert problems(fabric) == []


def test_a_manager_whose_link_was_down_brings_the_subnet_up_when_it_is_back() -> None:
    fabric = Managed("ring6")
    own = fabric.adapters[0]
    peer = own.peer
    assert peer is not None
    fabric.subnet.disconnect(own)
    fabric.start(Settings())
    fabric.run(3)

    fabric.subnet.reconnect(own, peer)
    fabric.run(11)

    assert problems(fabric) == []


def test_a_link_between_two_adapters_that_bounces_is_active_again(tmp_path: Path) -> None:
    (tmp_path / "pair.net").write_text('Ca 1 "a"\n[1] "b"[1]\n\nCa 1 "b"\n')
    fabric = Managed(str(tmp_path / "pair.net"))
    a, b = fabric.adapters
    fabric.start(Settings())
    fabric.run(1)

    fabric.subnet.disconnect(a)
    fabric.subnet.reconnect(a, b)
    assert {a.state, b.state} == {PortState.INIT}
    fabric.run(11)

    assert {a.state, b.state} == {PortState.ACTIVE}


@pytest.mark.parametrize("priority", [0, 9])
def test_of_two_masters_whose_link_comes_back_one_stays(priority: int) -> None:
    fabric = Managed("ring6")
    first = fabric.start(Settings())
    apart = fabric.adapters[5]
    peer = apart.peer
    assert peer is not None
    fabric.subnet.disconnect(apart)
    second = fabric.start(Settings(priority=priority), host=5)
    fabric.run(3)
    assert (first.state, second.state) == (SMState.MASTER, SMState.MASTER)

    fabric.subnet.reconnect(apart, peer)
    fabric.run(25)

    master, standby = (second, first) if priority else (first, second)
    assert (master.state, standby.state) == (SMState.MASTER, SMState.STANDBY)
    assert {port.master_sm_lid for port in fabric.adapters} == {
        fabric.adapters[5 if priority else 0].lid
    }
    assert problems(fabric) == []


@pytest.mark.parametrize("seed", range(3))
def test_lost_packets_are_sent_again(seed: int) -> None:
    fabric = Managed("ring6")
    choose = random.Random(seed)
    send = fabric.management.send

    def lossy(datagram: Datagram, port: Port) -> None:
        if choose.random() > 0.02:
            send(datagram, port)

    fabric.management.send = lossy  # type: ignore[method-assign]
    fabric.start(Settings())
    fabric.run(60)

    assert problems(fabric) == []


def test_a_node_that_does_not_answer_is_left_out() -> None:
    fabric = Managed("star:hosts=3")
    silent = fabric.adapters[2]
    silent.mkey, silent.mkey_protect_bits = 5, 3

    manager = fabric.start(QUIET)
    fabric.run(5)

    assert manager.is_up
    assert manager.view.problems == ["sw0[3]: what is there does not answer"]
    assert [port.lid for port in fabric.adapters] == [1, 3, 0]


def test_each_adapter_has_its_lids_and_partitions() -> None:
    fabric = Managed("star:hosts=3")
    settings = Settings(
        lmc=2,
        partitions=(
            Partition("Default", 0x7FFF, ("node-0-0",), ("ALL",)),
            Partition("storage", 0x10, ("node-0-1",), ("node-0-2",)),
        ),
    )

    fabric.start(settings)
    fabric.run(1)

    assert [port.lid for port in fabric.adapters] == [4, 12, 16]  # the switch has 8
    assert {port.lmc for port in fabric.adapters} == {2}
    tables = [bytes(port.pkeys[:6]).ljust(6, b"\0").hex() for port in fabric.adapters]
    assert tables == ["ffff00000000", "7fff80100000", "7fff00100000"]
    enforced = PortInfo.unpack(fabric.subnet.nodes["sw0"].ports[2].info)
    assert enforced.partition_enforcement_inbound == 1
    assert bytes(fabric.subnet.nodes["sw0"].ports[2].pkeys[:4]).hex() == "7fff8010"


def test_without_lids_enough_for_the_lmc_each_port_has_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(routing, "LINEAR_FDB_CAP", 256)
    fabric = Managed("star:hosts=3")

    manager = fabric.start(Settings(lmc=7))
    fabric.run(1)

    reason = "more LIDs than the 255 that switches can route"
    assert manager.view.problems == [f"LMC 7: {reason}; LMC 0 instead"]
    assert manager.is_up
    assert sorted(port.lid for port in fabric.adapters) == [1, 3, 4]  # the switch has 2
    assert {port.lmc for port in fabric.adapters} == {0}
    assert problems(fabric) == []


def test_a_subnet_with_more_ports_than_lids_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routing, "LINEAR_FDB_CAP", 4)
    fabric = Managed("star:hosts=6")

    manager = fabric.start(QUIET)
    fabric.run(1)

    assert manager.view.problems == ["more LIDs than the 3 that switches can route"]
    assert manager.sweeps == 1


DUAL = """Switch 8 "sw0"
[1] "a"[1]
[2] "a"[2]
[3] "b"[1]

Ca 2 "a"

Ca 1 "b"
"""
"""An adapter with two ports at one switch."""


@pytest.mark.parametrize("host", [0, 2], ids=["on it", "on another"])
def test_both_ports_of_an_adapter_come_up_with_tables_of_their_own(
    tmp_path: Path, host: int
) -> None:
    (tmp_path / "dual.net").write_text(DUAL)
    fabric = Managed(str(tmp_path / "dual.net"))
    first, second, _ = fabric.adapters
    partitions = (
        Partition("Default", 0x7FFF),
        Partition("one", 0x10, (f"0x{first.guid:x}",)),
        Partition("two", 0x20, (f"0x{second.guid:x}",)),
    )

    manager = fabric.start(Settings(lanes=4, partitions=partitions), host)
    fabric.run(1)

    assert manager.view.problems == []
    assert [port.state for port in fabric.adapters] == [PortState.ACTIVE] * 3
    assert len({port.lid for port in fabric.adapters}) == 3
    tables = [bytes(port.pkeys[:6]).ljust(6, b"\0").hex() for port in fabric.adapters]
    assert tables == ["ffff80100000", "ffff80200000", "ffff00000000"]
    assert {port.sl2vl[0].hex() for port in fabric.adapters} == {"0123012301230123"}
    assert problems(fabric) == []


def test_service_levels_are_spread_over_lanes() -> None:
    fabric = Managed("star2")
    fabric.start(Settings(lanes=4))
    fabric.run(1)

    switch = fabric.subnet.nodes["sw0"]
    assert switch.ports[1].sl2vl[2].hex() == "0123012301230123"
    assert switch.ports[1].arbitration[1][:10].hex() == "00400140024003400000"


def test_tables_of_lanes_that_were_lost_are_written_by_the_next_sweep() -> None:
    fabric = Managed("star2")
    send = fabric.management.send

    def without_mappings(datagram: Datagram, port: Port) -> None:
        if datagram.mad[17] != 0x17:
            send(datagram, port)

    fabric.management.send = without_mappings  # type: ignore[method-assign]
    manager = fabric.start(Settings(lanes=4))
    fabric.run(5)
    view = manager.view.subnet.nodes.values()
    ports = [port for node in view for port in node.external_ports()]
    assert not any(port.sl2vl for port in ports), "nothing was acknowledged"

    fabric.management.send = send  # type: ignore[method-assign]
    manager._change(fabric.now)
    fabric.run(1)

    assert fabric.adapters[1].sl2vl[0].hex() == "0123012301230123"
    assert fabric.subnet.nodes["sw0"].ports[1].sl2vl[2].hex() == "0123012301230123"


def test_tables_of_lanes_are_written_again_to_a_port_that_came_up() -> None:
    fabric = Managed("star2")
    fabric.start(Settings(lanes=4))
    fabric.run(1)
    port = fabric.adapters[1]
    peer = port.peer
    assert peer is not None

    fabric.subnet.disconnect(port)
    port.sl2vl.clear()
    fabric.subnet.reconnect(port, peer)
    fabric.run(1)

    assert port.sl2vl[0].hex() == "0123012301230123"


def test_of_two_managers_the_one_with_the_higher_priority_is_master() -> None:
    fabric = Managed("ring6")
    low = fabric.start(Settings(priority=3))
    fabric.run(1)
    assert low.state is SMState.MASTER

    high = fabric.start(Settings(priority=9), host=5)
    fabric.run(2)

    assert (low.state, high.state) == (SMState.STANDBY, SMState.MASTER)
    assert {port.master_sm_lid for port in fabric.adapters} == {fabric.adapters[5].lid}


def test_sm_info_has_the_key_without_which_opensm_ignores_a_manager() -> None:
    fabric = Managed("star2")
    fabric.start(Settings(priority=5))
    fabric.run(1)
    program = fabric.program(fabric.adapters[1])

    header = MAD(mgmt_class=1, method=1, attribute_id=SMAttribute.SM_INFO).pack()
    answer = SMInfo.unpack(program.ask(bytearray(header.ljust(256, b"\0"))), 64)

    assert (answer.guid, answer.sm_key) == (fabric.adapters[0].guid, 1)
    assert (answer.priority, answer.sm_state) == (5, 3)


def test_of_two_managers_with_one_priority_the_smaller_guid_is_master() -> None:
    fabric = Managed("ring6")
    second = fabric.start(Settings(), host=5)
    first = fabric.start(Settings(), host=0)
    fabric.run(15)

    assert (first.state, second.state) == (SMState.MASTER, SMState.STANDBY)


@pytest.mark.parametrize("poll", [10, 1])
def test_a_standby_takes_over_from_a_master_that_ends(poll: int) -> None:
    """After five requests without a response."""
    fabric = Managed("ring6")
    master = fabric.start(Settings(priority=9))
    fabric.run(1)
    standby = fabric.start(Settings(priority=3, poll_interval=poll), host=5)
    fabric.run(1)
    assert standby.state.name == "STANDBY"

    assert fabric.adapters[0].lid == fabric.adapters[5].master_sm_lid
    master.stop()
    fabric.management.remove_manager(fabric.adapters[0])
    fabric.run(4 * poll)
    assert standby.state.name == "STANDBY"
    fabric.run(2 * poll + 5)

    assert standby.state is SMState.MASTER
    assert not fabric.adapters[0].capability_mask & IS_SM
    assert {port.master_sm_lid for port in fabric.adapters} == {fabric.adapters[5].lid}


def test_a_port_has_one_manager() -> None:
    fabric = Managed("star2")
    fabric.start(Settings())

    with pytest.raises(EncodeError, match="one without a subnet manager"):
        fabric.start(Settings())


@each_case(
    "wrong",
    [{"priority": 16}, {"lmc": 8}, {"lanes": 16}, {"mkey": 1 << 64}, {"mkey_protect": 4}],
)
def test_settings_are_checked(wrong: dict[str, int]) -> None:
    with pytest.raises(EncodeError):
        Settings(**wrong)


def test_ports_get_the_m_key_of_the_manager_and_keep_it() -> None:
    fabric = Managed("ring:switches=3,hosts=1")

    manager = fabric.start(Settings(mkey=0xFEDCBA9876543210, mkey_protect=2))
    fabric.run(1)

    protected = [*fabric.adapters, *(n.ports[0] for n in fabric.subnet.nodes.values() if n.lft)]
    assert len(protected) == 6
    assert {port.mkey for port in protected} == {0xFEDCBA9876543210}
    assert {port.mkey_protect_bits for port in protected} == {2}
    assert problems(fabric) == []
    before = manager.sweeps
    fabric.subnet.retrain(fabric.adapters[1])
    fabric.run(1)
    assert manager.sweeps == before + 1
    assert problems(fabric) == []


def test_a_manager_without_the_key_changes_nothing() -> None:
    fabric = Managed("star:hosts=3")
    fabric.start(Settings(mkey=5, mkey_protect=1))
    fabric.run(1)
    fabric.management.remove_manager(fabric.adapters[0])
    lids = [port.lid for port in fabric.adapters]

    second = fabric.start(Settings(mkey=6, lmc=1), host=1)
    fabric.run(5)

    assert [port.lid for port in fabric.adapters] == lids
    assert {port.lmc for port in fabric.adapters} == {0}
    assert "PortInfo not accepted" in second.view.problems[0]
    assert fabric.adapters[2].mkey_violations > 0


def test_routing_gives_others_a_turn() -> None:
    """Tables of a large subnet take seconds: questions of others come in between."""
    fabric = Managed("ring:switches=6,hosts=1")
    manager = fabric.start(QUIET)
    turns = 0
    while not manager.is_up:
        fabric.management.handle_timeout(fabric.now)
        turns += 1
        assert turns < 100

    assert turns > 6  # one for each switch as a destination
    assert problems(fabric) == []


def test_partitions_of_the_options_reach_ports_and_keep_data_apart() -> None:
    """node-0-0 and node-1-0 are full members of storage, node-2-0 is a limited one.

    The manager's own port is a full member of the default partition (opensm partition-config.txt).
    """
    fabric = Managed("ring:switches=4,hosts=1")
    control = Control(fabric.management, lambda host: {})
    given = ["storage=0x10:node-0-0,node-1-0,node-2-0=limited", "Default=0x7fff:ALL=limited"]
    control({"command": "manage", "host": "node-0-0", "partitions": given})
    fabric.run(1)

    keys = [bytes(port.pkeys[:4]).hex() for port in fabric.adapters]
    switch = fabric.subnet.nodes["sw2"].ports
    link = next(port for port in switch if port.peer is fabric.adapters[2])

    assert keys == ["ffff8010", "7fff8010", "7fff0010", "7fff0000"]
    assert bytes(link.pkeys[:4]).hex() == "7fff0010"
    assert (link.enforces_pkeys_inbound, link.enforces_pkeys_outbound) == (1, 1)

    def reaches(source: int, destination: int) -> bool:
        mad = MAD(mgmt_class=MgmtClass.PERF, class_version=1, method=Method.GET, attribute_id=1)
        program = fabric.program(fabric.adapters[source])
        lids = fabric.adapters[source].lid, fabric.adapters[destination].lid
        asked = Datagram(bytearray(mad.pack().ljust(256, b"\0")), *lids, 1, 1, pkey=0x7FFF)
        fabric.management.send(asked, program.port)
        fabric.run(1)
        return bool(program.received)

    assert reaches(2, 0)
    assert not reaches(2, 3)
    assert fabric.adapters[3].pkey_violations == 1
    assert link.counters.port_rcv_constraint_errors == 0


def test_a_member_of_a_partition_may_have_another_description() -> None:
    """A subnet manager reads descriptions and GUIDs; the names are those of the topology."""
    fabric = Managed("star2")
    fabric.adapters[0].node.description = "first host"
    fabric.adapters[1].node.description = "second host"
    control = Control(fabric.management, lambda host: {})
    given = ["storage=0x10:node-0,second host=limited"]

    control({"command": "manage", "host": "node-0", "partitions": given})
    fabric.run(1)

    assert [bytes(port.pkeys[:4]).hex() for port in fabric.adapters] == ["ffff8010", "ffff0010"]


def test_more_partitions_than_a_port_can_have_are_refused() -> None:
    fabric = Managed("star2")
    control = Control(fabric.management, lambda host: {})
    given = [f"p{number}={number}:node-1" for number in range(1, 33)]

    with pytest.raises(EncodeError, match=r"partitions of node-1\[1\]: 33 is not at most 32"):
        control({"command": "manage", "host": "node-0", "partitions": given})
    control({"command": "manage", "host": "node-0", "partitions": given[:31]})
    fabric.run(1)

    assert bytes(fabric.adapters[1].pkeys[60:64]).hex() == "801e801f"


def test_a_manager_with_a_lease_sweeps_when_somebody_tries_a_wrong_m_key() -> None:
    """Trap 256 tells it; its sweep has the key, so that the protection stays."""
    fabric = Managed("star2")
    manager = fabric.start(Settings(mkey=5, mkey_protect=2, mkey_lease=3))
    fabric.run(1)
    port = fabric.adapters[1]
    fabric.management.send(
        Datagram(packed(Ask((1, 2), SMAttribute.PORT_INFO), 9), 0xFFFF, 0xFFFF, 0, 0),
        fabric.adapters[0],
    )

    fabric.run(4)

    assert (port.mkey_lease_period, port.mkey_violations) == (3, 1)
    assert manager.sweeps == 2
    fabric.run(10)
    assert port.mkey_protect_bits == 2


def test_pkeys_that_an_earlier_manager_left_behind_are_cleared() -> None:
    """They would let the port into partitions that this manager does not know."""
    fabric = Managed("star2")
    port = fabric.adapters[1]
    peer = port.peer
    assert peer is not None
    for each in (port, peer):
        each.pkeys = bytearray(b"\xff\xff" + bytes(62) + b"\x80\x99" + bytes(62))

    manager = fabric.start(Settings())
    fabric.run(1)

    assert bytes(port.pkeys) == bytes(peer.pkeys) == b"\xff\xff" + bytes(126)
    before = manager._info().act_count
    manager._change(fabric.now)
    fabric.run(1)
    assert manager._info().act_count - before < before


def test_port_0_of_a_switch_is_a_member_of_partitions_of_all() -> None:
    """As with opensm 3.3.23, whose `ALL` are all ports with LIDs."""
    fabric = Managed("star2")
    switch = fabric.subnet.nodes["sw0"]
    partitions = (
        Partition("Default", 0x7FFF, (f"0x{fabric.adapters[0].guid:x}",)),
        Partition("web", 0x20, (f"0x{switch.guid:x}",), ("ALL",)),
    )

    fabric.start(Settings(partitions=partitions))
    fabric.run(1)

    assert switch.ports[0].pkeys[:6].hex() == "7fff80200000"
    assert fabric.adapters[1].pkeys[:6].hex() == "7fff00200000"
