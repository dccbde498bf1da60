"""Cases that go through every value of something that has few: codes, opcodes, counts, bits.

A fault in a single value is found by chance where values are drawn. Here each has its case, alone
or beside others that change nothing for it, and a run meets all of them, in an order that
depends on its seed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from ibwire.fuzz.case import Connection, Mad, Step
from ibwire.fuzz.targets.emulated_device import Emulation
from ibwire.fuzz.targets.emulated_manager import Management


@dataclass(frozen=True, slots=True)
class ValueCase:
    """A case by its connection, and what makes its steps when that is there."""

    connection: Connection
    make: Callable[[Emulation], Sequence[Step]]


def fixed(connection: Connection, steps: Sequence[Step]) -> ValueCase:
    """A case whose steps are the same on every device."""
    return ValueCase(connection, lambda reference: steps)


class OneOfEach:
    """Carries out a case."""

    def __init__(self, case: ValueCase) -> None:
        self.connection = case.connection
        """The connection that the case begins with."""
        self._make = case.make
        self._steps: deque[Step] | None = None

    def next(self, reference: Emulation) -> Step | None:
        """The next step, `None` at the end of the case."""
        if self._steps is None:
            self._steps = deque(self._make(reference))
        step = self._steps.popleft() if self._steps else None
        if isinstance(step, Mad) and isinstance(reference.application, Management):
            reference.application.exchange = step.exchange
        return step


class Shuffled:
    """Cases by number: all of them in one order, then in another one, and so on."""

    def __init__(self, seed: str, cases: Sequence[ValueCase]) -> None:
        self._seed = seed
        self._cases = cases
        self._round = -1
        self._order: Sequence[ValueCase] = ()

    def __len__(self) -> int:
        return len(self._cases)

    def case(self, number: int) -> ValueCase:
        """The case with this number, from 0."""
        turn, place = divmod(number, len(self._cases))
        if turn != self._round:
            rng = Random(f"{self._seed}:values:{turn}")
            self._order = rng.sample(self._cases, len(self._cases))
            self._round = turn
        return self._order[place]
