"""What happens to a connection: events with their cause, and messages with their times."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class EventKind(StrEnum):
    """What an event is; `Event` says which of its fields each kind fills."""

    LOSS = "loss"
    """Packets were never seen here: `psn` to `last_psn`, `count` packets as far as known."""
    LATE = "late"
    """A packet came after others that were sent later (reordering)."""
    COPY = "copy"
    """The same packet once more, without having been sent again; `cause_number` is the first."""
    RESEND = "resend"
    """Requests were sent again, `psn` to `last_psn`, `count` packets; `cause` says why,
    `cause_number` is the packet that made it so, `delay_ns` what passed since it."""
    REPLAY = "replay"
    """READ responses or an ATOMIC ACK were sent again, because they were asked for again."""
    NAK = "nak"
    """A NAK; `code` is the syndrome byte, `psn` the PSN that it names."""
    RNR_NAK = "rnr_nak"
    """A receiver-not-ready NAK; `code` is the syndrome byte, `delay_ns` how long to wait."""
    DAMAGED = "damaged"
    """A packet with a wrong ICRC."""
    MARKED = "marked"
    """A packet with the CE mark (congestion experienced)."""
    CNP = "cnp"
    """A congestion notification packet."""
    GIVEN_UP = "given_up"
    """The requester stopped sending again; `cause` is the limit: `retries` or `rnr_retries`."""
    RESTART = "restart"
    """PSNs jumped to `psn`: the queue pair was reset, or its number used again."""


class Cause(StrEnum):
    """Why requests were sent again, or a limit was reached."""

    NAK = "nak"
    """The responder named the first PSN that it missed."""
    RNR = "rnr_nak"
    """The responder had no receive buffer."""
    IMPLIED_NAK = "implied_nak"
    """A later response passed over an unanswered READ or ATOMIC (IBA 9.7.5.2.8)."""
    READ_GAP = "read_gap"
    """Responses were missing in a READ, which was asked for again from there on."""
    TIMEOUT = "timeout"
    """Nothing was heard for the ACK timeout."""
    ANSWER_LOST = "answer_lost"
    """It had been acknowledged here: the ACK was lost behind this point, or a timer was stale."""
    RETRIES = "retries"
    RNR_RETRIES = "rnr_retries"
    UNKNOWN = "unknown"
    """Nothing in this capture says why."""


@dataclass(slots=True)
class Event:
    """Something that happened to a connection."""

    kind: EventKind
    connection: int
    """Number of the connection."""
    direction: int
    """Of the packets that it is about: 0 from end 0 to end 1, 1 back."""
    number: int
    """Of the packet that shows it; the first of several."""
    time_ns: int
    psn: int = 0
    last_psn: int = 0
    count: int = 1
    opcode: int = 0
    cause: Cause | None = None
    cause_number: int = 0
    """0 when no packet in this capture is the cause."""
    delay_ns: int | None = None
    code: int = 0
    last_number: int = 0
    """Of the last packet, for kinds that are about several."""


@dataclass(slots=True)
class Message:
    """What one work request put on the wire: one SEND, WRITE, READ, atomic or FLUSH."""

    connection: int
    direction: int
    """Of its requests."""
    verb: str
    """`SEND`, `RDMA_WRITE`, `RDMA_READ`, `COMPARE_SWAP`, `FETCH_ADD`, `FLUSH`, `ATOMIC_WRITE`."""
    first_psn: int
    last_psn: int
    size: int
    """Bytes of payload, also of a READ's responses."""
    first_number: int
    last_number: int
    """Of the first and the last request packet, when they were sent first."""
    first_ns: int
    last_ns: int
    acked_number: int = 0
    """Of the response that completes it; 0 when there was none."""
    acked_ns: int = 0
    resent: int = 0
    """Request packets of it that were sent again."""
