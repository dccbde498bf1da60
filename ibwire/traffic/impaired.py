"""Faults on the way: what packets become that pass the stages of a plan, each at its time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ibwire.base.errors import EncodeError
from ibwire.base.node import Frame, Pipe
from ibwire.base.units import NS
from ibwire.traffic.recorded import Frames

MAXIMUM_BYTES = 1 << 31
"""Of all frames: they are kept in memory, so that nothing has to be done while they leave."""


def through(packets: Iterable[tuple[int, Frame]], faults: Pipe) -> Iterator[tuple[int, Frame]]:
    """What comes out of a pipe, with times in nanoseconds, not in their order.

    What a stage still holds at the end is lost.
    """
    first = None
    for time_ns, frame in packets:
        if first is None:
            first = time_ns
        for delay, out in faults(frame, (time_ns - first) * NS):
            yield time_ns + delay // NS, out


def faulted(packets: Iterable[tuple[int, Frame]], faults: Pipe) -> Frames:
    """Packets that are made, with faults.

    packets: with times in nanoseconds from 0 on. Raises `EncodeError` for too many.
    """
    size = 0
    passed: list[tuple[int, Frame]] = []
    for time_ns, frame in through(packets, faults):
        size += len(frame)
        if size > MAXIMUM_BYTES:
            expected = f"for {MAXIMUM_BYTES} bytes of packets at most: they are made beforehand"
            raise EncodeError("plan", f"{len(passed)} packets and more", expected)
        passed.append((time_ns, frame))
    passed.sort(key=lambda each: each[0])
    return Frames([frame for _, frame in passed], [time_ns for time_ns, _ in passed])
