"""`ibwire fuzz`: attacks on a device, and where it leaves the specification."""

from __future__ import annotations

import importlib

import click

COMMANDS = {
    "run": "Attack a device until the budget is spent. (the default)",
    "replay": "Run a saved case again, and show whether the difference is still there.",
    "min": "Minimise a case.",
    "cover": "Show which opcodes were sent in which states of a connection.",
}
"""Each is a module `ibwire.cli.fuzz_NAME`."""

DEFAULT = "run"


class _Fuzz(click.Group):
    """A group whose first command may be omitted."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args or (args[0].startswith("-") and args[0] not in ctx.help_option_names):
            args = [DEFAULT, *args]
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command = importlib.import_module(f"ibwire.cli.fuzz_{cmd_name}").command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group("fuzz", cls=_Fuzz, no_args_is_help=False)
def command() -> None:
    """Attack a device, and report where it leaves the specification.

    Right traffic with something wrong in it goes to the device and to the emulator of
    ibwire, the model of what is right; where they differ, the shortest case that shows it
    is looked for. Without a command it is `run`; `ibwire fuzz run --help` lists its options.

    \b
    ibwire fuzz --target emu:rxe -o findings/
    ibwire fuzz --role requester --budget 100kpkt,10min --seed 7
    ibwire fuzz --resume findings/
    ibwire fuzz replay findings/F0001
    """
