"""Shared receive queues, with pyverbs' names."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from ibwire.base.errors import VerbsError
from ibwire.rc.srq import SharedReceiveQueue
from ibwire.verbs.base import Children, PyverbsCM, PyverbsResource
from ibwire.verbs.cq import CQ, CQEX
from ibwire.verbs.device import Context
from ibwire.verbs.fields import Structure, Unsigned
from ibwire.verbs.libibverbs_enums import (
    ibv_srq_attr_mask,
    ibv_srq_init_attr_mask,
    ibv_srq_type,
)
from ibwire.verbs.pd import PD
from ibwire.verbs.pyverbs_error import PyverbsRDMAError, PyverbsUserError
from ibwire.verbs.wr import RecvWR

if TYPE_CHECKING:
    from ibwire.verbs.xrcd import XRCD


class SrqAttr(Structure):
    """Size and limit of a shared receive queue."""

    max_wr = Unsigned(32)
    max_sge = Unsigned(32)
    srq_limit = Unsigned(32)

    def __init__(self, max_wr: int = 100, max_sge: int = 1, srq_limit: int = 0) -> None:
        self.max_wr = max_wr
        self.max_sge = max_sge
        self.srq_limit = srq_limit


class _Sized(Structure):
    """Base of classes that expose the fields of a `SrqAttr`, set at creation."""

    _attr: SrqAttr

    @property
    def max_wr(self) -> int:
        """Capacity in receive requests."""
        return self._attr.max_wr

    @property
    def max_sge(self) -> int:
        """Maximum number of elements of a request."""
        return self._attr.max_sge

    @property
    def srq_limit(self) -> int:
        """Limit for the SRQ_LIMIT_REACHED event."""
        return self._attr.srq_limit


class SrqInitAttr(_Sized):
    """Attributes of a new shared receive queue of a PD."""

    def __init__(self, attr: SrqAttr | None = None) -> None:
        self._attr = SrqAttr(0, 0) if attr is None else attr.copy()


class SrqInitAttrEx(_Sized):
    """Attributes of a new shared receive queue of a context."""

    comp_mask = Unsigned(32)
    srq_type = Unsigned(32)
    max_num_tags = Unsigned(32)
    max_ops = Unsigned(32)

    def __init__(self, max_wr: int = 100, max_sge: int = 1, srq_limit: int = 0) -> None:
        self._attr = SrqAttr(max_wr, max_sge, srq_limit)
        self.pd: PD | None = None
        self.xrcd: XRCD | None = None
        self.cq: CQ | CQEX | None = None


class OpsWr(PyverbsCM):
    """A tag matching operation; not supported: EOPNOTSUPP."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        raise PyverbsRDMAError("Tag matching is not supported", errno.EOPNOTSUPP)


