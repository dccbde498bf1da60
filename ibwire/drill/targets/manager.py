"""Exchanges of connection management, and the emulated device's manager with its application.

The queue pair of the script is the one that is connected: it is in RESET before, goes to
RTR when a REQ is accepted and to RTS when the connection is established, as
reference/cm#handshake has it. Commands are about the newest connection. Each other queue pair
has an exchange of its own, with a newest connection of its own.
"""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from random import Random
from typing import Protocol

from ibwire.base.errors import DecodeError, VerbsError
from ibwire.base.node import Frame
from ibwire.base.units import Time
from ibwire.cm.connection import Connection, Listener
from ibwire.cm.messages import LINUX, Message, Received, padded, reply, request
from ibwire.cm.node import ManagedDevice
from ibwire.cm.rdma_cm import resolve_reply
from ibwire.cm.states import EventKind
from ibwire.drill.language.manager_messages import PORT, endpoints, received
from ibwire.drill.packets import Wire
from ibwire.drill.targets.target import ManagerEvent
from ibwire.rc.attributes import MTU_BYTES, AddressVector, QPState
from ibwire.rc.device import Device
from ibwire_layers import cm
from ibwire_layers.packet import Packet

SERVICE = cm.rdma_cm_service_id(cm.PortSpace.TCP, PORT)

_DEPTHS = {"initiator_depth": 1, "responder_resources": 1}

MANAGER_DEFAULTS: Mapping[str, Mapping[str, int]] = {
    "listen": {"service": SERVICE, "backlog": 128},
    "connect": {"service": SERVICE, **_DEPTHS},
    "resolve": {"service": SERVICE},
    "accept": _DEPTHS,
    "reject": {"reason": cm.RejectReason.CONSUMER_DEFINED},
}
"""Defaults of the arguments of each verb."""

FIRST_ID, FIRST_TRANSACTION = 0x0B0B0001, 0x7700000000000001
"""First communication ID and transaction of the peer, unless a script sets them."""

APART = 1 << 16
"""How far those of two queue pairs are apart, so that a number near one is not that of another."""


class Connected(Protocol):
    """A device whose queue pairs a connection manager connects."""

    device: Device

    @property
    def now(self) -> Time:
        """The time of the device."""
        ...

    def symbols_of(self, owner: str) -> Mapping[str, int]:
        """Values of the symbols of a script in a line of a queue pair."""
        ...

    def state_of(self, owner: str) -> QPState:
        """The state of a queue pair."""
        ...

    def join(self, connection: Connection, state: QPState, owner: str) -> None:
        """Bring a queue pair to a state with the attributes of a connection."""
        ...

    def choose(self, connection: Connection, owner: str | None) -> str:
        """Take the connection that a queue pair is for, and return the name of the queue pair.

        owner: `None` for a connection that the peer has asked for.
        """
        ...


