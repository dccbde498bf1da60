"""SQL over captures and Parquet files: DuckDB reads tables that are made on demand.

A table of captures is a dataset in Arrow's sense. DuckDB asks it for the columns
that a query needs, when it needs them: a query on `packets` follows no connection
unless it uses `connection` or `direction`, and no unused column is made.
"""

from __future__ import annotations

import glob
import os
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, suppress
from typing import Any, TypeVar

from ibwire.base.closing import Closing
from ibwire.base.errors import CaptureError, IbwireError, MissingExtra, QueryError
from ibwire.base.output import Output
from ibwire.connections.tables import INCIDENTS, PACKETS, TABLES, TableSpec
from ibwire.query.export import ANALYSED, CaptureTables

try:
    import duckdb
    import pyarrow as pa
    import pyarrow.dataset as ds
    import pyarrow.parquet as pq

    from ibwire.connections.arrow import schema_of
except ImportError:
    raise MissingExtra("SQL over captures", "query") from None

_Returned = TypeVar("_Returned")

MEMORY = "1GiB"
"""What DuckDB may take; what needs more goes to disk."""


class Database(Closing):
    """Tables of captures and Parquet files, queried in SQL; a context manager.

    captures: read again for each table that a query names. parquet: files, or
    directories that `ibwire export` wrote. directory: an empty one for data that does not
    fit in memory; its owner empties it. memory: limit, as DuckDB writes sizes.

    SQL reads these sources, no other files and no network. Raises `CaptureError` for
    a Parquet file that cannot be read, `QueryError` for an invalid size.
    """

    def __init__(
        self,
        captures: Sequence[CaptureTables],
        parquet: Sequence[str],
        directory: str,
        memory: str = MEMORY,
    ) -> None:
        self._captures = captures
        self._closing = ExitStack()
        self._state = _State()
        self._worker = _Worker(self._interrupt)
        files = _files_of(parquet)
        self.files = [path for paths in files.values() for path in paths]
        """The Parquet files that are read."""
        try:
            self._connection = self._closing.enter_context(duckdb.connect(":memory:"))
            self._lock_down(self.files, directory, memory)
            for name in {**dict.fromkeys(TABLES if captures else ()), **files}:
                self._add(name, files.get(name, []), directory)
        except duckdb.Error as error:
            self._closing.close()
            raise QueryError(str(error)) from None

    @property
    def damage(self) -> list[CaptureError]:
        """Why captures could not be read to their end, as far as they were read."""
        return [capture.damage for capture in self._captures if capture.damage]

    @property
    def problems(self) -> list[str]:
        """What is wrong with captures whose connections the queries needed, as sentences."""
        return [f"{each.shown}: {problem}" for each in self._captures for problem in each.problems]

    def tables(self) -> dict[str, list[tuple[str, str]]]:
        """Name and SQL type of the columns of each table, ours first."""
        found = self._connection.execute(
            "SELECT table_name, column_name, data_type FROM information_schema.columns "
            "ORDER BY table_name, ordinal_position"
        ).fetchall()
        tables: dict[str, list[tuple[str, str]]] = {name: [] for name in TABLES}
        for table, column, kind in found:
            tables.setdefault(table, []).append((column, kind))
        return {table: columns for table, columns in tables.items() if columns}

    def run(self, sql: str) -> Result | None:
        """What a query finds; `None` for a statement that finds nothing.

        Raises `QueryError` with the words of DuckDB.
        """
        try:
            return self._worker.call(lambda: self._run(sql))
        except (duckdb.Error, pa.ArrowException, UnicodeEncodeError) as error:
            raise self._state.failure or QueryError(self._explained(error)) from None

    def _explained(self, error: Exception) -> str:
        """What DuckDB says; of a table that is missing, with those that there are.

        Its own proposals come from its catalogue, which has more than users know of.
        """
        text = str(error)
        found = _NO_TABLE.match(text)
        if isinstance(error, duckdb.CatalogException) and found:
            return f"{found.group()}\nThe tables here: {', '.join(self.tables())}"
        return text

    def _run(self, sql: str) -> Result | None:
        for statement in duckdb.extract_statements(sql):
            # DuckDB lets a statement write the files that it may read.
            hidden = statement.type in _RUNS_ANOTHER and _COPY.search(statement.query)
            if statement.type in _WRITING or hidden:
                raise QueryError("SQL cannot write files here: write the result with -o")
        relation = self._connection.sql(sql)
        return None if relation is None else Result(relation, self._state, self._worker)

    def _interrupt(self) -> None:
        for capture in self._captures:
            capture.is_stopped = True
        self._connection.interrupt()

    def close(self) -> None:
        """Forget everything; an interrupted query that has not ended yet ends with the process."""
        with suppress(duckdb.Error):
            self._closing.close()
        self._worker.end()

    def _lock_down(self, files: Sequence[str], directory: str, memory: str) -> None:
        """Only these files may be read, whatever the SQL requests (see `_run` for writing)."""
        settings = {
            "memory_limit": memory,
            "temp_directory": directory,
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
            "allow_community_extensions": False,
            "python_enable_replacements": False,
            # DuckDB takes paths for patterns: a pattern must be allowed, and what it matches.
            "allowed_paths": [*files, *map(glob.escape, files)],
            "enable_external_access": False,
        }
        for name, value in settings.items():
            self._connection.execute(f"SET {name} = {_literal(value)}")
        self._connection.execute("SET lock_configuration = true")

    def _add(self, name: str, files: Sequence[str], directory: str) -> None:
        """A table, or a view of all that belongs to it."""
        lazy: ds.Dataset | None = None
        if self._captures and name == PACKETS.name:
            lazy = _Packets(self._captures, self._state, directory)
        elif self._captures and name in TABLES:
            lazy = _Analysed(TABLES[name], self._captures, self._state, directory)
        if lazy is not None:
            self._connection.register(f"{name} of captures" if files else name, lazy)
        if files:
            paths = _literal(list(map(glob.escape, files)))
            select = f"SELECT * FROM read_parquet({paths}, union_by_name = true)"
            if lazy is not None:
                select += f' UNION ALL BY NAME SELECT * FROM "{name} of captures"'
            quoted = name.replace('"', '""')
            self._connection.execute(f'CREATE TEMP VIEW "{quoted}" AS {select}')


