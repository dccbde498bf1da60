"""Valid work requests, which succeed."""

from __future__ import annotations

from collections.abc import Collection
from itertools import pairwise
from typing import Any, Protocol

from hypothesis import strategies as st

from ibwire.base.errors import EncodeError
from ibwire.rc.attributes import QPType
from ibwire.rc.plan import ALLOWED
from ibwire.rc.work import SGE, FlushLevel, RecvWR, SendFlags, SendWR, WROpcode
from ibwire_layers.opcodes import Service

MOST_PIECES = 4
"""SGEs of a request."""


class Region(Protocol):
    """Registered memory: an `ibwire.rc.memory.MemoryRegion`, or the attributes of a remote one."""

    @property
    def iova(self) -> int:
        """First address."""
        ...

    @property
    def length(self) -> int:
        """Bytes."""
        ...

    @property
    def lkey(self) -> int:
        """L_Key."""
        ...

    @property
    def rkey(self) -> int:
        """R_Key."""
        ...


@st.composite
def work_requests(
    draw: st.DrawFn,
    /,
    local: Region,
    remote: Region,
    *,
    qp_type: QPType = QPType.RC,
    mtu: int = 1024,
    opcodes: Collection[WROpcode] | None = None,
    max_length: int | None = None,
    max_inline: int = 0,
    signaled: bool | None = True,
    **fields: Any,
) -> SendWR:
    """Any valid send request between two regions.

    Message lengths are often close to packet boundaries. Messages fit both regions and
    `max_length`, and datagrams fit `mtu`. opcodes: allowed ones, by default all of the queue pair
    type except those that invalidate or bind keys: LOCAL_INV, BIND_MW and SEND_WITH_INV.
    max_inline: maximum inline bytes. signaled: `None` for a mix. fields: of every `SendWR`, such
    as the destination of datagrams.

    Requests that consume a receive need one at the peer: see `recv_requests`. Raises `EncodeError`
    for other opcodes.
    """
    opcode = draw(st.sampled_from(_choice(qp_type, opcodes)))
    limit = min(local.length, remote.length)
    if qp_type is QPType.UD:
        limit = min(limit, mtu)
    if max_length is not None:
        limit = min(limit, max_length)
    length = 8 if opcode in _ATOMICS else 0 if opcode in _EMPTY else draw(_lengths(mtu, limit))
    wr = SendWR(opcode, draw(_pieces(local, length)), wr_id=draw(_longs))
    wr.send_flags = draw(_flags(qp_type, signaled))
    if opcode in _INLINE and length <= max_inline and draw(st.booleans()):
        wr.send_flags |= SendFlags.INLINE
    if opcode in _IMMEDIATE:
        wr.imm_data = draw(st.integers(0, (1 << 32) - 1))
    if opcode not in _SENDS:
        span, step = (8, 8) if opcode in _ALIGNED else (length, 1)
        wr.remote_addr, wr.rkey = draw(_addresses(remote, span, step)), remote.rkey
    if opcode in _ATOMICS:
        wr.compare_add, wr.swap = draw(_longs), draw(_longs)
    elif opcode is WROpcode.ATOMIC_WRITE:
        wr.atomic_data = draw(st.binary(min_size=8, max_size=8))
    elif opcode is WROpcode.FLUSH:
        wr.length = draw(st.integers(0, remote.iova + remote.length - wr.remote_addr))
        wr.flush_type = draw(st.integers(1, 3))
        wr.flush_level = draw(st.sampled_from(FlushLevel))
    for name, value in fields.items():
        setattr(wr, name, value)
    return wr


@st.composite
def recv_requests(
    draw: st.DrawFn, /, local: Region, *, min_length: int = 0, max_length: int | None = None
) -> RecvWR:
    """Any receive request for memory of a region, with at least `min_length` bytes."""
    limit = local.length if max_length is None else min(local.length, max_length)
    length = draw(st.just(min_length) | st.integers(min_length, limit))
    return RecvWR(draw(_pieces(local, length)), draw(_longs))


def _choice(qp_type: QPType, opcodes: Collection[WROpcode] | None) -> list[WROpcode]:
    known = sorted(ALLOWED[_SERVICES[qp_type]] - _USES_A_WINDOW) if qp_type in _SERVICES else []
    if opcodes is None:
        opcodes = known
    for opcode in opcodes:
        if opcode not in known:
            expected = f"one of {', '.join(each.name for each in known)} on {qp_type.name}"
            raise EncodeError("opcodes", opcode, expected)
    return list(opcodes)


def _lengths(mtu: int, limit: int) -> st.SearchStrategy[int]:
    edges = [each for each in (0, 1, mtu - 1, mtu, mtu + 1, 2 * mtu, 3 * mtu + 3) if each <= limit]
    return st.sampled_from(edges) | st.integers(0, min(limit, 5 * mtu)) | st.integers(0, limit)


@st.composite
def _pieces(draw: st.DrawFn, region: Region, length: int) -> list[SGE]:
    """SGEs for `length` bytes in any order, not empty and without overlap."""
    if not length:
        return []
    start = draw(_addresses(region, length, 1))
    cuts = st.lists(st.integers(1, length - 1), max_size=MOST_PIECES - 1, unique=True)
    ends = [0, *sorted(draw(cuts) if length > 1 else []), length]
    pieces = [SGE(start + first, last - first, region.lkey) for first, last in pairwise(ends)]
    return draw(st.permutations(pieces))


def _addresses(region: Region, length: int, step: int) -> st.SearchStrategy[int]:
    """Addresses in a region with room for `length` bytes, at multiples of `step`."""
    first = -(-region.iova // step)
    last = (region.iova + region.length - length) // step
    if last < first:
        raise EncodeError("length", region.length, f"room for {length} bytes")
    return st.integers(first, last).map(lambda number: number * step)


@st.composite
def _flags(draw: st.DrawFn, qp_type: QPType, signaled: bool | None) -> int:
    flags = draw(st.sampled_from((0, int(SendFlags.SOLICITED))))
    if draw(st.booleans()) if signaled is None else signaled:
        flags |= SendFlags.SIGNALED
    # A fence waits for READs and atomics, which only reliable services have (IBA 10.8.3.3).
    if qp_type in (QPType.RC, QPType.XRC_SEND) and draw(st.booleans()):
        flags |= SendFlags.FENCE
    return int(flags)


_longs = st.integers(0, (1 << 64) - 1)

_SERVICES = {
    QPType.RC: Service.RC,
    QPType.UC: Service.UC,
    QPType.UD: Service.UD,
    QPType.XRC_SEND: Service.XRC,
}
_USES_A_WINDOW = {WROpcode.LOCAL_INV, WROpcode.BIND_MW, WROpcode.SEND_WITH_INV}
_SENDS = (WROpcode.SEND, WROpcode.SEND_WITH_IMM)
_IMMEDIATE = (WROpcode.SEND_WITH_IMM, WROpcode.RDMA_WRITE_WITH_IMM)
_INLINE = (*_SENDS, WROpcode.RDMA_WRITE, WROpcode.RDMA_WRITE_WITH_IMM)
_ATOMICS = (WROpcode.ATOMIC_CMP_AND_SWP, WROpcode.ATOMIC_FETCH_AND_ADD)
_ALIGNED = (*_ATOMICS, WROpcode.ATOMIC_WRITE)
_EMPTY = (WROpcode.ATOMIC_WRITE, WROpcode.FLUSH)
