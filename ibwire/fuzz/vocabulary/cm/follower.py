"""The reference for the connection manager of a device on a link.

The reference has the addresses of the device and the peer of the case. Its application
decides about requests as the device's application does, because the specification leaves
that open. It sends the connection requests that the device sends, with the same numbers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from random import Random

from ibwire.base.errors import PeerError, VerbsError
from ibwire.base.units import S
from ibwire.cm.connection import Connection as Managed
from ibwire.cm.manager import identifiers
from ibwire.cm.messages import Message, Received, decode, encode, padded, reply
from ibwire.cm.rdma_cm import resolve_reply
from ibwire.cm.states import EventKind, State
from ibwire.drill.packets import pattern
from ibwire.fuzz.case import Command, Connection, Mad, RunsAway
from ibwire.fuzz.targets.emulated_device import REGIONS, Emulation, Numbers
from ibwire.fuzz.targets.emulated_manager import EXCHANGES, Management
from ibwire.fuzz.targets.link import listener
from ibwire.fuzz.targets.link.frames import behind_ip
from ibwire.fuzz.targets.link.manager_link import (
    MAD_START,
    Identity,
    ManagerAnswer,
    ManagerLink,
    ManagerSession,
    call,
)
from ibwire.rc.attributes import MTU_BYTES
from ibwire.rc.device import gid_of
from ibwire.rc.profile import Profile
from ibwire.rc.qp import QueuePair
from ibwire_layers import cm
from ibwire_layers.headers import IPCM

ANSWERED = (State.REP_RCVD, State.MRA_REP_SENT)
"""States in which an application that has requested a connection must still decide."""

UNDECIDED = (State.REQ_RCVD, State.MRA_REQ_SENT, State.SIDR_REQ_RCVD, *ANSWERED)
"""States in which any application must still decide."""

PATIENT = 10 * S
"""Longer than a case takes: a shorter timer of a peer may expire at any time."""

MANAGERS_REASONS = frozenset(
    {
        cm.RejectReason.TIMEOUT,
        cm.RejectReason.INVALID_COMM_ID,
        cm.RejectReason.INVALID_COMM_INSTANCE,
        cm.RejectReason.INVALID_SERVICE_ID,
        cm.RejectReason.STALE_CONNECTION,
        cm.RejectReason.DUPLICATE_LOCAL_COMM_ID,
        cm.RejectReason.INVALID_CLASS_VERSION,
    }
)
"""Reasons with which only a manager refuses a request, and no application."""


WISHES = (cm.RejectReason.CONSUMER_DEFINED, cm.RejectReason.NO_RESOURCES)
"""The reason with which an application refuses a correct request."""


def is_unserved(usual: Message | None) -> bool:
    """Whether the answer to a correct request means that no program listens."""
    return isinstance(usual, cm.REJ) and usual.reason == cm.RejectReason.INVALID_SERVICE_ID


def greet(link: ManagerLink, wish: int = listener.ACCEPT) -> Message | None:
    """The answer of the manager to a correct request of a new CA; the connection then ends.

    Raises `PeerError` if its messages do not end.
    """
    request = wishing(Mad(), wish)
    manager = link.begin()
    fuzzer = Follower(link, manager.identity, "spec", None)
    fuzzer.management.choose(0)
    symbols = dict(fuzzer.emulation.symbols)

    def say(message: Mad, *kinds: type[Message]) -> Message | None:
        manager.send(link.binding.frame(message, 0, symbols))
        answer = _answer(manager, kinds)
        return None if answer is None else answer.message

    for _ in range(GREETINGS):
        said = say(request, cm.REP, cm.REJ)  # not an MRA: it may come before
        if isinstance(said, cm.REP):
            symbols |= {"id": said.local_comm_id, "qpn": said.local_qpn}
            manager.send(link.binding.frame(Mad(message="RTU"), 0, symbols))
            say(Mad(message="DREQ"), cm.DREP)
        if said is not None:
            return said
    return None


def is_alive(link: ManagerLink) -> bool:
    """Whether the manager answers a DREQ for a connection that does not exist.

    True for a manager that never did (Linux `cm_issue_drep` does). What it sends meanwhile in
    the case is kept. Raises `PeerError` if its messages do not end.
    """
    return not link.answers_strangers or _confirms(link)


def meet(link: ManagerLink) -> None:
    """Find out how the manager behaves; raises `PeerError` if it does not respond."""
    if link.usual is None:
        link.usual = greet(link)
        link.answers_strangers = link.usual is not None and _confirms(link)
        if isinstance(link.usual, cm.REP):
            link.obeys = isinstance(greet(link, listener.REFUSE), cm.REJ)
        link.calls = link.obeys and calls(link)
        if isinstance(link.usual, cm.REJ):
            link.endpoint.tell(
                f"note: service {link.service}: no program there accepts a connection (REJ "
                f"{link.usual.reason}), so there are only refusals to attack"
            )
    if link.usual is None:
        raise PeerError(f"{link.peer} does not answer a request on QP1")


def calls(link: ManagerLink) -> bool:
    """Whether the listener asks for a connection on request; it is then refused.

    Raises `PeerError` if it does not stop sending.
    """
    manager = link.begin()
    fuzzer = Follower(link, manager.identity, "spec", None)
    for _ in range(GREETINGS):
        tell_to_call(link, manager.identity, 0)
        asked = _answer(manager, (cm.REQ,))
        if asked is not None:
            fuzzer.take(0, asked)
            fuzzer.management.choose(0)
            manager.send(link.binding.frame(Mad(message="REJ"), 0, fuzzer.emulation.symbols))
            return True
    return False


def tell_to_call(link: ManagerLink, identity: Identity, exchange: int) -> None:
    """Make the listener ask for a connection, for an exchange of this CA.

    Another CA sends the request for that, which the listener refuses.
    """
    teller = link.aside()
    fuzzer = Follower(link, teller.identity, "spec", None)
    fuzzer.management.choose(0)
    whole = behind_ip(link.binding.frame(Mad(), 0, fuzzer.emulation.symbols))
    plain = decode(whole[MAD_START:])
    assert plain is not None
    assert isinstance(plain.message, cm.REQ)
    data = call(identity.own_id + exchange, wish_of(exchange))
    data = padded(cm.REQ, plain.message.private_data[: IPCM.SIZE] + data)
    mad = encode(plain.message.altered(private_data=data), plain.transaction_id)
    teller.send(link.binding.enclosed(Mad(), whole[:MAD_START] + mad, fuzzer.emulation.symbols))


def wish_of(exchange: int) -> int:
    """The behaviour that an exchange requests of the listener, for its request or the device's."""
    return _WISHES[exchange % len(_WISHES)]


