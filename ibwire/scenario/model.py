"""A scenario as read from its file and checked: nodes, wires, connections, traffic.

The reference of the language is docs/scenarios.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from ibwire.base.toml import Document, Table, listed
from ibwire.base.toml_settings import Setting
from ibwire.base.units import ETHERNET_OVERHEAD, S, Time
from ibwire.rc.attributes import MTU_CODES, QPType
from ibwire.rc.limits import DeviceLimits
from ibwire.rc.work import WROpcode
from ibwire.scenario.control import read_control
from ibwire.scenario.expect import (
    DEFAULTS,
    NONE_FAILED,
    SCOPED,
    TCP_DEFAULTS,
    read_expectations,
    says_how_sends_complete,
)
from ibwire.scenario.flow_ends import Ends
from ibwire.scenario.flow_lists import ListContext
from ibwire.scenario.flows import ECT_0, is_tcp, read_flows, read_tcp, take_class
from ibwire.scenario.nodes import LINKS, Network, between, read_network
from ibwire.scenario.specs import ClassSpec, ConnectionSpec, Scenario, TcpSpec, WorkloadSpec
from ibwire.scenario.starts import take_start
from ibwire.scenario.workload import FIXED_SIZES, Between, Choice, Mistake, Receives, Traffic

MAXIMUM_MEMORY = 1 << 29
"""Bytes of message buffers in a run."""

MAXIMUM_LIMIT = 100_000 * S
"""Virtual time of a run; the times in a capture file have 32 bits for seconds."""

LARGEST_HEADERS = 160
"""Bytes of all headers of a packet, with VLAN tag, ICRC and telemetry."""

MAXIMUM_CONNECTIONS = 1 << 16

MAXIMUM_POSTED = 1 << 20
"""Most outstanding messages, and posted receives, in a run."""


def read_scenario(content: bytes, name: str, settings: Iterable[Setting] = ()) -> Scenario:
    """The scenario in a file; raises `ScriptError` with the place of the error.

    name: of the file, for messages and reports. settings: values in place of those in the file.
    """
    document = Document(content, name, settings)
    top = document.top
    _refuse_infiniband(top, name)
    seed = top.take_int("seed", 1, 0, (1 << 63) - 1)
    limit = top.take_time("limit", 10 * S)
    if limit > MAXIMUM_LIMIT:
        raise top.error("limit", f"more than {MAXIMUM_LIMIT // S} seconds")
    if not limit:
        raise top.error("limit", "expected a time above 0")
    max_frames = top.take_int("max_frames", 2_000_000, 1, 1 << 40)
    link = top.take_name("link", "rocev2", LINKS)
    network = read_network(top, link)
    nodes, wires = network.nodes, network.wires
    control = read_control(top.table("cc"))
    rates = {host: wire.rate_bps for wire in network.wires for host in wire.between}
    context = ListContext(Path(name).parent, seed, limit, rates)
    is_ecn = control is not None and control.has_cnps
    connections, workloads, tcp = _traffic(top, network, link, context, is_ecn=is_ecn)
    if control is not None and any(each.rate_bps for each in connections):
        raise top.error("cc", "decides on the rate, which a [[flow]] has too")
    payloads = [each.mtu for each in connections] + [each.mss for each in tcp]
    largest = max(payloads) + LARGEST_HEADERS + ETHERNET_OVERHEAD
    has_telemetry = control is not None and control.has_telemetry
    fabric = network.sized(largest, top, has_telemetry=has_telemetry)
    expected = top.table("expect")
    expectations = read_expectations(expected)
    top.end()
    given = {each.metric for each in expectations}
    usual = DEFAULTS + (TCP_DEFAULTS if tcp else ())
    defaults = tuple(each for each in usual if each.metric not in given)
    if not says_how_sends_complete(expectations):
        if any(says_how_sends_complete(each.expectations) for each in connections):
            connections = tuple(map(_with_none_failed, connections))
        else:
            defaults += (NONE_FAILED,)
    return Scenario(
        name=name,
        description=_description(content),
        seed=seed,
        limit=limit,
        max_frames=max_frames,
        link=link,
        nodes=nodes,
        wires=wires,
        connections=connections,
        workloads=workloads,
        expectations=defaults + expectations,
        tcp=tcp,
        fabric=fabric,
        control=control,
        files=tuple(map(str, context.files)),
    )


def _refuse_infiniband(top: Table, name: str) -> None:
    """Raise `ScriptError` for the topology of an InfiniBand fabric."""
    for key, kind in (("topology", str), ("link", list)):
        if isinstance(top.take(key), kind):
            says = f"says that this is an InfiniBand fabric: ibwire fabric traffic {name} runs it"
            raise top.error(key, says)


def _check_addresses(
    top: Table, connections: Iterable[ConnectionSpec], addresses: Mapping[str, str]
) -> None:
    """Raise `ScriptError` where the two ends of a connection have addresses of two kinds."""
    for connection in connections:
        versions = {f"IPv{ip_address(addresses[each]).version}" for each in connection.between}
        if len(versions) > 1:
            ends = " and ".join(f"{each} {addresses[each]}" for each in connection.between)
            says = f"connection {connection.name} has an IPv4 and an IPv6 address: {ends}"
            raise top.error("node", says)


def _with_none_failed(connection: ConnectionSpec) -> ConnectionSpec:
    if says_how_sends_complete(connection.expectations):
        return connection
    return replace(connection, expectations=(NONE_FAILED, *connection.expectations))


def _traffic(
    top: Table, network: Network, link: str, context: ListContext, *, is_ecn: bool
) -> tuple[tuple[ConnectionSpec, ...], tuple[WorkloadSpec, ...], tuple[TcpSpec, ...]]:
    """Connections with their workloads, flows, and TCP flows."""
    flows = top.tables("flow")
    has_connections = "workload" in top or "connection" in top or not flows
    if "topology" in top and not any(each in top for each in ("workload", "connection", "flow")):
        raise top.error("topology", "nothing is sent: write a [[flow]] with from, to and size")
    if link == "ib" and flows:
        raise top.error("flow", "flows have a DSCP, and native InfiniBand packets have none here")
    tcp_tables = [each for each in flows if is_tcp(each)]
    flows = [each for each in flows if not is_tcp(each)]
    connections = _connections(top, network, link) if has_connections else ()
    workloads = _workloads(top, connections, context.limit) if has_connections else ()
    ends = Ends(network.hosts, network.ports, network.island)
    found, traffic = read_flows(
        flows,
        ends,
        network.classes,
        is_ecn=is_ecn,
        taken={each.name: each for each in connections},
        context=context,
    )
    addresses = {node.name: node.address for node in network.nodes if not node.is_bridge}
    if link == "rocev2":
        _check_addresses(top, connections + found, addresses)
    tcp = read_tcp(tcp_tables, ends, network.classes, addresses, context.limit)
    _check_memory(top, found, traffic)
    return connections + found, workloads + traffic, tcp


def _check_memory(
    top: Table, flows: tuple[ConnectionSpec, ...], workloads: tuple[WorkloadSpec, ...]
) -> None:
    memory = {each.connection: each.traffic.memory for each in workloads}
    if sum(memory[each.name] * each.count for each in flows) > MAXIMUM_MEMORY:
        raise top.error(
            "flow",
            f"the messages under way would take more than {MAXIMUM_MEMORY >> 20} MiB: use a "
            "smaller `message` or `window`",
        )


def _connections(top: Table, network: Network, link: str) -> tuple[ConnectionSpec, ...]:
    hosts, island = network.hosts, network.island
    tables = top.tables("connection")
    if not tables:
        tables = [top.absent("connection")]
        if len(hosts) > 2 and "workload" in top:
            raise top.error(
                "workload",
                "there is no [[connection]] for it: write one with `between`, two of "
                + listed(hosts),
            )
    connections: list[ConnectionSpec] = []
    for index, table in enumerate(tables):
        default = "main" if len(tables) == 1 else f"c{index + 1}"
        connections.append(_connection(table, default, top, hosts, network.classes, link))
        if connections[-1].name in {each.name for each in connections[:-1]}:
            raise table.error("name", f"{connections[-1].name!r} is another connection's")
        a, b = connections[-1].between
        if island[a] != island[b]:
            raise table.error("between", f"no wires lead from {a} to {b}")
        if sum(each.count for each in connections) > MAXIMUM_CONNECTIONS:
            raise table.error("count", f"more than {MAXIMUM_CONNECTIONS} in all")
    return tuple(connections)


def _connection(
    table: Table,
    default: str,
    top: Table,
    hosts: Sequence[str],
    classes: Sequence[ClassSpec],
    link: str,
) -> ConnectionSpec:
    name = table.take_text("name", default)
    pair = between(table, top, hosts, "[[connection]]")
    count = table.take_int("count", 1, 1, MAXIMUM_CONNECTIONS)
    qp_type = _TYPES[table.take_name("type", "RC", _TYPES)]
    depth = table.take_int("depth", 128, 1, DeviceLimits().max_qp_wr)
    mtu = table.take_int("mtu", 1024, 0, 4096)
    if mtu not in MTU_CODES:
        sizes = ", ".join(map(str, MTU_CODES))
        raise table.error("mtu", f"{mtu} is not one of {sizes}")
    attributes = {}
    for key, (low, high) in _ATTRIBUTES.items():
        value = table.take_int(key, None, low, high)
        if value is not None:
            attributes[key] = value
    reads = table.take_int("max_rd_atomic", 16, 1, DeviceLimits().max_qp_rd_atom)
    attributes["max_rd_atomic"] = attributes["max_dest_rd_atomic"] = reads
    psn = _psn(table)
    traffic_class, priority = _traffic_class(table, classes, link)
    expectations = read_expectations(table.table("expect"), SCOPED)
    table.end()
    return ConnectionSpec(
        name=name,
        between=pair,
        count=count,
        qp_type=qp_type,
        depth=depth,
        psn=psn,
        mtu=mtu,
        traffic_class=traffic_class,
        attributes=attributes,
        expectations=expectations,
        priority=priority,
    )


def _traffic_class(table: Table, classes: Sequence[ClassSpec], link: str) -> tuple[int, int]:
    """The traffic class of packets, and their priority."""
    if "class" in table and link != "ib":
        if "traffic_class" in table:
            raise table.error("traffic_class", "class says it already")
        table.take("traffic_class")
        return take_class(table, classes, is_ecn=False)
    priority = table.take_int("priority", 0, 0, 7)
    traffic_class = table.take_int("traffic_class", 0, 0, 255)
    is_ecn = table.take_bool("ecn", False)
    if link == "ib" and (traffic_class or is_ecn):
        key = "traffic_class" if traffic_class else "ecn"
        raise table.error(key, "stands in a GRH, and native InfiniBand packets have none here")
    if is_ecn and traffic_class & 3:
        raise table.error("ecn", f"traffic_class {traffic_class} has ECN bits of its own")
    return traffic_class | ECT_0 if is_ecn else traffic_class, priority


def _psn(table: Table) -> tuple[int, int]:
    value = table.take("psn")
    if value is None:
        return 0, 0
    given = value if isinstance(value, list) else [value, value]
    if len(given) != 2:
        raise table.error("psn", f"{len(given)} numbers, expected two: one for each end")
    first, second = (table.integer("psn", each, 0, (1 << 24) - 1) for each in given)
    return first, second


def _workloads(
    top: Table, connections: tuple[ConnectionSpec, ...], end: Time
) -> tuple[WorkloadSpec, ...]:
    """The `[[workload]]` tables; end: of the run."""
    tables = top.tables("workload")
    if not tables:
        raise top.error(None, "there is no [[workload]], so nothing would happen")
    workloads: list[WorkloadSpec] = []
    memory = posted = 0
    by_name = {each.name: each for each in connections}
    for table in tables:
        names = _connection_names(table, list(by_name))
        for name in names:
            connection = by_name[name]
            workload = _workload(table, connection, end)
            if any((w.connection, w.sender) == (name, workload.sender) for w in workloads):
                raise table.error(None, f"{workload.sender} sends on {name} already")
            workloads.append(workload)
            memory += workload.traffic.memory * connection.count
            if memory > MAXIMUM_MEMORY:
                raise table.error(
                    None, f"the messages under way would take more than {MAXIMUM_MEMORY >> 20} MiB"
                )
            traffic = workload.traffic
            posted += (traffic.window + traffic.receives.posted) * connection.count
            if posted > MAXIMUM_POSTED:
                raise table.error(
                    None, f"more than {MAXIMUM_POSTED} messages under way and receives at once"
                )
        table.end()
    return tuple(workloads)


def _connection_names(table: Table, known: list[str]) -> list[str]:
    value = table.take("on")
    if value is None:
        return known
    return [
        table.name("on", each, known) for each in (value if isinstance(value, list) else [value])
    ]


def _workload(table: Table, connection: ConnectionSpec, end: Time) -> WorkloadSpec:
    sender = table.take_name("sender", connection.between[0], connection.between)
    opcodes = _opcodes(table, connection.qp_type)
    limit = connection.mtu if connection.qp_type is QPType.UD else _LARGEST
    sizes = _sizes(table, limit)
    count = table.take_int("count", 1, 1, 1 << 40)
    window = table.take_int("window", min(16, count, connection.depth), 1, 1 << 16)
    if window > connection.depth:
        raise table.error(
            "window",
            f"{window} messages under way, the depth of {connection.name} is {connection.depth}",
        )
    start = take_start(table, end)
    every = table.take_time("every", 0)
    inline = table.take_bool("inline", False)
    traffic = Traffic(
        opcodes=opcodes,
        sizes=sizes,
        count=count,
        window=window,
        start=start,
        receives=_receives(table, window, connection.depth, start),
        every=every,
        inline=inline,
        mistake=_mistake(table, count, inline, opcodes, sizes),
        traffic_class=connection.traffic_class,
    )
    if inline and traffic.largest > DeviceLimits().max_inline_data:
        raise table.error(
            "inline", f"messages of {traffic.largest} bytes, at most {_MAXIMUM_INLINE} fit"
        )
    return WorkloadSpec(connection.name, sender, traffic, table.take_time("stagger", 0))


def _opcodes(table: Table, qp_type: QPType) -> Choice[WROpcode]:
    value = table.take("opcode")
    if value is None:
        value = "SEND"
    names = {each.name: each for each in _SUPPORTED[qp_type]}
    if isinstance(value, dict):
        found = [names[table.name("opcode", name, names)] for name in value]
        return Choice(found, _weights(table, value))
    values = value if isinstance(value, list) else [value]
    if not values:
        raise table.error("opcode", "expected one or several")
    return Choice([names[table.name("opcode", name, names)] for name in values])


def _weights(table: Table, value: dict[str, Any]) -> list[int]:
    weights = [table.integer("opcode", weight, 0, 1 << 20) for weight in value.values()]
    if not sum(weights):
        raise table.error("opcode", "expected a table of opcodes with weights above 0")
    return weights


def _sizes(table: Table, limit: int) -> Choice[int] | Between:
    value = table.take("size")
    if value is None:
        value = min(4096, limit)
    if isinstance(value, dict):
        inside = table.table("size")
        assert inside is not None
        low, high = (inside.take_size(key, None, 0, limit) for key in ("min", "max"))
        inside.end()
        if low is None or high is None:
            raise table.error("size", "expected both min and max")
        if low > high:
            raise table.error("size", f"min {low} is above max {high}")
        return Between(low, high)
    values = value if isinstance(value, list) else [value]
    if not values:
        raise table.error("size", "expected one or several")
    return Choice([table.size("size", each, 0, limit) for each in values])


def _receives(table: Table, window: int, depth: int, start: Time) -> Receives:
    inside = table.table("receives")
    if inside is None:
        return Receives(window)
    receives = Receives(
        inside.take_int("posted", window, 1, depth),
        inside.take_time("start", 0),
        inside.take_time("service", 0),
        inside.take_bool("repost", True),
        inside.take_size("size", None, 0, _LARGEST),
    )
    inside.end()
    return receives


def _mistake(
    table: Table,
    count: int,
    inline: bool,
    opcodes: Choice[WROpcode],
    sizes: Choice[int] | Between,
) -> Mistake | None:
    inside = table.table("mistake")
    if inside is None:
        return None
    kind = inside.take_name("kind", None, _MISTAKES)
    if kind is None:
        raise inside.error(None, "kind is missing")
    if kind == "lkey" and inline:
        raise inside.error("kind", "inline data needs no key")
    message = inside.take_int("message", 1, 1, count)
    inside.end()
    possible, what = _MISTAKES[kind]
    for opcode in opcodes.possible(message - 1):
        if opcode not in possible:
            raise inside.error("kind", f"{opcode.name} has no {what}")
        if opcode not in FIXED_SIZES and 0 in sizes.possible(message - 1):
            raise inside.error("kind", "an empty message touches no memory")
    return Mistake(kind, message - 1)


def _description(content: bytes) -> str:
    lines = []
    for line in content.decode().splitlines():
        if not line.startswith("#"):
            break
        lines.append(line[1:].strip())
    return "\n".join(lines)


_TYPES = {"RC": QPType.RC, "UC": QPType.UC, "UD": QPType.UD}

_ATTRIBUTES = {
    "timeout": (0, 31),
    "retry_cnt": (0, 7),
    "rnr_retry": (0, 7),
    "min_rnr_timer": (0, 31),
}

_SUPPORTED: dict[QPType, tuple[WROpcode, ...]] = {
    QPType.RC: (
        WROpcode.SEND,
        WROpcode.SEND_WITH_IMM,
        WROpcode.RDMA_WRITE,
        WROpcode.RDMA_WRITE_WITH_IMM,
        WROpcode.RDMA_READ,
        WROpcode.ATOMIC_CMP_AND_SWP,
        WROpcode.ATOMIC_FETCH_AND_ADD,
        WROpcode.FLUSH,
        WROpcode.ATOMIC_WRITE,
    ),
    # Without an acknowledgement the time at which to check the result of a WRITE is unknown.
    QPType.UC: (WROpcode.SEND, WROpcode.SEND_WITH_IMM, WROpcode.RDMA_WRITE_WITH_IMM),
    QPType.UD: (WROpcode.SEND, WROpcode.SEND_WITH_IMM),
}

_REMOTE = frozenset(WROpcode) - {WROpcode.SEND, WROpcode.SEND_WITH_IMM}
_MISTAKES = {
    "rkey": (_REMOTE, "R_Key"),
    "bounds": (_REMOTE, "remote address"),
    "lkey": (frozenset(WROpcode) - {WROpcode.FLUSH, WROpcode.ATOMIC_WRITE}, "L_Key"),
}
"""Kind of mistake -> operations it applies to, and what the others lack."""

_LARGEST = 1 << 28
_MAXIMUM_INLINE = DeviceLimits().max_inline_data
