"""Findings: which rule of the protocol was broken, where, how often, and how severe it is.

A `Rule` is one rule of the protocol with its source. Some rules are always broken by
known implementations, without harm: such a rule names them as its `habits`, and is
reported as a note instead of a warning or an error. With the profile of that
implementation it is not reported; with the profile of another implementation it has
its own severity: what rxe always does is still wrong in a ConnectX. A habit that is in
every packet (a trait) is reported only with a profile, so that clean traffic has no
findings.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import IntEnum

ANY = "any"
"""Check against the specification, and accept the traits of every implementation."""
SPEC = "spec"
"""Check against the specification alone; known habits are notes."""

PROFILES = (ANY, SPEC, "rdmavt", "rxe", "connectx", "hns")
"""Implementations whose habits can be accepted: the names of `ibwire.rc.profile`."""


class Severity(IntEnum):
    """How severe a finding is."""

    NOTE = 1
    """Worth knowing: a known habit, or something that the specification leaves open."""
    WARNING = 2
    """Against the specification, but receivers accept it, or the capture may mislead."""
    ERROR = 3
    """A violation that a conforming peer need not accept."""

    @property
    def word(self) -> str:
        """The word in options and output."""
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule of the protocol."""

    id: str
    """`family.name`."""
    sentence: str
    """The rule, in one sentence."""
    severity: Severity
    section: str
    """Of the specification."""
    source: str
    """Where the rule is described beyond the specification, or a capture that shows it."""
    habits: tuple[str, ...] = ()
    """Implementations that are known to break it: names of profiles, and others."""
    is_trait: bool = False
    """The habit is in every packet of these implementations, without harm."""
    least: int = 1
    """Packets at one place from which on it is the sender; fewer may be bit errors that no ICRC
    shows, and are a note."""
    is_timed: bool = False
    """It compares times: not judged in a capture whose times go back."""

    @property
    def reference(self) -> str:
        """The entry of docs/reference that explains the check."""
        found = re.search(r"docs/reference/[\w-]+\.md#[\w-]+", self.source)
        return found[0] if found else ""

    @property
    def family(self) -> str:
        """First part of the id."""
        return self.id.partition(".")[0]

    def severity_for(self, profile: str) -> Severity | None:
        """Severity for a profile; `None` when the violation is its habit."""
        if profile in self.habits or (profile == ANY and self.is_trait):
            return None
        return Severity.NOTE if self.habits and profile in (ANY, SPEC) else self.severity


@dataclass(frozen=True, slots=True)
class Location:
    """Where a rule was broken: one direction of a connection, or a flow without one."""

    src: str
    dst: str
    dst_qpn: int | None
    connection: int = 0
    """Number of the connection; 0 when the packets belong to none."""
    direction: int = 0
    """0 from the end that was seen first."""


@dataclass(slots=True)
class Finding:
    """One rule broken at one place, once or many times."""

    rule: Rule
    severity: Severity
    location: Location
    text: str
    """What was found and what was expected, the first time."""
    count: int = 0
    numbers: list[int] = field(default_factory=list)
    """The first `EXAMPLES` packets that show it."""
    source: str = ""
    """The capture that the numbers count in."""

    def to_json(self) -> dict[str, object]:
        """The finding as a flat object."""
        return {
            "rule": self.rule.id,
            "severity": self.severity.word,
            "source": self.source,
            "connection": self.location.connection or None,
            "direction": self.location.direction if self.location.connection else None,
            "src": self.location.src,
            "dst": self.location.dst,
            "dst_qpn": self.location.dst_qpn,
            "count": self.count,
            "packets": self.numbers,
            "text": self.text,
            "sentence": self.rule.sentence,
            "section": self.rule.section,
            "habits": list(self.rule.habits),
        }


EXAMPLES = 5
"""Packets that one finding names."""

UNVERIFIED = 4
"""Truncated packets that must break a rule, because their ICRC cannot be verified."""

PLACES = 1000
"""Places counted separately for one rule; all others are counted together."""

ELSEWHERE = Location("", "", None)


class Occurrences:
    """Count and examples of one rule at one place, while a capture is read."""

    __slots__ = ("count", "is_verified", "numbers", "text")

    def __init__(self) -> None:
        self.count = 0
        self.is_verified = False
        """The ICRC of one of the packets at least was checked, and is right."""
        self.numbers: list[int] = []
        self.text = ""

    @property
    def is_shown(self) -> bool:
        """Whether an ICRC was checked, or so many packets agree that damage cannot explain it."""
        return self.is_verified or self.count >= UNVERIFIED

    def add(self, numbers: Iterable[int], count: int, text: str) -> None:
        """Add packets; the first ones in the capture are kept as examples."""
        for number in numbers:
            if len(self.numbers) == EXAMPLES and number >= self.numbers[-1]:
                continue
            if not self.numbers or number < self.numbers[0]:
                self.text = text
            if number not in self.numbers:
                self.numbers = sorted((*self.numbers, number))[:EXAMPLES]
        self.count += count


PlaceKey = tuple[str, int, int]
"""`flow`, its number and 0; or `connection`, its number and the direction."""


class FindingCollector:
    """Collects violations; its size is bounded by the number of rules."""

    def __init__(self, rules: Iterable[Rule], profile: str = ANY) -> None:
        self.profile = profile
        self._open: dict[str, Rule] = {
            rule.id: rule for rule in rules if rule.severity_for(profile) is not None
        }
        self._found: dict[str, dict[PlaceKey | None, Occurrences]] = {}

    def wants(self, rule: Rule) -> bool:
        """Whether a rule is checked at all."""
        return rule.id in self._open

    def add(
        self, rule: Rule, key: PlaceKey, number: int, text: str, *, verified: bool = True
    ) -> None:
        """One packet that breaks a rule; whether its ICRC was checked."""
        self.add_many(rule, key, (number,), 1, text, verified=verified)

    def add_many(
        self,
        rule: Rule,
        key: PlaceKey,
        numbers: Iterable[int],
        count: int,
        text: str,
        *,
        verified: bool = True,
    ) -> None:
        """Several packets that break a rule at one place; the text is about the first."""
        if rule.id not in self._open:
            return
        places = self._found.setdefault(rule.id, {})
        where = key if key in places or len(places) < PLACES else None
        occurrences = places.setdefault(where, Occurrences())
        occurrences.add(numbers, count, text)
        occurrences.is_verified = occurrences.is_verified or verified

    def occurrences(self) -> Iterable[tuple[Rule, PlaceKey | None, Occurrences]]:
        """Rules with their occurrences by place; all places beyond `PLACES` have no key."""
        for rule_id, places in self._found.items():
            rule = self._open[rule_id]
            for key, occurrences in places.items():
                if occurrences.is_shown:
                    yield rule, key, occurrences


def worst_first(findings: Iterable[Finding]) -> list[Finding]:
    """The most severe first, then the most frequent."""
    return sorted(
        findings,
        key=lambda each: (
            -each.severity,
            -each.count,
            each.rule.id,
            each.location.connection,
            each.location.direction,
        ),
    )
