"""The error scenarios that RoCE simulators list, each as one readable exchange.

`said` gives what one side sent as opcode, PSN and syndrome. The specification's profile
sends live credits: the syndrome of an ACK is the code of the remaining receive
requests (0x00 for none, 0x01 for one: reference/transport#credit-codes).
"""

from __future__ import annotations

from itertools import count

import pytest

from ibwire.base.node import Frame
from ibwire.base.units import MS, US, Time
from ibwire.rc.attributes import QPState
from ibwire.rc.profile import RXE
from ibwire.rc.work import WCStatus, WROpcode
from ibwire.testing import Pair
from ibwire_layers import headers as h
from rc.error_scenario import memory, number, pattern, receives, said, states, statuses, times

S = WCStatus


def duplicate(pair: Pair, sender: str, which: int, delay: Time) -> None:
    """Let a second copy of one frame arrive later."""

    number = count(1)

    def stage(frame: Frame, now: Time) -> list[tuple[Time, Frame]]:
        return [(0, frame), (delay, frame)] if next(number) == which else [(0, frame)]

    pair.add_stage(sender, stage)


# Receiver not ready.


def test_rnr_nak_is_waited_out_and_the_send_succeeds() -> None:
    pair = Pair(min_rnr_timer=12)
    data = pattern(pair.a, 100)
    pair.a.post_send(length=100, wr_id=7)
    pair.run(500 * US)
    pair.b.post_recv(100, wr_id=3)
    pair.run()

    assert said(pair, "a") == ["SEND_ONLY 0", "SEND_ONLY 0"]
    assert said(pair, "b") == [
        "ACKNOWLEDGE 0 0x2c",  # RNR NAK, code 12
        f"ACKNOWLEDGE {0xFFFFFF} 0x01",  # the new receive request, in an unsolicited ACK
        "ACKNOWLEDGE 0 0x00",
    ]
    first, second = times(pair, "a")
    assert second - first >= 640 * US
    assert [packet.extension(h.AETH).msn for packet in pair.packets("b")] == [0, 0, 1]
    assert statuses(pair) == [(7, S.SUCCESS)]
    assert receives(pair) == [(3, S.SUCCESS)]
    assert memory(pair.b, 100) == data
    assert pair.a.qp.counters.rnr_naks_received == 1
    assert pair.a.qp.counters.timeouts == 0


@pytest.mark.parametrize("retries", [0, 1, 2])
def test_rnr_retry_exceeded_after_as_many_waits_as_rnr_retry(retries: int) -> None:
    """rnr-exceeded: rnr_retry 2 is three NAKs; 0 makes the first one fatal."""
    pair = Pair(rnr_retry=retries, min_rnr_timer=1)
    pair.a.post_send(length=100, wr_id=1)
    pair.a.post_send(length=100, wr_id=2)
    pair.run()

    assert said(pair, "b") == ["ACKNOWLEDGE 0 0x21"] * (retries + 1)
    assert statuses(pair) == [(1, S.RNR_RETRY_EXC_ERR), (2, S.WR_FLUSH_ERR)]
    assert receives(pair) == []
    assert states(pair) == (QPState.ERR, QPState.RTS)


# Lost requests.


def test_psn_sequence_error_goes_back_to_the_lost_packet() -> None:
    """drop-one-middle: MIDDLE at the NAK's PSN, without a RETH, and everything after it."""
    pair = Pair()
    data = pattern(pair.a, 5000)
    pair.drop("a", 2)
    pair.a.post_send(WROpcode.RDMA_WRITE, length=5000)
    pair.run()

    assert said(pair, "a") == [
        "RDMA_WRITE_FIRST 0",
        "RDMA_WRITE_MIDDLE 1",
        "RDMA_WRITE_MIDDLE 2",
        "RDMA_WRITE_MIDDLE 3",
        "RDMA_WRITE_LAST 4",
        "RDMA_WRITE_MIDDLE 1",
        "RDMA_WRITE_MIDDLE 2",
        "RDMA_WRITE_MIDDLE 3",
        "RDMA_WRITE_LAST 4",
    ]
    assert said(pair, "b") == ["ACKNOWLEDGE 1 0x60", "ACKNOWLEDGE 4 0x00"]
    assert [packet.extension(h.RETH) is None for packet in pair.packets("a")] == [False] + [
        True
    ] * 8
    assert statuses(pair) == [(0, S.SUCCESS)]
    assert memory(pair.b, 5000) == data
    assert pair.a.qp.counters.timeouts == 0
    assert pair.a.qp.counters.retransmitted == 4


