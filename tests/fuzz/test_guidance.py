"""What packets have met, what was never reached, and how that guides later cases."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from each_case import each_case
from ibwire.fuzz.campaign import Campaign
from ibwire.fuzz.case import Connection, Packet, Post, Receive, Role
from ibwire.fuzz.coverage import Cell
from ibwire.fuzz.guidance import Guide, Guided
from ibwire.fuzz.targets.emulated_device import ADDRESS, PEER_ADDRESS, Emulation
from ibwire.fuzz.targets.emulator import EmulatorTestbed
from ibwire.fuzz.vocabulary.binding import Binding
from ibwire.fuzz.vocabulary.queue_pair import combined
from ibwire.fuzz.vocabulary.queue_pair.cells import (
    CREDITS,
    DIMENSIONS,
    LENGTH,
    MESSAGE,
    OTHER,
    PSN,
    STATE,
    cell_of,
    summary,
    unreached,
)
from ibwire.fuzz.vocabulary.queue_pair.combined import CombinedGenerator
from ibwire.fuzz.vocabulary.queue_pair.generator import Menu
from ibwire.fuzz.vocabulary.vocabularies import manager_generators, queue_pair_generators
from ibwire.rc.work import WROpcode
from ibwire_layers.opcodes import OpCode

BINDING = Binding(PEER_ADDRESS, ADDRESS)
SEND, ACK = int(OpCode.RC_SEND_ONLY), int(OpCode.RC_ACKNOWLEDGE)


def named(reference: Emulation, packet: Packet) -> dict[int, str]:
    """The cell of a packet in words."""
    cell = cell_of(reference, packet)
    assert cell[0] == packet.opcode
    return {place: DIMENSIONS[place][1][cell[place]] for place in DIMENSIONS}


def receive(reference: Emulation, packet: Packet) -> None:
    reference.prepare(packet)
    base = reference.psn(packet.psn[0])
    reference.receive(BINDING.frame(packet, base, reference.symbols))
    reference.answers()


@each_case(
    ("first", "offset", "expected"),
    [
        (100, 0, "expected"),
        (100, 1, "one ahead"),
        (100, 2, "further ahead"),
        (0xFFFFFF, 1, "ahead across the wrap"),
        (100, -1, "the newest one again"),
        (0, -1, "the newest one again"),
        (100, -2, "an older one"),
        (1, -2, "an older one across the wrap"),
    ],
)
def test_psns_of_requests_are_by_what_is_expected(first: int, offset: int, expected: str) -> None:
    device = Emulation(Connection(rq_psn=first))

    assert named(device, Packet(SEND, ("expected", offset)))[PSN] == expected


@each_case(
    ("first", "offset", "expected"),
    [
        (500, 0, "oldest outstanding"),
        (500, 1, "outstanding"),
        (0xFFFFFF, 1, "outstanding across the wrap"),
        (500, 3, "never sent"),
        (500, -1, "acknowledged"),
        (0, -1, "acknowledged across the wrap"),
    ],
)
def test_psns_of_responses_are_by_what_is_outstanding(
    first: int, offset: int, expected: str
) -> None:
    """768 bytes at a path MTU of 256 are three PSNs."""
    device = Emulation(Connection(sq_psn=first))
    device.post_send(Post(int(WROpcode.RDMA_WRITE), 768))
    device.answers()

    found = named(device, Packet(ACK, ("una", offset)))

    assert (found[PSN], found[STATE]) == (expected, "WAITING")


@each_case(
    ("length", "expected"),
    [
        (0, "none"),
        (3, "1 to 3 bytes"),
        (4, "below the path MTU"),
        (255, "below the path MTU"),
        (256, "path MTU"),
        (257, "above it"),
    ],
)
def test_lengths_are_by_the_path_mtu(length: int, expected: str) -> None:
    assert named(Emulation(Connection()), Packet(SEND, length=length))[LENGTH] == expected


def test_states_of_both_queue_pairs_count() -> None:
    device = Emulation(Connection(pairs=2, receives=0))
    first = Packet(int(OpCode.RC_RDMA_WRITE_FIRST), length=256, fields={"reth.dma_len": 300})
    receive(device, first)
    device.post_recv(1, 1)

    device.focus(0)
    one = named(device, Packet(SEND))
    device.focus(1)
    other = named(device, Packet(SEND, pair=1))

    assert (one[STATE], one[MESSAGE], one[OTHER]) == ("WRITE", "WRITE", "IDLE")
    assert (other[STATE], other[MESSAGE], other[OTHER]) == ("IDLE", "none", "WRITE")
    assert (one[CREDITS], other[CREDITS]) == ("no receive request", "one")
    assert named(Emulation(Connection()), Packet(SEND))[OTHER] == "there is none"


def test_what_was_never_reached_is_named_with_its_reason() -> None:
    device = Emulation(Connection())
    cells: Counter[Cell] = Counter([cell_of(device, Packet(SEND, length=8))])

    alone = list(unreached(cells, Role.RESPONDER, combines=False, packets=1))
    beside = list(unreached(cells, Role.RESPONDER, combines=True, packets=1))
    few = list(unreached(cells, Role.RESPONDER, combines=True, packets=1, ops=("psn", "dup")))

    plain = "on a link, and from a capture, a case has one RC queue pair"
    assert summary(cells) == (1, 6)
    assert "ACKNOWLEDGE: the role responder sends requests" in alone
    assert "ACKNOWLEDGE: not in 1 packet" in beside
    assert "ACKNOWLEDGE: not in 1 packet of --ops psn,dup" in few
    assert f"UC_SEND_ONLY: {plain}" in alone
    assert f"another queue pair: IDLE: SEND_ONLY: {plain}" in alone
    assert "another queue pair: IDLE: SEND_ONLY: not in 1 packet" in beside
    assert "state: RNR WAIT: SEND_ONLY: not in 1 packet" in alone
    assert not [line for line in alone if line.startswith(("PSN: oldest", "state: IDLE"))]


# Guidance.


@pytest.mark.slow
def test_guided_steps_meet_more_than_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the same cases by number, with as many packets, on both sides of a queue pair."""

    def met(role: Role) -> int:
        campaign = Campaign(EmulatorTestbed(Emulation), queue_pair_generators(1, role))
        assert list(campaign.run(1500)) == []
        return len(campaign.report.coverage.cells)

    guided = [met(role) for role in (Role.RESPONDER, Role.REQUESTER)]
    monkeypatch.setattr(combined, "ALTERNATIVES", 0)
    unguided = [met(role) for role in (Role.RESPONDER, Role.REQUESTER)]

    assert sum(guided) > 1.05 * sum(unguided)


