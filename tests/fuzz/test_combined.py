"""Cases with several queue pairs, services, SGEs and partitions, and what is compared in them."""

from __future__ import annotations

from functools import cache
from itertools import islice
from random import Random
from typing import Any

import pytest

from each_case import each_case
from ibwire.base.units import ACK_TIMEOUT_UNIT
from ibwire.fuzz.campaign import Campaign
from ibwire.fuzz.case import (
    GOOD,
    Case,
    CaseError,
    Connection,
    Packet,
    Post,
    Receive,
    Role,
    Step,
    Value,
    Wait,
    from_json,
    step_text,
    to_json,
)
from ibwire.fuzz.judge.comparison import Difference, ExactComparison, Kind
from ibwire.fuzz.targets.emulated_device import (
    ADDRESS,
    INBOX,
    PEER_ADDRESS,
    PKEYS,
    REGIONS,
    Emulation,
    pieces,
)
from ibwire.fuzz.targets.emulator import EmulatorTestbed
from ibwire.fuzz.vocabulary.binding import Binding
from ibwire.fuzz.vocabulary.queue_pair import combined
from ibwire.fuzz.vocabulary.queue_pair.combined import CombinedGenerator
from ibwire.fuzz.vocabulary.queue_pair.edge_operators import (
    duplicate_of_another,
    duplicates_meanwhile,
    ignored_meanwhile,
    reordered_requests,
    window_range,
)
from ibwire.fuzz.vocabulary.queue_pair.generator import Menu
from ibwire.fuzz.vocabulary.queue_pair.messages import answers
from ibwire.fuzz.vocabulary.queue_pair.traffic import Traffic
from ibwire.fuzz.vocabulary.vocabularies import queue_pair_generators
from ibwire.rc.work import WROpcode
from ibwire_layers.opcodes import OpCode
from ibwire_layers.packet import Packet as WholePacket
from mutants.engine import _patched_sources, copied
from mutants.table import EDGES, FIRMWARE, INTERACTIONS, OWN_TABLES, RIGHT, read_mutants

MUTANTS = read_mutants(INTERACTIONS) | read_mutants(EDGES) | read_mutants(FIRMWARE)
TABLES = {
    name: mutant for table in (*OWN_TABLES, RIGHT) for name, mutant in read_mutants(table).items()
}
BINDING = Binding(PEER_ADDRESS, ADDRESS)

SEND, WRITE, READ = OpCode.RC_SEND_ONLY, OpCode.RC_RDMA_WRITE_ONLY, OpCode.RC_RDMA_READ_REQUEST


@cache
def wrong_device(name: str) -> Any:
    """The class of a device with a fault of the table."""
    return copied(MUTANTS[name])[Emulation.__module__].Emulation


def shown(name: str, steps: list[Step], **connection: Any) -> Difference | None:
    """What a case shows on a device with a fault; a right one must show nothing."""
    case = from_json(to_json(Case(Connection(**connection), tuple(steps))))
    found = []
    for device in (Emulation, wrong_device(name)):
        reference, target = Emulation(case.connection), device(case.connection)
        found.append(ExactComparison(BINDING, reference, target).carry_out(case))
    right, wrong = found
    assert right is None
    return wrong


def packet(opcode: int, psn: int = 0, length: int = 0, pair: int = 0, **more: Any) -> Packet:
    return Packet(int(opcode), ("expected", psn), length, pair=pair, **more)


@each_case("name", TABLES)
def test_every_planted_fault_fits_the_code(name: str) -> None:
    for module, source in _patched_sources(TABLES[name]).items():
        compile(source, module, "exec")


# Several queue pairs.


def test_each_queue_pair_has_its_own_numbers() -> None:
    device = Emulation(Connection(pairs=2))
    answers = []
    for step in (packet(WRITE), packet(WRITE), packet(WRITE, pair=1)):
        device.prepare(step)
        frame = BINDING.frame(step, device.psn("expected"), device.symbols)
        device.receive(frame)
        answers += [WholePacket.parse(each).bth for each in device.answers()]

    assert [bth.psn for bth in answers] == [100, 101, 100]
    assert [bth.dest_qp for bth in answers] == [0x77, 0x77, 0x78]


