"""Findings: which rule of the protocol was broken, where, how often, and how grave that is.

A `Rule` is one law with its source. Some are broken by known implementations,
always and harmlessly: such a rule names them as its `habits`, and what would be
a warning or an error of anyone else is shown as a note. Judged by the profile of
that implementation it is not shown at all, and judged by the profile of another
one it has its own severity: what rxe always does is still wrong in a ConnectX.
A habit that is a mere trait, in every packet, is shown only where a profile is
asked for, so that clean traffic yields nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import IntEnum

ANY = "any"
"""Judge by the specification, and let every implementation have its traits."""
SPEC = "spec"
"""Judge by the specification alone; what is known of an implementation is a note."""

PROFILES = (ANY, SPEC, "rdmavt", "rxe", "connectx", "hns")
"""By whose habits a capture can be judged: the names of `ibwire.rc.profile`."""


class Severity(IntEnum):
    """How grave a finding is."""

    NOTE = 1
    """Worth knowing: a known habit, or something that the specification leaves open."""
    WARNING = 2
    """Not as the specification has it, but a receiver takes it, or the capture may deceive."""
    ERROR = 3
    """A breach that a conforming peer need not put up with."""

    @property
    def word(self) -> str:
        """As it is written in options and output."""
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class Rule:
    """One law of the protocol."""

    id: str
    """`family.name`."""
    sentence: str
    """The law, in one sentence."""
    severity: Severity
    section: str
    """Of the specification."""
    source: str
    """Where the law was read, beyond the specification, or in which capture it was seen."""
    habits: tuple[str, ...] = ()
    """Implementations that are known to break it: names of profiles, and others."""
    is_trait: bool = False
    """The habit is in every packet of these implementations and harms nobody."""
    least: int = 1
    """So many packets at one place break it; fewer may be bit errors that no ICRC shows."""

    @property
    def reference(self) -> str:
        """The entry of docs/reference that explains the law."""
        found = re.search(r"docs/reference/[\w-]+\.md#[\w-]+", self.source)
        return found[0] if found else ""

    @property
    def family(self) -> str:
        """First part of the id."""
        return self.id.partition(".")[0]

    def judged_by(self, profile: str) -> Severity | None:
        """How grave a breach is for a profile; `None` when that is its habit."""
        if profile in self.habits or (profile == ANY and self.is_trait):
            return None
        return Severity.NOTE if self.habits and profile in (ANY, SPEC) else self.severity


@dataclass(frozen=True, slots=True)
class Place:
    """Where something was found: one direction of a connection, or a flow outside of any."""

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
    place: Place
    text: str
    """What was found and what was expected, the first time."""
    count: int = 0
    numbers: list[int] = field(default_factory=list)
    """Packets that show it, the first `EXAMPLES` of them."""
    source: str = ""
    """The capture that the numbers count in."""

    def to_json(self) -> dict[str, object]:
        """The finding as a flat object."""
        return {
            "rule": self.rule.id,
            "severity": self.severity.word,
            "source": self.source,
            "connection": self.place.connection or None,
            "direction": self.place.direction if self.place.connection else None,
            "src": self.place.src,
            "dst": self.place.dst,
            "dst_qpn": self.place.dst_qpn,
            "count": self.count,
            "packets": self.numbers,
            "text": self.text,
            "sentence": self.rule.sentence,
            "section": self.rule.section,
            "habits": list(self.rule.habits),
        }


EXAMPLES = 5
"""Packets that are named of one finding."""

UNVERIFIED = 4
"""So many packets break a rule that were cut, so that nobody knows whether they were damaged."""

PLACES = 1000
"""Places that are told apart of one rule; what is found elsewhere is counted as one more."""

ELSEWHERE = Place("", "", None)


class Breach:
    """Count and examples of one rule at one place, while a capture is read."""

    __slots__ = ("count", "is_verified", "numbers", "text")

    def __init__(self) -> None:
        self.count = 0
        self.is_verified = False
        """The ICRC of one of the packets at least was checked, and is right."""
        self.numbers: list[int] = []
        self.text = ""

    def is_enough(self, rule: Rule) -> bool:
        """Whether bit errors on the way do not explain it."""
        return self.count >= (rule.least if self.is_verified else max(rule.least, UNVERIFIED))

    def add(self, numbers: Iterable[int], count: int, text: str) -> None:
        """More of it; packets that come first in the capture are kept."""
        for number in numbers:
            if len(self.numbers) == EXAMPLES and number >= self.numbers[-1]:
                continue
            if not self.numbers or number < self.numbers[0]:
                self.text = text
            if number not in self.numbers:
                self.numbers = sorted((*self.numbers, number))[:EXAMPLES]
        self.count += count


Key = tuple[str, int, int]
"""`flow`, its number and 0; or `connection`, its number and the direction."""


class Ledger:
    """Collects what is found; its size is bounded by the number of rules."""

    def __init__(self, rules: Iterable[Rule], profile: str = ANY) -> None:
        self.profile = profile
        self._open: dict[str, Rule] = {
            rule.id: rule for rule in rules if rule.judged_by(profile) is not None
        }
        self._found: dict[str, dict[Key | None, Breach]] = {}

    def wants(self, rule: Rule) -> bool:
        """Whether a rule is to be judged at all."""
        return rule.id in self._open

    def add(self, rule: Rule, key: Key, number: int, text: str, *, verified: bool = True) -> None:
        """One packet that breaks a rule; whether its ICRC was checked."""
        self.add_many(rule, key, (number,), 1, text, verified=verified)

    def add_many(
        self,
        rule: Rule,
        key: Key,
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
        breach = places.setdefault(where, Breach())
        breach.add(numbers, count, text)
        breach.is_verified = breach.is_verified or verified

    def breaches(self) -> Iterable[tuple[Rule, Key | None, Breach]]:
        """What was found; no key for what was found at more places than are told apart."""
        for rule_id, places in self._found.items():
            rule = self._open[rule_id]
            for key, breach in places.items():
                if breach.is_enough(rule):
                    yield rule, key, breach


def worst_first(findings: Iterable[Finding]) -> list[Finding]:
    """In the order in which they matter: the gravest first, then the most frequent."""
    return sorted(
        findings,
        key=lambda each: (
            -each.severity,
            -each.count,
            each.rule.id,
            each.place.connection,
            each.place.direction,
        ),
    )
