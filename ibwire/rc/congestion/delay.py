"""TIMELY and Swift: controls that follow the round trip.

TIMELY looks at how the round trip changes, Swift at how far it is from a target. Both need no
help of the switches.

Source: SIGCOMM 2015 (TIMELY), SIGCOMM 2020 (Swift); docs/reference/congestion.md#timely, #swift.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

from ibwire.base.errors import EncodeError
from ibwire.base.quantities import duration_text
from ibwire.base.units import GBPS, US, Time
from ibwire.rc.congestion.rate import Feedback, Pacer

MBPS = 10**6


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelyParameters:
    """Names of the paper; values of the HPCC model of ns-3."""

    ewma_alpha: float = 0.875
    """Weight of a new difference of round trips."""
    beta: float = 0.8
    t_low: Time = 50 * US
    t_high: Time = 500 * US
    min_rtt: Time = 20 * US
    delta_bps: float = 10 * MBPS
    """Additive increase."""
    hai_bps: float = 50 * MBPS
    """Additive increase after `hai_after` of them."""
    hai_after: int = 5
    min_bps: float = 100 * MBPS

    def __post_init__(self) -> None:
        for name in ("ewma_alpha", "beta"):
            value = getattr(self, name)
            if not 0 < value <= 1:
                raise EncodeError(name, value, "above 0, 1 at most")
        if self.min_rtt <= 0:
            raise EncodeError("min_rtt", duration_text(self.min_rtt), "above 0")
        if not 0 <= self.t_low <= self.t_high:
            raise EncodeError(
                "t_low",
                duration_text(self.t_low),
                f"from 0 to t_high, {duration_text(self.t_high)}",
            )
        if self.min_bps < 1:
            raise EncodeError("min_bps", self.min_bps, "1 or above")


class Timely(Pacer):
    """The control of one queue pair; it changes the rate once in a round trip."""

    def __init__(
        self,
        parameters: TimelyParameters = TimelyParameters(),
        line_bps: int = 100 * GBPS,
        *,
        burst: int = 0,
    ) -> None:
        super().__init__(line_bps, burst=burst)
        self.parameters = parameters
        self._round_end = 0
        self._last_rtt: Time = 0
        self._difference = 0.0
        self._increases = 0

    def acknowledged(self, feedback: Feedback, now: Time) -> None:
        """A request was acknowledged."""
        if feedback.rtt is None or feedback.acknowledged <= self._round_end:
            return
        if self._round_end:
            self._update(feedback.rtt)
        self._round_end = max(self._round_end, feedback.sent)
        self._last_rtt = feedback.rtt

    def _update(self, rtt: Time) -> None:
        own = self.parameters
        change = rtt - self._last_rtt
        self._difference += own.ewma_alpha * (change - self._difference)
        gradient = self._difference / own.min_rtt
        if rtt < own.t_low or (rtt <= own.t_high and gradient <= 0):
            step = own.delta_bps if self._increases < own.hai_after else own.hai_bps
            self.rate = min(self.rate + step, self.line_bps)
            self._increases += 1
            return
        if rtt > own.t_high:
            kept = 1 - own.beta * (1 - own.t_high / rtt)
        else:
            kept = max(1 - own.beta * gradient, 0)
        self.rate = max(self.rate * kept, own.min_bps)
        self._increases = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SwiftParameters:
    """Names of the paper. The values are choices: the paper gives none for all networks."""

    base_target: Time = 10 * US
    """Target delay of a flow with a large window, without hops."""
    per_hop: Time = 1 * US
    hops: int = 2
    """Switches in the path."""
    fs_range: Time = 10 * US
    """Most that is added to the target of flows with a small window."""
    fs_min_cwnd: float = 0.1
    fs_max_cwnd: float = 100.0
    ai: float = 1.0
    """Packets that the window grows by in a round trip."""
    beta: float = 0.8
    max_mdf: float = 0.5
    """Largest part of the window that a cut takes."""
    min_cwnd: float = 0.01
    max_cwnd: float = 256.0
    packet: int = 1024
    """Bytes of a packet of the window."""

    def __post_init__(self) -> None:
        if not 0 < self.min_cwnd <= self.max_cwnd:
            raise EncodeError("min_cwnd", self.min_cwnd, "above 0, max_cwnd at most")
        if not 0 < self.fs_min_cwnd < self.fs_max_cwnd:
            raise EncodeError("fs_min_cwnd", self.fs_min_cwnd, "above 0, below fs_max_cwnd")
        for name in ("beta", "max_mdf"):
            value = getattr(self, name)
            if not 0 < value < 1:
                raise EncodeError(name, value, "between 0 and 1")
        for name in ("base_target", "ai", "packet"):
            if getattr(self, name) <= 0:
                raise EncodeError(name, getattr(self, name), "above 0")


class Swift(Pacer):
    """The control of one queue pair: a window of packets, which may be less than one.

    Below one packet the next one waits for a round trip divided by the window.
    """

    def __init__(
        self,
        parameters: SwiftParameters = SwiftParameters(),
        line_bps: int = 100 * GBPS,
        *,
        burst: int = 0,
    ) -> None:
        super().__init__(line_bps, burst=burst)
        self.parameters = parameters
        self.cwnd = parameters.max_cwnd
        """Packets."""
        self.cuts = 0
        self._acknowledged = 0
        self._cut_at: Time | None = None
        self._rtt: Time = 0
        self._set_window()

    @property
    def target(self) -> Time:
        """The delay to aim at with the present window."""
        own = self.parameters
        low, high = 1 / sqrt(own.fs_max_cwnd), 1 / sqrt(own.fs_min_cwnd)
        part = (1 / sqrt(self.cwnd) - low) / (high - low)
        scaled = own.fs_range * min(max(part, 0), 1)
        return own.base_target + own.hops * own.per_hop + int(scaled)

    def acknowledged(self, feedback: Feedback, now: Time) -> None:
        """A request was acknowledged."""
        count = feedback.acknowledged - self._acknowledged
        self._acknowledged = feedback.acknowledged
        rtt = feedback.rtt
        if rtt is None:
            return
        self._rtt = rtt
        own, target = self.parameters, self.target
        if rtt < target:
            self.cwnd += own.ai * count / max(self.cwnd, 1)
        elif self._cut_at is None or now - self._cut_at >= rtt:
            kept = max(1 - own.beta * (rtt - target) / rtt, 1 - own.max_mdf)
            self.cwnd *= kept
            self.cuts += 1
            self._cut_at = now
        self.cwnd = min(max(self.cwnd, own.min_cwnd), own.max_cwnd)
        self._set_window()

    def sent(self, size: int, now: Time) -> None:
        """A packet begins to leave."""
        super().sent(size, now)
        if self.cwnd < 1:
            self.next_send = max(self.next_send, now + int(self._rtt / self.cwnd))

    def _set_window(self) -> None:
        self.window = self.cwnd * self.parameters.packet
