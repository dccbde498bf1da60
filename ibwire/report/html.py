"""A capture as one HTML page: errors, connections, and plots over time.

    survey = Survey(name)                 # first pass, of `page_survey`: counts everything
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
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from importlib.resources import files
from typing import Any

from ibwire.connections.analysis import Analysis
from ibwire.connections.connection import Connection
from ibwire.connections.events import FlowEvent, Message
from ibwire.connections.packets import TransportPacket
from ibwire.connections.ranking import worst_first
from ibwire.connections.runs import CompletedMessages, Run
from ibwire.connections.states import PacketStatus
from ibwire.connections.tracker import RequestTracker
from ibwire.diagnosis.record import Recorder
from ibwire.diagnosis.story import Frames, Story
from ibwire.diagnosis.wording import duration, sentence
from ibwire.dissect import Columns
from ibwire.report.figures import Figure, Words, plotly_script
from ibwire.report.page_parts import (
    connection_facts,
    display_filter,
    end_of,
    finding_row,
    label_of,
    not_observable,
    sent_by,
    sentence_of,
    story_lines,
)
from ibwire.report.page_pauses import pause_rows, pauses_of
from ibwire.report.page_rows import COLUMN_KINDS, badge, row_of, statuses, totals, way_of
from ibwire.report.page_survey import Surveyed
from ibwire.report.series import EVENTS, Collector, Series

MOST_CONNECTIONS = 1000
"""Rows of the table of connections."""

MOST_FINDINGS = 300

STORY_EVENTS = 20_000
"""Most events of a connection that gets a description, which is kept in memory."""

COLUMNS = 8400
"""Columns of all figures together; bounds the size of the page."""

WIDEST = 700
"""Columns of one figure, about the width of a screen."""


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
        self._analysis = Analysis(self, known=surveyed.summary.connections)

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

    def wants(self, connection: int) -> bool:
        """Whether a connection is among the worst, by its number."""
        return self._collector.wants(connection)

    def takes(self, run: Run) -> int:
        """How many packets of a run belong to no incident."""
        return self._recorder.takes(run)

    def run(self, run: Run) -> None:
        """Regular packets, before the trackers take them."""
        self._collector.run(run)
        self._recorder.run(run)

    def completed(self, messages: CompletedMessages) -> None:
        """Messages that began and ended in a run."""
        self._collector.completed(messages)
        self._recorder.completed(messages)

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
    return filled("page", content)


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
        pauses = pauses_of(surveyed.pauses)
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
            "statuses": statuses(surveyed.summary.connections),
            "totals": totals(surveyed, stories),
            "columns": COLUMN_KINDS,
            "rows": [row_of(each) for each in self.ranked[:MOST_CONNECTIONS]],
            "connections": {
                number: self._connection(series, stories.get(number))
                for number, series in self.collector.series.items()
            },
            "findings": [finding_row(each) for each in shown],
            "pauses": pause_rows(surveyed),
            "comments": surveyed.comments,
            "spots": {
                number: (connection, *self.figures[connection].place(spot))
                for number, (connection, spot) in sorted(self.collector.spots.items())
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
            "badge": badge(worst),
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
            problems += [f"{each}." for each in summary.why_none()]
        return problems

    def _stories(self) -> dict[int, Story]:
        summary = self.surveyed.summary
        last_ns = max(summary.last_ns, self.surveyed.start_ns)
        surveyed = self.surveyed
        frames = Frames(
            surveyed.name, surveyed.start_ns, last_ns, surveyed.files, bool(summary.copies)
        )
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
            f"{count:,} more of “{label_of(kind)}”" for kind, count in series.left_out().items()
        ]
        notes = []
        if story is None:
            notes.append(
                f"With more than {STORY_EVENTS:,} events this connection is not described in words."
            )
            notes += [f"{what}: {why}." for what, why in not_observable(connection)]
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
            "ends": [end_of(connection, end) for end in (0, 1)],
            "badge": badge(connection),
            "facts": connection_facts(connection),
            "verdict": "" if story is None else sentence(story.verdict),
            "story": [] if story is None else story_lines(story),
            "notes": notes,
            "events": [
                {
                    "kind": plotted.event.kind.value,
                    "label": label_of(plotted.event.kind),
                    "number": plotted.event.number,
                    "time": (plotted.event.time_ns - self.surveyed.start_ns) / 1e9,
                    "way": way_of(sent_by(plotted.event)),
                    "text": sentence_of(plotted.event),
                    "place": figure.place(plotted.spot),
                }
                for plotted in series.events
            ],
            "filter": display_filter(connection),
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


def filled(name: str, content: dict[str, Any]) -> Iterator[str]:
    """A page of the templates `name`.html and `name`.js with its data, in pieces of text."""
    parts = {
        "STYLE": template("page.css"),
        "PLOTLY": plotly_script(),
        "DATA": embedded(content),
        "SCRIPT": template("common.js") + template(f"{name}.js"),
    }
    rest = template(f"{name}.html")
    for part, text in parts.items():
        before, rest = rest.split(f"@{part}@")
        yield before
        yield text
    yield rest


def template(name: str) -> str:
    """A file of the pages."""
    return files("ibwire.report").joinpath("templates", name).read_text(encoding="utf-8")


def embedded(content: dict[str, Any]) -> str:
    """JSON that is safe in a script element with any text in it.

    With this escaping neither `</script>` nor `<!--` can occur; everything beyond ASCII, also
    invalid Unicode in file names, is escaped anyway.
    """
    text = json.dumps(content, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
