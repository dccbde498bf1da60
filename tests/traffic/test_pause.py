"""Pause and PFC frames: when, and what they say; the end lets everything go on."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from each_case import each_case
from ibwire.base.errors import EncodeError, ScriptError
from ibwire.base.units import MS, US
from ibwire.capture.index import Record
from ibwire.capture.writer import write_capture
from ibwire.traffic.pause import Storm, control_frame, pause_frames, read_storms

MAC = bytes.fromhex("020000000001")


def said(frame: bytes) -> dict[int, int]:
    """Quanta by class of a PFC frame (reference/wire-formats#pfc), of the port by -1."""
    assert frame[:14].hex() == "0180c2000001" + MAC.hex() + "8808"
    assert len(frame) == 60
    if frame[14:16] == b"\x00\x01":
        assert not any(frame[18:])
        return {-1: int.from_bytes(frame[16:18])}
    assert frame[14:17] == b"\x01\x01\x00"
    assert not any(frame[34:])
    times = {n: int.from_bytes(frame[18 + 2 * n : 20 + 2 * n]) for n in range(8)}
    return {n: times[n] for n in range(8) if frame[17] >> n & 1}


def test_a_storm_is_refreshed_and_ends_with_a_resume() -> None:
    source = pause_frames([Storm(priorities=(3, 4), quanta=1000, refresh=300 * US)], MS, MAC)

    assert list(source.times) == [0, 300_000, 600_000, 900_000, 1_000_000]
    assert [said(frame) for frame in source.frames] == [{3: 1000, 4: 1000}] * 4 + [{3: 0, 4: 0}]
    assert [said(frame) for frame in source.final] == [{3: 0, 4: 0}]


def test_a_storm_comes_and_goes() -> None:
    storm = Storm(priorities=(0,), refresh=200 * US, start=100 * US, on=300 * US, off=100 * US)
    source = pause_frames([storm], 900 * US, MAC)

    assert list(zip(source.times, [said(frame)[0] for frame in source.frames], strict=True)) == [
        (100_000, 65535),
        (300_000, 65535),
        (400_000, 0),
        (500_000, 65535),
        (700_000, 65535),
        (800_000, 0),
        (900_000, 0),
    ]


def test_storms_that_overlap_share_frames_and_a_pause_wins() -> None:
    storms = [
        Storm(priorities=(1,), refresh=100 * US, on=100 * US, off=100 * US),
        Storm(priorities=(1, 2), quanta=7, refresh=100 * US),
    ]
    source = pause_frames(storms, 200 * US, MAC)

    assert [said(frame) for frame in source.frames] == [
        {1: 65535, 2: 7},
        {1: 7, 2: 7},
        {1: 0, 2: 0},
    ]


def test_a_storm_without_priorities_pauses_the_port() -> None:
    source = pause_frames([Storm(quanta=9)], 150 * US, MAC)

    assert [said(frame) for frame in source.frames] == [{-1: 9}, {-1: 9}, {-1: 0}]
    assert [said(frame) for frame in source.final] == [{-1: 0}]


@each_case(
    ("storms", "field"),
    [
        ([{"priorities": (8,)}], "priorities"),
        ([{"quanta": 0}], "quanta"),
        ([{"quanta": 65536}], "quanta"),
        ([{"refresh": 1}], "refresh"),
        ([{"on": MS}], "off"),
        ([{"off": MS}], "on"),
        ([{"priorities": (1,)}, {}], "priorities"),
        ([{"refresh": US}], "time"),
        ([], "storm"),
    ],
    ids=str,
)
def test_a_storm_that_cannot_be_names_the_key(storms: list[dict[str, Any]], field: str) -> None:
    with pytest.raises(EncodeError) as caught:
        pause_frames([Storm(**each) for each in storms], 10_000 * MS, MAC)

    assert caught.value.field == field


def test_a_schedule_is_read_from_a_file() -> None:
    text = b"""
    time = "10ms"
    [[storm]]
    priorities = [3, 4]
    refresh = "50us"
    [[storm]]
    priorities = 5
    on = "1ms"
    off = "3ms"
    start = "2ms"
    quanta = 100
    """

    assert read_storms(text, "s.toml") == (
        [
            Storm(priorities=(3, 4), refresh=50 * US),
            Storm(priorities=(5,), on=MS, off=3 * MS, start=2 * MS, quanta=100),
        ],
        10 * MS,
    )


@each_case(
    ("text", "where"),
    [
        ("time = '1ms'", "s.toml:1:1"),
        ("[[storm]]\npriorities = [8]", "s.toml:2:14"),
        ("[[storm]]\npriorities = 3\nrefrsh = '1us'", "s.toml:3:1"),
        ("[[storm]]\nquanta = 0", "s.toml:2:10"),
        ("[[storm]]\non = '1ms'", "s.toml:1:1"),
    ],
)
def test_a_wrong_schedule_is_pointed_at(text: str, where: str) -> None:
    with pytest.raises(ScriptError) as caught:
        read_storms(text.encode(), "s.toml")

    assert str(caught.value).startswith(f"{where}:")


@pytest.mark.skipif(shutil.which("tshark") is None, reason="tshark not installed")
def test_tshark_reads_the_classes_and_times(tmp_path: Path) -> None:
    path = tmp_path / "pause.pcap"
    frames = [control_frame({3: 100, 7: 0}, MAC), control_frame({8: 500}, MAC)]
    records = [Record(n, n, frame, len(frame), 1) for n, frame in enumerate(frames, 1)]
    write_capture(path, records)
    fields = ("macc.opcode", "macc.cbfc.enbv", "macc.cbfc.pause_time.c3", "macc.pause_time")
    command = ["tshark", "-n", "-r", str(path), "-T", "fields", *(f"-e{each}" for each in fields)]

    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()

    assert [line.split("\t") for line in lines] == [
        ["0x0101", "0x0088", "100", ""],
        ["0x0001", "", "", "500"],
    ]
