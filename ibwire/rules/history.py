"""The base of rules about connections: a history of requests and responses, and its checks.

A history lasts until the queue pair of the requester is reset. A check receives every
request and every response before the history records it, so that it compares a packet
with the packets before.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Final, Self

import numpy as np
import numpy.typing as npt

from ibwire.connections.connection import MTUS
from ibwire.connections.newest import NewestPackets
from ibwire.connections.packets import TransportPacket
from ibwire.connections.runs import Index
from ibwire.connections.states import AFTER_GAP, DUPLICATE, NEW, PacketStatus
from ibwire.connections.steps import steps
from ibwire.connections.tracker import RequestTracker
from ibwire.rules.findings import Rule
from ibwire.rules.regular import Mask, Regular, first_of, opcode_table
from ibwire_layers.opcodes import INFO, Operation, Position
from ibwire_layers.psn import HALF, MASK, MODULUS

KEEP: Final = 256
"""Requests that are remembered, to compare retransmitted ones."""
KEEP_READS: Final = 16
"""READs that are remembered after they have been answered."""
LARGE_SPAN: Final = 1 << 16
"""A READ that reserves more PSNs makes those of remembered requests ambiguous."""

MOST_STEPS: Final = 1024
"""A sender whose IP identification makes a larger step does not increment it per packet."""

READ_REQUESTS = frozenset(c for c, info in INFO.items() if info.operation is Operation.READ)
ACKNOWLEDGES = frozenset(c for c, i in INFO.items() if i.operation is Operation.ACKNOWLEDGE)
FULL = frozenset(c for c, i in INFO.items() if i.position in (Position.FIRST, Position.MIDDLE))
STARTS = frozenset(c for c, i in INFO.items() if i.position in (Position.FIRST, Position.ONLY))
ENDS = frozenset(c for c, i in INFO.items() if i.position in (Position.LAST, Position.ONLY))

IS_READ, IS_FULL = opcode_table(READ_REQUESTS), opcode_table(FULL)
IS_START, IS_END = opcode_table(STARTS), opcode_table(ENDS)

FRESH = (NEW, AFTER_GAP)

Violation = tuple[Rule, str, TransportPacket]
"""A rule, found and expected values, and the packet that breaks it; not always the newest."""

Operands = tuple[int, ...]
"""Swap and compare data of an atomic request, or the original value in its response."""


class KeptOperands:
    """The operands of the newest atomics of a capture, by packet number."""

    def __init__(self, most: int) -> None:
        """most: how many are kept, about."""
        self._most = most
        self._count = 0
        self._numbers: list[npt.NDArray[np.int64]] = []
        self._values: list[npt.NDArray[np.uint64]] = []
        """(n, 2) of each: swap and compare data, or the original value and nothing."""
        self._firsts: list[int] = []
        """The first number of each part."""
        self._joined: tuple[npt.NDArray[np.int64], npt.NDArray[np.uint64]] | None = None
        """All numbers and values, once many have been looked for."""

    def add(self, numbers: npt.NDArray[np.int64], values: npt.NDArray[np.uint64]) -> None:
        """Keep operands (n, 2) of packets that come after all before."""
        self._numbers.append(numbers)
        self._values.append(values)
        self._firsts.append(int(numbers[0]))
        self._joined = None
        self._count += len(numbers)
        while self._count - len(self._numbers[0]) >= self._most:
            self._count -= len(self._numbers.pop(0))
            del self._values[0], self._firsts[0]

    def get(self, number: int) -> Operands | None:
        """Swap and compare data of a request, or the original value in a response and 0."""
        at = bisect_right(self._firsts, number) - 1
        if at < 0:
            return None
        numbers = self._numbers[at]
        row = int(numbers.searchsorted(number))
        if row == len(numbers) or numbers[row] != number:
            return None
        return tuple(self._values[at][row].tolist())

    def of(
        self, numbers: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.bool_]]:
        """The operands (n, 2) of some packets, and which of them are kept: others have any."""
        if not self._numbers:
            return np.zeros((len(numbers), 2), np.uint64), np.zeros(len(numbers), np.bool_)
        if self._joined is None:
            self._joined = np.concatenate(self._numbers), np.concatenate(self._values)
        there, values = self._joined
        row = np.minimum(np.searchsorted(there, numbers), len(there) - 1)
        return values[row], there[row] == numbers


class Identifications:
    """Whether a sender counts up the identification of IPv4: then it shows what it sent when."""

    __slots__ = ("_high", "counts")

    def __init__(self) -> None:
        self._high = -1
        self.counts = False

    def note(self, packet: TransportPacket) -> None:
        """Take the next packet of the sender."""
        if packet.ip_id >= 0:
            self._note(packet.ip_id)

    @classmethod
    def note_many(cls, senders: Sequence[Self], ip_id: npt.NDArray[np.int32], ends: Index) -> None:
        """Take the next packets of several senders, by their identifications (n,).

        ends: (senders + 1,) where those of each begin, and the number of all.
        """
        have = np.flatnonzero(np.diff(ends))
        if not len(have):
            return
        starts = ends[have]
        high = np.array([each._high for each in senders], np.int64)[have]
        step = steps(ip_id, 0)
        step[starts] = ip_id[starts] - high
        step &= 0xFFFF
        is_odd = (step >= MOST_STEPS) | (ip_id < 0)
        is_odd[starts] |= high < 0
        odd = np.logical_or.reduceat(is_odd, starts).tolist()
        moved = np.maximum.reduceat(step, starts).tolist()
        last = ip_id[ends[have + 1] - 1].tolist()
        for at, place in enumerate(have.tolist()):
            sender = senders[place]
            if odd[at]:
                for each in ip_id[int(ends[place]) : int(ends[place + 1])].tolist():
                    if each >= 0:
                        sender._note(each)
            elif moved[at]:
                sender._high, sender.counts = last[at], True

    @classmethod
    def newest_gaps(
        cls,
        senders: Sequence[Self],
        before: Sequence[int],
        ip_id: npt.NDArray[np.int32],
        ends: Index,
    ) -> Index:
        """(senders,) the newest packet of each before which it may have sent another one.

        It is a place in `ip_id`, -1 where it sent nothing else for certain. The packets are those
        of `note_many`, to be called after this; `before` has the identification of the packet
        before them, -1 where there is none.
        """
        gaps = np.full(len(senders), -1, np.int64)
        have = np.flatnonzero(np.diff(ends))
        if not len(have):
            return gaps
        starts, last = ends[have], ends[have + 1] - 1
        older = np.array(before, np.int64)[have]
        step = steps(ip_id.astype(np.int64), 0)
        step[starts] = ip_id[starts] - older
        step &= 0xFFFF
        is_next = step == 1
        is_next[starts] &= older >= 0
        newest = np.maximum.reduceat(np.where(is_next, -1, np.arange(len(ip_id))), starts)
        jumps = np.maximum.reduceat(step, starts) >= MOST_STEPS
        for at in np.flatnonzero(newest != last).tolist():
            sender = senders[have[at]]
            if jumps[at] or not sender.counts:
                newest[at] = sender._newest_gap(is_next, ip_id, range(starts[at], last[at] + 1))
        gaps[have] = newest
        return gaps

    def _newest_gap(
        self, is_next: npt.NDArray[np.bool_], ip_id: npt.NDArray[np.int32], places: range
    ) -> int:
        """The newest place before which it may have sent another packet, -1 for none."""
        noted = Identifications()
        noted._high, noted.counts = self._high, self.counts
        gap = -1
        for place in places:
            if not (noted.counts and is_next[place]):
                gap = place
            if ip_id[place] >= 0:
                noted._note(int(ip_id[place]))
        return gap

    def _note(self, ip_id: int) -> None:
        step = (ip_id - self._high) & 0xFFFF
        if self._high < 0 or MOST_STEPS <= step <= 0x10000 - MOST_STEPS:
            self._high, self.counts = ip_id, False
        elif 0 < step < MOST_STEPS:
            self._high, self.counts = ip_id, True

    def is_next(self, before: TransportPacket, packet: TransportPacket) -> bool:
        """Whether it is certain that the sender sent nothing between two packets."""
        return self.counts and (packet.ip_id - before.ip_id) & 0xFFFF == 1

    def left_later(
        self, before: TransportPacket, packet: TransportPacket, *, otherwise: bool
    ) -> bool:
        """Whether a packet left after another one; `otherwise` if nothing shows it."""
        step = (packet.ip_id - before.ip_id) & 0xFFFF
        return step < 0x8000 if self.counts and step else otherwise


class RequestHistory:
    """The requests of one end and the responses to them, as far as the checks need them."""

    __slots__ = (
        "_covered",
        "_covered_count",
        "_covered_psn",
        "answer_ids",
        "front",
        "is_disordered",
        "mtu",
        "newest",
        "operands",
        "reads",
        "request_ids",
        "requests",
        "tracker",
        "unsure",
    )

    def __init__(self, tracker: RequestTracker, operands: KeptOperands) -> None:
        self.tracker = tracker
        self.operands = operands
        self.mtu: int | None = None
        """The path MTU: size of the first packet that has to fill it."""
        self.requests = NewestPackets(KEEP)
        """By PSN, the first transmission of each."""
        self.reads: list[TransportPacket] = []
        """READ requests in the order in which they were sent, also retries of a part."""
        self.unsure: set[int] = set()
        """Packet numbers of READs that may retry a part of one that was not seen."""
        self.newest: TransportPacket | None = None
        """The request with the highest PSN."""
        self.front: TransportPacket | None = None
        """The positive response with the highest PSN."""
        self.is_disordered = False
        """A response was recorded before a request with its PSN: the capture may lack requests, or
        have them later than they passed."""
        self.request_ids = Identifications()
        self.answer_ids = Identifications()
        self._covered_psn = 0
        """For which `covering` was asked last."""
        self._covered_count = 0
        """From there on so many PSNs have the same answer; 0: it has to be found anew."""
        self._covered: list[TransportPacket] = []

    def unwrapped(self, psn: int) -> int | None:
        """A PSN, unwrapped as in `RequestTracker`; `None` before the first request."""
        following = self.tracker.next
        return None if following is None else following + (psn - following + HALF & MASK) - HALF

    def span(self, request: TransportPacket) -> int | None:
        """PSNs that a request takes; `None` for a READ while the path MTU is not known."""
        if request.opcode not in READ_REQUESTS or request.dma_len <= MTUS[0]:
            return 1
        return -(-request.dma_len // self.mtu) if self.mtu else None

    def is_beyond(self, packet: TransportPacket) -> bool:
        """Whether a request has a higher PSN than all before, for certain."""
        if self.newest is None:
            return False
        count = self.span(self.newest)
        return count is not None and distance(self.newest.psn, packet.psn) >= count

    def covering(self, psn: int) -> list[TransportPacket] | None:
        """READ requests, newest first, that one of these PSNs answers; `None`: not known."""
        if (psn - self._covered_psn) & MASK < self._covered_count:
            return self._covered
        found = []
        mtu, same = self.mtu, MODULUS
        for read in reversed(self.reads):
            count = 1  # as `span` has it
            if read.dma_len > MTUS[0]:
                if not mtu:
                    return None
                count = -(-read.dma_len // mtu)
            place = (psn - read.psn) & MASK
            if place < count:
                found.append(read)
                same = min(same, count - place)
            else:
                same = min(same, MODULUS - place)
        self._covered_psn, self._covered_count, self._covered = psn, same, found
        return found

    @property
    def acked(self) -> int | None:
        """The highest PSN, unwrapped, that a response seen here acknowledges."""
        return None if self.front is None else self.unwrapped(self.front.psn)

    def was_answered_later(
        self, before: TransportPacket, packet: TransportPacket, *, least: int
    ) -> bool:
        """Whether a response left after another one, as far as IP identification or MSN show.

        least: number of messages that the MSN has to be ahead, where identifications do not count.
        """
        in_order = before.syndrome >= 0 and distance(before.msn, packet.msn) >= least
        return self.answer_ids.left_later(before, packet, otherwise=in_order)

    def learn(self, packet: TransportPacket) -> None:
        """Take the path MTU from a packet that has to fill it."""
        if self.mtu is None and packet.opcode in FULL and packet.size in MTUS:
            self.mtu = packet.size

    def note_request(self, packet: TransportPacket, status: PacketStatus) -> None:
        """Remember a request."""
        self.request_ids.note(packet)
        if status is DUPLICATE:
            return
        if packet.opcode in READ_REQUESTS:
            self.keep_read(packet, -1 if self.front is None else self.front.psn)
            if status is not NEW or self.newest is None:
                self.unsure.add(packet.number)
        if status in FRESH:
            self.newest = packet
            self.requests.put(packet.psn, packet)
        else:
            self.requests.put_first(packet.psn, packet)

    def keep_read(self, packet: TransportPacket, done: int) -> None:
        """Remember a READ, and of the others those that are not answered up to PSN `done`.

        done: -1 where nothing was answered.
        """
        reads, self._covered_count = self.reads, 0
        if len(reads) >= 2 * KEEP_READS and done >= 0:
            old = reads[:-KEEP_READS]
            under_way = [r for r in old if distance(done, r.psn + (self.span(r) or 1)) > 0]
            reads[:-KEEP_READS] = under_way[-KEEP:]
            self.unsure.intersection_update(read.number for read in reads)
        reads.append(packet)
        if (self.span(packet) or LARGE_SPAN) >= LARGE_SPAN:
            self.requests.clear()

    def note_response(self, packet: TransportPacket) -> None:
        """Remember a response, if it is positive and newer than all before."""
        self.answer_ids.note(packet)
        following = self.tracker.next
        if packet.syndrome > 0x1F or following is None:
            return
        if distance(following & MASK, packet.psn) >= 0:
            return
        if self.front is None or distance(self.front.psn, packet.psn) > 0:
            self.front = packet

    # Regular packets, many at once.

    @classmethod
    def mark_alone(cls, histories: Sequence[RequestHistory], run: Regular) -> None:
        """Mark the packets that have to be received alone."""
        is_read = IS_READ[run.opcode]
        cls._mark_sizes(histories, run, is_read)
        requests, ends, responses = _firsts(run)
        older = np.zeros(run.count, np.bool_)
        used = np.zeros(run.count, np.bool_)
        for place, history in enumerate(histories):
            front, first = history.front, responses[place]
            if front is not None and first >= 0:
                older[place] = distance(front.psn, first & MASK) < 0
            if history.reads and requests[place] >= 0:
                used[place] = history.has_reads_in(requests[place], ends[place])
        run.mark_first_responses(older)
        run.mark_first_requests(used)

    @staticmethod
    def _mark_sizes(histories: Sequence[RequestHistory], run: Regular, is_read: Mask) -> None:
        """The same as far as the path MTU is concerned."""
        mtu = known_mtu(histories, run)
        knows = knows_mtu(histories, run)
        is_other = (mtu > 0) & (mtu != run.mtu)
        alone = is_other[run.key] & (IS_FULL[run.opcode] | is_read)
        alone |= is_read & ~knows & (run.dma_len > MTUS[0])
        alone |= is_read & knows & (run.span >= LARGE_SPAN)
        run.mark_requests(alone)
        has_other = is_other | (mtu == 0)
        run.mark_responses(has_other[run.answer_key] & IS_FULL[run.answer_opcode])

    def has_reads_in(self, first: int, end: int) -> bool:
        """Whether a remembered READ has one of the PSNs from `first` to `end`, unwrapped."""
        mtu, count = self.mtu, end - first
        for read in self.reads:
            ahead = (read.psn - first) & MASK
            span = 1
            if read.dma_len > MTUS[0]:
                span = -(-read.dma_len // mtu) if mtu else LARGE_SPAN
            if ahead < count or ahead + span > MODULUS:
                return True
        return False

    @classmethod
    def run(cls, histories: Sequence[RequestHistory], run: Regular) -> None:
        """Remember regular packets."""
        asked, answered = run.rows.ip_id[run.requests], run.rows.ip_id[run.responses]
        psn, rows = run.psn & MASK, run.rows
        shows = run.last_marked(IS_FULL[run.opcode])
        cls._run_reads(histories, run)
        starts = run.starts.tolist()
        Identifications.note_many([each.request_ids for each in histories], asked, run.starts)
        Identifications.note_many(
            [each.answer_ids for each in histories], answered, run.answer_starts
        )
        for place, history in enumerate(histories):
            requests = slice(starts[place], starts[place + 1])
            request, response = run.last_requests[place], run.last_responses[place]
            if request is not None:
                if history.mtu is None and shows[place] >= 0:
                    history.mtu = int(run.mtu[place])
                history.requests.put_many(psn[requests], rows, run.requests[requests])
                history.newest = request
            front = history.front
            if response is not None and (front is None or distance(front.psn, response.psn) > 0):
                history.front = response

    @staticmethod
    def _run_reads(histories: Sequence[RequestHistory], run: Regular) -> None:
        """Remember the READs among regular requests."""
        at = np.flatnonzero(IS_READ[run.opcode])
        if not len(at):
            return
        keys, answered = run.key[at], run.answers_before[at]
        psn = np.concatenate([[0], run.answers])[answered] & MASK
        front = np.where(answered > run.answer_starts[keys], psn, -1)
        reads = run.packets(run.requests[at])
        is_first = first_of(run.key)[at]
        for key, read, answer, begins in zip(
            keys.tolist(), reads, front.tolist(), is_first.tolist(), strict=True
        ):
            history = histories[key]
            if begins and history.newest is None:
                history.unsure.add(read.number)
            if answer < 0 and history.front is not None:
                answer = history.front.psn
            history.keep_read(read, answer)


def distance(start: int, end: int) -> int:
    """Steps from one PSN or MSN to another, as in `ibwire_layers.psn`, which is not compiled: each
    packet is compared with several."""
    return (end - start + HALF & MASK) - HALF


def known_mtu(histories: Sequence[RequestHistory], run: Regular) -> Index:
    """(exchanges,) path MTU that is known before these packets; 0 where it is not.

    Of whole connections the one that their packets show counts as known from the start: that only
    adds findings, and no later packet depends on when it became known.
    """
    if run.is_whole:
        return run.mtu
    return np.array([each.mtu or 0 for each in histories], np.int64)


def knows_mtu(histories: Sequence[RequestHistory], run: Regular) -> Mask:
    """(requests,) whether a packet that has to fill the path MTU came before in the exchange."""
    known = known_mtu(histories, run) > 0
    shown = np.cumsum(IS_FULL[run.opcode])
    before = np.concatenate([[0], shown])
    mask: Mask = known[run.key] | (before[:-1] > before[run.starts[run.key]])
    return mask


def _firsts(run: Regular) -> tuple[list[int], list[int], list[int]]:
    """By exchange, PSNs of the first request, behind the last, and of the first response; -1."""
    found = []
    for values, starts, last in (
        (run.psn, run.starts, 0),
        (run.psn + run.span, run.starts, 1),
        (run.answers, run.answer_starts, 0),
    ):
        psn = np.full(run.count, -1, np.int64)
        have = np.flatnonzero(np.diff(starts))
        psn[have] = values[starts[have + last] - last]
        found.append(psn.tolist())
    return found[0], found[1], found[2]


class ConnectionCheck:
    """Checks some rules over one history: it receives packets and returns violations."""

    __slots__ = ("history",)

    def __init__(self, history: RequestHistory) -> None:
        self.history = history

    def request(self, packet: TransportPacket, status: PacketStatus) -> Iterable[Violation]:
        """A request; also duplicates."""
        return ()

    def response(self, packet: TransportPacket, status: PacketStatus) -> Iterable[Violation]:
        """A response."""
        return ()

    @classmethod
    def mark_alone(cls, checks: Sequence[Self], run: Regular) -> None:
        """Mark the regular packets that a check has to receive alone: all, by default.

        checks: by exchange. In the packets before those they find nothing, and `run` leaves them
        as if they had received each packet.
        """
        run.mark_all([True] * run.count)

    @classmethod
    def run(cls, checks: Sequence[Self], run: Regular) -> None:
        """Take regular packets, in which the checks find nothing."""
