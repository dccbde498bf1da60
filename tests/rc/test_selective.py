"""Packets out of order: kept, placed, and what is missing retransmitted.

reference/transport#early-packets, reference/transport#selective-repeat.
"""

from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from each_case import each_case
from examples import scaled
from fabric.transfers import MTU, Transfers
from ibwire.base.node import Stage
from ibwire.base.units import MS, US, Time
from ibwire.fabric.lossless import SwitchSettings
from ibwire.fabric.switch.routing import Strategy
from ibwire.fabric.topology import leaf_spine, star
from ibwire.impair import Chance, Loss
from ibwire.rc import sack
from ibwire.rc.profile import CONNECTX_AR, IRN, SPEC, Profile
from ibwire.rc.work import WCStatus, WROpcode
from ibwire.testing import Pair

SETTINGS = SwitchSettings(buffer=4 << 20)
SPRAYING = replace(SETTINGS, strategy=Strategy.SPRAY)
PATIENT = replace(IRN, nak_distance=64)
"""Reordering of some packets is no loss."""


def sprayed(profile: Profile, settings: SwitchSettings = SPRAYING) -> Transfers:
    """Four hosts write to four others over four spines, packet by packet."""
    found = Transfers(leaf_spine(2, 4, 4), settings, profile=profile)
    for source, target in ((0, 5), (1, 4), (2, 7), (3, 6)):
        found.add(f"h{source}", f"h{target}", 60)
    return found


def test_spraying_is_a_disaster_with_go_back_n_and_near_ideal_without() -> None:
    """reference/transport#early-packets."""
    going_back, placing, repeating = sprayed(SPEC), sprayed(CONNECTX_AR), sprayed(PATIENT)

    slow, fast, selective = going_back.run(), placing.run(), repeating.run()

    ideal = 60 * 1106 * 8 * 10 + 3 * 1106 * 8 * 10 + 8 * US  # line time, hops, links there and back
    assert going_back.retransmitted > 4 * 60
    assert (placing.retransmitted, repeating.retransmitted) == (0, 0)
    assert slow > 3 * fast
    assert fast < 1.4 * ideal
    assert selective < 1.4 * ideal
    for found in (going_back, placing, repeating):
        assert all(each.arrived for each in found.transfers)


def lossy(profile: Profile, loss: float, seed: int, packets: int = 200) -> Transfers:
    """One host writes to another while every link loses frames."""
    found = Transfers(star(2), SETTINGS, profile=profile)
    found.add("h0", "h1", packets, timeout=6)
    for wire in found.simulator.wires:
        for line in (wire.a_to_b, wire.b_to_a):
            line.stage = Loss(Chance(loss, seed=seed, name=line.name))
    return found


def test_selective_repeat_retransmits_what_is_missing() -> None:
    repeating = lossy(IRN, 0.01, 1)
    going_back = lossy(replace(SPEC, ack_request_interval=1), 0.01, 1)

    repeating.run()
    going_back.run()

    assert 0 < repeating.retransmitted < 15  # two links lose 1 % of 200 packets each
    assert going_back.retransmitted > 5 * repeating.retransmitted
    assert repeating.transfers[0].arrived


@pytest.mark.slow
@pytest.mark.parametrize(
    "profile", [SPEC, CONNECTX_AR, IRN, PATIENT], ids=["spec", "connectx-ar", "irn", "patient"]
)
@given(seed=st.integers(0, 1000), loss=st.sampled_from((0.001, 0.02, 0.1)))
@settings(max_examples=8, deadline=None)
def test_no_transfer_hangs_or_changes_bytes_under_loss(
    profile: Profile, seed: int, loss: float
) -> None:
    found = lossy(profile, loss, seed, packets=24)

    found.run(until=1000 * MS)

    (transfer,) = found.transfers
    assert transfer.status in (WCStatus.SUCCESS, WCStatus.RETRY_EXC_ERR)
    assert transfer.arrived or transfer.status is WCStatus.RETRY_EXC_ERR


# One connection.


def reordering(profile: Profile, a: dict[int, Time], b: dict[int, Time] | None = None) -> Pair:
    """A pair on whose way the packets of `a` and `b` with some PSNs take longer."""
    pair = Pair(profile=profile, psn_a=100)

    def late(delays: dict[int, Time]) -> Stage:
        def stage(frame: bytes, now: Time) -> list[tuple[Time, bytes]]:
            return [(delays.pop(int.from_bytes(frame[51:54]), 0), frame)]

        return stage

    pair.add_stage("a", late(dict(a)))
    pair.add_stage("b", late(dict(b or {})))
    return pair


