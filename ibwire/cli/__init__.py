"""The command `ibwire`: each subcommand is a module here, imported when it is used."""

from __future__ import annotations

import errno
import importlib
import io
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, redirect_stdout
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

# NumPy's linear algebra, which nothing here uses, would start a thread a core;
# Arrow's own allocators keep more memory than they need.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")

COMMANDS = {
    "dissect": "Take captures apart: one line, JSON object or table row a packet.",
    "show": "One packet of a capture as a tree, with every bit explained.",
    "fields": "The fields that can be printed and filtered by.",
    "flows": "Connections, worst first: lost, retransmitted, refused and marked packets.",
    "explain": "The story of one connection, in words.",
    "check": "What in a capture breaks the rules of the protocol.",
    "query": "SQL over the packets, messages, events and connections of captures.",
    "export": "Those tables as Parquet, or a capture with comments on its packets.",
    "report": "One self-contained page about a capture.",
    "run": "A scenario in virtual time: network, faults, traffic, and what came of it.",
    "pingpong": "Messages back and forth with ibv_rc_pingpong, uc, ud, on a real link.",
    "perf": "Measure with ib_send_bw, ib_write_lat and their like, on a real link.",
    "rping": "Pings with rping over the RDMA connection manager, on a real link.",
    "inject": "RDMA test traffic, right or wrong on purpose, to an interface or a capture.",
    "tap": "Faults in the path: a bump in the wire, or capture to capture.",
    "drill": "Conformance scripts against a device: what it did otherwise, line by line.",
    "fuzz": "Attacks on a device: where it leaves the specification, with cases that replay.",
    "agent": "An emulated device on a link, for drill and fuzz to be tried on.",
    "lab": "A virtual link between two namespaces, to try things without root.",
    "respond": "Replay recorded connections against an emulated peer.",
}


class _Lazy(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command = importlib.import_module(f"ibwire.cli.{cmd_name}").command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


SIGNAL = 128
"""A shell adds this to the number of the signal that has ended a command."""


class _Main(_Lazy):
    """Standard output that is closed, full, or no longer read is no reason for a traceback.

    Nor is Ctrl-C; a result that was not told whole has a status that says so.
    """

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        with _interruptible():
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: click.Context) -> object:
        if sys.stdout is None:
            raise click.ClickException("standard output is closed")
        with _interruptible(), _told_apart():
            try:
                try:
                    return super().invoke(ctx)
                finally:
                    sys.stdout.flush()
            except _OutputClosed:  # the reader of a pipe has seen enough
                _forget_output()
                ctx.exit(SIGNAL + signal.SIGPIPE)
            except _OutputError as error:
                _forget_output()
                raise click.ClickException(f"standard output: {error}") from None


@contextmanager
def _interruptible() -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        click.echo("ibwire: interrupted", err=True)
        raise click.exceptions.Exit(SIGNAL + signal.SIGINT) from None


class _OutputError(Exception):
    """Standard output cannot be written: no `OSError`, which a command may take for its own."""


class _OutputClosed(_OutputError):
    """Nobody reads it any more."""


class _Output(io.FileIO):
    """Standard output with errors of its own."""

    def write(self, data: ReadableBuffer, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            kind = _OutputClosed if error.errno == errno.EPIPE else _OutputError
            raise kind(error.strerror) from None


def _told_apart() -> AbstractContextManager[object]:
    """Write standard output through `_Output`, unless it is no file, as under a test."""
    before = sys.stdout
    try:
        raw = _Output(before.fileno(), "w", closefd=False)
    except io.UnsupportedOperation:
        return nullcontext()
    return redirect_stdout(
        io.TextIOWrapper(
            io.BufferedWriter(raw),
            before.encoding,
            before.errors,
            line_buffering=before.isatty(),
        )
    )


def _forget_output() -> None:
    """Let nothing more be written, also not at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@click.group(cls=_Main, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="ibwire", prog_name="ibwire")
def main() -> None:
    """Read, check and imitate RDMA packets: InfiniBand, RoCEv1 and RoCEv2.

    Results go to standard output, everything else to standard error. Exit status:
    0 done, 1 findings or a result that could not be written, 2 wrong usage,
    3 unreadable input, 130 interrupted, 141 nobody reads standard output any more.
    """
