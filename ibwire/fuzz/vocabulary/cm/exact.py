"""The comparison with an emulated connection manager, without what the specification leaves open.

Not compared are the transaction ID of a DREQ, which begins an exchange of its own; the time that
an MRA asks for; which of several reasons a REQ is refused for, also one for a reserved value;
whether a REQ for which there is no room is refused or dropped; whether a REJ suggests another value
where that is optional; whether a LAP draws an APR; by how much TIMEWAIT and the wait after an MRA
are longer than they must be, and all timers by up to a tick; how long a refused REQ is kept, and
whether the answer to a SIDR_REQ is; how many READs a queue pair serves beyond those of its peer,
and by how much fewer it has outstanding; and whether a REQ of another class version draws REJ 31.

Source: reference/cm#transaction, #handshake, #reject-reasons, #states, #timeouts, #resending.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import replace
from operator import itemgetter

from ibwire.base.node import Frame
from ibwire.base.units import Time
from ibwire.cm.answers import automatic_refusal, refusal
from ibwire.cm.connection import Connection as Managed
from ibwire.cm.messages import Message, Received, duration
from ibwire.cm.node import ManagedDevice
from ibwire.cm.states import EventKind, State
from ibwire.drill.targets.manager import message_in
from ibwire.fuzz.case import ATTRIBUTE, Command, Connect, Mad, Packet, Pause, RunsAway, Step, Wait
from ibwire.fuzz.judge.comparison import (
    Device,
    Difference,
    ExactComparison,
    Kind,
    TimedFrames,
    frames_of,
)
from ibwire.fuzz.judge.open_responses import follow_responses
from ibwire.fuzz.targets.emulated_device import Completion, Emulation
from ibwire.fuzz.targets.emulated_manager import EVENT, RECEIVING, SENDING, management_of
from ibwire.fuzz.vocabulary.binding import Binding
from ibwire.fuzz.vocabulary.cm.late_timers import LateTimers
from ibwire.rc.attributes import MTU_BYTES
from ibwire_layers import cm
from ibwire_layers import headers as h
from ibwire_layers.mad import MAD_SIZE
from ibwire_layers.psn import MASK


class ExactManagerComparison(ExactComparison):
    """A reference and a device with a connection manager in this process."""

    def __init__(self, binding: Binding, reference: Emulation, target: Device) -> None:
        super().__init__(binding, reference, target)
        self._management = management_of(reference)
        self._is_wait = False
        """Whether time passes in the step."""
        self._began: Time = 0
        """When the last wait began."""
        self._completed: list[Completion] | None = None
        """Completions of the device in a wait, which were asked for before its end."""
        self._received: list[Frame] = []
        """The frames that a step answers: those that were held, and the last one."""
        self._answered: list[Mad] = []
        """The messages of a case in them."""
        self._dropped = 0
        """Requests that the reference had dropped before the step, as it had no room for them."""
        self._is_of_other = False
        """Whether the last message is a REQ that has the bytes of another message."""
        self._is_of_other_version = False
        """Whether the last message is a REQ of another class version."""
        self._begin()

    def _begin(self) -> None:
        """Begin with new managers."""
        self._manager = self._management.manager
        self._late = LateTimers(self._manager)
        self._transactions: dict[int, int] = {}
        """Transaction IDs of the device's DREQs, by the ID of the connection."""
        self._offers: set[tuple[int, int, int]] = set()
        """The IDs and transaction IDs of LAPs that may be answered."""
        self._unknown_offers: set[tuple[int, int, int]] = set()
        """Those of LAPs for connections that do not exist."""
        self._received.clear()
        self._answered.clear()

    def step(self, step: Step) -> Difference | None:
        """Carry out one step; `None` if both did the same, or may differ from here on."""
        if self.is_over:
            self.steps += 1
            return None
        self._is_wait, self._completed = isinstance(step, Wait), None
        kept = self._late.kept(self.reference.now)
        if not self._received:
            self._dropped = self._drops()
        difference = super().step(step)
        if isinstance(step, Connect):
            self._begin()
        if isinstance(step, Mad):
            self._look_for_forgotten(difference)
        if isinstance(step, Mad | Command) and difference is not None:
            self.is_over |= self._is_of_forgotten(difference, kept)
            self.is_over |= self._is_full_of_answers(difference)
        if not (isinstance(step, Mad) and step.held):
            self._received.clear()
            self._answered.clear()
        return None if self.is_over else difference

    def _look_for_forgotten(self, difference: Difference | None) -> None:
        """End the case where the device may still have an answer that the reference has not."""
        now = self.reference.now
        for each in () if self._answered[-1].held else self._answered:
            if difference is not None:
                self.is_over |= self._late.has_forgotten(each.exchange, now)
            elif each.message in _REQUESTS:  # it is a new one for both
                is_datagram = each.message == "SIDR_REQ"
                self._late.forget(each.exchange, now, is_datagram=is_datagram)

    def _is_of_forgotten(self, difference: Difference, kept: Sequence[Managed]) -> bool:
        """Whether the device may have forgotten an answer that the reference still has.

        kept: the connections of which it had only that before the step.
        """
        if not kept or difference.kind not in (Kind.ANSWER, Kind.COMPLETION):
            return False
        manager = self._manager
        acts = bool(difference.got or difference.reported)
        if acts and len(manager.connections) >= manager.LIMIT_CONNECTIONS:
            return True  # it has room for another one
        for each in self._messages():
            if not any(_is_about(each.message, connection) for connection in kept):
                continue
            listener = manager.listeners.get(getattr(each.message, "service_id", -1))
            if acts or (listener is not None and listener.waiting >= listener.backlog):
                return True
        return False

    def _is_full_of_answers(self, difference: Difference) -> bool:
        """Whether the device may have no room, for answers that the reference has forgotten."""
        if difference.got or difference.reported:
            return False
        manager, now = self._manager, self.reference.now
        forgotten = self._late.forgotten(now)
        return forgotten > 0 and len(manager.connections) + forgotten > manager.LIMIT_CONNECTIONS

    def _in_answers(
        self, number: int, expected: Sequence[Frame], got: Sequence[Frame]
    ) -> Difference:
        """The difference of messages, with what only the application of the device gets."""
        difference = super()._in_answers(number, expected, got)
        if self._is_wait:
            return difference
        own = self.reference.completions()
        if self.trace is not None:
            self.trace.calls.append(own)
        kinds = {each[:2] for each in own}
        theirs = self.target.completions()
        reported = [each for each in theirs if each[:2] not in kinds]
        kinds = {each[:2] for each in theirs}
        unreported = [each for each in own if each[:2] not in kinds]
        return replace(difference, reported=reported, unreported=unreported)

    def _beside(self) -> tuple[Sequence[object], Sequence[object]]:
        """Nothing: what its application gets is in the difference, or compared in `_in_answers`."""
        return (), ()

    # Time.

    def _wait(self, time: Time, number: int) -> Difference | None:
        difference = super()._wait(time, number)
        if difference is not None and difference.kind in _OF_FRAMES and self.trace is not None:
            # What a device has reported is asked for before what it has sent is compared.
            self.trace.calls.append(self.reference.completions())
        if difference is not None and self._late.has_moved and _is_only_order(difference):
            self.is_over = True
            return None
        return difference

    def _both_wait(self, time: Time) -> tuple[TimedFrames, TimedFrames]:
        """Let time pass first on the device, which may be later than the reference would be."""
        reference = self.reference
        self._began = reference.now
        self.in_target = True
        try:
            got = self.target.wait(time)
        except RunsAway:
            self._of_reference(lambda device: device.wait(time), frames_of)  # or it does the same
            raise
        self._completed = self.target.completions()
        self.in_target = False
        self._late.follow(reference.now + time, got, self._completed)
        follow_responses(reference, self._responses_of(frames_of(got)))
        expected = self._of_reference(lambda device: device.wait(time), frames_of)
        self._late.end_wait()
        return expected, got

    def _completions_of_target(self) -> list[Completion]:
        completed, self._completed = self._completed, None
        return super()._completions_of_target() if completed is None else completed

    def _in_completions(
        self, number: int, expected: list[Completion], got: list[Completion]
    ) -> Difference | None:
        """The difference of events; those of different connections in a wait have no order.

        Where a queue pair becomes free sooner or later, others are used afterwards.
        """
        is_of_events = all(each[0] == EVENT for each in (*expected, *got))
        sides = sorted(expected, key=_CONNECTION), sorted(got, key=_CONNECTION)
        if self._is_wait and is_of_events and sides[0] == sides[1]:
            self.is_over = True
            return None
        found = super()._in_completions(number, expected, got)
        return found if found is None or not self._is_wait else self._with_due(found)

    def _with_due(self, difference: Difference) -> Difference:
        """The same, with the time that is due for an end of TIMEWAIT which comes before that."""
        early = [each for each in difference.got if each not in difference.expected]
        for each in self._manager.connections:
            is_early = any(isinstance(one, tuple) and one[:3] == _exit_of(each) for one in early)
            if is_early and each.state is State.TIMEWAIT and each.deadline is not None:
                due, until = (time - self._began for time in (each.deadline, self.reference.now))
                return replace(difference, times=((due,), (until,)))
        return difference

    # Tables.

    def _agreeing_events(
        self, expected: Sequence[object], raised: Sequence[object]
    ) -> Sequence[object]:
        """The device's tables, with the attributes of queue pairs that are due if they are right.

        Those of a device that tells none are not compared.
        """
        due = {each[0]: each for each in expected if isinstance(each, tuple)}
        if not any(isinstance(each, tuple) for each in raised):
            others = [each for each in expected if not isinstance(each, tuple)]
            return expected if others == raised else raised
        return [
            due[each[0]] if isinstance(each, tuple) and self._is_right(due, each) else each
            for each in raised
        ]

    def _is_right(self, due: Mapping[object, tuple[int, ...]], got: tuple[int, ...]) -> bool:
        """Whether a queue pair has right attributes, behind the ID of its connection.

        It may serve more READs than its peer has outstanding, and may have fewer outstanding than
        its peer serves.
        """
        right, connections = due.get(got[0], ()), self._manager.connections
        connection = next((each for each in connections if each.local_id == got[0]), None)
        if connection is None or not isinstance(connection.reply, cm.REP):
            return False
        other = connection.reply if connection.is_active else connection.request
        assert isinstance(other, cm.REQ | cm.REP)
        for name, one, seen in zip(("id", *RECEIVING, *SENDING), right, got, strict=False):
            is_more = name == "max_dest_rd_atomic" and seen > one
            is_less = name == "max_rd_atomic" and seen <= other.responder_resources
            if not (one == seen or is_more or is_less):
                return False
        return len(right) == len(got)

    # Messages.

    def _frame(self, step: Packet | Pause) -> Frame:
        frame = super()._frame(step)
        self._received.append(frame)
        if isinstance(step, Mad):
            self._answered.append(step)
        attribute = step.fields.get(ATTRIBUTE) if isinstance(step, Mad) else None
        self._is_of_other = attribute == cm.CMAttribute.REQ
        is_of_version = isinstance(step, Mad) and step.fields.keys() == {_CLASS_VERSION}
        self._is_of_other_version = is_of_version and getattr(step, "message", "") == "REQ"
        if attribute == cm.CMAttribute.LAP or getattr(step, "message", "") == "LAP":
            self._note_offer(frame)
        return frame

    def _note_offer(self, frame: Frame) -> None:
        """Keep the numbers of a LAP for a connection that is established, or that is unknown."""
        received = message_in(frame)
        if received is None or not isinstance(lap := received.message, cm.LAP):
            return
        ids = lap.local_comm_id, lap.remote_comm_id
        known = [
            each for each in self._manager.connections if (each.remote_id, each.local_id) == ids
        ]
        offers = (*ids, received.transaction_id)
        if not known:
            self._unknown_offers.add(offers)
        if any(each.state is State.ESTABLISHED for each in known):
            self._offers.add(offers)

    def _without_unchecked(self, expected: list[Frame], got: list[Frame]) -> list[Frame]:
        return super()._without_unchecked(expected, self._without_open(expected, got))

    def _without_open(self, expected: list[Frame], got: list[Frame]) -> list[Frame]:
        """What the device sent, as if it had chosen what the reference has where it may choose."""
        if expected == got:
            return got
        if self._is_of_other_version and self._is_refused_for_version(expected, got):
            self.is_over = True
            return expected
        if any(self._refuses_reserved(each) for each in got if each not in expected):
            self.is_over = True
            return expected
        left = self._without_optional(expected, got)
        has_more = len(left) < len(got)
        if self._is_refused_otherwise(expected, left):
            self.is_over |= len(expected) > 1  # the connection that is stale goes on, perhaps
            return expected
        pairs = zip(expected, left, strict=False)
        same = [one if self._agree(one, other, has_more) else other for one, other in pairs]
        return [*same, *left[len(same) :]]

    def _agree(self, expected: Frame, got: Frame, has_more: bool) -> bool:
        """Whether two messages differ only in what each device chooses.

        has_more: whether the device has sent more, and its PSN is another one.
        """
        one, other = message_in(expected), message_in(got)
        if one is None or other is None or _headers(expected, has_more) != _headers(got, has_more):
            return False
        due, sent = one.message, other.message
        number = getattr(due, "local_comm_id", 0)
        if isinstance(due, cm.MRA) and isinstance(sent, cm.MRA):
            alike = sent.altered(service_timeout=due.service_timeout)
            if due != alike or one.transaction_id != other.transaction_id:
                return False
            for connection in self._manager.connections:
                if connection.local_id == number:
                    connection.extra_time = duration(sent.service_timeout)
            return True
        if isinstance(due, cm.DREQ) and due == sent:
            chosen = self._transactions.setdefault(number, other.transaction_id)
            return chosen == other.transaction_id
        if isinstance(due, cm.REJ) and isinstance(sent, cm.REJ):
            sent = self._without_suggestion(due, sent)
            return due == sent and one.transaction_id == other.transaction_id
        return has_more and one == other

    def _without_suggestion(self, due: cm.REJ, sent: cm.REJ) -> cm.REJ:
        """A REJ with the additional information that is due, if what it suggests is right.

        It may suggest nothing. Of a path MTU any will do: what the device can have is not known.
        """
        length = sent.reject_info_length
        suggested, rest = int.from_bytes(sent.ari[:length]), sent.ari[length:]
        is_right = not length and sent.reason in _SUGGESTING
        if sent.reason == cm.RejectReason.INVALID_PRIMARY_GID and length == _GID:
            is_right = suggested in self._manager.gids and not any(rest)
        elif sent.reason == cm.RejectReason.INVALID_MTU and length:
            is_right = suggested in MTU_BYTES and not any(rest)
        if not is_right:
            return sent
        return sent.altered(reject_info_length=due.reject_info_length, ari=due.ari)

    def _without_optional(self, expected: list[Frame], got: list[Frame]) -> list[Frame]:
        """What the device sent but for answers that need not be, each of which has a PSN of QP1."""
        left = [
            each
            for each in got
            if each in expected or not (self._answers_lap(each) or self._refuses_for_room(each))
        ]
        if len(left) < len(got):
            node = self.reference.node
            assert isinstance(node, ManagedDevice)
            sends = node.qp1.sends
            sends.psn = sends.una = sends.next_psn = sends.psn + len(got) - len(left) & MASK
        return left

    def _answers_lap(self, frame: Frame) -> bool:
        """Whether a message of the device is an APR, or an MRA, to the LAP of a connection; or an
        APR that says that there is no such connection.
        """
        answer = message_in(frame)
        if answer is None or not isinstance(answer.message, cm.APR | cm.MRA):
            return False
        said = answer.message
        if isinstance(said, cm.MRA) and said.message_mraed != cm.MessageMRAed.LAP:
            return False
        asked = said.remote_comm_id, said.local_comm_id, answer.transaction_id
        if isinstance(said, cm.APR) and said.ap_status == cm.APStatus.INVALID_COMM_ID:
            return asked in self._offers or asked in self._unknown_offers
        return asked in self._offers

    def _drops(self) -> int:
        """How many requests the reference has dropped, as it had no room for them."""
        return sum(map(self._manager.counters.__getitem__, _WITHOUT_ROOM))

    def _refuses_for_room(self, frame: Frame) -> bool:
        """Whether a message of the device refuses a REQ for which the reference had no room."""
        is_one = self._refused_by(frame, cm.RejectReason.NO_RESOURCES) is not None
        return is_one and self._drops() > self._dropped

    def _refuses_reserved(self, frame: Frame) -> bool:
        """Whether a message of the device refuses a REQ for a reserved value, with its reason."""
        answer = message_in(frame)
        if answer is None or not isinstance(answer.message, cm.REJ):
            return False
        refused = self._refused_by(frame, answer.message.reason)
        return refused is not None and answer.message.reason in _reserved(refused)

    def _refused_by(self, frame: Frame, reason: int) -> cm.REQ | None:
        """The REQ that a message of the device refuses for a reason and in no other respect wrong;
        `None` for anything else.
        """
        answer = message_in(frame)
        if answer is None or not isinstance(said := answer.message, cm.REJ):
            return None
        for each in self._messages():
            if isinstance(each.message, cm.REQ) and each.transaction_id == answer.transaction_id:
                due = refusal(each.message, cm.RejectReason.CONSUMER_DEFINED)
                due = due.altered(reason=reason)
                if self._without_suggestion(due, said) == due:
                    return each.message
        return None

    def _is_refused_for_version(self, expected: Sequence[Frame], got: Sequence[Frame]) -> bool:
        """Whether the only answer is a REJ for the class version, where none is due."""
        answer = message_in(got[0]) if len(got) == 1 and not expected else None
        if answer is None or not isinstance(said := answer.message, cm.REJ):
            return False
        is_its = said.remote_comm_id == self.reference.symbols["own.id"]
        return is_its and said.reason == cm.RejectReason.INVALID_CLASS_VERSION

    def _is_refused_otherwise(self, expected: Sequence[Frame], got: Sequence[Frame]) -> bool:
        """Whether a REQ is refused for another of several reasons."""
        refused = [message_in(each) for each in (*expected[-1:], *got[-1:])]
        messages = list(self._messages())
        if len(messages) != 1 or len(refused) != 2 or len(got) != 1:
            return False
        due, sent = refused
        asked = messages[0].message
        if due is None or sent is None or not isinstance(asked, cm.REQ):
            return False
        if not isinstance(due.message, cm.REJ) or not isinstance(sent.message, cm.REJ):
            return False
        alike = sent.message.altered(
            reason=due.message.reason,
            reject_info_length=due.message.reject_info_length,
            ari=due.message.ari,
        )
        if alike != due.message or due.transaction_id != sent.transaction_id:
            return False
        return sent.message.reason in self._reasons(asked) - {due.message.reason}

    def _reasons(self, request: cm.REQ) -> set[int]:
        """The reasons for which a REQ may be refused, if there are several."""
        manager = self._manager
        each = set(_reasons(request, manager.listeners, manager.gids)) | _reserved(request)
        sender = request.local_ca_guid, request.local_qpn
        if any((one.remote_guid, one.remote_qpn) == sender for one in manager.connections):
            each.add(int(cm.RejectReason.STALE_CONNECTION))
        if self._is_of_other:
            each |= set(map(int, cm.RejectReason)) - {int(cm.RejectReason.TIMEOUT)}
        return each if len(each) > 1 else set()

    def _messages(self) -> Sequence[Received]:
        """The messages that a step answers."""
        found = map(message_in, self._received)
        return [each for each in found if each is not None]


