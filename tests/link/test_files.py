"""Files and FIFOs as a link."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from ibwire.base.errors import CaptureError, LinkError
from ibwire.base.node import Frame, Grant
from ibwire.base.units import MS, NS, S, Time
from ibwire.capture import PcapWriter, open_capture
from ibwire.link.files import Ended, FileLink

ROOT = Path(__file__).parents[2]
PROCESS = Path(__file__).parent / "peer_process.py"


class Echo:
    """Sends every frame back, its first byte turned, and one of its own each `period`."""

    def __init__(self, period: Any = None) -> None:
        self.period = period
        self.due = period
        self.waiting: list[Any] = []
        self.heard: list[Any] = []

    def receive(self, frame: Frame, now: Time, port: int = 0) -> None:
        self.heard.append((now, frame))
        self.waiting.append(bytes([frame[0] ^ 0xFF]) + frame[1:])

    def poll_transmit(self, now: Time, port: int = 0, grant: Grant | None = None) -> Frame | None:
        return self.waiting.pop(0) if self.waiting else None

    def poll_timeout(self) -> Any:
        return self.due

    def handle_timeout(self, now: Time) -> None:
        self.waiting.append(b"tick")
        self.due += self.period


def pcap(path: Path, *records: Any, link_type: int = 1) -> Any:
    with PcapWriter(path, link_type) as writer:
        for time_ns, data in records:
            writer.write(data, time_ns)
    return path


def contents(path: Path) -> Any:
    with open_capture(path) as reader:
        return [(record.time_ns, record.data) for record in reader.records()]


def test_frames_of_a_file_arrive_at_the_times_of_their_records(tmp_path: Path) -> None:
    source = pcap(tmp_path / "in.pcap", (10**18, b"one"), (10**18 + 5, b"two"))
    node = Echo()
    with FileLink(source, tmp_path / "out.pcap") as link:
        ended = link.run(node)

    assert ended is Ended.END_OF_INPUT
    assert node.heard == [(0, b"one"), (5 * NS, b"two")]
    assert contents(tmp_path / "out.pcap") == [(10**18, b"\x90ne"), (10**18 + 5, b"\x8bwo")]


def test_timeouts_between_two_records_happen_in_between(tmp_path: Path) -> None:
    source = pcap(tmp_path / "in.pcap", (0, b"one"), (2_500_000, b"two"))
    node = Echo(period=1 * MS)
    with FileLink(source, tmp_path / "out.pcap") as link:
        link.run(node, seconds=0)

    assert [data for _, data in contents(tmp_path / "out.pcap")] == [
        b"\x90ne",
        b"tick",
        b"tick",
        b"\x8bwo",
    ]


def test_time_after_the_last_record_is_bounded(tmp_path: Path) -> None:
    source = pcap(tmp_path / "in.pcap", (0, b"one"))
    with FileLink(source, tmp_path / "out.pcap") as link:
        link.run(Echo(period=S // 10), seconds=1)

    # One echo, and a tick every tenth of a second, the last at the very end.
    assert link.sent == 1 + 10


def test_records_that_go_back_in_time_do_not_take_the_node_with_them(tmp_path: Path) -> None:
    source = pcap(tmp_path / "in.pcap", (1000, b"one"), (3000, b"two"), (2000, b"six"))
    node = Echo()
    with FileLink(source, tmp_path / "out.pcap") as link:
        link.run(node)

    assert [now for now, _ in node.heard] == [0, 2000 * NS, 2000 * NS]


def test_as_many_frames_as_were_asked_for(tmp_path: Path) -> None:
    source = pcap(tmp_path / "in.pcap", *((n, b"abc") for n in range(10)))
    with FileLink(source, tmp_path / "out.pcap") as link:
        first = link.run(Echo(), frames=4)
        assert (first, link.received) == (Ended.FRAMES, 4)
        assert link.run(Echo()) is Ended.END_OF_INPUT

    assert link.received == 10


def test_a_damaged_file_is_a_capture_error_after_what_was_before_it(tmp_path: Path) -> None:
    pcap(tmp_path / "in.pcap", (0, b"one"), (1, b"two"))
    data = (tmp_path / "in.pcap").read_bytes()
    (tmp_path / "in.pcap").write_bytes(data[:-1])
    node = Echo()
    with FileLink(tmp_path / "in.pcap", tmp_path / "out.pcap") as link, pytest.raises(CaptureError):
        link.run(node)

    assert [frame for _, frame in node.heard] == [b"one"]


def test_a_file_of_another_link_type_is_refused(tmp_path: Path) -> None:
    source = pcap(tmp_path / "in.pcap", (0, b"one"), link_type=101)
    with FileLink(source, tmp_path / "out.pcap") as link, pytest.raises(LinkError, match="101"):
        link.run(Echo())


def test_a_missing_file_is_an_error_and_leaves_nothing_open(tmp_path: Path) -> None:
    with pytest.raises(CaptureError):
        FileLink(tmp_path / "none.pcap", tmp_path / "out.pcap")
    with pytest.raises(LinkError):
        FileLink(pcap(tmp_path / "in.pcap", (0, b"one")), tmp_path / "no" / "out.pcap")


fifos = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no FIFOs on this system")


@pytest.fixture
def pair(tmp_path: Path) -> Any:
    """Two FIFOs."""
    names = tmp_path / "a-to-b", tmp_path / "b-to-a"
    for name in names:
        os.mkfifo(name)
    return names


@pytest.mark.slow
@fifos
@pytest.mark.parametrize("order", [("send", "receive"), ("receive", "send")])
def test_two_processes_move_a_verified_message_through_two_fifos(pair: Any, order: str) -> None:
    there, back = map(str, pair)
    arguments = {"send": ("send", back, there), "receive": ("receive", there, back)}
    paths = os.pathsep.join([str(ROOT), str(ROOT / "layers")])
    processes = {
        role: subprocess.Popen(
            [sys.executable, str(PROCESS), *arguments[role]],
            env=os.environ | {"PYTHONPATH": paths},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for role in order
    }
    output = {role: process.communicate(timeout=60) for role, process in processes.items()}

    assert output["send"] == ("send stopped 7 SUCCESS True\n", "")
    assert output["receive"] == ("receive stopped 8 SUCCESS True\nend of input\n", "")


@pytest.mark.slow
def test_the_example_of_the_documentation_runs(pair: Any, tmp_path: Path) -> None:
    text = (ROOT / "docs" / "links.md").read_text(encoding="utf-8")
    script = tmp_path / "peer.py"
    script.write_text(text.split("```python\n")[1].split("```")[0], encoding="utf-8")
    there, back = pair
    paths = os.pathsep.join([str(ROOT), str(ROOT / "layers")])
    processes = [
        subprocess.Popen(
            [sys.executable, str(script), *arguments],
            env=os.environ | {"PYTHONPATH": paths},
            stdout=subprocess.PIPE,
            text=True,
        )
        for arguments in (("receive", there, back), ("send", back, there))
    ]

    output = [process.communicate(timeout=60)[0] for process in processes]
    assert output == ["receive SUCCESS hello, peer\n", "send SUCCESS hello, peer\n"]


def header() -> Any:
    buffer = io.BytesIO()
    PcapWriter(buffer)
    return buffer.getvalue()


def fed(pair: Any, data: Any, node: Any = None, **options: Any) -> Any:
    """Run a node on a FIFO into which this is written, byte for byte; what it sends is drained."""
    there, back = pair

    def writer() -> None:
        # A node that has seen enough closes its end.
        with open(there, "wb", buffering=0) as file, suppress(BrokenPipeError):
            for start in range(0, len(data), 7):
                file.write(data[start : start + 7])

    def reader() -> None:
        with open(back, "rb") as file:
            received.append(file.read())

    received: list[Any] = []
    threads = [threading.Thread(target=each) for each in (writer, reader)]
    for thread in threads:
        thread.start()
    try:
        with FileLink(there, back) as link:
            return link.run(node or Echo(), **options), link
    finally:
        for thread in threads:
            thread.join()


@fifos
def test_frames_arrive_from_a_fifo_however_their_bytes_are_cut(pair: Any) -> None:
    buffer = io.BytesIO()
    with PcapWriter(buffer) as writer:
        writer.write(b"one", 0)
        writer.write(bytes(1500), 0)
        data = buffer.getvalue()
    node = Echo()
    ended, link = fed(pair, data, node)

    assert ended is Ended.END_OF_INPUT
    assert [frame for _, frame in node.heard] == [b"one", bytes(1500)]
    assert link.received == 2


@fifos
@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"this is no pcap, whatever it may be", "not pcap"),
        (header()[:20] + b"\x65\0\0\0", "link type 101"),
        (header() + bytes(8) + b"\xff" * 8, "4294967295 bytes"),
        (header() + bytes(9), "9 bytes into a record"),
    ],
)
def test_a_fifo_with_something_else_is_a_link_error(pair: Any, data: bytes, complaint: str) -> None:
    with pytest.raises(LinkError, match=complaint):
        fed(pair, data)


@fifos
def test_a_fifo_that_nobody_reads_is_given_up(pair: Any) -> None:
    with pytest.raises(LinkError, match="no reader has opened it"):
        FileLink(*pair, opening=0.0)


@fifos
def test_a_run_on_a_silent_fifo_ends_when_its_time_is_over(pair: Any) -> None:
    there, back = pair
    reader = os.open(back, os.O_RDONLY | os.O_NONBLOCK)
    try:
        with FileLink(there, back) as link:
            assert link.run(Echo(), seconds=0.01) is Ended.TIME
    finally:
        os.close(reader)


@fifos
def test_a_peer_that_leaves_is_no_error(pair: Any) -> None:
    """It has closed both ends; what is still sent goes nowhere."""
    there, back = pair
    reader = os.open(back, os.O_RDONLY | os.O_NONBLOCK)
    node = Echo()
    with FileLink(there, back) as link:
        writer = os.open(there, os.O_WRONLY)
        os.write(writer, header())
        os.close(writer)
        os.close(reader)
        node.waiting.append(b"lost")
        assert link.run(node, seconds=5) is Ended.END_OF_INPUT
