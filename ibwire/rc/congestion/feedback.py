"""What acknowledgements tell the congestion control of a queue pair.

A `FeedbackLoop` stands between the queue pair and a `FeedbackControl`: it notes when each packet
left, counts what is acknowledged, and keeps the window.
"""

from __future__ import annotations

from collections import OrderedDict

from ibwire.base.telemetry import read_hops
from ibwire.base.units import Time
from ibwire.rc.congestion.rate import Feedback, FeedbackControl
from ibwire.rc.packet import TransportPacket
from ibwire.rc.send_state import SendState
from ibwire_layers.psn import HALF, MASK


class FeedbackLoop:
    """The state between one send queue and its control."""

    LIMIT = 1 << 14
    """Packets whose time is kept; of more in flight the oldest have no round trip."""

    __slots__ = ("_acknowledged", "_sends", "_times", "_una", "control")

    def __init__(self, control: FeedbackControl, sends: SendState) -> None:
        self.control = control
        self._sends = sends
        self.reset()

    def reset(self) -> None:
        """Forget everything, as before the first packet."""
        self._acknowledged = 0
        self._una: int | None = None
        self._times: OrderedDict[int, Time | None] = OrderedDict()
        """When each PSN left; `None` for one that was retransmitted: its response may be to
        either (RFC 6298 3)."""

    def is_full(self, mtu: int) -> bool:
        """Whether the window allows no further packet."""
        sends = self._sends
        return ((sends.psn - sends.una) & MASK) * mtu >= self.control.window

    def note_sent(self, psn: int, now: Time) -> None:
        """A request packet begins to leave."""
        if self._una is None:
            self._una = self._sends.una
        times = self._times
        if psn in times:
            times[psn] = None
            return
        if len(times) >= self.LIMIT:
            times.popitem(last=False)
        times[psn] = now

    def take(self, packet: TransportPacket, now: Time) -> None:
        """A response has been applied to the send queue."""
        sends, times = self._sends, self._times
        if self._una is None:
            return
        moved = (sends.una - self._una) & MASK
        if moved >= HALF:
            return
        self._una = sends.una
        self._acknowledged += moved
        began = times.get(packet.psn)
        while times and (next(iter(times)) - sends.una) & MASK >= HALF:
            times.popitem(last=False)
        if not moved:
            return  # a duplicate
        self.control.acknowledged(
            Feedback(
                self._acknowledged,
                self._acknowledged + ((sends.psn - sends.una) & MASK),
                None if began is None else now - began,
                read_hops(packet.trailer),
            ),
            now,
        )
