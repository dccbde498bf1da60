"""First pass over a capture for the page of `ibwire report`: what all packets show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ibwire.connections.pause import Pauses
from ibwire.connections.summary import Summary
from ibwire.diagnosis.story import FileStart
from ibwire.dissect import Columns
from ibwire.rules.conformance import Conformance
from ibwire.rules.findings import ANY, Finding
from ibwire.rules.status_notes import status_notes

MOST_COMMENTS = 200


@dataclass(slots=True)
class Surveyed:
    """Results of the first pass."""

    name: str
    """Of the capture."""
    start_ns: int
    """Time of its first frame, from which times count."""
    summary: Summary
    findings: list[Finding]
    pauses: Pauses
    comments: list[tuple[int, str]]
    """Of packets, by number."""
    all_comments: int
    is_whole: bool = True
    """The capture could be read to its end."""
    files: Sequence[FileStart] = ()
    """Where there are several files: where each but the first begins."""


class Survey:
    """First pass over a capture.

    profile: implementation whose habits are not findings, see `findings.PROFILES`.
    rate_bps: of the link, for the times of pauses.
    """

    def __init__(self, name: str, profile: str = ANY, rate_bps: int | None = None) -> None:
        self._name = name
        self._start_ns: int | None = None
        self._judged = Conformance(profile)
        self._pauses = Pauses(rate_bps)
        self._comments: list[tuple[int, str]] = []
        self.frames = 0
        """Taken so far."""
        self._all_comments = 0

    def take(self, columns: Columns) -> None:
        """Take the next chunk of the capture."""
        batch = columns.frames.batch
        if self._start_ns is None and columns.rows:
            self._start_ns = int(batch.time_ns[0])
        self.frames += columns.rows
        for row, comments in sorted(batch.comments.items()):
            self._all_comments += len(comments)
            room = MOST_COMMENTS - len(self._comments)
            self._comments += [(row + batch.first_number, text) for text in comments[:room]]
        self._judged.take(columns)
        self._pauses.take(columns)

    def finish(self, is_whole: bool = True) -> Surveyed:
        """End of the capture."""
        findings = self._judged.finish(self._name)
        findings += status_notes(self._name, self._judged.summary.connections)
        return Surveyed(
            name=self._name,
            start_ns=self._start_ns or 0,
            summary=self._judged.summary,
            findings=findings,
            pauses=self._pauses,
            comments=self._comments,
            all_comments=self._all_comments,
            is_whole=is_whole,
        )
