"""`ibwire flows`: the connections of captures, worst first."""

from __future__ import annotations

import operator
import shutil
import sys
from collections.abc import Collection, Iterator, Sequence
from itertools import chain, dropwhile
from typing import TYPE_CHECKING, Any

import click

from ibwire.base.errors import (
    CaptureError,
    ExpressionError,
    MissingExtra,
    OldResultKept,
    WorkError,
)
from ibwire.base.output import STANDARD_OUTPUT, Output
from ibwire.cli.messages import print_error, print_warning
from ibwire.cli.paths import InputPath, captures_argument
from ibwire.cli.rereading import progress
from ibwire.cli.sources import UNREADABLE, expand
from ibwire.cli.status import exit_if, fail_on_option
from ibwire.cli.tables import format_of, table_options, write_rows
from ibwire.cli.terminal import hanging
from ibwire.cli.values import MOST_JOBS, Rate
from ibwire.connections import merge
from ibwire.connections.connection import UNTAGGED, Connection
from ibwire.connections.ranking import worst_first
from ibwire.connections.status import Status
from ibwire.connections.summary import Summary
from ibwire.report import flows as report

if TYPE_CHECKING:
    from ibwire.base.work import Work
    from ibwire.compare.comparison import Between
    from ibwire.connections.where import ConnectionFilter

SHOWN = 40
"""Most lines of the table on a terminal without --all."""


@click.command("flows")
@captures_argument
@table_options("direction")
@click.option("--all", "show_all", is_flag=True, help="List every connection, also on a terminal.")
@click.option(
    "--where",
    metavar="EXPR",
    help="List only connections that match EXPR, such as `status >= unresolved`.",
)
@fail_on_option
@click.option(
    "--other",
    metavar="FILE",
    type=InputPath(),
    help="Capture of the same traffic at another point: list the frames lost between the two.",
)
@click.option("--link-rate", type=Rate(), help="Rate of the paused links, such as 100G.")
@click.option(
    "--jobs",
    type=click.IntRange(1, MOST_JOBS),
    metavar="N",
    help="Read files in N processes.",
)
@click.option("--ray", metavar="ADDRESS", help="Read files in a Ray cluster; `local` starts one.")
def command(
    captures: tuple[str, ...],
    style: str | None,
    output: str | None,
    show_all: bool,
    where: str | None,
    fail_on: Collection[Status],
    other: str | None,
    link_rate: int | None,
    jobs: int | None,
    ray: str | None,
) -> None:
    """List the connections of captures: ends, traffic, errors; worst first.

    Several captures are read as parts of one, in the order of their first packets.
    Lost packets are those never seen at the capture point; uncertain counts are
    marked with `?` or `>=` and explained below the table. NAKs, RNR NAKs, timeouts
    and CNPs are counted with the requests that they concern.

    \b
    ibwire flows capture.pcap
    ibwire flows --json --jobs 4 ring.*.pcapng.gz
    ibwire flows --where 'status >= unresolved and ip.dst == 10.0.0.2' capture.pcap
    ibwire flows --fail-on unresolved+ capture.pcap
    ibwire flows switch-in.pcap --other switch-out.pcap
    """
    if jobs and ray:
        raise click.UsageError("--jobs and --ray exclude each other")
    condition = _condition(where)
    paths = expand(captures)
    if other is not None and len(paths) != 1:
        raise click.UsageError("--other needs one capture to compare with")
    style = format_of(style, output)
    summary, damage = _analyse(paths, jobs=jobs, ray=ray, link_rate=link_rate)
    try:
        between = _compare(paths[0], other) if other is not None else None
    except CaptureError as error:
        between = None
        damage.append(str(error))
    chosen = [
        each
        for each in worst_first(summary.connections)
        if condition is None or condition.selects(each)
    ]
    try:
        with Output(output or STANDARD_OUTPUT) as file:
            if style == "text":
                _write_table(chosen, summary, between, file, show_all)
            else:
                write_rows([*_directions(chosen, summary, between)], style, file)
            file.input_failed |= bool(damage)
    except MissingExtra as error:
        raise click.ClickException(str(error)) from None
    except OldResultKept as error:
        damage.append(str(error))
    _report(summary, between, damage)
    if damage:
        sys.exit(UNREADABLE)
    exit_if(fail_on, (each.status.status for each in chosen))


def _analyse(
    paths: Sequence[str], *, jobs: int | None, ray: str | None, link_rate: int | None
) -> tuple[Summary, list[str]]:
    try:
        work = _work(jobs, ray)
        with progress(paths) as bar:
            return merge.analyse(
                paths, work, rate_bps=link_rate, tell=bar.read, finished=bar.finished
            )
    except (MissingExtra, WorkError) as error:
        raise click.ClickException(str(error)) from None


def _work(jobs: int | None, ray: str | None) -> Work | None:
    """Where files are read; `None`: in this process, which needs nothing of `multiprocessing`."""
    if not jobs and not ray:
        return None
    from ibwire.base.work import cluster, processes

    return cluster(ray) if ray else processes(jobs or 1)


def _condition(text: str | None) -> ConnectionFilter | None:
    if text is None:
        return None
    from ibwire.connections.where import ConnectionFilter

    try:
        return ConnectionFilter(text)
    except ExpressionError as error:
        raise click.BadParameter(str(error), param_hint="--where") from None


def _report(summary: Summary, between: Between | None, damage: list[str]) -> None:
    """Print what could not be read, and what makes the result doubtful."""
    problems = summary.all_problems()
    if between is not None:
        damage += map(str, between.errors)
        problems += between.problems
    for text in damage:
        print_error(text)
    for text in problems:
        print_warning(text)
    if not summary.packets and not damage:
        reason = "".join(f"; {each}" for each in summary.why_none())
        print_warning(f"no RDMA packets among {summary.frames:,} frames{reason}")


def _compare(path: str, other: str) -> Between:
    from ibwire.compare.comparison import compare

    return compare(path, other)


def _directions(
    connections: Sequence[Connection], summary: Summary, between: Between | None
) -> Iterator[dict[str, Any]]:
    for connection in connections:
        seen = [each.packets or each.naks or each.cnps for each in connection.directions]
        for index, is_seen in enumerate(seen):
            # Of a connection without packets, one that was rejected, there is the first direction.
            if not is_seen and (index or any(seen)):
                continue
            found = connection.to_json(index)
            if summary.pauses.frames:
                found["paused_ns"] = connection.paused_ns(summary.pauses)
                if summary.pauses.are_of_priorities and not connection.priorities:
                    found["not_observable"] |= {"paused_ns": UNTAGGED}
            if between is not None:
                found |= report.between_to_json(between, connection, index)
            yield found


def _write_table(
    connections: Sequence[Connection],
    summary: Summary,
    between: Between | None,
    file: Output,
    show_all: bool,
) -> None:
    on_terminal = file.path == STANDARD_OUTPUT and sys.stdout.isatty()
    width = shutil.get_terminal_size().columns if on_terminal else None
    shown = report.rows(connections)
    rest = 0
    if width is not None and not show_all:
        rest = len(shown) - SHOWN
        shown = shown[:SHOWN]
    lines = report.lines(shown, width) if shown else ()
    below = report.summary_lines(summary, shown, rest)
    if on_terminal:
        below = [hanging(note, 0) for note in below]
    if between is not None:
        below += ["", *report.between_in_words(between)]
    if not shown:
        below = [*dropwhile(operator.not_, below)]
    file.text.writelines(f"{line}\n" for line in chain(lines, below))
