"""Which frame of one capture is which frame of another: two files read side by side.

Both are read in step, the one with the earlier time first, and the frames of
the last second or so are kept in a window. A frame is paired when everything that
could be the same frame has been read (it is *ripe*), and leaves its window, with a
partner or alone, once it is twice as old. The times of the second capture are
moved by a *shift* before they are compared: the offset of its clock plus the delay
of frames. It is estimated from frames that exist only once.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from ibwire.base.errors import CaptureError
from ibwire.capture import RecordBatch, open_capture
from ibwire.capture.stream import Source
from ibwire.compare.fingerprint import ROW, Frames, Kind, frames_of
from ibwire.connections import packets
from ibwire.connections.flow import Flows
from ibwire.connections.points import Points
from ibwire.dissect import Columns

HORIZON_NS = 1_000_000_000
"""How long a frame may be under way. Longer than any queue holds one."""

WINDOW = 2**17
"""Frames kept of each capture; about 30 MB."""

_STEPS = 4
"""Number of steps in which a window is read, because each step processes all of it."""

_NEVER = 2**62

_SKIP_NS = 50_000_000
"""Of identical frames: rather than that one was lost and another one doubled it is thought that
both were late, by so much each. Longer than a full buffer holds frames."""

_CHUNK_SIZE = 16
"""Bytes read at a time for each frame of the window: a quarter of what the shortest frame takes,
so that one batch never fills a window."""

_PATIENCE = 4
"""How often in a row the clocks may jump before frames leave all the same: it bounds the memory."""

_MOST_CELLS = 10_000
"""Of a table of identical frames: more of them are not worth the time."""

Indices = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


class Alone(NamedTuple):
    """Frames that left the window of a capture without a partner, and what is known of each."""

    frames: Frames
    covered: Mask
    """(n,) whether the other capture was running when the frame would have been there."""


class Listener(Protocol):
    """Takes what is found."""

    def paired(self, one: Frames, other: Frames) -> None:
        """The same frames in both captures."""

    def left(self, side: int, frames: Frames) -> None:
        """Frames that were paired, in the order of their capture."""

    def alone(self, side: int, alone: Alone) -> None:
        """Frames that were not, in the order of their capture."""

    def jumped(self, side: int, number: int, by_ns: int) -> None:
        """The clock of a capture jumped against the other's, at about this frame."""


class Capture:
    """One of the two: what was read and is not done with."""

    def __init__(self, source: Source, stack: ExitStack, flows: Flows, window: int) -> None:
        opened = open_capture(source, max(1, _CHUNK_SIZE * window), reuse=True)
        self._reader = stack.enter_context(opened)
        self._batches: Iterator[RecordBatch] = self._reader.batches()
        self._flows = flows
        self._points = Points()
        self.copies = 0
        """Packets that were also captured at another of its interfaces, and are left out."""
        self.frames = np.zeros(0, ROW)
        self.ended = False
        self.error: CaptureError | None = None
        """Why it ended before its end."""
        self.records = 0
        self.first_ns = 0
        self.last_ns = 0
        """Times of the records read so far, of any kind."""
        self.jumps: list[tuple[int, int]] = []
        """Where its own times go back for longer than any disorder: frame, and nanoseconds."""
        self._moved = 0

    @property
    def path(self) -> str:
        """What stands for it in messages."""
        return self._reader.path

    def read(self, count: int) -> None:
        """This many more frames, or all there are, and the rest of the batch."""
        parts: list[Frames] = []
        try:
            while not self.ended and sum(map(len, parts)) < count:
                batch = next(self._batches, None)
                if batch is None:
                    self.ended = True
                elif len(batch):
                    self._smooth(batch)
                    parts.append(self._frames_of(Columns(batch, self.path)))
        except CaptureError as error:
            self.ended = True
            self.error = error
        self.frames = np.concatenate([self.frames, *parts])

    def _frames_of(self, columns: Columns) -> Frames:
        """The frames of a chunk, each packet at the first interface that has it."""
        found = frames_of(columns, self._flows)
        counted = self._points.take(columns)
        if not self._points.copies:
            return found
        self.copies += self._points.copies
        copies = np.setdiff1d(packets.known(columns), packets.known(counted))
        return found[~np.isin(found["number"], copies + columns.frames.batch.first_number)]

    def _smooth(self, batch: RecordBatch) -> None:
        """Let the times of a clock that was set back go on from where they were."""
        first = int(batch.time_ns[0]) if not self.records else self.last_ns - self._moved
        back = -np.diff(batch.time_ns, prepend=first)
        jumps = np.flatnonzero(back > HORIZON_NS)
        moved = self._moved + np.cumsum(np.where(back > HORIZON_NS, back, 0))
        self.jumps += [(batch.first_number + row, -int(back[row])) for row in jumps.tolist()]
        batch.time_ns = batch.time_ns + moved
        self._moved = int(moved[-1])
        if not self.records:
            self.first_ns = int(batch.time_ns[0])
        self.last_ns = int(batch.time_ns[-1])
        self.records += len(batch)


