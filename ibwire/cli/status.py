"""`--fail-on`: an exit status for connections that went wrong."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable
from typing import TypeVar

import click

from ibwire.cli.values import did_you_mean
from ibwire.connections.status import Status

FOUND = 1
"""Exit status when a connection has a status that `--fail-on` names."""

_Function = TypeVar("_Function", bound=Callable[..., object])


class Statuses(click.ParamType[Collection[Status]]):
    """Names of statuses, joined by commas; `unresolved+` also means everything worse."""

    name = "statuses"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> Collection[Status]:
        """Read the names."""
        if not isinstance(value, str):
            return value  # type: ignore[return-value]  # it was read before
        found: set[Status] = set()
        for word in value.split(","):
            named = statuses_of(word.strip())
            if not named:
                hint = did_you_mean(word.strip().removesuffix("+"), Status)
                self.fail(f"no status {word!r}: there are {', '.join(Status)}{hint}", param, ctx)
            found.update(named)
        return frozenset(found)


def statuses_of(word: str) -> list[Status]:
    """The statuses that a name means; none for a name that is unknown."""
    name = word.removesuffix("+")
    if name not in set(Status):
        return []
    least = Status(name)
    if name == word:
        return [least]
    return [each for each in Status if each.severity >= least.severity]


def fail_on_option(function: _Function) -> _Function:
    """Add `--fail-on`, as the argument `fail_on`."""
    return click.option(
        "--fail-on",
        type=Statuses(),
        default=frozenset(),
        metavar="STATUS[,...]",
        help="Exit with status 1 if a connection has one of these statuses; `unresolved+` means "
        "unresolved or worse.",
    )(function)


def exit_if(fail_on: Collection[Status], found: Iterable[Status]) -> None:
    """End with `FOUND` if one of these statuses is among those found."""
    if fail_on and any(each in fail_on for each in found):
        sys.exit(FOUND)
