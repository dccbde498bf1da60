"""What a story is made of: a connection as steady stretches and cases of trouble, in their order.

A *case* begins with the first sign of trouble in one half of a connection, a gap,
a NAK or something sent again, and ends when all that was in question is answered.
What lies between cases is a *stretch*. Both are found while packets go by, so that
what is kept grows with the trouble and not with the capture.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ibwire.base.histogram import Histogram
from ibwire.connections.connection import Connection
from ibwire.connections.events import FlowEvent, FlowEventKind, Message
from ibwire.connections.opcode_sets import ACKNOWLEDGE, ANSWERED, READ, RESPONSES, STARTS, VERB
from ibwire.connections.packets import TransportPacket
from ibwire.connections.states import PacketStatus
from ibwire.connections.tracker import SILENCE_NS, RequestTracker
from ibwire_layers.opcodes import Service
from ibwire_layers.psn import HALF, MASK
from ibwire_layers.syndrome import AckKind, kind


class PacketTime(NamedTuple):
    """A packet, and when it was seen."""

    number: int
    time_ns: int


@dataclass(slots=True)
class Clue:
    """What the capture had shown when a NAK came, or when requests were sent again."""

    sent: TransportPacket | None
    """The last time that the PSN in question was seen here."""
    was_missing: bool
    """It had been passed over unseen."""
    answered: TransportPacket | None
    """The response that had answered it already."""
    idle_ns: int
    """Since anything was seen of this tracker."""
    ack_due: bool
    """A request that asks for an ACK was unanswered."""
    is_broken_off: bool
    """The last message had no end."""
    is_old: bool = False
    """Of a NAK: what was being sent again had not got beyond this PSN, so it is not about that."""
    acks: dict[int, int] = field(default_factory=dict)
    """What was acknowledged afterwards, how often, by PSN; the first `ACKS` PSNs."""


@dataclass(slots=True)
class Case:
    """Trouble with the requests of one end, from its first sign to the answer that ends it."""

    connection: int
    end: int
    """Who sends the requests."""
    first: PacketTime
    last: PacketTime
    until: int
    """The last PSN in question, unwrapped as in `RequestTracker`."""
    recovered: PacketTime | None = None
    """The response that answered it."""
    is_cut: bool = False
    """The requester began anew before it was over."""
    packets: int = 0
    answers_again: int = 0
    """Responses that were sent again."""
    messages: dict[tuple[int, str], int] = field(default_factory=dict)
    """Completed while it lasted, by requesting end and verb."""
    bytes: int = 0
    """Payload of the messages."""
    clues: dict[int, Clue] = field(default_factory=dict)
    """By the number of the NAK, or of the first packet sent again."""
    gaps: list[tuple[int, int]] = field(default_factory=list)
    """PSNs (24 bits) of requests that were passed over here, first and behind the last."""
    events: list[FlowEvent] = field(default_factory=list)
    """In order of time."""


@dataclass(slots=True)
class Stretch:
    """A time without trouble."""

    first: PacketTime
    last: PacketTime
    packets: int = 0
    requests: dict[tuple[int, str], int] = field(default_factory=dict)
    """Request packets by sender and verb."""
    messages: dict[tuple[int, str], int] = field(default_factory=dict)
    """Completed ones by requesting end and verb."""
    bytes: int = 0
    """Payload of the messages."""
    latency: Histogram = field(default_factory=Histogram)
    events: list[FlowEvent] = field(default_factory=list)
    """Small ones, that led to no case."""


@dataclass(slots=True)
class Record:
    """Everything that was noted of one connection."""

    connection: Connection
    line: list[Stretch | Case] = field(default_factory=list)
    """In the order of their first packets."""
    events: list[FlowEvent] = field(default_factory=list)
    """All, in order of time."""
    marks: list[FlowEvent] = field(default_factory=list)
    """Of them, those about congestion."""
    unanswered: list[Message] = field(default_factory=list)
    """The first `UNANSWERED` messages that were not acknowledged."""
    unanswered_count: int = 0
    last: PacketTime | None = None

    def cases(self) -> list[Case]:
        """The cases in order."""
        return [each for each in self.line if isinstance(each, Case)]


ACKS = 8
UNANSWERED = 8
SENT = 1024
"""Newest packets by PSN that are remembered: many times the 129 that rxe has outstanding."""


class Recorder:
    """An `Observer` that notes the stories of some connections."""

    def __init__(self, wanted: Container[int]) -> None:
        """wanted: numbers of connections."""
        self._wanted = wanted
        self._records: dict[int, Record] = {}
        self._watches: dict[tuple[int, int], _Watch] = {}
        self._events: dict[int, list[FlowEvent]] = {}
        self._messages: dict[int, list[Message]] = {}

    def records(self) -> list[Record]:
        """What was noted, by connection; call it when the analysis is finished."""
        for number, record in sorted(self._records.items()):
            events = self._events.get(number, [])
            events.sort(key=lambda event: (event.time_ns, event.number))
            record.events = events
            _assign(record)
        return [record for _, record in sorted(self._records.items())]

    # What an observer is told.

    def request(
        self, tracker: RequestTracker, packet: TransportPacket, status: PacketStatus
    ) -> None:
        """A request, before the tracker moves on."""
        if tracker.connection.number in self._wanted:
            self._watch(tracker).request(tracker, packet, status)

    def response(
        self, tracker: RequestTracker, packet: TransportPacket, status: PacketStatus
    ) -> None:
        """A response, before the tracker moves on."""
        if tracker.connection.number in self._wanted:
            self._watch(tracker).response(tracker, packet, status)

    def other(self, connection: Connection, direction: int, packet: TransportPacket) -> None:
        """A CNP, a datagram, or a packet with a wrong ICRC."""
        if connection.number in self._wanted:
            self.count(connection, direction, packet)

    def event(self, event: FlowEvent) -> None:
        """Something happened."""
        if event.connection in self._wanted:
            self._events.setdefault(event.connection, []).append(event)
            if event.kind is FlowEventKind.RESTART:
                # PSNs are no longer comparable.
                watch = self._watches.pop((event.connection, event.direction), None)
                if watch is not None and watch.case is not None:
                    watch.case.is_cut = True

    def message(self, message: Message) -> None:
        """A message is complete, or given up."""
        record = self._records.get(message.connection)
        if record is None:
            return
        if not message.acked_number and record.connection.is_reliable:
            record.unanswered_count += 1
            if len(record.unanswered) < UNANSWERED:
                record.unanswered.append(message)
            return
        if not record.line or not message.acked_number:
            return
        part = record.line[-1]
        key = message.direction, message.verb
        part.messages[key] = part.messages.get(key, 0) + 1
        part.bytes += message.size
        if (
            isinstance(part, Stretch)
            and not message.retransmitted_packets
            and record.connection.is_reliable
        ):
            part.latency.add_one(message.acked_ns - message.first_ns)

    # What is made of it.

    def _watch(self, tracker: RequestTracker) -> _Watch:
        key = tracker.connection.number, tracker.end
        if key not in self._watches:
            self._watches[key] = _Watch(self, tracker.end)
        return self._watches[key]

    def record_of(self, connection: Connection) -> Record:
        """The notes on a connection."""
        if connection.number not in self._records:
            self._records[connection.number] = Record(connection)
        return self._records[connection.number]

    def count(self, connection: Connection, direction: int, packet: TransportPacket) -> None:
        """One more packet: part of the case that is open, or of a stretch."""
        record = self.record_of(connection)
        here = record.last = PacketTime(packet.number, packet.time_ns)
        cases = [
            watch.case
            for end in (0, 1)
            if (watch := self._watches.get((connection.number, end))) and watch.case
        ]
        for case in cases:
            case.packets += 1
        if not cases:
            if not record.line or isinstance(record.line[-1], Case):
                record.line.append(Stretch(here, here))
            stretch = record.line[-1]
            assert isinstance(stretch, Stretch)
            stretch.last = here
            stretch.packets += 1
            if packet.opcode in VERB and packet.opcode not in RESPONSES:
                key = direction, VERB[packet.opcode]
                stretch.requests[key] = stretch.requests.get(key, 0) + 1
                if connection.service is Service.UD:
                    stretch.bytes += packet.size
                    stretch.messages[key] = stretch.messages.get(key, 0) + 1


class _Watch:
    """Finds the cases of one tracker."""

    def __init__(self, recorder: Recorder, end: int) -> None:
        self._recorder = recorder
        self._end = end
        self.case: Case | None = None
        self._clue: Clue | None = None
        """Of what was sent again last, also of a case that is over."""
        self._sent: dict[int, TransportPacket] = {}
        self._answers: dict[int, TransportPacket] = {}
        self._answer: PacketTime | None = None
        """What would end the case, were it not for what is being sent again."""
        self._resent_number = 0
        """Of the packet that began what was sent again last."""
        self._refused_psn: int | None = None
        """Of a sequence NAK or RNR NAK that has not been obeyed yet."""
        self._extended = False
        """The case waits for the first packet that its message had lacked."""
        self._asked = -1
        """Highest PSN of a request that asks for an ACK."""

    def request(
        self, tracker: RequestTracker, packet: TransportPacket, status: PacketStatus
    ) -> None:
        assert tracker.next is not None
        psn = _unwrap(packet.psn, tracker.next)
        here = PacketTime(packet.number, packet.time_ns)
        if tracker.connection.is_reliable:
            if status is PacketStatus.AFTER_GAP:
                case = self._open(tracker, here, psn - 1)
                case.gaps.append((tracker.next & MASK, psn & MASK))
            elif status is PacketStatus.RETRANSMITTED:
                self._resent(tracker, psn, packet)
            elif status is PacketStatus.NEW and self.case is not None:
                self._went_on(tracker, psn, packet)
        self._recorder.count(tracker.connection, self._end, packet)
        if self.case is not None:
            self.case.last = here
        if status is not PacketStatus.DUPLICATE:
            _keep(self._sent, psn, packet)
        if packet.ack_req or packet.opcode in READ:
            self._asked = max(self._asked, psn)

    def _went_on(self, tracker: RequestTracker, psn: int, packet: TransportPacket) -> None:
        """A new request while a case is open."""
        assert self.case is not None
        clue = self._clue
        if self._answer is not None:
            self._close(self._answer)
        elif not tracker.connection.is_paired and not tracker.unseen.requests:
            self._close(PacketTime(packet.number, packet.time_ns))
        elif (
            clue is not None
            and clue.is_broken_off
            and not clue.ack_due
            and clue.idle_ns >= SILENCE_NS
            and psn == self.case.until + 1
            and packet.opcode not in STARTS
            and not self._extended
        ):
            # The rest of a message that had broken off is what was lost, its first packet
            # at least; a long message is not followed to its end.
            self.case.until = psn
            self._extended = True

    def _resent(self, tracker: RequestTracker, psn: int, packet: TransportPacket) -> None:
        case = self._open(tracker, PacketTime(packet.number, packet.time_ns), psn)
        assert tracker.next is not None
        case.until = max(case.until, tracker.next - 1)  # all that is under way goes again, or may
        self._answer = self._refused_psn = None
        begins = not tracker.is_retransmitting or psn < tracker.retransmission_end
        if begins or any(refusal.psn == psn for refusal in tracker.refusals):
            self._resent_number = packet.number
            self._clue = case.clues[packet.number] = Clue(
                self._sent.get(psn),
                any(gap.first <= psn < gap.end for gap in tracker.unseen.requests),
                self._answer_to(tracker, psn, packet),
                packet.time_ns - tracker.last_ns,
                self._asked > tracker.acked,
                bool(tracker.messages) and not tracker.messages[-1].is_whole,
            )

    def _answer_to(
        self, tracker: RequestTracker, psn: int, packet: TransportPacket
    ) -> TransportPacket | None:
        """The response seen here that had answered this request."""
        if packet.opcode in ANSWERED:
            return self._answers.get(psn)
        found = [each for each in self._answers if psn <= each <= tracker.acked]
        return self._answers[min(found)] if found else None

    def response(
        self, tracker: RequestTracker, packet: TransportPacket, status: PacketStatus
    ) -> None:
        here = PacketTime(packet.number, packet.time_ns)
        psn = packet.psn if tracker.next is None else _unwrap(packet.psn, tracker.next)
        refuses = packet.opcode in ACKNOWLEDGE and kind(packet.syndrome) is not AckKind.ACK
        if refuses and status is not PacketStatus.DUPLICATE:
            self._refused(tracker, psn, packet)
        elif status is PacketStatus.AFTER_GAP:
            self._open(tracker, here, psn)
        self._recorder.count(tracker.connection, 1 - self._end, packet)
        case = self.case
        if case is not None:
            case.last = here
            case.answers_again += status is PacketStatus.RETRANSMITTED
        if refuses or (
            status in (PacketStatus.DUPLICATE, PacketStatus.UNKNOWN) and tracker.next is not None
        ):
            return
        if self._clue is not None and packet.opcode in ACKNOWLEDGE:
            acks = self._clue.acks
            if psn in acks or len(acks) < ACKS:
                acks[psn] = acks.get(psn, 0) + 1
        if (
            case is not None
            and status is not PacketStatus.AFTER_GAP
            and self._is_over(tracker, case, psn)
        ):
            if tracker.is_retransmitting and tracker.retransmission_end <= case.until:
                self._answer = here  # what goes on is being sent again, unless a new request comes
            else:
                self._close(here)
        _keep(self._answers, psn, packet)

    def _refused(self, tracker: RequestTracker, psn: int, packet: TransportPacket) -> None:
        here = PacketTime(packet.number, packet.time_ns)
        case = self._open(tracker, here, psn)
        case.until = max(case.until, psn)
        sent = self._sent.get(psn)
        was_missing = any(gap.first <= psn < gap.end for gap in tracker.unseen.requests)
        if sent is not None and not tracker.is_retransmitting and tracker.retransmission_end == psn:
            # What was sent again stopped short of this PSN, and new requests followed.
            was_missing |= sent.number < self._resent_number
        case.clues[packet.number] = Clue(
            sent,
            was_missing,
            None,
            packet.time_ns - tracker.last_ns,
            True,
            False,
            tracker.is_retransmitting and tracker.retransmission_end <= psn + 1,
        )
        self._refused_psn = psn

    def _is_over(self, tracker: RequestTracker, case: Case, psn: int) -> bool:
        """Whether a response with this PSN leaves nothing of the case unanswered."""
        if psn < case.until:
            return False
        if self._refused_psn is not None and tracker.next is not None and psn + 1 < tracker.next:
            return False
        for gap in tracker.unseen.responses:
            if gap.first <= case.until and (gap.first, gap.end) != (psn, psn + 1):
                return False
        for read in tracker.reads:
            if read.first <= case.until and read.next_response <= read.last and read.last != psn:
                return False
        return True

    def _open(self, tracker: RequestTracker, here: PacketTime, until: int) -> Case:
        if self.case is None:
            self.case = Case(tracker.connection.number, self._end, here, here, until)
            self._recorder.record_of(tracker.connection).line.append(self.case)
            self._clue = None
        self.case.until = max(self.case.until, until)
        return self.case

    def _close(self, here: PacketTime) -> None:
        assert self.case is not None
        self.case.recovered = here
        self.case.last = max(self.case.last, here)
        self.case = self._answer = self._refused_psn = None
        self._extended = False


def _unwrap(psn: int, near: int) -> int:
    return near + (psn - near + HALF & MASK) - HALF


def _keep(packets: dict[int, TransportPacket], psn: int, packet: TransportPacket) -> None:
    packets.pop(psn, None)
    packets[psn] = packet
    if len(packets) > SENT:
        del packets[next(iter(packets))]


def _assign(record: Record) -> None:
    """Give every event to the case that it belongs to, or to the stretch that it lies in."""
    by_end = [[case for case in record.cases() if case.end == end] for end in (0, 1)]
    waiting = []
    for event in record.events:
        if event.kind in (FlowEventKind.ECN_CE, FlowEventKind.CNP):
            record.marks.append(event)
            continue
        found = None
        for end in _ends_of(event):
            found = found or _case_of(by_end[end], event)
        if found is None:
            waiting.append(event)
        else:
            found.events.append(event)
    for event in waiting:
        for end in _ends_of(event):
            case = _next(by_end[end], event.number)
            if case is not None and event.kind in _FORETELL and _repairs(case, event):
                case.events.append(event)
                break
        else:
            record.line[_before(record.line, event.number)].events.append(event)
    for case in record.cases():
        case.events.sort(key=lambda event: (event.time_ns, event.number))


_FORETELL = FlowEventKind.LOST, FlowEventKind.ICRC_BAD
"""What may come before the first sign of the trouble that it makes."""


def _before(line: Sequence[Stretch | Case], number: int) -> int:
    """Index of the last that began before a packet, or with it."""
    return max(bisect_right(line, number, key=lambda each: each.first.number) - 1, 0)


def _case_of(cases: Sequence[Case], event: FlowEvent) -> Case | None:
    """The case of one half that an event belongs to."""
    if not cases:
        return None
    case = cases[_before(cases, event.number)]
    if case.first.number <= event.number <= case.last.number:
        return case
    if (
        event.kind is FlowEventKind.REORDERED
        and case.first.number < event.number
        and _lacked(case, event)
    ):
        return case  # what was sent again was faster than what had been overtaken
    return None


def _next(cases: Sequence[Case], number: int) -> Case | None:
    """The first case that begins behind a packet."""
    at = bisect_right(cases, number, key=lambda case: case.first.number)
    return cases[at] if at < len(cases) else None


def _repairs(case: Case, event: FlowEvent) -> bool:
    """Whether something is sent again in a case that was lost or damaged before."""
    return any(
        event.psn - each.psn & MASK <= (each.last_psn - each.psn & MASK)
        for each in case.events
        if each.kind is FlowEventKind.RETRANSMISSION
    )


def _ends_of(event: FlowEvent) -> tuple[int, ...]:
    """Whose requests an event may be about."""
    if event.kind is FlowEventKind.LOST:
        return 0, 1
    if event.kind in (
        FlowEventKind.REORDERED,
        FlowEventKind.DUPLICATE,
        FlowEventKind.ICRC_BAD,
    ):
        return (1 - event.direction if event.opcode in RESPONSES else event.direction,)
    return (event.direction,)


def _lacked(case: Case, event: FlowEvent) -> bool:
    """Whether a late request had been passed over when a case began."""
    if event.direction != case.end:
        return False
    return any(event.psn - first & MASK < (end - first & MASK) for first, end in case.gaps)
