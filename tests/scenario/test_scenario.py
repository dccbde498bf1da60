"""The scenario language: what is read, what is refused and where the message points."""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from each_case import each_case
from examples import scaled
from ibwire.base.errors import ScriptError
from ibwire.base.toml import MAXIMUM_SIZE
from ibwire.base.toml_positions import find_positions
from ibwire.base.units import GBPS, MS, US
from ibwire.rc.attributes import QPType
from ibwire.rc.profile import RXE
from ibwire.rc.work import WROpcode
from ibwire.scenario import METRICS, load, read_scenario, run, shipped

DOCUMENT = Path(__file__).parents[2] / "docs" / "scenarios.md"
WORKLOAD = "\n[[workload]]\n"


def read(text: str) -> Any:
    return read_scenario(text.encode(), "x.toml")


def refused(text: str) -> Any:
    with pytest.raises(ScriptError) as caught:
        read(text)
    return caught.value


def paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[Any]:
    """Every key path of a document as `tomllib` reads it, elements of arrays too."""
    inside = value.items() if isinstance(value, dict) else enumerate(value)
    for key, each in inside:
        yield (*path, key)
        if isinstance(each, dict | list):
            yield from paths(each, (*path, key))


# Positions.


def test_positions_of_keys_and_values_are_where_the_eye_finds_them() -> None:
    text = (
        "seed = 3  # [not] a = header\n"
        "[[node]]\n"
        '  name = "a#]"\n'
        "[[node]]\n"
        "override = { x.y = 1, 'q r' = [1, { z = 2 }] }\n"
        "[node.deep]\n"
        'text = """\nk = 1\n"""\n'
        "last=1\n"
    )
    found = find_positions(text)

    assert found.keys[("seed",)] == (1, 1)
    assert found.values[("seed",)] == (1, 8)
    assert found.keys[("node", 0)] == (2, 1)
    assert found.keys[("node", 0, "name")] == (3, 3)
    assert found.values[("node", 0, "name")] == (3, 10)
    assert found.keys[("node", 1)] == (4, 1)
    assert found.keys[("node", 1, "override", "x", "y")] == (5, 16)
    assert found.values[("node", 1, "override", "x", "y")] == (5, 20)
    assert found.keys[("node", 1, "override", "q r")] == (5, 23)
    assert found.values[("node", 1, "override", "q r", 1, "z")] == (5, 41)
    assert found.keys[("node",)] == (2, 3)
    assert found.keys[("node", 1, "deep")] == (6, 7)
    assert found.keys[("node", 1, "deep", "last")] == (10, 1)


BARE = st.text("abcXYZ012-_", min_size=1, max_size=4)
STRINGS = st.sampled_from(
    [
        '""',
        '"a"',
        '"\\"]}#"',
        "''",
        "'[{\"'",
        '"""a\n]"b" = """',
        "'''it''s\n#'''",
        '"""ends in quotes"""""',
        "'''x'''''",
        '"\\u00e9\\\\"',
        '"""\\\n  """',
    ]
)
SCALARS = st.sampled_from(
    ["1", "0x1f", "1_000", "1.5e3", "true", "inf", "1979-05-27T07:32:00Z", "1979-05-27 07:32:00"]
)


@st.composite
def keys(draw: Any) -> Any:
    part = st.one_of(BARE, BARE.map(lambda k: f'"{k} =]"'), BARE.map(lambda k: f"'{k}.#'"))
    return draw(st.sampled_from([".", " . "])).join(draw(st.lists(part, min_size=1, max_size=3)))


def nested(inner: Any) -> Any:
    arrays = st.tuples(st.lists(inner, max_size=3), st.sampled_from([", ", ",\n # ]\n", " ,"]))
    tables = st.lists(st.tuples(keys(), inner), max_size=3)
    return st.one_of(
        arrays.map(lambda each: f"[ {each[1].join(each[0])} ]"),
        tables.map(lambda each: "{" + ", ".join(f"{k} = {v}" for k, v in each) + "}"),
    )


VALUES = st.recursive(st.one_of(SCALARS, STRINGS), nested, max_leaves=6)
STATEMENTS = st.one_of(
    st.tuples(keys(), VALUES, st.sampled_from(["", " # = [x]", "\t", "\r"])).map(
        lambda each: f"{each[0]} = {each[1]}{each[2]}"
    ),
    keys().map(lambda key: f"[{key}]"),
    keys().map(lambda key: f"[[ {key} ]] # ]]"),
    st.sampled_from(["", "  # comment = 1"]),
)


