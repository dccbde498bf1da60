"""`ibwire perf`: tests of perftest, with its programs or with ibwire as peer."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import Any, TypeVar

import click

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
    PERFTEST_REFUSED,
    PERFTEST_WITHOUT_EFFECT,
    MessageSize,
    connected_host,
    tool_options,
)
from ibwire.programs import perf
from ibwire.programs.endpoint import Endpoint
from ibwire.programs.perf_cm import connect_cm, serve_cm
from ibwire.programs.perf_flows import Plan
from ibwire.programs.perf_results import Result
from ibwire.programs.perftest import PORT, Verb
from ibwire.rc.attributes import MTU_CODES, QPType

LONGEST = 1 << 31
"""Seconds of a test, some 68 years: timeouts do not overflow."""

COLUMNS = " #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]"
LATENCY_COLUMNS = (
    " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    "
    "t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec] "
)
LINE = "-" * 87

Decorated = TypeVar("Decorated", bound=Callable[..., object])


class Programs(click.Group):
    """The tests, also by the names of perftest's programs, such as ib_write_lat."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Read the name of a program as the test and, perhaps, --latency."""
        found = _PROGRAM.fullmatch(args[0]) if args else None
        if found is not None:
            latency = ["--latency"] if found["kind"] == "lat" else []
            args = [found["verb"], *latency, *args[1:]]
        return super().resolve_command(ctx, args)


_PROGRAM = re.compile(r"ib_(?P<verb>send|write|read|atomic)_(?P<kind>bw|lat)")


@click.group("perf", cls=Programs)
def command() -> None:
    """Measure against ib_send_bw, ib_write_bw, ib_read_bw, ib_atomic_bw, their _lat, or ibwire.

    Without --connect, wait for a client. Both ends need the same options, except the depths.
    Contents are verified as far as possible, and the result shows how. Command lines of these
    programs work as they are, or are refused with the reason.

    \b
    ibwire perf write --dev veth-b                      and at the other end
    ibwire perf write --dev veth-a --connect 10.0.0.2
    ibwire perf ib_write_lat -d mlx5_0 -x 3 -F 10.0.0.2
    """


_TEST_OPTIONS = (
    click.option("--connect", metavar="HOST", help="Connect as client to a program on HOST."),
    click.option(
        "-p",
        "--port",
        type=click.IntRange(0, 65535),
        default=PORT,
        show_default=True,
        help="TCP port, with -R port of the connection manager; 0 for a server on any free "
        "TCP port.",
    ),
    click.option(
        "-n",
        "--iters",
        type=click.IntRange(1),
        help="Messages of each queue pair.",
        show_default="1000; WRITEs for bandwidth 5000",
    ),
    click.option(
        "-D",
        "--duration",
        "seconds",
        type=click.IntRange(1, LONGEST),
        help="Duration in seconds, instead of -n.",
    ),
    click.option(
        "-q",
        "--qp",
        "qps",
        type=click.IntRange(1, 1024),
        default=1,
        show_default=True,
        help="Number of queue pairs.",
    ),
    click.option(
        "-m",
        "--mtu",
        type=click.Choice([str(size) for size in MTU_CODES]),
        help="Path MTU; the smaller of both ends is used.",
        show_default="the largest that fits",
    ),
    click.option("-b", "--bidirectional", "both", is_flag=True, help="Both ends send."),
    click.option(
        "-t",
        "--tx-depth",
        "depth",
        type=click.IntRange(1, 1 << 15),
        default=128,
        show_default=True,
        help="Outstanding requests of a queue pair.",
    ),
    click.option(
        "-u",
        "--qp-timeout",
        "timeout",
        type=click.IntRange(0, 31),
        default=14,
        show_default="14, which is 67 ms",
        help="Code of the local ACK timeout.",
    ),
    click.option(
        "--latency", is_flag=True, help="Measure latency, one message at a time, as the _lat tests."
    ),
    click.option(
        "-R",
        "--rdma_cm",
        "uses_cm",
        is_flag=True,
        help="Connect with the RDMA connection manager, without TCP.",
    ),
    LISTEN,
    click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text."),
)
"""Options of every test, before those of live commands."""


