"""A port of a switch: its settings, the state of each of its priorities, and what it has counted.

What a switch knows of a priority of a port is in one object, so that a frame needs few of them: in
a large network none is in the cache of the processor.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from ibwire.base.errors import EncodeError
from ibwire.base.node import OPEN, Frame, Grant
from ibwire.base.unbuilt import UnbuiltFrame
from ibwire.base.units import S, Time
from ibwire.fabric.pause import LANES, QUANTUM_BITS
from ibwire.fabric.switch.buffer import LARGEST_ALPHA, LEAST_ALPHA, RESUME_OFFSET, Account
from ibwire.fabric.switch.marking import Ramp
from ibwire.fabric.switch.scheduling import Scheduler
from ibwire.fabric.switch.watchdog import QueueWatch, Watchdog


@dataclass(frozen=True, slots=True, kw_only=True)
class PriorityRules:
    """How a port treats the frames of one priority."""

    is_lossless: bool = False
    """Whether it pauses its sender instead of dropping."""
    reserve: int = 0
    """Bytes of the buffer that it has for itself."""
    headroom: int = 0
    """Bytes for what arrives after a pause."""
    alpha: Fraction = Fraction(1, 8)
    """Threshold as a share of the free shared bytes."""
    resume_offset: int = RESUME_OFFSET
    """Bytes below the threshold at which a paused sender may go on."""
    ramp: Ramp | None = None
    """When frames that leave by the port are marked; `None` for never."""
    egress_alpha: Fraction | None = None
    """Longest queue of a lossy priority at the port, as a share of the free shared bytes; `None`
    for no limit but that of the input ports."""


@dataclass(frozen=True, slots=True)
class PortSettings:
    """A port of a switch."""

    rate_bps: int
    priorities: Mapping[int, PriorityRules] = field(default_factory=dict)
    """Rules of those that are not lossy without a reserve."""


Queued = tuple[Frame | UnbuiltFrame, int, int]
"""A frame, its bytes in the buffer, and its input port."""


class Lane:
    """One priority of a port: its account at the input, its queue at the output, its counters."""

    __slots__ = (
        "account",
        "egress_alpha",
        "largest_queue",
        "marked",
        "pauses_sent",
        "queue",
        "queued",
        "ramp",
        "refresh_at",
        "resumes_sent",
        "sent",
        "sent_bytes",
        "watch",
    )

    def __init__(self, rule: PriorityRules, watchdog: Watchdog | None) -> None:
        self.account = Account(
            reserve=rule.reserve,
            headroom=rule.headroom if rule.is_lossless else 0,
            alpha=rule.alpha,
            is_lossless=rule.is_lossless,
            resume_offset=rule.resume_offset,
        )
        self.ramp = rule.ramp
        self.egress_alpha: tuple[int, int] | None = None
        """Numerator and denominator of that of its rules."""
        if rule.egress_alpha is not None:
            if rule.is_lossless:
                raise EncodeError("egress_alpha", str(rule.egress_alpha), "of a lossy priority")
            if not LEAST_ALPHA <= rule.egress_alpha <= LARGEST_ALPHA:
                raise EncodeError("egress_alpha", str(rule.egress_alpha), "from 1/256 to 128")
            self.egress_alpha = rule.egress_alpha.as_integer_ratio()
        self.queue: deque[Queued] = deque()
        self.queued = 0
        """Bytes in the queue."""
        self.refresh_at: Time = 0
        """When its pause has to be repeated."""
        self.watch: QueueWatch | None = None
        if watchdog is not None and rule.is_lossless:
            self.watch = QueueWatch(watchdog)
        self.sent = 0
        self.sent_bytes = 0
        self.marked = 0
        self.largest_queue = 0
        self.pauses_sent = 0
        self.resumes_sent = 0


class PortCounters:
    """What one port has done, by priority; it goes on counting."""

    __slots__ = ("_lanes", "discarded", "dropped", "first_mark", "first_pause", "stomped")

    def __init__(self, lanes: Sequence[Lane]) -> None:
        self._lanes = lanes
        self.stomped = 0
        """Damaged frames that had left (cut-through) before their end arrived here."""
        self.first_mark: Time | None = None
        """When the first frame was marked here."""
        self.first_pause: Time | None = None
        """When the first pause was sent from here."""
        self.dropped: Counter[str] = Counter()
        """Frames that arrived here and were dropped, by reason: the buffer is full, no route, or
        the frame is damaged or malformed."""
        self.discarded: Counter[str] = Counter()
        """Frames that were to be sent here and were dropped, by reason: the queue is full, the link
        is down, or the watchdog."""

    @property
    def sent(self) -> list[int]:
        """Frames."""
        return [lane.sent for lane in self._lanes]

    @property
    def sent_bytes(self) -> list[int]:
        """Bytes of these frames."""
        return [lane.sent_bytes for lane in self._lanes]

    @property
    def marked(self) -> list[int]:
        """Frames that got a CE mark here."""
        return [lane.marked for lane in self._lanes]

    @property
    def largest_queue(self) -> list[int]:
        """Bytes."""
        return [lane.largest_queue for lane in self._lanes]

    @property
    def pauses_sent(self) -> list[int]:
        """Pauses, without those that only prolong one."""
        return [lane.pauses_sent for lane in self._lanes]

    @property
    def resumes_sent(self) -> list[int]:
        """Frames that ended a pause."""
        return [lane.resumes_sent for lane in self._lanes]


class Port:
    """The state of a port."""

    __slots__ = (
        "announce",
        "counters",
        "first_sizes",
        "grant",
        "has_watches",
        "is_up",
        "lanes",
        "pause_time",
        "paused",
        "rate_bps",
        "scheduler",
        "sent",
        "stormed",
        "waiting",
    )

    def __init__(
        self,
        settings: PortSettings,
        scheduler: Scheduler,
        pause_quanta: int,
        watchdog: Watchdog | None,
    ) -> None:
        rules = [settings.priorities.get(lane, PriorityRules()) for lane in range(LANES)]
        # Of a tuple the references are in the object itself, of a list elsewhere.
        self.lanes = tuple([Lane(rule, watchdog) for rule in rules])
        self.rate_bps = settings.rate_bps
        self.sent = 0
        """Bytes sent, as the buffer counts them; kept for telemetry only."""
        self.scheduler = scheduler
        self.pause_time = pause_quanta * QUANTUM_BITS * S // settings.rate_bps
        """How long a pause lasts that is sent here."""
        self.first_sizes = [0] * LANES
        """Bytes of the first frame of each queue, 0 for an empty queue."""
        self.waiting = 0
        """Priorities with frames in their queue, as bits."""
        self.paused = 0
        """Priorities that this switch has paused at the neighbour, as bits."""
        self.announce: dict[int, int] = {}
        """Quanta by priority that the next PFC frame tells the neighbour."""
        self.counters = PortCounters(self.lanes)
        self.is_up = True
        """Whether its link works."""
        self.has_watches = any(lane.watch is not None for lane in self.lanes)
        self.stormed = 0
        """Priorities whose frames the watchdog drops, as bits."""
        self.grant: Grant = OPEN
        """What the neighbour allows to be sent; kept with a watchdog only."""

    @property
    def queued(self) -> int:
        """Bytes in all queues."""
        return sum(lane.queued for lane in self.lanes)
