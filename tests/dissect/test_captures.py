"""Files of a ring read as one: numbers go on, times count from the first file."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from ibwire.capture import open_capture
from ibwire.capture.writer import CaptureWriter
from ibwire.cli import main
from ibwire.dissect import icrc
from ibwire.dissect.captures import Captures

CAPTURES = Path(__file__).parents[2] / "captures"


@pytest.fixture
def ring(tmp_path: Path) -> list[Path]:
    """`chaos.b.pcap` in files of 200 frames."""
    with open_capture(CAPTURES / "chaos.b.pcap") as reader:
        records = list(reader.records())
    paths = []
    for start in range(0, len(records), 200):
        paths.append(tmp_path / f"r{start}.pcap")
        with CaptureWriter(str(paths[-1])) as writer:
            for record in records[start : start + 200]:
                writer.write(record.data, record.time_ns, record.wire_len)
    return paths


def run(*arguments: object) -> str:
    result = CliRunner().invoke(main, [str(each) for each in arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_frames_are_numbered_through_all_files(ring: list[Path]) -> None:
    captures = Captures([str(path) for path in ring])

    for _ in range(2):
        numbers, seconds = [], []
        for columns in captures.read():
            numbers += columns["frame.number"].tolist()
            seconds += columns["frame.time_relative"].tolist()
        assert numbers == list(range(1, 575))
        assert seconds[573] == captures.end_ns - captures.start_ns
    assert [(part.first_number, part.frames) for part in captures.parts] == [
        (1, 200),
        (201, 200),
        (401, 174),
    ]


def test_icrcs_are_computed_once(ring: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    captures = Captures([str(path) for path in ring])
    first = [columns["icrc.status"].tolist() for columns in captures.read()]
    monkeypatch.setattr(icrc, "crc32", None)  # an error where one is computed

    again = [columns["icrc.status"].tolist() for columns in captures.read()]

    assert again == first
    assert len({status for chunk in first for status in chunk}) > 1


def test_where_most_icrcs_are_odd_they_are_computed_again(
    ring: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ibwire.dissect.captures.VERDICTS", 0)
    captures = Captures([str(path) for path in ring])

    first, again = (
        [columns["icrc.status"].tolist() for columns in captures.read()] for _ in range(2)
    )

    assert again == first


def test_story_of_a_ring_is_that_of_the_whole_and_says_where_files_begin(
    ring: list[Path],
) -> None:
    whole = run("explain", CAPTURES / "chaos.b.pcap").splitlines()
    parts = run("explain", ring[2], ring[0], "-r", ring[1]).splitlines()

    added = [line.split("  ")[-1].strip() for line in parts if " begins: " in line]
    assert added == [
        "Here r200.pcap begins: its frame 1 is #201.",
        "Here r400.pcap begins: its frame 1 is #401.",
    ]
    assert parts[0].startswith("r0.pcap and 2 more, connection 1")
    assert [line for line in parts[1:] if " begins: " not in line] == whole[1:]


def test_report_of_a_ring_counts_as_of_the_whole(ring: list[Path], tmp_path: Path) -> None:
    run("report", *ring, "-o", tmp_path / "ring.html")

    text = (tmp_path / "ring.html").read_text()
    assert "Frames are numbered through all files; r200.pcap at 201, r400.pcap at 401." in text
    assert '["Frames","574"]' in text


def test_a_damaged_file_does_not_hide_the_next(ring: list[Path]) -> None:
    ring[1].write_bytes(ring[1].read_bytes()[:-10])

    result = CliRunner().invoke(main, ["explain", *map(str, ring)])

    assert result.exit_code == 3
    assert f"error: {ring[1]}: byte " in result.stderr
    assert "Here r400.pcap begins: its frame 1 is #400." in result.stdout


def test_a_missing_file_is_named_and_the_others_are_read(ring: list[Path]) -> None:
    result = CliRunner().invoke(main, ["explain", str(ring[0]), "missing.pcap"])

    assert result.exit_code == 3
    assert "error: missing.pcap" in result.stderr
    assert "connection 1" in result.stdout
