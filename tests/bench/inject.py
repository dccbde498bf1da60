"""Sending beside tcpreplay and Scapy, in one run over a veth pair: packets a second, and pacing.

    python tests/bench/inject.py [--packets N] [--rounds N] [--unheard]

Needs root, for the back-end `live`, and tcpreplay. tcpreplay sends a ready capture of 1024
frames from memory, again and again (`-t -K`); ibwire builds each packet with its own PSN and
ICRC on the way; so does Scapy, in one open socket, once with a new packet each time and once
with one packet whose PSN changes. All jobs take turns in every round, each in a separate process
that prints its rate; the tables show medians, and medians of the ratios in the same round.

The frames of all are the same, and end at the receiver in a UDP socket whose buffer is full. The
receiver runs on the sender's processor, and what it does counts as much as sending: with
`--unheard` there is no socket, and the kernel responds to every packet (ICMP), which takes longer
than sending it.

The pacing of each is judged by the kernel's receive time stamps at the other side.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import re
import select
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from struct import Struct

import numpy as np

from ibwire.capture import PcapWriter
from ibwire.lab.veth import ADDRESSES, INTERFACES, Lab
from ibwire.link.packet_socket import packet_socket
from ibwire.traffic.injection import Injection
from ibwire.traffic.kernel_sender import KernelSender
from ibwire.traffic.pace import Pacer, make_pace, parse_rate
from ibwire.traffic.sender import Sender
from ibwire.traffic.stream import Stream, Verb
from ibwire.traffic.transmission import SourceOutlet, transmit
from ibwire_layers.outer import ROCEV2_PORT, LinkType

PAYLOADS = (64, 1024, 4096)
RATES = (1_000, 10_000, 50_000)
POOL = 1024
"""Frames of the capture that tcpreplay repeats."""
LIVE_LARGEST = 3000
"""Bytes of payload that the back-end `live` takes."""
SCAPY_PACKETS = 1500

_SO_TIMESTAMPNS = 35  # asm-generic/socket.h
_TIMESPEC = Struct("@ll")
_SIOCETHTOOL = 0x8946
_ETHTOOL_SGRO = 0x2C  # linux/ethtool.h


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--packets", type=int, default=300_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--unheard", action="store_true", help="nobody listens at the receiver")
    arguments = parser.parse_args()
    if shutil.which("tcpreplay") is None:
        sys.exit("tcpreplay is not installed")
    with Lab.create() as lab, tempfile.TemporaryDirectory() as folder:
        bench = Bench(lab, Path(folder), arguments.packets, arguments.rounds)
        with nullcontext() if arguments.unheard else bench.listening():
            for napi in (False, True):
                bench.speed(napi)
            bench.pacing()


class Bench:
    """A lab and what is run in it."""

    def __init__(self, lab: Lab, folder: Path, packets: int, rounds: int) -> None:
        self.lab = lab
        self.folder = folder
        self.packets = packets
        self.rounds = rounds
        for payload in PAYLOADS:
            write_pool(self.pool(payload), payload)

    def pool(self, payload: int) -> Path:
        return self.folder / f"pool-{payload}.pcap"

    def speed(self, napi: bool) -> None:
        """Packets a second, as fast as possible.

        napi: whether the receiver polls, which `live` needs; else the kernel's backlog receives.
        """
        self.inside("b", "gro", str(int(napi)))
        jobs: dict[str, Callable[[int], float]] = {
            "tcpreplay": self.tcpreplay,
            "ibwire mmsg": lambda payload: self.ibwire("mmsg", payload),
            "Scapy": lambda payload: self.inside("a", "scapy", "new", str(payload)),
            "Scapy renumbered": lambda payload: self.inside("a", "scapy", "same", str(payload)),
        }
        if napi:
            jobs["ibwire live"] = lambda payload: self.ibwire("live", payload)
        ratios = [
            (ours, peer)
            for ours in jobs
            if "ibwire" in ours
            for peer in jobs
            if "ibwire" not in peer
        ]
        how = "with" if napi else "without"
        print(f"\nreceiver {how} NAPI, {self.rounds} rounds: kpps, and how many times\n")
        print(
            "| payload |", " | ".join([*jobs, *(f"{ours} / {peer}" for ours, peer in ratios)]), "|"
        )
        print("|---" * (1 + len(jobs) + len(ratios)) + "|")
        for payload in PAYLOADS:
            able = [job for job in jobs if job != "ibwire live" or payload <= LIVE_LARGEST]
            found: dict[str, list[float]] = {job: [] for job in jobs}
            for _ in range(self.rounds):
                for job in able:
                    found[job].append(jobs[job](payload))
            cells = [
                f"{statistics.median(found[job]) / 1e3:.4g}" if found[job] else "-" for job in jobs
            ]
            for ours, peer in ratios:
                each = [a / b for a, b in zip(found[ours], found[peer], strict=False)]
                cells.append(f"{statistics.median(each):.3g}" if each else "-")
            print(f"| {payload} |", " | ".join(cells), "|", flush=True)

    def pacing(self) -> None:
        """Rates and gaps, by the receiver's time stamps."""
        self.inside("b", "gro", "0")
        jobs: dict[str, Callable[[int], object]] = {
            "tcpreplay --pps": lambda rate: self.tcpreplay(1024, rate),
            "ibwire": lambda rate: self.ibwire("mmsg", 1024, rate),
            "Scapy inter=": lambda rate: self.inside("a", "scapy_paced", "1024", str(rate)),
        }
        print(f"\npacing, {self.rounds} rounds: rate error (median gap error, us)\n")
        print("| asked pps |", " | ".join(jobs), "|")
        print("|---" * (1 + len(jobs)) + "|")
        for rate in RATES:
            found: dict[str, list[tuple[float, float]]] = {job: [] for job in jobs}
            for _ in range(self.rounds):
                for job, run in jobs.items():
                    found[job].append(self.received(rate, run))
            cells = []
            for results in found.values():
                errors, gaps = zip(*results, strict=True)
                cells.append(f"{statistics.median(errors):.3%} ({statistics.median(gaps):.2f})")
            print(f"| {rate} |", " | ".join(cells), "|", flush=True)

    def received(self, rate: int, run: Callable[[int], object]) -> tuple[float, float]:
        """How wrong the rate was, and the median gap error in microseconds."""
        receiver = self.start("b", "receive")
        assert receiver.stdout is not None
        assert receiver.stdout.readline() == "ready\n"
        run(rate)
        times = np.array(json.loads(receiver.communicate("over\n")[0]))
        gaps = np.diff(times)
        achieved = 1e9 * len(gaps) / (times[-1] - times[0])
        return abs(achieved / rate - 1), float(np.median(np.abs(gaps - 1e9 / rate))) / 1e3

    @contextmanager
    def listening(self) -> Iterator[None]:
        """A receiver exists for the packets."""
        listener = self.start("b", "listen")
        assert listener.stdout is not None
        assert listener.stdout.readline() == "ready\n"
        try:
            yield
        finally:
            listener.communicate("over\n")

    def tcpreplay(self, payload: int, rate: int | None = None) -> float:
        speed = ["-t"] if rate is None else [f"--pps={rate}"]
        packets = self.packets if rate is None else rate
        command = ["tcpreplay", *speed, "-K", f"--loop={-(-packets // POOL)}"]
        command += [f"--limit={packets}", "-i", INTERFACES["a"], str(self.pool(payload))]
        done = subprocess.run(
            self.lab.command("a", command),
            env=self.lab.environment(),
            capture_output=True,
            text=True,
            check=True,
        )
        found = re.search(r"Actual: (\d+) packets .* sent in ([\d.]+) seconds", done.stdout)
        assert found is not None, done.stdout + done.stderr
        return int(found[1]) / float(found[2])

    def ibwire(self, back_end: str, payload: int, rate: int | None = None) -> float:
        # Getting the kernel ready takes a fixed time, of which a second is a fair share.
        packets = rate or self.packets * (8 if back_end == "live" else 1)
        return self.inside("a", "send", back_end, str(payload), str(packets), str(rate or 0))

    def inside(self, side: str, *arguments: str) -> float:
        process = self.start(side, *arguments)
        output, _ = process.communicate()
        assert process.returncode == 0
        return float(json.loads(output))

    def start(self, side: str, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.lab.command(side, [sys.executable, __file__, *arguments]),
            env=self.lab.environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )


