"""`ibwire run`: what it prints, writes and returns."""

import json
import shutil
import subprocess
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from ibwire.capture import open_capture
from ibwire.cli import main
from ibwire.scenario import METRICS
from ibwire.scenario.expect import unit_name
from ibwire_layers.opcodes import OpCode
from ibwire_layers.packet import Packet

LOSSY = """# One of eight is lost.
[[wire.faults.a]]
drop = { psn = 2, nth = 1 }
[[workload]]
opcode = "RDMA_WRITE"
size = 8192
[expect]
retransmitted = 6
"""


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["run", *map(str, arguments)])


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "x.toml"
    path.write_text(text)
    return path


def records(path: Path) -> Any:
    with open_capture(path) as capture:
        return [record for batch in capture.batches() for record in batch.records()]


def test_report_shows_metrics_expectations_and_seed(tmp_path: Path) -> None:
    result = invoke(written(tmp_path, LOSSY), "--seed", 5)
    rows = {line[:15].strip(): line[15:].split() for line in result.stdout.splitlines()}

    assert result.exit_code == 0
    assert result.stderr == ""
    assert result.stdout.startswith("One of eight is lost.\n")
    assert rows["verified bytes"] == ["8,192"]
    assert rows["packets"] == ["14"]
    assert rows["retransmitted"] == ["6"]
    assert rows["NAKs: sequence"] == ["1"]
    assert rows["timeouts"] == ["0"]
    assert rows["goodput"] == ["13.38", "Gb/s"]
    assert "a-b, from a: drop applied to 1 frame\n" in result.stdout
    assert "pass  retransmitted == 6  (is 6)\n" in result.stdout
    assert result.stdout.endswith("seed 5\n")


def test_unmet_expectation_is_shown_and_makes_the_exit_status_1(tmp_path: Path) -> None:
    result = invoke(written(tmp_path, LOSSY.replace("= 6", "= '< 6'")))

    assert result.exit_code == 1
    assert "FAIL  retransmitted < 6  (is 6)\n" in result.stdout


