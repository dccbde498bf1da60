"""Tables of a capture as Arrow batches and Parquet files; needs the extra `query`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ibwire.base.errors import MissingExtra
from ibwire.base.output import Output
from ibwire.connections import packets
from ibwire.connections.connection import Connection
from ibwire.connections.events import FlowEvent, FlowEventKind, Message
from ibwire.connections.flow import FlowKey, Flows
from ibwire.connections.tables import (
    CONNECTIONS,
    EVENTS,
    MESSAGES,
    PACKETS,
    TableColumn,
    TableSpec,
    Type,
)
from ibwire.dissect import FIELDS, Columns
from ibwire.dissect.lines import cells_of
from ibwire_layers import syndrome
from ibwire_layers.opcodes import Service
from ibwire_layers.syndrome import AckKind, NakCode

try:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from ibwire.dissect.arrow import ArrowFile, to_table
except ImportError:
    raise MissingExtra("Tables of a capture", "query") from None

ROW_GROUP = 1 << 15
"""Rows that are gathered before they are written, and the bytes that they may take."""
ROW_GROUP_BYTES = 16 << 20

Places = Mapping[FlowKey, tuple[int, int]]
"""Connection and direction of a flow."""

_ARROW = {
    Type.FLAG: pa.bool_(),
    Type.SMALL: pa.int16(),
    Type.INTEGER: pa.int32(),
    Type.BIG: pa.int64(),
    Type.WORD64: pa.uint64(),
    Type.REAL: pa.float64(),
    Type.TEXT: pa.string(),
    Type.NUMBERS: pa.list_(pa.int32()),
    Type.BIGS: pa.list_(pa.int64()),
    Type.TEXTS: pa.list_(pa.string()),
    Type.COUNTS: pa.map_(pa.string(), pa.int64()),
}


def schema_of(table: TableSpec, names: Sequence[str] | None = None) -> Any:
    """The `pyarrow.Schema` of a table, or of these columns of it; documents are in its metadata."""
    return pa.schema(
        [
            pa.field(column.name, _ARROW[column.type], metadata={"doc": column.doc})
            for column in table.columns
            if names is None or column.name in names
        ]
    )


class PacketBatches:
    """Makes rows of `packets` of a capture, chunk by chunk.

    names: the columns to make. places: needed for `connection` and `direction`.
    """

    def __init__(self, names: Sequence[str] | None = None, places: Places | None = None) -> None:
        self.schema = schema_of(PACKETS, names)
        self._places = places or {}
        self._flows = Flows()
        self._known: list[tuple[int, int]] = []
        """Connection and direction by flow, (0, 0) for those of no connection."""
        wanted = [column for column in PACKETS.columns if column.name in self.schema.names]
        self._plain = [column for column in wanted if column.field]
        self._made = [column.name for column in wanted if not column.field]

    def batch(self, columns: Columns) -> Any:
        """A `pyarrow.RecordBatch` with a row for each packet of a chunk."""
        arrays = self._read(columns)
        placed = self._place(columns) if {"connection", "direction"} & set(self._made) else None
        for name in self._made:
            if name == "file":
                arrays[name] = pa.repeat(columns.frames.source, columns.rows)
            elif name in ("connection", "direction"):
                assert placed is not None
                numbers = placed[:, int(name == "direction")]
                arrays[name] = pa.array(numbers, mask=placed[:, 0] == 0)
            else:
                arrays[name] = _MAKERS[name](columns)
        return pa.RecordBatch.from_arrays(
            [arrays[field.name].cast(field.type) for field in self.schema], schema=self.schema
        )

    def _read(self, columns: Columns) -> dict[str, Any]:
        """Columns that are fields."""
        table = to_table(columns, [FIELDS[column.field] for column in self._plain])
        return {
            column.name: array.combine_chunks()
            for column, array in zip(self._plain, table.columns, strict=True)
        }

    def _place(self, columns: Columns) -> npt.NDArray[np.int32]:
        """(n, 2) connection and direction of each packet, 0 for those that belong to none."""
        rows = packets.known(columns)
        flow = self._flows.numbers(columns, rows)
        for key in self._flows.keys[len(self._known) :]:
            self._known.append(self._places.get(key, (0, 0)))
        placed = np.zeros((columns.rows, 2), np.int32)
        if len(rows):
            placed[rows] = np.array(self._known, np.int32)[flow]
        return placed


def places_of(connections: Sequence[Connection]) -> dict[FlowKey, tuple[int, int]]:
    """Connection and direction by flow."""
    places = {}
    for connection in connections:
        for direction in (0, 1):
            sender, receiver = connection.ends[direction], connection.ends[1 - direction]
            if receiver.qpn is not None and connection.directions[direction].packets:
                service = connection.service
                src_qpn = sender.qpn if service is Service.UD else None
                key = FlowKey(sender.address, receiver.address, receiver.qpn, service, src_qpn)
                places[key] = connection.number, direction
    return places


class TableFile(ArrowFile):
    """A Parquet file of one table.

    Rows are written in groups: memory does not grow with the file.
    """

    def __init__(self, output: Output, table: TableSpec) -> None:
        self.rows = 0
        self._schema = schema_of(table)
        self._rows: list[tuple[object, ...]] = []
        self._batches: list[Any] = []
        self._waiting = 0
        self._bytes = 0
        self._writer = self._open(output)

    def _open(self, output: Output) -> Any:
        """What writes tables of Arrow to the file."""
        texts = [field.name for field in self._schema if pa.types.is_string(field.type)]
        # Measured: dictionaries for numbers cost a third more time for no smaller file.
        return pq.ParquetWriter(output.file, self._schema, use_dictionary=texts, compression="zstd")

    def add(self, row: tuple[object, ...]) -> None:
        """Append a row; its values are in the order of the table's columns."""
        self._rows.append(row)
        if len(self._rows) >= ROW_GROUP:
            self._turn()

    def write(self, batch: Any) -> None:
        """Append the rows of a `pyarrow.RecordBatch`."""
        self._batches.append(batch)
        self._waiting += batch.num_rows
        self._bytes += batch.nbytes
        if self._waiting >= ROW_GROUP or self._bytes >= ROW_GROUP_BYTES:
            self._flush()

    def close(self) -> None:
        """Write what waits, and the end of the table."""
        self._turn()
        super().close()

    def _turn(self) -> None:
        """Rows into a batch."""
        if self._rows:
            arrays = [
                pa.array(values, field.type)
                for values, field in zip(zip(*self._rows, strict=True), self._schema, strict=True)
            ]
            self._rows.clear()
            self.write(pa.RecordBatch.from_arrays(arrays, schema=self._schema))

    def _flush(self) -> None:
        if self._batches:
            self._writer.write_table(pa.Table.from_batches(self._batches))
            self.rows += self._waiting
            self._batches.clear()
            self._waiting = self._bytes = 0


