"""The base of rules about connections: a history of requests and responses, and its checks.

A history lasts until the queue pair of the requester is reset. A check receives every
request and every response before the history records it, so that it compares a packet
with the packets before.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from ibwire.connections.connection import MTUS
from ibwire.connections.newest import NewestPackets
from ibwire.connections.packets import TransportPacket
from ibwire.connections.states import PacketStatus
from ibwire.connections.steps import steps
from ibwire.connections.tracker import RequestTracker
from ibwire.rules.findings import Rule
from ibwire.rules.regular import Regular, opcode_table
from ibwire_layers.opcodes import INFO, Operation, Position
from ibwire_layers.psn import HALF, MASK, MODULUS, distance

KEEP = 256
"""Requests that are remembered, to compare retransmitted ones."""
KEEP_READS = 16
"""READs that are remembered after they have been answered."""
LARGE_SPAN = 1 << 16
"""A READ that reserves more PSNs makes those of remembered requests ambiguous."""

MOST_STEPS = 1024
"""A sender whose IP identification makes a larger step does not increment it per packet."""

READ_REQUESTS = frozenset(c for c, info in INFO.items() if info.operation is Operation.READ)
FULL = frozenset(c for c, i in INFO.items() if i.position in (Position.FIRST, Position.MIDDLE))
STARTS = frozenset(c for c, i in INFO.items() if i.position in (Position.FIRST, Position.ONLY))
ENDS = frozenset(c for c, i in INFO.items() if i.position in (Position.LAST, Position.ONLY))

IS_READ, IS_FULL = opcode_table(READ_REQUESTS), opcode_table(FULL)
IS_START, IS_END = opcode_table(STARTS), opcode_table(ENDS)

FRESH = (PacketStatus.NEW, PacketStatus.AFTER_GAP)

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

    def add(self, numbers: npt.NDArray[np.int64], values: npt.NDArray[np.uint64]) -> None:
        """Keep operands (n, 2) of packets that come after all before."""
        self._numbers.append(numbers)
        self._values.append(values)
        self._count += len(numbers)
        while self._count - len(self._numbers[0]) >= self._most:
            self._count -= len(self._numbers.pop(0))
            del self._values[0]

    def get(self, number: int) -> Operands | None:
        """Swap and compare data of a request, or the original value in a response and 0."""
        at = bisect_right(self._numbers, number, key=_first_number) - 1
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
        """The operands (n, 2) of some packets, ascending, and which of them are kept."""
        values = np.zeros((len(numbers), 2), np.uint64)
        known = np.zeros(len(numbers), np.bool_)
        at = max(bisect_right(self._numbers, int(numbers[0]), key=_first_number) - 1, 0)
        for there, operands in zip(self._numbers[at:], self._values[at:], strict=True):
            if there[0] > numbers[-1]:
                break
            row = np.minimum(np.searchsorted(there, numbers), len(there) - 1)
            found = there[row] == numbers
            known |= found
            values[found] = operands[row[found]]
        return values, known


def _first_number(numbers: npt.NDArray[np.int64]) -> int:
    return int(numbers[0])


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

    def note_many(self, ip_id: npt.NDArray[np.int32]) -> None:
        """Take the next packets of the sender, by their identifications."""
        ip_id = ip_id[ip_id >= 0]
        if not len(ip_id):
            return
        self._note(int(ip_id[0]))
        step = steps(ip_id, self._high) & 0xFFFF
        if (step > 0x10000 - MOST_STEPS).any():
            for each in ip_id[1:].tolist():
                self._note(each)
            return
        moved = step[step > 0]
        if len(moved):
            self._high, self.counts = int(ip_id[-1]), bool(moved[-1] < MOST_STEPS)

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
        "answer_ids",
        "front",
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
        self.request_ids = Identifications()
        self.answer_ids = Identifications()

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
        found = []
        mtu = self.mtu
        for read in reversed(self.reads):
            count = 1  # as `span` has it
            if read.dma_len > MTUS[0]:
                if not mtu:
                    return None
                count = -(-read.dma_len // mtu)
            if (psn - read.psn) & MASK < count:
                found.append(read)
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
        if status is PacketStatus.DUPLICATE:
            return
        if packet.opcode in READ_REQUESTS:
            self._note_read(packet)
            if status is not PacketStatus.NEW or self.newest is None:
                self.unsure.add(packet.number)
        if status in FRESH:
            self.newest = packet
            self.requests.put(packet.psn, packet)
        else:
            self.requests.put_first(packet.psn, packet)

    def _note_read(self, packet: TransportPacket) -> None:
        reads = self.reads
        if len(reads) >= 2 * KEEP_READS and self.front is not None:
            done = self.front.psn
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

    def takes(self, run: Regular) -> int:
        """Position of the first packet that has to be taken alone."""
        requests, responses = run.requests, run.responses
        front, newest = self.front, self.newest
        end = run.end
        if len(requests) and newest is None:
            end = min(end, int(requests[0]))
        if front is not None and len(responses):
            is_older = distance(front.psn, int(run.answers[0]) & MASK) < 0
            end = min(end, int(responses[0])) if is_older else end
        return min(end, self._takes_sizes(run), self._takes_reads(run))

    def _takes_sizes(self, run: Regular) -> int:
        """The same as far as the path MTU is concerned."""
        dma_len = run.rows.dma_len[run.requests]
        reads = IS_READ[run.opcode]
        full, answered_full = IS_FULL[run.opcode], IS_FULL[run.answer_opcode]
        if self.mtu is None:
            end = run.first_request(full | (reads & (dma_len > MTUS[0])))
            return min(end, run.first_response(answered_full))
        if self.mtu != run.connection.mtu:
            end = run.first_request(full | reads)
            return min(end, run.first_response(answered_full))
        return run.first_request(reads & (run.span >= LARGE_SPAN))

    def _takes_reads(self, run: Regular) -> int:
        """The same as far as a remembered READ may have the PSNs of these requests."""
        if not len(run.requests):
            return run.end
        base = int(run.psn[0])
        count = int(run.psn[-1] + run.span[-1]) - base
        for read in self.reads:
            ahead = (read.psn - base) & MASK
            if ahead < count or ahead + (self.span(read) or LARGE_SPAN) > MODULUS:
                return int(run.requests[0])
        return run.end

    def run(self, run: Regular) -> None:
        """Remember regular packets."""
        if len(run.requests):
            self.request_ids.note_many(run.rows.ip_id[run.requests])
            self._run_reads(run)
            self.requests.put_many(run.psn & MASK, run.rows, run.requests)
            self.newest = run.last_request
        if len(run.responses):
            self.answer_ids.note_many(run.rows.ip_id[run.responses])
            if self.front is None or distance(self.front.psn, run.last_response.psn) > 0:
                self.front = run.last_response

    def _run_reads(self, run: Regular) -> None:
        """Remember the READs among regular requests, as `_note_read` does one by one."""
        at = np.flatnonzero(IS_READ[run.opcode])
        if not len(at):
            return
        positions = run.requests[at]
        follow = (run.rows.psn[positions].astype(np.int64) + run.span[at]).tolist()
        answered = np.searchsorted(run.responses, positions).tolist()
        kept: list[tuple[int, TransportPacket | int]] = [
            (read.psn + (self.span(read) or 1), read) for read in self.reads
        ]
        is_pruned = False
        done = 0
        while done < len(at):
            room = 2 * KEEP_READS - len(kept)
            if room <= 0:
                front = self.front.psn if self.front is not None else None
                if answered[done]:
                    front = int(run.answers[answered[done] - 1]) & MASK
                if front is not None:
                    old = [each for each in kept[:-KEEP_READS] if distance(front, each[0]) > 0]
                    kept[:-KEEP_READS] = old[-KEEP:]
                    is_pruned = True
                room = max(1, 2 * KEEP_READS - len(kept))
            following = min(done + room, len(at))
            kept += zip(follow[done:following], range(done, following), strict=True)
            done = following
        new = [each for _, each in kept if isinstance(each, int)]
        packets = iter(run.packets(positions[new]))
        self.reads = [next(packets) if isinstance(each, int) else each for _, each in kept]
        if is_pruned:
            self.unsure.intersection_update(read.number for read in self.reads)


class ConnectionCheck:
    """Checks some rules over one history: it receives packets and yields violations."""

    __slots__ = ("history",)

    def __init__(self, history: RequestHistory) -> None:
        self.history = history

    def request(self, packet: TransportPacket, status: PacketStatus) -> Iterable[Violation]:
        """A request; also duplicates."""
        return ()

    def response(self, packet: TransportPacket, status: PacketStatus) -> Iterable[Violation]:
        """A response."""
        return ()

    def takes(self, run: Regular) -> int:
        """Position of the first regular packet that it has to receive alone: all, by default.

        Before that it finds nothing, and `run` leaves it as if it had received each packet.
        """
        return 0

    def run(self, run: Regular) -> None:
        """Regular packets, in which it finds nothing."""
