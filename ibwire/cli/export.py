"""`ibwire export`: captures as Parquet tables, or a copy with comments."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import click

from ibwire.base.errors import CaptureError, EncodeError, MissingExtra, OldResultKept, OutputError
from ibwire.base.output import STANDARD_OUTPUT, Output, temporary_directory
from ibwire.base.printable import readable
from ibwire.capture import CaptureReader, open_capture
from ibwire.capture.annotate import Comments, annotate
from ibwire.cli.messages import print_error, print_warning
from ibwire.cli.paths import OutputPath, captures_argument
from ibwire.cli.rereading import STANDARD_INPUT, progress, spooled
from ibwire.cli.sources import UNREADABLE, Sources
from ibwire.connections.events import FlowEvent
from ibwire.dissect import Columns
from ibwire.report import remarks
from ibwire.rules.conformance import Conformance

if TYPE_CHECKING:
    from ibwire.connections.arrow import TableFile

ANNOTATED = (".pcapng", ".pcapng.gz", ".pcapng.xz", ".pcapng.zst")
"""Suffixes of a capture with comments; other names are directories."""

REFUSED = (".pcap", ".cap", ".pcap.gz", ".pcap.xz", ".pcap.zst", ".parquet", ".csv", ".json")
"""Suffixes that are refused as names of a directory."""

PREFIX = "ibwire: "
"""Prefix of each comment, to distinguish them from others."""


@click.command("export")
@captures_argument
@click.option(
    "-o",
    "--output",
    required=True,
    metavar="DIR|FILE",
    type=OutputPath(allow_dash=True),
    help="A directory, FILE.pcapng, or `-` for pcapng on standard output.",
)
@click.option("--csv", "style", flag_value="csv", help="Write the tables as .csv, not Parquet.")
@click.option("--json", "style", flag_value="json", help="Write the tables as .json, line by line.")
def command(captures: tuple[str, ...], output: str, style: str | None) -> None:
    """Write captures as tables, or a copy of one capture with comments.

    With a directory, each capture becomes one Parquet file in each of its folders
    `packets`, `messages`, `events`, `incidents` and `connections`; `ibwire query` and
    other programs read them. Several machines may write to the same directory. --csv and
    --json write text instead.

    With FILE.pcapng, every packet at which something happened gets a comment: losses,
    retransmissions and their causes, NAKs, congestion marks, and broken rules of the
    protocol. Wireshark shows them in `frame.comment`.

    \b
    ibwire export -o tables/ *.pcap
    ibwire export -o annotated.pcapng capture.pcap
    """
    names = Sources(captures, progress=False).names
    if output.lower().endswith(REFUSED) and not os.path.exists(output):
        reason = (
            f"comments need pcapng, and {output} is not a name for a directory: use FILE.pcapng"
        )
        raise click.BadParameter(reason, param_hint="--output")
    try:
        with temporary_directory() as directory, progress() as bar:
            if output == STANDARD_OUTPUT or output.lower().endswith(ANNOTATED):
                if style:
                    raise click.UsageError(f"--{style} writes tables: -o needs a directory")
                failures = _annotated(names, output, directory, bar.read)
            else:
                failures = _tables(names, output, directory, bar.read, style)
    except OutputError:
        raise
    except (CaptureError, EncodeError, MissingExtra) as error:
        raise click.ClickException(str(error)) from None
    for failure in failures:
        print_error(failure)
    if failures:
        sys.exit(UNREADABLE)


def _tables(
    names: Sequence[str],
    output: str,
    directory: str,
    tell: Callable[[CaptureReader], None],
    style: str | None,
) -> list[CaptureError]:
    """Write all captures into a directory; returns the errors."""
    from ibwire.query.export import CaptureTables, export

    if os.path.exists(output) and not os.path.isdir(output):
        reason = f"{output} is not a directory; a capture with comments is named FILE.pcapng"
        raise click.BadParameter(reason, param_hint="--output")
    targets = _targets(names)
    failures: list[CaptureError] = []
    for name, target in targets.items():
        try:
            path = spooled(name, directory)
            open_capture(path).close()
        except CaptureError as error:
            failures.append(error)
            continue
        shown = STANDARD_INPUT if name == "-" else name
        capture = CaptureTables(path, shown, tell)
        kept = None
        try:
            export(capture, output, readable(target), *_file_kind(style))
        except OldResultKept as error:
            kept = error
        for problem in capture.problems:
            print_warning(f"{shown}: {problem}")
        if not capture.is_rdma and not capture.damage:
            print_warning(f"{shown}: no RDMA packets")
        failures += filter(None, (capture.damage, kept))
    return failures


def _file_kind(style: str | None) -> tuple[type[TableFile], str]:
    """What writes a table, and the ending of its files."""
    from ibwire.connections.arrow import TableFile
    from ibwire.report.table_files import CSVFile, JSONFile

    return {"csv": (CSVFile, "csv"), "json": (JSONFile, "json")}.get(
        style or "", (TableFile, "parquet")
    )


def _targets(names: Sequence[str]) -> dict[str, str]:
    """File names of each capture: those of the captures without their folders."""
    targets: dict[str, str] = {}
    for name in names:
        target = "stdin" if name == "-" else os.path.basename(name)
        if target in targets.values() and targets.get(name) != target:
            reason = f"two captures are called {target}, and so would be their tables"
            raise click.BadParameter(reason, param_hint="CAPTURE")
        targets[name] = target
    return targets


def _annotated(
    names: Sequence[str], output: str, directory: str, tell: Callable[[CaptureReader], None]
) -> list[CaptureError]:
    """Copy one capture with comments to a file; returns the errors."""
    if len(names) > 1:
        reason = f"comments are written to one capture at a time, and {len(names)} are named"
        raise click.BadParameter(reason, param_hint="CAPTURE")
    failures: list[CaptureError] = []
    try:
        path = spooled(names[0], directory)
        shown = STANDARD_INPUT if names[0] == "-" else names[0]
        try:
            open_capture(path).close()
        except CaptureError as error:
            return [CaptureError(shown, error.offset, error.reason)]
        with Output(output) as file:
            failures += write_annotated(path, shown, file, tell)
    except OldResultKept as error:
        failures.append(error)
    return failures


def write_annotated(
    path: str, shown: str, file: Output, tell: Callable[[CaptureReader], None]
) -> list[CaptureError]:
    """Copy a capture with comments; returns why it could not be read to its end.

    shown: its name in messages.
    """
    with Comments() as comments:
        try:
            _judge(path, shown, comments, tell)
            annotate(path, file, comments)
        except CaptureError as error:
            if error.path != path:
                raise
            file.input_failed = True
            return [CaptureError(shown, error.offset, error.reason)]
    return []


def _judge(
    path: str, shown: str, comments: Comments, tell: Callable[[CaptureReader], None]
) -> None:
    """Collect the comments of a capture, also of a damaged one."""

    def comment_on(event: FlowEvent) -> None:
        for number, text in remarks.of_event(event):
            comments.add(number, PREFIX + text)

    judge = Conformance(tell=comment_on)
    try:
        with open_capture(path, reuse=True) as reader:
            for batch in reader.batches():
                judge.take(Columns(batch, shown))
                tell(reader)
    except CaptureError as error:
        if error.path != path:
            raise  # else `annotate` comes to the same place
    for finding in judge.finish(shown):
        for number, text in remarks.of_finding(finding):
            comments.add(number, PREFIX + text)
