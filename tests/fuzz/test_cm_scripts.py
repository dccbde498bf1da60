"""Cases for connection managers as drill scripts: what they say, and that they hold."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

import ibwire.drill as drill
from each_case import each_case
from examples import sampled
from ibwire.base.errors import ScriptError
from ibwire.base.units import S
from ibwire.fuzz.artefacts import checked_script
from ibwire.fuzz.campaign import Campaign
from ibwire.fuzz.case import (
    BAD,
    Case,
    CaseError,
    Command,
    Connect,
    Connection,
    Mad,
    Packet,
    Role,
    Step,
    Wait,
    to_json,
)
from ibwire.fuzz.judge.comparison import Difference, ExactComparison, Kind
from ibwire.fuzz.saved import case_text, parse_case, says
from ibwire.fuzz.targets.emulated_device import ADDRESS, PEER_ADDRESS
from ibwire.fuzz.targets.emulated_manager import managed_emulation
from ibwire.fuzz.targets.emulator import EmulatorTestbed, target
from ibwire.fuzz.vocabulary.binding import Binding
from ibwire.fuzz.vocabulary.cm.script import manager_script
from ibwire.fuzz.vocabulary.queue_pair.script import CannotSay
from ibwire.fuzz.vocabulary.vocabularies import (
    CONNECTION_MANAGER,
    MANAGER_OPENING,
    manager_generators,
)
from ibwire.rc.profile import SPEC
from ibwire_layers.opcodes import OpCode
from mutants.engine import copied
from mutants.table import Mutant, Patch

SCRIPTED = (
    "short-mad-crashes",
    "req-with-a-reserved-mtu",
    "repeated-req-connects-twice",
    "rtu-before-rep",
    "dreq-for-another-queue-pair",
    "repeated-dreq-not-answered",
)
"""Faults that exchanges of one connection show."""


def script(*steps: Step) -> str:
    case = Case(Connection(), steps, "spec")
    text = manager_script(
        case, Difference(len(steps) - 1, Kind.ANSWER, [], []), "A rule.", "IBA 12.9"
    )
    return text.partition("\n\n  qp state=RESET\n  listen backlog=6\n\n")[2]


def passes(text: str) -> bool:
    found = drill.parse(text.encode(), "case.drill", "spec")
    return all(drill.run(found, case, "spec").passed for case in found.cases)


def test_message_names_its_differences_in_the_words_of_drill() -> None:
    lines = script(
        Mad(fields={"req.local_qpn": ("own.qpn", 1), "deth.qkey": 7}),
        Mad(exchange=0, length=2, at=0),
        Command("accept"),
        Wait(5 * S),
        Mad(message="RTU", fields={"rtu.remote_comm_id": ("id", 1)}, icrc=BAD, why="not its ID"),
        Mad(message="DREQ", fields={"dreq.remote_qpn": ("qpn", -1)}, cut=60),
        Mad(message="REJ", fields={"rej.reason": 10}),
    ).splitlines()

    assert [line.strip() for line in lines if line.strip().startswith("<")] == [
        "< CM_REQ local_qpn=peer_qpn+1 max_cm_retries=3 primary_flow_label=0 deth.qkey=7",
        "< CM_REQ max_cm_retries=3 primary_flow_label=0 len=2 at=0",
        "< CM_RTU remote_comm_id=cm_id+1 icrc=bad  // not its ID",
        "< CM_DREQ remote_qpn=qpn-1 cut=60",
        "< CM_REJ reason=10",
    ]


def test_ids_count_from_those_of_the_script_after_any_message() -> None:
    text = script(Mad(fields={"req.local_comm_id": 0}), Mad())

    assert "< CM_REQ local_comm_id=0 " in text
    assert "< CM_REQ local_comm_id=0xb0b0001 " in text  # drill's own, which has no name any more


def test_each_exchange_is_that_of_a_queue_pair() -> None:
    text = manager_script(
        Case(
            Connection(),
            (
                Mad(),
                Mad(exchange=2),
                Mad(exchange=2, message="REJ", fields={"rej.remote_comm_id": ("other.id", 0)}),
                Command("accept", 2),
                Command("reject"),
                Command("resolve", 5),
                Mad(exchange=5, message="SIDR_REP"),
            ),
        ),
        Difference(6, Kind.ANSWER, [], []),
        "A rule.",
    )

    assert passes(text)
    assert [line.strip() for line in text.splitlines()[3:]] == [
        "qp state=RESET",
        "qp qp1",
        "qp qp3",
        "qp qp6",
        "listen backlog=6",
        "",
        "qp1 < CM_REQ max_cm_retries=3 primary_flow_label=0",
        "silence",
        "qp1 cm_event CONNECT_REQUEST",
        "qp3 < CM_REQ max_cm_retries=3 primary_flow_label=0",
        "silence",
        "qp3 cm_event CONNECT_REQUEST",
        "qp3 < CM_REJ remote_comm_id=qp1.chosen_cm_id",
        "silence",
        "qp3 accept",
        "qp3 > CM_REP",
        "qp1 reject",
        "qp1 > CM_REJ reason=CONSUMER_DEFINED",
        "qp6 resolve service=service+1",
        "qp6 > CM_SIDR_REQ service_id=service+1",
        "qp6 < CM_SIDR_REP service_id=service+1",
        "silence",
        "qp6 cm_event RESOLVED",
    ]


def test_event_of_an_earlier_connection_is_that_of_its_exchange() -> None:
    other = {"req.local_comm_id": ("own.id", 4096), "req.local_qpn": ("own.qpn", 9)}
    steps = (
        Mad(),
        Mad(exchange=2),
        Command("accept", 2),
        Mad(message="RTU", exchange=2),
        Mad(message="DREQ", exchange=2),
        Mad(exchange=2, fields=other),
        Wait(5 * S),
    )
    text = manager_script(Case(Connection(), steps), Difference(6, Kind.ANSWER, [], []), "A rule.")

    assert passes(text)
    assert "qp3 cm_event TIMEWAIT_EXIT" in text


def test_what_comes_of_it_is_expected_with_its_time() -> None:
    assert script(
        Mad(), Command("accept"), Wait(5 * S), Mad(message="DREQ", fields={"dreq.remote_qpn": 0})
    ).splitlines() == [
        "  < CM_REQ max_cm_retries=3 primary_flow_label=0",
        "  silence",
        "  cm_event CONNECT_REQUEST",
        "  accept",
        "  > CM_REP",
        "  +4294967296ns > CM_REP",  # 4.096 us x 2^20: IBA 12.7.13
        "  +705032704ns silence",
        "  < CM_DREQ remote_qpn=0",
        "  silence",
    ]


@pytest.mark.parametrize("name", sampled(SCRIPTED, 3))
def test_script_of_a_finding_passes_on_the_emulator_and_not_on_the_target(name: str) -> None:
    tested = target(f"py:mutants.target:{name}")
    campaign = Campaign(tested.testbed(Role.CM), manager_generators(1), explains=False)
    texts = (checked_script(finding, tested)[0] for finding in campaign.run(20_000))

    text = next(filter(None, texts))

    assert passes(text)
    assert not tested.fulfils(text)


STALE = (
    Mad(exchange=4),
    Command("accept", 4),
    Mad(message="RTU", exchange=4),
    Mad(exchange=6, fields={"req.local_qpn": ("own.qpn", -2)}),
)


def script_of(patch: Patch, steps: Sequence[Step]) -> str:
    """The script of the difference that a case shows in a manager with a change."""
    device: Any = copied(Mutant("changed", (patch,)))[managed_emulation.__module__]
    case = Case(Connection(), tuple(steps), "spec")
    testbed = EmulatorTestbed(device.managed_emulation, CONNECTION_MANAGER)
    difference = testbed.replay(case, SPEC)
    assert difference is not None
    return manager_script(case, difference, "A rule.")


def test_the_queue_pair_of_another_exchange_has_its_name() -> None:
    """A REQ of #6 from the queue pair of #4, which makes the device send a DREQ for #4."""
    lives = Patch(
        "cm/manager.py",
        "if Input.DISCONNECT in TRANSITIONS[connection.state]:",
        "if Input.DISCONNECT in TRANSITIONS[connection.state] and connection.is_active:",
    )

    text = script_of(lives, STALE)

    assert [line.strip() for line in text.splitlines()[-3:]] == [
        "qp7 < CM_REQ local_qpn=qp5.peer_qpn max_cm_retries=3 primary_flow_label=0",
        "qp5 > CM_DREQ",
        "qp7 > CM_REJ reason=STALE_CONNECTION",
    ]
    assert passes(text)
    assert says(text, Case(Connection(), STALE, "spec"))


