"""Numbers of rdma-core's `verbs.h`, copied by hand."""

from __future__ import annotations

from enum import IntEnum, IntFlag

from each_case import each_case
from ibwire.rc import attributes, work
from ibwire.rc.memory import Access
from ibwire.verbs import enums, libibverbs_enums

VALUES = {
    "IBV_NODE_CA": 1,
    "IBV_TRANSPORT_IB": 0,
    "IBV_TRANSPORT_UNKNOWN": -1,
    "IBV_PORT_ACTIVE": 4,
    "IBV_MTU_4096": 5,
    "IBV_EVENT_SRQ_LIMIT_REACHED": 15,
    "IBV_EVENT_QP_LAST_WQE_REACHED": 16,
    "IBV_WC_SUCCESS": 0,
    "IBV_WC_LOC_PROT_ERR": 4,
    "IBV_WC_RETRY_EXC_ERR": 12,
    "IBV_WC_RNR_RETRY_EXC_ERR": 13,
    "IBV_WC_GENERAL_ERR": 21,
    "IBV_WC_RECV": 128,
    "IBV_WC_RECV_RDMA_WITH_IMM": 129,
    "IBV_WC_WITH_INV": 8,
    "IBV_ACCESS_ON_DEMAND": 64,
    "IBV_ACCESS_FLUSH_PERSISTENT": 512,
    "IBV_ACCESS_RELAXED_ORDERING": 1 << 20,
    "IBV_REREG_MR_CHANGE_ACCESS": 4,
    "IBV_QPT_RC": 2,
    "IBV_QPT_RAW_PACKET": 8,
    "IBV_QPT_XRC_RECV": 10,
    "IBV_QPT_DRIVER": 0xFF,
    "IBV_QPS_ERR": 6,
    "IBV_WR_SEND": 2,
    "IBV_WR_SEND_WITH_INV": 9,
    "IBV_WR_FLUSH": 14,
    "IBV_WR_ATOMIC_WRITE": 15,
    "IBV_SEND_INLINE": 8,
    "IBV_QP_STATE": 1,
    "IBV_QP_AV": 1 << 7,
    "IBV_QP_DEST_QPN": 1 << 20,
    "IBV_QP_RATE_LIMIT": 1 << 25,
    "IBV_QP_INIT_ATTR_SEND_OPS_FLAGS": 64,
    "IBV_QP_EX_WITH_ATOMIC_WRITE": 1 << 12,
    "IBV_FLUSH_RANGE": 0,
    "IBV_FLUSH_MR": 1,
    "IBV_SRQT_XRC": 1,
    "IBV_DEVICE_XRC": 1 << 20,
    "IBV_LINK_LAYER_ETHERNET": 2,
    "IBV_WC_STANDARD_FLAGS": 0x7F,
}


@each_case("name", VALUES)
def test_value_is_that_of_verbs_h(name: str) -> None:
    assert getattr(libibverbs_enums, name) == VALUES[name]
    assert getattr(enums, name) == VALUES[name]


@each_case(
    ("core", "face", "prefix"),
    [
        (work.WROpcode, "ibv_wr_opcode", "IBV_WR_"),
        (work.SendFlags, "ibv_send_flags", "IBV_SEND_"),
        (work.WCStatus, "ibv_wc_status", "IBV_WC_"),
        (work.WCOpcode, "ibv_wc_opcode", "IBV_WC_"),
        (work.WCFlags, "ibv_wc_flags", "IBV_WC_"),
        (attributes.QPType, "ibv_qp_type", "IBV_QPT_"),
        (attributes.QPState, "ibv_qp_state", "IBV_QPS_"),
        (attributes.MigState, "ibv_mig_state", "IBV_MIG_"),
        (attributes.QPAttrMask, "ibv_qp_attr_mask", "IBV_QP_"),
        (attributes.EventType, "ibv_event_type", "IBV_EVENT_"),
        (Access, "ibv_access_flags", "IBV_ACCESS_"),
    ],
)
def test_face_and_transport_agree(core: type[IntEnum | IntFlag], face: str, prefix: str) -> None:
    names = getattr(libibverbs_enums, face).__members__

    assert {prefix + m.name: m.value for m in core}.items() <= {  # type: ignore[operator]
        n: v.value for n, v in names.items()
    }.items()
