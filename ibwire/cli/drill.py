"""`ibwire drill`: run conformance scripts against a device."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import click
from click.shell_completion import CompletionItem

from ibwire.base.errors import CaptureError, OutputError, ScriptError, VerbsError
from ibwire.base.interrupt import signal_of
from ibwire.base.output import check_writable, make_directory, protect
from ibwire.base.units import MS
from ibwire.cli.drill_live import DrillTargetOptions, target_options
from ibwire.cli.messages import print_error, print_note
from ibwire.cli.paths import InputPath, OutputDirectory, OutputPath
from ibwire.cli.values import QueuePairNumber, completions, did_you_mean
from ibwire.connections.device_packets import DeviceConnection, read_device_connection
from ibwire.drill import Case, Script, Verdict, load, report, run
from ibwire.drill.files import write_capture, write_junit
from ibwire.drill.shipped import NAME, parts, shipped_path
from ibwire.drill.targets.live import Bench
from ibwire.drill.targets.recorded import judge
from ibwire.drill.verdict import CaseError, time_line
from ibwire.programs.endpoint import Interrupted
from ibwire.rc.profile import PROFILES

FAILED = 1
WRONG_USAGE = 2
UNREADABLE = 3
SIGNAL = 128
"""Added to the number of a signal in the exit status, as shells do."""


class ScriptPath(InputPath):
    """A script or a directory of scripts; `conformance` is those of ibwire, if no file is."""

    def __init__(self) -> None:
        super().__init__(exists=True, path_type=Path)

    def convert(
        self,
        value: str | os.PathLike[str],
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> str | bytes | os.PathLike[str]:
        """The path, that of the package for a shipped script."""
        if not os.path.lexists(value):
            value = shipped_path(Path(value)) or value
            if not os.path.lexists(value):
                near = did_you_mean(os.fspath(value), [f"{NAME}/{part}" for part in parts()])
                self.fail(f"no such script or directory: {value}{near}", param, ctx)
        return super().convert(value, param, ctx)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Files, and the shipped scripts by subject."""
        names = [NAME, *(f"{NAME}/{part}" for part in parts())]
        return completions(names, incomplete) or super().shell_complete(ctx, param, incomplete)


@click.command("drill")
@click.argument("paths", nargs=-1, required=True, type=ScriptPath())
@click.option("--profile", type=click.Choice(list(PROFILES)), default="spec", show_default=True)
@click.option("--junit", metavar="FILE", type=OutputPath(), help="Write the results as JUnit XML.")
@click.option(
    "--json", "as_json", is_flag=True, help="Print one object per case, and one for the run."
)
@click.option(
    "-o",
    "--output",
    "directory",
    metavar="DIR",
    type=OutputDirectory(path_type=Path),
    help="Write the packets of each failing case to DIR, as pcapng with comments.",
)
@click.option("--case", "wanted", metavar="TEXT", help="Run only cases whose name contains TEXT.")
@click.option(
    "--exclude",
    "excluded",
    metavar="TEXT",
    multiple=True,
    help="Leave out cases whose name contains TEXT; more than once for several.",
)
@click.option(
    "--capture",
    metavar="FILE",
    type=InputPath(),
    help="Compare the scripts with this recording.",
)
@click.option("--device", metavar="IP", help="With --capture: address of the device under test.")
@click.option("--qpn", type=QueuePairNumber(), help="With --capture: its queue pair.")
@target_options
@click.option("-v", "--verbose", is_flag=True, help="Print the packet list of passing cases too.")
def command(
    paths: tuple[Path, ...],
    profile: str,
    junit: str | None,
    as_json: bool,
    directory: Path | None,
    wanted: str | None,
    excluded: tuple[str, ...],
    capture: str | None,
    device: str | None,
    qpn: int | None,
    live: DrillTargetOptions,
    verbose: bool,
) -> None:
    """Run drill scripts (*.drill) on the emulator, in virtual time.

    With --dev and --peer the device under test is on that link, and ibwire is its peer.
    A device that dies is restarted by --restart, and the other cases are run; --exclude leaves
    out the case that it dies of.
    With --capture the scripts are compared with a recording: a script passes if it matches
    from some packet on.

    PATHS are scripts, or directories that are searched for them; `conformance` is the
    scripts that are part of ibwire, `conformance/acks` those about ACKs. Exit status 1: a case
    failed, or the device no longer answered; 2: a script cannot be read, or a case has a
    number out of range.

    \b
    ibwire drill conformance --junit out.xml
    ibwire drill my.drill --profile rxe -v -o failures/
    ibwire drill my.drill --dev eth0 --peer 10.0.0.2 --connect agent
    ibwire drill my.drill --capture my.pcap --device 10.0.0.2
    """
    scripts = list(_scripts(paths))
    if not scripts:
        raise click.UsageError(f"no *.drill file in {', '.join(map(str, paths))}")
    protect(*scripts)
    recorded = _recorded_connection(capture, device, qpn)
    if recorded is not None and live.is_wanted:
        raise click.UsageError("--capture and --dev: either a recording or a device")
    _check_places(junit, directory)
    selection = _Selection(wanted, excluded)
    run_ = _Run(profile, selection, as_json=as_json, verbose=verbose, directory=directory)
    with live.open() as bench:
        number = run_.carry_out(scripts, recorded, bench)
        lost = run_.broken or ("" if bench is None else bench.lost)
        deaths = 0 if bench is None else bench.deaths
        run_.end(scripts, junit, lost, deaths=deaths)
        run_.print_hint(live)
    if lost:
        print_error(f"{lost}; the other cases did not run")
    if number is not None:
        print_error("interrupted; the other cases did not run")
        sys.exit(SIGNAL + number)
    if run_.errors:
        sys.exit(WRONG_USAGE)
    if not run_.verdicts and not lost:
        raise click.UsageError(selection.reason)
    if run_.failed or lost or deaths:
        sys.exit(FAILED)


