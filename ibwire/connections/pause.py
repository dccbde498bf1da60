"""Pauses: PFC (IEEE 802.1Qbb) and plain PAUSE frames, by sender and priority.

A frame carries a timer in quanta of 512 bit times for each class that it names
of. A timer that is not zero (XOFF) stops the link partner of the frame's sender
and replaces what was left of the timer before; zero (XON) lets it go on. So two
frames in a row of one sender and priority decide everything about the first: it
held until its timer ran out or the second came. Frames that follow before the
timer ran out make one *pause*, which is one interval.

Timers are in bit times, so times need the speed of the link. When it is not
known, they are those of the slowest link that is likely, and so upper bounds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ibwire.base.units import GBPS
from ibwire.dissect import Columns
from ibwire_layers.walk import Protocol

QUANTUM_BITS = 512
"""Bit times of one quantum (IEEE 802.3 annex 31B.2)."""

SLOWEST_BPS = 10 * GBPS
"""Link speed when none is given: the slowest that RoCE hardware was made for."""

STORM_NS = 100_000_000
"""A pause longer than this is a storm. Watchdogs of switches act after 100 to 400 ms."""

KEPT = 64
"""Pauses that are kept for each sender and priority; the longest."""

PAUSE_ADDRESS = 0x0180C2000001
"""Destination of every PFC frame, and of nearly every PAUSE frame (IEEE 802.3 annex 31B, 31D)."""

WHOLE_PORT = 8
"""Stands for the priority of a plain PAUSE frame, which stops all of them."""


class Oddity(StrEnum):
    """What is wrong with a frame, which is otherwise taken as it stands."""

    DESTINATION = "destination"
    """It is addressed to another MAC address, which PFC does not allow; for plain PAUSE
    to another group, because the address of the link partner is allowed there."""
    RESERVED_BITS = "reserved_bits"
    """The high byte of the class-enable vector is not zero."""
    UNUSED_TIME = "unused_time"
    """A class that is not enabled has a timer."""
    NO_CLASS = "no_class"
    """No class is enabled: the frame has no effect."""
    TAGGED = "tagged"
    """It has a VLAN tag, which link partners do not understand."""


class Interval(NamedTuple):
    """One pause."""

    start_ns: int
    paused_ns: int
    number: int
    """Of the frame that began it."""
    source: str
    """The capture that the number counts in."""

    @property
    def end_ns(self) -> int:
        """When it ended, unless the capture's clock stepped back meanwhile."""
        return self.start_ns + self.paused_ns


@dataclass(slots=True)
class Noted:
    """Frames with one oddity."""

    count: int
    number: int
    """Of the first such frame."""
    source: str


