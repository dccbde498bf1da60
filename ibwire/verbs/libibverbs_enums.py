"""The enumerations of libibverbs under pyverbs' names, as classes and as plain names.

Values: rdma-core's `verbs.h` and `ib_user_ioctl_verbs.h`. What devices may be able
to do beside the transport is in `ibwire.verbs.capability_enums`.
"""

from __future__ import annotations

from enum import IntEnum, IntFlag, global_enum

from ibwire.verbs.capability_enums import (
    ibv_counter_description,
    ibv_device_cap_flags,
    ibv_dmah_init_attr_mask,
    ibv_flow_attr_type,
    ibv_flow_flags,
    ibv_flow_spec_type,
    ibv_fork_status,
    ibv_odp_general_caps,
    ibv_odp_transport_cap_bits,
    ibv_ops_flags,
    ibv_ops_wr_opcode,
    ibv_parent_domain_init_attr_mask,
    ibv_port_cap_flags,
    ibv_port_cap_flags2,
    ibv_qp_attach_comp_cntr_op,
    ibv_raw_packet_caps,
    ibv_read_counters_flags,
    ibv_rx_hash_fields,
    ibv_rx_hash_function_flags,
    ibv_tm_cap_flags,
    ibv_tmh_op,
    ibv_tph_mem_type,
    ibv_values_mask,
    ibv_wq_attr_mask,
    ibv_wq_flags,
    ibv_wq_init_attr_mask,
    ibv_wq_state,
    ibv_wq_type,
)


@global_enum
class ibv_transport_type(IntEnum):
    """Family of transports that a device speaks."""

    IBV_TRANSPORT_UNKNOWN = -1
    IBV_TRANSPORT_IB = 0
    IBV_TRANSPORT_IWARP = 1
    IBV_TRANSPORT_USNIC = 2
    IBV_TRANSPORT_USNIC_UDP = 3


@global_enum
class ibv_node_type(IntEnum):
    """What a device is: a channel adapter, a switch, ..."""

    IBV_NODE_UNKNOWN = -1
    IBV_NODE_CA = 1
    IBV_NODE_SWITCH = 2
    IBV_NODE_ROUTER = 3
    IBV_NODE_RNIC = 4
    IBV_NODE_USNIC = 5
    IBV_NODE_USNIC_UDP = 6
    IBV_NODE_UNSPECIFIED = 7


@global_enum
class ibv_atomic_cap(IntEnum):
    """How far atomics reach: nowhere, this device, the whole host."""

    IBV_ATOMIC_NONE = 0
    IBV_ATOMIC_HCA = 1
    IBV_ATOMIC_GLOB = 2


@global_enum
class ibv_port_state(IntEnum):
    """Logical state of a port."""

    IBV_PORT_NOP = 0
    IBV_PORT_DOWN = 1
    IBV_PORT_INIT = 2
    IBV_PORT_ARMED = 3
    IBV_PORT_ACTIVE = 4
    IBV_PORT_ACTIVE_DEFER = 5


@global_enum
class ibv_mtu(IntEnum):
    """Path MTU codes."""

    IBV_MTU_256 = 1
    IBV_MTU_512 = 2
    IBV_MTU_1024 = 3
    IBV_MTU_2048 = 4
    IBV_MTU_4096 = 5


@global_enum
class ibv_event_type(IntEnum):
    """Asynchronous events."""

    IBV_EVENT_CQ_ERR = 0
    IBV_EVENT_QP_FATAL = 1
    IBV_EVENT_QP_REQ_ERR = 2
    IBV_EVENT_QP_ACCESS_ERR = 3
    IBV_EVENT_COMM_EST = 4
    IBV_EVENT_SQ_DRAINED = 5
    IBV_EVENT_PATH_MIG = 6
    IBV_EVENT_PATH_MIG_ERR = 7
    IBV_EVENT_DEVICE_FATAL = 8
    IBV_EVENT_PORT_ACTIVE = 9
    IBV_EVENT_PORT_ERR = 10
    IBV_EVENT_LID_CHANGE = 11
    IBV_EVENT_PKEY_CHANGE = 12
    IBV_EVENT_SM_CHANGE = 13
    IBV_EVENT_SRQ_ERR = 14
    IBV_EVENT_SRQ_LIMIT_REACHED = 15
    IBV_EVENT_QP_LAST_WQE_REACHED = 16
    IBV_EVENT_CLIENT_REREGISTER = 17
    IBV_EVENT_GID_CHANGE = 18
    IBV_EVENT_WQ_FATAL = 19
    IBV_EVENT_DEVICE_SPEED_CHANGE = 20


