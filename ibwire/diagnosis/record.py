"""A connection as stretches without problems and incidents, in their order.

An *incident* begins with the first sign of a problem in one half of a connection,
a gap, a NAK or a retransmission, and ends when all affected requests are answered.
A *stretch* lies between incidents. Both are found while packets are read, so that
memory grows with the number of incidents and not with the capture.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ibwire.base.histogram import Histogram
from ibwire.base.membership import are_among
from ibwire.connections.connection import Connection
from ibwire.connections.events import FlowEvent, FlowEventKind, Message
from ibwire.connections.newest import NewestPackets
from ibwire.connections.opcode_sets import ACKNOWLEDGE, ANSWERED, READ, RESPONSES, STARTS, VERB
from ibwire.connections.packets import Rows, TransportPacket
from ibwire.connections.retransmissions import PAUSE_NS, SILENCE_NS
from ibwire.connections.runs import CompletedMessages, Exchange, Run
from ibwire.connections.states import PacketStatus, ResponderState
from ibwire.connections.tracker import RequestTracker
from ibwire_layers.opcodes import Service
from ibwire_layers.psn import HALF, MASK
from ibwire_layers.syndrome import AckKind, kind


class PacketTime(NamedTuple):
    """A packet, and when it was seen."""

    number: int
    time_ns: int


@dataclass(slots=True)
class Clue:
    """What the capture had shown at a NAK, or at a retransmission."""

    sent: TransportPacket | None
    """The last packet with this PSN that was seen here."""
    was_missing: bool
    """The PSN had been left out here."""
    answered: TransportPacket | None
    """The response that had answered it already."""
    idle_ns: int
    """Since the last packet of this tracker."""
    ack_due: bool
    """A request that asks for an ACK was unanswered."""
    is_broken_off: bool
    """The last message had no last packet."""
    is_old: bool = False
    """Of a NAK: the retransmission had not passed this PSN, so the NAK was not caused by it."""
    was_late: bool = False
    """Of a NAK: the packet that it asks for was sent once, and passed here after later ones."""
    was_before_older: bool = False
    """Of a NAK: an older packet passed here after the one that it asks for."""
    was_busy: bool = False
    """Of a NAK: its sender sent responses of READs after the packet that it asks for passed here,
    so the NAK may have waited. Of a retransmission: such responses passed after its request."""
    acks: dict[int, int] = field(default_factory=dict)
    """How often each PSN was acknowledged afterwards; the first `ACKS` PSNs."""
    resumes_read: bool = False
    """The retransmission begins inside a READ: the requester has the responses before that."""
    response_before: TransportPacket | None = None
    """Of a retransmission: the response seen here with the PSN before it."""

    @property
    def begins_after_response(self) -> TransportPacket | None:
        """The last response of a READ before those that are requested for the first time."""
        is_first = self.resumes_read and self.sent is None
        return self.response_before if is_first else None


@dataclass(slots=True)
class Incident:
    """A problem with the requests of one end, from its first sign to the response that ends it."""

    connection: int
    end: int
    """The end that sends the requests."""
    first: PacketTime
    last: PacketTime
    until: int
    """The last affected PSN, unwrapped as in `RequestTracker`."""
    recovered: PacketTime | None = None
    """The response that ended it."""
    is_cut: bool = False
    """The requester restarted before it was over."""
    packets: int = 0
    responses_again: int = 0
    """Responses that were retransmitted."""
    messages: dict[tuple[int, str], int] = field(default_factory=dict)
    """Completed while it lasted, by requesting end and verb."""
    bytes: int = 0
    """Payload of the messages."""
    clues: dict[int, Clue] = field(default_factory=dict)
    """By the number of the NAK, or of the first retransmitted packet."""
    gaps: list[tuple[int, int]] = field(default_factory=list)
    """PSNs (24 bits) of requests that were left out here: the first, and the one after the last."""
    events: list[FlowEvent] = field(default_factory=list)
    """In order of time."""
    changed: tuple[TransportPacket, TransportPacket] | None = None
    """The first SEND or WRITE that was retransmitted with another opcode: before and after."""


@dataclass(slots=True)
class Stretch:
    """A time without problems."""

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
    """Events that led to no incident."""


@dataclass(slots=True)
class Record:
    """Everything that was recorded about one connection."""

    connection: Connection
    line: list[Stretch | Incident] = field(default_factory=list)
    """In the order of their first packets."""
    events: list[FlowEvent] = field(default_factory=list)
    """All, in order of time."""
    marks: list[FlowEvent] = field(default_factory=list)
    """The events about congestion."""
    last: PacketTime | None = None

    def incidents(self) -> list[Incident]:
        """The incidents in order."""
        return [each for each in self.line if isinstance(each, Incident)]


ACKS = 8
SENT = 1024
"""Number of newest packets that are kept by PSN: many times the 129 that rxe has outstanding."""


class Recorder:
    """An `Observer` that records some connections for their stories."""

    def __init__(self, wanted: Container[int]) -> None:
        """wanted: numbers of connections."""
        self._wanted = wanted
        self._records: dict[int, Record] = {}
        self._watches: dict[tuple[int, int], _Watch] = {}
        self._events: dict[int, list[FlowEvent]] = {}
        self._messages: dict[int, list[Message]] = {}

    def records(self, connections: Iterable[Connection] = ()) -> list[Record]:
        """The records by connection; call it when the analysis is finished.

        connections: what the analysis has found. Those without packets, of which only
        connection managers speak, have a record as well.
        """
        for connection in connections:
            if connection.number in self._wanted and not connection.has_packets:
                self.record_of(connection)
        for watch in self._watches.values():
            watch.finish()
        for number, record in sorted(self._records.items()):
            events = self._events.get(number, [])
            events.sort(key=lambda event: (event.time_ns, event.number))
            record.events = events
            _assign(record)
        return [record for _, record in sorted(self._records.items())]

    # As an observer.

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

    def wants(self, connection: int) -> bool:
        """Whether a connection is recorded, by its number."""
        return connection in self._wanted

    def takes(self, run: Run) -> int:
        """All packets of a run outside of incidents."""
        number = run.connection.number
        return 0 if number in self._wanted and self._incidents(number) else len(run)

    def run(self, run: Run) -> None:
        """Regular packets of a stretch, before they change the trackers."""
        if run.connection.number not in self._wanted:
            return
        for exchange in run.exchanges:
            if len(exchange.requests) or len(exchange.responses):
                self._watch(exchange.tracker).run(exchange, run.rows)
        self._count_many(run)

    def completed(self, messages: CompletedMessages) -> None:
        """Messages that began and ended in a run."""
        if messages.connection.number not in self._wanted:
            return
        record = self._records[messages.connection.number]
        stretch = record.line[-1]
        assert isinstance(stretch, Stretch)
        for verb, count in _by_verb(messages.opcode):
            key = messages.direction, verb
            stretch.messages[key] = stretch.messages.get(key, 0) + count
        stretch.bytes += int(messages.size.sum(dtype=np.int64))
        if record.connection.is_reliable:
            stretch.latency.add(messages.acked_ns - messages.first_ns)

    def event(self, event: FlowEvent) -> None:
        """Something happened."""
        if event.connection in self._wanted:
            self._events.setdefault(event.connection, []).append(event)
            if event.kind is FlowEventKind.RESTART:
                # PSNs are no longer comparable.
                watch = self._watches.pop((event.connection, event.direction), None)
                if watch is not None and watch.incident is not None:
                    watch.incident.is_cut = True

    def message(self, message: Message) -> None:
        """A message is complete, or was abandoned."""
        record = self._records.get(message.connection)
        if record is None:
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
            and message.acked_ns >= message.first_ns
        ):
            part.latency.add_one(message.acked_ns - message.first_ns)

    # Records.

    def _watch(self, tracker: RequestTracker) -> _Watch:
        key = tracker.connection.number, tracker.end
        if key not in self._watches:
            self._watches[key] = _Watch(self, tracker)
        return self._watches[key]

    def record_of(self, connection: Connection) -> Record:
        """The record of a connection."""
        if connection.number not in self._records:
            self._records[connection.number] = Record(connection)
        return self._records[connection.number]

    def count(self, connection: Connection, direction: int, packet: TransportPacket) -> None:
        """Count a packet: in the open incidents, or in a stretch."""
        record = self.record_of(connection)
        here = record.last = PacketTime(packet.number, packet.time_ns)
        incidents = self._incidents(connection.number)
        for incident in incidents:
            incident.packets += 1
        if not incidents:
            stretch = _stretch(record, here)
            stretch.last = here
            stretch.packets += 1
            if packet.opcode in VERB and packet.opcode not in RESPONSES:
                key = direction, VERB[packet.opcode]
                stretch.requests[key] = stretch.requests.get(key, 0) + 1
                if connection.service is Service.UD and not packet.damaged:
                    stretch.bytes += packet.size
                    stretch.messages[key] = stretch.messages.get(key, 0) + 1

    def _count_many(self, run: Run) -> None:
        """Count the packets of a run, of which none belongs to an incident."""
        record, rows = self.record_of(run.connection), run.rows
        first, last = (PacketTime(int(rows.number[i]), int(rows.time_ns[i])) for i in (0, -1))
        record.last = last
        stretch = _stretch(record, first)
        stretch.last = last
        stretch.packets += len(rows)
        is_request = _IS_REQUEST[rows.opcode]
        for direction in (0, 1):
            opcode = rows.opcode[is_request & (run.direction == direction)]
            for verb, count in _by_verb(opcode):
                key = direction, verb
                stretch.requests[key] = stretch.requests.get(key, 0) + count
                if run.connection.service is Service.UD:
                    stretch.messages[key] = stretch.messages.get(key, 0) + count
        if run.connection.service is Service.UD:
            stretch.bytes += int(rows.size[is_request].sum(dtype=np.int64))

    def _incidents(self, connection: int) -> list[Incident]:
        """The open incidents of a connection."""
        return [
            watch.incident
            for end in (0, 1)
            if (watch := self._watches.get((connection, end))) and watch.incident
        ]


def _stretch(record: Record, here: PacketTime) -> Stretch:
    """The stretch that a packet outside of incidents belongs to."""
    if not record.line or isinstance(record.line[-1], Incident):
        record.line.append(Stretch(here, here))
    stretch = record.line[-1]
    assert isinstance(stretch, Stretch)
    return stretch


def _by_verb(opcode: npt.NDArray[np.uint8]) -> Iterator[tuple[str, int]]:
    """How many packets there are of each opcode, with its verb."""
    counts = np.bincount(opcode, minlength=256)
    for each in np.flatnonzero(counts).tolist():
        yield VERB[each], int(counts[each])


def _table(opcodes: Iterable[int]) -> npt.NDArray[np.bool_]:
    table = np.zeros(256, np.bool_)
    table[list(opcodes)] = True
    return table


_IS_REQUEST = _table(VERB.keys() - RESPONSES)
_IS_READ, _IS_ACKNOWLEDGE = _table(READ), _table(ACKNOWLEDGE)


class _Watch:
    """Finds the incidents of one tracker."""

    def __init__(self, recorder: Recorder, tracker: RequestTracker) -> None:
        self._recorder = recorder
        self._tracker = tracker
        self._end = tracker.end
        self.incident: Incident | None = None
        self._clue: Clue | None = None
        """Of the last retransmission, also of an incident that is over."""
        self._sent = NewestPackets(SENT)
        self._answers = NewestPackets(SENT)
        self._answer: PacketTime | None = None
        """The response that ends the incident unless the retransmission goes on."""
        self._resent_number = 0
        """The packet that began the last retransmission."""
        self._refused_psn: int | None = None
        """Of a sequence NAK or RNR NAK that has not been obeyed yet."""
        self._extended = False
        """The incident waits for the first missing packet of its message."""
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
                incident = self._open(tracker, here, psn - 1)
                incident.gaps.append((tracker.next & MASK, psn & MASK))
            elif status is PacketStatus.RETRANSMITTED:
                self._resent(tracker, psn, packet)
            elif status is PacketStatus.NEW and self.incident is not None:
                self._went_on(tracker, psn, packet)
        self._recorder.count(tracker.connection, self._end, packet)
        if self.incident is not None:
            self.incident.last = here
        if status is not PacketStatus.DUPLICATE:
            self._sent.put(psn, packet)
        if packet.ack_req or packet.opcode in READ:
            self._asked = max(self._asked, psn)

    def _went_on(self, tracker: RequestTracker, psn: int, packet: TransportPacket) -> None:
        """A new request while an incident is open."""
        assert self.incident is not None
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
            and psn == self.incident.until + 1
            and packet.opcode not in STARTS
            and not self._extended
        ):
            # The rest of a message that had broken off is what was lost, its first packet
            # at least; a long message is not followed to its end.
            self.incident.until = psn
            self._extended = True

    def _resent(self, tracker: RequestTracker, psn: int, packet: TransportPacket) -> None:
        incident = self._open(tracker, PacketTime(packet.number, packet.time_ns), psn)
        assert tracker.next is not None
        # All outstanding requests are retransmitted, or may be.
        incident.until = max(incident.until, tracker.next - 1)
        self._answer = self._refused_psn = None
        sent = self._sent.get(psn)
        is_changed = sent is not None and sent.opcode != packet.opcode
        if sent is not None and is_changed and not {sent.opcode, packet.opcode} & ANSWERED:
            incident.changed = incident.changed or (sent, packet)
        begins = not tracker.is_retransmitting or psn < tracker.retransmission_end
        begins |= packet.time_ns - tracker.last_ns > PAUSE_NS
        if begins or any(refusal.psn == psn for refusal in tracker.refusals):
            self._resent_number = packet.number
            self._clue = incident.clues[packet.number] = Clue(
                self._sent.get(psn),
                tracker.unseen.was_left_out(psn),
                self._answer_to(tracker, psn, packet),
                packet.time_ns - tracker.last_ns,
                self._asked > tracker.acked or bool(tracker.reads),
                bool(tracker.messages) and not tracker.messages[-1].is_whole,
                resumes_read=tracker.resumes_read(psn),
                was_busy=self._was_busy(psn, self._sent.get(psn)),
                response_before=self._answers.get(psn - 1),
            )

    def _was_busy(self, psn: int, sent: TransportPacket | None) -> bool:
        """Whether responses of earlier READs or atomics passed here after a request."""
        since = 0 if sent is None else sent.number
        return any(
            each < psn and answer.opcode not in ACKNOWLEDGE and answer.number > since
            for each, answer in self._answers.all().items()
        )

    def _answer_to(
        self, tracker: RequestTracker, psn: int, packet: TransportPacket
    ) -> TransportPacket | None:
        """The response seen here that had answered this request."""
        if packet.opcode in ANSWERED:
            return self._answers.get(psn)
        answers = self._answers.all()
        found = [each for each in answers if psn <= each <= tracker.acked]
        sent = self._sent.get(psn)
        newer = [each for each in found if sent and answers[each].number > sent.number]
        return answers[min(newer or found)] if found else None

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
        incident = self.incident
        if incident is not None:
            incident.last = here
            incident.responses_again += status is PacketStatus.RETRANSMITTED
        if refuses or (
            status in (PacketStatus.DUPLICATE, PacketStatus.UNKNOWN) and tracker.next is not None
        ):
            return
        if self._clue is not None and packet.opcode in ACKNOWLEDGE:
            acks = self._clue.acks
            if psn in acks or len(acks) < ACKS:
                acks[psn] = acks.get(psn, 0) + 1
        if (
            incident is not None
            and status is not PacketStatus.AFTER_GAP
            and self._is_over(tracker, incident, psn)
        ):
            if tracker.is_retransmitting and tracker.retransmission_end <= incident.until:
                self._answer = here  # a retransmission goes on, unless a new request comes
            else:
                self._close(here)
        self._answers.put(psn, packet)

    def run(self, exchange: Exchange, rows: Rows) -> None:
        """Regular requests and responses while no incident is open."""
        requests, answers = exchange.requests, exchange.answers
        self._sent.put_many(exchange.psn, rows, requests)
        asking = exchange.psn[rows.ack_req[requests] | _IS_READ[rows.opcode[requests]]]
        if len(asking):
            self._asked = max(self._asked, int(asking[-1]))
        self._answers.put_many(answers, rows, exchange.responses)
        if self._clue is not None:
            acks = self._clue.acks
            acknowledged = answers[_IS_ACKNOWLEDGE[rows.opcode[exchange.responses]]]
            known = are_among(acknowledged, list(acks))
            for psn in acknowledged[known].tolist():
                acks[psn] += 1
            for psn in acknowledged[~known][: max(0, ACKS - len(acks))].tolist():
                acks[psn] = 1

    def _refused(self, tracker: RequestTracker, psn: int, packet: TransportPacket) -> None:
        here = PacketTime(packet.number, packet.time_ns)
        incident = self._open(tracker, here, psn)
        incident.until = max(incident.until, psn)
        sent = self._sent.get(psn)
        was_missing = tracker.unseen.was_left_out(psn)
        if sent is not None and not tracker.is_retransmitting and tracker.retransmission_end == psn:
            # The retransmission ended before this PSN, and new requests followed.
            was_missing |= sent.number < self._resent_number
        incident.clues[packet.number] = Clue(
            sent,
            was_missing,
            None,
            packet.time_ns - tracker.last_ns,
            True,
            False,
            is_old=tracker.is_retransmitting and tracker.retransmission_end <= psn + 1,
            was_late=sent is not None
            and sent.number > self._resent_number
            and any(p > psn and each.number < sent.number for p, each in self._sent.all().items()),
            was_before_older=sent is not None
            and any(p < psn and each.number > sent.number for p, each in self._sent.all().items()),
            was_busy=self._was_busy(psn, sent),
        )
        self._refused_psn = psn
        if psn - 1 > tracker.acked:
            self._answers.put(psn - 1, packet)  # it acknowledges all before that

    def _is_over(self, tracker: RequestTracker, incident: Incident, psn: int) -> bool:
        """Whether a response with this PSN answers all affected requests."""
        if psn < incident.until:
            return False
        if self._refused_psn is not None and tracker.next is not None and psn + 1 < tracker.next:
            return False
        for gap in tracker.unseen.responses:
            if gap.first <= incident.until and (gap.first, gap.end) != (psn, psn + 1):
                return False
        for read in tracker.reads:
            if (
                read.first <= incident.until
                and read.next_response <= read.last
                and read.last != psn
            ):
                return False
        return True

    def _open(self, tracker: RequestTracker, here: PacketTime, until: int) -> Incident:
        if self.incident is None:
            self.incident = Incident(tracker.connection.number, self._end, here, here, until)
            self._recorder.record_of(tracker.connection).line.append(self.incident)
            self._clue = None
        self.incident.until = max(self.incident.until, until)
        return self.incident

    def finish(self) -> None:
        """The capture is over, and with it an incident whose requests are all answered."""
        if self.incident is None:
            return
        if self._answer is not None:
            self._close(self._answer)
        elif self._is_settled():
            self._close(self.incident.last)

    def _is_settled(self) -> bool:
        """Whether nothing was open when the capture ended."""
        connection = self._tracker.connection
        return (
            connection.is_paired
            and connection.endings[self._end].trouble is None
            and self._tracker.responder is not ResponderState.FAILED
        )

    def _close(self, here: PacketTime) -> None:
        assert self.incident is not None
        self.incident.recovered = here
        self.incident.last = max(self.incident.last, here)
        self.incident = self._answer = self._refused_psn = None
        self._extended = False


def _unwrap(psn: int, near: int) -> int:
    return near + (psn - near + HALF & MASK) - HALF


def _assign(record: Record) -> None:
    """Assign every event to its incident, or to the stretch that it lies in."""
    by_end = [
        [incident for incident in record.incidents() if incident.end == end] for end in (0, 1)
    ]
    waiting = []
    for event in record.events:
        if event.kind in (FlowEventKind.ECN_CE, FlowEventKind.CNP):
            record.marks.append(event)
            continue
        found = None
        for end in _ends_of(event):
            found = found or _incident_of(by_end[end], event)
        if found is None:
            waiting.append(event)
        else:
            found.events.append(event)
    for event in waiting:
        for end in _ends_of(event):
            incident = _next(by_end[end], event.number)
            if incident is not None and event.kind in _PRECEDE and _repairs(incident, event):
                incident.events.append(event)
                break
        else:
            record.line[_before(record.line, event.number)].events.append(event)
    for incident in record.incidents():
        incident.events.sort(key=lambda event: (event.time_ns, event.number))


_PRECEDE = FlowEventKind.LOST, FlowEventKind.ICRC_BAD
"""Events that may precede the first sign of the incident that they cause."""


def _before(line: Sequence[Stretch | Incident], number: int) -> int:
    """Index of the last part that began before a packet, or with it."""
    return max(bisect_right(line, number, key=lambda each: each.first.number) - 1, 0)


def _incident_of(incidents: Sequence[Incident], event: FlowEvent) -> Incident | None:
    """The incident of one half that an event belongs to."""
    if not incidents:
        return None
    incident = incidents[_before(incidents, event.number)]
    if incident.first.number <= event.number <= incident.last.number:
        return incident
    if (
        event.kind is FlowEventKind.REORDERED
        and incident.first.number < event.number
        and _lacked(incident, event)
    ):
        return incident  # the retransmission was faster than the reordered packet
    return None


def _next(incidents: Sequence[Incident], number: int) -> Incident | None:
    """The first incident that begins after a packet."""
    at = bisect_right(incidents, number, key=lambda incident: incident.first.number)
    return incidents[at] if at < len(incidents) else None


def _repairs(incident: Incident, event: FlowEvent) -> bool:
    """Whether an incident retransmits packets that were lost or damaged before it."""
    return any(
        event.psn - each.psn & MASK <= (each.last_psn - each.psn & MASK)
        for each in incident.events
        if each.kind is FlowEventKind.RETRANSMISSION
    )


def _ends_of(event: FlowEvent) -> tuple[int, ...]:
    """The ends whose requests an event may be about."""
    if event.kind is FlowEventKind.LOST:
        return (1 - event.direction if event.is_response else event.direction,)
    if event.kind in (
        FlowEventKind.REORDERED,
        FlowEventKind.DUPLICATE,
        FlowEventKind.REPEATED,
        FlowEventKind.ICRC_BAD,
    ):
        return (1 - event.direction if event.opcode in RESPONSES else event.direction,)
    return (event.direction,)


def _lacked(incident: Incident, event: FlowEvent) -> bool:
    """Whether a reordered request was missing when an incident began."""
    if event.direction != incident.end:
        return False
    return any(event.psn - first & MASK < (end - first & MASK) for first, end in incident.gaps)
