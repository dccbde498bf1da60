"""A device with a connection manager: the reference of a fuzzer, or its target.

Beside the connection that every emulation has, which must survive whatever QP1 receives,
its application listens to a service, and asks the fuzzer for connections. It does so only
when a case says so, so that a case reaches every state. Several exchanges may be in
progress, each identified by the fuzzer's ID for it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import attrgetter
from random import Random
from typing import Protocol

from ibwire.base.errors import VerbsError
from ibwire.cm.connection import Connection as Managed
from ibwire.cm.connection import Listener
from ibwire.cm.manager import ConnectionManager, identifiers
from ibwire.cm.messages import reply, request
from ibwire.cm.node import ManagedDevice, ca_guid
from ibwire.cm.rdma_cm import resolve_reply
from ibwire.cm.states import EventKind, State
from ibwire.drill.packets import pattern
from ibwire.fuzz.case import Command, Connection, Mad, Packet, Step
from ibwire.fuzz.targets.emulated_device import (
    ADDRESS,
    PEER_ADDRESS,
    Completion,
    Emulation,
)
from ibwire.peer import create_queue_pair
from ibwire.rc.attributes import AddressVector, QPAttr, QPCap, QPState
from ibwire.rc.connect import move
from ibwire.rc.device import gid_of, mac_of
from ibwire.rc.profile import Profile
from ibwire.rc.qp import QueuePair
from ibwire_layers import cm
from ibwire_layers.schema import Header

SERVICE = cm.rdma_cm_service_id(cm.PortSpace.TCP, 18515)
"""What the device listens to; requests for datagrams are answered there as well."""

PEER_SERVICE = SERVICE + 1
"""What it asks the fuzzer for."""

BACKLOG = 6
MAXIMUM_CONNECTIONS = 16
"""Few, so that a case reaches the limits."""

EXCHANGES = 1 << 12
"""Their numbers are the low bits of the fuzzer's IDs."""

OWN_ID = 0x0B0B0000
OWN_QPN, OWN_PSN, OWN_TRANSACTION = 0x200, 0x800, 0x77000000
"""Of the fuzzer in exchange 0; the others count from here."""


class Consumer(Protocol):
    """The program that uses a connection manager."""

    def identifiers(self) -> Iterator[tuple[int, int]]:
        """Communication and transaction IDs of the connections."""
        ...

    def begin(self, management: Management) -> None:
        """Use a new manager."""
        ...

    def end(self) -> None:
        """Release what it has for connections."""
        ...

    def receive(self, kind: EventKind, connection: Managed) -> bool:
        """React to an event; whether the device may have more to send now."""
        ...

    def command(self, command: Command) -> bool:
        """Carry out a command; whether it is possible. Raises `VerbsError` in a wrong state."""
        ...

    def queue_pair_of(self, connection: Managed) -> QueuePair | None:
        """The queue pair of a connection, if it has one."""
        ...

    def own_symbols(self, exchange: int) -> Mapping[str, int]:
        """Symbols of an exchange that stand for something else than usual."""
        ...

    def events(self) -> Sequence[object]:
        """What stands in its tables."""
        ...


BEFORE_TABLES = -2
"""Stands between the events of the device and the tables."""


