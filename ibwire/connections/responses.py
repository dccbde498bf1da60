"""What the responses say: acknowledgements, NAKs, and the answers of READs and atomics.

Source: IBA 9.7.5.1 (responses and what they acknowledge), 9.7.5.2 (NAK, RNR NAK,
implied NAK).
"""

from __future__ import annotations

from ibwire.connections.events import Cause, Event, EventKind
from ibwire.connections.gaps import Missing, cut, within
from ibwire.connections.half import NAK_NAMES, OVERDUE, Half, Verdict
from ibwire.connections.kinds import ACKNOWLEDGE, FULL, STARTS
from ibwire.connections.open_message import Open
from ibwire.connections.packets import Seen
from ibwire_layers.psn import HALF, MASK
from ibwire_layers.syndrome import INVALID_CREDITS, RNR_TIMER_US, AckKind, NakCode, code, kind

_UNDER_WAY, _DONE, _OVERDUE = range(3)


class Responses(Half):
    """A half of a connection, as responses change it."""

    __slots__ = ()

    def response(self, packet: Seen) -> Verdict:
        """Take a response; returns what it is."""
        if self.next is None:
            return self._unasked(packet)
        if 0 <= packet.syndrome < INVALID_CREDITS:
            direction = self.connection.directions[self.end]
            direction.note_credits(packet.syndrome, packet.syndrome)
        psn = self.next + (packet.psn - self.next + HALF & MASK) - HALF
        if packet.opcode in ACKNOWLEDGE:
            verdict = self._acknowledge(psn, packet)
        else:
            verdict = self._answer(psn, packet)
        if verdict is Verdict.COPY:
            self._tell_copy(1 - self.end, packet, self.answers.get(psn))
        else:
            self.answers.add(psn, packet)
        self._age()
        self.last_ns = packet.time_ns
        return verdict

    def _acknowledge(self, psn: int, packet: Seen) -> Verdict:
        assert self.next is not None
        identity = self.connection.identities[1 - self.end]
        is_ack = kind(packet.syndrome) is AckKind.ACK
        upto = psn if is_ack else psn - 1
        before = self.answers.get(psn)
        has_cause = is_ack or (
            self.run is not None and before is not None and self.run_place > before.place
        )
        if identity.is_copy(packet, before, has_cause):
            verdict = Verdict.COPY
        elif upto >= self.next:
            verdict = Verdict.UNKNOWN
        elif not is_ack or psn > self.acked:
            verdict = Verdict.NEW
        else:
            verdict = Verdict.LATE if identity.is_overtaken(packet, False) else Verdict.STALE
        self.connection.tell_response(self, packet, verdict)
        self._look_at_order(1 - self.end, psn, packet, verdict)
        if verdict is Verdict.NEW:
            self._settle(upto, packet)
        if not is_ack and verdict is not Verdict.COPY:
            self._refuse(psn, packet)
        return verdict

    def _refuse(self, psn: int, packet: Seen) -> None:
        """A NAK or an RNR NAK."""
        direction = self.connection.directions[self.end]
        value = code(packet.syndrome)
        what, delay = EventKind.NAK, None
        if kind(packet.syndrome) is AckKind.RNR_NAK:
            direction.rnr_naks += 1
            what, delay = EventKind.RNR_NAK, RNR_TIMER_US[value] * 1000
            self._remember_refusal(psn, packet, Cause.RNR, delay)
        else:
            direction.count_nak(NAK_NAMES.get(value, f"code_{value}"))
            if value == NakCode.PSN_SEQUENCE_ERROR:
                self._remember_refusal(psn, packet, Cause.NAK)
            else:
                self.fatal = True
        self.connection.tell(
            Event(
                *(what, self.connection.number, self.end),
                *(packet.number, packet.time_ns, packet.psn, packet.psn),
                opcode=packet.opcode,
                delay_ns=delay,
                code=packet.syndrome,
            )
        )

    def _settle(self, upto: int, packet: Seen) -> None:
        """Everything up to this PSN has been acknowledged, if it needs no answer of its own."""
        assert self.next is not None
        if upto > self.acked:
            self.acked = upto
            self.attempts = 0
            while self.missing and self.missing[0].first <= upto:
                self._not_captured(self.missing[0], upto)
        messages = self.messages
        done = 0
        while messages and (state := self._state(messages[0])) is not _UNDER_WAY:
            message = messages.pop(0)
            if state is _OVERDUE:
                self._give_up(message)
            else:
                done += 1
                if message.last != upto:
                    self._passed_by(1 - self.end)
                self.connection.complete(self, message, packet)
        if done:
            direction = self.connection.directions[self.end]
            direction.acks += 1
            direction.acked_messages += done
        if self.acked + 1 == self.next and not self.missing_answers:
            self.refusals = []
        if messages and messages[0].awaits >= 0 and messages[0].last < self.acked:
            self._passed_over(messages[0], packet)

    def _passed_by(self, direction: int) -> None:
        """A message was answered by a response to a later one."""
        self.connection.directions[self.end].passed += 1
        if self.connection.identities[direction].high < 0:
            self.connection.directions[direction].skipped_ids += 1  # before the first, who knows

    def _state(self, message: Open) -> int:
        """How far the oldest message is."""
        messages = self.messages
        if message.awaits >= 0:
            if message.awaits > message.last and not self._lacks(message):
                return _DONE
            overdue = len(messages) > OVERDUE and messages[OVERDUE].last <= self.acked
            return _OVERDUE if overdue else _UNDER_WAY
        if message.is_whole:
            return _DONE if message.last <= self.acked else _UNDER_WAY
        # Its last packet was not captured if what follows it is acknowledged.
        passed = len(messages) > 1 and messages[1].first <= self.acked + 1
        return _DONE if passed else _UNDER_WAY

    def _give_up(self, message: Open) -> None:
        """The requester has its answers, although they were not captured."""
        for gap in self.missing_answers[:]:
            if gap.first <= message.last:
                gap.packets = gap.end - gap.first
                self.missing_answers.remove(gap)
                self._lose(gap, 1 - self.end)
        rest = message.last + 1 - message.awaits
        if rest > 0:
            shown = message.last_number, message.last_ns
            self._lose(Missing(message.awaits, message.last + 1, *shown, rest), 1 - self.end)
        self.refusals = [each for each in self.refusals if each.psn > message.last]
        self.connection.abandon(self, message)

    def _not_captured(self, gap: Missing, upto: int) -> None:
        """Requests that were acknowledged although they were never seen here."""
        end = min(gap.end, upto + 1)
        self._lose(Missing(gap.first, end, gap.number, gap.time_ns, end - gap.first), self.end)
        cut(self.missing, gap, gap.first, end)

    def _lacks(self, message: Open) -> bool:
        """Whether responses of a READ are missing before the newest."""
        gaps = self.missing_answers
        return any(gap.first <= message.last and message.first < gap.end for gap in gaps)

    def _passed_over(self, message: Open, packet: Seen) -> None:
        """A response beyond an unanswered READ or atomic: an implied NAK (IBA 9.7.5.2.8)."""
        first = [gap.first for gap in self.missing_answers if gap.first >= message.first]
        psn = min([*first, message.awaits])
        if self._refused(psn) is None:
            self._remember_refusal(psn, packet, Cause.IMPLIED_NAK)

    def _answer(self, psn: int, packet: Seen) -> Verdict:
        """A response of a READ, or to an atomic."""
        message = None
        for each in self.messages:
            if each.awaits >= 0 and each.first <= psn <= each.last:
                message = each
        if message is None or psn < message.awaits:
            verdict = self._answer_again(psn, packet)
        else:
            verdict = Verdict.GAP if self._is_gap(message, psn) else Verdict.NEW
        self.connection.tell_response(self, packet, verdict)
        self._look_at_order(1 - self.end, psn, packet, verdict)
        if verdict is Verdict.GAP or verdict is Verdict.NEW:
            assert message is not None
            if verdict is Verdict.GAP:
                self._skip(message, psn, packet)
            self.connection.directions[1 - self.end].doubtful += message.is_doubtful
            message.awaits = psn + 1
            self._settle(psn, packet)
        elif verdict is Verdict.RESENT:
            self._answer_resent(psn, packet)
        elif verdict is Verdict.LATE:
            for gaps in (self.lost_answers, self.missing_answers):
                gap = within(gaps, psn)
                if gap is not None:
                    cut(gaps, gap, psn, psn + 1)
                    self._settle(self.acked, packet)
                    break
        return verdict

    def _is_gap(self, message: Open, psn: int) -> bool:
        if psn > message.awaits:
            return True
        for each in self.messages:
            if each is message:
                return False
            if 0 <= each.awaits <= each.last:
                return True
        return False

    def _skip(self, message: Open, psn: int, packet: Seen) -> None:
        """Responses before this one have not been seen here."""
        cause = Cause.READ_GAP
        first = None
        for each in self.messages:
            upto = psn if each is message else each.last + 1
            if 0 <= each.awaits < upto:
                gap = Missing(each.awaits, upto, packet.number, packet.time_ns)
                self.missing_answers.append(gap)
                cause = Cause.READ_GAP if each is message else Cause.IMPLIED_NAK
                first = each.awaits if first is None else first
                each.awaits = upto
            if each is message:
                break
        if first is not None:
            self._remember_refusal(first, packet, cause)

    def _answer_again(self, psn: int, packet: Seen) -> Verdict:
        """What a response is whose PSN had been passed."""
        assert self.next is not None
        if psn >= self.next or psn < self.start:
            return Verdict.UNKNOWN
        identity = self.connection.identities[1 - self.end]
        was_seen = within(self.missing_answers, psn) is None
        was_asked = any(first <= psn < end for first, end in self.asked_again)
        if was_seen and identity.is_copy(packet, self.answers.get(psn), was_asked):
            return Verdict.COPY
        overtaken = identity.is_overtaken(packet, not was_seen and not was_asked)
        return Verdict.LATE if overtaken else Verdict.RESENT

    def _answer_resent(self, psn: int, packet: Seen) -> None:
        answers = self.connection.directions[1 - self.end]
        answers.retransmitted += 1
        upto = self.replay_upto
        if upto is not None and psn > upto:
            self._skip_answers_again(upto, psn, packet)
        self.replay_upto = psn + 1
        gap = within(self.missing_answers, psn)
        if gap is not None:
            cut(self.missing_answers, gap, psn, psn + 1)
            self.lost_answers.append(Missing(psn, psn + 1, gap.number, gap.time_ns, 1))
            self._settle(self.acked, packet)

    def _skip_answers_again(self, upto: int, psn: int, packet: Seen) -> None:
        """Responses were left out where a READ is answered again: lost, if they were sent."""
        before = self.answers.get(upto - 1)
        identity = self.connection.identities[1 - self.end]
        if before is None or not identity.counts_up:
            return
        if len(identity.unseen(before, packet)) == psn - upto:
            self.lost_answers.append(Missing(upto, psn, packet.number, packet.time_ns, psn - upto))

    def _unasked(self, packet: Seen) -> Verdict:
        """A response where no request is seen: follow the PSNs inside a READ, and NAKs."""
        self.connection.tell_response(self, packet, Verdict.UNKNOWN)
        answers = self.connection.directions[1 - self.end]
        if packet.opcode in ACKNOWLEDGE:
            if kind(packet.syndrome) is not AckKind.ACK:
                self._refuse(packet.psn, packet)
        else:
            expected = self.unasked_next
            step = 0 if expected is None else (packet.psn - expected + HALF & MASK) - HALF
            if step > 0 and packet.opcode not in STARTS:
                self.connection.count_lost(1 - self.end, packet.psn, step)
            if step < 0:
                answers.retransmitted += 1
            else:
                self.unasked_next = packet.psn + 1 & MASK if packet.opcode in FULL else None
        self.last_ns = packet.time_ns
        return Verdict.UNKNOWN
