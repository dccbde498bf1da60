"""What all forms of `ibwire inject` share: where packets go, how fast, until when, and the report.

The same packets go to an interface, to a capture, or nowhere, with a look at the first
and the last of them.
"""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any, NoReturn, Protocol, TypeVar

import click
import numpy as np

from ibwire.base.errors import EncodeError, IbwireError, LinkError, ScriptError
from ibwire.base.node import Pipe
from ibwire.base.units import NS, S, Time
from ibwire.capture.index import Record
from ibwire.capture.writer import write_capture
from ibwire.cli.closed_loop import Loop, spread
from ibwire.cli.preview import preview
from ibwire.traffic.blocks import Source, Template
from ibwire.traffic.impaired import faulted
from ibwire.traffic.kernel_sender import LiveFrames
from ibwire.traffic.pace import Pace, Phase, Unit
from ibwire.traffic.pacing import Pacer, Pacing, Recorded
from ibwire.traffic.sender import Sender
from ibwire.traffic.transmission import Ended, Feed, Outlet, Report, transmit
from ibwire_layers.outer import LinkType

FAILED = 1
WRONG_USAGE = 2

Decorated = TypeVar("Decorated", bound=Callable[..., object])


@dataclass(frozen=True, slots=True)
class Way:
    """Where packets go, as the options say."""

    dev: str | None
    output: str | None
    dry_run: bool
    as_json: bool
    tx: str
    certain: bool

    def check(self) -> None:
        """Whether they say one thing."""
        if self.dev and self.output:
            raise click.UsageError("--dev sends and -o writes: either, not both")
        if self.dry_run and self.as_json:
            raise click.UsageError("--dry-run is for people: it has no --json")
        if not self.dev and not self.output and not self.dry_run:
            raise click.UsageError("where to? --dev IFACE, -o FILE or --dry-run")


def way_options(function: Decorated) -> Decorated:
    """The options of every form, which become one argument, `way`."""

    @functools.wraps(function)
    def command(
        *args: Any,
        dev: str | None,
        output: str | None,
        dry_run: bool,
        as_json: bool,
        tx: str,
        certain: bool,
        **rest: Any,
    ) -> object:
        return function(*args, way=Way(dev, output, dry_run, as_json, tx, certain), **rest)

    for option in reversed(_WAY):
        command = option(command)
    return command  # type: ignore[return-value]


class Packets(Source, Protocol):
    """A source that may also be a cycle."""

    def templates(self) -> list[Template] | None:
        """The cycle, if it is one."""
        ...


@dataclass(frozen=True, slots=True)
class Order:
    """What is to be done."""

    source: Packets
    text: Sequence[str]
    """The packets, in words."""
    count: int | None = None
    time: Time | None = None
    pace: Pace | None = None
    """`None`: as fast as possible, unless there are times."""
    times: Sequence[int] | None = None
    """Nanoseconds at which each packet leaves, for those that have times of their own."""
    loop: Loop | None = None
    """For packets whose answers count."""

    @property
    def ends(self) -> bool:
        """Whether it ends by itself, without a sender that looks at a clock."""
        return any(each is not None for each in (self.count, self.pace, self.times))

    def pacing(self) -> Pacing | None:
        """Says when each packet is due; of use once."""
        if self.times is not None:
            return Recorded(np.asarray(self.times, np.int64))
        return Pacer(self.pace) if self.pace is not None else None


def with_faults(order: Order, faults: Pipe) -> Order:
    """The same packets with faults on the way, which are made now; raises `EncodeError`."""
    if not order.ends:
        expected = "enough to tell how many packets a plan is for: give --count too"
        raise EncodeError("rate", "max", expected)
    source = faulted(((each.time_ns, each.data) for each in records(order)), faults)
    return replace(
        order,
        source=source,
        text=[*order.text, f"{source.count} packets leave, as the plan has it"],
        count=source.count,
        pace=None,
        times=None if order.pace is None else source.times,
    )


