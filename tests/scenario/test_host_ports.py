"""Hosts with several ports: their addresses, the port of a flow, what they carry together."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from each_case import each_case
from examples import sampled
from ibwire.base.errors import ScriptError
from ibwire.base.units import GBPS
from ibwire.capture import open_capture
from ibwire.cli import main
from ibwire.scenario import Outcome, Scenario, run
from ibwire.scenario.model import read_scenario

TWO_SWITCHES = """
[[node]]
name = "a"
ports = 2
address = ["10.1.0.1", "10.2.0.1"]
[[node]]
name = "b"
ports = 2
address = ["10.1.0.2", "10.2.0.2"]
[[switch]]
name = "red"
[[switch]]
name = "blue"
[[wire]]
between = ["a.0", "red"]
[[wire]]
between = ["b.0", "red"]
[[wire]]
between = ["a.1", "blue"]
[[wire]]
between = ["b.1", "blue"]
"""
FORM = "[topology]\nkind = 'star'\nhosts = 3\nports = 2\n"
LEAVES = "[topology]\nkind = 'leaf-spine'\nleaves = 2\nspines = 1\nhosts = 2\nports = 2\n"


def read(text: str) -> Scenario:
    return read_scenario(text.encode(), "x.toml")


def flow(source: str, target: str, more: str = "") -> str:
    return f"[[flow]]\nfrom = {source}\nto = {target}\nsize = '200 kB'\n{more}\n"


def pairs(text: str) -> list[tuple[str, str]]:
    return [each.between for each in read(text).connections]


def outcome_of(text: str) -> Outcome:
    found = run(read(text))
    assert found.passed
    return found


def test_each_port_is_a_node_with_its_own_address() -> None:
    scenario = read(TWO_SWITCHES + flow("'a'", "'b'"))

    assert [(node.name, node.address, node.host) for node in scenario.nodes] == [
        ("a.0", "10.1.0.1", "a"),
        ("a.1", "10.2.0.1", "a"),
        ("b.0", "10.1.0.2", "b"),
        ("b.1", "10.2.0.2", "b"),
    ]


def test_more_ports_than_the_upper_byte_of_a_queue_pair_number_can_count() -> None:
    """A queue pair number has 24 bits: 255 numbers of the form 0xNN0001, then they begin again."""
    many = FORM.replace("hosts = 3", "hosts = 128")

    found = outcome_of(many + flow("'h126'", "'h127'"))

    numbers = [(qp.qpn, qp.peer_qpn) for qp in found.qps[::2]]
    assert numbers == [(0xFD0001, 0xFF0001), (0xFE0001, 0x010001)]


def test_ports_without_addresses_have_those_that_follow() -> None:
    text = "[[node]]\nname='a'\nports=2\n[[node]]\nname='b'\n[[wire]]\nbetween=['a.1', 'b']\n"
    scenario = read(text + "[[flow]]\nfrom = 'a.1'\nto = 'b'\n")

    assert [(node.name, node.address) for node in scenario.nodes] == [
        ("a.0", "10.0.0.1"),
        ("a.1", "10.0.0.2"),
        ("b", "10.0.0.3"),
    ]


@each_case(
    ("source", "target", "expected"),
    [
        ("'h0'", "'h1'", [("h0.0", "h1.0"), ("h0.1", "h1.1")]),
        ("'h0.1'", "'h1.0'", [("h0.1", "h1.0")]),
        ("'h0.1'", "'h1'", [("h0.1", "h1.1")]),
        ("'h1'", "'h0.1'", [("h1.1", "h0.1")]),
        ("'h1.*'", "'h0'", [("h1.0", "h0.0"), ("h1.1", "h0.1")]),
        ("'h0'", "'h0.1'", []),
        ("'h?'", "'h0'", [("h1.0", "h0.0"), ("h1.1", "h0.1"), ("h2.0", "h0.0"), ("h2.1", "h0.1")]),
    ],
)
def test_flows_name_ports_or_hosts(
    source: str, target: str, expected: list[tuple[str, str]]
) -> None:
    text = FORM + flow(source, target)
    if not expected:
        with pytest.raises(ScriptError, match="h0 would send to itself only"):
            read(text)
        return

    assert pairs(text) == expected


def test_hosts_with_one_port_use_those_of_the_other_in_turn() -> None:
    nodes = "".join(f"[[node]]\nname = '{name}'\n" for name in ("a", "b", "c"))
    wires = "".join(
        f"[[wire]]\nbetween = ['{name}', 's']\n" for name in ("a", "b", "c", "store.0", "store.1")
    )
    text = f"{nodes}[[node]]\nname = 'store'\nports = 2\n[[switch]]\nname = 's'\n{wires}"

    assert pairs(text + flow("['a', 'b', 'c']", "'store'")) == [
        ("a", "store.0"),
        ("b", "store.1"),
        ("c", "store.0"),
    ]
    assert pairs(text + flow("'store'", "['a', 'b']")) == [("store.0", "a"), ("store.1", "b")]


@pytest.mark.parametrize("network", [TWO_SWITCHES, FORM.replace("3", "2")])
def test_two_ports_carry_twice_what_one_does(network: str) -> None:
    names = ("a", "b") if network is TWO_SWITCHES else ("h0", "h1")
    one = outcome_of(network + flow(f"'{names[0]}.0'", f"'{names[1]}.0'")).metrics["goodput"]

    both = outcome_of(network + flow(f"'{names[0]}'", f"'{names[1]}'")).metrics["goodput"]

    assert 60 * GBPS < one < 100 * GBPS
    assert both == pytest.approx(2 * one, rel=1e-6)


def test_two_ports_without_a_switch() -> None:
    text = (
        "[[node]]\nname='a'\nports=2\n[[node]]\nname='b'\nports=2\n"
        "[[wire]]\nbetween=['a.0', 'b.0']\n[[wire]]\nbetween=['a.1', 'b.1']\n"
    )

    assert outcome_of(text + flow("'a'", "'b'")).metrics["goodput"] > 150 * GBPS


def test_a_port_that_fails_leaves_the_other_alone() -> None:
    text = (
        TWO_SWITCHES
        + "[[outage]]\nbetween = ['a.1', 'blue']\nat = '2us'\nuntil = '100us'\n"
        + flow("'a'", "'b'", "timeout = 6\n")
    )
    found = outcome_of(text)

    by_port = {qp.node: qp.metrics for qp in found.qps if qp.tally is not None}
    assert by_port["a.0"]["timeouts"] == by_port["a.0"]["retransmitted"] == 0
    assert by_port["a.1"]["retransmitted"] > 0
    assert by_port["a.0"]["verified_bytes"] == by_port["a.1"]["verified_bytes"] == 200_000


@pytest.mark.parametrize("host", sampled(["a", "b"], 2))
def test_messages_on_a_port_that_stays_down_fail(host: str) -> None:
    outage = f"[[outage]]\nbetween = ['{host}.1', 'blue']\nat = '2us'\n"
    found = run(read(TWO_SWITCHES + outage + flow("'a'", "'b'")))

    assert (found.metrics["success"], found.metrics["failed"]) == (1, 1)
    assert found.metrics["timeouts"] == 8  # retry_cnt is 7
    assert not found.metrics["unfinished"]
    assert not found.standstill


def test_a_line_with_link_level_retry_keeps_what_it_has_and_is_named() -> None:
    outage = "[[outage]]\nbetween = ['a.1', 'blue']\nat = '2us'\n"
    line = 'between = ["a.1", "blue"]\n'
    text = TWO_SWITCHES.replace(line, line + "llr = { while_down = 'block' }\n")
    found = run(read(text + outage + flow("'a'", "'b'")))

    assert found.metrics["unfinished"] == 1
    assert found.standstill == ["a.1 to blue: the line is down"]


def test_tcp_over_each_port() -> None:
    text = TWO_SWITCHES + flow("'a'", "'b'", "transport = 'tcp'")
    found = run(read(text))

    assert [(each.source, each.target) for each in read(text).tcp] == [
        ("a.0", "b.0"),
        ("a.1", "b.1"),
    ]
    assert not found.unfinished_tcp


def test_list_of_flows_is_between_ports() -> None:
    text = (
        FORM + "[[flow]]\nsizes = 1000\nload = 0.5\ncount = 40\nfrom = 'h0'\nto = ['h1', 'h2.1']\n"
    )
    found = {each.between for each in read(text).connections}

    assert {a for a, _ in found} == {"h0.0", "h0.1"}
    assert {b for _, b in found} == {"h1.0", "h1.1", "h2.1"}


def test_ports_of_a_multihomed_host_are_at_different_leaves() -> None:
    scenario = read(LEAVES + "multihomed = true\n" + flow("'h1'", "'h3'"))

    assert [wire.between for wire in scenario.wires[:8]] == [
        ("h0.0", "leaf0"),
        ("h0.1", "leaf1"),
        ("h1.0", "leaf0"),
        ("h1.1", "leaf1"),
        ("h2.0", "leaf0"),
        ("h2.1", "leaf1"),
        ("h3.0", "leaf0"),
        ("h3.1", "leaf1"),
    ]
    assert [wire.between for wire in read(LEAVES + flow("'h1'", "'h3'")).wires[:2]] == [
        ("h0.0", "leaf0"),
        ("h0.1", "leaf0"),
    ]


def test_server_of_rails_is_a_host_with_several_ports() -> None:
    text = "[topology]\nkind='rail-optimised'\nservers=3\nrails=2\nspines=1\n"

    assert pairs(text + flow("'n0'", "'n2'")) == [("n0.0", "n2.0"), ("n0.1", "n2.1")]
    assert len(pairs(text + flow("'n*'", "'n*'"))) == 30


def test_rails_without_spines_carry_flows_of_their_own() -> None:
    text = "[topology]\nkind='rail-optimised'\nservers=2\nrails=2\n"
    result = run(read(text + flow("'n0'", "'n1'")))

    assert pairs(text + flow("'n0'", "'n1'")) == [("n0.0", "n1.0"), ("n0.1", "n1.1")]
    assert result.metrics["verified"] == 2
    with pytest.raises(ScriptError, match=r"no wires lead from n0\.0 to n1\.1"):
        read(text + flow("'n0.0'", "'n1.1'"))


DRAWN = "[[flow]]\nsizes='hadoop'\nload=0.3\ncount=40\nduration='1ms'\n"


def test_drawn_flows_stay_on_their_rails() -> None:
    text = "[topology]\nkind='rail-optimised'\nservers=4\nrails=2\n"

    found = pairs(text + DRAWN)

    assert len(found) == 40
    assert {(a[-1], b[-1]) for a, b in found} == {("0", "0"), ("1", "1")}
    assert run(read(text + DRAWN)).metrics["unfinished"] == 0


@pytest.mark.parametrize("ends", ["", "from='n*'\nto='n[12].*'\n", "from='n0'\nto='n*'\n"])
def test_drawn_flows_do_not_go_to_another_port_of_their_host(ends: str) -> None:
    text = "[topology]\nkind='rail-optimised'\nservers=3\nrails=2\nspines=1\n"

    found = pairs(text + DRAWN + ends)

    assert len(found) == 40
    assert all(a.split(".")[0] != b.split(".")[0] for a, b in found)
    assert {b[-1] for _, b in found} == {"0", "1"}


def test_drawn_flows_between_rails_without_spines_are_refused() -> None:
    text = "[topology]\nkind='rail-optimised'\nservers=3\nrails=2\n" + DRAWN

    with pytest.raises(ScriptError, match=r"flow\[0\].to: no wires lead from n0.0 to n1.1"):
        read(text + "from='n0.0'\nto='n1.1'\n")


def test_drawn_flows_of_a_host_that_reaches_nobody_are_refused() -> None:
    """The other host would take its place, and nobody would notice."""
    text = "[topology]\nkind='rail-optimised'\nservers=3\nrails=2\n" + DRAWN

    assert {a for a, _ in pairs(text + "from=['n0', 'n1']\nto='n2.0'\n")} == {"n0.0", "n1.0"}
    with pytest.raises(ScriptError, match=r"flow\[0\].to: no wires lead from n1.1 to n2.0"):
        read(text + "from=['n0', 'n1.1']\nto='n2.0'\n")


def test_node_of_a_topology_changes_all_ports_of_a_host() -> None:
    scenario = read(FORM + "[[node]]\nname = 'h1'\nvlan = 7\n" + flow("'h0'", "'h1'"))

    assert {node.name for node in scenario.nodes if node.vlan == 7} == {"h1.0", "h1.1"}


def test_capture_of_each_port_has_its_packets(tmp_path: Path) -> None:
    scenario, capture = tmp_path / "two.toml", tmp_path / "two.pcapng"
    scenario.write_text(TWO_SWITCHES + flow("'a'", "'b'"))

    result = CliRunner().invoke(main, ["run", str(scenario), "-o", str(capture), "--tap", "a"])

    assert result.exit_code == 0, result.output
    sources: dict[int, set[bytes]] = {}
    for record in open_capture(capture).records():
        sources.setdefault(record.interface, set()).add(bytes(record.data[26:30]))
    assert sources == {
        0: {bytes([10, 1, 0, 1]), bytes([10, 1, 0, 2])},
        1: {bytes([10, 2, 0, 1]), bytes([10, 2, 0, 2])},
    }


@each_case(
    ("text", "message"),
    [
        (TWO_SWITCHES + flow("'a.0'", "'b.1'"), "to: no wires lead from a.0 to b.1"),
        (TWO_SWITCHES + flow("'a.2'", "'b'"), "no host is called 'a.2'; did you mean a.1?"),
        (TWO_SWITCHES.replace('"a.0"', '"a"') + flow("'a'", "'b'"), "'a' is not one of"),
        (TWO_SWITCHES.replace("ports = 2", "ports = 3", 1), "address: 2 addresses for 3 ports"),
        (TWO_SWITCHES.replace("10.2.0.1", "10.1.0.1"), "address: 10.1.0.1 twice"),
        (TWO_SWITCHES.replace("10.2.0.2", "10.1.0.1"), "10.1.0.1 is another node's"),
        (TWO_SWITCHES + "[[node]]\nname = 'a'\n", "'a' is the name of another node"),
        (TWO_SWITCHES + "[[node]]\nname = 'a.1'\n", "'a.1' is the name of another node"),
        (TWO_SWITCHES.replace("ports = 2", "ports = 0", 1), "ports: 0 is not from 1 to 64"),
        (
            "[[node]]\nname='a'\nports=2\n[[node]]\nname='b'\n[[node]]\nname='c'\n"
            "[[wire]]\nbetween=['a.0', 'b']\n[[wire]]\nbetween=['a.0', 'c']\n",
            "a.0 is one port, and a wire is there already",
        ),
        (FORM + "[[node]]\nname='h0'\nports=1\n" + flow("'h0'", "'h1'"), "is a key of [topology]"),
        (FORM + "multihomed = true\n", "ports: 2 is not a divisor of 1, the number of switches"),
        (FORM.replace("ports = 2", "multihomed = true"), "multihomed: needs ports"),
        ("[topology]\nkind='back-to-back'\nports=2\n", "ports: 2 is not 1: there is no switch"),
        (
            "[topology]\nkind='rail-optimised'\nservers=2\nrails=2\nspines=1\nports=2\n",
            "ports: a server of rail-optimised has one port for each of its rails",
        ),
    ],
)
def test_what_is_refused(text: str, message: str) -> None:
    with pytest.raises(ScriptError) as caught:
        read(text)

    assert message in str(caught.value)
