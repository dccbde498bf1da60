"""Guidance by coverage: steps that meet something new are preferred, and kept for other states.

The cases on one pair of devices have a guide of their own. So what a case becomes depends only on
its number and on the cases before it on the same devices, whichever process carries them out.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Protocol, runtime_checkable

from ibwire.fuzz.case import Role, Step
from ibwire.fuzz.coverage import Cell
from ibwire.fuzz.stepper import Stepper

MAXIMUM_CORPUS = 512
"""Groups of steps that are kept for a role."""


class Guide:
    """What the cases on one pair of devices have met, and the steps that met it first."""

    def __init__(self) -> None:
        self.seen: set[Cell] = set()
        """Cells that were met."""
        self._corpus: dict[Role, list[Sequence[Step]]] = {}

    def forget(self) -> None:
        """Begin on new devices."""
        self.seen.clear()
        self._corpus.clear()

    def keep(self, role: Role, steps: Sequence[Step]) -> None:
        """Keep steps that meet something new."""
        corpus = self._corpus.setdefault(role, [])
        if len(corpus) < MAXIMUM_CORPUS:
            corpus.append(steps)

    def kept(self, role: Role, rng: Random) -> Sequence[Step]:
        """Some of what was kept; nothing if there is nothing."""
        corpus = self._corpus.get(role)
        return corpus[int(rng.random() * len(corpus))] if corpus else ()


@runtime_checkable
class Guided(Protocol):
    """A maker of cases that are guided by what those before have met."""

    guide: Guide

    def __call__(self, number: int) -> Stepper:
        """The stepper of the case with this number."""
        ...
