"""Routing engines: every pair is reached, by the paths that the engine promises."""

from __future__ import annotations

import gzip
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest

from ibwire.fabric.infiniband import read_topology
from ibwire.fabric.infiniband.credit_loops import find_credit_loop
from ibwire.fabric.infiniband.generated import generate
from ibwire.fabric.infiniband.netfile import parse_topology
from ibwire.fabric.infiniband.routing import (
    Engine,
    RoutingError,
    Tables,
    assign_lids,
    bring_up,
    routes,
)
from ibwire.fabric.infiniband.shipped import topology_path
from ibwire.fabric.infiniband.subnet import Node, Port, Subnet
from ibwire.fabric.infiniband.switch_graph import SwitchGraph

DATA = Path(__file__).parent / "data"
SMALL = ["star", "ring", "torus", "mesh:size=3x3x2", "fattree:ports=4,levels=3", "dragonfly"]
TREES = ["fattree:ports=8", "fattree:ports=4,levels=3", "fattree:ports=8,levels=3,pods=4"]


def path(tables: Tables, start: Port, lid: int) -> list[Port]:
    """Output ports of switches from an adapter to a LID; fails if it leads nowhere."""
    assert start.peer is not None
    passed: list[Port] = []
    node = start.peer.node
    while node.is_switch:
        out = tables[node][lid]
        assert 0 < out <= node.num_ports, (node.name, lid)
        passed.append(node.ports[out])
        peer = node.ports[out].peer
        assert peer is not None
        assert len(passed) < 20, "a loop"
        node = peer.node
        if not node.is_switch:
            assert peer.has_lid(lid)
    return passed


def least_hops(start: Node) -> dict[Node, int]:
    """Links from a switch to each other one: searched here in another way, level by level."""
    found, level, hops = {start: 0}, {start}, 0
    while level:
        hops += 1
        level = {
            port.peer.node
            for node in level
            for port in node.external_ports()
            if port.peer is not None and port.peer.node.is_switch
        } - set(found)
        found |= dict.fromkeys(level, hops)
    return found


@pytest.mark.parametrize("engine", [Engine.MINHOP, Engine.DOR])
@pytest.mark.parametrize("topology", SMALL)
def test_shortest_paths_are_shortest(topology: str, engine: Engine) -> None:
    subnet = generate(topology)
    assign_lids(subnet)

    tables = routes(subnet, engine)

    for start in subnet.host_ports():
        assert start.peer is not None
        hops = least_hops(start.peer.node)
        for end in subnet.host_ports():
            assert end.peer is not None
            if start is not end:
                assert len(path(tables, start, end.lid)) == hops[end.peer.node] + 1


@pytest.mark.parametrize("topology", [*SMALL, "ring6", "fattree32"])
def test_up_down_reaches_every_adapter_without_a_credit_loop(topology: str) -> None:
    shipped = topology in ("ring6", "fattree32")
    subnet = read_topology(topology_path(topology)) if shipped else generate(topology)
    assign_lids(subnet, lmc=1)

    tables = routes(subnet, Engine.UPDN)

    for start in subnet.host_ports():
        for end in subnet.host_ports():
            if start is not end:
                path(tables, start, end.lid)
                path(tables, start, end.lid + 1)
    assert find_credit_loop(subnet, tables) == []


@pytest.mark.parametrize("topology", [*SMALL, "fattree:ports=8"])
def test_up_down_reaches_every_switch_from_every_adapter(topology: str) -> None:
    """Tools ask switches by their LIDs: perfquery, ibqueryerrors, ibdiagnet."""
    subnet = generate(topology)
    assign_lids(subnet)

    tables = routes(subnet, Engine.UPDN)

    for start in subnet.host_ports():
        for switch in tables:
            assert start.peer is not None
            node = start.peer.node
            for _ in range(20):
                if node is switch:
                    break
                peer = node.ports[tables[node][switch.ports[0].lid]].peer
                assert peer is not None
                node = peer.node
            assert node is switch


