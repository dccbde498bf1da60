"""Regular packets of requesters and their responders as arrays, for checks over connections.

All requests are new, with ascending PSNs and whole messages; all responses are new positive
ones, with ascending PSNs; see `ibwire.connections.steady`. A check takes what it would have
found nothing in, packet by packet, and leaves the rest.

An *exchange* is the requests of one end and the responses to them. Each has its own checks; those
of one kind look at the packets of all exchanges together. Arrays of requests and of responses
are in order of exchanges, and then of time.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from ibwire.connections.packets import TransportPacket
from ibwire.connections.runs import Index, Runs
from ibwire_layers.opcodes import INFO, Operation

Mask = npt.NDArray[np.bool_]
Number = TypeVar("Number", bound=np.generic)

FAR: Final = 1 << 25
"""More PSNs than lie between those of packets that are compared."""
_APART = 4 * FAR
"""Between the numbers of one exchange and those of the next."""

OPERATION = np.full(256, -1, np.int16)
"""Operation by opcode, as its place among all."""
_OPERATIONS = {operation: number for number, operation in enumerate(Operation)}
for _code, _info in INFO.items():
    OPERATION[_code] = _OPERATIONS[_info.operation]


def operation_number(operation: Operation) -> int:
    """The number of an operation in `OPERATION`."""
    return _OPERATIONS[operation]


def opcode_table(opcodes: frozenset[int]) -> Mask:
    """(256,) which opcodes are in a set."""
    table = np.zeros(256, np.bool_)
    table[list(opcodes)] = True
    return table


_ANSWERED_OPERATIONS = (
    Operation.READ,
    Operation.COMPARE_SWAP,
    Operation.FETCH_ADD,
    Operation.FLUSH,
    Operation.ATOMIC_WRITE,
)
_IS_ANSWERED = opcode_table(
    frozenset(code for code, info in INFO.items() if info.operation in _ANSWERED_OPERATIONS)
)
_IS_ACKNOWLEDGE = opcode_table(
    frozenset(code for code, info in INFO.items() if info.operation is Operation.ACKNOWLEDGE)
)
_OF_VERB = {
    "RDMA_READ": Operation.READ,
    "COMPARE_SWAP": Operation.COMPARE_SWAP,
    "FETCH_ADD": Operation.FETCH_ADD,
    "FLUSH": Operation.FLUSH,
    "ATOMIC_WRITE": Operation.ATOMIC_WRITE,
}


class Awaited(NamedTuple):
    """READs, atomics and other requests with responses of their own kind: (n,).

    In order of exchanges, the oldest first.
    """

    key: Index
    """Which exchange each belongs to."""
    operation: npt.NDArray[np.int16]
    first: Index
    """First PSN, unwrapped."""
    following: Index
    """First PSN without a response."""
    span: Index
    dma_len: Index
    """-1 of one from before these packets."""
    position: Index
    """Of the request; -1 of one from before these packets."""


class Regular:
    """The requests of several ends and the responses to them, all regular."""

    def __init__(self, runs: Runs) -> None:
        self.rows = runs.rows
        self.trackers = runs.trackers
        """By exchange."""
        self.mtu: Index = runs.mtu[runs.owner]
        """(exchanges,) path MTU of the connection; 0 where it is not known."""
        self.is_whole = runs.is_whole
        """Whether these are all packets of their connections."""
        self.next = runs.next
        """(exchanges,) PSN of the first request, unwrapped."""
        self.requests, self.key = runs.requests, runs.request_key
        """Positions of requests among the rows, and the exchange of each."""
        self.responses, self.answer_key = runs.responses, runs.response_key
        """The same of responses."""
        self.psn, self.span, self.answers = runs.psn, runs.span, runs.answers
        """Unwrapped PSNs of requests, how many each takes, and PSNs of responses."""
        places = np.arange(len(self.trackers) + 1)
        self.starts: Index = np.searchsorted(self.key, places)
        """(exchanges + 1,) index of the first request of each, and their number."""
        self.answer_starts: Index = np.searchsorted(self.answer_key, places)
        """The same of responses."""
        self.memo: dict[object, Any] = {}
        """What the checks of a kind have found out about these packets, by kind."""
        self.alone = np.zeros(len(self.rows), np.bool_)
        """(n,) which packets have to be received alone; those after them are as well."""

    @property
    def count(self) -> int:
        """How many exchanges there are."""
        return len(self.trackers)

    # What has to be received alone.

    def mark_requests(self, mask: Mask) -> None:
        """These requests have to be received alone."""
        self.alone[self.requests[mask]] = True

    def mark_responses(self, mask: Mask) -> None:
        """These responses have to be received alone."""
        self.alone[self.responses[mask]] = True

    def mark_first_requests(self, of: Mask) -> None:
        """The first request of each of these exchanges has to be received alone."""
        found = self.starts[:-1][of & self.has_requests]
        self.alone[self.requests[found]] = True

    def mark_first_responses(self, of: Mask) -> None:
        """The first response of each of these exchanges has to be received alone."""
        found = self.answer_starts[:-1][of & self.has_responses]
        self.alone[self.responses[found]] = True

    def mark_all(self, of: Iterable[bool]) -> None:
        """All packets of these exchanges have to be received alone."""
        which = np.array(list(of), np.bool_)
        if which.any():
            self.mark_first_requests(which)
            self.mark_first_responses(which)

    # Arrays of requests and of responses.

    @cached_property
    def opcode(self) -> npt.NDArray[np.uint8]:
        """(requests,)"""
        opcode: npt.NDArray[np.uint8] = self.rows.opcode[self.requests]
        return opcode

    @cached_property
    def answer_opcode(self) -> npt.NDArray[np.uint8]:
        """(responses,)"""
        opcode: npt.NDArray[np.uint8] = self.rows.opcode[self.responses]
        return opcode

    @cached_property
    def size(self) -> Index:
        """(requests,) bytes of payload."""
        size: Index = self.rows.size[self.requests].astype(np.int64)
        return size

    @cached_property
    def answer_size(self) -> Index:
        """(responses,) bytes of payload."""
        size: Index = self.rows.size[self.responses].astype(np.int64)
        return size

    @cached_property
    def dma_len(self) -> Index:
        """(requests,) length in the RETH."""
        dma_len: Index = self.rows.dma_len[self.requests].astype(np.int64)
        return dma_len

    @cached_property
    def syndrome(self) -> npt.NDArray[np.int16]:
        """(responses,) -1 without an AETH."""
        syndrome: npt.NDArray[np.int16] = self.rows.syndrome[self.responses]
        return syndrome

    @cached_property
    def msn(self) -> Index:
        """(responses,)"""
        msn: Index = self.rows.msn[self.responses].astype(np.int64)
        return msn

    @cached_property
    def before(self) -> Index:
        """(responses,) index behind the requests before each response, in its exchange."""
        before: Index = np.searchsorted(
            self.places(self.key, self.requests), self.places(self.answer_key, self.responses)
        )
        return before

    @cached_property
    def answers_before(self) -> Index:
        """(requests,) index behind the responses before each request, in its exchange."""
        before: Index = np.searchsorted(
            self.places(self.answer_key, self.responses), self.places(self.key, self.requests)
        )
        return before

    def places(self, key: Index, positions: Index) -> Index:
        """(n,) numbers in order of exchanges, and then of positions, which may be -1."""
        places: Index = key * (len(self.rows) + 1) + positions + 1
        return places

    @cached_property
    def is_own_answer(self) -> Mask:
        """(responses,) which are no ACKs."""
        mask: Mask = ~_IS_ACKNOWLEDGE[self.answer_opcode]
        return mask

    @cached_property
    def has_requests(self) -> Mask:
        """(exchanges,)"""
        mask: Mask = np.diff(self.starts) > 0
        return mask

    @cached_property
    def has_responses(self) -> Mask:
        """(exchanges,)"""
        mask: Mask = np.diff(self.answer_starts) > 0
        return mask

    @cached_property
    def first_psn(self) -> Index:
        """(exchanges,) PSN of the first request, unwrapped; -1 without one."""
        first = np.full(self.count, -1, np.int64)
        first[self.has_requests] = self.psn[self.starts[:-1][self.has_requests]]
        return first

    @cached_property
    def behind(self) -> Index:
        """(responses,) PSN behind the requests before each response."""
        ends = np.concatenate([[0], self.psn + self.span])
        is_first = self.before == self.starts[self.answer_key]
        behind: Index = np.where(is_first, self.next[self.answer_key], ends[self.before])
        return behind

    # Exchange by exchange.

    def ordered(self, key: Index, psn: Index) -> Index:
        """(n,) numbers in order of exchanges, and then of PSNs."""
        ahead = np.clip(psn - self.next[key], -FAR, FAR)
        ordered: Index = key * _APART + ahead
        return ordered

    def last_marked(self, mask: Mask) -> list[int]:
        """By exchange, index of the last request that is marked; -1 without one."""
        found = np.flatnonzero(mask)
        last = np.full(self.count, -1)
        last[self.key[found]] = found
        return last.tolist()

    def packets(self, positions: npt.ArrayLike) -> list[TransportPacket]:
        """The packets at some positions."""
        return self.rows.take(np.asarray(positions, np.int64)).packets()

    @cached_property
    def last_requests(self) -> list[TransportPacket | None]:
        """The last request of each exchange."""
        return self._last(self.requests, self.starts)

    @cached_property
    def last_responses(self) -> list[TransportPacket | None]:
        """The last response of each exchange."""
        return self._last(self.responses, self.answer_starts)

    def _last(self, positions: Index, starts: Index) -> list[TransportPacket | None]:
        found: list[TransportPacket | None] = [None] * self.count
        have = np.flatnonzero(np.diff(starts))
        packets = self.packets(positions[starts[have + 1] - 1])
        for place, packet in zip(have.tolist(), packets, strict=True):
            found[place] = packet
        return found

    @cached_property
    def awaited(self) -> Awaited:
        """The requests that are answered by responses of their own kind, or wait for them."""
        old = [
            (
                number,
                _OPERATIONS[_OF_VERB[each.verb]],
                each.first,
                each.next_response,
                each.last + 1 - each.first,
                -1,
                -1,
            )
            for number, tracker in enumerate(self.trackers)
            for each in tracker.messages
            if 0 <= each.next_response <= each.last
        ]
        at = np.flatnonzero(_IS_ANSWERED[self.opcode])
        psn, span = self.psn[at], self.span[at]
        columns = (
            self.key[at],
            OPERATION[self.opcode[at]],
            psn,
            psn,
            span,
            self.dma_len[at],
            self.requests[at],
        )
        before = np.array(old, np.int64).reshape(-1, len(columns))
        table = np.concatenate([before, np.stack(columns, axis=1).astype(np.int64)])
        table = table[np.argsort(table[:, 0], kind="stable")]
        key, operation, *rest = table.T
        return Awaited(key, operation.astype(np.int16), *rest)

    @cached_property
    def answered(self) -> Index:
        """(own answers,) which of those requests each response answers."""
        awaited = self.awaited
        end = np.cumsum(awaited.first + awaited.span - awaited.following)
        key = self.answer_key[self.is_own_answer]
        first = np.searchsorted(key, key)
        begin = np.concatenate([[0], end])[np.searchsorted(awaited.key, key)]
        place = begin + np.arange(len(key)) - first
        answered: Index = np.searchsorted(end, place, side="right")
        return answered


def previous(
    values: npt.NDArray[Number], key: Index, states: npt.NDArray[Number]
) -> npt.NDArray[Number]:
    """(n,) the value before each in its exchange; before the first its state (exchanges,)."""
    found = np.empty_like(values)
    found[1:] = values[:-1]
    is_first = first_of(key)
    found[is_first] = states[key[is_first]]
    return found


def first_of(key: Index) -> Mask:
    """(n,) which are the first of their exchange."""
    mask = np.ones(len(key), np.bool_)
    np.not_equal(key[1:], key[:-1], out=mask[1:])
    return mask


def highest_yet(values: Index, key: Index) -> Index:
    """(n,) the highest value up to each in its exchange; values are between -FAR and FAR."""
    found: Index = np.maximum.accumulate(values + key * _APART) - key * _APART
    return found


def lowest_yet(values: Index, key: Index) -> Index:
    """(n,) the lowest value up to each in its exchange; values are between -FAR and FAR."""
    return -highest_yet(-values, key)
