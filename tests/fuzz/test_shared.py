"""Cases whose queue pairs share a receive queue: limit, empty queue, order, errors beside.

IBA 10.2.9; docs/reference/transport.md#srq, #srq-limit, #flush.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from each_case import each_case
from fuzz.test_combined import BINDING, packet
from ibwire.fuzz.campaign import Campaign
from ibwire.fuzz.case import (
    Case,
    CaseError,
    Connection,
    Packet,
    Receive,
    Role,
    Step,
    from_json,
    to_json,
)
from ibwire.fuzz.judge.comparison import ExactComparison
from ibwire.fuzz.judge.naming import Name
from ibwire.fuzz.saved import case_text, says
from ibwire.fuzz.targets.emulated_device import REGIONS, Emulation, Numbers
from ibwire.fuzz.targets.emulator import EmulatorTestbed, target
from ibwire.fuzz.vocabulary.queue_pair.script import script
from ibwire.fuzz.vocabulary.vocabularies import vocabulary_for
from ibwire.rc.attributes import EventType
from ibwire.rc.profile import SPEC
from ibwire_layers.opcodes import OpCode
from ibwire_layers.packet import Packet as WholePacket
from mutants.engine import copied
from mutants.score import names_rule
from mutants.table import SHARED, Mutant, read_mutants

MUTANTS = read_mutants(SHARED)
SEND, WRITE = OpCode.RC_SEND_ONLY, OpCode.RC_RDMA_WRITE_ONLY
WRITE_IMM = OpCode.RC_RDMA_WRITE_ONLY_WITH_IMMEDIATE
TWO = Connection(pairs=2, receives=1, srq=1)
EMPTY = Connection(receives=0, srq=1)
LIMIT = EventType.SRQ_LIMIT_REACHED


def carried_out(connection: Connection, *steps: Step) -> tuple[list[int], list[int], Emulation]:
    """Syndromes of the answers and the events of a case, and the device."""
    device = Emulation(connection)
    syndromes: list[int] = []
    events: list[int] = []
    for step in steps:
        device.prepare(step)
        if isinstance(step, Receive):
            device.post_recv(step.count, step.pair)
        else:
            assert isinstance(step, Packet)
            frame = BINDING.frame(step, device.psn("expected"), device.symbols)
            device.receive(frame)
        for each in device.answers():
            (aeth,) = WholePacket.parse(each).extensions
            syndromes.append(aeth.syndrome)  # type: ignore[attr-defined]
        device.completions()
        events += device.events()
    return syndromes, events, device


def test_a_request_that_one_queue_pair_posts_is_taken_by_another() -> None:
    """An empty shared queue draws an RNR NAK (0x20 to 0x3F); no credits are granted (0x1F)."""
    syndromes, _, _ = carried_out(
        EMPTY, packet(SEND), Receive(1, pair=1), packet(SEND), packet(SEND)
    )

    assert [each >> 5 for each in syndromes] == [1, 0, 1]
    assert syndromes[1] == 0x1F


def test_the_limit_raises_one_event_when_fewer_are_left() -> None:
    """Of three requests two are left, then one, which is fewer than two."""
    connection = Connection(receives=3, srq=1, srq_limit=2)
    _, before, _ = carried_out(connection, packet(SEND))
    _, then, _ = carried_out(connection, packet(SEND), packet(SEND), packet(SEND))

    assert before == []
    assert then == [LIMIT]


def test_a_queue_pair_in_error_leaves_the_requests_to_the_others() -> None:
    wrong = packet(WRITE, length=8, fields={"reth.rkey": 1})
    syndromes, events, device = carried_out(TWO, wrong, packet(SEND, pair=1), packet(SEND, pair=1))

    assert events == [EventType.QP_ACCESS_ERR, EventType.QP_LAST_WQE_REACHED]
    assert [each >> 5 for each in syndromes] == [3, 0, 0]
    assert device.living == [1]


def test_the_next_connection_begins_with_new_queues() -> None:
    """Nothing is left of what was shared; the queue pairs are those of before, or new ones."""
    device = Emulation(Connection(receives=8, srq=1, pairs=3))
    for connection in (Connection(receives=0), EMPTY, Connection(receives=0, pairs=2)):
        device.reconnect(connection)
        step = packet(SEND)
        device.prepare(step)
        device.receive(BINDING.frame(step, device.psn("expected"), device.symbols))
        (answer,) = device.answers()
        assert WholePacket.parse(answer).extensions[0].syndrome >> 5 == 1  # type: ignore[attr-defined]
    assert len(device.device.qps) == 2
    assert not device.device.srqs


def test_a_device_that_is_elsewhere_has_none() -> None:
    keys = {name: (number << 16, number) for number, name in enumerate(REGIONS, 1)}
    macs = bytes(6), bytes(6)

    with pytest.raises(CaseError, match="no shared receive queue"):
        Emulation(EMPTY, numbers=Numbers(3, 4, keys, None, "10.0.0.2", "10.0.0.1", macs))


def test_a_case_with_a_shared_receive_queue_is_saved_and_read_again() -> None:
    """As JSON, and as a drill script that the emulator passes: each completion with its taker."""
    steps = (
        packet(SEND, length=8, pair=1),
        packet(SEND, length=8),
        packet(SEND, length=8),
        Receive(1),
        packet(SEND, length=8, pair=1),
    )
    case = Case(Connection(pairs=2, receives=1, srq=1, srq_limit=2), steps)

    text = case_text(case)

    assert from_json(to_json(case)) == case
    assert says(text, case)
    assert "srq=1" in text
    assert "  srq_limit limit=2\n" in text
    assert target("emu:spec").fulfils(text)


def test_a_script_says_which_queue_pair_has_taken_a_request() -> None:
    """The requests 0 and 1 of both; the second queue pair takes them, and the first finds none."""
    device = copied(MUTANTS["srq-empty-is-silent"])[Emulation.__module__].Emulation
    case = Case(TWO, (packet(SEND, pair=1), packet(SEND, pair=1), packet(SEND)))
    difference = EmulatorTestbed(device).replay(case, SPEC)
    assert difference is not None

    text = script(case, difference, "Any.")

    assert difference.step == 2
    assert text.count("  qp2 poll recv wr_id=") == 2
    assert target("emu:spec").fulfils(text)


CASES: dict[str, tuple[Connection, Sequence[Step]]] = {
    "srq-limit-never-reported": (Connection(receives=1, srq=1, srq_limit=1), [packet(SEND)]),
    "srq-limit-one-early": (Connection(receives=2, srq=1, srq_limit=1), [packet(SEND)]),
    "srq-limit-stays-armed": (
        Connection(receives=2, srq=1, srq_limit=2),
        [packet(SEND), packet(SEND)],
    ),
    "srq-newest-first": (Connection(receives=2, srq=1), [packet(SEND, length=8)]),
    "srq-empty-is-silent": (EMPTY, [packet(SEND)]),
    "srq-empty-takes-a-write-with-immediate": (EMPTY, [packet(WRITE_IMM)]),
    "srq-emptied-by-an-error": (
        TWO,
        [packet(WRITE, length=8, fields={"reth.rkey": 1}), packet(SEND, pair=1)],
    ),
    "srq-credits-reported": (Connection(srq=1), [packet(WRITE)]),
    "srq-last-wqe-never-reported": (
        Connection(srq=1),
        [packet(WRITE, length=8, fields={"reth.rkey": 1})],
    ),
}


@each_case("name", MUTANTS)
def test_a_fault_in_shared_receive_queues_has_its_rule(name: str) -> None:
    shows_rule(MUTANTS[name], *CASES[name])


def shows_rule(mutant: Mutant, connection: Connection, steps: Sequence[Step]) -> None:
    """Assert that a case names the rule of a fault, and shows nothing on a right device."""
    device = copied(mutant)[Emulation.__module__].Emulation
    case = Case(connection, tuple(steps))
    right = ExactComparison(BINDING, Emulation(connection), Emulation(connection))

    found = named(device, case)

    assert right.carry_out(case) is None
    assert mutant.fuzz is not None
    assert found.rule == mutant.fuzz.rule


def named(device: type[Emulation], case: Case) -> Name:
    testbed = EmulatorTestbed(device)
    state = Campaign(testbed, vocabulary_for(Role.BOTH).generators(1, Role.BOTH, ())).state
    difference = testbed.replay(case, SPEC)
    assert difference is not None
    return testbed.name_of(state, case, difference, "")


def test_all_that_comes_of_the_limit_has_one_cause() -> None:
    device = copied(MUTANTS["srq-limit-never-reported"])[Emulation.__module__].Emulation
    connection = Connection(receives=1, srq=1, srq_limit=1)
    of_uc = Connection(receives=1, srq=1, srq_limit=1, service="UC")
    found = [
        named(device, Case(connection, (packet(SEND),))),
        named(device, Case(connection, (packet(WRITE_IMM),))),
        named(device, Case(of_uc, (packet(OpCode.UC_SEND_ONLY),))),
    ]

    assert len({each.group for each in found}) == 1


def test_credits_of_a_shared_queue_have_their_own_rule_at_duplicates_too() -> None:
    device = copied(MUTANTS["srq-credits-reported"])[Emulation.__module__].Emulation

    name = named(device, Case(Connection(srq=1), (packet(WRITE_IMM, -1),)))

    assert name.rule.endswith("#credits-granted")


@pytest.mark.slow
@each_case("name", MUTANTS)
def test_a_fault_in_shared_receive_queues_is_found(name: str) -> None:
    device = copied(MUTANTS[name])[Emulation.__module__].Emulation
    run = Campaign(
        EmulatorTestbed(device), vocabulary_for(Role.RESPONDER).generators(3, Role.RESPONDER, ())
    )

    finding = next(run.run(6000), None)

    assert finding is not None
    assert names_rule(finding.rule, MUTANTS[name].fuzz.rule)


@pytest.mark.parametrize(
    "shared", [Connection(service="XRC_RECV"), Connection(srq=1), Connection(srq=1, pairs=2)]
)
def test_the_window_is_that_of_a_new_queue_pair_and_of_the_old_one_after_it(
    shared: Connection,
) -> None:
    """Queue pairs with a shared receive queue are new each time, and gone afterwards: a window
    that stayed with one of them could not be used any more."""
    emulation = Emulation(Connection())
    keys = [emulation.symbols["mw.rkey"]]

    for connection in (shared, shared, Connection()):
        emulation.reconnect(connection)
        keys.append(emulation.symbols["mw.rkey"])
        assert emulation.owns_window

    emulation.reconnect(Connection())
    assert emulation.owns_window
    assert emulation.symbols["mw.rkey"] == keys[-1]
    assert len(set(keys)) == 4


def test_a_queue_pair_of_another_type_leaves_the_window_where_it_is() -> None:
    emulation = Emulation(Connection())

    emulation.reconnect(Connection(service="UC"))

    assert not emulation.owns_window


def test_the_window_that_one_of_another_type_has_bound_comes_back() -> None:
    emulation = Emulation(Connection(service="UC"))
    assert emulation.owns_window

    emulation.reconnect(Connection())

    assert emulation.owns_window
