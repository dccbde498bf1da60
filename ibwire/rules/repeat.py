"""Retransmissions: unchanged, justified, limited in number."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Self

import numpy as np

from ibwire.connections.packets import TransportPacket
from ibwire.connections.states import DUPLICATE, NEW, RETRANSMITTED, STALE, PacketStatus
from ibwire.rules.atomics import REQUESTS as ATOMICS
from ibwire.rules.findings import Rule, Severity
from ibwire.rules.history import (
    ACKNOWLEDGES,
    FRESH,
    IS_READ,
    READ_REQUESTS,
    ConnectionCheck,
    RequestHistory,
    Violation,
)
from ibwire.rules.regular import Regular
from ibwire_layers.opcodes import name_of
from ibwire_layers.psn import MASK
from ibwire_layers.syndrome import KIND_BITS, AckKind, kind

SAME = Rule(
    "repeat.same",
    "A retransmitted SEND or WRITE packet has the same opcode, length and RETH.",
    Severity.ERROR,
    "IBA 9.7.3, 9.7.5.1.4",
    "docs/reference/transport.md#resume-write; drop-one-middle, drop-one-last",
)
NEEDLESS = Rule(
    "repeat.needless",
    "A request is retransmitted only if its response is overdue or was refused.",
    Severity.NOTE,
    "IBA 9.7.6.1.3",
    "docs/reference/transport.md#ack-timer; docs/reference/habits.md#rxe-ack-timer; "
    "rc-pingpong packet 81, send-lat",
    ("rxe",),
)
UNASKED = Rule(
    "repeat.unasked-ack",
    "A duplicate that does not ask for an ACK needs none.",
    Severity.NOTE,
    "IBA 9.7.5.1.4, C9-105",
    "docs/reference/transport.md#duplicate-write; docs/reference/habits.md#rxe-duplicate-ack",
    ("rxe",),
)
SELECTIVE = Rule(
    "repeat.selective",
    "A requester that goes back retransmits all packets from that PSN on.",
    Severity.NOTE,
    "IBA 9.9.3",
    "docs/reference/transport.md#go-back-n; docs/reference/habits.md#selective-repeat",
    ("connectx",),
)
RETRIES = Rule(
    "repeat.retries",
    "A request without a response is retransmitted at most 7 times.",
    Severity.ERROR,
    "IBA 9.7.6.1.3",
    "docs/reference/transport.md#retry-count; docs/reference/habits.md#rxe-retry-7",
    ("rxe", "connectx"),
)

RULES: tuple[Rule, ...] = (SAME, NEEDLESS, UNASKED, SELECTIVE, RETRIES)

MOST_RETRIES: Final = 7
"""The retry count has 3 bits."""
NO_ACCIDENT: Final = 3
"""So many ACKs more than were asked for are not made by the network."""
MIN_SKIPS: Final = 3
"""From this count on, skipped packets are not taken for packets lost before the capture point."""


class Repeated(ConnectionCheck):
    """Whether a retransmission is unchanged, and whether it was needed.

    A request that was acknowledged here is retransmitted with good reason if the ACK was lost
    after this point. Needless is what was retransmitted before the first of its two ACKs
    passed here, what no timer watches, and what the requester has shown that it knows to be
    acknowledged: it went back to a later PSN before.
    """

    __slots__ = ("_asks", "_before", "_early", "_known", "_owes", "_refused", "_run", "_selects")

    def __init__(self, history: RequestHistory) -> None:
        super().__init__(history)
        self._before: TransportPacket | None = None
        """The previous request."""
        self._run = False
        """Whether the previous request was a retransmission."""
        self._owes = False
        """Whether it goes back for a NAK, or from what was answered here: if that response was
        lost, all requests after it are due as well."""
        self._asks = -1
        """The highest PSN, unwrapped, of a request that asks for a response."""
        self._early: _Early | None = None
        """Requests retransmitted without a visible reason, while responses may be on the way."""
        self._refused = -1
        """The PSN, unwrapped, of a NAK, until it was acknowledged before a new request; or -1."""
        self._known: tuple[int, int] | None = None
        """A PSN, unwrapped, to which the requester went back for certain, and the packet number:
        it knows that everything before is acknowledged."""
        self._selects = False
        """Whether the requester leaves out packets when it goes back."""

    def request(self, packet: TransportPacket, status: PacketStatus) -> Iterable[Violation]:
        """Compare it with the first sending, and with what was answered since."""
        psn = self.history.unwrapped(packet.psn)
        if status is DUPLICATE or psn is None:
            return ()
        before, self._before = self._before, packet
        runs, self._run = self._run, status is RETRANSMITTED
        if status is not RETRANSMITTED:
            if status in FRESH and self._refused <= (self.history.acked or 0):
                self._refused = -1
            if packet.ack_req or packet.opcode in READ_REQUESTS:
                self._asks = max(self._asks, psn)
            return ()
        return self._judge(psn, packet, before, runs=runs)

    def _judge(
        self, psn: int, packet: TransportPacket, before: TransportPacket | None, *, runs: bool
    ) -> Iterable[Violation]:
        """A retransmitted request.

        before: the request before it. runs: whether that was retransmitted as well.
        """
        found: list[Violation] = []
        first = self.history.requests.get(packet.psn)
        if first is not None and not _is_same(first, packet):
            found.extend(_compare(first, packet))
        follows = before is not None and self.history.request_ids.is_next(before, packet)
        known, early = self._known, self._early
        if early is not None:
            early.sent += 1
        if runs and before is not None and follows:
            step = psn - (self.history.unwrapped(before.psn) or psn)
            self._selects = self._selects or step > (self.history.span(before) or step)
        if known is not None and psn < known[0] and not self._selects and follows:
            words = f"although the requester went back to PSN {known[0] & MASK} in packet"
            found.append((NEEDLESS, f"{_retransmitted(packet)}, {words} {known[1]}", packet))
            return found
        if not runs and follows:
            self._known = psn, packet.number
        is_settled = self._is_settled(psn)
        self._owes = is_settled or self._refused >= 0 or (runs and self._owes)
        if is_settled:
            return found
        if not self._owes and packet.ack_req and (early is None or not runs):
            self._early = _Early(psn, packet)
        if not runs and follows and self._waits_for_nothing():
            words = f"{_retransmitted(packet)}, although nothing asks for an ACK"
            found.append((NEEDLESS, words, packet))
        return found

    def _is_settled(self, psn: int) -> bool:
        """Whether this and everything before it has been answered here."""
        acked = self.history.acked
        if acked is None or psn > acked:
            return False
        return all(read.first > psn for read in self.history.tracker.reads)

    def _waits_for_nothing(self) -> bool:
        """Whether a requester goes back although none of its timers should run."""
        acked = self.history.acked
        return not (
            self._refused >= 0 or acked is None or self._asks > acked or self.history.tracker.reads
        )

    def response(self, packet: TransportPacket, status: PacketStatus) -> Iterable[Violation]:
        """Whether more came than the retransmitted requests can have caused."""
        is_nak = packet.syndrome >= 0 and packet.syndrome & KIND_BITS != 0
        if not is_nak and (self._early is None or packet.opcode not in ACKNOWLEDGES):
            return ()
        return self._judge_response(packet, status, is_nak=is_nak)

    def _judge_response(
        self, packet: TransportPacket, status: PacketStatus, *, is_nak: bool
    ) -> Iterable[Violation]:
        """A NAK, or an ACK while requests were retransmitted without a visible reason."""
        early, psn = self._early, self.history.unwrapped(packet.psn)
        if is_nak or early is None:
            self._early, self._refused = None, psn or 0
            return ()
        if psn is None or psn < early.psn or status is DUPLICATE:
            return ()
        early.answers += 1
        if early.answers <= early.sent or status is not STALE:
            return ()
        self._early = None
        words = f"PSN {early.packet.psn} retransmitted before its ACK came"
        return [(NEEDLESS, f"{words}, and acknowledged both times", early.packet)]

    @classmethod
    def mark_alone(cls, checks: Sequence[Self], run: Regular) -> None:
        """None."""

    @classmethod
    def run(cls, checks: Sequence[Self], run: Regular) -> None:
        """Remember what asks for a response, and count ACKs."""
        asks = run.last_marked(run.rows.ack_req[run.requests] | IS_READ[run.opcode])
        for place, check in enumerate(checks):
            request = run.last_requests[place]
            if request is not None:
                check._before, check._run, check._refused = request, False, -1
                if asks[place] >= 0:
                    check._asks = max(check._asks, int(run.psn[asks[place]]))
            if check._early is not None:
                mine = slice(int(run.answer_starts[place]), int(run.answer_starts[place + 1]))
                acks = run.answers[mine][~run.is_own_answer[mine]]
                check._early.answers += int((acks >= check._early.psn).sum())


@dataclass(slots=True)
class _Early:
    """Retransmitted requests, and the ACKs that came since.

    The ACKs of duplicates may all be of the newest PSN (C9-105). So an ACK of the first
    transmission came only if there are more ACKs than retransmitted requests.
    """

    psn: int
    """Of the first of them, unwrapped."""
    packet: TransportPacket
    sent: int = 1
    answers: int = 0


class Retries(ConnectionCheck):
    """How a requester goes back: how often, and whether it sends everything from there on."""

    __slots__ = ("_acked", "_before", "_last", "_skips", "_start", "_times")

    def __init__(self, history: RequestHistory) -> None:
        super().__init__(history)
        self._before: TransportPacket | None = None
        """The previous request."""
        self._last: int | None = None
        """Its last PSN, unwrapped, if it was a retransmitted one."""
        self._start = -1
        """The PSN from which requests were retransmitted most recently."""
        self._times = 0
        """How often from there, since anything was acknowledged."""
        self._acked: int | None = None
        """The highest PSN that was acknowledged then."""
        self._skips = 0
        """How often a retransmission seemed to be missing."""

    def request(self, packet: TransportPacket, status: PacketStatus) -> Iterable[Violation]:
        """Follow the runs of retransmissions."""
        psn = self.history.unwrapped(packet.psn)
        if status is DUPLICATE or psn is None:
            return ()
        before, self._before = self._before, packet
        last, self._last = self._last, None
        if status is RETRANSMITTED:
            self._last = psn + (self.history.span(packet) or 1) - 1
            if last is None or psn <= last:
                return self._goes_back(psn, packet)
        elif status is NEW and last is not None and before is not None:
            return self._goes_on(last, before, packet)
        return ()

    def _goes_back(self, psn: int, packet: TransportPacket) -> Iterable[Violation]:
        acked = self.history.acked
        again = psn == self._start and acked == self._acked
        self._times = self._times + 1 if again else 1
        self._start, self._acked = psn, acked
        # Where nothing was ever acknowledged the capture may have only one direction.
        if self._times > MOST_RETRIES and acked is not None:
            found = (
                f"{name_of(packet.opcode)} of PSN {packet.psn} retransmitted {self._times} times"
            )
            return [(RETRIES, f"{found}, expected at most {MOST_RETRIES}", packet)]
        return ()

    def _goes_on(
        self, last: int, before: TransportPacket, packet: TransportPacket
    ) -> Iterable[Violation]:
        """Check, at a new request, that all outstanding ones had been retransmitted."""
        following, acked = self.history.unwrapped(packet.psn), self.history.acked
        if following is None or acked is None or acked >= min(last, following - 1):
            return
        if last + 1 < following and self._has_skipped(before, packet):
            found = f"PSN {packet.psn} is new after PSN {last & MASK} was retransmitted"
            missing = following - last - 1
            yield SELECTIVE, f"{found}, expected the {missing} in between as well", packet

    def _has_skipped(self, before: TransportPacket, packet: TransportPacket) -> bool:
        """Whether nothing was sent between the request before and this one.

        What was lost on the way to this point looks the same; only a sender that
        counts its IP identification shows the difference at once.
        """
        if self.history.request_ids.counts:
            return self.history.request_ids.is_next(before, packet)
        self._skips += 1
        return self._skips >= MIN_SKIPS

    def response(self, packet: TransportPacket, status: PacketStatus) -> Iterable[Violation]:
        """An RNR NAK restarts the count."""
        is_nak = packet.syndrome >= 0 and packet.syndrome & KIND_BITS != 0
        if is_nak and kind(packet.syndrome) is AckKind.RNR_NAK:
            self._times = 0
        return ()

    @classmethod
    def mark_alone(cls, checks: Sequence[Self], run: Regular) -> None:
        """A new request after retransmitted ones."""
        run.mark_first_requests(np.array([each._last is not None for each in checks], np.bool_))

    @classmethod
    def run(cls, checks: Sequence[Self], run: Regular) -> None:
        """Remember the last requests."""
        for check, request in zip(checks, run.last_requests, strict=True):
            if request is not None:
                check._before = request


def _retransmitted(packet: TransportPacket) -> str:
    return f"{name_of(packet.opcode)} of PSN {packet.psn} retransmitted"


def _is_same(first: TransportPacket, packet: TransportPacket) -> bool:
    """Whether a retransmission has all that it must have of the first one."""
    return (
        packet.opcode == first.opcode
        and packet.size == first.size
        and packet.dma_len == first.dma_len
        and packet.va == first.va
        and packet.rkey == first.rkey
    )


def _compare(first: TransportPacket, packet: TransportPacket) -> Iterable[Violation]:
    """A retransmission that differs from the first one."""
    if packet.opcode in ATOMICS and first.opcode in ATOMICS:
        return  # the checks of atomics look at them
    if packet.opcode != first.opcode:
        found = f"PSN {packet.psn} retransmitted as {name_of(packet.opcode)}"
        yield SAME, f"{found}, expected {name_of(first.opcode)}", packet
    elif packet.opcode not in READ_REQUESTS:
        now = packet.size, packet.dma_len, packet.va, packet.rkey
        before = first.size, first.dma_len, first.va, first.rkey
        if now != before:
            words = "{} bytes, DMALen {}, address 0x{:x}, R_Key 0x{:x}"
            found = f"{name_of(packet.opcode)} of PSN {packet.psn} retransmitted with"
            yield SAME, f"{found} {words.format(*now)}, expected {words.format(*before)}", packet


class Duplicates(ConnectionCheck):
    """Acknowledgements of duplicates, counted against those that were requested.

    The network may have duplicated a request behind this point, or an ACK before it, and the first
    ACK of a request may come late: one ACK too many is nothing, and so are two.
    """

    __slots__ = ("_asked", "_duplicates", "_given", "_spare")

    def __init__(self, history: RequestHistory) -> None:
        super().__init__(history)
        self._forget()

    def _forget(self) -> None:
        self._duplicates = self._asked = self._given = 0
        self._spare: list[Violation] = []
        """ACKs too many, until there are enough of them."""

    def request(self, packet: TransportPacket, status: PacketStatus) -> Iterable[Violation]:
        """Count a duplicate."""
        if status in FRESH:
            self._forget()
        elif packet.opcode not in READ_REQUESTS and packet.opcode not in ATOMICS:
            self._duplicates += 1
            self._asked += packet.ack_req
        return ()

    def response(self, packet: TransportPacket, status: PacketStatus) -> Iterable[Violation]:
        """Count an answer to a duplicate."""
        is_stale = status is STALE and packet.opcode in ACKNOWLEDGES
        return self._count(packet) if is_stale else ()

    def _count(self, packet: TransportPacket) -> Iterable[Violation]:
        """An ACK that acknowledges nothing new."""
        if packet.syndrome & KIND_BITS != 0:
            return
        self._given += 1
        if self._asked < self._given <= self._duplicates:
            words = (
                f"ACK of PSN {packet.psn} for a duplicate: {self._given} such ACKs, "
                f"{self._duplicates} duplicates so far, of which {self._asked} asked for one"
            )
            self._spare.append((UNASKED, words, packet))
            if self._given - self._asked >= NO_ACCIDENT:
                yield from self._spare
                self._spare.clear()

    @classmethod
    def mark_alone(cls, checks: Sequence[Self], run: Regular) -> None:
        """None."""

    @classmethod
    def run(cls, checks: Sequence[Self], run: Regular) -> None:
        """Forget the duplicates before a new request."""
        for check, request in zip(checks, run.last_requests, strict=True):
            if request is not None:
                check._forget()
