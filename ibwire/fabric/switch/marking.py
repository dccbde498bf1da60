"""ECN: when a queue marks frames "congestion experienced" (CE).

Below `minimum` bytes in the queue nothing is marked, above `maximum` everything, between them
with a probability that grows to `probability` (RED). Equal limits are a step.

Source: docs/reference/fabric.md#ecn-marking.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from ibwire.base.errors import EncodeError


@dataclass(frozen=True, slots=True, kw_only=True)
class Ramp:
    """When to mark, by the bytes in the queue."""

    minimum: int
    maximum: int
    probability: float = 1.0
    """At `maximum`."""
    at_enqueue: bool = False
    """Whether the queue is looked at when a frame arrives, and not when it leaves."""

    def __post_init__(self) -> None:
        if self.minimum < 0:
            raise EncodeError("minimum", self.minimum, "0 or above")
        if self.maximum < self.minimum:
            raise EncodeError("maximum", self.maximum, f"{self.minimum} or above, as minimum is")
        if not 0 <= self.probability <= 1:
            raise EncodeError("probability", self.probability, "from 0 to 1")

    def hits(self, queued: int, draw: random.Random) -> bool:
        """Whether to mark a frame, with this many bytes in its queue."""
        if queued <= self.minimum:
            return False
        if queued > self.maximum:
            return True
        part = (queued - self.minimum) / (self.maximum - self.minimum)
        return draw.random() < self.probability * part
