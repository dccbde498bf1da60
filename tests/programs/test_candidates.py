"""Programs that connect to a server and are no clients, and what that costs the others."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from ibwire.base.errors import LinkError, PeerError
from ibwire.programs.candidates import MOST, MOST_OF_HOST, SECONDS, Candidates
from ibwire.programs.channel import Channel, TCPListener
from ibwire.programs.endpoint import Endpoint
from socket_port import ports

HELLO = b"hello, 16 bytes!"

STEPS = 10_000
"""After so many steps without the expected, a test fails."""


def unpack(data: bytes) -> bytes:
    if data != HELLO:
        raise PeerError("this is no greeting")
    return data


class Server:
    """A listener, its candidates, and a clock that the test sets."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self.told: list[str] = []
        self.now_ns = 0
        self.listener = stack.enter_context(TCPListener(0, ["127.0.0.1"]))
        self.candidates = stack.enter_context(
            Candidates(self.listener, len(HELLO), "greeting", unpack, self.told.append)
        )

    def connect(self, data: bytes = b"", source: str = "127.0.0.1") -> socket.socket:
        connected = self._stack.enter_context(
            socket.create_connection(("127.0.0.1", self.listener.port), source_address=(source, 0))
        )
        connected.sendall(data)
        return connected

    def poll(self) -> tuple[Channel, bytes] | None:
        found = self.candidates.poll(self.now_ns)
        if found is not None:
            self._stack.enter_context(found[0])
        return found

    def client(self) -> tuple[Channel, bytes]:
        for _ in range(STEPS):
            found = self.poll()
            if found is not None:
                return found
        pytest.fail("no client came")

    def until_told(self, words: str) -> str:
        for _ in range(STEPS):
            for line in self.told:
                if words in line:
                    return line
            assert self.poll() is None
        pytest.fail(f"never told {words!r}: {self.told}")


@pytest.fixture
def server() -> Iterator[Server]:
    with ExitStack() as stack:
        yield Server(stack)


def test_a_client_is_accepted_while_others_are_silent(server: Server) -> None:
    silent = [server.connect(HELLO[:-1]) for _ in range(5)]
    client = server.connect(HELLO)

    channel, message = server.client()

    assert message == HELLO
    assert channel.peer == f"127.0.0.1 port {client.getsockname()[1]}"
    assert server.told == []
    assert len(server.candidates.filenos()) == 1 + len(silent)


@pytest.mark.slow
@pytest.mark.parametrize("sources", [1, 250], ids=["one-host", "many-hosts"])
def test_a_thousand_idle_connections_lock_nobody_out(server: Server, sources: int) -> None:
    for number in range(1000):
        server.connect(source=f"127.0.1.{number % sources + 1}")
        server.poll()

    server.connect(HELLO, f"127.0.1.{sources}")

    assert server.client()[1] == HELLO
    most = MOST_OF_HOST if sources == 1 else MOST
    assert len(server.candidates.filenos()) <= 1 + most
    assert "127.0.1.1" in server.told[0]
    assert server.told[0].endswith("too many connections; waiting for another")


def test_a_host_with_many_connections_loses_its_own_first(server: Server) -> None:
    other = server.connect(source="127.0.0.9")
    server.poll()
    for _ in range(2 * MOST):
        server.connect(source="127.0.0.8")
        server.poll()

    other.sendall(HELLO)

    assert server.client()[1] == HELLO


def test_a_connection_has_some_seconds(server: Server) -> None:
    server.connect(b"hel")
    while len(server.candidates.filenos()) == 1:
        server.poll()
    assert server.candidates.seconds(0) == SECONDS

    server.now_ns = int(SECONDS * 1e9)

    line = server.until_told("no greeting from 127.0.0.1 port ")
    assert line.endswith("for 10 s, after 3 of 16 bytes: b'hel'; waiting for another")
    assert server.candidates.seconds(0) is None


def test_junk_and_the_end_of_a_connection_are_reported(server: Server) -> None:
    server.connect(b"\x1b]0;junk\x07" + bytes(20))
    server.connect(b"GET /").shutdown(socket.SHUT_WR)

    server.until_told("this is no greeting")
    server.until_told("has closed its connection, after 5 of 16 bytes: b'GET /'")


# Where a server listens.


def test_a_listener_has_the_given_addresses_only() -> None:
    with TCPListener(0, ["127.0.0.2", "127.0.0.3", "192.0.2.1"]) as listener:
        assert listener.addresses == ["127.0.0.2", "127.0.0.3"]
        with socket.create_connection(("127.0.0.3", listener.port)) as connected:
            channel = None
            while channel is None:
                channel = listener.accept()
            assert channel.peer.endswith(f" port {connected.getsockname()[1]}")
            channel.close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", listener.port))


@pytest.mark.parametrize(
    ("address", "reason"),
    [("192.0.2.1", "Cannot assign requested address"), ("no such host.", "known")],
)
def test_a_listener_needs_an_address(address: str, reason: str) -> None:
    with pytest.raises(LinkError, match=reason):
        TCPListener(0, [address])


def test_a_server_listens_at_the_addresses_of_its_interface() -> None:
    a, b = ports()
    a.addresses = ["10.0.0.1", "fe80::1"]

    with a, b, Endpoint(a) as endpoint:
        assert endpoint.listening_addresses == ("10.0.0.1", "fe80::1%a")


def test_a_server_on_an_interface_without_addresses_listens_at_the_loopback_address() -> None:
    a, b = ports()
    a.addresses = []

    with a, b, Endpoint(a, addresses=["10.0.0.7"]) as endpoint:
        assert endpoint.listening_addresses == ("127.0.0.1",)
