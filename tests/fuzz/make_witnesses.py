"""Find a witness for each choice: the shortest case that shows it and no other choice.

PYTHONPATH=tests python tests/fuzz/make_witnesses.py [FIELD]... prints them as they stand in
`ibwire/fuzz/judge/witnesses.py`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from functools import partial
from typing import Any

from fuzz.test_choices import ALLOWED_IN_RXE, IN_RXE, OTHER_CONNECTIONS
from ibwire.fuzz.campaign import Campaign
from ibwire.fuzz.case import (
    Case,
    CaseError,
    Command,
    Connection,
    Mad,
    Packet,
    Post,
    Receive,
    Role,
    RunsAway,
    Step,
    Wait,
)
from ibwire.fuzz.judge.choices import CHOICES
from ibwire.fuzz.minimise import minimise
from ibwire.fuzz.targets.emulated_device import Emulation
from ibwire.fuzz.targets.emulated_manager import managed_emulation
from ibwire.fuzz.targets.emulator import EmulatorTestbed
from ibwire.fuzz.vocabulary.vocabularies import vocabulary_for
from ibwire.rc.profile import SPEC, Profile
from ibwire.rc.work import WROpcode
from ibwire_layers.opcodes import OpCode

PACKETS = 15_000
"""Sent in search of a case."""

ENOUGH = 1
"""Cases that are minimised; the shortest one is taken."""


def variants() -> Iterator[tuple[str, Profile]]:
    """Every single difference from the specification's profile."""
    for choice in CHOICES:
        for profile in choice.variants(SPEC):
            yield choice.name, profile


def testbed(profile: Profile, role: Role) -> EmulatorTestbed:
    def open_device(connection: Connection) -> Any:
        if role is Role.CM:
            return managed_emulation(connection, profile)
        return Emulation(connection, profile)

    return EmulatorTestbed(open_device, vocabulary_for(role))


def shows_only(case: Case, name: str, profile: Profile, bed: EmulatorTestbed) -> bool:
    """Whether a device with this profile differs, and no other choice explains it."""
    try:
        if bed.replay(case, SPEC) is None:
            return False
        for other, variant in VARIANTS:
            if other != name and bed.replay(case, variant) is None:
                return False
    except (CaseError, RunsAway):
        return False
    return True


def candidates(profile: Profile, role: Role, seed: int) -> Iterator[Case]:
    """Cases of a run in which a device with this profile differs."""
    make = vocabulary_for(role).generators(seed, role, ())
    campaign = Campaign(testbed(profile, role), make, explains=False, minimises=False)
    while campaign.report.packets < PACKETS:
        case, difference, _ = campaign._carried_out(1 << 60)
        campaign.state.next_case += 1
        if difference is not None:
            campaign._testbed.reset()
            yield case


def witness(name: str, profile: Profile) -> Case | None:
    """The shortest case found; those that tests have by hand come first."""
    if name in BY_HAND:
        case = Case(OTHER_CONNECTIONS.get(name, Connection()), BY_HAND[name])
        if shows_only(case, name, profile, testbed(profile, Role.BOTH)):
            return case
    best: Case | None = None
    roles = (Role.CM,) if name in MANAGED else (Role.RESPONDER, Role.REQUESTER)
    for role in roles:
        bed = testbed(profile, role)

        def differs(case: Case, bed: EmulatorTestbed = bed) -> bool:
            try:
                return bed.replay(case, SPEC) is not None
            except (CaseError, RunsAway):
                return False

        found = 0
        for tried, case in enumerate(candidates(profile, role, 1)):
            if tried > 30 or found >= ENOUGH:
                break
            short = minimise(case, differs, 400)
            if not shows_only(short, name, profile, bed):
                if tried % 5 or not shows_only(case, name, profile, bed):
                    continue
                short = minimise(
                    case, partial(shows_only, name=name, profile=profile, bed=bed), 100
                )
            found += 1
            plain = replace(short, connection=replace(short.connection, timeout=0))
            if shows_only(plain, name, profile, bed):
                short = plain
            if best is None or size(short) < size(best):
                best = short
        if best is not None:
            break
    return best


def size(case: Case) -> int:
    return len(case.steps) + sum(
        len(each.fields) for each in case.steps if isinstance(each, Packet)
    )


BY_HAND = {**IN_RXE, **ALLOWED_IN_RXE}
MANAGED = ("asks_on_qp1", "reports_first_request")
VARIANTS = list(variants())


def text_of(step: Step) -> str:
    words: list[str] = []
    if isinstance(step, Packet):
        usual = Mad(step.opcode) if isinstance(step, Mad) else Packet(step.opcode)
        opcode = (
            f"int(OpCode.{OpCode(step.opcode).name})"
            if step.opcode in list(OpCode)
            else hex(step.opcode)
        )
        words = [] if isinstance(step, Mad) else [opcode]
        for entry in fields(step):
            value = getattr(step, entry.name)
            if entry.name not in ("opcode", "why") and value != getattr(usual, entry.name):
                words.append(f"{entry.name}={value!r}")
        return f"{type(step).__name__}({', '.join(words)})"
    if isinstance(step, Post):
        words = [f"int(WROpcode.{WROpcode(step.opcode).name})", str(step.length)]
        if step.remote:
            words.append(f"remote={step.remote}")
        if not step.signaled:
            words.append("signaled=False")
        return f"Post({', '.join(words)})"
    if isinstance(step, Receive):
        return f"Receive({step.count})"
    if isinstance(step, Wait):
        return f"Wait({step.time})"
    assert isinstance(step, Command)
    return repr(step)


def connection_text(connection: Connection) -> str:
    words = [
        f"{entry.name}={getattr(connection, entry.name)}"
        for entry in fields(Connection)
        if getattr(connection, entry.name) != entry.default
    ]
    return f"Connection({', '.join(words)})"


def main(names: Sequence[str]) -> None:
    for name, profile in VARIANTS:
        if names and name not in names:
            continue
        value = getattr(profile, name)
        case = witness(name, profile)
        if case is None:
            print(f"    # {name}={value!r}: none", flush=True)
            continue
        steps = "".join(f"{text_of(step)}, " for step in case.steps)
        print(
            f'    Witness("{name}", {connection_text(case.connection)}, ({steps})),  # {value!r}',
            flush=True,
        )


if __name__ == "__main__":
    main(sys.argv[1:])