@pytest.mark.slow
@settings(max_examples=scaled(200))
@given(st.lists(STATEMENTS, max_size=8))
def test_positions_are_found_for_exactly_the_keys_that_tomllib_reads(statements: Any) -> None:
    text = "\n".join(statements) + "\n"
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return
    found = find_positions(text)

    assert set(found.keys) == set(paths(document))
    lines = text.split("\n")
    for path, (line, column) in found.keys.items():
        if isinstance(path[-1], str):
            key = lines[line - 1][column - 1 :].lstrip("\"'")
            assert key.startswith(path[-1].split(" =]")[0].split(".#")[0])


# What a scenario says.


def test_empty_workload_is_a_scenario_of_two_nodes_a_wire_and_a_send() -> None:
    scenario = read("# What it is.\n# More.\n\n# Not this.\n" + WORKLOAD)

    assert scenario.description == "What it is.\nMore."
    assert [node.name for node in scenario.nodes] == ["a", "b"]
    assert [node.address for node in scenario.nodes] == ["10.0.0.1", "10.0.0.2"]
    assert scenario.wires[0].between == ("a", "b")
    assert scenario.connections[0].name == "main"
    assert scenario.workloads[0].traffic.opcodes.values == [WROpcode.SEND]
    assert [each.text for each in scenario.expectations] == [
        "wrong == 0",
        "unfinished == 0",
        "failed == 0",
    ]


def test_every_key_of_the_language_is_read() -> None:
    scenario = read(
        """
seed = 9
limit = "2ms"
max_frames = 77
link = "rocev1"
[[node]]
name = "x"
address = "192.0.2.1"
profile = "rxe"
override = { live_credits = true, ack_request_interval = 3, rnr_granularity = "1ms" }
[[node]]
name = "y"
[[node]]
name = "sw"
bridge = true
queue = 5
[[wire]]
between = ["x", "sw"]
rate = "25 Gb/s"
delay = "1.5us"
mtu = 1500
faults.sw = [{ loss = 0.5 }]
[[wire]]
between = ["sw", "y"]
[[connection]]
name = "one"
between = ["y", "x"]
count = 3
type = "UC"
mtu = 4096
psn = [1, 2]
timeout = 1
retry_cnt = 2
rnr_retry = 3
min_rnr_timer = 4
max_rd_atomic = 5
traffic_class = 104
ecn = true
depth = 6
expect.lost = 1
[[workload]]
on = ["one"]
sender = "x"
opcode = { RDMA_WRITE_WITH_IMM = 1, SEND_WITH_IMM = 0 }
size = { min = 1, max = "1 KiB" }
count = 8
window = 4
start = "1us"
stagger = "2us"
every = "3us"
inline = true
receives = { posted = 2, start = "4us", service = "5us", repost = false, size = 99 }
mistake = { kind = "bounds", message = 8 }
[expect]
wrong = 5
"""
    )
    node, wire = scenario.nodes[0], scenario.wires[0]
    connection, workload = scenario.connections[0], scenario.workloads[0]
    traffic = workload.traffic

    assert (scenario.seed, scenario.limit, scenario.max_frames) == (9, 2 * MS, 77)
    assert scenario.link == "rocev1"
    assert (node.address, node.profile.name) == ("192.0.2.1", "rxe")
    assert (node.profile.live_credits, node.profile.ack_request_interval) == (True, 3)
    assert node.profile.rnr_granularity == MS
    assert node.profile.timer_granularity == RXE.timer_granularity
    assert (scenario.nodes[2].is_bridge, scenario.nodes[2].queue_frames) == (True, 5)
    assert (wire.rate_bps, wire.delay, wire.mtu) == (25 * GBPS, 1_500_000, 1500)
    assert wire.faults == {"sw": [{"loss": 0.5}]}
    assert (connection.count, connection.qp_type, connection.psn) == (3, QPType.UC, (1, 2))
    assert connection.mtu == 4096
    assert connection.traffic_class == traffic.traffic_class == 26 << 2 | 2
    assert connection.attributes == {
        "timeout": 1,
        "retry_cnt": 2,
        "rnr_retry": 3,
        "min_rnr_timer": 4,
        "max_rd_atomic": 5,
        "max_dest_rd_atomic": 5,
    }
    assert connection.expectations[0].text == "lost == 1"
    assert (workload.sender, workload.stagger) == ("x", 2 * US)
    assert traffic.sizes.values == (1, 1024)
    assert (traffic.count, traffic.window, traffic.start, traffic.every) == (8, 4, US, 3 * US)
    assert (traffic.mistake.kind, traffic.mistake.message) == ("bounds", 7)
    assert (traffic.receives.posted, traffic.receives.service) == (2, 5 * US)
    assert (traffic.receives.start, traffic.receives.size) == (4 * US, 99)
    assert not traffic.receives.repost
    assert [each.text for each in scenario.expectations] == [
        "unfinished == 0",
        "failed == 0",
        "wrong == 5",
    ]


