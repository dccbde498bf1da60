"""Line and column of the keys and values of a TOML document, which `tomllib` does not give.

The document must be one that `tomllib` has read: the scanner only finds where keys
begin and values end, and interprets nothing but quotes and brackets.
"""

from __future__ import annotations

import re
import tomllib
from bisect import bisect_right
from dataclasses import dataclass, field

KeyPath = tuple[str | int, ...]
"""The way from the top of a document to a value: keys, and numbers in arrays."""


@dataclass(slots=True)
class Positions:
    """Line and column, from 1, of what a path leads to."""

    keys: dict[KeyPath, tuple[int, int]] = field(default_factory=dict)
    """Of the key itself; of an element of an array, of its value or its [[header]]."""
    values: dict[KeyPath, tuple[int, int]] = field(default_factory=dict)
    """Of the value, after the equals sign."""

    def key(self, path: KeyPath) -> tuple[int, int]:
        """Of a key; of the nearest table around it when the document does not have it."""
        while path and path not in self.keys:
            path = path[:-1]
        return self.keys.get(path, (1, 1))

    def value(self, path: KeyPath) -> tuple[int, int]:
        """Of a value; of its key when it is a table with a header."""
        return self.values.get(path) or self.key(path)


def find_positions(text: str) -> Positions:
    """The positions in a document that `tomllib` can read."""
    scanner = _Scanner(text)
    scanner.scan()
    return scanner.positions


class _Scanner:
    def __init__(self, text: str) -> None:
        self.positions = Positions()
        self._text = text
        self._at = 0
        self._lines = [0, *(found.end() for found in re.finditer("\n", text))]
        self._tables: dict[KeyPath, int] = {}
        """Arrays of tables with headers, and how many elements each has so far."""

    def scan(self) -> None:
        """Read statement by statement."""
        table: KeyPath = ()
        while self._skip(_BETWEEN_STATEMENTS):
            if self._text.startswith("[", self._at):
                table = self._header()
            else:
                self._pair(table)

    def _header(self) -> KeyPath:
        is_array = self._text.startswith("[[", self._at)
        start = self._at
        self._at += 2 if is_array else 1
        table: KeyPath = ()
        parts = self._key()
        for index, (part, own) in enumerate(parts):
            table = (*table, part)
            self.positions.keys.setdefault(table, self._place(own))
            if table in self._tables or (is_array and index == len(parts) - 1):
                if is_array and index == len(parts) - 1:
                    self._tables[table] = self._tables.get(table, 0) + 1
                table = (*table, self._tables[table] - 1)
                self.positions.keys.setdefault(table, self._place(start))
        self._at += 2 if is_array else 1
        return table

    def _pair(self, table: KeyPath) -> None:
        for part, start in self._key():
            table = (*table, part)
            self.positions.keys.setdefault(table, self._place(start))
        self._at += 1  # the equals sign
        self._value(table)

    def _key(self) -> list[tuple[str, int]]:
        """The parts of a dotted key and where each begins; ends after it and its spaces."""
        parts = []
        while True:
            self._skip(_SPACES)
            start = self._at
            if self._text[start] in "\"'":
                self._string()
                # Escapes are tomllib's business.
                part = tomllib.loads(f"key = {self._text[start : self._at]}")["key"]
            else:
                self._skip(_BARE_KEY)
                part = self._text[start : self._at]
            parts.append((part, start))
            self._skip(_SPACES)
            if not self._text.startswith(".", self._at):
                return parts
            self._at += 1

    def _value(self, path: KeyPath) -> None:
        self._skip(_SPACES)
        self.positions.values[path] = self._place(self._at)
        first = self._text[self._at]
        if first in "\"'":
            self._string()
        elif first == "[":
            self._array(path)
        elif first == "{":
            self._inline_table(path)
        else:
            self._skip(_PLAIN_VALUE)

    def _array(self, path: KeyPath) -> None:
        self._at += 1
        index = 0
        while True:
            self._skip(_BETWEEN_ELEMENTS)
            if self._text[self._at] == "]":
                self._at += 1
                return
            element = (*path, index)
            self.positions.keys[element] = self._place(self._at)
            self._value(element)
            index += 1

    def _inline_table(self, path: KeyPath) -> None:
        self._at += 1
        while True:
            self._skip(_BETWEEN_ELEMENTS)
            if self._text[self._at] == "}":
                self._at += 1
                return
            self._pair(path)

    def _string(self) -> None:
        for pattern in _STRINGS:
            found = pattern.match(self._text, self._at)
            if found:
                self._at = found.end()
                return

    def _skip(self, pattern: re.Pattern[str]) -> bool:
        """Skip what matches; returns whether any text is left."""
        found = pattern.match(self._text, self._at)
        if found:
            self._at = found.end()
        return self._at < len(self._text)

    def _place(self, offset: int) -> tuple[int, int]:
        line = bisect_right(self._lines, offset)
        return line, offset - self._lines[line - 1] + 1


_SPACES = re.compile(r"[ \t]*")
_COMMENT = r"#[^\n]*"
_BETWEEN_STATEMENTS = re.compile(rf"(?:[ \t\r\n]|{_COMMENT})*")
_BETWEEN_ELEMENTS = re.compile(rf"(?:[ \t\r\n,]|{_COMMENT})*")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]*")
_PLAIN_VALUE = re.compile(r"[^,\]}#\r\n]*")
# Up to two quotes may stand right before the three that end a string (TOML 1.0, String).
_STRINGS = (
    re.compile(r'"""(?:\\.|[^\\])*?"""(?:"{0,2})', re.DOTALL),
    re.compile(r"'''.*?'''(?:'{0,2})", re.DOTALL),
    re.compile(r'"(?:\\.|[^"\\])*"'),
    re.compile(r"'[^']*'"),
)
