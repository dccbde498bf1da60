"""A device on a link as a target of `ibwire fuzz`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NoReturn

from ibwire import drill
from ibwire.drill.live import Bench as DrillBench
from ibwire.fuzz.campaign import Maker
from ibwire.fuzz.case import Case, CaseError, Connection
from ibwire.fuzz.duel import Difference
from ibwire.fuzz.emulation import Emulation
from ibwire.fuzz.live import Bench
from ibwire.fuzz.live_campaign import LiveCampaign
from ibwire.fuzz.live_duel import LiveDuel, Playback
from ibwire.fuzz.targets import Target
from ibwire.rc.profile import Profile

ROLE = "responder"
"""What of a device on a link can be attacked."""


@dataclass(frozen=True)
class LinkTarget(Target):
    """The device of a bench."""

    bench: Bench

    @property
    def options(self) -> str:
        """How a command is told of it."""
        return f"--dev {self.bench.endpoint.port.name} --peer {self.bench.peer}"

    def campaign(self, role: str, make: Maker, **options: Any) -> LiveCampaign:
        """A run against it; raises `CaseError` for a role that it cannot have."""
        if role not in (ROLE, ""):
            raise CaseError(f"role {role!r}: of a device on a link only its {ROLE} is attacked")
        return LiveCampaign(self.bench, make, **options)

    def duel(self, case: Case, profile: Profile) -> LiveDuel:
        """The reference and it, with a new connection."""
        bench, numbers = self.bench, self.bench.numbers
        if bench.lost and numbers is not None:
            reference = Emulation(case.connection, profile, numbers)
            return _Gone(bench, reference)
        target = bench.connect(case.connection)
        reference = Emulation(case.connection, profile, target.numbers)
        return LiveDuel(bench.binding, bench.path, reference, target, taken=bench.taken)


class _Gone(LiveDuel):
    """A duel with a device that is not there any more: what was sent to it."""

    def __init__(self, bench: Bench, reference: Emulation) -> None:
        super().__init__(bench.binding, bench.path, reference, Playback([]), taken=bench.taken)
        self._reason = bench.lost
        self.quick()

    def end(self) -> Difference:
        """It does not go on."""
        return Difference(max(self.steps - 1, 0), "crash", [], [self._reason])


def link_target(bench: Bench) -> LinkTarget:
    """The device of a bench as a target."""

    def fulfils(text: str) -> bool:
        if bench.lost:
            return False
        script = drill.parse(text.encode(), "case.drill")
        endpoint, diverted = bench.endpoint, bench.diverted
        endpoint.live.node = bench.inner
        bench.disconnect()
        try:
            other = DrillBench(endpoint, bench.peer, bench.way, slack=bench.tolerance)
            return all(other.run(script, case, "spec").passed for case in script.cases)
        finally:
            endpoint.live.node = diverted

    return LinkTarget(f"live:{bench.peer}", "", _not_made, _not_made, fulfils, bench)


def _not_made(connection: Connection) -> NoReturn:
    raise CaseError("a device on a link is not made for a case")
