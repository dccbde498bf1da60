"""The connection manager of a device on a link as a target.

Every case acts as another CA, and afterwards yet another one sends a correct request: when
its response differs from the one at the beginning, the manager or its listener is dead. A
difference that a quick comparison finds is reproduced in a careful one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from ibwire.base.errors import LinkError, PeerError
from ibwire.cm.connection import Connection as Managed
from ibwire.cm.messages import Message
from ibwire.drill.targets.restart import bring_back
from ibwire.fuzz.case import Case, CaseError, Command, Connection, Mad, Step, Value
from ibwire.fuzz.judge.choices import Choice
from ibwire.fuzz.judge.comparison import Comparison, Difference, Kind, crash
from ibwire.fuzz.judge.exclusions import Exclusions
from ibwire.fuzz.judge.findings import Finding, bucket_of, signature
from ibwire.fuzz.judge.naming import Name
from ibwire.fuzz.minimise import Shows
from ibwire.fuzz.report import RunState
from ibwire.fuzz.stepper import Stepper
from ibwire.fuzz.targets.emulated_device import Emulation
from ibwire.fuzz.targets.emulated_manager import management_of
from ibwire.fuzz.targets.link.manager_link import ManagerLink
from ibwire.fuzz.targets.link.testbed import HEADERS, NEEDS_RESTART, LinkTestbed, last_steps
from ibwire.fuzz.targets.testbed import Confirmed, Crash
from ibwire.fuzz.vocabulary.cm.comparison import ManagerComparison, is_possible
from ibwire.fuzz.vocabulary.cm.follower import Follower, calls, greet, meet, wish_of, wishing
from ibwire.fuzz.vocabulary.cm.names import SIZES, by_oddity, manager_name, oddity
from ibwire.fuzz.vocabulary.vocabularies import CONNECTION_MANAGER
from ibwire.rc.profile import Profile
from ibwire_layers import cm
from ibwire_layers.mad import MAD_SIZE

LONGEST = 120
"""Steps of a case: in longer ones the clocks of both sides decide."""


class ManagerTestbed(LinkTestbed):
    """A connection manager that is reached by messages to QP1, and a program that listens."""

    vocabulary = CONNECTION_MANAGER
    choices: Sequence[Choice] = ()
    failures: tuple[type[Exception], ...] = (LinkError, PeerError)

    def __init__(self, link: ManagerLink) -> None:
        super().__init__(link)
        self._link = link
        self._comparison: ManagerComparison | None = None
        self._exclusions = Exclusions()
        self._before = ""
        """State of the exchange before the last step."""

    def begin_case(self, state: RunState) -> None:
        """Find out how the manager behaves, and exclude what was found of it."""
        report = state.report
        if self._exclusions.items is not report.left_out:
            self._exclusions = Exclusions(report.left_out)
        self._link.dead = ""
        self._meet()
        for finding in self._new_findings(report):
            self._exclude(finding)

    def _meet(self) -> None:
        """Find out how the manager behaves; one that is dead at the start is restarted."""
        link = self._link
        try:
            meet(link)
        except PeerError as error:
            if link.restart is None:
                raise
            link.endpoint.tell(f"{error}; {link.restart}")
            bring_back(link.restart, link.endpoint, self._meet_again)

    def _meet_again(self) -> None:
        self._link.find_again()
        meet(self._link)

    def stepper(self, made: Stepper, number: int) -> PossibleMessages:
        """The stepper of a case with only those messages that the manager can be sent."""
        self._stepper = possible = PossibleMessages(
            made, self._link, self._exclusions, lambda: self._is_void
        )
        return possible

    def connect(self, connection: Connection, profile: Profile) -> Comparison:
        """A new CA, and a quick comparison."""
        return self._begin(profile, is_quick=True)

    @property
    def _is_void(self) -> bool:
        """Whether the case under way proves nothing any more."""
        return self._comparison is not None and self._comparison.is_over

    def _begin(self, profile: Profile, *, is_quick: bool = False) -> ManagerComparison:
        self._comparison = comparison(self._link, profile, is_quick=is_quick)
        return self._comparison

    def end_case(self, state: RunState, found: Finding | None, *, is_last: bool) -> None:
        """End the connections of the case, and check the manager."""
        if found is not None:
            self._examined.clear()
        self._end_connections()
        self._look()

    def _end_connections(self) -> None:
        self._comparison = None
        self._link.leave()

    def _give_up(self) -> None:
        self._comparison = None
        self._link.give_up()

    # Findings.

    def confirm(
        self, state: RunState, case: Case, difference: Difference, before: str
    ) -> Confirmed | None:
        """See whether a difference comes again in a careful comparison."""
        if difference.kind is Kind.CRASH:
            raise PeerError(str(difference.got[0]))
        if not difference.got:
            self._look()
        quick = bucket_of(difference, case.steps[-1], before)
        self._before = before
        if self._has_seen_enough(quick):
            return None
        found = self.replay(case, state.profile)
        if found is None:
            if not self._is_void:
                state.report.count_unstable(quick)
            return None
        if found.kind is Kind.CRASH:
            raise PeerError(str(found.got[0]))
        case = case.with_steps(case.steps[: found.step + 1])
        case = self._without_needless_fields(case, found, state.profile)
        return Confirmed(case, quick, original=case)

    def _without_needless_fields(
        self, case: Case, difference: Difference, profile: Profile
    ) -> Case:
        """The case with a last message in which nothing is wrong that does not matter."""
        wanted = signature(difference)
        *before, last = case.steps
        if not isinstance(last, Mad):
            return case
        for name in last.fields:
            fields = {key: value for key, value in last.fields.items() if key != name}
            plainer = replace(last, fields=fields, why=last.why if fields else "")
            found = self.replay(case.with_steps([*before, plainer]), profile)
            if found is not None and signature(found) == wanted:
                last = plainer
        return case.with_steps([*before, last])

    def replay(self, case: Case, profile: Profile) -> Difference | None:
        """Carry a case out as a new CA."""
        careful = self._begin(profile)
        reference, management = careful.reference, careful.follower.management
        for step in case.steps:
            if isinstance(step, Mad | Command):
                management.choose(step.exchange)
            self._before = reference.state
            difference = careful.step(step)
            if difference is not None:
                return difference
            if careful.is_over:
                return None
        return None

    def name_of(self, state: RunState, case: Case, left: Difference, bucket: str) -> Name:
        """By what is wrong with the message on purpose, if it is not a right one."""
        return manager_name(left, case.steps[: left.step + 1], self._before)

    def shorten(
        self, state: RunState, case: Case, difference: Difference, profile: Profile
    ) -> Case:
        """A shorter case found on the device; after a crash only with a command to restart it."""
        if difference.kind is Kind.CRASH:
            if self._link.restart is None:
                death = difference.got[0]
                raise PeerError(f"{death}: {NEEDS_RESTART}")
            return self._shorten_crash(state, case)
        wanted = signature(difference)

        def shows(shorter: Case) -> bool:
            try:
                found = self.replay(shorter, profile)
            except CaseError:
                return False
            return found is not None and signature(found) == wanted

        return self._shorter_on_device(state, case, shows)

    def _exclude(self, finding: Finding) -> None:
        """Do not send again what would only crash it again, or has one cause in all messages."""
        last = finding.case.steps[-1]
        if not isinstance(last, Mad) or not oddity(last):
            return
        if finding.difference.kind is Kind.CRASH or oddity(last) in SIZES:
            dead = replace(finding.difference, kind=Kind.CRASH)
            self._exclusions.add(dead, by_oddity(last))

    # Crashes.

    def _look(self) -> None:
        """Whether a right request is answered as ever; raises `PeerError` if not."""
        link = self._link
        assert link.usual is not None
        said = greet(link)
        for _ in range(FULL):  # what was left of a case may still be in the way
            if said is None or kind_of(said) != _NO_ROOM:
                break
            link.endpoint.run(seconds=1)
            said = greet(link)
        if said is None:
            host = "its host does not either" if link.host.fault() else "its host does"
            raise PeerError(f"{link.peer} does not answer a right request any more; {host}")
        before, now = kind_of(link.usual), kind_of(said)
        if before != now:
            raise PeerError(f"a right request is answered by {now}, and was by {before}")
        if link.calls and not calls(link):
            raise PeerError(f"{link.peer} does not ask for connections any more")

    def diagnose(self, state: RunState, reason: str) -> Crash | None:
        """After which message the manager did not do its part."""
        link = self._link
        self._give_up()
        whole = self._case_under_way(state)
        link.dead = reason
        if link.restart is None or link.usual is None:
            self.lost = reason
        if whole is None:
            return None
        case = whole if self.lost else self._shorten_crash(state, whole)
        last = whole.steps[-1]
        what = (oddity(last) or last.message) if isinstance(last, Mad) else "connect"
        return Crash(
            bucket=f"the manager is dead after {what}",
            case=case,
            original=whole,
            difference=crash(case, reason),
            rule=RULE,
        )

    def note_crash(self, finding: Finding, *, is_new: bool) -> None:
        """Do not send again what has crashed it."""
        self._exclude(finding)

    def _shorten_crash(self, state: RunState, case: Case) -> Case:
        """Only the last steps, if they crash the device as well; it is brought back."""

        def shorten(case: Case, kills: Shows) -> Case:
            self._bring_back()
            return last_steps(case, kills)

        def kills(case: Case) -> bool:
            return self._kills(case, state.profile)

        try:
            return state.search.shorter(shorten, case, kills)
        except (LinkError, PeerError) as error:
            self.lost = str(error)
        return case

    def _kills(self, case: Case, profile: Profile) -> bool:
        try:
            found = self.replay(case, profile)
            if found is None or found.kind is not Kind.CRASH:
                self._end_connections()
                self._look()
                return False
        except PeerError:
            pass  # it does not answer a right request any more
        self._bring_back()
        return True

    def _bring_back(self) -> None:
        """Have the user's command restart the device; raises `PeerError` if it stays dead."""
        link = self._link
        assert link.restart is not None
        link.restart.run()
        self._give_up()
        for _ in range(RETURN):
            try:
                link.find_again()
                self._look()
            except (LinkError, PeerError) as error:
                reason = str(error)
            else:
                return
        raise PeerError(f"after {link.restart}: {reason}")

    # A single case.

    def crash_after(self, state: RunState, case: Case, reason: str) -> Difference | None:
        """How a case has crashed the device."""
        self._link.dead = reason
        self._give_up()
        return crash(case, reason)

    def check(self, difference: Difference | None) -> None:
        """Check the manager after a single case."""
        if difference is None:
            self._end_connections()
            self._look()
        elif difference.kind is Kind.CRASH:
            self._link.dead = str(difference.got[0])
            self._give_up()


