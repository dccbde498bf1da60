"""Cases that go through every value: what is in them, that a run meets all, what they find."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

import pytest

from examples import sampled
from ibwire.fuzz.campaign import Campaign
from ibwire.fuzz.case import Case, Connection, Mad, Packet, Post, Role, Step, to_json
from ibwire.fuzz.stepper import Stepper
from ibwire.fuzz.targets.emulated_device import Emulation
from ibwire.fuzz.targets.emulated_manager import managed_emulation
from ibwire.fuzz.targets.emulator import EmulatorTestbed
from ibwire.fuzz.vocabulary.cm.message_values import message_values
from ibwire.fuzz.vocabulary.queue_pair.request_values import request_values
from ibwire.fuzz.vocabulary.queue_pair.response_values import response_values
from ibwire.fuzz.vocabulary.value_cases import OneOfEach, Shuffled, ValueCase
from ibwire.fuzz.vocabulary.vocabularies import OPENING, vocabulary_for
from ibwire.rc.attributes import MTU_CODES
from ibwire.rc.profile import PROFILES
from ibwire_layers.opcodes import OpCode
from mutants.engine import copied
from mutants.score import CAP
from mutants.table import VALUES, Mutant, Patch, read_mutants

MAKERS = {
    Role.RESPONDER: request_values,
    Role.REQUESTER: response_values,
    Role.CM: message_values,
}
PLANTED = read_mutants(VALUES)


def steps_of(case: ValueCase) -> Sequence[Step]:
    """Its steps as a right device is when it begins."""
    return case.make(Emulation(case.connection))


def packets(role: Role) -> Iterator[tuple[Connection, Packet]]:
    for case in MAKERS[role]():
        for step in steps_of(case):
            if isinstance(step, Packet):
                yield case.connection, step


def bed_of(role: Role, profile: str = "spec") -> EmulatorTestbed:
    device = managed_emulation if role is Role.CM else Emulation
    return EmulatorTestbed(partial(device, profile=PROFILES[profile]), vocabulary_for(role))


# What is in them.


def test_every_rnr_timer_is_sent_and_received() -> None:
    syndromes = {step.fields.get("aeth.syndrome") for _, step in packets(Role.REQUESTER)}
    timers = {given.min_rnr_timer for given, _ in packets(Role.RESPONDER) if not given.receives}

    assert timers == set(range(32))
    assert {0x20 | code for code in range(32)} <= syndromes


def test_every_syndrome_answers_a_request() -> None:
    given = [
        step.fields.get("aeth.syndrome")
        for _, step in packets(Role.REQUESTER)
        if step.opcode == OpCode.RC_ACKNOWLEDGE
    ]

    assert set(range(256)) <= set(given)


@pytest.mark.parametrize(
    "comparison",
    [
        "limit > self.lsn",
        "0 < (limit - self.lsn) & MASK < HALF >> 1",
        "0 < (limit - self.lsn) & MASK < HALF - 1",
        "0 < (limit - self.lsn) & MASK <= HALF",
        "0 < (limit - self.lsn) & MASK < HALF and limit > self.lsn",
        "limit != self.lsn",
    ],
)
def test_a_limit_of_credits_compared_otherwise_shows(comparison: str) -> None:
    """Before and behind the limit so far, across the wrap of MSNs and half way round."""
    mutant = PLANTED["credit-limit-compared-as-number"]
    (patch,) = mutant.patches
    new = f"        if {comparison}:\n"

    assert shows(replace(mutant, patches=(replace(patch, new=new),)), Role.REQUESTER)


@pytest.mark.parametrize("role", [Role.RESPONDER, Role.REQUESTER])
def test_every_opcode_but_requests_to_a_requester_is_received(role: Role) -> None:
    opcodes = {step.opcode for given, step in packets(role) if given.service == "RC"}

    assert set(range(0x20, 0x100)) <= opcodes
    assert role is Role.REQUESTER or opcodes == set(range(0x100))


def test_every_attribute_with_few_values_has_all_of_them() -> None:
    asked = [case.connection for case in response_values()]
    answered = [case.connection for case in request_values()]

    assert {each.timeout for each in asked} == set(range(32))
    assert {each.retry_cnt for each in asked} == set(range(8))
    assert {each.rnr_retry for each in asked} == set(range(8))
    assert {each.max_rd_atomic for each in asked} == set(range(1, 17))
    assert {each.max_dest_rd_atomic for each in answered} == set(range(17))
    for connections in (asked, answered):
        assert {each.mtu for each in connections} == set(MTU_CODES)
        assert {each.pkey_index for each in connections} == set(range(4))
    assert {each.sges for each in answered} == set(range(1, 17))
    posts = [step for case in response_values() for step in steps_of(case)]
    assert {step.sges for step in posts if isinstance(step, Post)} == set(range(1, 17))
    rights = {each.access for each in answered}
    assert len(rights) == 32


@pytest.mark.parametrize(
    ("name", "width"),
    [("bth.tver", 4), ("bth.resv6a", 6), ("bth.resv7", 7), ("bth.pkey", 16), ("bth.dest_qp", 24)],
)
def test_every_bit_of_a_field_is_changed_in_both_roles(name: str, width: int) -> None:
    for role in (Role.RESPONDER, Role.REQUESTER):
        flipped = set()
        for case in MAKERS[role]():
            reference = Emulation(case.connection)
            right = {"bth.pkey": reference.symbols["pkey"], "bth.dest_qp": reference.qp.number}
            for step in case.make(reference):
                if isinstance(step, Packet) and name in step.fields:
                    value = step.fields[name]
                    if isinstance(value, tuple):
                        value = reference.symbols[value[0]] + value[1]
                    flipped.add(value ^ right.get(name, 0))
        assert {1 << bit for bit in range(width)} <= flipped


def test_every_bit_of_atomic_operands_is_compared_exchanged_and_added() -> None:
    differing, swapped, added = set(), set(), set()
    for _, step in packets(Role.RESPONDER):
        fields = step.fields
        if step.opcode == OpCode.RC_FETCH_ADD:
            added.add(fields.get("atomiceth.swap"))
        if step.opcode == OpCode.RC_COMPARE_SWAP and "atomiceth.compare" in fields:
            place, compare = fields["atomiceth.va"], fields["atomiceth.compare"]
            assert isinstance(place, tuple)
            assert isinstance(compare, int)
            _, offset = place
            differing.add(Emulation(Connection()).region.load64(offset) ^ compare)
            swapped.add(fields["atomiceth.swap"])

    bits = {1 << bit for bit in range(64)}
    assert bits | {0} <= differing
    assert bits <= swapped
    assert bits <= added


def test_every_reason_timeout_and_attribute_of_the_connection_manager_is_sent() -> None:
    values: dict[str, set[object]] = {}
    for case in message_values():
        for step in steps_of(case):
            for name, value in step.fields.items() if isinstance(step, Mad) else ():
                values.setdefault(name, set()).add(value)

    assert set(range(36)) <= values["rej.reason"]
    assert values["mra.service_timeout"] == set(range(32))
    assert set(range(0x30)) <= values["mad.attribute_id"]
    for name in ("base_version", "mgmt_class", "class_version", "method"):
        assert values[f"mad.{name}"] == set(range(0x100))
    for name, width in (("path_packet_payload_mtu", 4), ("local_cm_response_timeout", 5)):
        assert values[f"req.{name}"] == set(range(1 << width))
    assert set(range(8)) <= values["sidr_rep.status"]


def test_every_bit_of_the_number_of_a_shared_receive_queue_is_wrong_once() -> None:
    flipped = set()
    for case in request_values():
        reference = Emulation(case.connection)
        for step in case.make(reference):
            value = step.fields.get("xrceth.xrc_srq") if isinstance(step, Packet) else None
            if isinstance(value, tuple):
                right = reference.symbols["srqn"]
                flipped.add(right ^ right + value[1])

    assert flipped == {1 << bit for bit in range(24)}


@pytest.mark.parametrize("role", MAKERS)
def test_every_case_can_be_saved(role: Role) -> None:
    for case in MAKERS[role]():
        steps = tuple(steps_of(case))
        assert steps
        to_json(Case(case.connection, steps))


# A run meets all of them.


def test_cases_come_once_in_each_round_in_an_order_of_the_seed() -> None:
    cases = request_values()
    ours, other = Shuffled("1", cases), Shuffled("2", cases)
    count = len(ours)

    first, second = ([ours.case(turn * count + each) for each in range(count)] for turn in (0, 1))

    assert {id(each) for each in first} == {id(each) for each in second} == set(map(id, cases))
    assert first != second
    assert first != [other.case(each) for each in range(count)]
    assert first == [ours.case(each) for each in range(count)]


@pytest.mark.parametrize("role", [Role.RESPONDER, Role.REQUESTER])
def test_no_long_case_and_no_card_is_left_out_between_them(role: Role) -> None:
    """Cases of the deck, and longer ones, have the numbers that they have without values."""
    make = vocabulary_for(role).generators(1, role)
    turns = [make._turn(number, len(MAKERS[role]())) for number in range(3000)]  # type: ignore[attr-defined]

    for kind in {kind for kind, _ in turns}:
        numbers = [number for each, number in turns if each is kind]
        assert numbers == list(range(len(numbers)))


@pytest.mark.slow
@pytest.mark.parametrize("seed", sampled((1, 2, 3), 3))
@pytest.mark.parametrize("role", MAKERS)
def test_a_run_of_20_000_packets_meets_every_value_and_finds_nothing(role: Role, seed: int) -> None:
    make = vocabulary_for(role).generators(seed, role)
    met = 0

    def counted(number: int) -> Stepper:
        nonlocal met
        made = make(number)
        met += isinstance(made, OneOfEach)
        return made

    campaign = Campaign(bed_of(role), counted, minimises=False)
    assert not list(campaign.run(CAP))
    assert met >= len(MAKERS[role]())


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("role", [Role.RESPONDER, Role.REQUESTER])
def test_nothing_is_found_on_a_right_device(role: Role, profile: str) -> None:
    bed = bed_of(role, profile)
    bed.reset()
    for case in MAKERS[role]():
        stepper = OneOfEach(case)
        comparison = bed.connect(stepper.connection, PROFILES[profile])
        while (step := stepper.next(comparison.reference)) is not None:
            assert comparison.step(step) is None


# What they find.


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANTED)
def test_a_fault_in_a_single_value_is_found_by_its_cases(name: str) -> None:
    mutant = PLANTED[name]

    assert shows(mutant, Role(mutant.role))


OVERTAKES = Patch(
    "rc/habits/spec.py",
    "    last = replies[-1] if replies else None\n    is_plain",
    "    last = replies[0] if replies else None\n    is_plain",
)
KEEPS_A_SHARED_REQUEST = Patch(
    "rc/receive.py",
    "        self.fail(WCStatus.WR_FLUSH_ERR)\n        self._cq",
    "        if self.srq is None:\n            self.fail(WCStatus.WR_FLUSH_ERR)\n        self._cq",
)


@pytest.mark.parametrize(
    ("patch", "role"), [(OVERTAKES, Role.RESPONDER), (KEEPS_A_SHARED_REQUEST, Role.REQUESTER)]
)
def test_a_fault_that_needs_several_requests_is_found_by_their_cases(
    patch: Patch, role: Role
) -> None:
    assert shows(Mutant("planted", (patch,)), role)


def shows(mutant: Mutant, role: Role) -> bool:
    """Whether one of the cases against a role shows a mutant."""
    device = managed_emulation if role is Role.CM else Emulation
    target = getattr(copied(mutant)[device.__module__], device.__name__)
    bed = EmulatorTestbed(target, vocabulary_for(role))
    bed.reset()

    def differs(case: ValueCase) -> bool:
        stepper = OneOfEach(case)
        comparison = bed.connect(stepper.connection, PROFILES["spec"])
        while (step := stepper.next(comparison.reference)) is not None:
            if comparison.step(step) is not None:
                bed.reset()
                return True
        return False

    return any(map(differs, MAKERS[role]()))


def test_the_opening_is_of_the_deck_alone() -> None:
    make = vocabulary_for(Role.BOTH).generators(1, Role.BOTH)

    assert not any(isinstance(make(number), OneOfEach) for number in range(2 * OPENING))
