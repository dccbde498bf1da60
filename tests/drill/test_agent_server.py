"""Access to an agent, and its limits: real sockets, and a clock that the test sets."""

from __future__ import annotations

import hmac
import json
import re
import resource
import select
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from each_case import each_case
from examples import scaled
from ibwire.drill.agent import agent_server
from ibwire.drill.agent.agent_server import LIMITS, LONGEST_HELLO, ListenError, Refused, Server

TOKEN = "a token for tests"

STEPS = 10_000
"""After so many steps without the expected, a test fails."""


class Agent:
    """Answers with the question, or with as many bytes as it asks for."""

    manager = None

    def __init__(self) -> None:
        self.questions: list[bytes] = []
        self.is_closed = False

    def answer(self, line: bytes) -> bytes:
        self.questions.append(line)
        return b"x" * int(line) + b"\n" if line.strip().isdigit() else line

    def end(self) -> None:
        self.is_closed = True


class Host:
    """A server, its clock, and the programs that connect to it."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self.now = 0.0
        self.agents: list[Agent] = []
        (listening,) = agent_server.listen(["127.0.0.1"], 0)
        self.address = listening.getsockname()
        self.server = Server([listening], self._make, TOKEN, clock=lambda: self.now)
        self.failure: Refused | None = None

    def _make(self) -> Agent:
        if self.failure is not None:
            raise self.failure
        self.agents.append(Agent())
        return self.agents[-1]

    def connect(self, source: str = "127.0.0.1") -> Program:
        connected = socket.create_connection(self.address, source_address=(source, 0))
        return Program(self, self._stack.enter_context(connected))

    def program(self, source: str = "127.0.0.1") -> Program:
        """One that has shown the token."""
        program = self.connect(source)
        assert program.hello() == {"ok": None}
        return program

    def until(self, condition: Callable[[], bool]) -> None:
        """Let the server work until a condition holds."""
        for _ in range(STEPS):
            if condition():
                return
            self.step()
        pytest.fail("it never came")

    def step(self) -> None:
        self.server.prepare()
        self.server.handle()

    def accept_all(self) -> None:
        """Let the server take all new connections, and notice closed ones."""
        while self.server.prepare() == 0 or select.select([self.server], [], [], 0)[0]:
            self.server.handle()


class Program:
    """A connection to the server."""

    def __init__(self, host: Host, connected: socket.socket) -> None:
        self._host = host
        self.socket = connected

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def hello(self, token: object = TOKEN) -> Any:
        return self.ask(json.dumps({"do": "hello", "token": token}).encode())

    def ask(self, line: bytes) -> Any:
        """The answer to a question, as JSON; `None` when the server closes without one."""
        self.send(line + b"\n")
        return self.receive()

    def receive(self) -> Any:
        line = b""
        while not line.endswith(b"\n"):
            self._host.until(self.is_readable)
            try:
                data = self.socket.recv(1 << 16)
            except ConnectionError:
                data = b""
            if not data:
                return None
            line += data
        return json.loads(line)

    def is_readable(self) -> bool:
        return bool(select.select([self.socket], [], [], 0)[0])

    def is_closed(self) -> bool:
        """Whether the server has closed the connection; what has come before is left out."""
        self.socket.setblocking(False)
        try:
            while self.socket.recv(1 << 20):
                pass
        except BlockingIOError:
            return False
        except ConnectionError:
            return True
        return True


@pytest.fixture
def host() -> Iterator[Host]:
    with ExitStack() as stack:
        made = Host(stack)
        stack.callback(made.server.close)
        yield made


# The token.


def test_a_program_with_the_token_is_answered(host: Host) -> None:
    program = host.program()

    assert program.ask(b"[1, 2]") == [1, 2]
    assert host.agents[0].questions == [b"[1, 2]\n"]


@pytest.mark.parametrize("token", ["", TOKEN[:-1], TOKEN + "x", None, 5, [TOKEN], "\ud800"])
def test_a_wrong_token_is_refused_and_the_connection_ends(host: Host, token: object) -> None:
    stranger = host.connect()

    answer = stranger.hello(token)

    assert answer["refused"].startswith("wrong token: ")
    host.until(stranger.is_closed)
    assert host.agents == []


@pytest.mark.parametrize("line", [b'{"do": "about"}', b"", b"GET / HTTP/1.1", b"[" * 900])
def test_a_question_without_the_token_is_refused(host: Host, line: bytes) -> None:
    assert "refused" in host.connect().ask(line)
    assert host.agents == []


def test_tokens_are_compared_in_constant_time(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[bytes, bytes]] = []

    def compare(first: bytes, second: bytes) -> bool:
        compared.append((first, second))
        return False

    monkeypatch.setattr(hmac, "compare_digest", compare)

    assert "refused" in host.connect().hello()
    assert compared == [(TOKEN.encode(), TOKEN.encode())]


def test_a_device_that_cannot_be_opened_is_a_reason(host: Host) -> None:
    host.failure = Refused("rxe0 cannot be opened: no such device")

    assert host.connect().hello() == {"refused": "rxe0 cannot be opened: no such device"}


@pytest.mark.parametrize("token", ["", "short", "ä" * 20, "tab\t" * 9])
def test_a_token_that_can_be_guessed_or_not_be_sent_is_none(token: str) -> None:
    with pytest.raises(ValueError, match="at least 16 characters"):
        agent_server.check_token(token)


def test_new_tokens_are_long_and_differ() -> None:
    first, second = agent_server.new_token(), agent_server.new_token()

    agent_server.check_token(first)
    assert len(first) == 32
    assert first != second


# Strangers.


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=scaled(100))
@given(junk=st.binary(min_size=1, max_size=3000))
def test_junk_disturbs_nobody(host: Host, junk: bytes) -> None:
    stranger = host.connect()
    stranger.send(junk)
    stranger.socket.shutdown(socket.SHUT_WR)

    host.until(stranger.is_closed)
    program = host.program()
    assert program.ask(b'{"still": "there"}') == {"still": "there"}
    program.socket.close()


def test_a_stranger_cannot_make_the_server_keep_much(host: Host) -> None:
    stranger = host.connect()
    stranger.send(b"x" * (LONGEST_HELLO + 1))

    host.until(stranger.is_closed)


def test_a_stranger_who_shows_nothing_is_closed_after_a_while(host: Host) -> None:
    stranger = host.connect()
    stranger.send(b'{"do": "hel')
    host.accept_all()

    host.now = LIMITS.hello_seconds - 1
    host.step()
    assert not stranger.is_closed()
    assert host.server.prepare() == 1

    host.now = LIMITS.hello_seconds
    host.step()
    assert stranger.is_closed()


@pytest.fixture
def many_files() -> Iterator[None]:
    """Room for the descriptors of both ends of 1,000 connections."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    if before[1] != resource.RLIM_INFINITY and before[1] < 4096:
        pytest.skip(f"only {before[1]} open files are allowed")
    resource.setrlimit(resource.RLIMIT_NOFILE, (4096, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.slow
@pytest.mark.usefixtures("many_files")
@pytest.mark.parametrize("sources", [1, 250], ids=["one-host", "many-hosts"])
def test_a_thousand_idle_connections_lock_nobody_out(host: Host, sources: int) -> None:
    program = host.program()
    strangers = []
    for number in range(1000):
        strangers.append(host.connect(f"127.0.1.{number % sources + 1}"))
        host.step()
    host.accept_all()

    newcomer = host.connect(f"127.0.1.{sources}")
    newcomer.send(b'{"do": "hello", "token": "' + TOKEN.encode() + b'"}\n')
    host.until(lambda: len(host.agents) == 2)

    most = LIMITS.strangers_of_host if sources == 1 else LIMITS.strangers
    assert len(host.server.sessions) <= most + 2
    assert program.ask(b"[7]") == [7]


def test_a_host_with_many_strangers_loses_its_own_first(host: Host) -> None:
    other = host.connect("127.0.0.9")
    host.accept_all()

    for _ in range(2 * LIMITS.strangers):
        host.connect("127.0.0.8")
    host.accept_all()

    assert other.hello() == {"ok": None}
    assert len(host.server.sessions) == 1 + LIMITS.strangers_of_host


def test_strangers_that_have_gone_are_forgotten(host: Host) -> None:
    for _ in range(5):
        host.connect().socket.close()

    host.until(lambda: host.server.sessions == [])
    assert host.server.prepare() is None


# Programs with the token.


@pytest.mark.slow
def test_a_program_that_does_not_read_holds_up_nobody_and_is_closed(host: Host) -> None:
    slow, other = host.program(), host.program()
    slow.send(b"100000000\n" * 3)
    host.until(lambda: bool(host.agents[0].questions))

    host.now = LIMITS.write_seconds - 1
    assert other.ask(b"[1]") == [1]
    host.now = 3 * LIMITS.write_seconds
    host.until(lambda: host.agents[0].is_closed)

    assert len(host.agents[0].questions) == 1
    assert other.ask(b"[2]") == [2]


def test_a_program_with_many_questions_takes_turns_with_others(host: Host) -> None:
    busy, other = host.program(), host.program()
    busy.send(b"[0]\n" * 1000)
    other.send(b"[1]\n")

    host.until(other.is_readable)

    assert len(host.agents[0].questions) < 10


def test_a_line_without_end_is_not_kept(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_server, "LONGEST_LINE", 1 << 20)
    program = host.program()
    program.socket.setblocking(False)

    def pour() -> bool:
        try:
            program.socket.send(b"x" * (1 << 18))
        except BlockingIOError:
            return False
        except ConnectionError:
            return True
        return False

    host.until(pour)

    assert host.agents[0].is_closed
    assert host.agents[0].questions == []


def test_an_idle_program_is_closed_after_long(host: Host) -> None:
    program = host.program()
    host.now = LIMITS.idle_seconds / 2
    assert program.ask(b"[1]") == [1]

    host.now = LIMITS.idle_seconds * 1.5 - 1
    host.step()
    assert not host.agents[0].is_closed

    host.now = LIMITS.idle_seconds * 1.5
    host.step()
    assert host.agents[0].is_closed


def test_too_many_programs_are_refused_and_idle_ones_make_room(host: Host) -> None:
    for number in range(LIMITS.sessions):
        host.program(f"127.0.0.{number + 1}")

    host.now = LIMITS.replaceable_seconds - 1
    refused = host.connect("127.0.0.99").hello()
    host.now = LIMITS.replaceable_seconds
    accepted = host.connect("127.0.0.99").hello()

    assert refused == {"refused": "16 programs are connected, and use the agent"}
    assert accepted == {"ok": None}
    assert [each.is_closed for each in host.agents] == [True] + [False] * LIMITS.sessions


def test_the_programs_of_one_host_leave_room_for_others(host: Host) -> None:
    for _ in range(LIMITS.sessions_of_host):
        host.program("127.0.0.1")

    assert "refused" in host.connect("127.0.0.1").hello()
    assert host.connect("127.0.0.2").hello() == {"ok": None}


def test_questions_before_the_end_of_a_program_are_answered(host: Host) -> None:
    program = host.program()
    program.send(b"[1]\n[2]\n")
    program.socket.shutdown(socket.SHUT_WR)

    host.until(lambda: host.agents[0].is_closed)

    assert host.agents[0].questions == [b"[1]\n", b"[2]\n"]


def test_everything_is_closed_at_the_end(host: Host) -> None:
    program = host.program()

    host.server.close()

    assert host.agents[0].is_closed
    assert program.is_closed()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(host.address)


# Where it listens.


def test_only_the_given_addresses_are_listened_at() -> None:
    sockets = agent_server.listen(["127.0.0.2", "127.0.0.3"], 0)
    port = sockets[0].getsockname()[1]

    with sockets[0], sockets[1]:
        for address in ("127.0.0.2", "127.0.0.3"):
            socket.create_connection((address, port)).close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port))


