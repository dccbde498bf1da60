"""Enumerations of what devices can do, and of the offloads that real ones have.

This network has no flow steering, tag matching or on-demand paging; scripts import
their names to find that out. Values: rdma-core's `verbs.h` and `ib_user_ioctl_verbs.h`.
"""

from __future__ import annotations

from enum import IntEnum, IntFlag, global_enum


@global_enum
class ibv_port_cap_flags(IntFlag):
    """What a port can do."""

    IBV_PORT_SM = 1 << 1
    IBV_PORT_NOTICE_SUP = 1 << 2
    IBV_PORT_TRAP_SUP = 1 << 3
    IBV_PORT_OPT_IPD_SUP = 1 << 4
    IBV_PORT_AUTO_MIGR_SUP = 1 << 5
    IBV_PORT_SL_MAP_SUP = 1 << 6
    IBV_PORT_MKEY_NVRAM = 1 << 7
    IBV_PORT_PKEY_NVRAM = 1 << 8
    IBV_PORT_LED_INFO_SUP = 1 << 9
    IBV_PORT_SYS_IMAGE_GUID_SUP = 1 << 11
    IBV_PORT_PKEY_SW_EXT_PORT_TRAP_SUP = 1 << 12
    IBV_PORT_EXTENDED_SPEEDS_SUP = 1 << 14
    IBV_PORT_CAP_MASK2_SUP = 1 << 15
    IBV_PORT_CM_SUP = 1 << 16
    IBV_PORT_SNMP_TUNNEL_SUP = 1 << 17
    IBV_PORT_REINIT_SUP = 1 << 18
    IBV_PORT_DEVICE_MGMT_SUP = 1 << 19
    IBV_PORT_VENDOR_CLASS_SUP = 1 << 20
    IBV_PORT_DR_NOTICE_SUP = 1 << 21
    IBV_PORT_CAP_MASK_NOTICE_SUP = 1 << 22
    IBV_PORT_BOOT_MGMT_SUP = 1 << 23
    IBV_PORT_LINK_LATENCY_SUP = 1 << 24
    IBV_PORT_CLIENT_REG_SUP = 1 << 25
    IBV_PORT_IP_BASED_GIDS = 1 << 26


@global_enum
class ibv_port_cap_flags2(IntFlag):
    """What a port can do, second word."""

    IBV_PORT_SET_NODE_DESC_SUP = 1 << 0
    IBV_PORT_INFO_EXT_SUP = 1 << 1
    IBV_PORT_VIRT_SUP = 1 << 2
    IBV_PORT_SWITCH_PORT_STATE_TABLE_SUP = 1 << 3
    IBV_PORT_LINK_WIDTH_2X_SUP = 1 << 4
    IBV_PORT_LINK_SPEED_HDR_SUP = 1 << 5
    IBV_PORT_LINK_SPEED_NDR_SUP = 1 << 10


@global_enum
class ibv_device_cap_flags(IntFlag):
    """What a device can do."""

    IBV_DEVICE_RESIZE_MAX_WR = 1 << 0
    IBV_DEVICE_BAD_PKEY_CNTR = 1 << 1
    IBV_DEVICE_BAD_QKEY_CNTR = 1 << 2
    IBV_DEVICE_RAW_MULTI = 1 << 3
    IBV_DEVICE_AUTO_PATH_MIG = 1 << 4
    IBV_DEVICE_CHANGE_PHY_PORT = 1 << 5
    IBV_DEVICE_UD_AV_PORT_ENFORCE = 1 << 6
    IBV_DEVICE_CURR_QP_STATE_MOD = 1 << 7
    IBV_DEVICE_SHUTDOWN_PORT = 1 << 8
    IBV_DEVICE_INIT_TYPE = 1 << 9
    IBV_DEVICE_PORT_ACTIVE_EVENT = 1 << 10
    IBV_DEVICE_SYS_IMAGE_GUID = 1 << 11
    IBV_DEVICE_RC_RNR_NAK_GEN = 1 << 12
    IBV_DEVICE_SRQ_RESIZE = 1 << 13
    IBV_DEVICE_N_NOTIFY_CQ = 1 << 14
    IBV_DEVICE_MEM_WINDOW = 1 << 17
    IBV_DEVICE_UD_IP_CSUM = 1 << 18
    IBV_DEVICE_XRC = 1 << 20
    IBV_DEVICE_MEM_MGT_EXTENSIONS = 1 << 21
    IBV_DEVICE_MEM_WINDOW_TYPE_2A = 1 << 23
    IBV_DEVICE_MEM_WINDOW_TYPE_2B = 1 << 24
    IBV_DEVICE_RC_IP_CSUM = 1 << 25
    IBV_DEVICE_RAW_IP_CSUM = 1 << 26
    IBV_DEVICE_MANAGED_FLOW_STEERING = 1 << 29


