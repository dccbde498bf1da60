"""Parts of a comparison on a link, without a link: adopted values, and what counts as equal."""

from __future__ import annotations

import pytest

from ibwire.fuzz.case import CaseError, Connection, Packet, Receive, RunsAway
from ibwire.fuzz.judge.comparison import Difference, Kind
from ibwire.fuzz.judge.exclusions import Exclusions, parse_exclusion
from ibwire.fuzz.judge.findings import bucket_of, distance, wrong_fields
from ibwire.fuzz.targets.emulated_device import ADDRESS, PEER_ADDRESS, Emulation
from ibwire.fuzz.targets.link.queue_pair_testbed import PossibleSteps
from ibwire.fuzz.vocabulary.binding import Binding
from ibwire.fuzz.vocabulary.queue_pair.comparison import (
    NotRecorded,
    Playback,
    TolerantComparison,
    coalesced,
)
from ibwire.rc.device import gid_of
from ibwire.rc.path import Path, ethernet_route
from ibwire_layers.opcodes import OpCode

WRITE = int(OpCode.RC_RDMA_WRITE_ONLY)
READ = int(OpCode.RC_RDMA_READ_REQUEST)
QP_REQ_ERR = 2


def answers(*packets: Packet, together: bool = False) -> list[bytes]:
    """What an emulated device answers to some packets."""
    device, binding = Emulation(Connection()), Binding(PEER_ADDRESS, ADDRESS)
    found: list[bytes] = []
    for packet in packets:
        device.receive(binding.frame(packet, device.psn("expected"), device.symbols))
        found += device.answers()
    return found


def duel(profile: str, target: Playback | Emulation) -> TolerantComparison:
    route = ethernet_route(
        source=gid_of(ADDRESS),
        destination=gid_of(PEER_ADDRESS),
        source_mac=bytes(6),
        destination_mac=bytes(6),
        source_port=0xC000,
    )
    reference = Emulation(Connection(), profile)
    return TolerantComparison(
        Binding(PEER_ADDRESS, ADDRESS), Path(route), reference, target, exclusions=Exclusions()
    )


# Answers.


def test_an_ack_before_a_later_answer_is_superfluous() -> None:
    first, second, data = answers(
        Packet(WRITE, length=8), Packet(WRITE, length=8), Packet(READ, fields={"reth.dma_len": 8})
    )

    assert coalesced([first, second]) == [second]
    assert coalesced([first, second, data]) == [data]
    assert coalesced([data, first]) == [data, first]


def test_neither_naks_nor_data_are_superfluous() -> None:
    data, nak = answers(
        Packet(READ, fields={"reth.dma_len": 8}), Packet(WRITE, length=8, fields={"reth.rkey": 0})
    )

    assert coalesced([data, nak]) == [data, nak]


# What was done is played back.


def test_another_reference_is_held_against_what_a_device_did() -> None:
    """As in a careful duel: profile rxe discards a reserved opcode, the standard NAKs it."""
    step = Packet(WRITE, fields={"bth.opcode": 0x1F, "bth.mig_req": 1})
    live = duel("rxe", Emulation(Connection(), "rxe"))
    live.step(step)

    same = duel("rxe", Playback(live.outcomes)).step(step)
    other = duel("spec", Playback(live.outcomes)).step(step)

    assert live.outcomes[0].answers == []
    assert same is None
    assert other is not None
    assert (other.kind, len(other.expected), other.got) == ("answer", 1, [])


def test_what_was_never_done_is_not_made_up() -> None:
    live = duel("spec", Emulation(Connection()))
    live.step(Packet(WRITE, length=8))

    with pytest.raises(NotRecorded):
        duel("spec", Playback(live.outcomes)).step(Packet(WRITE, length=4))


class Odd(Emulation):
    """A device that sends other than RoCE packets: UDP with this many bytes after it."""

    size = 0

    def answers(self) -> list[bytes]:
        super().answers()
        (answer,) = answers(Packet(WRITE, length=8))
        return [answer[: 42 + self.size]]


@pytest.mark.parametrize("size", [0, 4, 8])
def test_other_than_roce_packets_are_different_responses(size: int) -> None:
    device = Odd(Connection())
    device.size = size
    step = Packet(WRITE, length=8)

    difference = duel("spec", device).step(step)

    assert difference is not None
    bucket = "WRITE_ONLY in IDLE: a frame that is no packet instead of ACK"
    assert bucket_of(difference, step, "IDLE") == bucket
    assert wrong_fields(difference) == [[]]
    assert distance(difference)[1] < 0


class Endless(Emulation):
    """Never comes to rest when it is sent something, or is listened to."""

    def __init__(self, *, hears: bool) -> None:
        super().__init__(Connection())
        self._hears = hears

    def receive(self, frame: bytes) -> None:
        if self._hears:
            raise RunsAway("more than 2048 packets without a pause")
        super().receive(frame)

    def answers(self) -> list[bytes]:
        raise RunsAway("more than 2048 packets without a pause")


def test_a_device_that_runs_away_is_endless() -> None:
    difference = duel("spec", Endless(hears=False)).step(Packet(WRITE, length=8))

    assert difference is not None
    assert difference.kind == Kind.ENDLESS


