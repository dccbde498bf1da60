"""What Linux Soft-RoCE 6.1 does otherwise: rxe_resp.c, rxe_comp.c, providers/rxe."""

from __future__ import annotations

from dataclasses import replace

import pytest

from each_case import each_case
from ibwire.rc.attributes import EventType, QPAttr, QPAttrMask, QPState
from ibwire.rc.memory import Access
from ibwire.rc.profile import RXE, SPEC, Profile
from ibwire.rc.work import MWBindInfo, WCStatus, WROpcode
from ibwire.testing import Peer, statuses, summaries
from ibwire_layers import headers as h
from ibwire_layers.opcodes import OpCode

R = OpCode

both = each_case("profile", [SPEC, RXE], ids=lambda p: p.name)


@both
@pytest.mark.parametrize(
    ("opcode", "size", "dma_len", "msn"),
    [
        (R.RC_RDMA_WRITE_FIRST, 256, 256, 0),
        (R.RC_RDMA_WRITE_ONLY, 256, 300, 1),
        (R.RC_RDMA_WRITE_FIRST, 8, 8, 0),
    ],
)
def test_rxe_holds_a_write_packet_against_what_is_left_only(
    opcode: int, size: int, dma_len: int, msn: int, profile: Profile
) -> None:
    """`check_rkey`: more than the path MTU left is one packet of it, else it is all."""
    lone = Peer(mtu=256, profile=profile)

    (answer,) = lone.receive_packet(opcode, 100, b"x" * size, dma_len=dma_len, ack_req=1)

    aeth = answer.extension(h.AETH)
    assert aeth is not None
    if profile is RXE:
        assert (aeth.syndrome, aeth.msn) == (0x1F, msn)
        assert lone.memory[:size] == b"x" * size
    else:
        assert aeth.syndrome == 0x61
        assert lone.memory[:size] == bytes(size)


def test_rxe_lets_an_empty_last_end_a_write_of_which_all_has_come() -> None:
    lone = Peer(mtu=256, profile=RXE)
    lone.receive_packet(R.RC_RDMA_WRITE_FIRST, 100, b"x" * 256, dma_len=256)

    (answer,) = lone.receive_packet(R.RC_RDMA_WRITE_LAST, 101, ack_req=1)

    assert summaries([answer]) == ["ACKNOWLEDGE 101 0x1f"]
    assert lone.memory[:257] == b"x" * 256 + b"\0"


@both
@pytest.mark.parametrize("opcode", [R.RC_RDMA_READ_REQUEST, R.RC_FETCH_ADD])
def test_rxe_passes_over_a_payload_where_none_belongs(opcode: int, profile: Profile) -> None:
    lone = Peer(mtu=256, profile=profile)
    said = {"dma_len": 4} if opcode == R.RC_RDMA_READ_REQUEST else {"swap": 1}

    (answer,) = lone.receive_packet(opcode, 100, b"abcd", **said)

    assert (answer.bth.opcode == R.RC_ACKNOWLEDGE) is (profile is SPEC)


@both
@pytest.mark.parametrize(("rkey", "status"), [(None, 0x61), (1, 0x62)])
def test_a_refused_write_with_immediate_ends_a_receive_in_rxe(
    rkey: int | None, status: int, profile: Profile
) -> None:
    """`check_resource` takes it before the length and the key are looked at."""
    lone = Peer(mtu=256, profile=profile)
    lone.post_recv(256, wr_id=1)
    lone.post_recv(256, wr_id=2)
    said = {"dma_len": 8} if rkey is None else {"rkey": rkey}

    heard = lone.receive_packet(R.RC_RDMA_WRITE_ONLY_WITH_IMMEDIATE, 100, b"abcd", **said)

    assert summaries(heard) == [f"ACKNOWLEDGE 100 {status:#04x}"]
    ended = WCStatus.REM_INV_REQ_ERR if rkey is None else WCStatus.REM_ACCESS_ERR
    first = ended if profile is RXE else WCStatus.WR_FLUSH_ERR
    assert statuses(lone.poll_recv_cq()) == [(1, first), (2, WCStatus.WR_FLUSH_ERR)]


