"""`ibwire rping`: pings over a connection of the RDMA connection manager, as rping."""

from __future__ import annotations

import json
from dataclasses import asdict

import click

from ibwire.cli.live import LiveOptions, live_options, report_waiting
from ibwire.cli.packet_fields import PacketFieldOptions, open_program, packet_field_options
from ibwire.programs import rping, rping_live
from ibwire.programs.rping_live import Result


@click.command("rping")
@click.option("--connect", metavar="HOST", help="Connect as client to a server on HOST.")
@click.option(
    "-p",
    "--port",
    type=click.IntRange(1, 65535),
    default=rping.PORT,
    show_default=True,
    help="Port in the TCP port space of the RDMA connection manager.",
)
@click.option(
    "-C",
    "--count",
    type=click.IntRange(0),
    default=0,
    show_default="0: until Ctrl-C",
    help="Number of pings of a client.",
)
@click.option(
    "-S",
    "--size",
    type=click.IntRange(rping.SMALLEST, rping.LARGEST),
    help="Bytes of a ping; for a server the largest that it accepts.",
    show_default=f"{rping.DEFAULT_SIZE}; for a server {rping.LARGEST}",
)
@click.option(
    "-V",
    "--validate/--no-validate",
    default=True,
    show_default="--validate",
    help="Verify every byte.",
)
@click.option("-v", "--verbose", is_flag=True, help="Print the data of each ping.")
@click.option("-P", "--persistent", is_flag=True, help="Serve any number of clients.")
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print a JSON object for each connection instead of text.",
)
@live_options
@packet_field_options
def command(
    link: LiveOptions,
    packet_fields: PacketFieldOptions,
    connect: str | None,
    port: int,
    count: int,
    size: int | None,
    validate: bool,
    verbose: bool,
    persistent: bool,
    as_json: bool,
) -> None:
    """Exchange pings with rping, or with ibwire.

    The client offers memory, the server READs it and WRITEs it back. The connection is
    made and closed by the RDMA connection manager. Both sides verify the contents.
    Without --connect, wait for a client.

    \b
    ibwire rping --dev veth-b                                   rping -s
    ibwire rping --dev veth-a --connect 10.0.0.2 -C 10          rping -c -a 10.0.0.2 -C 10
    """
    if connect is not None and persistent:
        raise click.UsageError("--persistent requires a server: it excludes --connect")

    def print_data(data: bytes) -> None:
        if verbose:
            click.echo(f"{'ping' if connect else 'server ping'} data: {_text(data)}", err=as_json)

    def report(result: Result) -> None:
        if as_json:
            more = {"passed": result.passed, "counters": endpoint.counters()}
            click.echo(json.dumps(asdict(result) | more))
        else:
            click.echo(_line(result))

    with open_program(link, packet_fields) as endpoint:
        if connect is None:
            service = rping_live.Service(
                endpoint,
                port,
                is_persistent=persistent,
                limit=size or rping.LARGEST,
                validate=validate,
                on_data=print_data,
                report=report,
            )
            report_waiting(port, endpoint.addresses)
            service.run()
        else:
            rping_live.ping(
                endpoint,
                connect,
                port,
                size=size or rping.DEFAULT_SIZE,
                count=count,
                validate=validate,
                on_data=print_data,
                report=report,
            )


def _text(data: bytes) -> str:
    """The text of a ping, which ends with a zero byte."""
    return data.partition(b"\0")[0].decode("ascii", "backslashreplace")


def _line(result: Result) -> str:
    contents = ", contents verified" if result.validated and result.pings else ""
    text = f"{result.remote}: {result.pings} pings of {result.size} bytes{contents}"
    text += f", {result.seconds:.3f} s"
    if result.latency_us:
        spread = "/".join(f"{value:.0f}" for value in result.latency_us.values())
        text += f", latency min/mean/max {spread} us"
    return f"{text}, then: {result.problem}" if result.problem else text
