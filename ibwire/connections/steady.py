"""Regular traffic, many packets of a connection at once.

`advance` takes as many packets as are regular: every request has the next PSN, every
message is in order, every response is new and answers a request, and the ICRCs are
correct. They change the trackers as if `ConnectionTracker.take` had taken them one by
one; tests require the same results. Packets that are not regular are left to that method.
Regular traffic leaves the responder ACCEPTING or FAILED; a requester that is SETTLING is
IN_SEQUENCE after enough of it.

Positions are indices into the rows at hand; PSNs are unwrapped as in `tracker`.
"""

from __future__ import annotations

from itertools import chain

import numpy as np
import numpy.typing as npt

from ibwire.base.membership import are_among
from ibwire.connections.connection import MTUS, Connection
from ibwire.connections.connection_tracker import ConnectionTracker
from ibwire.connections.counts import DirectionCounts
from ibwire.connections.events import FlowEventKind
from ibwire.connections.identity import KEEP, REORDER_IDS, Identity
from ibwire.connections.opcode_sets import ANSWERED, READ, VERB
from ibwire.connections.opcode_tables import (
    IS_ACKNOWLEDGE,
    IS_ANSWERED,
    IS_END,
    IS_FULL,
    IS_READ,
    IS_RESPONSE,
    IS_START,
    REFUSES,
    VERB_OF,
    VERBS,
)
from ibwire.connections.open_message import OpenMessage
from ibwire.connections.packets import Rows
from ibwire.connections.retransmissions import NO_SKIP_NS
from ibwire.connections.runs import CompletedMessages, Exchange, Index, Run
from ibwire.connections.steps import steps
from ibwire.connections.tracker import LIMIT, RequestTracker
from ibwire_layers.opcodes import OpCode, Service
from ibwire_layers.psn import HALF, MASK
from ibwire_layers.syndrome import INVALID_CREDITS

LONGEST = 1 << 24
"""A READ of more bytes than this is not regular."""
REACH = 1 << 22
"""PSNs that are followed at once: half of the range that distinguishes newer from older."""
LEAST = 48
"""From this many packets on this is faster than one by one."""


def advance(pair: ConnectionTracker, rows: Rows, direction: npt.NDArray[np.uint8]) -> int:
    """Take the regular packets at the beginning of these rows; returns how many.

    direction: (n,) which end sent each.
    """
    connection = pair.connection
    if pair.packet_observer is not None and pair.run_observer is None:
        return 0
    if connection.service is Service.UD:
        return _datagrams(pair, rows, direction)
    if connection.service not in (Service.RC, Service.XRC):
        return 0
    if not all(tracker.is_regular for tracker in pair.requests):
        return 0
    end = _plain(connection, rows, direction)
    if end < LEAST:
        return 0
    opcode = rows.opcode[:end]
    is_response, is_cnp = IS_RESPONSE[opcode], opcode == OpCode.CNP
    exchanges = []
    for tracker in pair.requests:
        mine = direction[: len(opcode)] == tracker.end
        requests = np.flatnonzero(mine & ~is_response & ~is_cnp)
        responses = np.flatnonzero(~mine & is_response)
        if tracker.next is None:
            end = min([end, *requests[:1].tolist(), *responses[:1].tolist()])
        else:
            exchange = _unwrap(tracker, rows, requests, responses)
            end = min(end, _regular(exchange, rows))
            exchanges.append(exchange)
    if end < LEAST:
        return 0
    run = Run(connection, rows, direction, exchanges).upto(end)
    end = _report(pair, run)
    run = run.upto(end)
    for index in (0, 1):
        _count(pair, index, rows, direction[:end] == index)
    for exchange in run.exchanges:
        _follow(exchange, rows, pair)
    return end


def _report(pair: ConnectionTracker, run: Run) -> int:
    """Report the first packets of a run to an observer that takes them; returns how many."""
    observer = pair.run_observer
    if observer is None:
        return len(run)
    end = observer.takes(run)
    if end:
        observer.run(run.upto(end))
    return end


