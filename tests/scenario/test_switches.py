"""Scenarios with switches: what is read, what is refused, what is measured and captured."""

import itertools
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st

from each_case import each_case
from examples import scaled
from ibwire.base.errors import ScriptError
from ibwire.base.units import GBPS, NS, US
from ibwire.capture import open_capture
from ibwire.cli import main
from ibwire.fabric.pause import is_mac_control
from ibwire.scenario import read_scenario, run
from ibwire.scenario.effort import announcement
from ibwire.scenario.queue_lengths import FIRST_INTERVAL, QueueKey, QueueLengths
from ibwire.scenario.recording import Recording

STAR = """# Two hosts send to one.
[topology]
kind = "star"
hosts = 3
[switch]
buffer = "400 kB"
class.roce.ecn = { min = "20 kB", max = "40 kB" }
[cc]
[[flow]]
from = ["h1", "h2"]
to = "h0"
size = "300 kB"
"""


def read(text: str) -> Any:
    return read_scenario(text.encode(), "x.toml")


def refused(text: str) -> str:
    with pytest.raises(ScriptError) as caught:
        read(text)
    return str(caught.value)


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["run", *map(str, arguments)])


@pytest.fixture(scope="module")
def outcome() -> Any:
    return run(read(STAR))


# What is read.


@each_case(
    ("topology", "hosts", "switches", "wires"),
    [
        ('kind = "star"\nhosts = 8', 8, 1, 8),
        ('kind = "back-to-back"', 2, 0, 1),
        ('kind = "dumbbell"\nleft = 2\nright = 3', 5, 2, 6),
        ('kind = "parking-lot"\nswitches = 3', 6, 3, 8),
        ('kind = "leaf-spine"\nleaves = 4\nspines = 2\nhosts = 3', 12, 6, 20),
        ('kind = "fat-tree"\nk = 4', 16, 20, 48),
        ('kind = "rail-optimised"\nservers = 3\nrails = 2\nspines = 2', 6, 4, 10),
    ],
)
def test_topologies_have_their_hosts_switches_and_wires(
    topology: str, hosts: int, switches: int, wires: int
) -> None:
    text = f'[topology]\n{topology}\n[[flow]]\nfrom = "*"\nto = "*"\nsize = 1000'
    scenario = read(text)

    assert len(scenario.nodes) == hosts
    assert len(scenario.fabric.switches) == switches
    assert len(scenario.wires) == wires
    assert len(scenario.connections) == hosts * (hosts - 1)


def test_named_switch_has_the_values_of_the_first_one_and_its_own() -> None:
    scenario = read(
        """
[topology]
kind = "leaf-spine"
leaves = 2
spines = 2
hosts = 1
[[switch]]
buffer = { size = "4 MiB", alpha = "1/4", headroom = "50 kB" }
class.roce.weight = 5
[[switch]]
name = "leaf*"
buffer = "8 MiB"
routing = "spray"
[[flow]]
from = "h0"
to = "h1"
"""
    )
    leaf, spine = (scenario.fabric.switches[name] for name in ("leaf1", "spine0"))

    assert (leaf.buffer, spine.buffer) == (8 << 20, 4 << 20)
    assert (leaf.strategy, spine.strategy) == ("spray", "ecmp")
    assert leaf.classes == spine.classes
    assert (leaf.classes[0].alpha, leaf.classes[0].headroom) == (1 / 4, 50_000)
    assert leaf.classes[0].weight == 5


def test_nodes_and_wires_change_parts_of_a_topology() -> None:
    scenario = read(
        STAR
        + """
[[node]]
name = "h[12]"
profile = "connectx"
vlan = 5
[[wire]]
between = ["s0", "h0"]
rate = "25G"
overhead = 20
"""
    )

    assert [node.profile.name for node in scenario.nodes] == ["spec", "connectx", "connectx"]
    assert [node.vlan for node in scenario.nodes] == [None, 5, 5]
    assert [wire.rate_bps for wire in scenario.wires] == [25 * GBPS, 100 * GBPS, 100 * GBPS]
    assert [wire.overhead for wire in scenario.wires] == [20, 24, 24]


