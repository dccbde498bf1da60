"""Every writer, ended in the middle: what is left of its files, and of those before it."""

import json
import os
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from cli.workplace import ENDED, start, wait_until
from ibwire.base.errors import CaptureError
from ibwire.capture import open_capture
from processes import Processes

CAPTURES = Path(__file__).parents[2] / "captures"

INJECT = "inject --src 10.0.0.1 --dst 10.0.0.2 --qpn 0x11 --count 2000000"


@dataclass(frozen=True)
class Writer:
    """A command that takes long, and when it is in the middle of it."""

    line: str
    old: str
    """The file it would replace, or that grows."""
    keeps_name: bool = False
    again: str = "dissect {} -o x.csv"
    """A later command that writes to the same place, without the capture."""

    def is_writing(self, workplace: Path) -> bool:
        """Whether some of its result is on disk."""
        if self.keeps_name:
            return (workplace / self.old).stat().st_size > 1 << 18
        return any(path.stat().st_size for path in workplace.rglob("*.ibwire-part"))


WRITERS = {
    "dissect json": Writer("dissect long.pcap -o old.json", "old.json"),
    "dissect parquet": Writer("dissect long.pcap -o old.parquet", "old.parquet"),
    "query": Writer(
        "query long.pcap -o old.csv 'SELECT a.number FROM packets a, packets b'", "old.csv"
    ),
    "query parquet": Writer(
        "query long.pcap -o old.parquet 'SELECT a.number FROM packets a, packets b'", "old.parquet"
    ),
    "export": Writer(
        "export long.pcap -o tables",
        "tables/messages/long.pcap.parquet",
        again="export {} -o tables",
    ),
    "export comments": Writer("export long.pcap -o old.pcapng", "old.pcapng"),
    "respond": Writer("respond long.pcap -o old.pcapng", "old.pcapng"),
    "run": Writer("run endless.toml -o old.pcapng", "old.pcapng", keeps_name=True),
    "run pcap": Writer("run endless.toml -o old.pcap", "old.pcap", keeps_name=True),
    "run trace": Writer("run endless.toml --trace old.json", "old.json"),
    "inject": Writer(INJECT + " -o old.pcapng", "old.pcapng", keeps_name=True),
    "tap": Writer("tap long.pcap --plan none.toml -o old.pcapng", "old.pcapng"),
}


def records(path: Path) -> tuple[int, str]:
    """How many whole records a capture has, and what is wrong after them."""
    count = 0
    try:
        with open_capture(path) as reader:
            for _ in reader.records():
                count += 1
    except CaptureError as error:
        return count, error.reason
    return count, ""


def files(place: Path) -> set[str]:
    return {str(path.relative_to(place)) for path in place.rglob("*") if not path.is_dir()}


@pytest.mark.slow
@pytest.mark.parametrize("number", ENDED, ids=lambda number: number.name)
@pytest.mark.parametrize("writer", WRITERS.values(), ids=WRITERS.keys())
def test_ended_writer_leaves_the_old_result_or_whole_packets(
    processes: Processes, workplace: Path, writer: Writer, number: signal.Signals
) -> None:
    old = workplace / writer.old
    old.parent.mkdir(parents=True, exist_ok=True)
    old.write_text("old")
    before = files(workplace)
    process = start(processes, workplace, writer.line)
    wait_until(process, lambda: writer.is_writing(workplace), "it wrote")

    process.send_signal(number)
    _, told = process.communicate()

    assert process.returncode == ENDED[number], told
    assert "Traceback" not in told
    if number is signal.SIGKILL:
        for line in (writer.again, "explain {}"):
            later = start(processes, workplace, line.format(CAPTURES / "rcx-all-ops.pcap"))
            later.communicate()
            assert later.returncode == 0
    else:
        assert "error: interrupted\n" in told, told
    assert before <= files(workplace)
    assert not [name for name in files(workplace) if "ibwire-part" in name]
    assert os.listdir(workplace.parent / "tmp") == []
    if not writer.keeps_name:
        assert old.read_text() == "old"
        return
    count, damage = records(old)
    assert count > 100
    if number is not signal.SIGKILL:
        assert damage == ""
        assert f"warning: {old.name} is incomplete" in told
        assert (b"incomplete" in old.read_bytes()) == (old.suffix == ".pcapng")


@pytest.mark.slow
@pytest.mark.parametrize("number", ENDED, ids=lambda number: number.name)
def test_ended_fuzzer_leaves_a_run_that_goes_on(
    processes: Processes, workplace: Path, number: signal.Signals
) -> None:
    process = start(processes, workplace, "fuzz run --target emu:rxe --budget 10Mpkt -o found")
    wait_until(
        process, lambda: (workplace / "found" / "F0001" / "report.txt").exists(), "a finding"
    )

    process.send_signal(number)
    _, told = process.communicate()

    assert process.returncode == (-9 if number is signal.SIGKILL else 130)
    assert "Traceback" not in told
    assert json.loads((workplace / "found" / "run.json").read_text())["cases"] >= 0
    again = start(processes, workplace, "fuzz run --resume found --budget 20")
    again.communicate()
    assert again.returncode in (0, 1)
    assert not list(workplace.rglob("*.ibwire-part"))


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("line", ["query - 'FROM packets'", "explain -", "report - -o x.html"])
def test_copy_of_standard_input_is_gone(
    processes: Processes, workplace: Path, line: str, number: signal.Signals
) -> None:
    place = workplace.parent / "tmp"
    process = start(processes, workplace, line, stdin=subprocess.PIPE)
    wait_until(process, lambda: any(place.glob("*/standard-input")), "it copied")

    process.send_signal(number)
    process.communicate()
    if number is signal.SIGKILL:
        again = start(processes, workplace, f"explain {CAPTURES}/rcx-all-ops.pcap")
        again.communicate()

    assert process.returncode == ENDED[number]
    assert os.listdir(place) == []
    assert not (workplace / "x.html").exists()
