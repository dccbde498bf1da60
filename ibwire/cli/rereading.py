"""Captures that are read more than once: their path and progress."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ibwire.base.errors import CaptureError
from ibwire.capture import CaptureReader
from ibwire.cli.sources import LONG
from ibwire.cli.terminal import console

STANDARD_INPUT = "standard input"


def spooled(name: str, directory: str) -> str:
    """The path to read a capture from: its own, or a copy in this directory for `-`.

    Raises `CaptureError` when standard input cannot be copied.
    """
    if name != "-":
        return name
    path = os.path.join(directory, "standard-input")
    if not os.path.exists(path):
        if sys.stdin is None:
            raise CaptureError(STANDARD_INPUT, None, "cannot be opened: it is closed")
        try:
            with open(path, "wb") as file:
                shutil.copyfileobj(sys.stdin.buffer, file)
        except OSError as error:
            reason = f"cannot be copied to a file: {(error.strerror or str(error)).lower()}"
            raise CaptureError(STANDARD_INPUT, None, reason) from None
    return path


@contextmanager
def progress(wanted: bool = True) -> Iterator[Callable[[CaptureReader], None]]:
    """The callback after each batch: a progress bar on a terminal, for long captures."""
    if not (wanted and sys.stderr.isatty()):
        yield lambda reader: None
        return
    from rich import progress as shown

    bar = shown.Progress(
        shown.TextColumn("{task.description}"),
        shown.BarColumn(),
        shown.DownloadColumn(),
        shown.TransferSpeedColumn(),
        console=console(stderr=True),
        transient=True,
    )
    task = bar.add_task("", visible=False)

    def tell(reader: CaptureReader) -> None:
        bar.update(
            task,
            description=os.path.basename(reader.path),
            total=reader.size,
            completed=reader.position,
            visible=(reader.size or 0) >= LONG,
        )

    with bar:
        yield tell
