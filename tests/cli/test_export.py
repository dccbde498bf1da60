"""`ibwire export`: Parquet files a table, and captures with comments."""

import gzip
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from each_case import each_case
from ibwire.capture import open_capture
from ibwire.cli import main
from ibwire.connections.events import Cause, FlowEvent, FlowEventKind
from ibwire.report import remarks
from ibwire.rules.findings import Finding, Location, Rule, Severity

ROOT = Path(__file__).parents[2]
ENVIRONMENT = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "layers")])}
TSHARK = shutil.which("tshark")
TABLES = {"packets", "messages", "events", "incidents", "connections"}


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["export", *map(str, arguments)])


def records(path: Path) -> Any:
    with open_capture(path) as reader:
        return list(reader.records())


def annotated(source: Any, target: Any) -> Any:
    """The comments of a capture by packet number, after it was exported."""
    result = run("-o", target, source)
    assert (result.exit_code, result.output) == (0, "")
    return {record.number: record.comments for record in records(target) if record.comments}


def has(comments: Any, *parts: Any) -> Any:
    """Whether one of the comments has all these parts."""
    return any(all(part in comment for part in parts) for comment in comments)


# A directory.


@pytest.fixture
def parquet() -> Any:
    return pytest.importorskip("pyarrow.parquet", reason="pyarrow not installed")


def test_each_capture_is_a_file_in_each_folder(
    parquet: Any, captures: Path, tmp_path: Path
) -> None:
    names = ("rcx-all-ops.pcap", "fmt-pcapng.pcapng")

    result = run("-o", tmp_path / "out", *(captures / name for name in names))

    assert (result.exit_code, result.output) == (0, "")
    files = {path.relative_to(tmp_path / "out").as_posix() for path in (tmp_path).rglob("*.*")}
    assert files == {f"{table}/{name}.parquet" for table in TABLES for name in names}
    table = parquet.read_table(tmp_path / "out" / "packets" / "rcx-all-ops.pcap.parquet")
    assert table.num_rows == 64
    assert table["psn"][15].as_py() == 4099


def test_another_run_adds_to_the_directory(parquet: Any, captures: Path, tmp_path: Path) -> None:
    run("-o", tmp_path, captures / "rcx-all-ops.pcap")
    run("-o", tmp_path, captures / "rcx-ipv6.pcap")

    assert len(list((tmp_path / "packets").iterdir())) == 2