def test_lost_nak_is_healed_by_the_timeout_from_the_first_unacknowledged_packet() -> None:
    pair = Pair()
    data = pattern(pair.a, 3000)
    pair.drop("a", 2)
    pair.drop("b", 1)
    pair.a.post_send(WROpcode.RDMA_WRITE, length=3000)
    pair.run()

    message = ["RDMA_WRITE_FIRST 0", "RDMA_WRITE_MIDDLE 1", "RDMA_WRITE_LAST 2"]
    assert said(pair, "a") == message * 2
    assert said(pair, "b") == [
        "ACKNOWLEDGE 1 0x60",  # lost
        "ACKNOWLEDGE 0 0x00",  # FIRST is a duplicate
        "ACKNOWLEDGE 2 0x00",
    ]
    assert statuses(pair) == [(0, S.SUCCESS)]
    assert memory(pair.b, 3000) == data
    assert pair.a.qp.counters.timeouts == 1


def test_partial_write_retry_of_the_last_packet_alone() -> None:
    """A lost LAST is found when the next message arrives; only it and that message come again."""
    pair = Pair()
    data = pattern(pair.a, 3000)
    pair.drop("a", 3)
    pair.a.post_send(WROpcode.RDMA_WRITE, length=3000, wr_id=1)
    pair.a.post_send(WROpcode.RDMA_WRITE, length=8, remote=4000, wr_id=2)
    pair.run()

    assert said(pair, "a")[4:] == ["RDMA_WRITE_LAST 2", "RDMA_WRITE_ONLY 3"]
    # One ACK may stand for both messages when the second arrives before the first has left.
    assert said(pair, "b")[0] == "ACKNOWLEDGE 2 0x60"
    assert said(pair, "b")[-1] == "ACKNOWLEDGE 3 0x00"
    assert statuses(pair) == [(1, S.SUCCESS), (2, S.SUCCESS)]
    assert memory(pair.b, 3000) == data
    assert memory(pair.b, 8, 4000) == data[:8]


def test_local_ack_timeout_resends_after_t_and_before_4t() -> None:
    """C9-141: 4.096 us * 2^8 is 1.048576 ms."""
    pair = Pair(timeout=8)
    data = pattern(pair.a, 64)
    pair.b.post_recv(64, wr_id=3)
    pair.drop("a", 1)
    pair.a.post_send(length=64)
    pair.run()

    assert said(pair, "a") == ["SEND_ONLY 0", "SEND_ONLY 0"]
    assert said(pair, "b") == ["ACKNOWLEDGE 0 0x00"]
    first, second = times(pair, "a")
    assert 1_048_576_000 <= second - first <= 4 * 1_048_576_000
    assert statuses(pair) == [(0, S.SUCCESS)]
    assert receives(pair) == [(3, S.SUCCESS)]
    assert memory(pair.b, 64) == data


def test_retry_exceeded_ends_the_oldest_and_flushes_both_queues() -> None:
    """retry-exceeded: retry_cnt 3 is four transmissions."""
    pair = Pair(retry_cnt=3)
    pair.drop_if("a", lambda packet: True)
    pair.a.post_recv(64, wr_id=8)
    pair.b.post_recv(64, wr_id=9)
    pair.a.post_send(length=64, wr_id=1)
    pair.a.post_send(WROpcode.RDMA_READ, length=64, wr_id=2)
    pair.run()

    assert said(pair, "a").count("SEND_ONLY 0") == 4
    assert said(pair, "b") == []
    assert statuses(pair) == [(1, S.RETRY_EXC_ERR), (2, S.WR_FLUSH_ERR)]
    assert [(wc.wr_id, wc.status) for wc in pair.a.recv_cq.poll(9)] == [(8, S.WR_FLUSH_ERR)]
    assert receives(pair) == []
    assert states(pair) == (QPState.ERR, QPState.RTS)


def test_corrupted_packet_is_dropped_in_silence_and_healed() -> None:
    pair = Pair()
    data = pattern(pair.a, 64)

    number = count(1)

    def stage(frame: Frame, now: Time) -> list[tuple[Time, Frame]]:
        changed = bytearray(frame)
        if next(number) == 1:
            changed[-10] ^= 0x01  # the payload: 4 bytes of ICRC follow it
        return [(0, bytes(changed))]

    pair.add_stage("a", stage)
    pair.a.post_send(WROpcode.RDMA_WRITE, length=64)
    pair.run(60 * MS)
    assert said(pair, "b") == []
    assert memory(pair.b, 64) == bytes(64)
    pair.run()

    assert said(pair, "a") == ["RDMA_WRITE_ONLY 0"] * 2
    assert said(pair, "b") == ["ACKNOWLEDGE 0 0x00"]
    assert pair.b.device.counters["bad_icrc"] == 1
    assert statuses(pair) == [(0, S.SUCCESS)]
    assert memory(pair.b, 64) == data