def _test_options(function: Decorated) -> Decorated:
    """Add the options of every test."""
    function = packet_field_options(tool_live_options(function))
    function = tool_options(PERFTEST_WITHOUT_EFFECT, PERFTEST_REFUSED)(function)
    for option in reversed(_TEST_OPTIONS):
        function = option(function)
    return function


_size = click.option(
    "-s",
    "--size",
    type=MessageSize(1, LARGEST_MESSAGE),
    help="Bytes of a message, also with K or M.",
    show_default="65536; 2 for latency; of UD at most a packet",
)
_receives = click.option(
    "-r",
    "--rx-depth",
    "receives",
    type=click.IntRange(1, 1 << 15),
    default=512,
    show_default=True,
    help="Posted receive requests.",
)


_no_receives = tool_options({"-r --rx-depth": True}, {}, has_host=False)


def _connection(*kinds: str) -> Callable[[Decorated], Decorated]:
    return click.option(
        "-c",
        "--connection",
        "kind",
        type=click.Choice(kinds, case_sensitive=False),
        metavar=f"[{'|'.join(kinds)}]",
        default="RC",
        show_default=True,
        help="Transport service.",
    )


@command.command("send")
@_size
@_receives
@_connection("RC", "UC", "UD")
@_test_options
def send(link: LiveOptions, **options: Any) -> None:
    """SENDs, as ib_send_bw and ib_send_lat."""
    _run(Verb.SEND, link, **options)


@command.command("write")
@_size
@_no_receives
@_connection("RC", "UC")
@_test_options
def write(link: LiveOptions, **options: Any) -> None:
    """RDMA WRITEs, as ib_write_bw and ib_write_lat."""
    _run(Verb.WRITE, link, **options)


@command.command("read")
@_size
@_no_receives
@_connection("RC")
@_test_options
def read(link: LiveOptions, **options: Any) -> None:
    """RDMA READs, as ib_read_bw and ib_read_lat."""
    _run(Verb.READ, link, **options)


@command.command("atomic")
@click.option(
    "-A",
    "--atomic-type",
    "atomic",
    default="FETCH_AND_ADD",
    show_default=True,
    type=click.Choice(["FETCH_AND_ADD", "CMP_AND_SWAP"]),
    help="Which operation.",
)
@_no_receives
@_connection("RC")
@_test_options
def atomic(link: LiveOptions, **options: Any) -> None:
    """Atomics of 8 bytes, as ib_atomic_bw and ib_atomic_lat."""
    _run(Verb.ATOMIC, link, **options)


def _run(
    verb: Verb,
    link: LiveOptions,
    packet_fields: PacketFieldOptions,
    *,
    connect: str | None,
    port: int,
    iters: int | None,
    seconds: int | None,
    qps: int,
    mtu: str | None,
    both: bool,
    depth: int,
    timeout: int,
    latency: bool,
    uses_cm: bool,
    listen: str | None,
    as_json: bool,
    size: int | None = None,
    receives: int = 1,
    kind: str = "RC",
    atomic: str = "",
) -> None:
    connect = connected_host(connect)
    if iters is not None and seconds is not None:
        raise click.UsageError("-n and -D exclude each other")
    if latency and (both or qps > 1):
        raise click.UsageError("--latency excludes -b and -q")
    _check_connection(connect, port, listen, kind, mtu, uses_cm=uses_cm)
    messages = 5000 if verb is Verb.WRITE and not latency else 1000
    plan = Plan(
        verb,
        latency=latency,
        qp_type=QPType[kind],
        size=size or 0,
        messages=iters or messages,
        seconds=seconds,
        qps=qps,
        mtu=int(mtu) if mtu else None,
        both=both,
        depth=depth,
        receives=receives,
        swaps=atomic == "CMP_AND_SWAP",
        timeout=timeout,
    )
    with open_program(link, packet_fields) as endpoint:
        result = _carry_out(endpoint, plan, connect, port, listen=listen, uses_cm=uses_cm)
        if as_json:
            role = "server" if connect is None else "client"
            click.echo(json.dumps(_as_object(plan, role, result, endpoint.counters())))
        else:
            _print(plan, result)
        if not result.passed:
            raise PeerError(f"{result.wrong} messages, results or addresses have wrong contents")