# What is refused.


@each_case(
    ("text", "line", "column", "reason"),
    [
        ("seed = 1\nseeds = 2" + WORKLOAD, 2, 1, "seeds: unknown; did you mean seed?"),
        ("seed = 'x'" + WORKLOAD, 1, 8, "seed: 'x' is not an integer"),
        ("seed = true" + WORKLOAD, 1, 8, "seed: true is not an integer"),
        ("seed = -1" + WORKLOAD, 1, 8, "seed: -1 is not from 0"),
        ("limit = 5" + WORKLOAD, 1, 9, "limit: 5 is not a time such as 5us"),
        ("limit = '5 weeks'" + WORKLOAD, 1, 9, "limit: '5 weeks' is not a time"),
        ("limit = '100001s'" + WORKLOAD, 1, 9, "limit: more than 100000 seconds"),
        ("limit = '0us'" + WORKLOAD, 1, 9, "limit: expected a time above 0"),
        (
            "limit = '2ms'\n[[workload]]\nstart = '2ms'",
            3,
            9,
            "workload[0].start: the run ends at its limit of 2 ms",
        ),
        (
            "[topology]\nkind = 'star'\nhosts = 3\n[[workload]]",
            4,
            3,
            "workload: there is no [[connection]] for it: write one with `between`, two of h0, h1,",
        ),
        (
            "".join(f"[[node]]\nname='{n}'\n" for n in "abc")
            + "[[wire]]\nbetween=['a','b']\n[[connection]]\nbetween=['a','c']"
            + WORKLOAD,
            10,
            9,
            "connection[0].between: no wires lead from a to c",
        ),
        ("link = 'token-ring'" + WORKLOAD, 1, 8, "link: 'token-ring' is not one of rocev2"),
        ("seed = 1\n", 1, 1, "there is no [[workload]]"),
        ("seed = \n", 1, 8, "Invalid value"),
        ("[wire]\nrate = 100G\n", 2, 11, 'text stands in quotation marks: "100G"'),
        ("[[node]]\nname = left # one end\n", 2, 8, 'text stands in quotation marks: "left"'),
        ("seed = 01\n", 1, 9, "Expected newline"),
        ("a = 1\na = 2\n", 2, 6, "Cannot overwrite"),
        ("a = true\na = false\n", 2, 10, "Cannot overwrite"),
        ("a = 0x10\na = 0x11\n", 2, 9, "Cannot overwrite"),
        ("[[workload]]\nx = [1,\n", 3, 1, "Invalid value"),
        ("[[node]]\nprofile = 'spec'" + WORKLOAD, 1, 1, "node[0]: name is missing"),
        ("[[node]]\nname = 'a'" + WORKLOAD, 1, 3, "node: a network has two nodes"),
        (
            "[[node]]\nname = 'a'\n[[node]]\n  name = 'a'" + WORKLOAD,
            4,
            10,
            "node[1].name: 'a' is the name of another node",
        ),
        ("node = 3" + WORKLOAD, 1, 8, "node: 3 is not a table: write [[node]]"),
        (
            "[[node]]\nname='a'\noverride = { mig_req = 2 }\n" + WORKLOAD,
            3,
            24,
            "node[0].override.mig_req: 2 is not from 0 to 1",
        ),
        (
            "[[node]]\nname='a'\noverride.burst_packets = 0\n" + WORKLOAD,
            3,
            26,
            "node[0].override.burst_packets: 0 is not from 1 to 8388607",
        ),
        (
            "[[node]]\nname='a'\noverride = { timer_granularity = '0ps' }\n" + WORKLOAD,
            3,
            34,
            "expected a time above 0",
        ),
        (
            "[[node]]\nname='a'\naddress = 'elsewhere'\n" + WORKLOAD,
            3,
            11,
            "node[0].address: 'elsewhere' is not an IP address",
        ),
        *(
            (
                f"[[node]]\nname='a'\naddress = '{group}'\n[[node]]\nname='b'" + WORKLOAD,
                3,
                11,
                f"node[0].address: {group} is not the address of one host",
            )
            for group in ("224.0.0.1", "ff02::1", "0.0.0.0", "255.255.255.255")
        ),
        (
            "[[node]]\nname='a'\naddress = 'fe80::1'\n[[node]]\nname='b'"
            "\naddress = 'FE80:0::1'" + WORKLOAD,
            6,
            11,
            "node[1].address: FE80:0::1 is another node's",
        ),
        (
            "[[node]]\nname='a'\naddress = 'fe80::1'\n[[node]]\nname='b'" + WORKLOAD,
            1,
            3,
            "node: connection main has an IPv4 and an IPv6 address: a fe80::1 and b 10.0.0.2",
        ),
        (
            "[[wire.faults.a]]\ndrop = { after = '2us', before = '1us' }" + WORKLOAD,
            2,
            34,
            "wire.faults.a[0].drop.before: '1 us' is not later than `after`, 2 us",
        ),
        ("[[wire]]\nrate = 100" + WORKLOAD, 2, 8, "wire[0].rate: 100 is not a rate such as 100G"),
        ("[[wire]]\nbetween = ['a']" + WORKLOAD, 2, 11, "is not two nodes"),
        ("[[wire]]\nbetween = ['a', 'c']" + WORKLOAD, 2, 11, "'c' is not one of a, b"),
        ("[[wire]]\nbetween = ['b', 'b']" + WORKLOAD, 2, 11, "b twice"),
        ("[[wire]]\n[[wire]]" + WORKLOAD, 2, 1, "a has one port"),
        (
            "[[wire]]\n[[wire.faults.a]]\ndrop = { psn = 1, nht = 1 }" + WORKLOAD,
            3,
            19,
            "wire[0].faults.a[0].drop.nht: unknown",
        ),
        (
            "[[wire]]\nfaults.a = [\n  { loss = 1.5 },\n]" + WORKLOAD,
            3,
            12,
            "wire[0].faults.a[0].loss: 1.5 is not a number from 0 to 1",
        ),
        ("[[wire.faults.a]]\nloss = 1.5" + WORKLOAD, 2, 8, "1.5 is not a number from 0 to 1"),
        (
            "[[wire.faults.a]]\nloss = 0.1\ndrop = 0.1" + WORKLOAD,
            3,
            1,
            "wire.faults.a[0].drop: a rule has one action, and loss is there already",
        ),
        ("[[wire.faults.a]]" + WORKLOAD, 1, 1, "wire.faults.a[0]: a rule has one action"),
        ("[[wire.faults.z]]\nloss = 1" + WORKLOAD, 1, 15, "wire.faults.z: unknown; expected a, b"),
        (
            "[[wire.faults.a]]\ndrop.burst = { count = 1, last = 2 }" + WORKLOAD,
            2,
            27,
            "drop.burst.last: unknown",
        ),
        ("[[wire]]\nfaults.c = []" + WORKLOAD, 2, 8, "wire[0].faults.c: unknown"),
        ("[[wire.faults.a]]\nlose = 1" + WORKLOAD, 2, 1, "a rule is one of drop"),
        ("[[connection]]\nmtu = 1500" + WORKLOAD, 2, 7, "1500 is not one of 256, 512, 1024"),
        ("[[connection]]\ntraffic_class = 256" + WORKLOAD, 2, 17, "256 is not from 0 to 255"),
        (
            "[[connection]]\ntraffic_class = 1\necn = true" + WORKLOAD,
            3,
            7,
            "connection[0].ecn: traffic_class 1 has ECN bits of its own",
        ),
        ("link = 'ib'\n[[connection]]\necn = true" + WORKLOAD, 3, 7, "packets have none here"),
        (
            "link = 'ib'\n[[connection]]\ntraffic_class = 4" + WORKLOAD,
            3,
            17,
            "connection[0].traffic_class: stands in a GRH",
        ),
        ("[[connection]]\nretry_cnt = 8" + WORKLOAD, 2, 13, "8 is not from 0 to 7"),
        ("[[connection]]\npsn = [1, 2, 3]" + WORKLOAD, 2, 7, "3 numbers, expected two"),
        ("[[connection]]\npsn = [1, 16777216]" + WORKLOAD, 2, 7, "16777216 is not from 0"),
        ("[[connection]]\ntype = 'RD'" + WORKLOAD, 2, 8, "'RD' is not one of RC, UC, UD"),
        (
            "[[connection]]\nname='x'\n[[connection]]\nname='x'" + WORKLOAD,
            4,
            6,
            "'x' is another connection's",
        ),
        (WORKLOAD + "opcode = 'PUT'", 3, 10, "workload[0].opcode: 'PUT' is not one of SEND"),
        (WORKLOAD + "opcode = []", 3, 10, "expected one or several"),
        (WORKLOAD + "opcode = { SEND = 0 }", 3, 10, "weights above 0"),
        (WORKLOAD + "size = -1", 3, 8, "-1 is not from 0"),
        (WORKLOAD + "size = '4 apples'", 3, 8, "is not bytes such as 4096 or 64 KiB"),
        (WORKLOAD + "size = { min = 5 }", 3, 8, "expected both min and max"),
        (WORKLOAD + "size = { min = 5, max = 4 }", 3, 8, "min 5 is above max 4"),
        (WORKLOAD + "count = 1000\nwindow = 200", 4, 10, "the depth of main is 128"),
        (WORKLOAD + "sender = 'c'", 3, 10, "'c' is not one of a, b"),
        (WORKLOAD + "on = 'x'", 3, 6, "'x' is not one of main"),
        (WORKLOAD + "receives = { posted = 0 }", 3, 23, "workload[0].receives.posted: 0"),
        (WORKLOAD + "mistake = { message = 1 }", 3, 1, "kind is missing"),
        (WORKLOAD + "mistake.kind = 'rkey'", 3, 16, "mistake.kind: SEND has no R_Key"),
        (
            WORKLOAD + "opcode = ['RDMA_READ', 'SEND']\ncount = 4\n"
            "mistake = { kind = 'bounds', message = 4 }",
            5,
            20,
            "SEND has no remote address",
        ),
        (
            WORKLOAD + "opcode = { RDMA_READ = 9, SEND = 1 }\nmistake.kind = 'rkey'",
            4,
            16,
            "SEND has no R_Key",
        ),
        (WORKLOAD + "opcode = 'FLUSH'\nmistake.kind = 'lkey'", 4, 16, "FLUSH has no L_Key"),
        (
            WORKLOAD + "opcode = 'RDMA_WRITE'\nsize = [8, 0]\ncount = 2\n"
            "mistake = { kind = 'rkey', message = 2 }",
            6,
            20,
            "an empty message touches no memory",
        ),
        (WORKLOAD + "mistake = { kind = 'rkey', message = 2 }", 3, 38, "2 is not from 1 to 1"),
        (WORKLOAD + "inline = true\nmistake.kind = 'lkey'", 4, 16, "inline data needs no key"),
        (WORKLOAD + "inline = true\nsize = 1025", 3, 10, "messages of 1025 bytes"),
        (WORKLOAD + "\n[[workload]]", 4, 1, "a sends on main already"),
        (
            WORKLOAD + "size = '256 MiB'\ncount = 9\nwindow = 9",
            2,
            1,
            "the messages under way would take more than 512 MiB",
        ),
        (
            "[[connection]]\ntype = 'UD'\nmtu = 256" + WORKLOAD + "size = 257",
            5,
            8,
            "257 is not from 0 to 256",
        ),
        (
            "[[connection]]\ntype = 'UC'" + WORKLOAD + "opcode = 'RDMA_READ'",
            4,
            10,
            "'RDMA_READ' is not one of SEND",
        ),
        (WORKLOAD + "[expect]\ntimeout = 1", 4, 1, "expect.timeout: unknown; did you mean timeou"),
        (WORKLOAD + "[expect]\ntimeouts = '< x'", 4, 12, "expect.timeouts: 'x' is not a number"),
        (WORKLOAD + "[expect]\ntimeouts = 'all'", 4, 12, "'all' is not a number such as 3"),
        (WORKLOAD + "[expect]\ngoodput = 7", 4, 11, "7 is not a rate such as 100G"),
        (WORKLOAD + "[expect]\nstatus.RETRY_EXC = 7", 4, 8, "did you mean RETRY_EXC_ERR?"),
        (WORKLOAD + "[expect]\nnaks.seq = 7", 4, 6, "naks.seq: unknown"),
        (
            "[[connection]]\nexpect.bad_icrc = 1" + WORKLOAD,
            2,
            8,
            "is of the whole run, not of a connection",
        ),
    ],
)
def test_error_points_at_line_column_and_key(
    text: str, line: str, column: int, reason: str
) -> None:
    error = refused(text)

    assert (error.line, error.column) == (line, column), error
    assert reason in error.reason
    assert str(error).startswith(f"x.toml:{line}:{column}: ")


