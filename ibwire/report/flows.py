"""Connections as a table, worst first: ends, amount of traffic, and errors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ibwire.connections.connection import Connection
from ibwire.connections.counts import DirectionCounts
from ibwire.connections.flow import FlowKey
from ibwire.connections.pause import Pauses
from ibwire.connections.summary import Summary
from ibwire_layers.opcodes import Service, name_of
from ibwire_layers.syndrome import NakCode

if TYPE_CHECKING:
    from ibwire.compare.between import Between

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
        """Its counts."""
        return self.connection.directions[self.way]


STILL = 20
"""Most connections named as paused."""


def worst_first(summary: Summary) -> list[Connection]:
    """The connections, those with the gravest trouble first."""
    return sorted(summary.connections, key=_trouble, reverse=True)


def _trouble(connection: Connection) -> tuple[int, ...]:
    """Sort key: fatal NAKs, waits, packets retransmitted, lost or damaged, reordering, marks."""
    one, other = connection.directions
    both = one, other
    return (
        sum(count for d in both for name, count in d.naks.items() if name != _SEQUENCE),
        sum(d.timeouts + d.rnr_naks + d.restarts for d in both),
        sum(d.retransmitted for d in both),
        sum(d.lost + d.damaged for d in both),
        sum(d.duplicates + d.reordered for d in both),
        sum(d.marked for d in both),
        sum(d.packets for d in both),
    )


_SEQUENCE = NakCode.PSN_SEQUENCE_ERROR.name.lower()


def rows(connections: Sequence[Connection]) -> list[Row]:
    """The directions with a line: those with messages or errors."""
    shown = []
    for connection in connections:
        each = [Row(connection, 0), Row(connection, 1)]
        worth = [row for row in each if row.counts.messages or any(s(row) for s in _AMISS)]
        shown += worth or each[:1]
    return shown


def _plain(name: str) -> Callable[[Row], int]:
    return lambda row: int(getattr(row.counts, name))


_AMISS: tuple[Callable[[Row], int], ...] = (
    lambda row: sum(row.counts.naks.values()),
    *map(
        _plain,
        (
            *("retransmitted", "lost", "duplicates", "reordered", "rnr_naks", "timeouts"),
            *("restarts", "marked", "cnps", "damaged", "implied_naks"),
        ),
    ),
)


def lines(shown: Sequence[Row], width: int | None) -> list[str]:
    """A table, one line a direction; where that is wider than `width`, some lines for each.

    Empty columns are left out.
    """
    columns = []
    for column in _COLUMNS:
        cells = [column.show(row) for row in shown]
        if any(cells):
            cells = [column.title, *(cell or "-" for cell in cells)]
            columns.append((column.is_number, cells, max(map(len, cells))))
    if width is not None and sum(size + 2 for _, _, size in columns) > width + 2:
        return [line for row in shown for line in _block(row)]
    return [
        "  ".join(
            cell.rjust(size) if is_number else cell.ljust(size)
            for cell, (is_number, _, size) in zip(line, columns, strict=True)
        ).rstrip()
        for line in zip(*(cells for _, cells, _ in columns), strict=True)
    ]


def _block(row: Row) -> list[str]:
    """One direction in a few short lines: ends, operations, errors."""
    told: dict[int, list[str]] = {0: [], 1: [], 2: []}
    for column in _COLUMNS:
        cell = column.show(row)
        if cell:
            told[column.line].append(column.block.format(cell))
    head, done, amiss = told.values()
    return [" ".join(head), *(f"    {', '.join(each)}" for each in (done, amiss) if each)]


def notes(shown: Sequence[Row]) -> list[str]:
    """The legend of the marks that the table has."""
    reasons: dict[str, None] = {}
    for row in shown:
        unsure = row.connection.not_observable(row.way)
        if _lost(row) and "lost_packets" in unsure:
            reasons[unsure["lost_packets"]] = None
    guessed = [row.connection.number for row in shown if row.connection.pairing == "guess"]
    found = [f"? or >=: {reason}" for reason in reasons]
    if guessed:
        found.append(
            f"{len(set(guessed))} connections are paired by a guess, see `pairing` in --json"
        )
    return found


def summary_lines(summary: Summary, shown: Sequence[Row], rest: int) -> list[str]:
    """Lines below the table."""
    below = [f"... and {rest:,} more lines, see --all"] if rest > 0 else []
    below += notes(shown)
    if summary.stray_damaged:
        below.append(f"{summary.stray_damaged:,} damaged packets belong to no connection")
    seams = sum(connection.seams for connection in summary.connections)
    if seams:
        below.append(f"{seams:,} connections could not be joined exactly from file to file")
    if summary.pauses.frames:
        below += pauses_in_words(summary.pauses, summary.connections)
    return ["", *below] if below else []


def between_to_json(between: Between, connection: Connection, index: int) -> dict[str, Any]:
    """Results of comparing two captures, for one direction."""
    found = between.directions.get(_key(connection, index))
    if found is None or not found.matched:
        return {"lost_between": None}  # the captures have nothing of it in common
    return found.to_json()


def _key(connection: Connection, index: int) -> FlowKey:
    source, destination = connection.ends[index], connection.ends[1 - index]
    named = source.qpn if connection.service is Service.UD else None
    return FlowKey(
        source.address, destination.address, destination.qpn or 0, connection.service, named
    )


def between_in_words(between: Between) -> list[str]:
    """What happened to frames between two captures, frame by frame."""
    if not any(direction.matched for direction in between.directions.values()):
        return ["no frame is in both captures: they are not of the same traffic"]
    told = []
    for key, direction in between.directions.items():
        kinds = (
            ("lost", direction.lost),
            ("damaged", direction.damaged),
            ("doubled", direction.duplicated),
            ("overtaken", direction.reordered),
            ("marked", direction.marked),
            ("not in the sender's capture", direction.unsent),
        )
        if any(found for _, found in kinds):
            told.append(
                f"{key.src} -> {key.dst} 0x{key.dst_qpn:x}, from {direction.sender_path} on, "
                f"{direction.matched:,} frames in both:"
            )
        for what, found in kinds:
            for each in found:
                frame = each.received if each.frame is None else each.frame
                told.append(f"  frame {frame} {what}: {name_of(each.opcode)} PSN {each.psn}")
    return told or ["between the two captures nothing was lost, damaged, doubled or overtaken"]


def pauses_in_words(pauses: Pauses, connections: Sequence[Connection]) -> list[str]:
    """Senders of pauses, priority, duration, and the connections paused."""
    about = pauses.to_json()
    at_most = "" if pauses.is_exact else "at most "
    told = []
    for sender in about["senders"]:
        for lane in sender["priorities"]:
            what = "the whole port" if lane["priority"] is None else f"priority {lane['priority']}"
            storms = f", {lane['storms']:,} storms" if lane["storms"] else ""
            told.append(
                f"{sender['mac']} paused {what}: {lane['frames']:,} frames, {lane['pauses']:,} "
                f"pauses, {at_most}{_time(lane['paused_ns'])} in all, longest "
                f"{_time(lane['longest_ns'])}{storms}"
            )
    if told and not pauses.is_exact:
        told.append("times of pauses are upper bounds: --link-rate tells the speed of the link")
    still = [(connection, connection.paused_ns(pauses)) for connection in connections]
    still = sorted(((each, held) for each, held in still if held), key=lambda each: -each[1])
    for connection, held in still[:STILL]:
        near, far = connection.ends
        told.append(
            f"connection {connection.number}, {near.address} - {far.address}, sat still for "
            f"{at_most}{_time(held)} of pauses"
        )
    return told


def _end(index: int) -> Callable[[Row], str]:
    def show(row: Row) -> str:
        end = row.connection.ends[row.way ^ index]
        return f"{end.address} {'?' if end.qpn is None else f'0x{end.qpn:x}'}"

    return show


def _messages(row: Row) -> str:
    verbs = row.counts.messages
    return " ".join(
        f"{count:,} {SHORT_VERBS.get(verb, verb)}"
        for verb, count in sorted(verbs.items(), key=lambda each: -each[1])
    )


def _resent(row: Row) -> str:
    counts = row.counts
    if not counts.retransmitted:
        return ""
    return f"{counts.retransmitted:,} ({counts.retransmitted / counts.packets:.1%})"


def _lost(row: Row) -> str:
    unsure = "lost_packets" in row.connection.not_observable(row.way)
    lost = row.counts.lost
    if lost:
        return f"{'>=' if unsure else ''}{lost:,}"
    return "?" if unsure and any(each(row) for each in _AMISS) else ""


def _naks(row: Row) -> str:
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


def _count(name: str) -> Callable[[Row], str]:
    def show(row: Row) -> str:
        value = getattr(row.counts, name)
        return f"{value:,}" if value else ""

    return show


def _size(row: Row) -> str:
    return _scaled(row.counts.message_bytes or row.counts.payload_bytes, "B")


def _goodput(row: Row) -> str:
    rate = row.connection.goodput_bps(row.way)
    return _scaled(rate, "b/s") if rate else ""


def _latency(percent: int) -> Callable[[Row], str]:
    def show(row: Row) -> str:
        value = row.counts.latency.percentile(percent)
        return "" if value is None else _time(value)

    return show


def _scaled(value: int, unit: str) -> str:
    for power, letter in ((12, "T"), (9, "G"), (6, "M"), (3, "k")):
        if value >= 10**power:
            return f"{value / 10**power:.3g} {letter}{unit}"
    return f"{value} {unit}"


def _time(ns: int) -> str:
    for power, unit in ((9, "s"), (6, "ms"), (3, "us")):
        if ns >= 10**power:
            return f"{ns / 10**power:.3g} {unit}"
    return f"{ns} ns"


class _Column(NamedTuple):
    title: str
    show: Callable[[Row], str]
    """An empty text for nothing."""
    line: int = 2
    """Of a block."""
    block: str = "{}"
    """How it is put in a block."""
    is_number: bool = True


def _service(row: Row) -> str:
    return row.connection.service.name


_COLUMNS = (
    _Column("#", lambda row: str(row.connection.number), 0, "{}:"),
    _Column("from", _end(0), 0, is_number=False),
    _Column("to", _end(1), 0, "-> {}", is_number=False),
    _Column("type", _service, 0, is_number=False),
    _Column("messages", _messages, 1, is_number=False),
    _Column("packets", _count("packets"), 1, "{} packets"),
    _Column("data", _size, 1),
    _Column("goodput", _goodput, 1),
    _Column("sent again", _resent, 2, "{} sent again"),
    _Column("lost", _lost, 2, "{} lost"),
    _Column("NAKs", _naks, 2, "NAKs: {}", is_number=False),
    _Column("RNR NAKs", _count("rnr_naks"), 2, "{} RNR NAKs"),
    _Column("timeouts", _count("timeouts"), 2, "{} timeouts"),
    _Column("implied NAKs", _count("implied_naks"), 2, "{} implied NAKs"),
    _Column("copies", _count("duplicates"), 2, "{} copies"),
    _Column("overtaken", _count("reordered"), 2, "{} overtaken"),
    _Column("bad ICRC", _count("damaged"), 2, "{} with a bad ICRC"),
    _Column("restarts", _count("restarts"), 2, "{} restarts"),
    _Column("CE", _count("marked"), 2, "{} CE marks"),
    _Column("CNPs", _count("cnps"), 2, "{} CNPs"),
    _Column("latency p50", _latency(50), 1, "latency {}"),
    _Column("p99", _latency(99), 1, "p99 {}"),
)