@dataclass(slots=True)
class Exchange:
    """The identifiers of the current exchange of messages, as last sent by either side."""

    gid: int
    peer_gid: int
    guid: int
    """GUID of the device's adapter; 0 until a message contains it."""
    peer_guid: int
    cm_id: int = 0
    """Communication ID of the device; 0 until a message contains it."""
    chosen_cm_id: int = 0
    """The one that the device has chosen, also before a message contains it; 0 if unknown."""
    peer_cm_id: int = FIRST_ID
    transaction: int = FIRST_TRANSACTION
    """Transaction of the REQ, of either side."""
    dreq_transaction: int = 0
    is_asked_by_device: bool = False
    ids: set[int] = field(default_factory=set)
    """Every communication ID in the messages so far."""
    _own_transaction: int = 0

    def __post_init__(self) -> None:
        self._own_transaction = self.transaction + 1

    @property
    def symbols(self) -> dict[str, int]:
        """Values of the symbols of a script."""
        asked = self.is_asked_by_device
        return {
            "cm_id": self.cm_id,
            "chosen_cm_id": self.chosen_cm_id or self.cm_id,
            "peer_cm_id": self.peer_cm_id,
            "transaction": self.transaction,
            "dreq_transaction": self.dreq_transaction,
            # A DREQ of the active side has the transaction of its REQ.
            "peer_transaction": self._own_transaction if asked else self.transaction,
            "service": SERVICE,
            "gid": self.gid,
            "peer_gid": self.peer_gid,
            "guid": self.guid,
            "peer_guid": self.peer_guid,
            # What the peer answers, and the device: a REQ or a REP.
            "to_device": 0 if asked else 1,
            "from_device": 1 if asked else 0,
        }

    def note(self, frame: Frame, *, from_device: bool) -> Message | None:
        """Take over the identifiers of a message and return it; `None` for other packets."""
        found = message_in(frame)
        if found is None:
            return None
        message = found.message
        self.ids |= ids_of(message)
        if from_device and isinstance(message, cm.MRA) and not self.cm_id:
            self.cm_id = message.local_comm_id
        if isinstance(message, cm.DREQ):
            self.dreq_transaction = found.transaction_id
        elif isinstance(message, cm.REQ | cm.REP | cm.SIDR_REQ):
            self._note_offer(message, found.transaction_id, from_device=from_device)
        return message

    def _note_offer(
        self, message: cm.REQ | cm.REP | cm.SIDR_REQ, transaction: int, *, from_device: bool
    ) -> None:
        number = id_of(message)
        if not isinstance(message, cm.REP):
            self.transaction = transaction
            self.is_asked_by_device = from_device
        if from_device:
            if not isinstance(message, cm.SIDR_REQ):
                self.guid = self.guid or message.local_ca_guid
            self.cm_id = number
        else:
            if not isinstance(message, cm.REP) and number != self.peer_cm_id:
                self.cm_id = 0
            self.peer_cm_id = number


class Exchanges:
    """The exchanges of a device's queue pairs, by their names; the first one has none.

    first_id, first_transaction: of the peer in the exchange of the first queue pair; those of the
    others count from there, each `apart` from the one before.
    """

    def __init__(
        self,
        first: Exchange,
        first_id: int = FIRST_ID,
        first_transaction: int = FIRST_TRANSACTION,
        apart: int = APART,
    ) -> None:
        self._apart = apart
        self._all = {"": first}
        self._first = first_id, first_transaction
        self._current = ""

    def __getitem__(self, owner: str) -> Exchange:
        return self._all[owner]

    def __contains__(self, owner: str) -> bool:
        return owner in self._all

    def __iter__(self) -> Iterator[str]:
        return iter(self._all)

    def add(self, owner: str, number: int) -> None:
        """Begin that of another queue pair. number: its place among the queue pairs, from 1."""
        first, (first_id, transaction) = self._all[""], self._first
        self._all[owner] = Exchange(
            first.gid,
            first.peer_gid,
            first.guid,
            first.peer_guid,
            peer_cm_id=first_id + number * self._apart,
            transaction=transaction + number * self._apart,
        )

    def choose(self, owner: str) -> Exchange:
        """The exchange that a line of a script is about."""
        self._current = owner
        return self._all[owner]

    def note(self, frame: Frame) -> None:
        """Take over the identifiers of a message of the device."""
        found = message_in(frame)
        if found is not None:
            self._all[self.owner_of(found.message)].note(frame, from_device=True)

    def owner_of(self, message: Message) -> str:
        """The queue pair of whose exchange a message of the device is.

        Where its IDs do not tell, it is that which the last line of the script is about.
        """
        to = getattr(message, "remote_comm_id", 0)
        own = getattr(message, "local_comm_id", 0)
        if isinstance(message, cm.SIDR_REP):
            to = message.request_id
        elif isinstance(message, cm.SIDR_REQ):
            own = message.request_id
        owners = self._current, *self._all
        for owner in owners:
            if to and self._all[owner].peer_cm_id == to:
                return owner
        for owner in owners:
            each = self._all[owner]
            if own and own in (each.cm_id, each.chosen_cm_id):
                return owner
        return self._current


