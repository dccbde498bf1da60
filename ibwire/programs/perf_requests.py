"""The work requests of a test, and the verification of their results.

Work requests are created once and posted repeatedly, signaled and unsignaled. Message `number`
uses work request `number` modulo their count, which is at least the number of outstanding
requests.
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
"""Q_Key of perftest's UD queue pairs (perftest_parameters.h DEF_QKEY)."""

ATOMIC_SIZE = 8


class Requests(Protocol):
    """The work requests of one queue pair."""

    unsignaled: list[SendWR]
    """Requests without a completion."""
    signaled: list[SendWR]

    def settle(self, begin: int, end: int) -> int:
        """Handle completed messages from `begin` to before `end`; returns how many are wrong."""
        ...

    @property
    def how(self) -> str | None:
        """How results are verified; `None` without results."""
        ...


class Outgoing:
    """SENDs and WRITEs of the pieces of the queue pair's byte sequence."""

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
        """address: of the peer, for UD."""
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

        self.unsignaled, self.signaled = _both(make, len(pieces.offsets))

    def settle(self, begin: int, end: int) -> int:
        """Nothing to verify: the receiver does it."""
        return 0


class Reads:
    """READs from each address of the peer's buffer in turn, each into its own memory."""

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

        self.unsignaled, self.signaled = _both(make, self._count)

    @property
    def how(self) -> str | None:
        """As its contents are."""
        return self._contents.how

    def settle(self, begin: int, end: int) -> int:
        """Verify the data and clear it, so that it cannot be mistaken for that of the next READ."""
        wrong, size = 0, self._size
        for number in range(begin, end):
            start = number % self._count * size
            data = self._buffer[start : start + size]
            wrong += not self._contents.fits(number, data)
            data[:] = self._clean
        return wrong


class Atomics:
    """FETCH_AND_ADDs of 1, or equivalent COMPARE_AND_SWAPs, on each address in turn.

    Each result must be the previous one plus 1. A COMPARE_AND_SWAP needs the current value: the
    first one at each address may fail to learn it.
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
        """known: the initial values, if known; swaps: whether with COMPARE_AND_SWAP, of which
        at most one per address may be outstanding."""
        places = layout.places
        self._known = known
        self._swaps = swaps
        self._count = _round_up(depth, places)
        self._values: list[int | None] = [None] * places
        """The expected value at each address."""
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

        self.unsignaled, self.signaled = _both(make, self._count)

    @property
    def how(self) -> str | None:
        """By counting."""
        first = "" if self._known else " from the first result on"
        return f"each address counts up by one{first}"

    def settle(self, begin: int, end: int) -> int:
        """Verify results and set the expected values of the next requests at the same address."""
        wrong, places = 0, len(self._values)
        for number in range(begin, end):
            found = self._load(number % self._count * ATOMIC_SIZE)
            place = number % places
            wrong += found != (self._values[place] if self._values[place] is not None else found)
            if self._swaps:
                wr = self.unsignaled[number % self._count]
                now = _after(found) if found == wr.compare_add else found
                following = (number + places) % self._count
                for other in (self.unsignaled[following], self.signaled[following]):
                    other.compare_add, other.swap = now, _after(now)
            else:
                now = _after(found)
            self._values[place] = now
        return wrong


def _both(make: Callable[[int], SendWR], count: int) -> tuple[list[SendWR], list[SendWR]]:
    signaled = [make(number) for number in range(count)]
    unsignaled = [replace(wr, send_flags=SendFlags(0)) for wr in signaled]
    return unsignaled, signaled


def _region(pd: ProtectionDomain, length: int) -> MemoryRegion:
    return pd.register(length, int(Access.LOCAL_WRITE))


def _round_up(count: int, unit: int) -> int:
    return -(-count // unit) * unit


def _after(value: int) -> int:
    return value + 1 & 0xFFFF_FFFF_FFFF_FFFF
