"""Reads the nodes and wires of a scenario, with switches between them or without.

The reference of the language is docs/scenarios.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from fnmatch import fnmatchcase
from ipaddress import ip_address
from typing import Any

from ibwire.base.errors import EncodeError, VerbsError
from ibwire.base.toml import Table, hint, listed, shown
from ibwire.base.units import ETHERNET_OVERHEAD, Time
from ibwire.fabric.llr import LLR, WhileDown
from ibwire.fabric.lossless import Outage, PauseStorm
from ibwire.fabric.pause import LANES, LONGEST
from ibwire.fabric.topology import Link, Topology
from ibwire.impair import PlanError, build_pipe
from ibwire.rc.device import gid_of
from ibwire.rc.profile import NETWORK_PROFILES, SPEC, Profile
from ibwire.scenario.specs import ClassSpec, FabricSpec, NodeSpec, WireSpec
from ibwire.scenario.switches import (
    DEFAULT_CLASSES,
    MAXIMUM_PORTS,
    check_buffers,
    check_neighbours,
    read_switches,
    read_topology,
    take_rate,
)
from ibwire_layers.outer import LinkType

LARGEST_OVERHEAD = 1000

LINKS = {
    "rocev2": LinkType.ETHERNET,
    "rocev1": LinkType.ETHERNET,
    "ib": LinkType.INFINIBAND,
}


@dataclass(frozen=True, slots=True)
class Network:
    """Nodes, wires and switches, as read."""

    nodes: tuple[NodeSpec, ...]
    wires: tuple[WireSpec, ...]
    island: Mapping[str, str]
    """Node -> one of those that it can reach, the same for all of these."""
    classes: tuple[ClassSpec, ...] = DEFAULT_CLASSES
    fabric: FabricSpec | None = None
    switch_tables: Sequence[Table] = ()

    @property
    def hosts(self) -> list[str]:
        """The names of the hosts; of one with several ports, those of its ports."""
        return [node.name for node in self.nodes if not node.is_bridge]

    @property
    def ports(self) -> dict[str, list[str]]:
        """The names of the ports of each host that has several."""
        return ports_of(self.nodes)

    def sized(self, largest_frame: int, top: Table, *, has_telemetry: bool) -> FabricSpec | None:
        """The switches, for frames of this size; refuses those whose buffer is too small."""
        if self.fabric is None:
            return None
        fabric = self.fabric
        check_buffers(self.switch_tables, fabric.topology, fabric.switches, largest_frame, top)
        return replace(fabric, largest_frame=largest_frame, has_telemetry=has_telemetry)


def read_network(top: Table, link: str) -> Network:
    """The nodes, wires and switches of a scenario."""
    table, switches = top.table("topology"), top.tables("switch")
    if table is None and not switches:
        for key in ("outage", "storm"):
            if key in top:
                raise top.error(key, "needs a network of switches: a [topology] or [[switch]]")
        nodes = _nodes(top, link)
        wires = _wires(top, nodes, link)
        if any(wire.llr for wire in wires):
            raise top.error("wire", "llr needs a network of switches")
        return Network(nodes, wires, _islands(nodes, wires))
    if link == "ib":
        raise top.error("link", "switches are those of Ethernet: a native InfiniBand has none here")
    if table is not None:
        topology, nodes, wires = _of_form(table, top, link)
        base, found = read_switches(switches, topology.switches)
    else:
        base, found = read_switches(switches, None)
        topology, nodes, wires = _of_parts(top, switches, list(found), link)
    try:
        topology.routed({name: spec.routes for name, spec in found.items()})
    except EncodeError as error:
        place = next((each for each in reversed(switches) if "route" in each), top)
        raise place.error("route", str(error).removeprefix(f"{error.field}: ")) from None
    check_neighbours(switches, topology, found)
    cut = next((name for name, spec in found.items() if spec.is_cut_through), None)
    if cut is not None and any(wire.llr for wire in wires if cut in wire.between):
        raise top.error("switch", f"cut_through of {cut}: llr checks whole frames")
    fabric = FabricSpec(
        topology=topology,
        switches=found,
        outages=_outages(top, topology),
        storms=_storms(top, topology),
        reroute_after=top.take_time("reroute_after", 0),
    )
    return Network(nodes, wires, topology.parts, base.classes, fabric, switches)


def ports_of(nodes: Sequence[NodeSpec]) -> dict[str, list[str]]:
    """The names of the ports of each host that has several."""
    found: dict[str, list[str]] = {}
    for node in nodes:
        if node.host:
            found.setdefault(node.host, []).append(node.name)
    return found


def _of_form(
    table: Table, top: Table, link: str
) -> tuple[Topology, tuple[NodeSpec, ...], tuple[WireSpec, ...]]:
    """The network of a `[topology]`, with what `[[node]]` and `[[wire]]` change of it."""
    topology = read_topology(table)
    overhead = table.take_int("overhead", ETHERNET_OVERHEAD, 0, LARGEST_OVERHEAD)
    llr = _llr(table, None)
    table.end()
    nodes = {
        name: NodeSpec(name, _address(at), host=name.partition(".")[0] if "." in name else "")
        for at, name in enumerate(topology.hosts)
    }
    hosts = ports_of(list(nodes.values()))
    seen: set[str] = set()
    for each in top.tables("node"):
        name = each.take_text("name", "*")
        chosen = [host for host in nodes if fnmatchcase(host, name)] or [
            port for host, ports in hosts.items() if fnmatchcase(host, name) for port in ports
        ]
        if not chosen:
            near = hint(name, [*nodes, *hosts])
            raise each.error("name", f"no host is called {shown(name)}{near}")
        if name in seen:
            raise each.error("name", f"{name!r} is the name of another [[node]]")
        seen.add(name)
        for key in ("bridge", "address"):
            if key in each:
                raise each.error(key, "the hosts of a [topology] have none of their own")
        if "ports" in each:
            raise each.error("ports", "is a key of [topology], for all of its hosts")
        spec = _host(each, name, "")
        for host in chosen:
            nodes[host] = replace(nodes[host], profile=spec.profile, vlan=spec.vlan)
    wires = [
        WireSpec((each.a, each.b), each.rate_bps, each.delay, overhead=overhead, llr=llr)
        for each in topology.links
    ]
    _change_wires(top, topology, wires, link)
    links = [Link(*wire.between, wire.rate_bps, wire.delay) for wire in wires]
    in_parts = len(set(topology.parts.values())) > 1
    changed = Topology(topology.hosts, topology.switches, links, in_parts=in_parts)
    return changed, tuple(nodes.values()), tuple(wires)


def _change_wires(top: Table, topology: Topology, wires: list[WireSpec], link: str) -> None:
    names = [*topology.hosts, *topology.switches]
    places = {frozenset(wire.between): at for at, wire in enumerate(wires)}
    seen: set[int] = set()
    for table in top.tables("wire"):
        pair = between(table, top, names, "[[wire]]")
        at = places.get(frozenset(pair))
        if at is None:
            raise table.error(
                "between", f"the topology has no link between {pair[0]} and {pair[1]}"
            )
        if at in seen:
            raise table.error("between", f"{pair[0]} and {pair[1]} have a [[wire]] already")
        seen.add(at)
        wires[at] = replace(_wire(table, pair, link, wires[at]), between=wires[at].between)


def _of_parts(
    top: Table, tables: Sequence[Table], switches: list[str], link: str
) -> tuple[Topology, tuple[NodeSpec, ...], tuple[WireSpec, ...]]:
    """The network of `[[node]]`, `[[switch]]` and `[[wire]]`."""
    if not switches:
        raise tables[0].error(None, "name is missing, and there is no [topology]")
    nodes = _nodes(top, link)
    for node in nodes:
        if node.is_bridge or node.name in switches:
            what = "a bridge" if node.is_bridge else "a switch too"
            raise top.error("node", f"{node.name} is {what}: give it a name of its own, as a host")
    given = top.tables("wire")
    if not given:
        raise top.error(None, "there is no [[wire]] between hosts and switches")
    names = [*(node.name for node in nodes), *switches]
    wires = [_wire(table, between(table, top, names, "[[wire]]"), link) for table in given]
    links = [Link(*wire.between, wire.rate_bps, wire.delay) for wire in wires]
    in_parts = any(node.host for node in nodes)
    try:
        topology = Topology([node.name for node in nodes], switches, links, in_parts=in_parts)
    except EncodeError as error:
        raise top.error("wire", str(error).removeprefix(f"{error.field}: ")) from None
    return topology, nodes, tuple(wires)


def _llr(table: Table, base: LLR | None) -> LLR | None:
    """Link-level retry: false, true, or a table of its settings."""
    if not isinstance(table.take("llr"), dict):
        return (base or LLR()) if table.take_bool("llr", base is not None) else None
    inside = table.table("llr")
    assert inside is not None
    start = base or LLR()
    try:
        found = LLR(
            frames=inside.take_int("frames", start.frames, 1, 1 << 19),
            size_bytes=inside.take_size("size_bytes", start.size_bytes, 1, 1 << 30),
            replay_timer=inside.take_time("replay_timer", start.replay_timer),
            replay_count_max=inside.take_int(
                "replay_count_max", start.replay_count_max, 0, 1 << 20
            ),
            data_age_timeout=inside.take_time("data_age_timeout", start.data_age_timeout),
            pcs_lost_timeout=inside.take_time("pcs_lost_timeout", start.pcs_lost_timeout),
            re_init_on_flush=inside.take_bool("re_init_on_flush", start.re_init_on_flush),
            ack_spacing=inside.take_int("ack_spacing", start.ack_spacing, 1, 1 << 20),
            sequence_bits=inside.take_int("sequence_bits", start.sequence_bits, 2, 24),
            while_down=WhileDown(
                inside.take_name(
                    "while_down", start.while_down.value, [each.value for each in WhileDown]
                )
            ),
        )
    except EncodeError as error:
        raise inside.error(error.field, str(error).removeprefix(f"{error.field}: ")) from None
    inside.end()
    return found


def _storms(top: Table, topology: Topology) -> tuple[PauseStorm, ...]:
    found = []
    for table in top.tables("storm"):
        host = table.take_name("host", None, topology.hosts)
        if host is None:
            raise table.error(None, "host is missing: the one that sends pauses")
        priority = table.take("priority")
        values = [3] if priority is None else priority if isinstance(priority, list) else [priority]
        lanes = tuple(table.integer("priority", each, 0, LANES - 1) for each in values)
        if "until" not in table:
            raise table.error(None, "until is missing: when the host stops sending pauses")
        start, until = table.take_time("start", 0), table.take_time("until", 0)
        if until <= start:
            raise table.error("until", "expected a time after `start`")
        quanta = table.take_int("quanta", LONGEST, 2, LONGEST)
        table.end()
        found.append(PauseStorm(host=host, start=start, end=until, priorities=lanes, quanta=quanta))
    return tuple(found)


def _outages(top: Table, topology: Topology) -> tuple[Outage, ...]:
    found = []
    names = [*topology.hosts, *topology.switches]
    for table in top.tables("outage"):
        pair = set(between(table, top, names, "[[outage]]"))
        link = next((each for each in topology.links if {each.a, each.b} == pair), None)
        if link is None:
            raise table.error("between", "no link is between them")
        at = table.take_time("at", 0)
        until: Time | None = None
        if "until" in table:
            until = table.take_time("until", 0)
            if until <= at:
                raise table.error("until", "expected a time after `at`")
        table.take("until")
        table.end()
        found.append(Outage(link, at, until))
    return tuple(found)


def _nodes(top: Table, link: str) -> tuple[NodeSpec, ...]:
    nodes: list[NodeSpec] = []
    names: set[str] = set()
    addresses: set[int] = set()
    for table in top.tables("node"):
        found = _node(table, len([each for each in nodes if not each.is_bridge]))
        for name in dict.fromkeys([found[0].host, *(each.name for each in found)]):
            if name in names:
                raise table.error("name", f"{name!r} is the name of another node")
            if name:
                names.add(name)
        for each in found:
            if not each.address:
                continue
            if gid_of(each.address) in addresses:
                raise table.error("address", f"{each.address} is another node's")
            addresses.add(gid_of(each.address))
        if found[0].is_bridge and link == "ib":
            raise table.error("bridge", "native InfiniBand has no bridges here")
        nodes += found
    if not nodes:
        nodes = [NodeSpec("a", _address(0)), NodeSpec("b", _address(1))]
    if len(nodes) < 2:
        raise top.error("node", "a network has two nodes at least, or none to have a and b")
    return tuple(nodes)


def _node(table: Table, hosts: int) -> list[NodeSpec]:
    """A node, or the ports of a host with several; hosts: how many have been read."""
    name = table.take_text("name", None)
    if name is None:
        raise table.error(None, "name is missing")
    if table.take_bool("bridge", False):
        queue_frames = table.take_int("queue", 1024, 1, 1 << 20)
        table.end()
        return [NodeSpec(name, is_bridge=True, queue_frames=queue_frames)]
    has_ports = "ports" in table
    ports = table.take_int("ports", 1, 1, MAXIMUM_PORTS)
    addresses = _addresses(table, ports) or [_address(hosts + port) for port in range(ports)]
    spec = _host(table, name, addresses[0])
    if not has_ports:
        return [spec]
    return [
        replace(spec, name=f"{name}.{port}", address=address, host=name)
        for port, address in enumerate(addresses)
    ]


def _addresses(table: Table, ports: int) -> list[str]:
    """The addresses of the ports of a host, as far as they are given."""
    value = table.take("address")
    if value is None:
        return []
    values = value if isinstance(value, list) else [value]
    if not all(isinstance(each, str) and each for each in values):
        raise table.error("address", f"{shown(value)} is no address, and no array of them")
    if len(values) != ports:
        count = f"{len(values)} address{'' if len(values) == 1 else 'es'}"
        raise table.error("address", f"{count} for {ports} port{'' if ports == 1 else 's'}")
    for number, each in enumerate(values):
        try:
            gid_of(each)
        except VerbsError as error:
            raise table.error("address", error.reason) from None
        if not _is_unicast(each):
            raise table.error("address", f"{each} is not the address of one host")
        if gid_of(each) in map(gid_of, values[:number]):
            raise table.error("address", f"{each} twice")
    return values


def _is_unicast(address: str) -> bool:
    found = ip_address(address)
    is_broadcast = found == ip_address("255.255.255.255")
    return not (found.is_multicast or found.is_unspecified or is_broadcast)


def _host(table: Table, name: str, address: str) -> NodeSpec:
    profile = NETWORK_PROFILES[table.take_name("profile", SPEC.name, NETWORK_PROFILES)]
    changes = table.table("override")
    if changes is not None:
        profile = _changed(profile, changes)
    vlan = table.take_int("vlan", None, 1, 4094)
    table.end()
    return NodeSpec(name, address, profile, vlan=vlan)


def _changed(profile: Profile, table: Table) -> Profile:
    """A profile with other values of those fields that are numbers or truth values."""
    changes: dict[str, Any] = {}
    for each in fields(Profile):
        value = getattr(profile, each.name)
        if type(value) is bool:
            changes[each.name] = table.take_bool(each.name, value)
        elif each.name in _TIMES:
            changes[each.name] = table.take_time(each.name, value)
            if value and not changes[each.name]:
                raise table.error(each.name, "expected a time above 0")
        elif type(value) is int:  # and no member of an enumeration
            lowest = 1 if each.name == "burst_packets" else 0
            highest = _PROFILE_BITS.get(each.name, (1 << 23) - 1)
            changes[each.name] = table.take_int(each.name, value, lowest, highest)
    table.end()
    return replace(profile, **changes)


def _wires(top: Table, nodes: tuple[NodeSpec, ...], link: str) -> tuple[WireSpec, ...]:
    tables = top.tables("wire")
    if not tables:
        return (WireSpec(_two(top, [node.name for node in nodes], "[[wire]]")),)
    wires: list[WireSpec] = []
    taken: set[str] = set()
    ports = {node.name for node in nodes if node.host}
    for table in tables:
        wire = _wire(table, between(table, top, [each.name for each in nodes], "[[wire]]"), link)
        for name in wire.between:
            if name in taken:
                what = "is one port" if name in ports else "has one port"
                raise table.error("between", f"{name} {what}, and a wire is there already")
        taken |= {node.name for node in nodes if node.name in wire.between and not node.is_bridge}
        island = _islands(nodes, wires)
        if island[wire.between[0]] == island[wire.between[1]]:
            raise table.error("between", "a second way between the same nodes: frames would circle")
        wires.append(wire)
    return tuple(wires)


def _wire(table: Table, pair: tuple[str, str], link: str, base: WireSpec | None = None) -> WireSpec:
    base = base or WireSpec(pair)
    faults: dict[str, list[Any]] = {}
    given = table.table("faults")
    if given is not None:
        for name in pair:
            rules = given.take(name)
            if rules is None:
                continue
            rules = [rules] if isinstance(rules, dict) else rules
            try:
                build_pipe(rules, path=(*given.path, name), link_type=LINKS[link])
            except PlanError as error:
                raise table.error_at(error.key_path, error.reason, at_key=error.at_key) from None
            faults[name] = rules
        given.end()
    wire = WireSpec(
        pair,
        take_rate(table, "rate", base.rate_bps),
        table.take_time("delay", base.delay),
        table.take_int("mtu", None, 64, 1 << 16),
        faults,
        table.take_int("overhead", base.overhead, 0, LARGEST_OVERHEAD),
        _llr(table, base.llr),
    )
    table.end()
    return wire


def _islands(nodes: tuple[NodeSpec, ...], wires: Sequence[WireSpec]) -> dict[str, str]:
    """Node -> one of those that it can reach over the wires, the same for all of these."""
    island = {node.name: node.name for node in nodes}
    for wire in wires:
        a, b = (island[name] for name in wire.between)
        island = {name: b if root == a else root for name, root in island.items()}
    return island


def between(table: Table, top: Table, names: Sequence[str], what: str) -> tuple[str, str]:
    """The two nodes of `between`; when there are just two, they need not be named."""
    value = table.take("between")
    if value is None:
        return _two(table, names, what)
    if not isinstance(value, list) or len(value) != 2:
        raise table.error("between", f"{shown(value)} is not two nodes")
    first, second = (table.name("between", each, names) for each in value)
    if first == second:
        raise table.error("between", f"{first} twice")
    return first, second


def _two(table: Table, names: Sequence[str], what: str) -> tuple[str, str]:
    if len(names) != 2:
        raise table.error(None, f"{what} must say between which two of {listed(names)}")
    return names[0], names[1]


def _address(host: int) -> str:
    return f"10.0.{(host + 1) >> 8}.{(host + 1) & 255}"


_PROFILE_BITS = {"mig_req": 1, "request_reserved": 0x3F}
"""Highest value of profile fields that stand in packets."""

_TIMES = ("timer_granularity", "rnr_granularity", "timeout_low", "timeout_high")
