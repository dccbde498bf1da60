"""Wrong calls and unlucky moments, each found by reading or by the random tests beside."""

from __future__ import annotations

import errno
from typing import Any

import pytest

from each_case import each_case
from ibwire.base.errors import VerbsError
from ibwire.base.units import US
from ibwire.rc.attributes import AddressVector, MigState, QPAttr, QPAttrMask, QPState, QPType
from ibwire.rc.connect import bring_up
from ibwire.rc.device import Device
from ibwire.rc.packet import FORMS, TransportPacket
from ibwire.rc.qp import QPInit
from ibwire.rc.work import SGE, SendWR, WCStatus, WROpcode
from ibwire.testing import Pair, create_queue_pair
from ibwire_layers.opcodes import OpCode


def einval(call: Any) -> None:
    with pytest.raises(VerbsError) as caught:
        call()
    assert caught.value.errno == errno.EINVAL


def ack(psn: int, syndrome: int) -> TransportPacket:
    made = TransportPacket(FORMS[OpCode.RC_ACKNOWLEDGE], psn)
    made.pkey, made.mig_req, made.syndrome, made.msn = 0xFFFF, 1, syndrome, 0
    return made


@each_case(
    ("attr", "mask"),
    [
        (QPAttr(qp_state=99), QPAttrMask.STATE),
        (QPAttr(path_mig_state=7), QPAttrMask.PATH_MIG_STATE),
        (QPAttr(path_mig_state=MigState.ARMED), QPAttrMask.PATH_MIG_STATE),
        (QPAttr(path_mig_state=MigState.REARM), QPAttrMask.PATH_MIG_STATE),
        (QPAttr(alt_pkey_index=1), QPAttrMask.ALT_PATH),
        (QPAttr(alt_pkey_index=-1), QPAttrMask.ALT_PATH),
        (QPAttr(alt_ah_attr=AddressVector(sgid_index=1)), QPAttrMask.ALT_PATH),
        (QPAttr(alt_ah_attr=AddressVector(sgid_index=-1)), QPAttrMask.ALT_PATH),
        (QPAttr(alt_ah_attr=AddressVector(dgid=1 << 128)), QPAttrMask.ALT_PATH),
        (QPAttr(alt_ah_attr=AddressVector(traffic_class=256)), QPAttrMask.ALT_PATH),
        (QPAttr(alt_ah_attr=AddressVector(hop_limit=-1)), QPAttrMask.ALT_PATH),
        (QPAttr(alt_ah_attr=AddressVector(udp_source_port=1 << 16)), QPAttrMask.ALT_PATH),
        (QPAttr(alt_ah_attr=AddressVector(dmac=b"12345")), QPAttrMask.ALT_PATH),
        (QPAttr(min_rnr_timer=32), QPAttrMask.MIN_RNR_TIMER),
    ],
    ids=lambda value: str(getattr(value, "name", "")),
)
def test_attributes_that_no_packet_could_carry_are_refused(attr: QPAttr, mask: int) -> None:
    """At once, instead of when the network makes use of them."""
    qp = Pair().a.qp
    before = qp.query()

    einval(lambda: qp.modify(attr, mask))

    assert qp.query() == before


@each_case(
    "wr",
    [
        SendWR(99),
        SendWR(WROpcode.SEND_WITH_IMM, imm_data=1 << 32),
        SendWR(WROpcode.SEND_WITH_INV, invalidate_rkey=-1),
        SendWR(WROpcode.RDMA_WRITE, remote_addr=1 << 64),
        SendWR(WROpcode.RDMA_WRITE, rkey=1 << 32),
        SendWR(WROpcode.RDMA_READ, [SGE(0, -5, 0)]),
        SendWR(WROpcode.ATOMIC_CMP_AND_SWP, [SGE(0, 8, 0)], swap=1 << 64),
        SendWR(WROpcode.FLUSH, length=1 << 32),
        SendWR(WROpcode.FLUSH, flush_type=16),
        SendWR(WROpcode.FLUSH, flush_level=4),
    ],
)
def test_work_requests_that_no_packet_could_carry_are_refused(wr: SendWR) -> None:
    einval(lambda: Pair().a.qp.post_send(wr))


