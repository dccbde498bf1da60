"""Distinguishes duplicates from retransmitted and reordered packets, by IP identification.

Some senders count up the identification of IPv4 by one a packet (Linux rxe does, over
all its queue pairs); others leave it at 0. Where it counts up, it decides.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ibwire.connections.packets import Rows, TransportPacket

KEEP = 64
"""Newest packets of a kind that are remembered, to recognise their duplicates."""
DUPLICATE_NS = 1_000_000
"""Without IP identifications, a packet that arrives again sooner than this and without a cause
is a duplicate: an ACK timer lasts longer, and a mirror sends its copies close together."""
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
    newest: dict[int, int] = field(default_factory=dict)
    """ICRC by identification, of the newest packets."""

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

    def note_many(self, ip_id: npt.NDArray[np.int32], icrc: npt.NDArray[np.uint32]) -> int:
        """Remember (n,) packets in order: all identifications the same, or each ahead.

        Returns how many identifications they have passed over.
        """
        if ip_id[0] < 0:
            return 0
        steps = np.diff(ip_id, prepend=ip_id[0] if self.high < 0 else self.high) & 0xFFFF
        moved = steps[steps > 0]
        if len(moved):
            self.counts_up = bool(moved[-1] < REORDER_IDS)
        self.high = int(ip_id[-1])
        for each, value in zip(ip_id[-KEEP:].tolist(), icrc[-KEEP:].tolist(), strict=True):
            self._remember(each, value)
        return int((moved - 1).sum())

    def _remember(self, ip_id: int, icrc: int) -> None:
        self.newest.pop(ip_id, None)
        self.newest[ip_id] = icrc
        if len(self.newest) > KEEP:
            del self.newest[next(iter(self.newest))]

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

    def is_duplicate(
        self, packet: TransportPacket, before: TransportPacket | None, *, has_cause: bool
    ) -> bool:
        """Whether this is the same packet as an earlier one, and was not retransmitted.

        before: the newest of the same PSN. has_cause: something may have made the
        sender retransmit it.
        """
        if self.counts_up and packet.ip_id >= 0:
            return self.newest.get(packet.ip_id) == packet.icrc
        if before is None or has_cause:
            return False
        same = before.icrc == packet.icrc and before.opcode == packet.opcode
        return same and packet.time_ns - before.time_ns < DUPLICATE_NS


@dataclass(slots=True, eq=False)
class Recent:
    """The newest packets of a kind, by PSN (unwrapped)."""

    _packets: dict[int, TransportPacket] = field(default_factory=dict)
    _psn: list[int] = field(default_factory=list)
    _rows: Rows | None = None
    """Newest packets that were not looked up yet, so that they stay arrays."""

    def add(self, psn: int, packet: TransportPacket) -> None:
        """Remember a packet."""
        self._unpack()
        self._put(psn, packet)

    def add_many(self, psn: npt.NDArray[np.int64], rows: Rows, at: npt.NDArray[np.int64]) -> None:
        """Remember the packets at these positions of the rows."""
        if len(at) < KEEP:
            self._unpack()
            for number, packet in zip(psn.tolist(), rows.take(at).packets(), strict=True):
                self._put(number, packet)
            return
        self._packets = {}
        self._psn = psn[-KEEP:].tolist()
        self._rows = rows.take(at[-KEEP:])

    def get(self, psn: int) -> TransportPacket | None:
        """The newest packet of this PSN."""
        self._unpack()
        return self._packets.get(psn)

    @property
    def last_added(self) -> TransportPacket | None:
        """The packet that was added last."""
        self._unpack()
        return self._packets[next(reversed(self._packets))] if self._packets else None

    def all(self) -> dict[int, TransportPacket]:
        """All of them by PSN, oldest first."""
        self._unpack()
        return self._packets

    def _unpack(self) -> None:
        if self._rows is not None:
            self._packets = dict(zip(self._psn, self._rows.packets(), strict=True))
            self._rows = None

    def _put(self, psn: int, packet: TransportPacket) -> None:
        self._packets.pop(psn, None)
        self._packets[psn] = packet
        if len(self._packets) > KEEP:
            del self._packets[next(iter(self._packets))]
