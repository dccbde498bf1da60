"""Columns as Arrow tables and Parquet files; needs the extra `query`."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from ibwire.base.closing import Closing
from ibwire.base.errors import MissingExtra
from ibwire.base.output import Output
from ibwire.base.printable import readable
from ibwire.dissect.column import ByName, Kind
from ibwire.dissect.fields import FieldSpec
from ibwire.dissect.lines import cells_of

try:
    import pyarrow as pa
    import pyarrow.parquet as pq
except ImportError:
    raise MissingExtra("Arrow and Parquet output", "query") from None

Rows = npt.NDArray[np.int64]

ROW_GROUP = 1 << 16
"""Most packets, and most bytes, that are collected before a row group is written."""
ROW_GROUP_BYTES = 8 << 20

_TEXTS = (Kind.TEXT, Kind.MAC, Kind.IPV4, Kind.IPV6, Kind.STRING)


def to_table(columns: ByName, fields: Sequence[FieldSpec], rows: Rows | None = None) -> Any:
    """A `pyarrow.Table` of these fields, null where a packet does not have one.

    Words and addresses become dictionary-encoded strings, lists fixed-size lists,
    everything else unsigned integers; `frame.time_ns` is a signed 64-bit integer,
    `frame.time_epoch` a time in UTC and `frame.time_relative` a duration.
    """
    arrays = []
    for spec in fields:
        values, valid = columns.column(spec.name)
        if rows is not None:
            values, valid = values[rows], None if valid is None else valid[rows]
        arrays.append(_array(spec, values, valid))
    return pa.Table.from_arrays(arrays, schema=schema_of(fields))


def schema_of(fields: Sequence[FieldSpec]) -> Any:
    """The `pyarrow.Schema` of a table of these fields."""
    return pa.schema([(spec.name, _type_of(spec)) for spec in fields])


class ArrowFile(Closing):
    """Writes tables of one schema to a file; after an exception the file has no end.

    A subclass sets `_writer`, a `pyarrow.parquet.ParquetWriter` or one with its methods.
    """

    _writer: Any

    def close(self) -> None:
        """Write what waits, and the end of the file."""
        self._flush()
        self._writer.close()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
        else:
            self._writer.is_open = False  # else it writes the end of the file, which is discarded

    def _flush(self) -> None:
        """Write what waits."""
        raise NotImplementedError


class ParquetFile(ArrowFile):
    """Writes packets to a file as they come."""

    def __init__(self, target: Output, fields: Sequence[FieldSpec]) -> None:
        """Raises `OutputError` from all methods for a file that cannot be written."""
        self._fields = fields
        self._waiting: list[Any] = []
        self._writer = pq.ParquetWriter(
            target.file,
            schema_of(fields),
            # Measured: dictionaries for numbers cost a third more time for no smaller file.
            use_dictionary=[spec.name for spec in fields if spec.type.kind in _TEXTS],
            compression="snappy",
        )

    def write(self, columns: ByName, rows: Rows) -> None:
        """Append some packets of a chunk."""
        self._waiting.append(to_table(columns, self._fields, rows))
        rows_waiting = sum(table.num_rows for table in self._waiting)
        bytes_waiting = sum(table.nbytes for table in self._waiting)
        if rows_waiting >= ROW_GROUP or bytes_waiting >= ROW_GROUP_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._waiting:
            table = pa.concat_tables(self._waiting).unify_dictionaries()
            self._writer.write_table(table)
            self._waiting.clear()


def _type_of(spec: FieldSpec) -> Any:
    kind = spec.type.kind
    if kind in _TEXTS:
        return pa.dictionary(pa.int32(), pa.string())
    if spec.digits or kind is Kind.OCTETS:
        return pa.string()
    if kind is Kind.FLAG:
        return pa.bool_()
    if kind is Kind.SECONDS:
        since_epoch = spec.name == "frame.time_epoch"
        return pa.timestamp("ns", tz="UTC") if since_epoch else pa.duration("ns")
    if kind is Kind.LIST:
        # Not of a fixed size: pyarrow before 26 cannot read those from Parquet where one is null.
        return pa.list_(pa.uint16())
    if spec.name == "frame.time_ns":
        return pa.int64()
    sizes = {8: pa.uint8(), 16: pa.uint16(), 32: pa.uint32(), 64: pa.uint64()}
    return next(kind for size, kind in sizes.items() if spec.bits <= size)


def _array(spec: FieldSpec, values: npt.NDArray[Any], valid: npt.NDArray[np.bool_] | None) -> Any:
    absent = None if valid is None else ~valid
    kind = spec.type.kind
    if kind is Kind.TEXT:
        codes = pa.array(values.astype(np.int32), mask=absent)
        return pa.DictionaryArray.from_arrays(codes, list(spec.type.words))
    if kind in _TEXTS:
        return _dictionary(spec, values, absent)
    if spec.digits:
        texts = np.array([f"{value:0{spec.digits}x}" for value in values.tolist()], object)
        return pa.array(texts, pa.string(), mask=absent)
    if kind is Kind.OCTETS:
        return pa.array(list(cells_of(spec)(values)), pa.string(), mask=absent)
    if kind is Kind.LIST:
        count, width = values.shape
        return pa.ListArray.from_arrays(
            pa.array(np.arange(count + 1, dtype=np.int32) * width),
            pa.array(values.astype(np.uint16).ravel()),
            mask=None if absent is None else pa.array(absent),
        )
    typed = _type_of(spec)
    if kind is Kind.SECONDS:
        return pa.array(values, pa.int64(), mask=absent).cast(typed)
    # Arrow names its integers and its Booleans as NumPy does.
    return pa.array(values.astype(str(typed), copy=False), typed, mask=absent)


def _dictionary(
    spec: FieldSpec, values: npt.NDArray[Any], absent: npt.NDArray[np.bool_] | None
) -> Any:
    """Dictionary-encoded strings."""
    kind = spec.type.kind
    if kind is Kind.STRING:
        texts = {value: readable(value) for value in set(values.tolist())}
        names = [texts[value] for value in values.tolist()]
        return pa.array(names, pa.string(), mask=absent).dictionary_encode()
    if kind is Kind.IPV6:
        rows = np.ascontiguousarray(values).view("S16").ravel()
        encoded = pa.array(
            [row.ljust(16, b"\0") for row in rows.tolist()], pa.binary(), mask=absent
        )
    else:
        encoded = pa.array(values, mask=absent)
    encoded = encoded.dictionary_encode()
    distinct = encoded.dictionary.to_numpy(zero_copy_only=False)
    if kind is Kind.IPV6:
        distinct = np.frombuffer(b"".join(distinct), np.uint8).reshape(-1, 16)
    texts = pa.array(list(cells_of(spec)(distinct)), pa.string())
    return pa.DictionaryArray.from_arrays(encoded.indices, texts)
