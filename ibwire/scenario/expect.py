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
from fractions import Fraction
from typing import Any

from ibwire.base.errors import EncodeError
from ibwire.base.quantities import parse_duration, parse_rate
from ibwire.base.toml import Table, closest, hint, parse_size
from ibwire.rc.work import WCStatus


class Kind(Enum):
    """What a metric counts, and so how its values are written."""

    COUNT = "a number"
    TIME = "a time"
    RATE = "a rate"
    SIZE = "bytes"
    RATIO = "a ratio"
    """In thousandths."""


NEVER = (1 << 63) - 1
"""The time of what did not happen."""

DROP_REASONS = (
    "buffer full",
    "queue full",
    "no route",
    "link down",
    "watchdog",
    "malformed",
    "damaged",
)
"""Why a switch drops a frame."""

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
    "dropped_messages": (
        Kind.COUNT,
        "UC and UD messages that their receiver refused, as without a receive request",
    ),
    "ce_marked": (Kind.COUNT, "packets received with a congestion mark"),
    "cnps": (Kind.COUNT, "CNPs that senders received"),
    "time": (Kind.TIME, "from the first post to the last completion"),
    "goodput": (Kind.RATE, "verified bytes a second of that time"),
    "faults": (Kind.COUNT, "frames that a fault was for"),
    "too_long": (Kind.COUNT, "frames longer than the MTU of a wire"),
    "queue_drops": (Kind.COUNT, "frames that found the queue of a bridge full"),
    "bad_icrc": (Kind.COUNT, "frames that a device dropped for their ICRC"),
    "fct.mean": (Kind.TIME, "completion time of flows: mean"),
    "fct.p50": (Kind.TIME, "completion time of flows: median"),
    "fct.p99": (Kind.TIME, "completion time of flows: 99th percentile"),
    "fct.max": (Kind.TIME, "completion time of flows: longest"),
    "slowdown.mean": (Kind.RATIO, "completion time against an idle network: mean"),
    "slowdown.p50": (Kind.RATIO, "completion time against an idle network: median"),
    "slowdown.p99": (Kind.RATIO, "completion time against an idle network: 99th percentile"),
    "slowdown.max": (Kind.RATIO, "completion time against an idle network: longest"),
    "rate.min": (Kind.RATE, "goodput of the slowest queue pair"),
    "rate.max": (Kind.RATE, "goodput of the fastest queue pair"),
    "fairness": (Kind.RATIO, "Jain's index of the goodput of queue pairs: 1 is fair"),
    "marks": (Kind.COUNT, "frames that switches marked"),
    "cnps_sent": (Kind.COUNT, "CNPs that hosts sent"),
    "cnps_switched": (Kind.COUNT, "frames of the priority of CNPs that switches sent to hosts"),
    "pauses": (Kind.COUNT, "pauses that switches sent, without their repetitions"),
    "resumes": (Kind.COUNT, "frames that ended a pause"),
    "pause_frames": (Kind.COUNT, "pause and PFC frames that arrived"),
    "time_paused.sum": (Kind.TIME, "time for which priorities of ports were paused"),
    "time_paused.max": (Kind.TIME, "the same of the port and priority with the most"),
    "queue.max": (Kind.SIZE, "largest queue of a port and priority"),
    "queue.p50": (Kind.SIZE, "that queue over time: median"),
    "queue.p99": (Kind.SIZE, "that queue over time: 99th percentile"),
    "drops.all": (Kind.COUNT, "frames that switches dropped"),
    **{
        f"drops.{reason.replace(' ', '_')}": (Kind.COUNT, f"frames dropped: {reason}")
        for reason in DROP_REASONS
    },
    "stomped": (Kind.COUNT, "damaged frames that had passed a switch (cut-through)"),
    "first_ce": (Kind.TIME, "when a switch first marked a frame"),
    "first_pause": (Kind.TIME, "when a switch first sent a pause"),
    "early_pauses": (Kind.COUNT, "switches that sent a pause before they marked a frame"),
    "llr_replays": (Kind.COUNT, "times an end of a line repeated frames (LLR)"),
    "utilisation": (Kind.RATIO, "part of the time in which the busiest port of a switch sent"),
    "tcp.flows": (Kind.COUNT, "TCP connections"),
    "tcp.unfinished": (Kind.COUNT, "of them, those with unacknowledged data when the run ended"),
    "tcp.bytes": (Kind.COUNT, "bytes that TCP receivers got in order"),
    "tcp.segments": (Kind.COUNT, "TCP segments with data that were sent"),
    "tcp.retransmitted": (Kind.COUNT, "of them, repeated ones"),
    "tcp.timeouts": (Kind.COUNT, "retransmission timeouts of TCP"),
    "tcp.cuts": (Kind.COUNT, "times a TCP sender halved its window"),
    "tcp.marked": (Kind.COUNT, "TCP segments received with a congestion mark"),
    "tcp.dropped": (Kind.COUNT, "TCP segments that hosts dropped: damaged, or of no connection"),
    "tcp.wrong": (Kind.COUNT, "TCP segments with a wrong byte"),
    "tcp.time": (
        Kind.TIME,
        "from the first SYN to the last acknowledgement, or the end of the run",
    ),
    "tcp.goodput": (Kind.RATE, "bytes that TCP receivers got, a second of that time"),
    **{
        f"status.{status.name}": (Kind.COUNT, f"sends that completed with {status.name}")
        for status in WCStatus
    },
}
"""Everything that a run measures, in the order of reports."""