def test_bytes_that_are_no_utf8_are_refused_where_they_stand() -> None:
    with pytest.raises(ScriptError) as caught:
        read_scenario(b"seed = 1\n# \xc3\xa9 \xff\n", "x.toml")

    assert (caught.value.line, caught.value.column) == (2, 5)


@pytest.mark.parametrize(
    "content",
    [
        b"x = " + b"[" * 30_000,
        b"x = " + b"9" * 30_000,
        b"." * MAXIMUM_SIZE,
        b"a." * 30_000 + b"a = 1",
        b"".join(b"k%d." % i + b"a." * 490 + b"a = 1\n" for i in range(66)),
        b"\n[" * 30_000,
        b"#" * (MAXIMUM_SIZE + 1),
        b"x = 2024-99-99",
    ],
)
def test_absurd_files_are_refused(content: Any) -> None:
    with pytest.raises(ScriptError):
        read_scenario(content, "x.toml")


def test_wires_that_make_a_ring_of_bridges_are_refused() -> None:
    names = ["a", "b", "s", "t"]
    nodes = "".join(f"[[node]]\nname = '{n}'\nbridge = {str(n in 'st').lower()}\n" for n in names)
    wires = [("a", "s"), ("b", "t"), ("s", "t"), ("t", "s")]
    text = nodes + "".join(f"[[wire]]\nbetween = ['{a}', '{b}']\n" for a, b in wires) + WORKLOAD

    assert "frames would circle" in refused(text).reason


