"""A capture that is read again follows only the connections that are wanted."""

from __future__ import annotations

from pathlib import Path

import pytest

from examples import sampled
from ibwire.connections.analysis import Analysis
from ibwire.connections.connection import Connection
from ibwire.connections.summary import Summary
from ibwire.diagnosis.record import Recorder
from ibwire.dissect import read

CAPTURES = Path(__file__).parents[2] / "captures"


def analysed(name: str, recorder: Recorder | None = None, known: Summary | None = None) -> Summary:
    analysis = Analysis(recorder, known=None if known is None else known.connections)
    for columns in read(CAPTURES / name):
        analysis.take(columns)
    return analysis.finish()


@pytest.mark.parametrize("name", sampled(["srq-pingpong.pcap", "cm-ucmatose.pcap"], 2))
def test_wanted_connections_are_the_same_and_others_are_not_followed(name: str) -> None:
    known = analysed(name)
    for wanted in known.connections:
        whole, short = Recorder({wanted.number}), Recorder({wanted.number})
        all_of_it, part = analysed(name, whole), analysed(name, short, known)

        (one,), (other,) = short.records(part.connections), whole.records(all_of_it.connections)
        assert repr((one.line, one.events)) == repr((other.line, other.events))
        for mine, same in zip(part.connections, all_of_it.connections, strict=True):
            assert mine.ends == same.ends
            if mine.number == wanted.number:
                assert _told(mine) == _told(same)
            else:
                assert not mine.has_packets


def _told(connection: Connection) -> list[dict[str, object]]:
    return [connection.to_json(way) for way in (0, 1)]
