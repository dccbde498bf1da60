"""Reads the keys of a `[[flow]]` that stand for many flows: a file, or sizes drawn at a load."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path

from ibwire.base.errors import EncodeError, ScriptError
from ibwire.base.quantities import parse_duration
from ibwire.base.toml import Table, listed, parse_size, shown
from ibwire.base.units import US, S, Time
from ibwire.scenario.flow_files import (
    LARGEST_FLOW,
    MOST_FLOWS,
    PUBLISHED,
    FlowEntry,
    Sizes,
    poisson_flows,
    read_flows,
    read_sizes,
)
from ibwire.scenario.starts import take_start


@dataclass(frozen=True, slots=True)
class ListContext:
    """What a list of flows depends on besides its table."""

    directory: Path
    """That of the scenario, where its files are."""
    seed: int
    limit: Time
    """When the run ends."""
    rates: Mapping[str, int]
    """Bits a second of the line of each host."""
    files: list[Path] = field(default_factory=list)
    """Those that have been read."""


def is_list(table: Table) -> bool:
    """Whether a `[[flow]]` is a file of flows or draws them."""
    return "file" in table or "sizes" in table


def read_list(
    table: Table,
    name: str,
    senders: Sequence[str],
    targets: Mapping[str, Sequence[str]],
    context: ListContext,
) -> list[tuple[tuple[str, str], int, Time]]:
    """Sender and receiver, bytes and start of each flow, in the order of the list.

    senders: the hosts that the numbers of a file stand for. targets: of flows that are drawn, the
    receivers of each sender.
    """
    start = take_start(table, context.limit)
    if "file" in table:
        entries = _from_file(table, senders, context)
        pairs = [(senders[each.source], senders[each.target]) for each in entries]
    else:
        entries = _drawn(table, name, targets, context)
        every = _numbered(targets)
        pairs = [(every[each.source], every[each.target]) for each in entries]
    if not entries and "file" in table:
        raise table.error("file", f"{table.take('file')} has no flow")
    if not entries:
        raise table.error(None, "no flow: a longer duration or a higher load may give some")
    return [
        (pair, each.size, start + each.start) for pair, each in zip(pairs, entries, strict=True)
    ]


def _from_file(table: Table, hosts: Sequence[str], context: ListContext) -> list[FlowEntry]:
    if "sizes" in table:
        raise table.error("sizes", "a flow has a file or sizes")
    unit = _UNITS[table.take_name("start_unit", "us", _UNITS)]
    file = context.directory / table.take_text("file", "")
    context.files.append(file)
    with _named_by(table, "file"):
        entries = read_flows(file, unit=unit)
    highest = max((max(each.source, each.target) for each in entries), default=0)
    if highest >= len(hosts):
        hint = f"the {len(hosts)} hosts are numbers 0 to {len(hosts) - 1}"
        raise table.error("file", f"it names host {highest}, and {hint}")
    return entries


def _drawn(
    table: Table,
    name: str,
    targets: Mapping[str, Sequence[str]],
    context: ListContext,
) -> list[FlowEntry]:
    sizes = _sizes(table, context)
    if "load" not in table:
        raise table.error(None, "load is missing: the part of the line that flows take, as 0.5")
    load = table.take_number("load", 0.0, 0.0, 2.0)
    if load <= 0:
        raise table.error("load", "expected a number above 0")
    most = table.take_int("count", MOST_FLOWS, 1, MOST_FLOWS)
    duration = _duration(table)
    if duration is None and "count" not in table:
        raise table.error(None, "duration is missing, or count: how long flows begin, or how many")
    rates = {context.rates[each] for each in targets}
    if len(rates) > 1:
        raise table.error("from", "hosts with lines of different rates: one [[flow]] for each rate")
    places = {host: number for number, host in enumerate(_numbered(targets))}
    interval = sizes.mean * 8 * S / (rates.pop() * Fraction(load))
    entries = poisson_flows(
        sizes,
        {places[each]: [places[to] for to in own] for each, own in targets.items()},
        mean_interval=interval,
        duration=duration,
        most=most,
        draw=random.Random(f"{context.seed}/flows/{name}"),
    )
    if len(entries) == MOST_FLOWS and "count" not in table:
        raise table.error(
            "duration",
            f"{MOST_FLOWS:,} flows, the most that are possible, begin in the first "
            f"{entries[-1].start / US:,.6g} us: a shorter time, a lower load, or `count`",
        )
    return entries


def _numbered(targets: Mapping[str, Sequence[str]]) -> list[str]:
    """Senders and their targets, each once: a number in a drawn flow is a place here."""
    return list(dict.fromkeys([*targets, *(each for own in targets.values() for each in own)]))


def _duration(table: Table) -> Time | None:
    value = table.take("duration")
    if value is None:
        return None
    try:
        return parse_duration(value)
    except EncodeError as error:
        raise table.error("duration", str(error).removeprefix("duration: ")) from None


def _sizes(table: Table, context: ListContext) -> Sizes:
    """A published distribution, the file of one, or bytes."""
    value = table.take("sizes")
    if isinstance(value, str) and value in PUBLISHED:
        return PUBLISHED[value]
    try:
        size = parse_size(value)
    except EncodeError:
        pass
    else:
        if not 1 <= size <= LARGEST_FLOW:
            raise table.error("sizes", f"{size} is not from 1 to {LARGEST_FLOW}")
        return Sizes(((Fraction(size), Fraction(0)), (Fraction(size + 1), Fraction(1))))
    if not isinstance(value, str) or not (context.directory / value).is_file():
        known = listed(sorted(PUBLISHED))
        raise table.error("sizes", f"{shown(value)} is none of {known}, no file and no bytes")
    context.files.append(context.directory / value)
    with _named_by(table, "sizes"):
        return read_sizes(context.directory / value)


@contextmanager
def _named_by(table: Table, key: str) -> Iterator[None]:
    """Errors of a whole file have the place of the key that names it, others that in the file."""
    try:
        yield
    except ScriptError as error:
        if error.line is not None:
            raise
        raise table.error(key, str(error)) from None


_UNITS = {"us": US, "ps": 1}
