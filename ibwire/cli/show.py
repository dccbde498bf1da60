"""`ibwire show`: one packet in four views."""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterator

import click

from ibwire.base.errors import CaptureError, DecodeError, MissingExtra
from ibwire.base.output import STANDARD_OUTPUT, Output
from ibwire.base.printable import printable
from ibwire.capture import Record, open_capture
from ibwire.cli.messages import print_error
from ibwire.cli.paths import InputPath
from ibwire.cli.sources import UNREADABLE
from ibwire.cli.tables import format_of, table_options, write_rows
from ibwire.cli.values import Number
from ibwire_layers.headers import LRH
from ibwire_layers.outer import Ethernet, IPv4, IPv6, LinkType
from ibwire_layers.schema import Header
from ibwire_layers.walk import walk


@click.command("show")
@click.argument("capture", type=InputPath())
@click.argument("number", type=Number(min=1, hint="the capture comes first, then the number"))
@click.option(
    "--construct",
    "view",
    flag_value="construct",
    help="Show it as the Construct grammar parses it.",
)
@click.option("--scapy", "view", flag_value="scapy", help="Show it as Scapy does.")
@table_options("field")
def command(
    capture: str, number: int, view: str | None, style: str | None, output: str | None
) -> None:
    """Packet NUMBER of CAPTURE as a tree, then its bytes.

    Every field has its place (byte:bit), width in bits, raw bits, value and
    meaning; each header names the section that defines it.
    """
    style = format_of(style, output)
    if view and style != "text":
        raise click.UsageError(f"--{view} has no table: it contradicts --json, --csv and -o")
    try:
        record = _record(capture, number)
    except CaptureError as error:
        print_error(error)
        sys.exit(UNREADABLE)
    try:
        with Output(output or STANDARD_OUTPUT) as file:
            if style == "text":
                file.text.writelines(f"{line}\n" for line in _views(record, number, view))
            else:
                from ibwire.report.tree import field_rows

                write_rows([*field_rows(record.data, record.link_type)], style, file)
    except MissingExtra as error:
        raise click.ClickException(str(error)) from None


def _views(record: Record, number: int, view: str | None) -> Iterator[str]:
    if view == "scapy":
        yield _scapy(record)
    elif view == "construct":
        yield _construct(record)
    else:
        from ibwire.report.tree import render

        seconds, rest = divmod(record.time_ns, 1_000_000_000)
        cut = "" if len(record.data) >= record.wire_len else f", {len(record.data)} captured"
        yield f"packet {number}: {seconds}.{rest:09d} s, {record.wire_len} bytes{cut}"
        for comment in record.comments:
            yield "comment: " + printable(comment).replace("\n", "\n" + " " * len("comment: "))
        yield from render(record.data, record.link_type)


def _record(path: str, number: int) -> Record:
    last = 0
    with open_capture(path) as reader:
        for batch in reader.batches():
            last = batch.first_number + len(batch) - 1
            if number <= last:
                return batch.record(number - batch.first_number)
    raise click.UsageError(f"{path} has {last} packets, there is no packet {number}")


def _construct(record: Record) -> str:
    from ibwire_layers.construct import describe

    offset, link_type = _innermost(record)
    before = f"after {offset} bytes of outer headers\n" if offset else ""
    try:
        return before + str(describe(record.data[offset:], link_type))
    except DecodeError as error:
        raise click.ClickException(f"the Construct grammar cannot read it: {error}") from None


def _innermost(record: Record) -> tuple[int, int]:
    """Start and link type of the innermost frame: the grammar has no tunnels."""
    found = walk(record.data, record.link_type)
    for layer in reversed(found.layers):
        if layer.header in _FRAMES:
            return layer.offset, _FRAMES[layer.header]
    for layer in found.layers:
        if layer.header in (IPv4, IPv6):
            return layer.offset, LinkType.RAW_IP
    return 0, record.link_type


_FRAMES: dict[type[Header], LinkType] = {
    Ethernet: LinkType.ETHERNET,
    LRH: LinkType.INFINIBAND,
}


def _scapy(record: Record) -> str:
    import scapy.layers.all  # noqa: F401 - the layers around the InfiniBand headers
    from scapy.config import conf
    from scapy.error import Scapy_Exception

    import ibwire_layers.scapy  # noqa: F401 - binds the layers

    if record.link_type not in conf.l2types:
        raise click.ClickException(f"Scapy does not know link type {record.link_type}")
    try:
        packet = conf.l2types[record.link_type](record.data)
    except (struct.error, IndexError, Scapy_Exception) as error:
        # Scapy guards inner layers only: it raises these for a damaged outermost header.
        raise click.ClickException(f"Scapy cannot read it: {error}") from None
    return str(packet.show(dump=True))
