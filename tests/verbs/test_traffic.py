"""Messages of every service through the face, as pyverbs scripts move them."""

from __future__ import annotations

import os
import socket
import tempfile
from typing import Any

import pytest

from ibwire.rc.profile import PROFILES
from ibwire.verbs import libibverbs_enums as e
from ibwire.verbs import mem_alloc
from ibwire.verbs.addr import AH
from ibwire.verbs.cq import CQEX, CqInitAttrEx
from ibwire.verbs.mr import MR
from ibwire.verbs.network import Network, use
from ibwire.verbs.qp import QP, DataBuffer, QPCap, QPInitAttrEx
from ibwire.verbs.srq import SRQ, SrqAttr, SrqInitAttr, SrqInitAttrEx
from ibwire.verbs.wr import SGE, RecvWR, SendWR
from ibwire.verbs.xrcd import XRCD, XRCDInitAttr
from verbs.ends import QKEY, End, ends

WR = e.ibv_wr_opcode
OK = e.ibv_wc_status.IBV_WC_SUCCESS
WC = e.ibv_wc_opcode


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("qp_type", [e.ibv_qp_type.IBV_QPT_RC, e.ibv_qp_type.IBV_QPT_UC])
def test_send_arrives_on_both_connected_services(qp_type: int, profile: str) -> None:
    with use(Network(profile=profile)):
        a, b = ends(qp_type)
        a.mr.write("ibwire" * 500, 3000)
        b.qp.post_recv(b.recv(3000, 100, wr_id=5))
        a.qp.post_send(a.send(WR.IBV_WR_SEND, 3000, wr_id=6))

        sent, received = a.wc(), b.wc()

        assert (sent.wr_id, sent.status, sent.opcode) == (6, OK, WC.IBV_WC_SEND)
        assert (received.wr_id, received.status, received.opcode) == (5, OK, WC.IBV_WC_RECV)
        assert (received.byte_len, received.qp_num) == (3000, b.qp.qp_num)
        assert b.mr.read(3000, 100) == b"ibwire" * 500


def test_datagram_arrives_behind_forty_bytes_and_can_be_answered() -> None:
    a, b = ends(e.ibv_qp_type.IBV_QPT_UD)
    a.mr.write(b"ping", 4)
    b.qp.post_recv(b.recv(44))
    datagram = a.send(WR.IBV_WR_SEND, 4)
    datagram.set_wr_ud(a.handle(b), b.qp.qp_num, QKEY)
    a.qp.post_send(datagram)
    received = b.wc()
    assert (received.status, received.byte_len, received.src_qp) == (OK, 44, a.qp.qp_num)
    assert received.wc_flags & e.ibv_wc_flags.IBV_WC_GRH
    assert b.mr.read(4, 40) == b"ping"

    b.mr.write(b"pong", 4, 100)
    a.qp.post_recv(a.recv(44, 200))
    answer = b.send(WR.IBV_WR_SEND, 4, 100)
    back = AH(b.pd, wc=received, grh=b.mr.buf, port_num=1)
    answer.set_wr_ud(back, received.src_qp, QKEY)
    b.qp.post_send(answer)
    a.wc()

    assert a.wc().opcode == WC.IBV_WC_RECV
    assert a.mr.read(4, 240) == b"pong"


@pytest.mark.parametrize("opcode", [WR.IBV_WR_SEND_WITH_IMM, WR.IBV_WR_RDMA_WRITE_WITH_IMM])
def test_immediate_data_of_the_completion_is_that_of_the_request(opcode: int) -> None:
    a, b = ends()
    b.qp.post_recv(b.recv())
    request = a.send(opcode, imm_data=socket.htonl(0x01020304))
    request.set_wr_rdma(b.mr.rkey, b.mr.buf)
    a.qp.post_send(request)

    received = b.wc()

    assert received.imm_data == socket.htonl(0x01020304)
    assert received.wc_flags & e.ibv_wc_flags.IBV_WC_WITH_IMM


