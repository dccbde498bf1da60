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

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from ibwire.analyse.events import Cause, Event, EventKind
from ibwire.analyse.gaps import Missing, cut, joined, within
from ibwire.analyse.identity import KEEP, REORDER_IDS, Recent
from ibwire.analyse.kinds import (
    ACKNOWLEDGE,
    ANSWERED,
    ENDS,
    FULL,
    READ,
    STARTS,
    VERB,
)
from ibwire.analyse.packets import Seen
from ibwire.analyse.under_way import Open
from ibwire_layers.psn import HALF, MASK, MODULUS
from ibwire_layers.syndrome import INVALID_CREDITS, RNR_TIMER_US, AckKind, NakCode, code, kind

if TYPE_CHECKING:
    from ibwire.analyse.connection import Connection


class Verdict(StrEnum):
    """What a packet is to its half of a connection."""

    NEW = "new"
    """The next of its kind."""
    GAP = "gap"
    """New, and something before it has not been seen here."""
    RESENT = "resent"
    """Sent again."""
    COPY = "copy"
    """The same packet once more."""
    LATE = "late"
    """Overtaken by packets that were sent later."""
    STALE = "stale"
    """A response that acknowledges nothing new."""
    UNKNOWN = "unknown"
    """A response to nothing that was seen here."""


@dataclass(slots=True)
class Refusal:
    """A NAK, until the requester has obeyed it."""

    psn: int
    number: int
    place: tuple[int, int]
    """File and number."""
    time_ns: int
    cause: Cause
    wait_ns: int = 0
    """Of an RNR NAK: how long to wait at least."""


REFUSALS = 4
"""NAKs that are remembered until they are obeyed; a restart answers all that are near."""
ASKED_AGAIN = 32
"""READs and atomics that were sent again, which are remembered to know their answers."""
LIVES = 16
"""Agreements on a connection that are remembered until they are seen to be true."""
LIMIT = 4096
"""Messages that are under way at a time; a capture of one direction has no end of them."""
OVERDUE = 32
"""So many messages later a READ will not be asked for again: its responses were not captured."""
GAPS = 256
"""Gaps that are open at a time."""
JUMP = 1 << 16
"""A larger step in PSNs is a new life of the queue pair and no loss. A lost READ of 64 MiB reserves
as many at an MTU of 1024."""
PATIENCE_NS = 100_000_000
"""Who has not sent again so long after it was due has given up. Timers of Linux are late by
tens of milliseconds at most (w: rnr-late-recv, rnr-multi-packet)."""
SILENCE_NS = 1_000_000
"""Who sends again after a longer silence had a timer that ended it. NICs answer a NAK
within hundreds of microseconds at most (Lumina)."""
HASTE_NS = 500_000
"""Between packets that follow each other so soon no sender leaves out IP identifications. Linux
does after a jiffy or more, 1 ms at least (net/ipv4/route.c ip_idents_reserve)."""
MTUS = (256, 512, 1024, 2048, 4096)
"""Bytes of the path MTUs there are (IBA 9.4.3)."""

_UNDER_WAY, _DONE, _OVERDUE = range(3)

NAK_NAMES = {value.value: value.name.lower() for value in NakCode}


