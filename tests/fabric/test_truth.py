"""Networks of switches against the numbers of ns-3 HPCC: reference/fabric#shared-buffer.

`python tests/bench/fabric_truth.py` compares random sets as well, with all their seeds.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from math import sqrt
from pathlib import Path
from statistics import stdev
from typing import Any

import pytest

from each_case import each_case
from ibwire.base.units import GBPS, US
from ibwire.fabric.switch.routing import Strategy
from ibwire.rc.profile import CONNECTX_AR
from truth.compare import UnknownKind, exact_rows, parts_of, rows_of, standard_error, stat_rows
from truth.network import MODES, PRIORITY, Run, bits_per_second
from truth.paths import topology_of, transfer_times
from truth.sets import DATA


def exact_sets() -> Any:
    for path in sorted(DATA.glob("*.json")):
        document = json.loads(path.read_text())
        for number, each in enumerate(document.get("sets", ())):
            config = each.get("setup", {}).get("config", {})
            if "flows" in each and config.get("cc", 1) in MODES:
                name = f"{path.stem} {each.get('name', number)}"
                # The first incast is for the quick suite; others take seconds.
                marks = () if name == "pfc_incast 0" else (pytest.mark.slow,)
                yield pytest.param(each, id=name, marks=marks)


@pytest.mark.parametrize("found", list(exact_sets()))
def test_run_agrees_with_the_other_simulator(found: Mapping[str, Any]) -> None:
    rows = list(exact_rows(found))

    assert [row for row in rows if not row.passed] == []
    assert len(rows) > 5
    if found["setup"]["config"].get("cc", 1) in (0, 1):
        # The bounds are for rates and delays that agree roughly; these agree to the nanosecond.
        ends = [row for row in rows if row.name.endswith("completion, ns")]
        assert [row for row in ends if abs(row.got - row.expected) > 10] == []
        assert ends


def test_incast_has_the_same_pauses_one_by_one() -> None:
    found = json.loads((DATA / "pfc_incast.json").read_text())["sets"][0]
    run = Run(found["setup"])

    run.run()

    (switch,) = run.network.switches.values()
    for port, there in zip(switch.counters, found["ports"], strict=True):
        assert port.pauses_sent[PRIORITY] == there["pause"]
        assert port.resumes_sent[PRIORITY] == there["resume"]
    assert switch.counters[-1].largest_queue[PRIORITY] == found["ports"][-1]["maxq"]


@pytest.mark.slow
def test_random_marks_give_the_same_means() -> None:
    found = json.loads((DATA / "dcqcn_red.json").read_text())["sets"][0]

    assert [row for row in stat_rows(found, seeds=6) if not row.passed] == []


def test_headroom_equals_the_table_of_the_vendor() -> None:
    rows = list(rows_of(json.loads((DATA / "headroom_sonic.json").read_text())))

    assert [row for row in rows if not row.passed] == []
    assert len(rows) == 15


def test_file_of_another_kind_is_refused() -> None:
    with pytest.raises(UnknownKind, match="no set"):
        list(rows_of({"cases": []}))


def permutation() -> list[str]:
    """16 transfers of 2 MB, each host sends one and receives one."""
    matrix: list[str] = json.loads((DATA / "htsim_roce_routing.json").read_text())["matrix"]
    return matrix


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ecmp_host", "ecmp_ar"])
def test_one_path_for_each_flow_or_flowlet_takes_as_long_as_in_htsim(strategy: str) -> None:
    document = json.loads((DATA / "htsim_roce_routing.json").read_text())
    document["runs"] = [each for each in document["runs"] if each["strategy"] == strategy]

    rows = list(rows_of(document))

    assert [row for row in rows if not row.passed] == []
    assert len(rows) == 3


@pytest.mark.slow
def test_spraying_without_go_back_n_is_near_ideal() -> None:
    """htsim with its own transport and 128 paths: 194 us (reference/transport#early-packets)."""
    times, retransmitted = transfer_times(permutation(), Strategy.SPRAY, profile=CONNECTX_AR)

    assert retransmitted == 0
    assert times[-1] < 194 * US * 1.1


def script(folder: Path) -> subprocess.CompletedProcess[str]:
    """A run of the script over a folder."""
    here = Path(__file__).parents[1]
    command = [sys.executable, str(here / "bench/fabric_truth.py"), str(folder)]
    environment = {**os.environ, "PYTHONPATH": str(here)}
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


@pytest.mark.slow
def test_file_that_cannot_be_compared_is_a_miss_and_the_next_one_runs(tmp_path: Path) -> None:
    empty = script(tmp_path)
    (tmp_path / "a.json").write_text("[]")
    (tmp_path / "b.json").write_text('{"params": {}, "rows": []}')
    (tmp_path / "c.json").write_text((DATA / "headroom_sonic.json").read_text())
    result = script(tmp_path)

    assert (empty.returncode, result.returncode) == (2, 1)
    assert "no .json file there" in empty.stderr
    assert "b.json\n  MISS cannot be compared: the key 'cell' is missing\n" in result.stdout
    assert "c.json\n  ok" in result.stdout
    assert "a.json\n  left out, and not compared: it is not an object\n" in result.stdout
    assert "15 rows, 1 missed, 1 files left out" in result.stdout


def incast(**changes: Any) -> dict[str, Any]:
    """The first incast, which takes a moment, with other values in its `setup`."""
    document: dict[str, Any] = json.loads((DATA / "pfc_incast.json").read_text())
    document["sets"] = document["sets"][:1]
    document["sets"][0]["setup"].update(changes)
    return document


@pytest.mark.parametrize(
    ("change", "key"),
    [
        (lambda each: each["setup"]["config"].update(clamp=1), "setup.config.clamp"),
        (lambda each: each["setup"].update(losses=0.1), "setup.losses"),
        (lambda each: each["setup"]["config"].update(cc=10), "setup.config.cc = 10"),
        (lambda each: each["ports"][0].update(latency=3), "ports.latency"),
        (lambda each: each.update(delay=3), "delay"),
    ],
)
def test_key_that_no_run_here_follows_is_named(
    change: Callable[[dict[str, Any]], None], key: str
) -> None:
    document = incast()
    change(document["sets"][0])

    assert [each.unknown for each in parts_of(document)] == [[key]]
    assert [each.unknown for each in parts_of(incast())] == [[]]


def test_key_of_a_file_that_is_not_known_is_named() -> None:
    found = parts_of({**incast(), "speed": 3})

    assert [each.unknown for each in found] == [["speed"], []]


@pytest.mark.slow
def test_script_misses_what_it_cannot_follow_and_names_what_it_leaves_aside(
    tmp_path: Path,
) -> None:
    document = json.loads((DATA / "headroom_sonic.json").read_text())
    document["params"]["lanes"] = 8
    (tmp_path / "a.json").write_text(json.dumps(document))
    (tmp_path / "b.json").write_text('{"cases": []}')

    result = script(tmp_path)

    assert result.returncode == 1
    assert "MISS no run here has params.lanes" in result.stdout
    assert "b.json\n  left out, and not compared" in result.stdout
    assert "15 rows, 1 missed, 1 files left out" in result.stdout


@each_case("path", sorted(DATA.glob("*.json")), ids=lambda path: path.stem)
def test_all_keys_of_the_files_are_known(path: Path) -> None:
    document = json.loads(path.read_text())

    assert [each.unknown for each in parts_of(document) if each.unknown] == []


def test_one_run_is_as_uncertain_as_those_of_the_other_simulator() -> None:
    """One of two means has the deviation sd, the other sd / sqrt(n)."""
    there = {"mean": 100, "sd": 8, "n": 16}

    assert standard_error([90], there) == pytest.approx(8 * sqrt(1 + 1 / 16))


def test_as_many_runs_as_there_give_the_sum_of_both_errors() -> None:
    here = [1.0, 3.0, 5.0, 11.0]

    found = standard_error(here, {"mean": 4, "sd": 2, "n": 4})

    assert found == pytest.approx(sqrt(2**2 / 4 + stdev(here) ** 2 / 4))


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("100Gbps", 100 * 10**9),
        ("1.6Tbps", 1600 * 10**9),
        ("2500Mbps", 2_500_000_000),
        ("5Mb/s", 5_000_000),
    ],
)
def test_rates_are_read(text: str, rate: int) -> None:
    assert bits_per_second(text) == rate


