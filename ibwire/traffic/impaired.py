"""Faults of a plan applied to packets before they are sent."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ibwire.base.errors import EncodeError
from ibwire.base.node import Frame, Pipe
from ibwire.base.units import NS
from ibwire.traffic.timed_frames import TimedFrames

MAXIMUM_BYTES = 1 << 31
"""Bytes of all frames: they are kept in memory, so that sending needs no more computation."""


def apply_faults(packets: Iterable[tuple[int, Frame]], faults: Pipe) -> Iterator[tuple[int, Frame]]:
    """The frames that leave a pipe, with times in nanoseconds, not sorted by time.

    Frames that a stage still holds at the end are lost.
    """
    first = None
    for time_ns, frame in packets:
        if first is None:
            first = time_ns
        for delay, out in faults(frame, (time_ns - first) * NS):
            yield time_ns + delay // NS, out


def impaired_frames(packets: Iterable[tuple[int, Frame]], faults: Pipe) -> TimedFrames:
    """Packets with faults applied, sorted by time.

    packets: times in nanoseconds from 0 on, and frames. Raises `EncodeError` for too many.
    """
    size = 0
    passed: list[tuple[int, Frame]] = []
    for time_ns, frame in apply_faults(packets, faults):
        size += len(frame)
        if size > MAXIMUM_BYTES:
            expected = f"for at most {MAXIMUM_BYTES} bytes of packets, which are built beforehand"
            raise EncodeError("plan", f"{len(passed)} packets and more", expected)
        passed.append((time_ns, frame))
    passed.sort(key=lambda each: each[0])
    return TimedFrames([frame for _, frame in passed], [time_ns for time_ns, _ in passed])
