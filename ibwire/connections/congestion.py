"""From CE marks to CNPs to a slower sender: congestion control as a capture shows it.

Switches mark data packets with CE, the receiver's NIC (the notification point)
answers with CNPs, and the sender's NIC (the reaction point) slows the queue pair
that the CNP names. A CNP travels against the data that it is about.

The wire does not show which mark a CNP answers: NICs pace their CNPs, and marks
that follow a CNP too soon get none. So the delay is given twice: since the last
mark before the CNP, at least that, and since the first mark after the CNP before,
at most that. Where there is one mark only, both are the same and exact.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from ibwire.base.histogram import Histogram

BIN_NS = 62_500
"""Bytes are added up over this time, from the epoch on, so that parts of a capture agree."""

WINDOW_BINS = 16
"""Bins that are compared before and after the one in which an episode began."""

WINDOW_NS = BIN_NS * WINDOW_BINS
"""1 ms, about as long as DCQCN takes from a cut of the rate to its recovery: its timers are 55 us
in the paper, and 300 us to 1.5 ms in NICs and simulators. CNPs that are closer to one another
than this are one episode."""

Numbers = npt.NDArray[np.int64]

NONE: Numbers = np.zeros(0, np.int64)


class CapturedPacket(NamedTuple):
    """A packet."""

    number: int
    source: str
    """The capture that the number counts in."""


class Congestion:
    """What congestion did to one direction of a connection.

    Give it all packets of the direction: the rate before a CNP is that of packets
    which were taken before it. Packets are put aside first, and added up many at a time.
    """

    def __init__(self) -> None:
        self.packets = 0
        self.marked = 0
        """Packets with a CE mark."""
        self.cnps = 0
        self.first_mark: CapturedPacket | None = None
        self.first_cnp: CapturedPacket | None = None
        self._answers = _Answers()
        self._pacing = _Scope()
        self._rates = _Rates()
        self._aside: list[tuple[Numbers, npt.NDArray[np.integer], Numbers]] = []
        self._packets_aside = 0

    @property
    def marked_share(self) -> float:
        """Of all packets, 0 to 1."""
        return self.marked / self.packets if self.packets else 0.0

    @property
    def is_unanswered(self) -> bool:
        """There are marks, and no CNP at all: the receiver does not report congestion."""
        return self.marked > 0 and self.cnps == 0

    @property
    def unprompted(self) -> int:
        """CNPs without a mark since the one before: captured before the congested switch, or
        sent for another reason (some NICs send one with a NAK)."""
        return self._answers.unprompted + self._answers.is_first_unprompted

    @property
    def delay_at_least(self) -> Histogram:
        """Nanoseconds from the last mark to the CNP."""
        return self._answers.delays(self._answers.at_least, lambda marks: marks.last_ns)

    @property
    def delay_at_most(self) -> Histogram:
        """Nanoseconds from the first mark since the CNP before to the CNP."""
        return self._answers.delays(self._answers.at_most, lambda marks: marks.first_ns)

    @property
    def intervals(self) -> Histogram:
        """Nanoseconds between CNPs for this queue pair."""
        return self._pacing.intervals

    @property
    def episodes(self) -> int:
        """Rows of CNPs."""
        rates = self._settled()
        return rates.settled + len(rates.pending)

    @property
    def measured(self) -> int:
        """Episodes for which the capture shows the whole time before and after."""
        return self._settled().settled

    @property
    def rate_before(self) -> float | None:
        """Bytes a second in the 1 ms before episodes, `None` when none was measured."""
        rates = self._settled()
        return _rate(rates.before, rates.settled)

    @property
    def rate_after(self) -> float | None:
        """Bytes a second in the 1 ms after the first CNPs of these episodes."""
        rates = self._settled()
        return _rate(rates.after, rates.settled)

    def take(
        self,
        time_ns: Numbers,
        number: Numbers,
        size: npt.NDArray[np.integer],
        marked: npt.NDArray[np.bool_] | None = None,
        cnp_ns: Numbers = NONE,
        cnp_number: Numbers = NONE,
        source: str = "",
    ) -> None:
        """Append some packets of the direction, and the CNPs that came back meanwhile.

        time_ns, number, size, marked: (n,) of data packets, in the order of the
        capture; `marked` is `None` when no packet is. cnp_ns, cnp_number: (m,) of CNPs.
        """
        self.packets += len(time_ns)
        self._put_aside(time_ns, size, cnp_ns)
        if marked is None and not len(cnp_ns):
            return
        rows = NONE if marked is None else np.flatnonzero(marked)
        if len(rows):
            self.marked += len(rows)
            self.first_mark = self.first_mark or CapturedPacket(int(number[rows[0]]), source)
        if len(cnp_ns):
            self.cnps += len(cnp_ns)
            self.first_cnp = self.first_cnp or CapturedPacket(int(cnp_number[0]), source)
            for time in cnp_ns.tolist():
                self._pacing.add(None, time)
        self._answers.take(time_ns[rows], number[rows], cnp_ns, cnp_number)

    def merge(self, later: Congestion) -> None:
        """Append what the same direction did later."""
        self.packets += later.packets
        self.marked += later.marked
        self.cnps += later.cnps
        self.first_mark = self.first_mark or later.first_mark
        self.first_cnp = self.first_cnp or later.first_cnp
        self._answers.merge(later._answers)
        self._pacing.merge(later._pacing)
        self._settled().merge(later._settled())

    def to_json(self) -> dict[str, Any]:
        """Counts and shares; times in nanoseconds, rates in bytes a second."""
        return {
            "packets": self.packets,
            "ecn_ce": self.marked,
            "ecn_ce_share": self.marked_share,
            "cnps": self.cnps,
            "cnps_unprompted": self.unprompted,
            "cnp_delay_at_least": self.delay_at_least.to_json(),
            "cnp_delay_at_most": self.delay_at_most.to_json(),
            "cnp_intervals": self.intervals.to_json(),
            "episodes": self.episodes,
            "episodes_measured": self.measured,
            "rate_before": self.rate_before,
            "rate_after": self.rate_after,
        }

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Congestion):
            return NotImplemented
        return self._state() == other._state()

    __hash__ = None  # type: ignore[assignment]

    def _state(self) -> tuple[object, ...]:
        places = self.first_mark, self.first_cnp
        counts = self.packets, self.marked, self.cnps
        return counts, places, self._answers, self._pacing, self._settled()

    def _put_aside(self, time_ns: Numbers, size: npt.NDArray[np.integer], cnp_ns: Numbers) -> None:
        # Copied, because a view would keep a whole chunk alive.
        self._aside.append((time_ns.copy(), size.copy(), cnp_ns.copy()))
        self._packets_aside += len(time_ns) + len(cnp_ns) + 1
        if self._packets_aside > _MOST_ASIDE:
            self._settled()

    def _settled(self) -> _Rates:
        """The rates, with all that was put aside."""
        if self._aside:
            time, size, cnp_ns = (np.concatenate(parts) for parts in zip(*self._aside, strict=True))
            self._aside, self._packets_aside = [], 0
            self._rates.merge(_Rates.of(time, size, cnp_ns))
        return self._rates


class FlowEnds(Protocol):
    """What pacing keeps of a flow of CNPs."""

    @property
    def src(self) -> str:
        """The notification point."""

    @property
    def dst(self) -> str:
        """The reaction point."""

    @property
    def dst_qpn(self) -> int:
        """The queue pair that is asked to slow down."""


SCOPES: dict[str, Callable[[FlowEnds], Hashable]] = {
    "queue_pair": lambda ends: (ends.src, ends.dst, ends.dst_qpn),
    "address_pair": lambda ends: (ends.src, ends.dst),
    "destination": lambda ends: ends.dst,
    "port": lambda ends: ends.src,
}
"""What a NIC may pace its CNPs by. The last three are the models of Lumina's CNP checker, which
has one NIC with several addresses before it. In a capture of several receivers, `destination`
mixes their CNPs; and a port with several addresses counts as several ports.
"""


class Pacing:
    """Intervals between CNPs, in all that they may be paced by.

    A NIC keeps its smallest interval in the scope that it paces by and in narrower
    ones; in a wider one CNPs are closer together as soon as several flows get some.
    """

    def __init__(self) -> None:
        self._scopes = {name: _Scope() for name in SCOPES}

    def intervals(self, scope: str) -> Histogram:
        """Nanoseconds between two CNPs in a row of one scope: its smallest, its typical one."""
        return self._scopes[scope].intervals

    def count(self, scope: str) -> int:
        """Different queue pairs, address pairs, destinations or ports that CNPs were for."""
        return len(self._scopes[scope].ends)

    def take(
        self, time_ns: Numbers, flow: npt.NDArray[np.integer], ends: Sequence[FlowEnds]
    ) -> None:
        """Append the CNPs of a chunk.

        time_ns, flow: (n,) in the order of the capture; `ends[flow]` has the ends of a flow.
        """
        for time, number in zip(time_ns.tolist(), flow.tolist(), strict=True):
            for name, key_of in SCOPES.items():
                self._scopes[name].add(key_of(ends[number]), time)

    def merge(self, later: Pacing) -> None:
        """Append what came later."""
        for name, scope in self._scopes.items():
            scope.merge(later._scopes[name])

    def to_json(self) -> dict[str, Any]:
        """Intervals in nanoseconds by scope."""
        return {
            name: {"different": len(scope.ends), **scope.intervals.to_json()}
            for name, scope in self._scopes.items()
        }

    def __eq__(self, other: object) -> bool:
        return self._scopes == other._scopes if isinstance(other, Pacing) else NotImplemented

    __hash__ = None  # type: ignore[assignment]


@dataclass(slots=True)
class _Scope:
    """Intervals within each group of CNPs."""

    intervals: Histogram = field(default_factory=Histogram)
    ends: dict[Hashable, tuple[int, int]] = field(default_factory=dict)
    """When the first and the last CNP of each group came."""

    def add(self, key: Hashable, time: int) -> None:
        """Append one CNP."""
        begun, before = self.ends.get(key, (time, None))
        if before is not None:
            self.intervals.add_one(time - before)
        self.ends[key] = begun, time

    def merge(self, later: _Scope) -> None:
        self.intervals.merge(later.intervals)
        for key, (first, last) in later.ends.items():
            self.add(key, first)
            self.ends[key] = self.ends[key][0], last


class _Marks(NamedTuple):
    """The first and the last of some marks."""

    first_ns: int
    last_ns: int


@dataclass(slots=True)
class _Answers:
    """Marks and the CNPs that follow them.

    The first CNP may answer marks that came before these packets, so it is kept
    apart, with the marks that lead to it here.
    """

    at_least: Histogram = field(default_factory=Histogram)
    at_most: Histogram = field(default_factory=Histogram)
    """Of all CNPs but the first."""
    unprompted: int = 0
    first_cnp_ns: int | None = None
    leading: _Marks | None = None
    """Marks before the first CNP."""
    waiting: _Marks | None = None
    """Marks since the last CNP, or all before the first."""

    @property
    def is_first_unprompted(self) -> bool:
        """No mark came before the first CNP."""
        return self.first_cnp_ns is not None and self.leading is None

    def delays(self, others: Histogram, since: Callable[[_Marks], int]) -> Histogram:
        """These delays of the other CNPs, and that of the first."""
        delays = Histogram()
        delays.merge(others)
        if self.first_cnp_ns is not None and self.leading is not None:
            delays.add_one(self.first_cnp_ns - since(self.leading))
        return delays

    def take(
        self, mark_ns: Numbers, mark_number: Numbers, cnp_ns: Numbers, cnp_number: Numbers
    ) -> None:
        """Append marks and CNPs in the order of their frame numbers; times may be out of order."""
        begin = 0
        ends = np.searchsorted(mark_number, cnp_number).tolist()
        for time, end in zip(cnp_ns.tolist(), ends, strict=True):
            self._answer(time, _marks(mark_ns[begin:end]))
            begin = end
        self.waiting = _joined(self.waiting, _marks(mark_ns[begin:]))

    def merge(self, later: _Answers) -> None:
        if later.first_cnp_ns is not None:
            self._answer(later.first_cnp_ns, later.leading)
        self.waiting = _joined(self.waiting, later.waiting)
        self.unprompted += later.unprompted
        self.at_least.merge(later.at_least)
        self.at_most.merge(later.at_most)

    def _answer(self, cnp_ns: int, marks: _Marks | None) -> None:
        """Append some marks and the CNP that follows."""
        marks, self.waiting = _joined(self.waiting, marks), None
        if self.first_cnp_ns is None:
            self.first_cnp_ns, self.leading = cnp_ns, marks
        elif marks:
            self.at_least.add_one(cnp_ns - marks.last_ns)
            self.at_most.add_one(cnp_ns - marks.first_ns)
        else:
            self.unprompted += 1


@dataclass(frozen=True, slots=True)
class _Episode:
    """Bytes around the first CNP of a row."""

    cnp_ns: int
    before: int
    after: int

    @property
    def bin(self) -> int:
        """In which it began."""
        return self.cnp_ns // BIN_NS


@dataclass(slots=True)
class _Rates:
    """Bytes before and after episodes began.

    An episode is complete once packets were seen before and after both of its windows. Until
    then it is pending, and for pending episodes, here and in what is merged with this, the bytes
    of the first and the last bins are kept.
    """

    first: int = 1 << 63
    """Bins with a packet or a CNP."""
    last: int = -(1 << 63)
    head: dict[int, int] = field(default_factory=dict)
    """Bytes of the bins up to a window after the first."""
    tail: dict[int, int] = field(default_factory=dict)
    """Bytes of the bins from a window before the last on."""
    pending: list[_Episode] = field(default_factory=list)
    settled: int = 0
    before: int = 0
    """Bytes in the windows of settled episodes."""
    after: int = 0
    last_cnp_ns: int | None = None

    @staticmethod
    def of(time: Numbers, size: npt.NDArray[np.integer], cnp_ns: Numbers) -> _Rates:
        """time, size: (n,) of packets; cnp_ns: (m,)."""
        rates = _Rates()
        bins, middle = time // BIN_NS, cnp_ns // BIN_NS
        edges = [(int(each.min()), int(each.max())) for each in (bins, middle) if len(each)]
        if not edges:
            return rates
        rates.first, rates.last = min(low for low, _ in edges), max(high for _, high in edges)
        rates.head = _bytes(bins, size, rates.first)
        rates.tail = _bytes(bins, size, rates.last - WINDOW_BINS)
        if len(cnp_ns):
            rates.last_cnp_ns = int(cnp_ns[-1])
            starts = cnp_ns[np.append(True, np.diff(cnp_ns) > WINDOW_NS)]
            rates.pending = _episodes(bins, size, starts)
            rates._settle()
        return rates

    def merge(self, later: _Rates) -> None:
        if later.last_cnp_ns is None:
            fresh = []
        else:
            fresh = [each for each in later.pending if not self._goes_on_with(each)]
            self.last_cnp_ns = later.last_cnp_ns
        self.pending = [_with_later(each, later.head) for each in self.pending]
        self.pending += [_with_earlier(each, self.tail) for each in fresh]
        self.first, self.last = min(self.first, later.first), max(self.last, later.last)
        end, begin = self.first + WINDOW_BINS, self.last - WINDOW_BINS
        self.head = {i: n for i, n in _added(self.head, later.head).items() if i <= end}
        self.tail = {i: n for i, n in _added(self.tail, later.tail).items() if i >= begin}
        self.settled += later.settled
        self.before += later.before
        self.after += later.after
        self._settle()

    def _goes_on_with(self, later: _Episode) -> bool:
        """It is the rest of the last episode here."""
        return self.last_cnp_ns is not None and later.cnp_ns - self.last_cnp_ns <= WINDOW_NS

    def _settle(self) -> None:
        """Account for the episodes whose windows lie within what was seen."""
        pending, self.pending = self.pending, []
        for episode in pending:
            begin, end = episode.bin - WINDOW_BINS, episode.bin + WINDOW_BINS
            if self.first < begin and end < self.last:
                self.settled += 1
                self.before += episode.before
                self.after += episode.after
            else:
                self.pending.append(episode)


def _with_later(episode: _Episode, bins: dict[int, int]) -> _Episode:
    """Count the bytes of bins that were captured later."""
    after = range(episode.bin + 1, episode.bin + WINDOW_BINS + 1)
    return replace(episode, after=episode.after + sum(bins.get(i, 0) for i in after))


def _with_earlier(episode: _Episode, bins: dict[int, int]) -> _Episode:
    """Count the bytes of bins that were captured earlier."""
    before = range(episode.bin - WINDOW_BINS, episode.bin)
    return replace(episode, before=episode.before + sum(bins.get(i, 0) for i in before))


def _added(one: dict[int, int], other: dict[int, int]) -> dict[int, int]:
    added = dict(one)
    for key, value in other.items():
        added[key] = added.get(key, 0) + value
    return added


def _bytes(bins: Numbers, size: npt.NDArray[np.integer], first: int) -> dict[int, int]:
    """Bytes by bin, from the first to a window after it."""
    chosen = (bins >= first) & (bins <= first + WINDOW_BINS)
    held = np.bincount(bins[chosen] - first, weights=size[chosen])
    return {first + i: int(size) for i, size in enumerate(held.tolist()) if size}


def _episodes(bins: Numbers, size: npt.NDArray[np.integer], starts: Numbers) -> list[_Episode]:
    """Episodes that begin at these times, with the bytes of these packets around them."""
    order = np.argsort(bins, kind="stable")
    total = np.append(0, np.cumsum(size[order], dtype=np.int64))
    middle = starts // BIN_NS
    edges = middle - WINDOW_BINS, middle, middle + 1, middle + WINDOW_BINS + 1
    begin, here, behind, end = (total[np.searchsorted(bins[order], each)] for each in edges)
    parts = starts.tolist(), (here - begin).tolist(), (end - behind).tolist()
    return [_Episode(*each) for each in zip(*parts, strict=True)]


def _marks(times: Numbers) -> _Marks | None:
    return _Marks(int(times[0]), int(times[-1])) if len(times) else None


def _joined(one: _Marks | None, later: _Marks | None) -> _Marks | None:
    return _Marks(one.first_ns, later.last_ns) if one and later else one or later


def _rate(size: int, windows: int) -> float | None:
    """Bytes a second of bytes in a number of windows."""
    return size * 1e9 / (windows * WINDOW_NS) if windows else None


_MOST_ASIDE = 1024
"""Packets of one direction that are put aside before they are added up."""
