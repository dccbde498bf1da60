"""Topologies by a key: sizes known from their formulas, and errors that say what is possible."""

from __future__ import annotations

import pytest

from each_case import each_case
from ibwire.base.errors import EncodeError
from ibwire.fabric.infiniband.generated import generate, topology_keys
from ibwire.fabric.infiniband.netfile import parse_topology, write_topology
from ibwire.fabric.infiniband.subnet import rate_name


@each_case(
    ("key", "hosts", "switches", "links"),
    [
        ("star:hosts=3", 3, 1, 3),
        ("ring:switches=5,hosts=2", 10, 5, 15),
        ("torus:size=4x3,hosts=1", 12, 12, 24 + 12),
        ("torus:size=2x2x2", 8, 8, 12 + 8),
        ("mesh:size=4x3,hosts=2", 24, 12, 9 + 8 + 24),
        ("fattree:ports=36,leaves=18", 324, 27, 2 * 324),
        ("fattree:ports=8", 32, 12, 64),
        ("fattree:ports=8,levels=3", 128, 80, 3 * 128),
        ("fattree:ports=8,levels=3,pods=4", 64, 40, 3 * 64),
        ("dragonfly:groups=5", 80, 40, 5 * (16 + 16) + 10),
        ("dragonfly:groups=3,spines=2,leaves=2,hosts=1,links=4", 6, 12, 3 * (4 + 2) + 12),
    ],
)
def test_sizes(key: str, hosts: int, switches: int, links: int) -> None:
    subnet = generate(key)

    nodes = subnet.nodes.values()
    assert sum(not node.is_switch for node in nodes) == hosts
    assert sum(node.is_switch for node in nodes) == switches
    assert sum(1 for _ in subnet.links()) == links


def test_every_key_has_defaults_and_can_be_written_as_a_net_file() -> None:
    for key in topology_keys():
        subnet = generate(key)

        again = parse_topology(write_topology(subnet))

        assert [str(link) for link in again.links()] == [str(link) for link in subnet.links()]


def test_links_have_the_rate_that_is_given() -> None:
    subnet = generate("star:rate=2xHDR,hosts=1")

    assert rate_name(subnet.nodes["sw0"].ports[1]) == "2xHDR"


@each_case("leaves", [1, 2, 3, 4, 7, 8])
def test_the_leaves_that_the_message_names_are_possible(leaves: int) -> None:
    """Four links up of each leaf: all to one spine, two to each of two, one to each of four."""
    subnet = generate(f"fattree:ports=8,leaves={leaves}")

    spines = [node for node in subnet.nodes.values() if node.name.startswith("spine")]
    assert len(spines) == (leaves + 1) // 2


@each_case(
    ("key", "said"),
    [
        ("circle", "star, ring, torus"),
        ("ring:size=4", "switches=, hosts=, rate="),
        ("ring:switches", "switches=, hosts=, rate="),
        ("ring:switches=0", "a number from 1 to 100,000"),
        ("ring:switches=x", "a number from 1 to 100,000"),
        ("torus:size=4x", "like 4x4x2"),
        ("torus:size=1000x1000", "at most 100,000"),
        ("fattree:ports=7", "an even number"),
        ("fattree:levels=4", "2 or 3"),
        ("fattree:ports=8,levels=3,pods=3", "divides 8"),
        ("fattree:ports=8,leaves=5", "leaves: 5 is not one of 1, 2, 3, 4, 7, 8: each leaf has"),
        ("fattree:ports=8,leaves=9", "one of 1, 2, 3, 4, 7, 8"),
        ("fattree:levels=3,leaves=4", "pods= makes a part of such a tree"),
        ("fattree:levels=2,pods=4", "leaves= makes a part of such a tree"),
        ("fattree:ports=256,leaves=2", "1 to 254"),
        ("star:rate=3xEDR", "1x, 2x, 4x"),
        ("star:hosts=300", "1 to 254"),
        ("star:hosts=1000000", "hosts: '1000000' is not a number from 1 to 100,000"),
        ("ring:switches=" + 5000 * "9", "a number from 1 to 100,000"),
        ("fattree:ports=0", "ports: 0 is not an even number from 2 on"),
        ("torus:size=1001x1", "each 1 to 1,000"),
        ("star:hosts=4,hosts=8", "value of star: 'hosts=8' is not the only hosts="),
    ],
)
def test_errors(key: str, said: str) -> None:
    with pytest.raises(EncodeError, match=said):
        generate(key)
