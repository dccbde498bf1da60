"""Topologies as text: what is read, what is written again, and where an error is."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from each_case import each_case
from ibwire.base.errors import IbwireError
from ibwire.fabric.infiniband import netfile, read_topology
from ibwire.fabric.infiniband.netfile import TopologyError, parse_topology, write_topology
from ibwire.fabric.infiniband.shipped import topology_names, topology_path
from ibwire.fabric.infiniband.subnet import Subnet, rate_name
from ibwire_layers.attributes import SwitchInfo

PAIR = """\
switchguid=0x100
Switch 4 "sw0" # "a switch" base port 0 lid 0 lmc 0
[1] "a"[1] # "a" lid 0 1xHDR
[3] "b"[1]

caguid=0x200
Ca 1 "a"

caguid=0x300
Ca 1 "b"
[1](333) "sw0"[3] # lid 0 lmc 0 "sw0" lid 0 4xEDR
"""


def links(subnet: Subnet) -> set[tuple[str, int, str, int, str]]:
    return {(a.node.name, a.number, b.node.name, b.number, rate_name(a)) for a, b in subnet.links()}


def test_links_stand_at_one_end_or_at_both() -> None:
    subnet = parse_topology(PAIR)

    assert links(subnet) == {("sw0", 1, "a", 1, "1xHDR"), ("sw0", 3, "b", 1, "4xEDR")}
    assert subnet.nodes["sw0"].description == "a switch"
    assert subnet.nodes["a"].ports[1].guid == 0x201
    assert subnet.nodes["b"].ports[1].guid == 0x333


def test_a_rate_stands_at_one_end_or_at_both() -> None:
    text = 'Switch 3 "s"\n[1] "a"[1]\n[2] "b"[1] # 1xSDR\n[3] "c"[1] # 4xHDR\n\n'
    text += 'Ca 1 "a"\n[1] "s"[1] # 4xNDR\n\nCa 1 "b"\n[1] "s"[2]\n\n'
    text += 'Ca 1 "c"\n[1] "s"[3] # 4xHDR\n'

    assert {link[2:] for link in links(parse_topology(text))} == {
        ("a", 1, "4xNDR"), ("b", 1, "1xSDR"), ("c", 1, "4xHDR"),
    }  # fmt: skip


def test_port_0_of_a_switch_is_what_ibnetdiscover_says() -> None:
    text = 'Switch 2 "a" # "enhanced port 0" base port 0 lid 2 lmc 0\n\n'
    text += 'Switch 2 "b" # "b" enhanced port 0 lid 2 lmc 0\n'

    subnet = parse_topology(text)
    again = parse_topology(write_topology(subnet))

    for found in (subnet, again):
        infos = [SwitchInfo.unpack(node.info) for node in found.nodes.values()]
        assert [info.enhanced_port0 for info in infos] == [0, 1]


def test_ibnetdiscover_prints_a_topology() -> None:
    text = """\
#
# Topology file: generated on Sun Nov 22 12:36:00 2026
#
vendid=0x2c9
devid=0xd2f0
sysimgguid=0x2c90000100003
switchguid=0x2c90000100000(2c90000100000)
Switch\t8 "S-0002c90000100000"\t\t# "sw0" enhanced port 0 lid 2 lmc 0
[1]\t"H-0002c90300200010"[1](2c90300200011) \t\t# "node-0 HCA-1" lid 1 4xNDR