@dataclass(frozen=True, slots=True)
class _Selection:
    """The cases that `--case` and `--exclude` leave, by their names."""

    wanted: str | None
    excluded: tuple[str, ...]

    def has(self, name: str) -> bool:
        """Whether a case is run."""
        return (self.wanted is None or self.wanted in name) and not self.excludes(name)

    def excludes(self, name: str) -> bool:
        """Whether `--exclude` leaves a case out."""
        return any(text in name for text in self.excluded)

    @property
    def reason(self) -> str:
        """Why no case was run."""
        if self.wanted is None:
            return "--exclude leaves no case"
        rest = ", or --exclude leaves it out" if self.excluded else ""
        return f"no case has {self.wanted!r} in its name{rest}"


class _Run:
    """Runs cases one after the other and reports each at once."""

    def __init__(
        self,
        profile: str,
        selection: _Selection,
        *,
        as_json: bool,
        verbose: bool,
        directory: Path | None,
    ) -> None:
        self.verdicts: list[Verdict] = []
        self.errors: list[ScriptError] = []
        self.broken = ""
        """Why the run ended early, if a file could not be read or written."""
        self._profile = profile
        self._selection = selection
        self._as_json = as_json
        self._verbose = verbose
        self._directory = directory
        self._written: set[Path] = set()

    @property
    def failed(self) -> int:
        """The number of failed cases."""
        return sum(verdict.failure is not None for verdict in self.verdicts)

    def print_hint(self, live: DrillTargetOptions) -> None:
        """Name the option for a link that is late, if something did not come there."""
        failures = [verdict.failure for verdict in self.verdicts if verdict.failure is not None]
        if live.is_wanted and any(failure.is_absence for failure in failures):
            print_note(
                f"what is more than {live.slack / MS:g} ms late counts as missing; "
                "on a busy machine try a larger --tolerance"
            )

    def carry_out(
        self, scripts: Sequence[Path], recorded: DeviceConnection | None, bench: Bench | None
    ) -> int | None:
        """Run all cases of all scripts; returns the signal that has ended the run, if any.

        Cases that did not run have a verdict, too.
        """
        number = self._carry_out(scripts, recorded, bench)
        if number is not None or self.broken:
            self._pass_over(scripts, self.broken or "interrupted", recorded=recorded is not None)
        return number

    def _carry_out(
        self, scripts: Sequence[Path], recorded: DeviceConnection | None, bench: Bench | None
    ) -> int | None:
        for path in scripts:
            try:
                for verdict in self._run(path, recorded, bench):
                    self._take(verdict)
            except ScriptError as error:
                self._refuse(error)
            # The results so far are still reported.
            except CaptureError as error:
                self.broken = str(error)
                break
            except KeyboardInterrupt as interrupt:
                return signal_of(interrupt)
            except Interrupted as interrupted:
                return interrupted.number
        return None

    def _run(
        self, path: Path, recorded: DeviceConnection | None, bench: Bench | None
    ) -> Iterator[Verdict]:
        script = load(path, self._profile, recorded=recorded is not None)
        for case in self._cases(script):
            try:
                if recorded is not None:
                    verdict = judge(script, case, recorded, self._profile)
                elif bench is not None:
                    verdict = bench.run(script, case, self._profile)
                else:
                    verdict = run(script, case, self._profile)
            except ScriptError as error:
                self._refuse(CaseError(case.name, error))
            else:
                yield verdict

    def _pass_over(self, scripts: Sequence[Path], why: str, *, recorded: bool) -> None:
        """Add a verdict for each case that has not run."""
        done = {(verdict.path, verdict.case) for verdict in self.verdicts}
        done |= {(error.path, error.case) for error in self.errors if isinstance(error, CaseError)}
        for path in scripts:
            try:
                script = load(path, self._profile, recorded=recorded)
            except ScriptError:
                continue
            for case in self._cases(script):
                if (script.path, case.name) not in done:
                    rest = Verdict(
                        script.path, case.name, script.rule, script.section, self._profile
                    )
                    rest.skipped, rest.is_lost = f"not run: {why}", True
                    self._take(rest)

    def _cases(self, script: Script) -> Iterator[Case]:
        """The cases that are wanted."""
        for case in script.cases:
            if self._selection.has(f"{script.path} [{case.name}]"):
                yield case

    def _refuse(self, error: ScriptError) -> None:
        self.errors.append(error)
        print_error(error)

    def _take(self, verdict: Verdict) -> None:
        self.verdicts.append(verdict)
        _show(verdict, as_json=self._as_json, verbose=self._verbose)
        if self._directory is not None and verdict.failure is not None:
            path = write_capture(verdict, self._directory, self._written)
            click.echo(f"packets: {path}", err=True)
        verdict.forget_packets()

    def end(self, scripts: Sequence[Path], junit: str | None, lost: str, *, deaths: int) -> None:
        """Print the summary and write the files; `lost` is why the other cases did not run."""
        _sum_up(
            scripts=len(scripts),
            verdicts=self.verdicts,
            failed=self.failed,
            errors=self.errors,
            profile=self._profile,
            lost=lost,
            deaths=deaths,
            as_json=self._as_json,
        )
        if junit is not None:
            write_junit(junit, self.verdicts, self.errors)


