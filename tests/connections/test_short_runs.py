"""The regular packets of many connections are taken together, as if one by one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from heapq import merge
from pathlib import Path
from typing import Any

import numpy.typing as npt
import pytest

from connections.talk import Change, Talk
from connections.test_steady import MTU, ODDITIES, UNFINISHED, Watcher, odd, reads, sends, told
from emulated_traffic import Stamped, feed
from ibwire.capture import open_capture
from ibwire.connections import analysis, rounds, short_runs, tracker, untracked
from ibwire.connections.analysis import Analysis
from ibwire.connections.connection_tracker import ConnectionTracker
from ibwire.connections.packets import Rows
from ibwire_layers.opcodes import OpCode
from ibwire_layers.packet import Packet, RoCEv2Route

STATE = (
    "acked",
    "next",
    "start",
    "attempts",
    "last_ns",
    "last_place",
    "requester",
    "messages",
    "disturbed_end",
    "answered_end",
)


def both_ways(
    frames: list[Stamped], block: int, monkeypatch: pytest.MonkeyPatch
) -> tuple[Any, int]:
    """What the arrays say, which must be what single packets say, and how many they took.

    block: packets that are taken at a time.
    """
    took = 0
    advance = short_runs.advance

    def counting(trackers: Sequence[ConnectionTracker], rows: Rows, *rest: Any) -> npt.NDArray[Any]:
        nonlocal took
        found = advance(trackers, rows, *rest)
        took += int(found.sum())
        return found

    monkeypatch.setattr(short_runs, "advance", counting)
    monkeypatch.setattr(untracked, "MOST", 0)
    monkeypatch.setattr(short_runs, "FEWEST", 1)
    for name in ("BLOCK", "SMALL_BLOCK", "SETTLE_EVERY"):
        monkeypatch.setattr(analysis, name, block)
    monkeypatch.setattr(rounds, "MANY", 1)
    monkeypatch.setattr(rounds, "REST", 0)
    monkeypatch.setattr(rounds, "PATIENCE", len(frames))
    watcher = Watcher()
    one, other = feed(Analysis(), frames, chunk=block), feed(Analysis(watcher), frames, chunk=block)
    found, alone = one.finish(), other.finish()

    assert told(found) == told(alone)
    for mine, its in zip(one.trackers, other.trackers, strict=True):
        same(mine, its)
    return found, took


def same(mine: ConnectionTracker, its: ConnectionTracker) -> None:
    """Also what no result shows yet: it decides how the next packets are taken."""
    assert mine.fingerprint() == its.fingerprint()
    for end in (0, 1):
        one, other = mine.connection.directions[end], its.connection.directions[end]
        for name in {each.name for each in fields(one)} - {"congestion"}:
            assert getattr(one, name) == getattr(other, name), name
        ids, others = mine.connection.identities[end], its.connection.identities[end]
        assert (ids.high, ids.first, ids.counts_up) == (others.high, others.first, others.counts_up)
        assert list(ids.newest.items()) == list(others.newest.items())
        asked, expected = mine.requests[end], its.requests[end]
        for name in STATE:
            assert getattr(asked, name) == getattr(expected, name), name
        for direction in (0, 1):
            assert asked.recent(direction).all() == expected.recent(direction).all()


def mixed(ids: bool) -> list[Stamped]:
    """Conversations at the same time: regular ones, and one with each oddity."""
    talks = [Talk(ids, number) for number in range(len(ODDITIES) + 4)]
    for talk, what in zip(talks, ODDITIES, strict=False):
        if what != "read without mtu":
            talk.ask(OpCode.RC_SEND_FIRST, 0xFFFFFE, MTU)
            talk.ask(OpCode.RC_SEND_LAST, 0xFFFFFF, 10, ack_req=1)
            talk.answer(0xFFFFFF, 0)
        talk.sends(0, 40)
        talk.sends(40, 160)
        odd(talk, what)
        talk.sends(200, 30)
        talk.sends(0x900000, 20)
    *_, small, read, several, both = talks
    sends(small, 0x7FFFF0, 60)
    reads(read, 0xFFFFF0, 40)
    for psn in range(0, 200, 4):
        for each in range(psn, psn + 4):
            several.ask(OpCode.RC_SEND_ONLY, each, 64)
        several.answer(psn + 3, psn)
    for psn in range(60):
        both.ask(OpCode.RC_FETCH_ADD, psn)
        both.ask(OpCode.RC_RDMA_WRITE_ONLY, 900 + psn, 8, sender=1)
        both.answer(900 + psn, psn, sender=0)
        both.answer(psn, psn, opcode=OpCode.RC_ATOMIC_ACKNOWLEDGE)
    return list(merge(*(talk.frames for talk in talks)))


@pytest.mark.slow
@pytest.mark.parametrize("block", [64, 500, 1 << 14])
@pytest.mark.parametrize("ids", [True, False])
def test_many_connections_at_once(ids: bool, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    frames = mixed(ids)

    found, took = both_ways(frames, block, monkeypatch)

    assert len(found.connections) == len(ODDITIES) + 4
    assert took > 0.4 * len(frames)


def test_packets_behind_a_repaired_loss_are_taken_together_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    talks = [Talk(True, number) for number in range(10)]
    for talk in talks:
        talk.sends(0, 40)
        talk.ask(OpCode.RC_SEND_ONLY, 41, 64)
        talk.answer(40, 40, syndrome=0x60)
        talk.sends(40, 80)
        talk.ask(OpCode.RC_SEND_ONLY, 121, 64)
        talk.answer(120, 120, syndrome=0x60)
        talk.sends(120, 80)
    frames = list(merge(*(talk.frames for talk in talks)))

    found, took = both_ways(frames, 1 << 14, monkeypatch)

    assert [each.directions[0].retransmitted for each in found.connections] == [4] * 10
    assert took > 0.85 * len(frames)


@pytest.fixture
def looked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many packets each round looks at."""
    found: list[int] = []
    advance = short_runs.advance

    def counting(*given: Any) -> npt.NDArray[Any]:
        found.append(int((given[4] - given[3]).sum()))
        return advance(*given)

    monkeypatch.setattr(short_runs, "advance", counting)
    return found


