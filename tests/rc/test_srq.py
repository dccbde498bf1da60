"""Shared receive queues: order, room, and the limit that rings once."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest

from ibwire.base.errors import VerbsError
from ibwire.rc.attributes import AsyncEvent, EventType
from ibwire.rc.cq import CompletionQueue
from ibwire.rc.memory import KeyTable, ProtectionDomain
from ibwire.rc.srq import SharedReceiveQueue, SRQAttr
from ibwire.rc.work import SGE, RecvWR


@pytest.fixture
def events() -> list[AsyncEvent]:
    return []


@pytest.fixture
def pd() -> ProtectionDomain:
    return ProtectionDomain(KeyTable())


@pytest.fixture
def srq(events: list[AsyncEvent], pd: ProtectionDomain) -> SharedReceiveQueue:
    return SharedReceiveQueue(events.append, pd, max_wr=10, max_sge=2)


def raises(code: int, call: Callable[[], object]) -> None:
    with pytest.raises(VerbsError) as caught:
        call()
    assert caught.value.errno == code


def ignore(event: AsyncEvent) -> None:
    """For queues whose events do not matter."""


def fill(srq: SharedReceiveQueue, count: int) -> None:
    for wr_id in range(count):
        srq.post_recv(RecvWR(wr_id=wr_id))


def take(srq: SharedReceiveQueue, count: int) -> list[int]:
    taken = [srq.take() for _ in range(count)]
    return [wr.wr_id for wr in taken if wr is not None]


def test_requests_are_taken_in_the_order_of_their_posting(srq: SharedReceiveQueue) -> None:
    fill(srq, 3)

    assert len(srq) == 3
    assert take(srq, 5) == [0, 1, 2]
    assert srq.take() is None


def test_full_queue_is_enomem_until_one_is_taken(srq: SharedReceiveQueue) -> None:
    fill(srq, 10)

    raises(errno.ENOMEM, lambda: srq.post_recv(RecvWR()))
    srq.take()
    srq.post_recv(RecvWR())


def test_request_with_too_many_sges_is_einval(srq: SharedReceiveQueue) -> None:
    srq.post_recv(RecvWR([SGE(0, 0, 0)] * 2))

    raises(errno.EINVAL, lambda: srq.post_recv(RecvWR([SGE(0, 0, 0)] * 3)))
    assert len(srq) == 1


def test_limit_rings_at_the_fourth_of_ten_with_limit_7(
    srq: SharedReceiveQueue, events: list[AsyncEvent]
) -> None:
    """pyverbs' test_modify_srq_limit: 6 are left, fewer than 7."""
    fill(srq, 10)
    srq.modify(limit=7)

    take(srq, 3)
    assert events == []
    take(srq, 1)

    assert events == [AsyncEvent(EventType.SRQ_LIMIT_REACHED, srq)]


def test_limit_rings_once_and_is_then_0(srq: SharedReceiveQueue, events: list[AsyncEvent]) -> None:
    fill(srq, 10)
    srq.modify(limit=9)

    take(srq, 10)

    assert len(events) == 1
    assert srq.query() == SRQAttr(max_wr=10, max_sge=2, srq_limit=0)


def test_limit_rings_again_when_it_is_set_again(
    srq: SharedReceiveQueue, events: list[AsyncEvent]
) -> None:
    fill(srq, 10)
    for _ in range(2):
        srq.modify(limit=10)
        take(srq, 2)

    assert len(events) == 2


def test_limit_above_what_is_there_rings_at_the_next_taking(
    srq: SharedReceiveQueue, events: list[AsyncEvent]
) -> None:
    fill(srq, 2)

    srq.modify(limit=5)
    assert events == []
    assert srq.query().srq_limit == 5
    take(srq, 1)

    assert len(events) == 1


def test_taking_from_an_empty_queue_does_not_ring(
    srq: SharedReceiveQueue, events: list[AsyncEvent]
) -> None:
    srq.modify(limit=5)

    assert srq.take() is None
    assert events == []


def test_limit_of_the_creation_counts(events: list[AsyncEvent], pd: ProtectionDomain) -> None:
    srq = SharedReceiveQueue(events.append, pd, max_wr=4, max_sge=1, limit=2)
    fill(srq, 3)

    take(srq, 1)
    assert events == []
    take(srq, 1)

    assert len(events) == 1


@pytest.mark.parametrize(
    ("max_wr", "limit"), [(0, None), (-1, None), (2, None), (None, 11), (None, -1), (5, 6)]
)
def test_wrong_modify_changes_nothing(
    srq: SharedReceiveQueue, max_wr: int | None, limit: int | None
) -> None:
    fill(srq, 3)
    srq.modify(limit=3)

    raises(errno.EINVAL, lambda: srq.modify(max_wr, limit))
    assert srq.query() == SRQAttr(10, 2, 3)


def test_size_can_shrink_to_what_is_there(srq: SharedReceiveQueue) -> None:
    fill(srq, 3)

    srq.modify(max_wr=3)

    raises(errno.ENOMEM, lambda: srq.post_recv(RecvWR()))


@pytest.mark.parametrize(("max_wr", "max_sge", "limit"), [(0, 1, 0), (4, -1, 0), (4, 1, 5)])
def test_wrong_sizes_of_a_new_queue_are_einval(
    pd: ProtectionDomain, max_wr: int, max_sge: int, limit: int
) -> None:
    raises(
        errno.EINVAL,
        lambda: SharedReceiveQueue(ignore, pd, max_wr=max_wr, max_sge=max_sge, limit=limit),
    )
    assert pd.users == 0


def test_queue_holds_its_domain_and_cq_until_it_is_closed(pd: ProtectionDomain) -> None:
    cq = CompletionQueue(ignore, 4)
    srq = SharedReceiveQueue(ignore, pd, max_wr=4, max_sge=1, number=5, cq=cq)
    fill(srq, 2)

    raises(errno.EBUSY, pd.close)
    raises(errno.EBUSY, cq.close)
    srq.close()
    srq.close()

    assert srq.take() is None
    pd.close()
    cq.close()


def test_new_queue_with_a_closed_cq_leaves_its_domain_alone(pd: ProtectionDomain) -> None:
    cq = CompletionQueue(ignore, 4)
    cq.close()

    raises(errno.EINVAL, lambda: SharedReceiveQueue(ignore, pd, max_wr=4, max_sge=1, cq=cq))
    assert pd.users == 0


def test_used_queue_is_ebusy_and_a_closed_one_einval(srq: SharedReceiveQueue) -> None:
    srq.attach()

    raises(errno.EBUSY, srq.close)
    srq.detach()
    srq.close()

    raises(errno.EINVAL, srq.attach)
    raises(errno.EINVAL, lambda: srq.post_recv(RecvWR()))