def test_early_write_data_is_in_memory_before_the_missing_packet() -> None:
    pair = reordering(CONNECTX_AR, {101: 50 * US})
    data = bytes(range(256)) * 16
    pair.a.write(0, data)
    pair.a.post_send(WROpcode.RDMA_WRITE, len(data))

    pair.run(20 * US)
    placed, done = pair.b.read(0, 4096), pair.a.poll_send_cq()
    pair.run()

    assert placed == data[:MTU] + bytes(MTU) + data[2 * MTU :]
    assert done == []
    assert pair.b.read(0, 4096) == data
    assert [wc.status for wc in pair.a.poll_send_cq()] == [WCStatus.SUCCESS]
    assert pair.a.qp.counters.retransmitted == 0


def test_early_middle_of_a_write_whose_first_packet_is_missing_waits() -> None:
    pair = reordering(CONNECTX_AR, {100: 50 * US})
    pair.a.write(0, b"x" * 3000)
    pair.a.post_send(WROpcode.RDMA_WRITE, 3000)

    pair.run(20 * US)
    placed = pair.b.read(0, 3000)
    pair.run()

    assert placed == bytes(3000)  # its address is not known yet
    assert pair.b.read(0, 3000) == b"x" * 3000


def test_early_sends_and_atomics_wait_and_complete_in_order() -> None:
    pair = reordering(CONNECTX_AR, {100: 50 * US})
    pair.a.write(0, b"1" * 8 + b"2" * 8)
    pair.b.post_recv(64, offset=1024, wr_id=1)
    pair.b.post_recv(64, offset=2048, wr_id=2)
    pair.a.post_send(WROpcode.SEND, 8, wr_id=1)
    pair.a.post_send(WROpcode.SEND, 8, offset=8, wr_id=2)
    pair.a.post_send(
        WROpcode.ATOMIC_FETCH_AND_ADD, 8, offset=512, remote=256, wr_id=3, compare_add=5
    )

    pair.run(20 * US)
    before = pair.b.poll_recv_cq(), pair.b.read(256, 8)
    pair.run()

    assert before == ([], bytes(8))
    assert [wc.wr_id for wc in pair.b.poll_recv_cq()] == [1, 2]
    assert pair.b.read(2048, 8) == b"2" * 8
    assert [wc.wr_id for wc in pair.a.poll_send_cq()] == [1, 2, 3]
    assert pair.b.read(256, 8) == (5).to_bytes(8, "little")
    assert pair.a.qp.counters.retransmitted == 0


def test_early_read_responses_and_acks_wait_for_the_missing_response() -> None:
    pair = reordering(CONNECTX_AR, {}, {101: 30 * US, 104: 60 * US})
    data = bytes(reversed(range(256))) * 16
    pair.b.write(8192, data)
    pair.a.post_send(WROpcode.RDMA_READ, 4096, remote=8192, wr_id=1)
    pair.a.post_send(WROpcode.RDMA_READ, 2048, offset=4096, remote=8192, wr_id=2)
    pair.a.post_send(WROpcode.RDMA_WRITE, 8, offset=0, remote=0, wr_id=3)

    pair.run()

    assert pair.a.read(0, 6144) == data + data[:2048]
    assert [wc.wr_id for wc in pair.a.poll_send_cq()] == [1, 2, 3]
    assert pair.a.qp.counters.retransmitted == 0


def test_nak_names_what_has_arrived_and_a_peer_without_it_goes_back() -> None:
    counts = {}
    for profile in (IRN, replace(SPEC, ack_request_interval=1)):
        pair = Pair(profile=profile, peer_profile=IRN, psn_a=100)
        pair.drop("a", 2, 3, 6)
        pair.a.write(0, b"z" * 10240)
        pair.a.post_send(WROpcode.RDMA_WRITE, 10240)

        pair.run()

        naks = [each for each in pair.packets("b") if each.trailer]
        first = naks[0]
        assert sack.unpack(bytes(first.trailer), 101) == ((103, 104),)
        assert pair.b.read(0, 10240) == b"z" * 10240
        counts[profile.name] = pair.a.qp.counters.retransmitted
    assert counts["irn"] == 3
    assert counts["spec"] > 3


@pytest.mark.parametrize(
    ("lost", "timeout"), [((10,), 454 * US), (tuple(range(1, 11)), 1350 * US)], ids=["few", "many"]
)
def test_irn_waits_longer_where_many_packets_are_on_the_way(
    lost: tuple[int, ...], timeout: Time
) -> None:
    """reference/transport#irn-timeouts."""
    pair = Pair(profile=IRN)
    times: list[Time] = []

    def note(frame: bytes, now: Time) -> list[tuple[Time, bytes]]:
        times.append(now)
        return [(0, frame)]

    pair.add_stage("a", note)
    pair.drop("a", *lost)
    pair.a.write(0, bytes(10240))
    pair.a.post_send(WROpcode.RDMA_WRITE, 10240)

    pair.run()

    # The timer starts with a packet, or with the last ACK that arrives: ten packets take less
    # than a microsecond, a round trip a few.
    assert timeout <= times[10] < timeout + 6 * US
    assert pair.a.qp.counters.timeouts == 1
    assert pair.b.read(0, 10240) == pair.a.read(0, 10240)


