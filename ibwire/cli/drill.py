"""`ibwire drill`: conformance scripts against a device, and what it did otherwise."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from ibwire.cli.values import QueuePairNumber
from ibwire.drill import Verdict, load, report, run
from ibwire.drill.files import write_capture, write_junit
from ibwire.drill.recorded import Exchange, judge, read_exchange
from ibwire.drill.verdict import time_line
from ibwire.errors import CaptureError, ScriptError, VerbsError
from ibwire.rc.profile import PROFILES

FAILED = 1
WRONG_USAGE = 2
UNREADABLE = 3
INTERRUPTED = 130
"""As a shell tells of SIGINT."""


@click.command("drill")
@click.argument("paths", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option("--profile", type=click.Choice(list(PROFILES)), default="spec", show_default=True)
@click.option("--junit", metavar="FILE", help="Write the results as JUnit XML.")
@click.option("--json", "as_json", is_flag=True, help="One object a case, one for the whole.")
@click.option(
    *("-o", "--output", "directory"),
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write the packets of every case that fails to DIR, as pcapng with comments.",
)
@click.option("--case", "wanted", metavar="TEXT", help="Only cases whose name has this in it.")
@click.option("--capture", metavar="FILE", help="Hold the scripts against a recorded exchange.")
@click.option("--device", metavar="IP", help="With --capture: the device under test in it.")
@click.option("--qpn", type=QueuePairNumber(), help="With --capture: which of its queue pairs.")
@click.option("-v", "--verbose", is_flag=True, help="The time line of cases that pass, too.")
def command(
    paths: tuple[Path, ...],
    profile: str,
    junit: str | None,
    as_json: bool,
    directory: Path | None,
    wanted: str | None,
    capture: str | None,
    device: str | None,
    qpn: int | None,
    verbose: bool,
) -> None:
    """Carry out drill scripts (*.drill) on the emulator, in virtual time.

    With --capture they are held against what was recorded instead: a script passes that
    fits from some packet on.

    PATHS are scripts, or directories that are searched for them. Exit status 1 when a
    case fails, 2 when a script cannot be read.

    \b
    ibwire drill tests/conformance --junit out.xml
    ibwire drill my.drill --profile rxe -v -o failures/
    ibwire drill my.drill --capture my.pcap --device 10.0.0.2
    """
    scripts = list(_scripts(paths))
    if not scripts:
        raise click.UsageError(f"no *.drill file in {', '.join(map(str, paths))}")
    exchange = _exchange(capture, device, qpn)
    verdicts: list[Verdict] = []
    errors: list[ScriptError] = []
    interrupted = False
    for path in scripts:
        try:
            for verdict in _run(path, profile, wanted, exchange):
                verdicts.append(verdict)
                _show(verdict, as_json=as_json, verbose=verbose)
                if directory is not None and not verdict.passed:
                    click.echo(f"packets: {write_capture(verdict, directory)}", err=True)
                verdict.forget_packets()
        except ScriptError as error:
            errors.append(error)
            click.echo(f"ibwire: {error}", err=True)
        except (CaptureError, OSError) as error:
            raise click.ClickException(_reason(error)) from None
        except KeyboardInterrupt:  # what there is so far is told and written
            interrupted = True
            break
    if junit is not None:
        try:
            write_junit(junit, verdicts, errors)
        except OSError as error:
            raise click.ClickException(_reason(error)) from None
    failed = sum(not verdict.passed for verdict in verdicts)
    _sum_up(len(scripts), verdicts, failed, errors, profile, as_json=as_json)
    if interrupted:
        click.echo("ibwire: interrupted; the rest did not run", err=True)
        sys.exit(INTERRUPTED)
    if errors:
        sys.exit(WRONG_USAGE)
    if not verdicts:
        raise click.UsageError(f"no case has {wanted!r} in its name")
    if failed:
        sys.exit(FAILED)


def _scripts(paths: Sequence[Path]) -> Iterator[Path]:
    """Scripts that are named, and those below directories, each once."""
    seen: set[Path] = set()
    for path in paths:
        for each in sorted(path.rglob("*.drill")) if path.is_dir() else [path]:
            if each.resolve() not in seen:
                seen.add(each.resolve())
                yield each


def _exchange(capture: str | None, device: str | None, qpn: int | None) -> Exchange | None:
    """What scripts are held against, `None` for the emulator."""
    if capture is None:
        if device is not None or qpn is not None:
            raise click.UsageError("--device and --qpn are of a recorded exchange: give --capture")
        return None
    if device is None:
        raise click.UsageError("--capture needs --device: which address is the device under test?")
    try:
        return read_exchange(capture, device, qpn)
    except VerbsError as error:
        raise click.BadParameter(error.reason, param_hint="--device") from None
    except CaptureError as error:
        click.echo(f"ibwire: {error}", err=True)
        sys.exit(UNREADABLE)


def _run(
    path: Path, profile: str, wanted: str | None, exchange: Exchange | None
) -> Iterator[Verdict]:
    script = load(path, profile, recorded=exchange is not None)
    for case in script.cases:
        if wanted is not None and wanted not in f"{path} [{case.name}]":
            continue
        if exchange is None:
            yield run(script, case, profile)
        else:
            yield judge(script, case, exchange, profile)


def _show(verdict: Verdict, *, as_json: bool, verbose: bool) -> None:
    if as_json:
        failure = verdict.failure
        click.echo(
            json.dumps(
                {
                    "kind": "case",
                    "script": verdict.path,
                    "case": verdict.case,
                    "profile": verdict.profile,
                    "rule": verdict.rule,
                    "section": verdict.section,
                    "passed": verdict.passed,
                    "failure": failure
                    and {
                        "line": failure.line.number,
                        "text": failure.line.text.strip(),
                        "expected": failure.expected,
                        "got": failure.got,
                        "details": list(failure.details),
                    },
                }
            )
        )
    elif not verdict.passed:
        click.echo(f"FAIL  {report(verdict)}\n")
    elif verbose:
        click.echo(f"pass  {verdict.name}")
        click.echo("\n".join(time_line(verdict)) + "\n")


def _sum_up(
    scripts: int,
    verdicts: Sequence[Verdict],
    failed: int,
    errors: Sequence[ScriptError],
    profile: str,
    *,
    as_json: bool,
) -> None:
    if as_json:
        head = {"kind": "run", "profile": profile, "scripts": scripts, "cases": len(verdicts)}
        click.echo(json.dumps(head | {"failed": failed, "unreadable": len(errors)}))
        return
    text = f"{_count(scripts, 'script')}, {_count(len(verdicts), 'case')}, profile {profile}: "
    text += f"{failed} failed" if failed else "all passed" if verdicts else "nothing ran"
    if errors:
        text += f", {_count(len(errors), 'script')} cannot be read"
    click.echo(text)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _reason(error: CaptureError | OSError) -> str:
    if isinstance(error, OSError):
        return f"{error.filename}: {error.strerror}"
    return str(error)