def test_network_of_parts_is_that_of_the_topology() -> None:
    parts = """
[[node]]
name = "h0"
[[node]]
name = "h1"
[[node]]
name = "h2"
[[switch]]
name = "s0"
buffer = "400 kB"
class.roce.ecn = { min = "20 kB", max = "40 kB" }
[[wire]]
between = ["h0", "s0"]
[[wire]]
between = ["h1", "s0"]
[[wire]]
between = ["h2", "s0"]
[cc]
"""
    traffic = STAR[STAR.index("[[flow]]") :]

    assert run(read(parts + traffic)).metrics == run(read(STAR)).metrics


FLOW = '[[flow]]\nfrom = "h0"\nto = "h1"\n'
TWO = '[topology]\nkind = "star"\nhosts = 2\n'


@each_case(
    ("text", "message"),
    [
        (
            '[topology]\nkind = "sta"\n' + FLOW,
            "x.toml:2:8: topology.kind: 'sta' is not one of back-to-back, star, dumbbell, "
            "parking-lot, leaf-spine, fat-tree, rail-optimised; did you mean star?",
        ),
        (TWO, "x.toml:1:2: topology: nothing is sent: write a [[flow]] with from, to and size"),
        (
            TWO + FLOW + "[expect]\npauses = '> pauses_'\n",
            "expect.pauses: 'pauses_' is not a number or a metric; did you mean pauses?",
        ),
        (
            TWO + FLOW + "[expect]\nfct.mean = '< fct.p5'\n",
            "expect.fct.mean: 'fct.p5' is not a time or a metric; did you mean fct.p50?",
        ),
        ('[topology]\nkind = "star"\nhost = 8\n' + FLOW, "topology: hosts is missing"),
        (
            '[topology]\nkind = "fat-tree"\nk = 3\n' + FLOW,
            "x.toml:3:5: topology.k: 3 is not an even",
        ),
        ('[topology]\nkind = "star"\nhosts = 1\n' + FLOW, "hosts: 1 is not 2 or above"),
        ('[topology]\nkind = "fat-tree"\nk = 1000\n' + FLOW, "at most 32,768 are possible"),
        (TWO + 'rate = "0G"\n' + FLOW, "x.toml:4:8: topology.rate: '0G' is not above 0"),
        (
            TWO + "[switch]\nbufer = 1\n" + FLOW,
            "x.toml:5:1: switch.bufer: unknown; did you mean buffer?",
        ),
        (
            TWO + "[switch]\nbuffer = 1000\n" + FLOW,
            "switch s0 has 1,000 bytes, but its 2 ports take",
        ),
        (TWO + "[switch.buffer]\nalpha = 1000\n" + FLOW, "1000 is not from 1/256 to 128"),
        (TWO + "[switch.buffer]\nalpha = '1/0'\n" + FLOW, "is not a number such as"),
        (
            TWO + "[switch.class.x]\n" + FLOW,
            "priority is missing; known classes are roce, cnp, other",
        ),
        (TWO + "[switch.class.x]\npriority = 3\n" + FLOW, "priority 3 is that of class roce"),
        (TWO + "[switch.class.x]\npriority = 1\ndscp = 26\n" + FLOW, "DSCP 26 is in class roce"),
        (TWO + "[switch.class.cnp]\nheadroom = 1\n" + FLOW, "only a lossless class has headroom"),
        (TWO + "[switch.class.cnp]\nweight = 1\n" + FLOW, "a strict class has no weight"),
        (
            TWO + "[switch.class.roce]\negress_alpha = 1\n" + FLOW,
            "egress_alpha: a lossless class does not drop at the output port",
        ),
        (
            TWO + "[switch.class.other]\negress_alpha = 129\n" + FLOW,
            "egress_alpha: 129 is not from 1/256 to 128",
        ),
        (
            TWO + "[switch.class.roce]\necn = { min = 5, max = 4 }\n" + FLOW,
            "4 is below min, which is 5",
        ),
        (
            '[[node]]\nname = "a"\n[[node]]\nname = "b"\n[[switch]]\nname = "s"\n'
            '[[wire]]\nbetween = ["a", "s"]\n[[flow]]\nfrom = "a"\nto = "b"\n',
            "wire: 0 is not 1, the number of links of host b: it has one port",
        ),
        (TWO + "[switch]\nname = 's1'\n" + FLOW, "no switch is called 's1'; expected s0"),
        (TWO + "[switch]\nroute = { h1 = 'h0' }\n" + FLOW, "'s0 > h0' is not a way to h1"),
        (TWO + "[switch]\nroute = { h1 = 's7' }\n" + FLOW, "'s7' is not a neighbour of s0"),
        (TWO + "[cc]\nrp_ai_rte = 1\n" + FLOW, "cc.rp_ai_rte: unknown; did you mean rp_ai_rate?"),
        (TWO + "[cc]\nrp_gd = 99\n" + FLOW, "x.toml:5:9: cc.rp_gd: 99 is not 0 to 15"),
        (TWO + '[[flow]]\nfrom = "h5"\nto = "h1"\n', "no host is called 'h5'"),
        (TWO + '[[flow]]\nfrom = "h1"\nto = "h1"\n', "h1 would send to itself only"),
        (TWO + '[[flow]]\nfrom = "h1"\n', "to is missing"),
        (TWO + FLOW + 'class = "rose"\n', "'rose' is not one of roce, cnp, other"),
        (TWO + FLOW + "[expect]\nfirst_ce = '< marks'\n", "first_ce: 'marks' is not a time"),
        (
            TWO + FLOW + "expect.cnps = '>= 98% of cnps_sent'\n",
            "'cnps_sent' is not a metric of a conn",
        ),
        (TWO + FLOW + "[[outage]]\nbetween = ['h0', 'h1']\n", "no link is between them"),
        (
            TWO + FLOW + "[[wire]]\nbetween = ['h0', 'h1']\n",
            "the topology has no link between h0 and h1",
        ),
        ('link = "ib"\n' + TWO + FLOW, "switches are those of Ethernet"),
        ("[switch]\nbuffer = 5\n" + FLOW, "name is missing, and there is no [topology]"),
        (TWO + FLOW + "[[storm]]\nhost = 'h0'\n", "storm[0]: until is missing"),
        (
            TWO + FLOW + "[[storm]]\nhost = 'h0'\nstart = '2us'\nuntil = '1us'\n",
            "until: expected a time after `start`",
        ),
        (
            TWO + "[cc]\nrp_max_rate = 3\nrp_min_rate = 4000\n" + FLOW,
            "x.toml:6:15: cc.rp_min_rate: rp_min_rate is 4,000 and rp_max_rate 3: the lowest",
        ),
        (
            TWO + "[cc]\nset = 'hpcc'\nrp_max_rate = 3\n" + FLOW,
            "x.toml:6:15: cc.rp_max_rate: rp_min_rate is 100 and rp_max_rate 3: the lowest",
        ),
        (
            TWO + "[cc]\nalgorithm = 'timely'\nt_high = '1us'\n" + FLOW,
            "x.toml:6:10: cc.t_high: with the default t_low: '50 us' is not from 0 to t_high, 1 us",
        ),
        (
            TWO + "[cc]\nalgorithm = 'timely'\nmin_rtt = '0us'\n" + FLOW,
            "x.toml:6:11: cc.min_rtt: '0 ns' is not above 0",
        ),
        (TWO + FLOW + "start = '10s'\n", "flow[0].start: the run ends at its limit of 10 s"),
        (
            TWO + FLOW + "transport = 'tcp'\nstart = '11s'\n",
            "flow[0].start: the run ends at its limit of 10 s",
        ),
        (TWO + FLOW + "[[storm]]\nhost = 's0'\nuntil = '1us'", "'s0' is not one of h0, h1"),
        (
            TWO + "[switch]\nwatchdog.acton = 'drop'\n" + FLOW,
            "acton: unknown; did you mean action?",
        ),
        (TWO + "llr.frames = 0\n" + FLOW, "llr.frames: 0 is not from 1"),
        (TWO + FLOW + "rate = '0G'\n", "x.toml:7:8: flow[0].rate: '0G' is not above 0"),
        (TWO + FLOW + "burst = 5\n", "burst: needs a rate"),
        (
            TWO + "[cc]\nalgorithm = 'hpcc'\n" + FLOW + "rate = '1G'\n",
            "x.toml:4:2: cc: decides on the rate, which a [[flow]] has too",
        ),
        (TWO + "llr.while_down = 'x'\n" + FLOW, "'x' is not one of best-effort, block, discard"),
        (TWO + "[cc]\nalgorithm = 'timely'\nrp_gd = 1\n" + FLOW, "cc.rp_gd: unknown"),
        (TWO + "[cc]\nalgorithm = 'hpcc'\nai_bps = 5\n" + FLOW, "5 is not a rate such as 100G"),
        *(
            (
                TWO + f"[cc]\nalgorithm = '{name}'\nbase_rtt = '0us'\n" + FLOW,
                "x.toml:6:12: cc.base_rtt: '0 ns' is not 1 ns or above",
            )
            for name in ("hpcc", "dctcp")
        ),
        ("[[wire]]\nllr = true\n[[workload]]\n", "llr needs a network of switches"),
        ("[[outage]]\n[[workload]]\n", "outage: needs a network of switches"),
    ],
)
def test_wrong_scenario_is_refused_with_its_place(text: str, message: str) -> None:
    assert message in refused(text)


