"""A sweep as a table of at most 80 columns: one line for each combination of values.

Of each metric there is the mean over the seeds, with the standard deviation where they differ.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean, stdev
from textwrap import wrap
from typing import Any

from ibwire.scenario.expect import METRICS, Kind, unit_name
from ibwire.scenario.sweep import Row, Sweep, metric_columns, plain

WIDTH = 80
GAP = "  "

FIRST = (
    "goodput_bps",
    "time_ps",
    "drops.all",
    "retransmitted",
    "timeouts",
    "pauses",
    "marks",
    "slowdown.p99_permille",
    "queue.max_bytes",
)
"""Metrics that are shown before others if they differ between runs."""

LAST = frozenset({"verified", "verified_bytes", "success", "messages", "status.SUCCESS"})
"""Metrics that say little beside the others."""


def lines(rows: Sequence[Row], sweep: Sweep, columns: Sequence[str] = ()) -> list[str]:
    """The lines of the table, and below it errors and expectations that were not met.

    columns: metrics to show; by default those that differ, as many as fit.
    """
    groups = [_of_point(rows, values, sweep) for values in sweep.points()]
    table = [[name, *values] for name, values in _parameters(sweep)]
    table.append(["runs", *(f"{len(group):,}" for group in groups)])
    failed = [sum(not row["passed"] for row in group) for group in groups]
    if any(failed):
        table.append(["failed", *(f"{count:,}" if count else "-" for count in failed)])
    chosen = list(columns) or _most_telling(rows, sweep)
    has_deviation = False
    for name in chosen:
        cells = [_mean(name, group) for group in groups]
        column = [_title(name), *cells]
        if not columns and sum(map(_width, table)) + _width(column) > WIDTH + len(GAP):
            continue
        has_deviation |= any("±" in cell for cell in cells)
        table.append(column)
    found = [_line(table, number) for number in range(len(groups) + 1)]
    if has_deviation:
        found.append("± is the standard deviation over the seeds.")
    return found + _failures(rows, sweep)


def _parameters(sweep: Sweep) -> list[tuple[str, list[str]]]:
    points = list(sweep.points())
    short = [key.rpartition(".")[2] for key in sweep.keys]
    titles = [
        name if short.count(name) == 1 else key for key, name in zip(sweep.keys, short, strict=True)
    ]
    return [(name, [point[index] for point in points]) for index, name in enumerate(titles)]


def _of_point(rows: Sequence[Row], values: tuple[str, ...], sweep: Sweep) -> list[Row]:
    wanted = [str(plain(value)) for value in values]
    return [row for row in rows if [str(row[key]) for key in sweep.keys] == wanted]


def _most_telling(rows: Sequence[Row], sweep: Sweep) -> list[str]:
    """Metrics of the whole run that differ between rows, the usual ones first."""
    differing = [
        name
        for name in metric_columns(rows, sweep.keys)
        if name in _KINDS and len({row.get(name) for row in rows if row["error"] is None}) > 1
    ]
    if not differing:
        return [name for name in FIRST if any(name in row for row in rows)]
    rank = {name: number for number, name in enumerate(FIRST)}
    return sorted(differing, key=lambda name: (name in LAST, rank.get(name, len(rank))))


def _mean(name: str, rows: Sequence[Row]) -> str:
    values = [row[name] for row in rows if row.get(name) is not None]
    if not values:
        return "-"
    show, size = _SHOW.get(_kind(name), _number), fmean(values)
    text = show(size)
    deviation = stdev(values) if len(values) > 1 else 0.0
    return f"{text} ±{100 * deviation / size:.2g} %" if deviation and size else text


def _kind(name: str) -> Kind:
    """What the metric of a column counts, also of one that begins with a connection."""
    found = [column for column in _KINDS if name == column or name.endswith(f".{column}")]
    return _KINDS[max(found, key=len)] if found else Kind.COUNT


def _failures(rows: Sequence[Row], sweep: Sweep) -> list[str]:
    """What went wrong in how many runs, each with the first of them."""
    first: dict[str, tuple[Row, int]] = {}
    for row in rows:
        if row["passed"]:
            continue
        what = row["error"] or f"not met: {row['unmet']}"
        before = first.get(what)
        first[what] = (row, 1) if before is None else (before[0], before[1] + 1)
    found = []
    for what, (row, count) in list(first.items())[:MOST_FAILURES]:
        settings = [f"--set {key}={row[key]}" for key in sweep.keys]
        runs = "1 run" if count == 1 else f"{count:,} runs"
        found += wrap(f"{runs}: {what}", WIDTH, subsequent_indent=_INDENT)
        found.append(_INDENT + " ".join(["first:", *settings, f"--seed {row['seed']}"]))
    if len(first) > MOST_FAILURES:
        found.append(f"{len(first) - MOST_FAILURES:,} more kinds of failure are not shown")
    return found


def _line(table: Sequence[Sequence[str]], number: int) -> str:
    return GAP.join(column[number].rjust(_width(column) - len(GAP)) for column in table).rstrip()


def _width(column: Sequence[str]) -> int:
    return max(map(len, column)) + len(GAP)


def _title(name: str) -> str:
    for unit in ("_bps", "_ps", "_bytes", "_permille"):
        if name.endswith(unit) and name != f"verified{unit}":
            name = name.removesuffix(unit)
            break
    return name.removesuffix(".all").replace("_", " ")


def _scaled(units: Sequence[tuple[float, str]]) -> Callable[[float], str]:
    def show(value: float) -> str:
        size, name = next((each for each in units if value >= each[0]), units[-1])
        return f"{value / size:.4g} {name}"

    return show


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 or value == int(value) else f"{value:.3g}"


MOST_FAILURES = 5
_INDENT = " " * 4

_KINDS: dict[str, Kind] = {unit_name(name): kind for name, (kind, _) in METRICS.items()}
_SHOW: dict[Any, Callable[[float], str]] = {
    Kind.TIME: _scaled([(1e12, "s"), (1e9, "ms"), (1e6, "us"), (1e3, "ns"), (1, "ps")]),
    Kind.RATIO: lambda value: f"{value / 1000:.3g}",
    Kind.RATE: _scaled([(1e9, "Gb/s"), (1e6, "Mb/s"), (1e3, "kb/s"), (1, "b/s")]),
}
