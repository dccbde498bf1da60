"""What makes a case step by step while it watches the reference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from ibwire.fuzz.case import Connection, Step
from ibwire.fuzz.targets.emulated_device import Emulation


class Stepper(Protocol):
    """Makes one case."""

    @property
    def connection(self) -> Connection:
        """The connection that the case begins with."""
        ...

    def next(self, reference: Emulation) -> Step | None:
        """The next step, `None` at the end of the case."""
        ...


Maker = Callable[[int], Stepper]
"""Makes the stepper of a case, by its number."""
