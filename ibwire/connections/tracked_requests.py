"""What is known of the requests of one end and the responses to them, at one point of a capture.

`RequestTracker` changes it packet by packet. PSNs are unwrapped: they continue beyond 24 bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ibwire.connections.connection import MTUS
from ibwire.connections.ending import Trouble
from ibwire.connections.events import FlowEvent
from ibwire.connections.identity import KEEP, Recent
from ibwire.connections.opcode_sets import ENDS, READ, VERB
from ibwire.connections.open_message import OpenMessage, add_request
from ibwire.connections.packets import TransportPacket
from ibwire.connections.refusals import Refusal, Refusals
from ibwire.connections.reporting import Reporter
from ibwire.connections.states import (
    REQUESTER_MOVES,
    RequesterInput,
    RequesterState,
    ResponderState,
)
from ibwire.connections.unseen import Unseen
from ibwire_layers.psn import MASK


class StartPSN(NamedTuple):
    """The PSN of a first request, which a handshake has negotiated."""

    psn: int | None
    place: tuple[int, int]
    """File and number of the packet that completed the handshake."""


@dataclass(slots=True, init=False)
class Retransmission:
    """A run of requests that are retransmitted, one after the other."""

    event: FlowEvent
    """It is reported when the run is over."""
    place: tuple[int, int]
    """File and number of its first packet."""
    waited_ns: int
    """From its cause, or from the packet before it, to its first packet."""
    is_after_silence: bool
    """No packet of this tracker passed for a while before it."""
    psn: int
    """Of its newest packet."""
    end: int
    """PSN after its newest packet."""
    obeyed: list[Refusal]
    """The refusals that were open before it."""
    ip_id: int
    """IP identification of the newest request before it; -1 without one."""
    repeats: TransportPacket | None
    """The same packet seen shortly before its first one, which may be a duplicate of that."""
    counted: list[str]
    """The counts of the direction that it has increased."""
    is_needless: bool
    """Both transmissions of its only packet were acknowledged."""
    interrupted: Retransmission | None
    """The one that goes on if its only packet was late; not reported yet."""
    resumes_at: int
    """PSN with which the one before would go on, if its packets were late; -1 without one."""

    def __init__(
        self,
        event: FlowEvent,
        place: tuple[int, int],
        waited_ns: int,
        is_after_silence: bool,
        psn: int,
        end: int,
        obeyed: list[Refusal],
        ip_id: int = -1,
        repeats: TransportPacket | None = None,
        counted: list[str] | None = None,
        is_needless: bool = False,
        interrupted: Retransmission | None = None,
        resumes_at: int = -1,
    ) -> None:
        self.event = event
        self.place = place
        self.waited_ns = waited_ns
        self.is_after_silence = is_after_silence
        self.psn = psn
        self.end = end
        self.obeyed = obeyed
        self.ip_id = ip_id
        self.repeats = repeats
        self.counted = [] if counted is None else counted
        self.is_needless = is_needless
        self.interrupted = interrupted
        self.resumes_at = resumes_at


class TrackedRequests:
    """What is known of the requests of one end and the responses to them.

    end: which end sends the requests.
    """

    __slots__ = (
        "acked",
        "answered_again",
        "answered_end",
        "attempts",
        "connection",
        "damaged_end",
        "damaged_next",
        "disturbed_end",
        "disturbed_ns",
        "early",
        "end",
        "failed",
        "is_waiting",
        "last_ns",
        "last_place",
        "messages",
        "next",
        "old_naks",
        "recent_requests",
        "recent_responses",
        "refusals",
        "repeated_place",
        "repeated_reads",
        "replay_end",
        "reports",
        "requester",
        "retransmission",
        "start",
        "start_psns",
        "unrequested_nak",
        "unrequested_next",
        "unseen",
    )

    def __init__(self, end: int, reports: Reporter) -> None:
        self.connection = reports.connection
        self.end = end
        self.reports = reports
        self.start_psns: list[StartPSN] = []
        """Negotiated PSNs of first requests that have not been seen yet."""
        self.reset()

    def reset(self) -> None:
        """Begin without any packet seen."""
        self.requester = RequesterState.NOT_SEEN
        self.start = 0
        """First PSN seen."""
        self.next: int | None = None
        """PSN that the next new request has; `None` before the first."""
        self.acked = -1
        """Highest PSN that is acknowledged."""
        self.messages: list[OpenMessage] = []
        """Not completed, oldest first."""
        self.unseen = Unseen(self.reports, self.end)
        """Requests and responses that were not seen."""
        self.refusals = Refusals()
        """NAKs that the requester has not obeyed yet."""
        self.retransmission: Retransmission | None = None
        """The newest, also when it is over."""
        self.attempts = 0
        """Retransmissions since something was acknowledged."""
        self.disturbed_end = 0
        """PSN after the last request that was missing, refused or retransmitted, or whose
        responses were missing; 0 when a response has answered all of them since."""
        self.repeated_reads: Sequence[tuple[int, int]] = ()
        """First PSN, and PSN after the last, of READs and atomics that were retransmitted; the
        newest."""
        self.repeated_place = (-1, 0)
        """File and number of the last request that was repeated."""
        self.damaged_next: dict[int, None] = {}
        """PSNs of damaged requests that were the next ones."""
        self.damaged_end = -1
        """PSN after the newest of them."""
        self.answered_again: dict[int, int] = {}
        """How often responses were retransmitted, by PSN; the newest."""
        self.replay_end: int | None = None
        """PSN after the last response that was retransmitted."""
        self.unrequested_next: int | None = None
        """PSN of the next response of a READ whose request was never seen."""
        self.answered_end = 0
        """PSN after the newest response since the newest retransmission, while it is disturbed."""
        self.disturbed_ns = 0
        """When that began."""
        self.old_naks: Sequence[int] = ()
        """PSNs of the newest sequence NAKs, without those that were retransmitted since."""
        self.unrequested_nak: tuple[Trouble, int] | None = None
        """A NAK of requests that were never seen, and its PSN, until a response answers that."""
        self.early: list[TransportPacket] = []
        """The newest ACKs beyond the newest request, which may have been recorded before it."""
        self.failed: TransportPacket | None = None
        """The NAK that ended the connection."""
        self.is_waiting = False
        """Whether requests wait until the next response shows if they are of a new queue pair."""
        self.recent_requests = Recent()
        self.recent_responses = Recent()
        self.last_ns = 0
        """When the last request or response was seen."""
        self.last_place = (-1, 0)
        """File and number of the last request or response."""

    @property
    def next_psn(self) -> int | None:
        """PSN (24 bits) that the next new request has; `None` before the first."""
        return None if self.next is None else self.next & MASK

    @property
    def acked_psn(self) -> int | None:
        """Highest acknowledged PSN (24 bits); `None` when nothing is acknowledged."""
        return None if self.acked < 0 else self.acked & MASK

    @property
    def responder(self) -> ResponderState:
        """The state of the other end, which answers the requests."""
        return self.refusals.responder

    @property
    def is_retransmitting(self) -> bool:
        """Whether the requester retransmits requests."""
        return self.requester is RequesterState.RETRANSMITTING

    @property
    def retransmission_end(self) -> int:
        """PSN after the newest retransmitted request; 0 before the first."""
        return 0 if self.retransmission is None else self.retransmission.end

    @property
    def is_regular(self) -> bool:
        """Whether nothing is missing, refused or being retransmitted."""
        return (
            self.requester is not RequesterState.RETRANSMITTING
            and not self.refusals
            and not (self.next is not None and self.was_damaged(self.next & MASK))
            and not self.unseen.requests
            and not self.unseen.responses
            and not any(message.is_doubtful for message in self.messages)
            and not self.needs_mtu
            and (self.next is None or not self.early)
            and self.failed is None
            and not self.is_waiting
        )

    @property
    def needs_mtu(self) -> bool:
        """Whether the newest request is a READ that takes an unknown number of PSNs, because the
        path MTU is not known."""
        if self.connection.mtu or not self.messages:
            return False
        newest = self.messages[-1]
        return newest.is_read and newest.dma_len > MTUS[0] and newest.last + 1 == self.next

    @property
    def has_broken_message(self) -> bool:
        """Whether a message before the newest lacks its last packet."""
        return not all(message.is_whole for message in self.messages[:-1])

    @property
    def reads(self) -> list[OpenMessage]:
        """READs and atomics that have not been answered in full, oldest first."""
        return [message for message in self.messages if message.next_response >= 0]

    def fingerprint(self) -> tuple[object, ...]:
        """Everything that decides how the next packets are taken, except packets long gone."""
        if self.next is None:
            return (None, self.unrequested_next)
        base = self.next
        unseen = self.unseen
        gaps = (
            unseen.requests,
            unseen.responses,
            unseen.unsettled.requests,
            unseen.unsettled.skipped,
            unseen.unsettled.responses,
        )
        run = self.run
        return (
            base & MASK,
            base - self.acked,
            self.attempts,
            self.last_ns,
            self.responder is ResponderState.FAILED,
            [
                (m.verb, base - m.first, base - m.last, m.is_whole, m.size, m.first_ns)
                for m in self.messages
            ],
            [base - m.next_response for m in self.messages if m.next_response >= 0],
            [[(base - g.first, base - g.end) for g in each] for each in gaps],
            [(base - each.psn, each.cause) for each in self.refusals],
            (run is not None, base - run.end if run else 0),
            [base - each.psn & MASK for each in self.early],
            None if self.failed is None else self.failed.msn,
        )

    def resumes_read(self, psn: int) -> bool:
        """Whether a retransmission from this PSN on begins inside a READ."""
        return any(each.is_read and each.first < psn <= each.last for each in self.messages)

    def was_damaged(self, psn: int) -> bool:
        """Whether the next new request was seen damaged, so that this is its retransmission."""
        return psn in self.damaged_next and self.connection.is_reliable

    def note_damaged(self, packet: TransportPacket) -> None:
        """A request was seen damaged. Its PSN is right if it is the next one, or follows one that
        was damaged as well; a PSN further ahead may itself be damaged."""
        is_next = self.next is None or packet.psn == self.next & MASK
        if is_next or packet.psn == self.damaged_end:
            self.damaged_next[packet.psn] = None
            self.damaged_end = packet.psn + self.span(packet) & MASK
            if len(self.damaged_next) > KEEP:
                del self.damaged_next[next(iter(self.damaged_next))]

    def span(self, packet: TransportPacket) -> int:
        """PSNs that a request takes (IBA 9.7.3: a READ as many as it has responses)."""
        if packet.opcode not in READ:
            return 1
        return self.connection.packets_of(packet.dma_len)

    def add(self, psn: int, span: int, packet: TransportPacket) -> None:
        """Put a request, seen for the first time, into its message."""
        if packet.opcode in ENDS:
            self.connection.directions[self.end].count_message(VERB[packet.opcode])
        add_request(self.messages, packet, psn=psn, span=span)

    @property
    def run(self) -> Retransmission | None:
        """The retransmission that is going on."""
        return self.retransmission if self.is_retransmitting else None

    def disturb(self, end: int, packet: TransportPacket) -> None:
        """Requests up to PSN `end` - 1 are missing, refused or retransmitted, as this shows."""
        if not self.disturbed_end:
            self.connection.directions[self.end].disturbances += 1
            self.disturbed_ns = packet.time_ns
        self.disturbed_end = max(self.disturbed_end, end)

    def note_new_request(self) -> None:
        """The requester goes on: where its responses were not captured, that ends a disturbance."""
        if not self.connection.is_paired and not self.unseen.requests:
            self.disturbed_end = 0

    def note_answered(self, psn: int) -> None:
        """An ACK, or a response of a READ; it may answer the last of the disturbed requests."""
        self.answered_end = psn + 1
        if psn + 1 < self.disturbed_end:
            return
        waits = any(
            message.first < self.disturbed_end and self.is_open(message) for message in self.reads
        )
        if not waits and not any(gap.first < psn for gap in self.unseen.responses):
            self.disturbed_end = 0

    @property
    def last_disturbed(self) -> int:
        """PSN from which on a response answers all of the disturbed requests."""
        reads = (each for each in self.reads if each.first < self.disturbed_end)
        return max([self.disturbed_end - 1, *(each.last for each in reads if self.is_open(each))])

    def move_requester(self, moved_by: RequesterInput) -> None:
        """Move the state of the requester."""
        self.requester = REQUESTER_MOVES[self.requester][moved_by]

    def is_open(self, message: OpenMessage) -> bool:
        """Whether a message lacks a response."""
        if message.next_response >= 0:
            return message.next_response <= message.last or self.unseen.lacks_responses(message)
        return message.last > self.acked

    def recent(self, direction: int) -> Recent:
        """The newest packets of a direction: requests or responses."""
        return self.recent_requests if direction == self.end else self.recent_responses
