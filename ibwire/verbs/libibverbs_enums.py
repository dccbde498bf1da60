"""The enumerations of libibverbs under pyverbs' names, as classes and as plain names.

Names in a string have consecutive values from `start` (1 if not given), flags consecutive
bits. Some enumerations belong to features that the emulated network lacks, such as flow
steering, tag matching and on-demand paging: scripts import them to query capabilities.

Source of the values: rdma-core's `verbs.h` and `ib_user_ioctl_verbs.h`.
"""

from __future__ import annotations

from enum import Enum, IntEnum, IntFlag, global_enum

# fmt: off
# Transport type of a device.
ibv_transport_type = IntEnum("ibv_transport_type", """
    IBV_TRANSPORT_UNKNOWN IBV_TRANSPORT_IB IBV_TRANSPORT_IWARP IBV_TRANSPORT_USNIC
    IBV_TRANSPORT_USNIC_UDP""", start=-1)
# Node type of a device.
ibv_node_type = IntEnum("ibv_node_type", {
    "IBV_NODE_UNKNOWN": -1, "IBV_NODE_CA": 1, "IBV_NODE_SWITCH": 2, "IBV_NODE_ROUTER": 3,
    "IBV_NODE_RNIC": 4, "IBV_NODE_USNIC": 5, "IBV_NODE_USNIC_UDP": 6, "IBV_NODE_UNSPECIFIED": 7,
})
# Scope of atomic operations: none, this device, the whole host.
ibv_atomic_cap = IntEnum("ibv_atomic_cap", """
    IBV_ATOMIC_NONE IBV_ATOMIC_HCA IBV_ATOMIC_GLOB""", start=0)
# Logical state of a port.
ibv_port_state = IntEnum("ibv_port_state", """
    IBV_PORT_NOP IBV_PORT_DOWN IBV_PORT_INIT IBV_PORT_ARMED IBV_PORT_ACTIVE IBV_PORT_ACTIVE_DEFER
    """, start=0)
# Path MTU codes.
ibv_mtu = IntEnum("ibv_mtu", "IBV_MTU_256 IBV_MTU_512 IBV_MTU_1024 IBV_MTU_2048 IBV_MTU_4096")
# Asynchronous events.
ibv_event_type = IntEnum("ibv_event_type", """
    IBV_EVENT_CQ_ERR IBV_EVENT_QP_FATAL IBV_EVENT_QP_REQ_ERR IBV_EVENT_QP_ACCESS_ERR
    IBV_EVENT_COMM_EST IBV_EVENT_SQ_DRAINED IBV_EVENT_PATH_MIG IBV_EVENT_PATH_MIG_ERR
    IBV_EVENT_DEVICE_FATAL IBV_EVENT_PORT_ACTIVE IBV_EVENT_PORT_ERR IBV_EVENT_LID_CHANGE
    IBV_EVENT_PKEY_CHANGE IBV_EVENT_SM_CHANGE IBV_EVENT_SRQ_ERR IBV_EVENT_SRQ_LIMIT_REACHED
    IBV_EVENT_QP_LAST_WQE_REACHED IBV_EVENT_CLIENT_REREGISTER IBV_EVENT_GID_CHANGE
    IBV_EVENT_WQ_FATAL IBV_EVENT_DEVICE_SPEED_CHANGE""", start=0)
# Access rights of a memory region, memory window or queue pair.
ibv_access_flags = IntFlag("ibv_access_flags", {
    "IBV_ACCESS_LOCAL_WRITE": 1 << 0, "IBV_ACCESS_REMOTE_WRITE": 1 << 1,
    "IBV_ACCESS_REMOTE_READ": 1 << 2, "IBV_ACCESS_REMOTE_ATOMIC": 1 << 3,
    "IBV_ACCESS_MW_BIND": 1 << 4, "IBV_ACCESS_ZERO_BASED": 1 << 5, "IBV_ACCESS_ON_DEMAND": 1 << 6,
    "IBV_ACCESS_HUGETLB": 1 << 7, "IBV_ACCESS_FLUSH_GLOBAL": 1 << 8,
    "IBV_ACCESS_FLUSH_PERSISTENT": 1 << 9, "IBV_ACCESS_RELAXED_ORDERING": 1 << 20,
})
# Attributes that a memory region re-registration changes.
ibv_rereg_mr_flags = IntFlag("ibv_rereg_mr_flags", """
    IBV_REREG_MR_CHANGE_TRANSLATION IBV_REREG_MR_CHANGE_PD IBV_REREG_MR_CHANGE_ACCESS""")
