"""Score of a generator: which mutants it finds, how soon, and its false findings.

A trial is one generator with one seed against one fault: packets until its first finding,
the shortest case for that, and whether the case, saved and read again, shows the
difference on another planted device and none on a right one. Trials know nothing of each
other, so a score is the same however many processes share it, and in whatever order.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from random import Random
from statistics import median_high
from typing import TypeVar

from ibwire.fuzz.campaign import Campaign
from ibwire.fuzz.case import Role, from_json, to_json
from ibwire.fuzz.judge.comparison import FATAL
from ibwire.fuzz.judge.profiles import profile_of
from ibwire.fuzz.stepper import Maker
from ibwire.fuzz.targets.emulated_device import Emulation
from ibwire.fuzz.targets.emulated_manager import managed_emulation
from ibwire.fuzz.targets.emulator import EmulatorTestbed, Open
from ibwire.fuzz.vocabulary.vocabularies import vocabulary_for
from ibwire.fuzz.watchdog import watchdog
from ibwire.rc.profile import PROFILES
from mutants.baseline import Baseline
from mutants.engine import copied
from mutants.table import FUZZED, ROLES, TABLE, Mutant, read_mutants

CAP = 20_000
"""Packets after which a trial gives up."""

QUEUE_PAIR = ROLES[:2]
"""The roles of a queue pair."""

SHORT = 5
"""Packets that a minimised case should have at most."""


def _stateful(seed: int, role: str) -> Maker:
    return vocabulary_for(Role(role)).generators(seed, Role(role), ())


def _baseline(seed: int, role: str) -> Maker:
    return lambda number: Baseline(Random(f"{seed}:{role}:{number}"), role, has_paths=False)


def _paths(seed: int, role: str) -> Maker:
    return lambda number: Baseline(Random(f"{seed}:{role}:{number}"), role)


GENERATORS: Mapping[str, Callable[[int, str], Maker]] = {
    "stateful": _stateful,
    "baseline": _baseline,
    "paths": _paths,
}
"""Makers of the cases for a seed and a role, by name."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One generator with one seed against one fault."""

    packets: int | None
    """Until the first finding; `None` when there was none."""
    kind: str = ""
    """Of the difference, one of `ibwire.fuzz.judge.comparison.KINDS`."""
    bucket: str = ""
    minimised: int = 0
    """Packets of the shortest case."""
    replays: bool = False
    """Whether the saved case shows it again, and only on the device with the fault."""
    rule: str = ""
    """The rule that the finding names."""
    role: str = ""
    """The side of the device that was attacked."""


@dataclass(frozen=True, slots=True)
class Score:
    """One generator against one fault."""

    fault: str
    role: str
    generator: str
    trials: tuple[Trial, ...]
    """One a seed."""
    rule: str = ""
    """The rule that the fault breaks."""

    @property
    def median(self) -> float:
        """Packets until the first finding; infinite when most seeds did not find it."""
        packets = [math.inf if each.packets is None else each.packets for each in self.trials]
        return median_high(packets)

    @property
    def is_found(self) -> bool:
        """Whether most seeds found it."""
        return self.median < math.inf

    @property
    def findings(self) -> list[Trial]:
        """The trials that found something."""
        return [each for each in self.trials if each.packets is not None]


@dataclass(frozen=True, slots=True)
class Total:
    """One generator against all faults."""

    faults: int
    found: int
    by_crash: int
    """Faults that a monitor of crashes and hangs alone would have found as soon."""
    findings: int
    short: int
    """Findings whose minimised case has `SHORT` packets or fewer."""
    replayed: int
    ruled: int = 0
    """Findings that name the rule of the fault."""
    by_seed: tuple[int, ...] = ()
    """Faults that each seed has found."""


@dataclass(frozen=True, slots=True)
class Alarms:
    """What was found on a device that has no planted fault."""

    profile: str
    reference: str
    """Profile of the reference."""
    role: str
    packets: int
    findings: tuple[str, ...]
    choices: tuple[str, ...]
    """Allowed choices of the device that differ from the reference."""


@dataclass(frozen=True, slots=True)
class _Job:
    table: Path
    fault: str
    generator: str
    seeds: tuple[int, ...]
    cap: int


def score(
    names: Sequence[str] = tuple(FUZZED),
    generator_names: Sequence[str] = tuple(GENERATORS),
    *,
    table: Path = TABLE,
    seeds: int | Sequence[int] = 5,
    cap: int = CAP,
    jobs: int = 1,
) -> Iterator[Score]:
    """Each generator against each fault, in this order.

    names: of mutants of the table. seeds: the seeds, or how many from 1 on. Raises
    `StaleMutant` when a mutant does not fit the code.
    """
    numbers = tuple(range(1, seeds + 1) if isinstance(seeds, int) else seeds)
    wanted = [_Job(table, name, each, numbers, cap) for name in names for each in generator_names]
    return _spread(_carry_out, wanted, jobs)


def total(scores: Sequence[Score]) -> Total:
    """What the scores of one generator come to."""
    findings = [trial for each in scores for trial in each.findings]
    found = [each for each in scores if each.is_found]
    return Total(
        faults=len(scores),
        found=len(found),
        by_crash=sum(_is_fatal(each) for each in found),
        findings=len(findings),
        short=sum(each.minimised <= SHORT for each in findings),
        replayed=sum(each.replays for each in findings),
        ruled=sum(names_rule(trial.rule, each.rule) for each in scores for trial in each.findings),
        by_seed=tuple(
            sum(trial.packets is not None for trial in trials)
            for trials in zip(*(each.trials for each in scores), strict=True)
        ),
    )


