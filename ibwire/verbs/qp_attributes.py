"""The attribute classes of `pyverbs.qp`."""

from __future__ import annotations

import errno

from ibwire.base.errors import VerbsError
from ibwire.rc import attributes as rc
from ibwire.verbs.addr import AHAttr
from ibwire.verbs.base import table
from ibwire.verbs.cq import CQ, CQEX
from ibwire.verbs.fields import Structure, Unsigned
from ibwire.verbs.libibverbs_enums import ibv_mtu, ibv_qp_state, ibv_qp_type
from ibwire.verbs.pd import PD
from ibwire.verbs.pyverbs_error import PyverbsUserError
from ibwire.verbs.srq import SRQ
from ibwire.verbs.utils import (
    access_flags_to_str,
    mig_state_to_str,
    mtu_to_str,
    names_of,
    qp_state_to_str,
    qp_type_to_str,
)
from ibwire.verbs.xrcd import XRCD


class QPCap(Structure):
    """Sizes of a queue pair: `ibv_qp_cap`."""

    max_send_wr = Unsigned(32)
    max_recv_wr = Unsigned(32)
    max_send_sge = Unsigned(32)
    max_recv_sge = Unsigned(32)
    max_inline_data = Unsigned(32)

    def __init__(
        self,
        max_send_wr: int = 1,
        max_recv_wr: int = 10,
        max_send_sge: int = 1,
        max_recv_sge: int = 1,
        max_inline_data: int = 0,
    ) -> None:
        self.max_send_wr = max_send_wr
        self.max_recv_wr = max_recv_wr
        self.max_send_sge = max_send_sge
        self.max_recv_sge = max_recv_sge
        self.max_inline_data = max_inline_data

    def sizes(self) -> rc.QPCap:
        """The sizes as a device attribute."""
        return rc.QPCap(
            self.max_send_wr,
            self.max_recv_wr,
            self.max_send_sge,
            self.max_recv_sge,
            self.max_inline_data,
        )

    @classmethod
    def from_sizes(cls, cap: rc.QPCap) -> QPCap:
        """Sizes reported by a device."""
        return cls(
            cap.max_send_wr,
            cap.max_recv_wr,
            cap.max_send_sge,
            cap.max_recv_sge,
            cap.max_inline_data,
        )

    def rows(self) -> tuple[tuple[str, object], ...]:
        """The sizes with their names."""
        return (
            ("max send WR", self.max_send_wr),
            ("max recv WR", self.max_recv_wr),
            ("max send SGE", self.max_send_sge),
            ("max recv SGE", self.max_recv_sge),
            ("max inline data", self.max_inline_data),
        )

    def __str__(self) -> str:
        return table(*self.rows())


class _HasCap(Structure):
    """Base of classes that have a `QPCap` and expose its fields.

    `cap` is a copy both when it is read and when it is set, as in pyverbs.
    """

    _cap: QPCap

    @property
    def cap(self) -> QPCap:
        """The sizes."""
        return self._cap.copy()

    @cap.setter
    def cap(self, val: QPCap | None) -> None:
        if val is not None:
            self._cap = val.copy()

    @property
    def max_send_wr(self) -> int:
        """Capacity in send requests."""
        return self._cap.max_send_wr

    @max_send_wr.setter
    def max_send_wr(self, val: int) -> None:
        self._cap.max_send_wr = val

    @property
    def max_recv_wr(self) -> int:
        """Capacity in receive requests."""
        return self._cap.max_recv_wr

    @max_recv_wr.setter
    def max_recv_wr(self, val: int) -> None:
        self._cap.max_recv_wr = val

    @property
    def max_send_sge(self) -> int:
        """Maximum number of elements of a send request."""
        return self._cap.max_send_sge

    @max_send_sge.setter
    def max_send_sge(self, val: int) -> None:
        self._cap.max_send_sge = val

    @property
    def max_recv_sge(self) -> int:
        """Maximum number of elements of a receive request."""
        return self._cap.max_recv_sge

    @max_recv_sge.setter
    def max_recv_sge(self, val: int) -> None:
        self._cap.max_recv_sge = val

    @property
    def max_inline_data(self) -> int:
        """Maximum number of inline bytes of a send request."""
        return self._cap.max_inline_data

    @max_inline_data.setter
    def max_inline_data(self, val: int) -> None:
        self._cap.max_inline_data = val