# Errors of a memory region re-registration.
ibv_rereg_mr_err_code = IntEnum("ibv_rereg_mr_err_code", {
    "IBV_REREG_MR_ERR_INPUT": -1, "IBV_REREG_MR_ERR_DONT_FORK_NEW": -2,
    "IBV_REREG_MR_ERR_DO_FORK_OLD": -3, "IBV_REREG_MR_ERR_CMD": -4,
    "IBV_REREG_MR_ERR_CMD_AND_DO_FORK_NEW": -5,
})
# Opcodes of send work requests.
ibv_wr_opcode = IntEnum("ibv_wr_opcode", {
    "IBV_WR_RDMA_WRITE": 0, "IBV_WR_RDMA_WRITE_WITH_IMM": 1, "IBV_WR_SEND": 2,
    "IBV_WR_SEND_WITH_IMM": 3, "IBV_WR_RDMA_READ": 4, "IBV_WR_ATOMIC_CMP_AND_SWP": 5,
    "IBV_WR_ATOMIC_FETCH_AND_ADD": 6, "IBV_WR_LOCAL_INV": 7, "IBV_WR_BIND_MW": 8,
    "IBV_WR_SEND_WITH_INV": 9, "IBV_WR_TSO": 10, "IBV_WR_FLUSH": 14, "IBV_WR_ATOMIC_WRITE": 15,
})
# Flags of a send work request.
ibv_send_flags = IntFlag("ibv_send_flags", """
    IBV_SEND_FENCE IBV_SEND_SIGNALED IBV_SEND_SOLICITED IBV_SEND_INLINE IBV_SEND_IP_CSUM""")
# Transport service of a queue pair.
ibv_qp_type = IntEnum("ibv_qp_type", {
    "IBV_QPT_RC": 2, "IBV_QPT_UC": 3, "IBV_QPT_UD": 4, "IBV_QPT_RAW_PACKET": 8,
    "IBV_QPT_XRC_SEND": 9, "IBV_QPT_XRC_RECV": 10, "IBV_QPT_DRIVER": 0xFF,
})
# State of a queue pair.
ibv_qp_state = IntEnum("ibv_qp_state", """
    IBV_QPS_RESET IBV_QPS_INIT IBV_QPS_RTR IBV_QPS_RTS IBV_QPS_SQD IBV_QPS_SQE IBV_QPS_ERR
    IBV_QPS_UNKNOWN""", start=0)
# Kind of a memory window.
ibv_mw_type = IntEnum("ibv_mw_type", "IBV_MW_TYPE_1 IBV_MW_TYPE_2")
# Status of a work completion.
ibv_wc_status = IntEnum("ibv_wc_status", """
    IBV_WC_SUCCESS IBV_WC_LOC_LEN_ERR IBV_WC_LOC_QP_OP_ERR IBV_WC_LOC_EEC_OP_ERR
    IBV_WC_LOC_PROT_ERR IBV_WC_WR_FLUSH_ERR IBV_WC_MW_BIND_ERR IBV_WC_BAD_RESP_ERR
    IBV_WC_LOC_ACCESS_ERR IBV_WC_REM_INV_REQ_ERR IBV_WC_REM_ACCESS_ERR IBV_WC_REM_OP_ERR
    IBV_WC_RETRY_EXC_ERR IBV_WC_RNR_RETRY_EXC_ERR IBV_WC_LOC_RDD_VIOL_ERR IBV_WC_REM_INV_RD_REQ_ERR
    IBV_WC_REM_ABORT_ERR IBV_WC_INV_EECN_ERR IBV_WC_INV_EEC_STATE_ERR IBV_WC_FATAL_ERR
    IBV_WC_RESP_TIMEOUT_ERR IBV_WC_GENERAL_ERR IBV_WC_TM_ERR IBV_WC_TM_RNDV_INCOMPLETE""", start=0)
