"""The options of `ibwire fuzz` for a device on a real link."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import click

from ibwire.cli.live import host_of
from ibwire.cli.target import TARGET, TargetOptions, option_names
from ibwire.cli.values import Decorated, as_one
from ibwire.drill.agent.agent_server import PORT as AGENT_PORT
from ibwire.fuzz.targets.link.device_link import RATE
from ibwire.fuzz.targets.link.manager_link import ManagerLink
from ibwire.fuzz.targets.link.target import LinkTarget, ManagerLinkTarget
from ibwire.fuzz.targets.link.verbs_link import VerbsLink
from ibwire.traffic.safety import injectable_interface

AGENT_TIMEOUT = 5.0
"""Seconds that the agent may take to respond: it may have died with the device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FuzzTargetOptions(TargetOptions):
    """A device on a link, and how it is attacked."""

    rate: int | None
    default_route_too: bool
    service: int | None

    @contextmanager
    def open(self, **emulated: str | int | None) -> Iterator[LinkTarget | ManagerLinkTarget | None]:
        """Open the target as `LiveOptions.open` does; `None` if it is not on a link.

        emulated: options that are only for an emulator. Raises `LinkError` for an interface
        of the default route, unless it is allowed.
        """
        found = self.link()
        if found is None:
            yield None
            return
        link, peer = found
        if given := [name for name, value in emulated.items() if value is not None]:
            raise click.UsageError(f"{option_names(given)}: only without --dev, for an emulator")
        if self.service is not None and (self.host or self.port):
            raise click.UsageError("--host, --port: only without --service, which uses no agent")
        way = None
        if self.service is None:
            host = self.host or host_of(peer, link.dev)
            way = self.agent(peer, host, seconds=AGENT_TIMEOUT)
        with link.open() as endpoint:
            injectable_interface(link.dev, allow_default_route=self.default_route_too)
            options: dict[str, Any] = {
                "tolerance": self.slack,
                "rate": self.rate or RATE,
                "restart": self.restart,
            }
            if way is None:
                assert self.service is not None
                with ManagerLink(endpoint, peer, self.service, **options) as manager:
                    yield ManagerLinkTarget(manager)
                return
            with VerbsLink(endpoint, peer, way, **options) as verbs:
                yield LinkTarget(verbs)


def target_options(function: Decorated) -> Decorated:
    """Add the options as one argument, `live`."""
    return as_one("live", FuzzTargetOptions, _OPTIONS)(function)


_OPTIONS = (
    TARGET["dev"],
    TARGET["peer"],
    TARGET["host"],
    click.option(
        "--port",
        type=click.IntRange(1, 65535),
        help="Port of the agent.",
        show_default=str(AGENT_PORT),
    ),
    TARGET["token"],
    TARGET["tolerance"],
    click.option(
        "--rate",
        type=click.IntRange(1, 1_000_000),
        metavar="N",
        show_default=str(RATE),
        help="Largest number of packets per second.",
    ),
    TARGET["address"],
    TARGET["mac"],
    TARGET["vlan"],
    TARGET["tap"],
    TARGET["hardware_timestamps"],
    click.option(
        "--default-route-too",
        is_flag=True,
        help="Allow the interface of this machine's default route.",
    ),
    TARGET["restart"],
    click.option(
        "--service",
        type=click.IntRange(1, 65535),
        metavar="PORT",
        help="Attack its connection manager (role cm), through the listener at this port of the "
        "RDMA-CM. The listener listener.py also requests connections.",
    ),
)