class Management:
    """The connection manager of an emulated device: what beside its connection a case is about.

    consumer: uses the manager. seed: of what the node chooses before. own_id: the fuzzer's ID
    in exchange 0, a multiple of `EXCHANGES`.
    """

    def __init__(
        self, emulation: Emulation, consumer: Consumer, *, seed: int = 1, own_id: int = OWN_ID
    ) -> None:
        self.emulation = emulation
        self._consumer = consumer
        self._own_id = own_id
        emulation.node = self._managed = ManagedDevice(emulation.device, Random(seed))
        self.begin()

    def begin(self) -> None:
        """Begin with a new manager."""
        device, consumer = self.emulation.device, self._consumer
        self.manager = ConnectionManager(
            device.gids,
            ca_guid(device.mac),
            consumer.identifiers(),
            profile=device.profile,
        )
        self._managed.manager = self.manager
        self._reported: list[Completion] = []
        self.exchanges: dict[int, Managed] = {}
        """The newest connection of each, also when it has ended."""
        self.emulation.symbols |= _ALWAYS
        consumer.begin(self)
        self.choose(0)

    def end(self) -> None:
        """End what a case has left."""
        self._consumer.end()

    def prepare(self, step: Step) -> None:
        """Let symbols and PSNs be about the exchange of a step."""
        if isinstance(step, Command):
            self.exchange = step.exchange
        elif isinstance(step, Packet):
            self.choose(step.exchange if isinstance(step, Mad) else self.exchange)

    def choose(self, exchange: int) -> None:
        """Make symbols and PSNs refer to an exchange in its current state."""
        self.exchange = exchange
        exchanges, symbols = self.exchanges, self.emulation.symbols
        connection = exchanges.get(exchange)
        symbols["own.id"] = self._own_id + exchange
        symbols["own.qpn"] = OWN_QPN + exchange
        symbols["own.psn"] = OWN_PSN + exchange
        symbols["other.id"] = 0
        for other in reversed(exchanges.values()):
            if other is not connection:
                symbols["other.id"] = other.local_id
                break
        own = None if connection is None else self._consumer.queue_pair_of(connection)
        self.qp = self.emulation.qp if own is None else own
        symbols["id"] = connection.local_id if connection is not None else 0
        symbols["qpn"] = self.qp.number
        if connection is not None and connection.is_active:
            symbols["transaction"] = connection.request_transaction
            symbols["service"] = PEER_SERVICE
            symbols["answered"] = 0  # the REQ of the device
        else:
            symbols["transaction"] = OWN_TRANSACTION + exchange
            symbols["service"] = SERVICE
            symbols["answered"] = 1  # its REP
        symbols |= self._consumer.own_symbols(exchange)

    def act(self) -> bool:
        """Handle the events of the manager; whether the device may have more to send now."""
        has_acted = False
        while (event := self.manager.poll_event()) is not None:
            kind, connection, data, reason, ari = event
            if kind in (EventKind.CONNECT_REQUEST, EventKind.RESOLVE_REQUEST):
                self.exchanges[connection.remote_id % EXCHANGES] = connection
            else:
                has_acted |= self._consumer.receive(kind, connection)
            said = number_of_bytes(data), number_of_bytes(ari)
            self._reported.append((EVENT, int(kind), connection.local_id, reason, *said))
        return has_acted

    def command(self, command: Command) -> bool:
        """Carry out a command; whether the state of the connection allowed it."""
        try:
            return self._consumer.command(command)
        except VerbsError:
            return False  # it may be over already: a message was quicker than the application

    def completions(self) -> list[Completion]:
        """Events of the manager since the last call."""
        reported, self._reported = self._reported, []
        return reported

    def events(self) -> Sequence[object]:
        """What stands in the tables of the consumer, and the states of connections.

        Only as far as an application knows of them: not whether an MRA lengthens a wait, nor of
        what is kept to answer a repeated request again.
        """
        states = map(_STATE_OF, self.manager.connections)
        return [
            BEFORE_TABLES,
            len(self.exchanges),
            *self._consumer.events(),
            *[int(_KNOWN.get(each, each)) for each in states if each is not State.ANSWERED],
        ]

    def exchange_state(self, exchange: int) -> State | None:
        """The state of an exchange; `None` if it has not begun."""
        connection = self.exchanges.get(exchange)
        return connection.state if connection else None

    @property
    def state(self) -> str:
        """The state of the chosen exchange."""
        connection = self.exchanges.get(self.exchange)
        return _STATES[connection.state] if connection is not None else "NONE"


