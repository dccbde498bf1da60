"""`ibwire inject`: RDMA test traffic to an interface or a capture."""

from __future__ import annotations

import functools
import ipaddress
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from ibwire.base.errors import (
    CaptureError,
    EncodeError,
    ExpressionError,
    MissingValueError,
    VerbsError,
)
from ibwire.base.node import Pipe, Stage
from ibwire.base.quantities import parse_duration
from ibwire.base.toml import Document, read_content
from ibwire.base.units import S
from ibwire.cli.closed_loop import ClosedLoop, closed_loop_options
from ibwire.cli.groups import Group
from ibwire.cli.injecting import (
    Destination,
    InjectionJob,
    deliver,
    destination_options,
    reported_errors,
    with_faults,
)
from ibwire.cli.paths import InputPath
from ibwire.dissect.filters import parse_filter
from ibwire.impair import Chance, MarkECN, PlanError, build_pipe
from ibwire.link.interface import interface
from ibwire.link.neighbours import mac_towards
from ibwire.rc.device import gid_of
from ibwire.rc.path import is_v4
from ibwire.traffic.capture_source import read_replay
from ibwire.traffic.injection import Injection
from ibwire.traffic.injection_file import make_injection, make_stream, parse_value, read_injection
from ibwire.traffic.pace import make_pace
from ibwire.traffic.pause import Storm, pause_frames, read_storms
from ibwire.traffic.rebind import Rebinding
from ibwire.traffic.stream import Icrc, Link, Stream, Verb, format_qpns

_DEFAULT_MAC = bytes.fromhex("020000000001")
_MOST_SCALE = 1e6

Decorated = TypeVar("Decorated", bound=Callable[..., object])

_STREAM: tuple[tuple[str, str, str], ...] = (
    ("verb", "VERB", f"{', '.join(Verb)}. [write]"),
    ("service", "SERVICE", "rc, uc or ud. [rc]"),
    ("dst", "IP", "Destination IP address; required."),
    ("src", "IP", "Source IP address. [with --dev an address of the interface]"),
    (
        "qpn",
        "QPNS",
        "Destination QP numbers: 0x11, 0x11..0x20, or with weights 0x11*3,0x12; required.",
    ),
    ("size", "BYTES", "Size of a message. [1024]"),
    ("mtu", "BYTES", "Path MTU. [1024]"),
    ("psn", "PSN", "PSN of the first packet. [0]"),
    ("ack_every", "N", "Set AckReq in every Nth packet, 0 for none. [the last of a message]"),
    ("rkey", "KEY", "R_Key. [0]"),
    ("va", "ADDRESS", "Virtual address. [0]"),
    ("va_step", "BYTES", "Distance between the addresses of two messages. [0]"),
    ("va_window", "BYTES", "Memory from --va on that all messages lie in."),
    ("imm", "NUMBER", "Immediate data. [0]"),
    ("swap", "NUMBER", "Value that an atomic swaps in or adds. [0]"),
    ("compare", "NUMBER", "Value that an atomic compares with. [0]"),
    ("qkey", "KEY", "Q_Key of datagrams. [0x11111111]"),
    ("syndrome", "BYTE", "Syndrome of acknowledgements: 0x60 is a NAK. [0x1f]"),
    ("msn", "MSN", "MSN of the first acknowledgement. [1]"),
    ("payload", "BYTES", "Hexadecimal digits, counter or random. [00 01 02 ... ff]"),
    ("dscp", "DSCP", "DSCP, 0 to 63. [0]"),
    ("ecn", "ECN", "ECN bits: 0 not capable, 1 or 2 capable, 3 CE. [2]"),
    ("ttl", "TTL", "TTL or hop limit. [64]"),
    ("ce", "CHANCE", "Mark packets CE with this probability: 0.01 or 1%."),
    ("ce_every", "N", "Mark the last packets of every N to a queue pair CE."),
    ("ce_run", "N", "With --ce-every: how many to mark. [1]"),
    ("src_port", "PORT", "UDP source port, or flow, qpn, random. [flow]"),
    ("src_qpn", "QPN", "First source QP number; further ones count up. [as --qpn]"),
    ("vlan", "VID", "VLAN ID of an 802.1Q tag."),
    ("pcp", "PCP", "Priority in the 802.1Q tag. [0]"),
    ("src_mac", "MAC", "Source MAC address. [of --dev, otherwise derived from --src]"),
    (
        "dst_mac",
        "MAC",
        "Destination MAC address. [with --dev resolved, otherwise derived from --dst]",
    ),
    ("link", "LINK", f"{' or '.join(Link)}. [rocev2]"),
    ("pkey", "PKEY", "P_Key. [0xffff]"),
    ("fields", "NAME=N,...", "Override header fields with these values."),
    ("icrc", "HOW", "ICRC: right; stale: of the packet before --fields; wrong: inverted. [right]"),
    (
        "fields_every",
        "N",
        "Apply --fields and --icrc to every Nth packet to a queue pair only. [1]",
    ),
)
"""Options of a stream: key, metavar, help."""

