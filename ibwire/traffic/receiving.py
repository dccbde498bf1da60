"""Sending on an interface while receiving there.

`ReceivingOutlet` takes the arriving frames while `transmit` sends at full speed, without
waiting for them. `run_closed_loop` drives a sender that reacts to responses.
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
from ibwire.traffic.closed_loop import ClosedLoopSender
from ibwire.traffic.pace import Numbers
from ibwire.traffic.safety import injectable_interface
from ibwire.traffic.sender import device_counters
from ibwire.traffic.transmission import Clock, EndReason, Outlet, SendReport, settled

QUIET, LINGER = 0.2, 2.0
"""Seconds without a frame after which receiving ends, and seconds after which it ends anyway."""


class ReceivingOutlet(Closing):
    """An outlet around another that passes on arriving frames whenever it sends.

    Frames that arrive in a pause wait in the kernel, which has 8 MiB for them.
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
        """How often there was no room, by reason."""
        return self._outlet.waits

    @property
    def keeps_times(self) -> bool:
        """Whether sending a few packets at a time is as efficient as sending many."""
        return self._outlet.keeps_times

    def next(self, most: int) -> Numbers:
        """Lengths of the next packets."""
        return self._outlet.next(most)

    def send(self, count: int) -> int:
        """Send the next packets and take the frames that have arrived."""
        taken = self._outlet.send(count)
        self._receive()
        return taken

    def wait(self) -> None:
        """Wait a short time for room."""
        self._outlet.wait()
        self._receive()

    def linger(self) -> None:
        """Receive after the last packet until nothing arrives any more."""
        clock = MonotonicClock()
        end = time.monotonic_ns() + round(LINGER * 1e9)
        quiet = time.monotonic_ns() + round(QUIET * 1e9)
        while (now := time.monotonic_ns()) < min(end, quiet):
            if self._receive():
                quiet = now + round(QUIET * 1e9)
            else:
                clock.wait([self._port.fileno()], [], min(end, quiet))

    def notes(self) -> list[str]:
        """Sentences about the link for the user, such as frames that were lost on arrival."""
        return self._port.notes()

    def close(self) -> None:
        """Stop receiving; the other outlet stays open."""
        self._port.close()

    def _receive(self) -> int:
        """Take frames that have arrived, at most some batches; returns how many."""
        received = 0
        for _ in range(_BATCHES):
            frames = self._port.receive()
            for frame in frames:
                self._take(frame)
            received += len(frames)
            if len(frames) < self._port.BATCH:
                break
        return received


def run_closed_loop(
    sender: ClosedLoopSender, name: str, *, allow_default_route: bool = False
) -> SendReport:
    """Run a closed-loop sender on an interface until it is done or a signal comes.

    allow_default_route: also on the interface of the default route. Raises `LinkError` when
    nothing could be sent. Later errors are in the report, or in the sender's `error`.
    """
    injectable_interface(name, allow_default_route=allow_default_route)
    before = device_counters(name)
    report = SendReport()
    with AFPacketPort(name) as port:
        line = Live(sender, port)
        try:
            ended = line.run(stop=lambda: sender.done)
            if ended is live.Ended.SIGNAL:
                report.ended = EndReason.SIGNAL
            elif sender.error is None:
                report.ended = EndReason.TIME if sender.is_cut_short else EndReason.COUNT
                if sender.policy.window is None:
                    # No acknowledgement is outstanding, but responses may still arrive.
                    line.run(seconds=QUIET)
        except LinkError as error:
            report.error = error
        report.signal = line.signal
        report.accepted = line.sent - port.counters["not_sent"]
        if port.counters["not_sent"]:
            report.waits["queue full"] = port.counters["not_sent"]
    report.offered = sender.sent
    report.bytes = sender.bytes
    if sender.first is not None:
        report.seconds = (sender.last - sender.first) / S
        if sender.policy.cnp_rate_factor is not None and sender.policy.window is None:
            # Only this side can have delayed packets; with a window the peer can too.
            report.requested_seconds = report.seconds - sender.lag / S
    with suppress(LinkError):
        report.device = settled(name, before, report.accepted, Clock())
    return report


_BATCHES = 16
"""More batches at a time would delay the next packets."""