class Result:
    """Rows as they are found: batches (`pyarrow.RecordBatch`) of at most `ROWS` rows."""

    def __init__(self, relation: Any, state: _State, worker: _Worker) -> None:
        self._reader = pa.RecordBatchReader.from_stream(relation)
        self._state = state
        self._worker = worker
        self.schema = self._reader.schema
        self.names: list[str] = self.schema.names

    def __iter__(self) -> Iterator[Any]:
        try:
            while (batch := self._worker.call(lambda: next(self._reader, None))) is not None:
                for start in range(0, batch.num_rows, ROWS):
                    yield batch.slice(start, ROWS)
        except (duckdb.Error, pa.ArrowException, OSError) as error:
            raise self._state.failure or QueryError(str(error)) from None


_WRITING = (duckdb.StatementType.COPY, duckdb.StatementType.EXPORT)
_RUNS_ANOTHER = (duckdb.StatementType.EXPLAIN, duckdb.StatementType.PREPARE)
_COPY = re.compile(r"\b(copy|export)\b", re.IGNORECASE)
"""Statements that write files, those that may hold one, and what it begins with."""

_NO_TABLE = re.compile(r"Catalog Error: Table with name (?s:.*?) does not exist.*")
"""What DuckDB says of a table that is missing, before its own proposals."""

ROWS = 8192
"""Of one batch: what is made of a row may be far larger than the row."""


class _Worker:
    """The thread in which DuckDB runs.

    A signal reaches only the main thread, and only between two lines of Python: the main
    thread waits outside of DuckDB, and Ctrl-C ends the query at once.
    """

    def __init__(self, interrupt: Callable[[], None]) -> None:
        self._interrupt = interrupt
        self._thread = ThreadPoolExecutor(1, "query")

    def call(self, function: Callable[[], _Returned]) -> _Returned:
        """What the function returns in that thread."""
        future: Future[_Returned] = Future()
        try:
            self._thread.submit(_fulfil, future, function)  # a signal may come in here, too
            while not wait([future], ALERT).done:
                continue
            return future.result()
        except KeyboardInterrupt:
            for _ in range(TRIES):  # DuckDB forgets what comes before a query has begun
                self._interrupt()
                if wait([future], GRACE / TRIES).done:
                    break
            raise

    def end(self) -> None:
        """Let the thread go when it has nothing to do any more."""
        self._thread.shutdown(wait=False)


def _fulfil(future: Future[_Returned], function: Callable[[], _Returned]) -> None:
    """Call a function, and hand on what it returns or raises."""
    try:
        future.set_result(function())
    except BaseException as error:
        future.set_exception(error)


ALERT = 0.5
"""Seconds after which the main thread sees a signal that came just before it began to wait."""

GRACE = 0.5
"""Seconds that an interrupted query has to end."""

TRIES = 10
"""How often it is interrupted in that time."""


