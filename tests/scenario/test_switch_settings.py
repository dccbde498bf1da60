"""Settings of switches in scenarios: what they change, measured, and what is refused."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any

import pytest
from click.testing import CliRunner

from each_case import each_case
from ibwire.base.errors import ScriptError
from ibwire.base.units import GBPS, MS, US
from ibwire.cli import main
from ibwire.fabric.topology import Link
from ibwire.scenario import read_scenario, run
from ibwire.scenario.switches import rules_of


def read(text: str) -> Any:
    return read_scenario(text.encode(), "x.toml")


def star(switch: str, rest: str = "") -> str:
    return f"""
[topology]
kind = "star"
hosts = 2
[switch]
{switch}
[[flow]]
from = "h1"
to = "h0"
size = "1 kB"
{rest}
"""


@pytest.mark.parametrize(
    ("switch", "time"),
    [
        # A WRITE of 1000 bytes: 1000 + 58 + 16 + 24 bytes there, 62 + 24 back, 80 ps each;
        # stored twice, over 1 us of line twice each way.
        ("", 2 * (1098 + 86) * 80 + 4 * US),
        ('latency = "300ns"', 2 * (1098 + 86) * 80 + 4 * US + 600_000),
        ("cut_through = true", (1098 + 86 + 2 * 64) * 80 + 4 * US),
        ('cut_through = true\nlatency = "50ns"', (1098 + 86 + 2 * 64) * 80 + 4 * US + 100_000),
    ],
)
def test_time_of_a_message_by_hand_is_also_the_ideal_time(switch: str, time: int) -> None:
    metrics = run(read(star(switch))).metrics

    assert metrics["time"] == time
    assert metrics["slowdown.max"] == 1000


def test_damaged_frames_are_dropped_by_a_switch_that_stores_and_pass_one_that_cuts_through() -> (
    None
):
    fault = '[[wire]]\nbetween = ["h1", "s0"]\n[[wire.faults.h1]]\ncorrupt = { nth = 1 }'

    stored = run(read(star("", fault))).metrics
    passed = run(read(star("cut_through = true", fault))).metrics

    assert (stored["drops.damaged"], stored["stomped"], stored["bad_icrc"]) == (1, 0, 0)
    assert (passed["drops.damaged"], passed["stomped"], passed["bad_icrc"]) == (0, 1, 1)
    assert stored["verified"] == passed["verified"] == 1


@pytest.mark.parametrize(
    "rule",
    ["mark_ecn = { nth = 1 }", "rewrite = { nth = 1, set = { ip.ttl = 9 }, repair = 'nothing' }"],
)
def test_damaged_frames_that_another_rule_changes_are_dropped_too(rule: str) -> None:
    wire = '[[wire]]\nbetween = ["h1", "s0"]\n'
    faults = f"[[wire.faults.h1]]\ncorrupt = {{ nth = 1 }}\n[[wire.faults.h1]]\n{rule}"

    metrics = run(read(star("", wire + faults).replace('"1 kB"', '"1 kB"\necn = true'))).metrics

    assert (metrics["drops.damaged"], metrics["bad_icrc"], metrics["verified"]) == (1, 0, 1)


def test_headroom_by_the_length_of_cables_is_that_of_the_vendor_table() -> None:
    """reference/fabric#headroom: Spectrum-1 with 40 m of cable."""
    spec = read(star("buffer.headroom = { cable = 40 }")).fabric.switches["s0"]

    found = {
        rate: rules_of(spec, Link("h1", "s0", rate * GBPS), 1200)[3].headroom
        for rate in (10, 25, 40, 50, 100)
    }

    assert found == {10: 29_696, 25: 31_744, 40: 32_768, 50: 33_792, 100: 38_912}


def test_headroom_of_long_cables_that_exceeds_the_buffer_is_refused_with_the_numbers() -> None:
    text = star('buffer = { size = "80 kB", headroom = { cable = 40 } }')

    # Two ports: 2 x 38,912 and 2 x 4,096 bytes.
    numbers = "switch s0 has 80,000 bytes, but its 2 ports take 86,016: headroom 77,824"
    with pytest.raises(ScriptError, match=re.escape(numbers)):
        read(text)


def test_headroom_grows_with_the_latency_of_the_switch() -> None:
    plain, slow = (read(star(switch)).fabric.switches["s0"] for switch in ("", 'latency = "800ns"'))

    rooms = [rules_of(each, Link("h1", "s0"), 1200)[3].headroom for each in (plain, slow)]

    assert rooms[1] - rooms[0] == 100 * 800 // 8


