"""A run of the fuzzer: case after case until the budget is spent, with what was found.

The campaign makes cases, has its testbed carry them out, and judges what differs: is it
allowed, has it a name, is it new, and which case is the shortest that shows it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any

from ibwire.fuzz.case import Case, CaseError, Packet, RunsAway, Step
from ibwire.fuzz.coverage import Answer, Cell, Coverage
from ibwire.fuzz.guidance import Guided
from ibwire.fuzz.judge.choices import CHOICES, Choice
from ibwire.fuzz.judge.comparison import FATAL, Difference, Kind
from ibwire.fuzz.judge.findings import Distance, Finding, distance, signature, wrong_fields
from ibwire.fuzz.judge.profiles import choices_of, profile_of
from ibwire.fuzz.report import HISTORY, MAXIMUM_BUCKETS, Report, RunState, Search
from ibwire.fuzz.stepper import Maker
from ibwire.fuzz.targets.testbed import Confirmed, Testbed
from ibwire.programs.endpoint import Interrupted
from ibwire.rc.profile import PROFILES, Profile

ENDLESS = 1 << 62
"""A budget of packets for a run that something else ends."""

FEW = 3
"""How many of the choices that reduce the distance most are tried together with another one."""

NEVER: Distance = (1, 0, 0, 0)
"""Farther than any difference."""


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
        self._make = make
        self._guide = make.guide if isinstance(make, Guided) else None
        self._choices: Sequence[Choice] = testbed.choices if explains else ()

    @property
    def report(self) -> Report:
        """What was found so far."""
        return self.state.report

    @property
    def next_case(self) -> int:
        """Number of the next case."""
        return self.state.next_case

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
        while report.packets < packets and not self.lost:
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
        state.search.is_over = is_over
        before = state.profile, report.taken, list(report.given_back)
        try:
            found = self._one_case(packets)
        except (KeyboardInterrupt, Interrupted) as signal:
            state.profile, report.taken, report.given_back = before
            raise KeyboardInterrupt from signal
        state.next_case += 1
        report.cases += 1
        return found

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
            case, difference, _ = self._carried_out(ENDLESS)
            self.state.next_case += 1
            report.cases += 1
            if difference is None:
                history.append(case)
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

    def _one_case(self, budget: int) -> Finding | None:
        testbed, state = self._testbed, self.state
        try:
            testbed.begin_case(state)
        except testbed.failures as error:
            testbed.lost = str(error)
            return None
        found = None
        try:
            case, difference, before = self._carried_out(budget)
            if difference is None:
                testbed.history.append(case)
            else:
                confirmed = testbed.confirm(state, case, difference, before)
                found = self._judged(confirmed) if confirmed is not None else None
            testbed.end_case(state, found, is_last=state.report.packets >= budget)
        except CaseError as error:
            testbed.refuse(error)
        except testbed.failures as error:
            return self._crashed(str(error))
        finally:
            testbed.leave()
        return found

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
        cell_of = self._testbed.vocabulary.cell_of
        while (step := stepper.next(reference)) is not None:
            steps.append(step)
            before = reference.state
            if cell_of is not None and isinstance(step, Packet):
                cell = cell_of(reference, step)
                coverage.cells[cell] += 1
                if guide is not None:
                    guide.seen.add(cell)
            difference = comparison.step(step)
            if isinstance(step, Packet):
                report.packets += 1
                coverage.count(before, step, comparison.expected)
            if difference is not None or report.packets >= budget:
                break
        if difference is None:
            difference = comparison.end()
        origin = self.state.origin_of_next()
        case = Case(stepper.connection, tuple(steps), self.state.base, origin)
        return case, difference, before

    # Findings.

    def _judged(self, confirmed: Confirmed) -> Finding | None:
        """A finding, if a difference is neither allowed nor known already."""
        report, state, case = self.report, self.state, confirmed.case
        names: list[str] = []
        if self._choices and not self.is_interrupted:
            try:
                names = self._explain(case)
            except KeyboardInterrupt:
                if confirmed.original is case:
                    raise  # the next case will show it again
                state.search.is_interrupted = True
        left = self.replay(case)
        if left is None and not names:
            return None  # all of it was allowed
        bucket = "; ".join(names) or confirmed.bucket
        if left is not None and not names:
            bucket = self._testbed.name_of(state, case, left, bucket)
        if bucket not in report.seen and len(report.seen) >= MAXIMUM_BUCKETS:
            return None
        found = None
        if bucket not in report.seen:
            found = self._new(bucket, case, names, confirmed.original)
        report.seen[bucket] += 1
        return found

    def _new(self, bucket: str, case: Case, names: Sequence[str], original: Case) -> Finding | None:
        """Make a finding: the minimised case, compared with the specification."""
        state, report = self.state, self.report
        strict = self._without(names)
        difference = self.replay(case, strict)
        if difference is None:
            return None  # the allowed choices alone explain it
        shortest = case
        if state.minimises and not self.is_interrupted:
            shortest = self.shortest(case, difference, strict)
        difference = self.replay(shortest, strict) or difference
        shortest = shortest.with_steps(shortest.steps[: difference.step + 1])
        needed = self._needed(shortest, difference, strict)
        shortest = replace(shortest, choices=choices_of(needed, state.base))
        difference = self.replay(shortest, needed) or difference
        rule = self._testbed.rule_of(difference, shortest.steps[-1])
        if names:
            rule = "; ".join(
                dict.fromkeys(choice.rule for choice in CHOICES if choice.about in names)
            )
        finding = Finding(
            number=len(report.seen) + 1,
            bucket=bucket,
            case=shortest,
            # The other choices that this run has taken over cannot be found in it again.
            original=replace(original, choices=choices_of(strict, state.base)),
            difference=difference,
            packet=report.packets,
            rule=rule,
            about="; ".join(names),
        )
        report.findings.append(finding)
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
        )
        self._testbed.note_crash(finding, is_new=is_new)
        if not is_new:
            return None
        report.findings.append(finding)
        return finding

    def shortest(self, case: Case, difference: Difference, profile: Profile) -> Case:
        """The shortest case found that shows the same difference from this reference."""
        return self._testbed.shorten(self.state, case, difference, profile)

    def _needed(self, case: Case, difference: Difference, profile: Profile) -> Profile:
        """The reference with only those choices that a difference would not be the same without."""
        usual, wanted = PROFILES[self.state.base], _nature(difference)
        for name in choices_of(profile, self.state.base):
            changes: dict[str, Any] = {name: getattr(usual, name)}
            plainer = replace(profile, **changes)
            try:
                found = self.replay(case, plainer)
            except RunsAway:
                continue
            if found is not None and _nature(found) == wanted:
                profile = plainer
        return profile

    def _without(self, names: Sequence[str], profile: Profile | None = None) -> Profile:
        """The current reference, or another one, without these choices."""
        usual = PROFILES[self.state.base]
        changes: dict[str, Any] = {
            choice.name: getattr(usual, choice.name) for choice in CHOICES if choice.about in names
        }
        return replace(profile or self.state.profile, **changes)

    def _explain(self, case: Case) -> list[str]:
        """Take choices over while they bring the reference nearer to the target.

        Returns what the new ones that are not allowed are about.
        """
        names: list[str] = []
        while (difference := self.replay(case)) is not None:
            # The reference stops where the target does.
            found = None if difference.kind in FATAL else self._nearer(case, distance(difference))
            if found is None:
                break
            choices, self.state.profile = found
            for choice in choices:
                if choice.name in self.report.taken:
                    self.report.given_back.append(choice.name)
                elif not choice.allowed and choice.about not in names:
                    names.append(choice.about)
            self.report.taken = choices_of(self.state.profile, self.state.base)
        return names

    def _nearer(self, case: Case, best: Distance) -> tuple[Sequence[Choice], Profile] | None:
        """The choice that explains all, or two that do, or the one that brings nearest.

        Each is taken once in a run, and given back once: when a case is the first to show
        that another one was the right one. One that is not allowed is only given back when
        nothing else explains all.
        """
        near: list[tuple[Distance, int, Choice, Profile]] = []
        for choice, variant in self._variants(self.state.profile):
            reached = self._reached(case, variant)
            if reached is None:
                return [choice], variant
            is_back = choice.name in self.report.taken and not choice.allowed
            if reached < best and not is_back:
                near.append((reached, len(near), choice, variant))
        near.sort(key=itemgetter(0, 1))
        for _, _, first, profile in near[:FEW]:
            for choice, variant in self._variants(profile):
                if choice is not first and self._reached(case, variant) is None:
                    return [first, choice], variant
        return next((([choice], profile) for _, _, choice, profile in near), None)

    def _variants(self, profile: Profile) -> Iterator[tuple[Choice, Profile]]:
        """References that differ from one in a choice that may still be taken or given back."""
        for choice in self._choices:
            if choice.name in self.report.given_back:
                continue
            if choice.name in self.report.taken:
                yield choice, self._without([choice.about], profile)
            else:
                for variant in choice.variants(profile):
                    yield choice, variant

    def _reached(self, case: Case, profile: Profile) -> Distance | None:
        """How far the target is from a reference; `None` if it does the same."""
        try:
            difference = self.replay(case, profile)
        except RunsAway:  # a choice with which this case does not come to rest
            return NEVER
        return None if difference is None else distance(difference)

    def judge(self, case: Case) -> tuple[Profile, Difference | None]:
        """A single case: the reference with the target's choices, and the remaining difference.

        Raises one of the testbed's `failures` if the device was not alive before.
        """
        testbed, state = self._testbed, self.state
        testbed.begin_case(state)
        try:
            if testbed.shows_only_crashes(case):
                return state.profile, testbed.crash_after(state, case)
            judged = self._judged_alone(case)
            testbed.check(judged[1])
        except testbed.failures as error:
            return state.profile, testbed.crash_after(state, case, str(error))
        return judged

    def _judged_alone(self, case: Case) -> tuple[Profile, Difference | None]:
        """A case with the choices of the target, starting without and with its own."""
        state, report = self.state, self.report
        if not self._choices:
            return state.profile, self.replay(case)
        judged: list[tuple[Profile, Difference | None]] = []
        given_back = report.given_back
        for taken in ({}, dict(case.choices)):
            state.profile, report.taken = profile_of(state.base, taken), taken
            report.given_back = list(given_back)
            profile = self._without(self._explain(case))
            difference = self.replay(case, profile)
            if difference is None:
                return profile, None
            judged.append((profile, difference))
        return max(judged, key=lambda each: each[1].step if each[1] else 0)

    def replay(self, case: Case, profile: Profile | None = None) -> Difference | None:
        """Carry a case out on new devices: how the target differs, if it does."""
        return self._testbed.replay(case, profile or self.state.profile)


def _nature(difference: Difference) -> object:
    """Where and in what a target differs."""
    if difference.kind is Kind.ANSWER:
        return difference.step, signature(difference), wrong_fields(difference)
    return difference.step, difference.kind, difference.expected, difference.got
