"""`ibwire inject`: RDMA test traffic to an interface or a capture."""

from __future__ import annotations

import functools
import ipaddress
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from ibwire.base.errors import CaptureError, EncodeError, ExpressionError, VerbsError
from ibwire.base.node import Pipe, Stage
from ibwire.base.quantities import parse_duration
from ibwire.base.toml import Document, read_content
from ibwire.base.units import S
from ibwire.cli.closed_loop import Loop, loop_options
from ibwire.cli.injecting import Order, Way, deliver, errors_told, way_options, with_faults
from ibwire.dissect import FIELDS
from ibwire.dissect.fields import type_of
from ibwire.dissect.where import parse
from ibwire.impair import Chance, MarkECN, PlanError, build_pipe
from ibwire.link.interface import interface
from ibwire.link.neighbours import mac_towards
from ibwire.rc.device import gid_of
from ibwire.rc.path import is_v4
from ibwire.traffic.capture_source import read_replay
from ibwire.traffic.injection import Injection
from ibwire.traffic.model import Icrc, Link, Stream, Verb, format_qpns
from ibwire.traffic.pace import make_pace
from ibwire.traffic.pause import Storm, pausing, read_storms
from ibwire.traffic.rebind import Rebinding
from ibwire.traffic.script import make_injection, make_stream, parse_value, read_injection

_DEFAULT_MAC = bytes.fromhex("020000000001")
_MOST_SCALE = 1e6

Decorated = TypeVar("Decorated", bound=Callable[..., object])

_STREAM: tuple[tuple[str, str, str], ...] = (
    ("verb", "VERB", f"{', '.join(Verb)}. [write]"),
    ("service", "SERVICE", "rc, uc or ud. [rc]"),
    ("dst", "IP", "Where to."),
    ("src", "IP", "From where; with --dev its own address."),
    ("qpn", "QPNS", "Destination queue pairs: 0x11, 0x11..0x20, or with weights 0x11*3,0x12."),
    ("size", "BYTES", "Of a message. [1024]"),
    ("mtu", "BYTES", "Path MTU. [1024]"),
    ("psn", "PSN", "Of the first packet. [0]"),
    ("ack_every", "N", "AckReq in every Nth packet, 0 for none. [last of a message]"),
    ("rkey", "KEY", "R_Key. [0]"),
    ("va", "ADDRESS", "Virtual address. [0]"),
    ("va_step", "BYTES", "Each message lies so much behind the last. [0]"),
    ("va_window", "BYTES", "Room for the messages, from --va on."),
    ("imm", "NUMBER", "Immediate data. [0]"),
    ("swap", "NUMBER", "What an atomic swaps in, or adds. [0]"),
    ("compare", "NUMBER", "What it compares with. [0]"),
    ("qkey", "KEY", "Q_Key of datagrams. [0x11111111]"),
    ("syndrome", "BYTE", "Of acknowledgements: 0x60 is a NAK. [0x1f]"),
    ("msn", "MSN", "Of the first acknowledgement. [1]"),
    ("payload", "BYTES", "Hexadecimal digits, counter or random. [00 01 02 ... ff]"),
    ("dscp", "DSCP", "0 to 63. [0]"),
    ("ecn", "ECN", "0 not capable, 1 or 2 capable, 3 CE. [2]"),
    ("ttl", "TTL", "TTL or hop limit. [64]"),
    ("ce", "CHANCE", "Mark packets CE with this probability: 0.01 or 1%."),
    ("ce_every", "N", "Of every N packets to a queue pair ..."),
    ("ce_run", "N", "... mark the last so many. [1]"),
    ("src_port", "PORT", "UDP source port, or flow, qpn, random. [flow]"),
    ("src_qpn", "QPN", "The sender's queue pair, further ones count up. [as --qpn]"),
    ("vlan", "VID", "802.1Q tag."),
    ("pcp", "PCP", "Its priority. [0]"),
    ("src_mac", "MAC", "With --dev its own, otherwise made of --src."),
    ("dst_mac", "MAC", "With --dev that of the way to --dst, otherwise made of it."),
    ("link", "LINK", f"{' or '.join(Link)}. [rocev2]"),
    ("pkey", "PKEY", "P_Key. [0xffff]"),
    ("fields", "NAME=N,...", "Header fields that get these values, right or wrong."),
    ("icrc", "HOW", "right, stale: of the packet before --fields, wrong: inverted. [right]"),
    ("fields_every", "N", "Both for every Nth packet to a queue pair only. [1]"),
)
"""Options of a stream: key, metavar, help."""