SOURCES = [
    path.read_bytes()
    for path in sorted((Path(__file__).parents[2] / "ibwire" / "scenarios").iterdir())
    if path.suffix == ".toml"
]
PIECES = [b"\x00", b"[", b"]", b"{", b'"', b"=", b".", b"1e9", b"-1", b"true", b"\n[x]\n", b"\xff"]


@settings(max_examples=scaled(300))
@given(st.data())
def test_damaged_scenario_is_read_or_refused_and_never_crashes(data: st.DataObject) -> None:
    source = data.draw(st.sampled_from(SOURCES))
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(source)))
        end = min(start + data.draw(st.integers(0, 8)), len(source))
        source = source[:start] + data.draw(st.sampled_from(PIECES)) + source[end:]
    line = None
    try:
        read_scenario(source, "x.toml")
    except ScriptError as error:
        line = error.line

    assert line is None or 1 <= line <= source.count(b"\n") + 1


# Expectations.


@each_case(
    ("text", "passes"),
    [
        ("success = 5", True),
        ("success = '== 5'", True),
        ("success = 'all'", True),
        ("success = '5'", True),
        ("success = '!= 5'", False),
        ("success = '<= 5 and > 4'", True),
        ("success = '<= 5 and > 5'", False),
        ("success = '< all'", False),
        ("verified_bytes = '>= 20_480'", True),
        ("time = '> 2us and < 10us'", True),
        ("time = '<2us'", False),
        ("goodput = '> 1Gbps'", True),
        ("goodput = '> 100Gbps'", False),
        ("status.SUCCESS = 5", True),
        ("status.RETRY_EXC_ERR = 1", False),
        ("naks.rnr = 0", True),
    ],
)
def test_expectation_holds_or_not(text: str, passes: bool) -> None:
    outcome = run(read(f"[[workload]]\ncount = 5\n[expect]\n{text}\n"))

    assert outcome.checks[-1].passed is passes
    assert outcome.passed is passes