class PossibleMessages:
    """A stepper, but only what the manager of a device on a link can be sent."""

    def __init__(
        self,
        stepper: Stepper,
        link: ManagerLink,
        exclusions: Exclusions,
        is_over: Callable[[], bool],
    ) -> None:
        self.steps: list[Mad | Command] = []
        """All so far."""
        self._stepper = stepper
        self._link = link
        self._exclusions = exclusions
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
            exchanges = management_of(reference).exchanges
            if isinstance(step, Command):
                is_new = step.exchange not in exchanges
                if is_possible(step) and self._link.calls and is_new:
                    self.steps.append(step)
                    return step
            elif isinstance(step, Mad) and self._is_possible(step, exchanges):
                # Which of several messages is looked at first is the device's own affair.
                step = replace(step, held=False)
                if self._link.obeys and step.message == "REQ" and not oddity(step):
                    step = wishing(step, wish_of(step.exchange))
                self.steps.append(step)
                return step
        return None

    def _is_possible(self, step: Mad, exchanges: Mapping[int, Managed]) -> bool:
        connection = exchanges.get(step.exchange)
        if connection is not None and connection.is_active and step.message in _REQUESTS:
            return False  # it would be for a service that the device has not got
        if step.more + step.length + MAD_SIZE + HEADERS > self._link.largest:
            return False
        if self._exclusions.has(by_oddity(step)):
            return False
        if any(isinstance(step.fields.get(name), int) for name in _FRESH):
            return False
        if any(_is_neighbour(step.fields.get(name)) for name in _SERVICES):
            return False
        # The fields of IP that are lied about are those of IPv4.
        left_out = _ELSEWHERE if self._link.is_v4 else (*_ELSEWHERE, "ip.")
        return not any(name.startswith(left_out) for name in step.fields)


