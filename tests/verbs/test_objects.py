"""Objects of the face: closing, copies, defaults, text."""

from __future__ import annotations

import gc
import logging
import weakref

import pytest

from each_case import each_case
from ibwire.verbs import device as d
from ibwire.verbs import libibverbs_enums as e
from ibwire.verbs import utils
from ibwire.verbs.addr import AH, GID, GRH, AHAttr, GlobalRoute
from ibwire.verbs.base import PyverbsCM, close_weakrefs, inc_rkey
from ibwire.verbs.cq import CQ, WC
from ibwire.verbs.device import Context
from ibwire.verbs.mr import MR
from ibwire.verbs.network import Network
from ibwire.verbs.pd import PD
from ibwire.verbs.pyverbs_error import PyverbsUserError
from ibwire.verbs.qp import QP, QPAttr, QPCap, QPInitAttr, QPInitAttrEx
from ibwire.verbs.wr import SendWR
from verbs.ends import End, ends


def test_closing_a_context_closes_everything_and_twice_is_once() -> None:
    a, _ = ends()
    handle = a.handle(a)

    a.ctx.close()
    a.ctx.close()

    assert (a.qp.qp, a.cq.cq, a.mr.mr, handle.vector) == (None, None, None, None)
    assert a.pd.ctx is None
    for thing in (a.qp, a.cq, a.mr, a.pd, handle):
        thing.close()


def test_closed_context_makes_nothing() -> None:
    with Context(name="ibwire0") as ctx:
        pass

    with pytest.raises(PyverbsUserError, match="closed"):
        PD(ctx)


def test_closing_a_domain_leaves_the_cq() -> None:
    a, _ = ends()

    a.pd.close()

    assert a.qp.qp is None
    assert a.cq.cq is not None


def test_closed_queue_pair_is_unknown_to_its_device(network: Network) -> None:
    a, _ = ends()
    assert a.qp.qp_num in network.devices["ibwire0"].qps

    a.qp.close()

    assert not network.devices["ibwire0"].qps


@pytest.mark.slow
def test_dropped_objects_are_closed(network: Network) -> None:
    device = network.devices["ibwire0"]
    end = End("ibwire0")
    assert device.qps
    watch = weakref.ref(end.qp)

    del end
    gc.collect()

    assert watch() is None
    assert not device.qps


@pytest.mark.slow
def test_dropped_circle_is_closed_in_any_order(network: Network) -> None:
    end = End("ibwire0")
    end.circle = end  # type: ignore[attr-defined]

    del end
    gc.collect()

    assert not network.devices["ibwire0"].qps


def test_reset_forgets_completions_of_the_queue_pair_and_of_no_other() -> None:
    a, b = ends()
    other = End("ibwire0")
    other.qp = QP(other.pd, QPInitAttr(2, scq=other.cq, rcq=other.cq, cap=QPCap()))
    flushed = QP(a.pd, QPInitAttr(2, scq=a.cq, rcq=a.cq, cap=QPCap()), QPAttr())
    flushed.post_recv(a.recv(wr_id=1))
    flushed.modify(QPAttr(e.ibv_qp_state.IBV_QPS_ERR), e.ibv_qp_attr_mask.IBV_QP_STATE)
    b.qp.post_recv(b.recv())
    a.qp.post_send(a.send(e.ibv_wr_opcode.IBV_WR_SEND, wr_id=2))
    b.wc()
    b.mr.read(1, 0)

    flushed.modify(QPAttr(e.ibv_qp_state.IBV_QPS_RESET), e.ibv_qp_attr_mask.IBV_QP_STATE)

    assert [wc.wr_id for wc in a.cq.poll(10)[1]] == [2]


def test_close_weakrefs_empties_the_sets() -> None:
    ctx = Context(name="ibwire0")
    domains = weakref.WeakSet([PD(ctx)])
    pd = PD(ctx)
    domains.add(pd)

    close_weakrefs([domains, None])

    assert not domains
    assert pd.ctx is None


def test_attributes_are_copied_not_shared() -> None:
    cap = QPCap(max_send_wr=5)
    init = QPInitAttr(cap=cap)
    cap.max_send_wr = 6
    init.cap.max_send_wr = 7
    assert init.max_send_wr == 5
    init.max_send_wr = 8
    assert init.cap.max_send_wr == 8

    route = GlobalRoute(GID("fe80:0000:0000:0000:0000:0000:0000:0001"))
    path = AHAttr(is_global=1, gr=route)
    attr = QPAttr()
    attr.ah_attr = path
    route.dgid = path.dgid = "fe80:0000:0000:0000:0000:0000:0000:0002"
    assert attr.ah_attr.dgid == "fe80:0000:0000:0000:0000:0000:0000:0001"


def test_local_path_shows_no_route() -> None:
    path = AHAttr(dlid=7)

    assert (path.dgid, path.flow_label, path.sgid_index, path.hop_limit) == (None,) * 4
    assert "dgid" not in str(path)


def test_query_returns_what_was_set() -> None:
    a, b = ends(changes={"rq_psn": 100, "sq_psn": 100, "min_rnr_timer": 3})
    attr, init = a.qp.query(0)

    assert (attr.qp_state, attr.cur_qp_state) == (3, 3)
    assert (attr.rq_psn, attr.sq_psn, attr.min_rnr_timer) == (100, 100, 3)
    assert attr.dest_qp_num == b.qp.qp_num
    assert attr.ah_attr.dgid == "0000:0000:0000:0000:0000:ffff:0a00:0002"
    assert attr.alt_ah_attr.is_global == 0
    assert (init.qp_type, init.send_cq, init.sq_sig_all) == (2, a.cq, 0)
    assert init.max_send_wr >= 64


