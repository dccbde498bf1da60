"""Types of options that name files: what a command reads and what it writes.

Each enters its file in the `CommandFiles` of the command, which refuses to write over an
input. Every option that names a file has one of these types (`tests/cli/test_outputs.py`).
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ibwire.base.collector import no_collections
from ibwire.base.errors import OutputError
from ibwire.base.output import (
    STANDARD_OUTPUT,
    current_files,
    results_on_standard_error,
)
from ibwire.cli.sources import expand

if TYPE_CHECKING:
    from pathlib import Path

Command = TypeVar("Command", bound=Callable[..., Any])


def home_directory() -> Path:
    """The user's home directory, which must be there: what is installed below it is the user's."""
    from pathlib import Path

    try:
        path = Path.home()
    except RuntimeError:
        raise click.ClickException("there is no home directory: set HOME") from None
    if not path.is_dir():
        raise click.ClickException(f"the home directory {path} does not exist: set HOME")
    return path


class InputPath(click.Path):
    """A file or directory that is read, or a pattern of names."""

    def __init__(self, *, exists: bool = False, **more: Any) -> None:
        super().__init__(exists=exists, readable=exists, **more)

    def convert(
        self,
        value: str | os.PathLike[str],
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> str | bytes | os.PathLike[str]:
        """The path as it is given."""
        path = super().convert(value, param, ctx)
        try:
            for each in expand([os.fspath(value)]):
                current_files().add_input(each)
        except OutputError as error:
            raise click.UsageError(str(error), ctx) from None
        return path


def captures_argument(function: Command) -> Command:
    """The captures of a command: its arguments, and with `-r` as tshark has it."""

    @functools.wraps(function)
    def command(*args: Any, captures: tuple[str, ...], read: tuple[str, ...], **given: Any) -> Any:
        names = (*read, *captures)
        if not names:
            raise click.UsageError("Missing argument 'CAPTURE...'.")
        # What an analysis makes lasts until its end; only what several files leave are cycles.
        is_one = len(names) == 1 and os.path.isfile(names[0])
        with no_collections() if is_one else nullcontext():
            return function(*args, captures=names, **given)

    for decorate in (
        click.option(
            "-r",
            "--read",
            metavar="CAPTURE",
            multiple=True,
            type=InputPath(),
            help="Read this capture, the same as an argument.",
        ),
        click.argument("captures", nargs=-1, metavar="CAPTURE...", type=InputPath()),
    ):
        command = decorate(command)
    return command  # type: ignore[return-value]


class OutputPath(click.Path):
    """A file that is written; with `allow_dash` also standard output, as `-`.

    What the command prints goes to standard error while standard output has the data.
    """

    def convert(
        self,
        value: str | os.PathLike[str],
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> str | bytes | os.PathLike[str]:
        """The path as it is given."""
        if os.fspath(value) == STANDARD_OUTPUT and not self.allow_dash:
            self.fail("it needs a file: standard output is for results", param, ctx)
        path = super().convert(value, param, ctx)
        try:
            current_files().add_output(os.fspath(value))
        except OutputError as error:
            raise click.UsageError(str(error), ctx) from None
        if value == STANDARD_OUTPUT and ctx is not None:
            # That of a subcommand is not closed when a later option is wrong.
            ctx.find_root().with_resource(results_on_standard_error())
        return path


class OutputDirectory(click.Path):
    """A directory that files are written to."""

    def __init__(self, **more: Any) -> None:
        super().__init__(file_okay=False, **more)
