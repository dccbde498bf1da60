"""`ibwire respond`: compares recorded connections with an emulation of one side."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import click

from ibwire.base.errors import CaptureError
from ibwire.base.output import STANDARD_OUTPUT, Output
from ibwire.cli.messages import print_error, print_warning
from ibwire.cli.paths import InputPath, OutputPath
from ibwire.cli.sources import UNREADABLE
from ibwire.cli.values import QueuePairNumber
from ibwire.rc.profile import PROFILES
from ibwire.replay.conversation import ROLES, Conversation
from ibwire.replay.output import ReplayCapture
from ibwire.replay.report import Inference, ReplayReport, name_of

DIFFERENT = 1
"""Exit status when an emulated packet is not as recorded."""

SHOWN = 20
"""Differences of a connection that the text lists; --json has more."""


@click.command("respond")
@click.argument("capture", type=InputPath())
@click.option("--qpn", type=QueuePairNumber(), help="Only requests to this queue pair.")
@click.option(
    "--profile",
    type=click.Choice(list(PROFILES)),
    default="rxe",
    show_default=True,
    help="Implementation that is emulated.",
)
@click.option(
    "--as",
    "role",
    type=click.Choice(list(ROLES)),
    default="responder",
    show_default=True,
    help="The end that is emulated.",
)
@click.option(
    "--requests",
    metavar="FILE",
    type=InputPath(),
    help="Capture of the requests as they arrived, if it is not CAPTURE.",
)
@click.option(
    "--interface",
    type=click.IntRange(0),
    metavar="N",
    help="Only packets of this interface of a pcapng file, from 0.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per connection.")
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    type=OutputPath(allow_dash=True),
    help="Write the packets of the emulated connection as pcapng.",
)
def command(
    capture: str,
    qpn: int | None,
    profile: str,
    role: str,
    requests: str | None,
    interface: int | None,
    as_json: bool,
    output: str | None,
) -> None:
    """Replay the connections of CAPTURE against an emulated peer.

    The recorded requests of each reliable connection are given to an emulated
    responder, and each of its responses is compared with the recorded one:
    opcode, PSN, syndrome, MSN and the data of READs. With `--as requester`
    the recorded responses are given to an emulated requester. State that only
    the recorded response shows is listed as inferred.

    The capture must have been taken at the emulated end of the wire, or no
    packet may have been lost between that end and the capture point.

    \b
    ibwire respond captures/rnr-late-recv.pcap
    ibwire respond --as requester --json capture.pcap
    ibwire respond capture.pcap --requests arrived.pcap -o emulated.pcapng

    Exit status: 0 all equal, 1 differences, 2 wrong usage, 3 unreadable input.
    """
    if output not in (None, STANDARD_OUTPUT) and not output.lower().endswith(_SUFFIXES):
        raise click.UsageError(f"{output!r} does not end in .pcapng")
    if requests is not None and role != "responder":
        raise click.UsageError("--requests requires --as responder")
    result = _Result()
    with ExitStack() as stack:
        file = None if output is None else stack.enter_context(Output(output))
        tap = None if file is None else stack.enter_context(ReplayCapture(file))
        conversation = Conversation(
            capture,
            role=role,
            profile=PROFILES[profile],
            qpn=qpn,
            requests=requests,
            interface=interface,
            tap=tap,
        )
        result.print_reports(conversation, as_json=as_json)
        if file is not None:
            file.input_failed = result.is_unreadable
    if result.is_unreadable:
        sys.exit(UNREADABLE)
    if not result.found and qpn is not None:
        raise click.UsageError(f"{capture} has no requests to a reliable queue pair {qpn:#x}")
    if not result.found:
        print_warning(f"{capture} has no requests of a reliable connection")
    for note in _notes(conversation):
        print_warning(note)
    if result.differs:
        sys.exit(DIFFERENT)


@dataclass(slots=True)
class _Result:
    """What the reports of a capture show."""

    found: int = 0
    """Connections."""
    differs: bool = False
    is_unreadable: bool = False

    def print_reports(self, conversation: Conversation, *, as_json: bool) -> None:
        """Print the report of each connection, up to damage in the capture."""
        try:
            for report in conversation.reports():
                self.found += 1
                self.differs = self.differs or report.has_differences
                if as_json:
                    click.echo(json.dumps(report.as_dict()))
                else:
                    click.echo("\n".join(_lines(report)))
        except CaptureError as error:
            sys.stdout.flush()
            print_error(error)
            self.is_unreadable = True


def _notes(conversation: Conversation) -> Iterator[str]:
    """Sentences about packets that were left out."""
    cut = conversation.skipped["cut"]
    if cut:
        packets = "1 packet is" if cut == 1 else f"{cut} packets are"
        yield (
            f"{packets} cut by the snap length and left out: the ICRC and a part of the payload "
            "are missing; capture whole packets"
        )
    if conversation.unclaimed:
        yield f"{conversation.unclaimed} responses answer nothing in the capture"
    if conversation.copies:
        copies = conversation.copies
        yield f"{copies} packets are on several interfaces: choose one with --interface"


def _lines(report: ReplayReport) -> Iterator[str]:
    """A connection as text."""
    own = "?" if report.src_qpn is None else f"{report.src_qpn:#x}"
    total = report.responses if report.role == "responder" else report.requests
    yield (
        f"{name_of(report.source)} qp {own} > {name_of(report.destination)} "
        f"qp {report.dst_qpn:#x}: {report.requests} requests, {report.responses} responses, "
        f"{report.equal} of {total} {'responses' if report.role == 'responder' else 'requests'} "
        "equal"
    )
    for difference in report.differences[:SHOWN]:
        recorded = "-" if difference.recorded is None else difference.recorded
        emulated = "-" if difference.emulated is None else difference.emulated
        yield (
            f"  packet {difference.packet}: {difference.field}: "
            f"recorded {recorded}, emulated {emulated}"
        )
    hidden = len(report.differences) - SHOWN + report.more_differences
    if hidden > 0:
        yield f"  and {hidden} more differences"
    if report.coalesced:
        yield f"  {report.coalesced} emulated acknowledgements are covered by later recorded ones"
    for left_out in report.left_out.values():
        yield f"  left out: {left_out.what} ({_where(left_out)})"
    for inference in report.inferred.values():
        yield f"  inferred: {inference.what} ({_where(inference)})"


def _where(inference: Inference) -> str:
    packets = ", ".join(map(str, inference.packets))
    if inference.count == 1:
        return f"packet {packets}"
    more = "" if inference.count == len(inference.packets) else ", ..."
    return f"{inference.count} times: packets {packets}{more}"


_SUFFIXES = (".pcapng", ".pcapng.gz", ".pcapng.xz", ".pcapng.zst")
