"""Results of a run: metrics of each queue pair, of connections and of the whole run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ibwire.base.units import S, Time
from ibwire.rc.work import WCStatus
from ibwire.scenario.expect import METRICS, NETWORK, Expectation
from ibwire.scenario.workload import Tally

Metrics = dict[str, int]
"""Every metric by name; times in picoseconds, rates in bits a second."""


@dataclass(frozen=True, slots=True)
class QPOutcome:
    """Results of one queue pair: its messages and its packets."""

    connection: str
    index: int
    """Of the connections of that name, from 0."""
    node: str
    qpn: int
    peer: str
    peer_qpn: int
    tally: Tally | None
    """`None` if nothing had to be sent from here."""
    counters: Mapping[str, int]
    """Counters of the queue pair itself: `QPCounters`."""
    peer_counters: Mapping[str, int]

    @property
    def metrics(self) -> Metrics:
        """Its metrics: NAKs, duplicates and lost messages are those that its requests met with."""
        metrics = dict.fromkeys((name for name in METRICS if name not in NETWORK), 0)
        counters, peer = self.counters, self.peer_counters
        for name in _OWN:
            metrics[name] = counters[name]
        for name in ("duplicates", "dropped_messages"):
            metrics[name] = peer[name]
        metrics["packets"] = counters["packets_sent"]
        metrics["rnr_waits"] = counters["rnr_naks_received"]
        metrics["naks.sequence"] = peer["sequence_naks_sent"]
        metrics["naks.rnr"] = peer["rnr_naks_sent"]
        metrics["naks.fatal"] = peer["fatal_naks_sent"]
        tally = self.tally
        if tally is not None:
            _take_tally(metrics, tally)
            metrics["goodput"] = goodput(metrics["verified_bytes"], metrics["time"])
        return metrics


@dataclass(frozen=True, slots=True)
class Checked:
    """An expectation and whether it was met."""

    expectation: Expectation
    connection: str | None
    """`None` for one of the whole run."""
    actual: int
    passed: bool


@dataclass(slots=True)
class Outcome:
    """A run that has ended."""

    scenario: str
    seed: int
    ended: str
    """`idle`: nothing was left to do; `until`, `frames`: the limit of time or frames came."""
    virtual_time: Time
    """Time of the last event."""
    qps: list[QPOutcome]
    metrics: Metrics = field(default_factory=dict)
    by_connection: dict[str, Metrics] = field(default_factory=dict)
    checks: list[Checked] = field(default_factory=list)
    hits: list[tuple[str, str, int]] = field(default_factory=list)
    """Wire and sender, rule, and number of frames it applied to."""

    @property
    def passed(self) -> bool:
        """Whether every expectation was met."""
        return all(check.passed for check in self.checks)


def total(qps: Iterable[QPOutcome]) -> Metrics:
    """The metrics of several queue pairs together: sums; time from the first post of any
    to the last completion of any."""
    summed: Counter[str] = Counter()
    first: Time | None = None
    last: Time = 0
    for qp in qps:
        summed.update(qp.metrics)
        tally = qp.tally
        if tally is not None and tally.started is not None:
            first = tally.started if first is None else min(first, tally.started)
            last = max(last, tally.ended)
    metrics = {name: summed[name] for name in METRICS if name not in NETWORK}
    metrics["time"] = 0 if first is None else max(last - first, 0)
    metrics["goodput"] = goodput(metrics["verified_bytes"], metrics["time"])
    return metrics


def goodput(size: int, time: Time) -> int:
    """Bits a second, rounded down."""
    return size * 8 * S // time if time else 0


def _take_tally(metrics: Metrics, tally: Tally) -> None:
    metrics["messages"] = tally.messages
    metrics["success"] = tally.success
    metrics["flushed"] = tally.statuses[WCStatus.WR_FLUSH_ERR]
    metrics["failed"] = tally.statuses.total() - metrics["success"] - metrics["flushed"]
    metrics["unfinished"] = tally.unfinished
    metrics["verified"] = tally.verified
    metrics["verified_bytes"] = tally.verified_bytes
    metrics["wrong"] = tally.wrong
    metrics["lost"] = max(tally.success - tally.verified - tally.wrong, 0)
    metrics["receive_errors"] = tally.receive_errors.total()
    if tally.started is not None:
        metrics["time"] = max(tally.ended - tally.started, 0)
    for status, count in tally.statuses.items():
        metrics[f"status.{status.name}"] = count


_OWN = (
    "retransmitted",
    "implied_naks",
    "timeouts",
    "credit_stalls",
    "ghost_acks",
    "unexpected_responses",
    "dropped",
    "ce_marked",
)
