"""`ibwire tap`: a fault plan applied between two interfaces, or to a capture."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, NoReturn

import click

from ibwire.base.errors import CaptureError, EncodeError, LinkError, OutputError, ScriptError
from ibwire.base.output import Output
from ibwire.cli.messages import print_error, print_note
from ibwire.cli.paths import InputPath, OutputPath
from ibwire.cli.sources import UNREADABLE
from ibwire.cli.terminal import hanging
from ibwire.tap.bridge import Side, notes
from ibwire.tap.captures import FileTap
from ibwire.tap.live import LiveTap
from ibwire.tap.plan import Event, Plan, load_plan, shipped
from ibwire.tap.record import TapRecord

FAILED = 1
WRONG_USAGE = 2


@click.command("tap")
@click.argument("capture", required=False, type=InputPath())
@click.option(
    "--between",
    nargs=2,
    metavar="A B",
    help="Forward all frames between these two interfaces.",
)
@click.option(
    "--plan",
    metavar="FILE",
    type=InputPath(),
    help="Fault plan (TOML), or the name of a shipped plan.",
)
@click.option("--list", "listed", is_flag=True, help="List the shipped plans.")
@click.option(
    "-o",
    "--output",
    "outputs",
    metavar="FILE",
    type=OutputPath(allow_dash=True),
    multiple=True,
    help="Write the frames: given once for both interfaces, twice for one each.",
)
@click.option(
    "--a",
    "sources",
    metavar="ADDRESS",
    multiple=True,
    help="With CAPTURE: address or interface of side a.",
)
@click.option("--seed", type=click.IntRange(min=0), help="Random seed instead of that in the plan.")
@click.option("--time", "seconds", type=click.FloatRange(min=0), help="Stop after SECONDS.")
@click.option("--count", type=click.IntRange(1), metavar="N", help="Stop after N frames.")
@click.option("--spin", is_flag=True, help="Never sleep: less latency, one busy processor.")
@click.option(
    "--json", "as_json", is_flag=True, help="Print a JSON object for each event and one at the end."
)
def command(
    capture: str | None,
    between: tuple[str, str] | None,
    plan: str | None,
    listed: bool,
    outputs: tuple[str, ...],
    sources: tuple[str, ...],
    seed: int | None,
    seconds: float | None,
    count: int | None,
    spin: bool,
    as_json: bool,
) -> None:
    """Forward frames between two interfaces and apply a fault plan to them.

    All other frames pass unchanged and in order, so the tap works between any two devices.
    Side a is the first interface. With CAPTURE instead of the interfaces the plan
    is applied to its packets; side a is then the sender of the first one.

    \b
    ibwire tap --between eth1 eth2 --plan faults.toml -o both.pcapng
    ibwire tap --between eth1 eth2 --plan lumina
    ibwire tap in.pcap -o out.pcap --plan faults.toml
    """
    if listed:
        for name, description in shipped().items():
            click.echo(hanging(f"{name:24}{description}", 24))
        return
    if (capture is None) == (between is None):
        raise click.UsageError("one of CAPTURE and --between is required")
    if plan is None:
        raise click.UsageError("--plan is required; `ibwire tap --list` lists the shipped plans")
    try:
        loaded = load_plan(plan, seed)
        if between is not None:
            if sources:
                raise click.UsageError(
                    "--a requires CAPTURE: with --between side a is the first interface"
                )
            _between(between, loaded, outputs, seconds, count, spin, as_json)
        elif capture is not None:
            if seconds is not None or len(outputs) != 1:
                raise click.UsageError("CAPTURE requires one -o and excludes --time")
            _over(capture, loaded, outputs[0], sources, count, as_json)
    except (ScriptError, EncodeError) as error:
        _fail(error, WRONG_USAGE)
    except LinkError as error:
        _fail(error, FAILED)
    except OutputError:
        raise
    except CaptureError as error:
        _fail(error, UNREADABLE)


def _between(
    names: tuple[str, str],
    plan: Plan,
    outputs: Sequence[str],
    seconds: float | None,
    count: int | None,
    spin: bool,
    as_json: bool,
) -> None:
    if names[0] == names[1]:
        raise click.UsageError("--between requires two different interfaces")
    if len(outputs) > 2:
        raise click.UsageError("-o can be given once for both interfaces, or twice for one each")
    with ExitStack() as stack:
        first, second = (stack.enter_context(Side(name)) for name in names)
        record = stack.enter_context(TapRecord(outputs, names)) if outputs else None
        for note in notes([first, second]):
            print_note(note)
        tap = LiveTap(plan, (first, second), _EventPrinter(as_json), record, spin=spin)
        click.echo(f"passing between {names[0]} and {names[1]}", err=True)
        try:
            signal = tap.run(seconds=seconds, count=count)
        finally:
            # Also after an error, for which the counters are the first evidence.
            _report(plan, names, tap.counters(), tap.problems(), as_json)
    if signal is not None:
        sys.exit(128 + signal)
    if tap.problems():
        sys.exit(FAILED)


def _over(
    capture: str, plan: Plan, output: str, sources: Sequence[str], count: int | None, as_json: bool
) -> None:
    damage = None
    with Output(output) as file:
        with FileTap(plan, capture, file, _EventPrinter(as_json), sources) as tap:
            try:
                tap.run(count)
            except OutputError:
                raise
            except CaptureError as error:
                damage = error
            finally:
                _report(plan, ("a", "b"), tap.counters(), tap.problems(), as_json)
        if damage is not None:
            print_error(damage)
            file.input_failed = True
    if damage is not None:
        sys.exit(UNREADABLE)


def _fail(reason: object, status: int) -> NoReturn:
    print_error(reason)
    sys.exit(status)


class _EventPrinter:
    """Prints events."""

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json

    def __call__(self, event: Event) -> None:
        click.echo(json.dumps(event.as_dict()) if self._as_json else str(event))
        # A reader of a pipe needs each event at once.
        sys.stdout.flush()


def _report(
    plan: Plan,
    names: Sequence[str],
    counters: dict[str, Any],
    problems: Sequence[str],
    as_json: bool,
) -> None:
    """Print the counts of rules and frames."""
    if as_json:
        rules = [
            {"from": name, **each}
            for way, name in zip(plan.ways, names, strict=True)
            for each in way.hits()
        ]
        summary = {"kind": "end", "rules": rules, "frames": counters, "problems": problems}
        click.echo(json.dumps(summary))
    else:
        for way, name in zip(plan.ways, names, strict=True):
            for each in way.hits():
                click.echo(_rule_in_words(name, **each))
        for name, found in counters.items():
            counts = ", ".join(f"{what} {number}" for what, number in found.items())
            click.echo(f"{name}: {counts or 'no frames'}")
    sys.stdout.flush()
    for text in problems:
        print_error(text)


def _rule_in_words(name: str, rule: int, action: str, frames: int, unanswered: int = 0) -> str:
    count = "1 frame" if frames == 1 else f"{frames or 'no'} frames"
    rest = f", no reply to {unanswered} more" if unanswered else ""
    return f"rule {rule} from {name}: {action} applied to {count}{rest}"
