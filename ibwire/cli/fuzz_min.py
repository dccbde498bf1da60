"""`ibwire fuzz min`: a case as short as it can be."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path

import click

from ibwire.base.output import STANDARD_OUTPUT, protect
from ibwire.cli.fuzz_live import FuzzTargetOptions, target_options
from ibwire.cli.fuzzing import (
    FOUND,
    INTERRUPTED,
    case_option,
    complaints,
    judge,
    open_target,
    read_case,
    require_writable,
)
from ibwire.cli.messages import print_error
from ibwire.cli.paths import InputPath, OutputPath
from ibwire.drill.files import write_text
from ibwire.fuzz.judge.packet_faults import with_own_faults
from ibwire.fuzz.recording import record
from ibwire.fuzz.report_text import case_lines, outcome_lines
from ibwire.fuzz.saved import case_file, case_text
from ibwire.fuzz.shortest import shortest_alone
from ibwire.fuzz.watchdog import watchdog


@click.command("min")
@click.argument("path", metavar="CASE", type=InputPath(exists=True, path_type=Path))
@click.option(
    "--target",
    "name",
    metavar="TARGET",
    help="emu, emu:PROFILE, or py:MODULE:ARGUMENT. [that of the run]",
)
@case_option
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    type=OutputPath(allow_dash=True),
    help="Write the shorter case to this file. [standard output]",
)
@target_options
def command(
    path: Path,
    name: str | None,
    wanted: str | None,
    output: str | None,
    live: FuzzTargetOptions,
) -> None:
    """Minimise a case: find the shortest and simplest one that shows the same difference.

    CASE is a drill script, or the directory of a finding: then the case as it was found.

    \b
    ibwire fuzz min findings/F0001/original.drill -o short.drill
    ibwire fuzz min findings/F0001 --dev eth1 --peer 192.0.2.7 --restart ./reboot-dut

    Exit status: 0 the case shows no difference, 1 it shows one and was minimised, 2 wrong
    usage or no case, 130 interrupted: the shortest case so far is written.
    """
    if output is not None:
        require_writable(output)
    opened = live.open(target=name)
    with opened as on_link, complaints(), nullcontext() if on_link else watchdog():
        file = case_file(path, "original") if path.is_dir() else path
        protect(file)
        case = read_case(file, wanted)
        tested = on_link or open_target(name, file.parent)
        campaign, profile, difference = judge(case, tested, file)
        if difference is None:
            click.echo(f"no difference between {tested.name} and the reference", err=True)
            return
        short, profile, difference = shortest_alone(campaign, case, difference, profile)
        if difference is None:
            print_error(f"{tested.name} has differed once, but not when the case was repeated")
            sys.exit(FOUND)
        short = with_own_faults(short, profile)
        recording = record(short, tested, profile)
        write_text(output or STANDARD_OUTPUT, case_text(short))
    click.echo("\n".join([*case_lines(short), *outcome_lines(recording)]), err=True)
    if campaign.is_interrupted:
        print_error("interrupted; the case may not be as short as possible")
        sys.exit(INTERRUPTED)
    sys.exit(FOUND)
