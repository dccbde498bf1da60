"""ibwire beside tshark, Scapy and Construct, in one run: CPU time and ratios.

    python tests/bench/compare.py [--packets N] [--rounds N] [--only flows|analyses]

Whole processes are measured by their user and system time, all jobs in turn in
every round; the tables show the median. `generate.py` makes the same capture
every time; JSON is compared on a tenth of it, because tshark takes minutes.
`emulated.py` makes the captures of many connections with losses, and `merged.py` puts real
captures together. What tshark takes
for a capture of one packet, its start, is taken off its time in all ratios.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import timeit
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import emulated
import merged
from generate import generate

BTH = ("bth.opcode", "bth.destqp", "bth.psn", "bth.a")
OURS = ("frame.time_ns", "ip.src", "ip.dst", *BTH, "aeth.syndrome")
TSHARKS = ("frame.time_epoch", "ip.src", "ip.dst", *(f"infiniband.{name}" for name in BTH))
NAMED = [f"-e{name}" for name in (*TSHARKS, "infiniband.aeth.syndrome")]

IBWIRE = [sys.executable, "-m", "ibwire", "dissect"]
TSHARK = ["tshark", "-n", "-r"]

BROKEN = 1
"""Exit status of `ibwire check` where packets break rules, as those of real captures do."""


def _mixed(out: Path, packets: int) -> None:
    with out.open("wb") as file:
        generate(file, packets, seed=1)


SOURCES: dict[str, Callable[[Path, int], object]] = {
    "mixed traffic": _mixed,
    "256 connections, 1 % lost": lambda out, packets: emulated.generate(out, packets, 256, 0.01),
    "real captures": merged.generate,
    "connections of 4 packets": lambda out, packets: _short(out, min(packets, SHORT)),
}
"""Makers of captures with so many packets; the ratios differ much between them."""

SHORT = 20_000
"""Packets, at most, of the capture of short connections."""


def _short(out: Path, packets: int) -> None:
    emulated.generate(out, packets, packets // 4, 0.0)


Jobs = dict[str, list[str]]
"""Name of each job -> its command; the first is the peer."""


def column_jobs(capture: Path, folder: Path) -> Jobs:
    """The same 8 fields, as columns and as text."""
    ours = [*IBWIRE, str(capture), "--fields"]
    fields = ",".join(OURS)
    out = str(folder / "out.parquet")
    return {
        "tshark -T fields, 8 fields": [*TSHARK, str(capture), "-T", "fields", *NAMED],
        "ibwire, 8 fields to Parquet": [*ours, fields, "-o", out],
        "ibwire, 8 fields and every ICRC to Parquet": [*ours, f"{fields},icrc.status", "-o", out],
        "ibwire, 8 fields as text": [*ours, fields],
        "ibwire, listing with every ICRC": [*IBWIRE, str(capture)],
    }


def analysis_jobs(capture: Path, folder: Path) -> Jobs:
    """What follows the connections of a capture."""
    ours, page = [sys.executable, "-m", "ibwire"], str(folder / "out.html")
    return {
        "ibwire flows, every ICRC": [*ours, "flows", str(capture)],
        "ibwire check": [*ours, "check", str(capture)],
        "ibwire explain": [*ours, "explain", str(capture)],
        "ibwire report": [*ours, "report", "-o", page, str(capture)],
    }


def json_jobs(capture: Path, _folder: Path) -> Jobs:
    """JSON of the same 8 fields."""
    return {
        "tshark -T json, 8 fields": [*TSHARK, str(capture), "-T", "json", *NAMED],
        "ibwire --json, 8 fields": [*IBWIRE, str(capture), "--json", "--fields", ",".join(OURS)],
    }


def whole_json_jobs(capture: Path, _folder: Path) -> Jobs:
    """JSON of all fields."""
    return {
        "tshark -T json, everything": [*TSHARK, str(capture), "-T", "json"],
        "ibwire --json, everything and every ICRC": [*IBWIRE, str(capture), "--json"],
    }


def measure(command: list[str], *, failure: int = 0) -> tuple[float, int]:
    """CPU seconds and peak memory in MB of one run.

    failure: an exit status that is expected as well.
    """
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if os.waitstatus_to_exitcode(status) not in (0, failure):
        sys.exit(f"failed: {' '.join(command)}")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss // 1000


def table(packets: int, rounds: int, make: Callable[[Path, Path], Jobs]) -> None:
    """Run all jobs in turn in every round, and print their medians."""
    with tempfile.TemporaryDirectory() as name:
        capture = Path(name) / "mixed.pcap"
        with capture.open("wb") as out:
            generate(out, packets, seed=1)
        wanted = make(capture, Path(name))
        peer, *_ = wanted
        if shutil.which("tshark") is None:
            print("tshark not installed: no ratios")
            del wanted[peer]
        found: dict[str, list[tuple[float, int]]] = {job: [] for job in wanted}
        for _ in range(rounds):
            for job, command in wanted.items():
                found[job].append(measure(command))
    print(f"\n{packets:,} packets, {rounds} rounds, median CPU time of the whole process\n")
    print("| job | CPU s | peak MB | times tshark |")
    print("|---|---|---|---|")
    base = statistics.median(cpu for cpu, _ in found.get(peer, [(0.0, 0)]))
    base -= tshark_start() if peer in found else 0.0
    for job, runs in found.items():
        cpu = statistics.median(seconds for seconds, _ in runs)
        print(f"| {job} | {cpu:.2f} | {max(mb for _, mb in runs)} | {base / cpu:.1f} |")


def tshark_start() -> float:
    """CPU seconds of tshark for a capture of one packet, the median of three."""
    with tempfile.TemporaryDirectory() as name:
        capture = Path(name) / "one.pcap"
        with capture.open("wb") as out:
            generate(out, 1, seed=1)
        command = [*TSHARK, str(capture), "-T", "fields", *NAMED]
        return statistics.median(measure(command)[0] for _ in range(3))


def many_connections(packets: int, rounds: int) -> None:
    """`flows` on captures of the emulator, by connections and losses, beside tshark's 8 fields."""
    has_tshark = shutil.which("tshark") is not None
    start = tshark_start() if has_tshark else 0.0
    print(f"\n{packets:,} packets of the emulator, {rounds} rounds, median CPU time\n")
    print("| connections | loss | flows, CPU s | peak MB | tshark, CPU s | times tshark |")
    print("|---|---|---|---|---|---|")
    for connections in (1, 256, 2000, 20_000):
        for loss in (0.0, 0.01):
            with tempfile.TemporaryDirectory() as name:
                capture = Path(name) / "emulated.pcap"
                emulated.generate(capture, packets, connections, loss)
                flows = [sys.executable, "-m", "ibwire", "flows", str(capture)]
                fields = [*TSHARK, str(capture), "-T", "fields", *NAMED]
                ours, peers, peaks = [], [], []
                for _ in range(rounds):
                    seconds, peak = measure(flows)
                    ours.append(seconds)
                    peaks.append(peak)
                    peers.append(measure(fields)[0] - start if has_tshark else 0.0)
            cpu, peer = statistics.median(ours), statistics.median(peers)
            row = f"| {connections:,} | {loss:.0%} | {cpu:.2f} | {max(peaks)} | {peer:.2f} |"
            print(f"{row} {peer / cpu:.1f} |")


