"""A comparison with the connection manager of a device on a link.

What the specification leaves to a device is not compared: IDs, queue pairs, PSNs, times and
private data, what its application decides, and whether a LAP draws an APR. Retransmitted messages
and answers about unknown connections are not compared either, because timers cause both. So a
device need not be quick, and may repeat what it has sent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeGuard

from ibwire.base.node import Frame
from ibwire.base.units import Time
from ibwire.cm.connection import Connection
from ibwire.cm.messages import Message, Received, decode, encode, request
from ibwire.cm.states import State
from ibwire.fuzz.case import CaseError, Command, Mad, Step, message_on_wire
from ibwire.fuzz.judge.comparison import Comparison, Difference, Kind
from ibwire.fuzz.targets.emulated_manager import EXCHANGES
from ibwire.fuzz.targets.link.frames import BTH, behind_ip
from ibwire.fuzz.targets.link.manager_link import (
    MAD_START,
    ManagerAnswer,
    ManagerLink,
    ManagerSession,
    called_by,
    is_other_management,
    mad_of,
)
from ibwire.fuzz.vocabulary.cm.follower import MANAGERS_REASONS, Follower, is_alive, tell_to_call
from ibwire.fuzz.vocabulary.queue_pair.encoding import Symbols
from ibwire_layers import cm
from ibwire_layers import headers as h


class SentOnly(Comparison):
    """What was sent to a manager that no longer responds."""

    def __init__(self, link: ManagerLink) -> None:
        self._follower = Follower(link, link.begin().identity, "spec", link.usual)
        super().__init__(link.binding, self._follower.emulation)
        self._reason = link.dead or link.lost

    def step(self, step: Step) -> None:
        """Carry out a step on the reference alone."""
        if not is_possible(step):
            raise CaseError(NOT_SENT)
        self.steps += 1
        reference = self.reference
        if isinstance(step, Command):
            self._follower.take(step.exchange, _imagined(step.exchange))
            reference.answers()
            return
        self._follower.management.choose(step.exchange)
        frame = self.binding.frame(step, reference.psn(step.psn[0]), reference.symbols)
        if self.records:
            self.frames.append(("<", 0, frame))
        reference.receive(frame)
        self._follower.decide()
        reference.answers()

    def end(self) -> Difference:
        """The difference that it no longer responds."""
        return self.crash(self._reason)


def is_possible(step: Step) -> TypeGuard[Mad | Command]:
    """Whether a step can be carried out: a message, or a request that makes the device connect."""
    return isinstance(step, Mad) or (isinstance(step, Command) and step.what == "connect")


NOT_SENT = "a case for the manager of a device on a link has messages and requests to connect only"


def _imagined(exchange: int) -> Received:
    """The request that a device would have sent, for one that has sent none."""
    asked = request(service_id=0, source=0, destination=0, qpn=1, starting_psn=0)
    return Received(exchange, asked.altered(local_comm_id=exchange + 1))


@dataclass(frozen=True, slots=True)
class Due:
    """A message that the reference has sent and the device has not yet."""

    frame: Frame
    received: Received
    is_optional: bool


class ManagerComparison(Comparison):
    """A reference manager and that of a device.

    is_quick: look only where an answer is due; what comes otherwise is seen with the next.
    """

    def __init__(
        self,
        link: ManagerLink,
        follower: Follower,
        target: ManagerSession,
        *,
        is_quick: bool = False,
    ) -> None:
        super().__init__(link.binding, follower.emulation)
        self.follower = follower
        self._management = follower.management
        self.is_over = False
        """Whether a timer may have expired: later messages prove nothing."""
        self._link = link
        self._manager = target
        self._is_foreign = False
        """Whether the last step is a request for a partition in which the device may not be.

        No reason is defined to refuse it: Linux is silent.
        """
        self._may_differ = False
        """Whether the device's timers may have ended what the last step is about."""
        self._is_right = False
        """Whether the last step is a correct message."""
        self._is_offer = False
        """Whether the last step is a LAP, which a device may answer with an APR."""
        self._is_quick = is_quick
        self._due: list[Due] = []
        self._said: set[bytes] = set()
        """MADs of the reference."""
        self._received: set[bytes] = set()
        """MADs of the device."""
        self._theirs: dict[int, int] = {}
        """IDs and queue pairs of the device by those of the reference."""
        self._ours: dict[int, int] = {}
        """The opposite, also for wrong numbers that the fuzzer has used for the device."""
        self._ambiguous: dict[Connection, ManagerAnswer] = {}
        """Answers that may decide about a request, or repeat the decision about another one."""
        self._given_up: set[int] = set()
        """IDs of requests that the fuzzer has ended before the decision about them."""

    def step(self, step: Step) -> Difference | None:
        """Carry out one step; `None` if both did the same."""
        if not is_possible(step):
            raise CaseError(NOT_SENT)
        number = self.steps
        self.steps += 1
        self.expected = []
        reference, follower = self.reference, self.follower
        self._management.choose(step.exchange)
        if isinstance(step, Command):
            self._is_foreign = self._may_differ = False
            self._is_right = True
            follower.awaited.add(step.exchange)
            tell_to_call(self._link, self._manager.identity, step.exchange)
            return self._look_for(number)
        self._is_right = not step.fields and not step.length
        self._is_offer = "LAP" in (step.message, message_on_wire(step))
        self._may_differ = self._is_up_to_time(step)
        psn = reference.psn(step.psn[0])
        frame = self.binding.frame(step, psn, reference.symbols)
        sent = self.binding.frame(step, psn, self._translated(reference.symbols))
        self._pair(frame, sent)
        if self.records:
            self.frames.append(("<", 0, sent))
        undecided = follower.all_undecided
        reference.receive(frame)
        self._given_up |= {each.remote_id for each in undecided} - {
            each.remote_id for each in follower.all_undecided
        }
        self._expect(step)
        self._manager.send(sent)
        difference = self._look_for(number)
        if step.why and not is_alive(self._link):
            return Difference(
                number, Kind.CRASH, self.expected, ["nothing on QP1 is answered any more"]
            )
        return self._unless_in_doubt(difference)

    def _unless_in_doubt(self, difference: Difference | None) -> Difference | None:
        if difference is not None and self._may_differ:
            self.is_over = True
            return None
        return difference

    def end(self) -> Difference | None:
        """Compare what a quick comparison has not compared yet."""
        if not self._is_quick or not self.steps or self.is_over:
            return None
        self._is_quick = False
        self.expected = []
        return self._unless_in_doubt(self._look_for(self.steps - 1))

    def leave(self) -> None:
        """End the remaining connections, so that the device keeps none of them."""
        symbols = self.reference.symbols
        for connection in self._management.manager.connections:
            step = _PARTING.get(connection.state)
            if step is None or connection.local_qpn is None:
                continue
            numbers = {"id": connection.local_id, "qpn": connection.local_qpn}
            own = {"own.id": connection.remote_id}
            self._manager.send(
                self.binding.frame(step, 0, self._translated(symbols | numbers | own))
            )

    # What is due, and what has come.

    def _expect(self, step: Step | None = None) -> None:
        """Keep the messages that the reference sends now, as due."""
        for frame in self.reference.answers():
            mad = mad_of(frame)
            received = decode(mad)
            if received is None:
                continue  # of a queue pair that the device has not got
            self.expected.append(self._link.path.frame(behind_ip(frame)))
            is_repeated = mad in self._said and not isinstance(received.message, cm.DREP)
            is_optional = is_repeated or self._is_foreign or _need_not_be(received.message, step)
            self._said.add(mad)
            self._due.append(Due(self.expected[-1], received, is_optional))

    def _look_for(self, number: int) -> Difference | None:
        """The difference of the device's messages; messages without end are one, too."""
        return self.bounded(lambda: self._compare(number))

    def _compare(self, number: int) -> Difference | None:
        strange: list[ManagerAnswer] = []
        for _ in range(2):
            strange += self._waited_for()
            # A busy manager does not answer later messages sooner: only then has it been silent.
            if not self._missing or not is_alive(self._link):
                break
        if not self._is_quick:
            strange += self._unexplained(self._receive(self._link.tolerance))
        if self.follower.awaited:
            self.follower.awaited.clear()
            self.is_over = True  # whether it asks for a connection at all is checked after the case
        if self._is_foreign and not strange and (self._due or self.follower.asked):
            self.is_over = True  # its state is unknown
            return None
        for connection, answer in self._ambiguous.items():
            assert answer.received is not None
            self.follower.follow(connection, answer.received.message, is_right=self._is_right)
            self._expect()
            self._is_due(answer)
        self._ambiguous.clear()
        self.follower.decide()
        self._expect()
        strange = [each for each in strange if not self._is_explained(each)]
        missing = [each.frame for each in self._due if not each.is_optional]
        if not missing and not strange:
            return None
        got: list[Frame] = []
        for each in strange:
            alike = next((due for due in self._due if _are_alike(due, each)), None)
            got.append(self._in_our_terms(each, alike) if alike else each.frame)
        self._due.clear()
        return Difference(number, Kind.ANSWER, missing, got)

    def _waited_for(self) -> list[ManagerAnswer]:
        """The unexpected messages that arrive until none is missing, or each absence is explained.

        Only a missing message gives a device more time, so that other messages cannot extend it.
        """
        strange: list[ManagerAnswer] = []
        live = self._link.endpoint.live
        until, least = live.now, self._missing + 1
        while missing := self._missing:
            if missing < least:  # a program has to be woken up to decide
                until, least = live.now + DECISION * self._link.tolerance, missing
            answers = self._receive(until - live.now, lambda answer: True)
            strange += self._unexplained(answers)
            if not answers:
                break
        return strange

    def _receive(
        self, time: Time, is_last: Callable[[ManagerAnswer], bool] = lambda answer: False
    ) -> list[ManagerAnswer]:
        self.in_target = True
        answers = self._manager.receive(is_last, time)
        self.in_target = False
        return answers

    @property
    def _missing(self) -> int:
        """How many messages of the device are still due."""
        follower = self.follower
        due = sum(not each.is_optional for each in self._due)
        return len(follower.awaited) + len(follower.asked) + due

    def _unexplained(self, answers: Sequence[ManagerAnswer]) -> list[ManagerAnswer]:
        if self.records:
            self.frames += [(">", 0, self._link.as_received(each.frame)) for each in answers]
        return [each for each in answers if not self._is_explained(each)]

    def _is_explained(self, answer: ManagerAnswer) -> bool:
        """Whether a message is expected or allowed."""
        mad = mad_of(answer.frame)
        if answer.received is None:
            return is_other_management(answer)
        said = answer.received.message
        if isinstance(said, cm.REQ):
            return self._is_called(answer)
        is_datagram = isinstance(said, cm.SIDR_REP)
        number = getattr(said, "request_id" if is_datagram else "remote_comm_id", 0)
        number = self._ours.get(number, number)
        if self._is_due(answer) or (self._is_offer and isinstance(said, cm.APR)):
            return True
        is_repeated = mad in self._received
        connection = self.follower.undecided(number, said)
        if connection is not None and is_repeated:
            self._ambiguous[connection] = answer
        elif connection is not None:
            self.follower.follow(connection, said, is_right=self._is_right)
            self._expect()
            if self._is_due(answer):
                return True
        if is_repeated:
            return True
        if not self._is_by_chance(said, number):
            return False
        self.is_over = True
        return True

    def _is_called(self, answer: ManagerAnswer) -> bool:
        """Whether a request of the device is correct; the reference then sends the same."""
        if mad_of(answer.frame) in self._received:
            return True
        assert answer.received is not None
        assert isinstance(answer.received.message, cm.REQ)
        exchange = (called_by(answer.received.message) or 0) % EXCHANGES
        if exchange in self.follower.awaited:
            self.follower.take(exchange, answer.received)
            self._expect()
        return self._is_due(answer)

    def _is_by_chance(self, said: Message, number: int) -> bool:
        """Whether an application, a timer or an earlier packet may be the reason for a message.

        number: the fuzzer's ID of what it is about.
        """
        if isinstance(said, cm.REP) and any(_is_for_lack_of_mtu(each) for each in self._due):
            # The program that brings the queue pair up may be the first to check it.
            self._due.clear()
            return True
        follower = self.follower
        management = self._management
        about = [at for at, each in management.exchanges.items() if each.remote_id == number]
        if not about:
            return False
        if isinstance(said, cm.DREQ) or _gives_up(said):
            return True  # its application, or its clock, ends what it likes
        if number in self._given_up and isinstance(said, _DECISIONS):
            return True
        # A quick comparison may have gone on to another exchange.
        return any(at != management.exchange and follower.is_up_to_time(at) for at in about)

    def _is_due(self, answer: ManagerAnswer) -> bool:
        """Whether the reference has sent this message, too; it is then no longer due."""
        assert answer.received is not None
        for due in self._due:
            if _are_alike(due, answer) and self._in_our_terms(answer, due) == due.frame:
                self._due.remove(due)
                self._learn(due.received.message, answer.received.message)
                self._received.add(mad_of(answer.frame))
                return True
        return False

    def _in_our_terms(self, answer: ManagerAnswer, due: Due) -> Frame:
        """A message of the device, with the reference's numbers in place of the device's own."""
        assert answer.received is not None
        said, expected = answer.received.message, due.received.message
        changes = {name: getattr(expected, name) for name in _own_fields(said, expected)}
        for name in _NUMBERS:
            if not hasattr(said, name) or name in changes:
                continue
            number, wanted = getattr(said, name), getattr(expected, name)
            is_new = wanted not in self._theirs and number not in self._ours
            if self._ours.get(number, number) == wanted or (is_new and name in _told_in(said)):
                changes[name] = wanted
        transaction = answer.received.transaction_id
        if isinstance(said, cm.DREQ):
            transaction = due.received.transaction_id
        bth = h.BTH.unpack(answer.frame, BTH)
        right = replace(
            h.BTH.unpack(due.frame, BTH), opcode=bth.opcode, tver=bth.tver, pad_count=bth.pad_count
        )
        deth = answer.frame[BTH + h.BTH.SIZE : BTH + MAD_START]
        mad = encode(replace(said, **changes), transaction)
        return self._link.path.frame(right.pack() + deth + mad)

    def _learn(self, expected: Message, said: Message) -> None:
        """Keep the numbers that the device has chosen."""
        for name in _told_in(said):
            ours, theirs = getattr(expected, name), getattr(said, name)
            if ours:
                self._theirs.setdefault(ours, theirs)
                self._ours.setdefault(theirs, ours)

    # What is sent.

    def _translated(self, symbols: Symbols) -> Mapping[str, int]:
        """Symbols with the numbers of the device."""
        names = ("id", "other.id", "qpn")
        return {
            **symbols,
            **{name: self._theirs.get(symbols[name], symbols[name]) for name in names},
        }

    def _pair(self, frame: Frame, sent: Frame) -> None:
        """Keep the numbers that are used for the device, which may not be its own."""
        self._is_foreign = False
        ours, theirs = (decode(mad_of(each)) for each in (frame, sent))
        if ours is None or theirs is None:
            return
        if isinstance(ours.message, cm.REQ | cm.SIDR_REQ):
            self._is_foreign = ours.message.pkey | _FULL != DEFAULT_PKEY
        for name in _IDS:
            if hasattr(ours.message, name):
                one, other = (getattr(each.message, name, 0) for each in (ours, theirs))
                self._ours.setdefault(other, one)

    def _is_up_to_time(self, step: Mad) -> bool:
        """Whether the device's timers may have ended what a step is about."""
        is_other = any(name.endswith(_NAMING) for name in step.fields)
        return self.follower.is_up_to_time(None if is_other else step.exchange)


