"""Eleven faults planted at once: what the fuzzer calls what it finds, and which fault causes it.

PYTHONPATH=tests python tests/bench/fuzz_names.py [--sets N] [--packets N] [--plant NAME]...
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from random import Random

import click

from ibwire.fuzz.campaign import Campaign
from ibwire.fuzz.case import (
    Case,
    CaseError,
    Role,
    RunsAway,
    connection_text,
    from_json,
    step_text,
    to_json,
)
from ibwire.fuzz.judge.findings import Finding, signature
from ibwire.fuzz.judge.profiles import profile_of
from ibwire.fuzz.targets.emulated_device import Emulation
from ibwire.fuzz.targets.emulated_manager import managed_emulation
from ibwire.fuzz.targets.emulator import EmulatorTestbed, Open
from ibwire.fuzz.vocabulary.vocabularies import vocabulary_for
from ibwire.fuzz.watchdog import watchdog
from mutants.engine import StaleMutant, copied
from mutants.score import names_rule
from mutants.table import FUZZED, Mutant

FAULTS = 11
"""In one device."""

QUEUE_PAIR_ROLES = ("responder", "requester")


@dataclass(frozen=True, slots=True)
class Named:
    """A finding, and the planted faults that cause it alone."""

    bucket: str
    rule: str
    causes: tuple[str, ...]
    is_rule_right: bool
    """Whether the rule is that of a cause."""
    is_false: bool
    """Whether a device with none of the faults differs in the same way."""
    case: tuple[str, ...]


def choose(number: int) -> list[str]:
    """Eleven faults of queue pairs that fit into one device, by the number of the set."""
    rng = Random(number)
    names = [name for name, each in FUZZED.items() if each.role in QUEUE_PAIR_ROLES]
    rng.shuffle(names)
    chosen: list[str] = []
    for name in names:
        try:
            _planted([*chosen, name])
        except StaleMutant:
            continue
        chosen.append(name)
        if len(chosen) == FAULTS:
            break
    return chosen


def _planted(names: Sequence[str], *, role: str = "both") -> Open:
    """A device with these faults; raises `StaleMutant` where two change the same code."""
    patches = tuple(patch for name in names for patch in FUZZED[name].patches)
    modules = copied(Mutant(" + ".join(names) or "none", patches))
    right = _right(role)
    device: Open = getattr(modules[right.__module__], right.__name__)
    return device


def _right(role: str) -> Open:
    return managed_emulation if role == "cm" else Emulation


def findings(names: Sequence[str], packets: int, seed: int, role: Role) -> Iterator[Named]:
    """What a run finds in a device with these faults."""
    vocabulary = vocabulary_for(role)
    device = _planted(names, role=role)
    testbed = EmulatorTestbed(device, vocabulary)
    campaign = Campaign(testbed, vocabulary.generators(seed, role, ()))
    alone = {name: _planted([name], role=role) for name in names}
    for finding in campaign.run(packets):
        yield _named(finding, alone, device, role)


def _named(finding: Finding, alone: dict[str, Open], device: Open, role: Role) -> Named:
    case = from_json(to_json(finding.case))
    shown = _difference(case, device, role)
    causes = [name for name, one in alone.items() if _difference(case, one, role) == shown]
    steps = [step_text(step) for step in case.steps]
    about = connection_text(case.connection)
    # What the specification allows is right: a finding must differ from that, too.
    plain = _difference(case, device, role, is_plain=True)
    return Named(
        bucket=finding.bucket,
        rule=finding.rule,
        causes=tuple(causes),
        is_rule_right=any(names_rule(finding.rule, FUZZED[name].fuzz.rule) for name in causes),
        is_false=shown is None or plain is None,
        case=(*([about] if about else []), *steps),
    )


def _difference(case: Case, device: Open, role: Role, *, is_plain: bool = False) -> object:
    profile = profile_of(case.profile, {} if is_plain else case.choices)
    testbed = EmulatorTestbed(device, vocabulary_for(role))
    try:
        found = testbed.replay(case, profile)
    except (CaseError, RunsAway):
        return None
    return None if found is None else (found.step, signature(found))


@click.command()
@click.option("--sets", type=click.IntRange(1), default=3, show_default=True)
@click.option("--first", type=click.IntRange(0), default=1, show_default=True, help="First set.")
@click.option("--packets", type=click.IntRange(1), default=20_000, show_default=True)
@click.option("--seed", type=int, default=1, show_default=True)
@click.option("--plant", multiple=True, metavar="NAME", help="These instead of a random set.")
@click.option("--json", "as_json", is_flag=True)
@watchdog()
def command(
    sets: int, first: int, packets: int, seed: int, plant: tuple[str, ...], as_json: bool
) -> None:
    """List the findings in devices with eleven faults each, and count what is wrong in them."""
    for number in range(first, first + sets):
        names = list(plant) or choose(number)
        role = Role.CM if FUZZED[names[0]].role == "cm" else Role.BOTH
        start = time.process_time()
        found = []
        click.echo(f"set {number}: {', '.join(names)}")
        for named in findings(names, packets, seed, role):
            found.append(named)
            if as_json:
                click.echo(json.dumps(asdict(named)))
                continue
            mark = "FALSE " * named.is_false + ("" if named.is_rule_right else "rule? ")
            click.echo(f"  {mark}{named.bucket}\n      {named.rule}")
            click.echo(f"      case: {' | '.join(named.case)}")
            click.echo(f"      causes: {', '.join(named.causes) or 'none alone'}")
        missed = set(names) - {name for each in found for name in each.causes}
        click.echo(
            f"set {number}: {len(found)} findings, {sum(each.is_false for each in found)} false, "
            f"{sum(not each.is_rule_right for each in found)} with another rule than the fault, "
            f"not found: {', '.join(sorted(missed)) or 'none'}, "
            f"{time.process_time() - start:.0f} s"
        )


if __name__ == "__main__":
    command()
