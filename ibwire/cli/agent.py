"""`ibwire agent`: an emulated device on a link, for `ibwire drill` and `ibwire fuzz`."""

from __future__ import annotations

import click

from ibwire.cli.live import LISTEN, LiveOptions, live_options
from ibwire.drill.agent import agent_server
from ibwire.drill.agent.emulated import serve_device


@click.command("agent")
@LISTEN
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=agent_server.PORT,
    show_default=True,
    help="TCP port; 0 for any.",
)
@click.option(
    "--token",
    envvar=agent_server.TOKEN_VARIABLE,
    show_envvar=True,
    show_default="a random one, which is printed",
    help="What programs must show to be served. Better in the environment: other users can read a "
    "command line.",
)
@live_options
def command(link: LiveOptions, listen: str | None, port: int, token: str | None) -> None:
    """Run an emulated device under test, with the agent that runs verbs on it.

    It replaces a host with an RDMA device and `agent.py` (docs/drill.md), to try
    scripts and attacks without hardware. It runs until Ctrl-C. Programs must show
    the token that it prints, by the variable IBWIRE_TOKEN.

    \b
    export IBWIRE_TOKEN=$(openssl rand -hex 16)
    ibwire lab up
    ibwire lab run --side b -- ibwire agent --dev veth-b --profile rxe &
    ibwire lab run -- ibwire drill conformance/acks --dev veth-a --peer 10.0.0.2
    ibwire lab run -- ibwire fuzz --dev veth-a --peer 10.0.0.2 --budget 30s
    """
    secret = token or agent_server.new_token()
    try:
        agent_server.check_token(secret)
    except ValueError as error:
        raise click.UsageError(f"--token: {error}") from None
    shown = None if token else secret
    with link.open() as endpoint:
        serve_device(
            endpoint,
            [listen] if listen else endpoint.listening_addresses,
            port,
            secret,
            report=lambda listening: click.echo(
                agent_server.notice(listening, link.dev, shown, endpoint.addresses), err=True
            ),
        )
