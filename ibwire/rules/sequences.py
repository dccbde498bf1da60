"""Opcodes in order: a message is FIRST, MIDDLE ..., LAST, or ONLY, and nothing comes between."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, Self

import numpy as np

from ibwire.connections.packets import TransportPacket
from ibwire.connections.states import PacketStatus
from ibwire.connections.steps import steps
from ibwire.rules.findings import Rule, Severity
from ibwire.rules.history import (
    ENDS,
    IS_START,
    STARTS,
    ConnectionCheck,
    RequestHistory,
    Violation,
)
from ibwire.rules.packet import PacketRule, intact, opcodes_where
from ibwire.rules.regular import OPERATION, Regular, first_of
from ibwire_layers.opcodes import INFO, name_of
from ibwire_layers.psn import MASK, add

ORDER = Rule(
    "sequences.order",
    "Between the first and the last packet of a message come only packets of that message.",
    Severity.ERROR,
    "IBA 9.7.4",
    "docs/reference/transport.md#request-sequence; rxe_resp.c check_op_seq; NAK 0x61 in "
    "probe-odd-frames",
)
KNOWN = Rule(
    "sequences.opcode",
    "Opcodes are those that the specification defines, or those of manufacturers (0xE0 to 0xFF).",
    Severity.ERROR,
    "IBA 9.2.1",
    "docs/reference/transport.md#reserved-opcode; dropped by rxe: probe-odd-frames",
)
SERVICE = Rule(
    "sequences.service",
    "Packets to a queue pair have opcodes of its own transport service.",
    Severity.WARNING,
    "IBA 9.6.1",
    "docs/reference/transport.md#other-service; rxe_recv.c check_type_state; probe-odd-frames",
)

RULES: tuple[Rule, ...] = (ORDER, KNOWN, SERVICE)

_TABLE = opcodes_where(lambda info: True)
_MANUFACTURER: Final = 0xE0

PACKET_RULES: tuple[PacketRule, ...] = (
    PacketRule(
        KNOWN,
        lambda chunk: ~chunk.are(_TABLE) & (chunk.opcode < _MANUFACTURER),
        lambda chunk, row: f"opcode 0x{chunk.opcode[row]:02x} is reserved",
        intact,
    ),
)


class Order(ConnectionCheck):
    """Packets with adjacent PSNs are adjacent in a message, whatever their order of arrival.

    A packet is not judged if the packet before it is not the last one seen.
    """

    __slots__ = ("before",)

    def __init__(self, history: RequestHistory) -> None:
        super().__init__(history)
        self.before: TransportPacket | None = None

    def request(self, packet: TransportPacket, status: PacketStatus) -> Iterable[Violation]:
        """Compare with the request before, if that is its neighbour."""
        before = self.before
        self.before = packet
        if before is None or follows(before.opcode, packet.opcode):
            return ()
        span = self.history.span(before)
        if span is None or packet.psn != add(before.psn, span):
            return ()
        ended = before.opcode in ENDS
        expected = "the start of a message" if ended else "the rest of that message"
        found = f"{name_of(packet.opcode)} follows {name_of(before.opcode)}"
        return [(ORDER, f"{found}, expected {expected}", packet)]

    @classmethod
    def mark_alone(cls, checks: Sequence[Self], run: Regular) -> None:
        """A request of another operation within a message."""
        is_first = first_of(run.key)
        odd = np.zeros(run.count, np.bool_)
        first = run.starts[:-1][run.has_requests]
        for place, opcode, psn in zip(
            run.key[first].tolist(),
            run.opcode[first].tolist(),
            run.psn[first].tolist(),
            strict=True,
        ):
            before = checks[place].before
            if before is not None and not follows(before.opcode, opcode):
                span = checks[place].history.span(before)
                odd[place] = span is not None and add(before.psn, span) == psn & MASK
        run.mark_first_requests(odd)
        operation = OPERATION[run.opcode]
        changes = steps(operation, 0) != 0
        run.mark_requests(changes & ~is_first & ~IS_START[run.opcode])

    @classmethod
    def run(cls, checks: Sequence[Self], run: Regular) -> None:
        """Remember the last requests."""
        for check, request in zip(checks, run.last_requests, strict=True):
            if request is not None:
                check.before = request


def follows(before: int, opcode: int) -> bool:
    """Whether a request may have the PSN after another one."""
    if before in ENDS:
        return opcode in STARTS
    return opcode not in STARTS and INFO[before].operation is INFO[opcode].operation