@global_enum
class ibv_odp_general_caps(IntFlag):
    """On-demand paging: what a device can do."""

    IBV_ODP_SUPPORT = 1 << 0
    IBV_ODP_SUPPORT_IMPLICIT = 1 << 1


@global_enum
class ibv_ops_wr_opcode(IntEnum):
    """Tag matching: what an operation on a queue asks for."""

    IBV_WR_TAG_ADD = 0
    IBV_WR_TAG_DEL = 1
    IBV_WR_TAG_SYNC = 2


@global_enum
class ibv_ops_flags(IntFlag):
    """Tag matching: flags of an operation."""

    IBV_OPS_SIGNALED = 1 << 0
    IBV_OPS_TM_SYNC = 1 << 1


@global_enum
class ibv_tm_cap_flags(IntFlag):
    """Tag matching: on which transports."""

    IBV_TM_CAP_RC = 1 << 0


@global_enum
class ibv_wq_type(IntEnum):
    """Kind of a work queue."""

    IBV_WQT_RQ = 0


@global_enum
class ibv_wq_init_attr_mask(IntFlag):
    """Which fields of the attributes of a new work queue count."""

    IBV_WQ_INIT_ATTR_FLAGS = 1 << 0


@global_enum
class ibv_wq_flags(IntFlag):
    """Options of a work queue."""

    IBV_WQ_FLAGS_CVLAN_STRIPPING = 1 << 0
    IBV_WQ_FLAGS_SCATTER_FCS = 1 << 1
    IBV_WQ_FLAGS_DELAY_DROP = 1 << 2
    IBV_WQ_FLAGS_PCI_WRITE_END_PADDING = 1 << 3


@global_enum
class ibv_wq_state(IntEnum):
    """State of a work queue."""

    IBV_WQS_RESET = 0
    IBV_WQS_RDY = 1
    IBV_WQS_ERR = 2
    IBV_WQS_UNKNOWN = 3


@global_enum
class ibv_wq_attr_mask(IntFlag):
    """Which attributes of a work queue a modify sets."""

    IBV_WQ_ATTR_STATE = 1 << 0
    IBV_WQ_ATTR_CURR_STATE = 1 << 1
    IBV_WQ_ATTR_FLAGS = 1 << 2


@global_enum
class ibv_rx_hash_function_flags(IntFlag):
    """Receive side scaling: hash functions."""

    IBV_RX_HASH_FUNC_TOEPLITZ = 1 << 0


@global_enum
class ibv_rx_hash_fields(IntFlag):
    """Receive side scaling: what is hashed."""

    IBV_RX_HASH_SRC_IPV4 = 1 << 0
    IBV_RX_HASH_DST_IPV4 = 1 << 1
    IBV_RX_HASH_SRC_IPV6 = 1 << 2
    IBV_RX_HASH_DST_IPV6 = 1 << 3
    IBV_RX_HASH_SRC_PORT_TCP = 1 << 4
    IBV_RX_HASH_DST_PORT_TCP = 1 << 5
    IBV_RX_HASH_SRC_PORT_UDP = 1 << 6
    IBV_RX_HASH_DST_PORT_UDP = 1 << 7


@global_enum
class ibv_flow_flags(IntFlag):
    """Flow steering: options of a rule."""

    IBV_FLOW_ATTR_FLAGS_DONT_TRAP = 1 << 1
    IBV_FLOW_ATTR_FLAGS_EGRESS = 1 << 2


@global_enum
class ibv_flow_attr_type(IntEnum):
    """Flow steering: kind of a rule."""

    IBV_FLOW_ATTR_NORMAL = 0
    IBV_FLOW_ATTR_ALL_DEFAULT = 1
    IBV_FLOW_ATTR_MC_DEFAULT = 2
    IBV_FLOW_ATTR_SNIFFER = 3


