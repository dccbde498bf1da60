"""TCP flows of a scenario: hosts that have TCP connections beside their RDMA device."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address

from ibwire.base.node import OPEN, Frame, Grant, Node
from ibwire.base.units import S, Time
from ibwire.peer import Host
from ibwire.scenario.outcome import Metrics
from ibwire.scenario.specs import NodeSpec, TcpSpec
from ibwire.scenario.tcp import Address, Data, Receiver, Segment, Sender, State, pack, unpack

FIRST_PORT = 32768
SERVER_PORT = 5001
"""Of all receivers; the port that iperf listens at."""


class End:
    """One end of a connection on a host: a sender or a receiver with its addresses."""

    def __init__(
        self,
        machine: Sender | Receiver,
        spec: TcpSpec,
        own: Address,
        peer: Address,
        vlan: int | None,
    ) -> None:
        self.machine = machine
        self.priority = spec.priority
        self.own = own
        self.peer = peer
        self.after: Callable[[Time], None] = lambda now: None
        """Called after each segment that has arrived."""
        self._dscp = spec.dscp
        self._vlan = vlan
        self._identification = 0

    def receive(self, segment: Segment, now: Time) -> None:
        """Take a segment."""
        self.machine.receive(segment, now)
        self.after(now)

    def poll_transmit(self, now: Time) -> Frame | None:
        """The next frame."""
        segment = self.machine.poll_transmit(now)
        if segment is None:
            return None
        self._identification = self._identification + 1 & 0xFFFF
        return pack(
            segment,
            self.own,
            self.peer,
            dscp=self._dscp,
            vlan=self._vlan,
            priority=self.priority,
            identification=self._identification,
        )


class TcpHost:
    """A host whose port carries the frames of its device and of TCP connections in turn."""

    def __init__(self, host: Host) -> None:
        self.name = host.name
        self.host = host
        self.malformed = 0
        """TCP segments that are not whole, or have a wrong checksum."""
        self.unexpected = 0
        """Segments that belong to no connection here."""
        self._ends: dict[tuple[bytes, int, bytes, int], End] = {}
        self._order: list[End] = []
        self._turn = 0
        self._is_tcp_next = False

    def add(self, end: End) -> None:
        """Another connection."""
        self._ends[end.own.ip, end.own.port, end.peer.ip, end.peer.port] = end
        self._order.append(end)

    def receive(self, frame: Frame, now: Time, port: int = 0) -> None:
        """Take a frame: TCP over IPv4 is for a connection, all else for the device."""
        at = 18 if frame[12:14] == b"\x81\x00" else 14
        if frame[at - 2 : at] != b"\x08\x00" or frame[at + 9 : at + 10] != b"\x06":
            self.host.receive(frame, now, port)
            return
        found = unpack(frame)
        if found is None:
            self.malformed += 1
            return
        segment, source, target = found
        end = self._ends.get((*target, *source))
        if end is None:
            self.unexpected += 1
            return
        end.receive(segment, now)

    def poll_transmit(self, now: Time, port: int = 0, grant: Grant = OPEN) -> Frame | None:
        """The next frame, of the device and of connections in turn."""
        if self._is_tcp_next:
            frame = self._poll_connections(now, grant)
            if frame is not None:
                self._is_tcp_next = False
                return frame
        frame = self.host.poll_transmit(now, port, grant)
        if frame is not None:
            self._is_tcp_next = True
            return frame
        return None if self._is_tcp_next else self._poll_connections(now, grant)

    def _poll_connections(self, now: Time, grant: Grant) -> Frame | None:
        count = len(self._order)
        for number in range(count):
            end = self._order[(self._turn + number) % count]
            if grant.allows(end.priority, 0):
                frame = end.poll_transmit(now)
                if frame is not None:
                    self._turn = (self._turn + number + 1) % count
                    return frame
        return None

    def poll_timeout(self) -> Time | None:
        """When the device or a connection has work to do."""
        due = self.host.poll_timeout()
        for end in self._order:
            own = end.machine.poll_timeout()
            if own is not None and (due is None or own < due):
                due = own
        return due

    def handle_timeout(self, now: Time) -> None:
        """Do what is due by `now`."""
        self.host.handle_timeout(now)
        for end in self._order:
            end.machine.handle_timeout(now)


@dataclass(slots=True)
class TcpFlow:
    """A connection between two hosts, and what became of it."""

    spec: TcpSpec
    sender: Sender
    receiver: Receiver
    ended: Time | None = None
    """When everything was acknowledged."""

    @property
    def time(self) -> Time:
        """From the SYN to the last acknowledgement of data; 0 while it lasts."""
        return 0 if self.ended is None else self.ended - self.spec.start


def add_flows(
    specs: Sequence[TcpSpec],
    hosts: Mapping[str, TcpHost],
    nodes: Mapping[str, NodeSpec],
    seed: int,
) -> list[TcpFlow]:
    """The connections of all TCP flows, opened when they start."""
    found = []
    for number, spec in enumerate(specs):
        data = Data(f"{seed}/tcp/{number}", spec.mss)
        client = _address(hosts[spec.source], nodes[spec.source], FIRST_PORT + number % 28_000)
        server = _address(hosts[spec.target], nodes[spec.target], SERVER_PORT + number // 28_000)
        first = (number * 0x9E3779B1 + seed) & 0xFFFFFFFF
        sender = Sender(
            data,
            spec.size,
            mss=spec.mss,
            first=first,
            uses_ecn=spec.is_ecn,
            min_timeout=spec.min_timeout,
        )
        receiver = Receiver(data, mss=spec.mss, first=first ^ 0x55555555, uses_ecn=spec.is_ecn)
        flow = TcpFlow(spec, sender, receiver)
        near = End(sender, spec, client, server, nodes[spec.source].vlan)
        near.after = _noting(flow)
        hosts[spec.source].add(near)
        hosts[spec.target].add(End(receiver, spec, server, client, nodes[spec.target].vlan))
        hosts[spec.source].host.at(spec.start, _opening(sender))
        found.append(flow)
    return found


def tcp_hosts(specs: Iterable[TcpSpec], hosts: Mapping[str, Host]) -> dict[str, TcpHost]:
    """The hosts at which TCP flows begin or end."""
    names = dict.fromkeys(name for spec in specs for name in (spec.source, spec.target))
    return {name: TcpHost(hosts[name]) for name in names}


def node_of(host: Host, with_tcp: Mapping[str, TcpHost]) -> Node:
    """The node that stands for a host on its wire."""
    return with_tcp.get(host.name, host)


def tcp_metrics(flows: Sequence[TcpFlow], now: Time) -> Metrics:
    """The metrics of all TCP flows together. now: when the run ended."""
    done = [flow for flow in flows if flow.ended is not None]
    received = sum(flow.receiver.received for flow in flows)
    start = min((flow.spec.start for flow in flows), default=0)
    end = max((flow.ended or 0 for flow in done), default=0) if len(done) == len(flows) else now
    time = max(end - start, 0)
    return {
        "tcp.flows": len(flows),
        "tcp.unfinished": len(flows) - len(done),
        "tcp.bytes": received,
        "tcp.segments": sum(flow.sender.sent for flow in flows),
        "tcp.retransmitted": sum(flow.sender.retransmitted for flow in flows),
        "tcp.timeouts": sum(flow.sender.timeouts for flow in flows),
        "tcp.cuts": sum(flow.sender.cuts for flow in flows),
        "tcp.marked": sum(flow.receiver.marked for flow in flows),
        "tcp.wrong": sum(flow.receiver.wrong for flow in flows),
        "tcp.time": time,
        "tcp.goodput": received * 8 * S // time if time else 0,
    }


def _address(host: TcpHost, node: NodeSpec, port: int) -> Address:
    return Address(host.host.device.mac, IPv4Address(node.address).packed, port)


def _opening(sender: Sender) -> Callable[[Time], None]:
    return lambda now: sender.open()


def _noting(flow: TcpFlow) -> Callable[[Time], None]:
    """Notes when everything is acknowledged."""

    def note(now: Time) -> None:
        if flow.ended is None and flow.sender.state in (State.FIN_WAIT, State.DONE):
            flow.ended = now

    return note
