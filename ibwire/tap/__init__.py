"""Applies a fault plan to frames between two interfaces, or from capture to capture."""

from ibwire.tap.captures import FileTap
from ibwire.tap.live import LiveTap
from ibwire.tap.plan import Event, Plan, load_plan, read_plan, shipped
from ibwire.tap.record import TapRecord

__all__ = [
    "Event",
    "FileTap",
    "LiveTap",
    "Plan",
    "TapRecord",
    "load_plan",
    "read_plan",
    "shipped",
]