def test_expectation_of_a_connection_is_about_its_queue_pairs_alone() -> None:
    outcome = run(
        read(
            "[[connection]]\nexpect.messages = 3\n[[connection]]\nexpect.messages = 4\n"
            "[[workload]]\non = 'c1'\ncount = 3\n[[workload]]\non = 'c2'\ncount = 4\n"
            "[expect]\nmessages = 7\n"
        )
    )

    assert outcome.passed
    assert [c.connection for c in outcome.checks] == [None, None, None, None, "c1", "c2"]


def test_run_that_does_not_finish_fails_by_itself() -> None:
    outcome = run(read("limit = '1us'" + WORKLOAD))

    assert outcome.ended == "until"
    assert outcome.metrics["unfinished"] == 1
    assert not outcome.passed


@each_case(
    ("text", "passes"),
    [
        ("", False),
        ("[expect]\nverified = 0", False),
        ("[expect]\nfailed = 1", True),
        ("[expect]\nsuccess = 0", True),
        ("[expect]\nstatus.REM_ACCESS_ERR = 1", True),
        ("[[connection]]\nexpect.failed = 1", True),
        ("[[connection]]\nexpect.failed = 1\n[[connection]]", False),
        ("[[connection]]\nexpect.failed = 1\n[[connection]]\nexpect.success = 0", True),
    ],
)
def test_failed_messages_fail_a_run_that_has_no_word_on_them(text: str, passes: bool) -> None:
    workload = "opcode = 'RDMA_WRITE'\nmistake.kind = 'rkey'\n"

    assert run(read(WORKLOAD + workload + text)).passed is passes


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ('topology = "ring6"\n[traffic]\nsize = 100\n', "1:12: topology"),
        ('[[link]]\nbetween = ["h[1]", "sw0[1]"]\n', "1:3: link"),
    ],
)
def test_the_file_of_an_infiniband_fabric_names_the_command_for_it(text: str, place: str) -> None:
    with pytest.raises(ScriptError) as caught:
        read_scenario(text.encode(), "x.toml")

    assert str(caught.value) == (
        f"x.toml:{place}: says that this is an InfiniBand fabric: "
        "ibwire fabric traffic x.toml runs it"
    )


