"""tshark reads the written and hand-made files to the same times and lengths."""

import io
import random
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from capture.handmade import (
    KUZNETSOV,
    MICROSECONDS,
    NANOSECONDS,
    enhanced,
    interface,
    obsolete,
    option,
    pcap_header,
    pcap_record,
    section,
    simple,
)
from ibwire.capture import Record, open_capture, write_capture

TSHARK = shutil.which("tshark")
CAPTURES = Path(__file__).parents[2] / "captures"

pytestmark = [
    pytest.mark.slow,  # and run by `make interop`
    pytest.mark.skipif(TSHARK is None, reason="tshark not installed"),
]

rng = random.Random(4791)
RECORDS = [
    Record(n, 1_700_000_000_000_000_000 + n * 1_234_567_891, rng.randbytes(60 + n), 60 + 2 * n, 1)
    for n in range(1, 40)
]
FRAMES = [record.data for record in RECORDS]


def by_tshark(path: Path) -> Any:
    fields = ("frame.time_epoch", "frame.len", "frame.cap_len")
    command = [str(TSHARK), "-n", "-r", str(path), "-T", "fields"]
    for name in fields:
        command += ["-e", name]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    rows = []
    for line in run.stdout.splitlines():
        time, length, cap_len = line.split("\t")
        rows.append((nanoseconds(time), int(length), int(cap_len)))
    return rows


def nanoseconds(time: Any) -> int:
    if not time:
        return 0  # a simple packet block: no time
    seconds, _, fraction = time.partition(".")
    return int(seconds) * 10**9 + int(fraction.ljust(9, "0")[:9])


def by_ibwire(path: Path) -> Any:
    with open_capture(path) as reader:
        return [(r.time_ns, r.wire_len, len(r.data)) for r in reader.records()]


@pytest.mark.parametrize("name", ["a.pcap", "a.pcapng", "a.pcap.gz", "a.pcapng.gz", "a.pcap.zst"])
def test_written_files(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    write_capture(path, RECORDS)

    expected = [(r.time_ns, r.wire_len, len(r.data)) for r in RECORDS]
    assert by_tshark(path) == by_ibwire(path) == expected


@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize("magic", [MICROSECONDS, NANOSECONDS])
def test_pcap_variants(tmp_path: Path, order: str, magic: Any) -> None:
    path = tmp_path / "a.pcap"
    path.write_bytes(
        pcap_header(order, magic)
        + b"".join(
            pcap_record(data, 1_700_000_000 + n, 999_000 + n, 2000 + n, order)
            for n, data in enumerate(FRAMES)
        )
    )

    assert by_tshark(path) == by_ibwire(path)


def test_modified_pcap(tmp_path: Path) -> None:
    path = tmp_path / "a.pcap"
    records = (
        pcap_record(data, 1_700_000_000, n)[:16] + bytes(8) + data for n, data in enumerate(FRAMES)
    )
    path.write_bytes(pcap_header(magic=KUZNETSOV) + b"".join(records))

    assert by_tshark(path) == by_ibwire(path)


@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize("resolution", [3, 6, 7, 9, 0x8A, 0xA0])
def test_pcapng_resolutions(tmp_path: Path, order: str, resolution: int) -> None:
    path = tmp_path / "a.pcapng"
    base = 2 if resolution & 0x80 else 10
    now = 1_700_000_000 * base ** (resolution & 0x7F)
    options = option(9, bytes([resolution]), order) + option(0, b"", order)
    path.write_bytes(
        section(order)
        + interface(1, 0, options, order)
        + b"".join(enhanced(data, now + n, order=order) for n, data in enumerate(FRAMES))
    )

    assert by_tshark(path) == by_ibwire(path)


def test_pcapng_with_simple_and_obsolete_packet_blocks_in_two_sections(tmp_path: Path) -> None:
    path = tmp_path / "a.pcapng"
    content = b""
    for order in "<>":
        content += section(order) + interface(1, 70, order=order) + interface(1, order=order)
        content += enhanced(FRAMES[0], 1_700_000_000_000_001, 1, order=order)
        content += simple(FRAMES[1], order=order)
        content += simple(FRAMES[30][:70], wire_len=1000, order=order)
        content += obsolete(FRAMES[2], 1_700_000_000_000_002, 1, drops=3, order=order)
    path.write_bytes(content)

    ours, theirs = by_ibwire(path), by_tshark(path)
    assert [row[1:] for row in ours] == [row[1:] for row in theirs]
    assert [row for row in ours if row[0]] == [row for row in theirs if row[0]]


@pytest.mark.parametrize(
    "path",
    # tshark reads no xz.
    sorted(p for p in CAPTURES.glob("*.pcap*") if p.suffix != ".xz" and p.stat().st_size < 2**20)
    or [pytest.param(None, marks=pytest.mark.skip(reason="no captures in captures/"))],
    ids=lambda path: path.name if path else "none",
)
def test_shipped_captures(path: Path) -> None:
    with open_capture(path) as reader:
        if any((batch.link_type == 197).any() for batch in reader.batches()):
            pytest.skip("tshark shows time and length of the ERF record, not of the pcap record")

    assert by_ibwire(path) == by_tshark(path)


def test_editcap_conversions_read_the_same(tmp_path: Path) -> None:
    editcap = shutil.which("editcap")
    if editcap is None:
        pytest.skip("editcap not installed")
    source = tmp_path / "a.pcap"
    write_capture(source, RECORDS)
    with open_capture(source) as reader:
        expected = list(reader.records())

    for form in ("pcapng", "nsecpcap", "modpcap"):
        converted = tmp_path / form
        subprocess.run([editcap, "-F", form, source, converted], check=True, capture_output=True)
        with open_capture(io.BytesIO(converted.read_bytes())) as reader:
            records = list(reader.records())
        assert [(r.data, r.wire_len) for r in records] == [(r.data, r.wire_len) for r in expected]
        unit = 1000 if form == "modpcap" else 1
        assert [r.time_ns for r in records] == [r.time_ns // unit * unit for r in expected]
