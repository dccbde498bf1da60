"""What every command on a real link has in common: its options, its errors, its end."""

from __future__ import annotations

import functools
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

import click

from ibwire.cli.values import IPAddress
from ibwire.errors import EncodeError, IbwireError, ScriptError
from ibwire.link.afpacket import AFPacketPort
from ibwire.link.port import Port
from ibwire.link.tapped import TappedPort
from ibwire.programs.endpoint import Endpoint, Interrupted
from ibwire.programs.faults import Faults, read_faults
from ibwire.rc.profile import PROFILES

FAILED = 1
WRONG_USAGE = 2

Decorated = TypeVar("Decorated", bound=Callable[..., object])


@dataclass(frozen=True, slots=True)
class Link:
    """What the options say."""

    dev: str
    address: str | None
    profile: str
    faults: str | None
    tap: str | None
    spin: bool

    @contextmanager
    def open(self) -> Iterator[Endpoint]:
        """An endpoint; at its end counters are told, errors printed, and the command over.

        Exit status 1 for what the link or the peer did, 2 for wrong usage, 128 and the
        number of a signal for that.
        """
        with _exit_status(), ExitStack() as stack:
            faults = read_faults(self.faults) if self.faults else Faults()
            port: Port = stack.enter_context(AFPacketPort(self.dev))
            if self.tap:
                port = stack.enter_context(TappedPort(port, self.tap))
            for note in port.notes():
                click.echo(f"note: {note}", err=True)
            addresses = [self.address] if self.address else []
            endpoint = stack.enter_context(
                Endpoint(
                    port, addresses=addresses, profile=self.profile, faults=faults, spin=self.spin
                )
            )
            try:
                yield endpoint
            finally:
                # Also after an error: what was sent and what has come are the first questions.
                told = (f"{name} {count}" for name, count in endpoint.counters().items())
                click.echo("counters: " + (", ".join(told) or "nothing happened"), err=True)


def live_options(function: Decorated) -> Decorated:
    """The options of every live command, which become one argument, `link`."""

    @functools.wraps(function)
    def command(
        *args: Any,
        dev: str,
        address: str | None,
        profile: str,
        faults: str | None,
        tap: str | None,
        spin: bool,
        **rest: Any,
    ) -> object:
        return function(*args, link=Link(dev, address, profile, faults, tap, spin), **rest)

    for option in reversed(_OPTIONS):
        command = option(command)
    return command  # type: ignore[return-value]


def fail(reason: str) -> NoReturn:
    """End the command: the transfer has failed."""
    click.echo(f"ibwire: {reason}", err=True)
    sys.exit(FAILED)


_OPTIONS = (
    click.option("--dev", metavar="IFACE", required=True, help="The interface, and no other."),
    click.option(
        "--address",
        type=IPAddress(),
        metavar="IP",
        help="Which of its addresses; all by default.",
    ),
    click.option(
        "--profile",
        type=click.Choice(list(PROFILES)),
        default="spec",
        show_default=True,
        help="Whose behaviour our side has.",
    ),
    click.option("--faults", metavar="FILE", help="What happens to our frames, as TOML."),
    click.option("--tap", metavar="FILE", help="Write what arrives and leaves to a .pcapng."),
    click.option("--spin", is_flag=True, help="Never sleep: less latency, one processor more."),
)


@contextmanager
def _exit_status() -> Iterator[None]:
    """Errors become a sentence and an exit status; SIGTERM ends the block as Ctrl-C does."""
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield
    except (ScriptError, EncodeError) as error:
        click.echo(f"ibwire: {error}", err=True)
        sys.exit(WRONG_USAGE)
    except IbwireError as error:
        fail(str(error))
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    except Interrupted as interrupted:
        sys.exit(128 + interrupted.number)
    finally:
        signal.signal(signal.SIGTERM, before)


def _interrupt(number: int, _: object) -> NoReturn:
    raise Interrupted(number)