def deliver(order: Order, way: Way) -> None:
    """Do it, and end the command: errors become a sentence and an exit status."""
    with errors_told():
        if way.dry_run:
            _show(order, way)
        elif way.output:
            _write(order, way.output, way.as_json)
        else:
            _send(order, way)


@contextmanager
def errors_told() -> Iterator[None]:
    """What was wrong becomes a sentence and an exit status."""
    try:
        yield
    except EncodeError as error:
        text = str(error)
        if error.field.isidentifier():
            text = f"--{error.field.replace('_', '-')}{text.removeprefix(error.field)}"
        _end(WRONG_USAGE, text)
    except ScriptError as error:
        _end(WRONG_USAGE, str(error))
    except IbwireError as error:
        _end(FAILED, str(error))
    except OSError as error:
        _end(FAILED, f"{error.filename}: {error.strerror}")


def _end(status: int, text: str) -> NoReturn:
    click.echo(f"ibwire: {text}", err=True)
    sys.exit(status)


def records(order: Order) -> Iterator[Record]:
    """The packets with their times, from 0 on; without any as on a wire of 100 Gb/s."""
    pacing = order.pacing() or Pacer(_WIRE)
    number = 0
    for frames, lengths in order.source.blocks(_BLOCK):
        times = pacing.due(lengths).tolist()
        for frame, length, time_ns in zip(frames, lengths.tolist(), times, strict=True):
            if order.time is not None and time_ns * NS >= order.time:
                return
            number += 1
            yield Record(number, time_ns, frame[:length].tobytes(), length, LinkType.ETHERNET)


def _show(order: Order, way: Way) -> None:
    """Say what would be done."""
    where = f"send on {way.dev}" if way.dev else f"write {way.output}" if way.output else "make"
    click.echo(f"would {where}:")
    for line in order.text:
        click.echo(f"  {line}")
    for line in preview(records(order), order.count, ends=order.ends):
        click.echo(line)


def _write(order: Order, path: str, as_json: bool) -> None:
    """Write the packets to a capture."""
    if not order.ends:
        raise EncodeError("rate", "max", "enough to tell when a capture ends: give --count too")
    size = 0

    def counted() -> Iterator[Record]:
        nonlocal size
        for record in records(order):
            size += record.wire_len
            yield record

    count = write_capture(path, counted())
    if as_json:
        click.echo(json.dumps({"output": path, "packets": count, "bytes": size}))
    else:
        click.echo(f"{path}: {count} packets, {size} bytes")


def _send(order: Order, way: Way) -> None:
    """Send the packets on an interface."""
    assert way.dev is not None
    for line in order.text:
        click.echo(line, err=True)
    loop = order.loop
    report = _sent(order, way)
    if loop is not None:
        loop.count(report)
    if way.as_json:
        told = _as_object(report)
        if loop is not None:
            told["answers"] = loop.as_object()
        click.echo(json.dumps(told))
    else:
        click.echo(_as_text(report, order))
        for line in () if loop is None else loop.lines():
            click.echo(line)
    if report.error is not None:
        _end(FAILED, str(report.error))
    if report.signal is not None:
        sys.exit(128 + report.signal)
    if loop is not None and loop.error is not None:
        _end(FAILED, str(loop.error))
    if report.lost:
        _end(FAILED, f"the device has not sent {report.lost} of {report.accepted} packets")
    if not report.held:
        asked, rate = report.asked_rate, report.rate
        _end(FAILED, f"the rate was not held: {_pps(asked)} asked, {_pps(rate)} achieved")


