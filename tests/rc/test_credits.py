"""End-to-end credits: reference/transport#credits and what follows, rule by rule."""

from __future__ import annotations

import pytest

from each_case import each_case
from ibwire.rc.attributes import QPType
from ibwire.rc.credits import SendCredits, credit_code
from ibwire.rc.profile import CONNECTX, HNS, RDMAVT, RXE, SPEC, Profile
from ibwire.rc.work import RecvWR, SendWR, WCStatus, WROpcode
from ibwire.testing import Pair, Peer, statuses, summaries
from ibwire_layers import headers as h
from ibwire_layers.opcodes import OpCode
from ibwire_layers.packet import Packet
from ibwire_layers.psn import MASK

R = OpCode
OK = WCStatus.SUCCESS

CREDITS = {
    0: 0,
    1: 1,
    2: 2,
    3: 3,
    4: 4,
    5: 6,
    6: 8,
    7: 12,
    8: 16,
    9: 24,
    10: 32,
    11: 48,
    12: 64,
    13: 96,
    14: 128,
    15: 192,
    16: 256,
    17: 384,
    18: 512,
    19: 768,
    20: 1024,
    21: 1536,
    22: 2048,
    23: 3072,
    24: 4096,
    25: 6144,
    26: 8192,
    27: 12288,
    28: 16384,
    29: 24576,
    30: 32768,
}
"""Section 7."""


def syndrome(packet: Packet) -> int:
    aeth = packet.extension(h.AETH)
    assert aeth is not None
    return int(aeth.syndrome)


@each_case(("code", "value"), CREDITS.items())
def test_credit_code_promises_no_more_than_is_posted(code: int, value: int) -> None:
    assert credit_code(value) == code
    if value:
        assert credit_code(value - 1) == code - 1
    assert SendCredits().limited
    credits = SendCredits()
    credits.update(code, 100)
    assert credits.lsn == 100 + value


@pytest.mark.parametrize("available", [32769, 1 << 20])
def test_more_than_the_largest_code_is_the_largest_code(available: int) -> None:
    assert credit_code(available) == 30


# Rules 1 and 2: the codes that the responder sends.


@each_case(("posted", "code"), [(1, 0), (2, 1), (6, 4), (8, 5), (12, 6), (13, 7)])
@each_case("profile", [SPEC, RDMAVT, CONNECTX, HNS], ids=lambda p: p.name)
def test_rule_1_an_ack_has_the_number_of_posted_receives(
    profile: Profile, posted: int, code: int
) -> None:
    lone = Peer(mtu=256, profile=profile)
    for _ in range(posted):
        lone.post_recv(256)

    (ack,) = lone.receive_packet(R.RC_SEND_ONLY, 100, b"abcd", ack_req=1)

    assert syndrome(ack) == code


def test_rule_1_read_and_atomic_answers_say_it_too() -> None:
    lone = Peer(mtu=256)
    for _ in range(8):
        lone.post_recv(256)

    heard = lone.receive_packet(R.RC_RDMA_READ_REQUEST, 100, dma_len=600)
    heard += lone.receive_packet(R.RC_FETCH_ADD, 103)

    assert [syndrome(p) for p in (heard[0], heard[2], heard[3])] == [6, 6, 6]
    assert heard[1].extension(h.AETH) is None


def test_rule_1_naks_carry_none() -> None:
    lone = Peer(mtu=256)
    lone.post_recv(256)
    lone.receive_packet(R.RC_SEND_ONLY, 100, b"abcd")

    assert summaries(lone.receive_packet(R.RC_SEND_ONLY, 101, b"abcd")) == ["ACKNOWLEDGE 101 0x2c"]
    assert summaries(lone.receive_packet(R.RC_RDMA_WRITE_ONLY, 101, b"abcd", rkey=1)) == [
        "ACKNOWLEDGE 101 0x62"
    ]


def test_rule_2_with_a_shared_receive_queue_no_credits_are_kept() -> None:
    lone = Peer(mtu=256, srq=True)

    (ack,) = lone.receive_packet(R.RC_RDMA_WRITE_ONLY, 100, b"abcd", ack_req=1)

    assert syndrome(ack) == 0x1F


def test_rule_2_rxe_keeps_none() -> None:
    lone = Peer(mtu=256, profile=RXE)
    lone.post_recv(256)

    (ack,) = lone.receive_packet(R.RC_RDMA_WRITE_ONLY, 100, b"abcd", ack_req=1)

    assert syndrome(ack) == 0x1F


# Rules 3 and 4: what the requester makes of it.


def test_rule_3_the_limit_is_msn_plus_credits_and_never_goes_back() -> None:
    credits = SendCredits()
    credits.update(5, 10)
    assert credits.lsn == 16
    credits.update(1, 12)
    assert credits.lsn == 16
    credits.update(2, 15)
    assert credits.lsn == 17


