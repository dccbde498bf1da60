"""`ibwire fuzz cover`: which opcodes have met which states, what was never reached, and why."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import click

from ibwire.cli.fuzzing import complaints
from ibwire.cli.paths import InputPath
from ibwire.fuzz.run_file import load
from ibwire.fuzz.vocabulary.queue_pair.cells import summary, unreached


@click.command("cover")
@click.argument(
    "directory", metavar="DIR", type=InputPath(exists=True, file_okay=False, path_type=Path)
)
@click.option("--json", "as_json", is_flag=True, help="One object: packets by opcode and state.")
@click.option("-v", "--verbose", is_flag=True, help="What was answered, too, line by line.")
def command(directory: Path, as_json: bool, verbose: bool) -> None:
    """Count the packets of a run by opcode and state of the connection.

    A cell has the number of packets and of different responses; a dot was never tried. States are
    those of the reference as a peer sees them: IDLE, in the middle of a SEND or WRITE, WAITING for
    a response of the peer, waiting after an RNR NAK, and ended (ERROR).

    Then what no packet has met: by PSN, length, receive requests or credits, state, message that is
    being received, and state of another queue pair, each with the reason.

    \b
    ibwire fuzz cover findings/
    """
    with complaints():
        session = load(directory)
    coverage, settings = session.report.coverage, session.settings
    table, (tried, pairs, answers) = coverage.table(), coverage.tried()
    missing: list[str] = []
    cells, met = summary(coverage.cells)
    if cells:
        packets = session.report.packets
        combines, ops = settings.combines, settings.ops
        missing = list(unreached(coverage.cells, settings.role, combines, packets, ops))
    if as_json:
        document = {"tried": tried, "pairs": pairs, "answers": answers, "cells": cells}
        click.echo(json.dumps({**document, "unreached": missing, "table": table}))
        return
    _print_table(table)
    click.echo(f"\n{tried} of {pairs} pairs of opcode and state, {answers} different answers")
    if cells:
        click.echo(f"{cells:,} cells, {met:,} pairs of opcode and a value. Never reached:")
        for line in missing:
            click.echo(f"  {line}")
    if verbose:
        for opcode, row in table.items():
            for state, cell in row.items():
                if cell:
                    text = ", ".join(f"{answer} {count:,}" for answer, count in cell.most_common())
                    click.echo(f"{opcode} in {state}: {text}")


def _print_table(table: dict[str, dict[str, Counter[str]]]) -> None:
    width = max(map(len, table))
    states = next(iter(table.values()))
    columns = {
        state: max(len(state), *(len(_cell(row[state])) for row in table.values()))
        for state in states
    }
    click.echo(" " * width + "".join(f"  {state:>{size}}" for state, size in columns.items()))
    for opcode, row in table.items():
        cells = "".join(f"  {_cell(row[state]):>{size}}" for state, size in columns.items())
        click.echo(f"{opcode:{width}}{cells}")


def _cell(answers: Counter[str]) -> str:
    return f"{answers.total():,}/{len(answers)}" if answers else "."
