"""Every shipped scenario does what its comment promises, the same each time, and its capture
opens with good ICRCs."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from examples import sampled
from ibwire.capture import open_capture
from ibwire.cli import main
from ibwire.dissect import Columns
from ibwire.dissect.fields import spec_of
from ibwire.fabric.pause import is_mac_control
from ibwire.scenario import run, shipped

SCENARIOS = shipped()
LARGE = ("one-percent-loss", "thousand-qps")
SMALL = [name for name in SCENARIOS if name not in LARGE]
LARGER = [pytest.param(name, marks=pytest.mark.slow) for name in LARGE]
DAMAGED = {"corruption"}
GOOD = spec_of("icrc.status").type.words.index("good")

# Counted by hand from what the comments say.
BY_HAND = {
    # 8 packets, the 6 from the gap on again, a NAK and the last ACK.
    "one-lost-packet": {"packets": 16, "retransmitted": 6, "duplicates": 0},
    # 10 + 1 SENDs with an ACK each, and the last of both once more.
    "lost-ack": {"packets": 24, "faults": 2},
    # Two requests, 16 responses each; 12 again from the gap on, which had all left; the last
    # once more; two new requests.
    "lost-read-response": {"packets": 2 + 32 + 12 + 1 + 2},
    # 8 queue pairs: 5 SENDs refused, one taken and three more, two packets of each message
    # until the first one is refused: see test_rnr_storm_packets.
    "rnr-storm": {"naks.rnr": 40, "verified_bytes": 8 * 4 * 2048},
    "rnr-retry-exhausted": {"retransmitted": 3, "naks.rnr": 4, "success": 0},
    "retry-exhaustion": {"timeouts": 4, "failed": 1, "flushed": 3},
    # WRITE: 8 + 5 again + NAK + ACK; READ: 2 requests, 8 responses, 5 again from PSN 0 on.
    "psn-wrap": {"packets": 8 + 5 + 2 + 2 + 8 + 5},
    # 16, then 13 again; two NAKs, an ACK for the last, and one for what came twice.
    "reordering": {"packets": 16 + 13 + 2 + 1 + 1},
    "mtu-mismatch": {"too_long": 4, "retransmitted": 3, "verified": 21},
    "wrong-key": {"naks.fatal": 1, "verified": 12, "flushed": 7},
    "rxe-spurious-timeout": {"retransmitted": 1, "timeouts": 1, "packets": 2 * 20 + 2},
    "atomics-duplicated": {"verified": 500, "verified_bytes": 4000},
    "corruption": {"wrong": 0, "verified": 300},
    "credit-starvation": {"naks.rnr": 48, "verified": 100},
    "incast": {"verified": 80, "verified_bytes": 80 * 32768},
    "one-percent-loss": {"verified": 1000, "verified_bytes": 1000 * 65536},
    "thousand-qps": {"verified": 4000, "verified_bytes": 4000 * 4096},
    "unreliable": {"success": 400, "retransmitted": 0},
    # 294 packets of each of eight flows; an ACK for each of 2 messages.
    "incast-pfc": {"verified_bytes": 8 * 300_000, "packets": 8 * (294 + 4), "marks": 0},
    "incast-dcqcn": {"verified_bytes": 8 * 300_000, "pauses": 0, "drops.all": 0},
    "victim-flow": {"verified_bytes": 5 * 200_000, "packets": 5 * (196 + 4), "drops.all": 0},
    "parking-lot": {"verified_bytes": 3 * 400_000, "drops.all": 0},
    # The storm lasts 2 ms; each of its pauses 335 us, of which the last begins by then.
    "pause-storm": {"verified_bytes": 2 * 500_000, "naks.fatal": 0},
    "headroom-too-small": {"verified_bytes": 2 * 250_000, "marks": 0},
    "dscp-mismatch": {"verified_bytes": 4 * 200_000, "marks": 0},
    "ecmp-collision": {"verified_bytes": 8 * 200_000, "drops.all": 0, "retransmitted": 0},
    "spraying": {"verified_bytes": 4 * 50_000, "drops.all": 0},
    "spraying-placed": {"verified_bytes": 4 * 50_000, "retransmitted": 0},
    "link-failure": {"verified_bytes": 2 * 500_000, "drops.buffer_full": 0},
    "link-retry": {"verified_bytes": 2 * 400_000, "drops.all": 0},
    # 684 segments of 1460 bytes and a shorter one.
    "tcp-beside-rdma": {"verified_bytes": 1_000_000, "tcp.segments": 685, "tcp.cuts": 0},
}


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["run", *map(str, arguments)])


@pytest.mark.parametrize("name", [*sampled(SMALL, 2), *LARGER])
def test_shipped_scenario_keeps_its_promise(name: str) -> None:
    outcome = run(SCENARIOS[name])
    failed = [check for check in outcome.checks if not check.passed]

    assert not failed
    assert outcome.ended == "idle"
    measured = {metric: outcome.metrics[metric] for metric in BY_HAND[name]}
    assert measured == BY_HAND[name]


@pytest.mark.parametrize("name", sampled(SMALL, 6))
@pytest.mark.parametrize("seed", sampled([2, 3], 2))
def test_promise_does_not_depend_on_the_seed(name: str, seed: int) -> None:
    outcome = run(SCENARIOS[name], seed)

    assert [check for check in outcome.checks if not check.passed] == []


@pytest.mark.slow
def test_promise_about_loss_holds_with_a_seed_of_three_timeouts() -> None:
    outcome = run(SCENARIOS["one-percent-loss"], 7)

    assert outcome.metrics["timeouts"] == 3
    assert outcome.passed


class Captures(dict[str, tuple[Path, Result]]):
    """Each scenario run once from the command line, when it is needed first."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder

    def __missing__(self, name: str) -> tuple[Path, Result]:
        path = self._folder / f"{name}.pcapng"
        self[name] = path, invoke(name, "-o", path, "--json")
        return self[name]


