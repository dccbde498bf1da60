"""Where the sequence of a connection's packets breaks, as neighbouring packets show it.

`rounds` and `analysis` look for regular traffic only up to the next break: packets behind a break
would have to be examined again, so they are left for later. A break may be regular all the same,
and irregular packets need not be one: a wrong guess costs time and never changes the result.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ibwire.connections.connection import MTUS, Connection
from ibwire.connections.opcode_tables import (
    CONTINUES,
    IS_FULL,
    IS_READ,
    IS_RESPONSE,
    REFUSES,
)
from ibwire.connections.packets import Rows
from ibwire_layers.opcodes import OpCode, Service
from ibwire_layers.psn import HALF, MASK

Index = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

FOLLOWED = (Service.RC, Service.XRC)


class Breaks:
    """The breaks among some packets, in ascending order of positions."""

    def __init__(self, positions: list[int], count: int) -> None:
        self._positions = [*positions, count]
        self._array = np.array(self._positions, np.int64)

    def following(self, at: int) -> int:
        """Position of the first break from here on, or behind the last packet."""
        return self._positions[bisect_left(self._positions, at)]

    def following_many(self, at: Index) -> Index:
        """(n,) the same for each of these positions."""
        found: Index = self._array[np.searchsorted(self._array, at)]
        return found

    def between(self, start: int, end: int) -> Breaks:
        """Those of some of the packets."""
        first, last = bisect_left(self._positions, start), bisect_left(self._positions, end)
        return Breaks([each - start for each in self._positions[first:last]], end - start)


def find(
    connections: Sequence[Connection], rows: Rows, direction: npt.NDArray[np.uint8], counts: Index
) -> Breaks:
    """Find the breaks of reliable connections; other ones have none.

    rows: of one connection after the other. direction: (n,) which end sent each. counts:
    (connections,) how many packets each has.
    """
    mtu = np.array([each.mtu or 0 for each in connections], np.int64)
    is_followed = np.array([each.service in FOLLOWED for each in connections], np.bool_)
    opcode, psn = np.ascontiguousarray(rows.opcode), rows.psn.astype(np.int64)
    side = 2 * np.repeat(np.arange(len(counts)), counts) + direction
    is_response = IS_RESPONSE[opcode]
    is_break: Flags = rows.damaged | (is_response & (rows.syndrome >= REFUSES))
    requests = np.flatnonzero(~is_response & (opcode != OpCode.CNP))
    requests = requests[np.argsort(side[requests], kind="stable")]
    step = np.diff(psn[requests]) & MASK
    span = _spans(rows, opcode, requests[:-1], side, _path_mtus(rows, opcode, side, mtu))
    is_odd = (span > 0) & (step != span) & (np.diff(side[requests]) == 0)
    is_break[requests[1:][is_odd]] = True
    responses = np.flatnonzero(is_response)
    responses = responses[np.argsort(side[responses], kind="stable")]
    step = np.diff(psn[responses]) & MASK
    is_odd = (step == 0) | (step >= HALF) | (CONTINUES[opcode[responses[1:]]] & (step != 1))
    is_odd &= np.diff(side[responses]) == 0
    is_break[responses[1:][is_odd]] = True
    is_break &= np.repeat(is_followed, counts)
    return Breaks(np.flatnonzero(is_break).tolist(), len(rows))


def _path_mtus(rows: Rows, opcode: npt.NDArray[np.uint8], side: Index, mtu: Index) -> Index:
    """(connections,) path MTU, also where the first packet that has to fill it shows it."""
    full = np.flatnonzero(IS_FULL[opcode])[::-1]
    shown = np.zeros(len(mtu), np.int64)
    shown[side[full] >> 1] = rows.size[full]
    return np.where(mtu > 0, mtu, shown)


def _spans(
    rows: Rows, opcode: npt.NDArray[np.uint8], requests: Index, side: Index, mtu: Index
) -> Index:
    """(n,) PSNs that each of these requests takes; 0 where that is not known."""
    span = np.ones(len(requests), np.int64)
    at = np.flatnonzero(IS_READ[opcode[requests]])
    reads = requests[at]
    size, of_read = rows.dma_len[reads].astype(np.int64), mtu[side[reads] >> 1]
    wanted = np.maximum(-(-size // np.maximum(of_read, MTUS[0])), 1)
    span[at] = np.where((of_read > 0) | (size <= MTUS[0]), wanted, 0)
    return span
