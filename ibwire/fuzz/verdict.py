"""What a difference is: allowed, known, or a new finding with its shortest case and its name."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import cached_property, partial

from ibwire.fuzz.case import Case, CaseError, Connection, Packet, Role, RunsAway
from ibwire.fuzz.judge.alone import explained_alone
from ibwire.fuzz.judge.choices import Choice
from ibwire.fuzz.judge.comparison import Difference, Kind
from ibwire.fuzz.judge.exclusions import WitnessExcluded
from ibwire.fuzz.judge.explanation import changed, explanation, single_explanations, with_values
from ibwire.fuzz.judge.findings import (
    Finding,
    distance,
    fields_at_fault,
    has_other_payload,
    signature,
)
from ibwire.fuzz.judge.naming import Name
from ibwire.fuzz.judge.needs import FAR_FIRST_PSN, with_needs
from ibwire.fuzz.judge.packet_faults import fault_in, with_own_faults
from ibwire.fuzz.judge.profiles import (
    MAY_BE_UNCHECKED,
    choices_of,
    conditions_of,
    profile_of,
    without_checking,
)
from ibwire.fuzz.judge.witness import differing, is_refuted, is_shown, is_spoken_against
from ibwire.fuzz.minimise import never
from ibwire.fuzz.needed import needed_choices
from ibwire.fuzz.report import MAXIMUM_BUCKETS, Report, RunState
from ibwire.fuzz.targets.testbed import Confirmed, Testbed
from ibwire.fuzz.vocabulary.vocabularies import role_of
from ibwire.programs.endpoint import Interrupted
from ibwire.rc.profile import PROFILES, Profile

FEW = 3
"""How often a case is made shorter again because the shorter one shows only what is allowed."""

MOST_OPEN = 2
"""For how many references the witnesses that differ are remembered."""


class Judge:
    """Judges what a target does in the cases of a run. choices: those that are looked for."""

    def __init__(self, testbed: Testbed, state: RunState, choices: Sequence[Choice]) -> None:
        self.state = state
        self.choices = choices
        self._testbed = testbed
        self._open: dict[Profile, Collection[str]] = {}
        """Choices with a witness in which the target differs from a reference."""

    @property
    def report(self) -> Report:
        """What was found so far."""
        return self.state.report

    def judged(self, confirmed: Confirmed) -> Finding | None:
        """A finding, if a difference is neither allowed nor known already.

        It would not occur again in a run that is resumed: what is interrupted is done once more,
        without a search for a shorter case.
        """
        try:
            return self._judge(confirmed)
        except (KeyboardInterrupt, Interrupted):
            if self.state.search.is_interrupted:
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
        if state.minimises and not self.state.search.is_interrupted:
            shortest = self._short_enough(confirmed, difference)
        shortest, name, difference = self._named(shortest, difference, confirmed.bucket)
        if self._is_counted(name, confirmed):
            return None
        if (shorter := self._thoroughly(shortest, difference)) != shortest:
            shortest, name, difference = self._named(shorter, difference, confirmed.bucket)
            if self._is_counted(name, confirmed):
                return None
        allowed = self._allowing(shortest)
        if allowed is not None:
            if shortest == case or self._allowing(case) is not None:
                return None
            shortest = self._shortest_fault(case, difference, allowed)
            shortest, name, difference = self._named(shortest, difference, confirmed.bucket)
        if difference.kind is Kind.ENDLESS and not self._is_endless(shortest):
            report.count_unstable(name.text)
            return None
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

    def deviation(self, case: Case, choice: Choice) -> Finding | None:
        """The finding of a known deviation that a case shows, if it is a new one."""
        name = Name(choice.about, choice.rule, choice.about)
        if self.report.is_accepted([name.group]):
            return None
        finding = self._new(name, case, case, without=[choice])
        if finding is not None:
            finding.about = choice.about
        return finding

    def is_taken(self, choice: Choice) -> bool:
        """Whether the reference makes a choice otherwise than the profile that it began with."""
        usual = PROFILES[self.state.base]
        return bool(getattr(self.state.profile, choice.name) != getattr(usual, choice.name))

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
        if report.groups and (confirmed.is_postponed or testbed.explains_too_much(report)):
            if testbed.finding_of(self.state, case, difference, needs_connection=False):
                return case
            search.is_enough = self._has_name
        try:
            return self.shortest(case, difference, self.state.profile)
        finally:
            search.is_enough = never

    def _has_name(self, case: Case) -> bool:
        """Whether a case, which needs its connection, has the name of a finding."""
        found = self.replay(case)
        return found is not None and bool(
            self._testbed.finding_of(self.state, case, found, needs_connection=True)
        )

    def _thoroughly(self, case: Case, difference: Difference) -> Case:
        """The shortest case of what will be a new finding, if there was no time for it before."""
        search = self.state.search
        if not (search.was_hurried and self._is_minimised):
            return case
        search.is_thorough, search.is_enough = True, self._has_name
        try:
            return self.shortest(case, difference, self.state.profile)
        finally:
            search.is_thorough, search.is_enough = False, never

    def _named(
        self, case: Case, difference: Difference, bucket: str
    ) -> tuple[Case, Name, Difference]:
        """A case up to its difference, with that. difference: if it does not come again."""
        difference = self.replay(case) or difference
        case, difference = self._far_from_wrap(case, difference)
        case = case.with_steps(case.steps[: difference.step + 1])
        name = self._testbed.name_of(self.state, case, difference, bucket)
        # That of a finding is enough to count for it; the case may then be longer than it need be.
        if self.report.bucket_of(name.keys) is None and self._is_minimised:
            is_managed = role_of(case) is Role.CM
            shows = None if is_managed else partial(self._is_like, case, difference)
            name = with_needs(name, case, shows)
        return case, name, difference

    def _far_from_wrap(self, case: Case, difference: Difference) -> tuple[Case, Difference]:
        """A case whose PSNs go back behind the first one, and so over the wrap, on a connection on
        which they do not, if it shows the same there: then the wrap does not matter.
        """
        usual = Connection().rq_psn
        goes_back = [each.psn[1] for each in case.steps if isinstance(each, Packet)]
        if case.connection.rq_psn != usual or min(goes_back, default=0) >= -usual:
            return case, difference
        far = replace(case, connection=replace(case.connection, rq_psn=FAR_FIRST_PSN))
        found = self.replay(far)
        is_same = found is not None and signature(found) == signature(difference)
        return (far, found) if found is not None and is_same else (case, difference)

    def _is_like(self, case: Case, difference: Difference, other: Case) -> bool:
        """Whether another case shows the same as a case, or something else is wrong with it."""
        ends = [fault_in(each, len(each.steps) - 1, self.state.profile) for each in (other, case)]
        if ends[0] != ends[1]:
            return True
        found = self.replay(other)
        return found is not None and signature(found) == signature(difference)

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
        allowed = [each for each in self.choices if each.allowed and not each.is_by_witness_alone]
        if self._testbed.is_deterministic:
            shown = self._open_names(self.witness_cases)
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
            while len(others) <= FEW and not self.state.search.is_interrupted:
                shortest = self.shortest(case, difference, self.state.profile)
                found = self._allowing(shortest)
                if found is None:
                    return shortest
                others.append(found)
        finally:
            search.also = None
        return case

    def _is_endless(self, case: Case) -> bool:
        return self._testbed.is_endless(case, self.state.profile)

    def _is_fault(self, case: Case, difference: Difference) -> bool:
        """Whether a target is wrong that differs from a reference with its known deviations.

        It is not if it does what the specification says, where the reference deviates.
        """
        deviations = [each for each in self.choices if not each.allowed and self.is_taken(each)]
        if not deviations:
            return True
        right = with_values(self.state.profile, PROFILES[self.state.base], deviations)
        return self.replay(case, right) is not None

    def _witnessed(self, case: Case) -> Finding | None:
        """The finding of the known deviation that explains a case and that its witness shows.

        Of a choice whose witnesses this target cannot be given, the case itself is the witness.
        """
        state, replay = self.state, self._testbed.replay
        cases = self.witness_cases
        open_names = self._open_names(cases)
        choices = [each for each in self.choices if not each.allowed and each.name in open_names]
        for choice, profile in single_explanations(case, state.profile, choices, replay):
            is_known = choice.name in self._testbed.without_witness or is_shown(
                choice.name, cases, profile, state.profile, replay
            )
            if not is_known:
                continue
            state.profile = profile
            self.report.taken = choices_of(profile, state.base)
            return self.deviation(case, choice)
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

    @property
    def witness_cases(self) -> Sequence[tuple[str, Case]]:
        """The cases of all witnesses that the target can be given and survives, with names."""
        left_out = self.report.left_out
        return [each for each in self._placed_witnesses if WitnessExcluded(each[0]) not in left_out]

    @cached_property
    def _placed_witnesses(self) -> Sequence[tuple[str, Case]]:
        testbed, base = self._testbed, self.state.base
        return [(each.name, testbed.placed(each.case(base))) for each in testbed.witnesses]

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

    def shortest(self, case: Case, difference: Difference, profile: Profile) -> Case:
        """The shortest case found that shows the same difference from this reference."""
        return self._testbed.shorten(self.state, case, difference, profile)

    def judged_alone(self, case: Case) -> tuple[Profile, Difference | None]:
        """A single case: the reference with the target's choices, and the remaining difference.

        Raises one of the testbed's `failures` if the device was not alive before.
        """
        testbed, state = self._testbed, self.state
        testbed.begin_case(state)
        try:
            if testbed.shows_only_crashes(case):
                return state.profile, testbed.crash_in(state, case)
            profile, difference = self._explained_alone(case)
            testbed.check(difference)
            if difference is not None and difference.step + 1 < len(case.steps):
                # What the device does not survive may come behind the first difference.
                difference = testbed.crash_in(state, case) or difference
        except testbed.failures as error:
            return state.profile, testbed.crash_after(state, case, str(error))
        return profile, difference

    def _explained_alone(self, case: Case) -> tuple[Profile, Difference | None]:
        """A case with the allowed choices of the target, starting without and with its own.

        Of two differences the one counts that comes later, or in which less differs: the other
        may be about a deviation that the case only meets on its way.
        """
        state = self.state
        if not self.choices:
            return state.profile, self.replay(case)
        allowed = [each for each in self.choices if each.allowed and not each.is_by_witness_alone]
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
        cases = self.witness_cases
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
        judged = choice.name, self.witness_cases, profile, other, testbed.replay
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
