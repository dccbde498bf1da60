"""The queue pairs of a device on a link as a target: every case on its own connection.

A difference that a quick comparison finds is reproduced in a careful one, on a new
connection. The behaviour of the device in it is recorded, so that references with other
choices can be compared without the device; so are the witnesses of known choices.

Between cases a READ over the control connection and the agent show whether the device is
alive. When it is not, all cases since it was last seen alive are suspects.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from ibwire.base.errors import LinkError, PeerError, VerbsError
from ibwire.drill.targets.target import Unable
from ibwire.fuzz.case import (
    Case,
    CaseError,
    Connect,
    Connection,
    Packet,
    Pause,
    Post,
    Role,
    Step,
    Wait,
    opcode_text,
)
from ibwire.fuzz.judge.choices import CHOICES, Choice
from ibwire.fuzz.judge.comparison import Device, Difference, Kind, crash
from ibwire.fuzz.judge.exclusions import (
    OPTIONAL,
    Exclusions,
    differs_in_flags,
    opcode_on_wire,
)
from ibwire.fuzz.judge.findings import Finding, bucket_of, signature
from ibwire.fuzz.judge.naming import Name, name_of
from ibwire.fuzz.judge.packet_faults import fault_in
from ibwire.fuzz.judge.subject import About
from ibwire.fuzz.judge.witness import WITNESS, Witness
from ibwire.fuzz.judge.witnesses import WITNESSES
from ibwire.fuzz.report import RunState
from ibwire.fuzz.stepper import Stepper
from ibwire.fuzz.targets.emulated_device import Emulation, Numbers
from ibwire.fuzz.targets.link.causes import Causes, fault_of, last_sent, not_found
from ibwire.fuzz.targets.link.causes import bucket_of as bucket_of_crash
from ibwire.fuzz.targets.link.crash_minimiser import DEATHS, CrashSearch, carry_out
from ibwire.fuzz.targets.link.liveness import ALIVE, Dead, Death
from ibwire.fuzz.targets.link.testbed import HEADERS, NEEDS_RESTART, LinkTestbed
from ibwire.fuzz.targets.link.verbs_link import VerbsLink
from ibwire.fuzz.targets.testbed import Confirmed, Crash
from ibwire.fuzz.vocabulary.queue_pair.comparison import (
    NotRecorded,
    Outcome,
    Playback,
    TolerantComparison,
)
from ibwire.fuzz.vocabulary.queue_pair.link_steps import Timely, fits_link, has_fitting_timeout
from ibwire.fuzz.vocabulary.vocabularies import QUEUE_PAIR, role_of
from ibwire.programs.endpoint import Interrupted
from ibwire.rc.profile import Profile
from ibwire.rc.work import WROpcode
from ibwire_layers.headers import IETH
from ibwire_layers.opcodes import INFO

SUSPECTS = 10
"""Cases after which the device is checked, if nothing else gives reason to."""

REFUSED = 20
"""Cases in a row that cannot be carried out before a device is given up."""

NOT_FOUND = frozenset(map(not_found, Dead))
"""Buckets of crashes whose cause is not found."""

FAILURES = (LinkError, PeerError, Unable, VerbsError)
"""What is raised when a device does not do its part."""


class QueuePairTestbed(LinkTestbed):
    """A device whose application is driven by an agent on its host.

    role: which of its two sides is attacked; requesters need cases that wait in real time.
    """

    vocabulary = QUEUE_PAIR
    choices: Sequence[Choice] = CHOICES
    failures: tuple[type[Exception], ...] = FAILURES

    def __init__(self, link: VerbsLink, role: Role) -> None:
        super().__init__(link)
        self._link = link
        self._role = role
        self.witnesses = [each for each in WITNESSES if fits_device(each, role)]
        self.without_witness = {each.name for each in WITNESSES} - {
            each.name for each in self.witnesses
        }
        self._kept: _Kept | None = None
        self._kept_witnesses: list[_Kept] = []
        self._about: About | None = None
        """What the last response is that the device received before the last difference."""
        self._refused = 0
        self._causes = Causes()
        self._last_death = ALIVE

    def begin_case(self, state: RunState) -> None:
        """Restart the device if it is dead, and exclude what was found of it."""
        report, link = state.report, self._link
        if link.exclusions.items is not report.left_out:
            link.exclusions = Exclusions(report.left_out)
        for finding in self._new_findings(report):
            if finding.bucket in NOT_FOUND:
                continue  # its last packet is not the cause
            link.exclusions.add(finding.difference, last_sent(finding.case))
        link.begin()

    def placed(self, case: Case) -> Case:
        """The case with a connection over the version of IP of the device's address."""
        return replace(case, connection=over_ip(case.connection, is_v4=self._link.is_v4))

    def stepper(self, made: Stepper, number: int) -> PossibleSteps:
        """The stepper of a case with only those steps that the device can be given."""
        link = self._link
        if self._role is not Role.RESPONDER:
            made = Timely(made, number)
        self._stepper = possible = PossibleSteps(
            made, link.largest, link.exclusions, link.liveness.qpn, is_v4=link.is_v4
        )
        return possible

    def connect(self, connection: Connection, profile: Profile) -> TolerantComparison:
        """A new connection, and a quick comparison."""
        target = self._link.connect(connection)
        reference = Emulation(connection, profile, target.numbers)
        return self._comparison(reference, target, is_quick=True)

    def end_case(self, state: RunState, found: Finding | None, *, is_last: bool) -> None:
        """Check the device after some cases."""
        if found is not None:
            self._examined.clear()
        elif len(self.history) >= SUSPECTS or is_last:
            self._look()
        self._refused = 0

    def leave(self) -> None:
        """End the connection of the case."""
        self._link.disconnect()

    def refuse(self, error: CaseError) -> None:
        """Count a case that cannot be carried out, and give the device up after many."""
        self._refused += 1
        if self._refused == REFUSED:
            self.lost = f"{REFUSED} cases in a row cannot be carried out: {error}"

    # Findings.

    def confirm(
        self, state: RunState, case: Case, difference: Difference, before: str
    ) -> Confirmed | None:
        """See whether a difference comes again in a careful comparison on a new connection."""
        self._look()
        self.history.append(case)
        quick = bucket_of(difference, case.steps[-1], before)
        if self._has_seen_enough(quick):
            return None
        self._kept = None
        found = self.replay(case, state.profile)
        if found is None or self._kept is None:
            state.report.count_unstable(quick)
            return None
        case = case.with_steps(case.steps[: found.step + 1])
        case = self._unknown(case, found, state.profile) or case
        return Confirmed(case, quick, original=case)

    def name_of(self, state: RunState, case: Case, left: Difference, bucket: str) -> Name:
        """The name of a difference in the careful comparison: the quick one may see it late."""
        name = name_of(case, left, state.profile)
        if differs_in_flags(left):
            return replace(name, group="flags of a completion")
        if _is_unknown(case, left) and not _has_fields(case):
            text = f"{opcode_text(_opcode(case))} is not known"
            return replace(name, text=text, group=text)
        return name

    def _unknown(self, case: Case, difference: Difference, profile: Profile) -> Case | None:
        """The simplest case of an unsupported optional operation, if it is one."""
        if not _is_unknown(case, difference):
            return None
        opcode = _opcode(case)
        kept = self._kept
        plain = replace(
            case, connection=Connection(), steps=(Packet(opcode, length=OPTIONAL[opcode]),)
        )
        found = self.replay(plain, profile)
        if found is not None and _is_unknown(plain, found):
            return plain
        self._kept = kept
        return None

    def replay(self, case: Case, profile: Profile) -> Difference | None:
        """Carry a case out on a new connection, or compare with what was done on the last."""
        is_witness = case.origin.startswith(WITNESS)
        if is_witness and case not in self.history:
            self.history.append(case)
        kept = self._kept_for(case)
        if kept is not None:
            reference = Emulation(case.connection, profile, kept.numbers)
            comparison = self._comparison(reference, Playback(kept.outcomes))
            try:
                difference = comparison.carry_out(case)
            except NotRecorded:
                pass  # this reference would have taken another course
            else:
                self._about = comparison.about
                return difference
        difference = self._carry_out(case, profile)
        if is_witness:
            if difference is not None:
                # A response may have been late: only what comes again counts.
                difference = self._carry_out(case, profile)
            if self._kept is not None:
                self._kept_witnesses.append(self._kept)
            if difference is not None or len(self.history) >= SUSPECTS:
                self._look()
        return difference

    def _carry_out(self, case: Case, profile: Profile) -> Difference | None:
        """Carry a case out on a new connection, and keep what the device did."""
        target = self._link.connect(case.connection)
        reference = Emulation(case.connection, profile, target.numbers)
        comparison = self._comparison(reference, target)
        difference = comparison.carry_out(case)
        self._about = comparison.about
        done = case.with_steps(case.steps[: comparison.steps])
        self._kept = _Kept(done, target.numbers, comparison.outcomes, comparison.state)
        return difference

    def _kept_for(self, case: Case) -> _Kept | None:
        """What the device did in this case: the last one, or a witness."""
        kept = [each for each in (self._kept, *self._kept_witnesses) if each is not None]
        return next((each for each in kept if each.covers(case)), None)

    def _comparison(
        self, reference: Emulation, target: Device, *, is_quick: bool = False
    ) -> TolerantComparison:
        link = self._link
        return TolerantComparison(
            link.binding,
            link.path,
            reference,
            target,
            exclusions=link.exclusions,
            is_quick=is_quick,
        )

    def shorten(
        self, state: RunState, case: Case, difference: Difference, profile: Profile
    ) -> Case:
        """A shorter case, found on the device."""
        if difference.kind is Kind.CRASH:
            return self._shorten_crash(state, case)
        wanted, about = signature(difference), self._about

        def on_device(shorter: Case) -> bool:
            return self._shows(shorter, profile, wanted, about)

        return self._shorter_on_device(state, case, on_device)

    def _shows(
        self, case: Case, profile: Profile, wanted: tuple[str, str, str], about: About | None
    ) -> bool:
        if not fits_link(case):
            return False
        try:
            comparison = self.connect(case.connection, profile)
        except CaseError:
            return False  # the device has no such connection
        found = comparison.carry_out(case)
        if found is None or signature(found) != wanted:
            return False
        return about is None or comparison.about == about

    # Crashes.

    def _look(self) -> None:
        """Check the control connection; raises `PeerError` if it is dead."""
        death = self._link.liveness.look()
        if death.what:
            raise PeerError(death.reason)
        self.history.clear()

    def diagnose(self, state: RunState, reason: str) -> Crash | None:
        """Which part is dead when the device stopped responding, and after which case."""
        link = self._link
        suspects = self._suspects(state)
        self.history.clear()
        try:
            death = self._death(reason)
            if death.what.is_end and (link.liveness.restart is None or not suspects):
                self.lost = death.reason
                if suspects:
                    link.endpoint.tell(
                        f"the device is dead: {NEEDS_RESTART}, and the run continues"
                    )
            return self._examined_crash(state, death, suspects) if suspects else None
        except LinkError as error:  # our end of the link is gone
            self.lost = str(error)
            return None

    def _examined_crash(self, state: RunState, death: Death, suspects: Sequence[Case]) -> Crash:
        original = suspects[-1]
        case = _with_fault(original, state.profile)
        bucket = self._causes.known(case)
        if not bucket and state.minimises and not self.lost:
            if self._causes.may_search(death, case):
                search = self._search_crash(state, suspects, death)
                original = search.original or original
                if search.best is not None:
                    case = _with_fault(search.best, state.profile)
                    bucket = self._causes.found(death, case, _fault_in(case, state.profile))
                elif search.is_done:
                    bucket = self._causes.missed(death)
                    death = replace(death, reason=f"{death.reason}, which was not seen again")
            else:
                bucket = not_found(death.what)
        bucket = bucket or bucket_of_crash(death, case)
        self._last_death = death
        rule = "IBA 9.9; docs/reference/transport.md#error-classes"
        return Crash(bucket, case, original, crash(case, death), rule)

    def note_crash(self, finding: Finding, *, is_new: bool) -> None:
        """Keep a new death for its report; do not send again what was found before."""
        last = last_sent(finding.case)
        if is_new:
            self._link.death = self._last_death
        elif finding.bucket not in NOT_FOUND:
            self._link.exclusions.add(finding.difference, last)
            if self._causes.known(finding.case):
                self._link.exclusions.add_fault(fault_of(last))

    def _suspects(self, state: RunState) -> list[Case]:
        """Cases since the device was seen alive; the last one may be incomplete."""
        suspects, last = list(self.history), self._case_under_way(state)
        if last is not None and (not suspects or suspects[-1].steps != last.steps):
            suspects.append(last)
        return suspects

    def _death(self, reason: str) -> Death:
        """Which part is dead, when something failed for this reason."""
        self._kept = None
        self._link.disconnect()
        death = self._link.liveness.examine()
        return death if death.what else Death(Dead.CONNECTION, reason)

    def _search_crash(self, state: RunState, suspects: Sequence[Case], death: Death) -> CrashSearch:
        link = self._link
        begin = partial(self.connect, profile=state.profile)
        search = CrashSearch(link, begin, death.what, state.search.is_over)
        if link.liveness.has_ended:
            link.endpoint.tell(
                f"{death}; searching for the shortest case: {DEATHS} restarts at most"
            )
        try:
            search.run(suspects)
        except (Interrupted, KeyboardInterrupt):
            state.search.is_interrupted = True
        return search

    def _shorten_crash(self, state: RunState, case: Case) -> Case:
        link = self._link
        death = link.death
        if link.liveness.has_ended and link.liveness.restart is None:
            raise PeerError(f"{death}: {NEEDS_RESTART}")
        short = self._search_crash(state, [case], death).best
        link.death = death
        return short or case

    # A single case.

    def shows_only_crashes(self, case: Case) -> bool:
        """Whether a case has several connections: of those only a crash is looked for."""
        return any(isinstance(step, Connect) for step in case.steps)

    def crash_after(self, state: RunState, case: Case, reason: str) -> Difference | None:
        """How a case has crashed the device."""
        return self._crash(case, self._death(reason))

    def crash_in(self, state: RunState, case: Case) -> Difference | None:
        """How a case crashes the device, carried out to its end whatever the device answers."""
        begin = partial(self.connect, profile=state.profile)
        return self._crash(case, carry_out(self._link, begin, case))

    def _crash(self, case: Case, death: Death) -> Difference | None:
        if not death.what:
            return None
        self._link.death = death
        return crash(case, death)

    def check(self, difference: Difference | None) -> None:
        """Check the device after a single case."""
        self._look()