_ORDER: tuple[tuple[str, str, str], ...] = (
    ("count", "N", "Packets in all."),
    ("time", "TIME", "For so long: 10s."),
    ("rate", "RATE", "200kpps, 5Gbps or max. [max]"),
    ("burst", "N", "At that rate, but so many packets at a time."),
    ("on", "TIME", "At that rate for so long ..."),
    ("off", "TIME", "... then none for so long, and again."),
    ("ramp_to", "RATE", "From --rate evenly to this one ..."),
    ("ramp_time", "TIME", "... within so long."),
    ("turn", "BY", "Queue pairs take turns by message or packet. [message]"),
    ("seed", "N", "Of everything random. [0]"),
)

_PLAN = click.option(
    "--plan", metavar="FILE", help="Faults on the way: [[faults]] as in scenarios."
)


def _options(table: tuple[tuple[str, str, str], ...]) -> Callable[[Decorated], Decorated]:
    """Options whose values are read as those of a stream file."""

    def decorate(function: Decorated) -> Decorated:
        for key, metavar, text in reversed(table):
            name = f"--{key.replace('_', '-')}"
            function = click.option(name, key, metavar=metavar, help=text)(function)
        return function

    return decorate


@click.group("inject", invoke_without_command=True)
@click.option("--stream", "file", metavar="FILE", help="Streams as TOML: see docs/inject.md.")
@_options(_STREAM)
@click.option("--solicited", is_flag=True, help="Solicited events.")
@click.option("--count-ip-id", is_flag=True, help="IPv4 identifications count up. [0]")
@_options(_ORDER)
@_PLAN
@loop_options
@way_options
@click.pass_context
def command(
    context: click.Context,
    /,
    way: Way,
    loop: Callable[[Injection], Loop] | None,
    file: str | None,
    solicited: bool,
    count_ip_id: bool,
    plan: str | None,
    **options: str | None,
) -> None:
    """Send RDMA test traffic: right PSNs, right ICRCs, or wrong ones on purpose.

    Either --count or --time is a must. Exit status 1 when sending failed or the rate was not
    held, 2 for what cannot be sent.

    \b
    ibwire inject --dev veth-a --dst 10.0.0.2 --qpn 0x11 --size 64KiB --count 200000
    ibwire inject --dev veth-a --stream streams.toml --time 10s --rate 100kpps
    ibwire inject -o out.pcap --src 10.0.0.1 --dst 10.0.0.2 --qpn 0x11 --count 1000
    """
    if context.invoked_subcommand is not None:
        given = [name for name, each in options.items() if each is not None]
        if given or file or plan or loop or way != Way(None, None, False, False, "mmsg", False):
            raise click.UsageError(f"options belong behind {context.invoked_subcommand}")
        return
    way.check()
    if loop is not None and way.output:
        raise click.UsageError("nobody answers a capture: --listen and the like are for --dev")
    if loop is not None and plan is not None:
        reason = "--plan changes what is answered: for --listen and the like use ibwire tap"
        raise click.UsageError(reason)
    flags = (("solicited", solicited), ("count_ip_id", count_ip_id))
    with errors_told():
        values: dict[str, Any] = {
            key: parse_value(key, text) for key, text in options.items() if text is not None
        }
        values |= {key: True for key, given in flags if given}
        injection = _injection(file, values, way)
        order = Order(
            source=injection,
            text=_described(injection),
            count=injection.count,
            time=injection.time,
            pace=injection.pace,
            loop=None if loop is None else loop(injection),
        )
        faults = _faults(plan, None, injection.seed)
        if faults is not None:
            order = with_faults(order, faults)
    deliver(order, way)


