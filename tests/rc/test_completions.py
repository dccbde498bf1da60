"""Completions and events of posted work requests (reference/transport#completion-order)."""

from __future__ import annotations

import errno
from typing import Any

import pytest

from each_case import each_case
from ibwire.base.errors import VerbsError
from ibwire.base.units import MS, US
from ibwire.rc.attributes import AddressVector, EventType, QPAttr, QPAttrMask, QPCap, QPState
from ibwire.rc.connect import bring_up, connect
from ibwire.rc.device import Device, gid_of
from ibwire.rc.qp import QueuePair
from ibwire.rc.work import (
    FlushType,
    RecvWR,
    SendFlags,
    SendWR,
    WCFlags,
    WCOpcode,
    WCStatus,
    WROpcode,
)
from ibwire.testing import End, Pair, Peer, create_queue_pair, statuses, summaries
from ibwire_layers import headers as h
from ibwire_layers.opcodes import OpCode
from ibwire_layers.outer import Ethernet

S = WCStatus

IMM = 0xA1B2C3D4

UNSIGNALLED = 0


def at(end: End, size: int, offset: int = 0) -> bytes:
    return end.mr.read(end.mr.iova + offset, size)


def turn(qp: QueuePair, state: QPState, mask: int = 0, **attr: Any) -> None:
    qp.modify(QPAttr(qp_state=state, **attr), QPAttrMask.STATE | mask)


# The fields of a completion.


@each_case(
    ("opcode", "completion", "byte_len"),
    [
        (WROpcode.SEND, 0, None),
        (WROpcode.SEND_WITH_IMM, 0, None),
        (WROpcode.RDMA_WRITE, 1, None),
        (WROpcode.RDMA_WRITE_WITH_IMM, 1, None),
        (WROpcode.RDMA_READ, 2, 8),
        (WROpcode.ATOMIC_CMP_AND_SWP, 3, 8),
        (WROpcode.ATOMIC_FETCH_AND_ADD, 4, 8),
        (WROpcode.FLUSH, 8, None),
        (WROpcode.ATOMIC_WRITE, 9, None),
    ],
)
def test_opcode_of_a_send_completion(
    opcode: WROpcode, completion: int, byte_len: int | None
) -> None:
    """Numbers of `ibv_wc_opcode` in verbs.h; byte_len counts for READ and atomics only."""
    pair = Pair()
    pair.b.post_recv(64)
    pair.a.post_send(opcode, length=8, wr_id=77, atomic_data=bytes(8))
    pair.run()

    (wc,) = pair.a.poll_send_cq()
    assert (wc.wr_id, wc.status, wc.opcode) == (77, S.SUCCESS, completion)
    assert wc.qp_num == pair.a.qp.number
    if byte_len is not None:
        assert wc.byte_len == byte_len


@each_case(
    ("opcode", "length", "completion", "flags", "imm"),
    [
        (WROpcode.SEND, 2500, 128, 0, 0),
        (WROpcode.SEND_WITH_IMM, 2500, 128, WCFlags.WITH_IMM, IMM),
        (WROpcode.SEND_WITH_IMM, 0, 128, WCFlags.WITH_IMM, IMM),
        (WROpcode.RDMA_WRITE_WITH_IMM, 2500, 129, WCFlags.WITH_IMM, IMM),
        (WROpcode.RDMA_WRITE_WITH_IMM, 0, 129, WCFlags.WITH_IMM, IMM),
    ],
)
def test_receive_completion(
    opcode: WROpcode, length: int, completion: int, flags: int, imm: int
) -> None:
    pair = Pair()
    data = bytes(n * 3 + (n >> 8) & 0xFF for n in range(length))
    pair.a.write(0, data)
    pair.b.post_recv(4096, wr_id=5)
    pair.a.post_send(opcode, length=length, imm_data=IMM)
    pair.run()

    (wc,) = pair.b.poll_recv_cq()
    assert (wc.wr_id, wc.status, wc.opcode, wc.byte_len) == (5, S.SUCCESS, completion, length)
    assert (wc.wc_flags, wc.imm_data, wc.qp_num) == (flags, imm, pair.b.qp.number)
    assert at(pair.b, length) == data
    last = pair.packets("a")[-1].extension(h.ImmDt)
    assert (last is None) == (imm == 0)
    if last is not None:
        assert last.pack() == IMM.to_bytes(4)  # as it was given, in network order


