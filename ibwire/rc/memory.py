"""Memory access: protection domains, regions, windows and the checks of every access.

A region is a piece of the application's memory with an address (`iova`) and a key,
which is its lkey and its rkey at once. A window lends part of a region to peers
under a separate rkey. A key is a 24-bit index and, in the low byte, eight bits
that a rebinding changes.

Every access looks its key up for every packet, or checks that the table has the same
`generation` as at the last lookup, so no access outlives a deregistration. A lookup
compares offsets from the start of a region, which cannot wrap at 64 bits, and returns
`None` for every fault: key, domain, access, queue pair or bounds.

Source: reference/transport#memory-access; Linux `rxe_mr.c` and `rxe_mw.c`, which cite IBA volume 1.
"""

from __future__ import annotations

import errno
import struct
from dataclasses import dataclass
from enum import Enum, IntFlag

from ibwire.base.errors import VerbsError


class Access(IntFlag):
    """`ibv_access_flags`: what a region, a window or a queue pair allows.

    The checks below take and keep plain integers, which are combined ten times
    faster than members.
    """

    LOCAL_WRITE = 1 << 0
    REMOTE_WRITE = 1 << 1
    REMOTE_READ = 1 << 2
    REMOTE_ATOMIC = 1 << 3
    MW_BIND = 1 << 4
    ZERO_BASED = 1 << 5
    ON_DEMAND = 1 << 6
    HUGETLB = 1 << 7
    FLUSH_GLOBAL = 1 << 8
    FLUSH_PERSISTENT = 1 << 9
    RELAXED_ORDERING = 1 << 20


class WindowState(Enum):
    """Whether a window can be bound and used, as in rxe."""

    FREE = "free"
    """Type 2 before its binding and after its invalidation."""
    VALID = "valid"
    """Type 1 from its allocation, type 2 while bound."""
    INVALID = "invalid"
    """Deallocated."""


