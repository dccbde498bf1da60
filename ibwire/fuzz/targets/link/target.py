"""A device on a link as a target of `ibwire fuzz`: its queue pairs, or its connection manager."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from ibwire import drill
from ibwire.base.errors import LinkError, PeerError
from ibwire.drill.targets.live import Bench as DrillBench
from ibwire.drill.targets.live import Diverted
from ibwire.fuzz.case import Case, CaseError, Connect, Role, Step
from ibwire.fuzz.judge.comparison import Comparison, Difference
from ibwire.fuzz.targets.emulated_device import Emulation
from ibwire.fuzz.targets.link.liveness import Dead, Death
from ibwire.fuzz.targets.link.manager_link import ManagerLink
from ibwire.fuzz.targets.link.manager_testbed import ManagerTestbed, comparison
from ibwire.fuzz.targets.link.queue_pair_testbed import FAILURES, QueuePairTestbed
from ibwire.fuzz.targets.link.verbs_link import VerbsLink
from ibwire.fuzz.vocabulary.cm.comparison import SentOnly
from ibwire.fuzz.vocabulary.queue_pair.comparison import Playback, TolerantComparison
from ibwire.fuzz.vocabulary.queue_pair.script import CannotSay
from ibwire.rc.profile import Profile


@dataclass(frozen=True, slots=True)
class LinkTarget:
    """The queue pairs of a device on a link."""

    link: VerbsLink
    role: Role = field(default=Role.RESPONDER, init=False)

    @property
    def name(self) -> str:
        """Its address."""
        return f"live:{self.link.peer}"

    @property
    def place(self) -> str:
        """Options of `ibwire drill` that select the link."""
        return f"--dev {self.link.endpoint.port.name} --peer {self.link.peer}"

    @property
    def options(self) -> str:
        """Options of `ibwire fuzz` that select it."""
        return self.place

    def testbed(self, role: Role) -> QueuePairTestbed:
        """Where a role of it is attacked; raises `CaseError` for a role that it cannot have."""
        if role is Role.CM:
            raise CaseError("role 'cm': on a link it needs --service, the port of a listener there")
        return QueuePairTestbed(self.link, role)

    def comparison(self, case: Case, profile: Profile) -> Comparison:
        """The reference and the device, with a new connection; without the device if it is dead."""
        link, numbers = self.link, self.link.numbers
        has_several = any(isinstance(step, Connect) for step in case.steps)
        if numbers is not None and has_several and not link.death.what:
            return _SentOnly(link, Emulation(case.connection, profile, numbers))
        try:
            if link.death.what:
                raise PeerError(link.death.reason)
            target = link.connect(case.connection)
        except (CaseError, LinkError, PeerError) as error:
            if numbers is None:
                raise
            if not link.death.what:
                link.death = Death(Dead.CONNECTION, str(error))
            return _SentOnly(link, Emulation(case.connection, profile, numbers))
        reference = Emulation(case.connection, profile, target.numbers)
        guarded = _Guarded(link.binding, link.path, reference, target, exclusions=link.exclusions)
        guarded.as_received = link.as_received
        return guarded

    def fulfils(self, text: str) -> bool:
        """Whether a drill script passes on it."""
        link = self.link
        if link.death.what:
            return not link.death.what.is_end  # a script has one connection, and sees no other
        script = drill.parse(text.encode(), "case.drill")
        endpoint, diverted = link.endpoint, link.diverted
        endpoint.live.node = link.inner
        try:
            link.disconnect()
            other = DrillBench(endpoint, link.peer, link.way, slack=link.tolerance)
            return all(other.run(script, case, "spec").passed for case in script.cases)
        except (LinkError, PeerError):
            return False  # it has gone meanwhile
        finally:
            if isinstance(endpoint.live.node, Diverted):  # its queue pairs may still send
                diverted.former |= endpoint.live.node.former
            endpoint.live.node = diverted


@dataclass(frozen=True, slots=True)
class ManagerLinkTarget:
    """The connection manager of a device on a link."""

    link: ManagerLink
    place: str = field(default="", init=False)
    role: Role = field(default=Role.CM, init=False)

    @property
    def name(self) -> str:
        """Its address."""
        return f"live:{self.link.peer}"

    @property
    def options(self) -> str:
        """Options of `ibwire fuzz` that select it."""
        link = self.link
        place = f"--dev {link.endpoint.port.name} --peer {link.peer}"
        return f"{place} --service {link.service}"

    def testbed(self, role: Role) -> ManagerTestbed:
        """Where it is attacked; raises `CaseError` for another role than `cm`."""
        if role is not Role.CM:
            what = f"role {str(role)!r}"
            raise CaseError(f"{what}: with --service the connection manager is attacked")
        return ManagerTestbed(self.link)

    def comparison(self, case: Case, profile: Profile) -> Comparison:
        """The reference and the manager as a new CA; without the manager if it is dead."""
        link = self.link
        return SentOnly(link) if link.dead or link.lost else comparison(link, profile)

    def fulfils(self, text: str) -> bool:
        """Raise `CannotSay`: no script is run."""
        raise CannotSay("a script is not tried with a connection manager on a link")


class _Guarded(TolerantComparison):
    """A comparison in which a failure of the device is a difference."""

    def step(self, step: Step) -> Difference | None:
        """Carry out one step."""
        return self._guarded(lambda: super(_Guarded, self).step(step))

    def end(self) -> Difference | None:
        """Compare what was not compared yet."""
        return self._guarded(super().end)

    def _guarded(self, act: Callable[[], Difference | None]) -> Difference | None:
        try:
            return act()
        except FAILURES as error:
            return self.crash(error)


class _SentOnly(TolerantComparison):
    """What was sent to a device that is dead, or that survived a case of several connections.

    Such a case is only tested for a crash.
    """

    def __init__(self, link: VerbsLink, reference: Emulation) -> None:
        super().__init__(
            link.binding,
            link.path,
            reference,
            Playback([]),
            exclusions=link.exclusions,
            is_quick=True,
        )
        self._death = link.death

    def step(self, step: Step) -> Difference | None:
        """Carry out the fuzzer's part of a step, on one connection or several."""
        if not isinstance(step, Connect):
            return super().step(step)
        self.steps += 1
        self.reference.reconnect(step.connection)
        return None

    def end(self) -> Difference | None:
        """A crash, if the device is dead."""
        return self.crash(self._death) if self._death.what else None