def test_steps_that_meet_something_new_are_kept_for_their_role() -> None:
    guide = Guide()
    steps = [Packet(SEND)]

    guide.keep(Role.RESPONDER, steps)

    assert guide.kept(Role.RESPONDER, Random(1)) == steps
    assert guide.kept(Role.REQUESTER, Random(1)) == ()
    guide.forget()
    assert guide.kept(Role.RESPONDER, Random(1)) == ()


def test_new_devices_begin_with_a_new_guide() -> None:
    """So that a run is the same with any number of processes."""
    make = queue_pair_generators(1, Role.RESPONDER)
    assert isinstance(make, Guided)
    testbed = EmulatorTestbed(Emulation)
    campaign = Campaign(testbed, make)
    list(campaign.run(300))
    before = set(make.guide.seen)
    testbed.reset()

    campaign.one_case(10_000)

    assert before - make.guide.seen
    assert not isinstance(manager_generators(1), Guided)


def test_case_is_the_same_with_the_same_guide() -> None:
    def steps(guide: Guide | None) -> list[object]:
        made = CombinedGenerator(Random(5), Role.RESPONDER, Menu(combined=True), guide)
        device = Emulation(made.connection)
        found: list[object] = [made.connection]
        for _ in range(20):
            step = made.next(device)
            found.append(step)
            if isinstance(step, Packet):
                receive(device, step)
            elif isinstance(step, Receive):
                device.post_recv(step.count, step.pair)
        return found

    assert steps(Guide()) == steps(Guide())
