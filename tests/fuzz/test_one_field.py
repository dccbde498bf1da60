"""Short cases that change one field: the deck of them, what they send, how soon they find."""

from __future__ import annotations

from collections import Counter, defaultdict
from functools import cache, partial
from random import Random

import pytest

from examples import sampled, usual
from ibwire.fuzz.campaign import Campaign
from ibwire.fuzz.case import Packet, Post, Role, Step
from ibwire.fuzz.report import HISTORY
from ibwire.fuzz.targets.emulated_device import ADDRESS, PEER_ADDRESS, Emulation
from ibwire.fuzz.targets.emulator import EmulatorTestbed
from ibwire.fuzz.vocabulary.binding import Binding
from ibwire.fuzz.vocabulary.deck import EPOCH, Card, Change, Deck, changes_of
from ibwire.fuzz.vocabulary.queue_pair.combined import CombinedGenerator
from ibwire.fuzz.vocabulary.queue_pair.encoding import encode
from ibwire.fuzz.vocabulary.queue_pair.generator import Generator
from ibwire.fuzz.vocabulary.queue_pair.one_field import (
    BARE,
    REQUESTS,
    OneField,
    deck,
    fields_of,
    request,
)
from ibwire.fuzz.vocabulary.value_cases import OneOfEach
from ibwire.fuzz.vocabulary.vocabularies import OPENING, queue_pair_generators
from ibwire.rc.profile import PROFILES
from ibwire_layers.headers import BTH
from ibwire_layers.opcodes import INFO, Position
from ibwire_layers.schema import Header
from mutants.engine import copied
from mutants.table import EDGES, INTERACTIONS, TABLE, read_mutants

BINDING = Binding(PEER_ADDRESS, ADDRESS)
ROLES = Role.RESPONDER, Role.REQUESTER
CHECKED = {"tail", "icrc"} | {
    f"bth.{name}" for name in ("opcode", "pad_count", "tver", "pkey", "dest_qp")
}
"""What decides whether a packet is taken at all."""

IGNORED = {f"bth.{name}" for name in ("resv6a", "resv7", "fecn", "becn", "se", "mig_req")}
"""What makes no difference for how a packet is executed."""


@cache
def cards_of(seed: int, role: Role, count: int = OPENING) -> list[Card]:
    ours = deck(seed, role)
    return [ours.card(number) for number in range(count)]


def carried_out(number: int, role: Role) -> tuple[list[Step], Emulation]:
    """The steps of a case, and the reference on which they were carried out."""
    case = OneField(Random(number), role, cards_of(1, role)[number])
    reference = Emulation(case.connection, PROFILES["spec"])
    steps = []
    while (step := case.next(reference)) is not None:
        steps.append(step)
        if isinstance(step, Packet):
            reference.prepare(step)
            base = reference.psn(step.psn[0])
            reference.receive(BINDING.frame(step, base, reference.symbols))
            reference.answers()
        elif isinstance(step, Post):
            reference.post_send(step)
            reference.answers()
    return steps, reference


@pytest.mark.parametrize("role", ROLES)
def test_a_field_comes_again_only_after_all_others_of_its_exchange(role: Role) -> None:
    cards = cards_of(3, role, EPOCH)

    for exchange in {card.exchange for card in cards}:
        names = [card.field for card in cards if card.exchange == exchange]
        first = names[: len(set(names))]
        assert len(names) > len(set(names))
        assert max(Counter(first).values()) <= 2  # the payload counts twice


def test_every_bit_of_the_pkey_is_flipped_within_few_hundred_cards() -> None:
    for seed in range(5):
        cards = cards_of(seed, Role.RESPONDER)
        numbers = {card.change.number for card in cards if card.field == "bth.pkey"}
        assert {1 << bit for bit in range(16)} <= numbers


def test_every_field_of_a_request_is_changed_in_the_opening() -> None:
    cards = cards_of(1, Role.RESPONDER)

    assert {name for opcode in REQUESTS for name in fields_of(opcode)} == {
        card.field for card in cards
    }
    assert {card.exchange for card in cards} == set(range(len(REQUESTS)))


