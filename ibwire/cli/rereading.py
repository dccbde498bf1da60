"""Captures that are read more than once: their path and progress."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ibwire.base.errors import CaptureError
from ibwire.capture import CaptureReader
from ibwire.cli.sources import LONG, Unreadable, expand
from ibwire.cli.terminal import console
from ibwire.connections.merge import in_order
from ibwire.dissect.captures import Captures

if TYPE_CHECKING:
    from rich import progress as shown

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


def as_one_capture(names: Sequence[str], directory: str) -> Captures:
    """Captures that are read as parts of one, several times, in the order of their packets.

    Raises `Unreadable` for standard input that cannot be copied to the directory.
    """
    try:
        paths = {spooled(name, directory): name for name in expand(names)}
    except CaptureError as error:
        raise Unreadable(str(error)) from None
    shown = {path: STANDARD_INPUT for path, name in paths.items() if name == "-"}
    return Captures(in_order(list(paths)), shown)


class Progress:
    """How much of some captures has been read; does nothing without a bar."""

    def __init__(self, bar: shown.Progress | None = None, names: Sequence[str] = ()) -> None:
        self._bar = bar
        self._sizes = {name: size_of(name) for name in names}
        self._done: set[str] = set()
        self._task = bar.add_task("", visible=False, total=None) if bar is not None else None

    def read(self, reader: CaptureReader) -> None:
        """Take the position of a reader, after each batch."""
        if reader.path in self._sizes:
            self._show(reader.path, sum(self._sizes.values()), reader.position)
        else:
            self._show(reader.path, reader.size, reader.position)

    def finished(self, name: str) -> None:
        """Take a capture as read, also one that another process has read."""
        self._done.add(name)
        self._show(name, sum(self._sizes.values()), 0)

    def _show(self, name: str, total: int | None, position: int) -> None:
        if self._bar is None or self._task is None:
            return
        before = sum(self._sizes.get(each, 0) for each in self._done)
        self._bar.update(
            self._task,
            description=os.path.basename(name),
            total=total,
            completed=before + position,
            visible=(total or 0) >= LONG,
        )


def size_of(name: str) -> int:
    """Bytes of a file; 0 for a pipe or a name without a file."""
    return os.path.getsize(name) if os.path.isfile(name) else 0


@contextmanager
def progress(names: Sequence[str] = (), wanted: bool = True) -> Iterator[Progress]:
    """A progress bar on a terminal, for long captures.

    names: captures that are read one after the other, once; none for one at a time.
    """
    if not (wanted and sys.stderr.isatty()):
        yield Progress()
        return
    from rich import progress as shown

    bar = shown.Progress(
        shown.TextColumn("{task.description}"),
        shown.BarColumn(),
        shown.DownloadColumn(),
        shown.TransferSpeedColumn(),
        console=console(stderr=True),
        transient=True,
        redirect_stdout=False,  # results are not part of the bar
    )
    with bar:
        yield Progress(bar, names)
