"""Follows the requests of one end of a connection, and the responses to them, PSN by PSN.

Everything is inferred from packets seen at one point of the path. A request is new
when its PSN is the next one, or ahead of it: then the PSNs in between are missing
here. A PSN that was passed arrives again for one of three reasons:

- RETRANSMITTED: the requester sent it again,
- DUPLICATE: the network, or the capture, made a copy of it,
- REORDERED: it was overtaken, and is one of the missing.

The identification of IPv4 distinguishes them where the sender counts it up (rxe
does); elsewhere the earlier responses and the time decide. The responses of a READ
are followed in the same way.

The states of both ends and the moves between them are in `states`; everything else
that a tracker holds are values. PSNs are unwrapped: they count on beyond 24 bits.

Source: IBA 9.7.1 and 9.7.3 (PSNs, what a READ reserves), 9.7.5.1 (responses and
what they acknowledge), 9.7.5.2 (NAK, RNR NAK, implied NAK), 9.9 (going back).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Protocol, runtime_checkable

from ibwire.connections.connection import MTUS, Connection
from ibwire.connections.events import Cause, FlowEvent, FlowEventKind, Message, Observer
from ibwire.connections.gaps import Gap, Unsettled, cut, joined, within
from ibwire.connections.identity import KEEP, REORDER_IDS, Recent
from ibwire.connections.opcode_sets import ACKNOWLEDGE, ANSWERED, ENDS, FULL, READ, STARTS, VERB
from ibwire.connections.open_message import OpenMessage, add_request
from ibwire.connections.packets import TransportPacket
from ibwire.connections.states import (
    REQUESTER_MOVES,
    RESPONDER_MOVES,
    PacketStatus,
    RequesterInput,
    RequesterState,
    ResponderInput,
    ResponderState,
)
from ibwire_layers.psn import HALF, MASK, MODULUS
from ibwire_layers.syndrome import INVALID_CREDITS, RNR_TIMER_US, AckKind, NakCode, code, kind

REFUSALS = 4
"""NAKs that are remembered until they are obeyed; a retransmission obeys all that are near."""
REPEATED_READS = 32
"""READs and atomics that were retransmitted, which are remembered to recognise their responses."""
LIMIT = 4096
"""Messages that may be open; in a capture of one direction no message is ever completed."""
OVERDUE = 32
"""After so many later messages a READ is not retried: its responses were not captured."""
START_PSNS = 16
"""Negotiated first PSNs that are remembered until they are seen."""
GAPS = 256
"""Gaps that may be open."""
JUMP = 1 << 16
"""A larger step in PSNs is a reset of the queue pair and no loss. A lost READ of 64 MiB reserves
as many at an MTU of 1024."""
GIVE_UP_NS = 100_000_000
"""A requester that has not retransmitted so long after it was due has given up. Timers of Linux
are late by tens of milliseconds at most (rnr-late-recv, rnr-multi-packet)."""
SILENCE_NS = 1_000_000
"""A retransmission after a longer silence was started by a timer. NICs answer a NAK within
hundreds of microseconds at most (Lumina)."""
NO_SKIP_NS = 500_000
"""Between packets that follow each other so soon no sender leaves out IP identifications. Linux
does after a jiffy or more, 1 ms at least (net/ipv4/route.c ip_idents_reserve)."""

NAK_NAMES = {value.value: value.name.lower() for value in NakCode}


@runtime_checkable
class PacketObserver(Observer, Protocol):
    """Receives every packet besides, which makes the analysis several times slower."""

    def request(
        self, tracker: RequestTracker, packet: TransportPacket, status: PacketStatus
    ) -> None:
        """A request, before it changes the tracker."""

    def response(
        self, tracker: RequestTracker, packet: TransportPacket, status: PacketStatus
    ) -> None:
        """A response, before it changes the tracker."""

    def other(self, connection: Connection, direction: int, packet: TransportPacket) -> None:
        """A CNP, a datagram, or a packet with a wrong ICRC."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A NAK, or what obliges the requester to go back like a NAK, until it has done so."""

    psn: int
    number: int
    place: tuple[int, int]
    """File and number."""
    time_ns: int
    cause: Cause
    wait_ns: int = 0
    """Of an RNR NAK: how long to wait at least."""

    @property
    def input(self) -> ResponderInput:
        """What it is to the state of the responder."""
        return ResponderInput.RNR_NAK if self.cause is Cause.RNR else ResponderInput.NAK


@dataclass(slots=True)
class Retransmission:
    """A run of requests that are retransmitted, one after the other."""

    event: FlowEvent
    """It is reported when the run is over."""
    place: tuple[int, int]
    """File and number of its first packet."""
    waited_ns: int
    """From its cause, or from the packet before it, to its first packet."""
    psn: int
    """Of its newest packet."""
    end: int
    """PSN after its newest packet."""


class _Progress(Enum):
    """How far an open message is."""

    OPEN = auto()
    DONE = auto()
    OVERDUE = auto()
    """Its responses were not captured."""


