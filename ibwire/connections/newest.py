"""The newest packets by PSN, kept as arrays until somebody looks for one."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from ibwire.connections.packets import Rows, TransportPacket

PARTS: Final = 32
"""Parts in which the packets may be."""


class NewestPackets:
    """The newest packets, one for each PSN.

    most: how many are kept.
    """

    __slots__ = ("_count", "_most", "_parts")

    def __init__(self, most: int) -> None:
        self._most = most
        self._parts: list[_Array | dict[int, TransportPacket]] = []
        """Oldest first; a packet takes the place of those with its PSN in older parts. They are
        looked up where they are, as few are ever needed one by one."""
        self._count = 0
        """Packets in all parts, at least: also those whose place others have taken."""

    def get(self, psn: int) -> TransportPacket | None:
        """The packet with this PSN."""
        newer = 0
        for part in reversed(self._parts):
            found = part.get(psn)
            newer += len(part)
            if found is not None:
                # With more packets after it, it may be forgotten.
                return found if newer <= self._most else self.all().get(psn)
        return None

    def all(self) -> dict[int, TransportPacket]:
        """All by PSN, oldest first."""
        parts = self._parts
        if len(parts) == 1 and isinstance(parts[0], dict):
            return parts[0]
        packets: dict[int, TransportPacket] = {}
        for part in parts:
            each = part if isinstance(part, dict) else part.packets()
            for psn in packets.keys() & each.keys():
                del packets[psn]
            packets.update(each)
        for psn in list(packets)[: max(len(packets) - self._most, 0)]:
            del packets[psn]
        self._parts, self._count = [packets], len(packets)
        return packets

    def put(self, psn: int, packet: TransportPacket) -> None:
        """Keep a packet in place of the one before with its PSN."""
        newest = self._parts[-1] if self._parts else None
        if not isinstance(newest, dict):
            newest = {}
            self._add(newest)
        if psn in newest:
            del newest[psn]
        else:
            self._count += 1
        newest[psn] = packet
        if len(newest) > self._most:
            del newest[next(iter(newest))]
            self._parts, self._count = [newest], len(newest)

    def put_first(self, psn: int, packet: TransportPacket) -> None:
        """Keep a packet if there is none with its PSN."""
        if not self._has(psn):
            self.put(psn, packet)

    def put_many(self, psn: npt.NDArray[np.int64], rows: Rows, at: npt.NDArray[np.int64]) -> None:
        """Keep the packets at these positions of the rows; their PSNs (n,) go up."""
        at = at[-self._most :]
        if len(at):
            self._add(_Array(psn[-self._most :].copy(), rows.take(at)))

    def clear(self) -> None:
        """Forget all."""
        self._parts, self._count = [], 0

    def _has(self, psn: int) -> bool:
        """Whether `get` finds a packet, which it would make."""
        newer = 0
        for part in reversed(self._parts):
            newer += len(part)
            is_here = psn in part if isinstance(part, dict) else part.place(psn) >= 0
            if is_here:
                return newer <= self._most or psn in self.all()
        return False

    def _add(self, part: _Array | dict[int, TransportPacket]) -> None:
        """Begin a part, and forget parts that are older than the newest packets."""
        self._parts.append(part)
        self._count += len(part)
        if self._count >= 2 * self._most:
            self._forget()
        if len(self._parts) > PARTS:
            newest = self._parts.pop()
            kept = self.all()
            if newest is not kept:
                self._parts.append(newest)
                self._count = len(kept) + len(newest)

    def _forget(self) -> None:
        """Drop the parts in whose place there are enough newer packets."""
        newer, lowest = 0, 1 << 24
        for place in reversed(range(len(self._parts))):
            first, last = _range_of(self._parts[place])
            if not first <= last < lowest:
                self._forget_overlapping()
                return
            newer, lowest = newer + len(self._parts[place]), first
            if newer >= self._most:
                del self._parts[:place]
                break
        self._count = sum(map(len, self._parts))

    def _forget_overlapping(self) -> None:
        """The same where several parts may have a PSN."""
        newer: set[int] = set()
        for place in reversed(range(len(self._parts))):
            newer.update(_psns(self._parts[place]))
            if len(newer) >= self._most:
                del self._parts[:place]
                break
        self._count = sum(map(len, self._parts))


class _Array:
    """Packets with PSNs in ascending order (n,), which may begin again from 0 once."""

    __slots__ = ("_size", "first", "last", "psn", "rows")

    def __init__(self, psn: npt.NDArray[np.int64], rows: Rows) -> None:
        self.psn, self.rows = psn, rows
        self.first, self.last, self._size = int(psn[0]), int(psn[-1]), len(psn)

    def __len__(self) -> int:
        return self._size

    def get(self, psn: int) -> TransportPacket | None:
        """The packet with this PSN."""
        place = self.place(psn)
        return None if place < 0 else self.rows.packet(place)

    def place(self, psn: int) -> int:
        """Where the packet with this PSN is among them; -1 without one."""
        if self.first <= self.last and not self.first <= psn <= self.last:
            return -1
        if self.last - self.first == self._size - 1:  # as without READs
            return psn - self.first
        found = (self.psn == psn).nonzero()[0]
        return int(found[0]) if len(found) else -1

    def packets(self) -> dict[int, TransportPacket]:
        """All of them by PSN."""
        return dict(zip(self.psn.tolist(), self.rows.packets(), strict=True))


def _range_of(part: _Array | dict[int, TransportPacket]) -> tuple[int, int]:
    """The first and the last PSN of a part; the first is larger where PSNs begin again from 0."""
    if isinstance(part, dict):
        return (min(part), max(part)) if part else (0, -1)
    return part.first, part.last


def _psns(part: _Array | dict[int, TransportPacket]) -> list[int]:
    """The PSNs of a part."""
    if isinstance(part, dict):
        return list(part)
    psns: list[int] = part.psn.tolist()
    return psns
