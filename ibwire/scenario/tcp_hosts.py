"""TCP flows of a scenario: hosts that have TCP connections beside their RDMA device."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from ipaddress import IPv4Address
from itertools import count

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
        self.is_queued = False
        """Whether it waits for its turn to send."""
        self.observe: Callable[[bool, Segment, Time], None] | None = None
        """Called for each segment that leaves (true) or has arrived (false)."""
        self.armed: Time | None = None
        """When its timer in the host's heap is due."""
        self._dscp = spec.dscp
        self._vlan = vlan
        self._identification = 0

    def receive(self, segment: Segment, now: Time) -> None:
        """Take a segment."""
        if self.observe is not None:
            self.observe(False, segment, now)
        self.machine.receive(segment, now)
        self.after(now)

    def poll_transmit(self, now: Time) -> Frame | None:
        """The next frame."""
        segment = self.machine.poll_transmit(now)
        if segment is None:
            return None
        if self.observe is not None:
            self.observe(True, segment, now)
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
        self.dropped = 0
        """TCP segments that are not whole, have a wrong checksum, or are of no connection here."""
        self._ends: dict[tuple[bytes, int, bytes, int], End] = {}
        self._queues: dict[int, deque[tuple[int, End]]] = {}
        """Connections that may have a frame, by priority, each with its place in the order."""
        self._place = count(1).__next__
        self._timers: list[tuple[Time, int, End]] = []
        """A heap; an entry counts while it is what its connection is armed for."""
        self._is_tcp_next = False

    def add(self, end: End) -> None:
        """Another connection."""
        self._ends[end.own.ip, end.own.port, end.peer.ip, end.peer.port] = end
        self._queues.setdefault(end.priority, deque())

    def wake(self, end: End) -> None:
        """A connection may have a frame to send, and its timer may have changed."""
        if not end.is_queued:
            end.is_queued = True
            self._queues[end.priority].append((self._place(), end))
        self._arm(end)

    def _arm(self, end: End) -> None:
        """Have the timer of a connection in the heap, at its time or before."""
        due = end.machine.poll_timeout()
        if due is not None and (end.armed is None or due < end.armed):
            end.armed = due
            heappush(self._timers, (due, self._place(), end))

    def receive(self, frame: Frame, now: Time, port: int = 0) -> None:
        """Take a frame: TCP over IPv4 is for a connection, all else for the device."""
        at = 18 if frame[12:14] == b"\x81\x00" else 14
        if frame[at - 2 : at] != b"\x08\x00" or frame[at + 9 : at + 10] != b"\x06":
            self.host.receive(frame, now, port)
            return
        found = unpack(frame)
        end = None
        if found is not None:
            segment, source, target = found
            end = self._ends.get((*target, *source))
        if end is None:
            self.dropped += 1
            return
        end.receive(segment, now)
        self.wake(end)

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
        """A frame of the connection that has waited longest and may send."""
        open_queues = [
            queue for lane, queue in self._queues.items() if queue and grant.allows(lane, 0)
        ]
        while open_queues:
            queue = min(open_queues, key=_first_place)
            _, end = queue.popleft()
            frame = end.poll_transmit(now)
            end.is_queued = False
            if frame is not None:
                self.wake(end)
                return frame
            if not queue:
                open_queues.remove(queue)
        return None

    def poll_timeout(self) -> Time | None:
        """When the device or a connection has work to do."""
        due = self.host.poll_timeout()
        timers = self._timers
        while timers:
            first, _, end = timers[0]
            if first == end.armed and first == end.machine.poll_timeout():
                return first if due is None or first < due else due
            heappop(timers)
            if first == end.armed:  # it has changed since
                end.armed = None
                self._arm(end)
        return due

    def handle_timeout(self, now: Time) -> None:
        """Do what is due by `now`."""
        self.host.handle_timeout(now)
        timers = self._timers
        while timers and timers[0][0] <= now:
            due, _, end = heappop(timers)
            if due == end.armed:
                end.armed = None
                end.machine.handle_timeout(now)
                self.wake(end)


def _first_place(queue: deque[tuple[int, End]]) -> int:
    return queue[0][0]


@dataclass(slots=True)
class TcpFlow:
    """A connection between two hosts, and what became of it."""

    spec: TcpSpec
    sender: Sender
    receiver: Receiver
    ends: tuple[End, End]
    """Of the sender and of the receiver."""
    ended: Time | None = None
    """When everything was acknowledged."""


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
        near = End(sender, spec, client, server, nodes[spec.source].vlan)
        far = End(receiver, spec, server, client, nodes[spec.target].vlan)
        flow = TcpFlow(spec, sender, receiver, (near, far))
        near.after = _noting(flow)
        hosts[spec.source].add(near)
        hosts[spec.target].add(far)
        hosts[spec.source].host.at(spec.start, _opening(hosts[spec.source], near))
        found.append(flow)
    return found


def tcp_hosts(specs: Iterable[TcpSpec], hosts: Mapping[str, Host]) -> dict[str, TcpHost]:
    """The hosts at which TCP flows begin or end."""
    names = dict.fromkeys(name for spec in specs for name in (spec.source, spec.target))
    return {name: TcpHost(hosts[name]) for name in names}


def node_of(host: Host, with_tcp: Mapping[str, TcpHost]) -> Node:
    """The node that stands for a host on its wire."""
    return with_tcp.get(host.name, host)


def tcp_metrics(flows: Sequence[TcpFlow], hosts: Iterable[TcpHost], now: Time) -> Metrics:
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
        "tcp.dropped": sum(host.dropped for host in hosts),
        "tcp.wrong": sum(flow.receiver.wrong for flow in flows),
        "tcp.time": time,
        "tcp.goodput": received * 8 * S // time if time else 0,
    }


def unfinished(flows: Sequence[TcpFlow]) -> list[str]:
    """A sentence for each flow whose data is not all acknowledged."""
    found = []
    for flow in flows:
        if flow.ended is None:
            spec = flow.spec
            done = f"{flow.sender.una:,} of {spec.size:,} bytes acknowledged"
            found.append(f"tcp flow {spec.name}, {spec.source} to {spec.target}: {done}")
    return found


def _address(host: TcpHost, node: NodeSpec, port: int) -> Address:
    return Address(host.host.device.mac, IPv4Address(node.address).packed, port)


def _opening(host: TcpHost, end: End) -> Callable[[Time], None]:
    def open_connection(now: Time) -> None:
        assert isinstance(end.machine, Sender)
        end.machine.open()
        host.wake(end)

    return open_connection


def _noting(flow: TcpFlow) -> Callable[[Time], None]:
    """Notes when everything is acknowledged."""

    def note(now: Time) -> None:
        if flow.ended is None and flow.sender.state in (State.FIN_WAIT, State.DONE):
            flow.ended = now

    return note
