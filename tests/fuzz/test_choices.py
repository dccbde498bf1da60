"""What may differ: every field of a profile is a choice or has a reason, and each name is true."""

from __future__ import annotations

from dataclasses import fields, replace
from functools import partial
from operator import attrgetter
from typing import Any

import pytest

from each_case import each_case
from examples import sampled
from fuzz.scripted import scripted
from ibwire.base.units import MS
from ibwire.fuzz.campaign import Campaign
from ibwire.fuzz.case import (
    Case,
    CaseError,
    Connection,
    Packet,
    Post,
    Receive,
    Role,
    RunsAway,
    Step,
    Wait,
)
from ibwire.fuzz.judge.choices import CHOICES, Choice
from ibwire.fuzz.judge.findings import Finding
from ibwire.fuzz.judge.profiles import choices_of, profile_of, value_text
from ibwire.fuzz.judge.witness import Witness
from ibwire.fuzz.judge.witnesses import WITNESSES
from ibwire.fuzz.targets.emulated_device import Emulation
from ibwire.fuzz.targets.emulated_manager import managed_emulation
from ibwire.fuzz.targets.emulator import EmulatorTestbed
from ibwire.fuzz.targets.link.queue_pair_testbed import fits_device
from ibwire.fuzz.vocabulary.vocabularies import (
    CONNECTION_MANAGER,
    manager_generators,
    queue_pair_generators,
    role_of,
    vocabulary_for,
)
from ibwire.rc.profile import PROFILES, SPEC, Profile
from ibwire.rc.work import WROpcode
from ibwire_layers.opcodes import OpCode
from mutants.engine import copied
from mutants.table import EDGES, read_mutants

NO_CHOICE = {
    "name": "is no behaviour",
    "controls_congestion": "emulated devices of the live programs set it, no device under test",
    "places_early": "profiles with it are not in `PROFILES`; a device is judged by in-order rules",
    "early_window": "matters with `places_early` only",
    "nak_distance": "matters with `places_early` only",
    "timeout_low": "profiles with it are not in `PROFILES`; a timeout is the attribute's",
    "timeout_high": "matters with `timeout_low` only",
    "few_unacked_psns": "matters with `timeout_low` only",
    "selective_repeat": "needs a peer that has it too, which no device under test says",
    "burst_packets": "the order of the packets of several queue pairs is not judged",
    "cnp_scope": "cases send no CE marks over several queue pairs",
    "reset_discards_completions": "queues are empty whenever a case ends its connection",
}


def choices_of_field(name: str) -> list[Choice]:
    return [choice for choice in CHOICES if choice.name == name]


def test_every_field_of_a_profile_is_a_choice_or_has_a_reason() -> None:
    names = {field.name for field in fields(Profile)}
    chosen = {choice.name for choice in CHOICES}

    assert chosen | set(NO_CHOICE) == names
    assert not chosen & set(NO_CHOICE)


@each_case("profile", PROFILES.values(), ids=lambda profile: profile.name)
def test_every_value_of_a_profile_is_one_that_its_choices_know(profile: Profile) -> None:
    for choice in CHOICES:
        values = [value for each in choices_of_field(choice.name) for value in each.values]
        assert getattr(profile, choice.name) in values, choice.name


@each_case("choice", CHOICES, ids=lambda choice: choice.name)
def test_every_value_of_a_choice_has_a_different_text(choice: Choice) -> None:
    """Choices are saved as texts."""
    assert len({value_text(value) for value in choice.values}) == len(choice.values) > 1


def test_a_measured_time_is_read_as_it_was_saved() -> None:
    profile = profile_of("spec", {"ack_timer_percent": "150"})

    assert profile == replace(SPEC, ack_timer_percent=150)
    assert choices_of(profile, "spec") == {"ack_timer_percent": "150"}
    assert profile_of("spec", {"max_unacked_psns": "31"}) == replace(SPEC, max_unacked_psns=31)
    with pytest.raises(CaseError, match="not one of"):
        profile_of("spec", {"max_unacked_psns": "129"})
    backing_off = replace(SPEC, ack_timer_percents=(100, 150, 400))
    assert choices_of(backing_off, "spec") == {"ack_timer_percents": "(100, 150, 400)"}
    assert profile_of("spec", choices_of(backing_off, "spec")) == backing_off
    single = replace(SPEC, ack_timer_percents=(150,))
    assert profile_of("spec", choices_of(single, "spec")) == single
    for text in (
        "(100, 401)",
        "(99, 100)",
        "100, 200",
        "(100,200)",
        "(100, x)",
        "100",
        f"{(100,) * 9}",
    ):
        with pytest.raises(CaseError, match="not one of"):
            profile_of("spec", {"ack_timer_percents": text})
    for text in ("99", "401", "-1", "1.5", "", "x", "9" * 5000):
        with pytest.raises(CaseError, match="not one of"):
            profile_of("spec", {"ack_timer_percent": text})


