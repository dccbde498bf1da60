"""Expected results of a run: `retransmitted = "<= 3"`, `naks.sequence = 1`.

A key names a metric, the value is what it must be: a number, or a string with a
comparison, or several joined by "and". A value without a comparison must be met
exactly.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from ibwire.base.errors import EncodeError
from ibwire.base.quantities import parse_duration, parse_rate
from ibwire.base.toml import Table, hint
from ibwire.rc.work import WCStatus


class Kind(Enum):
    """What a metric counts, and so how its values are written."""

    COUNT = "a number"
    TIME = "a time"
    RATE = "a rate"


METRICS: dict[str, tuple[Kind, str]] = {
    "messages": (Kind.COUNT, "messages that were to be sent"),
    "success": (Kind.COUNT, "sends that completed well"),
    "failed": (Kind.COUNT, "sends that completed in error, but for those flushed"),
    "flushed": (Kind.COUNT, "sends that a failed connection flushed"),
    "unfinished": (Kind.COUNT, "messages under way or not posted when the run ended"),
    "verified": (Kind.COUNT, "messages of which every byte was compared and right"),
    "verified_bytes": (Kind.COUNT, "their bytes"),
    "wrong": (Kind.COUNT, "messages with a wrong byte, length or immediate"),
    "lost": (Kind.COUNT, "sends that completed well and never came (UC, UD)"),
    "receive_errors": (Kind.COUNT, "receives that completed in error, but for those flushed"),
    "packets": (Kind.COUNT, "packets sent, retransmissions and responses among them"),
    "retransmitted": (Kind.COUNT, "retransmitted request packets"),
    "duplicates": (Kind.COUNT, "request packets received again"),
    "naks.sequence": (Kind.COUNT, "NAKs sent: PSN sequence error"),
    "naks.rnr": (Kind.COUNT, "NAKs sent: receiver not ready"),
    "naks.fatal": (Kind.COUNT, "NAKs sent: invalid request, access or operational error"),
    "implied_naks": (Kind.COUNT, "answers of READs and atomics found to be lost"),
    "rnr_waits": (Kind.COUNT, "times a sender waited because the receiver was not ready"),
    "timeouts": (Kind.COUNT, "times no answer came"),
    "credit_stalls": (Kind.COUNT, "times a sender waited for credits"),
    "ghost_acks": (Kind.COUNT, "responses to what was acknowledged already"),
    "unexpected_responses": (Kind.COUNT, "responses to what was never sent"),
    "dropped": (Kind.COUNT, "packets that a queue pair dropped in silence"),
    "dropped_messages": (Kind.COUNT, "UC and UD messages without a receive or with a gap"),
    "ce_marked": (Kind.COUNT, "packets received with a congestion mark"),
    "time": (Kind.TIME, "from the first post to the last completion"),
    "goodput": (Kind.RATE, "verified bytes a second of that time"),
    "faults": (Kind.COUNT, "frames that a fault was for"),
    "too_long": (Kind.COUNT, "frames longer than the MTU of a wire"),
    "queue_drops": (Kind.COUNT, "frames that found the queue of a bridge full"),
    "bad_icrc": (Kind.COUNT, "frames that a device dropped for their ICRC"),
    **{
        f"status.{status.name}": (Kind.COUNT, f"sends that completed with {status.name}")
        for status in WCStatus
    },
}
"""Everything that a run measures, in the order of reports."""

NETWORK = frozenset({"faults", "too_long", "queue_drops", "bad_icrc"})
"""Metrics of the whole run only, which cannot be assigned to a queue pair."""

SCOPED = frozenset(METRICS) - NETWORK
"""Metrics of a connection and of the whole run."""


def unit_name(metric: str) -> str:
    """The name of a metric with its unit, as in JSON and Parquet: `time_ps`, `goodput_bps`."""
    return metric + _UNITS.get(METRICS[metric][0], "")


_UNITS = {Kind.TIME: "_ps", Kind.RATE: "_bps"}

_COMPARISONS: dict[str, Callable[[int, int], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}


@dataclass(frozen=True, slots=True)
class Expectation:
    """One metric and its required values."""

    metric: str
    conditions: tuple[tuple[str, int | None], ...]
    """Comparison and value; `None` stands for all messages."""
    text: str
    """As written, with the metric."""

    def holds(self, metrics: Mapping[str, int]) -> bool:
        """Whether the metrics of a run are as expected."""
        return all(
            _COMPARISONS[comparison](
                metrics[self.metric], metrics["messages"] if value is None else value
            )
            for comparison, value in self.conditions
        )


DEFAULTS = (
    Expectation("wrong", (("==", 0),), "wrong == 0"),
    Expectation("unfinished", (("==", 0),), "unfinished == 0"),
)
"""Expectations of every run without others."""

NONE_FAILED = Expectation("failed", (("==", 0),), "failed == 0")
"""Expectations where none concerns completions of sends."""


def says_how_sends_complete(expectations: Iterable[Expectation]) -> bool:
    """Whether any is about successes, failures or a status."""
    return any(
        each.metric in ("success", "failed") or each.metric.startswith("status.")
        for each in expectations
    )


def read_expectations(
    table: Table | None, known: frozenset[str] = frozenset(METRICS)
) -> tuple[Expectation, ...]:
    """The expectations of a table; raises `ScriptError`."""
    if table is None:
        return ()
    found = []
    for path, name, value in table.leaves():
        if name not in known:
            if name in METRICS:
                reason = "is of the whole run, not of a connection"
            else:
                reason = "unknown" + _hint(name, known)
            raise table.error_at(path, reason, at_key=True)
        try:
            found.append(_expectation(name, value))
        except EncodeError as error:
            raise table.error_at(path, str(error).removeprefix(f"{error.field}: ")) from None
    return tuple(found)


def _hint(name: str, known: frozenset[str]) -> str:
    if name.startswith(_STATUS):
        return hint(name.removeprefix(_STATUS), [status.name for status in WCStatus])
    return hint(name, [each for each in known if not each.startswith(_STATUS)])


def _expectation(name: str, value: object) -> Expectation:
    kind = METRICS[name][0]
    conditions = []
    texts = []
    for part in str(value).split(" and ") if isinstance(value, str) else [value]:
        found = _CONDITION.fullmatch(part) if isinstance(part, str) else None
        comparison = (found and found["comparison"]) or "=="
        operand = found["value"] if found else part
        conditions.append((comparison, _operand(name, kind, operand)))
        texts.append(f"{comparison} {operand}")
    return Expectation(name, tuple(conditions), f"{name} {' and '.join(texts)}")


def _operand(name: str, kind: Kind, value: object) -> int | None:
    if kind is Kind.TIME:
        return parse_duration(value)
    if kind is Kind.RATE:
        return parse_rate(value)
    if value == "all" and name in _UP_TO_ALL:
        return None
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        value = int(value.replace("_", ""))
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise EncodeError(name, value, 'a number such as 3, or a comparison such as "<= 3"')
    return value


_STATUS = "status."
_UP_TO_ALL = frozenset({"success", "verified", "failed", "flushed", "lost", "status.SUCCESS"})
_CONDITION = re.compile(r"\s*(?P<comparison>==|!=|<=|>=|<|>)?\s*(?P<value>.*?)\s*")
_NUMBER = re.compile(r"[0-9][0-9_]{0,20}", re.ASCII)
