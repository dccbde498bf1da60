"""Short cases against a connection manager: what they send, and how soon they find."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import inf

import pytest

from each_case import each_case
from examples import usual
from ibwire.fuzz.campaign import Campaign
from ibwire.fuzz.case import Case, Command, Connection, Mad, Role, Step, from_json, to_json
from ibwire.fuzz.report import HISTORY
from ibwire.fuzz.run_file import Settings
from ibwire.fuzz.stepper import Maker
from ibwire.fuzz.targets.emulated_manager import managed_emulation
from ibwire.fuzz.targets.emulator import EmulatorTestbed
from ibwire.fuzz.vocabulary.cm.encoding import FORMS, encode_message, usual_value
from ibwire.fuzz.vocabulary.cm.generator import ManagerGenerator
from ibwire.fuzz.vocabulary.cm.message_values import first_values
from ibwire.fuzz.vocabulary.cm.one_field import PRIVATE, OneMessage, fields_of
from ibwire.fuzz.vocabulary.value_cases import OneOfEach
from ibwire.fuzz.vocabulary.vocabularies import (
    CONNECTION_MANAGER,
    MANAGER_OPENING,
    manager_generators,
)
from mutants.engine import copied
from mutants.table import EDGES, FUZZED, Mutant, Patch, read_mutants

PLANTED = FUZZED | read_mutants(EDGES)


def steps_of(make: Maker, number: int) -> list[Step]:
    """What a case does, whatever the device answers."""
    case, reference = make(number), managed_emulation(Connection())
    steps: list[Step] = []
    while (step := case.next(reference)) is not None:
        steps.append(step)
    return steps


def messages(seed: int, count: int = MANAGER_OPENING) -> list[Mad]:
    make = manager_generators(seed)
    steps = [step for number in range(count) for step in steps_of(make, number)]
    return [step for step in steps if isinstance(step, Mad)]


def test_the_first_cases_are_one_message_and_commands() -> None:
    make = manager_generators(1)

    for number in range(MANAGER_OPENING):
        steps = steps_of(make, number)
        assert sum(isinstance(step, Mad) for step in steps) == 1
        assert all(isinstance(step, Mad | Command) for step in steps)
        case = Case(Connection(), tuple(steps))
        assert from_json(to_json(case)) == case

    later = [make(MANAGER_OPENING + number) for number in range(4)]
    assert [isinstance(each, OneOfEach) for each in later] == [True, False, False, True]
    assert isinstance(later[1], ManagerGenerator)
    assert MANAGER_OPENING % HISTORY == 0


@pytest.mark.parametrize("seed", [1, 2])
def test_every_field_of_a_request_is_changed(seed: int) -> None:
    changed = Counter(name for sent in messages(seed) for name in sent.fields)

    for message in ("REQ", "SIDR_REQ"):
        own = {name for name in fields_of(message) if name.startswith(f"{message.lower()}.")}
        assert own <= set(changed)
    outer = [name for name in changed if name.startswith(("bth.", "deth.", "mad."))]
    assert 0.15 < sum(changed[name] for name in outer) / changed.total() < 0.4


def test_one_field_is_changed_or_the_private_data() -> None:
    for sent in messages(3):
        assert len(sent.fields) == (0 if sent.length else 1)


@each_case(
    "message, name",
    [(message, name) for message in FORMS for name in fields_of(message) if name != PRIVATE],
)
def test_the_usual_value_of_a_field_is_what_a_message_has(message: str, name: str) -> None:
    given = Mad(message=message, fields={name: usual_value(message, name)})
    reference = managed_emulation(Connection())
    reference.prepare(given)

    written = encode_message(given, 0, reference.symbols)
    assert written == encode_message(Mad(message=message), 0, reference.symbols)


def test_without_the_fields_or_on_a_link_there_is_no_opening() -> None:
    for make in (
        manager_generators(1, Role.CM, ["order"]),
        manager_generators(1, combines=False),
    ):
        assert isinstance(make(0), ManagerGenerator)
    assert isinstance(manager_generators(1, Role.CM, ["field"])(0), OneMessage)


def first(fault: str, seed: int) -> float:
    """Packets until a fault is found, without looking for choices of the device first."""
    device = copied(PLANTED[fault])[managed_emulation.__module__].managed_emulation
    campaign = Campaign(
        EmulatorTestbed(device, CONNECTION_MANAGER),
        manager_generators(seed),
        explains=False,
        minimises=False,
    )
    found = next(campaign.run(1000), None)
    return inf if found is None else found.packet


@pytest.mark.parametrize(
    ("fault", "most"),
    [("sidr-for-an-unknown-service-accepted", 40), ("req-with-a-reserved-mtu", 200)],
)
def test_a_field_that_is_not_looked_at_is_found_early(fault: str, most: int) -> None:
    seeds: Sequence[int] = range(1, usual(5, quick=3) + 1)

    assert sorted(first(fault, seed) for seed in seeds)[len(seeds) // 2] <= most


def test_a_run_has_the_opening_on_an_emulated_device_and_not_on_a_link() -> None:
    emulated, live = (Settings(each, role=Role.CM, seed=1).maker() for each in ("emu", "live:a"))

    assert isinstance(emulated(0), OneMessage)
    assert isinstance(emulated(MANAGER_OPENING), OneOfEach)
    assert isinstance(live(0), ManagerGenerator)


SELDOM = {
    "a DREP in TIMEWAIT has the transaction ID of the REQ": Patch(
        "cm/manager.py",
        "elif send is Send.DREP and received is not None:",
        "elif send is Send.DREP and received and connection.state is not State.TIMEWAIT:",
    ),
    "a redirection is ignored": Patch(
        "cm/manager.py",
        "if connection is None or connection.state is not State.SIDR_REQ_SENT:",
        "if connection is None or connection.state is not State.SIDR_REQ_SENT"
        " or answer.status == 4:",
    ),
    "a REJ with additional information has no private data": Patch(
        "cm/manager.py",
        'data = message.private_data if message is not None else b""',
        'data = message.private_data if message is not None and not ari else b""',
    ),
}
"""Faults that messages show which devices seldom get."""


@pytest.mark.parametrize("name", SELDOM)
def test_what_devices_seldom_get_comes_behind_the_opening(name: str) -> None:
    device = copied(Mutant("seldom", (SELDOM[name],)))[managed_emulation.__module__]
    testbed = EmulatorTestbed(device.managed_emulation, CONNECTION_MANAGER)
    make = Settings("emu", role=Role.CM, seed=1).maker()
    campaign = Campaign(testbed, make, explains=False, minimises=False)

    found = next(campaign.run(20 * len(first_values()) + 2 * MANAGER_OPENING), None)

    assert found is not None