def _datagrams(pair: ConnectionTracker, rows: Rows, direction: npt.NDArray[np.uint8]) -> int:
    """Count the datagrams before the first that is damaged."""
    connection = pair.connection
    end = _or(_first(rows.damaged), len(rows))
    for index, identity in enumerate(connection.identities):
        at = np.flatnonzero(direction[:end] == index)
        end = min(end, _even_ids(identity, rows.ip_id[at], at, end))
    end = _report(pair, Run(connection, rows, direction, ()).upto(end))
    for index, counts in enumerate(connection.directions):
        mine = direction[:end] == index
        _count(pair, index, rows, mine)
        _count_messages(counts, rows.opcode[:end][mine])
        counts.message_bytes += int(rows.size[:end][mine].sum(dtype=np.int64))
    return end


def _count_messages(counts: DirectionCounts, opcode: npt.NDArray[np.uint8]) -> None:
    """Count the messages that end, by verbs in the order in which these appear."""
    verbs = VERB_OF[opcode[IS_END[opcode]]]
    times = np.bincount(verbs).tolist()
    found = [verb for verb, count in enumerate(times) if count]
    if len(found) > 1:
        found.sort(key=lambda verb: int((verbs == verb).argmax()))
    for verb in found:
        counts.count_message(VERBS[verb], times[verb])


def _first(irregular: npt.NDArray[np.bool_], at: Index | None = None) -> int | None:
    """Position of the first that is irregular."""
    found = int(irregular.argmax()) if len(irregular) else 0
    if not len(irregular) or not irregular[found]:
        return None
    return found if at is None else int(at[found])


def _plain(connection: Connection, rows: Rows, direction: npt.NDArray[np.uint8]) -> int:
    """How many rows at the beginning show nothing irregular, each packet by itself."""
    opcode = rows.opcode
    odd = rows.damaged | (IS_RESPONSE[opcode] & (rows.syndrome >= REFUSES))
    mtu = connection.mtu or 0
    odd |= IS_FULL[opcode] & (rows.size != mtu)
    odd |= ~IS_FULL[opcode] & IS_READ[opcode] & (rows.dma_len > (MTUS[0] if not mtu else LONGEST))
    end = _or(_first(odd), len(rows))
    for index, identity in enumerate(connection.identities):
        at = np.flatnonzero(direction[:end] == index)
        end = min(end, _even_ids(identity, rows.ip_id[at], at, end))
    return end


def _even_ids(identity: Identity, ip_id: npt.NDArray[np.int32], at: Index, end: int) -> int:
    """Position up to which the IP identifications are all the same, or all go up."""
    if not len(ip_id):
        return end
    if identity.high < 0 <= ip_id[0]:
        return min(end, int(at[0]))  # the very first
    step = steps(ip_id, identity.high) & 0xFFFF
    backward = step > 0x10000 - REORDER_IDS
    backward |= (step == 0) != (step[0] == 0)
    return _or(_first(backward, at), end)


