"""A run against the connection manager of a device on a link.

Every case speaks as somebody new, and afterwards somebody else asks in the right way: who is
not answered as at the beginning has found a manager that is dead, or whose listener is. A
difference that a quick duel sees is looked for again in a careful one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ibwire.base.errors import LinkError, PeerError
from ibwire.cm.messages import Message
from ibwire.fuzz.campaign import Maker, Report, Stepper
from ibwire.fuzz.case import Case, CaseError, Command, Connection, Mad, Step, Value
from ibwire.fuzz.judge.comparison import Difference, Duel
from ibwire.fuzz.judge.exclusions import Taken
from ibwire.fuzz.judge.findings import Finding, bucket_of, signature
from ibwire.fuzz.minimise import Shows
from ibwire.fuzz.targets.emulated_device import Emulation
from ibwire.fuzz.targets.link.manager import ManagerBench
from ibwire.fuzz.targets.link.run import HEADERS, LinkCampaign, last_steps
from ibwire.fuzz.vocabulary.cm.comparison import LiveManagerDuel, is_possible
from ibwire.fuzz.vocabulary.cm.coverage import ManagerCoverage
from ibwire.fuzz.vocabulary.cm.follower import Follower, calls, greet, meet, wish_of, wishing
from ibwire.fuzz.vocabulary.cm.names import SIZES, by_oddity, manager_bucket, oddity
from ibwire.rc.profile import Profile
from ibwire_layers import cm
from ibwire_layers.mad import MAD_SIZE

LONGEST = 120
"""Steps of a case: what takes longer is up to the clocks of both sides."""


class LiveManagerCampaign(LinkCampaign):
    """Cases against a connection manager on a link; options are those of `Campaign`."""

    def __init__(
        self, bench: ManagerBench, make: Maker, *, report: Report | None = None, **options: Any
    ) -> None:
        report = report or Report(coverage=ManagerCoverage())
        super().__init__(bench, self._possible, report=report, explains=False, **options)
        self._any = make
        self._bench = bench
        self._duelling: LiveManagerDuel | None = None
        self._taken = Taken(self.report.left_out)

    def _next_case(self, budget: int) -> Finding | None:
        """The next case on a device that lives, or what is found when it does not."""
        bench = self._bench
        try:
            bench.dead = ""
            meet(bench)
            for finding in self._new_findings():
                self._leave_out(finding)
            found = super()._next_case(budget)
            self._leave()
            self._look()
        except (LinkError, PeerError) as error:
            self._give_up()
            return self._lose(str(error))
        return found

    def _connected(self, connection: Connection) -> Duel:
        """Somebody new, and a duel that is quick."""
        return self._begin(self._profile, is_quick=True)

    def _possible(self, number: int) -> PossibleMessages:
        made = self._any(number)
        stepper = PossibleMessages(made, self._bench, self._taken, lambda: self._is_void)
        self._stepper = stepper
        return stepper

    @property
    def _is_void(self) -> bool:
        """Whether what is under way proves nothing any more."""
        return self._duelling is not None and self._duelling.is_over

    def _begin(self, profile: Profile, *, is_quick: bool = False) -> LiveManagerDuel:
        self._duelling = duel(self._bench, profile, is_quick=is_quick)
        return self._duelling

    def _leave(self) -> None:
        self._duelling = None
        self._bench.leave()

    def _give_up(self) -> None:
        self._duelling = None
        self._bench.give_up()

    # What is found.

    def _examine(self, case: Case, difference: Difference, state: str) -> Finding | None:
        """A difference: does it come again?"""
        if difference.kind == "crash":
            raise PeerError(str(difference.got[0]))
        if not difference.got:
            self._look()
        report = self.report
        self._state = state
        quick = bucket_of(difference, case.steps[-1], state)
        if self._has_seen_enough(quick):
            return None
        found = self.replay(case)
        if found is None:
            if not self._is_void:
                report.count_unstable(quick)
            return None
        if found.kind == "crash":
            raise PeerError(str(found.got[0]))
        case = case.with_steps(case.steps[: found.step + 1])
        return self._judged(self._without_byplay(case, found), quick)

    def _without_byplay(self, case: Case, difference: Difference) -> Case:
        """The case with a last message in which nothing is wrong that does not matter."""
        wanted = signature(difference)
        *before, last = case.steps
        if not isinstance(last, Mad):
            return case
        for name in last.fields:
            fields = {key: value for key, value in last.fields.items() if key != name}
            plainer = replace(last, fields=fields, why=last.why if fields else "")
            found = self.replay(case.with_steps([*before, plainer]))
            if found is not None and signature(found) == wanted:
                last = plainer
        return case.with_steps([*before, last])

    def _name_of(self, case: Case, left: Difference | None, bucket: str) -> str:
        """By what is wrong with the message on purpose, if it is no right one."""
        if left is None or left.kind != "answer":
            return bucket
        step = case.steps[left.step]
        return manager_bucket(left, step, self._state) if is_possible(step) else bucket

    def replay(self, case: Case, profile: Profile | None = None) -> Difference | None:
        """Carry a case out as somebody new."""
        careful = self._begin(profile or self._profile)
        reference = careful.follower
        for step in case.steps:
            if isinstance(step, Mad | Command):
                reference.choose(step.exchange)
            self._state = reference.state
            difference = careful.step(step)
            if difference is not None:
                return difference
            if careful.is_over:
                return None
        return None

    def judge(self, case: Case) -> tuple[Profile, Difference | None]:
        """A case by itself; there are no choices that a manager could have made."""
        meet(self._bench)
        try:
            found = self.replay(case)
            if found is None:
                self._leave()
                self._look()
        except PeerError as error:
            found = Difference(max(len(case.steps) - 1, 0), "crash", [], [str(error)])
        if found is not None and found.kind == "crash":
            self._bench.dead = str(found.got[0])
            self._give_up()
        return self._profile, found

    def shortest(self, case: Case, difference: Difference, profile: Profile) -> Case:
        """A case made shorter on the device; one that it dies of only if it can be brought back."""
        if difference.kind == "crash":
            if self._bench.restart is None:
                death = difference.got[0]
                raise PeerError(f"{death}: what it dies of is made shorter with --restart COMMAND")
            return self._shortest_deadly(case)
        wanted = signature(difference)

        def shows(shorter: Case) -> bool:
            try:
                found = self.replay(shorter, profile)
            except CaseError:
                return False
            return found is not None and signature(found) == wanted

        return self._shorter(self._end_first, case, shows)

    def _leave_out(self, finding: Finding) -> None:
        """Do not try again what would only kill once more, or has one cause for all messages."""
        last = finding.case.steps[-1]
        if not isinstance(last, Mad) or not oddity(last):
            return
        if finding.difference.kind == "crash" or oddity(last) in SIZES:
            dead = replace(finding.difference, kind="crash")
            self._taken.add(dead, by_oddity(last))

    # What is dead.

    def _look(self) -> None:
        """Whether a right request is answered as ever; raises `PeerError` if not."""
        bench = self._bench
        assert bench.usual is not None
        said = greet(bench)
        for _ in range(FULL):  # what was left of a case may still be in the way
            if said is None or kind_of(said) != _NO_ROOM:
                break
            bench.endpoint.run(seconds=1)
            said = greet(bench)
        if said is None:
            host = "its host does not either" if bench.host.fault() else "its host does"
            raise PeerError(f"{bench.peer} does not answer a right request any more; {host}")
        before, now = kind_of(bench.usual), kind_of(said)
        if before != now:
            raise PeerError(f"a right request is answered by {now}, and was by {before}")
        if bench.calls and not calls(bench):
            raise PeerError(f"{bench.peer} does not ask for connections any more")

    def _lose(self, reason: str) -> Finding | None:
        """The device did not do its part: what was it told last?"""
        report, whole, bench = self.report, self._under_way(), self._bench
        bench.dead = reason
        if bench.restart is None or bench.usual is None:
            bench.lost = reason
        if whole is None:
            return None
        case = whole if bench.lost else self._shortest_deadly(whole)
        last = whole.steps[-1]
        difference = Difference(len(case.steps) - 1, "crash", [], [reason])
        what = (oddity(last) or last.message) if isinstance(last, Mad) else "connect"
        bucket = f"the manager is dead after {what}"
        report.seen[bucket] += 1
        finding = Finding(
            *(len(report.seen), bucket, case, whole, difference),
            *(report.packets, "IBA 12.6 to 12.9; docs/reference/cm.md#handshake"),
        )
        self._leave_out(finding)
        if report.seen[bucket] > 1:
            return None
        report.findings.append(finding)
        return finding

    def _shortest_deadly(self, case: Case) -> Case:
        """Only the last steps, if the device dies of them as well; it is brought back."""

        def shorten(case: Case, kills: Shows) -> Case:
            self._bring_back()
            return last_steps(case, kills)

        try:
            return self._shorter(shorten, case, self._kills)
        except (LinkError, PeerError) as error:
            self._bench.lost = str(error)
        return case

    def _kills(self, case: Case) -> bool:
        try:
            found = self.replay(case)
            if found is None or found.kind != "crash":
                self._leave()
                self._look()
                return False
        except PeerError:
            pass  # it does not answer a right request any more
        self._bring_back()
        return True

    def _bring_back(self) -> None:
        """Have the user's command restart the device; raises `PeerError` if it stays dead."""
        bench = self._bench
        assert bench.restart is not None
        bench.restart.run()
        self._give_up()
        for _ in range(RETURN):
            try:
                bench.find_again()
                self._look()
            except (LinkError, PeerError) as error:
                reason = str(error)
            else:
                return
        raise PeerError(f"after {bench.restart}: {reason}")


