"""`flows`, `explain`, `query`, `report` and `check` count and judge the same, on every capture.

What `flows` shows are counts of `Connection`. `explain` and the table `events` are made of events:
each count is also the sum of the events of its kind.
"""

import json
import re
from collections import Counter
from functools import cache
from pathlib import Path

import pytest
from click.testing import CliRunner

from diagnosis.test_story import Everything
from each_case import each_case
from examples import sampled
from ibwire.cli import main
from ibwire.connections.analysis import Analysis
from ibwire.connections.connection import Connection
from ibwire.connections.counts import DirectionCounts
from ibwire.connections.events import FlowEvent, FlowEventKind
from ibwire.connections.status import Status
from ibwire.diagnosis.record import Record, Recorder
from ibwire.diagnosis.story import Frames, Story
from ibwire.dissect import read
from ibwire.query.database import Database
from ibwire.query.export import CaptureTables
from report.test_html import content

CAPTURES = Path(__file__).parents[2] / "captures"
NAMES = sorted(path.name for path in CAPTURES.glob("*.pcap*"))

TIMER = re.compile("timer expire|timer had expired")
"""In a step of a story, of a retransmission that a timer began."""


@cache
def connections_of(name: str) -> list[Connection]:
    """As `flows` has them: many packets at once."""
    analysis = Analysis()
    for columns in read(CAPTURES / name):
        analysis.take(columns)
    return analysis.finish().connections


@cache
def records_of(name: str) -> list[Record]:
    """As `explain` has them: packet by packet."""
    recorder = Recorder(Everything())
    analysis = Analysis(recorder)
    for columns in read(CAPTURES / name):
        analysis.take(columns)
    return recorder.records(analysis.finish().connections)


def counted(counts: DirectionCounts) -> dict[FlowEventKind, int]:
    return {
        FlowEventKind.LOST: counts.lost,
        FlowEventKind.DUPLICATE: counts.duplicates,
        FlowEventKind.REORDERED: counts.reordered,
        FlowEventKind.ICRC_BAD: counts.damaged,
        FlowEventKind.NAK: sum(counts.naks.values()),
        FlowEventKind.RNR_NAK: counts.rnr_naks,
        FlowEventKind.ECN_CE: counts.marked,
        FlowEventKind.RESTART: counts.restarts,
    }


def retransmitted(events: list[FlowEvent]) -> int:
    """Retransmitted requests; those that came late have no event of their own."""
    return sum(
        event.count
        for event in events
        if event.kind is FlowEventKind.RETRANSMISSION
        or (event.kind is FlowEventKind.REORDERED and event.cause is not None)
    )


@each_case("name", sampled(NAMES, 3))
def test_each_count_is_the_sum_of_its_events(name: str) -> None:
    found = connections_of(name)
    records = {record.connection.number: record for record in records_of(name)}

    assert sorted(records) == [connection.number for connection in found]
    for connection in found:
        for direction, counts in enumerate(connection.directions):
            events = [e for e in records[connection.number].events if e.direction == direction]
            sums = Counter[FlowEventKind]()
            for event in events:
                sums[event.kind] += event.count
            place = name, connection.number, direction
            assert {kind: sums[kind] for kind in counted(counts)} == counted(counts), place
            runs = [event for event in events if event.kind is FlowEventKind.RETRANSMISSION]
            assert len(runs) == counts.retransmissions, place
            assert sum(event.is_timeout for event in runs) == counts.timeouts, place
            assert retransmitted(events) <= counts.retransmitted, place
            other = records[connection.number].connection.directions[1 - direction]
            if not any(other.messages.values()):  # then it sends no responses with data
                assert retransmitted(events) == counts.retransmitted, place


@each_case("name", NAMES)
def test_the_story_counts_what_its_events_count(name: str) -> None:
    for record in records_of(name):
        story = Story(record, Frames(name, 0, 1 << 62), True)
        for end, counts in enumerate(record.connection.directions):
            mine = [event for event in record.events if event.direction == end]
            incidents = [each for each in story.incidents if each.incident.end == end]
            place = name, record.connection.number, end
            assert sum(each.retransmitted for each in incidents) == retransmitted(mine), place
            timers = [s for each in incidents for s in each.steps if TIMER.search(s.text)]
            assert len(timers) == counts.timeouts, place
            assert sum(each.rnr_naks for each in incidents) == counts.rnr_naks, place
        if record.connection.status.status.is_failure:
            continue
        said = re.search(r"cost (?P<n>[\d,]+) packets? retransmitted", story.verdict)
        if said is not None:
            assert int(said["n"].replace(",", "")) == retransmitted(record.events), name


QUICK = ("chaos.b.pcap", "retry-exceeded.pcap", "rnr-exceeded.pcap")