class PossibleSteps:
    """A stepper, but only what a device on a link can be sent.

    spared: number of a queue pair that is not sent to. is_v4: whether that goes over IPv4.
    """

    def __init__(
        self,
        stepper: Stepper,
        largest: int,
        exclusions: Exclusions,
        spared: int | None = None,
        *,
        is_v4: bool = True,
    ) -> None:
        self.steps: list[Step] = []
        """All so far."""
        self._stepper = stepper
        self._largest = largest
        self._exclusions = exclusions
        self._spared = spared
        self._left_out = ELSEWHERE if is_v4 else (*ELSEWHERE, *_OF_IPV4)
        self.connection = over_ip(stepper.connection, is_v4=is_v4)
        """The connection that the case begins with."""

    def next(self, reference: Emulation) -> Step | None:
        """The next step, `None` at the end of the case."""
        while (step := self._stepper.next(reference)) is not None:
            if self._is_possible(step, reference):
                if isinstance(step, Packet) and step.held:
                    # How many a device has before it answers the first is its own affair.
                    step = replace(step, held=False)
                self.steps.append(step)
                return step
        return None

    def _is_possible(self, step: Step, reference: Emulation) -> bool:
        if isinstance(step, Post):
            return has_fitting_timeout(reference.connection) and step.opcode not in UNKNOWN
        if isinstance(step, Wait):
            return reference.qp.sends.timers.next_timeout() is not None
        if isinstance(step, Pause):
            return not self._exclusions.pauses
        if not isinstance(step, Packet):
            return True
        if self._exclusions.has(step):
            return False
        if step.length + step.more + HEADERS > self._largest:
            return False
        needed = {value[0] for value in step.fields.values() if isinstance(value, tuple)}
        info = INFO.get(step.opcode)
        if info is not None and IETH in info.headers:
            needed.add("mw.rkey")
        if any(name.startswith(self._left_out) for name in step.fields):
            return False
        aim = step.fields.get("bth.dest_qp")
        if isinstance(aim, tuple):
            aim = reference.symbols.get(aim[0], 0) + aim[1]
        if aim is not None and aim == self._spared:
            return False
        return needed - {"ssn"} <= reference.symbols.keys()  # that one is always found out


