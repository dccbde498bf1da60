"""Steady traffic is taken many packets at a time, up to the first that is not regular."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from connections.talk import Talk
from emulated_traffic import Stamped, analysed, feed
from ibwire.connections import analysis, steady, untracked
from ibwire.connections.analysis import Analysis
from ibwire.connections.connection_tracker import ConnectionTracker
from ibwire.connections.events import FlowEvent, Message
from ibwire.connections.packets import Rows
from ibwire.connections.steady import LEAST
from ibwire_layers.opcodes import OpCode

MTU = 1024


class Listener:
    """Hears of events and messages, not of packets."""

    def __init__(self) -> None:
        self.events: list[FlowEvent] = []
        self.messages: list[Message] = []

    def event(self, event: FlowEvent) -> None:
        self.events.append(event)

    def message(self, message: Message) -> None:
        self.messages.append(message)


class Watcher(Listener):
    """Hears of packets as well, so that they are followed one by one."""

    def request(self, *_: object) -> None:
        pass

    response = other = request


def told(found: Any) -> list[dict[str, Any]]:
    return [each.to_json(direction) for each in found.connections for direction in (0, 1)]


def both_ways(frames: list[Stamped], monkeypatch: pytest.MonkeyPatch) -> tuple[Any, list[int]]:
    """What the arrays say, which must be what single packets say, and how many they took."""
    took: list[int] = []
    advance = steady.advance

    def counting(tracker: ConnectionTracker, rows: Rows, direction: Any) -> int:
        took.append(advance(tracker, rows, direction))
        return took[-1]

    monkeypatch.setattr(steady, "advance", counting)
    monkeypatch.setattr(untracked, "MOST", 0)
    listener, watcher = Listener(), Watcher()
    one, other = feed(Analysis(), frames), feed(Analysis(watcher), frames)
    found, alone = one.finish(), other.finish()
    arrays = [each for each in took if each]
    heard = analysed(frames, listener)

    assert told(found) == told(heard) == told(alone)
    assert listener.messages == watcher.messages
    assert sorted(map(repr, listener.events)) == sorted(map(repr, watcher.events))
    for mine, its in zip(one.trackers, other.trackers, strict=True):
        assert mine.fingerprint() == its.fingerprint()
        assert [r.requester for r in mine.requests] == [r.requester for r in its.requests]
    return found, arrays


def sends(talk: Talk, psn: int, count: int) -> None:
    for each in range(psn, psn + count):
        talk.ask(OpCode.RC_SEND_FIRST, 2 * each, MTU)
        talk.ask(OpCode.RC_SEND_LAST, 2 * each + 1, 10, ack_req=1)
        talk.answer(2 * each + 1, each)


@pytest.mark.parametrize("ids", [True, False])
def test_messages_of_several_packets_over_the_wrap(
    ids: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    talk = Talk(ids)
    sends(talk, 0x7FFFC0, 150)

    found, took = both_ways(talk.frames, monkeypatch)

    assert sum(took) >= 450 - 2 * LEAST
    assert found.connections[0].directions[0].completed == 150
    assert found.connections[0].directions[0].message_bytes == 150 * (MTU + 10)


def reads(talk: Talk, psn: int, count: int) -> None:
    for each in range(psn, psn + 3 * count, 3):
        talk.ask(OpCode.RC_RDMA_READ_REQUEST, each, length=2 * MTU + 5)
        talk.answer(each, 1, opcode=OpCode.RC_RDMA_READ_RESPONSE_FIRST, size=MTU)
        talk.answer(each + 1, 1, opcode=OpCode.RC_RDMA_READ_RESPONSE_MIDDLE, size=MTU)
        talk.answer(each + 2, 1, opcode=OpCode.RC_RDMA_READ_RESPONSE_LAST, size=5)


def test_reads_and_atomics_are_completed_by_their_own_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    talk = Talk()
    reads(talk, 0, 40)
    for psn in range(120, 220):
        talk.ask(OpCode.RC_FETCH_ADD, psn)
        talk.answer(psn, psn, opcode=OpCode.RC_ATOMIC_ACKNOWLEDGE)

    found, took = both_ways(talk.frames, monkeypatch)

    assert sum(took) >= 360 - 2 * LEAST
    direction = found.connections[0].directions[0]
    assert direction.completed == 140
    assert direction.message_bytes == 40 * (2 * MTU + 5)


def test_an_ack_of_several_messages_completes_them_all(monkeypatch: pytest.MonkeyPatch) -> None:
    talk = Talk()
    for psn in range(0, 300, 4):
        for each in range(psn, psn + 4):
            talk.ask(OpCode.RC_SEND_ONLY, each, 64)
        talk.answer(psn + 3, psn)

    found, took = both_ways(talk.frames, monkeypatch)

    assert took
    direction = found.connections[0].directions[0]
    assert (direction.completed, direction.acks, direction.coalesced) == (300, 75, 225)
    assert direction.max_outstanding == 4


def test_what_is_open_at_the_end_of_a_block_goes_on_in_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    talk = Talk()
    sends(talk, 0, 100)
    for psn in range(200, 280):
        talk.ask(OpCode.RC_SEND_MIDDLE if psn > 200 else OpCode.RC_SEND_FIRST, psn, MTU)

    found, took = both_ways(talk.frames, monkeypatch)

    assert took
    assert found.connections[0].directions[0].completed == 100


def odd(talk: Talk, what: str) -> None:
    """Something irregular after 200 SENDs, the next of which has PSN 200."""
    if what == "gap":
        talk.ask(OpCode.RC_SEND_ONLY, 201, 64, ack_req=1)
        talk.answer(200, 1, 0x60)
    elif what == "again":
        talk.ask(OpCode.RC_SEND_ONLY, 199, 64, ack_req=1)
        talk.answer(199, 1)
    elif what == "nak":
        talk.ask(OpCode.RC_SEND_ONLY, 200, 64, ack_req=1)
        talk.answer(200, 1, 0x60)
    elif what == "rnr":
        talk.ask(OpCode.RC_SEND_ONLY, 200, 64, ack_req=1)
        talk.answer(200, 1, 0x2E)
    elif what == "stale ack":
        talk.answer(190, 1)
    elif what == "unasked ack":
        talk.answer(210, 1)
    elif what == "broken message":
        talk.ask(OpCode.RC_SEND_FIRST, 200, MTU)
        talk.ask(OpCode.RC_SEND_ONLY, 201, 64)
        talk.answer(201, 1)
    elif what == "other verb":
        talk.ask(OpCode.RC_SEND_FIRST, 200, MTU)
        talk.ask(OpCode.RC_RDMA_WRITE_LAST, 201, 64)
        talk.answer(201, 1)
    elif what == "late start":
        talk.ask(OpCode.RC_SEND_LAST, 200, 64)
    elif what == "passed read":
        talk.ask(OpCode.RC_RDMA_READ_REQUEST, 200, length=64)
        talk.ask(OpCode.RC_SEND_ONLY, 201, 64)
        talk.answer(201, 1)
        talk.answer(200, 1, opcode=OpCode.RC_RDMA_READ_RESPONSE_ONLY, size=64)
    elif what == "read without mtu":
        talk.ask(OpCode.RC_RDMA_READ_REQUEST, 200, length=3000)
    elif what == "new mtu":
        talk.ask(OpCode.RC_SEND_FIRST, 200, 4096)
        talk.ask(OpCode.RC_SEND_LAST, 201, 64)
        talk.answer(201, 1)
    elif what == "marked":
        talk.ask(OpCode.RC_SEND_ONLY, 200, 64, ecn=3)
        talk.put(1, OpCode.CNP, 0, 16)
    elif what == "damaged":
        talk.ask(OpCode.RC_SEND_ONLY, 200, 64)
        time_ns, frame = talk.frames[-1]
        talk.frames[-1] = time_ns, frame[:-1] + bytes([frame[-1] ^ 1])
    elif what == "copy":
        talk.frames.append((talk.frames[-2][0] + 500, talk.frames[-2][1]))
    elif what == "swap":
        one, other = talk.frames[-4], talk.frames[-2]
        talk.frames[-4], talk.frames[-2] = (one[0], other[1]), (other[0], one[1])
    elif what == "restart":
        talk.sends(0x600000, 1)


ODDITIES = (
    "gap",
    "again",
    "nak",
    "rnr",
    "stale ack",
    "unasked ack",
    "broken message",
    "other verb",
    "late start",
    "passed read",
    "read without mtu",
    "new mtu",
    "marked",
    "damaged",
    "copy",
    "swap",
    "restart",
)


@pytest.mark.slow
@pytest.mark.parametrize("what", ODDITIES)
@pytest.mark.parametrize("ids", [True, False])
def test_arrays_stop_at_what_is_not_regular(
    what: str, ids: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    talk = Talk(ids)
    if what != "read without mtu":
        talk.ask(OpCode.RC_SEND_FIRST, 0xFFFFFE, MTU)
        talk.ask(OpCode.RC_SEND_LAST, 0xFFFFFF, 10, ack_req=1)
        talk.answer(0xFFFFFF, 0)
    talk.sends(0, 200)
    odd(talk, what)
    talk.sends(200, 300)
    talk.sends(0x900000, 200)

    _, took = both_ways(talk.frames, monkeypatch)

    assert sum(took) > 400


@pytest.mark.parametrize("ids", [True, False])
def test_what_was_missing_counts_as_lost_within_a_run(
    ids: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    talk = Talk(ids)
    talk.sends(0, 100)
    talk.ask(OpCode.RC_SEND_ONLY, 101, 64)
    talk.answer(100, 100, syndrome=0x60)
    for psn in (100, 101):
        talk.ask(OpCode.RC_SEND_ONLY, psn, 64)
        talk.answer(psn, psn + 1)
    talk.sends(102, 300)

    found, took = both_ways(talk.frames, monkeypatch)

    assert found.connections[0].directions[0].lost == 1
    # Single packets until what was missing is settled would be 64 and more.
    assert len(talk.frames) - sum(took) < 48


def test_datagrams_are_counted_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    talk = Talk()
    for psn in range(300):
        talk.ask(OpCode.UD_SEND_ONLY, psn, 64)

    found, took = both_ways(talk.frames, monkeypatch)

    assert sum(took) > 200
    (connection,) = found.connections
    assert connection.directions[0].messages == {"SEND": 300}
    assert connection.directions[0].message_bytes == 300 * 64


def test_packets_of_sub_slices_share_the_arrays() -> None:
    rows = Rows(np.zeros(5, np.dtype([("number", np.int64)])))

    assert len(rows.take(slice(1, 3))) == 2
    with pytest.raises(AttributeError, match="colour"):
        _ = rows.colour


def read_left_unanswered(talk: Talk) -> None:
    """Later requests are acknowledged, and one that was lost is retransmitted: not the READ."""
    sends(talk, 0, 10)
    talk.ask(OpCode.RC_RDMA_READ_REQUEST, 20, length=2 * MTU)
    talk.sends(22, 1, 12)
    talk.ask(OpCode.RC_SEND_ONLY, 24, 64, ack_req=1)
    talk.answer(24, 13)
    talk.ask(OpCode.RC_SEND_ONLY, 23, 64, ack_req=1)
    for psn in range(25, 230):
        talk.ask(OpCode.RC_SEND_ONLY, psn, 64, ack_req=1)


def message_left_unfinished(talk: Talk) -> None:
    """After SEND FIRST other messages begin, and are acknowledged later."""
    sends(talk, 0, 10)
    talk.ask(OpCode.RC_SEND_FIRST, 20, MTU)
    for psn in range(21, 230):
        talk.ask(OpCode.RC_SEND_ONLY, psn, 64, ack_req=1)
    for psn in range(21, 230):
        talk.answer(psn, psn - 8)


UNFINISHED = (read_left_unanswered, message_left_unfinished)


@pytest.mark.parametrize("leave", UNFINISHED)
def test_what_was_left_unfinished_stays_open_in_a_run(
    leave: Callable[[Talk], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    talk = Talk()
    leave(talk)

    _, took = both_ways(talk.frames, monkeypatch)

    assert took


def test_a_response_that_was_damaged_before_is_counted_in_a_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    talk = Talk()
    sends(talk, 0, 10)
    reads(talk, 20, 10)
    talk.ask(OpCode.RC_RDMA_READ_REQUEST, 50, length=MTU)
    talk.answer(50, 1, opcode=OpCode.RC_RDMA_READ_RESPONSE_ONLY, size=MTU)
    time_ns, frame = talk.frames[-1]
    damaged = time_ns, frame[:-1] + bytes([frame[-1] ^ 1])
    talk.frames[-1:] = [damaged, (time_ns, frame)]
    reads(talk, 51, 40)
    monkeypatch.setattr(steady, "LEAST", 1)
    monkeypatch.setattr(analysis, "ALONE", 1)

    found, _ = both_ways(talk.frames, monkeypatch)

    assert found.connections[0].directions[1].retransmitted == 1