_ORDER: tuple[tuple[str, str, str], ...] = (
    ("count", "N", "Stop after N packets."),
    ("time", "TIME", "Stop after this time, such as 10s."),
    ("rate", "RATE", "Rate, such as 200kpps, 5Gbps or max. [max]"),
    ("burst", "N", "Send N packets at once, on average at --rate."),
    ("on", "TIME", "Send at --rate for this time, then pause for --off, repeatedly."),
    ("off", "TIME", "Pause of --on."),
    ("ramp_to", "RATE", "Change the rate linearly from --rate to this one."),
    ("ramp_time", "TIME", "Duration of --ramp-to."),
    ("turn", "BY", "Queue pairs take turns by message or by packet. [message]"),
    ("seed", "N", "Seed of all random values. [0]"),
)

_PLAN = click.option(
    "--plan",
    metavar="FILE",
    type=InputPath(),
    help="Faults on the destination: [[faults]] as in scenarios.",
)


def _options(table: tuple[tuple[str, str, str], ...]) -> Callable[[Decorated], Decorated]:
    """Add options whose values are parsed as those of a stream file."""

    def decorate(function: Decorated) -> Decorated:
        for key, metavar, text in reversed(table):
            name = f"--{key.replace('_', '-')}"
            function = click.option(name, key, metavar=metavar, help=text)(function)
        return function

    return decorate


@click.group("inject", cls=Group, invoke_without_command=True)
@click.option(
    "--stream",
    "file",
    metavar="FILE",
    type=InputPath(),
    help="Read streams from TOML: see docs/inject.md.",
)
@_options(_STREAM)
@click.option("--solicited", is_flag=True, help="Set the solicited event bit.")
@click.option("--count-ip-id", is_flag=True, help="Count IPv4 identifications up. [0]")
@_options(_ORDER)
@_PLAN
@closed_loop_options
@destination_options
@click.pass_context
def command(
    context: click.Context,
    /,
    destination: Destination,
    loop: Callable[[Injection], ClosedLoop] | None,
    file: str | None,
    solicited: bool,
    count_ip_id: bool,
    plan: str | None,
    **options: str | None,
) -> None:
    """Send RDMA test traffic, with correct PSNs and ICRCs or with chosen errors.

    --count or --time is required. Exit status: 0 done, 1 sending failed or the rate was not
    reached, 2 wrong usage, 128 and the number of a signal.

    \b
    ibwire inject --dev veth-a --dst 10.0.0.2 --qpn 0x11 --size 64KiB --count 200000
    ibwire inject --dev veth-a --stream streams.toml --time 10s --rate 100kpps
    ibwire inject -o out.pcap --src 10.0.0.1 --dst 10.0.0.2 --qpn 0x11 --count 1000
    """
    if context.invoked_subcommand is not None:
        given = [name for name, each in options.items() if each is not None]
        if (
            given
            or file
            or plan
            or loop
            or destination != Destination(None, None, False, False, "mmsg", False)
        ):
            raise click.UsageError(f"write options after {context.invoked_subcommand}")
        return
    destination.check()
    if loop is not None and destination.output:
        raise click.UsageError("--listen, --window, --on-nak and --on-cnp require --dev")
    if loop is not None and plan is not None:
        reason = "--plan cannot be combined with --listen, --window, --on-nak or --on-cnp"
        raise click.UsageError(f"{reason}: use ibwire tap for the faults")
    flags = (("solicited", solicited), ("count_ip_id", count_ip_id))
    with reported_errors():
        values: dict[str, Any] = {
            key: parse_value(key, text) for key, text in options.items() if text is not None
        }
        values |= {key: True for key, given in flags if given}
        injection = _injection(file, values, destination)
        job = InjectionJob(
            source=injection,
            text=_described(injection),
            count=injection.count,
            time=injection.time,
            pace=injection.pace,
            loop=None if loop is None else loop(injection),
        )
        faults = _faults(plan, None, injection.seed)
        if faults is not None:
            job = with_faults(job, faults)
    deliver(job, destination)


