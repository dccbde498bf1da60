"""What came of a case: passed, or the line that failed with all that shows why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ibwire.base.errors import ScriptError
from ibwire.base.node import Frame
from ibwire.base.units import NS, US, Time
from ibwire.drill.language.tokens import Line

INTO, OUT_OF, APPLICATION = "<", ">", " "
"""Which way an entry of the time line goes."""


@dataclass(slots=True)
class Entry:
    """Something that happened."""

    time: Time
    way: str
    text: str
    line: int | None
    """Of the script, which did or expected it; `None` for what nobody expected."""
    frame: Frame | None = None
    is_expected: bool = True


@dataclass(frozen=True, slots=True)
class Failure:
    """A line of a script that a device did not fulfil."""

    line: Line
    expected: str
    got: str
    details: Sequence[str] = ()
    """In what they differ."""
    way: str = OUT_OF
    """Of what was expected."""


@dataclass(slots=True)
class Verdict:
    """What came of a case."""

    path: str
    case: str
    rule: str
    section: str
    profile: str
    entries: list[Entry] = field(default_factory=list)
    failure: Failure | None = None
    skipped: str = ""
    """Why it was not carried out, or not to its end."""
    is_lost: bool = False
    """Whether that is because the device was lost before."""

    @property
    def passed(self) -> bool:
        """Whether the device did everything that it should."""
        return self.failure is None and not self.skipped

    def forget_packets(self) -> None:
        """Give the memory of the packets back; what is told about them stays."""
        for entry in self.entries:
            entry.frame = None

    @property
    def name(self) -> str:
        """Script and case."""
        return f"{self.path} [{self.case}]" if self.case else self.path


class CaseError(ScriptError):
    """A mistake of a script that shows when a case is carried out: a number that does not fit."""

    def __init__(self, case: str, error: ScriptError) -> None:
        self.case = case
        """Empty in a script without a table."""
        reason = f"{error.reason} (case {case})" if case else error.reason
        super().__init__(error.path, error.line, error.column, reason)


def report(verdict: Verdict) -> str:
    """A failure for a reader: what was to happen, what did, and everything before it."""
    failure = verdict.failure
    if failure is None:
        return "\n".join(time_line(verdict))
    lines = [f"{verdict.path}:{failure.line.number}: {failure.line.text.strip()}"]
    if verdict.case:
        lines.append(f"  case      {verdict.case}")
    lines += [f"  expected  {failure.expected}", f"  got       {failure.got}"]
    lines += [f"            {detail}" for detail in failure.details]
    rule = [line for line in verdict.rule.split("\n") if line]
    for label, text in zip(["rule", *[""] * len(rule)], rule, strict=False):
        lines.append(f"  {label:9} {text}")
    if verdict.section:
        lines.append(f"  see       {verdict.section}")
    lines += [f"  profile   {verdict.profile}", ""]
    lines += time_line(verdict)
    return "\n".join(lines)


def time_line(verdict: Verdict) -> list[str]:
    """Everything that happened, with its time in microseconds and its line of the script.

    `<` is what the device received and `>` what it sent. A failure ends it as two sides do:
    `-` is what was expected, `+` what came in its place.
    """
    shown = verdict.entries
    omitted = len(shown) - _MOST_ENTRIES
    lines = [f"  {'time/us':>14}  {'line':>4}"]
    if omitted > 0:
        lines.append(f"  {f'... {omitted} before':>14}")
        shown = shown[omitted:]
    told = False
    for entry in shown:
        number = "" if entry.line is None else str(entry.line)
        mark = " " if entry.is_expected else "+"
        if not entry.is_expected and verdict.failure is not None and not told:
            told = True
            failure = verdict.failure
            lines.append(f"- {'':14}  {failure.line.number:>4}  {failure.way} {failure.expected}")
        lines.append(f"{mark} {_time(entry.time):>14}  {number:>4}  {entry.way} {entry.text}")
    return lines


def _time(time: Time) -> str:
    return f"{time // US}.{time % US // NS:03}"


_MOST_ENTRIES = 60
