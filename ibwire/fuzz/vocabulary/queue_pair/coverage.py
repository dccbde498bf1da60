"""Which opcodes have met which states, and what was answered: seen from outside."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ibwire.base.node import Frame
from ibwire.fuzz.case import Packet, opcode_text
from ibwire_layers import syndrome as aeth
from ibwire_layers.opcodes import INFO, OpCode, Service
from ibwire_layers.syndrome import AckKind

STATES = ("IDLE", "SEND", "WRITE", "WAITING", "RNR WAIT", "ERROR")
"""What `Emulation.state` may say: at rest, in a message, waiting for answers, ended."""

OPCODES = tuple(opcode for opcode, info in INFO.items() if info.service is Service.RC)
"""Those that a reliable connection knows."""

OTHERS = "all others"
"""A row of the table: opcodes that it does not know."""

_BTH = 42
"""Where the BTH is in what an emulation sends: behind Ethernet, IPv4 and UDP."""

Kind = tuple[int, ...]
"""An answer: nothing, its opcode, or that of an ACK and its syndrome."""


class Coverage:
    """Packets by state, opcode and answer."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, int, Kind]] = Counter()

    def count(self, state: str, packet: Packet, answers: Sequence[Frame]) -> None:
        """One more packet."""
        if not answers:
            kind: Kind = ()
        else:
            first = answers[0]
            op = first[_BTH]
            kind = (op, first[_BTH + 12] & 0x7F) if op == 0x11 else (op,)
        self.counts[state, packet.opcode, kind] += 1

    def table(self) -> dict[str, dict[str, Counter[str]]]:
        """Answers by opcode and state, everything by name; also what was never tried."""
        names = {int(opcode): opcode_text(opcode) for opcode in OPCODES}
        rows: dict[str, dict[str, Counter[str]]] = {
            name: {state: Counter() for state in STATES} for name in (*names.values(), OTHERS)
        }
        for (state, opcode, kind), count in self.counts.items():
            rows[names.get(opcode, OTHERS)][state][answer_text(kind)] += count
        return rows

    def tried(self) -> tuple[int, int, int]:
        """Pairs of opcode and state that were tried, that there are, and answers of them."""
        cells = [cell for row in self.table().values() for cell in row.values()]
        return sum(bool(cell) for cell in cells), len(cells), sum(len(cell) for cell in cells)


def answer_text(kind: Kind) -> str:
    """An answer in words, without its numbers."""
    if not kind:
        return "silence"
    if len(kind) == 1 or kind[0] != OpCode.RC_ACKNOWLEDGE:
        return opcode_text(kind[0])
    if aeth.kind(kind[1]) is AckKind.ACK:
        return "ACK"
    if aeth.kind(kind[1]) is AckKind.RNR_NAK:
        return "RNR NAK"
    return aeth.describe(kind[1])
