"""Attributes of queue pairs, and the names of their states, types and events.

Values of the enumerations are those of rdma-core's `verbs.h`, without the prefix.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum, IntFlag

MTU_BYTES = {1: 256, 2: 512, 3: 1024, 4: 2048, 5: 4096}
"""Bytes by path MTU code (IBA 9.4.3)."""

MTU_CODES = {size: code for code, size in MTU_BYTES.items()}


class QPType(IntEnum):
    """Transport service of a queue pair: `ibv_qp_type`."""

    RC = 2
    UC = 3
    UD = 4
    XRC_SEND = 9
    XRC_RECV = 10


class QPState(IntEnum):
    """`ibv_qp_state`."""

    RESET = 0
    INIT = 1
    RTR = 2
    RTS = 3
    SQD = 4
    SQE = 5
    ERR = 6


class MigState(IntEnum):
    """Automatic path migration: `ibv_mig_state`."""

    MIGRATED = 0
    REARM = 1
    ARMED = 2


class QPAttrMask(IntFlag):
    """Which attributes a modify sets: `ibv_qp_attr_mask`."""

    STATE = 1 << 0
    CUR_STATE = 1 << 1
    EN_SQD_ASYNC_NOTIFY = 1 << 2
    ACCESS_FLAGS = 1 << 3
    PKEY_INDEX = 1 << 4
    PORT = 1 << 5
    QKEY = 1 << 6
    AV = 1 << 7
    PATH_MTU = 1 << 8
    TIMEOUT = 1 << 9
    RETRY_CNT = 1 << 10
    RNR_RETRY = 1 << 11
    RQ_PSN = 1 << 12
    MAX_QP_RD_ATOMIC = 1 << 13
    ALT_PATH = 1 << 14
    MIN_RNR_TIMER = 1 << 15
    SQ_PSN = 1 << 16
    MAX_DEST_RD_ATOMIC = 1 << 17
    PATH_MIG_STATE = 1 << 18
    CAP = 1 << 19
    DEST_QPN = 1 << 20
    RATE_LIMIT = 1 << 25


class EventType(IntEnum):
    """Asynchronous events: `ibv_event_type`."""

    CQ_ERR = 0
    QP_FATAL = 1
    QP_REQ_ERR = 2
    QP_ACCESS_ERR = 3
    COMM_EST = 4
    SQ_DRAINED = 5
    PATH_MIG = 6
    PATH_MIG_ERR = 7
    DEVICE_FATAL = 8
    PORT_ACTIVE = 9
    PORT_ERR = 10
    LID_CHANGE = 11
    PKEY_CHANGE = 12
    SM_CHANGE = 13
    SRQ_ERR = 14
    SRQ_LIMIT_REACHED = 15
    QP_LAST_WQE_REACHED = 16


@dataclass(frozen=True, slots=True)
class AsyncEvent:
    """Something that happened to an object of the device: a QP, CQ or SRQ."""

    event_type: EventType
    element: object = None


@dataclass(frozen=True, slots=True)
class AddressVector:
    """The destination of packets: `ibv_ah_attr` with its global route."""

    dgid: int = 0
    """128 bits; an IPv4 address is ::ffff:a.b.c.d."""
    sgid_index: int = 0
    traffic_class: int = 0
    """DSCP and ECN on Ethernet."""
    flow_label: int = 0
    hop_limit: int = 64
    sl: int = 0
    dlid: int = 0
    src_path_bits: int = 0
    is_global: bool = True
    port_num: int = 1
    dmac: bytes | None = None
    """MAC address of the next hop; with `None` the device looks it up."""
    udp_source_port: int | None = None
    """RoCEv2 source port; `None` for the profile's choice."""


@dataclass(slots=True)
class QPCap:
    """Sizes of a queue pair: `ibv_qp_cap`."""

    max_send_wr: int = 128
    max_recv_wr: int = 128
    max_send_sge: int = 16
    max_recv_sge: int = 16
    max_inline_data: int = 0


@dataclass(slots=True)
class QPAttr:
    """Attributes that a modify sets and a query returns: `ibv_qp_attr`."""

    qp_state: QPState = QPState.RESET
    cur_qp_state: QPState = QPState.RESET
    path_mtu: int = 3
    """MTU code 1 to 5."""
    path_mig_state: MigState = MigState.MIGRATED
    qkey: int = 0
    rq_psn: int = 0
    sq_psn: int = 0
    dest_qp_num: int = 0
    qp_access_flags: int = 0
    cap: QPCap = field(default_factory=QPCap)
    ah_attr: AddressVector = AddressVector()
    alt_ah_attr: AddressVector = AddressVector()
    pkey_index: int = 0
    alt_pkey_index: int = 0
    en_sqd_async_notify: int = 0
    sq_draining: int = 0
    max_rd_atomic: int = 0
    max_dest_rd_atomic: int = 0
    min_rnr_timer: int = 0
    """RNR timer code 0 to 31."""
    port_num: int = 1
    timeout: int = 0
    """Local ACK timeout code 0 to 31."""
    retry_cnt: int = 0
    rnr_retry: int = 0
    alt_port_num: int = 0
    alt_timeout: int = 0
    rate_limit: int = 0
    """Kilobits per second, 0 for no limit."""
