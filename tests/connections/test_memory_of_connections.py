"""The memory of a connection that has nothing to remember."""

import tracemalloc

from connections.talk import Talk
from emulated_traffic import feed
from ibwire.connections import Connection, End
from ibwire.connections.analysis import Analysis
from ibwire.connections.connection_tracker import ConnectionTracker
from ibwire_layers.opcodes import Service

COUNT = 500
MOST_COUNTED = 1_500
"""Bytes of a connection of four packets. In Python 3.11 it takes 1.4 kB, and 3.5 kB if it had the
objects of a connection with a tracker."""
MOST = 5_700
"""Bytes. In Python 3.11 a connection takes 5.2 kB, and 6.3 kB where each had containers for what
was lost before a retransmission."""


def test_a_quiet_connection_has_no_containers_for_retransmissions() -> None:
    ends = End("10.0.0.1", 1), End("10.0.0.2", 2)
    tracemalloc.start()
    try:
        kept = [ConnectionTracker(Connection(each, ends, Service.RC)) for each in range(COUNT)]
        for each in kept:
            each.finish(0)
        size, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert size / COUNT < MOST


def test_connections_without_a_tracker_keep_their_counts_in_few_bytes() -> None:
    talks = [Talk(number=number) for number in range(COUNT)]
    for talk in talks:
        talk.sends(0, 2)
    frames = [frame for talk in talks for frame in talk.frames]
    feed(Analysis(), frames).finish()  # imports what is needed
    analysis = feed(Analysis(), frames)
    tracemalloc.start()
    try:
        connections = analysis.finish().connections
        size, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert len(connections) == COUNT
    assert size / COUNT < MOST_COUNTED