@command.command("pfc")
@click.option("--prio", metavar="N,...", help="Priorities 0 to 7 that are paused.")
@click.option("--global", "whole", is_flag=True, help="Pause the whole port instead (802.3x).")
@click.option("--quanta", type=click.IntRange(1, 65535), default=65535, help="[65535, the most]")
@click.option("--refresh", metavar="TIME", help="The pause is said again after so long. [100us]")
@click.option("--on", metavar="TIME", help="Pause for so long ...")
@click.option("--off", metavar="TIME", help="... then not for so long, and again.")
@click.option("--storms", metavar="FILE", help="A schedule as TOML: see docs/inject.md.")
@click.option("--time", metavar="TIME", help="How long it lasts; a must.")
@click.option("--src-mac", metavar="MAC", help="With --dev its own. [02:00:00:00:00:01]")
@way_options
def pfc(
    way: Way,
    prio: str | None,
    whole: bool,
    quanta: int,
    storms: str | None,
    time: str | None,
    src_mac: str | None,
    **times: str | None,
) -> None:
    """Send PFC or pause frames, and a resume at the end, however it comes.

    A pause of 65535 quanta lasts 3.36 ms at 10 Gb/s, 335 us at 100 Gb/s. A veth has no
    pauses, and an adapter may keep such frames for itself: look at the peer's counters.

    \b
    ibwire inject pfc --dev eth1 --prio 3,4 --time 2s
    ibwire inject pfc --dev eth1 --global --on 10ms --off 90ms --time 60s
    """
    way.check()
    with errors_told():
        if storms is not None:
            found, length = read_storms(read_content(Path(storms)), storms)
        else:
            if whole is (prio is not None):
                raise click.UsageError("--prio N,... or --global: either, not both")
            priorities = tuple(parse_value("pcp", each) for each in prio.split(",")) if prio else ()
            spans = {key: parse_duration(text) for key, text in times.items() if text is not None}
            found, length = [Storm(priorities=priorities, quanta=quanta, **spans)], None
        if time is not None:
            length = parse_value("time", time)
        if length is None:
            raise EncodeError("time", None, "a time, which is a must")
        mac = _DEFAULT_MAC if src_mac is None else parse_value("src_mac", src_mac)
        if way.dev is not None and src_mac is None:
            mac = interface(way.dev).mac
        source = pausing(found, length, mac)
        text = f"{source.count} frames for {length / S:g} s, the last of them a resume"
        order = Order(source=source, text=[text], count=source.count, times=source.times)
    deliver(order, way)