def test_a_script_says_the_length_of_what_a_rej_suggests() -> None:
    """Drill does not compare the bytes of the additional information."""
    right = "gid = gids[0].to_bytes(16)"
    asked = [Mad(fields={"req.primary_remote_gid": 0})]

    longer = script_of(Patch("cm/answers.py", right, f"{right} + bytes(1)"), asked)

    assert longer.splitlines()[-1].endswith(
        "> CM_REJ reason=INVALID_PRIMARY_GID reject_info_length=16"
    )
    assert passes(longer)
    with pytest.raises(CannotSay, match="drill does not look at the additional information"):
        script_of(Patch("cm/answers.py", right, "gid = bytes(16)"), asked)


def exchanges(seed: int, count: int) -> Iterator[Case]:
    """What attacks do with one connection at a time, each alone and to its end."""
    make = manager_generators(seed, combines=False)
    for number in range(count):
        generator = make(number)
        connection = generator.connection
        device = managed_emulation(connection)
        duel = ExactComparison(
            Binding(PEER_ADDRESS, ADDRESS), device, managed_emulation(connection)
        )
        found: dict[int, list[Step]] = {}
        steps: Iterator[Step] = iter(partial(generator.next, device), None)
        for step in steps:
            duel.step(step)
            if isinstance(step, Mad):
                step = replace(step, held=False)  # its pair may be another connection's
            for each in [step.exchange] if isinstance(step, Mad | Command) else found:
                found.setdefault(each, []).append(step)
        for part in found.values():
            yield Case(connection, tuple(part), "spec")


