"""Credits of a link: what a receiver has room for, and the flow-control packets that say so.

Each virtual lane but VL15 has its own. A sender counts the blocks of 64 bytes that it has sent; a
receiver says up to which count it may send. Counts are absolute and modulo 4096, so a
flow-control packet that is lost costs time and nothing else.

Source: IBA 7.9; docs/reference/infiniband.md#credits.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from ibwire.base.node import Frame
from ibwire_layers import crc

BLOCK: Final = 64
"""Bytes of a block."""
MODULUS: Final = 4096
LARGEST_GRANT: Final = 2048
"""Blocks that a receiver grants at most."""
FCP_SIZE: Final = 6
"""Bytes of a flow-control packet; every other packet is longer."""
NORMAL: Final = 0
INITIALIZING: Final = 1
"""Operation codes of a flow-control packet; those above are reserved."""

NO_LIMIT: Final = -1
"""FCCL before the first flow-control packet, when nothing may be sent."""
COUNT_MASK: Final = 4095  # MODULUS - 1


def blocks_of(size: int) -> int:
    """The blocks of a packet, given its bytes from the LRH to the VCRC."""
    return -(-size // BLOCK)


class SendCredits:
    """What the sender of a direction knows of a virtual lane."""

    __slots__ = ("limit", "sent")

    def __init__(self) -> None:
        self.sent = 0
        """FCTBS: blocks sent since the link came up."""
        self.limit = NO_LIMIT
        """FCCL as received last."""

    def allows(self, cost: int) -> bool:
        """Whether a packet of so many blocks may leave: all of it has credits."""
        limit = self.limit
        return limit != NO_LIMIT and (limit - self.sent - cost) & COUNT_MASK <= LARGEST_GRANT

    @property
    def left(self) -> int:
        """Blocks that may still be sent."""
        return 0 if self.limit == NO_LIMIT else (self.limit - self.sent) & COUNT_MASK


class ReceiveBuffer:
    """The buffer of a receiver for a virtual lane.

    size: its blocks, not above `LARGEST_GRANT`. step: a new limit is sent when it is higher than
    the last one by so many blocks.
    """

    __slots__ = ("accepted", "announced", "held", "leaving", "most", "size", "step")

    def __init__(self, size: int, step: int) -> None:
        self.size = size
        self.step = step
        self.accepted = 0
        """ABR: blocks received since the link came up."""
        self.held = 0
        """Blocks in the buffer."""
        self.leaving = 0
        """Those of them that are just leaving."""
        self.announced = 0
        """FCCL as sent last."""
        self.most = 0
        """The largest number of blocks that it has held."""

    def take(self, cost: int) -> bool:
        """Put a packet in; `False` if it does not fit."""
        held = self.held + cost
        if held > self.size:
            return False
        self.held = held
        if held > self.most:
            self.most = held
        self.accepted = self.accepted + cost & COUNT_MASK
        return True

    def free(self, cost: int, *, has_begun: bool = False) -> bool:
        """Take a packet out; whether the sender should be given the new limit.

        has_begun: whether `begin_to_free` was called for it.
        """
        if has_begun:
            self.leaving -= cost
        self.held -= cost
        return (self.accepted + self.size - self.held - self.announced) & COUNT_MASK >= self.step

    def begin_to_free(self, cost: int) -> bool:
        """Let a packet begin to leave; whether the sender should be given a new limit when it and
        the others that are leaving have left."""
        self.leaving += cost
        limit = self.accepted + self.size - self.held + self.leaving
        return (limit - self.announced) & COUNT_MASK >= self.step

    @property
    def limit(self) -> int:
        """FCCL: up to which count the other end may send now."""
        return self.accepted + self.size - self.held & COUNT_MASK

    def restart(self) -> None:
        """Begin to count from 0, as the link has come up again; packets stay."""
        self.accepted = self.announced = 0


def flow_control_packet(vl: int, *, sent: int, limit: int, operation: int = NORMAL) -> Frame:
    """A flow-control packet, with its LPCRC."""
    return _packed(operation << 28 | sent << 16 | vl << 12 | limit)


def read_flow_control(frame: Frame) -> tuple[int, int, int, int] | None:
    """Operation, VL, FCTBS and FCCL; `None` for a damaged packet."""
    word = int.from_bytes(frame[:4])
    if _packed(word) != frame:
        return None
    return word >> 28, word >> 12 & 15, word >> 16 & COUNT_MASK, word & COUNT_MASK


@lru_cache(maxsize=1 << 14)
def _packed(word: int) -> Frame:
    data = word.to_bytes(4)
    return data + crc.lpcrc(data)