@both
@pytest.mark.parametrize(
    ("offset", "zero_based"),
    [
        *((offset, 0) for offset in (0, 63, 64, 191, 192)),
        *((offset, int(Access.ZERO_BASED)) for offset in (64, 191, 192)),
    ],
)
def test_a_window_opens_its_whole_region_in_rxe(
    offset: int, zero_based: int, profile: Profile
) -> None:
    """`check_rkey` compares with the region that the window is in: here 64 to 192 of 4096."""
    lone = Peer(mtu=256, profile=profile)
    region = lone.pd.register(4096, int(Access.LOCAL_WRITE | Access.MW_BIND))
    window = lone.pd.allocate_window(2)
    start = region.iova + 64
    info = MWBindInfo(region, start, 128, int(Access.REMOTE_READ) | zero_based)
    assert lone.device.keys.bind(window, lone.qp.number, lone.pd, info, 1)
    va = offset - 64 if zero_based else region.iova + offset

    (answer,) = lone.receive_packet(R.RC_RDMA_READ_REQUEST, 100, rkey=window.rkey, va=va, dma_len=1)

    inside = 64 <= offset < 192
    assert (answer.bth.opcode == R.RC_ACKNOWLEDGE) is not (inside or profile is RXE)


@both
def test_a_window_opens_nothing_any_more_after_it_was_invalidated(profile: Profile) -> None:
    lone = Peer(mtu=256, profile=profile)
    region = lone.pd.register(4096, int(Access.LOCAL_WRITE | Access.MW_BIND))
    window = lone.pd.allocate_window(2)
    info = MWBindInfo(region, region.iova, 128, int(Access.REMOTE_READ))
    assert lone.device.keys.bind(window, lone.qp.number, lone.pd, info, 1)
    lone.post_recv(256)
    lone.receive_packet(R.RC_SEND_ONLY_WITH_INVALIDATE, 100, rkey=window.rkey)

    heard = lone.receive_packet(
        R.RC_RDMA_READ_REQUEST, 101, rkey=window.rkey, va=region.iova, dma_len=1
    )

    assert summaries(heard) == ["ACKNOWLEDGE 101 0x62"]


def test_rxe_answers_a_duplicate_atomic_with_what_its_record_holds() -> None:
    """`find_resource` looks at PSNs alone, and the record of a READ begins with its address."""
    lone = Peer(mtu=256, profile=RXE)
    lone.receive_packet(R.RC_RDMA_READ_REQUEST, 100, dma_len=300)
    lone.receive_packet(R.RC_FETCH_ADD, 102, swap=7)
    lone.receive_packet(R.RC_FETCH_ADD, 103, swap=7)

    answers = [lone.receive_packet(R.RC_COMPARE_SWAP, psn, swap=1) for psn in (100, 101, 102, 103)]

    originals = [each[0].extension(h.AtomicAckETH) for each in answers]
    assert [each.orig for each in originals if each] == [lone.mr.iova, lone.mr.iova, 0, 7]
    assert [each[0].bth.psn for each in answers] == [100, 101, 102, 103]
    assert lone.memory[0] == 14


@both
@pytest.mark.parametrize("key_is_known", [True, False])
def test_rxe_asks_a_duplicate_read_of_nothing_for_a_key(
    key_is_known: bool, profile: Profile
) -> None:
    """`read_reply` looks the region up again, whatever the length."""
    lone = Peer(mtu=256, profile=profile)
    rkey = lone.mr.rkey if key_is_known else 1
    first = summaries(lone.receive_packet(R.RC_RDMA_READ_REQUEST, 100, dma_len=0, rkey=rkey))

    again = summaries(lone.receive_packet(R.RC_RDMA_READ_REQUEST, 100, dma_len=0, rkey=rkey))

    assert first[0].startswith("RDMA_READ_RESPONSE_ONLY 100")
    refused = profile is RXE and not key_is_known
    assert again == (["ACKNOWLEDGE 100 0x62"] if refused else first)


@pytest.mark.parametrize("psn", [99, 100, 101])
def test_rxe_drops_a_reserved_opcode_before_it_looks_at_the_psn(psn: int) -> None:
    """It counts as a response (probe-odd-frames)."""
    lone = Peer(mtu=256, profile=RXE)

    assert lone.receive_packet(0x1F, psn) == []
    assert summaries(lone.receive_packet(R.RC_RDMA_WRITE_ONLY, 102, b"abcd")) == [
        "ACKNOWLEDGE 100 0x60"
    ]


@both
def test_rxe_does_not_say_that_a_connection_is_used(profile: Profile) -> None:
    lone = Peer(mtu=256, profile=profile)
    lone.bring_to(QPState.RTR)

    lone.receive_packet(R.RC_RDMA_WRITE_ONLY, 100, b"abcd")

    assert lone.poll_events() == ([] if profile is RXE else [EventType.COMM_EST])


@both
def test_rxe_leaves_a_receive_that_is_posted_in_error(profile: Profile) -> None:
    """`providers/rxe` writes it into the queue that it shares with the kernel, and no more."""
    lone = Peer(mtu=256, profile=profile)
    lone.post_recv(256, wr_id=1)
    lone.qp.modify(QPAttr(qp_state=QPState.ERR), QPAttrMask.STATE)

    lone.post_recv(256, wr_id=2)

    flushed = [(1, WCStatus.WR_FLUSH_ERR), (2, WCStatus.WR_FLUSH_ERR)]
    assert statuses(lone.poll_recv_cq()) == (flushed[:1] if profile is RXE else flushed)


