"""A queue pair in every state, and what moves it: reference/transport#qp-transitions."""

from __future__ import annotations

import errno
from dataclasses import replace
from typing import Any

import pytest

from each_case import each_case
from ibwire.base.errors import VerbsError
from ibwire.base.units import MS
from ibwire.rc.attributes import (
    AddressVector,
    EventType,
    QPAttr,
    QPAttrMask,
    QPCap,
    QPState,
    QPType,
)
from ibwire.rc.connect import move
from ibwire.rc.device import gid_of
from ibwire.rc.memory import Access
from ibwire.rc.profile import PROFILES, RXE, Profile
from ibwire.rc.work import (
    MWBindInfo,
    RecvWR,
    SendFlags,
    SendWR,
    WCFlags,
    WCOpcode,
    WCStatus,
    WROpcode,
)
from ibwire.testing import Pair, Peer, statuses, summaries
from ibwire_layers.opcodes import OpCode, Service
from ibwire_layers.packet import Packet

R = OpCode
OK, FLUSHED = WCStatus.SUCCESS, WCStatus.WR_FLUSH_ERR

RESET, INIT, RTR, RTS, SQD, SQE, ERR = QPState

TYPES = [QPType.RC, QPType.UC, QPType.UD]

STATES = [
    (qp_type, state)
    for qp_type in TYPES
    for state in QPState
    if not (state is SQE and qp_type is QPType.RC)  # RC is never there
]

every_state = each_case(
    ("qp_type", "state"), STATES, ids=lambda value: getattr(value, "name", value)
)

every_profile = each_case("profile", PROFILES.values(), ids=lambda p: p.name)

SERVICE = {QPType.RC: Service.RC, QPType.UC: Service.UC, QPType.UD: Service.UD}


def in_state(qp_type: QPType, state: QPState, **given: Any) -> Peer:
    lone = Peer(mtu=256, qp_type=qp_type, qkey=0x11, **given)
    lone.bring_to(state)
    lone.qp.sends.credits.limited = False
    lone.poll_events()
    return lone


def datagram(**said: Any) -> SendWR:
    """A SEND that every type of queue pair takes."""
    return SendWR(
        ah=AddressVector(dgid=gid_of("10.0.0.1")), remote_qpn=0x77, remote_qkey=0x11, **said
    )


def test_move_leaves_the_attributes_that_it_is_given_as_they_are() -> None:
    qp = in_state(QPType.RC, RESET).qp
    wanted = QPAttr(qp_access_flags=1)

    move(qp, INIT, wanted)
    with pytest.raises(VerbsError):
        move(qp, RTS, wanted)  # not from INIT

    assert qp.state is INIT
    assert wanted == QPAttr(qp_access_flags=1)


# Every (state, call) pair.

POST_SEND: dict[QPState, str] = {
    RESET: "EINVAL",
    INIT: "EINVAL",
    RTR: "EINVAL",
    RTS: "sent",
    SQD: "waits",
    SQE: "flushed",
    ERR: "flushed",
}

POST_RECV: dict[QPState, str] = {
    RESET: "EINVAL",
    INIT: "waits",
    RTR: "waits",
    RTS: "waits",
    SQD: "waits",
    SQE: "waits",
    ERR: "flushed",
}

REQUEST_IN: dict[QPState, bool] = {
    RESET: False,
    INIT: False,
    RTR: True,
    RTS: True,
    SQD: True,
    SQE: True,
    ERR: False,
}

RESPONSE_IN: dict[QPState, bool] = {
    RESET: False,
    INIT: False,
    RTR: False,
    RTS: True,
    SQD: True,
    SQE: False,
    ERR: False,
}


@every_state
def test_post_send(qp_type: QPType, state: QPState) -> None:
    lone = in_state(qp_type, state)
    due = POST_SEND[state]

    if due == "EINVAL":
        with pytest.raises(VerbsError) as refused:
            lone.qp.post_send(datagram())
        assert refused.value.errno == errno.EINVAL
        assert lone.transmit() == []
        return
    lone.qp.post_send(datagram(wr_id=3))

    assert len(lone.transmit()) == (due == "sent")
    assert [s for _, s in statuses(lone.poll_send_cq()) if s is not OK] == (
        [FLUSHED] if due == "flushed" else []
    )


