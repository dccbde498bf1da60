"""What is counted of each direction of a connection."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from ibwire.base.histogram import Histogram
from ibwire.connections.congestion import Congestion


class Figures(NamedTuple):
    """What a table shows of every direction."""

    packets: int
    messages: dict[str, int]
    """By verb."""
    size: int
    """Bytes of completed messages, or else of all payloads."""
    goodput_bps: int | None
    median_ns: int | None
    """The latency that half of the messages do not exceed; so is the next of 99 %."""
    p99_ns: int | None


@dataclass(slots=True, init=False)
class DirectionCounts:
    """Counts of the packets that one end sends, and of the responses to its requests."""

    packets: int
    bytes: int
    """Of whole frames on the wire."""
    payload_bytes: int
    first_ns: int | None
    last_ns: int | None
    messages: dict[str, int]
    """Messages by verb whose last request was seen, each counted once."""
    message_bytes: int
    """Payload of the messages that were completed, each once."""
    completed: int
    retransmitted: int
    lost: int
    duplicates: int
    repeated: int
    """Packets that arrived again, as duplicates, late or retransmitted: nothing shows which. They
    are in no other count."""
    reordered: int
    perhaps_resent: int
    """Of the reordered packets, those that a NAK had asked for, or that were so late that an ACK
    timer may have expired: perhaps retransmitted."""
    naks: dict[str, int]
    """By kind: NAKs of this direction's requests."""
    rnr_naks: int
    timeouts: int
    unexplained: int
    """Of the timeouts, those for which nothing here shows what was lost."""
    coalesced: int
    """Messages that were answered by a response to a later one."""
    doubtful: int
    """Responses seen here for the first time after their request had been retransmitted: they
    may have been sent before."""
    unseen_ids: int
    """IP identifications that no packet had where requests were retransmitted."""
    skipped_ids: int
    """IP identifications that were passed over, and belong to no packet seen."""
    skipped_soon: int
    """Of those, the ones passed over between packets that followed each other at once."""
    implied_naks: int
    marked: int
    """With the CE mark."""
    cnps: int
    """CNPs that asked this direction's sender to slow down."""
    damaged: int
    """With a wrong ICRC."""
    restarts: int
    retransmissions: int
    """Runs of requests that were retransmitted."""
    resumed_reads: int
    """READs that were retransmitted from a later PSN on: the requester has responses before it."""
    disturbances: int
    """Times that its requests were missing, refused or retransmitted, each until a response
    answered all of them; without a timer that repeated one request and was only too early."""
    retries_exceeded: int
    """Times that its requester gave up, because no response came."""
    rnr_retries_exceeded: int
    """Times that its requester gave up, because its receiver was not ready."""
    cut_short: int
    """Restarts at which requests were in trouble."""
    acks: int
    """Responses that completed messages of this direction."""
    acked_messages: int
    max_outstanding: int
    """PSNs sent and not acknowledged."""
    latency: Histogram
    """ns from the first packet of a message to the response that completed it."""
    credit_codes: tuple[int, int] | None
    """Lowest and highest credit code that its receiver gave; `None` when it gave no credits."""
    congestion: Congestion | None
    """From the first CE mark or CNP on."""

    def __init__(self) -> None:
        # A constructor that `dataclass` makes is interpreted, also in a compiled build.
        self.packets = self.bytes = self.payload_bytes = 0
        self.message_bytes = self.completed = self.retransmitted = 0
        self.lost = self.duplicates = self.repeated = 0
        self.reordered = self.perhaps_resent = self.rnr_naks = 0
        self.timeouts = self.unexplained = self.coalesced = 0
        self.doubtful = self.unseen_ids = self.skipped_ids = 0
        self.skipped_soon = self.implied_naks = self.marked = 0
        self.cnps = self.damaged = self.restarts = 0
        self.retransmissions = self.resumed_reads = self.disturbances = 0
        self.retries_exceeded = self.rnr_retries_exceeded = self.cut_short = 0
        self.acks = self.acked_messages = self.max_outstanding = 0
        self.first_ns = self.last_ns = None
        self.messages, self.naks = {}, {}
        self.latency = Histogram()
        self.credit_codes = self.congestion = None

    @property
    def goodput_bps(self) -> int | None:
        """Bits a second of completed messages, from the first packet to the last."""
        if self.first_ns is None or self.last_ns is None or self.last_ns <= self.first_ns:
            return None
        return round(8e9 * self.message_bytes / (self.last_ns - self.first_ns))

    @property
    def figures(self) -> Figures:
        """What a table shows of it."""
        return Figures(
            self.packets,
            self.messages,
            self.message_bytes or self.payload_bytes,
            self.goodput_bps,
            self.latency.percentile(50),
            self.latency.percentile(99),
        )

    def increase(self, names: Iterable[str], by: int) -> None:
        """Add to some counts."""
        for name in names:
            setattr(self, name, getattr(self, name) + by)

    def count_message(self, verb: str, count: int = 1) -> None:
        """Count messages whose last requests were seen for the first time."""
        self.messages[verb] = self.messages.get(verb, 0) + count

    def note_credits(self, *, lowest: int, highest: int) -> None:
        """The receiver has given credits, by their codes."""
        known = self.credit_codes or (lowest, highest)
        self.credit_codes = min(known[0], lowest), max(known[1], highest)

    def count_nak(self, name: str) -> None:
        """A NAK, by its name."""
        self.naks[name] = self.naks.get(name, 0) + 1

    def merge(self, later: DirectionCounts) -> None:
        """Add the counts of later packets."""
        for name in _SUMS:
            setattr(self, name, getattr(self, name) + getattr(later, name))
        for mine, its in ((self.messages, later.messages), (self.naks, later.naks)):
            for key, count in its.items():
                mine[key] = mine.get(key, 0) + count
        self.latency.merge(later.latency)
        self.max_outstanding = max(self.max_outstanding, later.max_outstanding)
        if later.credit_codes is not None:
            lowest, highest = later.credit_codes
            self.note_credits(lowest=lowest, highest=highest)
        if self.congestion is None or later.congestion is None:
            self.congestion = self.congestion or later.congestion
        else:
            self.congestion.merge(later.congestion)
        if self.first_ns is None:
            self.first_ns = later.first_ns
        if later.last_ns is not None:
            self.last_ns = later.last_ns


_SUMS = (
    "packets",
    "bytes",
    "payload_bytes",
    "message_bytes",
    "completed",
    "retransmitted",
    "lost",
    "duplicates",
    "repeated",
    "reordered",
    "perhaps_resent",
    "rnr_naks",
    "timeouts",
    "unexplained",
    "coalesced",
    "doubtful",
    "unseen_ids",
    "skipped_ids",
    "skipped_soon",
    "implied_naks",
    "marked",
    "cnps",
    "damaged",
    "restarts",
    "retransmissions",
    "resumed_reads",
    "disturbances",
    "retries_exceeded",
    "rnr_retries_exceeded",
    "cut_short",
    "acks",
    "acked_messages",
)
