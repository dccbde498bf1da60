"""The packets of flows that wait for their other direction."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ibwire.connections.packets import ROW, Rows


class Parked:
    """Packets of flows that belong to no connection yet, in the order of the capture.

    parts: those that there are, of one flow after the other.
    """

    def __init__(self, *parts: Rows) -> None:
        rows = Rows.concatenate([Rows(np.empty(0, ROW)), *parts])
        self._parts = [rows.take(rows.order())]

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    def add(self, rows: Rows) -> None:
        """Keep some later packets."""
        self._parts = [*(part for part in self._parts if len(part)), rows]

    def rows(self) -> Rows:
        """All of them."""
        self._parts = [Rows.concatenate(self._parts)]
        return self._parts[0]

    def flows(self, least: int = 1) -> frozenset[int]:
        """The flows that have at least so many packets."""
        return frozenset(np.flatnonzero(np.bincount(self.rows().flow) >= least).tolist())

    def apart(self) -> dict[int, Rows]:
        """The packets of each flow."""
        rows = self.rows()
        rows = rows.take(np.argsort(rows.flow, kind="stable"))
        flows, starts = np.unique(rows.flow, return_index=True)
        ends = [*starts[1:].tolist(), len(rows)]
        return {
            flow: rows.take(slice(start, end))
            for flow, start, end in zip(flows.tolist(), starts.tolist(), ends, strict=False)
        }

    def pop(self, flows: Sequence[int]) -> Rows:
        """The packets of these flows, which are kept no longer."""
        return self._split(np.array(flows, np.int64))

    def drop_damaged(self) -> int:
        """Drop flows that have only damaged packets: the damage may be in their addresses.

        Returns how many packets those are.
        """
        rows = self.rows()
        sound = np.bincount(rows.flow, ~rows.damaged)
        return len(self._split(np.flatnonzero((sound == 0) & (np.bincount(rows.flow) > 0))))

    def _split(self, flows: npt.NDArray[np.int64]) -> Rows:
        rows = self.rows()
        is_chosen = np.zeros(1 + max(rows.flow.max(initial=0), flows.max(initial=0)), np.bool_)
        is_chosen[flows] = True
        is_mine = is_chosen[rows.flow]
        self._parts = [rows.take(~is_mine)]
        return rows.take(is_mine)
