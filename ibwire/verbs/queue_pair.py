"""Queue pairs, with pyverbs' names."""

from __future__ import annotations

import errno
from typing import ClassVar

from ibwire.base.errors import VerbsError
from ibwire.rc import attributes as rc
from ibwire.rc import work
from ibwire.rc.qp import QPInit, QueuePair
from ibwire.rc.xrc import XRCDomain
from ibwire.verbs.base import (
    Children,
    PyverbsCM,
    PyverbsResource,
    inc_rkey,
    raise_pyverbs_error,
    table,
)
from ibwire.verbs.device import Context
from ibwire.verbs.libibverbs_enums import (
    ibv_qp_attr_mask,
    ibv_qp_init_attr_mask,
    ibv_qp_state,
    ibv_qp_type,
)
from ibwire.verbs.mr import MW, MWBind
from ibwire.verbs.pd import PD
from ibwire.verbs.pyverbs_error import PyverbsRDMAError, PyverbsUserError
from ibwire.verbs.qp_attributes import (
    ECE,
    QPAttachCompCntrAttr,
    QPAttr,
    QPInitAttr,
    QPInitAttrEx,
    QPRateLimitAttr,
)
from ibwire.verbs.utils import qp_state_to_str, qp_type_to_str
from ibwire.verbs.wr import RecvWR, SendWR
from ibwire.verbs.xrcd import XRCD