@command.command("pfc")
@click.option("--prio", metavar="N,...", help="Pause these priorities, 0 to 7.")
@click.option("--global", "whole", is_flag=True, help="Pause the whole port instead (802.3x).")
@click.option(
    "--quanta",
    type=click.IntRange(1, 65535),
    default=65535,
    help="Length of a pause, in times of 512 bits. [65535]",
)
@click.option("--refresh", metavar="TIME", help="Repeat the pause after this time. [100us]")
@click.option("--on", metavar="TIME", help="Pause for this time, then not for --off, repeatedly.")
@click.option("--off", metavar="TIME", help="Time without a pause.")
@click.option(
    "--storms",
    metavar="FILE",
    type=InputPath(),
    help="Read a schedule from TOML: see docs/inject.md.",
)
@click.option("--time", metavar="TIME", help="Total duration; required.")
@click.option(
    "--src-mac", metavar="MAC", help="Source MAC address. [of --dev, otherwise 02:00:00:00:00:01]"
)
@destination_options
def pfc(
    destination: Destination,
    prio: str | None,
    whole: bool,
    quanta: int,
    storms: str | None,
    time: str | None,
    src_mac: str | None,
    **times: str | None,
) -> None:
    """Send PFC or pause frames, and always a resume at the end.

    A pause of 65535 quanta lasts 3.36 ms at 10 Gb/s, 335 us at 100 Gb/s. A veth ignores
    pause frames, and an adapter may not pass them on: read the peer's counters.

    \b
    ibwire inject pfc --dev eth1 --prio 3,4 --time 2s
    ibwire inject pfc --dev eth1 --global --on 10ms --off 90ms --time 60s
    """
    destination.check()
    with reported_errors():
        if storms is not None:
            found, length = read_storms(read_content(Path(storms)), storms)
        else:
            if whole is (prio is not None):
                raise click.UsageError("one of --prio N,... and --global is required")
            priorities = tuple(parse_value("pcp", each) for each in prio.split(",")) if prio else ()
            spans = {key: parse_duration(text) for key, text in times.items() if text is not None}
            found, length = [Storm(priorities=priorities, quanta=quanta, **spans)], None
        if time is not None:
            length = parse_value("time", time)
        if length is None:
            raise MissingValueError("time")
        mac = _DEFAULT_MAC if src_mac is None else parse_value("src_mac", src_mac)
        if destination.dev is not None and src_mac is None:
            mac = interface(destination.dev).mac
        source = pause_frames(found, length, mac)
        text = f"{source.count} frames for {length / S:g} s, the last of them a resume"
        job = InjectionJob(source=source, text=[text], count=source.count, times=source.times)
    deliver(job, destination)