@pytest.mark.parametrize("seed", [3, pytest.param(4, marks=pytest.mark.slow)])
def test_script_of_any_case_is_the_same_case(seed: int) -> None:
    """Of all that attacks do in many exchanges at a time: what the reference sends and reports."""
    make, most = manager_generators(seed, combines=False), 60 if seed == 3 else 400
    for number in range(1 if seed == 3 else 25):
        generator = make(number)
        device = managed_emulation(generator.connection)
        duel = ExactComparison(
            Binding(PEER_ADDRESS, ADDRESS), device, managed_emulation(generator.connection)
        )
        steps: list[Step] = []
        while len(steps) < most and (step := generator.next(device)) is not None:
            if isinstance(step, Mad) and len(steps) == most - 1:
                step = replace(step, held=False)
            steps.append(step)
            duel.step(step)
        case = Case(generator.connection, tuple(steps), origin=f"seed {seed} case {number}")
        text = case_text(case)

        assert not text.startswith("{")
        assert says(text, case)
        assert parse_case(text.encode(), "case.drill").packets == case.packets


@pytest.mark.parametrize("seed", [3, pytest.param(4, marks=pytest.mark.slow)])
def test_script_of_a_case_of_one_message_is_the_same_case(seed: int) -> None:
    make = manager_generators(seed)
    for number in range(10 if seed == 3 else MANAGER_OPENING):
        generator = make(number)
        device = managed_emulation(generator.connection)
        steps = tuple(iter(partial(generator.next, device), None))
        case = Case(generator.connection, steps, origin=f"seed {seed} case {number}")
        text = case_text(case)

        assert not text.startswith("{")
        assert says(text, case)


def test_case_of_several_connections_is_a_script() -> None:
    """And shows the same as its JSON of earlier versions."""
    connection = Connection()
    one = (Mad(), Command("accept"), Mad(message="RTU"), Packet(int(OpCode.RC_SEND_ONLY), length=4))
    case = Case(connection, (*one, Connect(connection), *one, Wait(S)))
    text = case_text(case)

    assert "\n  reconnect\n" in text
    assert parse_case(to_json(case).encode(), "case.json") == case
    assert says(text, case)
    assert not says(text.replace("CM_RTU", "CM_DREQ"), case)


