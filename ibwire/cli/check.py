"""`ibwire check`: violations of the protocol in a capture."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import click

from ibwire.capture import CaptureReader, RecordBatch
from ibwire.cli.messages import print_warning
from ibwire.cli.paths import captures_argument
from ibwire.cli.sources import UNREADABLE, Sources
from ibwire.cli.status import exit_if, statuses_of
from ibwire.cli.terminal import hanging, style
from ibwire.cli.values import RuleName, did_you_mean
from ibwire.connections.status import Status
from ibwire.dissect import Columns
from ibwire.rules.catalogue import FAMILIES, RULES
from ibwire.rules.conformance import Conformance
from ibwire.rules.findings import ANY, EXAMPLES, PROFILES, Finding, Rule, Severity
from ibwire.rules.status_notes import STATUS, STATUS_RULE, status_notes

FOUND = 1
"""Exit status when something at or above `--fail-on` was found."""

NEVER = "never"


@dataclass(frozen=True, slots=True)
class FailOn:
    """What `--fail-on` names."""

    severity: Severity | None
    """Of a finding, or higher; `None` for no finding."""
    statuses: frozenset[Status]
    """Of a connection."""


class _FailOn(click.ParamType[FailOn]):
    """Severities and statuses, joined by commas."""

    name = "names"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> FailOn:
        """Read the names; the lowest of several severities counts."""
        if isinstance(value, FailOn):
            return value
        severities, statuses = [], set()
        for word in map(str.strip, str(value).split(",")):
            if word.upper() in Severity.__members__:
                severities.append(Severity[word.upper()])
            elif word != NEVER:
                if not statuses_of(word):
                    names = [*(each.word for each in Severity), NEVER, *Status]
                    hint = did_you_mean(word.removesuffix("+"), names)
                    reason = f"no severity or status {word!r}: {', '.join(names)}{hint}"
                    self.fail(reason, param, ctx)
                statuses.update(statuses_of(word))
        return FailOn(min(severities, default=None), frozenset(statuses))


FOLDED = {Severity.ERROR: 10, Severity.WARNING: 10, Severity.NOTE: 3}
"""Most places of one rule that are listed; more become one line."""

COLOURS = {Severity.ERROR: "red", Severity.WARNING: "yellow", Severity.NOTE: "cyan"}


def _list_rules(context: click.Context, option: click.Parameter, wanted: bool) -> None:
    if not wanted or context.resilient_parsing:
        return
    width = max(map(len, RULES))
    for family, about in FAMILIES.items():
        click.echo(style(about, bold=True))
        for rule in RULES.values():
            if rule.family == family:
                severity = style(f"{rule.severity.word:7}", fg=COLOURS[rule.severity])
                line = f"  {severity}  {rule.id:{width}}  {rule.sentence}{_about(rule)}"
                click.echo(hanging(line, 11))
    context.exit()


@click.command("check")
@captures_argument
@click.option(
    "--profile",
    type=click.Choice(PROFILES),
    default=ANY,
    show_default=True,
    help="Implementation whose habits are expected.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per finding.")
@click.option(
    "--fail-on",
    type=_FailOn(),
    default=Severity.ERROR.word,
    show_default=True,
    metavar="NAME[,...]",
    help="Exit with status 1 if a finding has this severity (note, warning, error) or a higher "
    "one, or a connection this status; `unresolved+` means unresolved or worse. `never` for none.",
)
@click.option(
    "--only", multiple=True, metavar="ID", type=RuleName(), help="Apply only this rule or family."
)
@click.option(
    "--ignore",
    multiple=True,
    metavar="ID",
    type=RuleName(STATUS),
    help="Do not apply this rule or family; `status` leaves out the notes about connections.",
)
@click.option(
    "--rules",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_list_rules,
    help="List the rules and exit.",
)
def command(
    captures: tuple[str, ...],
    profile: str,
    as_json: bool,
    fail_on: FailOn,
    only: tuple[str, ...],
    ignore: tuple[str, ...],
) -> None:
    """Check captures against the rules of the protocol.

    Only what the two ends did is reported, not what the network did to packets (loss,
    damage, reordering); a note names connections that have failed, or had trouble
    when the capture ended. A known habit of an implementation is reported as a note
    that names it. With --profile the habits of that implementation are not reported,
    and those of others have their full severity. --rules lists the rules.

    \b
    ibwire check capture.pcap
    ibwire check --profile rxe --fail-on warning capture.pcap
    ibwire check --only naks --only reads.restart --json *.pcap
    """
    rules = _selected(only, ignore)
    sources = Sources(captures, progress=sys.stderr.isatty())
    worst = 0
    statuses: set[Status] = set()
    several = len(sources.names) > 1
    waits = sources.has_bar and sys.stdout.isatty()
    waiting: list[str] = []  # for a terminal that shows the progress meanwhile
    for name, judged in _judge(sources, profile, rules):
        findings = judged.finish(name)
        for problem in judged.summary.all_problems():
            print_warning(f"{name}: {problem}")
        if not only and STATUS not in ignore:
            findings += status_notes(name, judged.summary.connections)
        worst = max([worst, *(finding.severity for finding in findings)])
        if fail_on.statuses:
            statuses.update(each.status.status for each in judged.summary.connections)
        for line in _json(findings) if as_json else _text(name, judged, findings, several):
            line = line if as_json else hanging(line, 9)
            if waits:
                waiting.append(line)
            else:
                click.echo(line)
    for line in waiting:
        click.echo(line)
    if sources.failed:
        sys.exit(UNREADABLE)
    if fail_on.severity is not None and worst >= fail_on.severity:
        sys.exit(FOUND)
    exit_if(fail_on.statuses, statuses)


def _judge(
    sources: Sources, profile: str, rules: Sequence[Rule]
) -> Iterable[tuple[str, Conformance]]:
    """The findings of each capture that could be opened."""
    current: CaptureReader | None = None
    judged = Conformance(profile, rules)
    for capture, batch in sources.batches():
        if capture is not current:
            if current is not None:
                yield current.path, judged
                judged = Conformance(profile, rules)
            current = capture
        _take(judged, capture, batch)
    if current is not None:
        yield current.path, judged
    elif not sources.failed:
        yield from ((name, judged) for name in sources.names)  # files without a frame


def _take(judged: Conformance, capture: CaptureReader, batch: RecordBatch) -> None:
    judged.take(Columns(batch, capture.path))


def _selected(only: Sequence[str], ignore: Sequence[str]) -> list[Rule]:
    return [
        rule
        for rule in RULES.values()
        if (not only or rule.id in only or rule.family in only)
        and rule.id not in ignore
        and rule.family not in ignore
    ]


def _json(findings: Iterable[Finding]) -> Iterable[str]:
    return (json.dumps(finding.to_json(), ensure_ascii=False) for finding in findings)


def _text(
    name: str, judged: Conformance, findings: Sequence[Finding], several: bool
) -> Iterable[str]:
    """One line per finding, then one that counts them."""
    places: dict[str, list[Finding]] = {}
    for finding in findings:
        kind = finding.text if finding.rule is STATUS_RULE else finding.rule.id
        places.setdefault(kind, []).append(finding)
    for same in places.values():
        if len(same) > FOLDED[same[0].severity]:
            yield _folded(same)
        else:
            yield from map(_line, same)
    shown = os.path.basename(name) if several else name
    if not judged.summary.packets:
        reason = "".join(f"; {each}" for each in judged.summary.why_none())
        yield f"{shown}: no RDMA packet among {_counted(judged.summary.frames, 'frame')}{reason}"
        return
    counts = [
        _counted(sum(finding.severity is each for finding in findings), each.word)
        for each in reversed(Severity)
    ]
    yield f"{shown}: {_counted(judged.summary.packets, 'RDMA packet')}: {', '.join(counts)}"


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _line(finding: Finding) -> str:
    place = finding.location
    where = "elsewhere"
    if place.src:
        qpn = "" if place.dst_qpn is None else f" qp=0x{place.dst_qpn:06x}"
        where = f"{place.src} > {place.dst}{qpn}"
    if place.connection:
        where = f"connection {place.connection}, {where}"
    return f"{_head(finding)}  {where}: {finding.text}; {_packets(finding)}{_about(finding.rule)}"


def _folded(findings: Sequence[Finding]) -> str:
    first = min(findings, key=lambda each: each.numbers[:1])
    count = sum(finding.count for finding in findings)
    numbers = sorted({number for finding in findings for number in finding.numbers})
    whole = Finding(
        first.rule, first.severity, first.location, first.text, count, numbers[:EXAMPLES]
    )
    where = f"{len(findings)} {'directions' if count else 'connections'}"
    return f"{_head(first)}  {where}: {first.text}; {_packets(whole)}{_about(first.rule)}"


def _head(finding: Finding) -> str:
    severity = style(f"{finding.severity.word:7}", fg=COLOURS[finding.severity])
    return f"{severity}  {finding.rule.id}"


def _packets(finding: Finding) -> str:
    if not finding.numbers:
        return "see `ibwire explain`"
    numbers = ", ".join(map(str, finding.numbers))
    if finding.count == 1:
        return f"packet {numbers}"
    if finding.count == len(finding.numbers):
        return f"packets {numbers}"
    return f"{finding.count} packets: {numbers}, ..."


def _about(rule: Rule) -> str:
    habit = f"; a habit of {', '.join(rule.habits)}" if rule.habits else ""
    return f"  [{'; '.join(filter(None, (rule.section, rule.reference)))}{habit}]"