@global_enum
class ibv_access_flags(IntFlag):
    """What may be done with a region, a window or a queue pair."""

    IBV_ACCESS_LOCAL_WRITE = 1 << 0
    IBV_ACCESS_REMOTE_WRITE = 1 << 1
    IBV_ACCESS_REMOTE_READ = 1 << 2
    IBV_ACCESS_REMOTE_ATOMIC = 1 << 3
    IBV_ACCESS_MW_BIND = 1 << 4
    IBV_ACCESS_ZERO_BASED = 1 << 5
    IBV_ACCESS_ON_DEMAND = 1 << 6
    IBV_ACCESS_HUGETLB = 1 << 7
    IBV_ACCESS_FLUSH_GLOBAL = 1 << 8
    IBV_ACCESS_FLUSH_PERSISTENT = 1 << 9
    IBV_ACCESS_RELAXED_ORDERING = 1 << 20


@global_enum
class ibv_rereg_mr_flags(IntFlag):
    """What a re-registration changes."""

    IBV_REREG_MR_CHANGE_TRANSLATION = 1 << 0
    IBV_REREG_MR_CHANGE_PD = 1 << 1
    IBV_REREG_MR_CHANGE_ACCESS = 1 << 2


@global_enum
class ibv_rereg_mr_err_code(IntEnum):
    """Where a re-registration failed."""

    IBV_REREG_MR_ERR_INPUT = -1
    IBV_REREG_MR_ERR_DONT_FORK_NEW = -2
    IBV_REREG_MR_ERR_DO_FORK_OLD = -3
    IBV_REREG_MR_ERR_CMD = -4
    IBV_REREG_MR_ERR_CMD_AND_DO_FORK_NEW = -5


@global_enum
class ibv_wr_opcode(IntEnum):
    """What a send work request asks for."""

    IBV_WR_RDMA_WRITE = 0
    IBV_WR_RDMA_WRITE_WITH_IMM = 1
    IBV_WR_SEND = 2
    IBV_WR_SEND_WITH_IMM = 3
    IBV_WR_RDMA_READ = 4
    IBV_WR_ATOMIC_CMP_AND_SWP = 5
    IBV_WR_ATOMIC_FETCH_AND_ADD = 6
    IBV_WR_LOCAL_INV = 7
    IBV_WR_BIND_MW = 8
    IBV_WR_SEND_WITH_INV = 9
    IBV_WR_TSO = 10
    IBV_WR_FLUSH = 14
    IBV_WR_ATOMIC_WRITE = 15


@global_enum
class ibv_send_flags(IntFlag):
    """Flags of a send work request."""

    IBV_SEND_FENCE = 1 << 0
    IBV_SEND_SIGNALED = 1 << 1
    IBV_SEND_SOLICITED = 1 << 2
    IBV_SEND_INLINE = 1 << 3
    IBV_SEND_IP_CSUM = 1 << 4


@global_enum
class ibv_qp_type(IntEnum):
    """Transport service of a queue pair."""

    IBV_QPT_RC = 2
    IBV_QPT_UC = 3
    IBV_QPT_UD = 4
    IBV_QPT_RAW_PACKET = 8
    IBV_QPT_XRC_SEND = 9
    IBV_QPT_XRC_RECV = 10
    IBV_QPT_DRIVER = 255


@global_enum
class ibv_qp_state(IntEnum):
    """State of a queue pair."""

    IBV_QPS_RESET = 0
    IBV_QPS_INIT = 1
    IBV_QPS_RTR = 2
    IBV_QPS_RTS = 3
    IBV_QPS_SQD = 4
    IBV_QPS_SQE = 5
    IBV_QPS_ERR = 6
    IBV_QPS_UNKNOWN = 7


@global_enum
class ibv_mw_type(IntEnum):
    """Kind of a memory window."""

    IBV_MW_TYPE_1 = 1
    IBV_MW_TYPE_2 = 2