@command.command("replay")
@click.argument("capture")
@click.option("--where", metavar="EXPR", help="Only packets for which this holds.")
@click.option("--address", "addresses", metavar="OLD=NEW", multiple=True, help="Of IP, or a GID.")
@click.option("--mac", "macs", metavar="OLD=NEW", multiple=True, help="MAC addresses.")
@click.option("--keep-macs", is_flag=True, help="With --dev too; else its own, and who is there.")
@click.option("--qpn", "qpns", metavar="OLD=NEW", multiple=True, help="Queue pairs.")
@click.option("--rkey", "rkeys", metavar="OLD=NEW", multiple=True, help="R_Keys.")
@click.option(
    "--psn-start",
    "psns",
    metavar="[QPN=]PSN",
    multiple=True,
    help="Of the first request to every recorded queue pair, or to this one.",
)
@click.option("--repair", is_flag=True, help="Make ICRCs and lengths of all packets right.")
@click.option("--rate", metavar="RATE", help="200kpps, 5Gbps or max; as recorded without.")
@click.option("--scale", type=float, default=1.0, help="2: half as fast as recorded.")
@click.option("--ce", metavar="CHANCE", help="Mark packets CE with this probability.")
@_PLAN
@click.option("--seed", type=click.IntRange(0), default=0, help="Of everything random.")
@way_options
def replay(
    way: Way,
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
    """Send the RDMA packets of CAPTURE again, as others would have sent them.

    What changes is made right again: lengths, checksums, ICRC. Packets that nothing
    changes in leave byte for byte as they were captured.

    \b
    ibwire inject replay in.pcap --dev veth-a --where 'ip.src == 10.1.1.7' \\
        --address 10.1.1.7=10.0.0.1 --address 10.1.1.8=10.0.0.2 \\
        --qpn 0x11=0x2a --psn-start 100 --rkey 0x1234=0x99
    """
    way.check()
    with errors_told():
        if not 0 <= scale <= _MOST_SCALE:
            raise EncodeError("scale", scale, f"a number from 0 to {_MOST_SCALE:g}")
        rebinding = _rebinding(way, keep_macs, repair, maps)
        faults = _faults(plan, ce, seed)
        try:
            condition = None if where is None else parse(where, type_of, FIELDS)
        except ExpressionError as error:
            raise click.BadParameter(str(error), param_hint="--where") from None
        found = read_replay(capture, rebinding, where=condition, faults=faults)
        source = found.source
        pace = None if rate is None else make_pace({"rate": parse_value("rate", rate)})
        times = [round(each * scale) for each in source.times] if rate is None else None
        text = [f"{found.taken} packets of {capture}"]
        if source.count != found.taken:
            text.append(f"{source.count} of them leave, as the plan has it")
        for count, what in (
            (found.unselected, "not chosen"),
            (found.cut, "cut short by the capture, left out"),
            (found.others, "no RDMA packets over Ethernet or IP, left out"),
        ):
            if count:
                text.append(f"{count} {what}")
        if not source.count:
            raise CaptureError(capture, None, "; ".join(text))
        order = Order(source=source, text=text, count=source.count, pace=pace, times=times)
    deliver(order, way)


def _rebinding(
    way: Way, keep_macs: bool, repair: bool, maps: dict[str, tuple[str, ...]]
) -> Rebinding:
    gid, number, mac = _gid, functools.partial(parse_value, "va"), _mac
    starts = dict(each.rpartition("=")[::2] for each in maps["psns"])
    src_mac: bytes | None = None
    towards: Callable[[int], bytes] | None = None
    if way.dev is not None and not keep_macs:
        src_mac = interface(way.dev).mac
        if not way.dry_run:
            towards = functools.cache(functools.partial(_towards, way.dev))
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
    """What happens to packets on the way: the rules of a file, then marks."""
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


def _injection(file: str | None, values: dict[str, Any], way: Way) -> Injection:
    def complete(of_stream: dict[str, Any]) -> dict[str, Any]:
        return _completed(of_stream, way)

    if file is not None:
        return read_injection(read_content(Path(file)), file, values, complete)
    of_order = {key: values.pop(key) for key, *_ in _ORDER if key in values}
    return make_injection((make_stream(complete(values)),), of_order)


def _completed(values: dict[str, Any], way: Way) -> dict[str, Any]:
    """The values of a stream, with the addresses that an interface knows."""
    if "dst" not in values:
        raise EncodeError("dst", None, "an IP address, which is a must")
    if way.dev is None:
        return values
    found = interface(way.dev)
    added: dict[str, Any] = {"src_mac": found.mac}
    if "src" not in values:
        is_v6 = ":" in values["dst"]
        own = [each for each in found.addresses if (":" in each) is is_v6]
        if not own:
            kind = "IPv6" if is_v6 else "IPv4"
            raise EncodeError("src", None, f"enough: {way.dev} has no {kind} address")
        added["src"] = own[0]
    # Asking for an address sends packets, and a dry run sends none.
    if "dst_mac" not in values and not way.dry_run:
        added["dst_mac"] = mac_towards(way.dev, values["dst"])
    return added | values


def _described(injection: Injection) -> list[str]:
    """What would be sent, a line a stream, and how fast."""
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