def test_queue_pair_with_attributes_goes_to_the_last_state_without_a_peer() -> None:
    types = e.ibv_qp_type
    for qp_type, state in (
        (types.IBV_QPT_RC, e.ibv_qp_state.IBV_QPS_INIT),
        (types.IBV_QPT_UC, e.ibv_qp_state.IBV_QPS_INIT),
        (types.IBV_QPT_UD, e.ibv_qp_state.IBV_QPS_RTS),
    ):
        assert End("ibwire0", qp_type).qp.qp_state == state


def test_gid_is_text_of_eight_groups() -> None:
    text = "fe80:0000:0000:0000:0000:00ff:fe00:0001"
    gid = GID(text)

    assert str(gid) == gid.gid == text
    assert gid.number == 0xFE80_0000_0000_0000_0000_00FF_FE00_0001
    assert utils.gid_str_to_array(text)[:2] == ["fe", "80"]
    # The first half of ::1 in memory is zero, the second ends in 01.
    assert utils.gid_str(0, 1 << 56) == "0000:0000:0000:0000:0000:0000:0000:0001"


def test_gid_table_holds_the_address() -> None:
    ctx = Context(name="ibwire1")
    (entry,) = ctx.query_gid_table(16)

    assert entry.gid_str() == str(ctx.query_gid(1, 0))
    assert entry.gid_type == e.ibv_gid_type.IBV_GID_TYPE_ROCE_V2
    assert ctx.query_gid_type(1, 0) == e.ibv_gid_type_sysfs.IBV_GID_TYPE_SYSFS_ROCE_V2
    assert str(ctx.query_gid(1, 15)) == ":".join(["0000"] * 8)


def test_partition_key_is_found_by_value_and_by_index() -> None:
    ctx = Context(name="ibwire0")

    assert ctx.query_pkey(1, 0) == 0xFFFF
    assert ctx.get_pkey_index(1, 0xFFFF) == 0


def test_device_guid_is_made_from_the_mac_address() -> None:
    """EUI-64 of 02:00:0a:00:00:01 with the universal bit flipped."""
    device = d.get_device_list()[0]

    assert device.guid == 0x0000_0AFF_FE00_0001
    assert d.guid_format(Context(name="ibwire0").query_device().node_guid) == "0000:0aff:fe00:0001"


def test_clock_of_a_device_is_virtual_time(network: Network) -> None:
    network.advance(1_500_000_000_000)

    assert Context(name="ibwire0").query_rt_values_ex() == (1, 500_000_000)


def test_key_increment_keeps_the_index() -> None:
    assert inc_rkey(0x1234FF) == 0x123400
    assert inc_rkey(0x123401) == 0x123402


@each_case(
    ("made", "shown"),
    [
        (lambda: QPCap(7), "max send WR           : 7"),
        (lambda: QPInitAttr(2), "QP type               : RC"),
        (lambda: QPInitAttrEx(4, comp_mask=1), "comp mask             : PD"),
        (lambda: QPAttr(), "QP state              : Init"),
        (lambda: WC(status=12), "retry exc err"),
        (lambda: GRH(hop_limit=3), "hop limit             : 3"),
        (lambda: SendWR(opcode=7, send_flags=2), "IBV_SEND_SIGNALED"),
        (lambda: d.get_device_list()[0], "Device ibwire0, node type CA"),
        (lambda: Context(name="ibwire0").query_port(1), "active mtu            : 5"),
        (lambda: Context(name="ibwire0").query_device_ex(), "  max sge"),
        (lambda: End("ibwire0").qp, "number              : 17"),
        (lambda: End("ibwire0").mr, "MR:\nlkey"),
        (lambda: End("ibwire0").cq, "CQEs                  : 1000"),
        (lambda: d.AsyncEvent(15), "IBV_EVENT_SRQ_LIMIT_REACHED"),
    ],
)
def test_text_names_the_values(made: object, shown: str) -> None:
    assert shown in str(made())  # type: ignore[operator]


@each_case(
    "shown",
    [
        utils.qp_type_to_str(77),
        utils.qp_state_to_str(77),
        utils.mig_state_to_str(77),
        utils.rereg_error_to_str(77),
        d.translate_gid_type(77),
        d.translate_event_type(77),
        d.translate_node_type(77),
        d.port_state_to_str(77),
        d.translate_mtu(77),
        d.width_to_str(77),
    ],
)
def test_unknown_value_is_named_as_such(shown: str) -> None:
    assert "77" in shown
    assert "Unknown" in shown or "Invalid" in shown


def test_log_level_is_that_of_the_class() -> None:
    cq = CQ(Context(name="ibwire0"), 1)
    cq.set_log_level(logging.ERROR)

    assert logging.getLogger("CQ").level == logging.ERROR
    logging.getLogger("CQ").setLevel(logging.NOTSET)


def test_handles_count_up_and_address_handles_close_with_their_domain() -> None:
    a, b = ends()
    first, second = MR(a.pd, 8, 1), MR(a.pd, 8, 1)
    handle = AH(a.pd, attr=a.route(b))
    assert first.handle < second.handle

    a.pd.close()

    assert handle.pd is None


def test_any_object_is_a_context_manager() -> None:
    with PyverbsCM() as thing:
        assert thing.close() is None
