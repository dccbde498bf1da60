"""`ibwire fuzz replay`: a saved case executed again."""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from pathlib import Path

import click

from ibwire.cli.fuzz_live import FuzzTargetOptions, target_options
from ibwire.cli.fuzzing import (
    FOUND,
    case_option,
    complaints,
    judge,
    open_target,
    read_case,
)
from ibwire.cli.paths import InputPath
from ibwire.fuzz.recording import record
from ibwire.fuzz.report_text import case_lines, outcome_lines
from ibwire.fuzz.saved import case_file
from ibwire.fuzz.watchdog import watchdog


@click.command("replay")
@click.argument("path", metavar="CASE", type=InputPath(exists=True, path_type=Path))
@click.option(
    "--target",
    "name",
    metavar="TARGET",
    help="emu, emu:PROFILE, or py:MODULE:ARGUMENT. [that of the run]",
)
@case_option
@click.option("--json", "as_json", is_flag=True, help="One object.")
@click.option("-v", "--verbose", is_flag=True, help="Every packet, too.")
@target_options
def command(
    path: Path,
    name: str | None,
    wanted: str | None,
    as_json: bool,
    verbose: bool,
    live: FuzzTargetOptions,
) -> None:
    """Execute a saved case again, on a new connection.

    A choice that the specification leaves open is not a difference.
    CASE is the directory of a finding or a drill script; what a script expects is not read.

    \b
    ibwire fuzz replay findings/F0001
    ibwire fuzz replay findings/F0001/case.drill --target emu:hns -v
    ibwire fuzz replay findings/F0001 --dev eth1 --peer 192.0.2.7

    Exit status: 0 no difference any more, 1 the difference remains, 2 wrong usage or no case.
    """
    opened = live.open(target=name)
    with opened as on_link, complaints(), nullcontext() if on_link else watchdog():
        file = case_file(path, "case") if path.is_dir() else path
        case = read_case(file, wanted)
        tested = on_link or open_target(name, file.parent)
        _, profile, _ = judge(case, tested, file)
        recording = record(case, tested, profile)
    differs = recording.difference is not None
    if as_json:
        found = {
            "kind": "replay",
            "target": tested.name,
            "differs": differs,
            "step": None if recording.difference is None else recording.difference.step + 1,
            "expected": list(recording.expected),
            "got": list(recording.got),
        }
        click.echo(json.dumps(found))
    else:
        click.echo("\n".join(case_lines(case)))
        if verbose:
            for entry in recording.entries:
                click.echo(f"  step {entry.step + 1:>4}  {entry.way} {entry.text}")
        if recording.difference is not None:
            click.echo(f"differs at step {recording.difference.step + 1}")
            click.echo("\n".join(outcome_lines(recording)))
        else:
            click.echo(f"no difference between {tested.name} and the reference")
    if differs:
        sys.exit(FOUND)
