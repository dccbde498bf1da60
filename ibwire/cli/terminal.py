"""The terminal: nothing but our own styles reaches it with control characters.

Standard error always has text for people, so it is always escaped. Standard output is escaped on
a terminal; in a file or a pipe data keep their values.
"""

from __future__ import annotations

import io
import os
import re
import sys
from collections.abc import Iterable
from typing import IO, TYPE_CHECKING, Any, NoReturn, cast

import click

from ibwire.base.errors import OutputError
from ibwire.base.printable import printable

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer
    from rich.console import Console


class TerminalText(io.TextIOWrapper):
    """A text stream that escapes control characters, except those of `style`."""

    def write(self, text: str, /) -> int:
        """Write text, escaped."""
        parts = _OWN_STYLE.split(text.replace("\r\n", "\n"))
        # Text and parameters of a style take turns.
        shown = (f"\x1b[{part}m" if n % 2 else printable(part) for n, part in enumerate(parts))
        super().write("".join(shown))
        return len(text)

    def write_raw(self, text: str) -> int:
        """Write text that is known to be safe, as it is."""
        return super().write(text)

    @property
    def buffer(self) -> Any:
        """Where bytes are written: not to a terminal."""
        return _NoBytes() if self.isatty() else super().buffer


def guard_errors() -> None:
    """Let everything that goes to standard error be escaped, until the process ends.

    Also the traceback of an unexpected exception, which is printed at the very end.
    """
    before = sys.stderr
    try:
        raw = io.FileIO(before.fileno(), "w", closefd=False)
    except (AttributeError, io.UnsupportedOperation, OSError, ValueError):
        return  # it is closed, or no file, as in tests
    if not isinstance(before, TerminalText):
        before.flush()
        sys.stderr = TerminalText(
            cast(Any, raw), before.encoding, "backslashreplace", write_through=True
        )


def style(text: str, **styles: Any) -> str:
    """Text in a colour or bold on a terminal, as `click.style`; the text itself is escaped."""
    styled = click.style(printable(text), **styles)
    return _STYLE.sub(lambda found: f"\x1b[{_KEY};{found[1]}m", styled)


def hanging(line: str, indent: int) -> str:
    """A line that continues behind `indent` spaces where a terminal is too narrow for it."""
    if not sys.stdout.isatty():
        return line
    width = terminal_width()
    whole = line.replace("-", "\1")  # names with hyphens stay whole
    return click.wrap_text(whole, width, subsequent_indent=" " * indent).replace("\1", "-")


def terminal_width() -> int:
    """Columns of the terminal."""
    import shutil

    return shutil.get_terminal_size().columns


def console(*, stderr: bool = False, **options: Any) -> Console:
    """A console of rich on standard output or standard error that escapes what it is given."""
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment

    class Escaping(Console):
        def render(
            self, renderable: RenderableType, options: ConsoleOptions | None = None
        ) -> Iterable[Segment]:
            for segment in super().render(renderable, options):
                if segment.control is None:
                    yield Segment(printable(segment.text), segment.style)
                else:
                    yield segment

    stream = sys.stderr if stderr else sys.stdout
    if isinstance(stream, TerminalText):
        return Escaping(file=cast(IO[str], _Raw(stream)), **options)
    return Escaping(stderr=stderr, **options)


class _Raw:
    """A stream for a console, which has escaped its text already and adds its own sequences."""

    def __init__(self, stream: TerminalText) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        return self._stream.write_raw(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class _NoBytes(io.RawIOBase):
    """In place of a terminal, for bytes."""

    def write(self, data: ReadableBuffer, /) -> NoReturn:
        raise OutputError("standard output", "is a terminal: bytes need a file or a pipe")

    def writable(self) -> bool:
        return True


_KEY = str(10**17 + int.from_bytes(os.urandom(7)))
"""Parameter of our own styles, which text from outside cannot know."""

_STYLE = re.compile(r"\x1b\[([0-9;]*)m")
_OWN_STYLE = re.compile(rf"\x1b\[{_KEY};([0-9;]*)m")