# Opcodes of work completions.
ibv_wc_opcode = IntEnum("ibv_wc_opcode", {
    "IBV_WC_SEND": 0, "IBV_WC_RDMA_WRITE": 1, "IBV_WC_RDMA_READ": 2, "IBV_WC_COMP_SWAP": 3,
    "IBV_WC_FETCH_ADD": 4, "IBV_WC_BIND_MW": 5, "IBV_WC_LOCAL_INV": 6, "IBV_WC_TSO": 7,
    "IBV_WC_FLUSH": 8, "IBV_WC_ATOMIC_WRITE": 9, "IBV_WC_RECV": 128,
    "IBV_WC_RECV_RDMA_WITH_IMM": 129, "IBV_WC_TM_ADD": 130, "IBV_WC_TM_DEL": 131,
    "IBV_WC_TM_SYNC": 132, "IBV_WC_TM_RECV": 133, "IBV_WC_TM_NO_TAG": 134, "IBV_WC_DRIVER2": 136,
    "IBV_WC_DRIVER3": 137,
})
# Fields that an extended CQ reports.
ibv_create_cq_wc_flags = IntFlag("ibv_create_cq_wc_flags", """
    IBV_WC_EX_WITH_BYTE_LEN IBV_WC_EX_WITH_IMM IBV_WC_EX_WITH_QP_NUM IBV_WC_EX_WITH_SRC_QP
    IBV_WC_EX_WITH_SLID IBV_WC_EX_WITH_SL IBV_WC_EX_WITH_DLID_PATH_BITS
    IBV_WC_EX_WITH_COMPLETION_TIMESTAMP IBV_WC_EX_WITH_CVLAN IBV_WC_EX_WITH_FLOW_TAG
    IBV_WC_EX_WITH_TM_INFO IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK""")
# Flags of a work completion.
ibv_wc_flags = IntFlag("ibv_wc_flags", """
    IBV_WC_GRH IBV_WC_WITH_IMM IBV_WC_IP_CSUM_OK IBV_WC_WITH_INV IBV_WC_TM_SYNC_REQ IBV_WC_TM_MATCH
    IBV_WC_TM_DATA_VALID""")
# Shared receive queue attributes that a modify sets.
ibv_srq_attr_mask = IntFlag("ibv_srq_attr_mask", "IBV_SRQ_MAX_WR IBV_SRQ_LIMIT")
# Kind of a shared receive queue.
ibv_srq_type = IntEnum("ibv_srq_type", "IBV_SRQT_BASIC IBV_SRQT_XRC IBV_SRQT_TM", start=0)
# Valid fields of `ibv_srq_init_attr_ex`.
ibv_srq_init_attr_mask = IntFlag("ibv_srq_init_attr_mask", """
    IBV_SRQ_INIT_ATTR_TYPE IBV_SRQ_INIT_ATTR_PD IBV_SRQ_INIT_ATTR_XRCD IBV_SRQ_INIT_ATTR_CQ
    IBV_SRQ_INIT_ATTR_TM""")
# Automatic path migration.
ibv_mig_state = IntEnum("ibv_mig_state", "IBV_MIG_MIGRATED IBV_MIG_REARM IBV_MIG_ARMED", start=0)
# Valid fields of `ibv_qp_init_attr_ex`.
ibv_qp_init_attr_mask = IntFlag("ibv_qp_init_attr_mask", """
    IBV_QP_INIT_ATTR_PD IBV_QP_INIT_ATTR_XRCD IBV_QP_INIT_ATTR_CREATE_FLAGS
    IBV_QP_INIT_ATTR_MAX_TSO_HEADER IBV_QP_INIT_ATTR_IND_TABLE IBV_QP_INIT_ATTR_RX_HASH
    IBV_QP_INIT_ATTR_SEND_OPS_FLAGS""")