@pytest.fixture(scope="module")
def captures(tmp_path_factory: pytest.TempPathFactory) -> Captures:
    """Path of the capture of each scenario, and the result of its run."""
    return Captures(tmp_path_factory.mktemp("captures"))


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_same_seed_gives_the_same_files_to_the_byte(
    name: str, captures: Any, tmp_path: Path
) -> None:
    path, result = captures[name]
    again = tmp_path / "x.pcapng"

    assert invoke(name, "-o", again, "--json").stdout == result.stdout
    assert again.read_bytes() == path.read_bytes()


def is_tcp(frame: bytes) -> bool:
    return frame[12:14] == b"\x08\x00" and frame[23] == 6


@pytest.mark.parametrize("name", [*sampled(SMALL, 6), *LARGER])
def test_capture_holds_only_good_icrcs(name: str, captures: Any) -> None:
    path, result = captures[name]
    status = []
    with open_capture(path) as capture:
        for batch in capture.batches():
            columns = Columns(batch, str(path))
            rdma = [
                not is_mac_control(record.data) and not is_tcp(record.data)
                for record in batch.records()
            ]
            status.append(np.asarray(columns["icrc.status"])[rdma])
    everything = np.concatenate(status)

    assert result.exit_code == 0
    assert len(everything) > 5
    if name not in DAMAGED:
        assert (everything == GOOD).all()


def test_damage_is_seen_by_the_tap_behind_it(tmp_path: Path) -> None:
    path = tmp_path / "x.pcapng"
    invoke("corruption", "-o", path, "--tap", "b")
    result = CliRunner().invoke(
        main, ["dissect", "--where", "icrc.status == bad", "--json", str(path)]
    )
    hits = json.loads(invoke("corruption", "--json").stdout.splitlines()[-1])["hits"]

    damaged_towards_b = next(hit["frames"] for hit in hits if hit["where"].endswith("from a"))
    assert len(result.stdout.splitlines()) == damaged_towards_b > 0


@pytest.mark.skipif(shutil.which("tshark") is None, reason="tshark not installed")
@pytest.mark.parametrize("name", sampled(SMALL, 15))
def test_tshark_reads_the_capture_whole(name: str, captures: Any) -> None:
    path, _ = captures[name]
    tshark = subprocess.run(
        [
            "tshark",
            "-r",
            path,
            "-T",
            "fields",
            "-e",
            "infiniband.bth.psn",
            "-e",
            "frame.time_epoch",
            "-e",
            "eth.type",
            "-e",
            "ip.proto",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    with open_capture(path) as capture:
        records = [record for batch in capture.batches() for record in batch.records()]
    lines = [line.split("\t") for line in tshark.stdout.splitlines()]

    assert len(lines) == len(records)
    times = [int(seconds.replace(".", "")) for _, seconds, _, _ in lines]
    assert times == sorted(times)
    assert times == [record.time_ns for record in records]
    if name not in DAMAGED:
        rdma = [psn for psn, _, kind, protocol in lines if kind != "0x8808" and protocol != "6"]
        assert all(psn.isdigit() for psn in rdma)


def test_every_scenario_is_listed_with_its_first_line() -> None:
    listed = invoke("--list").stdout

    for name, scenario in SCENARIOS.items():
        first = scenario.description.partition("\n")[0]
        assert re.search(rf"^{name} +{re.escape(first)}$", listed, re.MULTILINE)


def test_scenarios_are_part_of_the_package() -> None:
    folder = Path(__file__).parents[2] / "ibwire" / "scenarios"

    assert {path.stem for path in folder.glob("*.toml")} == set(SCENARIOS)
    assert set(BY_HAND) == set(SCENARIOS)