def test_wrong_scenario_is_a_message_with_its_place_and_exit_status_2(tmp_path: Path) -> None:
    path = written(tmp_path, "sede = 1\n[[workload]]\n")
    result = invoke(path)

    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr == f"error: {path}:1:1: sede: unknown; did you mean seed?\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "which scenario?"),
        (["no-such-scenario"], "no such scenario"),
        (["lost-acks"], "no such scenario; did you mean lost-ack?"),
        (["mine.tml"], "mine.tml: no such file\n"),
        (["lost-ack", "--seed", "-1"], "-1 is not in the range"),
        (["lost-ack", "--seed", "x"], "not a number"),
        (["lost-ack", "--tap", "a"], "there is no -o"),
        (["lost-ack", "-o", "x.pcapng", "--tap", "z"], "'z' is not one of a, b"),
        (["lost-ack", "-o", "x.txt"], "neither in .pcap nor in .pcapng"),
        (["lost-ack", "-o", "x.pcap", "--tap", "all"], "has no interfaces"),
    ],
)
def test_wrong_usage_is_told_and_is_exit_status_2(
    arguments: Any, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = invoke(*arguments)

    assert result.exit_code == 2
    assert message in result.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("option", ["-o", "--trace"])
def test_file_that_cannot_be_written_is_named(option: str, tmp_path: Path) -> None:
    path = tmp_path / "absent" / "x.pcap"
    result = invoke("lost-ack", option, path)

    assert result.exit_code == 1
    assert str(path) in result.stderr
    assert "Traceback" not in result.stderr


def test_json_has_an_object_for_each_queue_pair_and_one_for_the_run(tmp_path: Path) -> None:
    result = invoke(written(tmp_path, LOSSY), "--json")
    a, b, whole = map(json.loads, result.stdout.splitlines())

    assert (a["kind"], a["node"], a["qpn"], a["peer_qpn"]) == ("qp", "a", 0x10001, 0x20001)
    assert (a["retransmitted"], a["naks.sequence"], a["packets"]) == (6, 1, 14)
    assert a["counters"]["sequence_naks_received"] == 1
    assert (b["node"], b["messages"], b["packets"]) == ("b", 0, 2)
    assert b["counters"]["sequence_naks_sent"] == 1
    assert whole["kind"] == "run"
    assert (whole["seed"], whole["ended"], whole["passed"]) == (1, "idle", True)
    assert whole["verified_bytes"] == 8192
    assert whole["expectations"][-1] == {
        "connection": None,
        "expected": "retransmitted == 6",
        "actual": 6,
        "passed": True,
    }
    assert whole["hits"] == [{"where": "a-b, from a", "rule": "drop", "frames": 1}]
    assert {"time_ps", "goodput_bps", "queue.max_bytes", "fairness_permille"} <= set(whole)
    assert set(map(unit_name, METRICS)) <= set(whole)


def test_many_queue_pairs_are_summed_up(tmp_path: Path) -> None:
    path = written(tmp_path, "[[connection]]\ncount = 9\n[[workload]]\ncount = [1]\n")
    path.write_text(path.read_text().replace("[1]", "2"))
    lines = invoke(path).stdout.splitlines()

    assert lines[0].split() == ["all", "9", "least", "median", "most"]
    assert lines[1].split() == ["messages", "18", "2", "2", "2"]


def test_marks_stand_in_the_column_of_the_queue_pair_whose_packets_have_them() -> None:
    lines = invoke("incast-dcqcn").stdout.splitlines()
    marks = next(line.split()[2:] for line in lines if line.startswith("ce marked"))
    port = next(line.split() for line in lines if line.startswith("s0 to h0"))

    total, least, _median, most = (int(text.replace(",", "")) for text in marks)
    # The only port that marks; each of the eight senders has its share of what it marked.
    assert total == int(port[4].replace(",", ""))
    assert 0 < least <= total / 8 <= most


@pytest.mark.parametrize(
    ("opcodes", "marks"),
    [({"a": "RDMA_WRITE", "b": "RDMA_WRITE"}, ["8", "0"]), ({"b": "RDMA_READ"}, ["3"])],
)
def test_marks_of_two_senders_stand_beside_each(
    opcodes: dict[str, str], marks: list[str], tmp_path: Path
) -> None:
    """Only packets of a are marked: its 5 WRITEs and 3 ACKs; its 3 responses to READs of b."""
    text = "[[connection]]\necn = true\n[[wire.faults.a]]\nmark_ecn = {}\n"
    for sender, opcode in opcodes.items():
        count = {"a": 5, "b": 3}[sender]
        text += f"[[workload]]\nsender = '{sender}'\nopcode = '{opcode}'\nsize = 1024\n"
        text += f"count = {count}\n"

    lines = invoke(written(tmp_path, text)).stdout.splitlines()

    assert next(line.split()[2:] for line in lines if line.startswith("ce marked")) == marks


def test_capture_shows_what_the_first_host_sends_and_what_reaches_it(tmp_path: Path) -> None:
    path = tmp_path / "x.pcap"
    invoke(written(tmp_path, LOSSY), "-o", path)
    found = records(path)

    # 8 requests, one of which is then lost, a NAK, 6 again, an ACK.
    assert len(found) == 16
    # The first frame leaves at 0, the second when the line is free: 1122 bytes of 80 ps later.
    assert [record.time_ns for record in found[:2]] == [0, 89]


def test_taps_are_interfaces_of_a_pcapng_and_show_what_is_lost_between(tmp_path: Path) -> None:
    path = tmp_path / "x.pcapng"
    invoke(written(tmp_path, LOSSY), "-o", path, "--tap", "b", "--tap", "a")
    found = records(path)

    times = [record.time_ns for record in found]
    assert times == sorted(times)
    assert sum(record.interface == 1 for record in found) == 16
    assert sum(record.interface == 0 for record in found) == 15


SHARED_PORT = """
[[connection]]
count = 3
[[workload]]
opcode = "RDMA_WRITE"
size = "9 KiB"
[[node]]
name = "a"
override.burst_packets = 4
[[node]]
name = "b"
"""


def test_queue_pairs_send_as_many_packets_in_a_turn_as_the_node_says(tmp_path: Path) -> None:
    """Each has nine packets."""
    path = tmp_path / "x.pcap"
    invoke(written(tmp_path, SHARED_PORT), "-o", path)

    frames = [Packet.parse(record.data) for record in records(path)]
    order = [each.bth.dest_qp for each in frames if each.bth.opcode != OpCode.RC_ACKNOWLEDGE]
    turns = [len(list(same)) for _, same in groupby(order)]
    assert turns == [4, 4, 4, 4, 4, 4, 1, 1, 1]


NATIVE = """link = "ib"
[[wire.faults.a]]
drop = { psn = 2, nth = 1 }
[[workload]]
opcode = ["SEND", "RDMA_READ"]
size = 5000
count = 4
"""


@pytest.fixture(params=["x.pcap", "x.pcapng"])
def native(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A capture of native InfiniBand frames."""
    path = tmp_path / str(request.param)
    assert invoke(written(tmp_path, NATIVE), "-o", path).exit_code == 0
    return path


def test_native_frames_are_erf_records_with_good_checks(native: Path) -> None:
    result = CliRunner().invoke(
        main, ["dissect", "--fields", "icrc.status,vcrc.status,lrh.dlid", str(native)]
    )
    _, *rows = (line.split("\t") for line in result.stdout.splitlines())

    assert {record.link_type for record in records(native)} == {197}
    assert len(rows) == len(records(native)) > 20
    assert {tuple(row[:2]) for row in rows} == {("good", "good")}
    assert {row[2] for row in rows} == {"1", "2"}


@pytest.mark.skipif(shutil.which("tshark") is None, reason="tshark not installed")
def test_tshark_reads_native_frames(native: Path) -> None:
    names = ["frame.time_epoch", "infiniband.lrh.slid", "infiniband.lrh.dlid"]
    names += ["infiniband.bth.opcode", "infiniband.bth.psn"]
    tshark = subprocess.run(
        ["tshark", "-r", native, "-T", "fields", *(f"-e{name}" for name in names)],
        capture_output=True,
        text=True,
        check=True,
    )
    rows = [line.split("\t") for line in tshark.stdout.splitlines()]

    assert rows[0] == ["0.000000000", "1", "2", "0", "0"]
    times = [int(row[0].replace(".", "")) for row in rows]
    assert times == [record.time_ns for record in records(native)]
    assert {tuple(row[1:3]) for row in rows} == {("1", "2"), ("2", "1")}


def test_native_capture_can_be_answered(native: Path) -> None:
    result = CliRunner().invoke(main, ["respond", "--json", str(native)])
    (report,) = map(json.loads, result.stdout.splitlines())

    # 5 + 5 packets of SENDs, 2 READs, and those sent again from the third packet on.
    assert report["requests"] > 12
    assert report["responses"] >= 12


def test_trace_has_a_line_a_frame_sent_or_received(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    invoke(written(tmp_path, LOSSY), "--trace", path)
    lines = [json.loads(line) for line in path.read_text().splitlines()]

    assert len(lines) == 16 + 15
    assert lines[0] == {
        "time_ps": 0,
        "node": "a",
        "event": "sent",
        "opcode": "RC_RDMA_WRITE_FIRST",
        "dest_qp": 0x20001,
        "psn": 0,
        "ack_req": 0,
        "payload": 1024,
        "va": lines[0]["va"],
        "dma_len": 8192,
    }
    nak = next(line for line in lines if line.get("syndrome", "").startswith("NAK"))
    assert (nak["node"], nak["event"], nak["psn"]) == ("b", "sent", 2)


def test_trace_of_a_frame_that_is_no_packet_keeps_its_bytes(tmp_path: Path) -> None:
    from io import StringIO

    from ibwire.base.trace import Trace

    file = StringIO()
    Trace(file)("a", "sent", b"\x01\x02", 3)

    assert json.loads(file.getvalue()) == {
        "time_ps": 3,
        "node": "a",
        "event": "sent",
        "frame": "0102",
    }


def test_different_seeds_are_different_runs(tmp_path: Path) -> None:
    text = "[[wire.faults.a]]\nloss = 0.2\n[[workload]]\ncount = 8\n"
    path = written(tmp_path, text)
    runs = []
    for seed in (1, 1, 2):
        trace = tmp_path / "trace"
        runs.append((invoke(path, "--seed", seed, "--trace", trace).stdout, trace.read_text()))

    assert runs[0] == runs[1]
    assert runs[0][1] != runs[2][1]
