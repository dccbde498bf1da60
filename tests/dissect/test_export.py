"""JSON, CSV and text say the same as the columns."""

import csv
import json
from decimal import Decimal
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from capture.handmade import enhanced, interface, option, section
from ibwire.dissect import FIELDS, export, read
from ibwire.dissect.column import Kind
from shipped_captures import each_capture

CAPTURES = Path(__file__).parents[2] / "captures"
ALL = list(FIELDS.values())


def everything(columns: Any) -> Any:
    return np.arange(columns.rows, dtype=np.int64)


def plain(spec: Any, value: Any) -> Any:
    """A value of a column as JSON should have it."""
    match spec.type.kind:
        case Kind.TEXT:
            return spec.type.words[value]
        case Kind.MAC:
            return value.item().to_bytes(6, "big").hex(":")
        case Kind.IPV4:
            return str(IPv4Address(value.item()))
        case Kind.IPV6:
            return str(IPv6Address(value.tobytes()))
        case Kind.LIST:
            return value.tolist()
        case Kind.STRING:
            return value
        case Kind.FLAG:
            return bool(value)
        case Kind.SECONDS:
            return value.item() / 10**9
    if spec.name == "cnp.reserved":
        return value.tobytes().hex()
    if spec.name in ("icrc", "vcrc"):
        return value.item().to_bytes({"icrc": 4, "vcrc": 2}[spec.name], "big").hex()
    return value.item()


@each_capture
def test_json_holds_exactly_what_the_columns_hold(path: Path) -> None:
    for columns in read(path):
        found = [json.loads(line) for line in export.json_lines(columns, ALL, everything(columns))]

        expected: list[Any] = [{} for _ in range(columns.rows)]
        for spec in ALL:
            valid = columns.valid(spec.name)
            for row in np.flatnonzero(valid):
                expected[row][spec.name] = plain(spec, columns[spec.name][row])
        assert found == expected


def cell_text(value: Any) -> Any:
    if isinstance(value, list):
        return " ".join(map(str, value))
    return json.dumps(value) if isinstance(value, bool) else str(value)


@each_capture
def test_csv_says_the_same_as_json(path: Path) -> None:
    for columns in read(path):
        rows = everything(columns)
        lines = export.json_lines(columns, ALL, rows)
        objects = (json.loads(line, parse_float=Decimal) for line in lines)
        cells = csv.reader(export.csv_lines(columns, ALL, rows))

        for one, other in zip(objects, cells, strict=True):
            assert len(other) == len(ALL)
            for spec, cell in zip(ALL, other, strict=True):
                value = one.get(spec.name, "")
                if spec.type.kind is Kind.SECONDS:
                    cell, value = cell.rstrip("0").rstrip("."), f"{value:f}".rstrip("0").rstrip(".")
                text = cell_text(value)
                assert (spec.name, cell) == (spec.name, text)


@each_capture
def test_text_has_a_cell_for_every_field(path: Path) -> None:
    for columns in read(path):
        for line in export.text_lines(columns, ALL, everything(columns)):
            assert line.count("\t") == len(ALL) - 1
            assert "\n" not in line


def test_chosen_rows_come_in_their_order() -> None:
    (columns,) = read(CAPTURES / "rcx-all-ops.pcap")
    rows = np.array([20, 3, 60])

    for make in (export.json_lines, export.csv_lines, export.text_lines):
        every = make(columns, ALL, everything(columns))
        assert make(columns, ALL, rows) == [every[row] for row in rows]
        assert make(columns, ALL, rows[:0]) == []


COMMENT = 'a "quoted", comma, \t tab\nline % percent é \\'


@pytest.fixture
def commented(tmp_path: Path) -> Any:
    path = tmp_path / "commented.pcapng"
    options = option(1, COMMENT.encode()) + option(0, b"")
    content = section() + interface() + enhanced(bytes(60), options=options) + enhanced(bytes(60))
    path.write_bytes(content)
    (columns,) = read(path)
    return columns


def test_a_comment_of_any_text_survives(commented: Any) -> None:
    fields = [FIELDS["frame.comment"], FIELDS["frame.number"]]
    rows = everything(commented)

    objects = [json.loads(line) for line in export.json_lines(commented, fields, rows)]
    lines = "\n".join(export.csv_lines(commented, fields, rows)).splitlines(keepends=True)
    text = export.text_lines(commented, fields, rows)

    assert objects == [{"frame.comment": COMMENT, "frame.number": 1}, {"frame.number": 2}]
    assert list(csv.reader(lines)) == [[COMMENT, "1"], ["", "2"]]
    assert [line.count("\t") for line in text] == [1, 1]
    assert not any("\n" in line for line in text)
