"""Every exception type of the package.

Peers' errors are values, not exceptions: what a packet did wrong is a `Fault`.
"""

from __future__ import annotations

import errno as codes
import os

from ibwire_layers.errors import DecodeError, EncodeError, Fault, IbwireError

__all__ = [
    "CaptureError",
    "DecodeError",
    "EncodeError",
    "ExpressionError",
    "Fault",
    "IbwireError",
    "LinkError",
    "MissingExtra",
    "MissingValueError",
    "OldResultKept",
    "OutputError",
    "PeerError",
    "QueryError",
    "ScriptError",
    "TooManyFrames",
    "VerbsError",
    "WorkError",
]


class CaptureError(IbwireError):
    """A capture file that cannot be read, or cannot be read further.

    offset: byte of the file, after decompression, where reading stopped; `None`
    when it did not get that far.
    """

    def __init__(self, path: str, offset: int | None, reason: str) -> None:
        self.path = path
        self.offset = offset
        self.reason = reason
        where = path if offset is None else f"{path}: byte {offset}"
        super().__init__(f"{where}: {reason}")


class OutputError(CaptureError):
    """A file that cannot be written, a capture or any other result."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, None, reason)


class OldResultKept(OutputError):
    """A result of an input that could not be read to its end does not replace an older one."""

    def __init__(self, path: str) -> None:
        reason = "left as it was, because an input could not be read to its end; use a new name"
        super().__init__(path, reason)


class ExpressionError(IbwireError):
    """A filter expression that cannot be read; `column` counts from 0."""

    def __init__(self, text: str, column: int, reason: str) -> None:
        self.text = text
        self.column = column
        self.reason = reason
        super().__init__(f"{reason}\n  {text}\n  {' ' * column}^")


class MissingExtra(IbwireError):
    """A feature whose optional dependency is not installed."""

    def __init__(self, feature: str, extra: str) -> None:
        self.extra = extra
        super().__init__(f"{feature} needs an optional package: pip install 'ibwire[{extra}]'")


class QueryError(IbwireError):
    """SQL that cannot be run; the text is DuckDB's."""


class VerbsError(IbwireError):
    """A verb that fails as the real one would: `errno` is its error number."""

    def __init__(self, errno: int, reason: str) -> None:
        self.errno = errno
        self.reason = reason
        name = codes.errorcode.get(errno, str(errno))
        super().__init__(f"{reason} ({name}: {os.strerror(errno)})")


class ScriptError(IbwireError):
    """A scenario or drill script that cannot be read; `line` and `column` count from 1."""

    def __init__(self, path: str, line: int | None, column: int | None, reason: str) -> None:
        self.path = path
        self.line = line
        self.column = column
        self.reason = reason
        where = ":".join(str(part) for part in (path, line, column) if part is not None)
        super().__init__(f"{where}: {reason}")


class LinkError(IbwireError):
    """A link that cannot be opened or used."""

    def __init__(self, link: str, reason: str) -> None:
        self.link = link
        self.reason = reason
        super().__init__(f"{link}: {reason}")


class NoResponse(LinkError):
    """A host that does not respond to ARP or neighbour discovery."""


class MissingValueError(EncodeError):
    """A required value that is not given."""

    def __init__(self, field: str, reason: str = "is required") -> None:
        IbwireError.__init__(self, f"{field} {reason}")
        self.field = field
        self.value = None


class WorkError(IbwireError):
    """Work that other processes or machines cannot finish."""


class TooManyFrames(IbwireError):
    """A network with more frames on their way than memory should hold."""


class PeerError(IbwireError):
    """A peer that is silent, gone, refuses, or sends something unreadable."""
