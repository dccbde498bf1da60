"""The plots of a connection: panels above a shared time axis.

Each trace names its role; the page gives it the colour of that role in its theme.
"""

from __future__ import annotations

import base64
import gzip
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ibwire.connections.events import FlowEventKind
from ibwire.connections.pause import Interval
from ibwire.report.panels import Panels
from ibwire.report.series import Bins, Panel, PlottedEvent, Point, Role, Series, Spot, cause_of
from ibwire_layers.psn import MASK

ENDS = ("A", "B")
"""Names of the ends of a connection: A is the end seen first."""


class Mark(NamedTuple):
    """How points of one role are drawn."""

    label: str
    symbol: str
    size: int


MARKS: dict[Role | FlowEventKind, Mark] = {
    Role.ACK: Mark("ACK or NAK packet", "triangle-down", 6),
    Role.REQUEST: Mark("request", "circle", 5),
    Role.RESPONSE: Mark("READ or atomic response", "square", 5),
    Role.RETRANSMISSION: Mark("request, retransmitted", "diamond", 8),
    Role.RETRANSMITTED_RESPONSE: Mark("response, retransmitted", "diamond-tall", 9),
    FlowEventKind.LOST: Mark("lost (never seen here)", "x-thin-open", 11),
    FlowEventKind.NAK: Mark("NAK", "x", 11),
    FlowEventKind.RNR_NAK: Mark("RNR NAK", "hourglass", 11),
    FlowEventKind.ICRC_BAD: Mark("wrong ICRC", "star", 11),
    FlowEventKind.REORDERED: Mark("reordered", "triangle-left", 10),
    FlowEventKind.DUPLICATE: Mark("duplicate", "circle-open", 11),
    FlowEventKind.REPEATED: Mark("repeated", "circle-open-dot", 11),
    FlowEventKind.RETRY_EXCEEDED: Mark("retries exceeded", "octagon", 14),
    FlowEventKind.RESTART: Mark("PSNs restart", "star-triangle-up", 12),
}
"""Roles in drawing order: rare ones on top."""

FLATTENS = 64
"""Gap between PSNs that is never left out of a plot."""

UNITS = ((1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "µs"), (1, "ns"))

HEIGHTS = {"psn": 350, "latency": 170, "goodput": 150}
"""Pixels of the panels."""

LANE = 26
"""Pixels of a line of pauses."""


class Pause(NamedTuple):
    """Pauses of one sender and priority."""

    name: str
    """Short, beside the plot."""
    words: str
    intervals: Sequence[Interval]


class Words:
    """Hover texts, each stored once; a point holds its index."""

    def __init__(self) -> None:
        self._index: dict[str, int] = {}

    def index(self, text: str) -> int:
        """Index of a text, added when it is new."""
        return self._index.setdefault(text, len(self._index))

    def all(self) -> list[str]:
        """The texts by index."""
        return list(self._index)


def plotly_script() -> str:
    """The JavaScript library that draws the figures: base64 of its text, compressed by gzip."""
    library = files("ibwire.report").joinpath("plotly", "plotly-basic.min.js").read_bytes()
    return base64.b64encode(gzip.compress(library, mtime=0)).decode()


@dataclass(frozen=True, slots=True)
class TimeAxis:
    """Times since the first packet of a capture, in a unit that suits the figure."""

    start_ns: int
    unit_ns: int
    unit: str

    @staticmethod
    def of(start_ns: int, first_ns: int, last_ns: int) -> TimeAxis:
        """For a figure from a first to a last time."""
        span = last_ns - first_ns
        size, name = next((each for each in UNITS if span >= 2 * each[0]), UNITS[-1])
        return TimeAxis(start_ns, size, name)

    def at(self, time_ns: int) -> float:
        """A time on the axis."""
        return (time_ns - self.start_ns) / self.unit_ns


