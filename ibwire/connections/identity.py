"""Distinguishes duplicates from retransmitted and reordered packets, by IP identification.

Some senders count up the identification of IPv4 by one a packet (Linux rxe does, over
all its queue pairs); others leave it at 0. Where it counts up, it decides.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt

from ibwire.connections.packets import Rows, TransportPacket
from ibwire.connections.steps import steps

_Value = TypeVar("_Value")

KEEP: Final = 64
"""Newest packets of a kind that are remembered, to recognise their duplicates."""
DUPLICATE_NS: Final = 1_000_000
"""Without IP identifications, a packet that arrives again sooner than this and without a cause
is a duplicate: an ACK timer lasts longer, and a mirror sends its copies close together."""
COPY_NS: Final = 100_000
"""A request that arrives again later than this, unanswered, may have been retransmitted by a timer:
that of an ACK timeout of 5, the shortest that HCCL_RDMA_TIMEOUT of Ascend takes, lasts 131 us (IBTA
9.7.6.1.3)."""
REORDER_IDS: Final = 1024
"""The IP identification of a reordered packet is at most so far back."""


@dataclass(slots=True, eq=False)
class Identity:
    """The IP identifications of one direction."""

    high: int = -1
    """Of the newest packet; -1 before the first."""
    first: int = -1
    """Of the first packet; -1 before it."""
    counts_up: bool = False
    _parts: list[_Ids | dict[int, int]] = field(default_factory=list)
    """The newest packets, oldest first: as arrays, or ICRCs by identification. They are looked up
    where they are, by `icrc_of`."""

    def icrc_of(self, ip_id: int) -> int:
        """The ICRC of the newest packet with this identification; -1 where none is among the newest
        ones."""
        newer = 0
        for part in reversed(self._parts):
            if isinstance(part, dict):
                found, place = part.get(ip_id, -1), 0
            else:
                place = part.place(ip_id)
                found = -1 if place < 0 else int(part.icrc[part.start + place])
            newer += len(part)
            if found >= 0:
                # With more packets after it, it may be forgotten.
                return found if newer - place <= KEEP else self.newest.get(ip_id, -1)
        return -1

    @property
    def newest(self) -> dict[int, int]:
        """ICRC by identification, of the newest packets, oldest first."""
        parts = self._parts
        if len(parts) == 1 and isinstance(parts[0], dict):
            return parts[0]
        newest: dict[int, int] = {}
        for part in parts:
            newest = _renewed(newest, part if isinstance(part, dict) else part.icrcs())
        self._parts[:] = [newest] if newest else []
        return newest

    def note(self, packet: TransportPacket) -> int:
        """Remember a packet; returns how many identifications it has passed over.

        -1 when it has one of the identifications that were passed over.
        """
        ip_id = packet.ip_id
        if ip_id < 0:
            return 0
        step = ip_id - self.high & 0xFFFF
        skipped = 0
        if self.high < 0:
            self.first = self.high = ip_id
        elif 0 < step <= 0x10000 - REORDER_IDS:
            self.high, self.counts_up = ip_id, step < REORDER_IDS
            skipped = step - 1
        elif step and self.icrc_of(ip_id) < 0 and not self._precedes_all(ip_id):
            skipped = -1
        self._remember(ip_id, packet.icrc)
        return skipped

    def note_many(
        self, ip_id: npt.NDArray[np.int32], icrc: npt.NDArray[np.uint32]
    ) -> npt.NDArray[np.int64]:
        """Remember (n,) packets in order: all identifications the same, or each ahead.

        Returns (n,) how many identifications each has passed over.
        """
        if ip_id[0] < 0:
            return np.zeros(len(ip_id), np.int64)
        step = steps(ip_id, int(ip_id[0]) if self.high < 0 else self.high) & 0xFFFF
        moved = step[step > 0]
        if len(moved):
            self.counts_up = bool(moved[-1] < REORDER_IDS)
        self.high = int(ip_id[-1])
        if len(moved):
            start = max(len(ip_id) - KEEP, 0)
            kept = ip_id[start:].copy(), icrc[start:].copy()
            self.remember(*kept, 0, len(ip_id) - start, last=self.high, ahead=int(step.sum()))
        else:
            self._remember(self.high, int(icrc[-1]))
        return np.maximum(step.astype(np.int64) - 1, 0)

    def remember(
        self,
        ip_id: npt.NDArray[np.integer[Any]],
        icrc: npt.NDArray[np.uint32],
        start: int,
        end: int,
        *,
        last: int,
        ahead: int,
    ) -> None:
        """Remember the packets at these places of arrays, which it keeps until `copy_kept`.

        The identification of each is ahead of the one before. last: that of the last one. ahead:
        how far it is at most ahead of the first one.
        """
        parts = self._parts
        if len(parts) == PARTS:
            parts[:] = [self.newest]
        parts.append(_Ids(ip_id, icrc, max(start, end - KEEP), end, last, ahead))
        newer, place = 0, len(parts)
        while place and newer < KEEP:
            place -= 1
            part = parts[place]
            if isinstance(part, _Ids):
                # The first may repeat the last identification of the part before.
                newer += part.end - part.start - 1
        if place:
            del parts[:place]

    def copy_kept(self) -> None:
        """Copy what is kept of larger arrays, so that those are freed."""
        for part in self._parts:
            if isinstance(part, _Ids):
                part.copy_kept()

    def _remember(self, ip_id: int, icrc: int) -> None:
        parts = self._parts
        newest = parts[-1] if parts else None
        if not isinstance(newest, dict):
            if len(parts) == PARTS:
                newest = self.newest
            else:
                newest = {}
                parts.append(newest)
        if ip_id in newest:
            del newest[ip_id]
        newest[ip_id] = icrc
        if len(newest) > KEEP:
            _forget_oldest(newest)
            del parts[:-1]

    def _precedes_all(self, ip_id: int) -> bool:
        """Whether a packet was sent before the first that was seen."""
        return 0 < (self.first - ip_id & 0xFFFF) < REORDER_IDS

    def unseen(self, one: TransportPacket, other: TransportPacket) -> set[int]:
        """Identifications between those of two packets that belong to no packet seen.

        Empty when the second was reordered and is older than the first.
        """
        step = other.ip_id - one.ip_id & 0xFFFF
        step = min(step, REORDER_IDS) if step <= 0x10000 - REORDER_IDS else 0
        if step <= 1:
            return set()
        return {one.ip_id + each & 0xFFFF for each in range(1, step)}.difference(self.newest)

    def decides(self, packet: TransportPacket) -> bool:
        """Whether the identification of a packet shows when it was sent."""
        return self.counts_up and packet.ip_id >= 0

    def is_overtaken(self, packet: TransportPacket, *, otherwise: bool) -> bool:
        """Whether a packet was sent before what was seen last.

        otherwise: the result where identifications do not count up.
        """
        if self.counts_up and packet.ip_id >= 0:
            return 0 < (self.high - packet.ip_id & 0xFFFF) < REORDER_IDS
        return otherwise

    def is_copy(self, packet: TransportPacket) -> bool:
        """Whether this is the same packet as an earlier one, where the identification decides."""
        return self.icrc_of(packet.ip_id) == packet.icrc

    def is_duplicate(
        self, packet: TransportPacket, before: TransportPacket | None, *, has_cause: bool
    ) -> bool:
        """Whether this is the same packet as an earlier one, and was not retransmitted.

        before: the newest of the same PSN. has_cause: something may have made the
        sender retransmit it.
        """
        if self.decides(packet):
            return self.is_copy(packet)
        if before is None or has_cause:
            return False
        same = before.icrc == packet.icrc and before.opcode == packet.opcode
        return same and packet.time_ns - before.time_ns < DUPLICATE_NS


class _Ids:
    """Identifications and ICRCs from a place of arrays on, to before another one.

    last: the last identification. ahead: how far it is at most ahead of the first one.
    """

    __slots__ = ("_ahead", "_ip_id", "_last", "_places", "end", "icrc", "start")

    def __init__(
        self,
        ip_id: npt.NDArray[np.integer[Any]],
        icrc: npt.NDArray[np.uint32],
        start: int,
        end: int,
        last: int,
        ahead: int,
    ) -> None:
        self._ip_id, self.icrc = ip_id, icrc
        self.start, self.end = start, end
        self._last, self._ahead = last, ahead
        self._places: dict[int, int] | None = None
        """By identification, made when one may be among them."""

    def __len__(self) -> int:
        return self.end - self.start

    def place(self, ip_id: int) -> int:
        """Where the newest packet with this identification is among them; -1 without one."""
        if self._last - ip_id & 0xFFFF > self._ahead:
            return -1
        if self._places is None:
            self._places = dict(zip(self._numbers(), range(len(self)), strict=True))
        return self._places.get(ip_id, -1)

    def icrcs(self) -> dict[int, int]:
        """ICRCs by identification, oldest first."""
        icrcs: list[int] = self.icrc[self.start : self.end].tolist()
        found: dict[int, int] = {}
        for ip_id, icrc in zip(self._numbers(), icrcs, strict=True):
            found.pop(ip_id, None)
            found[ip_id] = icrc
        return found

    def copy_kept(self) -> None:
        """Copy what is kept of larger arrays, so that those are freed."""
        if len(self) < len(self.icrc):
            self._ip_id = self._ip_id[self.start : self.end].copy()
            self.icrc = self.icrc[self.start : self.end].copy()
            self.start, self.end = 0, len(self)

    def _numbers(self) -> list[int]:
        numbers: list[int] = self._ip_id[self.start : self.end].tolist()
        return numbers


@dataclass(slots=True, eq=False)
class Recent:
    """The newest packets of a kind, by PSN (unwrapped)."""

    _parts: list[_Sequence | dict[int, TransportPacket]] = field(default_factory=list)
    """Packets, oldest first: in sequence as arrays, others by PSN. Looked up by `get` where they
    are, as few of them are ever needed one by one."""

    def add(self, psn: int, packet: TransportPacket) -> None:
        """Remember a packet."""
        parts = self._parts
        newest = parts[-1] if parts else None
        if not isinstance(newest, dict):
            if len(parts) == PARTS:
                self.all()
                newest = parts[0]
                assert isinstance(newest, dict)
            else:
                newest = {}
                parts.append(newest)
        if psn in newest:
            del newest[psn]
        newest[psn] = packet
        if len(newest) > KEEP:
            _forget_oldest(newest)
            del parts[:-1]

    def add_many(self, psn: npt.NDArray[np.int64], rows: Rows) -> None:
        """Remember (n,) packets in the order of their PSNs, all beyond those before."""
        psn = psn[-KEEP:].copy()
        if len(psn):
            rows = rows.take(slice(-KEEP, None)).copy()
            self.add_places(psn, rows, 0, len(psn), first=int(psn[0]), last=int(psn[-1]))

    def add_places(
        self, psn: npt.NDArray[np.int64], rows: Rows, start: int, end: int, *, first: int, last: int
    ) -> None:
        """Remember the packets at these places of arrays, which it keeps until `copy_kept`.

        They are in the order of their PSNs, of which these are the first and the last, all beyond
        those before.
        """
        parts = self._parts
        if end - start > KEEP:
            start = end - KEEP
            first = int(psn[start])
        if len(parts) == PARTS:
            self.all()
        parts.append(_Sequence(psn, rows, start, end, first, last))
        newer, place = 0, len(parts)
        while place and newer < KEEP:
            place -= 1
            part = parts[place]
            if isinstance(part, _Sequence):
                newer += part.end - part.start
        if place:
            del parts[:place]

    def copy_kept(self) -> None:
        """Copy what is kept of larger arrays, so that those are freed."""
        for part in self._parts:
            if isinstance(part, _Sequence):
                part.copy_kept()

    def get(self, psn: int) -> TransportPacket | None:
        """The newest packet of this PSN."""
        newer = 0
        for part in reversed(self._parts):
            if isinstance(part, dict):
                found, place = part.get(psn), 0
            else:
                place = part.place(psn)
                found = None if place < 0 else part.packet(place)
            newer += len(part)
            if found is not None:
                # With more packets after it, it may be forgotten.
                return found if newer - place <= KEEP else self.all().get(psn)
        return None

    @property
    def last_added(self) -> TransportPacket | None:
        """The packet that was added last."""
        newest = self._parts[-1] if self._parts else None
        if isinstance(newest, dict):
            return newest[next(reversed(newest))]
        return None if newest is None else newest.packet(len(newest) - 1)

    def psns(self) -> set[int]:
        """The PSNs of all of them."""
        found: set[int] = set()
        for part in reversed(self._parts):
            newer = list(part) if isinstance(part, dict) else part.psns()
            if len(found) + len(newer) <= KEEP:
                found.update(newer)
                continue
            for psn in reversed(newer):
                if len(found) == KEEP:
                    return found
                found.add(psn)
        return found

    def all(self) -> dict[int, TransportPacket]:
        """All of them by PSN, oldest first."""
        if len(self._parts) == 1 and isinstance(self._parts[0], dict):
            return self._parts[0]
        packets: dict[int, TransportPacket] = {}
        for part in self._parts:
            packets = _renewed(packets, part if isinstance(part, dict) else part.packets())
        self._parts[:] = [packets] if packets else []
        return packets


PARTS: Final = 16
"""Parts in which the newest packets may be."""


class _Sequence:
    """Packets in the order of their PSNs, from a place of arrays on, to before another one."""

    __slots__ = ("_first", "_last", "_psn", "_rows", "end", "start")

    def __init__(
        self,
        psn: npt.NDArray[np.int64],
        rows: Rows,
        start: int,
        end: int,
        first: int,
        last: int,
    ) -> None:
        self._psn, self._rows = psn, rows
        self.start, self.end = start, end
        self._first, self._last = first, last

    def __len__(self) -> int:
        return self.end - self.start

    def copy_kept(self) -> None:
        """Copy what is kept of larger arrays, so that those are freed."""
        if self.end - self.start < len(self._psn):
            self._psn = self._psn[self.start : self.end].copy()
            self._rows = self._rows.take(slice(self.start, self.end)).copy()
            self.start, self.end = 0, self.end - self.start

    def place(self, psn: int) -> int:
        """Where the packet of a PSN is among them; -1 without one."""
        if not self._first <= psn <= self._last:
            return -1
        if self._last - self._first == self.end - self.start - 1:
            return psn - self._first  # without a gap
        mine = self._psn[self.start : self.end]
        place = int(mine.searchsorted(psn))
        return place if int(mine[place]) == psn else -1

    def packet(self, place: int) -> TransportPacket:
        """One of them."""
        return self._rows.packet(self.start + place)

    def psns(self) -> list[int]:
        """Their PSNs."""
        psns: list[int] = self._psn[self.start : self.end].tolist()
        return psns

    def packets(self) -> dict[int, TransportPacket]:
        """All of them by PSN."""
        rows = self._rows.take(slice(self.start, self.end))
        return dict(zip(self.psns(), rows.packets(), strict=True))


def _forget_oldest(kept: dict[int, _Value]) -> None:
    """Forget the value that was kept first."""
    for oldest in kept:  # compiled, that takes less than `next(iter(kept))`
        del kept[oldest]
        return


def _renewed(kept: dict[int, _Value], newer: dict[int, _Value]) -> dict[int, _Value]:
    """Values behind those before, with the same keys in their place; the newest are kept."""
    if len(newer) >= KEEP:
        kept = dict(newer)
    else:
        if not kept.keys().isdisjoint(newer):
            for each in kept.keys() & newer.keys():
                del kept[each]
        kept.update(newer)
    if len(kept) > KEEP:
        for each in list(islice(kept, len(kept) - KEEP)):
            del kept[each]
    return kept
