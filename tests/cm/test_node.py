"""From nothing to a message and back, between two devices on a wire: QP1 does the talking."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable, Iterable
from itertools import pairwise

import pytest

from ibwire.base.errors import VerbsError
from ibwire.base.node import Frame
from ibwire.base.units import MS, US, S, Time
from ibwire.cm import (
    Connection,
    Endpoints,
    EventKind,
    ManagedDevice,
    State,
    endpoints_of,
    reply,
    request,
    resolve_reply,
    resolve_request,
)
from ibwire.cm.node import ca_guid
from ibwire.fabric.sim import Simulator
from ibwire.rc.attributes import AddressVector, EventType, QPAttr, QPAttrMask, QPState, QPType
from ibwire.rc.device import Device
from ibwire.rc.qp import QueuePair
from ibwire.rc.states import TRANSITIONS
from ibwire.rc.work import SGE, RecvWR, SendWR, WCStatus
from ibwire.testing import create_queue_pair
from ibwire_layers import cm
from ibwire_layers.headers import DETH
from ibwire_layers.packet import Packet, RoCEv2Route

PORT = 7174
WORDS = b"words over a connection that was asked for"


class End:
    """A managed device, its queue pair and an application that connects or accepts."""

    def __init__(self, address: str, seed: int, qp_type: QPType, profile: str) -> None:
        # Not the MAC address that stands for the IP address: it has to be learnt.
        mac = bytes((2, 0xAB, 0, 0, 0, seed))
        made = Device(f"dev{seed}", address, mac=mac, profile=profile)
        self.node = ManagedDevice(made, random.Random(seed))
        device = self.node.device
        pd = device.alloc_pd()
        self.memory = pd.register(4096, 7)
        self.qp: QueuePair = create_queue_pair(device, pd=pd, qp_type=qp_type)
        self.connection: Connection | None = None
        self.told: list[EventKind] = []
        self.private_data: list[bytes] = []

    @property
    def sge(self) -> SGE:
        return SGE(self.memory.iova, len(WORDS), self.memory.lkey)


class Network:
    """A client and a server that listens."""

    def __init__(
        self,
        client: str,
        server: str,
        lose: Callable[[Packet], bool] = lambda packet: False,
        qp_type: QPType = QPType.RC,
        server_state: QPState = QPState.RTS,
        profile: str = "spec",
    ) -> None:
        self.client = End(client, 1, qp_type, profile)
        self.server = End(server, 2, qp_type, profile)
        self.server_state = server_state
        self.frames: list[tuple[str, Packet]] = []
        self.lose = lose
        self.sim = Simulator()
        self.sim.connect(
            self.client.node,
            self.server.node,
            a_to_b=self._stage("client"),
            b_to_a=self._stage("server"),
        )
        gids = self.client.node.device.gids + self.server.node.device.gids
        self.ends = Endpoints(gids[0], 39237, gids[1], PORT)
        self.server.node.manager.listen(self.ends.service_id)

    def _stage(self, sender: str) -> Callable[[Frame, Time], Iterable[tuple[Time, Frame]]]:
        def stage(frame: Frame, now: Time) -> list[tuple[Time, Frame]]:
            packet = Packet.parse(frame)
            self.frames.append((sender, packet))
            return [] if self.lose(packet) else [(0, frame)]

        return stage

    def connect(self, service: cm.TransportType = cm.TransportType.RC) -> None:
        ends = self.ends
        asked = request(
            service_id=ends.service_id,
            source=ends.source,
            destination=ends.destination,
            qpn=self.client.qp.number,
            starting_psn=0xFC17B7,
            flow_label=ends.flow_label,
            service=service,
            private_data=ends.private_data(b"hello"),
        )
        self.client.connection = self.client.node.manager.connect(asked, self.sim.now)

    def run(self, until: Callable[[], bool] = lambda: False, limit: Time = 200 * S) -> None:
        def stop() -> bool:
            for end in (self.client, self.server):
                self._serve(end)
            return until()

        self.sim.run(self.sim.now + limit, stop)

    def _serve(self, end: End) -> None:
        manager, now = end.node.manager, self.sim.now
        while (event := manager.poll_event()) is not None:
            end.told.append(event.kind)
            end.private_data.append(event.private_data)
            connection = event.connection
            if event.kind is EventKind.CONNECT_REQUEST:
                end.connection = connection
                answer = reply(qpn=end.qp.number, starting_psn=0x4BB17F, private_data=b"welcome")
                manager.accept(connection, answer, now)
                self._bring_up(end, connection)
            elif event.kind is EventKind.CONNECT_RESPONSE:
                self._bring_up(end, connection)
                manager.ready(connection, now)
            elif event.kind is EventKind.RESOLVE_REQUEST:
                manager.accept(connection, resolve_reply(end.qp.number), now)
            self.sim.kick(end.node)

    def _bring_up(self, end: End, connection: Connection) -> None:
        if end is self.server and self.server_state is QPState.RTR:
            receive_only(end.qp, connection)
        else:
            connection.bring_up(end.qp)
        end.qp.post_recv(RecvWR([end.sge], 5))

    @property
    def both_are_up(self) -> bool:
        ends = (self.client.connection, self.server.connection)
        return all(each is not None and each.state is State.ESTABLISHED for each in ends)

    def messages(self) -> list[str]:
        """Messages on QP1, by sender."""
        return [
            f"{sender} {cm.CMAttribute(int.from_bytes(packet.payload[16:18])).name}"
            for sender, packet in self.frames
            if packet.bth.dest_qp == 1
        ]

    def say(self, sender: End, receiver: End) -> bytes:
        """One SEND with the words; what the receiver has then."""
        sender.memory.write(sender.memory.iova, WORDS)
        sender.qp.post_send(SendWR(sg_list=[sender.sge], wr_id=9))
        self.sim.kick(sender.node)
        received = receiver.qp.recv_cq
        assert received is not None
        self.run(lambda: len(received) > 0)
        assert [(wc.wr_id, wc.status) for wc in received.poll(8)] == [(5, WCStatus.SUCCESS)]
        return receiver.memory.read(receiver.memory.iova, len(WORDS))


def receive_only(qp: QueuePair, connection: Connection) -> None:
    """Take a queue pair as far as RTR, as a server does that waits for the RTU."""
    address, attributes = connection.queue_pair_attributes()
    attr = QPAttr(ah_attr=address, **attributes)
    for before, state in pairwise((QPState.RESET, QPState.INIT, QPState.RTR)):
        attr.qp_state = state
        required = TRANSITIONS[qp.qp_type][before, state].required
        qp.modify(attr, required | QPAttrMask.STATE)


ADDRESSES = [("10.77.0.1", "10.77.0.2"), ("fd77::1", "fd77::2")]


@pytest.mark.parametrize(("client", "server"), ADDRESSES)
@pytest.mark.parametrize(
    ("qp_type", "service"),
    [(QPType.RC, cm.TransportType.RC), (QPType.UC, cm.TransportType.UC)],
)
def test_connection_carries_a_message_each_way_and_ends(
    client: str, server: str, qp_type: QPType, service: cm.TransportType
) -> None:
    net = Network(client, server, qp_type=qp_type)
    net.connect(service)
    net.run(lambda: net.both_are_up)

    assert net.say(net.client, net.server) == WORDS
    assert net.say(net.server, net.client) == WORDS

    assert net.client.connection is not None
    net.client.node.manager.disconnect(net.client.connection, net.sim.now)
    net.sim.kick(net.client.node)
    net.run()

    assert net.messages() == [
        "client REQ",
        "server REP",
        "client RTU",
        "client DREQ",
        "server DREP",
    ]
    last = [EventKind.DISCONNECTED, EventKind.TIMEWAIT_EXIT]
    assert net.client.told == [EventKind.CONNECT_RESPONSE, EventKind.ESTABLISHED, *last]
    assert net.server.told == [EventKind.CONNECT_REQUEST, EventKind.ESTABLISHED, *last]
    assert net.client.private_data[0].rstrip(b"\0") == b"welcome"
    assert net.client.node.poll_timeout() is net.server.node.poll_timeout() is None


def test_server_learns_who_asks_and_both_use_the_flow_label_of_the_ports() -> None:
    """cm-rping: UDP source port 60267 (reference/wire-formats#udp-source-port)."""
    net = Network(*ADDRESSES[0])
    net.connect()
    net.run(lambda: net.both_are_up)
    net.say(net.client, net.server)

    assert net.server.connection is not None
    asked = net.server.connection.request
    found = endpoints_of(asked)
    assert found is not None
    assert found[0] == net.ends
    assert found[1] == b"hello".ljust(56, b"\0")
    ports = set()
    for _, packet in net.frames:
        assert isinstance(packet.route, RoCEv2Route)
        ports.add((packet.bth.dest_qp == 1, packet.route.udp.src_port))
    assert ports == {(True, 55410), (False, 60267)}


def test_frames_of_qp1_are_datagrams_of_256_bytes() -> None:
    """As in cm-rping: 322 bytes over IPv4, UD SEND ONLY, Q_Key 0x80010000, from QP1 to QP1."""
    net = Network(*ADDRESSES[0])
    net.connect()
    net.run(lambda: net.both_are_up)

    for _, packet in net.frames:
        assert len(packet.build()) == 322
        assert (packet.bth.opcode, packet.bth.dest_qp, packet.bth.pkey) == (0x64, 1, 0xFFFF)
        assert packet.extensions == (DETH(qkey=0x80010000, src_qp=1),)


@pytest.mark.parametrize(("profile", "asks"), [("rxe", 1), ("spec", 0)])
def test_mads_ask_for_an_ack_where_the_profile_does(profile: str, asks: int) -> None:
    """tshark's infiniband.bth.a: 1 in cm-rping, 0 in docs/reference/habits.md#native-capture."""
    net = Network(*ADDRESSES[0], profile=profile)
    net.connect()
    net.run(lambda: net.both_are_up)

    assert {packet.bth.ack_req for _, packet in net.frames} == {asks}
    assert len(net.frames) == 3


def test_other_datagrams_of_rxe_do_not_ask_for_an_ack() -> None:
    """tshark's infiniband.bth.a in ud-pingpong: always 0."""
    net = Network(*ADDRESSES[0], profile="rxe")
    device = net.client.node.device
    pd = device.alloc_pd()
    qp = create_queue_pair(device, pd=pd, qp_type=QPType.UD)
    attr = QPAttr(qkey=1)
    for before, state in pairwise((QPState.RESET, QPState.INIT, QPState.RTR, QPState.RTS)):
        attr.qp_state = state
        required = TRANSITIONS[QPType.UD][before, state].required
        qp.modify(attr, required | QPAttrMask.STATE)
    qp.post_send(SendWR(ah=AddressVector(dgid=net.ends.destination), remote_qpn=0x50))
    net.sim.kick(net.client.node)
    net.run()

    assert [packet.bth.ack_req for _, packet in net.frames] == [0]


def test_server_answers_to_the_mac_address_that_asked() -> None:
    """It knows no address: without an ARP of its own it takes the way back."""
    net = Network(*ADDRESSES[0])
    net.connect()
    net.run(lambda: net.both_are_up)
    net.say(net.server, net.client)

    to_client = {packet.route.eth.dst for sender, packet in net.frames if sender == "server"}
    assert to_client == {0x02AB_0000_0001}
    assert len(net.frames) == 5  # REQ, REP, RTU, SEND, ACK


def test_data_stands_for_an_rtu_that_is_lost() -> None:
    """COMM_EST: the server's queue pair is in RTR until a message shows the client is there."""
    lost = lambda packet: packet.bth.dest_qp == 1 and packet.payload[17] == 0x14  # noqa: E731
    net = Network(*ADDRESSES[0], lose=lost, server_state=QPState.RTR)
    server = net.server
    net.connect()
    net.run(lambda: net.client.told[-1:] == [EventKind.ESTABLISHED])
    assert server.connection is not None
    assert server.connection.state is State.REP_SENT

    net.client.qp.post_send(SendWR(sg_list=[net.client.sge]))
    net.sim.kick(net.client.node)
    net.run(lambda: server.told[-1:] == [EventKind.ESTABLISHED], limit=100 * MS)

    assert server.connection.state is State.ESTABLISHED  # type: ignore[comparison-overlap]
    assert [event.event_type for event in server.node.device.events] == [EventType.COMM_EST]


def test_nobody_listening_is_said_at_once() -> None:
    net = Network(*ADDRESSES[0])
    net.server.node.manager.unlisten(next(iter(net.server.node.manager.listeners.values())))
    net.connect()
    net.run()

    assert net.client.told == [EventKind.REJECTED]
    assert net.messages() == ["client REQ", "server REJ"]


def test_service_of_datagrams_is_resolved_to_its_queue_pair() -> None:
    net = Network(*ADDRESSES[1])
    ends = Endpoints(net.ends.source, 57222, net.ends.destination, PORT, space=cm.PortSpace.UDP)
    net.server.node.manager.listen(ends.service_id)
    way = AddressVector(dgid=ends.destination)
    asked = net.client.node.manager.resolve(resolve_request(ends), way, 0)
    net.run()

    assert net.messages() == ["client SIDR_REQ", "server SIDR_REP"]
    assert isinstance(asked.reply, cm.SIDR_REP)
    assert (asked.reply.qpn, asked.reply.qkey) == (net.server.qp.number, 0x01234567)


def test_unreachable_peer_is_asked_sixteen_times() -> None:
    net = Network(*ADDRESSES[0], lose=lambda packet: True)
    net.connect()
    net.run()

    assert net.client.told == [EventKind.UNREACHABLE]
    assert net.messages() == ["client REQ"] * 16 + ["client REJ"]


def test_guid_is_made_of_the_mac() -> None:
    """Both from cm-rping: Ethernet source and LocalCAGUID of its first frame."""
    assert ca_guid(bytes.fromhex("525400770001")) == 0x505400FFFE770001


def test_floods_of_mads_leave_qp1_working() -> None:
    """More than QP1 has receives for, one after the other and with answers to each."""
    net = Network(*ADDRESSES[0])
    for n in range(300):
        net.client.node.manager.connect(
            request(
                service_id=99,
                source=net.ends.source,
                destination=net.ends.destination,
                qpn=n,
                starting_psn=0,
            ),
            0,
        )
    net.run(limit=1 * MS + 300 * US)

    assert net.client.told == [EventKind.REJECTED] * 300


def ask(asker: ManagedDevice, server: Device) -> Frame:
    """A request for a service without a listener."""
    asked = request(
        service_id=99,
        source=asker.device.gids[0],
        destination=server.gids[0],
        qpn=1,
        starting_psn=0,
    )
    asker.manager.connect(asked, 0)
    frame = asker.poll_transmit(0)
    assert frame is not None
    return frame


def test_peers_that_ask_by_turns_have_their_own_answers() -> None:
    macs = [bytes((2, 0xAB, 0, 0, 0, last)) for last in range(3)]
    server, *peers = (
        ManagedDevice(Device(f"dev{n}", f"10.77.0.{n + 1}", mac=mac), random.Random(n))
        for n, mac in enumerate(macs)
    )

    for mac, asker in [*zip(macs[1:], peers, strict=True)] * 2:
        server.receive(ask(asker, server.device), 0)
        answer = server.poll_transmit(0)
        assert answer is not None
        for peer in peers:
            peer.receive(answer, 0)

        assert answer[:6] == mac
        for peer in peers:
            event = peer.manager.poll_event()
            assert (event and event.kind) == (EventKind.REJECTED if peer is asker else None)


def test_nobody_can_post_to_qp1() -> None:
    """Its completion queue is never polled, and would overrun."""
    node = Network(*ADDRESSES[0]).client.node

    with pytest.raises(VerbsError) as sending:
        node.qp1.post_send(SendWR(ah=AddressVector(dgid=node.device.gids[0]), remote_qpn=1))
    with pytest.raises(VerbsError) as receiving:
        node.qp1.post_recv(RecvWR([]))

    assert sending.value.errno == receiving.value.errno == errno.ENOMEM


def test_messages_wait_while_qp1_may_not_send() -> None:
    net = Network(*ADDRESSES[0])
    node = net.client.node
    attr = QPAttr(qp_state=QPState.SQD)
    node.qp1.modify(attr, QPAttrMask.STATE)

    net.connect()
    assert node.poll_transmit(0) is None

    attr.qp_state = QPState.RTS
    node.qp1.modify(attr, QPAttrMask.STATE)
    assert node.poll_transmit(0) is not None


def test_nothing_leaves_from_a_qp1_that_is_in_error_or_closed() -> None:
    net = Network(*ADDRESSES[0])
    node = net.client.node
    net.connect()

    node.qp1.modify(QPAttr(qp_state=QPState.ERR), QPAttrMask.STATE)
    assert node.poll_transmit(0) is None

    node.qp1.close()
    assert node.poll_transmit(0) is None
