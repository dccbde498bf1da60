"""The common part of all forms of `ibwire inject`: destination, pace, limits and the report.

The same packets are sent on an interface, written to a capture, or shown with `--dry-run`.
"""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NoReturn, Protocol, TypeVar

import click
import numpy as np

from ibwire.base.errors import EncodeError, IbwireError, LinkError, OutputError, ScriptError
from ibwire.base.node import Pipe
from ibwire.base.units import NS, S, Time
from ibwire.capture.index import Record
from ibwire.capture.writer import write_capture
from ibwire.cli.capture_estimate import announce
from ibwire.cli.closed_loop import ClosedLoop, spread
from ibwire.cli.messages import print_error
from ibwire.cli.paths import OutputPath
from ibwire.cli.preview import preview
from ibwire.traffic.blocks import Source, Template
from ibwire.traffic.impaired import impaired_frames
from ibwire.traffic.kernel_sender import KernelSender
from ibwire.traffic.pace import Pace, Pacer, Pacing, Phase, RecordedTimes, Unit
from ibwire.traffic.sender import Sender
from ibwire.traffic.transmission import EndReason, Outlet, SendReport, SourceOutlet, transmit
from ibwire_layers.outer import LinkType

FAILED = 1
WRONG_USAGE = 2

Decorated = TypeVar("Decorated", bound=Callable[..., object])


@dataclass(frozen=True, slots=True)
class Destination:
    """Where packets go, from the options."""

    dev: str | None
    output: str | None
    dry_run: bool
    as_json: bool
    tx: str
    allow_default_route: bool

    def check(self) -> None:
        """Raise `UsageError` for options that contradict each other."""
        if self.dev and self.output:
            raise click.UsageError("--dev and -o exclude each other: --dev sends, -o writes a file")
        if self.dry_run and self.as_json:
            raise click.UsageError("--dry-run prints text only: it cannot be combined with --json")
        if not self.dev and not self.output and not self.dry_run:
            raise click.UsageError("--dev IFACE, -o FILE or --dry-run is required")


def destination_options(function: Decorated) -> Decorated:
    """Add the options of every form as one argument, `destination`."""

    @functools.wraps(function)
    def command(
        *args: Any,
        dev: str | None,
        output: str | None,
        dry_run: bool,
        as_json: bool,
        tx: str,
        allow_default_route: bool,
        **rest: Any,
    ) -> object:
        return function(
            *args,
            destination=Destination(dev, output, dry_run, as_json, tx, allow_default_route),
            **rest,
        )

    for option in reversed(_OPTIONS):
        command = option(command)
    return command  # type: ignore[return-value]


class Packets(Source, Protocol):
    """A source that may be a cycle."""

    def templates(self) -> list[Template] | None:
        """The packets of the cycle; `None` if there is no cycle."""
        ...


@dataclass(frozen=True, slots=True)
class InjectionJob:
    """The packets to send, and how."""

    source: Packets
    text: Sequence[str]
    """Description of the packets in words."""
    count: int | None = None
    time: Time | None = None
    pace: Pace | None = None
    """`None`: as fast as possible, unless there are times."""
    times: Sequence[int] | None = None
    """Nanoseconds at which each packet leaves; `None`: the pace decides."""
    loop: ClosedLoop | None = None
    """Counts responses and reacts to them; `None`: responses are ignored."""

    @property
    def ends(self) -> bool:
        """Whether the number of packets is limited without a clock."""
        return any(each is not None for each in (self.count, self.pace, self.times))

    def pacing(self) -> Pacing | None:
        """ResponseKind when each packet is due; of use once."""
        if self.times is not None:
            return RecordedTimes(np.asarray(self.times, np.int64))
        return Pacer(self.pace) if self.pace is not None else None


def with_faults(job: InjectionJob, faults: Pipe) -> InjectionJob:
    """The same packets with faults applied, which builds them now; raises `EncodeError`."""
    if not job.ends:
        expected = "limited, as --plan requires: give --count too"
        raise EncodeError("rate", "max", expected)
    source = impaired_frames(((each.time_ns, each.data) for each in records(job)), faults)
    return replace(
        job,
        source=source,
        text=[*job.text, f"{source.count} packets after the faults of the plan"],
        count=source.count,
        pace=None,
        times=None if job.pace is None else source.times,
    )


