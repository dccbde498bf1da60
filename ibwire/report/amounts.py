"""Counts, times, rates, sizes and ratios as text for people."""

from __future__ import annotations

from ibwire.base.quantities import duration_text
from ibwire.base.units import Time
from ibwire.scenario.expect import METRICS, NEVER, Kind


def count_text(value: int) -> str:
    """`12,345`."""
    return f"{value:,}"


def time_text(value: Time) -> str:
    """`1.5 ms`."""
    if value == NEVER:
        return "never"
    return duration_text(value)


def rate_text(value: int) -> str:
    """`97.83 Gb/s`."""
    for unit, name in ((10**9, "Gb/s"), (10**6, "Mb/s"), (10**3, "kb/s")):
        if value >= unit:
            return f"{value / unit:.4g} {name}"
    return f"{value} b/s"


def ratio_text(thousandths: int) -> str:
    """`1.25`."""
    return f"{thousandths / 1000:.3f}".rstrip("0").rstrip(".")


def metric_text(name: str, value: int) -> str:
    """The value of a metric of a scenario."""
    return _TEXTS[METRICS[name][0]](value)


_TEXTS = {
    Kind.COUNT: count_text,
    Kind.SIZE: count_text,
    Kind.TIME: time_text,
    Kind.RATE: rate_text,
    Kind.RATIO: ratio_text,
}