def _check_connection(
    connect: str | None,
    port: int,
    listen: str | None,
    kind: str,
    mtu: str | None,
    *,
    uses_cm: bool,
) -> None:
    """Raise `UsageError` for options that the way to connect excludes."""
    if uses_cm and kind != "RC":
        raise click.UsageError(
            f"-R requires -c RC: without it {kind} queue pairs are connected over TCP"
        )
    if uses_cm and mtu:
        raise click.UsageError("-R excludes -m: the connection manager chooses the path MTU")
    if listen is not None and (uses_cm or connect is not None):
        raise click.UsageError("--listen requires a server over TCP")
    if not port and (uses_cm or connect is not None):
        raise click.UsageError("-p 0 requires a server over TCP")


def _carry_out(
    endpoint: Endpoint,
    plan: Plan,
    connect: str | None,
    port: int,
    *,
    listen: str | None,
    uses_cm: bool,
) -> Result:
    """Run the test as a client, or as a server without `connect`."""
    if connect is not None:
        be_client = connect_cm if uses_cm else perf.connect
        return be_client(endpoint, plan, connect, port)
    if uses_cm:
        waits = partial(report_waiting, addresses=endpoint.addresses)
        return serve_cm(endpoint, plan, port, listens=waits)
    addresses = [listen] if listen else endpoint.listening_addresses
    waits = partial(report_waiting, addresses=addresses, kind="TCP port")
    return perf.serve(endpoint, plan, port, addresses=addresses, listens=waits)


def _print(plan: Plan, result: Result) -> None:
    click.echo(LINE)
    service = f"{plan.verb.upper()} over {plan.qp_type.name}"
    other = "ibwire" if result.is_ibwire else "perftest"
    click.echo(f" {service} with {other}, path MTU {result.mtu}")
    for own, peer in result.qpns:
        click.echo(f" local {result.own} QP {own:#08x}, remote {result.peer} QP {peer:#08x}")
    click.echo(LINE)
    if result.latency is not None:
        times = result.latency
        click.echo(LATENCY_COLUMNS)
        click.echo(
            f" {times.size:<7} {times.messages}          {times.t_min:<7.2f}        "
            f"{times.t_max:<7.2f}      {times.t_typical:<7.2f}  \t       {times.t_avg:<7.2f}     "
            f"\t{times.t_stdev:<7.2f}\t\t{times.p99:<7.2f} \t\t{times.p99_9:<7.2f}"
        )
    elif result.report is not None:
        report = result.report
        click.echo(COLUMNS)
        peak, average = report.peak_mib_per_s, report.average_mib_per_s
        click.echo(
            f" {report.size:<7}    {report.messages:<10}       {peak:<7.2f}            "
            f"{average:<7.2f}\t\t   {report.rate_mpps:<7.6f}"
        )
    if result.latency is not None or result.report is not None:
        click.echo(LINE)
    for what, how in result.verified.items():
        click.echo(f" verified: {what}, {how}")
    if not result.verified:
        click.echo(" verified: nothing, because only the peer has the data")
    if result.lost:
        click.echo(f" lost or incomplete: {result.lost}")


def _as_object(
    plan: Plan, role: str, result: Result, counters: dict[str, int]
) -> dict[str, object]:
    found: dict[str, object] = {
        "role": role,
        "verb": plan.verb,
        "service": plan.qp_type.name,
        "local": result.own,
        "remote": result.peer,
        "with": "ibwire" if result.is_ibwire else "perftest",
        "qpns": [list(pair) for pair in result.qpns],
        "path_mtu": result.mtu,
        "size": result.size,
        "sent": result.sent,
        "received": result.received,
        "lost": result.lost,
        "wrong": result.wrong,
        "verified": result.verified,
    }
    if result.report is not None:
        found["bandwidth"] = asdict(result.report)
    if result.latency is not None:
        times = asdict(result.latency)
        del times["size"], times["messages"]
        found["latency_us"] = times
    return found | {"passed": result.passed, "counters": counters}
