"""Two ends of a connection, made as pyverbs scripts make them."""

from __future__ import annotations

from typing import Any

from ibwire.verbs.addr import AH, AHAttr, GlobalRoute
from ibwire.verbs.cq import CQ
from ibwire.verbs.device import Context
from ibwire.verbs.libibverbs_enums import ibv_access_flags, ibv_qp_type
from ibwire.verbs.mr import MR
from ibwire.verbs.pd import PD
from ibwire.verbs.qp import QP, QPAttr, QPCap, QPEx, QPInitAttr, QPInitAttrEx
from ibwire.verbs.wr import SGE, RecvWR, SendWR

QKEY = 0x11111111
ALL_ACCESS = (
    ibv_access_flags.IBV_ACCESS_LOCAL_WRITE
    | ibv_access_flags.IBV_ACCESS_REMOTE_WRITE
    | ibv_access_flags.IBV_ACCESS_REMOTE_READ
    | ibv_access_flags.IBV_ACCESS_REMOTE_ATOMIC
    | ibv_access_flags.IBV_ACCESS_MW_BIND
    | ibv_access_flags.IBV_ACCESS_FLUSH_GLOBAL
)


class End:
    """A context with a PD, a CQ, a region and a queue pair."""

    def __init__(
        self,
        name: str,
        qp_type: int = ibv_qp_type.IBV_QPT_RC,
        *,
        size: int = 8192,
        channel: Any = None,
        srq: Any = None,
        send_ops_flags: int = 0,
        **cap: int,
    ) -> None:
        self.ctx = Context(name=name)
        self.pd = PD(self.ctx)
        self.channel = None if channel is None else channel(self.ctx)
        self.cq = CQ(self.ctx, 1000, None, self.channel)
        self.mr = MR(self.pd, size, ALL_ACCESS)
        self.srq = None if srq is None else srq(self.pd)
        sizes = QPCap(**{"max_send_wr": 64, "max_recv_wr": 64, "max_send_sge": 4, **cap})
        common: dict[str, Any] = {"scq": self.cq, "rcq": self.cq, "srq": self.srq, "cap": sizes}
        if send_ops_flags:
            init: Any = QPInitAttrEx(
                qp_type, comp_mask=1 | 64, pd=self.pd, send_ops_flags=send_ops_flags, **common
            )
            self.qp: Any = QPEx(self.ctx, init, self.attr())
        else:
            self.qp = QP(self.pd, QPInitAttr(qp_type, sq_sig_all=0, **common), self.attr())

    @staticmethod
    def attr() -> QPAttr:
        attr = QPAttr()
        attr.qp_access_flags = ALL_ACCESS & 0x10F
        attr.qkey = QKEY
        return attr

    def route(self, peer: End) -> AHAttr:
        gid = peer.ctx.query_gid(1, 0)
        return AHAttr(is_global=1, gr=GlobalRoute(gid, hop_limit=64))

    def connect(self, peer: End, **changes: int) -> None:
        attr = self.attr()
        attr.ah_attr = self.route(peer)
        attr.dest_qp_num = peer.qp.qp_num
        attr.max_rd_atomic = attr.max_dest_rd_atomic = 4
        attr.timeout, attr.retry_cnt, attr.rnr_retry, attr.min_rnr_timer = 14, 7, 7, 12
        for name, value in changes.items():
            setattr(attr, name, value)
        self.qp.to_rts(attr)

    def sge(self, length: int, offset: int = 0) -> SGE:
        return SGE(self.mr.buf + offset, length, self.mr.lkey)

    def recv(self, length: int = 1024, offset: int = 0, wr_id: int = 0) -> RecvWR:
        return RecvWR(wr_id, 1, [self.sge(length, offset)])

    def send(self, opcode: int, length: int = 8, offset: int = 0, **fields: Any) -> SendWR:
        return SendWR(opcode=opcode, num_sge=1, sg=[self.sge(length, offset)], **fields)

    def handle(self, peer: End) -> AH:
        return AH(self.pd, attr=self.route(peer))

    def wc(self, tries: int = 1000) -> Any:
        """The next completion."""
        for _ in range(tries):
            count, wcs = self.cq.poll()
            if count:
                return wcs[0]
        raise AssertionError("no completion")


def ends(qp_type: int = ibv_qp_type.IBV_QPT_RC, **options: Any) -> tuple[End, End]:
    """Two ends on the devices of the current network, connected unless they are for datagrams."""
    changes = options.pop("changes", {})
    a, b = End("ibwire0", qp_type, **options), End("ibwire1", qp_type, **options)
    if qp_type != ibv_qp_type.IBV_QPT_UD:
        a.connect(b, **changes)
        b.connect(a, **changes)
    return a, b