FABRIC = frozenset(
    name
    for name in METRICS
    if name.partition(".")[0] in {"time_paused", "queue", "drops"}
    or name in {"marks", "cnps_sent", "cnps_switched", "pauses", "resumes", "pause_frames"}
    or name in {"first_ce", "first_pause", "early_pauses", "llr_replays", "utilisation", "stomped"}
)
"""Metrics of switches."""

TCP = frozenset(name for name in METRICS if name.startswith("tcp."))
"""Metrics of TCP flows."""

NETWORK = FABRIC | TCP | {"faults", "too_long", "queue_drops", "bad_icrc"}
"""Metrics of the whole run only, which cannot be assigned to a queue pair."""

SPREAD = frozenset(
    name
    for name in METRICS
    if name.partition(".")[0] in {"fct", "slowdown", "rate"} or name == "fairness"
)
"""Metrics of several queue pairs together, which a single one does not have."""

SCOPED = frozenset(METRICS) - NETWORK
"""Metrics of a connection and of the whole run."""


def unit_name(metric: str) -> str:
    """The name of a metric with its unit, as in JSON and Parquet: `time_ps`, `goodput_bps`."""
    return metric + _UNITS.get(METRICS[metric][0], "")


def plain_value(metric: str, value: int) -> int | None:
    """The value of a metric as in JSON and Parquet: `None` for what never happened."""
    return None if METRICS[metric][0] is Kind.TIME and value == NEVER else value


_UNITS = {Kind.TIME: "_ps", Kind.RATE: "_bps", Kind.SIZE: "_bytes", Kind.RATIO: "_permille"}

_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}


@dataclass(frozen=True, slots=True)
class Share:
    """A part of another metric of the same run."""

    metric: str
    part: Fraction = Fraction(1)


@dataclass(frozen=True, slots=True)
class Expectation:
    """One metric and its required values."""

    metric: str
    conditions: tuple[tuple[str, int | Share], ...]
    """Comparison and value."""
    text: str
    """As written, with the metric."""

    def holds(self, metrics: Mapping[str, int]) -> bool:
        """Whether the metrics of a run are as expected."""
        return all(
            _COMPARISONS[comparison](
                Fraction(metrics[self.metric]),
                metrics[value.metric] * value.part if isinstance(value, Share) else value,
            )
            for comparison, value in self.conditions
        )


DEFAULTS = (
    Expectation("wrong", (("==", 0),), "wrong == 0"),
    Expectation("unfinished", (("==", 0),), "unfinished == 0"),
)
"""Expectations of every run without others."""

TCP_DEFAULTS = (
    Expectation("tcp.wrong", (("==", 0),), "tcp.wrong == 0"),
    Expectation("tcp.unfinished", (("==", 0),), "tcp.unfinished == 0"),
)
"""Expectations of every run with TCP flows."""

NONE_FAILED = Expectation("failed", (("==", 0),), "failed == 0")
"""Expectations where none concerns completions of sends."""


def says_how_sends_complete(expectations: Iterable[Expectation]) -> bool:
    """Whether any is about successes, failures or a status."""
    return any(
        each.metric in ("success", "failed") or each.metric.startswith("status.")
        for each in expectations
    )