class KeyTable:
    """Every region and window of a device by key.

    start: number of keys that count as handed out already, so that keys and addresses of
    two devices differ and a mix-up is noticed. bounds_windows: whether a window grants
    access to the bound part only, or to the whole region. frees_again: whether a window that
    is free already may be invalidated.
    """

    __slots__ = (
        "_bounds_windows",
        "_frees_again",
        "_handed_out",
        "_indices",
        "_next_address",
        "_regions",
        "_remote",
        "_windows",
        "generation",
    )

    def __init__(
        self, start: int = 0, *, bounds_windows: bool = True, frees_again: bool = True
    ) -> None:
        self._bounds_windows = bounds_windows
        self._frees_again = frees_again
        self._handed_out = start
        self._next_address = _FIRST_ADDRESS + start * _PAGE
        self._indices: set[int] = set()
        self._regions: dict[int, MemoryRegion] = {}
        self._windows: dict[int, MemoryWindow] = {}
        self.generation = 0
        """Increases whenever an access may have been revoked: the result of a lookup is valid
        until then."""
        self._remote: dict[int, MemoryRegion | MemoryWindow] = {}
        """By rkey: regions, and windows while they are bound."""

    def find_local(
        self, pd: ProtectionDomain, lkey: int, addr: int, length: int, access: int
    ) -> MemoryRegion | None:
        """The region in which the local queue pair may use these bytes, `None` for a fault.

        The key of a zero-length SGE is not checked: callers skip it.
        """
        region = self._regions.get(lkey)
        if region is None or region.pd is not pd or access & ~region.access:
            return None
        offset = addr - region.iova
        return region if 0 <= offset <= offset + length <= region.length else None

    def find_remote(
        self, pd: ProtectionDomain, qp_num: int, rkey: int, va: int, length: int, access: int
    ) -> tuple[MemoryRegion, int] | None:
        """The region of a remote access and the offset into its buffer.

        `None` for a fault. The key of a zero-length request is not checked: callers
        skip it. All bits of `access` must be granted.
        """
        target = self._remote.get(rkey)
        if target is None or target.pd is not pd or access & ~target.access:
            return None
        offset = va - target.iova
        if not 0 <= offset <= offset + length <= target.length:
            return None
        if isinstance(target, MemoryRegion):
            return target, offset
        if target.region is None or (target.kind == 2 and target.qp_num != qp_num):
            return None
        return target.region, target.start + offset

    def grants(
        self, pd: ProtectionDomain, qp_num: int, rkey: int, va: int | None, length: int, access: int
    ) -> bool:
        """Whether a key grants access to a range, or to its whole range if `va` is `None`."""
        if va is None:
            target = self._remote.get(rkey)
            if target is None:
                return False
            va = target.iova
        return self.find_remote(pd, qp_num, rkey, va, length, access) is not None

    def bind(
        self,
        window: MemoryWindow,
        qp_num: int,
        qp_pd: ProtectionDomain,
        info: MWBindInfo,
        new_rkey: int,
    ) -> bool:
        """Bind a window for a work request of this queue pair; `False` is MW_BIND_ERR.

        The window gets the low byte of `new_rkey` and keeps its index. A type 1
        window is unbound by length 0. A failure changes nothing.
        """
        if window.pd is not qp_pd or qp_pd.keys is not self:
            return False
        wanted = WindowState.VALID if window.kind == 1 else WindowState.FREE
        if window.state is not wanted:
            return False
        unbinding = info.mr is None or info.length == 0
        if window.kind == 2 and unbinding:
            return False
        if not unbinding and not _may_bind(window, info):
            return False
        self._unbind(window)
        del self._windows[window.rkey]
        window.rkey = window.rkey & ~0xFF | new_rkey & 0xFF
        self._windows[window.rkey] = window
        if info.mr is not None and not unbinding:
            window.region = info.mr
            window.start = info.addr - info.mr.iova
            window.iova = 0 if info.mw_access_flags & _ZERO_BASED else info.addr
            window.length = info.length
            window.access = int(info.mw_access_flags)
            window.state = WindowState.VALID
            window.qp_num = qp_num if window.kind == 2 else None
            info.mr.windows += 1
            opened = self._remote[window.rkey] = window.copy()
            if not self._bounds_windows:
                opened.iova, opened.start = window.iova - window.start, 0
                opened.length = info.mr.length
        return True

    def invalidate(self, rkey: int, pd: ProtectionDomain, qp_num: int) -> bool:
        """Move a type 2 window to FREE, for LOCAL_INV or the peer's SEND_WITH_INV.

        `False` if the window does not exist, is of type 1, or belongs to another domain or
        queue pair. Regions registered from user space cannot be invalidated. A window that
        is free already stays free, without an error (as in rxe), or is none that can be.
        """
        window = self._windows.get(rkey)
        if window is None or window.kind == 1 or window.pd is not pd:
            return False
        if window.state is WindowState.VALID and window.qp_num != qp_num:
            return False
        if window.state is WindowState.FREE and not self._frees_again:
            return False
        self._unbind(window)
        return True

    def new_key(self) -> int:
        """A key with an unused index; raises ENOMEM if all are in use.

        The low byte keeps counting when the indices wrap, so an old key stays invalid.
        """
        if len(self._indices) == _INDICES:
            raise VerbsError(errno.ENOMEM, f"all {_INDICES} memory keys are in use")
        while True:
            index = self._handed_out % _INDICES + 1
            self._handed_out += 1
            if index not in self._indices:
                self._indices.add(index)
                return index << 8 | self._handed_out & 0xFF

    def new_address(self, length: int) -> int:
        """An address for that many bytes, at least a page away from all others."""
        address = self._next_address
        self._next_address += (length // _PAGE + 2) * _PAGE
        return address

    def add_region(self, region: MemoryRegion) -> None:
        """Add a region under its key."""
        self._regions[region.lkey] = self._remote[region.rkey] = region

    def remove_region(self, region: MemoryRegion) -> None:
        """Remove a region and invalidate its key."""
        self.generation += 1
        del self._regions[region.lkey], self._remote[region.rkey]
        self._indices.discard(region.lkey >> 8)

    def add_window(self, window: MemoryWindow) -> None:
        """Add a window under its key, for binding and invalidation."""
        self._windows[window.rkey] = window

    def remove_window(self, window: MemoryWindow) -> None:
        """Remove a window and invalidate its key."""
        self._unbind(window)
        del self._windows[window.rkey]
        self._indices.discard(window.rkey >> 8)

    def _unbind(self, window: MemoryWindow) -> None:
        self.generation += 1
        if window.region is not None:
            window.region.windows -= 1
            del self._remote[window.rkey]
        window.region = None
        window.start = window.iova = window.length = window.access = 0
        window.qp_num = None
        if window.kind == 2:
            window.state = WindowState.FREE


class ProtectionDomain:
    """A protection domain: its keys work only for its queue pairs."""

    __slots__ = ("closed", "keys", "users")

    def __init__(self, keys: KeyTable) -> None:
        self.keys = keys
        self.users = 0
        """Regions, windows, queue pairs, SRQs and address handles that exist in it."""
        self.closed = False

    def attach(self) -> None:
        """Add one user; raises EINVAL after `close`."""
        if self.closed:
            raise VerbsError(errno.EINVAL, "the protection domain is closed")
        self.users += 1

    def detach(self) -> None:
        """Remove one user."""
        self.users -= 1

    def close(self) -> None:
        """Destroy the domain; raises EBUSY while something exists in it."""
        if self.users:
            raise VerbsError(errno.EBUSY, f"the protection domain has {self.users} users")
        self.closed = True

    def register(
        self,
        memory: int | bytearray | memoryview,
        access: int,
        *,
        iova: int | None = None,
        key: int | None = None,
    ) -> MemoryRegion:
        """Register the given memory, or that many zero bytes.

        iova: its address; `None` for an address that is unused on the device, or 0
        with ZERO_BASED. key: its L_Key and R_Key, which must be unused; `None` for one that
        is. Raises EINVAL for a wrong access or address, EFAULT for read-only memory with
        LOCAL_WRITE, ENOMEM for too much.
        """
        view = _view(memory)
        _check_access(access, view)
        iova = _address(self.keys, view, access, iova)
        key = self._key(key)
        region = MemoryRegion(self, key=key, buffer=view, access=access, iova=iova)
        self.keys.add_region(region)
        return region

    def allocate_window(self, kind: int, *, key: int | None = None) -> MemoryWindow:
        """An unbound window of type 1 or 2 (2B); EINVAL for another type.

        key: its R_Key, which must be unused; `None` for one that is.
        """
        if kind not in (1, 2):
            raise VerbsError(errno.EINVAL, f"window type {kind}, not 1 or 2")
        window = MemoryWindow(self, kind, self._key(key))
        self.keys.add_window(window)
        return window

    def _key(self, given: int | None) -> int:
        """The given key or an unused one, for one more user of the domain."""
        self.attach()
        try:
            return self.keys.new_key() if given is None else given
        except VerbsError:
            self.detach()
            raise


class MemoryRegion:
    """Memory that queue pairs of its domain may use, made by `ProtectionDomain.register`."""

    __slots__ = ("access", "buffer", "iova", "length", "lkey", "pd", "rkey", "valid", "windows")

    def __init__(
        self, pd: ProtectionDomain, *, key: int, buffer: memoryview, access: int, iova: int
    ) -> None:
        self.pd = pd
        self.lkey = key
        self.rkey = key
        """The same as `lkey`, even without remote access: a reregistration may grant it."""
        self.iova = iova
        self.length = len(buffer)
        self.access = int(access)
        self.buffer = buffer
        """The bytes, format B."""
        self.valid = True
        self.windows = 0
        """Windows bound to it."""

    def read(self, addr: int, size: int) -> bytes:
        """Read bytes for the application; raises EFAULT outside the region."""
        start = self._offset(addr, size)
        return bytes(self.buffer[start : start + size])

    def write(self, addr: int, data: bytes | bytearray | memoryview) -> None:
        """Write bytes from the application; raises EFAULT outside the region."""
        start = self._offset(addr, len(data))
        if self.buffer.readonly:
            raise VerbsError(errno.EFAULT, "the memory is read-only")
        self.buffer[start : start + len(data)] = data

    def load64(self, offset: int) -> int:
        """The eight bytes that an atomic operates on, as a number in host order.

        That order is little-endian here (reference/transport#atomic-operands), on every host.
        offset: into the buffer, from `find_remote` or `find_local` with length 8.
        """
        value: int = _U64.unpack_from(self.buffer, offset)[0]
        return value

    def store64(self, offset: int, value: int) -> None:
        """The counterpart of `load64`; `value` counts modulo 2^64."""
        _U64.pack_into(self.buffer, offset, value & 0xFFFF_FFFF_FFFF_FFFF)

    def deregister(self) -> None:
        """Deregister the region; raises EINVAL while a window is bound to it.

        Source: IBA 10.6.7.2.6, as in Linux `rxe_dereg_mr`. Safe to repeat.
        """
        if not self.valid:
            return
        self._refuse_bound("deregister")
        self.pd.keys.remove_region(self)
        self.pd.detach()
        self.valid = False
        self.length = 0
        # The application can resize its bytearray only when no view exists.
        self.buffer = memoryview(b"")

    def reregister(
        self,
        pd: ProtectionDomain | None = None,
        memory: int | bytearray | memoryview | None = None,
        access: int | None = None,
        iova: int | None = None,
    ) -> None:
        """Change the given attributes; the key stays valid.

        New memory gets a new address unless `iova` is given. Raises as `register`, and
        EINVAL while a window is bound; an error changes nothing.
        """
        if not self.valid:
            raise VerbsError(errno.EINVAL, "the memory region is not registered")
        self._refuse_bound("reregister")
        new_pd = self.pd if pd is None else pd
        if new_pd.keys is not self.pd.keys:
            raise VerbsError(errno.EINVAL, "the protection domain belongs to another device")
        new_access = self.access if access is None else int(access)
        view = self.buffer if memory is None else _view(memory)
        _check_access(new_access, view)
        if iova is None and memory is None and not new_access & _ZERO_BASED:
            iova = self.iova
        iova = _address(self.pd.keys, view, new_access, iova)
        new_pd.attach()
        self.pd.detach()
        self.pd.keys.generation += 1
        self.pd, self.buffer, self.access, self.iova = new_pd, view, new_access, iova
        self.length = len(view)

    def _offset(self, addr: int, size: int) -> int:
        offset = addr - self.iova
        if not 0 <= offset <= offset + size <= self.length:
            raise VerbsError(
                errno.EFAULT,
                f"{size} bytes at {addr:#x} are not within the {self.length} at {self.iova:#x}",
            )
        return offset

    def _refuse_bound(self, verb: str) -> None:
        if self.windows:
            raise VerbsError(errno.EINVAL, f"cannot {verb} a region with windows bound to it")


class MemoryWindow:
    """A part of a region under a separate key, made by `ProtectionDomain.allocate_window`.

    Type 1 serves every queue pair of the domain, type 2 the one that bound it.
    """

    __slots__ = (
        "access",
        "iova",
        "kind",
        "length",
        "pd",
        "qp_num",
        "region",
        "rkey",
        "start",
        "state",
    )

    def __init__(self, pd: ProtectionDomain, kind: int, rkey: int) -> None:
        self.pd = pd
        self.kind = kind
        self.rkey = rkey
        self.state = WindowState.VALID if kind == 1 else WindowState.FREE
        self.region: MemoryRegion | None = None
        """The region it is bound to."""
        self.start = 0
        """Offset of its first byte in the region's buffer."""
        self.iova = 0
        """Address of its first byte, or 0 with ZERO_BASED."""
        self.length = 0
        self.access = 0
        self.qp_num: int | None = None
        """The queue pair of a bound type 2 window."""

    def copy(self) -> MemoryWindow:
        """Another window object with the same values."""
        # Not by the module `copy`, which cannot make objects of a compiled class.
        other = MemoryWindow(self.pd, self.kind, self.rkey)
        other.state, other.region, other.qp_num = self.state, self.region, self.qp_num
        other.start, other.iova = self.start, self.iova
        other.length, other.access = self.length, self.access
        return other

    def deallocate(self) -> None:
        """Unbind the window and invalidate its key. Safe to repeat."""
        if self.state is WindowState.INVALID:
            return
        self.pd.keys.remove_window(self)
        self.pd.detach()
        self.state = WindowState.INVALID


@dataclass(slots=True)
class MWBindInfo:
    """The range that a memory window is bound to; length 0 unbinds."""

    mr: MemoryRegion | None
    addr: int
    length: int
    mw_access_flags: int


def _may_bind(window: MemoryWindow, info: MWBindInfo) -> bool:
    """Whether this window may be bound to this part of a region (IBA C10-72 to C10-75).

    All windows must lie within their region; rxe ignores the start of a zero-based window.
    """
    region, access = info.mr, info.mw_access_flags
    if region is None or not region.valid or region.pd is not window.pd:
        return False
    if access & ~_SUPPORTED or (access & _ZERO_BASED and window.kind == 1):
        return False
    if region.access & _ZERO_BASED or not region.access & _MW_BIND:
        return False
    if access & _WRITING and not region.access & _LOCAL_WRITE:
        return False
    offset = info.addr - region.iova
    return 0 <= offset <= offset + info.length <= region.length


def _view(memory: int | bytearray | memoryview) -> memoryview:
    """A view of the memory as bytes; allocates it if only a size is given."""
    if isinstance(memory, int):
        if memory < 0:
            raise VerbsError(errno.EINVAL, f"a memory region of {memory} bytes")
        try:
            return memoryview(bytearray(memory))
        except (MemoryError, OverflowError):
            raise VerbsError(errno.ENOMEM, f"no memory for {memory} bytes") from None
    view = memoryview(memory)
    if not view.c_contiguous:
        raise VerbsError(errno.EINVAL, "the memory is not contiguous")
    # `cast` refuses a view without bytes unless it has one dimension.
    return view.cast("B") if view.nbytes else memoryview(bytearray())


def _check_access(access: int, view: memoryview) -> None:
    """Raise EINVAL and EFAULT as Linux does (`ib_check_mr_access`, pinning of the pages)."""
    if access & ~_SUPPORTED:
        raise VerbsError(errno.EINVAL, f"unknown access flags {access & ~_SUPPORTED:#x}")
    if access & _WRITING and not access & _LOCAL_WRITE:
        raise VerbsError(errno.EINVAL, "remote write and atomic need LOCAL_WRITE")
    if access & _LOCAL_WRITE and view.readonly:
        raise VerbsError(errno.EFAULT, "LOCAL_WRITE for read-only memory")


def _address(keys: KeyTable, view: memoryview, access: int, iova: int | None) -> int:
    """The address of a region: the given one, 0 with ZERO_BASED, or a new one."""
    if access & _ZERO_BASED:
        if iova:
            raise VerbsError(errno.EINVAL, f"a zero-based region at {iova:#x}")
        return 0
    if iova is None:
        return keys.new_address(len(view))
    if not 0 <= iova <= (1 << 64) - len(view):
        raise VerbsError(errno.EINVAL, f"{len(view)} bytes at {iova:#x} exceed 64 bits")
    return iova


_U64 = struct.Struct("<Q")

_LOCAL_WRITE = int(Access.LOCAL_WRITE)
_MW_BIND = int(Access.MW_BIND)
_ZERO_BASED = int(Access.ZERO_BASED)
_WRITING = int(Access.REMOTE_WRITE | Access.REMOTE_ATOMIC)
_SUPPORTED = (1 << 10) - 1 | (1 << 30) - (1 << 20)
"""All of `Access`; bits 20 to 29 are optional by definition (Linux `IB_ACCESS_OPTIONAL`)."""

_INDICES = (1 << 24) - 1
"""Index 0 is unused, so that no key is 0."""

_PAGE = 4096

_FIRST_ADDRESS = 1 << 40
"""Above 32 bits, so that a truncated address is noticed."""
