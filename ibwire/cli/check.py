"""`ibwire check`: violations of the protocol in a capture."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Sequence

import click

from ibwire.capture import CaptureReader, RecordBatch
from ibwire.cli.paths import captures_argument
from ibwire.cli.sources import UNREADABLE, Sources
from ibwire.cli.terminal import style
from ibwire.dissect import Columns
from ibwire.rules.catalogue import FAMILIES, RULES
from ibwire.rules.conformance import Conformance
from ibwire.rules.findings import ANY, EXAMPLES, PROFILES, Finding, Rule, Severity

FOUND = 1
"""Exit status when something at or above `--fail-on` was found."""

NEVER = "never"

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
                click.echo(f"  {severity}  {rule.id:{width}}  {rule.sentence}{_about(rule)}")
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
    type=click.Choice([*(each.word for each in Severity), NEVER]),
    default=Severity.ERROR.word,
    show_default=True,
    help="Exit with status 1 if a finding has this severity or a higher one.",
)
@click.option("--only", multiple=True, metavar="ID", help="Apply only this rule or family.")
@click.option("--ignore", multiple=True, metavar="ID", help="Do not apply this rule or family.")
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
    fail_on: str,
    only: tuple[str, ...],
    ignore: tuple[str, ...],
) -> None:
    """Check captures against the rules of the protocol.

    Only what the two ends did is reported, not what the network did to packets (loss,
    damage, reordering). A known habit of an implementation is reported as a note that
    names it. With --profile the habits of that implementation are not reported, and
    those of others have their full severity. --rules lists the rules.

    \b
    ibwire check capture.pcap
    ibwire check --profile rxe --fail-on warning capture.pcap
    ibwire check --only naks --only reads.restart --json *.pcap
    """
    rules = _selected(only, ignore)
    sources = Sources(captures, progress=sys.stderr.isatty())
    worst = 0
    several = len(sources.names) > 1
    waits = sources.has_bar and sys.stdout.isatty()
    waiting: list[str] = []  # for a terminal that shows the progress meanwhile
    for name, judged in _judge(sources, profile, rules):
        findings = judged.finish(name)
        worst = max([worst, *(finding.severity for finding in findings)])
        for line in _json(findings) if as_json else _text(name, judged, findings, several):
            if waits:
                waiting.append(line)
            else:
                click.echo(line)
    for line in waiting:
        click.echo(line)
    if sources.failed:
        sys.exit(UNREADABLE)
    if fail_on != NEVER and worst >= Severity[fail_on.upper()]:
        sys.exit(FOUND)


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
    for option, names in (("--only", only), ("--ignore", ignore)):
        for name in names:
            if name not in RULES and name not in FAMILIES:
                hint = "`ibwire check --rules` lists them"
                raise click.BadParameter(f"no rule or family {name!r}; {hint}", param_hint=option)
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
        places.setdefault(finding.rule.id, []).append(finding)
    for same in places.values():
        if len(same) > FOLDED[same[0].severity]:
            yield _folded(same)
        else:
            yield from map(_line, same)
    shown = os.path.basename(name) if several else name
    if not judged.summary.packets:
        yield f"{shown}: no RDMA packet among {_counted(judged.summary.frames, 'frame')}"
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
    where = f"{len(findings)} directions"
    return f"{_head(first)}  {where}: {first.text}; {_packets(whole)}{_about(first.rule)}"


def _head(finding: Finding) -> str:
    severity = style(f"{finding.severity.word:7}", fg=COLOURS[finding.severity])
    return f"{severity}  {finding.rule.id}"


def _packets(finding: Finding) -> str:
    numbers = ", ".join(map(str, finding.numbers))
    if finding.count == 1:
        return f"packet {numbers}"
    if finding.count == len(finding.numbers):
        return f"packets {numbers}"
    return f"{finding.count} packets: {numbers}, ..."


def _about(rule: Rule) -> str:
    habit = f"; a habit of {', '.join(rule.habits)}" if rule.habits else ""
    return f"  [{rule.section}; {rule.reference}{habit}]"
