"""A run of a fuzzer: case after case until the budget is spent, with what was found.

Cases run one after the other on the same two devices, each on a connection of its own,
so that what leaks from one to the next is noticed. Whatever is found is carried out again
on fresh devices, first alone, and made as short as it can be.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from operator import itemgetter
from random import Random
from typing import Any, Protocol

from ibwire.fuzz.case import Case, Connect, Connection, Packet, Role, RunsAway, Step
from ibwire.fuzz.judge.choices import CHOICES, Choice
from ibwire.fuzz.judge.comparison import FATAL, Difference, Duel, Subject
from ibwire.fuzz.judge.findings import (
    Distance,
    Finding,
    bucket_of,
    distance,
    rule_of,
    signature,
    wrong_fields,
)
from ibwire.fuzz.judge.profiles import choices_of, profile_of
from ibwire.fuzz.minimise import Shows, condense, minimise
from ibwire.fuzz.targets.emulated_device import ADDRESS, PEER_ADDRESS, Emulation
from ibwire.fuzz.vocabulary.queue_pair.binding import Binding
from ibwire.fuzz.vocabulary.queue_pair.coverage import Coverage
from ibwire.fuzz.vocabulary.queue_pair.generator import Generator, Menu
from ibwire.programs.endpoint import Interrupted
from ibwire.rc.profile import PROFILES, Profile

HISTORY = 200
"""Cases on one pair of devices."""

ENDLESS = 1 << 62
"""Packets, where something else ends a run."""

MAXIMUM_BUCKETS = 1000
"""Different findings that are kept, and different ones that did not come again."""

OTHERS = "others"
"""What is counted for all that did not come again beyond those."""

EXAMINED = 8
"""Differences of a bucket that are examined: then it is taken for granted that they are alike."""

FEW = 3
"""Of the choices that bring nearer, how many are tried together with another one."""

NEVER: Distance = (1, 0, 0, 0)
"""Farther than any difference."""

Open = Callable[[Connection], Subject]
"""Makes the target for a connection."""

Maker = Callable[[int], "Stepper"]
"""Makes the generator of a case, by its number."""


Seen = tuple[Case, Difference | None, str]
"""A case as it was carried out, what was seen last, and the state of the connection before."""


class Stepper(Protocol):
    """What makes a case step by step."""

    @property
    def connection(self) -> Connection:
        """The connection that the case begins with."""
        ...

    def next(self, reference: Emulation) -> Step | None:
        """The next step, `None` at the end of the case."""
        ...


@dataclass(slots=True)
class Report:
    """What came of a run."""

    packets: int = 0
    cases: int = 0
    findings: list[Finding] = field(default_factory=list)
    seen: Counter[str] = field(default_factory=Counter)
    """How often each bucket was met, also those of runs that this one goes on from."""
    taken: dict[str, str] = field(default_factory=dict)
    """What the target does otherwise than the profile of the reference: values by field."""
    given_back: list[str] = field(default_factory=list)
    """Fields of choices that were taken in error, and are not taken again."""
    left_out: list[str] = field(default_factory=list)
    """What a device on a link is not tried with any more, after it was found: `Taken`."""
    coverage: Coverage = field(default_factory=Coverage)
    unstable: Counter[str] = field(default_factory=Counter)
    """Differences that did not come again, by bucket."""

    @property
    def choices(self) -> dict[str, str]:
        """The allowed ones of `taken`: where the specification leaves it open, by what about."""
        return {
            choice.about: choice.rule
            for choice in CHOICES
            if choice.allowed and choice.name in self.taken
        }

    def count_unstable(self, bucket: str) -> None:
        """A difference did not come again."""
        is_known = bucket in self.unstable or len(self.unstable) < MAXIMUM_BUCKETS
        self.unstable[bucket if is_known else OTHERS] += 1


@dataclass(frozen=True, slots=True)
class History:
    """What came of cases on one pair of devices, that another campaign has carried out."""

    first: int
    """Number of the first one."""
    cases: int
    packets: int
    coverage: Coverage
    is_clean: bool
    """Whether it is whole and nothing was seen; else something was in the last case."""


class Campaign:
    """Cases against one target.

    profile: of the reference. make: the generator of each case. explains: whether known
    deviations are looked for. first, report: of a run that this one goes on from. origin:
    what its cases begin to say about where they come from. Raises `CaseError` for a report
    that does not fit.
    """

    def __init__(
        self,
        open_target: Open,
        make: Maker,
        *,
        profile: str = "spec",
        first: int = 0,
        report: Report | None = None,
        origin: str = "",
        explains: bool = True,
        minimises: bool = True,
    ) -> None:
        self.report = report or Report()
        self.next_case = first
        """Number of the case that comes next."""
        self.is_interrupted = False
        """Whether the user has, while a finding was looked at: it is there all the same."""
        self._open = open_target
        self._make = make
        self._name = profile
        self._origin = origin
        self._profile = profile_of(profile, self.report.taken)
        self._explains = explains
        self._minimises = minimises
        self._binding = Binding(PEER_ADDRESS, ADDRESS)
        self._state = ""
        """Of the connection when the difference that is examined was seen."""
        self._duel: Duel | None = None
        self._history: list[Case] = []
        self._is_late: Callable[[], bool] = bool

    @property
    def lost(self) -> str:
        """Why the target is given up, which is none that comes and goes; else empty."""
        return ""

    def run(self, packets: int) -> Iterator[Finding]:
        """Go on until that many packets have been sent in all; what is new."""
        report = self.report
        while report.packets < packets and not self.lost:
            found = self.one_case(packets)
            if found is not None:
                yield found
            if self.is_interrupted:
                raise KeyboardInterrupt

    def one_case(self, packets: int, *, is_over: Callable[[], bool] = bool) -> Finding | None:
        """The next case, which ends when so many packets have been sent in all; what is new.

        is_over: whether time is up, so that a finding is not made any shorter; it never is
        unless this says so. A case that was interrupted is still the next one, but for a
        finding that would not come again by itself: see `is_interrupted`.
        """
        report, self._is_late = self.report, is_over
        before = self._profile, report.taken, list(report.given_back)
        try:
            found = self._one_case(packets)
        except KeyboardInterrupt:
            self._profile, report.taken, report.given_back = before
            raise
        self.next_case += 1
        report.cases += 1
        return found

    @property
    def begins_history(self) -> bool:
        """Whether the next case comes to new devices."""
        return self._duel is None or len(self._history) >= HISTORY

    def look_ahead(self, is_stale: Callable[[], bool]) -> History | None:
        """Carry out a history for another campaign, up to the first case that shows anything.

        This one has just begun, with an empty report, and is used for nothing else. is_stale:
        whether the history is not wanted any more, asked after each case; then it is `None`.
        """
        first, report = self.next_case, self.report
        is_clean = True
        while is_clean and report.cases < HISTORY:
            case, difference, _ = self._carried_out(ENDLESS)
            self.next_case += 1
            report.cases += 1
            if difference is None:
                self._history.append(case)
            is_clean = len(self._history) == report.cases  # which a new pair of devices ends, too
            if is_stale():
                return None
        return History(first, report.cases, report.packets, report.coverage, is_clean)

    def take_over(self, history: History) -> None:
        """Go on behind a clean history that begins with the next case, as after its last one."""
        report = self.report
        self._history.clear()
        self._duel = None
        self.next_case += history.cases
        report.cases += history.cases
        report.packets += history.packets
        report.coverage.counts.update(history.coverage.counts)

    def _one_case(self, budget: int) -> Finding | None:
        case, difference, state = self._carried_out(budget)
        if difference is not None:
            return self._examine(case, difference, state)
        self._history.append(case)
        return None

    def _carried_out(self, budget: int) -> Seen:
        number, report = self.next_case, self.report
        generator = self._make(number)
        duel = self._connected(generator.connection)
        reference, coverage = duel.reference, report.coverage
        state = reference.state
        steps: list[Step] = []
        difference: Difference | None = None
        while (step := generator.next(reference)) is not None:
            steps.append(step)
            state = reference.state
            difference = duel.step(step)
            if isinstance(step, Packet):
                report.packets += 1
                coverage.count(state, step, duel.expected)
            if difference is not None or report.packets >= budget:
                break
        if difference is None:
            difference = duel.end()
        origin = f"{self._origin}case {number}"
        return Case(generator.connection, tuple(steps), self._name, origin), difference, state

    def _connected(self, connection: Connection) -> Duel:
        """The pair of devices, with a new connection."""
        if self._duel is not None and len(self._history) < HISTORY:
            self._duel.steps = 0
            if self._duel.step(Connect(connection)) is None:
                return self._duel
        self._history.clear()
        self._duel = self._fresh(connection, self._profile)
        return self._duel

    def _fresh(self, connection: Connection, profile: Profile) -> Duel:
        return Duel(self._binding, Emulation(connection, profile), self._open(connection))

    # What is found.

    def _examine(self, case: Case, difference: Difference, state: str) -> Finding | None:
        """A difference: does it come again?"""
        report = self.report
        self._state = state
        bucket = bucket_of(difference, case.steps[-1], state)
        history, self._history = self._history, []
        self._duel = None
        if report.seen[bucket] >= EXAMINED:
            report.seen[bucket] += 1
            return None
        original, again = case, self.replay(case)
        if again is None:
            original = joined(history, case)
            again = self.replay(original)
            if again is None:
                report.count_unstable(bucket)
                return None
            case = self._shorter(condense, original, self._showing(again, self._profile))
        return self._judged(case, bucket, original)

    def _judged(self, case: Case, bucket: str, original: Case | None = None) -> Finding | None:
        """A difference that comes again: is it allowed, is it new?

        original: of a case of several connections that has become one of fewer.
        """
        report = self.report
        names: list[str] = []
        if self._explains and not self.is_interrupted:
            try:
                names = self._explain(case)
            except KeyboardInterrupt:
                if original is None or original is case:
                    raise  # the case that comes next will show it again
                self.is_interrupted = True
        again = self.replay(case)
        if again is None and not names:
            return None  # all of it was allowed
        bucket = "; ".join(names) or self._name_of(case, again, bucket)
        if bucket not in report.seen and len(report.seen) >= MAXIMUM_BUCKETS:
            return None
        found = None
        if bucket not in report.seen:
            found = self._new(bucket, case, names, original or case)
        report.seen[bucket] += 1
        return found

    def _name_of(self, case: Case, left: Difference | None, bucket: str) -> str:
        """What is left of a difference by name, if nothing explains it; `bucket` is its first."""
        if left is None:
            return bucket
        return bucket_of(left, case.steps[left.step], self._state)

    def _new(self, bucket: str, case: Case, names: Sequence[str], original: Case) -> Finding | None:
        """Make a finding: as short as it can be, held against what the standard says."""
        strict = self._without(names)
        difference = self.replay(case, strict)
        if difference is None:
            return None  # the allowed choices alone explain it
        shortest = case
        if self._minimises and not self.is_interrupted:
            shortest = self.shortest(case, difference, strict)
        difference = self.replay(shortest, strict) or difference
        shortest = shortest.with_steps(shortest.steps[: difference.step + 1])
        needed = self._needed(shortest, difference, strict)
        shortest = replace(shortest, choices=choices_of(needed, self._name))
        difference = self.replay(shortest, needed) or difference
        rule = rule_of(difference, shortest.steps[-1])
        if names:
            rule = "; ".join(
                dict.fromkeys(choice.rule for choice in CHOICES if choice.about in names)
            )
        # What else this run has learned of the target is not to be found in it again.
        original = replace(original, choices=choices_of(strict, self._name))
        finding = Finding(
            *(len(self.report.seen) + 1, bucket, shortest, original, difference),
            *(self.report.packets, rule, "; ".join(names)),
        )
        self.report.findings.append(finding)
        return finding

    def shortest(self, case: Case, difference: Difference, profile: Profile) -> Case:
        """A case made shorter as long as it shows what it does against this reference."""
        shows = self._showing(difference, profile)
        return self._shorter(partial(minimise, is_over=self._is_late), case, shows)

    def _shorter(self, shorten: Callable[[Case, Shows], Case], case: Case, shows: Shows) -> Case:
        """What this makes of a case, or what it has made of it when the user interrupts it."""
        best = case

        def keeps(shorter: Case) -> bool:
            nonlocal best
            if not shows(shorter):
                return False
            best = shorter
            return True

        try:
            return shorten(case, keeps)
        except (KeyboardInterrupt, Interrupted):
            self.is_interrupted = True
            return best

    def _showing(self, difference: Difference, profile: Profile) -> Shows:
        """Whether a case shows the same against this reference."""
        wanted = signature(difference)

        def shows(case: Case) -> bool:
            found = self.replay(case, profile)
            return found is not None and signature(found) == wanted

        return shows

    def _needed(self, case: Case, difference: Difference, profile: Profile) -> Profile:
        """The reference with only those choices that a difference would not be the same without."""
        usual, wanted = PROFILES[self._name], _nature(difference)
        for name in choices_of(profile, self._name):
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
        """The reference of now, or another one, without these choices."""
        usual = PROFILES[self._name]
        changes: dict[str, Any] = {
            choice.name: getattr(usual, choice.name) for choice in CHOICES if choice.about in names
        }
        return replace(profile or self._profile, **changes)

    def _explain(self, case: Case) -> list[str]:
        """Take choices over while they bring the reference nearer to the target.

        Returns what the new ones that are not allowed are about.
        """
        names: list[str] = []
        while (difference := self.replay(case)) is not None:
            # No reference goes on where the target does not.
            found = None if difference.kind in FATAL else self._nearer(case, distance(difference))
            if found is None:
                break
            choices, self._profile = found
            for choice in choices:
                if choice.name in self.report.taken:
                    self.report.given_back.append(choice.name)
                elif not choice.allowed and choice.about not in names:
                    names.append(choice.about)
            self.report.taken = choices_of(self._profile, self._name)
        return names

    def _nearer(self, case: Case, best: Distance) -> tuple[Sequence[Choice], Profile] | None:
        """The choice that explains all, or two that do, or the one that brings nearest.

        Each is taken once in a run, and given back once: when a case is the first to show
        that another one was the right one. One that is not allowed is only given back when
        nothing else explains all.
        """
        near: list[tuple[Distance, int, Choice, Profile]] = []
        for choice, variant in self._variants(self._profile):
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
        for choice in CHOICES:
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
        """A case by itself: what differs that is not allowed, and the reference of that.

        The reference makes the choices of the target, whichever that is, if need be starting
        with those that the case brings along.
        """
        judged: list[tuple[Profile, Difference | None]] = []
        given_back = self.report.given_back
        for taken in ({}, dict(case.choices)):
            self._profile, self.report.taken = profile_of(self._name, taken), taken
            self.report.given_back = list(given_back)
            profile = self._without(self._explain(case))
            difference = self.replay(case, profile)
            if difference is None:
                return profile, None
            judged.append((profile, difference))
        return max(judged, key=lambda each: each[1].step if each[1] else 0)

    def replay(self, case: Case, profile: Profile | None = None) -> Difference | None:
        """Carry a case out on fresh devices: how the target differs, if it does."""
        duel = self._fresh(case.connection, profile or self._profile)
        for step in case.steps:
            difference = duel.step(step)
            if difference is not None:
                return difference
        return None


def _nature(difference: Difference) -> object:
    """Where and in what a target differs."""
    if difference.kind == "answer":
        return difference.step, signature(difference), wrong_fields(difference)
    return difference.step, difference.kind, difference.expected, difference.got


def joined(history: list[Case], case: Case) -> Case:
    """One case of all that happened on a pair of devices."""
    first, *others = [*history, case]
    steps = list(first.steps)
    for other in others:
        steps += [Connect(other.connection), *other.steps]
    return replace(case, connection=first.connection, steps=tuple(steps))


def generators(seed: int, role: Role, ops: Collection[str] = ()) -> Maker:
    """The stateful generator, for each number of a case its own; `both` takes roles in turn."""
    menu = Menu(ops)
    roles = (Role.RESPONDER, Role.REQUESTER) if role is Role.BOTH else (role,)

    def make(number: int) -> Generator:
        role = roles[number % len(roles)]
        return Generator(Random(f"{seed}:{role}:{number}"), role, menu)

    return make
