"""No sentence of `explain` and no count of `flows` is wrong: by the truth of the emulated wire.

Captures are taken in the middle of the path, with faults before and behind that point.
"""

from __future__ import annotations

import pytest

from diagnosis.sentence_law import breaches, story_of
from ibwire.connections.connection import Connection
from ibwire.diagnosis.story import Story
from ibwire.rc.work import WROpcode
from wire_truth import Fault, Harm, Scenario, Truth, Work

SENDS = tuple(Work(WROpcode.SEND, 600) for _ in range(3))
"""Three packets each, from PSN 100 on."""


def told(scenario: Scenario) -> tuple[Truth, Story, str]:
    """The truth, the story, and its text as one line."""
    truth = Truth(scenario)
    story = story_of(truth)
    assert story is not None
    assert breaches(truth) == []
    return truth, story, " ".join(" ".join(line.text for line in story.lines(100)).split())


def connection_of(scenario: Scenario) -> Connection:
    return told(scenario)[1].connection


@pytest.mark.parametrize("handshake", ["cm", "pingpong", "perftest"])
@pytest.mark.parametrize("lost", [1, 2])
def test_first_packets_lost_before_the_point_are_lost_if_the_first_psn_is_known(
    handshake: str, lost: int
) -> None:
    faults = tuple(Fault("a", number, Harm.DROP, True) for number in range(1, lost + 1))

    _, story, text = told(Scenario(SENDS, faults=faults, handshake=handshake))

    counts = story.connection.directions[0]
    assert (counts.lost, counts.retransmitted, counts.restarts) == (lost, 9, 0)
    assert "did not arrive here: #" in text
    assert "Whether it passed here is unknown" not in text
    assert "reset" not in text


def test_first_packet_damaged_before_the_point_is_damaged() -> None:
    _, story, text = told(Scenario(SENDS, faults=(Fault("a", 1, Harm.DAMAGE, True),)))

    assert story.connection.directions[0].lost == 0
    assert "1 packet from A to B damaged before this point" in text
    assert "That packet was damaged, see above." in text