class _Kept:
    """What a device did in a case."""

    def __init__(
        self, case: Case, numbers: Numbers, outcomes: Sequence[Outcome], state: str
    ) -> None:
        self.numbers = numbers
        self.outcomes = outcomes
        self.state = state
        """Of the connection before the last step."""
        self._case = case

    def covers(self, case: Case) -> bool:
        """Whether it is this case as far as it went."""
        done = self._case.steps
        count = min(len(done), len(case.steps))
        return case.connection == self._case.connection and case.steps[:count] == done[:count]


def over_ip(connection: Connection, *, is_v4: bool) -> Connection:
    """The connection over this version of IP."""
    return replace(connection, version=4 if is_v4 else 6)


def fits_device(witness: Witness, role: Role) -> bool:
    """Whether a device on a link can be given a witness: of its role, and it waits for nothing."""
    case = witness.case("spec")
    if role_of(case) is Role.CM or not fits_link(case) or not case.connection.is_plain:
        return False
    posts = any(isinstance(step, Post) for step in case.steps)
    if role is not Role.BOTH and posts != (role is Role.REQUESTER):
        return False
    for step in case.steps:
        if isinstance(step, Wait) or (isinstance(step, Packet) and step.held):
            return False
        if isinstance(step, Post) and step.opcode in UNKNOWN:
            return False
    return True


