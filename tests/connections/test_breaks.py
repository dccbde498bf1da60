"""Breaks in the sequence of packets, up to which regular traffic is looked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from connections.talk import Talk
from connections.test_steady import reads, sends
from emulated_traffic import feed
from ibwire.connections import breaks
from ibwire.connections.analysis import Analysis
from ibwire.connections.breaks import Breaks
from ibwire_layers.opcodes import OpCode


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Numbers of the packets at which sequences break."""
    found: list[int] = []
    find = breaks.find

    def noting(connections: Any, rows: Any, *rest: Any) -> Breaks:
        positions = find(connections, rows, *rest)
        at = positions.following(0)
        while at < len(rows):
            found.append(int(rows.number[at]))
            at = positions.following(at + 1)
        return positions

    monkeypatch.setattr(breaks, "find", noting)
    return found


def lost_request(talk: Talk) -> None:
    talk.ask(OpCode.RC_SEND_ONLY, 901, 64)


def repeated_request(talk: Talk) -> None:
    talk.ask(OpCode.RC_SEND_ONLY, 899, 64)


def refused(talk: Talk) -> None:
    talk.answer(900, 900, syndrome=0x60)


def repeated_answer(talk: Talk) -> None:
    talk.answer(899, 900)


def older_answer(talk: Talk) -> None:
    talk.answer(898, 900)


@pytest.mark.parametrize(
    "leave", [lost_request, repeated_request, refused, repeated_answer, older_answer]
)
def test_a_break_is_found_where_it_is(leave: Callable[[Talk], None], broken: list[int]) -> None:
    talk = Talk()
    talk.sends(800, 100)
    leave(talk)
    number = len(talk.frames)

    feed(Analysis(), talk.frames).finish()

    assert broken[0] == number


def test_a_response_that_is_missing_in_a_read_is_a_break(broken: list[int]) -> None:
    talk = Talk()
    reads(talk, 0, 1)
    count = len(talk.frames)
    reads(talk, 3, 1)
    del talk.frames[count + 2]

    feed(Analysis(), talk.frames).finish()

    assert broken == [count + 3]


def test_regular_traffic_has_no_break(broken: list[int]) -> None:
    talk, other = Talk(), Talk(number=1)
    sends(talk, 0xFFFFF0, 50)
    reads(other, 0xFFFFF0, 50)
    for psn in range(60):
        talk.ask(OpCode.RC_FETCH_ADD, 900 + psn, sender=1)
        talk.answer(900 + psn, psn, opcode=OpCode.RC_ATOMIC_ACKNOWLEDGE, sender=0)

    feed(Analysis(), sorted([*talk.frames, *other.frames])).finish()

    assert not broken


def test_datagrams_have_no_break(broken: list[int]) -> None:
    """Their PSNs count over all destinations."""
    talk = Talk()
    for psn in range(0, 600, 3):
        talk.ask(OpCode.UD_SEND_ONLY, psn, 64)

    feed(Analysis(), talk.frames).finish()

    assert not broken


def test_breaks_of_some_of_the_packets() -> None:
    found = Breaks([3, 10, 20], 30)

    assert [found.following(at) for at in (0, 3, 4, 21)] == [3, 3, 10, 30]
    part = found.between(5, 20)
    assert [part.following(at) for at in (0, 5, 6)] == [5, 5, 15]
