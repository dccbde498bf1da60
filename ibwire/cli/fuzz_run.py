"""`ibwire fuzz run`: attacks until the budget is spent, findings as they come."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ibwire.base.errors import CaptureError, OutputError
from ibwire.base.output import Output, make_directory
from ibwire.cli.fuzz_live import FuzzTargetOptions, target_options
from ibwire.cli.fuzzing import (
    FOUND,
    INTERRUPTED,
    Budget,
    BudgetType,
    complaints,
    require_writable,
    saved_target,
)
from ibwire.cli.messages import print_error
from ibwire.cli.paths import InputPath, OutputDirectory, OutputPath
from ibwire.cli.sources import Unreadable as UnreadableCapture
from ibwire.cli.terminal import console
from ibwire.cli.values import IPAddress, QueuePairNumber
from ibwire.fuzz.artefacts import brief_text, checked_script, save, write_junit, write_sarif
from ibwire.fuzz.campaign import ENDLESS, Campaign
from ibwire.fuzz.case import Role, step_text, to_json
from ibwire.fuzz.judge.findings import Finding
from ibwire.fuzz.prefetch import Prefetcher
from ibwire.fuzz.recording import Recording, record
from ibwire.fuzz.report import Report
from ibwire.fuzz.report_text import counted, finding_lines
from ibwire.fuzz.run_file import Known, Session, Settings, load
from ibwire.fuzz.stepper import Maker
from ibwire.fuzz.targets.testbed import Target
from ibwire.fuzz.vocabulary.operators import groups
from ibwire.fuzz.watchdog import watchdog
from ibwire.programs.endpoint import Interrupted
from ibwire.rc.profile import PROFILES

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

USUAL = Budget(20_000, 600)
"""Without `--budget`."""

STOPS = (KeyboardInterrupt, Interrupted)
"""What Ctrl-C and, on a link, SIGTERM raise."""

SHOWN = 10
"""Unstable differences that are listed for people; --json has all, and so has the directory."""

PAUSE = 30.0
"""Seconds after which a run is saved though it has found nothing."""


def _names(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[str, ...]:
    if value is None:
        return ()
    names = tuple(dict.fromkeys(each.strip() for each in value.split(",")))
    if "" in names:
        raise click.BadParameter(f"{value!r}: a name is missing")
    return names


@click.command("run")
@click.option(
    "--target", "name", metavar="TARGET", help="emu, emu:PROFILE, or py:MODULE:ARGUMENT. [emu]"
)
@click.option(
    "--profile", type=click.Choice(list(PROFILES)), help="Profile of the reference. [spec]"
)
@click.option(
    "--role",
    type=click.Choice([str(each) for each in Role]),
    help="Part of the device that is attacked. [both; on a link: responder]",
)
@click.option("--ops", metavar="A,B", callback=_names, help="Use only these groups of operators.")
@click.option(
    "--seed-capture",
    "capture",
    metavar="FILE",
    type=InputPath(),
    help="Take valid traffic from this capture.",
)
@click.option(
    "--device", type=IPAddress(), help="With --seed-capture: address of the device in it."
)
@click.option("--qpn", type=QueuePairNumber(), help="With --seed-capture: its queue pair.")
@click.option("--seed", type=click.IntRange(0), help="Seed of the cases. [0]")
@click.option(
    "--budget",
    type=BudgetType(),
    default=USUAL,
    help="Packets, a time, or both: 100kpkt, 10min, 1Mpkt,1h. [20kpkt,10min]",
)
@click.option(
    "--jobs",
    "jobs",
    type=click.IntRange(1, 64),
    metavar="N",
    help="Run cases ahead in N processes; the result is the same. [1]",
)
@click.option("--stop-after", type=click.IntRange(1), metavar="N", help="End after N findings.")
@click.option(
    "-o",
    "--output",
    "directory",
    metavar="DIR",
    type=OutputDirectory(path_type=Path),
    help="Write the findings to a new directory.",
)
@click.option(
    "--resume",
    metavar="DIR",
    type=OutputDirectory(exists=True, path_type=Path),
    help="Continue the run in DIR with another budget.",
)
@click.option(
    "--known",
    metavar="DIR|FILE",
    type=InputPath(exists=True, path_type=Path),
    help="Do not report what the run in DIR has found; FILE is its run.json.",
)
@click.option("--junit", metavar="FILE", type=OutputPath(), help="Write the findings as JUnit XML.")
@click.option("--sarif", metavar="FILE", type=OutputPath(), help="Write the findings as SARIF.")
@click.option("--html", metavar="FILE", type=OutputPath(), help="Write the findings as a page.")
@click.option(
    "--json", "as_json", is_flag=True, help="Print one object per finding, and one for the run."
)
@target_options
def command(  # long: one parameter and help line for each option
    name: str | None,
    profile: str | None,
    role: str | None,
    ops: tuple[str, ...],
    capture: str | None,
    device: str | None,
    qpn: int | None,
    seed: int | None,
    budget: Budget,
    jobs: int | None,
    stop_after: int | None,
    directory: Path | None,
    resume: Path | None,
    known: Path | None,
    junit: str | None,
    sarif: str | None,
    html: str | None,
    as_json: bool,
    live: FuzzTargetOptions,
) -> None:
    """Attack a device until the budget is spent, and report findings as they come.

    The target is the emulator, in virtual time, with one of its profiles, or with --dev and
    --peer a device on a link, by drill's agent on its host. The reference is the emulator
    with --profile. A choice that the specification leaves open is not a finding: the run adopts
    it from the target and reports it at the end. Ctrl-C ends a run and saves its findings.

    \b
    ibwire fuzz --target emu:rxe -o findings/
    ibwire fuzz --role requester --budget 100kpkt,10min --seed 7
    ibwire fuzz --seed-capture my.pcap --device 10.0.0.2
    ibwire fuzz --resume findings/
    ibwire fuzz --dev eth1 --peer 192.0.2.7 --budget 10min -o findings/

    Exit status: 0 nothing found, 1 findings or the device is gone, 2 wrong usage or an
    unreadable file, 3 an unreadable capture, 130 interrupted.
    """
    given: dict[str, object] = {
        "target": name,
        "profile": profile,
        "role": None if role is None else Role(role),
        "ops": ops,
        "seed": seed,
        "capture": capture,
        "device": device,
        "qpn": qpn,
    }
    given = {key: value for key, value in given.items() if value not in (None, ())}
    opened = live.open(target=name, jobs=jobs)
    with opened as on_link, complaints(), nullcontext() if on_link else watchdog():
        if on_link is not None:
            usual = {} if resume is not None else {"role": on_link.role}
            given = {**usual, **given, "target": on_link.name}
        session = _session(given, directory, resume)
        tested = on_link or saved_target(session.settings.target, is_named=name is not None)
        run = _Run(session, tested, resume or directory, as_json=as_json)
        run.makes_page = html is not None
        if known is not None:
            run.accepted = load(known).known
            for each in run.accepted:
                session.report.accept(each.group, each.causes)
        for path in (junit, sarif, html):
            if path is not None:
                require_writable(path)
        interrupted = run.carry_out(budget, stop_after, jobs or 1)
        run.end(junit, sarif, html)
        if run.failure is not None:
            raise run.failure
    if interrupted:
        print_error("interrupted; the findings so far are saved")
        sys.exit(INTERRUPTED)
    if session.known or run.is_lost:
        sys.exit(FOUND)


def _session(given: dict[str, object], directory: Path | None, resume: Path | None) -> Session:
    """A new run, or the one to resume."""
    if resume is not None:
        if directory is not None:
            raise click.UsageError("--resume writes where the run is: leave -o out")
        session = load(resume)
        for key, value in given.items():
            before = getattr(session.settings, key)
            if value != before:
                name = "seed-capture" if key == "capture" else key
                raise click.UsageError(f"--{name} {value}: the run in {resume} has {before!r}")
        return session
    if directory is not None and directory.exists() and any(directory.iterdir()):
        raise click.UsageError(f"{directory} is not empty: name a new one, or --resume it")
    settings = replace(Settings(), **given)  # type: ignore[arg-type]
    if settings.qpn is not None and not settings.capture:
        raise click.UsageError("--qpn is of a recorded exchange: give --seed-capture")
    if settings.capture and not settings.device:
        raise click.UsageError("--seed-capture needs --device, the address of the device in it")
    if settings.device and not settings.capture:
        raise click.UsageError("--device is an address in a capture: give --seed-capture")
    if settings.capture and settings.role is Role.CM:
        raise click.UsageError("--seed-capture is for role responder, requester or both")
    known = groups(settings.role)
    for name in settings.ops:
        if name not in known:
            raise click.UsageError(f"--ops: {name!r} is not one of {', '.join(known)}")
    return Session.new(settings)


def _maker(settings: Settings) -> Maker:
    """The generators of a run; a recording that cannot be read ends it as with other commands."""
    try:
        return settings.maker()
    except CaptureError as error:
        raise UnreadableCapture(str(error)) from None


class _Run:
    """A run, and what it prints."""

    def __init__(
        self, session: Session, tested: Target, directory: Path | None, *, as_json: bool
    ) -> None:
        self._session = session
        self._tested = tested
        self._directory = directory
        self._as_json = as_json
        self._failures: list[tuple[str, str, str]] = []
        self._briefs: dict[str, str] = {}
        """Each finding of this run in a line."""
        self.accepted: Sequence[Known] = ()
        """Findings that the user knows already."""
        self.makes_page = False
        """Whether findings are kept for a page."""
        self._parts: dict[str, str] = {}
        """Of that page, by the name of the finding."""
        self._seconds = 0.0
        self.failure: CaptureError | None = None
        """Why nothing more can be written, which ends the run."""
        settings = session.settings
        self._campaign = Campaign(
            tested.testbed(settings.role),
            _maker(settings),
            profile=settings.profile,
            first=session.next_case,
            report=session.report,
            origin=settings.origin,
        )
        self._before = session.report.packets
        if directory is not None:  # as long as nothing is lost if it fails
            make_directory(directory)
            session.save(directory, self._campaign)

    @property
    def is_lost(self) -> bool:
        """Whether the target was given up."""
        return bool(self._campaign.lost)

    def carry_out(self, budget: Budget, stop_after: int | None, jobs: int) -> bool:
        """Execute cases, with this many processes; returns whether the user interrupted it.

        What the fingerprint shows is reported also when time is up.
        """
        campaign, report = self._campaign, self._campaign.report
        packets = self._before + (budget.packets or ENDLESS)
        start, found, saved = time.monotonic(), 0, 0.0

        def is_over() -> bool:
            self._seconds = time.monotonic() - start
            return budget.seconds is not None and self._seconds >= budget.seconds

        def is_at_end() -> bool:
            is_spent = report.packets >= packets or is_over()
            is_lost = bool(campaign.lost or self.failure)
            return is_lost or (is_spent and not campaign.has_more_to_show)

        with _progress(budget) as bar:
            try:
                with Prefetcher(self._session.settings, jobs) as ahead:
                    while not is_at_end():
                        finding = ahead.advance(campaign, packets, is_over)
                        bar.tell(report, self._before, self._seconds)
                        if finding is not None:
                            found += 1
                            with bar.hidden():
                                self._take(finding)
                        elif self._seconds >= saved + PAUSE:
                            self._save()
                            saved = self._seconds
                        if campaign.is_interrupted or found == stop_after:
                            break
            except STOPS:
                is_over()
                return True
        is_over()
        return campaign.is_interrupted

    def _take(self, finding: Finding) -> None:
        try:
            recording, reason = self._keep(finding)
        except STOPS:  # the campaign waits for it: it must be there
            self._tell(finding, *self._keep(finding))
            raise
        except CaptureError as error:  # it is reported all the same
            self.failure = error
            recording, reason = record(finding.case, self._tested), "it could not be written"
            if finding.number > len(self._session.known):
                self._session.add(finding, has_script=False)
        self._tell(finding, recording, reason)

    def _tell(self, finding: Finding, recording: Recording, reason: str) -> None:
        lines = list(finding_lines(finding, recording))
        self._failures.append((f"F{finding.number:04}", finding.bucket, "\n".join(lines)))
        self._briefs[f"F{finding.number:04}"] = f": {brief_text(finding, recording)}"
        if self.makes_page:
            from ibwire.report.fuzz_page import finding_part

            self._parts[f"F{finding.number:04}"] = finding_part(finding, recording)
        if self._as_json:
            click.echo(json.dumps(_as_object(finding, recording, reason)))
            return
        if reason:
            lines.append(f"  no script: {reason}")
        click.echo("\n".join(lines))
        click.echo()

    def _keep(self, finding: Finding) -> tuple[Recording, str]:
        """Save it; returns the recording of the target, and why there is no script."""
        session = self._session
        if self._directory is None:
            _, reason = checked_script(finding, self._tested)
            recording = record(finding.case, self._tested)
        else:
            path = self._directory / f"F{finding.number:04}"
            recording, reason = save(finding, path, self._tested)
        if finding.number > len(session.known):
            session.add(finding, has_script=not reason)
        self._save()
        return recording, reason

    def _save(self) -> None:
        """Write how far it has come."""
        if self._directory is None or self.failure is not None:
            return
        try:
            self._session.save(self._directory, self._campaign)
        except OutputError as error:
            self.failure = error

    def end(self, junit: str | None, sarif: str | None, html: str | None) -> None:
        """Write and sum up what there is."""
        self._save()
        if self._as_json:
            click.echo(json.dumps(self._summary()))
        else:
            click.echo("\n".join(self._lines()))
        if junit is not None:
            write_junit(junit, self._session.settings.target, self._all_failures())
        if sarif is not None:
            found = [
                (
                    each.name,
                    each.rule,
                    each.group,
                    f"{each.bucket}{self._briefs.get(each.name, '')}",
                )
                for each in self._session.known
            ]
            write_sarif(sarif, self._session.settings.target, found)
        if html is not None:
            with Output(html) as output:
                output.text.writelines(self._page())

    def _page(self) -> Iterator[str]:
        """Findings by rule, in the order of the first of each."""
        from ibwire.report.fuzz_page import brief_part, fuzz_page

        by_rule: dict[str, list[str]] = {}
        for known in self._session.known:
            part = self._parts.get(known.name)
            if part is None:
                part = brief_part(known.name, known.bucket, known.origin)
            by_rule.setdefault(known.rule, []).append(part)
        return fuzz_page(self._tested.name, list(self._lines()), by_rule)

    def _all_failures(self) -> list[tuple[str, str, str]]:
        """Those of this run, and those that were there before it went on."""
        new = {number for number, _, _ in self._failures}
        before = [
            (known.name, known.bucket, f"{known.bucket}\n{known.rule}\n{known.origin}")
            for known in self._session.known
            if known.name not in new
        ]
        return before + self._failures

    def _summary(self) -> dict[str, object]:
        report = self._campaign.report
        tried, pairs, answers = report.coverage.tried()
        return {
            "kind": "run",
            "target": self._tested.name,
            "profile": self._session.settings.profile,
            "role": self._session.settings.role,
            "seed": self._session.settings.seed,
            "packets": report.packets,
            "sent": self._campaign.sent or None,
            "cases": report.cases,
            "next_case": self._campaign.next_case,
            "seconds": round(self._seconds, 3),
            "findings": {known.bucket: report.seen[known.bucket] for known in self._session.known},
            "known": dict(report.accepted),
            "choices": report.choices,
            "lost": self._campaign.lost or None,
            "unstable": dict(report.unstable),
            "unexamined": dict(report.unexamined),
            "coverage": {"tried": tried, "pairs": pairs, "answers": answers}
            | ({"cells": len(report.coverage.cells)} if report.coverage.cells else {}),
        }

    def _known_lines(self) -> Iterator[str]:
        """Which of the accepted findings were met, and which were not."""
        report = self._campaign.report
        again = sum(report.accepted.values())
        seen = sum(count > 0 for count in report.accepted.values())
        yield f"known     {seen} of {len(report.accepted)}, seen {counted(again, 'time')}"
        missing = [each for each in self.accepted if not report.accepted[each.group]]
        for number, each in enumerate(missing):
            yield f"{'' if number else 'not met':10}{each.name} {each.bucket}"
        if missing and report.unexamined:
            yield f"{'':10}not examined, or repaired: `ibwire fuzz replay` of a finding shows which"
        elif missing:
            yield f"{'':10}not reached, or repaired: `ibwire fuzz replay` of a finding shows which"

    def _lines(self) -> Iterator[str]:
        report, settings = self._campaign.report, self._session.settings
        sent = report.packets - self._before
        rate = f", {sent / self._seconds:,.0f} packets/s" if self._seconds else ""
        more = f" ({report.packets:,} in all)" if self._before else ""
        yield (
            f"{counted(sent, 'packet')}{more}, {counted(report.cases, 'case')}, "
            f"{self._seconds:.1f} s{rate}, seed {settings.seed}"
        )
        others = self._campaign.sent - sent
        if others > 0:
            yield f"besides   {counted(others, 'packet')} for the fingerprint and to repeat cases"
        yield f"target    {self._tested.name}"
        yield f"reference profile {settings.profile}"
        again = sum(report.seen.values()) - len(report.seen)
        found = (
            f"{len(report.seen):,}, seen {counted(again, 'time')} more" if report.seen else "none"
        )
        yield f"findings  {found}"
        if report.accepted:
            yield from self._known_lines()
        tried, pairs, answers = report.coverage.tried()
        yield f"coverage  {tried} of {pairs} pairs of opcode and state, {answers} different answers"
        if report.coverage.cells:
            yield f"          {len(report.coverage.cells):,} cells (ibwire fuzz cover)"
        for number, (what, rule) in enumerate(report.choices.items()):
            yield f"{'' if number else 'choices':10}{what} ({rule})"
        if self._campaign.lost:
            yield f"ended     the device is not there: {self._campaign.lost}"
            if self._tested.place and not self._campaign.sent:
                yield f"{'':10}on its host an agent must run: ibwire agent, or python3 agent.py"
        for number, (bucket, count) in enumerate(report.unstable.most_common(SHOWN)):
            yield f"{'' if number else 'unstable':10}{bucket}: {count}"
        hidden = len(report.unstable) - SHOWN
        if hidden > 0:
            yield f"{'':10}and {hidden} more: --json, and run.json of -o, have all"
        yield from _pending(report)
        if self._directory is not None and self.failure is None:
            yield f"saved     {self._directory}"


def _pending(report: Report) -> Iterator[str]:
    """What was not examined so far, and why."""
    if not report.unexamined:
        return
    kinds, times = len(report.unexamined), sum(report.unexamined.values())
    yield f"pending   {counted(kinds, 'kind')} of difference, seen {counted(times, 'time')}:"
    if report.seen:
        yield f"{'':10}most are probably other effects of the findings above;"
    yield f"{'':10}a run examines differences in a quarter of its time;"
    yield f"{'':10}a longer run or --resume examines these, too"


def _as_object(finding: Finding, recording: Recording, reason: str) -> dict[str, object]:
    return {
        "kind": "finding",
        "number": finding.number,
        "bucket": finding.bucket,
        "rule": finding.rule,
        "known_deviation": finding.about or None,
        "packet": finding.packet,
        "origin": finding.original.origin,
        "steps": [step_text(step) for step in finding.case.steps],
        "difference": finding.difference.kind,
        "expected": list(recording.expected),
        "got": list(recording.got),
        "script": not reason,
        "case": json.loads(to_json(finding.case)),
    }


class _Bar:
    """How far a run has come, on a terminal."""

    def __init__(self, bar: Progress | None, task: TaskID | None, budget: Budget) -> None:
        self._bar = bar
        self._task = task
        self._budget = budget

    def tell(self, report: Report, before: int, seconds: float) -> None:
        """It has come so far. before: packets of the runs that this one resumes."""
        if self._bar is None or self._task is None:
            return
        packets, coverage = report.packets - before, report.coverage
        parts = [packets / (self._budget.packets or ENDLESS)]
        parts.append(seconds / self._budget.seconds if self._budget.seconds else 0)
        rate = packets / seconds if seconds else 0
        covered = len(coverage.cells) or len(coverage.counts)
        text = f"{packets:,} packets, {rate:,.0f}/s, coverage: {covered:,}"
        text += f", findings: {len(report.seen)}"
        self._bar.update(self._task, completed=max(parts), description=text)

    @contextmanager
    def hidden(self) -> Iterator[None]:
        """Out of the way of what is printed."""
        if self._bar is None:
            yield
            return
        self._bar.stop()
        yield
        self._bar.start()


@contextmanager
def _progress(budget: Budget) -> Iterator[_Bar]:
    if not sys.stderr.isatty():
        yield _Bar(None, None, budget)
        return
    from rich import progress as shown

    with shown.Progress(
        shown.TextColumn("{task.description}"),
        shown.BarColumn(),
        shown.TimeElapsedColumn(),
        shown.TimeRemainingColumn(),
        console=console(stderr=True),
        transient=True,
        redirect_stdout=False,
    ) as bar:
        yield _Bar(bar, bar.add_task("fingerprint", total=1.0), budget)
