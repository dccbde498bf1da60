"""Requests that agents answer at once: answered as if each hop were a packet."""

from __future__ import annotations

import random
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ibwire.fabric.infiniband.counters import COUNTERS
from ibwire.fabric.infiniband.shipped import find_topology
from ibwire.fabric.infiniband.subnet import Port, Subnet
from ibwire.sm.management import Management
from ibwire.sm.umad import HEADER, ONE_MAD, WORD, Agent, Door, UmadFile

GET, SET = 1, 2
DIRECTED = 0x81
PORT_INFO, SM_INFO = 0x15, 0x20
ATTRIBUTES = (0x10, 0x11, 0x12, 0x14, PORT_INFO, 0x16, 0x17, 0x18, 0x19, 0x1B, 0x31)
KEY = 0x1234_5678_9ABC_DEF0
TOPOLOGIES = (
    "star2",
    "ring:switches=4,hosts=1",
    "torus:size=3x3,hosts=1",
    "fattree:ports=4,levels=2",
    "dragonfly:groups=2,leaves=1,spines=1,hosts=1,links=1",
)


class Fabric:
    """A fabric with a program at one of its hosts."""

    def __init__(self, topology: str, host: int) -> None:
        self.subnet: Subnet = find_topology(topology)
        self.management = Management(self.subnet)
        ports = self.subnet.host_ports()
        self.port = ports[host % len(ports)]
        self.file: UmadFile = Door(self.management, self.port).open(lambda: None)
        for number, (qpn, mgmt_class) in enumerate(((0, DIRECTED), (0, 1), (1, 4))):
            agent = Agent(number, qpn, mgmt_class, 1, 0, 0, is_rmpp=False, hi_tid=7 + number)
            assert self.file.register(agent) == 0
        self.failed: list[tuple[Port, Port]] = []
        self.answered = 0

    def ask(self, message: bytes) -> None:
        """Write a message, which goes from port to port."""
        self.file.write(message, 0)
        self.management.run(0)

    def ask_all(self, messages: list[bytes]) -> None:
        """Write messages together, as a program does that waits for none."""
        while messages:
            data = b"".join(map(with_word, messages))
            count, answers = self.file.answer(data)
            assert len(answers) == count * (WORD + ONE_MAD)
            for at in range(0, len(answers), WORD + ONE_MAD):
                assert int.from_bytes(answers[at : at + WORD], "little") == ONE_MAD
                self.file.put(answers[at + WORD : at + WORD + ONE_MAD])
            if count < len(messages):
                self.ask(messages[count])
            self.answered += count
            messages = messages[count + 1 :]

    def answers(self, message: bytes) -> bool:
        """Whether a message is answered at once."""
        return self.file.answer(with_word(message))[0] == 1

    def fail(self, number: int) -> None:
        links = list(self.subnet.links())
        if links:
            port, peer = links[number % len(links)]
            self.subnet.disconnect(port)
            self.failed.append((port, peer))

    def restore(self) -> None:
        if self.failed:
            self.subnet.reconnect(*self.failed.pop())

    def state(self) -> object:
        """Everything that MADs change."""
        self.management.run(0)
        ports = [
            (
                bytes(port.info),
                bytes(port.pkeys),
                port.sl2vl,
                port.arbitration,
                [getattr(port.counters, name) for name in COUNTERS],
            )
            for node in self.subnet.nodes.values()
            for port in node.ports
        ]
        nodes = [
            (bytes(node.info), bytes(node.lft), node.mft) for node in self.subnet.nodes.values()
        ]
        management = self.management
        after = management.delivered, management.lost, management._psn
        return ports, nodes, list(self.file.waiting), after, management.traps.poll_timeout()


def with_word(message: bytes) -> bytes:
    return len(message).to_bytes(WORD, "little") + message


def header(*, number: int = 0, lid: int = 0xFFFF, timeout: int = 100, qpn: int = 0) -> bytes:
    """What a program writes before a MAD."""
    return HEADER.pack(
        number, 0, timeout, 3, 0, qpn.to_bytes(4, "big"), bytes(4), lid.to_bytes(2, "big"),
        *(0,) * 6, bytes(16), bytes(4), 0,
    )  # fmt: skip


