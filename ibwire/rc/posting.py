"""Checks of send work requests when they are posted."""

from __future__ import annotations

import errno
from typing import Final

from ibwire.base.errors import VerbsError
from ibwire.rc.attributes import QPType
from ibwire.rc.context import QPContext
from ibwire.rc.limits import PortTables
from ibwire.rc.modification import check_address
from ibwire.rc.plan import ANNEX_A19, MENUS
from ibwire.rc.send_state import SendWQE
from ibwire.rc.sge import gather
from ibwire.rc.sizes import MAX_MESSAGE
from ibwire.rc.work import SendFlags, SendWR, WCStatus
from ibwire_layers.opcodes import Operation, Service

# Plain numbers: combining members of an enumeration is slow.
_SIGNALED: Final = int(SendFlags.SIGNALED)
_INLINE: Final = int(SendFlags.INLINE)

# A member is found faster without its class (measured: ibwire/rc/qp.py).
_XRC_RECV: Final = QPType.XRC_RECV
_UD: Final = Service.UD
_READ: Final = Operation.READ
_FLUSH: Final = Operation.FLUSH
_ATOMIC_WRITE: Final = Operation.ATOMIC_WRITE
_ATOMICS: Final = (Operation.COMPARE_SWAP, Operation.FETCH_ADD)


def check_send(qp: QPContext, wr: SendWR, port: PortTables) -> SendWQE:
    """The queue entry of a send work request; raises `VerbsError` for an invalid one."""
    menu = MENUS[qp.service]
    opcode = wr.opcode
    entry = menu[opcode] if 0 <= opcode < len(menu) else None
    if entry is None or qp.qp_type is _XRC_RECV:
        name = getattr(opcode, "name", f"opcode {opcode}")
        raise VerbsError(errno.EINVAL, f"no {name} on {qp.qp_type.name}")
    if _is_too_wide(wr):
        raise VerbsError(errno.EINVAL, f"a value does not fit its field: {wr}")
    plan, forms = entry
    wqe = SendWQE(wr, plan, forms)
    flags = int(wr.send_flags)
    wqe.signaled = qp.sq_sig_all or bool(flags & _SIGNALED)
    if plan.operation is None:
        return wqe
    sges = wr.sg_list
    if len(sges) > qp.cap.max_send_sge:
        raise VerbsError(errno.EINVAL, f"{len(sges)} SGEs, at most {qp.cap.max_send_sge}")
    length = sges[0].length if len(sges) == 1 else sum([sge.length for sge in sges])
    if flags & _INLINE:
        length = _take_inline(qp, wqe, length)
    if not 0 <= length <= MAX_MESSAGE:
        raise VerbsError(errno.EINVAL, f"a message of {length} bytes, at most 2^31")
    if plan.is_answered:
        length = _check_answered(qp, wr, plan.operation, length)
        profile = qp.profile
        if plan.operation in ANNEX_A19 and (
            profile.refuses_annex_a19 or profile.discards_annex_a19
        ):
            wqe.status = (
                WCStatus.LOC_QP_OP_ERR
            )  # it completes with this status when it is the oldest
    elif qp.service is _UD:
        if wr.ah is None:
            raise VerbsError(errno.EINVAL, "a datagram needs an address handle")
        check_address(port, wr.ah)
    wqe.length = length
    if length > qp.mtu and (plan.is_segmented or plan.operation is _READ):
        wqe.packets = -(-length // qp.mtu)
    return wqe


def _check_answered(qp: QPContext, wr: SendWR, operation: Operation, length: int) -> int:
    """Check a request that completes with a response; returns the bytes of its data."""
    if operation in _ATOMICS:
        if length < 8:
            raise VerbsError(errno.EINVAL, "an atomic needs room for 8 bytes")
        if wr.remote_addr & 7:
            raise VerbsError(errno.EINVAL, f"atomic address {wr.remote_addr:#x} not aligned")
        length = 8
    elif operation is _ATOMIC_WRITE:
        if len(wr.atomic_data) != 8 or wr.remote_addr & 7:
            raise VerbsError(errno.EINVAL, "an ATOMIC_WRITE is 8 bytes at an aligned address")
        length = 8
    elif operation is _FLUSH:
        length = 0
    if qp.attr.max_rd_atomic == 0:
        raise VerbsError(errno.EINVAL, "max_rd_atomic is 0")
    return length


def _take_inline(qp: QPContext, wqe: SendWQE, length: int) -> int:
    """Copy the data of an inline request now; returns its length."""
    wr = wqe.wr
    if not wqe.plan.is_segmented:
        raise VerbsError(errno.EINVAL, f"{wr.opcode.name} cannot be inline")
    if wr.inline_data is not None:
        length = len(wr.inline_data)
    if length > qp.cap.max_inline_data:
        raise VerbsError(errno.EINVAL, f"{length} bytes inline, at most {qp.cap.max_inline_data}")
    data = wr.inline_data
    if data is None:
        # Adapters copy from the process without the key; here only the key leads to the
        # bytes.
        data = gather(qp.keys, qp.pd, wr.sg_list, 0, length)
    if data is None:
        raise VerbsError(errno.EFAULT, "the inline data is not in a registered region")
    wqe.inline = bytes(data)
    return length


def _is_too_wide(wr: SendWR) -> bool:
    """Whether a value of a work request is negative or too wide for its field."""
    words = wr.imm_data | wr.invalidate_rkey | wr.rkey | wr.remote_qkey | wr.remote_srqn | wr.length
    longs = wr.remote_addr | wr.compare_add | wr.swap
    return bool(words >> 32 or longs >> 64 or wr.flush_type >> 4 or wr.flush_level >> 2)
