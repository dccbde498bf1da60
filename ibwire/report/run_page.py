"""A run as one HTML page: its expectations, time lines, completion times, and hot links.

No data of a run becomes markup: the script of the page inserts it as text.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from typing import Any

from ibwire.base.units import MS, NS, US, S
from ibwire.report.amounts import metric_text
from ibwire.report.html import filled
from ibwire.report.run_directory import Columns, RunDirectory
from ibwire.report.run_figures import distribution, time_figure
from ibwire.scenario.expect import METRICS

MOST_FLOWS = 200
MOST_LINKS = 60
MOST_NODES = 400
"""Nodes of a network that is drawn."""


def run_page(run: RunDirectory) -> Iterator[str]:
    """The page, in pieces of text."""
    return filled("run", content(run))


def content(run: RunDirectory) -> dict[str, Any]:
    """The data of the page."""
    summary, tables = run.summary, run.tables
    end = busy_until(summary, tables)
    links = _links(summary, tables, end)
    flows = _flows(tables["flows"])
    fcts = tables["flows"]["fct_ps"]
    return {
        "title": os.path.basename(os.path.normpath(run.path)),
        "version": version("ibwire"),
        "passed": summary["passed"],
        "description": summary["description"].partition("\n")[0],
        "facts": _facts(summary, end),
        "tiles": _tiles(summary, tables),
        "expectations": [
            {**each, "expected": each["expected"], "actual": _shown(each)}
            for each in summary["expectations"]
        ],
        "notes": _notes(summary, tables),
        "times": time_figure(tables, end),
        "fct": distribution("Flow completion times", fcts, duration),
        "slowdown": distribution(
            "Slowdown", tables["flows"]["slowdown"], lambda value: f"{value:.4g}"
        ),
        "flows": flows[:MOST_FLOWS],
        "all_flows": len(flows),
        "links": links[:MOST_LINKS],
        "all_links": len(links),
        "topology": _drawn(summary, links),
    }


def busy_until(summary: Mapping[str, Any], tables: Mapping[str, Columns]) -> int:
    """When the last flow was complete and the last queue empty; else the end of the run."""
    flows = tables["flows"]
    if not flows["status"] or set(flows["status"]) != {"complete"}:
        return max(int(summary["virtual_time_ps"]), 1)
    ends: list[int] = [
        start + fct
        for start, fct in zip(flows["start_ps"], flows["fct_ps"], strict=True)
        if fct is not None
    ]
    ends += tables["pauses"]["end_ps"] + tables["drops"]["time_ps"]
    queues = tables["queues"]
    ends += [time for time, size in zip(queues["time_ps"], queues["bytes"], strict=True) if size]
    return max(*ends, 1)


def duration(ps: float) -> str:
    """A time in its unit."""
    for size, name in ((S, "s"), (MS, "ms"), (US, "µs"), (NS, "ns")):
        if ps >= size:
            return f"{ps / size:.4g} {name}"
    return f"{ps:.4g} ps"


def _rate(bps: float) -> str:
    for size, name in ((1e9, "Gb/s"), (1e6, "Mb/s"), (1e3, "kb/s")):
        if bps >= size:
            return f"{bps / size:.4g} {name}"
    return f"{bps:.4g} b/s"


def _size(value: float) -> str:
    for size, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if value >= size:
            return f"{value / size:.4g} {name}"
    return f"{value:.4g} B"


def _facts(summary: Mapping[str, Any], end: int) -> list[tuple[str, str]]:
    ended = {"idle": "when nothing was left to do", "until": "at its limit of time"}
    return [
        ("Scenario", os.path.basename(summary["scenario"])),
        ("Seed", str(summary["seed"])),
        ("Ended", ended.get(summary["ended"], f"at a limit ({summary['ended']})")),
        ("Virtual time", duration(summary["virtual_time_ps"])),
        ("Traffic until", duration(end)),
        ("Samples", f"every {duration(summary['interval_ps'])}"),
    ]


def _tiles(summary: Mapping[str, Any], tables: Mapping[str, Columns]) -> list[tuple[str, str, str]]:
    """Totals: name, value, and role of the colour."""
    metrics, flows = summary["metrics"], tables["flows"]
    done = flows["status"].count("complete")
    peak = max(tables["queues"]["bytes"], default=0)
    return [
        ("flows complete", f"{done:,} of {len(flows['status']):,}", "request"),
        ("goodput", _rate(metrics["goodput_bps"]), "request"),
        ("largest queue sampled", _size(peak), "series-1"),
        ("pauses", f"{len(tables['pauses']['node']) + summary['pauses_left_out']:,}", "pause"),
        ("CE marks received", f"{metrics['ce_marked']:,}", "ce"),
        ("CNPs received", f"{sum(flows['cnps']):,}", "cnp"),
        ("dropped by switches", f"{sum(tables['drops']['frames']):,}", "lost"),
        ("retransmitted", f"{metrics['retransmitted']:,}", "retransmission"),
        ("sequence NAKs", f"{metrics['naks.sequence']:,}", "nak"),
        ("timeouts", f"{metrics['timeouts']:,}", "retry_exceeded"),
    ]


def _shown(check: Mapping[str, Any]) -> str:
    metric, value = check["expected"].partition(" ")[0], check["actual"]
    if value is None:
        return "never"
    return metric_text(metric, value) if metric in METRICS else f"{value:,}"


def _notes(summary: Mapping[str, Any], tables: Mapping[str, Columns]) -> list[str]:
    notes = []
    if summary["pauses_left_out"]:
        notes.append(f"{summary['pauses_left_out']:,} more pauses are not in the tables.")
    flows = len(tables["flows"]["status"])
    if flows > MOST_FLOWS:
        notes.append(f"The table has the {MOST_FLOWS} slowest of {flows:,} flows.")
    return notes


def _flows(table: Columns) -> list[dict[str, Any]]:
    """Flows, the slowest first; those that are not complete before all."""
    names = (
        *("connection", "index", "source", "target", "status", "bytes", "start_ps"),
        *("fct_ps", "slowdown", "goodput_bps", "retransmitted", "cnps"),
    )
    rows = [
        dict(zip(names, values, strict=True))
        for values in zip(*(table[name] for name in names), strict=True)
    ]
    rows.sort(
        key=lambda row: (
            row["status"] == "complete",
            -(row["slowdown"] or 0),
            -(row["fct_ps"] or 0),
        )
    )
    return [
        {
            **row,
            "start": "–" if row["start_ps"] is None else duration(row["start_ps"]),
            "fct": "–" if row["fct_ps"] is None else duration(row["fct_ps"]),
            "slowdown": "–" if row["slowdown"] is None else f"{row['slowdown']:.3g}",
            "goodput": "–" if row["goodput_bps"] is None else _rate(row["goodput_bps"]),
        }
        for row in rows
    ]


def _links(
    summary: Mapping[str, Any], tables: Mapping[str, Columns], end: int
) -> list[dict[str, Any]]:
    """Each direction of a link with its load and the time it was paused; the hottest first.

    end: of the time that counts.
    """
    sent: Counter[tuple[str, str]] = Counter()
    loads = tables["loads"]
    for node, neighbour, size in zip(
        loads["node"], loads["neighbour"], loads["bytes"], strict=True
    ):
        sent[node, neighbour] += size
    paused: dict[tuple[str, str], dict[int, int]] = defaultdict(lambda: defaultdict(int))
    pauses = tables["pauses"]
    for node, neighbour, lane, start, stop in zip(
        *(pauses[name] for name in ("node", "neighbour", "priority", "start_ps", "end_ps")),
        strict=True,
    ):
        paused[node, neighbour][lane] += stop - start
    parallel = Counter(
        way for link in summary["links"] for way in ((link["a"], link["b"]), (link["b"], link["a"]))
    )
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for link in summary["links"]:
        for way in ((link["a"], link["b"]), (link["b"], link["a"])):
            capacity = link["rate_bps"] * parallel[way] * end / (8 * S)
            held = max(paused[way].values(), default=0)
            found[way] = {
                "from": way[0],
                "to": way[1],
                "rate": _rate(link["rate_bps"]),
                "bytes": sent[way],
                "load": min(sent[way] / capacity, 1.0),
                "held": held / end,
                "paused": duration(held) if held else "–",
            }
    return sorted(found.values(), key=lambda each: (-each["load"], each["from"], each["to"]))


def _drawn(summary: Mapping[str, Any], links: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Places of nodes in layers, hosts below; `None` for a network too large to draw."""
    kinds = {node["name"]: node["kind"] for node in summary["nodes"]}
    if not 2 <= len(kinds) <= MOST_NODES:
        return None
    neighbours: dict[str, list[str]] = {name: [] for name in kinds}
    for link in summary["links"]:
        neighbours[link["a"]].append(link["b"])
        neighbours[link["b"]].append(link["a"])
    layer = dict.fromkeys((name for name, kind in kinds.items() if kind == "host"), 0)
    queue = deque(layer)
    while queue:
        name = queue.popleft()
        for other in neighbours[name]:
            if other not in layer:
                layer[other] = layer[name] + 1
                queue.append(other)
    rows: dict[int, list[str]] = defaultdict(list)
    for name in kinds:
        rows[layer.get(name, 0)].append(name)
    places: dict[str, tuple[float, int]] = {}
    for level in sorted(rows):
        names = rows[level]
        if level:  # above those that are linked below
            names.sort(key=lambda name: _mean(places, neighbours[name]))
        for number, name in enumerate(names):
            places[name] = ((number + 0.5) / len(names), level)
    hottest = {(each["from"], each["to"]): each for each in links}
    return {
        "nodes": [
            {"name": name, "kind": kinds[name], "x": x, "level": level, "row": len(rows[level])}
            for name, (x, level) in places.items()
        ],
        "levels": max(rows) + 1,
        "links": [
            {
                "a": link["a"],
                "b": link["b"],
                "there": hottest[link["a"], link["b"]]["load"],
                "back": hottest[link["b"], link["a"]]["load"],
                "held": max(
                    hottest[link["a"], link["b"]]["held"], hottest[link["b"], link["a"]]["held"]
                ),
            }
            for link in summary["links"]
        ],
    }


def _mean(places: Mapping[str, tuple[float, int]], names: Sequence[str]) -> float:
    known = [places[name][0] for name in names if name in places]
    return sum(known) / len(known) if known else 0.5
