"""Follows the requests of one end of a connection, and the responses to them, PSN by PSN.

Everything is inferred from packets seen at one point of the path. A request is new
when its PSN is the next one, or ahead of it: then the PSNs in between are missing
here. A PSN that was passed arrives again for one of three reasons:

- RETRANSMITTED: the requester retransmitted it,
- DUPLICATE: the network, or the capture, duplicated it,
- REORDERED: it arrived after later packets, and is one of the missing.

The identification of IPv4 distinguishes them where the sender increments it (rxe
does); elsewhere the earlier responses and the time decide. The responses of a READ
are followed in the same way.

The states of both ends and the moves between them are in `states`, what the responder
has refused in `refusals`, what was not seen in `unseen`. PSNs are unwrapped: they continue
beyond 24 bits.

Source: IBA 9.7.1 and 9.7.3 (PSNs, what a READ reserves), 9.7.5.1 (responses and
what they acknowledge), 9.7.5.2 (NAK, RNR NAK, implied NAK), 9.9 (going back).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from ibwire.connections.connection import MTUS, Connection
from ibwire.connections.ending import NAMED, Ending, OpenRequest, Trouble
from ibwire.connections.events import Cause, FlowEvent, FlowEventKind, Observer
from ibwire.connections.gaps import within
from ibwire.connections.identity import REORDER_IDS, Recent
from ibwire.connections.opcode_sets import ACKNOWLEDGE, ANSWERED, ENDS, FULL, READ, STARTS, VERB
from ibwire.connections.open_message import (
    OpenMessage,
    Progress,
    add_request,
    answered_by,
    oldest_progress,
    skips_responses,
)
from ibwire.connections.packets import TransportPacket
from ibwire.connections.refusals import Refusal, Refusals
from ibwire.connections.reporting import Reporter
from ibwire.connections.states import (
    REQUESTER_MOVES,
    PacketStatus,
    RequesterInput,
    RequesterState,
    ResponderState,
)
from ibwire.connections.unseen import Unseen
from ibwire_layers.psn import HALF, MASK, MODULUS
from ibwire_layers.syndrome import INVALID_CREDITS, RNR_TIMER_US, AckKind, NakCode, code, kind

REPEATED_READS = 32
"""READs and atomics that were retransmitted, which are remembered to recognise their responses."""
ANSWERED_AGAIN = 1024
"""PSNs of retransmitted responses that are remembered."""
LIMIT = 4096
"""Messages that may be open; in a capture of one direction no message is ever completed."""
START_PSNS = 16
"""Negotiated first PSNs that are remembered until they are seen."""
LATE = 1 << 12
"""The first request that is seen has at most so many PSNs after the negotiated one: more than are
outstanding. Those before it were not seen."""
JUMP = 1 << 16
"""A larger step in PSNs is a reset of the queue pair and no loss. A lost READ of 64 MiB reserves
as many at an MTU of 1024."""
GIVE_UP_NS = 100_000_000
"""A requester that has not retransmitted so long after it was due has given up. Timers of Linux
are late by tens of milliseconds at most (rnr-late-recv, rnr-multi-packet)."""
SILENCE_NS = 1_000_000
"""A retransmission after a longer silence was started by a timer. NICs answer a NAK within
hundreds of microseconds at most (Lumina)."""
PAUSE_NS = 10_000_000
"""After a longer silence a retransmission does not go on: a timer has started another one."""
NO_SKIP_NS = 500_000
"""Between packets that follow each other so soon no sender leaves out IP identifications. Linux
does after a jiffy or more, 1 ms at least (net/ipv4/route.c ip_idents_reserve)."""

UNANSWERED_NS = 1_000_000_000
"""A request without a response for so long is trouble, where no timeout of its requester was seen:
adapters respond within microseconds, and the usual ACK timeouts are shorter (67 ms for perftest
and ibv_*_pingpong)."""
DAMAGED_AHEAD = 1024
"""PSNs ahead of the last request in which a damaged packet counts as the next one."""

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


@dataclass(slots=True)
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


class RequestTracker:
    """The requests of one end of a connection and the responses to them.

    end: which end sends the requests. learn_mtu: called when a READ shows the path MTU,
    which both trackers of the connection then know.
    """

    __slots__ = (
        "_answered_end",
        "_disturbed_ns",
        "_learn_mtu",
        "_packet_observer",
        "_reports",
        "acked",
        "answered_again",
        "attempts",
        "connection",
        "disturbed_end",
        "end",
        "last_ns",
        "messages",
        "next",
        "recent_requests",
        "recent_responses",
        "refusals",
        "repeated_reads",
        "replay_end",
        "requester",
        "retransmission",
        "start",
        "start_psns",
        "unrequested_nak",
        "unrequested_next",
        "unseen",
    )

    def __init__(
        self,
        end: int,
        *,
        reports: Reporter,
        packet_observer: PacketObserver | None,
        learn_mtu: Callable[[int], None],
    ) -> None:
        self.connection = reports.connection
        self.end = end
        self._reports = reports
        self._packet_observer = packet_observer
        self._learn_mtu = learn_mtu
        self.start_psns: list[int | None] = []
        """Negotiated PSNs of a first request that has not been seen yet."""
        self._reset()

    def _reset(self) -> None:
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
        self.unseen = Unseen(self._reports, self.end)
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
        self.repeated_reads: list[tuple[int, int]] = []
        """First PSN, and PSN after the last, of READs and atomics that were retransmitted; the
        newest."""
        self.answered_again: dict[int, int] = {}
        """How often responses were retransmitted, by PSN; the newest."""
        self.replay_end: int | None = None
        """PSN after the last response that was retransmitted."""
        self.unrequested_next: int | None = None
        """PSN of the next response of a READ whose request was never seen."""
        self._answered_end = 0
        """PSN after the newest response since the newest retransmission, while it is disturbed."""
        self._disturbed_ns = 0
        """When that began."""
        self.unrequested_nak: tuple[Trouble, int] | None = None
        """A NAK of requests that were never seen, and its PSN, until a response answers that."""
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
        self._reports = before._reports
        self.unseen.join(before.unseen)
        self._packet_observer = before._packet_observer
        self._learn_mtu = before._learn_mtu
        if next_there is not None and before.next is not None:
            self.start = next_there - (before.next - before.start)
            if before.disturbed_end:
                before_here = next_there + before.disturbed_end - before.next
                self.disturbed_end = max(self.disturbed_end, before_here)

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
            self.requester in (RequesterState.NOT_SEEN, RequesterState.IN_SEQUENCE)
            and not self.refusals
            and not (self.next is not None and self._was_damaged(self.next & MASK))
            and not self.unseen.requests
            and not self.unseen.responses
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
        unseen = self.unseen
        gaps = (
            unseen.requests,
            unseen.responses,
            unseen.unsettled.requests,
            unseen.unsettled.skipped,
            unseen.unsettled.responses,
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
        if not step and self._was_damaged(packet.psn):
            status = PacketStatus.RETRANSMITTED
            span = self._span(packet)
            self.unseen.miss_requests(psn, psn + span, packet)
            self.next = psn + span
        elif step >= 0:
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

    def _was_damaged(self, psn: int) -> bool:
        """Whether the next new request was seen damaged, so that this is its retransmission."""
        return self.connection.is_reliable and psn in self.connection.damaged_psns[self.end]

    def _restart(self, packet: TransportPacket) -> None:
        """Restart with this request: the queue pair was reset, or its number was reused."""
        counts = self.connection.directions[self.end]
        counts.cut_short += self.ending(packet.time_ns).trouble is not None
        self.finish(packet.time_ns)
        self._reports.packet(FlowEventKind.RESTART, self.end, packet)
        counts.restarts += 1
        self._reset()
        self._begin(packet)

    def _begin(self, packet: TransportPacket) -> None:
        first = self._negotiated_start(packet.psn)
        if first is None:
            first = packet.psn
        else:
            self.start_psns.remove(first)
        # Plus one wrap-around, so that PSNs before the first packet are not negative.
        self.start = self.next = first + MODULUS
        self.acked = self.start - 1
        self.last_ns = packet.time_ns
        self._move_requester(RequesterInput.FIRST)

    def _negotiated_start(self, psn: int) -> int | None:
        """The negotiated first PSN of requests that begin here with this PSN, or shortly before."""
        near = [each for each in self.start_psns if each is not None and psn - each & MASK <= LATE]
        return min(near, key=lambda each: psn - each & MASK, default=None)

    def _advance(self, psn: int, packet: TransportPacket) -> None:
        """A request beyond all that were seen."""
        assert self.next is not None
        if psn > self.next:
            self.unseen.miss_requests(self.next, psn, packet)
            self._disturb(psn, packet)
        else:
            self.note_new_request()
        run = self._run
        if run is not None and run.end < self.next:
            if self._may_be_late(run):
                self._take_back(run)
                run = None
            else:
                self._note_skipped(run, psn, packet)
        is_late = run is not None and run.event.cause is Cause.TIMEOUT and run.is_after_silence
        if is_late and packet.opcode not in STARTS:
            # The rest of a message that had broken off was lost, this packet at least.
            self._disturb(psn + 1, packet)
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
                self._reports.message(message, self.end)

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
        """Find the path MTU, where a READ of unknown length is followed by this request.

        It may be the next request, or the same READ retransmitted from a later PSN and
        address on. If neither shows the MTU, the READ has at least reached that PSN.
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
        """The status of a request whose PSN is not new."""
        identity = self.connection.identities[self.end]
        was_seen = psn >= self.start and within(self.unseen.requests, psn) is None
        before = self.recent_requests.get(psn)
        since = (-1, 0) if before is None else before.place
        run = self._run
        is_due = any(each.psn <= psn and each.place > since for each in self.refusals)
        is_due |= run is not None and run.place > since
        if not identity.decides(packet):
            # The first of a retransmission may have been a late one, and this the first.
            is_due |= run is not None and run.event.count == 1 and run.psn == psn
            is_due |= packet.time_ns - self.last_ns > SILENCE_NS
            if packet.opcode in ANSWERED:  # a response may have been lost after this point
                answer = self.recent_responses.last_added
                is_due |= answer is not None and answer.place > since and self.acked > psn
            if run is not None and run.psn == psn and self._may_be_late(run):
                self._take_back(run)
                return PacketStatus.RETRANSMITTED
            is_due |= any(each.psn == psn for each in self.refusals)
            if not is_due and self.unseen.is_unseen(self.end, psn) and was_seen:
                return PacketStatus.REORDERED  # the first, after its retransmission
        if was_seen and identity.is_duplicate(packet, before, has_cause=is_due):
            return PacketStatus.DUPLICATE
        if not self.connection.is_reliable:
            return PacketStatus.DUPLICATE if was_seen else PacketStatus.REORDERED
        if identity.decides(packet):
            is_late = identity.is_overtaken(packet, otherwise=False)
            return PacketStatus.REORDERED if is_late else PacketStatus.RETRANSMITTED
        if self._has_cause(psn, packet, since):
            return PacketStatus.RETRANSMITTED
        if not was_seen or self.unseen.is_unseen(self.end, psn):
            return PacketStatus.REORDERED
        return PacketStatus.RETRANSMITTED

    def _has_cause(self, psn: int, packet: TransportPacket, since: tuple[int, int]) -> bool:
        """Whether something that was seen could have made the requester retransmit this.

        since: file and number of the newest packet of this PSN.
        """
        run = self._run
        if run is not None and run.end <= psn and run.place > since:
            return True  # the retransmission goes on
        if packet.time_ns - self.last_ns > SILENCE_NS:
            return True
        was_seen = psn in self.recent_requests.all()
        return any(
            (each.psn == psn or (was_seen and each.psn < psn)) and each.place > since
            for each in self.refusals
        )

    # Retransmitted requests.

    @property
    def _run(self) -> Retransmission | None:
        """The retransmission that is going on."""
        return self.retransmission if self.is_retransmitting else None

    def _retransmit(self, psn: int, packet: TransportPacket) -> None:
        self.connection.directions[self.end].retransmitted += 1
        run = self._run
        refusal = self.refusals.of(psn)
        is_paused = packet.time_ns - self.last_ns > PAUSE_NS
        if run is None or psn < run.end or is_paused or (refusal and refusal.place > run.place):
            self._end_run()
            run = self._go_back(psn, packet)
        else:
            self._note_skipped(run, psn, packet)
        assert self.next is not None
        self._disturb(self.next, packet)
        self._answered_end = 0
        span = self._span(packet)
        run.event.count += 1
        run.event.last_psn = psn + span - 1 & MASK
        run.event.last_number = packet.number
        run.psn, run.end = psn, psn + span
        if packet.opcode in ANSWERED:
            self.repeated_reads = [*self.repeated_reads[1 - REPEATED_READS :], (psn, psn + span)]
        self.replay_end = None
        if self.unseen.retransmit_request(psn, psn + span):
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
            is_after_silence=packet.time_ns - self.last_ns >= SILENCE_NS,
            psn=psn,
            end=psn,
            obeyed=list(self.refusals),
        )
        counts = self.connection.directions[self.end]
        refused = None if self.refusals.of(psn) else self._refusal_before(psn)
        if refused is not None and refused.number == number:
            known = sum(refused.psn <= each < psn for each in self.recent_requests.all())
            self.unseen.skip_requests(refused.psn, psn, packet, max(known, 1))
        match cause:
            case Cause.NAK | Cause.RNR:
                pass  # in time or not, the requester was asked to retransmit
            case Cause.TIMEOUT | Cause.ACK_LOST:
                counts.timeouts += 1
                counts.unexplained += cause is Cause.TIMEOUT
            case _ if packet.time_ns - self.last_ns > SILENCE_NS:
                counts.timeouts += 1  # rxe waits, and takes no missing response for a NAK
        if cause is Cause.IMPLIED_NAK:
            counts.implied_naks += 1
        counts.retransmissions += 1
        self.attempts += 1
        self._move_requester(RequesterInput.GO_BACK)
        # What else was refused is ignored during the retransmission, and sometimes obeyed
        # later (reorder-ab-3pc.b packet 190).
        self.refusals.obey(upto=psn)
        return run

    def _cause(self, psn: int, packet: TransportPacket) -> tuple[Cause, int, int]:
        """Why requests are retransmitted from this PSN on, the packet that shows it, and its
        time."""
        refusal = self.refusals.of(psn) or self._refusal_before(psn)
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

    def _may_be_late(self, run: Retransmission) -> bool:
        """Whether the only packet of a retransmission may be the first of its PSN, and late."""
        return (
            run.event.count == 1
            and run.event.cause is Cause.NAK
            and not self.connection.identities[self.end].counts_up
            and within(self.unseen.unsettled.requests, run.psn) is not None
        )

    def _take_back(self, run: Retransmission) -> None:
        """What seemed to begin a retransmission was late: the NAK is not obeyed yet."""
        counts = self.connection.directions[self.end]
        counts.retransmitted -= 1
        counts.reordered += 1
        self.attempts -= 1
        self.refusals.restore(run.obeyed)
        self.unseen.fill_request(run.psn, run.end)
        self.retransmission = None
        late = self.recent_requests.get(run.psn)
        if late is not None:
            self._reports.packet(FlowEventKind.REORDERED, self.end, late)

    def _refusal_before(self, psn: int) -> Refusal | None:
        """The NAK that a retransmission obeys whose first packets were not seen here."""
        before = self.recent_requests.get(psn)
        since = (-1, 0) if before is None else before.place
        for each in reversed(list(self.refusals)):
            if each.cause in (Cause.NAK, Cause.RNR) and self.acked < each.psn < psn:
                return each if each.place > since else None
        return None

    def _note_skipped(self, run: Retransmission, psn: int, packet: TransportPacket) -> None:
        """Requests were left out where all are retransmitted: lost, if they were sent."""
        before = self.recent_requests.get(run.psn)
        identity = self.connection.identities[self.end]
        assert self.next is not None
        if before is None:
            return
        end = min(psn, self.next)  # beyond, they are missing for the first time
        known = sum(run.end <= each < end for each in self.recent_requests.all())
        if not identity.counts_up:
            # Before something new, and except what is acknowledged, a requester leaves out nothing.
            if known and self.acked < run.end and psn < self.next:
                self.unseen.skip_requests(run.end, end, packet, known)
            return
        unseen = identity.unseen(before, packet)
        if not unseen:
            return
        for packets in {known, end - run.end}:
            if packets and len(unseen) == packets + psn - end:
                self.unseen.skip_requests(run.end, end, packet, packets)
                return
        self._note_unseen_ids(before, packet)

    def _note_unseen_ids(self, before: TransportPacket, packet: TransportPacket) -> None:
        """Note IP identifications left out between two requests, unless the sender was silent."""
        if packet.time_ns - before.time_ns < NO_SKIP_NS:
            identity = self.connection.identities[self.end]
            self.unseen.unsettled.ip_ids |= identity.unseen(before, packet)

    def _end_run(self) -> None:
        """Report the retransmission that was going on."""
        run = self._run
        if run is not None:
            self._reports.event(run.event)

    def _fill_late(self, psn: int, packet: TransportPacket) -> None:
        """A missing request has arrived late."""
        span = self._span(packet)
        if self.unseen.fill_request(psn, psn + span):
            self._add(psn, span, packet)

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
        is_nak = packet.opcode in ACKNOWLEDGE and kind(packet.syndrome) is not AckKind.ACK
        if self.disturbed_end and status is not PacketStatus.UNKNOWN and not is_nak:
            self.note_answered(psn)
        if status is PacketStatus.DUPLICATE:
            self._note_duplicate(1 - self.end, packet, self.recent_responses.get(psn))
        else:
            self.recent_responses.add(psn, packet)
        self._age()
        self.last_ns = packet.time_ns
        return status

    def _disturb(self, end: int, packet: TransportPacket) -> None:
        """Requests up to PSN `end` - 1 are missing, refused or retransmitted, as this shows."""
        if not self.disturbed_end:
            self.connection.directions[self.end].disturbances += 1
            self._disturbed_ns = packet.time_ns
        self.disturbed_end = max(self.disturbed_end, end)

    def note_new_request(self) -> None:
        """The requester goes on: where its responses were not captured, that ends a disturbance."""
        if not self.connection.is_paired and not self.unseen.requests:
            self.disturbed_end = 0

    def note_answered(self, psn: int) -> None:
        """An ACK, or a response of a READ; it may answer the last of the disturbed requests."""
        self._answered_end = psn + 1
        if psn + 1 < self.disturbed_end:
            return
        waits = any(
            message.first < self.disturbed_end and self._is_open(message) for message in self.reads
        )
        if not waits and not any(gap.first < psn for gap in self.unseen.responses):
            self.disturbed_end = 0

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
        nak = self.unrequested_nak
        if nak is None or (packet.psn - nak[1] & MASK) < HALF:
            asked = _asks_for(packet)
            self.unrequested_nak = None if asked is None else (asked, packet.psn)
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
        self._disturb(psn + 1, packet)
        event, wait_ns = FlowEventKind.NAK, None
        if kind(packet.syndrome) is AckKind.RNR_NAK:
            counts.rnr_naks += 1
            event, wait_ns = FlowEventKind.RNR_NAK, RNR_TIMER_US[value] * 1000
            self.refusals.add(psn, packet, Cause.RNR, wait_ns)
        else:
            counts.count_nak(NAK_NAMES.get(value, f"code_{value}"))
            if value == NakCode.PSN_SEQUENCE_ERROR:
                self.refusals.add(psn, packet, Cause.NAK)
            else:
                self.refusals.fail()
        self._reports.event(
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
            self.unseen.acknowledge(upto)
        messages = self.messages
        done = 0
        while messages and (progress := self._oldest_progress()) is not Progress.OPEN:
            message = messages.pop(0)
            if progress is Progress.OVERDUE:
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
        if self.refusals and self.acked + 1 == self.next and not self.unseen.responses:
            self.refusals.obey()
        if messages and messages[0].next_response >= 0 and messages[0].last < self.acked:
            self._imply_nak(messages[0], packet)

    def _note_coalesced(self, direction: int) -> None:
        """A message was answered by a response to a later one."""
        self.connection.directions[self.end].coalesced += 1
        if self.connection.identities[direction].high < 0:
            # Before the first packet of the responder it is not known what it sent.
            self.connection.directions[direction].skipped_ids += 1

    def _oldest_progress(self) -> Progress:
        """How far the oldest message is."""
        lacks_responses = self.unseen.lacks_responses(self.messages[0])
        return oldest_progress(self.messages, self.acked, lacks_responses=lacks_responses)

    def _abandon_read(self, message: OpenMessage) -> None:
        """The requester has the responses of a READ, although they were not captured."""
        self.unseen.abandon(message)
        self.refusals.obey(upto=message.last)
        self._reports.message(message, self.end)

    def _imply_nak(self, message: OpenMessage, packet: TransportPacket) -> None:
        """A response beyond an unanswered READ or atomic: an implied NAK (IBA 9.7.5.2.8)."""
        first = [gap.first for gap in self.unseen.responses if gap.first >= message.first]
        psn = min([*first, message.next_response])
        if self.refusals.of(psn) is None:
            self.refusals.add(psn, packet, Cause.IMPLIED_NAK)

    def _answer(self, psn: int, packet: TransportPacket) -> PacketStatus:
        """A response of a READ, or to an atomic."""
        message = answered_by(self.messages, psn)
        if message is None or psn < message.next_response:
            status = self._status_of_old_answer(psn, packet)
        elif skips_responses(self.messages, message, psn):
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
                if self.unseen.fill_response(psn):
                    self._settle(self.acked, packet)
        return status

    def _miss_responses(self, message: OpenMessage, psn: int, packet: TransportPacket) -> None:
        """Note that responses before this one have not been seen here."""
        cause = Cause.READ_GAP
        first = None
        for each in self.messages:
            upto = psn if each is message else each.last + 1
            if 0 <= each.next_response < upto:
                self.unseen.miss_responses(each.next_response, upto, packet)
                cause = Cause.READ_GAP if each is message else Cause.IMPLIED_NAK
                first = each.next_response if first is None else first
                each.next_response = upto
            if each is message:
                break
        if first is not None:
            self.refusals.add(first, packet, cause)
            self._disturb(psn, packet)

    def _status_of_old_answer(self, psn: int, packet: TransportPacket) -> PacketStatus:
        """The status of a response whose PSN is not new."""
        assert self.next is not None
        if psn >= self.next or psn < self.start:
            return PacketStatus.UNKNOWN
        identity = self.connection.identities[1 - self.end]
        was_seen = within(self.unseen.responses, psn) is None
        before = self.recent_responses.get(psn)
        repeats = sum(first <= psn < end for first, end in self.repeated_reads)
        was_repeated = repeats > self.answered_again.get(psn, 0)
        decides = identity.decides(packet)
        if not (was_repeated or decides) and self.unseen.is_unseen(1 - self.end, psn):
            return PacketStatus.REORDERED
        if was_seen and identity.is_duplicate(packet, before, has_cause=was_repeated):
            return PacketStatus.DUPLICATE
        if decides and identity.is_overtaken(packet, otherwise=False):
            return PacketStatus.REORDERED
        # A responder answers again only what it is asked again.
        is_copy = not (decides or was_repeated) and before is not None
        return PacketStatus.DUPLICATE if is_copy else PacketStatus.RETRANSMITTED

    def _answer_again(self, psn: int, packet: TransportPacket) -> None:
        """A response is retransmitted."""
        self.connection.directions[1 - self.end].retransmitted += 1
        again = self.answered_again
        again[psn] = again.pop(psn, 0) + 1
        if len(again) > ANSWERED_AGAIN:
            del again[next(iter(again))]
        end = self.replay_end
        if end is not None and psn > end:
            self._note_skipped_responses(end, psn, packet)
        self.replay_end = psn + 1
        if self.unseen.retransmit_response(psn):
            self._settle(self.acked, packet)

    def _note_skipped_responses(self, end: int, psn: int, packet: TransportPacket) -> None:
        """Responses were left out where a READ is answered again: lost, if they were sent."""
        before = self.recent_responses.get(end - 1)
        identity = self.connection.identities[1 - self.end]
        if before is None or not identity.counts_up:
            return
        if len(identity.unseen(before, packet)) == psn - end:
            self.unseen.skip_responses(end, psn, packet)

    # States.

    def _move_requester(self, moved_by: RequesterInput) -> None:
        self.requester = REQUESTER_MOVES[self.requester][moved_by]

    # What is not seen, and the end.

    def _age(self) -> None:
        """Count packets since the last retransmission; what is missing after many is lost."""
        if self.unseen.unsettled.is_empty:
            if self.requester is RequesterState.SETTLING:
                self._move_requester(RequesterInput.SETTLED)
            return
        self._move_requester(RequesterInput.UNSETTLED)
        if self.unseen.age(is_retransmitting=self.is_retransmitting):
            self._move_requester(RequesterInput.SETTLED)

    def limit(self) -> None:
        """Forget the oldest messages and gaps, of which there may be any number."""
        while len(self.messages) > LIMIT:
            self._reports.message(self.messages.pop(0), self.end)
        self.unseen.limit()

    def ending(self, now: int) -> Ending:
        """How the requests stand when the capture ends at `now` (ns)."""
        if self.next is None:
            return Ending(trouble=self.unrequested_nak and self.unrequested_nak[0])
        if not self.connection.is_reliable:
            return Ending()
        is_failed = self.responder is ResponderState.FAILED
        silence = now - self.last_ns
        trouble = None if is_failed else self._trouble(silence)
        still_open = list(filter(self._is_open, self.messages if self.connection.is_paired else ()))
        first = tuple(OpenRequest(each.verb, each.first_number) for each in still_open[:NAMED])
        return Ending(len(still_open), trouble, silence, first)

    def unacknowledged(self, ending: Ending) -> tuple[int, int]:
        """First PSN and count of the requests without a response when the capture ends.

        Without the other direction these are, if they were in no trouble, the newest one.
        """
        if self.next is None or not self.connection.is_reliable:
            return 0, 0
        is_seen = self.connection.is_paired or ending.trouble is not None
        first = self.acked + 1 if is_seen else self.next - 1
        return first & MASK, max(self.next - first, 0)

    def _is_open(self, message: OpenMessage) -> bool:
        """Whether a message lacks a response."""
        if message.next_response >= 0:
            return message.next_response <= message.last or self.unseen.lacks_responses(message)
        return message.last > self.acked

    def _trouble(self, silence: int) -> Trouble | None:
        """What is open, if the capture shows that something has gone wrong with it."""
        assert self.next is not None
        if self.disturbed_end and not self._is_settled(silence):
            return self._disturbance()
        if self._is_damaged_at_end():
            return Trouble.DAMAGED
        if not self.connection.is_paired or silence < self._patience_ns():
            return None
        waits = self.acked + 1 < self.next or any(map(self._is_open, self.messages))
        return Trouble.SILENCE if waits else None

    def _is_settled(self, silence: int) -> bool:
        """Whether the last retransmission was answered, and the requester asks for no more.

        It need not be of all requests: a READ is retransmitted alone if later ones are answered.
        """
        run = self.retransmission
        return (
            run is not None
            and self.connection.is_paired
            and self._answered_end >= run.end
            and self.acked + 1 == self.next
            and not self.unseen.responses
            and not any(map(self._is_open, self.messages))
            and silence >= self._patience_ns()
        )

    def _disturbance(self) -> Trouble:
        """What disturbed the requests that have not been answered since."""
        causes = {each.cause for each in self.refusals if each.psn > self.acked}
        if Cause.RNR in causes:
            return Trouble.RNR
        if Cause.NAK in causes:
            return Trouble.NAK
        run = self.retransmission
        is_answered = run is not None and self._answered_end >= run.end
        if is_answered and self.unseen.responses:
            return Trouble.RESPONSES_MISSING
        if run is not None and run.event.time_ns >= self._disturbed_ns:
            return Trouble.RETRANSMITTED
        if self.unseen.requests:
            return Trouble.REQUESTS_MISSING
        return Trouble.RESPONSES_MISSING if self.unseen.responses else Trouble.REORDERED

    def _is_damaged_at_end(self) -> bool:
        """Whether a damaged packet was the last of its PSN: its receiver has dropped it."""
        assert self.next is not None
        requests, responses = (
            [(psn - self.next + HALF & MASK) - HALF for psn in self.connection.damaged_psns[end]]
            for end in (self.end, 1 - self.end)
        )
        return any(0 <= step < DAMAGED_AHEAD for step in requests) or any(
            self.acked - self.next < step < 0 for step in responses
        )

    def _patience_ns(self) -> int:
        """How long a response may take, as far as a timeout of this requester was seen."""
        run = self.retransmission
        if run is None or run.event.cause is not Cause.TIMEOUT:
            return UNANSWERED_NS
        return 2 * run.waited_ns + GIVE_UP_NS

    def finish(self, now: int) -> None:
        """The capture is over at `now` (ns), or the queue pair was reset."""
        if self.is_retransmitting or self.refusals:
            self._report_exceeded_retries(now)
        self._end_run()
        self.unseen.finish()
        for message in self.messages:
            self._reports.message(message, self.end)
        self.messages.clear()

    def _report_exceeded_retries(self, now: int) -> None:
        """Report when the requester no longer retransmits what is not acknowledged."""
        is_failed = self.responder is ResponderState.FAILED
        if self.next is None or is_failed or self.acked + 1 >= self.next:
            return
        refusal, run = self.refusals.of(self.acked + 1), self.retransmission
        if refusal is not None and refusal.cause is Cause.RNR:
            cause, number, since = Cause.RNR_RETRIES, refusal.number, refusal.time_ns
            is_over = now - since > 2 * refusal.wait_ns + GIVE_UP_NS
        elif run is not None and self.attempts > 0:
            cause, number, since = Cause.RETRIES, run.event.number, run.event.time_ns
            is_over = now - since > 2 * run.waited_ns + GIVE_UP_NS
        else:
            return
        if is_over:
            counts = self.connection.directions[self.end]
            counts.rnr_retries_exceeded += cause is Cause.RNR_RETRIES
            counts.retries_exceeded += cause is Cause.RETRIES
            self._reports.event(
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
        """Count a packet that was reordered.

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
            self.unseen.unsettled.ip_ids.discard(packet.ip_id)
        counts = self.connection.directions[direction]
        counts.reordered += 1
        if is_late and packet.opcode not in ACKNOWLEDGE:
            counts.retransmitted += self._was_sent_before(direction, psn, packet)
        self._reports.packet(FlowEventKind.REORDERED, direction, packet)

    def _recent(self, direction: int) -> Recent:
        return self.recent_requests if direction == self.end else self.recent_responses

    def _was_sent_before(self, direction: int, psn: int, packet: TransportPacket) -> bool:
        """Whether a packet that was reordered is not the first of its PSN."""
        before = self._recent(direction).get(psn)
        if before is not None and 0 < (packet.ip_id - before.ip_id & 0xFFFF) < REORDER_IDS:
            return True
        return psn >= self.start and not self.unseen.is_unseen(direction, psn)

    def _note_duplicate(
        self, direction: int, packet: TransportPacket, first: TransportPacket | None
    ) -> None:
        self.connection.directions[direction].duplicates += 1
        number = first.number if first and first.icrc == packet.icrc else 0
        self._reports.packet(FlowEventKind.DUPLICATE, direction, packet, cause_number=number)

    # Messages.

    def _complete(self, message: OpenMessage, packet: TransportPacket) -> None:
        """A message is acknowledged by this packet."""
        counts = self.connection.directions[self.end]
        counts.completed += 1
        counts.message_bytes += message.size
        if self.connection.is_reliable:
            counts.latency.add_one(packet.time_ns - message.first_ns)
        self.report_message(message, number=packet.number, time_ns=packet.time_ns)

    @property
    def has_observer(self) -> bool:
        """Whether events and messages are reported."""
        return self._reports.observer is not None

    def report_message(self, message: OpenMessage, *, number: int, time_ns: int) -> None:
        """Report a message and the response that completes it."""
        self._reports.message(message, self.end, number=number, time_ns=time_ns)


def _asks_for(packet: TransportPacket) -> Trouble | None:
    """What a response asks a requester for that was never seen."""
    if packet.opcode not in ACKNOWLEDGE or kind(packet.syndrome) is AckKind.ACK:
        return None
    if kind(packet.syndrome) is AckKind.RNR_NAK:
        return Trouble.RNR
    return Trouble.NAK if code(packet.syndrome) == NakCode.PSN_SEQUENCE_ERROR else None