def read_expectations(
    table: Table | None,
    known: frozenset[str] = frozenset(METRICS),
    besides: frozenset[str] = frozenset(),
    elsewhere: str = "is of the whole run, not of a connection",
) -> tuple[Expectation, ...]:
    """The expectations of a table; raises `ScriptError`.

    besides: keys of the table that are no metrics. elsewhere: the reason why one of `METRICS` that
    is not in `known` is refused.
    """
    if table is None:
        return ()
    found = []
    for path, name, value in table.leaves():
        if name in besides:
            continue
        if name not in known:
            reason = elsewhere if name in METRICS else "unknown" + _hint(name, known)
            raise table.error_at(path, reason, at_key=True)
        try:
            found.append(_expectation(name, value, known))
        except EncodeError as error:
            raise table.error_at(path, str(error).removeprefix(f"{error.field}: ")) from None
    return tuple(found)


def _hint(name: str, known: frozenset[str]) -> str:
    if name.startswith(_STATUS):
        return hint(name.removeprefix(_STATUS), [status.name for status in WCStatus])
    return hint(name, [each for each in known if not each.startswith(_STATUS)])


def _expectation(name: str, value: object, known: frozenset[str]) -> Expectation:
    kind = METRICS[name][0]
    conditions = []
    texts = []
    for part in str(value).split(" and ") if isinstance(value, str) else [value]:
        found = _CONDITION.fullmatch(part) if isinstance(part, str) else None
        comparison = (found and found["comparison"]) or "=="
        operand = found["value"] if found else part
        conditions.append((comparison, _operand(name, kind, operand, known)))
        texts.append(f"{comparison} {operand}")
    return Expectation(name, tuple(conditions), f"{name} {' and '.join(texts)}")


def _operand(name: str, kind: Kind, value: object, known: frozenset[str]) -> int | Share:
    if value == "all" and name in _UP_TO_ALL:
        return Share("messages")
    share = _SHARE.fullmatch(value) if isinstance(value, str) else None
    if share is not None and share["metric"] in METRICS:
        return _share(name, kind, share, known)
    near = share and closest(share["metric"], sorted(m for m in known if METRICS[m][0] is kind))
    if near:
        raise EncodeError(name, value, f"{kind.value} or a metric; did you mean {near}?")
    if kind is Kind.TIME:
        return parse_duration(value)
    if kind is Kind.RATE:
        return parse_rate(value)
    if kind is Kind.SIZE:
        return parse_size(value)
    if kind is Kind.RATIO:
        return _ratio(name, value)
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        value = int(value.replace("_", ""))
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise EncodeError(name, value, 'a number such as 3, or a comparison such as "<= 3"')
    return value


def _share(name: str, kind: Kind, found: re.Match[str], known: frozenset[str]) -> Share:
    """A part of another metric, of the same kind."""
    other = found["metric"]
    if METRICS[other][0] is not kind:
        raise EncodeError(name, other, f"{kind.value}; {other} is {METRICS[other][0].value}")
    if other not in known:
        raise EncodeError(name, other, "a metric of a connection, as this is")
    part = Fraction(found["percent"]) / 100 if found["percent"] else Fraction(1)
    return Share(other, part)


def _ratio(name: str, value: object) -> int:
    """Thousandths of a number."""
    text = str(value) if isinstance(value, str | int | float) else ""
    if isinstance(value, bool) or not _DECIMAL.fullmatch(text):
        raise EncodeError(name, value, 'a number such as 0.95, or a comparison such as ">= 0.95"')
    number = Fraction(text) * 1000
    if number.denominator != 1:
        raise EncodeError(name, value, "a number with three digits after the point at most")
    return int(number)


_STATUS = "status."
_UP_TO_ALL = frozenset({"success", "verified", "failed", "flushed", "lost", "status.SUCCESS"})
_CONDITION = re.compile(r"\s*(?P<comparison>==|!=|<=|>=|<|>)?\s*(?P<value>.*?)\s*")
_NUMBER = re.compile(r"[0-9][0-9_]{0,20}", re.ASCII)
_DECIMAL = re.compile(r"\d{1,12}(?:\.\d{1,6})?", re.ASCII)
_SHARE = re.compile(
    r"(?:(?P<percent>\d{1,6}(?:\.\d{1,6})?)% of )?(?P<metric>[a-z][\w.]*)", re.ASCII
)
"""`cnps_sent`, or `98% of cnps_sent`."""
