"""The points of a capture with several interfaces: each packet counts at the first that has it."""

from __future__ import annotations

import os
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ibwire.connections.flow import Flows
from ibwire.connections.packets import Rows, known, read
from ibwire.dissect import Columns

RECENT = 1 << 12
"""Packets of earlier chunks that are remembered: those of which a copy may still come."""
SERIAL = 0.9
"""Two interfaces are on one path if the one with fewer packets shares so many with the other. On
parallel paths they share only retransmissions."""

FEWEST = 32
"""Different packets at the begin of a capture that show whether each is there several times."""

_Numbers = npt.NDArray[np.int64]
_Mask = npt.NDArray[np.bool_]

_IDENTITY = ("flow", "opcode", "psn", "size", "syndrome", "msn", "va", "ip_id", "icrc")
"""What no hop changes; the ICRC covers the rest, where it was captured."""


# Odd random numbers, so that packets that are taken for each other cannot be constructed.
_FACTORS = np.frombuffer(os.urandom(8 * len(_IDENTITY)), np.uint64) | np.uint64(1)


class _Seen(NamedTuple):
    """Packets and where they were seen, as arrays (n,)."""

    key: npt.NDArray[np.uint64]
    """Equal for what no hop tells apart."""
    pair: _Numbers
    """The source and the destination, as a number."""
    interface: _Numbers
    marked: _Mask

    def then(self, later: _Seen) -> _Seen:
        return _Seen(
            np.concatenate([self.key, later.key]),
            np.concatenate([self.pair, later.pair]),
            np.concatenate([self.interface, later.interface]),
            np.concatenate([self.marked, later.marked]),
        )

    def newest(self) -> _Seen:
        at = slice(-RECENT, None)
        return _Seen(self.key[at], self.pair[at], self.interface[at], self.marked[at])


class Points:
    """Finds the packets of a capture that were already captured at another interface.

    Between two hosts the interfaces of one path are recognised by the packets that they share. The
    n-th time that an interface has a packet stands for the n-th time that it was sent: it counts
    where the first of them has it. A capture with one interface is taken as it is.
    """

    def __init__(self) -> None:
        self.copies = 0
        """Packets of the last chunk that are left out."""
        self.marked: _Mask | None = None
        """(n,) which frames of the last chunk have copies with the CE mark, if any are left out."""
        self._flows = Flows()
        self._pairs: dict[tuple[str, str], int] = {}
        self._pair_of_flow: list[int] = []
        self._recent: _Seen | None = None
        self._is_first = True
        self.is_unnamed = False
        """Whether nearly every packet comes several times, all from one interface: the capture may
        be of several points and not say of which."""

    def take(self, columns: Columns) -> Columns:
        """The next chunk, in which nothing is known of frames that are copies."""
        self.copies, self.marked = 0, None
        interface = columns.frames.batch.interface
        if not len(interface):
            return columns
        if self._recent is None and interface.min() == interface.max():
            if self._is_first:
                self.is_unnamed = self._are_repeated(columns)
            self._is_first = False
            return columns
        self._is_first = False
        rows = known(columns)
        if not len(rows):
            return columns
        new = self._read(columns, rows)
        seen = new if self._recent is None else self._recent.then(new)
        self._recent = seen.newest()
        first = _first(seen)
        before = len(seen.key) - len(new.key)
        copies = first[before:] != np.arange(before, len(first))
        if not copies.any():
            return columns
        self.copies = int(copies.sum())
        marked = np.zeros(columns.rows, np.bool_)
        counted = first[before:][copies & new.marked] - before
        marked[rows[counted[counted >= 0]]] = True
        self.marked = marked
        return columns.without(rows[copies])

    def _are_repeated(self, columns: Columns) -> bool:
        """Whether nearly every packet at the begin of a capture comes again.

        A sender without answers retransmits everything as well, but nothing new comes then.
        """
        rows = known(columns)[:RECENT]
        _, first, times = np.unique(
            self._read(columns, rows).key, return_index=True, return_counts=True
        )
        return (
            len(times) >= FEWEST
            and int((times > 1).sum()) >= SERIAL * len(times)
            and int((first >= len(rows) // 2).sum()) * 4 >= len(times)
        )

    def _read(self, columns: Columns, rows: _Numbers) -> _Seen:
        flow = self._flows.numbers(columns, rows)
        for ends in self._flows.keys[len(self._pair_of_flow) :]:
            pair = self._pairs.setdefault((ends.src, ends.dst), len(self._pairs))
            self._pair_of_flow.append(pair)
        seen: Rows = read(columns, rows, flow)
        key = np.zeros(len(rows), np.uint64)
        for name, factor in zip(_IDENTITY, _FACTORS, strict=True):
            key += getattr(seen, name).astype(np.uint64) * factor
            key ^= key >> np.uint64(29)
        interface = columns.frames.batch.interface[rows].astype(np.int64)
        return _Seen(key, np.array(self._pair_of_flow)[flow], interface, seen.marked)


def _first(seen: _Seen) -> _Numbers:
    """(n,) which packet each one is a copy of; itself, if it counts."""
    packet = np.unique(seen.key, return_inverse=True)[1].reshape(-1).astype(np.int64)
    place = np.unique(_joined(seen.pair, seen.interface), return_inverse=True)[1].reshape(-1)
    path = _paths(packet, place)[place]
    turn = _turns(_joined(packet, seen.interface))
    same = np.unique(_joined(_joined(packet, path), turn), return_inverse=True)[1].reshape(-1)
    first = np.full(len(same), len(same))
    np.minimum.at(first, same, np.arange(len(same)))
    return first[same]


def _paths(packet: _Numbers, place: _Numbers) -> _Numbers:
    """Path by place, an interface between two hosts: places of one path have the same number."""
    size = int(place.max()) + 1
    there = np.unique(_joined(packet, place))
    packet, place = there // size, there % size
    count = np.bincount(place, minlength=size)
    shared = [np.empty(0, np.int64)]
    for distance in range(1, size):
        is_same = packet[:-distance] == packet[distance:]
        if not is_same.any():
            break
        shared.append(_joined(place[:-distance][is_same], place[distance:][is_same], size))
    path = list(range(size))
    for both, times in zip(*np.unique(np.concatenate(shared), return_counts=True), strict=True):
        one, other = divmod(int(both), size)
        if times >= SERIAL * min(count[one], count[other]):
            old, new = path[other], path[one]
            path = [new if number == old else number for number in path]
    return np.array(path)


def _turns(what: _Numbers) -> _Numbers:
    """(n,) how often each value has come before."""
    order = np.argsort(what, kind="stable")
    begins = np.diff(what[order], prepend=-1) != 0
    at = np.arange(len(what))
    turn = np.empty(len(what), np.int64)
    turn[order] = at - np.maximum.accumulate(np.where(begins, at, 0))
    return turn


def _joined(one: _Numbers, other: _Numbers, size: int | None = None) -> _Numbers:
    """(n,) one number for each pair of numbers."""
    number: _Numbers = one * (int(other.max()) + 1 if size is None else size) + other
    return number