# Lost responses.


def test_implied_nak_asks_for_a_lost_read_response_again() -> None:
    """loss-ack-only: an ACK after an unanswered READ restarts it and completes nothing."""
    pair = Pair()
    data = pattern(pair.b, 1000)
    pair.drop("b", 1)
    pair.a.post_send(WROpcode.RDMA_READ, length=1000, wr_id=1)
    pair.a.post_send(WROpcode.RDMA_WRITE, length=8, offset=2000, remote=2000, wr_id=2)
    pair.run()

    assert said(pair, "a") == ["RDMA_READ_REQUEST 0", "RDMA_WRITE_ONLY 1"] * 2
    assert said(pair, "b") == [
        "RDMA_READ_RESPONSE_ONLY 0 0x00",  # lost
        "ACKNOWLEDGE 1 0x00",
        "RDMA_READ_RESPONSE_ONLY 0 0x00",
        "ACKNOWLEDGE 1 0x00",
    ]
    # MSN of the moment at which each is made (reference/transport#msn).
    assert [packet.extension(h.AETH).msn for packet in pair.packets("b")[1:]] == [2, 2, 2]
    assert statuses(pair) == [(1, S.SUCCESS), (2, S.SUCCESS)]
    assert memory(pair.a, 1000) == data
    assert pair.a.qp.counters.implied_naks == 1
    assert pair.a.qp.counters.timeouts == 0


def test_implied_nak_asks_for_a_lost_atomic_ack_again() -> None:
    pair = Pair()
    pair.b.mr.write(pair.b.mr.iova, (40).to_bytes(8, "little"))
    pair.drop("b", 1)
    pair.a.post_send(WROpcode.ATOMIC_FETCH_AND_ADD, length=8, compare_add=2, wr_id=1)
    pair.a.post_send(WROpcode.RDMA_WRITE, length=8, offset=64, remote=64, wr_id=2)
    pair.run()

    assert said(pair, "a") == ["FETCH_ADD 0", "RDMA_WRITE_ONLY 1"] * 2
    assert said(pair, "b") == ["ATOMIC_ACKNOWLEDGE 0 0x00", "ACKNOWLEDGE 1 0x00"] * 2
    replayed = pair.packets("b")[2].extension(h.AtomicAckETH)
    assert replayed is not None
    assert replayed.orig == 40
    assert statuses(pair) == [(1, S.SUCCESS), (2, S.SUCCESS)]
    assert number(pair.a) == 40
    assert number(pair.b) == 42
    assert pair.a.qp.counters.timeouts == 0


def test_atomic_is_replayed_from_the_saved_result() -> None:
    """drop-atomic-ack: the response has the original value, whatever the memory has now."""
    pair = Pair()
    pair.b.mr.write(pair.b.mr.iova, (5).to_bytes(8, "little"))
    pair.drop("b", 1)
    pair.a.post_send(WROpcode.ATOMIC_CMP_AND_SWP, length=8, compare_add=5, swap=6)
    pair.run(1 * MS)
    assert number(pair.b) == 6
    pair.b.mr.write(pair.b.mr.iova, (5).to_bytes(8, "little"))
    pair.run()

    assert said(pair, "a") == ["COMPARE_SWAP 0"] * 2
    assert said(pair, "b") == ["ATOMIC_ACKNOWLEDGE 0 0x00"] * 2
    assert [packet.extension(h.AETH).msn for packet in pair.packets("b")] == [1, 1]
    assert statuses(pair) == [(0, S.SUCCESS)]
    assert number(pair.a) == 5
    assert number(pair.b) == 5  # not executed again: that would have made it 6


def test_partial_read_retry_asks_for_the_rest_from_the_first_missing_packet() -> None:
    pair = Pair()
    data = pattern(pair.b, 3500)
    pair.drop("b", 2)
    pair.a.post_send(WROpcode.RDMA_READ, length=3500)
    pair.run()

    assert said(pair, "a") == ["RDMA_READ_REQUEST 0", "RDMA_READ_REQUEST 1"]
    asked = [packet.extension(h.RETH) for packet in pair.packets("a")]
    assert [(reth.va - pair.b.mr.iova, reth.dma_len) for reth in asked] == [(0, 3500), (1024, 2476)]
    assert said(pair, "b") == [
        "RDMA_READ_RESPONSE_FIRST 0 0x00",
        "RDMA_READ_RESPONSE_MIDDLE 1",  # lost
        "RDMA_READ_RESPONSE_MIDDLE 2",
        "RDMA_READ_RESPONSE_LAST 3 0x00",
        "RDMA_READ_RESPONSE_FIRST 1 0x00",
        "RDMA_READ_RESPONSE_MIDDLE 2",
        "RDMA_READ_RESPONSE_LAST 3 0x00",
    ]
    assert statuses(pair) == [(0, S.SUCCESS)]
    assert memory(pair.a, 3500) == data
    assert pair.a.qp.counters.timeouts == 0


