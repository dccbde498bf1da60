"""`ibwire completion`: what a shell needs to complete commands, options and names."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

import click
from click.shell_completion import get_completion_class

from ibwire.base.output import Output, make_directory
from ibwire.cli.messages import print_note
from ibwire.cli.paths import home_directory

PROGRAM = "ibwire"
VARIABLE = "_IBWIRE_COMPLETE"
"""Name of the variable by which the shell asks click."""


class Place(NamedTuple):
    """Where a shell looks for completions."""

    variable: str
    """Names the base directory."""
    default: str
    """The base in the home directory, where the variable is not set."""
    path: str
    note: str = ""


PLACES = {
    "bash": Place(
        "XDG_DATA_HOME", ".local/share", "bash-completion/completions/ibwire",
        "it needs the package bash-completion",
    ),
    "zsh": Place(
        "ZDOTDIR", "", ".zfunc/_ibwire",
        "~/.zshrc needs `fpath+=~/.zfunc` before `autoload -Uz compinit && compinit`",
    ),
    "fish": Place("XDG_CONFIG_HOME", ".config", "fish/completions/ibwire.fish"),
}  # fmt: skip


@click.command("completion")
@click.argument("shell", required=False, type=click.Choice(list(PLACES)))
@click.option("--install", is_flag=True, help="Write it to where the shell looks for it.")
def command(shell: str | None, install: bool) -> None:
    """Print what SHELL needs to complete `ibwire`: commands, options, scenarios, fields, rules.

    Without SHELL it is the shell that the variable SHELL names.

    \b
    ibwire completion --install
    ibwire completion zsh > ~/.zfunc/_ibwire
    """
    shell = shell or _own_shell()
    text = _source(shell)
    if not install:
        click.echo(text)
        return
    place = PLACES[shell]
    base = os.environ.get(place.variable)
    path = (Path(base) if base else home_directory() / place.default) / place.path
    make_directory(path.parent)
    with Output(path) as file:
        file.text.write(text + "\n")
    click.echo(path)
    print_note("a new shell completes `ibwire`" + (f"; {place.note}" if place.note else ""))


def _own_shell() -> str:
    name = os.path.basename(os.environ.get("SHELL", ""))
    if name not in PLACES:
        raise click.UsageError(f"which shell? One of {', '.join(PLACES)}")
    return name


def _source(shell: str) -> str:
    # Not `source()`, which for bash starts one to see its version.
    found = get_completion_class(shell)
    assert found is not None
    completion = found(click.Command(PROGRAM), {}, PROGRAM, VARIABLE)
    return (found.source_template % completion.source_vars()).strip()