# Creation flags of a queue pair.
ibv_qp_create_flags = IntFlag("ibv_qp_create_flags", {
    "IBV_QP_CREATE_BLOCK_SELF_MCAST_LB": 1 << 1, "IBV_QP_CREATE_SCATTER_FCS": 1 << 8,
    "IBV_QP_CREATE_CVLAN_STRIPPING": 1 << 9, "IBV_QP_CREATE_SOURCE_QPN": 1 << 10,
    "IBV_QP_CREATE_PCI_WRITE_END_PADDING": 1 << 11,
})
# Queue pair attributes that a modify sets.
ibv_qp_attr_mask = IntFlag("ibv_qp_attr_mask", {
    "IBV_QP_STATE": 1 << 0, "IBV_QP_CUR_STATE": 1 << 1, "IBV_QP_EN_SQD_ASYNC_NOTIFY": 1 << 2,
    "IBV_QP_ACCESS_FLAGS": 1 << 3, "IBV_QP_PKEY_INDEX": 1 << 4, "IBV_QP_PORT": 1 << 5,
    "IBV_QP_QKEY": 1 << 6, "IBV_QP_AV": 1 << 7, "IBV_QP_PATH_MTU": 1 << 8, "IBV_QP_TIMEOUT": 1 << 9,
    "IBV_QP_RETRY_CNT": 1 << 10, "IBV_QP_RNR_RETRY": 1 << 11, "IBV_QP_RQ_PSN": 1 << 12,
    "IBV_QP_MAX_QP_RD_ATOMIC": 1 << 13, "IBV_QP_ALT_PATH": 1 << 14, "IBV_QP_MIN_RNR_TIMER": 1 << 15,
    "IBV_QP_SQ_PSN": 1 << 16, "IBV_QP_MAX_DEST_RD_ATOMIC": 1 << 17,
    "IBV_QP_PATH_MIG_STATE": 1 << 18, "IBV_QP_CAP": 1 << 19, "IBV_QP_DEST_QPN": 1 << 20,
    "IBV_QP_RATE_LIMIT": 1 << 25,
})
# Options of a query about data ordering.
ibv_query_qp_data_in_order_flags = IntFlag("ibv_query_qp_data_in_order_flags", """
    IBV_QUERY_QP_DATA_IN_ORDER_RETURN_CAPS""")
# Data ordering guarantees.
ibv_query_qp_data_in_order_caps = IntFlag("ibv_query_qp_data_in_order_caps", """
    IBV_QUERY_QP_DATA_IN_ORDER_WHOLE_MSG IBV_QUERY_QP_DATA_IN_ORDER_ALIGNED_128_BYTES""")
# Valid fields of `ibv_cq_init_attr_ex`.
ibv_cq_init_attr_mask = IntFlag("ibv_cq_init_attr_mask", """
    IBV_CQ_INIT_ATTR_MASK_FLAGS IBV_CQ_INIT_ATTR_MASK_PD""")
# Creation flags of a CQ.
ibv_create_cq_attr_flags = IntFlag("ibv_create_cq_attr_flags", """
    IBV_CREATE_CQ_ATTR_SINGLE_THREADED IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN""")
# Valid fields of `ibv_xrcd_init_attr`.
ibv_xrcd_init_attr_mask = IntFlag("ibv_xrcd_init_attr_mask", """
    IBV_XRCD_INIT_ATTR_FD IBV_XRCD_INIT_ATTR_OFLAGS IBV_XRCD_INIT_ATTR_RESERVED""")
# Operations that an extended queue pair can post.
ibv_qp_create_send_ops_flags = IntFlag("ibv_qp_create_send_ops_flags", """
    IBV_QP_EX_WITH_RDMA_WRITE IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM IBV_QP_EX_WITH_SEND
    IBV_QP_EX_WITH_SEND_WITH_IMM IBV_QP_EX_WITH_RDMA_READ IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP
    IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD IBV_QP_EX_WITH_LOCAL_INV IBV_QP_EX_WITH_BIND_MW
    IBV_QP_EX_WITH_SEND_WITH_INV IBV_QP_EX_WITH_TSO IBV_QP_EX_WITH_FLUSH
    IBV_QP_EX_WITH_ATOMIC_WRITE""")
# GID types.
ibv_gid_type = IntEnum("ibv_gid_type", """
    IBV_GID_TYPE_IB IBV_GID_TYPE_ROCE_V1 IBV_GID_TYPE_ROCE_V2""", start=0)
# Placement types of a FLUSH.
ibv_placement_type = IntFlag("ibv_placement_type", "IBV_FLUSH_GLOBAL IBV_FLUSH_PERSISTENT")
# Selectivity levels of a FLUSH.
ibv_selectivity_level = IntEnum("ibv_selectivity_level", {
    "IBV_FLUSH_MR": 1, "IBV_FLUSH_RANGE": 0,
})
# Valid fields of `ibv_mr_init_attr`.
ibv_mr_init_attr_mask = IntFlag("ibv_mr_init_attr_mask", """
    IBV_REG_MR_MASK_IOVA IBV_REG_MR_MASK_ADDR IBV_REG_MR_MASK_FD IBV_REG_MR_MASK_FD_OFFSET
    IBV_REG_MR_MASK_DMAH IBV_REG_MR_MASK_BUF""")
