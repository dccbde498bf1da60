"""`ibwire fabric ping`: IP over InfiniBand between two hosts in virtual time."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from ipaddress import IPv4Address

import click

from ibwire.base.units import S
from ibwire.capture.writer import CaptureWriter
from ibwire.cli.fabric_tables import read_subnet, reported_errors
from ibwire.cli.fabric_traffic import host_named, port_name, record
from ibwire.cli.paths import InputPath, OutputPath
from ibwire.fabric.infiniband.network import limit_lanes
from ibwire.fabric.infiniband.routing import Engine
from ibwire.fabric.infiniband.subnet import Port
from ibwire.report.amounts import time_text
from ibwire.scenario.infiniband import FabricTraffic
from ibwire.scenario.ipoib import Interface, Ping
from ibwire.sm.configuration import Settings

FIRST_ADDRESS = IPv4Address("10.0.0.1")
LARGEST = 2000
"""Bytes of data: with its headers a datagram of the broadcast group has at most 2048."""


@click.command("ping")
@click.argument("topology", type=InputPath())
@click.argument("source", metavar="FROM")
@click.argument("destination", metavar="TO")
@click.option("--count", type=click.IntRange(1, 1000), default=4, help="Echo requests.")
@click.option(
    "--size",
    type=click.IntRange(0, LARGEST),
    default=56,
    show_default=True,
    help="Bytes of data in each.",
)
@click.option(
    "--routing",
    type=click.Choice([each.value for each in Engine]),
    default=Engine.MINHOP.value,
    show_default=True,
    help="How the subnet manager chooses paths.",
)
@click.option(
    "--capture",
    type=OutputPath(),
    metavar="FILE",
    help="Write what both hosts send and receive to a .pcapng or .pcap, as ERF records.",
)
def command(
    topology: str,
    source: str,
    destination: str,
    count: int,
    size: int,
    routing: str,
    capture: str | None,
) -> None:
    """Ping a host from another by IP over InfiniBand, over the fabric of a TOPOLOGY.

    All in virtual time: the subnet manager of ibwire, on the first host, brings the fabric up; both
    hosts join the broadcast group, find each other by ARP and ask for the path. The hosts of a
    topology have the addresses 10.0.0.1 and up. The exit status is 1 if an answer is missing.

    \b
    ibwire fabric ping ring6 node-0-0 node-3-1
    ibwire fabric ping star2 node-0 node-1 --capture ping.pcapng
    """
    with reported_errors(), ExitStack() as stack:
        subnet = read_subnet(topology)
        near, far = host_named(subnet, source), host_named(subnet, destination)
        if near is far:
            raise click.UsageError(f"{port_name(near)} would ping itself, over no link")
        limit_lanes(subnet, 1)
        traffic = FabricTraffic(subnet)
        if capture is not None:
            writer = stack.enter_context(CaptureWriter(capture))
            record(traffic, writer, [near, far])
        hosts = subnet.host_ports()
        manager = traffic.manage(hosts[0], Settings(engine=Engine(routing)), 10 * S)
        if not manager.is_up or not (near.lid and far.lid):
            raise click.ClickException("the subnet manager has not brought the fabric up")
        lost = _ping(traffic, near, far, count, size)
    if lost:
        raise click.exceptions.Exit(1)


def _ping(traffic: FabricTraffic, near: Port, far: Port, count: int, size: int) -> int:
    """Send echo requests one after the other, and print the answers; how many are missing."""
    hosts = traffic.subnet.host_ports()
    own, other = (
        Interface(traffic, port, FIRST_ADDRESS + hosts.index(port)) for port in (near, far)
    )
    lost = 0
    click.echo(f"{port_name(near)} {own.address} to {port_name(far)} {other.address}")
    for sequence in range(1, count + 1):
        ping = own.ping(other.address, sequence, size)
        traffic.simulator.run(
            traffic.simulator.now + 1 * S, stop=partial(_is_answered, ping, (own, other))
        )
        if ping.answered is None:
            lost += 1
            click.echo(f"seq {sequence}: no answer")
            continue
        # The first waits until both have joined, and for ARP and the path.
        click.echo(f"seq {sequence}: {size} bytes in {time_text(ping.answered - ping.sent)}")
    click.echo(f"{count - lost} of {count} answered")
    return lost


def _is_answered(ping: Ping, interfaces: Sequence[Interface]) -> bool:
    """Let the hosts work; whether an answer has come."""
    for interface in interfaces:
        interface.work()
    return ping.answered is not None
