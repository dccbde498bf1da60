"""What is said of a packet of a minimised case, in brackets, is still true of it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from ibwire.fuzz.case import Case, Command, Connection, Mad, Packet, Step
from ibwire.fuzz.judge.packet_faults import without_old_faults
from ibwire.rc.profile import SPEC
from ibwire_layers.opcodes import OpCode

SEND = Packet(int(OpCode.RC_SEND_ONLY), why="many")
ATOMIC = Packet(
    int(OpCode.RC_ATOMIC_ACKNOWLEDGE), ("una", 0), fields={"atomicacketh.orig": 7}, why="size"
)
EDGE = Mad(message="MRA", fields={"mra.reserved": 42}, why="edge of a field")
REFUSED = Mad(message="REJ", fields={"rej.reason": 4}, why="refused")
REPEATED = Mad(why="repeated")
CROSSING = Mad(message="DREQ", why="crossing")
OVER = Mad(message="RTU", why="over")
AHEAD = Packet(int(OpCode.RC_RDMA_WRITE_ONLY), ("expected", 1), held=True, why="reordered")
LATE = AHEAD.altered(psn=("expected", 0), held=False)
LONG = [
    Packet(int(opcode), length=length, why="longer than the receive")
    for opcode, length in (
        (OpCode.RC_SEND_FIRST, 256),
        *[(OpCode.RC_SEND_MIDDLE, 256)] * 3,
        (OpCode.RC_SEND_LAST, 8),
    )
]
"""More than the 1024 bytes of a receive request."""
UNASKED = Packet(int(OpCode.RC_SEND_LAST), fields={"bth.ack_req": 0}, why="bth.ack_req")
ASKING = Packet(
    int(OpCode.RC_ACKNOWLEDGE), ("una", 0), fields={"bth.ack_req": 1}, why="bth.ack_req"
)


def whys(steps: Sequence[Step], original: Sequence[Step]) -> list[str]:
    """What is left in brackets."""
    case, before = Case(Connection(), tuple(steps)), Case(Connection(), tuple(original))
    done = without_old_faults(case, before, SPEC)
    assert [type(each) for each in done.steps] == [type(each) for each in steps]
    return [each.why for each in done.steps if isinstance(each, Packet)]


@pytest.mark.parametrize(
    ("steps", "original"),
    [
        ([Mad(message="MRA", why="edge of a field")], [EDGE]),
        ([Mad(message="REJ", why="refused")], [REFUSED]),
        ([REPEATED], [Mad(), REPEATED]),
        ([Mad(message="REQ", exchange=1), REPEATED], [Mad(), REPEATED]),
        ([CROSSING], [Command("disconnect"), CROSSING]),
        ([OVER], [Mad(), Mad(message="REJ"), OVER]),
        ([SEND], [SEND, SEND]),
        ([ATOMIC], [ATOMIC.altered(length=3)]),
        ([LATE], [AHEAD, LATE]),
        ([LATE, LATE], [AHEAD, LATE]),
        (LONG[:1], LONG),
        ([LONG[0], LONG[-1]], LONG),
        ([UNASKED], [UNASKED]),
    ],
)
def test_a_fault_that_is_gone_is_not_named(steps: Sequence[Step], original: Sequence[Step]) -> None:
    assert whys(steps, original)[-1] == ""


@pytest.mark.parametrize(
    ("steps", "original"),
    [
        ([EDGE], [Mad(), EDGE]),
        ([Mad(message="MRA", exchange=3, fields=EDGE.fields, why=EDGE.why)], [EDGE]),
        ([REFUSED], [REFUSED]),
        ([Mad(), REPEATED], [Mad(), Mad(message="RTU"), REPEATED]),
        ([Command("disconnect"), CROSSING], [Command("disconnect"), CROSSING]),
        ([Mad(), OVER], [Mad(), Mad(message="REJ"), OVER]),
        ([SEND, SEND], [SEND] * 20),
        ([ATOMIC.altered(length=3)], [ATOMIC.altered(length=3)]),
        ([AHEAD, LATE], [Packet(int(OpCode.RC_SEND_ONLY)), AHEAD, LATE]),
        (LONG, LONG),
        ([ASKING], [ASKING]),
    ],
)
def test_a_fault_that_is_left_is_named(steps: Sequence[Step], original: Sequence[Step]) -> None:
    assert whys(steps, original)[-1] == original[-1].why
