"""The plots of a run: panels above a shared time axis, and distributions of completion times.

Each trace names its role; the page gives it the colour of that role in its theme.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from ibwire.report.figures import UNITS
from ibwire.report.panels import Panels
from ibwire.report.run_directory import Columns

SERIES = 8
"""Lines of one panel, each with a colour of its own."""

LANES = 12
"""Pausing ports and priorities that are shown."""

COLUMNS = 500
"""Most points of one line, about the width of a screen."""

MOST_SPANS = 1500
"""Most pauses that are drawn on one line."""

HEIGHT = 170
LANE = 24


class Line(NamedTuple):
    """Values over time, which stay as they are until the next one."""

    name: str
    times: Sequence[float]
    values: Sequence[float | None]


class TimeFigure:
    """Panels with a common time axis, in a unit that suits the run."""

    def __init__(self, end_ps: int) -> None:
        end_ns = max(end_ps / 1000, 1)
        self.unit_ns, self.unit = next((each for each in UNITS if end_ns >= 2 * each[0]), UNITS[-1])
        self._end = end_ns / self.unit_ns
        self._panels = Panels()
        self._traces: list[dict[str, Any]] = []
        self._roles: dict[str, int] = {}
        """Numbers of colours by name of a line, the same in all panels."""

    def at(self, time_ps: float) -> float:
        """A time on the axis."""
        return time_ps / 1000 / self.unit_ns

    def add_lines(self, title: str, lines: Sequence[Line], *, more: int = 0, **axis: Any) -> None:
        """A panel of lines; nothing without any. more: lines that are not shown."""
        if not lines:
            return
        if more:
            title += f"; {len(lines)} of {len(lines) + more}"
        name = self._panels.add(title, HEIGHT, **{"rangemode": "tozero", **axis})
        for line in lines:
            is_new = line.name not in self._roles
            number = self._roles.setdefault(line.name, len(self._roles))
            self._traces.append(
                {
                    "type": "scatter",
                    "mode": "lines",
                    "name": line.name,
                    "x": [round(self.at(time), 6) for time in line.times],
                    "y": list(line.values),
                    "line": {"shape": "hv", "width": 1.5},
                    "yaxis": name,
                    "legendgroup": line.name,
                    "showlegend": is_new,
                    "meta": {"role": f"series-{number % SERIES + 1}"},
                    "hovertemplate": f"<b>%{{fullData.name}}</b><br>%{{y}}<br>%{{x}} {self.unit}"
                    "<extra></extra>",
                }
            )

    def add_lanes(
        self, title: str, lanes: Mapping[str, Sequence[tuple[int, int]]], role: str
    ) -> None:
        """A panel of spans of time, a lane for each name."""
        if not lanes:
            return
        names = list(lanes)
        axis = self._panels.add(
            title,
            LANE * len(names) + 10,
            type="category",
            categoryarray=names[::-1],
            categoryorder="array",
            range=[-0.6, len(names) - 0.4],
            fixedrange=True,
        )
        for name, spans in lanes.items():
            x: list[float | None] = []
            for start, end in spans:
                x += [round(self.at(start), 6), round(self.at(end), 6), None]
            self._traces.append(
                {
                    "type": "scatter",
                    "mode": "lines",
                    "name": name,
                    "showlegend": False,
                    "x": x,
                    "y": [name] * len(x),
                    "line": {"width": 8},
                    "yaxis": axis,
                    "meta": {"role": role},
                    "hovertemplate": f"<b>%{{y}}</b><br>%{{x}} {self.unit}<extra></extra>",
                }
            )

    def to_json(self) -> dict[str, Any]:
        """The figure as JSON for plotly.js."""
        title = f"time since the start of the run ({self.unit})"
        layout = self._panels.layout(title, (-0.01 * self._end, 1.01 * self._end))
        return {"data": self._traces, "layout": layout}


def time_figure(tables: Mapping[str, Columns], end_ps: int) -> dict[str, Any] | None:
    """Queues, rates, alpha, loads, pauses and drops over time; `None` if there is nothing."""
    figure = TimeFigure(end_ps)
    for title, table, value, keys, axis in _PANELS:
        choose = _most_slowed if table == "rates" else _largest
        lines, more = choose(tables[table], keys, value, end_ps)
        figure.add_lines(title, lines, more=more, **axis)
    lanes, more = _pauses(tables["pauses"])
    title = "Pauses: which port could not send which priority"
    if more:
        title += f"; the longest {len(lanes)} of {len(lanes) + more}"
    figure.add_lanes(title, lanes, "pause")
    found = figure.to_json()
    return found if found["data"] else None


def distribution(
    title: str, values: Iterable[float | None], unit: Callable[[float], str]
) -> dict[str, Any] | None:
    """How many of the values are below which, as a figure; `None` with fewer than two."""
    known = sorted(each for each in values if each is not None and each > 0)
    if len(known) < 2:
        return None
    count = len(known)
    places = sorted({round(index * (count - 1) / COLUMNS) for index in range(COLUMNS + 1)})
    low, high = math.log10(known[0]), math.log10(known[-1])
    room = max((high - low) * 0.04, 0.02)
    ticks = _log_ticks(low - room, high + room)
    trace = {
        "type": "scatter",
        "mode": "lines",
        "name": title,
        "showlegend": False,
        "x": [known[place] for place in places],
        "y": [(place + 1) / count for place in places],
        "text": [unit(known[place]) for place in places],
        "line": {"shape": "hv", "width": 2},
        "meta": {"role": "series-1"},
        "hovertemplate": "%{y:.1%} take at most %{text}<extra></extra>",
    }
    layout = {
        "height": 260,
        "margin": {"l": 56, "r": 16, "t": 8, "b": 40},
        "hovermode": "closest",
        "annotations": [],
        "xaxis": {
            "type": "log",
            "range": [low - room, high + room],
            "tickmode": "array",
            "tickvals": ticks,
            "ticktext": [unit(each) for each in ticks],
            "zeroline": False,
        },
        "yaxis": {"range": [0, 1.03], "tickformat": ".0%", "zeroline": False},
    }
    return {"data": [trace], "layout": layout}


def _log_ticks(low: float, high: float) -> list[float]:
    """Round values for a logarithmic axis between two powers of ten, at most eight."""
    if high - low < 1:
        least, most = 10**low, 10**high
        step = 10.0 ** math.floor(math.log10((most - least) / 3))
        step = next(step * size for size in (1, 2, 5, 10) if (most - least) / (step * size) < 6)
        return [n * step for n in range(math.ceil(least / step), math.floor(most / step) + 1)]
    ticks = [
        digit * 10.0**power
        for power in range(math.floor(low), math.ceil(high) + 1)
        for digit in ((1, 2, 5) if high - low < 2.5 else (1,))
        if low <= math.log10(digit) + power <= high
    ]
    return ticks[:: -(-len(ticks) // _MOST_TICKS)]


def _largest(
    table: Columns, keys: Sequence[str], value: str, end_ps: int
) -> tuple[list[Line], int]:
    """The lines with the highest values, and how many others there are."""
    series = _series(table, keys, value, end_ps)
    peaks = {key: max(height for _, height in points) for key, points in series.items()}
    chosen = [key for key in sorted(peaks, key=lambda key: -peaks[key]) if peaks[key] > 0]
    return _lines(chosen, series, keys, end_ps)


def _most_slowed(
    table: Columns, keys: Sequence[str], value: str, end_ps: int
) -> tuple[list[Line], int]:
    """The same of the queue pairs whose rate fell most; none if no rate changed."""
    rates = _series(table, keys, "rate_bps", end_ps)
    series = _series(table, keys, value, end_ps)
    lowest = {key: min(rate for _, rate in points) for key, points in rates.items()}
    highest = {key: max(rate for _, rate in points) for key, points in rates.items()}
    chosen = sorted(
        (key for key in rates if lowest[key] < highest[key] and key in series),
        key=lambda key: lowest[key],
    )
    return _lines(chosen, series, keys, end_ps)


def _series(
    table: Columns, keys: Sequence[str], value: str, end_ps: int
) -> dict[Hashable, list[tuple[int, float]]]:
    series: dict[Hashable, list[tuple[int, float]]] = defaultdict(list)
    columns = [table[name] for name in keys]
    for time, height, *key in zip(table["time_ps"], table[value], *columns, strict=True):
        if height is not None and time <= end_ps:
            series[tuple(key)].append((time, height))
    return series


def _lines(
    chosen: Sequence[Hashable],
    series: Mapping[Hashable, list[tuple[int, float]]],
    keys: Sequence[str],
    end_ps: int,
) -> tuple[list[Line], int]:
    lines = [_line(key, keys, series[key], end_ps) for key in chosen[:SERIES]]
    return lines, len(chosen) - len(lines)


def _line(key: Any, keys: Sequence[str], points: Sequence[tuple[int, float]], end_ps: int) -> Line:
    points = list(_thinned(points, end_ps))
    if points[-1][0] < end_ps:
        points.append((end_ps, points[-1][1]))
    return Line(_name(keys, key), [time for time, _ in points], [value for _, value in points])


def _name(keys: Sequence[str], key: Sequence[Any]) -> str:
    found = dict(zip(keys, key, strict=True))
    if "connection" in found:
        return f"{found['connection']} {found['index']}"
    name = f"{found['node']} → {found['neighbour']}"
    return f"{name}, priority {found['priority']}" if "priority" in found else name


def _thinned(points: Sequence[tuple[int, float]], end_ps: int) -> Iterator[tuple[int, float]]:
    """The highest value of each column of the plot, and the last."""
    if len(points) <= COLUMNS:
        yield from points
        return
    width = max(end_ps // COLUMNS, 1)
    column, best = -1, points[0]
    for time, value in points:
        if time // width != column:
            if column >= 0:
                yield best
            column, best = time // width, (time, value)
        elif value > best[1]:
            best = (best[0], value)
    yield best
    yield points[-1]


def _pauses(table: Columns) -> tuple[dict[str, list[tuple[int, int]]], int]:
    """Spans by port and priority, the longest sum first, and how many others there are."""
    found: dict[str, list[tuple[int, int]]] = defaultdict(list)
    names = ("start_ps", "end_ps", "node", "neighbour", "priority")
    for start, end, node, neighbour, priority in zip(*(table[name] for name in names), strict=True):
        found[f"{node} → {neighbour} P{priority}"].append((start, end))
    longest = sorted(found, key=lambda name: -sum(end - start for start, end in found[name]))
    return {name: _joined(found[name]) for name in longest[:LANES]}, len(longest[LANES:])


def _joined(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The spans; where there are too many, those that follow each other closely are one."""
    spans = sorted(spans)
    if len(spans) <= MOST_SPANS:
        return spans
    gaps = sorted(after[0] - before[1] for before, after in pairwise(spans))
    least = gaps[-MOST_SPANS]
    joined = [spans[0]]
    for start, end in spans[1:]:
        if start - joined[-1][1] < least:
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((start, end))
    return joined


_PORT = ("node", "neighbour")
_QUEUE_PAIR = ("connection", "index")
_MOST_TICKS = 8

_PANELS: tuple[tuple[str, str, str, tuple[str, ...], dict[str, Any]], ...] = (
    (
        "Queues of switch ports, the longest",
        "queues",
        "bytes",
        (*_PORT, "priority"),
        {"tickformat": "~s", "ticksuffix": "B"},
    ),
    (
        "Rates of the queue pairs that slowed down most",
        "rates",
        "rate_bps",
        _QUEUE_PAIR,
        {"tickformat": "~s", "ticksuffix": "b/s"},
    ),
    ("alpha of the same: how much congestion they assume", "rates", "alpha", _QUEUE_PAIR, {}),
    ("Dropped frames", "drops", "frames", _PORT, {}),
)
"""Title, table, column, what makes a line, and options of the axis."""
