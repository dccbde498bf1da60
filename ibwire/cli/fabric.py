"""`ibwire fabric`: an InfiniBand fabric that opensm and the tools of infiniband-diags work with."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import click
from click.core import ParameterSource

from ibwire.base.errors import IbwireError
from ibwire.base.interrupt import signal_of
from ibwire.base.units import S, Time
from ibwire.cli.fabric_tables import port_named, read_subnet, reported_errors, write_table
from ibwire.cli.groups import Group, LazyGroup
from ibwire.cli.paths import InputPath, OutputPath
from ibwire.cli.tables import table_options
from ibwire.cli.values import BitErrorRate, Duration
from ibwire.fabric.infiniband.routing import Engine
from ibwire.fabric.infiniband.subnet import Subnet
from ibwire.link import umad_client
from ibwire.link.ibsim_client import IbsimClient
from ibwire.link.umad_client import DEFAULT_NAME, NotRunning, ask, fabric_folder
from ibwire.link.umad_server import UmadServer, remove_folder
from ibwire.sm.control import ALL, Control, has_link, settings_of
from ibwire.sm.link_times import LinkTimes
from ibwire.sm.management import Management
from ibwire_layers.attributes import SMState

Decorated = TypeVar("Decorated", bound=Callable[..., object])

_OF_A_MANAGER = (
    "engine",
    "roots",
    "lmc",
    "lanes",
    "priority",
    "poll",
    "mkey",
    "mkey_protect",
    "mkey_lease",
    "partitions",
    "sm_host",
)
"""Arguments of `fabric run` that are for its subnet manager."""


class Key(click.ParamType[int]):
    """A number of 64 bits, also in hexadecimal."""

    name = "key"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        """The number."""
        try:
            key = value if isinstance(value, int) else int(str(value), 0)
        except ValueError:
            self.fail(f"{value!r} is not a number, such as 0x1234", param, ctx)
        if not 0 <= key < 1 << 64:
            self.fail(f"{value!r} is not a number of 64 bits", param, ctx)
        return key


class _Commands(LazyGroup, Group):
    """The commands for data need the whole transport: the others start in half the time."""

    modules: ClassVar[Mapping[str, str]] = {
        "traffic": "ibwire.cli.fabric_traffic",
        "ping": "ibwire.cli.fabric_ping",
    }


@click.group("fabric", cls=_Commands)
def command() -> None:
    """An InfiniBand fabric without hardware, for real subnet managers and tools.

    The fabric is a topology file, in the format of ibsim or as ibnetdiscover prints it. Its
    adapters and switches answer as hardware does; opensm, ibnetdiscover, perfquery, saquery and
    other programs that use libibumad run on its hosts unmodified, without root.

    \b
    ibwire fabric run ring6
    ibwire fabric exec node-0-0 -- opensm -o
    ibwire fabric exec node-1-0 -- iblinkinfo
    ibwire fabric show
    ibwire fabric route node-0-0 node-3-1
    ibwire fabric fail 'sw0[7]'
    ibwire fabric traffic ring6 --shift 4
    ibwire fabric ping ring6 node-0-0 node-3-1
    """


def _named(function: Decorated) -> Decorated:
    option = click.option(
        "--name",
        metavar="NAME",
        default=DEFAULT_NAME,
        show_default=True,
        help="Name of the fabric: several may run at a time.",
    )
    return option(function)


_PROTECTION = (
    click.option(
        "--mkey",
        type=Key(),
        default=0,
        help="M_Key of all ports, such as 0x1234: others cannot change them.",
    ),
    click.option(
        "--mkey-protect",
        type=click.IntRange(0, 3),
        default=1,
        show_default=True,
        help="M_KeyProtectBits beside --mkey; with 2 and 3 others cannot read ports either.",
    ),
    click.option(
        "--mkey-lease",
        type=click.IntRange(0, 0xFFFF),
        default=0,
        help="Seconds after a wrong M_Key, without the right one, until the protection ends; "
        "0 for never.",
    ),
    click.option(
        "--partition",
        "partitions",
        metavar="NAME=PKEY[,ipoib]:HOST,...",
        multiple=True,
        help="A partition and its members, such as storage=0x10:node-0,node-1=limited, or with a "
        "broadcast group of IP over InfiniBand storage=0x10,ipoib:ALL. Repeatable.",
    ),
)
"""Options of a subnet manager that say who may do what."""


def _manager_options(function: Decorated) -> Decorated:
    """Options of a subnet manager of our own; the command gets them as `settings`."""
    options = (
        click.option(
            "--routing",
            "engine",
            type=click.Choice([each.value for each in Engine]),
            default=Engine.MINHOP.value,
            show_default=True,
            help="How the manager chooses paths.",
        ),
        click.option(
            "--root",
            "roots",
            metavar="SWITCH",
            multiple=True,
            help="Top of the tree for updn; found without. Repeatable.",
        ),
        click.option(
            "--lmc",
            type=click.IntRange(0, 7),
            default=0,
            help="Give each adapter 2^N LIDs, with paths of their own.",
        ),
        click.option(
            "--lanes",
            type=click.IntRange(0, 15),
            default=0,
            help="Spread the service levels over so many virtual lanes.",
        ),
        click.option(
            "--priority",
            type=click.IntRange(0, 15),
            default=0,
            help="The manager with the highest is master.",
        ),
        click.option(
            "--poll",
            metavar="SECONDS",
            type=click.IntRange(1, 3600),
            default=10,
            show_default=True,
            help="As a standby, wait so long between two requests to the master; after five "
            "without a response, take over.",
        ),
        *_PROTECTION,
    )
    for option in reversed(options):
        function = option(function)
    return function


@command.command("run")
@click.argument("topology", type=InputPath())
@_named
@click.option(
    "--sm",
    "manager",
    type=click.Choice(["none", "own"]),
    default="none",
    show_default=True,
    help="Bring the fabric up with the subnet manager of ibwire.",
)
@click.option(
    "--ibsim",
    metavar="NAME",
    help="Also serve programs under ibsim-run, with this name in IBSIM_SOCKNAME (sim without).",
)
@click.option(
    "--rate",
    type=click.Choice(["fast", "real"]),
    default="fast",
    show_default=True,
    help="fast: MADs arrive at once; real: after the time of links, switches and agents.",
)
@click.option(
    "--sm-host", metavar="HOST", help="Where it runs; without, the first host with a link."
)
@_manager_options
def run(
    topology: str,
    name: str,
    manager: str,
    ibsim: str | None,
    sm_host: str | None,
    rate: str,
    **settings: Any,
) -> None:
    """Run the fabric of a TOPOLOGY until Ctrl-C: a file, a shipped one, or a key with values.

    A file is a net file of ibsim, output of ibnetdiscover, or TOML (docs/fabric.md).

    Shipped are star2, ring6 and fattree32. All links come up in the state Initialize; a subnet
    manager on one of the hosts brings them to Active.

    \b
    Keys with their values; rate=4xEDR is one of all:
      star:hosts=8
      ring:switches=6,hosts=2
      torus:size=4x4,hosts=1      also mesh:, with up to six dimensions
      fattree:ports=8,levels=2    or levels=3; leaves= and pods= for a part of it
      dragonfly:groups=5,leaves=4,spines=4,hosts=4,links=1
    """
    if manager != "own":
        _refuse_manager_options()
    _check_key(settings)
    with reported_errors():
        subnet = read_subnet(topology)
        folder = fabric_folder(name)
        _make_room(folder)
    server: UmadServer | None = None
    control: Control | None = None
    try:
        management = Management(subnet, LinkTimes() if rate == "real" else None)
        server = UmadServer(management, folder)
        server.control = control = Control(management, server.environment)
        hosts = _greet(subnet, name)
        if ibsim is not None:
            with reported_errors():
                server.add_ibsim(ibsim)
        if manager == "own":
            with reported_errors():
                started = _start_manager(control, {"host": sm_host, **settings}, hosts)
            click.echo(f"the subnet manager runs on {started}")
        elif hosts:
            click.echo("start a subnet manager in another terminal, for example:")
            given = "" if name == DEFAULT_NAME else f"--name {name} "
            click.echo(f"  ibwire fabric exec {given}{hosts[0]} -- opensm")
        with _ending_quietly():
            server.run()
    finally:
        if server is not None:
            server.close()
        remove_folder(folder)
        if control is not None:
            with reported_errors():
                control.close()


@contextmanager
def _ending_quietly() -> Iterator[None]:
    """A signal is how this ends: only the exit status tells of it."""
    try:
        yield
    except KeyboardInterrupt as interrupt:
        sys.exit(128 + signal_of(interrupt))


def _greet(subnet: Subnet, name: str) -> list[str]:
    """Say what the fabric has; the names of its hosts."""
    adapters = [node for node in subnet.nodes.values() if not node.is_switch]
    # A subnet manager on a host without a link would see nothing.
    hosts = [node.name for node in sorted(adapters, key=lambda node: not has_link(node))]
    switches = len(subnet.nodes) - len(hosts)
    links = sum(1 for _ in subnet.links())
    click.echo(
        f"{name}: {_count(len(hosts), 'host')}, {_count(switches, 'switch')}, "
        f"{_count(links, 'link')}"
    )
    return hosts


def _refuse_manager_options() -> None:
    """Raise `UsageError` if an option of the subnet manager is given and none is to run."""
    for parameter in click.get_current_context().command.params:
        if parameter.name in _OF_A_MANAGER and _is_given(parameter.name):
            raise click.UsageError(f"{parameter.opts[0]} needs --sm own")


def _check_key(settings: dict[str, Any]) -> None:
    """Raise `UsageError` for M_KeyProtectBits without a key, which would protect nothing."""
    for name in ("mkey_protect", "mkey_lease"):
        if _is_given(name) and not settings["mkey"]:
            raise click.UsageError(f"--{name.replace('_', '-')} needs --mkey")


def _is_given(parameter: str) -> bool:
    source = click.get_current_context().get_parameter_source(parameter)
    return source not in (None, ParameterSource.DEFAULT, ParameterSource.DEFAULT_MAP)


def _start_manager(control: Control, asked: dict[str, Any], hosts: list[str]) -> str:
    """Start the subnet manager in the fabric that this process runs; its host."""
    if not hosts:
        raise click.ClickException("--sm own needs a host")
    command = {**asked, "command": "manage", "host": asked["host"] or hosts[0]}
    host: str = control(command)["host"]
    return host


@command.command("manage")
@_named
@click.argument("host")
@click.option("--stop", is_flag=True, help="End it.")
@click.option(
    "--ibsim",
    metavar="NAME",
    help="On a host of ibsim, which has this name in IBSIM_SOCKNAME (sim without), until Ctrl-C.",
)
@_manager_options
def manage(name: str, host: str, stop: bool, ibsim: str | None, **settings: Any) -> None:
    """Start the subnet manager of ibwire on a HOST of a running fabric.

    Where another is master, opensm or ibwire, the two agree by priority and GUID.
    """
    _check_key(settings)
    if ibsim is not None:
        if stop:
            raise click.UsageError("--stop does not go with --ibsim: Ctrl-C ends it")
        _manage_ibsim(ibsim, host, settings)
        return
    with reported_errors():
        settings_of(settings)
        asked = {"command": "manage", "host": host, "stop": stop, **settings}
        done = ask(fabric_folder(name), asked)
    click.echo(f"the subnet manager on {done['host']} {'ends' if stop else 'runs'}")


def _manage_ibsim(name: str, host: str, settings: dict[str, Any]) -> None:
    """Manage a subnet of ibsim, and print what changes."""
    with reported_errors():
        client = IbsimClient(host, settings_of(settings), name)
        try:
            shown = None
            with _ending_quietly():
                while True:
                    client.step()
                    manager = client.manager
                    nodes = len(manager.view.subnet.nodes)
                    news = manager.state.name.lower(), manager.is_up, nodes
                    if news != shown and (manager.is_up or manager.state is SMState.STANDBY):
                        click.echo(f"{news[0]}: {_count(nodes, 'node')}")
                        for problem in manager.view.problems:
                            click.echo(problem, err=True)
                        shown = news
        finally:
            client.close()


@command.command("exec", context_settings={"ignore_unknown_options": True})
@_named
@click.argument("host")
@click.argument("arguments", metavar="COMMAND...", nargs=-1, required=True, type=click.UNPROCESSED)
def execute(name: str, host: str, arguments: tuple[str, ...]) -> None:
    """Run a COMMAND on a HOST of the fabric, and return its exit status.

    The command sees one adapter, ibwire0, with the ports of the host. opensm and osmtest keep
    their files in a folder of the fabric, which is removed with it.
    """
    with reported_errors():
        environment = umad_client.environment(fabric_folder(name), host)
    program = arguments[0]
    # Debian has opensm in /usr/sbin, which is not on the path of every user.
    path = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"
    found = shutil.which(program, path=path)
    if found is None:
        raise click.ClickException(f"{program}: command not found")
    sys.stdout.flush()
    try:
        os.execve(found, list(arguments), environment)
    except OSError as error:  # such as a script whose interpreter is missing
        raise click.ClickException(f"{program}: {error.strerror}") from None


@command.command("show")
@_named
@table_options("port")
def show(name: str, style: str | None, output: str | None) -> None:
    """List the ports of the fabric: LID, state, link, and what is at the other end."""
    rows = _asked(name, {"command": "show"})
    for row in rows:
        there = row.pop("peer_port")
        row["peer"] = "" if row["peer"] is None else f"{row['peer']}[{there}]"
    write_table(rows, ("node", "port", "lid", "state", "link", "peer"), style, output)


@command.command("route")
@_named
@click.argument("source")
@click.argument("destination")
@table_options("hop")
def route(name: str, source: str, destination: str, style: str | None, output: str | None) -> None:
    """Show the hops from a host or switch to another by the tables of the switches.

    The exit status is 1 if packets do not arrive, and the last line says why.
    """
    rows = _asked(name, {"command": "route", "source": source, "destination": destination})
    write_table(rows, ("node", "in", "out"), style, output)
    problem = rows[-1].get("problem")
    if problem:
        click.echo(f"{rows[-1]['node']}: {problem}", err=True)
        sys.exit(1)


@command.command("counters")
@_named
@click.argument("node", required=False)
@table_options("port")
def counters(name: str, node: str | None, style: str | None, output: str | None) -> None:
    """Show what the ports have counted: of one NODE, or of all.

    Data are in words of 4 bytes, as perfquery shows them.
    """
    rows = _asked(name, {"command": "counters", "node": node})
    seen = {key for row in rows for key, value in row.items() if value}
    shown = [key for key in rows[0] if key in ("node", "port") or key in seen] if rows else []
    write_table(rows, shown, style, output)


@command.command("capture")
@_named
@click.argument("file", type=OutputPath(), required=False)
@click.option(
    "--tap",
    "taps",
    metavar="NODE[PORT]",
    multiple=True,
    help="A port; without, those of all hosts; `all`: a port of each link. Repeatable.",
)
@click.option("--stop", is_flag=True, help="End the capture.")
def capture(name: str, file: str | None, taps: tuple[str, ...], stop: bool) -> None:
    """Write the MADs that ports send and receive to a FILE, .pcapng or .pcap, until --stop.

    MADs are all that moves in a running fabric. Data, flow-control packets and MADs are in the
    captures of `fabric traffic --sm own --capture FILE --tap all`.

    They are whole packets with LRH, both CRCs and the counts of the path so far, as ERF records.
    Each port is an interface of the file.
    """
    if (file is None) != stop or (stop and taps):
        raise click.UsageError("give a FILE, with --tap if you like, or --stop")
    if stop or file is None:
        with reported_errors():
            packets = ask(fabric_folder(name), {"command": "capture", "stop": True})["packets"]
        click.echo(f"{_count(packets, 'packet')} captured")
        return
    asked = {
        "command": "capture",
        "file": os.path.abspath(file),
        "taps": ALL if ALL in taps else [_port_of(each) for each in taps],
    }
    with reported_errors():
        ask(fabric_folder(name), asked)
    whose = "all links carry" if ALL in taps else "these ports send and receive"
    if not taps:
        whose = "hosts send and receive"
    click.echo(f"{name}: what {whose} goes to {file}")


@command.command("fail")
@_named
@click.argument("link", metavar="NODE[PORT]")
@click.option("--restore", is_flag=True, help="Bring the link back, and end its errors.")
@click.option(
    "--for",
    "duration",
    metavar="TIME",
    type=Duration(),
    help="Bring it back after some time, such as 2s, and end then.",
)
@click.option(
    "--errors",
    metavar="RATE",
    type=BitErrorRate(may_be_zero=False),
    help="Do not take it down: damage what it carries at a bit error rate, such as 1e-5.",
)
def fail(
    name: str, link: str, *, restore: bool, duration: Time | None, errors: float | None
) -> None:
    """Take the link at a port down; its switches tell the subnet manager.

    With --errors it stays up, and MADs that are damaged are lost; perfquery and ibqueryerrors show
    how many, as SymbolErrorCounter and PortRcvErrors of the port that received them.
    """
    if restore and (duration is not None or errors is not None):
        raise click.UsageError("--restore does not go with --for and --errors")
    if duration == 0:
        raise click.UsageError("--for 0 would bring the link back at once: give a time above 0")
    node, port = _port_of(link)
    folder = fabric_folder(name)
    back = {"command": "restore", "node": node, "port": port}
    with reported_errors():
        if not restore:
            done = ask(folder, {**back, "command": "fail", "errors": errors})
            state = "is down" if errors is None else f"has bit errors at a rate of {errors:g}"
            click.echo(f"{done['link']} {state}")
            if duration is None:
                return
        try:
            time.sleep((duration or 0) / S)
        finally:
            done = ask(folder, back)
    click.echo(f"{done['link']} is up")


def _port_of(text: str) -> tuple[str, int]:
    """Node and number of a port; raises `BadParameter`."""
    named = port_named(text)
    if named is None:
        raise click.BadParameter(f"{text!r} is not NODE[PORT], for example sw0[7]")
    return named


def _asked(name: str, question: dict[str, Any]) -> list[dict[str, Any]]:
    with reported_errors():
        rows: list[dict[str, Any]] = ask(fabric_folder(name), question)["rows"]
    return rows


def _make_room(folder: Path) -> None:
    """Make the folder of a fabric; raises `ClickException` if it is running."""
    if folder.exists():
        problem = ""
        try:
            ask(folder, {"command": "show"})
        except NotRunning:
            remove_folder(folder)  # of one that was killed
        except IbwireError:
            problem = " and does not answer"
        if folder.exists():
            name = folder.name.removeprefix("fabric-")
            raise click.ClickException(
                f"a fabric {name!r} is running{problem}; give --name to this one"
            )
    folder.mkdir(mode=0o700)


def _count(number: int, what: str) -> str:
    plural = "es" if what.endswith("ch") else "s"
    return f"{number:,} {what}{'' if number == 1 else plural}"