class _State:
    """What the tables of a database share, which DuckDB may read from several threads."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.failure: IbwireError | None = None
        """The error of a table, which DuckDB reports in another form."""


class _Packets(ds.Dataset):  # type: ignore[misc]  # pyarrow has no types
    """The table `packets` of captures."""

    def __init__(self, captures: Sequence[CaptureTables], state: _State, directory: str) -> None:
        self._captures = captures
        self._state = state
        self._directory = directory

    @property
    def schema(self) -> Any:
        return schema_of(PACKETS)

    def scanner(self, columns: Sequence[str] | None = None, filter: Any = None, **_: object) -> Any:
        """A scan of some columns, of the rows for which a `pyarrow` expression holds."""
        names = set(PACKETS.names if columns is None else columns)
        # The columns of an expression cannot be listed; a name too many does no harm.
        names |= set(re.findall(r"\w+", "" if filter is None else str(filter))) & set(PACKETS.names)
        if names & {"connection", "direction"}:
            _analyse(self._captures, self._state, self._directory)
        ordered = [name for name in PACKETS.names if name in names]
        return ds.Scanner.from_batches(
            (batch for capture in self._captures for batch in capture.packets(ordered)),
            schema=schema_of(PACKETS, ordered),
            columns=columns,
            filter=filter,
        )


class _Analysed(ds.Dataset):  # type: ignore[misc]  # pyarrow has no types
    """A table of captures for which their connections are followed, when it is first read."""

    def __init__(
        self, table: TableSpec, captures: Sequence[CaptureTables], state: _State, directory: str
    ) -> None:
        self._table = table
        self._captures = captures
        self._state = state
        self._directory = directory

    @property
    def schema(self) -> Any:
        return schema_of(self._table)

    def scanner(self, **options: Any) -> Any:
        """A scan, see `pyarrow.dataset.Dataset.scanner`."""
        _analyse(self._captures, self._state, self._directory)
        if self._table is INCIDENTS:
            _diagnose(self._captures, self._state, self._directory)
        paths = [
            _path(self._directory, number, self._table.name)
            for number in range(len(self._captures))
        ]
        return ds.dataset(paths, schema=self.schema, format="parquet").scanner(**options)


def _analyse(captures: Sequence[CaptureTables], state: _State, directory: str) -> None:
    """Follow the connections of all captures, unless that was done."""
    with state.lock:
        try:
            for number, capture in enumerate(captures):
                if not capture.is_analysed:
                    with ExitStack() as stack:
                        paths = {name: _path(directory, number, name) for name in ANALYSED}
                        capture.analyse(
                            {
                                name: stack.enter_context(Output(path, keeps_name=True))
                                for name, path in paths.items()
                            }
                        )
        except IbwireError as failure:
            state.failure = failure
            raise


def _diagnose(captures: Sequence[CaptureTables], state: _State, directory: str) -> None:
    """Describe the incidents of all captures, unless that was done; `_analyse` was called."""
    with state.lock:
        try:
            for number, capture in enumerate(captures):
                if not capture.is_diagnosed:
                    path = _path(directory, number, INCIDENTS.name)
                    with Output(path, keeps_name=True) as output:
                        capture.diagnose(output)
        except IbwireError as failure:
            state.failure = failure
            raise


def _path(directory: str, number: int, table: str) -> str:
    return os.path.join(directory, f"{number}.{table}.parquet")


def _files_of(sources: Sequence[str]) -> dict[str, list[str]]:
    """Parquet files by the table that they belong to.

    A file belongs to a table of ours by its folder, or else by its columns; another is a
    table of its own.
    """
    files: dict[str, list[str]] = {}
    for source in sources:
        paths = [source]
        if os.path.isdir(source):
            place = glob.escape(source)
            paths = sorted(
                glob.glob(os.path.join(place, "*.parquet"))
                + glob.glob(os.path.join(place, "*", "*.parquet"))
            )
            if not paths:
                raise CaptureError(source, None, "holds no Parquet files")
        for path in paths:
            files.setdefault(_table_of(path), []).append(path)
    return files


def _table_of(path: str) -> str:
    try:
        names = pq.read_schema(path).names
    except (OSError, UnicodeEncodeError, pa.ArrowException) as error:
        code = error.errno if isinstance(error, OSError) else None
        reason = os.strerror(code).lower() if code else str(error)
        raise CaptureError(path, None, f"cannot be read: {reason}") from None
    folder = os.path.basename(os.path.dirname(os.path.abspath(path)))
    if folder in TABLES and "file" in names:  # also of another version, with other columns
        return folder
    for table in TABLES.values():
        if names == list(table.names):
            return table.name
    return os.path.splitext(os.path.basename(path))[0]


def _literal(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{', '.join(map(_literal, value))}]"
    return "'" + str(value).replace("'", "''") + "'"
