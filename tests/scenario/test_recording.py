"""What a run leaves behind, against the counters of switches and lines, and sums by hand."""

import json
import shlex
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

pq = pytest.importorskip("pyarrow.parquet", reason="pyarrow not installed")

from ibwire.capture import open_capture  # noqa: E402
from ibwire.cli import main  # noqa: E402
from ibwire.scenario import Scenario, load, recording, run, sampling  # noqa: E402
from ibwire.scenario.recording import Recording  # noqa: E402
from ibwire.scenario.run_tables import TABLES  # noqa: E402

INCAST = """\
# Four hosts send to one.
limit = "5ms"

[topology]
kind = "star"
hosts = 5

[cc]
set = "hpcc"

[[switch]]
buffer = "512 KiB"

[[flow]]
from = "h*"
to = "h0"
size = "128 KiB"
"""


@pytest.fixture
def incast(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scenario:
    monkeypatch.chdir(tmp_path)
    Path("s.toml").write_text(INCAST)
    return load("s.toml")


def invoke(line: str) -> Result:
    result = CliRunner().invoke(main, shlex.split(line))
    assert not result.exception or isinstance(result.exception, SystemExit), result.exception
    return result


def table(name: str) -> list[dict[str, Any]]:
    found = pq.read_table(f"out/{name}.parquet").to_pylist()
    assert isinstance(found, list)
    return found


def test_recording_does_not_change_the_run(incast: Scenario) -> None:
    frames: list[list[tuple[str, str, bytes, int]]] = [[], []]
    observers = [lambda *each, found=found: found.append(each) for found in frames]
    recorded = Recording()

    plain = run(incast, observers=[observers[0]])
    seen = run(incast, observers=[observers[1]], recording=recorded)

    assert seen.metrics == plain.metrics
    assert frames[0] == frames[1]
    assert recorded.pauses
    assert len(frames[0]) > 1000


def test_pauses_add_up_to_the_time_that_ports_were_paused(incast: Scenario) -> None:
    recorded = Recording()
    outcome = run(incast, recording=recorded)

    found: Counter[tuple[str, str]] = Counter()
    for pause in recorded.pauses:
        found[pause.node, pause.neighbour] += pause.end - pause.start
    expected = {
        (port.node, port.peer): sum(port.time_paused)
        for port in outcome.ports
        if sum(port.time_paused)
    }
    assert found == expected
    assert len(found) == 4


def test_loads_and_queues_agree_with_the_counters_of_ports(incast: Scenario) -> None:
    recorded = Recording()
    outcome = run(incast, recording=recorded)

    sent: Counter[Any] = Counter()
    for _, key, size in recorded.loads.rows():
        sent[tuple(key)] += int(size)
    overhead = {wire.between: wire.overhead for wire in incast.wires}
    for port in outcome.ports:
        if port.is_switch:
            each = overhead.get((port.node, port.peer)) or overhead[port.peer, port.node]
            assert sent[port.node, port.peer] == sum(port.sent_bytes) + each * sum(port.sent)
    # 128 packets of 1106 bytes of line time and one RETH; the ACKs go the other way.
    assert sent["h1", "s0"] == 128 * 1106 + 16
    peak = max(size for _, _, size in recorded.queues.rows())
    assert 0.9 * outcome.metrics["queue.max"] < peak <= outcome.metrics["queue.max"]


def test_long_runs_have_samples_further_apart(
    incast: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampling, "MOST_SAMPLES", 16)
    monkeypatch.setattr(recording, "MOST_PAUSES", 3)
    recorded = Recording()

    run(incast, recording=recorded)

    times = {time for time, *_ in recorded.loads.rows()}
    assert recorded.interval > 4 * recording.FIRST_INTERVAL
    assert len(times) <= 17
    assert len(recorded.pauses) == 3
    assert recorded.left_out > 0


def test_directory_has_every_table_and_query_reads_them(incast: Scenario) -> None:
    result = invoke("run s.toml -o out")

    assert result.exit_code == 0, result.output
    assert {path.name for path in Path("out").iterdir()} == {
        "run.json",
        *(f"{name}.parquet" for name in TABLES),
    }
    sql = "SELECT count(*) AS n, sum(bytes) AS b FROM flows WHERE status = 'complete'"
    assert json.loads(invoke(f'query out "{sql}" --json').stdout) == {"n": 4, "b": 4 << 17}
    listed = invoke("query --tables out").stdout
    assert "completion time" in listed
    for name, spec in TABLES.items():
        assert pq.read_schema(f"out/{name}.parquet").names == list(spec.names)


def test_flows_have_completion_times_that_fit_the_line(incast: Scenario) -> None:
    invoke("run s.toml -o out")

    # The last of 4 x 128 packets of 1106 bytes leaves the switch at 100 Gb/s.
    ends = [row["start_ps"] + row["fct_ps"] for row in table("flows")]
    assert max(ends) == pytest.approx(4 * 128 * 1106 * 80, rel=0.15)
    assert all(row["slowdown"] > 1 for row in table("flows"))
    assert {row["status"] for row in table("flows")} == {"complete"}


def test_one_flow_alone_has_no_slowdown(incast: Scenario) -> None:
    invoke("run s.toml --set flow.from=h1 -o out")

    (row,) = table("flows")
    assert row["slowdown"] == pytest.approx(1, abs=0.02)
    assert (row["retransmitted"], row["cnps"], row["source"], row["target"]) == (0, 0, "h1", "h0")


def test_rates_follow_the_cuts(incast: Scenario) -> None:
    invoke("run s.toml --set switch.buffer=4MiB --set flow.size=256KiB -o out")

    rates = defaultdict(list)
    for row in table("rates"):
        rates[row["index"]].append(row["rate_bps"])
    assert set(rates) == {0, 1, 2, 3}
    assert all(found[0] == 100e9 for found in rates.values())
    assert min(map(min, rates.values())) < 60e9


def test_drops_are_counted_by_port_and_reason(incast: Scenario) -> None:
    invoke(
        "run s.toml --set switch.class.roce.lossless=false --set switch.buffer=64KiB"
        " --set flow.size=48KiB --set limit=200us -o out"
    )

    summary = json.loads(Path("out/run.json").read_text())
    found = sum(row["frames"] for row in table("drops"))
    assert found == summary["metrics"]["drops.all"]
    assert found > 0
    assert {row["reason"] for row in table("drops")} == {"buffer full"}


def test_segments_of_tcp_are_there_at_both_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("s.toml").write_text(
        '[topology]\nkind = "star"\nhosts = 2\n'
        '[[flow]]\ntransport = "tcp"\nfrom = "h1"\nto = "h0"\nsize = "100 kB"\nname = "bulk"\n'
    )

    assert invoke("run s.toml -o out -o h1.pcap --tap h1").exit_code == 0

    rows = table("segments")
    sent, arrived = (
        [row for row in rows if row["node"] == node and row["is_sent"] is is_sent]
        for node, is_sent in (("h1", True), ("h0", False))
    )
    assert {row["connection"] for row in rows} == {"bulk"}
    assert [row["flags"] for row in rows[:4]] == ["SYN", "SYN", "SYN ACK", "SYN ACK"]
    # 100,000 bytes are 68 segments of 1460 and one of 720.
    assert [row["bytes"] for row in sent if row["bytes"]] == [1460] * 68 + [720]
    # An empty star delays a full segment by two lines: 1538 bytes at 100 Gb/s and 1 us each.
    full = next(row["time_ps"] for row in sent if row["bytes"] == 1460)
    first = next(row["time_ps"] for row in arrived if row["bytes"])
    assert first == full + 2 * (1538 * 80 + 1_000_000)
    assert [row["sequence"] for row in sent] == [row["sequence"] for row in arrived]
    assert json.loads(Path("out/run.json").read_text())["segments_left_out"] == 0
    with open_capture("h1.pcap") as capture:
        assert sum(1 for row in rows if row["node"] == "h1") == sum(map(len, capture.batches()))
    assert invoke("report out -o page.html").exit_code == 0


def test_segments_are_kept_up_to_a_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "MOST_SEGMENTS", 10)
    text = '[topology]\nkind = "star"\nhosts = 2\n[[flow]]\ntransport = "tcp"\n'
    Path(tmp_path, "s.toml").write_text(text + 'from = "h1"\nto = "h0"\nsize = 3000\n')
    monkeypatch.chdir(tmp_path)

    invoke("run s.toml -o out")

    # SYN, SYN ACK, ACK, three segments, two ACKs, FIN, FIN ACK and its ACK, or more, at both ends.
    assert len(table("segments")) == 10
    assert json.loads(Path("out/run.json").read_text())["segments_left_out"] >= 12


