"""Which packets have met which states, and what was answered."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ibwire.base.node import Frame
from ibwire.fuzz.case import Packet

OTHERS = "all others"
"""The row of the table for opcodes that the scheme does not name."""

Answer = tuple[int, ...]
"""An answer: nothing, its number, or its number and a code."""

Cell = tuple[int, ...]
"""What a packet has met, as numbers of values of several dimensions."""


@dataclass(frozen=True, slots=True)
class CoverageScheme:
    """How the packets of a vocabulary are counted."""

    states: Sequence[str]
    names: Mapping[int, str]
    """Rows of the table, by the number of a packet."""
    number_of: Callable[[Packet], int]
    answer_of: Callable[[Sequence[Frame]], Answer]
    """The first answer that counts."""
    text_of: Callable[[Answer], str]
    """An answer in words, without its numbers."""


class Coverage:
    """Packets by state, number and answer."""

    def __init__(self, scheme: CoverageScheme) -> None:
        self.scheme = scheme
        self.counts: Counter[tuple[str, int, Answer]] = Counter()
        self.cells: Counter[Cell] = Counter()
        """Packets by what they have met, where the vocabulary tells."""

    def count(self, state: str, packet: Packet, answers: Sequence[Frame]) -> None:
        """Count a packet and its answers."""
        scheme = self.scheme
        self.counts[state, scheme.number_of(packet), scheme.answer_of(answers)] += 1

    def table(self) -> dict[str, dict[str, Counter[str]]]:
        """Answers by packet and state, everything by name; also what was never tried."""
        scheme = self.scheme
        rows: dict[str, dict[str, Counter[str]]] = {
            name: {state: Counter() for state in scheme.states}
            for name in (*scheme.names.values(), OTHERS)
        }
        for (state, number, answer), count in self.counts.items():
            name = scheme.names.get(number, OTHERS)
            rows[name][state][scheme.text_of(answer) if answer else "silence"] += count
        return rows

    def tried(self) -> tuple[int, int, int]:
        """Pairs of packet and state that were tried, all pairs, and answers of those tried."""
        cells = [cell for row in self.table().values() for cell in row.values()]
        return sum(bool(cell) for cell in cells), len(cells), sum(len(cell) for cell in cells)