class Exporter:
    """An observer that writes events and messages to files."""

    def __init__(self, source: str, messages: TableFile, events: TableFile) -> None:
        self._source = source
        self._messages = messages
        self._events = events
        self.disturbed: set[int] = set()
        """Numbers of the connections with events that incidents are made of."""

    def event(self, event: FlowEvent) -> None:
        """Append an event."""
        if event.kind not in (FlowEventKind.ECN_CE, FlowEventKind.CNP):
            self.disturbed.add(event.connection)
        self._events.add(_event_row(self._source, event))

    def message(self, message: Message) -> None:
        """Append a message."""
        self._messages.add(_message_row(self._source, message))


def _event_row(source: str, event: FlowEvent) -> tuple[object, ...]:
    values = {name: getattr(event, name) for name in EVENTS.names if name != "file"} | {
        "file": source
    }
    if event.kind is FlowEventKind.LOST:
        values["opcode"] = None
    if event.kind not in (FlowEventKind.NAK, FlowEventKind.RNR_NAK):
        values["code"] = None
    values["cause_number"] = event.cause_number or None
    values["last_number"] = event.last_number or event.number
    return tuple(values[name] for name in EVENTS.names)


def _message_row(source: str, message: Message) -> tuple[object, ...]:
    done = message.acked_number > 0
    is_timed = done and message.acked_ns >= message.first_ns
    computed = "file", "latency_ns"
    values = {name: getattr(message, name) for name in MESSAGES.names if name not in computed} | {
        "file": source,
        "acked_number": message.acked_number if done else None,
        "acked_ns": message.acked_ns if done else None,
        "latency_ns": message.acked_ns - message.first_ns if is_timed else None,
    }
    return tuple(values[name] for name in MESSAGES.names)


