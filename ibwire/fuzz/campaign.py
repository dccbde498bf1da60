"""A run of the fuzzer: case after case until the budget is spent, with what was found.

The campaign makes cases and has its testbed carry them out; what differs is for its `Judge`.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from ibwire.fuzz.case import MAXIMUM_TIME, Case, CaseError, Packet, RunsAway, Step, Wait
from ibwire.fuzz.coverage import Answer, Cell, Coverage
from ibwire.fuzz.guidance import Guided
from ibwire.fuzz.judge.choices import Choice
from ibwire.fuzz.judge.comparison import Difference
from ibwire.fuzz.judge.exclusions import WitnessExcluded
from ibwire.fuzz.judge.findings import Finding
from ibwire.fuzz.judge.open_timers import MOST, TICKS
from ibwire.fuzz.judge.profiles import (
    UNCHECKED,
    choices_of,
    profile_of,
    unchecked_by,
    unchecked_in,
    without_checking,
)
from ibwire.fuzz.judge.witness import WITNESS, Trials, fingerprint
from ibwire.fuzz.report import HISTORY, Postponed, Report, RunState, Search
from ibwire.fuzz.stepper import Maker
from ibwire.fuzz.targets.testbed import Confirmed, Testbed
from ibwire.fuzz.verdict import Judge
from ibwire.programs.endpoint import Interrupted

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
        self.judge = Judge(testbed, self.state, testbed.choices if explains else ())
        """What judges the differences that are found."""
        self._has_fingerprint = False
        self._trials = Trials(testbed.replay, testbed.failures)
        """Of witnesses, for the fingerprint."""
        self._waiting: deque[tuple[Case, Choice | None]] = deque()
        """Witnesses in which the target differs, with their deviations."""

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
            return self.judge.judged(confirmed) if confirmed is not None else None
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
        # Most waits end where the timers of the reference do, before those of such a device.
        is_longer = self.state.profile.timers_vary and bool(number & 1)
        while (step := stepper.next(reference)) is not None:
            if is_longer and isinstance(step, Wait):
                step = Wait(min(MOST * step.time + TICKS, MAXIMUM_TIME))
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
        state, cases = self.state, self.judge.witness_cases
        if not cases or not self.judge.choices:
            self._has_fingerprint = True
            return
        if not self._begin_case():
            return
        found = fingerprint(cases, state.profile, self.judge.choices, self._trials)
        self._has_fingerprint = True
        state.profile = found.profile
        self.report.taken = choices_of(found.profile, state.base)
        for choice in self.judge.choices:
            if self.judge.is_taken(choice) and not choice.allowed:
                own = [case for name, case in cases if name == choice.name]
                self._waiting.extend((case, choice) for case in own)
        self._waiting.extend((case, None) for case in found.unexplained)

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
                found = self.judge.judged(Confirmed(case, "", original=case))
            else:
                found = self.judge.deviation(case, choice)
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
                found = self.judge.judged(confirmed) if confirmed is not None else None
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
