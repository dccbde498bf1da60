"""`ibwire query`: SQL over captures and exported tables."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import IO, TYPE_CHECKING

import click

from ibwire.base.errors import CaptureError, MissingExtra, OldResultKept, OutputError, QueryError
from ibwire.base.interrupt import signal_of
from ibwire.base.output import (
    STANDARD_OUTPUT,
    Output,
    protect,
    remove_unfinished,
    temporary_directory,
)
from ibwire.capture import open_capture
from ibwire.cli.messages import print_error, print_warning, print_with_notes
from ibwire.cli.paths import InputPath
from ibwire.cli.rereading import STANDARD_INPUT, progress, spooled
from ibwire.cli.sources import UNREADABLE, Sources
from ibwire.cli.tables import format_of, table_options
from ibwire.cli.terminal import console, style

if TYPE_CHECKING:
    from ibwire.query.database import Database, Result

WRONG_SQL = 2
INTERRUPTED = 128
"""Added to the number of the signal, as shells do."""


@click.command("query")
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE... SQL", type=InputPath())
@table_options("row")
@click.option("--tables", "listed", is_flag=True, help="List the tables and columns.")
@click.option("--memory", default="1GiB", show_default=True, help="Largest memory of the database.")
@click.option(
    "--temp",
    type=click.Path(exists=True, file_okay=False),
    help="Directory for data beyond --memory; by default that of the system.",
)
def command(
    sources: tuple[str, ...],
    style: str | None,
    output: str | None,
    listed: bool,
    memory: str,
    temp: str | None,
) -> None:
    """Run SQL over captures.

    SOURCE is a capture, a directory written by `ibwire export` or by `ibwire run -o`, or a
    Parquet file. Of captures, the tables are `packets`, `messages`, `events`, `incidents`
    and `connections`; only the columns that the query uses are computed. The dialect is that
    of DuckDB. The SQL can read only these sources.

    \b
    ibwire query --tables capture.pcap
    ibwire query capture.pcap "SELECT kind, count(*) FROM events GROUP BY kind"
    ibwire query tables/ "FROM messages ORDER BY latency_ns DESC LIMIT 10" --json
    """
    sql = None if listed else sources[-1]
    names = sources if sql is None else sources[:-1]
    if not names or (sql is not None and not sql.strip()):
        raise click.UsageError("name a capture and then the SQL, in quotation marks")
    if sql is not None and os.path.exists(sql):
        raise click.UsageError(f"{sql} is a file: the SQL comes last, in quotation marks")
    style = format_of(style, output, "table" if sys.stdout.isatty() else "text")
    problems: list[str] = []
    try:
        with _ending_at_once(), ExitStack() as stack:
            directory = stack.enter_context(temporary_directory(temp))
            database = _open(stack, names, directory, memory)
            if sql is None:
                _list(database)
            else:
                with Output(output or STANDARD_OUTPUT) as file:
                    _run(database, sql, style, file)
                    file.input_failed |= bool(database.damage)
            damage = database.damage
            problems = database.problems
    except OldResultKept as error:
        damage = [*database.damage, error]
    except QueryError as error:
        sys.stdout.flush()
        print_error(error)
        sys.exit(WRONG_SQL)
    except MissingExtra as error:
        raise click.ClickException(str(error)) from None
    except OutputError:
        raise
    except CaptureError as error:
        damage = [error]
    sys.stdout.flush()
    for problem in problems:
        print_warning(problem)
    for each in damage:
        print_error(each)
    if damage:
        sys.exit(UNREADABLE)


@contextmanager
def _ending_at_once() -> Iterator[None]:
    """Ctrl-C ends the process when files are cleaned up, without waiting for other threads.

    Those of DuckDB and Arrow may be reading a capture, which is Python: the usual end of the
    interpreter would abort them, and the process with them.
    """
    try:
        yield
    except KeyboardInterrupt as interrupt:
        remove_unfinished()
        print_with_notes("interrupted", interrupt)
        sys.stderr.flush()
        os._exit(INTERRUPTED + signal_of(interrupt))


def _open(stack: ExitStack, names: Sequence[str], directory: str, memory: str) -> Database:
    from ibwire.query.database import Database
    from ibwire.query.export import CaptureTables

    bar = stack.enter_context(progress(wanted=not sys.stdout.isatty()))
    captures, parquet = [], []
    for name in Sources(names, progress=False).names:
        if os.path.isdir(name) or name.lower().endswith(".parquet"):
            parquet.append(name)
        else:
            shown = STANDARD_INPUT if name == "-" else name
            path = spooled(name, directory)
            _require_capture(path, shown)
            captures.append(CaptureTables(path, shown, bar.read))
    database = stack.enter_context(Database(captures, parquet, directory, memory))
    protect(*database.files)
    return database


def _require_capture(path: str, shown: str) -> None:
    """Raise `CaptureError` for what is no capture, also if the query does not use it."""
    try:
        open_capture(path).close()
    except CaptureError as error:
        raise CaptureError(shown, error.offset, error.reason) from None


def _list(database: Database) -> None:
    """Every table with its columns, their types, and what they mean."""
    from ibwire.connections.tables import TABLES
    from ibwire.scenario import run_tables

    for table, columns in database.tables().items():
        spec = TABLES.get(table)
        of_run = run_tables.TABLES.get(table)
        if of_run is not None and [name for name, _ in columns] == list(of_run.names):
            spec = of_run
        docs = {column.name: column.doc for column in spec.columns} if spec else {}
        click.echo(style(f"{table}  {spec.doc if spec else ''}".rstrip(), bold=True))
        for name, kind in columns:
            click.echo(f"  {name:22}  {kind:20}  {docs.get(name, '')}".rstrip())


def _run(database: Database, sql: str, style: str, file: Output) -> None:
    result = database.run(sql)
    if result is None:
        return
    if style == "table":
        _show(result)
    elif style == "parquet":
        _write_parquet(result, file)
    else:
        _write(result, style, file.text)


def _show(result: Result) -> None:
    """Print all rows at once on a terminal: the last row may be the widest."""
    from itertools import chain, islice

    from ibwire.report.rows import rows_of, table

    rows = list(islice(chain.from_iterable(map(rows_of, result)), SHOWN + 1))
    shown = console(highlight=False)
    for part in table(result.names, rows[:SHOWN], shown.width):
        shown.print(part, soft_wrap=True)
    if not rows:
        click.echo("no rows", err=True)
    elif len(rows) > SHOWN:
        click.echo(f"the first {SHOWN} rows; -o FILE or a pipe takes all", err=True)


def _write(result: Result, style: str, stream: IO[str]) -> None:
    from ibwire.report.rows import csv_lines, json_lines, text_lines

    make = {"json": json_lines, "csv": csv_lines, "text": text_lines}[style]
    stream.writelines(f"{line}\n" for line in make(result.names, result))


def _write_parquet(result: Result, file: Output) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        writer = pq.ParquetWriter(file.file, result.schema)
        try:
            for batch in result:
                writer.write_batch(batch)
        except BaseException:
            writer.is_open = False  # else it writes the end of the file, which is discarded
            raise
        writer.close()
    except pa.ArrowNotImplementedError as error:
        raise click.ClickException(f"{file.path}: {error}") from None


SHOWN = 1000
"""Most rows that a terminal shows."""
