"""Every law of a reliable connection (`laws.py`, `laws_wire.py`) over random schedules."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from examples import scaled
from ibwire.base.units import ACK_TIMEOUT_UNIT, US
from ibwire.rc.work import WCStatus, WROpcode
from laws import (
    ACKNOWLEDGE,
    SENDS,
    is_request,
    psn_of,
    rnr_us,
    syndrome_of,
)
from laws_wire import check, nothing_is_sent_twice
from random_schedules import ANNEX_A19, KNOWN_TO_ALL, faults, schedules, work_lists
from schedules import (
    ATOMICS,
    TAKES_RECEIVE,
    WRITES,
    Bad,
    Fault,
    Harm,
    Run,
    Schedule,
    Work,
)

FLOW_CONTROLLED = ("spec", "rdmavt", "connectx", "hns")

laws = settings(
    max_examples=scaled(60),
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.data_too_large],
)

rarely = settings(laws, max_examples=scaled(15))


@laws
@given(schedules())
def test_laws_hold_whatever_the_wire_does(schedule: Schedule) -> None:
    check(schedule)


@pytest.mark.slow
@laws
@given(
    schedules(
        opcodes=(WROpcode.RDMA_READ, WROpcode.SEND, *ATOMICS, WROpcode.FLUSH),
        harms=(Harm.DROP, Harm.DUPLICATE, Harm.DELAY),
        most_faults=12,
    )
)
def test_laws_hold_for_reads_and_atomics_on_a_bad_wire(schedule: Schedule) -> None:
    check(schedule)


@laws
@given(schedules(opcodes=(*TAKES_RECEIVE, WROpcode.RDMA_WRITE), profiles=FLOW_CONTROLLED))
def test_laws_hold_where_credits_decide(schedule: Schedule) -> None:
    check(schedule)


@rarely
@given(schedules(profiles=("rxe",), most_faults=10))
def test_laws_hold_between_two_soft_roce(schedule: Schedule) -> None:
    check(schedule)


@rarely
@given(schedules(opcodes=(*TAKES_RECEIVE, *WRITES), credits_say_zero=True))
def test_laws_hold_with_a_peer_whose_credit_code_is_always_zero(schedule: Schedule) -> None:
    run = check(schedule)
    assert all(wc.status is WCStatus.SUCCESS for flow in run.flows for wc in flow.sent)


@pytest.mark.slow
@settings(laws, max_examples=8)
@given(
    st.lists(st.integers(60, 200), min_size=1, max_size=2),
    st.sampled_from((WROpcode.SEND, WROpcode.RDMA_WRITE, WROpcode.RDMA_READ)),
    st.lists(faults((Harm.DROP, Harm.DELAY, Harm.DUPLICATE), last=200), max_size=4),
    st.sampled_from(("spec", "rdmavt", "rxe")),
)
def test_laws_hold_for_messages_longer_than_a_window(
    packets: list[int], opcode: WROpcode, harm: list[Fault], profile: str
) -> None:
    works = tuple(Work(opcode, 256 * count + 1) for count in packets)
    psns = ((1 << 24) - 70, 0)
    check(Schedule(works, faults=tuple(harm), profiles=(profile, "spec"), psns=psns))


# What ends well.


@laws
@given(schedules(harms=(Harm.DROP,), most_faults=6))
def test_fewer_losses_than_retries_never_fail_a_request(schedule: Schedule) -> None:
    run = check(schedule)
    assert all(wc.status is WCStatus.SUCCESS for flow in run.flows for wc in flow.sent)


@laws
@given(schedules(harms=(), late_receives=False, timeout=18))
def test_without_faults_every_psn_is_sent_and_answered_once(schedule: Schedule) -> None:
    run = check(schedule)

    nothing_is_sent_twice(run)
    for flow in run.flows:
        assert all(wc.status is WCStatus.SUCCESS for wc in flow.sent)
        responses = [
            psn_of(flow, p)
            for p in run.packets(flow.responder)
            if not is_request(p) and p.bth.opcode != ACKNOWLEDGE
        ]
        reserved = [
            psn
            for message in flow.messages
            for psn in range(message.start, message.end)
            if message.work.opcode not in (*TAKES_RECEIVE, *WRITES)
        ]
        assert responses == reserved


@rarely
@given(schedules())
def test_two_runs_of_one_schedule_are_the_same_to_the_byte(schedule: Schedule) -> None:
    first, second = Run(schedule), Run(schedule)
    assert first.history == second.history
    assert all(first.memory(end) == second.memory(end) for end in "ab")


@laws
@given(
    st.lists(st.integers(0, (1 << 64) - 1), min_size=1, max_size=6),
    st.lists(faults((Harm.DROP, Harm.DUPLICATE, Harm.DELAY), last=12), max_size=6),
    st.sampled_from(("spec", "rdmavt", "rxe")),
)
def test_fetch_adds_sum_up_whatever_is_lost_or_sent_twice(
    numbers: list[int], harm: list[Fault], profile: str
) -> None:
    works = tuple(Work(WROpcode.ATOMIC_FETCH_AND_ADD, operand=number) for number in numbers)
    run = check(Schedule(works, faults=tuple(harm), profiles=(profile, profile)))

    flow = run.flows[0]
    done = sum(wc.status is WCStatus.SUCCESS for wc in flow.sent)
    end = run.ends["b"].mr.load64(run.word(0))
    possible = [(1 + sum(numbers[:count])) % (1 << 64) for count in range(len(numbers) + 1)]
    assert end in possible[done:]
    originals = [run.ends["a"].mr.load64(run.own(index)) for index in range(done)]
    assert originals == possible[:done]


# What ends with an error.


@rarely
@given(
    schedules(most_faults=3, profiles=FLOW_CONTROLLED),
    st.integers(1, 20),
    st.integers(0, 7),
    st.integers(4, 12),
)
def test_laws_hold_when_the_answers_cease(
    schedule: Schedule, first: int, retries: int, timeout: int
) -> None:
    run = check(_silenced(schedule, first, retries, timeout))

    flow = run.flows[0]
    errors = [wc.status for wc in flow.sent if wc.status is not WCStatus.SUCCESS]
    assert errors[:1] in ([], [WCStatus.RETRY_EXC_ERR])


def _silenced(schedule: Schedule, first: int, retries: int, timeout: int) -> Schedule:
    """The schedule with nothing arriving from `b` any more."""
    lost = tuple(Fault("b", number) for number in range(first, 2000))
    return replace(schedule, faults=lost, retry_cnt=retries, timeout=timeout, back=())


@rarely
@given(st.integers(0, 7), st.integers(1, 13), st.sampled_from(FLOW_CONTROLLED), st.booleans())
def test_an_unanswered_request_is_sent_once_and_once_for_each_retry(
    retries: int, timeout: int, profile: str, reads: bool
) -> None:
    """Each after a wait of T to 4T, and as long passes until the error (C9-141)."""
    opcode = WROpcode.RDMA_READ if reads else WROpcode.SEND
    schedule = Schedule((Work(opcode, 100), Work(opcode, 700)), profiles=(profile, "spec"))
    run = check(_silenced(schedule, 1, retries, timeout))

    flow = run.flows[0]
    times = [
        event.time
        for event in run.history
        if (event.end, event.kind) == ("a", "sent")
        and event.packet
        and is_request(event.packet)
        and psn_of(flow, event.packet) == flow.psn
    ]
    nominal = ACK_TIMEOUT_UNIT << timeout
    times.append(next(event.time for event in run.history if event.kind == "completed"))
    assert len(times) == retries + 2
    waits = [later - earlier for earlier, later in pairwise(times)]
    assert all(nominal <= wait <= 4 * nominal for wait in waits)
    assert [wc.status for wc in flow.sent] == [WCStatus.RETRY_EXC_ERR, WCStatus.WR_FLUSH_ERR]


@rarely
@given(
    st.integers(0, 6),
    st.integers(0, 31),
    st.sampled_from(("spec", "rdmavt", "rxe")),
    st.sampled_from(sorted(TAKES_RECEIVE)),
    st.sampled_from((0, 200, 600)),
)
def test_a_message_without_a_receive_is_refused_once_and_once_for_each_rnr_retry(
    retries: int, code: int, profile: str, opcode: WROpcode, length: int
) -> None:
    schedule = Schedule(
        (Work(WROpcode.RDMA_WRITE, 5), Work(opcode, length)),
        receives=(),
        receive_size=length,
        rnr_retry=retries,
        min_rnr_timer=code,
        profiles=(profile, profile),
        timeout=8,
    )
    run = check(schedule)

    naks = [
        event
        for event in run.history
        if event.kind == "arrived"
        and event.packet
        and (syndrome_of(event.packet) or 0) == 0x20 | code
    ]
    wait = rnr_us(code, run.flows[0].profile("a")) * US
    assert len(naks) == retries + 1
    assert all(b.time - a.time >= wait for a, b in pairwise(naks))
    assert [wc.status for wc in run.flows[0].sent] == [
        WCStatus.SUCCESS,
        WCStatus.RNR_RETRY_EXC_ERR,
    ]
    assert run.ends["b"].qp.state.name == "RTS"


BAD_WORKS = (
    *(Work(op, 300, bad=Bad.RKEY) for op in (*WRITES, WROpcode.RDMA_READ)),
    *(Work(op, 300, bad=Bad.BOUNDS) for op in (*WRITES, WROpcode.RDMA_READ)),
    *(Work(op, bad=Bad.RKEY) for op in (*ATOMICS, WROpcode.FLUSH, WROpcode.ATOMIC_WRITE)),
)
LOCAL_ERRORS = {
    Work(WROpcode.LOCAL_INV, bad=Bad.RKEY): WCStatus.LOC_QP_OP_ERR,
    Work(WROpcode.BIND_MW, bad=Bad.RKEY): WCStatus.MW_BIND_ERR,
    Work(WROpcode.SEND, 600, bad=Bad.LKEY): WCStatus.LOC_PROT_ERR,
    Work(WROpcode.SEND, 1500, pieces=2, bad=Bad.LKEY): WCStatus.LOC_PROT_ERR,
    Work(WROpcode.RDMA_WRITE, 1, bad=Bad.LKEY): WCStatus.LOC_PROT_ERR,
    Work(WROpcode.RDMA_READ, 1, bad=Bad.LKEY): WCStatus.LOC_PROT_ERR,
    Work(WROpcode.ATOMIC_FETCH_AND_ADD, bad=Bad.LKEY): WCStatus.LOC_PROT_ERR,
}

before_and_after = st.tuples(
    work_lists(256, 4, opcodes=KNOWN_TO_ALL), work_lists(256, 3, opcodes=KNOWN_TO_ALL)
)


@laws
@given(before_and_after, st.sampled_from(BAD_WORKS), st.sampled_from(("spec", "rdmavt", "rxe")))
def test_a_request_for_memory_that_is_not_granted_fails_alone_and_writes_nothing(
    others: tuple[tuple[Work, ...], tuple[Work, ...]], bad: Work, profile: str
) -> None:
    assume(profile != "rxe" or bad.opcode not in ANNEX_A19)
    before, after = others
    run = check(Schedule((*before, bad, *after), profiles=(profile, profile)))

    _check_failed(run, len(before), WCStatus.REM_ACCESS_ERR)
    assert run.ends["b"].qp.state.name == "ERR"


@laws
@given(
    before_and_after,
    st.sampled_from(list(LOCAL_ERRORS)),
    st.lists(faults((Harm.DROP,)), max_size=4),
)
def test_a_request_that_fails_at_home_lets_those_before_it_complete(
    others: tuple[tuple[Work, ...], tuple[Work, ...]], bad: Work, harm: list[Fault]
) -> None:
    before, after = others
    run = check(Schedule((*before, bad, *after), faults=tuple(harm)))

    _check_failed(run, len(before), LOCAL_ERRORS[bad])


@laws
@given(
    before_and_after,
    st.sampled_from(sorted(SENDS)),
    st.integers(0, 5 * 256),
    st.sampled_from(("spec", "rdmavt", "rxe")),
)
def test_a_send_longer_than_the_receive_buffer_fails(
    others: tuple[tuple[Work, ...], tuple[Work, ...]], opcode: WROpcode, size: int, profile: str
) -> None:
    before = tuple(work for work in others[0] if work.opcode not in SENDS)
    works = (*before, Work(opcode, size + 1), *others[1])
    run = check(Schedule(works, receive_size=size, profiles=(profile, profile)))

    rxe = profile == "rxe"
    _check_failed(run, len(before), WCStatus.REM_OP_ERR if rxe else WCStatus.REM_INV_REQ_ERR)
    told = [wc.status for wc in run.flows[0].received if wc.status is not WCStatus.SUCCESS]
    assert told[0] is (WCStatus.LOC_LEN_ERR if profile == "spec" else WCStatus.LOC_QP_OP_ERR)


def _check_failed(run: Run, index: int, status: WCStatus) -> None:
    failed = [wc for wc in run.flows[0].sent if wc.status is not WCStatus.SUCCESS]
    assert (failed[0].wr_id, failed[0].status) == (index, status)
    assert run.ends["a"].qp.state.name == "ERR"


@laws
@given(
    schedules(harms=(Harm.DROP, Harm.DELAY, Harm.CORRUPT), most_faults=10, retry_cnt=1),
    st.sampled_from((0, 1, 2)),
)
def test_laws_hold_where_retries_run_out_early(schedule: Schedule, rnr_retry: int) -> None:
    check(replace(schedule, rnr_retry=rnr_retry))