def test_gap_that_another_queue_pair_silences_is_found() -> None:
    gaps: list[Step] = [packet(WRITE, 1), packet(WRITE, 1, pair=1)]

    difference = shown("gap-elsewhere-silences-nak", gaps, pairs=2)

    assert difference is not None
    assert (difference.step, difference.kind) == (1, Kind.ANSWER)
    assert shown("gap-elsewhere-silences-nak", gaps[:1], pairs=2) is None


def test_number_of_a_queue_pair_counts_modulo_how_many_there_are() -> None:
    """So that a case with fewer queue pairs can be tried while it is minimised."""
    assert shown("gap-elsewhere-silences-nak", [packet(WRITE, 1, pair=3)], pairs=1) is None


def test_receive_requests_are_those_of_their_queue_pair() -> None:
    steps: list[Step] = [Receive(1, pair=1), packet(SEND)]

    difference = shown("receive-of-another-queue-pair", steps, pairs=2, receives=0)

    assert difference is not None
    assert difference.step == 1


# SGEs.


def test_pieces_are_in_memory_from_its_end_to_its_beginning() -> None:
    """9 bytes in 3: up to 3 - 3, 6 - 6 and 9 bytes; the key of the third is wrong."""
    found = pieces(1000, 9, 7, 3, 3)

    assert [each.length for each in found] == [0, 0, 9]
    assert [each.lkey == 7 for each in found] == [True, True, False]
    assert [each.length for each in pieces(1000, 300, 7, 3)] == [97, 97, 106]
    assert [each.addr for each in pieces(1000, 300, 7, 3)] == [1203, 1106, 1000]
    assert [each.length for each in pieces(0, 400, 7, 4)][1] == 0


def test_send_fills_the_sges_of_a_receive_in_their_order() -> None:
    device = Emulation(Connection(sges=2, room=100))
    device.prepare(packet(SEND))
    device.receive(BINDING.frame(packet(SEND, length=100), 100, device.symbols))
    device.answers()

    begin = sum(size for size, _ in REGIONS.values()) - INBOX
    sent = BINDING.frame(packet(SEND, length=100), 100, device.symbols)[54:154]
    assert bytes(device.memory[begin + 53 : begin + 100]) == sent[:47]
    assert bytes(device.memory[begin : begin + 53]) == sent[47:]


def test_room_of_three_sges_is_compared() -> None:
    difference = shown("receive-room-of-two-sges", [packet(SEND, length=250)], sges=3, room=256)

    assert difference is not None
    assert difference.kind is Kind.ANSWER


# Partitions, ICRC.


@pytest.mark.parametrize(("index", "pkey"), [(0, 0xFFFF), (1, 0xFFFF), (2, 0x9234), (3, 0x9234)])
def test_right_packets_come_from_a_full_member(index: int, pkey: int) -> None:
    device = Emulation(Connection(pkey_index=index))
    sent = WholePacket.parse(BINDING.frame(packet(WRITE), 100, device.symbols))

    device.receive(BINDING.frame(packet(WRITE), 100, device.symbols))

    assert sent.bth.pkey == pkey
    assert [WholePacket.parse(each).bth.pkey for each in device.answers()] == [PKEYS[index]]


def test_two_limited_members_do_not_talk() -> None:
    limited = packet(WRITE, fields={"bth.pkey": ("pkey", -0x8000)})

    assert shown("limited-members-talk", [limited], pkey_index=3) is not None
    assert shown("limited-members-talk", [limited], pkey_index=2) is None