def test_immediate_data_is_big_endian_in_the_packet() -> None:
    frames: list[bytes] = []

    def tap(frame: bytes, now: int) -> list[tuple[int, bytes]]:
        frames.append(frame)
        return [(0, frame)]

    with use(Network(tap=tap)):
        a, b = ends()
        b.qp.post_recv(b.recv())
        a.qp.post_send(a.send(WR.IBV_WR_SEND_WITH_IMM, 4, imm_data=socket.htonl(0x01020304)))
        b.wc()

    # Ethernet 14, IPv4 20, UDP 8, BTH 12.
    assert frames[0][54:58] == bytes([1, 2, 3, 4])


@pytest.mark.parametrize("opcode", [WR.IBV_WR_RDMA_WRITE, WR.IBV_WR_RDMA_READ])
def test_remote_memory_is_written_and_read(opcode: int) -> None:
    a, b = ends()
    source, target = (a, b) if opcode == WR.IBV_WR_RDMA_WRITE else (b, a)
    source.mr.write(bytes(range(200)) * 20, 4000)
    request = a.send(opcode, 4000)
    request.set_wr_rdma(b.mr.rkey, b.mr.buf)
    a.qp.post_send(request)

    assert a.wc().status == OK
    assert target.mr.read(4000, 0) == bytes(range(200)) * 20


def test_reading_memory_delivers_an_unacknowledged_write() -> None:
    """UC completes a WRITE when it has left; its bytes are still on the wire."""
    a, b = ends(e.ibv_qp_type.IBV_QPT_UC)
    a.mr.write(b"landed", 6)
    request = a.send(WR.IBV_WR_RDMA_WRITE, 6)
    request.set_wr_rdma(b.mr.rkey, b.mr.buf)
    a.qp.post_send(request)
    a.wc()

    assert b.mr.read(6, 0) == b"landed"


def test_compare_and_swap_then_fetch_and_add() -> None:
    a, b = ends()
    b.mr.write((5).to_bytes(8, "little"), 8)
    swap = a.send(WR.IBV_WR_ATOMIC_CMP_AND_SWP)
    swap.set_wr_atomic(b.mr.rkey, b.mr.buf, 5, 40)
    add = a.send(WR.IBV_WR_ATOMIC_FETCH_AND_ADD, 8, 8)
    add.set_wr_atomic(b.mr.rkey, b.mr.buf, 2)
    swap.next_wr = add
    a.qp.post_send(swap)

    opcodes = [a.wc().opcode, a.wc().opcode]

    assert opcodes == [WC.IBV_WC_COMP_SWAP, WC.IBV_WC_FETCH_ADD]
    assert int.from_bytes(a.mr.read(8, 0), "little") == 5
    assert int.from_bytes(a.mr.read(8, 8), "little") == 40
    assert int.from_bytes(b.mr.read(8, 0), "little") == 42


def test_inline_data_is_read_when_it_is_posted() -> None:
    a, b = ends(max_inline_data=64)
    b.qp.post_recv(b.recv())
    a.mr.write(b"before", 6)
    flags = e.ibv_send_flags.IBV_SEND_INLINE | e.ibv_send_flags.IBV_SEND_SIGNALED
    a.qp.post_send(a.send(WR.IBV_WR_SEND, 6, send_flags=flags))
    a.mr.write(b"after!", 6)
    b.wc()

    assert b.mr.read(6, 0) == b"before"


def test_shared_receive_queue_serves_a_connection() -> None:
    a, b = End("ibwire0"), End("ibwire1", srq=lambda pd: SRQ(pd, SrqInitAttr(SrqAttr(10))))
    a.connect(b)
    b.connect(a)
    b.srq.post_recv(b.recv(wr_id=9))
    a.qp.post_send(a.send(WR.IBV_WR_SEND))

    assert b.wc().wr_id == 9


