"""HPCC: the rate follows the queues that switches write into each packet.

Each switch of the path writes the bytes in its queue and those that it has sent. From two packets
follows how much of its line is in use; the sender keeps the busiest one at `eta` of its rate.

Source: SIGCOMM 2019 (HPCC); docs/reference/congestion.md#hpcc.
"""

from __future__ import annotations

from dataclasses import dataclass

from ibwire.base.errors import EncodeError
from ibwire.base.quantities import duration_text
from ibwire.base.telemetry import Hop
from ibwire.base.units import GBPS, NS, US, Time
from ibwire.rc.congestion.rate import UNLIMITED, Feedback, Pacer

MBPS = 10**6


@dataclass(frozen=True, slots=True, kw_only=True)
class HPCCParameters:
    """Names of the paper where it has them."""

    eta: float = 0.95
    """Utilisation to aim at."""
    max_stage: int = 0
    """Additive increases before the utilisation is looked at again."""
    ai_bps: float = 50 * MBPS
    """Additive increase: W_AI of the paper as a rate."""
    min_bps: float = 100 * MBPS
    base_rtt: Time = 10 * US
    """T: the round trip of an empty network."""
    has_window: bool = True
    """Whether no more than a bandwidth-delay product is on the way, in proportion to the rate."""

    def __post_init__(self) -> None:
        if not 0 < self.eta <= 1:
            raise EncodeError("eta", self.eta, "above 0, 1 at most")
        for name, least in (("max_stage", 0), ("ai_bps", 0), ("min_bps", 1)):
            value = getattr(self, name)
            if value < least:
                raise EncodeError(name, value, f"{least} or above")
        if self.base_rtt < NS:
            raise EncodeError("base_rtt", duration_text(self.base_rtt), "1 ns or above")


class HPCC(Pacer):
    """The control of one queue pair.

    bdp: bytes on the way at full speed; by default `base_rtt` times the rate of the line.
    """

    has_telemetry = True

    def __init__(
        self,
        parameters: HPCCParameters = HPCCParameters(),
        line_bps: int = 100 * GBPS,
        *,
        bdp: int | None = None,
        burst: int = 0,
    ) -> None:
        super().__init__(line_bps, burst=burst)
        self.parameters = parameters
        self.reference: float = line_bps
        """The rate of the last round trip, from which each acknowledgement computes anew."""
        self.utilisation = 1.0
        self._bdp = bdp or parameters.base_rtt // NS * line_bps // 10**9 // 8 or 1
        self._stage = 0
        self._round_end = 0
        self._hops: tuple[Hop, ...] = ()
        self._set_window()

    def acknowledged(self, feedback: Feedback, now: Time) -> None:
        """A request was acknowledged."""
        if not feedback.hops:
            return
        if not self._round_end:
            self._round_end = feedback.sent
            self._hops = feedback.hops
            return
        self._measure(feedback.hops)
        parameters = self.parameters
        ends_round = feedback.acknowledged > self._round_end
        excess = self.utilisation / parameters.eta
        stage = 0
        if excess >= 1 or self._stage >= parameters.max_stage:
            rate = self.reference / max(excess, _LEAST) + parameters.ai_bps
        else:
            rate = self.reference + parameters.ai_bps
            stage = self._stage + 1
        rate = min(max(rate, parameters.min_bps), self.line_bps)
        self.change_rate(rate)
        self._set_window()
        if ends_round:
            self.reference = rate
            self._stage = stage
            self._round_end = max(self._round_end, feedback.sent)

    def _measure(self, hops: tuple[Hop, ...]) -> None:
        """Move the utilisation towards that of the busiest hop."""
        busiest, passed = 0.0, 0
        if len(hops) == len(self._hops):  # otherwise the path has changed
            for hop, before in zip(hops, self._hops, strict=True):
                time = hop.time_since(before)
                if not time:
                    continue
                sent_bps = hop.bytes_since(before) * 8 * 10**9 / time
                queue = min(hop.queue_bytes, before.queue_bytes)
                share = sent_bps / hop.rate_bps
                share += queue * self.line_bps / hop.rate_bps / self._bdp
                if share > busiest:
                    busiest, passed = share, time
        self._hops = hops
        whole = max(self.parameters.base_rtt // NS, 1)
        passed = min(passed, whole)
        self.utilisation += (busiest - self.utilisation) * passed / whole

    def _set_window(self) -> None:
        if self.parameters.has_window:
            self.window = max(self._bdp * self.rate / self.line_bps, 1)
        else:
            self.window = UNLIMITED


_LEAST = 1e-6
"""Keeps a path without any traffic from an infinite rate."""
