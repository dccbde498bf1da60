"""What the requester of Linux Soft-RoCE does differently."""

from __future__ import annotations

from dataclasses import replace

import pytest

from each_case import each_case
from ibwire.base.units import GBPS, MS, Time
from ibwire.rc.attributes import QPAttr, QPAttrMask, QPState
from ibwire.rc.profile import RXE, SPEC, Profile
from ibwire.rc.work import WCStatus, WROpcode
from ibwire.testing import Pair, Peer, statuses, summaries
from ibwire_layers import headers as h
from ibwire_layers.opcodes import OpCode
from ibwire_layers.psn import HALF

R = OpCode

both = each_case("profile", [SPEC, RXE], ids=lambda p: p.name)


def first_of_a_long_send(profile: Profile) -> int:
    pair = Pair(profile=profile)
    pair.b.post_recv(4096)
    pair.a.post_send(length=4096)
    pair.run()
    return pair.packets("a")[0].bth.ack_req


def test_rxe_asks_for_no_credits_with_its_first_packet() -> None:
    """rc-pingpong: SEND FIRST of the first message has AckReq 0, and MIDDLE follows at once.

    By the specification it is limited, because no credits are known (IBA 9.7.7.2).
    """
    assert first_of_a_long_send(RXE) == 0
    assert first_of_a_long_send(SPEC) == 1


def test_rxe_sends_before_it_has_received_credits() -> None:
    """cm-ucmatose: five SENDs leave before the first acknowledgement."""
    pair = Pair(profile=RXE)
    for _ in range(5):
        pair.b.post_recv(64)
        pair.a.post_send(length=64)
    pair.run()

    # The time of each frame is when it leaves; none of a's waits for one of b's.
    sent = [entry for entry in pair.log if entry.event == "sent"]
    first_ack = next(entry.time for entry in sent if entry.device == "b")
    assert all(entry.time < first_ack for entry in sent if entry.device == "a")


def test_count_to_the_next_ack_request_continues_over_a_retransmission() -> None:
    """big-send-bw-loss.a: 19 resent MIDDLEs carry AckReq because of packets sent before."""
    pair = Pair(profile=RXE, rate_bps=1 * GBPS, mtu=256)
    pair.drop("a", 11)
    pair.a.post_send(WROpcode.RDMA_WRITE, length=100 * 256)
    pair.run()
    sent = pair.packets("a")

    # A few packets follow the lost one before its NAK arrives; then all from there again.
    assert len(sent) > 100
    assert [n for n, packet in enumerate(sent, 1) if packet.bth.ack_req] == [66, len(sent)]


# What kernel 6.1.192 does is in drivers/infiniband/sw/rxe, and was seen on a guest by the scripts
# of tests/conformance that are named.


def words_after(lone: Peer, time: Time) -> list[str]:
    """What it sends in that time."""
    return summaries(lone.wait(time))


def test_rxe_retransmits_a_whole_message_whose_last_packet_was_refused() -> None:
    """`check_ack` sets no PSN for an RNR NAK, and `req_retry` goes back to that (rnr/inside-a-
    message)."""
    lone = Peer(mtu=256, profile=RXE)
    lone.request(WROpcode.RDMA_WRITE_WITH_IMM, 600, wr_id=1)

    lone.receive_packet(R.RC_ACKNOWLEDGE, 502, syndrome=0x2C)

    first, *rest = words_after(lone, 20 * MS)
    assert first.startswith("RDMA_WRITE_FIRST 500")
    assert len(rest) == 2
    lone.receive_ack(502)
    assert statuses(lone.poll_send_cq()) == [(1, WCStatus.SUCCESS)]


def test_what_rxe_had_acknowledged_of_a_refused_message_stays_so() -> None:
    lone = Peer(mtu=256, profile=RXE)
    lone.request(WROpcode.RDMA_WRITE_WITH_IMM, 600)
    lone.receive_ack(500)

    lone.receive_packet(R.RC_ACKNOWLEDGE, 502, syndrome=0x2C)

    assert words_after(lone, 20 * MS)[0].startswith("RDMA_WRITE_MIDDLE 501")


