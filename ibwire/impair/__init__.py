"""Impairments of frames on a link, each a `Stage`, and fault plans made of them.

A `Pick` selects frames, a stage acts on them, and `build_pipe` makes stages from the rules
of a plan.
"""

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
