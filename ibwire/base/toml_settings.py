"""Values that replace those of a TOML file: `wire.rate=25G`, `node[a].profile=rxe`.

A key is the way from the top of the document, with dots. In an array of tables it stands for
all of them, or with [0] or [name] for one.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ibwire.base.errors import EncodeError
from ibwire.base.toml_positions import KeyPath


@dataclass(frozen=True, slots=True)
class Setting:
    """One value for one key."""

    key: str
    """As it was written."""
    text: str
    """The value, as it was written."""

    @property
    def value(self) -> Any:
        """The value as TOML; text that is no TOML is a string."""
        return parse_value(self.text)

    def apply(self, data: dict[str, Any]) -> list[KeyPath]:
        """Put the value into a document; returns the paths that it has got there.

        Raises `EncodeError` for a key that does not fit the document.
        """
        parts = _parts(self.key)
        places: list[tuple[KeyPath, dict[str, Any]]] = [((), data)]
        for name, index in parts[:-1]:
            places = [
                each for path, table in places for each in self._into(path, table, name, index)
            ]
        name, index = parts[-1]
        if index is not None:
            raise EncodeError("key", self.key, "a key that ends with a name, not with an index")
        for _, table in places:
            table[name] = self.value
        return [(*path, name) for path, _ in places]

    def _into(
        self, path: KeyPath, table: dict[str, Any], name: str, index: str | None
    ) -> Iterator[tuple[KeyPath, dict[str, Any]]]:
        value = table.setdefault(name, {})
        if isinstance(value, dict) and index is None:
            yield (*path, name), value
            return
        if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
            what = "an array of tables" if index is not None else "a table"
            raise EncodeError("key", self.key, f"a way through tables, and {name} is not {what}")
        found = [
            (number, each)
            for number, each in enumerate(value)
            if index is None or index in (str(number), each.get("name"))
        ]
        if not found:
            raise EncodeError(
                "key", self.key, f"an index or a name of {name}, which has {len(value)}"
            )
        for number, each in found:
            yield (*path, name, number), each


def parse_setting(text: str) -> Setting:
    """KEY=VALUE; raises `EncodeError`."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip() or not value.strip():
        raise EncodeError("setting", text, "KEY=VALUE, such as wire.rate=25G")
    _parts(key.strip())
    return Setting(key.strip(), value.strip())


def parse_values(text: str) -> tuple[str, tuple[str, ...]]:
    """The key and the values of KEY=VALUE,VALUE,...; raises `EncodeError`.

    Commas in brackets and in quotation marks belong to a value.
    """
    setting = parse_setting(text)
    values = [each.strip() for each in _split(setting.text)]
    if "" in values:
        raise EncodeError("setting", text, "KEY=VALUE,VALUE,... without an empty value")
    if len(set(values)) < len(values):
        raise EncodeError("setting", text, "KEY=VALUE,VALUE,... with each value once")
    return setting.key, tuple(values)


def parse_value(text: str) -> Any:
    """A value as TOML has it; what TOML does not have, such as 25G, is a string."""
    try:
        found = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):  # a TOMLDecodeError is a ValueError
        return text
    return found["value"] if len(found) == 1 else text


def _parts(key: str) -> list[tuple[str, str | None]]:
    """Names with the index of each, if it has one."""
    found = [_PART.fullmatch(part) for part in key.split(".")]
    parts = [(each["name"], each["index"]) for each in found if each is not None]
    if len(parts) < len(found):
        raise EncodeError("key", key, "names with dots, such as wire.rate or node[a].profile")
    return parts


def _split(text: str) -> list[str]:
    """The parts between commas outside of brackets and quotation marks."""
    parts, start, depth, quote = [], 0, 0, ""
    for at, character in enumerate(text):
        if quote:
            quote = "" if character == quote else quote
        elif character in "\"'":
            quote = character
        elif character in "[{":
            depth += 1
        elif character in "]}":
            depth -= 1
        elif character == "," and depth <= 0:
            parts.append(text[start:at])
            start = at + 1
    return [*parts, text[start:]]


_PART = re.compile(r"(?P<name>[\w-]+)(?:\[(?P<index>[\w-]+)\])?")
