"""Every move of every queue pair type against the table of Linux, typed here a second time."""

from __future__ import annotations

import errno
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from each_case import each_case
from ibwire.base.errors import VerbsError
from ibwire.rc.attributes import QPAttrMask, QPState, QPType
from ibwire.rc.states import (
    ACCEPTS_REQUESTS,
    ACCEPTS_RESPONSES,
    POST_RECV,
    POST_SEND,
    TRANSITIONS,
    Post,
    check_transition,
)

# reference/transport#qp-transitions and, for UC, UD and XRC, qp_state_table in core/verbs.c.
# A line is: from, to, required attributes, optional ones. `-` is none.
RC = """
RESET INIT  PKEY_INDEX,PORT,ACCESS_FLAGS  -
INIT  INIT  -  PKEY_INDEX,PORT,ACCESS_FLAGS
INIT  RTR   AV,PATH_MTU,DEST_QPN,RQ_PSN,MAX_DEST_RD_ATOMIC,MIN_RNR_TIMER  \
    ALT_PATH,ACCESS_FLAGS,PKEY_INDEX
RTR   RTS   TIMEOUT,RETRY_CNT,RNR_RETRY,SQ_PSN,MAX_QP_RD_ATOMIC  \
    CUR_STATE,ALT_PATH,ACCESS_FLAGS,MIN_RNR_TIMER,PATH_MIG_STATE
RTS   RTS   -  CUR_STATE,ACCESS_FLAGS,ALT_PATH,PATH_MIG_STATE,MIN_RNR_TIMER
RTS   SQD   -  EN_SQD_ASYNC_NOTIFY
SQD   RTS   -  CUR_STATE,ALT_PATH,ACCESS_FLAGS,MIN_RNR_TIMER,PATH_MIG_STATE
SQD   SQD   -  PORT,AV,TIMEOUT,RETRY_CNT,RNR_RETRY,MAX_QP_RD_ATOMIC,MAX_DEST_RD_ATOMIC,\
ALT_PATH,ACCESS_FLAGS,PKEY_INDEX,MIN_RNR_TIMER,PATH_MIG_STATE
"""

UC = """
RESET INIT  PKEY_INDEX,PORT,ACCESS_FLAGS  -
INIT  INIT  -  PKEY_INDEX,PORT,ACCESS_FLAGS
INIT  RTR   AV,PATH_MTU,DEST_QPN,RQ_PSN  ALT_PATH,ACCESS_FLAGS,PKEY_INDEX
RTR   RTS   SQ_PSN  CUR_STATE,ALT_PATH,ACCESS_FLAGS,PATH_MIG_STATE
RTS   RTS   -  CUR_STATE,ACCESS_FLAGS,ALT_PATH,PATH_MIG_STATE
RTS   SQD   -  EN_SQD_ASYNC_NOTIFY
SQD   RTS   -  CUR_STATE,ALT_PATH,ACCESS_FLAGS,PATH_MIG_STATE
SQD   SQD   -  AV,ALT_PATH,ACCESS_FLAGS,PKEY_INDEX,PATH_MIG_STATE
SQE   RTS   -  CUR_STATE,ACCESS_FLAGS
"""

UD = """
RESET INIT  PKEY_INDEX,PORT,QKEY  -
INIT  INIT  -  PKEY_INDEX,PORT,QKEY
INIT  RTR   -  PKEY_INDEX,QKEY
RTR   RTS   SQ_PSN  CUR_STATE,QKEY
RTS   RTS   -  CUR_STATE,QKEY
RTS   SQD   -  EN_SQD_ASYNC_NOTIFY
SQD   RTS   -  CUR_STATE,QKEY
SQD   SQD   -  PKEY_INDEX,QKEY
SQE   RTS   -  CUR_STATE,QKEY
"""

XRC_SEND = """
RESET INIT  PKEY_INDEX,PORT,ACCESS_FLAGS  -
INIT  INIT  -  PKEY_INDEX,PORT,ACCESS_FLAGS
INIT  RTR   AV,PATH_MTU,DEST_QPN,RQ_PSN  ALT_PATH,ACCESS_FLAGS,PKEY_INDEX
RTR   RTS   TIMEOUT,RETRY_CNT,RNR_RETRY,SQ_PSN,MAX_QP_RD_ATOMIC  \
    CUR_STATE,ALT_PATH,ACCESS_FLAGS,PATH_MIG_STATE
RTS   RTS   -  CUR_STATE,ACCESS_FLAGS,ALT_PATH,PATH_MIG_STATE
RTS   SQD   -  EN_SQD_ASYNC_NOTIFY
SQD   RTS   -  CUR_STATE,ALT_PATH,ACCESS_FLAGS,PATH_MIG_STATE
SQD   SQD   -  PORT,AV,TIMEOUT,RETRY_CNT,RNR_RETRY,MAX_QP_RD_ATOMIC,\
ALT_PATH,ACCESS_FLAGS,PKEY_INDEX,PATH_MIG_STATE
"""