@pytest.mark.parametrize("topology", TREES)
def test_shifts_have_every_link_of_a_full_fat_tree_to_themselves(topology: str) -> None:
    """Each host sends to the host a fixed number of places further; no link has two of them."""
    subnet = generate(topology)
    assign_lids(subnet)

    tables = routes(subnet, Engine.FTREE)

    ends = subnet.host_ports()
    for shift in range(1, len(ends), 1 if len(ends) < 40 else 7):
        used = Counter(
            port
            for place, start in enumerate(ends)
            for port in path(tables, start, ends[(place + shift) % len(ends)].lid)
        )
        assert max(used.values()) == 1, shift
    assert find_credit_loop(subnet, tables) == []


def test_dimension_order_has_credit_loops_on_rings_only() -> None:
    mesh, ring = generate("mesh:size=5x4"), generate("ring:switches=6")
    for subnet in (mesh, ring):
        bring_up(subnet, Engine.DOR)

    assert find_credit_loop(mesh) == []
    assert len(find_credit_loop(ring)) == 6


def test_shortest_paths_use_all_spines_evenly() -> None:
    subnet = generate("fattree:ports=8")
    assign_lids(subnet)

    tables = routes(subnet, Engine.MINHOP)

    lids = {end.lid: end.peer.node for end in subnet.host_ports() if end.peer is not None}
    for leaf in dict.fromkeys(lids.values()):
        used = Counter(tables[leaf][lid] for lid, node in lids.items() if node is not leaf)
        assert set(used.values()) == {7}  # 28 hosts elsewhere, 4 ports up


def test_several_lids_of_a_port_take_different_spines() -> None:
    subnet = generate("fattree:ports=8")
    assign_lids(subnet, lmc=2)

    tables = routes(subnet, Engine.MINHOP)

    start, end = subnet.host_ports()[0], subnet.host_ports()[-1]
    assert end.lid % 4 == 0
    assert len({path(tables, start, end.lid + each)[0] for each in range(4)}) == 4


def test_links_that_are_down_are_not_used() -> None:
    subnet = generate("ring")
    subnet.disconnect(subnet.nodes["sw0"].ports[1])
    assign_lids(subnet)

    tables = routes(subnet, Engine.MINHOP)

    lids = subnet.nodes["node-0-0"].ports[1], subnet.nodes["node-1-0"].ports[1].lid
    assert len(path(tables, *lids)) == 6


def test_roots_that_cannot_work_are_refused() -> None:
    subnet = generate("ring:switches=8")
    assign_lids(subnet)

    with pytest.raises(RoutingError, match="no path from sw"):
        routes(subnet, Engine.UPDN, roots=("sw0", "sw4"))
    with pytest.raises(RoutingError, match="root 'sw9': no such switch"):
        routes(subnet, Engine.UPDN, roots=("sw9",))


def test_what_is_no_tree_is_refused() -> None:
    subnet = generate("ring")
    assign_lids(subnet)

    with pytest.raises(RoutingError, match="sw0 and sw1 have a link and are on one level"):
        routes(subnet, Engine.FTREE)


BROKEN_TREE = """
Switch 4 "s1"
[1] "l1"[1]
[2] "l3"[1]

Switch 4 "s2"
[1] "l2"[1]
[2] "l3"[2]

Switch 4 "l1"
[3] "a"[1]

Switch 4 "l2"
[3] "b"[1]

Switch 4 "l3"
[3] "c"[1]

Ca 1 "a"

Ca 1 "b"

Ca 1 "c"
"""


def test_fat_tree_refuses_a_tree_in_which_it_has_no_path_between_two_adapters() -> None:
    """The only path from a to b is l1 s1 l3 s2 l2: up, down, up and down."""
    subnet = parse_topology(BROKEN_TREE)
    assign_lids(subnet)

    with pytest.raises(RoutingError, match=r"no path from l[12] to l[12] goes up and then down"):
        routes(subnet, Engine.FTREE)


