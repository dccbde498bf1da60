"""What a run has found so far, and what it has learned about the target."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
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


MOST_DOUBLED = 20
"""How often the number of differences that are left out is doubled at most."""


@dataclass(slots=True)
class Patience:
    """Which differences of a kind are examined when time is short.

    After two in vain, two are left out, and with each further one in vain twice as many and two
    more: kinds of differences that are all of one cause cost little, and none is given up.
    """

    in_vain: int = 0
    """How many of the last ones were no new finding."""
    left_out: int = 0
    """How many were left out after the last one."""

    def is_next(self) -> bool:
        """Whether the next difference is examined; it is left out if not."""
        if self.left_out + 2 < 1 << min(self.in_vain, MOST_DOUBLED):
            self.left_out += 1
            return False
        self.left_out = 0
        return True

    def note(self, *, is_new: bool) -> None:
        """Take note of what one was that was examined."""
        self.in_vain = 0 if is_new else self.in_vain + 1


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
    """The bucket of each group of findings."""
    accepted: Counter[str] = field(default_factory=Counter)
    """How often each group was seen that the user knows already, 0 for none."""
    led_to: dict[str, str] = field(default_factory=dict)
    """The bucket that a difference, before its case is minimised, belongs to."""
    examined: Counter[str] = field(default_factory=Counter)
    """How often such a difference was minimised."""
    taken: dict[str, str] = field(default_factory=dict)
    """Choices that the reference has taken over from the target: values by field."""
    left_out: list[Exclusion] = field(default_factory=list)
    """What a device on a link is not tested with any more."""
    unstable: Counter[str] = field(default_factory=Counter)
    """Differences that were not seen again, by bucket."""
    unexamined: Counter[str] = field(default_factory=Counter)
    """Differences for which there was no time, by bucket."""
    patience: defaultdict[str, Patience] = field(default_factory=lambda: defaultdict(Patience))
    """Which differences are examined when time is short, by their kind."""
    explained: int = 0
    """What cases that were carried out again had cost when a resumed run was saved, in packets."""

    @property
    def choices(self) -> dict[str, str]:
        """The rules of the allowed choices in `taken`, by what they are about."""
        return {
            choice.about: choice.rule
            for choice in CHOICES
            if choice.allowed and choice.name in self.taken
        }

    def count_unstable(self, bucket: str) -> None:
        """Count a difference that was not seen again."""
        _count(self.unstable, bucket)

    def count_unexamined(self, bucket: str) -> None:
        """Count a difference that was not examined because time was short."""
        _count(self.unexamined, bucket)


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