def test_an_rnr_nak_of_a_later_message_acknowledges_the_ones_before_in_rxe() -> None:
    """`check_psn` completes them before it looks at what the answer is."""
    lone = Peer(mtu=256, profile=RXE)
    lone.request(WROpcode.SEND, 8, wr_id=1)
    lone.request(WROpcode.SEND, 600, wr_id=2)

    lone.receive_packet(R.RC_ACKNOWLEDGE, 502, syndrome=0x2C)

    assert statuses(lone.poll_send_cq()) == [(1, WCStatus.SUCCESS)]
    assert words_after(lone, 20 * MS)[0].startswith("SEND_FIRST 501")


def test_rxe_goes_back_once_until_something_is_acknowledged() -> None:
    """`started_retry`, which a NAK does not clear (recovery/nak-after-nak)."""
    lone = Peer(mtu=256, profile=RXE, retry_cnt=2)
    lone.request(WROpcode.RDMA_WRITE, 1300, wr_id=1)

    heard = [
        len(lone.receive_packet(R.RC_ACKNOWLEDGE, psn, syndrome=0x60)) for psn in (501, 502, 503)
    ]
    heard.append(len(lone.receive_ack(503)))  # now it may go back again
    heard.append(len(lone.receive_packet(R.RC_ACKNOWLEDGE, 505, syndrome=0x60)))

    assert heard == [5, 0, 0, 0, 1]


@both
def test_a_nak_inside_a_message_gives_rxe_no_retries_back(profile: Profile) -> None:
    """`reset_retry_counters` is for ACKs."""
    lone = Peer(mtu=256, profile=profile, retry_cnt=3, timeout=14)
    lone.request(WROpcode.RDMA_WRITE, 1000, wr_id=1)
    lone.wait(70 * MS)
    lone.wait(70 * MS)
    lone.receive_packet(R.RC_ACKNOWLEDGE, 502, syndrome=0x60)

    # Of 3 the timeouts took 2. The specification's NAK gives all back and takes one; rxe's does
    # neither, for it does not go back again before something is acknowledged.
    assert lone.qp.counters.timeouts == 2
    assert lone.qp.sends.retries == (1 if profile is RXE else 2)


@both
def test_rxe_does_not_hear_a_nak_after_a_timeout(profile: Profile) -> None:
    """(recovery/nak-after-a-timeout)."""
    lone = Peer(mtu=256, profile=profile, timeout=14)
    lone.request(WROpcode.RDMA_WRITE, 8)
    lone.wait(70 * MS)

    heard = summaries(lone.receive_packet(R.RC_ACKNOWLEDGE, 500, syndrome=0x60))

    assert len(heard) == (profile is SPEC)


@both
def test_what_a_nak_acknowledges_before_it_could_leave_again_is_not_sent(profile: Profile) -> None:
    lone = Peer(mtu=256, profile=profile, timeout=14)
    lone.request(WROpcode.RDMA_WRITE, 1000)
    lone.now = 70 * MS
    lone.device.handle_timeout(lone.now)

    heard = summaries(lone.receive_packet(R.RC_ACKNOWLEDGE, 502, syndrome=0x60))

    assert heard == ["RDMA_WRITE_MIDDLE 502", "RDMA_WRITE_LAST 503"]


@both
def test_rxe_counts_rnr_naks_that_come_during_the_wait(profile: Profile) -> None:
    """`COMPST_RNR_RETRY` (rnr/twice-the-same)."""
    lone = Peer(mtu=256, profile=profile, rnr_retry=1)
    lone.request(WROpcode.SEND, 8, wr_id=1)

    for _ in range(2):
        lone.receive_packet(R.RC_ACKNOWLEDGE, 500, syndrome=0x34)

    assert statuses(lone.poll_send_cq()) == (
        [(1, WCStatus.RNR_RETRY_EXC_ERR)] if profile is RXE else []
    )


def test_rnr_nak_during_the_wait_restarts_it_in_rxe() -> None:
    """`mod_timer`: 10.24 ms of code 20 are 4 jiffies, counted from the later one."""
    lone = Peer(mtu=256, profile=RXE)
    lone.request(WROpcode.SEND, 8)
    lone.receive_packet(R.RC_ACKNOWLEDGE, 500, syndrome=0x34)
    assert words_after(lone, 10 * MS) == []

    lone.receive_packet(R.RC_ACKNOWLEDGE, 500, syndrome=0x34)

    assert words_after(lone, 15 * MS) == []
    assert words_after(lone, 5 * MS) == ["SEND_ONLY 500"]


