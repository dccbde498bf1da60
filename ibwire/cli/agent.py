"""`ibwire agent`: an emulated device on a link, for `ibwire drill` and `ibwire fuzz`."""

from __future__ import annotations

import click

from ibwire.cli.live import LiveOptions, live_options
from ibwire.drill.agent.emulated import serve_device
from ibwire.drill.targets.ways import AGENT_PORT


@click.command("agent")
@click.option("--listen", default="", metavar="ADDRESS", help="Local address to listen on. [all]")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=AGENT_PORT,
    show_default=True,
    help="TCP port; 0 for any.",
)
@live_options
def command(link: LiveOptions, listen: str, port: int) -> None:
    """Run an emulated device under test, with the agent that runs verbs on it.

    It replaces a host with an RDMA device and `agent.py` (docs/drill.md), to try
    scripts and attacks without hardware. It runs until Ctrl-C.

    \b
    ibwire lab up
    ibwire lab run --side b -- ibwire agent --dev veth-b --profile rxe &
    ibwire lab run -- ibwire drill tests/conformance/acks --dev veth-a --peer 10.0.0.2
    ibwire lab run -- ibwire fuzz --dev veth-a --peer 10.0.0.2 --budget 30s
    """
    with link.open() as endpoint:
        serve_device(
            endpoint,
            listen,
            port,
            report=lambda port: click.echo(f"{link.dev}: waiting at TCP port {port}", err=True),
        )