class PossibleMessages:
    """A stepper, but only what the manager of a device on a link can be sent."""

    def __init__(
        self, stepper: Stepper, bench: ManagerBench, taken: Taken, is_over: Callable[[], bool]
    ) -> None:
        self.steps: list[Mad | Command] = []
        """All so far."""
        self._stepper = stepper
        self._bench = bench
        self._taken = taken
        self._is_over = is_over

    @property
    def connection(self) -> Connection:
        """Of the queue pair beside, which there is not."""
        return Connection()

    def next(self, reference: Emulation) -> Step | None:
        """The next step, `None` at the end of the case."""
        while len(self.steps) < LONGEST and not self._is_over():
            step = self._stepper.next(reference)
            if step is None:
                return None
            assert isinstance(reference, Follower)
            if isinstance(step, Command):
                is_new = step.exchange not in reference.exchanges
                if is_possible(step) and self._bench.calls and is_new:
                    self.steps.append(step)
                    return step
            elif isinstance(step, Mad) and self._is_possible(step, reference):
                # Which of several messages is looked at first is the device's own affair.
                step = replace(step, held=False)
                if self._bench.obeys and step.message == "REQ" and not oddity(step):
                    step = wishing(step, wish_of(step.exchange))
                self.steps.append(step)
                return step
        return None

    def _is_possible(self, step: Mad, reference: Follower) -> bool:
        connection = reference.exchanges.get(step.exchange)
        if connection is not None and connection.is_active and step.message in _REQUESTS:
            return False  # it would be for a service that the device has not got
        if step.more + step.length + MAD_SIZE + HEADERS > self._bench.largest:
            return False
        if self._taken.has(by_oddity(step)):
            return False
        if any(isinstance(step.fields.get(name), int) for name in _FRESH):
            return False
        if any(_is_neighbour(step.fields.get(name)) for name in _SERVICES):
            return False
        # The fields of IP that are lied about are those of IPv4.
        left_out = _ELSEWHERE if self._bench.is_v4 else (*_ELSEWHERE, "ip.")
        return not any(name.startswith(left_out) for name in step.fields)


