"""A case made as short and as plain as it can be while it still shows the same.

First steps go, in ever smaller groups (delta debugging), then what is odd about those that
are left. Cases are symbolic, so PSNs, lengths and checksums fit again after every cut.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, replace

from ibwire.fuzz.case import GOOD, Case, Connection, Packet, Step

MAXIMUM_TRIALS = 3000
"""Cases carried out for one finding."""

Shows = Callable[[Case], bool]
"""Whether a case still shows what it shall show."""


def minimise(case: Case, shows: Shows, trials: int = MAXIMUM_TRIALS) -> Case:
    """The shortest case that was found."""
    counted = _Counted(shows, trials)
    case = _fewer_steps(case, counted)
    while not counted.is_over:
        plainer = next((each for each in _plainer(case) if counted(each)), None)
        if plainer is None:
            break
        case = plainer
    return _fewer_steps(case, counted)


class _Counted:
    def __init__(self, shows: Shows, trials: int) -> None:
        self._shows = shows
        self._left = trials

    @property
    def is_over(self) -> bool:
        return self._left <= 0

    def __call__(self, case: Case) -> bool:
        self._left -= 1
        return self._left >= 0 and self._shows(case)


def _fewer_steps(case: Case, shows: _Counted) -> Case:
    size = max(len(case.steps) // 2, 1)
    while size and not shows.is_over:
        at = 0
        while at < len(case.steps):
            rest = case.with_steps(case.steps[:at] + case.steps[at + size :])
            if shows(rest):
                case = rest
            else:
                at += size
        size //= 2
    return case


def _plainer(case: Case) -> Iterator[Case]:
    """The case with one thing less that is odd."""
    usual = Connection()
    for entry in fields(Connection):
        value = getattr(usual, entry.name)
        if getattr(case.connection, entry.name) != value:
            changes: dict[str, int] = {entry.name: value}
            yield replace(case, connection=replace(case.connection, **changes))
    for number, step in enumerate(case.steps):
        for plainer in _plainer_step(step):
            yield case.with_steps([*case.steps[:number], plainer, *case.steps[number + 1 :]])


def _plainer_step(step: Step) -> Iterator[Step]:
    if not isinstance(step, Packet):
        return
    for name in step.fields:
        yield replace(step, fields={key: step.fields[key] for key in step.fields if key != name})
    if step.held:
        yield replace(step, held=False)
    if step.icrc != GOOD:
        yield replace(step, icrc=GOOD)
    if step.cut is not None:
        yield replace(step, cut=None)
    if step.pad is not None:
        yield replace(step, pad=None)
    if step.more:
        yield replace(step, more=0)
    if step.at:
        yield replace(step, at=0)
    if step.length:
        yield replace(step, length=0)
    if step.length > 8:
        yield replace(step, length=8)
