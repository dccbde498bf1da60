"""Work requests.

Values of the enumerations are those of rdma-core's `verbs.h`, without the prefix.
Numbers are host integers; the packet holds `imm_data` as a big-endian number.
`SGE` and `MWBindInfo` are parts of work requests and can be imported from here too, as can
completions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum, IntFlag

from ibwire.rc.attributes import AddressVector
from ibwire.rc.completion import WC as WC
from ibwire.rc.completion import WCFlags as WCFlags
from ibwire.rc.completion import WCOpcode as WCOpcode
from ibwire.rc.completion import WCStatus as WCStatus
from ibwire.rc.memory import MemoryWindow
from ibwire.rc.memory import MWBindInfo as MWBindInfo
from ibwire.rc.sge import SGE as SGE


class WROpcode(IntEnum):
    """Operation of a send work request: `ibv_wr_opcode`."""

    RDMA_WRITE = 0
    RDMA_WRITE_WITH_IMM = 1
    SEND = 2
    SEND_WITH_IMM = 3
    RDMA_READ = 4
    ATOMIC_CMP_AND_SWP = 5
    ATOMIC_FETCH_AND_ADD = 6
    LOCAL_INV = 7
    BIND_MW = 8
    SEND_WITH_INV = 9
    FLUSH = 14
    ATOMIC_WRITE = 15


class SendFlags(IntFlag):
    """`ibv_send_flags`."""

    FENCE = 1
    SIGNALED = 2
    SOLICITED = 4
    INLINE = 8


class FlushType(IntFlag):
    """Guarantee that a FLUSH requests: `ibv_placement_type`, the PLT field of FETH."""

    GLOBAL = 1
    PERSISTENT = 2


class FlushLevel(IntEnum):
    """Range that a FLUSH covers: `ibv_selectivity_level`, the SEL field of FETH."""

    RANGE = 0
    MR = 1


@dataclass(slots=True)
class SendWR:
    """A send work request; its opcode and QP type decide which fields are used."""

    opcode: WROpcode = WROpcode.SEND
    sg_list: Sequence[SGE] = ()
    send_flags: int = SendFlags.SIGNALED
    wr_id: int = 0
    imm_data: int = 0
    invalidate_rkey: int = 0
    """Key to invalidate: SEND_WITH_INV (a key of the peer) and LOCAL_INV (a local key)."""
    remote_addr: int = 0
    rkey: int = 0
    """Peer's key; for BIND_MW of a type 2 window its new key."""
    compare_add: int = 0
    swap: int = 0
    ah: AddressVector | None = None
    remote_qpn: int = 0
    remote_qkey: int = 0
    remote_srqn: int = 0
    mw: MemoryWindow | None = None
    bind_info: MWBindInfo | None = None
    flush_type: int = FlushType.GLOBAL
    flush_level: int = FlushLevel.RANGE
    length: int = 0
    """Bytes that a FLUSH covers."""
    atomic_data: bytes = b""
    """The eight bytes of an ATOMIC_WRITE."""
    inline_data: bytes | None = None
    """The data, instead of `sg_list`, with the flag INLINE."""


@dataclass(slots=True)
class RecvWR:
    """A receive work request."""

    sg_list: Sequence[SGE] = ()
    wr_id: int = 0