def test_plain_write_and_read_are_silent_at_the_other_side() -> None:
    pair = Pair()
    pair.b.post_recv(64)
    pair.a.post_send(WROpcode.RDMA_WRITE, length=64)
    pair.a.post_send(WROpcode.RDMA_READ, length=64)
    pair.run()

    assert statuses(pair.a.poll_send_cq()) == [(0, S.SUCCESS)] * 2
    assert pair.b.poll_recv_cq() == []
    assert pair.b.poll_events() == []


def test_completions_come_in_the_order_of_posting_whatever_is_answered_first() -> None:
    """The READ's response is lost and comes last; no later request completes before it."""
    pair = Pair()
    pair.b.post_recv(64)
    pair.drop("b", 1)
    posted = [
        WROpcode.RDMA_READ,
        WROpcode.RDMA_WRITE,
        WROpcode.SEND,
        WROpcode.ATOMIC_FETCH_AND_ADD,
        WROpcode.ATOMIC_WRITE,
        WROpcode.FLUSH,
    ]
    for wr_id, opcode in enumerate(posted):
        pair.a.post_send(opcode, length=8, offset=8 * wr_id, wr_id=wr_id, atomic_data=bytes(8))
    pair.run()

    assert statuses(pair.a.poll_send_cq()) == [(n, S.SUCCESS) for n in range(6)]
    assert summaries(pair.packets("a")).count("RDMA_READ_REQUEST 0") == 2
    assert pair.a.qp.counters.timeouts == 0


# Unsignalled requests.


def test_unsignalled_request_completes_without_a_word() -> None:
    pair = Pair()
    pair.a.post_send(WROpcode.RDMA_WRITE, length=8, flags=UNSIGNALLED, wr_id=1)
    pair.a.post_send(WROpcode.RDMA_WRITE, length=8, wr_id=2)
    pair.run()

    assert statuses(pair.a.poll_send_cq()) == [(2, S.SUCCESS)]


def test_queue_pair_that_signals_all_ignores_the_flag() -> None:
    pair = Pair(init={"sq_sig_all": True})
    pair.a.post_send(WROpcode.RDMA_WRITE, length=8, flags=UNSIGNALLED, wr_id=1)
    pair.run()

    assert statuses(pair.a.poll_send_cq()) == [(1, S.SUCCESS)]


def test_unsignalled_requests_complete_when_they_fail_or_are_flushed() -> None:
    """IBA 10.7.3.1."""
    pair = Pair()
    pair.a.post_send(WROpcode.RDMA_WRITE, length=8, flags=UNSIGNALLED, wr_id=1)
    pair.a.post_send(WROpcode.RDMA_WRITE, length=8, flags=UNSIGNALLED, wr_id=2, rkey=1)
    pair.a.post_send(WROpcode.RDMA_WRITE, length=8, flags=UNSIGNALLED, wr_id=3)
    pair.run()

    assert statuses(pair.a.poll_send_cq()) == [(2, S.REM_ACCESS_ERR), (3, S.WR_FLUSH_ERR)]


# Solicited events.


def listening() -> tuple[Pair, Any]:
    """A pair whose receiver completes into a queue with a channel."""
    pair = Pair()
    channel = pair.b.device.create_channel()
    pair.b.recv_cq = pair.b.device.create_cq(64, channel)
    pair.a.qp = create_queue_pair(pair.a.device, pd=pair.a.pd, send_cq=pair.a.send_cq)
    pair.b.qp = create_queue_pair(pair.b.device, pd=pair.b.pd, recv_cq=pair.b.recv_cq)
    connect(pair.a.qp, pair.b.qp)
    return pair, channel


