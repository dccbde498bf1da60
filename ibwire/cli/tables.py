"""Results that are tables: the options `--json`, `--csv` and `-o`, and rows as each format."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import IO, Any, TypeVar

import click

from ibwire.base.errors import MissingExtra
from ibwire.base.output import STANDARD_OUTPUT, Output
from ibwire.cli.paths import OutputPath

FORMATS = {
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
    ".csv": "csv",
    ".txt": "text",
    ".tsv": "text",
    ".parquet": "parquet",
}
"""What is written to a file, by the ending of its name."""

Row = Mapping[str, Any]
Command = TypeVar("Command", bound=Callable[..., object])


def table_options(per_row: str) -> Callable[[Command], Command]:
    """The options of a command whose result is a table; they become `style` and `output`.

    per_row: what one row is, for the help.
    """

    def decorate(command: Command) -> Command:
        for option in (
            click.option(
                "-o",
                "--output",
                metavar="FILE",
                type=OutputPath(allow_dash=True),
                help="Write to FILE: .json, .csv, .txt or .parquet.",
            ),
            click.option(
                "--csv",
                "style",
                flag_value="csv",
                help="Print comma-separated values with a header.",
            ),
            click.option(
                "--json", "style", flag_value="json", help=f"Print one JSON object per {per_row}."
            ),
        ):
            command = option(command)
        return command

    return decorate


def format_of(style: str | None, output: str | None, default: str = "text") -> str:
    """The format that the options ask for: `json`, `csv`, `text`, `parquet` or the default."""
    if output is None or output == STANDARD_OUTPUT:
        return style or default
    for suffix, named in FORMATS.items():
        if output.lower().endswith(suffix):
            if style not in (None, named):
                raise click.UsageError(f"--{style} contradicts the suffix of {output}")
            return named
    if style:
        return style
    raise click.UsageError(f"cannot tell a format from {output!r}: use {', '.join(FORMATS)}")


def write_rows(rows: Sequence[Row], style: str, file: Output) -> None:
    """Write rows as JSON lines, CSV or Parquet; the last two have a column for each part."""
    if style == "json":
        file.text.writelines(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows)
        return
    flat = [dict(_flat(row)) for row in rows]
    names = [*dict.fromkeys(name for row in flat for name in row)]
    if style == "parquet":
        _write_parquet(names, flat, file)
    else:
        _write_csv(names, flat, file.text)


def _flat(row: Row, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """An object in an object becomes columns with a dot in their names; a list is JSON."""
    for key, value in row.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        elif isinstance(value, (list, tuple)):
            yield prefix + key, json.dumps(value, ensure_ascii=False)
        else:
            yield prefix + key, value


def _write_csv(names: Sequence[str], rows: Iterable[Row], stream: IO[str]) -> None:
    if not names:
        return
    line = io.StringIO()
    writer = csv.writer(line, lineterminator="\n")
    writer.writerow(names)
    for row in rows:
        writer.writerow([_text(row.get(name)) for name in names])
    stream.write(line.getvalue())


def _text(value: object) -> object:
    return str(value).lower() if isinstance(value, bool) else value


def _write_parquet(names: Sequence[str], rows: Sequence[Row], file: Output) -> None:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise MissingExtra("Parquet", "query") from None
    columns = {name: [row.get(name) for row in rows] for name in names}
    pq.write_table(pa.table(columns), file.file)