def test_unknown_metric_or_field_is_answered_shortly_and_always_alike() -> None:
    override = "[[node]]\nname = 'a'\noverride.zzz = 1\n[[node]]\nname = 'b'"

    for text in ("[expect]\nzzz = 1", "[expect]\nstatus.zzz = 1", override):
        reason = refused(WORKLOAD + text).reason
        names = reason.partition("expected ")[2].partition(" or ")[0].split(", ")
        assert len(names) == 6
        assert names == sorted(names)
        assert len(reason) < 200
    assert refused(WORKLOAD + "[expect]\nzzz = 1").reason == (
        "expect.zzz: unknown; expected bad_icrc, ce_marked, cnps, cnps_sent, cnps_switched, "
        "credit_stalls or 74 others"
    )


# Where scenarios come from.


def test_name_without_suffix_is_a_shipped_scenario(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    assert load("lost-ack").connections[1].name == "last"


@pytest.mark.parametrize("name", ["lost-akc", "absent.toml", "/", "nul\0.toml"])
def test_scenario_that_is_not_there_is_refused(name: str) -> None:
    with pytest.raises(ScriptError, match=r"did you mean lost-ack|No such file|directory|null"):
        load(name)


@pytest.mark.slow
def test_scenarios_in_the_reference_are_scenarios() -> None:
    blocks = re.findall(r"```toml\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)

    assert len(blocks) >= 4
    for block in blocks:
        assert run(read(block)).passed or "wire.faults" in block


def test_reference_names_every_metric_key_and_opcode() -> None:
    text = DOCUMENT.read_text()
    keys_read = re.findall(
        r'(?:take\w*|tables?)\(\s*"(\w+)"',
        "".join(
            (Path(__file__).parents[2] / "ibwire" / "scenario" / f"{module}.py").read_text()
            for module in ("model", "nodes", "switches", "flows", "control")
        ),
    )

    assert len(keys_read) > 40
    for word in [*keys_read, *METRICS]:
        if word.startswith("status."):
            continue
        assert re.search(rf"`[^`\n]*\b{re.escape(word)}\b[^`\n]*`", text), word


def test_shipped_scenarios_say_in_one_line_what_they_show() -> None:
    scenarios = shipped()

    assert len(scenarios) >= 11
    for name, scenario in scenarios.items():
        first, second, *_ = scenario.description.split("\n")
        assert first.endswith("."), name
        assert second == "", name
