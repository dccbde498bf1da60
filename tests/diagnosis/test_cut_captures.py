"""No verdict contradicts the incidents, wherever a capture ends, and whichever direction it has.

Each shipped capture is cut after every frame (a sample of the frames, where the tests must be
quick), also with the frames of one sender only.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

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
    is_open = any(each.outcome.startswith("not resolved") for each in story.incidents)
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
    if is_open and re.search("othing (was lost|went wrong)", verdict):
        found.append(f"an open incident, and the verdict: {verdict}")
    return found


def check(name: str, cuts: range) -> None:
    for batch in sides(batch_of(name)):
        for frames in range(cuts.start, len(batch) + 1, cuts.step):
            part = next(batch.split(frames))
            told = list(stories(part))
            for story in told:
                assert contradictions(story) == [], (name, frames, story.connection.number)
            # `flows` follows many packets at once, `explain` one by one.
            assert [str(each.status) for each in analysed(part)] == [
                str(story.connection.status) for story in told
            ]


@pytest.mark.parametrize("name", QUICK)
def test_a_cut_capture_contradicts_itself_nowhere(name: str) -> None:
    check(name, range(1, 10_000, 1))


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_no_cut_capture_contradicts_itself_anywhere(name: str) -> None:
    check(name, range(1, 10_000, 1))


@pytest.mark.parametrize("name", [name for name in NAMES if name not in QUICK])
def test_a_sample_of_cut_captures(name: str) -> None:
    rng = len(batch_of(name))
    check(name, range(1 + rng % 7, 10_000, max(rng // 4, 5)))