def test_extended_queue_pair_builds_requests_call_by_call() -> None:
    flags = e.ibv_qp_create_send_ops_flags
    a, b = ends(
        send_ops_flags=flags.IBV_QP_EX_WITH_SEND_WITH_IMM
        | flags.IBV_QP_EX_WITH_RDMA_WRITE
        | flags.IBV_QP_EX_WITH_ATOMIC_WRITE
        | flags.IBV_QP_EX_WITH_FLUSH,
        max_inline_data=64,
    )
    b.qp.post_recv(b.recv(64, 1024))
    address = mem_alloc.malloc(8)
    mem_alloc.write(address, b"in-line!", 8)
    a.mr.write(b"0123456789", 10)
    qp = a.qp
    qp.wr_start()
    qp.wr_flags = e.ibv_send_flags.IBV_SEND_SIGNALED
    qp.wr_id = 1
    qp.wr_rdma_write(b.mr.rkey, b.mr.buf)
    qp.wr_set_sge_list(2, [a.sge(3, 7), a.sge(3, 0)])
    qp.wr_id = 2
    qp.wr_atomic_write(b.mr.rkey, b.mr.buf + 16, b"eight...")
    qp.wr_id = 3
    qp.wr_flush(
        b.mr.rkey,
        b.mr.buf,
        24,
        e.ibv_placement_type.IBV_FLUSH_GLOBAL,
        e.ibv_selectivity_level.IBV_FLUSH_RANGE,
    )
    qp.wr_id = 4
    qp.wr_send_imm(0x1234)
    qp.wr_set_inline_data_list(2, [DataBuffer(address, 3), DataBuffer(address + 3, 5)])
    qp.wr_complete()

    done = [a.wc() for _ in range(4)]
    received = b.wc()

    assert [(wc.wr_id, wc.status) for wc in done] == [(1, OK), (2, OK), (3, OK), (4, OK)]
    assert b.mr.read(6, 0) == b"789012"
    assert b.mr.read(8, 16) == b"eight..."
    assert b.mr.read(8, 1024) == b"in-line!"
    assert received.imm_data == socket.htonl(0x1234)


def test_aborted_list_posts_nothing() -> None:
    a, b = ends(send_ops_flags=e.ibv_qp_create_send_ops_flags.IBV_QP_EX_WITH_SEND)
    b.qp.post_recv(b.recv())
    a.qp.wr_start()
    a.qp.wr_send()
    a.qp.wr_set_sge(a.sge(4))
    a.qp.wr_abort()

    assert b.cq.poll() == (0, [])


def test_extended_cq_shows_one_completion_after_the_other() -> None:
    a, b = ends()
    cqex = CQEX(b.ctx, CqInitAttrEx(wc_flags=e.IBV_WC_STANDARD_FLAGS))
    init = QPInitAttrEx(
        e.ibv_qp_type.IBV_QPT_RC, scq=cqex, rcq=cqex, cap=QPCap(), comp_mask=1, pd=b.pd
    )
    b.qp = QP(b.ctx, init, b.attr())
    a.qp.modify(_reset(), e.ibv_qp_attr_mask.IBV_QP_STATE)
    a.connect(b)
    b.connect(a)
    for wr_id in (1, 2):
        b.qp.post_recv(b.recv(wr_id=wr_id))
        a.qp.post_send(a.send(WR.IBV_WR_SEND_WITH_IMM, imm_data=socket.htonl(wr_id)))

    assert cqex.start_poll(None) == 0
    first = cqex.wr_id, cqex.status, cqex.read_opcode(), cqex.read_imm_data()
    while cqex.poll_next():
        pass
    second = cqex.wr_id, cqex.read_byte_len(), cqex.read_qp_num()
    assert cqex.poll_next() == 2  # ENOENT
    cqex.end_poll()

    assert first == (1, OK, WC.IBV_WC_RECV, socket.htonl(1))
    assert second == (2, 8, b.qp.qp_num)


def _reset() -> Any:
    attr = End.attr()
    attr.qp_state = e.ibv_qp_state.IBV_QPS_RESET
    return attr


