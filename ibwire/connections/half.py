"""What is known of the requests from one end of a connection, and of the responses to them.

`responses` and `dialogue` say how packets change it. PSNs are unwrapped here: they
count on beyond 24 bits.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from ibwire.connections.events import Cause, Event, EventKind
from ibwire.connections.gaps import Missing, joined, within
from ibwire.connections.identity import KEEP, REORDER_IDS, Recent
from ibwire.connections.kinds import ACKNOWLEDGE
from ibwire.connections.open_message import Open
from ibwire.connections.packets import Seen
from ibwire_layers.psn import MASK
from ibwire_layers.syndrome import NakCode

if TYPE_CHECKING:
    from ibwire.connections.connection import Connection


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
tens of milliseconds at most (rnr-late-recv, rnr-multi-packet)."""
SILENCE_NS = 1_000_000
"""Who sends again after a longer silence had a timer that ended it. NICs answer a NAK
within hundreds of microseconds at most (Lumina)."""
HASTE_NS = 500_000
"""Between packets that follow each other so soon no sender leaves out IP identifications. Linux
does after a jiffy or more, 1 ms at least (net/ipv4/route.c ip_idents_reserve)."""
MTUS = (256, 512, 1024, 2048, 4096)
"""Bytes of the path MTUs there are (IBA 9.4.3)."""


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

    def bound(self) -> None:
        """Forget the oldest of what would grow without an end."""
        while len(self.messages) > LIMIT:
            self.connection.abandon(self, self.messages.pop(0))
        for gaps, direction in ((self.missing, self.end), (self.missing_answers, 1 - self.end)):
            while len(gaps) > GAPS:
                gap = gaps.pop(0)
                gap.packets = gap.end - gap.first
                self._lose(gap, direction)

    def _refused(self, psn: int) -> Refusal | None:
        """The NAK that names this PSN: an RNR NAK before others, which rxe sends after it."""
        fitting = [each for each in self.refusals if each.psn == psn]
        return max(fitting, key=lambda each: (each.cause is Cause.RNR, each.place), default=None)

    def _remember_refusal(self, psn: int, packet: Seen, cause: Cause, wait_ns: int = 0) -> None:
        refusal = Refusal(psn, packet.number, packet.place, packet.time_ns, cause, wait_ns)
        self.refusals = [*self.refusals[1 - REFUSALS :], refusal]

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