def test_remarked_frames_have_another_dscp_behind_the_switch() -> None:
    seen: dict[str, set[int]] = {}

    def note(name: str, event: str, frame: bytes, now: int) -> None:
        if frame[12:14] == b"\x08\x00" and frame[42] == 0x0A:  # RDMA WRITE ONLY
            seen.setdefault(f"{name} {event}", set()).add(frame[15] >> 2)

    outcome = run(read(star("class.roce.remark = { dscp = 11 }")), observers=[note])

    assert seen == {"h1 sent": {26}, "h0 received": {11}}
    assert outcome.metrics["bad_icrc"] == 0
    assert outcome.passed


def test_pcp_gives_the_class_where_it_is_trusted() -> None:
    node = '[[node]]\nname = "h*"\nvlan = 5'
    text = star('trust = "pcp"\nclass.other.pcp = [0, 3]', node)

    outcome = run(read(text))

    lanes = [sum(port.sent[lane] for port in outcome.ports) for lane in (0, 3)]
    assert lanes == [2, 0]  # the WRITE and its ACK, with the PCP of class roce


LEAVES = """
[topology]
kind = "leaf-spine"
leaves = 2
spines = 2
hosts = 4
[switch]
buffer = "16 MiB"
{}
[[flow]]
from = "h[0-3]"
to = "h[4-7]"
size = "8 kB"
count = 8
"""


def test_weights_move_flows_to_a_spine() -> None:
    outcome = run(read(LEAVES.format("weights = { spine0 = 7, spine1 = 1 }")))

    sent = {port.peer: sum(port.sent) for port in outcome.ports if port.node == "leaf0"}
    # 128 flows of 8 packets: seven of eight by the first spine, within four deviations.
    assert abs(sent["spine0"] - 7 * 128) < 4 * 8 * (128 * 7 / 64) ** 0.5
    assert sent["spine0"] + sent["spine1"] == 8 * 128


def test_flowlets_keep_packets_in_order_and_spraying_does_not() -> None:
    # Bursts a while apart, so that flows move.
    pace = '[[connection]]\nbetween = ["h0", "h7"]\nclass = "roce"\n[[workload]]\ncount = 20\n'
    pace += 'opcode = "RDMA_WRITE"\nsize = 20000\nwindow = 1\nevery = "20us"\n'

    flowlets = run(read(LEAVES.format('routing = "flowlet"\nflowlet_gap = "8us"') + pace))
    spraying = run(read(LEAVES.format('routing = "spray"') + pace))

    assert flowlets.metrics["naks.sequence"] == 0 < spraying.metrics["naks.sequence"]
    moved = {port.peer: sum(port.sent) for port in flowlets.ports if port.node == "leaf0"}
    assert min(moved["spine0"], moved["spine1"]) > 20 * 20 // 8  # packets of the paced ones too


@each_case(
    ("switch", "message"),
    [
        ('latency = "2ms"', "switch.latency: more than 1 ms"),
        ('flowlet_gap = "5us"', 'flowlet_gap: needs routing = "flowlet", not "ecmp"'),
        ('routing = "flowlet"\nflowlet_gap = "0us"', "expected a time above 0"),
        ("weights = { h0 = 0 }", "switch.weights.h0: 0 is not from 1 to 64"),
        ("weights = { h9 = 2 }", "switch.weights.h9: no neighbour of any switch"),
        ("class.roce.remark = {}", "expected dscp or pcp"),
        ("class.roce.remark = { dscp = 64 }", "64 is not from 0 to 63"),
        ("class.roce.pcp = [3, 9]", "9 is not from 0 to 7"),
        ("class.roce.pcp = 0\nclass.other.pcp = 0", "PCP 0 is in class roce and in class other"),
        ("buffer.headroom = { metres = 5 }", "cable is missing"),
        ("buffer.headroom = { cable = -1 }", "-1 is not from 0 to 100000"),
        ("class.other.headroom = { cable = 1 }", "only a lossless class has headroom"),
    ],
)
def test_impossible_settings_are_refused(switch: str, message: str) -> None:
    with pytest.raises(ScriptError, match=re.escape(message)):
        read(star(switch))


def test_link_level_retry_needs_whole_frames() -> None:
    with pytest.raises(ScriptError, match="cut_through of s0: llr checks whole frames"):
        read(star("cut_through = true").replace("hosts = 2", "hosts = 2\nllr = true"))


# Slowdown of every source of messages (reference: docs/scenarios.md, `[expect]`).

PAIR = '[[workload]]\nopcode = "{}"\nsize = {}\ncount = {}\nwindow = {}\nevery = "{}"\n'


