"""Work requests and scatter-gather elements, with pyverbs' names."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ibwire.base.errors import VerbsError
from ibwire.rc import work
from ibwire.verbs.base import PyverbsCM, inc_rkey, pyverbs_errors, table
from ibwire.verbs.fields import Unsigned, unsigned
from ibwire.verbs.libibverbs_enums import ibv_send_flags, ibv_wr_opcode
from ibwire.verbs.network import current
from ibwire.verbs.pyverbs_error import PyverbsUserError
from ibwire.verbs.utils import names_of

if TYPE_CHECKING:
    from ibwire.verbs.addr import AH
    from ibwire.verbs.memory import Memory
    from ibwire.verbs.mr import MW, MWBindInfo


def swapped(word: int) -> int:
    """A 32-bit word with its bytes reversed.

    Verbs passes immediate data in network order without conversion, so on the little-endian hosts
    of pyverbs its number has the bytes reversed.
    """
    return int.from_bytes(word.to_bytes(4, "little"), "big") if word else 0


class SGE(PyverbsCM):
    """A piece of local memory: `ibv_sge`."""

    addr = Unsigned(64)
    length = Unsigned(32)
    lkey = Unsigned(32)
    _addr: int
    _length: int
    _lkey: int

    def __init__(self, addr: int, length: int, lkey: int) -> None:
        if type(addr) is type(length) is type(lkey) is int and not (
            addr >> 64 or length >> 32 or lkey >> 32
        ):  # one check for all: an element is made for each message
            self._addr, self._length, self._lkey = addr, length, lkey
        else:
            self.addr, self.length, self.lkey = addr, length, lkey
        self._memory = current().memory

    def read(self, length: int, offset: int) -> bytes:
        """Read bytes at the element's address, whatever its length."""
        with pyverbs_errors("Failed to read at an SGE"):
            return bytes(self._memory.at(self.addr + offset, length))

    def element(self) -> work.SGE:
        """The element as the device has it."""
        return work.SGE(self.addr, self.length, self.lkey)

    def __str__(self) -> str:
        return table(("Address", hex(self.addr)), ("Length", self.length), ("Key", hex(self.lkey)))


class _WR(PyverbsCM):
    """Base of both kinds of work requests."""

    wr_id = Unsigned(64)
    num_sge = Unsigned(31)

    def _take_sges(self, num_sge: int, sg: Sequence[SGE] | None) -> None:
        self.num_sge = num_sge
        elements = [] if sg is None else list(sg)
        if self.num_sge > len(elements):
            raise PyverbsUserError(f"num_sge is {num_sge} with {len(elements)} SGEs")
        # Copied, as in pyverbs: later changes of an SGE have no effect.
        self._sges = [sge.element() for sge in elements[: self.num_sge]]

    def elements(self) -> list[work.SGE]:
        """The elements as the device has them; raises `VerbsError` if some are missing."""
        if self.num_sge > len(self._sges):
            raise VerbsError(errno.EINVAL, f"num_sge is {self.num_sge}, SGEs {len(self._sges)}")
        return self._sges[: self.num_sge]


class RecvWR(_WR):
    """A receive work request: `ibv_recv_wr`."""

    def __init__(
        self,
        wr_id: int = 0,
        num_sge: int = 0,
        sg: Sequence[SGE] | None = None,
        next_wr: RecvWR | None = None,
    ) -> None:
        self._take_sges(num_sge, sg)
        self.wr_id = wr_id
        self.next_wr = next_wr

    @property
    def sg_list(self) -> list[work.SGE]:
        """The elements."""
        return self._sges

    def request(self) -> work.RecvWR:
        """The request as the device has it, without `next`."""
        return work.RecvWR(sg_list=self.elements(), wr_id=self.wr_id)

    def copy_from(self, other: RecvWR) -> None:
        """Copy every field of another request, to report an invalid one."""
        self.__dict__.update(other.__dict__)

    def __str__(self) -> str:
        return table(("WR ID", self.wr_id), ("Num SGE", self.num_sge))


