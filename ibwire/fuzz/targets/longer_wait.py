"""Whether what a connection manager does not do in the last wait of a case comes later.

A wait may end before that. In a longer one a message that comes too late has its time, and one that
is sent too few times is missing at the end.
"""

from __future__ import annotations

from collections.abc import Callable

from ibwire.fuzz.case import MAXIMUM_TIME, Case, Wait
from ibwire.fuzz.judge.comparison import Difference, ExactComparison, Kind
from ibwire.fuzz.vocabulary.cm.timing import retransmission_of

LONGER = 32
"""How many times as long as all waits of its case the last one is made."""


def longer(case: Case) -> Case | None:
    """A case whose last step, a wait, is longer."""
    *before, last = case.steps
    if not isinstance(last, Wait) or last.time >= MAXIMUM_TIME:
        return None
    time = LONGER * sum(each.time for each in case.steps if isinstance(each, Wait))
    return case.with_steps([*before, Wait(min(time, MAXIMUM_TIME))])


def in_longer_wait(
    case: Case, difference: Difference, replay: Callable[[Case], Difference | None]
) -> tuple[Case, Difference] | None:
    """The case with a longer wait, and the difference there, if that says more about the same.

    replay: carries a case out on new devices.
    """
    found, other = retransmission_of(difference, case.steps), longer(case)
    if found is None or not found.is_less or other is None or difference.kind is Kind.TIME:
        return None
    again = replay(other)
    if again is None or again.step != difference.step:
        return None
    shown = retransmission_of(again, other.steps)
    if shown is None or not shown.is_less or shown.connections != found.connections:
        return None
    return other, again


def comes_later(case: Case, difference: Difference, comparison: ExactComparison) -> bool:
    """Whether the event that a device has not reported comes in a longer wait.

    comparison: of new devices.
    """
    other = longer(case)
    if other is None:
        return False
    *before, last = other.steps
    assert isinstance(last, Wait)
    for step in before:
        comparison.step(step)
    try:
        comparison.target.wait(last.time)
        reported = comparison.target.completions()
    except Exception:  # a device under test may raise anything
        return False
    return difference.expected[0] in reported
