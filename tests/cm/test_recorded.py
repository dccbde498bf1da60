"""Exchanges of Linux connection managers, taken part in: the same inputs, the same messages.

Each host of a capture gets a manager. What its application decided is read off the
capture (which queue pair, which PSN, when it accepted or disconnected), and so are the
numbers that are free (communication and transaction IDs); every byte of every message
must then be as recorded.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from ibwire.base.units import NS
from ibwire.capture import open_capture
from ibwire.cm import (
    Connection,
    ConnectionManager,
    Endpoints,
    State,
    endpoints_of,
    reply,
    request,
    resolve_reply,
    resolve_request,
)
from ibwire.cm.messages import Message, decode
from ibwire.rc.attributes import AddressVector
from ibwire.rc.device import flow_source_port
from ibwire.rc.path import V4_MAPPED
from ibwire_layers import cm
from ibwire_layers.packet import Packet, RoCEv2Route
from ibwire_layers.walk import walk

CAPTURES = Path(__file__).parents[2] / "captures"
GUIDS = {"::1": 0x505400FFFE770001, "::2": 0x505400FFFE770002}
"""Of the two guests, as tshark prints them; both end their addresses in 1 and 2."""

PORTS = {
    "cm-rping": {7174},
    "cm-reject": {7174},
    "cm-ucmatose": {7471},
}
"""Ports that the servers of these tools listen to (rping, rdma-core's examples)."""


@dataclass(frozen=True)
class Recorded:
    number: int
    time: int
    sender: int
    receiver: int
    mad: bytes
    transaction_id: int
    message: Message
    traffic_class: int


def recorded(path: Path) -> list[Recorded]:
    found = []
    with open_capture(path) as capture:
        for number, record in enumerate(capture.records(), 1):
            if not walk(record.data).protocol.is_rdma:
                continue  # neighbour discovery
            packet = Packet.parse(record.data)
            if packet.bth.dest_qp != 1:
                continue
            route = packet.route
            assert isinstance(route, RoCEv2Route)
            ip = route.ip
            mapped = V4_MAPPED if ip.version == 4 else 0
            received = decode(bytes(packet.payload))
            assert received is not None
            found.append(
                Recorded(
                    number,
                    record.time_ns * NS,
                    mapped | ip.src,
                    mapped | ip.dst,
                    bytes(packet.payload),
                    received.transaction_id,
                    received.message,
                    ip.dscp << 2 | ip.ecn,
                )
            )
    return found


def own_id(message: Message) -> int:
    if isinstance(message, cm.SIDR_REQ | cm.SIDR_REP):
        return message.request_id
    return message.local_comm_id


class Host:
    """One end: a manager, and an application that does what the capture shows."""

    def __init__(self, gid: int, rows: list[Recorded], ports: set[int]) -> None:
        self.gid = gid
        self.manager = ConnectionManager([gid], GUIDS[f"::{gid & 0xF}"], self._ids(rows))
        self.listeners = [
            self.manager.listen(cm.rdma_cm_service_id(space, port))
            for port in ports
            for space in (cm.PortSpace.TCP, cm.PortSpace.UDP)
        ]

    def _ids(self, rows: list[Recorded]) -> Iterator[tuple[int, int]]:
        """IDs in the order of connections: those that are ours, and those that REQs begin."""
        transactions: dict[int, int] = {}
        for row in rows:
            if row.sender == self.gid and isinstance(row.message, cm.REQ | cm.DREQ | cm.SIDR_REQ):
                transactions.setdefault(own_id(row.message), row.transaction_id)
        for row in rows:
            message = row.message
            if not isinstance(message, cm.REQ | cm.SIDR_REQ):
                continue
            if row.sender == self.gid:
                yield own_id(message), row.transaction_id
                continue
            answer = next(
                (
                    other.message.local_comm_id
                    for other in rows
                    if isinstance(other.message, cm.REP)
                    and other.message.remote_comm_id == own_id(message)
                ),
                0xFFFF,  # never seen: the request is refused, or resolved
            )
            yield answer, transactions.get(answer, 0)

    def connection(self, local_id: int) -> Connection:
        return next(c for c in self.manager.connections if c.local_id == local_id)

    def say(self, row: Recorded) -> None:
        """Have the application do what leads to a recorded message, if anything must."""
        message, manager = row.message, self.manager
        match message:
            case cm.REQ():
                manager.connect(as_asked(row), row.time)
            case cm.SIDR_REQ():
                found = endpoints_of(message)
                assert found is not None
                peer = AddressVector(dgid=row.receiver)
                manager.resolve(resolve_request(*found), peer, row.time)
            case cm.REP():
                answer = reply(
                    qpn=message.local_qpn,
                    starting_psn=message.starting_psn,
                    responder_resources=message.responder_resources,
                    initiator_depth=message.initiator_depth,
                )
                manager.accept(self.connection(message.local_comm_id), answer, row.time)
            case cm.SIDR_REP():
                waiting = [c for c in manager.connections if c.state is State.SIDR_REQ_RCVD]
                manager.accept(waiting[0], resolve_reply(message.qpn), row.time)
            case cm.RTU():
                manager.ready(self.connection(message.local_comm_id), row.time)
            case cm.DREQ():
                manager.disconnect(self.connection(message.local_comm_id), row.time)

    def sent(self, now: int) -> list[tuple[bytes, AddressVector]]:
        return list(iter(lambda: self.manager.poll_transmit(now), None))


def as_asked(row: Recorded) -> cm.REQ:
    """A REQ made from what the application knew: addresses, ports, queue pair, PSN, its limits."""
    message = row.message
    assert isinstance(message, cm.REQ)
    found = endpoints_of(message)
    assert found is not None
    seen, data = found
    ends = Endpoints(row.sender, seen.source_port, row.receiver, seen.destination_port)
    return request(
        service_id=ends.service_id,
        source=row.sender,
        destination=row.receiver,
        qpn=message.local_qpn,
        starting_psn=message.starting_psn,
        mtu=4096,
        responder_resources=message.responder_resources,
        initiator_depth=message.initiator_depth,
        retry_count=message.retry_count,
        rnr_retry_count=message.rnr_retry_count,
        flow_label=ends.flow_label,
        traffic_class=row.traffic_class,
        private_data=ends.private_data(data),
    )


def take_part(path: Path, ports: set[int], *, stop: int | None = None) -> dict[int, Host]:
    """Hold two managers against a capture, or its first `stop` messages; the hosts by GID."""
    rows = recorded(path)
    silent = {row.receiver for row in rows if isinstance(row.message, cm.REJ)}
    nobody = {row.sender for row in rows if isinstance(row.message, cm.REJ)}
    gids = {row.sender for row in rows} | silent
    hosts = {gid: Host(gid, rows, set() if gid in nobody else ports) for gid in gids}
    waiting: dict[int, list[bytes]] = {gid: [] for gid in gids}
    inbox: dict[int, list[Recorded]] = {gid: [] for gid in gids}

    def deliver(gid: int, *, only_before_dreq: bool = False) -> None:
        while inbox[gid] and not (only_before_dreq and isinstance(inbox[gid][0].message, cm.DREQ)):
            row = inbox[gid].pop(0)
            way = AddressVector(dgid=row.sender, traffic_class=row.traffic_class)
            hosts[gid].manager.handle_mad(row.mad, way, row.time)
            waiting[gid] += [mad for mad, _ in hosts[gid].sent(row.time)]

    for row in rows[:stop]:
        host, ready = hosts[row.sender], waiting[row.sender]
        # Two DREQs may cross: the application had decided before it could hear the other.
        deliver(row.sender, only_before_dreq=isinstance(row.message, cm.DREQ))
        host.manager.handle_timeout(row.time)
        if row.mad not in ready:
            host.say(row)
            ready += [mad for mad, to in host.sent(row.time) if to.dgid == row.receiver]
        assert ready.pop(0).hex() == row.mad.hex(), f"{path.name}: packet {row.number}"
        inbox[row.receiver].append(row)
    for gid in gids:
        deliver(gid)
    assert not any(waiting.values())
    return hosts


@pytest.mark.parametrize("name", PORTS)
def test_messages_are_those_of_linux(name: str) -> None:
    hosts = take_part(CAPTURES / f"{name}.pcap", PORTS[name])

    # An end that has closed a connection lingers and then has none.
    for host in hosts.values():
        while (due := host.manager.poll_timeout()) is not None:
            host.manager.handle_timeout(due)
        assert len(host.manager.connections) == 0


@pytest.mark.parametrize(
    ("name", "count"), [("cm-rping", 5), ("cm-reject", 2), ("cm-ucmatose", 15)]
)
def test_every_message_of_a_capture_is_compared(name: str, count: int) -> None:
    """Counts are tshark's of packets to QP1."""
    assert len(recorded(CAPTURES / f"{name}.pcap")) == count


def test_queue_pairs_are_set_to_what_the_data_packets_show() -> None:
    """cm-rping: the first request of each direction, and what REQ and REP say in tshark.

    The client's first PSN is the one that the server named, and the other way round.
    """
    hosts = take_part(CAPTURES / "cm-rping.pcap", {7174}, stop=3)
    seen: dict[int, tuple[int, int, int]] = {}
    with open_capture(CAPTURES / "cm-rping.pcap") as capture:
        for record in capture.records():
            packet = Packet.parse(record.data)
            route = packet.route
            assert isinstance(route, RoCEv2Route)
            if packet.bth.opcode in (0x04, 0x0A, 0x0C):  # SEND, WRITE, READ
                key = V4_MAPPED | route.ip.src
                seen.setdefault(key, (packet.bth.dest_qp, packet.bth.psn, route.udp.src_port))

    assert set(seen) == set(hosts)
    for gid, host in hosts.items():
        (connection,) = host.manager.connections
        (peer,) = (other for other in seen if other != gid)
        address, attr = connection.queue_pair_attributes()
        assert connection.state is State.ESTABLISHED
        assert address.dgid == peer
        port = flow_source_port(address.flow_label)
        assert (attr["dest_qp_num"], attr["sq_psn"], port) == seen[gid]
        assert attr["rq_psn"] == seen[peer][1]
        assert attr["path_mtu"] == 5
        assert (attr["timeout"], attr["retry_cnt"], attr["rnr_retry"]) == (19, 7, 7)
        assert (attr["max_rd_atomic"], attr["max_dest_rd_atomic"]) == (1, 1)


def test_a_request_has_the_bytes_of_the_captured_one() -> None:
    row = recorded(CAPTURES / "cm-rping.pcap")[0]

    made = replace(as_asked(row), local_comm_id=0xD934C02E, local_ca_guid=0x505400FFFE770001)

    assert made == row.message
    assert made.primary_flow_label == 174945  # reference/wire-formats#udp-source-port