@every_state
def test_post_recv(qp_type: QPType, state: QPState) -> None:
    lone = in_state(qp_type, state)
    due = POST_RECV[state]

    if due == "EINVAL":
        with pytest.raises(VerbsError) as refused:
            lone.post_recv(256)
        assert refused.value.errno == errno.EINVAL
        return
    lone.post_recv(256, wr_id=3)

    assert statuses(lone.poll_recv_cq()) == ([(3, FLUSHED)] if due == "flushed" else [])
    assert len(lone.qp.receives.waiting) == (due == "waits")


@every_state
def test_request_packet(qp_type: QPType, state: QPState) -> None:
    """In a state without receives: silence, never a NAK."""
    lone = in_state(qp_type, state)
    if POST_RECV[state] == "waits":
        lone.post_recv(256, wr_id=3)
    opcode = SERVICE[qp_type] << 5 | 4

    said = {"qkey": 0x11, "src_qp": 0x77} if qp_type is QPType.UD else {}
    heard = lone.receive_packet(opcode, 100, b"abcd", ack_req=1, **said)

    accepted = REQUEST_IN[state]
    assert statuses(lone.poll_recv_cq()) == ([(3, OK)] if accepted else [])
    assert len(heard) == (accepted and qp_type is QPType.RC)
    assert lone.qp.counters.dropped == (not accepted)
    assert lone.qp.state is state


@each_case("state", [s for s in QPState if s is not SQE], ids=lambda s: s.name)
def test_response_packet(state: QPState) -> None:
    lone = in_state(QPType.RC, state)

    assert lone.receive_ack(499, syndrome=0x61) == []

    assert lone.qp.counters.dropped == (not RESPONSE_IN[state])
    assert lone.qp.counters.ghost_acks == RESPONSE_IN[state]
    assert lone.qp.state is state


@pytest.mark.parametrize("qp_type", [QPType.UC, QPType.UD], ids=lambda t: t.name)
def test_unreliable_queue_pairs_take_no_response(qp_type: QPType) -> None:
    lone = in_state(qp_type, RTS)

    assert lone.receive_ack(500) == []
    assert lone.qp.counters.dropped == 1


@every_state
def test_timeout(qp_type: QPType, state: QPState) -> None:
    """Nothing is due in a queue pair that has sent nothing."""
    lone = in_state(qp_type, state)

    assert lone.qp.poll_timeout() is None
    lone.qp.handle_timeout(10**15)
    assert lone.transmit() == []
    assert lone.qp.state is state


@every_state
@pytest.mark.parametrize("target", [RESET, ERR], ids=lambda s: s.name)
def test_modify_to_reset_or_error(qp_type: QPType, state: QPState, target: QPState) -> None:
    lone = in_state(qp_type, state)

    if state is RESET and target is ERR:
        with pytest.raises(VerbsError):
            lone.qp.modify(QPAttr(qp_state=target), QPAttrMask.STATE)
        assert lone.qp.state is RESET
        return
    lone.qp.modify(QPAttr(qp_state=target), QPAttrMask.STATE)

    assert lone.qp.state is target


@every_state
def test_a_modify_that_is_refused_changes_nothing(qp_type: QPType, state: QPState) -> None:
    lone = in_state(qp_type, state)
    before = lone.qp.query()

    with pytest.raises(VerbsError) as refused:
        lone.qp.modify(
            QPAttr(qp_state=SQE, path_mtu=1, sq_psn=9),
            QPAttrMask.STATE | QPAttrMask.PATH_MTU | QPAttrMask.SQ_PSN,
        )

    assert refused.value.errno == errno.EINVAL
    assert lone.qp.query() == before


@each_case(
    ("mask", "said"),
    [
        (QPAttrMask.MIN_RNR_TIMER, {"min_rnr_timer": 32}),
        (QPAttrMask.PATH_MTU, {"path_mtu": 6}),
        (QPAttrMask.DEST_QPN, {"dest_qp_num": 1 << 24}),
        (QPAttrMask.MAX_DEST_RD_ATOMIC, {"max_dest_rd_atomic": 1 << 20}),
        (QPAttrMask.AV, {"ah_attr": AddressVector(sgid_index=5)}),
    ],
)
def test_values_out_of_range_are_refused_and_change_nothing(
    mask: QPAttrMask, said: dict[str, Any]
) -> None:
    lone = in_state(QPType.RC, INIT)
    good = QPAttr(
        qp_state=RTR, ah_attr=AddressVector(dgid=gid_of("10.0.0.1")), dest_qp_num=1, path_mtu=1
    )
    required = (
        QPAttrMask.AV
        | QPAttrMask.PATH_MTU
        | QPAttrMask.DEST_QPN
        | QPAttrMask.RQ_PSN
        | QPAttrMask.MAX_DEST_RD_ATOMIC
        | QPAttrMask.MIN_RNR_TIMER
    )
    assert mask & required

    with pytest.raises(VerbsError):
        lone.qp.modify(replace(good, **said), required | QPAttrMask.STATE)

    assert lone.qp.state is INIT


