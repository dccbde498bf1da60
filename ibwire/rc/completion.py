"""Completions of work requests.

Values of the enumerations are those of rdma-core's `verbs.h`, without the prefix.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, IntFlag


class WCStatus(IntEnum):
    """How a work request ended: `ibv_wc_status`."""

    SUCCESS = 0
    LOC_LEN_ERR = 1
    LOC_QP_OP_ERR = 2
    LOC_EEC_OP_ERR = 3
    LOC_PROT_ERR = 4
    WR_FLUSH_ERR = 5
    MW_BIND_ERR = 6
    BAD_RESP_ERR = 7
    LOC_ACCESS_ERR = 8
    REM_INV_REQ_ERR = 9
    REM_ACCESS_ERR = 10
    REM_OP_ERR = 11
    RETRY_EXC_ERR = 12
    RNR_RETRY_EXC_ERR = 13
    LOC_RDD_VIOL_ERR = 14
    REM_INV_RD_REQ_ERR = 15
    REM_ABORT_ERR = 16
    INV_EECN_ERR = 17
    INV_EEC_STATE_ERR = 18
    FATAL_ERR = 19
    RESP_TIMEOUT_ERR = 20
    GENERAL_ERR = 21
    TM_ERR = 22
    TM_RNDV_INCOMPLETE = 23


class WCOpcode(IntEnum):
    """Operation of a completion: `ibv_wc_opcode`."""

    SEND = 0
    RDMA_WRITE = 1
    RDMA_READ = 2
    COMP_SWAP = 3
    FETCH_ADD = 4
    BIND_MW = 5
    LOCAL_INV = 6
    FLUSH = 8
    ATOMIC_WRITE = 9
    RECV = 128
    RECV_RDMA_WITH_IMM = 129


class WCFlags(IntFlag):
    """`ibv_wc_flags`."""

    GRH = 1
    WITH_IMM = 2
    IP_CSUM_OK = 4
    WITH_INV = 8


@dataclass(slots=True, init=False)
class WC:
    """A work completion; an error sets only `wr_id`, `status`, `vendor_err` and `qp_num`."""

    wr_id: int
    status: WCStatus
    opcode: WCOpcode
    qp_num: int
    byte_len: int
    imm_data: int
    """Immediate data with the flag WITH_IMM, the invalidated key with WITH_INV."""
    wc_flags: int
    src_qp: int
    vendor_err: int
    pkey_index: int
    slid: int
    sl: int
    solicited: bool
    """Whether it raises an event in a CQ that is armed for solicited completions only."""

    # Written out: that of a dataclass is never compiled.
    def __init__(
        self,
        wr_id: int,
        status: WCStatus,
        opcode: WCOpcode,
        qp_num: int,
        byte_len: int = 0,
        imm_data: int = 0,
        wc_flags: int = 0,
        src_qp: int = 0,
        vendor_err: int = 0,
        pkey_index: int = 0,
        slid: int = 0,
        sl: int = 0,
        solicited: bool = False,
    ) -> None:
        self.wr_id = wr_id
        self.status = status
        self.opcode = opcode
        self.qp_num = qp_num
        self.byte_len = byte_len
        self.imm_data = imm_data
        self.wc_flags = wc_flags
        self.src_qp = src_qp
        self.vendor_err = vendor_err
        self.pkey_index = pkey_index
        self.slid = slid
        self.sl = sl
        self.solicited = solicited