def test_rate_without_a_unit_is_named() -> None:
    with pytest.raises(ValueError, match="'fast' is not of the form"):
        bits_per_second("fast")


@pytest.mark.parametrize("gigabits", [10, 25, 40, 200, 400, 800, 1600])
def test_incast_ends_after_its_packets_at_any_rate(gigabits: int) -> None:
    """A switch that loses nothing and never idles: each packet takes whole nanoseconds."""
    links = [[end, 3, f"{gigabits}Gbps", 1000] for end in range(3)]
    setup = incast(links=links, packets_each=60)["sets"][0]["setup"]
    run = Run({**setup, "config": {**setup["config"], "buf": 4}})

    run.run()

    packet = 1106 * 8 // gigabits
    # Two packets on their way before, and an ACK back; four delays.
    assert 0 <= run.end / 1000 - 120 * packet - 4000 < 2.5 * packet


def test_first_pause_comes_when_the_threshold_of_the_model_is_reached() -> None:
    """n senders pause when each holds B' / (8 + n) and its reserve: reference/fabric#shared-buffer.

    Each has 1106 bytes a packet at the switch, of which 1 / n leaves.
    """
    senders = 4
    links = [[end, 5, "100Gbps", 1000] for end in range(5)]
    setup = {**incast()["sets"][0]["setup"], "links": links, "senders": 4, "receiver": 4}
    run = Run({**setup, "packets_each": 400})

    run.run()

    shared = (1 << 20) - 5 * (37_500 + 4096)
    held = shared / (8 + senders) + 4096
    filled = held / 1106 * 88 / (1 - 1 / senders)
    for host in range(senders):
        expected = 1000 + filled + 1000
        assert run.first_pauses[f"n{host}", 1] / 1000 == pytest.approx(expected, abs=3 * 88)


