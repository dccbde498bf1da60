"""Files of ib_umad: agents, transactions, timeouts, long messages."""

from __future__ import annotations

import random
import struct

import pytest

from each_case import each_case
from ibwire.base.units import S
from ibwire.fabric.infiniband import read_topology
from ibwire.fabric.infiniband.shipped import topology_path
from ibwire.sm import rmpp, umad
from ibwire.sm.configuration import Settings
from ibwire.sm.control import start_manager
from ibwire.sm.mads import Datagram
from ibwire.sm.management import Management
from ibwire.sm.umad import ETIMEDOUT, HEADER, Agent, Door, UmadFile

SA, SMP = 0x03, 0x01
GET, GET_TABLE, GET_TABLE_RESP = 1, 0x12, 0x92


@pytest.fixture
def doors() -> tuple[Door, Door]:
    """The doors of two hosts whose links carry data."""
    subnet = read_topology(topology_path("star2"))
    management = Management(subnet)
    ports = [subnet.nodes[name].ports[1] for name in ("node-0", "node-1")]
    switch = subnet.nodes["sw0"]
    switch.lft, switch.linear_fdb_top = bytearray((255, 1, 2)), 2
    for lid, port in enumerate(ports, 1):
        port.lid = lid
        port.state = port.peer.state = 4
    return Door(management, ports[0]), Door(management, ports[1])


def opened(door: Door, mgmt_class: int = SA, methods: int = 0, *, is_rmpp: bool = True) -> UmadFile:
    file = door.open(lambda: None)
    qpn = 0 if mgmt_class == SMP else 1
    assert file.register(Agent(0, qpn, mgmt_class, 2, methods, 0, is_rmpp=is_rmpp)) == 0
    return file


def message(
    lid: int, method: int, tid: int, data: bytes = b"", *, timeout: int = 0, retries: int = 0
) -> bytes:
    header = HEADER.pack(
        0,
        0,
        timeout,
        retries,
        0,
        (1).to_bytes(4, "big"),
        bytes.fromhex("80010000"),
        lid.to_bytes(2, "big"),
        *(0,) * 6,
        bytes(16),
        bytes(4),
        0,
    )
    mad = bytearray(56)
    mad[:4] = bytes((1, SA, 2, method))
    mad[8:16] = tid.to_bytes(8, "big")
    return header + bytes(mad) + data


def test_header_is_the_kernels() -> None:
    assert HEADER.size == 64
    packed = message(0x1234, GET, 5)
    assert packed[20:24] == bytes((0, 0, 0, 1))
    assert packed[28:30] == b"\x12\x34"


def test_a_request_reaches_the_agent_and_its_answer_comes_back(doors: tuple[Door, Door]) -> None:
    client, server = opened(doors[0]), opened(doors[1], methods=1 << GET)
    management = doors[0].management
    assert client.write(message(2, GET, 5, bytes(200), timeout=1000), 0) == 0
    management.run(0)
    request = server.take()
    assert request is not None
    agent, status, _, _, length, qpn, qkey, lid, *_ = HEADER.unpack(request[:64])
    assert (agent, status, length) == (0, 0, 64 + 256)
    assert (qpn, qkey, lid) == (bytes((0, 0, 0, 1)), bytes.fromhex("80010000"), b"\0\1")

    answer = bytearray(request)
    answer[64 + 3] |= 0x80
    assert server.write(bytes(answer), 0) == 0
    management.run(0)
    received = client.take()
    assert received is not None
    assert received[64 + 12 : 64 + 16] == (5).to_bytes(4, "big")
    assert client.poll_timeout() is None


def test_the_answer_to_nothing_is_dropped(doors: tuple[Door, Door]) -> None:
    client, server = opened(doors[0]), opened(doors[1])

    server.write(message(1, GET | 0x80, 5, bytes(200)), 0)
    doors[0].management.run(0)

    assert client.take() is None


def test_a_request_is_repeated_and_then_given_up(doors: tuple[Door, Door]) -> None:
    client, server = opened(doors[0]), opened(doors[1], methods=1 << GET)
    management = doors[0].management
    client.write(message(2, GET, 5, bytes(200), timeout=1000, retries=2), 0)
    management.run(0)
    for second in (1, 2, 3):
        assert client.poll_timeout() == second * S
        client.handle_timeout(second * S)
        management.run(second * S)

    assert len(server.waiting) == 3
    given_up = client.take()
    assert given_up is not None
    assert struct.unpack_from("<I", given_up, 4)[0] == ETIMEDOUT
    assert len(given_up) == 64 + 24
    assert client.poll_timeout() is None


