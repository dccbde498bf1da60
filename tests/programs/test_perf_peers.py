"""Peers of `ibwire perf` that do not do their part."""

from __future__ import annotations

import socket
import threading
from dataclasses import replace
from queue import SimpleQueue
from typing import Any

import pytest

from each_case import each_case
from ibwire.base.errors import EncodeError, LinkError, PeerError
from ibwire.programs import perf
from ibwire.programs.endpoint import Endpoint
from ibwire.programs.perf_cm import connect_cm, serve_cm
from ibwire.programs.perf_exchange import TCPExchange
from ibwire.programs.perf_flows import Plan, Receives
from ibwire.programs.perf_results import Result
from ibwire.programs.perftest import Record, Verb, Version, pack_mtu, pack_number
from socket_port import endpoints, ports, side_by_side


def test_peer_that_has_never_room_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """It answers each message with an RNR NAK, and is asked again for ever (rnr_retry 7)."""
    monkeypatch.setattr(Receives, "__init__", lambda self, *rest: None)
    a, b = endpoints()
    listens: SimpleQueue[int] = SimpleQueue()

    def ask() -> None:
        plan = Plan(Verb.SEND, messages=5, stall_timeout=0.3)
        with pytest.raises(PeerError, match=r"no progress with .* for 0.3 s"):
            perf.connect(a, plan, "127.0.0.1", listens.get())

    def serve() -> None:
        with pytest.raises(PeerError, match="closed its connection"):
            perf.serve(b, Plan(Verb.SEND, messages=5), 0, listens=listens.put)

    with a, b, a.port, b.port:
        side_by_side(ask, serve)


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (b"", "has closed its connection"),
        (b"6.06", "has closed its connection, after 4 of 16 bytes: b'6.06'"),
        (b"GET / HTTP/1.1\r\n", "not a program of perftest"),
        (b"5.31".ljust(16, b"\0"), "its perftest is version 5.31"),
    ],
)
def test_server_keeps_waiting_after_an_invalid_client(said: bytes, reason: str) -> None:
    told: list[str] = []
    a, b = endpoints(tell=told.append)
    listens: SimpleQueue[int] = SimpleQueue()
    plan = Plan(Verb.SEND, messages=3)

    def ask() -> Result:
        port = listens.get()
        with socket.create_connection(("127.0.0.1", port)) as connected:
            connected.sendall(said)
        return perf.connect(a, plan, "127.0.0.1", port)

    with a, b, a.port, b.port:
        client, server = side_by_side(ask, lambda: perf.serve(b, plan, 0, listens=listens.put))

    assert client.passed
    assert server.passed
    (line,) = told
    assert line.startswith("127.0.0.1 port ")
    assert reason in line


@pytest.mark.parametrize(
    "program",
    [
        lambda end, plan: perf.connect(end, plan, "127.0.0.1", 1),
        lambda end, plan: perf.serve(end, plan, 0, listens=_nobody_may_wait),
        lambda end, plan: connect_cm(end, plan, "10.0.0.2"),
        lambda end, plan: serve_cm(end, plan, listens=_nobody_may_wait),
    ],
)
def test_plan_that_cannot_be_is_refused_before_anybody_is_waited_for(program: Any) -> None:
    a, _ = endpoints()
    with a, a.port, pytest.raises(EncodeError, match="at most 262144 with 1024 queue pairs"):
        program(a, Plan(Verb.SEND, size=1 << 26, qps=1024))


def _nobody_may_wait(port: int) -> None:
    raise AssertionError("waits")


def answer(*words: bytes, keep: bool = False) -> tuple[socket.socket, threading.Thread]:
    """A server that sends its lines whenever it receives something, then closes, or is silent."""
    listening = socket.create_server(("127.0.0.1", 0))

    def run() -> None:
        connected, _ = listening.accept()
        with connected:
            for word in words:
                connected.recv(4096)
                connected.sendall(word)
            while keep and connected.recv(4096):
                pass

    thread = threading.Thread(target=run)
    thread.start()
    return listening, thread


OPENING = [
    Version("6.06", is_ibwire=False).pack(),
    pack_number(4096),
    pack_number(64),
    pack_mtu(1024),
]
NOBODY = Record(0x11, 0x22, 0xFFFF0A000002, 0x3333, 0x444444)