def test_fat_tree_routes_around_a_failed_link() -> None:
    """The spine at this link has no path down to node-0-0, and nobody goes through it."""
    subnet = generate("fattree:ports=4")
    subnet.disconnect(subnet.nodes["leaf0"].ports[3])
    assign_lids(subnet)

    tables = routes(subnet, Engine.FTREE)

    ports = subnet.host_ports()
    for start in ports:
        for end in ports:
            assert start is end or len(path(tables, start, end.lid)) in (1, 3)


def test_up_down_searches_two_separate_trees_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not for each of the 400 pairs of leaves in different trees."""
    lines = []
    for part in "ab":
        for leaf in range(20):
            name = f"{part}{leaf}"
            lines.append(f'Switch 2 "{name}"\n[1] "{part}"[{leaf + 1}]\n[2] "h{name}"[1]\n')
            lines.append(f'Ca 1 "h{name}"\n')
        lines.append(f'Switch 20 "{part}"\n')
    subnet = parse_topology("\n".join(lines))
    assign_lids(subnet)
    searches = []
    distances = SwitchGraph.distances

    def counted(graph: SwitchGraph, start: Iterable[int]) -> list[int]:
        searches.append(start)
        return distances(graph, start)

    monkeypatch.setattr(SwitchGraph, "distances", counted)

    tables = routes(subnet, Engine.UPDN)

    assert len(searches) < 10
    assert len(path(tables, subnet.nodes["ha0"].ports[1], subnet.nodes["ha19"].ports[1].lid)) == 3


def test_lids_are_kept_and_duplicates_replaced() -> None:
    subnet = generate("star:hosts=3")
    ports = subnet.host_ports()
    ports[1].lid, ports[2].lid = 7, 7

    assign_lids(subnet)

    assert [port.lid for port in ports] == [2, 7, 3]
    assert subnet.nodes["sw0"].ports[0].lid == 1


def test_a_subnet_without_switches_is_routed() -> None:
    subnet = parse_topology('Ca 1 "a"\n[1] "b"[1]\n\nCa 1 "b"\n')

    bring_up(subnet, Engine.UPDN)

    assert [port.lid for port in subnet.host_ports()] == [1, 2]


@pytest.mark.parametrize(
    ("recording", "is_loop"),
    [("ring6-minhop", True), ("ring6-updn", False), ("fattree32-minhop", False)],
)
def test_credit_loops_are_found_where_ibdmchk_found_them(recording: str, is_loop: bool) -> None:
    """Tables of opensm 3.3.23, and the verdict of ibdmchk 1.5.7 on them."""
    subnet, tables = recorded(recording)

    assert bool(find_credit_loop(subnet, tables)) == is_loop


def recorded(recording: str) -> tuple[Subnet, Tables]:
    """A subnet with the LIDs and tables of opensm, as ibdiagnet wrote them."""
    subnet = read_topology(topology_path(recording.split("-")[0]))
    by_guid = {node.guid: node for node in subnet.nodes.values()}
    tables: Tables = {}
    for line in gzip.decompress((DATA / f"{recording}.fdbs.gz").read_bytes()).decode().splitlines():
        if found := re.search(r"Switch 0x(\w+)", line):
            table = tables[by_guid[int(found[1], 16)]] = bytearray(b"\xff" * 0x100)
        elif found := re.match(r"0x(\w+) : (\d+)", line):
            table[int(found[1], 16)] = int(found[2])
    for node, table in tables.items():
        for lid, out in enumerate(table):
            peer = node.ports[out].peer if out < 0xFF else None
            if out == 0:
                node.ports[0].lid = lid
            elif peer is not None and not peer.node.is_switch:
                peer.lid = lid
    assert len({port.lid for port in subnet.host_ports()} - {0}) == len(subnet.host_ports())
    return subnet, tables
