"""Follows the requests of one end of a connection, and the responses to them, PSN by PSN.

Everything is inferred from packets seen at one point of the path. A request is new
when its PSN is the next one, or ahead of it: then the PSNs in between are missing
here. A PSN that was passed arrives again for one of three reasons:

- RETRANSMITTED: the requester retransmitted it,
- DUPLICATE: the network, or the capture, duplicated it,
- REORDERED: it arrived after later packets, and is one of the missing.

The responses of a READ are followed in the same way. `packet_status` tells the three apart.

What is known is in `tracked_requests`, with what the responder has refused in `refusals` and
what was not seen in `unseen`; the states of both ends and the moves between them are in
`states`. Retransmissions are followed in `retransmissions`, responses without requests in
`unrequested`; `open_requests` says how things stand at the end. PSNs are unwrapped: they
continue beyond 24 bits.

Source: IBA 9.7.1 and 9.7.3 (PSNs, what a READ reserves), 9.7.5.1 (responses and
what they acknowledge), 9.7.5.2 (NAK, RNR NAK, implied NAK).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ibwire.connections.connection import MTUS
from ibwire.connections.events import Cause, FlowEventKind
from ibwire.connections.identity import KEEP
from ibwire.connections.naks import refuse
from ibwire.connections.opcode_sets import ACKNOWLEDGE, ANSWERED, READ, STARTS
from ibwire.connections.open_message import (
    OpenMessage,
    Progress,
    answered_by,
    oldest_progress,
    skips_responses,
)
from ibwire.connections.open_requests import ending_of, report_exceeded_retries
from ibwire.connections.order import note_duplicate, note_order
from ibwire.connections.packet_observer import PacketObserver
from ibwire.connections.packet_status import (
    status_of_acknowledge,
    status_of_old_request,
    status_of_old_response,
)
from ibwire.connections.packets import TransportPacket
from ibwire.connections.reporting import Reporter
from ibwire.connections.retransmissions import (
    end_run,
    may_be_late,
    note_skipped,
    resume,
    retransmit,
    take_back,
)
from ibwire.connections.states import (
    AFTER_GAP,
    DUPLICATE,
    NEW,
    REORDERED,
    RETRANSMITTED,
    STALE,
    UNKNOWN,
    PacketStatus,
    RequesterInput,
    RequesterState,
)
from ibwire.connections.tracked_requests import StartPSN, TrackedRequests
from ibwire.connections.unrequested import take_unrequested
from ibwire_layers.psn import HALF, MASK, MODULUS, distance
from ibwire_layers.syndrome import INVALID_CREDITS, KIND_BITS

ANSWERED_AGAIN: Final = 1024
"""PSNs of retransmitted responses that are remembered."""
LIMIT = 4096
"""Messages that may be open; in a capture of one direction no message is ever completed."""
START_PSNS: Final = 16
"""Negotiated first PSNs that are remembered until they are seen."""
LATE: Final = 1 << 12
"""The first request that is seen has at most so many PSNs after the negotiated one: more than are
outstanding. Those before it were not seen."""
EARLY_NS: Final = 100_000
"""An ACK may be recorded so long before its request, at two ports or by two queues. No ACK timer is
as short, so the request is not one that comes again."""
EARLY_KEPT: Final = 16
"""Such ACKs that are remembered."""
JUMP: Final = 1 << 16
"""A larger step in PSNs is a reset of the queue pair and no loss. A lost READ of 64 MiB reserves
as many at an MTU of 1024."""


class RequestTracker(TrackedRequests):
    """Follows the requests of one end of a connection and the responses to them.

    end: which end sends the requests. learn_mtu: called when a READ shows the path MTU,
    which both trackers of the connection then know.
    """

    __slots__ = ("_learn_mtu", "_packet_observer")

    def __init__(
        self,
        end: int,
        *,
        reports: Reporter,
        packet_observer: PacketObserver | None,
        learn_mtu: Callable[[int], None],
    ) -> None:
        super().__init__(end, reports)
        self._packet_observer = packet_observer
        self._learn_mtu = learn_mtu

    def forget_connection(self) -> None:
        """Let go of the tracker of the connection, which is not used any more."""
        self._learn_mtu = _learn_nothing

    def expect_start(self, psn: int | None, place: tuple[int, int]) -> None:
        """A handshake, completed at this file and number, has negotiated the first PSN after it."""
        self.start_psns = [*self.start_psns[1 - START_PSNS :], StartPSN(psn, place)]

    def join(self, before: RequestTracker, *, next_there: int | None) -> None:
        """Take the place of the tracker that followed an earlier part of the same requests.

        next_there: `next` here, where the two parts meet; it is the same as `before.next`,
        counted from another first PSN.
        """
        self.connection, self.end = before.connection, before.end
        self.reports = before.reports
        self.unseen.join(before.unseen)
        self._packet_observer = before._packet_observer
        self._learn_mtu = before._learn_mtu
        if next_there is not None and before.next is not None:
            self.start = next_there - (before.next - before.start)
            if before.disturbed_end:
                before_here = next_there + before.disturbed_end - before.next
                self.disturbed_end = max(self.disturbed_end, before_here)

    # Requests.

    def handle_request(self, packet: TransportPacket) -> PacketStatus:
        """Take a request; returns what it is."""
        if self.next is None:
            self._begin(packet)
        assert self.next is not None
        step = (packet.psn - self.next + HALF & MASK) - HALF
        if abs(step) > JUMP or (step and self.start_psns and self._starts(packet)):
            self.restart(packet)
            step = 0
        psn = self.next + step
        if step >= 0 and self.needs_mtu and not self.was_damaged(self.next & MASK):
            self._infer_mtu(psn, packet)
            step = psn - self.next
        if not step and self.was_damaged(packet.psn):
            status = RETRANSMITTED
            span = self.span(packet)
            self.unseen.miss_requests(psn, psn + span, packet)
            self.next = psn + span
        elif step >= 0:
            status = AFTER_GAP if step else NEW
        else:
            status = status_of_old_request(self, psn, packet)
        if self._packet_observer is not None:
            self._packet_observer.request(self, packet, status)
        note_order(self, self.end, psn, packet, status)
        if status is NEW or status is AFTER_GAP:
            self._advance(psn, packet)
            if self.early:
                self._take_early(packet, status)
        elif status is RETRANSMITTED:
            retransmit(self, psn, packet)
        elif status is REORDERED:
            self._fill_late(psn, packet)
        if status is DUPLICATE:
            note_duplicate(self, self.end, packet, self.recent_requests.get(psn))
        else:
            self.recent_requests.add(psn, packet)
        self.age_by(1)
        self.last_ns, self.last_place = packet.time_ns, packet.place
        return status

    def may_begin_anew(self, packet: TransportPacket) -> bool:
        """Whether the queue pair may have been reset before this request.

        It comes after a NAK that ended the connection, or what it asks was acknowledged.
        """
        if self.failed is not None:
            return True
        if self.next is None:
            return False
        step = (packet.psn - self.next + HALF & MASK) - HALF
        is_old = -JUMP <= step < 0 and self.next + step <= self.acked
        return is_old and self.connection.is_reliable

    def counts_back(self, packet: TransportPacket) -> bool:
        """Whether a response has a smaller MSN than the one before it, as no responder counts."""
        before = self.failed or self.recent_responses.last_added
        is_known = before is not None and before.syndrome >= 0
        return is_known and before is not None and distance(before.msn, packet.msn) < 0

    def restart(self, packet: TransportPacket) -> None:
        """Restart with this request: the queue pair was reset, or its number was reused."""
        counts = self.connection.directions[self.end]
        counts.cut_short += ending_of(self, packet.time_ns).trouble is not None
        self.finish(packet.time_ns)
        self.reports.packet(FlowEventKind.RESTART, self.end, packet)
        counts.restarts += 1
        self.reset()
        self._begin(packet)

    def _begin(self, packet: TransportPacket) -> None:
        start = self._negotiated_start(packet)
        if start is None or start.psn is None:
            first = packet.psn
        else:
            first = start.psn
            self.start_psns.remove(start)
        # Plus one wrap-around, so that PSNs before the first packet are not negative.
        self.start = self.next = first + MODULUS
        self.acked = self.start - 1
        self.last_ns = packet.time_ns
        self.move_requester(RequesterInput.FIRST)

    def _starts(self, packet: TransportPacket) -> bool:
        """Whether a handshake before this request has negotiated its PSN as the first."""
        return any(each.psn == packet.psn and each.place < packet.place for each in self.start_psns)

    def _negotiated_start(self, packet: TransportPacket) -> StartPSN | None:
        """The negotiated first PSN of requests that begin here with this one, or shortly before."""
        ahead = {
            packet.psn - each.psn & MASK: each
            for each in reversed(self.start_psns)
            if each.psn is not None and each.place < packet.place
        }
        least = min(ahead, default=LATE + 1)
        return ahead[least] if least <= LATE else None

    def _advance(self, psn: int, packet: TransportPacket) -> None:
        """A request beyond all that were seen."""
        assert self.next is not None
        if psn > self.next:
            self.unseen.miss_requests(self.next, psn, packet)
            self.disturb(psn, packet)
        else:
            self.note_new_request()
        run = self.run
        if run is not None and run.interrupted is not None and run.end < self.next:
            run = resume(self, run)
        if run is not None and run.end < self.next:
            if may_be_late(self, run):
                take_back(self, run)
                run = None
            else:
                note_skipped(self, run, psn, packet)
        is_late = run is not None and run.event.cause is Cause.TIMEOUT and run.is_after_silence
        if is_late and packet.opcode not in STARTS:
            # The rest of a message that had broken off was lost, this packet at least.
            self.disturb(psn + 1, packet)
        end_run(self)
        self.move_requester(RequesterInput.NEW)
        span = self.span(packet)
        self.add(psn, span, packet)
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
                self.reports.message(message, self.end)

    def _infer_mtu(self, psn: int, packet: TransportPacket) -> None:
        """Find the path MTU, where a READ of unknown length is followed by this request.

        It may be the next request, or the same READ retransmitted from a later PSN and
        address on. If neither shows the MTU, the READ has at least reached that PSN.
        """
        assert self.next is not None
        message = self.messages[-1]
        far = psn - message.first
        first = self.recent_requests.get(message.first)
        begins = packet.va - first.va if first is not None and self._is_rest(first, packet) else 0
        is_ahead = psn > self.next
        for mtu in MTUS:
            if begins == far * mtu or (is_ahead and far == -(-message.dma_len // mtu)):
                self._learn_mtu(mtu)
                return
        if far <= -(-message.dma_len // MTUS[0]):
            message.last, self.next = psn - 1, psn

    @staticmethod
    def _is_rest(first: TransportPacket, packet: TransportPacket) -> bool:
        """Whether this reads the rest of what `first` reads, or all of it."""
        ends_alike = packet.va + packet.dma_len == first.va + first.dma_len
        return packet.opcode in READ and packet.rkey == first.rkey and ends_alike

    def apply_mtu(self) -> None:
        """Correct the spans of READs, now that the path MTU is known."""
        for message in self.messages:
            if message.is_read and message.last + 1 != self.next:
                end = message.first + self.connection.packets_of(message.dma_len)
                self.unseen.pass_requests(message.last + 1, end)
                message.last = max(message.last, end - 1)
        if not self.messages or not self.messages[-1].is_read:
            return
        message = self.messages[-1]
        if message.last + 1 == self.next:
            message.last = message.first + self.connection.packets_of(message.dma_len) - 1
            self.next = message.last + 1

    def _fill_late(self, psn: int, packet: TransportPacket) -> None:
        """A missing request has arrived late."""
        span = self.span(packet)
        if self.unseen.fill_request(psn, psn + span):
            self.add(psn, span, packet)

    # Responses.

    def handle_response(self, packet: TransportPacket) -> PacketStatus:
        """Take a response; returns what it is."""
        if self.next is None:
            if self._packet_observer is not None:
                self._packet_observer.response(self, packet, UNKNOWN)
            take_unrequested(self, packet)
            self._keep_early(packet)
            return UNKNOWN
        if 0 <= packet.syndrome < INVALID_CREDITS:
            counts = self.connection.directions[self.end]
            counts.note_credits(lowest=packet.syndrome, highest=packet.syndrome)
        psn = self.next + (packet.psn - self.next + HALF & MASK) - HALF
        if packet.opcode in ACKNOWLEDGE:
            status = self._acknowledge(psn, packet)
        else:
            status = self._answer(psn, packet)
        is_nak = packet.opcode in ACKNOWLEDGE and packet.syndrome & KIND_BITS != 0
        if self.disturbed_end and status is not UNKNOWN and not is_nak:
            self.note_answered(psn)
        if status is DUPLICATE:
            note_duplicate(self, 1 - self.end, packet, self.recent_responses.get(psn))
        else:
            self.recent_responses.add(psn, packet)
        self.age_by(1)
        self.last_ns, self.last_place = packet.time_ns, packet.place
        return status

    def _acknowledge(self, psn: int, packet: TransportPacket) -> PacketStatus:
        """An ACK, NAK or RNR NAK."""
        is_ack = packet.syndrome & KIND_BITS == 0
        upto = psn if is_ack else psn - 1
        status = status_of_acknowledge(self, psn, packet)
        if self._packet_observer is not None:
            self._packet_observer.response(self, packet, status)
        note_order(self, 1 - self.end, psn, packet, status)
        if status is NEW:
            self._settle(upto, packet)
        elif status is STALE:
            self._note_needless(psn)
        elif status is UNKNOWN:
            self._keep_early(packet)
        if not is_ack and status is not DUPLICATE:
            refuse(self, psn, packet)
        return status

    def _keep_early(self, packet: TransportPacket) -> None:
        """Remember an ACK whose request was not seen: it may follow in the capture."""
        if packet.opcode in ACKNOWLEDGE and packet.syndrome & KIND_BITS == 0:
            self.early = [*self.early[1 - EARLY_KEPT :], packet]

    def _take_early(self, packet: TransportPacket, status: PacketStatus) -> None:
        """Complete what ends with this new request, if its ACK was recorded shortly before it."""
        assert self.next is not None
        early = [each for each in self.early if packet.time_ns - each.time_ns <= EARLY_NS]
        if status is not NEW or packet.opcode in ANSWERED:
            early = []
        newest = self.next - 1
        own = next((each for each in early if each.psn == newest & MASK), None)
        self.early = [each for each in early if 0 < (each.psn - newest & MASK) < HALF]
        if own is not None:
            self.connection.note_early(packet.time_ns - own.time_ns)
            self._settle(newest, own)
            if self.disturbed_end:
                self.note_answered(newest)

    def _note_needless(self, psn: int) -> None:
        """An ACK again: if a timer repeated one request, both transmissions of it had arrived."""
        run = self.retransmission
        if run is None or run.is_needless or run.event.cause is not Cause.TIMEOUT:
            return
        before = self.recent_responses.get(psn)
        is_only = run.event.count == 1 and (run.psn, run.end) == (psn, psn + 1)
        is_alone = self.disturbed_ns == run.event.time_ns and not self.disturbed_end
        if is_only and is_alone and before is not None and before.place > run.place:
            run.is_needless = True
            self.connection.directions[self.end].disturbances -= 1

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
            responder = self.connection.directions[direction]
            responder.skipped_ids += KEEP if responder.damaged else 1

    def _oldest_progress(self) -> Progress:
        """How far the oldest message is."""
        lacks_responses = self.unseen.lacks_responses(self.messages[0])
        return oldest_progress(self.messages, self.acked, lacks_responses=lacks_responses)

    def _abandon_read(self, message: OpenMessage) -> None:
        """The requester has the responses of a READ, although they were not captured."""
        self.unseen.abandon(message)
        self.refusals.obey(upto=message.last)
        self.reports.message(message, self.end)

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
            status = status_of_old_response(self, psn, packet)
        elif skips_responses(self.messages, message, psn):
            status = AFTER_GAP
        else:
            status = NEW
        if self._packet_observer is not None:
            self._packet_observer.response(self, packet, status)
        note_order(self, 1 - self.end, psn, packet, status)
        if status is NEW or status is AFTER_GAP:
            assert message is not None
            if status is AFTER_GAP:
                self._miss_responses(message, psn, packet)
            counts = self.connection.directions[1 - self.end]
            counts.doubtful += message.is_doubtful
            was_damaged = packet.psn in self.connection.damaged.answers[1 - self.end]
            counts.retransmitted += was_damaged
            message.next_response = psn + 1
            self._settle(psn, packet)
        elif status is RETRANSMITTED:
            self._answer_again(psn, packet)
        elif status is REORDERED and self.unseen.fill_response(psn):
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
            self.disturb(psn, packet)

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

    # What is not seen, and the end.

    def age_by(self, packets: int) -> None:
        """Count packets since the last retransmission; what is missing after many is lost."""
        if not self.unseen.is_settled:
            self.move_requester(RequesterInput.UNSETTLED)
            if self.unseen.age(is_retransmitting=self.is_retransmitting, packets=packets):
                self.move_requester(RequesterInput.SETTLED)
        elif self.requester is RequesterState.SETTLING:
            self.move_requester(RequesterInput.SETTLED)

    def limit(self) -> None:
        """Forget the oldest messages and gaps, of which there may be any number."""
        while len(self.messages) > LIMIT:
            self.reports.message(self.messages.pop(0), self.end)
        self.unseen.limit()

    def finish(self, now: int) -> None:
        """The capture is over at `now` (ns), or the queue pair was reset."""
        if self.is_retransmitting or self.refusals:
            report_exceeded_retries(self, now)
        end_run(self)
        self.unseen.finish()
        for message in self.messages:
            self.reports.message(message, self.end)
        self.messages.clear()

    # Messages.

    def _complete(self, message: OpenMessage, packet: TransportPacket) -> None:
        """A message is acknowledged by this packet."""
        counts = self.connection.directions[self.end]
        counts.completed += 1
        counts.message_bytes += message.size
        if self.connection.is_reliable and packet.time_ns >= message.first_ns:
            counts.latency.add_one(packet.time_ns - message.first_ns)
        self.report_message(message, number=packet.number, time_ns=packet.time_ns)

    @property
    def has_observer(self) -> bool:
        """Whether events and messages are reported."""
        return self.reports.observer is not None

    def report_message(self, message: OpenMessage, *, number: int, time_ns: int) -> None:
        """Report a message and the response that completes it."""
        self.reports.message(message, self.end, number=number, time_ns=time_ns)


def _learn_nothing(mtu: int) -> None:
    """For a tracker whose connection is over."""
