"""Arrow tables and Parquet files say the same as JSON."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from capture.handmade import pcap_header
from ibwire.base.errors import OutputError
from ibwire.base.output import Output
from ibwire.dissect import FIELDS, export, read
from shipped_captures import each_capture

pa = pytest.importorskip("pyarrow", reason="pyarrow not installed")
pq = pytest.importorskip("pyarrow.parquet", reason="pyarrow not installed")
arrow = pytest.importorskip("ibwire.dissect.arrow", reason="pyarrow not installed")

CAPTURES = Path(__file__).parents[2] / "captures"
PATHS = sorted(CAPTURES.glob("*.pcap*"))
ALL = list(FIELDS.values())


def objects(path: Path, fields: Any = ALL) -> Any:
    found: list[Any] = []
    for columns in read(path):
        rows = np.arange(columns.rows, dtype=np.int64)
        found += map(json.loads, export.json_lines(columns, fields, rows))
    return found


def present(table: Any) -> Any:
    """The rows of a table without what they do not have, times as JSON has them."""
    for name in ("frame.time_epoch", "frame.time_relative"):
        if name in table.column_names:
            at = table.column_names.index(name)
            seconds = [ns / 10**9 for ns in table[name].cast(pa.int64()).to_pylist()]
            table = table.set_column(at, name, pa.array(seconds))
    return [{k: v for k, v in row.items() if v is not None} for row in table.to_pylist()]


def write(path: Path, captures: list[Path], fields: Any = ALL) -> None:
    with Output(path) as output, arrow.ParquetFile(output, fields) as file:
        for capture in captures:
            for columns in read(capture):
                file.write(columns, np.arange(columns.rows, dtype=np.int64))


@each_capture
def test_parquet_read_back_equals_json(tmp_path: Path, path: Path) -> None:
    write(tmp_path / "out.parquet", [path])

    assert present(pq.read_table(tmp_path / "out.parquet")) == objects(path)


@pytest.mark.slow
def test_several_captures_in_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dictionaries of different captures are brought together, over several row groups."""
    monkeypatch.setattr(arrow, "ROW_GROUP", 100)
    write(tmp_path / "out.parquet", PATHS)

    expected = [row for path in PATHS for row in objects(path)]
    assert present(pq.read_table(tmp_path / "out.parquet")) == expected
    assert pq.ParquetFile(tmp_path / "out.parquet").num_row_groups > 1


def test_chosen_rows_and_fields() -> None:
    fields = [FIELDS["bth.psn"], FIELDS["ip.src"], FIELDS["macc.pfc.time"]]
    (columns,) = read(CAPTURES / "rcx-all-ops.pcap")
    table = arrow.to_table(columns, fields, np.array([15, 0]))

    assert table.to_pylist() == [
        {"bth.psn": 4099, "ip.src": "10.77.0.1", "macc.pfc.time": None},
        {"bth.psn": None, "ip.src": "10.77.0.1", "macc.pfc.time": None},
    ]


def test_types_of_columns() -> None:
    schema = arrow.schema_of(ALL)

    assert schema.field("frame.time_ns").type == pa.int64()
    assert schema.field("bth.psn").type == pa.uint32()
    assert schema.field("reth.va").type == pa.uint64()
    assert schema.field("bth.opcode_name").type == pa.dictionary(pa.int32(), pa.string())
    assert schema.field("macc.pfc.time").type == pa.list_(pa.uint16())
    assert schema.field("icrc").type == pa.string()
    assert schema.names == list(FIELDS)


def test_a_capture_without_packets_is_a_table_without_rows(tmp_path: Path) -> None:
    path = tmp_path / "none.pcap"
    path.write_bytes(pcap_header())
    write(tmp_path / "out.parquet", [path])

    table = pq.read_table(tmp_path / "out.parquet")
    assert (table.num_rows, table.column_names) == (0, list(FIELDS))


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
def test_a_full_disk_is_an_error_that_names_the_file() -> None:
    with (
        pytest.raises(OutputError, match="/dev/full: cannot be written: no space left on device"),
        Output("/dev/full") as output,
        arrow.ParquetFile(output, ALL),
    ):
        pass
