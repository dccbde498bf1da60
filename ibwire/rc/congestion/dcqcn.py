"""DCQCN, the reaction point: how CNPs cut the rate of a queue pair, and how it recovers.

The parameters have the names, units and defaults of mlx5's `cc_params`. Three periodic timers
run from the first CNP on. They are not events: what they have done is worked out when the rate
is asked for or a CNP comes, so an idle queue pair costs nothing.

Source: docs/reference/congestion.md#dcqcn, #dcqcn-timers, #dcqcn-parameters.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final

from ibwire.base.errors import EncodeError
from ibwire.base.units import GBPS, NS, US, S, Time

MBPS: Final = 10**6
ALPHA_ONE: Final = 1024
"""The value of `rp_initial_alpha_value` that is an alpha of 1."""
BYTE_UNIT: Final = 64
"""Bytes of a unit of `rp_byte_reset`; texts differ about it (bytes, 64 bytes, megabits)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters:
    """`cc_params` of mlx5. Times in microseconds, rates in megabits a second."""

    rp_dce_tcp_g: int = 1019
    """Gain of alpha: each period alpha becomes G/1024 of it, plus 1 - G/1024 after a CNP."""
    rp_dce_tcp_rtt: int = 1
    """Period of alpha."""
    rp_initial_alpha_value: int = 1023
    """Alpha at the first CNP, of 1024."""
    rp_rate_reduce_monitor_period: int = 4
    """Least time between two cuts."""
    rp_gd: int = 11
    """A cut takes alpha / 2^gd of the rate, with alpha of 1024: 11 is half of alpha."""
    rp_min_dec_fac: int = 50
    """The rate after a cut, at least, in percent of the one before it."""
    rp_min_rate: int = 1
    rp_max_rate: int = 0
    """0 for the rate of the line."""
    rp_rate_to_set_on_first_cnp: int = 0
    """0 to leave it."""
    rp_time_reset: int = 300
    """Time between two increases."""
    rp_byte_reset: int = 32767
    """Data between two increases, in units of 64 bytes; 0 for increases by time only."""
    rp_threshold: int = 1
    """Increases by half of the distance to the target, before the target itself is raised."""
    rp_ai_rate: int = 5
    """Raise of the target after them."""
    rp_hai_rate: int = 50
    """Raise of the target after still more of them."""
    rp_clamp_tgt_rate: int = 0
    """Whether each cut sets the target to the rate before it."""
    rp_clamp_tgt_rate_ati: int = 1
    """Whether a cut does so if an increase by time came before it."""

    def __post_init__(self) -> None:
        for each in fields(self):
            low, high = _RANGES.get(each.name, (0, 1 << 20))
            value = getattr(self, each.name)
            if not low <= value <= high:
                raise EncodeError(each.name, value, f"{low} to {high:,}")


_RANGES = {
    "rp_dce_tcp_g": (0, 1023),
    "rp_dce_tcp_rtt": (1, 131_071),
    "rp_initial_alpha_value": (1, ALPHA_ONE),
    "rp_rate_reduce_monitor_period": (1, 1 << 20),
    "rp_gd": (0, 15),
    "rp_min_dec_fac": (0, 100),
    "rp_min_rate": (1, 1 << 24),
    "rp_max_rate": (0, 1 << 24),
    "rp_rate_to_set_on_first_cnp": (0, 1 << 24),
    "rp_time_reset": (1, 131_071),
    "rp_threshold": (0, 31),
    "rp_ai_rate": (0, 1 << 24),
    "rp_hai_rate": (0, 1 << 24),
    "rp_clamp_tgt_rate": (0, 1),
    "rp_clamp_tgt_rate_ati": (0, 1),
}

CONNECTX = Parameters()
"""NVIDIA ConnectX."""

PAPER = Parameters(
    rp_dce_tcp_g=1020,  # g is 1/256
    rp_dce_tcp_rtt=55,
    rp_initial_alpha_value=ALPHA_ONE,
    rp_rate_reduce_monitor_period=50,
    rp_time_reset=55,
    rp_byte_reset=10_000_000 // BYTE_UNIT,
    rp_threshold=5,
    rp_ai_rate=40,
    rp_hai_rate=200,
    rp_clamp_tgt_rate=1,
)
"""SIGCOMM 2015; the step of the hyper increase is not in it."""

HPCC_MODEL = Parameters(
    rp_dce_tcp_g=1020,
    rp_initial_alpha_value=ALPHA_ONE,
    rp_min_rate=100,
    rp_byte_reset=0,
)
"""Defaults of the HPCC model of ns-3, which takes over those of ConnectX."""


