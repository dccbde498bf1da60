"""The rows of a sweep in a Parquet file: continued where an earlier sweep has ended."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from typing import Any

from ibwire.base.errors import CaptureError, MissingExtra
from ibwire.base.output import Output
from ibwire.scenario.sweep import RESULT, SEED, Row, Run, Sweep, metric_columns, plain

try:
    import pyarrow as pa
    import pyarrow.parquet as pq
except ImportError:
    raise MissingExtra("Parquet", "query") from None

INTERVAL = 10.0
"""Seconds between two versions of the file while runs end."""

SHARE = 20
"""The file is written again after so many times the time that this took before."""


class SweepRows:
    """The rows of runs that have ended; `save` writes them all in the order of the sweep.

    path: of the file; `None` where rows are kept in memory only. Rows of an earlier sweep of the
    same scenario and keys are read from it. Raises `CaptureError` for a file of anything else.
    """

    def __init__(self, sweep: Sweep, path: str | None) -> None:
        self._sweep = sweep
        self.path = path
        self._rows: dict[Run, Row] = {}
        self._saved_at = time.monotonic()
        self._wait = INTERVAL
        self._is_saved = True
        if path is not None and os.path.isfile(path) and os.path.getsize(path):
            self._read(path)
        self.before = len(self._rows)
        """Rows that an earlier sweep has left."""

    def __contains__(self, run: Run) -> bool:
        return _key(run) in self._rows

    def __len__(self) -> int:
        return len(self._rows)

    def rows(self, runs: Iterable[Run]) -> list[Row]:
        """The rows of these runs, as far as they are there."""
        keys = map(_key, runs)
        return [self._rows[key] for key in keys if key in self._rows]

    def add(self, run: Run, row: Row) -> None:
        """Take the row of a run; from time to time all are saved."""
        self._rows[_key(run)] = row
        self._is_saved = False
        if time.monotonic() - self._saved_at >= self._wait:
            self.save()

    def save(self) -> None:
        """Write the file; what was there is replaced at once. Raises `OutputError`."""
        if self.path is None or self._is_saved:
            return
        begun = time.monotonic()
        rows = self._ordered()
        with Output(self.path) as file:
            pq.write_table(_table(rows, self._sweep), file.file)
        self._saved_at = time.monotonic()
        self._wait = max(INTERVAL, SHARE * (self._saved_at - begun))
        self._is_saved = True

    def _ordered(self) -> list[Row]:
        """Rows in the order of this sweep; those of other values come before."""
        place = {_key(run): number for number, run in enumerate(self._sweep.runs())}
        return [
            row for _, row in sorted(self._rows.items(), key=lambda each: place.get(each[0], -1))
        ]

    def _read(self, path: str) -> None:
        try:
            table = pq.read_table(path)
        except (OSError, pa.ArrowException) as error:
            raise CaptureError(
                path, None, f"has no runs of a sweep: {_first_line(error)}"
            ) from None
        found = {
            key.decode(): value.decode() for key, value in (table.schema.metadata or {}).items()
        }
        for key, value in self._sweep.identity.items():
            if found.get(f"ibwire.{key}") != value:
                raise CaptureError(path, None, f"has runs of {_OTHER[key]}: use another name")
        for row in table.to_pylist():
            values = tuple(str(row[key]) for key in self._sweep.keys)
            self._rows[Run(values, row[SEED])] = row


def _key(run: Run) -> Run:
    """A run as its row in the file names it: 0.10 is 0.1."""
    return Run(tuple(str(plain(value)) for value in run.values), run.seed)


def _table(rows: Sequence[Row], sweep: Sweep) -> Any:
    names = [*sweep.keys, SEED, *RESULT, *metric_columns(rows, sweep.keys)]
    columns = [_column(name, [row.get(name) for row in rows]) for name in names]
    metadata = {f"ibwire.{key}": value for key, value in sweep.identity.items()}
    return pa.table(columns, names=names).replace_schema_metadata(metadata)


def _column(name: str, values: list[Any]) -> Any:
    """A column of one type: of mixed values, that of their texts."""
    given = {type(value) for value in values if value is not None}
    if name in _TYPES:
        return pa.array(values, _TYPES[name])
    if given <= {int}:
        return pa.array(values, pa.int64())
    if given <= {int, float}:
        return pa.array(values, pa.float64())
    return pa.array([None if value is None else str(value) for value in values], pa.string())


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


_TYPES = {
    "error": pa.string(),
    "passed": pa.bool_(),
    "unmet": pa.string(),
    "ended": pa.string(),
    "virtual_time_ps": pa.int64(),
    SEED: pa.int64(),
}

_OTHER = {
    "ibwire": "another version of ibwire",
    "scenario": "another scenario, or of this one before a change",
    "keys": "other keys",
}
"""What a file has whose metadata differ."""