def test_circle_of_static_routes_is_refused() -> None:
    text = """
[topology]
kind = "dumbbell"
left = 1
right = 1
[[switch]]
name = "s1"
route = { r0 = "s0" }
[[flow]]
from = "l0"
to = "r0"
"""

    assert "x.toml:8:9: switch[0].route: 's0 > s1 > s0' is not a way to r0" in refused(text)


# What is measured.


def test_marks_come_before_pauses_and_everything_arrives(outcome: Any) -> None:
    metrics = outcome.metrics

    assert outcome.passed
    assert outcome.ended == "idle"
    assert metrics["verified_bytes"] == 600_000
    assert metrics["drops.all"] == metrics["retransmitted"] == 0
    assert metrics["marks"] == metrics["ce_marked"] > 0
    assert metrics["first_ce"] < metrics["first_pause"]
    assert 0 < metrics["cnps"] == metrics["cnps_sent"] == metrics["cnps_switched"]


def test_pauses_are_counted_at_both_ends(outcome: Any) -> None:
    metrics = outcome.metrics
    hosts = [port for port in outcome.ports if not port.is_switch]

    # No pause lasts long enough here to be repeated.
    assert 0 < metrics["pauses"] == metrics["resumes"]
    assert metrics["pause_frames"] == 2 * metrics["pauses"]
    assert sum(port.pause_frames for port in hosts) == metrics["pause_frames"]
    assert metrics["time_paused.sum"] == sum(port.time_paused[3] for port in hosts) > 0
    assert metrics["time_paused.max"] == max(port.time_paused[3] for port in hosts)


