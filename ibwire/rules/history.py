"""The base of rules about connections: a history of requests and responses, and its checks.

A history lasts until the queue pair of the requester is reset. A check receives every
request and every response before the history records it, so that it compares a packet
with the packets before.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ibwire.connections.connection import MTUS
from ibwire.connections.packets import TransportPacket
from ibwire.connections.states import PacketStatus
from ibwire.connections.tracker import RequestTracker
from ibwire.rules.findings import Rule
from ibwire_layers.opcodes import INFO, Operation, Position
from ibwire_layers.psn import MASK, distance

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

FRESH = (PacketStatus.NEW, PacketStatus.AFTER_GAP)

Violation = tuple[Rule, str, TransportPacket]
"""A rule, found and expected values, and the packet that breaks it; not always the newest."""

Operands = tuple[int, ...]
"""Swap and compare data of an atomic request, or the original value in its response."""


class Identifications:
    """Whether a sender counts up the identification of IPv4: then it shows what it sent when."""

    __slots__ = ("_high", "counts")

    def __init__(self) -> None:
        self._high = -1
        self.counts = False

    def note(self, packet: TransportPacket) -> None:
        """Take the next packet of the sender."""
        if packet.ip_id < 0:
            return
        step = (packet.ip_id - self._high) & 0xFFFF
        if self._high < 0 or MOST_STEPS <= step <= 0x10000 - MOST_STEPS:
            self._high, self.counts = packet.ip_id, False
        elif 0 < step < MOST_STEPS:
            self._high, self.counts = packet.ip_id, True

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

    def __init__(self, tracker: RequestTracker, operands: Mapping[int, Operands]) -> None:
        self.tracker = tracker
        self.operands = operands
        """By packet number, of the atomics that are not checked yet."""
        self.mtu: int | None = None
        """The path MTU: size of the first packet that has to fill it."""
        self.requests: dict[int, TransportPacket] = {}
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
        return None if following is None else following + distance(following & MASK, psn)

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
        for read in reversed(self.reads):
            count = self.span(read)
            if count is None:
                return None
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
            self.requests.pop(packet.psn, None)
        if packet.psn not in self.requests:
            self.requests[packet.psn] = packet
            if len(self.requests) > KEEP:
                del self.requests[next(iter(self.requests))]

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
