"""A capture as its tables, in Parquet files or one batch after the other."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from ibwire.base.errors import CaptureError
from ibwire.base.output import Output, make_directory
from ibwire.base.printable import readable
from ibwire.capture import CaptureReader, open_capture
from ibwire.connections.analysis import Analysis
from ibwire.connections.arrow import Exporter, PacketBatches, Places, TableFile, connection_rows
from ibwire.connections.arrow import places_of as _places_of
from ibwire.connections.tables import (
    CONNECTIONS,
    EVENTS,
    INCIDENTS,
    MESSAGES,
    PACKETS,
    TABLES,
    TableSpec,
)
from ibwire.diagnosis.incident_rows import incident_rows
from ibwire.dissect import Columns

ANALYSED = MESSAGES.name, EVENTS.name, CONNECTIONS.name
"""Tables that are made together, when the connections are followed."""


class CaptureTables:
    """The tables of one capture.

    path: of a file that can be read more than once. shown: what stands for it in
    the tables. progress: called after each batch. Damage ends the tables where it is,
    and is kept in `damage`.
    """

    def __init__(
        self,
        path: str,
        shown: str | None = None,
        progress: Callable[[CaptureReader], None] = lambda reader: None,
    ) -> None:
        self.path = path
        self.shown = readable(shown or path)
        self.damage: CaptureError | None = None
        self.is_stopped = False
        """Set to end reading, in whatever thread it is; the tables are of no use then."""
        self._progress = progress
        self.problems: list[str] = []
        """What `analyse` has found wrong with the capture itself, as sentences."""
        self.is_rdma = False
        """Whether `analyse` has found an RDMA packet."""
        self._places: Places | None = None
        self._disturbed: set[int] = set()
        """Connections that may have incidents, once the capture is analysed."""
        self.is_diagnosed = False
        """Whether `diagnose` has been called."""

    @property
    def is_analysed(self) -> bool:
        """Whether the connections of packets are known."""
        return self._places is not None

    def analyse(
        self,
        outputs: Mapping[str, Output],
        new_file: Callable[[Output, TableSpec], TableFile] = TableFile,
    ) -> None:
        """Follow the connections, and write each of `ANALYSED` to its output."""
        with ExitStack() as stack:
            files = {
                name: stack.enter_context(new_file(output, TABLES[name]))
                for name, output in outputs.items()
            }
            exporter = Exporter(self.shown, files[MESSAGES.name], files[EVENTS.name])
            analysis = Analysis(exporter)
            for columns in self._read():
                analysis.take(columns)
            summary = analysis.finish()
            self.is_rdma = summary.packets > 0
            self.problems = summary.all_problems()
            connections = summary.connections
            for row in connection_rows(self.shown, connections):
                files[CONNECTIONS.name].add(row)
        self._places = _places_of(connections)
        self._disturbed = exporter.disturbed

    def diagnose(
        self,
        output: Output,
        new_file: Callable[[Output, TableSpec], TableFile] = TableFile,
    ) -> None:
        """Write the table `incidents`; `analyse` was called before.

        Connections with events are followed packet by packet, which takes longer than to count
        them. A capture without such connections is not read again.
        """
        with new_file(output, INCIDENTS) as file:
            if self._disturbed:
                for row in incident_rows(self.shown, self._read(), self._disturbed):
                    file.add(row)
        self.is_diagnosed = True

    def packets(self, names: Sequence[str] | None = None) -> Iterator[Any]:
        """Batches (`pyarrow.RecordBatch`) of the table `packets`, or of these columns of it.

        `connection` and `direction` are null unless `analyse` was called before.
        """
        batches = PacketBatches(names, self._places)
        for columns in self._read():
            yield batches.batch(columns)

    def _read(self) -> Iterator[Columns]:
        try:
            with open_capture(self.path, reuse=True) as reader:
                for batch in reader.batches():
                    if self.is_stopped:
                        return
                    yield Columns(batch, self.shown)
                    self._progress(reader)
        except CaptureError as error:
            self.damage = CaptureError(self.shown, error.offset, error.reason)


def export(
    capture: CaptureTables,
    directory: str,
    name: str,
    new_file: Callable[[Output, TableSpec], TableFile] = TableFile,
    ending: str = "parquet",
) -> None:
    """Write all tables of a capture to DIRECTORY/TABLE/NAME.parquet, or with another ending.

    They appear together when all are complete. Raises `OutputError` for a file that cannot be
    written.
    """
    with ExitStack() as stack:
        outputs = {}
        for table in TABLES:
            place = os.path.join(directory, table)
            make_directory(place)
            path = os.path.join(place, f"{name}.{ending}")
            outputs[table] = stack.enter_context(Output(path))
        capture.analyse({table: outputs[table] for table in ANALYSED}, new_file)
        capture.diagnose(outputs[INCIDENTS.name], new_file)
        with new_file(outputs[PACKETS.name], PACKETS) as file:
            for batch in capture.packets():
                file.write(batch)
        for output in outputs.values():
            output.input_failed = capture.damage is not None