def test_cur_state_must_be_the_state() -> None:
    lone = in_state(QPType.RC, RTS)

    with pytest.raises(VerbsError):
        lone.qp.modify(QPAttr(cur_qp_state=SQD), QPAttrMask.CUR_STATE)
    lone.qp.modify(QPAttr(cur_qp_state=RTS), QPAttrMask.CUR_STATE)


def test_another_pkey_counts_from_the_modify_on() -> None:
    """IBA 10.9.3; a packet with the one before was accepted until then."""
    lone = Peer(mtu=256)
    lone.device.pkeys.append(0x8001)
    lone.qp.modify(QPAttr(qp_state=SQD), QPAttrMask.STATE)
    assert len(lone.receive_packet(R.RC_RDMA_WRITE_ONLY, 100, b"abcd", ack_req=1)) == 1

    lone.qp.modify(QPAttr(pkey_index=1), QPAttrMask.PKEY_INDEX)

    assert lone.receive_packet(R.RC_RDMA_WRITE_ONLY, 101, b"abcd", ack_req=1) == []
    assert summaries(
        lone.receive_packet(R.RC_RDMA_WRITE_ONLY, 101, b"abcd", ack_req=1, pkey=0x8001)
    ) == ["ACKNOWLEDGE 101 0x00"]


def test_psns_are_masked_to_24_bits() -> None:
    lone = Peer(mtu=256, psn=0x1_0000_05, peer_psn=0x7_0000_09)

    assert lone.qp.query().sq_psn == 0x1000005 & 0xFFFFFF
    assert lone.qp.query().rq_psn == 0x7000009 & 0xFFFFFF


def test_a_full_receive_queue_is_enomem() -> None:
    lone = Peer(mtu=256, init={"cap": QPCap(max_recv_wr=2)})
    lone.post_recv(256)
    lone.post_recv(256)

    with pytest.raises(VerbsError) as refused:
        lone.post_recv(256)

    assert refused.value.errno == errno.ENOMEM


# RESET and ERR.


@every_profile
def test_reset_forgets_everything_in_silence(profile: Profile) -> None:
    lone = Peer(mtu=256, profile=profile, psn=500)
    lone.post_recv(256)
    lone.receive_packet(R.RC_RDMA_WRITE_FIRST, 100, bytes(256), dma_len=300)
    lone.receive_packet(R.RC_RDMA_WRITE_ONLY, 105, b"abcd")
    lone.request(WROpcode.RDMA_WRITE, 8)
    lone.qp.modify(QPAttr(qp_state=RESET), QPAttrMask.STATE)
    assert (statuses(lone.poll_send_cq()), statuses(lone.poll_recv_cq()), lone.poll_events()) == (
        [],
        [],
        [],
    )
    assert lone.qp.poll_timeout() is None

    lone.bring_to(RTS)

    assert [
        p.bth.psn for p in lone.receive_packet(R.RC_RDMA_WRITE_ONLY, 100, b"abcd", ack_req=1)
    ] == [100]
    assert lone.qp.responder.msn == 1
    assert [p.bth.psn for p in lone.request(WROpcode.RDMA_WRITE, 8)] == [500]


def test_error_flushes_both_queues_each_in_order_the_message_under_way_first() -> None:
    lone = in_state(QPType.RC, RTS)
    for wr_id in (1, 2, 3):
        lone.post_recv(256, wr_id=wr_id)
    lone.receive_packet(R.RC_SEND_FIRST, 100, bytes(256))
    for wr_id in (4, 5):
        lone.request(WROpcode.RDMA_WRITE, 8, wr_id=wr_id, flags=0)
    lone.request(WROpcode.RDMA_READ, 8, wr_id=6)

    lone.qp.modify(QPAttr(qp_state=ERR), QPAttrMask.STATE)

    assert statuses(lone.poll_recv_cq()) == [(1, FLUSHED), (2, FLUSHED), (3, FLUSHED)]
    assert statuses(lone.poll_send_cq()) == [(4, FLUSHED), (5, FLUSHED), (6, FLUSHED)]
    assert lone.poll_events() == []
    assert lone.qp.poll_timeout() is None