@each_case(
    ("words", "reason"),
    [
        ([b"5.31".ljust(16, b"\0")], "version 5.31; version 5.70 or newer is required"),
        ([b"HTTP/1.1 400 Bad"], "not a program of perftest"),
        ([b"6.06"], "has closed its connection"),
        ([], "has closed its connection|Connection reset"),
        ([OPENING[0], pack_number(1 << 30)], "cycle buffer: 1073741824 bytes"),
        ([*OPENING[:2], pack_number(0)], "cache line: 0 bytes"),
        ([*OPENING[:3], b"9\0"], "path MTU code"),
        ([*OPENING, b"x" * 108], "not a record of a queue pair"),
        ([*OPENING, replace(NOBODY, gid=0).pack_text()], "the peer's GID is ::"),
        ([*OPENING, NOBODY.pack_text()], "has closed its connection|reset"),
    ],
)
def test_server_that_cannot_be_understood_is_an_error(words: list[bytes], reason: str) -> None:
    a, _ = endpoints()
    listening, thread = answer(*words)

    with a, a.port, listening, pytest.raises((PeerError, LinkError), match=reason):
        perf.connect(a, Plan(Verb.WRITE), "127.0.0.1", listening.getsockname()[1])
    thread.join()


def test_server_that_falls_silent_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TCPExchange, "SECONDS", 0.2)
    a, _ = endpoints()
    listening, thread = answer(*OPENING, keep=True)

    with a, a.port, listening, pytest.raises(PeerError, match=r"no record from .* for 0.2 s"):
        perf.connect(a, Plan(Verb.WRITE), "127.0.0.1", listening.getsockname()[1])
    thread.join()


@pytest.mark.slow
@pytest.mark.parametrize(
    "plan", [Plan(Verb.WRITE, timeout=8), Plan(Verb.SEND, timeout=8, both=True)]
)
def test_queue_pair_that_nobody_has_ends_in_its_status(plan: Plan) -> None:
    """The exchange is right, and no ACK comes; flushed receives are not the reason."""
    a, b = endpoints(spin=True)
    listening, thread = answer(*OPENING, *[NOBODY.pack_text()] * (4 if plan.both else 3), keep=True)
    over = threading.Event()

    def ask() -> None:
        try:
            with pytest.raises(
                PeerError, match="message 0 completed with RETRY_EXC_ERR: nothing has arrived"
            ):
                perf.connect(a, plan, "127.0.0.1", listening.getsockname()[1])
        finally:
            over.set()

    with a, b, a.port, b.port, listening:
        side_by_side(ask, lambda: b.live.run(stop=over.is_set, seconds=20))
    thread.join()


@pytest.mark.parametrize("verb", [Verb.SEND, Verb.WRITE])
def test_client_that_vanishes_in_the_middle_is_an_error(verb: Verb) -> None:
    _, b = endpoints()

    def come(port: int) -> None:
        def run() -> None:
            with socket.create_connection(("127.0.0.1", port)) as connected:
                for word in (*OPENING, *[replace(NOBODY, gid=0xFFFF0A000001).pack_text()] * 3):
                    connected.sendall(word)
                    connected.recv(108)

        threading.Thread(target=run).start()

    with b, b.port, pytest.raises(PeerError, match=r"has closed its connection|reset"):
        perf.serve(b, Plan(verb), 0, listens=come)


def test_peer_of_the_other_ip_version_is_told_apart() -> None:
    """The channel is over IPv4, but the client has no such address to send from."""
    a_port, b_port = ports()
    a = Endpoint(a_port, addresses=["fd00::1"], neighbour=lambda _: b_port.mac)
    b = Endpoint(b_port, addresses=["10.0.0.2"], neighbour=lambda _: a_port.mac)
    listens: SimpleQueue[int] = SimpleQueue()

    def ask() -> None:
        with pytest.raises(LinkError, match=r"GID is 10\.0\.0\.2 and ours fd00::1"):
            perf.connect(a, Plan(Verb.READ), "127.0.0.1", listens.get())

    def serve() -> None:
        with pytest.raises(LinkError, match=r"ours 10\.0\.0\.2: choose an own address"):
            perf.serve(b, Plan(Verb.READ), 0, addresses=["127.0.0.1"], listens=listens.put)

    with a, b, a.port, b.port:  # type: ignore[attr-defined]
        side_by_side(ask, serve)


def test_server_takes_the_own_address_that_fits_the_client() -> None:
    """The channel is over IPv4, and the client has an IPv6 address only."""
    a_port, b_port = ports()
    a = Endpoint(a_port, addresses=["fd00::1"], neighbour=lambda _: b_port.mac)
    b = Endpoint(b_port, neighbour=lambda _: a_port.mac)
    listens: SimpleQueue[int] = SimpleQueue()
    plan = Plan(Verb.WRITE, size=3000, messages=20, qps=2)

    with a, b, a.port, b.port:  # type: ignore[attr-defined]
        client, server = side_by_side(
            lambda: perf.connect(a, plan, "127.0.0.1", listens.get()),
            lambda: perf.serve(b, plan, 0, addresses=["127.0.0.1"], listens=listens.put),
        )

    assert (client.own, client.peer) == (server.peer, server.own) == ("fd00::1", "fd00::2")
    assert client.passed
    assert server.passed
