from pathlib import Path

import pytest

from ibwire.base.errors import CaptureError, EncodeError
from ibwire.capture import Record, open_capture, write_capture

RECORDS = [
    Record(1, 1_700_000_000_000_000_001, b"first", 5, 1),
    Record(2, 1_700_000_000_000_000_002, b"second", 60, 1),
]
MIXED = [
    Record(1, 5, b"a", 1, 247, interface=0, comments=("why",)),
    Record(2, 6, b"b", 1, 1, interface=1),
    Record(3, 7, b"c", 1, 247, interface=0),
]


@pytest.mark.parametrize("suffix", ["", ".gz", ".xz", ".zst", ".GZ"])
@pytest.mark.parametrize("form", ["pcap", "pcapng"])
def test_suffix_chooses_format_and_compression(tmp_path: Path, form: str, suffix: str) -> None:
    path = tmp_path / f"out.{form}{suffix}"

    assert write_capture(path, iter(RECORDS)) == 2

    with open_capture(path) as reader:
        assert reader.format == form
        compression = {"": None, ".gz": "gzip", ".xz": "xz", ".zst": "zstd"}[suffix.lower()]
        assert reader.compression == compression
        assert list(reader.records()) == RECORDS


def test_pcapng_keeps_interfaces_link_types_and_comments(tmp_path: Path) -> None:
    path = tmp_path / "out.pcapng"

    write_capture(path, MIXED)

    with open_capture(path) as reader:
        assert list(reader.records()) == MIXED


def test_pcap_holds_one_link_type(tmp_path: Path) -> None:
    with pytest.raises(EncodeError, match="pcap holds one link type"):
        write_capture(tmp_path / "out.pcap", MIXED)


@pytest.mark.parametrize("form", ["pcap", "pcapng"])
def test_no_records_make_an_empty_capture(tmp_path: Path, form: str) -> None:
    path = tmp_path / f"out.{form}"

    assert write_capture(path, []) == 0

    with open_capture(path) as reader:
        assert list(reader.records()) == []


@pytest.mark.parametrize("name", ["out.txt", "out", "out.gz", "out.pcap.bz2"])
def test_other_suffixes_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(CaptureError, match=r"ends neither in \.pcap nor in \.pcapng"):
        write_capture(tmp_path / name, RECORDS)
    assert list(tmp_path.iterdir()) == []


def test_directory_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match="cannot be written: no such file"):
        write_capture(tmp_path / "none" / "out.pcap", RECORDS)


@pytest.mark.parametrize("suffix", ["", ".gz", ".xz", ".zst"])
def test_same_records_make_the_same_bytes(tmp_path: Path, suffix: str) -> None:
    first, second = tmp_path / f"a.pcap{suffix}", tmp_path / f"b.pcap{suffix}"

    write_capture(first, RECORDS)
    write_capture(second, RECORDS)

    assert first.read_bytes() == second.read_bytes()