_WISHES = (*(listener.ACCEPT,) * 5, listener.LEAVE, listener.WAIT, listener.REFUSE)
"""Behaviour requested by the exchanges, in turn."""


def wishing(request: Mad, wish: int) -> Mad:
    """A request that tells the listener what to do, unless that is to accept."""
    if wish == listener.ACCEPT:
        return request
    at = next(at for at in range(1 << 16) if pattern(at + IPCM.SIZE, 1)[0] % 4 == wish)
    return replace(request, length=IPCM.SIZE + 1, at=at)


def _confirms(link: ManagerLink) -> bool:
    manager = link.aside()
    fuzzer = Follower(link, manager.identity, "spec", None)
    fuzzer.management.choose(0)
    for _ in range(GREETINGS):
        manager.send(link.binding.frame(Mad(message="DREQ"), 0, fuzzer.emulation.symbols))
        if manager.is_answered(GREETING):
            return True
    return False


def _answer(manager: ManagerSession, kinds: tuple[type[Message], ...]) -> Received | None:
    """The first message of these kinds that the manager sends."""

    def is_one(answer: ManagerAnswer) -> bool:
        return answer.received is not None and isinstance(answer.received.message, kinds)

    try:
        answer = next(filter(is_one, manager.receive(is_one, GREETING)), None)
    except RunsAway as error:
        raise PeerError(str(error)) from None
    return None if answer is None else answer.received


GREETING, GREETINGS = 1 * S, 3
"""Time for the answer to a first request, and how often it is sent: datagrams get lost."""


