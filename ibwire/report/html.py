"""A capture as one HTML page: errors, connections, and plots over time.

    survey = Survey()                   # first pass: counts everything
    for columns in capture: survey.take(columns)
    closer = Closer(survey.finish(), 12)  # second pass: points of the worst
    for columns in capture: closer.take(columns)
    for text in page(closer.finish()): file.write(text)

The page is a fixed template, plotly's script, and one JSON object with all data of the
capture. No data of a capture becomes markup: the script inserts it as text.
"""

from __future__ import annotations

import datetime
import json
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from importlib.resources import files
from typing import Any

from ibwire.base.histogram import Histogram
from ibwire.connections.analysis import Analysis
from ibwire.connections.connection import Connection
from ibwire.connections.events import FlowEvent, FlowEventKind, Message
from ibwire.connections.packets import TransportPacket
from ibwire.connections.pairing import PAIRINGS
from ibwire.connections.pause import WHOLE_PORT, Lane, Pauses
from ibwire.connections.ranking import worst_first
from ibwire.connections.states import PacketStatus
from ibwire.connections.status import MEANINGS, Status
from ibwire.connections.summary import Summary
from ibwire.connections.tracker import RequestTracker
from ibwire.diagnosis.record import Recorder
from ibwire.diagnosis.story import FileStart, Frames, Story
from ibwire.diagnosis.wording import Reason, count, duration, sentence
from ibwire.dissect import Columns
from ibwire.report import remarks
from ibwire.report.figures import ENDS, MARKS, Figure, Pause, Words, plotly_script
from ibwire.report.flows import Row, is_unsure, marked
from ibwire.report.series import EVENTS, Collector, Series, span_of
from ibwire.rules.conformance import Conformance
from ibwire.rules.findings import ANY, Finding

MOST_CONNECTIONS = 1000
"""Rows of the table of connections."""

MOST_FINDINGS = 300

MOST_COMMENTS = 200

MOST_LANES = 8
"""Most pausing senders and priorities in figures, longest pauses first."""

STORY_EVENTS = 20_000
"""Most events of a connection that gets a description, which is kept in memory."""

COLUMNS = 8400
"""Columns of all figures together; bounds the size of the page."""

WIDEST = 700
"""Columns of one figure, about the width of a screen."""


@dataclass(slots=True)
class Surveyed:
    """Results of the first pass."""

    name: str
    """Of the capture."""
    start_ns: int
    """Time of its first frame, from which times count."""
    summary: Summary
    findings: list[Finding]
    pauses: Pauses
    comments: list[tuple[int, str]]
    """Of packets, by number."""
    all_comments: int
    is_whole: bool = True
    """The capture could be read to its end."""
    files: Sequence[FileStart] = ()
    """Where there are several files: where each but the first begins."""


class Survey:
    """First pass over a capture.

    profile: implementation whose habits are not findings, see `findings.PROFILES`.
    rate_bps: of the link, for the times of pauses.
    """

    def __init__(self, name: str, profile: str = ANY, rate_bps: int | None = None) -> None:
        self._name = name
        self._start_ns: int | None = None
        self._judged = Conformance(profile)
        self._pauses = Pauses(rate_bps)
        self._comments: list[tuple[int, str]] = []
        self.frames = 0
        """Taken so far."""
        self._all_comments = 0

    def take(self, columns: Columns) -> None:
        """Take the next chunk of the capture."""
        batch = columns.frames.batch
        if self._start_ns is None and columns.rows:
            self._start_ns = int(batch.time_ns[0])
        self.frames += columns.rows
        for row, comments in sorted(batch.comments.items()):
            self._all_comments += len(comments)
            room = MOST_COMMENTS - len(self._comments)
            self._comments += [(row + batch.first_number, text) for text in comments[:room]]
        self._judged.take(columns)
        self._pauses.take(columns)

    def finish(self, is_whole: bool = True) -> Surveyed:
        """End of the capture."""
        findings = self._judged.finish(self._name)
        return Surveyed(
            name=self._name,
            start_ns=self._start_ns or 0,
            summary=self._judged.summary,
            findings=findings,
            pauses=self._pauses,
            comments=self._comments,
            all_comments=self._all_comments,
            is_whole=is_whole,
        )


