"""Messages back and forth: with a recorded tool, and between two of our own."""

from __future__ import annotations

import socket
import threading
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import pytest

from each_case import each_case
from ibwire.base.errors import EncodeError, LinkError, PeerError
from ibwire.impair import build_pipe
from ibwire.programs import pingpong
from ibwire.programs.channel import TCPListener
from ibwire.programs.pingpong import Destination, Plan
from ibwire.rc.attributes import QPType
from ibwire.rc.device import gid_of
from ibwire.rc.work import WCStatus
from socket_port import endpoints, side_by_side

CLIENT_LINE = b"0000:00006a:126402:00000000000000000000ffff0a4d0001\0"
"""What the client of rc-pingpong.pcap wrote; its queue pair is in the packets that follow."""


def test_line_is_that_of_the_tool() -> None:
    destination = Destination(qpn=0x6A, psn=0x126402, gid=gid_of("10.77.0.1"))

    assert destination.pack() == CLIENT_LINE
    assert Destination.unpack(CLIENT_LINE) == destination


def test_gid_filled_with_spaces_is_read() -> None:
    """As `%32x` of old tools has it."""
    line = b"0011:00006a:126402:" + b"ffff0a4d0001".rjust(32) + b"\0"

    assert Destination.unpack(line) == Destination(0x6A, 0x126402, gid_of("10.77.0.1"), 0x11)


@each_case(
    "line",
    [
        b"GET / HTTP/1.1\r\n".ljust(52),
        CLIENT_LINE[:-1] + b"0",
        CLIENT_LINE.replace(b"126402", b"12640g"),
        CLIENT_LINE.replace(b"0000", b"+000"),
        b"\0" * 52,
    ],
)
def test_anything_else_is_refused(line: bytes) -> None:
    with pytest.raises(PeerError, match="not a line of a pingpong program"):
        Destination.unpack(line)


@pytest.mark.parametrize("name", ["nosuch.invalid", "a..b"])
def test_server_at_a_name_without_an_address_is_a_sentence(name: str) -> None:
    with pytest.raises(LinkError, match=f"^{name}: no such host: "):
        TCPListener(0, ["127.0.0.1", name])


def play(plan: Plan, client_host: str = "127.0.0.1", faults: str | None = None) -> Any:
    """A client and a server; the rules in `faults` are for both directions of the client."""
    a, b = endpoints()
    if faults is not None:
        rules = [{faults: 0.05}]
        a.staged.inbound = build_pipe(rules, name="in")
        a.staged.outbound = build_pipe(rules, name="out")
    listens: SimpleQueue[int] = SimpleQueue()
    with a, b, a.port, b.port:
        return side_by_side(
            lambda: pingpong.connect(a, plan, client_host, listens.get()),
            lambda: pingpong.serve(b, plan, 0, listens=listens.put),
        )


@pytest.mark.parametrize("qp_type", [QPType.RC, QPType.UC, QPType.UD])
@pytest.mark.parametrize(("host", "own"), [("127.0.0.1", "10.0.0.1"), ("::1", "fd00::1")])
def test_every_message_arrives_as_it_was_sent(qp_type: QPType, host: str, own: str) -> None:
    client, server = play(Plan(qp_type, size=3000, messages=50), host)

    for result in (client, server):
        assert (result.sent, result.received, result.wrong) == (50, 50, 0)
        assert result.passed
    assert (client.own, server.peer) == (own, own)
    assert (client.qpn, client.peer_qpn) == (server.peer_qpn, server.qpn)
    assert len(client.rounds_ns) == 50


@pytest.mark.parametrize("size", [1, 15, 16, 17, 4096, 10_000])
def test_sizes_with_and_without_a_count(size: int) -> None:
    client, server = play(Plan(size=size, messages=5))

    assert client.passed
    assert server.passed


SLOW_FAULTS = [pytest.param(each, marks=pytest.mark.slow) for each in ("duplicate", "reorder")]


@pytest.mark.slow
@pytest.mark.parametrize("faults", ["loss", "corrupt", *SLOW_FAULTS])
def test_faults_cost_time_and_no_message(faults: str) -> None:
    client, server = play(Plan(size=3000, messages=40), faults=faults)

    assert (client.received, client.wrong) == (40, 0)
    assert (server.received, server.wrong) == (40, 0)


