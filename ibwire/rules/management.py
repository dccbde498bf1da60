"""Connection management: requests for connections that lead to none."""

from __future__ import annotations

from collections.abc import Iterator

from ibwire.connections.connection import Connection
from ibwire.connections.status import Status
from ibwire.rules.findings import Rule, Severity

REJECTED = Rule(
    "cm.rejected",
    "A request for a connection is accepted.",
    Severity.NOTE,
    "IBA 12.6.7",
    "docs/reference/cm.md#reject-reasons; cm-reject",
)
UNANSWERED = Rule(
    "cm.unanswered",
    "A request for a connection gets a response before it is retransmitted.",
    Severity.NOTE,
    "IBA 12.9.8.6",
    "docs/reference/cm.md#resending",
)

RULES: tuple[Rule, ...] = (REJECTED, UNANSWERED)


def found(connection: Connection) -> Iterator[tuple[Rule, int, list[int], str]]:
    """What its exchanges show: rule, direction, packets and words."""
    if connection.exchange_status is None:
        return
    for exchange in connection.exchanges:
        target = exchange.target() or "a connection"
        if connection.status.status is Status.CM_REJECTED:
            numbers = [each.number for each in exchange.messages if each.name in _REJECTIONS]
            reason = exchange.reason.replace("-", " ")
            yield REJECTED, exchange.rejected_by, numbers, f"{target} rejected: {reason}"
        elif connection.status.status is Status.UNANSWERED:
            numbers = [each.number for each in exchange.messages]
            yield UNANSWERED, 0, numbers, f"request for {target}: no response in the capture"


_REJECTIONS = ("REJ", "SIDR_REP")