def sooner(scores: Sequence[Score], generator: str, other: str) -> list[tuple[Score, Score]]:
    """The faults that another generator finds sooner, with its score and the other one's."""
    own = {each.fault: each for each in scores if each.generator == generator}
    others = {each.fault: each for each in scores if each.generator == other}
    return [(own[name], each) for name, each in others.items() if each.median < own[name].median]


def names_rule(said: str, rule: str) -> bool:
    """Whether a finding says an entry of the reference that the rule of the fault says."""
    return not set(_ENTRY.findall(said)).isdisjoint(_ENTRY.findall(rule))


_ENTRY = re.compile(r"docs/reference/[a-z-]+\.md#[a-z0-9-]+")


def _is_fatal(found: Score) -> bool:
    fatal = sum(trial.kind in FATAL for trial in found.findings)
    return 2 * fatal > len(found.trials)


def false_alarms(
    packets: int,
    profiles: Sequence[str] = tuple(PROFILES),
    *,
    reference: str | None = None,
    seed: int = 1,
    jobs: int = 1,
) -> Iterator[Alarms]:
    """The stateful generator on profiles without a fault, that many packets on each.

    reference: the profile that all are held against instead of their own.
    """
    share = -(-packets // len(ROLES))
    wanted = [
        _Clean(profile, reference or profile, role, share, seed)
        for profile in profiles
        for role in ROLES
        if profile != reference
    ]
    return _spread(_run_clean, wanted, jobs)


@dataclass(frozen=True, slots=True)
class _Clean:
    profile: str
    reference: str
    role: str
    packets: int
    seed: int


def _run_clean(job: _Clean) -> Alarms:
    campaign = Campaign(
        _testbed(partial(_device(job.role), profile=job.profile), job.role),
        _stateful(job.seed, job.role),
        profile=job.reference,
        explains=job.profile != job.reference,
        minimises=False,
    )
    buckets = tuple(finding.bucket for finding in campaign.run(job.packets))
    report = campaign.report
    unsure = (
        *(f"unstable: {bucket}" for bucket in report.unstable),
        *(f"unexamined: {bucket}" for bucket in report.unexamined),
    )
    return Alarms(
        job.profile,
        job.reference,
        job.role,
        report.packets,
        findings=(*buckets, *unsure),
        choices=tuple(report.choices),
    )


@watchdog()
def _carry_out(job: _Job) -> Score:
    fault = read_mutants(job.table)[job.fault]
    modules = copied(fault)
    make = GENERATORS[job.generator]
    roles = _roles(fault)
    trials = []
    for seed in job.seeds:
        found, sent = Trial(None), 0
        for role in roles:
            device = _device(role)
            target: Open = getattr(modules[device.__module__], device.__name__)
            found = trial(target, role, make(seed, role), job.cap)
            if found.packets is not None:
                found = replace(found, packets=sent + found.packets)
                break
            sent += job.cap
        trials.append(found)
    rule = fault.fuzz.rule if fault.fuzz is not None else ""
    return Score(fault.name, roles[0], job.generator, tuple(trials), rule)


def _roles(fault: Mutant) -> tuple[str, ...]:
    """The sides that are attacked until one shows the fault: its own first.

    The two halves of a queue pair share code, so that a fault may show in either.
    """
    own = fault.fuzz.role if fault.fuzz is not None else ROLES[0]
    return (own,) if own == "cm" else (own, *(each for each in QUEUE_PAIR if each != own))


def trial(target: Open, role: str, make: Maker, cap: int) -> Trial:
    """A generator against a device, until it has found something or sent so many packets."""
    campaign = Campaign(_testbed(target, role), make)
    finding = next(campaign.run(cap), None)
    if finding is None:
        return Trial(None)
    saved = from_json(to_json(finding.case))
    profile = profile_of(saved.profile, saved.choices)
    right = partial(_device(role), profile=profile)
    shown, invented = (
        _testbed(device, role).replay(saved, profile) is not None for device in (target, right)
    )
    return Trial(
        packets=finding.packet,
        kind=finding.difference.kind,
        bucket=finding.bucket,
        minimised=finding.case.packets,
        replays=shown and not invented,
        rule=finding.rule,
        role=role,
    )


def _testbed(device: Open, role: str) -> EmulatorTestbed:
    return EmulatorTestbed(device, vocabulary_for(Role(role)))


def _device(role: str) -> Callable[..., Emulation]:
    """What is attacked in a role, as it is when nothing is wrong with it."""
    return managed_emulation if role == "cm" else Emulation


Given = TypeVar("Given")
Made = TypeVar("Made")


def _spread(
    carry_out: Callable[[Given], Made], given: Sequence[Given], jobs: int
) -> Iterator[Made]:
    """Results in order, worked out in this process or in several."""
    if jobs == 1:
        yield from map(carry_out, given)
        return
    # Not forked: a planted copy of the emulator belongs to the process that made it.
    with get_context("spawn").Pool(jobs) as pool:
        yield from pool.imap(carry_out, given)