def message_in(frame: Frame) -> Received | None:
    """The message of connection management in a frame; `None` for other frames."""
    try:
        return received(Packet.parse(frame, strict=False))
    except DecodeError:
        return None


def id_of(message: cm.REQ | cm.REP | cm.SIDR_REQ) -> int:
    """The communication ID of its sender."""
    return message.request_id if isinstance(message, cm.SIDR_REQ) else message.local_comm_id


def ids_of(message: Message) -> set[int]:
    """The communication IDs in a message, without 0, which stands for none."""
    names = ("local_comm_id", "remote_comm_id", "request_id")
    return {getattr(message, name, 0) for name in names} - {0}


def offered(wire: Wire, message: Message | None, *, from_device: bool) -> Wire:
    """The wire of the connection that a REQ or REP offers: queue pair and first PSN of its sender.

    A path MTU that there is not changes nothing.
    """
    if isinstance(message, cm.REQ):
        wire = replace(wire, mtu=MTU_BYTES.get(message.path_packet_payload_mtu, wire.mtu))
    if not isinstance(message, cm.REQ | cm.REP):
        return wire
    if from_device:
        return replace(wire, rq_psn=message.starting_psn)
    return replace(wire, peer_qpn=message.local_qpn, sq_psn=message.starting_psn)


