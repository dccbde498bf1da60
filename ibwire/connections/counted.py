"""What was counted of connections without trackers, as rows of arrays.

The objects of a connection (`DirectionCounts`, `Identity`, `Ending`) take 2 kB, most of it for what
regular packets never change. Here the others are rows of arrays, from which the objects of a
connection are made when they are read. Nothing is added to them: the capture is over.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ibwire.base.histogram import percentiles
from ibwire.connections.counts import DirectionCounts, Figures
from ibwire.connections.ending import Ending, OpenRequest, Trouble
from ibwire.connections.identity import Identity
from ibwire.connections.opcode_sets import VERB

VERBS = sorted(set(VERB.values()))

Index = npt.NDArray[np.int64]


class Lists(NamedTuple):
    """Pairs of numbers, those of each side together, in the order of the sides."""

    side: Index
    """(pairs,) ascending."""
    one: Index
    other: Index


class Counted:
    """What was counted of many connections, by their places here, from 0.

    rows: (sides,) of `ROW`; a *side* is one end of a connection: twice its place, plus the end.
    messages: verbs, by their places in `VERBS`, and how many messages each has. latencies: buckets
    of a histogram, and how many messages are in each. named: verbs of open messages, and the
    numbers of their first packets.
    """

    def __init__(
        self, rows: npt.NDArray[np.void], *, messages: Lists, latencies: Lists, named: Lists
    ) -> None:
        self._rows = rows.tobytes()
        self._messages = _Pairs(messages, len(rows))
        self._latencies = _Pairs(latencies, len(rows))
        self._named = _Pairs(named, len(rows))
        both = rows.reshape(-1, 2)
        self.is_quiet: list[bool] = (both["trouble"].max(axis=1) == 0).tolist()
        """By place, whether there was no trouble when the capture ended."""
        self.open_messages: list[int] = both["open_messages"].sum(axis=1).tolist()
        """By place, of both ends."""
        self.packets: list[int] = both["packets"].sum(axis=1).tolist()
        """By place, of both directions."""
        self._newest: tuple[int, tuple[DirectionCounts, DirectionCounts]] | None = None
        """The place whose counts were read last, and these: they are often read again at once."""

    def has_messages(self, place: int, end: int) -> bool:
        """Whether the last request of a message of this end was seen."""
        return self._messages.has(2 * place + end)

    def directions(self, place: int) -> tuple[DirectionCounts, DirectionCounts]:
        """The counts of both directions."""
        if self._newest is None or self._newest[0] != place:
            self._newest = place, (self._counts(2 * place), self._counts(2 * place + 1))
        return self._newest[1]

    def direction(self, place: int, way: int) -> DirectionCounts:
        """The counts of one direction."""
        if self._newest is not None and self._newest[0] == place:
            return self._newest[1][way]
        return self._counts(2 * place + way)

    def figures(self, sides: Sequence[int]) -> list[Figures]:
        """What a table shows of each of these sides, all of them at once."""
        rows = np.frombuffer(self._rows, ROW)[sides]
        size = np.where(rows["message_bytes"] > 0, rows["message_bytes"], rows["payload_bytes"])
        elapsed = rows["last_ns"] - rows["first_ns"]
        rate = 8e9 * rows["message_bytes"] / np.maximum(elapsed, 1)
        goodput = [
            round(each) if lasts else None
            for each, lasts in zip(rate.tolist(), (elapsed > 0).tolist(), strict=True)
        ]
        return [
            Figures._make(each)
            for each in zip(
                rows["packets"].tolist(),
                [{VERBS[verb]: count for verb, count in self._messages.of(side)} for side in sides],
                size.tolist(),
                goodput,
                *(self._percentile(sides, rows, percent) for percent in (50, 99)),
                strict=True,
            )
        ]

    def _percentile(
        self, sides: Sequence[int], rows: npt.NDArray[np.void], percent: int
    ) -> list[int | None]:
        """The latency that so many of the messages of each side do not exceed."""
        low, high = rows["latency_low"], rows["latency_high"]
        index, below, starts, ends = self._latencies.parts(sides)
        return percentiles(index, below, (starts, ends), (low, high), percent)

    def identities(self, place: int) -> tuple[Identity, Identity]:
        """Whether the IP identifications of each direction count up; nothing else is kept."""
        one, other = self._row(2 * place), self._row(2 * place + 1)
        return Identity(counts_up=one.counts_up), Identity(counts_up=other.counts_up)

    def endings(self, place: int) -> tuple[Ending, Ending]:
        """How the requests of each end stood when the capture ended."""
        return self._ending(2 * place), self._ending(2 * place + 1)

    def unacknowledged(self, place: int) -> list[tuple[int, int]]:
        """First PSN and count of the requests of each end that were not acknowledged."""
        rows = self._row(2 * place), self._row(2 * place + 1)
        return [(row.unacknowledged_psn, row.unacknowledged) for row in rows]

    def _row(self, side: int) -> Row:
        return Row._make(_STRUCT.unpack_from(self._rows, side * _STRUCT.size))

    def _counts(self, side: int) -> DirectionCounts:
        counts, row = DirectionCounts(), self._row(side)
        if row.packets:
            counts.packets, counts.bytes, counts.payload_bytes = row[:3]
            counts.first_ns, counts.last_ns = row.first_ns, row.last_ns
        counts.skipped_ids, counts.skipped_soon = row.skipped_ids, row.skipped_soon
        counts.max_outstanding = row.max_outstanding
        for verb, count in self._messages.of(side):
            counts.messages[VERBS[verb]] = count
        if row.completed:
            counts.completed = counts.acked_messages = row.completed
            counts.message_bytes, counts.coalesced = row.message_bytes, row.coalesced
            counts.acks = row.acks
            buckets = dict(self._latencies.of(side))
            counts.latency.add_buckets(buckets, row.latency_low, row.latency_high)
        if row.gives_credits:
            counts.credit_codes = row.lowest_credits, row.highest_credits
        return counts

    def _ending(self, side: int) -> Ending:
        row = self._row(side)
        named = tuple(OpenRequest(VERBS[verb], number) for verb, number in self._named.of(side))
        return Ending(row.open_messages, TROUBLES[row.trouble], row.silence_ns, named)


class _Pairs:
    """The pairs of numbers of each side."""

    def __init__(self, lists: Lists, sides: int) -> None:
        ends = np.searchsorted(lists.side, np.arange(sides + 1)).astype(np.uint32)
        # Elements and slices of a memoryview are read faster than those of an array.
        self._ends = ends.data
        self._one = lists.one.astype(np.uint16).data
        self._other = lists.other.astype(np.int64).data
        self._below: Index | None = None
        """The sums of the second numbers before each pair, made when they are first asked for."""

    def has(self, side: int) -> bool:
        """Whether there is a pair of this side."""
        return self._ends[side] != self._ends[side + 1]

    def parts(self, sides: Sequence[int]) -> tuple[npt.NDArray[np.uint16], Index, Index, Index]:
        """The first numbers of all pairs, the sums of the second ones before each pair and of all,
        and where the pairs of each of these sides begin and end.
        """
        if self._below is None:
            self._below = np.concatenate([[0], np.cumsum(np.asarray(self._other))])
        ends, at = np.asarray(self._ends), np.asarray(sides, np.int64)
        one = np.asarray(self._one)
        return one, self._below, ends[at].astype(np.int64), ends[at + 1].astype(np.int64)

    def of(self, side: int) -> list[tuple[int, int]]:
        """The pairs of one side."""
        start, end = self._ends[side], self._ends[side + 1]
        return list(zip(self._one[start:end], self._other[start:end], strict=True))


class Row(NamedTuple):
    """Counts of one direction, and how the requests of its sender ended."""

    packets: int
    bytes: int
    payload_bytes: int
    first_ns: int
    last_ns: int
    skipped_ids: int
    skipped_soon: int
    counts_up: bool
    """The IP identifications do."""
    max_outstanding: int
    completed: int
    """Messages; each of them is acknowledged."""
    coalesced: int
    acks: int
    message_bytes: int
    latency_low: int
    latency_high: int
    gives_credits: bool
    lowest_credits: int
    highest_credits: int
    open_messages: int
    trouble: int
    """Its place in `TROUBLES`."""
    silence_ns: int
    unacknowledged_psn: int
    unacknowledged: int


_FORMAT = "iqqqqqq?qiiiqqq?bbibqiq"
_STRUCT = Struct(f"<{_FORMAT}")
ROW = np.dtype(list(zip(Row._fields, [f"<{_NUMPY}" for _NUMPY in _FORMAT], strict=True)))
"""A `Row` in an array."""
TROUBLES = (None, *Trouble)
