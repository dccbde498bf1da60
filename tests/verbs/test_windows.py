"""Memory windows and re-registration through the face."""

from __future__ import annotations

import errno
from typing import Any

import pytest

from ibwire.verbs import libibverbs_enums as e
from ibwire.verbs import mem_alloc
from ibwire.verbs.base import inc_rkey
from ibwire.verbs.mr import MR, MW, MREx, MWBind, MWBindInfo
from ibwire.verbs.pd import PD
from ibwire.verbs.pyverbs_error import PyverbsRDMAError, PyverbsUserError
from ibwire.verbs.qp import QPAttr
from ibwire.verbs.wr import SendWR
from verbs.ends import ALL_ACCESS, End, ends

OK = e.ibv_wc_status.IBV_WC_SUCCESS
REM_ACCESS_ERR = e.ibv_wc_status.IBV_WC_REM_ACCESS_ERR
REMOTE_WRITE = e.ibv_access_flags.IBV_ACCESS_REMOTE_WRITE
WR = e.ibv_wr_opcode


def write(a: End, rkey: int, address: int) -> int:
    """Status of an eight-byte WRITE."""
    request = a.send(WR.IBV_WR_RDMA_WRITE)
    request.set_wr_rdma(rkey, address)
    a.qp.post_send(request)
    return int(a.wc().status)


def bind_type_1(b: End, window: MW, length: int) -> None:
    info = MWBindInfo(b.mr, b.mr.buf, length, REMOTE_WRITE if length else 0)
    b.qp.bind_mw(window, MWBind(info, e.ibv_send_flags.IBV_SEND_SIGNALED))
    assert b.wc().status == OK


def test_type_1_window_opens_its_part_under_the_new_key_until_it_is_unbound() -> None:
    a, b = ends()
    window = MW(b.pd, e.ibv_mw_type.IBV_MW_TYPE_1)
    first = window.rkey
    bind_type_1(b, window, 100)

    assert window.rkey == inc_rkey(first)
    assert write(a, window.rkey, b.mr.buf + 92) == OK
    key = window.rkey
    bind_type_1(b, window, 0)
    assert write(a, key, b.mr.buf) == REM_ACCESS_ERR


def bound_type_2(b: End) -> SendWR:
    window = MW(b.pd, e.ibv_mw_type.IBV_MW_TYPE_2)
    request = SendWR(opcode=WR.IBV_WR_BIND_MW)
    request.set_bind_wr(window, MWBindInfo(b.mr, b.mr.buf, 100, REMOTE_WRITE))
    b.qp.post_send(request)
    b.qp.add_ref(window)
    assert b.wc().status == OK
    request.window = window  # type: ignore[attr-defined]
    return request


def test_type_2_window_is_invalidated_by_its_owner() -> None:
    a, b = ends()
    bound = bound_type_2(b)
    assert write(a, bound.rkey, b.mr.buf) == OK
    invalidate = SendWR(opcode=WR.IBV_WR_LOCAL_INV)
    invalidate.imm_data = bound.rkey
    b.qp.post_send(invalidate)
    assert b.wc().opcode == e.ibv_wc_opcode.IBV_WC_LOCAL_INV

    assert write(a, bound.rkey, b.mr.buf) == REM_ACCESS_ERR


def test_type_2_window_is_invalidated_by_the_peer_and_the_completion_has_the_key() -> None:
    a, b = ends()
    bound = bound_type_2(b)
    b.qp.post_recv(b.recv())
    invalidate = SendWR(opcode=WR.IBV_WR_SEND_WITH_INV)
    invalidate.imm_data = bound.rkey
    a.qp.post_send(invalidate)
    assert a.wc().status == OK
    received = b.wc()

    assert received.wc_flags & e.ibv_wc_flags.IBV_WC_WITH_INV
    assert received.imm_data == bound.rkey
    assert write(a, bound.rkey, b.mr.buf) == REM_ACCESS_ERR


def test_deallocated_window_is_worthless() -> None:
    a, b = ends()
    bound = bound_type_2(b)
    bound.window.close()  # type: ignore[attr-defined]

    assert write(a, bound.rkey, b.mr.buf) == REM_ACCESS_ERR


def test_bind_mw_refuses_a_type_2_window() -> None:
    a, _ = ends()
    window = MW(a.pd, e.ibv_mw_type.IBV_MW_TYPE_2)
    bind = MWBind(MWBindInfo(a.mr, a.mr.buf, 8, 0), 0)

    with pytest.raises(PyverbsRDMAError) as pyverbs_errors:
        a.qp.bind_mw(window, bind)

    assert pyverbs_errors.value.error_code == errno.EINVAL


