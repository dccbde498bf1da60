"""Results of a run: metrics of each queue pair, of connections and of the whole run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ibwire.base.units import S, Time
from ibwire.rc.congestion import RateControl
from ibwire.rc.work import WCStatus
from ibwire.scenario.expect import METRICS, NETWORK, SPREAD, Expectation
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
    ideal: Time = 0
    """How long its messages would take in an idle network; 0 if that is not known."""
    rate: RateControl | None = None
    """Its congestion control, as the run has left it."""

    @property
    def metrics(self) -> Metrics:
        """Its metrics: NAKs, duplicates and lost messages are those that its requests met with."""
        metrics = dict.fromkeys((name for name in METRICS if name not in NETWORK | SPREAD), 0)
        counters, peer = self.counters, self.peer_counters
        for name in _OWN:
            metrics[name] = counters[name]
        for name in ("duplicates", "dropped_messages"):
            metrics[name] = peer[name]
        metrics["packets"] = counters["packets_sent"]
        metrics["cnps"] = counters["cnps_received"]
        metrics["rnr_waits"] = counters["rnr_naks_received"]
        metrics["naks.sequence"] = peer["sequence_naks_sent"]
        metrics["naks.rnr"] = peer["rnr_naks_sent"]
        metrics["naks.fatal"] = peer["fatal_naks_sent"]
        tally = self.tally
        if tally is not None:
            _take_tally(metrics, tally)
            metrics["goodput"] = goodput(metrics["verified_bytes"], metrics["time"])
        return metrics


@dataclass(frozen=True, slots=True, kw_only=True)
class PortOutcome:
    """What a port of a switch or host has done; lists are by priority."""

    node: str
    port: int
    peer: str
    """The node at the other end of its link."""
    rate_bps: int
    is_switch: bool
    sent: list[int]
    """Frames; of switches only, as are the next four."""
    sent_bytes: list[int]
    marked: list[int]
    largest_queue: list[int]
    """Bytes."""
    pauses_sent: list[int]
    pause_frames: int
    """Pause and PFC frames received."""
    time_paused: list[Time]
    """For how long the port was not allowed to send."""
    dropped: Mapping[str, int]
    """Frames by reason: those that arrived here, and those that waited here."""
    llr: Mapping[str, int]
    """Counters of link-level retry by their names (`ibwire.fabric.llr`); empty without it."""


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
    """`idle`: nothing was left to do; `until`, `frames`: the limit of time or frames came;
    `deadlock`: queues of switches wait for each other, and will for ever."""
    virtual_time: Time
    """Time of the last event."""
    qps: list[QPOutcome]
    metrics: Metrics = field(default_factory=dict)
    by_connection: dict[str, Metrics] = field(default_factory=dict)
    checks: list[Checked] = field(default_factory=list)
    hits: list[tuple[str, str, int]] = field(default_factory=list)
    """Wire and sender, rule, and number of frames it applied to."""
    ports: list[PortOutcome] = field(default_factory=list)
    """Ports of switches, and of hosts at switches."""
    standstill: list[str] = field(default_factory=list)
    """Which ports wait for which, where messages are unfinished: a sentence each."""
    unfinished_tcp: list[str] = field(default_factory=list)
    """A sentence for each TCP flow whose data is not all acknowledged."""

    @property
    def passed(self) -> bool:
        """Whether every expectation was met."""
        return all(check.passed for check in self.checks)


def total(qps: Iterable[QPOutcome]) -> Metrics:
    """The metrics of several queue pairs together: sums; time from the first post of any
    to the last completion of any."""
    qps = list(qps)
    summed: Counter[str] = Counter()
    first: Time | None = None
    last: Time = 0
    for qp in qps:
        summed.update(qp.metrics)
        tally = qp.tally
        if tally is not None and tally.started is not None:
            first = tally.started if first is None else min(first, tally.started)
            last = max(last, tally.ended)
    metrics = {name: summed[name] for name in METRICS if name not in NETWORK | SPREAD}
    metrics |= _spread(qps)
    metrics["time"] = 0 if first is None else max(last - first, 0)
    metrics["goodput"] = goodput(metrics["verified_bytes"], metrics["time"])
    return metrics


def goodput(size: int, time: Time) -> int:
    """Bits a second, rounded down."""
    return size * 8 * S // time if time else 0


def _spread(qps: Sequence[QPOutcome]) -> Metrics:
    """How equal queue pairs have done; those that have not finished count for nothing here."""
    times, slowdowns, rates = [], [], []
    for qp in qps:
        tally = qp.tally
        if tally is None or tally.started is None:
            continue
        time = tally.ended - tally.started
        rates.append(goodput(tally.verified_bytes, time))
        if tally.unfinished or tally.failed or not time:
            continue
        times.append(time)
        if qp.ideal:
            slowdowns.append(time * 1000 // qp.ideal)
    found = _percentiles("fct", times) | _percentiles("slowdown", slowdowns)
    found["rate.min"], found["rate.max"] = min(rates, default=0), max(rates, default=0)
    squares = len(rates) * sum(rate * rate for rate in rates)
    found["fairness"] = 1000 * sum(rates) ** 2 // squares if squares else 0
    return found


def _percentiles(name: str, values: Sequence[int]) -> Metrics:
    ordered = sorted(values)
    return {
        f"{name}.mean": sum(ordered) // len(ordered) if ordered else 0,
        f"{name}.p50": percentile(ordered, 50),
        f"{name}.p99": percentile(ordered, 99),
        f"{name}.max": ordered[-1] if ordered else 0,
    }


def percentile(ordered: Sequence[int], percent: int) -> int:
    """The smallest value that so many percent do not exceed; 0 of none."""
    if not ordered:
        return 0
    return ordered[-(-len(ordered) * percent // 100) - 1]


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