def test_pauses_of_switches_are_watched_and_the_uplink_is_found() -> None:
    """Other numbers than in the file: the shared line is that between the two switches."""
    links = [[end, 6, "100Gbps", 1000] for end in (0, 1, 2, 5)]
    links += [[3, 7, "25Gbps", 1000], [4, 7, "100Gbps", 1000], [6, 7, "100Gbps", 1000]]
    flows = [[end, 3, 3, 400 * 1058, 0] for end in (0, 1, 2)] + [[5, 4, 3, 500 * 1058, 0]]
    setup = {
        "links": links,
        "flows": flows,
        "config": {"cc": 0, "qcn": 0, "buf": 1},
        "topology": "two switches",
    }
    names = ("victim_fct", "uplink_paused_ns", "pauses_uplink")
    stats = {name: {"mean": 0, "sd": 0, "n": 1} for name in names}

    victim, paused, pauses = stat_rows({"setup": setup, "stats": stats}, seeds=1)
    run = Run(setup, watched=[("n6", 5)])
    run.run()

    # The line to n3 takes 353 ns a packet, of which the victim gets every fourth until then.
    assert 4 * 500 * 88 < victim.got < 3 * 400 * 353
    assert pauses.got > 0
    assert 0 < paused.got < 3 * 400 * 353
    assert 0 < run.first_pauses["n6", 5] < run.end


def test_results_may_stand_in_any_order_but_not_be_of_other_flows() -> None:
    document = incast()
    (each,) = document["sets"]
    each["flows"].reverse()

    assert [row for row in rows_of(document) if not row.passed] == []

    each["flows"][0]["src"] = 5
    with pytest.raises(ValueError, match="no result of the flow of 2000 packets"):
        list(rows_of(document))


def test_figures_that_a_set_does_not_have_are_not_compared() -> None:
    document = incast()
    (each,) = document["sets"]
    rates = {"0>2": [[0, 100]], "1>2:7": [[0, 100]]}
    few = {
        "setup": each["setup"],
        "flows": [{"src": there["src"], "dst": there["dst"]} for there in each["flows"]],
        "ports": [{"node": 3, "port": 3, "maxq": each["ports"][-1]["maxq"]}],
        "series": {"rate": rates},
    }
    none = {"setup": each["setup"], "flows": few["flows"]}

    rows = list(rows_of({"sets": [few]}))

    # No rate changes, so each sample is that of the line.
    samples = [row.name.partition(", ")[0] for row in rows[:2]]
    assert samples == ["set 1: 0>2", "set 1: 1>2:7"]
    assert [row.name for row in rows[2:]] == [
        "set 1: n3 port 3, largest queue, bytes",
        "set 1: drops",
    ]
    assert [row for row in rows if not row.passed] == []
    assert [row.name for row in rows_of({"sets": [none]})] == ["set 1: drops"]


def test_series_has_the_port_of_its_flow_where_two_have_its_ends() -> None:
    document = incast(flows=[[0, 2, 3, 40 * 1058, 0], [0, 2, 3, 40 * 1058, 0]])
    (each,) = document["sets"]
    for key in ("senders", "receiver", "packets_each"):
        del each["setup"][key]
    flows = [{"src": 0, "dst": 2, "sport": port} for port in (10, 11)]
    found = {"setup": each["setup"], "flows": flows, "series": {"rate": {"0>2:11": []}}}

    assert [row.name for row in rows_of({"sets": [found]})] == ["set 1: drops"]

    found["series"] = {"rate": {"0>2:12": []}}
    with pytest.raises(ValueError, match="the series '0>2:12' is that of 0 flows"):
        list(rows_of({"sets": [found]}))


def test_runs_that_would_hang_there_have_no_figures_here() -> None:
    """Without a timer a lost tail is never repeated; here it costs 524 us."""
    stats = {"fct": {"mean": 0, "sd": 1, "n": 2}}
    each = {"error": 0.02, "packets": 60, "runs": 12, "stats": stats}

    hung, times = rows_of({"sets": [each]})

    assert hung.got == 0
    # Each of a few losses costs a round trip of 4 us and what was on its way.
    assert 60 * 88 + 4_000 < times.got < 40_000


def test_words_of_a_file_give_the_fat_tree_of_its_permutation() -> None:
    text = "3-tier fat tree, 128 host slots, 200G, 2 us a hop, MTU 4000"

    found = topology_of({"topology": text, "matrix": ["0->1 id 1 start 0 size 2000000"]})

    assert len(found.hosts) == 128
    assert {(link.rate_bps, link.delay) for link in found.links} == {(200 * GBPS, 2 * US)}