def _with_fault(case: Case, profile: Profile) -> Case:
    """A case whose last packet says what is wrong with it, as those of operators do.

    Packets of witnesses do not say it, and without a fault all packets like them would be excluded.
    """
    last = last_sent(case)
    if not case.origin.startswith(WITNESS) or not isinstance(last, Packet):
        return case
    steps = list(case.steps)
    steps[_place_of(last, case)] = last.altered(why=_fault_in(case, profile))
    return case.with_steps(steps)


def _fault_in(case: Case, profile: Profile) -> str:
    """What is wrong with the last packet of a case in the words of the reference.

    Nothing with a reserved opcode: all of those are one fault, whatever else is wrong with them.
    """
    last = last_sent(case)
    if not isinstance(last, Packet) or opcode_on_wire(last) not in INFO:
        return ""
    return fault_in(case, _place_of(last, case), profile)


def _place_of(last: Packet, case: Case) -> int:
    return max(number for number, step in enumerate(case.steps) if step is last)


def _is_unknown(case: Case, difference: Difference) -> bool:
    """Whether a device is silent where an operation comes that it need not have."""
    return _opcode(case) in OPTIONAL and difference.kind == Kind.ANSWER and not difference.got


def _has_fields(case: Case) -> bool:
    last = case.steps[-1]
    return isinstance(last, Packet) and bool(last.fields)


def _opcode(case: Case) -> int:
    last = case.steps[-1]
    return last.opcode if isinstance(last, Packet) else -1


UNKNOWN = (WROpcode.FLUSH, WROpcode.ATOMIC_WRITE)
"""What most agents cannot post: their library or their device does not have it."""

ELSEWHERE = ("eth.", "ip.dst")
"""Fields that would send a frame to another destination."""

_OF_IPV4 = ("ip.total_length",)
"""Fields that operators change and IPv6 does not have (RFC 8200, 3)."""