def deliver(job: InjectionJob, destination: Destination) -> None:
    """Send, write or show the packets, and end the command with its exit status."""
    with reported_errors():
        if destination.dry_run:
            _show(job, destination)
        elif destination.output:
            _write(job, destination.output, destination.as_json)
        else:
            _send(job, destination)


@contextmanager
def reported_errors() -> Iterator[None]:
    """Errors become a message and an exit status."""
    try:
        yield
    except EncodeError as error:
        text = str(error)
        if error.field.isidentifier():
            text = f"--{error.field.replace('_', '-')}{text.removeprefix(error.field)}"
        _end(WRONG_USAGE, text)
    except ScriptError as error:
        _end(WRONG_USAGE, str(error))
    except OutputError:
        raise
    except IbwireError as error:
        _end(FAILED, str(error))
    except OSError as error:
        _end(FAILED, f"{error.filename}: {error.strerror}")


def _end(status: int, text: str) -> NoReturn:
    print_error(text)
    sys.exit(status)


def records(job: InjectionJob) -> Iterator[Record]:
    """The packets with times from 0 on; without a pace, the times of a 100 Gb/s link."""
    pacing = job.pacing() or Pacer(_WIRE)
    number = 0
    for frames, lengths in job.source.blocks(_BLOCK):
        times = pacing.due(lengths).tolist()
        for frame, length, time_ns in zip(frames, lengths.tolist(), times, strict=True):
            if job.time is not None and time_ns * NS >= job.time:
                return
            number += 1
            yield Record(number, time_ns, frame[:length].tobytes(), length, LinkType.ETHERNET)


def _show(job: InjectionJob, destination: Destination) -> None:
    """Print what would be done."""
    where = (
        f"send on {destination.dev}"
        if destination.dev
        else f"write {destination.output}"
        if destination.output
        else "make"
    )
    click.echo(f"would {where}:")
    for line in job.text:
        click.echo(f"  {line}")
    for line in preview(records(job), job.count, ends=job.ends):
        click.echo(line)


def _write(job: InjectionJob, path: str, as_json: bool) -> None:
    """Write the packets to a capture."""
    if not job.ends:
        raise EncodeError("rate", "max", "limited, as a capture requires: give --count too")
    announce(path, partial(records, job), count=job.count, time=job.time)
    size = 0

    def counted() -> Iterator[Record]:
        nonlocal size
        for record in records(job):
            size += record.wire_len
            yield record

    count = write_capture(path, counted())
    if as_json:
        click.echo(json.dumps({"output": path, "packets": count, "bytes": size}))
    else:
        click.echo(f"{path}: {count} packets, {size} bytes")


def _send(job: InjectionJob, destination: Destination) -> None:
    """Send the packets on an interface."""
    assert destination.dev is not None
    for line in job.text:
        click.echo(line, err=True)
    loop = job.loop
    report = _sent(job, destination)
    if loop is not None:
        loop.count(report)
    if destination.as_json:
        result = _as_object(report)
        if loop is not None:
            result["responses"] = loop.as_object()
        click.echo(json.dumps(result))
    else:
        click.echo(_as_text(report, job))
        for line in () if loop is None else loop.lines():
            click.echo(line)
    if report.error is not None:
        _end(FAILED, str(report.error))
    if report.signal is not None:
        sys.exit(128 + report.signal)
    if loop is not None and loop.error is not None:
        _end(FAILED, str(loop.error))
    if report.lost:
        _end(FAILED, f"the device did not send {report.lost} of {report.accepted} packets")
    if not report.rate_kept:
        requested, rate = _pps(report.requested_rate), _pps(report.rate)
        _end(FAILED, f"the rate was not reached: {requested} requested, {rate} achieved")