class _InitAttr(_HasCap):
    """Base of both kinds of creation attributes."""

    qp_type = Unsigned(32)
    sq_sig_all = Unsigned(31)

    def _begin(
        self,
        qp_type: int,
        qp_context: object,
        scq: CQ | CQEX | None,
        rcq: CQ | CQEX | None,
        srq: SRQ | None,
        cap: QPCap | None,
        sq_sig_all: int,
    ) -> None:
        self._cap = QPCap(0, 0, 0, 0, 0)
        self.cap = cap
        self.qp_type = qp_type
        self.qp_context = qp_context
        self.send_cq = scq
        self.recv_cq = rcq
        self.srq = srq
        self.sq_sig_all = sq_sig_all

    @property
    def send_cq(self) -> CQ | CQEX | None:
        """CQ of send requests."""
        return self._send_cq

    @send_cq.setter
    def send_cq(self, val: CQ | CQEX | None) -> None:
        self._send_cq = _queue(val)

    @property
    def recv_cq(self) -> CQ | CQEX | None:
        """CQ of receive requests."""
        return self._recv_cq

    @recv_cq.setter
    def recv_cq(self, val: CQ | CQEX | None) -> None:
        self._recv_cq = _queue(val)

    def _rows(self) -> str:
        return (
            table(("QP type", qp_type_to_str(self.qp_type)), ("SQ sig. all", self.sq_sig_all))
            + "QP caps:\n"
            + table(*self._cap.rows(), indent="  ")
        )


class QPInitAttr(_InitAttr):
    """Attributes of a new queue pair: `ibv_qp_init_attr`."""

    def __init__(
        self,
        qp_type: int = ibv_qp_type.IBV_QPT_UD,
        qp_context: object = None,
        scq: CQ | CQEX | None = None,
        rcq: CQ | CQEX | None = None,
        srq: SRQ | None = None,
        cap: QPCap | None = None,
        sq_sig_all: int = 1,
    ) -> None:
        self._begin(qp_type, qp_context, scq, rcq, srq, cap, sq_sig_all)

    def __str__(self) -> str:
        return self._rows()


class QPInitAttrEx(_InitAttr):
    """Attributes of a new extended queue pair: `ibv_qp_init_attr_ex`."""

    comp_mask = Unsigned(32)
    create_flags = Unsigned(32)
    max_tso_header = Unsigned(16)
    source_qpn = Unsigned(32)
    send_ops_flags = Unsigned(64)

    def __init__(
        self,
        qp_type: int = ibv_qp_type.IBV_QPT_UD,
        qp_context: object = None,
        scq: CQ | CQEX | None = None,
        rcq: CQ | CQEX | None = None,
        srq: SRQ | None = None,
        cap: QPCap | None = None,
        sq_sig_all: int = 0,
        comp_mask: int = 0,
        pd: PD | None = None,
        xrcd: XRCD | None = None,
        create_flags: int = 0,
        max_tso_header: int = 0,
        source_qpn: int = 0,
        hash_conf: object = None,
        ind_table: object = None,
        send_ops_flags: int = 0,
    ) -> None:
        self._begin(qp_type, qp_context, scq, rcq, srq, cap, sq_sig_all)
        self.comp_mask = comp_mask
        self.pd = pd
        self.xrcd = xrcd
        self.create_flags = create_flags
        self.max_tso_header = max_tso_header
        self.source_qpn = source_qpn
        self.hash_conf = hash_conf
        self.ind_table = ind_table
        self.send_ops_flags = send_ops_flags

    def mask_to_str(self, mask: int) -> str:
        """Names of the valid fields."""
        return names_of(_INIT_FIELDS, mask)

    def flags_to_str(self, flags: int) -> str:
        """Names of creation flags."""
        return names_of(_CREATE_FLAGS, flags)

    def __str__(self) -> str:
        return self._rows() + table(
            ("comp mask", self.mask_to_str(self.comp_mask)),
            ("create flags", self.flags_to_str(self.create_flags)),
            ("max TSO header", self.max_tso_header),
            ("Source QPN", self.source_qpn),
        )


