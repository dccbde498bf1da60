"""What a set says and what a run here gives, row by row with the tolerance of each.

Sets of one run give exact values; sets of several runs give a mean and a deviation, and are run
here with as many seeds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import sqrt
from operator import itemgetter
from statistics import mean, stdev
from typing import Any

from ibwire.base.units import NS, S, Time
from ibwire.fabric.switch.headroom import Chip, headroom
from truth import keys
from truth.network import MODES, PACKET, PRIORITY, Flow, Mode, Run, WholeNanoseconds
from truth.paths import MARGINS, STRATEGIES, figures, own_figures, topology_of


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


@dataclass(frozen=True, slots=True)
class Part:
    """A set of a file, or a file that is one table: what of it can be compared."""

    name: str
    rows: Callable[[int | None], Iterator[Row]]
    """The rows of so many seeds; by default as many as the other simulator made."""
    unknown: Sequence[str] = ()
    """Keys that say how the other simulator ran, and that a run here cannot follow."""
    unused: Sequence[str] = ()
    """Results that are not compared."""


def rows_of(document: Mapping[str, Any], *, seeds: int | None = None) -> Iterator[Row]:
    """All rows of a file; raises `UnknownKind` for one of another kind."""
    for part in parts_of(document):
        for row in part.rows(seeds):
            name = f"{part.name}: {row.name}" if part.name else row.name
            yield Row(name, row.expected, row.got, row.tolerance)


def parts_of(document: Any) -> list[Part]:
    """The sets of a file; raises `UnknownKind` for one of another kind."""
    if not isinstance(document, dict):
        raise UnknownKind("it is not an object")
    if "rows" in document and "params" in document:
        return [_part("", document, keys.HEADROOM, lambda seeds: headroom_rows(document))]
    if "flow_columns" in document:
        return [_part("", document, keys.TAILS, lambda seeds: tail_rows(document, seeds or 2))]
    if "matrix" in document and "runs" in document:
        others = {run["strategy"] for run in document["runs"]} - set(STRATEGIES)
        part = _part("", document, keys.PATHS, lambda seeds: path_rows(document, seeds or 1))
        return [replace(part, unknown=[*part.unknown, *sorted(others)])]
    sets = document.get("sets", ())
    if not all(isinstance(each, dict) for each in sets):
        raise UnknownKind("its sets are not objects")
    if not any("error" in each or "links" in each.get("setup", {}) for each in sets):
        raise UnknownKind("it has no set with links and flows, and no table of headroom")
    parts = [
        _set_part(str(each.get("name") or f"set {number + 1}"), each)
        for number, each in enumerate(sets)
    ]
    rest = {key: value for key, value in document.items() if key != "sets"}
    unknown = keys.unknown(rest, keys.FILE)
    return [Part("file", lambda seeds: iter(()), unknown), *parts] if unknown else parts


def _set_part(name: str, each: Mapping[str, Any]) -> Part:
    if "error" in each:
        return _part("", each, keys.LOSS, lambda seeds: loss_rows(each, seeds))
    config = each.get("setup", {}).get("config", {})
    if config.get("cc", 1) not in MODES:
        return Part(name, lambda seeds: iter(()), [f"setup.config.cc = {config['cc']}"])
    if "stats" in each:
        return _part(name, each, keys.SET, lambda seeds: stat_rows(each, seeds))
    return _part(name, each, keys.SET, lambda seeds: exact_rows(each))


def _part(
    name: str, document: Mapping[str, Any], known: Any, rows: Callable[[int | None], Iterator[Row]]
) -> Part:
    return Part(name, rows, keys.unknown(document, known), keys.unused(document, known))


def exact_rows(found: Mapping[str, Any]) -> Iterator[Row]:
    """The rows of a set without random choices."""
    pauses = _first_pauses(found)
    run = Run(found["setup"], watched=pauses)
    flows = _pairs(run, found["flows"])
    series = found.get("series", {})
    rates = series.get("rate")
    yield from _series_rows(run, flows, rates or {}, series.get("queue_bytes", ()))
    run.run()
    relative = 0.01 if rates or len(run.network.switches) > 1 else 0.002
    if "end_ns" in found:
        yield _row("end, ns", found["end_ns"], run.end / NS, relative)
    for flow, there in flows:
        yield from _flow_rows(flow, there, relative, counts_cuts=bool(rates))
    # A switch there also counts the frames that came to it with a mark.
    counts_marks = len(run.network.switches) == 1 and run.mode in (Mode.DCQCN, Mode.DCTCP)
    for there in found.get("ports", ()):
        yield from _port_rows(run, there, counts_marks=counts_marks)
    paused = run.paused()
    for port, there in found.get("pause_rx", {}).items():
        if "ns" in there:
            name = f"n{port.replace(':', ' port ')}, paused, ns"
            yield _row(name, there["ns"], paused[port] / NS, 0.005)
    drops = sum(there.get("drops", 0) for there in found.get("ports", ()))
    yield Row("drops", drops, run.drops, 0)
    if "victim_gbps_payload_plus_headers" in found:
        flow = run.flows[-1]
        got = flow.packets * PACKET * 8 / _ns(flow.duration)
        yield _row("victim, Gb/s", found["victim_gbps_payload_plus_headers"], got, 0.03)
    for place, time in pauses.items():
        name = f"{place[0]} port {place[1]}" if place[0] in run.network.switches else place[0]
        yield Row(f"{name}, first pause, ns", time, run.first_pauses.get(place, 0) / NS, 300)


def _flow_rows(
    flow: Flow, there: Mapping[str, Any], relative: float, *, counts_cuts: bool
) -> Iterator[Row]:
    """What is said there of a flow, each figure only if it is."""
    name = f"{flow.source} to {flow.target}"
    if "fct_ns" in there:
        yield _row(f"{name}, completion, ns", there["fct_ns"], _ns(flow.duration), relative)
    if counts_cuts and isinstance(flow.qp.rate, WholeNanoseconds):
        if "cnps" in there:
            yield _row(f"{name}, marks", there["cnps"], flow.qp.counters.cnps_received, 0.03)
        if "decs" in there:
            yield Row(f"{name}, cuts", there["decs"], flow.qp.rate.cuts, 2)


def _port_rows(run: Run, there: Mapping[str, Any], *, counts_marks: bool) -> Iterator[Row]:
    """What is said there of a port of a switch, each figure only if it is."""
    counters = run.network.switches[f"n{there['node']}"].counters[there["port"] - 1]
    name = f"n{there['node']} port {there['port']}"
    if "pause" in there:
        yield Row(f"{name}, pauses", there["pause"], counters.pauses_sent[PRIORITY], 2)
    if "marks" in there and counts_marks:
        margin = max(0.03 * there["marks"], 2)
        yield Row(f"{name}, marks", there["marks"], counters.marked[PRIORITY], margin)
    if "resume" in there:
        yield Row(f"{name}, resumes", there["resume"], counters.resumes_sent[PRIORITY], 2)
    if "maxq" in there:
        # A frame of an ACK alone is longer here than there.
        largest = counters.largest_queue[PRIORITY]
        yield Row(f"{name}, largest queue, bytes", there["maxq"], largest, 3 * PACKET)


def _pairs(run: Run, there: Sequence[Mapping[str, Any]]) -> list[tuple[Flow, Mapping[str, Any]]]:
    """Each flow with its results there, which may stand in another order."""
    left = list(there)
    pairs = []
    for flow in run.flows:
        ends = int(flow.source[1:]), int(flow.target[1:])
        fitting = [
            each
            for each in left
            if (each["src"], each["dst"]) == ends
            and each.get("pkts", flow.packets) == flow.packets
            and abs(each.get("start_ns", flow.start // NS) - flow.start // NS) <= _START
        ]
        if not fitting:
            raise ValueError(
                f"no result of the flow of {flow.packets} packets from {ends[0]} to {ends[1]}"
            )
        pairs.append((flow, fitting[0]))
        left.remove(fitting[0])
    if left:
        raise ValueError(f"{len(left)} results of flows that the setup does not have")
    return pairs


def _series_rows(
    run: Run,
    pairs: Sequence[tuple[Flow, Mapping[str, Any]]],
    rates: Mapping[str, Sequence[Sequence[float]]],
    queues: Sequence[Sequence[int]],
) -> Iterator[Row]:
    """How many samples of each rate agree within 1 %, and of each queue within 3 packets.

    Leaves the run in the middle.
    """
    samples: list[tuple[float, str, Callable[[], bool]]] = [
        (row[0], f"{name}, samples within 1 %", partial(_is_rate, run, flow, row[1]))
        for name, rows in rates.items()
        for flow in [_flow_named(name, pairs)]
        for row in rows
    ]
    samples += [
        (
            time,
            f"n{node} port {port}, samples of the queue within 3 packets",
            partial(_is_queue, run, f"n{node}", port - 1, size),
        )
        for time, node, port, size in queues
    ]
    agreed, taken = Counter[str](), Counter[str]()
    for time, name, agrees in sorted(samples, key=itemgetter(0, 1)):
        run.run_until(int(time) * NS)
        agreed[name] += agrees()
        taken[name] += 1
    for name, count in taken.items():
        yield Row(f"{name}, %", 100, 100 * agreed[name] / count, 10)


def _flow_named(name: str, pairs: Sequence[tuple[Flow, Mapping[str, Any]]]) -> Flow:
    """The flow of a series, `source>target:port`; the port tells those of the same ends apart."""
    ends, _, port = name.partition(":")
    found = [
        flow
        for flow, there in pairs
        if f"{there['src']}>{there['dst']}" == ends and str(there.get("sport", port)) == port
    ]
    if len(found) != 1:
        raise ValueError(f"the series {name!r} is that of {len(found)} flows")
    return found[0]


def _is_rate(run: Run, flow: Flow, expected: float) -> bool:
    """Whether the rate of a flow is now as expected, in Gb/s."""
    control: Any = flow.qp.rate
    if isinstance(control, WholeNanoseconds):
        control.advance(run.simulator.now)
    rate = run.line(flow.source) if control is None else control.rate
    return bool(abs(rate / 1e9 - expected) <= 0.01 * expected)


def _is_queue(run: Run, switch: str, port: int, expected: int) -> bool:
    """Whether the queue of a port is now as long as expected, in bytes."""
    queued = run.network.switches[switch].queued(port)
    return abs(queued - expected) <= 3 * PACKET


def _first_pauses(found: Mapping[str, Any]) -> dict[tuple[str, int], float]:
    first: dict[tuple[str, int], float] = {}
    for time, node, port, is_pause in sorted(found.get("pfc_frames_received", ())):
        if is_pause:
            first.setdefault((f"n{node}", port), time)
    return first


def stat_rows(found: Mapping[str, Any], seeds: int | None = None) -> Iterator[Row]:
    """The rows of a set of several runs: means within three standard errors and 2 %."""
    stats = found["stats"]
    count = max(each["n"] for each in stats.values())
    results = [_figures(found["setup"], seed) for seed in range(1, (seeds or count) + 1)]
    for name, there in stats.items():
        if name not in results[0]:
            raise ValueError(f"the figure {name!r} is not known here")
        here = [each[name] for each in results]
        margin = 3 * standard_error(here, there) + 0.02 * abs(there["mean"])
        yield Row(f"mean {name}", there["mean"], mean(here), margin)


def standard_error(here: Sequence[float], there: Mapping[str, Any]) -> float:
    """The standard error of the difference of two means, by the deviation of all runs of both.

    One run here says nothing of the deviation, a few say little: those there count as well. With
    as many runs here as there it is the root of the sum of both squared standard errors.
    """
    one, other = len(here), there["n"]
    squares = (other - 1) * there["sd"] ** 2
    if one > 1:
        squares += (one - 1) * stdev(here) ** 2
    return sqrt(squares / max(one + other - 2, 1) * (1 / one + 1 / other))


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
    figures |= {"fct_mean": mean(times), "fct_min": min(times), "fct_max": max(times)}
    if len(times) > 1:
        figures |= {"long_fct": times[0], "short_mean": mean(times[1:]), "long_cnps": marks[0]}
        figures |= _victim_figures(run, times, marks, paused)
    return figures


def _victim_figures(
    run: Run, times: Sequence[float], marks: Sequence[int], paused: Mapping[str, int]
) -> dict[str, float]:
    """The figures of the last flow, beside an incast behind a line that they share."""
    victim = run.flows[-1]
    figures = {
        "victim_fct": times[-1],
        "victim_gbps": victim.packets * PACKET * 8 / times[-1],
        "incast_end": max(times[:-1]),
        "victim_cnps": marks[-1],
    }
    ups = [
        ends for link, _, ends in run.network.ends if {link.a, link.b} <= set(run.topology.switches)
    ]
    if len(ups) == 1:
        first = run.topology.ports(victim.source)[0][1]
        (near, far) = sorted(ups[0], key=lambda end: end[0] != first)
        figures["uplink_paused_ns"] = paused[f"{near[0][1:]}:{near[1] + 1}"] / NS
        sent = run.network.switches[far[0]].counters[far[1]].pauses_sent
        figures["pauses_uplink"] = sum(sent)
    return figures


def tail_rows(document: Mapping[str, Any], seeds: int) -> Iterator[Row]:
    """The rows of a flow list over a fat tree: percentiles of the slowdown.

    Hashes and marks are random on both sides: the median has to be in the range of their runs and
    10 % around it, the 99th percentile in theirs and 35 %. DCQCN is at least twice as good as PFC
    alone for short flows.
    """
    short: dict[bool, float] = {}
    column = {name: number for number, name in enumerate(document["flow_columns"])}
    flows = [
        [each[column[name]] for name in ("src", "dst", "packets", "start_ns")]
        for each in document["flows"]
    ]
    flows = [[a, b, 3, packets * _PAYLOAD, start] for a, b, packets, start in flows]
    for each in document["sets"]:
        mode = each["config"].get("cc", 1)
        if mode not in MODES:
            continue
        setup = {"links": document["links"], "config": each["config"], "flows": flows}
        for seed in range(1, seeds + 1):
            run = Run(setup, seed=seed)
            run.run()
            name = f"{each['name']}, seed {seed}"
            yield Row(f"{name}, drops", 0, run.drops, 0)
            slowdowns = sorted(_ns(flow.duration) / run.alone(flow) for flow in run.flows)
            few = sorted(
                _ns(flow.duration) / run.alone(flow) for flow in run.flows if flow.packets <= 10
            )
            if few and mode in (0, 1):
                short[bool(mode)] = _percentile(few, 50)
            for percent, margin in ((50, 0.1), (99, 0.35)):
                there = [one["slowdown"]["all"][f"p{percent}"] for one in each["runs"]]
                low, high = min(there) * (1 - margin), max(there) * (1 + margin)
                got = _percentile(slowdowns, percent)
                yield Row(f"{name}, p{percent}", (low + high) / 2, got, (high - low) / 2)
    if len(short) == 2:
        gain = short[False] / short[True]
        yield Row("short flows, gain by DCQCN, at least 2", max(gain, 2), gain, 0)


def path_rows(document: Mapping[str, Any], seeds: int) -> Iterator[Row]:
    """The rows of a permutation over paths that are random on both sides.

    A figure has to be in the range of the runs there, or outside by a factor of `paths.MARGINS` at
    most. Strategies that switches here do not have are left out.
    """
    topology = topology_of(document)
    for name, there in figures(document).items():
        if name not in STRATEGIES:
            continue
        for seed in range(1, seeds + 1):
            here = own_figures(document["matrix"], STRATEGIES[name], seed, topology)
            for figure, values in there.items():
                margin = MARGINS[name]
                low, high = min(values) / margin, max(values) * margin
                label = f"{name}, seed {seed}: {figure}"
                yield Row(label, (low + high) / 2, here[figure], (high - low) / 2)


def loss_rows(each: Mapping[str, Any], seeds: int | None) -> Iterator[Row]:
    """The rows of a set of go-back-N on links that lose frames: means within three standard errors.

    Runs there that lost their last packet, or the NAK for it, hang for ever and have no figures.
    Here none may hang: the ACK timer expires after 524 us. Such runs have no figures here either.
    """
    figures: dict[str, list[float]] = {"fct": [], "tx": [], "nacks": []}
    hung = 0
    for seed in range(1, (seeds or each["runs"]) + 1):
        setup = {
            "links": [[0, 2, "100Gbps", 1000], [1, 2, "100Gbps", 1000]],
            "config": {"cc": 0},
            "flows": [[0, 1, 3, each["packets"] * _PAYLOAD, 0]],
        }
        run = Run(setup, seed=seed, loss=each["error"], timeout=7)
        run.run(10 * S)
        (flow,) = run.flows
        if flow.duration is None:
            hung += 1
            continue
        if flow.qp.counters.timeouts:
            continue
        figures["fct"].append(flow.duration / NS)
        figures["tx"].append(flow.qp.counters.packets_sent)
        figures["nacks"].append(flow.qp.counters.sequence_naks_received)
    name = f"loss {each['error']}"
    yield Row(f"{name}: runs that hang", 0, hung, 0)
    for key, there in each["stats"].items():
        here = figures[key]
        if here:
            margin = 3 * standard_error(here, there)
            yield Row(f"{name}: mean {key}", there["mean"], mean(here), margin)


def _percentile(ordered: Sequence[float], percent: int) -> float:
    return ordered[min(len(ordered) * percent // 100, len(ordered) - 1)]


_PAYLOAD = 1058
_START = 1
"""Nanoseconds by which a start may differ: seconds there are binary fractions, cut to whole."""


def headroom_rows(document: Mapping[str, Any]) -> Iterator[Row]:
    """The rows of a table of headroom."""
    params = document["params"]
    chip = Chip(
        cell=params["cell"],
        peer_response=round(params["peer_response_kib"] * 1024),
        interface_delay=round(params["mac_phy_kib"] * 1024),
        pipeline=round(params["pipeline_kib"] * 1024),
        has_tiles=params.get("tile", False),
    )
    for row in document["rows"]:
        found = headroom(round(row["speed_mbps"] * 10**6), row["cable_m"], chip=chip)
        name = f"{row['speed_mbps'] / 1000:g}G {row['cable_m']} m"
        for key in ("xoff", "xon", "size"):
            if key in row:
                yield Row(f"{name}, {key}", row[key], getattr(found, key), 0)


def _row(name: str, expected: float, got: float, relative: float) -> Row:
    return Row(name, expected, got, relative * expected)


def _ns(time: Time | None) -> float:
    return float("inf") if time is None else time / NS
