"""Sending on an interface and taking what comes back there, in two ways.

`Listening` counts what comes back while `transmit` sends as if nobody were there, as fast as
without it but for the time that counting takes. `converse` drives a sender that waits for
answers.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

from ibwire.base.closing import Closing
from ibwire.base.errors import LinkError
from ibwire.base.node import Frame
from ibwire.base.units import S
from ibwire.link import live
from ibwire.link.afpacket import AFPacketPort
from ibwire.link.live import Live, MonotonicClock
from ibwire.traffic.closed_loop import Polite
from ibwire.traffic.pacing import Numbers
from ibwire.traffic.safety import injectable
from ibwire.traffic.sender import device_counters
from ibwire.traffic.transmission import Clock, Ended, Outlet, Report, settled

QUIET, LINGER = 0.2, 2.0
"""Seconds without an answer after which no more are waited for, and for how long at most."""


class Listening(Closing):
    """An outlet in front of another, that hands over what has arrived whenever something leaves.

    What arrives in a pause waits in the kernel, 8 MiB of it.
    """

    def __init__(self, outlet: Outlet, take: Callable[[Frame], object]) -> None:
        """Raises `LinkError` as `AFPacketPort` does."""
        self._outlet = outlet
        self._take = take
        self._port = AFPacketPort(outlet.name)

    @property
    def name(self) -> str:
        """The interface."""
        return self._outlet.name

    @property
    def sent(self) -> int:
        """Packets that the kernel has accepted."""
        return self._outlet.sent

    @property
    def waits(self) -> Counter[str]:
        """How often there was no room, by why."""
        return self._outlet.waits

    @property
    def keeps_times(self) -> bool:
        """Whether few packets at a time can be sent as well as many."""
        return self._outlet.keeps_times

    def next(self, most: int) -> Numbers:
        """Lengths of the next packets."""
        return self._outlet.next(most)

    def send(self, count: int) -> int:
        """Send the next packets, and take what has come."""
        taken = self._outlet.send(count)
        self._hear()
        return taken

    def wait(self) -> None:
        """Wait a little for room."""
        self._outlet.wait()
        self._hear()

    def linger(self) -> None:
        """Take what still comes."""
        clock = MonotonicClock()
        end = time.monotonic_ns() + round(LINGER * 1e9)
        quiet = time.monotonic_ns() + round(QUIET * 1e9)
        while (now := time.monotonic_ns()) < min(end, quiet):
            if self._hear():
                quiet = now + round(QUIET * 1e9)
            else:
                clock.wait([self._port.fileno()], [], min(end, quiet))

    def notes(self) -> list[str]:
        """What a user should know, such as answers that there was no room for."""
        return self._port.notes()

    def close(self) -> None:
        """Stop listening; the other outlet stays open."""
        self._port.close()

    def _hear(self) -> int:
        """Take what has come, up to some batches; how much that was."""
        heard = 0
        for _ in range(_BATCHES):
            frames = self._port.receive()
            for frame in frames:
                self._take(frame)
            heard += len(frames)
            if len(frames) < self._port.BATCH:
                break
        return heard


def converse(polite: Polite, name: str, *, certain: bool = False) -> Report:
    """Let a sender that waits for answers send on an interface until it is done, or a signal
    comes.

    certain: also where the default route lies. Raises `LinkError` when nothing could begin.
    What goes wrong later is in the report, or the sender's own error.
    """
    injectable(name, certain=certain)
    before = device_counters(name)
    report = Report()
    with AFPacketPort(name) as port:
        line = Live(polite, port)
        try:
            ended = line.run(stop=lambda: polite.done)
            if ended is live.Ended.SIGNAL:
                report.ended = Ended.SIGNAL
            elif polite.error is None:
                report.ended = Ended.TIME if polite.is_cut_short else Ended.COUNT
                if polite.manners.window is None:
                    # Nothing is owed, but something may come.
                    line.run(seconds=QUIET)
        except LinkError as error:
            report.error = error
        report.signal = line.signal
        report.accepted = line.sent - port.counters["not_sent"]
        if port.counters["not_sent"]:
            report.waits["queue full"] = port.counters["not_sent"]
    report.offered = polite.sent
    report.bytes = polite.bytes
    if polite.first is not None:
        report.seconds = (polite.last - polite.first) / S
        if polite.manners.slows_to is not None and polite.manners.window is None:
            # Nothing but this side can have held it up; with a window the peer may.
            report.asked_seconds = report.seconds - polite.behind / S
    with suppress(LinkError):
        report.device = settled(name, before, report.accepted, Clock())
    return report


_BATCHES = 16
"""More at a time would make the next packets late."""