@command.command("replay")
@click.argument("capture", type=InputPath())
@click.option(
    "-Y", "--where", "where", metavar="EXPR", help="Only packets for which this filter holds."
)
@click.option(
    "--address", "addresses", metavar="OLD=NEW", multiple=True, help="Replace an IP address or GID."
)
@click.option("--mac", "macs", metavar="OLD=NEW", multiple=True, help="Replace a MAC address.")
@click.option("--keep-macs", is_flag=True, help="With --dev: keep the recorded MAC addresses.")
@click.option("--qpn", "qpns", metavar="OLD=NEW", multiple=True, help="Replace a QP number.")
@click.option("--rkey", "rkeys", metavar="OLD=NEW", multiple=True, help="Replace an R_Key.")
@click.option(
    "--psn-start",
    "psns",
    metavar="[QPN=]PSN",
    multiple=True,
    help="PSN of the first request to every recorded queue pair, or to QPN.",
)
@click.option("--repair", is_flag=True, help="Recompute ICRCs and lengths of all packets.")
@click.option("--rate", metavar="RATE", help="Rate, such as 200kpps, 5Gbps or max. [as recorded]")
@click.option(
    "--scale", type=float, default=1.0, help="Multiply the recorded times: 2 is half as fast."
)
@click.option("--ce", metavar="CHANCE", help="Mark packets CE with this probability.")
@_PLAN
@click.option("--seed", type=click.IntRange(0), default=0, help="Seed of all random values.")
@destination_options
def replay(
    destination: Destination,
    capture: str,
    where: str | None,
    keep_macs: bool,
    repair: bool,
    rate: str | None,
    scale: float,
    ce: str | None,
    plan: str | None,
    seed: int,
    **maps: tuple[str, ...],
) -> None:
    """Send the RDMA packets of CAPTURE, with replaced addresses, QP numbers, PSNs and keys.

    Lengths, checksums and the ICRC of changed packets are recomputed. Unchanged packets are
    sent byte for byte as they were captured.

    \b
    ibwire inject replay in.pcap --dev veth-a --where 'ip.src == 10.1.1.7' \\
        --address 10.1.1.7=10.0.0.1 --address 10.1.1.8=10.0.0.2 \\
        --qpn 0x11=0x2a --psn-start 100 --rkey 0x1234=0x99
    """
    destination.check()
    with reported_errors():
        if not 0 <= scale <= _MOST_SCALE:
            raise EncodeError("scale", scale, f"a number from 0 to {_MOST_SCALE:g}")
        rebinding = _rebinding(destination, keep_macs, repair, maps)
        faults = _faults(plan, ce, seed)
        try:
            condition = None if where is None else parse_filter(where)
        except ExpressionError as error:
            raise click.BadParameter(str(error), param_hint="--where") from None
        found = read_replay(capture, rebinding, where=condition, faults=faults)
        source = found.source
        pace = None if rate is None else make_pace({"rate": parse_value("rate", rate)})
        times = [round(each * scale) for each in source.times] if rate is None else None
        text = [f"{found.taken} packets of {capture}"]
        if source.count != found.taken:
            text.append(f"{source.count} packets after the faults of the plan")
        for count, what in (
            (found.unselected, "not selected"),
            (found.cut, "cut short by the capture, left out"),
            (found.others, "no RDMA packets over Ethernet or IP, left out"),
        ):
            if count:
                text.append(f"{count} {what}")
        if not source.count:
            raise CaptureError(capture, None, "; ".join(text))
        job = InjectionJob(source=source, text=text, count=source.count, pace=pace, times=times)
    deliver(job, destination)


def _rebinding(
    destination: Destination, keep_macs: bool, repair: bool, maps: dict[str, tuple[str, ...]]
) -> Rebinding:
    gid, number, mac = _gid, functools.partial(parse_value, "va"), _mac
    starts = dict(each.rpartition("=")[::2] for each in maps["psns"])
    src_mac: bytes | None = None
    towards: Callable[[int], bytes] | None = None
    if destination.dev is not None and not keep_macs:
        src_mac = interface(destination.dev).mac
        if not destination.dry_run:
            towards = functools.cache(functools.partial(_towards, destination.dev))
    return Rebinding(
        addresses=_pairs("address", maps["addresses"], gid),
        macs=_pairs("mac", maps["macs"], mac),
        src_mac=src_mac,
        mac_towards=towards,
        qpns=_pairs("qpn", maps["qpns"], number),
        rkeys=_pairs("rkey", maps["rkeys"], number),
        psn_start=number(starts.pop("")) if "" in starts else None,
        psn_starts={number(qpn): number(start) for qpn, start in starts.items()},
        repair=repair,
    )


def _towards(dev: str, gid: int) -> bytes:
    address = ipaddress.IPv4Address(gid & 0xFFFFFFFF) if is_v4(gid) else ipaddress.IPv6Address(gid)
    return mac_towards(dev, str(address))


def _pairs(key: str, texts: tuple[str, ...], read: Callable[[str], Any]) -> dict[Any, Any]:
    found = {}
    for text in texts:
        old, equals, new = text.partition("=")
        if not equals:
            raise EncodeError(key, text, "OLD=NEW")
        found[read(old)] = read(new)
    return found


