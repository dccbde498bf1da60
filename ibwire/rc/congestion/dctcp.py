"""DCTCP as a rate: the cut follows the share of packets that switches have marked.

The receiver has to answer every mark: `NotificationPoint(interval=0)`. CNPs count as marks of the
packets acknowledged next.

Source: SIGCOMM 2010 (DCTCP); docs/reference/congestion.md#dctcp.
"""

from __future__ import annotations

from dataclasses import dataclass

from ibwire.base.errors import EncodeError
from ibwire.base.quantities import duration_text
from ibwire.base.units import GBPS, NS, US, Time
from ibwire.rc.congestion.rate import UNLIMITED, Feedback, Pacer

MBPS = 10**6


@dataclass(frozen=True, slots=True, kw_only=True)
class DCTCPParameters:
    """Names of the paper; values of the HPCC model of ns-3."""

    g: float = 1 / 256
    """Weight of a new share; the paper has 1/16."""
    ai_bps: float = 1000 * MBPS
    """Additive increase in a round trip without a mark."""
    min_bps: float = 100 * MBPS
    base_rtt: Time = 10 * US
    has_window: bool = True
    """Whether no more than a bandwidth-delay product is on the way, in proportion to the rate."""

    def __post_init__(self) -> None:
        if not 0 < self.g <= 1:
            raise EncodeError("g", self.g, "above 0, 1 at most")
        for name, least in (("ai_bps", 0), ("min_bps", 1)):
            if getattr(self, name) < least:
                raise EncodeError(name, getattr(self, name), f"{least} or above")
        if self.base_rtt < NS:
            raise EncodeError("base_rtt", duration_text(self.base_rtt), "1 ns or above")


class DCTCP(Pacer):
    """The control of one queue pair.

    bdp: bytes on the way at full speed; by default `base_rtt` times the rate of the line.
    """

    def __init__(
        self,
        parameters: DCTCPParameters = DCTCPParameters(),
        line_bps: int = 100 * GBPS,
        *,
        bdp: int | None = None,
        burst: int = 0,
    ) -> None:
        super().__init__(line_bps, burst=burst)
        self.parameters = parameters
        self.alpha = 1.0
        self.cuts = 0
        self._bdp = bdp or parameters.base_rtt // NS * line_bps // 10**9 // 8 or 1
        self._round_end = 0
        self._packets = 0
        """Packets of the round that is measured."""
        self._marks = 0
        self._is_marked = False
        """Whether a mark has come since the last acknowledgement."""
        self._cut_until: int | None = None
        """Packets that have to be acknowledged before the next cut or increase."""
        self._set_window()

    def notified(self, now: Time) -> None:
        """A CNP has arrived."""
        self._marks += 1
        self._is_marked = True

    def acknowledged(self, feedback: Feedback, now: Time) -> None:
        """A request was acknowledged."""
        own = self.parameters
        is_marked, self._is_marked = self._is_marked, False
        ends_round = feedback.acknowledged > self._round_end
        if ends_round:
            if self._round_end:
                share = min(self._marks / self._packets, 1.0)
                self.alpha += own.g * (share - self.alpha)
                self._marks = 0
                self._packets = feedback.sent - feedback.acknowledged + 1
            else:
                self._packets = feedback.sent + 1
            self._round_end = feedback.sent
        if self._cut_until is not None and feedback.acknowledged > self._cut_until:
            self._cut_until = None
        if is_marked and self._cut_until is None:
            self.rate = max(self.rate * (1 - self.alpha / 2), own.min_bps)
            self.cuts += 1
            self._cut_until = feedback.sent
        if self._cut_until is None and ends_round:
            self.rate = min(self.rate + own.ai_bps, self.line_bps)
        self._set_window()

    def _set_window(self) -> None:
        if self.parameters.has_window:
            self.window = max(self._bdp * self.rate / self.line_bps, 1)
        else:
            self.window = UNLIMITED
