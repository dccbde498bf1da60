"""A command with subcommands: how its help lists them, and when they are imported."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import ClassVar

import click

LONGEST_NAME = 64
"""Names up to this length are compared with those that there are, which takes quadratic time."""

LONGEST = 300
"""Characters of a first sentence: all of it."""


class Group(click.Group):
    """Lists subcommands with their whole first sentence, where click cuts it off."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the subcommands."""
        rows = []
        for name in self.list_commands(ctx):
            found = self.get_command(ctx, name)
            if found is not None and not found.hidden:
                rows.append((name, found.get_short_help_str(LONGEST)))
        with formatter.section("Commands"):
            formatter.write_dl(rows)


class LazyGroup(click.Group):
    """Imports modules of subcommands when they are used; suggests names like a wrong one."""

    modules: ClassVar[Mapping[str, str]] = {}
    """The module of each such subcommand, in which it is `command`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All names, in the order of the alphabet."""
        return sorted({*self.commands, *self.modules})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of a name."""
        module = self.modules.get(cmd_name)
        if module is None:
            return super().get_command(ctx, cmd_name)
        found = importlib.import_module(module).command
        assert isinstance(found, click.Command)
        return found

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that is named."""
        try:
            return super().resolve_command(ctx, args)
        except click.NoSuchCommand as error:
            known = self.list_commands(ctx) if len(error.command_name) <= LONGEST_NAME else ()
            raise click.NoSuchCommand(error.command_name, possibilities=known, ctx=ctx) from None
