"""What the connection manager of a device on a link is held against.

The reference has the addresses of the device and speaks with whom the case is; about
requests its application decides as that of the device does, because the specification
leaves that to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ibwire.cm.connection import Connection as Managed
from ibwire.cm.messages import Message, reply
from ibwire.cm.rdma_cm import resolve_reply
from ibwire.cm.states import EventKind, State
from ibwire.drill.packets import pattern
from ibwire.errors import PeerError, VerbsError
from ibwire.fuzz.case import Connection, Mad, RunsAway
from ibwire.fuzz.cm.emulation import EXCHANGES, ManagedEmulation
from ibwire.fuzz.emulation import REGIONS, Numbers
from ibwire.fuzz.live_cm import listener
from ibwire.fuzz.live_cm.bench import Heard, Identity, LiveManager, ManagerBench
from ibwire.node import Frame
from ibwire.rc.device import gid_of
from ibwire.rc.profile import Profile
from ibwire.units import S
from ibwire_layers import cm
from ibwire_layers.headers import IPCM

UNDECIDED = (State.REQ_RCVD, State.MRA_REQ_SENT, State.SIDR_REQ_RCVD)
"""States in which an application has still to decide."""

PATIENT = 10 * S
"""Longer than a case takes: what a peer waits for less may be over at any time."""

MANAGERS_REASONS = frozenset(
    {
        *(cm.RejectReason.TIMEOUT, cm.RejectReason.INVALID_COMM_ID),
        *(cm.RejectReason.INVALID_COMM_INSTANCE, cm.RejectReason.INVALID_SERVICE_ID),
        *(cm.RejectReason.STALE_CONNECTION, cm.RejectReason.DUPLICATE_LOCAL_COMM_ID),
        cm.RejectReason.INVALID_CLASS_VERSION,
    }
)
"""Why no application refuses a request that its manager has handed on."""


WISHES = (cm.RejectReason.CONSUMER_DEFINED, cm.RejectReason.NO_RESOURCES)
"""Why an application refuses a request that is right."""


def is_unserved(usual: Message | None) -> bool:
    """Whether what a manager says to a right request means that nobody listens."""
    return isinstance(usual, cm.REJ) and usual.reason == cm.RejectReason.INVALID_SERVICE_ID


def greet(bench: ManagerBench, wish: int = listener.ACCEPT) -> Message | None:
    """What the manager says to a right request of somebody new, which is then ended again.

    Raises `PeerError` if it does not stop talking.
    """
    request = wishing(Mad(), wish)
    manager = bench.begin()
    fuzzer = Follower(bench, manager.identity, "spec", None)
    fuzzer.choose(0)
    symbols = dict(fuzzer.symbols)

    def say(message: Mad, *kinds: type[Message]) -> Message | None:
        manager.send(bench.binding.frame(message, 0, symbols))
        return _answer(manager, kinds)

    for _ in range(GREETINGS):
        said = say(request, cm.REP, cm.REJ)  # not an MRA: it may come before
        if isinstance(said, cm.REP):
            symbols |= {"id": said.local_comm_id, "qpn": said.local_qpn}
            manager.send(bench.binding.frame(Mad(message="RTU"), 0, symbols))
            say(Mad(message="DREQ"), cm.DREP)
        if said is not None:
            return said
    return None


def is_alive(bench: ManagerBench) -> bool:
    """Whether it answers anything: who asks for the end of no connection is told that it is over.

    True for a manager that never said so (Linux `cm_issue_drep` does). What it says in the duel
    meanwhile stays there to be heard. Raises `PeerError` for one that does not stop talking.
    """
    return not bench.answers_strangers or _confirms(bench)


def meet(bench: ManagerBench) -> None:
    """Find out how the manager behaves; raises `PeerError` if it does not at all."""
    if bench.usual is None:
        bench.usual = greet(bench)
        bench.answers_strangers = bench.usual is not None and _confirms(bench)
        if isinstance(bench.usual, cm.REP):
            bench.obeys = isinstance(greet(bench, listener.REFUSE), cm.REJ)
    if bench.usual is None:
        raise PeerError(f"{bench.peer} does not answer a request on QP1")


def wishing(request: Mad, wish: int) -> Mad:
    """A request with a wish to who listens, if that is to be anything but to accept."""
    if wish == listener.ACCEPT:
        return request
    at = next(at for at in range(1 << 16) if pattern(at + IPCM.SIZE, 1)[0] % 4 == wish)
    return replace(request, length=IPCM.SIZE + 1, at=at)


def _confirms(bench: ManagerBench) -> bool:
    manager = bench.aside()
    fuzzer = Follower(bench, manager.identity, "spec", None)
    fuzzer.choose(0)
    for _ in range(GREETINGS):
        manager.send(bench.binding.frame(Mad(message="DREQ"), 0, fuzzer.symbols))
        if manager.is_answered(GREETING):
            return True
    return False


def _answer(manager: LiveManager, kinds: tuple[type[Message], ...]) -> Message | None:
    """The first message of these kinds that it says."""

    def is_one(heard: Heard) -> bool:
        return heard.received is not None and isinstance(heard.received.message, kinds)

    try:
        heard = next(filter(is_one, manager.hear(is_one, GREETING)), None)
    except RunsAway as error:
        raise PeerError(str(error)) from None
    return None if heard is None or heard.received is None else heard.received.message


GREETING, GREETINGS = 1 * S, 3
"""How long an answer to a greeting is waited for, and how often one is said: datagrams get lost."""


class Follower(ManagedEmulation):
    """The reference manager, with an application that decides as another one does.

    usual: what it said to a right request. Where nobody listens, nobody does here.
    """

    def __init__(
        self,
        bench: ManagerBench,
        identity: Identity,
        profile: Profile | str,
        usual: Message | None,
    ) -> None:
        self._bench = bench
        self._identity = identity
        self._usual = usual
        self._accepted = 0
        keys = {name: (at << 16, at) for at, name in enumerate(REGIONS, 1)}
        numbers = Numbers(NO_QPN, NO_QPN + 1, keys, None, bench.peer, bench.address, bench.macs)
        super().__init__(Connection(), profile, own_id=identity.own_id, numbers=numbers)

    def _begin(self) -> None:
        super()._begin()
        manager = self.manager
        # How many a device has room for is its own affair.
        del manager.LIMIT_CONNECTIONS
        if self._listener is not None:
            manager.unlisten(self._listener)
        if not is_unserved(self._usual):
            self._listener = manager.listen(self._bench.service_id, EXCHANGES)

    def choose(self, exchange: int) -> None:
        """Let `symbols` be about an exchange; of an ID that the fuzzer was not told it has 0."""
        super().choose(exchange)
        connection = self.exchanges.get(exchange)
        known = connection is not None and connection.reply is not None
        other = self.symbols["other.id"]
        told = {each.local_id for each in self.exchanges.values() if each.reply is not None}
        self.symbols |= {
            "id": self.symbols["id"] if known else 0,
            "other.id": other if other in told else 0,
            "qpn": (connection.local_qpn if known and connection else None) or NO_QPN,
            "gid": gid_of(self._bench.peer),
            "own.gid": gid_of(self._bench.address),
            "own.guid": self._identity.guid,
            "transaction": self._identity.transaction + exchange,
            "service": self._bench.service_id,
        }

    def answers(self) -> list[Frame]:
        """What it sends now, also what its application says to what it is told."""
        return super().answers() + super().answers()

    def undecided(self, number: int, *, is_datagram: bool) -> Managed | None:
        """The connection that somebody asked for with this ID, if nothing is decided yet."""
        asked = (
            each
            for each in self.all_undecided
            if each.remote_id == number and isinstance(each.request, cm.SIDR_REQ) == is_datagram
        )
        return next(asked, None)

    @property
    def all_undecided(self) -> Sequence[Managed]:
        """Connections about which is still to be decided."""
        return [each for each in self.manager.connections if each.state in UNDECIDED]

    @property
    def asked(self) -> Sequence[Managed]:
        """Those of them that do not wish to wait."""
        return [each for each in self.all_undecided if self._wish(each) != listener.WAIT]

    def _wish(self, connection: Managed) -> int:
        is_wish = self._bench.obeys and isinstance(connection.request, cm.REQ)
        return connection.request.private_data[IPCM.SIZE] % 4 if is_wish else listener.ACCEPT

    def follow(self, connection: Managed, said: Message, *, is_right: bool = True) -> None:
        """Decide as the device has, if an application may.

        is_right: whether there is nothing in the request that it could be refused for.
        """
        manager, now = self.manager, self.now
        if isinstance(connection.request, cm.SIDR_REQ):
            if isinstance(said, cm.SIDR_REP) and said.status == cm.SIDRStatus.VALID:
                self.accept(connection)
            elif isinstance(said, cm.SIDR_REP):
                manager.reject(connection, now)
        elif isinstance(said, cm.REP):
            self.accept(connection)
        elif isinstance(said, cm.REJ):
            reason = said.reason
            if reason in WISHES if is_right else reason not in MANAGERS_REASONS:
                manager.reject(connection, now, reason)
        elif isinstance(said, cm.MRA) and connection.state is State.REQ_RCVD:
            manager.delay(connection, now, said.service_timeout)

    def decide(self) -> None:
        """Decide as usual about those of which the device has said nothing."""
        for connection in self.asked:
            if connection.state is State.MRA_REQ_SENT:
                continue
            if (
                isinstance(connection.request, cm.SIDR_REQ)
                or self._wish(connection) == listener.REFUSE
            ):
                self.manager.reject(connection, self.now)
            elif self._usual is not None:
                self.follow(connection, self._usual)

    def accept(self, connection: Managed) -> None:
        """Accept a request, with a queue pair that there need not be."""
        self._accepted += 1
        qpn = FIRST_QPN + self._accepted
        datagram = isinstance(connection.request, cm.SIDR_REQ)
        answer = resolve_reply(qpn) if datagram else reply(qpn=qpn, starting_psn=0)
        try:
            self.manager.accept(connection, answer, self.now)
        except VerbsError:
            return  # it is over already

    def is_up_to_time(self, exchange: int | None) -> bool:
        """Whether a device on a link may have ended what the reference has not, or forgotten it.

        exchange: with one of whose connections; `None` for any.
        """
        known = (*self.manager.connections, *self.exchanges.values())
        return any(
            _is_up_to_time(each)
            for each in known
            if exchange is None or each.remote_id % EXCHANGES == exchange
        )

    def _hear(self, kind: EventKind, connection: Managed) -> None:
        """Nobody decides before the device has."""
        if kind in (EventKind.CONNECT_REQUEST, EventKind.RESOLVE_REQUEST):
            self.exchanges[connection.remote_id % EXCHANGES] = connection
        elif kind is EventKind.ESTABLISHED and self._wish(connection) == listener.LEAVE:
            self.manager.disconnect(connection, self.now)


def _is_up_to_time(connection: Managed) -> bool:
    patience = connection.patience
    return connection.state in _PASSING or patience.answer * (patience.retries + 1) < PATIENT


_PASSING = (State.TIMEWAIT, State.ANSWERED, State.IDLE, State.MRA_REP_RCVD)
"""States that time ends, or that it has ended."""


NO_QPN = 0xFFFFE0
"""What stands for a queue pair of which nothing is known."""

FIRST_QPN = 0x300000
"""In the REPs of the reference; the device has its own."""