@global_enum
class ibv_wc_status(IntEnum):
    """How a work request ended."""

    IBV_WC_SUCCESS = 0
    IBV_WC_LOC_LEN_ERR = 1
    IBV_WC_LOC_QP_OP_ERR = 2
    IBV_WC_LOC_EEC_OP_ERR = 3
    IBV_WC_LOC_PROT_ERR = 4
    IBV_WC_WR_FLUSH_ERR = 5
    IBV_WC_MW_BIND_ERR = 6
    IBV_WC_BAD_RESP_ERR = 7
    IBV_WC_LOC_ACCESS_ERR = 8
    IBV_WC_REM_INV_REQ_ERR = 9
    IBV_WC_REM_ACCESS_ERR = 10
    IBV_WC_REM_OP_ERR = 11
    IBV_WC_RETRY_EXC_ERR = 12
    IBV_WC_RNR_RETRY_EXC_ERR = 13
    IBV_WC_LOC_RDD_VIOL_ERR = 14
    IBV_WC_REM_INV_RD_REQ_ERR = 15
    IBV_WC_REM_ABORT_ERR = 16
    IBV_WC_INV_EECN_ERR = 17
    IBV_WC_INV_EEC_STATE_ERR = 18
    IBV_WC_FATAL_ERR = 19
    IBV_WC_RESP_TIMEOUT_ERR = 20
    IBV_WC_GENERAL_ERR = 21
    IBV_WC_TM_ERR = 22
    IBV_WC_TM_RNDV_INCOMPLETE = 23


@global_enum
class ibv_wc_opcode(IntEnum):
    """What has completed."""

    IBV_WC_SEND = 0
    IBV_WC_RDMA_WRITE = 1
    IBV_WC_RDMA_READ = 2
    IBV_WC_COMP_SWAP = 3
    IBV_WC_FETCH_ADD = 4
    IBV_WC_BIND_MW = 5
    IBV_WC_LOCAL_INV = 6
    IBV_WC_TSO = 7
    IBV_WC_FLUSH = 8
    IBV_WC_ATOMIC_WRITE = 9
    IBV_WC_RECV = 128
    IBV_WC_RECV_RDMA_WITH_IMM = 129
    IBV_WC_TM_ADD = 130
    IBV_WC_TM_DEL = 131
    IBV_WC_TM_SYNC = 132
    IBV_WC_TM_RECV = 133
    IBV_WC_TM_NO_TAG = 134
    IBV_WC_DRIVER2 = 136
    IBV_WC_DRIVER3 = 137


@global_enum
class ibv_create_cq_wc_flags(IntFlag):
    """What an extended CQ is to report."""

    IBV_WC_EX_WITH_BYTE_LEN = 1 << 0
    IBV_WC_EX_WITH_IMM = 1 << 1
    IBV_WC_EX_WITH_QP_NUM = 1 << 2
    IBV_WC_EX_WITH_SRC_QP = 1 << 3
    IBV_WC_EX_WITH_SLID = 1 << 4
    IBV_WC_EX_WITH_SL = 1 << 5
    IBV_WC_EX_WITH_DLID_PATH_BITS = 1 << 6
    IBV_WC_EX_WITH_COMPLETION_TIMESTAMP = 1 << 7
    IBV_WC_EX_WITH_CVLAN = 1 << 8
    IBV_WC_EX_WITH_FLOW_TAG = 1 << 9
    IBV_WC_EX_WITH_TM_INFO = 1 << 10
    IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK = 1 << 11


@global_enum
class ibv_wc_flags(IntFlag):
    """Flags of a work completion."""

    IBV_WC_GRH = 1 << 0
    IBV_WC_WITH_IMM = 1 << 1
    IBV_WC_IP_CSUM_OK = 1 << 2
    IBV_WC_WITH_INV = 1 << 3
    IBV_WC_TM_SYNC_REQ = 1 << 4
    IBV_WC_TM_MATCH = 1 << 5
    IBV_WC_TM_DATA_VALID = 1 << 6


@global_enum
class ibv_srq_attr_mask(IntFlag):
    """Which attributes of a shared receive queue a modify sets."""

    IBV_SRQ_MAX_WR = 1 << 0
    IBV_SRQ_LIMIT = 1 << 1


@global_enum
class ibv_srq_type(IntEnum):
    """Kind of a shared receive queue."""

    IBV_SRQT_BASIC = 0
    IBV_SRQT_XRC = 1
    IBV_SRQT_TM = 2


@global_enum
class ibv_srq_init_attr_mask(IntFlag):
    """Which fields of the attributes of a new shared receive queue count."""

    IBV_SRQ_INIT_ATTR_TYPE = 1 << 0
    IBV_SRQ_INIT_ATTR_PD = 1 << 1
    IBV_SRQ_INIT_ATTR_XRCD = 1 << 2
    IBV_SRQ_INIT_ATTR_CQ = 1 << 3
    IBV_SRQ_INIT_ATTR_TM = 1 << 4


