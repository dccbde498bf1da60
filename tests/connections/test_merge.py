"""Consecutive captures joined: what is open in one goes on in the next."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from connections.talk import QPNS, Talk
from emulated_traffic import Stamped, analysed, feed
from ibwire.connections import analysis
from ibwire.connections.analysis import Analysis
from ibwire.connections.summary import Summary
from ibwire_layers.opcodes import OpCode
from ibwire_layers.packet import Packet


def joined(*parts: list[Stamped]) -> Summary:
    whole, *later = (
        feed(Analysis(is_part=True, source=f"part {n}"), part) for n, part in enumerate(parts)
    )
    for each in later:
        whole.merge(each)
    return whole.finish()


def told(found: Summary) -> list[dict[str, Any]]:
    return [each.to_json(direction) for each in found.connections for direction in (0, 1)]


def talked() -> list[Stamped]:
    talk = Talk()
    talk.sends(0xFFFFF0, 30)
    talk.ask(OpCode.RC_SEND_ONLY, 15, 64, ack_req=1)
    talk.answer(14, 31, 0x60)
    talk.sends(14, 30, msn=31)
    return talk.frames


@pytest.mark.slow
@pytest.mark.parametrize("horizon", [20, 1024])
def test_a_cut_anywhere_makes_no_difference(horizon: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also between a loss and its NAK, a NAK and its resend, a request and its answer."""
    monkeypatch.setattr(analysis, "HORIZON", horizon)
    frames = talked()
    whole = told(analysed(frames))

    for cut in range(len(frames) + 1):
        found = joined(frames[:cut], frames[cut:])
        if not sum(each.seams for each in found.connections):
            assert told(found) == whole, cut
        assert found.packets == len(frames)


@pytest.mark.slow
def test_a_short_horizon_leaves_seams_only_where_something_is_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(analysis, "HORIZON", 20)
    frames = talked()

    seams = [
        cut for cut in range(len(frames)) if joined(frames[:cut], frames[cut:]).connections[0].seams
    ]

    # The loss shows at packet 61; KEEP packets later it is settled.
    assert all(30 < cut <= 61 + 64 for cut in seams)


def test_directions_that_stand_in_different_captures_are_one_connection() -> None:
    frames = talked()
    asks = [each for each in frames if each[1][29] == 1]
    answers = [each for each in frames if each[1][29] == 2]

    found = joined(asks, answers)

    (connection,) = found.connections
    assert [end.qpn for end in connection.ends] == list(QPNS)
    assert connection.is_paired


def test_the_direction_that_speaks_first_may_change_between_captures(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(analysis, "HORIZON", 20)
    talk = Talk()
    talk.sends(0, 60)

    for cut in (60, 61):
        found = joined(talk.frames[:cut], talk.frames[cut:])

        assert told(found) == told(analysed(talk.frames))
        assert found.connections[0].seams == 0


def test_connections_are_numbered_by_their_first_packets() -> None:
    one, other = Talk(), Talk()
    one.sends(0, 5)
    other.sends(0x400000, 5)
    # The other conversation, between the same hosts, with queue pairs of its own.
    moved = [(t + 1, f[:47] + bytes((0, 0, 0x40 + f[49])) + f[50:]) for t, f in other.frames]
    mixed = sorted([*one.frames, *moved])

    found = joined(mixed[:4], mixed[4:7], mixed[7:])

    assert [each.number for each in found.connections] == [1, 2]
    assert [each.ends[1].qpn for each in found.connections] == [QPNS[1], 0x40 + QPNS[1]]


def test_an_empty_capture_between_two_is_nothing() -> None:
    frames = talked()

    found = joined([], frames[:50], [], frames[50:], [])

    assert told(found) == told(analysed(frames))
    assert len(found.sources) == 5


def test_a_capture_that_begins_before_the_last_has_ended_is_reported() -> None:
    frames = talked()

    found = joined(frames[50:], frames[:50])

    (problem,) = found.problems
    assert problem.startswith("the captures overlap in time: part 1 begins 0.001")


def test_datagrams_are_added_up() -> None:
    talk = Talk()
    for psn in range(100):
        talk.ask(OpCode.UD_SEND_ONLY, psn, 64)

    found = joined(talk.frames[:30], talk.frames[30:])

    assert told(found) == told(analysed(talk.frames))


def test_a_connection_that_is_paired_only_later_keeps_its_place() -> None:
    one, other = Talk(), Talk()
    for psn in range(3):
        one.ask(OpCode.RC_SEND_ONLY, psn, 64, ack_req=1)
    one.wait(1_000)
    for psn in range(3):
        one.answer(psn, psn)
    other.sends(0x400000, 3)
    moved = [(t + 100_000, f[:47] + bytes((0, 0, 0x40 + f[49])) + f[50:]) for t, f in other.frames]

    found = joined(one.frames[:3], moved + one.frames[3:])

    assert [each.number for each in found.connections] == [1, 2]
    assert [each.ends[1].qpn for each in found.connections] == [QPNS[1], 0x40 + QPNS[1]]
    assert all(each.is_paired for each in found.connections)


def test_times_of_the_whole_are_those_of_the_first_and_the_last_frame() -> None:
    frames = talked()

    found = joined(frames[:50], frames[50:])

    assert (found.first_ns, found.last_ns) == (frames[0][0], frames[-1][0])


def test_connections_of_later_captures_come_later() -> None:
    frames = []
    for number in range(3):
        talk = Talk()
        talk.sends(0x100000 * number, 2)
        for time_ns, frame in talk.frames:
            packet = Packet.parse(frame)
            bth = replace(packet.bth, dest_qp=packet.bth.dest_qp + 0x40 * number)
            moved = replace(packet, bth=bth).repaired().build()
            frames.append((time_ns + 10**6 * number, moved))

    found = joined(frames[:8], frames[8:])

    assert [each.number for each in found.connections] == [1, 2, 3]
    assert [each.ends[1].qpn for each in found.connections] == [0x22, 0x62, 0xA2]
