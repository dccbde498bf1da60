"""Durations and rates with units, as text: `5us`, `1.5 ms`, `100G`, `25 Gbps`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction

from ibwire.base.errors import EncodeError
from ibwire.base.units import MS, NS, US, S, Time


def parse_duration(value: object) -> Time:
    """Picoseconds of "5us" or "1.5 ms"; `EncodeError` for anything else.

    Units: ps, ns, us, ms, s. A number without one is refused: it would be a guess.
    """
    return _quantity("duration", value, _DURATION, _DURATION_UNITS, "a time such as 5us or 1.5 ms")


def duration_text(value: Time, digits: int = 6) -> str:
    """`1.5 ms`. digits: as many as are shown at most."""
    for unit, name in _SHOWN_UNITS:
        if value >= unit:
            return f"{value / unit:.{digits}g} {name}"
    return f"{value / NS:.{digits}g} ns"


def exact_duration_text(value: Time) -> str:
    """`6.442450944 s`: with all digits, so that different times are different texts."""
    unit, name = next((each for each in _SHOWN_UNITS if value >= each[0]), (NS, "ns"))
    whole, rest = divmod(value, unit)
    digits = f"{rest:0{len(str(unit)) - 1}}".rstrip("0")
    return f"{whole}{'.' * bool(digits)}{digits} {name}"


def parse_rate(value: object) -> int:
    """Bits a second of "100G", "25Gbps" or "2.5 Gb/s"; `EncodeError` for anything else."""
    rate = _quantity("rate", value, _RATE, _RATE_UNITS, "a rate such as 100G or 25 Gbps")
    if not rate:
        raise EncodeError("rate", value, "above 0")
    return rate


def _quantity(
    field: str, value: object, pattern: re.Pattern[str], units: Mapping[str, int], expected: str
) -> int:
    found = pattern.fullmatch(value.strip()) if isinstance(value, str) else None
    if found is None:
        raise EncodeError(field, value, expected)
    number = Fraction(found["number"]) * units[found["unit"]]
    if number.denominator != 1:
        raise EncodeError(field, value, f"{expected}: it is finer than the smallest unit")
    return int(number)


_SHOWN_UNITS = ((S, "s"), (MS, "ms"), (US, "us"))
_NUMBER = r"(?P<number>\d{1,15}(?:\.\d{1,15})?)\s*"
_DURATION_UNITS = {"ps": 1, "ns": NS, "us": US, "µs": US, "μs": US, "ms": MS, "s": S}
_DURATION = re.compile(_NUMBER + f"(?P<unit>{'|'.join(_DURATION_UNITS)})", re.ASCII)
_RATE_UNITS = {"k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_RATE = re.compile(_NUMBER + r"(?P<unit>[kKMGT])(?:bps|bit/s|b/s)?", re.ASCII)