def _unwrap(tracker: RequestTracker, rows: Rows, requests: Index, responses: Index) -> Exchange:
    opcode = rows.opcode[requests]
    mtu = tracker.connection.mtu or MTUS[-1]
    span = np.ones(len(requests), np.int64)
    reads = IS_READ[opcode]
    if reads.any():
        wanted = -(-rows.dma_len[requests[reads]].astype(np.int64) // mtu)
        span[reads] = np.maximum(wanted, 1)
    assert tracker.next is not None
    psn = tracker.next + np.cumsum(span) - span
    step = (rows.psn[responses].astype(np.int64) - tracker.next + HALF & MASK) - HALF
    return Exchange(
        tracker=tracker,
        requests=requests,
        responses=responses,
        psn=psn,
        span=span,
        answers=tracker.next + step,
    )


def _regular(exchange: Exchange, rows: Rows) -> int:
    """Position up to which requests and responses are the next in sequence."""
    tracker, requests, responses = exchange.tracker, exchange.requests, exchange.responses
    end = len(rows)
    opcode = rows.opcode[requests]
    psn = rows.psn[requests]
    odd = (exchange.psn & MASK) != psn
    odd |= exchange.psn - tracker.next > REACH  # type: ignore[operator]
    verb = VERB_OF[opcode]
    start = IS_START[opcode]
    whole = np.ones(len(requests), np.bool_)
    same = np.ones(len(requests), np.bool_)
    if len(requests):
        last = tracker.messages[-1] if tracker.messages else None
        whole[1:] = IS_END[opcode[:-1]]
        whole[0] = last is None or last.is_whole
        same[1:] = verb[1:] == verb[:-1]
        same[0] = last is not None and VERBS[verb[0]] == last.verb
    odd |= start != whole
    odd |= ~start & ~same
    end = min(end, _or(_first(odd, requests), end))
    if not len(responses):
        return end
    answers = exchange.answers
    odd = steps(answers, tracker.acked) <= 0
    # The number of requests before each response, and the PSN after them.
    before = np.searchsorted(requests, responses)
    behind = np.concatenate([[tracker.next], exchange.psn + exchange.span])[before]
    odd |= answers >= behind
    wanted = _wanted(exchange, opcode)
    is_answer = ~IS_ACKNOWLEDGE[rows.opcode[responses]]
    given = np.cumsum(is_answer)
    expected = np.full(len(responses), -1, np.int64)
    known = is_answer & (given <= len(wanted))
    expected[known] = wanted[given[known] - 1]
    odd |= is_answer & (answers != expected)
    # No ACK acknowledges beyond a READ that is not answered in full.
    odd |= np.searchsorted(wanted, answers, side="right") > given
    damaged = tracker.connection.damaged.answers[1 - tracker.end]
    if damaged:  # it counts as retransmitted
        odd |= is_answer & are_among(rows.psn[responses], list(damaged))
    # A response after a message that was left unfinished completes that as well.
    odd |= tracker.has_broken_message
    return min(end, _or(_first(odd, responses), end))


def _or(found: int | None, otherwise: int) -> int:
    return otherwise if found is None else found


def _wanted(exchange: Exchange, opcode: npt.NDArray[np.uint8]) -> Index:
    """PSNs of all responses that READs and atomics wait for, in order."""
    firsts = [m.next_response for m in exchange.tracker.messages if 0 <= m.next_response <= m.last]
    counts = [
        m.last + 1 - m.next_response
        for m in exchange.tracker.messages
        if 0 <= m.next_response <= m.last
    ]
    rows = np.flatnonzero(IS_ANSWERED[opcode])
    first = np.concatenate([np.array(firsts, np.int64), exchange.psn[rows]])
    count = np.concatenate([np.array(counts, np.int64), exchange.span[rows]])
    total = int(count.sum())
    offset = np.arange(total) - np.repeat(np.cumsum(count) - count, count)
    wanted: Index = np.repeat(first, count) + offset
    return wanted


def _count(pair: ConnectionTracker, index: int, rows: Rows, mine: npt.NDArray[np.bool_]) -> None:
    """What `ConnectionTracker.take` counts of every packet of a direction."""
    connection = pair.connection
    counts = connection.directions[index]
    at = np.flatnonzero(mine)
    if not len(at):
        return
    counts.packets += len(at)
    counts.bytes += int(rows.length[at].sum(dtype=np.int64))
    counts.payload_bytes += int(rows.size[at].sum(dtype=np.int64))
    counts.marked += int(rows.marked[at].sum())
    connection.directions[1 - index].cnps += int((rows.opcode[at] == OpCode.CNP).sum())
    times = rows.time_ns[at]
    is_soon = steps(times, counts.last_ns or 0) < NO_SKIP_NS
    if counts.first_ns is None:
        counts.first_ns = int(times[0])
    counts.last_ns = int(times[-1])
    skipped = connection.identities[index].note_many(rows.ip_id[at], rows.icrc[at])
    counts.skipped_ids += int(skipped.sum())
    counts.skipped_soon += int(skipped[is_soon].sum())
    if pair.has_observer:
        reported = at[rows.marked[at] | (rows.opcode[at] == OpCode.CNP)]
        for packet in rows.take(reported).packets():
            if packet.marked:
                pair.reports.packet(FlowEventKind.ECN_CE, index, packet)
            if packet.opcode == OpCode.CNP:
                pair.reports.packet(FlowEventKind.CNP, index, packet)


def _follow(exchange: Exchange, rows: Rows, pair: ConnectionTracker) -> None:
    """Change a tracker by regular requests and responses."""
    tracker, requests, responses = exchange.tracker, exchange.requests, exchange.responses
    if not len(requests) and not len(responses):
        return
    counts = tracker.connection.directions[tracker.end]
    newest = max([*requests[-1:].tolist(), *responses[-1:].tolist()])
    tracker.last_ns = int(rows.time_ns[newest])
    tracker.last_place = int(rows.file[newest]), int(rows.number[newest])
    started = 0
    if len(requests):
        acked = np.concatenate([[tracker.acked], exchange.answers])[
            np.searchsorted(responses, requests)
        ]
        outstanding = int((exchange.psn + exchange.span - acked).max()) - 1
        counts.max_outstanding = max(counts.max_outstanding, outstanding)
        tracker.next = int(exchange.psn[-1] + exchange.span[-1])
        tracker.recent_requests.add_many(exchange.psn, rows.take(requests[-KEEP:]))
        _count_messages(counts, rows.opcode[requests])
        started = _continue(exchange, rows)
        tracker.note_new_request()
    if len(responses):
        given = rows.syndrome[responses]
        given = given[(given >= 0) & (given < INVALID_CREDITS)]
        if len(given):
            counts.note_credits(lowest=int(given.min()), highest=int(given.max()))
        tracker.acked = int(exchange.answers[-1])
        tracker.attempts = 0
        tracker.recent_responses.add_many(exchange.answers, rows.take(responses[-KEEP:]))
    last_disturbed = tracker.last_disturbed
    _complete(exchange, rows, started, pair)
    if tracker.disturbed_end and len(responses):
        at = np.searchsorted(exchange.answers[:-1], last_disturbed)
        tracker.note_answered(int(exchange.answers[at]))
    tracker.age_by(len(requests) + len(responses))
    tracker.limit()


def _continue(exchange: Exchange, rows: Rows) -> int:
    """Add to the newest open message; returns the index of the first request of the next."""
    tracker, requests = exchange.tracker, exchange.requests
    starts = np.flatnonzero(IS_START[rows.opcode[requests]])
    first = int(starts[0]) if len(starts) else len(requests)
    if first:
        message, last = tracker.messages[-1], requests[first - 1]
        message.size += int(rows.size[requests[:first]].sum(dtype=np.int64))
        message.last = int(exchange.psn[first - 1])
        message.last_number, message.last_ns = int(rows.number[last]), int(rows.time_ns[last])
        message.is_whole = bool(IS_END[rows.opcode[last]])
    return first


def _complete(exchange: Exchange, rows: Rows, first: int, pair: ConnectionTracker) -> None:
    """Complete the messages that are answered, and open those that are not.

    first: index of the request that starts the first new message.
    """
    tracker, answers = exchange.tracker, exchange.answers
    counts = tracker.connection.directions[tracker.end]
    times = rows.time_ns
    acknowledged = int(answers[-1]) if len(answers) else tracker.acked
    old = []
    while (
        len(answers)
        and tracker.messages
        and tracker.messages[0].is_whole
        and tracker.messages[0].last <= acknowledged
    ):
        old.append(tracker.messages.pop(0))
    new = _New(exchange, rows, first)
    done = int(np.searchsorted(new.last, acknowledged, side="right")) if not tracker.messages else 0
    last = np.concatenate([np.array([message.last for message in old], np.int64), new.last[:done]])
    if len(last):
        began = np.array([message.first_ns for message in old], np.int64)
        began = np.concatenate([began, times[new.requests[new.starts[:done]]]])
        which = np.searchsorted(answers, last)
        by = exchange.responses[which]
        counts.coalesced += int((answers[which] != last).sum())
        counts.completed += len(last)
        counts.acked_messages += len(last)
        counts.acks += 1 + int((np.diff(by) != 0).sum())
        counts.latency.add(times[by] - began)
        counts.message_bytes += sum(message.size for message in old)
        counts.message_bytes += int(new.sizes()[:done].sum())
        if tracker.has_observer:
            _report_messages(pair, tracker, old, new, rows.take(by))
    for message in tracker.messages if len(answers) else ():
        if message.next_response >= 0 and message.first <= acknowledged:
            message.next_response = acknowledged + 1
    for index in range(max(done, len(new.starts) - LIMIT), len(new.starts)):
        message = new.message(index)
        if message.next_response >= 0:
            message.next_response = max(message.first, acknowledged + 1)
        tracker.messages.append(message)


def _report_messages(
    pair: ConnectionTracker, tracker: RequestTracker, old: list[OpenMessage], new: _New, by: Rows
) -> None:
    """Report completed messages, those that began before and the first of the new ones.

    by: (n,) the response to each.
    """
    observer, done = pair.run_observer, len(by) - len(old)
    alone = chain(old, map(new.message, range(0 if observer is not None else done)))
    for message, number, acked_ns in zip(
        alone, by.number.tolist(), by.time_ns.tolist(), strict=False
    ):
        tracker.report_message(message, number=number, time_ns=acked_ns)
    if observer is not None and done:
        rows, begin = new.rows, new.requests[new.starts[:done]]
        observer.completed(
            CompletedMessages(
                connection=tracker.connection,
                direction=tracker.end,
                opcode=rows.opcode[begin],
                size=new.sizes()[:done],
                first_number=rows.number[begin],
                first_ns=rows.time_ns[begin],
                acked_number=by.number[len(old) :],
                acked_ns=by.time_ns[len(old) :],
            )
        )


class _New:
    """The messages that start among the requests of one end; the last may not be whole."""

    def __init__(self, exchange: Exchange, rows: Rows, first: int) -> None:
        self.rows = rows
        self.requests = exchange.requests[first:]
        self.psn, self.span = exchange.psn[first:], exchange.span[first:]
        self.opcode = rows.opcode[self.requests]
        self.starts = np.flatnonzero(IS_START[self.opcode])
        """Index of the first request of each."""
        self.ends = np.flatnonzero(IS_END[self.opcode])
        """Index of the last request of each that is whole."""
        self.last = self.psn[self.ends] + self.span[self.ends] - 1
        """PSN that must be acknowledged for it."""

    def sizes(self) -> Index:
        """Bytes of each that is whole."""
        size = np.cumsum(self.rows.size[self.requests], dtype=np.int64)
        first = self.starts[: len(self.ends)]
        sizes: Index = size[self.ends] - size[first] + self.rows.size[self.requests[first]]
        is_read = IS_READ[self.opcode[self.ends]]
        sizes[is_read] = self.rows.dma_len[self.requests[self.ends[is_read]]]
        return sizes

    def message(self, index: int) -> OpenMessage:
        """One of them."""
        begin = int(self.starts[index])
        is_whole = index < len(self.ends)
        end = int(self.ends[index]) if is_whole else len(self.requests) - 1
        rows, requests = self.rows, self.requests
        code, one, other = int(self.opcode[begin]), requests[begin], requests[end]
        message = OpenMessage(
            verb=VERB[code],
            first=int(self.psn[begin]),
            last=int(self.psn[end] + self.span[end]) - 1,
            is_whole=is_whole,
            size=int(rows.size[requests[begin : end + 1]].sum(dtype=np.int64)),
            first_number=int(rows.number[one]),
            first_ns=int(rows.time_ns[one]),
            last_number=int(rows.number[other]),
            last_ns=int(rows.time_ns[other]),
        )
        if code in ANSWERED:
            message.next_response = message.first
        if code in READ:
            message.is_read = True
            message.dma_len = message.size = int(rows.dma_len[one])
        return message