def test_with_an_srq_its_requests_stay_and_last_wqe_reached_is_raised() -> None:
    lone = Peer(mtu=256, srq=True)
    srq = lone.qp.receives.srq
    assert srq is not None
    for wr_id in (1, 2):
        srq.post_recv(RecvWR([lone.sge()], wr_id))
    lone.receive_packet(R.RC_SEND_FIRST, 100, bytes(256))

    lone.qp.modify(QPAttr(qp_state=ERR), QPAttrMask.STATE)

    assert statuses(lone.poll_recv_cq()) == [(1, FLUSHED)]
    assert len(srq) == 1
    assert lone.poll_events() == [EventType.QP_LAST_WQE_REACHED]


def test_a_queue_pair_with_an_srq_has_no_receive_queue() -> None:
    lone = Peer(mtu=256, srq=True)

    with pytest.raises(VerbsError) as refused:
        lone.qp.post_recv(RecvWR([lone.sge()]))

    assert refused.value.errno == errno.EINVAL


def test_an_empty_srq_is_an_rnr_nak() -> None:
    lone = Peer(mtu=256, srq=True)

    assert summaries(lone.receive_packet(R.RC_SEND_ONLY, 100, b"abcd")) == ["ACKNOWLEDGE 100 0x2c"]


# SQD.


def to_sqd(lone: Peer, *, notify: int = 1) -> None:
    mask = QPAttrMask.STATE | QPAttrMask.EN_SQD_ASYNC_NOTIFY
    lone.qp.modify(QPAttr(qp_state=SQD, en_sqd_async_notify=notify), mask)


def test_sqd_finishes_what_has_begun_and_starts_nothing() -> None:
    lone = in_state(QPType.RC, RTS)
    lone.request(WROpcode.RDMA_WRITE, 8, wr_id=1)
    to_sqd(lone)
    assert lone.request(WROpcode.RDMA_WRITE, 8, wr_id=2) == []
    assert lone.qp.query().sq_draining == 1
    assert summaries(lone.wait(70 * MS)) == ["RDMA_WRITE_ONLY 500"]  # retries go on
    assert lone.poll_events() == []

    lone.receive_ack(500)

    assert statuses(lone.poll_send_cq()) == [(1, OK)]
    assert lone.poll_events() == [EventType.SQ_DRAINED]
    assert lone.qp.query().sq_draining == 0
    lone.qp.modify(QPAttr(qp_state=RTS), QPAttrMask.STATE)
    assert summaries(lone.transmit()) == ["RDMA_WRITE_ONLY 501"]


def test_sqd_sends_the_rest_of_a_message() -> None:
    lone = in_state(QPType.RC, RTS)
    lone.qp.post_send(SendWR(WROpcode.RDMA_WRITE, [lone.sge(0, 700)], remote_addr=0x5000))
    assert lone.device.poll_transmit(0) is not None
    to_sqd(lone)

    assert summaries(lone.transmit()) == ["RDMA_WRITE_MIDDLE 501", "RDMA_WRITE_LAST 502"]


def test_sqd_is_drained_at_once_when_nothing_is_under_way() -> None:
    lone = in_state(QPType.RC, RTS)
    to_sqd(lone)

    assert lone.poll_events() == [EventType.SQ_DRAINED]


def test_sqd_raises_an_event_only_on_request() -> None:
    lone = in_state(QPType.RC, RTS)
    to_sqd(lone, notify=0)

    assert lone.poll_events() == []


@pytest.mark.parametrize("target", [RTS, SQD], ids=lambda s: s.name)
def test_draining_allows_no_way_but_error(target: QPState) -> None:
    lone = in_state(QPType.RC, RTS)
    lone.request(WROpcode.RDMA_WRITE, 8)
    to_sqd(lone)

    with pytest.raises(VerbsError):
        lone.qp.modify(QPAttr(qp_state=target), QPAttrMask.STATE)
    lone.qp.modify(QPAttr(qp_state=ERR), QPAttrMask.STATE)
    assert statuses(lone.poll_send_cq()) == [(0, FLUSHED)]
    assert lone.poll_events() == []