def test_queue_armed_for_solicited_completions_waits_for_one() -> None:
    pair, channel = listening()
    pair.b.recv_cq.arm(solicited_only=True)
    pair.b.post_recv(64)
    pair.b.post_recv(64)
    pair.a.post_send(length=8)
    pair.run()
    assert channel.poll_event() is None

    pair.a.post_send(length=8, flags=SendFlags.SOLICITED)
    pair.run()
    assert channel.poll_event() is pair.b.recv_cq
    assert channel.poll_event() is None
    assert statuses(pair.b.poll_recv_cq()) == [(0, S.SUCCESS)] * 2


def test_error_completion_counts_as_solicited() -> None:
    pair, channel = listening()
    pair.b.recv_cq.arm(solicited_only=True)
    pair.b.post_recv(4)
    pair.a.post_send(length=8)
    pair.run()

    assert channel.poll_event() is pair.b.recv_cq
    assert statuses(pair.b.poll_recv_cq()) == [(0, S.LOC_LEN_ERR)]


# Errors and flushing.


def test_both_queues_flush_in_order_and_the_request_under_way_first() -> None:
    pair = Pair()
    for wr_id in (1, 2, 3):
        pair.b.post_recv(4096, wr_id=wr_id)
    pair.drop_if("a", lambda packet: packet.bth.psn > 0)
    for wr_id in (11, 12):
        pair.a.post_send(length=2000, wr_id=wr_id)
    pair.run(100 * US)  # FIRST has arrived and has taken request 1
    for end in (pair.a, pair.b):
        turn(end.qp, QPState.ERR)

    assert statuses(pair.a.poll_send_cq()) == [(n, S.WR_FLUSH_ERR) for n in (11, 12)]
    assert statuses(pair.b.poll_recv_cq()) == [(n, S.WR_FLUSH_ERR) for n in (1, 2, 3)]
    pair.a.post_send(length=8, wr_id=13)
    pair.b.post_recv(64, wr_id=4)
    assert statuses(pair.a.poll_send_cq()) == [(13, S.WR_FLUSH_ERR)]
    assert statuses(pair.b.poll_recv_cq()) == [(4, S.WR_FLUSH_ERR)]


def test_reset_drops_what_was_posted_without_completions() -> None:
    pair = Pair()
    pair.b.post_recv(64)
    pair.drop_if("a", lambda packet: True)
    pair.a.post_send(length=8)
    pair.a.post_send(WROpcode.RDMA_READ, length=8)
    pair.run(1 * MS)
    count = len(pair.packets())
    for end in (pair.a, pair.b):
        turn(end.qp, QPState.RESET)
    pair.run()

    assert pair.a.poll_send_cq() == []
    assert pair.b.poll_recv_cq() == []
    assert len(pair.packets()) == count  # no timer is left that would send it again
    with pytest.raises(VerbsError):
        pair.a.post_send(length=8)


def test_queue_pair_works_again_after_reset() -> None:
    """MSN, PSNs and latches are reset."""
    pair = Pair(retry_cnt=0)
    pair.a.post_send(WROpcode.RDMA_WRITE, length=8)
    pair.run()
    pair.a.post_send(WROpcode.RDMA_WRITE, length=8, rkey=1)
    pair.run()
    assert statuses(pair.a.poll_send_cq()) == [(0, S.SUCCESS), (0, S.REM_ACCESS_ERR)]
    for end in (pair.a, pair.b):
        turn(end.qp, QPState.RESET)
    connect(pair.a.qp, pair.b.qp, psn_a=1000, psn_b=2000)
    pair.log.clear()
    pair.a.post_send(WROpcode.RDMA_WRITE, length=8, wr_id=5)
    pair.run()

    assert summaries(pair.packets("a")) == ["RDMA_WRITE_ONLY 1000"]
    assert summaries(pair.packets("b")) == ["ACKNOWLEDGE 1000 0x00"]
    assert pair.packets("b")[0].extension(h.AETH).msn == 1
    assert statuses(pair.a.poll_send_cq()) == [(5, S.SUCCESS)]