@pytest.mark.parametrize("seed", sampled((1, 2, 3), 3))
def test_fields_of_few_requests_and_psns_come_as_often_as_at_random(seed: int) -> None:
    """Expected at random: any request, then any field of its headers or its payload."""
    expected: defaultdict[str, float] = defaultdict(float)
    for opcode in REQUESTS:
        kinds: tuple[type[Header], ...] = (BTH, *INFO[opcode].headers)
        names = [f"{kind.KEY}.{entry.name}" for kind in kinds for entry in kind.FIELDS]
        for name in names:
            expected[name] += OPENING / len(REQUESTS) / (len(names) + 1)

    counts = Counter(card.field for card in cards_of(seed, Role.RESPONDER))

    rare = [name for name in expected if not name.startswith("bth.")]
    assert all(counts[name] >= expected[name] for name in [*rare, "bth.psn"])


def test_the_first_cases_of_each_request_are_the_changed_packet_alone() -> None:
    for number in range(BARE * len(REQUESTS)):
        steps, _ = carried_out(number, Role.RESPONDER)
        assert len(steps) == 1

    assert max(len(carried_out(number, Role.RESPONDER)[0]) for number in range(OPENING)) == 3


def test_parts_come_first_with_what_does_not_drop_them_and_whole_messages_with_what_does() -> None:
    """Or with what is ignored, so that a right message of each kind comes soon."""
    ignored = 0
    for seed in range(5):
        cards = cards_of(seed, Role.RESPONDER, len(REQUESTS))
        positions = [INFO[REQUESTS[card.exchange]].position for card in cards]
        is_part = [position not in (Position.ONLY, None) for position in positions]

        assert is_part[:6] == [True, False, False] * 2
        names = [card.field for card in cards]
        first = zip(names[:12], is_part, strict=False)
        assert not {name for name, part in first if part} & CHECKED
        whole = {name for name, part in zip(names[:11], is_part, strict=False) if not part}
        assert whole <= CHECKED | IGNORED
        assert whole & CHECKED
        ignored += len(whole & IGNORED)
    assert ignored >= 3


def test_half_of_the_first_psns_are_near_the_wrap() -> None:
    card = cards_of(1, Role.RESPONDER)[0]
    made = [OneField(Random(number), Role.RESPONDER, card).connection for number in range(1000)]

    for psns in ([each.rq_psn for each in made], [each.sq_psn for each in made]):
        near = [each for each in psns if each < 4 or each >= (1 << 24) - 4]
        assert 400 < len(near) < 600
        assert set(near) == {each & 0xFFFFFF for each in range(-4, 4)}


def test_many_changed_opcodes_are_those_of_another_service() -> None:
    cards = [card for card in cards_of(1, Role.RESPONDER, EPOCH) if card.field == "bth.opcode"]
    flips = Counter(card.change.number for card in cards if card.change.flips)

    assert 0.3 * len(cards) < flips.total() < 0.5 * len(cards)
    assert flips[0x20] > flips[0x60] > flips[0xA0]  # UC, UD and XRC, IBA 9.2.1


def test_cards_depend_on_seed_and_number_alone() -> None:
    numbers = [5, EPOCH + 5, 0, 5, 2 * EPOCH]
    ours = deck(1, Role.RESPONDER)

    assert [ours.card(each) for each in numbers] == [
        deck(1, Role.RESPONDER).card(each) for each in numbers
    ]
    assert cards_of(1, Role.RESPONDER) != cards_of(2, Role.RESPONDER)


def test_fields_of_few_exchanges_come_as_often_in_these_as_others() -> None:
    ours = Deck("", [["a", "b"], ["a", "c"]], lambda name: [Change(1)])
    counts = Counter(ours.card(number).field for number in range(400))

    assert counts == {"a": 200, "b": 100, "c": 100}


def test_a_flipped_bit_keeps_the_symbol() -> None:
    symbols = {"pkey": 0xFFFF, "qpn": 0x11}

    assert Change(0x10, flips=True).of(("pkey", 0), symbols) == ("pkey", -0x10)
    assert Change(0x10, flips=True).of(("qpn", 0), symbols) == ("qpn", -0x10)
    assert Change(0x20, flips=True).of(("qpn", 0), symbols) == ("qpn", 0x20)
    assert Change(0x20, flips=True).of(0x21, symbols) == 1
    assert Change(3).of(("qpn", 0), symbols) == 3
    assert Change(2, flips=True).of(("ssn", 1), symbols) == ("ssn", 3)