class SendWR(_WR):
    """A send work request: `ibv_send_wr`.

    imm_data: the word as stored in memory, which is `socket.htonl` of a number; for LOCAL_INV and
    SEND_WITH_INV the key to invalidate, in host order.
    """

    imm_data = Unsigned(32)
    opcode = Unsigned(32)
    send_flags = Unsigned(32)

    def __init__(
        self,
        wr_id: int = 0,
        opcode: int = ibv_wr_opcode.IBV_WR_SEND,
        num_sge: int = 0,
        imm_data: int = 0,
        sg: Sequence[SGE] | None = None,
        send_flags: int = ibv_send_flags.IBV_SEND_SIGNALED,
        next_wr: SendWR | None = None,
    ) -> None:
        if opcode not in _WITHOUT_DATA and (num_sge < 1 or sg is None):
            raise PyverbsUserError("A send work request of this opcode needs an SGE")
        self._take_sges(num_sge, sg)
        self.wr_id = wr_id
        self.opcode = opcode
        self.imm_data = imm_data
        self.send_flags = send_flags
        self.next_wr = next_wr
        self._remote_addr = 0
        self._remote_key = 0
        self._compare_add = 0
        self._swap = 0
        self._ah: AH | None = None
        self._remote_qpn = 0
        self._remote_qkey = 0
        self._remote_srqn = 0
        self._mw: MW | None = None
        self._bind_info: MWBindInfo | None = None
        self._bind_key = 0

    @property
    def sg_list(self) -> list[work.SGE]:
        """The elements; assigning one `SGE` makes it the whole list."""
        return self._sges

    @sg_list.setter
    def sg_list(self, val: SGE) -> None:
        self._sges = [val.element()]

    def set_wr_ud(self, ah: AH, rqpn: int, rqkey: int) -> None:
        """Set the destination of a datagram."""
        self._ah = ah
        self._remote_qpn = unsigned(rqpn, 32, "rqpn")
        self._remote_qkey = unsigned(rqkey, 32, "rqkey")

    def set_wr_rdma(self, rkey: int, addr: int) -> None:
        """Set the remote address and key of a READ or WRITE."""
        self._remote_key = unsigned(rkey, 32, "rkey")
        self._remote_addr = unsigned(addr, 64, "addr")

    def set_wr_atomic(self, rkey: int, addr: int, compare_add: int, swap: int = 0) -> None:
        """Set the operands, remote address and key of an atomic."""
        self._remote_key = unsigned(rkey, 32, "rkey")
        self._remote_addr = unsigned(addr, 64, "addr")
        self._compare_add = unsigned(compare_add, 64, "compare_add")
        self._swap = unsigned(swap, 64, "swap")

    def set_bind_wr(self, mw: MW, bind_info: MWBindInfo) -> None:
        """Set the window, its new key and the binding."""
        self._mw = mw
        self._bind_info = bind_info
        self._bind_key = inc_rkey(mw.rkey)

    def set_qp_type_xrc(self, remote_srqn: int) -> None:
        """Set the peer's shared receive queue for the message."""
        self._remote_srqn = unsigned(remote_srqn, 32, "remote_srqn")

    @property
    def rkey(self) -> int:
        """The key that the window of `set_bind_wr` gets."""
        return self._bind_key

    @property
    def rdma_remote_addr(self) -> int:
        """Address of `set_wr_rdma`."""
        return self._remote_addr

    @property
    def rdma_rkey(self) -> int:
        """Key of `set_wr_rdma`."""
        return self._remote_key

    def request(self, memory: Memory) -> work.SendWR:
        """The request as the device has it, without `next`; raises `VerbsError` if it is invalid.

        memory: where inline data is.
        """
        opcode = _opcode(self.opcode)
        inline = None
        if self.send_flags & _INLINE:
            inline = b"".join(bytes(memory.at(s.addr, s.length)) for s in self.elements())
        return work.SendWR(
            opcode=opcode,
            sg_list=self.elements() if inline is None else (),
            send_flags=self.send_flags,
            wr_id=self.wr_id,
            imm_data=swapped(self.imm_data),
            invalidate_rkey=self.imm_data,
            remote_addr=self._remote_addr,
            rkey=self._bind_key if opcode is work.WROpcode.BIND_MW else self._remote_key,
            compare_add=self._compare_add,
            swap=self._swap,
            ah=None if self._ah is None else self._ah.vector,
            remote_qpn=self._remote_qpn,
            remote_qkey=self._remote_qkey,
            remote_srqn=self._remote_srqn,
            mw=None if self._mw is None else self._mw.mw,
            bind_info=None if self._bind_info is None else self._bind_info.info(),
            inline_data=inline,
        )

    def copy_from(self, other: SendWR) -> None:
        """Copy every field of another request, to report an invalid one."""
        self.__dict__.update(other.__dict__)

    def __str__(self) -> str:
        return table(
            ("WR ID", self.wr_id),
            ("Num SGE", self.num_sge),
            ("Opcode", self.opcode),
            ("Send flags", send_flags_to_str(self.send_flags)),
            ("Imm Data", self.imm_data),
        )


def _opcode(value: int) -> work.WROpcode:
    opcode = _OPCODES.get(value)
    if opcode is None:
        raise VerbsError(errno.EINVAL, f"opcode {value} is not supported")
    return opcode


def send_flags_to_str(flags: int) -> str:
    """Names of send flags."""
    return names_of({flag.value: str(flag.name) for flag in ibv_send_flags}, flags)


_INLINE = int(ibv_send_flags.IBV_SEND_INLINE)

_OPCODES = {opcode.value: opcode for opcode in work.WROpcode}

_WITHOUT_DATA = {
    ibv_wr_opcode.IBV_WR_LOCAL_INV,
    ibv_wr_opcode.IBV_WR_BIND_MW,
    ibv_wr_opcode.IBV_WR_SEND_WITH_INV,
}