def _gid(text: str) -> int:
    try:
        return gid_of(text)
    except VerbsError:
        raise EncodeError("address", text, "an IP address") from None


def _mac(text: str) -> bytes:
    mac: bytes = parse_value("src_mac", text)
    if len(mac) != 6:
        raise EncodeError("mac", text, "a MAC address")
    return mac


def _faults(plan: str | None, ce: str | None, seed: int) -> Pipe | None:
    """What happens to packets on the destination: the rules of a file, then marks."""
    stages: list[Stage] = []
    if plan is not None:
        top = Document(read_content(Path(plan)), plan).top
        seed = top.take_int("seed", seed, 0, (1 << 63) - 1)
        rules = top.take("faults") or []
        try:
            stages.append(build_pipe(rules, seed=seed))
        except PlanError as error:
            raise top.error_at(error.key_path, error.reason, at_key=error.at_key) from None
        top.end()
    if ce is not None:
        stages.append(MarkECN(Chance(parse_value("ce", ce), seed=seed, name="ce")))
    return Pipe(*stages) if stages else None


def _injection(file: str | None, values: dict[str, Any], destination: Destination) -> Injection:
    def complete(of_stream: dict[str, Any]) -> dict[str, Any]:
        return _completed(of_stream, destination)

    if file is not None:
        return read_injection(read_content(Path(file)), file, values, complete)
    of_order = {key: values.pop(key) for key, *_ in _ORDER if key in values}
    return make_injection((make_stream(complete(values)),), of_order)


def _completed(values: dict[str, Any], destination: Destination) -> dict[str, Any]:
    """The values of a stream, with the addresses of the interface."""
    if "dst" not in values:
        raise MissingValueError("dst")
    if destination.dev is None:
        return values
    found = interface(destination.dev)
    added: dict[str, Any] = {"src_mac": found.mac}
    if "src" not in values:
        is_v6 = ":" in values["dst"]
        own = [each for each in found.addresses if (":" in each) is is_v6]
        if not own:
            kind = "IPv6" if is_v6 else "IPv4"
            reason = f"is required: {destination.dev} has no {kind} address"
            raise MissingValueError("src", reason)
        added["src"] = own[0]
    # Resolving an address sends packets, and a dry run sends none.
    if "dst_mac" not in values and not destination.dry_run:
        added["dst_mac"] = mac_towards(destination.dev, values["dst"])
    return added | values


def _described(injection: Injection) -> list[str]:
    """A line for each stream, and one for limits and rate."""
    lines = [_of_stream(each) for each in injection.streams]
    if len(lines) > 1:
        total = sum(each.weight for each in injection.streams)
        lines = [
            f"{each.weight} of {total} messages: {line}"
            for each, line in zip(injection.streams, lines, strict=True)
        ]
    limits = []
    if injection.count is not None:
        limits.append(f"{injection.count} packets")
    if injection.time is not None:
        limits.append(f"{injection.time / S:g} s at most")
    speed = injection.pace.text if injection.pace else "as fast as possible"
    return [*lines, f"{', '.join(limits)}, {speed}"]


def _of_stream(stream: Stream) -> str:
    count = stream.packets
    packets = "a packet" if count == 1 else f"{count} packets"
    text = f"{stream.service.name} {stream.verb}" if stream.verb is not Verb.CNP else "CNP"
    if stream.message_size or stream.verb in (Verb.SEND, Verb.WRITE):
        text += f" of {stream.message_size} bytes ({packets} each, path MTU {stream.mtu})"
    text += f", {stream.src} > {stream.dst}, QP {format_qpns(stream.qpns)}, PSN from {stream.psn}"
    if stream.ce or stream.ce_every:
        how = f"{stream.ce:g}" if stream.ce else f"{stream.ce_run} of {stream.ce_every}"
        text += f", CE in {how}"
    if stream.fields:
        text += ", " + ", ".join(f"{name} = {value:#x}" for name, value in stream.fields.items())
    if stream.icrc is not Icrc.RIGHT:
        text += f", ICRC {stream.icrc}"
    if stream.fields_every > 1 and (stream.fields or stream.icrc is not Icrc.RIGHT):
        text += f" in 1 of {stream.fields_every} packets"
    return text
