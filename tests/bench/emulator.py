"""The emulator beside tshark, in one run: packets a second of CPU time, and their ratio.

    python tests/bench/emulator.py [--packets N] [--rounds N]
    python tests/bench/emulator.py --connections N [--messages N] [--bursts 1 16] [--profile NAME]

Two devices on a simulated wire move verified data; every packet is made with its
ICRC and checked on the other side. tshark reads the capture of the same run, taken
once more with a tap. The rounds of all jobs take turns; the tables show the median.
Packets inside a long message travel in runs; `one by one` is the same without them.
With --connections, the cost of a frame of so many is compared with that of one connection, for
bursts of so many packets: --messages of 64 KiB for each connection, as many packets by one.
The garbage collector is set as the command `ibwire` sets it.
How the cost grows with packets and connections: `growth.py`.
"""

from __future__ import annotations

import argparse
import gc
import random
import resource
import shutil
import statistics
import subprocess
import tempfile
import time
import tracemalloc
from dataclasses import dataclass, replace
from pathlib import Path

from compare import NAMED, TSHARK
from ibwire.base.collector import set_collector
from ibwire.base.compiled import describe_build
from ibwire.capture import PcapWriter, Tap
from ibwire.fabric.sim import Simulator
from ibwire.rc.attributes import QPCap, QPType
from ibwire.rc.connect import ALL_ACCESS, connect
from ibwire.rc.device import Device
from ibwire.rc.profile import PROFILES, SPEC, Profile
from ibwire.rc.qp import QPInit, QueuePair
from ibwire.rc.work import SGE, RecvWR, SendWR, WCStatus, WROpcode

MTU = 1024
DEPTH = 64
"""Messages in flight on each connection."""


@dataclass(frozen=True)
class Job:
    """One transfer."""

    name: str
    opcode: WROpcode = WROpcode.RDMA_WRITE
    size: int = 65536
    """Bytes of a message."""
    packets: int = 100_000
    """Packets with data, of all connections together."""
    connections: int = 1
    profile: str = "spec"
    burst_packets: int | None = None
    """Packets that a queue pair sends in its turn; `None` for as many as the profile says."""


class Side:
    """One device with what its queue pairs share."""

    def __init__(self, address: str, profile: Profile, size: int) -> None:
        self.device = Device(address, address, profile=profile)
        self.pd = self.device.alloc_pd()
        self.cq = self.device.create_cq(1 << 20)
        self.mr = self.pd.register(size, int(ALL_ACCESS))
        self.sges = [SGE(self.mr.iova, size, self.mr.lkey)]

    def queue_pair(self) -> QueuePair:
        """One more queue pair."""
        cap = QPCap(max_send_wr=DEPTH, max_recv_wr=DEPTH)
        return self.device.create_qp(QPInit(QPType.RC, self.pd, self.cq, self.cq, cap=cap))