def test_rule_3_across_the_wrap() -> None:
    credits = SendCredits()
    credits.lsn = MASK - 1
    credits.update(4, MASK)

    assert credits.lsn == 3
    assert credits.beyond(3) == 0
    assert credits.beyond(4) == 1
    credits.update(4, MASK - 10)
    assert credits.lsn == 3


def test_rule_4_invalid_credits_switch_flow_control_off_until_reset() -> None:
    credits = SendCredits()
    credits.update(0x1F, 1)
    credits.update(1, 2)

    assert not credits.limited
    assert credits.beyond(1000) == 0


def test_code_0_from_a_peer_that_never_sends_another_is_not_a_limit() -> None:
    """Some dumps have syndrome 0 in every AETH (reference/transport#credits-off)."""
    lone = Peer(mtu=256)
    for wr_id in range(10):
        lone.qp.post_send(_send(lone, wr_id))
    for psn in range(500, 510):
        lone.transmit()
        lone.receive_ack(psn, syndrome=0, msn=psn - 499)

    assert [status for _, status in statuses(lone.poll_send_cq())] == [OK] * 10
    assert not lone.qp.sends.credits.limited


def _send(lone: Peer, wr_id: int = 0, length: int = 8, opcode: WROpcode = WROpcode.SEND) -> SendWR:
    return SendWR(opcode, [lone.sge(0, length)], wr_id=wr_id, remote_addr=0x5000, rkey=9)


# reference/transport#limited-message: which requests may be begun.


def test_rule_9_one_message_leaves_before_any_credit_is_known() -> None:
    lone = Peer(mtu=256)
    lone.request(WROpcode.SEND, 8, wr_id=1)

    assert lone.request(WROpcode.SEND, 8, wr_id=2) == []
    assert lone.qp.counters.credit_stalls == 1


def test_waits_after_the_first_packet_of_limited_messages_are_counted_each_once() -> None:
    lone = Peer(mtu=256)
    for number in range(2):
        first = lone.request(WROpcode.SEND, 600, wr_id=number)
        assert len(first) == 1
        assert lone.transmit() == []
        assert lone.qp.counters.credit_stalls == number + 1
        rest = lone.receive_ack(500 + 3 * number, syndrome=0, msn=number)
        assert len(rest) == 2
        lone.receive_ack(502 + 3 * number, syndrome=0, msn=number + 1)

    assert [status for _, status in statuses(lone.poll_send_cq())] == [OK] * 2


