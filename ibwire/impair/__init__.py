"""Faults and other things that happen to frames on their way, each a `Stage`."""

from ibwire.impair.match import All, Burst, Chance, Match, Pick, always
from ibwire.impair.plan import PlanError, build_pipe
from ibwire.impair.stages import (
    Corrupt,
    Delay,
    Duplicate,
    Loss,
    MarkECN,
    Only,
    Region,
    Reorder,
    Repair,
    Rewrite,
)

__all__ = [
    "All",
    "Burst",
    "Chance",
    "Corrupt",
    "Delay",
    "Duplicate",
    "Loss",
    "MarkECN",
    "Match",
    "Only",
    "Pick",
    "PlanError",
    "Region",
    "Reorder",
    "Repair",
    "Rewrite",
    "always",
    "build_pipe",
]
