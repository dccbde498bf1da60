"""Traffic in which nothing goes wrong, many packets of a connection at once.

`advance` takes as many packets as are regular: every request is the next, every
message in order, every response new and to what was asked, the ICRCs good. They
change the state of the connection just as if `Connection.take` had been given
them one by one; a test holds the two to the same state. What is not regular is
left to that.

Positions are indices into the rows at hand; PSNs are unwrapped as in `half`.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain

import numpy as np
import numpy.typing as npt

from ibwire.connections.connection import Connection, Direction
from ibwire.connections.events import EventKind
from ibwire.connections.half import LIMIT, MTUS, Half
from ibwire.connections.identity import REORDER_IDS, Identity
from ibwire.connections.kinds import (
    ACKNOWLEDGE,
    ANSWERED,
    ENDS,
    FULL,
    READ,
    RESPONSES,
    STARTS,
    VERB,
)
from ibwire.connections.open_message import Open
from ibwire.connections.packets import Rows
from ibwire_layers.opcodes import OpCode, Service
from ibwire_layers.psn import HALF, MASK
from ibwire_layers.syndrome import INVALID_CREDITS

LONGEST = 1 << 24
"""Bytes of a READ from which on it is left to be followed by itself."""
REACH = 1 << 22
"""PSNs that are followed at once: half as many as tell ahead from behind."""
LEAST = 48
"""Packets from which on this is faster than one by one."""

Index = npt.NDArray[np.int64]


def _table(opcodes: frozenset[int]) -> npt.NDArray[np.bool_]:
    table = np.zeros(256, np.bool_)
    table[list(opcodes)] = True
    return table


_IS_RESPONSE, _IS_START, _IS_END = _table(RESPONSES), _table(STARTS), _table(ENDS)
_IS_FULL, _IS_READ, _IS_ANSWERED = _table(FULL), _table(READ), _table(ANSWERED)
_IS_ACKNOWLEDGE = _table(ACKNOWLEDGE)
_VERBS = sorted(set(VERB.values()))
_VERB_OF = np.zeros(256, np.uint8)
for _opcode, _verb in VERB.items():
    _VERB_OF[_opcode] = _VERBS.index(_verb)


@dataclass(slots=True)
class _Asked:
    """The requests and responses of one half among the rows."""

    half: Half
    requests: Index
    """Positions."""
    responses: Index
    psn: Index
    """(requests,) unwrapped."""
    span: Index
    """(requests,) PSNs that each takes."""
    answers: Index
    """(responses,) unwrapped PSNs."""

    def upto(self, end: int) -> _Asked:
        """What lies before a position."""
        requests = int(np.searchsorted(self.requests, end))
        responses = int(np.searchsorted(self.responses, end))
        return _Asked(
            self.half,
            self.requests[:requests],
            self.responses[:responses],
            self.psn[:requests],
            self.span[:requests],
            self.answers[:responses],
        )


def advance(connection: Connection, rows: Rows, direction: npt.NDArray[np.uint8]) -> int:
    """Take the regular packets at the beginning of these rows; returns how many.

    direction: (n,) which end sent each.
    """
    if connection.service is Service.UD:
        return _datagrams(connection, rows, direction)
    if connection.service not in (Service.RC, Service.XRC):
        return 0
    if not all(half.is_calm for half in connection.halves):
        return 0
    end = _plain(connection, rows, direction)
    if end < LEAST:
        return 0
    opcode = rows.opcode[:end]
    is_response, is_cnp = _IS_RESPONSE[opcode], opcode == OpCode.CNP
    halves = []
    for half in connection.halves:
        mine = direction[: len(opcode)] == half.end
        requests = np.flatnonzero(mine & ~is_response & ~is_cnp)
        responses = np.flatnonzero(~mine & is_response)
        if half.next is None:
            end = min([end, *requests[:1].tolist(), *responses[:1].tolist()])
        else:
            asked = _unwrap(half, rows, requests, responses)
            end = min(end, _regular(asked, rows))
            halves.append(asked)
    if end < LEAST:
        return 0
    for index in (0, 1):
        _count(connection, index, rows, direction[:end] == index)
    for asked in halves:
        _follow(connection, asked.upto(end), rows)
    return end


def _datagrams(connection: Connection, rows: Rows, direction: npt.NDArray[np.uint8]) -> int:
    """Count the datagrams before the first that is damaged."""
    end = _or(_first(rows.damaged), len(rows))
    for index, identity in enumerate(connection.identities):
        at = np.flatnonzero(direction[:end] == index)
        end = min(end, _even_ids(identity, rows.ip_id[at], at, end))
    for index, counts in enumerate(connection.directions):
        mine = direction[:end] == index
        _count(connection, index, rows, mine)
        _count_messages(counts, rows.opcode[:end][mine])
        counts.message_bytes += int(rows.size[:end][mine].sum(dtype=np.int64))
    return end


def _count_messages(counts: Direction, opcode: npt.NDArray[np.uint8]) -> None:
    ends = np.bincount(opcode, minlength=256)
    for each in np.flatnonzero(ends * _IS_END).tolist():
        counts.count_message(VERB[each], int(ends[each]))


def _first(irregular: npt.NDArray[np.bool_], at: Index | None = None) -> int | None:
    """Position of the first that is irregular."""
    found = int(irregular.argmax()) if len(irregular) else 0
    if not len(irregular) or not irregular[found]:
        return None
    return found if at is None else int(at[found])


def _plain(connection: Connection, rows: Rows, direction: npt.NDArray[np.uint8]) -> int:
    """How many rows at the beginning are free of what one packet alone shows to be irregular."""
    opcode = rows.opcode
    odd = rows.damaged | (_IS_RESPONSE[opcode] & (rows.syndrome >= 0x20))
    mtu = connection.mtu or 0
    odd |= _IS_FULL[opcode] & (rows.size != mtu)
    odd |= ~_IS_FULL[opcode] & _IS_READ[opcode] & (rows.dma_len > (MTUS[0] if not mtu else LONGEST))
    end = _or(_first(odd), len(rows))
    for index, identity in enumerate(connection.identities):
        at = np.flatnonzero(direction[:end] == index)
        end = min(end, _even_ids(identity, rows.ip_id[at], at, end))
    return end


def _even_ids(identity: Identity, ip_id: npt.NDArray[np.int32], at: Index, end: int) -> int:
    """Where the IP identifications stop to be all alike, or to go up."""
    if not len(ip_id):
        return end
    if identity.high < 0 <= ip_id[0]:
        return min(end, int(at[0]))  # the very first
    steps = np.diff(ip_id, prepend=identity.high) & 0xFFFF
    backward = steps > 0x10000 - REORDER_IDS
    backward |= (steps == 0) != (steps[0] == 0)
    return _or(_first(backward, at), end)


def _unwrap(half: Half, rows: Rows, requests: Index, responses: Index) -> _Asked:
    opcode = rows.opcode[requests]
    mtu = half.connection.mtu or MTUS[-1]
    span = np.ones(len(requests), np.int64)
    reads = _IS_READ[opcode]
    if reads.any():
        wanted = -(-rows.dma_len[requests[reads]].astype(np.int64) // mtu)
        span[reads] = np.maximum(wanted, 1)
    assert half.next is not None
    psn = half.next + np.cumsum(span) - span
    step = (rows.psn[responses].astype(np.int64) - half.next + HALF & MASK) - HALF
    return _Asked(half, requests, responses, psn, span, half.next + step)


def _regular(asked: _Asked, rows: Rows) -> int:
    """Up to which position requests and responses are what comes next."""
    half, requests, responses = asked.half, asked.requests, asked.responses
    end = len(rows)
    opcode = rows.opcode[requests]
    psn = rows.psn[requests]
    odd = (asked.psn & MASK) != psn
    odd |= asked.psn - half.next > REACH  # type: ignore[operator]
    verb = _VERB_OF[opcode]
    start = _IS_START[opcode]
    whole = np.ones(len(requests), np.bool_)
    same = np.ones(len(requests), np.bool_)
    if len(requests):
        last = half.messages[-1] if half.messages else None
        whole[1:] = _IS_END[opcode[:-1]]
        whole[0] = last is None or last.is_whole
        same[1:] = verb[1:] == verb[:-1]
        same[0] = last is not None and _VERBS[verb[0]] == last.verb
    odd |= start != whole
    odd |= ~start & ~same
    end = min(end, _or(_first(odd, requests), end))
    if not len(responses):
        return end
    answers = asked.answers
    odd = np.diff(answers, prepend=half.acked) <= 0
    # Asked for before: the number of requests that came first, and the PSN behind them.
    before = np.searchsorted(requests, responses)
    behind = np.concatenate([[half.next], asked.psn + asked.span])[before]
    odd |= answers >= behind
    wanted = _wanted(asked, opcode)
    is_answer = ~_IS_ACKNOWLEDGE[rows.opcode[responses]]
    given = np.cumsum(is_answer)
    expected = np.full(len(responses), -1, np.int64)
    known = is_answer & (given <= len(wanted))
    expected[known] = wanted[given[known] - 1]
    odd |= is_answer & (answers != expected)
    # No ACK passes over a READ that is not answered in full.
    odd |= np.searchsorted(wanted, answers, side="right") > given
    return min(end, _or(_first(odd, responses), end))


def _or(found: int | None, otherwise: int) -> int:
    return otherwise if found is None else found


def _wanted(asked: _Asked, opcode: npt.NDArray[np.uint8]) -> Index:
    """PSNs of all responses that READs and atomics wait for, in order."""
    firsts = [m.awaits for m in asked.half.messages if 0 <= m.awaits <= m.last]
    counts = [m.last + 1 - m.awaits for m in asked.half.messages if 0 <= m.awaits <= m.last]
    rows = np.flatnonzero(_IS_ANSWERED[opcode])
    first = np.concatenate([np.array(firsts, np.int64), asked.psn[rows]])
    count = np.concatenate([np.array(counts, np.int64), asked.span[rows]])
    total = int(count.sum())
    offset = np.arange(total) - np.repeat(np.cumsum(count) - count, count)
    wanted: Index = np.repeat(first, count) + offset
    return wanted


def _count(connection: Connection, index: int, rows: Rows, mine: npt.NDArray[np.bool_]) -> None:
    """What `Connection.take` counts of every packet of a direction."""
    counts = connection.directions[index]
    at = np.flatnonzero(mine)
    if not len(at):
        return
    counts.packets += len(at)
    counts.bytes += int(rows.length[at].sum(dtype=np.int64))
    counts.payload_bytes += int(rows.size[at].sum(dtype=np.int64))
    counts.marked += int(rows.marked[at].sum())
    connection.directions[1 - index].cnps += int((rows.opcode[at] == OpCode.CNP).sum())
    if counts.first_ns is None:
        counts.first_ns = int(rows.time_ns[at[0]])
    counts.last_ns = int(rows.time_ns[at[-1]])
    counts.skipped_ids += connection.identities[index].note_many(rows.ip_id[at], rows.icrc[at])
    if connection.observer is not None:
        told = at[rows.marked[at] | (rows.opcode[at] == OpCode.CNP)]
        for packet in rows.take(told).seen():
            if packet.marked:
                connection.tell_one(EventKind.MARKED, index, packet)
            if packet.opcode == OpCode.CNP:
                connection.tell_one(EventKind.CNP, index, packet)


def _follow(connection: Connection, asked: _Asked, rows: Rows) -> None:
    """Move a half on by regular requests and responses."""
    half, requests, responses = asked.half, asked.requests, asked.responses
    if not len(requests) and not len(responses):
        return
    counts = connection.directions[half.end]
    newest = max([*requests[-1:].tolist(), *responses[-1:].tolist()])
    half.last_ns = int(rows.time_ns[newest])
    started = 0
    if len(requests):
        acked = np.concatenate([[half.acked], asked.answers])[np.searchsorted(responses, requests)]
        outstanding = int((asked.psn + asked.span - acked).max()) - 1
        counts.max_outstanding = max(counts.max_outstanding, outstanding)
        half.next = int(asked.psn[-1] + asked.span[-1])
        half.requests.add_many(asked.psn, rows, requests)
        _count_messages(counts, rows.opcode[requests])
        started = _continue(asked, rows)
    if len(responses):
        given = rows.syndrome[responses]
        given = given[(given >= 0) & (given < INVALID_CREDITS)]
        if len(given):
            counts.note_credits(int(given.min()), int(given.max()))
        half.acked = int(asked.answers[-1])
        half.attempts = 0
        half.answers.add_many(asked.answers, rows, responses)
    _complete(connection, asked, rows, started)
    half.bound()


def _continue(asked: _Asked, rows: Rows) -> int:
    """Add to the message under way; returns the index of the first request of another."""
    half, requests = asked.half, asked.requests
    starts = np.flatnonzero(_IS_START[rows.opcode[requests]])
    first = int(starts[0]) if len(starts) else len(requests)
    if first:
        message, last = half.messages[-1], requests[first - 1]
        message.size += int(rows.size[requests[:first]].sum(dtype=np.int64))
        message.last = int(asked.psn[first - 1])
        message.last_number, message.last_ns = int(rows.number[last]), int(rows.time_ns[last])
        message.is_whole = bool(_IS_END[rows.opcode[last]])
    return first


def _complete(connection: Connection, asked: _Asked, rows: Rows, first: int) -> None:
    """Complete the messages that are answered, and open those that are not.

    first: index of the request that starts the first new message.
    """
    half, answers = asked.half, asked.answers
    counts = connection.directions[half.end]
    times = rows.time_ns
    acknowledged = int(answers[-1]) if len(answers) else half.acked
    old = []
    while half.messages and half.messages[0].is_whole and half.messages[0].last <= acknowledged:
        old.append(half.messages.pop(0))
    new = _New(asked, rows, first)
    done = int(np.searchsorted(new.last, acknowledged, side="right")) if not half.messages else 0
    last = np.concatenate([np.array([message.last for message in old], np.int64), new.last[:done]])
    if len(last):
        began = np.array([message.first_ns for message in old], np.int64)
        began = np.concatenate([began, times[new.requests[new.starts[:done]]]])
        which = np.searchsorted(answers, last)
        by = asked.responses[which]
        counts.passed += int((answers[which] != last).sum())
        counts.completed += len(last)
        counts.acked_messages += len(last)
        counts.acks += 1 + int((np.diff(by) != 0).sum())
        counts.latency.add(times[by] - began)
        counts.message_bytes += sum(message.size for message in old)
        counts.message_bytes += int(new.sizes()[:done].sum())
        if connection.observer is not None:
            messages = chain(old, map(new.message, range(done)))
            for message, number, time_ns in zip(
                messages, rows.number[by].tolist(), times[by].tolist(), strict=True
            ):
                connection.tell_message(half, message, number, time_ns)
    for message in half.messages:
        if message.awaits >= 0 and message.first <= acknowledged:
            message.awaits = acknowledged + 1
    for index in range(max(done, len(new.starts) - LIMIT), len(new.starts)):
        message = new.message(index)
        if message.awaits >= 0:
            message.awaits = max(message.first, acknowledged + 1)
        half.messages.append(message)


class _New:
    """The messages that start among the requests of a half; the last may not be whole."""

    def __init__(self, asked: _Asked, rows: Rows, first: int) -> None:
        self.rows = rows
        self.requests = asked.requests[first:]
        self.psn, self.span = asked.psn[first:], asked.span[first:]
        self.opcode = rows.opcode[self.requests]
        self.starts = np.flatnonzero(_IS_START[self.opcode])
        """Index of the first request of each."""
        self.ends = np.flatnonzero(_IS_END[self.opcode])
        """Index of the last request of each that is whole."""
        self.last = self.psn[self.ends] + self.span[self.ends] - 1
        """PSN that must be acknowledged for it."""

    def sizes(self) -> Index:
        """Bytes of each that is whole."""
        size = np.cumsum(self.rows.size[self.requests], dtype=np.int64)
        first = self.starts[: len(self.ends)]
        sizes: Index = size[self.ends] - size[first] + self.rows.size[self.requests[first]]
        is_read = _IS_READ[self.opcode[self.ends]]
        sizes[is_read] = self.rows.dma_len[self.requests[self.ends[is_read]]]
        return sizes

    def message(self, index: int) -> Open:
        """One of them."""
        begin = int(self.starts[index])
        is_whole = index < len(self.ends)
        end = int(self.ends[index]) if is_whole else len(self.requests) - 1
        rows, requests = self.rows, self.requests
        code, one, other = int(self.opcode[begin]), requests[begin], requests[end]
        message = Open(
            *(VERB[code], int(self.psn[begin]), int(self.psn[end] + self.span[end]) - 1, is_whole),
            int(rows.size[requests[begin : end + 1]].sum(dtype=np.int64)),
            *(int(rows.number[one]), int(rows.time_ns[one])),
            *(int(rows.number[other]), int(rows.time_ns[other])),
        )
        if code in ANSWERED:
            message.awaits = message.first
        if code in READ:
            message.is_read = True
            message.dma_len = message.size = int(rows.dma_len[one])
        return message
