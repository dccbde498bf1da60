"""rping on a live endpoint: the client, and the server of one client or of many."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from ibwire.base.errors import PeerError
from ibwire.base.units import US, S, Time
from ibwire.cm import Connection, Endpoints, Event, EventKind
from ibwire.link.live import Ended
from ibwire.programs.cm import (
    ABORT_SECONDS,
    accept,
    asker,
    connect,
    events,
    is_open,
    leave,
    objection,
    refusal,
    settle,
)
from ibwire.programs.endpoint import Endpoint, Interrupted
from ibwire.programs.rping import DEFAULT_SIZE, LARGEST, PORT, Client, Server, Side, Turn
from ibwire.rc.path import address_of
from ibwire_layers import cm

PATIENCE = 20.0
"""Seconds of silence after which a peer is given up: longer than our retries take (15)."""

CLIENTS = 64
"""That a persistent server has at once."""


@dataclass(slots=True)
class Result:
    """What came of one connection."""

    role: str
    local: str
    """IP address."""
    remote: str
    pings: int = 0
    size: int = 0
    """Bytes of a ping."""
    validated: bool = True
    """Whether the contents of all of them were looked at, and right."""
    seconds: float = 0
    problem: str | None = None
    """Why it ended before its time."""
    latency_us: dict[str, float] = field(default_factory=dict)
    """Of a client's pings: shortest, mean and longest."""
    qp_counters: dict[str, int] = field(default_factory=dict)
    """Of the queue pair, without those that are 0."""

    @property
    def passed(self) -> bool:
        """Whether nothing was wrong to its end."""
        return self.problem is None


def ping(
    endpoint: Endpoint,
    host: str,
    port: int = PORT,
    *,
    size: int = DEFAULT_SIZE,
    count: int = 0,
    validate: bool = True,
    tell: Callable[[bytes], None] = lambda data: None,
    report: Callable[[Result], None] = lambda result: None,
) -> None:
    """Have a server answer `count` pings, or any number for 0.

    tell: called with the data of each ping that has come back. report: called with the
    result of a connection that was made, however it ends. Raises `PeerError`, `Interrupted`.
    """
    peer = f"{host} port {port}"
    side = Client(endpoint.device, peer, size=size, count=count, validate=validate, tell=tell)
    connection = connect(endpoint, host, port, side.qp, ready=side.listen)
    begun = endpoint.live.now

    def is_over() -> bool:
        side.step(endpoint.live.now)
        for event in events(endpoint):
            if event.connection is connection and event.kind is not EventKind.ESTABLISHED:
                raise PeerError(f"{peer} has disconnected before the last ping")
        return side.is_done

    problem = None
    try:
        side.start(begun)
        endpoint.wait_on(is_over, lambda: side.completed, f"answer from {peer}", PATIENCE)
    except PeerError as error:
        problem = str(error)
        raise
    except Interrupted as interrupted:
        if count:
            problem = f"ended by {interrupted}"
        raise
    finally:
        took = endpoint.live.now - begun
        leave(endpoint, connection)
        if side.is_done:
            settle(endpoint, connection)
        else:
            settle(endpoint, connection, seconds=ABORT_SECONDS)
        report(_result(endpoint, connection, side, size, took, problem))


@dataclass(eq=False, slots=True)
class _Session:
    """A client of a server."""

    connection: Connection
    side: Server
    begun: Time


