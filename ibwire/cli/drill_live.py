"""The options of `ibwire drill` for a device on a real link."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields

import click

from ibwire.base.units import MS, S
from ibwire.cli.live import Link, host_of
from ibwire.cli.values import Decorated, IPAddress, MACAddress, as_one
from ibwire.drill.targets.live import LIMIT, SLACK, Bench
from ibwire.drill.targets.ways import AGENT_PORT, ByAgent, ByManager, ByParameters, ByPingpong, Way
from ibwire.programs import pingpong
from ibwire.rc.attributes import MTU_CODES

WAYS = ("agent", "pingpong", "cm", "params")

RPING_PORT = 7174
"""Of rping, whose server is what there is on most hosts."""


@dataclass(frozen=True, slots=True)
class LiveWish:
    """What the options say."""

    dev: str | None
    peer: str | None
    connect: str | None
    host: str | None
    port: int | None
    mtu: str | None
    params: str | None
    params_from: str | None
    tolerance: float | None
    limit: float | None
    address: str | None
    mac: bytes | None
    vlan: int | None
    tap: str | None

    @property
    def is_wanted(self) -> bool:
        """Whether the device is on a link."""
        return self.dev is not None or self.peer is not None

    @contextmanager
    def open(self) -> Iterator[Bench | None]:
        """A bench, `None` if the device is none on a link; as `Link.open`."""
        if not self.is_wanted:
            given = [each.name for each in fields(self) if getattr(self, each.name) is not None]
            if given:
                names = ", ".join(f"--{name.replace('_', '-')}" for name in given)
                raise click.UsageError(f"{names}: for a device on a link: give --dev and --peer")
            yield None
            return
        if self.dev is None or self.peer is None:
            raise click.UsageError("a device on a link needs --dev, the interface, and --peer")
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
        way = self._way(self.peer, host_of(self.peer, self.dev))
        with link.open() as endpoint:
            yield Bench(
                *(endpoint, self.peer, way),
                slack=SLACK if self.tolerance is None else int(self.tolerance * MS),
                limit=LIMIT if self.limit is None else int(self.limit * S),
            )

    def _way(self, peer: str, usual: str) -> Way:
        host = self.host or usual
        connect = self.connect or WAYS[0]
        if (self.params or self.params_from) and connect != "params":
            raise click.UsageError("--params and --params-from are for --connect params")
        if self.mtu is not None and connect != "pingpong":
            raise click.UsageError("--mtu is for --connect pingpong")
        match connect:
            case "agent":
                return ByAgent(peer, host, self.port or AGENT_PORT, keeps=True)
            case "pingpong":
                mtu = None if self.mtu is None else int(self.mtu)
                return ByPingpong(host, self.port or pingpong.PORT, mtu)
            case "cm":
                return ByManager(peer, self.port or RPING_PORT)
        if self.params is not None:
            return ByParameters(self.params)
        if self.params_from is None:
            raise click.UsageError("--connect params needs --params or --params-from")
        return ByParameters(self.params_from, is_command=True)


def live_options(function: Decorated) -> Decorated:
    """Options that become one argument, `live`."""
    return as_one("live", LiveWish, _OPTIONS)(function)


_OPTIONS = (
    click.option("--dev", metavar="IFACE", help="The device is on this interface's link."),
    click.option("--peer", type=IPAddress(), metavar="IP", help="With --dev: its address."),
    click.option(
        "--connect",
        type=click.Choice(WAYS),
        show_default=WAYS[0],
        help="How a connection comes about: by the agent, which also carries verbs out, a server "
        "ibv_rc_pingpong, a listener of the connection manager, or given numbers.",
    ),
    click.option("--host", help="Where agent or pingpong listen.", show_default="--peer"),
    click.option("--port", type=click.IntRange(1, 65535), help="At which port."),
    click.option(
        "--mtu",
        type=click.Choice([str(mtu) for mtu in MTU_CODES]),
        help="With --connect pingpong: its path MTU.",
        show_default="1024",
    ),
    click.option(
        "--params", metavar="FILE", help="JSON: qpn, rq_psn, sq_psn, mtu, va, rkey, size."
    ),
    click.option("--params-from", metavar="COMMAND", help="Prints that JSON, for each case anew."),
    click.option(
        "--tolerance",
        type=click.FloatRange(1, 10_000),
        metavar="MS",
        show_default=str(SLACK // MS),
        help="How late a device on a link may be, with everything.",
    ),
    click.option(
        "--limit",
        type=click.FloatRange(0, 10_000),
        metavar="SECONDS",
        show_default=str(LIMIT // S),
        help="Cases on a link that would take longer are skipped.",
    ),
    click.option("--address", type=IPAddress(), metavar="IP", help="Ours, on that link."),
    click.option("--mac", type=MACAddress(), help="Of an address that is not the interface's."),
    click.option("--vlan", type=click.IntRange(1, 4094), help="Of such an address."),
    click.option("--tap", metavar="FILE", help="Write what arrives and leaves to a .pcapng."),
)
