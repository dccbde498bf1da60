"""Messages on standard error, each with its prefix: `error: `, `warning: ` or `note: `.

An error is the reason for an exit status other than 0. A warning says why a result may be
incomplete or wrong. A note is a fact that explains something unexpected.
"""

from __future__ import annotations

import io
import re

import click

from ibwire.base.interrupt import notes_of
from ibwire.base.printable import printable


def print_error(text: object) -> None:
    """Print an error; the exit status is up to the caller."""
    click.echo(f"error: {printable(str(text))}", err=True)


def print_warning(text: object) -> None:
    """Print a warning."""
    click.echo(f"warning: {printable(str(text))}", err=True)


def print_note(text: object) -> None:
    """Print a note."""
    click.echo(f"note: {printable(str(text))}", err=True)


def print_with_notes(text: object, error: BaseException) -> None:
    """Print an error, and the notes of its exception as warnings."""
    print_error(text)
    for note in notes_of(error):
        print_warning(note)


def print_failure(failure: click.ClickException) -> None:
    """Print an exception of click as click does, usage and hint included, but with our prefix."""
    shown = io.StringIO()
    failure.show(shown)
    text = re.sub("^Error: ", "error: ", shown.getvalue(), count=1, flags=re.MULTILINE)
    click.echo(printable(text), err=True, nl=False)
