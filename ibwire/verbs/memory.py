"""The virtual memory of a script: blocks of bytes at emulated addresses.

pyverbs uses addresses of the process. The emulation has its own address space, so a wrong
address is an error and never a crash, and the addresses of a run do not depend on the machine.
"""

from __future__ import annotations

import errno
from bisect import bisect_right

from ibwire.base.errors import VerbsError

PAGE = 4096


class Memory:
    """Blocks that never move and whose addresses are never reused."""

    __slots__ = ("_blocks", "_next", "_starts")

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._blocks: dict[int, bytearray] = {}
        self._next = _FIRST

    def allocate(self, size: int, alignment: int = 16) -> int:
        """Allocate zero bytes and return their address; raises `VerbsError` ENOMEM or EINVAL."""
        if size < 0 or alignment <= 0 or alignment & (alignment - 1):
            raise VerbsError(errno.EINVAL, f"{size} bytes aligned to {alignment}")
        try:
            block = bytearray(size)
        except (MemoryError, OverflowError):
            raise VerbsError(errno.ENOMEM, f"no memory for {size} bytes") from None
        start = (self._next + alignment - 1) & -alignment
        if start + size > _LAST:
            raise VerbsError(errno.ENOMEM, "no addresses left")
        # A gap after each block makes an access beyond its end an error.
        self._next = start + size + PAGE
        self._starts.append(start)
        self._blocks[start] = block
        return start

    def release(self, address: int) -> None:
        """Free the block that begins at an address; raises `VerbsError` EINVAL if none does.

        A registered region keeps the bytes, as it keeps pinned pages.
        """
        if address not in self._blocks:
            raise VerbsError(errno.EINVAL, f"no block begins at {address:#x}")
        del self._blocks[address]
        self._starts.pop(bisect_right(self._starts, address) - 1)

    def at(self, address: int, size: int) -> memoryview:
        """A writable view of the bytes at an address; `VerbsError` EFAULT outside a block."""
        index = bisect_right(self._starts, address) - 1
        if index >= 0 and size >= 0:
            start = self._starts[index]
            block = self._blocks[start]
            if address + size <= start + len(block):
                return memoryview(block)[address - start : address - start + size]
        raise VerbsError(errno.EFAULT, f"no {size} bytes at {address:#x}")


_FIRST = 0x7F00_0000_0000
"""Start of the address space, in the area where Linux places mappings."""

_LAST = 1 << 63
