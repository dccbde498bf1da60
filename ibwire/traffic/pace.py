"""How fast packets are sent: `Pace`, and `Pacer`, which says when each frame is due.

A pace is a sequence of phases: a steady rate, bursts, on and off, a ramp. It limits how many
packets or bits may have left after a time, as a token bucket with a changing fill rate: each
phase allows a burst at once and then a rate that stays or changes linearly. A frame is due at
the latest time at which the limit is what left before it: at the end of a pause,
not at its beginning.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from ibwire.base.errors import EncodeError, MissingValueError
from ibwire.base.units import MS, NS, US, S, Time

Numbers = npt.NDArray[np.int64]
_Floats = npt.NDArray[np.float64]


class Unit(StrEnum):
    """The unit of a rate."""

    PACKETS = "packets"
    BITS = "bits"
    """Bits of frames from the Ethernet header to the ICRC, as in a capture: without the 24 bytes
    of preamble, FCS and gap on a wire."""


class Rate(NamedTuple):
    """An amount per second."""

    amount: float
    unit: Unit

    def __str__(self) -> str:
        unit = "pps" if self.unit is Unit.PACKETS else "bps"
        for size, prefix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
            if self.amount >= size:
                return f"{self.amount / size:g} {prefix}{unit}"
        return f"{self.amount:g} {unit}"


@dataclass(frozen=True, slots=True)
class Phase:
    """Part of a pace."""

    time: Time
    rate: float = 0.0
    """Per second at its beginning."""
    end_rate: float | None = None
    """Per second at its end; `None`: the same."""
    burst: float = 0.0
    """Packets or bits allowed at once at its beginning."""


@dataclass(frozen=True, slots=True)
class Pace:
    """A sequence of phases."""

    phases: tuple[Phase, ...]
    unit: Unit
    repeat: bool = False
    """After the last phase comes the first again; otherwise the last rate continues."""
    text: str = ""
    """Description in words."""


def make_pace(values: Mapping[str, Any]) -> Pace | None:
    """The pace for values by key, see docs/inject.md; `None` for as fast as possible.

    Raises `EncodeError`, which names the key.
    """
    rate: Rate | None = values.get("rate")
    given = [key for key in ("burst", "on", "ramp_to") if key in values]
    if rate is None:
        if given:
            raise EncodeError(given[0], values[given[0]], "possible without a rate")
        return None
    if len(given) > 1:
        raise EncodeError(given[1], values[given[1]], f"possible together with {given[0]}")
    for key, other in (("off", "on"), ("on", "off"), ("ramp_time", "ramp_to")):
        if key in values and not (other in values and values[key] >= NS):
            raise EncodeError(key, values[key], f"a nanosecond or more, with {other} beside it")
    if "burst" in values:
        return _bursts(rate, values["burst"])
    if "on" in values:
        on, off = values["on"], values["off"]
        text = f"{rate} for {_shown(on)}, nothing for {_shown(off)}, repeated"
        return Pace((Phase(on, rate.amount), Phase(off)), rate.unit, True, text)
    if "ramp_to" in values:
        return _ramp(rate, values["ramp_to"], values.get("ramp_time"))
    return Pace((Phase(S, rate.amount),), rate.unit, text=str(rate))


def parse_rate(value: object) -> Rate | None:
    """Parse "200kpps" or "5Gbps"; `None` for "max"; `EncodeError` for anything else."""
    if value == "max":
        return None
    found = _RATE.fullmatch(value.strip()) if isinstance(value, str) else None
    if found is None:
        raise EncodeError("rate", value, "a rate such as 200kpps or 5Gbps, or max")
    amount = float(found["number"]) * _PREFIXES[found["prefix"].upper()]
    if not _LOWEST <= amount <= _HIGHEST:
        raise EncodeError("rate", value, "from 0.001 to 10^12 a second")
    return Rate(amount, Unit.PACKETS if found["unit"] == "pps" else Unit.BITS)


def _bursts(rate: Rate, burst: int) -> Pace:
    if rate.unit is not Unit.PACKETS:
        raise EncodeError("burst", burst, f"possible with a rate in bits, {rate}")
    if not 1 <= burst <= 1 << 20:
        raise EncodeError("burst", burst, f"a number from 1 to {1 << 20}")
    time = round(burst / rate.amount * S)
    text = f"{rate} in bursts of {burst}, one every {_shown(time)}"
    return Pace((Phase(time, burst=burst),), rate.unit, True, text)


def _ramp(rate: Rate, end: Rate | None, time: Time | None) -> Pace:
    if end is None or end.unit is not rate.unit:
        raise EncodeError("ramp_to", str(end or "max"), f"in the unit of {rate}")
    if time is None:
        raise MissingValueError("ramp_time", "is required with ramp_to")
    text = f"{rate} to {end} within {_shown(time)}, then {end}"
    return Pace((Phase(time, rate.amount, end.amount),), rate.unit, text=text)


def _shown(time: Time) -> str:
    for size, name in ((S, "s"), (MS, "ms"), (US, "us")):
        if time >= size:
            return f"{time / size:g} {name}"
    return f"{time / NS:g} ns"


class Pacing(Protocol):
    """ResponseKind when frames are due."""

    def due(self, lengths: Numbers) -> Numbers:
        """When the next frames are due, in nanoseconds since the first one could leave.

        lengths: (n,) their bytes. Never goes back.
        """
        ...


class Pacer:
    """Follows a pace; raises `EncodeError` for one that stops sending."""

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
            raise EncodeError("phases", pace.phases, "a pace that never stops")
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
        # What is left at the rate of the phase, which grows linearly: the solution of
        # rate * t + rise * t**2 / 2 = left that does not divide by a small number.
        left = np.maximum(rest - self._sums[phase] - self._bursts[phase], 0)
        rate, rise = self._rates[phase], self._rises[phase]
        root = np.sqrt(np.maximum(rate * rate + 2 * rise * left, 0))
        speed = rate + root
        within = np.divide(2 * left, speed, out=np.zeros(len(left)), where=speed > 0)
        seconds = rounds * self._times[-1] + self._times[phase] + within
        nanoseconds: Numbers = np.rint(seconds * _NS_PER_S).astype(np.int64)
        return nanoseconds


class RecordedTimes:
    """Times known in advance, such as those of a capture.

    times: (n,) nanoseconds, n at least 1. A time before an earlier one counts as the latest
    one, as for frames after the last time.
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
    """The sum before each value, and after the last."""
    return np.concatenate(([0.0], np.cumsum(values)))


_NS_PER_S = S // NS
_FOREVER = 1e9
"""Seconds: 30 years."""

_PREFIXES = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_RATE = re.compile(
    r"(?P<number>\d{1,12}(?:\.\d{1,9})?)\s*(?P<prefix>[kKMGT]?)(?P<unit>pps|bps)", re.ASCII
)
_LOWEST, _HIGHEST = 1e-3, 1e12
