"""Responses of the responder to more than one wrong request: gaps, RNR NAKs, READs.

The test is the peer. The checks are those of reference/transport#responder-checks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from each_case import each_case
from ibwire.rc.attributes import EventType, QPState
from ibwire.rc.memory import Access
from ibwire.rc.profile import CONNECTX, HNS, PROFILES, RDMAVT, RXE, SPEC, Profile
from ibwire.rc.work import WCStatus
from ibwire.testing import Peer, statuses, summaries
from ibwire_layers.opcodes import OpCode
from ibwire_layers.packet import Packet
from ibwire_layers.psn import HALF, MASK

EPSN = 100

SEQUENCE = 0x60

ALL = (SPEC, RDMAVT, CONNECTX, HNS, RXE)

ALL_REMOTE = int(
    Access.LOCAL_WRITE | Access.REMOTE_WRITE | Access.REMOTE_READ | Access.REMOTE_ATOMIC
)

ACC = (EventType.QP_ACCESS_ERR,)

R = OpCode

SILENT_ABOUT_REFUSALS = (RDMAVT, RXE)
"""They raise no event for a request that they refuse (rdmavt `rvt_rc_error`, rxe_resp.c)."""


def send(payload: bytes = b"abcd", psn: int = EPSN, **said: Any) -> Callable[[Peer], Any]:
    return lambda lone: lone.receive_packet(OpCode.RC_SEND_ONLY, psn, payload, ack_req=1, **said)


def write(payload: bytes = b"abcd", psn: int = EPSN, **said: Any) -> Callable[[Peer], Any]:
    return lambda lone: lone.receive_packet(
        OpCode.RC_RDMA_WRITE_ONLY, psn, payload, ack_req=1, **said
    )


@each_case("profile", ALL, ids=lambda p: p.name)
def test_a_fatal_nak_is_the_last_word(profile: Profile) -> None:
    """Then nothing is answered, not even the right packet (reference/transport#after-fatal-nak)."""
    lone = Peer(mtu=256, profile=profile)
    assert summaries(write(rkey=1)(lone)) == ["ACKNOWLEDGE 100 0x62"]

    assert summaries(write()(lone)) == []
    assert summaries(write(psn=99)(lone)) == []
    assert summaries(write(psn=105)(lone)) == []
    assert not any(lone.memory)


@each_case("profile", ALL, ids=lambda p: p.name)
def test_row_2_one_nak_for_a_gap_however_many_packets_follow(profile: Profile) -> None:
    lone = Peer(mtu=256, profile=profile)

    assert summaries(write(psn=103)(lone)) == ["ACKNOWLEDGE 100 0x60"]
    assert summaries(write(psn=104)(lone)) == []
    assert summaries(write(psn=101)(lone)) == []
    assert not any(lone.memory)
    assert lone.qp.state is QPState.RTS

    assert [p.bth.psn for p in write()(lone)] == [100]
    assert summaries(write(psn=102)(lone)) == ["ACKNOWLEDGE 101 0x60"]  # another loss


@pytest.mark.parametrize(
    ("ahead", "answer"),
    [
        pytest.param(1, SEQUENCE, id="next but one"),
        pytest.param(HALF - 1, SEQUENCE, id="2^23 - 1: the last that is ahead"),
        pytest.param(HALF, 0x1F, id="2^23: the first that is behind"),
        pytest.param(MASK, 0x1F, id="the one before"),
    ],
)
def test_row_2_halves_of_the_psn_circle(ahead: int, answer: int) -> None:
    lone = Peer(mtu=256, peer_psn=MASK)
    epsn = MASK

    heard = write(psn=epsn + ahead & MASK)(lone)

    psn = epsn if answer == SEQUENCE else epsn - 1
    syndrome = SEQUENCE if answer == SEQUENCE else 0
    assert summaries(heard) == [f"ACKNOWLEDGE {psn} {syndrome:#04x}"]


def test_row_2_a_nak_carries_the_msn_of_what_was_completed() -> None:
    lone = Peer(mtu=256)
    write()(lone)
    write(psn=101)(lone)

    (nak,) = write(psn=103)(lone)

    assert getattr(nak.extensions[0], "msn") == 2  # noqa: B009


def give_together(lone: Peer, *packets: Packet) -> list[Packet]:
    """As on a real link: several requests are there before the first answer leaves."""
    for packet in packets:
        lone.device.receive(packet.build(), lone.now)
    return lone.transmit()


def writes(lone: Peer, *psns: int) -> list[Packet]:
    return [lone.packet(OpCode.RC_RDMA_WRITE_ONLY, psn, b"abcd", ack_req=1) for psn in psns]


def test_row_2_a_nak_is_withdrawn_when_the_packet_comes_before_it_leaves() -> None:
    """qib_rc.c clears `r_nak_state`; a NAK for a PSN that is there would cause a retransmission."""
    lone = Peer(mtu=256)

    # Nothing is posted, so there are no credits.
    assert summaries(give_together(lone, *writes(lone, 101, 100))) == ["ACKNOWLEDGE 100 0x00"]


def test_row_2_rxe_has_sent_the_nak_by_then_and_it_counts_what_was_there() -> None:
    lone = Peer(mtu=256, profile=RXE)

    nak, ack = give_together(lone, *writes(lone, 101, 100))

    assert summaries([nak, ack]) == ["ACKNOWLEDGE 100 0x60", "ACKNOWLEDGE 100 0x1f"]
    assert [getattr(each.extensions[0], "msn") for each in (nak, ack)] == [0, 1]  # noqa: B009


@pytest.mark.parametrize(("profile", "msns"), [(SPEC, [2, 2]), (RXE, [1, 2])])
def test_rxe_response_does_not_count_later_messages(profile: Profile, msns: list[int]) -> None:
    """rxe answers a request before it looks at the next one (rxe_resp.c)."""
    lone = Peer(mtu=256, profile=profile)
    read = lone.packet(OpCode.RC_RDMA_READ_REQUEST, EPSN, dma_len=8)

    heard = give_together(lone, read, *writes(lone, EPSN + 1))

    assert [getattr(each.extensions[0], "msn") for each in heard] == msns  # noqa: B009


@pytest.mark.parametrize(("profile", "times"), [(SPEC, 1), (RXE, 2)])
def test_a_duplicate_read_joins_the_answer_that_waits_but_in_rxe(
    profile: Profile, times: int
) -> None:
    """rxe has answered the first in full by then."""
    lone = Peer(mtu=256, profile=profile)
    read = lone.packet(OpCode.RC_RDMA_READ_REQUEST, EPSN, dma_len=400)

    heard = give_together(lone, read, read)

    assert [packet.bth.psn for packet in heard] == [EPSN, EPSN + 1] * times


@each_case("code", [0, 1, 12, 31])
@each_case(
    ("opcode", "payload"),
    [
        (OpCode.RC_SEND_ONLY, b"abcd"),
        (OpCode.RC_SEND_FIRST, bytes(256)),
        (OpCode.RC_SEND_ONLY_WITH_IMMEDIATE, b"abcd"),
        (OpCode.RC_SEND_ONLY_WITH_INVALIDATE, b"abcd"),
        (OpCode.RC_RDMA_WRITE_ONLY_WITH_IMMEDIATE, b"abcd"),
        (OpCode.RC_SEND_ONLY, b""),
    ],
)
def test_row_7_rnr_nak_with_the_own_timer_and_nothing_changes(
    opcode: int, payload: bytes, code: int
) -> None:
    lone = Peer(mtu=256, min_rnr_timer=code)

    heard = lone.receive_packet(opcode, EPSN, payload, ack_req=1)

    assert summaries(heard) == [f"ACKNOWLEDGE 100 {0x20 | code:#04x}"]
    assert (lone.qp.responder.epsn, lone.qp.responder.msn) == (EPSN, 0)
    assert lone.qp.state is QPState.RTS
    assert not any(lone.memory)
    lone.post_recv(256)
    assert [p.bth.psn for p in lone.receive_packet(opcode, EPSN, payload, ack_req=1)][:1] in (
        [EPSN],
        [],
    )


def test_row_7_write_with_immediate_is_refused_at_its_last_packet() -> None:
    lone = Peer(mtu=256)
    lone.receive_packet(OpCode.RC_RDMA_WRITE_FIRST, EPSN, b"a" * 256, dma_len=260)

    last = OpCode.RC_RDMA_WRITE_LAST_WITH_IMMEDIATE
    assert summaries(lone.receive_packet(last, 101, b"bcde", imm_data=7)) == [
        "ACKNOWLEDGE 101 0x2c"
    ]
    lone.post_recv(0, wr_id=5)
    assert summaries(lone.receive_packet(last, 101, b"bcde", imm_data=7, ack_req=1)) == [
        "ACKNOWLEDGE 101 0x00"
    ]
    (wc,) = lone.recv_cq.poll()
    assert (wc.wr_id, wc.imm_data, wc.byte_len) == (5, 7, 260)
    assert lone.memory[:260] == b"a" * 256 + b"bcde"


@pytest.mark.parametrize(
    ("profile", "naks"),
    [(SPEC, []), (RDMAVT, []), (CONNECTX, []), (RXE, ["ACKNOWLEDGE 100 0x60"])],
    ids=lambda value: getattr(value, "name", ""),
)
def test_after_an_rnr_nak_packets_ahead_are_dropped(profile: Profile, naks: list[str]) -> None:
    """Except by rxe, which also sends one sequence NAK (rnr-multi-packet)."""
    lone = Peer(mtu=256, profile=profile)
    send()(lone)

    assert summaries(send(psn=101)(lone)) == naks
    assert summaries(send(psn=102)(lone)) == []
    assert summaries(send()(lone)) == ["ACKNOWLEDGE 100 0x2c"]  # the refused one came again
    assert summaries(send(psn=101)(lone)) == naks


@pytest.mark.parametrize("profile", [SPEC, RDMAVT], ids=lambda p: p.name)
def test_row_6_one_more_read_than_max_dest_rd_atomic_is_refused(profile: Profile) -> None:
    lone = Peer(mtu=256, profile=profile, max_dest_rd_atomic=2)
    packets = [lone.packet(OpCode.RC_RDMA_READ_REQUEST, EPSN + n, dma_len=4) for n in range(3)]
    for packet in packets:  # all arrive before an answer leaves
        lone.device.receive(packet.build(), 0)

    assert summaries(lone.transmit())[-1] == "ACKNOWLEDGE 102 0x61"
    assert lone.qp.state is QPState.ERR


def test_row_6_an_atomic_write_behind_an_unanswered_read_makes_no_room() -> None:
    lone = Peer(mtu=256, max_dest_rd_atomic=1)
    read = lone.packet(OpCode.RC_RDMA_READ_REQUEST, EPSN, dma_len=4)
    write = lone.packet(OpCode.RC_ATOMIC_WRITE, EPSN + 1, b"12345678")
    another = lone.packet(OpCode.RC_RDMA_READ_REQUEST, EPSN + 2, dma_len=4)
    for packet in (read, write, another):
        lone.device.receive(packet.build(), 0)

    assert summaries(lone.transmit())[-1] == "ACKNOWLEDGE 102 0x61"


def test_row_6_rxe_takes_the_oldest_slot() -> None:
    lone = Peer(mtu=256, profile=RXE, max_dest_rd_atomic=2)
    for n in range(3):
        lone.device.receive(
            lone.packet(OpCode.RC_RDMA_READ_REQUEST, EPSN + n, dma_len=4).build(), 0
        )

    assert summaries(lone.transmit()) == [
        f"RDMA_READ_RESPONSE_ONLY {EPSN + n} 0x1f" for n in range(3)
    ]
    assert lone.qp.state is QPState.RTS


@each_case("profile", ALL, ids=lambda p: p.name)
def test_row_10_region_taken_away_in_the_middle_of_a_read(profile: Profile) -> None:
    lone = Peer(mtu=256, profile=profile)
    region = lone.pd.register(600, ALL_REMOTE)
    frame = lone.packet(
        OpCode.RC_RDMA_READ_REQUEST, EPSN, rkey=region.rkey, va=region.iova, dma_len=600
    ).build()
    lone.device.receive(frame, 0)
    assert lone.device.poll_transmit(0) is not None
    region.deregister()

    assert summaries(lone.transmit()) == ["ACKNOWLEDGE 101 0x62"]
    assert lone.qp.state is QPState.ERR
    assert tuple(lone.poll_events()) == (() if profile in SILENT_ABOUT_REFUSALS else ACC)


def test_row_10_the_whole_write_is_checked_at_its_first_packet() -> None:
    """Nothing is written, and what follows is dropped (nak-bad-rkey-write-multi)."""
    lone = Peer(mtu=256, size=4096)
    va = lone.mr.iova + 4096 - 512

    first = lone.receive_packet(OpCode.RC_RDMA_WRITE_FIRST, EPSN, b"x" * 256, va=va, dma_len=513)
    second = lone.receive_packet(OpCode.RC_RDMA_WRITE_MIDDLE, EPSN + 1, b"x" * 256)

    assert summaries(first + second) == ["ACKNOWLEDGE 100 0x62"]
    assert not any(lone.memory)


@each_case("profile", ALL, ids=lambda p: p.name)
def test_row_15_a_full_completion_queue_ends_the_connection_without_an_answer(
    profile: Profile,
) -> None:
    lone = Peer(mtu=256, profile=profile)
    lone.recv_cq.resize(1)
    for _ in range(3):
        lone.post_recv(256)
    assert [p.bth.psn for p in send()(lone)] == [100]

    assert summaries(send(psn=101)(lone)) == []
    assert lone.qp.state is QPState.ERR
    assert lone.poll_events() == [EventType.CQ_ERR, EventType.QP_FATAL]


@each_case("opcode", [OpCode.RC_RDMA_WRITE_ONLY, OpCode.RC_RDMA_READ_REQUEST])
@each_case("profile", ALL, ids=lambda p: p.name)
def test_a_request_for_nothing_needs_no_key(opcode: int, profile: Profile) -> None:
    """C9-88; probe-odd-frames."""
    lone = Peer(mtu=256, profile=profile)

    heard = lone.receive_packet(
        opcode, EPSN, rkey=0, va=0xFFFF_FFFF_FFFF_FFFF, dma_len=0, ack_req=1
    )

    assert [p.bth.psn for p in heard] == [EPSN]
    assert lone.qp.state is QPState.RTS
    assert lone.qp.responder.msn == 1


def test_rxe_takes_what_the_path_mtu_forbids() -> None:
    """SEND ONLY above the path MTU, FIRST below it (reference/habits#rxe-payload-unchecked)."""
    lone = Peer(mtu=256, profile=RXE)
    lone.post_recv(600)
    lone.post_recv(600)

    assert summaries(send(bytes(300))(lone)) == ["ACKNOWLEDGE 100 0x1f"]
    first = lone.receive_packet(OpCode.RC_SEND_FIRST, EPSN + 1, bytes(100), ack_req=1)
    assert summaries(first) == ["ACKNOWLEDGE 101 0x1f"]


def test_rxe_takes_a_send_of_five_bytes_without_padding() -> None:
    lone = Peer(mtu=256, profile=RXE)
    lone.post_recv(256)

    assert summaries(send(b"abcde", padding=b"")(lone)) == ["ACKNOWLEDGE 100 0x1f"]
    assert lone.memory[:6] == b"abcde\0"


def test_limited_members_speak_to_full_members_only() -> None:
    """P_Key membership, IBA 10.9.3."""
    lone = Peer(mtu=256)
    lone.post_recv(256)
    assert len(send(pkey=0x7FFF)(lone)) == 1

    limited = Peer(mtu=256, pkey=0x7FFF)
    limited.post_recv(256)
    assert summaries(send(pkey=0x7FFF)(limited)) == []
    assert limited.device.counters["bad_pkey"] == 1
    assert len(send(pkey=0xFFFF)(limited)) == 1


@pytest.mark.parametrize("pkey", [0xFFFF, 0x7FFF])
def test_rxe_takes_both_default_p_keys(pkey: int) -> None:
    lone = Peer(mtu=256, profile=RXE)
    lone.post_recv(256)

    assert len(send(pkey=pkey)(lone)) == 1


def test_first_request_in_rtr_raises_comm_est_once() -> None:
    lone = Peer(mtu=256)
    lone.bring_to(QPState.RTR)

    write()(lone)
    write(psn=101)(lone)

    assert lone.poll_events() == [EventType.COMM_EST]


@each_case("name", PROFILES)
def test_partial_send_data_stays_and_the_completion_has_an_error(name: str) -> None:
    """A later fault leaves what was scattered (section 6)."""
    lone = Peer(mtu=256, profile=PROFILES[name])
    lone.post_recv(4096, wr_id=3)
    lone.receive_packet(OpCode.RC_SEND_FIRST, EPSN, b"x" * 256)
    lone.receive_packet(OpCode.RC_SEND_FIRST, EPSN + 1, b"y" * 256)

    assert lone.memory[:512] == b"x" * 256 + bytes(256)
    ((wr_id, status),) = statuses(lone.poll_recv_cq())
    assert wr_id == 3
    assert status is not WCStatus.SUCCESS