@global_enum
class ibv_mig_state(IntEnum):
    """Automatic path migration."""

    IBV_MIG_MIGRATED = 0
    IBV_MIG_REARM = 1
    IBV_MIG_ARMED = 2


@global_enum
class ibv_qp_init_attr_mask(IntFlag):
    """Which fields of the attributes of a new queue pair count."""

    IBV_QP_INIT_ATTR_PD = 1 << 0
    IBV_QP_INIT_ATTR_XRCD = 1 << 1
    IBV_QP_INIT_ATTR_CREATE_FLAGS = 1 << 2
    IBV_QP_INIT_ATTR_MAX_TSO_HEADER = 1 << 3
    IBV_QP_INIT_ATTR_IND_TABLE = 1 << 4
    IBV_QP_INIT_ATTR_RX_HASH = 1 << 5
    IBV_QP_INIT_ATTR_SEND_OPS_FLAGS = 1 << 6


@global_enum
class ibv_qp_create_flags(IntFlag):
    """Options of a new queue pair."""

    IBV_QP_CREATE_BLOCK_SELF_MCAST_LB = 1 << 1
    IBV_QP_CREATE_SCATTER_FCS = 1 << 8
    IBV_QP_CREATE_CVLAN_STRIPPING = 1 << 9
    IBV_QP_CREATE_SOURCE_QPN = 1 << 10
    IBV_QP_CREATE_PCI_WRITE_END_PADDING = 1 << 11


@global_enum
class ibv_qp_attr_mask(IntFlag):
    """Which attributes of a queue pair a modify sets."""

    IBV_QP_STATE = 1 << 0
    IBV_QP_CUR_STATE = 1 << 1
    IBV_QP_EN_SQD_ASYNC_NOTIFY = 1 << 2
    IBV_QP_ACCESS_FLAGS = 1 << 3
    IBV_QP_PKEY_INDEX = 1 << 4
    IBV_QP_PORT = 1 << 5
    IBV_QP_QKEY = 1 << 6
    IBV_QP_AV = 1 << 7
    IBV_QP_PATH_MTU = 1 << 8
    IBV_QP_TIMEOUT = 1 << 9
    IBV_QP_RETRY_CNT = 1 << 10
    IBV_QP_RNR_RETRY = 1 << 11
    IBV_QP_RQ_PSN = 1 << 12
    IBV_QP_MAX_QP_RD_ATOMIC = 1 << 13
    IBV_QP_ALT_PATH = 1 << 14
    IBV_QP_MIN_RNR_TIMER = 1 << 15
    IBV_QP_SQ_PSN = 1 << 16
    IBV_QP_MAX_DEST_RD_ATOMIC = 1 << 17
    IBV_QP_PATH_MIG_STATE = 1 << 18
    IBV_QP_CAP = 1 << 19
    IBV_QP_DEST_QPN = 1 << 20
    IBV_QP_RATE_LIMIT = 1 << 25


@global_enum
class ibv_query_qp_data_in_order_flags(IntFlag):
    """How a query about the order of data is answered."""

    IBV_QUERY_QP_DATA_IN_ORDER_RETURN_CAPS = 1 << 0


@global_enum
class ibv_query_qp_data_in_order_caps(IntFlag):
    """What is written in order."""

    IBV_QUERY_QP_DATA_IN_ORDER_WHOLE_MSG = 1 << 0
    IBV_QUERY_QP_DATA_IN_ORDER_ALIGNED_128_BYTES = 1 << 1


@global_enum
class ibv_cq_init_attr_mask(IntFlag):
    """Which fields of the attributes of a new CQ count."""

    IBV_CQ_INIT_ATTR_MASK_FLAGS = 1 << 0
    IBV_CQ_INIT_ATTR_MASK_PD = 1 << 1


@global_enum
class ibv_create_cq_attr_flags(IntFlag):
    """Options of a new CQ."""

    IBV_CREATE_CQ_ATTR_SINGLE_THREADED = 1 << 0
    IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN = 1 << 1


@global_enum
class ibv_xrcd_init_attr_mask(IntFlag):
    """Which fields of the attributes of a new XRC domain count."""

    IBV_XRCD_INIT_ATTR_FD = 1 << 0
    IBV_XRCD_INIT_ATTR_OFLAGS = 1 << 1
    IBV_XRCD_INIT_ATTR_RESERVED = 1 << 2


