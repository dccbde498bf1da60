"""Congestion notification: the form of CNPs, how often they come, and whether they come at all."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt

from ibwire.connections.connection import Connection
from ibwire.connections.packets import TransportPacket
from ibwire.rules.aspects import Aspect
from ibwire.rules.findings import Rule, Severity
from ibwire.rules.history import Violation
from ibwire.rules.packet import Chunk, Mask, PacketRule, opcodes_where
from ibwire_layers.headers import LRH
from ibwire_layers.opcodes import OpCode, Operation, name_of

FORM = Rule(
    "congestion.cnp-form",
    "A CNP has BECN 1, and FECN, PSN, SE, PadCnt, AckReq and its 16 reserved bytes 0.",
    Severity.ERROR,
    "IBA annex A17.9.3",
    "docs/reference/wire-formats.md#cnp",
)
PACE = Rule(
    "congestion.cnp-pace",
    "CNPs to one queue pair are at least 4 microseconds apart; a sender ignores those in between.",
    Severity.NOTE,
    "IBA annex A17.9",
    "docs/reference/congestion.md#rate-cut",
    is_timed=True,
)
UNANSWERED = Rule(
    "congestion.no-cnp",
    "A receiver of packets with a CE mark sends CNPs.",
    Severity.WARNING,
    "IBA annex A17.9",
    "docs/reference/congestion.md#cnp-pacing; rxe sends none: ecn-ce",
    ("rxe",),
)

BECN = Rule(
    "congestion.becn",
    "BECN is set only in CNPs; on InfiniBand also in ACKNOWLEDGE packets.",
    Severity.WARNING,
    "IBA annex A10, annex A17.9",
    "docs/reference/wire-formats.md#cnp",
    least=4,
)

RULES: tuple[Rule, ...] = (FORM, PACE, UNANSWERED, BECN)

PACE_NS = 4_000
"""`rate_reduce_monitor_period` (NVIDIA, DCQCN parameters): sooner ones change nothing."""
MARKS = 4
"""Marked packets from which on a missing answer is worth a word."""

_CNP = opcodes_where(lambda info: info.opcode is OpCode.CNP)
_ACKNOWLEDGE = opcodes_where(lambda info: info.operation is Operation.ACKNOWLEDGE)
_FIELDS = {
    "bth.becn": 1,
    "bth.fecn": 0,
    "bth.psn": 0,
    "bth.se": 0,
    "bth.padcnt": 0,
    "bth.a": 0,
}
"""What a CNP holds in its BTH (annex A17.9.3). MigReq differs between devices."""


def _is_malformed(chunk: Chunk) -> Mask:
    cnps = chunk.are(_CNP)
    if not cnps.any():
        return cnps
    at = np.flatnonzero(cnps)
    wrong = chunk["cnp.reserved"][at].any(axis=1)
    for field, value in _FIELDS.items():
        wrong |= chunk[field][at] != value
    cnps[at] = wrong
    return cnps


def _form(chunk: Chunk, row: int) -> str:
    found = [
        f"{field} {chunk[field][row]}, expected {value}"
        for field, value in _FIELDS.items()
        if chunk[field][row] != value
    ]
    return f"CNP with {'; '.join(found) or 'something in its reserved bytes'}"


def _has_becn(chunk: Chunk) -> Mask:
    is_local = chunk.columns.frames.position(LRH)[chunk.rows] >= 0
    mask: Mask = (chunk["bth.becn"] != 0) & ~chunk.are(_CNP) & ~(is_local & chunk.are(_ACKNOWLEDGE))
    return mask


PACKET_RULES: tuple[PacketRule, ...] = (
    PacketRule(FORM, _is_malformed, _form, aspect=Aspect.CNP),
    PacketRule(
        BECN,
        _has_becn,
        lambda chunk, row: f"{name_of(int(chunk.opcode[row]))} with BECN 1, expected 0",
        aspect=Aspect.BECN,
    ),
)


class Notifications:
    """CE marks and CNPs of one connection."""

    __slots__ = ("cnps", "first", "last_ns", "marks")

    def __init__(self) -> None:
        self.marks = [0, 0]
        """By direction of the marked packets."""
        self.first: tuple[list[int], list[int]] = ([], [])
        """Numbers of the first marked packets."""
        self.cnps = [0, 0]
        """By direction of the CNPs."""
        self.last_ns: list[int | None] = [None, None]

    def mark(self, direction: int, packet: TransportPacket) -> None:
        """A packet with the CE mark."""
        self.marks[direction] += 1
        if len(self.first[direction]) < MARKS:
            self.first[direction].append(packet.number)

    def mark_many(self, direction: int, numbers: npt.NDArray[np.int64]) -> None:
        """Packets with the CE mark, by their numbers."""
        self.marks[direction] += len(numbers)
        room = MARKS - len(self.first[direction])
        self.first[direction].extend(numbers[:room].tolist())

    def cnp(self, direction: int, packet: TransportPacket) -> Iterable[Violation]:
        """A CNP."""
        before = self.last_ns[direction]
        self.last_ns[direction] = packet.time_ns
        self.cnps[direction] += 1
        if before is not None and 0 <= packet.time_ns - before < PACE_NS:
            found = f"{(packet.time_ns - before) / 1000:.3f} us after the previous one"
            yield PACE, f"CNP {found}, expected at least {PACE_NS / 1000:g} us", packet

    def unanswered(self, connection: Connection) -> Iterator[tuple[int, list[int], int, str]]:
        """Directions whose marks caused no CNP: its missing sender, packets, count, words."""
        if not connection.is_paired:
            return
        for direction, marks in enumerate(self.marks):
            if marks >= MARKS and not self.cnps[1 - direction]:
                words = f"{marks} packets marked CE, no CNP received"
                yield 1 - direction, self.first[direction], marks, words
