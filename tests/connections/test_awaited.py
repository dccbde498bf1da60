"""A second reading begins each connection at the pairing at which the first one began it."""

from __future__ import annotations

from pathlib import Path

import pytest

from ibwire.connections.analysis import Analysis
from ibwire.connections.connection import Connection
from ibwire.diagnosis.record import Recorder
from ibwire.dissect import read

CAPTURES = Path(__file__).parents[2] / "captures"


# A flow of UC alone waits until it has many packets; a second reading could begin it at once.
@pytest.mark.parametrize("name", ["uc-write-bw.pcap", "probe-odd-frames.pcap"])
def test_connections_begin_at_the_same_pairing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ibwire.connections.analysis.SETTLE_EVERY", 8)
    first = _connections(name)
    again = _connections(name, first)
    assert [each.settled for each in again] == [each.settled for each in first]


def _connections(name: str, known: list[Connection] | None = None) -> list[Connection]:
    wanted = None if known is None else Recorder({each.number for each in known})
    analysis = Analysis(wanted, known=known)
    for columns in read(CAPTURES / name):
        analysis.take(columns)
    return list(analysis.finish().connections)
