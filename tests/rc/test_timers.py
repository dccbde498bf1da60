"""How long it waits, how often it tries: reference/transport#ack-timeout, in virtual time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from each_case import each_case
from ibwire.base.units import MS, US
from ibwire.rc.attributes import QPState
from ibwire.rc.profile import CONNECTX, HNS, PROFILES, RDMAVT, RXE, SPEC, Profile
from ibwire.rc.timers import Timers, ack_wait, rnr_wait
from ibwire.rc.work import WCStatus, WROpcode
from ibwire.testing import Peer, statuses, summaries
from ibwire_layers.opcodes import OpCode

R = OpCode
OK = WCStatus.SUCCESS
NS = US // 1000

every_profile = each_case("profile", PROFILES.values(), ids=lambda p: p.name)

RNR_MS = [
    655.36,
    0.01,
    0.02,
    0.03,
    0.04,
    0.06,
    0.08,
    0.12,
    0.16,
    0.24,
    0.32,
    0.48,
    0.64,
    0.96,
    1.28,
    1.92,
    2.56,
    3.84,
    5.12,
    7.68,
    10.24,
    15.36,
    20.48,
    30.72,
    40.96,
    61.44,
    81.92,
    122.88,
    163.84,
    245.76,
    327.68,
    491.52,
]
"""Section 7."""


def open_lone(**given: Any) -> Peer:
    lone = Peer(mtu=256, **given)
    lone.qp.sends.credits.limited = False
    return lone


@each_case("code", range(1, 32))
def test_the_ack_timer_is_4096_ns_doubled_by_its_code(code: int) -> None:
    assert ack_wait(code, SPEC) == 4096 * NS << code


@every_profile
def test_code_0_waits_for_ever(profile: Profile) -> None:
    assert ack_wait(0, profile) is None


@each_case(("code", "ms"), [(12, 16), (14, 64), (18, 1072), (8, 4), (1, 4)])
def test_rxe_cuts_the_ack_timer_to_jiffies_of_4_ms(code: int, ms: int) -> None:
    assert ack_wait(code, RXE) == ms * MS


@each_case(("code", "ms"), list(enumerate(RNR_MS)))
def test_rnr_wait_is_the_table(code: int, ms: float) -> None:
    assert rnr_wait(code, SPEC) == round(ms * 1000) * US


@each_case("code", range(32))
def test_rxe_waits_no_less_than_its_table_which_has_one_other_number(code: int) -> None:
    table = 61.41 if code == 25 else RNR_MS[code]

    wait = rnr_wait(code, RXE)

    assert wait % (4 * MS) == 0
    assert round(table * 1000) * US < wait <= round(table * 1000) * US + 8 * MS


def test_rnr_timer_of_oracle_psif_runs_500_times_too_fast() -> None:
    profile = replace(SPEC, rnr_timer_percent=0)
    assert rnr_wait(12, profile) == 0
    assert rnr_wait(20, replace(SPEC, rnr_timer_percent=50)) == 5120 * US


def test_the_earlier_timer_is_the_next() -> None:
    timers = Timers()
    assert timers.next_timeout() is None
    timers.ack = 5
    assert timers.next_timeout() == 5
    timers.rnr = 3
    assert timers.next_timeout() == 3
    timers.ack = None
    assert timers.next_timeout() == 3
    timers.stop()
    assert timers.next_timeout() is None


# The ACK timer.


def test_a_timeout_resends_everything_from_the_oldest_unacknowledged_packet() -> None:
    lone = open_lone(timeout=1)
    for _ in range(3):
        lone.request(WROpcode.RDMA_WRITE, 8)
    lone.receive_ack(500)

    assert lone.wait(8191 * NS) == []
    again = lone.wait(2 * NS)

    assert summaries(again) == ["RDMA_WRITE_ONLY 501", "RDMA_WRITE_ONLY 502"]
    assert lone.qp.counters.timeouts == 1


def test_rdmavt_resends_one_packet_and_waits_for_its_answer() -> None:
    """RVT_S_SEND_ONE."""
    lone = open_lone(profile=RDMAVT, timeout=1)
    lone.request(WROpcode.RDMA_WRITE, 1000)

    (probe,) = lone.wait(9 * US)

    assert (probe.bth.psn, probe.bth.ack_req) == (500, 1)
    assert [p.bth.psn for p in lone.receive_ack(500)] == [501, 502, 503]


def test_no_timer_runs_when_nothing_is_outstanding() -> None:
    lone = open_lone()
    lone.request(WROpcode.RDMA_WRITE, 8)
    assert lone.qp.poll_timeout() is not None

    lone.receive_ack(500)

    assert lone.qp.poll_timeout() is None


def test_the_timer_of_rxe_runs_on_and_expires_during_a_healthy_request() -> None:
    """rc-pingpong packet 81."""
    lone = open_lone(profile=RXE, timeout=12)
    lone.request(WROpcode.RDMA_WRITE, 8)
    lone.receive_ack(500)
    lone.wait(15 * MS)
    lone.request(WROpcode.RDMA_WRITE, 8)

    assert summaries(lone.wait(1 * MS)) == ["RDMA_WRITE_ONLY 501"]


def test_spec_starts_the_timer_afresh_for_a_new_request() -> None:
    lone = open_lone(timeout=12)
    lone.request(WROpcode.RDMA_WRITE, 8)
    lone.receive_ack(500)
    lone.wait(15 * MS)
    lone.request(WROpcode.RDMA_WRITE, 8)

    assert lone.wait(16 * MS) == []
    assert summaries(lone.wait(1 * MS)) == ["RDMA_WRITE_ONLY 501"]


@every_profile
def test_every_response_that_makes_progress_starts_the_timer_afresh(profile: Profile) -> None:
    """READ RESPONSE MIDDLE too (section 9)."""
    lone = open_lone(profile=profile, timeout=12)
    lone.request(WROpcode.RDMA_READ, 1024)

    lone.wait(12 * MS)
    lone.receive_packet(R.RC_RDMA_READ_RESPONSE_FIRST, 500, bytes(256), syndrome=0x1F)
    assert lone.wait(12 * MS) == []
    lone.receive_packet(R.RC_RDMA_READ_RESPONSE_MIDDLE, 501, bytes(256))
    assert lone.wait(12 * MS) == []

    assert summaries(lone.wait(8 * MS)) == ["RDMA_READ_REQUEST 502"]


def test_ghost_answers_do_not() -> None:
    lone = open_lone(timeout=12)
    lone.request(WROpcode.RDMA_WRITE, 8)
    lone.wait(12 * MS)
    lone.receive_ack(499)

    assert summaries(lone.wait(5 * MS)) == ["RDMA_WRITE_ONLY 500"]


@every_profile
def test_timeout_0_never_resends(profile: Profile) -> None:
    lone = open_lone(profile=profile, timeout=0)
    lone.request(WROpcode.RDMA_WRITE, 8)

    assert lone.qp.poll_timeout() is None


# Retries.


@every_profile
@pytest.mark.parametrize("retries", [0, 1, 3, 6])
def test_retry_cnt_3_is_4_transmissions(retries: int, profile: Profile) -> None:
    """retry-exceeded. Then RETRY_EXC_ERR, and the rest is flushed."""
    lone = open_lone(profile=profile, retry_cnt=retries, timeout=1)
    sent = len(lone.request(WROpcode.RDMA_WRITE, 8, wr_id=1))
    lone.qp.post_send(_write(lone, 2))

    sent += sum(p.bth.psn == 500 for p in lone.wait(1000 * MS))

    assert sent == retries + 1
    assert statuses(lone.poll_send_cq()) == [
        (1, WCStatus.RETRY_EXC_ERR),
        (2, WCStatus.WR_FLUSH_ERR),
    ]
    assert lone.qp.state is QPState.ERR
    assert lone.poll_events() == []


def _write(lone: Peer, wr_id: int) -> Any:
    from ibwire.rc.work import SendWR

    return SendWR(WROpcode.RDMA_WRITE, [lone.sge(0, 8)], wr_id=wr_id, remote_addr=0x5000)


@pytest.mark.parametrize("profile", [SPEC, RDMAVT, CONNECTX, HNS], ids=lambda p: p.name)
def test_retry_cnt_7_is_seven(profile: Profile) -> None:
    lone = open_lone(profile=profile, retry_cnt=7, timeout=1)
    sent = len(lone.request(WROpcode.RDMA_WRITE, 8))

    sent += len(lone.wait(1000 * MS))

    assert sent == 8
    assert lone.qp.state is QPState.ERR


def test_retry_cnt_7_is_for_ever_in_rxe() -> None:
    lone = open_lone(profile=RXE, retry_cnt=7, timeout=1)
    lone.request(WROpcode.RDMA_WRITE, 8)

    assert len(lone.wait(400 * MS)) == 100
    assert lone.qp.state is QPState.RTS


@pytest.mark.parametrize("progress", ["ACK", "READ response"])
def test_progress_gives_all_retries_back(progress: str) -> None:
    lone = open_lone(retry_cnt=1, timeout=1)
    if progress == "ACK":
        lone.request(WROpcode.RDMA_WRITE, 600)
    else:
        lone.request(WROpcode.RDMA_READ, 600)
    for psn in (500, 501):
        assert lone.wait(9 * US)
        if progress == "ACK":
            lone.receive_ack(psn)
        elif psn == 500:
            lone.receive_packet(R.RC_RDMA_READ_RESPONSE_FIRST, psn, bytes(256), syndrome=0x1F)
        else:
            lone.receive_packet(R.RC_RDMA_READ_RESPONSE_FIRST, psn, bytes(256), syndrome=0x1F)

    assert lone.wait(9 * US)
    assert lone.qp.state is QPState.RTS


@every_profile
def test_naks_timeouts_and_implied_naks_use_the_same_counter(profile: Profile) -> None:
    lone = open_lone(profile=profile, retry_cnt=3, timeout=1)
    lone.request(WROpcode.RDMA_READ, 8, wr_id=1)
    lone.request(WROpcode.RDMA_WRITE, 8, wr_id=2)

    lone.receive_ack(501)  # implied NAK
    assert lone.qp.sends.retries == 2
    lone.wait(5 * MS if profile is RXE else 9 * US)  # timeout
    assert lone.qp.sends.retries == 1
    lone.receive_ack(
        500, syndrome=0x60
    )  # of the READ itself; rxe has gone back, and waits for progress
    assert lone.qp.sends.retries == (1 if profile is RXE else 0)


@every_profile
def test_retry_cnt_0_makes_the_first_nak_fatal(profile: Profile) -> None:
    lone = open_lone(profile=profile, retry_cnt=0)
    lone.request(WROpcode.RDMA_WRITE, 8)

    lone.receive_ack(500, syndrome=0x60)

    assert [status for _, status in statuses(lone.poll_send_cq())] == [WCStatus.RETRY_EXC_ERR]


# RNR.


@pytest.mark.parametrize("code", [0, 1, 12, 31])
def test_an_rnr_nak_is_waited_out(code: int) -> None:
    lone = open_lone(timeout=1)
    lone.request(WROpcode.RDMA_WRITE, 8)
    lone.request(WROpcode.SEND, 8)
    lone.receive_ack(501, syndrome=0x20 | code)
    assert statuses(lone.poll_send_cq()) == [(0, OK)]  # the WRITE before it

    assert lone.wait(round(RNR_MS[code] * 1000) * US - NS) == []
    assert summaries(lone.wait(2 * NS)) == ["SEND_ONLY 501"]
    assert lone.qp.counters.timeouts == 0  # the ACK timer stood still


@pytest.mark.parametrize(
    ("profile", "leave"),
    [(SPEC, 0), (RDMAVT, 0), (CONNECTX, 0), (RXE, 1)],
    ids=lambda value: getattr(value, "name", value),
)
def test_new_requests_during_an_rnr_wait(profile: Profile, leave: int) -> None:
    """rxe sends them (rnr-multi-packet packets 13 to 24)."""
    lone = open_lone(profile=profile)
    lone.request(WROpcode.SEND, 8)
    lone.receive_ack(500, syndrome=0x20 | 20)

    assert len(lone.request(WROpcode.SEND, 8)) == leave
    again = lone.wait(20 * MS)
    assert summaries(again) == ["SEND_ONLY 500", "SEND_ONLY 501"]


@every_profile
def test_nothing_leaves_before_its_time_because_of_a_sequence_nak_in_the_wait(
    profile: Profile,
) -> None:
    """rxe sends one after each RNR NAK: it neither ends the wait nor costs a retry."""
    lone = open_lone(profile=profile, retry_cnt=0)
    lone.request(WROpcode.SEND, 8)
    lone.receive_ack(500, syndrome=0x20 | 20)

    assert lone.receive_ack(500, syndrome=0x60) == []
    assert lone.qp.state is QPState.RTS
    assert summaries(lone.wait(20 * MS)) == ["SEND_ONLY 500"]


@every_profile
@pytest.mark.parametrize("retries", [0, 1, 2, 6])
def test_rnr_retry_2_is_3_naks(retries: int, profile: Profile) -> None:
    """rnr-exceeded."""
    lone = open_lone(profile=profile, rnr_retry=retries)
    lone.request(WROpcode.SEND, 8, wr_id=1)
    for _ in range(retries):
        lone.receive_ack(500, syndrome=0x21)
        assert statuses(lone.poll_send_cq()) == []
        assert summaries(lone.wait(9 * MS)) == ["SEND_ONLY 500"]

    lone.receive_ack(500, syndrome=0x21)

    assert statuses(lone.poll_send_cq()) == [(1, WCStatus.RNR_RETRY_EXC_ERR)]
    assert lone.qp.state is QPState.ERR


@every_profile
def test_rnr_retry_7_is_for_ever(profile: Profile) -> None:
    lone = open_lone(profile=profile, rnr_retry=7)
    lone.request(WROpcode.SEND, 8)
    for _ in range(50):
        lone.receive_ack(500, syndrome=0x21)
        assert summaries(lone.wait(9 * MS)) == ["SEND_ONLY 500"]

    assert lone.qp.state is QPState.RTS


def test_rnr_naks_do_not_use_up_retry_cnt() -> None:
    lone = open_lone(rnr_retry=7, retry_cnt=1)
    lone.request(WROpcode.SEND, 8)
    for _ in range(5):
        lone.receive_ack(500, syndrome=0x21)
        lone.wait(20 * US)

    assert lone.qp.sends.retries == 1


def test_a_second_rnr_nak_in_the_wait_changes_nothing() -> None:
    lone = open_lone(rnr_retry=1)
    lone.request(WROpcode.SEND, 8)
    lone.receive_ack(500, syndrome=0x21)
    lone.wait(5 * US)

    lone.receive_ack(500, syndrome=0x21)

    assert lone.qp.state is QPState.RTS
    assert summaries(lone.wait(5 * US)) == ["SEND_ONLY 500"]


def test_an_acknowledgement_in_the_wait_ends_it() -> None:
    """A copy of the refused packet came when a receive was there."""
    lone = open_lone()
    lone.request(WROpcode.SEND, 8, wr_id=1)
    lone.receive_ack(500, syndrome=0x20)

    lone.receive_ack(500)

    assert statuses(lone.poll_send_cq()) == [(1, OK)]
    assert lone.qp.poll_timeout() is None
    assert summaries(lone.request(WROpcode.SEND, 8)) == ["SEND_ONLY 501"]


def test_a_write_with_immediate_resends_its_last_packet_alone() -> None:
    lone = open_lone()
    lone.request(WROpcode.RDMA_WRITE_WITH_IMM, 700)

    lone.receive_ack(502, syndrome=0x21)

    assert summaries(lone.wait(20 * US)) == ["RDMA_WRITE_LAST_WITH_IMMEDIATE 502"]
