"""Cases for connection managers as drill scripts: what they say, and that they hold."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import pytest

import ibwire.drill as drill
from examples import sampled
from ibwire.base.units import S
from ibwire.fuzz.artefacts import checked_script
from ibwire.fuzz.campaign import Campaign
from ibwire.fuzz.case import BAD, Case, Command, Connection, Mad, Role, Step, Wait
from ibwire.fuzz.judge.comparison import Difference, ExactComparison, Kind
from ibwire.fuzz.targets.emulated_device import ADDRESS, PEER_ADDRESS
from ibwire.fuzz.targets.emulated_manager import managed_emulation
from ibwire.fuzz.targets.emulator import target
from ibwire.fuzz.vocabulary.binding import Binding
from ibwire.fuzz.vocabulary.cm.script import manager_script
from ibwire.fuzz.vocabulary.queue_pair.script import CannotSay
from ibwire.fuzz.vocabulary.vocabularies import manager_generators

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
        '< CM_REQ max_cm_retries=3 primary_flow_label=0 data="01a8"',
        "< CM_RTU remote_comm_id=cm_id+1 icrc=bad  // not its ID",
        "< CM_DREQ remote_qpn=qpn-1 cut=60",
        "< CM_REJ reason=10",
    ]


def test_ids_count_from_those_of_the_script_after_any_message() -> None:
    text = script(Mad(exchange=3, fields={"req.local_comm_id": 0}), Mad(exchange=3))

    assert "< CM_REQ local_comm_id=0 " in text
    assert "< CM_REQ local_comm_id=0xb0b0001 " in text  # drill's own, which has no name any more


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


def exchanges(seed: int, count: int) -> Iterator[Case]:
    """What attacks do with one connection at a time, each alone and to its end."""
    make = manager_generators(seed)
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
        ((Mad(), Mad(exchange=1)), "several connections at a time"),
        ((Mad(message="SIDR_REQ"),), "no SIDR_REQ"),
        ((Mad(), Mad(message="RTU")), "an ID that the device has not sent yet"),
        ((Mad(length=129),), "129 bytes of private data"),
        ((Command("resolve"),), "does not resolve"),
    ],
)
def test_case_that_drill_cannot_express_is_reported(steps: tuple[Step, ...], reason: str) -> None:
    with pytest.raises(CannotSay, match=reason):
        script(*steps)