@dataclass(slots=True)
class Lane:
    """The pause frames of one sender for one priority, and how long they paused it.

    All but the counters has to stay mergeable: the first pause may turn out to be
    the end of one that began earlier, and the last may go on. They are kept apart.
    """

    storm_ns: int
    frames: int
    xoffs: int
    quanta: int
    """Sum of all timers, also of those that were replaced before they ran out."""
    longest_quanta: int
    first: _Beat
    last: _Beat
    pairs: int = 0
    """XOFFs that an XON ended in time."""
    refreshes: int = 0
    """XOFFs that came while the pause before still ran."""
    expired: int = 0
    """XOFFs whose timer expired before anything followed."""
    _head: Interval | None = None
    """The pause that began with the very first frame, once it has ended."""
    _tail: Interval | None = None
    """The pause that the last frame requested, without the time of that frame's timer."""
    _ended: int = 0
    """Pauses between these two: how many, their time, storms among them, the longest."""
    _ended_ns: int = 0
    _storms: int = 0
    _longest: list[Interval] = field(default_factory=list)

    @property
    def xons(self) -> int:
        """Frames that let the priority go on."""
        return self.frames - self.xoffs

    @property
    def pauses(self) -> int:
        """How often the priority was stopped."""
        return self._ended + len(self._edges())

    @property
    def paused_ns(self) -> int:
        """Nanoseconds for which it was stopped; the last pause counts to the end of its timer."""
        return self._ended_ns + sum(interval.paused_ns for interval in self._edges())

    @property
    def storms(self) -> int:
        """Pauses longer than the limit."""
        return self._storms + sum(self._is_storm(interval) for interval in self._edges())

    @property
    def longest(self) -> list[Interval]:
        """The longest pauses, the longest first; at most `KEPT`."""
        return _by_length([*self._longest, *self._edges()])

    @property
    def longest_ns(self) -> int:
        """Nanoseconds of the longest pause."""
        return max((interval.paused_ns for interval in self.longest), default=0)

    def merge(self, later: Lane) -> None:
        """Append later pauses of the same sender and priority."""
        elapsed = max(0, later.first.time_ns - self.last.time_ns)
        was_off, is_off = self.last.quanta > 0, later.first.quanta > 0
        holds = was_off and elapsed <= self.last.length_ns
        self.pairs += later.pairs + (holds and not is_off)
        self.refreshes += later.refreshes + (holds and is_off)
        self.expired += later.expired + (was_off and not holds)
        self.frames += later.frames
        self.xoffs += later.xoffs
        self.quanta += later.quanta
        self.longest_quanta = max(self.longest_quanta, later.longest_quanta)
        self._join(later, min(elapsed, self.last.length_ns), holds and is_off)
        self.last = later.last

    def hold(self, intervals: list[Interval]) -> None:
        """Fill a new lane with its pauses, in order, the last without the last frame's timer."""
        if intervals and self.last.quanta:
            self._tail = intervals.pop()
        if intervals and self.first.quanta:
            self._head = intervals.pop(0)
        self._end(intervals)

    def to_json(self) -> dict[str, Any]:
        """Counters and times."""
        return {
            "frames": self.frames,
            "xoff": self.xoffs,
            "xon": self.xons,
            "pairs": self.pairs,
            "refreshes": self.refreshes,
            "expired": self.expired,
            "quanta": self.quanta,
            "longest_quanta": self.longest_quanta,
            "pauses": self.pauses,
            "paused_ns": self.paused_ns,
            "longest_ns": self.longest_ns,
            "storms": self.storms,
        }

    def _join(self, later: Lane, piece: int, is_one_pause: bool) -> None:
        """Append the later pauses; the last frame before them held for `piece` nanoseconds."""
        tail = _longer(self._tail, piece) if self._tail else None
        begun, self._tail = later._head, later._tail
        if tail and is_one_pause:
            # The later lane begins with an XOFF: its first pause is its head, or still its tail.
            if begun:
                tail = _longer(tail, begun.paused_ns)
            elif later._tail:
                self._tail = _longer(tail, later._tail.paused_ns)
                tail = None
            begun = None
        if tail and self._head is None and self.first.quanta:
            self._head = tail
        elif tail:
            self._end([tail])
        if begun:
            self._end([begun])
        self._ended += later._ended
        self._ended_ns += later._ended_ns
        self._storms += later._storms
        if later._longest:
            self._longest = _by_length(self._longest + later._longest)

    def _end(self, intervals: list[Interval]) -> None:
        self._ended += len(intervals)
        self._ended_ns += sum(interval.paused_ns for interval in intervals)
        self._storms += sum(map(self._is_storm, intervals))
        self._longest = _by_length(self._longest + intervals)

    def _edges(self) -> list[Interval]:
        """The first and the last pause, where they are kept apart."""
        edges = [self._head] if self._head else []
        return [*edges, _longer(self._tail, self.last.length_ns)] if self._tail else edges

    def _is_storm(self, interval: Interval) -> bool:
        return interval.paused_ns > self.storm_ns


