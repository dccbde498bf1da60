"""Makes a case against a connection manager step by step, from the state of its exchanges.

Most of the time the next step of an exchange is the right one for the state that it is in,
so that all states are reached; between them operators leave what is right there.
"""

from __future__ import annotations

from bisect import bisect
from collections import deque
from collections.abc import Collection, Sequence
from itertools import accumulate
from random import Random

from ibwire.fuzz.case import Connection, Mad, Step
from ibwire.fuzz.targets.emulated_device import Emulation
from ibwire.fuzz.targets.emulated_manager import Management, management_of
from ibwire.fuzz.vocabulary.cm.traffic import OVER, ManagerTraffic
from ibwire.fuzz.vocabulary.operators import MESSAGE_OPERATORS, selected

LONGEST = 120
"""Steps of a case; one case in fifty takes ten times as many, to find what accumulates."""

OPERATOR_RATES = 0.6, 0.7, 0.8
"""How often an operator is used while an exchange is under way: one of them for each case."""

OPERATOR_RATE_WHEN_OVER = 0.3
"""How often before and after it: a higher rate would leave few exchanges under way."""


class ManagerGenerator:
    """One case against a connection manager. rng: of this case alone. ops: all if empty."""

    def __init__(self, rng: Random, ops: Collection[str] = ()) -> None:
        self.rng = rng
        self.connection = Connection()
        self._traffic = ManagerTraffic(rng)
        self._queue: deque[Step] = deque()
        self._left = rng.randrange(10, LONGEST if rng.random() < 0.98 else 10 * LONGEST)
        self._operators = selected(MESSAGE_OPERATORS, ops)
        self._weights = list(accumulate(each.weight for each in self._operators))
        self._rate = rng.choice(OPERATOR_RATES)

    def next(self, reference: Emulation) -> Step | None:
        """The next step, `None` at the end of the case."""
        management = management_of(reference)
        self._left -= 1
        if self._left < 0:
            return None
        if not self._queue:
            self._queue.extend(self._choose(management))
        step = self._queue.popleft()
        if isinstance(step, Mad):
            self._traffic.sent.append(step)
            management.exchange = step.exchange
        return step

    def _choose(self, management: Management) -> Sequence[Step]:
        rng, traffic = self.rng, self._traffic
        if rng.random() < 0.1:
            traffic.exchange = max(traffic.newest - rng.randrange(3), 0)
        is_over = management.exchange_state(traffic.exchange) in OVER
        if self._operators and rng.random() < (OPERATOR_RATE_WHEN_OVER if is_over else self._rate):
            chosen = bisect(self._weights, rng.random() * self._weights[-1])
            return self._operators[chosen].make(traffic, management)
        return traffic.next_steps(management)
