"""A finding in words, for the terminal and for `report.txt`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields

from ibwire.fuzz.case import Case, Connection, Packet, Pause, Step, step_text, value_text
from ibwire.fuzz.judge.findings import Finding
from ibwire.fuzz.judge.witness import WITNESS
from ibwire.fuzz.recording import Recording

SHOWN_STEPS = 20
"""Of a case, the last ones."""

SHOWN_THINGS = 4
"""Answers or completions."""


def finding_lines(finding: Finding, recording: Recording) -> Iterator[str]:
    """What was found, in a few lines."""
    yield f"F{finding.number:04}  {finding.bucket}"
    yield f"  rule      {finding.rule}"
    left, before = finding.case.packets, finding.original.packets
    if finding.original.origin.startswith(WITNESS):
        yield f"  found     by the {finding.original.origin}"
    else:
        yield f"  found     packet {finding.packet:,}, {finding.original.origin}"
    if before != left:
        yield f"  minimised to {counted(left, 'packet')}, of {before:,}"
    yield from case_lines(finding.case)
    yield from outcome_lines(recording)


def case_lines(case: Case) -> Iterator[str]:
    """The unusual attributes of the connection, and the steps."""
    unusual = connection_text(case.connection)
    if unusual:
        yield f"  qp        {unusual}"
    hidden = len(case.steps) - SHOWN_STEPS
    if hidden > 0:
        yield f"            ... {counted(hidden, 'step')} before"
    for number, step in list(enumerate(case.steps, 1))[-SHOWN_STEPS:]:
        why = f"  ({step.why})" if isinstance(step, Packet) and step.why else ""
        way = "< " if isinstance(step, Packet | Pause) else ""
        yield f"    {number:>4}    {way}{step_text(step)}{why}"


def unsaid(step: Step, said: str) -> str:
    """The fields of a packet that a case sets and that a text about the packet does not say."""
    fields = step.fields if isinstance(step, Packet) else {}
    return "".join(
        f" {name}={value_text(value)}"
        for name, value in fields.items()
        if f"{name.partition('.')[2]}=" not in said
    )


def outcome_lines(recording: Recording) -> Iterator[str]:
    """What the reference did in the last step, and what the target did."""
    yield f"  expected  {some(recording.expected)}"
    yield f"  got       {some(recording.got)}"


def connection_text(connection: Connection) -> str:
    """Attributes of a connection that are not as usual."""
    return " ".join(
        f"{entry.name}={getattr(connection, entry.name)}"
        for entry in fields(Connection)
        if getattr(connection, entry.name) != entry.default
    )


def some(things: Sequence[str]) -> str:
    """The first few of them."""
    hidden = len(things) - SHOWN_THINGS
    text = ", ".join(things[:SHOWN_THINGS])
    return f"{text}, and {hidden} more" if hidden > 0 else text


def counted(number: int, noun: str) -> str:
    """A number of things."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