vendid=0x2c9
devid=0x1021
sysimgguid=0x2c90300200010
caguid=0x2c90300200010
Ca\t1 "H-0002c90300200010"\t\t# "node-0 HCA-1"
[1](2c90300200011) \t"S-0002c90000100000"[1]\t\t# lid 1 lmc 0 "sw0" lid 2 4xNDR
"""
    subnet = parse_topology(text)

    switch = subnet.nodes["S-0002c90000100000"]
    assert (switch.vendor_id, switch.device_id, switch.system_guid) == (
        0x2C9,
        0xD2F0,
        0x2C90000100003,
    )
    assert [rate_name(a) for a, _ in subnet.links()] == ["4xNDR"]


def test_a_byte_order_mark_and_lines_of_windows_do_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "f.net"
    path.write_bytes(b"\xef\xbb\xbf" + PAIR.replace("\n", "\r\n").encode())

    assert links(read_topology(path)) == links(parse_topology(PAIR))


def test_bytes_that_are_no_text_have_a_line_and_a_column(tmp_path: Path) -> None:
    path = tmp_path / "f.net"
    path.write_bytes('switchguid=0x1\nSwitch 2 "swé'.encode() + b'\xff"\n')

    with pytest.raises(TopologyError, match=rf"^{path}:2:14: not UTF-8 text$"):
        read_topology(path)


def test_a_file_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(netfile, "MAXIMUM_BYTES", 2 << 20)

    with pytest.raises(TopologyError, match="/dev/zero: longer than 2 MiB"):
        read_topology(Path("/dev/zero"))


@pytest.mark.parametrize("name", topology_names())
def test_what_is_written_is_read_again(name: str) -> None:
    subnet = read_topology(topology_path(name))

    again = parse_topology(write_topology(subnet))

    assert links(again) == links(subnet)
    assert [node.guid for node in again.nodes.values()] == [
        node.guid for node in subnet.nodes.values()
    ]


@each_case(
    ("text", "place", "words"),
    [
        ("", "", "no node"),
        ("hello", "net:1:1", "cannot read 'hello'"),
        ('Switch 0 "sw0"', "net:1:1", "0 ports"),
        ('Switch 300 "sw0"', "net:1:1", "300 ports"),
        ('[1] "a"[1]', "net:1:1", "before the line of its node"),
        ('Switch 4 "sw0"\n [9] "a"[1]', "net:2:2", "1 to 4"),
        ('Switch 4 "sw0"\n[1] a[1]', "net:2:1", "cannot read this port"),
        ('Switch 4 "sw0"\n  [1] "a"[1]', "net:2:7", "no node 'a'"),
        ('Switch 4 "sw0"\n[1] "nod-1"[1]\n\nCa 1 "node-1"', "net:2:5", "did you mean 'node-1'?"),
        ('Swich 4 "sw0"', "net:1:1", "did you mean Switch?"),
        (
            'Switch x "sw0"',
            "net:1:1",
            'expected Switch, its number of ports, and its name as "NAME"',
        ),
        ('Switch 4 "sw0', "net:1:1", 'its name as "NAME"'),
        ("swichguid=0x1", "net:1:1", "did you mean switchguid?"),
        ("devid=0xzz", "net:1:1", "expected devid=0x and up to 16 hexadecimal digits"),
        ("ibwarn: failed", "net:1:1", 'expected Switch 8 "NAME"'),
        ('Switch 4 "sw0"\n[1] "a"[1] # 5xEDR\n\nCa 1 "a"', "net:2", "5xEDR"),
        ('Switch 4 "sw0"\n[1] "a"[2]\n\nCa 1 "a"', "net:2", "1 to 1"),
        (
            'Switch 4 "s"\n[1] "a"[1] # 4xEDR\n\nCa 1 "a"\n [1] "s"[1] # 4xHDR',
            "net:5:15",
            "another rate than in line 2 for the same link",
        ),
        ('Switch 4 "sw0"\n[1] "sw0"[1]', "net:2:5", "which is the same port"),
        (
            'Switch 4 "sw0"\n[1] "a"[1]\n[2] "a"[1]\n\nCa 1 "a"',
            "net:3:5",
            "connected to sw0[1] already",
        ),
        ('Switch 4 "sw0"\n\nSwitch 4 "sw0"', "net:3", "a second node 'sw0'"),
        ('caguid=5\nCa 1 "a"\n\ncaguid=5\nCa 1 "b"', "net:5", "is that of 'a' in line 2"),
        (
            'caguid=5\nCa 1 "a"\n[1](7) "b"[1]\n\ncaguid=6\nCa 1 "b"',
            "net:6:1",
            "0x7 of b[1]' is not its own: it is that of a[1]",
        ),
        (f'Switch {"9" * 5000} "sw0"', "net:1", "cannot read"),
        (f'Switch 4 "sw0"\n[{"9" * 5000}] "a"[1]', "net:2", "cannot read this port"),
        (f'Switch 4 "sw0"\n[1] "a"[{"9" * 5000}]', "net:2", "cannot read this port"),
        (f'Switch 4 "sw0"\n[1] "a"[1] # {"9" * 5000}xEDR', "net:2", "a width 1x"),
        ('switchguid=0x1ffffffffffffffff\nSwitch 4 "sw0"', "net:1", "cannot read"),
        ('Ca 1 "a"\n[1](1ffffffffffffffff) "b"[1]', "net:2", "cannot read this port"),
        ('caguid=0xffffffffffffffff\nCa 1 "a"', "net:2:1", "at most 0xfffffffffffffffe"),
        ("caguid=5\n", "net:1", "GUIDs without a node"),
        ('Ca 1 "a"\nCa 1 "b"', "net:2:1", "an empty line ends 'a'"),
    ],
)
def test_an_error_has_its_place(text: str, place: str, words: str) -> None:
    with pytest.raises(TopologyError) as caught:
        parse_topology(text, "net")

    assert str(caught.value).startswith(place)
    assert words in str(caught.value)


@given(st.text() | st.lists(st.sampled_from([*PAIR.splitlines(), ""])).map("\n".join))
def test_no_text_does_harm(text: str) -> None:
    with contextlib.suppress(IbwireError):
        parse_topology(text)
