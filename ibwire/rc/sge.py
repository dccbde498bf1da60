"""Scatter/gather elements: the pieces of local memory in a work request, read and written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ibwire.rc.memory import Access, KeyTable, ProtectionDomain


@dataclass(slots=True)
class SGE:
    """A piece of local memory."""

    addr: int
    length: int
    lkey: int


def gather(
    keys: KeyTable, pd: ProtectionDomain, sges: Sequence[SGE], offset: int, size: int
) -> bytes | None:
    """Bytes [offset, offset + size) of the concatenated SGEs.

    `None` is LOC_PROT_ERR. Only the keys of SGEs that are read are checked.
    """
    if len(sges) == 1:
        sge = sges[0]
        if offset + size <= sge.length:
            addr = sge.addr + offset
            region = keys.find_local(pd, sge.lkey, addr, size, 0)
            if region is not None:
                start = addr - region.iova
                return region.buffer[start : start + size].tobytes()
    pieces = _pieces(keys, pd, sges, offset, size, 0)
    return None if pieces is None else b"".join(pieces)


def scatter(
    keys: KeyTable, pd: ProtectionDomain, sges: Sequence[SGE], offset: int, data: bytes
) -> bool:
    """Write bytes at [offset, offset + len(data)) of the concatenated SGEs.

    `False` is LOC_PROT_ERR, and then nothing is written. Needs LOCAL_WRITE. Only the
    keys of SGEs that are written are checked.
    """
    size = len(data)
    if len(sges) == 1:
        sge = sges[0]
        if offset + size <= sge.length:
            addr = sge.addr + offset
            region = keys.find_local(pd, sge.lkey, addr, size, _LOCAL_WRITE)
            if region is not None:
                start = addr - region.iova
                region.buffer[start : start + size] = data
                return True
    pieces = _pieces(keys, pd, sges, offset, size, _LOCAL_WRITE)
    if pieces is None:
        return False
    done = 0
    for piece in pieces:
        piece[:] = data[done : done + len(piece)]
        done += len(piece)
    return True


def writable_pieces(
    keys: KeyTable, pd: ProtectionDomain, sges: Sequence[SGE], offset: int, size: int
) -> list[memoryview] | None:
    """Where `scatter` would write so many bytes at `offset`; `None` if it would not."""
    return _pieces(keys, pd, sges, offset, size, _LOCAL_WRITE)


def _pieces(
    keys: KeyTable,
    pd: ProtectionDomain,
    sges: Sequence[SGE],
    offset: int,
    size: int,
    access: int,
) -> list[memoryview] | None:
    """Views of bytes [offset, offset + size) of the SGEs; `None` if one is not accessible."""
    pieces: list[memoryview] = []
    for sge in sges:
        if size <= 0:
            break
        take = min(size, sge.length - offset)
        if take <= 0:
            offset -= sge.length
            continue
        addr = sge.addr + offset
        region = keys.find_local(pd, sge.lkey, addr, take, access)
        if region is None:
            return None
        start = addr - region.iova
        pieces.append(region.buffer[start : start + take])
        size -= take
        offset = 0
    return None if size else pieces


_LOCAL_WRITE = int(Access.LOCAL_WRITE)