def known(profile: str) -> set[str]:
    """What a profile is documented to do that the specification does not allow, by name."""
    return {
        choice.about
        for choice in CHOICES
        if not choice.allowed
        and getattr(PROFILES[profile], choice.name) != getattr(SPEC, choice.name)
    }


def names_of(finding: Finding) -> set[str]:
    return set(finding.about.split("; ")) if finding.about else {finding.bucket}


def differing(profile: str) -> set[str]:
    return {
        choice.name
        for choice in CHOICES
        if getattr(PROFILES[profile], choice.name) != getattr(SPEC, choice.name)
    }


def target(profile: str | Profile) -> type[Emulation]:
    class Target(Emulation):
        def __init__(self, connection: Connection) -> None:
            super().__init__(connection, profile)

    return Target


@pytest.mark.slow
@pytest.mark.parametrize("profile", ["rdmavt", "connectx", "hns"])
def test_the_deviations_of_a_profile_are_found_by_name_and_nothing_else(profile: str) -> None:
    """The fuzzer does not know the target, and adopts nothing that it does not do."""
    campaign = Campaign(
        EmulatorTestbed(target(profile)), queue_pair_generators(3, Role.BOTH), minimises=False
    )
    names: set[str] = set()
    for finding in campaign.run(40_000 if known(profile) else 3000):
        names |= names_of(finding)
        if names >= known(profile):
            break

    assert names == known(profile)
    abouts = {choice.about for choice in CHOICES if choice.name in differing(profile)}
    taken = [choice for choice in CHOICES if choice.name in campaign.report.taken]
    assert {choice.about for choice in taken} <= abouts


def test_hns_shows_reserved_bits_and_a_whole_message_beyond_the_credits() -> None:
    """Seen in reference/habits#hns-headers."""
    assert known("hns") == {
        "reserved bits of BTH byte 4 are not 0",
        "a message beyond the credits is sent whole",
    }
    assert known("connectx") == set()


@pytest.mark.slow
def test_a_manager_of_rxe_is_found_by_what_its_datagrams_ask_for() -> None:
    target = partial(managed_emulation, profile=PROFILES["rxe"])
    campaign = Campaign(
        EmulatorTestbed(target, CONNECTION_MANAGER), manager_generators(1), minimises=False
    )
    names: set[str] = set()
    for finding in campaign.run(1500):
        names |= names_of(finding)

    assert names <= known("rxe")
    assert names >= {"datagrams on QP1 ask for an ACK", "no event COMM_EST is raised"}


SEND = Packet(int(OpCode.RC_SEND_ONLY), length=8)
WRITE = Packet(int(OpCode.RC_RDMA_WRITE_ONLY), length=8)
WRITE_IMM = Packet(int(OpCode.RC_RDMA_WRITE_ONLY_WITH_IMMEDIATE), length=8)
READ = Packet(int(OpCode.RC_RDMA_READ_REQUEST), fields={"reth.dma_len": 8})
NOTHING = Packet(int(OpCode.RC_RDMA_READ_REQUEST), fields={"reth.dma_len": 0, "reth.rkey": 0})
INVALIDATE = Packet(int(OpCode.RC_SEND_ONLY_WITH_INVALIDATE), length=8)
ADD = Packet(int(OpCode.RC_FETCH_ADD))
ACK = Packet(int(OpCode.RC_ACKNOWLEDGE), psn=("una", 0))
ONLY = Packet(int(OpCode.RC_RDMA_READ_RESPONSE_ONLY), psn=("una", 0), length=8)
FLUSH = Packet(int(OpCode.RC_FLUSH), fields={"reth.dma_len": 8})
MIDDLE = Packet(int(OpCode.RC_RDMA_READ_RESPONSE_MIDDLE), psn=("una", 0), length=256)


def other(packet: Packet, **fields: object) -> Packet:
    given = {name.replace("__", "."): value for name, value in fields.items()}
    return packet.altered(fields={**packet.fields, **given})


LIKE_RXE = replace(PROFILES["rxe"], acks_answer=True)
"""With what its profile leaves out."""

