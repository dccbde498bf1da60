"""The command `ibwire`: each subcommand is a module here, imported when it is used."""

from __future__ import annotations

import errno
import io
import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, redirect_stdout
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

import click

from ibwire.base.collector import set_collector
from ibwire.base.errors import OldResultKept, OutputError
from ibwire.base.interrupt import Terminated, signal_of
from ibwire.base.output import command_files
from ibwire.cli.groups import LazyGroup
from ibwire.cli.messages import print_failure, print_with_notes
from ibwire.cli.terminal import TerminalText, guard_errors

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

# NumPy's linear algebra, unused here, would start a thread per core;
# Arrow's own allocators keep more memory than they need.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")

SECTIONS = {
    "Captures": {
        "flows": "List connections, worst first: lost, retransmitted, refused and marked packets.",
        "explain": "Explain in words what happened to one connection.",
        "check": "Find packets that break the rules of the protocol.",
        "report": "Write an HTML page about a capture or a run, in one file.",
        "dissect": "Print packets: a line, a JSON object or a table row for each.",
        "show": "Show one packet of a capture as a tree, with every bit explained.",
        "fields": "List the fields that can be printed and filtered by.",
        "query": "Run SQL over packets, messages, events, incidents and connections of captures.",
        "export": "Write these tables as Parquet, or a capture with comments on its packets.",
        "respond": "Replay recorded connections against an emulated peer.",
        "wireshark": "Open a capture in Wireshark with the findings as comments, or set it up.",
    },
    "Emulated networks": {
        "run": "Run a scenario in virtual time: network, faults, traffic and expectations.",
        "sweep": "Run a scenario with several values of its keys and several seeds.",
        "fabric": "Run an InfiniBand fabric for opensm and its tools, or send data over one.",
    },
    "Conformance and fuzzing": {
        "drill": "Run conformance scripts against a device, and report each difference.",
        "fuzz": "Attack a device, and report where it breaks the specification.",
        "agent": "Serve an emulated device on a link, as a target for drill and fuzz.",
    },
    "Real links": {
        "pingpong": "Exchange messages with ibv_rc_pingpong, uc, ud, on a real link.",
        "perf": "Measure with ib_send_bw, ib_write_lat and others of perftest, on a real link.",
        "rping": "Exchange pings with rping over the RDMA connection manager, on a real link.",
        "inject": "Send RDMA test traffic, correct or wrong on purpose, to a link or a capture.",
        "tap": "Apply faults in the path, between two interfaces or from capture to capture.",
        "lab": "Create a virtual link between two namespaces; needs no root.",
    },
    "Set up": {
        "completion": "Print or install the completion of a shell.",
        "man": "Print or install the manual pages.",
        "extcap": "Serve emulations and annotated captures to Wireshark, which runs this itself.",
    },
}
"""The commands by what they are for, as `ibwire --help` lists them."""

COMMANDS = {name: text for section in SECTIONS.values() for name, text in section.items()}


class _Lazy(LazyGroup):
    modules: ClassVar[Mapping[str, str]] = {name: f"ibwire.cli.{name}" for name in COMMANDS}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, COMMANDS))
        for title, commands in SECTIONS.items():
            with formatter.section(title):
                rows = [(name.ljust(width), text) for name, text in commands.items()]
                formatter.write_dl(rows)


UNREADABLE = 3
"""Exit status when some input could not be read to its end."""

SIGNAL = 128
"""Added to the number of the signal that ended a command, as shells do."""


class _Main(_Lazy):
    """Reports errors of standard output, wrong usage and Ctrl-C without a traceback.

    The exit status says if a result could not be written completely.
    """

    def main(self, *args: Any, **options: Any) -> Any:
        guard_errors()
        set_collector()
        return super().main(*args, **options)

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        with _reported(), _writable_output():  # it prints --help and --version
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: click.Context) -> object:
        with _reported(), _writable_output(), command_files():
            return super().invoke(ctx)


@contextmanager
def _writable_output() -> Iterator[None]:
    """Errors of standard output become a message and an exit status."""
    if sys.stdout is None:
        raise click.ClickException("standard output is closed")
    with _own_output_errors():
        try:
            try:
                yield
            finally:
                sys.stdout.flush()
        except _OutputClosed:  # the reader of a pipe has closed it
            _discard_output()
            raise click.exceptions.Exit(SIGNAL + signal.SIGPIPE) from None
        except _OutputError as error:
            _discard_output()
            raise click.ClickException(f"standard output: {error}") from None


@contextmanager
def _reported() -> Iterator[None]:
    """Errors and signals become a message and an exit status."""
    try:
        with _raising_signals():
            yield
    except click.ClickException as failure:
        print_failure(failure)
        raise click.exceptions.Exit(failure.exit_code) from None
    except OutputError as error:
        print_with_notes(error, error)
        status = UNREADABLE if isinstance(error, OldResultKept) else 1
        raise click.exceptions.Exit(status) from None
    except KeyboardInterrupt as interrupt:
        print_with_notes("interrupted", interrupt)
        raise click.exceptions.Exit(SIGNAL + signal_of(interrupt)) from None


@contextmanager
def _raising_signals() -> Iterator[None]:
    """SIGTERM and the end of the terminal raise an exception, as Ctrl-C does."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {}
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:  # else it is ignored, as with nohup
            before[number] = signal.signal(number, _terminate)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _terminate(number: int, _: object) -> NoReturn:
    raise Terminated(number)


class _OutputError(Exception):
    """Standard output cannot be written. Not an `OSError`: commands handle those of their files."""


class _OutputClosed(_OutputError):
    """The reader of the pipe has closed it."""


class _Output(io.FileIO):
    """Standard output that raises `_OutputError` in place of `OSError`."""

    def write(self, data: ReadableBuffer, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            kind = _OutputClosed if error.errno == errno.EPIPE else _OutputError
            raise kind(error.strerror) from None


def _own_output_errors() -> AbstractContextManager[object]:
    """Write standard output through `_Output`, unless it is not a file, as in tests."""
    before = sys.stdout
    try:
        raw = _Output(before.fileno(), "w", closefd=False)
    except io.UnsupportedOperation:
        return nullcontext()
    kind = TerminalText if before.isatty() else io.TextIOWrapper
    buffered = io.BufferedWriter(raw)
    # Names of files may be any bytes.
    errors = "surrogateescape" if before.errors == "strict" else before.errors
    return redirect_stdout(kind(buffered, before.encoding, errors, line_buffering=before.isatty()))


def _discard_output() -> None:
    """Discard what is still buffered, so that nothing fails at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _print_version(context: click.Context, parameter: click.Parameter, value: bool) -> None:
    """Print the version, and whether modules are compiled."""
    if value and not context.resilient_parsing:
        from importlib.metadata import version

        from ibwire.base.compiled import describe_build

        click.echo(f"ibwire, version {version('ibwire')} ({describe_build()})")
        context.exit()


@click.group(cls=_Main, context_settings={"help_option_names": ["--help", "-h"]})
@click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    help="Show the version and exit.",
    callback=_print_version,
)
def main() -> None:
    """Find out what went wrong on an RDMA network, and reproduce it.

    ibwire reads captures of InfiniBand, RoCEv1 and RoCEv2, and emulates devices in
    virtual time or on a real interface.

    \b
    ibwire flows capture.pcap
    ibwire explain capture.pcap
    ibwire run one-lost-packet

    Results go to standard output, everything else to standard error. Exit status:
    0 done, 1 findings or a result that could not be written, 2 wrong usage,
    3 unreadable input, 130 interrupted, 143 terminated, 141 the reader of standard
    output closed it.
    """