@both
def test_rnr_wait_of_rxe_continues_when_all_is_acknowledged(profile: Profile) -> None:
    """`rnr_nak_timer`, which nothing stops (rnr/taken-after-all)."""
    lone = Peer(mtu=256, profile=profile)
    lone.request(WROpcode.SEND, 8, wr_id=1)
    lone.receive_packet(R.RC_ACKNOWLEDGE, 500, syndrome=0x34)
    lone.receive_ack(500)
    assert summaries(lone.request(WROpcode.SEND, 8, wr_id=2)) == ["SEND_ONLY 501"]

    again = words_after(lone, 20 * MS)

    assert again == (["SEND_ONLY 501"] if profile is RXE else [])


@both
@pytest.mark.parametrize(
    ("length", "answer", "got", "rest"),
    [
        (8, R.RC_RDMA_READ_RESPONSE_ONLY, 4, (0x5000, 4)),
        (8, R.RC_RDMA_READ_RESPONSE_ONLY, 0, (0x5000, 8)),
        (256, R.RC_RDMA_READ_RESPONSE_FIRST, 256, (0x5100, 0)),
        (300, R.RC_RDMA_READ_RESPONSE_FIRST, 300, (0x5100, 0)),
    ],
)
def test_rxe_asks_again_for_the_bytes_that_are_missing(
    length: int, answer: int, got: int, rest: tuple[int, int], profile: Profile
) -> None:
    """`req_retry`, `update_wqe_psn`: with PSNs after those of the response, and the later requests
    move (recovery/read-answered-in-part).
    """
    lone = Peer(mtu=256, profile=profile)
    lone.request(WROpcode.RDMA_READ, length, wr_id=1)
    lone.receive_packet(answer, 500, bytes(got), syndrome=0x1F)
    if profile is SPEC:
        assert statuses(lone.poll_send_cq()) == [(1, WCStatus.BAD_RESP_ERR)]
        return
    (request,) = lone.request(WROpcode.SEND, 8, wr_id=2)

    read, send = lone.receive_ack(request.bth.psn)

    reth = read.extension(h.RETH)
    assert reth is not None
    assert (read.bth.psn, reth.va, reth.dma_len) == (501, *rest)
    assert (send.opcode_name, send.bth.psn) == ("RC_SEND_ONLY", 502)
    lone.receive_packet(R.RC_RDMA_READ_RESPONSE_ONLY, 501, bytes(rest[1]), syndrome=0x1F)
    lone.receive_ack(502)
    assert statuses(lone.poll_send_cq()) == [(1, WCStatus.SUCCESS), (2, WCStatus.SUCCESS)]


def test_a_read_that_was_answered_with_too_much_takes_fewer_psns_the_next_time() -> None:
    lone = Peer(mtu=256, profile=RXE, timeout=14)
    lone.request(WROpcode.RDMA_READ, 768, wr_id=1)
    lone.request(WROpcode.SEND, 8, wr_id=2)
    lone.receive_packet(R.RC_RDMA_READ_RESPONSE_FIRST, 500, bytes(512), syndrome=0x1F)

    again = words_after(lone, 70 * MS)

    assert again == ["RDMA_READ_REQUEST 501", "SEND_ONLY 502"]


@pytest.mark.parametrize("syndrome", [0x1F, 0x61, 0x2C, 0x40])
def test_whatever_comes_for_the_last_psn_completes_a_read_of_rxe_that_was_answered(
    syndrome: int,
) -> None:
    """`check_psn`, `COMPST_COMP_ACK` (recovery/duplicate-ends-a-read)."""
    lone = Peer(mtu=256, profile=RXE)
    lone.request(WROpcode.RDMA_READ, 8, wr_id=1)
    lone.receive_packet(R.RC_RDMA_READ_RESPONSE_ONLY, 500, bytes(4), syndrome=0x1F)
    assert statuses(lone.poll_send_cq()) == []

    lone.receive_packet(R.RC_ACKNOWLEDGE, 500, syndrome=syndrome)

    assert statuses(lone.poll_send_cq()) == [(1, WCStatus.SUCCESS)]
    assert summaries(lone.request(WROpcode.RDMA_READ, 8)) == ["RDMA_READ_REQUEST 501"]