XRC_RECV = """
RESET INIT  PKEY_INDEX,PORT,ACCESS_FLAGS  -
INIT  INIT  -  PKEY_INDEX,PORT,ACCESS_FLAGS
INIT  RTR   AV,PATH_MTU,DEST_QPN,RQ_PSN,MAX_DEST_RD_ATOMIC,MIN_RNR_TIMER  \
    ALT_PATH,ACCESS_FLAGS,PKEY_INDEX
RTR   RTS   TIMEOUT,SQ_PSN  CUR_STATE,ALT_PATH,ACCESS_FLAGS,MIN_RNR_TIMER,PATH_MIG_STATE
RTS   RTS   -  CUR_STATE,ACCESS_FLAGS,ALT_PATH,PATH_MIG_STATE,MIN_RNR_TIMER
RTS   SQD   -  EN_SQD_ASYNC_NOTIFY
SQD   RTS   -  CUR_STATE,ALT_PATH,ACCESS_FLAGS,MIN_RNR_TIMER,PATH_MIG_STATE
SQD   SQD   -  PORT,AV,TIMEOUT,MAX_DEST_RD_ATOMIC,\
ALT_PATH,ACCESS_FLAGS,PKEY_INDEX,MIN_RNR_TIMER,PATH_MIG_STATE
"""

EVERY_TYPE = """
RESET RESET - -
INIT  RESET - -
RTR   RESET - -
RTS   RESET - -
SQD   RESET - -
SQE   RESET - -
ERR   RESET - -
INIT  ERR   - -
RTR   ERR   - -
RTS   ERR   - -
SQD   ERR   - -
SQE   ERR   - -
ERR   ERR   - -
"""

Move = tuple[QPType, QPState, QPState]


def mask(names: str) -> int:
    return 0 if names == "-" else sum(int(QPAttrMask[name]) for name in names.split(","))


def typed_again() -> dict[Move, tuple[int, int]]:
    moves = {}
    tables = {
        QPType.RC: RC,
        QPType.UC: UC,
        QPType.UD: UD,
        QPType.XRC_SEND: XRC_SEND,
        QPType.XRC_RECV: XRC_RECV,
    }
    for qp_type, table in tables.items():
        for line in (table + EVERY_TYPE).strip().splitlines():
            if line:
                start, end, required, optional = line.split()
                moves[qp_type, QPState[start], QPState[end]] = mask(required), mask(optional)
    return moves


EXPECTED = typed_again()
EVERY_MOVE: list[Move] = list(product(QPType, QPState, QPState))
LEGAL = sorted(EXPECTED)
ILLEGAL = [move for move in EVERY_MOVE if move not in EXPECTED]
BITS = [int(bit) for bit in QPAttrMask]
STATE = int(QPAttrMask.STATE)


def accepts(move: Move, attr_mask: int, *, draining: bool = False) -> bool:
    qp_type, current, new_state = move
    try:
        check_transition(qp_type, current, attr_mask, new_state, draining=draining)
    except VerbsError as error:
        if error.errno == errno.EINVAL:
            return False
        raise
    return True


def name(move: Move) -> str:
    return "-".join(part.name for part in move)


def test_there_are_245_moves_to_decide_on() -> None:
    assert len(EVERY_MOVE) == 5 * 7 * 7
    assert len(LEGAL) == 5 * 13 + 8 + 9 + 9 + 8 + 8


@each_case("move", LEGAL, ids=name)
def test_legal_move_needs_all_required_attributes_and_takes_the_optional(move: Move) -> None:
    required, optional = EXPECTED[move]

    assert accepts(move, STATE | required)
    assert accepts(move, required)
    assert accepts(move, STATE | required | optional)
    for bit in BITS:
        if bit & required:
            assert not accepts(move, STATE | (required | optional) & ~bit)
        elif bit & optional:
            assert accepts(move, STATE | required | bit)
        elif bit != STATE:
            assert not accepts(move, STATE | required | bit)
            assert not accepts(move, STATE | required | optional | bit)


