"""A device on a link as a target of `ibwire fuzz`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ibwire import drill
from ibwire.base.errors import LinkError, PeerError, VerbsError
from ibwire.drill.targets.live import Bench as DrillBench
from ibwire.drill.targets.live import Diverted
from ibwire.drill.targets.target import Unable
from ibwire.fuzz.campaign import Maker
from ibwire.fuzz.case import Case, CaseError, Connect, Role, Step
from ibwire.fuzz.judge.comparison import Difference
from ibwire.fuzz.targets.emulated_device import Emulation
from ibwire.fuzz.targets.emulator import Target
from ibwire.fuzz.targets.link.campaign import LiveCampaign
from ibwire.fuzz.targets.link.liveness import Dead, Death
from ibwire.fuzz.targets.link.queue_pair import Bench
from ibwire.fuzz.targets.link.run import not_made
from ibwire.fuzz.vocabulary.queue_pair.comparison import LiveDuel, Playback
from ibwire.fuzz.vocabulary.queue_pair.link_steps import timely
from ibwire.rc.profile import Profile

ROLE = Role.RESPONDER
"""What of a device on a link is attacked unless somebody says otherwise."""


@dataclass(frozen=True)
class LinkTarget(Target):
    """The device of a bench."""

    bench: Bench

    @property
    def role(self) -> Role:
        """What of it is attacked unless somebody says otherwise."""
        return ROLE

    @property
    def place(self) -> str:
        """How a command is told on which link it is."""
        return f"--dev {self.bench.endpoint.port.name} --peer {self.bench.peer}"

    @property
    def options(self) -> str:
        """How a command is told of it."""
        return self.place

    def campaign(self, role: Role, make: Maker, **options: Any) -> LiveCampaign:
        """A run against it; raises `CaseError` for a role that it cannot have."""
        if role is Role.CM:
            raise CaseError("role 'cm': on a link it needs --service, the port of a listener there")
        return LiveCampaign(self.bench, make if role is ROLE else timely(make), **options)

    def duel(self, case: Case, profile: Profile) -> LiveDuel:
        """The reference and it, with a new connection."""
        bench, numbers = self.bench, self.bench.numbers
        if numbers is not None and _has_several(case) and not bench.death.what:
            return _Gone(bench, Emulation(case.connection, profile, numbers))
        try:
            if bench.death.what:
                raise PeerError(bench.death.reason)
            target = bench.connect(case.connection)
        except (CaseError, LinkError, PeerError) as error:
            if numbers is None:
                raise
            if not bench.death.what:
                bench.death = Death(Dead.CONNECTION, str(error))
            return _Gone(bench, Emulation(case.connection, profile, numbers))
        reference = Emulation(case.connection, profile, target.numbers)
        watched = _Watched(bench.binding, bench.path, reference, target, taken=bench.taken)
        watched.as_heard = bench.as_heard
        return watched


class _Watched(LiveDuel):
    """A duel in which the device may die, which is a difference."""

    def step(self, step: Step) -> Difference | None:
        """Carry out one step."""
        return self._watched(lambda: super(_Watched, self).step(step))

    def end(self) -> Difference | None:
        """What has not been looked for yet."""
        return self._watched(super().end)

    def _watched(self, act: Callable[[], Difference | None]) -> Difference | None:
        try:
            return act()
        except (LinkError, PeerError, Unable, VerbsError) as error:
            return Difference(max(self.steps - 1, 0), "crash", [], [str(error)])


class _Gone(LiveDuel):
    """A duel with a device that is not looked at: what was sent to it.

    It is not there any more, or has outlived a case of several connections: of those only
    what it dies of is looked for.
    """

    def __init__(self, bench: Bench, reference: Emulation) -> None:
        super().__init__(
            *(bench.binding, bench.path, reference, Playback([])), taken=bench.taken, is_quick=True
        )
        self._death = bench.death

    def step(self, step: Step) -> Difference | None:
        """As far as the fuzzer has its part in it, on one connection or several."""
        if not isinstance(step, Connect):
            return super().step(step)
        self.steps += 1
        self.reference.reconnect(step.connection)
        return None

    def end(self) -> Difference | None:
        """It does not go on, if it is dead."""
        if not self._death.what:
            return None
        return Difference(max(self.steps - 1, 0), "crash", [], [str(self._death)])


def link_target(bench: Bench) -> LinkTarget:
    """The device of a bench as a target."""

    def fulfils(text: str) -> bool:
        if not bench.is_v4:
            return True  # a script that names no version of IP is for IPv4
        if bench.death.what:
            return not bench.death.what.is_end  # a script has one connection, and sees no other
        script = drill.parse(text.encode(), "case.drill")
        endpoint, diverted = bench.endpoint, bench.diverted
        endpoint.live.node = bench.inner
        try:
            bench.disconnect()
            other = DrillBench(endpoint, bench.peer, bench.way, slack=bench.tolerance)
            return all(other.run(script, case, "spec").passed for case in script.cases)
        except (LinkError, PeerError):
            return False  # it has gone meanwhile
        finally:
            if isinstance(endpoint.live.node, Diverted):  # its queue pairs may still ask
                diverted.former |= endpoint.live.node.former
            endpoint.live.node = diverted

    return LinkTarget(f"live:{bench.peer}", not_made, not_made, fulfils, bench)


def _has_several(case: Case) -> bool:
    """Whether a case has several connections."""
    return any(isinstance(step, Connect) for step in case.steps)