@each_case("bit", range(32))
def test_a_bit_of_the_icrc_is_flipped_alone(bit: int) -> None:
    device = Emulation(Connection())
    frames = [
        BINDING.frame(packet(WRITE, icrc=GOOD | flip), 100, device.symbols)
        for flip in (0, 1 << bit)
    ]

    assert frames[0][:-4] == frames[1][:-4]
    ends = [frame[-4:] for frame in frames]
    assert int.from_bytes(ends[0]) ^ int.from_bytes(ends[1]) == 1 << bit
    swapped = int.from_bytes((1 << bit).to_bytes(4, "little"))
    found = shown("icrc-bit-13", [packet(WRITE, icrc=GOOD | 1 << bit)])
    assert (found is not None) == (swapped == 1 << 13)  # the fault counts in host order


# Completions.


def test_solicited_of_a_completion_is_compared() -> None:
    asks = packet(OpCode.RC_SEND_ONLY_WITH_IMMEDIATE, fields={"bth.se": 1})

    difference = shown("solicited-forgotten-with-immediate", [asks])

    assert difference is not None
    assert difference.kind is Kind.COMPLETION
    assert [each[7] for each in difference.expected if isinstance(each, tuple)] == [1]


def test_length_of_the_completion_of_a_read_is_compared() -> None:
    answer = Packet(
        int(OpCode.RC_RDMA_READ_RESPONSE_ONLY), ("una", 0), 8, fields={"aeth.msn": ("ssn", 0)}
    )

    steps: list[Step] = [Post(int(WROpcode.RDMA_READ), 8), answer]
    difference = shown("read-completion-without-length", steps)

    assert difference is not None
    assert [each[4] for each in difference.expected if isinstance(each, tuple)] == [8]


# UC and UD.


def test_datagram_of_a_wrong_qkey_is_compared() -> None:
    near = packet(OpCode.UD_SEND_ONLY, fields={"deth.qkey": ("qkey", 1)})
    right = packet(OpCode.UD_SEND_ONLY, length=8)

    assert shown("qkey-compared-in-16-bits", [near], service="UD") is not None
    assert shown("qkey-compared-in-16-bits", [right], service="UD") is None


def test_gap_of_an_unreliable_connection_ends_its_message() -> None:
    steps: list[Step] = [
        packet(OpCode.UC_SEND_FIRST, length=256),
        packet(OpCode.UC_SEND_LAST, 1, 8),
    ]

    assert shown("uc-goes-on-behind-a-gap", steps, service="UC") is not None


# Generated cases.


def cases(role: Role, count: int) -> list[tuple[Connection, list[Step]]]:
    made = []
    for number in range(count):
        generator = CombinedGenerator(Random(number), role, Menu(combined=True))
        device = Emulation(generator.connection)
        steps: list[Step] = []
        for step in islice(iter(lambda: generator.next(device), None), 40):  # noqa: B023
            device.prepare(step)
            if isinstance(step, Packet):
                device.receive(BINDING.frame(step, device.psn(step.psn[0]), device.symbols))
            elif isinstance(step, Post):
                device.post_send(step)
            elif isinstance(step, Receive):
                device.post_recv(step.count, step.pair)
            device.answers()
            steps.append(step)
        made.append((generator.connection, steps))
    return made


@pytest.mark.slow
def test_combined_cases_have_all_that_they_are_for() -> None:
    made = cases(Role.RESPONDER, 120) + cases(Role.REQUESTER, 120)
    steps = [step for _, every in made for step in every]
    posts = [step for step in steps if isinstance(step, Post)]

    assert {connection.service for connection, _ in made} >= {"RC", "UC", "UD"}
    assert {connection.pairs for connection, _ in made} == {1, 2, 3}
    assert {connection.pkey_index for connection, _ in made} == {0, 1, 2, 3}
    assert {connection.sges for connection, _ in made} >= {1, 2, 3, 4, 5}
    assert any(connection.rearmed for connection, _ in made)
    assert any(connection.wrong_lkey for connection, _ in made)
    assert {step.pair for step in steps if isinstance(step, Packet)} == {0, 1, 2}
    assert {each.fence for each in posts} == {each.solicited for each in posts} == {False, True}
    assert {each.sges for each in posts} >= {1, 2, 3, 4, 5}
    assert any(isinstance(step, Packet) and step.icrc > GOOD for step in steps)