@pytest.mark.parametrize("bit", [1 << 21, 1 << 26, 1 << 40])
def test_unknown_attribute_is_einval(bit: int) -> None:
    for move in LEGAL:
        required, _ = EXPECTED[move]

        assert not accepts(move, STATE | required | bit), name(move)


@each_case("move", ILLEGAL, ids=name)
def test_any_other_move_is_einval_with_whatever_attributes(move: Move) -> None:
    everything = sum(BITS)

    assert not accepts(move, STATE)
    assert not accepts(move, 0)
    assert not accepts(move, everything)
    for other in LEGAL:
        if other[0] is move[0]:
            assert not accepts(move, STATE | EXPECTED[other][0])


@given(st.sampled_from(EVERY_MOVE), st.sets(st.sampled_from(BITS)))
def test_mask_is_accepted_exactly_when_it_lies_between_the_two_of_the_table(
    move: Move, bits: set[int]
) -> None:
    expected = False
    if move in EXPECTED:
        required, optional = EXPECTED[move]
        needed = {bit for bit in BITS if bit & required}
        possible = needed | {bit for bit in BITS if bit & optional} | {STATE}
        expected = needed <= bits <= possible

    assert accepts(move, sum(bits)) == expected


def test_table_has_no_move_besides() -> None:
    held = {
        (t, *pair): tuple(move) for t, moves in TRANSITIONS.items() for pair, move in moves.items()
    }

    assert held == EXPECTED


def test_current_state_is_named_only_in_rtr_rts_sqd_and_sqe() -> None:
    named = {start for (_, start, _), (_, optional) in EXPECTED.items() if optional & 1 << 1}

    assert named == {QPState.RTR, QPState.RTS, QPState.SQD, QPState.SQE}
    for move in EVERY_MOVE:
        if move[1] not in named:
            required = EXPECTED.get(move, (0, 0))[0]
            assert not accepts(move, STATE | required | QPAttrMask.CUR_STATE)


@each_case("qp_type", QPType)
def test_queue_pair_that_drains_goes_nowhere_but_to_err(qp_type: QPType) -> None:
    ways = [
        new_state
        for new_state in QPState
        if accepts((qp_type, QPState.SQD, new_state), STATE, draining=True)
    ]

    assert ways == [QPState.ERR]


def test_queue_pair_that_drains_may_change_attributes() -> None:
    """Without STATE rxe does not ask whether it drains."""
    assert accepts((QPType.RC, QPState.SQD, QPState.SQD), QPAttrMask.TIMEOUT, draining=True)


def test_draining_matters_in_sqd_only() -> None:
    assert accepts((QPType.RC, QPState.RTS, QPState.RESET), STATE, draining=True)


def test_error_names_what_is_missing_and_what_is_too_much() -> None:
    with pytest.raises(VerbsError, match=r"ACCESS_FLAGS missing, QKEY\|0x1000000 not allowed"):
        check_transition(
            QPType.RC,
            QPState.RESET,
            QPAttrMask.PKEY_INDEX | QPAttrMask.PORT | QPAttrMask.QKEY | 1 << 24,
            QPState.INIT,
        )


# reference/transport#qp-state-actions: state, post_recv, post_send, requests, responses.
PERMITTED = [
    (QPState.RESET, Post.REFUSED, Post.REFUSED, False, False),
    (QPState.INIT, Post.QUEUED, Post.REFUSED, False, False),
    (QPState.RTR, Post.QUEUED, Post.REFUSED, True, False),
    (QPState.RTS, Post.QUEUED, Post.STARTED, True, True),
    (QPState.SQD, Post.QUEUED, Post.QUEUED, True, True),
    (QPState.SQE, Post.QUEUED, Post.FLUSHED, True, False),
    (QPState.ERR, Post.FLUSHED, Post.FLUSHED, False, False),
]


@each_case(("state", "recv", "send", "requests", "responses"), PERMITTED)
def test_what_a_state_permits(
    state: QPState, recv: Post, send: Post, requests: bool, responses: bool
) -> None:
    assert POST_RECV[state] is recv
    assert POST_SEND[state] is send
    assert (state in ACCEPTS_REQUESTS) == requests
    assert (state in ACCEPTS_RESPONSES) == responses