def _need_not_be(message: Message, step: Step | None) -> bool:
    """Whether the specification allows a device to send nothing instead.

    An MRA is optional. ibwire answers messages about unknown connections; Linux does not.
    """
    if isinstance(message, cm.REJ):
        is_stale = message.reason == cm.RejectReason.STALE_CONNECTION
        about_request = isinstance(step, Mad) and step.message == "REQ"
        return message.reason in _GIVING_UP or (is_stale and not about_request)
    return isinstance(message, cm.MRA)


def _gives_up(message: Message) -> TypeGuard[cm.REJ]:
    """Whether it reports that the device has waited for too long."""
    return isinstance(message, cm.REJ) and message.reason == cm.RejectReason.TIMEOUT


def _is_for_lack_of_mtu(due: Due) -> bool:
    message = due.received.message
    return isinstance(message, cm.REJ) and message.reason == cm.RejectReason.INVALID_MTU


def _are_alike(due: Due, answer: ManagerAnswer) -> bool:
    return answer.received is not None and (
        type(due.received.message) is type(answer.received.message)
    )


def _own_fields(message: Message, expected: Message) -> Sequence[str]:
    """Fields that are the device's, or its application's, own choice."""
    names = [each.name for each in message.FIELDS if each.name.startswith("reserved")]
    if isinstance(message, cm.REJ) and isinstance(expected, cm.REJ):
        if not message.local_comm_id or not expected.local_comm_id:
            names.append("local_comm_id")  # a refusal need not have one
        if expected.reason in _UNABLE and message.reason not in MANAGERS_REASONS:
            names.append("reason")
    elif isinstance(message, cm.SIDR_REP) and message.status:
        names.append("status")
    return [*names, *_OWN.get(type(message), ())]