@dataclass(slots=True)
class Sender:
    """What one MAC address sent."""

    pfc_frames: int = 0
    pause_frames: int = 0
    oddities: dict[Oddity, Noted] = field(default_factory=dict)
    lanes: dict[int, Lane] = field(default_factory=dict)
    """By priority, and `WHOLE_PORT`."""

    def merge(self, later: Sender) -> None:
        """Append what the same address sent later."""
        self.pfc_frames += later.pfc_frames
        self.pause_frames += later.pause_frames
        for oddity, noted in later.oddities.items():
            self.note(oddity, noted.count, noted.number, noted.source)
        for priority, lane in later.lanes.items():
            self.add(priority, lane)

    def note(self, oddity: Oddity, count: int, number: int, source: str) -> None:
        """Count frames with an oddity, of which `number` is the first."""
        noted = self.oddities.setdefault(oddity, Noted(0, number, source))
        noted.count += count

    def add(self, priority: int, lane: Lane) -> None:
        """Append its pauses of a priority."""
        if priority in self.lanes:
            self.lanes[priority].merge(lane)
        else:
            self.lanes[priority] = replace(lane)


class Held(NamedTuple):
    """How long a sender held a priority of its link partner within some time."""

    mac: int
    priority: int
    paused_ns: int


class Pauses:
    """All pause frames of a capture, by sender.

    rate_bps: speed of the link that the frames were captured on, bits a second.
    storm_ns: a pause longer than this is a storm.
    """

    def __init__(self, rate_bps: int | None = None, storm_ns: int = STORM_NS) -> None:
        self.rate_bps = rate_bps
        self.storm_ns = storm_ns
        self.senders: dict[int, Sender] = {}

    @property
    def is_exact(self) -> bool:
        """Whether the link speed is known; otherwise times are upper bounds and `expired` a
        lower one, for a link of `SLOWEST_BPS` or faster, and only quanta are exact."""
        return self.rate_bps is not None

    @property
    def frames(self) -> int:
        """Pause frames of both kinds."""
        return sum(each.pfc_frames + each.pause_frames for each in self.senders.values())

    @property
    def are_of_priorities(self) -> bool:
        """Whether some pauses stop only one priority."""
        return any(each.pfc_frames for each in self.senders.values())

    def take(self, columns: Columns) -> None:
        """Append the pause frames of a chunk."""
        protocol = columns["frame.protocol"]
        rows = np.flatnonzero((protocol == Protocol.PFC) | (protocol == Protocol.PAUSE))
        if len(rows):
            rows = rows[columns.valid("macc.opcode")[rows]]
        if len(rows):
            self._take(columns, rows)

    def merge(self, later: Pauses) -> None:
        """Append what was captured later, with the same options."""
        assert (self.rate_bps, self.storm_ns) == (later.rate_bps, later.storm_ns)
        for mac, sender in later.senders.items():
            self.senders.setdefault(mac, Sender()).merge(sender)

    def paused_between(self, start_ns: int, end_ns: int) -> list[Held]:
        """Links paused within this time, the longest first; of the pauses that were kept."""
        window = np.array([[start_ns, end_ns]], np.int64)
        held = [
            Held(mac, priority, int(still(lane.longest, window)[0]))
            for mac, sender in self.senders.items()
            for priority, lane in sender.lanes.items()
        ]
        return sorted((each for each in held if each.paused_ns), key=lambda each: -each.paused_ns)

    def to_json(self) -> dict[str, Any]:
        """Everything but the single pauses."""
        return {
            "link_bps": self.rate_bps,
            "exact": self.is_exact,
            "senders": [
                {
                    "mac": mac.to_bytes(6).hex(":"),
                    "pfc_frames": sender.pfc_frames,
                    "pause_frames": sender.pause_frames,
                    "odd_frames": {odd.value: n.count for odd, n in sender.oddities.items()},
                    "priorities": [
                        {"priority": None if number == WHOLE_PORT else number, **lane.to_json()}
                        for number, lane in sorted(sender.lanes.items())
                    ],
                }
                for mac, sender in self.senders.items()
            ],
        }

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Pauses):
            return NotImplemented
        mine = self.rate_bps, self.storm_ns, self.senders
        return mine == (other.rate_bps, other.storm_ns, other.senders)

    __hash__ = None  # type: ignore[assignment]

    def _take(self, columns: Columns, rows: Numbers) -> None:
        is_pfc = columns["frame.protocol"][rows] == Protocol.PFC
        numbers = columns["frame.number"][rows].astype(np.int64)
        source = columns.frames.source
        macs, sender = np.unique(columns["eth.src"][rows], return_inverse=True)
        senders = [self.senders.setdefault(mac, Sender()) for mac in macs.tolist()]
        for place, _, count in _groups(sender[is_pfc]):
            senders[place].pfc_frames += count
        for place, _, count in _groups(sender[~is_pfc]):
            senders[place].pause_frames += count
        for oddity, mask in _oddities(columns, rows, is_pfc).items():
            odd = np.flatnonzero(mask)
            for place, first, count in _groups(sender[odd]):
                senders[place].note(oddity, count, int(numbers[odd[first]]), source)
        speaks, timers = _timers(columns, rows, is_pfc)
        row, priority = np.nonzero(speaks)
        beats = _Beats(
            key=sender[row] * _LANES + priority,
            # Half of the range, so that the difference of any two times fits.
            time_ns=np.clip(columns["frame.time_ns"][rows].view(np.int64), -_FAR, _FAR)[row],
            quanta=timers[row, priority].astype(np.int64),
            number=numbers[row],
        )
        for key, lane in _lanes(beats, self.rate_bps or SLOWEST_BPS, self.storm_ns, source):
            senders[key // _LANES].add(key % _LANES, lane)


def still(pauses: Iterable[Interval], silences: Numbers) -> Numbers:
    """For how many nanoseconds of each silence a priority was paused.

    silences: (m, 2) start and end, in nanoseconds. Returns (m,).

    The pauses explain a connection's longest silence if they fill most of it, its packets
    have that priority, and they cross that link towards the sender of the pause frames. A
    pause does not explain a silence that continues long after it.
    """
    spans = sorted((pause.start_ns, min(pause.end_ns, _FAR)) for pause in pauses)
    starts: list[int] = []
    ends: list[int] = []
    held = [0]
    for start, end in spans:
        if starts and start <= ends[-1]:
            held[-1] += max(0, end - ends[-1])
            ends[-1] = max(end, ends[-1])
        else:
            starts.append(start)
            ends.append(end)
            held.append(held[-1] + end - start)
    if not starts:
        return np.zeros(len(silences), np.int64)
    begun = np.searchsorted(np.array(starts, np.int64), silences, side="right")
    # Held before each moment: all that had begun, without what was still to come of the last.
    rest = np.maximum(np.array([0, *ends], np.int64)[begun] - silences, 0)
    before = np.array(held, np.int64)[begun] - np.where(begun, rest, 0)
    return np.asarray(np.maximum(before[:, 1] - before[:, 0], 0), np.int64)


Numbers = npt.NDArray[np.int64]

_Mask = npt.NDArray[np.bool_]

_LANES = WHOLE_PORT + 1

_FAR = (1 << 62) - 1


class _Beat(NamedTuple):
    """One frame for one priority, with its longest duration."""

    time_ns: int
    quanta: int
    length_ns: int


@dataclass(slots=True)
class _Beats:
    """The pauses of the frames of a chunk, (n,) one row a frame and priority."""

    key: Numbers
    """Place of the sender times `_LANES`, plus the priority."""
    time_ns: Numbers
    quanta: Numbers
    number: Numbers


def _longer(interval: Interval, by_ns: int) -> Interval:
    return interval._replace(paused_ns=interval.paused_ns + by_ns)


def _by_length(intervals: list[Interval]) -> list[Interval]:
    """The longest, and among equals the earliest."""
    return sorted(intervals, key=lambda each: (-each.paused_ns, *each))[:KEPT]


def _groups(values: Numbers) -> Iterator[tuple[int, int, int]]:
    """Each value, where it stands first, and how often it occurs."""
    found, first, counts = np.unique(values, return_index=True, return_counts=True)
    return zip(found.tolist(), first.tolist(), counts.tolist(), strict=True)


def _oddities(columns: Columns, rows: Numbers, is_pfc: _Mask) -> dict[Oddity, _Mask]:
    """Which of these frames have which oddity."""
    destination = columns["eth.dst"][rows]
    vector = columns["macc.cbfc.enbv"][rows]
    times = columns["macc.pfc.time"][rows]
    enabled = _enabled(vector)
    is_group = destination >> np.uint64(40) & np.uint64(1) != 0
    return {
        Oddity.DESTINATION: (destination != PAUSE_ADDRESS) & (is_pfc | is_group),
        Oddity.RESERVED_BITS: vector > 0xFF,
        Oddity.UNUSED_TIME: ((times != 0) & ~enabled).any(axis=1),
        Oddity.NO_CLASS: is_pfc & ~enabled.any(axis=1),
        Oddity.TAGGED: columns.valid("vlan.id")[rows],
    }


def _timers(columns: Columns, rows: Numbers, is_pfc: _Mask) -> tuple[_Mask, npt.NDArray[np.uint16]]:
    """(n, _LANES) which lanes each frame names, and the quanta."""
    speaks = np.zeros((len(rows), _LANES), np.bool_)
    speaks[:, :WHOLE_PORT] = _enabled(columns["macc.cbfc.enbv"][rows])
    speaks[:, WHOLE_PORT] = ~is_pfc
    timers = np.zeros((len(rows), _LANES), np.uint16)
    timers[:, :WHOLE_PORT] = columns["macc.pfc.time"][rows]
    timers[:, WHOLE_PORT] = columns["macc.pause_time"][rows]
    return speaks, timers


def _enabled(vector: npt.NDArray[np.uint16]) -> _Mask:
    """(n, 8) which classes are enabled; none for a plain PAUSE frame, whose vector reads as 0."""
    return np.asarray(vector[:, None] >> np.arange(8, dtype=np.uint16) & 1, np.bool_)


def _lanes(beats: _Beats, rate_bps: int, storm_ns: int, source: str) -> Iterator[tuple[int, Lane]]:
    """The pauses of each sender and priority in a chunk, by key."""
    order = np.argsort(beats.key, kind="stable")
    time, quanta, number = beats.time_ns[order], beats.quanta[order], beats.number[order]
    length = (quanta * (QUANTUM_BITS * 10**9) + rate_bps // 2) // rate_bps
    end = 0
    for key, _, count in _groups(beats.key):
        part = slice(end, end + count)
        end += count
        yield key, _lane(time[part], quanta[part], length[part], number[part], storm_ns, source)


def _lane(
    time: Numbers, quanta: Numbers, length: Numbers, number: Numbers, storm_ns: int, source: str
) -> Lane:
    """What one or more frames say about one lane."""
    off = quanta > 0
    elapsed = np.maximum(np.diff(time), 0)
    in_time = off[:-1] & (elapsed <= length[:-1])
    refreshes = in_time & off[1:]
    begins = np.flatnonzero(off & ~np.concatenate(([False], refreshes)))
    held = np.append(np.where(off[:-1], np.minimum(length[:-1], elapsed), 0), 0)
    paused = np.add.reduceat(held, begins) if len(begins) else held[:0]
    lane = Lane(
        storm_ns,
        frames=len(time),
        xoffs=int(off.sum()),
        quanta=int(quanta.sum()),
        longest_quanta=int(quanta.max()),
        first=_Beat(int(time[0]), int(quanta[0]), int(length[0])),
        last=_Beat(int(time[-1]), int(quanta[-1]), int(length[-1])),
        pairs=int((in_time & ~off[1:]).sum()),
        refreshes=int(refreshes.sum()),
        expired=int((off[:-1] & ~in_time).sum()),
    )
    starts = zip(time[begins].tolist(), paused.tolist(), number[begins].tolist(), strict=True)
    lane.hold([Interval(*each, source) for each in starts])
    return lane
