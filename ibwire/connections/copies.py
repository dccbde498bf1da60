"""Packets that a capture with several interfaces has more than once."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ibwire.connections.packets import Rows


def copies(rows: Rows, interface: npt.NDArray[np.uint32]) -> int:
    """How many packets are there from another interface as well, in one chunk.

    interface: of each packet. Flow, PSN and ICRC identify a packet, and no hop changes them;
    packets without an ICRC are left out.
    """
    if not len(rows) or interface.min() == interface.max():
        return 0
    held = rows.icrc != 0
    keys = np.zeros(int(held.sum()), [("flow", "i4"), ("psn", "u4"), ("icrc", "u4")])
    for name in keys.dtype.names or ():
        keys[name] = getattr(rows, name)[held]
    packet = np.unique(keys, return_inverse=True)[1].reshape(-1)
    of_packet = interface[held].astype(np.int64)
    first = np.full(len(keys), np.iinfo(np.int64).max)
    np.minimum.at(first, packet, of_packet)
    return int((of_packet > first[packet]).sum())
