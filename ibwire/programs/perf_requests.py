"""What the requesting end of a test posts on a queue pair, and what must come of it.

Work requests are made once, before the traffic, and posted again and again: those that ask
for a completion and those that do not. Message `number` is work request `number` modulo
their count, which is at least as many as are outstanding at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import lcm
from typing import Protocol

from ibwire.programs.perf_contents import Contents, Pieces
from ibwire.programs.perftest import Layout, Record
from ibwire.rc.attributes import AddressVector
from ibwire.rc.memory import Access, MemoryRegion, ProtectionDomain
from ibwire.rc.work import SGE, SendFlags, SendWR, WROpcode

QKEY = 0x11111111
"""Of perftest's UD queue pairs (perftest_parameters.h DEF_QKEY)."""

ATOMIC_SIZE = 8


class Requests(Protocol):
    """What is posted on one queue pair."""

    quiet: list[SendWR]
    """Without a completion."""
    loud: list[SendWR]

    def settle(self, begin: int, end: int) -> int:
        """Messages `begin` to before `end` are completed; how many of them went wrong."""
        ...

    @property
    def how(self) -> str | None:
        """How results are verified; `None` where there are none."""
        ...


class Outgoing:
    """SENDs and WRITEs of pieces of the row that follows from the queue pair."""

    how = None

    def __init__(
        self,
        pd: ProtectionDomain,
        pieces: Pieces,
        layout: Layout,
        peer: Record,
        index: int,
        address: AddressVector | None,
        opcode: WROpcode,
    ) -> None:
        """address: of a peer that is told the way with each message, over UD."""
        region = _region(pd, len(pieces.row))
        region.write(region.iova, pieces.row)
        places = layout.places if opcode is WROpcode.RDMA_WRITE else 1

        def make(number: int) -> SendWR:
            place = peer.vaddr + number % places * layout.step
            return SendWR(
                opcode,
                [SGE(region.iova + pieces.offsets[number], layout.size, region.lkey)],
                wr_id=index,
                remote_addr=place if opcode is WROpcode.RDMA_WRITE else 0,
                rkey=peer.rkey,
                ah=address,
                remote_qpn=peer.qpn,
                remote_qkey=QKEY,
            )

        self.quiet, self.loud = _both(make, len(pieces.offsets))

    def settle(self, begin: int, end: int) -> int:
        """What arrives is for the peer to judge."""
        return 0


class Reads:
    """READs from each place of the peer's buffer in turn, each into its own piece of ours."""

    def __init__(
        self,
        pd: ProtectionDomain,
        contents: Contents,
        layout: Layout,
        peer: Record,
        index: int,
        depth: int,
    ) -> None:
        self._contents = contents
        self._size = layout.size
        self._count = lcm(layout.places, _round_up(depth, layout.places))
        region = _region(pd, self._count * layout.size)
        self._buffer = region.buffer
        self._clean = bytes(layout.size)

        def make(number: int) -> SendWR:
            return SendWR(
                WROpcode.RDMA_READ,
                [SGE(region.iova + number * layout.size, layout.size, region.lkey)],
                wr_id=index,
                remote_addr=peer.vaddr + number % layout.places * layout.step,
                rkey=peer.rkey,
            )

        self.quiet, self.loud = _both(make, self._count)

    @property
    def how(self) -> str | None:
        """As the contents are."""
        return self._contents.how

    def settle(self, begin: int, end: int) -> int:
        """Look at what has been read, and clear it so that it cannot be taken for the next."""
        wrong, size = 0, self._size
        for number in range(begin, end):
            start = number % self._count * size
            data = self._buffer[start : start + size]
            wrong += not self._contents.fits(number, data)
            data[:] = self._clean
        return wrong


class Atomics:
    """FETCH_AND_ADDs of 1, or COMPARE_AND_SWAPs that do the same, on each place in turn.

    So each place counts up by one, and each result must be the one before and 1. A
    COMPARE_AND_SWAP must know what it finds: the first on each place may only look.
    """

    def __init__(
        self,
        pd: ProtectionDomain,
        known: Pieces | None,
        layout: Layout,
        peer: Record,
        index: int,
        depth: int,
        *,
        swaps: bool,
    ) -> None:
        """known: what the places hold, if we know; swaps: whether by COMPARE_AND_SWAP, of
        which no more than there are places may be outstanding."""
        places = layout.places
        self._known = known
        self._swaps = swaps
        self._count = _round_up(depth, places)
        self._values: list[int | None] = [None] * places
        """What each place must hold now."""
        if known is not None:
            self._values = [
                int.from_bytes(known.row[offset : offset + ATOMIC_SIZE], "little")
                for offset in known.offsets
            ]
        region = _region(pd, self._count * ATOMIC_SIZE)
        self._load = region.load64

        def make(number: int) -> SendWR:
            found = self._values[number % places] or 0
            return SendWR(
                WROpcode.ATOMIC_CMP_AND_SWP if swaps else WROpcode.ATOMIC_FETCH_AND_ADD,
                [SGE(region.iova + number * ATOMIC_SIZE, ATOMIC_SIZE, region.lkey)],
                wr_id=index,
                remote_addr=peer.vaddr + number % places * layout.step,
                rkey=peer.rkey,
                compare_add=found if swaps else 1,
                swap=_after(found) if swaps else 0,
            )

        self.quiet, self.loud = _both(make, self._count)

    @property
    def how(self) -> str | None:
        """By counting."""
        first = "" if self._known else " from the first result on"
        return f"each place counts up by one{first}"

    def settle(self, begin: int, end: int) -> int:
        """Look at the results, and say what the next on the same place must find."""
        wrong, places = 0, len(self._values)
        for number in range(begin, end):
            found = self._load(number % self._count * ATOMIC_SIZE)
            place = number % places
            wrong += found != (self._values[place] if self._values[place] is not None else found)
            if self._swaps:
                wr = self.quiet[number % self._count]
                now = _after(found) if found == wr.compare_add else found
                following = (number + places) % self._count
                for other in (self.quiet[following], self.loud[following]):
                    other.compare_add, other.swap = now, _after(now)
            else:
                now = _after(found)
            self._values[place] = now
        return wrong


def _both(make: Callable[[int], SendWR], count: int) -> tuple[list[SendWR], list[SendWR]]:
    loud = [make(number) for number in range(count)]
    quiet = [replace(wr, send_flags=SendFlags(0)) for wr in loud]
    return quiet, loud


def _region(pd: ProtectionDomain, length: int) -> MemoryRegion:
    return pd.register(length, int(Access.LOCAL_WRITE))


def _round_up(count: int, unit: int) -> int:
    return -(-count // unit) * unit


def _after(value: int) -> int:
    return value + 1 & 0xFFFF_FFFF_FFFF_FFFF