@pytest.mark.parametrize(
    ("opcode", "size", "count", "window", "every"),
    [
        ("RDMA_WRITE", "4096", 50, 16, "0us"),
        ("RDMA_WRITE", "4096", 50, 1, "0us"),
        ("SEND", "[64, 70000]", 20, 4, "0us"),
        ("RDMA_READ", "{ min = 1, max = 9000 }", 20, 3, "0us"),
        ("ATOMIC_FETCH_AND_ADD", "8", 20, 2, "0us"),
        ("SEND", "1000", 20, 16, "7us"),
    ],
)
def test_slowdown_of_messages_in_an_idle_network_is_one(
    opcode: str, size: str, count: int, window: int, every: str
) -> None:
    text = PAIR.format(opcode, size, count, window, every)
    if opcode == "ATOMIC_FETCH_AND_ADD":
        text = text.replace("size = 8\n", "")

    metrics = run(read(text)).metrics

    # Within 4 %: that SENDs wait for credits, and ACKs for others, is not counted.
    assert 1000 <= metrics["slowdown.max"] <= 1040


@each_case(
    ("service", "opcode", "size", "sent", "answered"),
    [
        # Extension headers and payload with padding of the request, and of what completes it.
        ("RC", "SEND", 1001, 1004, 4),
        ("RC", "SEND_WITH_IMM", 1001, 4 + 1004, 4),
        ("RC", "RDMA_WRITE", 1001, 16 + 1004, 4),
        ("RC", "RDMA_WRITE", 0, 16, 4),
        ("RC", "RDMA_WRITE_WITH_IMM", 1001, 16 + 4 + 1004, 4),
        ("RC", "RDMA_READ", 1001, 16, 4 + 1004),
        ("RC", "ATOMIC_CMP_AND_SWP", None, 28, 4 + 8),
        ("RC", "ATOMIC_FETCH_AND_ADD", None, 28, 4 + 8),
        ("RC", "ATOMIC_WRITE", None, 16 + 8, 4),
        ("RC", "FLUSH", None, 4 + 16, 4),
        ("UC", "SEND", 1001, 1004, None),
        ("UC", "SEND_WITH_IMM", 1001, 4 + 1004, None),
        ("UC", "RDMA_WRITE_WITH_IMM", 1001, 16 + 4 + 1004, None),
        ("UD", "SEND", 1001, 8 + 1004, None),
        ("UD", "SEND_WITH_IMM", 1001, 8 + 4 + 1004, None),
    ],
)
def test_time_of_each_operation_by_hand_is_also_the_ideal_time(
    service: str, opcode: str, size: int | None, sent: int, answered: int | None
) -> None:
    """58 bytes of other headers and 24 of the line for each packet, 80 ps each; 1 us of line."""
    text = f'[[connection]]\ntype = "{service}"\n[[workload]]\nopcode = "{opcode}"\n'

    metrics = run(read(text + (f"size = {size}" if size is not None else ""))).metrics

    time = (sent + 58 + 24) * 80 + US
    if answered is not None:
        time += (answered + 58 + 24) * 80 + US
    assert metrics["fct.max"] == time
    assert metrics["slowdown.max"] == 1000


@pytest.mark.parametrize("opcode", ["RDMA_WRITE", "RDMA_READ"])
def test_time_of_several_packets_by_hand_is_also_the_ideal_time(opcode: str) -> None:
    """5000 bytes: 4 packets of 1024 and one of 904 over a switch, in one direction."""
    metrics = run(
        read(
            '[topology]\nkind = "star"\nhosts = 2\n[[connection]]\nbetween = ["h1", "h0"]\n'
            f'class = "roce"\n[[workload]]\nopcode = "{opcode}"\nsize = 5000\n'
        )
    ).metrics

    data = 5000 + 5 * 82 + (16 if opcode == "RDMA_WRITE" else 4 + 4)
    first = 1024 + 82 + (16 if opcode == "RDMA_WRITE" else 4)
    other = 82 + (4 if opcode == "RDMA_WRITE" else 16)
    assert metrics["fct.max"] == (data + first + 2 * other) * 80 + 4 * US
    assert metrics["slowdown.max"] == 1000