# Its requester.


@both
@pytest.mark.parametrize(
    ("opcode", "length"), [(WROpcode.SEND, 8), (WROpcode.RDMA_WRITE, 600), (WROpcode.RDMA_READ, 8)]
)
@pytest.mark.parametrize("syndrome", [0x1F, 0x61, 0x21])
def test_rxe_takes_an_answer_to_what_it_never_sent_for_an_ack_of_all_it_did(
    syndrome: int, opcode: WROpcode, length: int, profile: Profile
) -> None:
    """rxe_comp.c `check_psn`: but not of a READ or an atomic, which it asks for again."""
    lone = Peer(mtu=256, profile=profile)
    lone.request(opcode, length, wr_id=1)

    heard = lone.receive_packet(R.RC_ACKNOWLEDGE, 510, syndrome=syndrome)

    is_read = opcode is WROpcode.RDMA_READ
    assert statuses(lone.poll_send_cq()) == (
        [(1, WCStatus.SUCCESS)] if profile is RXE and not is_read else []
    )
    assert len(heard) == (profile is RXE and is_read)
    assert lone.qp.state is QPState.RTS


@both
@pytest.mark.parametrize("opcode", [WROpcode.RDMA_READ, WROpcode.ATOMIC_FETCH_AND_ADD])
def test_rxe_takes_an_ack_for_the_answer_of_a_read_or_an_atomic(
    opcode: WROpcode, profile: Profile
) -> None:
    """rxe_comp.c `check_ack`, `COMPST_WRITE_SEND`: no data has come."""
    lone = Peer(mtu=256, profile=replace(profile, acks_answer=profile is RXE))
    lone.request(opcode, 8, wr_id=1)

    lone.receive_packet(R.RC_ACKNOWLEDGE, 500, syndrome=0x1F)

    assert statuses(lone.poll_send_cq()) == ([(1, WCStatus.SUCCESS)] if profile is RXE else [])
    assert not any(lone.memory)


@pytest.mark.parametrize("syndrome", [0x1F, 0x21, 0x60, 0x62])
def test_rxe_ends_the_connection_at_an_ack_or_a_nak_between_read_responses(syndrome: int) -> None:
    """rxe_comp.c `check_ack` looks at the order of opcodes first (seen on a guest)."""
    lone = Peer(mtu=256, profile=replace(RXE, acks_answer=True))
    lone.request(WROpcode.RDMA_READ, 600, wr_id=1)
    lone.receive_packet(R.RC_RDMA_READ_RESPONSE_FIRST, 500, bytes(256), syndrome=0x1F)

    lone.receive_packet(R.RC_ACKNOWLEDGE, 501, syndrome=syndrome)

    assert statuses(lone.poll_send_cq()) == [(1, WCStatus.SUCCESS)]
    assert lone.qp.state is QPState.ERR


@each_case("syndrome", [0x1F, 0x21, 0x60, 0x62, 0x40])
def test_rxe_passes_over_acks_and_naks_further_inside_a_read(syndrome: int) -> None:
    """rxe_comp.c `check_psn` (a sequence NAK seen on a guest)."""
    lone = Peer(mtu=256, profile=replace(RXE, acks_answer=True))
    lone.request(WROpcode.RDMA_READ, 600, wr_id=1)

    heard = [lone.receive_packet(R.RC_ACKNOWLEDGE, psn, syndrome=syndrome) for psn in (501, 502)]

    assert heard == [[], []]
    assert statuses(lone.poll_send_cq()) == []
    assert lone.qp.state is QPState.RTS


def test_an_ack_of_its_first_psn_takes_the_place_of_the_first_response_in_rxe() -> None:
    """Also when it completes a SEND before (seen on a guest): FIRST is a duplicate then."""
    lone = Peer(mtu=256, profile=replace(RXE, acks_answer=True))
    lone.request(WROpcode.SEND, 8, wr_id=1)
    lone.request(WROpcode.RDMA_READ, 600, wr_id=2)

    lone.receive_packet(R.RC_ACKNOWLEDGE, 501, syndrome=0x1F)
    lone.receive_packet(R.RC_RDMA_READ_RESPONSE_FIRST, 501, bytes(256), syndrome=0x1F)

    assert statuses(lone.poll_send_cq()) == [(1, WCStatus.SUCCESS)]
    lone.receive_packet(R.RC_RDMA_READ_RESPONSE_MIDDLE, 502, bytes(256))
    assert statuses(lone.poll_send_cq()) == [(2, WCStatus.SUCCESS)]
    assert lone.qp.state is QPState.ERR
