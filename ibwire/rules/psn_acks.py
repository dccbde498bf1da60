"""What acknowledgements say: PSNs that were sent, messages that were completed, in order."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Self

import numpy as np

from ibwire.connections.packets import TransportPacket
from ibwire.connections.runs import Index
from ibwire.connections.states import PacketStatus
from ibwire.rules.findings import Rule, Severity
from ibwire.rules.history import (
    ENDS,
    FRESH,
    IS_END,
    ConnectionCheck,
    RequestHistory,
    Violation,
)
from ibwire.rules.packet import Mask, PacketRule, opcodes_where
from ibwire.rules.regular import (
    FAR,
    OPERATION,
    Regular,
    first_of,
    highest_yet,
    lowest_yet,
    opcode_table,
    operation_number,
    previous,
)
from ibwire_layers.headers import AETH
from ibwire_layers.opcodes import INFO, OpCode, Operation, Service, name_of
from ibwire_layers.psn import HALF, MASK, distance
from ibwire_layers.syndrome import AckKind, kind

MSN = Rule(
    "psn_acks.msn",
    "The MSN of a response is the number of completed messages, each counted once.",
    Severity.ERROR,
    "IBA 9.7.5.1, C9-148",
    "docs/reference/transport.md#msn; rxe_resp.c execute; qib_rc.c qib_rc_rcv; all RC captures",
)
SENT = Rule(
    "psn_acks.sent",
    "A response has the PSN of a request that was sent.",
    Severity.ERROR,
    "IBA 9.7.5.1",
    "docs/reference/transport.md#response-unsent; qib_rc.c qib_rc_rcv_resp drops others",
)
EARLY = Rule(
    "psn_acks.early",
    "A request is acknowledged after it was sent, unless the clocks of the capture disagree.",
    Severity.WARNING,
    "IBA 9.7.5.1",
    "docs/reference/transport.md#response-unsent; qib_rc.c qib_rc_rcv_resp drops others",
)
BEFORE_FIRST = Rule(
    "psn_acks.before-first",
    "The ACK of a duplicate has the newest PSN that was executed.",
    Severity.WARNING,
    "IBA 9.7.5.1.4, C9-105",
    "docs/reference/transport.md#duplicate-write; "
    "docs/reference/habits.md#rxe-duplicate-ack: 0xFFFFFF before the first SEND, WRITE or atomic",
    ("rxe",),
)
STALE = Rule(
    "psn_acks.stale",
    "The PSNs of ACKs do not go back.",
    Severity.WARNING,
    "IBA 9.7.5.1",
    "docs/reference/transport.md#duplicate-write; "
    "docs/reference/habits.md#rxe-duplicate-ack; qib_rc.c qib_rc_rcv_error",
    ("rxe", "rdmavt"),
)
KIND = Rule(
    "psn_acks.kind",
    "A READ gets READ responses, an atomic ATOMIC ACKNOWLEDGE, FLUSH and "
    "ATOMIC WRITE by an empty READ RESPONSE ONLY, and other requests by none of these.",
    Severity.ERROR,
    "IBA 9.7.5.1",
    "rxe_resp.c acknowledge; docs/reference/transport.md#response-kinds",
)
ASKED = Rule(
    "psn_acks.ack-req",
    "Only requests of reliable services ask for an ACK.",
    Severity.WARNING,
    "IBA 9.2.1",
    "docs/reference/transport.md#ack-request",
)
ASKED_MAD = Rule(
    "psn_acks.ack-req-mad",
    "Management datagrams do not ask for an ACK.",
    Severity.WARNING,
    "IBA 9.2.1",
    "rxe sets AckReq on QP1, native InfiniBand does not: docs/reference/habits.md#rxe-cm",
    ("rxe",),
    is_trait=True,
)

RULES: tuple[Rule, ...] = (MSN, SENT, EARLY, BEFORE_FIRST, STALE, KIND, ASKED, ASKED_MAD)

MAX_UNSEEN = 1 << 16
"""A capture may lack this many packets in a row; a response further ahead has no request."""
NEARBY = 1 << 12
"""PSNs around 0xFFFFFF that make an ACK of it an ordinary one."""
FAR_AHEAD = 64
"""Packets beyond the newest request from which on a response is far ahead. Where the capture lacks
so many requests, the next response has a PSN beyond them as well."""
MIN_MISFITS = 3
"""From so many responses in a row on, an MSN that does not fit is an error of the responder. rxe
may have one after READs, because its ACK of a duplicate does not count them."""
MIN_STILLS = 8
"""The same for an MSN that stands still, which several requests under way may explain: a responder
may have executed all of them before it acknowledges the first."""
MIN_PLAIN = 8
"""From so many READs and atomics in a row on to which an ACK is the first response, this is not
because the capture lacks the right ones."""
MOST_READS = 255
"""READs and atomics that may be outstanding: the field of the CM has 8 bits (IBA 12.7)."""
KEEP_MESSAGES = 512
"""Messages of which it is remembered where they end."""

_UNASKING = opcodes_where(
    lambda info: info.is_response or info.service not in (Service.RC, Service.XRC, Service.RD)
)
_AETH = frozenset(code for code, info in INFO.items() if AETH in info.headers)
_IS_AETH = opcode_table(_AETH)
_ACKNOWLEDGE = frozenset((OpCode.RC_ACKNOWLEDGE, OpCode.XRC_ACKNOWLEDGE))

_NEVER = 1 << 62
"""Beyond all PSNs."""
_MANAGEMENT_QPS = 2
"""QP 0 and QP 1 (IBA 3.9.4)."""

PACKET_RULES: tuple[PacketRule, ...] = (
    PacketRule(
        ASKED,
        lambda chunk: (
            chunk.are(_UNASKING)
            & (chunk["bth.a"] != 0)
            & (chunk["bth.destqp"] >= _MANAGEMENT_QPS)
            & (chunk.opcode != OpCode.CNP)
        ),
        lambda chunk, row: f"{name_of(int(chunk.opcode[row]))} with AckReq 1, expected 0",
    ),
    PacketRule(
        ASKED_MAD,
        lambda chunk: (
            chunk.are(_UNASKING)
            & (chunk["bth.a"] != 0)
            & (chunk["bth.destqp"] < _MANAGEMENT_QPS)
            & (chunk.opcode != OpCode.CNP)
        ),
        lambda chunk, row: (
            f"{name_of(int(chunk.opcode[row]))} to QP {chunk['bth.destqp'][row]} with AckReq 1, "
            "expected 0"
        ),
    ),
)


class _Suspect(NamedTuple):
    """A response that counts more messages than were seen, until it is clear which end is wrong."""

    words: str
    response: TransportPacket
    status: PacketStatus
    upto: int
    newest: TransportPacket
    """The request before it."""


class Messages(ConnectionCheck):
    """Messages are counted as they are sent; every AETH has the count of the responder.

    How many there were before the capture is not known. Each response narrows it:
    a responder has completed all messages up to the PSN that it names, and none
    that was not sent. A response that counts messages which were not seen here
    shows that the capture lacks some, or begins during a retransmission; so
    nothing is reported until a newer response has confirmed the count. If several
    responses in a row do not fit the one before them, the responder does not count.
    Checks about credits use the result.
    """

    __slots__ = (
        "_confirmed",
        "_ends",
        "_high",
        "_last",
        "_low",
        "_misfits",
        "_replies",
        "_since",
        "_stills",
        "_suspect",
        "sent",
    )

    def __init__(self, history: RequestHistory) -> None:
        super().__init__(history)
        self._since: int | None = None
        self._ends: list[int] = []
        """Last PSNs of the newest messages, unwrapped; the READ's own PSN of a READ."""
        self.sent = 0
        """Messages whose end was sent since `_since`."""
        self._low = self._high = 0
        """Bounds of the MSN before the first of them."""
        self._last: tuple[int, int] | None = None
        """PSN, unwrapped, and MSN of the newest response that fitted; `None`: no bounds known."""
        self._confirmed = False
        """The MSN has gone on as it should since the bounds were taken."""
        self._misfits = 0
        """Newer responses in a row whose MSN does not fit the response before."""
        self._stills = 0
        """Newer responses in a row that acknowledge more messages with the same MSN."""
        self._replies = 0
        """Those of them to READs and atomics, which may all have been executed before the first."""
        self._suspect: _Suspect | None = None
        """A response with an MSN that counts too much."""

    def _forget(self, psn: int | None) -> None:
        self._since = psn
        self._ends = []
        self.sent = 0
        self._last = None
        self._confirmed = False
        self._misfits = self._stills = self._replies = 0

    @property
    def before(self) -> int | None:
        """MSN before the first message that was counted, if that is certain."""
        certain = self._confirmed and self._low == self._high
        return self._low & MASK if certain else None

    def _has_suspect(self) -> bool:
        """Whether an MSN waits for the next one, which shows if it was wrong.

        A compiled module would take the attribute itself to be as it was before a call.
        """
        return self._suspect is not None

    def request(self, packet: TransportPacket, status: PacketStatus) -> Iterable[Violation]:
        """Count a message when its last packet is sent."""
        if status not in FRESH:
            return
        psn = self.history.unwrapped(packet.psn)
        suspect = self._suspect
        is_over = status is PacketStatus.AFTER_GAP or self._since is None
        if suspect is not None and self.history.request_ids.is_next(suspect.newest, packet):
            yield MSN, suspect.words, suspect.response
            is_over = True
        if is_over:
            self._suspect = None
            self._forget(psn)
        if packet.opcode in ENDS and psn is not None:
            self.sent += 1
            self._ends.append(psn)
            if len(self._ends) > 2 * KEEP_MESSAGES:
                del self._ends[:KEEP_MESSAGES]

    def response(self, packet: TransportPacket, status: PacketStatus) -> Iterable[Violation]:
        """Compare the MSN with what may have been completed."""
        psn = self.history.unwrapped(packet.psn)
        following = self.history.tracker.next
        if psn is None or self._since is None or packet.opcode not in _AETH:
            return
        if status is PacketStatus.UNKNOWN or (following is not None and psn >= following):
            return
        upto = psn if kind(packet.syndrome) is AckKind.ACK else psn - 1
        forgotten = self.sent - len(self._ends)
        done = forgotten + bisect_right(self._ends, upto)
        if upto < self._since or (forgotten and done == forgotten):
            return
        if self._has_suspect():
            yield from self._resolve(packet, status, upto, done)
            return
        last = self._last
        high = packet.msn - done
        if last is not None:
            high = self._high + distance(self._high & MASK, high & MASK)
        low = high - (self.sent - done)
        newer = last is None or upto > last[0]
        if last is None or max(low, self._low) > min(high, self._high):
            if self._confirmed:
                yield from self._wrong(packet, status, upto, done, low > self._high)
                if self._has_suspect():
                    return
            elif last is not None and newer:
                self._misfits += 1
                yield from self._misfit(packet, last, done, self._misfits >= MIN_MISFITS)
            if newer or last is None:
                self._low, self._high, self._confirmed = low, high, False
                self._last = upto, packet.msn
            return
        self._low, self._high = max(low, self._low), min(high, self._high)
        if newer:
            if distance(last[1], packet.msn) > 0:
                self._confirmed = True
                self._misfits = self._stills = self._replies = 0
            elif done > forgotten + bisect_right(self._ends, last[0]):
                self._stills += 1
                self._replies += packet.opcode not in _ACKNOWLEDGE
                is_enough = self._stills - self._replies >= MIN_STILLS
                yield from self._misfit(packet, last, done, is_enough)
            self._last = upto, packet.msn

    @classmethod
    def mark_alone(cls, checks: Sequence[Self], run: Regular) -> None:
        """Responses whose MSN does not go on with the number of messages."""
        run.mark_all(each._suspect is not None for each in checks)
        run.mark_responses(cls.fit(checks, run).odd)

    @classmethod
    def run(cls, checks: Sequence[Self], run: Regular) -> None:
        """Count the messages."""
        fit = cls.fit(checks, run)
        ends = np.flatnonzero(IS_END[run.opcode])
        psn = run.psn[ends].tolist()
        starts = np.searchsorted(ends, run.starts).tolist()
        last = fit.last(run)
        firsts = run.first_psn.tolist()
        for place, check in enumerate(checks):
            if check._since is None:
                if firsts[place] < 0:
                    continue
                check._since = firsts[place]
            check._count(psn[starts[place] : starts[place + 1]])
            if (found := last[place]) is not None:
                check._last = found.upto, found.msn
                check._low, check._high = found.low, found.high
                if found.goes_on:
                    check._confirmed = True
                    check._misfits = check._stills = check._replies = 0

    def _count(self, ends: list[int]) -> None:
        """Count messages that end with these PSNs, as many of which are kept as one by one."""
        kept = len(self._ends) + len(ends)
        if kept > 2 * KEEP_MESSAGES:
            kept = KEEP_MESSAGES + 1 + (kept - 2 * KEEP_MESSAGES - 1) % KEEP_MESSAGES
        self._ends += ends
        del self._ends[: len(self._ends) - kept]
        self.sent += len(ends)

    @classmethod
    def fit(cls, checks: Sequence[Self], run: Regular) -> _Fit:
        """How the MSNs of regular responses fit the number of messages."""
        found: _Fit | None = run.memo.get(Messages)
        if found is None:
            found = run.memo[Messages] = cls._fit(checks, run)
        return found

    @classmethod
    def _fit(cls, checks: Sequence[Self], run: Regular) -> _Fit:
        since = np.array(
            [_NEVER if each._since is None else each._since for each in checks], np.int64
        )
        since = np.where((since == _NEVER) & run.has_requests, run.first_psn, since)
        which = np.flatnonzero(_IS_AETH[run.answer_opcode] & (run.answers >= since[run.answer_key]))
        key, upto, msn = run.answer_key[which], run.answers[which], run.msn[which]
        counted = np.cumsum(np.concatenate([[0], IS_END[run.opcode]]))
        sent = np.array([each.sent for each in checks], np.int64) - counted[run.starts[:-1]]
        there = sent[key] + counted[run.before[which]]
        done, done_before = cls._done(checks, run, key, upto)
        old = np.array([each._state() for each in checks], np.int64).reshape(-1, 6)
        has_last = old[:, 0] > 0
        last_upto, last_msn, low, high, confirmed = old[:, 1:].T
        # Without a response before, the first one gives the bounds.
        is_begin = first_of(key) & ~has_last[key]
        anchor = high.copy()
        anchor[key[is_begin]] = (msn - done)[is_begin]
        highs = distances(anchor[key] & MASK, msn - done)
        lows = np.clip(highs - (there - done), -FAR, FAR)
        lows = highest_yet(np.maximum(lows, np.where(has_last, low - high, -FAR)[key]), key)
        highs = lowest_yet(np.minimum(highs, np.where(has_last, 0, FAR)[key]), key)
        ahead = distances(previous(msn, key, last_msn), msn)
        more = (done > previous(done, key, done_before)) & ~is_begin
        goes_on = ((ahead > 0) & ~is_begin).astype(np.int64)
        odd = (lows > highs) | ((ahead <= 0) & more) | (there - done >= KEEP_MESSAGES)
        odd |= first_of(key) & ~is_begin & (upto <= last_upto[key])
        marked = np.zeros(len(run.responses), np.bool_)
        marked[which] = odd
        has_gone_on = highest_yet(goes_on, key) > 0
        anchors = anchor[key]
        return _Fit(
            odd=marked,
            which=which,
            key=key,
            upto=upto,
            msn=msn,
            low=anchors + lows,
            high=anchors + highs,
            goes_on=has_gone_on,
            is_confirmed=has_gone_on | (confirmed[key] > 0),
            sent=sent[run.key] + counted[:-1],
            there=there,
        )

    def _state(self) -> tuple[int, int, int, int, int, int]:
        """Whether there was a response that fitted, its PSN and MSN, bounds, whether confirmed."""
        last = self._last
        if last is None:
            return 0, 0, 0, 0, 0, 0
        return 1, *last, self._low, self._high, self._confirmed

    @classmethod
    def _done(
        cls, checks: Sequence[Self], run: Regular, key: Index, upto: Index
    ) -> tuple[Index, Index]:
        """Messages up to each of these PSNs, and up to the response before by exchange."""
        is_end = IS_END[run.opcode]
        keys, ends, skipped, before = [], [], [], []
        for place, check in enumerate(checks):
            forgotten = check.sent - len(check._ends)
            open_from = bisect_right(check._ends, run.trackers[place].acked)
            left = check._ends[open_from:]
            keys += [place] * len(left)
            ends += left
            skipped.append(forgotten + open_from)
            last = check._last
            before.append(forgotten + bisect_right(check._ends, last[0]) if last else 0)
        old = run.ordered(np.array(keys, np.int64), np.array(ends, np.int64))
        found = np.sort(np.concatenate([old, run.ordered(run.key[is_end], run.psn[is_end])]))
        first = np.searchsorted(found, run.ordered(key, run.next[key] - FAR))
        done = np.searchsorted(found, run.ordered(key, upto), side="right") - first
        return np.array(skipped, np.int64)[key] + done, np.array(before, np.int64)

    @classmethod
    def certain(cls, checks: Sequence[Self], run: Regular) -> tuple[Index, Index]:
        """By exchange, the first response after which `before` is certain, and its value.

        The response is -1 where it was certain before, and their number where it never is.
        """
        fit = cls.fit(checks, run)
        certain = np.flatnonzero(fit.is_confirmed & (fit.low == fit.high))
        certain = certain[first_of(fit.key[certain])]
        response = np.full(run.count, len(run.responses), np.int64)
        value = np.zeros(run.count, np.int64)
        response[fit.key[certain]] = fit.which[certain]
        value[fit.key[certain]] = fit.low[certain] & MASK
        for place, check in enumerate(checks):
            if (before := check.before) is not None:
                response[place], value[place] = -1, before
        return response, value

    def _misfit(
        self, packet: TransportPacket, last: tuple[int, int], done: int, is_enough: bool
    ) -> Iterable[Violation]:
        """An MSN that does not fit the response before, and that no other response has confirmed.

        Where the capture begins while READs or atomics are retransmitted, the MSN stands still
        as often as such requests can be outstanding. The ACK of a duplicate SEND or WRITE names
        the newest request that was executed, so there the MSN does not stand still.
        """
        if packet.opcode not in _ACKNOWLEDGE:
            tracker = self.history.tracker
            most = tracker.connection.max_reads[tracker.end]
            is_enough = self._misfits + self._stills >= (MOST_READS if most is None else most) + (
                MIN_STILLS
            )
        if not is_enough:
            return
        forgotten = self.sent - len(self._ends)
        count = done - forgotten - bisect_right(self._ends, last[0])
        found = f"{name_of(packet.opcode)} with MSN {packet.msn}"
        messages = f"{count} message{'' if count == 1 else 's'}"
        expected = f"{last[1] + count & MASK}, {messages} after a response with {last[1]}"
        yield MSN, f"{found}, expected {expected}", packet

    def _resolve(
        self, packet: TransportPacket, status: PacketStatus, upto: int, done: int
    ) -> Iterable[Violation]:
        """Compare the response after one that counts too much with what was known before it.

        New responses leave in the order of their PSNs, and the MSN never goes back. So if this
        one counts as before, the one in between was wrong; else the capture lacks messages.
        """
        suspect = self._suspect
        assert suspect is not None
        if upto <= suspect.upto:
            return
        self._suspect = None
        high = self._high + distance(self._high & MASK, (packet.msn - done) & MASK)
        low = high - (self.sent - done)
        fits = max(low, self._low) <= min(high, self._high)
        if fits and suspect.status is PacketStatus.NEW and status is PacketStatus.NEW:
            yield MSN, suspect.words, suspect.response
            self._last = upto, packet.msn
        else:
            self._forget(self._since)
            self._ends, self.sent = [], 0
            self._since = self.history.tracker.next

    def _wrong(
        self, packet: TransportPacket, status: PacketStatus, upto: int, done: int, too_much: bool
    ) -> Iterable[Violation]:
        """An MSN that is out of bounds: too small for certain, or perhaps too large."""
        fewest, most = (self._low + done) & MASK, (self._high + self.sent) & MASK
        expected = f"{fewest}" if fewest == most else f"{fewest} to {most}"
        words = f"{name_of(packet.opcode)} with MSN {packet.msn}, expected {expected}"
        newest = self.history.newest
        if not too_much:
            yield MSN, words, packet
        elif newest is not None:
            self._suspect = _Suspect(words, packet, status, upto, newest)


