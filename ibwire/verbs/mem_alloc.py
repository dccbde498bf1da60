"""The C library's allocation functions, on the memory of the current network.

`MR(address=...)` takes the addresses that they return; overlapping regions share their bytes.
As in pyverbs, a failed allocation raises `MemoryError`.
"""

from __future__ import annotations

import errno
import struct

from ibwire.base.errors import VerbsError
from ibwire.verbs.base import pyverbs_errors
from ibwire.verbs.memory import PAGE
from ibwire.verbs.network import current
from ibwire.verbs.pyverbs_error import PyverbsRDMAError

PROT_NONE_ = 0
PROT_READ_ = 1
PROT_WRITE_ = 2
PROT_EXEC_ = 4
MAP_SHARED_ = 0x1
MAP_PRIVATE_ = 0x2
MAP_FIXED_ = 0x10
MAP_ANONYMOUS_ = 0x20
MAP_GROWSDOWN_ = 0x100
MAP_LOCKED_ = 0x2000
MAP_NORESERVE_ = 0x4000
MAP_POPULATE_ = 0x8000
MAP_STACK_ = 0x20000
MAP_HUGETLB_ = 0x40000
"""Values of Linux on x86 (`asm-generic/mman.h`); they have no effect."""

MADV_DONTNEED = 4


def malloc(size: int) -> int:
    """The address of a block of zero bytes."""
    return posix_memalign(size, 16)


def posix_memalign(size: int, alignment: int = 8) -> int:
    """The address of an aligned block of zero bytes."""
    try:
        return current().memory.allocate(size, alignment)
    except VerbsError as error:
        raise MemoryError(f"Failed to allocate memory: {error}") from error


def free(ptr: int) -> None:
    """Free a block; 0 is ignored, and an address where no block begins is an error."""
    if ptr:
        with pyverbs_errors("Failed to free memory"):
            current().memory.release(ptr)


def mmap(
    addr: int = 0,
    length: int = 100,
    prot: int = PROT_READ_ | PROT_WRITE_,
    flags: int = MAP_PRIVATE_ | MAP_ANONYMOUS_,
    fd: int = 0,
    offset: int = 0,
) -> int:
    """The address of new zero pages; the hint `addr` is ignored, and files are not supported."""
    if not flags & MAP_ANONYMOUS_ or (flags & MAP_FIXED_ and addr):
        raise MemoryError(
            "Failed to mmap memory: only anonymous pages without MAP_FIXED are supported"
        )
    if length <= 0:
        raise MemoryError(f"Failed to mmap memory: {length} bytes")
    return posix_memalign(-(-length // PAGE) * PAGE, PAGE)


def munmap(addr: int, length: int) -> None:
    """Unmap pages, only a whole mapping at once."""
    memory = current().memory
    try:
        memory.at(addr, length)
        memory.release(addr)
    except VerbsError as error:
        raise MemoryError(f"Failed to munmap requested memory: {error}") from error


def madvise(addr: int, length: int, flags: int = MADV_DONTNEED) -> None:
    """MADV_DONTNEED clears pages, as for private anonymous ones; other advice is ignored."""
    if addr % PAGE:
        raise PyverbsRDMAError(f"Failed to madvise memory at {addr:#x}: no page", errno.EINVAL)
    with pyverbs_errors("Failed to madvise memory"):
        view = current().memory.at(addr, length)
    if flags == MADV_DONTNEED:
        view[:] = bytes(length)


def write(addr: int, data: str | bytes, length: int, offset: int = 0) -> None:
    """Write the first `length` bytes of `data`; text is encoded as UTF-8."""
    raw = data.encode() if isinstance(data, str) else data
    if length > len(raw):
        raise PyverbsRDMAError(f"Failed to write: {length} bytes of {len(raw)}", errno.EFAULT)
    with pyverbs_errors("Failed to write"):
        current().memory.at(addr + offset, length)[:] = raw[:length]


def read(addr: int, length: int, offset: int = 0) -> bytes:
    """Read bytes at an address."""
    with pyverbs_errors("Failed to read"):
        return bytes(current().memory.at(addr + offset, length))


def writebe32(addr: int, val: int, offset: int = 0) -> None:
    """Write a big-endian number; `offset` is in units of its size."""
    write(addr, struct.pack(">I", val & 0xFFFF_FFFF), 4, 4 * offset)


def writebe64(addr: int, val: int, offset: int = 0) -> None:
    """Write a big-endian number; `offset` is in units of its size."""
    write(addr, struct.pack(">Q", val & 0xFFFF_FFFF_FFFF_FFFF), 8, 8 * offset)


def read32(addr: int, offset: int = 0) -> int:
    """Read a little-endian number, as on x86; `offset` is in units of its size."""
    return int.from_bytes(read(addr, 4, 4 * offset), "little")


def read64(addr: int, offset: int = 0) -> int:
    """Read a little-endian number, as on x86; `offset` is in units of its size."""
    return int.from_bytes(read(addr, 8, 8 * offset), "little")
