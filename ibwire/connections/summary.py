"""What an analysis has found in a capture, or in several."""

from __future__ import annotations

import numpy as np

from ibwire.connections.connection import Connection
from ibwire.connections.pause import Pauses
from ibwire.connections.tcp_segments import TcpEnd
from ibwire.dissect import Columns

STEP_NS = 1_000_000
"""Queues of a NIC and CPUs of a host disorder times by less."""
BACK_PROBLEM = (
    "times go back by {:.6f} s from one frame to the next: latencies are wrong, and what is out of "
    "order looks lost or retransmitted. If the clock was not set back, sort the frames: "
    "reordercap CAPTURE SORTED"
)
CUT_PROBLEM = (
    "{:,} packets were cut before the end of their transport headers, and are left out: what "
    "looks lost may be one of them"
)
COPIES_PROBLEM = (
    "{:,} packets were captured again at another interface: each counts once, at the first "
    "interface that has it"
)
UNNAMED_PROBLEM = (
    "nearly every packet is there several times. If the capture is of several points, it does not "
    "say of which, and what was captured again counts as retransmitted, duplicate or lost: use "
    "pcapng with an interface for each point, or a file for each"
)
EARLY_PROBLEM = (
    "{}, by {:.3f} us at most: the order of records is not that of the wire; captures of two ports "
    "or by two queues are like this"
)
CLOCK_PROBLEM = (
    "the captures overlap in time: {} begins {:.6f} s before the captures that come first have "
    "ended. Two points of one path are compared with --other; read as one, their clocks disagree "
    "or the packets are counted twice, and order and times cannot be relied on"
)


class Summary:
    """The connections of a capture, or of several, and what is wrong with the capture itself."""

    def __init__(self, source: str = "", pauses: Pauses | None = None) -> None:
        self.sources = [source]
        self.pauses = pauses or Pauses()
        """Pause frames of all senders."""
        self.connections: list[Connection] = []
        self.first_ns: int | None = None
        self.last_ns = 0
        self.frames = 0
        self.packets = 0
        """With a transport header."""
        self.stray_damaged = 0
        """Packets with a wrong ICRC that belong to no flow: the damage may be in their headers."""
        self.problems: list[str] = []
        self.cut = 0
        """Packets whose transport headers were not captured completely."""
        self.copies = 0
        """Packets that were also captured at another interface."""
        self.is_unnamed = False
        """Whether packets are there several times, and nothing says where each was captured."""
        self.short_frames = 0
        """Frames of which not all bytes were captured."""
        self.snap_length = 0
        """Most bytes that were captured of such a frame."""
        self.iwarp: list[TcpEnd] = []
        """The responders of iWARP connections, some of them."""
        self.back_ns = 0
        """How far the time of a frame is before that of the frame before it, at most."""
        self._newest = 0

    def note_times(self, columns: Columns) -> None:
        """Note when the frames of the next chunk were seen, and whether their clock goes back."""
        batch = columns.frames.batch
        short = batch.cap_len[batch.cap_len < batch.wire_len]
        if len(short):
            self.short_frames += len(short)
            self.snap_length = max(self.snap_length, int(short.max()))
        times = batch.time_ns
        if not len(times):
            return
        before = np.concatenate([times[:1] if self.first_ns is None else [self._newest], times])
        back = before[:-1] - before[1:]
        self.back_ns = max(self.back_ns, int(back.max()))
        self._newest = int(times[-1])
        self.first_ns = min(self.first_ns or int(times[0]), int(times.min()))
        self.last_ns = max(self.last_ns, int(times.max()))

    def all_problems(self) -> list[str]:
        """What is wrong with the captures themselves, as sentences."""
        found = list(self.problems)
        if self.back_ns > STEP_NS:
            found.append(BACK_PROBLEM.format(self.back_ns / 1e9))
        early = sum(each.early_acks for each in self.connections)
        if early:
            what = f"{early:,} ACKs were recorded before their requests"
            if early == 1:
                what = "1 ACK was recorded before its request"
            most = max(each.early_ns for each in self.connections)
            found.append(EARLY_PROBLEM.format(what, most / 1000))
        if self.cut:
            found.append(CUT_PROBLEM.format(self.cut))
        if self.copies:
            found.append(COPIES_PROBLEM.format(self.copies))
        if self.is_unnamed:
            found.append(UNNAMED_PROBLEM)
        return found

    def why_none(self) -> list[str]:
        """Why no frame may have a transport header: what else was found."""
        found = []
        if self.short_frames:
            found.append(
                f"{self.short_frames:,} of them are cut, after {self.snap_length} bytes at most: "
                "capture more of each frame (tcpdump -s 128, or -s 0 for all)"
            )
        for end in self.iwarp:
            found.append(
                f"TCP port {end.port} of {end.address} carries iWARP (it begins with an MPA "
                "frame), which ibwire does not read"
            )
        return found

    def merge(self, later: Summary) -> None:
        """Count what a later capture has, except its connections."""
        shared = self.last_ns - (later.first_ns or self.last_ns)
        if shared > 0:
            self.problems.append(CLOCK_PROBLEM.format(later.sources[0], shared / 1e9))
        self.sources += later.sources
        self.pauses.merge(later.pauses)
        self.frames += later.frames
        self.packets += later.packets
        self.stray_damaged += later.stray_damaged
        self.problems += later.problems
        self.cut += later.cut
        self.copies += later.copies
        self.is_unnamed |= later.is_unnamed
        self.short_frames += later.short_frames
        self.iwarp = list(dict.fromkeys([*self.iwarp, *later.iwarp]))
        self.snap_length = max(self.snap_length, later.snap_length)
        self.back_ns = max(self.back_ns, later.back_ns)
        if self.first_ns is None:
            self.first_ns = later.first_ns
        self.last_ns = max(self.last_ns, later.last_ns)