def test_sqd_serves_the_peer() -> None:
    lone = in_state(QPType.RC, SQD)

    assert len(lone.receive_packet(R.RC_RDMA_READ_REQUEST, 100, dma_len=8)) == 1


def test_sqd_takes_a_new_timeout() -> None:
    lone = in_state(QPType.RC, SQD)

    lone.qp.modify(QPAttr(timeout=1, retry_cnt=0), QPAttrMask.TIMEOUT | QPAttrMask.RETRY_CNT)
    lone.qp.modify(QPAttr(qp_state=RTS), QPAttrMask.STATE)
    lone.request(WROpcode.RDMA_WRITE, 8)
    lone.wait(1 * MS)

    assert [status for _, status in statuses(lone.poll_send_cq())] == [WCStatus.RETRY_EXC_ERR]


# Receive completions.


@every_profile
def test_receive_completions_say_what_came(profile: Profile) -> None:
    """byte_len, immediate, flags, opcodes of verbs.h (section 12)."""
    pair = Pair(profile=profile)
    region = pair.b.pd.register(64, int(Access.LOCAL_WRITE | Access.MW_BIND))
    window = pair.b.pd.allocate_window(2)
    info = MWBindInfo(region, region.iova, 64, int(Access.REMOTE_WRITE))
    pair.b.qp.post_send(SendWR(WROpcode.BIND_MW, mw=window, bind_info=info, rkey=7))
    pair.run()
    key = window.rkey
    for wr_id in range(5):
        pair.b.post_recv(2048, wr_id=wr_id)
    pair.a.post_send(WROpcode.SEND, 1500)
    pair.a.post_send(WROpcode.SEND_WITH_IMM, 3, imm_data=0x01020304)
    pair.a.post_send(WROpcode.RDMA_WRITE_WITH_IMM, 1100, imm_data=9)
    pair.a.post_send(WROpcode.SEND_WITH_INV, 0, invalidate_rkey=key)
    pair.a.post_send(WROpcode.SEND_WITH_IMM, 0)
    pair.run()

    got = [
        (wc.wr_id, wc.opcode, wc.byte_len, wc.imm_data, wc.wc_flags & ~WCFlags.GRH)
        for wc in pair.b.poll_recv_cq()
    ]
    assert got == [
        (0, WCOpcode.RECV, 1500, 0, 0),
        (1, WCOpcode.RECV, 3, 0x01020304, WCFlags.WITH_IMM),
        (2, WCOpcode.RECV_RDMA_WITH_IMM, 1100, 9, WCFlags.WITH_IMM),
        (3, WCOpcode.RECV, 0, key, 4 if profile is RXE else 8),
        (4, WCOpcode.RECV, 0, 0, WCFlags.WITH_IMM),
    ]
    assert window.region is None


def test_immediate_data_stands_in_network_order_in_the_packet() -> None:
    lone = in_state(QPType.RC, RTS)

    (packet,) = lone.request(WROpcode.SEND_WITH_IMM, 0, imm_data=0x01020304)

    assert packet.extensions[0].pack() == b"\x01\x02\x03\x04"


def test_solicited_messages_and_errors_wake_a_solicited_only_waiter() -> None:
    pair = Pair()
    channel = pair.b.device.create_channel()
    pair.b.recv_cq.channel = channel
    for _ in range(4):
        pair.b.post_recv(4096)
    pair.b.recv_cq.arm(solicited_only=True)
    pair.a.post_send(WROpcode.SEND, 8)
    pair.run()
    assert channel.poll_event() is None

    pair.a.post_send(WROpcode.SEND, 8, flags=SendFlags.SIGNALED | SendFlags.SOLICITED)
    pair.run()
    assert channel.poll_event() is pair.b.recv_cq

    pair.b.recv_cq.arm(solicited_only=True)
    pair.b.qp.modify(QPAttr(qp_state=ERR), QPAttrMask.STATE)
    assert channel.poll_event() is pair.b.recv_cq


