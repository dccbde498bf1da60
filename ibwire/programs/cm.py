"""Connections that the RDMA connection manager makes, as programs ask for them and end them.

What `rdma_connect`, `rdma_accept` and `rdma_disconnect` are to a tool: addresses and
ports in, a queue pair that is up out, and a sentence when the peer will not have it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ibwire.base.errors import LinkError, PeerError
from ibwire.cm import Connection, Endpoints, Event, EventKind, State, reply, request
from ibwire.link.live import Ended
from ibwire.programs.endpoint import Endpoint
from ibwire.programs.host_names import addresses_of
from ibwire.rc.attributes import MTU_BYTES, MTU_CODES
from ibwire.rc.device import gid_of
from ibwire.rc.path import address_of
from ibwire.rc.qp import QueuePair
from ibwire_layers import cm

CONNECT_SECONDS = 30.0
"""Until a peer must have answered: a request is repeated after 6.4 s (`Timing`)."""

SILENT_SECONDS = 3.0
"""Until the user is told that it has not."""

END_SECONDS = 10.0
"""Until it must have confirmed the end, which is repeated once in that time."""

ABORT_SECONDS = 1.0
"""The same when there is nothing to wait for."""

RETRIES = 6
"""Of our own queue pairs. A peer that is gone shall be noticed, and 7 means for ever to the
profile rxe (reference/habits#rxe-retry-7); the peer is asked for 7, as the tools do."""

DEPTH = 1
"""READs and atomics at a time in either direction, unless a program says otherwise."""


def connect(
    endpoint: Endpoint,
    host: str,
    port: int,
    qp: QueuePair,
    *,
    depth: int = DEPTH,
    private_data: bytes = b"",
    ready: Callable[[], None] = lambda: None,
) -> Connection:
    """Connect a queue pair to a program that listens on a host.

    ready: called when receives can be posted, before the peer may send. Raises `LinkError`
    when there is no way to the host, `PeerError` when nobody answers or is willing.
    """
    gid, own = _way_to(endpoint, host)
    manager = endpoint.manager
    source_port = endpoint.random.randrange(*_EPHEMERAL)
    ends = Endpoints(endpoint.device.gids[own], source_port, gid, port)
    asked = request(
        service_id=ends.service_id,
        source=ends.source,
        destination=ends.destination,
        qpn=qp.number,
        starting_psn=endpoint.psn(),
        mtu=endpoint.path_mtu(usual=4096),
        responder_resources=depth,
        initiator_depth=depth,
        flow_label=ends.flow_label,
        private_data=ends.private_data(private_data),
    )
    connection = manager.connect(asked, endpoint.live.now)
    peer = f"{host} port {port}"
    try:
        event = _wait_for_answer(endpoint, connection, peer)
        if event.kind is not EventKind.CONNECT_RESPONSE:
            raise PeerError(f"{peer}: {refusal(event)}")
        connection.bring_up(qp, retry_cnt=RETRIES)
        ready()
        manager.ready(connection, endpoint.live.now)
        endpoint.run(stop=lambda: True)  # the RTU leaves before the first data
    except BaseException:
        leave(endpoint, connection)
        settle(endpoint, connection, seconds=ABORT_SECONDS)
        raise
    return connection


def is_open(connection: Connection) -> bool:
    """Whether a request still waits for an answer: the peer may have taken it back."""
    return connection.state in (State.REQ_RCVD, State.MRA_REQ_SENT)


def objection(endpoint: Endpoint, connection: Connection) -> tuple[cm.RejectReason, bytes] | None:
    """Why a request cannot be accepted here, and what would do; `None` if it can.

    For programs that READ from the peer over an RC queue pair.
    """
    asked = connection.request
    assert isinstance(asked, cm.REQ)
    if asked.transport_service_type != cm.TransportType.RC:
        return cm.RejectReason.INVALID_TRANSPORT_TYPE, b""
    if not asked.responder_resources:
        return cm.RejectReason.INSUFFICIENT_RESPONDER_RESOURCES, b""
    largest = endpoint.path_mtu(usual=4096)
    if MTU_BYTES[asked.path_packet_payload_mtu] > largest:
        return cm.RejectReason.INVALID_MTU, bytes([MTU_CODES[largest]])
    return None


def accept(
    endpoint: Endpoint,
    connection: Connection,
    qp: QueuePair,
    *,
    depth: int = DEPTH,
    private_data: bytes = b"",
) -> None:
    """Accept a request, and bring the queue pair up: then receives can be posted."""
    asked = connection.request
    assert isinstance(asked, cm.REQ)
    answer = reply(
        qpn=qp.number,
        starting_psn=endpoint.psn(),
        responder_resources=min(depth, asked.initiator_depth),
        initiator_depth=min(depth, asked.responder_resources),
        private_data=private_data,
    )
    endpoint.manager.accept(connection, answer, endpoint.live.now)
    connection.bring_up(qp, retry_cnt=RETRIES)


def leave(endpoint: Endpoint, connection: Connection) -> None:
    """Tell the peer that a connection, or the attempt to make it, is over."""
    manager, now = endpoint.manager, endpoint.live.now
    if connection.state is State.ESTABLISHED:
        manager.disconnect(connection, now)
    elif connection.state in _UNDECIDED:
        manager.reject(connection, now)


def settle(endpoint: Endpoint, *left: Connection, seconds: float = END_SECONDS) -> None:
    """Give the peers of connections that were left time to confirm it.

    Who does not is no error: their own clocks will tell them. Signals end the waiting.
    """
    endpoint.live.run(
        stop=lambda: all(each.state is not State.DREQ_SENT for each in left), seconds=seconds
    )


def events(endpoint: Endpoint) -> Iterator[Event]:
    """What the connection manager has to say; asynchronous events of the device go.

    Who asks for datagrams is told that there are none: without an answer such requests would
    fill the listener's backlog for good.
    """
    endpoint.device.events.clear()
    while (event := endpoint.manager.poll_event()) is not None:
        if event.kind is EventKind.RESOLVE_REQUEST:
            endpoint.manager.reject(event.connection, endpoint.live.now)
        else:
            yield event


def refusal(event: Event) -> str:
    """Why a connection has not come about, in words."""
    if event.kind is EventKind.UNREACHABLE:
        return "no answer"
    if event.kind is not EventKind.REJECTED:
        return "the connection has ended before it was made"
    if event.reason == cm.RejectReason.INVALID_MTU and event.ari and event.ari[0] in MTU_BYTES:
        return f"takes a path MTU of at most {MTU_BYTES[event.ari[0]]}"
    if event.reason in _REASONS:
        return f"{_REASONS[event.reason]} (REJ {event.reason})"
    try:
        name = cm.RejectReason(event.reason).name.lower().replace("_", " ")
    except ValueError:
        name = "for a reason that is not known"
    return f"refuses the connection: {name} (REJ {event.reason})"


def asker(connection: Connection) -> str:
    """The IP address of who has asked for a connection."""
    asked = connection.request
    assert isinstance(asked, cm.REQ)
    return address_of(asked.primary_local_gid)


def _way_to(endpoint: Endpoint, host: str) -> tuple[int, int]:
    """GID of a host, and number of our own towards it."""
    problem: LinkError | None = None
    for address in addresses_of(host):
        gid = gid_of(address)
        try:
            return gid, endpoint.gid_towards(gid)
        except LinkError as error:
            problem = problem or error
    assert problem is not None
    raise problem


def _wait_for_answer(endpoint: Endpoint, connection: Connection, peer: str) -> Event:
    found: list[Event] = []

    def has_come() -> bool:
        found.extend(event for event in events(endpoint) if event.connection is connection)
        return bool(found)

    if endpoint.run(stop=has_come, seconds=SILENT_SECONDS) is not Ended.STOPPED:
        endpoint.tell(f"{peer} has not answered yet; asking again for {CONNECT_SECONDS:g} s")
        endpoint.wait(has_come, f"answer from {peer}", seconds=CONNECT_SECONDS)
    return found[-1]  # a REJ may have followed the REP at once


_UNDECIDED = frozenset(
    {
        *(State.REQ_SENT, State.MRA_REQ_RCVD, State.REP_RCVD, State.MRA_REP_SENT),
        *(State.REQ_RCVD, State.MRA_REQ_SENT, State.REP_SENT, State.MRA_REP_RCVD),
    }
)
"""States in which a connection is neither made nor given up."""

_REASONS: dict[int, str] = {
    cm.RejectReason.INVALID_SERVICE_ID: "nobody listens there",
    cm.RejectReason.NO_RESOURCES: "has no room for another connection",
    cm.RejectReason.CONSUMER_DEFINED: "the program there refuses the connection",
}

_EPHEMERAL = (32768, 61000)
"""Ports that Linux gives to who asks for none (`ip_local_port_range`)."""