class _Fit(NamedTuple):
    """What the MSNs of regular responses show; (n,) of the responses with an AETH."""

    odd: Mask
    """(responses,) those that do not fit."""
    which: Index
    """Which responses they are."""
    key: Index
    """Which exchange each belongs to."""
    upto: Index
    msn: Index
    low: Index
    """Bounds of the MSN before the first message, after each."""
    high: Index
    goes_on: Mask
    """The MSN has gone on in these packets."""
    is_confirmed: Mask
    """The same since the bounds were taken."""
    sent: Index
    """(requests,) messages of the exchange that were sent before each request."""
    there: Index
    """Messages that were sent before each."""

    def last(self, run: Regular) -> list[_Fitting | None]:
        """The last of each exchange."""
        found: list[_Fitting | None] = [None] * run.count
        ends = np.flatnonzero(first_of(self.key[::-1])[::-1])
        columns = (self.key, self.upto, self.msn, self.low, self.high, self.goes_on)
        for place, *rest in zip(*(each[ends].tolist() for each in columns), strict=True):
            found[place] = _Fitting(*rest)
        return found


class _Fitting(NamedTuple):
    """One of them."""

    upto: int
    msn: int
    low: int
    high: int
    goes_on: bool


def distances(start: Index, end: Index) -> Index:
    """(n,) PSNs from each start forward to each end, negative when it is behind."""
    found: Index = ((end - start + HALF) & MASK) - HALF
    return found


