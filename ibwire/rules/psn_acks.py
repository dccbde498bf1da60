"""What acknowledgements say: PSNs that were sent, messages that were completed, in order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, Self

import numpy as np

from ibwire.connections.packets import TransportPacket
from ibwire.connections.states import DUPLICATE, NEW, PacketStatus
from ibwire.rules.aspects import Aspect
from ibwire.rules.findings import Rule, Severity
from ibwire.rules.history import (
    ACKNOWLEDGES,
    ConnectionCheck,
    Identifications,
    RequestHistory,
    Violation,
    distance,
)
from ibwire.rules.msn import AETH_RESPONSES, MSN
from ibwire.rules.packet import PacketRule, opcodes_where
from ibwire.rules.regular import (
    OPERATION,
    Regular,
    operation_number,
)
from ibwire_layers.opcodes import INFO, OpCode, Operation, Service, name_of
from ibwire_layers.psn import MASK
from ibwire_layers.syndrome import KIND_BITS

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

MAX_UNSEEN: Final = 1 << 16
"""A capture may lack this many packets in a row; a response further ahead has no request."""
NEARBY: Final = 1 << 12
"""PSNs around 0xFFFFFF that make an ACK of it an ordinary one."""
FAR_AHEAD: Final = 64
"""Packets beyond the newest request from which on a response is far ahead. Where the capture lacks
so many requests, the next response has a PSN beyond them as well."""
NEAR_AHEAD: Final = 2
"""So many requests after a response that is not far ahead are sent and answered, each alone, below
its PSN, before that was not sent for certain. One may be a response that the network delayed."""
MIN_PLAIN: Final = 8
"""From so many READs and atomics in a row on to which an ACK is the first response, this is not
because the capture lacks the right ones."""


_UNASKING = opcodes_where(
    lambda info: info.is_response or info.service not in (Service.RC, Service.XRC, Service.RD)
)

_MANAGEMENT_QPS: Final = 2
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
        aspect=Aspect.ACK_REQ,
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
        aspect=Aspect.ACK_REQ,
    ),
)


class _Near(NamedTuple):
    """An ACK shortly beyond the newest request, until it is clear if the capture lacks some."""

    words: str
    response: TransportPacket
    answered: int
    """Requests below its PSN that were sent and answered since, each alone."""


class Acknowledged(ConnectionCheck):
    """Which PSNs responses name."""

    __slots__ = ("_ahead_ns", "_early", "_far", "_far_words", "_near", "ahead")

    def __init__(self, history: RequestHistory) -> None:
        super().__init__(history)
        self.ahead: int | None = None
        """An unwrapped PSN that was acknowledged and has not been seen as a request."""
        self._ahead_ns = 0
        """When it was."""
        self._far: TransportPacket | None = None
        """The newest response with a PSN far beyond the newest request, until it is explained."""
        self._far_words = ""
        self._near: _Near | None = None
        self._early: Violation | None = None
        """What the request after it breaks, unless the response itself turns out to be wrong."""

    def request(self, packet: TransportPacket, status: PacketStatus) -> Iterable[Violation]:
        """Whether it had been acknowledged before it was sent."""
        if self.ahead is None and self._far is None and self._near is None:
            return ()
        return self._compare(packet, status)

    def _compare(self, packet: TransportPacket, status: PacketStatus) -> Iterable[Violation]:
        """A request after a response of a PSN that was not sent before."""
        ahead, self.ahead = self.ahead, None
        if self._far is not None and status is not NEW:
            self._far = None  # the capture lacks requests, or the requester goes back
        if status not in (NEW, DUPLICATE):
            self._near = None
        if ahead is None or status is DUPLICATE or packet.time_ns < self._ahead_ns:
            return  # also where it is older than its ACK, and only recorded behind it
        psn = self.history.unwrapped(packet.psn)
        newest = self.history.newest
        if status is not NEW or psn is None or psn > ahead or newest is None:
            return
        # Otherwise the capture may lack the first time that it was sent.
        if self.history.request_ids.is_next(newest, packet):
            violation = EARLY, f"PSN {packet.psn} is sent after it was acknowledged", packet
            self._near = None
            if self._far is None:
                yield violation
            else:
                self._early = violation

    def response(self, packet: TransportPacket, status: PacketStatus) -> Iterable[Violation]:
        """Whether its PSN was sent, and does not go back."""
        tracker = self.history.tracker
        psn = self.history.unwrapped(packet.psn)
        if psn is None or tracker.next is None:
            return ()
        is_plain = self._far is None and self._early is None and self._near is None
        if is_plain and packet.opcode not in ACKNOWLEDGES and psn < tracker.next:
            return ()
        return self._judge(packet, status, psn)

    def _judge(
        self, packet: TransportPacket, status: PacketStatus, psn: int
    ) -> Iterable[Violation]:
        """An ACK, or a response after one of a PSN that was not sent."""
        tracker = self.history.tracker
        assert tracker.next is not None
        is_ack = packet.opcode in ACKNOWLEDGES and packet.syndrome & KIND_BITS == 0
        if is_ack and packet.psn == MASK and abs(psn - tracker.next) > NEARBY:
            words = f"ACK of PSN {MASK}, but {(tracker.next - 1) & MASK} was sent last"
            return [(BEFORE_FIRST, words, packet)]
        found: list[Violation] = []
        far, self._far = self._far, None
        early, self._early = self._early, None
        front = self.history.front
        if far is not None and self._is_next_response(far, front, packet, status):
            words = f"{self._far_words}; the next response is of PSN {packet.psn}"
            found.append((SENT, words, far))
        elif early is not None:
            found.append(early)
        if self._near is not None:
            found.extend(self._compare_with(self._near, packet, psn, status))
        if psn >= tracker.next:
            found.extend(self._unsent(packet, psn))
            return found
        if not is_ack or front is None or status is DUPLICATE:
            return found
        if distance(front.psn, packet.psn) >= 0:
            return found
        counts_more = front.syndrome >= 0 and distance(front.msn, packet.msn) > 0
        if self.history.answer_ids.left_later(front, packet, otherwise=counts_more):
            words = f"ACK of PSN {packet.psn} after a response of PSN {front.psn}"
            found.append((STALE, words, packet))
        return found

    @classmethod
    def mark_alone(cls, checks: Sequence[Self], run: Regular) -> None:
        """ACKs of a PSN that stands for none."""
        run.mark_all(
            each.ahead is not None
            or each._far is not None
            or each._near is not None
            or each._early is not None
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
        is_below = status is NEW and distance(packet.psn, far.psn) > 0
        return is_below and front is not None and distance(front.psn, packet.psn) > 0

    def _compare_with(
        self, near: _Near, packet: TransportPacket, psn: int, status: PacketStatus
    ) -> Iterable[Violation]:
        """Compare a response with an ACK before it that was ahead of all requests."""
        self._near = None
        is_below = self._is_next_response(near.response, self.history.front, packet, status)
        is_alone = psn + 1 == self.history.tracker.next
        counts_less = packet.syndrome >= 0 and distance(near.response.msn, packet.msn) < 0
        if not (is_below and is_alone and counts_less):
            return
        if near.answered + 1 == NEAR_AHEAD:
            words = f"{near.words}; the next responses are below, the newest of PSN {packet.psn}"
            yield SENT, words, near.response
        else:
            self._near = near._replace(answered=near.answered + 1)

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
        is_ack = packet.syndrome & KIND_BITS == 0 and packet.opcode in AETH_RESPONSES
        if psn - tracker.next >= FAR_AHEAD and self.history.front is not None:
            self._far, self._far_words = packet, words
        elif is_ack and self.history.front is not None and not self.history.is_disordered:
            self._near = _Near(words, packet, 0)
        self.history.is_disordered = True
        if is_ack:
            self.ahead, self._ahead_ns = psn, packet.time_ns


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

_READ_RESPONSES = frozenset(
    code for code, info in INFO.items() if info.operation is Operation.READ_RESPONSE
)

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

    __slots__ = ("_before", "_plain", "_since")

    def __init__(self, history: RequestHistory) -> None:
        super().__init__(history)
        self._before: TransportPacket | None = None
        """The response before."""
        self._since: TransportPacket | None = None
        """The response after which none is missing, for certain."""
        self._plain = 0
        """READs and atomics in a row of which an ACK was the first response."""

    def response(self, packet: TransportPacket, status: PacketStatus) -> Iterable[Violation]:
        """Compare it with the request that has its PSN, if that was seen."""
        before, self._before = self._before, packet
        if before is None or not self.history.answer_ids.is_next(before, packet):
            self._since = packet
        is_read = packet.opcode in _READ_RESPONSES and not self._plain
        if is_read and self.history.covering(packet.psn) != []:
            return ()
        request = self.history.requests.get(packet.psn)
        return () if request is None else self._compare(packet, status, request)

    def _compare(
        self, packet: TransportPacket, status: PacketStatus, request: TransportPacket
    ) -> Iterable[Violation]:
        """Compare it with the request that has its PSN."""
        info = INFO[packet.opcode]
        asked = INFO[request.opcode].operation
        expected = _EXPECTED[request.opcode]
        if info.operation is Operation.ACKNOWLEDGE:
            is_new = status is NEW and packet.syndrome & KIND_BITS == 0
            if is_new and expected is not info.operation and self._is_first(request):
                return [(KIND, _other_kind(packet, request), packet)]
            return ()
        self._plain = 0
        empty = asked in (Operation.FLUSH, Operation.ATOMIC_WRITE)
        if info.operation is expected and not (empty and packet.size):
            return ()
        if self.history.covering(packet.psn) != [] and info.operation is Operation.READ_RESPONSE:
            return ()
        return [(KIND, _other_kind(packet, request), packet)]

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
        """Remember the last responses, and the last ones before which one may be missing."""
        gaps = Identifications.newest_gaps(
            [each.history.answer_ids for each in checks],
            [-1 if each._before is None else each._before.ip_id for each in checks],
            run.rows.ip_id[run.responses],
            run.answer_starts,
        )
        after = iter(run.packets(run.responses[gaps[gaps >= 0]]))
        for check, gap, response in zip(checks, gaps.tolist(), run.last_responses, strict=True):
            if gap >= 0:
                check._since = next(after)
            if response is not None:
                check._before = response

    def _is_first(self, request: TransportPacket) -> bool:
        """Whether it is the first response to its request for certain."""
        self._plain += 1
        is_whole = self._since is not None and self._since.place < request.place
        return self._plain >= MIN_PLAIN or is_whole


def _other_kind(packet: TransportPacket, request: TransportPacket) -> str:
    found = f"{name_of(packet.opcode)} of PSN {packet.psn}"
    return f"{found}, but {name_of(request.opcode)} was sent"
