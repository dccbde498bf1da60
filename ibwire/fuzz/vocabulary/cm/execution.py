"""A case for a connection manager carried out on one device, and the names that drill has then.

The fuzzer has the numbers of all exchanges from the beginning. A drill script has those of the
messages so far: of its peer, and of the device once it has sent them. Both are about the same
device here, so a number is the same whichever of them names it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from ibwire.base.node import Frame
from ibwire.base.units import Time
from ibwire.cm.messages import Message
from ibwire.drill.targets.manager import Exchange, Exchanges
from ibwire.fuzz.case import Case, Command, Connect, Connection, Mad, Packet, Step, Wait
from ibwire.fuzz.targets.emulated_device import ADDRESS, PEER_ADDRESS
from ibwire.fuzz.targets.emulated_manager import (
    OWN_ID,
    OWN_TRANSACTION,
    SERVICE,
    managed_emulation,
    management_of,
)
from ibwire.fuzz.vocabulary.binding import Binding
from ibwire.fuzz.vocabulary.queue_pair.encoding import Symbols
from ibwire.fuzz.vocabulary.queue_pair.execution import Execution, Moment
from ibwire.rc.profile import Profile
from ibwire_layers import cm
from ibwire_layers.psn import MASK


@dataclass(frozen=True, slots=True)
class ManagedMoment(Moment):
    """The results of a step on a device with a connection manager; `symbols`: before it."""

    frame: Frame | None
    """The frame that it received."""
    made: tuple[int, int, int] | None
    """First PSNs of requests to the device and of its own, and the peer's queue pair; none
    without a connection."""
    exchange: int
    """The number of the exchange that the step is about."""
    is_beside: bool
    """Whether a packet is for the connection beside."""
    owners: Mapping[int, int]
    """Exchanges by the communication IDs of the device, after the step."""
    peer_qpns: Mapping[int, int]
    """The queue pairs of the peer by their exchanges, after the step."""
    is_full: bool
    """Whether the manager has had no room for a connection by then."""


class ManagedExecution(Execution):
    """A device with a connection manager, and the way to it."""

    def __init__(self, connection: Connection, profile: Profile) -> None:
        self.device = managed_emulation(connection, profile)
        self.management = management_of(self.device)
        self._binding = Binding(PEER_ADDRESS, ADDRESS)

    def choose(self, step: Step) -> int:
        """Let symbols and PSNs be about the exchange of a step; its number."""
        management = self.management
        number = step.exchange if isinstance(step, Mad | Command) else management.exchange
        management.choose(number)
        return number

    def do(self, step: Step) -> ManagedMoment:
        """Carry out the next step; raises `CaseError` for one that does not fit the connection."""
        device = self.device
        start, psn, accepted, frame = device.now, 0, True, None
        answers: list[tuple[Time, Frame]] = []
        number = self.choose(step)
        symbols, made = dict(device.symbols), self.made
        is_beside = type(step) is Packet and symbols["qpn"] == device.qp.number
        held = isinstance(step, Packet) and step.held
        if isinstance(step, Packet):
            base = device.psn(step.psn[0])
            psn = base + step.psn[1] & MASK
            frame = self._binding.frame(step, base, symbols)
            device.receive(frame)
        elif isinstance(step, Command):
            accepted = device.command(step)
        elif isinstance(step, Connect):
            device.reconnect(step.connection)
        elif isinstance(step, Wait):
            answers = [(when - start, each) for when, each in device.wait(step.time)]
        if held:
            return ManagedMoment(
                psn, symbols, accepted, (), (), (), frame, made, number, is_beside, {}, {}, False
            )
        if not isinstance(step, Wait):
            answers = [(0, each) for each in device.answers()]
        exchanges = self.management.exchanges
        return ManagedMoment(
            psn,
            symbols,
            accepted,
            answers,
            completions=device.completions(),
            events=device.raised(),
            frame=frame,
            made=made,
            exchange=number,
            is_beside=is_beside,
            owners={each.local_id: name for name, each in exchanges.items()},
            peer_qpns={
                name: each.remote_qpn
                for name, each in exchanges.items()
                if each.remote_qpn is not None
            },
            is_full=self._is_full(step, accepted),
        )

    def _is_full(self, step: Step, accepted: bool) -> bool:
        """Whether a request of either side has found as many connections as there may be."""
        manager = self.management.manager
        begins = isinstance(step, Command) and step.what in ("connect", "resolve")
        is_refused = begins and not accepted
        has_limit = len(manager.connections) >= manager.LIMIT_CONNECTIONS
        return manager.counters["connections_full"] > 0 or (is_refused and has_limit)

    @property
    def made(self) -> tuple[int, int, int] | None:
        """The numbers of the connection of the chosen exchange: see `ManagedMoment`."""
        management = self.management
        connection = management.exchanges.get(management.exchange)
        if connection is None or not isinstance(connection.reply, cm.REP):
            return None
        request, reply = connection.request, connection.reply
        assert isinstance(request, cm.REQ)
        own, other = (request, reply) if connection.is_active else (reply, request)
        return own.starting_psn, other.starting_psn, other.local_qpn


def managed_moments(case: Case, profile: Profile) -> Iterator[ManagedMoment]:
    """A case carried out on one device."""
    execution = ManagedExecution(case.connection, profile)
    for step in case.steps:
        yield execution.do(step)


class DrillNumbers:
    """What drill has learned of the exchanges so far.

    symbols: at the beginning. name_of: the queue pair of an exchange, empty for the first one.
    """

    def __init__(self, symbols: Symbols, name_of: Callable[[int], str]) -> None:
        self._name_of = name_of
        first = Exchange(
            symbols["gid"],
            symbols["own.gid"],
            symbols["guid"],
            symbols["own.guid"],
            peer_cm_id=OWN_ID,
            transaction=OWN_TRANSACTION,
        )
        self._exchanges = Exchanges(first, OWN_ID, OWN_TRANSACTION, apart=1)
        self._peer_qpns: dict[str, int] = {}
        """Of other queue pairs than the first one."""

    def note(self, moment: ManagedMoment) -> None:
        """Take over the identifiers of what was sent in a step, on both sides."""
        name = self._name(moment.exchange)
        if moment.frame is not None:
            self._exchanges.choose(name).note(moment.frame, from_device=False)
        else:
            self._exchanges.choose(name)
        names = {exchange: self._name_of(exchange) for exchange in moment.peer_qpns}
        self._peer_qpns |= {
            f"{names[exchange]}.peer_qpn": qpn
            for exchange, qpn in moment.peer_qpns.items()
            if names[exchange]
        }
        for chosen, exchange in moment.owners.items():
            self._exchanges[self._name(exchange)].chosen_cm_id = chosen
        for _, frame in moment.answers:
            self._exchanges.note(frame)

    def symbols(
        self, exchange: int, symbols: Symbols, made: tuple[int, int, int] | None
    ) -> dict[str, int]:
        """What the names in a line of an exchange stand for. symbols: those of the fuzzer."""
        name = self._name(exchange)
        self._exchanges[name].chosen_cm_id = symbols["id"]
        found: dict[str, int] = {}
        for other in self._exchanges:
            own = self._exchanges[other].symbols
            found |= {f"{other}.{part}": own[part] for part in own} if other else {}
        return {
            **found,
            **self._peer_qpns,
            **self._exchanges[name].symbols,
            "mtu": 256,
            "pkey": 0xFFFF,
            "rq_psn": made[0] if made else 0,
            "qpn": symbols["qpn"],
            "peer_qpn": made[2] if made else symbols["own.qpn"],
            "sq_psn": made[1] if made else symbols["own.psn"],
            "service": SERVICE,
        }

    def owner_of(self, message: Message) -> str:
        """The queue pair of a message of the device."""
        return self._exchanges.owner_of(message)

    def identifiers(self, owner: str) -> Mapping[str, int]:
        """Those of the exchange of a queue pair, by the names of drill."""
        return self._exchanges[owner].symbols

    def _name(self, exchange: int) -> str:
        name = self._name_of(exchange)
        if name not in self._exchanges:
            self._exchanges.add(name, exchange)
        return name


NAMES: Mapping[str, str] = {
    "peer_cm_id": "own.id",
    "cm_id": "id",
    "chosen_cm_id": "id",
    "transaction": "transaction",
    "service": "service",
    "peer_qpn": "own.qpn",
    "qpn": "qpn",
    "sq_psn": "own.psn",
    "gid": "gid",
    "peer_gid": "own.gid",
    "guid": "guid",
    "peer_guid": "own.guid",
}
"""The names of the fuzzer for the numbers of drill, where both have the same."""
