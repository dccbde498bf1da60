"""A generator for tests whose cases are given."""

from __future__ import annotations

from ibwire.fuzz.case import Connection, Step
from ibwire.fuzz.targets.emulated_device import Emulation


class Scripted:
    """Makes the same steps for every case."""

    def __init__(self, *steps: Step) -> None:
        self.connection = Connection()
        self._steps = iter(steps)

    def next(self, reference: Emulation) -> Step | None:
        """The next step, `None` at the end of the case."""
        return next(self._steps, None)
