"""The causes of incidents as data: each has what it may be, and its evidence."""

from pathlib import Path

from diagnosis.test_agreement import NAMES, records_of
from each_case import each_case
from examples import sampled
from ibwire.diagnosis.causes import OF_RESPONSES, POSSIBLE, Possibility, Reason
from ibwire.diagnosis.incident_text import IncidentEnd
from ibwire.diagnosis.story import Frames, Story
from ibwire.diagnosis.wording import PHRASES

DOCUMENT = Path(__file__).parents[2] / "docs" / "explanation" / "diagnosis.md"


def test_every_cause_has_possibilities_and_words() -> None:
    assert set(POSSIBLE) == set(PHRASES) == set(Reason)
    assert {each for one in POSSIBLE.values() for each in one} == set(Possibility)


def test_words_that_leave_a_choice_have_several_possibilities() -> None:
    """`or` between two things that may have happened, not in "lost, damaged or delayed"."""
    chooses = {
        why
        for why, phrase in PHRASES.items()
        if ", or " in phrase.verdict or "or its response" in phrase.verdict
    }

    assert chooses - {Reason.NO_BUFFER} <= {why for why, may_be in POSSIBLE.items() if may_be[1:]}


def test_causes_about_responses_have_only_possibilities_about_responses() -> None:
    either = Possibility.TIMER, Possibility.DISCARDED
    for why in OF_RESPONSES:
        assert all("response" in each or each in either for each in POSSIBLE[why]), why


def test_the_page_has_every_possibility() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")

    assert [each for each in Possibility if f"`{each}`" not in text] == []


@each_case("name", sampled(NAMES, 3))
def test_each_cause_has_evidence_in_the_story(name: str) -> None:
    for record in records_of(name):
        for described in Story(record, Frames(name, 0, 1 << 62), True).incidents:
            texts = [step.text for step in described.steps]
            place = name, record.connection.number, described.incident.first
            ended = described.end in (IncidentEnd.REFUSED, IncidentEnd.GIVEN_UP)
            assert described.is_open == (described.incident.recovered is None and not ended), place
            for cause in described.causes:
                assert cause.count >= 1, place
                assert cause.frames == sorted(cause.frames), place
                is_said = any(text in cause.evidence for text in texts)
                assert is_said or cause.evidence == described.given_up, (place, cause)