# GID types as sysfs lists them.
ibv_gid_type_sysfs = IntEnum("ibv_gid_type_sysfs", """
    IBV_GID_TYPE_SYSFS_IB_ROCE_V1 IBV_GID_TYPE_SYSFS_ROCE_V2""", start=0)
# Port capabilities.
ibv_port_cap_flags = IntFlag("ibv_port_cap_flags", {
    "IBV_PORT_SM": 1 << 1, "IBV_PORT_NOTICE_SUP": 1 << 2, "IBV_PORT_TRAP_SUP": 1 << 3,
    "IBV_PORT_OPT_IPD_SUP": 1 << 4, "IBV_PORT_AUTO_MIGR_SUP": 1 << 5, "IBV_PORT_SL_MAP_SUP": 1 << 6,
    "IBV_PORT_MKEY_NVRAM": 1 << 7, "IBV_PORT_PKEY_NVRAM": 1 << 8, "IBV_PORT_LED_INFO_SUP": 1 << 9,
    "IBV_PORT_SYS_IMAGE_GUID_SUP": 1 << 11, "IBV_PORT_PKEY_SW_EXT_PORT_TRAP_SUP": 1 << 12,
    "IBV_PORT_EXTENDED_SPEEDS_SUP": 1 << 14, "IBV_PORT_CAP_MASK2_SUP": 1 << 15,
    "IBV_PORT_CM_SUP": 1 << 16, "IBV_PORT_SNMP_TUNNEL_SUP": 1 << 17, "IBV_PORT_REINIT_SUP": 1 << 18,
    "IBV_PORT_DEVICE_MGMT_SUP": 1 << 19, "IBV_PORT_VENDOR_CLASS_SUP": 1 << 20,
    "IBV_PORT_DR_NOTICE_SUP": 1 << 21, "IBV_PORT_CAP_MASK_NOTICE_SUP": 1 << 22,
    "IBV_PORT_BOOT_MGMT_SUP": 1 << 23, "IBV_PORT_LINK_LATENCY_SUP": 1 << 24,
    "IBV_PORT_CLIENT_REG_SUP": 1 << 25, "IBV_PORT_IP_BASED_GIDS": 1 << 26,
})
# Port capabilities, second word.
ibv_port_cap_flags2 = IntFlag("ibv_port_cap_flags2", {
    "IBV_PORT_SET_NODE_DESC_SUP": 1 << 0, "IBV_PORT_INFO_EXT_SUP": 1 << 1,
    "IBV_PORT_VIRT_SUP": 1 << 2, "IBV_PORT_SWITCH_PORT_STATE_TABLE_SUP": 1 << 3,
    "IBV_PORT_LINK_WIDTH_2X_SUP": 1 << 4, "IBV_PORT_LINK_SPEED_HDR_SUP": 1 << 5,
    "IBV_PORT_LINK_SPEED_NDR_SUP": 1 << 10,
})
# Device capabilities.
ibv_device_cap_flags = IntFlag("ibv_device_cap_flags", {
    "IBV_DEVICE_RESIZE_MAX_WR": 1 << 0, "IBV_DEVICE_BAD_PKEY_CNTR": 1 << 1,
    "IBV_DEVICE_BAD_QKEY_CNTR": 1 << 2, "IBV_DEVICE_RAW_MULTI": 1 << 3,
    "IBV_DEVICE_AUTO_PATH_MIG": 1 << 4, "IBV_DEVICE_CHANGE_PHY_PORT": 1 << 5,
    "IBV_DEVICE_UD_AV_PORT_ENFORCE": 1 << 6, "IBV_DEVICE_CURR_QP_STATE_MOD": 1 << 7,
    "IBV_DEVICE_SHUTDOWN_PORT": 1 << 8, "IBV_DEVICE_INIT_TYPE": 1 << 9,
    "IBV_DEVICE_PORT_ACTIVE_EVENT": 1 << 10, "IBV_DEVICE_SYS_IMAGE_GUID": 1 << 11,
    "IBV_DEVICE_RC_RNR_NAK_GEN": 1 << 12, "IBV_DEVICE_SRQ_RESIZE": 1 << 13,
    "IBV_DEVICE_N_NOTIFY_CQ": 1 << 14, "IBV_DEVICE_MEM_WINDOW": 1 << 17,
    "IBV_DEVICE_UD_IP_CSUM": 1 << 18, "IBV_DEVICE_XRC": 1 << 20,
    "IBV_DEVICE_MEM_MGT_EXTENSIONS": 1 << 21, "IBV_DEVICE_MEM_WINDOW_TYPE_2A": 1 << 23,
    "IBV_DEVICE_MEM_WINDOW_TYPE_2B": 1 << 24, "IBV_DEVICE_RC_IP_CSUM": 1 << 25,
    "IBV_DEVICE_RAW_IP_CSUM": 1 << 26, "IBV_DEVICE_MANAGED_FLOW_STEERING": 1 << 29,
})
# On-demand paging: device capabilities.
ibv_odp_general_caps = IntFlag("ibv_odp_general_caps", "IBV_ODP_SUPPORT IBV_ODP_SUPPORT_IMPLICIT")
# Tag matching: opcodes of list operations.
ibv_ops_wr_opcode = IntEnum("ibv_ops_wr_opcode", """
    IBV_WR_TAG_ADD IBV_WR_TAG_DEL IBV_WR_TAG_SYNC""", start=0)
