"""`ibwire report`: a capture as one HTML page."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import click

from ibwire.base.errors import CaptureError, MissingExtra
from ibwire.base.output import STANDARD_OUTPUT, Output, check_writable, temporary_directory
from ibwire.cli.messages import print_error
from ibwire.cli.paths import OutputPath, captures_argument
from ibwire.cli.rereading import as_one_capture, progress
from ibwire.cli.sources import UNREADABLE
from ibwire.cli.status import exit_if, fail_on_option
from ibwire.cli.values import Rate
from ibwire.connections.status import Status
from ibwire.diagnosis.story import frames_of
from ibwire.dissect.captures import Captures
from ibwire.rules.findings import ANY, PROFILES

if TYPE_CHECKING:
    from ibwire.report.html import Closer
    from ibwire.report.page_survey import Survey

MOST = 100
"""Most connections a page can plot: it holds all their points."""

SUFFIXES = (".gz", ".xz", ".zst", ".bz2", ".lz4", ".pcap", ".pcapng", ".cap", ".erf")
"""Suffixes of a capture that are not part of the page's name."""


@click.command("report")
@captures_argument
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    type=OutputPath(allow_dash=True),
    help="Write to FILE instead of CAPTURE.html in this directory.",
)
@click.option(
    "--connections",
    "most",
    type=click.IntRange(1, MOST),
    default=12,
    show_default=True,
    help="Number of connections to plot, the worst first.",
)
@click.option(
    "--profile",
    type=click.Choice(PROFILES),
    default=ANY,
    show_default=True,
    help="Implementation whose habits are expected.",
)
@click.option(
    "--link-rate",
    type=Rate(),
    help="Rate of the paused links, such as 100G, for exact times of pauses.",
)
@fail_on_option
def command(
    captures: tuple[str, ...],
    output: str | None,
    most: int,
    profile: str,
    link_rate: int | None,
    fail_on: Collection[Status],
) -> None:
    """Write an HTML page that shows the errors in a capture, or what happened in a run.

    The page is one file that needs no network: a summary, the connections, and
    for the worst of them plots of PSNs, latency, goodput and congestion over time, a
    description in words, and the findings of `ibwire check`. Several captures are
    read as parts of one, in the order of their first packets. Of a directory written by
    `ibwire run -o DIR` the page shows queues, rates and pauses over time, completion times
    and the load of links.

    \b
    ibwire report capture.pcap
    ibwire report --connections 3 -o incident.html capture.pcap
    """
    output = output or _default_name(captures[0])
    check_writable(output)
    if any(map(_is_run, captures)):
        _report_run(captures, output)
        return
    from ibwire.report.html import page

    with temporary_directory() as directory:
        reading = as_one_capture(captures, directory)
        content = _read(reading, most, profile, link_rate)
    if content is None:
        sys.exit(UNREADABLE)
    with Output(output) as file:
        file.text.writelines(page(content))
        file.input_failed = bool(reading.damage)
    _print_size(output)
    if reading.damage:
        sys.exit(UNREADABLE)
    exit_if(fail_on, map(Status, content["statuses"]))


def _is_run(path: str) -> bool:
    """Whether a path is the directory of a run, without the import of scenarios for captures."""
    if not os.path.isdir(path):
        return False
    from ibwire.scenario.run_tables import SUMMARY, is_run

    if not is_run(path):
        print_error(f"{path}: is a directory without {SUMMARY}, so not one of `ibwire run -o`")
        sys.exit(UNREADABLE)
    return True


def _report_run(captures: tuple[str, ...], output: str) -> None:
    """Write the page of a run."""
    if len(captures) > 1:
        raise click.UsageError("the directory of a run has a page of its own: name it alone")
    from ibwire.report.run_directory import read_run
    from ibwire.report.run_page import run_page

    try:
        run = read_run(captures[0])
    except MissingExtra as error:
        raise click.ClickException(str(error)) from None
    except CaptureError as error:
        print_error(error)
        sys.exit(UNREADABLE)
    with Output(output) as file:
        file.text.writelines(run_page(run))
    _print_size(output)


def _print_size(output: str) -> None:
    if output != STANDARD_OUTPUT:
        click.echo(f"{output}: {os.path.getsize(output) / 1e6:.1f} MB", err=True)


def _default_name(capture: str) -> str:
    name = "capture" if capture == "-" else os.path.basename(os.path.normpath(capture))
    while (ending := os.path.splitext(name)[1]).lower() in SUFFIXES:
        name = name.removesuffix(ending)
    return f"{name}.html"


def _read(
    reading: Captures, most: int, profile: str, link_rate: int | None
) -> dict[str, Any] | None:
    """The data of the page, `None` when nothing can be read."""
    from ibwire.report.html import Closer
    from ibwire.report.page_survey import Survey

    survey = Survey(reading.name, profile, link_rate)
    _take(reading, survey)
    for error in reading.damage:
        print_error(error)
    if reading.damage and not survey.frames:
        return None
    surveyed = survey.finish(is_whole=not reading.damage)
    surveyed.files = frames_of(reading).files
    closer = Closer(surveyed, most)
    _take(reading, closer)
    return closer.finish()


def _take(reading: Captures, taker: Survey | Closer) -> None:
    with progress() as bar:
        for columns in reading.read(bar.read):
            taker.take(columns)
