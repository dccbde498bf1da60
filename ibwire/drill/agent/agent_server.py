"""Access to an agent: connections with a token, within limits.

A program that connects to an agent uses the device and memory of its host. So it listens at
the addresses of the device only, the first line of a connection must have the token that was
printed at the start, and `Limits` bounds what a peer can take. Nothing here waits for one peer.

This file lies beside `agent.py` on the host of a device, and needs only the standard library.
"""

from __future__ import annotations

import errno
import hmac
import json
import secrets
import select
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

PORT = 18516

TOKEN_VARIABLE = "IBWIRE_TOKEN"
"""Environment variable with the token, for the agent and for programs that connect to it."""

SHORTEST_TOKEN = 16
"""Characters."""

LONGEST_LINE = 1 << 24
"""Bytes of a question: memory is written in hexadecimal."""

LONGEST_HELLO = 1024
"""Bytes of the question with the token."""

LOOPBACK = "127.0.0.1"
"""Where the agent of a device without IP addresses listens."""

ANY = ("0.0.0.0", "::")

BACKLOG = 1024
"""Connections that wait to be accepted."""

V4_MAPPED = bytes(10) + b"\xff\xff"
"""First bytes of an IPv6 address that is an IPv4 address (RFC 4291)."""


@dataclass(frozen=True)
class Limits:
    """Limits of peers. A connection that has not shown the token is a stranger.

    When there are too many strangers, the oldest one is closed: a program that has the token
    shows it at once. A /64 network of IPv6 counts as one host.
    """

    strangers: int = 64
    strangers_of_host: int = 16
    sessions: int = 16
    sessions_of_host: int = 8
    hello_seconds: float = 10.0
    """Until a stranger has shown the token."""
    idle_seconds: float = 3600.0
    """Without a question, until a session ends."""
    replaceable_seconds: float = 60.0
    """Without a question, until a session may end for a new one, when there are too many."""
    write_seconds: float = 10.0
    """Until a peer has read something of a reply."""


LIMITS = Limits()


class Refused(Exception):
    """A connection that the agent does not serve."""


class ListenError(Exception):
    """A place at which the agent cannot listen, and the reason."""

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(f"{where}: {reason}")
        self.where = where
        self.reason = reason


class Manager(Protocol):
    """A connection manager, and how an application reacts to its events.

    It has a listener, and the newest connection is that of the queue pair. `handle` takes what
    it has events when its descriptor can be read; its other methods are `MANAGER_QUESTIONS`.
    """

    def fileno(self) -> int:
        """Descriptor that is readable when there is an event."""
        ...

    def handle(self) -> None:
        """Handle the events."""
        ...

    def close(self) -> None:
        """End all connections."""
        ...


class Agent(Protocol):
    """What a program with the token gets."""

    manager: Manager | None

    def answer(self, line: bytes) -> bytes:
        """The reply to a question, each a line."""
        ...

    def end(self) -> None:
        """Close everything made for the program."""
        ...


class Session:
    """A connection: of a stranger, then of a program with its agent.

    host: whose connections are counted together.
    """

    def __init__(self, connection: socket.socket, host: bytes, now: float) -> None:
        connection.setblocking(False)
        self._connection = connection
        self.host = host
        self.agent: Agent | None = None
        self.active = now
        """When it was opened, has had a question or has read of a reply."""
        self._input = bytearray()
        self._output = b""
        self.is_ending = False
        """Whether it ends when its reply has been read."""

    def fileno(self) -> int:
        """Descriptor of the connection."""
        return self._connection.fileno()

    @property
    def has_reply(self) -> bool:
        """Whether the peer has still to read; until then no question of it is answered."""
        return bool(self._output)

    @property
    def has_question(self) -> bool:
        """Whether a question waits to be answered."""
        return not self._output and not self.is_ending and b"\n" in self._input

    def deadline(self, limits: Limits) -> float:
        """When it ends if nothing happens."""
        if self._output:
            return self.active + limits.write_seconds
        if self.agent is None:
            return self.active + limits.hello_seconds
        return self.active + limits.idle_seconds

    def receive(self) -> bool:
        """Take what has come; false when the peer has closed or its question is too long."""
        if b"\n" in self._input:
            return True
        try:
            data = self._connection.recv(1 << 18)
        except BlockingIOError:
            return True
        except OSError:
            return False
        self._input += data
        longest = LONGEST_HELLO if self.agent is None else LONGEST_LINE
        return bool(data) and len(self._input.partition(b"\n")[0]) <= longest

    def question(self) -> bytes:
        """The next question."""
        end = self._input.index(b"\n") + 1
        line = bytes(self._input[:end])
        del self._input[:end]
        return line

    def reply(self, data: bytes, now: float) -> bool:
        """Begin to send a reply; false when the peer is gone."""
        self.active = now
        self._output = data
        return self.send(now)

    def send(self, now: float) -> bool:
        """Send what the peer takes; false when it is gone, or this was the end."""
        try:
            sent = self._connection.send(self._output)
        except BlockingIOError:
            return True
        except OSError:
            return False
        self._output = self._output[sent:]
        self.active = now
        return not (self.is_ending and not self._output)

    def close(self) -> None:
        """Close everything made for the program."""
        self._connection.close()
        if self.agent is not None:
            self.agent.end()


