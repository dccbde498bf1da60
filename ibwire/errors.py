"""Every exception type of the package.

Peers' errors are values, not exceptions: what a packet did wrong is a `Fault`.
"""

from __future__ import annotations

from ibwire_layers.errors import DecodeError, EncodeError, Fault, IbwireError

__all__ = [
    "CaptureError",
    "DecodeError",
    "EncodeError",
    "ExpressionError",
    "Fault",
    "IbwireError",
    "MissingExtra",
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
