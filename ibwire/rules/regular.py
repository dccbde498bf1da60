"""Regular packets of one requester and its responder as arrays, for checks over a connection.

All requests are new, with ascending PSNs and whole messages; all responses are new positive
ones, with ascending PSNs; see `ibwire.connections.steady`. A check takes what it would have
found nothing in, packet by packet, and leaves the rest.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ibwire.connections.connection import Connection
from ibwire.connections.packets import Rows, TransportPacket
from ibwire.connections.runs import Exchange, Index, Run
from ibwire_layers.opcodes import INFO, Operation

Mask = npt.NDArray[np.bool_]

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
    """READs, atomics and other requests with responses of their own kind, oldest first: (n,)."""

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
    """The requests of one end and the responses to them in a run of regular packets."""

    def __init__(self, connection: Connection, exchange: Exchange, rows: Rows) -> None:
        self.connection = connection
        self.exchange = exchange
        self.rows = rows
        self.requests, self.responses = exchange.requests, exchange.responses
        """Positions among the rows."""
        self.psn, self.span, self.answers = exchange.psn, exchange.span, exchange.answers
        """Unwrapped PSNs of requests, how many each takes, and PSNs of responses."""
        self.memo: dict[object, Any] = {}
        """What a check has found out about these packets, by check."""

    @classmethod
    def of(cls, run: Run, exchange: Exchange) -> Regular:
        """An exchange of a run; the same object each time."""
        found: Regular | None = run.memo.get(id(exchange))
        if found is None:
            found = run.memo[id(exchange)] = cls(run.connection, exchange, run.rows)
        return found

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
    def size(self) -> npt.NDArray[np.uint32]:
        """(requests,) bytes of payload."""
        size: npt.NDArray[np.uint32] = self.rows.size[self.requests]
        return size

    @cached_property
    def answer_size(self) -> npt.NDArray[np.uint32]:
        """(responses,) bytes of payload."""
        size: npt.NDArray[np.uint32] = self.rows.size[self.responses]
        return size

    @cached_property
    def before(self) -> Index:
        """(responses,) number of requests before each response."""
        before: Index = np.searchsorted(self.requests, self.responses)
        return before

    @cached_property
    def is_own_answer(self) -> Mask:
        """(responses,) which are no ACKs."""
        mask: Mask = ~_IS_ACKNOWLEDGE[self.answer_opcode]
        return mask

    @property
    def end(self) -> int:
        """Position after the last packet."""
        return len(self.rows)

    def first_request(self, mask: Mask) -> int:
        """Position of the first request that is marked; `end` without one."""
        return self._first(mask, self.requests)

    def first_response(self, mask: Mask) -> int:
        """Position of the first response that is marked; `end` without one."""
        return self._first(mask, self.responses)

    def _first(self, mask: Mask, positions: Index) -> int:
        found = int(mask.argmax()) if len(mask) else 0
        return int(positions[found]) if len(mask) and mask[found] else self.end

    def packets(self, positions: npt.ArrayLike) -> list[TransportPacket]:
        """The packets at some positions."""
        return self.rows.take(np.asarray(positions, np.int64)).packets()

    @cached_property
    def last_request(self) -> TransportPacket:
        """The last request, of which there must be one."""
        return self.packets(self.requests[-1:])[0]

    @cached_property
    def last_response(self) -> TransportPacket:
        """The last response, of which there must be one."""
        return self.packets(self.responses[-1:])[0]

    @cached_property
    def awaited(self) -> Awaited:
        """The requests that are answered by responses of their own kind, or wait for them."""
        old = [m for m in self.exchange.tracker.messages if 0 <= m.next_response <= m.last]
        at = np.flatnonzero(_IS_ANSWERED[self.opcode])
        psn = self.psn[at]

        def joined(before: list[int], new: npt.NDArray[Any]) -> Index:
            return np.concatenate([np.array(before, np.int64), new.astype(np.int64)])

        operations = [_OPERATIONS[_OF_VERB[each.verb]] for each in old]
        return Awaited(
            operation=joined(operations, OPERATION[self.opcode[at]]).astype(np.int16),
            first=joined([each.first for each in old], psn),
            following=joined([each.next_response for each in old], psn),
            span=joined([each.last + 1 - each.first for each in old], self.span[at]),
            dma_len=joined([-1] * len(old), self.rows.dma_len[self.requests[at]]),
            position=joined([-1] * len(old), self.requests[at]),
        )

    @cached_property
    def answered(self) -> Index:
        """(own answers,) which of those requests each response answers."""
        awaited = self.awaited
        counts = awaited.first + awaited.span - awaited.following
        which = np.repeat(np.arange(len(counts)), counts)
        answered: Index = which[: int(self.is_own_answer.sum())]
        return answered
