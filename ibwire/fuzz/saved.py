"""A case as a file: a drill script, or JSON where scripts have no words for it.

JSON is for payloads longer than scripts have, and empty pieces of memory with a wrong key.
"""

from __future__ import annotations

from pathlib import Path

from ibwire.base.errors import ScriptError
from ibwire.base.node import Frame
from ibwire.fuzz.case import Case, CaseError, Role, RunsAway, from_json, to_json
from ibwire.fuzz.judge.profiles import profile_of
from ibwire.fuzz.targets.emulated_device import Completion
from ibwire.fuzz.vocabulary.cm.execution import managed_moments
from ibwire.fuzz.vocabulary.cm.script import manager_script
from ibwire.fuzz.vocabulary.queue_pair.execution import moments
from ibwire.fuzz.vocabulary.queue_pair.reading import MAXIMUM_SIZE
from ibwire.fuzz.vocabulary.queue_pair.script import CannotSay, script
from ibwire.fuzz.vocabulary.reading import read_script
from ibwire.fuzz.vocabulary.vocabularies import role_of

HEADING = "A case of ibwire fuzz: what the device gets, and nothing of what it answers."


def case_text(case: Case) -> str:
    """A case as the text of a file, without what is expected."""
    try:
        write = manager_script if role_of(case) is Role.CM else script
        text = write(case, None, HEADING)
        return text if says(text, case) else to_json(case)
    except (CannotSay, CaseError):
        return to_json(case)


def says(text: str, case: Case) -> bool:
    """Whether a script, read as a case, does the same on the reference as this case."""
    try:
        found = read_script(text.encode(), "case.drill")
        is_alike = (found.profile, found.choices) == (case.profile, dict(case.choices))
        return is_alike and _results(found) == _results(case)
    except (CaseError, ScriptError, RunsAway):
        return False


def parse_case(content: bytes, path: str, wanted: str | None = None) -> Case:
    """Read a case; raises `CaseError` or `ScriptError` with the place.

    wanted: which case of the table of a script.
    """
    if len(content) > MAXIMUM_SIZE:
        raise CaseError(f"{path}: longer than {MAXIMUM_SIZE} bytes")
    if not content.lstrip().startswith(b"{"):
        return read_script(content, path, wanted)
    if wanted is not None:
        raise CaseError(f"{path}: JSON has one case, and no names of cases")
    try:
        return from_json(content.decode(), path)
    except UnicodeDecodeError as error:
        raise CaseError(f"{path}: no text: {error.reason} at byte {error.start}") from None


def file_name(stem: str, text: str) -> str:
    """The name of the file for the text of a case."""
    return f"{stem}.json" if text.startswith("{") else f"{stem}.drill"


def case_file(directory: Path, stem: str) -> Path:
    """The file of a case in the directory of a finding.

    A case about connection management has a script beside its JSON. Raises `CaseError` for
    another directory, such as that of a run.
    """
    for name in (f"{stem}.json", f"{stem}.drill"):
        if (directory / name).exists():
            return directory / name
    raise CaseError(f"{directory}: no {stem}.drill; expected a finding of a run, such as DIR/F0001")


def _results(case: Case) -> tuple[list[Frame], list[Completion], list[int]]:
    """What the reference sends, completes and raises, without its times."""
    frames: list[Frame] = []
    completions: list[Completion] = []
    events: list[int] = []
    carry_out = managed_moments if role_of(case) is Role.CM else moments
    for moment in carry_out(case, profile_of(case.profile, case.choices)):
        frames += [frame for _, frame in moment.answers]
        completions += moment.completions
        events += moment.events
    return frames, completions, events
