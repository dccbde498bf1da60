"""A finding in words, for the terminal and for `report.txt`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby

from ibwire.fuzz.case import (
    Case,
    Mad,
    Packet,
    Pause,
    Step,
    connection_text,
    field_text,
    message_on_wire,
    packet_text,
    step_text,
)
from ibwire.fuzz.judge.findings import Finding
from ibwire.fuzz.judge.witness import WITNESS
from ibwire.fuzz.recording import Recording
from ibwire.fuzz.vocabulary.cm.wording import otherness

_PLACES = ("queue pair answers", "at the PSN wrap")
"""How brackets of names end that are about more than the packet."""

SHOWN_STEPS = 40
"""Of a case, the last ones."""

SHOWN_THINGS = 4
"""Answers or completions."""


def finding_lines(finding: Finding, recording: Recording) -> Iterator[str]:
    """What was found, in a few lines."""
    yield f"F{finding.number:04}  {finding.bucket}"
    yield f"  rule      {finding.rule}"
    left, before = finding.case.packets, finding.original.packets
    yield f"  found     {found_by(finding)}"
    if left and before != left:
        steps = len(finding.case.steps)
        among = f" in {steps:,} steps" if steps > left else ""
        yield f"  minimised to {counted(left, 'packet')}{among}, of {before:,}"
    yield from case_lines(explained(finding))
    yield from outcome_lines(recording)


def found_by(finding: Finding) -> str:
    """The packet of a run that has shown it, or the case of the fingerprint."""
    origin = finding.original.origin
    if origin.startswith(WITNESS):
        return "by a case of the fingerprint"
    return f"packet {finding.packet:,}, {origin}"


def explained(finding: Finding) -> Case:
    """The case of a finding; its last step says in brackets what its name says of it."""
    case = finding.case
    last = case.steps[-1] if case.steps else None
    if not isinstance(last, Packet):
        return case
    found = re.match(rf"{re.escape(packet_text(last))} \(([^()]+)\)", finding.bucket)
    if found is None or found[1].endswith(_PLACES):
        return case
    return case.with_steps([*case.steps[:-1], replace(last, why=found[1])])


def case_lines(case: Case) -> Iterator[str]:
    """The unusual attributes of the connection, and the steps."""
    unusual = connection_text(case.connection)
    if unusual:
        yield f"  qp        {unusual}"
    lines = folded(map(step_line, case.steps))
    hidden = lines[-SHOWN_STEPS:][0][0] if lines else 0
    if hidden:
        yield f"            ... {counted(hidden, 'step')} before"
    for number, text in lines[-SHOWN_STEPS:]:
        yield f"    {number + 1:>4}    {text}"


def step_line(step: Step) -> str:
    """A step, in brackets what is wrong with it on purpose, and whether the next one comes before
    the device answers.
    """
    if not isinstance(step, Packet):
        return f"< {step_text(step)}" if isinstance(step, Pause) else step_text(step)
    why = step.why
    if isinstance(step, Mad):
        why = "" if message_on_wire(step) else otherness(step) or why
    why = f"  ({why})" if why else ""
    return f"< {step_text(step)}{why}{'  then at once' if step.held else ''}"


def folded(texts: Iterable[str]) -> list[tuple[int, str]]:
    """Each text with its number from 0; equal ones that follow each other as one, with the first.

    A run of them says how many they are.
    """
    found = []
    number = 0
    for text, equal in groupby(texts):
        count = len(list(equal))
        found.append((number, text + times_text(count)))
        number += count
    return found


def times_text(count: int) -> str:
    """How often a step is there, behind its text."""
    return f"   {count} times" if count > 1 else ""


def unsaid(step: Step, said: str) -> str:
    """The fields of a packet that a case sets and that a text about the packet does not say."""
    fields = step.fields if isinstance(step, Packet) else {}
    return "".join(
        f" {name}={field_text(name, value)}"
        for name, value in fields.items()
        if f"{name.partition('.')[2]}=" not in said
    )


def outcome_lines(recording: Recording) -> Iterator[str]:
    """What the reference did in the last step, and what the target did."""
    yield f"  expected  {some(recording.expected)}"
    yield f"  got       {some(recording.got)}"


def some(things: Sequence[str]) -> str:
    """The first few of them."""
    hidden = len(things) - SHOWN_THINGS
    text = ", ".join(things[:SHOWN_THINGS])
    return f"{text}, and {hidden} more" if hidden > 0 else text


def counted(number: int, noun: str) -> str:
    """A number of things."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
