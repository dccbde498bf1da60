"""`ibwire fabric traffic`: data over an InfiniBand fabric in virtual time."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from ibwire.base.errors import EncodeError
from ibwire.base.node import Frame
from ibwire.base.quantities import parse_duration
from ibwire.base.toml import read_content
from ibwire.base.units import MS, NS, US, S, Time
from ibwire.capture.erf import erf_record
from ibwire.capture.writer import CaptureWriter
from ibwire.cli.fabric_tables import port_named, read_subnet, reported_errors, write_table
from ibwire.cli.messages import print_note, print_warning
from ibwire.cli.paths import InputPath, OutputPath
from ibwire.cli.tables import table_options
from ibwire.cli.tool_options import MessageSize
from ibwire.cli.values import BitErrorRate, Duration
from ibwire.fabric.infiniband.network import FOREVER, limit_lanes, set_limits
from ibwire.fabric.infiniband.routing import Engine, bring_up
from ibwire.fabric.infiniband.settings import FabricSettings
from ibwire.fabric.infiniband.subnet import Port, Subnet
from ibwire.fabric.infiniband.tap import tap
from ibwire.fabric.infiniband.tomlfile import SUFFIX
from ibwire.fabric.infiniband.waiting import explain
from ibwire.fabric.llr import LLR
from ibwire.rc.work import WCStatus
from ibwire.report.amounts import metric_text
from ibwire.scenario.infiniband import LARGEST, FabricTraffic, Operation, Transfer, message_size
from ibwire.scenario.infiniband_plan import LANES, Plan, at_its_place, has_plan, read_plan
from ibwire.scenario.infiniband_plan import check as checked
from ibwire.sm.configuration import Settings
from ibwire.sm.control import ALL
from ibwire_layers.outer import LinkType

MOST_MEMORY = 1 << 30
"""Bytes of the messages of all transfers."""


class Interrupt(click.ParamType[tuple[str, Time, Time]]):
    """A link by one of its ports, a time and a duration: sw0[1]:20us:5us."""

    name = "NODE[PORT]:AT:FOR"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, Time, Time]:
        """Name, and picoseconds of both."""
        if isinstance(value, tuple):
            return value
        parts = str(value).rsplit(":", 2)
        if len(parts) != 3:
            self.fail(f"{value}: expected NODE[PORT]:AT:FOR, such as sw0[1]:20us:5us", param, ctx)
        try:
            return parts[0], parse_duration(parts[1]), parse_duration(parts[2])
        except EncodeError as error:
            self.fail(f"{value}: {error}", param, ctx)


@click.command("traffic")
@click.argument("topology", type=InputPath())
@click.option(
    "--flow",
    "flows",
    metavar="FROM:TO",
    multiple=True,
    help="A transfer between two hosts; may be given several times.",
)
@click.option(
    "--shift",
    type=click.IntRange(min=1),
    metavar="N",
    help="A transfer from each host to that which is N further; 1 without --flow and --to.",
)
@click.option("--to", "target", metavar="HOST", help="A transfer from each other host to this one.")
@click.option(
    "--size",
    type=MessageSize(1, LARGEST),
    default="1M",
    show_default=True,
    help="Bytes of a transfer, also with K or M.",
)
@click.option(
    "--message",
    type=MessageSize(1, LARGEST),
    help="Bytes of a message; by default all of a transfer.",
)
@click.option(
    "--operation",
    type=click.Choice([each.value for each in Operation]),
    default=Operation.WRITE.value,
    show_default=True,
    help="What FROM does with each message, by RC; bytes of a read go from TO to FROM.",
)
@click.option("--sl", type=click.IntRange(0, 15), default=0, help="Service level of all transfers.")
@click.option(
    "--routing",
    type=click.Choice([each.value for each in Engine]),
    default=Engine.MINHOP.value,
    show_default=True,
    help="How the forwarding tables are made.",
)
@click.option(
    "--sm",
    "manager",
    type=click.Choice(["none", "own"]),
    default="none",
    show_default=True,
    help="Let the subnet manager of ibwire give LIDs and tables, by SMPs beside the data.",
)
@click.option(
    "--sm-host",
    metavar="HOST",
    help="Where it runs, with --sm own; without, the first host with a link.",
)
@click.option(
    "--lanes", type=click.Choice(LANES), default="1", show_default=True, help="Data lanes."
)
@click.option(
    "--buffer",
    type=click.IntRange(2, 2048),
    default=256,
    show_default=True,
    help="Buffer of each lane of a port, in blocks of 64 bytes.",
)
@click.option(
    "--hoq-life",
    type=click.IntRange(0, 31),
    default=FOREVER,
    show_default=True,
    help="HOQLife of all ports: 4.096 us x 2^N, above 19 for ever.",
)
@click.option(
    "--adaptive",
    is_flag=True,
    help="Switches choose the port with the shortest queue, of those with as many hops.",
)
@click.option(
    "--errors",
    type=BitErrorRate(may_be_zero=True),
    default=0,
    metavar="RATE",
    help="Bit error rate of all links, such as 1e-7.",
)
@click.option("--retry", is_flag=True, help="Links repeat packets that are damaged or lost.")
@click.option(
    "--interrupt",
    "interrupts",
    type=Interrupt(),
    multiple=True,
    help="Lose the signal of a link: port, time from the first transfer, and for how long. "
    "Repeatable.",
)
@click.option(
    "--time",
    "limit",
    type=Duration(),
    default="1s",
    show_default=True,
    help="End of the run in virtual time, if transfers have not ended.",
)
@click.option(
    "--capture",
    type=OutputPath(),
    metavar="FILE",
    help="Write what the ports of --tap send and receive to a .pcapng or .pcap, as ERF records.",
)
@click.option(
    "--tap",
    "taps",
    metavar="NODE[PORT]",
    multiple=True,
    help="A port for --capture; without, what each adapter sends; `all`: a port of each link.",
)
@click.option("--counters", is_flag=True, help="List what the ports have counted, not transfers.")
@click.option("--seed", type=click.IntRange(min=0), default=0, help="Of the bytes that are sent.")
@table_options("transfer or port")
def command(topology: str, style: str | None, output: str | None, **given: Any) -> None:
    """Send data over the fabric of a TOPOLOGY in virtual time, and say how fast it arrived.

    The topology is a file, a shipped one or a key, as for `fabric run`, which need not run. Links
    have credits, and switches and adapters send real packets with LRH and VCRC. A deadlock is
    named as a circle of ports and lanes. The exit status is 1 if a transfer has not arrived.

    \b
    ibwire fabric traffic ring6 --shift 4
    ibwire fabric traffic ring:hosts=1 --shift 2 --buffer 132
    ibwire fabric traffic fattree32 --to node-0 --counters
    ibwire fabric traffic star2 --capture c.pcapng --tap sw0[1]
    ibwire fabric traffic star2 --errors 1e-7 --retry --interrupt sw0[1]:20us:5us
    ibwire fabric traffic ring6 --sm own --interrupt sw0[7]:20us:1s
    """
    if given["taps"] and not given["capture"]:
        raise click.UsageError("--tap needs --capture FILE")
    with reported_errors(), ExitStack() as stack:
        subnet = read_subnet(topology)
        plan = _plan(topology, subnet)
        used = _not_given(plan.options)
        given |= used
        _check_manager(given)
        traffic = _traffic(subnet, given)
        for name, _, _ in given["interrupts"]:
            _port(subnet, name)
        taps = _tapped(subnet, given["taps"])
        jobs = _jobs(subnet, given, plan, used)
        if sum(job["message"] for _, _, job in jobs) > MOST_MEMORY:
            raise click.UsageError(
                f"{len(jobs):,} transfers need too much memory: give a smaller --message"
            )
        if given["capture"]:  # opened last: a wrong argument leaves an existing file as it is
            writer = stack.enter_context(CaptureWriter(given["capture"]))
            record(traffic, writer, taps)
        if given["manager"] == "own":
            with at_its_place("sm_host", (used, plan.error)):
                _manage(traffic, given)
        for source, destination, job in jobs:
            traffic.add(source, destination, **job)
        _disturb(traffic, given, plan)
        traffic.run(given["limit"])
    if given["counters"]:
        rows = _counters(subnet)
    else:
        rows = [_row(transfer) for transfer in traffic.transfers]
    write_table(rows, list(rows[0]) if rows else [], style, output)
    _print_problems(traffic, given["limit"])
    if not _is_as_expected(traffic, plan):
        raise click.exceptions.Exit(1)


def _tapped(subnet: Subnet, names: Sequence[str]) -> list[Port]:
    """The ports for the capture; with `all` one end of each link."""
    if ALL in names:
        return [port for port, _ in subnet.links()]
    return [_port(subnet, name) for name in names]


def _traffic(subnet: Subnet, given: dict[str, Any]) -> FabricTraffic:
    """The fabric, with LIDs and tables if no subnet manager is to give them."""
    if given["manager"] == "own":
        limit_lanes(subnet, int(given["lanes"]))
    else:
        bring_up(subnet, Engine(given["routing"]))
        set_limits(subnet, lanes=int(given["lanes"]), hoq_life=given["hoq_life"])
    settings = FabricSettings(
        buffer=given["buffer"],
        adaptive=given["adaptive"],
        # Longer than a link stays in ActiveDefer: nothing is lost while it does.
        retry=LLR(pcs_lost_timeout=1 * S) if given["retry"] else None,
    )
    return FabricTraffic(subnet, settings, seed=given["seed"])


def _print_problems(traffic: FabricTraffic, limit: Time) -> None:
    """Say what did not go as it should."""
    for port, at in traffic.fabric.not_interrupted:
        when = (at - traffic.transfers[0].begin) / US
        print_warning(
            f"{port_name(port)} was not interrupted at {when:g} us: its link is not Active"
        )
    if traffic.deadlock:
        click.echo(explain(traffic.deadlock), err=True)
    elif problem := _unfinished(traffic, limit):
        click.echo(problem, err=True)


def _plan(topology: str, subnet: Subnet) -> Plan:
    """Traffic, faults and expectations of a topology in TOML."""
    path = Path(topology)
    if path.suffix != SUFFIX or not path.is_file():
        return Plan()
    content = read_content(path)
    return read_plan(content, topology, subnet) if has_plan(content, topology) else Plan()


def _not_given(options: dict[str, Any]) -> dict[str, Any]:
    """The options of a file that the command line does not give."""
    context = click.get_current_context()
    found = {
        name: value
        for name, value in options.items()
        if context.get_parameter_source(name)
        in (ParameterSource.DEFAULT, ParameterSource.DEFAULT_MAP)
    }
    if context.params["flows"]:  # in place of all transfers of the file
        for name in ("shift", "target"):
            found.pop(name, None)
    if "manager" not in found and context.params["manager"] == "none":
        found.pop("sm_host", None)  # --sm none takes the manager of the file away
    return found


def _jobs(
    subnet: Subnet, given: dict[str, Any], plan: Plan, used: dict[str, Any]
) -> list[tuple[Port, Port, dict[str, Any]]]:
    """All transfers: source, destination, and the arguments of `FabricTraffic.add`.

    used: the options that come from the file.
    """
    usual = {name: given[name] for name in ("size", "message", "operation", "sl")}
    of_file = used, plan.error
    jobs = []
    for flow in () if given["flows"] else plan.flows:
        with at_its_place("from", (("from",), flow.error)):
            source = host_named(subnet, flow.source)
        with at_its_place("to", (("to",), flow.error)):
            destination = host_named(subnet, flow.destination)
        if "size" in flow.options:
            options = usual | {"message": None} | flow.options
        else:
            options = usual | flow.options
        with at_its_place("message", (flow.options, flow.error), of_file):
            options["message"] = message_size(options["size"], options["message"])
        jobs.append((source, destination, options))
    if given["flows"] or given["target"] or given["shift"] or not jobs:
        with at_its_place("target", of_file):
            pairs = _pairs(subnet, given)
        with at_its_place("message", of_file):
            usual["message"] = message_size(usual["size"], usual["message"])
        jobs += [(*pair, dict(usual)) for pair in pairs]
    for source, destination, options in jobs:
        if source is destination:
            raise click.UsageError(f"{port_name(source)} would send to itself, over no link")
        options["operation"] = Operation(options["operation"])
    return jobs


def _is_as_expected(traffic: FabricTraffic, plan: Plan) -> bool:
    """Whether the run went as the file expects, or else whether all transfers have arrived."""
    if not plan.expectations:
        return all(_has_arrived(transfer) for transfer in traffic.transfers)
    is_good = True
    for check in checked(traffic, plan.expectations):
        actual = metric_text(check.expectation.metric, check.actual)
        word = "pass" if check.passed else "FAIL"
        click.echo(f"{word}  {check.expectation.text}  (is {actual})", err=True)
        is_good &= check.passed
    if plan.expects_deadlock is not None:
        passed = plan.expects_deadlock == bool(traffic.deadlock)
        word = "pass" if passed else "FAIL"
        wanted, found = str(plan.expects_deadlock).lower(), str(bool(traffic.deadlock)).lower()
        click.echo(f"{word}  deadlock == {wanted}  (is {found})", err=True)
        is_good &= passed
    return is_good


def _check_manager(given: dict[str, Any]) -> None:
    """Raise `UsageError` for options that do not go together."""
    if given["manager"] == "none":
        if given["sm_host"]:
            raise click.UsageError("--sm-host needs --sm own")
        return
    if given["hoq_life"] != FOREVER:
        raise click.UsageError("--hoq-life does not go with --sm own: the manager writes HOQLife")


def _manage(traffic: FabricTraffic, given: dict[str, Any]) -> None:
    """Let a subnet manager bring the fabric up."""
    subnet = traffic.subnet
    hosts = subnet.host_ports()
    port = host_named(subnet, given["sm_host"]) if given["sm_host"] else hosts[0]
    lanes = int(given["lanes"])
    settings = Settings(engine=Engine(given["routing"]), lanes=lanes if lanes > 1 else 0)
    manager = traffic.manage(port, settings, given["limit"])
    for problem in manager.view.problems:
        print_warning(problem)
    now = traffic.simulator.now
    if not manager.is_up:
        raise click.ClickException(
            f"the subnet manager has not brought the fabric up in {now / MS:g} ms; "
            "--time gives more"
        )
    assert traffic.management is not None
    mads = traffic.management.delivered
    print_note(
        f"{port_name(port)} has brought the fabric up in {now / MS:g} ms, with {mads:,} MADs"
    )


def _disturb(traffic: FabricTraffic, given: dict[str, Any], plan: Plan) -> None:
    """Plan what damages packets on links, and what takes links down."""
    fabric = traffic.fabric
    if given["errors"]:
        for link in fabric.links():
            fabric.damage(link.port, given["errors"])
    now = traffic.simulator.now
    for name, at, duration in given["interrupts"]:
        port = _port(traffic.subnet, name)
        fabric.plan_interrupt(port, now + at, duration)
    for fault in plan.faults:
        port = _port(traffic.subnet, fault.link)
        if fault.errors:
            for end in (port, port.peer):
                assert end is not None
                fabric.damage(end, fault.errors)
        elif fault.duration is None:
            fabric.plan_failure(port, now + fault.at)
        else:
            fabric.plan_interrupt(port, now + fault.at, fault.duration)


def _pairs(subnet: Subnet, given: dict[str, Any]) -> list[tuple[Port, Port]]:
    """Source and destination of each transfer."""
    hosts = subnet.host_ports()
    pairs = []
    for flow in given["flows"]:
        names = flow.split(":")
        if len(names) != 2:
            raise click.UsageError(f"--flow {flow}: expected FROM:TO")
        pairs.append((host_named(subnet, names[0]), host_named(subnet, names[1])))
    if given["target"]:
        target = host_named(subnet, given["target"])
        pairs += [(host, target) for host in hosts if host is not target]
    shift = given["shift"] or (0 if pairs else 1)
    if shift:
        count = len(hosts)
        pairs += [(host, hosts[(number + shift) % count]) for number, host in enumerate(hosts)]
    if not pairs:
        raise click.UsageError("no transfer: the topology has no hosts with links")
    return pairs


def host_named(subnet: Subnet, name: str) -> Port:
    """The port of a host: that which is named, or its first with a link."""
    named = port_named(name)
    node = subnet.node(name if named is None else named[0])
    if named is not None and not node.is_switch:
        return _port(subnet, name)
    for port in node.external_ports():
        if port.peer is not None and not node.is_switch:
            return port
    raise EncodeError("host", name, "an adapter with a link")


def _port(subnet: Subnet, name: str) -> Port:
    named = port_named(name)
    if named is None:
        raise click.UsageError(f"{name}: expected NODE[PORT]")
    port = subnet.port(*named)
    if port.peer is None:
        raise EncodeError("port", name, "one with a link")
    return port


def record(traffic: FabricTraffic, writer: CaptureWriter, ports: Sequence[Port]) -> None:
    """Write what these ports send and receive, or else what each adapter sends."""
    chosen = ports or traffic.subnet.host_ports()
    for port in chosen:
        name = f"{port.node.name}[{port.number}]"
        number = writer.interface(name, LinkType.ERF, name)

        def record(frame: Frame, now: Time, number: int = number) -> None:
            time_ns = now // NS
            writer.write(erf_record(frame, time_ns), time_ns, interface=number)

        tap(traffic.fabric, port, record, arriving=bool(ports))


def _row(transfer: Transfer) -> dict[str, Any]:
    end = transfer.end
    if _has_arrived(transfer):
        status = "arrived"
    elif end is None:
        status = "not ended"
    else:
        status = (transfer.status or WCStatus.SUCCESS).name.lower()
    return {
        "node": port_name(transfer.source),
        "to": port_name(transfer.destination),
        "status": status,
        "bytes": transfer.size,
        "time_us": None if end is None else round((end - transfer.begin) / 1e6, 3),
        "gbps": None if not end else round(8000 * transfer.size / (end - transfer.begin), 2),
        "retransmitted": transfer.qp.counters.retransmitted,
    }


def _unfinished(traffic: FabricTraffic, limit: Time) -> str:
    """Why transfers have not ended, as a sentence; empty if all have."""
    count = sum(transfer.end is None for transfer in traffic.transfers)
    if not count:
        return ""
    transfers = "1 transfer has" if count == 1 else f"{count:,} transfers have"
    if not traffic.has_stopped:
        return f"{transfers} not ended in {limit / MS:g} ms; --time gives more"
    ports = list(map(port_name, traffic.waiting_ports()))
    shown = ", ".join(ports[:3]) + (f" and {len(ports) - 3:,} more" if len(ports) > 3 else "")
    where = f": packets wait at {shown}" if ports else ""
    return f"{transfers} not ended, and nothing moves any more{where}"


def _has_arrived(transfer: Transfer) -> bool:
    return transfer.status is WCStatus.SUCCESS and transfer.arrived


def _counters(subnet: Subnet) -> list[dict[str, Any]]:
    rows = []
    for node in subnet.nodes.values():
        for port in node.external_ports():
            if port.peer is not None:
                counters = port.counters
                rows.append(
                    {
                        "node": node.name,
                        "port": port.number,
                        "xmit_data": counters.port_xmit_data,
                        "xmit_pkts": counters.port_xmit_pkts,
                        "rcv_data": counters.port_rcv_data,
                        "rcv_pkts": counters.port_rcv_pkts,
                        "xmit_wait": counters.port_xmit_wait,
                        "xmit_discards": counters.port_xmit_discards,
                        "symbol_errors": counters.symbol_error_counter,
                        "link_recoveries": counters.link_error_recovery_counter,
                    }
                )
    return rows


def port_name(port: Port) -> str:
    """NODE[PORT]."""
    return f"{port.node.name}[{port.number}]"
