"""Notes among the findings about connections that have failed, or had trouble at the end."""

from __future__ import annotations

from collections.abc import Iterable

from ibwire.connections.connection import Connection
from ibwire.connections.ranking import worst_first
from ibwire.connections.status import MEANINGS, Status
from ibwire.rules.findings import Finding, Location, Rule, Severity

STATUS = "status"
"""Name of the rule, which is in no family."""

STATUS_RULE = Rule(
    STATUS,
    "Every message is answered, and no connection ends in an error.",
    Severity.NOTE,
    section="docs/flows.md#status",
    source="",
)
"""No rule about a packet: it stands for the statuses of connections among the findings."""


def status_notes(name: str, connections: Iterable[Connection]) -> list[Finding]:
    """A note for each connection that has failed, or had trouble when the capture ended.

    name: of the capture.
    """
    least, found = Status.UNRESOLVED.severity, []
    noted = [each for each in connections if each.status.status.severity >= least]
    for connection in worst_first(noted):
        status = connection.status
        near, far = connection.ends
        place = Location(near.address, far.address, far.qpn, connection.number, 0)
        text = f"{status}: {MEANINGS[status.status].means.rstrip('.')}"
        found.append(Finding(STATUS_RULE, Severity.NOTE, place, text, source=name))
    return found
