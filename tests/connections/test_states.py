"""The tables of states and moves, and the trackers that follow them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import pytest

from connections.talk import Talk
from emulated_traffic import feed
from ibwire.connections import (
    Analysis,
    Connection,
    FlowEvent,
    Message,
    PacketStatus,
    RequesterState,
    RequestTracker,
    ResponderState,
    TransportPacket,
)
from ibwire.connections.states import (
    REQUESTER_MOVES,
    RESPONDER_MOVES,
    RequesterInput,
    ResponderInput,
)
from ibwire_layers.opcodes import OpCode

ONLY = OpCode.RC_SEND_ONLY
NAK_SEQUENCE, NAK_ACCESS, RNR_1280_US = 0x60, 0x62, 0x2E


State = TypeVar("State")
Input = TypeVar("Input")


def reachable(moves: Mapping[State, Mapping[Input, State]], start: State) -> set[State]:
    found: set[State] = set()
    pending = [start]
    while pending:
        state = pending.pop()
        if state not in found:
            found.add(state)
            pending += moves[state].values()
    return found


def test_every_state_is_in_the_tables_and_reachable() -> None:
    assert set(REQUESTER_MOVES) == set(RequesterState)
    assert set(RESPONDER_MOVES) == set(ResponderState)
    assert reachable(REQUESTER_MOVES, RequesterState.NOT_SEEN) == set(RequesterState)
    assert reachable(RESPONDER_MOVES, ResponderState.ACCEPTING) == set(ResponderState)


def test_a_responder_takes_every_input_in_every_state() -> None:
    for moves in RESPONDER_MOVES.values():
        assert set(moves) == set(ResponderInput)


def test_only_the_first_request_leaves_the_state_without_one() -> None:
    assert set(REQUESTER_MOVES[RequesterState.NOT_SEEN]) == {RequesterInput.FIRST}
    for state, moves in REQUESTER_MOVES.items():
        if state is not RequesterState.NOT_SEEN:
            assert set(moves) == set(RequesterInput) - {RequesterInput.FIRST}


def test_a_fatal_nak_ends_a_connection_for_good() -> None:
    assert set(RESPONDER_MOVES[ResponderState.FAILED].values()) == {ResponderState.FAILED}


class StateWatcher:
    """Records the states before each packet, and that they agree with the values."""

    def __init__(self) -> None:
        self.states: list[tuple[RequesterState, ResponderState]] = []

    def request(
        self, tracker: RequestTracker, packet: TransportPacket, status: PacketStatus
    ) -> None:
        self.states.append((tracker.requester, tracker.responder))
        unsettled = not tracker.unseen.unsettled.is_empty
        is_settling = tracker.requester is RequesterState.SETTLING
        assert (tracker.next is None) == (tracker.requester is RequesterState.NOT_SEEN)
        assert not unsettled or is_settling or tracker.is_retransmitting
        assert not is_settling or unsettled
        assert not tracker.is_retransmitting or tracker.retransmission is not None
        if tracker.responder is not ResponderState.FAILED:
            assert bool(tracker.refusals) == (tracker.responder is not ResponderState.ACCEPTING)

    response = request

    def other(self, connection: Connection, direction: int, packet: TransportPacket) -> None:
        pass

    def event(self, event: FlowEvent) -> None:
        pass

    def message(self, message: Message) -> None:
        pass


def states_of(talk: Talk) -> list[tuple[RequesterState, ResponderState]]:
    """The states before each packet, and at the end."""
    watcher = StateWatcher()
    analysis = feed(Analysis(watcher), talk.frames)
    analysis.finish()
    tracker = analysis.trackers[0].requests[0]
    return [*watcher.states, (tracker.requester, tracker.responder)]


SEQUENCE, RETRANSMITTING = RequesterState.IN_SEQUENCE, RequesterState.RETRANSMITTING
SETTLING, ACCEPTING = RequesterState.SETTLING, ResponderState.ACCEPTING


def test_a_nak_a_retransmission_and_what_may_still_arrive() -> None:
    talk = Talk()
    talk.sends(10, 1)
    talk.ask(ONLY, 12, 64, ack_req=1)
    talk.answer(11, 1, NAK_SEQUENCE)
    talk.ask(ONLY, 11, 64, ack_req=1)
    talk.ask(ONLY, 12, 64, ack_req=1)
    talk.ask(ONLY, 13, 64, ack_req=1)

    assert states_of(talk)[2:] == [
        (SEQUENCE, ACCEPTING),
        (SEQUENCE, ACCEPTING),
        (SEQUENCE, ResponderState.GO_BACK_DUE),
        (RETRANSMITTING, ACCEPTING),
        (RETRANSMITTING, ACCEPTING),
        (SETTLING, ACCEPTING),
    ]


def test_what_is_missing_for_long_is_settled() -> None:
    talk = Talk()
    talk.sends(10, 1)
    talk.ask(ONLY, 12, 64, ack_req=1)
    talk.answer(11, 1, NAK_SEQUENCE)
    talk.sends(11, 100)

    assert states_of(talk)[-1] == (SEQUENCE, ACCEPTING)


@pytest.mark.parametrize(
    ("syndrome", "state"),
    [(RNR_1280_US, ResponderState.RNR_WAIT), (NAK_ACCESS, ResponderState.FAILED)],
)
def test_a_refusal_is_the_state_of_the_responder(syndrome: int, state: ResponderState) -> None:
    talk = Talk()
    talk.sends(10, 1)
    talk.ask(ONLY, 11, 64, ack_req=1)
    talk.answer(11, 1, syndrome)

    assert states_of(talk)[-1] == (SEQUENCE, state)