# Tag matching: flags of an operation.
ibv_ops_flags = IntFlag("ibv_ops_flags", "IBV_OPS_SIGNALED IBV_OPS_TM_SYNC")
# Tag matching: supported transports.
ibv_tm_cap_flags = IntFlag("ibv_tm_cap_flags", "IBV_TM_CAP_RC")
# Kind of a work queue.
ibv_wq_type = IntEnum("ibv_wq_type", "IBV_WQT_RQ", start=0)
# Valid fields of `ibv_wq_init_attr`.
ibv_wq_init_attr_mask = IntFlag("ibv_wq_init_attr_mask", "IBV_WQ_INIT_ATTR_FLAGS")
# Options of a work queue.
ibv_wq_flags = IntFlag("ibv_wq_flags", """
    IBV_WQ_FLAGS_CVLAN_STRIPPING IBV_WQ_FLAGS_SCATTER_FCS IBV_WQ_FLAGS_DELAY_DROP
    IBV_WQ_FLAGS_PCI_WRITE_END_PADDING""")
# State of a work queue.
ibv_wq_state = IntEnum("ibv_wq_state", """
    IBV_WQS_RESET IBV_WQS_RDY IBV_WQS_ERR IBV_WQS_UNKNOWN""", start=0)
# Work queue attributes that a modify sets.
ibv_wq_attr_mask = IntFlag("ibv_wq_attr_mask", """
    IBV_WQ_ATTR_STATE IBV_WQ_ATTR_CURR_STATE IBV_WQ_ATTR_FLAGS""")
# Receive side scaling: hash functions.
ibv_rx_hash_function_flags = IntFlag("ibv_rx_hash_function_flags", "IBV_RX_HASH_FUNC_TOEPLITZ")
# Receive side scaling: hashed fields.
ibv_rx_hash_fields = IntFlag("ibv_rx_hash_fields", """
    IBV_RX_HASH_SRC_IPV4 IBV_RX_HASH_DST_IPV4 IBV_RX_HASH_SRC_IPV6 IBV_RX_HASH_DST_IPV6
    IBV_RX_HASH_SRC_PORT_TCP IBV_RX_HASH_DST_PORT_TCP IBV_RX_HASH_SRC_PORT_UDP
    IBV_RX_HASH_DST_PORT_UDP""")
# Flow steering: options of a rule.
ibv_flow_flags = IntFlag("ibv_flow_flags", """
    IBV_FLOW_ATTR_FLAGS_DONT_TRAP IBV_FLOW_ATTR_FLAGS_EGRESS""", start=2)
# Flow steering: kind of a rule.
ibv_flow_attr_type = IntEnum("ibv_flow_attr_type", """
    IBV_FLOW_ATTR_NORMAL IBV_FLOW_ATTR_ALL_DEFAULT IBV_FLOW_ATTR_MC_DEFAULT IBV_FLOW_ATTR_SNIFFER
    """, start=0)
