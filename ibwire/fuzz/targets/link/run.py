"""What runs against devices on a link have in common, whatever of a device is attacked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NoReturn, Protocol

from ibwire.fuzz.campaign import Campaign, Maker, Stepper
from ibwire.fuzz.case import Case, CaseError, Connection, Step
from ibwire.fuzz.judge.findings import Finding
from ibwire.fuzz.minimise import Shows, minimise
from ibwire.fuzz.targets.link.peer import PeerBench
from ibwire.programs.endpoint import Interrupted

FEW = 4
"""Up to how many last steps less one are tried alone first."""

TRIALS = 40
"""Cases that a device is asked for to make one shorter."""

ENOUGH = 3
"""How often the same difference is looked at again, if nothing new comes of it."""

HEADERS = 100
"""Bytes around a payload at most: IPv6, UDP, BTH, AtomicETH, padding and ICRC are 95."""


class KeptStepper(Stepper, Protocol):
    """A stepper that knows what it has made."""

    @property
    def steps(self) -> Sequence[Step]:
        """All steps so far."""
        ...


class LinkCampaign(Campaign):
    """Cases against a device on a link.

    make: of steppers without anything that such a device cannot be sent. options: those of
    `Campaign`.
    """

    def __init__(self, place: PeerBench, make: Maker, **options: Any) -> None:
        super().__init__(not_made, make, **options)
        self._stepper: KeptStepper | None = None
        """Of the case that is carried out."""
        self._place = place
        self._looked_at: Counter[str] = Counter()
        self._told = 0
        """How many of the findings `_new_findings` has told of."""

    @property
    def lost(self) -> str:
        """Why the device is given up; empty as long as it is there."""
        return self._place.lost

    def _one_case(self, budget: int) -> Finding | None:
        try:
            return self._next_case(budget)
        except Interrupted as signal:
            raise KeyboardInterrupt from signal

    def _next_case(self, budget: int) -> Finding | None:
        """The next case, on a device that lives."""
        found = super()._one_case(budget)
        if found is not None:
            self._looked_at.clear()
        return found

    def _new_findings(self) -> Sequence[Finding]:
        """Those since it was asked last; one that was not there then is saved by now."""
        new = self.report.findings[self._told :]
        self._told += len(new)
        return new

    def _has_seen_enough(self, bucket: str) -> bool:
        """Whether a difference is not looked at again; it counts as looked at else."""
        if self._looked_at[bucket] >= ENOUGH:
            return True
        self._looked_at[bucket] += 1
        return False

    def _under_way(self) -> Case | None:
        """The case that is carried out as far as it has come, if it has begun."""
        stepper = self._stepper
        if stepper is None or not stepper.steps:
            return None
        origin = f"{self._origin}case {self.next_case}"
        return Case(stepper.connection, tuple(stepper.steps), self._name, origin)

    def _end_first(self, case: Case, shows: Shows) -> Case:
        """A case made shorter on the device: mostly the last steps do it."""
        return minimise(last_steps(case, shows), shows, TRIALS, is_over=self._is_late)


def last_steps(case: Case, shows: Shows) -> Case:
    """Only the last steps, if they show it as well."""
    ends = (case.with_steps(case.steps[-count:]) for count in range(1, FEW))
    return next(filter(shows, ends), case)


def not_made(connection: Connection) -> NoReturn:
    """No target is made for a case; raises `CaseError`."""
    raise CaseError("a device on a link is not made for a case")