def connection_rows(source: str, connections: Sequence[Connection]) -> Iterator[tuple[object, ...]]:
    """Rows of `connections`, one for each direction in which packets were seen."""
    for connection in connections:
        for direction in (0, 1):
            if connection.directions[direction].packets or not (
                direction or connection.has_packets
            ):
                values = connection.to_json(direction) | {"file": source, "direction": direction}
                yield tuple(_value(values, column) for column in CONNECTIONS.columns)


def _value(values: Mapping[str, Any], column: TableColumn) -> object:
    value: Any = values
    for name in (column.field or column.name).split("."):
        value = value[name]
    if column.type is Type.TEXTS:
        return list(value)
    return list(value.items()) if column.type is Type.COUNTS else value


def _either(columns: Columns, *names: str) -> Any:
    """One number of several fields: the first that a packet has."""
    values = np.zeros(columns.rows, np.uint64)
    free = np.ones(columns.rows, np.bool_)
    for name in names:
        held = columns.valid(name) & free
        if held.any():
            values[held] = columns[name][held]
            free &= ~held
    return pa.array(values, mask=free)


_ADDRESSES = {
    "src": ("ip.src", "ipv6.src", "grh.sgid", "lrh.slid"),
    "dst": ("ip.dst", "ipv6.dst", "grh.dgid", "lrh.dlid"),
}


def _addresses(columns: Columns, names: Sequence[str]) -> Any:
    """The address of the highest layer that a packet has, as `flow.addresses` tells it."""
    words: list[str] = []
    index = np.full(columns.rows, -1, np.int32)
    for name in names:
        held = columns.valid(name) & (index < 0)
        if held.any():
            values = columns[name][held]
            distinct, inverse = np.unique(values, axis=0, return_inverse=True)
            index[held] = inverse.reshape(-1) + len(words)
            texts = cells_of(FIELDS[name])(distinct)
            words += [f"LID {text}" if name.startswith("lrh") else text for text in texts]
    return pa.DictionaryArray.from_arrays(
        pa.array(index, mask=index < 0), pa.array(words, pa.string())
    )


def _by_syndrome(words: Sequence[str | None]) -> Callable[[Columns], Any]:
    """A word for each syndrome byte."""

    def make(columns: Columns) -> Any:
        values, valid = columns["aeth.syndrome"], columns.valid("aeth.syndrome")
        index = pa.array(values.astype(np.int32), mask=~valid)
        return pa.array(words, pa.string()).take(index)

    return make


_ACK_KINDS = tuple(syndrome.kind(value).name for value in range(256))
_NAK_CODES = tuple(
    None
    if syndrome.kind(value) is not AckKind.NAK
    else NakCode(syndrome.code(value)).name
    if syndrome.code(value) in NakCode.__members__.values()
    else f"code {syndrome.code(value)}"
    for value in range(256)
)

_MAKERS: dict[str, Callable[[Columns], Any]] = {
    "src": lambda columns: _addresses(columns, _ADDRESSES["src"]),
    "dst": lambda columns: _addresses(columns, _ADDRESSES["dst"]),
    "dscp": lambda columns: _either(columns, "ip.dsfield.dscp", "ipv6.tclass.dscp"),
    "ecn": lambda columns: _either(columns, "ip.dsfield.ecn", "ipv6.tclass.ecn"),
    "va": lambda columns: _either(columns, "reth.va", "atomiceth.va"),
    "rkey": lambda columns: _either(columns, "reth.r_key", "atomiceth.r_key"),
    "icrc": lambda columns: _either(columns, "icrc"),
    "ack_kind": _by_syndrome(_ACK_KINDS),
    "nak_code": _by_syndrome(_NAK_CODES),
}
"""Columns that are not a single field."""
