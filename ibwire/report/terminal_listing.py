"""One line per packet that fits a terminal: what matters most comes first, the rest is cut off.

The whole line of `Listing` is about 160 columns wide. Here the time has microseconds, the
operation of a reliable connection has no prefix, an ACK or NAK is in its place, and faults stand
before the details of the headers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ibwire.dissect.columns import Columns
from ibwire.dissect.lines import Piece, words
from ibwire.report.listing import CRC_BAD, Listing, Rows, cells, details, others, verdicts
from ibwire_layers import opcodes, syndrome
from ibwire_layers.syndrome import AckKind

NARROWEST = 40
"""Columns of a line at least, however narrow the terminal is."""


class Line(NamedTuple):
    """A packet on a terminal."""

    text: str
    colour: str | None


class TerminalListing(Listing):
    """Makes lines of at most `width` columns, with the colour of each."""

    _number = "%5d "
    _digits = 6

    def __init__(self, width: int) -> None:
        super().__init__()
        self._most = max(width, NARROWEST)

    def coloured(self, columns: Columns, rows: Rows) -> list[Line]:
        """One line for each of the given rows."""
        lines = self.lines(columns, rows)
        colours = _colours(columns)[rows].tolist()
        return [
            Line(self._cut(line), COLOURS[number])
            for line, number in zip(lines, colours, strict=True)
        ]

    def _pieces(self, columns: Columns, rows: Rows) -> Iterator[Piece]:
        yield from self._head(columns, rows)
        yield from _operation(columns)
        yield from others(columns)
        yield from verdicts(columns, faults_only=True)
        bth = columns.valid("bth.opcode")
        yield Piece(" qp=0x%x", (cells(columns, "bth.destqp"),), bth)
        yield from details(columns)
        yield Piece(" len=%d", (cells(columns, "frame.len"),))

    def _cut(self, line: str) -> str:
        return line if len(line) <= self._most else line[: self._most - 1] + "…"


def _operation(columns: Columns) -> Iterator[Piece]:
    """Operation, or the syndrome of an acknowledgement, and the PSN."""
    bth = columns.valid("bth.opcode")
    if not bth.any():
        return
    acknowledges = bth & columns.valid("aeth.syndrome") & _is_acknowledge(columns)
    psn = cells(columns, "bth.psn")
    yield Piece(
        "%-18s psn=%-8d", ((columns["bth.opcode"], words(_NAMES)), psn), bth & ~acknowledges
    )
    yield Piece(
        "%-18s psn=%-8d", ((columns["aeth.syndrome"], words(_SYNDROMES)), psn), acknowledges
    )


def _is_acknowledge(columns: Columns) -> npt.NDArray[np.bool_]:
    return np.isin(columns["bth.opcode"] & 0x1F, (opcodes.OpCode.RC_ACKNOWLEDGE & 0x1F,))


def _colours(columns: Columns) -> npt.NDArray[np.uint8]:
    """(n,) index of the colour of each packet; a later rule overrules the ones before."""
    found = np.zeros(columns.rows, np.uint8)
    bth = columns.valid("bth.opcode")
    if bth.any():
        kind = columns["aeth.syndrome.opcode"]
        answers = bth & columns.valid("aeth.syndrome") & _is_acknowledge(columns)
        found[answers & (kind == AckKind.ACK)] = _ACK
        marked = bth & (columns["bth.opcode"] == opcodes.OpCode.CNP)
        for name in ("ip.dsfield.ecn", "ipv6.tclass.ecn"):
            marked |= bth & columns.valid(name) & (columns[name] == 3)
        found[marked] = _CONGESTION
        found[answers & (kind == AckKind.RNR_NAK)] = _RNR
        found[answers & (kind == AckKind.NAK)] = _FAULT
    for name in ("macc.pause_time", "macc.pfc.time"):
        found[columns.valid(name)] = _CONGESTION
    for name in ("icrc.status", "vcrc.status", "lpcrc.status"):
        found[columns.valid(name) & (columns[name] == CRC_BAD)] = _FAULT
    found[columns.valid("fault")] = _FAULT
    return found


def _short(name: str) -> str:
    for long, short in _SHORT:
        name = name.replace(long, short)
    return name


COLOURS = (None, "bright_black", "cyan", "yellow", "red")
_ACK, _CONGESTION, _RNR, _FAULT = range(1, 5)

_SHORT = (
    ("RDMA_", ""),
    ("READ_RESPONSE", "READ_RESP"),
    ("_WITH_IMMEDIATE", "_IMM"),
    ("_WITH_INVALIDATE", "_INV"),
    ("ATOMIC_ACKNOWLEDGE", "ATOMIC_ACK"),
)
_NAMES = tuple(_short(opcodes.name_of(code).removeprefix("RC_")) for code in range(256))
_SYNDROMES = tuple(
    syndrome.describe(value)
    .replace("PSN_SEQUENCE_ERROR", "SEQUENCE")
    .replace("REMOTE_", "")
    .replace("_ERROR", "")
    .replace("RNR NAK wait=", "RNR NAK ")
    for value in range(256)
)