def injection(payload: int, count: int) -> Injection:
    """Packets with a separate payload each and no header after the BTH."""
    stream = Stream(
        verb=Verb.SEND,
        qpns=((0x11, 1),),
        size=payload,
        mtu=4096,
        src=ADDRESSES["a"][0],
        dst=ADDRESSES["b"][0],
    )
    return Injection(streams=(stream,), count=count)


def write_pool(path: Path, payload: int) -> None:
    with path.open("wb") as out:
        writer = PcapWriter(out, LinkType.ETHERNET)
        for block in injection(payload, POOL).blocks(POOL):
            for number, (row, length) in enumerate(zip(block.frames, block.lengths, strict=True)):
                writer.write(row[:length].tobytes(), number * 1000)


# The processes of a job, each in a namespace.


def send(back_end: str, payload: str, packets: str, rate: str) -> None:
    source = injection(int(payload), int(packets))
    pace = make_pace({"rate": parse_rate(f"{rate}pps")}) if int(rate) else None
    name = INTERFACES["a"]
    if back_end == "live":
        with KernelSender(name, source.templates() or ()) as outlet:
            report = transmit(outlet, count=int(packets))
    else:
        with Sender(name) as sender:
            feed = SourceOutlet(sender, source)
            report = transmit(feed, pace and Pacer(pace), count=int(packets))
    assert report.error is None, report.error
    assert report.rate is not None
    assert report.lost is not None
    # When others need the processor, a veth may have no room for some of what `live` makes.
    assert back_end == "live" or not report.lost, report.device
    print(report.rate * (1 - report.lost / report.accepted))


