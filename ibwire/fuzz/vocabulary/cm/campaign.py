"""A run of a fuzzer against connection managers."""

from __future__ import annotations

from collections.abc import Callable, Collection
from random import Random
from typing import Any

from ibwire.fuzz.campaign import Campaign, Maker, Report
from ibwire.fuzz.case import Connection
from ibwire.fuzz.judge.comparison import Duel
from ibwire.fuzz.targets.emulated_manager import ManagedEmulation
from ibwire.fuzz.vocabulary.cm.coverage import ManagerCoverage
from ibwire.fuzz.vocabulary.cm.exact import ManagedSubject, ManagerDuel
from ibwire.fuzz.vocabulary.cm.generator import ManagerGenerator
from ibwire.rc.profile import Profile


class ManagerCampaign(Campaign):
    """Cases against one target with a connection manager; arguments are those of `Campaign`."""

    def __init__(
        self,
        open_target: Callable[[Connection], ManagedSubject],
        make: Maker,
        *,
        report: Report | None = None,
        **options: Any,
    ) -> None:
        report = report or Report(coverage=ManagerCoverage())
        super().__init__(open_target, make, report=report, **options)
        self._open_managed = open_target

    def _fresh(self, connection: Connection, profile: Profile) -> Duel:
        reference = ManagedEmulation(connection, profile)
        return ManagerDuel(reference, self._open_managed(connection))


def manager_generators(seed: int, ops: Collection[str] = ()) -> Maker:
    """The generator for connection managers, for each number of a case its own."""
    return lambda number: ManagerGenerator(Random(f"{seed}:cm:{number}"), ops)
