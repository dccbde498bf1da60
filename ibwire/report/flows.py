"""The table of connections, worst first: ends, amount of traffic, and what went wrong."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from ibwire.connections.connection import Connection
from ibwire.connections.counted import Counted
from ibwire.connections.counts import DirectionCounts, Figures
from ibwire.connections.flow import FlowKey
from ibwire.connections.pause import Pauses
from ibwire.connections.summary import Summary
from ibwire_layers.opcodes import Service, name_of

if TYPE_CHECKING:
    from ibwire.compare.comparison import Between

SHORT_VERBS = {
    "SEND": "SEND",
    "RDMA_WRITE": "WRITE",
    "RDMA_READ": "READ",
    "COMPARE_SWAP": "CAS",
    "FETCH_ADD": "FADD",
}


class Row(NamedTuple):
    """One direction of a connection."""

    connection: Connection
    way: int

    @property
    def counts(self) -> DirectionCounts:
        """What was counted."""
        return self.connection.direction(self.way)


Show = Callable[[Row, Figures], str]
"""The text of a cell: of a row and what is shown of every row, which is made once for all cells."""
TROUBLES = 2
"""Line of a block with what went wrong; a direction without `has_troubles` has nothing there."""
TOGETHER = 256
"""Rows whose cells are measured together."""
_BETWEEN = "\0"
"""Between the cells of a row."""
SILENT = 20
"""Connections that are listed as silent during pauses, at most."""


def rows(connections: Sequence[Connection]) -> list[Row]:
    """The directions that get a line: those with requests, or with something wrong."""
    shown = []
    for connection in connections:
        each = [Row(connection, 0), Row(connection, 1)]
        worth = [row for row in each if connection.has_messages(row.way) or has_troubles(row)]
        shown += worth or each[:1]
    return shown


def has_troubles(row: Row) -> bool:
    """Whether anything went wrong with the packets of a direction."""
    if row.connection.is_regular:
        return False
    counts = row.counts
    return bool(
        counts.naks
        or counts.retransmitted
        or counts.lost
        or counts.duplicates
        or counts.reordered
        or counts.rnr_naks
        or counts.timeouts
        or counts.restarts
        or counts.marked
        or counts.cnps
        or counts.damaged
        or counts.implied_naks
    )


def is_unsure(row: Row, name: str) -> bool:
    """Whether a count of a direction with problems, such as `lost_packets`, may be too low."""
    return has_troubles(row) and name in row.connection.not_observable(row.way)


def marked(count: int, unsure: bool) -> str:
    """A count, or `?` or `>=` where there may be more."""
    if unsure and not count:
        return "?"
    return f"{'>=' if unsure else ''}{count:,}"


def lines(shown: Sequence[Row], width: int | None) -> Iterator[str]:
    """A table, one line a direction; where that is wider than `width`, some lines for each.

    Columns without any value are left out.
    """
    texts: list[str] = []
    sizes = [0] * len(_COLUMNS)
    for begin in range(0, len(shown), TOGETHER):
        cells = _cells(shown[begin : begin + TOGETHER])
        # One text takes less memory than one for each cell.
        texts += map(_BETWEEN.join, zip(*cells, strict=True))
        longest = [max(map(len, column)) for column in cells]
        sizes = list(map(max, sizes, longest))
    used = [(at, max(size, len(_COLUMNS[at].title))) for at, size in enumerate(sizes) if size]
    if width is not None and sum(size + 2 for _, size in used) > width + 2:
        for text in texts:
            yield from _block(text.split(_BETWEEN), width)
        return
    places = [at for at, _ in used]
    line = "  ".join(f"%{size if _COLUMNS[at].is_number else -size}s" for at, size in used)
    for text in chain([_BETWEEN.join(column.title for column in _COLUMNS)], texts):
        words = text.split(_BETWEEN)
        yield (line % tuple([words[at] or "-" for at in places])).rstrip()


def _cells(part: Sequence[Row]) -> list[list[str]]:
    """The texts of some rows, by column."""
    shown = list(zip(part, _figures(part), strict=True))
    troubled = [at for at, row in enumerate(part) if has_troubles(row)]
    cells = []
    for column in _COLUMNS:
        show = column.show
        if column.line == TROUBLES:
            texts = [""] * len(part)
            for at in troubled:
                texts[at] = show(*shown[at])
        else:
            texts = [show(row, figures) for row, figures in shown]
        cells.append(texts)
    return cells


def _figures(part: Sequence[Row]) -> list[Figures]:
    """What is shown of these rows; of regular connections from the arrays of their counts."""
    regular: dict[Counted, dict[int, int]] = {}
    found: list[Figures | None] = []
    for at, (connection, way) in enumerate(part):
        kept = connection.counted
        if kept is not None:
            regular.setdefault(kept[0], {})[at] = 2 * kept[1] + way
        found.append(connection.direction(way).figures if kept is None else None)
    for counted, sides in regular.items():
        for at, figures in zip(sides, counted.figures(list(sides.values())), strict=True):
            found[at] = figures
    return [each for each in found if each is not None]


def _block(cells: Sequence[str], width: int) -> list[str]:
    """One direction in a few short lines: ends, traffic, and what went wrong."""
    wrap = textwrap.TextWrapper(
        width, initial_indent="    ", subsequent_indent="    ", break_on_hyphens=False
    )
    parts: dict[int, list[str]] = {0: [], 1: [], 2: []}
    for column, cell in zip(_COLUMNS, cells, strict=True):
        if cell:
            text = column.block.format(cell)
            parts[column.line].append(text.removesuffix("s") if cell == "1" else text)
    head, done, troubles = parts.values()
    kept = [[each.replace(" ", "\0") for each in part] for part in (done, troubles)]
    below = [line.replace("\0", " ") for part in kept for line in wrap.wrap(", ".join(part))]
    return [" ".join(head), *below]


def notes(shown: Sequence[Row]) -> list[str]:
    """What the marks in the table mean, if it has any."""
    reasons: dict[str, None] = {}
    guessed = set()
    for row in shown:
        if has_troubles(row) and _lost(row):
            reason = row.connection.not_observable(row.way).get("lost_packets")
            if reason is not None:
                reasons[reason] = None
        if row.connection.pairing == "guess":
            guessed.add(row.connection.number)
    found = [f"? or >=: {reason}" for reason in reasons]
    if guessed:
        found.append(
            f"{_count_of(len(guessed), 'connection')} paired by a guess: `pairing` in --json"
        )
    return found


def summary_lines(summary: Summary, shown: Sequence[Row], rest: int) -> list[str]:
    """The lines below the table."""
    below = [f"... and {_count_of(rest, 'more line')}, see --all"] if rest > 0 else []
    below += notes(shown)
    if summary.stray_damaged:
        below.append(f"{_count_of(summary.stray_damaged, 'damaged packet')} of no connection")
    seams = sum(connection.seams for connection in summary.connections)
    if seams:
        below.append(f"{_count_of(seams, 'connection')} not joined exactly from file to file")
    if summary.pauses.frames:
        below += pauses_in_words(summary.pauses, summary.connections)
    return ["", *below] if below else []


def between_to_json(between: Between, connection: Connection, index: int) -> dict[str, Any]:
    """What two captures together show of a direction."""
    found = between.directions.get(_key(connection, index))
    if found is None or not found.matched:
        return {"lost_between": None}  # no frame of it is in both captures
    return found.to_json()


def _key(connection: Connection, index: int) -> FlowKey:
    source, destination = connection.ends[index], connection.ends[1 - index]
    named = source.qpn if connection.service is Service.UD else None
    return FlowKey(
        source.address, destination.address, destination.qpn or 0, connection.service, named
    )


def between_in_words(between: Between) -> list[str]:
    """The frames that were lost, damaged, duplicated, reordered or marked between two captures."""
    if not any(direction.matched for direction in between.directions.values()):
        return ["no frame is in both captures: they show different traffic"]
    found_lines = []
    for key, direction in between.directions.items():
        kinds = (
            ("lost", direction.lost),
            ("damaged", direction.damaged),
            ("duplicated", direction.duplicated),
            ("reordered", direction.reordered),
            ("marked", direction.marked),
            ("not in the sender's capture", direction.unsent),
        )
        if any(found for _, found in kinds):
            found_lines.append(
                f"{key.src} -> {key.dst} 0x{key.dst_qpn:x}, from {direction.sender_path} on, "
                f"{_count_of(direction.matched, 'frame')} in both:"
            )
        for what, found in kinds:
            for each in found:
                frame = each.received if each.frame is None else each.frame
                found_lines.append(f"  frame {frame} {what}: {name_of(each.opcode)} PSN {each.psn}")
    if found_lines:
        return found_lines
    said = "between the two captures nothing was lost, damaged, duplicated or reordered"
    # A direction without a frame in both may have been lost as a whole.
    if not all(direction.matched for direction in between.directions.values()):
        said += ", of the directions with frames in both"
    return [said]


def pauses_in_words(pauses: Pauses, connections: Sequence[Connection]) -> list[str]:
    """Senders of pause frames, with priority and duration, and the connections silent meanwhile."""
    about = pauses.to_json()
    at_most = "" if pauses.is_exact else "at most "
    found = []
    for sender in about["senders"]:
        for lane in sender["priorities"]:
            what = "the whole port" if lane["priority"] is None else f"priority {lane['priority']}"
            storms = f", {_count_of(lane['storms'], 'storm')}" if lane["storms"] else ""
            found.append(
                f"{sender['mac']} paused {what}: {_count_of(lane['frames'], 'frame')}, "
                f"{_count_of(lane['pauses'], 'pause')}, "
                f"{at_most}{_time(lane['paused_ns'])} in all, longest "
                f"{_time(lane['longest_ns'])}{storms}"
            )
    if found and not pauses.is_exact:
        found.append("times of pauses are upper bounds: --link-rate gives the link speed")
    silent = [(connection, connection.paused_ns(pauses)) for connection in connections]
    silent = sorted(((each, held) for each, held in silent if held), key=lambda each: -each[1])
    for connection, held in silent[:SILENT]:
        near, far = connection.ends
        whose = ""
        if pauses.are_of_priorities:
            whose = " of its priority" if connection.priorities else ", perhaps of other priorities"
        found.append(
            f"connection {connection.number}, {near.address} - {far.address}, silent for "
            f"{at_most}{_time(held)} of pauses{whose}"
        )
    if pauses.are_of_priorities and any(not each.priorities for each, _ in silent[:SILENT]):
        found.append("packets without a VLAN tag do not show their priority")
    return found


def _end(index: int) -> Show:
    def show(row: Row, figures: Figures) -> str:
        end = row.connection.ends[row.way ^ index]
        return f"{end.address} {'?' if end.qpn is None else f'0x{end.qpn:x}'}"

    return show


def _messages(row: Row, figures: Figures) -> str:
    if not figures.packets and not row.way and not row.connection.has_packets:
        return "; ".join(exchange.names() for exchange in row.connection.exchanges)
    verbs = list(figures.messages.items())
    if len(verbs) > 1:
        verbs.sort(key=lambda each: -each[1])
    return " ".join([f"{count:,} {SHORT_VERBS.get(verb, verb)}" for verb, count in verbs])


def _retransmitted(row: Row, figures: Figures) -> str:
    counts = row.counts
    if not counts.retransmitted:
        return ""
    return f"{counts.retransmitted:,} ({counts.retransmitted / counts.packets:.1%})"


def _lost(row: Row, figures: Figures | None = None) -> str:
    lost, unsure = row.counts.lost, is_unsure(row, "lost_packets")
    if unsure and row.connection.may_be_cut:
        return "?"  # there may also be fewer
    return marked(lost, unsure) if lost or unsure else ""


def _naks(row: Row, figures: Figures) -> str:
    return ", ".join(
        f"{count:,} {_NAKS.get(name, name.replace('_', ' '))}"
        for name, count in row.counts.naks.items()
    )


_NAKS = {
    "psn_sequence_error": "sequence",
    "invalid_request": "invalid request",
    "remote_access_error": "access",
    "remote_operational_error": "operational",
}


def _count_of(count: int, one: str) -> str:
    return f"{count:,} {one}" if count == 1 else f"{count:,} {one}s"


def _count(name: str) -> Show:
    of = attrgetter(name)

    def show(row: Row, figures: Figures) -> str:
        return _number_text(of(row.counts))

    return show


def _packets(row: Row, figures: Figures) -> str:
    return _number_text(figures.packets)


def _number_text(value: int) -> str:
    return f"{value:,}" if value else ""


def _size(row: Row, figures: Figures) -> str:
    return _scaled(figures.size, "B")


def _goodput(row: Row, figures: Figures) -> str:
    return _scaled(figures.goodput_bps, "b/s") if figures.goodput_bps else ""


def _median(row: Row, figures: Figures) -> str:
    return "" if figures.median_ns is None else _time(figures.median_ns)


def _p99(row: Row, figures: Figures) -> str:
    return "" if figures.p99_ns is None else _time(figures.p99_ns)


def _scaled(value: int, unit: str) -> str:
    for scale, letter in ((10**12, "T"), (10**9, "G"), (10**6, "M"), (1000, "k")):
        if value >= scale:
            return f"{value / scale:.3g} {letter}{unit}"
    return f"{value} {unit}"


def _time(ns: int) -> str:
    for scale, unit in ((10**9, "s"), (10**6, "ms"), (1000, "us")):
        if ns >= scale:
            return f"{ns / scale:.3g} {unit}"
    return f"{ns} ns"


class _Column(NamedTuple):
    title: str
    show: Show
    """An empty text for nothing."""
    line: int = TROUBLES
    """Of a block."""
    block: str = "{}"
    """Its text in a block."""
    is_number: bool = True


def _service(row: Row, figures: Figures) -> str:
    return row.connection.service_name or "?"


def _number(row: Row, figures: Figures) -> str:
    return str(row.connection.number)


def _status(row: Row, figures: Figures) -> str:
    return str(row.connection.status)


_COLUMNS = (
    _Column("status", _status, 0, "{}", is_number=False),
    _Column("#", _number, 0, "{}:"),
    _Column("from", _end(0), 0, is_number=False),
    _Column("to", _end(1), 0, "-> {}", is_number=False),
    _Column("type", _service, 0, is_number=False),
    _Column("messages", _messages, 1, is_number=False),
    _Column("packets", _packets, 1, "{} packets"),
    _Column("data", _size, 1),
    _Column("goodput", _goodput, 1),
    _Column("retransmitted", _retransmitted, TROUBLES, "{} retransmitted"),
    _Column("lost", _lost, TROUBLES, "{} lost"),
    _Column("NAKs", _naks, TROUBLES, "NAKs: {}", is_number=False),
    _Column("RNR NAKs", _count("rnr_naks"), TROUBLES, "{} RNR NAKs"),
    _Column("timeouts", _count("timeouts"), TROUBLES, "{} timeouts"),
    _Column("implied NAKs", _count("implied_naks"), TROUBLES, "{} implied NAKs"),
    _Column("duplicates", _count("duplicates"), TROUBLES, "duplicates: {}"),
    _Column("reordered", _count("reordered"), TROUBLES, "{} reordered"),
    _Column("bad ICRC", _count("damaged"), TROUBLES, "{} with a bad ICRC"),
    _Column("restarts", _count("restarts"), TROUBLES, "{} restarts"),
    _Column("CE", _count("marked"), TROUBLES, "{} CE marks"),
    _Column("CNPs", _count("cnps"), TROUBLES, "{} CNPs"),
    _Column("latency p50", _median, 1, "latency {}"),
    _Column("p99", _p99, 1, "p99 {}"),
)
