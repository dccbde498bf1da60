"""The reference page of all commands: `python -m ibwire.cli.reference` prints it."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

import click

from ibwire.cli import main

INTRODUCTION = """\
# Commands

Generated from the commands themselves: `ibwire COMMAND --help` prints the same.
"""


def page() -> str:
    """Every command and its options, as Markdown."""
    parts = [INTRODUCTION, *_section(main, "ibwire", None, 2)]
    return "\n".join(parts).rstrip() + "\n"


def _section(
    command: click.Command, name: str, parent: click.Context | None, level: int
) -> Iterator[str]:
    """Usage, description and options of a command, then its subcommands."""
    context = click.Context(command, info_name=name.rpartition(" ")[2], parent=parent)
    yield f"{'#' * level} `{name}`\n"
    usage = " ".join(command.collect_usage_pieces(context))
    yield f"```\n{name} {usage}\n```\n"
    yield _description(command.help or "")
    yield _options(command, context)
    if isinstance(command, click.Group):
        for each in command.list_commands(context):
            found = command.get_command(context, each)
            if found is not None and not found.hidden:
                yield from _section(found, f"{name} {each}", context, min(level + 1, 4))


def _description(text: str) -> str:
    """The help text; lines that are commands become blocks of code."""
    paragraphs = []
    for paragraph in re.split(r"\n\s*\n", inspect.cleandoc(text)):
        lines = paragraph.removeprefix("\b\n").splitlines()
        if paragraph.startswith("\b") or all(line.startswith("ibwire ") for line in lines):
            paragraphs.append("```\n" + "\n".join(lines) + "\n```")
        else:
            paragraphs.append(_escaped(" ".join(lines)))
    return "\n\n".join(paragraphs) + "\n"


def _options(command: click.Command, context: click.Context) -> str:
    """A table of the options."""
    rows = []
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if isinstance(parameter, click.Option) and record and "--help" not in record[0]:
            rows.append(f"| {_code(record[0])} | {_escaped(record[1])} |")
    return "\n".join(("| option | |", "|---|---|", *rows)) + "\n" if rows else ""


def _code(text: str) -> str:
    return "`" + text.replace("|", "\\|") + "`"


def _escaped(text: str) -> str:
    """Text in which nothing is markup by accident."""
    text = " ".join(text.split())
    quoted = re.split(r"(`[^`]*`)", text)
    return "".join(
        part.replace("|", "\\|") if n % 2 else re.sub(r"([|*_<>\[\]])", r"\\\1", part)
        for n, part in enumerate(quoted)
    )


if __name__ == "__main__":
    click.echo(page(), nl=False)