class QP(PyverbsResource):
    """A queue pair, of a PD with `QPInitAttr` or of a Context with `QPInitAttrEx`.

    With a `qp_attr` it goes to the last state that needs no peer: RTS for UD, INIT for the
    connected types.
    """

    closing_rank: ClassVar[int] = 0
    qp: QueuePair | None = None

    def __init__(
        self,
        creator: PD | Context,
        init_attr: QPInitAttr | QPInitAttrEx,
        qp_attr: QPAttr | None = None,
    ) -> None:
        pd, xrcd = _parents(creator, init_attr)
        self.context = creator if isinstance(creator, Context) else creator.context
        context = self.context
        with context.verb("Failed to create QP"):
            init = _init(init_attr, pd, None if xrcd is None else xrcd.xrcd)
            self.qp = context.device.create_qp(init)
            context.network.subscribe(self.qp, context)
        self._init_attr = init_attr.copy()
        self._children = Children()
        self.handle = context.new_handle()
        self.pd = pd
        self.xrcd = xrcd
        self.scq = init_attr.send_cq
        self.rcq = init_attr.recv_cq
        self.srq = init_attr.srq
        for parent in (context, pd, xrcd, self.scq, self.rcq, self.srq):
            if parent is not None:
                parent.add_ref(self)
        if qp_attr is not None:
            if self.qp_type == ibv_qp_type.IBV_QPT_UD:
                self.to_rts(qp_attr)
            else:
                self.to_init(qp_attr)

    def pair(self) -> QueuePair:
        """The device's queue pair; raises `PyverbsUserError` after closing."""
        if self.qp is None:
            raise PyverbsUserError("The QP is closed")
        return self.qp

    def add_ref(self, obj: PyverbsCM) -> None:
        """Register a window to be closed with the queue pair."""
        self._children.add(obj)

    @property
    def qp_type(self) -> int:
        """Transport service."""
        return int(self.pair().qp_type)

    @property
    def qp_state(self) -> int:
        """Current state."""
        return int(self.pair().state)

    @property
    def qp_num(self) -> int:
        """Queue pair number."""
        return self.pair().number

    def to_init(self, qp_attr: QPAttr) -> None:
        """Go from RESET to INIT."""
        self._advance(qp_attr, ibv_qp_state.IBV_QPS_INIT)

    def to_rtr(self, qp_attr: QPAttr) -> None:
        """Go to RTR, through INIT if needed."""
        if self.qp_state != ibv_qp_state.IBV_QPS_INIT:
            self.to_init(qp_attr)
        self._advance(qp_attr, ibv_qp_state.IBV_QPS_RTR)

    def to_rts(self, qp_attr: QPAttr) -> None:
        """Go to RTS, through the earlier states if needed."""
        if self.qp_state != ibv_qp_state.IBV_QPS_RTR:
            self.to_rtr(qp_attr)
        self._advance(qp_attr, ibv_qp_state.IBV_QPS_RTS)

    def _advance(self, qp_attr: QPAttr, state: ibv_qp_state) -> None:
        mask = _MASKS[self.qp_type][state] | ibv_qp_attr_mask.IBV_QP_STATE
        qp_attr.qp_state = state
        self._modify(qp_attr, mask, f"Failed to modify QP state to {qp_state_to_str(state)}")

    def modify(self, qp_attr: QPAttr, comp_mask: int) -> None:
        """Set the attributes that the mask selects."""
        self._modify(qp_attr, comp_mask, "Failed to modify QP")

    def _modify(self, qp_attr: QPAttr, mask: int, failure: str) -> None:
        with self.context.verb(failure):
            pair = self.pair()
            pair.modify(qp_attr.attributes(), int(mask))
            if pair.state is rc.QPState.RESET:
                self._forget_completions()

    def _forget_completions(self) -> None:
        for cq in (self.scq, self.rcq):
            if cq is not None and cq.cq is not None:
                cq.forget(self.qp_num)

    def query(self, attr_mask: int) -> tuple[QPAttr, QPInitAttr]:
        """All attributes, whatever the mask, and the creation attributes."""
        with self.context.verb("Failed to query QP"):
            attr = QPAttr.from_attributes(self.pair().query())
        init = QPInitAttr(
            qp_type=self.qp_type,
            qp_context=self._init_attr.qp_context,
            scq=self.scq,
            rcq=self.rcq,
            srq=self.srq,
            cap=attr.cap,
            sq_sig_all=self._init_attr.sq_sig_all,
        )
        return attr, init

    def post_recv(self, wr: RecvWR, bad_wr: RecvWR | None = None) -> None:
        """Post receive requests up to the first invalid one."""
        pair = self.pair()
        next_wr: RecvWR | None = wr
        with self.context.network.lock:
            while next_wr is not None:
                try:
                    pair.post_recv(next_wr.request())
                except VerbsError as error:
                    if bad_wr is not None:
                        bad_wr.copy_from(next_wr)
                    raise_pyverbs_error("Failed to post recv", error)
                next_wr = next_wr.next_wr

    def post_send(self, wr: SendWR, bad_wr: SendWR | None = None) -> None:
        """Post send requests up to the first invalid one."""
        pair = self.pair()
        network = self.context.network
        next_wr: SendWR | None = wr
        with network.lock:
            while next_wr is not None:
                try:
                    pair.post_send(next_wr.request(network.memory))
                except VerbsError as error:
                    if bad_wr is not None:
                        bad_wr.copy_from(next_wr)
                    raise_pyverbs_error("Failed to post send", error)
                next_wr = next_wr.next_wr

    def bind_mw(self, mw: MW, mw_bind: MWBind) -> None:
        """Bind a type 1 window; its key changes at once."""
        with self.context.verb("Failed to Bind MW"):
            if mw.mw is None or mw.type != 1:
                raise VerbsError(errno.EINVAL, "not an open window of type 1")
            key = inc_rkey(mw.rkey)
            self.pair().post_send(
                work.SendWR(
                    opcode=work.WROpcode.BIND_MW,
                    send_flags=mw_bind.send_flags,
                    wr_id=mw_bind.wr_id,
                    rkey=key,
                    mw=mw.mw,
                    bind_info=mw_bind.info.info(),
                )
            )
        mw.rkey = key
        self.add_ref(mw)

    def query_data_in_order(self, op: int, flags: int = 0) -> int:
        """Always 0: the order in which data is written is not guaranteed."""
        return 0

    def set_ece(self, ece: ECE) -> None:
        """Only vendor 0, no options, is supported; others raise EOPNOTSUPP."""
        if ece.vendor_id:
            raise PyverbsRDMAError("Failed to set ECE", errno.EOPNOTSUPP)

    def query_ece(self) -> ECE:
        """Not supported: EOPNOTSUPP."""
        raise PyverbsRDMAError("Failed to query ECE", errno.EOPNOTSUPP)

    def modify_rate_limit(self, attr: QPRateLimitAttr) -> None:
        """Not supported: EOPNOTSUPP."""
        raise PyverbsRDMAError("Failed to modify QP rate limit", errno.EOPNOTSUPP)

    def attach_comp_cntr(self, comp_cntr: object, attr: QPAttachCompCntrAttr) -> None:
        """Not supported: EOPNOTSUPP."""
        raise PyverbsRDMAError("Failed to attach comp cntr to QP", errno.EOPNOTSUPP)

    def close(self) -> None:
        """Destroy the queue pair."""
        if self.qp is not None:
            self._children.close()
            with self.context.closing("Failed to destroy QP"):
                self.context.network.unsubscribe(self.qp)
                self._forget_completions()
                self.qp.close()
            self.qp = None
            self.pd = self.xrcd = self.scq = self.rcq = self.srq = None

    def __str__(self) -> str:
        return table(
            ("QP type", qp_type_to_str(self.qp_type)),
            ("  number", self.qp_num),
            ("  state", qp_state_to_str(self.qp_state)),
        )


