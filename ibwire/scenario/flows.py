"""Reads `[[flow]]`: bytes from some hosts to others, each flow on a connection of its own."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace

from ibwire.base.toml import Table
from ibwire.base.units import MS, Time
from ibwire.rc.attributes import MTU_CODES, QPType
from ibwire.rc.limits import DeviceLimits
from ibwire.rc.work import WROpcode
from ibwire.scenario.expect import SCOPED, read_expectations
from ibwire.scenario.flow_ends import MAXIMUM_FLOWS, Ends
from ibwire.scenario.flow_lists import ListContext, is_list, read_list
from ibwire.scenario.specs import ClassSpec, ConnectionSpec, TcpSpec, WorkloadSpec
from ibwire.scenario.starts import take_start
from ibwire.scenario.workload import Choice, Receives, Traffic

MAXIMUM_TCP = 1 << 10
LARGEST_FLOW = 1 << 40
LARGEST_MESSAGE = 1 << 28

ECT_0 = 2
"""ECN-capable transport (RFC 3168 5)."""

_WINDOW = 8
_OPCODES = {
    each.name: each for each in (WROpcode.RDMA_WRITE, WROpcode.SEND, WROpcode.RDMA_WRITE_WITH_IMM)
}
_ATTRIBUTES = {"timeout": (0, 31), "retry_cnt": (0, 7), "rnr_retry": (0, 7)}


class Pieces:
    """Sizes of the messages of a flow: equal ones, and the rest."""

    def __init__(self, total: int, size: int) -> None:
        self.values: Sequence[int] = (size,)
        self.count = max(-(-total // size), 1)
        self._last = total - (self.count - 1) * size

    def pick(self, number: int, draw: random.Random) -> int:
        """The size of a message."""
        return self._last if number == self.count - 1 else self.values[0]

    def possible(self, number: int) -> Sequence[int]:
        """The same as all that it may be."""
        return (self._last if number == self.count - 1 else self.values[0],)


def read_flows(
    tables: Sequence[Table],
    ends: Ends,
    classes: Sequence[ClassSpec],
    *,
    is_ecn: bool,
    taken: Mapping[str, object],
    context: ListContext,
) -> tuple[tuple[ConnectionSpec, ...], tuple[WorkloadSpec, ...]]:
    """The connections and the traffic of all flows.

    is_ecn: whether packets are ECN-capable where a flow says nothing. taken: names of other
    connections. context: of lists of flows.
    """
    connections: list[ConnectionSpec] = []
    workloads: list[WorkloadSpec] = []
    names = set(taken)
    for index, table in enumerate(tables):
        default = "flow" if len(tables) == 1 else f"flow{index + 1}"
        name = table.take_text("name", default)
        if name in names:
            raise table.error("name", f"{name!r} is the name of another flow or connection")
        names.add(name)
        if is_list(table):
            found, traffic = _list(table, name, ends, classes, is_ecn=is_ecn, context=context)
            ends.check_ways(table, [each.between for each in found])
            connections += found
            workloads += traffic
            table.end()
            continue
        pairs = ends.pairs(table)
        first = _connection(table, name, pairs[0], classes, is_ecn=is_ecn)
        connections += [replace(first, between=pair) for pair in pairs]
        if sum(each.count for each in connections) > MAXIMUM_FLOWS:
            raise table.error(None, f"more than {MAXIMUM_FLOWS:,} flows in all")
        workloads.append(_workload(table, first, context.limit))
        table.end()
    return tuple(connections), tuple(workloads)


def is_tcp(table: Table) -> bool:
    """Whether a flow is a TCP connection."""
    return table.take_name("transport", "rdma", ("rdma", "tcp")) == "tcp"


def read_tcp(
    tables: Sequence[Table],
    ends: Ends,
    classes: Sequence[ClassSpec],
    addresses: Mapping[str, str],
    limit: Time,
) -> tuple[TcpSpec, ...]:
    """The TCP connections of flows; addresses: of the hosts; limit: when the run ends."""
    found: list[TcpSpec] = []
    for index, table in enumerate(tables):
        name = table.take_text("name", f"tcp{index + 1}")
        pairs = ends.pairs(table)
        for host in dict.fromkeys(each for pair in pairs for each in pair):
            if ":" in addresses[host]:
                raise table.error("transport", f"tcp needs IPv4, and {host} has {addresses[host]}")
        count = table.take_int("count", 1, 1, MAXIMUM_TCP)
        size = table.take_size("size", 1 << 20, 1, LARGEST_FLOW)
        start, stagger = take_start(table, limit), table.take_time("stagger", 0)
        lossy = sorted((each for each in classes if not each.is_lossless), key=_is_strict)
        default = lossy[0].name if lossy else None
        is_ecn = table.take_bool("ecn", False)
        traffic_class, priority = take_class(table, classes, is_ecn=is_ecn, default=default)
        mss = table.take_int("mss", 1460, 64, 8960)
        min_timeout = table.take_time("min_rto", 200 * MS)
        if not min_timeout:
            raise table.error("min_rto", "expected a time above 0")
        table.end()
        if len(found) + len(pairs) * count > MAXIMUM_TCP:
            raise table.error("count", f"more than {MAXIMUM_TCP:,} TCP connections in all")
        for source, target in pairs:
            found += [
                TcpSpec(
                    name=name,
                    source=source,
                    target=target,
                    size=size,
                    start=start + number * stagger,
                    mss=mss,
                    min_timeout=min_timeout,
                    dscp=traffic_class >> 2,
                    priority=priority,
                    is_ecn=is_ecn,
                )
                for number in range(count)
            ]
    return tuple(found)


def _is_strict(spec: ClassSpec) -> bool:
    return spec.is_strict


def _list(
    table: Table,
    name: str,
    ends: Ends,
    classes: Sequence[ClassSpec],
    *,
    is_ecn: bool,
    context: ListContext,
) -> tuple[list[ConnectionSpec], list[WorkloadSpec]]:
    """Each flow of a list with a connection of its own: `NAME.0`, `NAME.1`, ..."""
    targets: dict[str, list[str]] = {}
    if "file" in table:
        senders = ends.chosen(table, "hosts", default="*")
    else:
        senders, receivers = (ends.chosen(table, key, default="*") for key in ("from", "to"))
        targets = ends.targets(table, senders, receivers)
    flows = read_list(table, name, senders, targets, context)
    if "expect" in table:
        raise table.error("expect", "a list of flows is expected something in [expect] only")
    is_drawn = "sizes" in table
    first = _connection(table, name, flows[0][0], classes, is_ecn=is_ecn, is_counted=not is_drawn)
    piece = table.take_size("message", 128 << 10, 1, LARGEST_MESSAGE)
    window = table.take_int("window", _WINDOW, 1, first.depth)
    opcode = _OPCODES[table.take_name("opcode", "RDMA_WRITE", _OPCODES)]
    connections, workloads = [], []
    for number, (between, size, start) in enumerate(flows):
        own = f"{name}.{number}"
        pieces = Pieces(size, min(size, piece))
        posted = min(window, pieces.count)
        traffic = Traffic(
            opcodes=Choice([opcode]),
            sizes=pieces,
            count=pieces.count,
            window=posted,
            start=start,
            receives=Receives(1 if opcode is WROpcode.RDMA_WRITE else posted),
        )
        connections.append(replace(first, name=own, between=between))
        workloads.append(WorkloadSpec(own, None, traffic, 0, is_flow=True))
    return connections, workloads


def take_class(
    table: Table, classes: Sequence[ClassSpec], *, is_ecn: bool, default: str | None = None
) -> tuple[int, int]:
    """The traffic class (DSCP and ECN) and the priority of `class`, `dscp`, `priority`, `ecn`."""
    by_name = {each.name: each for each in classes}
    name = table.take_name("class", default or classes[0].name, by_name)
    chosen = by_name[name]
    dscp = table.take_int("dscp", chosen.dscp[0], 0, 63)
    priority = table.take_int("priority", chosen.priority, 0, 7)
    ecn = table.take_bool("ecn", is_ecn)
    return dscp << 2 | (ECT_0 if ecn else 0), priority


def _connection(
    table: Table,
    name: str,
    between: tuple[str, str],
    classes: Sequence[ClassSpec],
    *,
    is_ecn: bool,
    is_counted: bool = True,
) -> ConnectionSpec:
    """is_counted: whether `count` is a number of queue pairs."""
    mtu = table.take_int("mtu", 1024, 0, 4096)
    if mtu not in MTU_CODES:
        raise table.error("mtu", f"{mtu} is not one of {', '.join(map(str, MTU_CODES))}")
    attributes = {}
    for key, (low, high) in _ATTRIBUTES.items():
        value = table.take_int(key, None, low, high)
        if value is not None:
            attributes[key] = value
    traffic_class, priority = take_class(table, classes, is_ecn=is_ecn)
    return ConnectionSpec(
        name=name,
        between=between,
        count=table.take_int("count", 1, 1, MAXIMUM_FLOWS) if is_counted else 1,
        qp_type=QPType.RC,
        depth=DeviceLimits().max_qp_wr,
        psn=(0, 0),
        mtu=mtu,
        traffic_class=traffic_class,
        attributes=attributes,
        expectations=read_expectations(table.table("expect"), SCOPED),
        priority=priority,
        udp_port=table.take_int("udp_port", None, 0, 0xFFFF),
        rate_bps=_rate(table),
        burst=table.take_size("burst", 0, 0, LARGEST_MESSAGE),
    )


def _rate(table: Table) -> int | None:
    """The rate of each queue pair, in bits a second."""
    if "rate" not in table:
        if table.take("burst") is not None:
            raise table.error("burst", "needs a rate")
        return None
    rate = table.take_rate("rate", 0)
    if not rate:
        raise table.error("rate", "expected a rate above 0")
    return rate


def _workload(table: Table, connection: ConnectionSpec, limit: Time) -> WorkloadSpec:
    size = table.take_size("size", 1 << 20, 1, LARGEST_FLOW)
    piece = table.take_size("message", min(size, 256 << 10), 1, LARGEST_MESSAGE)
    opcode = _OPCODES[table.take_name("opcode", "RDMA_WRITE", _OPCODES)]
    pieces = Pieces(size, piece)
    window = table.take_int("window", min(_WINDOW, pieces.count), 1, connection.depth)
    traffic = Traffic(
        opcodes=Choice([opcode]),
        sizes=pieces,
        count=pieces.count,
        window=window,
        start=take_start(table, limit),
        receives=Receives(1 if opcode is WROpcode.RDMA_WRITE else window),
    )
    return WorkloadSpec(connection.name, None, traffic, table.take_time("stagger", 0), is_flow=True)
