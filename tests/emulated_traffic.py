"""Captures of our own: an emulated conversation over a bad wire, tapped at both ends.

The wire does what a plan says, by the number of the frame; IP identifications count
up (profile rxe), so that what became of each frame is known for sure.
"""

from __future__ import annotations

import io
import struct
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ibwire.base.node import OPEN, Frame, Grant, Node
from ibwire.base.units import GBPS, US, S, Time
from ibwire.capture import open_capture
from ibwire.connections.analysis import Analysis
from ibwire.connections.observer import Observer
from ibwire.connections.summary import Summary
from ibwire.dissect import Columns
from ibwire.fabric.sim import Simulator
from ibwire.rc.connect import connect
from ibwire.rc.profile import RXE, Profile
from ibwire.rc.work import WC, SendWR, WROpcode
from ibwire.testing import End
from ibwire_layers.headers import RETH
from ibwire_layers.packet import Packet

Stamped = tuple[int, bytes]
"""Nanoseconds and frame."""

MTU = 256


class Tap:
    """A node, and every frame that passes its port."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.frames: list[Stamped] = []
        self.sent: list[bytes] = []
        self.came: list[bytes] = []

    def receive(self, frame: Frame, now: Time, port: int = 0) -> None:
        """A frame has come."""
        self.frames.append((EPOCH_NS + now // 1000, bytes(frame)))
        self.came.append(bytes(frame))
        self.node.receive(frame, now, port)

    def poll_transmit(self, now: Time, port: int = 0, grant: Grant = OPEN) -> Frame | None:
        """A frame that leaves."""
        frame = self.node.poll_transmit(now, port, grant)
        if frame is not None:
            self.frames.append((EPOCH_NS + now // 1000, bytes(frame)))
            self.sent.append(bytes(frame))
        return frame

    def poll_timeout(self) -> Time | None:
        """When the node wants to be woken."""
        return self.node.poll_timeout()

    def handle_timeout(self, now: Time) -> None:
        """Wake the node."""
        self.node.handle_timeout(now)


EPOCH_NS = 1_700_000_000 * 10**9

Acts = dict[tuple[str, int], tuple[str, int]]
"""What happens to a frame, by sender (`a`, `b`) and number (from 1): `loss`, `dup` or `late`, and
for the last two by how many ns."""


@dataclass
class Traffic:
    """What was seen at both ends."""

    taps: dict[str, Tap]
    posted: list[SendWR] = field(default_factory=list)
    completions: list[WC] = field(default_factory=list)
    """Of the requests of `a`."""

    def frames(self, side: str) -> list[Stamped]:
        """The capture of one side."""
        return self.taps[side].frames

    def truth(self, side: str, sender: str) -> dict[str, int]:
        """What a capture of a side must say of what an end sent; see `counts_of`."""
        sent = self.taps[sender].sent
        order = {frame: number for number, frame in enumerate(sent)}
        again = {sent[number] for number in sent_again([Packet.parse(frame) for frame in sent])}
        if side == sender:
            return dict(zip(COUNTS, (0, 0, 0, len(again)), strict=True))
        came = self.taps[side].came
        times = Counter(came)
        late, newest = 0, -1
        first = set()
        for frame in came:
            if frame not in first:
                first.add(frame)
                late += order[frame] < newest
                newest = max(newest, order[frame])
        values = (len(sent) - len(times), len(came) - len(times), late, len(again & first))
        return dict(zip(COUNTS, values, strict=True))


COUNTS = ("lost_packets", "duplicate_packets", "reordered_packets", "retransmitted_packets")


def sent_again(packets: Sequence[Packet], mtu: int = MTU) -> list[int]:
    """Which of the packets of a sender have a PSN that it had sent before: requests, answers."""
    behind: dict[bool, int] = {}
    again = []
    for number, packet in enumerate(packets):
        opcode, psn = packet.bth.opcode, packet.bth.psn
        if opcode == 0x11:
            continue
        is_answer = 0x0D <= opcode <= 0x12
        reth = packet.extension(RETH) if opcode == 0x0C else None
        span = max(1, -(-reth.dma_len // mtu)) if reth else 1
        ahead = (psn - behind.get(is_answer, psn) + (1 << 23)) % (1 << 24) - (1 << 23)
        if ahead < 0:
            again.append(number)
        else:
            behind[is_answer] = psn + span
    return again


class Work(NamedTuple):
    """One work request of `a`."""

    opcode: WROpcode
    length: int = 0


def run(
    work: Iterable[Work],
    acts: Acts | None = None,
    *,
    profile: Profile = RXE,
    psn: int = 0xFFFF80,
    receives: int | None = None,
    depth: int = 16,
) -> Traffic:
    """Let `a` do the work, a few requests at a time, over a wire that follows a plan.

    receives: posted at the other end; as many as are needed by default.
    """
    acts = acts or {}
    ends = {
        "a": End("a", "10.0.0.1", key_start=10, profile=profile),
        "b": End("b", "10.0.0.22", key_start=20, profile=profile),
    }
    a, b = ends.values()
    connect(a.qp, b.qp, mtu=MTU, psn_a=psn, psn_b=0x500)
    traffic = Traffic({name: Tap(end.device) for name, end in ends.items()})
    sim = Simulator()
    counts = {"a": 0, "b": 0}

    def stage(sender: str) -> Callable[[Frame, Time], list[tuple[Time, Frame]]]:
        def pass_on(frame: Frame, now: Time) -> list[tuple[Time, Frame]]:
            counts[sender] += 1
            act, by_ns = acts.get((sender, counts[sender]), ("", 0))
            if act == "loss":
                return []
            if act == "dup":
                return [(0, frame), (by_ns * 1000, frame)]
            return [(by_ns * 1000, frame)]

        return pass_on

    sim.connect(
        traffic.taps["a"],
        traffic.taps["b"],
        rate_bps=GBPS,
        delay=5 * US,
        a_to_b=stage("a"),
        b_to_a=stage("b"),
    )
    requests = [_request(a, b, each) for each in work]
    for _ in range(len(requests) if receives is None else receives):
        b.post_recv(1 << 15)
    left = list(requests)
    under_way = 0
    while left or under_way:
        while left and under_way < depth:
            a.qp.post_send(left.pop(0))
            under_way += 1
        sim.kick(traffic.taps["a"])
        before = under_way
        while under_way == before and sim.step():
            done = a.send_cq.poll(64)
            traffic.completions += done
            under_way -= len(done)
        if under_way == before:
            break
    sim.run(until=sim.now + S)
    traffic.posted = requests
    return traffic


def _request(a: End, b: End, work: Work) -> SendWR:
    length = 8 if work.opcode in ATOMICS else work.length
    sges = [a.sge(0, length)] if length else []
    return SendWR(work.opcode, sges, 2, 0, remote_addr=b.mr.iova, rkey=b.mr.rkey)


ATOMICS = (WROpcode.ATOMIC_CMP_AND_SWP, WROpcode.ATOMIC_FETCH_AND_ADD)


# Captures in memory, and what is said of them.


def pcap(frames: Iterable[Stamped], snaplen: int = 1 << 18) -> io.BytesIO:
    """A pcap file in nanoseconds."""
    parts = [struct.pack("<IHHiIII", 0xA1B23C4D, 2, 4, 0, 0, snaplen, 1)]
    for time_ns, frame in frames:
        data = frame[:snaplen]
        parts.append(struct.pack("<IIII", *divmod(time_ns, 10**9), len(data), len(frame)) + data)
    return io.BytesIO(b"".join(parts))


def feed(
    analysis: Analysis, frames: Iterable[Stamped], snaplen: int = 1 << 18, chunk: int = 1 << 20
) -> Analysis:
    """Give these frames to an analysis, a few at a time."""
    with open_capture(pcap(frames, snaplen)) as capture:
        for batch in capture.batches():
            for part in batch.split(chunk):
                analysis.take(Columns(part))
    return analysis


def analysed(
    frames: Iterable[Stamped], observer: Observer | None = None, snaplen: int = 1 << 18
) -> Summary:
    """What an analysis says of a whole capture."""
    return feed(Analysis(observer), frames, snaplen).finish()