def _scripts(paths: Sequence[Path]) -> Iterator[Path]:
    """The named scripts and those in named directories, each once."""
    seen: set[str] = set()
    for path in paths:
        for each in sorted(path.rglob("*.drill")) if path.is_dir() else [path]:
            place = os.path.realpath(each)
            if place not in seen and not each.is_dir():
                seen.add(place)
                yield each


def _check_places(junit: str | None, directory: Path | None) -> None:
    """Raise at the start for output files that cannot be written."""
    try:
        if directory is not None:
            make_directory(directory)
        if junit is not None:
            check_writable(junit)
    except OutputError as error:
        raise click.UsageError(str(error)) from None


def _recorded_connection(
    capture: str | None, device: str | None, qpn: int | None
) -> DeviceConnection | None:
    """The recorded connection that scripts run against, `None` without `--capture`."""
    if capture is None:
        if device is not None or qpn is not None:
            raise click.UsageError("--device and --qpn need --capture")
        return None
    if device is None:
        raise click.UsageError("--capture needs --device: which address is the device under test?")
    try:
        return read_device_connection(capture, device, qpn)
    except VerbsError as error:
        raise click.BadParameter(error.reason, param_hint="--device") from None
    except CaptureError as error:
        print_error(error)
        sys.exit(UNREADABLE)


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
                    "skipped": verdict.skipped or None,
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
    elif verdict.failure is not None:
        click.echo(f"FAIL  {report(verdict)}\n")
    elif verdict.is_lost:
        pass  # the summary has their number and the reason
    elif verdict.skipped:
        click.echo(f"skip  {verdict.name}: {verdict.skipped}")
    elif verbose:
        click.echo(f"pass  {verdict.name}")
        click.echo("\n".join(time_line(verdict)) + "\n")


def _sum_up(
    *,
    scripts: int,
    verdicts: Sequence[Verdict],
    failed: int,
    errors: Sequence[ScriptError],
    profile: str,
    lost: str,
    deaths: int,
    as_json: bool,
) -> None:
    skipped = sum(bool(verdict.skipped) for verdict in verdicts)
    not_run = sum(verdict.is_lost for verdict in verdicts)
    wrong = sum(isinstance(error, CaseError) for error in errors)
    unreadable = len(errors) - wrong
    if as_json:
        head = {"kind": "run", "profile": profile, "scripts": scripts, "cases": len(verdicts)}
        counts = {"failed": failed, "skipped": skipped, "unreadable": unreadable, "errors": wrong}
        click.echo(json.dumps(head | counts | {"lost": lost or None, "deaths": deaths}))
        return
    text = f"{_count(scripts, 'script')}, {_count(len(verdicts), 'case')}, profile {profile}: "
    if failed:
        text += f"{failed} failed"
    elif skipped:
        text += f"{len(verdicts) - skipped} passed"
    else:
        text += "all passed" if verdicts else "nothing ran"
    if skipped > not_run:
        text += f", {skipped - not_run} skipped"
    if not_run:
        text += f", {not_run} not run"
    if wrong:
        text += f", {_count(wrong, 'case')} cannot be carried out"
    if unreadable:
        text += f", {_count(unreadable, 'script')} cannot be read"
    if deaths:
        text += f"; the device died {_count(deaths, 'time')} and was restarted"
    click.echo(text)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
