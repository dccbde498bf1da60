"""`ibwire man`: manual pages, made from the commands themselves."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import click

from ibwire.base.output import Output, make_directory
from ibwire.cli.paths import OutputDirectory, home_directory

STATUSES = (
    ("0", "Done."),
    ("1", "Findings, a failed test, or a result that could not be written."),
    ("2", "Wrong usage."),
    ("3", "Unreadable input."),
    ("130, 143", "Interrupted, terminated."),
    ("141", "The reader of standard output closed it."),
)


@click.command("man")
@click.argument("names", nargs=-1, metavar="[COMMAND]...")
@click.option("--install", is_flag=True, help="Write all pages to where `man` looks for them.")
@click.option(
    "-o",
    "--output",
    "directory",
    metavar="DIR",
    type=OutputDirectory(path_type=Path),
    help="Write all pages to DIR.",
)
@click.pass_context
def command(
    context: click.Context, names: tuple[str, ...], install: bool, directory: Path | None
) -> None:
    """Print the manual page of COMMAND, without it that of ibwire itself.

    \b
    ibwire man explain | man -l -
    ibwire man --install && man ibwire-explain
    """
    top = context.find_root().command
    pages = dict(_pages(top, ("ibwire",)))
    if directory is None and not install:
        name = "-".join(("ibwire", *names))
        if name not in pages:
            raise click.UsageError(f"no command {' '.join(names)!r}")
        click.echo(pages[name], nl=False)
        return
    if names:
        raise click.UsageError("--install and -o write all pages: name no command")
    target = directory or _own_directory()
    make_directory(target)
    for name, text in pages.items():
        with Output(target / f"{name}.1") as file:
            file.text.write(text)
    click.echo(f"{target}: {len(pages)} pages")


def _own_directory() -> Path:
    base = os.environ.get("XDG_DATA_HOME")
    return (Path(base) if base else home_directory() / ".local" / "share") / "man" / "man1"


def _pages(
    about: click.Command, path: tuple[str, ...], parent: click.Context | None = None
) -> Iterator[tuple[str, str]]:
    """Name and text of the page of a command, and of those below it."""
    context = click.Context(about, info_name=path[-1], parent=parent)
    below = {}
    if isinstance(about, click.Group):
        for name in about.list_commands(context):
            found = about.get_command(context, name)
            assert found is not None
            below[name] = found
    yield "-".join(path), "\n".join(_page(about, context, path, below)) + "\n"
    for name, found in below.items():
        yield from _pages(found, (*path, name), context)


def _page(
    about: click.Command,
    context: click.Context,
    path: tuple[str, ...],
    below: dict[str, click.Command],
) -> Iterator[str]:
    name = "-".join(path)
    yield f'.TH "{name.upper()}" 1 "" "ibwire {version("ibwire")}" "ibwire"'
    yield ".SH NAME"
    yield f"{_plain(name)} \\- {_plain(about.get_short_help_str(200).rstrip('.'))}"
    yield ".SH SYNOPSIS"
    yield f".B {_plain(' '.join(path))}"
    yield _plain(" ".join(about.collect_usage_pieces(context)))
    yield ".SH DESCRIPTION"
    yield from _description(about.help or "")
    records = [param.get_help_record(context) for param in about.get_params(context)]
    options = [record for record in records if record is not None and record[1]]
    if options:
        yield ".SH OPTIONS"
    for option, text in options:
        yield ".TP"
        yield f"\\fB{_plain(option)}\\fR"
        yield _plain(text)
    if below:
        yield ".SH COMMANDS"
    for sub, found in below.items():
        yield ".TP"
        yield f"\\fB{_plain(sub)}\\fR"
        yield f"{_plain(found.get_short_help_str(200))} See \\fB{_plain(f'{name}-{sub}')}\\fR(1)."
    yield ".SH EXIT STATUS"
    for status, text in STATUSES:
        yield ".TP"
        yield _plain(status)
        yield _plain(text)
    if len(path) > 1:
        yield ".SH SEE ALSO"
        yield f"\\fB{_plain('-'.join(path[:-1]))}\\fR(1)"


def _description(text: str) -> Iterator[str]:
    """Paragraphs; those after a line of a backspace keep their lines."""
    for paragraph in re.split(r"\n\s*\n", text.strip()):
        lines = [line.strip() for line in paragraph.splitlines()]
        yield ".PP"
        if lines and lines[0] == "\b":
            yield from (".nf", ".RS")
            yield from map(_plain, lines[1:])
            yield from (".RE", ".fi")
        else:
            yield from map(_plain, lines)


def _plain(text: str) -> str:
    """Text that troff prints as it is."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{text}" if text[:1] in (".", "'") else text
