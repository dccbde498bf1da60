"""Memory regions and windows, with pyverbs' names."""

from __future__ import annotations

import errno
from typing import NoReturn

from ibwire.base.errors import VerbsError
from ibwire.rc import work
from ibwire.rc.memory import MemoryRegion, MemoryWindow
from ibwire.verbs.base import PyverbsCM, PyverbsResource, pyverbs_errors, table
from ibwire.verbs.fields import Structure, Unsigned, unsigned
from ibwire.verbs.libibverbs_enums import ibv_access_flags, ibv_rereg_mr_flags
from ibwire.verbs.memory import PAGE
from ibwire.verbs.pd import PD
from ibwire.verbs.pyverbs_error import PyverbsRDMAError, PyverbsUserError
from ibwire.verbs.utils import name_of


class MR(PyverbsResource):
    """A memory region in its own buffer or at an address from `mem_alloc`.

    `buf` is the address of its first byte. Reads and writes may go beyond its end, as in
    pyverbs; a read first delivers the packets in flight.
    """

    closing_rank = 3
    mr: MemoryRegion | None = None

    def __init__(
        self,
        creator: PD,
        length: int = 0,
        access: int = 0,
        address: int | None = None,
        implicit: bool = False,
        **kwargs: object,
    ) -> None:
        if kwargs.get("handle") is not None:
            raise PyverbsRDMAError("Failed to import MR", errno.EOPNOTSUPP)
        self._register(creator, length, access, address, None, implicit, "Failed to register a MR")

    def _register(
        self,
        pd: PD,
        length: int,
        access: int,
        address: int | None,
        iova: int | None,
        implicit: bool,
        failure: str,
    ) -> None:
        failure = f"{failure}. length: {length}, access flags: {access}"
        if not isinstance(pd, PD):
            raise PyverbsUserError(f"an MR is made from a PD, not {type(pd).__name__}")
        if implicit:
            raise PyverbsRDMAError(failure, errno.EOPNOTSUPP)
        size = unsigned(length, 64, "length")
        memory = self._memory = pd.context.network.memory
        self._owns_buffer = not address and size > 0
        with pd.context.verb(failure):
            if self._owns_buffer:
                self.buf = memory.allocate(size, PAGE)
            else:
                self.buf = 0 if address is None else address
            try:
                view = memory.at(self.buf, size) if size else memoryview(bytearray())
                if iova is None and size and not access & ibv_access_flags.IBV_ACCESS_ZERO_BASED:
                    iova = self.buf
                self.mr = pd.pd.register(view, int(access), iova=iova)
            except VerbsError:
                self._free()
                raise
        self._owner = pd
        self.handle = pd.context.new_handle()
        pd.add_ref(self)

    @property
    def pd(self) -> PD | None:
        """The domain, `None` after closing."""
        return self._owner if self.mr is not None else None

    def region(self) -> MemoryRegion:
        """The device's region; raises `PyverbsUserError` after closing."""
        if self.mr is None:
            raise PyverbsUserError("The MR is closed")
        return self.mr

    @property
    def lkey(self) -> int:
        """L_Key."""
        return self.region().lkey

    @property
    def rkey(self) -> int:
        """R_Key."""
        return self.region().rkey

    @property
    def length(self) -> int:
        """Bytes."""
        return self.region().length

    def write(self, data: str | bytes, length: int, offset: int = 0) -> None:
        """Write the first `length` bytes of `data`; text is encoded as UTF-8."""
        raw = data.encode() if isinstance(data, str) else data
        self._check(length, offset)
        if length > len(raw):
            raise PyverbsUserError(f"{length} bytes to write, {len(raw)} given")
        if length:
            with pyverbs_errors("Failed to write to the MR"):
                self._memory.at(self.buf + offset, length)[:] = raw[:length]

    def read(self, length: int, offset: int) -> bytes:
        """Bytes of the buffer."""
        self._check(length, offset)
        self._owner.context.network.deliver_in_flight()
        if not length:
            return b""
        with pyverbs_errors("Failed to read from the MR"):
            return bytes(self._memory.at(self.buf + offset, length))

    def _check(self, length: int, offset: int) -> None:
        if self.mr is None or not self.buf or length < 0 or offset < 0:
            raise PyverbsUserError(
                f"The MR has no buffer, or {length} bytes at offset {offset} is outside the buffer"
            )

    def rereg(
        self, flags: int, pd: PD | None = None, addr: int = 0, length: int = 0, access: int = 0
    ) -> None:
        """Change the domain, memory or access rights that `flags` selects; the keys stay."""
        region = self.region()
        moved = flags & ibv_rereg_mr_flags.IBV_REREG_MR_CHANGE_TRANSLATION
        new_pd = pd if flags & ibv_rereg_mr_flags.IBV_REREG_MR_CHANGE_PD else None
        with self._owner.context.verb("Failed to rereg MR"):
            if not flags or flags & ~_REREG_FLAGS:
                raise VerbsError(errno.EINVAL, f"re-registration flags {flags:#x}")
            if flags & ibv_rereg_mr_flags.IBV_REREG_MR_CHANGE_PD and pd is None:
                raise VerbsError(errno.EINVAL, "IBV_REREG_MR_CHANGE_PD without a PD")
            changes_access = flags & ibv_rereg_mr_flags.IBV_REREG_MR_CHANGE_ACCESS
            zero_based = (access if changes_access else region.access) & _ZERO_BASED
            region.reregister(
                pd=None if new_pd is None else new_pd.pd,
                memory=self._memory.at(addr, length) if moved else None,
                access=int(access) if changes_access else None,
                iova=addr if moved and not zero_based else None,
            )
        if moved:
            self._free()
            self.buf, self._owns_buffer = addr, False
        if new_pd is not None:
            self._owner.remove_ref(self)
            self._owner = new_pd
            new_pd.add_ref(self)

    def unimport(self) -> NoReturn:
        """Not supported: EOPNOTSUPP."""
        raise PyverbsRDMAError("Failed to unimport MR", errno.EOPNOTSUPP)

    def close(self) -> None:
        """Deregister the region and free its buffer if it owns one."""
        if self.mr is not None:
            with self._owner.context.closing("Failed to dereg MR"):
                self.mr.deregister()
            self.mr = None
            self._free()
            self.buf = 0

    def _free(self) -> None:
        if self._owns_buffer and self.buf:
            self._memory.release(self.buf)

    def __str__(self) -> str:
        return f"{type(self).__name__}:\n" + table(
            ("lkey", self.lkey),
            ("rkey", self.rkey),
            ("length", self.length),
            ("buf", self.buf),
            ("handle", self.handle),
        )