class QPAttr(_HasCap):
    """Attributes that a modify sets and a query returns: `ibv_qp_attr`.

    `ah_attr` and `alt_ah_attr` are copies both when they are read and when they are set.
    """

    qp_state = Unsigned(32)
    cur_qp_state = Unsigned(32)
    path_mtu = Unsigned(32)
    path_mig_state = Unsigned(32)
    qkey = Unsigned(32)
    rq_psn = Unsigned(32)
    sq_psn = Unsigned(32)
    dest_qp_num = Unsigned(32)
    qp_access_flags = Unsigned(32)
    pkey_index = Unsigned(16)
    alt_pkey_index = Unsigned(16)
    en_sqd_async_notify = Unsigned(8)
    sq_draining = Unsigned(8)
    max_rd_atomic = Unsigned(8)
    max_dest_rd_atomic = Unsigned(8)
    min_rnr_timer = Unsigned(8)
    port_num = Unsigned(8)
    timeout = Unsigned(8)
    retry_cnt = Unsigned(8)
    rnr_retry = Unsigned(8)
    alt_port_num = Unsigned(8)
    alt_timeout = Unsigned(8)
    rate_limit = Unsigned(32)

    def __init__(
        self,
        qp_state: int = ibv_qp_state.IBV_QPS_INIT,
        cur_qp_state: int = ibv_qp_state.IBV_QPS_RESET,
        port_num: int = 1,
        path_mtu: int = ibv_mtu.IBV_MTU_1024,
    ) -> None:
        self._cap = QPCap(0, 0, 0, 0, 0)
        self._ah_attr = AHAttr(port_num=0)
        self._alt_ah_attr = AHAttr(port_num=0)
        self.qp_state = qp_state
        self.cur_qp_state = cur_qp_state
        self.port_num = port_num
        self.path_mtu = path_mtu

    @property
    def ah_attr(self) -> AHAttr:
        """The path to the peer."""
        return self._ah_attr.copy()

    @ah_attr.setter
    def ah_attr(self, val: AHAttr | None) -> None:
        if val is not None:
            self._ah_attr = val.copy()

    @property
    def alt_ah_attr(self) -> AHAttr:
        """The alternate path."""
        return self._alt_ah_attr.copy()

    @alt_ah_attr.setter
    def alt_ah_attr(self, val: AHAttr | None) -> None:
        if val is not None:
            self._alt_ah_attr = val.copy()

    def attributes(self) -> rc.QPAttr:
        """The attributes as the device has them; `VerbsError` EINVAL for an unknown state."""
        plain = {name: getattr(self, name) for name in _PLAIN}
        return rc.QPAttr(
            qp_state=_state(self.qp_state),
            cur_qp_state=_state(self.cur_qp_state),
            path_mig_state=_migration(self.path_mig_state),
            cap=self._cap.sizes(),
            ah_attr=self._ah_attr.vector(),
            alt_ah_attr=self._alt_ah_attr.vector(),
            **plain,
        )

    @classmethod
    def from_attributes(cls, attr: rc.QPAttr) -> QPAttr:
        """Attributes reported by a device."""
        reported = cls(int(attr.qp_state), int(attr.cur_qp_state))
        reported.path_mig_state = int(attr.path_mig_state)
        for name in _PLAIN:
            setattr(reported, name, getattr(attr, name))
        reported._cap = QPCap.from_sizes(attr.cap)
        reported._ah_attr = _path(attr.ah_attr)
        reported._alt_ah_attr = _path(attr.alt_ah_attr)
        return reported

    def __str__(self) -> str:
        return "".join(
            (
                table(
                    ("QP state", qp_state_to_str(self.qp_state)),
                    ("QP current state", qp_state_to_str(self.cur_qp_state)),
                    ("Path MTU", mtu_to_str(self.path_mtu)),
                    ("Path mig. state", mig_state_to_str(self.path_mig_state)),
                    ("QP access flags", access_flags_to_str(self.qp_access_flags)),
                ),
                "QP caps:\n",
                table(*self._cap.rows(), indent="  "),
                "AH Attr:\n",
                str(self._ah_attr),
                "Alt. AH Attr:\n",
                str(self._alt_ah_attr),
                table(*((name.replace("_", " "), getattr(self, name)) for name in _NUMBERS)),
            )
        )


