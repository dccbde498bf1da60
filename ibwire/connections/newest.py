"""The newest packets by PSN, kept as arrays until somebody looks for one."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ibwire.connections.packets import Rows, TransportPacket


class NewestPackets:
    """The newest packets, one for each PSN.

    most: how many are kept.
    """

    __slots__ = ("_arrays", "_most", "_packets", "_waiting")

    def __init__(self, most: int) -> None:
        self._most = most
        self._packets: dict[int, TransportPacket] = {}
        self._arrays: list[tuple[npt.NDArray[np.int64], Rows]] = []
        """PSNs and packets newer than those."""
        self._waiting = 0
        """How many those are."""

    def get(self, psn: int) -> TransportPacket | None:
        """The packet with this PSN."""
        if self._arrays:
            self.all()
        return self._packets.get(psn)

    def all(self) -> dict[int, TransportPacket]:
        """All by PSN, oldest first."""
        if self._arrays:
            for psns, rows in self._arrays:
                for psn, packet in zip(psns.tolist(), rows.packets(), strict=True):
                    self._put(psn, packet)
            self._arrays, self._waiting = [], 0
        return self._packets

    def put(self, psn: int, packet: TransportPacket) -> None:
        """Keep a packet in place of the one before with its PSN."""
        if self._arrays:
            self.all()
        self._put(psn, packet)

    def put_first(self, psn: int, packet: TransportPacket) -> None:
        """Keep a packet if there is none with its PSN."""
        if psn not in self.all():
            self._put(psn, packet)

    def put_many(self, psn: npt.NDArray[np.int64], rows: Rows, at: npt.NDArray[np.int64]) -> None:
        """Keep the packets at these positions of the rows; their PSNs (n,) are different."""
        at = at[-self._most :]
        if not len(at):
            return
        self._arrays.append((psn[-self._most :].copy(), rows.take(at)))
        self._waiting += len(at)
        while self._waiting - len(self._arrays[0][0]) >= self._most:
            self._waiting -= len(self._arrays.pop(0)[0])
        if self._waiting >= self._most:
            self._packets = {}

    def clear(self) -> None:
        """Forget all."""
        self._packets, self._arrays, self._waiting = {}, [], 0

    def _put(self, psn: int, packet: TransportPacket) -> None:
        self._packets.pop(psn, None)
        self._packets[psn] = packet
        if len(self._packets) > self._most:
            del self._packets[next(iter(self._packets))]