def _sent(job: InjectionJob, destination: Destination) -> SendReport:
    assert destination.dev is not None
    loop = job.loop
    if loop is not None and loop.sender is not None:
        if destination.tx == "live":
            reason = "--tx live cannot react to responses: no --window, --on-nak or --on-cnp"
            raise LinkError(destination.dev, reason)
        return loop.run(destination.dev, allow_default_route=destination.allow_default_route)
    with ExitStack() as stack:
        outlet: Outlet
        if destination.tx == "live":
            outlet = stack.enter_context(_live(job, destination))
        else:
            sender = stack.enter_context(
                Sender(destination.dev, allow_default_route=destination.allow_default_route)
            )
            outlet = SourceOutlet(sender, job.source)
        if loop is not None:
            outlet = receiving = stack.enter_context(loop.receiving(outlet))
        report = transmit(
            outlet,
            job.pacing(),
            count=job.count,
            seconds=None if job.time is None else job.time / S,
            final=job.source.final,
            allow_default_route=destination.allow_default_route,
        )
        if loop is not None:
            receiving.linger()
            for note in receiving.notes():
                click.echo(note, err=True)
    return report


def _live(job: InjectionJob, destination: Destination) -> KernelSender:
    assert destination.dev is not None
    templates = job.source.templates()
    if templates is None:
        reason = "--tx live is only for packets in which nothing but the PSN changes"
        raise LinkError(destination.dev, reason)
    return KernelSender(
        destination.dev, templates, allow_default_route=destination.allow_default_route
    )


def _as_text(report: SendReport, job: InjectionJob) -> str:
    device = report.device
    lost = f", {report.lost} missing" if report.lost else ""
    dropped = f", {device.dropped} dropped" if device and device.dropped else ""
    counted = "gone" if device is None else f"{device.packets} sent{dropped}{lost}"
    lines = [
        f"sent      {report.offered} packets, accepted by the kernel {report.accepted}, "
        f"{report.bytes} bytes in {report.seconds:.6g} s",
        f"rate      {_pps(report.rate)} achieved, {_asked(report, job)}",
        f"device    {counted}",
    ]
    if report.final:
        lines.append(f"final     {report.final} frames, because the run ended early")
    if len(report.gaps):
        lines.append(f"gaps      {spread(report.gaps)}")
    if len(report.gap_errors):
        lines.append(f"errors    {spread(report.gap_errors)} (difference of gaps from the pace)")
    lines += (f"waited    {count} times: {why}" for why, count in report.waits.items())
    if report.ended is not EndReason.COUNT:
        lines.append(f"ended     {_WHY[report.ended]}")
    return "\n".join(lines)


def _as_object(report: SendReport) -> dict[str, object]:
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
        "requested_pps": report.requested_rate,
        "rate_kept": report.rate_kept,
        "waits": dict(report.waits),
        "gaps_ns": report.gaps.to_json(),
        "gap_errors_ns": report.gap_errors.to_json(),
    }


def _asked(report: SendReport, job: InjectionJob) -> str:
    if job.pace is None:
        return (
            "as fast as possible" if report.requested_rate is None else _pps(report.requested_rate)
        )
    return f"requested {job.pace.text}"


def _pps(rate: float | None) -> str:
    return "no rate" if rate is None else f"{rate:,.1f} pps"


_WHY = {
    EndReason.TIME: "by the time limit",
    EndReason.SIGNAL: "by a signal",
    EndReason.ERROR: "by an error",
}

_BLOCK = 4096
_WIRE = Pace((Phase(S, 100e9),), Unit.BITS)

_OPTIONS = (
    click.option("--dev", metavar="IFACE", help="Send on this interface."),
    click.option(
        "-o",
        "--output",
        metavar="FILE",
        type=OutputPath(allow_dash=True),
        help="Write to a .pcap or .pcapng instead of sending.",
    ),
    click.option(
        "--dry-run", is_flag=True, help="Only show the first and last packets, dissected."
    ),
    click.option("--json", "as_json", is_flag=True, help="Print the results as one JSON object."),
    click.option(
        "--tx",
        type=click.Choice(["mmsg", "live"]),
        default="mmsg",
        show_default=True,
        help="How packets are sent: with sendmmsg, or built by a BPF program in the kernel.",
    ),
    click.option(
        "--default-route-too",
        "allow_default_route",
        is_flag=True,
        help="Allow the interface of this machine's default route.",
    ),
)