def duel(bench: ManagerBench, profile: Profile, *, is_quick: bool = False) -> LiveManagerDuel:
    """The reference and the manager, with somebody new; the duel before ends."""
    bench.leave()
    manager = bench.begin()
    reference = Follower(bench, manager.identity, profile, bench.usual)
    begun = LiveManagerDuel(bench, reference, manager, is_quick=is_quick)
    bench.part_by(begun.leave)
    return begun


def kind_of(said: Message) -> str:
    """Its name, and why if it refuses."""
    return f"REJ {said.reason}" if isinstance(said, cm.REJ) else type(said).__name__


RETURN = 10
"""Greetings, of some seconds each, until a restarted device must answer as before."""

FULL = 30
"""Seconds until a listener without room must have some again: a REP is given up after 17."""

_NO_ROOM = f"REJ {int(cm.RejectReason.NO_RESOURCES)}"

_SERVICES = ("req.service_id", "sidr_req.service_id")


def _is_neighbour(service: Value | None) -> bool:
    """Whether it is another port of the same port space: somebody else may listen there."""
    return isinstance(service, tuple) and 0 < abs(service[1]) <= 0xFFFF


_ELSEWHERE = ("eth.", "ip.src", "ip.dst", "req.primary_local_gid")
"""Fields that would lead a frame, or its answer, to somebody else."""

_REQUESTS = ("REQ", "SIDR_REQ")

_FRESH = ("sidr_req.request_id", "req.local_ca_guid", "rep.local_ca_guid")
"""Fields by which a device tells peers apart: a number there is not somebody new."""