def test_window_cannot_be_bound_to_a_closed_region() -> None:
    a, _ = ends()
    region = MR(a.pd, 64, ALL_ACCESS)
    info = MWBindInfo(region, region.buf, 8, 0)
    region.close()

    with pytest.raises(PyverbsUserError):
        a.qp.bind_mw(MW(a.pd, 1), MWBind(info, 0))


def test_region_with_a_bound_window_is_not_deregistered_alone_but_with_its_domain() -> None:
    _, b = ends()
    bound = bound_type_2(b)
    with pytest.raises(PyverbsRDMAError) as pyverbs_errors:
        b.mr.close()
    assert pyverbs_errors.value.error_code == errno.EINVAL

    b.ctx.close()

    assert b.mr.pd is None
    assert bound.window.mw is None  # type: ignore[attr-defined]


def test_changed_access_counts_for_the_next_packet() -> None:
    a, b = ends()
    assert write(a, b.mr.rkey, b.mr.buf) == OK
    b.mr.rereg(e.ibv_rereg_mr_flags.IBV_REREG_MR_CHANGE_ACCESS, access=1)

    assert write(a, b.mr.rkey, b.mr.buf) == REM_ACCESS_ERR


def test_moved_region_has_the_new_bytes_and_the_old_key() -> None:
    a, b = ends()
    address = mem_alloc.malloc(64)
    key = b.mr.rkey
    b.mr.rereg(e.ibv_rereg_mr_flags.IBV_REREG_MR_CHANGE_TRANSLATION, addr=address, length=64)
    a.mr.write(b"new home", 8)

    assert write(a, key, address) == OK
    assert (b.mr.buf, b.mr.length) == (address, 64)
    assert mem_alloc.read(address, 8) == b"new home"


def test_region_moved_to_another_domain_is_closed_with_that() -> None:
    _, b = ends()
    other = PD(b.ctx)
    b.mr.rereg(e.ibv_rereg_mr_flags.IBV_REREG_MR_CHANGE_PD, pd=other)
    assert b.mr.pd is other

    other.close()

    assert b.mr.pd is None


@pytest.mark.parametrize(
    ("flags", "given", "code"),
    [
        (0, {}, errno.EINVAL),
        (8, {}, errno.EINVAL),
        (e.ibv_rereg_mr_flags.IBV_REREG_MR_CHANGE_PD, {}, errno.EINVAL),
        (
            e.ibv_rereg_mr_flags.IBV_REREG_MR_CHANGE_ACCESS,
            {"access": REMOTE_WRITE},
            errno.EINVAL,
        ),
        (
            e.ibv_rereg_mr_flags.IBV_REREG_MR_CHANGE_TRANSLATION,
            {"addr": 4096, "length": 8},
            errno.EFAULT,
        ),
    ],
)
def test_wrong_reregistration_changes_nothing(flags: int, given: Any, code: int) -> None:
    _, b = ends()
    before = b.mr.buf, b.mr.length, b.mr.pd

    with pytest.raises(PyverbsRDMAError) as pyverbs_errors:
        b.mr.rereg(flags, **given)

    assert pyverbs_errors.value.error_code == code
    assert (b.mr.buf, b.mr.length, b.mr.pd) == before


def test_address_for_peers_may_differ_from_that_of_the_memory() -> None:
    a, b = ends()
    region = MREx(b.pd, 64, 7, iova=0x1000)

    assert write(a, region.rkey, 0x1000 + 56) == OK
    assert write(a, region.rkey, region.buf) == REM_ACCESS_ERR


def test_zero_based_region_counts_from_zero() -> None:
    a, b = ends()
    region = MR(b.pd, 64, 3 | e.ibv_access_flags.IBV_ACCESS_ZERO_BASED)
    a.mr.write(b"from 0..", 8)

    assert write(a, region.rkey, 0) == OK
    assert region.read(8, 0) == b"from 0.."


def test_query_of_a_reset_queue_pair_brings_it_back() -> None:
    a, b = ends()
    attrs = a.qp.query(0x1FFFFFF)[0], b.qp.query(0x1FFFFFF)[0]
    assert write(a, 1, b.mr.buf) == REM_ACCESS_ERR
    for end, attr in zip((a, b), attrs, strict=True):
        end.qp.modify(QPAttr(e.ibv_qp_state.IBV_QPS_RESET), e.ibv_qp_attr_mask.IBV_QP_STATE)
        end.qp.to_rts(attr)

    assert write(a, b.mr.rkey, b.mr.buf) == OK
