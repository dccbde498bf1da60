"""Packets that go on with a retransmission are taken together, as if one by one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from connections.talk import Talk
from connections.test_short_runs import same
from connections.test_steady import told
from emulated_traffic import feed
from ibwire.base.compiled import compiled_modules
from ibwire.connections import repeats, rounds
from ibwire.connections.analysis import Analysis
from ibwire.connections.connection import Connection
from ibwire.connections.events import FlowEvent, Message
from ibwire.connections.packets import TransportPacket
from ibwire.connections.states import PacketStatus
from ibwire.connections.tracker import RequestTracker
from ibwire_layers.opcodes import OpCode

MTU = 1024
NAK = 0x60
MANY = 20
"""Packets that are retransmitted."""


class Noting:
    """Notes what is reported, and what a tracker says when a packet is."""

    def __init__(self) -> None:
        self.noted: list[object] = []

    def event(self, event: FlowEvent) -> None:
        self.noted.append(event)

    def message(self, message: Message) -> None:
        self.noted.append(message)

    def request(
        self, tracker: RequestTracker, packet: TransportPacket, status: PacketStatus
    ) -> None:
        state = tracker.last_ns, tracker.retransmission_end, tracker.next, tracker.acked
        self.noted.append((packet, status, state))

    response = request

    def other(self, connection: Connection, direction: int, packet: TransportPacket) -> None:
        self.noted.append((direction, packet))


def requests(talk: Talk, first: int, end: int) -> None:
    """Packets of one long WRITE, without its first one."""
    for psn in range(first, end):
        talk.ask(OpCode.RC_RDMA_WRITE_MIDDLE, psn, MTU)


def responses(talk: Talk, first: int, end: int) -> None:
    """Responses of one long READ, without its first one."""
    for psn in range(first, end):
        talk.answer(psn, 2, opcode=OpCode.RC_RDMA_READ_RESPONSE_MIDDLE, size=MTU)


def begun() -> Talk:
    """A conversation in which both sides have sent something, and the path MTU is known."""
    talk = Talk()
    talk.sends(0, 3)
    talk.ask(OpCode.RC_RDMA_WRITE_FIRST, 3, MTU, length=100 * MTU)
    requests(talk, 4, 6)
    return talk


def refused(talk: Talk) -> None:
    """A WRITE whose PSN 8 is missing and refused."""
    requests(talk, 6, 8)
    requests(talk, 9, 8 + MANY)
    talk.answer(8, 3, NAK)


def after_a_nak(talk: Talk) -> None:
    refused(talk)
    requests(talk, 8, 8 + MANY)


def with_a_mark(talk: Talk) -> None:
    refused(talk)
    requests(talk, 8, 14)
    talk.ask(OpCode.RC_RDMA_WRITE_MIDDLE, 14, MTU, ecn=3)
    requests(talk, 15, 8 + MANY)


def with_another_loss(talk: Talk) -> None:
    refused(talk)
    requests(talk, 8, 14)
    talk._ids[0] += 2  # two were lost before this point
    requests(talk, 16, 8 + MANY)


def with_another_nak(talk: Talk) -> None:
    refused(talk)
    requests(talk, 8, 14)
    talk.answer(14, 3, NAK)
    requests(talk, 14, 8 + MANY)


def with_a_pause(talk: Talk) -> None:
    refused(talk)
    requests(talk, 8, 14)
    talk.wait(20_000)
    requests(talk, 14, 8 + MANY)


def by_a_timer(talk: Talk) -> None:
    requests(talk, 6, 8 + MANY)
    talk.wait(100_000)
    requests(talk, 4, 8 + MANY)


def of_acknowledged_requests(talk: Talk) -> None:
    requests(talk, 6, 8 + MANY)
    talk.answer(7 + MANY, 3)
    talk.wait(100_000)
    requests(talk, 4, 8 + MANY)
    talk.answer(7 + MANY, 3)


def read(talk: Talk) -> None:
    """A READ that is answered up to its response number 12, and retransmitted."""
    talk.ask(OpCode.RC_RDMA_WRITE_LAST, 6, 10, ack_req=1)
    talk.answer(6, 4)
    talk.ask(OpCode.RC_RDMA_READ_REQUEST, 7, length=50 * MTU)
    talk.answer(7, 5, opcode=OpCode.RC_RDMA_READ_RESPONSE_FIRST, size=MTU)
    responses(talk, 8, 20)
    talk.wait(100_000)
    talk.ask(OpCode.RC_RDMA_READ_REQUEST, 7, length=50 * MTU)
    talk.answer(7, 5, opcode=OpCode.RC_RDMA_READ_RESPONSE_FIRST, size=MTU)


def of_responses(talk: Talk) -> None:
    read(talk)
    responses(talk, 8, 56)
    talk.answer(56, 5, opcode=OpCode.RC_RDMA_READ_RESPONSE_LAST, size=MTU)


def of_responses_that_were_lost(talk: Talk) -> None:
    talk.ask(OpCode.RC_RDMA_WRITE_LAST, 6, 10, ack_req=1)
    talk.answer(6, 4)
    talk.ask(OpCode.RC_RDMA_READ_REQUEST, 7, length=50 * MTU)
    talk.answer(7, 5, opcode=OpCode.RC_RDMA_READ_RESPONSE_FIRST, size=MTU)
    responses(talk, 8, 12)
    talk._ids[1] += 1
    responses(talk, 13, 30)
    talk.ask(OpCode.RC_RDMA_READ_REQUEST, 8, length=49 * MTU, va=0x10000 + MTU)
    talk.answer(8, 5, 0x03, opcode=OpCode.RC_RDMA_READ_RESPONSE_FIRST, size=MTU)
    responses(talk, 9, 56)
    talk.answer(56, 5, 0x04, opcode=OpCode.RC_RDMA_READ_RESPONSE_LAST, size=MTU)


def of_many_responses(talk: Talk) -> None:
    """So many that what was missing before counts as lost."""
    of_responses_that_were_lost(talk)
    talk.ask(OpCode.RC_SEND_ONLY, 57, 64, ack_req=1)
    talk.ask(OpCode.RC_RDMA_READ_REQUEST, 7, length=50 * MTU)
    talk.answer(7, 5, opcode=OpCode.RC_RDMA_READ_RESPONSE_FIRST, size=MTU)
    responses(talk, 8, 56)
    talk.answer(56, 5, opcode=OpCode.RC_RDMA_READ_RESPONSE_LAST, size=MTU)


CASES: dict[Callable[[Talk], None], int] = {
    after_a_nak: MANY - 1,
    with_a_mark: 5 + MANY - 7,
    with_another_loss: 5 + MANY - 9,
    with_another_nak: 5 + MANY - 7,
    with_a_pause: 5 + MANY - 7,
    by_a_timer: MANY + 3,
    of_acknowledged_requests: MANY + 3,
    of_responses: 12,
    of_responses_that_were_lost: 20,
    of_many_responses: 60,
}
"""What is retransmitted -> how many packets are taken together, at least."""


@pytest.mark.skipif(compiled_modules() > 0, reason="functions of compiled modules stay as they are")
@pytest.mark.parametrize("is_observed", [False, True], ids=["counted", "observed"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_what_is_retransmitted_is_taken_together(
    case: Callable[[Talk], None], is_observed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    talk = begun()
    case(talk)
    talk.ask(OpCode.RC_SEND_ONLY, 200, 64, ack_req=1)
    talk.sends(201, 100, msn=6)
    took, advance = 0, repeats.advance

    def counting(*given: Any, **named: Any) -> int:
        nonlocal took
        found = advance(*given, **named)
        took += found
        return found

    def analysis() -> tuple[Analysis, list[object]]:
        watcher = Noting() if is_observed else None
        found = feed(Analysis(watcher), talk.frames)
        return found, [] if watcher is None else watcher.noted

    monkeypatch.setattr(rounds, "MANY", 1)
    monkeypatch.setattr(rounds, "REST", 0)
    monkeypatch.setattr("ibwire.connections.untracked.MOST", 0)
    monkeypatch.setattr(repeats, "advance", counting)
    one, noted = analysis()
    found = one.finish()
    monkeypatch.setattr(repeats, "advance", lambda *_, **__: 0)
    other, expected = analysis()
    alone = other.finish()

    assert told(found) == told(alone)
    assert noted == expected
    for mine, its in zip(one.trackers, other.trackers, strict=True):
        same(mine, its)
        for asked, wanted in zip(mine.requests, its.requests, strict=True):
            assert asked.answered_again == wanted.answered_again
            assert asked.replay_end == wanted.replay_end
    assert took >= CASES[case]
