"""`ibwire fields`: what can be printed and filtered by."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence

import click
from rich.table import Table
from rich.text import Text

from ibwire.cli.terminal import console
from ibwire.dissect import FIELDS
from ibwire.dissect.fields import FieldSpec

WIDE = 200
"""Columns of the table in a file or a pipe."""

BESIDE = 150
"""Columns from which on Wireshark's names stand beside the meanings."""


@click.command("fields")
@click.argument("pattern", default="*")
def command(pattern: str) -> None:
    """List every field with its type, meaning and Wireshark name.

    PATTERN is part of a name or meaning, or contains wildcards: `bth.*`.
    """
    found = [spec for spec in FIELDS.values() if _matches(spec, pattern)]
    if not found:
        raise click.UsageError(f"no field matches {pattern!r}")
    shown = console(highlight=False)
    if not shown.is_terminal:
        shown = console(highlight=False, width=WIDE)
    shown.print(_table(found, shown.width))


def _table(found: Sequence[FieldSpec], width: int) -> Table:
    """Names stay on one line; on a narrow terminal Wireshark's stands below the meaning."""
    table = Table(box=None, pad_edge=False)
    table.add_column("field", no_wrap=True)
    table.add_column("type", no_wrap=True)
    table.add_column("meaning")
    if width >= BESIDE:
        table.add_column("Wireshark", no_wrap=True)
    for spec in found:
        cells = [spec.name, spec.type.kind.name.lower(), spec.doc]
        if width >= BESIDE:
            cells.append(spec.wireshark or "")
        elif spec.wireshark not in (None, spec.name):
            cells[-1] += f"\n({spec.wireshark})"
        table.add_row(*map(Text, cells))
    return table


def _matches(spec: FieldSpec, pattern: str) -> bool:
    if any(mark in pattern for mark in "*?["):
        return fnmatch.fnmatchcase(spec.name, pattern)
    return pattern in spec.name or pattern in spec.doc