def test_pauses_of_whole_ports_stop_all_priorities() -> None:
    outcome = run(read(STAR.replace("[switch]", '[switch]\npause = "802.3x"')))
    stopped = [port.time_paused for port in outcome.ports if not port.is_switch]

    assert outcome.passed
    assert outcome.metrics["pauses"] > 0 == outcome.metrics["drops.all"]
    assert all(times == [times[3]] * 8 for times in stopped)
    assert any(times[3] for times in stopped)


@pytest.mark.parametrize(("least", "early"), [("20 kB", 0), ("300 kB", 1)])
def test_switch_that_pauses_before_it_marks_is_counted(least: str, early: int) -> None:
    text = STAR.replace('"20 kB", max = "40 kB"', f'"{least}"')

    assert run(read(text)).metrics["early_pauses"] == early


def test_flow_in_an_idle_network_has_a_slowdown_of_one() -> None:
    text = '[topology]\nkind = "parking-lot"\nswitches = 3\nuplink = "40G"\n[[flow]]\n'
    for size in (100, 1024, 100_000, 700_001):
        metrics = run(read(text + f'from = "a0"\nto = "b2"\nsize = {size}')).metrics

        assert 999 <= metrics["slowdown.max"] <= 1010, size


@pytest.mark.parametrize(("burst", "at_once"), [(0, 1), (5000, 6)])
def test_flow_sends_at_its_rate_after_its_burst(burst: int, at_once: int) -> None:
    """A packet of 1106 bytes of line time takes 884.8 ns at 10 Gb/s, and 88.48 ns on the line."""
    times: list[int] = []

    def note(node: str, event: str, frame: bytes, now: int) -> None:
        if (node, event) == ("h0", "sent"):
            times.append(now)

    text = TWO + FLOW + f'size = 30720\nrate = "10 Gb/s"\nburst = {burst}\n'
    outcome = run(read(text), observers=[note])
    gaps = [later - before for before, later in itertools.pairwise(times)]

    assert outcome.passed
    assert len(times) == 30
    assert [gap < 100_000 for gap in gaps] == [True] * (at_once - 1) + [False] * (30 - at_once)
    assert set(gaps[at_once + 1 :]) == {884_800}