@global_enum
class ibv_qp_create_send_ops_flags(IntFlag):
    """Which operations an extended queue pair is to post."""

    IBV_QP_EX_WITH_RDMA_WRITE = 1 << 0
    IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM = 1 << 1
    IBV_QP_EX_WITH_SEND = 1 << 2
    IBV_QP_EX_WITH_SEND_WITH_IMM = 1 << 3
    IBV_QP_EX_WITH_RDMA_READ = 1 << 4
    IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP = 1 << 5
    IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD = 1 << 6
    IBV_QP_EX_WITH_LOCAL_INV = 1 << 7
    IBV_QP_EX_WITH_BIND_MW = 1 << 8
    IBV_QP_EX_WITH_SEND_WITH_INV = 1 << 9
    IBV_QP_EX_WITH_TSO = 1 << 10
    IBV_QP_EX_WITH_FLUSH = 1 << 11
    IBV_QP_EX_WITH_ATOMIC_WRITE = 1 << 12


@global_enum
class ibv_gid_type(IntEnum):
    """What a GID is for."""

    IBV_GID_TYPE_IB = 0
    IBV_GID_TYPE_ROCE_V1 = 1
    IBV_GID_TYPE_ROCE_V2 = 2


@global_enum
class ibv_placement_type(IntFlag):
    """What a FLUSH makes sure of."""

    IBV_FLUSH_GLOBAL = 1 << 0
    IBV_FLUSH_PERSISTENT = 1 << 1


@global_enum
class ibv_selectivity_level(IntEnum):
    """What a FLUSH covers."""

    IBV_FLUSH_MR = 1
    IBV_FLUSH_RANGE = 0


@global_enum
class ibv_mr_init_attr_mask(IntFlag):
    """Which fields of the attributes of a new region count."""

    IBV_REG_MR_MASK_IOVA = 1 << 0
    IBV_REG_MR_MASK_ADDR = 1 << 1
    IBV_REG_MR_MASK_FD = 1 << 2
    IBV_REG_MR_MASK_FD_OFFSET = 1 << 3
    IBV_REG_MR_MASK_DMAH = 1 << 4
    IBV_REG_MR_MASK_BUF = 1 << 5


@global_enum
class ibv_gid_type_sysfs(IntEnum):
    """What a GID is for, as the kernel lists it."""

    IBV_GID_TYPE_SYSFS_IB_ROCE_V1 = 0
    IBV_GID_TYPE_SYSFS_ROCE_V2 = 1


for _capability in (
    ibv_counter_description,
    ibv_device_cap_flags,
    ibv_dmah_init_attr_mask,
    ibv_flow_attr_type,
    ibv_flow_flags,
    ibv_flow_spec_type,
    ibv_fork_status,
    ibv_odp_general_caps,
    ibv_odp_transport_cap_bits,
    ibv_ops_flags,
    ibv_ops_wr_opcode,
    ibv_parent_domain_init_attr_mask,
    ibv_port_cap_flags,
    ibv_port_cap_flags2,
    ibv_qp_attach_comp_cntr_op,
    ibv_raw_packet_caps,
    ibv_read_counters_flags,
    ibv_rx_hash_fields,
    ibv_rx_hash_function_flags,
    ibv_tm_cap_flags,
    ibv_tmh_op,
    ibv_tph_mem_type,
    ibv_values_mask,
    ibv_wq_attr_mask,
    ibv_wq_flags,
    ibv_wq_init_attr_mask,
    ibv_wq_state,
    ibv_wq_type,
):
    globals().update(_capability.__members__)

IBV_LINK_LAYER_UNSPECIFIED = 0
IBV_LINK_LAYER_INFINIBAND = 1
IBV_LINK_LAYER_ETHERNET = 2
IBV_QPF_GRH_REQUIRED = 1
IBV_WC_STANDARD_FLAGS = 127
_IBV_DEVICE_RAW_SCATTER_FCS = 17179869184
_IBV_DEVICE_PCI_WRITE_END_PADDING = 68719476736
_IBV_DEVICE_CC_DMA_BOUNCE = 2199023255552
_IBV_ALLOCATOR_USE_DEFAULT = -1
_IBV_ADVISE_MR_ADVICE_PREFETCH = 0
_IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE = 1
_IBV_ADVISE_MR_FLAG_FLUSH = 1
_IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT = 2