class Acknowledged(ConnectionCheck):
    """Which PSNs responses name."""

    __slots__ = ("_early", "_far", "_far_words", "ahead")

    def __init__(self, history: RequestHistory) -> None:
        super().__init__(history)
        self.ahead: int | None = None
        """An unwrapped PSN that was acknowledged and has not been seen as a request."""
        self._far: TransportPacket | None = None
        """The newest response with a PSN far beyond the newest request, until it is explained."""
        self._far_words = ""
        self._early: Violation | None = None
        """What the request after it breaks, unless the response itself turns out to be wrong."""

    def request(self, packet: TransportPacket, status: PacketStatus) -> Iterable[Violation]:
        """Whether it had been acknowledged before it was sent."""
        ahead, self.ahead = self.ahead, None
        if self._far is not None and status is not PacketStatus.NEW:
            self._far = None  # the capture lacks requests, or the requester goes back
        if ahead is None or status is PacketStatus.DUPLICATE:
            return
        psn = self.history.unwrapped(packet.psn)
        newest = self.history.newest
        if status is not PacketStatus.NEW or psn is None or psn > ahead or newest is None:
            return
        # Otherwise the capture may lack the first time that it was sent.
        if self.history.request_ids.is_next(newest, packet):
            violation = EARLY, f"PSN {packet.psn} is sent after it was acknowledged", packet
            if self._far is None:
                yield violation
            else:
                self._early = violation

    def response(self, packet: TransportPacket, status: PacketStatus) -> Iterable[Violation]:
        """Whether its PSN was sent, and does not go back."""
        tracker = self.history.tracker
        psn = self.history.unwrapped(packet.psn)
        if psn is None or tracker.next is None:
            return
        is_ack = packet.opcode in _ACKNOWLEDGE and kind(packet.syndrome) is AckKind.ACK
        if is_ack and packet.psn == MASK and abs(psn - tracker.next) > NEARBY:
            yield (
                BEFORE_FIRST,
                f"ACK of PSN {MASK}, but {(tracker.next - 1) & MASK} was sent last",
                packet,
            )
            return
        far, self._far = self._far, None
        early, self._early = self._early, None
        front = self.history.front
        if far is not None and self._is_next_response(far, front, packet, status):
            yield SENT, f"{self._far_words}; the next response is of PSN {packet.psn}", far
        elif early is not None:
            yield early
        if psn >= tracker.next:
            yield from self._unsent(packet, psn)
            return
        if not is_ack or front is None or status is PacketStatus.DUPLICATE:
            return
        if distance(front.psn, packet.psn) >= 0:
            return
        counts_more = front.syndrome >= 0 and distance(front.msn, packet.msn) > 0
        if self.history.answer_ids.left_later(front, packet, otherwise=counts_more):
            yield STALE, f"ACK of PSN {packet.psn} after a response of PSN {front.psn}", packet

    @classmethod
    def mark_alone(cls, checks: Sequence[Self], run: Regular) -> None:
        """ACKs of a PSN that stands for none."""
        run.mark_all(
            each.ahead is not None or each._far is not None or each._early is not None
            for each in checks
        )
        is_none = (run.answers & MASK == MASK) & ~run.is_own_answer
        if is_none.any():
            run.mark_responses(is_none & (run.behind - run.answers > NEARBY))

    def _is_next_response(
        self,
        far: TransportPacket,
        front: TransportPacket | None,
        packet: TransportPacket,
        status: PacketStatus,
    ) -> bool:
        """Whether the responder goes on below a PSN that it acknowledged: that one is wrong."""
        is_below = status is PacketStatus.NEW and distance(packet.psn, far.psn) > 0
        return is_below and front is not None and distance(front.psn, packet.psn) > 0

    def _unsent(self, packet: TransportPacket, psn: int) -> Iterable[Violation]:
        tracker, newest = self.history.tracker, self.history.newest
        if newest is None or self.history.span(newest) is None:
            return
        assert tracker.next is not None
        found = f"{name_of(packet.opcode)} of PSN {packet.psn}"
        words = f"{found}, but {(tracker.next - 1) & MASK} was sent last"
        if psn - tracker.next > MAX_UNSEEN:
            yield SENT, words, packet
            return
        if psn - tracker.next >= FAR_AHEAD and self.history.front is not None:
            self._far, self._far_words = packet, words
        if kind(packet.syndrome) is AckKind.ACK and packet.opcode in _AETH:
            self.ahead = psn


