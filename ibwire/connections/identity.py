"""What tells a copy of a packet from one that was sent again, and what was overtaken from both.

IPv4 has an identification, which some senders count up by one a packet (Linux rxe
does, over all its queue pairs); others leave it at 0. Where it counts, it decides.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ibwire.connections.packets import Rows, Seen

KEEP = 64
"""Newest packets of a kind that are remembered, to know a copy of them."""
COPY_NS = 100_000
"""What comes again sooner, unasked, is a copy when there is no IP identification to tell: an
ACK timer lasts longer, and the second copy of a mirror follows the first."""
REORDER_IDS = 1024
"""How far back the IP identification of a packet lies that was overtaken."""


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

    def note(self, packet: Seen) -> int:
        """Remember a packet; returns how many identifications it has passed over.

        -1 when it was one of those.
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
        """Remember (n,) packets of which none was overtaken: all alike, or each ahead.

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
        """Whether a packet was overtaken by the first that was seen."""
        return 0 < (self.first - ip_id & 0xFFFF) < REORDER_IDS

    def unseen(self, one: Seen, other: Seen) -> set[int]:
        """Identifications between those of two packets that belong to none that was seen.

        None when the other was overtaken by the first.
        """
        step = other.ip_id - one.ip_id & 0xFFFF
        step = min(step, REORDER_IDS) if step <= 0x10000 - REORDER_IDS else 0
        return {one.ip_id + each & 0xFFFF for each in range(1, step)}.difference(self.newest)

    def is_overtaken(self, packet: Seen, otherwise: bool) -> bool:
        """Whether a packet was sent before what was seen last.

        otherwise: the answer where identifications do not count up.
        """
        if self.counts_up and packet.ip_id >= 0:
            return 0 < (self.high - packet.ip_id & 0xFFFF) < REORDER_IDS
        return otherwise

    def is_copy(self, packet: Seen, before: Seen | None, has_cause: bool) -> bool:
        """Whether this is the same packet as one before, and not one that was sent again.

        before: the newest of the same PSN. has_cause: something may have made the
        sender send it again.
        """
        if self.counts_up and packet.ip_id >= 0:
            return self.newest.get(packet.ip_id) == packet.icrc
        if before is None or has_cause:
            return False
        same = before.icrc == packet.icrc and before.opcode == packet.opcode
        return same and packet.time_ns - before.time_ns < COPY_NS


@dataclass(slots=True, eq=False)
class Recent:
    """The newest packets of a kind, by PSN (unwrapped)."""

    _packets: dict[int, Seen] = field(default_factory=dict)
    _psn: list[int] = field(default_factory=list)
    _rows: Rows | None = None
    """Newest packets that nobody has asked for yet, so that they stay arrays."""

    def add(self, psn: int, packet: Seen) -> None:
        """Remember a packet."""
        self._unpack()
        self._put(psn, packet)

    def add_many(self, psn: npt.NDArray[np.int64], rows: Rows, at: npt.NDArray[np.int64]) -> None:
        """Remember the packets at these positions of the rows."""
        if len(at) < KEEP:
            self._unpack()
            for number, packet in zip(psn.tolist(), rows.take(at).seen(), strict=True):
                self._put(number, packet)
            return
        self._packets = {}
        self._psn = psn[-KEEP:].tolist()
        self._rows = rows.take(at[-KEEP:])

    def get(self, psn: int) -> Seen | None:
        """The newest packet of this PSN."""
        self._unpack()
        return self._packets.get(psn)

    @property
    def newest(self) -> Seen | None:
        """The one that was added last."""
        self._unpack()
        return self._packets[next(reversed(self._packets))] if self._packets else None

    def all(self) -> dict[int, Seen]:
        """All of them by PSN, oldest first."""
        self._unpack()
        return self._packets

    def _unpack(self) -> None:
        if self._rows is not None:
            self._packets = dict(zip(self._psn, self._rows.seen(), strict=True))
            self._rows = None

    def _put(self, psn: int, packet: Seen) -> None:
        self._packets.pop(psn, None)
        self._packets[psn] = packet
        if len(self._packets) > KEEP:
            del self._packets[next(iter(self._packets))]
