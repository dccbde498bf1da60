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
    naks, other_counts = 0, (0, 0, 0, 0, 0)
    if not connection.is_regular:
        one, other = connection.directions
        every = (*one.naks.items(), *other.naks.items())
        naks = sum(count for name, count in every if name != SEQUENCE_NAK)
        other_counts = (
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
        )
    return (
        connection.status.status.severity,
        naks,
        connection.open_messages,
        *other_counts,
        connection.is_reliable,
        connection.packets,
        -connection.number,
    )