def test_a_narrow_field_takes_all_other_values() -> None:
    assert [each.of(1, {}) for each in changes_of(2)] == [0, 3, 2]
    assert changes_of(1) == [Change(1, flips=True)]


def test_one_field_of_one_packet_differs_from_the_right_one() -> None:
    opcodes = set()
    for number in range(OPENING):
        steps, reference = carried_out(number, Role.RESPONDER)
        packets = [step for step in steps if isinstance(step, Packet)]
        (packet,) = (each for each in packets if each.why)
        card = cards_of(1, Role.RESPONDER)[number]
        right = request(REQUESTS[card.exchange])
        assert len(packets) <= 3
        assert packet.opcode == right.opcode
        opcodes.add(packet.opcode)
        part, _, name = card.field.partition(".")
        if part != "bth" or name == "psn":
            continue
        sent, usual = (encode(each, 0, reference.symbols) for each in (packet, right))
        assert sent[BTH.SIZE :] == usual[BTH.SIZE :]
        assert {
            entry.name
            for entry in BTH.FIELDS
            if getattr(BTH.unpack(sent), entry.name) != getattr(BTH.unpack(usual), entry.name)
        } <= {name}
    assert opcodes == set(REQUESTS)


def test_responses_are_changed_only_to_what_was_asked_for() -> None:
    answered = 0
    for number in range(OPENING):
        steps, _ = carried_out(number, Role.REQUESTER)
        assert isinstance(steps[0], Post)
        packets = [step for step in steps if isinstance(step, Packet)]
        assert len(packets) <= 2
        answered += bool(packets and packets[0].why)
        card = cards_of(1, Role.REQUESTER)[number]
        assert not packets or card.field in fields_of(packets[0].opcode)
    assert answered == OPENING


def test_a_run_begins_with_the_deck_and_goes_on_with_both_kinds() -> None:
    make = queue_pair_generators(1, Role.BOTH)

    assert all(isinstance(make(number), OneField) for number in range(2 * OPENING))
    made = [make(2 * OPENING + number) for number in range(10)]
    is_long = [isinstance(each, Generator | CombinedGenerator) for each in made]
    assert is_long == [False, False, True, True, False, False, False, False, True, True]
    assert [isinstance(each, OneOfEach) for each in made[:8:2]] == [True, False, True, False]
    assert isinstance(made[6], OneField)
    assert OPENING % HISTORY == 0


@pytest.mark.parametrize("seed", range(1, 4))
def test_a_run_begins_with_every_nak_that_ends_a_connection(seed: int) -> None:
    """Invalid request, remote access error, remote operational error (IBA 9.7.5.2)."""
    cards = [each for each in cards_of(seed, Role.REQUESTER) if each.field == "aeth.syndrome"]

    assert {each.change.of(0x1F, {}) for each in cards} >= {0x61, 0x62, 0x63}


def test_a_run_of_other_groups_has_no_deck() -> None:
    assert isinstance(queue_pair_generators(1, Role.BOTH, ("dup",))(0), Generator)
    assert isinstance(queue_pair_generators(1, Role.BOTH, ("field",))(0), OneField)


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("profile", sampled(PROFILES, 2))
def test_nothing_is_found_on_a_right_device(profile: str, role: Role) -> None:
    campaign = Campaign(
        EmulatorTestbed(partial(Emulation, profile=PROFILES[profile])),
        queue_pair_generators(2, role),
        profile=profile,
        explains=False,
        minimises=False,
    )

    assert not list(campaign.run(usual(600, quick=300)))


@pytest.mark.parametrize("seed", sampled((1, 2, 3), 3))
@pytest.mark.parametrize(
    ("fault", "role"),
    [
        ("pkey-compared-in-12-bits", Role.RESPONDER),
        ("transport-version-ignored", Role.RESPONDER),
        ("atomic-result-in-network-order", Role.REQUESTER),
    ],
)
def test_a_fault_in_one_field_is_found_in_the_opening(fault: str, role: Role, seed: int) -> None:
    tables = [read_mutants(each) for each in (TABLE, INTERACTIONS, EDGES)]
    (mutant,) = (table[fault] for table in tables if fault in table)
    device = copied(mutant)[Emulation.__module__].Emulation
    campaign = Campaign(EmulatorTestbed(device), queue_pair_generators(seed, role), minimises=False)
    assert next(campaign.run(OPENING), None) is not None
