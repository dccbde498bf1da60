"""A duel of devices with connection managers."""

from __future__ import annotations

from typing import Protocol

from ibwire.fuzz.case import Command, Mad, Packet, Step
from ibwire.fuzz.judge.comparison import Difference, Duel, Subject
from ibwire.fuzz.targets.emulated_device import ADDRESS, PEER_ADDRESS
from ibwire.fuzz.targets.emulated_manager import ManagedEmulation
from ibwire.fuzz.vocabulary.cm.binding import ManagerBinding


class ManagedSubject(Subject, Protocol):
    """A device under test with a connection manager, in this process."""

    def command(self, command: Command) -> bool:
        """Let the application say something to its manager; whether it could."""
        ...


class ManagerDuel(Duel):
    """A reference and a target, each with a connection manager."""

    def __init__(self, reference: ManagedEmulation, target: ManagedSubject) -> None:
        super().__init__(ManagerBinding(PEER_ADDRESS, ADDRESS), reference, target)
        self._managed = reference, target

    def step(self, step: Step) -> Difference | None:
        """Carry out one step; `None` if both did the same."""
        reference = self._managed[0]
        if isinstance(step, Mad):
            reference.choose(step.exchange)
        elif isinstance(step, Command):
            reference.exchange = step.exchange
        elif isinstance(step, Packet):
            reference.choose(reference.exchange)
        return super().step(step)

    def _command(self, subject: Subject, step: Step) -> None:
        if isinstance(step, Command):
            self._managed[subject is self.target].command(step)
        else:
            super()._command(subject, step)
