"""Rows of the tables of the page, and the totals of all connections."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any

from ibwire.base.histogram import Histogram
from ibwire.connections.connection import Connection
from ibwire.connections.counts import DirectionCounts
from ibwire.connections.status import MEANINGS, Status
from ibwire.diagnosis.causes import Reason
from ibwire.diagnosis.story import Story
from ibwire.report.figures import ENDS
from ibwire.report.flows import Row, has_troubles, is_unsure, marked
from ibwire.report.page_survey import Surveyed
from ibwire.report.series import span_of

COLUMN_KINDS = (
    ("status", "status", "status", "what became of the connection"),
    ("number", "#", "count", "number of the connection"),
    ("a", "A", "text", "the end that was seen first"),
    ("b", "B", "text", "the other end"),
    ("service", "type", "text", "transport service"),
    ("packets", "packets", "count", "of both directions"),
    ("goodput", "goodput", "rate", "payload of complete messages, over the time of the connection"),
    ("retransmitted", "retransmitted", "trouble", "packets that were retransmitted"),
    ("share", "share", "share", "retransmitted packets, of all packets"),
    ("lost", "lost", "trouble", "packets that were never seen here"),
    ("reordered", "reordered", "trouble", "packets that arrived after later ones"),
    ("duplicates", "duplicates", "trouble", "duplicates made by the network or the capture"),
    ("naks", "NAK", "trouble", "NAKs of all kinds"),
    ("rnr", "RNR", "trouble", "receiver-not-ready NAKs"),
    ("timeouts", "timeouts", "trouble", "times that a requester's timer expired"),
    ("damaged", "bad ICRC", "trouble", "packets with a wrong ICRC"),
    ("restarts", "restarts", "trouble", "times that PSNs restarted"),
    ("ce", "CE", "trouble", "packets with a CE mark"),
    ("cnps", "CNP", "trouble", "congestion notification packets"),
    ("p50", "latency p50", "time", "median of message latency"),
    ("p99", "p99", "time", "99 % of message latencies are at most this"),
)
"""Columns of the table: key, heading, format, meaning."""


_LEVELS = {Status.OK: "ok", Status.RECOVERED: "minor"}
"""Colour of a status; the others are `failed` or `major`."""


def badge(connection: Connection) -> dict[str, Any]:
    """The status of a connection with its colour, its meaning, and its place among the others."""
    status = connection.status.status
    return {
        "text": str(connection.status),
        "level": _LEVELS.get(status, "failed" if status.is_failure else "major"),
        "meaning": MEANINGS[status].means,
        "severity": status.severity,
    }


_COUNTS: dict[str, Callable[[DirectionCounts], int]] = {
    "retransmitted": attrgetter("retransmitted"),
    "lost": attrgetter("lost"),
    "reordered": attrgetter("reordered"),
    "duplicates": attrgetter("duplicates"),
    "naks": lambda counts: sum(counts.naks.values()),
    "rnr": attrgetter("rnr_naks"),
    "timeouts": attrgetter("timeouts"),
    "damaged": attrgetter("damaged"),
    "restarts": attrgetter("restarts"),
    "ce": attrgetter("marked"),
    "cnps": attrgetter("cnps"),
}
"""Counts of what went wrong, in a direction by column: all are 0 without `has_troubles`."""


def row_of(connection: Connection) -> dict[str, Any]:
    """A connection, as a row of its table; `marks` has the cells with another text."""
    both = connection.directions
    latency = Histogram()
    for each in both:
        latency.merge(each.latency)
    first, last = span_of(connection)
    packets = sum(each.packets for each in both)
    troubles = {key: count(both[0]) + count(both[1]) for key, count in _COUNTS.items()}
    carried = sum(each.message_bytes for each in both)
    row: dict[str, Any] = {
        "status": badge(connection),
        "number": connection.number,
        "a": address_of(connection, 0),
        "b": address_of(connection, 1),
        "service": connection.service_name or "?",
        "packets": packets,
        "goodput": 8e9 * carried / (last - first) if last > first else None,
        "retransmitted": troubles["retransmitted"],
        "share": troubles["retransmitted"] / packets if packets else 0,
        **troubles,
        "p50": latency.percentile(50),
        "p99": latency.percentile(99),
    }
    ways = Row(connection, 0), Row(connection, 1)
    row["marks"] = {
        key: "?" if connection.may_be_cut and key == "lost" else marked(row[key], unsure=True)
        for key, name in _UNSURE.items()
        if any(way.counts.packets and is_unsure(way, name) for way in ways)
    }
    return row


def statuses(connections: Sequence[Connection]) -> dict[str, int]:
    """The statuses that connections have, and how many each; the worst first."""
    found = Counter(connection.status.status for connection in connections)
    return {str(status): found[status] for status in reversed(Status) if found[status]}


_AFTER = Reason.LOST_AFTER, Reason.RESPONSE_LOST_AFTER, Reason.EITHER_LOST_AFTER
"""What the descriptions count as missing after the point of capture."""


_UNSURE = {
    "lost": "lost_packets",
    "retransmitted": "retransmitted_packets",
    "naks": "naks",
    "rnr": "rnr_naks",
    "timeouts": "timeouts",
}
"""Columns whose counts may be too low, with their names in `Connection.not_observable`."""


def totals(surveyed: Surveyed, stories: Mapping[int, Story]) -> list[tuple[str, str, str]]:
    """Errors of all connections together: name, count, and role of the colour.

    A count that may be too low is marked as in the table of `ibwire flows`.
    """
    after = sum(
        cause.count
        for story in stories.values()
        for incident in story.incidents
        for cause in incident.causes
        if cause.name in _AFTER
    )
    ways = [Row(each, way) for each in surveyed.summary.connections for way in (0, 1)]
    ways = [way for way in ways if has_troubles(way)]  # the others add nothing to any total
    unsure = {name for name in _UNSURE.values() if any(is_unsure(way, name) for way in ways)}

    def total(key: str, more: int = 0) -> str:
        count = more + sum(_COUNTS[key](way.counts) for way in ways)
        return marked(count, _UNSURE.get(key) in unsure)

    may_be_cut = any(each.may_be_cut for each in surveyed.summary.connections)
    paused = sum(
        lane.pauses for sender in surveyed.pauses.senders.values() for lane in sender.lanes.values()
    )
    return [
        ("lost before this point", "?" if may_be_cut else total("lost"), "lost"),
        ("missing after this point", marked(after, after > 0 or "lost_packets" in unsure), "lost"),
        (f"retransmitted{_by_way(ways)}", total("retransmitted"), "retransmission"),
        ("NAKs", total("naks"), "nak"),
        ("RNR NAKs", total("rnr"), "rnr_nak"),
        ("timeouts", total("timeouts"), "retry_exceeded"),
        ("wrong ICRC", total("damaged", surveyed.summary.stray_damaged), "icrc_bad"),
        ("reordered", total("reordered"), "reordered"),
        ("duplicates", total("duplicates"), "duplicate"),
        ("CE marks", total("ce"), "ce"),
        ("CNPs", total("cnps"), "cnp"),
        ("link pauses", marked(paused, unsure=False), "pause"),
    ]


def _by_way(ways: Sequence[Row]) -> str:
    """The retransmitted packets of each direction, where both have some."""
    each = [sum(row.counts.retransmitted for row in ways if row.way == way) for way in (0, 1)]
    if not all(each):
        return ""
    return f" ({', '.join(f'{total:,} {way_of(way)}' for way, total in enumerate(each))})"


def address_of(connection: Connection, end: int) -> str:
    """Address and queue pair number of an end."""
    address, qpn = connection.ends[end]
    return f"{address} QP {'?' if qpn is None else qpn}"


def way_of(direction: int) -> str:
    """From which end to which a direction goes."""
    return f"{ENDS[direction]} → {ENDS[1 - direction]}"
