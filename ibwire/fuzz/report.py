"""What a run has found so far, and what it has learned about the target."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from ibwire.fuzz.case import Case
from ibwire.fuzz.coverage import Coverage
from ibwire.fuzz.judge.choices import CHOICES
from ibwire.fuzz.judge.exclusions import Exclusion
from ibwire.fuzz.judge.findings import Finding
from ibwire.fuzz.minimise import Shows, never
from ibwire.programs.endpoint import Interrupted
from ibwire.rc.profile import Profile

HISTORY = 200
"""Cases on one pair of emulated devices."""

MAXIMUM_BUCKETS = 1000
"""Different findings that are kept, and different ones that were not seen again."""

OTHERS = "others"
"""The bucket of all differences beyond those."""


MAXIMUM_POSTPONED = 200
"""Differences that are kept until there is time for them."""


@dataclass(frozen=True, slots=True)
class Postponed:
    """A difference that is examined when there is time for it."""

    case: Case
    """The case that showed it, behind those that were carried out before on the same devices."""
    bucket: str
    """The name of the difference, if nothing explains it."""
    kind: str
    """What it has in common with others of one cause, whatever the opcodes and the state are."""
    packet_fault: str
    """What is wrong with the last packet, if anything is."""
    packet: int
    """Number of the packet of the run that showed it, from 1."""

    @property
    def traits(self) -> tuple[str, ...]:
        """What it may have in common with others of the same cause."""
        return (
            self.kind,
            f"packet: {self.packet_fault}",
            f"{self.bucket.partition(' ')[0]}: {self.kind}",
        )

    @property
    def effects(self) -> list[str]:
        """What the target does otherwise: the answer in place of another, and each wrong field."""
        what, *words = self.kind.split(", ")
        _, due, got, *fields = words if len(words) > 2 else ("", "", "")  # of a crash
        return [f"effect: {what}, {each}" for each in (f"{got} for {due}", *fields)]


@dataclass(slots=True)
class Report:
    """The result of a run."""

    coverage: Coverage
    packets: int = 0
    cases: int = 0
    findings: list[Finding] = field(default_factory=list)
    seen: Counter[str] = field(default_factory=Counter)
    """How often each bucket was seen, also in runs that this one resumes."""
    groups: dict[str, str] = field(default_factory=dict)
    """The bucket of each group of findings, and of each cause beside the group."""
    accepted: Counter[str] = field(default_factory=Counter)
    """How often each finding was seen that the user knows already, 0 for none: by its group."""
    accepted_as: dict[str, str] = field(default_factory=dict)
    """The group of such a finding, by that and by each cause beside it."""
    led_to: dict[str, str] = field(default_factory=dict)
    """The bucket that a difference, before its case is minimised, belongs to."""
    examined: Counter[str] = field(default_factory=Counter)
    """How often such a difference was minimised."""
    taken: dict[str, str] = field(default_factory=dict)
    """Choices that the reference has taken over from the target: values by field."""
    unchecked: list[str] = field(default_factory=list)
    """Fields of packets with a finding, which are not compared in every second history."""
    left_out: list[Exclusion] = field(default_factory=list)
    """What a device on a link is not tested with any more."""
    unstable: Counter[str] = field(default_factory=Counter)
    """Differences that were not seen again, by bucket."""
    unexamined: Counter[str] = field(default_factory=Counter)
    """Differences for which there was no time so far, by bucket."""
    postponed: dict[str, Postponed] = field(default_factory=dict)
    """One of them, by bucket."""
    in_vain: dict[str, int] = field(default_factory=dict)
    """How many of the last differences with a trait or effect, among those examined, were no new
    finding."""
    explained: int = 0
    """What cases that were carried out again had cost when a resumed run was saved, in steps."""

    @property
    def choices(self) -> dict[str, str]:
        """The rules of the allowed choices in `taken`, by what they are about."""
        return {
            choice.about: choice.rule
            for choice in CHOICES
            if choice.allowed and choice.name in self.taken
        }

    def bucket_of(self, groups: Iterable[str]) -> str | None:
        """The bucket of the first of these groups that has a finding."""
        return next((self.groups[each] for each in groups if each in self.groups), None)

    def accept(self, group: str, causes: Iterable[str]) -> None:
        """Count what is of a group, or has one of these causes, and do not report it."""
        self.accepted[group] = 0
        self.accepted_as |= dict.fromkeys((group, *causes), group)

    def is_accepted(self, groups: Iterable[str]) -> bool:
        """Whether the user knows one of these groups; counts the first that is known."""
        known = next((self.accepted_as[each] for each in groups if each in self.accepted_as), None)
        if known is not None:
            self.accepted[known] += 1
        return known is not None

    def count_unstable(self, bucket: str) -> None:
        """Count a difference that was not seen again."""
        _count(self.unstable, bucket)

    def postpone(self, postponed: Postponed) -> None:
        """Keep a difference for later: of a bucket the one with the shortest case."""
        bucket = postponed.bucket
        _count(self.unexamined, bucket)
        kept = self.postponed.get(bucket)
        if kept is None or len(postponed.case.steps) < len(kept.case.steps):
            self.postponed[bucket] = postponed
        if len(self.postponed) > MAXIMUM_POSTPONED:
            del self.postponed[max(self.postponed, key=self._rank)]

    @property
    def next_postponed(self) -> Postponed | None:
        """The one most likely to be a new finding; among equals the one with the shortest case."""
        bucket = min(self.postponed, key=self._rank, default=None)
        return None if bucket is None else self.postponed[bucket]

    @property
    def postponed_in_order(self) -> list[Postponed]:
        """All of them, that one first."""
        return [self.postponed[bucket] for bucket in sorted(self.postponed, key=self._rank)]

    def _rank(self, bucket: str) -> tuple[bool, int, int, int, int]:
        """Sort key: the smallest is examined first; effects never examined come first."""
        postponed = self.postponed[bucket]
        is_known = all(each in self.in_vain for each in postponed.effects)
        in_vain = sum(self.in_vain.get(each, -1) for each in postponed.traits)
        return is_known, in_vain, self.examined[bucket], len(postponed.case.steps), postponed.packet

    def take_postponed(self, postponed: Postponed) -> None:
        """Take out a difference that has been examined, for all others of its bucket, too."""
        bucket = postponed.bucket
        self.postponed.pop(bucket, None)
        others = max(self.unexamined.pop(bucket, 0) - 1, 0)
        if bucket in self.led_to:
            self.seen[self.led_to[bucket]] += others

    def note_examined(self, examined: Postponed, *, is_new: bool) -> None:
        """Take note of what a difference was that was examined."""
        for trait in (*examined.traits, *examined.effects):
            self.in_vain[trait] = 0 if is_new else self.in_vain.get(trait, 0) + 1


def _count(counts: Counter[str], bucket: str) -> None:
    is_known = bucket in counts or len(counts) < MAXIMUM_BUCKETS
    counts[bucket if is_known else OTHERS] += 1


@dataclass(slots=True)
class Search:
    """A search for a shorter case, which time or the user may end."""

    is_over: Callable[[], bool] = bool
    """Whether time is up."""
    is_interrupted: bool = False
    """Whether the user has interrupted it."""
    also: Callable[[Case], bool] | None = None
    """What a shorter case has to show beside the same difference."""
    is_enough: Callable[[Case], bool] = never
    """Whether a case need not be made shorter."""
    is_thorough: bool = False
    """Whether it goes on to the end although other differences wait."""
    was_hurried: bool = False
    """Whether the last one ended early because other differences wait."""

    def shorter(self, shorten: Callable[[Case, Shows], Case], case: Case, shows: Shows) -> Case:
        """The case that `shorten` makes, or the shortest one so far when it is interrupted."""
        best = case

        def keeps(shorter: Case) -> bool:
            nonlocal best
            if not shows(shorter) or (self.also is not None and not self.also(shorter)):
                return False
            best = shorter
            return True

        try:
            return shorten(case, keeps)
        except (KeyboardInterrupt, Interrupted):
            self.is_interrupted = True
            return best


@dataclass(slots=True)
class RunState:
    """What a campaign and its testbed share."""

    report: Report
    base: str
    """Name of the profile of the reference."""
    profile: Profile
    """The same with the choices that were taken over from the target."""
    search: Search
    origin: str
    """How the origin of each case begins."""
    next_case: int
    """Number of the next case."""
    minimises: bool

    def origin_of_next(self) -> str:
        """The origin of the next case."""
        return f"{self.origin}case {self.next_case}"