class Pairing:
    """Pairs the frames of two captures, and reports them to a listener."""

    def __init__(self, captures: tuple[Capture, Capture], listener: Listener, window: int) -> None:
        self._captures = captures
        self._listener = listener
        self._window = window
        self._step = max(1, window // _STEPS)
        self._shift: int | None = None
        """Nanoseconds from `one` to `other`; unknown until frames were paired."""
        self._shifts: dict[int, int] = {}
        """The same for each flow, because each has its own delay."""
        self._spread = 0
        """Nanoseconds by which the delay varies at most, for the time being."""
        self._patience = _PATIENCE
        self._first: tuple[dict[int, int], dict[int, int]] = ({}, {})
        """Flow -> number of its first frame that was paired."""

    def run(self) -> None:
        """Read both captures to the end, or one to the end and the other a little further."""
        self._begin()
        while True:
            while (capture := self._behind()) is not None:
                self._settle()
                capture.read(self._step)
            if self._finish():
                break

    def _begin(self) -> None:
        """Read until the shift is known, or as much as may be kept."""
        for capture in self._captures:
            capture.read(self._step)
        while True:
            self._shift = self._agreed_shift(self._unpaired(0), self._unpaired(1), 1)
            room = [
                capture
                for capture in self._captures
                if not capture.ended and len(capture.frames) < self._window
            ]
            if self._shift is not None or not room:
                return
            min(room, key=lambda capture: len(capture.frames)).read(self._step)

    def _behind(self) -> Capture | None:
        """The capture to read next; None when there is nothing more to compare."""
        one, other = self._captures
        ahead = one.last_ns + (self._shift or 0) - other.last_ns
        if one.ended and other.ended:
            return None
        if one.ended or other.ended:
            unread, lead = (other, -ahead) if one.ended else (one, ahead)
            return unread if lead <= HORIZON_NS else None
        return other if ahead > 0 else one

    # What is ripe, and what is done with.

    def _settle(self) -> None:
        """Pair what is ripe, and let go of what is done with."""
        aligned = self._aligned()
        ripe = self._cut(aligned, HORIZON_NS // 2, self._window // 2)
        self._pair((aligned[0] <= ripe, aligned[1] <= ripe))
        aligned = self._aligned()
        done = self._cut(aligned, HORIZON_NS, self._window)
        if self._patience and self._jumped([times <= done for times in aligned]):
            self._patience -= 1
            return
        self._patience = _PATIENCE
        for side, times in enumerate(aligned):
            running = np.maximum.accumulate(times)
            self._leave(side, int(np.searchsorted(running, done, "right")))

    def _finish(self) -> bool:
        """Settle everything; False when a clock jumped, and there may be more to read."""
        everything = [np.ones(len(capture.frames), np.bool_) for capture in self._captures]
        self._pair((everything[0], everything[1]))
        if self._jumped(everything):
            return False
        for side, capture in enumerate(self._captures):
            self._leave(side, len(capture.frames))
        return True

    def _cut(self, aligned: tuple[Indices, Indices], age_ns: int, most: int) -> int:
        """Time before which frames are old enough, or followed by too many others."""
        one, other = self._captures
        read = [] if one.ended else [one.last_ns]
        read += [] if other.ended else [other.last_ns - (self._shift or 0)]
        frontier = min(read)
        cut = frontier - age_ns
        for times in aligned:
            if len(times) > most:
                running = np.maximum.accumulate(times)
                cut = max(cut, min(int(running[len(times) - most - 1]), frontier))
        return cut

    def _aligned(self) -> tuple[Indices, Indices]:
        """Times of the frames of both windows by the clock of the first capture."""
        one, other = (capture.frames for capture in self._captures)
        return one["time"].copy(), other["time"] - self._shifts_of(other)

    def _shifts_of(self, frames: Frames) -> Indices:
        general = self._shift or 0
        if not self._shifts:
            return np.full(len(frames), general, np.int64)
        table = np.full(max(self._shifts) + 2, general, np.int64)
        table[list(self._shifts)] = list(self._shifts.values())
        flow = frames["flow"]
        return table[np.where((flow >= 0) & (flow < len(table)), flow, -1)]

    def _leave(self, side: int, count: int) -> None:
        """Remove the first frames, this many."""
        if not count:
            return
        capture = self._captures[side]
        frames = capture.frames[:count]
        alone = frames[(frames["partner"] == 0) & (frames["kind"] < Kind.STRANGER)]
        if len(alone):
            self._listener.alone(side, Alone(alone, self._covered(side, alone)))
        self._listener.left(side, frames[frames["partner"] > 0])
        capture.frames = capture.frames[count:].copy()

    def _covered(self, side: int, alone: Frames) -> Mask:
        """Whether the other capture was running: by its times, or by what it holds of the flow."""
        frames, other = self._captures[side].frames, self._captures[1 - side]
        shift = self._shifts_of(alone)
        expected = alone["time"] + (-shift if side else shift)
        paired = frames[frames["partner"] > 0][::-1]
        flows, latest = np.unique(paired["flow"], return_index=True)
        last = dict(zip(flows.tolist(), paired["number"][latest].tolist(), strict=True))
        flow, number = alone["flow"].tolist(), alone["number"]
        begun = np.array([self._first[side].get(one, _NEVER) for one in flow]) < number
        continued = np.array([last.get(one, 0) for one in flow]) > number
        covered: Mask = begun | (expected - self._spread >= other.first_ns)
        covered &= continued | (not other.ended) | (expected + self._spread <= other.last_ns)
        return covered

    # Pairs.

    def _unpaired(self, side: int, mask: Mask | None = None) -> Indices:
        """Transport packets without a partner."""
        frames = self._captures[side].frames
        chosen = (frames["partner"] == 0) & (frames["flow"] >= 0)
        return np.flatnonzero(chosen if mask is None else chosen & mask)

    def _pair(self, ripe: tuple[Mask, Mask]) -> None:
        self._pair_by("key", self._unpaired(0), self._unpaired(1), ripe)
        left = [self._ripe_kinds(0, ripe), self._ripe_kinds(1, ripe)]
        for column, kinds in _AGAIN:
            for side in (0, 1):
                if kinds[1] in left[side] and kinds[0] in left[1 - side]:
                    self._pair_again(column, side, kinds, ripe)
        for side in (0, 1):
            self._find_twins(side, ripe[side])

    def _ripe_kinds(self, side: int, ripe: tuple[Mask, Mask]) -> set[int]:
        """What there is among the ripe frames without a partner."""
        frames = self._captures[side].frames
        return set(np.unique(frames["kind"][ripe[side] & (frames["partner"] == 0)]).tolist())

    def _pair_again(
        self, column: str, side: int, kinds: tuple[Kind, Kind], ripe: tuple[Mask, Mask]
    ) -> None:
        """Pair frames of two kinds, the second in the capture of this side, by what was spared."""
        frames = self._captures[side].frames
        chosen = (frames["kind"] == kinds[1]) & (frames["partner"] == 0) & ripe[side]
        if column == "head":
            chosen &= frames["flow"] >= 0
        if not chosen.any():
            return
        sound = self._unpaired(1 - side, self._captures[1 - side].frames["kind"] == kinds[0])
        rows = np.flatnonzero(chosen), sound
        self._pair_by(column, rows[side], rows[1 - side], ripe)

    def _pair_by(self, column: str, one: Indices, other: Indices, ripe: tuple[Mask, Mask]) -> None:
        """Pair the frames that have the same value, each with the one nearest in time."""
        if not len(one) or not len(other):
            return
        windows = [capture.frames for capture in self._captures]
        single, several = _groups(windows[0][column][one], windows[1][column][other])
        # As many here as there: in order, which needs no times.
        certain = [(a, b) for a, b in several if len(a) == len(b)]
        first, second = (np.concatenate(part) for part in zip(single, *certain, strict=True))
        self._accept(one[first], other[second], ripe)
        unequal = [(one[a], other[b]) for a, b in several if len(a) != len(b)]
        if unequal:
            self._accept(*self._by_time(unequal), ripe)

    def _by_time(self, groups: list[tuple[Indices, Indices]]) -> tuple[Indices, Indices]:
        """Pairs of identical frames of which one capture has more than the other.

        The shift is that of the frames around them: queues fill and drain slowly.
        """
        sides = [capture.frames for capture in self._captures]
        general = self._aligned()
        around: dict[int, tuple[Indices, Indices]] = {}
        pairs = []
        for rows in groups:
            flow = int(sides[1]["flow"][rows[1][0]])
            if flow not in around:
                known = np.flatnonzero((sides[1]["partner"] > 0) & (sides[1]["flow"] == flow))
                known = known[np.argsort(sides[1]["time"][known])]
                around[flow] = sides[1]["time"][known], sides[1]["shift"][known]
            times, shifts = around[flow]
            seen = sides[1]["time"][rows[1]]
            if len(times):
                aligned = seen - np.interp(seen, times, shifts).astype(np.int64)
            else:
                aligned = general[1][rows[1]]
            assigned = _assigned(sides[0]["time"][rows[0]], aligned)
            pairs.append((rows[0][assigned[:, 0]], rows[1][assigned[:, 1]]))
        first, second = zip(*pairs, strict=True)
        return np.concatenate(first), np.concatenate(second)

    def _accept(self, first: Indices, second: Indices, ripe: tuple[Mask, Mask]) -> None:
        """Note pairs: those that are ripe, and not absurdly far apart."""
        aligned = self._aligned()
        good = ripe[0][first] & ripe[1][second]
        good &= np.abs(aligned[0][first] - aligned[1][second]) <= HORIZON_NS
        first, second = first[good], second[good]
        if not len(first):
            return
        one, other = (capture.frames for capture in self._captures)
        one["partner"][first] = other["number"][second]
        other["partner"][second] = one["number"][first]
        other["shift"][second] = other["time"][second] - one["time"][first]
        # A damaged frame belongs to the flow of the one that is not.
        sound = one["kind"][first] <= other["kind"][second]
        flow = np.where(sound, one["flow"][first], other["flow"][second])
        one["flow"][first] = other["flow"][second] = flow
        for begun, frames in zip(self._first, (one[first], other[second]), strict=True):
            for of, number in zip(*_lowest(frames["flow"], frames["number"]), strict=True):
                begun[of] = min(number, begun.get(of, number))
        self._listener.paired(one[first], other[second])
        self._note_shift(one[first], other[second])

    def _note_shift(self, one: Frames, other: Frames) -> None:
        flow, shift = one["flow"], other["time"] - one["time"]
        order = np.lexsort((shift, flow))
        flow, shift = flow[order], shift[order]
        flows, start, count = np.unique(flow, return_index=True, return_counts=True)
        middle = shift[start + count // 2]
        self._shifts.update(zip(flows.tolist(), middle.tolist(), strict=True))
        self._shift = int(np.median(shift))
        off = np.abs(shift - np.repeat(middle, count))
        # The largest of the last, which decays slowly: a quiet moment does not predict the next.
        self._spread = max(int(off.max()), self._spread * 7 // 8)

    def _find_twins(self, side: int, ripe: Mask) -> None:
        """Note for ripe frames without a partner which frame they are a copy of."""
        frames = self._captures[side].frames
        rows = np.flatnonzero((frames["partner"] == 0) & ripe & (frames["flow"] >= 0))
        rows = rows[frames["twin"][rows] == 0]
        paired = np.flatnonzero(frames["partner"] > 0)
        if not len(rows) or not len(paired):
            return
        paired = paired[np.argsort(frames["key"][paired], kind="stable")]
        keys = frames["key"][paired]
        # The last of several identical ones: the nearest before, if the copy came after them.
        at = np.searchsorted(keys, frames["key"][rows], "right") - 1
        same = (at >= 0) & (keys[at] == frames["key"][rows])
        frames["twin"][rows[same]] = frames["partner"][paired[at[same]]]

    # Clocks.

    def _agreed_shift(self, one: Indices, other: Indices, least: int) -> int | None:
        """The shift of frames that exist only once, if there are enough and they agree."""
        windows = [capture.frames for capture in self._captures]
        (in_one, in_other), _ = _groups(windows[0]["key"][one], windows[1]["key"][other])
        shift = windows[1]["time"][other[in_other]] - windows[0]["time"][one[in_one]]
        if len(shift) < least:
            return None
        low, middle, high = np.percentile(shift, (10, 50, 90))
        return int(middle) if high - low <= HORIZON_NS // 2 or least == 1 else None

    def _jumped(self, done: list[Mask]) -> bool:
        """Whether frames that are about to be given up stand elsewhere: a clock was set."""
        for side, mask in enumerate(done):
            rows, rest = self._unpaired(side, mask), self._unpaired(1 - side)
            least = max(_EVIDENCE, len(rows) // 2)
            if len(rows) < least:
                continue
            found = self._agreed_shift(*((rows, rest) if side == 0 else (rest, rows)), least)
            before = self._shift
            if found is not None and (before is None or abs(found - before) > HORIZON_NS // 2):
                if before is not None:
                    number = int(self._captures[side].frames["number"][rows[0]])
                    self._listener.jumped(side, number, found - before)
                self._shift = found
                self._shifts.clear()
                return True
        return False


_AGAIN = (
    ("head", (Kind.GOOD, Kind.CUT)),
    ("head", (Kind.BAD, Kind.CUT)),
    ("icrc", (Kind.GOOD, Kind.BAD)),
    ("tail", (Kind.GOOD, Kind.BAD)),
    ("tail", (Kind.GOOD, Kind.STRANGER)),
    ("head", (Kind.GOOD, Kind.BAD)),
)
"""What is compared of frames that are not alike in everything, the surest first: of those that
one capture has cut off there is only the head, and of damaged ones any part may be spared."""

_EVIDENCE = 8
"""Frames that must agree on a new shift. One frame may look like another; eight do not."""


def _lowest(flow: Indices, number: Indices) -> tuple[list[int], list[int]]:
    order = np.lexsort((number, flow))
    flows, first = np.unique(flow[order], return_index=True)
    return flows.tolist(), number[order][first].tolist()


def _groups(
    one: npt.NDArray[np.uint64], other: npt.NDArray[np.uint64]
) -> tuple[tuple[Indices, Indices], list[tuple[Indices, Indices]]]:
    """Places of equal values: those that exist once on either side, and the groups of the others.

    The places of a group are in order.
    """
    # A stable sort would put the groups in order too, but takes several times as long.
    orders = np.argsort(one), np.argsort(other)
    values, first, count = np.unique(one[orders[0]], return_index=True, return_counts=True)
    begin = np.searchsorted(other[orders[1]], values, "left")
    end = np.searchsorted(other[orders[1]], values, "right")
    single = np.flatnonzero((count == 1) & (end - begin == 1))
    several = np.flatnonzero((end > begin) & ((count > 1) | (end - begin > 1)))
    groups = [
        (
            np.sort(orders[0][first[at] : first[at] + count[at]]),
            np.sort(orders[1][begin[at] : end[at]]),
        )
        for at in several.tolist()
    ]
    return (orders[0][first[single]], orders[1][begin[single]]), groups


def _assigned(one: Indices, other: Indices) -> Indices:
    """Pairs (k, 2) of identical frames, given their times, both in order.

    The pairs that are least off in time all together; leaving a frame alone counts as
    being off by `_SKIP_NS`. So one of a frame and its resend is left alone if one got
    through, and it is the one that fits less. The best pair stands, however far off.
    """
    left, right = one.tolist(), other.tolist()
    if len(left) * len(right) > _MOST_CELLS:
        return _in_turn(left, right)
    costs = [[_SKIP_NS * j for j in range(len(right) + 1)]]
    for sent in left:
        above = costs[-1]
        row = [above[0] + _SKIP_NS]
        for j, seen in enumerate(right):
            alone = min(row[j], above[j + 1]) + _SKIP_NS
            row.append(min(alone, above[j] + abs(seen - sent)))
        costs.append(row)
    pairs = []
    i, j = len(left), len(right)
    while i and j:
        if costs[i][j] == costs[i - 1][j - 1] + abs(right[j - 1] - left[i - 1]):
            i, j = i - 1, j - 1
            pairs.append((i, j))
        elif costs[i][j] == costs[i - 1][j] + _SKIP_NS:
            i -= 1
        else:
            j -= 1
    if not pairs:
        off = np.abs(np.subtract.outer(one, other))
        pairs = [divmod(int(off.argmin()), len(right))]
    return np.array(pairs[::-1], np.int64).reshape(-1, 2)


def _in_turn(left: list[int], right: list[int]) -> Indices:
    """The same for very many, in one pass: each with the next one that is not far off."""
    pairs = []
    i = j = 0
    while i < len(left) and j < len(right):
        off = right[j] - left[i]
        if abs(off) <= _SKIP_NS:
            pairs.append((i, j))
        i += off >= -_SKIP_NS
        j += off <= _SKIP_NS
    return np.array(pairs, np.int64).reshape(-1, 2)
