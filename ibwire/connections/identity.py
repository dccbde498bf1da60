"""Distinguishes duplicates from retransmitted and reordered packets, by IP identification.

Some senders count up the identification of IPv4 by one a packet (Linux rxe does, over
all its queue pairs); others leave it at 0. Where it counts up, it decides.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import islice
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from ibwire.connections.packets import Rows, TransportPacket
from ibwire.connections.steps import steps

_Value = TypeVar("_Value")

KEEP = 64
"""Newest packets of a kind that are remembered, to recognise their duplicates."""
DUPLICATE_NS = 1_000_000
"""Without IP identifications, a packet that arrives again sooner than this and without a cause
is a duplicate: an ACK timer lasts longer, and a mirror sends its copies close together."""
COPY_NS = 100_000
"""A request that arrives again later than this, unanswered, may have been retransmitted by a timer:
that of an ACK timeout of 5, the shortest that HCCL_RDMA_TIMEOUT of Ascend takes, lasts 131 us (IBTA
9.7.6.1.3)."""
REORDER_IDS = 1024
"""The IP identification of a reordered packet is at most so far back."""


@dataclass(slots=True, eq=False)
class Identity:
    """The IP identifications of one direction."""

    high: int = -1
    """Of the newest packet; -1 before the first."""
    first: int = -1
    """Of the first packet; -1 before it."""
    counts_up: bool = False
    _newest: dict[int, int] = field(default_factory=dict)
    _waiting: tuple[npt.NDArray[np.int32], npt.NDArray[np.uint32]] | None = None
    """Identifications and ICRCs that are not in `_newest` yet, so that they stay arrays."""

    @property
    def newest(self) -> dict[int, int]:
        """ICRC by identification, of the newest packets."""
        if self._waiting is not None:
            (ip_id, icrc), self._waiting = self._waiting, None
            numbers, icrcs = ip_id.tolist(), icrc.tolist()
            waiting = dict(zip(numbers, icrcs, strict=True))
            if len(waiting) == len(numbers):
                _renew(self._newest, waiting)
            else:
                for each, value in zip(numbers, icrcs, strict=True):
                    self._remember(each, value)
        return self._newest

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
        elif step and ip_id not in self.newest and not self._precedes_all(ip_id):
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
        self.remember(ip_id, icrc)
        return np.maximum(step.astype(np.int64) - 1, 0)

    def remember(self, ip_id: npt.NDArray[np.int32], icrc: npt.NDArray[np.uint32]) -> None:
        """Remember the ICRCs of packets: all identifications the same, or each ahead."""
        last = -KEEP if len(ip_id) > 1 and ip_id[0] != ip_id[1] else -1
        ip_id, icrc = ip_id[last:], icrc[last:]
        if self._waiting is not None and len(ip_id) < KEEP:
            before, values = self._waiting
            kept = len(before) - int(before[-1] == ip_id[0])
            ip_id = np.concatenate([before[:kept], ip_id])[-KEEP:]
            icrc = np.concatenate([values[:kept], icrc])[-KEEP:]
        else:
            ip_id, icrc = ip_id.copy(), icrc.copy()  # they outlive the block
        self._waiting = ip_id, icrc

    def _remember(self, ip_id: int, icrc: int) -> None:
        newest = self._newest if self._waiting is None else self.newest
        newest.pop(ip_id, None)
        newest[ip_id] = icrc
        if len(newest) > KEEP:
            del newest[next(iter(newest))]

    def _precedes_all(self, ip_id: int) -> bool:
        """Whether a packet was sent before the first that was seen."""
        return 0 < (self.first - ip_id & 0xFFFF) < REORDER_IDS

    def unseen(self, one: TransportPacket, other: TransportPacket) -> set[int]:
        """Identifications between those of two packets that belong to no packet seen.

        Empty when the second was reordered and is older than the first.
        """
        step = other.ip_id - one.ip_id & 0xFFFF
        step = min(step, REORDER_IDS) if step <= 0x10000 - REORDER_IDS else 0
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
        return self.newest.get(packet.ip_id) == packet.icrc

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
        newest.pop(psn, None)
        newest[psn] = packet
        if len(newest) > KEEP:
            del newest[next(iter(newest))]
            del parts[:-1]

    def add_many(self, psn: npt.NDArray[np.int64], rows: Rows) -> None:
        """Remember (n,) packets in the order of their PSNs, all beyond those before."""
        psn, rows = psn[-KEEP:], rows.take(slice(-KEEP, None))
        parts = self._parts
        before = parts[-1] if parts else None
        if isinstance(before, _Sequence) and len(psn) < KEEP:
            parts.pop()
            psn = np.concatenate([before.psn, psn])[-KEEP:]
            rows = Rows.concatenate([before.rows, rows]).take(slice(-KEEP, None))
        if len(psn) == KEEP:
            parts.clear()
        elif len(parts) == PARTS:
            self.all()
        if len(psn):
            parts.append(_Sequence(psn.copy(), rows.copy()))  # they outlive the block

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

    def all(self) -> dict[int, TransportPacket]:
        """All of them by PSN, oldest first."""
        if len(self._parts) == 1 and isinstance(self._parts[0], dict):
            return self._parts[0]
        packets: dict[int, TransportPacket] = {}
        for part in self._parts:
            _renew(packets, part if isinstance(part, dict) else part.packets())
        self._parts[:] = [packets] if packets else []
        return packets


PARTS = 8
"""Parts in which the newest packets may be."""


@dataclass(frozen=True, slots=True, eq=False)
class _Sequence:
    """Packets in the order of their PSNs (n,), as arrays."""

    psn: npt.NDArray[np.int64]
    rows: Rows

    def __len__(self) -> int:
        return len(self.rows)

    def place(self, psn: int) -> int:
        """Where the packet of a PSN is; -1 without one."""
        place = int(self.psn.searchsorted(psn))
        return place if place < len(self.psn) and self.psn[place] == psn else -1

    def packet(self, place: int) -> TransportPacket:
        """One of them."""
        return self.rows.take(slice(place, place + 1)).packets()[0]

    def packets(self) -> dict[int, TransportPacket]:
        """All of them by PSN."""
        return dict(zip(self.psn.tolist(), self.rows.packets(), strict=True))


def _renew(kept: dict[int, _Value], newer: dict[int, _Value]) -> None:
    """Put values behind those before, with the same keys in their place; the newest are kept."""
    for each in kept.keys() & newer.keys():
        del kept[each]
    kept.update(newer)
    for each in list(islice(kept, max(len(kept) - KEEP, 0))):
        del kept[each]