@each_case(
    ("rates", "flow", "time"),
    [
        # A WRITE of 5000 bytes and an MTU of 4096: 4194 bytes of line for the first packet, 986 for
        # the second, 86 for the ACK. The second one waits for the first on every equal line.
        (["100G"] * 4, "", (4 * 4194 + 986 + 4 * 86) * 80),
        # The slow line in the middle has both, with 400 ps a byte.
        (["100G", "20G", "100G"], "", (4194 + 986) * 80 + 5180 * 400 + 2 * 86 * 80 + 86 * 400),
        # The second packet catches up with the first on the last line: 4194 > 2 * 986 + 986.
        (["100G", "50G", "40G"], "", 4194 * (80 + 160 + 200) + 986 * 200 + 86 * (80 + 160 + 200)),
        # 10 Gb/s, 800 ps a byte: the second one leaves when the first has been paid for.
        (["100G"] * 2, 'rate = "10G"', 4194 * 800 + 2 * 986 * 80 + 2 * 86 * 80),
        # 4000 bytes may leave before that, so it leaves after 194 bytes, or behind the first.
        (["100G"] * 2, 'rate = "10G"\nburst = 4000', (2 * 4194 + 986 + 2 * 86) * 80),
    ],
)
def test_a_flow_alone_has_slowdown_one_whatever_its_packets_and_lines(
    rates: list[str], flow: str, time: int
) -> None:
    names = ["a", *(f"s{at}" for at in range(1, len(rates))), "b"]
    text = '[[node]]\nname = "a"\n[[node]]\nname = "b"\n'
    text += "".join(f'[[switch]]\nname = "{name}"\n' for name in names[1:-1])
    for ends, rate in zip(pairwise(names), rates, strict=True):
        text += f'[[wire]]\nbetween = {list(ends)}\nrate = "{rate}"\n'

    metrics = run(
        read(f'{text}[[flow]]\nfrom = "a"\nto = "b"\nsize = 5000\nmtu = 4096\n{flow}\n')
    ).metrics

    assert metrics["fct.max"] == time + 2 * len(rates) * US
    assert metrics["slowdown.max"] == 1000


@pytest.mark.parametrize("service", ["UC", "UD"])
def test_messages_of_an_unreliable_service_have_no_slowdown_below_one(service: str) -> None:
    text = f'[[connection]]\ntype = "{service}"\n[[workload]]\nopcode = "SEND"\n'

    assert run(read(text + "size = 64\ncount = 20")).metrics["slowdown.max"] == 1000


def test_slowdown_of_messages_that_share_a_line_is_about_two() -> None:
    text = """
[topology]
kind = "star"
hosts = 3
[[connection]]
name = "x"
between = ["h1", "h0"]
class = "roce"
[[connection]]
name = "y"
between = ["h2", "h0"]
class = "roce"
[[workload]]
opcode = "RDMA_WRITE"
size = 100000
count = 10
"""
    metrics = run(read(text)).metrics

    assert 1900 < metrics["slowdown.max"] < 2050


# Deadlocks (reference/fabric#deadlock).

RING = "".join(f'[[node]]\nname = "h{number}"\n' for number in range(3)) + "".join(
    f'[[switch]]\nname = "s{at}"\nbuffer = "300 kB"\n'
    f'route = {{ h{(at + 1) % 3} = "s{(at + 1) % 3}", h{(at + 2) % 3} = "s{(at + 1) % 3}" }}\n'
    f'[[wire]]\nbetween = ["h{at}", "s{at}"]\n[[wire]]\nbetween = ["s{at}", "s{(at + 1) % 3}"]\n'
    f'[[flow]]\nfrom = "h{at}"\nto = "h{(at + 2) % 3}"\nsize = "1 MB"\n'
    for at in range(3)
)


@pytest.mark.parametrize(
    "retries",
    ["", pytest.param("timeout = 1\nretry_cnt = 0\n", marks=pytest.mark.slow)],
    ids=["waiting", "failed"],
)
def test_deadlock_ends_the_run_and_is_named(tmp_path: Any, retries: str) -> None:
    text = RING.replace('size = "1 MB"\n', f'size = "1 MB"\n{retries}')
    outcome = run(read(text))

    assert outcome.ended == "deadlock"
    assert outcome.virtual_time < 10 * MS
    assert re.fullmatch(
        r"deadlock: (s. to s. \(priority 3\))( waits for s. to s. \(priority 3\)){2}"
        r" waits for \1",
        outcome.standstill[0],
    )
    if not retries:
        path = tmp_path / "ring.toml"
        path.write_text(text)
        result = CliRunner().invoke(main, ["run", str(path)])
        assert "deadlock: s" in result.output
        assert "stopped at 6 ms: a deadlock never ends" in result.output
        assert result.exit_code == 1


@pytest.mark.slow
def test_deadlock_is_not_the_end_while_the_failure_of_a_link_is_planned() -> None:
    outage = '[[outage]]\nbetween = ["s0", "s1"]\nat = "9ms"\n'
    outcome = run(read("limit = '12ms'\n" + outage + RING))

    assert outcome.virtual_time > 9 * MS
    assert outcome.metrics["drops.link_down"] > 0
