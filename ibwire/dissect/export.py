"""Columns as lines for programs: one JSON object per packet, CSV, tab-separated text."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ibwire.dissect.column import Kind
from ibwire.dissect.columns import Columns
from ibwire.dissect.fields import FieldSpec
from ibwire.dissect.lines import Cells, Piece, assemble, cells_of

Rows = npt.NDArray[np.int64]

_QUOTED = (Kind.TEXT, Kind.MAC, Kind.IPV4, Kind.IPV6, Kind.OCTETS)


def json_lines(columns: Columns, fields: Sequence[FieldSpec], rows: Rows) -> list[str]:
    """One flat object per row, without the fields that its packet does not have."""
    pieces = [Piece("{")]
    for spec in fields:
        values, valid = columns.column(spec.name)
        if valid is not None and not valid.any():
            continue
        cells = _json_strings if spec.type.kind is Kind.STRING else cells_of(spec)
        pieces.append(Piece(f'"{spec.name}":{_json_conversion(spec)},', ((values, cells),), valid))
    return [f"{line.rstrip(',')}}}" for line in assemble(pieces, rows)]


def csv_lines(columns: Columns, fields: Sequence[FieldSpec], rows: Rows) -> list[str]:
    """Comma-separated values, empty where a packet does not have a field, lists with spaces."""
    return _separated(columns, fields, rows, ",", _csv_cells)


def text_lines(columns: Columns, fields: Sequence[FieldSpec], rows: Rows) -> list[str]:
    """Tab-separated values for people: hexadecimal for fields that people read so."""
    return _separated(columns, fields, rows, "\t", _text_cells)


def _separated(
    columns: Columns,
    fields: Sequence[FieldSpec],
    rows: Rows,
    separator: str,
    cells: Callable[[FieldSpec], Cells],
) -> list[str]:
    texts: list[Iterable[Any]] = []
    for spec in fields:
        values, valid = columns.column(spec.name)
        found = cells(spec)(values[rows])
        if valid is not None:
            held = valid[rows].tolist()
            found = (cell if has else "" for cell, has in zip(found, held, strict=True))
        texts.append(found)
    line = separator.join(["%s"] * len(fields))
    return [line % row for row in zip(*texts, strict=True)]


def _json_conversion(spec: FieldSpec) -> str:
    if spec.digits:
        return f'"%0{spec.digits}x"'
    return '"%s"' if spec.type.kind in _QUOTED else "%s"


def _json_strings(values: npt.NDArray[Any]) -> Iterable[str]:
    return map(json.dumps, values.tolist())


def _csv_cells(spec: FieldSpec) -> Cells:
    if spec.digits:
        return _digits(f"%0{spec.digits}x")
    if spec.type.kind is Kind.LIST:
        return lambda values: (" ".join(map(str, row)) for row in values.tolist())
    if spec.type.kind is Kind.STRING:
        return lambda values: ('"' + text.replace('"', '""') + '"' for text in values.tolist())
    return cells_of(spec)


def _text_cells(spec: FieldSpec) -> Cells:
    if spec.type.kind is Kind.STRING:  # tabs and line ends as escapes
        return lambda values: (text.encode("unicode_escape").decode() for text in values.tolist())
    if spec.type.kind is Kind.HEX and not spec.digits:
        return _digits("0x%x")
    return _csv_cells(spec)


def _digits(text: str) -> Cells:
    return lambda values: map(text.__mod__, values.tolist())
