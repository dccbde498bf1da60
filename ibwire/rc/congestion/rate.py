"""The interface of congestion control: what it is notified of, and what it decides.

The requester knows nothing of its formulas. A control of one's own is a class with these
methods, and a function that makes one for each queue pair: `Device(rate_control=...)`. Most
begin with `Pacer`, which spaces the packets of a rate.

A `RateControl` learns of CNPs. A `FeedbackControl` also learns of every acknowledgement: the
round trip, what is on the way, and the queues in the path if its packets carry telemetry. All its
requests then ask for an ACK.

Only SENDs, WRITEs and requests have feedback. READ responses are paced at the rate, but nothing
acknowledges them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from ibwire.base.errors import EncodeError
from ibwire.base.telemetry import Hop
from ibwire.base.units import GBPS, S, Time


class RateControl(Protocol):
    """The rate of one queue pair. Times never go back from call to call."""

    next_send: Time
    """When the next request or READ response may leave; acknowledgements are never held back."""

    def sent(self, size: int, now: Time) -> None:
        """A packet with this many bytes of line time begins to leave."""
        ...

    def notified(self, now: Time) -> None:
        """A CNP has arrived."""
        ...


@dataclass(slots=True)
class Feedback:
    """What an acknowledgement shows. Packets are counted from the first one of the connection."""

    acknowledged: int
    """Packets acknowledged so far."""
    sent: int
    """Packets sent so far, without those that will be retransmitted."""
    rtt: Time | None
    """Round trip of the acknowledged packet; `None` if it was retransmitted."""
    hops: tuple[Hop, ...] = ()
    """Queues in its path, in the order in which it passed them."""


@runtime_checkable
class FeedbackControl(RateControl, Protocol):
    """A control that acknowledgements move."""

    window: float
    """Bytes of messages that may be unacknowledged; `UNLIMITED` for as many as the protocol
    allows. A packet may leave while fewer are on the way."""
    has_telemetry: bool
    """Whether its packets carry a record for the switches (`ibwire.base.telemetry`)."""

    def acknowledged(self, feedback: Feedback, now: Time) -> None:
        """A request was acknowledged, by an ACK, a NAK or a READ response."""
        ...


UNLIMITED = float("inf")


class Pacer:
    """Spaces packets at a rate; the base of controls.

    line_bps: rate of the port; at this rate nothing is held back. burst: bytes that may leave
    without a gap after a pause.
    """

    window: float = UNLIMITED
    has_telemetry = False

    def __init__(self, line_bps: int = 100 * GBPS, *, burst: int = 0) -> None:
        for name, value, least in (("line_bps", line_bps, 1), ("burst", burst, 0)):
            if value < least:
                raise EncodeError(name, value, f"{least} or above")
        self.line_bps = line_bps
        self.burst = burst
        self.rate: float = line_bps
        """Bits a second."""
        self.next_send: Time = 0
        self._size = 0
        self._earned: Time = 0
        """When everything sent has been paid for at the rate."""

    def sent(self, size: int, now: Time) -> None:
        """A packet with this many bytes of line time begins to leave."""
        self._size = size
        if self.rate >= self.line_bps:  # the line is what holds back
            self._earned = self.next_send = now
            return
        self._earned = max(self._earned, now) + self.gap(size)
        self.next_send = max(self._earned - self.gap(self.burst), now)

    def gap(self, size: int) -> Time:
        """How long bytes take at the rate."""
        return int(size * 8 * S / self.rate)

    def notified(self, now: Time) -> None:
        """A CNP has arrived; changes nothing here."""

    def change_rate(self, rate: float) -> None:
        """Change the rate, also for the packet that is waited for."""
        before = self._wait()
        self.rate = rate
        change = self._wait() - before
        self.next_send += change
        self._earned += change

    def _wait(self) -> Time:
        """How long the last packet holds back the next one."""
        return 0 if self.rate >= self.line_bps else self.gap(self._size)


class RateLimit(Pacer):
    """A fixed rate: `ibv_modify_qp_rate_limit` with `rate_limit` and `max_burst_sz`."""

    def __init__(self, rate_bps: int, *, burst: int = 0, line_bps: int = 100 * GBPS) -> None:
        super().__init__(line_bps, burst=burst)
        if rate_bps < 1:
            raise EncodeError("rate_bps", rate_bps, "1 or above")
        self.rate = min(rate_bps, line_bps)
