"""Topologies as TOML: nodes and links, another topology with changes, and where errors are."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ibwire.base.errors import ScriptError
from ibwire.fabric.infiniband.shipped import find_topology
from ibwire.fabric.infiniband.subnet import Subnet, rate_name

PAIR = """\
rate = "4xHDR"

[[link]]
between = ["sw0[1]", "a[1]"]

[[link]]
between = ["b[2]", "sw0[3]"]
rate = "1xEDR"

[[switch]]
name = "sw0"
ports = 4
guid = 0x100
description = "a switch"

[[host]]
name = "a"

[[host]]
name = "b"
ports = 2
guid = "0xfedcba9876543210"
"""


def read(folder: Path, text: str) -> Subnet:
    path = folder / "t.toml"
    path.write_text(text)
    return find_topology(str(path))


def links(subnet: Subnet) -> set[tuple[str, str]]:
    return {
        (f"{a.node.name}[{a.number}] {b.node.name}[{b.number}]", rate_name(a))
        for a, b in subnet.links()
    }


def test_nodes_and_links(tmp_path: Path) -> None:
    subnet = read(tmp_path, PAIR)

    assert links(subnet) == {("sw0[1] a[1]", "4xHDR"), ("sw0[3] b[2]", "1xEDR")}
    switch, a, b = subnet.nodes.values()
    assert (switch.is_switch, switch.num_ports, switch.guid) == (True, 4, 0x100)
    assert switch.description == "a switch"
    assert (a.is_switch, a.num_ports) == (False, 1)
    assert b.guid == 0xFEDCBA9876543210
    assert len({port.guid for node in (a, b) for port in node.external_ports()}) == 3


def test_another_topology_with_changes(tmp_path: Path) -> None:
    text = """
        topology = "star:hosts=4"
        without = ["sw0[1]", "node-0-2"]
        [[host]]
        name = "late"
        [[link]]
        between = ["late[1]", "sw0[3]"]
        [[link]]
        between = ["sw0[2]", "node-0-1[1]"]
        rate = "1xSDR"
    """
    subnet = read(tmp_path, text)

    assert links(subnet) == {
        ("sw0[2] node-0-1[1]", "1xSDR"),
        ("sw0[3] late[1]", "4xEDR"),
        ("sw0[4] node-0-3[1]", "4xEDR"),
    }
    assert set(subnet.nodes) == {"sw0", "node-0-0", "node-0-1", "node-0-3", "late"}
    assert not subnet.nodes["sw0"].ports[1].is_up
    # As if the links had been so from the beginning.
    downed = {port.counters.link_downed_counter for port in subnet.nodes["sw0"].ports}
    assert downed == {0}


def test_a_link_keeps_its_rate_where_none_is_given(tmp_path: Path) -> None:
    text = """
        topology = "star:hosts=2,rate=4xNDR"
        [[link]]
        between = ["sw0[1]", "node-0-0[1]"]
    """
    assert {rate for _, rate in links(read(tmp_path, text))} == {"4xNDR"}


def test_a_net_file_is_found_beside_the_file(tmp_path: Path) -> None:
    (tmp_path / "base.net").write_text('Switch 4 "sw"\n[1] "h"[1]\n\nCa 1 "h"\n')

    subnet = read(tmp_path, 'topology = "base.net"\n')

    assert links(subnet) == {("sw[1] h[1]", "4xEDR")}


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        ("", "", "no node"),
        ("rate = 5", ":1:8", "5 is not a name"),
        ('rate = "9xEDR"', ":1:8", "a width 1x"),
        ('topology = "circle.net"', ":1:12", "No such file"),
        ('topology = "star3"', ":1:12", "star3: No such file or directory; did you mean star2?"),
        (r'topology = "a\u0000b"', ":1:12", "is not a name"),
        ('topology = "star:hosts=x"', ":1:12", "a number from 1 to 100,000"),
        ('topology = "t.toml"', ":1:12", "is a TOML file"),
        ('topology = "star"\nwithout = ["sw0[1]", "sw0[1]"]', ":2:22", "has no link"),
        (
            'topology = "star"\nwithout = ["sw9"]',
            ":2:12",
            "'sw9' is not a node of this topology; did you mean sw0?",
        ),
        ('topology = "star"\nwithout = ["sw9[1]"]', ":2:12", "'sw9[1]' is not NODE[PORT]"),
        ('topology = "star"\nwithout = [1]', ":2:11", "is not a list of names"),
        ('[[switch]]\nname = "a"\n[[host]]\nname = "a"', ":4:8", "a name of its own"),
        ("[[switch]]\nports = 4", ":1:1", "a node needs a name"),
        ('[[switch]]\nname = "a"\nports = 255', ":3:9", "not from 1 to 254"),
        ('[[switch]]\nname = "a"\nguid = "5"', ":3:8", "is not an integer"),
        (
            '[[switch]]\nname = "a"\nguid = 5\n[[switch]]\nname = "b"\nguid = 5',
            ":4:1",
            "0x5 of b' is not its own: it is that of a",
        ),
        (
            '[[host]]\nname = "a"\nguid = "0xffffffffffffffff"',
            ":1:1",
            "is not a number of at most 0xfffffffffffffffe: its ports have the next ones",
        ),
        ('[[host]]\nname = "a"\nguids = 5', ":3:1", "unknown; did you mean guid?"),
        ('[[host]]\nname = "a"\n[[link]]\nbetween = ["a[1]"]', ":3:1", "a link needs between"),
        ('[[host]]\nname = "a"\n[[link]]\nbetween = ["a[1]", "a[1]"]', ":4:11", "twice"),
        ('[[host]]\nname = "a"\n[[link]]\nbetween = ["a[1]", "a[2]"]', ":4:20", "1 to 1"),
        ('[[host]]\nname = "a"\n[[link]]\nbetween = ["a[1]", "b[1]"]', ":4:20", "NODE[PORT]"),
        (
            'topology = "star"\n[[link]]\nbetween = ["sw0[1]", "node-0-1[1]"]',
            ":3:12",
            "is connected to node-0-0[1]",
        ),
        ("[[link]", ":1:", ""),
        ("a = " + "[" * 3000, "", ""),
    ],
)
def test_an_error_has_its_place(text: str, place: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(ScriptError) as caught:
        read(tmp_path, text)

    assert f"t.toml{place}" in str(caught.value)
    assert words in str(caught.value)


def test_a_file_that_is_not_there_is_an_error_of_the_system() -> None:
    with pytest.raises(OSError, match="No such file"):
        find_topology("nowhere.toml")


_WORDS = (
    "[[switch]]", "[[host]]", "[[link]]", "[link]", 'name = "a"', 'name = "b"', "ports = 3",
    "guid = 7", 'guid = "0xffffffffffffffff"', "guid = -1", 'between = ["a[1]", "b[1]"]',
    'between = ["a[1]", "a[2]"]', "between = [[]]", 'rate = "12xXDR"', "rate = {}",
    'topology = "star:hosts=2"', 'topology = "ring:switches=999999"', 'without = ["sw0[1]"]',
    'without = ["sw0", "sw0"]', "without = 1", "ports = 1e9", "description = 5", "x.y = 1",
)  # fmt: skip


@given(st.lists(st.sampled_from(_WORDS), max_size=12))
def test_no_text_does_harm(lines: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder, contextlib.suppress(ScriptError):
        subnet = read(Path(folder), "\n".join(lines))
        guids = [node.guid for node in subnet.nodes.values()]
        assert len(set(guids)) == len(guids) > 0
