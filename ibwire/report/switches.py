"""What switches did in a run, as text: pauses, marks, queues and drops, and how flows fared."""

from __future__ import annotations

from collections.abc import Iterator

from ibwire.report.amounts import count_text, metric_text, time_text
from ibwire.report.text_table import columns_in_words
from ibwire.scenario import Outcome
from ibwire.scenario.outcome import PortOutcome

MOST_PORTS = 8
"""Ports with a row of their own, and flows with a line."""


def switch_lines(outcome: Outcome, width: int | None) -> Iterator[str]:
    """The lines of a run about its switches."""
    metrics = outcome.metrics

    def text(name: str) -> str:
        return metric_text(name, metrics[name])

    if metrics["fct.max"]:
        times = ", ".join(f"{part} {text(f'fct.{part}')}" for part in ("p50", "p99", "max"))
        yield f"completion: {times}"
    if metrics["slowdown.max"]:
        parts = ", ".join(f"{part} {text(f'slowdown.{part}')}" for part in ("p50", "p99", "max"))
        yield f"slowdown: {parts}"
    busiest = f"busiest port: {metrics['utilisation'] / 10:.1f} %"
    if any(qp.tally is not None for qp in outcome.qps):
        rates = f"goodput from {text('rate.min')} to {text('rate.max')}"
        busiest = f"fairness: {text('fairness')}; {rates}; {busiest}"
    yield busiest
    yield f"first mark: {text('first_ce')}; first pause: {text('first_pause')}"
    drops = [
        f"{name.removeprefix('drops.').replace('_', ' ')} {count_text(metrics[name])}"
        for name in metrics
        if name.startswith("drops.") and name != "drops.all" and metrics[name]
    ]
    yield f"frames dropped by switches: {', '.join(drops) or 'none'}"
    yield from _ports(outcome, width)
    yield from outcome.standstill[:MOST_PORTS]
    if len(outcome.standstill) > MOST_PORTS:
        yield f"and {len(outcome.standstill) - MOST_PORTS} more wait"


def tcp_lines(outcome: Outcome) -> Iterator[str]:
    """What the TCP flows of a run did."""
    metrics = outcome.metrics
    flows = metrics["tcp.flows"]
    events = [
        f"{count_text(metrics[f'tcp.{name}'])} {words}"
        for name, words in (
            ("retransmitted", f"segment{'s'[: metrics['tcp.retransmitted'] != 1]} repeated"),
            ("timeouts", f"timeout{'s'[: metrics['tcp.timeouts'] != 1]}"),
            ("cuts", f"window{'s'[: metrics['tcp.cuts'] != 1]} halved"),
        )
    ]
    if metrics["tcp.dropped"]:
        events.append(f"{count_text(metrics['tcp.dropped'])} dropped by hosts")
    yield (
        f"tcp: {flows} flow{'s'[: flows != 1]}, {count_text(metrics['tcp.bytes'])} bytes in "
        f"{metric_text('tcp.time', metrics['tcp.time'])}, "
        f"{metric_text('tcp.goodput', metrics['tcp.goodput'])}; {', '.join(events)}"
    )
    yield from outcome.unfinished_tcp[:MOST_PORTS]
    if len(outcome.unfinished_tcp) > MOST_PORTS:
        yield f"and {len(outcome.unfinished_tcp) - MOST_PORTS} more are unfinished"


def _ports(outcome: Outcome, width: int | None) -> Iterator[str]:
    """The ports where most happened, as a table."""
    largest = outcome.metrics["queue.max"]
    shown = sorted(
        (
            port
            for port in outcome.ports
            if any(_events(port)) or (largest and max(port.largest_queue) == largest)
        ),
        key=lambda port: (sum(port.dropped.values()), max(port.largest_queue), *_events(port)),
        reverse=True,
    )
    if not shown:
        return
    titles = ["frames\nsent", "marked", "largest\nqueue", "pauses\nsent", "paused\nfor", "drops"]
    rows = [
        (
            f"{port.node} to {port.peer}",
            [
                count_text(sum(port.sent)) if port.is_switch else "-",
                count_text(sum(port.marked)) if port.is_switch else "-",
                count_text(max(port.largest_queue)) if port.is_switch else "-",
                count_text(sum(port.pauses_sent)) if port.is_switch else "-",
                time_text(max(port.time_paused)),
                count_text(sum(port.dropped.values())) if port.is_switch else "-",
            ],
        )
        for port in shown[:MOST_PORTS]
    ]
    yield from columns_in_words(titles, rows, width)
    if len(shown) > MOST_PORTS:
        yield f"and {len(shown) - MOST_PORTS} other ports with marks, pauses or drops"


def _events(port: PortOutcome) -> tuple[int, ...]:
    """What makes a port worth a row."""
    return (
        sum(port.dropped.values()),
        sum(port.marked),
        sum(port.pauses_sent),
        max(port.time_paused),
    )