def test_last_wqe_reached_is_raised_when_the_srq_gives_this_queue_pair_no_more() -> None:
    """The requests of the SRQ are not flushed; the one under way is."""
    pair = Pair()
    device = pair.b.device
    srq = device.create_srq(pair.b.pd)
    for wr_id in (1, 2, 3):
        srq.post_recv(RecvWR([pair.b.sge(0, 4096)], wr_id))
    pair.b.qp = create_queue_pair(device, pd=pair.b.pd, srq=srq, recv_cq=pair.b.recv_cq)
    pair.a.qp = create_queue_pair(pair.a.device, pd=pair.a.pd)
    connect(pair.a.qp, pair.b.qp)
    pair.drop("a", 2)
    pair.a.post_send(length=2000)
    pair.run(100 * US)
    turn(pair.b.qp, QPState.ERR)

    assert statuses(pair.b.poll_recv_cq()) == [(1, S.WR_FLUSH_ERR)]
    assert pair.b.poll_events() == [EventType.QP_LAST_WQE_REACHED]
    assert len(srq) == 2


# SQD.


@pytest.mark.parametrize("notify", [0, 1])
def test_sqd_finishes_what_has_begun_and_starts_nothing(notify: int) -> None:
    pair = Pair()
    pair.drop("a", 2)
    pair.a.post_send(WROpcode.RDMA_WRITE, length=2500, wr_id=1)
    pair.run(1 * US)  # all three packets are under way, the second is lost
    turn(
        pair.a.qp,
        QPState.SQD,
        QPAttrMask.EN_SQD_ASYNC_NOTIFY,
        en_sqd_async_notify=notify,
    )
    pair.a.post_send(WROpcode.RDMA_WRITE, length=8, remote=4096, wr_id=2)
    assert pair.a.qp.query().sq_draining == 1
    assert pair.a.poll_events() == []
    with pytest.raises(VerbsError):
        turn(pair.a.qp, QPState.RTS)
    pair.run()

    assert summaries(pair.packets("a")) == [
        "RDMA_WRITE_FIRST 0",
        "RDMA_WRITE_MIDDLE 1",
        "RDMA_WRITE_LAST 2",
        "RDMA_WRITE_MIDDLE 1",
        "RDMA_WRITE_LAST 2",
    ]
    assert statuses(pair.a.poll_send_cq()) == [(1, S.SUCCESS)]
    assert pair.a.poll_events() == [EventType.SQ_DRAINED] * notify
    assert pair.a.qp.query().sq_draining == 0

    turn(pair.a.qp, QPState.RTS)
    pair.run()
    assert summaries(pair.packets("a"))[5:] == ["RDMA_WRITE_ONLY 3"]
    assert statuses(pair.a.poll_send_cq()) == [(2, S.SUCCESS)]


def test_idle_send_queue_is_drained_at_once() -> None:
    pair = Pair()
    turn(pair.a.qp, QPState.SQD, QPAttrMask.EN_SQD_ASYNC_NOTIFY, en_sqd_async_notify=1)

    assert pair.a.poll_events() == [EventType.SQ_DRAINED]
    assert pair.a.qp.query().sq_draining == 0


def test_queue_pair_in_sqd_still_serves_its_peer() -> None:
    pair = Pair()
    turn(pair.b.qp, QPState.SQD)
    pair.b.post_recv(64)
    pair.a.post_send(length=8)
    pair.a.post_send(WROpcode.RDMA_READ, length=8)
    pair.run()

    assert statuses(pair.a.poll_send_cq()) == [(0, S.SUCCESS)] * 2
    assert statuses(pair.b.poll_recv_cq()) == [(0, S.SUCCESS)]


# Fence, inline, scatter and gather, nothing at all.


