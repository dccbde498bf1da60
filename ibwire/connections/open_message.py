"""Messages that are not completed yet, and how their request packets are put together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from ibwire.connections.opcode_sets import ANSWERED, ENDS, READ, STARTS, VERB
from ibwire.connections.packets import TransportPacket

OVERDUE: Final = 32
"""After this many later messages a READ is not retransmitted: its responses were not captured."""


@dataclass(slots=True, init=False)
class OpenMessage:
    """A message that is not completed. PSNs are unwrapped."""

    verb: str
    first: int
    last: int
    """The last PSN known to belong to it; of a READ the last that it reserves."""
    is_whole: bool
    """Its last packet has been seen."""
    size: int
    first_number: int
    first_ns: int
    last_number: int
    last_ns: int
    next_response: int
    """For READs and atomics: the PSN of the next response. -1: any ACK completes it."""
    dma_len: int
    retransmitted: int
    """Request packets of it that were retransmitted."""
    is_read: bool
    has_start: bool
    """Its first packet has been seen."""
    is_doubtful: bool
    """It was retransmitted without a NAK: responses that were not seen until then may have
    been sent."""

    def __init__(
        self,
        verb: str,
        first: int,
        last: int,
        is_whole: bool,
        size: int,
        first_number: int,
        first_ns: int,
        last_number: int,
        last_ns: int,
        next_response: int = -1,
        dma_len: int = 0,
        retransmitted: int = 0,
        is_read: bool = False,
        has_start: bool = True,
        is_doubtful: bool = False,
    ) -> None:
        self.verb = verb
        self.first = first
        self.last = last
        self.is_whole = is_whole
        self.size = size
        self.first_number = first_number
        self.first_ns = first_ns
        self.last_number = last_number
        self.last_ns = last_ns
        self.next_response = next_response
        self.dma_len = dma_len
        self.retransmitted = retransmitted
        self.is_read = is_read
        self.has_start = has_start
        self.is_doubtful = is_doubtful

    def is_followed_by(self, psn: int, verb: str) -> bool:
        """Whether a packet that starts no message belongs to this one."""
        return self.last + 1 == psn and not self.is_whole and self.verb == verb


def add_request(
    messages: list[OpenMessage], packet: TransportPacket, *, psn: int, span: int
) -> None:
    """Put a request, seen for the first time, into its message.

    messages: oldest first. span: PSNs that the request takes.
    """
    opcode = packet.opcode
    last = messages[-1] if messages else None
    if last is None or psn > last.last:
        if last is None or opcode in STARTS or not last.is_followed_by(psn, VERB[opcode]):
            messages.append(_message_of(packet, psn, span))
            return
        last.size += packet.size
        last.last, last.last_number, last.last_ns = psn, packet.number, packet.time_ns
        last.is_whole = opcode in ENDS
        return
    at = sum(1 for each in messages if each.first < psn)
    messages.insert(at, _message_of(packet, psn, span))
    _join(messages, at)
    if at:
        _join(messages, at - 1)


class Progress(Enum):
    """How far an open message is."""

    OPEN = auto()
    DONE = auto()
    OVERDUE = auto()
    """Its responses were not captured."""


def oldest_progress(
    messages: Sequence[OpenMessage], acked: int, *, lacks_responses: bool
) -> Progress:
    """How far the oldest message is.

    acked: highest PSN that is acknowledged. lacks_responses: whether responses of it are
    missing before the newest.
    """
    message = messages[0]
    if message.next_response >= 0:
        if message.next_response > message.last and not lacks_responses:
            return Progress.DONE
        is_overdue = len(messages) > OVERDUE and messages[OVERDUE].last <= acked
        return Progress.OVERDUE if is_overdue else Progress.OPEN
    if message.is_whole:
        return Progress.DONE if message.last <= acked else Progress.OPEN
    # Its last packet was not captured if what follows it is acknowledged.
    is_passed = len(messages) > 1 and messages[1].first <= acked + 1
    return Progress.DONE if is_passed else Progress.OPEN


def answered_by(messages: Sequence[OpenMessage], psn: int) -> OpenMessage | None:
    """The READ or atomic that a response with this PSN belongs to."""
    found = None
    for each in messages:
        if each.next_response >= 0 and each.first <= psn <= each.last:
            found = each
    return found


def skips_responses(messages: Sequence[OpenMessage], message: OpenMessage, psn: int) -> bool:
    """Whether responses before this one of a message have not been seen."""
    if psn > message.next_response:
        return True
    for each in messages:
        if each is message:
            return False
        if 0 <= each.next_response <= each.last:
            return True
    return False


def _message_of(packet: TransportPacket, psn: int, span: int) -> OpenMessage:
    """A message of which this is the only packet so far."""
    opcode = packet.opcode
    message = OpenMessage(
        verb=VERB[opcode],
        first=psn,
        last=psn,
        is_whole=opcode in ENDS,
        size=packet.size,
        first_number=packet.number,
        first_ns=packet.time_ns,
        last_number=packet.number,
        last_ns=packet.time_ns,
        has_start=opcode in STARTS,
    )
    if opcode in ANSWERED:
        message.next_response = psn
        if opcode in READ:
            message.is_read = True
            message.dma_len = message.size = packet.dma_len
            message.last = psn + span - 1
    return message


def _join(messages: list[OpenMessage], at: int) -> None:
    """Make one message of two that a request between them has connected."""
    if at + 1 >= len(messages):
        return
    one, other = messages[at], messages[at + 1]
    if not other.has_start and one.is_followed_by(other.first, other.verb):
        one.last, one.is_whole = other.last, other.is_whole
        one.last_number, one.last_ns = other.last_number, other.last_ns
        one.size += other.size
        one.retransmitted += other.retransmitted
        one.first_ns = min(one.first_ns, other.first_ns)
        del messages[at + 1]
