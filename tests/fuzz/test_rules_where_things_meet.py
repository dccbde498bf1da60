"""Rules of findings that several things in a case might be blamed for: that of the fault alone."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from fuzz.test_naming import INVALIDATE, READ, USUAL
from ibwire.fuzz.case import Case, Connection, Packet, Post, Step, Wait
from ibwire.fuzz.judge.naming import Name, name_of
from ibwire.fuzz.targets.emulated_device import Emulation
from ibwire.fuzz.targets.emulator import EmulatorTestbed
from ibwire.rc.profile import SPEC
from ibwire.rc.work import WROpcode
from ibwire_layers.opcodes import OpCode
from mutants.engine import copied
from mutants.score import names_rule
from mutants.table import (
    EDGES,
    FIRMWARE,
    INTERACTIONS,
    SHARED,
    TABLE,
    VALUES,
    Mutant,
    read_mutants,
)

TABLES = (TABLE, INTERACTIONS, EDGES, FIRMWARE, VALUES, SHARED)
PLANTED: dict[str, Mutant] = {}
for table in TABLES:
    PLANTED |= read_mutants(table)

WRITE_FIRST = Packet(int(OpCode.RC_RDMA_WRITE_FIRST), length=256, fields={"reth.dma_len": 511})
WRITE_LAST = Packet(int(OpCode.RC_RDMA_WRITE_LAST_WITH_IMMEDIATE), length=255)
XRC_WRITE_FIRST = Packet(int(OpCode.XRC_RDMA_WRITE_FIRST), length=256, fields={"reth.dma_len": 513})
XRC_WRITE_LAST = Packet(int(OpCode.XRC_RDMA_WRITE_LAST_WITH_IMMEDIATE))
UD_SEND = Packet(int(OpCode.UD_SEND_ONLY))
UC_SEND_FIRST = Packet(int(OpCode.UC_SEND_FIRST), length=256)
ACK = Packet(int(OpCode.RC_ACKNOWLEDGE), ("una", 0))
RNR_NAK = ACK.altered(fields={"aeth.syndrome": 0x2C})
ADD = Post(int(WROpcode.ATOMIC_FETCH_AND_ADD))
ADDED = Packet(int(OpCode.RC_ATOMIC_ACKNOWLEDGE), ("una", 0))
LONG = Wait(100_000_000_000)
SHORT = Wait(10_000_001)
TIMEOUT = Wait(67_108_864_001)

CASES: Sequence[tuple[str, Connection, Sequence[Step], str]] = (
    (
        "msn-counts-other-messages",  # the window is free: its key is no wrong one
        Connection(pairs=3),
        [
            INVALIDATE,
            WRITE_FIRST.altered(pair=1),
            INVALIDATE.altered(pair=2),
            WRITE_LAST.altered(pair=1),
        ],
        "WRITE_LAST_WITH_IMMEDIATE: ACK with another aeth.msn",
    ),
    (
        "rnr-wait-blocks-other-queue-pairs",
        Connection(pairs=2),
        [
            Post(int(WROpcode.ATOMIC_CMP_AND_SWP), pair=1),
            Post(int(WROpcode.RDMA_READ), pair=1),
            Post(int(WROpcode.RDMA_READ)),
            RNR_NAK,
            Packet(int(OpCode.RC_RDMA_READ_RESPONSE_FIRST), ("una", 1), pair=1),
        ],
        "READ_RESPONSE_FIRST (while another queue pair waits after an RNR NAK): "
        "nothing instead of COMPARE_SWAP",
    ),
    (
        "second-sge-keeps-the-offset",
        USUAL,
        [Post(int(WROpcode.RDMA_WRITE_WITH_IMM), 773, sges=3), ACK],
        "ACKNOWLEDGE (an ACK): WRITE_MIDDLE with other data, of a request with 3 SGEs",
    ),
    (
        "ud-too-long-consumes-a-receive",
        Connection(room=296, service="UD", srq=1),
        [UD_SEND.altered(length=257)],
        "UD_SEND_ONLY (a datagram longer than its receive request): "
        "no completion LOC_LEN_ERR of a receive",
    ),
    (
        "partial-read-across-the-wrap",
        Connection(rq_psn=0xFFFFFF),
        [
            READ.altered(fields={"reth.va": ("va", 2572), "reth.dma_len": 512}),
            READ.altered(psn=("expected", -1), fields={"reth.va": ("va", 2828)}),
        ],
        "READ_REQUEST (a duplicate READ at the PSN wrap): nothing instead of READ_RESPONSE_ONLY",
    ),
    (
        "uc-completes-what-is-incomplete",
        Connection(service="UC"),
        [UC_SEND_FIRST, UC_SEND_FIRST.altered(psn=("expected", -1), length=0)],
        "UC_SEND_FIRST (a SEND FIRST that is too short): "
        "it completes the message before this one, which has no end",
    ),
    (
        "uc-loses-the-message-behind-a-gap",
        Connection(mtu=512, service="UC"),
        [UC_SEND_FIRST.altered(psn=("expected", -1), length=512)],
        "UC_SEND_FIRST (a message of UC with an old PSN): other bytes in its memory",
    ),
    (
        "ack-timer-runs-in-the-rnr-wait",  # which ends when it should
        USUAL,
        [Post(int(WROpcode.SEND)), RNR_NAK, LONG],
        "a wait (the ACK timer): it retransmits SEND_ONLY too early after an RNR NAK",
    ),
    (
        "no-timeout-after-an-rnr-wait",  # without the RNR NAK it would be retransmitted once, later
        USUAL,
        [Post(int(WROpcode.SEND)), RNR_NAK, LONG],
        "a wait (the ACK timer): a SEND_ONLY is missing after an RNR NAK",
    ),
    (
        "rnr-nak-uses-retry-cnt",
        USUAL,
        [
            Post(int(WROpcode.RDMA_READ), 257),
            *[TIMEOUT] * 2,
            *[RNR_NAK.altered(fields={"aeth.syndrome": 0x21}), SHORT] * 5,
            ADDED.altered(psn=("una", 1)),
        ],
        "ATOMIC_ACKNOWLEDGE (a gap in the responses of a READ): "
        "RETRY_EXC_ERR instead of READ_REQUEST, "
        "as if an RNR NAK used up one of the retries of retry_cnt",
    ),
    (
        "slot-of-atomic-never-free",
        USUAL,
        [*[ADD] * 16, ADDED, ADD],
        "a posted ATOMIC_FETCH_AND_ADD: nothing instead of FETCH_ADD",
    ),
    (
        "srq-newest-first",
        Connection(service="XRC_RECV"),
        [Packet(int(OpCode.XRC_SEND_ONLY))],
        "XRC_SEND_ONLY: completion with another wr_id",
    ),
    (
        "srq-empty-takes-a-write-with-immediate",
        Connection(service="XRC_RECV", receives=0),
        [XRC_WRITE_FIRST, XRC_WRITE_LAST],
        "XRC_WRITE_LAST_WITH_IMMEDIATE (no receive request): "
        "NAK INVALID_REQUEST instead of RNR NAK wait=0.64ms",
    ),
    (
        "srq-empty-takes-a-write-with-immediate",
        Connection(service="XRC_RECV", receives=0),
        [XRC_WRITE_FIRST.altered(fields={"reth.dma_len": 512}), XRC_WRITE_LAST.altered(length=256)],
        "XRC_WRITE_LAST_WITH_IMMEDIATE (no receive request): AssertionError in _complete",
    ),
)


def named(fault: str, case: Case) -> Name:
    device = copied(PLANTED[fault])[Emulation.__module__].Emulation
    difference = EmulatorTestbed(device).replay(case, SPEC)
    assert difference is not None
    assert difference.step == len(case.steps) - 1
    return name_of(case, difference, SPEC)


@pytest.mark.parametrize(
    ("fault", "connection", "steps", "text"), [pytest.param(*each, id=each[0]) for each in CASES]
)
def test_rule_is_that_of_the_fault_and_not_of_what_is_beside_it(
    fault: str, connection: Connection, steps: Sequence[Step], text: str
) -> None:
    name = named(fault, Case(connection, tuple(steps)))
    mutant = PLANTED[fault].fuzz

    assert name.text == text
    assert mutant is not None
    assert names_rule(name.rule, mutant.rule)
