"""What a subnet manager finds: the nodes, ports and links that answer, as a subnet of its own."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field

from ibwire.fabric.infiniband.subnet import IS_SM, Node, Port, Subnet
from ibwire.sm.asking import Answer, Ask
from ibwire_layers.attributes import NodeInfo, NodeType, PortState, SMAttribute

MAXIMUM_HOPS = 63
"""Hops of a directed route."""

Steps = Generator[list[Ask], list[Answer], None]
"""Batches of questions; each is resumed with its answers, `PAUSE` without any."""

PAUSE: list[Ask] = []
"""A batch that is none: work that takes long gives others a turn."""


@dataclass(slots=True)
class View:
    """What is known of a subnet.

    own: the port of the manager. paths: directed routes to the ports of adapters, and to port 0 of
    switches. problems: sentences about what is wrong.
    """

    subnet: Subnet = field(default_factory=Subnet)
    own: Port | None = None
    paths: dict[Port, tuple[int, ...]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def path(self, port: Port) -> tuple[int, ...]:
        """The directed route for questions about a port: an adapter answers where they arrive."""
        return self.paths[port.management]

    def end_ports(self) -> list[Port]:
        """Ports that have LIDs: of adapters that were reached, and port 0 of switches."""
        return [port for node in self.subnet.nodes.values() for port in end_ports_of(node)]

    def managers(self) -> list[Port]:
        """Ports of others on which a subnet manager runs."""
        return [
            port
            for port in self.end_ports()
            if port is not self.own and port.capability_mask & IS_SM
        ]

    def port_by_lid(self, lid: int) -> Port | None:
        """The end port of a LID."""
        return next((port for port in self.end_ports() if port.has_lid(lid)), None)


def end_ports_of(node: Node) -> list[Port]:
    """The ports of a node that have LIDs, as far as they were reached."""
    if node.is_switch:
        return node.ports[:1]
    return [port for port in node.external_ports() if port.guid]


@dataclass(slots=True, frozen=True)
class _Probe:
    """A node to ask for its name: the way to it, and the port it is behind."""

    path: tuple[int, ...]
    behind: Port | None


def discover(view: View) -> Steps:
    """Find everything that the links that are up lead to, from the manager's node on."""
    probes = [_Probe((), None)]
    while probes:
        answers = yield [Ask(probe.path, SMAttribute.NODE_INFO) for probe in probes]
        arrived: list[tuple[Port, tuple[int, ...]]] = []
        for probe, answer in zip(probes, answers, strict=True):
            if answer is None:
                if probe.behind is not None:
                    view.problems.append(f"{_name(probe.behind)}: what is there does not answer")
                continue
            port = _take(view, probe, NodeInfo.unpack(answer))
            if port is not None:
                arrived.append((port, probe.path))
        yield from _read(arrived)
        probes = [probe for port, path in arrived for probe in _onward(view, port, path)]


def _take(view: View, probe: _Probe, info: NodeInfo) -> Port | None:
    """Enter the node at the end of a path; the port that was reached, if it is new."""
    name = f"{info.node_guid:016x}"
    node = view.subnet.nodes.get(name)
    if info.num_ports == 0 or info.local_port_num > info.num_ports:
        view.problems.append(f"{name}: {info.num_ports} ports, reached by {info.local_port_num}")
        return None
    is_new = node is None
    if node is None:
        node = Node(
            name,
            is_switch=info.node_type == NodeType.SWITCH,
            guid=info.node_guid,
            num_ports=info.num_ports,
            port_guids=dict.fromkeys(range(1, info.num_ports + 1), 0),
            system_guid=info.system_image_guid,
            vendor_id=info.vendor_id,
            device_id=info.device_id,
            pkey_cap=info.partition_cap,
        )
        view.subnet.add(node)
        for each in node.ports:
            each.pkeys = bytearray()  # until it is read
    elif node.num_ports != info.num_ports:
        view.problems.append(f"two nodes have the GUID 0x{name}")
        return None
    port = node.ports[info.local_port_num]
    view.paths.setdefault(port.management, probe.path)
    if not node.is_switch:
        is_new = is_new or port.guid == 0
        port.guid = info.port_guid
    if probe.behind is None:
        view.own = node.ports[0] if node.is_switch else port
    elif port.peer is None and probe.behind.peer is None:
        port.peer, probe.behind.peer = probe.behind, port
    elif port.peer is not probe.behind:
        view.problems.append(f"two nodes have the GUID 0x{name}")
    return port if is_new else None


def _read(arrived: list[tuple[Port, tuple[int, ...]]]) -> Steps:
    """Read descriptions, tables and ports of new nodes."""
    asks: list[Ask] = []
    for port, path in arrived:
        asks.append(Ask(path, SMAttribute.NODE_DESCRIPTION))
        if port.node.is_switch:
            asks.append(Ask(path, SMAttribute.SWITCH_INFO))
        asks += [Ask(path, SMAttribute.PORT_INFO, each.number) for each in _ports(port)]
    answers = iter((yield asks))
    for port, _ in arrived:
        node = port.node
        text = next(answers)
        if text is not None:
            node.description = text.split(b"\0")[0].decode(errors="replace")
        if node.is_switch and (info := next(answers)) is not None:
            node.info[:] = info
        for each in _ports(port):
            info = next(answers)
            if info is None:
                each.state = PortState.DOWN
            else:
                each.info[:] = info


def _ports(port: Port) -> list[Port]:
    return port.node.ports if port.node.is_switch else [port]


def _onward(view: View, port: Port, path: tuple[int, ...]) -> list[_Probe]:
    """The links of a node that was just reached."""
    node = port.node
    if len(path) >= MAXIMUM_HOPS:
        return []
    if node.is_switch:
        return [
            _Probe((*path, each.number), each)
            for each in node.external_ports()
            if each.is_up and each.peer is None
        ]
    return [_Probe((port.number,), port)] if not path and port.is_up else []


def _name(port: Port) -> str:
    return f"{port.node.description}[{port.number}]"