class Service:
    """A server: of one client, after which it is over, or of any number of them.

    limit: bytes of the largest ping. tell: called with the data of each ping. report:
    called with the result of each connection.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        port: int = PORT,
        *,
        is_persistent: bool = False,
        limit: int = LARGEST,
        validate: bool = True,
        tell: Callable[[bytes], None] = lambda data: None,
        report: Callable[[Result], None] = lambda result: None,
    ) -> None:
        self._endpoint = endpoint
        self._is_persistent = is_persistent
        self._room = CLIENTS if is_persistent else 1
        self._limit = limit
        self._validate = validate
        self._tell = tell
        self._report = report
        self._sessions: dict[int, _Session] = {}
        """By the connection's own ID."""
        self._problem: str | None = None
        self._is_over = False
        endpoint.manager.listen(Endpoints(0, 0, 0, port).service_id)

    def run(self) -> None:
        """Serve. Raises `Interrupted`, and `PeerError` when its only client has failed."""
        while not self._is_over:
            before = {number: each.side.completed for number, each in self._sessions.items()}
            try:
                ended = self._endpoint.run(stop=self._step, seconds=PATIENCE)
            except Interrupted:
                for session in list(self._sessions.values()):
                    self._end(session, None)
                self._settle()
                raise
            for number, session in list(self._sessions.items()):
                if ended is Ended.TIME and before.get(number) == session.side.completed:
                    self._end(session, f"{session.side.peer} has been silent for {PATIENCE:g} s")
        self._settle()
        if self._problem:
            raise PeerError(self._problem)

    def _settle(self) -> None:
        """Have what is said last leave."""
        settle(self._endpoint, *self._endpoint.manager.connections, seconds=ABORT_SECONDS)

    def _step(self) -> bool:
        """Do what has become possible; whether it is all over."""
        endpoint = self._endpoint
        now = endpoint.live.now
        for session in list(self._sessions.values()):
            try:
                session.side.step(now)
            except PeerError as error:
                self._end(session, str(error))
        for event in events(endpoint):
            self._handle(event)
        return self._is_over

    def _handle(self, event: Event) -> None:
        connection = event.connection
        if event.kind is EventKind.CONNECT_REQUEST:
            if is_open(connection):
                self._admit(connection)
            return
        session = self._sessions.get(connection.local_id)
        if session is None:
            return
        if event.kind in (EventKind.REJECTED, EventKind.UNREACHABLE):
            self._end(session, f"{session.side.peer}: {refusal(event)}")
        elif event.kind is EventKind.DISCONNECTED:
            side = session.side
            early = f"{side.peer} has disconnected in the middle of ping {side.pings}"
            self._end(session, None if side.turn is Turn.SOURCE else early)

    def _admit(self, connection: Connection) -> None:
        endpoint = self._endpoint
        manager, now = endpoint.manager, endpoint.live.now
        if len(self._sessions) >= self._room:
            manager.reject(connection, now, cm.RejectReason.NO_RESOURCES)
            return
        refused = objection(endpoint, connection)
        if refused is not None:
            reason, acceptable = refused
            manager.reject(connection, now, reason, ari=acceptable)
            return
        side = Server(
            endpoint.device,
            asker(connection),
            limit=self._limit,
            validate=self._validate,
            tell=self._tell,
        )
        accept(endpoint, connection, side.qp)
        side.listen()
        self._sessions[connection.local_id] = _Session(connection, side, now)

    def _end(self, session: _Session, problem: str | None) -> None:
        """A client is served, or lost."""
        endpoint, side = self._endpoint, session.side
        del self._sessions[session.connection.local_id]
        leave(endpoint, session.connection)
        took = endpoint.live.now - session.begun
        self._report(_result(endpoint, session.connection, side, side.size, took, problem))
        if self._is_persistent:
            side.close()
        else:
            self._problem, self._is_over = problem, True


def _result(
    endpoint: Endpoint,
    connection: Connection,
    side: Side,
    size: int,
    took: Time,
    problem: str | None,
) -> Result:
    way = connection.peer
    result = Result(
        "client" if isinstance(side, Client) else "server",
        address_of(endpoint.device.gids[way.sgid_index]),
        address_of(way.dgid),
        side.pings,
        size,
        side.validate and not problem,
        took / S,
        problem,
        qp_counters={name: count for name, count in side.qp.counters.as_dict().items() if count},
    )
    if isinstance(side, Client) and side.pings:
        result.latency_us = {
            "min": side.shortest / US,
            "mean": side.total / side.pings / US,
            "max": side.longest / US,
        }
    return result