def scapy(way: str, payload: str) -> None:
    """Build each packet and send it."""
    from scapy.config import conf

    import build  # isort: skip

    (stream,) = injection(int(payload), 1).streams
    make = {"new": build.new_packets, "same": build.renumbered}[way](stream)
    ours = next(injection(int(payload), 2).blocks(2)).frames
    assert [bytes(make(psn)) for psn in range(2)] == [row.tobytes() for row in ours]
    with conf.L2socket(iface=INTERFACES["a"]) as sending:
        begin = time.perf_counter()
        for psn in range(SCAPY_PACKETS):
            sending.send(make(psn))
        print(SCAPY_PACKETS / (time.perf_counter() - begin))


def scapy_paced(payload: str, rate: str) -> None:
    """Send a packet that is ready, paced by what Scapy offers, `inter`."""
    from scapy.packet import Raw
    from scapy.sendrecv import sendp

    frame = next(injection(int(payload), 1).blocks(1)).frames[0].tobytes()
    packets = [Raw(frame)] * min(int(rate), 5000)
    sendp(packets, inter=1 / int(rate), iface=INTERFACES["a"], verbose=False)
    print(0)


def listen() -> None:
    """Receive UDP as a RoCE host does, until a signal; packets are not read."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
        listening.bind((ADDRESSES["b"][0], ROCEV2_PORT))
        print("ready", flush=True)
        sys.stdin.readline()


def receive() -> None:
    """Print when each frame has arrived, in nanoseconds, after a signal."""
    with packet_socket(INTERFACES["b"]) as receiving:
        receiving.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        receiving.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 25)
        receiving.bind((INTERFACES["b"], 3))  # ETH_P_ALL
        receiving.settimeout(0.05)
        print("ready", flush=True)
        times = []
        while True:
            try:
                data, ancillary, _, _ = receiving.recvmsg(64, 64)
            except TimeoutError:
                if select.select([sys.stdin], [], [], 0)[0]:
                    break
                continue
            # RoCEv2 only: the kernel also sends packets now and then.
            if data[12:14] == b"\x08\x00" and data[36:38] == b"\x12\xb7":
                seconds, nanoseconds = _TIMESPEC.unpack(ancillary[0][2])
                times.append(seconds * 1_000_000_000 + nanoseconds)
    print(json.dumps(times))


def gro(on: str) -> None:
    """Turn merging of received packets on or off, which turns NAPI on or off on a veth."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        import ctypes

        value = (ctypes.c_uint32 * 2)(_ETHTOOL_SGRO, int(on))
        request = Struct("@16sP16x").pack(INTERFACES["b"].encode(), ctypes.addressof(value))
        fcntl.ioctl(asking, _SIOCETHTOOL, request)
    print(0)


if __name__ == "__main__":
    jobs = {each.__name__: each for each in (send, scapy, scapy_paced, listen, receive, gro)}
    if sys.argv[1:] and sys.argv[1] in jobs:
        jobs[sys.argv[1]](*sys.argv[2:])
    else:
        main()
