"""Captures named on a command line: opened in turn, errors reported, not raised."""

from __future__ import annotations

import glob
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING

import click

from ibwire.base.errors import CaptureError
from ibwire.capture import CaptureReader, RecordBatch, open_capture
from ibwire.cli.messages import print_error
from ibwire.cli.terminal import console

if TYPE_CHECKING:
    from rich.progress import Progress

UNREADABLE = 3
"""Exit status when some input could not be read to its end."""

LONG = 64 << 20
"""Least input bytes for a progress bar."""


class Unreadable(click.ClickException):
    """The input cannot be read at all."""

    exit_code = UNREADABLE


class Sources:
    """The batches of several captures; `failed` is set when one was damaged."""

    def __init__(self, names: Sequence[str], progress: bool) -> None:
        self.names = expand(names)
        self.failed = False
        size = sum(os.path.getsize(name) for name in self.names if os.path.isfile(name))
        self._bar = _progress() if progress and size >= LONG else None
        self._task = self._bar.add_task("", total=size) if self._bar else None

    @property
    def has_bar(self) -> bool:
        """Whether a progress bar is shown while `batches` is read."""
        return self._bar is not None

    def batches(self) -> Iterator[tuple[CaptureReader, RecordBatch]]:
        """Every batch with the reader it comes from; damage ends a capture, not the loop.

        A batch is valid until the next one.
        """
        with self._bar or nullcontext():
            for name in self.names:
                try:
                    with open_capture(name, reuse=True) as capture:
                        yield from self._batches_of(capture)
                except CaptureError as error:
                    sys.stdout.flush()
                    print_error(error)
                    self.failed = True

    def _batches_of(self, capture: CaptureReader) -> Iterator[tuple[CaptureReader, RecordBatch]]:
        position = 0
        for batch in capture.batches():
            if self._bar and self._task is not None:
                self._bar.update(
                    self._task,
                    advance=capture.position - position,
                    description=os.path.basename(capture.path),
                )
                position = capture.position
            yield capture, batch


def expand(names: Sequence[str]) -> list[str]:
    """All named files; a pattern that the shell did not expand is expanded here."""
    return [name for given in names for name in _expand(given)]


def _expand(name: str) -> list[str]:
    if name == "-" or os.path.exists(name) or not glob.has_magic(name):
        return [name]
    return sorted(glob.glob(name)) or [name]


def _progress() -> Progress:
    from rich import progress as shown

    return shown.Progress(
        shown.TextColumn("{task.description}"),
        shown.BarColumn(),
        shown.DownloadColumn(),
        shown.TransferSpeedColumn(),
        shown.TimeRemainingColumn(),
        console=console(stderr=True),
        transient=True,
        redirect_stdout=False,  # results are not part of the bar
    )