class Follower:
    """The reference manager, with an application that decides as that of the device does.

    usual: its answer to a right request. Without a listener there, none listens here.
    """

    def __init__(
        self,
        link: ManagerLink,
        identity: Identity,
        profile: Profile | str,
        usual: Message | None,
    ) -> None:
        self._link = link
        self._identity = identity
        self._usual = usual
        self._accepted = 0
        self._taken: deque[tuple[int, int]] = deque()
        """IDs of the device's own requests, for the reference's."""
        self._called: dict[Managed, int] = {}
        """Connections that the device was made to request, and their exchanges."""
        self.awaited: set[int] = set()
        """Exchanges for which the device has not sent its request yet."""
        keys = {name: (at << 16, at) for at, name in enumerate(REGIONS, 1)}
        numbers = Numbers(NO_QPN, NO_QPN + 1, keys, None, link.peer, link.address, link.macs)
        manage = partial(Management, consumer=self, own_id=identity.own_id)
        self.emulation = Emulation(Connection(), profile, numbers, manage)
        """The device with the manager."""

    def begin(self, management: Management) -> None:
        """Listen at a new manager, if a program listens there."""
        self.management = management
        # How many connections a device has room for is its own affair.
        if not is_unserved(self._usual):
            management.manager.listen(self._link.service_id, EXCHANGES)

    def end(self) -> None:
        """Do nothing: there are no queue pairs."""

    def queue_pair_of(self, connection: Managed) -> QueuePair | None:
        """Do nothing: no data is sent."""
        return None

    def events(self) -> Sequence[object]:
        """None are compared."""
        return []

    def command(self, command: Command) -> bool:
        """Do nothing: the application decides as the device does."""
        return False

    def identifiers(self) -> Iterator[tuple[int, int]]:
        """For requests of the device the connections that it has requested, else the others."""
        others = identifiers(Random(1))
        while True:
            yield self._taken.popleft() if self._taken else next(others)

    def take(self, exchange: int, asked: Received) -> None:
        """Request a connection as the device has, with its numbers.

        Addresses, service, transport (of port space TCP) and an existing path MTU are fixed; all
        else is its choice.
        """
        assert isinstance(asked.message, cm.REQ)
        self._taken.append((asked.message.local_comm_id, asked.transaction_id))
        path_mtu = asked.message.path_packet_payload_mtu
        request = asked.message.altered(
            transport_service_type=cm.TransportType.RC,
            path_packet_payload_mtu=path_mtu if path_mtu in MTU_BYTES else min(MTU_BYTES),
            service_id=self._link.own_service_id,
            primary_local_gid=gid_of(self._link.peer),
            primary_remote_gid=gid_of(self._link.address),
        )
        connection = self.management.manager.connect(request, self.emulation.now)
        self._called[connection] = exchange
        self.management.exchanges[exchange] = connection
        self.awaited.discard(exchange)

    def own_symbols(self, exchange: int) -> Mapping[str, int]:
        """Symbols of the link and of the exchange; an ID that was not sent to the fuzzer is 0."""
        exchanges, symbols = self.management.exchanges, self.management.emulation.symbols
        connection = exchanges.get(exchange)
        known = connection is not None and _has_sent_id(connection)
        is_active = connection is not None and connection.is_active
        other = symbols["other.id"]
        sent = {each.local_id for each in exchanges.values() if _has_sent_id(each)}
        found = {
            "id": symbols["id"] if known else 0,
            "other.id": other if other in sent else 0,
            "qpn": (connection.local_qpn if known and connection else None) or NO_QPN,
            "gid": gid_of(self._link.peer),
            "own.gid": gid_of(self._link.address),
            "own.guid": self._identity.guid,
            "service": self._link.own_service_id if is_active else self._link.service_id,
        }
        if not is_active:
            found["transaction"] = self._identity.transaction + exchange
        return found

    def undecided(self, number: int, said: Message) -> Managed | None:
        """The undecided connection with this ID of the fuzzer that a message is about.

        `None` if no connection waits for a decision.
        """
        is_datagram = isinstance(said, cm.SIDR_REP)
        possible = [
            each
            for each in self.all_undecided
            if each.remote_id == number and isinstance(each.request, cm.SIDR_REQ) == is_datagram
        ]
        # A mutated message may have swapped the IDs of two exchanges.
        likely = (each for each in possible if each.is_active == _is_about_reply(said))
        return next(likely, next(iter(possible), None))

    @property
    def all_undecided(self) -> Sequence[Managed]:
        """Connections whose decision is still due."""
        return [each for each in self.management.manager.connections if each.state in UNDECIDED]

    @property
    def asked(self) -> Sequence[Managed]:
        """Those of them for which the listener shall not wait."""
        return [each for each in self.all_undecided if self._wish(each) != listener.WAIT]

    def _wish(self, connection: Managed) -> int:
        if connection in self._called:
            return wish_of(self._called[connection])
        is_wish = self._link.obeys and isinstance(connection.request, cm.REQ)
        return connection.request.private_data[IPCM.SIZE] % 4 if is_wish else listener.ACCEPT

    def follow(self, connection: Managed, said: Message, *, is_right: bool = True) -> None:
        """Decide as the device has, if an application may.

        is_right: whether there is nothing in the request that it could be refused for.
        """
        manager, now = self.management.manager, self.emulation.now
        if isinstance(connection.request, cm.SIDR_REQ):
            if isinstance(said, cm.SIDR_REP) and said.status == cm.SIDRStatus.VALID:
                self.accept(connection)
            elif isinstance(said, cm.SIDR_REP):
                manager.reject(connection, now)
        elif isinstance(said, cm.REP):
            self.accept(connection)
        elif isinstance(said, cm.RTU):
            if connection.state in ANSWERED:
                manager.ready(connection, now)
        elif isinstance(said, cm.REJ):
            reason = said.reason
            if reason in WISHES if is_right else reason not in MANAGERS_REASONS:
                manager.reject(connection, now, reason)
        elif isinstance(said, cm.MRA) and connection.state in (State.REQ_RCVD, State.REP_RCVD):
            manager.delay(connection, now, said.service_timeout)

    def decide(self) -> None:
        """Make the usual decision where the device has sent nothing."""
        manager, now = self.management.manager, self.emulation.now
        for connection in self.asked:
            if connection.state in (State.MRA_REQ_SENT, State.MRA_REP_SENT):
                continue
            if (
                isinstance(connection.request, cm.SIDR_REQ)
                or self._wish(connection) == listener.REFUSE
            ):
                manager.reject(connection, now)
            elif connection.is_active:
                manager.ready(connection, now)
            elif self._usual is not None:
                self.follow(connection, self._usual)

    def accept(self, connection: Managed) -> None:
        """Accept a request, with a queue pair that need not exist."""
        self._accepted += 1
        qpn = FIRST_QPN + self._accepted
        datagram = isinstance(connection.request, cm.SIDR_REQ)
        answer = resolve_reply(qpn) if datagram else reply(qpn=qpn, starting_psn=0)
        try:
            self.management.manager.accept(connection, answer, self.emulation.now)
        except VerbsError:
            return  # it is over already

    def is_up_to_time(self, exchange: int | None) -> bool:
        """Whether a device on a link may have ended a connection that the reference still has.

        exchange: the one that the connection belongs to; `None` for any.
        """
        management = self.management
        known = (*management.manager.connections, *management.exchanges.values())
        return any(
            _is_up_to_time(each)
            for each in known
            if exchange is None or self._called.get(each, each.remote_id % EXCHANGES) == exchange
        )

    def receive(self, kind: EventKind, connection: Managed) -> bool:
        """End a connection that requests that; other decisions wait for those of the device."""
        if kind is not EventKind.ESTABLISHED or self._wish(connection) != listener.LEAVE:
            return False
        self.management.manager.disconnect(connection, self.emulation.now)
        return True


def _is_about_reply(said: Message) -> bool:
    """Whether a message decides about a REP, and not about a REQ."""
    if isinstance(said, cm.REJ):
        return said.message_rejected == cm.MessageRejected.REP
    if isinstance(said, cm.MRA):
        return said.message_mraed == cm.MessageMRAed.REP
    return isinstance(said, cm.RTU)


def _has_sent_id(connection: Managed) -> bool:
    """Whether the device has sent its ID."""
    return connection.is_active or connection.reply is not None


def _is_up_to_time(connection: Managed) -> bool:
    timeouts = connection.timeouts
    return connection.state in _PASSING or timeouts.response * (timeouts.retries + 1) < PATIENT


_PASSING = (State.TIMEWAIT, State.ANSWERED, State.MRA_REP_RCVD)
"""States that a timer ends."""


NO_QPN = 0xFFFFE0
"""The number of a queue pair that is not known."""

FIRST_QPN = 0x300000
"""In the REPs of the reference; the device has its own."""