def test_case_with_all_of_it_is_saved_and_read_again() -> None:
    connection = Connection(
        service="UC", pairs=2, sges=3, wrong_lkey=1, pkey_index=2, rearmed=1, room=77
    )
    steps = (
        packet(WRITE, icrc=GOOD | 5, pair=1),
        Post(2, 9, pair=1, sges=4, wrong_lkey=2, fence=True, solicited=True),
        Receive(2, pair=1),
    )
    case = Case(connection, steps)

    assert from_json(to_json(case)) == case
    assert [step_text(step) for step in steps] == [
        "WRITE_ONLY expected icrc=good^0x5 on queue pair 2",
        "post SEND len=9 sges=0+0+4+5 wrong_lkey=2 fence solicited on queue pair 2",
        "receive x2 on queue pair 2",
    ]


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ('"pairs": 2', '"pairs": 9', "connection.pairs: 9, not a number from 1 to 8"),
        ('"service": "UC"', '"service": "RD"', "connection.service: 'RD', not one of RC, UC, UD"),
        ('"pair": 1', '"pair": 8', r"steps\[0\].pair: 8, not a number from 0 to 7"),
    ],
)
def test_impossible_values_of_a_case_are_named(old: str, new: str, reason: str) -> None:
    text = to_json(Case(Connection(service="UC", pairs=2), (packet(WRITE, icrc=GOOD | 5, pair=1),)))
    assert old in text

    with pytest.raises(CaseError, match=reason):
        from_json(text.replace(old, new))


def test_a_range_that_leaves_a_window_stays_inside_its_region() -> None:
    device = Emulation(Connection())
    known = device.symbols

    def number(value: Value) -> int:
        return value if isinstance(value, int) else known[value[0]] + value[1]

    for seed in range(200):
        packet = window_range(Traffic(Random(seed), device.connection), device)[0]
        assert isinstance(packet, Packet)
        first = number(packet.fields["reth.va"])
        last = first + number(packet.fields.get("reth.dma_len", packet.length))
        assert number(packet.fields["reth.rkey"]) == known["mw.rkey"], seed
        assert first < known["mw.va"] or last > known["mw.end"], seed
        assert known["va"] <= first < last <= known["end"], seed


@pytest.mark.parametrize("left", [1, 2, 5])
def test_requests_before_the_psn_wrap_come_again_while_one_behind_it_waits(left: int) -> None:
    """A READ up to the wrap is made first: no case has to come to one by chance."""
    first_psn = (1 << 24) - left
    device = Emulation(Connection(rq_psn=first_psn))

    for seed in range(20):
        steps = list(duplicates_meanwhile(Traffic(Random(seed), device.connection), device))
        found = shown("replay-behind-newer-responses-at-the-wrap", steps, rq_psn=first_psn)
        assert found is not None, seed


def test_requests_before_the_psn_wrap_come_again_soon_after_it() -> None:
    connection = Connection(rq_psn=(1 << 24) - 2)

    for seed in range(20):
        device, traffic = Emulation(connection), Traffic(Random(seed), connection)
        before: list[Step] = [packet(READ), packet(WRITE), packet(READ)]
        for step in before:
            device.prepare(step)
            assert isinstance(step, Packet)
            traffic.sent.append((step, device.psn("expected")))
            device.receive(BINDING.frame(step, device.psn("expected"), device.symbols))
            device.answers()
        steps = [*before, *duplicates_meanwhile(traffic, device)]
        found = shown("replay-behind-newer-responses-at-the-wrap", steps, rq_psn=connection.rq_psn)
        assert found is not None, seed