def test_completion_time_of_one_packet_is_that_of_its_lines() -> None:
    metrics = run(read(TWO + FLOW + "size = 1024")).metrics

    # 1024 bytes with RETH: 1098 and 24 of overhead on each line; the ACK has 62 and 24; a
    # byte takes 80 ps, and each of the four lines 1 us.
    assert metrics["fct.max"] == 4 * US + 2 * (1098 + 24 + 62 + 24) * 80


def test_utilisation_is_rounded() -> None:
    metrics = run(read(TWO + FLOW + "size = 2048")).metrics

    # The switch sends 1098 and 1082 bytes with 24 of overhead each, 178.24 ns; all takes four
    # delays, the first packet on both lines, the second one behind it, and the ACK: 4.163 %.
    assert metrics["fct.max"] == 4 * US + 80 * (2 * 1122 + 1106 + 2 * 86)
    assert metrics["utilisation"] == 42


def test_two_equal_flows_are_fair_and_share_the_line() -> None:
    metrics = run(read(STAR.replace("[cc]\n", ""))).metrics

    # 588 packets take 88.5 ns each, of the 56 us from the first post to the last ACK.
    assert metrics["fairness"] >= 995
    assert 920 <= metrics["utilisation"] <= 930
    assert metrics["marks"] == 0
    assert run(read(STAR + '[expect]\nrate.min = ">= 40% of rate.max"\nfairness = "> 0.5"')).passed


def test_lossy_class_drops_and_lossless_class_does_not() -> None:
    text = STAR.replace("[cc]\n", "") + "dscp = 0\ntimeout = 8\n"
    metrics = run(read(text)).metrics

    assert metrics["drops.all"] == metrics["drops.buffer_full"] > 0
    assert metrics["naks.sequence"] > 0
    assert metrics["pauses"] == 0


def test_expectation_about_what_never_happened() -> None:
    text = TWO + FLOW + '[expect]\nfirst_ce = "< first_pause"\n'
    outcome = run(read(text))

    assert [check.passed for check in outcome.checks if check.expectation.metric == "first_ce"] == [
        False
    ]


def test_failed_line_drops_with_its_reason_and_traffic_takes_the_other_way() -> None:
    text = """
[topology]
kind = "leaf-spine"
leaves = 2
spines = 2
hosts = 1
[switch]
route = {}
[[outage]]
between = ["leaf0", "spine0"]
at = "5us"
[[outage]]
between = ["leaf0", "spine1"]
at = "5us"
until = "20us"
[[flow]]
from = "h0"
to = "h1"
size = "500 kB"
timeout = 4
"""
    metrics = run(read(text)).metrics

    assert metrics["verified_bytes"] == 500_000
    assert metrics["drops.all"] > 0
    assert metrics["retransmitted"] > 0


