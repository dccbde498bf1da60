"""Results that are tables: the same rows as JSON, CSV and Parquet, and what contradicts."""

import contextlib
import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from ibwire.cli import main

pq = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed (extra `query`)")


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(each) for each in arguments])


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


@pytest.fixture
def chaos(captures: Path) -> Path:
    return captures / "chaos.b.pcap"


def test_flows_has_the_same_values_in_each_format(chaos: Path, tmp_path: Path) -> None:
    objects = [json.loads(line) for line in run("flows", "--json", chaos).stdout.splitlines()]
    text = run("flows", "--csv", chaos).stdout
    run("flows", chaos, "-o", tmp_path / "f.parquet")
    table = pq.read_table(tmp_path / "f.parquet").to_pylist()

    # 8 sequence NAKs and 20 SENDs: tshark, and *.wire.json of the capture.
    assert [row["naks.psn_sequence_error"] for row in rows(text)] == ["8", ""]
    assert [row["verbs.SEND"] for row in table] == [20, None]
    for found, row, record in zip(objects, rows(text), table, strict=True):
        assert row["packets"] == str(found["packets"])
        assert record["latency_ns.max"] == found["latency_ns"]["max"]
        assert row["path_mtu"] == "1024"


def test_flows_writes_its_table_to_a_text_file(chaos: Path, tmp_path: Path) -> None:
    result = run("flows", chaos, "-o", tmp_path / "f.txt")

    assert result.stdout == ""
    assert (tmp_path / "f.txt").read_text() == run("flows", chaos).stdout


def test_show_has_every_field_as_a_row(captures: Path) -> None:
    """Values are tshark's of packet 20: infiniband.bth.psn, infiniband.aeth.syndrome."""
    arguments = ("show", captures / "drop-one-middle.a.pcap", 20)

    found = {row["field"]: row for row in rows(run(*arguments, "--csv").stdout)}
    objects = [json.loads(line) for line in run(*arguments, "--json").stdout.splitlines()]

    psn = found["bth.psn"]
    assert (psn["byte"], psn["bit"], psn["width"], psn["value"]) == ("51", "7", "24", "103")
    assert found["aeth.syndrome"]["value"] == "0x60"
    assert objects[-1] | {"meaning": ""} == {
        "part": "ICRC", "section": "IBA 7.8.1", "byte": 58, "bit": 7, "width": 32,
        "field": None, "name": None, "value": "8b030f73", "meaning": "",
    }  # fmt: skip
    widths = sum(each["width"] for each in objects)
    assert widths == 62 * 8  # every bit of the frame once


def test_show_refuses_a_table_of_another_view(captures: Path) -> None:
    result = run("show", captures / "rcx-all-ops.pcap", 1, "--scapy", "--csv")

    assert result.exit_code == 2
    assert "--scapy has no table" in result.stderr


def test_fields_lists_names_of_wireshark() -> None:
    found = rows(run("fields", "--csv", "aeth.*").stdout)

    assert {row["wireshark"] for row in found} >= {"infiniband.aeth.msn"}
    assert [
        json.loads(line)["field"]
        for line in run("fields", "--json", "aeth.*").stdout.split("\n")[:-1]
    ] == [row["field"] for row in found]


@pytest.mark.parametrize("style", ["csv", "json"])
def test_export_writes_the_tables_as_text(chaos: Path, tmp_path: Path, style: str) -> None:
    result = run("export", chaos, "-o", tmp_path, f"--{style}")

    assert result.exit_code == 0, result.output
    counts = {}
    for table in ("packets", "messages", "events", "incidents", "connections"):
        text = (tmp_path / table / f"chaos.b.pcap.{style}").read_text()
        counts[table] = len(rows(text)) if style == "csv" else len(text.splitlines())
    assert counts["packets"] == 574  # tshark: all frames
    assert counts["messages"] == 70  # 20 WRITE, 20 SEND, 20 READ, 10 FADD
    assert counts["connections"] == 2  # one line a direction


def test_export_of_an_empty_table_has_its_header(captures: Path, tmp_path: Path) -> None:
    run("export", captures / "ud-pingpong.pcap", "-o", tmp_path, "--csv")

    (line,) = (tmp_path / "events" / "ud-pingpong.pcap.csv").read_text().splitlines()
    assert "kind" in line.split(",")


def test_comments_have_no_format(chaos: Path, tmp_path: Path) -> None:
    result = run("export", chaos, "-o", tmp_path / "c.pcapng", "--csv")

    assert result.exit_code == 2
    assert "-o needs a directory" in result.stderr


class Terminal(io.TextIOWrapper):
    def __init__(self) -> None:
        super().__init__(io.BytesIO(), "utf-8", write_through=True)

    def isatty(self) -> bool:
        return True

    @property
    def text(self) -> str:
        raw = self.buffer
        assert isinstance(raw, io.BytesIO)
        return raw.getvalue().decode()


@pytest.mark.parametrize("command", ["flows", "check"])
def test_progress_of_long_captures_goes_to_the_terminal_only(
    chaos: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    from ibwire.cli import rereading, sources

    for module in (rereading, sources):
        monkeypatch.setattr(module, "LONG", 1)
    plain = run(command, chaos, chaos)
    monkeypatch.setattr("sys.stderr", shown := Terminal())
    monkeypatch.setattr("sys.stdout", printed := Terminal())
    status: Any = 0
    try:
        main([command, str(chaos), str(chaos)], standalone_mode=False)
    except SystemExit as ended:
        status = ended.code

    assert status == plain.exit_code
    assert "chaos.b.pcap" in shown.text
    assert "━" in shown.text
    assert "━" not in printed.text + plain.output


@pytest.mark.parametrize("command", ["flows", "check", "dissect"])
def test_progress_leaves_a_result_in_its_pipe(
    chaos: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    from ibwire.cli import rereading, sources

    for module in (rereading, sources):
        monkeypatch.setattr(module, "LONG", 1)
    plain = run(command, chaos, chaos).stdout
    pipe = io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True)
    monkeypatch.setattr("sys.stderr", shown := Terminal())
    monkeypatch.setattr("sys.stdout", pipe)
    with contextlib.suppress(SystemExit):
        main([command, str(chaos), str(chaos)], standalone_mode=False)

    assert isinstance(pipe.buffer, io.BytesIO)
    assert pipe.buffer.getvalue().decode() == plain
    assert "━" in shown.text
