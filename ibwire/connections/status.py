"""The status of a connection: what became of it, in one word.

Everything that ibwire prints about how a connection ended reads this: the order and the first
column of `flows`, JSON, SQL, `--where` and `--fail-on`, the verdict of `explain`, the headline of
`report`, and the notes of `check`. So they cannot contradict each other.

The status follows from counts and from how the requests of both ends stood when the capture
ended (`Ending`). It says what the capture shows: of a failure after its last frame it cannot know.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, Protocol

from ibwire.connections.counts import DirectionCounts
from ibwire.connections.ending import Ending, Trouble
from ibwire_layers.syndrome import NakCode


class Status(StrEnum):
    """What became of a connection; the least severe first."""

    OK = "ok"
    RECOVERED = "recovered"
    DEGRADED = "degraded"
    UNRESOLVED = "unresolved"
    UNANSWERED = "unanswered"
    RETRY_EXCEEDED = "retry-exceeded"
    RNR_EXCEEDED = "rnr-exceeded"
    REMOTE_ERROR = "remote-error"
    REFUSED = "refused"
    CM_REJECTED = "cm-rejected"

    @property
    def severity(self) -> int:
        """0 for `ok`; more is worse."""
        return _SEVERITY[self]

    @property
    def is_failure(self) -> bool:
        """Whether the connection has failed: it carries no more messages."""
        return self.severity > Status.UNANSWERED.severity


_SEVERITY = {status: number for number, status in enumerate(Status)}


class Meaning(NamedTuple):
    """What a status says, and the evidence that it needs."""

    means: str
    evidence: str


MEANINGS = {
    Status.OK: Meaning(
        "Nothing went wrong.",
        "Nothing was retransmitted, refused, damaged or marked. Messages may be in flight at the "
        "end of the capture; duplicates and reordered packets had no effect.",
    ),
    Status.RECOVERED: Meaning(
        "Something went wrong, and all of it was repaired.",
        "There were retransmissions, NAKs, RNR NAKs or damaged packets; all affected messages "
        "were acknowledged.",
    ),
    Status.DEGRADED: Meaning(
        "It works, but is disturbed again and again, or loses messages.",
        "As `recovered`, three times or more, with 1 % of the packets retransmitted or more, and "
        "not only by timers that expired too early; "
        "or packets have CE marks, or CNPs slow a sender; or packets of a service that does not "
        "retransmit (UC) were lost, damaged or out of order.",
    ),
    Status.UNRESOLVED: Meaning(
        "There was trouble when the capture ended, or when the queue pair was reset.",
        "A message is not acknowledged, and it was refused, damaged, retransmitted or missing at "
        "this point, or had no response for longer than a requester waits; or a connection manager "
        "retransmitted its DREQ without a DREP, or got no response to its REP or after an MRA in "
        "time.",
    ),
    Status.UNANSWERED: Meaning(
        "No response from the other end to requests that were retransmitted or overdue.",
        "As `unresolved`, and nothing shows a response of the other end; or a connection "
        "manager retransmitted its REQ, or waited longer than the REQ says, without a response.",
    ),
    Status.RETRY_EXCEEDED: Meaning(
        "The requester gave up: no response to its retransmissions.",
        "The last retransmission was not acknowledged, and the next one, which would have been "
        "due, was not sent.",
    ),
    Status.RNR_EXCEEDED: Meaning(
        "The requester gave up: the receiver had no receive buffer.",
        "The retransmission that the last RNR NAK asked for was not sent when it was due.",
    ),
    Status.REMOTE_ERROR: Meaning(
        "The responder ended the connection with a NAK.",
        "A NAK of another kind than a PSN sequence error; its kind is in parentheses: `access`, "
        "`operational`, `invalid-request`, `invalid-rd-request`, or `code-N`.",
    ),
    Status.REFUSED: Meaning(
        "The other host does not take the packets.",
        "An ICMP message from the other end, or from a router, says that the destination of these "
        "packets is unreachable; its kind is in parentheses. The packet that it quotes was not "
        "acknowledged, and nothing came from its destination afterwards.",
    ),
    Status.CM_REJECTED: Meaning(
        "A connection manager rejected the connection.",
        "A REJ, or a SIDR_REP with another status than 0; the reason is in parentheses.",
    ),
}
"""What each status means."""


@dataclass(frozen=True, slots=True)
class ConnectionStatus:
    """The status of one connection."""

    status: Status
    detail: str = ""
    """The kind of a `remote-error`, the reason of `cm-rejected`."""

    def __str__(self) -> str:
        return f"{self.status}({self.detail})" if self.detail else str(self.status)


NAK_KINDS = {
    NakCode.INVALID_REQUEST.name.lower(): "invalid-request",
    NakCode.REMOTE_ACCESS_ERROR.name.lower(): "access",
    NakCode.REMOTE_OPERATIONAL_ERROR.name.lower(): "operational",
    NakCode.INVALID_RD_REQUEST.name.lower(): "invalid-rd-request",
}
"""Kinds of `remote-error` by the names of `DirectionCounts.naks`."""

SEQUENCE_NAK = NakCode.PSN_SEQUENCE_ERROR.name.lower()

MANY = 3
"""So many disturbances are trouble that comes back."""
SHARE = 0.01
"""Of the packets that are retransmitted, where the trouble costs something."""


class Evidence(Protocol):
    """What the status of a connection follows from: a `Connection`."""

    directions: tuple[DirectionCounts, DirectionCounts]
    endings: tuple[Ending, Ending]
    refused: str
    cm_rejected: str
    exchange_status: ConnectionStatus | None

    @property
    def is_reliable(self) -> bool:
        """Whether requests are acknowledged."""

    @property
    def drops_late_packets(self) -> bool:
        """Whether a packet out of sequence costs its message."""


def status_of(connection: Evidence) -> ConnectionStatus:
    """The status of a connection, once the capture is over."""
    both = connection.directions
    if _is_quiet(connection):
        return QUIET
    if connection.exchange_status is not None:
        return connection.exchange_status
    if connection.cm_rejected:
        return ConnectionStatus(Status.CM_REJECTED, connection.cm_rejected)
    if connection.refused:
        return ConnectionStatus(Status.REFUSED, connection.refused)
    fatal = [name for each in both for name in each.naks if name != SEQUENCE_NAK]
    if fatal:
        name = fatal[0]
        return ConnectionStatus(Status.REMOTE_ERROR, NAK_KINDS.get(name, name.replace("_", "-")))
    if any(each.rnr_retries_exceeded for each in both):
        return ConnectionStatus(Status.RNR_EXCEEDED)
    if any(each.retries_exceeded for each in both):
        return ConnectionStatus(Status.RETRY_EXCEEDED)
    troubles = [ending.trouble for ending in connection.endings if ending.trouble]
    is_alone = not all(each.packets for each in both)
    if Trouble.RETRANSMITTED in troubles and is_alone and not any(e.resumed_reads for e in both):
        return ConnectionStatus(Status.UNANSWERED)
    if troubles:
        return ConnectionStatus(Status.UNRESOLVED)
    if any(each.cut_short for each in both):
        return ConnectionStatus(Status.UNRESOLVED)
    return ConnectionStatus(_lasting(connection))


QUIET = ConnectionStatus(Status.OK)
"""Of a connection of which nothing went wrong."""


def _is_quiet(connection: Evidence) -> bool:
    """Whether it has nothing that `status_of` looks at, like most connections, which are OK."""
    (one, other), (ending, other_ending) = connection.directions, connection.endings
    return not (
        one.retransmitted
        or other.retransmitted
        or one.naks
        or other.naks
        or one.rnr_naks
        or other.rnr_naks
        or one.disturbances
        or other.disturbances
        or one.retransmissions
        or other.retransmissions
        or one.damaged
        or other.damaged
        or one.lost
        or other.lost
        or ((one.reordered or other.reordered) and connection.drops_late_packets)
        or one.marked
        or other.marked
        or one.cnps
        or other.cnps
        or one.retries_exceeded
        or other.retries_exceeded
        or one.rnr_retries_exceeded
        or other.rnr_retries_exceeded
        or one.cut_short
        or other.cut_short
        or ending.trouble
        or other_ending.trouble
        or connection.exchange_status is not None
        or connection.cm_rejected
        or connection.refused
    )


def _lasting(connection: Evidence) -> Status:
    """The status of a connection without open trouble that has not failed."""
    both = connection.directions
    if any(each.marked or each.cnps for each in both):
        return Status.DEGRADED
    damaged = sum(each.damaged for each in both)
    if not connection.is_reliable:
        missing = damaged + sum(each.lost for each in both)
        if connection.drops_late_packets:
            missing += sum(each.reordered for each in both)
        return Status.DEGRADED if missing else Status.OK
    retransmitted = sum(each.retransmitted for each in both)
    packets = sum(each.packets for each in both)
    disturbances = sum(each.disturbances for each in both)
    if disturbances >= MANY and retransmitted >= SHARE * packets:
        return Status.DEGRADED
    signs = damaged + sum(
        sum(each.naks.values()) + each.rnr_naks + each.retransmissions for each in both
    )
    if not all(each.packets for each in both):
        # Without the requests it shows in the responses that they were retransmitted.
        signs += retransmitted
    return Status.RECOVERED if signs else Status.OK
