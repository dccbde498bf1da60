"""The two timers of a reliable queue pair: ACK timeout and RNR wait."""

from __future__ import annotations

from ibwire.base.units import US, Time, ack_timeout
from ibwire.rc.profile import Profile


class Timers:
    """When each timer is due; `None` while it does not run."""

    __slots__ = ("ack", "rnr", "rnr_time")

    def __init__(self) -> None:
        self.ack: Time | None = None
        self.rnr: Time | None = None
        self.rnr_time: Time = 0
        """How long the last RNR wait is, from its beginning."""

    def next_timeout(self) -> Time | None:
        """The earlier of the two."""
        if self.rnr is None:
            return self.ack
        return self.rnr if self.ack is None else min(self.ack, self.rnr)

    def stop(self) -> None:
        """Stop both."""
        self.ack = self.rnr = None


def ack_wait(code: int, profile: Profile, retries: int = 0) -> Time | None:
    """How long an implementation waits for a response with this timeout code; `None` is forever.

    The specification allows up to four times the nominal time (IBA 9.7.6.1.3); this
    is the profile's percentage of it, cut to the profile's clock, or the profile's own. retries:
    those that have been used up since there was progress.
    """
    nominal = ack_timeout(code)
    if nominal is None:
        return None
    if profile.timeout_low:
        return profile.timeout_low
    percents = profile.ack_timer_percents
    if percents:
        nominal = nominal * percents[min(retries, len(percents) - 1)] // 100
    else:
        nominal = nominal * profile.ack_timer_percent // 100
    return max(nominal // profile.timer_granularity, 1) * profile.timer_granularity


def rnr_wait(code: int, profile: Profile) -> Time:
    """How long an implementation waits after an RNR NAK with this timer code (IBA 9.7.5.2.8)."""
    table = profile.rnr_timer_us[code] * US * profile.rnr_timer_percent // 100
    grain = profile.rnr_granularity
    return table if grain == 1 else (-(-table // grain) + 1) * grain