@pytest.mark.slow
def test_standard_input_is_a_capture_too(parquet: Any, captures: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-c", "from ibwire.cli.export import command; command()"]
    content = gzip.compress((captures / "rcx-all-ops.pcap").read_bytes())
    child = subprocess.run(
        [*command, "-", "-o", tmp_path], input=content, env=ENVIRONMENT, capture_output=True
    )

    assert (child.returncode, child.stdout, child.stderr) == (0, b"", b"")
    table = parquet.read_table(tmp_path / "packets" / "stdin.parquet")
    assert table.num_rows == 64
    assert set(table["file"].to_pylist()) == {"standard input"}


def test_captures_of_the_same_name_are_refused(
    parquet: Any, captures: Path, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    other = tmp_path / "other" / "rcx-ipv6.pcap"
    other.write_bytes(b"")

    result = run("-o", tmp_path / "out", captures / "rcx-ipv6.pcap", other)

    assert result.exit_code == 2
    assert "two captures are called rcx-ipv6.pcap" in result.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.skipif(sys.platform != "linux", reason="names of files are text here")
def test_the_name_of_a_capture_may_be_any_bytes(
    parquet: Any, captures: Path, tmp_path: Path
) -> None:
    path = os.fsdecode(os.fsencode(tmp_path) + b"/\xff.pcap")
    Path(path).write_bytes((captures / "rcx-all-ops.pcap").read_bytes())

    assert run("-o", tmp_path / "out", path).exit_code == 0

    (file,) = (tmp_path / "out" / "packets").iterdir()
    assert file.name == "\ufffd.pcap.parquet"
    assert parquet.read_table(file)["file"][0].as_py() == f"{tmp_path}/\ufffd.pcap"


def test_a_damaged_capture_is_written_up_to_the_damage(
    parquet: Any, captures: Path, tmp_path: Path
) -> None:
    path = tmp_path / "cut.pcap"
    path.write_bytes((captures / "rcx-all-ops.pcap").read_bytes()[:-1])

    result = run("-o", tmp_path / "out", path, captures / "rcx-ipv6.pcap", tmp_path / "missing")

    assert result.exit_code == 3
    assert "the file ends inside record 64" in result.stderr
    assert "missing: cannot be opened" in result.stderr
    rows = {
        file.name: parquet.read_metadata(file).num_rows
        for file in (tmp_path / "out" / "packets").iterdir()
    }
    assert rows == {"cut.pcap.parquet": 63, "rcx-ipv6.pcap.parquet": 54}


def test_a_file_is_no_directory(parquet: Any, captures: Path, tmp_path: Path) -> None:
    (tmp_path / "out.pcap").write_bytes(b"kept")

    result = run("-o", tmp_path / "out.pcap", captures / "rcx-ipv6.pcap")

    assert result.exit_code == 2
    assert "is not a directory" in result.stderr
    assert (tmp_path / "out.pcap").read_bytes() == b"kept"


# A capture with comments. What is said of which packet was read from tshark's listing.


def test_a_nak_and_what_it_led_to_are_told_at_both_packets(captures: Path, tmp_path: Path) -> None:
    comments = annotated(captures / "drop-one-middle.a.pcap", tmp_path / "out.pcapng")

    assert has(comments[20], "NAK PSN_SEQUENCE_ERROR", "misses PSN 103")
    assert has(comments[20], "PSN 103", "is retransmitted in packets 21 to 27", "2.092 ms later")
    assert has(comments[21], "7 requests", "to packet 27", "PSN 103 to 109", "NAK in packet 20")
    assert not comments.keys() & {1, 22, 23, 29}


def test_an_rnr_nak_says_how_long_to_wait(captures: Path, tmp_path: Path) -> None:
    comments = annotated(captures / "rnr-late-recv.pcap", tmp_path / "out.pcapng")

    assert has(comments[11], "RNR NAK: no receive buffer for PSN 9120103", "wait 5.12 ms")
    assert has(comments[12], "retransmitted", "RNR NAK in packet 11, 9.225 ms before")


def test_findings_are_told_at_their_packets(captures: Path, tmp_path: Path) -> None:
    comments = annotated(captures / "nak-send-too-big.pcap", tmp_path / "out.pcapng")

    assert has(comments[13], "NAK REMOTE_OPERATIONAL_ERROR", "refuses the request with PSN 2144034")
    assert has(comments[13], "note: naks.too-long")


@pytest.mark.parametrize("step", [3, pytest.param(1, marks=pytest.mark.slow)])
def test_packets_are_the_same_but_for_the_comments(
    captures: Path, tmp_path: Path, step: int
) -> None:
    for path in sorted(captures.glob("*.pcap*"))[::step]:
        annotated(path, tmp_path / "out.pcapng")
        before, after = records(path), records(tmp_path / "out.pcapng")

        assert [(r.time_ns, r.data, r.wire_len, r.link_type, r.interface) for r in after] == [
            (r.time_ns, r.data, r.wire_len, r.link_type, r.interface) for r in before
        ]
        for old, new in zip(before, after, strict=True):
            assert new.comments[: len(old.comments)] == old.comments
            assert all(text.startswith("ibwire: ") for text in new.comments[len(old.comments) :])


def test_annotating_once_more_changes_nothing(captures: Path, tmp_path: Path) -> None:
    annotated(captures / "drop-one-middle.a.pcap", tmp_path / "once.pcapng")
    annotated(tmp_path / "once.pcapng", tmp_path / "twice.pcapng")

    assert (tmp_path / "once.pcapng").read_bytes() == (tmp_path / "twice.pcapng").read_bytes()


@pytest.mark.slow
@pytest.mark.skipif(TSHARK is None, reason="tshark not installed")
def test_tshark_finds_the_comments(captures: Path, tmp_path: Path) -> None:
    annotated(captures / "drop-one-middle.a.pcap", tmp_path / "out.pcapng.gz")

    shown = 'frame.comment contains "NAK PSN_SEQUENCE_ERROR"'
    command = [TSHARK, "-r", tmp_path / "out.pcapng.gz", "-Y", shown, "-T", "fields"]
    told = subprocess.run(
        [*command, "-e", "frame.number"], capture_output=True, text=True, check=True
    )

    assert told.stdout.split() == ["20"]


def test_the_packets_before_damage_are_annotated(captures: Path, tmp_path: Path) -> None:
    source, target = tmp_path / "cut.pcap", tmp_path / "out.pcapng"
    source.write_bytes((captures / "drop-one-middle.a.pcap").read_bytes()[:-1])

    result = run("-o", target, source)

    assert result.exit_code == 3
    assert f"{source}: byte " in result.stderr
    found = records(target)
    assert len(found) == 34
    assert has(found[19].comments, "NAK PSN_SEQUENCE_ERROR")


@pytest.mark.parametrize("content", [None, b"", b"no capture at all"])
def test_what_is_no_capture_makes_no_file(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "x.pcap").write_bytes(content)

    result = run("-o", tmp_path / "out.pcapng", tmp_path / "x.pcap")

    assert result.exit_code == 3
    assert "x.pcap" in result.stderr
    assert not (tmp_path / "out.pcapng").exists()


def test_the_capture_that_is_read_is_not_overwritten(captures: Path, tmp_path: Path) -> None:
    path = tmp_path / "x.pcapng"
    path.write_bytes((captures / "fmt-pcapng.pcapng").read_bytes())

    result = run("-o", path, path)

    assert result.exit_code == 2
    assert f"{path}: cannot be written: it is also an input" in result.stderr
    assert path.read_bytes() == (captures / "fmt-pcapng.pcapng").read_bytes()


def test_several_captures_are_not_annotated_at_once(captures: Path, tmp_path: Path) -> None:
    result = run("-o", tmp_path / "out.pcapng", captures / "a.pcap", captures / "b.pcap")

    assert result.exit_code == 2
    assert "one capture at a time" in result.stderr


def test_a_file_that_cannot_be_written_is_told(captures: Path, tmp_path: Path) -> None:
    result = run("-o", tmp_path / "missing" / "out.pcapng", captures / "fmt-pcapng.pcapng")

    assert result.exit_code == 1
    assert "cannot be written: no such file" in result.stderr


# Words.


@each_case("kind", FlowEventKind)
@each_case("cause", [None, *Cause])
def test_every_event_has_words(kind: Any, cause: Any) -> None:
    event = FlowEvent(
        kind, 3, 0, 7, 0, 10, 12, 3, cause=cause, cause_number=5, delay_ns=1500, code=96
    )

    told = list(remarks.of_event(event))

    assert told[0][0] == 7
    assert {number for number, _ in told} <= {5, 7}
    assert all(text.startswith("connection 3: ") for _, text in told)


def test_what_was_not_seen_is_counted_in_words() -> None:
    event = FlowEvent(FlowEventKind.LOST, 1, 0, 7, 0, psn=10, last_psn=12, count=3)

    assert list(remarks.of_event(event)) == [
        (7, "connection 1: 3 packets were not seen here before this one: PSN 10 to 12")
    ]


@pytest.mark.parametrize(("severity", "told"), [(Severity.NOTE, [4]), (Severity.ERROR, [4, 6, 9])])
def test_a_finding_is_told_at_its_packets_and_a_note_once(
    severity: Severity, told: list[int]
) -> None:
    rule = Rule("acks.law", "A law.", severity, "IBA 1.2", "", ("someone",))
    place = Location("a", "b", 1, 2, 0)
    finding = Finding(rule, severity, place, "found x, expected y", 20, [4, 6, 9])

    found = list(remarks.of_finding(finding))

    assert [number for number, _ in found] == told
    about = "[IBA 1.2; a habit of someone]"
    head = f"connection 2: {severity.word}: acks.law: "
    assert found[0][1] == f"{head}found x, expected y (20 packets in all) {about}"
    assert all(text == f"{head}A law. See packet 4. {about}" for _, text in found[1:])