class Figure:
    """Draws one connection, panel by panel from the top."""

    def __init__(self, series: Series, start_ns: int, pauses: Iterable[Pause], words: Words):
        self._series = series
        self._words = words
        self._axis = TimeAxis.of(start_ns, series.first_ns, series.last_ns)
        self._traces: list[dict[str, Any]] = []
        self._layout: dict[str, Any] = {}
        self._panels = Panels()
        """Title, pixels and the options of the axis."""
        self._shown: set[str] = set()
        self._axis_of_end: dict[int, str] = {}
        for end in (0, 1):
            if _is_drawn(series, end):
                self._psns(end, series.panels[end])
        self._latencies()
        self._goodput()
        self._lanes(pauses)
        self._arrange()

    def to_json(self) -> dict[str, Any]:
        """The figure as JSON for plotly.js, arrays packed."""
        return {"data": self._traces, "layout": self._layout}

    def place(self, spot: Spot) -> tuple[float, str | None, int]:
        """Position of a packet: time, name of the vertical axis or `None`, and height."""
        axis = None if spot.end is None else self._axis_of_end.get(spot.end)
        return self._axis.at(spot.time_ns), axis, spot.value

    def _psns(self, end: int, panel: Panel) -> None:
        source, target = ENDS[end], ENDS[1 - end]
        title = f"PSN of requests {source} → {target}, and of the responses {target} → {source}"
        if panel.counts_from_first:
            title += " (relative to the first PSN, also after each restart)"
        elif panel.is_wrapped:
            title += " (counted beyond 2²⁴ - 1, where PSNs wrap around)"
        heights = _heights(panel, self._series.events, end)
        low, high = main_range(heights)
        far = int(((heights < low) | (heights > high)).sum())
        options: dict[str, Any] = {}
        if far:
            title += f"; {far:,} far away {'is' if far == 1 else 'are'} not shown: double-click"
            room = max((high - low) * 0.06, 2)
            options = {"range": [low - room, high + room]}
        elif high - low < 4:
            options = {"range": [low - 3, high + 3]}
        if high - low < 12:
            options["dtick"] = 1
        # Digits as needed: whole numbers only would repeat on a stretched axis.
        axis = self._panels.add(title, HEIGHTS["psn"], tickformat="~f", **options)
        self._axis_of_end[end] = axis
        events = [plotted for plotted in self._series.events if plotted.spot.end == end]
        retransmissions = sorted(
            (plotted for plotted in events if plotted.event.kind is FlowEventKind.RETRANSMISSION),
            key=lambda plotted: plotted.event.number,
        )
        for role, mark in MARKS.items():
            if isinstance(role, Role):
                points = panel.points[role].points()
                if role is Role.RETRANSMISSION:
                    points = [_with_cause(point, retransmissions) for point in points]
                self._scatter(axis, role, mark, points, psn=True)
            else:
                found = [plotted for plotted in events if plotted.event.kind is role]
                if len(found) > _MANY:
                    mark = mark._replace(size=mark.size * 2 // 3)
                if found:
                    self._events(axis, role, mark, found)

    def _events(
        self, axis: str, role: FlowEventKind, mark: Mark, events: Sequence[PlottedEvent]
    ) -> None:
        x: list[float] = []
        y: list[int | None] = []
        data: list[tuple[int, int]] = []
        texts: list[int] = []
        for plotted in events:
            heights = [plotted.spot.value]
            if role is FlowEventKind.LOST and plotted.last_value > plotted.spot.value:
                heights.append(plotted.last_value)
            for height in heights:
                x.append(self._axis.at(plotted.event.time_ns))
                y.append(height)
                data.append((plotted.event.number, height & MASK))
                texts.append(self._words.index(mark.label + _details(plotted)))
            if (
                role is FlowEventKind.LOST
            ):  # a line from the first to the last, and none to the next
                x.append(x[-1])
                y.append(None)
                data.append((0, 0))
                texts.append(texts[-1])
        self._trace(
            axis,
            role.value,
            mark,
            x=x,
            y=y,
            text=texts,
            customdata=data,
            mode="lines+markers" if role is FlowEventKind.LOST else "markers",
            hovertemplate=self._hover(psn=True),
        )

    def _scatter(
        self, axis: str, role: str, mark: Mark, points: Sequence[Point], psn: bool = False
    ) -> None:
        if not points:
            return
        numbers = np.array([point.number for point in points])
        heights = np.array([point.value for point in points])
        self._trace(
            axis,
            role,
            mark,
            x=np.array([self._axis.at(point.time_ns) for point in points]),
            y=heights if psn else heights / 1e9,
            text=[self._words.index(point.words) for point in points],
            customdata=np.stack([numbers, heights & MASK], axis=1) if psn else numbers[:, None],
            mode="markers",
            hovertemplate=self._hover(psn),
        )

    def _latencies(self) -> None:
        series = self._series
        if not any(part.count for part in (*series.latency, *series.slow)):
            return
        title = "Message latency: first packet to the response that completes it"
        parts = [[part[end].points() for part in (series.latency, series.slow)] for end in (0, 1)]
        values = [point.value for both in parts for points in both for point in points]
        # A latency of nothing, from a coarse clock, cannot stand on a logarithmic axis.
        floor = min((value for value in values if value), default=2) // 2 or 1
        ticks = _ticks([max(value, floor) for value in values])
        axis = self._panels.add(title, HEIGHTS["latency"], type="log", **ticks)
        for end, (plain, slow) in enumerate(parts):
            way = f"{ENDS[end]} → {ENDS[1 - end]}"
            mark = Mark(f"message {way}", "circle", 5)
            self._scatter(axis, _WAYS[end], mark, _at_least(floor, plain))
            mark = Mark(f"message {way}, partly retransmitted", "diamond-open", 8)
            self._scatter(axis, _WAYS[end], mark, _at_least(floor, slow))

    def _goodput(self) -> None:
        payload = self._series.payload
        if not any(part.bytes.any() for part in payload) or len(payload[0].bytes) < 3:
            return
        step = payload[0].step_ns
        size, unit = next(each for each in UNITS if step >= each[0])
        what = "completed messages" if self._series.by_messages else "packets, each once"
        title = f"Goodput: payload of {what}, per {step // size} {unit}"
        axis = self._panels.add(
            title, HEIGHTS["goodput"], tickformat="~s", ticksuffix="b/s", rangemode="tozero"
        )
        for end, role in enumerate(_WAYS):
            if payload[end].bytes.any():
                self._rates(axis, role, f"payload {ENDS[end]} → {ENDS[1 - end]}", payload[end])

    def _rates(self, axis: str, role: str, label: str, bins: Bins) -> None:
        starts = bins.first_ns + np.arange(len(bins.bytes) + 1) * bins.step_ns
        rates = bins.bytes * (8e9 / bins.step_ns)
        self._trace(
            axis,
            role,
            Mark(label, "circle", 1),
            x=[self._axis.at(time) for time in starts.tolist()],
            y=np.append(rates, rates[-1]),
            mode="lines",
            line={"shape": "hv", "width": 1.5},
            hovertemplate=f"%{{y}} from %{{x}} {self._axis.unit}",
        )

    def _lanes(self, pauses: Iterable[Pause]) -> None:
        series = self._series
        rows: list[tuple[str, str, Sequence[Point]]] = []
        for end in (0, 1):
            way = f"{ENDS[end]} → {ENDS[1 - end]}"
            rows.append((f"CE {way}", "ce", series.marked[end].points()))
            rows.append((f"CNP {way}", "cnp", series.cnps[end].points()))
        rows = [row for row in rows if row[2]]
        held = [(each, self._overlapping(each)) for each in pauses]
        held = [(each, spans) for each, spans in held if spans]
        if not rows and not held:
            return
        title = "Congestion: CE marks, CNPs" + (" and pauses of the link" if held else "")
        names = [name for name, _, _ in rows] + [each.name for each, _ in held]
        axis = self._panels.add(
            title,
            LANE * len(names) + 10,
            type="category",
            categoryarray=names[::-1],
            categoryorder="array",
            range=[-0.6, len(names) - 0.4],
            fixedrange=True,
        )
        for name, role, points in rows:
            self._trace(
                axis,
                role,
                Mark(name.split()[0], "line-ns-open", 14),
                x=[self._axis.at(point.time_ns) for point in points],
                y=[name] * len(points),
                text=[self._words.index(f"{name}: {point.words}") for point in points],
                customdata=[(point.number,) for point in points],
                mode="markers",
                hovertemplate=self._hover(psn=False),
            )
        for each, spans in held:
            self._pause(axis, each, spans)

    def _overlapping(self, pause: Pause) -> list[Interval]:
        first, last = self._series.first_ns, self._series.last_ns
        return [each for each in pause.intervals if each.start_ns <= last and first <= each.end_ns]

    def _pause(self, axis: str, pause: Pause, spans: Sequence[Interval]) -> None:
        x: list[float | None] = []
        for each in spans:
            x += [self._axis.at(each.start_ns), self._axis.at(each.end_ns), None]
        self._trace(
            axis,
            "pause",
            Mark("pause", "line-ns-open", 14),
            x=x,
            y=[pause.name] * len(x),
            text=[
                self._words.index(f"{pause.words}: {each.paused_ns / 1000:,.1f} µs")
                for each in spans
                for _ in range(3)
            ],
            customdata=[(each.number,) for each in spans for _ in range(3)],
            mode="lines+markers",
            line={"width": 8},
            hovertemplate=self._hover(psn=False),
        )

    def _hover(self, psn: bool) -> str:
        which = "<br>PSN %{customdata[1]}" if psn else ""
        packet = "<br>packet %{customdata[0]}"
        return f"<b>%{{text}}</b>{which}{packet}<br>%{{x}} {self._axis.unit}<extra></extra>"

    def _trace(self, axis: str, role: str, mark: Mark, **options: Any) -> None:
        """Add points or a line; each label is in the legend once."""
        trace = {
            "type": "scatter",
            "name": mark.label,
            "legendgroup": mark.label,
            "showlegend": mark.label not in self._shown,
            "marker": {"symbol": mark.symbol, "size": mark.size},
            "meta": {"role": role},
            "yaxis": axis,
            **options,
        }
        self._traces.append({name: _packed(value) for name, value in trace.items()})
        self._shown.add(mark.label)

    def _arrange(self) -> None:
        """Stack the panels above the time axis."""
        first, last = (
            self._axis.at(each) for each in (self._series.first_ns, self._series.last_ns)
        )
        margin = (last - first) * 0.02 or 0.5
        title = f"time since the first packet of the capture ({self._axis.unit})"
        self._layout = self._panels.layout(title, (first - margin, last + margin))


def _heights(panel: Panel, events: Sequence[PlottedEvent], end: int) -> npt.NDArray[np.int64]:
    """All heights in a panel."""
    found = [point.value for part in panel.points.values() for point in part.points()]
    for plotted in events:
        if plotted.spot.end == end and plotted.event.kind in MARKS:
            found += [plotted.spot.value, plotted.last_value]
    return np.array(found or [0], np.int64)


def _is_drawn(series: Series, end: int) -> bool:
    has_points = any(part.count for part in series.panels[end].points.values())
    return has_points or any(plotted.spot.end == end for plotted in series.events)


def _packed(value: Any) -> Any:
    """Arrays as plotly.js takes them in JSON: their bytes, and lists of pairs as they are."""
    if not isinstance(value, np.ndarray):
        return value
    if value.ndim != 1 or value.dtype.kind not in "if":
        return value.tolist()
    fits = value.dtype.kind == "i" and np.abs(value).max(initial=0) < 1 << 31
    packed = value.astype("<i4" if fits else "<f8")
    kind = "i4" if fits else "f8"
    return {"dtype": kind, "bdata": base64.b64encode(packed.tobytes()).decode()}


def main_range(heights: npt.NDArray[np.int64]) -> tuple[int, int]:
    """Lowest and highest of most values, without a few that would flatten the plot.

    As long as the largest gap between values is more than half of their span, the side of it
    that has at most a tenth of the values is left out.
    """
    kept = np.sort(heights)
    most = len(kept) - len(kept) // 10
    while len(kept) > 2:
        gaps = np.diff(kept)
        at = int(gaps.argmax())
        side = kept[at + 1 :] if at + 1 < len(kept) / 2 else kept[: at + 1]
        if gaps[at] <= FLATTENS or 2 * gaps[at] <= kept[-1] - kept[0] or len(side) < most:
            break
        kept = side
    return int(kept[0]), int(kept[-1])


def _ticks(values: Sequence[int]) -> dict[str, Any]:
    """Round times for a logarithmic axis of values in nanoseconds."""
    low, high = min(values), max(values)
    digits: tuple[int, ...] = (1, 2, 5) if high < 500 * low else (1,)
    if high < 10 * low:
        digits = (1, 2, 3, 4, 5, 6, 8)
    ticks = [digit * 10**power for power in range(20) for digit in digits]
    shown = [tick for tick in ticks if low <= 10 * tick and tick <= 10 * high]
    texts = []
    for tick in shown:
        size, unit = next(each for each in UNITS if tick >= each[0])
        texts.append(f"{tick // size:,} {unit}")
    return {"tickmode": "array", "tickvals": [tick / 1e9 for tick in shown], "ticktext": texts}


def _at_least(floor: int, points: Sequence[Point]) -> list[Point]:
    return [point._replace(value=max(point.value, floor)) for point in points]


def _with_cause(point: Point, retransmissions: Sequence[PlottedEvent]) -> Point:
    event = cause_of(retransmissions, point.number)
    why = _CAUSES.get(event.cause or "", "") if event else ""
    return point._replace(words=f"{point.words}, retransmitted{why}")


def _details(plotted: PlottedEvent) -> str:
    event = plotted.event
    if event.kind is FlowEventKind.LOST and event.count > 1:
        return f": {event.count:,} packets, PSN {event.psn} to {event.last_psn}"
    return ""


_CAUSES: Mapping[str, str] = {
    "nak": ": NAK",
    "rnr_nak": ": RNR NAK",
    "implied_nak": ": implied NAK",
    "read_gap": ": READ responses missing",
    "timeout": ": timeout",
    "ack_lost": ": ACK lost, or stale timer",
}

_WAYS = ("ab", "ba")

_MANY = 60
"""Number of events of a kind from which their marks are smaller."""
