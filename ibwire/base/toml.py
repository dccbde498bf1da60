"""A TOML file as tables that are read key by key, with errors that name line and column.

Every error is a `ScriptError` with line, column and key. A table records which keys
were read: `end` reports the others as unknown.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Callable, Iterable, Sequence
from importlib.resources.abc import Traversable
from typing import Any, TypeVar

from ibwire.base.errors import EncodeError, ScriptError
from ibwire.base.quantities import parse_duration, parse_rate
from ibwire.base.toml_positions import KeyPath, Positions, find_positions
from ibwire.base.toml_settings import Setting
from ibwire.base.units import Time

MAXIMUM_SIZE = 1 << 16
"""Bytes of a file."""

MAXIMUM_LINE = 1000
"""Characters of a line: `tomllib` takes minutes for a key of many thousand parts."""

T = TypeVar("T")


def read_content(file: Traversable) -> bytes:
    """The content of a file, at most one byte more than allowed; raises `ScriptError`."""
    try:
        with file.open("rb") as opened:
            return opened.read(MAXIMUM_SIZE + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ScriptError(str(file), None, None, reason) from None


class Document:
    """A parsed file, whose name is for messages only.

    settings: values in place of those in the file; an error in one of them names its key.
    """

    def __init__(self, content: bytes, name: str, settings: Iterable[Setting] = ()) -> None:
        self.name = name
        self._set: dict[KeyPath, str] = {}
        """Where values are not those of the file, with the key that was given."""
        if len(content) > MAXIMUM_SIZE:
            raise ScriptError(name, None, None, f"it is too long: more than {MAXIMUM_SIZE} bytes")
        text = _decoded(content, name)
        for number, line in enumerate(text.split("\n"), 1):
            if len(line) > MAXIMUM_LINE:
                reason = f"a line of {len(line)} characters, at most {MAXIMUM_LINE}"
                raise ScriptError(name, number, MAXIMUM_LINE + 1, reason)
        try:
            self._data = tomllib.loads(text)
            self.positions: Positions = find_positions(text)
        except tomllib.TOMLDecodeError as error:
            raise _syntax_error(error, text, name) from None
        except RecursionError:
            raise ScriptError(name, None, None, "nested too deeply") from None
        except ValueError as error:  # a number with thousands of digits, an invalid date
            raise ScriptError(name, None, None, str(error)) from None
        for setting in settings:
            try:
                self._set |= dict.fromkeys(setting.apply(self._data), setting.key)
            except EncodeError as error:
                raise ScriptError(name, None, None, reason_of(error)) from None

    @property
    def top(self) -> Table:
        """The whole document."""
        return Table(self, (), self._data)

    def error(self, path: KeyPath, reason: str, *, at_key: bool = False) -> ScriptError:
        """An error about a value, or about a key as such."""
        for place, key in self._set.items():
            shared = min(len(place), len(path))
            is_new = path not in self.positions.keys and path not in self.positions.values
            if path and place[:shared] == path[:shared] and (shared == len(place) or is_new):
                return ScriptError(self.name, None, None, f"{key}, which was set: {reason}")
        line, column = self.positions.key(path) if at_key else self.positions.value(path)
        return ScriptError(self.name, line, column, f"{dotted(path)}: {reason}" if path else reason)


class Table:
    """A table of the document; each `take_*` reads a key, `default` stands for one not given."""

    def __init__(self, document: Document, path: KeyPath, data: dict[str, Any]) -> None:
        self.path = path
        self._document = document
        self._data = data
        self._known: list[str] = []

    def __contains__(self, key: str) -> bool:
        return key in self._data

    def names(self) -> list[str]:
        """The keys that are given."""
        return list(self._data)

    def error(self, key: str | None, reason: str) -> ScriptError:
        """An error about a value of this table, or about the table."""
        if key is None:
            return self._document.error(self.path, reason, at_key=True)
        return self._document.error((*self.path, key), reason)

    def error_at(self, path: KeyPath, reason: str, *, at_key: bool = False) -> ScriptError:
        """An error about a nested value or key, whose path begins at the top."""
        return self._document.error(path, reason, at_key=at_key)

    def take(self, key: str) -> Any:
        """The value as it is, `None` if it is not given."""
        self._known.append(key)
        return self._data.get(key)

    def take_int(self, key: str, default: T, low: int, high: int) -> int | T:
        """An integer in a range."""
        value = self.take(key)
        return default if value is None else self.integer(key, value, low, high)

    def integer(self, key: str, value: object, low: int, high: int) -> int:
        """A value as an integer in a range."""
        if not isinstance(value, int) or isinstance(value, bool):
            raise self.error(key, f"{shown(value)} is not an integer")
        if not low <= value <= high:
            raise self.error(key, f"{value} is not from {low} to {high}")
        return value

    def take_number(self, key: str, default: float, low: float, high: float) -> float:
        """A number in a range, with a fraction or without."""
        value = self.take(key)
        if value is None:
            return default
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise self.error(key, f"{shown(value)} is not a number")
        if not low <= value <= high:
            raise self.error(key, f"{value} is not from {low} to {high}")
        return float(value)

    def take_bool(self, key: str, default: bool) -> bool:
        """True or false."""
        value = self.take(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.error(key, f"{shown(value)} is neither true nor false")
        return value

    def take_text(self, key: str, default: T) -> str | T:
        """A string that is not empty."""
        value = self.take(key)
        if value is None:
            return default
        if not isinstance(value, str) or not value:
            raise self.error(key, f"{shown(value)} is not a name")
        return value

    def take_name(self, key: str, default: T, names: Iterable[str]) -> str | T:
        """One of several strings."""
        value = self.take(key)
        return default if value is None else self.name(key, value, names)

    def name(self, key: str, value: object, names: Iterable[str]) -> str:
        """A value as one of several strings."""
        names = list(names)
        if not isinstance(value, str) or value not in names:
            near = f"; did you mean {close}?" if (close := closest(value, names)) else ""
            raise self.error(key, f"{shown(value)} is not one of {listed(names)}{near}")
        return value

    def take_time(self, key: str, default: Time) -> Time:
        """A time with a unit, in picoseconds."""
        return self._parsed(key, default, parse_duration)

    def take_rate(self, key: str, default: int) -> int:
        """A rate with a unit, in bits a second."""
        return self._parsed(key, default, parse_rate)

    def take_size(self, key: str, default: T, low: int, high: int) -> int | T:
        """Bytes: an integer, or a string such as "64 KiB"."""
        value = self.take(key)
        return default if value is None else self.size(key, value, low, high)

    def size(self, key: str, value: object, low: int, high: int) -> int:
        """A value as bytes in a range."""
        try:
            return self.integer(key, parse_size(value), low, high)
        except EncodeError as error:
            raise self.error(key, reason_of(error)) from None

    def table(self, key: str) -> Table | None:
        """A table inside."""
        value = self.take(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.error(key, f"{shown(value)} is not a table")
        return Table(self._document, (*self.path, key), value)

    def tables(self, key: str) -> list[Table]:
        """An array of tables inside; a single table is an array of one."""
        value = self.take(key)
        if value is None:
            return []
        if isinstance(value, dict):
            return [Table(self._document, (*self.path, key), value)]
        if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
            raise self.error(
                key, f"{shown(value)} is not a table: write [[{dotted(self.path, key)}]]"
            )
        return [
            Table(self._document, (*self.path, key, index), each)
            for index, each in enumerate(value)
        ]

    def absent(self, key: str) -> Table:
        """An empty table in the place of a missing one."""
        return Table(self._document, (*self.path, key), {})

    def leaves(self) -> Iterable[tuple[KeyPath, str, Any]]:
        """Every value below, with its path and its dotted key from here."""
        yield from _leaves(self._data, self.path, "")

    def end(self) -> None:
        """Raise an error for a key that was not read."""
        for key in self._data:
            if key not in self._known:
                raise self._document.error(
                    (*self.path, key), "unknown" + hint(key, self._known), at_key=True
                )

    def _parsed(self, key: str, default: int, parse: Callable[[object], int]) -> int:
        value = self.take(key)
        if value is None:
            return default
        try:
            return parse(value)
        except EncodeError as error:
            raise self.error(key, reason_of(error)) from None


def parse_size(value: object) -> int:
    """Bytes of 4096, "64 KiB" or "1 MiB"; `EncodeError` for anything else."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    found = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    if found is None:
        raise EncodeError("size", value, "bytes such as 4096 or 64 KiB")
    return int(found["number"]) * _SIZE_UNITS[found["unit"]]


