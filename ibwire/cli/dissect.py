"""`ibwire dissect`: captures as lines, JSON, CSV or Parquet."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import IO, TYPE_CHECKING, Protocol

import click
import numpy as np
import numpy.typing as npt

from ibwire.base.errors import ExpressionError, MissingExtra
from ibwire.base.output import STANDARD_OUTPUT, Output
from ibwire.cli.paths import captures_argument
from ibwire.cli.sources import UNREADABLE, Sources
from ibwire.cli.tables import format_of, table_options
from ibwire.cli.terminal import style as styled
from ibwire.cli.terminal import terminal_width
from ibwire.cli.values import FieldNames, did_you_mean
from ibwire.dissect import FIELDS, Columns, export
from ibwire.dissect.fields import FieldSpec, spec_of

if TYPE_CHECKING:
    from ibwire.dissect.where import Expression

Rows = npt.NDArray[np.int64]


class Sink(Protocol):
    """Destination of dissected packets."""

    def write(self, columns: Columns, rows: Rows) -> None:
        """Write some packets of a chunk."""


@click.command("dissect")
@captures_argument
@table_options("packet")
@click.option(
    "--fields",
    metavar="A,B,C",
    type=FieldNames(),
    help="Print only these fields, see `ibwire fields`.",
)
@click.option("-Y", "--where", "where", metavar="EXPR", help="Print only packets that match EXPR.")
@click.option("-c", "--count", type=click.IntRange(min=0), help="Stop after this many packets.")
def command(
    captures: tuple[str, ...],
    style: str | None,
    fields: str | None,
    where: str | None,
    output: str | None,
    count: int | None,
) -> None:
    """Dissect captures: every header, every ICRC.

    CAPTURE is a pcap or pcapng file, compressed or not, a pattern, or `-` for
    standard input. The default is one line per packet, cut to the width of a
    terminal; --fields prints the values of these fields, separated by tabs.

    \b
    ibwire dissect capture.pcap
    ibwire dissect --where 'aeth.syndrome.opcode == 3' --json capture.pcap
    ibwire dissect --fields frame.time_ns,bth.destqp,bth.psn -o out.parquet *.pcap
    """
    style = format_of(style, output)
    condition = _condition(where)
    progress = sys.stderr.isatty() and (output is not None or not sys.stdout.isatty())
    sources = Sources(captures, progress)
    chosen = _chosen(fields, len(sources.names) > 1)
    try:
        with ExitStack() as stack:
            listed = fields is None and style == "text"
            file = stack.enter_context(Output(output or STANDARD_OUTPUT))
            sink = _open(stack, style, None if listed else chosen, file, len(sources.names) > 1)
            _run(sources, sink, condition, count)
            file.input_failed |= sources.failed
    except MissingExtra as error:
        raise click.ClickException(str(error)) from None
    if sources.failed:
        sys.exit(UNREADABLE)


def _chosen(names: str | None, several: bool) -> list[FieldSpec]:
    if names is None:
        return [
            spec
            for spec in FIELDS.values()
            if spec.common or (several and spec.name == "frame.file")
        ]
    chosen = []
    for name in dict.fromkeys(filter(None, (part.strip() for part in names.split(",")))):
        try:
            chosen.append(spec_of(name))
        except KeyError:
            hint = did_you_mean(name, FIELDS) or "; `ibwire fields` lists them"
            raise click.BadParameter(f"no field {name!r}{hint}", param_hint="--fields") from None
    if not chosen:
        raise click.BadParameter("no field is named", param_hint="--fields")
    return chosen


def _condition(text: str | None) -> Expression | None:
    if text is None:
        return None
    from ibwire.dissect.filters import parse_filter

    try:
        return parse_filter(text)
    except ExpressionError as error:
        raise click.BadParameter(str(error), param_hint="--where") from None


def _run(sources: Sources, sink: Sink, condition: Expression | None, count: int | None) -> None:
    left = count
    for capture, batch in sources.batches():
        columns = Columns(batch, capture.path)
        rows = np.arange(columns.rows, dtype=np.int64)
        if condition is not None:
            rows = rows[condition.select(columns.column, columns.rows)]
        if left is not None:
            rows = rows[:left]
            left -= len(rows)
        sink.write(columns, rows)
        if left == 0:
            break


def _open(
    stack: ExitStack,
    style: str,
    fields: Sequence[FieldSpec] | None,
    file: Output,
    several: bool,
) -> Sink:
    """The sink for a format; without fields it is the listing, one line per packet."""
    if style == "parquet":
        from ibwire.dissect.arrow import ParquetFile

        assert fields is not None
        return stack.enter_context(ParquetFile(file, fields))
    stream = file.text
    if fields is None:
        on_terminal = file.path == STANDARD_OUTPUT and sys.stdout.isatty()
        return _Listed(stream, several, terminal_width() if on_terminal else None)
    return _Lines(stream, style, fields)


class _Listed:
    """One line per packet, for people; several captures have headings.

    width: of the terminal, which the lines fit, with colours; `None` for whole lines.
    """

    def __init__(self, stream: IO[str], several: bool, width: int | None) -> None:
        self._stream = stream
        self._several = several
        self._width = width
        self._make = self._new_listing()
        self._source: str | None = None
        self._headed = False

    def write(self, columns: Columns, rows: Rows) -> None:
        source = columns.frames.source
        if source != self._source:
            self._source = source
            self._make = self._new_listing()
            self._headed = not self._several
        if len(rows) and not self._headed:
            _put(self._stream, [f"{source}:"])
            self._headed = True
        _put(self._stream, self._make(columns, rows))

    def _new_listing(self) -> Callable[[Columns, Rows], list[str]]:
        if self._width is None:
            from ibwire.report.listing import Listing

            return Listing().lines

        from ibwire.report.terminal_listing import TerminalListing

        listing = TerminalListing(self._width)
        return lambda columns, rows: [
            styled(text, fg=colour) if colour else text
            for text, colour in listing.coloured(columns, rows)
        ]


class _Lines:
    """The fields of each packet, for programs or as a table."""

    def __init__(self, stream: IO[str], style: str, fields: Sequence[FieldSpec]) -> None:
        self._stream = stream
        self._fields = fields
        self._make = {
            "json": export.json_lines,
            "csv": export.csv_lines,
            "text": export.text_lines,
        }[style]
        if style != "json":
            separator = "," if style == "csv" else "\t"
            _put(stream, [separator.join(spec.name for spec in fields)])

    def write(self, columns: Columns, rows: Rows) -> None:
        _put(self._stream, self._make(columns, self._fields, rows))


def _put(stream: IO[str], lines: list[str]) -> None:
    if lines:
        stream.write("\n".join(lines))
        stream.write("\n")