_ANSWERS = {
    Operation.READ: Operation.READ_RESPONSE,
    Operation.FLUSH: Operation.READ_RESPONSE,
    Operation.ATOMIC_WRITE: Operation.READ_RESPONSE,
    Operation.COMPARE_SWAP: Operation.ATOMIC_ACKNOWLEDGE,
    Operation.FETCH_ADD: Operation.ATOMIC_ACKNOWLEDGE,
}
"""Operations that have their own kind of response."""

_EXPECTED = {
    code: _ANSWERS.get(info.operation, Operation.ACKNOWLEDGE) for code, info in INFO.items()
}
"""The kind of response by the opcode of the request."""

_ANSWER_OF = np.full(len(Operation), -1, np.int16)
_IS_EMPTY = np.zeros(len(Operation), np.bool_)
for _asked, _answer in _ANSWERS.items():
    _ANSWER_OF[operation_number(_asked)] = operation_number(_answer)
    _IS_EMPTY[operation_number(_asked)] = _asked in (Operation.FLUSH, Operation.ATOMIC_WRITE)


class Kind(ConnectionCheck):
    """Which kind of response a request gets.

    An ACK may name a READ or atomic as the newest request when a duplicate is acknowledged, after
    the response to it, which the capture may lack.
    """

    __slots__ = ("_before", "_plain")

    def __init__(self, history: RequestHistory) -> None:
        super().__init__(history)
        self._before: TransportPacket | None = None
        """The response before."""
        self._plain = 0
        """READs and atomics in a row of which an ACK was the first response."""

    def response(self, packet: TransportPacket, status: PacketStatus) -> Iterable[Violation]:
        """Compare it with the request that has its PSN, if that was seen."""
        before, self._before = self._before, packet
        info = INFO[packet.opcode]
        request = self.history.requests.get(packet.psn)
        if request is None:
            return
        asked = INFO[request.opcode].operation
        expected = _EXPECTED[request.opcode]
        if info.operation is Operation.ACKNOWLEDGE:
            is_new = status is PacketStatus.NEW and kind(packet.syndrome) is AckKind.ACK
            if is_new and expected is not info.operation and self._is_first(before, packet):
                yield KIND, _other_kind(packet, request), packet
            return
        self._plain = 0
        empty = asked in (Operation.FLUSH, Operation.ATOMIC_WRITE)
        if info.operation is expected and not (empty and packet.size):
            return
        if self.history.covering(packet.psn) != [] and info.operation is Operation.READ_RESPONSE:
            return
        yield KIND, _other_kind(packet, request), packet

    @classmethod
    def mark_alone(cls, checks: Sequence[Self], run: Regular) -> None:
        """Responses of the wrong kind."""
        own = np.flatnonzero(run.is_own_answer)
        if not len(own):
            return
        asked = run.awaited.operation[run.answered]
        odd = OPERATION[run.answer_opcode[own]] != _ANSWER_OF[asked]
        odd |= _IS_EMPTY[asked] & (run.answer_size[own] > 0)
        odd |= np.array([each._plain > 0 for each in checks])[run.answer_key[own]]
        mask = np.zeros(len(run.responses), np.bool_)
        mask[own] = odd
        run.mark_responses(mask)

    @classmethod
    def run(cls, checks: Sequence[Self], run: Regular) -> None:
        """Remember the last responses."""
        for check, response in zip(checks, run.last_responses, strict=True):
            if response is not None:
                check._before = response

    def _is_first(self, before: TransportPacket | None, packet: TransportPacket) -> bool:
        """Whether it is the first response to its request for certain."""
        self._plain += 1
        ids = self.history.answer_ids
        return self._plain >= MIN_PLAIN or (before is not None and ids.is_next(before, packet))


def _other_kind(packet: TransportPacket, request: TransportPacket) -> str:
    found = f"{name_of(packet.opcode)} of PSN {packet.psn}"
    return f"{found}, but {name_of(request.opcode)} was sent"
