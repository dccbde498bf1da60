"""The enumerations of librdmacm under pyverbs' names, as classes and as plain names.

The table has the form of the one in `ibwire.verbs.libibverbs_enums`. The verbs interface has
no connection manager; scripts only import these names. Source of the values: rdma-core's
`rdma_cma.h`.
"""

from __future__ import annotations

from enum import Enum, IntEnum, IntFlag, global_enum

# fmt: off
# Events of the connection manager.
rdma_cm_event_type = IntEnum("rdma_cm_event_type", """
    RDMA_CM_EVENT_ADDR_RESOLVED RDMA_CM_EVENT_ADDR_ERROR RDMA_CM_EVENT_ROUTE_RESOLVED
    RDMA_CM_EVENT_ROUTE_ERROR RDMA_CM_EVENT_CONNECT_REQUEST RDMA_CM_EVENT_CONNECT_RESPONSE
    RDMA_CM_EVENT_CONNECT_ERROR RDMA_CM_EVENT_UNREACHABLE RDMA_CM_EVENT_REJECTED
    RDMA_CM_EVENT_ESTABLISHED RDMA_CM_EVENT_DISCONNECTED RDMA_CM_EVENT_DEVICE_REMOVAL
    RDMA_CM_EVENT_MULTICAST_JOIN RDMA_CM_EVENT_MULTICAST_ERROR RDMA_CM_EVENT_ADDR_CHANGE
    RDMA_CM_EVENT_TIMEWAIT_EXIT RDMA_CM_EVENT_ADDRINFO_RESOLVED RDMA_CM_EVENT_ADDRINFO_ERROR
    """, start=0)
# Port spaces of the connection manager.
rdma_port_space = IntEnum("rdma_port_space", {
    "RDMA_PS_IPOIB": 0x0002, "RDMA_PS_TCP": 0x0106, "RDMA_PS_UDP": 0x0111, "RDMA_PS_IB": 0x013F,
})
# Valid fields of a multicast join.
rdma_cm_join_mc_attr_mask = IntFlag("rdma_cm_join_mc_attr_mask", """
    RDMA_CM_JOIN_MC_ATTR_ADDRESS RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS""")
# Kind of a multicast join.
rdma_cm_mc_join_flags = IntEnum("rdma_cm_mc_join_flags", """
    RDMA_MC_JOIN_FLAG_FULLMEMBER RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER""", start=0)
# fmt: on

RAI_PASSIVE = 1
RAI_NUMERICHOST = 2
RAI_NOROUTE = 4
RAI_FAMILY = 8
RAI_SA = 16
RAI_DNS = 32
RDMA_OPTION_ID = 0
RDMA_OPTION_ID_ACK_TIMEOUT = 3

for _kind in [each for each in globals().values() if isinstance(each, type)]:
    if issubclass(_kind, Enum) and _kind.__module__ == __name__:
        global_enum(_kind)  # makes its members names of this module, as in pyverbs