def test_an_address_that_the_host_lacks_is_left_out_unless_it_is_the_only_one() -> None:
    (found,) = agent_server.listen(["192.0.2.1", "127.0.0.1"], 0)
    with found:
        assert found.getsockname()[0] == "127.0.0.1"

    with pytest.raises(ListenError, match=r"TCP port 0 of 192.0.2.1: .* assign requested address"):
        agent_server.listen(["192.0.2.1"], 0)


def test_a_port_that_is_taken_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ListenError, match=f"^TCP port {port} of 127.0.0.1: .* in use"):
            agent_server.listen(["127.0.0.1", "127.0.0.2"], port)


@pytest.mark.parametrize("name", ["nosuch.invalid", "a..b", "fe80::1%nosuch"])
def test_a_name_without_an_address_is_an_error_with_the_name(name: str) -> None:
    with pytest.raises(ListenError, match=f"^{re.escape(name)}: no such host: "):
        agent_server.listen(["127.0.0.1", name], 0)


@each_case(
    ("first", "second", "same"),
    [
        ("10.0.0.1", "10.0.0.2", False),
        ("fd00::1", "fd00::2", True),
        ("fd00::1", "fd00:0:0:1::1", False),
        ("::ffff:10.0.0.1", "::ffff:10.0.0.2", False),
        ("fe80::1%lo", "fe80::2%lo", True),
    ],
)
def test_a_network_of_ipv6_counts_as_one_host(first: str, second: str, same: bool) -> None:
    assert (agent_server._host(first) == agent_server._host(second)) is same