@pytest.mark.parametrize(
    ("flags", "waits"), [(SendFlags.SIGNALED, False), (SendFlags.SIGNALED | SendFlags.FENCE, True)]
)
@pytest.mark.parametrize("before", [WROpcode.RDMA_READ, WROpcode.ATOMIC_FETCH_AND_ADD])
def test_fence_waits_for_reads_and_atomics(before: WROpcode, flags: int, waits: bool) -> None:
    """The WRITE sends what the READ has brought, or what was there before."""
    pair = Pair()
    there = b"12345678"
    pair.a.write(0, b"before..")
    pair.b.write(0, there)
    pair.a.post_send(before, length=8)
    pair.a.post_send(WROpcode.RDMA_WRITE, length=8, remote=64, flags=flags)
    pair.run()

    order = [entry.device for entry in pair.log if entry.event == "sent"][:3]
    assert order == (["a", "b", "a"] if waits else ["a", "a", "b"])
    assert at(pair.b, 8, 64) == (there if waits else b"before..")


def test_inline_data_needs_no_key() -> None:
    pair = Pair()
    pair.a.qp.post_send(
        SendWR(
            WROpcode.RDMA_WRITE,
            (),
            SendFlags.INLINE | SendFlags.SIGNALED,
            remote_addr=pair.b.mr.iova,
            rkey=pair.b.mr.rkey,
            inline_data=b"hello",
        )
    )
    pair.run()

    assert at(pair.b, 6) == b"hello\0"


def test_too_much_inline_data_is_einval() -> None:
    pair = Pair(init={"cap": QPCap(max_inline_data=100)})
    flags = SendFlags.SIGNALED | SendFlags.INLINE
    pair.a.post_send(WROpcode.RDMA_WRITE, length=100, flags=flags)
    with pytest.raises(VerbsError) as caught:
        pair.a.post_send(WROpcode.RDMA_WRITE, length=101, flags=flags)

    assert caught.value.errno == errno.EINVAL


def test_several_sges_are_gathered_and_scattered_over_packet_bounds() -> None:
    """1000 + 0 + 1500 + 3 bytes sent, taken in as 1 + 2000 + 0 + 600."""
    pair = Pair()
    data = bytes(n * 7 + (n >> 8) & 0xFF for n in range(8192))
    pair.a.write(0, data)
    out = [(5000, 1000), (0, 0), (100, 1500), (3000, 3)]
    into = [(10, 1), (4000, 2000), (0, 0), (100, 600)]
    pair.b.qp.post_recv(RecvWR([pair.b.sge(*piece) for piece in into]))
    pair.a.qp.post_send(SendWR(sg_list=[pair.a.sge(*piece) for piece in out]))
    pair.run()

    message = data[5000:6000] + data[100:1600] + data[3000:3003]
    assert summaries(pair.packets("a")) == ["SEND_FIRST 0", "SEND_MIDDLE 1", "SEND_LAST 2"]
    assert b"".join(packet.payload for packet in pair.packets("a")) == message
    (wc,) = pair.b.poll_recv_cq()
    assert wc.byte_len == 2503
    assert at(pair.b, 1, 10) == message[:1]
    assert at(pair.b, 2000, 4000) == message[1:2001]
    assert at(pair.b, 600, 100) == message[2001:] + bytes(98)


def test_messages_of_no_bytes_are_one_packet_each_and_need_no_key() -> None:
    """C9-88: R_Key and address of an empty WRITE or READ are not looked at."""
    pair = Pair(psn_a=0xFFFFFE)
    pair.b.post_recv(0, wr_id=1)
    pair.b.post_recv(0, wr_id=2)
    for wr_id, opcode in enumerate(
        [WROpcode.RDMA_WRITE, WROpcode.RDMA_READ, WROpcode.SEND, WROpcode.RDMA_WRITE_WITH_IMM]
    ):
        pair.a.post_send(opcode, length=0, wr_id=wr_id, rkey=0, remote_addr=3)
    pair.run()

    assert summaries(pair.packets("a")) == [
        "RDMA_WRITE_ONLY 16777214",
        "RDMA_READ_REQUEST 16777215",
        "SEND_ONLY 0",
        "RDMA_WRITE_ONLY_WITH_IMMEDIATE 1",
    ]
    assert {packet.payload for packet in pair.packets("a") + pair.packets("b")} == {b""}
    assert [(wc.wr_id, wc.status, wc.byte_len) for wc in pair.a.poll_send_cq()] == [
        (n, S.SUCCESS, 0) for n in range(4)
    ]
    assert [(wc.wr_id, wc.opcode, wc.byte_len) for wc in pair.b.poll_recv_cq()] == [
        (1, WCOpcode.RECV, 0),
        (2, WCOpcode.RECV_RDMA_WITH_IMM, 0),
    ]


