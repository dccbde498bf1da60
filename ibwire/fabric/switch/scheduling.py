"""Which priority of a port sends next: strict ones first, then the others by weight.

The weighted ones take turns (deficit round robin): in its turn a priority may send as many
bytes as its weight gives it, plus what was left of its last turn. It loses what is left when
its queue is empty.

Source: docs/reference/fabric.md#scheduling.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from ibwire.base.errors import EncodeError
from ibwire.fabric.pause import LANES

QUANTUM = 1600
"""Bytes of a turn for each unit of the smallest weight: more than a frame of most links, so that
each turn sends at least one frame."""


class Scheduler:
    """The order in which the priorities of a port send.

    strict: priorities that precede all others, the most urgent first.
    weights: of the others; 1 where none is given.
    """

    __slots__ = ("_deficits", "_is_owed", "_is_strict", "_quanta", "_ring", "_strict", "_turn")

    def __init__(
        self, strict: Sequence[int] = (), weights: Mapping[int, int] | None = None
    ) -> None:
        weights = weights or {}
        for lane, weight in weights.items():
            if weight < 1:
                raise EncodeError("weight", weight, "1 or above")
            if lane in strict:
                raise EncodeError(
                    "weight", weight, f"given for weighted priorities; {lane} is strict"
                )
        self._strict = tuple(strict)
        self._ring = [lane for lane in range(LANES) if lane not in strict]
        smallest = min(weights.values(), default=1)
        self._quanta = [QUANTUM * weights.get(lane, smallest) // smallest for lane in range(LANES)]
        self._deficits = [0] * LANES
        self._is_strict = [lane in strict for lane in range(LANES)]
        self._is_owed = False
        """Whether a priority has something left of its turn."""
        self._turn = 0
        """Index in the ring of the priority whose turn it is; its quantum is given."""

    def pick(self, sizes: list[int], blocked: int, waiting: int) -> int:
        """The priority that sends next, -1 if none may.

        sizes: of the first frame of each priority, 0 for an empty queue. blocked: the priorities
        that may not send it, as bits. waiting: those with a frame.
        """
        if not waiting & ~blocked:
            return -1
        if not waiting & waiting - 1:  # one only
            lane = _NUMBERS[waiting]
            if self._is_owed:
                self._forgive(sizes)
                self._use_up(lane, sizes[lane])
            return lane
        for lane in self._strict:
            if sizes[lane] and not blocked >> lane & 1:
                return lane
        ready = [lane for lane in self._ring if sizes[lane] and not blocked >> lane & 1]
        if len(ready) == 1:
            self._forgive(sizes)
            self._use_up(ready[0], sizes[ready[0]])
            return ready[0]
        return self._share(ready, sizes)

    def _use_up(self, lane: int, size: int) -> None:
        """The only priority that may send uses up its turn, but owes nothing."""
        if not self._is_strict[lane]:
            self._deficits[lane] = max(self._deficits[lane] - size, 0)
        self._is_owed = any(self._deficits)

    def _forgive(self, sizes: list[int]) -> None:
        """Priorities whose queue is empty lose what is left of their turn."""
        for lane in self._ring:
            if not sizes[lane]:
                self._deficits[lane] = 0

    def _share(self, ready: list[int], sizes: list[int]) -> int:
        deficits, ring = self._deficits, self._ring
        self._forgive(sizes)
        self._is_owed = True
        while True:
            lane = ring[self._turn]
            if lane in ready and deficits[lane] >= sizes[lane]:
                deficits[lane] -= sizes[lane]
                return lane
            self._turn = (self._turn + 1) % len(ring)
            following = ring[self._turn]
            if following in ready:
                deficits[following] += self._quanta[following]


_NUMBERS: Final = [bits.bit_length() - 1 for bits in range(1 << LANES)]
"""The highest priority by the bits of priorities."""