class ECE(Structure):
    """Enhanced connection establishment options."""

    vendor_id = Unsigned(32)
    options = Unsigned(32)
    comp_mask = Unsigned(32)

    def __init__(self, vendor_id: int = 0, options: int = 0, comp_mask: int = 0) -> None:
        self.vendor_id = vendor_id
        self.options = options
        self.comp_mask = comp_mask

    def __str__(self) -> str:
        return "ECE:\n" + table(
            ("Vendor ID", hex(self.vendor_id)),
            ("Options", hex(self.options)),
            ("Comp Mask", hex(self.comp_mask)),
        )


class QPRateLimitAttr(Structure):
    """A rate limit: kilobits a second, 0 for none."""

    rate_limit = Unsigned(32)
    max_burst_sz = Unsigned(32)
    typical_pkt_sz = Unsigned(16)
    comp_mask = Unsigned(32)

    def __init__(
        self,
        rate_limit: int = 0,
        max_burst_sz: int = 0,
        typical_pkt_sz: int = 0,
        comp_mask: int = 0,
    ) -> None:
        self.rate_limit = rate_limit
        self.max_burst_sz = max_burst_sz
        self.typical_pkt_sz = typical_pkt_sz
        self.comp_mask = comp_mask

    def __str__(self) -> str:
        return table(
            ("Rate limit (kbps)", self.rate_limit),
            ("Max burst size", self.max_burst_sz),
            ("Typical packet size", self.typical_pkt_sz),
            ("Comp mask", self.comp_mask),
        )


class QPAttachCompCntrAttr(Structure):
    """Operations that a completion counter counts."""

    op_mask = Unsigned(32)

    def __init__(self, op_mask: int = 0) -> None:
        self.op_mask = op_mask


def _queue(val: CQ | CQEX | None) -> CQ | CQEX | None:
    if val is not None and not isinstance(val, CQ | CQEX):
        raise PyverbsUserError(f"Expected CQ/CQEX, got {type(val)}")
    return val


def _path(vector: rc.AddressVector) -> AHAttr:
    """The path reported by a device, empty if it was never set."""
    return AHAttr(port_num=0) if vector == rc.AddressVector() else AHAttr.from_vector(vector)


def _state(value: int) -> rc.QPState:
    try:
        return rc.QPState(value)
    except ValueError:
        raise VerbsError(errno.EINVAL, f"QP state {value}") from None


def _migration(value: int) -> rc.MigState:
    try:
        return rc.MigState(value)
    except ValueError:
        raise VerbsError(errno.EINVAL, f"path migration state {value}") from None


_NUMBERS = (
    "qkey",
    "rq_psn",
    "sq_psn",
    "dest_qp_num",
    "pkey_index",
    "alt_pkey_index",
    "en_sqd_async_notify",
    "sq_draining",
    "max_rd_atomic",
    "max_dest_rd_atomic",
    "min_rnr_timer",
    "port_num",
    "timeout",
    "retry_cnt",
    "rnr_retry",
    "alt_port_num",
    "alt_timeout",
    "rate_limit",
)
_PLAIN = (*_NUMBERS, "path_mtu", "qp_access_flags")
"""Attributes with the same name in `ibwire.rc`."""

_INIT_FIELDS = {
    1: "PD",
    2: "XRCD",
    4: "Create Flags",
    8: "Max TSO header",
    16: "Indirection Table",
    32: "RX hash",
    64: "Send ops flags",
}

_CREATE_FLAGS = {
    1 << 1: "Block self mcast loopback",
    1 << 8: "Scatter FCS",
    1 << 9: "CVLAN stripping",
    1 << 10: "Source QPN",
    1 << 11: "PCI write end padding",
}
