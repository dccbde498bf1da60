"""Whether a device does what a right one would do with another limit of retransmissions.

Where the limit is reached something else happens: a request completes, a path changes, what waits
is dropped. All of that has one cause.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from ibwire.fuzz.case import Case, Connection, Post
from ibwire.fuzz.judge.comparison import Difference
from ibwire.fuzz.judge.effects import RETRY_COUNT, RNR_RETRY
from ibwire.fuzz.judge.variants import LONGEST, first_that_shows, received
from ibwire.rc.profile import Profile

RULES = {"retry_cnt": RETRY_COUNT, "rnr_retry": RNR_RETRY}
"""The rule of each limit."""


def miscounted_retries(case: Case, difference: Difference, profile: Profile) -> str:
    """The limit, of those in `RULES`, of which another value explains what a device does.

    Empty if none does.
    """
    if not _may_be_tried(case):
        return ""
    tried = [each for each in _other_limits(case) if _may_explain(each, case, difference)]
    variants = [(replace(case, connection=connection), received) for _, connection in tried]
    found = first_that_shows(case, difference, profile, variants)
    return "" if found is None else tried[found][0]


def _may_explain(other: tuple[str, Connection], case: Case, difference: Difference) -> bool:
    """Whether a limit is lower, or a device does something: silence may have another reason."""
    name, connection = other
    is_lower: bool = getattr(connection, name) < getattr(case.connection, name)
    return is_lower or bool(difference.got)


def count_of_trials(case: Case) -> int:
    """How many references are tried at most on a case."""
    others = len(list(_other_limits(case))) if _may_be_tried(case) else 0
    return 1 + others if others else 0


def _may_be_tried(case: Case) -> bool:
    """Whether a short case lets the device send requests."""
    is_short = len(case.steps) <= LONGEST and case.connection.is_reliable
    return is_short and any(isinstance(step, Post) for step in case.steps)


def _other_limits(case: Case) -> Iterator[tuple[str, Connection]]:
    """The connection with one fewer or one more, where a minimised case needs its limit."""
    connection = case.connection
    for name in RULES:
        limit: int = getattr(connection, name)
        if limit == _HIGHEST:
            continue  # which is usual: seven may be fewer because a timer is slower
        for other in (limit - 1, limit + 1):
            if other >= 0:
                changed: dict[str, Any] = {name: other}
                yield name, replace(connection, **changed)


_HIGHEST = 7
"""Of three bits: for an RNR NAK it means without limit, which this is not about."""