def _parents(
    creator: PD | Context, init_attr: QPInitAttr | QPInitAttrEx
) -> tuple[PD | None, XRCD | None]:
    """The PD and XRC domain of a new queue pair."""
    if isinstance(creator, PD) and isinstance(init_attr, QPInitAttr):
        return creator, None
    if isinstance(creator, Context) and isinstance(init_attr, QPInitAttrEx):
        mask = init_attr.comp_mask
        return (
            init_attr.pd if mask & ibv_qp_init_attr_mask.IBV_QP_INIT_ATTR_PD else None,
            init_attr.xrcd if mask & ibv_qp_init_attr_mask.IBV_QP_INIT_ATTR_XRCD else None,
        )
    raise PyverbsUserError(
        "a QP is made from a PD and QPInitAttr or from a Context and QPInitAttrEx"
    )


def _init(attr: QPInitAttr | QPInitAttrEx, pd: PD | None, xrc_domain: XRCDomain | None) -> QPInit:
    """The creation attributes as the device has them; raises `VerbsError` for unsupported ones."""
    try:
        qp_type = rc.QPType(attr.qp_type)
    except ValueError:
        raise VerbsError(errno.EOPNOTSUPP, f"QP type {attr.qp_type}") from None
    if isinstance(attr, QPInitAttrEx):
        if attr.comp_mask & ~_SUPPORTED_INIT_FIELDS:
            raise VerbsError(errno.EOPNOTSUPP, f"comp_mask {attr.comp_mask:#x}")
        if attr.create_flags and attr.comp_mask & _CREATE_FLAGS:
            raise VerbsError(errno.EOPNOTSUPP, f"create_flags {attr.create_flags:#x}")
    send_cq, recv_cq, srq = attr.send_cq, attr.recv_cq, attr.srq
    return QPInit(
        qp_type,
        None if pd is None else pd.pd,
        None if send_cq is None else send_cq.queue(),
        None if recv_cq is None else recv_cq.queue(),
        srq=None if srq is None else srq.queue(),
        cap=attr.cap.sizes(),
        sq_sig_all=bool(attr.sq_sig_all),
        xrc_domain=xrc_domain,
    )


_CREATE_FLAGS = ibv_qp_init_attr_mask.IBV_QP_INIT_ATTR_CREATE_FLAGS
_SUPPORTED_INIT_FIELDS = (
    ibv_qp_init_attr_mask.IBV_QP_INIT_ATTR_PD
    | ibv_qp_init_attr_mask.IBV_QP_INIT_ATTR_XRCD
    | ibv_qp_init_attr_mask.IBV_QP_INIT_ATTR_CREATE_FLAGS
    | ibv_qp_init_attr_mask.IBV_QP_INIT_ATTR_SEND_OPS_FLAGS
)

_M = ibv_qp_attr_mask
_INIT = _M.IBV_QP_PKEY_INDEX | _M.IBV_QP_PORT | _M.IBV_QP_ACCESS_FLAGS
_PATH = _M.IBV_QP_AV | _M.IBV_QP_PATH_MTU | _M.IBV_QP_DEST_QPN | _M.IBV_QP_RQ_PSN
_RESPONDER = _M.IBV_QP_MAX_DEST_RD_ATOMIC | _M.IBV_QP_MIN_RNR_TIMER
_REQUESTER = (
    _M.IBV_QP_TIMEOUT
    | _M.IBV_QP_RETRY_CNT
    | _M.IBV_QP_RNR_RETRY
    | _M.IBV_QP_SQ_PSN
    | _M.IBV_QP_MAX_QP_RD_ATOMIC
)
_MASKS: dict[int, dict[ibv_qp_state, int]] = {
    qp_type: dict(
        zip(
            (ibv_qp_state.IBV_QPS_INIT, ibv_qp_state.IBV_QPS_RTR, ibv_qp_state.IBV_QPS_RTS),
            masks,
            strict=True,
        )
    )
    for qp_type, masks in {
        ibv_qp_type.IBV_QPT_RC: (_INIT, _PATH | _RESPONDER, _REQUESTER),
        ibv_qp_type.IBV_QPT_UC: (_INIT, _PATH, _M.IBV_QP_SQ_PSN),
        ibv_qp_type.IBV_QPT_UD: (
            _M.IBV_QP_PKEY_INDEX | _M.IBV_QP_PORT | _M.IBV_QP_QKEY,
            0,
            _M.IBV_QP_SQ_PSN,
        ),
        ibv_qp_type.IBV_QPT_XRC_RECV: (
            _INIT,
            _PATH | _RESPONDER,
            _M.IBV_QP_TIMEOUT | _M.IBV_QP_SQ_PSN,
        ),
        ibv_qp_type.IBV_QPT_XRC_SEND: (_INIT, _PATH, _REQUESTER),
    }.items()
}
"""Attributes that `to_init`, `to_rtr` and `to_rts` set: those that each transition requires
(reference/transport#qp-transitions)."""
