"""The error scenarios that RoCE simulators list, each as one readable exchange.

`said` gives what one side sent as opcode, PSN and syndrome. The specification's profile
sends live credits: the syndrome of an ACK is the code of the remaining receive
requests (0x00 for none, 0x01 for one: reference/transport#credit-codes).
"""

from __future__ import annotations

from dataclasses import replace
from itertools import count

import pytest

from ibwire.base.node import Frame
from ibwire.base.units import MS, US, Time
from ibwire.rc.attributes import EventType, QPAttr, QPAttrMask, QPState
from ibwire.rc.memory import Access
from ibwire.rc.profile import CONNECTX, RDMAVT, RXE, SPEC, Profile
from ibwire.rc.work import SGE, RecvWR, WCStatus, WROpcode
from ibwire.testing import End, Pair, summaries
from ibwire_layers import headers as h
from ibwire_layers.opcodes import OpCode
from ibwire_layers.packet import Packet

S = WCStatus

ATOMICS = {WROpcode.ATOMIC_CMP_AND_SWP, WROpcode.ATOMIC_FETCH_AND_ADD}

REMOTE = [WROpcode.RDMA_WRITE, WROpcode.RDMA_READ, WROpcode.ATOMIC_FETCH_AND_ADD]

REQUESTS = {
    WROpcode.RDMA_WRITE: "RDMA_WRITE_ONLY",
    WROpcode.RDMA_READ: "RDMA_READ_REQUEST",
    WROpcode.ATOMIC_FETCH_AND_ADD: "FETCH_ADD",
}


def said(pair: Pair, sender: str) -> list[str]:
    return summaries(pair.packets(sender))


def times(pair: Pair, sender: str) -> list[Time]:
    return [each.time for each in pair.log if (each.device, each.event) == (sender, "sent")]


def statuses(pair: Pair) -> list[tuple[int, WCStatus]]:
    return [(wc.wr_id, wc.status) for wc in pair.a.poll_send_cq()]


def receives(pair: Pair) -> list[tuple[int, WCStatus]]:
    return [(wc.wr_id, wc.status) for wc in pair.b.poll_recv_cq()]


def states(pair: Pair) -> tuple[QPState, QPState]:
    return pair.a.qp.state, pair.b.qp.state