@each_case(
    ("lines", "reason"),
    [
        ("listen backlog=7\n< CM_REQ", ":2: backlog of listen in a case is 6"),
        ("< CM_REQ\nconnect", ":3: connect of a case has service=service+1"),
        ("< CM_REQ\nreject reason=3", ":3: reason of reject in a case is 28"),
        ("< CM_REQ\nmodify timeout=3", ":3: modify of a case about connections has state=RESET or"),
        ("qp b mtu=512\nb < CM_REQ", ":2: all queue pairs of a case are alike"),
        ("qp b\nb < CM_REQ\n< SEND_ONLY psn", ":4: data of a case belong to the exchange of"),
        ("< CM_REQ vlan.vid=3", ":2: packets of a case have no VLAN tag"),
        ("< CM_REQ fill=3", ":2: packets of a case are padded with zeros"),
        ('< CM_REQ data="0000"', ":2: private data of a case are bytes of the test pattern"),
        ("< CM_REQ\nb < CM_REQ", ":3:1: b is not an event"),
        ("< CM_REQ\npost_recv", ":3: post_recv is not for cases of the fuzzer"),
    ],
)
def test_line_that_no_case_has_is_refused(lines: str, reason: str) -> None:
    with pytest.raises((CaseError, ScriptError)) as caught:
        parse_case(b"qp state=RESET\n" + lines.encode(), "case.drill")

    assert str(caught.value).startswith(f"case.drill{reason}")


def test_numbers_of_a_message_are_cut_to_their_bits() -> None:
    """As those of other packets, so that JSON has them too."""
    line = b"< CM_REQ bth.opcode=0x12345 local_comm_id=-2 private_data=-1"
    case = parse_case(b"qp state=RESET\n" + line, "case.drill")
    (_, step) = case.steps

    assert isinstance(step, Mad)
    assert step.opcode == 0x45
    assert step.fields["req.local_comm_id"] == (1 << 32) - 2
    assert step.fields["req.private_data"] == (1 << 64) - 1
    assert parse_case(to_json(case).encode(), "case.json") == case


def test_queue_pair_of_a_case_is_in_reset() -> None:
    with pytest.raises(CaseError, match=r":1: the queue pair .* is in RESET"):
        parse_case(b"qp mtu=512\n< CM_REQ", "case.drill")


def test_script_by_hand_is_a_case() -> None:
    """Of which the numbers keep their names, and which begins without a listener."""
    case = parse_case(
        b"""
        qp state=RESET
        qp b
        b connect service=service+1
        b > CM_REQ
        b < CM_REP local_qpn=peer_qpn+1 responder_resources=9
        < CM_REQ local_comm_id=peer_cm_id+7 retry_count=3  // it is not answered
        """,
        "by-hand.drill",
    )

    command, connect, rep, req = case.steps
    assert (command, connect) == (Command("unlisten"), Command("connect", 1))
    assert isinstance(rep, Mad)
    assert isinstance(req, Mad)
    assert rep.fields["rep.local_qpn"] == ("own.qpn", 1)
    assert rep.fields["rep.responder_resources"] == 9
    assert req.fields["req.local_comm_id"] == ("own.id", 7)
    assert req.fields["req.retry_count"] == 3
    assert (rep.exchange, req.exchange) == (1, 0)
    assert req.why == "it is not answered"


@pytest.mark.slow
def test_script_of_any_exchange_passes_on_the_emulator() -> None:
    written = 0
    for case in exchanges(seed=6, count=20):
        try:
            text = manager_script(case, Difference(0, Kind.ANSWER, [], []), "A law.")
        except CannotSay:
            continue
        assert passes(text), text
        written += 1
    assert written > 60


@pytest.mark.parametrize(
    ("steps", "reason"),
    [
        ((Mad(length=20_000),), "20000 bytes of private data"),
        ((Mad(), Packet(int(OpCode.RC_SEND_ONLY))), "the connection beside"),
    ],
)
def test_case_that_drill_cannot_express_is_reported(steps: tuple[Step, ...], reason: str) -> None:
    with pytest.raises(CannotSay, match=reason):
        script(*steps)
