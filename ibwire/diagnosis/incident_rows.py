"""Incidents as rows: the table `incidents` of SQL and Parquet, and the JSON of `explain`."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator

from ibwire.connections.analysis import Analysis
from ibwire.connections.tables import INCIDENTS
from ibwire.diagnosis.causes import FoundCause
from ibwire.diagnosis.incident_text import IncidentText
from ibwire.diagnosis.record import Recorder
from ibwire.diagnosis.story import Frames, Story
from ibwire.dissect import Columns


def incident_rows(
    source: str, capture: Iterable[Columns], wanted: Container[int]
) -> Iterator[tuple[object, ...]]:
    """Rows of the table `incidents`: one for each cause of an incident, or one without a cause.

    source: what stands for the capture. wanted: numbers of the connections to follow. Memory
    grows with the number of their events, not with the capture.
    """
    recorder = Recorder(wanted)
    analysis = Analysis(recorder)
    start_ns, end_ns = 0, 0
    for columns in capture:
        times = columns["frame.time_ns"]
        if len(times):
            start_ns, end_ns = start_ns or int(times[0]), int(times[-1])
        analysis.take(columns)
    for record in recorder.records(analysis.finish().connections):
        for incident in incidents_of(Story(record, Frames(source, start_ns, end_ns), every=True)):
            causes = incident.pop("causes")
            assert isinstance(causes, list)
            for cause in causes or [dict.fromkeys(("name", "count", "evidence"))]:
                values = {**incident, **cause, "file": source, "cause": cause["name"]}
                yield tuple(values.get(name) for name in INCIDENTS.names)


def incidents_of(story: Story) -> list[dict[str, object]]:
    """The incidents of a connection as objects for JSON, in the order of `explain`."""
    return [_values(each, number) for number, each in enumerate(story.incidents, 1)]


def _values(described: IncidentText, number: int) -> dict[str, object]:
    incident = described.incident
    return {
        "connection": incident.connection,
        "direction": incident.end,
        "incident": number,
        "outcome": described.end,
        "is_open": described.is_open,
        "first_number": incident.first.number,
        "last_number": incident.last.number,
        "first_ns": incident.first.time_ns,
        "last_ns": incident.last.time_ns,
        "stall_ns": described.stall_ns,
        "retransmitted_packets": described.retransmitted,
        "title": described.title,
        "causes": [_of_cause(cause) for cause in described.causes],
    }


def _of_cause(cause: FoundCause) -> dict[str, object]:
    return {
        "name": cause.name,
        "possible": list(cause.possible),
        "count": cause.count,
        "frames": cause.frames,
        "evidence": cause.evidence,
    }
