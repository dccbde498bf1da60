"""What is pyverbs_errors, with which exception and errno; what fails later, with which status."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from each_case import each_case
from ibwire.base.errors import IbwireError, VerbsError
from ibwire.verbs import libibverbs_enums as e
from ibwire.verbs import mem_alloc
from ibwire.verbs.addr import AH, GID, AHAttr, GlobalRoute
from ibwire.verbs.cq import CQ, CQEX, CompChannel, CqInitAttrEx
from ibwire.verbs.device import DM, AllocDmAttr, Context
from ibwire.verbs.mr import DMMR, MR, MW, DmaBufMR, MREx
from ibwire.verbs.pd import PD
from ibwire.verbs.pyverbs_error import (
    PyverbsError,
    PyverbsRangeError,
    PyverbsRDMAError,
    PyverbsUserError,
)
from ibwire.verbs.qp import QP, QPAttr, QPCap, QPEx, QPInitAttr, QPInitAttrEx
from ibwire.verbs.srq import SRQ, SrqAttr, SrqInitAttr, SrqInitAttrEx
from ibwire.verbs.wr import SGE, RecvWR, SendWR
from ibwire.verbs.xrcd import XRCD, XRCDInitAttr
from verbs.ends import QKEY, End, ends

WR = e.ibv_wr_opcode
STATUS = e.ibv_wc_status
ACCESS = e.ibv_access_flags


def test_errors_belong_to_both_worlds() -> None:
    assert issubclass(PyverbsError, IbwireError)
    assert issubclass(PyverbsRDMAError, VerbsError)
    assert issubclass(PyverbsRDMAError, PyverbsError)
    assert not issubclass(PyverbsUserError, VerbsError)


def test_error_has_its_code() -> None:
    error = PyverbsRDMAError("Failed to fly", errno.EPERM)

    assert (error.error_code, error.errno) == (errno.EPERM, errno.EPERM)
    assert error.args[0] == "Failed to fly. Errno: 1, Operation not permitted"
    assert str(PyverbsRDMAError("no code")) == "no code"
    assert PyverbsRDMAError("no code").error_code == -1


def refused_with(code: int, act: Callable[[], object]) -> str:
    with pytest.raises(PyverbsRDMAError) as pyverbs_errors:
        act()
    assert pyverbs_errors.value.error_code == code
    return str(pyverbs_errors.value)


def test_unknown_device_is_not_found() -> None:
    with pytest.raises(PyverbsRDMAError, match="mlx5_0"):
        Context(name="mlx5_0")
    with pytest.raises(PyverbsUserError):
        Context()


def _qp(end: End, **init: int) -> QP:
    return QP(end.pd, QPInitAttr(2, scq=end.cq, rcq=end.cq, cap=QPCap(**init)))


REFUSED: dict[str, tuple[int, Callable[[End], object]]] = {
    "port": (errno.EINVAL, lambda a: a.ctx.query_port(2)),
    "gid": (errno.EINVAL, lambda a: a.ctx.query_gid(1, 16)),
    "empty gid": (errno.ENODATA, lambda a: a.ctx.query_gid_ex(1, 15)),
    "gid table": (-errno.EINVAL, lambda a: a.ctx.query_gid_table(0)),
    "pkey": (errno.EINVAL, lambda a: a.ctx.query_pkey(1, 1)),
    "pkey value": (errno.EINVAL, lambda a: a.ctx.get_pkey_index(1, 0x1234)),
    "context by fd": (errno.EOPNOTSUPP, lambda a: Context(cmd_fd=3)),
    "pd by handle": (errno.EOPNOTSUPP, lambda a: PD(a.ctx, handle=1)),
    "cqe": (errno.EINVAL, lambda a: CQ(a.ctx, a.ctx.query_device().max_cqe + 1)),
    "no cqe": (errno.EINVAL, lambda a: CQ(a.ctx, 0)),
    "vector": (errno.EINVAL, lambda a: CQ(a.ctx, 10, None, None, a.ctx.num_comp_vectors + 1)),
    "resize": (errno.EINVAL, lambda a: a.cq.resize(a.ctx.query_device().max_cqe + 1)),
    "cq flags": (errno.EOPNOTSUPP, lambda a: CQEX(a.ctx, CqInitAttrEx(wc_flags=1 << 7))),
    "channel fd": (errno.EOPNOTSUPP, lambda a: CompChannel(a.ctx).fd),
    "remote write": (errno.EINVAL, lambda a: MR(a.pd, 10, ACCESS.IBV_ACCESS_REMOTE_WRITE)),
    "access bits": (errno.EINVAL, lambda a: MR(a.pd, 10, 1 << 15)),
    "address": (errno.EFAULT, lambda a: MR(a.pd, 10, 1, address=0x1000)),
    "past the block": (errno.EFAULT, lambda a: MR(a.pd, 11, 1, address=mem_alloc.malloc(10))),
    "implicit": (errno.EOPNOTSUPP, lambda a: MR(a.pd, 0, 1, implicit=True)),
    "too much memory": (errno.ENOMEM, lambda a: MR(a.pd, 1 << 62, 1)),
    "mr by handle": (errno.EOPNOTSUPP, lambda a: MR(a.pd, handle=1)),
    "dma-buf": (errno.EOPNOTSUPP, lambda a: DmaBufMR(a.pd, 10, 1)),
    "device memory": (errno.EOPNOTSUPP, lambda a: DMMR(a.pd, 10, 1, None, 0)),
    "fd region": (errno.EOPNOTSUPP, lambda a: MREx(a.pd, 10, 1, fd=0)),
    "window type": (errno.EINVAL, lambda a: MW(a.pd, 3)),
    "raw packets": (errno.EOPNOTSUPP, lambda a: QP(a.pd, QPInitAttr(8, scq=a.cq, rcq=a.cq))),
    "no send cq": (errno.EINVAL, lambda a: QP(a.pd, QPInitAttr(2, cap=QPCap()))),
    "send requests": (errno.EINVAL, lambda a: _qp(a, max_send_wr=0xFFFFFFFF)),
    "receive sges": (errno.EINVAL, lambda a: _qp(a, max_recv_sge=0xFFFF)),
    "inline": (errno.EINVAL, lambda a: _qp(a, max_inline_data=1 << 20)),
    "create flags": (
        errno.EOPNOTSUPP,
        lambda a: QP(
            a.ctx, QPInitAttrEx(2, scq=a.cq, rcq=a.cq, comp_mask=5, pd=a.pd, create_flags=2)
        ),
    ),
    "no pd": (errno.EINVAL, lambda a: QP(a.ctx, QPInitAttrEx(2, scq=a.cq, rcq=a.cq))),
    "no xrcd": (errno.EINVAL, lambda a: QP(a.ctx, QPInitAttrEx(10))),
    "segmentation": (
        errno.EOPNOTSUPP,
        lambda a: QPEx(
            a.ctx,
            QPInitAttrEx(2, scq=a.cq, rcq=a.cq, comp_mask=65, pd=a.pd, send_ops_flags=1 << 10),
        ),
    ),
    "rts from reset": (
        errno.EINVAL,
        lambda a: _qp(a).modify(QPAttr(3), e.ibv_qp_attr_mask.IBV_QP_STATE),
    ),
    "unknown state": (errno.EINVAL, lambda a: a.qp.modify(QPAttr(7), 1)),
    "send in init": (errno.EINVAL, lambda a: a.qp.post_send(a.send(WR.IBV_WR_SEND))),
    "receive in reset": (errno.EINVAL, lambda a: _qp(a).post_recv(a.recv())),
    "receive sge list": (
        errno.EINVAL,
        lambda a: a.qp.post_recv(RecvWR(0, 2, [a.sge(1), a.sge(1)])),
    ),
    "ece": (errno.EOPNOTSUPP, lambda a: a.qp.query_ece()),
    "srq size": (errno.EINVAL, lambda a: SRQ(a.pd, SrqInitAttr(SrqAttr(1 << 30)))),
    "srq without pd": (errno.EINVAL, lambda a: SRQ(a.ctx, SrqInitAttrEx(10))),
    "srq type": (errno.EOPNOTSUPP, lambda a: SRQ(a.ctx, _tag_matching())),
    "xrcd mask": (errno.EINVAL, lambda a: XRCD(a.ctx, XRCDInitAttr(0, 0, -1))),
    "xrcd fd": (errno.EBADF, lambda a: XRCD(a.ctx, XRCDInitAttr(3, 0, 1 << 20))),
    "ah without route": (errno.EINVAL, lambda a: AH(a.pd, attr=AHAttr())),
    "ah port": (errno.EINVAL, lambda a: AH(a.pd, attr=_path(port_num=9))),
    "ah gid": (
        errno.EINVAL,
        lambda a: AH(a.pd, attr=AHAttr(is_global=1, gr=GlobalRoute(GID(), sgid_index=7))),
    ),
    "event": (errno.EAGAIN, lambda a: a.ctx.get_async_event()),
    "free": (errno.EINVAL, lambda a: mem_alloc.free(12345)),
    "read": (errno.EFAULT, lambda a: mem_alloc.read(12345, 1)),
    "sge": (errno.EFAULT, lambda a: SGE(12345, 8, 0).read(8, 0)),
    "mr overrun": (errno.EFAULT, lambda a: a.mr.read(1 << 20, 0)),
}


def _tag_matching() -> SrqInitAttrEx:
    attr = SrqInitAttrEx(10)
    attr.srq_type, attr.comp_mask = 2, 1
    return attr


def _path(**fields: int) -> AHAttr:
    return AHAttr(is_global=1, gr=GlobalRoute(GID()), **fields)


@each_case("case", REFUSED)
def test_device_refuses(case: str) -> None:
    code, act = REFUSED[case]

    refused_with(code, lambda: act(End("ibwire0")))


USER_ERRORS: dict[str, Callable[[End], object]] = {
    "pd from a cq": lambda a: PD(a.cq),
    "mr from a context": lambda a: MR(a.ctx, 10, 1),
    "send without data": lambda a: SendWR(),
    "fewer sges": lambda a: RecvWR(0, 2, [a.sge(1)]),
    "global path": lambda a: AHAttr(is_global=1),
    "gid": lambda a: GID("fe80::1"),
    "gid digits": lambda a: GID("00_0:" * 7 + "0000"),
    "cq type": lambda a: QPInitAttr(2, scq=a.mr),
    "creator and attributes": lambda a: QP(a.ctx, QPInitAttr(2)),
    "negative length": lambda a: a.mr.read(-1, 0),
    "more than given": lambda a: a.mr.write("abc", 4),
    "device memory": lambda a: DM(a.ctx, AllocDmAttr(10)),
    "number": lambda a: setattr(QPAttr(), "port_num", 256),
    "text": lambda a: setattr(QPAttr(), "port_num", "1"),
    "no completion": lambda a: CQEX(a.ctx).read_opcode(),
    "not started": lambda a: QPEx(a.pd, QPInitAttr(2, scq=a.cq, rcq=a.cq)).wr_start(),
    "no attr": lambda a: AH(a.pd, way="home"),
}


@each_case("case", USER_ERRORS)
def test_user_errors_reach_no_device(case: str) -> None:
    end = End("ibwire0")

    with pytest.raises(PyverbsUserError):
        USER_ERRORS[case](end)


def test_extended_queue_pair_has_only_the_operations_it_was_made_for() -> None:
    a, _ = ends(send_ops_flags=e.ibv_qp_create_send_ops_flags.IBV_QP_EX_WITH_SEND)
    with pytest.raises(PyverbsUserError, match="wr_start"):
        a.qp.wr_send()
    a.qp.wr_start()
    with pytest.raises(PyverbsUserError, match="wr_send must be called first"):
        a.qp.wr_set_sge(a.sge(1))
    with pytest.raises(PyverbsUserError, match="RDMA_READ"):
        a.qp.wr_rdma_read(1, 2)


@given(st.integers())
def test_field_takes_exactly_the_numbers_of_its_width(value: int) -> None:
    attr = QPAttr()
    if 0 <= value < 1 << 16:
        attr.pkey_index = value
        assert attr.pkey_index == value
        return

    with pytest.raises(PyverbsRangeError):
        attr.pkey_index = value
    with pytest.raises(OverflowError):
        attr.pkey_index = value
    assert attr.pkey_index == 0


def test_full_receive_queue_is_enomem_and_the_bad_request_is_reported() -> None:
    a = End("ibwire0", max_recv_wr=2)
    third = a.recv(wr_id=3)
    chain = RecvWR(1, 1, [a.sge(1)], RecvWR(2, 1, [a.sge(1)], third))
    bad = RecvWR()

    refused_with(errno.ENOMEM, lambda: a.qp.post_recv(chain, bad))

    assert bad.wr_id == 3


def test_bad_send_request_is_reported_and_those_before_it_are_sent() -> None:
    a, b = ends()
    b.qp.post_recv(b.recv())
    bad_one = a.send(99, wr_id=2)
    good = a.send(WR.IBV_WR_SEND, wr_id=1, next_wr=bad_one)
    bad = a.send(WR.IBV_WR_SEND)

    refused_with(errno.EINVAL, lambda: a.qp.post_send(good, bad))

    assert (bad.wr_id, bad.opcode) == (2, 99)
    assert a.wc().wr_id == 1


@pytest.mark.parametrize("attribute", ["lkey", "rkey", "length"])
def test_closed_region_has_no_keys(attribute: str) -> None:
    end = End("ibwire0")
    end.mr.close()

    with pytest.raises(PyverbsUserError):
        getattr(end.mr, attribute)


def test_wrong_key_ends_both_queue_pairs() -> None:
    a, b = ends()
    request = a.send(WR.IBV_WR_RDMA_READ)
    request.set_wr_rdma(b.mr.rkey + 0x100000, b.mr.buf)
    a.qp.post_send(request)

    assert a.wc().status == STATUS.IBV_WC_REM_ACCESS_ERR
    assert (a.qp.qp_state, b.qp.qp_state) == (6, 6)
    a.qp.post_send(a.send(WR.IBV_WR_SEND))
    assert a.wc().status == STATUS.IBV_WC_WR_FLUSH_ERR


def test_unreachable_peer_is_reported_after_the_retries() -> None:
    a, _ = ends(changes={"retry_cnt": 2, "dest_qp_num": 0x777})
    a.qp.post_send(a.send(WR.IBV_WR_SEND))

    assert a.wc().status == STATUS.IBV_WC_RETRY_EXC_ERR


def test_receiver_that_is_never_ready_is_reported() -> None:
    a, _ = ends(changes={"rnr_retry": 2})
    a.qp.post_send(a.send(WR.IBV_WR_SEND))

    assert a.wc().status == STATUS.IBV_WC_RNR_RETRY_EXC_ERR


def test_wrong_local_key_is_a_local_protection_error() -> None:
    a, b = ends()
    b.qp.post_recv(b.recv())
    sge = a.sge(8)
    sge.lkey += 0x100000
    a.qp.post_send(SendWR(opcode=WR.IBV_WR_SEND, num_sge=1, sg=[sge]))

    assert a.wc().status == STATUS.IBV_WC_LOC_PROT_ERR


def test_datagram_with_another_qkey_is_not_delivered() -> None:
    a, b = ends(e.ibv_qp_type.IBV_QPT_UD)
    b.qp.post_recv(b.recv())
    datagram = a.send(WR.IBV_WR_SEND, 4)
    datagram.set_wr_ud(a.handle(b), b.qp.qp_num, QKEY + 1)
    a.qp.post_send(datagram)

    assert a.wc().status == STATUS.IBV_WC_SUCCESS
    assert b.cq.poll() == (0, [])