def analyses(packets: int, rounds: int) -> None:
    """`flows`, `check`, `explain` and `report` on captures of several sources, beside tshark."""
    has_tshark = shutil.which("tshark") is not None
    start = tshark_start() if has_tshark else 0.0
    print(f"\n{packets:,} packets of each source, of the last one at most {SHORT:,}, ", end="")
    print(f"{rounds} rounds, median CPU time\n")
    print("| source | job | CPU s | peak MB | tshark, CPU s | times tshark |")
    print("|---|---|---|---|---|---|")
    for source, make in SOURCES.items():
        with tempfile.TemporaryDirectory() as name:
            capture = Path(name) / "capture.pcap"
            make(capture, packets)
            fields = [*TSHARK, str(capture), "-T", "fields", *NAMED]
            jobs = analysis_jobs(capture, Path(name))
            found: dict[str, list[tuple[float, int]]] = {job: [] for job in jobs}
            peers = []
            for _ in range(rounds):
                peers.append(measure(fields)[0] - start if has_tshark else 0.0)
                for job, command in jobs.items():
                    failure = BROKEN if "check" in command else 0
                    found[job].append(measure(command, failure=failure))
        peer = statistics.median(peers)
        for job, runs in found.items():
            cpu = statistics.median(seconds for seconds, _ in runs)
            row = f"| {source} | {job} | {cpu:.2f} | {max(mb for _, mb in runs)} | {peer:.2f} |"
            print(f"{row} {peer / cpu:.1f} |")


def one_packet() -> None:
    """The table of the codecs for one packet: RoCEv2 over IPv4, WRITE ONLY with a RETH."""
    from scapy.layers.l2 import Ether

    import ibwire_layers.scapy as _layers  # noqa: F401 - binds them
    from ibwire_layers.construct import build_frame, parse_frame
    from ibwire_layers.headers import BTH, RETH
    from ibwire_layers.outer import UDP, Ethernet, IPv4
    from ibwire_layers.packet import Packet, RoCEv2Route

    route = RoCEv2Route(IPv4(src=1, dst=2), UDP(), Ethernet())
    packet = Packet(route, BTH(0x0A), (RETH(va=0x1000, rkey=7, dma_len=64),), bytes(64)).repaired()
    frame = packet.build()
    parsed, container, layered = Packet.parse(frame), parse_frame(frame, 1), Ether(frame)

    def scapy_build() -> bytes:
        layered.clear_cache()
        return bytes(layered)

    codecs: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
        "scalar codec": (lambda: Packet.parse(frame), parsed.build),
        "Scapy": (lambda: Ether(frame), scapy_build),
        "Construct": (lambda: parse_frame(frame, 1), lambda: build_frame(container, 1)),
    }
    assert parsed.build() == scapy_build() == build_frame(container, 1) == frame
    print("\nOne packet (Ethernet, IPv4, UDP, BTH, RETH, 64 bytes, ICRC), microseconds\n")
    print("| codec | parse | build | parse, times the scalar codec | build |")
    print("|---|---|---|---|---|")
    base = None
    for name, (parse, build) in codecs.items():
        times = [
            min(timeit.repeat(action, number=500, repeat=5)) * 2000 for action in (parse, build)
        ]
        base = base or times
        ratios = " | ".join(f"{time / first:.1f}" for time, first in zip(times, base, strict=True))
        print(f"| {name} | {times[0]:.1f} | {times[1]:.1f} | {ratios} |")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--packets", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=["flows", "analyses"], help="one table")
    given = parser.parse_args()
    if given.only is None:
        table(given.packets, given.rounds, column_jobs)
        table(given.packets // 10, given.rounds, json_jobs)
        table(given.packets // 10, given.rounds, whole_json_jobs)
        one_packet()
    if given.only != "flows":
        analyses(given.packets, given.rounds)
    if given.only != "analyses":
        many_connections(given.packets, given.rounds)
