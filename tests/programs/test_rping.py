"""The two sides of rping in virtual time: as captured, with each other, with a wrong peer."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from ibwire.base.errors import PeerError, VerbsError
from ibwire.base.node import Frame
from ibwire.base.units import S, Time
from ibwire.capture import open_capture
from ibwire.fabric.sim import Simulator
from ibwire.programs.rping import ADVERT_SIZE, Advert, Client, Server, ping_data
from ibwire.rc.attributes import QPCap
from ibwire.rc.connect import ALL_ACCESS, connect
from ibwire.rc.device import Device
from ibwire.rc.profile import PROFILES
from ibwire.rc.qp import QueuePair
from ibwire.rc.work import SGE, RecvWR, SendFlags, SendWR
from ibwire.testing import create_queue_pair
from ibwire_layers.headers import RETH
from ibwire_layers.opcodes import OpCode
from ibwire_layers.packet import Packet, RoCEv2Route

CAPTURE = Path(__file__).parents[2] / "captures" / "cm-rping.pcap"
"""rping -c -C 10 of 64 bytes at 10.77.0.1, rping -s at 10.77.0.2."""

Stage = Callable[[Frame, Time], list[tuple[Time, Frame]]]


class Said(NamedTuple):
    sender: str
    opcode: int
    payload: bytes


def recorded() -> Iterator[tuple[Said, Packet]]:
    """What is said over the connection itself."""
    with open_capture(CAPTURE) as capture:
        for record in capture.records():
            packet = Packet.parse(record.data)
            if packet.bth.dest_qp == 1:
                continue
            assert isinstance(packet.route, RoCEv2Route)
            sender = "client" if packet.route.ip.src & 0xFF == 1 else "server"
            yield Said(sender, packet.bth.opcode, bytes(packet.payload)), packet


class Wire:
    """A client's and a server's device, connected, and every frame between them."""

    def __init__(self, *, profile: str = "spec", loss: float = 0.0, **attr: int) -> None:
        self.client_device = Device("client", "10.0.0.1", profile=profile)
        self.server_device = Device("server", "10.0.0.2", profile=profile, key_start=77)
        self.said: list[Said] = []
        self.loss = loss
        self._attr = attr
        self._chance = random.Random(7)
        self.sim = Simulator()
        self.sim.connect(
            self.client_device,
            self.server_device,
            a_to_b=self._stage("client"),
            b_to_a=self._stage("server"),
        )

    def _stage(self, sender: str) -> Stage:
        def stage(frame: Frame, now: Time) -> list[tuple[Time, Frame]]:
            packet = Packet.parse(frame)
            self.said.append(Said(sender, packet.bth.opcode, bytes(packet.payload)))
            return [] if self._chance.random() < self.loss else [(0, frame)]

        return stage

    def connect(self, client: QueuePair, server: QueuePair) -> None:
        connect(client, server, mtu=4096, max_rd_atomic=1, max_dest_rd_atomic=1, **self._attr)

    def run(self, *sides: Client | Server, until: Callable[[], bool] = lambda: False) -> None:
        """Let both live, and those that are given act."""

        def stop() -> bool:
            for side in sides:
                before = side.completed
                side.step(self.sim.now)
                if side.completed != before:
                    self.sim.kick(side.qp.device)
            return until()

        self.sim.run(self.sim.now + 1000 * S, stop)


def dialogue(wire: Wire, *, count: int, size: int) -> tuple[Client, Server]:
    """A whole dialogue between two sides of ours."""
    client = Client(wire.client_device, "server", count=count, size=size)
    server = Server(wire.server_device, "client")
    wire.connect(client.qp, server.qp)
    client.listen()
    server.listen()
    client.start(wire.sim.now)
    wire.run(client, server, until=lambda: client.is_done)
    return client, server


def test_pings_of_rping_have_this_data() -> None:
    data = [
        said.payload for said, _ in recorded() if said.opcode == OpCode.RC_RDMA_READ_RESPONSE_ONLY
    ]

    assert data == [ping_data(number, 64) for number in range(10)]
    assert data[0].startswith(b"rdma-ping-0: ABC")


def test_pattern_begins_again_behind_z() -> None:
    """rping.c: one later with each ping, from 65 to 122, so 57 is z and 58 is A again."""
    assert ping_data(57, 64)[14:17] == b"zAB"
    assert ping_data(58, 64)[14:17] == b"ABC"
    assert ping_data(10**9, 26) == b"rdma-ping-1000000000: " + ping_data(10**9, 64)[22:25] + b"\0"


def test_messages_of_rping_are_the_memory_that_is_read_and_written() -> None:
    """Each advert against the RETH of the request that follows it."""
    adverts, requests = [], []
    for said, packet in recorded():
        if said.sender == "client" and said.opcode == OpCode.RC_SEND_ONLY:
            adverts.append(Advert.unpack(said.payload))
        for header in packet.extensions:
            if isinstance(header, RETH):
                requests.append(Advert(header.va, header.rkey, header.dma_len))

    assert adverts == requests
    assert len(adverts) == 20


def test_dialogue_is_the_captured_one_packet_by_packet() -> None:
    """Same sender, opcode and size in the same order; both sides of the capture are rxe."""
    wire = Wire(profile="rxe")
    client, server = dialogue(wire, count=10, size=64)
    wire.run()

    shape = [(said.sender, said.opcode, len(said.payload)) for said, _ in recorded()]
    assert [(said.sender, said.opcode, len(said.payload)) for said in wire.said] == shape
    data = [said.payload for said, _ in recorded() if len(said.payload) == 64]
    assert [said.payload for said in wire.said if len(said.payload) == 64] == data
    assert (client.pings, server.pings) == (10, 10)


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("size", [26, 27, 4096, 4097, 65535])
def test_pings_of_any_size_come_back(profile: str, size: int) -> None:
    told: list[bytes] = []
    wire = Wire(profile=profile)
    client = Client(wire.client_device, "server", size=size, count=3, on_data=told.append)
    server = Server(wire.server_device, "client", on_data=told.append)
    wire.connect(client.qp, server.qp)
    client.listen()
    server.listen()
    client.start(0)
    wire.run(client, server, until=lambda: client.is_done)

    assert told == [ping_data(number, size) for number in range(3) for _ in range(2)]
    assert server.size == size


def test_loss_changes_nothing_but_the_time() -> None:
    wire = Wire(loss=0.1)
    client, server = dialogue(wire, count=50, size=20_000)

    assert (client.pings, server.pings) == (50, 50)
    assert client.qp.counters.retransmitted
    assert client.shortest < client.longest
    assert client.shortest * 50 <= client.total <= client.longest * 50


def test_client_without_a_count_goes_on() -> None:
    wire = Wire()
    client = Client(wire.client_device, "server")
    server = Server(wire.server_device, "client")
    wire.connect(client.qp, server.qp)
    client.listen()
    server.listen()
    client.start(0)
    wire.run(client, server, until=lambda: client.pings == 200)

    assert not client.is_done


@pytest.mark.parametrize("gone", ["client", "server"])
def test_peer_that_is_gone_is_noticed_by_retries(gone: str) -> None:
    """timeout 14, 67 ms, seven times (IBA 9.7.6.1.3)."""
    wire = Wire(timeout=14, retry_cnt=7)
    client = Client(wire.client_device, "10.0.0.2 port 7174")
    server = Server(wire.server_device, "10.0.0.1")
    wire.connect(client.qp, server.qp)
    client.listen()
    server.listen()
    client.start(0)
    # The server is gone before it reads, or the client while it is read.
    if gone == "client":
        wire.run(client, server, until=lambda: server.qp.sends.in_use > 0)
    wire.loss = 1.0

    left, name = (server, "10.0.0.1") if gone == "client" else (client, "10.0.0.2 port 7174")
    with pytest.raises(PeerError, match=rf"^{name}: no longer acknowledges \(RETRY_EXC_ERR\)$"):
        wire.run(left)


class Stranger:
    """The other end of a side: a queue pair that says what a test wants."""

    def __init__(self, wire: Wire, device: Device) -> None:
        self.sim = wire.sim
        self.device = device
        pd = device.alloc_pd()
        self.memory = pd.register(1 << 17, int(ALL_ACCESS))
        self.qp = create_queue_pair(device, pd=pd, cap=QPCap(max_inline_data=64))

    def listen(self) -> None:
        """Be ready for anything."""
        for _ in range(8):
            self.qp.post_recv(RecvWR([SGE(self.memory.iova, 4096, self.memory.lkey)]))

    def say(self, message: bytes) -> None:
        self.qp.post_send(SendWR(send_flags=SendFlags.INLINE, inline_data=message))
        self.sim.kick(self.device)

    def offer(self, size: int, rkey: int | None = None) -> bytes:
        return Advert(self.memory.iova, self.memory.rkey if rkey is None else rkey, size).pack()


def serve_stranger(*said: Callable[[Stranger], bytes]) -> tuple[Stranger, Server]:
    """A server to which a stranger says this, one after the other without waiting."""
    wire = Wire(rnr_retry=7)
    server = Server(wire.server_device, "10.0.0.1", limit=4096)
    stranger = Stranger(wire, wire.client_device)
    wire.connect(stranger.qp, server.qp)
    server.listen()
    stranger.listen()
    for message in said:
        stranger.say(message(stranger))
    wire.run(server)
    return stranger, server


@pytest.mark.parametrize("length", [0, 15, 17])
def test_message_of_another_length_is_refused_by_both(length: int) -> None:
    said = f"^10.0.0.1 has sent a message of {length} bytes, expected 16$"
    if length <= ADVERT_SIZE:  # a longer one does not fit into what is posted
        with pytest.raises(PeerError, match=said):
            serve_stranger(lambda _: bytes(length))
    else:
        with pytest.raises(PeerError, match=r"^10.0.0.1: .*\(LOC_LEN_ERR\)$"):
            serve_stranger(lambda _: bytes(length))


def test_ping_that_does_not_fit_is_refused() -> None:
    with pytest.raises(PeerError, match=r"^10.0.0.1 has a ping of 4097 bytes; the limit is 4096$"):
        serve_stranger(lambda stranger: stranger.offer(4097))


def test_message_out_of_turn_is_refused() -> None:
    with pytest.raises(PeerError, match=r"^10.0.0.1 has sent an unexpected message$"):
        serve_stranger(*(lambda stranger: stranger.offer(64) for _ in range(2)))


def test_memory_that_is_not_there_is_said_to_be_so() -> None:
    with pytest.raises(
        PeerError, match=r"^10.0.0.1: the memory that it has offered .* \(REM_ACCESS_ERR\)$"
    ):
        serve_stranger(lambda stranger: stranger.offer(64, rkey=1))


def test_server_notices_contents_that_no_rping_has() -> None:
    with pytest.raises(PeerError, match=r"^10.0.0.1: ping 0 arrived with wrong contents$"):
        serve_stranger(lambda stranger: stranger.offer(64))


def test_server_that_does_not_look_returns_what_it_reads_up_to_its_zero_byte() -> None:
    """rping.c writes strlen + 1 bytes; what follows in the sink stays as it is."""
    wire = Wire()
    server = Server(wire.server_device, "10.0.0.1", validate=False)
    stranger = Stranger(wire, wire.client_device)
    memory = stranger.memory
    memory.write(memory.iova + 4096, b"abc\0def" + b"x" * 9)
    wire.connect(stranger.qp, server.qp)
    server.listen()
    stranger.listen()
    offer = Advert(memory.iova + 4096, memory.rkey, 16).pack()
    stranger.say(offer)
    wire.run(server)
    memory.write(memory.iova + 4096, b"-" * 16)
    stranger.say(offer)
    wire.run(server)

    assert memory.read(memory.iova + 4096, 16) == b"abc\0" + b"-" * 12
    assert server.pings == 1


@pytest.mark.parametrize("size", [0, 4096])
def test_ping_without_a_zero_byte_is_returned_whole(size: int) -> None:
    wire = Wire()
    server = Server(wire.server_device, "10.0.0.1", validate=False)
    stranger = Stranger(wire, wire.client_device)
    memory = stranger.memory
    memory.write(memory.iova, b"x" * size)
    wire.connect(stranger.qp, server.qp)
    server.listen()
    stranger.listen()
    stranger.say(stranger.offer(size))
    wire.run(server)
    stranger.say(Advert(memory.iova + 8192, memory.rkey, size).pack())
    wire.run(server)

    assert memory.read(memory.iova + 8192, size) == b"x" * size
    assert memory.read(memory.iova + 8192 + size, 64) == bytes(64)
    assert server.pings == 1


def ask_stranger(messages: int, *, validate: bool = True) -> Client:
    """A client whose server says "go ahead" so often, and touches no memory."""
    wire = Wire(rnr_retry=7)
    client = Client(wire.client_device, "server", count=1, validate=validate)
    stranger = Stranger(wire, wire.server_device)
    wire.connect(client.qp, stranger.qp)
    client.listen()
    stranger.listen()
    client.start(0)
    for _ in range(messages):
        stranger.say(Advert().pack())
    wire.run(client)
    return client


def test_client_notices_contents_that_did_not_come_back() -> None:
    with pytest.raises(PeerError, match=r"^server: ping 0 returned with wrong contents$"):
        ask_stranger(2)


def test_client_that_does_not_look_is_content() -> None:
    assert ask_stranger(2, validate=False).is_done


def test_message_after_the_last_ping_is_refused() -> None:
    with pytest.raises(PeerError, match=r"^server has sent a message after the last ping$"):
        ask_stranger(3, validate=False)


def test_side_that_is_closed_leaves_nothing() -> None:
    wire = Wire()
    for _ in range(3):
        for side in (Client(wire.client_device, "x"), Server(wire.client_device, "x")):
            with side:
                pass

    assert not wire.client_device.qps
    with pytest.raises(VerbsError):
        side.listen()
