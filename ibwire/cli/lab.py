"""`ibwire lab`: two network namespaces with a link between them, also without root."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NoReturn, TypeVar

import click

from ibwire.base.errors import LinkError
from ibwire.cli.messages import print_note
from ibwire.lab.veth import (
    ADDRESSES,
    DEFAULT_MTU,
    DEFAULT_NAME,
    INTERFACES,
    LARGEST_MTU,
    MIDDLE,
    MIDDLE_INTERFACES,
    SIDES,
    SMALLEST_MTU,
    Lab,
    execute,
)

Decorated = TypeVar("Decorated", bound=Callable[..., object])


@click.group("lab")
def command() -> None:
    """A virtual link to try things on: two namespaces with a virtual Ethernet link between them.

    Nothing outside of them changes, and root is not needed where the system allows
    user namespaces. Side a has the interface veth-a with 10.0.0.1 and fd00::a00:1, side b
    has veth-b with 10.0.0.2 and fd00::a00:2. With --middle they are not joined directly:
    their links end at eth-a and eth-b of a third namespace, side m, and frames pass between
    these only through a program such as `ibwire tap`.

    \b
    ibwire lab run -- ping -c 3 10.0.0.2
    ibwire lab up
    ibwire lab run --side b -- COMMAND
    ibwire lab shell
    ibwire lab down
    ibwire lab up --middle
    ibwire lab run --side m -- ibwire tap --between eth-a eth-b --plan lumina
    """


def _named(function: Decorated) -> Decorated:
    option = click.option(
        "--name",
        metavar="NAME",
        help=f"Name of the lab. Default: the lab around the command, else {DEFAULT_NAME!r}.",
    )
    return option(function)


_mtu = click.option(
    "--mtu",
    type=click.IntRange(SMALLEST_MTU, LARGEST_MTU),
    default=DEFAULT_MTU,
    show_default=True,
    help="Bytes of the largest IP packet; RoCE needs 80 more than the path MTU.",
)
_middle = click.option("--middle", is_flag=True, help="Add a third namespace between a and b.")
_side = click.option(
    "--side",
    type=click.Choice((*SIDES, MIDDLE)),
    default=SIDES[0],
    show_default=True,
    help="Namespace to use.",
)


@command.command("up")
@_named
@_mtu
@_middle
def up(name: str | None, mtu: int, middle: bool) -> None:
    """Create a lab that stays until `ibwire lab down`."""
    with _reported_errors():
        Lab.create(name or DEFAULT_NAME, mtu=mtu, detached=True, middle=middle)
    for side in SIDES:
        click.echo(f"{side}: {INTERFACES[side]} {' '.join(ADDRESSES[side])} mtu {mtu}")
    if middle:
        click.echo(f"{MIDDLE}: {' '.join(MIDDLE_INTERFACES)} mtu {mtu}")


@command.command("down")
@_named
def down(name: str | None) -> None:
    """Remove a lab; without one there is nothing to do."""
    with _reported_errors():
        lab = Lab.find(name)
        if lab is None:
            print_note(f"no lab is up{_named_so(name)}: nothing to remove")
        else:
            lab.down()


@command.command("shell")
@_named
@_side
def shell(name: str | None, side: str) -> None:
    """Start a shell inside a lab that is up."""
    with _reported_errors():
        _become(_found(name), side, [os.environ.get("SHELL") or "/bin/sh"])


@command.command("run", context_settings={"ignore_unknown_options": True})
@_named
@_side
@_mtu
@_middle
@click.argument("arguments", metavar="COMMAND...", nargs=-1, required=True, type=click.UNPROCESSED)
@click.pass_context
def run(
    context: click.Context,
    name: str | None,
    side: str,
    mtu: int,
    middle: bool,
    arguments: tuple[str, ...],
) -> None:
    """Run a command inside a lab, and return its exit status.

    If no lab is up, and none is named, one is created for this command. From inside,
    `ibwire lab run --side b` runs a command on the other side of the same lab.
    """
    with _reported_errors():
        lab = Lab.find(name)
        given = context.get_parameter_source("mtu") is click.core.ParameterSource.COMMANDLINE
        if lab is not None:
            if given or middle:
                raise click.UsageError("--mtu and --middle are for a lab that is not up yet")
            _become(lab, side, arguments)
        if name is not None:
            raise _not_up(name)
        if side == MIDDLE and not middle:
            raise click.UsageError("no lab is up; to create one for --side m, give --middle")
        with Lab.create(mtu=mtu, middle=middle) as lab:
            status = _wait_for(lab, side, arguments)
    sys.exit(status)


@contextmanager
def _reported_errors() -> Iterator[None]:
    try:
        yield
    except LinkError as error:
        raise click.ClickException(str(error)) from None


def _found(name: str | None) -> Lab:
    lab = Lab.find(name)
    if lab is None:
        raise _not_up(name)
    return lab


def _not_up(name: str | None) -> click.ClickException:
    command = f"ibwire lab up --name {name}" if name is not None else "ibwire lab up"
    return click.ClickException(f"no lab is up{_named_so(name)}: `{command}` creates one")


def _named_so(name: str | None) -> str:
    return f" with the name {name!r}" if name is not None else ""


def _become(lab: Lab, side: str, arguments: Sequence[str]) -> NoReturn:
    lab.enter(side)
    execute(arguments, lab.environment())


def _wait_for(lab: Lab, side: str, arguments: Sequence[str]) -> int:
    """Run a command to its end; its exit status as a shell has it."""
    command = lab.command(side, arguments, ends_with_parent=True)
    process = subprocess.Popen(command, env=lab.environment())
    # Ctrl-C goes to the command too, which decides what it means; SIGTERM comes here alone.
    handlers: dict[signal.Signals, Callable[[int, object], None]] = {
        signal.SIGINT: lambda number, _: None,
        signal.SIGTERM: lambda number, _: process.send_signal(number),
    }
    before = {number: signal.signal(number, each) for number, each in handlers.items()}
    try:
        status = process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return status if status >= 0 else _KILLED - status


_KILLED = 128
"""A command that a signal has ended has this and the signal as its exit status."""
