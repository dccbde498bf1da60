"""Rows of a query as text: a table for people, tab-separated, CSV, JSON lines."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

Row = Sequence[Any]
"""Plain Python values: numbers, texts, truth values, lists and dictionaries of them, `None`."""


def rows_of(batch: Any) -> Iterator[Row]:
    """The rows of a `pyarrow.RecordBatch`; times keep their nanoseconds, as text."""
    return zip(*(_plain_column(column) for column in batch.columns), strict=True)


def json_lines(names: Sequence[str], batches: Iterable[Any]) -> Iterator[str]:
    """One object per row; the first of several columns with the same name keeps it."""
    keys = _distinct(names)
    for batch in batches:
        for row in rows_of(batch):
            yield json.dumps(dict(zip(keys, map(_jsonable, row), strict=True)), ensure_ascii=False)


def csv_lines(names: Sequence[str], batches: Iterable[Any]) -> Iterator[str]:
    """Comma-separated values after a line with the names; empty for null."""
    line = io.StringIO()
    writer = csv.writer(line, lineterminator="")
    for row in _with_header(names, batches, _text):
        writer.writerow(row)
        yield line.getvalue()
        line.seek(0)
        line.truncate()


def text_lines(names: Sequence[str], batches: Iterable[Any]) -> Iterator[str]:
    """Tab-separated values after a line with the names; empty for null."""
    for row in _with_header(names, batches, _cell):
        yield "\t".join(row)


def table(names: Sequence[str], rows: Sequence[Row], width: int) -> Iterator[Table | Text]:
    """Text for a terminal of that width: a table, or one block per row if that is too wide."""
    cells = [[_cell(value) for value in row] for row in rows]
    heads = [_cell(name) for name in names]
    sizes = [max(map(cell_len, column)) for column in zip(heads, *cells, strict=True)]
    if sum(sizes) + len(_GAP) * (len(sizes) - 1) <= width:
        yield _across(heads, cells, rows)
        return
    margin = max(map(cell_len, heads))
    for number, row in enumerate(cells, 1):
        yield Text(f"row {number}", "bold")
        for head, cell in zip(heads, row, strict=True):
            if cell:
                yield Text(f"{_GAP}{head}{' ' * (margin - cell_len(head))}{_GAP}{cell}")


def _across(heads: Sequence[str], cells: Sequence[Sequence[str]], rows: Sequence[Row]) -> Table:
    shown = Table(box=None, pad_edge=False, padding=(0, len(_GAP), 0, 0))
    for index, head in enumerate(heads):
        numeric = all(isinstance(row[index], (int, float, Decimal, type(None))) for row in rows)
        shown.add_column(Text(head), justify="right" if numeric and rows else "left", no_wrap=True)
    for row in cells:
        shown.add_row(*map(Text, row))
    return shown


def _with_header(
    names: Sequence[str], batches: Iterable[Any], show: Callable[[Any], str]
) -> Iterator[list[str]]:
    yield [show(name) for name in names]
    for batch in batches:
        for row in rows_of(batch):
            yield [show(value) for value in row]


def _distinct(names: Sequence[str]) -> list[str]:
    keys: dict[str, None] = {}
    for name in names:
        key, count = name, 1
        while key in keys:
            count += 1
            key = f"{name}_{count}"
        keys[key] = None
    return list(keys)


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, dict)):
        return json.dumps(_jsonable(value), ensure_ascii=False)
    return str(value)


def _cell(value: Any) -> str:
    """A text on one line, without control characters for the terminal."""
    return _text(value).translate(_ESCAPES)


def _jsonable(value: Any) -> Any:
    match value:
        case list():
            return [_jsonable(each) for each in value]
        case dict():
            return {key: _jsonable(each) for key, each in value.items()}
        case float() if not math.isfinite(value):
            return None
        case Decimal():
            return float(value)
        case _:
            return value


def _plain_column(array: Any) -> list[Any]:
    kind = array.type
    if pa.types.is_dictionary(kind):
        return _plain_column(array.dictionary_decode())
    if kind.num_fields == 0 and any(test(kind) for test in _PLAIN):
        return list(array.to_pylist())
    return [_plain(value) for value in array]


def _plain(value: Any) -> Any:
    """A value of Arrow as a Python value."""
    kind = value.type
    if not value.is_valid:
        return None
    if pa.types.is_map(kind):
        return {_text(_plain(pair["key"])): _plain(pair["value"]) for pair in value.values}
    if pa.types.is_struct(kind):
        return {name: _plain(each) for name, each in value.items()}
    if pa.types.is_nested(kind):
        return [_plain(each) for each in value.values]
    if pa.types.is_interval(kind):
        months, days, nanoseconds = value.as_py()
        return f"{months} months {days} days {nanoseconds} ns"
    if pa.types.is_temporal(kind):
        return value.cast(pa.string()).as_py()
    plain = value.as_py()
    if isinstance(plain, Decimal):
        return int(plain) if kind.scale == 0 else plain
    if isinstance(plain, bytes):
        return plain.hex()
    return plain if isinstance(plain, (int, float, str)) else str(plain)


_PLAIN = (
    pa.types.is_integer,
    pa.types.is_floating,
    pa.types.is_boolean,
    pa.types.is_string,
    pa.types.is_large_string,
)

_GAP = "  "

_ESCAPES = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0))} | {
    ord("\t"): "\\t",
    ord("\n"): "\\n",
    ord("\r"): "\\r",
}
