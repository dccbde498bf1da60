"""Cases of XRC: what both ends do, what of it is compared, saved, generated and named.

IBA annex A14; docs/reference/transport.md#xrc.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest

from drill.test_queue_pairs import SCRIPTS
from each_case import each_case
from fuzz.test_combined import BINDING, cases, packet
from fuzz.test_shared import named, shows_rule
from ibwire.fuzz.case import (
    Case,
    CaseError,
    Connect,
    Connection,
    Packet,
    Post,
    Receive,
    Role,
    Step,
    Value,
    from_json,
    to_json,
)
from ibwire.fuzz.judge.comparison import Difference, Kind
from ibwire.fuzz.judge.findings import signature
from ibwire.fuzz.minimise import minimise
from ibwire.fuzz.saved import case_text, says
from ibwire.fuzz.targets.emulated_device import Emulation
from ibwire.fuzz.targets.emulator import target
from ibwire.fuzz.targets.link.verbs_link import VerbsLink
from ibwire.fuzz.vocabulary.queue_pair.combined import as_xrc
from ibwire.fuzz.vocabulary.reading import read_script
from ibwire.rc.work import WROpcode
from ibwire_layers import headers as h
from ibwire_layers.opcodes import INFO, OpCode, Service
from ibwire_layers.packet import Packet as WholePacket
from ibwire_layers.syndrome import AckKind
from mutants.engine import copied
from mutants.table import XRC, read_mutants

MUTANTS = read_mutants(XRC)
O = OpCode  # noqa: E741
TARGET = Connection(service="XRC_RECV")
EMPTY = Connection(service="XRC_RECV", receives=0)
INITIATOR = Connection(service="XRC_SEND", receives=0)
WRITE = int(WROpcode.RDMA_WRITE)
UNKNOWN = {"xrceth.xrc_srq": ("srqn", 1)}


def carried_out(connection: Connection, *steps: Step) -> tuple[list[WholePacket], Emulation]:
    """What a device sends in a case, and the device."""
    device = Emulation(connection)
    sent: list[WholePacket] = []
    for step in steps:
        device.prepare(step)
        if isinstance(step, Receive):
            device.post_recv(step.count, step.pair)
        elif isinstance(step, Post):
            device.post_send(step)
        else:
            assert isinstance(step, Packet)
            frame = BINDING.frame(step, device.psn(step.psn[0]), device.symbols)
            device.receive(frame)
        sent += map(WholePacket.parse, device.answers())
    return sent, device


def opcodes(sent: Sequence[WholePacket]) -> list[int]:
    return [each.bth.opcode for each in sent]


def syndromes(sent: Sequence[WholePacket]) -> list[int]:
    found = [each.extension(h.AETH) for each in sent]
    return [each.syndrome for each in found if each is not None]


# Both ends.


def test_a_request_that_one_target_posts_is_taken_by_another() -> None:
    """An empty shared queue draws an RNR NAK; the acknowledgements are those of XRC."""
    connection = Connection(service="XRC_RECV", receives=0, pairs=2)
    sent, device = carried_out(
        connection, packet(O.XRC_SEND_ONLY), Receive(1, pair=1), packet(O.XRC_SEND_ONLY, length=8)
    )

    assert opcodes(sent) == [O.XRC_ACKNOWLEDGE] * 2
    assert [each >> 5 for each in syndromes(sent)] == [AckKind.RNR_NAK, AckKind.ACK]
    assert [each[:3] for each in device.completions()] == [(1, 0, 0)]


@pytest.mark.parametrize("number", [("srqn", 1), ("srqn", 1 << 23), 0, 0xFFFFFF])
def test_a_number_of_no_shared_receive_queue_is_an_invalid_request(number: Value) -> None:
    """NAK 1 (IBA 9.7.5.1.2, table 46): of a READ too, which takes no receive request."""
    fields = {"xrceth.xrc_srq": number}
    for opcode in (O.XRC_SEND_ONLY, O.XRC_RDMA_READ_REQUEST, O.XRC_RDMA_WRITE_ONLY):
        sent, device = carried_out(TARGET, packet(opcode, fields=fields))

        assert syndromes(sent) == [0x61]
        assert not device.is_alive


@each_case("service", ["RC", "XRC_RECV", "XRC_SEND"])
def test_opcodes_of_the_other_service_are_dropped(service: str) -> None:
    """IBA 9.6.1.4; an initiator drops all requests."""
    other = O.XRC_SEND_ONLY if service == "RC" else O.RC_SEND_ONLY
    steps = [packet(other)] + [packet(O.XRC_SEND_ONLY)] * (service == "XRC_SEND")

    assert carried_out(Connection(service=service), *steps)[0] == []


def test_an_initiator_names_the_queue_in_each_packet() -> None:
    """The number is that which drill scripts have where they give none."""
    sent, _ = carried_out(INITIATOR, Post(WRITE, 600))

    first, middle = O.XRC_RDMA_WRITE_FIRST, O.XRC_RDMA_WRITE_MIDDLE
    assert opcodes(sent) == [first, middle, O.XRC_RDMA_WRITE_LAST]
    assert [each.extension(h.XRCETH) for each in sent] == [h.XRCETH(xrc_srq=0x55)] * 3


def test_the_next_connection_begins_with_a_new_queue() -> None:
    device = Emulation(Connection(service="XRC_RECV", receives=8, pairs=2))
    before = device.symbols["srqn"]
    for connection in (INITIATOR, Connection(), EMPTY):
        device.reconnect(connection)

    step = packet(O.XRC_SEND_ONLY)
    device.prepare(step)
    device.receive(BINDING.frame(step, device.psn("expected"), device.symbols))
    assert syndromes(list(map(WholePacket.parse, device.answers())))[0] >> 5 == AckKind.RNR_NAK
    assert device.symbols["srqn"] != before
    assert len(device.device.srqs) == 1


# Saved and read.


def test_a_case_of_xrc_is_saved_and_read_again() -> None:
    """As JSON, and as a drill script that the emulator passes."""
    read = packet(O.XRC_RDMA_READ_REQUEST, fields={"reth.dma_len": 300})
    steps = (
        packet(O.XRC_SEND_ONLY, length=8, pair=1),
        read,
        packet(O.XRC_RDMA_WRITE_ONLY_WITH_IMMEDIATE, length=8),
        packet(O.RC_SEND_ONLY),
        Receive(1, 1),
        packet(O.XRC_SEND_ONLY, fields=UNKNOWN, pair=1),
    )
    connection = Connection(service="XRC_RECV", pairs=2, receives=1, srq_limit=2)
    case = Case(connection, steps)

    text = case_text(case)

    assert from_json(to_json(case)) == case
    assert says(text, case)
    assert "type=XRC_RECV" in text
    assert "  srq_limit limit=2\n" in text
    assert "xrceth.xrc_srq=srqn+1" in text
    assert target("emu:spec").fulfils(text)


def test_a_case_of_an_initiator_is_saved_and_read_again() -> None:
    acknowledge = Packet(int(O.XRC_ACKNOWLEDGE), ("una", 0), fields={"aeth.msn": ("ssn", 0)})
    case = Case(INITIATOR, (Post(WRITE, 8), acknowledge, packet(O.XRC_SEND_ONLY)))

    text = case_text(case)

    assert says(text, case)
    assert "type=XRC_SEND" in text
    assert target("emu:spec").fulfils(text)


def test_a_drill_script_of_xrc_is_a_case() -> None:
    script = SCRIPTS["an XRC request names the shared receive queue"]
    case = read_script(script.encode(), "s.drill")

    usual = Connection(service="XRC_RECV", timeout=18, receives=1, room=256)
    assert case == Case(usual, (packet(O.XRC_SEND_ONLY, length=8),))


def test_connections_one_after_the_other_with_xrc_are_no_script() -> None:
    """Scripts reset the queue pair and keep its queues."""
    case = Case(TARGET, (packet(O.XRC_SEND_ONLY),))

    assert case_text(case).startswith("//")
    assert case_text(case.with_steps([Connect(Connection()), *case.steps])).startswith("{")


@pytest.mark.parametrize("connection", [TARGET, INITIATOR])
def test_a_device_on_a_link_is_given_no_case_of_xrc(connection: Connection) -> None:
    link = VerbsLink.__new__(VerbsLink)  # the connection is looked at before any device

    with pytest.raises(CaseError, match="a case on a link has one RC queue pair with a receive"):
        link.connect(connection)


# Generated.


def test_requests_of_xrc_are_those_of_rc_with_a_number() -> None:
    """A few name no queue, and a few are of RC."""
    rng = Random(1)
    made = [as_xrc(rng, packet(O.RC_RDMA_READ_REQUEST)) for _ in range(2000)]

    wrong = [each for each in made if "xrceth.xrc_srq" in each.fields]
    plain = [each for each in made if each.opcode == O.RC_RDMA_READ_REQUEST]
    assert {each.opcode for each in made} == {O.RC_RDMA_READ_REQUEST, O.XRC_RDMA_READ_REQUEST}
    assert 60 < len(wrong) < 200
    assert 20 < len(plain) < 120
    assert all(each.why for each in (*wrong, *plain))


def test_only_what_begins_a_message_has_another_number() -> None:
    """What follows is for the queue that the first packet names."""
    rng = Random(1)
    made = [as_xrc(rng, packet(O.RC_SEND_MIDDLE, length=256)) for _ in range(500)]

    assert not [each for each in made if "xrceth.xrc_srq" in each.fields]


@pytest.mark.slow
def test_some_cases_are_of_xrc_and_have_all_its_requests() -> None:
    made = [
        (connection, steps)
        for role in (Role.RESPONDER, Role.REQUESTER)
        for connection, steps in cases(role, 1500)
    ]
    targets = [steps for connection, steps in made if connection.service == "XRC_RECV"]
    initiators = [steps for connection, steps in made if connection.service == "XRC_SEND"]
    received = {each.opcode for steps in targets for each in steps if isinstance(each, Packet)}
    answers = {each.opcode for steps in initiators for each in steps if isinstance(each, Packet)}

    assert 60 < len(targets) < 300
    assert 30 < len(initiators) < 200
    requests = {int(each) for each, info in INFO.items() if info.service is Service.XRC}
    assert received >= {each for each in requests if not INFO[each].is_response}
    assert answers >= {each for each in requests if INFO[each].is_response}
    assert not any(isinstance(each, Receive) for steps in initiators for each in steps)


# Found and named.

CASES: dict[str, tuple[Connection, Sequence[Step]]] = {
    "xrc-number-ignored": (TARGET, [packet(O.XRC_SEND_ONLY, fields=UNKNOWN)]),
    "xrc-unknown-number-is-the-last-one": (
        TARGET,
        [packet(O.XRC_SEND_ONLY), packet(O.XRC_RDMA_WRITE_ONLY, length=8, fields=UNKNOWN)],
    ),
    "xrc-empty-queue-is-silent": (EMPTY, [packet(O.XRC_SEND_ONLY)]),
    "xrc-opcode-executed-by-rc": (Connection(), [packet(O.XRC_SEND_LAST, length=8)]),
    "xrc-read-answered-as-rc": (
        TARGET,
        [packet(O.XRC_RDMA_READ_REQUEST, fields={"reth.dma_len": 8})],
    ),
    "xrc-read-through-the-queue-pair": (
        TARGET,
        [packet(O.XRC_RDMA_READ_REQUEST, fields={"reth.dma_len": 8})],
    ),
    "xrc-number-in-the-first-packet-alone": (INITIATOR, [Post(WRITE, 600)]),
    "xrc-initiator-refuses-requests": (INITIATOR, [packet(O.XRC_SEND_ONLY)]),
}


@each_case("name", MUTANTS)
def test_a_fault_in_xrc_has_its_rule(name: str) -> None:
    shows_rule(MUTANTS[name], *CASES[name])


def test_names_say_what_is_of_xrc() -> None:
    found = {
        name: named(copied(MUTANTS[name])[Emulation.__module__].Emulation, Case(*_made(name))).text
        for name in ("xrc-number-ignored", "xrc-read-answered-as-rc")
    }

    number, read = found.values()
    assert number == (
        "XRC_SEND_ONLY (an XRCETH with an unknown number): ACK instead of NAK INVALID_REQUEST"
    )
    assert read == "XRC_READ_REQUEST: READ_RESPONSE_ONLY instead of XRC_READ_RESPONSE_ONLY"


def _made(name: str) -> tuple[Connection, tuple[Step, ...]]:
    connection, steps = CASES[name]
    return connection, tuple(steps)


def test_what_shows_on_rc_as_well_is_shown_there() -> None:
    """The shortest case is the plainest: that with XRC is not needed."""
    case = Case(TARGET, (packet(O.XRC_RDMA_WRITE_ONLY, length=8, fields=UNKNOWN),))

    plain = minimise(case, lambda each: bool(each.steps))
    needed = minimise(case, lambda each: bool(each.steps) and each.connection.is_xrc)

    assert plain == Case(Connection(), (packet(O.RC_RDMA_WRITE_ONLY),))
    assert needed == Case(TARGET, (packet(O.XRC_RDMA_WRITE_ONLY),))


def test_a_difference_is_the_same_over_rc_unless_the_service_differs() -> None:
    """So that the case of RC is taken for it."""
    (one,), (other,) = frames(TARGET, O.XRC_RDMA_READ_REQUEST), frames(Connection(), READ)

    assert signature(Difference(0, Kind.ANSWER, [], [one]))[1:] == ("silence", ONLY)
    assert signature(Difference(0, Kind.ANSWER, [], [other]))[1:] == ("silence", ONLY)
    assert signature(Difference(0, Kind.ANSWER, [one], [other]))[1:] == (f"XRC_{ONLY}", ONLY)


READ, ONLY = O.RC_RDMA_READ_REQUEST, "READ_RESPONSE_ONLY"


def frames(connection: Connection, opcode: int) -> list[bytes]:
    """What a device answers to a request."""
    device = Emulation(connection)
    step = packet(opcode)
    device.prepare(step)
    device.receive(BINDING.frame(step, device.psn("expected"), device.symbols))
    return device.answers()