def _told_in(message: Message) -> Sequence[str]:
    """Fields with numbers that a device sends for the first time."""
    if isinstance(message, cm.REP | cm.REQ):
        return ("local_comm_id", "local_qpn", "local_eecn")
    return ("local_comm_id",) if isinstance(message, cm.MRA) else ()


_OWN: Mapping[type, Sequence[str]] = {
    cm.REQ: ("local_ca_guid",),  # all the others are taken over
    cm.REP: (
        "local_qkey",
        "starting_psn",
        "responder_resources",
        "initiator_depth",
        "target_ack_delay",
        "failover_accepted",
        "end_to_end_flow_control",
        "rnr_retry_count",
        "srq",
        "local_ca_guid",
        "private_data",
    ),
    cm.MRA: ("service_timeout", "private_data"),
    cm.RTU: ("private_data",),
    cm.REJ: ("reject_info_length", "ari", "private_data"),
    cm.DREQ: ("private_data",),
    cm.DREP: ("private_data",),
    cm.SIDR_REP: (
        "qpn",
        "qkey",
        "additional_info_length",
        "additional_info",
        "private_data",
    ),
}

_IDS = ("local_comm_id", "remote_comm_id", "request_id")
_NUMBERS = (*_IDS, "local_qpn", "local_eecn")
"""Fields with numbers that a device has chosen, or that were used for it."""

