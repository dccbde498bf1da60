"""End-to-end credits: no message is begun beyond the limit, except one to ask for more.

Only a responder that gives credits is checked: credit code 31 ends them
permanently, and code 0 of a peer that never gave any means nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from ibwire.connections.packets import TransportPacket
from ibwire.connections.runs import Index
from ibwire.connections.states import PacketStatus
from ibwire.rules.findings import Rule, Severity
from ibwire.rules.history import (
    ENDS,
    FRESH,
    IS_END,
    IS_START,
    STARTS,
    ConnectionCheck,
    RequestHistory,
    Violation,
)
from ibwire.rules.psn_acks import Messages
from ibwire.rules.regular import Mask, Regular, opcode_table
from ibwire_layers.headers import ImmDt
from ibwire_layers.opcodes import INFO, Operation, name_of
from ibwire_layers.psn import HALF, MASK, distance
from ibwire_layers.syndrome import CREDITS, INVALID_CREDITS, AckKind, code, credits, kind

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

NO_ACCIDENT = 3
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
        if status is PacketStatus.AFTER_GAP:
            self.limit = self.asking = None
        if self.is_off or status not in FRESH:
            return
        if packet.opcode in STARTS:
            yield from self._begin(packet)
        elif self.asking is not None:
            self.asking = None
            if self._is_usual(FIRST_ALONE):
                found = f"{name_of(packet.opcode)} of PSN {packet.psn}"
                yield FIRST_ALONE, f"{found} without waiting for the response to FIRST", packet

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
        if packet.syndrome < 0 or kind(packet.syndrome) is not AckKind.ACK:
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

    def takes(self, run: Regular) -> int:
        """Up to the first message beyond the limit, or the response that sets a limit at all."""
        if self.asking is not None:
            return 0
        if self.is_off:
            return run.end
        given = run.rows.syndrome[run.responses]
        end = run.first_response(given == INVALID_CREDITS)
        if self.messages.before is None:
            return min(end, self.messages.certain_from(run))
        if self.limit is None:
            return min(end, run.first_response(given >= 0))
        found = self._limits(run)
        beyond = np.zeros(len(run.requests), np.bool_)
        beyond[found.credited] = found.is_live & (found.number > found.limit)
        return min(end, run.first_request(beyond))

    def run(self, run: Regular) -> None:
        """Take the credits."""
        if self.is_off:
            return
        given = run.rows.syndrome[run.responses]
        if self.limit is not None:
            found = self._limits(run)
            if self.messages.before is not None:
                self._begun += int(found.is_live.sum())
            self.limit = found.last & MASK
        self.is_live = self.is_live or bool((given > 0).any())

    def _limits(self, run: Regular) -> _Limits:
        """The limit at each message that needs a credit."""
        memo: _Limits | None = run.memo.get(self)
        if memo is not None:
            return memo
        assert self.limit is not None
        before = self.messages.before
        starts = np.flatnonzero(IS_START[run.opcode])
        is_credited = _IS_CREDITED[run.opcode[starts]]
        # Where the MSN is not certain, nothing is counted.
        free = np.zeros(len(run.requests) + 1, np.int64)
        if before is not None:
            free[starts[~is_credited] + 1] = 1
        free = np.cumsum(free)  # messages without a credit that raised the limit, before each
        which = np.flatnonzero(run.rows.syndrome[run.responses] >= 0)
        at = run.responses[which]
        given = _CREDITS[run.rows.syndrome[at]]
        new = run.rows.msn[at].astype(np.int64) + given
        new = self.limit + ((new - self.limit + HALF) & MASK) - HALF - free[run.before[which]]
        highest = np.maximum.accumulate(np.concatenate([[self.limit], new]))
        live = np.maximum.accumulate(np.concatenate([[self.is_live], given > 0]))
        credited = starts[is_credited]
        answers = np.searchsorted(at, run.requests[credited])
        number = np.zeros(len(credited), np.int64)
        if before is not None:
            sent = self.messages.fit(run).sent
            number = before + sent[credited + 1] + ~IS_END[run.opcode[credited]]
        limit = highest[answers] + free[credited]
        number = limit + ((number - limit + HALF) & MASK) - HALF
        found = _Limits(credited, live[answers], number, limit, int(highest[-1] + free[-1]))
        run.memo[self] = found
        return found


class _Limits(NamedTuple):
    """The messages that need a credit, all (n,)."""

    credited: Index
    """Which requests of the run begin them."""
    is_live: Mask
    """The responder has given credits before."""
    number: Index
    """Sequence number of the message."""
    limit: Index
    """The largest that has a credit."""
    last: int
    """The limit after the run."""
