"""The options of `ibwire drill` for a device on a real link."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import click

from ibwire.base.units import S
from ibwire.cli.live import host_of
from ibwire.cli.paths import InputPath
from ibwire.cli.target import TARGET, TargetOptions
from ibwire.cli.values import Decorated, as_one
from ibwire.drill.targets.live import LIMIT, Bench
from ibwire.drill.targets.ways import ByManager, ByParameters, ByPingpong, Way
from ibwire.programs import pingpong
from ibwire.rc.attributes import MTU_CODES

WAYS = ("agent", "pingpong", "cm", "params")

RPING_PORT = 7174
"""Port of rping, the listener that most hosts have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrillTargetOptions(TargetOptions):
    """A device on a link, and how connections to it are made."""

    connect: str | None
    mtu: str | None
    params: str | None
    params_from: str | None
    limit: float | None

    @contextmanager
    def open(self) -> Iterator[Bench | None]:
        """Open a bench as `LiveOptions.open` does; `None` if the device is not on a link."""
        found = self.link()
        if found is None:
            yield None
            return
        link, peer = found
        way = self._way(peer, host_of(peer, link.dev))
        with link.open() as endpoint:
            yield Bench(
                endpoint,
                peer,
                way,
                slack=self.slack,
                limit=LIMIT if self.limit is None else int(self.limit * S),
                restart=self.restart,
            )

    def _way(self, peer: str, default_host: str) -> Way:
        host = self.host or default_host
        connect = self.connect or WAYS[0]
        if (self.params or self.params_from) and connect != "params":
            raise click.UsageError("--params and --params-from require --connect params")
        if self.mtu is not None and connect != "pingpong":
            raise click.UsageError("--mtu requires --connect pingpong")
        match connect:
            case "agent":
                return self.agent(peer, host, keeps=True)
            case "pingpong":
                mtu = None if self.mtu is None else int(self.mtu)
                return ByPingpong(host, self.port or pingpong.PORT, mtu)
            case "cm":
                return ByManager(peer, self.port or RPING_PORT)
        if self.params is not None:
            return ByParameters(self.params)
        if self.params_from is None:
            raise click.UsageError("--connect params requires --params or --params-from")
        return ByParameters(self.params_from, is_command=True)


def target_options(function: Decorated) -> Decorated:
    """Add the options as one argument, `live`."""
    return as_one("live", DrillTargetOptions, _OPTIONS)(function)


_OPTIONS = (
    TARGET["dev"],
    TARGET["peer"],
    click.option(
        "--connect",
        type=click.Choice(WAYS),
        show_default=WAYS[0],
        help="How to make a connection: by the agent, which also runs verbs; a server of "
        "ibv_rc_pingpong; a listener of the connection manager; or given parameters.",
    ),
    TARGET["host"],
    click.option("--port", type=click.IntRange(1, 65535), help="Port of the agent or the server."),
    TARGET["token"],
    click.option(
        "--mtu",
        type=click.Choice([str(mtu) for mtu in MTU_CODES]),
        help="With --connect pingpong: its path MTU.",
        show_default="1024",
    ),
    click.option(
        "--params",
        metavar="FILE",
        type=InputPath(),
        help="With --connect params: JSON with qpn, rq_psn, sq_psn, mtu, va, rkey, size.",
    ),
    click.option(
        "--params-from", metavar="COMMAND", help="Run COMMAND for each case; it prints that JSON."
    ),
    TARGET["tolerance"],
    click.option(
        "--limit",
        type=click.FloatRange(0, 10_000),
        metavar="SECONDS",
        show_default=str(LIMIT // S),
        help="Skip cases on a link that would take longer.",
    ),
    TARGET["address"],
    TARGET["mac"],
    TARGET["vlan"],
    TARGET["tap"],
    TARGET["hardware_timestamps"],
    TARGET["restart"],
)
