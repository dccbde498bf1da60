"""A drill script as a case, about queue pairs or about connection management."""

from __future__ import annotations

from ibwire.drill.language.steps import is_about_management
from ibwire.fuzz.case import Case
from ibwire.fuzz.vocabulary.cm.reading import ManagerReader
from ibwire.fuzz.vocabulary.queue_pair.reading import Reader, read_steps


def read_script(content: bytes, path: str, wanted: str | None = None) -> Case:
    """The case in a drill script; raises `CaseError` or `ScriptError` with the line.

    wanted: which case of a table.
    """
    case, steps = read_steps(content, path, wanted)
    reader = ManagerReader if is_about_management(steps) else Reader
    return reader(path, case).read(steps)