class MREx(MR):
    """A memory region whose remote address, `iova`, may differ from its memory address."""

    def __init__(
        self,
        pd: PD,
        length: int = 0,
        access: int = 0,
        address: int | None = None,
        iova: int | None = None,
        fd: int | None = None,
        fd_offset: int = 0,
        dmah: DMAHandle | None = None,
        implicit: bool = False,
        buf: Buf | None = None,
        **kwargs: object,
    ) -> None:
        failure = "Failed to register MR using extended API"
        if fd is not None or dmah is not None or buf is not None:
            raise PyverbsRDMAError(failure, errno.EOPNOTSUPP)
        self._register(pd, length, access, address, iova, implicit, failure)


class MWBindInfo(PyverbsCM):
    """The binding of a memory window."""

    addr = Unsigned(64)
    length = Unsigned(64)
    mw_access_flags = Unsigned(32)

    def __init__(self, mr: MR, addr: int, length: int, mw_access_flags: int) -> None:
        if not isinstance(mr, MR):
            raise PyverbsUserError(f"a window is bound to an MR, not {type(mr).__name__}")
        self.mr = mr
        self.addr = addr
        self.length = length
        self.mw_access_flags = mw_access_flags

    def info(self) -> work.MWBindInfo:
        """The binding as a device attribute."""
        return work.MWBindInfo(self.mr.region(), self.addr, self.length, self.mw_access_flags)

    def __str__(self) -> str:
        return "MWBindInfo:\n" + table(
            ("Addr", self.addr),
            ("Length", self.length),
            ("MW access flags", self.mw_access_flags),
        )


