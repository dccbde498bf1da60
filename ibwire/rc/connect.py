"""Connecting two queue pairs without a connection manager."""

from __future__ import annotations

from typing import Any

from ibwire.base.errors import VerbsError
from ibwire.rc.attributes import MTU_CODES, AddressVector, QPAttr, QPState
from ibwire.rc.device import Device
from ibwire.rc.memory import Access
from ibwire.rc.qp import QueuePair
from ibwire.rc.states import mask_of

ALL_ACCESS = (
    Access.LOCAL_WRITE
    | Access.REMOTE_WRITE
    | Access.REMOTE_READ
    | Access.REMOTE_ATOMIC
    | Access.FLUSH_GLOBAL
    | Access.FLUSH_PERSISTENT
)


def connect(
    a: QueuePair,
    b: QueuePair,
    *,
    psn_a: int = 0,
    psn_b: int = 0,
    mtu: int = 1024,
    traffic_class: int = 0,
    **attr: Any,
) -> None:
    """Bring both queue pairs from RESET to RTS, each as the other's peer.

    psn_a: first PSN of the requests of `a`. mtu: bytes. traffic_class: of what both send.
    attr: fields of `QPAttr` for both; by default all remote access is allowed, 16 READs may
    be outstanding, the timeout is 14 (67 ms) with 7 retries, the RNR timer 12 (0.64 ms) with
    7 retries, which is unlimited.
    """
    for qp, peer, own, other in ((a, b, psn_a, psn_b), (b, a, psn_b, psn_a)):
        bring_up(
            qp,
            address_of(peer.device, traffic_class),
            dest_qp_num=peer.number,
            sq_psn=own,
            rq_psn=other,
            path_mtu=MTU_CODES[mtu],
            **attr,
        )


def bring_up(qp: QueuePair, address: AddressVector, **attr: Any) -> None:
    """Bring a queue pair from RESET to RTS; `attr` are fields of `QPAttr`."""
    unknown = attr.keys() - QPAttr.__dataclass_fields__.keys()
    if unknown:
        raise VerbsError(22, f"no attribute {', '.join(sorted(unknown))}")
    wanted = QPAttr(ah_attr=address, **_DEFAULTS | attr)
    for state in _UP:
        move(qp, state, wanted)


def move(qp: QueuePair, state: QPState, attr: QPAttr | None = None) -> None:
    """Move a queue pair to a state, with the attributes of `attr` that the move requires.

    Raises `VerbsError` EINVAL for a move that does not exist.
    """
    wanted = attr or QPAttr()
    before, wanted.qp_state = wanted.qp_state, state  # faster than a copy
    try:
        qp.modify(wanted, mask_of(qp.qp_type, qp.state, state))
    finally:
        wanted.qp_state = before


def address_of(peer: Device, traffic_class: int = 0) -> AddressVector:
    """The address of a device, for a queue pair on the same network."""
    return AddressVector(
        dgid=peer.gids[0],
        dlid=peer.lid,
        traffic_class=traffic_class,
        is_global=peer.link != "ib",
    )


_UP = (QPState.INIT, QPState.RTR, QPState.RTS)

_DEFAULTS: dict[str, Any] = {
    "path_mtu": 3,
    "qp_access_flags": int(ALL_ACCESS),
    "max_rd_atomic": 16,
    "max_dest_rd_atomic": 16,
    "min_rnr_timer": 12,
    "timeout": 14,
    "retry_cnt": 7,
    "rnr_retry": 7,
}
