"""A run of the fuzzer: case after case until the budget is spent, with what was found.

The campaign makes cases, has its testbed carry them out, and judges what differs: is it
allowed, has it a name, is it new, and which case is the shortest that shows it.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from ibwire.fuzz.case import Case, CaseError, Packet, Role, RunsAway, Step
from ibwire.fuzz.coverage import Answer, Cell, Coverage
from ibwire.fuzz.guidance import Guided
from ibwire.fuzz.judge.alone import explained_alone
from ibwire.fuzz.judge.choices import Choice
from ibwire.fuzz.judge.comparison import Difference
from ibwire.fuzz.judge.exclusions import WitnessExcluded
from ibwire.fuzz.judge.explanation import changed, explanation, single_explanations, with_values
from ibwire.fuzz.judge.findings import (
    Finding,
    distance,
    fields_at_fault,
    has_other_payload,
)
from ibwire.fuzz.judge.naming import Name
from ibwire.fuzz.judge.needs import with_needs
from ibwire.fuzz.judge.packet_faults import with_own_faults
from ibwire.fuzz.judge.profiles import (
    MAY_BE_UNCHECKED,
    UNCHECKED,
    choices_of,
    conditions_of,
    profile_of,
    unchecked_by,
    unchecked_in,
    without_checking,
)
from ibwire.fuzz.judge.witness import (
    WITNESS,
    Trials,
    differing,
    fingerprint,
    is_refuted,
    is_shown,
    is_spoken_against,
)
from ibwire.fuzz.minimise import never
from ibwire.fuzz.needed import needed_choices
from ibwire.fuzz.report import HISTORY, MAXIMUM_BUCKETS, Postponed, Report, RunState, Search
from ibwire.fuzz.stepper import Maker
from ibwire.fuzz.targets.testbed import Confirmed, Testbed
from ibwire.fuzz.vocabulary.vocabularies import role_of
from ibwire.programs.endpoint import Interrupted
from ibwire.rc.profile import PROFILES, Profile

FEW = 3
"""How often a case is made shorter again because the shorter one shows only what is allowed."""

MOST_OPEN = 2
"""For how many references the witnesses that differ are remembered."""

_MIXING = 0x9E3779B1
"""Multiplied with the number of a case; bit 16 of that chooses about every second history."""

ENDLESS = 1 << 62
"""A budget of packets for a run that something else ends."""


@dataclass(frozen=True, slots=True)
class History:
    """The result of cases on one pair of devices, carried out by another campaign."""

    first: int
    """Number of the first one."""
    cases: int
    packets: int
    coverage: Counter[tuple[str, int, Answer]]
    cells: Counter[Cell]
    is_clean: bool
    """Whether it is complete without a difference; else the last case has one."""


class Campaign:
    """Cases against one target.

    profile: of the reference. make: the stepper of each case. explains: whether known
    deviations are looked for. first, report: of a run that this one resumes. origin: how the
    origin of its cases begins. Raises `CaseError` for a report that does not fit.
    """

    def __init__(
        self,
        testbed: Testbed,
        make: Maker,
        *,
        profile: str = "spec",
        first: int = 0,
        report: Report | None = None,
        origin: str = "",
        explains: bool = True,
        minimises: bool = True,
    ) -> None:
        report = report or Report(Coverage(testbed.vocabulary.coverage))
        self.state = RunState(
            report=report,
            base=profile,
            profile=profile_of(profile, report.taken),
            search=Search(),
            origin=origin,
            next_case=first,
            minimises=minimises,
        )
        self._testbed = testbed
        testbed.explained = report.explained
        self._make = make
        self._guide = make.guide if isinstance(make, Guided) else None
        self._choices: Sequence[Choice] = testbed.choices if explains else ()
        self._has_fingerprint = False
        self._trials = Trials(testbed.replay, testbed.failures)
        """Of witnesses, for the fingerprint."""
        self._waiting: deque[tuple[Case, Choice | None]] = deque()
        """Witnesses in which the target differs, with their deviations."""
        self._open: dict[Profile, Collection[str]] = {}
        """Choices with a witness in which the target differs from a reference."""

    @property
    def report(self) -> Report:
        """What was found so far."""
        return self.state.report

    @property
    def next_case(self) -> int:
        """Number of the next case."""
        return self.state.next_case

    @property
    def explained(self) -> int:
        """What cases that were carried out again have cost, in steps that take as long."""
        return self._testbed.explained

    @property
    def has_more_to_show(self) -> bool:
        """Whether something was seen that is not reported yet, and for which there is time."""
        return bool(self._waiting) or self._next_postponed() is not None

    @property
    def sent(self) -> int:
        """Packets that a device on a link was sent, for whatever reason; 0 for an emulator."""
        return self._testbed.sent

    @property
    def is_interrupted(self) -> bool:
        """Whether the user has interrupted the search for a shorter case."""
        return self.state.search.is_interrupted

    @property
    def lost(self) -> str:
        """Why the target is abandoned; empty while it can be used."""
        return self._testbed.lost

    def run(self, packets: int) -> Iterator[Finding]:
        """Continue until that many packets have been sent in all; yields new findings."""
        report = self.report
        while (report.packets < packets or self.has_more_to_show) and not self.lost:
            found = self.one_case(packets)
            if found is not None:
                yield found
            if self.is_interrupted:
                raise KeyboardInterrupt

    def one_case(self, packets: int, *, is_over: Callable[[], bool] = bool) -> Finding | None:
        """Execute the next case, which ends at this total number of packets.

        Returns a new finding. is_over: whether time is up, so that a finding is not minimised. An
        interrupted case stays the next one, except for a finding that would not occur again: see
        `is_interrupted`.
        """
        state, report = self.state, self.report
        if (found := self.next_shown(is_over=is_over)) is not None or self.lost:
            return found
        if report.packets >= packets:
            return None  # the budget was spent before what was left to be shown
        self._choose_unchecked()
        before = state.profile, report.taken
        try:
            found = self._one_case(packets)
        except (KeyboardInterrupt, Interrupted) as signal:
            state.profile, report.taken = before
            raise KeyboardInterrupt from signal
        state.next_case += 1
        report.cases += 1
        return found

    def next_shown(self, *, is_over: Callable[[], bool] = bool) -> Finding | None:
        """The next finding of what was seen before; the first call carries out the witnesses.

        A witness in which the device crashes is a finding, too; the next call goes on after it.
        Then come differences that were postponed, before new devices are needed: there each
        process of a run that several work on has come to the same point.
        is_over: as of `one_case`.
        """
        self.state.search.is_over = is_over
        while not self.lost:
            try:
                if not self._has_fingerprint:
                    self._take_fingerprint()
                return self._from_fingerprint() or self._from_postponed()
            except self._testbed.failures as error:
                found = self._crashed(str(error))
                self._leave_fatal_out()
                if found is not None:
                    return found
        return None

    @property
    def begins_history(self) -> bool:
        """Whether the next case is carried out on new devices."""
        return self._testbed.is_fresh

    def prefetch(self, is_stale: Callable[[], bool]) -> History | None:
        """Execute a history for another campaign, up to the first case with a difference.

        This campaign has just begun, with an empty report, and is used for nothing else.
        is_stale: whether the history is no longer needed, checked after each case; the result is
        then `None`.
        """
        first, report, history = self.next_case, self.report, self._testbed.history
        is_clean = True
        while is_clean and report.cases < HISTORY:
            try:
                case, difference, _ = self._carried_out(ENDLESS)
                if difference is None:
                    history.append(case)
            except RunsAway:
                history.clear()  # the other campaign will see it
            self.state.next_case += 1
            report.cases += 1
            is_clean = len(history) == report.cases  # new devices begin another history
            if is_stale():
                return None
        coverage = report.coverage
        return History(
            first, report.cases, report.packets, coverage.counts, coverage.cells, is_clean
        )

    def take_over(self, history: History) -> None:
        """Continue after a clean history that begins with the next case."""
        report = self.report
        self._testbed.reset()
        self.state.next_case += history.cases
        report.cases += history.cases
        report.packets += history.packets
        report.coverage.counts.update(history.coverage)
        report.coverage.cells.update(history.cells)

    def _choose_unchecked(self) -> None:
        """Compare fields that are known to be wrong in about every second history only.

        What they hide is seen in the others.
        """
        state, report = self.state, self.report
        if report.unchecked and self._testbed.is_fresh:
            is_lenient = state.next_case * _MIXING >> 16 & 1
            fields = report.unchecked if is_lenient else ()
            state.profile = without_checking(state.profile, tuple(fields))

    def _one_case(self, budget: int) -> Finding | None:
        testbed, state = self._testbed, self.state
        if not self._begin_case():
            return None
        found = None
        try:
            found = self._found_in_next(budget)
            testbed.end_case(state, found, is_last=state.report.packets >= budget)
        except CaseError as error:
            testbed.refuse(error)
        except testbed.failures as error:
            return self._crashed(str(error))
        finally:
            testbed.leave()
        return found

    def _found_in_next(self, budget: int) -> Finding | None:
        """What the next case shows; a case without end on the reference is counted as unstable."""
        testbed, state, report = self._testbed, self.state, self.report
        before = state.profile, report.taken
        try:
            case, difference, state_before = self._carried_out(budget)
            if difference is None:
                testbed.history.append(case)
                return None
            confirmed = testbed.confirm(state, case, difference, state_before)
            return self._judged(confirmed) if confirmed is not None else None
        except RunsAway as error:  # with what the reference has taken over from the device, perhaps
            state.profile, report.taken = before
            report.count_unstable(f"the reference does not come to rest: {error}")
            report.packets += 1  # the last one; a run of such cases ends, too
            testbed.reset()
            return None

    def _begin_case(self) -> bool:
        """Prepare the device for another case; returns whether it is there, else it is given up."""
        try:
            self._testbed.begin_case(self.state)
        except self._testbed.failures as error:
            self._testbed.lost = str(error)
            return False
        return True

    def _carried_out(self, budget: int) -> tuple[Case, Difference | None, str]:
        """The next case, its difference, and the state of the connection before that."""
        number, report, guide = self.next_case, self.report, self._guide
        if guide is not None and self._testbed.is_fresh:
            guide.forget()
        stepper = self._testbed.stepper(self._make(number), number)
        comparison = self._testbed.connect(stepper.connection, self.state.profile)
        reference, coverage = comparison.reference, report.coverage
        before = reference.state
        steps: list[Step] = []
        difference: Difference | None = None
        cell_of, cells = self._testbed.vocabulary.cell_of, coverage.cells
        carry_out = comparison.step
        while (step := stepper.next(reference)) is not None:
            steps.append(step)
            before = reference.state
            if isinstance(step, Packet):
                if cell_of is not None:
                    cell = cell_of(reference, step)
                    cells[cell] += 1
                    if guide is not None:
                        guide.seen.add(cell)
                difference = carry_out(step)
                report.packets += 1
                coverage.count(before, step, comparison.expected)
            else:
                difference = carry_out(step)
            if difference is not None or report.packets >= budget:
                break
        if difference is None:
            difference = comparison.end()
        origin = self.state.origin_of_next()
        case = Case(stepper.connection, tuple(steps), self.state.base, origin)
        if unchecked := unchecked_by(self.state.profile):
            case = replace(case, choices={UNCHECKED: ",".join(unchecked)})
        return case, difference, before

    # Findings.

    def _take_fingerprint(self) -> None:
        """Carry out the witnesses: what they show of the target is known from the start."""
        state, cases = self.state, self._witness_cases
        if not cases or not self._choices:
            self._has_fingerprint = True
            return
        if not self._begin_case():
            return
        found = fingerprint(cases, state.profile, self._choices, self._trials)
        self._has_fingerprint = True
        state.profile = found.profile
        self.report.taken = choices_of(found.profile, state.base)
        for choice in self._choices:
            if self._is_taken(choice) and not choice.allowed:
                own = [case for name, case in cases if name == choice.name]
                self._waiting.extend((case, choice) for case in own)
        self._waiting.extend((case, None) for case in found.unexplained)

    @property
    def _witness_cases(self) -> Sequence[tuple[str, Case]]:
        """The cases of all witnesses that the target can be given and survives, with names."""
        left_out = self.report.left_out
        return [each for each in self._placed_witnesses if WitnessExcluded(each[0]) not in left_out]

    @cached_property
    def _placed_witnesses(self) -> Sequence[tuple[str, Case]]:
        testbed, base = self._testbed, self.state.base
        return [(each.name, testbed.placed(each.case(base))) for each in testbed.witnesses]

    def _leave_fatal_out(self) -> None:
        """Do not carry witnesses out again in which the device has crashed, nor when resumed."""
        left_out = self.report.left_out
        for case in self._trials.fatal:
            item = WitnessExcluded(case.origin.removeprefix(WITNESS))
            if item not in left_out:
                left_out.append(item)

    def _from_fingerprint(self) -> Finding | None:
        """The next finding that the witnesses have shown."""
        while self._waiting:
            case, choice = self._waiting.popleft()
            if choice is None:
                found = self._judged(Confirmed(case, "", original=case))
            else:
                found = self._deviation(case, choice)
            if found is not None:
                return found
        return None

    def _next_postponed(self) -> Postponed | None:
        """The difference that was postponed and for which there is time now."""
        testbed, report = self._testbed, self.report
        if not report.postponed or not testbed.is_fresh or testbed.explains_too_much(report):
            return None
        is_late = self.state.search.is_over() or self.is_interrupted
        return None if is_late else report.next_postponed

    def _from_postponed(self) -> Finding | None:
        """The next finding of differences for which there was no time when they were seen."""
        state, report, testbed = self.state, self.report, self._testbed
        while (postponed := self._next_postponed()) is not None:
            unchecked = unchecked_in(postponed.case.choices)
            state.profile = without_checking(state.profile, unchecked)
            before = state.profile, report.taken
            try:
                confirmed = testbed.confirm_postponed(state, postponed)
                found = self._judged(confirmed) if confirmed is not None else None
            except (KeyboardInterrupt, Interrupted) as signal:
                state.profile, report.taken = before
                raise KeyboardInterrupt from signal
            except (CaseError, RunsAway):  # of a reference that has taken over more since then
                state.profile, report.taken = before
                report.count_unstable(postponed.bucket)
                found = None
            report.take_postponed(postponed)
            testbed.end_case(state, found, is_last=False)
            if found is not None:
                found.packet = postponed.packet
                return found
        return None

    def _deviation(self, case: Case, choice: Choice) -> Finding | None:
        """The finding of a known deviation that a case shows, if it is a new one."""
        name = Name(choice.about, choice.rule, choice.about)
        if self.report.is_accepted([name.group]):
            return None
        finding = self._new(name, case, case, without=[choice])
        if finding is not None:
            finding.about = choice.about
        return finding

    def _is_taken(self, choice: Choice) -> bool:
        usual = PROFILES[self.state.base]
        return bool(getattr(self.state.profile, choice.name) != getattr(usual, choice.name))

    def _judged(self, confirmed: Confirmed) -> Finding | None:
        """A finding, if a difference is neither allowed nor known already.

        It would not occur again in a run that is resumed: what is interrupted is done once more,
        without a search for a shorter case.
        """
        try:
            return self._judge(confirmed)
        except (KeyboardInterrupt, Interrupted):
            if self.is_interrupted:
                raise
            self.state.search.is_interrupted = True
            return self._judge(confirmed)

    def _judge(self, confirmed: Confirmed) -> Finding | None:
        state, report, case = self.state, self.report, confirmed.case
        difference = confirmed.difference or self.replay(case)
        if difference is None:
            return None
        difference = self._without_known(case, difference)
        shortest = case
        if state.minimises and not self.is_interrupted:
            shortest = self._short_enough(confirmed, difference)
        shortest, name, difference = self._named(shortest, difference, confirmed.bucket)
        if self._is_counted(name, confirmed):
            return None
        allowed = self._allowing(shortest)
        if allowed is not None:
            if shortest == case or self._allowing(case) is not None:
                return None
            shortest = self._shortest_fault(case, difference, allowed)
            shortest, name, difference = self._named(shortest, difference, confirmed.bucket)
        if not self._is_fault(shortest, difference):
            return None
        known = self._witnessed(shortest)
        if known is not None:
            return known
        if self._is_counted(name, confirmed) or len(report.seen) >= MAXIMUM_BUCKETS:
            return None
        if confirmed.bucket:
            report.led_to[confirmed.bucket] = name.text
        return self._new(name, shortest, confirmed.original)

    def _without_known(self, case: Case, difference: Difference) -> Difference:
        """A difference without the fields that have a finding, if others of the same packet or
        completion are wrong, too; the reference then leaves those fields out.

        Where all of them have one, only the first is left: together they are no other fault.
        """
        state, known = self.state, self.report.unchecked
        fields = fields_at_fault(difference)
        is_more = not set(fields) <= set(known) or has_other_payload(difference)
        if set(fields).isdisjoint(known) or not (is_more or self._have_no_common_finding(fields)):
            return difference
        left_out = known if is_more else [each for each in known if each != fields[0]]
        lenient = without_checking(state.profile, tuple(left_out))
        found = self.replay(case, lenient)
        if found is None or (found.step, found.kind) != (difference.step, difference.kind):
            return difference
        state.profile = lenient
        return found

    def _have_no_common_finding(self, fields: Sequence[str]) -> bool:
        """Whether no finding has all of these fields."""
        of_each = (fields_at_fault(each.difference) for each in self.report.findings)
        return not any(set(fields) <= set(each) for each in of_each)

    def _short_enough(self, confirmed: Confirmed, difference: Difference) -> Case:
        """The shortest case; where time is short, one with the name of a finding will do."""
        search, testbed, report = self.state.search, self._testbed, self.report
        case = confirmed.case

        def has_name(shorter: Case) -> bool:
            found = self.replay(shorter)
            return found is not None and bool(
                testbed.finding_of(self.state, shorter, found, needs_connection=True)
            )

        if report.groups and (confirmed.is_postponed or testbed.explains_too_much(report)):
            if testbed.finding_of(self.state, case, difference, needs_connection=False):
                return case
            search.is_enough = has_name
        try:
            return self.shortest(case, difference, self.state.profile)
        finally:
            search.is_enough = never

    def _named(
        self, case: Case, difference: Difference, bucket: str
    ) -> tuple[Case, Name, Difference]:
        """A case up to its difference, with that. difference: if it does not come again."""
        difference = self.replay(case) or difference
        case = case.with_steps(case.steps[: difference.step + 1])
        name = self._testbed.name_of(self.state, case, difference, bucket)
        # That of a finding is enough to count for it; the case may then be longer than it need be.
        if self.report.bucket_of(name.keys) is None and self._is_minimised:
            name = with_needs(name, case)
        return case, name, difference

    @property
    def _is_minimised(self) -> bool:
        """Whether cases are made as short as they can be."""
        search = self.state.search
        return self.state.minimises and not (search.is_interrupted or search.is_over())

    def _is_counted(self, name: Name, confirmed: Confirmed) -> bool:
        """Whether something has the name of a finding, or one that the user knows: it counts."""
        report = self.report
        groups = *name.keys, *name.wider
        if report.is_accepted(groups):
            return True
        bucket = report.bucket_of(groups)
        if bucket is None:
            return False
        report.seen[bucket] += 1
        if confirmed.bucket:
            report.led_to[confirmed.bucket] = bucket
        return True

    def _allowing(self, case: Case) -> Profile | None:
        """The reference with choices that the specification leaves open which explain a case.

        Of those that a deterministic target always shows in their witness, only the ones that
        it has shown.
        """
        allowed = [each for each in self._choices if each.allowed and not each.is_measured]
        if self._testbed.is_deterministic:
            shown = self._open_names(self._witness_cases)
            allowed = [each for each in allowed if not each.is_always_shown or each.name in shown]
        profile = self.state.profile
        while (found := explanation(case, profile, allowed, self._testbed.replay)) is not None:
            refuted = [
                each
                for each in changed(profile, found, allowed)
                if self._is_refuted(each, found, with_values(found, profile, [each]))
            ]
            if not refuted:
                break
            allowed = [each for each in allowed if each not in refuted]
        return found

    def _shortest_fault(self, case: Case, difference: Difference, allowed: Profile) -> Case:
        """The shortest case of a fault where a shorter one shows only what is allowed.

        A case of such a choice may be shorter than one of the fault, and look the same. allowed:
        the reference with that choice, from which the case has to differ, too.
        """
        search, others = self.state.search, [allowed]

        try:
            search.also = lambda shorter: self.differs_from_all(shorter, others)
            while len(others) <= FEW and not self.is_interrupted:
                shortest = self.shortest(case, difference, self.state.profile)
                found = self._allowing(shortest)
                if found is None:
                    return shortest
                others.append(found)
        finally:
            search.also = None
        return case

    def _is_fault(self, case: Case, difference: Difference) -> bool:
        """Whether a target is wrong that differs from a reference with its known deviations.

        It is not if it does what the specification says, where the reference deviates.
        """
        deviations = [each for each in self._choices if not each.allowed and self._is_taken(each)]
        if not deviations:
            return True
        right = with_values(self.state.profile, PROFILES[self.state.base], deviations)
        return self.replay(case, right) is not None

    def _witnessed(self, case: Case) -> Finding | None:
        """The finding of the known deviation that explains a case and that its witness shows.

        Of a choice whose witnesses this target cannot be given, the case itself is the witness.
        """
        state, replay = self.state, self._testbed.replay
        cases = self._witness_cases
        open_names = self._open_names(cases)
        choices = [each for each in self._choices if not each.allowed and each.name in open_names]
        for choice, profile in single_explanations(case, state.profile, choices, replay):
            is_known = choice.name in self._testbed.without_witness or is_shown(
                choice.name, cases, profile, state.profile, replay
            )
            if not is_known:
                continue
            state.profile = profile
            self.report.taken = choices_of(profile, state.base)
            return self._deviation(case, choice)
        return None

    def _open_names(self, cases: Sequence[tuple[str, Case]]) -> Collection[str]:
        """The choices that may explain a finding: all others have witnesses without a difference.

        cases: the witnesses, with their names.
        """
        profile, replay = self.state.profile, self._testbed.replay
        if profile not in self._open:
            names = differing(cases, profile, replay)
            if len(self._open) >= MOST_OPEN:
                self._open.clear()
            self._open[profile] = names.union(self._testbed.without_witness)
        return self._open[profile]

    def _new(
        self, name: Name, case: Case, original: Case, without: Sequence[Choice] = ()
    ) -> Finding | None:
        """Enter a finding with its shortest case; `None` if it is there already.

        without: choices of the reference that this finding is about.
        """
        state, report = self.state, self.report
        strict = with_values(state.profile, PROFILES[state.base], without)
        difference = self.replay(case, strict)
        if difference is None or name.group in report.groups:
            return None
        needed = needed_choices(case, difference, strict, state.base, self.replay)
        case = replace(case, choices=conditions_of(needed, state.base))
        difference = self.replay(case, needed) or difference
        case = with_own_faults(case.with_steps(case.steps[: difference.step + 1]), state.profile)
        text = name.text
        if text in report.seen:
            text = f"{text} (F{len(report.seen) + 1:04})"
        finding = Finding(
            number=len(report.seen) + 1,
            bucket=text,
            case=case,
            original=replace(original, choices=conditions_of(strict, state.base)),
            difference=difference,
            packet=report.packets,
            rule=name.rule,
            group=name.group,
            causes=name.causes,
        )
        report.groups |= dict.fromkeys(name.keys, text)
        report.seen[text] += 1
        report.findings.append(finding)
        if self._testbed.is_deterministic:
            report.unchecked += sorted(_to_leave_unchecked(case, difference, report.unchecked))
        return finding

    def _crashed(self, reason: str) -> Finding | None:
        """The finding for a device that did not do its part, if it is a new one."""
        report = self.report
        crash = self._testbed.diagnose(self.state, reason)
        if crash is None:
            return None
        report.seen[crash.bucket] += 1
        is_new = report.seen[crash.bucket] == 1
        finding = Finding(
            number=len(report.seen),
            bucket=crash.bucket,
            case=crash.case,
            original=crash.original,
            difference=crash.difference,
            packet=report.packets,
            rule=crash.rule,
            group=crash.bucket,
        )
        self._testbed.note_crash(finding, is_new=is_new)
        if not is_new:
            return None
        report.findings.append(finding)
        return finding

    def shortest(self, case: Case, difference: Difference, profile: Profile) -> Case:
        """The shortest case found that shows the same difference from this reference."""
        return self._testbed.shorten(self.state, case, difference, profile)

    def judge(self, case: Case) -> tuple[Profile, Difference | None]:
        """A single case: the reference with the target's choices, and the remaining difference.

        Raises one of the testbed's `failures` if the device was not alive before.
        """
        testbed, state = self._testbed, self.state
        testbed.begin_case(state)
        try:
            if testbed.shows_only_crashes(case):
                return state.profile, testbed.crash_in(state, case)
            profile, difference = self._judged_alone(case)
            testbed.check(difference)
            if difference is not None and difference.step + 1 < len(case.steps):
                # What the device does not survive may come behind the first difference.
                difference = testbed.crash_in(state, case) or difference
        except testbed.failures as error:
            return state.profile, testbed.crash_after(state, case, str(error))
        return profile, difference

    def _judged_alone(self, case: Case) -> tuple[Profile, Difference | None]:
        """A case with the allowed choices of the target, starting without and with its own.

        Of two differences the one counts that comes later, or in which less differs: the other
        may be about a deviation that the case only meets on its way.
        """
        state = self.state
        if not self._choices:
            return state.profile, self.replay(case)
        allowed = [each for each in self._choices if each.allowed and not each.is_measured]
        judged: list[tuple[Profile, Difference]] = []
        for taken in ({}, dict(case.choices)):
            start = profile_of(state.base, taken)
            state.profile, difference = explained_alone(
                case,
                start,
                allowed,
                self._testbed.replay,
                is_shown=self._is_witnessed,
                is_refuted=self._is_refuted,
            )
            if difference is None:
                return state.profile, None
            judged.append((state.profile, difference))
        return min(judged, key=lambda each: distance(each[1]))

    def _is_witnessed(self, choice: Choice, profile: Profile, other: Profile) -> bool:
        """Whether a witness of a choice shows that a deterministic target makes it.

        profile, other: the reference with and without it.
        """
        testbed, name = self._testbed, choice.name
        if not testbed.is_deterministic or name in testbed.without_witness:
            return True
        cases = self._witness_cases
        is_known = any(each == name for each, _ in cases)
        return not is_known or is_shown(name, cases, profile, other, testbed.replay)

    def _is_refuted(self, choice: Choice, profile: Profile, other: Profile) -> bool:
        """Whether a deterministic target does the usual thing in every witness of a choice, or in
        one of a choice that is always shown.

        profile, other: the reference with and without it.
        """
        testbed = self._testbed
        if not testbed.is_deterministic:
            return False
        judged = choice.name, self._witness_cases, profile, other, testbed.replay
        return is_refuted(*judged) or (choice.is_always_shown and is_spoken_against(*judged))

    def differs_from_all(self, case: Case, profiles: Sequence[Profile]) -> bool:
        """Whether a target differs from each of these references, which all come to rest."""
        try:
            return all(self.replay(case, each) is not None for each in profiles)
        except (CaseError, RunsAway):
            return False

    def replay(self, case: Case, profile: Profile | None = None) -> Difference | None:
        """Carry a case out on new devices: how the target differs, if it does."""
        return self._testbed.replay(case, profile or self.state.profile)


def _to_leave_unchecked(
    case: Case, difference: Difference, known: Collection[str]
) -> Collection[str]:
    """The fields that are wrong in a finding, and that need not be compared for others."""
    fields = MAY_BE_UNCHECKED.intersection(fields_at_fault(difference)).difference(known)
    if role_of(case) is not Role.CM:
        return fields
    return [each for each in fields if not each.startswith("completion.")]  # events have others