class RequestTracker:
    """The requests of one end of a connection and the responses to them.

    end: which end sends the requests. learn_mtu: called when a READ shows the path MTU,
    which both trackers of the connection then know.
    """

    __slots__ = (
        "_learn_mtu",
        "_observer",
        "_packet_observer",
        "acked",
        "attempts",
        "connection",
        "end",
        "last_ns",
        "messages",
        "missing",
        "missing_responses",
        "next",
        "recent_requests",
        "recent_responses",
        "refusals",
        "repeated_reads",
        "replay_end",
        "requester",
        "responder",
        "retransmission",
        "start",
        "start_psns",
        "unrequested_next",
        "unsettled",
    )

    def __init__(
        self,
        connection: Connection,
        end: int,
        *,
        observer: Observer | None,
        packet_observer: PacketObserver | None,
        learn_mtu: Callable[[int], None],
    ) -> None:
        self.connection = connection
        self.end = end
        self._observer = observer
        self._packet_observer = packet_observer
        self._learn_mtu = learn_mtu
        self.start_psns: list[int | None] = []
        """Negotiated PSNs of a first request that has not been seen yet."""
        self._reset()

    def _reset(self) -> None:
        """Begin without any packet seen."""
        self.requester = RequesterState.NOT_SEEN
        self.responder = ResponderState.ACCEPTING
        self.start = 0
        """First PSN seen."""
        self.next: int | None = None
        """PSN that the next new request has; `None` before the first."""
        self.acked = -1
        """Highest PSN that is acknowledged."""
        self.messages: list[OpenMessage] = []
        """Not completed, oldest first."""
        self.missing: list[Gap] = []
        """Requests that were not seen, and not retransmitted since."""
        self.missing_responses: list[Gap] = []
        """READ responses that were not seen, and not retransmitted since."""
        self.unsettled = Unsettled()
        self.refusals: list[Refusal] = []
        """NAKs that the requester has not obeyed yet, newest last."""
        self.retransmission: Retransmission | None = None
        """The newest, also when it is over."""
        self.attempts = 0
        """Retransmissions since something was acknowledged."""
        self.repeated_reads: list[tuple[int, int]] = []
        """First PSN, and PSN after the last, of READs and atomics that were retransmitted; the
        newest."""
        self.replay_end: int | None = None
        """PSN after the last response that was retransmitted."""
        self.unrequested_next: int | None = None
        """PSN of the next response of a READ whose request was never seen."""
        self.recent_requests = Recent()
        self.recent_responses = Recent()
        self.last_ns = 0
        """When the last request or response was seen."""

    def expect_start(self, psn: int | None) -> None:
        """A handshake has negotiated the PSN of the next first request."""
        self.start_psns = [*self.start_psns[1 - START_PSNS :], psn]

    def join(self, before: RequestTracker, *, next_there: int | None) -> None:
        """Take the place of the tracker that followed an earlier part of the same requests.

        next_there: `next` here, where the two parts meet; it is the same as `before.next`,
        counted from another first PSN.
        """
        self.connection, self.end = before.connection, before.end
        self._observer = before._observer
        self._packet_observer = before._packet_observer
        self._learn_mtu = before._learn_mtu
        if next_there is not None and before.next is not None:
            self.start = next_there - (before.next - before.start)

    @property
    def next_psn(self) -> int | None:
        """PSN (24 bits) that the next new request has; `None` before the first."""
        return None if self.next is None else self.next & MASK

    @property
    def acked_psn(self) -> int | None:
        """Highest acknowledged PSN (24 bits); `None` when nothing is acknowledged."""
        return None if self.acked < 0 else self.acked & MASK

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
            self.requester in (RequesterState.NOT_SEEN, RequesterState.IN_SEQUENCE)
            and not self.refusals
            and not self.missing
            and not self.missing_responses
            and not any(message.is_doubtful for message in self.messages)
        )

    @property
    def reads(self) -> list[OpenMessage]:
        """READs and atomics that have not been answered in full, oldest first."""
        return [message for message in self.messages if message.next_response >= 0]

    def fingerprint(self) -> tuple[object, ...]:
        """Everything that decides how the next packets are taken, except packets long gone."""
        if self.next is None:
            return (None, self.unrequested_next)
        base = self.next
        gaps = (
            self.missing,
            self.missing_responses,
            self.unsettled.requests,
            self.unsettled.skipped,
            self.unsettled.responses,
        )
        run = self._run
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
        )

    # Requests.

    def handle_request(self, packet: TransportPacket) -> PacketStatus:
        """Take a request; returns what it is."""
        if self.next is None:
            self._begin(packet)
        assert self.next is not None
        step = (packet.psn - self.next + HALF & MASK) - HALF
        if abs(step) > JUMP or (step and packet.psn in self.start_psns):
            self._restart(packet)
            step = 0
        psn = self.next + step
        if step > 0 and not self.connection.mtu:
            self._infer_mtu(psn, packet)
            step = psn - self.next
        if step >= 0:
            status = PacketStatus.AFTER_GAP if step else PacketStatus.NEW
        else:
            status = self._status_of_old_request(psn, packet)
        if self._packet_observer is not None:
            self._packet_observer.request(self, packet, status)
        self._note_order(self.end, psn, packet, status)
        match status:
            case PacketStatus.NEW | PacketStatus.AFTER_GAP:
                self._advance(psn, packet)
            case PacketStatus.RETRANSMITTED:
                self._retransmit(psn, packet)
            case PacketStatus.REORDERED:
                self._fill_late(psn, packet)
        if status is PacketStatus.DUPLICATE:
            self._note_duplicate(self.end, packet, self.recent_requests.get(psn))
        else:
            self.recent_requests.add(psn, packet)
        self._age()
        self.last_ns = packet.time_ns
        return status

    def _restart(self, packet: TransportPacket) -> None:
        """Begin anew with this request: the queue pair was reset, or its number is used again."""
        self.finish(packet.time_ns)
        self._report_packet(FlowEventKind.RESTART, self.end, packet)
        self.connection.directions[self.end].restarts += 1
        self._reset()
        self._begin(packet)

    def _begin(self, packet: TransportPacket) -> None:
        if packet.psn in self.start_psns:
            self.start_psns.remove(packet.psn)
        # One lap on, so that what lies before the first packet is not negative.
        self.start = self.next = packet.psn + MODULUS
        self.acked = self.start - 1
        self.last_ns = packet.time_ns
        self._move_requester(RequesterInput.FIRST)

    def _advance(self, psn: int, packet: TransportPacket) -> None:
        """A request beyond all that were seen."""
        assert self.next is not None
        if psn > self.next:
            self.missing.append(Gap(self.next, psn, packet.number, packet.time_ns))
        run = self._run
        if run is not None and run.end < self.next:
            self._note_skipped(run, psn, packet)
        self._end_run()
        self._move_requester(RequesterInput.NEW)
        span = self._span(packet)
        self._add(psn, span, packet)
        self.next = psn + span
        counts = self.connection.directions[self.end]
        counts.max_outstanding = max(counts.max_outstanding, self.next - self.acked - 1)
        if not self.connection.is_reliable:
            self._complete_unacknowledged(packet)
        self.limit()

    def _complete_unacknowledged(self, packet: TransportPacket) -> None:
        """Complete a message that is whole, of a service without acknowledgements."""
        assert self.next is not None
        self.acked = self.next - 1
        while self.messages and (self.messages[0].is_whole or len(self.messages) > 1):
            message = self.messages.pop(0)
            if message.is_whole and message.has_start:
                self._complete(message, packet)
            else:
                self._report_message(message)

    def _span(self, packet: TransportPacket) -> int:
        """PSNs that a request takes (IBA 9.7.3: a READ as many as it has responses)."""
        if packet.opcode not in READ:
            return 1
        return self.connection.packets_of(packet.dma_len)

    def _add(self, psn: int, span: int, packet: TransportPacket) -> None:
        """Put a request, seen for the first time, into its message."""
        if packet.opcode in ENDS:
            self.connection.directions[self.end].count_message(VERB[packet.opcode])
        add_request(self.messages, packet, psn=psn, span=span)

    def _infer_mtu(self, psn: int, packet: TransportPacket) -> None:
        """Learn the path MTU, where a READ of unknown span is followed by this request.

        It may be the next request, or the same READ retried from a later PSN and
        address on. If neither shows the MTU, the READ has at least reached so far.
        """
        assert self.next is not None
        message = self.messages[-1] if self.messages else None
        if message is None or not message.is_read or message.last + 1 != self.next:
            return
        far = psn - message.first
        first = self.recent_requests.get(message.first)
        is_retry = packet.opcode in READ and first is not None and first.rkey == packet.rkey
        for mtu in MTUS:
            if far == -(-message.dma_len // mtu) or (
                is_retry and first is not None and packet.va - first.va == far * mtu
            ):
                self._learn_mtu(mtu)
                return
        if far <= -(-message.dma_len // MTUS[0]):
            message.last, self.next = psn - 1, psn

    def apply_mtu(self) -> None:
        """Correct the span of the newest READ, now that the path MTU is known."""
        if not self.messages or not self.messages[-1].is_read:
            return
        message = self.messages[-1]
        if message.last + 1 == self.next:
            message.last = message.first + self.connection.packets_of(message.dma_len) - 1
            self.next = message.last + 1

    def _status_of_old_request(self, psn: int, packet: TransportPacket) -> PacketStatus:
        """What a request is whose PSN had been passed."""
        identity = self.connection.identities[self.end]
        was_seen = psn >= self.start and within(self.missing, psn) is None
        before = self.recent_requests.get(psn)
        since = (-1, 0) if before is None else before.place
        run = self._run
        is_due = any(each.psn <= psn and each.place > since for each in self.refusals)
        is_due |= run is not None and run.place > since
        if was_seen and identity.is_duplicate(packet, before, has_cause=is_due):
            return PacketStatus.DUPLICATE
        if not self.connection.is_reliable:
            return PacketStatus.DUPLICATE if was_seen else PacketStatus.REORDERED
        otherwise = not was_seen and not self._has_cause(psn, packet)
        is_late = identity.is_overtaken(packet, otherwise=otherwise)
        return PacketStatus.REORDERED if is_late else PacketStatus.RETRANSMITTED

    def _has_cause(self, psn: int, packet: TransportPacket) -> bool:
        """Whether something that was seen could have made the requester retransmit this."""
        if self.is_retransmitting or packet.time_ns - self.last_ns > SILENCE_NS:
            return True
        return any(refusal.psn <= psn for refusal in self.refusals)

    # Retransmitted requests.

    @property
    def _run(self) -> Retransmission | None:
        """The retransmission that is going on."""
        return self.retransmission if self.is_retransmitting else None

    def _retransmit(self, psn: int, packet: TransportPacket) -> None:
        self.connection.directions[self.end].retransmitted += 1
        run = self._run
        refusal = self._refusal_of(psn)
        if run is None or psn < run.end or (refusal and refusal.place > run.place):
            self._end_run()
            run = self._go_back(psn, packet)
        else:
            self._note_skipped(run, psn, packet)
        span = self._span(packet)
        run.event.count += 1
        run.event.last_psn = psn + span - 1 & MASK
        run.event.last_number = packet.number
        run.psn, run.end = psn, psn + span
        if packet.opcode in ANSWERED:
            self.repeated_reads = [*self.repeated_reads[1 - REPEATED_READS :], (psn, psn + span)]
        self.replay_end = None
        gap = within(self.missing, psn)
        if gap is not None:
            cut(self.missing, gap, first=psn, end=psn + span)
            self.unsettled.requests.append(Gap(psn, psn + span, gap.number, gap.time_ns, 1))
            self._add(psn, span, packet)
            return
        for message in self.messages:
            if message.first <= psn <= message.last:
                message.retransmitted += 1
                message.is_doubtful |= run.event.cause not in (Cause.NAK, Cause.RNR)
                break

    def _go_back(self, psn: int, packet: TransportPacket) -> Retransmission:
        """Begin a run of retransmitted requests."""
        cause, number, since = self._cause(psn, packet)
        newest = self.recent_requests.last_added
        if newest is not None and self.connection.identities[self.end].counts_up:
            self._note_unseen_ids(newest, packet)
        run = self.retransmission = Retransmission(
            FlowEvent(
                kind=FlowEventKind.RETRANSMISSION,
                connection=self.connection.number,
                direction=self.end,
                number=packet.number,
                time_ns=packet.time_ns,
                psn=packet.psn,
                last_psn=packet.psn,
                count=0,
                opcode=packet.opcode,
                cause=cause,
                cause_number=number,
                delay_ns=packet.time_ns - since if since else None,
            ),
            place=packet.place,
            waited_ns=packet.time_ns - (since or self.last_ns),
            psn=psn,
            end=psn,
        )
        counts = self.connection.directions[self.end]
        match cause:
            case Cause.NAK | Cause.RNR:
                pass  # whether it came in time or not, the requester was asked to
            case Cause.TIMEOUT | Cause.ACK_LOST:
                counts.timeouts += 1
                counts.unexplained += cause is Cause.TIMEOUT
            case _ if packet.time_ns - self.last_ns > SILENCE_NS:
                counts.timeouts += 1  # rxe waits, and takes no missing response for a NAK
        if cause is Cause.IMPLIED_NAK:
            counts.implied_naks += 1
        self.attempts += 1
        self._move_requester(RequesterInput.GO_BACK)
        # What else was refused is ignored during the retransmission, and sometimes obeyed
        # later (reorder-ab-3pc.b packet 190).
        self._keep_refusals(after=psn)
        return run

    def _cause(self, psn: int, packet: TransportPacket) -> tuple[Cause, int, int]:
        """Why requests are retransmitted from this PSN on, the packet that shows it, and its
        time."""
        refusal = self._refusal_of(psn)
        before = self.recent_requests.get(psn) or self.recent_responses.get(psn)
        sent, sent_ns = (before.number, before.time_ns) if before else (0, self.last_ns)
        waited = packet.time_ns - self.last_ns
        if refusal is not None and (refusal.cause in (Cause.NAK, Cause.RNR) or waited < SILENCE_NS):
            return refusal.cause, refusal.number, refusal.time_ns
        if self.acked >= psn:
            return Cause.ACK_LOST, sent, sent_ns
        if waited >= SILENCE_NS or self.connection.is_paired:
            return Cause.TIMEOUT, sent, sent_ns
        return Cause.UNKNOWN, 0, 0

    def _note_skipped(self, run: Retransmission, psn: int, packet: TransportPacket) -> None:
        """Requests were left out where all are retransmitted: lost, if they were sent."""
        before = self.recent_requests.get(run.psn)
        identity = self.connection.identities[self.end]
        assert self.next is not None
        if before is None or not identity.counts_up:
            return
        end = min(psn, self.next)  # beyond, they are missing for the first time
        known = sum(run.end <= each < end for each in self.recent_requests.all())
        unseen = identity.unseen(before, packet)
        if not unseen:
            return
        for packets in {known, end - run.end}:
            if packets and len(unseen) == packets + psn - end:
                gap = Gap(run.end, end, packet.number, packet.time_ns, packets)
                self.unsettled.skipped.append(gap)
                return
        self._note_unseen_ids(before, packet)

    def _note_unseen_ids(self, before: TransportPacket, packet: TransportPacket) -> None:
        """Note IP identifications left out between two requests, unless the sender was silent."""
        if packet.time_ns - before.time_ns < NO_SKIP_NS:
            identity = self.connection.identities[self.end]
            self.unsettled.ip_ids |= identity.unseen(before, packet)

    def _end_run(self) -> None:
        """Report the retransmission that was going on."""
        run = self._run
        if run is not None:
            self._report(run.event)

    def _fill_late(self, psn: int, packet: TransportPacket) -> None:
        """A missing request has arrived late."""
        span = self._span(packet)
        for gaps in (self.unsettled.skipped, self.unsettled.requests, self.missing):
            gap = within(gaps, psn)
            if gap is not None:
                cut(gaps, gap, first=psn, end=psn + span)
                if gaps is self.missing:
                    self._add(psn, span, packet)
                return

    # Responses.

    def handle_response(self, packet: TransportPacket) -> PacketStatus:
        """Take a response; returns what it is."""
        if self.next is None:
            return self._handle_unrequested(packet)
        if 0 <= packet.syndrome < INVALID_CREDITS:
            counts = self.connection.directions[self.end]
            counts.note_credits(lowest=packet.syndrome, highest=packet.syndrome)
        psn = self.next + (packet.psn - self.next + HALF & MASK) - HALF
        if packet.opcode in ACKNOWLEDGE:
            status = self._acknowledge(psn, packet)
        else:
            status = self._answer(psn, packet)
        if status is PacketStatus.DUPLICATE:
            self._note_duplicate(1 - self.end, packet, self.recent_responses.get(psn))
        else:
            self.recent_responses.add(psn, packet)
        self._age()
        self.last_ns = packet.time_ns
        return status

    def _handle_unrequested(self, packet: TransportPacket) -> PacketStatus:
        """A response where no request is seen: follow the PSNs inside a READ, and NAKs."""
        if self._packet_observer is not None:
            self._packet_observer.response(self, packet, PacketStatus.UNKNOWN)
        counts = self.connection.directions[1 - self.end]
        if packet.opcode in ACKNOWLEDGE:
            if kind(packet.syndrome) is not AckKind.ACK:
                self._refuse(packet.psn, packet)
        else:
            expected = self.unrequested_next
            step = 0 if expected is None else (packet.psn - expected + HALF & MASK) - HALF
            if step > 0 and packet.opcode not in STARTS:
                self.connection.count_lost(1 - self.end, psn=packet.psn, count=step)
            if step < 0:
                counts.retransmitted += 1
            else:
                is_followed = packet.opcode in FULL
                self.unrequested_next = packet.psn + 1 & MASK if is_followed else None
        self.last_ns = packet.time_ns
        return PacketStatus.UNKNOWN

    def _acknowledge(self, psn: int, packet: TransportPacket) -> PacketStatus:
        """An ACK, NAK or RNR NAK."""
        is_ack = kind(packet.syndrome) is AckKind.ACK
        upto = psn if is_ack else psn - 1
        status = self._status_of_acknowledge(psn, packet)
        if self._packet_observer is not None:
            self._packet_observer.response(self, packet, status)
        self._note_order(1 - self.end, psn, packet, status)
        if status is PacketStatus.NEW:
            self._settle(upto, packet)
        if not is_ack and status is not PacketStatus.DUPLICATE:
            self._refuse(psn, packet)
        return status

    def _status_of_acknowledge(self, psn: int, packet: TransportPacket) -> PacketStatus:
        assert self.next is not None
        identity = self.connection.identities[1 - self.end]
        is_ack = kind(packet.syndrome) is AckKind.ACK
        before = self.recent_responses.get(psn)
        run = self._run
        has_cause = is_ack or (run is not None and before is not None and run.place > before.place)
        if identity.is_duplicate(packet, before, has_cause=has_cause):
            return PacketStatus.DUPLICATE
        if (psn if is_ack else psn - 1) >= self.next:
            return PacketStatus.UNKNOWN
        if not is_ack or psn > self.acked:
            return PacketStatus.NEW
        is_late = identity.is_overtaken(packet, otherwise=False)
        return PacketStatus.REORDERED if is_late else PacketStatus.STALE

    def _refuse(self, psn: int, packet: TransportPacket) -> None:
        """A NAK or an RNR NAK."""
        counts = self.connection.directions[self.end]
        value = code(packet.syndrome)
        event, wait_ns = FlowEventKind.NAK, None
        if kind(packet.syndrome) is AckKind.RNR_NAK:
            counts.rnr_naks += 1
            event, wait_ns = FlowEventKind.RNR_NAK, RNR_TIMER_US[value] * 1000
            self._add_refusal(psn, packet, Cause.RNR, wait_ns)
        else:
            counts.count_nak(NAK_NAMES.get(value, f"code_{value}"))
            if value == NakCode.PSN_SEQUENCE_ERROR:
                self._add_refusal(psn, packet, Cause.NAK)
            else:
                self._move_responder(ResponderInput.FATAL_NAK)
        self._report(
            FlowEvent(
                kind=event,
                connection=self.connection.number,
                direction=self.end,
                number=packet.number,
                time_ns=packet.time_ns,
                psn=packet.psn,
                last_psn=packet.psn,
                opcode=packet.opcode,
                delay_ns=wait_ns,
                code=packet.syndrome,
            )
        )

    def _settle(self, upto: int, packet: TransportPacket) -> None:
        """Everything up to this PSN is acknowledged, except READs and atomics."""
        assert self.next is not None
        if upto > self.acked:
            self.acked = upto
            self.attempts = 0
            while self.missing and self.missing[0].first <= upto:
                self._lose_acknowledged(self.missing[0], upto)
        messages = self.messages
        done = 0
        while messages and (progress := self._oldest_progress()) is not _Progress.OPEN:
            message = messages.pop(0)
            if progress is _Progress.OVERDUE:
                self._abandon_read(message)
            else:
                done += 1
                if message.last != upto:
                    self._note_coalesced(1 - self.end)
                self._complete(message, packet)
        if done:
            counts = self.connection.directions[self.end]
            counts.acks += 1
            counts.acked_messages += done
        if self.refusals and self.acked + 1 == self.next and not self.missing_responses:
            self.refusals = []
            self._move_responder(ResponderInput.OBEYED)
        if messages and messages[0].next_response >= 0 and messages[0].last < self.acked:
            self._imply_nak(messages[0], packet)

    def _note_coalesced(self, direction: int) -> None:
        """A message was answered by a response to a later one."""
        self.connection.directions[self.end].coalesced += 1
        if self.connection.identities[direction].high < 0:
            # Before the first packet of the responder it is not known what it sent.
            self.connection.directions[direction].skipped_ids += 1

    def _oldest_progress(self) -> _Progress:
        """How far the oldest message is."""
        messages = self.messages
        message = messages[0]
        if message.next_response >= 0:
            if message.next_response > message.last and not self._lacks_responses(message):
                return _Progress.DONE
            is_overdue = len(messages) > OVERDUE and messages[OVERDUE].last <= self.acked
            return _Progress.OVERDUE if is_overdue else _Progress.OPEN
        if message.is_whole:
            return _Progress.DONE if message.last <= self.acked else _Progress.OPEN
        # Its last packet was not captured if what follows it is acknowledged.
        is_passed = len(messages) > 1 and messages[1].first <= self.acked + 1
        return _Progress.DONE if is_passed else _Progress.OPEN

    def _abandon_read(self, message: OpenMessage) -> None:
        """The requester has the responses of a READ, although they were not captured."""
        for gap in self.missing_responses[:]:
            if gap.first <= message.last:
                gap.packets = gap.end - gap.first
                self.missing_responses.remove(gap)
                self._lose(gap, 1 - self.end)
        rest = message.last + 1 - message.next_response
        if rest > 0:
            number, time_ns = message.last_number, message.last_ns
            gap = Gap(message.next_response, message.last + 1, number, time_ns, rest)
            self._lose(gap, 1 - self.end)
        self._keep_refusals(after=message.last)
        self._report_message(message)

    def _lose_acknowledged(self, gap: Gap, upto: int) -> None:
        """Requests were acknowledged although they were never seen here."""
        end = min(gap.end, upto + 1)
        lost = Gap(gap.first, end, gap.number, gap.time_ns, end - gap.first)
        self._lose(lost, self.end)
        cut(self.missing, gap, first=gap.first, end=end)

    def _lacks_responses(self, message: OpenMessage) -> bool:
        """Whether responses of a READ are missing before the newest."""
        gaps = self.missing_responses
        return any(gap.first <= message.last and message.first < gap.end for gap in gaps)

    def _imply_nak(self, message: OpenMessage, packet: TransportPacket) -> None:
        """A response beyond an unanswered READ or atomic: an implied NAK (IBA 9.7.5.2.8)."""
        first = [gap.first for gap in self.missing_responses if gap.first >= message.first]
        psn = min([*first, message.next_response])
        if self._refusal_of(psn) is None:
            self._add_refusal(psn, packet, Cause.IMPLIED_NAK)

    def _answer(self, psn: int, packet: TransportPacket) -> PacketStatus:
        """A response of a READ, or to an atomic."""
        message = None
        for each in self.messages:
            if each.next_response >= 0 and each.first <= psn <= each.last:
                message = each
        if message is None or psn < message.next_response:
            status = self._status_of_old_answer(psn, packet)
        elif self._skips_responses(message, psn):
            status = PacketStatus.AFTER_GAP
        else:
            status = PacketStatus.NEW
        if self._packet_observer is not None:
            self._packet_observer.response(self, packet, status)
        self._note_order(1 - self.end, psn, packet, status)
        match status:
            case PacketStatus.NEW | PacketStatus.AFTER_GAP:
                assert message is not None
                if status is PacketStatus.AFTER_GAP:
                    self._miss_responses(message, psn, packet)
                self.connection.directions[1 - self.end].doubtful += message.is_doubtful
                message.next_response = psn + 1
                self._settle(psn, packet)
            case PacketStatus.RETRANSMITTED:
                self._answer_again(psn, packet)
            case PacketStatus.REORDERED:
                for gaps in (self.unsettled.responses, self.missing_responses):
                    gap = within(gaps, psn)
                    if gap is not None:
                        cut(gaps, gap, first=psn, end=psn + 1)
                        self._settle(self.acked, packet)
                        break
        return status

    def _skips_responses(self, message: OpenMessage, psn: int) -> bool:
        """Whether responses before this one of a message have not been seen."""
        if psn > message.next_response:
            return True
        for each in self.messages:
            if each is message:
                return False
            if 0 <= each.next_response <= each.last:
                return True
        return False

    def _miss_responses(self, message: OpenMessage, psn: int, packet: TransportPacket) -> None:
        """Note that responses before this one have not been seen here."""
        cause = Cause.READ_GAP
        first = None
        for each in self.messages:
            upto = psn if each is message else each.last + 1
            if 0 <= each.next_response < upto:
                gap = Gap(each.next_response, upto, packet.number, packet.time_ns)
                self.missing_responses.append(gap)
                cause = Cause.READ_GAP if each is message else Cause.IMPLIED_NAK
                first = each.next_response if first is None else first
                each.next_response = upto
            if each is message:
                break
        if first is not None:
            self._add_refusal(first, packet, cause)

    def _status_of_old_answer(self, psn: int, packet: TransportPacket) -> PacketStatus:
        """What a response is whose PSN had been passed."""
        assert self.next is not None
        if psn >= self.next or psn < self.start:
            return PacketStatus.UNKNOWN
        identity = self.connection.identities[1 - self.end]
        was_seen = within(self.missing_responses, psn) is None
        was_repeated = any(first <= psn < end for first, end in self.repeated_reads)
        before = self.recent_responses.get(psn)
        if was_seen and identity.is_duplicate(packet, before, has_cause=was_repeated):
            return PacketStatus.DUPLICATE
        is_late = identity.is_overtaken(packet, otherwise=not was_seen and not was_repeated)
        return PacketStatus.REORDERED if is_late else PacketStatus.RETRANSMITTED

    def _answer_again(self, psn: int, packet: TransportPacket) -> None:
        """A response is retransmitted."""
        self.connection.directions[1 - self.end].retransmitted += 1
        end = self.replay_end
        if end is not None and psn > end:
            self._note_skipped_responses(end, psn, packet)
        self.replay_end = psn + 1
        gap = within(self.missing_responses, psn)
        if gap is not None:
            cut(self.missing_responses, gap, first=psn, end=psn + 1)
            self.unsettled.responses.append(Gap(psn, psn + 1, gap.number, gap.time_ns, 1))
            self._settle(self.acked, packet)

    def _note_skipped_responses(self, end: int, psn: int, packet: TransportPacket) -> None:
        """Responses were left out where a READ is answered again: lost, if they were sent."""
        before = self.recent_responses.get(end - 1)
        identity = self.connection.identities[1 - self.end]
        if before is None or not identity.counts_up:
            return
        if len(identity.unseen(before, packet)) == psn - end:
            gap = Gap(end, psn, packet.number, packet.time_ns, psn - end)
            self.unsettled.responses.append(gap)

    # States.

    def _move_requester(self, moved_by: RequesterInput) -> None:
        self.requester = REQUESTER_MOVES[self.requester][moved_by]

    def _move_responder(self, moved_by: ResponderInput) -> None:
        self.responder = RESPONDER_MOVES[self.responder][moved_by]

    def _refusal_of(self, psn: int) -> Refusal | None:
        """The NAK that names this PSN: an RNR NAK before others, which rxe sends after it."""
        fitting = [each for each in self.refusals if each.psn == psn]
        return max(fitting, key=lambda each: (each.cause is Cause.RNR, each.place), default=None)

    def _add_refusal(
        self, psn: int, packet: TransportPacket, cause: Cause, wait_ns: int = 0
    ) -> None:
        refusal = Refusal(
            psn=psn,
            number=packet.number,
            place=packet.place,
            time_ns=packet.time_ns,
            cause=cause,
            wait_ns=wait_ns,
        )
        self.refusals = [*self.refusals[1 - REFUSALS :], refusal]
        self._move_responder(refusal.input)

    def _keep_refusals(self, *, after: int) -> None:
        """Keep the refusals of later PSNs; the others are obeyed."""
        self.refusals = [each for each in self.refusals if each.psn > after]
        self._move_responder(ResponderInput.OBEYED)
        for each in self.refusals:
            self._move_responder(each.input)

    # Losses.

    def _age(self) -> None:
        """Count packets since the last retransmission; what is missing after many is lost."""
        unsettled = self.unsettled
        if unsettled.is_empty:
            if self.requester is RequesterState.SETTLING:
                self._move_requester(RequesterInput.SETTLED)
            return
        self._move_requester(RequesterInput.UNSETTLED)
        unsettled.age = 0 if self.is_retransmitting else unsettled.age + 1
        if unsettled.age > KEEP:
            self._settle_losses()
            self._move_requester(RequesterInput.SETTLED)

    def _settle_losses(self) -> None:
        """What had been missing before it was retransmitted was lost."""
        unsettled, self.unsettled = self.unsettled, Unsettled()
        self.connection.directions[self.end].unseen_ids += len(unsettled.ip_ids)
        for gap in joined(unsettled.requests) + unsettled.skipped:
            self._lose(gap, self.end)
        for gap in joined(unsettled.responses):
            self._lose(gap, 1 - self.end)

    def _lose(self, gap: Gap, direction: int) -> None:
        """Count the packets of a gap as lost, except those that were seen damaged."""
        psn = gap.first & MASK
        count = self.connection.count_lost(direction, psn=psn, count=gap.packets)
        if count:
            self._report(
                FlowEvent(
                    kind=FlowEventKind.LOST,
                    connection=self.connection.number,
                    direction=direction,
                    number=gap.number,
                    time_ns=gap.time_ns,
                    psn=psn,
                    last_psn=gap.end - 1 & MASK,
                    count=count,
                )
            )

    def limit(self) -> None:
        """Forget the oldest messages and gaps, of which there may be any number."""
        while len(self.messages) > LIMIT:
            self._report_message(self.messages.pop(0))
        for gaps, direction in self._open_gaps():
            while len(gaps) > GAPS:
                gap = gaps.pop(0)
                gap.packets = gap.end - gap.first
                self._lose(gap, direction)

    def _open_gaps(self) -> tuple[tuple[list[Gap], int], ...]:
        """Gaps, and the direction of their packets."""
        return (self.missing, self.end), (self.missing_responses, 1 - self.end)

    def finish(self, now: int) -> None:
        """The capture is over at `now` (ns), or the queue pair was reset."""
        if self.is_retransmitting or self.refusals:
            self._report_exceeded_retries(now)
        self._end_run()
        self._settle_losses()
        for gaps, direction in self._open_gaps():
            for gap in gaps:
                gap.packets = gap.end - gap.first
                self._lose(gap, direction)
            gaps.clear()
        for message in self.messages:
            self._report_message(message)
        self.messages.clear()

    def _report_exceeded_retries(self, now: int) -> None:
        """Report when the requester no longer retransmits what is not acknowledged."""
        is_failed = self.responder is ResponderState.FAILED
        if self.next is None or is_failed or self.acked + 1 >= self.next:
            return
        refusal, run = self._refusal_of(self.acked + 1), self.retransmission
        if refusal is not None and refusal.cause is Cause.RNR:
            cause, number, since = Cause.RNR_RETRIES, refusal.number, refusal.time_ns
            is_over = now - since > 2 * refusal.wait_ns + GIVE_UP_NS
        elif run is not None and self.attempts > 0:
            cause, number, since = Cause.RETRIES, run.event.number, run.event.time_ns
            is_over = now - since > 2 * run.waited_ns + GIVE_UP_NS
        else:
            return
        if is_over:
            self._report(
                FlowEvent(
                    kind=FlowEventKind.RETRY_EXCEEDED,
                    connection=self.connection.number,
                    direction=self.end,
                    number=number,
                    time_ns=since,
                    psn=self.acked + 1 & MASK,
                    last_psn=self.next - 1 & MASK,
                    count=self.attempts + 1,
                    cause=cause,
                )
            )

    # Order and duplicates.

    def _note_order(
        self, direction: int, psn: int, packet: TransportPacket, status: PacketStatus
    ) -> None:
        """Count a packet that was overtaken.

        rxe numbers requests and responses together, and may send them in another
        order: where PSNs are in order, only a packet of the same kind counts.
        """
        is_late = status is PacketStatus.REORDERED
        identity = self.connection.identities[direction]
        is_overtaken = identity.is_overtaken(packet, otherwise=is_late)
        if status is PacketStatus.DUPLICATE or not is_overtaken:
            return
        newest = self._recent(direction).last_added
        if not is_late and (
            newest is None or not 0 < (newest.ip_id - packet.ip_id & 0xFFFF) < REORDER_IDS
        ):
            return
        if direction == self.end:
            self.unsettled.ip_ids.discard(packet.ip_id)
        counts = self.connection.directions[direction]
        counts.reordered += 1
        if is_late and packet.opcode not in ACKNOWLEDGE:
            counts.retransmitted += self._was_sent_before(direction, psn, packet)
        self._report_packet(FlowEventKind.REORDERED, direction, packet)

    def _recent(self, direction: int) -> Recent:
        return self.recent_requests if direction == self.end else self.recent_responses

    def _was_sent_before(self, direction: int, psn: int, packet: TransportPacket) -> bool:
        """Whether a packet that was overtaken is not the first of its PSN."""
        if direction == self.end:
            gaps = self.unsettled.requests, self.missing
        else:
            gaps = self.unsettled.responses, self.missing_responses
        before = self._recent(direction).get(psn)
        if before is not None and 0 < (packet.ip_id - before.ip_id & 0xFFFF) < REORDER_IDS:
            return True
        return psn >= self.start and not any(within(each, psn) for each in gaps)

    def _note_duplicate(
        self, direction: int, packet: TransportPacket, first: TransportPacket | None
    ) -> None:
        self.connection.directions[direction].duplicates += 1
        number = first.number if first else 0
        self._report_packet(FlowEventKind.DUPLICATE, direction, packet, cause_number=number)

    # Reports to the observer.

    def _complete(self, message: OpenMessage, packet: TransportPacket) -> None:
        """A message is acknowledged by this packet."""
        counts = self.connection.directions[self.end]
        counts.completed += 1
        counts.message_bytes += message.size
        if self.connection.is_reliable:
            counts.latency.add_one(packet.time_ns - message.first_ns)
        self._report_message(message, packet)

    def _report_message(
        self, message: OpenMessage, acked_by: TransportPacket | None = None
    ) -> None:
        if acked_by is None:
            self.report_message(message, number=0, time_ns=0)
        else:
            self.report_message(message, number=acked_by.number, time_ns=acked_by.time_ns)

    def report_message(self, message: OpenMessage, *, number: int, time_ns: int) -> None:
        """Pass on a message and the response that completes it; 0 and 0 without one."""
        if self._observer is not None:
            self._observer.message(
                Message(
                    connection=self.connection.number,
                    direction=self.end,
                    verb=message.verb,
                    first_psn=message.first & MASK,
                    last_psn=message.last & MASK,
                    size=message.size,
                    first_number=message.first_number,
                    last_number=message.last_number,
                    first_ns=message.first_ns,
                    last_ns=message.last_ns,
                    acked_number=number,
                    acked_ns=time_ns,
                    retransmitted_packets=message.retransmitted,
                )
            )

    @property
    def has_observer(self) -> bool:
        """Whether events and messages are reported."""
        return self._observer is not None

    def _report(self, event: FlowEvent) -> None:
        if self._observer is not None:
            self._observer.event(event)

    def _report_packet(
        self,
        what: FlowEventKind,
        direction: int,
        packet: TransportPacket,
        cause_number: int = 0,
    ) -> None:
        if self._observer is not None:
            self._observer.event(
                FlowEvent.of_packet(
                    packet,
                    kind=what,
                    connection=self.connection.number,
                    direction=direction,
                    cause_number=cause_number,
                )
            )
