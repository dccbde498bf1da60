"""Damaged and hostile files: a message, everything before the damage, exit status 3."""

import json
import os
import struct
import tempfile
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st

from capture.handmade import pcap_header, pcap_record
from examples import scaled
from ibwire.cli import main

CAPTURE = Path(__file__).parents[2] / "captures" / "rcx-all-ops.pcap"
CONTENT = CAPTURE.read_bytes()
PACKETS = 64


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["dissect", *map(str, arguments)])


def starts() -> Any:
    """Where each record of the capture starts, by its own lengths."""
    position, found = 24, []
    while position < len(CONTENT):
        found.append(position)
        position += 16 + struct.unpack_from("<I", CONTENT, position + 8)[0]
    return found


STARTS = starts()


def unreadable(result: Any, path: Path) -> Any:
    assert result.exit_code == 3
    assert str(path) in result.stderr
    assert "Traceback" not in result.stderr
    return result.stderr


@pytest.mark.parametrize("option", [["--json"], ["--csv"], ["--fields", "bth.psn"], []])
@pytest.mark.parametrize("cut", [1, 15, 16, 30])
def test_truncated_file_yields_everything_before_the_damage(
    tmp_path: Path, option: list[str], cut: int
) -> None:
    path = tmp_path / "cut.pcap"
    path.write_bytes(CONTENT[: STARTS[20] + cut])
    result = run(*option, path)

    message = unreadable(result, path)
    assert f"byte {STARTS[20]}" in message
    header = 1 if option in (["--csv"], ["--fields", "bth.psn"]) else 0
    whole = run(*option, CAPTURE).stdout.splitlines()
    assert result.stdout.splitlines() == whole[: 20 + header]


def test_absurd_record_length_ends_the_capture_there(tmp_path: Path) -> None:
    path = tmp_path / "absurd.pcap"
    damaged = bytearray(CONTENT)
    damaged[STARTS[30] + 8 : STARTS[30] + 12] = b"\xff\xff\xff\x7f"
    path.write_bytes(damaged)
    result = run("--json", path)

    message = unreadable(result, path)
    assert f"byte {STARTS[30]}" in message
    assert len(result.stdout.splitlines()) == 30


@pytest.mark.parametrize(
    "content", [b"", b"\0", b"no capture at all, only text\n" * 9, b"\x1f\x8b\x08\0rubbish" * 5]
)
def test_what_is_no_capture(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.pcap"
    path.write_bytes(content)
    result = run("--json", path)

    unreadable(result, path)
    assert result.stdout == ""


@pytest.mark.parametrize("name", [".", "missing.pcap", "no*thing.pcap"])
def test_directory_and_missing_file(tmp_path: Path, name: str) -> None:
    result = run(tmp_path / name)

    unreadable(result, tmp_path / name)
    assert result.stdout == ""


@pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read everything"
)
def test_file_without_permission(tmp_path: Path) -> None:
    path = tmp_path / "x.pcap"
    path.write_bytes(CONTENT)
    path.chmod(0)

    unreadable(run(path), path)


def test_a_damaged_capture_does_not_keep_the_next_from_being_read(tmp_path: Path) -> None:
    path = tmp_path / "cut.pcap"
    path.write_bytes(CONTENT[: STARTS[3] + 5])
    result = run("--json", path, CAPTURE)

    unreadable(result, path)
    files = [json.loads(line)["frame.file"] for line in result.stdout.splitlines()]
    assert files == [str(path)] * 3 + [str(CAPTURE)] * PACKETS


def test_packets_of_an_unknown_link_type_are_listed_with_a_fault(tmp_path: Path) -> None:
    path = tmp_path / "strange.pcap"
    path.write_bytes(pcap_header(link_type=147) + pcap_record(bytes(60)) * 2)
    result = run("--json", path)

    assert result.exit_code == 0
    found = [json.loads(line) for line in result.stdout.splitlines()]
    assert [record["fault"] for record in found] == ["link_type"] * 2


@pytest.mark.parametrize("view", [[], ["--construct"], ["--scapy"]])
def test_show_tells_what_it_cannot_read(tmp_path: Path, view: str) -> None:
    path = tmp_path / "cut.pcap"
    path.write_bytes(CONTENT[: STARTS[3] + 5])
    result = CliRunner().invoke(main, ["show", str(path), "9", *view])

    unreadable(result, path)


@settings(max_examples=scaled(40))
@given(
    flips=st.lists(st.integers(0, 8 * len(CONTENT) - 1), min_size=1, max_size=200),
    spare_file_structure=st.booleans(),
)
def test_flipped_bits_never_do_worse_than_exit_three(
    flips: list[int], spare_file_structure: bool
) -> None:
    damaged = bytearray(CONTENT)
    for flip in flips:
        damaged[flip // 8] ^= 1 << flip % 8
    if spare_file_structure:  # else nearly every example ends at its first record
        damaged[:24] = CONTENT[:24]
        for start in STARTS:
            damaged[start : start + 16] = CONTENT[start : start + 16]
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "flipped.pcap")
        path.write_bytes(damaged)
        for option in ([], ["--json"], ["--csv"], ["--fields", "frame.number,fault,icrc.status"]):
            result = run(*option, path)
            assert result.exit_code in ((0,) if spare_file_structure else (0, 3)), result.exception
            if option == ["--json"]:
                for line in result.stdout.splitlines():
                    json.loads(line)
            if spare_file_structure:
                assert len(result.stdout.splitlines()) in (PACKETS, PACKETS + 1)
