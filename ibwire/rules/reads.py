"""RDMA READ: responses in order and of the right size, retransmitted from where they stopped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, Self

import numpy as np

from ibwire.connections.packets import TransportPacket
from ibwire.connections.runs import Index
from ibwire.connections.states import DUPLICATE, NEW, RETRANSMITTED, PacketStatus
from ibwire.rules.findings import Rule, Severity
from ibwire.rules.history import FRESH, READ_REQUESTS, ConnectionCheck, RequestHistory, Violation
from ibwire.rules.regular import Mask, Regular, operation_number
from ibwire_layers.opcodes import INFO, Operation, Position, name_of
from ibwire_layers.psn import MASK

ORDER = Rule(
    "reads.order",
    "The responses of a READ are FIRST, MIDDLE ..., LAST, or ONLY, one for each PSN that it"
    " reserves.",
    Severity.ERROR,
    "IBA 9.7.2, 9.7.5.1",
    "docs/reference/transport.md#read-response-order; rxe_comp.c check_ack; qib_rc.c "
    "qib_rc_rcv_resp",
)
SIZE = Rule(
    "reads.size",
    "FIRST and MIDDLE responses of a READ carry the path MTU, LAST and ONLY the rest.",
    Severity.ERROR,
    "IBA 9.7.5.1",
    "docs/reference/transport.md#read-response-length; qib_rc.c qib_rc_rcv_resp",
)
FROM_MIDDLE = Rule(
    "reads.replay",
    "The responses to a READ that is restarted at a later PSN begin with FIRST or ONLY.",
    Severity.WARNING,
    "IBA 9.7.5.1.4",
    "docs/reference/transport.md#duplicate-read; "
    "docs/reference/habits.md#rxe-read-replay; drop-read-response.b, loss-ack-only.b",
    ("rxe",),
)
RESTART = Rule(
    "reads.restart",
    "A READ is restarted at a multiple of the path MTU: PSN, address and length change "
    "accordingly, the R_Key stays.",
    Severity.ERROR,
    "IBA 9.7.5.1.4",
    "docs/reference/transport.md#read-restart; drop-read-response.a",
)
RESERVED = Rule(
    "reads.reserved",
    "A READ reserves a PSN for each of its responses; the next request has the PSN after them.",
    Severity.ERROR,
    "IBA 9.7.2",
    "docs/reference/transport.md#psn-count; rxe_req.c update_wqe_psn; qib_rc.c qib_make_rc_req",
)
OUTSTANDING = Rule(
    "reads.outstanding",
    "No more READs and atomics are outstanding than the two ends agreed.",
    Severity.ERROR,
    "IBA 9.7.4",
    "docs/reference/transport.md#read-limit; the CM's initiator depth",
)

RULES: tuple[Rule, ...] = (ORDER, SIZE, FROM_MIDDLE, RESTART, RESERVED, OUTSTANDING)

_NO_LIMIT: Final = 1 << 32
NO_ACCIDENT: Final = 3
"""From this many on it is the responder and not the network."""

_COUNTED = frozenset(("RDMA_READ", "COMPARE_SWAP", "FETCH_ADD"))
"""Verbs that take a place of the initiator depth in every implementation."""
_IS_COUNTED = np.zeros(len(Operation), np.bool_)
for _operation in (Operation.READ, Operation.COMPARE_SWAP, Operation.FETCH_ADD):
    _IS_COUNTED[operation_number(_operation)] = True

_READ = operation_number(Operation.READ)
_PLACE = {position: number for number, position in enumerate(Position)}
_READ_RESPONSES = frozenset(
    code for code, info in INFO.items() if info.operation is Operation.READ_RESPONSE
)
_PLACE_OF = np.full(256, -1, np.int8)
for _code, _info in INFO.items():
    if _info.operation is Operation.READ_RESPONSE:
        _PLACE_OF[_code] = _PLACE[_info.position]


class Requests(ConnectionCheck):
    """READ requests, new ones and such that ask for a rest."""

    __slots__ = ()

    def request(self, packet: TransportPacket, status: PacketStatus) -> Iterable[Violation]:
        """Compare it with the READ whose PSNs it uses."""
        covering = self.history.covering(packet.psn)
        if not covering or status is DUPLICATE:
            return ()
        return self._compare(packet, status, covering[-1])

    def _compare(
        self, packet: TransportPacket, status: PacketStatus, read: TransportPacket
    ) -> Iterable[Violation]:
        """A request with a PSN that a READ reserves."""
        place = (packet.psn - read.psn) & MASK
        if packet.opcode not in READ_REQUESTS:
            if not place:
                return ()
            count = self.history.span(read)
            found = f"{name_of(packet.opcode)} of PSN {packet.psn}"
            words = f"{found}, expected {(read.psn + (count or 1)) & MASK} after a READ"
            return [(RESERVED, words, packet)]
        if status in FRESH:
            return ()
        done = place * (self.history.mtu or 0)
        found_at = packet.va, packet.dma_len, packet.rkey
        expected = (read.va + done) & 0xFFFFFFFFFFFFFFFF, read.dma_len - done, read.rkey
        if found_at != expected and (read.dma_len or packet.dma_len):
            words = "address 0x{:x}, {} bytes, R_Key 0x{:x}"
            found = f"READ of PSN {packet.psn} again with {words.format(*found_at)}"
            return [(RESTART, f"{found}, expected {words.format(*expected)}", packet)]
        return ()

    @classmethod
    def mark_alone(cls, checks: Sequence[Self], run: Regular) -> None:
        """None: the history takes no request with the PSN of a READ."""


class Responses(ConnectionCheck):
    """What comes under each PSN that a READ reserves."""

    __slots__ = ("_before", "_replays", "_starts")

    def __init__(self, history: RequestHistory) -> None:
        super().__init__(history)
        self._before: TransportPacket | None = None
        """The response before."""
        self._starts = 0
        """How often a READ seemed to be answered from the start in the middle."""
        self._replays = 0
        """How often a retransmitted READ seemed to be answered from the middle."""

    def response(self, packet: TransportPacket, status: PacketStatus) -> Iterable[Violation]:
        """Compare it with every request that it may answer."""
        found: list[Violation] = []
        if self.history.tracker.connection.max_reads[self.history.tracker.end] is not None:
            found.extend(self._too_many(packet, status))
        if packet.opcode in _READ_RESPONSES:
            covering = self.history.covering(packet.psn)
            if covering and not self._answers(packet, covering[0]):
                found.extend(self._compare(packet, status, covering))
        self._before = packet
        return found

    @classmethod
    def mark_alone(cls, checks: Sequence[Self], run: Regular) -> None:
        """Responses that are not those that their READs must have there."""
        own = np.flatnonzero(run.is_own_answer)
        if not len(own):
            return
        awaited, answered, answers = run.awaited, run.answered, run.answers[own]
        lengths, first = awaited.dma_len.copy(), awaited.first
        is_read = awaited.operation == _READ
        is_known = np.ones(len(first), np.bool_)
        for index in np.flatnonzero(is_read & (awaited.position < 0)).tolist():
            history = checks[int(awaited.key[index])].history
            covering = history.covering(int(awaited.following[index]) & MASK)
            span = history.span(covering[0]) if covering else None
            is_known[index] = (
                covering is not None
                and len(covering) == 1
                and covering[0].psn == int(first[index]) & MASK
                and span == int(awaited.span[index])
            )
            if covering and is_known[index]:
                lengths[index] = covering[0].dma_len
        known = np.array([each.history.mtu or 0 for each in checks], np.int64)
        mtu = np.where(known > 0, known, run.mtu)[run.answer_key[own]]
        count, place = awaited.span[answered], answers - first[answered]
        is_last = place == count - 1
        size = np.where(is_last, lengths[answered] - place * mtu, mtu)
        position = np.where(place == 0, _PLACE[Position.FIRST], _PLACE[Position.MIDDLE])
        position[is_last] = _PLACE[Position.LAST]
        position[count == 1] = _PLACE[Position.ONLY]
        odd = _PLACE_OF[run.answer_opcode[own]] != position
        odd |= run.answer_size[own] != size
        odd |= ~is_known[answered]
        mask = np.zeros(len(run.responses), np.bool_)
        mask[own] = (odd & is_read[answered]) | cls._are_too_many(run, own)
        run.mark_responses(mask)

    @classmethod
    def _are_too_many(cls, run: Regular, own: Index) -> Mask:
        """(own answers,) responses while too many READs and atomics are outstanding."""
        limits = [each.connection.max_reads[each.end] for each in run.trackers]
        most = np.array([_NO_LIMIT if each is None else each for each in limits], np.int64)
        if (most == _NO_LIMIT).all():
            return np.zeros(len(own), np.bool_)
        awaited, answered = run.awaited, run.answered
        is_counted = _IS_COUNTED[awaited.operation]
        begun = np.cumsum(is_counted)
        key = run.answer_key[own]
        sent = np.searchsorted(
            run.places(awaited.key, awaited.position)[is_counted],
            run.places(key, run.responses[own]),
        )
        outstanding = sent - (begun - is_counted)[answered]
        mask: Mask = is_counted[answered] & (outstanding > most[key])
        return mask

    @classmethod
    def run(cls, checks: Sequence[Self], run: Regular) -> None:
        """Remember the last responses."""
        for check, response in zip(checks, run.last_responses, strict=True):
            if response is not None:
                check._before = response

    def _answers(self, packet: TransportPacket, read: TransportPacket) -> bool:
        """Whether it answers the newest READ with its PSN, as it should."""
        mtu = self.history.mtu or 0
        place = (packet.psn - read.psn) & MASK
        count = self.history.span(read) or 1
        size = read.dma_len - place * mtu if place == count - 1 else mtu
        return packet.size == size and _POSITION_OF[packet.opcode] is _position(place, count)

    def _compare(
        self, packet: TransportPacket, status: PacketStatus, covering: list[TransportPacket]
    ) -> Iterable[Violation]:
        info = INFO[packet.opcode]
        mtu = self.history.mtu
        expected: dict[Position, int] = {}
        for read in covering:
            place, count = (packet.psn - read.psn) & MASK, self.history.span(read) or 1
            left = read.dma_len - place * (mtu or 0)
            size = left if place == count - 1 else mtu or 0
            expected.setdefault(_position(place, count), size)
        found = f"{info.opcode.name} of PSN {packet.psn}"
        if info.position in _INSIDE and self._begins_unsure(packet, covering):
            return
        if info.position not in expected and self._may_be_restarted(info.position, packet):
            return
        if info.position not in expected:
            words = " or ".join(position.name for position in expected)
            yield (
                ORDER,
                f"{found} answers the READ of PSN {covering[-1].psn}, expected {words}",
                packet,
            )
        elif packet.size != expected[info.position]:
            yield (
                SIZE,
                f"{found} with {packet.size} bytes, expected {expected[info.position]}",
                packet,
            )
        elif info.position in _INSIDE and self._is_replay(packet, status, covering):
            yield (
                FROM_MIDDLE,
                f"{found} is the first response to packet {covering[0].number}",
                packet,
            )

    def _is_replay(
        self, packet: TransportPacket, status: PacketStatus, covering: list[TransportPacket]
    ) -> bool:
        """Whether it begins the responses to a retransmitted READ.

        A delayed first response looks the same, unless the responder increments its IP
        identification.
        """
        if (
            status is not RETRANSMITTED
            or len(covering) < 2
            or covering[0].psn != packet.psn
            or self._goes_on(packet, covering[0])
        ):
            return False
        self._replays += 1
        return self.history.answer_ids.counts or self._replays >= NO_ACCIDENT

    def _goes_on(self, packet: TransportPacket, read: TransportPacket) -> bool:
        """Whether it follows another response that came after a READ request, and so may be one of
        those to the request before."""
        before = self._before
        return (
            before is not None
            and before.place > read.place
            and before.psn + 1 & MASK == packet.psn
            and INFO[before.opcode].position in (Position.FIRST, Position.MIDDLE)
        )

    def _may_be_restarted(self, position: Position, packet: TransportPacket) -> bool:
        """Whether it may answer a retransmitted READ that the capture lacks."""
        if position not in (Position.FIRST, Position.ONLY):
            return False
        if self._before is not None and self.history.answer_ids.is_next(self._before, packet):
            return False
        self._starts += 1
        return self._starts < NO_ACCIDENT

    def _begins_unsure(self, packet: TransportPacket, covering: list[TransportPacket]) -> bool:
        """Whether the READ that it answers first may ask for the rest of one not seen here."""
        same = all(read.psn == packet.psn for read in covering)
        return same and covering[-1].number in self.history.unsure

    def _too_many(self, packet: TransportPacket, status: PacketStatus) -> Iterable[Violation]:
        """When the oldest READ is answered, all newer ones were outstanding with it."""
        tracker = self.history.tracker
        most = tracker.connection.max_reads[tracker.end]
        if most is None or status is not NEW or not tracker.messages:
            return
        open_reads = [each for each in tracker.reads if each.verb in _COUNTED]
        if len(open_reads) <= most or packet.psn != open_reads[0].first & MASK:
            return
        found = f"{len(open_reads)} READs and atomics outstanding"
        yield OUTSTANDING, f"{found}, expected at most {most}", self.history.newest or packet


_POSITION_OF: Final = {code: info.position for code, info in INFO.items()}
_FIRST: Final = Position.FIRST
_MIDDLE: Final = Position.MIDDLE
_LAST: Final = Position.LAST
_ONLY: Final = Position.ONLY
"""As names of this module: each response is compared with one, and a member of an enumeration of
another package is looked up slowly, also in a compiled module."""

_INSIDE = (_MIDDLE, _LAST)


def _position(place: int, count: int) -> Position:
    """Of the response number `place` (from 0) of `count`."""
    if count == 1:
        return _ONLY
    if place == 0:
        return _FIRST
    return _LAST if place == count - 1 else _MIDDLE