def test_rxe_notices_a_gap_in_a_read_by_its_timeout_and_continues_with_middle() -> None:
    """drop-read-response: 66 ms of silence, then MIDDLE at the requested PSN."""
    pair = Pair(profile=RXE)
    data = pattern(pair.b, 3500)
    pair.drop("b", 2)
    pair.a.post_send(WROpcode.RDMA_READ, length=3500)
    pair.run()

    assert said(pair, "a") == ["RDMA_READ_REQUEST 0", "RDMA_READ_REQUEST 1"]
    first, second = times(pair, "a")
    assert second - first >= 60 * MS
    assert said(pair, "b")[4:] == [
        "RDMA_READ_RESPONSE_MIDDLE 1",
        "RDMA_READ_RESPONSE_MIDDLE 2",
        "RDMA_READ_RESPONSE_LAST 3 0x1f",
    ]
    assert statuses(pair) == [(0, S.SUCCESS)]
    assert memory(pair.a, 3500) == data
    assert pair.a.qp.counters.timeouts == 1


def test_ghost_ack_completes_nothing() -> None:
    pair = Pair()
    duplicate(pair, "b", 1, delay=50 * US)
    pair.a.post_send(WROpcode.RDMA_WRITE, length=8, wr_id=1)
    pair.run(40 * US)
    assert statuses(pair) == [(1, S.SUCCESS)]
    pair.drop("a", 2)
    pair.a.post_send(WROpcode.RDMA_WRITE, length=8, wr_id=2)
    pair.run(60 * MS)

    assert pair.a.qp.counters.ghost_acks == 1
    assert statuses(pair) == []  # the second WRITE is lost, and the ghost does not count for it
    pair.run()
    assert said(pair, "b") == ["ACKNOWLEDGE 0 0x00", "ACKNOWLEDGE 1 0x00"]
    assert statuses(pair) == [(2, S.SUCCESS)]


def test_lost_ack_is_covered_by_the_next() -> None:
    pair = Pair()
    pair.drop("b", 1)
    pair.a.post_send(WROpcode.RDMA_WRITE, length=8, wr_id=1)
    pair.run(10 * US)
    assert statuses(pair) == []
    pair.a.post_send(WROpcode.RDMA_WRITE, length=8, wr_id=2)
    pair.run()

    assert said(pair, "a") == ["RDMA_WRITE_ONLY 0", "RDMA_WRITE_ONLY 1"]
    assert said(pair, "b") == ["ACKNOWLEDGE 0 0x00", "ACKNOWLEDGE 1 0x00"]
    assert statuses(pair) == [(1, S.SUCCESS), (2, S.SUCCESS)]
    assert pair.a.qp.counters.timeouts == 0


# Duplicates.


def test_duplicate_send_takes_no_second_receive_request() -> None:
    pair = Pair()
    data = pattern(pair.a, 64)
    pair.b.post_recv(64, wr_id=1)
    pair.b.post_recv(64, offset=1000, wr_id=2)
    duplicate(pair, "a", 1, delay=50 * US)
    pair.a.post_send(length=64)
    pair.run()

    assert said(pair, "b") == ["ACKNOWLEDGE 0 0x01"] * 2
    assert [packet.extension(h.AETH).msn for packet in pair.packets("b")] == [1, 1]
    assert statuses(pair) == [(0, S.SUCCESS)]
    assert receives(pair) == [(1, S.SUCCESS)]
    assert memory(pair.b, 64) == data
    assert memory(pair.b, 64, 1000) == bytes(64)
    assert pair.b.qp.counters.duplicates == 1


def test_late_duplicate_write_does_not_overwrite_a_newer_one() -> None:
    pair = Pair()
    pattern(pair.a, 64)
    pair.a.mr.write(pair.a.mr.iova + 64, b"newer...")
    duplicate(pair, "a", 1, delay=50 * US)
    pair.a.post_send(WROpcode.RDMA_WRITE, length=8)
    pair.a.post_send(WROpcode.RDMA_WRITE, length=8, offset=64)
    pair.run()

    assert memory(pair.b, 8) == b"newer..."
    assert said(pair, "b")[-1] == "ACKNOWLEDGE 1 0x00"  # the newest, not the duplicate's
    assert pair.b.qp.counters.duplicates == 1
