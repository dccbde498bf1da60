"""Atomic operations: aligned, the same when retransmitted, executed once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, Self, TypeVar

import numpy as np
import numpy.typing as npt

from ibwire.connections.packets import Rows, TransportPacket
from ibwire.connections.states import RETRANSMITTED, PacketStatus
from ibwire.rules.aspects import Aspect
from ibwire.rules.findings import Rule, Severity
from ibwire.rules.history import FRESH, ConnectionCheck, Operands, RequestHistory, Violation
from ibwire.rules.packet import Chunk, Mask, PacketRule, opcodes_where
from ibwire.rules.regular import Regular, first_of, opcode_table
from ibwire_layers.opcodes import INFO, Operation, name_of

ALIGNED = Rule(
    "atomics.aligned",
    "The address of an atomic or ATOMIC WRITE is a multiple of 8.",
    Severity.ERROR,
    "IBA 9.7.4",
    "docs/reference/transport.md#atomic-alignment; NAK 0x61 in probe-odd-frames",
)
SAME = Rule(
    "atomics.same",
    "A retransmitted atomic has the same address, R_Key and operands.",
    Severity.ERROR,
    "IBA 9.7.5.1.4",
    "docs/reference/transport.md#duplicate-atomic",
)
ONCE = Rule(
    "atomics.once",
    "An atomic is executed once: every response to it holds the same original value.",
    Severity.ERROR,
    "IBA 9.7.5.1.4",
    "docs/reference/transport.md#duplicate-atomic; rxe_resp.c duplicate_request; drop-atomic-ack",
)

RULES: tuple[Rule, ...] = (ALIGNED, SAME, ONCE)

T = TypeVar("T")

KEEP: Final = 256
"""Atomics that are remembered."""

REQUESTS = frozenset(
    code
    for code, info in INFO.items()
    if info.operation in (Operation.COMPARE_SWAP, Operation.FETCH_ADD)
)
ANSWERS = frozenset(
    code for code, info in INFO.items() if info.operation is Operation.ATOMIC_ACKNOWLEDGE
)

_IS_REQUEST, _IS_ANSWER = opcode_table(REQUESTS), opcode_table(ANSWERS)
_ATOMIC = opcodes_where(lambda info: info.opcode in REQUESTS)
_ATOMIC_WRITE = opcodes_where(lambda info: info.operation is Operation.ATOMIC_WRITE)


def _is_unaligned(chunk: Chunk) -> Mask:
    atomic = chunk.are(_ATOMIC) & (chunk["atomiceth.va"] & 7 != 0)
    written = chunk.are(_ATOMIC_WRITE) & (chunk["reth.va"] & 7 != 0)
    mask: Mask = atomic | written
    return mask


def _address(chunk: Chunk, row: int) -> str:
    field = "atomiceth.va" if chunk.opcode[row] in REQUESTS else "reth.va"
    found = f"{name_of(int(chunk.opcode[row]))} at 0x{chunk[field][row]:x}"
    return f"{found}, expected a multiple of 8"


PACKET_RULES: tuple[PacketRule, ...] = (
    PacketRule(ALIGNED, _is_unaligned, _address, aspect=Aspect.ADDRESS),
)


class Atomics(ConnectionCheck):
    """Operands and results by PSN."""

    __slots__ = ("_asked", "_regular", "_results", "_waiting")

    def __init__(self, history: RequestHistory) -> None:
        super().__init__(history)
        self._asked: dict[int, tuple[TransportPacket, Operands]] = {}
        self._results: dict[int, tuple[int, Operands]] = {}
        self._regular: list[tuple[Rows, npt.NDArray[np.uint64]]] = []
        """Newer packets and their operands that nothing was compared with yet: arrays."""
        self._waiting = 0
        """How many those are."""

    def request(self, packet: TransportPacket, status: PacketStatus) -> Iterable[Violation]:
        """Compare a retransmission with the first transmission."""
        if packet.opcode not in REQUESTS:
            return ()
        operands = self.history.operands.get(packet.number)
        if operands is None:
            return ()
        self._unpack()
        operands = _compared(packet, operands)
        if status in FRESH:
            self._note_request(packet, operands)
            return ()
        known = self._asked.get(packet.psn) if status is RETRANSMITTED else None
        return () if known is None else self._compare(packet, operands, *known)

    def _compare(
        self,
        packet: TransportPacket,
        operands: Operands,
        first: TransportPacket,
        before: Operands,
    ) -> Iterable[Violation]:
        """A retransmitted atomic; before: the operands of the first one."""
        if (packet.opcode, packet.va, packet.rkey) != (first.opcode, first.va, first.rkey):
            found = f"{name_of(packet.opcode)} at 0x{packet.va:x}, R_Key 0x{packet.rkey:x}"
            expected = f"{name_of(first.opcode)} at 0x{first.va:x}, R_Key 0x{first.rkey:x}"
            yield SAME, f"{found} retransmitted, expected {expected}", packet
        elif operands != before:
            found = f"{name_of(packet.opcode)} retransmitted with {_words(operands)}"
            yield SAME, f"{found}, expected {_words(before)}", packet

    def response(self, packet: TransportPacket, status: PacketStatus) -> Iterable[Violation]:
        """Compare an answer with the one before to the same request."""
        return self._compare_answer(packet) if packet.opcode in ANSWERS else ()

    def _compare_answer(self, packet: TransportPacket) -> Iterable[Violation]:
        """The response to an atomic."""
        operands = self.history.operands.get(packet.number)
        if operands is None:
            return
        self._unpack()
        value = _compared(packet, operands)
        number, before = self._note_response(packet, value)
        if before != value:
            found = f"ATOMIC ACKNOWLEDGE of PSN {packet.psn} with {_words(value)}"
            yield ONCE, f"{found}, expected {_words(before)} as in packet {number}", packet

    def _note_request(self, packet: TransportPacket, operands: Operands) -> None:
        self._results.pop(packet.psn, None)
        _keep(self._asked, packet.psn, (packet, operands))

    def _note_response(self, packet: TransportPacket, value: Operands) -> tuple[int, Operands]:
        """Remember a response; returns the number and the value of the first of its PSN."""
        first = self._results.get(packet.psn, (packet.number, value))
        _keep(self._results, packet.psn, first)
        return first

    @classmethod
    def mark_alone(cls, checks: Sequence[Self], run: Regular) -> None:
        """None: only what is retransmitted can differ."""

    @classmethod
    def run(cls, checks: Sequence[Self], run: Regular) -> None:
        """Remember requests and responses."""
        asks = np.flatnonzero(_IS_REQUEST[run.opcode])
        answers = np.flatnonzero(_IS_ANSWER[run.answer_opcode])
        if not len(asks) and not len(answers):
            return
        key = np.concatenate([run.key[asks], run.answer_key[answers]])
        at = np.concatenate([run.requests[asks], run.responses[answers]])
        order = np.argsort(run.places(key, at))
        key, rows = key[order], run.rows.take(at[order])
        values, known = checks[0].history.operands.of(rows.number)
        starts = np.flatnonzero(first_of(key))
        ends = np.append(starts[1:], len(key))
        for place, start, end in zip(
            key[starts].tolist(), starts.tolist(), ends.tolist(), strict=True
        ):
            kept = start + np.flatnonzero(known[start:end])
            checks[place]._keep_regular(rows.take(kept), values[kept])

    def _keep_regular(self, rows: Rows, values: npt.NDArray[np.uint64]) -> None:
        self._regular.append((rows, values))
        self._waiting += len(rows)
        while self._waiting - len(self._regular[0][0]) >= 4 * KEEP:
            self._waiting -= len(self._regular.pop(0)[0])

    def _unpack(self) -> None:
        waiting, self._regular, self._waiting = self._regular, [], 0
        for rows, values in waiting:
            for packet, operands in zip(rows.packets(), values.tolist(), strict=True):
                if packet.opcode in REQUESTS:
                    self._note_request(packet, _compared(packet, tuple(operands)))
                else:
                    self._note_response(packet, _compared(packet, tuple(operands)))


def _compared(packet: TransportPacket, operands: Operands) -> Operands:
    """The operands of a packet that mean something."""
    return operands if INFO[packet.opcode].operation is Operation.COMPARE_SWAP else operands[:1]


def _words(operands: Operands) -> str:
    return " and ".join(f"0x{value:x}" for value in operands)


def _keep(kept: dict[int, T], psn: int, value: T) -> None:
    """Remember the newest few."""
    kept.pop(psn, None)
    kept[psn] = value
    if len(kept) > KEEP:
        del kept[next(iter(kept))]
