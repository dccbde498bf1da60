"""What the commands of `ibwire fabric` share: topologies and ports by name, errors, tables."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import click
from rich.table import Table
from rich.text import Text

from ibwire.base.errors import EncodeError, IbwireError, ScriptError
from ibwire.base.output import STANDARD_OUTPUT, Output
from ibwire.cli.tables import format_of, write_rows
from ibwire.cli.terminal import console
from ibwire.fabric.infiniband import Subnet
from ibwire.fabric.infiniband.shipped import find_topology, proposal

_PORT = re.compile(r"(?P<node>.+)\[(?P<port>\d{1,6})\]")
WIDE = 200
"""Columns of a table in a file or a pipe."""


def read_subnet(topology: str) -> Subnet:
    """The subnet of a file, a shipped topology or a key; raises `ClickException`."""
    try:
        return find_topology(topology)
    except OSError as error:
        raise click.ClickException(f"{topology}: {error.strerror}{proposal(topology)}") from None


def port_named(text: str) -> tuple[str, int] | None:
    """Node and number of a port written as NODE[PORT]; `None` for another text."""
    matched = _PORT.fullmatch(text)
    return None if matched is None else (matched["node"], int(matched["port"]))


class _WrongUsage(click.ClickException):
    exit_code = 2


@contextmanager
def reported_errors() -> Iterator[None]:
    """Errors of ibwire in this block end the command with their message.

    Exit status: 2 for a topology or a value that cannot be, 1 for anything else.
    """
    try:
        yield
    except IbwireError as error:
        is_wrong = isinstance(error, ScriptError | EncodeError)
        raise (_WrongUsage if is_wrong else click.ClickException)(str(error)) from None


def write_table(
    rows: list[dict[str, Any]], columns: Sequence[str], style: str | None, output: str | None
) -> None:
    """Print rows as a table, or write them in the format that the options ask for."""
    chosen = format_of(style, output, "table")
    if chosen != "table":
        with Output(output or STANDARD_OUTPUT) as file:
            if chosen == "text":
                lines = [columns, *([_cell(row[each]) for each in columns] for row in rows)]
                file.text.writelines("\t".join(line) + "\n" for line in lines)
            else:
                write_rows(rows, chosen, file)
        return
    table = Table(box=None, pad_edge=False)
    for column in columns:
        is_text = column in ("node", "state", "link", "peer", "to", "status")
        table.add_column(column.replace("_", " "), justify="left" if is_text else "right")
    for row in rows:
        table.add_row(*(Text(_cell(row[each])) for each in columns))
    shown = console(highlight=False)
    if not shown.is_terminal:
        shown = console(highlight=False, width=WIDE)
    shown.print(table)


def _cell(value: object) -> str:
    return "" if value is None else str(value)