class CommandedConsumer:
    """A program that listens, and asks for connections and decides when a case says so.

    seed: of the communication IDs that it chooses.
    """

    def __init__(self, seed: int = 1) -> None:
        self._seed = seed
        self._spare: deque[QueuePair] = deque()
        """Queue pairs of connections that are over, for those that come."""
        self._queue_pairs: dict[Managed, QueuePair] = {}

    def identifiers(self) -> Iterator[tuple[int, int]]:
        """Communication and transaction IDs of its connections."""
        return identifiers(Random(self._seed))

    def begin(self, management: Management) -> None:
        """Listen at a new manager, which has little room."""
        self._management = management
        self._emulation = management.emulation
        self._manager = management.manager
        self._manager.LIMIT_CONNECTIONS = MAXIMUM_CONNECTIONS
        self._listener: Listener | None = self._manager.listen(SERVICE, BACKLOG)
        self._queue_pairs = {}

    def end(self) -> None:
        """Keep the queue pairs of all connections for others."""
        for qp in self._queue_pairs.values():
            self._give_back(qp)

    def queue_pair_of(self, connection: Managed) -> QueuePair | None:
        """The queue pair of a connection, if it has one."""
        return self._queue_pairs.get(connection)

    def own_symbols(self, exchange: int) -> Mapping[str, int]:
        """None."""
        return {}

    def events(self) -> Sequence[object]:
        """How many queue pairs its connections and the device have, and what waits for it; then
        the attributes of each queue pair that is up, behind the ID of its connection.
        """
        return [
            len(self._queue_pairs),
            len(self._emulation.device.qps),
            self._listener.waiting if self._listener else -1,
            *[
                (connection.local_id, *_ATTRIBUTES_OF[qp.state, service](qp.attr))
                for connection, qp in self._queue_pairs.items()
                if (qp.state, service := _service_of(connection)) in _ATTRIBUTES_OF
            ],
        ]

    def command(self, command: Command) -> bool:
        """Carry out a command; whether it is possible."""
        manager, number = self._manager, command.exchange
        exchanges = self._management.exchanges
        if command.what == "listen":
            self._listener = manager.listen(SERVICE, BACKLOG)
        elif command.what == "connect":
            self._connect_to_fuzzer(number)
        elif command.what == "resolve":
            exchanges[number] = manager.resolve(_RESOLVE, _PEER, self._emulation.now)
        elif command.what == "unlisten":
            if self._listener is None:
                return False
            manager.unlisten(self._listener)
            self._listener = None
        elif (connection := exchanges.get(number)) is not None:
            self._command(command.what, connection)
        else:
            return False
        return True

    def _command(self, what: str, connection: Managed) -> None:
        manager, now = self._manager, self._emulation.now
        if what == "accept":
            self._accept(connection)
        elif what == "reject":
            manager.reject(connection, now, private_data=_DATA_OF["reject"])
        elif what == "delay":
            manager.delay(connection, now)
        elif what == "ready":
            if connection.state in (State.REP_RCVD, State.MRA_REP_SENT):
                self._bring_up(connection, QPState.INIT, QPState.RTR, QPState.RTS)
            manager.ready(connection, now, _DATA_OF["ready"])
        else:
            manager.disconnect(connection, now, _DATA_OF["disconnect"])
        self._forget_ended(connection)

    def _connect_to_fuzzer(self, exchange: int) -> None:
        qp = self._queue_pair()
        wanted = _REQUEST.altered(local_qpn=qp.number, starting_psn=_STARTING_PSN + qp.number)
        try:
            asked = self._manager.connect(wanted, self._emulation.now)
        except VerbsError:
            self._give_back(qp)
            raise
        self._queue_pairs[asked] = qp
        self._management.exchanges[exchange] = asked

    def _accept(self, connection: Managed) -> None:
        manager, emulation = self._manager, self._emulation
        now = emulation.now
        if isinstance(connection.request, cm.SIDR_REQ):
            manager.accept(connection, _RESOLVED.altered(qpn=emulation.qp.number), now)
            return
        qp = self._queue_pair()
        answer = _REPLY.altered(local_qpn=qp.number, starting_psn=_STARTING_PSN + qp.number)
        try:
            manager.accept(connection, answer, now)
        except VerbsError:
            self._give_back(qp)
            raise
        self._queue_pairs[connection] = qp
        try:
            self._bring_up(connection, QPState.INIT, QPState.RTR)
        except VerbsError:  # the peer asks for attributes that no queue pair can have
            manager.reject(connection, now, cm.RejectReason.NO_RESOURCES)

    def receive(self, kind: EventKind, connection: Managed) -> bool:
        """React without a command: bring queue pairs up, and end their use."""
        qp = self._queue_pairs.get(connection)
        if qp is not None:
            if kind is EventKind.ESTABLISHED and qp.state is QPState.RTR:
                self._bring_up(connection, QPState.RTS)
            elif kind is EventKind.DISCONNECTED:
                move(qp, QPState.ERR)
            self._forget_ended(connection)
        return False

    def _forget_ended(self, connection: Managed) -> None:
        if connection.state is State.IDLE and connection in self._queue_pairs:
            self._give_back(self._queue_pairs.pop(connection))

    # Queue pairs.

    def _queue_pair(self) -> QueuePair:
        """One in RESET: of the spare ones that which has been spare for longest."""
        if self._spare:
            return self._spare.popleft()
        cap = QPCap(16, 16, max_send_sge=1, max_recv_sge=1)
        end = self._emulation.end
        return create_queue_pair(
            end.device, pd=end.pd, send_cq=end.send_cq, recv_cq=end.recv_cq, cap=cap
        )

    def _give_back(self, qp: QueuePair) -> None:
        if qp.state is not QPState.RESET:
            move(qp, QPState.RESET)
        self._spare.append(qp)

    def _bring_up(self, connection: Managed, *states: QPState) -> None:
        """Take the queue pair of a connection through states."""
        qp = self._queue_pairs[connection]
        address, attributes = connection.queue_pair_attributes()
        wanted = QPAttr(ah_attr=address, min_rnr_timer=12, **attributes)
        for state in states:
            move(qp, state, wanted)