# FLUSH and ATOMIC WRITE.


def test_flush_and_atomic_write_are_answered_by_an_empty_read_response() -> None:
    pair = Pair()
    pair.a.post_send(WROpcode.ATOMIC_WRITE, length=0, remote=64, atomic_data=b"8 bytes!", wr_id=1)
    pair.a.qp.post_send(
        SendWR(
            WROpcode.FLUSH,
            wr_id=2,
            remote_addr=pair.b.mr.iova,
            rkey=pair.b.mr.rkey,
            flush_type=FlushType.GLOBAL | FlushType.PERSISTENT,
            length=100,
        )
    )
    pair.run()

    write, flush = pair.packets("a")
    assert summaries([write, flush]) == ["ATOMIC_WRITE 0", "FLUSH 1"]
    assert (write.payload, write.extension(h.RETH).dma_len) == (b"8 bytes!", 8)
    assert [type(header) for header in flush.extensions] == [h.FETH, h.RETH]
    assert (flush.extensions[0].plt, flush.extensions[0].sel) == (3, 0)  # type: ignore[attr-defined]
    assert (flush.extensions[1].dma_len, flush.payload) == (100, b"")  # type: ignore[attr-defined]
    answers = pair.packets("b")
    assert summaries(answers) == [
        "RDMA_READ_RESPONSE_ONLY 0 0x00",
        "RDMA_READ_RESPONSE_ONLY 1 0x00",
    ]
    assert [packet.payload for packet in answers] == [b"", b""]
    assert [packet.extension(h.AETH).msn for packet in answers] == [1, 2]
    assert at(pair.b, 8, 64) == b"8 bytes!"
    assert statuses(pair.a.poll_send_cq()) == [(1, S.SUCCESS), (2, S.SUCCESS)]


# Congestion.


def test_cnp_of_a_connectx_is_counted_and_reported() -> None:
    """The ConnectX-4 Lx CNP of reference/wire-formats#icrc-examples, for QP 0x118."""
    device = Device("np", "10.0.18.1")
    qp = create_queue_pair(device)
    device.qps[0x118] = qp  # the number that the vector names
    bring_up(qp, AddressVector(dgid=gid_of("10.0.17.1")), dest_qp_num=0x99, rq_psn=7)
    frame = Ethernet().pack() + bytes.fromhex(
        "45c2003c718c4000401191610a0011010a001201 000012b700280000 8100ffff4000011800000000"
        + "00" * 16
        + "82fd002a"
    )
    device.receive(frame, 123)

    assert device.counters["bad_icrc"] == 0
    assert qp.counters.cnps_received == 1
    (event,) = device.congestion
    assert (event.qp, event.kind, event.time) == (qp, "cnp", 123)
    assert device.poll_transmit(123) is None  # a CNP is not acknowledged
    assert qp.query().rq_psn == 7  # and takes no PSN


@pytest.mark.parametrize("ecn", [0, 1, 2, 3])
def test_ce_mark_is_counted_and_changes_nothing_else(ecn: int) -> None:
    lone = Peer(mtu=256, peer_psn=100)
    answer = lone.receive_packet(
        OpCode.RC_RDMA_WRITE_ONLY, 100, b"12345678", ack_req=1, **{"ip.ecn": ecn}
    )

    marked = int(ecn == 3)
    assert summaries(answer) == ["ACKNOWLEDGE 100 0x00"]
    assert lone.memory[:8] == b"12345678"
    assert lone.qp.counters.ce_marked == marked
    assert [(event.qp, event.kind) for event in lone.device.congestion] == [
        (lone.qp, "ce")
    ] * marked