# Flow steering: kind of a match or an action.
ibv_flow_spec_type = IntEnum("ibv_flow_spec_type", {
    "IBV_FLOW_SPEC_ETH": 0x20, "IBV_FLOW_SPEC_IPV4": 0x30, "IBV_FLOW_SPEC_IPV6": 0x31,
    "IBV_FLOW_SPEC_IPV4_EXT": 0x32, "IBV_FLOW_SPEC_ESP": 0x34, "IBV_FLOW_SPEC_TCP": 0x40,
    "IBV_FLOW_SPEC_UDP": 0x41, "IBV_FLOW_SPEC_VXLAN_TUNNEL": 0x50, "IBV_FLOW_SPEC_GRE": 0x51,
    "IBV_FLOW_SPEC_MPLS": 0x60, "IBV_FLOW_SPEC_INNER": 0x100, "IBV_FLOW_SPEC_ACTION_TAG": 0x1000,
    "IBV_FLOW_SPEC_ACTION_DROP": 0x1001, "IBV_FLOW_SPEC_ACTION_HANDLE": 0x1002,
    "IBV_FLOW_SPEC_ACTION_COUNT": 0x1003,
})
# Kind of a flow counter.
ibv_counter_description = IntEnum("ibv_counter_description", """
    IBV_COUNTER_PACKETS IBV_COUNTER_BYTES""", start=0)
# Options of reading counters.
ibv_read_counters_flags = IntFlag("ibv_read_counters_flags", "IBV_READ_COUNTERS_ATTR_PREFER_CACHED")
# Raw packet queue pair capabilities.
ibv_raw_packet_caps = IntFlag("ibv_raw_packet_caps", """
    IBV_RAW_PACKET_CAP_CVLAN_STRIPPING IBV_RAW_PACKET_CAP_SCATTER_FCS IBV_RAW_PACKET_CAP_IP_CSUM
    IBV_RAW_PACKET_CAP_DELAY_DROP""")
# On-demand paging: transport capabilities.
ibv_odp_transport_cap_bits = IntFlag("ibv_odp_transport_cap_bits", """
    IBV_ODP_SUPPORT_SEND IBV_ODP_SUPPORT_RECV IBV_ODP_SUPPORT_WRITE IBV_ODP_SUPPORT_READ
    IBV_ODP_SUPPORT_ATOMIC IBV_ODP_SUPPORT_SRQ_RECV IBV_ODP_SUPPORT_FLUSH
    IBV_ODP_SUPPORT_ATOMIC_WRITE""")
# Real-time values that a query can return.
ibv_values_mask = IntFlag("ibv_values_mask", "IBV_VALUES_MASK_RAW_CLOCK")
# Valid fields of `ibv_parent_domain_init_attr`.
ibv_parent_domain_init_attr_mask = IntFlag("ibv_parent_domain_init_attr_mask", """
    IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT
    IBV_PARENT_DOMAIN_INIT_ATTR_ALLOW_CC_UNPROTECTED_ALLOC""")
# Fork support.
ibv_fork_status = IntEnum("ibv_fork_status", """
    IBV_FORK_DISABLED IBV_FORK_ENABLED IBV_FORK_UNNEEDED""", start=0)
# TLP processing hints: kind of memory.
ibv_tph_mem_type = IntEnum("ibv_tph_mem_type", "IBV_TPH_MEM_TYPE_VM IBV_TPH_MEM_TYPE_PM", start=0)
# Valid fields of `ibv_dmah_init_attr`.
ibv_dmah_init_attr_mask = IntFlag("ibv_dmah_init_attr_mask", """
    IBV_DMAH_INIT_ATTR_MASK_CPU_ID IBV_DMAH_INIT_ATTR_MASK_PH IBV_DMAH_INIT_ATTR_MASK_TPH_MEM_TYPE
    """)
# Operations that a completion counter counts.
ibv_qp_attach_comp_cntr_op = IntFlag("ibv_qp_attach_comp_cntr_op", """
    IBV_QP_ATTACH_COMP_CNTR_OP_SEND IBV_QP_ATTACH_COMP_CNTR_OP_RECV
    IBV_QP_ATTACH_COMP_CNTR_OP_RDMA_READ IBV_QP_ATTACH_COMP_CNTR_OP_REMOTE_RDMA_READ
    IBV_QP_ATTACH_COMP_CNTR_OP_RDMA_WRITE IBV_QP_ATTACH_COMP_CNTR_OP_REMOTE_RDMA_WRITE""")
# Tag matching: opcodes of the tag matching header.
ibv_tmh_op = IntEnum("ibv_tmh_op", "IBV_TMH_NO_TAG IBV_TMH_RNDV IBV_TMH_FIN IBV_TMH_EAGER", start=0)
# fmt: on

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

for _kind in [each for each in globals().values() if isinstance(each, type)]:
    if issubclass(_kind, Enum) and _kind.__module__ == __name__:
        global_enum(_kind)  # makes its members names of this module, as in pyverbs