class Manager:
    """The manager of a device and its application.

    node: the device with its QP1, if it is served already; else one is made, and `node` is to
    be driven for the device. datagrams: whether commands may be about requests for datagrams.
    """

    def __init__(
        self, connected: Connected, node: ManagedDevice | None = None, *, datagrams: bool = True
    ) -> None:
        self._connected = connected
        self._requests = {EventKind.CONNECT_REQUEST}
        if datagrams:
            self._requests.add(EventKind.RESOLVE_REQUEST)
        self.node = node or ManagedDevice(connected.device, Random(1))
        self.events: dict[str, deque[ManagerEvent]] = {"": deque()}
        """Events that no line of the script has expected yet, by queue pair."""
        self._manager = self.node.manager
        self._listener: Listener | None = None
        self._newest: dict[str, Connection] = {}
        """Of each queue pair."""
        self._owners: dict[Connection, str] = {}
        """Queue pairs with a name, by every connection that they had."""

    def settle(self) -> None:
        """Handle the events that an application handles without a command."""
        while (event := self._manager.poll_event()) is not None:
            connection = event.connection
            if event.kind in self._requests:
                owner = self._connected.choose(connection, None)
                self._take(connection, owner)
            else:
                owner = self._owners.get(connection, "")
            is_ready = event.kind is EventKind.ESTABLISHED
            if is_ready and self._connected.state_of(owner) is QPState.RTR:
                self._connected.join(connection, QPState.RTS, owner)
            self.events.setdefault(owner, deque()).append(event)

    def _take(self, connection: Connection, owner: str) -> None:
        """Begin with another connection of a queue pair."""
        self._newest[owner] = connection
        if owner:
            self._owners[connection] = owner

    def do(self, verb: str, given: Mapping[str, int], owner: str = "") -> None:
        """Carry a command out; raises `VerbsError` for one without an object."""
        _COMMANDS[verb](self, {**MANAGER_DEFAULTS.get(verb, {}), **given}, owner)
        self.settle()

    def _listen(self, given: Mapping[str, int], owner: str) -> None:
        self._listener = self._manager.listen(given["service"], given["backlog"])

    def _unlisten(self, given: Mapping[str, int], owner: str) -> None:
        if self._listener is None:
            raise VerbsError(errno.EINVAL, "no listener to end")
        self._manager.unlisten(self._listener)
        self._listener = None

    def _connect(self, given: Mapping[str, int], owner: str) -> None:
        symbols = self._connected.symbols_of(owner)
        ends = endpoints(symbols["gid"], symbols["peer_gid"])
        timing = replace(
            LINUX,
            response_timeout=given.get("response_timeout", LINUX.response_timeout),
            max_cm_retries=given.get("max_cm_retries", LINUX.max_cm_retries),
        )
        wanted = request(
            service_id=given["service"],
            source=ends.source,
            destination=ends.destination,
            qpn=symbols["qpn"],
            starting_psn=symbols["rq_psn"],
            mtu=symbols["mtu"],
            flow_label=ends.flow_label,
            pkey=symbols["pkey"],
            initiator_depth=given["initiator_depth"],
            responder_resources=given["responder_resources"],
            timing=timing,
            private_data=ends.private_data(),
        )
        self._begin(self._manager.connect(wanted, self._connected.now), owner)

    def _resolve(self, given: Mapping[str, int], owner: str) -> None:
        symbols = self._connected.symbols_of(owner)
        ends = endpoints(symbols["gid"], symbols["peer_gid"])
        private = padded(cm.SIDR_REQ, ends.private_data())
        wanted = cm.SIDR_REQ(symbols["pkey"], service_id=given["service"], private_data=private)
        peer = AddressVector(dgid=symbols["peer_gid"])
        self._begin(self._manager.resolve(wanted, peer, self._connected.now), owner)

    def _begin(self, connection: Connection, owner: str) -> None:
        self._take(connection, owner)
        self._connected.choose(connection, owner)

    def _accept(self, given: Mapping[str, int], owner: str) -> None:
        symbols, connection = self._connected.symbols_of(owner), self._connection(owner)
        now = self._connected.now
        if isinstance(connection.request, cm.SIDR_REQ):
            self._manager.accept(connection, resolve_reply(symbols["qpn"]), now)
            return
        answer = reply(
            qpn=symbols["qpn"],
            starting_psn=symbols["rq_psn"],
            initiator_depth=given["initiator_depth"],
            responder_resources=given["responder_resources"],
        )
        self._manager.accept(connection, answer, now)
        self._connected.join(connection, QPState.RTR, owner)

    def _reject(self, given: Mapping[str, int], owner: str) -> None:
        self._manager.reject(self._connection(owner), self._connected.now, given["reason"])

    def _delay(self, given: Mapping[str, int], owner: str) -> None:
        time = given.get("service_timeout")
        self._manager.delay(self._connection(owner), self._connected.now, time)

    def _ready(self, given: Mapping[str, int], owner: str) -> None:
        connection = self._connection(owner)
        self._connected.join(connection, QPState.RTS, owner)
        self._manager.ready(connection, self._connected.now)

    def _disconnect(self, given: Mapping[str, int], owner: str) -> None:
        self._manager.disconnect(self._connection(owner), self._connected.now)

    def _connection(self, owner: str) -> Connection:
        if owner not in self._newest:
            raise VerbsError(errno.EINVAL, "no connection was asked for")
        return self._newest[owner]


def described(event: ManagerEvent) -> str:
    """An event in a line."""
    text = event.kind.name
    if event.kind is EventKind.REJECTED:
        reasons = [each.value for each in cm.RejectReason]
        known = event.reason in reasons
        text += f" reason={cm.RejectReason(event.reason).name if known else event.reason}"
    return text


_COMMANDS: Mapping[str, Callable[[Manager, Mapping[str, int], str], None]] = {
    "listen": Manager._listen,
    "unlisten": Manager._unlisten,
    "connect": Manager._connect,
    "resolve": Manager._resolve,
    "accept": Manager._accept,
    "reject": Manager._reject,
    "delay": Manager._delay,
    "ready": Manager._ready,
    "disconnect": Manager._disconnect,
}
