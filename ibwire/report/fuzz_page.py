"""Findings of `ibwire fuzz` as one HTML page: by rule, the packets of each as a ladder.

The page has no script, and all text of a run is escaped.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from itertools import groupby

from ibwire.base.printable import printable
from ibwire.fuzz.case import Packet, Pause, Step, connection_text, step_text
from ibwire.fuzz.judge.findings import Finding
from ibwire.fuzz.recording import Entry, Recording
from ibwire.fuzz.report_text import counted, explained, found_by, step_line, times_text, unsaid
from ibwire.report.html import template

MAXIMUM_ROWS = 60
"""Of a ladder, the last ones."""

MAXIMUM_EQUAL = 3
"""Equal steps one after the other that are all shown."""

MAXIMUM_TEXT = 400
"""Characters: what crashes may have much to say."""


def fuzz_page(
    target: str, summary: Sequence[str], findings: Mapping[str, Sequence[str]]
) -> Iterator[str]:
    """The page, in pieces of text.

    summary: lines about the run. findings: by rule, the parts that `finding_part` and `brief_part`
    make.
    """
    title = f"ibwire fuzz: {target}"
    yield _HEAD.format(title=_text(title), style=template("page.css") + template("fuzz.css"))
    lines = "\n".join(_text(line) for line in summary)
    yield f"<section><pre>{lines}</pre></section>\n"
    for rule, parts in findings.items():
        yield f"<section>\n<h2>{_text(rule)}</h2>\n"
        yield f'<p class="hint">{counted(len(parts), "finding")}</p>\n'
        yield from parts
        yield "</section>\n"
    yield "</main>\n</body>\n</html>\n"


def finding_part(finding: Finding, recording: Recording) -> str:
    """A finding with its packets, and what was expected beside what was received."""
    rows = list(_rows(finding, recording))
    hidden = len(rows) - MAXIMUM_ROWS
    attributes = connection_text(finding.case.connection)
    return "\n".join(
        [
            f"<h3>F{finding.number:04} {_text(finding.bucket)}</h3>",
            f'<p class="hint">Found {_text(found_by(finding))}</p>',
            *[f'<p class="hint">Queue pair: {_text(attributes)}</p>'] * bool(attributes),
            '<p class="sides"><b>tester</b><b>device</b></p>',
            '<ol class="ladder">',
            *[f'<li class="own">... {counted(hidden, "row")} before</li>'] * (hidden > 0),
            *rows[-MAXIMUM_ROWS:],
            "</ol>",
            '<div class="pair">',
            _outcome("expected", recording.expected),
            _outcome("got", recording.got),
            "</div>\n",
        ]
    )


def brief_part(name: str, bucket: str, origin: str) -> str:
    """A finding from before the run was resumed: its packets are in its directory."""
    return (
        f"<h3>{_text(name)} {_text(bucket)}</h3>\n"
        f'<p class="hint">Found before the run was resumed: {_text(origin)}; '
        f"its packets: {_text(name)}/case.pcapng</p>\n"
    )


def _rows(finding: Finding, recording: Recording) -> Iterator[str]:
    """Each packet, and each action of the application of the device before its packets.

    Of many equal steps one after the other the first and the last, and how many there are.
    """
    entries: dict[int, list[Entry]] = {}
    for entry in recording.entries:
        entries.setdefault(entry.step, []).append(entry)
    differing = -1 if recording.difference is None else recording.difference.step
    steps = explained(finding).steps

    def like(at: int) -> object:
        answers = [_NUMBER.sub("", each.text) for each in entries.get(at, [])]
        return at == differing, step_line(steps[at]), answers

    for _, equal in groupby(range(len(steps)), like):
        numbers = list(equal)
        first, last = numbers[0], numbers[-1]
        if not any(entries.get(each) for each in numbers):
            differs = " differs" * (first == differing)
            times = times_text(len(numbers))
            yield _row("own" + differs, first, f"{step_text(steps[first])}{times}")
            continue
        if len(numbers) > MAXIMUM_EQUAL:
            numbers = [first, last]
        for number in numbers:
            if number == last != first and len(numbers) != last - first + 1:
                yield _row("own", first + 1, f"... {counted(last - first - 1, 'step')} like it")
            yield from _rows_of(steps[number], number, entries.get(number, []), number == differing)


def _rows_of(step: Step, number: int, entries: Sequence[Entry], is_last: bool) -> Iterator[str]:
    differs = " differs" * is_last
    if not isinstance(step, Packet | Pause) or not entries:
        yield _row("own" + differs, number, step_text(step))
    for entry in entries:
        if entry.way == "<":
            why = f" ({step.why})" if isinstance(step, Packet) and step.why else ""
            text = entry.text + unsaid(step, entry.text) + why
            yield _row("in" + differs, number, text)
        else:
            yield _row("out" + differs, number, entry.text)


def _row(kind: str, step: int, text: str) -> str:
    return f'<li class="{kind}"><i>{step + 1}</i><span>{_text(text)}</span></li>'


def _outcome(name: str, things: Sequence[str]) -> str:
    lines = "".join(f"<li>{_text(each)}</li>" for each in things)
    return f'<div class="{name}"><b>{name}</b><ul>{lines or "<li>nothing</li>"}</ul></div>'


def _text(text: str) -> str:
    """Text of a run as it may stand in the page."""
    cut = text if len(text) <= MAXIMUM_TEXT else f"{text[:MAXIMUM_TEXT]}..."
    return escape(printable(cut))


_NUMBER = re.compile(r"\d+")
"""PSNs differ in packets that are alike otherwise."""

_HEAD = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{title}</title>
<style>
{style}
</style>
</head>
<body>
<header><div><p class="kicker">ibwire report of findings</p><h1>{title}</h1></div></header>
<main>
"""
