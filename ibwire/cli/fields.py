"""`ibwire fields`: what can be printed and filtered by."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence

import click
from rich.table import Table
from rich.text import Text

from ibwire.base.errors import MissingExtra
from ibwire.base.output import STANDARD_OUTPUT, Output
from ibwire.cli.tables import format_of, table_options, write_rows
from ibwire.cli.terminal import console
from ibwire.cli.values import FieldNames
from ibwire.dissect import FIELDS
from ibwire.dissect.fields import FieldSpec

WIDE = 200
"""Columns of the table in a file or a pipe."""

BESIDE = 150
"""Columns from which on Wireshark's names stand beside the meanings."""


@click.command("fields")
@click.argument("pattern", default="*", type=FieldNames())
@table_options("field")
def command(pattern: str, style: str | None, output: str | None) -> None:
    """List every field with its type, meaning and Wireshark name.

    PATTERN is part of a name or meaning, or contains wildcards: `bth.*`.
    """
    found = [spec for spec in FIELDS.values() if _matches(spec, pattern)]
    if not found:
        raise click.UsageError(f"no field matches {pattern!r}")
    style = format_of(style, output, "table")
    if style != "table":
        _write(found, style, output or STANDARD_OUTPUT)
        return
    shown = console(highlight=False)
    if not shown.is_terminal:
        shown = console(highlight=False, width=WIDE)
    shown.print(_table(found, shown.width))


def _write(found: Sequence[FieldSpec], style: str, output: str) -> None:
    rows = [
        {
            "field": spec.name,
            "type": spec.type.kind.name.lower(),
            "meaning": spec.doc,
            "wireshark": spec.wireshark,
        }
        for spec in found
    ]
    try:
        with Output(output) as file:
            if style == "text":
                file.text.writelines(
                    "\t".join(cell or "" for cell in row) + "\n"
                    for row in [[*rows[0]], *(row.values() for row in rows)]
                )
            else:
                write_rows(rows, style, file)
    except MissingExtra as error:
        raise click.ClickException(str(error)) from None


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
