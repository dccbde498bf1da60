"""`ibwire sweep`: a scenario with several values and seeds, one row a run."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from ibwire.base.errors import (
    CaptureError,
    EncodeError,
    MissingExtra,
    OutputError,
    ScriptError,
    WorkError,
)
from ibwire.base.output import check_writable
from ibwire.base.toml import hint, read_content
from ibwire.base.toml_settings import parse_values
from ibwire.base.work import Work, cluster, one_by_one, processes
from ibwire.cli.messages import print_error
from ibwire.cli.paths import OutputPath
from ibwire.cli.run import WRONG_USAGE, ScenarioPath
from ibwire.cli.terminal import console
from ibwire.cli.values import MOST_JOBS
from ibwire.report.sweep_table import lines
from ibwire.scenario.expect import METRICS, unit_name
from ibwire.scenario.shipped import find
from ibwire.scenario.sweep import MOST_RUNS, Sweep

if TYPE_CHECKING:
    from ibwire.scenario.sweep_rows import SweepRows

SUFFIX = ".parquet"


@click.command("sweep")
@click.argument("scenario", type=ScenarioPath())
@click.option(
    "--set",
    "settings",
    metavar="KEY=VALUES",
    multiple=True,
    help="Values of a key, with commas between them; several options: every combination.",
)
@click.option(
    "--seeds",
    type=click.IntRange(1, MOST_RUNS),
    default=1,
    show_default=True,
    metavar="N",
    help="Runs of each combination, from the scenario's seed on.",
)
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    type=OutputPath(),
    help="Write one row a run to this .parquet file, or continue it.",
)
@click.option(
    "--show",
    "shown",
    metavar="METRIC",
    multiple=True,
    help="Metric in the table at the end, also CONNECTION.METRIC.",
)
@click.option("--jobs", type=click.IntRange(1, MOST_JOBS), metavar="N", help="Run in N processes.")
@click.option("--ray", metavar="ADDRESS", help="Run in a Ray cluster; `local` starts one.")
def command(
    scenario: str,
    settings: tuple[str, ...],
    seeds: int,
    output: str | None,
    shown: tuple[str, ...],
    jobs: int | None,
    ray: str | None,
) -> None:
    """Run SCENARIO with every combination of values, and with several seeds of each.

    A run that fails is a row with its error. The file of an interrupted sweep has the runs
    that have ended: the same command does the others. The results do not depend on --jobs and
    --ray.

    Exit status 1: a run failed or did not meet an expectation; 2: an error in the scenario.

    \b
    ibwire sweep one-percent-loss --set connection.mtu=1024,4096 --seeds 20 --jobs 4
    ibwire sweep my.toml --set wire.rate=25G,100G --seeds 5 -o runs.parquet
    """
    if jobs and ray:
        raise click.UsageError("--jobs and --ray exclude each other")
    columns = [_metric(name) for name in shown]
    if output is not None:
        if not output.endswith(SUFFIX):
            raise click.UsageError(f"cannot write rows to {output!r}: use {SUFFIX}")
        check_writable(output)
    sweep = _read(scenario, settings, seeds)
    try:
        rows = _rows(sweep, output)
        _run(sweep, rows, cluster(ray) if ray else processes(jobs) if jobs else one_by_one)
    except (MissingExtra, WorkError) as error:
        raise click.ClickException(str(error)) from None
    except OutputError:
        raise
    except CaptureError as error:
        raise click.ClickException(str(error)) from None
    found = rows.rows(sweep.runs())
    for line in lines(found, sweep, columns):
        click.echo(line)
    if not all(row["passed"] for row in found):
        sys.exit(1)


def _metric(name: str) -> str:
    """The column of a metric, or of that of a connection: `goodput`, `victim.goodput`."""
    known = {unit_name(metric): unit_name(metric) for metric in METRICS}
    known |= {metric: unit_name(metric) for metric in METRICS}
    if name in known:
        return known[name]
    for metric, column in known.items():
        if name.endswith(f".{metric}"):
            return name.removesuffix(metric) + column
    raise click.BadParameter(f"no metric {name!r}{hint(name, METRICS)}", param_hint="--show")


def _read(scenario: str, settings: tuple[str, ...], seeds: int) -> Sweep:
    """The sweep, with a scenario that can be read."""
    try:
        axes = tuple(map(parse_values, settings))
    except EncodeError as error:
        reason = str(error).removeprefix("setting: ")
        raise click.BadParameter(reason, param_hint="--set") from None
    keys = [key for key, _ in axes]
    if "seed" in keys:
        raise click.BadParameter("seed is set by --seeds", param_hint="--set")
    for key in keys:
        if keys.count(key) > 1:
            raise click.BadParameter(f"{key} twice: give its values at once", param_hint="--set")
    try:
        file = find(scenario)
        sweep = Sweep(str(file), read_content(file), axes, range(1, seeds + 1))
        if len(sweep) > MOST_RUNS:
            raise click.UsageError(f"{len(sweep):,} runs, at most {MOST_RUNS:,}")
        return sweep.checked()
    except ScriptError as error:
        print_error(error)
        sys.exit(WRONG_USAGE)


def _rows(sweep: Sweep, output: str | None) -> SweepRows:
    from ibwire.scenario.sweep_rows import SweepRows

    return SweepRows(sweep, output)


def _run(sweep: Sweep, rows: SweepRows, work: Work) -> None:
    """Do the runs that are not there yet; what has ended is kept, however this ends."""
    missing = [run for run in sweep.runs() if run not in rows]
    if rows.before:
        there = len(sweep) - len(missing)
        click.echo(f"{there:,} of {len(sweep):,} runs are there already", err=True)
    try:
        with _progress(len(missing)) as advance:
            for run, row in work(sweep.task, missing, in_order=False):
                rows.add(run, row)
                advance()
    except KeyboardInterrupt as interrupt:
        rows.save()
        interrupt.add_note(_kept(rows, sweep))
        raise
    except BaseException:
        rows.save()
        raise
    rows.save()


def _kept(rows: SweepRows, sweep: Sweep) -> str:
    done = len(rows.rows(sweep.runs()))
    if rows.path is None:
        return f"{done:,} of {len(sweep):,} runs have ended; with -o FILE they would be kept"
    return f"{rows.path} has {done:,} of {len(sweep):,} runs: the same command does the others"


@contextmanager
def _progress(count: int) -> Iterator[Any]:
    """A bar on a terminal; gives the function to call after each run."""
    if not sys.stderr.isatty():
        yield lambda: None
        return
    from rich import progress

    bar = progress.Progress(
        progress.TextColumn("runs"),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TimeRemainingColumn(),
        console=console(stderr=True),
        transient=True,
        redirect_stdout=False,
    )
    with bar:
        task = bar.add_task("", total=count)
        yield lambda: bar.advance(task)