@pytest.mark.parametrize("hears", [True, False])
def test_reference_that_does_not_return_is_not_a_difference(hears: bool) -> None:
    pair = duel("spec", Emulation(Connection()))
    pair.reference = Endless(hears=hears)

    with pytest.raises(RunsAway):
        pair.step(Packet(WRITE, length=8))


# What is taken over.


def test_an_event_that_was_found_missing_is_not_compared_any_more() -> None:
    excluded = Exclusions()
    excluded.add(Difference(0, Kind.EVENT, [QP_REQ_ERR], []), None)

    assert excluded.events == {QP_REQ_ERR}
    assert Exclusions(excluded.items).events == {QP_REQ_ERR}


def test_flags_of_a_completion_are_taken_over() -> None:
    excluded = Exclusions()
    excluded.add(
        Difference(0, Kind.COMPLETION, [(1, 0, 0, 128, 0, 7, 9)], [(1, 0, 0, 128, 0, 7, 5)]), None
    )

    assert Exclusions(excluded.items).flags == {9: 5}


def test_packets_that_ended_a_device_are_not_sent_again_first_or_last() -> None:
    """But the same operation without that fault is."""
    deadly = Packet(WRITE, length=4, fields={"reth.dma_len": 0}, why="DMA length")
    excluded = Exclusions()
    excluded.add(Difference(0, Kind.CRASH, [], ["gone"]), deadly)
    known = Exclusions(excluded.items)

    assert known.has(deadly)
    assert known.has(Packet(int(OpCode.RC_RDMA_WRITE_FIRST), why="DMA length"))
    assert not known.has(Packet(WRITE, length=4))


def test_opcodes_that_there_are_not_are_left_out_together() -> None:
    """A device that crashes at one is not crashed again by each of the others."""
    excluded = Exclusions()
    one = Packet(WRITE, fields={"bth.opcode": 25}, why="opcode")
    excluded.add(Difference(0, Kind.CRASH, [], ["gone"]), one)
    known = Exclusions(excluded.items)

    assert known.has(Packet(READ, fields={"bth.opcode": 31}, why="opcode"))
    assert not known.has(Packet(READ, fields={"bth.opcode": WRITE}, why="opcode"))
    assert not known.has(Packet(WRITE, why="opcode"))


def test_a_fault_is_left_out_in_all_operations() -> None:
    excluded = Exclusions()
    excluded.add_fault("size of a packet")
    known = Exclusions([parse_exclusion(str(item)) for item in excluded.items])

    assert known.has(Packet(WRITE, why="size of a packet"))
    assert known.has(Packet(READ, why="size of a packet"))
    assert not known.has(Packet(WRITE, why="size"))
    assert not known.has(Packet(WRITE))


def test_a_damaged_list_of_what_was_taken_over_is_refused() -> None:
    with pytest.raises(CaseError, match="left_out: 'event x'"):
        parse_exclusion("event x")


# What can be sent.


class Steps:
    """A stepper of given steps."""

    connection = Connection()

    def __init__(self, *steps: Packet | Receive) -> None:
        self.left = list(steps)

    def next(self, reference: Emulation) -> Packet | Receive | None:
        return self.left.pop(0) if self.left else None


def test_what_a_link_cannot_carry_is_left_out() -> None:
    device = Emulation(Connection())
    del device.symbols["mw.rkey"]
    steps = Steps(
        Packet(WRITE, length=1500),
        Packet(WRITE, fields={"eth.dst": 0x020000000099}),
        Packet(WRITE, fields={"ip.dst": 0x08080808}),
        Packet(WRITE, fields={"reth.rkey": ("mw.rkey", 0)}),
        Packet(int(OpCode.RC_SEND_ONLY_WITH_INVALIDATE)),
        Receive(1),
        Packet(WRITE, length=8, held=True),
    )
    possible = PossibleSteps(steps, 1500, Exclusions())

    assert possible.next(device) == Receive(1)
    assert possible.next(device) == Packet(WRITE, length=8)
    assert possible.next(device) is None


def test_what_ipv6_does_not_have_is_left_out_there() -> None:
    device = Emulation(Connection())
    odd = Packet(WRITE, fields={"ip.total_length": 7}), Packet(WRITE, fields={"ip.ecn": 3})
    over_v4, over_v6 = (
        PossibleSteps(Steps(*odd), 1500, Exclusions(), is_v4=is_v4) for is_v4 in (True, False)
    )

    assert [over_v4.next(device) for _ in range(3)] == [*odd, None]
    assert [over_v6.next(device) for _ in range(2)] == [odd[1], None]


def test_the_control_connection_is_not_sent_to() -> None:
    """Whether its number is given absolutely, or relative to that of the case."""
    device = Emulation(Connection())
    control = device.symbols["qpn"] + 1
    steps = Steps(
        Packet(WRITE, fields={"bth.dest_qp": control}),
        Packet(WRITE, fields={"bth.dest_qp": ("qpn", 1)}),
        Packet(WRITE, fields={"bth.dest_qp": ("qpn", 2)}),
    )
    possible = PossibleSteps(steps, 1500, Exclusions(), spared=control)

    assert possible.next(device) == Packet(WRITE, fields={"bth.dest_qp": ("qpn", 2)})
    assert possible.next(device) is None