def _sent(order: Order, way: Way) -> Report:
    assert way.dev is not None
    loop = order.loop
    if loop is not None and loop.polite is not None:
        if way.tx == "live":
            raise LinkError(way.dev, "--tx live waits for nobody: it is not for a window or CNPs")
        return loop.converse(way.dev, certain=way.certain)
    with ExitStack() as stack:
        outlet: Outlet
        if way.tx == "live":
            outlet = stack.enter_context(_live(order, way))
        else:
            sender = stack.enter_context(Sender(way.dev, certain=way.certain))
            outlet = Feed(sender, order.source)
        if loop is not None:
            outlet = listening = stack.enter_context(loop.listening(outlet))
        report = transmit(
            outlet,
            order.pacing(),
            count=order.count,
            seconds=None if order.time is None else order.time / S,
            final=order.source.final,
            certain=way.certain,
        )
        if loop is not None:
            listening.linger()
            for note in listening.notes():
                click.echo(note, err=True)
    return report


def _live(order: Order, way: Way) -> LiveFrames:
    assert way.dev is not None
    templates = order.source.templates()
    if templates is None:
        reason = "--tx live sends cycles in which only the PSN changes, and this is none"
        raise LinkError(way.dev, reason)
    return LiveFrames(way.dev, templates, certain=way.certain)


def _as_text(report: Report, order: Order) -> str:
    device = report.device
    lost = f", {report.lost} missing" if report.lost else ""
    dropped = f", {device.dropped} dropped" if device and device.dropped else ""
    counted = "gone" if device is None else f"{device.packets} sent{dropped}{lost}"
    lines = [
        f"sent      {report.offered} packets, accepted by the kernel {report.accepted}, "
        f"{report.bytes} bytes in {report.seconds:.6g} s",
        f"rate      {_pps(report.rate)} achieved, {_asked(report, order)}",
        f"device    {counted}",
    ]
    if report.final:
        lines.append(f"final     {report.final} frames, as the end came early")
    if len(report.gaps):
        lines.append(f"gaps      {spread(report.gaps)}")
    if len(report.gap_errors):
        lines.append(f"errors    {spread(report.gap_errors)} of these gaps")
    lines += (f"waited    {count} times: {why}" for why, count in report.waits.items())
    if report.ended is not Ended.COUNT:
        lines.append(f"ended     {_WHY[report.ended]}")
    return "\n".join(lines)


def _as_object(report: Report) -> dict[str, object]:
    device = report.device
    return {
        "ended": report.ended.value,
        "signal": report.signal,
        "error": None if report.error is None else str(report.error),
        "sent": report.offered,
        "accepted": report.accepted,
        "bytes": report.bytes,
        "final": report.final,
        "device": None if device is None else device._asdict(),
        "lost": report.lost,
        "seconds": report.seconds,
        "rate_pps": report.rate,
        "asked_pps": report.asked_rate,
        "held": report.held,
        "waits": dict(report.waits),
        "gaps_ns": report.gaps.to_json(),
        "gap_errors_ns": report.gap_errors.to_json(),
    }


def _asked(report: Report, order: Order) -> str:
    if order.pace is None:
        return "as fast as possible" if report.asked_rate is None else _pps(report.asked_rate)
    return f"asked {order.pace.text}"


def _pps(rate: float | None) -> str:
    return "no rate" if rate is None else f"{rate:,.1f} pps"


_WHY = {
    Ended.TIME: "the time was over",
    Ended.SIGNAL: "by a signal",
    Ended.ERROR: "by an error",
}

_BLOCK = 4096
_WIRE = Pace((Phase(S, 100e9),), Unit.BITS)

_WAY = (
    click.option("--dev", metavar="IFACE", help="Send on this interface."),
    click.option("-o", "--output", metavar="FILE", help="Write to a .pcap or .pcapng instead."),
    click.option(
        "--dry-run", is_flag=True, help="Show the first and last packets, dissected; send none."
    ),
    click.option("--json", "as_json", is_flag=True, help="What came of it as one object."),
    click.option(
        "--tx",
        type=click.Choice(["mmsg", "live"]),
        default="mmsg",
        show_default=True,
        help="How packets leave: by sendmmsg, or made by a BPF program in the kernel.",
    ),
    click.option(
        "--default-route-too",
        "certain",
        is_flag=True,
        help="Send even where this machine's default route lies.",
    ),
)