def test_requests_with_answers_leave_nothing_behind(doors: tuple[Door, Door]) -> None:
    client = opened(doors[0], SMP)
    management = doors[0].management
    client.agents[0].version = 1
    ask = bytearray(message(2, GET, 0, bytes(200), timeout=20_000))
    ask[20:24], ask[24:28] = bytes(4), bytes(4)
    ask[64 : 64 + 4] = bytes((1, SMP, 1, GET))
    ask[64 + 16 : 64 + 18] = (0x11).to_bytes(2, "big")
    for tid in range(5000):
        ask[76:80] = tid.to_bytes(4, "big")
        client.write(bytes(ask), tid)
        management.run(tid)
        assert client.take() is not None

    assert len(client._dues) < 2000
    assert client.poll_timeout() is None
    client.write(message(9, GET, 1, bytes(200), timeout=1), 10 * S)
    assert client.poll_timeout() == 10 * S + S // 1000


@pytest.mark.parametrize("records", [0, 1, 2, 3, 65, 66, 1000])
def test_long_messages_come_whole(doors: tuple[Door, Door], records: int) -> None:
    client, server = opened(doors[0]), opened(doors[1], methods=1 << GET_TABLE)
    management = doors[0].management
    client.write(message(2, GET_TABLE, 9, bytes(200), timeout=1000), 0)
    management.run(0)
    request = server.take()
    assert request is not None
    table = random.Random(records).randbytes(112 * records)
    answer = bytearray(request[: 64 + 56])
    answer[64 + 3] = GET_TABLE_RESP
    answer[64 + 26] = 1

    server.write(bytes(answer) + table, 0)
    management.run(0)

    received = client.take()
    assert received is not None
    assert received[64 + 56 :] == table
    assert struct.unpack_from("<I", received, 16)[0] == len(received)
    assert server.poll_timeout() is None
    # Repeated segments are answered for ten seconds.
    assert client.poll_timeout() == 10 * S
    client.handle_timeout(10 * S)
    assert client.poll_timeout() is None


@each_case("seed", range(20))
def test_segments_and_acks_that_are_lost_are_sent_again(seed: int) -> None:
    rng = random.Random(seed)
    head = bytearray(56)
    head[1:4] = bytes((SA, 2, GET_TABLE_RESP))
    whole = bytes(head) + rng.randbytes(rng.randrange(1, 30_000))
    now = 0
    sending, receiving = rmpp.Sending(whole, now), rmpp.Receiving(now)
    sending.retries = 1000
    done: bytes | None = None
    outstanding = sending.take(now)
    for _ in range(10_000):
        if sending.is_done:
            break
        if not outstanding:
            now = sending.due
            assert sending.repeat()
            outstanding = sending.take(now)
            continue
        segment = outstanding.pop(0)
        if rng.random() < 0.1:
            continue
        found, ack = receiving.receive(segment)
        done = found if found is not None else done
        if ack is not None and rng.random() < 0.9:
            sending.acknowledge(ack)
            outstanding += sending.take(now)

    assert done is not None
    assert done[56:] == whole[56:]


def test_the_first_segment_says_how_long_the_message_is() -> None:
    # Linux mad_rmpp.c: 220 bytes a segment of the SA, less what the last one does not use.
    head = bytes((1, SA, 2, GET_TABLE_RESP)) + bytes(52)
    sending = rmpp.Sending(head + bytes(450), 0)
    (first,) = sending.take(0)
    assert int.from_bytes(first[32:36], "big") == 3 * 220 - 150
    assert first[24:27] == bytes((1, 1, 3))
    sending.limit = 3
    _, last = sending.take(0)
    assert int.from_bytes(last[32:36], "big") == 220 - 150
    assert last[26] == 5


@pytest.mark.parametrize("size", [0, 63, 64 + 35])
def test_what_is_too_short_is_refused(doors: tuple[Door, Door], size: int) -> None:
    assert opened(doors[0]).write(bytes(size), 0) == 22


@pytest.mark.parametrize(("size", "again"), [(200, True), (201, False)])
def test_a_request_that_is_refused_comes_back_with_the_error(
    doors: tuple[Door, Door], size: int, *, again: bool
) -> None:
    """A second one with the transaction of the first, and one longer than a MAD without RMPP."""
    file = opened(doors[0])
    asked = message(2, GET, 5, bytes(size), timeout=1000)
    if again:
        assert file.write(asked, 0) == 0

    error = file.write(asked, 0)
    file.refuse(asked, error)

    assert error == 22
    returned = file.take()
    assert returned is not None
    assert len(returned) == 64 + 24
    agent, status, *_ = HEADER.unpack(returned[:64])
    assert (agent, status) == (0, 22)
    assert returned[64 + 12 : 64 + 16] == (5).to_bytes(4, "big")


