"""Requests with a fault, and responders with one, each as one readable exchange.

As in `test_error_scenarios`: `said` gives opcode, PSN and syndrome of what one side sent.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import count

import pytest

from ibwire.base.node import Frame
from ibwire.base.units import Time
from ibwire.rc.attributes import EventType, QPAttr, QPAttrMask, QPState
from ibwire.rc.memory import Access
from ibwire.rc.profile import CONNECTX, RDMAVT, RXE, SPEC, Profile
from ibwire.rc.work import SGE, RecvWR, WCStatus, WROpcode
from ibwire.testing import Pair
from ibwire_layers import headers as h
from ibwire_layers.opcodes import OpCode
from ibwire_layers.packet import Packet
from rc.error_scenario import memory, pattern, receives, said, states, statuses

S = WCStatus

ATOMICS = {WROpcode.ATOMIC_CMP_AND_SWP, WROpcode.ATOMIC_FETCH_AND_ADD}

REMOTE = [WROpcode.RDMA_WRITE, WROpcode.RDMA_READ, WROpcode.ATOMIC_FETCH_AND_ADD]

REQUESTS = {
    WROpcode.RDMA_WRITE: "RDMA_WRITE_ONLY",
    WROpcode.RDMA_READ: "RDMA_READ_REQUEST",
    WROpcode.ATOMIC_FETCH_AND_ADD: "FETCH_ADD",
}


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