def smp(path: bytes, method: int, attribute: int, modifier: int, tid: int, data: bytes) -> bytes:
    """A request with a directed route."""
    mad = bytearray(256)
    mad[:8] = bytes((1, DIRECTED, 1, method, 0, 0, 0, len(path)))
    mad[8:16] = tid.to_bytes(8, "big")
    mad[16:18] = attribute.to_bytes(2, "big")
    mad[20:24] = modifier.to_bytes(4, "big")
    mad[32:36] = b"\xff" * 4
    mad[64 : 64 + len(data)] = data
    mad[129 : 129 + len(path)] = path
    return bytes(mad)


@cache
def fields() -> list[int]:
    """Offsets of a MAD that decide how it travels, and those of PortInfo that a Set writes."""
    return [
        0,
        1,
        2,
        3,
        4,
        5,
        6,
        7,
        16,
        17,
        24,
        32,
        33,
        34,
        35,
        64,
        128,
        129,
        130,
        131,
        192,
        193,
    ] + [64 + each for each in (0, 7, 16, 28, 29, 31, 32, 33, 34, 35, 36, 37, 43, 44, 62)]


class Dialogue:
    """Random requests and changes of a fabric, the same for both."""

    def __init__(self, seed: int, fabric: Fabric) -> None:
        self.random = random.Random(seed)
        self.fabric = fabric
        self.tid = 0

    def path(self) -> tuple[bytes, Port]:
        """A random walk from the port of the program, mostly over links; where it ends."""
        draw = self.random
        port, path = self.fabric.port, []
        for place in range(draw.choice((0, 1, 1, 2, 2, 3, 4, 5))):
            node = port.node
            linked = [each.number for each in node.external_ports() if each.peer is not None]
            out = port.number if place == 0 else draw.choice(linked or [1])
            if draw.random() < 0.04:
                out = draw.randrange(256)
            path.append(out)
            peer = node.ports[out].peer if 0 < out < len(node.ports) else None
            if peer is None:
                break
            port = peer
        return bytes(path), port

    def message(self) -> bytes:
        """What the program writes next."""
        draw = self.random
        self.tid += draw.random() > 0.05
        path, end = self.path()
        method = draw.choice((GET, GET, SET, SET, SET, 3, 0x81, 5, 7))
        attribute = draw.choice((*ATTRIBUTES, *[PORT_INFO] * 8, SM_INFO, 0xFF17))
        modifier = draw.choice((0, 0, 1, 2, end.number, draw.randrange(9), draw.getrandbits(32)))
        data = bytearray(draw.randbytes(64))
        if attribute == PORT_INFO:
            about = end.node.ports[(modifier & 0xFF) % len(end.node.ports)]
            data[:] = about.info
            data[32] = data[32] & 0xF0 | draw.choice((0, 0, 0, 2, 3, 4, 1))
            data[33] = data[33] & 0x0F | draw.choice((0, 0, 0, 0, 0, 0x20, 0x30))
            if draw.random() < 0.1:
                data[:8] = draw.choice((bytes(8), KEY.to_bytes(8, "big")))
                data[34] = draw.choice((0, 0x40, 0x80))
                data[26:28] = draw.choice((bytes(2), b"\0\x0f"))
        mad = bytearray(smp(path, method, attribute, modifier, self.tid, data))
        if draw.random() < 0.3:
            mad[24:32] = end.management.info[:8]
        if draw.random() < 0.3:
            for _ in range(draw.choice((1, 1, 2))):
                mad[draw.choice(fields())] = draw.choice((0, 1, 0x80, 0xFF, draw.randrange(256)))
        begin = header()
        if draw.random() < 0.15:
            begin = header(
                number=draw.choice((0, 1, 2, 5)),
                lid=draw.choice((0xFFFF, 0, 1)),
                timeout=draw.choice((0, 1, 100)),
                qpn=draw.choice((0, 1)),
            )
        length = 256 if draw.random() > 0.02 else draw.randrange(300)
        return begin + bytes(mad.ljust(length, b"\0")[:length])


