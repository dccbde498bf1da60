"""Which opcodes have met which states, and what was answered: seen from outside."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ibwire.fuzz.emulation import Emulation
from ibwire.node import Frame

_BTH = 42
"""Where the BTH is in what an emulation sends: behind Ethernet, IPv4 and UDP."""


class Coverage:
    """Packets by state, opcode and answer."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, int, tuple[int, ...]]] = Counter()

    def count(self, state: str, opcode: int, answers: Sequence[Frame]) -> None:
        """One more packet."""
        if not answers:
            kind: tuple[int, ...] = ()
        else:
            first = answers[0]
            op = first[_BTH]
            kind = (op, first[_BTH + 12] & 0x7F) if op == 0x11 else (op,)
        self.counts[state, opcode, kind] += 1


def state_of(reference: Emulation) -> str:
    """The state of a connection, as a peer could know it."""
    if not reference.is_alive:
        return "ERROR"
    message = reference.under_way
    requester = reference.qp.requester
    if requester.wqes:
        return "RNR WAIT" if requester.timers.rnr is not None else "WAITING"
    return "IDLE" if message is None else message.name
