"""rping on a live endpoint: a client, and a server for one client or many."""

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
    active_address,
    connect,
    events,
    is_open,
    leave,
    objection,
    refusal,
    settle,
)
from ibwire.programs.endpoint import Endpoint, Interrupted
from ibwire.programs.rping import DEFAULT_SIZE, LARGEST, PORT, Client, Server, ServerState, Side
from ibwire.rc.path import address_of
from ibwire_layers import cm

STALL_SECONDS = 20.0
"""Seconds without progress after which a connection fails: longer than our retries (15)."""

CLIENTS = 64
"""Simultaneous clients of a persistent server."""


@dataclass(slots=True)
class Result:
    """The result of one connection."""

    role: str
    local: str
    """IP address."""
    remote: str
    pings: int = 0
    size: int = 0
    """Bytes of a ping."""
    validated: bool = True
    """Whether the contents of all pings were verified."""
    seconds: float = 0
    problem: str | None = None
    """Why it ended early."""
    latency_us: dict[str, float] = field(default_factory=dict)
    """Of a client's pings: minimum, mean and maximum."""
    qp_counters: dict[str, int] = field(default_factory=dict)
    """Counters of the queue pair that are not 0."""

    @property
    def passed(self) -> bool:
        """Whether there was no problem."""
        return self.problem is None


def ping(
    endpoint: Endpoint,
    host: str,
    port: int = PORT,
    *,
    size: int = DEFAULT_SIZE,
    count: int = 0,
    validate: bool = True,
    on_data: Callable[[bytes], None] = lambda data: None,
    report: Callable[[Result], None] = lambda result: None,
) -> None:
    """Run a client with `count` pings, 0 for endless.

    on_data: called with the data of each ping that has returned. report: called with the
    result of an established connection, however it ends. Raises `PeerError`, `Interrupted`.
    """
    peer = f"{host} port {port}"
    side = Client(endpoint.device, peer, size=size, count=count, validate=validate, on_data=on_data)
    connection = connect(endpoint, host, port, side.qp, ready=side.listen)
    begun = endpoint.live.now

    def is_over() -> bool:
        side.step(endpoint.live.now)
        for event in events(endpoint):
            if event.connection is connection and event.kind is not EventKind.ESTABLISHED:
                raise PeerError(f"{peer} disconnected before the last ping")
        return side.is_done

    problem = None
    try:
        side.start(begun)
        endpoint.wait_on(is_over, lambda: side.completed, f"response from {peer}", STALL_SECONDS)
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
    """A server, for one client or for any number of them.

    limit: bytes of the largest ping. on_data: called with the data of each ping. report:
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
        on_data: Callable[[bytes], None] = lambda data: None,
        report: Callable[[Result], None] = lambda result: None,
    ) -> None:
        self._endpoint = endpoint
        self._is_persistent = is_persistent
        self._room = CLIENTS if is_persistent else 1
        self._limit = limit
        self._validate = validate
        self._on_data = on_data
        self._report = report
        self._sessions: dict[int, _Session] = {}
        """By the local communication ID of the connection."""
        self._problem: str | None = None
        self._is_over = False
        endpoint.manager.listen(Endpoints(0, 0, 0, port).service_id)

    def run(self) -> None:
        """Serve clients. Raises `Interrupted`, and `PeerError` when the only client failed."""
        while not self._is_over:
            before = {number: each.side.completed for number, each in self._sessions.items()}
            try:
                ended = self._endpoint.run(stop=self._step, seconds=STALL_SECONDS)
            except Interrupted:
                for session in list(self._sessions.values()):
                    self._end(session, None)
                self._settle()
                raise
            for number, session in list(self._sessions.items()):
                if ended is Ended.TIME and before.get(number) == session.side.completed:
                    self._end(
                        session, f"no message from {session.side.peer} for {STALL_SECONDS:g} s"
                    )
        self._settle()
        if self._problem:
            raise PeerError(self._problem)

    def _settle(self) -> None:
        """Send the last messages of the connection manager."""
        settle(self._endpoint, *self._endpoint.manager.connections, seconds=ABORT_SECONDS)

    def _step(self) -> bool:
        """Handle completions and events; returns whether the server is done."""
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
            early = f"{side.peer} disconnected during ping {side.pings}"
            self._end(session, None if side.state is ServerState.SOURCE else early)

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
            active_address(connection),
            limit=self._limit,
            validate=self._validate,
            on_data=self._on_data,
        )
        accept(endpoint, connection, side.qp)
        side.listen()
        self._sessions[connection.local_id] = _Session(connection, side, now)

    def _end(self, session: _Session, problem: str | None) -> None:
        """End the session of a client and report its result."""
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
        role="client" if isinstance(side, Client) else "server",
        local=address_of(endpoint.device.gids[way.sgid_index]),
        remote=address_of(way.dgid),
        pings=side.pings,
        size=size,
        validated=side.validate and not problem,
        seconds=took / S,
        problem=problem,
        qp_counters={name: count for name, count in side.qp.counters.as_dict().items() if count},
    )
    if isinstance(side, Client) and side.pings:
        result.latency_us = {
            "min": side.shortest / US,
            "mean": side.total / side.pings / US,
            "max": side.longest / US,
        }
    return result
