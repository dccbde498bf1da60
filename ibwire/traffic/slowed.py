"""A clock that runs more slowly after a warning, and recovers evenly.

Who follows a pace by such a clock sends at a part of its rate, whatever the pace is. This is
no DCQCN: one factor, one time, no memory of earlier warnings.
"""

from __future__ import annotations

from math import sqrt

from ibwire.base.units import Time

SLOWEST = 0.01
"""Part of its speed that the clock keeps in any case."""


class Slowed:
    """Own time by real time; both begin at the same moment.

    recovery: real time after which a clock that stood still would have its full speed.
    """

    def __init__(self, start: Time, recovery: Time) -> None:
        self._recovery = recovery
        self._real = float(start)
        self._own = 0.0
        self._speed = 1.0
        """At that moment; from then on it grows."""

    def speed(self, now: Time) -> float:
        """Part of its full speed, 1 at most."""
        return min(self._speed + (now - self._real) / self._recovery, 1.0)

    def slow(self, now: Time, factor: float) -> None:
        """Run at that part of the speed it has, from now on."""
        own, speed = self._own_at(now), self.speed(now)
        self._real, self._own = max(float(now), self._real), own
        self._speed = max(speed * factor, SLOWEST)

    def put_off(self, time: Time) -> None:
        """Everything is so much later in real time."""
        self._real += time

    def real(self, own: Time) -> Time:
        """The real time of an own one."""
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
