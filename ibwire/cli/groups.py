"""A command with subcommands: how its help lists them."""

from __future__ import annotations

import click

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
