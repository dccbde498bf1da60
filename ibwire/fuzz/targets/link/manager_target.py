"""The connection manager of a device on a real link as a target of `ibwire fuzz`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NoReturn

from ibwire.fuzz.campaign import Maker
from ibwire.fuzz.case import Case, CaseError, Role
from ibwire.fuzz.judge.comparison import Duel
from ibwire.fuzz.targets.emulator import Target
from ibwire.fuzz.targets.link.manager import ManagerBench
from ibwire.fuzz.targets.link.manager_campaign import LiveManagerCampaign, duel
from ibwire.fuzz.targets.link.run import not_made
from ibwire.fuzz.vocabulary.cm.comparison import Farewell
from ibwire.fuzz.vocabulary.queue_pair.script import CannotSay
from ibwire.rc.profile import Profile


@dataclass(frozen=True)
class ManagerLinkTarget(Target):
    """The manager of a bench."""

    bench: ManagerBench

    @property
    def role(self) -> Role:
        """What of a device is attacked."""
        return Role.CM

    @property
    def options(self) -> str:
        """How a command is told of it."""
        bench = self.bench
        place = f"--dev {bench.endpoint.port.name} --peer {bench.peer}"
        return f"{place} --service {bench.service}"

    def campaign(self, role: Role, make: Maker, **options: Any) -> LiveManagerCampaign:
        """A run against it; raises `CaseError` for another role than `cm`."""
        if role is not Role.CM:
            raise CaseError(
                f"role {str(role)!r}: with --service the connection manager is attacked"
            )
        return LiveManagerCampaign(self.bench, make, **options)

    def duel(self, case: Case, profile: Profile) -> Duel:
        """The reference and it, with somebody new."""
        bench = self.bench
        return Farewell(bench) if bench.dead or bench.lost else duel(bench, profile)


def manager_target(bench: ManagerBench) -> ManagerLinkTarget:
    """The manager of a bench as a target."""
    return ManagerLinkTarget(f"live:{bench.peer}", not_made, not_made, _not_tried, bench)


def _not_tried(text: str) -> NoReturn:
    raise CannotSay("a script is not tried with a connection manager on a link")