@pytest.mark.parametrize(("retry_cnt", "status"), [(0, WCStatus.RETRY_EXC_ERR), (1, None)])
def test_a_read_of_rxe_that_was_answered_in_part_uses_up_one_retry(
    retry_cnt: int, status: WCStatus | None
) -> None:
    """`COMPST_ERROR_RETRY` counts, and then finds that there is nothing to send again."""
    lone = Peer(mtu=256, profile=RXE, retry_cnt=retry_cnt, timeout=14)
    lone.request(WROpcode.RDMA_READ, 8, wr_id=1)
    lone.receive_packet(R.RC_RDMA_READ_RESPONSE_ONLY, 500, bytes(4), syndrome=0x1F)

    assert words_after(lone, 1000 * MS) == []
    assert statuses(lone.poll_send_cq()) == ([] if status is None else [(1, status)])


def test_an_answer_beyond_a_read_of_rxe_that_was_answered_uses_up_a_retry() -> None:
    """`check_psn`, `COMPST_ERROR_RETRY`: seen on a guest, with one packet too many."""
    lone = Peer(mtu=256, profile=RXE, retry_cnt=0)
    lone.request(WROpcode.RDMA_READ, 256, wr_id=1)
    lone.receive_packet(R.RC_RDMA_READ_RESPONSE_FIRST, 500, bytes(256), syndrome=0x1F)

    lone.receive_packet(R.RC_RDMA_READ_RESPONSE_LAST, 501, b"x", syndrome=0x1F)

    assert statuses(lone.poll_send_cq()) == [(1, WCStatus.RETRY_EXC_ERR)]


@both
@pytest.mark.parametrize(
    ("ahead", "is_taken"), [(HALF - 1, True), (HALF, True), (HALF + 1, True), (HALF + 2, False)]
)
def test_rxe_counts_half_the_numbers_from_the_end_of_the_oldest_request(
    ahead: int, is_taken: bool, profile: Profile
) -> None:
    """`check_psn`: three PSNs here (requester/half-way-around)."""
    lone = Peer(mtu=256, profile=profile)
    lone.request(WROpcode.RDMA_WRITE, 600, wr_id=1)

    lone.receive_ack(500 + ahead)

    assert statuses(lone.poll_send_cq()) == (
        [(1, WCStatus.SUCCESS)] if is_taken and profile is RXE else []
    )


@both
@pytest.mark.parametrize(
    ("syndrome", "status"),
    [(0x9F, WCStatus.SUCCESS), (0xE2, WCStatus.REM_ACCESS_ERR), (0xFF, None), (0xA1, None)],
)
def test_a_syndrome_with_its_reserved_bit_ends_the_connection_of_rxe_with_success(
    syndrome: int, status: WCStatus | None, profile: Profile
) -> None:
    """`AETH_TYPE_MASK` has three bits (requester/reserved-syndromes)."""
    lone = Peer(mtu=256, profile=profile)
    lone.request(WROpcode.RDMA_WRITE, 8, wr_id=1)

    lone.receive_packet(R.RC_ACKNOWLEDGE, 500, syndrome=syndrome)

    expected = WCStatus.SUCCESS if profile is RXE else status
    assert statuses(lone.poll_send_cq()) == ([] if expected is None else [(1, expected)])
    is_broken = profile is RXE or status is WCStatus.REM_ACCESS_ERR
    assert (lone.qp.state is QPState.ERR) is is_broken


@both
def test_data_with_a_reserved_bit_in_the_syndrome_are_not_taken_by_rxe(profile: Profile) -> None:
    lone = Peer(mtu=256, profile=profile)
    lone.request(WROpcode.RDMA_READ, 8, wr_id=1)

    lone.receive_packet(R.RC_RDMA_READ_RESPONSE_ONLY, 500, b"abcdefgh", syndrome=0x9F)

    assert statuses(lone.poll_send_cq()) == [(1, WCStatus.SUCCESS)]
    assert lone.memory[:8] == (bytes(8) if profile is RXE else b"abcdefgh")


# Numbers of READs and atomics.


@both
@pytest.mark.parametrize(("asked", "rounded"), [(0, 0), (1, 1), (3, 4), (5, 8), (16, 16)])
def test_rxe_rounds_the_number_of_reads_up_to_a_power_of_two(
    asked: int, rounded: int, profile: Profile
) -> None:
    """`rxe_qp_from_attr`."""
    lone = Peer(mtu=256, profile=profile, max_rd_atomic=asked, max_dest_rd_atomic=asked)

    attr = lone.qp.query()

    expected = rounded if profile is RXE else asked
    assert (attr.max_rd_atomic, attr.max_dest_rd_atomic) == (expected, expected)