@pytest.mark.parametrize("names", [QUICK, pytest.param(tuple(NAMES), marks=pytest.mark.slow)])
def test_sql_counts_what_flows_counts(names: tuple[str, ...], tmp_path: Path) -> None:
    paths = [str(CAPTURES / name) for name in names]
    sql = """
    SELECT c.file, c.connection, c.direction, any_value(c.lost_packets) AS lost,
      any_value(c.timeouts) AS timeouts, any_value(c.rnr_naks) AS rnr_naks,
      coalesce(sum(e.count) FILTER (e.kind = 'lost'), 0) AS lost_events,
      coalesce(sum(e.count) FILTER (e.kind = 'rnr_nak'), 0) AS rnr_events,
      count(*) FILTER (e.is_timeout) AS timeout_events
    FROM connections c LEFT JOIN events e USING (file, connection, direction)
    GROUP BY ALL ORDER BY ALL
    """
    with Database([CaptureTables(path) for path in paths], [], str(tmp_path)) as database:
        result = database.run(sql)
        assert result is not None
        rows = [row for batch in result for row in batch.to_pylist()]

        result = database.run(
            "SELECT file, connection, incident, cause, count, is_open FROM incidents"
        )
        assert result is not None
        incidents = [tuple(row.values()) for batch in result for row in batch.to_pylist()]

    described = [
        (
            str(CAPTURES / name),
            record.connection.number,
            number,
            cause and cause.name,
            cause and cause.count,
            each.is_open,
        )
        for name in names
        for record in records_of(name)
        for number, each in enumerate(Story(record, Frames(name, 0, 1 << 62), True).incidents, 1)
        for cause in each.causes or [None]
    ]
    assert sorted(incidents, key=str) == sorted(described, key=str)
    assert len({row["file"] for row in rows}) > len(names) / 2
    for row in rows:
        assert row["lost"] == row["lost_events"], row
        assert row["rnr_naks"] == row["rnr_events"], row
        assert row["timeouts"] == row["timeout_events"], row
        (connection,) = [
            each
            for each in connections_of(Path(row["file"]).name)
            if each.number == row["connection"]
        ]
        counts = connection.directions[row["direction"]]
        assert (counts.lost, counts.timeouts, counts.rnr_naks) == (
            row["lost"],
            row["timeouts"],
            row["rnr_naks"],
        )


ROW = {
    "packets": lambda counts: counts.packets,
    "retransmitted": lambda counts: counts.retransmitted,
    "lost": lambda counts: counts.lost,
    "reordered": lambda counts: counts.reordered,
    "duplicates": lambda counts: counts.duplicates,
    "naks": lambda counts: sum(counts.naks.values()),
    "rnr": lambda counts: counts.rnr_naks,
    "timeouts": lambda counts: counts.timeouts,
    "damaged": lambda counts: counts.damaged,
    "restarts": lambda counts: counts.restarts,
    "ce": lambda counts: counts.marked,
    "cnps": lambda counts: counts.cnps,
}
"""Columns of `report`, which has one row a connection: each is the sum of both directions."""


def agrees_with_flows(name: str) -> None:
    """`report` and `check` count and judge what `flows` does."""
    found = {each.number: each for each in connections_of(name)}
    page = content(CAPTURES / name)
    assert {row["number"]: row["status"]["text"] for row in page["rows"]} == {
        number: str(connection.status) for number, connection in found.items()
    }
    for row in page["rows"]:
        both = found[row["number"]].directions
        for key, count in ROW.items():
            assert row[key] == sum(map(count, both)), (name, row["number"], key)
    for number, shown in page["connections"].items():
        assert shown["badge"]["text"] == str(found[int(number)].status)
    for record in records_of(name):
        shown = page["connections"].get(str(record.connection.number))
        if shown is not None:
            story = Story(record, Frames(name, 0, 1 << 62), True)
            assert shown["verdict"] == story.verdict, (name, record.connection.number)

    lines = CliRunner().invoke(main, ["check", "--json", str(CAPTURES / name)]).stdout.splitlines()
    notes = [each for each in map(json.loads, lines) if each["rule"] == "status"]
    bad = {
        number: str(connection.status)
        for number, connection in found.items()
        if connection.status.status.severity >= Status.UNRESOLVED.severity
    }
    assert {each["connection"]: each["text"].split(":")[0] for each in notes} == bad


@pytest.mark.parametrize("name", QUICK)
def test_report_and_check_agree_with_flows(name: str) -> None:
    agrees_with_flows(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in NAMES if name not in QUICK])
def test_report_and_check_agree_with_flows_on_every_capture(name: str) -> None:
    agrees_with_flows(name)
