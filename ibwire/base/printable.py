"""Text from outside without characters that control a terminal.

A comment in a capture, a file name or the answer of a peer may contain escape sequences: they
would move the cursor, set the title or the clipboard, or show other words than there are.
"""

from __future__ import annotations

import os
import re


def printable(text: str) -> str:
    r"""The text with each control character as an escape such as `\x1b` or `\u202e`.

    Newlines and tabs stay. Control characters are those of ASCII, C1 (U+0080 to U+009F, also
    as a single byte in a file name), and those that change the direction of text.
    """
    return _CONTROL.sub(_escape, text)


def printable_line(text: str) -> str:
    r"""As `printable`, on one line: newlines and tabs are `\n` and `\t`."""
    return printable(text).replace("\n", "\\n").replace("\t", "\\t")


def _escape(found: re.Match[str]) -> str:
    number = ord(found[0])
    if _BYTES <= number < _BYTES + 256:  # a byte of a file name that is not UTF-8
        number -= _BYTES
    return f"\\x{number:02x}" if number < 256 else f"\\u{number:04x}"


_BYTES = 0xDC00
"""Surrogates that stand for bytes begin here (`surrogateescape`, PEP 383)."""

_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # Unicode annex 9: directional formatting
    "\u2028\u2029"  # line and paragraph separator
    "\ud800-\udfff]"
)


def readable(path: str) -> str:
    """A path as text that can be encoded: names of files may be any bytes."""
    return os.fspath(path).encode("utf-8", "surrogateescape").decode("utf-8", "replace")
