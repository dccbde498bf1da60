"""Extended queue pairs, whose work requests are built by a sequence of calls."""

from __future__ import annotations

import errno
from collections.abc import Sequence

from ibwire.rc import work
from ibwire.verbs.addr import AH
from ibwire.verbs.base import PyverbsCM
from ibwire.verbs.device import Context
from ibwire.verbs.fields import Unsigned, unsigned
from ibwire.verbs.libibverbs_enums import (
    ibv_qp_create_send_ops_flags,
    ibv_qp_init_attr_mask,
)
from ibwire.verbs.mr import MW, MWBindInfo
from ibwire.verbs.pd import PD
from ibwire.verbs.pyverbs_error import PyverbsRDMAError, PyverbsUserError
from ibwire.verbs.qp_attributes import QPAttr, QPInitAttr, QPInitAttrEx
from ibwire.verbs.queue_pair import QP
from ibwire.verbs.wr import SGE


class DataBuffer(PyverbsCM):
    """Data for `wr_set_inline_data_list`: an address from `mem_alloc` and a length."""

    addr = Unsigned(64)
    length = Unsigned(64)

    def __init__(self, addr: int, length: int) -> None:
        self.addr = addr
        self.length = length


class QPEx(QP):
    """A queue pair whose work requests are built between `wr_start` and `wr_complete`.

    Each `wr_` call of an operation begins a request with the current `wr_id` and `wr_flags`; the
    following `wr_set_` calls complete it. Only operations in the `send_ops_flags` of the creation
    attributes are allowed.
    """

    comp_mask = Unsigned(64)
    wr_id = Unsigned(64)
    wr_flags = Unsigned(32)

    def __init__(
        self,
        creator: PD | Context,
        init_attr: QPInitAttr | QPInitAttrEx,
        qp_attr: QPAttr | None = None,
    ) -> None:
        self._operations = 0
        if isinstance(init_attr, QPInitAttrEx) and init_attr.comp_mask & _SEND_OPS:
            self._operations = init_attr.send_ops_flags
            if self._operations & ~_SUPPORTED_OPERATIONS:
                raise PyverbsRDMAError("Failed to create extended QP", errno.EOPNOTSUPP)
        self._building: list[work.SendWR] | None = None
        self._windows: list[MW] = []
        super().__init__(creator, init_attr, qp_attr)

    @property
    def ind_table(self) -> None:
        """`None`: indirection tables are not supported."""
        return

    def wr_start(self) -> None:
        """Begin a list of work requests."""
        if not self._operations:
            raise PyverbsUserError("The QP was created without IBV_QP_INIT_ATTR_SEND_OPS_FLAGS")
        self._building = []
        self._windows = []

    def wr_complete(self) -> None:
        """Post the list; requests before an invalid one are posted."""
        requests, self._building = self._list(), None
        pair = self.pair()
        with self.context.verb("ibv_wr_complete failed"):
            for request in requests:
                pair.post_send(request)
        for window in self._windows:
            self.add_ref(window)

    def wr_abort(self) -> None:
        """Discard the list."""
        self._building = None

    def wr_send(self) -> None:
        """Begin a SEND."""
        self._begin(work.WROpcode.SEND)

    def wr_send_imm(self, data: int) -> None:
        """Begin a SEND with immediate data, a number."""
        self._begin(work.WROpcode.SEND_WITH_IMM, imm_data=_word(data, "data"))

    def wr_send_inv(self, invalidate_rkey: int) -> None:
        """Begin a SEND that invalidates a key of the peer."""
        key = _word(invalidate_rkey, "invalidate_rkey")
        self._begin(work.WROpcode.SEND_WITH_INV, invalidate_rkey=key)

    def wr_send_tso(self, hdr: int, hdr_sz: int, mss: int) -> None:
        """Segmentation offload; not supported: EOPNOTSUPP."""
        raise PyverbsRDMAError("ibv_wr_send_tso failed", errno.EOPNOTSUPP)

    def wr_rdma_write(self, rkey: int, remote_addr: int) -> None:
        """Begin a WRITE."""
        self._begin(work.WROpcode.RDMA_WRITE, **_remote(rkey, remote_addr))

    def wr_rdma_write_imm(self, rkey: int, remote_addr: int, data: int) -> None:
        """Begin a WRITE with immediate data, a number."""
        self._begin(
            work.WROpcode.RDMA_WRITE_WITH_IMM,
            imm_data=_word(data, "data"),
            **_remote(rkey, remote_addr),
        )

    def wr_rdma_read(self, rkey: int, remote_addr: int) -> None:
        """Begin a READ."""
        self._begin(work.WROpcode.RDMA_READ, **_remote(rkey, remote_addr))

    def wr_atomic_cmp_swp(self, rkey: int, remote_addr: int, compare: int, swap: int) -> None:
        """Begin a COMPARE SWAP."""
        self._begin(
            work.WROpcode.ATOMIC_CMP_AND_SWP,
            compare_add=unsigned(compare, 64, "compare"),
            swap=unsigned(swap, 64, "swap"),
            **_remote(rkey, remote_addr),
        )

    def wr_atomic_fetch_add(self, rkey: int, remote_addr: int, add: int) -> None:
        """Begin a FETCH ADD."""
        self._begin(
            work.WROpcode.ATOMIC_FETCH_AND_ADD,
            compare_add=unsigned(add, 64, "add"),
            **_remote(rkey, remote_addr),
        )

    def wr_atomic_write(self, rkey: int, remote_addr: int, atomic_wr: bytes) -> None:
        """Begin an ATOMIC WRITE of the first eight bytes."""
        if len(atomic_wr) < 8:
            raise PyverbsUserError(f"atomic_wr has {len(atomic_wr)} bytes, 8 are written")
        self._begin(
            work.WROpcode.ATOMIC_WRITE,
            atomic_data=bytes(atomic_wr[:8]),
            **_remote(rkey, remote_addr),
        )

    def wr_flush(self, rkey: int, remote_addr: int, length: int, ptype: int, level: int) -> None:
        """Begin a FLUSH."""
        self._begin(
            work.WROpcode.FLUSH,
            length=_word(length, "length"),
            flush_type=_word(ptype, "ptype"),
            flush_level=_word(level, "level"),
            **_remote(rkey, remote_addr),
        )

    def wr_bind_mw(self, mw: MW, rkey: int, bind_info: MWBindInfo) -> None:
        """Begin the binding of a type 2 window to a key; the window closes with the QP."""
        self._begin(
            work.WROpcode.BIND_MW,
            mw=mw.mw,
            rkey=_word(rkey, "rkey"),
            bind_info=bind_info.info(),
        )
        self._windows.append(mw)

    def wr_local_inv(self, invalidate_rkey: int) -> None:
        """Begin the invalidation of a local key."""
        key = _word(invalidate_rkey, "invalidate_rkey")
        self._begin(work.WROpcode.LOCAL_INV, invalidate_rkey=key)

    def wr_set_ud_addr(self, ah: AH, remote_qpn: int, remote_rkey: int) -> None:
        """Set the destination of a datagram; `remote_rkey` is pyverbs' name for the Q_Key."""
        request = self._newest()
        request.ah = ah.vector
        request.remote_qpn = _word(remote_qpn, "remote_qpn")
        request.remote_qkey = _word(remote_rkey, "remote_rkey")

    def wr_set_xrc_srqn(self, remote_srqn: int) -> None:
        """Set the peer's shared receive queue for the message."""
        self._newest().remote_srqn = _word(remote_srqn, "remote_srqn")

    def wr_set_sge(self, sge: SGE) -> None:
        """Set the buffer of the data."""
        self._newest().sg_list = [sge.element()]

    def wr_set_sge_list(self, num_sge: int, sg_list: Sequence[SGE]) -> None:
        """Set the buffers of the data."""
        if not 0 <= num_sge <= len(sg_list):
            raise PyverbsUserError(f"num_sge is {num_sge} with {len(sg_list)} SGEs")
        self._newest().sg_list = [sge.element() for sge in sg_list[:num_sge]]

    def wr_set_inline_data(self, addr: int, length: int) -> None:
        """Set the data to send, copied at once from an address of `mem_alloc`."""
        self.wr_set_inline_data_list(1, [DataBuffer(addr, length)])

    def wr_set_inline_data_list(self, num_buf: int, buf_list: Sequence[DataBuffer]) -> None:
        """Set the data to send, copied at once from several buffers."""
        if not 0 <= num_buf <= len(buf_list):
            raise PyverbsUserError(f"num_buf is {num_buf} with {len(buf_list)} buffers")
        request = self._newest()
        memory = self.context.network.memory
        with self.context.verb("Failed to read inline data"):
            request.inline_data = b"".join(
                bytes(memory.at(data.addr, data.length)) for data in buf_list[:num_buf]
            )
        request.send_flags |= work.SendFlags.INLINE

    def _list(self) -> list[work.SendWR]:
        if self._building is None:
            raise PyverbsUserError("wr_start must be called first")
        return self._building

    def _newest(self) -> work.SendWR:
        requests = self._list()
        if not requests:
            raise PyverbsUserError("an operation such as wr_send must be called first")
        return requests[-1]

    def _begin(self, opcode: work.WROpcode, **fields: object) -> None:
        requests = self._list()
        if not self._operations & _OPERATIONS[opcode]:
            raise PyverbsUserError(f"{opcode.name} is not among the QP's send_ops_flags")
        request = work.SendWR(opcode=opcode, send_flags=self.wr_flags, wr_id=self.wr_id)
        for name, value in fields.items():
            setattr(request, name, value)
        requests.append(request)


def _word(value: int, name: str) -> int:
    return unsigned(value, 32, name)


def _remote(rkey: int, remote_addr: int) -> dict[str, int]:
    """Remote address and key of an operation, as fields."""
    return {
        "rkey": _word(rkey, "rkey"),
        "remote_addr": unsigned(remote_addr, 64, "remote_addr"),
    }


_SEND_OPS = ibv_qp_init_attr_mask.IBV_QP_INIT_ATTR_SEND_OPS_FLAGS
_OPERATIONS = {
    opcode: int(ibv_qp_create_send_ops_flags[f"IBV_QP_EX_WITH_{opcode.name}"])
    for opcode in work.WROpcode
}
_SUPPORTED_OPERATIONS = sum(_OPERATIONS.values())
