"""`ibwire explain`: the events of one connection, in words."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict
from functools import partial

import click

from ibwire.base.output import temporary_directory
from ibwire.cli.messages import print_error, print_warning
from ibwire.cli.paths import captures_argument
from ibwire.cli.rereading import as_one_capture, progress
from ibwire.cli.sources import UNREADABLE
from ibwire.cli.status import exit_if, fail_on_option
from ibwire.cli.terminal import style
from ibwire.cli.values import QueuePairNumber
from ibwire.connections.analysis import Analysis
from ibwire.connections.connection import Connection
from ibwire.connections.observer import Observer
from ibwire.connections.ranking import worst_first
from ibwire.connections.status import Status
from ibwire.connections.summary import Summary
from ibwire.diagnosis.incident_rows import incidents_of
from ibwire.diagnosis.one_line import summary
from ibwire.diagnosis.record import Record, Recorder
from ibwire.diagnosis.story import Story, frames_of
from ibwire.dissect.captures import Captures

STYLES: dict[str, Callable[[str], str]] = {
    "head": partial(style, bold=True),
    "title": partial(style, fg="yellow", bold=True),
    "text": str,
    "verdict": partial(style, bold=True),
}
"""Width of the lines, on a terminal."""

OTHERS = 20
"""Most other connections listed."""


@click.command("explain")
@captures_argument
@click.option(
    "--qpn",
    type=QueuePairNumber(),
    metavar="N",
    help="Explain the connections with this queue pair at either end.",
)
@click.option(
    "--connection", "number", type=click.IntRange(min=1), metavar="N", help="Explain connection N."
)
@click.option(
    "--all", "every", is_flag=True, help="Explain every incident, including similar ones."
)
@click.option("--json", "as_json", is_flag=True, help="Print events, status and incidents as JSON.")
@fail_on_option
def command(
    captures: tuple[str, ...],
    qpn: int | None,
    number: int | None,
    every: bool,
    as_json: bool,
    fail_on: Collection[Status],
) -> None:
    """Describe in words what happened to a connection.

    Several captures are read as parts of one, in the order of their first packets:
    frames are numbered through all of them, and the story says where a file begins.
    Without --qpn or --connection it is the connection with the worst status; the
    others are listed. --json prints one object per line: each event, then the connection
    with its status, verdict and incidents; each cause of an incident has its evidence.

    \b
    ibwire explain capture.pcap
    ibwire explain --qpn 0x000083 ring.pcap*
    """
    with temporary_directory() as directory:
        reading = as_one_capture(captures, directory)
        found = _analyse(reading)
        for error in reading.damage:
            print_error(error)
        for problem in found.all_problems():
            print_warning(problem)
        if reading.damage and not found.frames:
            sys.exit(UNREADABLE)
        wanted = _wanted(found.connections, qpn, number)
        recorder = Recorder({each.number for each in wanted})
        again = found
        if wanted:
            again = _analyse(reading, recorder, found.connections)
    if not found.connections:
        click.echo(_without_rdma(reading.name, found), err=as_json)
    frames = frames_of(reading, has_copies=bool(found.copies))
    for record in recorder.records(again.connections):
        if as_json:
            _write_events(record)
            _write_connection(Story(record, frames, every))
        else:
            _write(Story(record, frames, every))
    if not as_json and qpn is None and number is None:
        _write_others([each for each in found.connections if each not in wanted], every)
    if reading.damage:
        sys.exit(UNREADABLE)
    judged = found.connections if qpn is None and number is None else wanted
    exit_if(fail_on, (each.status.status for each in judged))


def _analyse(
    reading: Captures,
    observer: Observer | None = None,
    known: Sequence[Connection] | None = None,
) -> Summary:
    """Read the captures once; known: the connections as an earlier reading found them."""
    analysis = Analysis(observer, known=known)
    with progress() as bar:
        for columns in reading.read(bar.read):
            analysis.take(columns)
    return analysis.finish()


def _wanted(
    connections: Sequence[Connection], qpn: int | None, number: int | None
) -> list[Connection]:
    if number is not None:
        if number > len(connections):
            count = len(connections)
            there = f"there {'is' if count == 1 else 'are'} {count}"
            raise click.BadParameter(f"no connection {number}, {there}", param_hint="--connection")
        return [connections[number - 1]]
    if qpn is not None:
        found = [each for each in connections if qpn in [end.qpn for end in each.ends]]
        if not found and connections:
            known = sorted({end.qpn for c in connections for end in c.ends if end.qpn is not None})
            few = ", ".join(map(str, known[:OTHERS])) + (", ..." if len(known) > OTHERS else "")
            raise click.BadParameter(f"no packet of {qpn}; there are {few}", param_hint="--qpn")
        return found
    return worst_first(connections)[:1]


def _without_rdma(name: str, found: Summary) -> str:
    if found.packets:
        return f"{name}: none of {found.packets:,} RDMA packets is whole: their ICRCs are wrong."
    frames = "no frame has" if not found.frames else f"none of {found.frames:,} frames has"
    reason = "".join(f"; {each}" for each in found.why_none())
    return f"{name}: no RDMA: {frames} a transport header of InfiniBand or RoCE{reason}."


def _write(story: Story) -> None:
    width = shutil.get_terminal_size((100, 24)).columns
    for line in story.lines(width):
        click.echo(STYLES[line.style](line.text))
    click.echo()


def _write_others(others: Sequence[Connection], every: bool) -> None:
    if not others:
        return
    worst = worst_first(others)
    click.echo("Other connections (--connection N explains one of them):")
    for each in worst if every else worst[:OTHERS]:
        click.echo(summary(each))
    if len(worst) > OTHERS and not every:
        click.echo(f"and {len(worst) - OTHERS:,} more (--all lists them)")


def _write_events(record: Record) -> None:
    incidents = {
        id(event): number
        for number, case in enumerate(record.incidents(), 1)
        for event in case.events
    }
    for event in record.events:
        fields = asdict(event) | {"incident": incidents.get(id(event))}
        click.echo(json.dumps(fields))


def _write_connection(story: Story) -> None:
    connection = story.connection
    fields = {
        "kind": "connection",
        "connection": connection.number,
        "status": connection.status.status,
        "status_detail": connection.status.detail,
        "verdict": story.verdict,
        "incidents": incidents_of(story),
    }
    click.echo(json.dumps(fields))
