"""The verdict on a connection: what went wrong, what it cost, and how it ended.

How it ended is the status of the connection (`ibwire.connections.status`), which `flows` and SQL
show as well; the sentences here say the same in words. The causes are those of its incidents.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from ibwire.connections.cm_exchanges import CMExchange
from ibwire.connections.connection import Connection
from ibwire.connections.ending import Ending, Trouble
from ibwire.connections.events import FlowEventKind
from ibwire.connections.retransmissions import SILENCE_NS
from ibwire.connections.status import ConnectionStatus, Status
from ibwire.diagnosis.causes import OF_RESPONSES, Reason
from ibwire.diagnosis.incident_text import IncidentText, phrase
from ibwire.diagnosis.record import Record
from ibwire.diagnosis.wording import ONLY_OF_UC, count, duration, listed, sentence
from ibwire_layers.opcodes import Service

LETTERS = "A", "B"
"""Names of the two ends; A sent the first packet."""


class Case(NamedTuple):
    """What a verdict is about."""

    record: Record
    incidents: Sequence[IncidentText]

    @property
    def connection(self) -> Connection:
        """The connection."""
        return self.record.connection


def verdict(record: Record, incidents: Sequence[IncidentText]) -> str:
    """What went wrong, the most likely cause, and how it ended."""
    case = Case(record, incidents)
    status = case.connection.status
    if case.connection.exchange_status is not None:
        return " ".join(map(_of_exchange, case.connection.exchanges))
    parts = [
        *_failed(case, status),
        *_changed(case, status),
        *_causes(case),
        *_cost(case, status),
        *(_open(case) if status.status in OPEN else ()),
    ]
    return " ".join([*(parts or [_fine(case)]), *_in_flight(case, status), *_congested(record)])


OPEN = Status.UNRESOLVED, Status.UNANSWERED
"""Statuses with trouble that was open when the capture ended."""


def names(end: int) -> tuple[str, str]:
    """Requester and responder."""
    return LETTERS[end], LETTERS[1 - end]


def _of_exchange(exchange: CMExchange) -> str:
    """What became of a connection that exists in messages of connection managers only."""
    target = exchange.target()
    asked = f"A asked B for a connection{' to ' * bool(target)}{target}"
    times = f" {exchange.requests} times" if exchange.requests > 1 else ""
    if exchange.reason:
        hint = f": {exchange.hint}" if exchange.hint else ""
        reason = exchange.reason.replace("-", " ")
        return f"{asked}{times}. {LETTERS[exchange.rejected_by]} rejected it ({reason}){hint}."
    if not exchange.requests:
        return "The capture begins after the request for this connection."
    if not exchange.is_answered and not exchange.is_established:
        return (
            f"{asked}{times}, and no response is in the capture: no connection manager answers "
            "there, the path is broken, or only one direction was captured."
        )
    if exchange.is_established:
        return f"{asked}; it was established."
    if exchange.service is Service.UD:
        return f"{asked}; B named its queue pair."
    if exchange.counts["REP", 1]:
        return f"{asked}, and B accepted; the RTU that completes it is not in the capture."
    return f"{asked}, and B asked for more time; no response followed in the capture."


# The end of a connection that has failed.


def _failed(case: Case, status: ConnectionStatus) -> Iterator[str]:
    if not status.status.is_failure:
        return
    told = [each for incident in case.incidents for each in _end_of(case, incident)]
    if status.status in (Status.REFUSED, Status.CM_REJECTED) or not told:
        yield _FAILURES[status.status](case, status)
    else:
        yield from told


def _end_of(case: Case, described: IncidentText) -> Iterator[str]:
    """How an incident ended the connection, if it did."""
    requester, responder = described.names
    if described.change:
        yield _change_of(described)
    elif described.refusal:
        yield (
            f"{responder} refused {requester}'s request: {described.refusal}. That is "
            "an error of the programs, not of the network."
        )
        if described.look:
            yield f"Check {described.look}."
    elif described.given_up:
        yield f"{requester} gave up {described.given_up}."
        if not described.rnr_naks:
            yield _no_response(case, LETTERS.index(requester))


def _change_of(described: IncidentText) -> str:
    """A request that was retransmitted as another one."""
    requester, responder = described.names
    refused = f"{responder} refused {requester}'s request: {described.refusal}. "
    return (
        f"{refused * bool(described.refusal)}{described.change}. That is an error of "
        f"{requester}'s RDMA implementation, not of the programs or the network."
    )


def _changed(case: Case, status: ConnectionStatus) -> Iterator[str]:
    """Changed requests that did not end the connection."""
    if not status.status.is_failure:
        yield from (_change_of(described) for described in case.incidents if described.change)


def _no_response(case: Case, end: int) -> str:
    """Why no response came to the requests of an end."""
    requester, responder = names(end)
    if case.connection.directions[1 - end].packets:
        return (
            f"{responder} had responded before, then no more: it, its queue pair, or the "
            "path between them is gone."
        )
    if any(counts.resumed_reads for counts in case.connection.directions):
        return (
            f"No packet of {responder} was captured, although {requester} has responses of it: a "
            f"READ was retransmitted from its middle on. Only {requester}'s direction was captured."
        )
    if case.connection.ends[end].qpn is not None:  # no request names it
        return (
            f"A handshake in this capture names {responder}'s queue pair, but nothing was received "
            "from it here: it is not ready to receive, or gone, or RoCE packets are dropped after "
            f"this point; or only {requester}'s direction of them was captured."
        )
    return (
        f"Nothing was received from {responder} here: it, or its queue pair, does "
        "not exist, the QP number is wrong, or the path after this point is broken; "
        f"or only {requester}'s direction was captured."
    )


_FAILURES: dict[Status, Callable[[Case, ConnectionStatus], str]] = {
    Status.RETRY_EXCEEDED: lambda case, status: "A requester gave up: no response came.",
    Status.RNR_EXCEEDED: lambda case, status: (
        "A requester gave up: its receiver had no receive buffer."
    ),
    Status.REMOTE_ERROR: lambda case, status: (
        f"A NAK ended the connection ({status.detail}): an error of the programs, not of the "
        "network."
    ),
    Status.REFUSED: lambda case, status: (
        f"An ICMP message says that the packets do not reach their destination: {status.detail}. "
        f"{_ADVICE.get(status.detail, 'Check the addresses and the routes.')}"
    ),
    Status.CM_REJECTED: lambda case, status: (
        f"A connection manager rejected the connection: {status.detail}."
    ),
}
"""Sentences for a failure that no incident describes."""


_ADVICE: dict[str, str] = {
    "port unreachable": "That host takes no RoCEv2 (UDP port 4791): its RDMA device, or its "
    "software, is not active for this address.",
    "packet too big": "The path MTU of the connection is larger than the path allows: choose a "
    "smaller one.",
    "prohibited": "A firewall rejects them.",
}
"""What to do about an ICMP message."""


# Causes and costs.


def _causes(case: Case) -> Iterator[str]:
    for end in (0, 1):
        total: Counter[Reason] = Counter()
        for described in case.incidents:
            if described.incident.end != end:
                continue
            for cause in described.causes:
                # A needless retransmission is harmless once it is answered.
                if cause.name is not Reason.STALE_TIMER or described.incident.recovered is not None:
                    total[cause.name] += cause.count
        for why, number in sorted(total.items(), key=lambda item: list(Reason).index(item[0])):
            sender = 1 - end if why in OF_RESPONSES else end
            is_least = case.connection.may_miss_losses(sender) or bool(total[Reason.NOT_SEEN])
            text = phrase(
                why,
                number,
                names(end),
                verdict=True,
                is_least=is_least,
                is_most=case.connection.may_be_cut,
            )
            if text:
                yield sentence(text)


def _cost(case: Case, status: ConnectionStatus) -> Iterator[str]:
    retransmitted = sum(described.retransmitted for described in case.incidents)
    stalls = [
        described.stall_ns
        for described in case.incidents
        if described.stall_ns is not None and not described.is_harmless
    ]
    if not retransmitted or not stalls or status.status.is_failure:
        return
    text = f"{count(retransmitted, 'packet')} retransmitted and "
    if len(stalls) == 1:
        text += f"a stall of {duration(stalls[0])}"
    else:
        text += f"{duration(sum(stalls))} in {count(len(stalls), 'stall')}"
    if status.status in OPEN:
        yield f"So far it cost {text}."
    else:
        again = " each time" if len(stalls) > 1 else ""
        # The status `recovered` says so itself.
        rest = "" if status.status is Status.RECOVERED else f"; the connection recovered{again}"
        yield f"It cost {text}{rest}."


# The end of the capture.


def _open(case: Case) -> Iterator[str]:
    """What was open when the capture ended, or when a queue pair was reset."""
    for end, ending in enumerate(case.connection.endings):
        if ending.trouble is not None:
            yield f"Not resolved when the capture ends: {_state(case, end, ending)}."
            is_alone = not case.connection.directions[1 - end].packets
            if ending.trouble is Trouble.RETRANSMITTED and is_alone:
                yield _no_response(case, end)
    for end, counts in enumerate(case.connection.directions):
        if counts.cut_short:
            yield (
                f"{LETTERS[end]}'s queue pair was reset, or its number reused, before that was "
                "resolved."
            )


def _state(case: Case, end: int, ending: Ending) -> str:
    assert ending.trouble is not None
    r, s = names(end)
    text = _TROUBLES[ending.trouble].format(r=r, s=s)
    if ending.silence_ns >= SILENCE_NS:
        text += f", and nothing more is seen for {duration(ending.silence_ns)}"
    if ending.open_messages:
        text += f"; {_waiting(r, ending.open_messages)} not acknowledged"
    return text


_TROUBLES = {
    Trouble.NAK: "{s}'s NAK asks {r} to retransmit, and what it asks for is not acknowledged",
    Trouble.RNR: "{s} has no receive buffer, and {r} is to wait and retransmit",
    Trouble.RETRANSMITTED: "no response to what {r} has retransmitted",
    Trouble.REQUESTS_MISSING: "packets of {r} did not arrive here, and were not retransmitted",
    Trouble.REORDERED: "packets of {r} arrived out of order, and no response to them followed",
    Trouble.RESPONSES_MISSING: "responses of {s} are missing",
    Trouble.DAMAGED: "a packet arrived here damaged, and is not replaced yet",
    Trouble.SILENCE: "no response to {r}",
}
"""What is open, in words; `{r}` is the requester, `{s}` the responder."""


def _waiting(letter: str, number: int) -> str:
    return f"{count(number, 'message')} of {letter} {'is' if number == 1 else 'are'}"


def _in_flight(case: Case, status: ConnectionStatus) -> Iterator[str]:
    """Messages that were simply not answered yet."""
    if status.status in OPEN or status.status.is_failure:
        return
    waiting = [
        _waiting(LETTERS[end], ending.open_messages)
        for end, ending in enumerate(case.connection.endings)
        if ending.open_messages
    ]
    if waiting:
        yield f"{sentence(listed(waiting))} still in flight when the capture ends."


# Nothing that needed a retransmission.


def _fine(case: Case) -> str:
    connection, record = case.connection, case.record
    small = {event.kind for event in record.events}
    both = connection.directions
    if not connection.is_reliable:
        return _unacknowledged(case)
    if record.marks and not small - {FlowEventKind.ECN_CE, FlowEventKind.CNP}:
        if not any(each.messages for each in both):
            return "No request of this connection is in the capture, so there is nothing to judge."
        return "Nothing was lost or retransmitted."
    damaged = sum(each.damaged for each in both)
    if damaged:
        return (
            f"{count(damaged, 'packet')} arrived here damaged (wrong ICRC), which needed no "
            "retransmission: look at cables, transceivers and memory of the switches."
        )
    if FlowEventKind.LOST in small:
        number = sum(each.lost for each in both)
        return (
            f"Nothing was retransmitted. {count(number, 'packet')} did not arrive here, and the "
            "receivers miss nothing: the capture missed them, the network did not."
        )
    if FlowEventKind.DUPLICATE in small:
        number = sum(each.duplicates for each in both)
        return (
            f"Nothing was lost. {count(number, 'packet')} arrived twice: the network or the "
            "capture duplicates packets; the receivers drop the duplicates."
        )
    if FlowEventKind.REPEATED in small:
        number = sum(each.repeated for each in both)
        return (
            f"Nothing is missing. {count(number, 'packet')} arrived twice: duplicated by the "
            "network or by the capture, or retransmitted; the capture does not show which."
        )
    if FlowEventKind.REORDERED in small:
        number = sum(each.reordered for each in both)
        return f"Nothing was lost. {count(number, 'packet')} arrived out of order, without effect."
    completed = sum(each.completed for each in both)
    if any(ending.open_messages for ending in connection.endings):
        done = f": {count(completed, 'message')} acknowledged" if completed else ""
        return f"Nothing went wrong up to where the capture ends{done}."
    if not completed:
        return "No message is complete in this capture, so there is nothing to judge."
    each = "all " if completed > 1 else ""
    return f"Nothing went wrong: {count(completed, 'message')}, {each}acknowledged."


def _unacknowledged(case: Case) -> str:
    """The verdict for a service without acknowledgements."""
    connection = case.connection
    lost = sum(each.lost for each in connection.directions)
    damaged = sum(each.damaged for each in connection.directions)
    late = sum(each.reordered for each in connection.directions)
    if not connection.drops_late_packets:
        late = 0
    duplicates = sum(each.duplicates for each in connection.directions)
    if duplicates and not lost and not damaged and not late:
        return (
            f"{count(duplicates, 'packet')} arrived twice. This service does not recognise "
            "duplicates: if the network made them, not the capture, messages of one packet are "
            "delivered twice, and those of several packets may be lost."
        )
    if not lost and not damaged and not late:
        return (
            "Nothing went wrong as far as the capture shows: this service acknowledges "
            "nothing, so a loss after this point leaves no trace."
        )
    # IBA 9.8.2: a FIRST or ONLY is taken with whatever PSN it has.
    delivered = sum(
        each.count
        for each in case.record.events
        if late and each.kind is FlowEventKind.REORDERED and each.opcode in ONLY_OF_UC
    )
    late -= delivered
    parts = [f"{count(lost, 'packet')} did not arrive here"] if lost else []
    parts += [f"{count(damaged, 'packet')} arrived here damaged (wrong ICRC)"] if damaged else []
    parts += [f"{count(late, 'packet')} arrived here out of order"] if late else []
    said = []
    if parts:
        said.append(
            f"{listed(parts)}. This service neither acknowledges nor retransmits: the messages "
            "they belong to are lost."
        )
    if delivered:
        said.append(
            f"{count(delivered, 'message')} of one packet arrived here out of order, and this "
            "service delivers them in that order."
        )
    return " ".join(said)


def _congested(record: Record) -> Iterator[str]:
    connection = record.connection
    # By the direction that is congested.
    marks, cnps, earlier = [0, 0], [0, 0], [0, 0]
    for each in sorted(record.marks, key=lambda event: event.number):
        if each.kind is FlowEventKind.ECN_CE:
            marks[each.direction] += 1
        elif each.kind is FlowEventKind.CNP:
            congested = 1 - each.direction
            (cnps if marks[congested] else earlier)[congested] += 1
    marked = [end for end in (0, 1) if marks[end]]
    if len({cnps[end] > 0 for end in marked}) > 1:
        parts = (
            f"{count(marks[end], 'packet')} {_WAYS[end]} with CE marks"
            f"{_answer(connection, end, cnps[end])}"
            for end in marked
        )
        yield f"The network before this point is congested: {'; '.join(parts)}."
    elif marked:
        answer = _answer(connection, marked[0], sum(cnps[end] for end in marked))
        said = f"{count(sum(marks), 'packet')} with CE marks{answer}"
        yield f"The network before this point is congested: {said}."
    for end in (0, 1):
        if not earlier[end]:
            continue
        report = f"{count(earlier[end], 'CNP')} {'reports' if earlier[end] == 1 else 'report'} it"
        where = f" {_WAYS[end]}" if marks[1 - end] or earlier[1 - end] else ""
        if connection.directions[end].packets:
            yield f"The network after this point is congested{where}: {report}."
        else:
            yield f"The network is congested{where}: {report}; the capture does not show where."


def _answer(connection: Connection, end: int, cnps: int) -> str:
    """What the receiver did about marks, as far as the capture can show it."""
    if cnps:
        return f", answered by {count(cnps, 'CNP')}"
    # A CNP is taken for one of a reliable connection.
    is_shown = connection.is_reliable and connection.directions[1 - end].packets
    return ", and no CNP" if is_shown else ""


_WAYS = "from A to B", "from B to A"
