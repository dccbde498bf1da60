"""Connections through the RDMA connection manager for programs.

The counterparts of `rdma_connect`, `rdma_accept` and `rdma_disconnect`: from addresses and
ports to a queue pair in RTS, or an error message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ibwire.base.errors import LinkError, PeerError
from ibwire.cm import Connection, Endpoints, Event, EventKind, State, reply, request
from ibwire.link.live import Ended
from ibwire.programs.endpoint import Endpoint
from ibwire.programs.host_names import addresses_of
from ibwire.rc.attributes import MTU_BYTES, MTU_CODES
from ibwire.rc.connect import bring_up
from ibwire.rc.device import gid_of
from ibwire.rc.path import address_of
from ibwire.rc.qp import QueuePair
from ibwire_layers import cm

CONNECT_SECONDS = 30.0
"""Time for a peer to respond: a REQ is repeated after 6.4 s (`Timing`)."""

SILENT_SECONDS = 3.0
"""Time without a response after which the user is informed."""

END_SECONDS = 10.0
"""Time for a peer to confirm a disconnect, which is repeated once in that time."""

ABORT_SECONDS = 1.0
"""The same after an error."""

RETRIES = 6
"""retry_cnt of our own queue pairs, so that a vanished peer is noticed: 7 means endless for the
profile rxe (reference/habits#rxe-retry-7). The peer is asked for 7, as the tools do."""

DEPTH = 1
"""Default number of outstanding READs and atomics in either direction."""


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
    """Connect a queue pair to a listening program on a host.

    ready: called when receives can be posted, before the peer may send. Raises `LinkError`
    when the host cannot be reached, `PeerError` when it does not respond or refuses.
    """
    gid, own = _way_to(endpoint, host)
    manager = endpoint.manager
    source_port = endpoint.random.randrange(*_EPHEMERAL)
    ends = Endpoints(endpoint.device.gids[own], source_port, gid, port)
    fields = endpoint.packet_fields
    asked = request(
        service_id=ends.service_id,
        source=ends.source,
        destination=ends.destination,
        qpn=qp.number,
        starting_psn=endpoint.psn(),
        mtu=endpoint.path_mtu(default=4096),
        responder_resources=depth,
        initiator_depth=depth,
        flow_label=ends.flow_label,
        traffic_class=fields.traffic_class,
        hop_limit=fields.hop_limit,
        pkey=fields.pkey,
        private_data=ends.private_data(private_data),
    )
    connection = manager.connect(asked, endpoint.live.now)
    peer = f"{host} port {port}"
    try:
        event = _wait_for_response(endpoint, connection, peer)
        if event.kind is not EventKind.CONNECT_RESPONSE:
            raise PeerError(f"{peer}: {refusal(event)}")
        _bring_up(endpoint, connection, qp)
        ready()
        manager.ready(connection, endpoint.live.now)
        endpoint.run(stop=lambda: True)  # sends the RTU before the first data
    except BaseException:
        leave(endpoint, connection)
        settle(endpoint, connection, seconds=ABORT_SECONDS)
        raise
    return connection


def is_open(connection: Connection) -> bool:
    """Whether a REQ is still open: the peer may have withdrawn it."""
    return connection.state in (State.REQ_RCVD, State.MRA_REQ_SENT)


def objection(endpoint: Endpoint, connection: Connection) -> tuple[cm.RejectReason, bytes] | None:
    """Why a request must be rejected, and an acceptable value; `None` if it can be accepted.

    For programs that READ from the peer over an RC queue pair.
    """
    asked = connection.request
    assert isinstance(asked, cm.REQ)
    if asked.transport_service_type != cm.TransportType.RC:
        return cm.RejectReason.INVALID_TRANSPORT_TYPE, b""
    if not asked.responder_resources:
        return cm.RejectReason.INSUFFICIENT_RESPONDER_RESOURCES, b""
    acceptable = acceptable_mtu(endpoint, asked)
    if acceptable is not None:
        return cm.RejectReason.INVALID_MTU, bytes([MTU_CODES[acceptable]])
    return None


def acceptable_mtu(endpoint: Endpoint, asked: cm.REQ) -> int | None:
    """The largest path MTU that the interface can receive, if a request asks for a larger one."""
    largest = endpoint.path_mtu(default=4096)
    return largest if MTU_BYTES[asked.path_packet_payload_mtu] > largest else None


def accept(
    endpoint: Endpoint,
    connection: Connection,
    qp: QueuePair,
    *,
    depth: int = DEPTH,
    private_data: bytes = b"",
) -> None:
    """Accept a request and bring the queue pair up; receives can be posted afterwards."""
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
    _bring_up(endpoint, connection, qp)


def leave(endpoint: Endpoint, connection: Connection) -> None:
    """Disconnect, or reject while the connection is being made."""
    manager, now = endpoint.manager, endpoint.live.now
    if connection.state is State.ESTABLISHED:
        manager.disconnect(connection, now)
    elif connection.state in _UNDECIDED:
        manager.reject(connection, now)


def settle(endpoint: Endpoint, *left: Connection, seconds: float = END_SECONDS) -> None:
    """Give peers time to confirm a disconnect.

    A missing confirmation is not an error: the peer has its own timeouts. A signal ends the wait.
    """
    endpoint.live.run(
        stop=lambda: all(each.state is not State.DREQ_SENT for each in left), seconds=seconds
    )


def events(endpoint: Endpoint) -> Iterator[Event]:
    """The events of the connection manager; asynchronous events of the device are dropped.

    Requests to resolve a datagram service (SIDR) are rejected: without a response they would
    stay in the listener's backlog.
    """
    endpoint.device.events.clear()
    while (event := endpoint.manager.poll_event()) is not None:
        if event.kind is EventKind.RESOLVE_REQUEST:
            endpoint.manager.reject(event.connection, endpoint.live.now)
        else:
            yield event


def refusal(event: Event) -> str:
    """Why a connection was not made, as text."""
    if event.kind is EventKind.UNREACHABLE:
        return "no response"
    if event.kind is not EventKind.REJECTED:
        return "the connection ended before it was made"
    if event.reason == cm.RejectReason.INVALID_MTU and event.ari and event.ari[0] in MTU_BYTES:
        return f"accepts a path MTU of at most {MTU_BYTES[event.ari[0]]}"
    if event.reason in _REASONS:
        return f"{_REASONS[event.reason]} (REJ {event.reason})"
    try:
        name = cm.RejectReason(event.reason).name.lower().replace("_", " ")
    except ValueError:
        name = "unknown reason"
    return f"refuses the connection: {name} (REJ {event.reason})"


def active_address(connection: Connection) -> str:
    """The IP address of the active side, which requested the connection."""
    asked = connection.request
    assert isinstance(asked, cm.REQ)
    return address_of(asked.primary_local_gid)


def _bring_up(endpoint: Endpoint, connection: Connection, qp: QueuePair) -> None:
    """Move a queue pair to RTS; traffic class and hop limit of both ends are those of the REQ."""
    address, attributes = connection.queue_pair_attributes()
    address = endpoint.packet_fields.with_source_port(address)
    bring_up(qp, address, **attributes | {"retry_cnt": RETRIES})


def _way_to(endpoint: Endpoint, host: str) -> tuple[int, int]:
    """GID of a host, and index of our own GID towards it."""
    problem: LinkError | None = None
    for address in addresses_of(host):
        gid = gid_of(address)
        try:
            return gid, endpoint.gid_towards(gid)
        except LinkError as error:
            problem = problem or error
    assert problem is not None
    raise problem


def _wait_for_response(endpoint: Endpoint, connection: Connection, peer: str) -> Event:
    found: list[Event] = []

    def has_come() -> bool:
        found.extend(event for event in events(endpoint) if event.connection is connection)
        return bool(found)

    if endpoint.run(stop=has_come, seconds=SILENT_SECONDS) is not Ended.STOPPED:
        endpoint.tell(f"no response from {peer} yet; retrying for {CONNECT_SECONDS:g} s")
        endpoint.wait(has_come, f"response from {peer}", seconds=CONNECT_SECONDS)
    return found[-1]  # a REJ may have followed the REP at once


_UNDECIDED = frozenset(
    {
        State.REQ_SENT,
        State.MRA_REQ_RCVD,
        State.REP_RCVD,
        State.MRA_REP_SENT,
        State.REQ_RCVD,
        State.MRA_REQ_SENT,
        State.REP_SENT,
        State.MRA_REP_RCVD,
    }
)
"""States in which a connection is being made."""

_REASONS: dict[int, str] = {
    cm.RejectReason.INVALID_SERVICE_ID: "no program listens there",
    cm.RejectReason.NO_RESOURCES: "has no resources for another connection",
    cm.RejectReason.CONSUMER_DEFINED: "the program there refuses the connection",
}

_EPHEMERAL = (32768, 61000)
"""Range of ephemeral ports of Linux (`ip_local_port_range`)."""
