"""A connection in one line, for the list of those that are not described."""

from __future__ import annotations

from ibwire.connections.connection import Connection
from ibwire.diagnosis.wording import count


def summary(connection: Connection) -> str:
    """Number, status, ends, and what went wrong."""
    ends = " - ".join(
        f"{end.address} QP {'?' if end.qpn is None else end.qpn}" for end in connection.ends
    )
    both = connection.directions
    parts = [count(sum(each.packets for each in both), "packet")]
    if not connection.has_packets:
        parts = [exchange.names() for exchange in connection.exchanges]
    for number, noun, nouns in (
        (sum(each.retransmitted for each in both), "packet retransmitted", "packets retransmitted"),
        (sum(each.lost for each in both), "packet lost", "packets lost"),
        (sum(each.rnr_naks for each in both), "RNR NAK", "RNR NAKs"),
    ):
        if number:
            parts.append(count(number, noun, nouns))
    status = str(connection.status)
    text = ", ".join(parts)
    service = connection.service_name or "?"
    return f"{connection.number:>3}  {status:14}  {service}  {ends}  {text}"
