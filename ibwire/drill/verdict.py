"""The result of a case: passed, skipped, or the line that failed and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ibwire.base.errors import ScriptError
from ibwire.base.node import Frame
from ibwire.base.units import NS, US, Time
from ibwire.drill.language.tokens import Line

INTO, OUT_OF, APPLICATION = "<", ">", " "
"""The direction of an entry of the time line."""


@dataclass(slots=True)
class Entry:
    """Something that happened."""

    time: Time
    way: str
    text: str
    line: int | None
    """Number of the script line that did or expected it; `None` if no line did."""
    frame: Frame | None = None
    is_expected: bool = True


@dataclass(frozen=True, slots=True)
class Failure:
    """A line of a script whose expectation a device did not meet."""

    line: Line
    expected: str
    got: str
    details: Sequence[str] = ()
    """The differences between the two."""
    way: str = OUT_OF
    """The direction of the expected packet."""

    @property
    def is_absence(self) -> bool:
        """Whether what was expected did not come, which a link that is late can cause."""
        return self.got in ("nothing", "no completion", "no event")


@dataclass(slots=True)
class Verdict:
    """The result of a case."""

    path: str
    case: str
    rule: str
    section: str
    profile: str
    entries: list[Entry] = field(default_factory=list)
    failure: Failure | None = None
    skipped: str = ""
    """Why the case did not run, or not to its end."""
    is_lost: bool = False
    """Whether the device was lost before the case."""

    @property
    def passed(self) -> bool:
        """Whether every line of the case was met."""
        return self.failure is None and not self.skipped

    def forget_packets(self) -> None:
        """Drop the frames to save memory; the lines about them stay."""
        for entry in self.entries:
            entry.frame = None

    @property
    def name(self) -> str:
        """Script and case."""
        return f"{self.path} [{self.case}]" if self.case else self.path


class CaseError(ScriptError):
    """An error of a script found while a case runs: a number that does not fit its field."""

    def __init__(self, case: str, error: ScriptError) -> None:
        self.case = case
        """Empty in a script without a table."""
        reason = f"{error.reason} (case {case})" if case else error.reason
        super().__init__(error.path, error.line, error.column, reason)


def report(verdict: Verdict) -> str:
    """A failure as text: the expected and the received packet, and everything before."""
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
    """Every event of a case, with its time in microseconds and its line of the script.

    `<` marks packets to the device, `>` packets from it. A failure ends the list like a diff:
    `-` is what the line expected, `+` what happened instead.
    """
    shown = verdict.entries
    omitted = len(shown) - _MOST_ENTRIES
    lines = [f"  {'time/us':>14}  {'line':>4}"]
    if omitted > 0:
        lines.append(f"  {f'... {omitted} before':>14}")
        shown = shown[omitted:]
    is_shown = False
    for entry in shown:
        number = "" if entry.line is None else str(entry.line)
        mark = " " if entry.is_expected else "+"
        if not entry.is_expected and verdict.failure is not None and not is_shown:
            is_shown = True
            failure = verdict.failure
            lines.append(f"- {'':14}  {failure.line.number:>4}  {failure.way} {failure.expected}")
        lines.append(f"{mark} {_time(entry.time):>14}  {number:>4}  {entry.way} {entry.text}")
    return lines


def _time(time: Time) -> str:
    return f"{time // US}.{time % US // NS:03}"


_MOST_ENTRIES = 60
