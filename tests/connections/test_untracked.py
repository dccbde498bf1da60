"""Connections with a few regular packets are counted without a tracker, as if with one."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import fields
from heapq import merge
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from connections.talk import Talk
from connections.test_short_runs import mixed
from connections.test_steady import MTU, UNFINISHED, Watcher, reads, sends, told
from emulated_traffic import Stamped, feed, pcap
from examples import sampled, scaled
from ibwire.capture import open_capture
from ibwire.connections import analysis, untracked
from ibwire.connections.analysis import Analysis
from ibwire.connections.connection import Connection
from ibwire.connections.connection_tracker import ConnectionTracker
from ibwire.connections.ending import Trouble
from ibwire.connections.summary import Summary
from ibwire.dissect import Columns
from ibwire.rules.conformance import Conformance
from ibwire.rules.findings import SPEC
from ibwire_layers.opcodes import OpCode

SECOND_NS = 10**9


def both_ways(frames: list[Stamped]) -> tuple[Summary, int]:
    """What is counted without trackers, as far as may be, and of how many connections.

    It must be what trackers count that follow every packet.
    """
    one = Analysis()
    found, followed = feed(one, frames).finish(), feed(Analysis(Watcher()), frames).finish()

    assert told(found) == told(followed)
    for mine, its in zip(found.connections, followed.connections, strict=True):
        same(mine, its)
    return found, len(found.connections) - len(one.trackers)


def same(mine: Connection, its: Connection) -> None:
    """Also what JSON does not show."""
    assert mine.status == its.status
    assert (mine.mtu, mine.mtu_is_seen) == (its.mtu, its.mtu_is_seen)
    assert (mine.ends, mine.pairing, mine.first) == (its.ends, its.pairing, its.first)
    assert mine.unacknowledged == its.unacknowledged
    for end in (0, 1):
        assert mine.endings[end] == its.endings[end]
        assert mine.endings[end].first_open == its.endings[end].first_open
        assert mine.identities[end].counts_up == its.identities[end].counts_up
        one, other = mine.directions[end], its.directions[end]
        for name in {each.name for each in fields(one)} - {"congestion"}:
            assert getattr(one, name) == getattr(other, name), name
        if mine.counted is not None:
            counted, place = mine.counted
            assert counted.figures([2 * place + end]) == [other.figures]


def together(talks: Sequence[Talk]) -> list[Stamped]:
    return list(merge(*(talk.frames for talk in talks)))


@pytest.mark.parametrize("ids", sampled([True, False], 2))
def test_regular_connections_need_no_tracker_and_others_get_one(
    ids: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(untracked, "MOST", 1000)

    found, counted = both_ways(mixed(ids))

    assert 3 <= counted < len(found.connections)


@pytest.mark.parametrize("leave", UNFINISHED)
@pytest.mark.parametrize("later_ns", [0, 2 * SECOND_NS])
def test_what_was_left_unfinished_is_open_at_the_end(leave: Any, later_ns: int) -> None:
    talk, last = Talk(), Talk(number=1)
    leave(talk)
    last.wait(later_ns / 1000)
    last.sends(0, 3)

    both_ways(together([talk, last]))


def test_a_request_without_an_answer_for_a_second_is_trouble() -> None:
    talk, last = Talk(), Talk(number=1)
    talk.sends(0, 3)
    talk.ask(OpCode.RC_SEND_ONLY, 3, 64)
    talk.ask(OpCode.RC_RDMA_READ_REQUEST, 4, length=8)
    last.wait(2 * SECOND_NS / 1000)
    last.sends(0, 3)

    found, counted = both_ways(together([talk, last]))

    assert counted == 2
    ending, _ = found.connections[0].endings
    assert (ending.open_messages, ending.trouble) == (2, Trouble.SILENCE)
    assert [each.number for each in ending.first_open] == [7, 8]


def test_of_one_direction_alone_nothing_is_known_to_be_open() -> None:
    talk = Talk()
    for psn in range(5):
        talk.ask(OpCode.RC_SEND_ONLY, psn, 64)

    found, counted = both_ways(talk.frames)

    assert counted == 1
    assert found.connections[0].pairing == "none"
    assert found.connections[0].unacknowledged[0] == (4, 1)


def test_a_connection_with_more_packets_has_a_tracker() -> None:
    talks = [Talk(number=number) for number in range(2)]
    talks[0].sends(0, untracked.MOST // 2)
    talks[1].sends(0, untracked.MOST // 2 + 1)

    _, counted = both_ways(together(talks))

    assert counted == 1


@pytest.mark.parametrize(("held", "tracked"), [(0, [1]), (64, [])])
def test_packets_wait_in_place_of_a_tracker_if_they_are_few(
    held: int, tracked: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("BLOCK", 20), ("SETTLE_EVERY", 20), ("HELD", held)):
        monkeypatch.setattr(analysis, name, value)
    talks = [Talk(number=number) for number in range(2)]
    talks[0].sends(0, 30)
    talks[1].wait(10_000)
    talks[1].sends(0, 4)
    one = Analysis()

    found = feed(one, together(talks), chunk=10).finish()

    assert told(found) == told(feed(Analysis(Watcher()), together(talks), chunk=10).finish())
    assert [each.connection.number for each in one.trackers] == tracked


def test_packets_that_wait_are_counted_a_slice_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(analysis, "SLICE", 30)
    talks = [Talk(number=number) for number in range(12)]
    for count, talk in enumerate(talks):
        talk.sends(0, 2 * count + 1)

    _, counted = both_ways(together(talks))

    assert counted == 12


def test_an_odd_packet_after_those_that_waited_makes_a_tracker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("BLOCK", "SETTLE_EVERY"):
        monkeypatch.setattr(analysis, name, 20)
    talks = [Talk(number=number) for number in range(4)]
    for talk in talks:
        talk.sends(0, 10)
    for talk in talks[1:3]:
        talk.ask(OpCode.RC_SEND_ONLY, 11, 64)
        talk.answer(10, 10, syndrome=0x60)
        talk.sends(10, 8)
    one = Analysis()

    found = feed(one, together(talks), chunk=10).finish()

    assert told(found) == told(feed(Analysis(Watcher()), together(talks), chunk=10).finish())
    assert len(one.trackers) == 2


KINDS = ("send", "long", "read", "reads", "short read", "atomic", "back", "back read")
RESPONSES = (
    OpCode.RC_RDMA_READ_RESPONSE_FIRST,
    OpCode.RC_RDMA_READ_RESPONSE_MIDDLE,
    OpCode.RC_RDMA_READ_RESPONSE_LAST,
)
TRAFFIC = st.lists(
    st.tuples(
        st.booleans(),
        st.lists(st.sampled_from(KINDS), max_size=8),
        st.integers(0, 6),
    ),
    min_size=1,
    max_size=6,
)
"""Of each conversation: whether IP identifications count up, its messages, and how many of its
last packets are missing."""


def test_credits_are_counted() -> None:
    talks = [Talk(number=number) for number in range(2)]
    talks[0].sends(0, 2, syndrome=3)
    talks[0].sends(2, 2, msn=3, syndrome=9)
    talks[1].sends(0, 2)

    found, counted = both_ways(together(talks))

    assert counted == 2
    assert {each.directions[0].credit_codes for each in found.connections} == {(3, 9), None}


def conversation(number: int, ids: bool, kinds: list[str], cut: int) -> Talk:
    talk = Talk(ids, number)
    psn, back = 0xFFFFF8, 900
    for msn, kind in enumerate(kinds, 1):
        if kind == "send":
            talk.sends(psn, 2, msn)
            psn += 2
        elif kind == "long":
            sends(talk, psn // 2, 1)
            psn += 2
        elif kind == "read":
            reads(talk, psn, 1)
            psn += 3
        elif kind == "reads":
            for first in (psn, psn + 3):
                talk.ask(OpCode.RC_RDMA_READ_REQUEST, first, length=2 * MTU + 5)
            for first in (psn, psn + 3):
                for step, (opcode, size) in enumerate(zip(RESPONSES, (MTU, MTU, 5), strict=True)):
                    talk.answer(first + step, msn, opcode=opcode, size=size)
            psn += 6
        elif kind == "short read":
            talk.ask(OpCode.RC_RDMA_READ_REQUEST, psn, length=900)
            talk.answer(psn, msn, opcode=OpCode.RC_RDMA_READ_RESPONSE_ONLY, size=900)
            psn += 1
        elif kind == "atomic":
            talk.ask(OpCode.RC_FETCH_ADD, psn)
            talk.answer(psn, msn, opcode=OpCode.RC_ATOMIC_ACKNOWLEDGE)
            psn += 1
        elif kind == "back":
            talk.ask(OpCode.RC_RDMA_WRITE_ONLY, back, 8, sender=1)
            talk.answer(back, msn, sender=0)
            back += 1
        else:
            talk.ask(OpCode.RC_RDMA_READ_REQUEST, back, length=2 * MTU + 5, sender=1)
            back += 3  # which nobody answers
    talk.frames = talk.frames[: len(talk.frames) - cut]
    return talk


@pytest.mark.slow
@settings(max_examples=scaled(60))
@given(traffic=TRAFFIC)
def test_any_regular_traffic_is_counted_as_trackers_count_it(traffic: Any) -> None:
    both_ways(together([conversation(at, *each) for at, each in enumerate(traffic)]))


@pytest.mark.parametrize(("kinds", "expected"), [(["read"], 1), (["reads"], 0)])
def test_one_read_may_come_before_the_packet_that_shows_the_path_mtu(
    kinds: list[str], expected: int
) -> None:
    found, counted = both_ways(conversation(0, True, kinds, 0).frames)

    assert counted == expected
    assert found.connections[0].mtu == MTU


def test_rules_are_checked_without_a_tracker_where_a_read_shows_the_path_mtu() -> None:
    assert checked(conversation(0, True, ["read", "send"], 0).frames) == ([], 0)


def larger(talk: Talk, psn: int, msn: int) -> None:
    """A SEND in one packet with more bytes than the path MTU."""
    talk.ask(OpCode.RC_SEND_ONLY, psn, 2 * MTU, ack_req=1)
    talk.answer(psn, msn)


def short_answer(talk: Talk, psn: int, msn: int) -> None:
    """A READ whose only response has fewer bytes than asked for."""
    talk.ask(OpCode.RC_RDMA_READ_REQUEST, psn, length=MTU)
    talk.answer(psn, msn, opcode=OpCode.RC_RDMA_READ_RESPONSE_ONLY, size=MTU - 4)


def three_answers(talk: Talk, psn: int, msn: int, last: int) -> None:
    """A READ of three packets, which show the path MTU; `last`: bytes of the last, which has 8."""
    talk.ask(OpCode.RC_RDMA_READ_REQUEST, psn, length=2 * MTU + 8)
    for step, (opcode, size) in enumerate(zip(RESPONSES, (MTU, MTU, last), strict=True)):
        talk.answer(psn + step, msn, opcode=opcode, size=size)


def short_end(talk: Talk, psn: int, msn: int) -> None:
    """A READ whose last response has fewer bytes than were left."""
    three_answers(talk, psn, msn, 4)


def right_end(talk: Talk, psn: int, msn: int) -> None:
    """A READ that is answered as it should be."""
    three_answers(talk, psn, msn, 8)


PARTS = {larger: 1, short_answer: 1, short_end: 3, right_end: 3}
"""What may break a rule, and how many PSNs it takes."""


def checked(frames: list[Stamped]) -> tuple[list[dict[str, object]], int]:
    """What is found in a capture, and how many connections had a tracker."""
    checks, made = Conformance(SPEC), []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            analysis,
            "ConnectionTracker",
            lambda *given: made.append(ConnectionTracker(*given)) or made[-1],
        )
        with open_capture(pcap(frames)) as capture:
            for batch in capture.batches():
                checks.take(Columns(batch))
        found = [finding.to_json() for finding in checks.finish()]
    return found, len(made)


@pytest.mark.slow
@settings(max_examples=scaled(60))
@given(
    traffic=TRAFFIC,
    breaking=st.lists(st.lists(st.sampled_from(list(PARTS)), max_size=4), max_size=3),
)
def test_rules_that_any_regular_traffic_breaks_are_found_without_trackers(
    traffic: Any, breaking: Any
) -> None:
    talks = [conversation(at, *each) for at, each in enumerate(traffic)]
    for at, parts in enumerate(breaking, len(talks)):
        talk, psn = Talk(number=at), 0
        for msn, part in enumerate(parts, 1):
            part(talk, psn, msn)
            psn += PARTS[part]
        talks.append(talk)
    frames = together(talks)

    found, _ = checked(frames)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(untracked, "MOST", 0)
        assert checked(frames)[0] == found


def with_odd_packets(count: int) -> list[Stamped]:
    talks = [Talk(number=number) for number in range(count)]
    for talk in talks:
        talk.sends(0, 3)
        talk.ask(OpCode.RC_SEND_ONLY, 4, 64)
        talk.answer(3, 3, syndrome=0x60)
        talk.sends(3, 2)
    return together(talks)


@pytest.mark.parametrize("make", [Analysis, lambda: Analysis(Conformance())])
def test_last_packets_are_taken_a_few_connections_at_a_time_as_if_all_together(
    make: Callable[[], Analysis], monkeypatch: pytest.MonkeyPatch
) -> None:
    frames = with_odd_packets(12)
    expected = told(feed(make(), frames).finish())
    monkeypatch.setattr(analysis, "SMALL_BLOCK", 40)
    one = make()

    found = feed(one, frames).finish()

    assert told(found) == expected
    assert len(one.trackers) < 5


def test_trackers_that_are_forgotten_need_no_collection_of_garbage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A command that reads one capture collects none."""
    monkeypatch.setattr(analysis, "SMALL_BLOCK", 40)
    gc.collect()
    gc.disable()
    try:
        one = feed(Analysis(Conformance()), with_odd_packets(12))
        one.finish()
        left = sum(isinstance(each, ConnectionTracker) for each in gc.get_objects())
    finally:
        gc.enable()

    assert left < 5
