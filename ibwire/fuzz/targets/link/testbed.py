"""What the testbeds of a device on a link share: the case under way, and what is reported."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Protocol

from ibwire.fuzz.case import Case, Step
from ibwire.fuzz.judge.findings import Finding
from ibwire.fuzz.minimise import Shows, minimise
from ibwire.fuzz.report import Report, RunState
from ibwire.fuzz.stepper import Stepper
from ibwire.fuzz.targets.link.device_link import DeviceLink
from ibwire.fuzz.targets.testbed import Testbed

FEW = 4
"""Up to this number less one the last steps of a case are tried alone first."""

TRIALS = 40
"""Cases that a device is given to make one shorter."""

MAXIMUM_EXAMINATIONS = 3
"""How often the same difference is examined, as long as nothing new is found."""

NEEDS_RESTART = "a case that ends it is made shorter with --restart COMMAND"

HEADERS = 100
"""Bytes around a payload at most: IPv6, UDP, BTH, AtomicETH, padding and ICRC are 95."""


class RecordingStepper(Stepper, Protocol):
    """A stepper that keeps the steps that it has made."""

    @property
    def steps(self) -> Sequence[Step]:
        """All steps so far."""
        ...


class LinkTestbed(Testbed):
    """A device on a link, whichever vocabulary it is attacked with."""

    def __init__(self, peer: DeviceLink) -> None:
        super().__init__()
        self._peer = peer
        self._stepper: RecordingStepper | None = None
        """Of the case that is carried out."""
        self._examined: Counter[str] = Counter()
        self._known = 0
        """How many findings `_new_findings` has returned."""

    @property
    def lost(self) -> str:
        """Why the device is abandoned; empty while it can be used."""
        return self._peer.lost

    @lost.setter
    def lost(self, reason: str) -> None:
        self._peer.lost = reason

    @property
    def sent(self) -> int:
        """Packets that the device was sent, for whatever reason."""
        return self._peer.sent

    def _new_findings(self, report: Report) -> Sequence[Finding]:
        """Those since the last call."""
        new = report.findings[self._known :]
        self._known += len(new)
        return new

    def _has_seen_enough(self, bucket: str) -> bool:
        """Whether a difference is not examined again; else it counts as examined."""
        if self._examined[bucket] >= MAXIMUM_EXAMINATIONS:
            return True
        self._examined[bucket] += 1
        return False

    def _case_under_way(self, state: RunState) -> Case | None:
        """The case that is carried out as far as it has come, if it has begun."""
        stepper = self._stepper
        if stepper is None or not stepper.steps:
            return None
        steps = tuple(stepper.steps)
        return Case(stepper.connection, steps, state.base, state.origin_of_next())

    def _shorter_on_device(self, state: RunState, case: Case, shows: Shows) -> Case:
        """A case made shorter on the device: mostly its last steps are enough."""

        def shorten(case: Case, shows: Shows) -> Case:
            search = partial(minimise, trials=TRIALS, is_over=state.search.is_over)
            return search(last_steps(case, shows), shows)

        return state.search.shorter(shorten, case, shows)


def last_steps(case: Case, shows: Shows) -> Case:
    """Only the last steps of a case, if they show the same."""
    ends = (case.with_steps(case.steps[-count:]) for count in range(1, FEW))
    return next(filter(shows, ends), case)