@pytest.mark.parametrize("ah", [AddressVector(sgid_index=1), AddressVector(dgid=-1), None])
def test_datagrams_to_nowhere_are_refused(ah: AddressVector | None) -> None:
    qp = Pair(init={"qp_type": QPType.UD}).a.qp

    einval(lambda: qp.post_send(SendWR(WROpcode.SEND, ah=ah)))


def test_a_queue_pair_that_cannot_be_made_uses_nothing() -> None:
    device = Device()
    pd, cq, closed = device.alloc_pd(), device.create_cq(1), device.create_cq(1)
    closed.close()

    einval(lambda: device.create_qp(QPInit(QPType.RC, pd, cq, closed)))

    assert (pd.users, cq.users, device.qps) == (0, 0, {})


def test_an_xrc_domain_is_busy_while_a_shared_receive_queue_is_in_it() -> None:
    device = Device()
    domain = device.open_xrc_domain()
    srq = device.create_srq(device.alloc_pd(), xrc_domain=domain, cq=device.create_cq(1))

    with pytest.raises(VerbsError, match="EBUSY"):
        domain.close()
    srq.close()
    domain.close()

    einval(lambda: device.create_srq(device.alloc_pd(), xrc_domain=domain))


def test_requests_before_one_with_wrong_memory_are_retransmitted_if_lost() -> None:
    """It completes with success, and only then the wrong one with its error."""
    pair = Pair()
    pair.drop("a", 1)
    pair.a.post_send(WROpcode.RDMA_WRITE, 8, wr_id=1)

    pair.a.qp.post_send(SendWR(WROpcode.RDMA_WRITE, [SGE(0, 100, 12345)], wr_id=2))
    pair.run()

    statuses = [(wc.wr_id, wc.status) for wc in pair.a.poll_send_cq()]
    assert statuses == [(1, WCStatus.SUCCESS), (2, WCStatus.LOC_PROT_ERR)]


def test_an_acknowledgement_during_the_rnr_wait_does_not_stop_what_follows() -> None:
    """A copy of the refused packet may have arrived late and found a receive request."""
    pair = Pair()
    pair.drop_if("a", lambda packet: True)
    pair.a.post_send(WROpcode.SEND, 8, wr_id=1)
    pair.run(10 * US)
    pair.a.qp.handle_packet(ack(0, 0x2C), pair.sim.now)
    pair.run(10 * US)
    pair.a.qp.handle_packet(ack(0, 0x1F), pair.sim.now)
    pair.wire.a_to_b.stage = None
    pair.b.qp.responder.epsn = 1

    pair.b.post_recv(4096)
    pair.a.post_send(WROpcode.SEND, 8, wr_id=2)
    pair.run()

    statuses = [(wc.wr_id, wc.status) for wc in pair.a.poll_send_cq()]
    assert statuses == [(1, WCStatus.SUCCESS), (2, WCStatus.SUCCESS)]


def test_unreliable_send_error_without_room_for_its_completion_moves_to_err_not_sqe() -> None:
    """The lost completion is the graver fault."""
    pair = Pair(init={"qp_type": QPType.UC})
    pair.a.send_cq.resize(1)
    pair.a.post_send(WROpcode.SEND, 8)

    pair.a.qp.post_send(SendWR(WROpcode.SEND, [SGE(0, 4, 0)]))
    pair.run()

    assert pair.a.qp.state is QPState.ERR


def test_xrc_initiator_receives_congestion_notifications() -> None:
    """It is the one that must slow down."""
    device = Device()
    qp = create_queue_pair(device, qp_type=QPType.XRC_SEND)
    bring_up(qp, AddressVector(dgid=5), dest_qp_num=9)
    made = TransportPacket(FORMS[OpCode.CNP], 0)
    made.pkey, made.mig_req = 0xFFFF, 1

    qp.handle_packet(made, 0)

    assert qp.counters.cnps_received == 1
