"""No false alarm: whatever the wire and the capture do to traffic that keeps the rules.

The traffic is the emulator's, by random schedules, in all profiles; its own checks
are tested elsewhere. What one end sees of it is the capture.
"""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from examples import scaled
from random_schedules import schedules
from rules.check_frames import Frames, grave, judge
from schedules import Run, Schedule

ENDS = ("a", "b")
HEADERS = 128
"""Bytes of a frame that a capture of headers alone holds."""


def seen(schedule: Schedule, end: str, *kinds: str) -> Frames:
    """Frames that an end sent or that arrived there, with the time in nanoseconds."""
    history = Run(schedule).history
    return [(e.time // 1000, e.frame) for e in history if e.end == end and e.kind in kinds]


@settings(max_examples=scaled(40))
@given(schedules(), st.sampled_from(ENDS))
def test_no_alarm_for_traffic_on_a_wire_with_faults(schedule: Schedule, end: str) -> None:
    frames = seen(schedule, end, "sent", "arrived")

    assert grave(judge(frames)) == []


@settings(max_examples=scaled(40))
@given(schedules(), st.sampled_from(ENDS), st.integers(0, 40))
def test_no_alarm_when_the_capture_begins_in_the_middle(
    schedule: Schedule, end: str, start: int
) -> None:
    frames = seen(schedule, end, "sent", "arrived")

    assert grave(judge(frames[start:])) == []


@settings(max_examples=scaled(40))
@given(schedules(), st.sampled_from(ENDS), st.integers(0, 1 << 30))
def test_no_alarm_when_the_capture_lacks_packets(schedule: Schedule, end: str, seed: int) -> None:
    chance = random.Random(seed)
    frames = seen(schedule, end, "sent", "arrived")

    assert grave(judge([each for each in frames if chance.random() > 0.1])) == []


@settings(max_examples=scaled(20))
@given(schedules(), st.sampled_from(ENDS), st.sampled_from(("sent", "arrived")))
def test_no_alarm_for_one_direction_alone(schedule: Schedule, end: str, kind: str) -> None:
    assert grave(judge(seen(schedule, end, kind))) == []


@settings(max_examples=scaled(20))
@given(schedules(), st.sampled_from(ENDS))
def test_no_alarm_for_headers_alone(schedule: Schedule, end: str) -> None:
    frames = seen(schedule, end, "sent", "arrived")

    assert grave(judge(frames, snaplen=HEADERS)) == []


@pytest.mark.parametrize("profile", ["spec", "rdmavt", "rxe", "connectx", "hns"])
@settings(max_examples=scaled(8))
@given(data=st.data())
def test_no_alarm_for_an_implementation_judged_by_itself(profile: str, data: st.DataObject) -> None:
    schedule = data.draw(schedules(profiles=(profile,)))
    end = data.draw(st.sampled_from(ENDS))

    assert grave(judge(seen(schedule, end, "sent", "arrived"), profile)) == []
