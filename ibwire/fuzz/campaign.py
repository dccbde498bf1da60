"""A run of a fuzzer: case after case until the budget is spent, with what was found.

Cases run one after the other on the same two devices, each on a connection of its own,
so that what leaks from one to the next is noticed. Whatever is found is carried out again
on fresh devices, first alone, and made as short as it can be.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, Protocol

from ibwire.fuzz.binding import Binding
from ibwire.fuzz.case import Case, Connect, Connection, Packet, Step
from ibwire.fuzz.choices import CHOICES, Choice
from ibwire.fuzz.coverage import Coverage, state_of
from ibwire.fuzz.duel import Difference, Duel, Subject
from ibwire.fuzz.emulation import ADDRESS, PEER_ADDRESS, Emulation
from ibwire.fuzz.findings import Distance, Finding, bucket_of, distance, rule_of, signature
from ibwire.fuzz.generator import Generator, Menu
from ibwire.fuzz.minimise import minimise
from ibwire.rc.profile import PROFILES, Profile

HISTORY = 50
"""Cases on one pair of devices."""

MAXIMUM_BUCKETS = 1000
"""Different findings that are kept."""

Open = Callable[[Connection], Subject]
"""Makes the target for a connection."""

Maker = Callable[[int], "Stepper"]
"""Makes the generator of a case, by its number."""


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
    choices: dict[str, str] = field(default_factory=dict)
    """Allowed choices that the target has made: what about, by field of the profile."""
    coverage: Coverage = field(default_factory=Coverage)
    unstable: Counter[str] = field(default_factory=Counter)
    """Differences that did not come again, by bucket."""


class Campaign:
    """Cases against one target.

    profile: of the reference. make: the generator of each case. explains: whether known
    deviations are looked for.
    """

    def __init__(
        self,
        open_target: Open,
        make: Maker,
        *,
        profile: str = "spec",
        first: int = 0,
        explains: bool = True,
        minimises: bool = True,
    ) -> None:
        self.report = Report()
        self._open = open_target
        self._make = make
        self._name = profile
        self._profile = PROFILES[profile]
        self._number = first
        self._explains = explains
        self._minimises = minimises
        self._binding = Binding(PEER_ADDRESS, ADDRESS)
        self._buckets: dict[str, Finding] = {}
        self._duel: Duel | None = None
        self._history: list[Case] = []
        self._taken: set[str] = set()
        """Choices that were taken over, by field of the profile."""

    def run(self, packets: int) -> Iterator[Finding]:
        """Go on until that many packets have been sent in all, or for ever; what is new."""
        report = self.report
        while report.packets < packets:
            found = self._one_case(packets)
            if found is not None:
                yield found

    @property
    def next_case(self) -> int:
        """Number of the case that comes next."""
        return self._number

    def _one_case(self, budget: int) -> Finding | None:
        number = self._number
        self._number += 1
        report = self.report
        report.cases += 1
        generator = self._make(number)
        duel = self._connected(generator.connection)
        reference, coverage = duel.reference, report.coverage
        steps: list[Step] = []
        while (step := generator.next(reference)) is not None:
            steps.append(step)
            state = state_of(reference)
            difference = duel.step(step)
            if isinstance(step, Packet):
                report.packets += 1
                coverage.count(state, step.opcode, duel.expected)
            if difference is not None:
                case = Case(generator.connection, tuple(steps), self._name, f"case {number}")
                return self._examine(case, difference, state)
            if report.packets >= budget:
                break
        self._history.append(Case(generator.connection, tuple(steps)))
        return None

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
        """A difference: does it come again, is it allowed, is it new?"""
        report = self.report
        bucket = bucket_of(difference, case.steps[-1], state)
        history, self._history = self._history, []
        self._duel = None
        if self.replay(case) is None:
            case = _joined(history, case)
            if self.replay(case) is None:
                report.unstable[bucket] += 1
                return None
        names: list[str] = []
        if self._explains:
            names = self._explain(case)
        again = self.replay(case)
        if again is None and not names:
            return None  # all of it was allowed
        bucket = "; ".join(names) or bucket
        known = self._buckets.get(bucket)
        if known is not None:
            known.seen += 1
            return None
        if len(self._buckets) >= MAXIMUM_BUCKETS:
            return None
        return self._new(bucket, case, names)

    def _new(self, bucket: str, case: Case, names: Sequence[str]) -> Finding:
        """Make a finding: as short as it can be, held against what the standard says."""
        strict = self._without(names)
        difference = self.replay(case, strict)
        assert difference is not None
        shortest = case
        if self._minimises:
            wanted = signature(difference)
            shortest = minimise(
                case,
                lambda each: (
                    (found := self.replay(each, strict)) is not None and signature(found) == wanted
                ),
            )
            difference = self.replay(shortest, strict) or difference
        shortest = shortest.with_steps(shortest.steps[: difference.step + 1])
        rule = rule_of(difference, shortest.steps[-1])
        if names:
            rule = "; ".join(choice.rule for choice in CHOICES if choice.about in names)
        finding = Finding(
            *(len(self.report.findings) + 1, bucket, shortest, case, difference),
            *(self.report.packets, rule, "; ".join(names)),
        )
        self._buckets[bucket] = finding
        self.report.findings.append(finding)
        return finding

    def _without(self, names: Sequence[str]) -> Profile:
        """The reference of now without these deviations."""
        usual = PROFILES[self._name]
        changes: dict[str, Any] = {
            choice.name: getattr(usual, choice.name) for choice in CHOICES if choice.about in names
        }
        return replace(self._profile, **changes)

    def _explain(self, case: Case) -> list[str]:
        """Take choices over while they bring the reference nearer to the target.

        Returns what the new ones that are not allowed are about.
        """
        best = distance(self.replay(case))
        names: list[str] = []
        while best is not None:
            found = self._nearer(case, best)
            if found is None:
                break
            choice, self._profile, best = found
            self._taken.add(choice.name)
            if choice.allowed:
                self.report.choices[choice.about] = choice.rule
            else:
                names.append(choice.about)
        return names

    def _nearer(self, case: Case, best: Distance) -> tuple[Choice, Profile, Distance | None] | None:
        """The choice that brings the reference nearest; each is taken once in a run."""
        nearest: tuple[Choice, Profile, Distance | None] | None = None
        for choice in CHOICES:
            if choice.name in self._taken:
                continue
            for variant in choice.variants(self._profile):
                reached = distance(self.replay(case, variant))
                if reached is None:
                    return choice, variant, None
                if reached < best:
                    nearest, best = (choice, variant, reached), reached
        return nearest

    def replay(self, case: Case, profile: Profile | None = None) -> Difference | None:
        """Carry a case out on fresh devices: how the target differs, if it does."""
        duel = self._fresh(case.connection, profile or self._profile)
        for step in case.steps:
            difference = duel.step(step)
            if difference is not None:
                return difference
        return None


def _joined(history: list[Case], case: Case) -> Case:
    """One case of all that happened on a pair of devices."""
    first, *others = [*history, case]
    steps = list(first.steps)
    for other in others:
        steps += [Connect(other.connection), *other.steps]
    return replace(case, connection=first.connection, steps=tuple(steps))


def generators(seed: int, role: str, ops: Collection[str] = ()) -> Maker:
    """The stateful generator, for each number of a case its own."""
    menu = Menu(ops)
    return lambda number: Generator(Random(f"{seed}:{role}:{number}"), role, menu)
