"""What a running fabric tells about itself, and what can be done to it, as JSON objects."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from ibwire.base.errors import EncodeError, LinkError
from ibwire.fabric.infiniband.counters import COUNTERS
from ibwire.fabric.infiniband.routing import Engine
from ibwire.fabric.infiniband.subnet import IS_SM, NO_PORT, Node, Port, Subnet, rate_name
from ibwire.sm.configuration import (
    PKEYS_OF_A_BLOCK,
    Partition,
    Settings,
    pkeys_of,
    read_partition,
    with_default,
)
from ibwire.sm.management import Management
from ibwire.sm.manager import SubnetManager
from ibwire.sm.recording import Recording
from ibwire_layers.attributes import PortPhysicalState, PortState

Answer = dict[str, Any]

ALL = "all"
"""In place of ports: all links."""


class Control:
    """The commands of one fabric.

    management: of its nodes. attach: the variables with which a program runs on a host.
    """

    def __init__(self, management: Management, attach: Callable[[str], dict[str, str]]) -> None:
        self.management = management
        self.subnet: Subnet = management.subnet
        self._attach = attach
        self._recording: Recording | None = None
        self._failed: dict[tuple[str, int], tuple[Port, Port]] = {}

    def __call__(self, command: dict[str, Any]) -> Answer:
        """The answer to a command; raises `EncodeError`, and for a capture `LinkError` too."""
        handlers: dict[str, Callable[[dict[str, Any]], Answer]] = {
            "attach": self._attached,
            "show": self._show,
            "route": self._route,
            "counters": self._counters,
            "fail": self._fail,
            "restore": self._restore,
            "manage": self._manage,
            "capture": self._capture,
        }
        handler = handlers.get(str(command.get("command")))
        if handler is None:
            raise EncodeError("command", command.get("command"), f"one of {', '.join(handlers)}")
        self.management.settle()
        return handler(command)

    def _attached(self, command: dict[str, Any]) -> Answer:
        return {"environment": self._attach(str(command["host"]))}

    def _show(self, command: dict[str, Any]) -> Answer:
        rows = []
        for node in self.subnet.nodes.values():
            if not node.is_switch:
                rows += [_row(port) for port in node.external_ports()]
                continue
            rows += [_row(port) for port in node.external_ports() if port.peer is not None]
        return {"rows": rows}

    def _route(self, command: dict[str, Any]) -> Answer:
        start = _adapter(self.subnet.node(str(command["source"])))
        end = _adapter(self.subnet.node(str(command["destination"])))
        return {"rows": route(start, end)}

    def _counters(self, command: dict[str, Any]) -> Answer:
        name = command.get("node")
        nodes = [self.subnet.node(str(name))] if name else list(self.subnet.nodes.values())
        rows = []
        for node in nodes:
            for port in node.external_ports():
                if port.peer is None and not name:
                    continue
                counters = port.counters
                shown = {each: getattr(counters, each) for each in COUNTERS}
                rows.append({"node": node.name, "port": port.number, **shown})
        return {"rows": rows}

    def _manage(self, command: dict[str, Any]) -> Answer:
        """Start or end a subnet manager of our own on a host."""
        node = self.subnet.node(str(command["host"]))
        managed = [port for port in node.ports if port in self.management.managers]
        if command.get("stop"):
            if not managed:
                raise EncodeError("host", node.name, "one with a subnet manager of ibwire")
            for port in managed:
                self.management.remove_manager(port)
            return {"host": node.name}
        if managed:
            raise EncodeError("host", node.name, "one without a subnet manager")
        if not has_link(node):
            raise EncodeError("host", node.name, "one with a link")
        settings = settings_of(command)
        partitions = tuple(self._with_guids(each) for each in settings.partitions)
        settings = replace(settings, partitions=partitions)
        for port in self.subnet.host_ports():
            count = len(pkeys_of(port, settings))
            if count > PKEYS_OF_A_BLOCK:
                expected = f"at most {PKEYS_OF_A_BLOCK}, with the default one"
                raise EncodeError(f"partitions of {_name(port)}", count, expected)
        start_manager(self.management, _adapter(node), settings)
        return {"host": node.name}

    def _with_guids(self, partition: Partition) -> Partition:
        """A partition with GUIDs in place of names, as its manager knows descriptions only.

        Raises `EncodeError` for a member that the fabric has not.
        """
        guids: dict[str, list[str]] = {}
        for node in self.subnet.nodes.values():
            if not node.is_switch:
                own = [f"0x{port.guid:x}" for port in node.external_ports()]
                guids.update({guid: [guid] for guid in own})
                guids[node.name] = own
                guids.setdefault(node.description, [node.description])
        guids["ALL"] = ["ALL"]

        def found(members: tuple[str, ...]) -> tuple[str, ...]:
            for member in members:
                if member not in guids:
                    name = f"member of the partition {partition.name}"
                    raise EncodeError(name, member, "a host of this fabric, or ALL")
            return tuple(guid for member in members for guid in guids[member])

        return replace(partition, full=found(partition.full), limited=found(partition.limited))

    def _capture(self, command: dict[str, Any]) -> Answer:
        """Start or end a capture; the number of packets of the one that ends."""
        running = self._recording
        if command.get("stop"):
            if running is None:
                raise LinkError("capture", "none is running")
            self.close()
            return {"packets": running.packets}
        if running is not None:
            raise LinkError("capture", "one is running; --stop ends it")
        taps = command.get("taps") or ()
        if taps == ALL:
            # One end of each: every packet is in the file once for each link that it passes.
            ports = [port for port, _ in self.subnet.links()]
        else:
            ports = [self.subnet.port(str(name), int(number)) for name, number in taps]
        self._recording = Recording(Path(str(command["file"])), ports or self.subnet.host_ports())
        self.management.on_packet = self._recording.passes
        return {}

    def close(self) -> None:
        """End what runs."""
        recording, self._recording = self._recording, None
        self.management.on_packet = None
        if recording is not None:
            recording.close()

    def _fail(self, command: dict[str, Any]) -> Answer:
        port = self.subnet.port(str(command["node"]), _whole(command, "port", None))
        peer = port.peer
        errors = command.get("errors")
        if errors is not None and peer is not None:
            if not isinstance(errors, (int, float)):
                raise EncodeError("bit error rate", errors, "a number")
            for end in (port, peer):
                self.management.damage(end, errors)
            return {"link": f"{_name(port)} - {_name(peer)}"}
        self.subnet.disconnect(port)
        assert peer is not None
        for key in ((port.node.name, port.number), (peer.node.name, peer.number)):
            self._failed[key] = (port, peer)
        return {"link": f"{_name(port)} - {_name(peer)}"}

    def _restore(self, command: dict[str, Any]) -> Answer:
        key = self.subnet.node(str(command["node"])).name, _whole(command, "port", None)
        found = self._failed.get(key)
        damaged = self.subnet.port(*key)
        if self.management.damages(damaged):
            ends = found or (damaged, damaged.peer)
            for end in ends:
                if end is not None:
                    self.management.damage(end, 0)
            if found is None and damaged.peer is not None:
                return {"link": f"{_name(damaged)} - {_name(damaged.peer)}"}
        if found is None:
            raise EncodeError("link", f"{key[0]}[{key[1]}]", "one that was failed")
        port, peer = found
        for end in found:
            self._failed.pop((end.node.name, end.number), None)
        self.subnet.reconnect(port, peer)
        return {"link": f"{_name(port)} - {_name(peer)}"}


def route(start: Port, end: Port) -> list[Answer]:
    """The hops from one node to another by the tables of the switches.

    start, end: a port of an adapter, or port 0 of a switch. Each hop with the node, the port it
    comes in by and the port it leaves by; `problem` says at the last one why the packet does not
    arrive.
    """
    lid = end.lid
    rows: list[Answer] = [{"node": start.node.name, "in": None, "out": start.number or None}]
    if lid == 0:
        rows[-1]["problem"] = f"{end.node.name} has no LID: no subnet manager has been here"
        return rows
    passed: set[Node] = set()
    node, came = start.node, start
    while node not in passed:
        if node.is_switch:
            passed.add(node)
        out = node.route(lid) if node.is_switch else start.number
        if came is end or (node.is_switch and out == 0):
            rows[-1]["out"] = None
            if came.management is not end:
                rows[-1]["problem"] = f"this is not {end.node.name}"
            return rows
        if not node.is_switch and len(rows) > 1:
            rows[-1]["problem"] = f"this is not {end.node.name}"
            return rows
        rows[-1]["out"] = None if out == NO_PORT else out
        if out == NO_PORT or out > node.num_ports:
            rows[-1]["problem"] = f"no route to LID {lid}"
            return rows
        peer = node.ports[out].peer
        if peer is None or not peer.is_up:
            rows[-1]["problem"] = "the link is down"
            return rows
        node, came = peer.node, peer
        rows.append({"node": node.name, "in": came.number, "out": None})
    rows.pop()  # where it has been before
    rows[-1]["problem"] = "the route is a loop"
    return rows


def settings_of(command: dict[str, Any]) -> Settings:
    """The settings in a command; raises `EncodeError`."""
    engine = str(command.get("engine", Engine.MINHOP.value))
    if engine not in list(Engine):
        raise EncodeError("routing", engine, f"one of {', '.join(Engine)}")
    roots = command.get("roots", ())
    if not isinstance(roots, (list, tuple)):
        raise EncodeError("roots", roots, "a list of switches")
    partitions = command.get("partitions", ())
    if not isinstance(partitions, (list, tuple)):
        raise EncodeError("partitions", partitions, "a list")
    return Settings(
        priority=_whole(command, "priority"),
        engine=Engine(engine),
        roots=tuple(map(str, roots)),
        lmc=_whole(command, "lmc"),
        partitions=with_default([read_partition(str(each)) for each in partitions]),
        lanes=_whole(command, "lanes"),
        mkey=_whole(command, "mkey"),
        mkey_protect=_whole(command, "mkey_protect", 1),
        mkey_lease=_whole(command, "mkey_lease"),
        poll_interval=_whole(command, "poll", 10),
    )


def _whole(command: dict[str, Any], key: str, default: int | None = 0) -> int:
    """The number of a key; raises `EncodeError` if it is none."""
    value = command.get(key, default)
    if not isinstance(value, int):
        raise EncodeError(key, value, "a whole number")
    return value


def start_manager(management: Management, port: Port, settings: Settings) -> SubnetManager:
    """Let a subnet manager run at a port; raises `EncodeError` if one does."""
    if port in management.managers or port.capability_mask & IS_SM:
        raise EncodeError("host", port.node.name, "one without a subnet manager")
    manager = SubnetManager(settings, lambda datagram: management.send(datagram, port))
    management.add_manager(port, manager)
    return manager


def has_link(node: Node) -> bool:
    """Whether a port of a node is connected."""
    return any(port.peer is not None for port in node.external_ports())


def _adapter(node: Node) -> Port:
    """The port that stands for a node: one with a link before others, then one with a LID."""
    if node.is_switch:
        return node.ports[0]
    return max(node.external_ports(), key=lambda port: (port.peer is not None, port.lid > 0))


def _name(port: Port) -> str:
    return f"{port.node.name}[{port.number}]"


def _row(port: Port) -> Answer:
    peer = port.peer
    state = port.state
    return {
        "node": port.node.name,
        "kind": "switch" if port.node.is_switch else "adapter",
        "port": port.number,
        "lid": port.management.lid,
        "state": PortState(state).name.lower() if state <= PortState.ACTIVE_DEFER else str(state),
        "physical": PortPhysicalState(port.physical_state).name.lower(),
        "link": rate_name(port),
        "peer": None if peer is None else peer.node.name,
        "peer_port": None if peer is None else peer.number,
        "is_sm": bool(port.management.capability_mask & IS_SM),
    }