@pytest.mark.parametrize("behind", [0, 2])
def test_a_request_that_only_another_queue_pair_knows_comes_as_a_duplicate(behind: int) -> None:
    """Whether or not this queue pair has come as far. behind: packets that it has executed."""
    connection = Connection(pairs=2)
    other = packet(READ)
    before: list[Packet] = [other.altered(pair=1), *[packet(WRITE)] * behind]
    count = 0
    for seed in range(20):
        device, traffic = Emulation(connection), Traffic(Random(seed), connection)
        for step in before:
            device.prepare(step)
            device.receive(BINDING.frame(step, device.psn("expected"), device.symbols))
            device.answers()
        device.focus(0)
        traffic.others = [[(other, connection.rq_psn)]]
        steps = [*before, *duplicate_of_another(traffic, device)]
        count += shown("duplicate-read-from-another-queue-pair", steps, pairs=2) is not None

    assert count >= 12


def test_one_request_of_several_arrives_late_before_any_is_answered() -> None:
    device = Emulation(Connection())

    for seed in range(100):
        steps = reordered_requests(Traffic(Random(seed), device.connection), device)
        places: list[int] = []
        executed = 0
        for step in steps:
            assert isinstance(step, Packet)
            places.append(executed + step.psn[1])
            executed += step.psn == ("expected", 0)
        assert [isinstance(step, Packet) and step.held for step in steps].count(False) == 1
        assert sorted(places) == list(range(len(steps)))
        assert places != sorted(places)


def test_what_waits_when_a_late_request_comes_is_sent() -> None:
    device = Emulation(Connection())
    found = [
        shown(
            "nak-withdraws-acks",
            reordered_requests(Traffic(Random(seed), device.connection), device),
        )
        for seed in range(40)
    ]

    assert sum(each is not None for each in found) >= 5


def test_what_comes_during_a_wait_counts_for_no_retry() -> None:
    """All retries are used up by the waits alone, whatever comes between them."""
    connection = Connection(retry_cnt=2, timeout=8)
    found = set()
    for seed in range(300):
        device = Emulation(connection)
        device.post_send(Post(int(WROpcode.RDMA_WRITE), 8))
        device.answers()
        steps = ignored_meanwhile(Random(seed), device, list(answers(device)))
        waits = [step for step in steps if isinstance(step, Wait)]
        if min(step.time for step in waits) > ACK_TIMEOUT_UNIT << connection.timeout:
            assert len(waits) == 1 + connection.retry_cnt, seed
            for step in waits:
                device.wait(step.time)
            assert not device.is_alive, seed
            (others,) = (step for step in steps if not isinstance(step, Wait))
            found.add(others.why if isinstance(others, Packet) else "post")

    assert found == {"ghost ACK", "PSN", "ICRC", "post"}


@pytest.mark.parametrize("seed", [2, 5])
def test_a_device_whose_credits_go_back_is_found(seed: int) -> None:
    """Some peers grant credits in each response, for fewer messages than before, too."""
    device = copied(read_mutants(EDGES)["credits-go-back"])[Emulation.__module__].Emulation
    campaign = Campaign(
        EmulatorTestbed(device), queue_pair_generators(seed, Role.REQUESTER), minimises=False
    )

    assert next(campaign.run(3_000), None) is not None


def test_queue_pairs_in_step_get_the_same_packets(monkeypatch: pytest.MonkeyPatch) -> None:
    def shared() -> float:
        """The share of the packets of all pairs but the first that this gets, too."""
        count = same = 0
        for connection, steps in cases(Role.RESPONDER, 60):
            sent = [
                (each.pair, each.opcode, each.length, each.psn)
                for each in steps
                if isinstance(each, Packet)
            ]
            others = [each[1:] for each in sent if each[0]] if connection.service == "RC" else []
            first = {each[1:] for each in sent if not each[0]}
            count += len(others)
            same += sum(each in first for each in others)
        return same / count

    usual = shared()
    monkeypatch.setattr(combined, "IN_STEP", 0.9)

    assert shared() > 1.3 * usual
