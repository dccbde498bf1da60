"""Networks of hosts and switches: their sizes, their ways, and what is refused."""

from typing import Any

import pytest

from each_case import each_case
from ibwire.base.errors import EncodeError
from ibwire.fabric.topology import (
    Link,
    Topology,
    back_to_back,
    dumbbell,
    fat_tree,
    leaf_spine,
    parking_lot,
    rail_optimised,
    star,
)


def ways(topology: Topology, source: str, target: str) -> int:
    """How many shortest ways lead from one host to another."""
    tables = topology.next_hops()

    def count(node: str) -> int:
        if node == target:
            return 1
        neighbours = topology.ports(node)
        return sum(count(neighbours[port][1]) for port in tables[node][target])

    return count(topology.ports(source)[0][1])


def test_star() -> None:
    topology = star(4)

    assert topology.hosts == ("h0", "h1", "h2", "h3")
    assert topology.next_hops() == {"s0": {f"h{n}": [n] for n in range(4)}}


def test_dumbbell() -> None:
    topology = dumbbell(2, 1, middle_bps=40)

    assert len(topology.links) == 4
    assert topology.next_hops()["s0"] == {"l0": [0], "l1": [1], "r0": [2]}
    assert topology.links[-1].rate_bps == 40


def test_back_to_back_has_no_switch() -> None:
    assert back_to_back().switches == ()
    assert back_to_back().hosts == ("h0", "h1")


def test_parking_lot_is_a_chain_with_two_hosts_at_each_switch() -> None:
    topology = parking_lot(3, middle_bps=40)

    assert topology.hosts == ("a0", "b0", "a1", "b1", "a2", "b2")
    assert [link.rate_bps for link in topology.links[-2:]] == [40, 40]
    assert topology.next_hops()["s1"]["b2"] == [3]


def test_rails_meet_in_the_spines() -> None:
    topology = rail_optimised(3, 2, spines=4)

    assert topology.hosts == ("n0.0", "n0.1", "n1.0", "n1.1", "n2.0", "n2.1")
    assert ways(topology, "n0.0", "n2.0") == 1
    assert ways(topology, "n0.0", "n2.1") == 4


def test_network_in_two_parts_is_refused() -> None:
    with pytest.raises(EncodeError, match="no links lead there"):
        Topology(["a", "b"], ["s", "t"], [Link("a", "s", 1), Link("b", "t", 1)])


def test_rails_without_spines_reach_only_themselves() -> None:
    topology = rail_optimised(2, 2)

    assert topology.parts == {"n0.0": "n0.0", "n1.0": "n0.0", "n0.1": "n0.1", "n1.1": "n0.1"}
    assert topology.next_hops() == {
        "rail0": {"n0.0": [0], "n1.0": [1]},
        "rail1": {"n0.1": [0], "n1.1": [1]},
    }


def test_static_route_replaces_the_shortest_ways() -> None:
    topology = leaf_spine(2, 2, 1)

    assert topology.next_hops()["leaf0"]["h1"] == [1, 2]
    assert topology.routed({"leaf0": {"h1": ["spine1"]}})["leaf0"]["h1"] == [2]


@pytest.mark.parametrize(
    ("routes", "message"),
    [
        (
            {"spine0": {"h1": ["leaf0"]}},
            "'leaf0 > spine0 > leaf0' is not a way to h1 without a circle",
        ),
        ({"leaf0": {"h1": ["leaf1"]}}, "'leaf1' is not a neighbour of leaf0"),
        ({"leaf0": {"h1": ["h0"]}}, "'leaf0 > h0' is not a way to h1"),
    ],
)
def test_static_route_that_does_not_arrive_is_refused(routes: Any, message: str) -> None:
    with pytest.raises(EncodeError, match=message):
        leaf_spine(2, 2, 1).routed(routes)


def test_leaf_spine_has_a_way_over_each_spine() -> None:
    topology = leaf_spine(3, 4, 2)

    assert len(topology.hosts) == 6
    assert len(topology.links) == 3 * 2 + 3 * 4
    assert ways(topology, "h0", "h1") == 1
    assert ways(topology, "h0", "h2") == 4


@pytest.mark.parametrize("k", [2, 4, 6])
def test_fat_tree(k: int) -> None:
    topology = fat_tree(k)

    # Al-Fares et al., SIGCOMM 2008: k*k*k/4 hosts, 5*k*k/4 switches, (k/2)^2 ways between pods.
    assert len(topology.hosts) == k**3 // 4
    assert len(topology.switches) == 5 * k * k // 4
    assert all(len(topology.ports(switch)) == k for switch in topology.switches)
    assert ways(topology, "h0", topology.hosts[-1]) == (k // 2) ** 2


def test_link_that_is_down_is_not_on_any_way() -> None:
    topology = leaf_spine(2, 2, 1)
    down = topology.links[2]
    assert (down.a, down.b) == ("leaf0", "spine0")

    tables = topology.next_hops(without=[down])

    assert tables["leaf0"]["h1"] == [2]
    # spine0 reaches h0 over leaf1 and spine1.
    assert tables["spine0"]["h0"] == [1]


def test_host_behind_a_link_that_is_down_has_no_way() -> None:
    topology = star(2)

    assert topology.next_hops(without=[topology.links[0]]) == {"s0": {"h1": [1]}}


@each_case(
    ("hosts", "switches", "links"),
    [
        (["a", "b"], ["s"], [Link("a", "s"), Link("b", "x")]),
        (["a", "b"], ["s"], [Link("a", "s"), Link("b", "s"), Link("b", "s")]),
        (["a", "b"], ["s"], [Link("a", "s")]),
        (["a", "b"], ["s", "t"], [Link("a", "s"), Link("b", "t")]),
        (["a", "b"], ["s"], [Link("a", "s"), Link("b", "s"), Link("s", "s")]),
        (["a", "a"], ["s"], [Link("a", "s")]),
        (["a"], ["s"], [Link("a", "s")]),
    ],
)
def test_impossible_networks_are_refused(hosts: Any, switches: Any, links: Any) -> None:
    with pytest.raises(EncodeError):
        Topology(hosts, switches, links)


@pytest.mark.parametrize(
    "make", [lambda: star(0), lambda: fat_tree(3), lambda: leaf_spine(0, 1, 1)]
)
def test_impossible_forms_are_refused(make: Any) -> None:
    with pytest.raises(EncodeError):
        make()
