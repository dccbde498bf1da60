"""Completion queues: order, overrun, and when events are raised."""

from __future__ import annotations

import errno

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ibwire.base.errors import VerbsError
from ibwire.rc.attributes import AsyncEvent, EventType
from ibwire.rc.cq import CompletionChannel, CompletionQueue
from ibwire.rc.work import WC, WCOpcode, WCStatus


def wc(wr_id: int = 0, *, status: WCStatus = WCStatus.SUCCESS, solicited: bool = False) -> WC:
    return WC(wr_id, status, WCOpcode.RECV, qp_num=1, solicited=solicited)


def queue(cqe: int = 4, channel: CompletionChannel | None = None) -> CompletionQueue:
    return CompletionQueue(lambda event: None, cqe, channel)


def ids(completions: list[WC]) -> list[int]:
    return [completion.wr_id for completion in completions]


def test_completions_come_out_in_order_and_at_most_as_many_as_asked_for() -> None:
    cq = queue()
    for wr_id in (7, 8, 9):
        assert cq.push(wc(wr_id))

    assert len(cq) == 3
    assert ids(cq.poll()) == [7]
    assert ids(cq.poll(16)) == [8, 9]
    assert cq.poll(16) == []


@pytest.mark.parametrize("n", [0, -1])
def test_polling_for_none_takes_none(n: int) -> None:
    cq = queue()
    cq.push(wc())

    assert cq.poll(n) == []
    assert len(cq) == 1


def test_overrun_loses_the_newest_and_raises_one_event() -> None:
    events: list[AsyncEvent] = []
    cq = CompletionQueue(events.append, 2)

    results = [cq.push(wc(wr_id)) for wr_id in range(4)]

    assert results == [True, True, False, False]
    assert events == [AsyncEvent(EventType.CQ_ERR, cq)]
    assert ids(cq.poll(16)) == [0, 1]


def test_overrun_queue_stays_in_error_after_it_is_emptied() -> None:
    cq = queue(1)
    cq.push(wc(0))
    cq.push(wc(1))
    cq.poll(16)

    assert cq.error
    assert not cq.push(wc(2))


def test_polled_completions_make_room() -> None:
    cq = queue(1)

    for wr_id in range(5):
        assert cq.push(wc(wr_id))
        assert ids(cq.poll()) == [wr_id]


@pytest.mark.parametrize("cqe", [0, -1])
def test_queue_without_room_is_einval(cqe: int) -> None:
    with pytest.raises(VerbsError) as caught:
        queue(cqe)
    assert caught.value.errno == errno.EINVAL


def test_resized_queue_keeps_its_completions() -> None:
    cq = queue(4)
    for wr_id in range(3):
        cq.push(wc(wr_id))

    for cqe in (2, 0, -1):
        with pytest.raises(VerbsError) as caught:
            cq.resize(cqe)
        assert caught.value.errno == errno.EINVAL
    cq.resize(3)

    assert cq.cqe == 3
    assert not cq.push(wc(3))
    assert ids(cq.poll(16)) == [0, 1, 2]


def test_armed_queue_reports_once() -> None:
    channel = CompletionChannel()
    cq = queue(channel=channel)

    cq.arm()
    cq.push(wc())
    cq.push(wc())

    assert channel.poll_event() is cq
    assert channel.poll_event() is None


def test_unarmed_queue_reports_nothing() -> None:
    channel = CompletionChannel()

    queue(channel=channel).push(wc())

    assert channel.poll_event() is None


def test_arming_does_not_look_at_completions_that_are_there() -> None:
    channel = CompletionChannel()
    cq = queue(channel=channel)
    cq.push(wc())

    cq.arm()

    assert channel.poll_event() is None


def test_arming_twice_is_one_event() -> None:
    channel = CompletionChannel()
    cq = queue(channel=channel)

    cq.arm()
    cq.arm()
    cq.push(wc())
    cq.push(wc())

    assert list(channel.events) == [cq]


@pytest.mark.parametrize(
    ("completion", "told"),
    [
        (wc(), False),
        (wc(solicited=True), True),
        (wc(status=WCStatus.WR_FLUSH_ERR), True),
        (wc(status=WCStatus.RETRY_EXC_ERR, solicited=True), True),
    ],
)
def test_solicited_arming_waits_for_a_solicited_or_failed_one(completion: WC, told: bool) -> None:
    channel = CompletionChannel()
    cq = queue(channel=channel)
    cq.arm(solicited_only=True)

    cq.push(completion)

    assert (channel.poll_event() is cq) == told
    cq.push(wc(solicited=True))
    assert (channel.poll_event() is cq) == (not told)


@pytest.mark.parametrize("order", [(False, True), (True, False)])
def test_arming_for_any_completion_wins(order: tuple[bool, bool]) -> None:
    """IBA C11-31, C11-32."""
    channel = CompletionChannel()
    cq = queue(channel=channel)
    for solicited_only in order:
        cq.arm(solicited_only)

    cq.push(wc())

    assert channel.poll_event() is cq


def test_lost_completion_reports_nothing() -> None:
    channel = CompletionChannel()
    cq = queue(1, channel)
    cq.push(wc())
    cq.arm()

    cq.push(wc())

    assert channel.poll_event() is None


def test_channel_gives_events_of_several_queues_in_order() -> None:
    channel = CompletionChannel()
    first, second = queue(channel=channel), queue(channel=channel)
    for cq in (first, second):
        cq.arm()

    second.push(wc())
    first.push(wc())

    assert channel.poll_event() is second
    assert channel.poll_event() is first


def test_used_queue_and_used_channel_are_ebusy() -> None:
    channel = CompletionChannel()
    cq = queue(channel=channel)
    cq.attach()

    for close in (cq.close, channel.close):
        with pytest.raises(VerbsError) as caught:
            close()
        assert caught.value.errno == errno.EBUSY
    cq.detach()
    cq.close()
    cq.close()
    channel.close()
    with pytest.raises(VerbsError) as caught:
        cq.attach()
    assert caught.value.errno == errno.EINVAL


def test_closed_queue_takes_its_events_along() -> None:
    channel = CompletionChannel()
    gone, stays = queue(channel=channel), queue(channel=channel)
    for cq in (gone, stays):
        cq.arm()
        cq.push(wc())

    gone.close()

    assert list(channel.events) == [stays]


@given(st.integers(1, 5), st.lists(st.one_of(st.none(), st.integers(0, 3)), max_size=40))
def test_what_is_polled_is_what_was_pushed_in_order(cqe: int, steps: list[int | None]) -> None:
    """A step is a push, or a number of completions to poll."""
    cq = queue(cqe)
    accepted: list[int] = []
    polled: list[int] = []

    for number, step in enumerate(steps):
        if step is None:
            if cq.push(wc(number)):
                accepted.append(number)
        else:
            polled += ids(cq.poll(step))
        assert len(cq) == len(accepted) - len(polled) <= cqe

    assert polled + ids(cq.poll(cqe)) == accepted