def _exit_of(connection: Managed) -> tuple[int, int, int]:
    """How the event begins that the TIMEWAIT of a connection is over."""
    return EVENT, int(EventKind.TIMEWAIT_EXIT), connection.local_id


def _is_about(message: Message, connection: Managed) -> bool:
    """Whether a message has an ID of a connection."""
    its = {getattr(message, name, None) for name in ("local_comm_id", "request_id")}
    number = getattr(message, "remote_comm_id", None)
    return connection.remote_id in its or number == connection.local_id


def _is_only_order(difference: Difference) -> bool:
    """Whether the same is sent at the same times: at one time the connections have no order."""
    if difference.kind is not Kind.ANSWER:
        return False
    sides = zip((difference.expected, difference.got), difference.times, strict=True)
    expected, got = (
        sorted(
            (time, _headers(frame, but_psn=True), frame[-MAD_SIZE - ICRC : -ICRC])
            for frame, time in zip(*side, strict=False)
            if isinstance(frame, bytes)
        )
        for side in sides
    )
    return expected == got


def _headers(frame: Frame, but_psn: bool) -> bytes:
    """What is before the MAD in a frame."""
    headers = frame[: -MAD_SIZE - ICRC]
    return headers[:-_PSN] + headers[-_PSN + 3 :] if but_psn else headers


