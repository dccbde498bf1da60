"""The states of a queue pair: which moves a modify may make, and what each state allows.

    RESET --> INIT --> RTR --> RTS <--> SQD       any but RESET --> ERR
                                ^                 any --> RESET
                                SQE

A queue pair starts in RESET, where nothing can be posted. INIT accepts receive requests
but drops all packets. RTR (ready to receive) enables the responder: requests of the peer
are executed, responses are dropped. RTS (ready to send) also enables the requester. SQD
(send queue drained) starts no new send request but completes those that have started,
retries included. When the last is done, the queue is drained; until then the only way out
is ERR. ERR flushes both queues and drops every packet silently.

The application moves a queue pair by a modify, as `TRANSITIONS` allows. The transport moves
it to ERR after a fault of an RC or XRC queue pair in either half, and to SQE after a fault in
the sending half of UC and UD, which keep receiving while the send queue is flushed. No
modify leads to SQE, and an RC or XRC queue pair is never in it, so these have no move from
SQE to RTS.

Every move has required and optional attributes; STATE is always allowed. A missing or
another attribute is EINVAL, and nothing changes. CUR_STATE, the state that the caller
expects, is optional only where a queue pair can have moved by itself: from RTR, RTS, SQD
and SQE to RTS. CAP and RATE_LIMIT are not allowed for any move of these types.

Deliberately absent: raw, SMI and GSI queue pairs, RTS to RTR or INIT, and moves from RTR or
SQE to itself. The state never causes a NAK: a packet that it does not accept is dropped.

Source: Linux `core/verbs.c` qp_state_table and ib_modify_qp_is_ok;
`rxe_qp_chk_attr` for draining; `ib_rvt_state_ops` for what each state allows. See
reference/transport#qp-transitions for the RC column and how the other types differ.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping
from enum import Enum
from typing import NamedTuple

from ibwire.base.errors import VerbsError
from ibwire.rc.attributes import QPAttrMask, QPState, QPType


class Transition(NamedTuple):
    """Attributes of a move as bits of `QPAttrMask`, without STATE."""

    required: int = 0
    optional: int = 0


class Post(Enum):
    """The result of posting a work request."""

    REFUSED = "refused"
    """EINVAL at once."""
    QUEUED = "queued"
    """It waits for a message to receive, or for a state in which sends start."""
    STARTED = "started"
    """It is sent in its turn."""
    FLUSHED = "flushed"
    """It completes with WR_FLUSH_ERR, after everything that was posted before."""


def state_of(value: int) -> QPState:
    """The state with this number; raises EINVAL for an unknown number."""
    if type(value) is QPState:
        return value
    try:
        return QPState(value)
    except ValueError:
        raise VerbsError(errno.EINVAL, f"no queue pair state {value}") from None


def check_transition(
    qp_type: QPType,
    current: QPState,
    attr_mask: int,
    new_state: QPState,
    *,
    draining: bool = False,
) -> None:
    """Raise EINVAL unless a modify with this mask may make this move.

    A modify without STATE is a move from the current state to itself. draining: in
    SQD, whether send requests are still under way.
    """
    move = TRANSITIONS[qp_type].get((current, new_state))
    if move is None:
        raise VerbsError(
            errno.EINVAL, f"{qp_type.name} queue pair from {current.name} to {new_state.name}"
        )
    if draining and current is QPState.SQD and attr_mask & _STATE and new_state is not QPState.ERR:
        raise VerbsError(errno.EINVAL, f"from SQD to {new_state.name} before it is drained")
    # Plain integers: the complement of a flag has lost the bits that it has no name for.
    mask, required, optional = int(attr_mask), int(move.required), int(move.optional)
    missing = required & ~mask
    foreign = mask & ~(required | optional | _STATE)
    if missing or foreign:
        raise VerbsError(
            errno.EINVAL,
            f"{qp_type.name} queue pair from {current.name} to {new_state.name}:"
            f" {_names(missing)} missing, {_names(foreign)} not allowed",
        )


def mask_of(qp_type: QPType, current: QPState, new_state: QPState) -> int:
    """The attributes that a move requires, and STATE; STATE alone if there is no such move."""
    move = TRANSITIONS[qp_type].get((current, new_state))
    return _STATE | (int(move.required) if move is not None else 0)


def _names(mask: int) -> str:
    known = [bit.name for bit in QPAttrMask if bit.name is not None and mask & bit]
    unknown = mask & ~sum(QPAttrMask)
    return "|".join([*known, f"{unknown:#x}"] if unknown else known) or "nothing"


POST_RECV: Mapping[QPState, Post] = {
    QPState.RESET: Post.REFUSED,
    QPState.INIT: Post.QUEUED,
    QPState.RTR: Post.QUEUED,
    QPState.RTS: Post.QUEUED,
    QPState.SQD: Post.QUEUED,
    QPState.SQE: Post.QUEUED,
    QPState.ERR: Post.FLUSHED,
}
"""What `post_recv` does by state."""

POST_SEND: Mapping[QPState, Post] = {
    QPState.RESET: Post.REFUSED,
    QPState.INIT: Post.REFUSED,
    QPState.RTR: Post.REFUSED,
    QPState.RTS: Post.STARTED,
    QPState.SQD: Post.QUEUED,
    QPState.SQE: Post.FLUSHED,
    QPState.ERR: Post.FLUSHED,
}
"""What `post_send` does by state."""

ACCEPTS_REQUESTS = frozenset({QPState.RTR, QPState.RTS, QPState.SQD, QPState.SQE})
"""States in which requests are executed; in all others they are dropped silently."""

ACCEPTS_RESPONSES = frozenset({QPState.RTS, QPState.SQD})
"""States in which responses are processed; in all others they are dropped."""


def _common() -> dict[tuple[QPState, QPState], Transition]:
    """The moves that every type has and that take no attribute."""
    to_reset = {(state, QPState.RESET): Transition() for state in QPState}
    to_error = {(state, QPState.ERR): Transition() for state in QPState if state}
    return to_reset | to_error


_M = QPAttrMask

_CONNECTED = _common() | {
    (QPState.RESET, QPState.INIT): Transition(required=_M.PKEY_INDEX | _M.PORT | _M.ACCESS_FLAGS),
    (QPState.INIT, QPState.INIT): Transition(optional=_M.PKEY_INDEX | _M.PORT | _M.ACCESS_FLAGS),
    (QPState.RTS, QPState.SQD): Transition(optional=_M.EN_SQD_ASYNC_NOTIFY),
}
"""What RC, UC and XRC have in common."""

_ADDRESSED = _M.AV | _M.PATH_MTU | _M.DEST_QPN | _M.RQ_PSN
_REROUTED = _M.ALT_PATH | _M.ACCESS_FLAGS | _M.PKEY_INDEX
_RUNNING = _M.CUR_STATE | _M.ALT_PATH | _M.ACCESS_FLAGS | _M.PATH_MIG_STATE
_MOVED = _M.AV | _M.ALT_PATH | _M.ACCESS_FLAGS | _M.PKEY_INDEX | _M.PATH_MIG_STATE
_RETRYING = _M.TIMEOUT | _M.RETRY_CNT | _M.RNR_RETRY | _M.MAX_QP_RD_ATOMIC
_RESPONDING = _M.MAX_DEST_RD_ATOMIC | _M.MIN_RNR_TIMER

_STATE = int(_M.STATE)

TRANSITIONS: Mapping[QPType, Mapping[tuple[QPState, QPState], Transition]] = {
    QPType.RC: _CONNECTED
    | {
        (QPState.INIT, QPState.RTR): Transition(_ADDRESSED | _RESPONDING, _REROUTED),
        (QPState.RTR, QPState.RTS): Transition(_RETRYING | _M.SQ_PSN, _RUNNING | _M.MIN_RNR_TIMER),
        (QPState.RTS, QPState.RTS): Transition(optional=_RUNNING | _M.MIN_RNR_TIMER),
        (QPState.SQD, QPState.RTS): Transition(optional=_RUNNING | _M.MIN_RNR_TIMER),
        (QPState.SQD, QPState.SQD): Transition(optional=_MOVED | _M.PORT | _RETRYING | _RESPONDING),
    },
    QPType.UC: _CONNECTED
    | {
        (QPState.INIT, QPState.RTR): Transition(_ADDRESSED, _REROUTED),
        (QPState.RTR, QPState.RTS): Transition(_M.SQ_PSN, _RUNNING),
        (QPState.RTS, QPState.RTS): Transition(optional=_RUNNING),
        (QPState.SQD, QPState.RTS): Transition(optional=_RUNNING),
        (QPState.SQD, QPState.SQD): Transition(optional=_MOVED),
        (QPState.SQE, QPState.RTS): Transition(optional=_M.CUR_STATE | _M.ACCESS_FLAGS),
    },
    QPType.UD: _common()
    | {
        (QPState.RESET, QPState.INIT): Transition(required=_M.PKEY_INDEX | _M.PORT | _M.QKEY),
        (QPState.INIT, QPState.INIT): Transition(optional=_M.PKEY_INDEX | _M.PORT | _M.QKEY),
        (QPState.INIT, QPState.RTR): Transition(optional=_M.PKEY_INDEX | _M.QKEY),
        (QPState.RTR, QPState.RTS): Transition(_M.SQ_PSN, _M.CUR_STATE | _M.QKEY),
        (QPState.RTS, QPState.RTS): Transition(optional=_M.CUR_STATE | _M.QKEY),
        (QPState.RTS, QPState.SQD): Transition(optional=_M.EN_SQD_ASYNC_NOTIFY),
        (QPState.SQD, QPState.RTS): Transition(optional=_M.CUR_STATE | _M.QKEY),
        (QPState.SQD, QPState.SQD): Transition(optional=_M.PKEY_INDEX | _M.QKEY),
        (QPState.SQE, QPState.RTS): Transition(optional=_M.CUR_STATE | _M.QKEY),
    },
    QPType.XRC_SEND: _CONNECTED
    | {
        (QPState.INIT, QPState.RTR): Transition(_ADDRESSED, _REROUTED),
        (QPState.RTR, QPState.RTS): Transition(_RETRYING | _M.SQ_PSN, _RUNNING),
        (QPState.RTS, QPState.RTS): Transition(optional=_RUNNING),
        (QPState.SQD, QPState.RTS): Transition(optional=_RUNNING),
        (QPState.SQD, QPState.SQD): Transition(optional=_MOVED | _M.PORT | _RETRYING),
    },
    QPType.XRC_RECV: _CONNECTED
    | {
        (QPState.INIT, QPState.RTR): Transition(_ADDRESSED | _RESPONDING, _REROUTED),
        (QPState.RTR, QPState.RTS): Transition(_M.TIMEOUT | _M.SQ_PSN, _RUNNING | _M.MIN_RNR_TIMER),
        (QPState.RTS, QPState.RTS): Transition(optional=_RUNNING | _M.MIN_RNR_TIMER),
        (QPState.SQD, QPState.RTS): Transition(optional=_RUNNING | _M.MIN_RNR_TIMER),
        (QPState.SQD, QPState.SQD): Transition(
            optional=_MOVED | _M.PORT | _M.TIMEOUT | _RESPONDING
        ),
    },
}
"""Every move that a modify may make."""
