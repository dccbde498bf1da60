"""The options of `ibwire fuzz` for a device on a real link."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any

import click

from ibwire.base.errors import ScriptError
from ibwire.base.units import MS
from ibwire.cli.live import Link, host_of
from ibwire.cli.values import Decorated, IPAddress, MACAddress, as_one
from ibwire.drill.targets.live import SLACK
from ibwire.drill.targets.ways import AGENT_PORT, ByAgent
from ibwire.fuzz.targets.link.manager import ManagerBench
from ibwire.fuzz.targets.link.manager_target import ManagerLinkTarget, manager_target
from ibwire.fuzz.targets.link.peer import RATE
from ibwire.fuzz.targets.link.queue_pair import Bench
from ibwire.fuzz.targets.link.restart import Restart
from ibwire.fuzz.targets.link.target import LinkTarget, link_target
from ibwire.traffic.safety import injectable

PATIENCE = 5.0
"""Seconds that the agent may take for an answer: a device that has died takes it along."""


@dataclass(frozen=True, slots=True)
class LiveWish:
    """What the options say."""

    dev: str | None
    peer: str | None
    host: str | None
    port: int | None
    tolerance: float | None
    rate: int | None
    address: str | None
    mac: bytes | None
    vlan: int | None
    tap: str | None
    default_route_too: bool
    restart: Restart | None
    service: int | None

    @contextmanager
    def open(self, **emulated: str | int | None) -> Iterator[LinkTarget | ManagerLinkTarget | None]:
        """The device on the link, `None` if none is wanted; as `Link.open`.

        emulated: options that are only for an emulator. Raises `LinkError` for an interface
        with the default route, unless it is wanted too.
        """
        if self.dev is None and self.peer is None:
            values = {each.name: getattr(self, each.name) for each in fields(self)}
            given = _as_given(name for name, value in values.items() if value not in (None, False))
            if given:
                raise click.UsageError(f"{given}: for a device on a link: give --dev and --peer")
            yield None
            return
        if self.dev is None or self.peer is None:
            raise click.UsageError("a device on a link needs --dev, the interface, and --peer")
        if given := _as_given(name for name, value in emulated.items() if value is not None):
            raise click.UsageError(f"{given}: of an emulator; with --dev it is a device on a link")
        if self.service is not None and (self.host or self.port):
            raise click.UsageError("--host, --port: of the agent; with --service there is none")
        link = Link(
            dev=self.dev,
            via="afpacket",
            address=self.address,
            mac=self.mac,
            vlan=self.vlan,
            profile="spec",
            faults=None,
            tap=self.tap,
            spin=False,
        )
        host, port = self.host or host_of(self.peer, self.dev), self.port or AGENT_PORT
        way = ByAgent(self.peer, host, port, seconds=PATIENCE)
        with link.open() as endpoint:
            injectable(self.dev, certain=self.default_route_too)
            options: dict[str, Any] = {
                "tolerance": SLACK if self.tolerance is None else int(self.tolerance * MS),
                "rate": self.rate or RATE,
                "restart": self.restart,
            }
            if self.service is not None:
                with ManagerBench(endpoint, self.peer, self.service, **options) as manager:
                    yield manager_target(manager)
                return
            with Bench(endpoint, self.peer, way, **options) as bench:
                yield link_target(bench)


class CommandType(click.ParamType[Restart]):
    """A command and its arguments, for no shell."""

    name = "command"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> Restart:
        """The command; whatever is none is wrong usage."""
        if isinstance(value, Restart):
            return value
        try:
            return Restart(str(value))
        except ScriptError as error:
            self.fail(error.reason, param, ctx)


def _as_given(names: Iterable[str]) -> str:
    return ", ".join(f"--{name.replace('_', '-')}" for name in names)


def live_options(function: Decorated) -> Decorated:
    """Options that become one argument, `live`."""
    return as_one("live", LiveWish, _OPTIONS)(function)


_OPTIONS = (
    click.option("--dev", metavar="IFACE", help="The device is on this interface's link."),
    click.option("--peer", type=IPAddress(), metavar="IP", help="With --dev: its IP address."),
    click.option("--host", help="Where its agent listens.", show_default="--peer"),
    click.option(
        "--port", type=click.IntRange(1, 65535), help="At which port.", show_default=str(AGENT_PORT)
    ),
    click.option(
        "--tolerance",
        type=click.FloatRange(1, 10_000),
        metavar="MS",
        show_default=str(SLACK // MS),
        help="How late its answers may be: who says nothing for so long is silent.",
    ),
    click.option(
        "--rate",
        type=click.IntRange(1, 1_000_000),
        metavar="N",
        show_default=str(RATE),
        help="Packets a second at most.",
    ),
    click.option("--address", type=IPAddress(), metavar="IP", help="Ours, on that link."),
    click.option("--mac", type=MACAddress(), help="Of an address that is not the interface's."),
    click.option("--vlan", type=click.IntRange(1, 4094), help="Of such an address."),
    click.option("--tap", metavar="FILE", help="Write what arrives and leaves to a .pcapng."),
    click.option(
        "--default-route-too",
        is_flag=True,
        help="Attack even where this machine's default route lies.",
    ),
    click.option(
        "--restart",
        type=CommandType(),
        metavar="COMMAND",
        help="Brings the device back when it is dead: the run goes on, and what it died of is "
        "made shorter.",
    ),
    click.option(
        "--service",
        type=click.IntRange(1, 65535),
        metavar="PORT",
        help="Attack its connection manager (role cm), by who listens to this port of the "
        "RDMA-CM and, if it is listener.py, also asks for connections.",
    ),
)
