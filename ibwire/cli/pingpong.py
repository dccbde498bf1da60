"""`ibwire pingpong`: ping-pong with ibv_rc_pingpong, ibv_uc_pingpong or ibv_ud_pingpong."""

from __future__ import annotations

import json
from array import array
from functools import partial

import click
import numpy as np

from ibwire.base.errors import PeerError
from ibwire.cli.live import (
    LARGEST_MESSAGE,
    LISTEN,
    LiveOptions,
    report_waiting,
    tool_live_options,
)
from ibwire.cli.packet_fields import PacketFieldOptions, open_program, packet_field_options
from ibwire.cli.tool_options import (
    PINGPONG_REFUSED,
    PINGPONG_WITHOUT_EFFECT,
    MessageSize,
    connected_host,
    tool_options,
)
from ibwire.programs import pingpong
from ibwire.programs.pingpong import Plan, Result
from ibwire.rc.attributes import MTU_CODES, QPType

TYPES = {"rc": QPType.RC, "uc": QPType.UC, "ud": QPType.UD}


@click.command("pingpong")
@click.option("--connect", metavar="HOST", help="Connect as client to a program on HOST.")
@click.option(
    "-t",
    "--type",
    "kind",
    type=click.Choice(list(TYPES)),
    default="rc",
    show_default=True,
    help="Transport service.",
)
@click.option(
    "-p",
    "--port",
    type=click.IntRange(0, 65535),
    default=pingpong.PORT,
    show_default=True,
    help="TCP port; 0 for a server on any free port.",
)
@click.option(
    "-s",
    "--size",
    type=MessageSize(1, LARGEST_MESSAGE),
    help="Bytes of a message, also with K or M.",
    show_default="4096; 1024 with ud",
)
@click.option(
    "-n",
    "--iters",
    type=click.IntRange(1),
    default=1000,
    show_default=True,
    help="Number of messages.",
)
@click.option(
    "-m",
    "--mtu",
    type=click.Choice([str(size) for size in MTU_CODES]),
    help="Path MTU; both ends need the same, which the tools do not check.",
    show_default="1024, or less for a small interface MTU",
)
@click.option(
    "-l",
    "--sl",
    type=click.IntRange(0, 15),
    default=0,
    show_default=True,
    help="Service level.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
@LISTEN
@tool_live_options
@tool_options(PINGPONG_WITHOUT_EFFECT, PINGPONG_REFUSED)
@packet_field_options
def command(
    link: LiveOptions,
    packet_fields: PacketFieldOptions,
    connect: str | None,
    kind: str,
    port: int,
    size: int | None,
    iters: int,
    mtu: str | None,
    sl: int,
    listen: str | None,
    as_json: bool,
) -> None:
    """Play ping-pong with ibv_rc_pingpong, ibv_uc_pingpong, ibv_ud_pingpong or ibwire.

    Without --connect, wait for a client. Contents are verified.

    \b
    ibwire pingpong --dev veth-b                      and at the other end
    ibwire pingpong --dev veth-a --connect 10.0.0.2
    """
    connect = connected_host(connect)
    if connect is not None and not port:
        raise click.UsageError("-p 0 requires a server: it excludes --connect")
    if connect is not None and listen is not None:
        raise click.UsageError("--listen requires a server: it excludes --connect")
    if size is None:
        size = 1024 if kind == "ud" else 4096
    plan = Plan(TYPES[kind], size, iters, int(mtu) if mtu else None, sl)
    with open_program(link, packet_fields) as endpoint:
        if connect is not None:
            result = pingpong.connect(endpoint, plan, connect, port)
        else:
            addresses = [listen] if listen else endpoint.listening_addresses
            waits = partial(report_waiting, addresses=addresses, kind="TCP port")
            result = pingpong.serve(endpoint, plan, port, addresses=addresses, listens=waits)
        if as_json:
            role = "server" if connect is None else "client"
            click.echo(json.dumps(_as_object(role, result, endpoint.counters())))
        else:
            _print(result)
        if not result.passed:
            raise PeerError(_reason(result))


def _print(result: Result) -> None:
    click.echo(f"local  {result.own} QP {result.qpn:#08x}, path MTU {result.mtu}")
    click.echo(f"remote {result.peer} QP {result.peer_qpn:#08x}")
    messages = result.sent + result.received
    rate = messages * result.size * 8 / result.seconds / 1e6
    click.echo(
        f"{messages * result.size} bytes in {result.seconds:.2f} seconds = {rate:.2f} Mbit/sec"
    )
    text = f"{result.received} iters in {result.seconds:.2f} seconds"
    if result.received:
        text += f" = {result.seconds / result.received * 1e6:.2f} usec/iter"
    if result.rounds_ns:
        median, late = _spread(result.rounds_ns)
        text += f", median {median:.2f}, 99% {late:.2f}"
    click.echo(text)
    click.echo(f"{result.received - result.wrong} of {result.received} messages verified")


def _as_object(role: str, result: Result, counters: dict[str, int]) -> dict[str, object]:
    found: dict[str, object] = {
        "role": role,
        "local": result.own,
        "remote": result.peer,
        "qpn": result.qpn,
        "remote_qpn": result.peer_qpn,
        "path_mtu": result.mtu,
        "size": result.size,
        "sent": result.sent,
        "received": result.received,
        "wrong": result.wrong,
        "status": result.status.name,
        "seconds": result.seconds,
    }
    if result.rounds_ns:
        median, late = _spread(result.rounds_ns)
        found |= {"round_us_median": median, "round_us_p99": late}
    return found | {"passed": result.passed, "counters": counters}


def _spread(rounds_ns: array[int]) -> tuple[float, float]:
    """Median and 99th percentile, us."""
    ordered = np.sort(rounds_ns)
    return float(np.median(ordered)) / 1e3, float(ordered[len(ordered) * 99 // 100]) / 1e3


def _reason(result: Result) -> str:
    if result.wrong:
        return f"{result.wrong} messages arrived with wrong contents"
    return f"a completion failed with {result.status.name}: {result.cause}"