def test_message_that_was_changed_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server sends one bit otherwise, from its third message of ten on."""
    post = pingpong._Pingpong._send

    def send(self: pingpong._Pingpong) -> None:
        if not self.is_client and self._posted == 2:
            self._content[20] ^= 1
        post(self)

    monkeypatch.setattr(pingpong._Pingpong, "_send", send)
    client, server = play(Plan(size=100, messages=10))

    assert (client.wrong, server.wrong) == (8, 7)
    assert not client.passed


def test_message_larger_than_the_buffer_ends_it_on_both_sides() -> None:
    a, b = endpoints()
    listens: SimpleQueue[int] = SimpleQueue()
    with a, b, a.port, b.port:
        client, server = side_by_side(
            lambda: pingpong.connect(a, Plan(size=2000), "127.0.0.1", listens.get()),
            lambda: pingpong.serve(b, Plan(size=1000), 0, listens=listens.put),
        )

    assert client.status is WCStatus.REM_INV_REQ_ERR
    assert server.status is WCStatus.LOC_LEN_ERR


def test_datagram_larger_than_a_packet_is_refused() -> None:
    a, _ = endpoints()

    with a, a.port, pytest.raises(EncodeError, match="one packet"):
        pingpong.connect(a, Plan(QPType.UD, size=5000), "127.0.0.1", 1)


def test_path_mtu_that_does_not_fit_the_interface_is_refused() -> None:
    a, _ = endpoints()
    a.port.mtu = 1500

    with a, a.port, pytest.raises(LinkError, match="MTU 1500 is too small for a path MTU of 4096"):
        pingpong.connect(a, Plan(mtu=4096), "127.0.0.1", 1)


@pytest.mark.slow
def test_nobody_listens() -> None:
    with TCPListener(0, ["127.0.0.1"]) as listening:
        port = listening.port
    a, _ = endpoints()

    with a, a.port, pytest.raises(PeerError, match="no program listens there"):
        pingpong.connect(a, Plan(), "127.0.0.1", port)


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (b"", "has closed its connection"),
        # The first that a program of perftest says.
        (b"6.06".ljust(16, b"\0"), r"connection, after 16 of 52 bytes: b'6.06\x00"),
        (b"\r\n" * 26, "not a line of a pingpong program"),
    ],
)
def test_server_keeps_waiting_after_an_invalid_client(said: bytes, reason: str) -> None:
    told: list[str] = []
    a, b = endpoints(tell=told.append)
    listens: SimpleQueue[int] = SimpleQueue()

    def ask() -> pingpong.Result:
        port = listens.get()
        with socket.create_connection(("127.0.0.1", port)) as connected:
            connected.sendall(said)
        return pingpong.connect(a, Plan(messages=3), "127.0.0.1", port)

    with a, b, a.port, b.port:
        client, server = side_by_side(
            ask, lambda: pingpong.serve(b, Plan(messages=3), 0, listens=listens.put)
        )

    assert client.passed
    assert server.passed
    (line,) = told
    assert line.startswith("127.0.0.1 port ")
    assert reason in line


def test_client_without_a_gid_is_an_error() -> None:
    said = CLIENT_LINE.replace(b"ffff0a4d0001", b"000000000000")
    _, b = endpoints()

    def say(port: int) -> None:
        def run() -> None:
            with socket.create_connection(("127.0.0.1", port)) as connected:
                connected.sendall(said)

        threading.Thread(target=run).start()

    with b, b.port, pytest.raises(PeerError, match="the peer has no GID"):
        pingpong.serve(b, Plan(), 0, listens=say)


def test_rounds_take_eight_bytes_each() -> None:
    client, _ = play(Plan(messages=20))

    assert memoryview(client.rounds_ns).nbytes == 20 * 8


@pytest.mark.slow
def test_peer_that_falls_silent_is_given_up() -> None:
    """The client is given the number of a queue pair that does not exist."""
    a, b = endpoints()

    def answer(listening: TCPListener) -> None:
        channel = None
        while channel is None:
            channel = listening.accept()
        with channel:
            channel.send(CLIENT_LINE)
            while channel.read(len(CLIENT_LINE) + 5) is None:
                pass

    with a, b, a.port, b.port, TCPListener(0, ["127.0.0.1"]) as listening:
        client, _ = side_by_side(
            lambda: pingpong.connect(a, Plan(), "127.0.0.1", listening.port),
            lambda: answer(listening),
        )

    assert client.status is WCStatus.RETRY_EXC_ERR
    assert client.received == 0


def test_a_client_waits_for_a_server_that_is_started_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Which listens after four seconds of a clock that only waiting advances."""
    now, connect = [0.0], socket.create_connection

    def starting(address: tuple[str, int], seconds: float) -> socket.socket:
        if now[0] < 4:
            raise ConnectionRefusedError
        return connect(address, seconds)

    def sleep(seconds: float) -> None:
        now[0] += seconds

    clock = SimpleNamespace(monotonic=lambda: now[0], sleep=sleep)
    monkeypatch.setattr("ibwire.programs.channel.time", clock)
    monkeypatch.setattr("ibwire.programs.channel.socket.create_connection", starting)

    client, server = play(Plan(messages=1))

    assert client.passed
    assert server.passed
    assert now[0] >= 4
