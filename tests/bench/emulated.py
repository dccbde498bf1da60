"""Make a large capture by the emulator: what two hosts with many queue pairs send.

    python tests/bench/emulated.py OUT.pcap [--packets N] [--connections N] [--loss P] [--seed S]

SENDs, WRITEs, READs and atomics of 1 byte to 20 kB on reliable connections with a path MTU of
256, 1024 or 4096. The capture is taken in front of the one host, behind the place where frames
are lost: requests are lost before the capture, responses after it. Lost packets are repaired as
the emulator does it, with NAKs, timeouts and retransmissions, which `generate.py` has not.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterable
from pathlib import Path

from ibwire.base.node import Frame
from ibwire.base.units import Time
from ibwire.capture import PcapWriter, Tap
from ibwire.fabric.sim import Simulator
from ibwire.rc.attributes import QPCap, QPType
from ibwire.rc.connect import ALL_ACCESS, connect
from ibwire.rc.device import Device
from ibwire.rc.profile import RXE
from ibwire.rc.qp import QPInit, QueuePair
from ibwire.rc.work import SGE, RecvWR, SendWR, WROpcode

PACKETS = 1_000_000
MTUS = (256, 1024, 4096)
DEPTH = 2
"""Messages in flight on each connection."""
SIZES = (1, 8, 64, 256, 1000, 2048, 4096, 8192, 20_000)
KINDS = (
    WROpcode.SEND,
    WROpcode.SEND,
    WROpcode.RDMA_WRITE,
    WROpcode.RDMA_WRITE,
    WROpcode.RDMA_READ,
    WROpcode.ATOMIC_FETCH_AND_ADD,
)
ATOMIC_SIZE = 8


class Side:
    """One device with what its queue pairs share."""

    def __init__(self, address: str) -> None:
        self.device = Device(address, address, profile=RXE)
        self.pd = self.device.alloc_pd()
        self.cq = self.device.create_cq(1 << 20)
        self.mr = self.pd.register(max(SIZES), int(ALL_ACCESS))

    def queue_pair(self) -> QueuePair:
        """One more queue pair."""
        cap = QPCap(max_send_wr=DEPTH, max_recv_wr=DEPTH)
        return self.device.create_qp(QPInit(QPType.RC, self.pd, self.cq, self.cq, cap=cap))

    def piece(self, size: int) -> list[SGE]:
        """So many bytes of the memory."""
        return [SGE(self.mr.iova, size, self.mr.lkey)]


class LossyTap:
    """Captures what passes, and loses some of it before or behind the capture."""

    def __init__(self, tap: Tap, loss: float, rng: random.Random, *, is_before: bool) -> None:
        self._tap, self._loss, self._random = tap, loss, rng.random
        self._is_before = is_before

    def __call__(self, frame: Frame, now: Time) -> Iterable[tuple[Time, Frame]]:
        """The frame, or nothing."""
        is_lost = self._random() < self._loss
        if is_lost and self._is_before:
            return ()
        passed = self._tap(frame, now)
        return () if is_lost else passed


def generate(out: Path, packets: int, connections: int, loss: float, seed: int = 1) -> int:
    """Write the capture; returns how many packets it has, which may be a few more."""
    rng = random.Random(seed)
    there, back = Side("10.0.0.1"), Side("10.0.0.2")
    sim = Simulator()
    with PcapWriter(out) as writer:
        tap = Tap(writer, epoch_ns=1_700_000_000 * 10**9)
        stages = [LossyTap(tap, loss, rng, is_before=way) for way in (True, False)]
        sim.connect(there.device, back.device, a_to_b=stages[0], b_to_a=stages[1])
        pairs: dict[int, tuple[QueuePair, QueuePair]] = {}
        for number in range(connections):
            pair = there.queue_pair(), back.queue_pair()
            psn_a, psn_b = rng.randrange(1 << 24), rng.randrange(1 << 24)
            connect(*pair, mtu=MTUS[number % 3], psn_a=psn_a, psn_b=psn_b)
            pairs[pair[0].number] = pair

        def post(number: int) -> None:
            sender, receiver = pairs[number]
            opcode, size = rng.choice(KINDS), rng.choice(SIZES)
            if opcode is WROpcode.SEND:
                receiver.post_recv(RecvWR(back.piece(size)))
            if opcode is WROpcode.ATOMIC_FETCH_AND_ADD:
                size = ATOMIC_SIZE
            mr = back.mr
            sender.post_send(
                SendWR(opcode, there.piece(size), remote_addr=mr.iova, rkey=mr.rkey, compare_add=1)
            )

        for number in pairs:
            for _ in range(DEPTH):
                post(number)
        while tap.hits < packets:
            sim.run(max_frames=2000)
            back.cq.poll(1 << 20)
            for wc in there.cq.poll(1 << 20):
                post(wc.qp_num)
        return tap.hits


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="make a large capture by the emulator")
    parser.add_argument("out", type=Path)
    parser.add_argument("--packets", type=int, default=PACKETS)
    parser.add_argument("--connections", type=int, default=256)
    parser.add_argument("--loss", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    count = generate(given.out, given.packets, given.connections, given.loss, given.seed)
    print(f"{given.out}: {count:,} packets, {given.out.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
