"""When each frame is due: asked for a block at a time.

A pace says how many packets, or bits, may have left after how much time, as a token bucket
does that is filled at a rate which may change: phases, in each of which so much is allowed
at once and then at a rate that stays or changes evenly. A frame is due at the last moment at
which no more has been allowed than what left before it: at the end of a pause, not at its
beginning.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ibwire.base.errors import EncodeError
from ibwire.base.units import NS, S, Time

Numbers = npt.NDArray[np.int64]
_Floats = npt.NDArray[np.float64]


class Pacing(Protocol):
    """Says when frames are due."""

    def due(self, lengths: Numbers) -> Numbers:
        """When the next frames are due, in nanoseconds since the first one could leave.

        lengths: (n,) their bytes. Never goes back.
        """
        ...


class Phase(Protocol):
    """Part of a pace."""

    @property
    def time(self) -> Time:
        """How long it is."""
        ...

    @property
    def rate(self) -> float:
        """A second, at its beginning."""
        ...

    @property
    def end_rate(self) -> float | None:
        """A second, at its end; `None`: the same."""
        ...

    @property
    def burst(self) -> float:
        """At once, at its beginning."""
        ...


class Pace(Protocol):
    """Phases one after the other."""

    @property
    def phases(self) -> Sequence[Phase]:
        """In their order."""
        ...

    @property
    def unit(self) -> str:
        """What rates count: `packets`, or `bits` of frames as they are in a capture."""
        ...

    @property
    def repeat(self) -> bool:
        """Whether after the last phase comes the first again; otherwise the rate at its end goes
        on."""
        ...


class Pacer:
    """Follows a pace; raises `EncodeError` for one that at some time sends nothing any more."""

    def __init__(self, pace: Pace) -> None:
        self._costs_bits = pace.unit == "bits"
        rows = [
            (each.time / S, each.rate, each.rate if each.end_rate is None else each.end_rate)
            for each in pace.phases
        ]
        bursts = [each.burst for each in pace.phases]
        if not pace.repeat and rows:
            rows.append((_FOREVER, rows[-1][2], rows[-1][2]))
            bursts.append(0)
        spans, self._rates, ends = np.array(rows, float).reshape(-1, 3).T
        self._bursts = np.array(bursts, float)
        self._rises = np.divide(ends - self._rates, spans, out=0 * spans, where=spans > 0)
        self._times = _sums(spans)
        self._sums = _sums(self._bursts + spans * (self._rates + ends) / 2)
        goes_on = self._sums[-1] > 0 if pace.repeat else ends[-1:].any()
        if not goes_on or not self._times[-1]:
            raise EncodeError("phases", pace.phases, "a pace that goes on for ever")
        self._before = 0
        """Packets or bits before the next frame."""

    def due(self, lengths: Numbers) -> Numbers:
        """When the next frames are due, in nanoseconds since the first one could leave."""
        costs = 8 * lengths if self._costs_bits else np.ones(len(lengths), np.int64)
        after = self._before + np.cumsum(costs)
        before = after - costs
        if len(after):
            self._before = int(after[-1])
        rounds, rest = np.divmod(before.astype(float), self._sums[-1])
        phase = np.searchsorted(self._sums[1:], rest, side="right")
        # What has to come at the rate of the phase, which grows evenly: the solution of
        # rate * t + rise * t**2 / 2 = left that divides by nothing small.
        left = np.maximum(rest - self._sums[phase] - self._bursts[phase], 0)
        rate, rise = self._rates[phase], self._rises[phase]
        root = np.sqrt(np.maximum(rate * rate + 2 * rise * left, 0))
        speed = rate + root
        within = np.divide(2 * left, speed, out=np.zeros(len(left)), where=speed > 0)
        seconds = rounds * self._times[-1] + self._times[phase] + within
        nanoseconds: Numbers = np.rint(seconds * _NS_PER_S).astype(np.int64)
        return nanoseconds


class Recorded:
    """Times that are known beforehand, such as those of a capture.

    times: (n,) nanoseconds, n at least 1. One that goes back counts as the latest before it, as
    do frames that have none.
    """

    def __init__(self, times: Numbers) -> None:
        self._times: Numbers = np.maximum.accumulate(times - times[0])
        self._position = 0

    def due(self, lengths: Numbers) -> Numbers:
        """When the next frames are due, in nanoseconds since the first one could leave."""
        rows = np.arange(self._position, self._position + len(lengths))
        self._position += len(lengths)
        return self._times[np.minimum(rows, len(self._times) - 1)]


def _sums(values: _Floats) -> _Floats:
    """What is before each value, and after the last."""
    return np.concatenate(([0.0], np.cumsum(values)))


_NS_PER_S = S // NS
_FOREVER = 1e9
"""Seconds: 30 years."""
