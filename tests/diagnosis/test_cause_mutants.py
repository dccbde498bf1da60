"""Each place that names a cause is noticed when it names another, and so is each sentence of a
verdict: by the conversations of `test_each_cause`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from diagnosis import test_each_cause as cases
from diagnosis.sentence_law import recorded
from diagnosis.test_agreement import records_of
from diagnosis.test_conversations import record_of
from ibwire.base.units import MS
from ibwire.diagnosis import incidents, retransmission_text
from ibwire.diagnosis.causes import Reason
from ibwire.diagnosis.record import Record
from ibwire.diagnosis.story import Frames, Story
from ibwire.diagnosis.wording import PHRASES, Phrase
from mutants.engine import applied
from mutants.table import Mutant, Patch
from wire_truth import Scenario, Truth, random_scenario

NEVER_REACHED = (
    "if clue is None or clue.answered is None:\n",
    "clue = self.incident.clues.get(event.number)\n        if clue is None:\n",
    "if self.is_paired:\n",
)
"""What stands before places that no capture and none of 1000 random scenarios has reached: they say
that the capture does not show why."""

pytestmark = pytest.mark.slow

NAMED = [
    match
    for module in (incidents, retransmission_text)
    for match in re.finditer(
        r"(?<!if why is )Reason\.([A-Z_]+)", Path(module.__file__).read_text(encoding="utf-8")
    )
    if not match.string[: match.string.rindex("\n", 0, match.start()) + 1].endswith(NEVER_REACHED)
]
"""Where these modules name a cause; each match has the source of its module."""


def mutant(at: int) -> Mutant:
    """The nth of these places with another cause; the snippet is long enough to be unique."""
    match = NAMED[at]
    source = match.string
    other = Reason.UNCLEAR if match[1] != "UNCLEAR" else Reason.REFUSED
    start, end = match.span()
    while source.count(source[start:end]) > 1:
        start = source.rindex("\n", 0, start)
        end = source.index("\n", end + 1)
    new = f"{source[start : match.start()]}Reason.{other.name}{source[match.end() : end]}"
    is_first = source == Path(incidents.__file__).read_text(encoding="utf-8")
    file = "incidents.py" if is_first else "retransmission_text.py"
    patch = Patch(f"diagnosis/{file}", source[start:end], new)
    return Mutant(f"{match[1]} in line {source.count(chr(10), 0, start) + 2}", (patch,))


@cache
def known() -> list[tuple[Record, Frames, cases.Causes]]:
    """What was recorded of all conversations, before it is described, and their causes."""
    found = []
    for works, faults, expected in cases.FAULTS.values():
        record, frames = recorded(Truth(Scenario(works, faults=faults)))
        found.append((record, frames, expected))
    for seed, expected in cases.RANDOM.items():
        record, frames = recorded(Truth(random_scenario(seed)))
        found.append((record, frames, expected))
    for name, expected in cases.KNOWN.items():
        (record,) = [each for each in records_of(f"{name}.pcap") if each.incidents()]
        found.append((record, Frames(name, 0, record.line[-1].last.time_ns), expected))
    late = Scenario(cases.SEND, receives=((0, 0), (2 * MS, 10)))
    found.append((*recorded(Truth(late)), {Reason.NO_BUFFER: 1}))
    for talk, expected in cases.CONVERSATIONS.values():
        record, frames = record_of(talk())
        found.append((record, frames, expected))
    return found


def misjudged() -> Iterator[Story]:
    for record, frames, expected in known():
        story = Story(record, frames, True)
        if cases.causes_of(story) != expected:
            yield story


@pytest.mark.parametrize("at", range(len(NAMED)), ids=lambda at: f"{at}-{NAMED[at][1]}")
def test_another_cause_is_noticed(at: int) -> None:
    assert not list(misjudged())

    with applied(mutant(at)):
        assert next(misjudged(), None) is not None


VERDICTS = {
    Reason.NO_BUFFER: "had no receive buffer posted",
    Reason.LOST_BEFORE: "The network lost",
    Reason.LOST_AFTER: "did not reach",
    Reason.LOST_OR_DISCARDED: "or discarded by B because an earlier packet was missing",
    Reason.DAMAGED: "from A to B arrived here damaged",
    Reason.REORDERED_BEFORE: "The network delivers packets out of order",
    Reason.REORDERED_AFTER: "not lost but reordered between this point and",
    Reason.RESPONSE_LOST_BEFORE: "The network lost",
    Reason.RESPONSE_MISSING: "lost or delayed between B and this point",
    Reason.RESPONSE_LOST_AFTER: "lost, damaged or delayed between this point and A, by the network",
    Reason.RESPONSE_OR_LATE: "or A had not waited for it",
    Reason.RESPONSE_OR_DISCARDED: "or discarded by A because an earlier response was missing",
    Reason.RESPONSE_DAMAGED: "of B arrived here damaged",
    Reason.RESPONSE_REORDERED: "which A treats as loss",
    Reason.EITHER_LOST_AFTER: "the capture does not show which of them",
    Reason.OLD_NAK: "for an outdated NAK",
    Reason.LATE: "or lost there and retransmitted; the capture does not show which",
    Reason.REPEATED: "late, or retransmitted; the capture does not show which",
    Reason.STALE_TIMER: "although nothing was lost: its ACK timer expired before",
    Reason.NOT_CAPTURED: "acknowledged but not captured",
    Reason.RESPONSE_NOT_CAPTURED: "went on without retransmitting the request",
    Reason.NOT_SEEN: "not retransmitted before the capture ends",
    Reason.RESPONSE_NOT_SEEN: "had not retransmitted the request when the capture ended",
    Reason.NOT_IN_CAPTURE: "so it does not show where it was lost or delayed",
    Reason.UNCLEAR: "for reasons that this capture does not show",
}
"""Words of the verdict for each cause, with A as the requester; the others say how it ended."""


def verdicts_without_words() -> Iterator[str]:
    for record, frames, expected in known():
        story = Story(record, frames, True)
        failed = story.connection.status.status.is_failure
        ends = {each.incident.end for each in story.incidents}
        for cause in expected if ends == {0} and not failed else ():
            if VERDICTS.get(cause, "") not in story.verdict:
                yield f"{cause}: {story.verdict}"


@pytest.mark.parametrize("cause", VERDICTS)
def test_another_sentence_for_a_cause_is_noticed(
    cause: Reason, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert list(verdicts_without_words()) == []

    monkeypatch.setitem(PHRASES, cause, Phrase("", "Something else happened."))

    assert list(verdicts_without_words()) != []


def test_each_cause_has_words_in_the_verdict_unless_it_is_the_end() -> None:
    silent = {cause for cause, phrase in PHRASES.items() if not phrase.verdict}

    assert silent == {Reason.REFUSED, Reason.GIVEN_UP, Reason.AFTERMATH}
    assert set(VERDICTS) == set(Reason) - silent
