"""One Construct per fixed header, and the parts shared by all grammars.

The structs are derived from the descriptions in `ibwire_layers`; a grammar
names each after its class in lower case (`bth`, `sidr_req`), and `HEADERS`
leads from the name back to the description. Construct has no type information,
so grammars and what they read are `Any`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import construct

from ibwire_layers import attributes, cm, headers, mad, outer, performance, records
from ibwire_layers.derive import construct_of
from ibwire_layers.errors import DecodeError, EncodeError, Fault
from ibwire_layers.schema import Bytes, Header

HEADERS: dict[str, type[Header]] = {
    name.lower(): value
    for module in (outer, headers, mad, attributes, records, performance, cm)
    for name, value in vars(module).items()
    if isinstance(value, type) and issubclass(value, Header) and value is not Header
}
"""Name of a struct in the grammars -> the description it is derived from."""

STRUCTS: dict[str, Any] = {name: construct_of(header) for name, header in HEADERS.items()}
"""Every fixed header as a Construct, by the same names."""

Annotation = tuple[str, int, int, Any]
"""Path of a field, byte offset of its first bit, bits, value."""


def name_of(header: type[Header]) -> str:
    """The name that grammars give to a header."""
    return header.__name__.lower()


def struct_of(header: type[Header]) -> Any:
    """The Construct of a header."""
    return STRUCTS[name_of(header)]


def named(header: type[Header]) -> Any:
    """The struct of a header under its name, as a part of a grammar."""
    return name_of(header) / struct_of(header)


def without(header: type[Header], skip: str) -> Any:
    """As `named`, but without the field `skip`."""
    return name_of(header) / construct_of(header, skip)


def tell(this: Any) -> int:
    """Offset in the bytes that are being read."""
    position: int = this._io.tell()
    return position


def left(this: Any) -> int:
    """Bytes that have not been read yet."""
    total: int = construct.stream_size(this._io)
    return total - tell(this)


def peek(this: Any, offset: int, count: int) -> int:
    """The number in `count` bytes, `offset` after the current one; -1 past the end."""
    here = tell(this)
    this._io.seek(here + offset)
    data = this._io.read(count)
    this._io.seek(here)
    return int.from_bytes(data) if len(data) == count else -1


def read(grammar: Any, data: Bytes, what: str) -> Any:
    """Parse; errors of Construct become `DecodeError`."""
    try:
        return grammar.parse(bytes(data))
    except construct.ConstructError as problem:
        raise DecodeError(Fault.TRUNCATED, what, len(data), str(problem)) from None


def write(grammar: Any, value: Any, what: str) -> bytes:
    """Build, with `EncodeError` for a value that does not fit the grammar."""
    try:
        built: bytes = grammar.build(value)
    except (construct.ConstructError, AttributeError, KeyError, TypeError, IndexError) as problem:
        raise EncodeError(what, value, f"a value that can be built: {problem}") from None
    return built


def parts(value: Any, offset: int = 0, path: str = "") -> Iterator[tuple[str, int, Any]]:
    """Path, byte offset and value of every header and every run of bytes, in wire order.

    A grammar leaves no gaps, so offsets are the sizes added up.
    """
    for name, part in value.items():
        if name.startswith("_") or part is None:
            continue
        here = f"{path}.{name}" if path else name
        if isinstance(part, list):
            runs = [(f"{here}[{index}]", item) for index, item in enumerate(part)]
        else:
            runs = [(here, part)]
        for where, item in runs:
            if isinstance(item, bytes):
                yield where, offset, item
                offset += len(item)
            elif name in HEADERS:
                yield where, offset, item
                offset += _size(HEADERS[name], item)
            else:
                yield from parts(item, offset, where)
                offset += sum(_extent(found) for found in parts(item, 0, where))


def annotate(value: Any, offset: int = 0) -> list[Annotation]:
    """Every field of a parsed container, in wire order; empty runs are left out."""
    rows: list[Annotation] = []
    for path, start, part in parts(value, offset):
        if isinstance(part, bytes):
            if part:
                rows.append((path, start, 8 * len(part), part))
            continue
        for field in HEADERS[_last(path)].FIELDS:
            if field.name in part:
                row = (f"{path}.{field.name}", start + field.offset // 8, field.size)
                rows.append((*row, part[field.name]))
    return rows


def _last(path: str) -> str:
    return path.rpartition(".")[2].partition("[")[0]


def _size(header: type[Header], value: Any) -> int:
    """Bytes of a header, which a grammar may have without its last field."""
    return sum(field.size for field in header.FIELDS if field.name in value) // 8


def _extent(found: tuple[str, int, Any]) -> int:
    path, _, part = found
    return len(part) if isinstance(part, bytes) else _size(HEADERS[_last(path)], part)
