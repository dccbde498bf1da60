"""Several captures as one: each is analysed by itself, and joined to the one before.

Files of one capture point follow each other in time, and an open connection continues
from one to the next. The results are the same in one process, several or a cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from ibwire.base.errors import CaptureError
from ibwire.capture import CaptureReader, open_capture
from ibwire.connections.analysis import Analysis
from ibwire.connections.observer import Observer
from ibwire.connections.summary import Summary
from ibwire.dissect import Columns

if TYPE_CHECKING:
    from ibwire.base.work import Work


class Part(NamedTuple):
    """What one file holds."""

    path: str
    analysis: Analysis
    damage: str | None
    """Why the file could not be read to its end."""


Tell = Callable[[CaptureReader], None]
"""Receives a reader after each of its batches, for progress."""


def analyse(
    paths: Sequence[str],
    work: Work | None = None,
    *,
    rate_bps: int | None = None,
    tell: Tell | None = None,
    finished: Callable[[str], None] | None = None,
) -> tuple[Summary, list[str]]:
    """The connections of all captures together, and what could not be read of them.

    The files are taken in the order of their first packets. work: where it is done, in this
    process by default. rate_bps: of the link, for the times of pause frames. tell: called after
    each batch that this process reads; finished: with each file that has been read.
    """
    is_part = len(paths) > 1
    task = partial(_analyse_one, is_part=is_part, rate_bps=rate_bps)
    if work is None:
        task = partial(task, tell=tell)
    whole: Analysis | None = None
    damage = []
    for part in (work or map)(task, in_order(paths)):
        if finished is not None:
            finished(part.path)
        if part.damage:
            damage.append(part.damage)
        if whole is None:
            whole = part.analysis
        else:
            whole.merge(part.analysis)
    return (whole or Analysis()).finish(), damage


def _analyse_one(
    path: str, *, is_part: bool, rate_bps: int | None, tell: Tell | None = None
) -> Part:
    analysis = Analysis(is_part=is_part, rate_bps=rate_bps, source=path)
    damage = None
    try:
        feed(analysis, path, tell)
    except CaptureError as error:
        damage = str(error)
    if is_part:
        analysis.flush()
    return Part(path, analysis, damage)


def follow(path: str, observer: Observer) -> Summary:
    """Analyse one capture; the observer receives its events and messages, or every packet."""
    analysis = Analysis(observer, source=path)
    feed(analysis, path)
    return analysis.finish()


def feed(analysis: Analysis, path: str, tell: Tell | None = None) -> None:
    """Give all of a capture to an analysis. Raises `CaptureError` at damage."""
    with open_capture(path, reuse=True) as capture:
        for batch in capture.batches():
            analysis.take(Columns(batch, capture.path))
            if tell is not None:
                tell(capture)


def in_order(paths: Sequence[str]) -> list[str]:
    """Captures in the order of their first packets; what cannot be read comes first."""
    if len(paths) < 2:
        return list(paths)
    return sorted(paths, key=_first_ns)


def _first_ns(path: str) -> int:
    if path == "-":
        return 0
    try:
        with open_capture(path, chunk_size=1 << 16) as capture:
            for batch in capture.batches():
                if len(batch):
                    return int(batch.time_ns[0])
    except CaptureError:
        pass  # reported when the file is read
    return 0
