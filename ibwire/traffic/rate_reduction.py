"""A rate that each CNP reduces and that recovers linearly, as a clock that runs slower.

A sender that follows its pace by such a clock sends at a fraction of its rate, whatever the
pace is. This is not DCQCN: one factor, one recovery time, no memory of earlier CNPs.
"""

from __future__ import annotations

from math import sqrt

from ibwire.base.units import Time

SLOWEST = 0.01
"""Smallest speed of the clock, as a fraction of its full speed."""


class ReducedRateClock:
    """A clock that runs slower after a rate reduction and recovers evenly.

    It maps real time to the clock's time; both begin at `start`.

    recovery: real time in which the speed grows from 0 to the full speed.
    """

    def __init__(self, start: Time, recovery: Time) -> None:
        self._recovery = recovery
        self._real = float(start)
        """Real time of the last reduction."""
        self._own = 0.0
        """The clock's time at the last reduction."""
        self._speed = 1.0
        """Speed at the last reduction; it grows from then on."""

    def speed(self, now: Time) -> float:
        """The fraction of the full speed, at most 1."""
        return min(self._speed + (now - self._real) / self._recovery, 1.0)

    def reduce(self, now: Time, factor: float) -> None:
        """Multiply the speed by a factor from now on."""
        own, speed = self._own_at(now), self.speed(now)
        self._real, self._own = max(float(now), self._real), own
        self._speed = max(speed * factor, SLOWEST)

    def postpone(self, time: Time) -> None:
        """Delay every own time by a real time."""
        self._real += time

    def real_time(self, own: Time) -> Time:
        """The real time of an own time."""
        left = own - self._own
        if left <= 0:
            return round(self._real + left)
        growing = (1 - self._speed) * self._recovery
        grown = growing * (1 + self._speed) / 2
        if left >= grown:
            return round(self._real + growing + left - grown)
        # The solution of speed * t + t**2 / (2 * recovery) = left.
        root = sqrt(self._speed**2 + 2 * left / self._recovery)
        return round(self._real + 2 * left / (self._speed + root))

    def _own_at(self, now: Time) -> float:
        passed = max(now - self._real, 0.0)
        growing = min(passed, (1 - self._speed) * self._recovery)
        gained = self._speed * growing + growing**2 / (2 * self._recovery)
        return self._own + gained + passed - growing