def test_percentiles_of_the_fullest_queue_are_those_of_its_recording() -> None:
    recording = Recording()
    metrics = run(read(STAR.replace("[cc]\n", "")), recording=recording).metrics
    of_port = {time: size for time, key, size in recording.queues.rows() if key[1] == "h0"}
    # Both sample every microsecond; a recording takes the first event after it.
    sizes = sorted(of_port.values())

    assert 0 < metrics["queue.p50"] < metrics["queue.p99"] <= metrics["queue.max"]
    assert metrics["queue.p50"] == pytest.approx(sizes[len(sizes) // 2], rel=0.1)
    assert metrics["queue.p99"] == pytest.approx(sizes[len(sizes) * 99 // 100], rel=0.1)


def test_many_samples_of_queues_become_fewer_at_equal_intervals() -> None:
    lengths, first, late = QueueLengths(), QueueKey("s0", 0, 3), QueueKey("s0", 1, 3)
    now = 0
    for number in range(10_000):
        now += lengths.interval
        lengths.add(now, {first: now} | ({late: 7} if number >= 9_990 else {}))
    steps = {b - a for a, b in zip(lengths.times, lengths.times[1:], strict=False)}

    assert 2000 < len(lengths.times) <= 4100
    assert steps == {lengths.interval} != {FIRST_INTERVAL}
    assert lengths.between(first, 0, now) == list(lengths.times)
    assert lengths.between(late, 0, now)[-11:] == [0, *[7] * 10]
    assert lengths.between(QueueKey("s1", 0, 3), 0, now) == []


@pytest.mark.parametrize("algorithm", ["dctcp", "hpcc", "timely", "swift", "none"])
def test_each_congestion_control_delivers_everything(algorithm: str) -> None:
    outcome = run(read(STAR.replace("[cc]\n", f"[cc]\nalgorithm = '{algorithm}'\n")))

    assert outcome.passed
    assert outcome.metrics["verified_bytes"] == 600_000
    assert (outcome.metrics["marks"] > 0) == (algorithm == "dctcp")


def test_run_that_stands_still_says_who_waits_for_whom() -> None:
    storm = "[[storm]]\nhost = 'h0'\nuntil = '1s'\n"
    outcome = run(read("limit = '300us'\n" + STAR + "timeout = 0\n" + storm))

    assert not outcome.passed
    assert outcome.ended == "until"
    assert any("s0 to h0 (priority 3): h0 pauses it" in line for line in outcome.standstill)
    assert any(
        line.startswith("h1 to s0 (priority 3): waits for s0 to h0") for line in outcome.standstill
    )


# What is printed and captured.


def test_report_names_the_ports_and_fits_80_columns(tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    path.write_text(STAR)
    result = invoke(path)

    assert result.exit_code == 0, result.output
    assert all(len(line) <= 80 for line in result.stdout.splitlines())
    assert "first mark: " in result.stdout
    assert "frames dropped by switches: none\n" in result.stdout
    assert [line for line in result.stdout.splitlines() if line.startswith("s0 to h0 ")]


def test_json_has_an_object_for_each_port_and_null_for_never(tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    path.write_text(TWO + FLOW)
    objects = [json.loads(line) for line in invoke(path, "--json").stdout.splitlines()]
    ports = [each for each in objects if each["kind"] == "port"]

    assert [(port["node"], port["peer"]) for port in ports] == [
        ("h0", "s0"),
        ("s0", "h0"),
        ("h1", "s0"),
        ("s0", "h1"),
    ]
    assert objects[-1]["first_ce_ps"] is None
    assert objects[-1]["fairness_permille"] == 1000


def test_ports_of_a_line_with_retry_have_its_counters(tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    retry = (
        "[[wire]]\nbetween = ['h0', 's0']\n[wire.llr]\nsequence_bits = 8\nwhile_down = 'block'\n"
    )
    path.write_text(
        TWO + retry + "[[wire.faults.h0]]\ndrop = { every = 50 }\n" + FLOW + "size = '300 kB'\n"
    )
    objects = [json.loads(line) for line in invoke(path, "--json").stdout.splitlines()]
    ports = {(each["node"], each["peer"]): each["llr"] for each in objects if "llr" in each}
    sent, received = ports["h0", "s0"], ports["s0", "h0"]

    assert ports["h1", "s0"] == ports["s0", "h1"] == {}
    # Blocked until the line was initialised, so each frame has a number; these wrap after 256.
    assert sent["LLR_TX_OK"] == received["LLR_RX_OK"] > 256
    assert sent["LLR_TX_REPLAY"] == received["LLR_RX_REPLAY"] == objects[-1]["llr_replays"] > 5
    assert received["LLR_RX_MISSING_SEQ"] > objects[-1]["faults"] >= sent["LLR_TX_REPLAY"]


@pytest.fixture(scope="module")
def tapped(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("tapped")
    (folder / "x.toml").write_text(STAR)
    path = folder / "x.pcapng"
    result = invoke(folder / "x.toml", "-o", path, "--tap", "h1", "--tap", "s0:h1", "--json")
    assert result.exit_code == 0, result.output
    return path, [json.loads(line) for line in result.stdout.splitlines()]


def records(path: Path) -> Any:
    with open_capture(path) as capture:
        return [record for batch in capture.batches() for record in batch.records()]


def test_tap_sees_the_pause_frames_of_both_ends(tapped: Any) -> None:
    path, objects = tapped
    port = next(each for each in objects if (each["kind"], each["node"]) == ("port", "h1"))
    with open_capture(path) as capture:
        frames = [
            (record.interface, record.data)
            for batch in capture.batches()
            for record in batch.records()
            if is_mac_control(record.data)
        ]
    by_interface = [sum(each == number for each, _ in frames) for number in (0, 1)]

    assert by_interface == [port["pause_frames"], port["pause_frames"]]
    assert port["pause_frames"] > 0


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("tshark") is None, reason="tshark not installed")
def test_tshark_reads_pauses_and_cnps_without_malformed_frames(tapped: Any) -> None:
    path, objects = tapped

    def count(which: str) -> int:
        done = subprocess.run(
            ["tshark", "-r", path, "-Y", which], capture_output=True, text=True, check=True
        )
        return len(done.stdout.splitlines())

    port = next(each for each in objects if (each["kind"], each["node"]) == ("port", "h1"))
    sender = next(each for each in objects if (each["kind"], each["node"]) == ("qp", "h1"))
    assert count("_ws.malformed") == 0
    assert count("macc.opcode == 0x0101") == 2 * port["pause_frames"]
    assert count("infiniband.bth.opcode == 0x81") == 2 * sender["cnps"] > 0


@pytest.mark.parametrize(
    "tap",
    [
        "h0",
        pytest.param("h1", marks=pytest.mark.slow),
        pytest.param("s0:h0", marks=pytest.mark.slow),
    ],
)
def test_check_finds_nothing_in_the_capture(tap: str, tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_text(STAR)
    path = tmp_path / "x.pcapng"
    invoke(tmp_path / "x.toml", "-o", path, "--tap", tap)
    result = CliRunner().invoke(main, ["check", str(path)])

    assert " 0 errors, 0 warnings" in result.stdout, result.output


def test_capture_times_never_go_back(tapped: Any) -> None:
    path, _ = tapped
    times = [record.time_ns for record in records(path)]

    assert times == sorted(times)
    assert times[-1] < 1000 * US // NS


# What the test plans of switch vendors state.

PLAN = """
[topology]
kind = "star"
hosts = 9
[switch]
{switch}
[cc]
algorithm = "{algorithm}"
set = "connectx"
[[flow]]
name = "ranks"
from = "h*"
to = "h0"
size = "200 kB"
timeout = 8
{flow}
[expect]
{expect}
"""
SMALL = 'buffer = "1 MiB"'
MARKS = 'class.roce.ecn = { min = "20 kB", max = "80 kB", probability = 0.2 }'


@pytest.mark.parametrize(
    ("switch", "algorithm", "flow", "expect"),
    [
        # PFC alone, lossless DSCP: no failed message, no NAK, no sequence error.
        (SMALL, "none", "", "failed = 0\nnaks.sequence = 0\nretransmitted = 0\npauses = '> 0'"),
        # PFC alone, lossy DSCP: packets are lost.
        (SMALL, "none", "dscp = 0", "drops.buffer_full = '> 0'\npauses = 0\nnaks.sequence = '> 0'"),
        # DCQCN: marks and CNPs, the same number of CNPs at switch and hosts within 2 %, few
        # pauses, hardly a sequence error, rates of ranks within 30 %.
        (
            MARKS,
            "dcqcn",
            "",
            "ce_marked = '> 0'\ncnps = '> 0'\npause_frames = '<= 100'\n"
            "cnps_switched = '>= 98% of cnps_sent and <= 102% of cnps_sent'\n"
            "naks.sequence = '<= 1% of packets'\nrate.min = '>= 70% of rate.max'",
        ),
        # ECN before PFC, and the counters of switch and hosts agree.
        (MARKS, "dcqcn", "", "first_ce = '< first_pause'\nce_marked = 'marks'"),
    ],
)
def test_plan_of_switch_vendors_is_a_scenario(
    switch: str, algorithm: str, flow: str, expect: str
) -> None:
    text = PLAN.format(switch=switch, algorithm=algorithm, flow=flow, expect=expect)
    if algorithm != "dcqcn":
        text = text.replace('set = "connectx"\n', "")

    assert [check for check in run(read(text)).checks if not check.passed] == []


def test_priority_in_the_vlan_tag_decides_where_switches_trust_it() -> None:
    text = STAR.replace("[cc]\n", '[[node]]\nvlan = 7\n[[node]]\nname = "h[12]"\nvlan = 7\n')
    by_pcp = text.replace("[switch]\n", '[switch]\ntrust = "pcp"\n') + "dscp = 0\ntimeout = 8\n"

    assert run(read(by_pcp)).metrics["pauses"] > 0
    lossy = run(read(by_pcp + "priority = 0\n")).metrics
    assert (lossy["pauses"], lossy["drops.all"] > 0) == (0, True)


def test_effort_counts_every_pair_of_hosts() -> None:
    note = announcement(read(STAR + "count = 1000\nmessage = 1\n"))

    assert note is not None
    assert note.startswith("600,000,000 messages")


@pytest.mark.slow
@settings(max_examples=scaled(12), deadline=None)
@given(
    form=st.sampled_from(
        [
            'kind = "star"\nhosts = 5',
            'kind = "dumbbell"\nleft = 3\nright = 2',
            'kind = "leaf-spine"\nleaves = 2\nspines = 2\nhosts = 2',
        ]
    ),
    rate=st.sampled_from([10, 25, 100, 400]),
    delay=st.sampled_from(["0ns", "10ns", "1us", "7us"]),
    routing=st.sampled_from(["ecmp", "spray", "adaptive"]),
    alpha=st.sampled_from(["1/256", "1/128", "1/64", "128"]),
    mtu=st.sampled_from([256, 1024, 4096]),
)
def test_default_headroom_keeps_every_frame_of_a_lossless_class(
    form: str, rate: int, delay: str, routing: str, alpha: str, mtu: int
) -> None:
    text = f"""
[topology]
{form}
rate = "{rate}G"
delay = "{delay}"
[switch]
routing = "{routing}"
[switch.buffer]
size = "16 MiB"
alpha = "{alpha}"
[[flow]]
from = "*"
to = "*0"
size = "150 kB"
mtu = {mtu}
"""
    metrics = run(read(text)).metrics

    assert metrics["drops.all"] == 0
    assert metrics["unfinished"] == metrics["failed"] == 0
