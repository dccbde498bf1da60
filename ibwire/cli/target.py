"""The common options of drill and fuzz for a device under test on a real link."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any

import click

from ibwire.base.errors import ScriptError
from ibwire.base.units import MS, Time
from ibwire.cli.live import HARDWARE_TIMESTAMPS, TAP, LiveOptions
from ibwire.cli.values import IPAddress, MACAddress
from ibwire.drill.agent.agent_server import PORT as AGENT_PORT
from ibwire.drill.agent.agent_server import TOKEN_VARIABLE
from ibwire.drill.targets.live import SLACK
from ibwire.drill.targets.restart import Restart
from ibwire.drill.targets.ways import ByAgent


class TargetLink(LiveOptions):
    """The link to a device under test.

    Its command opens files and raw sockets later, and starts commands of the user: --restart and
    --params-from.
    """

    __slots__ = ()

    KEEPS_PRIVILEGES = True


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetOptions:
    """The options for a device under test on a link; each command adds its own."""

    dev: str | None
    peer: str | None
    host: str | None
    port: int | None
    token: str | None
    tolerance: float | None
    address: str | None
    mac: bytes | None
    vlan: int | None
    tap: str | None
    hardware_timestamps: bool
    restart: Restart | None

    @property
    def is_wanted(self) -> bool:
        """Whether the device under test is on a link."""
        return self.dev is not None or self.peer is not None

    @property
    def slack(self) -> Time:
        """How late everything may be on a link."""
        return SLACK if self.tolerance is None else int(self.tolerance * MS)

    def agent(self, peer: str, host: str, **options: Any) -> ByAgent:
        """The way to the agent on the device's host; raises `UsageError` without its token."""
        if not self.token:
            raise click.UsageError(
                f"--token or {TOKEN_VARIABLE} is required: the agent prints it when it starts"
            )
        return ByAgent(peer, host, self.token, self.port or AGENT_PORT, **options)

    def link(self) -> tuple[LiveOptions, str] | None:
        """The link and the address of the device; `None` if it is not on a link.

        Raises `UsageError` for options that require one.
        """
        if not self.is_wanted:
            values = {each.name: getattr(self, each.name) for each in fields(self)}
            values.pop("token")  # the environment may have one
            given = [name for name, value in values.items() if value not in (None, False)]
            if given:
                raise click.UsageError(f"{option_names(given)}: --dev and --peer are required")
            return None
        if self.dev is None or self.peer is None:
            raise click.UsageError("--dev and --peer are required for a device on a link")
        link = TargetLink(
            dev=self.dev,
            address=self.address,
            mac=self.mac,
            vlan=self.vlan,
            tap=self.tap,
            hardware_timestamps=self.hardware_timestamps,
        )
        return link, self.peer


class CommandType(click.ParamType[Restart]):
    """A command and its arguments, run without a shell."""

    name = "command"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> Restart:
        """The command; anything else is wrong usage."""
        if isinstance(value, Restart):
            return value
        try:
            return Restart(str(value))
        except ScriptError as error:
            self.fail(error.reason, param, ctx)


def option_names(names: Iterable[str]) -> str:
    """The options of attributes, as on a command line."""
    return ", ".join(f"--{name.replace('_', '-')}" for name in names)


TARGET = {
    "dev": click.option("--dev", metavar="IFACE", help="Interface of a device under test."),
    "peer": click.option(
        "--peer", type=IPAddress(), metavar="IP", help="With --dev: IP address of the device."
    ),
    "host": click.option("--host", help="Host of the agent or the server.", show_default="--peer"),
    "token": click.option(
        "--token",
        envvar=TOKEN_VARIABLE,
        show_envvar=True,
        help="Token that the agent has printed. Better in the environment: other users can read "
        "a command line.",
    ),
    "tolerance": click.option(
        "--tolerance",
        type=click.FloatRange(1, 10_000),
        metavar="MS",
        show_default=str(SLACK // MS),
        help="Time that a device on a link may take in addition, in milliseconds.",
    ),
    "address": click.option(
        "--address", type=IPAddress(), metavar="IP", help="Own IP address on that link."
    ),
    "mac": click.option(
        "--mac",
        type=MACAddress(),
        help="MAC address for an --address that the interface lacks.",
    ),
    "vlan": click.option(
        "--vlan",
        type=click.IntRange(1, 4094),
        help="VLAN ID for an --address that the interface lacks.",
    ),
    "tap": TAP,
    "hardware_timestamps": HARDWARE_TIMESTAMPS,
    "restart": click.option(
        "--restart",
        type=CommandType(),
        metavar="COMMAND",
        help="Run COMMAND when the device has crashed, to restart it; the run continues.",
    ),
}
"""Options of `TargetOptions` by name; `--port` differs between commands."""
