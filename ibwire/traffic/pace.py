"""How fast packets leave, as data that the pacer of a link follows: `Pace`.

A pace is phases, one after the other. Most are said with a few keys: a steady rate,
bursts, on and off, a ramp.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from ibwire.base.errors import EncodeError
from ibwire.base.units import MS, NS, US, S, Time


class Unit(StrEnum):
    """What a rate counts."""

    PACKETS = "packets"
    BITS = "bits"
    """Of frames from the Ethernet header to the ICRC, as in a capture: the 24 bytes of
    preamble, FCS and gap that each has on a wire are left out."""


class Rate(NamedTuple):
    """So much a second."""

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
    """A second, at its beginning."""
    end_rate: float | None = None
    """A second, at its end; `None`: the same."""
    burst: float = 0.0
    """At once, at its beginning."""


@dataclass(frozen=True, slots=True)
class Pace:
    """Phases one after the other."""

    phases: tuple[Phase, ...]
    unit: Unit
    repeat: bool = False
    """After the last comes the first again; otherwise the rate at its end goes on."""
    text: str = ""
    """In words."""


def make_pace(values: Mapping[str, Any]) -> Pace | None:
    """The pace of values by key, see docs/inject.md; `None` for as fast as possible.

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
        text = f"{rate} for {_shown(on)}, nothing for {_shown(off)}, again and again"
        return Pace((Phase(on, rate.amount), Phase(off)), rate.unit, True, text)
    if "ramp_to" in values:
        return _ramp(rate, values["ramp_to"], values.get("ramp_time"))
    return Pace((Phase(S, rate.amount),), rate.unit, text=str(rate))


def parse_rate(value: object) -> Rate | None:
    """A rate of "200kpps" or "5Gbps"; `None` for "max"; `EncodeError` for anything else."""
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
        raise EncodeError("ramp_time", None, "given beside ramp_to")
    text = f"{rate} to {end} over {_shown(time)}, and on with that"
    return Pace((Phase(time, rate.amount, end.amount),), rate.unit, text=text)


def _shown(time: Time) -> str:
    for size, name in ((S, "s"), (MS, "ms"), (US, "us")):
        if time >= size:
            return f"{time / size:g} {name}"
    return f"{time / NS:g} ns"


_PREFIXES = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_RATE = re.compile(
    r"(?P<number>\d{1,12}(?:\.\d{1,9})?)\s*(?P<prefix>[kKMGT]?)(?P<unit>pps|bps)", re.ASCII
)
_LOWEST, _HIGHEST = 1e-3, 1e12