class DCQCN:
    """The reaction point of one queue pair.

    line_bps: rate of its port in bits a second; at this rate nothing is held back.
    """

    __slots__ = (
        "_alpha_due",
        "_alpha_period",
        "_byte_stage",
        "_byte_unit",
        "_bytes",
        "_ceiling",
        "_cnp_for_alpha",
        "_cnp_for_cut",
        "_cut_due",
        "_gain",
        "_increase_due",
        "_is_active",
        "_raises_first",
        "_stage",
        "alpha",
        "cuts",
        "next_send",
        "parameters",
        "rate",
        "target",
    )

    def __init__(self, parameters: Parameters = CONNECTX, line_bps: int = 100 * GBPS) -> None:
        self.parameters = parameters
        ceiling = float(min(parameters.rp_max_rate * MBPS or line_bps, line_bps))
        self.rate: float = ceiling
        """Bits a second."""
        self.target: float = ceiling
        self.alpha = 1.0
        self.cuts = 0
        self.next_send: Time = 0
        self._ceiling: float = ceiling
        self._gain = 1 - parameters.rp_dce_tcp_g / 1024
        self._alpha_period = parameters.rp_dce_tcp_rtt * US
        self._byte_unit = parameters.rp_byte_reset * BYTE_UNIT
        self._is_active = False
        """Whether a CNP has come yet."""
        self._stage = self._byte_stage = 0
        """Increases by time and by bytes since the last cut."""
        self._bytes = 0
        self._raises_first = parameters.rp_time_reset > parameters.rp_rate_reduce_monitor_period
        """Of an increase and a cut at one instant: the timer that was set first (rdma-hw.cc)."""
        self._cnp_for_alpha = self._cnp_for_cut = False
        self._alpha_due = self._cut_due = self._increase_due = _NEVER

    def sent(self, size: int, now: Time) -> None:
        """A packet with this many bytes of line time begins to leave."""
        if not self._is_active:
            return
        self.advance(now)
        unit = self._byte_unit
        if unit and self._increase_due != _NEVER:
            self._bytes += size
            if self._bytes >= unit:
                self._bytes = 0
                self._increase()
                self._byte_stage += 1
        # At the rate of the line, the line is what holds back.
        self.next_send = now + int(size * _BYTE / self.rate) if self.rate < self._ceiling else now

    def notified(self, now: Time) -> None:
        """A CNP has arrived."""
        self.advance(now)
        self._cnp_for_alpha = self._cnp_for_cut = True
        if self._is_active:
            return
        parameters = self.parameters
        self._is_active = True
        self.alpha = parameters.rp_initial_alpha_value / ALPHA_ONE
        self._cnp_for_alpha = False
        self.target = self.rate
        if parameters.rp_rate_to_set_on_first_cnp:
            self.rate = min(float(parameters.rp_rate_to_set_on_first_cnp * MBPS), self._ceiling)
        self._alpha_due = now + parameters.rp_dce_tcp_rtt * US
        # A nanosecond later than alpha, so that a cut sees what alpha has become.
        self._cut_due = now + parameters.rp_rate_reduce_monitor_period * US + NS

    def advance(self, now: Time) -> None:
        """Do what the timers have to do until now."""
        while True:
            due = self._alpha_due
            if self._cut_due < due:
                due = self._cut_due
            if self._increase_due < due:
                due = self._increase_due
            if due > now:
                return
            if due == self._alpha_due:
                self._update_alpha(now)
            elif due == self._cut_due and not (self._raises_first and due == self._increase_due):
                self._check_cut(now)
            else:
                self._increase()
                self._stage += 1
                period = self.parameters.rp_time_reset * US
                self._increase_due = due + period
                if self.rate == self.target == self._ceiling and not self._cnp_for_cut:
                    # Nothing more to raise: only the stages go on.
                    passed = max((now - self._increase_due) // period + 1, 0)
                    self._stage += passed
                    self._increase_due += passed * period

    def _update_alpha(self, now: Time) -> None:
        period = self._alpha_period
        if self._cnp_for_alpha:
            self.alpha += self._gain * (1 - self.alpha)
            self._cnp_for_alpha = False
            self._alpha_due += period
            return
        # Several periods at once, up to the next thing that looks at alpha.
        until = now
        if self._cnp_for_cut and self._cut_due < now:
            until = self._cut_due
        periods = (until - self._alpha_due) // period + 1
        if periods <= 1:
            self.alpha *= 1 - self._gain
            self._alpha_due += period
            return
        self.alpha *= (1 - self._gain) ** periods
        self._alpha_due += periods * period

    def _check_cut(self, now: Time) -> None:
        parameters = self.parameters
        period = parameters.rp_rate_reduce_monitor_period * US
        if not self._cnp_for_cut:
            self._cut_due += max((now - self._cut_due) // period + 1, 1) * period
            return
        if parameters.rp_clamp_tgt_rate or (parameters.rp_clamp_tgt_rate_ati and self._stage):
            self.target = self.rate
        part = self.alpha * ALPHA_ONE / (1 << parameters.rp_gd)
        kept = max(1 - part, parameters.rp_min_dec_fac / 100)
        self.rate = max(self.rate * kept, float(parameters.rp_min_rate * MBPS))
        self.cuts += 1
        self._cnp_for_cut = False
        self._stage = self._byte_stage = self._bytes = 0
        self._increase_due = self._cut_due + parameters.rp_time_reset * US
        self._cut_due += period

    def _increase(self) -> None:
        """One increase: to the middle between rate and target, after the target was raised."""
        parameters = self.parameters
        threshold = parameters.rp_threshold
        if parameters.rp_byte_reset:
            least = min(self._stage, self._byte_stage)
            most = max(self._stage, self._byte_stage)
        else:
            least, most = self._stage - 1, self._stage
        if most >= threshold:
            step = parameters.rp_hai_rate if least >= threshold else parameters.rp_ai_rate
            self.target = min(self.target + step * MBPS, self._ceiling)
        self.rate = (self.rate + self.target) / 2
        if self._ceiling - self.rate < 1:
            self.rate = self._ceiling


_NEVER: Final = 1 << 100
_BYTE: Final = 8.0 * S
"""Time of a byte at a bit a second; a product of floating-point numbers needs no long integer."""