def dotted(path: KeyPath, *more: str) -> str:
    """A path as it is written in TOML."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in (*path, *more))
    return text.removeprefix(".")


def shown(value: object) -> str:
    """A value for a message."""
    if isinstance(value, dict):
        return "a table"
    if isinstance(value, list):
        return "an array"
    if isinstance(value, bool):
        return "true" if value else "false"
    text = repr(value) if isinstance(value, str) else str(value)
    return text if len(text) <= 60 else f"{text[:60]}..."


def hint(name: str, known: Iterable[str]) -> str:
    """A suggestion for a misspelled name, or else the known names."""
    known = sorted(set(known))
    close = closest(name, known)
    return f"; did you mean {close}?" if close else f"; expected {listed(known)}"


def closest(name: object, known: Sequence[str]) -> str | None:
    """The known name that a misspelled one is nearest to, if any is near."""
    close = difflib.get_close_matches(name, known, 1) if isinstance(name, str) else []
    return close[0] if close else None


def listed(names: Sequence[str]) -> str:
    """Names for a message; only the first of many."""
    if len(names) <= _MOST_LISTED:
        return ", ".join(names)
    return f"{', '.join(names[:_FEW])} or {len(names) - _FEW} others"


def _leaves(data: dict[str, Any], path: KeyPath, name: str) -> Iterable[tuple[KeyPath, str, Any]]:
    for key, value in data.items():
        here = f"{name}.{key}" if name else key
        if isinstance(value, dict):
            yield from _leaves(value, (*path, key), here)
        else:
            yield (*path, key), here, value


def reason_of(error: EncodeError) -> str:
    """What is wrong with a value, without its field: errors of tables begin with the key."""
    return str(error).removeprefix(f"{error.field}: ")


def _decoded(content: bytes, name: str) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        before = content[: error.start]
        line = before.count(b"\n") + 1
        column = len(before[before.rfind(b"\n") + 1 :].decode(errors="replace")) + 1
        raise ScriptError(name, line, column, "not UTF-8") from None


def _syntax_error(error: tomllib.TOMLDecodeError, text: str, name: str) -> ScriptError:
    """Line and column are in the message only, until Python 3.14."""
    message = str(error)
    found = _AT.search(message)
    if found is None:
        return ScriptError(name, None, None, message)
    if found["line"]:
        line, column = int(found["line"]), int(found["column"])
    else:
        line = text.count("\n") + 1
        column = len(text) - text.rfind("\n")
    reason = message[: found.start()]
    written = text.split("\n")[line - 1] if line <= text.count("\n") + 1 else ""
    bare = _BARE.fullmatch(written)
    # A mistake behind a right value is another one: a key that is given twice.
    is_of_value = reason.startswith(("Invalid value", "Expected newline"))
    if is_of_value and bare is not None and column > bare.start("value"):
        reason = f'text stands in quotation marks: "{bare["value"].strip()}"'
    return ScriptError(name, line, column, reason)


_MOST_LISTED = 12
_FEW = 6
_AT = re.compile(r" \(at (?:line (?P<line>\d+), column (?P<column>\d+)|end of document)\)$")
_BARE = re.compile(
    r"\s*[\w.\"'-]+\s*=\s*(?P<value>(?:[A-Za-z_/]|\d[\d.]*\s*[A-Za-z/%])[^\"'{}#=,]*)(?:#.*)?"
)
"""A key with a value that is text without quotation marks."""
_SIZE_UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "kB": 10**3, "MB": 10**6}
_SIZE = re.compile(rf"(?P<number>\d{{1,12}})\s*(?P<unit>{'|'.join(_SIZE_UNITS)})", re.ASCII)
