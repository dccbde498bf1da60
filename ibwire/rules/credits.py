"""End-to-end credits: no message is begun beyond the limit, except one to ask for more.

Only a responder that gives credits is checked: credit code 31 ends them
permanently, and code 0 of a peer that never gave any means nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, Self

import numpy as np

from ibwire.connections.packets import TransportPacket
from ibwire.connections.runs import Index
from ibwire.connections.states import AFTER_GAP, PacketStatus
from ibwire.rules.findings import Rule, Severity
from ibwire.rules.history import (
    ENDS,
    FRESH,
    IS_START,
    STARTS,
    ConnectionCheck,
    RequestHistory,
    Violation,
    distance,
)
from ibwire.rules.msn import Messages, distances
from ibwire.rules.regular import Mask, Regular, first_of, highest_yet, opcode_table
from ibwire_layers.headers import ImmDt
from ibwire_layers.opcodes import INFO, Operation, name_of
from ibwire_layers.psn import MASK
from ibwire_layers.syndrome import CREDITS, INVALID_CREDITS, KIND_BITS, code, credits

LIMIT = Rule(
    "credits.limit",
    "At most one message is begun beyond the credits of the responder.",
    Severity.ERROR,
    "IBA 9.7.7.2",
    "docs/reference/transport.md#limited-message; docs/reference/habits.md#hns-credits",
)
ASK = Rule(
    "credits.ask",
    "The first packet of a message beyond the credits asks for an ACK.",
    Severity.ERROR,
    "IBA 9.7.7.2.5",
    "docs/reference/transport.md#limited-message; docs/reference/habits.md#hns-credits",
)
FIRST_ALONE = Rule(
    "credits.first-alone",
    "Of a message beyond the credits only the first packet is sent before credits arrive.",
    Severity.WARNING,
    "IBA 9.7.7.2.5",
    "docs/reference/transport.md#limited-message; rdmavt and hns send it whole",
    ("rdmavt", "hns"),
)

RULES: tuple[Rule, ...] = (LIMIT, ASK, FIRST_ALONE)

NO_ACCIDENT: Final = 3
"""From this many on it is the sender and not the network."""

_CREDITED = frozenset(
    code
    for code, info in INFO.items()
    if info.operation is Operation.SEND
    or (info.operation is Operation.WRITE and ImmDt in info.headers)
)
_IS_CREDITED = opcode_table(_CREDITED)
_CREDITS = np.array([*CREDITS, 0], np.int64)


class Credits(ConnectionCheck):
    """The limit sequence number, as the requester keeps it.

    A capture near the responder sees an AETH before the requester does, so the
    limit here is never below the one that the requester knew; unless credits passed
    without being captured, which nothing else would show. A sender that does not
    heed its credits is found out by how often it happens.
    """

    __slots__ = ("_begun", "_breaches", "asking", "is_live", "is_off", "limit", "messages")

    def __init__(self, history: RequestHistory, messages: Messages) -> None:
        super().__init__(history)
        self.messages = messages
        self.limit: int | None = None
        self.is_live = False
        """The responder has given credits at least once."""
        self.is_off = False
        self.asking: TransportPacket | None = None
        """FIRST of the message beyond the limit, until a response comes."""
        self._begun = 0
        """Messages that were checked."""
        self._breaches = dict.fromkeys((LIMIT.id, ASK.id, FIRST_ALONE.id), 0)

    def request(self, packet: TransportPacket, status: PacketStatus) -> Iterable[Violation]:
        """Whether a message may be begun."""
        if status is AFTER_GAP:
            self.limit = self.asking = None
        if self.is_off or status not in FRESH:
            return ()
        if packet.opcode in STARTS:
            return self._begin(packet)
        if self.asking is not None:
            self.asking = None
            if self._is_usual(FIRST_ALONE):
                found = f"{name_of(packet.opcode)} of PSN {packet.psn}"
                words = f"{found} without waiting for the response to FIRST"
                return [(FIRST_ALONE, words, packet)]
        return ()

    def _begin(self, packet: TransportPacket) -> Iterable[Violation]:
        before = self.messages.before
        if before is None or self.limit is None:
            return
        if packet.opcode not in _CREDITED:
            self.limit = (self.limit + 1) & MASK
            return
        if not self.is_live:
            return
        # `messages` has counted this packet already if the message ends with it.
        number = (before + self.messages.sent + (packet.opcode not in ENDS)) & MASK
        beyond = distance(self.limit, number)
        self._begun += 1
        if beyond > 1:
            if self._is_usual(LIMIT):
                found = f"message {number} begun"
                yield LIMIT, f"{found}, expected at most {(self.limit + 1) & MASK}", packet
        elif beyond == 1:
            if not packet.ack_req and self._is_usual(ASK):
                found = f"{name_of(packet.opcode)} of message {number} has AckReq 0"
                yield ASK, f"{found}, expected 1", packet
            if packet.opcode not in ENDS:
                self.asking = packet

    def _is_usual(self, rule: Rule) -> bool:
        """Whether a rule is broken so often that no lack of captured credits explains it."""
        self._breaches[rule.id] += 1
        count = self._breaches[rule.id]
        return count >= NO_ACCIDENT and 4 * count > self._begun

    def response(self, packet: TransportPacket, status: PacketStatus) -> Iterable[Violation]:
        """Take the credits."""
        self.asking = None
        if packet.syndrome < 0 or packet.syndrome & KIND_BITS != 0:
            return ()
        given = credits(packet.syndrome)
        if given is None:
            self.is_off = self.is_off or code(packet.syndrome) == INVALID_CREDITS
            return ()
        self.is_live = self.is_live or given > 0
        new = (packet.msn + given) & MASK
        before = self.messages.before
        if self.limit is not None:
            self.limit = new if distance(self.limit, new) > 0 else self.limit
        elif before is not None:
            # Messages under way may be such as need no credit.
            under_way = distance(packet.msn, (before + self.messages.sent) & MASK)
            self.limit = (new + max(0, under_way)) & MASK
        return ()

    @classmethod
    def mark_alone(cls, checks: Sequence[Self], run: Regular) -> None:
        """Messages beyond the limit."""
        run.mark_all(each.asking is not None for each in checks)
        found = cls._limits(checks, run)
        beyond = np.zeros(len(run.requests), np.bool_)
        beyond[found.credited] = found.is_live & (found.number > found.limit)
        run.mark_requests(beyond)

    @classmethod
    def run(cls, checks: Sequence[Self], run: Regular) -> None:
        """Take the credits."""
        found = cls._limits(checks, run)
        gives = np.zeros(run.count, np.bool_)
        gives[run.answer_key[(run.syndrome > 0) & (run.syndrome < INVALID_CREDITS)]] = True
        begun = np.bincount(run.key[found.credited[found.is_live]], minlength=run.count)
        for check, limit, count, is_live, is_off in zip(
            checks, found.last, begun.tolist(), gives.tolist(), found.is_off, strict=True
        ):
            check.limit = limit
            check._begun += count
            check.is_live = check.is_live or is_live
            check.is_off = is_off

    @classmethod
    def _limits(cls, checks: Sequence[Self], run: Regular) -> _Limits:
        """The limit at each message that needs a credit."""
        memo: _Limits | None = run.memo.get(Credits)
        if memo is None:
            memo = run.memo[Credits] = cls._find_limits(checks, run)
        return memo

    @classmethod
    def _find_limits(cls, checks: Sequence[Self], run: Regular) -> _Limits:
        messages = [each.messages for each in checks]
        fit = Messages.fit(messages, run)
        certain, before = Messages.certain(messages, run)
        which = np.flatnonzero((run.syndrome >= 0) & (run.syndrome != INVALID_CREDITS))
        key, given = run.answer_key[which], _CREDITS[run.syndrome[which]]
        new = run.msn[which] + given
        # A limit that is not known yet begins with the first credits once the MSN is certain.
        limit = np.array([-1 if each.limit is None else each.limit for each in checks], np.int64)
        is_known = limit >= 0
        begins = np.flatnonzero((which >= certain[key]) & ~is_known[key])
        begins = begins[first_of(key[begins])]
        owner = key[begins]
        there = fit.there[np.searchsorted(fit.which, which[begins])]
        under_way = distances(run.msn[which[begins]], (before[owner] + there) & MASK)
        limit[owner] = new[begins] + np.maximum(under_way, 0)
        counts_from = np.where(is_known, certain, len(run.responses))
        counts_from[owner] = which[begins]
        is_counted, is_off = cls._are_counted(checks, run, counts_from)
        # What changes a limit: messages that need no credit, and then the newest credits.
        is_start = IS_START[run.opcode] & is_counted
        free = np.cumsum(np.concatenate([[0], is_start & ~_IS_CREDITED[run.opcode]]))
        raised = distances(limit[key] & MASK, new & MASK)
        raised -= free[run.before[which]] - free[run.starts[key]]
        is_later = is_known[key] | (which > counts_from[key])
        raised = highest_yet(np.maximum(np.where(is_later, raised, 0), 0), key)
        live = np.array([each.is_live for each in checks], np.int64)
        lives = highest_yet(np.maximum(given > 0, live[key]), key)
        credited = np.flatnonzero(is_start & _IS_CREDITED[run.opcode])
        owner = run.key[credited]
        at = np.searchsorted(which, run.answers_before[credited])
        has_answer = at > np.searchsorted(which, run.answer_starts[owner])
        newest = np.concatenate([[0], raised])[at] * has_answer
        is_live = np.where(has_answer, np.concatenate([[0], lives])[at], live[owner]) > 0
        highest = limit[owner] + newest + free[credited] - free[run.starts[owner]]
        number = before[owner] + fit.sent[credited] + 1
        number = highest + distances(highest & MASK, number & MASK)
        last = limit + free[run.starts[1:]] - free[run.starts[:-1]]
        final = np.flatnonzero(first_of(key[::-1])[::-1])
        last[key[final]] += raised[final]
        return _Limits(
            is_off.tolist(),
            credited,
            is_live,
            number,
            highest,
            [
                value & MASK if known >= 0 else None
                for value, known in zip(last.tolist(), limit.tolist(), strict=True)
            ],
        )

    @classmethod
    def _are_counted(
        cls, checks: Sequence[Self], run: Regular, counts_from: Index
    ) -> tuple[Mask, Mask]:
        """(requests,) behind this response, and before credits end; (exchanges,) where they end.

        counts_from: (exchanges,) -1 for all requests, the number of responses for none.
        """
        behind = np.append(run.before, len(run.requests))
        begin = np.where(counts_from < 0, 0, behind[counts_from])
        begin[counts_from == len(run.responses)] = len(run.requests)
        is_off = np.array([each.is_off for each in checks], np.bool_)
        end = np.where(is_off, 0, len(run.requests))
        ends = np.flatnonzero(run.syndrome == INVALID_CREDITS)
        ends = ends[first_of(run.answer_key[ends])]
        key = run.answer_key[ends]
        end[key] = np.minimum(end[key], run.before[ends])
        is_off[key] = True
        at = np.arange(len(run.requests))
        return (at >= begin[run.key]) & (at < end[run.key]), is_off


class _Limits(NamedTuple):
    """The messages that need a credit, all (n,)."""

    is_off: list[bool]
    """By exchange, whether the responder has ended credits."""
    credited: Index
    """Which requests begin them."""
    is_live: Mask
    """The responder has given credits before."""
    number: Index
    """Sequence number of the message."""
    limit: Index
    """The largest that has a credit."""
    last: list[int | None]
    """By exchange, the limit after these packets."""
