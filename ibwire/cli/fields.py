"""`ibwire fields`: what can be printed and filtered by."""

from __future__ import annotations

import fnmatch

import click
from rich.table import Table

from ibwire.cli.terminal import console
from ibwire.dissect import FIELDS
from ibwire.dissect.fields import FieldSpec


@click.command("fields")
@click.argument("pattern", default="*")
def command(pattern: str) -> None:
    """List every field with its type, meaning and Wireshark name.

    PATTERN is part of a name or meaning, or contains wildcards: `bth.*`.
    """
    found = [spec for spec in FIELDS.values() if _matches(spec, pattern)]
    if not found:
        raise click.UsageError(f"no field matches {pattern!r}")
    table = Table("field", "type", "meaning", "Wireshark", box=None, pad_edge=False)
    for spec in found:
        table.add_row(spec.name, spec.type.kind.name.lower(), spec.doc, spec.wireshark or "")
    shown = console(highlight=False)
    if not shown.is_terminal:
        shown = console(highlight=False, width=200)
    shown.print(table)


def _matches(spec: FieldSpec, pattern: str) -> bool:
    if any(mark in pattern for mark in "*?["):
        return fnmatch.fnmatchcase(spec.name, pattern)
    return pattern in spec.name or pattern in spec.doc
