"""Connecting two queue pairs without a connection manager."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ibwire.base.errors import VerbsError
from ibwire.rc.attributes import (
    MTU_CODES,
    AddressVector,
    QPAttr,
    QPAttrMask,
    QPState,
)
from ibwire.rc.memory import Access
from ibwire.rc.qp import QueuePair
from ibwire.rc.states import TRANSITIONS

ALL_ACCESS = (
    Access.LOCAL_WRITE
    | Access.REMOTE_WRITE
    | Access.REMOTE_READ
    | Access.REMOTE_ATOMIC
    | Access.FLUSH_GLOBAL
    | Access.FLUSH_PERSISTENT
)


def connect(
    a: QueuePair, b: QueuePair, *, psn_a: int = 0, psn_b: int = 0, mtu: int = 1024, **attr: Any
) -> None:
    """Bring both queue pairs from RESET to RTS, each as the other's peer.

    psn_a: first PSN of the requests of `a`. mtu: bytes. attr: fields of `QPAttr` for
    both; by default all remote access is allowed, 16 READs may be outstanding, the
    timeout is 14 (67 ms) with 7 retries, the RNR timer 12 (0.64 ms) with 7 retries,
    which is unlimited.
    """
    for qp, peer, own, other in ((a, b, psn_a, psn_b), (b, a, psn_b, psn_a)):
        bring_up(
            qp,
            AddressVector(dgid=peer.device.gids[0], dlid=peer.device.lid, is_global=_is_global(qp)),
            dest_qp_num=peer.number,
            sq_psn=own,
            rq_psn=other,
            path_mtu=MTU_CODES[mtu],
            **attr,
        )


def bring_up(qp: QueuePair, address: AddressVector, **attr: Any) -> None:
    """Bring a queue pair from RESET to RTS; `attr` are fields of `QPAttr`."""
    known = set(QPAttr.__dataclass_fields__)
    unknown = set(attr) - known
    if unknown:
        raise VerbsError(22, f"no attribute {', '.join(sorted(unknown))}")
    wanted = replace(_DEFAULTS, ah_attr=address, **attr)
    before = QPState.RESET
    for state in (QPState.INIT, QPState.RTR, QPState.RTS):
        required = TRANSITIONS[qp.qp_type][before, state].required
        qp.modify(replace(wanted, qp_state=state), required | QPAttrMask.STATE)
        before = state


def _is_global(qp: QueuePair) -> bool:
    return qp.device.link != "ib"


_DEFAULTS = QPAttr(
    path_mtu=3,
    qp_access_flags=int(ALL_ACCESS),
    max_rd_atomic=16,
    max_dest_rd_atomic=16,
    min_rnr_timer=12,
    timeout=14,
    retry_cnt=7,
    rnr_retry=7,
)
