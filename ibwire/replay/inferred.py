"""Memory and keys of a recorded peer: each key and address of a request is valid, unless the
response refuses it.

Contents are known from WRITEs and from READ responses, byte by byte, each with a flag
whether it is known. They are kept in a limited number of pages, so memory does not grow
with the capture.

The responder gets a region from the key table and uses its buffer. Here that is a copy as
large as a packet, made for one access, which `release` writes back.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from ibwire.rc.memory import Access, KeyTable, MemoryRegion, ProtectionDomain
from ibwire.replay.recorded import Address

PAGE = 4096
PAGES = 16384
"""Pages that are kept: 64 MiB, and as much for the flags."""
KEYS = 128
"""Keys that a report lists."""
LARGEST_ACCESS = 4096
"""Bytes that a responder accesses at a time: one packet."""


@dataclass(slots=True)
class KeyUse:
    """The use of a key by the requests of a connection."""

    start: int
    end: int
    """First address after it."""
    access: int


Space = tuple[Address, int]
"""A host and a key: an address space."""


class Memory:
    """Bytes by host, key and address, as far as a capture shows them."""

    def __init__(self) -> None:
        self._pages: OrderedDict[tuple[Space, int], tuple[bytearray, bytearray]] = OrderedDict()

    def read(self, space: Space, va: int, size: int) -> bytearray:
        """The bytes; unknown ones are zero."""
        result = bytearray()
        for page, offset, length in _pieces(va, size):
            kept = self._pages.get((space, page))
            result += bytes(length) if kept is None else kept[0][offset : offset + length]
        return result

    def write(self, space: Space, va: int, data: bytes | bytearray) -> None:
        """Set bytes, which become known."""
        done = 0
        for page, offset, length in _pieces(va, len(data)):
            contents, known = self._page((space, page))
            contents[offset : offset + length] = data[done : done + length]
            known[offset : offset + length] = b"\x01" * length
            done += length

    def is_known(self, space: Space, va: int, size: int) -> bool:
        """Whether the capture has shown all these bytes."""
        return all(
            (kept := self._pages.get((space, page))) is not None
            and all(kept[1][offset : offset + length])
            for page, offset, length in _pieces(va, size)
        )

    def contradicts(self, space: Space, va: int, data: bytes) -> bool:
        """Whether known bytes differ from these."""
        done = 0
        for page, offset, length in _pieces(va, len(data)):
            kept = self._pages.get((space, page))
            if kept is not None:
                contents, known = kept
                held = contents[offset : offset + length]
                shown = data[done : done + length]
                if held != shown and any(
                    known[offset + i] and held[i] != shown[i] for i in range(length)
                ):
                    return True
            done += length
        return False

    def _page(self, key: tuple[Space, int]) -> tuple[bytearray, bytearray]:
        pages = self._pages
        kept = pages.get(key)
        if kept is None:
            if len(pages) >= PAGES:
                pages.popitem(last=False)
            kept = pages[key] = bytearray(PAGE), bytearray(PAGE)
        else:
            pages.move_to_end(key)
        return kept


class InferredKeys(KeyTable):
    """A key table in which every key gives access to every address, unless it is denied."""

    __slots__ = ("_host", "_memory", "_open", "denied", "use")

    def __init__(self, memory: Memory, host: Address) -> None:
        super().__init__()
        self._memory = memory
        self._host = host
        self.denied = False
        """Whether the current request has no access."""
        self.use: dict[int, KeyUse] = {}
        self._open: tuple[int, int, MemoryRegion] | None = None

    def find_remote(
        self, pd: ProtectionDomain, qp_num: int, rkey: int, va: int, length: int, access: int
    ) -> tuple[MemoryRegion, int] | None:
        """The requested bytes as a region, of a longer range only the first packet."""
        if self.denied or va + length > 1 << 64:
            return None
        self._note(rkey, va, length, access)
        size = min(length, LARGEST_ACCESS)
        contents = memoryview(self._memory.read((self._host, rkey), va, size))
        region = MemoryRegion(pd, key=rkey, buffer=contents, access=access, iova=va)
        self._open = (rkey, va, region) if access & _CHANGING else None
        return region, 0

    def find_local(
        self, pd: ProtectionDomain, lkey: int, addr: int, length: int, access: int
    ) -> MemoryRegion | None:
        """Local memory that holds zeros and keeps nothing."""
        if self.denied:
            return None
        return MemoryRegion(
            pd, key=lkey, buffer=memoryview(bytearray(length)), access=access, iova=addr
        )

    def invalidate(self, rkey: int, pd: ProtectionDomain, qp_num: int) -> bool:
        """Whether a SEND WITH INVALIDATE has a valid key, as its response shows."""
        return not self.denied

    def expect(self) -> None:
        """Start a request: regions of earlier requests become invalid."""
        self.generation += 1
        self._open = None

    def release(self, size: int) -> None:
        """End a request: keep the bytes that it has written."""
        if self._open is not None and size:
            rkey, va, region = self._open
            self._memory.write((self._host, rkey), va, region.buffer[:size].tobytes())
        self._open = None

    def _note(self, rkey: int, va: int, length: int, access: int) -> None:
        use = self.use.get(rkey)
        if use is not None:
            use.start = min(use.start, va)
            use.end = max(use.end, va + length)
            use.access |= access
        elif len(self.use) < KEYS:
            self.use[rkey] = KeyUse(va, va + length, access)


def _pieces(va: int, size: int) -> list[tuple[int, int, int]]:
    """Divide a range into pages: page number, offset, length."""
    page, offset = divmod(va, PAGE)
    if offset + size <= PAGE:
        return [(page, offset, size)] if size else []
    pieces = []
    while size:
        length = min(size, PAGE - offset)
        pieces.append((page, offset, length))
        size -= length
        page, offset = page + 1, 0
    return pieces


_CHANGING = int(Access.REMOTE_WRITE | Access.REMOTE_ATOMIC)