@dataclass(slots=True, eq=False)
class Half:
    """State of the requests from one end of a connection and of what answers them."""

    connection: Connection
    end: int
    """Who sends the requests."""
    births: list[int | None] = field(default_factory=list)
    """PSNs with which the requests begin anew, as was agreed."""
    start: int = 0
    """First PSN seen."""
    next: int | None = None
    """PSN that the next new request has; `None` before the first."""
    acked: int = -1
    """Highest PSN that is acknowledged."""
    messages: list[Open] = field(default_factory=list)
    """Not completed, oldest first."""
    missing: list[Missing] = field(default_factory=list)
    missing_answers: list[Missing] = field(default_factory=list)
    lost: list[Missing] = field(default_factory=list)
    """What was missing and has been sent again, until it will not come any more."""
    doubts: set[int] = field(default_factory=set)
    """IP identifications that were left out where requests were sent again."""
    age: int = 0
    """Packets since then."""
    skipped: list[Missing] = field(default_factory=list)
    """What was left out when requests were sent again: lost once more."""
    lost_answers: list[Missing] = field(default_factory=list)
    replay_upto: int | None = None
    """PSN behind the last response that was sent again."""
    asked_again: list[tuple[int, int]] = field(default_factory=list)
    """PSNs, from and to, of READs and atomics that were sent again; the newest."""
    refusals: list[Refusal] = field(default_factory=list)
    """NAKs that the requester has not obeyed yet, newest last."""
    run: Event | None = None
    """Requests that are being sent again."""
    run_at: int = 0
    """PSN of the last of them."""
    run_place: tuple[int, int] = (0, 0)
    """File and number of its first packet."""
    run_upto: int = 0
    """PSN behind the last of them."""
    attempts: int = 0
    """How often the oldest request was sent again since something was acknowledged."""
    resent_number: int = 0
    """Of the packet that began to be sent again last, and when and after what wait it was."""
    resent_ns: int = 0
    resent_after: int = 0
    last_ns: int = 0
    """When the last packet of the half was seen."""
    fatal: bool = False
    """A NAK has ended the connection."""
    requests: Recent = field(default_factory=Recent)
    """The newest by PSN."""
    answers: Recent = field(default_factory=Recent)
    unasked_next: int | None = None
    """PSN of the next response of a READ whose request was never seen."""

    @property
    def next_psn(self) -> int | None:
        """PSN (24 bits) that the next new request has; `None` before the first."""
        return None if self.next is None else self.next & MASK

    @property
    def acked_psn(self) -> int | None:
        """Highest acknowledged PSN (24 bits); `None` when nothing is."""
        return None if self.acked < 0 else self.acked & MASK

    @property
    def is_calm(self) -> bool:
        """Whether nothing is missing, refused or being sent again."""
        return not (
            self.missing
            or self.missing_answers
            or self.lost
            or self.skipped
            or self.lost_answers
            or self.doubts
            or self.refusals
            or self.run
            or any(message.is_doubtful for message in self.messages)
        )

    @property
    def reads(self) -> list[Open]:
        """READs and atomics that have not been answered in full, oldest first."""
        return [message for message in self.messages if message.awaits >= 0]

    def state(self) -> tuple[object, ...]:
        """All that decides how the next packets are taken, but for packets long gone."""
        if self.next is None:
            return (None, self.unasked_next)
        base = self.next
        gaps = (self.missing, self.missing_answers, self.lost, self.skipped, self.lost_answers)
        return (
            *(base & MASK, base - self.acked, self.attempts, self.last_ns, self.fatal),
            [
                (m.verb, base - m.first, base - m.last, m.is_whole, m.size, m.first_ns)
                for m in self.messages
            ],
            [base - m.awaits for m in self.messages if m.awaits >= 0],
            [[(base - g.first, base - g.end) for g in each] for each in gaps],
            [(base - each.psn, each.cause) for each in self.refusals],
            (self.run is not None, base - self.run_upto if self.run else 0),
        )

    # Requests.

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

    def bound(self) -> None:
        """Forget the oldest of what would grow without an end."""
        while len(self.messages) > LIMIT:
            self.connection.abandon(self, self.messages.pop(0))
        for gaps, direction in ((self.missing, self.end), (self.missing_answers, 1 - self.end)):
            while len(gaps) > GAPS:
                gap = gaps.pop(0)
                gap.packets = gap.end - gap.first
                self._lose(gap, direction)

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

    def _refused(self, psn: int) -> Refusal | None:
        """The NAK that names this PSN: an RNR NAK before others, which rxe sends after it."""
        fitting = [each for each in self.refusals if each.psn == psn]
        return max(fitting, key=lambda each: (each.cause is Cause.RNR, each.place), default=None)

    def _remember_refusal(self, psn: int, packet: Seen, cause: Cause, wait_ns: int = 0) -> None:
        refusal = Refusal(psn, packet.number, packet.place, packet.time_ns, cause, wait_ns)
        self.refusals = [*self.refusals[1 - REFUSALS :], refusal]

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
        # (w: reorder-ab-3pc.b packet 190).
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

    # Responses.

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

    # The end, and what is told on the way.

    def finish(self, now: int) -> None:
        """The capture is over, or this life of the queue pair."""
        if self.run is not None or self.refusals:
            self._tell_given_up(now)
        self._end_run()
        self._settle_lost()
        for gaps, direction in ((self.missing, self.end), (self.missing_answers, 1 - self.end)):
            for gap in gaps:
                gap.packets = gap.end - gap.first
                self._lose(gap, direction)
            gaps.clear()
        for message in self.messages:
            self.connection.abandon(self, message)
        self.messages.clear()

    def _tell_given_up(self, now: int) -> None:
        """Tell when the requester has stopped to send again what was not acknowledged."""
        if self.next is None or self.fatal or self.acked + 1 >= self.next:
            return
        refusal = self._refused(self.acked + 1)
        if refusal is not None and refusal.cause is Cause.RNR:
            cause, number, since = Cause.RNR_RETRIES, refusal.number, refusal.time_ns
            is_over = now - since > 2 * refusal.wait_ns + PATIENCE_NS
        else:
            cause, number, since = Cause.RETRIES, self.resent_number, self.resent_ns
            is_over = self.attempts > 0 and now - since > 2 * self.resent_after + PATIENCE_NS
        if is_over:
            self.connection.tell(
                Event(
                    *(EventKind.GIVEN_UP, self.connection.number, self.end, number, since),
                    *(self.acked + 1 & MASK, self.next - 1 & MASK, self.attempts + 1),
                    cause=cause,
                )
            )

    def _lose(self, gap: Missing, direction: int) -> None:
        """The packets of a gap are lost, but for those that were seen damaged."""
        count = self.connection.count_lost(direction, gap.first & MASK, gap.packets)
        if count:
            self.connection.tell(
                Event(
                    *(EventKind.LOSS, self.connection.number, direction, gap.number, gap.time_ns),
                    *(gap.first & MASK, gap.end - 1 & MASK, count),
                )
            )

    def _look_at_order(self, direction: int, psn: int, packet: Seen, verdict: Verdict) -> None:
        """Tell a packet that was overtaken.

        rxe numbers requests and responses side by side, and may send them in another
        order: where PSNs are in order, only a packet of the same kind counts.
        """
        is_late = verdict is Verdict.LATE
        overtaken = self.connection.identities[direction].is_overtaken(packet, is_late)
        if verdict is Verdict.COPY or not overtaken:
            return
        newest = (self.requests if direction == self.end else self.answers).newest
        if not is_late and (
            newest is None or not 0 < (newest.ip_id - packet.ip_id & 0xFFFF) < REORDER_IDS
        ):
            return
        if direction == self.end:
            self.doubts.discard(packet.ip_id)
        counts = self.connection.directions[direction]
        counts.reordered += 1
        if is_late and packet.opcode not in ACKNOWLEDGE:
            counts.retransmitted += self._was_sent_before(direction, psn, packet)
        self._tell_one(EventKind.LATE, direction, packet)

    def _was_sent_before(self, direction: int, psn: int, packet: Seen) -> bool:
        """Whether a packet that was overtaken is not the first of its PSN."""
        if direction == self.end:
            before, gaps = self.requests.get(psn), (self.lost, self.missing)
        else:
            before, gaps = self.answers.get(psn), (self.lost_answers, self.missing_answers)
        if before is not None and 0 < (packet.ip_id - before.ip_id & 0xFFFF) < REORDER_IDS:
            return True
        return psn >= self.start and not any(within(each, psn) for each in gaps)

    def _tell_copy(self, direction: int, packet: Seen, first: Seen | None) -> None:
        self.connection.directions[direction].duplicates += 1
        self._tell_one(EventKind.COPY, direction, packet, first.number if first else 0)

    def _tell_one(
        self, what: EventKind, direction: int, packet: Seen, cause_number: int = 0
    ) -> None:
        self.connection.tell(
            Event(
                *(what, self.connection.number, direction),
                *(packet.number, packet.time_ns, packet.psn, packet.psn),
                opcode=packet.opcode,
                cause_number=cause_number,
            )
        )

    def _end_run(self) -> None:
        """What was sent again is through."""
        if self.run is not None:
            self.connection.tell(self.run)
            self.run = None

    def _age(self) -> None:
        """What has not come a while after the last packet was sent again will not come."""
        if not (self.lost or self.skipped or self.lost_answers or self.doubts):
            return
        self.age = 0 if self.run is not None else self.age + 1
        if self.age > KEEP:
            self._settle_lost()

    def _settle_lost(self) -> None:
        """What had been missing before it was sent again was lost."""
        self.age = 0
        self.connection.directions[self.end].left_out += len(self.doubts)
        self.doubts.clear()
        for gap in joined(self.lost) + self.skipped:
            self._lose(gap, self.end)
        for gap in joined(self.lost_answers):
            self._lose(gap, 1 - self.end)
        for gaps in (self.lost, self.skipped, self.lost_answers):
            gaps.clear()
