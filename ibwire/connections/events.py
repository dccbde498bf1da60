"""What happens to a connection: events with their cause, and messages with their times."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from ibwire.connections.packets import TransportPacket


class FlowEventKind(StrEnum):
    """What an event is; the kinds name the fields of `FlowEvent` that they fill."""

    LOST = "lost"
    """Packets were never seen here: `psn` to `last_psn`, `count` packets as far as known. `cause`
    is `not_captured` if the network has not lost them, and `unknown` if that is open."""
    REORDERED = "reordered"
    """A packet arrived after others that were sent later; `cause_number` is the first of those,
    where IP identifications show it; elsewhere `delay_ns` is the time since the packet that arrived
    in its place. `cause` says why it was retransmitted, if it was, and no
    event about retransmitted requests counts it."""
    DUPLICATE = "duplicate"
    """The same packet again, not retransmitted; `cause_number` is the first."""
    REPEATED = "repeated"
    """A packet arrived again, and nothing shows whether it is a duplicate, late, or retransmitted;
    `cause_number` is an earlier one."""
    RETRANSMISSION = "retransmission"
    """Requests were retransmitted, `psn` to `last_psn`, `count` packets; `cause` says why,
    `cause_number` is the packet that shows the cause, `delay_ns` the time since it."""
    NAK = "nak"
    """A NAK; `code` is the syndrome byte, `psn` the PSN that it names."""
    RNR_NAK = "rnr_nak"
    """A receiver-not-ready NAK; `code` is the syndrome byte, `delay_ns` how long to wait."""
    ICRC_BAD = "icrc_bad"
    """A packet with a wrong ICRC."""
    ECN_CE = "ecn_ce"
    """A packet with the CE mark (congestion experienced)."""
    CNP = "cnp"
    """A congestion notification packet."""
    RETRY_EXCEEDED = "retry_exceeded"
    """The requester stopped retransmitting; `cause` is the limit: `retries` or `rnr_retries`."""
    RESTART = "restart"
    """PSNs jumped to `psn`: the queue pair was reset, or its number used again."""


class Cause(StrEnum):
    """Why requests were retransmitted, which limit was reached, or which end missed a packet."""

    NAK = "nak"
    """The responder named the first PSN that it missed."""
    RNR = "rnr_nak"
    """The responder had no receive buffer."""
    IMPLIED_NAK = "implied_nak"
    """A later response passed over an unanswered READ or ATOMIC (IBA 9.7.5.2.8)."""
    READ_GAP = "read_gap"
    """Responses of a READ were missing, which was retried from there on."""
    TIMEOUT = "timeout"
    """No response arrived within the ACK timeout."""
    ACK_LOST = "ack_lost"
    """It had been acknowledged here: the ACK was lost after this point, or a timer was stale."""
    RETRIES = "retries"
    RNR_RETRIES = "rnr_retries"
    NOT_CAPTURED = "not_captured"
    """The requester went on without retransmitting: the capture missed it, not the network."""
    UNKNOWN = "unknown"
    """Nothing in this capture shows why."""


@dataclass(slots=True, init=False)
class FlowEvent:
    """Something that happened to a connection."""

    kind: FlowEventKind
    connection: int
    """Number of the connection."""
    direction: int
    """Of the packets that it is about: 0 from end 0 to end 1, 1 the other way."""
    number: int
    """Of the packet that shows it; the first of several."""
    time_ns: int
    psn: int
    last_psn: int
    count: int
    opcode: int
    cause: Cause | None
    cause_number: int
    """0 when no packet in this capture is the cause."""
    delay_ns: int | None
    code: int
    last_number: int
    """Of the last packet, for kinds that are about several."""
    is_timeout: bool
    """An ACK timer of the requester began the retransmission."""
    is_response: bool
    """Of lost packets: they are responses to requests of the other end."""

    def __init__(
        self,
        kind: FlowEventKind,
        connection: int,
        direction: int,
        number: int,
        time_ns: int,
        psn: int = 0,
        last_psn: int = 0,
        count: int = 1,
        opcode: int = 0,
        cause: Cause | None = None,
        cause_number: int = 0,
        delay_ns: int | None = None,
        code: int = 0,
        last_number: int = 0,
        is_timeout: bool = False,
        is_response: bool = False,
    ) -> None:
        self.kind = kind
        self.connection = connection
        self.direction = direction
        self.number = number
        self.time_ns = time_ns
        self.psn = psn
        self.last_psn = last_psn
        self.count = count
        self.opcode = opcode
        self.cause = cause
        self.cause_number = cause_number
        self.delay_ns = delay_ns
        self.code = code
        self.last_number = last_number
        self.is_timeout = is_timeout
        self.is_response = is_response

    @classmethod
    def of_packet(
        cls,
        packet: TransportPacket,
        *,
        kind: FlowEventKind,
        connection: int,
        direction: int,
        cause_number: int = 0,
        cause: Cause | None = None,
        delay_ns: int | None = None,
    ) -> FlowEvent:
        """An event that one packet shows by itself."""
        return cls(
            kind=kind,
            connection=connection,
            direction=direction,
            number=packet.number,
            time_ns=packet.time_ns,
            psn=packet.psn,
            last_psn=packet.psn,
            opcode=packet.opcode,
            cause=cause,
            cause_number=cause_number,
            delay_ns=delay_ns,
        )


@dataclass(slots=True, init=False)
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
    acked_number: int
    """Of the response that completes it; 0 without one."""
    acked_ns: int
    retransmitted_packets: int
    """Request packets of it that were retransmitted."""

    def __init__(
        self,
        connection: int,
        direction: int,
        verb: str,
        first_psn: int,
        last_psn: int,
        size: int,
        first_number: int,
        last_number: int,
        first_ns: int,
        last_ns: int,
        acked_number: int = 0,
        acked_ns: int = 0,
        retransmitted_packets: int = 0,
    ) -> None:
        self.connection = connection
        self.direction = direction
        self.verb = verb
        self.first_psn = first_psn
        self.last_psn = last_psn
        self.size = size
        self.first_number = first_number
        self.last_number = last_number
        self.first_ns = first_ns
        self.last_ns = last_ns
        self.acked_number = acked_number
        self.acked_ns = acked_ns
        self.retransmitted_packets = retransmitted_packets
