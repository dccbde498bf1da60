"""Whether a device does what a right one would do with another attribute of its queue pair.

Where a limit is reached something else happens: a request completes or waits, a path changes, a
packet is refused. All of that has one cause.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from ibwire.fuzz.case import Case, Connection, Packet, Post, Step
from ibwire.fuzz.judge.comparison import Difference
from ibwire.fuzz.judge.effects import RETRY_COUNT, RNR_RETRY
from ibwire.fuzz.judge.variants import LONGEST, Trials, Variant
from ibwire.rc.plan import ANNEX_A19, PLANS
from ibwire.rc.work import WROpcode


def other_attribute(trials: Trials, *, is_of_length: bool) -> tuple[str, int | None] | None:
    """The attribute of which another value explains what a device does, and that value.

    The value is `None` if a much larger one explains it as well, so that it may have no limit.
    is_of_length: whether the case may be about the length of packets alone.
    """
    case = trials.case
    tried = [
        each
        for each in _others(case)
        if _may_explain(each, case, trials.difference) and (is_of_length or each[0] != "mtu")
    ]
    variants = [
        Variant(connection=_with(case, *each), is_tested=each[0] not in RETRIES) for each in tried
    ]
    found = trials.first_that_shows(variants)
    if found is None:
        return None
    name, value = tried[found]
    if name not in _LIMITS or value < getattr(case.connection, name):
        return name, value
    unlimited = Variant(connection=_with(case, name, _NO_LIMIT))
    is_any = trials.first_that_shows([unlimited]) is not None
    return name, None if is_any else value


def rule_of(name: str, case: Case) -> str:
    """The rule that says what an attribute does."""
    if name == "mtu":
        return _SEGMENTATION if _lets_send(case) else _LENGTH
    if name == "max_dest_rd_atomic" and _is_duplicate(case.steps[-1]):
        return SAVED
    return _RULES[name]


def _is_duplicate(step: Step) -> bool:
    """Whether a step is a request that was executed before."""
    return isinstance(step, Packet) and step.psn[0] == "expected" and step.psn[1] < 0


def group_of(name: str) -> str:
    """The group of findings that another value of an attribute explains."""
    return f"another {name}"


def group_of_long(case: Case, rule: str) -> tuple[str, ...]:
    """That of the attribute which a rule is about, for a case too long for other values of it."""
    if len(case.steps) <= LONGEST:
        return ()
    return tuple(group_of(name) for name, own in _RULES.items() if own == rule)


def _may_explain(other: tuple[str, int], case: Case, difference: Difference) -> bool:
    """Whether a limit is lower, or a device does something: silence may have another reason."""
    name, value = other
    is_lower: bool = value < getattr(case.connection, name)
    return is_lower or bool(difference.got)


def _others(case: Case) -> Iterator[tuple[str, int]]:
    """The next lower and higher value of each attribute that a case needs to be unusual."""
    for name, near in _NEAR.items():
        value: int = getattr(case.connection, name)
        is_used = name in _OF_ANY or (case.connection.is_reliable and _lets_send(case))
        if name == "max_rd_atomic" and _may_hold_places(case):
            continue
        if is_used and value != getattr(_USUAL, name):
            yield from ((name, other) for other in near(value))


def _lets_send(case: Case) -> bool:
    """Whether a case lets the device send requests."""
    return any(isinstance(step, Post) for step in case.steps)


def _may_hold_places(case: Case) -> bool:
    """Whether requests that do not count, or of another queue pair, may hold places of READs."""
    plans = [PLANS[WROpcode(each.opcode)] for each in case.steps if isinstance(each, Post)]
    return case.connection.pairs > 1 or any(each.operation in ANNEX_A19 for each in plans)


def _with(case: Case, name: str, value: int) -> Connection:
    changed: dict[str, Any] = {name: value}
    return replace(case.connection, **changed)


def _counts(value: int) -> list[int]:
    return [other for other in (value - 1, value + 1) if other >= 0]


def _mtus(value: int) -> list[int]:
    return [other for other in (value // 2, value * 2) if _SMALLEST_MTU <= other <= _LARGEST_MTU]


_USUAL = Connection()
"""Its values are not tried: seven retries may be fewer for a slower timer, or mean no limit."""

_SMALLEST_MTU, _LARGEST_MTU = 256, 4096

_NEAR: dict[str, Callable[[int], list[int]]] = {
    "mtu": _mtus,
    "max_dest_rd_atomic": _counts,
    "max_rd_atomic": _counts,
    "retry_cnt": _counts,
    "rnr_retry": _counts,
}
_LIMITS = ("max_dest_rd_atomic", "max_rd_atomic")
_NO_LIMIT = 16
"""More than any case reaches."""

_OF_ANY = ("mtu", "max_dest_rd_atomic")
"""Attributes that do not count for own requests alone."""

RETRIES = ("retry_cnt", "rnr_retry")
"""Attributes of which the other value is not said: retries are miscounted for many reasons."""

_TRANSPORT = "docs/reference/transport.md#"
_LENGTH = f"IBA 9.7.4.1; {_TRANSPORT}packet-length"
SAVED = f"IBA 9.7.5.1.5, 10.7.2; {_TRANSPORT}saved-resources"
_SEGMENTATION = f"IBA 9.7.2; {_TRANSPORT}segmentation"
_RULES = {
    "max_dest_rd_atomic": f"IBA 9.7.4.1.5; {_TRANSPORT}read-resources",
    "max_rd_atomic": f"IBA 9.7.3.1; {_TRANSPORT}read-limit",
    "retry_cnt": RETRY_COUNT,
    "rnr_retry": RNR_RETRY,
}
