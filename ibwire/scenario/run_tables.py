"""The directory that a run leaves behind: tables in Parquet, and `run.json` about the whole run."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from typing import Any

from ibwire.base.errors import MissingExtra
from ibwire.base.output import Output, make_directory
from ibwire.base.units import Time
from ibwire.connections.tables import TableColumn, TableSpec, Type
from ibwire.scenario.expect import plain_value, unit_name
from ibwire.scenario.outcome import Outcome, QPOutcome, goodput
from ibwire.scenario.recording import RATE_VALUES, Recording
from ibwire.scenario.specs import Scenario

SUMMARY = "run.json"
"""The file about the whole run."""

KIND = "ibwire run"

FORMAT = 1
"""Of the directory; a later version of another format refuses this one."""

_TIME = TableColumn("time_ps", Type.BIG, "of the sample, from the start of the run")
_NODE = TableColumn("node", Type.TEXT, "the node whose port it is")
_NEIGHBOUR = TableColumn("neighbour", Type.TEXT, "the node at the other end of its link")
_CONNECTION = TableColumn("connection", Type.TEXT, "name of the connection or flow")
_INDEX = TableColumn("index", Type.INTEGER, "of the queue pairs with this name, from 0")

FLOWS = TableSpec(
    "flows",
    "One row for each queue pair that sends.",
    (
        _CONNECTION,
        _INDEX,
        TableColumn("source", Type.TEXT, "node that sends"),
        TableColumn("target", Type.TEXT, "node that receives"),
        TableColumn("source_qpn", Type.INTEGER, "queue pair that sends"),
        TableColumn("target_qpn", Type.INTEGER, "queue pair that receives"),
        TableColumn("status", Type.TEXT, "`complete`, `failed`, `unfinished`"),
        TableColumn("messages", Type.BIG, "messages that were to be sent"),
        TableColumn("bytes", Type.BIG, "bytes that have arrived and were right"),
        TableColumn("start_ps", Type.BIG, "when the first message was posted; null for never"),
        TableColumn("fct_ps", Type.BIG, "flow completion time: until the last message completed"),
        TableColumn("ideal_ps", Type.BIG, "the same alone in an empty network, as far as known"),
        TableColumn("slowdown", Type.REAL, "`fct_ps` over `ideal_ps`"),
        TableColumn("goodput_bps", Type.BIG, "bytes over the flow completion time"),
        TableColumn("packets", Type.BIG, "packets sent"),
        TableColumn("retransmitted", Type.BIG, "request packets retransmitted"),
        TableColumn("timeouts", Type.BIG, "ACK timeouts"),
        TableColumn("sequence_naks", Type.BIG, "NAKs for PSN sequence errors of its requests"),
        TableColumn("ce_marked", Type.BIG, "its packets that the receiver got with a CE mark"),
        TableColumn("cnps", Type.BIG, "CNPs that it received"),
    ),
)

QUEUES = TableSpec(
    "queues",
    "Queues of switch ports over time: samples, and a 0 before and after each row of others.",
    (
        _TIME,
        _NODE,
        _NEIGHBOUR,
        TableColumn("priority", Type.SMALL, "of the queue"),
        TableColumn("bytes", Type.BIG, "that wait; where samples were joined, the largest"),
    ),
)

LOADS = TableSpec(
    "loads",
    "What ports have sent over time.",
    (
        _TIME,
        _NODE,
        _NEIGHBOUR,
        TableColumn("bytes", Type.BIG, "of line time since the sample before"),
    ),
)

PAUSES = TableSpec(
    "pauses",
    "One row for each time in which a port could not send a priority.",
    (
        TableColumn("start_ps", Type.BIG, "when the pause frame had arrived"),
        TableColumn("end_ps", Type.BIG, "when it could go on"),
        TableColumn("node", Type.TEXT, "the node that could not send"),
        TableColumn("neighbour", Type.TEXT, "the node that paused it"),
        TableColumn("priority", Type.SMALL, "what could not be sent"),
    ),
)

RATES = TableSpec(
    "rates",
    "Congestion control of queue pairs over time, a row where something has changed.",
    (
        _TIME,
        _CONNECTION,
        _INDEX,
        TableColumn("rate_bps", Type.REAL, "rate at which it may send"),
        TableColumn("target_bps", Type.REAL, "rate to which it recovers, if it has one"),
        TableColumn("alpha", Type.REAL, "its measure of congestion, if it has one"),
        TableColumn("window_bytes", Type.REAL, "bytes that may be on the way, if limited"),
    ),
)

DROPS = TableSpec(
    "drops",
    "Frames that switches dropped over time. Reasons `queue full`, `link down` and `watchdog` are "
    "of the port to which they were to go, others of the port by which they came.",
    (
        _TIME,
        _NODE,
        _NEIGHBOUR,
        TableColumn("reason", Type.TEXT, "`buffer full`, `no route`, `link down`, ..."),
        TableColumn("frames", Type.BIG, "since the sample before"),
    ),
)

SEGMENTS = TableSpec(
    "segments",
    "One row for each TCP segment at each of its ends.",
    (
        _TIME,
        TableColumn("connection", Type.TEXT, "name of the flow"),
        TableColumn("node", Type.TEXT, "host that it left, or at which it arrived"),
        TableColumn("is_sent", Type.FLAG, "whether it left"),
        TableColumn("sequence", Type.BIG, "its sequence number"),
        TableColumn("acknowledgement", Type.BIG, "its acknowledgement number"),
        TableColumn("flags", Type.TEXT, "`SYN`, `ACK`, `ECE`, ..., with spaces between them"),
        TableColumn("bytes", Type.BIG, "of data"),
        TableColumn("window", Type.BIG, "its window field, before scaling"),
        TableColumn("is_marked", Type.FLAG, "whether it arrived with a CE mark"),
    ),
)

TABLES = {each.name: each for each in (FLOWS, QUEUES, LOADS, PAUSES, RATES, DROPS, SEGMENTS)}


def is_run(path: str) -> bool:
    """Whether a path is the directory of a run."""
    return os.path.isfile(os.path.join(path, SUMMARY))


def write_run(directory: str, scenario: Scenario, outcome: Outcome, recording: Recording) -> None:
    """Write all files of a run; raises `OutputError` and `MissingExtra`."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq

        from ibwire.connections.arrow import schema_of
    except ImportError:
        raise MissingExtra("Parquet", "query") from None
    make_directory(directory)
    rows: dict[str, list[tuple[Any, ...]]] = {
        FLOWS.name: flow_rows(outcome.qps),
        QUEUES.name: [(time, *key, int(size)) for time, key, size in recording.queues.rows()],
        LOADS.name: [(time, *key, int(size)) for time, key, size in recording.loads.rows()],
        PAUSES.name: [tuple(each) for each in recording.pauses],
        RATES.name: list(_rate_rows(recording)),
        DROPS.name: [(time, *key, int(count)) for time, key, count in recording.drops.rows()],
        SEGMENTS.name: [tuple(each) for each in recording.segments],
    }
    for name, spec in TABLES.items():
        found = rows[name]
        if name not in (FLOWS.name, SEGMENTS.name):  # these have their order
            found.sort(key=_order)
        columns: list[Sequence[Any]] = [*zip(*found, strict=True)] or [()] * len(spec.columns)
        schema = schema_of(spec)
        arrays = [
            pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)
        ]
        with Output(os.path.join(directory, f"{name}.parquet")) as file:
            pq.write_table(pa.Table.from_arrays(arrays, schema=schema), file.file)
    with Output(os.path.join(directory, SUMMARY)) as file:
        json.dump(summary(scenario, outcome, recording), file.text, indent=1)
        file.text.write("\n")