@pytest.mark.parametrize(
    ("profile", "names"),
    [
        (SPEC, ["SEND_FIRST 500"]),
        (CONNECTX, ["SEND_FIRST 500"]),
        (RDMAVT, ["SEND_FIRST 500", "SEND_MIDDLE 501", "SEND_LAST 502"]),
        (HNS, ["SEND_FIRST 500", "SEND_MIDDLE 501", "SEND_LAST 502"]),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_rule_5_a_limited_message(profile: Profile, names: list[str]) -> None:
    """First packet with AckReq, then wait; rdmavt and hns send it whole."""
    heard = Peer(mtu=256, profile=profile).request(WROpcode.SEND, 700)

    assert summaries(heard) == names
    assert heard[0].bth.ack_req == 1


def test_rule_5_the_rest_follows_the_acknowledgement_of_the_first_packet() -> None:
    lone = Peer(mtu=256)
    lone.request(WROpcode.SEND, 700)

    assert summaries(lone.receive_ack(500, syndrome=0, msn=0)) == [
        "SEND_MIDDLE 501",
        "SEND_LAST 502",
    ]


def test_rule_5_a_message_within_the_credits_does_not_ask_at_its_first_packet() -> None:
    lone = Peer(mtu=256)
    lone.request(WROpcode.SEND, 8)
    lone.receive_ack(500, syndrome=5, msn=1)

    heard = lone.request(WROpcode.SEND, 700)

    assert [p.bth.ack_req for p in heard] == [0, 0, 1]


@each_case(("code", "more"), [(0, 1), (1, 2), (2, 3), (5, 7), (0x1F, 20)])
def test_rule_5_as_many_as_granted_and_one(code: int, more: int) -> None:
    lone = Peer(mtu=256)
    lone.request(WROpcode.SEND, 8)
    lone.receive_ack(500, syndrome=code, msn=1)

    heard = [p for _ in range(20) for p in lone.request(WROpcode.SEND, 8)]

    assert len(heard) == more


@each_case(
    "opcode",
    [
        WROpcode.RDMA_WRITE,
        WROpcode.RDMA_READ,
        WROpcode.ATOMIC_FETCH_AND_ADD,
        WROpcode.ATOMIC_WRITE,
        WROpcode.FLUSH,
    ],
)
def test_rule_6_what_takes_no_receive_needs_no_credit_and_raises_the_limit(
    opcode: WROpcode,
) -> None:
    lone = Peer(mtu=256)
    lone.request(WROpcode.SEND, 8)
    lone.receive_ack(500, syndrome=1, msn=1)

    for _ in range(5):
        assert len(lone.request(opcode, 8, atomic_data=bytes(8))) == 1

    assert lone.qp.sends.credits.lsn == 2 + 5
    assert len(lone.request(WROpcode.SEND, 8)) == 1
    assert len(lone.request(WROpcode.SEND, 8)) == 1  # the limited one
    assert lone.request(WROpcode.SEND, 8) == []


def test_rule_6_not_on_retransmission() -> None:
    lone = Peer(mtu=256)
    lone.request(WROpcode.RDMA_WRITE, 8)
    before = lone.qp.sends.credits.lsn

    assert len(lone.wait(70 * 10**9)) == 1
    assert lone.qp.sends.credits.lsn == before


@pytest.mark.parametrize("opcode", [WROpcode.RDMA_WRITE_WITH_IMM, WROpcode.SEND_WITH_IMM])
def test_write_with_immediate_needs_a_credit(opcode: WROpcode) -> None:
    lone = Peer(mtu=256)
    lone.request(opcode, 8)

    assert lone.request(opcode, 8) == []


def test_rule_7_a_ghost_ack_brings_credits_and_completes_nothing() -> None:
    lone = Peer(mtu=256)
    lone.request(WROpcode.SEND, 8, wr_id=1)
    lone.receive_ack(500, syndrome=0, msn=1)
    lone.request(WROpcode.SEND, 8, wr_id=2)
    assert lone.request(WROpcode.SEND, 8, wr_id=3) == []
    assert statuses(lone.poll_send_cq()) == [(1, OK)]

    heard = lone.receive_ack(500, syndrome=4, msn=1)

    assert [p.bth.psn for p in heard] == [502]
    assert statuses(lone.poll_send_cq()) == []


@pytest.mark.parametrize("kind", ["older ACK", "NAK"])
def test_rule_7_other_ghosts_bring_none(kind: str) -> None:
    lone = Peer(mtu=256)
    for psn in (500, 501):
        lone.request(WROpcode.SEND, 8)
        lone.receive_ack(psn, syndrome=0, msn=psn - 499)
    before = lone.qp.sends.credits.lsn

    lone.receive_ack(
        500 if kind == "older ACK" else 501, syndrome=4 if kind == "older ACK" else 0x64
    )

    assert lone.qp.sends.credits.lsn == before


def test_a_receive_posted_after_the_credits_ran_out_is_announced() -> None:
    """An ACK of the PSN acknowledged last (reference/transport#credits-ghost)."""
    lone = Peer(mtu=256)
    lone.post_recv(256)
    lone.receive_packet(R.RC_SEND_ONLY, 100, b"abcd", ack_req=1)
    lone.post_recv(256)

    (granted,) = lone.transmit()

    assert (granted.bth.psn, syndrome(granted)) == (100, 1)
    lone.post_recv(256)
    assert lone.transmit() == []  # the peer has one credit already


def test_no_credits_are_announced_before_the_first_request() -> None:
    lone = Peer(mtu=256)
    lone.post_recv(256)

    assert lone.transmit() == []


def test_rule_8_an_rnr_nak_ends_the_wait_for_credits() -> None:
    lone = Peer(mtu=256)
    lone.request(WROpcode.SEND, 700)

    assert lone.receive_ack(500, syndrome=0x21) == []
    again = lone.wait(10 * 10**6)

    assert summaries(again) == ["SEND_FIRST 500"]


def test_sends_to_a_peer_with_one_receive_at_a_time_all_arrive() -> None:
    """Each waits for the one before it; all arrive, in order."""
    pair = Pair()
    for wr_id in range(20):
        pair.a.post_send(WROpcode.SEND, 2000, wr_id=wr_id)
        pair.a.post_send(WROpcode.RDMA_WRITE, 8)
    got = []
    for wr_id in range(20):
        pair.b.post_recv(4096, wr_id=wr_id)
        pair.run(20 * 10**9)
        got += [wc.wr_id for wc in pair.b.poll_recv_cq()]

    assert got == list(range(20))
    assert [wc.status for wc in pair.a.poll_send_cq()] == [OK] * 40
    assert pair.a.qp.counters.credit_stalls > 0


def test_enough_receives_draw_no_rnr_nak() -> None:
    pair = Pair()
    for wr_id in range(200):
        pair.b.post_recv(4096, wr_id=wr_id)
        pair.a.post_send(WROpcode.SEND, 64, wr_id=wr_id)
    pair.run()

    assert len(pair.a.poll_send_cq()) == 200
    assert pair.b.qp.counters.rnr_naks_sent == 0


def test_unreliable_queue_pairs_keep_no_credits() -> None:
    pair = Pair(init={"qp_type": QPType.UC})
    for wr_id in range(10):
        pair.b.qp.post_recv(RecvWR([pair.b.sge(0, 64)], wr_id))
        pair.a.post_send(WROpcode.SEND, 8, wr_id=wr_id)
    pair.run()

    assert len(pair.b.poll_recv_cq()) == 10
    assert pair.packets("b") == []
