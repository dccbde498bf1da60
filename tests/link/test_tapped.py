"""A port whose frames are written: every frame is in the file before the next call."""

import os
import struct
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from ibwire.base.errors import OutputError
from ibwire.base.node import Frame
from ibwire.capture import open_capture
from ibwire.link.tapped import TappedPort


class Line:
    """A port that receives what was put there, and sends one frame at a time."""

    name = "line"
    mac = bytes(6)
    mtu = 1500
    addresses: Sequence[str] = ()

    def __init__(self) -> None:
        self.waiting: list[Frame] = []
        self.is_closed = False

    def receive(self) -> Sequence[Frame]:
        frames, self.waiting = self.waiting, []
        return frames

    def send(self, frames: Sequence[Frame]) -> int:
        return min(len(frames), 1)

    def notes(self) -> list[str]:
        return []

    def fileno(self) -> int:
        return -1

    def close(self) -> None:
        self.is_closed = True


def written(path: Path) -> list[Frame]:
    with open_capture(path) as reader:
        return [record.data for record in reader.records()]


def test_frames_are_readable_before_the_file_is_closed(tmp_path: Path) -> None:
    """So that a kill loses none."""
    line, path = Line(), tmp_path / "x.pcapng"
    port = TappedPort(line, path)
    line.waiting = [b"a" * 60, b"b" * 60]

    port.receive()
    port.send([b"c" * 60, b"d" * 60])

    assert written(path) == [b"a" * 60, b"b" * 60, b"c" * 60]
    port.close()
    assert line.is_closed


class TimedLine(Line):
    """It knows when its frames have arrived."""

    arrival_ns: Sequence[int] = ()
    arrival_clock = "a sundial's"


def times(path: Path) -> list[int]:
    with open_capture(path) as reader:
        return [record.time_ns for record in reader.records()]


def test_received_frames_have_the_times_of_the_port(tmp_path: Path) -> None:
    line, path = TimedLine(), tmp_path / "x.pcapng"
    port = TappedPort(line, path)
    line.waiting, line.arrival_ns = [b"a" * 60, b"b" * 60], [1_000_000_001, 1_000_000_500]

    port.receive()

    assert times(path) == [1_000_000_001, 1_000_000_500]


def test_times_never_decrease(tmp_path: Path) -> None:
    """The frame has arrived before the other one was sent, and is received only now."""
    line, path = TimedLine(), tmp_path / "x.pcapng"
    port = TappedPort(line, path)
    before = time.time_ns()
    port.send([b"c" * 60])
    line.waiting, line.arrival_ns = [b"a" * 60], [before - 1000]

    port.receive()

    sent, received = times(path)
    assert before <= sent == received


def test_file_says_which_clock_its_times_are_of(tmp_path: Path) -> None:
    """Option if_description, code 3, of the interface description block (pcapng 4.2)."""
    path = tmp_path / "x.pcapng"
    said = (
        b"times of received frames: a sundial's; of sent frames: the system's, before they are sent"
    )

    with TappedPort(TimedLine(), path):
        pass

    assert struct.pack("<HH", 3, len(said)) + said in path.read_bytes()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
def test_full_disk_names_the_file_and_the_port_is_closed_all_the_same() -> None:
    line = Line()
    port = TappedPort(line, "/dev/full")

    with pytest.raises(OutputError, match="/dev/full: cannot be written: no space left"):
        port.send([b"c" * 60])
    with pytest.raises(OutputError, match="/dev/full"):
        port.close()
    assert line.is_closed