class SRQ(PyverbsResource):
    """A shared receive queue: of a PD with `SrqInitAttr`, of a Context with `SrqInitAttrEx`."""

    closing_rank = 3
    srq: SharedReceiveQueue | None = None

    def __init__(self, creator: PD | Context, attr: SrqInitAttr | SrqInitAttrEx) -> None:
        xrcd: XRCD | None = None
        cq: CQ | CQEX | None = None
        if isinstance(creator, PD) and isinstance(attr, SrqInitAttr):
            pd: PD | None = creator
            self.context = creator.context
        elif isinstance(creator, Context) and isinstance(attr, SrqInitAttrEx):
            self.context = creator
            pd, xrcd, cq = _of(attr)
        else:
            raise PyverbsUserError(
                "an SRQ is made from a PD and SrqInitAttr or from a Context and SrqInitAttrEx"
            )
        with self.context.verb("Failed to create SRQ"):
            if pd is None:
                raise VerbsError(errno.EINVAL, "an SRQ without a PD")
            self.srq = self.context.device.create_srq(
                pd.pd,
                max_wr=attr.max_wr,
                max_sge=attr.max_sge,
                xrc_domain=None if xrcd is None else xrcd.xrcd,
                cq=None if cq is None else cq.queue(),
            )
        self._used = (pd, xrcd, cq)
        """Kept open by the queue."""
        self._children = Children()
        self.context.network.subscribe(self.srq, self.context)
        for parent in self._used:
            if parent is not None:
                parent.add_ref(self)

    @property
    def cq(self) -> CQ | CQEX | None:
        """CQ of an XRC SRQ."""
        return self._used[2] if self.srq is not None else None

    def queue(self) -> SharedReceiveQueue:
        """The device's queue; raises `PyverbsUserError` after closing."""
        if self.srq is None:
            raise PyverbsUserError("The SRQ is closed")
        return self.srq

    def add_ref(self, obj: PyverbsCM) -> None:
        """Register a queue pair to be closed with the queue."""
        self._children.add(obj)

    def get_srq_num(self) -> int:
        """SRQ number, used by XRC work requests."""
        return self.queue().number

    def modify(self, attr: SrqAttr, comp_mask: int) -> None:
        """Change the size or arm the limit."""
        with self.context.verb("Failed to modify SRQ"):
            if comp_mask & ~3:
                raise VerbsError(errno.EINVAL, f"mask {comp_mask:#x}")
            resized = comp_mask & ibv_srq_attr_mask.IBV_SRQ_MAX_WR
            if resized and attr.max_wr > self.context.device.limits.max_srq_wr:
                raise VerbsError(errno.EINVAL, f"{attr.max_wr} requests")
            self.queue().modify(
                max_wr=attr.max_wr if resized else None,
                limit=attr.srq_limit if comp_mask & ibv_srq_attr_mask.IBV_SRQ_LIMIT else None,
            )

    def query(self) -> SrqAttr:
        """The size and the armed limit."""
        attr = self.queue().query()
        return SrqAttr(attr.max_wr, attr.max_sge, attr.srq_limit)

    def post_srq_ops(self, wr: OpsWr, bad_wr: OpsWr | None = None) -> None:
        """Post tag matching operations; not supported: EOPNOTSUPP."""
        raise PyverbsRDMAError("post SRQ ops failed", errno.EOPNOTSUPP)

    def post_recv(self, wr: RecvWR, bad_wr: RecvWR | None = None) -> None:
        """Post receive requests up to the first invalid one."""
        next_wr: RecvWR | None = wr
        while next_wr is not None:
            try:
                with self.context.verb("Failed to post receive to SRQ"):
                    self.queue().post_recv(next_wr.request())
            except PyverbsRDMAError:
                if bad_wr is not None:
                    bad_wr.copy_from(next_wr)
                raise
            next_wr = next_wr.next_wr

    def close(self) -> None:
        """Close the queue pairs that use the queue, then the queue."""
        if self.srq is not None:
            self._children.close()
            with self.context.closing("Failed to destroy SRQ"):
                self.context.network.unsubscribe(self.srq)
                self.srq.close()
            self.srq = None


def _of(attr: SrqInitAttrEx) -> tuple[PD | None, XRCD | None, CQ | CQEX | None]:
    """The fields that `comp_mask` selects; EOPNOTSUPP for a tag matching SRQ."""
    mask = attr.comp_mask
    kind = attr.srq_type if mask & ibv_srq_init_attr_mask.IBV_SRQ_INIT_ATTR_TYPE else 0
    if kind not in (ibv_srq_type.IBV_SRQT_BASIC, ibv_srq_type.IBV_SRQT_XRC):
        raise PyverbsRDMAError("Failed to create SRQ", errno.EOPNOTSUPP)
    pd = attr.pd if mask & ibv_srq_init_attr_mask.IBV_SRQ_INIT_ATTR_PD else None
    if kind == ibv_srq_type.IBV_SRQT_BASIC:
        return pd, None, None
    xrcd = attr.xrcd if mask & ibv_srq_init_attr_mask.IBV_SRQ_INIT_ATTR_XRCD else None
    cq = attr.cq if mask & ibv_srq_init_attr_mask.IBV_SRQ_INIT_ATTR_CQ else None
    if xrcd is None or cq is None:
        raise PyverbsRDMAError("Failed to create SRQ: XRC needs XRCD and CQ", errno.EINVAL)
    return pd, xrcd, cq
