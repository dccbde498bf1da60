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
    both = connection.directions
    return (
        connection.status.status.severity,
        sum(count for d in both for name, count in d.naks.items() if name != SEQUENCE_NAK),
        sum(each.open_messages for each in connection.endings),
        sum(d.timeouts + d.rnr_naks + d.restarts for d in both),
        sum(d.retransmitted for d in both),
        sum(d.lost + d.damaged for d in both),
        sum(d.duplicates + d.reordered for d in both),
        sum(d.marked + d.cnps for d in both),
        connection.is_reliable,
        sum(d.packets for d in both),
        -connection.number,
    )
