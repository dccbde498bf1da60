"""When traffic starts: before the run ends."""

from __future__ import annotations

from ibwire.base.quantities import duration_text
from ibwire.base.toml import Table
from ibwire.base.units import Time


def take_start(table: Table, limit: Time) -> Time:
    """The time of the key `start`; limit: when the run ends."""
    start = table.take_time("start", 0)
    if start >= limit:
        raise table.error("start", f"the run ends at its limit of {duration_text(limit)}")
    return start
