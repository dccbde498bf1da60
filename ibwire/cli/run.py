"""`ibwire run`: runs a scenario in virtual time and checks its expectations."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from statistics import median_low

import click
from click.shell_completion import CompletionItem

from ibwire.base.errors import CaptureError, EncodeError, IbwireError, OutputError, ScriptError
from ibwire.base.node import Frame
from ibwire.base.output import STANDARD_OUTPUT, Output, make_directory
from ibwire.base.toml import listed
from ibwire.base.toml_settings import Setting, parse_setting
from ibwire.base.trace import Observer, Trace
from ibwire.base.units import NS, Time
from ibwire.capture import CaptureWriter
from ibwire.capture.erf import erf_record
from ibwire.capture.writer import format_of
from ibwire.cli.messages import print_error, print_note
from ibwire.cli.paths import InputPath, OutputPath
from ibwire.cli.terminal import hanging
from ibwire.cli.values import Number, completions
from ibwire.report.amounts import count_text, metric_text, rate_text, time_text
from ibwire.report.switches import switch_lines, tcp_lines
from ibwire.report.text_table import columns_in_words
from ibwire.scenario import METRICS, NETWORK, Outcome, QPOutcome, Scenario, load, run, shipped
from ibwire.scenario.effort import announcement
from ibwire.scenario.expect import SPREAD, plain_value, unit_name
from ibwire.scenario.nodes import LINKS, ports_of
from ibwire.scenario.recording import Recording
from ibwire.scenario.run_tables import write_run
from ibwire_layers.outer import LinkType

WRONG_USAGE = 2

MOST_COLUMNS = 4
"""Most queue pairs with their own column; more are summed."""


class ScenarioPath(InputPath):
    """A scenario's file, or the name of a shipped scenario."""

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Names of shipped scenarios, then files."""
        found = completions(shipped(), incomplete)
        return found or super().shell_complete(ctx, param, incomplete)


@click.command("run")
@click.argument("scenario", required=False, type=ScenarioPath())
@click.option("--list", "listed", is_flag=True, help="List the shipped scenarios.")
@click.option(
    "--seed", type=Number(min=0), help="Seed of random numbers, in place of the scenario's."
)
@click.option(
    "--set",
    "settings",
    metavar="KEY=VALUE",
    multiple=True,
    help="Value in place of the scenario's, such as wire.rate=25G.",
)
@click.option(
    "-o",
    "--output",
    "outputs",
    metavar="FILE|DIR",
    multiple=True,
    type=OutputPath(allow_dash=True),
    help="Write the frames to .pcap or .pcapng, or tables of the run to a directory.",
)
@click.option(
    "--tap",
    "taps",
    metavar="NODE",
    multiple=True,
    help="Host, switch or port of one (`s0:h1`, `h1.0`) at which -o captures; default: the first "
    "host or port, `all`: every host.",
)
@click.option(
    "--trace",
    metavar="FILE",
    type=OutputPath(allow_dash=True),
    help="Write one JSON object per frame sent or received.",
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print one object per queue pair, and one for the run."
)
def command(
    scenario: str | None,
    listed: bool,
    seed: int | None,
    settings: tuple[str, ...],
    outputs: tuple[str, ...],
    taps: tuple[str, ...],
    trace: str | None,
    as_json: bool,
) -> None:
    """Run SCENARIO, a TOML file or the name of a shipped scenario.

    Exit status 1: an expectation was not met; 2: an error in the scenario.

    \b
    ibwire run one-lost-packet
    ibwire run my.toml --seed 7 -o out.pcapng --tap a --tap b
    """
    if listed:
        for name, each in shipped().items():
            click.echo(hanging(f"{name:24}{each.description.partition(chr(10))[0]}", 24))
        return
    if scenario is None:
        raise click.UsageError("which scenario? `ibwire run --list` names those that are shipped")
    try:
        given = [parse_setting(each) for each in settings]
        if seed is not None:  # lists of flows are drawn from it when they are read
            given.append(Setting("seed", str(seed)))
        loaded = load(scenario, given)
    except EncodeError as error:
        reason = str(error).removeprefix("setting: ")
        raise click.BadParameter(reason, param_hint="--set") from None
    except ScriptError as error:
        print_error(error)
        sys.exit(WRONG_USAGE)
    output, directory = _capture_and_directory(outputs)
    note = announcement(loaded)
    if note is not None:
        print_note(note)
    try:
        with ExitStack() as stack:
            observers = list(_observers(stack, loaded, output, taps, trace))
            observed = {each.partition(":")[0] for each in taps if each != "all"}
            recording = Recording() if directory is not None else None
            outcome = run(loaded, seed, observers, observed, recording)
        if directory is not None and recording is not None:
            write_run(directory, loaded, outcome, recording)
    except OutputError:
        raise
    except IbwireError as error:
        raise click.ClickException(str(error)) from None
    if as_json:
        _print_json(outcome)
    else:
        _print_report(loaded, outcome)
    if not outcome.passed:
        sys.exit(1)


def _capture_and_directory(outputs: Sequence[str]) -> tuple[str | None, str | None]:
    """The capture and the directory among the outputs; a name without an ending is a directory."""
    found: dict[bool, str] = {}
    for each in outputs:
        is_directory = (
            each != STANDARD_OUTPUT
            and not os.path.splitext(each.rstrip(os.sep))[1]
            and not (os.path.exists(each) and not os.path.isdir(each))
        )
        if is_directory in found:
            what = "directories" if is_directory else "captures"
            raise click.UsageError(f"-o: {found[is_directory]} and {each} are two {what}")
        found[is_directory] = each
    if True in found:
        make_directory(found[True])
    return found.get(False), found.get(True)


def _observers(
    stack: ExitStack, scenario: Scenario, output: str | None, taps: Sequence[str], trace: str | None
) -> Iterator[Observer]:
    link_type = LINKS[scenario.link]
    if trace is not None:
        yield Trace(stack.enter_context(Output(trace)).text, link_type)
    if output is not None:
        yield FrameCapture(stack, output, _tapped(scenario, taps), link_type)
    elif taps:
        raise click.UsageError("--tap says where the frames of -o are taken: there is no -o")


def _tapped(scenario: Scenario, taps: Sequence[str]) -> list[str]:
    """The hosts, or their ports, and ports of switches at which frames are captured."""
    hosts = [node.name for node in scenario.nodes if not node.is_bridge]
    several = ports_of(scenario.nodes)
    ports = _ports_of_switches(scenario)
    found: dict[str, None] = {}
    for name in taps:
        if name == "all":
            found |= dict.fromkeys(hosts)
        elif name in hosts or any(name in labels for labels in ports.values()):
            found[name] = None
        elif name in several or name in ports:
            found |= dict.fromkeys(several.get(name) or ports[name])
        else:
            names = listed([*several, *hosts, *ports])
            raise click.BadParameter(f"{name!r} is not one of {names}", param_hint="--tap")
    return list(found) or hosts[:1]


def _ports_of_switches(scenario: Scenario) -> dict[str, list[str]]:
    """The names of the ports of each switch: `s0:h1`."""
    if scenario.fabric is None:
        return {}
    topology = scenario.fabric.topology
    return {
        name: [f"{name}:{peer}" for _, peer in topology.ports(name)] for name in topology.switches
    }


class FrameCapture:
    """Writes the frames that pass the ports of some nodes, each node an interface of the file.

    A frame is written when a node sends it, also if the wire then loses it, and when
    a node receives it, as it arrived. Native InfiniBand frames are written
    as ERF records.
    """

    def __init__(
        self,
        stack: ExitStack,
        target: str | Output,
        nodes: Sequence[str],
        link_type: int,
        file_format: str | None = None,
    ) -> None:
        try:
            file_format = file_format or format_of(target)
        except CaptureError as error:
            raise click.UsageError(str(error)) from None
        if file_format == "pcap" and len(nodes) > 1:
            raise click.UsageError("a .pcap has no interfaces: write several taps to a .pcapng")
        self._as_erf = link_type == LinkType.INFINIBAND
        self._writer = stack.enter_context(CaptureWriter(target, file_format=file_format))
        link_type = LinkType.ERF if self._as_erf else link_type
        self._interfaces = {
            name: self._writer.interface(name, link_type, name=name) for name in nodes
        }

    def __call__(self, node: str, event: str, frame: Frame, now: Time) -> None:
        """Take a frame that a node sends or receives."""
        interface = self._interfaces.get(node)
        if interface is not None:
            time_ns = now // NS
            data = erf_record(frame, time_ns) if self._as_erf else frame
            self._writer.write(data, time_ns, interface=interface)


def _print_json(outcome: Outcome) -> None:
    for qp in outcome.qps:
        head = {
            "kind": "qp",
            "connection": qp.connection,
            "index": qp.index,
            "node": qp.node,
            "qpn": qp.qpn,
            "peer": qp.peer,
            "peer_qpn": qp.peer_qpn,
        }
        click.echo(json.dumps(head | _units(qp.metrics) | {"counters": dict(qp.counters)}))
    for port in outcome.ports:
        print_port = {"kind": "port", **asdict(port), "dropped": dict(port.dropped)}
        click.echo(json.dumps(print_port))
    head = {
        "kind": "run",
        "scenario": outcome.scenario,
        "seed": outcome.seed,
        "ended": outcome.ended,
        "virtual_time_ps": outcome.virtual_time,
    }
    rest = {
        "hits": [
            {"where": where, "rule": rule, "frames": hits} for where, rule, hits in outcome.hits
        ],
        "expectations": [
            {
                "connection": check.connection,
                "expected": check.expectation.text,
                "actual": check.actual,
                "passed": check.passed,
            }
            for check in outcome.checks
        ],
        "standstill": outcome.standstill,
        "passed": outcome.passed,
    }
    click.echo(json.dumps(head | _units(outcome.metrics) | rest))


def _units(metrics: dict[str, int]) -> dict[str, int | None]:
    """Metrics by names with units."""
    return {unit_name(name): plain_value(name, value) for name, value in metrics.items()}


def _print_report(scenario: Scenario, outcome: Outcome) -> None:
    first = scenario.description.partition("\n")[0]
    if first:
        click.echo(first)
    senders = [qp for qp in outcome.qps if qp.tally is not None]
    if senders and len(senders) <= MOST_COLUMNS:
        several = len(outcome.by_connection) > 1
        columns = [
            (f"{qp.connection}\n" * several + f"{qp.node} {qp.qpn:#x} to {qp.peer}", metrics)
            for qp, metrics in zip(senders, _shown(senders), strict=True)
        ]
        _print_table(columns)
        if len(senders) > 1:
            _print_line("together", outcome)
    elif senders:
        _print_summary(senders, outcome)
    if scenario.tcp:
        for line in tcp_lines(outcome):
            click.echo(line)
    if scenario.fabric is not None:
        for line in switch_lines(outcome, _width()):
            click.echo(line)
    for where, rule, hits in outcome.hits:
        click.echo(f"{where}: {rule} applied to {hits} frame{'' if hits == 1 else 's'}")
    for name, what in _ON_THE_WAY.items():
        if outcome.metrics[name]:
            click.echo(f"{what}: {count_text(outcome.metrics[name])}")
    if outcome.ended == "deadlock":
        click.echo(f"stopped at {time_text(outcome.virtual_time)}: a deadlock never ends")
    elif outcome.ended != "idle":
        click.echo(f"stopped by {_LIMITS[outcome.ended]}, at {time_text(outcome.virtual_time)}")
    for check in outcome.checks:
        word = "pass" if check.passed else "FAIL"
        scope = f"{check.connection}: " if check.connection else ""
        actual = metric_text(check.expectation.metric, check.actual)
        click.echo(f"{word}  {scope}{check.expectation.text}  (is {actual})")
    click.echo(f"seed {outcome.seed}")


def _print_line(title: str, outcome: Outcome) -> None:
    metrics = outcome.metrics
    click.echo(
        f"{title}: {count_text(metrics['verified'])} messages, "
        f"{count_text(metrics['verified_bytes'])} bytes verified in {time_text(metrics['time'])}, "
        f"{rate_text(metrics['goodput'])}"
    )


def _print_table(columns: Sequence[tuple[str, dict[str, int]]]) -> None:
    """Metrics as rows; those that are zero everywhere are left out, except the usual ones.

    Columns that a terminal has no room for follow below, with the names of the rows again.
    """
    rows = []
    for name in METRICS:
        if name in SPREAD:
            continue
        values = [metrics.get(name, 0) for _, metrics in columns]
        if name != "status.SUCCESS" and (name in _USUAL or any(values)):
            rows.append((_titled(name), [metric_text(name, value) for value in values]))
    for part in columns_in_words([title for title, _ in columns], rows, _width()):
        click.echo(part)


def _width() -> int | None:
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def _print_summary(senders: Sequence[QPOutcome], outcome: Outcome) -> None:
    every = _shown(senders)
    whole = {name: value for name, value in outcome.metrics.items() if name not in NETWORK}
    spread = [(f"all {len(senders)}", whole)]
    picks: list[tuple[str, Callable[[Sequence[int]], int]]] = [
        ("least", min),
        ("median", median_low),
        ("most", max),
    ]
    for title, pick in picks:
        spread.append((title, {name: pick([each[name] for each in every]) for name in every[0]}))
    _print_table(spread)


def _shown(senders: Sequence[QPOutcome]) -> list[dict[str, int]]:
    """Metrics of each sender; marks of its packets are counted where they arrive, at its peer.

    Those of what the peer sends, such as responses to a READ, are added if it has no column.
    """
    ends = {(qp.connection, qp.index, qp.qpn) for qp in senders}
    shown = []
    for qp in senders:
        marks = qp.peer_counters["ce_marked"]
        if (qp.connection, qp.index, qp.peer_qpn) not in ends:
            marks += qp.counters["ce_marked"]
        shown.append(qp.metrics | {"ce_marked": marks})
    return shown


def _titled(name: str) -> str:
    if name.startswith("status."):
        return name.removeprefix("status.")
    if name.startswith("naks."):
        name = f"NAKs: {name.removeprefix('naks.')}"
    return name.replace("_", " ").replace("rnr", "RNR").replace("naks", "NAKs")


_ON_THE_WAY = {
    "queue_drops": "frames dropped by bridges whose queue was full",
    "bad_icrc": "frames dropped by devices for their ICRC",
}
_LIMITS = {"until": "the limit of time", "frames": "the limit of frames"}
_USUAL = frozenset(
    {
        "messages",
        "verified",
        "verified_bytes",
        "packets",
        "retransmitted",
        "naks.sequence",
        "naks.rnr",
        "naks.fatal",
        "rnr_waits",
        "timeouts",
        "credit_stalls",
        "time",
        "goodput",
    }
)
