"""No verdict contradicts the incidents, wherever a capture ends, and whichever direction it has.

Each shipped capture is cut after every frame (a sample of the frames, where the tests must be
quick), also with the frames of one sender only.
"""

import io
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diagnosis.test_story import frames_of, impaired
from examples import sampled, scaled
from ibwire.capture import RecordBatch, open_capture
from ibwire.connections.analysis import Analysis
from ibwire.connections.connection import Connection
from ibwire.connections.status import Status
from ibwire.diagnosis.record import Recorder
from ibwire.diagnosis.story import Frames, Story
from ibwire.dissect import Columns

CAPTURES = Path(__file__).parents[2] / "captures"
NAMES = sorted(path.name for path in CAPTURES.glob("*.pcap*"))
QUICK = ("drop-one-last.b.pcap", "drop-read-response.b.pcap", "retry-exceeded.pcap")
"""Captures that are cut everywhere in the quick tests."""

FINE = Status.OK, Status.RECOVERED, Status.DEGRADED
"""Statuses without anything open."""


class Everything:
    def __contains__(self, number: int) -> bool:
        return True


def batch_of(name: str) -> RecordBatch:
    """All frames of a capture."""
    with open_capture(str(CAPTURES / name)) as reader:
        (batch,) = reader.batches()
    return batch


def sides(batch: RecordBatch) -> Iterator[RecordBatch]:
    """The frames of all senders, then those of each sender by its IPv4 address."""
    yield batch
    source = np.stack([batch.data[batch.offsets + 26 + step] for step in range(4)], axis=1)
    for address in np.unique(source, axis=0)[:2]:
        rows = np.flatnonzero((source == address).all(axis=1))
        yield RecordBatch(
            data=batch.data,
            offsets=batch.offsets[rows],
            cap_len=batch.cap_len[rows],
            wire_len=batch.wire_len[rows],
            time_ns=batch.time_ns[rows],
            link_type=batch.link_type[rows],
            interface=batch.interface[rows],
            first_number=1,
        )


def analysed(batch: RecordBatch, observer: Any = None) -> list[Connection]:
    analysis = Analysis(observer)
    analysis.take(Columns(batch, "x"))
    return analysis.finish().connections


def stories(batch: RecordBatch) -> Iterator[Story]:
    recorder = Recorder(Everything())
    connections = analysed(batch, recorder)
    frames = Frames("x", int(batch.time_ns[0]), int(batch.time_ns[-1]))
    for record in recorder.records(connections):
        yield Story(record, frames)


def contradictions(story: Story) -> list[str]:
    """Sentences and statuses that cannot be true together."""
    found = []
    status = story.connection.status.status
    verdict = story.verdict
    is_open = any(each.is_open for each in story.incidents)
    is_reset = any(each.incident.is_cut for each in story.incidents)
    if status in FINE and (is_open or is_reset):
        found.append(f"{status} beside an open incident")
    if status not in FINE and re.search(r"othing went wrong|connection recovered", verdict):
        found.append(f"{status}, and the verdict: {verdict}")
    if status in (Status.UNRESOLVED, Status.UNANSWERED):
        if not re.search("Not resolved|was reset", verdict):
            found.append(f"{status} without a word about what is open: {verdict}")
    elif "Not resolved" in verdict:
        found.append(f"{status}, and the verdict: {verdict}")
    if status.is_failure and "in flight" in verdict:
        found.append(f"{status} with messages in flight")
    if is_open and re.search("Nothing was lost|othing went wrong", verdict):
        found.append(f"an open incident, and the verdict: {verdict}")
    return found


def check(name: str, step: int, step_of_sides: int) -> None:
    """Cut a capture after every `step` frames, and those of each sender."""
    for side, batch in enumerate(sides(batch_of(name))):
        for frames in range(1, len(batch) + 1, step_of_sides if side else step):
            part = next(batch.split(frames))
            told = list(stories(part))
            for story in told:
                assert contradictions(story) == [], (name, frames, story.connection.number)
            # `flows` follows many packets at once, `explain` one by one.
            assert [str(each.status) for each in analysed(part)] == [
                str(story.connection.status) for story in told
            ]


@pytest.mark.parametrize("name", sampled(QUICK, 3))
def test_a_capture_that_is_cut_anywhere_does_not_contradict_itself(name: str) -> None:
    check(name, 1, 1)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_no_capture_that_is_cut_contradicts_itself(name: str) -> None:
    """Everywhere; of the longest, after every fourth frame."""
    check(name, 1 if len(batch_of(name)) < 300 else 4, 10)


@pytest.mark.parametrize("name", sampled((name for name in NAMES if name not in QUICK), 8))
def test_a_sample_of_cut_captures_does_not_contradict_itself(name: str) -> None:
    step = max(len(batch_of(name)) // 4, 5)
    check(name, step, step)


def check_impaired(name: str, seed: int) -> None:
    """Lose, duplicate, reorder and damage frames, and cut the capture somewhere."""
    rng = random.Random(seed)
    header, records = frames_of(CAPTURES / name)
    records = impaired(records, rng)
    records = records[: rng.randint(1, len(records))] if records else []
    if not records:
        return
    with open_capture(io.BytesIO(header + b"".join(records))) as reader:
        (batch,) = reader.batches()
    told = list(stories(batch))
    for story in told:
        assert contradictions(story) == [], (name, seed, story.connection.number)
    assert [str(each.status) for each in analysed(batch)] == [
        str(story.connection.status) for story in told
    ]


IMPAIRED = ("rcx-all-ops", "rnr-multi-packet", "loss-ack-only.b", "nak-bad-rkey-write", "chaos.a")


@settings(max_examples=scaled(40), deadline=None)
@given(st.sampled_from([f"{name}.pcap" for name in IMPAIRED]), st.integers(0, 1 << 32))
def test_an_impaired_capture_contradicts_itself_nowhere(name: str, seed: int) -> None:
    check_impaired(name, seed)
