"""A generator for tests whose cases are given."""

from __future__ import annotations

from ibwire.fuzz.case import Case, Connection, Step
from ibwire.fuzz.targets.emulated_device import Emulation


class Scripted:
    """Makes the same steps for every case."""

    def __init__(self, *steps: Step, connection: Connection | None = None) -> None:
        self.connection = connection or Connection()
        self._steps = iter(steps)

    def next(self, reference: Emulation) -> Step | None:
        """The next step, `None` at the end of the case."""
        return next(self._steps, None)


def scripted(case: Case) -> Scripted:
    """Makes the steps of a case, on its connection."""
    return Scripted(*case.steps, connection=case.connection)