def test_xrc_message_goes_to_its_shared_receive_queue() -> None:
    with tempfile.TemporaryFile() as file:
        mask = e.ibv_xrcd_init_attr_mask
        flags = mask.IBV_XRCD_INIT_ATTR_FD | mask.IBV_XRCD_INIT_ATTR_OFLAGS
        a, b = End("ibwire0"), End("ibwire1")
        xrcd = XRCD(b.ctx, XRCDInitAttr(flags, os.O_CREAT, file.fileno()))
        same = XRCD(b.ctx, XRCDInitAttr(flags, 0, file.fileno()))
        srq_attr = SrqInitAttrEx(10)
        srq_attr.srq_type = e.ibv_srq_type.IBV_SRQT_XRC
        srq_attr.pd, srq_attr.xrcd, srq_attr.cq, srq_attr.comp_mask = b.pd, same, b.cq, 15
        srq = SRQ(b.ctx, srq_attr)
        a.qp = QP(
            a.ctx,
            QPInitAttrEx(
                e.ibv_qp_type.IBV_QPT_XRC_SEND, scq=a.cq, cap=QPCap(), comp_mask=1, pd=a.pd
            ),
            a.attr(),
        )
        b.qp = QP(
            b.ctx,
            QPInitAttrEx(e.ibv_qp_type.IBV_QPT_XRC_RECV, comp_mask=2, xrcd=xrcd),
            b.attr(),
        )
        a.connect(b)
        b.connect(a)
        srq.post_recv(b.recv(wr_id=3))
        a.mr.write(b"xrc", 3)
        message = a.send(WR.IBV_WR_SEND, 3)
        message.set_qp_type_xrc(srq.get_srq_num())
        a.qp.post_send(message)

        assert b.wc().wr_id == 3
        assert b.mr.read(3, 0) == b"xrc"


def test_region_on_allocated_memory_shares_its_bytes_with_another() -> None:
    a, b = ends()
    address = mem_alloc.posix_memalign(64, 64)
    whole = MR(b.pd, 64, 7, address=address)
    part = MR(b.pd, 8, 1, address=address + 8)
    b.qp.post_recv(RecvWR(0, 1, [SGE(part.buf, 8, part.lkey)]))
    a.mr.write(b"together", 8)
    a.qp.post_send(a.send(WR.IBV_WR_SEND))
    b.wc()

    assert whole.read(8, 8) == part.read(8, 0) == mem_alloc.read(address, 8, 8) == b"together"
    assert SGE(address, 64, whole.lkey).read(8, 8) == b"together"


def test_both_ends_may_be_on_one_device() -> None:
    a, b = End("ibwire0"), End("ibwire0")
    a.connect(b)
    b.connect(a)
    b.qp.post_recv(b.recv())
    a.qp.post_send(a.send(WR.IBV_WR_SEND))

    assert b.wc().status == OK


def test_lost_frames_are_repaired_and_the_script_does_not_notice() -> None:
    seen = 0

    def every_seventh_is_lost(frame: bytes, now: int) -> list[tuple[int, bytes]]:
        nonlocal seen
        seen += 1
        return [] if seen % 7 == 0 else [(0, frame)]

    with use(Network(outgoing={"ibwire0": every_seventh_is_lost})):
        a, b = ends()
        a.mr.write(bytes(range(256)) * 16, 4096)
        for wr_id in range(8):
            b.qp.post_recv(b.recv(512, 512 * wr_id, wr_id=wr_id))
            a.qp.post_send(a.send(WR.IBV_WR_SEND, 512, 512 * wr_id))

        assert [b.wc().wr_id for _ in range(8)] == list(range(8))
        assert b.mr.read(4096, 0) == bytes(range(256)) * 16


def test_two_runs_put_the_same_frames_on_the_wire_at_the_same_time() -> None:
    def run() -> list[tuple[int, bytes]]:
        frames: list[tuple[int, bytes]] = []

        def tap(frame: bytes, now: int) -> list[tuple[int, bytes]]:
            frames.append((now, frame))
            return [(0, frame)]

        with use(Network(tap=tap)):
            a, b = ends()
            for _ in range(3):
                b.qp.post_recv(b.recv(2000))
                a.qp.post_send(a.send(WR.IBV_WR_SEND, 2000))
                b.wc()
            write = SendWR(opcode=WR.IBV_WR_RDMA_WRITE, num_sge=1, sg=[a.sge(3000)])
            write.set_wr_rdma(b.mr.rkey, b.mr.buf)
            a.qp.post_send(write)
            b.mr.read(3000, 0)
        return frames

    assert run() == run() != []
