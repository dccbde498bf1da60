"""The order in which connections deserve attention: by status, then by how much went wrong."""

from __future__ import annotations

from collections.abc import Iterable

from ibwire.connections.connection import Connection
from ibwire.connections.status import SEQUENCE_NAK


def worst_first(connections: Iterable[Connection]) -> list[Connection]:
    """The connections, those with the gravest trouble first."""
    return sorted(connections, key=gravity, reverse=True)


def gravity(connection: Connection) -> tuple[int, ...]:
    """How bad it is: the status first, then counts, then the amount of traffic."""
    one, other = connection.directions
    ending, other_ending = connection.endings
    naks = 0
    if one.naks or other.naks:
        every = (*one.naks.items(), *other.naks.items())
        naks = sum(count for name, count in every if name != SEQUENCE_NAK)
    return (
        connection.status.status.severity,
        naks,
        ending.open_messages + other_ending.open_messages,
        one.timeouts
        + one.rnr_naks
        + one.restarts
        + other.timeouts
        + other.rnr_naks
        + other.restarts,
        one.retransmitted + other.retransmitted,
        one.lost + one.damaged + other.lost + other.damaged,
        one.duplicates + one.reordered + other.duplicates + other.reordered,
        one.marked + one.cnps + other.marked + other.cnps,
        connection.is_reliable,
        one.packets + other.packets,
        -connection.number,
    )
