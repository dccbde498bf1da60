"""The directory of a run (`ibwire run -o DIR`), read for its page."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ibwire.base.errors import CaptureError, MissingExtra
from ibwire.scenario.run_tables import FORMAT, KIND, SEGMENTS, SUMMARY, TABLES

Columns = Mapping[str, list[Any]]

LARGEST_SUMMARY = 64 << 20
"""Bytes of `run.json`."""


@dataclass(frozen=True, slots=True)
class RunDirectory:
    """Everything that a run has left behind."""

    path: str
    summary: Mapping[str, Any]
    tables: Mapping[str, Columns]
    """Columns by table and name."""


def read_run(path: str) -> RunDirectory:
    """Read a directory; raises `CaptureError` for one that is not that of a run."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise MissingExtra("Parquet", "query") from None
    summary = _summary(os.path.join(path, SUMMARY))
    tables: dict[str, Columns] = {}
    for name, spec in TABLES.items():
        if spec is SEGMENTS:
            continue  # the page does not show them
        file = os.path.join(path, f"{name}.parquet")
        try:
            found = pq.read_table(file, columns=list(spec.names))
        except (OSError, pa.ArrowException) as error:
            reason = str(error).partition("\n")[0]
            raise CaptureError(file, None, f"cannot be read: {reason}") from None
        missing = set(spec.names) - set(found.column_names)
        if missing:
            raise CaptureError(file, None, f"has no column {', '.join(sorted(missing))}")
        tables[name] = found.to_pydict()
    return RunDirectory(path, summary, tables)


def _summary(file: str) -> Mapping[str, Any]:
    try:
        with open(file, "rb") as opened:
            summary = json.loads(opened.read(LARGEST_SUMMARY))
    except (OSError, ValueError, RecursionError) as error:
        raise CaptureError(file, None, f"cannot be read: {error}") from None
    if not isinstance(summary, dict) or summary.get("kind") != KIND:
        raise CaptureError(file, None, "does not describe a run")
    if summary.get("format") != FORMAT:
        raise CaptureError(file, None, "is of another version of ibwire: run the scenario again")
    return summary