@both
def test_so_more_reads_are_under_way_than_were_allowed(profile: Profile) -> None:
    lone = Peer(mtu=256, profile=profile, max_rd_atomic=3)

    asked = [lone.request(WROpcode.RDMA_READ, 8) for _ in range(5)]

    assert sum(map(len, asked)) == (4 if profile is RXE else 3)


# Operations that it does not support.


A19 = each_case("opcode", [WROpcode.FLUSH, WROpcode.ATOMIC_WRITE])

REFUSES = replace(SPEC, refuses_annex_a19=True)


@A19
@pytest.mark.parametrize("profile", [RXE, REFUSES], ids=["rxe", "refuses"])
def test_what_is_not_known_fails_when_its_turn_comes(opcode: WROpcode, profile: Profile) -> None:
    """`next_opcode` (requester/flush-and-atomic-write)."""
    lone = Peer(mtu=256, profile=profile)
    lone.request(WROpcode.RDMA_WRITE, 8, wr_id=1)

    heard = lone.request(opcode, 0, atomic_data=bytes(8), wr_id=2)
    assert (heard, statuses(lone.poll_send_cq())) == ([], [])
    lone.receive_ack(500)

    assert statuses(lone.poll_send_cq()) == [(1, WCStatus.SUCCESS), (2, WCStatus.LOC_QP_OP_ERR)]
    assert lone.qp.state is QPState.ERR


@A19
@pytest.mark.parametrize("profile", [RXE, REFUSES], ids=["rxe", "refuses"])
def test_what_is_not_known_fails_at_once_on_an_idle_queue(
    opcode: WROpcode, profile: Profile
) -> None:
    lone = Peer(mtu=256, profile=profile)

    assert lone.request(opcode, 0, atomic_data=bytes(8), wr_id=1) == []
    assert statuses(lone.poll_send_cq()) == [(1, WCStatus.LOC_QP_OP_ERR)]
    assert lone.qp.state is QPState.ERR


@A19
@pytest.mark.parametrize("profile", [RXE, REFUSES], ids=["rxe", "refuses"])
@pytest.mark.parametrize("outstanding", [False, True], ids=["idle", "outstanding"])
def test_what_is_not_known_waits_in_sqd_like_any_other(
    opcode: WROpcode, profile: Profile, *, outstanding: bool
) -> None:
    """SQD starts no new send; what is posted waits for RTS (the table of `POST_SEND`)."""
    lone = Peer(mtu=256, profile=profile)
    if outstanding:
        lone.request(WROpcode.SEND, 8, wr_id=1)
    lone.qp.modify(QPAttr(qp_state=QPState.SQD), QPAttrMask.STATE)

    assert lone.request(opcode, 0, atomic_data=bytes(8), wr_id=2) == []
    if outstanding:
        lone.receive_ack(500)
    assert statuses(lone.poll_send_cq()) == ([(1, WCStatus.SUCCESS)] if outstanding else [])
    assert (lone.qp.state, lone.qp.attr.sq_draining) == (QPState.SQD, 0)

    lone.qp.modify(QPAttr(qp_state=QPState.RTS), QPAttrMask.STATE)
    assert lone.transmit() == []
    assert statuses(lone.poll_send_cq()) == [(2, WCStatus.LOC_QP_OP_ERR)]
    assert lone.qp.state is QPState.ERR


@each_case(
    ("opcode", "payload", "said"),
    [(R.RC_ATOMIC_WRITE, bytes(8), {}), (R.RC_FLUSH, b"", {"plt": 1, "dma_len": 8})],
)
@each_case("psn", [99, 100, 101])
def test_rxe_does_not_see_operations_that_it_does_not_know(
    opcode: int, payload: bytes, said: dict[str, int], psn: int
) -> None:
    """Its opcodes have an empty mask, so they go to the completer, which drops them while nothing
    is outstanding (access/flush-flags, atomic/write)."""
    lone = Peer(mtu=256, profile=RXE)
    refusing = Peer(mtu=256, profile=REFUSES)

    assert lone.receive_packet(opcode, psn, payload, **said) == []
    assert summaries(lone.receive_packet(R.RC_RDMA_WRITE_ONLY, 100, b"abcd", ack_req=1)) == [
        "ACKNOWLEDGE 100 0x1f"
    ]
    nak = {99: [], 100: ["ACKNOWLEDGE 100 0x61"], 101: ["ACKNOWLEDGE 100 0x60"]}[psn]
    assert summaries(refusing.receive_packet(opcode, psn, payload, **said)) == nak
