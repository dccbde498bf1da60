"""Completion channels and asynchronous events; waiting advances virtual time."""

from __future__ import annotations

import errno

import pytest

from ibwire.base.units import MS, US
from ibwire.verbs import libibverbs_enums as e
from ibwire.verbs.cq import CQ, CompChannel
from ibwire.verbs.network import POLL_STEP, READ_STEP, Network
from ibwire.verbs.pyverbs_error import PyverbsRDMAError
from ibwire.verbs.srq import SRQ, SrqAttr, SrqInitAttr
from verbs.ends import End, ends

SEND = e.ibv_wr_opcode.IBV_WR_SEND


def test_armed_cq_reports_once() -> None:
    a, b = ends(channel=CompChannel)
    for _ in range(2):
        b.qp.post_recv(b.recv())
    b.cq.req_notify()
    for _ in range(2):
        a.qp.post_send(a.send(SEND))

    b.channel.get_cq_event(b.cq)

    assert b.cq.num_events == 1
    with pytest.raises(PyverbsRDMAError) as nothing:
        b.channel.get_cq_event(b.cq)
    assert nothing.value.error_code == errno.EAGAIN
    b.cq.ack_events(1)
    assert b.cq.num_events == 0
    assert b.cq.poll(10)[0] == 2


def test_cq_armed_for_solicited_completions_ignores_others() -> None:
    a, b = ends(channel=CompChannel)
    for _ in range(2):
        b.qp.post_recv(b.recv())
    b.cq.req_notify(solicited_only=True)
    a.qp.post_send(a.send(SEND))
    with pytest.raises(PyverbsRDMAError):
        b.channel.get_cq_event(b.cq)
    flags = e.ibv_send_flags.IBV_SEND_SIGNALED | e.ibv_send_flags.IBV_SEND_SOLICITED
    a.qp.post_send(a.send(SEND, send_flags=flags))

    b.channel.get_cq_event(b.cq)

    assert b.cq.num_events == 1


def test_event_of_another_cq_is_an_error() -> None:
    a, b = ends(channel=CompChannel)
    other = CQ(b.ctx, 10, None, b.channel)
    b.qp.post_recv(b.recv())
    b.cq.req_notify()
    a.qp.post_send(a.send(SEND))

    with pytest.raises(PyverbsRDMAError, match="unexpected CQ"):
        b.channel.get_cq_event(other)


def test_closing_a_channel_closes_the_cqs_that_report_to_it() -> None:
    _, b = ends(channel=CompChannel)

    b.channel.close()

    assert b.cq.cq is None
    assert b.qp.qp is None


def test_limit_of_a_shared_receive_queue_is_an_event_of_its_context() -> None:
    a = End("ibwire0")
    b = End("ibwire1", srq=lambda pd: SRQ(pd, SrqInitAttr(SrqAttr(10))))
    bystander = End("ibwire1")
    a.connect(b)
    b.connect(a)
    for _ in range(2):
        b.srq.post_recv(b.recv())
    b.srq.modify(SrqAttr(srq_limit=2), e.ibv_srq_attr_mask.IBV_SRQ_LIMIT)
    assert b.srq.query().srq_limit == 2
    a.qp.post_send(a.send(SEND))

    event = b.ctx.get_async_event()

    event.ack()
    assert event.event_type == e.ibv_event_type.IBV_EVENT_SRQ_LIMIT_REACHED
    with pytest.raises(PyverbsRDMAError) as nothing:
        bystander.ctx.get_async_event()
    assert nothing.value.error_code == errno.EAGAIN


def test_fatal_request_is_an_event_of_the_responder() -> None:
    a, b = ends()
    request = a.send(e.ibv_wr_opcode.IBV_WR_RDMA_WRITE)
    request.set_wr_rdma(12345, b.mr.buf)
    a.qp.post_send(request)

    assert b.ctx.get_async_event().event_type in (
        e.ibv_event_type.IBV_EVENT_COMM_EST,
        e.ibv_event_type.IBV_EVENT_QP_ACCESS_ERR,
    )


def test_poll_of_an_empty_cq_takes_at_most_a_step(network: Network) -> None:
    a, _ = ends(changes={"rnr_retry": 7})
    a.qp.post_send(a.send(SEND))  # no receive request: tried for ever
    before = network.now

    assert a.cq.poll() == (0, [])

    assert network.now - before == POLL_STEP == 10 * MS


def test_poll_stops_at_the_first_completion(network: Network) -> None:
    a, b = ends()
    b.qp.post_recv(b.recv())
    a.qp.post_send(a.send(SEND))

    assert b.cq.poll(5)[0] == 1

    # 1 us to the bridge, 1 us from it, and some nanoseconds of line time.
    assert 2 * US < network.now < 3 * US
    assert a.cq.poll()[0] == 1


def test_poll_of_zero_entries_takes_no_time(network: Network) -> None:
    a, _ = ends()

    assert a.cq.poll(0) == (0, [])
    assert network.now == 0


def test_reading_memory_advances_time_and_writing_does_not(network: Network) -> None:
    a, _ = ends()
    a.mr.write(b"x", 1)
    assert network.now == 0

    a.mr.read(1, 0)

    assert network.now == READ_STEP == 20 * US


def test_waiting_for_a_receiver_that_is_never_ready_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ibwire.verbs.network.WAIT_FRAMES", 1000)
    a, _ = ends(channel=CompChannel)
    a.cq.req_notify()
    a.qp.post_send(a.send(SEND))

    with pytest.raises(PyverbsRDMAError) as nothing:
        a.channel.get_cq_event(a.cq)

    assert nothing.value.error_code == errno.EAGAIN