def pattern(end: End, size: int, seed: int = 1) -> bytes:
    """Bytes of which no two pieces are alike, at the start of an end's memory."""
    data = b"".join((seed << 24 | n).to_bytes(4) for n in range(-(-size // 4)))[:size]
    end.write(0, data)
    return data


def memory(end: End, size: int, offset: int = 0) -> bytes:
    return end.read(offset, size)


def number(end: End, offset: int = 0) -> int:
    """A 64-bit number in little-endian order (reference/transport#atomic-operands)."""
    return int.from_bytes(memory(end, 8, offset), "little")


def duplicate(pair: Pair, sender: str, which: int, delay: Time) -> None:
    """Let a second copy of one frame arrive later."""

    number = count(1)

    def stage(frame: Frame, now: Time) -> list[tuple[Time, Frame]]:
        return [(0, frame), (delay, frame)] if next(number) == which else [(0, frame)]

    pair.add_stage(sender, stage)


def rewrite(pair: Pair, which: int, opcode: int) -> None:
    """Give one frame of `a` another opcode, without extension headers and with a good ICRC."""

    number = count(1)

    def stage(frame: Frame, now: Time) -> list[tuple[Time, Frame]]:
        if next(number) != which:
            return [(0, frame)]
        packet = Packet.parse(frame)
        changed = replace(packet, bth=replace(packet.bth, opcode=opcode), extensions=())
        return [(0, changed.repaired().build())]

    pair.add_stage("a", stage)


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


# The requester's faults.


def refused(
    pair: Pair, opcode: WROpcode, *, nak: int, status: WCStatus, event: EventType, **wr: int
) -> None:
    """Post a request that is NAKed and another; check wire, completions, states and memory."""
    before = memory(pair.b, pair.b.mr.length)
    pair.a.post_send(opcode, length=8, wr_id=1, **wr)
    pair.a.post_send(WROpcode.RDMA_WRITE, length=8, wr_id=2)
    pair.run()

    assert said(pair, "a") == [f"{REQUESTS[opcode]} 0", "RDMA_WRITE_ONLY 1"]
    assert said(pair, "b") == [f"ACKNOWLEDGE 0 {nak:#04x}"]
    assert pair.packets("b")[0].extension(h.AETH).msn == 0
    assert statuses(pair) == [(1, status), (2, S.WR_FLUSH_ERR)]
    assert states(pair) == (QPState.ERR, QPState.ERR)
    assert pair.b.poll_events() == [event]
    assert memory(pair.b, pair.b.mr.length) == before


@pytest.mark.parametrize("opcode", REMOTE)
def test_bad_rkey_is_a_remote_access_error(opcode: WROpcode) -> None:
    """nak-bad-rkey-write, -read, -atomic: an ACKNOWLEDGE also for READ and atomics."""
    pair = Pair()
    refused(
        pair,
        opcode,
        nak=0x62,
        status=S.REM_ACCESS_ERR,
        event=EventType.QP_ACCESS_ERR,
        rkey=pair.b.mr.rkey ^ 1,
    )


@pytest.mark.parametrize("opcode", REMOTE)
def test_region_without_the_permission_is_a_remote_access_error(opcode: WROpcode) -> None:
    """nak-no-write-permission."""
    pair = Pair()
    region = pair.b.pd.register(64, int(Access.LOCAL_WRITE))
    refused(
        pair,
        opcode,
        nak=0x62,
        status=S.REM_ACCESS_ERR,
        event=EventType.QP_ACCESS_ERR,
        rkey=region.rkey,
        remote_addr=region.iova,
    )


@pytest.mark.parametrize("opcode", REMOTE)
def test_queue_pair_without_the_permission_is_an_invalid_request(opcode: WROpcode) -> None:
    pair = Pair(qp_access_flags=int(Access.LOCAL_WRITE))
    refused(pair, opcode, nak=0x61, status=S.REM_INV_REQ_ERR, event=EventType.QP_REQ_ERR)


@pytest.mark.parametrize("opcode", REMOTE)
def test_out_of_bounds_by_one_byte_is_a_remote_access_error(opcode: WROpcode) -> None:
    """nak-write-out-of-bounds; an atomic must be aligned, so it is 8 bytes beyond."""
    pair = Pair(size=4096)
    beyond = 4096 - (0 if opcode in ATOMICS else 7)
    refused(
        pair,
        opcode,
        nak=0x62,
        status=S.REM_ACCESS_ERR,
        event=EventType.QP_ACCESS_ERR,
        remote_addr=pair.b.mr.iova + beyond,
    )


def test_long_write_that_ends_out_of_bounds_writes_nothing() -> None:
    """nak-bad-rkey-write-multi: refused at FIRST, what follows is dropped in silence."""
    pair = Pair(size=4096)
    pattern(pair.a, 3000)
    pair.a.post_send(WROpcode.RDMA_WRITE, length=3000, remote=4096 - 2999)
    pair.run()

    assert said(pair, "a") == ["RDMA_WRITE_FIRST 0", "RDMA_WRITE_MIDDLE 1", "RDMA_WRITE_LAST 2"]
    assert said(pair, "b") == ["ACKNOWLEDGE 0 0x62"]
    assert statuses(pair) == [(0, S.REM_ACCESS_ERR)]
    assert memory(pair.b, 4096) == bytes(4096)


def test_unexpected_opcode_middle_first() -> None:
    """probe-odd-frames: NAK 0x61."""
    pair = Pair()
    pair.b.post_recv(4096, wr_id=3)
    rewrite(pair, 1, OpCode.RC_SEND_MIDDLE)
    pattern(pair.a, 1024)
    pair.a.post_send(length=1024)
    pair.run()

    assert said(pair, "b") == ["ACKNOWLEDGE 0 0x61"]
    assert statuses(pair) == [(0, S.REM_INV_REQ_ERR)]
    assert receives(pair) == [(3, S.WR_FLUSH_ERR)]  # no message had taken it
    assert pair.b.poll_events() == [EventType.QP_REQ_ERR]
    assert memory(pair.b, 1024) == bytes(1024)


@pytest.mark.parametrize(
    ("profile", "status"),
    [(SPEC, S.LOC_LEN_ERR), (RXE, S.REM_INV_REQ_ERR), (RDMAVT, S.LOC_QP_OP_ERR)],
    ids=lambda value: value.name,
)
def test_unexpected_opcode_only_inside_a_message(profile: Profile, status: WCStatus) -> None:
    """probe-odd-frames; the completion of the current receive request shows why
    (reference/habits#rxe-statuses).
    """
    pair = Pair(profile=profile)
    pair.b.post_recv(4096, wr_id=3)
    pair.b.post_recv(4096, wr_id=4)
    rewrite(pair, 2, OpCode.RC_SEND_ONLY)
    data = pattern(pair.a, 2000)
    pair.a.post_send(length=2000)
    pair.run()

    assert said(pair, "b")[-1] == "ACKNOWLEDGE 1 0x61"
    assert statuses(pair) == [(0, S.REM_INV_REQ_ERR)]
    assert receives(pair) == [(3, status), (4, S.WR_FLUSH_ERR)]
    assert memory(pair.b, 2000) == data[:1024] + bytes(976)


@pytest.mark.parametrize("opcode", [0x15, 0x18, 0x1F])
def test_reserved_opcode_is_an_invalid_request(opcode: int) -> None:
    pair = Pair()
    rewrite(pair, 1, opcode)
    pair.a.post_send(WROpcode.RDMA_WRITE, length=8)
    pair.run()

    assert said(pair, "b") == ["ACKNOWLEDGE 0 0x61"]
    assert statuses(pair) == [(0, S.REM_INV_REQ_ERR)]
    assert pair.b.poll_events() == [EventType.QP_REQ_ERR]
    assert states(pair) == (QPState.ERR, QPState.ERR)


def test_rxe_drops_a_reserved_opcode_in_silence() -> None:
    """probe-odd-frames: the queue pair stays, and the timeout heals it."""
    pair = Pair(profile=RXE)
    rewrite(pair, 1, 0x1F)
    pair.a.post_send(WROpcode.RDMA_WRITE, length=8)
    pair.run()

    assert said(pair, "b") == ["ACKNOWLEDGE 0 0x1f"]
    assert statuses(pair) == [(0, S.SUCCESS)]
    assert pair.a.qp.counters.timeouts == 1


@pytest.mark.parametrize(
    ("profile", "nak", "local", "peer"),
    [
        (SPEC, 0x61, S.REM_INV_REQ_ERR, S.LOC_LEN_ERR),
        (CONNECTX, 0x61, S.REM_INV_REQ_ERR, S.LOC_LEN_ERR),
        (RDMAVT, 0x61, S.REM_INV_REQ_ERR, S.LOC_QP_OP_ERR),
        (RXE, 0x63, S.REM_OP_ERR, S.LOC_QP_OP_ERR),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_send_longer_than_the_receive_buffer(
    profile: Profile, nak: int, local: WCStatus, peer: WCStatus
) -> None:
    """nak-send-too-big; reference/habits#rxe-send-too-long."""
    pair = Pair(profile=profile)
    pattern(pair.a, 101)
    pair.b.post_recv(100, wr_id=3)
    pair.b.post_recv(4096, wr_id=4)
    pair.a.post_send(length=101, wr_id=1)
    pair.run()

    assert said(pair, "a") == ["SEND_ONLY 0"]
    assert said(pair, "b") == [f"ACKNOWLEDGE 0 {nak:#04x}"]
    assert statuses(pair) == [(1, local)]
    assert receives(pair) == [(3, peer), (4, S.WR_FLUSH_ERR)]
    assert states(pair) == (QPState.ERR, QPState.ERR)
    assert memory(pair.b, 101) == bytes(101)


# The responder's faults.


@pytest.mark.parametrize(
    ("profile", "peer"),
    [(SPEC, S.LOC_PROT_ERR), (CONNECTX, S.LOC_PROT_ERR), (RXE, S.LOC_QP_OP_ERR)],
    ids=lambda value: value.name,
)
def test_receive_buffer_at_fault_is_a_remote_operational_error(
    profile: Profile, peer: WCStatus
) -> None:
    """As pyverbs' test_mr_rereg_addr expects: the sender sees "remote operation error"."""
    pair = Pair(profile=profile)
    buffer = SGE(pair.b.mr.iova, 100, pair.b.mr.lkey ^ 1)
    pair.b.qp.post_recv(RecvWR([buffer], wr_id=3))
    pair.a.post_send(length=100, wr_id=1)
    pair.run()

    assert said(pair, "b") == ["ACKNOWLEDGE 0 0x63"]
    assert statuses(pair) == [(1, S.REM_OP_ERR)]
    assert receives(pair) == [(3, peer)]
    assert states(pair) == (QPState.ERR, QPState.ERR)
    assert pair.b.poll_events() == []


def test_queue_pair_in_error_answers_nothing() -> None:
    pair = Pair(retry_cnt=1)
    pair.b.post_recv(64, wr_id=3)
    pair.b.qp.modify(QPAttr(qp_state=QPState.ERR), QPAttrMask.STATE)
    assert receives(pair) == [(3, S.WR_FLUSH_ERR)]
    pair.a.post_send(length=64, wr_id=1)
    pair.a.post_send(WROpcode.RDMA_READ, length=64, wr_id=2)
    pair.run()

    assert said(pair, "b") == []
    assert statuses(pair) == [(1, S.RETRY_EXC_ERR), (2, S.WR_FLUSH_ERR)]
    assert receives(pair) == []


def test_lost_fatal_nak_ends_in_retry_exceeded_at_the_requester() -> None:
    """The responder is in error and drops the request (reference/transport#after-fatal-nak)."""
    pair = Pair(retry_cnt=2)
    pair.drop("b", 1)
    pair.a.post_send(WROpcode.RDMA_WRITE, length=8, rkey=pair.b.mr.rkey ^ 1)
    pair.run()

    assert said(pair, "a") == ["RDMA_WRITE_ONLY 0"] * 3
    assert said(pair, "b") == ["ACKNOWLEDGE 0 0x62"]
    assert statuses(pair) == [(0, S.RETRY_EXC_ERR)]
    assert states(pair) == (QPState.ERR, QPState.ERR)


def test_overrun_of_the_receivers_completion_queue_takes_its_queue_pair_down() -> None:
    """Class G: CQ_ERR, then QP_FATAL; nothing is sent, so the peer runs out of retries."""
    pair = Pair(retry_cnt=1)
    pair.b.recv_cq.resize(1)
    for wr_id in (1, 2, 3):
        pair.b.post_recv(64, wr_id=wr_id)
    pair.a.post_send(length=64, wr_id=1)
    pair.run()
    pair.a.post_send(length=64, wr_id=2)
    pair.run()

    assert said(pair, "b") == ["ACKNOWLEDGE 0 0x02"]
    assert pair.b.poll_events() == [EventType.CQ_ERR, EventType.QP_FATAL]
    assert states(pair) == (QPState.ERR, QPState.ERR)
    assert receives(pair) == [(1, S.SUCCESS)]  # what was there can still be polled
    assert statuses(pair) == [(1, S.SUCCESS), (2, S.RETRY_EXC_ERR)]


def test_overrun_of_the_senders_completion_queue_takes_its_queue_pair_down() -> None:
    pair = Pair()
    pair.a.send_cq.resize(1)
    pair.a.post_send(WROpcode.RDMA_WRITE, length=8, wr_id=1)
    pair.a.post_send(WROpcode.RDMA_WRITE, length=8, wr_id=2)
    pair.a.post_send(WROpcode.RDMA_WRITE, length=8, wr_id=3)
    pair.run()

    assert pair.a.poll_events() == [EventType.CQ_ERR, EventType.QP_FATAL]
    assert states(pair) == (QPState.ERR, QPState.RTS)
    assert statuses(pair) == [(1, S.SUCCESS)]
