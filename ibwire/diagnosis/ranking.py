"""Ranks the connections of a capture by how much went wrong with each."""

from __future__ import annotations

from ibwire.connections.connection import Connection
from ibwire.diagnosis.wording import count


def trouble(connection: Connection) -> tuple[int, int, int]:
    """How much went wrong with a connection: counts, more is worse."""
    both = connection.directions
    fatal = sum(
        number
        for each in both
        for name, number in each.naks.items()
        if name != "psn_sequence_error"
    )
    grave = sum(
        each.retransmitted + each.lost + each.rnr_naks + each.timeouts + each.damaged
        for each in both
    )
    small = sum(
        each.reordered + each.duplicates + each.marked + each.cnps + each.restarts for each in both
    )
    return fatal, grave, small


def interest(connection: Connection) -> tuple[tuple[int, int, int], bool, int]:
    """The key to rank by: problems first, then the number of packets."""
    packets = sum(each.packets for each in connection.directions)
    return trouble(connection), connection.is_reliable, packets


def summary(connection: Connection) -> str:
    """A connection in one line."""
    ends = " - ".join(
        f"{end.address} QP {'?' if end.qpn is None else end.qpn}" for end in connection.ends
    )
    fatal, grave, small = trouble(connection)
    both = connection.directions
    parts = [count(sum(each.packets for each in both), "packet")]
    for number, noun in (
        (fatal, "fatal NAK"),
        (sum(each.retransmitted for each in both), "packet retransmitted"),
        (sum(each.lost for each in both), "packet lost"),
        (sum(each.rnr_naks for each in both), "RNR NAK"),
    ):
        if number:
            head, _, tail = noun.partition(" ")
            parts.append(count(number, noun, f"{head}s {tail}" if "packet" in noun else f"{noun}s"))
    if not grave and not fatal:
        parts.append(count(small, "small disturbance") if small else "nothing went wrong")
    return f"{connection.number:>3}  {connection.service.name}  {ends}  {', '.join(parts)}"