class MWBind(PyverbsCM):
    """A request to bind a type 1 window."""

    wr_id = Unsigned(64)
    send_flags = Unsigned(32)

    def __init__(self, info: MWBindInfo, send_flags: int, wr_id: int = 0) -> None:
        self.info = info
        self.send_flags = send_flags
        self.wr_id = wr_id

    def __str__(self) -> str:
        return "MWBind:\n" + table(("WR id", self.wr_id), ("Send flags", self.send_flags))


class MW(PyverbsResource):
    """A memory window of type 1 or 2."""

    closing_rank = 2
    mw: MemoryWindow | None = None

    def __init__(self, pd: PD, mw_type: int) -> None:
        with pd.context.verb("Failed to allocate MW"):
            self.mw = pd.pd.allocate_window(mw_type)
        self.pd = pd
        self.type = mw_type
        self.handle = pd.context.new_handle()
        self.rkey = self.mw.rkey
        """R_Key; that of a type 1 window changes when a binding is posted."""
        pd.add_ref(self)

    def close(self) -> None:
        """Deallocate the window."""
        if self.mw is not None:
            with self.pd.context.closing("Failed to dealloc MW"):
                self.mw.deallocate()
            self.mw = None

    def __str__(self) -> str:
        return "MW:\n" + table(
            ("Rkey", self.rkey), ("Handle", self.handle), ("MW Type", mwtype2str(self.type))
        )


class DmaHandleInitAttr(Structure):
    """Attributes of a DMA handle."""

    comp_mask = Unsigned(32)
    cpu_id = Unsigned(32)
    ph = Unsigned(8)
    tph_mem_type = Unsigned(32)

    def __init__(
        self, comp_mask: int = 0, cpu_id: int = 0, ph: int = 0, tph_mem_type: int = 0
    ) -> None:
        self.comp_mask = comp_mask
        self.cpu_id = cpu_id
        self.ph = ph
        self.tph_mem_type = tph_mem_type


class DMAHandle(PyverbsCM):
    """A DMA handle; not supported: EOPNOTSUPP."""

    def __init__(self, ctx: object, init_attr: DmaHandleInitAttr) -> None:
        raise PyverbsRDMAError("Failed to create DMA Handle", errno.EOPNOTSUPP)


class Buf(PyverbsCM):
    """A buffer from a device's allocator; not supported: EOPNOTSUPP."""

    def __init__(self, pd: PD, size: int) -> None:
        raise PyverbsRDMAError(f"Failed to allocate ibv_buf of size {size}", errno.EOPNOTSUPP)


class BufMR(MR):
    """A region on a `Buf`; not supported: EOPNOTSUPP."""

    def __init__(self, pd: PD, buf: Buf, length: int = 0, access: int = 0, offset: int = 0) -> None:
        raise PyverbsRDMAError("Failed to register a buf MR", errno.EOPNOTSUPP)


class DMMR(MR):
    """A region on device memory; not supported: EOPNOTSUPP."""

    def __init__(self, pd: PD, length: int, access: int, dm: object, offset: int) -> None:
        raise PyverbsRDMAError("Failed to register a device MR", errno.EOPNOTSUPP)


class DmaBufMR(MR):
    """A region on a dma-buf; not supported: EOPNOTSUPP."""

    def __init__(
        self,
        pd: PD,
        length: int,
        access: int,
        dmabuf: object = None,
        offset: int = 0,
        gpu: int = 0,
        gtt: int = 0,
    ) -> None:
        raise PyverbsRDMAError("Failed to register a dma-buf MR", errno.EOPNOTSUPP)


def mwtype2str(mw_type: int) -> str:
    """Name of a memory window type."""
    return name_of({1: "IBV_MW_TYPE_1", 2: "IBV_MW_TYPE_2"}, mw_type)


_ZERO_BASED = ibv_access_flags.IBV_ACCESS_ZERO_BASED
_REREG_FLAGS = 7
"""All of `ibv_rereg_mr_flags`."""