def test_a_window_lent_over_the_wire_and_taken_back() -> None:
    """Type 2: bind, send the key, write through it, invalidate it by SEND with invalidate."""
    pair = Pair()
    region = pair.b.pd.register(64, int(Access.LOCAL_WRITE | Access.MW_BIND))
    window = pair.b.pd.allocate_window(2)
    info = MWBindInfo(region, region.iova + 16, 16, int(Access.REMOTE_WRITE))
    pair.b.qp.post_send(SendWR(WROpcode.BIND_MW, mw=window, bind_info=info, rkey=7))
    pair.run()
    pair.a.mr.write(pair.a.mr.iova, b"x" * 16)
    through = {"rkey": window.rkey, "remote_addr": region.iova + 16}
    pair.b.post_recv(4096)

    pair.a.post_send(WROpcode.RDMA_WRITE, 16, **through)
    pair.a.post_send(WROpcode.SEND_WITH_INV, 0, invalidate_rkey=window.rkey)
    pair.run()
    assert [wc.status for wc in pair.a.poll_send_cq()] == [OK, OK]
    pair.a.post_send(WROpcode.RDMA_WRITE, 16, **through)
    pair.run()

    assert [wc.status for wc in pair.a.poll_send_cq()] == [WCStatus.REM_ACCESS_ERR]
    assert region.read(region.iova, 64) == bytes(16) + b"x" * 16 + bytes(32)


@pytest.mark.parametrize("persistent", [1, 2, 3])
def test_flush_needs_every_permission_it_names(persistent: int) -> None:
    for access, granted in (
        (Access.FLUSH_GLOBAL, persistent & ~1 == 0),
        (Access.FLUSH_PERSISTENT, persistent & ~2 == 0),
        (Access.FLUSH_GLOBAL | Access.FLUSH_PERSISTENT, True),
    ):
        lone = Peer(mtu=256)
        region = lone.pd.register(64, int(Access.LOCAL_WRITE | access))
        heard = lone.receive_packet(
            R.RC_FLUSH, 100, plt=persistent, rkey=region.rkey, va=region.iova, dma_len=64
        )
        due = "RDMA_READ_RESPONSE_ONLY 100 0x00" if granted else "ACKNOWLEDGE 100 0x62"
        assert summaries(heard) == [due]


def test_flush_of_a_whole_region_ignores_address_and_length() -> None:
    lone = Peer(mtu=256)

    heard = lone.receive_packet(R.RC_FLUSH, 100, plt=1, sel=1, va=1, dma_len=1 << 30)

    assert summaries(heard) == ["RDMA_READ_RESPONSE_ONLY 100 0x00"]


@pytest.mark.parametrize("swap", [False, True])
def test_compare_swap_compares_all_64_bits(swap: bool) -> None:
    lone = Peer(mtu=256)
    value = 0x8000_0000_0000_0001
    lone.mr.store64(0, value)

    lone.receive_packet(R.RC_COMPARE_SWAP, 100, compare=value if swap else 1, swap=7)

    assert lone.mr.load64(0) == (7 if swap else value)


def test_fetch_add_wraps_at_64_bits() -> None:
    lone = Peer(mtu=256)
    lone.mr.store64(0, (1 << 64) - 1)

    lone.receive_packet(R.RC_FETCH_ADD, 100, swap=3)

    assert lone.mr.load64(0) == 2


def test_msn_counts_messages_and_a_read_when_it_is_accepted() -> None:
    """Section 3; a message of several packets at its last."""
    lone = Peer(mtu=256)
    msns: list[Any] = []

    def note(*heard: Packet) -> None:
        msns.extend(getattr(p.extensions[0], "msn", None) for p in heard if p.extensions)

    note(*lone.receive_packet(R.RC_RDMA_WRITE_FIRST, 100, bytes(256), dma_len=260, ack_req=1))
    note(*lone.receive_packet(R.RC_RDMA_WRITE_LAST, 101, bytes(4), ack_req=1))
    note(*lone.receive_packet(R.RC_RDMA_READ_REQUEST, 102, dma_len=300))
    note(*lone.receive_packet(R.RC_FETCH_ADD, 104))
    note(*lone.receive_packet(R.RC_ATOMIC_WRITE, 105, bytes(8)))
    note(*lone.receive_packet(R.RC_FLUSH, 106, plt=1, dma_len=8))
    note(*lone.receive_packet(R.RC_RDMA_WRITE_ONLY, 107, ack_req=1))

    assert msns == [0, 1, 2, 2, 3, 4, 5, 6]


def test_msn_wraps() -> None:
    lone = Peer(mtu=256)
    lone.qp.responder.msn = 0xFFFFFF

    (ack,) = lone.receive_packet(R.RC_RDMA_WRITE_ONLY, 100, ack_req=1)

    assert getattr(ack.extensions[0], "msn") == 0  # noqa: B009