IN_RXE: dict[str, tuple[Step, ...]] = {
    "checks_request_payload": (READ.altered(length=4),),
    "checks_write_position": (Packet(int(OpCode.RC_RDMA_WRITE_FIRST), length=8),),
    "checks_message_length": (other(READ, reth__dma_len=(1 << 31) + 1),),
    "bounds_windows": (other(READ, reth__rkey=("mw.rkey", 0), reth__va=("mw.va", -1)),),
    "acknowledges_bad_invalidate": (other(INVALIDATE, ieth__rkey=1),),
    "takes_receive_early": (other(WRITE_IMM, reth__dma_len=4),),
    "replays_by_psn": (READ, ADD.altered(psn=("expected", -1))),
    "rechecks_empty_reads": (NOTHING, NOTHING.altered(psn=("expected", -1))),
    "invalidate_flag": (other(INVALIDATE, ieth__rkey=("mw.rkey", 0)),),
    "reports_refusals": (SEND.altered(opcode=int(OpCode.RC_SEND_LAST)),),
    "flushes_late_receives": (other(READ, reth__rkey=0), Receive(1)),
    "bad_response": (Post(int(WROpcode.SEND), 8), ONLY),
    "misplaced_response": (Post(int(WROpcode.RDMA_READ), 600), MIDDLE),
    "checks_response_length": (Post(int(WROpcode.RDMA_READ), 8), ONLY.altered(length=4)),
    "acks_answer": (Post(int(WROpcode.RDMA_READ), 8), ACK),
    "acks_unsent": (Post(int(WROpcode.SEND), 8), ACK.altered(psn=("next", 1))),
    "discards_annex_a19": (FLUSH,),
    "rounds_read_depth": (Post(int(WROpcode.RDMA_READ), 8),) * 4,
    "reserved_bit_fails": (
        Post(int(WROpcode.RDMA_WRITE), 8),
        other(ACK, aeth__syndrome=0x9F),
    ),
    "nak_is_progress": (
        Post(int(WROpcode.RDMA_WRITE), 600),
        other(ACK.altered(psn=("una", 2)), aeth__syndrome=0x21),
        Wait(1 * MS),
    ),
    "sends_during_rnr_wait": (
        Post(int(WROpcode.RDMA_WRITE), 8),
        other(ACK, aeth__syndrome=0x3F),
        ACK,
        Post(int(WROpcode.RDMA_WRITE), 8),
        Wait(500 * MS),
    ),
}

OTHER_CONNECTIONS = {"rounds_read_depth": Connection(max_rd_atomic=3)}
"""Where the usual one does not show it."""


@pytest.mark.slow
@pytest.mark.parametrize("name", IN_RXE)
def test_a_deviation_has_its_name_from_the_first_case_that_shows_it(name: str) -> None:
    """A device that is like the specification in all else, and like rxe in this."""
    (about,) = {choice.about for choice in choices_of_field(name)}
    changes: dict[str, Any] = {name: getattr(LIKE_RXE, name)}
    case = Case(OTHER_CONNECTIONS.get(name, Connection()), IN_RXE[name])
    campaign = Campaign(
        EmulatorTestbed(target(replace(SPEC, **changes))), lambda number: scripted(case)
    )

    finding = campaign.one_case(100)

    assert finding is not None
    assert (finding.about, list(campaign.report.taken)) == (about, [name])


ALLOWED_IN_RXE: dict[str, tuple[Step, ...]] = {
    "refuses_annex_a19": (FLUSH,),
    "counts_every_rnr_nak": (
        Post(int(WROpcode.RDMA_WRITE), 8),
        *(other(ACK, aeth__syndrome=0x3F), Wait(300 * MS)) * 2,
    ),
}


@pytest.mark.parametrize("name", ALLOWED_IN_RXE)
def test_what_is_left_open_is_taken_over_and_no_finding(name: str) -> None:
    changes: dict[str, Any] = {name: True}
    case = Case(Connection(), ALLOWED_IN_RXE[name])
    campaign = Campaign(
        EmulatorTestbed(target(replace(SPEC, **changes))), lambda number: scripted(case)
    )

    assert campaign.one_case(100) is None
    assert list(campaign.report.taken) == [name]


def test_what_the_witness_of_a_choice_does_not_show_is_no_choice() -> None:
    """Responses that leave out of order at the PSN wrap are not those of a device that always
    answers in turn."""
    fault = read_mutants(EDGES)["replay-behind-newer-responses-at-the-wrap"]
    read = Packet(int(OpCode.RC_RDMA_READ_REQUEST), fields={"reth.dma_len": 8})
    again = read.altered(psn=("expected", -2))
    case = Case(Connection(rq_psn=0xFFFFFF), (read, read.altered(held=True), again))
    testbed = EmulatorTestbed(copied(fault)[Emulation.__module__].Emulation)

    finding = Campaign(testbed, lambda number: scripted(case)).one_case(100)

    assert finding is not None
    assert finding.rule.endswith("#psn-order")