@global_enum
class ibv_flow_spec_type(IntEnum):
    """Flow steering: what a specification matches or does."""

    IBV_FLOW_SPEC_ETH = 32
    IBV_FLOW_SPEC_IPV4 = 48
    IBV_FLOW_SPEC_IPV6 = 49
    IBV_FLOW_SPEC_IPV4_EXT = 50
    IBV_FLOW_SPEC_ESP = 52
    IBV_FLOW_SPEC_TCP = 64
    IBV_FLOW_SPEC_UDP = 65
    IBV_FLOW_SPEC_VXLAN_TUNNEL = 80
    IBV_FLOW_SPEC_GRE = 81
    IBV_FLOW_SPEC_MPLS = 96
    IBV_FLOW_SPEC_INNER = 256
    IBV_FLOW_SPEC_ACTION_TAG = 4096
    IBV_FLOW_SPEC_ACTION_DROP = 4097
    IBV_FLOW_SPEC_ACTION_HANDLE = 4098
    IBV_FLOW_SPEC_ACTION_COUNT = 4099


@global_enum
class ibv_counter_description(IntEnum):
    """What a flow counter counts."""

    IBV_COUNTER_PACKETS = 0
    IBV_COUNTER_BYTES = 1


@global_enum
class ibv_read_counters_flags(IntFlag):
    """How counters are read."""

    IBV_READ_COUNTERS_ATTR_PREFER_CACHED = 1 << 0


@global_enum
class ibv_raw_packet_caps(IntFlag):
    """What raw packet queue pairs can do."""

    IBV_RAW_PACKET_CAP_CVLAN_STRIPPING = 1 << 0
    IBV_RAW_PACKET_CAP_SCATTER_FCS = 1 << 1
    IBV_RAW_PACKET_CAP_IP_CSUM = 1 << 2
    IBV_RAW_PACKET_CAP_DELAY_DROP = 1 << 3


@global_enum
class ibv_odp_transport_cap_bits(IntFlag):
    """On-demand paging: what a transport can do."""

    IBV_ODP_SUPPORT_SEND = 1 << 0
    IBV_ODP_SUPPORT_RECV = 1 << 1
    IBV_ODP_SUPPORT_WRITE = 1 << 2
    IBV_ODP_SUPPORT_READ = 1 << 3
    IBV_ODP_SUPPORT_ATOMIC = 1 << 4
    IBV_ODP_SUPPORT_SRQ_RECV = 1 << 5
    IBV_ODP_SUPPORT_FLUSH = 1 << 6
    IBV_ODP_SUPPORT_ATOMIC_WRITE = 1 << 7


@global_enum
class ibv_values_mask(IntFlag):
    """Real-time values that can be asked for."""

    IBV_VALUES_MASK_RAW_CLOCK = 1 << 0


@global_enum
class ibv_parent_domain_init_attr_mask(IntFlag):
    """Which fields of the attributes of a parent domain count."""

    IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS = 1 << 0
    IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT = 1 << 1
    IBV_PARENT_DOMAIN_INIT_ATTR_ALLOW_CC_UNPROTECTED_ALLOC = 1 << 2


@global_enum
class ibv_fork_status(IntEnum):
    """Whether forking is safe."""

    IBV_FORK_DISABLED = 0
    IBV_FORK_ENABLED = 1
    IBV_FORK_UNNEEDED = 2


@global_enum
class ibv_tph_mem_type(IntEnum):
    """Kind of memory behind a processing hint."""

    IBV_TPH_MEM_TYPE_VM = 0
    IBV_TPH_MEM_TYPE_PM = 1


@global_enum
class ibv_dmah_init_attr_mask(IntFlag):
    """Which fields of the attributes of a DMA handle count."""

    IBV_DMAH_INIT_ATTR_MASK_CPU_ID = 1 << 0
    IBV_DMAH_INIT_ATTR_MASK_PH = 1 << 1
    IBV_DMAH_INIT_ATTR_MASK_TPH_MEM_TYPE = 1 << 2


@global_enum
class ibv_qp_attach_comp_cntr_op(IntFlag):
    """Which completions a counter counts."""

    IBV_QP_ATTACH_COMP_CNTR_OP_SEND = 1 << 0
    IBV_QP_ATTACH_COMP_CNTR_OP_RECV = 1 << 1
    IBV_QP_ATTACH_COMP_CNTR_OP_RDMA_READ = 1 << 2
    IBV_QP_ATTACH_COMP_CNTR_OP_REMOTE_RDMA_READ = 1 << 3
    IBV_QP_ATTACH_COMP_CNTR_OP_RDMA_WRITE = 1 << 4
    IBV_QP_ATTACH_COMP_CNTR_OP_REMOTE_RDMA_WRITE = 1 << 5


@global_enum
class ibv_tmh_op(IntEnum):
    """Tag matching: operation of a header."""

    IBV_TMH_NO_TAG = 0
    IBV_TMH_RNDV = 1
    IBV_TMH_FIN = 2
    IBV_TMH_EAGER = 3
