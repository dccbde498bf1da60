"""Tables of a capture as CSV or JSON lines, in place of Parquet."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import IO, Any

from ibwire.base.output import Output
from ibwire.connections.arrow import TableFile
from ibwire.report.rows import csv_lines, json_lines

Lines = Callable[[Sequence[str], Iterable[Any]], Iterator[str]]


class CSVFile(TableFile):
    """Comma-separated values with a header."""

    def _open(self, output: Output) -> Any:
        return _Writer(output.text, self._schema.names, csv_lines, header=1)


class JSONFile(TableFile):
    """One JSON object per row."""

    def _open(self, output: Output) -> Any:
        return _Writer(output.text, self._schema.names, json_lines, header=0)


class _Writer:
    """Writes lines with the methods of `pyarrow.parquet.ParquetWriter`.

    header: lines that `make` begins with, which are written once.
    """

    is_open = True

    def __init__(self, stream: IO[str], names: Sequence[str], make: Lines, header: int) -> None:
        self._stream = stream
        self._names = names
        self._make = make
        self._header = header
        self._is_begun = False

    def write_table(self, table: Any) -> None:
        """Write the rows of a `pyarrow.Table`."""
        lines = self._make(self._names, table.to_batches())
        if self._is_begun:
            for _ in range(self._header):
                next(lines)
        self._is_begun = True
        self._stream.writelines(f"{line}\n" for line in lines)

    def close(self) -> None:
        """Write the header of a table without rows."""
        if not self._is_begun:
            self._stream.writelines(f"{line}\n" for line in self._make(self._names, ()))