@settings(deadline=None, max_examples=40)
@given(
    topology=st.sampled_from(TOPOLOGIES),
    host=st.integers(0, 20),
    seed=st.integers(0, 1 << 32),
)
def test_answers_at_once_are_those_of_packets(topology: str, host: int, seed: int) -> None:
    fast, slow = Fabric(topology, host), Fabric(topology, host)
    dialogue = Dialogue(seed, slow)

    for _ in range(20):
        change, number = dialogue.random.random(), dialogue.random.randrange(1000)
        for fabric in (fast, slow):
            if change < 0.06:
                fabric.fail(number)
            elif change < 0.12:
                fabric.restore()
        messages = [dialogue.message() for _ in range(dialogue.random.randrange(1, 6))]
        for message in messages:
            slow.ask(message)
        fast.ask_all(messages)
        assert list(fast.file.waiting) == list(slow.file.waiting)
        if change > 0.8:
            assert fast.state() == slow.state()

    assert fast.state() == slow.state()


@pytest.fixture
def fabric() -> Fabric:
    return Fabric("torus:size=3x3,hosts=1", 0)


def test_a_plain_request_is_answered_at_once_and_counted(fabric: Fabric) -> None:
    path = bytes((fabric.port.number,))

    for attribute in (0x10, 0x11, 0x12, PORT_INFO, 0x16):
        assert fabric.answers(header() + smp(path, GET, attribute, 1, attribute, b""))

    assert fabric.port.counters.port_xmit_pkts == 0
    fabric.management.run(0)
    peer = fabric.port.peer
    assert peer is not None
    for port in (fabric.port, peer):
        counters = port.counters
        assert (counters.port_xmit_pkts, counters.port_rcv_pkts) == (5, 5)
        assert (counters.port_xmit_data, counters.port_rcv_data) == (5 * 72, 5 * 72)


def test_requests_wait_their_turn_behind_other_mads(fabric: Fabric) -> None:
    request = header() + smp(bytes((fabric.port.number,)), GET, 0x11, 0, 1, b"")
    assert fabric.answers(request)
    fabric.file.write(request[:72] + b"\0\0\0\0\0\0\0\2" + request[80:], 0)

    assert not fabric.answers(request[:72] + b"\0\0\0\0\0\0\0\3" + request[80:])


def test_a_request_with_a_wrong_key_goes_the_long_way(fabric: Fabric) -> None:
    peer = fabric.port.peer
    assert peer is not None
    peer.management.mkey = KEY
    peer.management.mkey_protect_bits = 2
    path = bytes((fabric.port.number,))
    request = bytearray(smp(path, GET, 0x11, 0, 1, b""))

    for key in (bytes(8), (KEY + 1).to_bytes(8, "big")):
        request[24:32] = key
        assert not fabric.answers(header() + bytes(request))
    request[24:32] = KEY.to_bytes(8, "big")
    assert fabric.answers(header() + bytes(request))


@pytest.mark.parametrize("hops", [63, 64, 255])
def test_a_path_longer_than_a_mad_has_room_for_is_not_followed(hops: int) -> None:
    """It goes there and back between two switches; IBA 14.2.1.2 has room for 63 hops."""
    fast, slow = (Fabric("ring:switches=4,hosts=1", 0) for _ in range(2))
    first = fast.port.peer
    assert first is not None
    out = next(port for port in first.node.ports[1:] if port.peer and port.peer.node.is_switch)
    assert out.peer is not None
    request = bytearray(smp(bytes((1, *(out.number, out.peer.number) * 31)), GET, 0x11, 0, 1, b""))
    request[7] = hops

    fast.ask_all([header() + bytes(request)])
    slow.ask(header() + bytes(request))

    assert fast.answered == (hops == 63)
    assert fast.state() == slow.state()


def test_a_capture_sees_each_hop(fabric: Fabric) -> None:
    fabric.management.on_packet = lambda *_: None

    assert not fabric.answers(header() + smp(bytes((1,)), GET, 0x11, 0, 1, b""))