def transfer(job: Job, capture: Path | None = None, *, with_runs: bool = True) -> tuple[int, float]:
    """Frames that arrived, and CPU seconds from the first post to the last completion."""
    profile = PROFILES[job.profile]
    if job.burst_packets is not None:
        profile = replace(profile, burst_packets=job.burst_packets)
    there, back = (Side(address, profile, job.size) for address in ("10.0.0.1", "10.0.0.2"))
    data = random.Random(1).randbytes(job.size)
    source, sink = (back, there) if job.opcode is WROpcode.RDMA_READ else (there, back)
    source.mr.buffer[:] = data
    qps = [(there.queue_pair(), back.queue_pair()) for _ in range(job.connections)]
    for pair in qps:
        connect(*pair, mtu=MTU)
    sim = Simulator()
    sim.flights.enabled = with_runs
    writer = None if capture is None else PcapWriter(capture)
    tap = None if writer is None else Tap(writer)
    wire = sim.connect(there.device, back.device, a_to_b=tap, b_to_a=tap)
    wire.a_to_b.takes_unbuilt = wire.b_to_a.takes_unbuilt = False  # every ICRC is made and checked
    send = SendWR(job.opcode, there.sges, remote_addr=back.mr.iova, rkey=back.mr.rkey)
    receive = RecvWR(back.sges)
    pairs = {pair[0].number: pair for pair in qps}
    messages = max(job.packets * MTU // job.size // job.connections, 1)
    left = dict.fromkeys(pairs, messages)

    def post(number: int) -> None:
        if left[number]:
            left[number] -= 1
            sender, receiver = pairs[number]
            if job.opcode is WROpcode.SEND:
                receiver.post_recv(receive)
            sender.post_send(send)

    gc.collect()
    start = time.process_time()
    for number in pairs:
        for _ in range(min(DEPTH, messages)):
            post(number)
    waiting = messages * job.connections
    while waiting:
        sim.run(max_frames=2000)
        back.cq.poll(1 << 20)
        for wc in there.cq.poll(1 << 20):
            assert wc.status is WCStatus.SUCCESS
            waiting -= 1
            post(wc.qp_num)
    seconds = time.process_time() - start
    assert sink.mr.buffer == data
    assert there.device.counters.total() + back.device.counters.total() == 0
    if writer is not None:
        writer.close()
    return sim.frames, seconds


def tshark_rate(capture: Path, frames: int) -> float:
    """Packets a second of CPU time of `tshark -T fields` with 8 fields."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [*TSHARK, str(capture), "-T", "fields", *NAMED]
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return frames / (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def beside_tshark(packets: int, rounds: int) -> None:
    """WRITE and SEND in messages of 64 KiB, and tshark on the captures of the same runs."""
    jobs = [
        Job("WRITE, 64 KiB messages", packets=packets),
        Job("SEND, 64 KiB messages", WROpcode.SEND, packets=packets),
        Job("READ, 64 KiB messages", WROpcode.RDMA_READ, packets=packets),
        Job("SEND, 1 KiB messages", WROpcode.SEND, 1024, packets // 2),
        Job("WRITE, 64 KiB messages, profile rxe", packets=packets, profile="rxe"),
    ]
    has_tshark = shutil.which("tshark") is not None
    ours: dict[str, list[float]] = {job.name: [] for job in jobs}
    singles: dict[str, list[float]] = {job.name: [] for job in jobs}
    peers: dict[str, list[float]] = {job.name: [] for job in jobs}
    with tempfile.TemporaryDirectory() as folder:
        captures = {job.name: Path(folder) / f"{number}.pcap" for number, job in enumerate(jobs)}
        counts = {job.name: transfer(job, captures[job.name])[0] for job in jobs}
        for _ in range(rounds):
            for job in jobs:
                frames, seconds = transfer(job)
                ours[job.name].append(frames / seconds)
                frames, seconds = transfer(job, with_runs=False)
                singles[job.name].append(frames / seconds)
                if has_tshark:
                    peers[job.name].append(tshark_rate(captures[job.name], counts[job.name]))
    print(
        f"\nMTU {MTU}, {packets:,} packets with data, {rounds} rounds, median; all frames count\n"
    )
    print(f"ibwire: {describe_build()}\n")
    columns = "frames | frames a CPU second | one by one | tshark -T fields | times tshark"
    print(f"| transfer | {columns} |")
    print("|---|---|---|---|---|---|")
    for name, rates in ours.items():
        rate = statistics.median(rates)
        single = statistics.median(singles[name])
        row = f"| {name} | {counts[name]:,} | {rate:,.0f} | {single:,.0f} |"
        if not has_tshark:
            print(f"{row} not installed | |")
            continue
        peer = statistics.median(peers[name])
        print(f"{row} {peer:,.0f} | {rate / peer:.2f} |")


def beside_one(
    connections: int, messages: int, *, bursts: list[int], profile: str, rounds: int
) -> None:
    """The cost of a frame of many connections, in multiples of that of one."""
    packets = connections * messages * 65536 // MTU
    ones = [
        Job(opcode.name.removeprefix("RDMA_"), opcode, packets=packets, profile=profile)
        for opcode in (WROpcode.RDMA_WRITE, WROpcode.SEND)
    ]
    base = {
        job: one
        for one in ones
        for job in (
            one,
            *(replace(one, connections=connections, burst_packets=burst) for burst in bursts),
        )
    }
    costs: dict[tuple[Job, bool], list[float]] = {}
    for _ in range(rounds):
        for job in base:
            for with_runs in (True, False):
                frames, seconds = transfer(job, with_runs=with_runs)
                costs.setdefault((job, with_runs), []).append(seconds / frames * 1e6)
    print(
        f"\n{messages} of 64 KiB for each connection, MTU {MTU}, {packets:,} packets with data, "
        f"profile {profile}, {rounds} rounds, medians; ratios are medians of those of each round\n"
    )
    print(f"ibwire: {describe_build()}\n")
    columns = "in runs, us a frame | times one | one by one | times one"
    print(f"| messages | connections | burst | {columns} |")
    print("|---|---|---|---|---|---|---|")
    for job, one in base.items():
        row = f"| {job.name} | {job.connections:,} | {job.burst_packets or '-'} |"
        for with_runs in (True, False):
            found = costs[job, with_runs]
            ratios = [
                cost / of_one for cost, of_one in zip(found, costs[one, with_runs], strict=True)
            ]
            row += f" {statistics.median(found):.2f} | {statistics.median(ratios):.2f} |"
        print(row)


def memory(count: int = 1000) -> None:
    """Bytes of a connected queue pair that does nothing."""
    there, back = (Side(address, SPEC, 4096) for address in ("10.0.0.1", "10.0.0.2"))
    gc.collect()
    tracemalloc.start()
    qps = [(there.queue_pair(), back.queue_pair()) for _ in range(count)]
    for pair in qps:
        connect(*pair, mtu=MTU)
    gc.collect()
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    print(f"\nAn idle connected queue pair takes {used / count / 2:,.0f} bytes.")


if __name__ == "__main__":
    set_collector()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--packets", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--connections", type=int)
    parser.add_argument("--messages", type=int, default=1)
    parser.add_argument("--bursts", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--profile", choices=sorted(PROFILES), default="spec")
    given = parser.parse_args()
    if given.connections is not None:
        beside_one(
            given.connections,
            given.messages,
            bursts=given.bursts,
            profile=given.profile,
            rounds=given.rounds,
        )
    else:
        beside_tshark(given.packets, given.rounds)
        memory()