def test_what_two_deviations_do_together_is_found_as_each_of_them() -> None:
    """Neither alone explains a case in which a device has both; each has its own witness."""
    both = {"reserved_syndrome_fails", "misplaced_response"}
    changes: dict[str, Any] = {name: getattr(LIKE_RXE, name) for name in both}
    failure = other(ACK.altered(psn=("una", 1)), aeth__syndrome=0x58)
    unlimited = Post(int(WROpcode.SEND), 8), other(ACK, aeth__syndrome=0x1F)
    case = Case(Connection(), (*unlimited, Receive(1), Post(int(WROpcode.SEND), 257), failure))
    campaign = Campaign(
        EmulatorTestbed(target(replace(SPEC, **changes))), lambda number: scripted(case)
    )

    found = [campaign.one_case(100) for _ in range(3)]

    assert set(campaign.report.taken) == both
    names = {choice.about for choice in CHOICES if choice.name in both}
    assert {finding.about for finding in found if finding is not None} == names


WITHOUT_WITNESS = {
    "route_hop_limit": "the first hop shows the same",
    "ack_request_interval": "no case posts as many packets",
}


def test_every_choice_has_a_witness_or_a_reason() -> None:
    names = {each.name for each in WITNESSES}

    assert names | set(WITHOUT_WITNESS) == {choice.name for choice in CHOICES}
    assert not names & set(WITHOUT_WITNESS)


@pytest.mark.parametrize("role", [Role.REQUESTER, Role.RESPONDER])
def test_what_every_packet_shows_has_a_witness_in_each_role_of_a_device_on_a_link(
    role: Role,
) -> None:
    """Else each packet of that role would be another finding."""
    assert "mig_req" in {each.name for each in WITNESSES if fits_device(each, role)}


SHOWS_THE_SAME = {
    "limited_message": "live_credits",
    "takes_credits": "live_credits",
    "max_unacked_reads": "reads_divided_by",
}
"""What of these a device does with a long message, or with many READs; its own AETHs, or the second
witness of the other one, tell them apart."""


ON_A_LINK = {"acks_unasked"}
"""What the reference does as an emulated device has done, which is no choice of that."""

FOLLOWED = {"timers_vary"}
"""With it the reference does as an emulated device has done, one of constant times, too."""


@pytest.mark.parametrize(
    "witness",
    sampled([each for each in WITNESSES if each.name not in ON_A_LINK | FOLLOWED], 9),
    ids=attrgetter("name"),
)
def test_a_witness_shows_its_choice_and_no_other(witness: Witness) -> None:
    """Not on a right device, on one with the choice, and no other choice does the same."""
    case = witness.case("spec")
    vocabulary = vocabulary_for(role_of(case))

    def device(profile: Profile) -> EmulatorTestbed:
        return EmulatorTestbed(
            lambda connection: vocabulary.reference(connection, profile), vocabulary
        )

    usual = replace(SPEC, live_credits=witness.name != "takes_credits")
    shown = [
        profile
        for choice in choices_of_field(witness.name)
        for profile in (
            *choice.variants(usual),
            *(replace(usual, **{choice.name: value}) for value in choice.in_witness),
        )
        if device(profile).replay(case, usual) is not None
    ]
    others = [
        profile
        for choice in CHOICES
        if choice.name not in (witness.name, SHOWS_THE_SAME.get(witness.name), *FOLLOWED)
        for profile in choice.variants(usual)
    ]

    assert device(usual).replay(case, usual) is None
    assert shown
    assert not any(_agrees(device(shown[-1]), case, profile) for profile in others)


HIDDEN = {"rnr_timer_us": "both times become 64 ms with the timer granularity of rxe"}
"""Deviations that others of the same implementation hide."""


@pytest.mark.parametrize("name", sampled(PROFILES, 2))
def test_a_deviation_is_shown_by_its_witness_whatever_else_an_implementation_does(
    name: str,
) -> None:
    profile = PROFILES[name]

    def shows(witness: Witness) -> bool:
        case = witness.case("spec")
        vocabulary = vocabulary_for(role_of(case))
        device = EmulatorTestbed(
            lambda connection: vocabulary.reference(connection, profile), vocabulary
        )
        changes: dict[str, Any] = {witness.name: getattr(SPEC, witness.name)}
        return not _agrees(device, case, replace(profile, **changes))

    deviations = {each.name for each in CHOICES if not each.allowed} & differing(name)
    assert {each.name for each in WITNESSES if shows(each)} >= deviations - set(HIDDEN)


def _agrees(testbed: EmulatorTestbed, case: Case, profile: Profile) -> bool:
    try:
        return testbed.replay(case, profile) is None
    except RunsAway:
        return False
