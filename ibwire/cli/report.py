"""`ibwire report`: a capture as one HTML page."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

import click

from ibwire.base.errors import CaptureError
from ibwire.base.output import STANDARD_OUTPUT, Output, check_writable, temporary_directory
from ibwire.capture import open_capture
from ibwire.cli.messages import print_error
from ibwire.cli.paths import InputPath, OutputPath
from ibwire.cli.rereading import STANDARD_INPUT, progress, spooled
from ibwire.cli.sources import UNREADABLE, Unreadable
from ibwire.cli.values import Rate
from ibwire.dissect import Columns
from ibwire.rules.findings import ANY, PROFILES

if TYPE_CHECKING:
    from ibwire.report.html import Closer, Survey

MOST = 100
"""Most connections a page can plot: it holds all their points."""

SUFFIXES = (".gz", ".xz", ".zst", ".bz2", ".lz4", ".pcap", ".pcapng", ".cap", ".erf")
"""Suffixes of a capture that are not part of the page's name."""


@click.command("report")
@click.argument("capture", metavar="CAPTURE", type=InputPath())
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
def command(
    capture: str, output: str | None, most: int, profile: str, link_rate: int | None
) -> None:
    """Write an HTML page that shows the errors in a capture.

    The page is one file that needs no network: a summary, the connections, and
    for the worst of them plots of PSNs, latency, goodput and congestion over time, a
    description in words, and the findings of `ibwire check`.

    \b
    ibwire report capture.pcap
    ibwire report --connections 3 -o incident.html capture.pcap
    """
    output = output or _default_name(capture)
    check_writable(output)
    try:
        from ibwire.report.html import page

        with temporary_directory() as directory:
            path = spooled(capture, directory)
            content, failed = _read(path, capture, most, profile, link_rate)
    except CaptureError as error:
        raise Unreadable(str(error)) from None
    if content is None:
        sys.exit(UNREADABLE)
    with Output(output) as file:
        file.text.writelines(page(content))
        file.input_failed = failed
    if output != STANDARD_OUTPUT:
        click.echo(f"{output}: {os.path.getsize(output) / 1e6:.1f} MB", err=True)
    if failed:
        sys.exit(UNREADABLE)


def _default_name(capture: str) -> str:
    name = "capture" if capture == "-" else os.path.basename(capture)
    while (ending := os.path.splitext(name)[1]).lower() in SUFFIXES:
        name = name.removesuffix(ending)
    return f"{name}.html"


def _read(
    path: str, capture: str, most: int, profile: str, link_rate: int | None
) -> tuple[dict[str, Any] | None, bool]:
    """The data of the page, `None` when nothing can be read; and whether an error occurred."""
    from ibwire.report.html import Closer, Survey

    name = STANDARD_INPUT if capture == "-" else capture
    survey = Survey(name, profile, link_rate)
    if os.path.exists(path) and not os.path.isfile(path):
        raise CaptureError(name, None, "is not a file; report reads a capture twice")
    error = _take(path, survey)
    if error is not None:
        print_error(CaptureError(name, error.offset, error.reason))
        if not survey.frames:
            return None, True
    closer = Closer(survey.finish(is_whole=error is None), most)
    _take(path, closer)
    return closer.finish(), error is not None


def _take(path: str, reading: Survey | Closer) -> CaptureError | None:
    """Read a capture; returns the error that ended it early."""
    try:
        with progress() as bar, open_capture(path, reuse=True) as reader:
            for batch in reader.batches():
                reading.take(Columns(batch, path))
                bar.read(reader)
    except CaptureError as error:
        return error
    return None