def test_packets_behind_a_break_are_not_looked_at(looked: list[int]) -> None:
    """A mirror that copies each packet twice: no regular packet follows another one."""
    talks = [Talk(True, number) for number in range(10)]
    for talk in talks:
        for psn in range(400):
            talk.ask(OpCode.RC_SEND_ONLY, psn, 64)
            talk.frames.append((talk.frames[-1][0] + 1, talk.frames[-1][1]))
            talk.answer(psn, psn)
    frames = list(merge(*(talk.frames for talk in talks)))

    found = feed(Analysis(), frames).finish()

    assert [each.directions[0].duplicates for each in found.connections] == [400] * 10
    assert not looked


def test_connections_with_hardly_anything_regular_are_not_looked_at_again_and_again(
    looked: list[int],
) -> None:
    """Every second request was overtaken, as only the identifications show: a round takes one
    packet and looks at hundreds."""
    talks = [Talk(True, number) for number in range(10)]
    for talk in talks:
        for psn in range(400):
            talk.ask(OpCode.RC_SEND_ONLY, psn, 64, change=with_id(200 + (psn ^ 1)))
            talk.answer(psn, psn)
    frames = list(merge(*(talk.frames for talk in talks)))

    found = feed(Analysis(), frames).finish()

    # Of the first two nothing shows yet that identifications count up.
    assert [each.directions[0].reordered for each in found.connections] == [199] * 10
    assert 0 < sum(looked) < len(frames) // 2


def with_id(number: int) -> Change:
    """Another IP identification."""

    def change(packet: Packet) -> Packet:
        assert isinstance(packet.route, RoCEv2Route)
        return replace(packet, route=replace(packet.route, ip=replace(packet.route.ip, id=number)))

    return change


@pytest.mark.parametrize("block", [10, 100])
def test_messages_of_several_packets_go_on_in_the_next_block(
    block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    talk = Talk()
    sends(talk, 0x7FFFF0, 50)

    found, took = both_ways(talk.frames, block, monkeypatch)

    assert took == len(talk.frames)
    assert found.connections[0].directions[0].completed == 50
    assert found.connections[0].directions[0].message_bytes == 50 * (MTU + 10)
    assert found.connections[0].mtu == MTU


def test_a_read_is_taken_together_once_the_mtu_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    talk = Talk()
    sends(talk, 0, 10)
    reads(talk, 20, 20)

    found, took = both_ways(talk.frames, 7, monkeypatch)

    assert took == len(talk.frames)
    assert found.connections[0].directions[0].completed == 30


@pytest.mark.parametrize("leave", UNFINISHED)
def test_what_was_left_unfinished_stays_open_in_the_next_block(
    leave: Callable[[Talk], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    talk = Talk()
    leave(talk)

    _, took = both_ways(talk.frames, 30, monkeypatch)

    assert took


def test_of_requests_that_nobody_answers_only_the_newest_are_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in (("PARKED", 20), ("BLOCK", 20), ("SETTLE_EVERY", 20)):
        monkeypatch.setattr(analysis, name, value)
    monkeypatch.setattr(rounds, "MANY", 1)
    monkeypatch.setattr(rounds, "REST", 0)
    monkeypatch.setattr(short_runs, "FEWEST", 1)
    monkeypatch.setattr(tracker, "LIMIT", 50)
    talk = Talk()
    for psn in range(200):
        talk.ask(OpCode.RC_SEND_ONLY, psn, 64)

    found = feed(Analysis(), talk.frames, chunk=20)

    assert len(found.trackers[0].requests[0].messages) == 50


def test_the_first_response_after_a_retransmission_ends_the_disturbance(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    talk = Talk()
    talk.sends(0, 20)
    for psn in (21, 20, *range(22, 130)):
        talk.ask(OpCode.RC_SEND_ONLY, psn, 64)
    for psn in range(20, 130):
        talk.answer(psn, psn + 1)

    _, took = both_ways(talk.frames, 30, monkeypatch)

    assert took


def test_an_end_that_sends_no_requests_although_a_handshake_names_its_first_psn(
    captures: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_capture(captures / "loss-both-2pc.a.pcap") as capture:
        frames = [(record.time_ns, record.data) for record in capture.records()]

    found, took = both_ways(frames, 1 << 14, monkeypatch)

    assert [each.pairing for each in found.connections] == ["handshake"]
    assert [each.packets > 100 for each in found.connections[0].directions] == [True, True]
    assert took > 0.7 * len(frames)