def test_nobody_waits_for_what_is_refused_without_a_timeout(doors: tuple[Door, Door]) -> None:
    file = opened(doors[0])
    for refused in (message(2, GET, 5, bytes(201)), message(2, GET | 0x80, 5, timeout=9), b"x"):
        file.refuse(refused, 22)
    assert file.take() is None


def test_requests_that_wait_are_bounded(
    doors: tuple[Door, Door], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(umad, "MAXIMUM_REQUESTS", 10)
    file = opened(doors[0])
    asked = [message(2, GET, tid, bytes(200), timeout=1000) for tid in range(11)]
    assert [file.write(each, 0) for each in asked] == [0] * 10 + [12]


def test_long_messages_that_nobody_acknowledges_are_bounded(
    doors: tuple[Door, Door], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(umad, "MAXIMUM_LONG_BYTES", 10_000)
    file = opened(doors[0])
    long = bytearray(message(9, GET_TABLE_RESP, 1, bytes(4000)))
    long[64 + 26] = 1
    found = []
    for tid in range(3):
        long[64 + 15] = tid
        found.append(file.write(bytes(long), 0))
    assert found == [0, 0, 12]


def test_a_refused_answer_does_not_end_a_request_with_its_transaction(
    doors: tuple[Door, Door], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that asks may also answer, and others choose the ids of what it answers."""
    monkeypatch.setattr(umad, "MAXIMUM_LONG_BYTES", 3_000)
    file = opened(doors[0])
    assert file.write(message(2, GET, 5, bytes(200), timeout=1000), 0) == 0
    answer = bytearray(message(2, GET_TABLE_RESP, 5, bytes(4000)))
    answer[64 + 8 : 64 + 12] = file.agents[0].hi_tid.to_bytes(4, "big")
    answer[64 + 26] = 1

    assert file.write(bytes(answer), 0) == 12
    assert file.poll_timeout() == S


def segment(tid: int, number: int) -> Datagram:
    """A segment of a message that does not end."""
    mad = bytearray(256)
    mad[:4], mad[8:16] = bytes((1, SA, 2, GET_TABLE)), tid.to_bytes(8, "big")
    mad[24:27], mad[28:32] = bytes((1, 1, 1)), number.to_bytes(4, "big")
    return Datagram(mad, 1, 2, 1, 1)


def test_messages_that_never_end_are_bounded(
    doors: tuple[Door, Door], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The oldest make room for others, and no segment is taken beyond a number."""
    monkeypatch.setattr(rmpp, "MOST_RECEIVING", 3)
    monkeypatch.setattr(umad, "_MOST_SEGMENTS", 5)
    file = opened(doors[1], methods=1 << GET_TABLE)
    agent = file.agents[0]

    def acknowledged(tid: int, number: int) -> bool:
        sent: list[Datagram] = []
        monkeypatch.setattr(file.door.management, "send", lambda each, port: sent.append(each))
        file.receive(agent, segment(tid, number), 0)
        return bool(sent) and sent[0].mad[31] == number

    assert all(acknowledged(tid, 1) for tid in range(4))
    assert not acknowledged(0, 2)  # forgotten: what came first is expected again
    assert acknowledged(1, 1)
    assert acknowledged(9, 1)
    assert not acknowledged(10, 2)
    for number in range(2, 66):
        file.receive(agent, segment(9, number), 0)
    assert sum(len(each.data) for each, _ in file._receiving.values()) == 5


def test_a_closed_file_waits_for_nothing(doors: tuple[Door, Door]) -> None:
    client = opened(doors[0])
    client.write(message(2, GET, 5, bytes(200), timeout=1000), 0)
    client.close()

    assert doors[0].poll_timeout() is None
    doors[0].management.send(Datagram(bytearray(256), 2, 1, 1, 1), doors[1].port)
    doors[0].management.run(0)


def test_one_subnet_manager_a_port(doors: tuple[Door, Door]) -> None:
    door = doors[0]
    assert door.open_sm()
    assert door.port.capability_mask & 2
    assert not door.open_sm()
    door.close_sm()
    assert not door.port.capability_mask & 2


def test_a_program_is_no_subnet_manager_beside_that_of_ibwire(doors: tuple[Door, Door]) -> None:
    door = doors[0]
    start_manager(door.management, door.port, Settings())

    assert not door.open_sm()
    door.close_sm()

    assert door.port.capability_mask & 2
    door.management.remove_manager(door.port)
    assert door.open_sm()