class Server:
    """Lets programs with the token use agents, within limits.

    listening: sockets, which it closes at the end. make_agent: for a program that has shown the
    token; it raises `Refused` if there can be none. clock: seconds, for deadlines. Its descriptor
    is readable when `handle` has something to do.
    """

    def __init__(
        self,
        listening: Sequence[socket.socket],
        make_agent: Callable[[], Agent],
        token: str,
        *,
        limits: Limits = LIMITS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._listening = {each.fileno(): each for each in listening}
        self._make_agent = make_agent
        self._token = token.encode()
        self._limits = limits
        self._clock = clock
        self._epoll = select.epoll()
        self._watched: dict[int, int] = {}
        """Descriptors in the epoll, and the events waited for."""
        self.sessions: list[Session] = []
        for each in listening:
            each.setblocking(False)

    def fileno(self) -> int:
        """Descriptor to wait for."""
        return self._epoll.fileno()

    @property
    def managers(self) -> list[Manager]:
        """The connection managers of all programs."""
        agents = [each.agent for each in self.sessions if each.agent is not None]
        return [agent.manager for agent in agents if agent.manager is not None]

    def prepare(self) -> float | None:
        """Seconds until `handle` is due even if nothing happens; `None` for ever.

        It also updates the events that the descriptor waits for.
        """
        wanted = dict.fromkeys(self._listening, select.EPOLLIN)
        for session in self.sessions:
            waits = select.EPOLLOUT if session.has_reply else select.EPOLLIN
            wanted[session.fileno()] = waits
        for manager in self.managers:
            if manager.fileno() >= 0:
                wanted[manager.fileno()] = select.EPOLLIN
        for number in self._watched.keys() - wanted.keys():
            with suppress(OSError):  # closed, which has removed it
                self._epoll.unregister(number)
        for number, events in wanted.items():
            try:
                self._epoll.modify(number, events)
            except FileNotFoundError:  # new, or another file with the number of a closed one
                self._epoll.register(number, events)
        self._watched = wanted
        if any(each.has_question for each in self.sessions):
            return 0.0
        ends = [each.deadline(self._limits) for each in self.sessions]
        return max(min(ends) - self._clock(), 0.0) if ends else None

    def wait(self, seconds: float | None) -> None:
        """Wait until `handle` has something to do, or for some seconds."""
        self._epoll.poll(seconds)

    def handle(self) -> None:
        """Handle what has happened, one question of each program; it never waits for a peer."""
        ready = {number for number, _ in self._epoll.poll(0)}
        now = self._clock()
        for manager in self.managers:
            if manager.fileno() in ready:
                manager.handle()
        for session in list(self.sessions):
            if session not in self.sessions:
                continue  # another one has replaced it
            is_ready = session.fileno() in ready
            if not self._advance(session, is_ready, now) or session.deadline(self._limits) <= now:
                self._end(session)
        for number, listening in self._listening.items():
            if number in ready:
                self._accept(listening, now)

    def close(self) -> None:
        """End all connections, and stop listening."""
        for session in list(self.sessions):
            self._end(session)
        for each in self._listening.values():
            each.close()
        self._epoll.close()

    def _advance(self, session: Session, is_ready: bool, now: float) -> bool:
        """Receive, answer or send; false when the session is over."""
        if session.has_reply:
            return not is_ready or session.send(now)
        if is_ready and not session.receive():
            return False
        if not session.has_question:
            return True
        line = session.question()
        if session.agent is not None:
            return session.reply(session.agent.answer(line), now)
        try:
            self._admit(session, line, now)
            answer: dict[str, Any] = {"ok": None}
        except Refused as error:
            session.is_ending = True
            answer = {"refused": str(error)}
        return session.reply(json.dumps(answer).encode() + b"\n", now)

    def _admit(self, session: Session, line: bytes, now: float) -> None:
        """Give an agent to a connection that has the token; raises `Refused`."""
        try:
            given = json.loads(line)["token"].encode()
        except (AttributeError, LookupError, RecursionError, TypeError, ValueError):
            given = b""
        if not hmac.compare_digest(given, self._token):
            known = f"--token or the variable {TOKEN_VARIABLE}"
            raise Refused(f"wrong token: give the one that the agent has printed, by {known}")
        served = [each for each in self.sessions if each.agent is not None]
        same_host = [each for each in served if each.host == session.host]
        if len(same_host) >= self._limits.sessions_of_host:
            self._replace(same_host, now)
        elif len(served) >= self._limits.sessions:
            self._replace(served, now)
        session.agent = self._make_agent()

    def _replace(self, sessions: Sequence[Session], now: float) -> None:
        """End the session that is idle for longest, so that there is room for another."""
        oldest = min(sessions, key=lambda each: each.active)
        if now - oldest.active < self._limits.replaceable_seconds:
            raise Refused(f"{len(sessions)} programs are connected, and use the agent")
        self._end(oldest)

    def _accept(self, listening: socket.socket, now: float) -> None:
        """Accept waiting connections, up to the limit of strangers."""
        for _ in range(self._limits.strangers):
            try:
                connection, address = listening.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE) and self._strangers():
                    self._end(self._strangers()[0])
                    continue
                return  # the peer has given up already
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            self.sessions.append(Session(connection, _host(address[0]), now))
            self._limit_strangers(self.sessions[-1].host)

    def _limit_strangers(self, host: bytes) -> None:
        """Close the oldest stranger of a host, or of the host that has most of them."""
        strangers = self._strangers()
        same_host = [each for each in strangers if each.host == host]
        if len(same_host) > self._limits.strangers_of_host:
            self._end(same_host[0])
        elif len(strangers) > self._limits.strangers:
            hosts = [each.host for each in strangers]
            self._end(max(strangers, key=lambda each: hosts.count(each.host)))

    def _strangers(self) -> list[Session]:
        """Connections without the token so far, oldest first."""
        return [each for each in self.sessions if each.agent is None]

    def _end(self, session: Session) -> None:
        self.sessions.remove(session)
        session.close()


