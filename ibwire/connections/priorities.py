"""Which priorities the VLAN tags of a flow show, for the pauses that may have held it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from ibwire.dissect import Columns

_PRIORITIES = 8


class Priorities:
    """Priorities (PCP, IEEE 802.1Q) by flow; of several tags, those of the first and the last.

    Without a tag the priority follows from the DSCP by tables of the devices, which no packet
    shows.
    """

    def __init__(self) -> None:
        self._seen = np.zeros((0, _PRIORITIES), np.bool_)

    def take(
        self, columns: Columns, rows: npt.NDArray[np.int64], flow: npt.NDArray[np.int32]
    ) -> None:
        """Take the tags of these rows of a chunk, which belong to these flows."""
        tagged = np.flatnonzero(columns.valid("vlan.priority")[rows])
        if not len(tagged):
            return
        self._grow(int(flow[tagged].max()) + 1)
        self._seen[flow[tagged], columns["vlan.priority"][rows[tagged]]] = True
        twice = tagged[columns.valid("vlan.outer.priority")[rows[tagged]]]
        self._seen[flow[twice], columns["vlan.outer.priority"][rows[twice]]] = True

    def merge(self, later: Priorities, flows: Sequence[int]) -> None:
        """Add what a later capture shows, whose flows have these numbers here."""
        count = len(later._seen)
        self._grow(max(flows[:count], default=-1) + 1)
        for there, here in enumerate(flows[:count]):
            self._seen[here] |= later._seen[there]

    def of(self, flows: Iterable[int]) -> frozenset[int]:
        """The priorities of these flows together; none if no packet has a tag."""
        known = [flow for flow in flows if flow < len(self._seen)]
        return frozenset(np.flatnonzero(self._seen[known].any(axis=0)).tolist())

    def _grow(self, count: int) -> None:
        short = count - len(self._seen)
        if short > 0:
            more = max(short, len(self._seen))
            self._seen = np.pad(self._seen, ((0, more), (0, 0)))
