"""The requests of one end of a connection and the responses to them, PSN by PSN.

Everything is told from packets seen at one point of the way. A request is *new*
when its PSN is the next one, or ahead of it: then what lies between is missing
here. A PSN that was passed comes again for one of three reasons:

- RESENT: the requester sent it again,
- COPY: the network, or the capture, made a copy of it,
- LATE: it was overtaken, and is one of the missing.

They are told apart by the identification of IPv4 where the sender counts it up
(rxe does), and else by what the responder had said before, and by time. The
responses of a READ are followed in the same way.

PSNs are unwrapped here: they count on beyond 24 bits.

Source: IBA 9.7.1 and 9.7.3 (PSNs, what a READ reserves), 9.7.5.1 (responses and
what they acknowledge), 9.7.5.2 (NAK, RNR NAK, implied NAK), 9.9 (going back).
"""

from __future__ import annotations

from ibwire.connections.events import Cause, Event, EventKind
from ibwire.connections.gaps import Missing, cut, within
from ibwire.connections.half import ASKED_AGAIN, HASTE_NS, JUMP, MTUS, SILENCE_NS, Half, Verdict
from ibwire.connections.kinds import ANSWERED, ENDS, READ, STARTS, VERB
from ibwire.connections.open_message import Open
from ibwire.connections.packets import Seen
from ibwire.connections.responses import Responses
from ibwire_layers.psn import HALF, MASK, MODULUS