def test_network_without_switches_has_flows_and_loads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    result = invoke("run one-lost-packet -o out -o x.pcapng")

    assert result.exit_code == 0, result.output
    (row,) = table("flows")
    # Eight packets with 58 bytes of headers, a RETH and 24 bytes of line each, an ACK, two ways.
    ideal = (8 * (1024 + 58 + 24) + 16 + 62 + 24) * 80 + 2 * 1_000_000
    assert (row["bytes"], row["retransmitted"], row["ideal_ps"]) == (8192, 6, ideal)
    assert sum(each["bytes"] for each in table("loads")) > 14 * 1106
    assert table("queues") == []
    assert Path("x.pcapng").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("options", "reason"),
    [("-o out -o other", "are two directories"), ("-o a.pcap -o b.pcap", "are two captures")],
)
def test_two_outputs_of_a_kind_are_refused(incast: Scenario, options: str, reason: str) -> None:
    result = invoke(f"run s.toml {options}")

    assert result.exit_code == 2
    assert reason in result.stderr


def test_file_in_place_of_the_directory_is_a_sentence(incast: Scenario) -> None:
    Path("out").write_text("a file")

    result = invoke("run s.toml -o out/")

    assert result.exit_code == 1
    assert "out" in result.stderr
    assert Path("out").read_text() == "a file"