def test_packet_too_far_ahead_is_refused() -> None:
    pair = reordering(replace(CONNECTX_AR, early_window=2), {100: 50 * US})
    pair.a.write(0, b"y" * 8192)
    pair.a.post_send(WROpcode.RDMA_WRITE, 8192)

    pair.run()

    assert pair.a.qp.counters.sequence_naks_received == 1
    assert pair.b.read(0, 8192) == b"y" * 8192


@pytest.mark.parametrize("profile", [CONNECTX_AR, IRN], ids=lambda each: each.name)
@given(data=st.data())
@settings(max_examples=scaled(30), deadline=None)
def test_any_order_of_packets_gives_the_same_result(profile: Profile, data: st.DataObject) -> None:
    opcodes = st.sampled_from(
        (WROpcode.SEND, WROpcode.RDMA_WRITE, WROpcode.RDMA_READ, WROpcode.ATOMIC_FETCH_AND_ADD)
    )
    work = data.draw(st.lists(opcodes, min_size=1, max_size=8))
    delays = st.lists(st.integers(0, 40), min_size=60, max_size=60)
    pair = Pair(profile=profile, size=1 << 17)
    for sender in "ab":
        waits = iter(data.draw(delays))

        def stage(
            frame: bytes, now: Time, waits: Iterator[int] = waits
        ) -> list[tuple[Time, bytes]]:
            return [(next(waits, 0) * US, frame)]

        pair.add_stage(sender, stage)
    content = bytes(each % 251 for each in range(32768))
    pair.a.write(0, content)
    pair.b.write(65536, content)
    for number, opcode in enumerate(work):
        at = number * 2560
        if opcode is WROpcode.SEND:
            pair.b.post_recv(2560, offset=32768 + at, wr_id=number)
        if opcode is WROpcode.ATOMIC_FETCH_AND_ADD:
            pair.a.post_send(
                opcode, 8, offset=98304 + 8 * number, remote=120_000, compare_add=1, wr_id=number
            )
        elif opcode is WROpcode.RDMA_READ:
            pair.a.post_send(opcode, 2500, offset=65536 + at, remote=65536 + at, wr_id=number)
        else:
            pair.a.post_send(opcode, 2500, offset=at, remote=32768 + at, wr_id=number)

    pair.run()

    done = pair.a.poll_send_cq()
    assert [(wc.wr_id, wc.status) for wc in done] == [
        (number, WCStatus.SUCCESS) for number in range(len(work))
    ]
    added = 0
    for number, opcode in enumerate(work):
        at = number * 2560
        if opcode is WROpcode.ATOMIC_FETCH_AND_ADD:
            assert pair.a.read(98304 + 8 * number, 8) == added.to_bytes(8, "little")
            added += 1
        elif opcode is WROpcode.RDMA_READ:
            assert pair.a.read(65536 + at, 2500) == content[at : at + 2500]
        else:
            assert pair.b.read(32768 + at, 2500) == content[at : at + 2500]
    sends = [number for number, opcode in enumerate(work) if opcode is WROpcode.SEND]
    assert [wc.wr_id for wc in pair.b.poll_recv_cq()] == sends


# The record.


def test_ranges_are_those_that_have_arrived() -> None:
    ranges = sack.ranges_of([0xFFFFFF, 1, 2, 5], 0xFFFFFE)

    assert ranges == ((0xFFFFFF, 0), (1, 3), (5, 6))
    record = sack.pack(ranges)
    assert record[:8] == bytes.fromhex("5303 ffffff 000000")
    assert len(record) == 50
    assert sack.unpack(record, 0xFFFFFE) == ranges


@each_case(
    "record",
    [
        b"",
        bytes(50),
        bytes.fromhex("5309").ljust(50, b"\0"),
        sack.pack(((200, 210), (150, 160))),
        sack.pack(((90, 95),)),
        sack.pack(((101, 101),)),
        sack.pack(((100, 105),)),
    ],
    ids=["short", "other", "too many", "not in order", "behind", "empty", "has the missing one"],
)
def test_record_that_cannot_be_is_ignored(record: bytes) -> None:
    assert sack.unpack(record, 100) == ()