DECISION = 10
"""How many times longer an answer may take if a program decides about it."""

_NAMING = ("comm_id", "guid", "qpn", "request_id", "transaction_id")
"""Ends of the names of fields by which a connection is found."""

_UNABLE = (
    cm.RejectReason.INVALID_TRANSPORT_TYPE,
    cm.RejectReason.INVALID_MTU,
    cm.RejectReason.INVALID_PRIMARY_GID,
)
"""Reasons with which the reference manager refuses by itself; others leave it to the consumer."""

_GIVING_UP = (cm.RejectReason.TIMEOUT, cm.RejectReason.INVALID_COMM_ID)

DEFAULT_PKEY, _FULL = 0xFFFF, 0x8000
"""The P_Key of the default partition, and its bit for full membership."""

_DECISIONS = (cm.REP, cm.MRA, cm.REJ, cm.SIDR_REP, cm.RTU)
"""Messages that decide about a request, or about its answer."""

_REFUSAL, _RETREAT = (
    Mad(message="REJ", fields={"rej.message_rejected": int(about)})
    for about in (cm.MessageRejected.REQ, cm.MessageRejected.OTHER)
)
_PARTING = {
    State.ESTABLISHED: Mad(message="DREQ"),
    State.REP_SENT: Mad(message="DREQ"),
    State.MRA_REP_RCVD: Mad(message="DREQ"),
    State.DREQ_SENT: Mad(message="DREP"),
    State.REQ_SENT: _REFUSAL,
    State.MRA_REQ_RCVD: _REFUSAL,
    State.REP_RCVD: _RETREAT,
    State.MRA_REP_SENT: _RETREAT,
}
"""What ends a connection, by its state."""
