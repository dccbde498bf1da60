"""The law that no sentence of a story is wrong, whatever the wire has done.

`breaches` holds every sentence of a story, and every count of `flows`, against the truth of the
wire (`wire_truth`). A sentence may say less than what happened, never anything else. A sentence
that no check here knows is a breach as well.
"""

from __future__ import annotations

from diagnosis.sentence_judge import Judge
from diagnosis.step_sentences import STEPS
from diagnosis.verdict_sentences import OTHERS, VERDICT
from emulated_traffic import feed
from ibwire.connections.analysis import Analysis
from ibwire.diagnosis.record import Record, Recorder
from ibwire.diagnosis.story import Frames, Story
from wire_truth import Truth


class Everything:
    """All connections."""

    def __contains__(self, number: int) -> bool:
        return True


def story_of(truth: Truth) -> Story | None:
    """The story of the connection; `None` if no packet of it passed the point of capture."""
    if not truth.by_number:
        return None
    return Story(*recorded(truth), True)


def recorded(truth: Truth) -> tuple[Record, Frames]:
    """What the story of the connection is made of."""
    recorder = Recorder(Everything())
    analysis = Analysis(recorder)
    feed(analysis, truth.frames)
    analysis.finish()
    frames = Frames("capture", truth.frames[0][0], truth.frames[-1][0])
    found = [each for each in recorder.records() if each.connection.is_reliable]
    assert len(found) == 1, "more than one connection"
    return found[0], frames


def breaches(truth: Truth) -> list[str]:
    """Everything that is wrong in what is said about a capture."""
    story = story_of(truth)
    if story is None:
        return []
    judge = Judge(truth, story)
    return [*judge.steps(STEPS), *judge.rest(OTHERS), *judge.verdict(VERDICT), *judge.counts()]