def _host(address: str) -> bytes:
    """What is counted as one host: an IPv4 address, or a /64 network of IPv6."""
    packed = socket.inet_pton(
        socket.AF_INET6 if ":" in address else socket.AF_INET, address.partition("%")[0]
    )
    return packed if len(packed) == 4 or packed.startswith(V4_MAPPED) else packed[:8]


def serve(server: Server, wait: Callable[[Server, float | None], object] = Server.wait) -> None:
    """Serve programs until interrupted; `wait` waits for the server, some seconds at most."""
    try:
        while True:
            seconds = server.prepare()
            wait(server, seconds)
            server.handle()
    finally:
        server.close()


def listen(addresses: Sequence[str], port: int) -> list[socket.socket]:
    """Sockets at these addresses and one port, 0 for any; `::` is every address of both versions.

    An address that the host does not have (yet) is left out, unless it is the only one.
    Raises `ListenError`.
    """
    opened: list[socket.socket] = []
    failure: ListenError | None = None
    for address, (family, (host, _, *scope)) in [(each, _resolve(each)) for each in addresses]:
        both = host == "::" and socket.has_dualstack_ipv6()
        try:
            opened.append(
                socket.create_server(
                    (host, port, *scope), family=family, dualstack_ipv6=both, backlog=BACKLOG
                )
            )
            port = opened[0].getsockname()[1]
        except OSError as error:
            failure = ListenError(f"TCP port {port} of {address}", error.strerror or str(error))
            if error.errno != errno.EADDRNOTAVAIL:
                for each in opened:
                    each.close()
                raise failure from None
    if failure is not None and not opened:
        raise failure
    return opened


def _resolve(address: str) -> tuple[socket.AddressFamily, tuple[Any, ...]]:
    """Family and socket address of a name or an address, which may have `%eth1` at its end."""
    try:
        family, *_, where = socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM)[0]
    except socket.gaierror as error:
        raise ListenError(address, f"no such host: {error.strerror}") from None
    except UnicodeError:
        raise ListenError(address, "no such host: invalid name") from None
    return family, where


def new_token() -> str:
    """A random token."""
    return secrets.token_hex(SHORTEST_TOKEN)


def check_token(token: str) -> None:
    """Raise `ValueError` for a token that could be guessed, or cannot be sent."""
    if len(token) < SHORTEST_TOKEN or not (token.isascii() and token.isprintable()):
        raise ValueError(f"a token has at least {SHORTEST_TOKEN} characters, all of ASCII")


def notice(
    where: Iterable[socket.socket], name: str, token: str | None, device: Sequence[str]
) -> str:
    """What is printed at the start: where the agent waits, and what to type on the other host.

    token: `None` for one that the user has given. device: the IP addresses of the device.
    """
    names = [each.getsockname() for each in where]
    addresses, port = [each[0] for each in names], names[0][1]
    lines = [f"{name}: waiting at {', '.join(addresses)}, TCP port {port}", "on the other host:"]
    lines.append(f"  export {TOKEN_VARIABLE}={token or '...   # the token given here'}")
    option = "" if port == PORT else f" --port {port}"
    lines.append(f"  ibwire drill SCRIPT --dev IFACE {_way(addresses, device)}{option}")
    return "\n".join(lines)


def _way(addresses: Sequence[str], device: Sequence[str]) -> str:
    """Options with which the other host finds the device, and the agent if it is elsewhere."""
    for each in device:
        if each in addresses:
            return f"--peer {each}"
    peer = device[0] if device else "ADDRESS"
    # The device may have addresses that its host does not have.
    host = addresses[0] if addresses[0] not in ANY else "ADDRESS"
    return f"--peer {peer} --host {host}"
