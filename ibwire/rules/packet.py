"""What rules about single packets are made of: a condition over columns, and words for a packet."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ibwire.dissect import Columns
from ibwire.dissect.icrc import STATUS_WORDS
from ibwire.rules.aspects import Aspect
from ibwire.rules.findings import Rule
from ibwire_layers.errors import Fault
from ibwire_layers.opcodes import INFO, OpCodeInfo
from ibwire_layers.packet import CrcStatus

Mask = npt.NDArray[np.bool_]

GOOD = STATUS_WORDS.index(CrcStatus.GOOD)
BAD = STATUS_WORDS.index(CrcStatus.BAD)
TRUNCATED = STATUS_WORDS.index(CrcStatus.TRUNCATED)


class Chunk:
    """Some transport packets of a chunk of a capture, as columns."""

    def __init__(self, columns: Columns, rows: npt.NDArray[np.int64]) -> None:
        self.columns = columns
        self.rows = rows
        self.opcode: npt.NDArray[np.uint8] = columns.frames.opcode[rows]
        self._taken: dict[str, npt.NDArray[Any]] = {}

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        """(n,) values of a field, zero where a packet does not have it."""
        if name not in self._taken:
            self._taken[name] = self.columns[name][self.rows]
        return self._taken[name]

    def are(self, opcodes: Mask) -> Mask:
        """(n,) whose opcode is marked in a table of 256."""
        return opcodes[self.opcode]

    @property
    def numbers(self) -> npt.NDArray[np.int64]:
        """(n,) in the capture, from 1."""
        return self.rows + self.columns.frames.batch.first_number


def sound(columns: Columns) -> Chunk:
    """The packets that a receiver would process, and that can be read.

    The ICRC of a packet that the snap length has cut cannot be checked; it counts as
    correct if the captured part is valid.
    """
    frames = columns.frames
    status = columns["icrc.status"]
    kept = (frames.payload >= 0) & ((status == GOOD) | (status == TRUNCATED))
    kept &= (frames.fault == Fault.NONE) | (frames.fault == Fault.TRUNCATED)
    return Chunk(columns, np.flatnonzero(kept))


def intact(columns: Columns) -> Chunk:
    """Every packet with a BTH whose ICRC is correct, also those that cannot be read to the end."""
    kept = (columns.frames.bth >= 0) & (columns["icrc.status"] == GOOD)
    return Chunk(columns, np.flatnonzero(kept))


@dataclass(frozen=True, slots=True)
class PacketRule:
    """A rule that one packet can break by itself."""

    rule: Rule
    is_broken: Callable[[Chunk], Mask]
    words: Callable[[Chunk, int], str]
    """What was found in a row of the chunk, and what was expected."""
    of: Callable[[Columns], Chunk] = sound
    has_icrc: bool = True
    """Whether damage of its packets would show in their ICRC."""
    aspect: Aspect = Aspect.OTHER
    """What it looks at: where that is as usual in all packets, none breaks the rule."""


def opcodes_where(condition: Callable[[OpCodeInfo], bool]) -> Mask:
    """(256,) the known opcodes for which something is so."""
    table = np.zeros(256, np.bool_)
    table[[code for code, info in INFO.items() if condition(info)]] = True
    return table