def comparison(link: ManagerLink, profile: Profile, *, is_quick: bool = False) -> ManagerComparison:
    """The reference and the manager as a new CA; the comparison before ends."""
    link.leave()
    manager = link.begin()
    follower = Follower(link, manager.identity, profile, link.usual)
    begun = ManagerComparison(link, follower, manager, is_quick=is_quick)
    link.part_by(begun.leave)
    return begun


def kind_of(said: Message) -> str:
    """Its name, and why if it refuses."""
    return f"REJ {said.reason}" if isinstance(said, cm.REJ) else type(said).__name__


RULE = "IBA 12.6 to 12.9; docs/reference/cm.md#handshake"

RETURN = 10
"""Greetings, of some seconds each, until a restarted device must answer as before."""

FULL = 30
"""Seconds until a listener without room must have some again: a REP is given up after 17."""

_NO_ROOM = f"REJ {int(cm.RejectReason.NO_RESOURCES)}"

_SERVICES = ("req.service_id", "sidr_req.service_id")


def _is_neighbour(service: Value | None) -> bool:
    """Whether it is another port of the same port space: another program may listen there."""
    return isinstance(service, tuple) and 0 < abs(service[1]) <= 0xFFFF


_ELSEWHERE = ("eth.", "ip.src", "ip.dst", "req.primary_local_gid")
"""Fields that would send a frame, or its response, to another destination."""

_REQUESTS = ("REQ", "SIDR_REQ")

_FRESH = ("sidr_req.request_id", "req.local_ca_guid", "rep.local_ca_guid")
"""Fields by which a device identifies peers: changing a number there makes no new peer."""
