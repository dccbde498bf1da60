"""How many messages the MSNs of responses say to be completed, against those that were sent."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, Self

import numpy as np

from ibwire.connections.packets import TransportPacket
from ibwire.connections.runs import Index
from ibwire.connections.states import (
    AFTER_GAP,
    DUPLICATE,
    NEW,
    RETRANSMITTED,
    UNKNOWN,
    PacketStatus,
)
from ibwire.rules.findings import Rule, Severity
from ibwire.rules.history import (
    ACKNOWLEDGES,
    ENDS,
    FRESH,
    IS_END,
    READ_REQUESTS,
    ConnectionCheck,
    RequestHistory,
    Violation,
    distance,
)
from ibwire.rules.packet import Mask
from ibwire.rules.regular import (
    FAR,
    Regular,
    first_of,
    highest_yet,
    lowest_yet,
    opcode_table,
    previous,
)
from ibwire_layers.headers import AETH
from ibwire_layers.opcodes import INFO, name_of
from ibwire_layers.psn import HALF, MASK
from ibwire_layers.syndrome import KIND_BITS

MSN = Rule(
    "psn_acks.msn",
    "The MSN of a response is the number of completed messages, each counted once.",
    Severity.ERROR,
    "IBA 9.7.5.1, C9-148",
    "docs/reference/transport.md#msn; rxe_resp.c execute; qib_rc.c qib_rc_rcv; all RC captures",
)
MIN_MISFITS: Final = 3
"""From so many responses in a row on, an MSN that does not fit is an error of the responder. rxe
may have one after READs, because its ACK of a duplicate does not count them."""
MIN_STILLS: Final = 8
"""The same for an MSN that stands still, which several requests under way may explain: a responder
may have executed all of them before it acknowledges the first."""
MOST_READS: Final = 255
"""READs and atomics that may be outstanding: the field of the CM has 8 bits (IBA 12.7)."""
KEEP_MESSAGES: Final = 512
"""Messages of which it is remembered where they end."""

AETH_RESPONSES = frozenset(code for code, info in INFO.items() if AETH in info.headers)
"""The opcodes of responses with an AETH."""
_IS_AETH = opcode_table(AETH_RESPONSES)
_ENDS_OF_OTHERS = ENDS - READ_REQUESTS
"""The opcodes with which messages end that are no READs."""
_NEVER: Final = 1 << 62
"""Beyond all PSNs."""


class _Suspect(NamedTuple):
    """A response that counts more messages than were seen, until it is clear which end is wrong."""

    words: str
    response: TransportPacket
    status: PacketStatus
    upto: int
    done: int
    """Messages up to that PSN."""
    newest: TransportPacket
    """The request before it."""
    is_alone: bool
    """All requests that were sent before it were acknowledged by it."""


class Messages(ConnectionCheck):
    """Messages are counted as they are sent; every AETH has the count of the responder.

    How many there were before the capture is not known. Each response narrows it:
    a responder has completed all messages up to the PSN that it names, and none
    that was not sent. A response that counts messages which were not seen here
    shows that the capture lacks some, or begins during a retransmission; so
    nothing is reported until a newer response has confirmed the count, or counts on from the
    larger number while nothing else is under way. If several
    responses in a row do not fit the one before them, the responder does not count.
    Checks about credits use the result.
    """

    __slots__ = (
        "_again",
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
        self._again = False
        """Requests were retransmitted since, or came late."""
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
        self._again = False
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
            self._again = self._again or status is not DUPLICATE
            if self._was_not_counted(packet, status):
                self._suspect = None
                self._forget(self.history.tracker.next)
            return ()
        psn = self.history.unwrapped(packet.psn)
        suspect = self._suspect
        found: list[Violation] = []
        is_over = status is AFTER_GAP or self._since is None
        if suspect is not None and self.history.request_ids.is_next(suspect.newest, packet):
            found.append((MSN, suspect.words, suspect.response))
            is_over = True
        if is_over:
            self._suspect = None
            self._forget(psn)
        if packet.opcode in ENDS and psn is not None:
            self.sent += 1
            self._ends.append(psn)
            if len(self._ends) > 2 * KEEP_MESSAGES:
                del self._ends[:KEEP_MESSAGES]
        return found

    def _was_not_counted(self, packet: TransportPacket, status: PacketStatus) -> bool:
        """Whether a message that ends here was not seen before, though its PSN was passed: the
        READ before it seemed to reach so far, while the path MTU was not known."""
        if status is not RETRANSMITTED or packet.opcode not in _ENDS_OF_OTHERS:
            return False
        psn, since = self.history.unwrapped(packet.psn), self._since
        if psn is None or since is None or not self._ends or psn < max(since, self._ends[0]):
            return False
        at = bisect_right(self._ends, psn)
        return self._ends[at - 1] != psn

    def response(self, packet: TransportPacket, status: PacketStatus) -> Iterable[Violation]:
        """Compare the MSN with what may have been completed."""
        return self._compare(packet, status) if packet.opcode in AETH_RESPONSES else ()

    def _compare(self, packet: TransportPacket, status: PacketStatus) -> Iterable[Violation]:
        """A response with an MSN."""
        psn = self.history.unwrapped(packet.psn)
        following = self.history.tracker.next
        if psn is None or self._since is None:
            return ()
        if status is UNKNOWN or (following is not None and psn >= following):
            return ()
        upto = psn if packet.syndrome & KIND_BITS == 0 else psn - 1
        forgotten = self.sent - len(self._ends)
        done = forgotten + bisect_right(self._ends, upto)
        if upto < self._since or (forgotten and done == forgotten):
            return ()
        if self._has_suspect():
            return self._resolve(packet, status, upto, done)
        found: list[Violation] = []
        last = self._last
        high = packet.msn - done
        if last is not None:
            high = self._high + distance(self._high & MASK, high & MASK)
        low = high - (self.sent - done)
        newer = last is None or upto > last[0]
        if last is None or max(low, self._low) > min(high, self._high):
            if self._confirmed:
                found.extend(self._wrong(packet, status, upto, done, low > self._high))
                if self._has_suspect():
                    return found
            elif last is not None and newer:
                self._misfits += 1
                found.extend(self._misfit(packet, last, done, self._misfits >= MIN_MISFITS))
            if newer or last is None:
                self._low, self._high, self._confirmed = low, high, False
                self._last = upto, packet.msn
            return found
        self._low, self._high = max(low, self._low), min(high, self._high)
        if newer:
            if distance(last[1], packet.msn) > 0:
                self._confirmed = True
                self._misfits = self._stills = self._replies = 0
            elif done > forgotten + bisect_right(self._ends, last[0]):
                self._stills += 1
                self._replies += packet.opcode not in ACKNOWLEDGES
                is_enough = self._stills - self._replies >= MIN_STILLS
                found.extend(self._misfit(packet, last, done, is_enough))
            self._last = upto, packet.msn
        return found

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
        if packet.opcode not in ACKNOWLEDGES:
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
        are_new = suspect.status is NEW and status is NEW
        if are_new and fits:
            yield MSN, suspect.words, suspect.response
            self._last = upto, packet.msn
        elif are_new and self._goes_on_from(suspect, packet, upto, done):
            yield MSN, suspect.words, suspect.response
            self._low = self._high = high
            self._last = upto, packet.msn
        else:
            self._forget(self._since)
            self._ends, self.sent = [], 0
            self._since = self.history.tracker.next

    def _goes_on_from(
        self, suspect: _Suspect, packet: TransportPacket, upto: int, done: int
    ) -> bool:
        """Whether the responder has counted messages that were never sent, and counts on from them.

        An MSN may count requests behind the PSN beside it, which the capture lacks or has later.
        But then the next requests seen here were executed before, so a response to them would not
        count them again. Nothing is said of a capture that has responses before their requests,
        nor where requests were retransmitted: the queue pair may have been reset.
        """
        following = self.history.tracker.next
        is_alone = suspect.is_alone and upto + 1 == following
        is_certain = is_alone and not (self._again or self.history.is_disordered)
        return is_certain and distance(suspect.response.msn, packet.msn) == done - suspect.done > 0

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
            is_alone = upto + 1 == self.history.tracker.next
            self._suspect = _Suspect(words, packet, status, upto, done, newest, is_alone)


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
