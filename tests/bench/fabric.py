"""Networks of switches beside a model without bytes, in one run: work a second of CPU time.

    python tests/bench/fabric.py [--packets N] [--rounds N] [--calls]

Jobs: a star in which eight hosts send to one with DCQCN, counted in data packets from end to end;
the same with a tap on every link, which writes a capture; permutations over fat trees of 20, 80
and 320 switches, and 10 to 1000 flows over the smallest, counted in frames that switches send.
Bytes of frames are made only where there is a tap. A flow has 32 packets at least: many flows are
short ones, and the first packets of a flow cost more, so compare them with 16 flows of 32 packets.

The model is what a plain event loop in Python does with as many packets over the same switches: a
heap of events, a queue for each port, an ACK for each sixteenth packet; no bytes, transport,
buffers, pauses or marks. The jobs take turns; the table shows the median round of each, and its
rate of dequeues beside that of the model on the star or on the smallest fat tree. The model also
runs over 320 switches, as it grows slower with them too.

The garbage collector is set as the `ibwire` command and `ibwire run` set it, and huge pages are
asked for as `ibwire run` does, for the model too. What earlier jobs have left is collected before
each.

`make compiled` and PYTHONPATH=build/compiled measure the compiled modules. --calls counts function
calls for each frame instead, which do not depend on what else the machine does; interpreted.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import heapq
import pstats
import random
import tempfile
import time
import tracemalloc
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import ibwire.fabric.sim
from ibwire.base.collector import existing_objects_ignored, set_collector
from ibwire.base.huge_pages import ask_for_huge_pages
from ibwire.base.units import S
from ibwire.capture import PcapWriter, Tap
from ibwire.fabric import Simulator
from ibwire.fabric.lossless import LosslessNetwork, SwitchSettings
from ibwire.fabric.switch import Ramp
from ibwire.fabric.topology import Topology, fat_tree, star
from ibwire.rc.attributes import AddressVector, QPCap, QPType
from ibwire.rc.congestion import DCQCN, HPCC_MODEL, NotificationPoint
from ibwire.rc.connect import ALL_ACCESS, bring_up
from ibwire.rc.device import Device, gid_of
from ibwire.rc.packet import FORMS, TransportPacket
from ibwire.rc.profile import SPEC
from ibwire.rc.qp import QPInit
from ibwire.rc.work import SGE, SendWR, WROpcode
from ibwire_layers.opcodes import OpCode

MTU = 1024
ACK_INTERVAL = 16
PROFILE = replace(SPEC, name="bench", ack_request_interval=ACK_INTERVAL)
Pairs = Sequence[tuple[int, int]]


@dataclass(frozen=True)
class Result:
    """What a job did in how much time."""

    packets: int
    """Data packets from end to end."""
    dequeues: int
    """Frames that switches have sent."""
    seconds: float


def emulate(
    topology: Topology,
    pairs: Pairs,
    packets: int,
    *,
    dcqcn: bool = False,
    tap: bool = False,
    profile: cProfile.Profile | None = None,
) -> Result:
    """Each pair of hosts moves a message of so many packets; profile: counts the calls of it."""
    simulator = Simulator(1)
    devices = [
        Device(
            name,
            f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}",
            profile=PROFILE,
            rate_control=(lambda: DCQCN(HPCC_MODEL)) if dcqcn else None,
            notification=NotificationPoint(interval=0) if dcqcn else None,
        )
        for number, name in enumerate(topology.hosts, 1)
    ]
    nodes = {name: (each, each.mac) for name, each in zip(topology.hosts, devices, strict=True)}
    ramps = {0: Ramp(minimum=400_000, maximum=1_600_000, probability=0.2)} if dcqcn else {}
    settings = SwitchSettings(buffer=32 << 20, ramps=ramps)
    network = LosslessNetwork(simulator, topology, nodes, settings)
    memory = [
        (pd, pd.register(packets * MTU, int(ALL_ACCESS)))
        for pd in (device.alloc_pd() for device in devices)
    ]
    senders = []
    for a, b in pairs:
        ends = []
        for number in (a, b):
            cq = devices[number].create_cq(1 << 8)
            init = QPInit(QPType.RC, memory[number][0], cq, cq, cap=QPCap(8, 8))
            ends.append(devices[number].create_qp(init))
        for one, other, peer in ((*ends, devices[b]), (*ends[::-1], devices[a])):
            address = AddressVector(dgid=peer.gids[0], sl=3, traffic_class=26 << 2 | 2)
            bring_up(one, address, dest_qp_num=other.number, path_mtu=3, timeout=0)
        local, remote = memory[a][1], memory[b][1]
        sges = [SGE(local.iova, packets * MTU, local.lkey)]
        write = WROpcode.RDMA_WRITE
        ends[0].post_send(SendWR(write, sges, remote_addr=remote.iova, rkey=remote.rkey))
        senders.append(ends[0])
    with tempfile.TemporaryDirectory() as folder:
        writer = PcapWriter(Path(folder) / "all.pcap") if tap else None
        if writer is not None:
            for wire in simulator.wires:
                wire.a_to_b.stage = wire.b_to_a.stage = Tap(writer)
        ask_for_huge_pages()
        begun = time.process_time()
        with existing_objects_ignored():
            if profile is None:
                simulator.run(until=S)
            else:
                profile.runcall(simulator.run, until=S)
            if writer is not None:
                writer.close()
        seconds = time.process_time() - begun
    assert not any(qp.sends.wqes for qp in senders), "a flow has not ended"
    ports = [port for each in network.switches.values() for port in each.counters]
    return Result(packets * len(pairs), sum(sum(port.sent) for port in ports), seconds)


def model(topology: Topology, pairs: Pairs, packets: int) -> Result:
    """The same packets in a plain event loop."""
    tables = topology.next_hops()
    ports = {node: topology.ports(node) for node in (*topology.hosts, *topology.switches)}
    free: dict[tuple[str, int], int] = {}
    queues: dict[tuple[str, int], deque[tuple[str, bool, int]]] = {}
    heap: list[tuple[int, int, str, int, tuple[str, bool, int] | None]] = []
    order = dequeues = arrived = 0

    def send(now: int, node: str, port: int, packet: tuple[str, bool, int]) -> None:
        nonlocal order, dequeues
        line = node, port
        if free.get(line, 0) > now:
            queues.setdefault(line, deque()).append(packet)
            return
        dequeues += node in tables
        took = 1106 * 80 if packet[1] else 86 * 80
        free[line] = now + took
        link, neighbour = ports[node][port]
        order += 1
        heapq.heappush(heap, (now + took + link.delay, order, neighbour, -1, packet))
        order += 1
        heapq.heappush(heap, (now + took, order, node, port, None))

    ask_for_huge_pages()
    begun = time.process_time()
    sources: dict[str, deque[tuple[str, bool, int]]] = {}
    for flow, (a, b) in enumerate(pairs):
        source = sources.setdefault(topology.hosts[a], deque())
        source.extend([(topology.hosts[b], True, flow)] * packets)
    for host, source in sources.items():
        queues[host, 0] = source
        send(0, host, 0, source.popleft())
    counts = [0] * len(pairs)
    with existing_objects_ignored():
        while heap:
            now, _, node, port, packet = heapq.heappop(heap)
            if packet is None:
                waiting = queues.get((node, port))
                if waiting:
                    send(now, node, port, waiting.popleft())
            elif node in tables:
                choices = tables[node][packet[0]]
                send(now, node, choices[packet[2] % len(choices)], packet)
            elif packet[1]:
                flow = packet[2]
                arrived += 1
                counts[flow] += 1
                if counts[flow] % ACK_INTERVAL == 0:
                    send(now, node, 0, (topology.hosts[pairs[flow][0]], False, flow))
    assert arrived == packets * len(pairs)
    return Result(arrived, dequeues, time.process_time() - begun)


def permutation(hosts: int, flows: int) -> list[tuple[int, int]]:
    """Pairs in which each host sends and receives about as much."""
    draw = random.Random(1)
    pairs: list[tuple[int, int]] = []
    while len(pairs) < flows:
        order = list(range(hosts))
        draw.shuffle(order)
        pairs += zip(order, order[1:] + order[:1], strict=True)
    return pairs[:flows]


def memory_of_a_queued_packet(*, is_built: bool, packets: int = 400) -> float:
    """Bytes of memory for each packet of 1024 bytes that waits in a switch."""
    network = star(9)
    tracemalloc.start()
    simulator = Simulator()
    device = Device("h", "10.0.0.1")
    nodes = {
        name: (device if name == "h0" else _Idle(), bytes([2, 0, 0, 0, 0, n]))
        for n, name in enumerate(network.hosts)
    }
    fabric = LosslessNetwork(simulator, network, nodes, SwitchSettings(buffer=32 << 20))
    switch = fabric.switches["s0"]
    before = tracemalloc.get_traced_memory()[0]
    device.neighbours[gid_of("10.0.0.2")] = bytes([2, 0, 0, 0, 0, 1])
    path = device.path_to(AddressVector(dgid=gid_of("10.0.0.2"), traffic_class=104), 17, 17)
    for number in range(packets):
        packet = TransportPacket(FORMS[OpCode.RC_RDMA_WRITE_MIDDLE], number, bytes(MTU))
        packet.pkey, packet.mig_req, packet.dest_qp = 0xFFFF, 1, 17
        packet.send_by(path)
        if is_built:
            switch.receive(packet.build(), 0, 0)
        else:
            switch.receive_unbuilt(packet, 0, 0)
    del packet
    assert switch.queued(1) > packets * MTU
    used = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    return used / packets


class _Idle:
    """A host that does nothing."""

    def receive(self, frame: bytes, now: int, port: int = 0) -> None:
        """Drop the frame."""

    def poll_transmit(self, now: int, port: int = 0, grant: object = None) -> None:
        """Nothing."""

    def poll_timeout(self) -> None:
        """Never."""

    def handle_timeout(self, now: int) -> None:
        """Nothing."""


def print_calls() -> None:
    """Function calls for each frame that a switch sends, by number and length of flows."""
    for k, flows, packets in ((4, 16, 500), (4, 16, 32), (4, 1000, 32), (16, 1000, 32)):
        profile = cProfile.Profile()
        network = fat_tree(k)
        result = emulate(network, permutation(len(network.hosts), flows), packets, profile=profile)
        calls = pstats.Stats(profile).total_calls  # type: ignore[attr-defined]
        print(
            f"{len(network.switches)} switches, {flows} flows of {packets} packets: "
            f"{calls / result.dequeues:.1f} calls a frame",
            flush=True,
        )


def main() -> None:
    """Run the jobs and print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--packets", type=int, default=8000, help="data packets of each job")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--calls", action="store_true", help="count function calls instead")
    options = parser.parse_args()
    set_collector()
    if options.calls:
        print_calls()
        return
    total = options.packets
    incast = star(9), [(sender, 8) for sender in range(8)], total // 8
    small, middle, large = (fat_tree(k) for k in (4, 8, 16))
    over_20 = small, permutation(16, 16), total // 16
    jobs: dict[str, Callable[[], Result]] = {
        "star 8 to 1, DCQCN": lambda: emulate(*incast, dcqcn=True),
        "  with a capture of every link": lambda: emulate(*incast, dcqcn=True, tap=True),
        "  model of the star": lambda: model(*incast),
        "fat tree, 20 switches, 16 flows": lambda: emulate(*over_20),
        "  model of the fat tree": lambda: model(*over_20),
        "  16 flows of 32 packets": lambda: emulate(small, permutation(16, 16), 32),
        "  10 flows": lambda: emulate(small, permutation(16, 10), total // 10),
        "  100 flows": lambda: emulate(small, permutation(16, 100), max(total // 100, 32)),
        "  1000 flows": lambda: emulate(small, permutation(16, 1000), max(total // 1000, 32)),
        "  80 switches, 128 flows": lambda: emulate(
            middle, permutation(128, 128), max(total // 128, 32)
        ),
        "  320 switches, 1000 flows": lambda: emulate(
            large, permutation(1024, 1000), max(total // 1000, 32)
        ),
        "  model of 320 switches": lambda: model(
            large, permutation(1024, 1000), max(total // 1000, 32)
        ),
    }
    results: dict[str, list[Result]] = {name: [] for name in jobs}
    for _ in range(options.rounds):
        for name, job in jobs.items():
            gc.collect()
            results[name].append(job())
    medians = {
        name: sorted(found, key=lambda each: each.seconds)[len(found) // 2]
        for name, found in results.items()
    }
    compiled = not (ibwire.fabric.sim.__file__ or "").endswith(".py")
    print(
        f"{'compiled' if compiled else 'interpreted'}; {total:,} data packets a job, median round"
    )
    print(f"{'':<36}{'packets/s':>12}{'dequeues/s':>12}{'of the model':>14}")
    beside = medians["  model of the star"]
    for name, result in medians.items():
        if name.startswith("fat tree"):
            beside = medians["  model of the fat tree"]
        rates = result.packets / result.seconds, result.dequeues / result.seconds
        share = rates[1] / (beside.dequeues / beside.seconds)
        print(f"{name:<36}{rates[0]:>12,.0f}{rates[1]:>12,.0f}{share:>14.2f}")
    for is_built, text in ((False, "as it is sent"), (True, "as bytes")):
        used = memory_of_a_queued_packet(is_built=is_built)
        print(f"memory of a packet of {MTU} bytes in a queue, {text}: {used:,.0f} bytes")


if __name__ == "__main__":
    main()