def managed_emulation(
    connection: Connection,
    profile: Profile | str = "spec",
    *,
    seed: int = 1,
    own_id: int = OWN_ID,
) -> Emulation:
    """A device with a connection manager, whose program does what a case says.

    seed: of the communication IDs that it chooses. own_id: the fuzzer's in exchange 0, a
    multiple of `EXCHANGES`.
    """

    def manage(emulation: Emulation) -> Management:
        return Management(emulation, CommandedConsumer(seed), seed=seed, own_id=own_id)

    return Emulation(connection, profile, application=manage)


def management_of(emulation: Emulation) -> Management:
    """The connection manager of an emulation that has one."""
    assert isinstance(emulation.application, Management)
    return emulation.application


def number_of_bytes(data: bytes) -> int:
    """Data of an event as a number, in which a bit above them says how many bytes they are; 0 for
    none, and for zeros alone.
    """
    return int.from_bytes(b"\1" + data) if any(data) else 0


def bytes_of_number(number: int) -> bytes:
    """The opposite of `number_of_bytes`."""
    return number.to_bytes(number.bit_length() // 8 + 1)[1:] if number else b""


EVENT = 2
"""Where other completions have the number of their queue."""

RECEIVING = ("dest_qp_num", "rq_psn", "path_mtu", "max_dest_rd_atomic")
SENDING = ("sq_psn", "retry_cnt", "rnr_retry", "max_rd_atomic")
"""Attributes of a queue pair that REQ and REP decide: from RTR on, and from RTS on."""

_ATTRIBUTES_OF: Mapping[tuple[QPState, int], Callable[[QPAttr], tuple[int, ...]]] = {
    (QPState.RTR, cm.TransportType.RC): attrgetter(*RECEIVING),
    (QPState.RTS, cm.TransportType.RC): attrgetter(*RECEIVING, *SENDING),
    # Its queue pair that receives has no retry counts.
    (QPState.RTR, cm.TransportType.EXTENDED): attrgetter(*RECEIVING),
    (QPState.RTS, cm.TransportType.EXTENDED): attrgetter(*RECEIVING),
}


def _service_of(connection: Managed) -> int:
    request = connection.request
    assert isinstance(request, cm.REQ)
    return request.transport_service_type


_STATE_OF = attrgetter("state")
_STATES = {state: state.name for state in State}
_KNOWN = {
    State.MRA_REQ_RCVD: State.REQ_SENT,
    State.MRA_REQ_SENT: State.REQ_RCVD,
    State.MRA_REP_RCVD: State.REP_SENT,
    State.MRA_REP_SENT: State.REP_RCVD,
}
"""The state that an application knows, where a manager tells MRAs apart."""

_GID, _PEER_GID = gid_of(ADDRESS), gid_of(PEER_ADDRESS)
_STARTING_PSN = 0x1000
_ALWAYS = {
    "gid": _GID,
    "own.gid": _PEER_GID,
    "guid": ca_guid(mac_of(_GID)),
    "own.guid": ca_guid(mac_of(_PEER_GID)),
}
"""Symbols of every exchange."""

_REQUEST = request(
    service_id=PEER_SERVICE,
    source=_GID,
    destination=_PEER_GID,
    qpn=0,
    starting_psn=0,
    mtu=256,
)
_MESSAGE_OF: Mapping[str, type[Header]] = {
    "accept": cm.REP,
    "reject": cm.REJ,
    "ready": cm.RTU,
    "disconnect": cm.DREQ,
}
_DATA_OF = {
    what: pattern(0, kind.FIELDS[-1].size // 8)  # as many bytes as it has room for
    for what, kind in _MESSAGE_OF.items()
}
"""Private data of its messages."""

_REPLY = reply(qpn=0, starting_psn=0, private_data=_DATA_OF["accept"])
_RESOLVE = cm.SIDR_REQ(pkey=0xFFFF, service_id=PEER_SERVICE)
_RESOLVED = resolve_reply(0)
"""What the application sends, without its queue pair."""

_PEER = AddressVector(dgid=_PEER_GID)