class Closer:
    """Second pass: the worst connections, packet by packet.

    most: number of connections.
    """

    def __init__(self, surveyed: Surveyed, most: int) -> None:
        self._surveyed = surveyed
        self._ranked = worst_first(surveyed.summary.connections)
        chosen = self._ranked[:most]
        columns = min(WIDEST, COLUMNS // max(most, 1))
        wanted = {
            number for finding in surveyed.findings[:MOST_FINDINGS] for number in finding.numbers
        }
        self._collector = Collector(chosen, columns, wanted)
        self._described = {each.number for each in chosen}
        self._recorder = Recorder(self._described)
        self._event_counts: Counter[int] = Counter()
        self._analysis = Analysis(self)

    def take(self, columns: Columns) -> None:
        """Take the next chunk of the capture."""
        self._analysis.take(columns)

    def finish(self) -> dict[str, Any]:
        """End of the capture; returns the data of the page."""
        self._analysis.finish()
        self._collector.finish()
        return _Page(
            surveyed=self._surveyed,
            ranked=self._ranked,
            collector=self._collector,
            recorder=self._recorder,
            described=self._described,
        ).build()

    # Callbacks of an observer.

    def request(
        self, tracker: RequestTracker, packet: TransportPacket, status: PacketStatus
    ) -> None:
        """A request, before the tracker takes it."""
        self._collector.request(tracker, packet, status)
        self._recorder.request(tracker, packet, status)

    def response(
        self, tracker: RequestTracker, packet: TransportPacket, status: PacketStatus
    ) -> None:
        """A response, before the tracker takes it."""
        self._collector.response(tracker, packet, status)
        self._recorder.response(tracker, packet, status)

    def other(self, connection: Connection, direction: int, packet: TransportPacket) -> None:
        """A CNP, a datagram, or a packet with a wrong ICRC."""
        self._collector.other(connection, direction, packet)
        self._recorder.other(connection, direction, packet)

    def event(self, event: FlowEvent) -> None:
        """An event."""
        self._collector.event(event)
        self._recorder.event(event)
        self._event_counts[event.connection] += 1
        if self._event_counts[event.connection] > STORY_EVENTS:
            self._described.discard(event.connection)

    def message(self, message: Message) -> None:
        """The end of a message."""
        self._collector.message(message)
        self._recorder.message(message)


def page(content: dict[str, Any]) -> Iterator[str]:
    """The page, in pieces of text."""
    parts = {
        "STYLE": _template("page.css"),
        "PLOTLY": plotly_script(),
        "DATA": _embedded(content),
        "SCRIPT": _template("page.js"),
    }
    rest = _template("page.html")
    for name, text in parts.items():
        before, rest = rest.split(f"@{name}@")
        yield before
        yield text
    yield rest


@dataclass(slots=True)
class _Page:
    """The data of the page, as one object for JSON."""

    surveyed: Surveyed
    ranked: Sequence[Connection]
    collector: Collector
    recorder: Recorder
    described: set[int]
    """Connections with a description."""
    words: Words = field(default_factory=Words)
    figures: dict[int, Figure] = field(default_factory=dict)

    def build(self) -> dict[str, Any]:
        surveyed = self.surveyed
        pauses = _pauses_of(surveyed.pauses)
        for number, series in self.collector.series.items():
            self.figures[number] = Figure(series, surveyed.start_ns, pauses, self.words)
        stories = self._stories()
        shown = surveyed.findings[:MOST_FINDINGS]
        return {
            "capture": os.path.basename(surveyed.name),
            "version": version("ibwire"),
            "headline": self._headline(stories),
            "facts": self._facts(),
            "problems": self._problems(),
            "statuses": _statuses(surveyed.summary.connections),
            "totals": _totals(surveyed, stories),
            "columns": COLUMN_KINDS,
            "rows": [_row(each) for each in self.ranked[:MOST_CONNECTIONS]],
            "connections": {
                number: self._connection(series, stories.get(number))
                for number, series in self.collector.series.items()
            },
            "findings": [_finding(each) for each in shown],
            "pauses": _pause_rows(surveyed),
            "comments": surveyed.comments,
            "spots": {
                number: (connection, *self.figures[connection].place(spot))
                for number, (connection, spot) in self.collector.spots.items()
            },
            "remarks": self._remarks(),
            "words": self.words.all(),
        }

    def _facts(self) -> list[tuple[str, str]]:
        summary = self.surveyed.summary
        first, last = summary.first_ns, summary.last_ns
        begun = datetime.datetime(1970, 1, 1) + datetime.timedelta(
            microseconds=(first or 0) // 1000
        )
        timed = first is not None
        return [
            ("Begins", f"{begun:%Y-%m-%d %H:%M:%S.%f} UTC" if timed else "no packets"),
            ("Duration", duration(last - first) if first is not None else "none"),
            ("Frames", f"{summary.frames:,}"),
            ("RDMA packets", f"{summary.packets:,}"),
            ("Connections", f"{len(summary.connections):,}"),
        ]

    def _headline(self, stories: dict[int, Story]) -> dict[str, Any] | None:
        """The worst connection: its status, its verdict, and how many others have which status."""
        if not self.ranked:
            return None
        worst = self.ranked[0]
        story = stories.get(worst.number)
        others = Counter(str(each.status) for each in self.ranked[1:])
        ends = " – ".join(end.address for end in worst.ends)
        about = f"Connection {worst.number}, {ends}"
        if others:
            counts = ", ".join(f"{count:,} {status}" for status, count in others.items())
            about += f". Other connections: {counts}"
        return {
            "badge": _badge(worst),
            "text": "" if story is None else sentence(story.verdict),
            "about": f"{about}.",
        }

    def _problems(self) -> list[str]:
        summary = self.surveyed.summary
        problems = summary.all_problems()
        if not self.surveyed.is_whole:
            problems.append("The capture is damaged: this page shows what precedes the damage.")
        if not summary.packets:
            problems.append(
                f"This capture has no RDMA packets: none of its {summary.frames:,} frames has a "
                "transport header of InfiniBand or RoCE."
            )
        return problems

    def _stories(self) -> dict[int, Story]:
        summary = self.surveyed.summary
        last_ns = max(summary.last_ns, self.surveyed.start_ns)
        frames = Frames(self.surveyed.name, self.surveyed.start_ns, last_ns, self.surveyed.files)
        stories = {}
        for record in self.recorder.records(summary.connections):
            number = record.connection.number
            if number in self.described:
                stories[number] = Story(record, frames)
        return stories

    def _connection(self, series: Series, story: Story | None) -> dict[str, Any]:
        connection = series.connection
        figure = self.figures[connection.number]
        left_out = [
            f"{count:,} more of “{_label(kind)}”" for kind, count in series.left_out().items()
        ]
        notes = []
        if story is None:
            notes.append(
                f"With more than {STORY_EVENTS:,} events this connection is not described in words."
            )
            notes += [f"{what}: {why}." for what, why in _not_observable(connection)]
        if left_out:
            notes.append(
                f"Of each kind the first {EVENTS} events are shown; left out are "
                f"{', '.join(left_out)}."
            )
        if series.is_thinned:
            notes.append(
                "Points of undisturbed traffic are thinned for the plots: at each time the lowest "
                "and the highest are kept. Events are not thinned."
            )
        return {
            "ends": [_end(connection, end) for end in (0, 1)],
            "badge": _badge(connection),
            "facts": _connection_facts(connection),
            "verdict": "" if story is None else sentence(story.verdict),
            "story": [] if story is None else _story_lines(story),
            "notes": notes,
            "events": [
                {
                    "kind": plotted.event.kind.value,
                    "label": _label(plotted.event.kind),
                    "number": plotted.event.number,
                    "time": (plotted.event.time_ns - self.surveyed.start_ns) / 1e9,
                    "way": _way(_sent_by(plotted.event)),
                    "text": _sentence(plotted.event),
                    "place": figure.place(plotted.spot),
                }
                for plotted in series.events
            ],
            "filter": _filter(connection),
            "figure": figure.to_json(),
        }

    def _remarks(self) -> list[str]:
        """What this page leaves out, and how it counts."""
        surveyed, found = self.surveyed, []
        if surveyed.files:
            begins = ", ".join(
                f"{os.path.basename(file.name)} at {file.first_number:,}" for file in surveyed.files
            )
            found.append(f"Frames are numbered through all files; {begins}.")
        connections = len(self.ranked)
        if connections > len(self.collector.series):
            found.append(
                f"Plots are shown for the {len(self.collector.series)} connections with the most "
                f"problems, of {connections:,}; --connections N shows more."
            )
        if connections > MOST_CONNECTIONS:
            found.append(
                f"The table has the {MOST_CONNECTIONS:,} connections with the most problems."
            )
        if len(surveyed.findings) > MOST_FINDINGS:
            found.append(
                f"{len(surveyed.findings) - MOST_FINDINGS:,} more findings are not shown; "
                "`ibwire check` lists all."
            )
        if surveyed.all_comments > len(surveyed.comments):
            more = surveyed.all_comments - len(surveyed.comments)
            found.append(f"{more:,} more comments are not shown.")
        return found


def _template(name: str) -> str:
    return files("ibwire.report").joinpath("templates", name).read_text(encoding="utf-8")


def _embedded(content: dict[str, Any]) -> str:
    """JSON that is safe in a script element with any text in it.

    With this escaping neither `</script>` nor `<!--` can occur; everything beyond ASCII, also
    invalid Unicode in file names, is escaped anyway.
    """
    text = json.dumps(content, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


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

_UNWRAPPED = 1 << 20

_LEVELS = {Status.OK: "ok", Status.RECOVERED: "minor"}
"""Colour of a status; the others are `failed` or `major`."""


def _badge(connection: Connection) -> dict[str, Any]:
    """The status of a connection with its colour, its meaning, and its place among the others."""
    status = connection.status.status
    return {
        "text": str(connection.status),
        "level": _LEVELS.get(status, "failed" if status.is_failure else "major"),
        "meaning": MEANINGS[status].means,
        "severity": status.severity,
    }


def _row(connection: Connection) -> dict[str, Any]:
    both = connection.directions
    latency = Histogram()
    for each in both:
        latency.merge(each.latency)
    first, last = span_of(connection)
    packets = sum(each.packets for each in both)
    retransmitted = sum(each.retransmitted for each in both)
    carried = sum(each.message_bytes for each in both)
    return {
        "status": _badge(connection),
        "number": connection.number,
        "a": _address(connection, 0),
        "b": _address(connection, 1),
        "service": connection.service.name,
        "packets": packets,
        "goodput": 8e9 * carried / (last - first) if last > first else None,
        "retransmitted": retransmitted,
        "share": retransmitted / packets if packets else 0,
        "lost": sum(each.lost for each in both),
        "reordered": sum(each.reordered for each in both),
        "duplicates": sum(each.duplicates for each in both),
        "naks": sum(sum(each.naks.values()) for each in both),
        "rnr": sum(each.rnr_naks for each in both),
        "timeouts": sum(each.timeouts for each in both),
        "damaged": sum(each.damaged for each in both),
        "restarts": sum(each.restarts for each in both),
        "ce": sum(each.marked for each in both),
        "cnps": sum(each.cnps for each in both),
        "p50": latency.percentile(50),
        "p99": latency.percentile(99),
    }


def _statuses(connections: Sequence[Connection]) -> dict[str, int]:
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


def _totals(surveyed: Surveyed, stories: Mapping[int, Story]) -> list[tuple[str, str, str]]:
    """Errors of all connections together: name, count, and role of the colour.

    A count that may be too low is marked as in the table of `ibwire flows`.
    """
    after = sum(
        incident.reasons[why]
        for story in stories.values()
        for incident in story.incidents
        for why in _AFTER
    )
    rows = [_row(each) for each in surveyed.summary.connections]
    ways = [Row(each, way) for each in surveyed.summary.connections for way in (0, 1)]
    unsure = {name for name in _UNSURE.values() if any(is_unsure(way, name) for way in ways)}

    def total(key: str, more: int = 0) -> str:
        return marked(more + sum(row[key] for row in rows), _UNSURE.get(key) in unsure)

    paused = sum(
        lane.pauses for sender in surveyed.pauses.senders.values() for lane in sender.lanes.values()
    )
    return [
        ("lost before this point", total("lost"), "lost"),
        ("missing after it", marked(after, after > 0 or "lost_packets" in unsure), "lost"),
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
    return f" ({', '.join(f'{total:,} {_way(way)}' for way, total in enumerate(each))})"


def _address(connection: Connection, end: int) -> str:
    address, qpn = connection.ends[end]
    return f"{address} QP {'?' if qpn is None else qpn}"


def _sent_by(event: FlowEvent) -> int:
    """The end that sent what the event is about: a NAK counts for the requests it refuses."""
    is_nak = event.kind in (FlowEventKind.NAK, FlowEventKind.RNR_NAK)
    return 1 - event.direction if is_nak else event.direction


def _way(direction: int) -> str:
    return f"{ENDS[direction]} → {ENDS[1 - direction]}"


def _end(connection: Connection, end: int) -> dict[str, str]:
    counts = connection.directions[end]
    address, qpn = connection.ends[end]
    verbs = ", ".join(f"{number:,} {verb}" for verb, number in counts.messages.items())
    payload = count(counts.payload_bytes, "byte")
    return {
        "name": ENDS[end],
        "address": address,
        "qpn": "not seen" if qpn is None else f"{qpn} (0x{qpn:06x})",
        "sent": f"{count(counts.packets, 'packet')}, {payload} of payload",
        "messages": verbs.replace("RDMA_", "").replace("_", " ") or "none",
    }


def _connection_facts(connection: Connection) -> list[tuple[str, str]]:
    first, last = span_of(connection)
    return [
        ("Service", connection.service.name),
        ("Path MTU", f"{connection.mtu:,} bytes" if connection.mtu else "not seen"),
        ("Lasts", duration(last - first)),
        ("Directions paired by", PAIRINGS[connection.pairing]),
    ]


def _not_observable(connection: Connection) -> Iterator[tuple[str, str]]:
    """Unreliable counts, with reasons."""
    for direction in (0, 1):
        if not connection.directions[direction].packets:
            continue
        reasons: dict[str, list[str]] = {}
        for name, reason in connection.not_observable(direction).items():
            reasons.setdefault(reason, []).append(name.replace("_", " "))
        for reason, names in reasons.items():
            yield f"Cannot be counted in this capture {_way(direction)}: {', '.join(names)}", reason


def _filter(connection: Connection) -> str:
    """Display filter of Wireshark for the connection's packets."""
    queue_pairs = [end.qpn for end in connection.ends if end.qpn is not None]
    wanted = " or ".join(f"infiniband.bth.destqp == 0x{qpn:06x}" for qpn in queue_pairs)
    addresses = [end.address for end in connection.ends]
    if all("." in address and ":" not in address for address in addresses):
        hosts = " and ".join(f"ip.addr == {address}" for address in addresses)
        return f"{hosts} and ({wanted})"
    return wanted


def _story_lines(story: Story) -> list[dict[str, str]]:
    """Lines of a description with their styles; the verdict is separate.

    What happened at some time has `time`, and `packets` where it names them.
    """
    lines = story.lines(_UNWRAPPED)
    return [
        {"style": line.style, **_timed(line.text)}
        for line in lines
        if line.text and line.style != "verdict"
    ]


def _timed(text: str) -> dict[str, str]:
    found = _TIMED.fullmatch(text)
    return {"text": text} if found is None else found.groupdict("")


_TIMED = re.compile(
    r"\s*(?P<time>\d+\.\d{6}(?:-\d+\.\d{6})?)\s+(?P<packets>#\d+(?:-\d+)?)?\s+(?P<text>.*)"
)


def _label(kind: FlowEventKind) -> str:
    return MARKS[kind].label if kind in MARKS else _LABELS[kind]


_LABELS = {
    FlowEventKind.RETRANSMISSION: "retransmission",
    FlowEventKind.ECN_CE: "CE mark",
    FlowEventKind.CNP: "CNP",
}


def _sentence(event: FlowEvent) -> str:
    _, text = next(iter(remarks.of_event(event)))
    return text.removeprefix(f"connection {event.connection}: ")


def _finding(finding: Finding) -> dict[str, Any]:
    place, rule = finding.location, finding.rule
    qpn = "" if place.dst_qpn is None else f" QP {place.dst_qpn}"
    where = f"{place.src} → {place.dst}{qpn}" if place.src else "elsewhere"
    return {
        "severity": finding.severity.word,
        "rule": rule.id,
        "text": finding.text,
        "law": rule.sentence,
        "source": "; a habit of ".join(filter(None, (rule.section, ", ".join(rule.habits)))),
        "connection": place.connection,
        "where": where,
        "count": finding.count,
        "numbers": finding.numbers,
    }


_PORT = "whole port"

_SHORT = {f"priority {number}": f"PFC {number}" for number in range(WHOLE_PORT)} | {
    _PORT: "PAUSE",
}
"""Name of a lane beside a plot."""


def _lanes(pauses: Pauses) -> Iterator[tuple[str, str, Lane]]:
    """Sender, priority in words, and pauses, longest first."""
    lanes = [
        (mac.to_bytes(8).hex(":")[6:], priority, lane)
        for mac, sender in pauses.senders.items()
        for priority, lane in sender.lanes.items()
    ]
    for mac, priority, lane in sorted(lanes, key=lambda each: (-each[2].paused_ns, each[:2])):
        yield mac, _PORT if priority == WHOLE_PORT else f"priority {priority}", lane


def _pauses_of(pauses: Pauses) -> list[Pause]:
    lanes = [lane for lane in _lanes(pauses) if lane[2].paused_ns][:MOST_LANES]
    return [
        Pause(f"{_SHORT.get(what, what)} …{mac[-8:]}", f"{what} held by {mac}", lane.longest)
        for mac, what, lane in lanes
    ]


def _pause_rows(surveyed: Surveyed) -> dict[str, Any]:
    pauses = surveyed.pauses
    return {
        "remark": ""
        if pauses.is_exact
        else "The speed of the link is not known, so times are those of a 10 Gb/s link, and upper "
        "bounds for a faster one; --link-rate sets it.",
        "rows": [
            {
                "sender": mac,
                "what": what,
                "frames": lane.frames,
                "pauses": lane.pauses,
                "paused": lane.paused_ns,
                "longest": lane.longest_ns,
                "storms": lane.storms,
                "number": lane.longest[0].number if lane.longest else 0,
            }
            for mac, what, lane in _lanes(pauses)
        ][:MOST_FINDINGS],
    }
