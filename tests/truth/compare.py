"""What a set says and what a run here gives, row by row with the tolerance of each.

Sets of one run give exact values; sets of several runs give a mean and a deviation, and are run
here with as many seeds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import mean, stdev
from typing import Any

from ibwire.base.units import NS, Time
from ibwire.fabric.switch.headroom import Chip, headroom
from truth.network import MODES, PACKET, PRIORITY, Flow, Run, WholeNanoseconds
from truth.paths import MARGINS, STRATEGIES, figures, own_figures


class UnknownKind(Exception):
    """A file with nothing that a run here can be compared to."""


@dataclass(frozen=True, slots=True)
class Row:
    """One value: what the other simulator says, what came out here, and how far it may be off."""

    name: str
    expected: float
    got: float
    tolerance: float

    @property
    def passed(self) -> bool:
        """Whether it is within the tolerance."""
        return abs(self.got - self.expected) <= self.tolerance


def rows_of(document: Mapping[str, Any], *, seeds: int | None = None) -> Iterator[Row]:
    """All rows of a file; raises `UnknownKind` for one of another kind.

    seeds: runs of a random set; by default as many as the other simulator made.
    """
    if "rows" in document and "params" in document:
        yield from headroom_rows(document)
        return
    if "flow_columns" in document:
        yield from tail_rows(document, seeds or 2)
        return
    if "matrix" in document and "runs" in document:
        yield from path_rows(document, seeds or 1)
        return
    if any("error" in each for each in document.get("sets", ())):
        yield from loss_rows(document, seeds)
        return
    known = False
    for number, each in enumerate(document.get("sets", ())):
        name = each.get("name") or f"set {number + 1}"
        config = each.get("setup", {}).get("config", {})
        if "links" not in each.get("setup", {}) or config.get("cc", 1) not in MODES:
            continue
        known = True
        found = stat_rows(each, seeds) if "stats" in each else exact_rows(each)
        for row in found:
            yield Row(f"{name}: {row.name}", row.expected, row.got, row.tolerance)
    if not known:
        raise UnknownKind("it has no set with links and flows, and no table of headroom")


def exact_rows(found: Mapping[str, Any]) -> Iterator[Row]:
    """The rows of a set without random choices."""
    run = Run(found["setup"])
    rates = found.get("series", {}).get("rate")
    if rates:
        yield from _rate_rows(run, rates)
    run.run()
    relative = 0.01 if rates or len(run.network.switches) > 1 else 0.002
    yield _row("end, ns", found["end_ns"], run.end / NS, relative)
    for flow, there in zip(run.flows, found["flows"], strict=True):
        name = f"{flow.source} to {flow.target}"
        yield _row(f"{name}, completion, ns", there["fct_ns"], _ns(flow.duration), relative)
        if rates and isinstance(flow.qp.rate, WholeNanoseconds):
            yield _row(f"{name}, marks", there["cnps"], flow.qp.counters.cnps_received, 0.03)
            yield Row(f"{name}, cuts", there["decs"], flow.qp.rate.cuts, 2)
    for there in found["ports"]:
        counters = run.network.switches[f"n{there['node']}"].counters[there["port"] - 1]
        name = f"n{there['node']} port {there['port']}"
        yield Row(f"{name}, pauses", there["pause"], counters.pauses_sent[PRIORITY], 2)
        # A frame of an ACK alone is longer here than there.
        largest = counters.largest_queue[PRIORITY]
        yield Row(f"{name}, largest queue, bytes", there["maxq"], largest, 3 * PACKET)
    paused = run.paused()
    for port, there in found.get("pause_rx", {}).items():
        yield _row(
            f"n{port.replace(':', ' port ')}, paused, ns", there["ns"], paused[port] / NS, 0.005
        )
    yield Row("drops", 0, run.drops, 0)
    for host, time in _first_pauses(found).items():
        yield Row(f"{host}, first pause, ns", time, run.first_pauses.get(host, 0) / NS, 300)


def _rate_rows(run: Run, series: Mapping[str, Sequence[Sequence[float]]]) -> Iterator[Row]:
    """How many samples of each rate agree within 1 %; leaves the run in the middle."""
    run.post()
    flows = {f"{flow.source[1:]}>{flow.target[1:]}": flow for flow in run.flows}
    agreed = dict.fromkeys(series, 0)
    samples = [(row[0], name, row[1]) for name, rows in series.items() for row in rows]
    for time, name, expected in sorted(samples):
        run.advance(int(time) * NS)
        control: Any = flows[name.split(":")[0]].qp.rate
        if isinstance(control, WholeNanoseconds):
            control.advance(run.simulator.now)
        agreed[name] += abs(control.rate / 1e9 - expected) <= 0.01 * expected
    for name, count in agreed.items():
        yield Row(f"{name}, samples within 1 %, %", 100, 100 * count / len(series[name]), 10)


def _first_pauses(found: Mapping[str, Any]) -> dict[str, float]:
    first: dict[str, float] = {}
    for time, node, _, is_pause in found.get("pfc_frames_received", ()):
        if is_pause:
            first.setdefault(f"n{node}", time)
    return first


def stat_rows(found: Mapping[str, Any], seeds: int | None = None) -> Iterator[Row]:
    """The rows of a set of several runs: means within three standard errors and 2 %."""
    stats = found["stats"]
    count = max(each["n"] for each in stats.values())
    results = [_figures(found["setup"], seed) for seed in range(1, (seeds or count) + 1)]
    for name, there in stats.items():
        here = [each[name] for each in results if name in each]
        if not here:
            continue
        spread = stdev(here) if len(here) > 1 else 0.0
        error = sqrt(there["sd"] ** 2 / there["n"] + spread**2 / len(here))
        yield Row(f"mean {name}", there["mean"], mean(here), 3 * error + 0.02 * abs(there["mean"]))


def _figures(setup: Mapping[str, Any], seed: int) -> dict[str, float]:
    """The figures of one run that files of statistics name."""
    run = Run(setup, seed=seed)
    run.run()
    times = [_ns(flow.duration) for flow in run.flows]
    marks = [flow.qp.counters.cnps_received for flow in run.flows]
    ports = [port for switch in run.network.switches.values() for port in switch.counters]
    controls = [flow.qp.rate for flow in run.flows]
    paused = run.paused()
    rates = [flow.packets / time for flow, time in zip(run.flows, times, strict=True)]
    figures: dict[str, float] = {
        "cnps": sum(marks),
        "jain": sum(rates) ** 2 / (len(rates) * sum(rate**2 for rate in rates)),
        "pause_ns": sum(paused.values()) / NS,
        "decs": sum(each.cuts for each in controls if isinstance(each, WholeNanoseconds)),
        "maxq": max(max(port.largest_queue) for port in ports),
        "pauses": sum(sum(port.pauses_sent) for port in ports),
        "drops": run.drops,
        "end": run.end / NS,
    }
    topology = setup.get("topology")
    if topology == "two switches":
        victim = run.flows[-1]
        bits = victim.packets * PACKET * 8
        figures["victim_fct"] = times[-1]
        figures["victim_gbps"] = bits / times[-1]
        figures["incast_end"] = max(times[:-1])
        figures["victim_cnps"] = marks[-1]
        figures["uplink_paused_ns"] = paused["7:6"] / NS
        figures["pauses_uplink"] = sum(run.network.switches["n8"].counters[2].pauses_sent)
    elif topology == "parking lot":
        figures |= {"long_fct": times[0], "short_mean": mean(times[1:]), "long_cnps": marks[0]}
    else:
        figures |= {"fct_mean": mean(times), "fct_min": min(times), "fct_max": max(times)}
    return figures


def tail_rows(document: Mapping[str, Any], seeds: int) -> Iterator[Row]:
    """The rows of a flow list over a fat tree: percentiles of the slowdown.

    Hashes and marks are random on both sides: the median has to be in the range of their runs and
    10 % around it, the 99th percentile in theirs and 35 %. DCQCN is at least twice as good as PFC
    alone for short flows.
    """
    short: dict[str, float] = {}
    for each in document["sets"]:
        if each["config"].get("cc", 1) not in MODES:
            continue
        flows = [[a, b, 3, packets * _PAYLOAD, start] for a, b, packets, start in document["flows"]]
        setup = {"links": document["links"], "config": each["config"], "flows": flows}
        for seed in range(1, seeds + 1):
            run = Run(setup, seed=seed)
            run.run()
            name = f"{each['name']}, seed {seed}"
            yield Row(f"{name}, drops", 0, run.drops, 0)
            slowdowns = sorted(_ns(flow.duration) / _alone(flow, run) for flow in run.flows)
            few = sorted(
                _ns(flow.duration) / _alone(flow, run) for flow in run.flows if flow.packets <= 10
            )
            short[each["name"]] = _percentile(few, 50)
            for percent, margin in ((50, 0.1), (99, 0.35)):
                there = [one["slowdown"]["all"][f"p{percent}"] for one in each["runs"]]
                low, high = min(there) * (1 - margin), max(there) * (1 + margin)
                got = _percentile(slowdowns, percent)
                yield Row(f"{name}, p{percent}", (low + high) / 2, got, (high - low) / 2)
    if {"dcqcn", "pfc_only"} <= set(short):
        gain = short["pfc_only"] / short["dcqcn"]
        yield Row("short flows, gain by DCQCN, at least 2", max(gain, 2), gain, 0)


def path_rows(document: Mapping[str, Any], seeds: int) -> Iterator[Row]:
    """The rows of a permutation over paths that are random on both sides.

    A figure has to be in the range of the runs there, or outside by a factor of `paths.MARGINS` at
    most. Strategies that switches here do not have are left out.
    """
    for name, there in figures(document).items():
        if name not in STRATEGIES:
            continue
        for seed in range(1, seeds + 1):
            here = own_figures(document["matrix"], STRATEGIES[name], seed)
            for figure, values in there.items():
                margin = MARGINS[name]
                low, high = min(values) / margin, max(values) * margin
                label = f"{name}, seed {seed}: {figure}"
                yield Row(label, (low + high) / 2, here[figure], (high - low) / 2)


def loss_rows(document: Mapping[str, Any], seeds: int | None) -> Iterator[Row]:
    """The rows of go-back-N on links that lose frames: means within three standard errors.

    A lost NAK is sent again after 500 us there; here the ACK timer expires after 524 us. Runs
    there that lost their last packet hang for ever; here none may.
    """
    for each in document["sets"]:
        figures: dict[str, list[float]] = {"fct": [], "tx": [], "nacks": []}
        hung = 0
        for seed in range(1, (seeds or each["runs"]) + 1):
            setup = {
                "links": [[0, 2, "100Gbps", 1000], [1, 2, "100Gbps", 1000]],
                "config": {"cc": 0},
                "flows": [[0, 1, 3, each["packets"] * _PAYLOAD, 0]],
            }
            run = Run(setup, seed=seed, loss=each["error"], timeout=7)
            run.run()
            (flow,) = run.flows
            if flow.duration is None:
                hung += 1
                continue
            figures["fct"].append(flow.duration / NS)
            figures["tx"].append(flow.qp.counters.packets_sent)
            figures["nacks"].append(flow.qp.counters.sequence_naks_received)
        name = f"loss {each['error']}"
        yield Row(f"{name}: runs that hang", 0, hung, 0)
        for key, here in figures.items():
            there = each["stats"][key]
            spread = stdev(here) if len(here) > 1 else 0.0
            error = sqrt(there["sd"] ** 2 / there["n"] + spread**2 / len(here))
            yield Row(f"{name}: mean {key}", there["mean"], mean(here), 3 * error)


def _alone(flow: Flow, run: Run) -> float:
    """Nanoseconds of a flow that has the network to itself: its packets, and a round trip."""
    links = run.hops(flow.source, flow.target)
    packet = 88
    return flow.packets * packet + (links - 1) * packet + 2 * links * 1000


def _percentile(ordered: Sequence[float], percent: int) -> float:
    return ordered[min(len(ordered) * percent // 100, len(ordered) - 1)]


_PAYLOAD = 1058


def headroom_rows(document: Mapping[str, Any]) -> Iterator[Row]:
    """The rows of a table of headroom."""
    params = document["params"]
    chip = Chip(
        cell=params["cell"],
        peer_response=round(params["peer_response_kib"] * 1024),
        interface_delay=round(params["mac_phy_kib"] * 1024),
        pipeline=params["pipeline_kib"] * 1024,
        has_tiles=params.get("tile", False),
    )
    for row in document["rows"]:
        found = headroom(row["speed_mbps"] * 10**6, row["cable_m"], chip=chip)
        name = f"{row['speed_mbps'] // 1000}G {row['cable_m']} m"
        yield Row(f"{name}, xoff", row["xoff"], found.xoff, 0)
        yield Row(f"{name}, xon", row["xon"], found.xon, 0)
        yield Row(f"{name}, size", row["size"], found.size, 0)


def _row(name: str, expected: float, got: float, relative: float) -> Row:
    return Row(name, expected, got, relative * expected)


def _ns(time: Time | None) -> float:
    return float("inf") if time is None else time / NS