def flow_rows(qps: Iterable[QPOutcome]) -> list[tuple[Any, ...]]:
    """The rows of `flows`."""
    rows = []
    for qp in qps:
        tally = qp.tally
        if tally is None:
            continue
        is_done = not tally.unfinished and not tally.failed
        status = "complete" if is_done else "failed" if tally.failed else "unfinished"
        fct = tally.ended - tally.started if is_done and tally.started is not None else None
        ideal = qp.ideal or None
        rows.append(
            (
                qp.connection,
                qp.index,
                qp.node,
                qp.peer,
                qp.qpn,
                qp.peer_qpn,
                status,
                tally.messages,
                tally.verified_bytes,
                tally.started,
                fct,
                ideal,
                fct / ideal if fct is not None and ideal else None,
                goodput(tally.verified_bytes, fct) if fct is not None else None,
                qp.counters["packets_sent"],
                qp.counters["retransmitted"],
                qp.counters["timeouts"],
                qp.peer_counters["sequence_naks_sent"],
                qp.peer_counters["ce_marked"],
                qp.counters["cnps_received"],
            )
        )
    return rows


def _rate_rows(recording: Recording) -> Iterable[tuple[Any, ...]]:
    """One row for each queue pair and time at which one of its values has changed."""
    current: dict[tuple[str, int], dict[str, float]] = {}
    at: dict[tuple[Time, str, int], None] = {}
    values: dict[tuple[Time, str, int], dict[str, float]] = {}
    for time, key, value in recording.rates.rows():
        connection, index, name = key
        state = current.setdefault((connection, index), {})
        state[name] = value
        at[time, connection, index] = None
        values[time, connection, index] = dict(state)
    for time, connection, index in at:
        state = values[time, connection, index]
        window = state.get("window")
        yield (
            time,
            connection,
            index,
            *(state.get(name) for name in RATE_VALUES if name != "window"),
            None if window is None or window == float("inf") else window,
        )


def _order(row: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(row[:4]) if len(row) > 4 else tuple(row[:3])


def summary(scenario: Scenario, outcome: Outcome, recording: Recording) -> dict[str, Any]:
    """What `run.json` has: the run, its network and its expectations."""
    bridges = {node.name for node in scenario.nodes if node.is_bridge}
    fabric = scenario.fabric
    switches = set(fabric.topology.switches) if fabric is not None else set()
    nodes = [node.name for node in scenario.nodes] + sorted(
        switches - {node.name for node in scenario.nodes}
    )
    return {
        "kind": KIND,
        "format": FORMAT,
        "ibwire": version("ibwire"),
        "scenario": scenario.name,
        "description": scenario.description,
        "seed": outcome.seed,
        "ended": outcome.ended,
        "virtual_time_ps": outcome.virtual_time,
        "interval_ps": recording.interval,
        "pauses_left_out": recording.left_out,
        "segments_left_out": recording.segments_left_out,
        "passed": outcome.passed,
        "expectations": [
            {
                "connection": check.connection,
                "expected": check.expectation.text,
                "actual": plain_value(check.expectation.metric, check.actual),
                "passed": check.passed,
            }
            for check in outcome.checks
        ],
        "metrics": {
            unit_name(name): plain_value(name, value) for name, value in outcome.metrics.items()
        },
        "nodes": [
            {
                "name": name,
                "kind": "switch" if name in switches else "bridge" if name in bridges else "host",
            }
            for name in nodes
        ],
        "links": [
            {
                "a": wire.between[0],
                "b": wire.between[1],
                "rate_bps": wire.rate_bps,
                "delay_ps": wire.delay,
            }
            for wire in scenario.wires
        ],
    }