def test_what_to_type_on_the_other_host_is_printed() -> None:
    (listening,) = agent_server.listen(["127.0.0.1"], 0)
    port = listening.getsockname()[1]

    with listening:
        text = agent_server.notice([listening], "rxe0", "abc", ["127.0.0.1"])
        own = agent_server.notice([listening], "rxe0", None, ["127.0.0.1"])

    assert text.splitlines() == [
        f"rxe0: waiting at 127.0.0.1, TCP port {port}",
        "on the other host:",
        "  export IBWIRE_TOKEN=abc",
        f"  ibwire drill SCRIPT --dev IFACE --peer 127.0.0.1 --port {port}",
    ]
    assert "export IBWIRE_TOKEN=..." in own


@pytest.mark.parametrize(
    ("listen", "device", "options"),
    [
        ("127.0.0.1", ["127.0.0.11"], "--peer 127.0.0.11 --host 127.0.0.1"),
        ("127.0.0.1", ["fd00::1", "127.0.0.1"], "--peer 127.0.0.1"),
        ("0.0.0.0", ["10.0.0.1"], "--peer 10.0.0.1 --host ADDRESS"),
        ("127.0.0.1", [], "--peer ADDRESS --host 127.0.0.1"),
    ],
)
def test_the_peer_is_the_device_and_the_host_is_that_of_the_agent(
    listen: str, device: list[str], options: str
) -> None:
    (listening,) = agent_server.listen([listen], 0)

    with listening:
        port = listening.getsockname()[1]
        text = agent_server.notice([listening], "rxe0", "abc", device)

    assert text.endswith(f"--dev IFACE {options} --port {port}")