class Dialogue(Responses):
    """A half of a connection, as requests and responses change it."""

    __slots__ = ()

    def request(self, packet: Seen) -> Verdict:
        """Take a request; returns what it is."""
        if self.next is None:
            self._begin(packet)
        assert self.next is not None
        step = (packet.psn - self.next + HALF & MASK) - HALF
        if abs(step) > JUMP or (step and packet.psn in self.births):
            self.restart(packet)
            step = 0
        psn = self.next + step
        if step > 0 and not self.connection.mtu:
            self._settle_read(psn, packet)
            step = psn - self.next
        verdict = (
            Verdict.NEW if step == 0 else Verdict.GAP if step > 0 else self._again(psn, packet)
        )
        self.connection.tell_request(self, packet, verdict)
        self._look_at_order(self.end, psn, packet, verdict)
        if step >= 0:
            self._advance(psn, packet, step)
        elif verdict is Verdict.RESENT:
            self._resent(psn, packet)
        elif verdict is Verdict.LATE:
            self._late(psn, packet)
        if verdict is Verdict.COPY:
            self._tell_copy(self.end, packet, self.requests.get(psn))
        else:
            self.requests.add(psn, packet)
        self._age()
        self.last_ns = packet.time_ns
        return verdict

    def restart(self, packet: Seen) -> None:
        """Begin anew with this request: the queue pair was reset, or its number is used again."""
        self.finish(packet.time_ns)
        self.connection.tell(
            Event(
                *(EventKind.RESTART, self.connection.number, self.end),
                *(packet.number, packet.time_ns, packet.psn, packet.psn),
                opcode=packet.opcode,
            )
        )
        self.connection.directions[self.end].restarts += 1
        births = self.births
        Half.__init__(self, self.connection, self.end)
        self.births = births
        self._begin(packet)

    def _begin(self, packet: Seen) -> None:
        # One lap on, so that what lies before the first packet is not negative.
        if packet.psn in self.births:
            self.births.remove(packet.psn)
        self.start = self.next = packet.psn + MODULUS
        self.acked = self.start - 1
        self.last_ns = packet.time_ns

    def _advance(self, psn: int, packet: Seen, step: int) -> None:
        """A request beyond all that were seen."""
        assert self.next is not None
        if step:
            self.missing.append(Missing(self.next, psn, packet.number, packet.time_ns))
        if self.run is not None and self.run_upto < self.next:
            self._skip_again(psn, packet)
        self._end_run()
        self._collect(psn, packet)
        self.next = psn + self._span(packet)
        direction = self.connection.directions[self.end]
        direction.max_outstanding = max(direction.max_outstanding, self.next - self.acked - 1)
        if not self.connection.is_reliable:
            self._pass_unacknowledged(packet)
        self.bound()

    def _pass_unacknowledged(self, packet: Seen) -> None:
        """Of a service without acknowledgements, a message is through when it is whole."""
        assert self.next is not None
        self.acked = self.next - 1
        while self.messages and (self.messages[0].is_whole or len(self.messages) > 1):
            message = self.messages.pop(0)
            if message.is_whole and message.has_start:
                self.connection.complete(self, message, packet)
            else:
                self.connection.abandon(self, message)

    def _span(self, packet: Seen) -> int:
        """PSNs that a request takes (IBA 9.7.3: a READ as many as it has responses)."""
        if packet.opcode not in READ:
            return 1
        return self.connection.packets_of(packet.dma_len)

    def _settle_read(self, psn: int, packet: Seen) -> None:
        """Learn the path MTU, where a READ of unknown span is followed by this request.

        It may be the next, or the same READ asked for again from a later PSN and
        address on. If neither shows the MTU, the READ has at least reached so far.
        """
        assert self.next is not None
        message = self.messages[-1] if self.messages else None
        if message is None or not message.is_read or message.last + 1 != self.next:
            return
        far = psn - message.first
        asked = self.requests.get(message.first)
        again = packet.opcode in READ and asked is not None and asked.rkey == packet.rkey
        for mtu in MTUS:
            if far == -(-message.dma_len // mtu) or (
                again and asked is not None and packet.va - asked.va == far * mtu
            ):
                self.connection.learn_mtu(mtu)
                return
        if far <= -(-message.dma_len // MTUS[0]):
            message.last, self.next = psn - 1, psn

    def mtu_learnt(self) -> None:
        """Correct what was reckoned without the path MTU: the span of the newest READ."""
        if not self.messages or not self.messages[-1].is_read:
            return
        message = self.messages[-1]
        if message.last + 1 == self.next:
            message.last = message.first + self.connection.packets_of(message.dma_len) - 1
            self.next = message.last + 1

    def _collect(self, psn: int, packet: Seen) -> None:
        """Put a request, seen for the first time, into its message."""
        opcode = packet.opcode
        if opcode in ENDS:
            self.connection.directions[self.end].count_message(VERB[opcode])
        last = self.messages[-1] if self.messages else None
        if last is None or psn > last.last:
            if last is None or opcode in STARTS or not last.is_followed_by(psn, VERB[opcode]):
                self.messages.append(self._open(psn, packet))
                return
            last.size += packet.size
            last.last, last.last_number, last.last_ns = psn, packet.number, packet.time_ns
            last.is_whole = opcode in ENDS
            return
        at = sum(1 for each in self.messages if each.first < psn)
        self.messages.insert(at, self._open(psn, packet))
        self._join(at)
        if at:
            self._join(at - 1)

    def _open(self, psn: int, packet: Seen) -> Open:
        """A message of which this is the only packet so far."""
        opcode = packet.opcode
        message = Open(
            *(VERB[opcode], psn, psn, opcode in ENDS, packet.size),
            *(packet.number, packet.time_ns, packet.number, packet.time_ns),
            has_start=opcode in STARTS,
        )
        if opcode in ANSWERED:
            message.awaits = psn
            if opcode in READ:
                message.is_read = True
                message.dma_len = message.size = packet.dma_len
                message.last = psn + self._span(packet) - 1
        return message

    def _join(self, at: int) -> None:
        """Make one message of two that a request between them has connected."""
        if at + 1 >= len(self.messages):
            return
        one, other = self.messages[at], self.messages[at + 1]
        if not other.has_start and one.is_followed_by(other.first, other.verb):
            one.last, one.is_whole = other.last, other.is_whole
            one.last_number, one.last_ns = other.last_number, other.last_ns
            one.size += other.size
            one.resent += other.resent
            one.first_ns = min(one.first_ns, other.first_ns)
            del self.messages[at + 1]

    def _again(self, psn: int, packet: Seen) -> Verdict:
        """What a request is whose PSN had been passed."""
        identity = self.connection.identities[self.end]
        has_cause = self._has_cause(psn, packet)
        was_seen = psn >= self.start and within(self.missing, psn) is None
        before = self.requests.get(psn)
        since = (-1, 0) if before is None else before.place
        is_due = any(each.psn <= psn and each.place > since for each in self.refusals)
        is_due |= self.run is not None and self.run_place > since
        if was_seen and identity.is_copy(packet, before, is_due):
            return Verdict.COPY
        if not self.connection.is_reliable:
            return Verdict.COPY if was_seen else Verdict.LATE
        overtaken = identity.is_overtaken(packet, not was_seen and not has_cause)
        return Verdict.LATE if overtaken else Verdict.RESENT

    def _has_cause(self, psn: int, packet: Seen) -> bool:
        """Whether something seen could have made the requester send this again."""
        if self.run is not None or packet.time_ns - self.last_ns > SILENCE_NS:
            return True
        return any(refusal.psn <= psn for refusal in self.refusals)

    def _resent(self, psn: int, packet: Seen) -> None:
        direction = self.connection.directions[self.end]
        direction.retransmitted += 1
        run = self.run
        refusal = self._refused(psn)
        if run is None or psn < self.run_upto or (refusal and refusal.place > self.run_place):
            self._end_run()
            run = self._begin_run(psn, packet)
        else:
            self._skip_again(psn, packet)
        span = self._span(packet)
        run.count += 1
        run.last_psn = psn + span - 1 & MASK
        run.last_number = packet.number
        self.run_at, self.run_upto = psn, psn + span
        if packet.opcode in ANSWERED:
            self.asked_again = [*self.asked_again[1 - ASKED_AGAIN :], (psn, psn + span)]
        self.replay_upto = None
        gap = within(self.missing, psn)
        if gap is not None:
            self._fill(gap, psn, span, packet)
            self._collect(psn, packet)
            return
        for message in self.messages:
            if message.first <= psn <= message.last:
                message.resent += 1
                message.is_doubtful |= run.cause not in (Cause.NAK, Cause.RNR)
                break

    def _skip_again(self, psn: int, packet: Seen) -> None:
        """Requests were left out where all are sent again: they are lost, if they were sent."""
        before = self.requests.get(self.run_at)
        identity = self.connection.identities[self.end]
        assert self.next is not None
        if before is None or not identity.counts_up:
            return
        end = min(psn, self.next)  # beyond, they are missing for the first time
        known = sum(self.run_upto <= each < end for each in self.requests.all())
        unseen = identity.unseen(before, packet)
        if not unseen:
            return
        for packets in {known, end - self.run_upto}:
            if packets and len(unseen) == packets + psn - end:
                gap = Missing(self.run_upto, end, packet.number, packet.time_ns, packets)
                self.skipped.append(gap)
                return
        self._doubt(before, packet)

    def _doubt(self, before: Seen, packet: Seen) -> None:
        """Note identifications left out between two requests; Linux does that after a silence."""
        if packet.time_ns - before.time_ns < HASTE_NS:
            self.doubts |= self.connection.identities[self.end].unseen(before, packet)

    def _begin_run(self, psn: int, packet: Seen) -> Event:
        cause, number, since = self._cause(psn, packet)
        newest = next(reversed(self.requests.all().values()), None)
        identity = self.connection.identities[self.end]
        if newest is not None and identity.counts_up:
            self._doubt(newest, packet)
        self.run = Event(
            *(EventKind.RESEND, self.connection.number, self.end),
            *(packet.number, packet.time_ns, packet.psn, packet.psn),
            count=0,
            opcode=packet.opcode,
            cause=cause,
            cause_number=number,
            delay_ns=packet.time_ns - since if since else None,
        )
        direction = self.connection.directions[self.end]
        if cause in (Cause.NAK, Cause.RNR):
            pass  # answered in time or not, the requester was told
        elif cause in (Cause.TIMEOUT, Cause.ANSWER_LOST):
            direction.timeouts += 1
            direction.unexplained += cause is Cause.TIMEOUT
        elif packet.time_ns - self.last_ns > SILENCE_NS:
            direction.timeouts += 1  # a missing response is no NAK for everybody: rxe waits
        if cause is Cause.IMPLIED_NAK:
            direction.implied_naks += 1
        self.run_place = packet.place
        self.attempts += 1
        self.resent_after = packet.time_ns - (since or self.last_ns)
        self.resent_number, self.resent_ns = packet.number, packet.time_ns
        # What else was refused is ignored while it restarts, and sometimes obeyed later
        # (reorder-ab-3pc.b packet 190).
        self.refusals = [each for each in self.refusals if each.psn > psn]
        return self.run

    def _cause(self, psn: int, packet: Seen) -> tuple[Cause, int, int]:
        """Why requests are sent again from this PSN on; the packet that says so, and since when."""
        refusal = self._refused(psn)
        before = self.requests.get(psn) or self.answers.get(psn)
        sent, sent_ns = (before.number, before.time_ns) if before else (0, self.last_ns)
        waited = packet.time_ns - self.last_ns
        if refusal is not None and (refusal.cause in (Cause.NAK, Cause.RNR) or waited < SILENCE_NS):
            return refusal.cause, refusal.number, refusal.time_ns
        if self.acked >= psn:
            return Cause.ANSWER_LOST, sent, sent_ns
        if waited >= SILENCE_NS or self.connection.is_paired:
            return Cause.TIMEOUT, sent, sent_ns
        return Cause.UNKNOWN, 0, 0

    def _late(self, psn: int, packet: Seen) -> None:
        span = self._span(packet)
        for gaps in (self.skipped, self.lost, self.missing):
            gap = within(gaps, psn)
            if gap is not None:
                cut(gaps, gap, psn, psn + span)
                if gaps is self.missing:
                    self._collect(psn, packet)
                return

    def _fill(self, gap: Missing, psn: int, span: int, packet: Seen) -> None:
        """A request that was missing has been sent again."""
        cut(self.missing, gap, psn, psn + span)
        self.lost.append(Missing(psn, psn + span, gap.number, gap.time_ns, 1))