def _reasons(request: cm.REQ, services: Container[int], gids: Sequence[int]) -> Iterator[int]:
    """Each reason for which a REQ may be refused: what it is refused for is mended each time."""
    while (refused := automatic_refusal(request, services, gids)) is not None:
        assert isinstance(refused, cm.REJ)
        yield refused.reason
        match refused.reason:
            case cm.RejectReason.INVALID_SERVICE_ID:
                services = (request.service_id,)
            case cm.RejectReason.INVALID_TRANSPORT_TYPE:
                request = request.altered(transport_service_type=cm.TransportType.RC)
            case cm.RejectReason.INVALID_MTU:
                request = request.altered(path_packet_payload_mtu=min(MTU_BYTES))
            case _:
                request = request.altered(primary_remote_gid=gids[0])


def _reserved(request: cm.REQ) -> set[int]:
    """The reasons for which a REQ may be refused that has reserved values in its fields."""
    return {int(reason) for name, reason in _OF_RATES if getattr(request, name) not in _RATES}


_RATES = (0, *range(2, 23))
"""Packet rates that are not reserved; 0 is what requests over RoCE have."""

_OF_RATES = (
    ("primary_packet_rate", cm.RejectReason.INVALID_PRIMARY_PACKET_RATE),
    ("alternate_packet_rate", cm.RejectReason.INVALID_ALTERNATE_PACKET_RATE),
)
"""Fields with values that are reserved, and the reason that a REJ has for them."""

_WITHOUT_ROOM = ("backlog_full", "connections_full", "events_full")
"""What a manager counts where it drops a request for which it has no room."""

ICRC = 4
_PSN = h.DETH.SIZE + 3
"""Where the PSN begins, from the MAD back."""

_GID = 16
"""Bytes of a GID."""

_SUGGESTING = (
    *range(cm.RejectReason.INVALID_PRIMARY_GID, cm.RejectReason.PORT_AND_CM_REDIRECT),
    cm.RejectReason.INVALID_MTU,
)
"""Reasons of a REJ whose additional information, a value that would be accepted, is optional."""

_REQUESTS = ("REQ", "SIDR_REQ")
_OF_FRAMES = (Kind.ANSWER, Kind.TIME)
_CONNECTION = itemgetter(2)
"""The ID of the connection that an event is about."""

_CLASS_VERSION = "mad.class_version"
