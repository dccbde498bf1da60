"""One fault that shows at many places is one finding, and its rule does not depend on the place."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from fuzz.test_names_and_rules import named
from fuzz.test_naming import USUAL, WRITE
from ibwire.fuzz.case import Connect, Connection, Packet, Post, Step, Wait, step_text
from ibwire.fuzz.judge.concurrency import both
from ibwire.fuzz.judge.naming import Name
from ibwire.rc.work import WROpcode
from ibwire_layers.opcodes import OpCode
from mutants.table import Patch

EMPTY = Connection(receives=0)
SEND_ONLY = Packet(int(OpCode.RC_SEND_ONLY))
UC = Connection(service="UC")
UC_AT_WRAP = Connection(rq_psn=0xFFFFFF, service="UC")
UC_SEND_FIRST = Packet(int(OpCode.UC_SEND_FIRST), length=256)
UC_SEND_LAST = Packet(int(OpCode.UC_SEND_LAST), length=8)
UC_WRITE = [
    Packet(int(OpCode.UC_RDMA_WRITE_FIRST), length=256, fields={"reth.dma_len": 769}),
    Packet(int(OpCode.UC_RDMA_WRITE_MIDDLE), length=256),
]
ACK = Packet(int(OpCode.RC_ACKNOWLEDGE), ("una", 0))
RNR_NAK = ACK.altered(fields={"aeth.syndrome": 0x21})
SEND = Post(int(WROpcode.SEND))
SEND_IMM = Post(int(WROpcode.SEND_WITH_IMM), 257)
READ = Post(int(WROpcode.RDMA_READ), 257)
ATOMIC_WRITE = Post(int(WROpcode.ATOMIC_WRITE), 8)
READ_FIRST = Packet(int(OpCode.RC_RDMA_READ_RESPONSE_FIRST), ("una", 0), length=256)
READ_MIDDLE = Packet(int(OpCode.RC_RDMA_READ_RESPONSE_MIDDLE), ("una", 0))
TIMEOUT = Wait(67_108_864_000)

ENDS_AT_PSN_0 = Patch(
    "rc/unreliable.py",
    "        if packet.psn != self.epsn:\n            self._abandon()\n",
    "        if packet.psn != self.epsn or (not packet.psn and not packet.form.is_first):\n"
    "            self._abandon()\n",
)
ABANDONED_IS_NOT_GIVEN_BACK = Patch(
    "rc/receive.py",
    "        if self.current is not None and self.srq is None:\n",
    "        if self.current is not None and self.srq is None and not self.filled:\n",
)
ATOMICS_HAVE_NO_SSN = Patch(
    "rc/send_queue.py",
    "        if wqe.plan.operation is not None:\n"
    "            self.ssn = wqe.ssn = self.ssn + 1 & MASK\n",
    "        if wqe.plan.operation is not None and not wqe.plan.is_answered:\n"
    "            self.ssn = self.ssn + 1 & MASK\n"
    "        wqe.ssn = self.ssn\n",
)
FENCE_WAITS_FOR_ALL = Patch(
    "rc/requester.py",
    "        if wqe.fence and sends.reads:\n",
    "        if wqe.fence and (sends.reads or sends.una != sends.next_psn):\n",
)
REFUSED_TAKES_ITS_PSN = Patch(
    "rc/responder.py",
    "        self._nak_sent = not self._habits.gap_ends_on_arrival()\n"
    "        qp.wake()\n"
    "        return False\n",
    "        self._nak_sent = not self._habits.gap_ends_on_arrival()\n"
    "        self.epsn = packet.psn + 1 & MASK\n"
    "        qp.wake()\n"
    "        return False\n",
)
MESSAGE_BEHIND_A_GAP_IS_LOST = Patch(
    "rc/unreliable.py",
    "            self.epsn = packet.psn\n        super()",
    "            self.epsn = packet.psn & 0x7F_FFFF\n        super()",
)
BEGUN_READS_ARE_FLUSHED = Patch(
    "rc/send_queue.py",
    "            self.complete(self.wqes[0], status)\n        self.qp.enter_error()\n",
    "            oldest = self.wqes[0]\n"
    "            self.complete(oldest, WCStatus.WR_FLUSH_ERR if oldest.received else status)\n"
    "        self.qp.enter_error()\n",
)
IMMEDIATE_OF_THE_NEWEST_ALONE = Patch(
    "rc/requester.py",
    "                packet.imm_data = wr.imm_data\n",
    "                packet.imm_data = wr.imm_data if wqe is sends.wqes[-1] else 0\n",
)
MIGRATED_WHEN_RETRANSMITTED = Patch(
    "rc/requester.py",
    "            qp.address(packet, wqe.wr)\n            self._advance(following)\n",
    "            qp.address(packet, wqe.wr)\n"
    "            packet.mig_req ^= sends.psn != sends.next_psn\n"
    "            self._advance(following)\n",
)


def test_two_rules_as_one_say_each_section_and_entry_once() -> None:
    one = "IBA 9.7.6; docs/reference/transport.md#rnr-wait"
    other = "IBA 9.7.5.2.8, 9.7.6; docs/reference/transport.md#rnr-wait"

    assert both(one, other) == "IBA 9.7.6, 9.7.5.2.8; docs/reference/transport.md#rnr-wait"


def test_a_new_connection_says_what_is_unusual_about_it() -> None:
    assert step_text(Connect(Connection(mtu=1024, service="UC"))) == (
        "connect again mtu=1024 service=UC"
    )
    assert step_text(Connect(Connection())) == "connect again"


def are_one(names: Sequence[Name]) -> bool:
    """Whether all belong to the first, by a key of it that they have or may belong to."""
    keys = set(names[0].keys)
    return all(not keys.isdisjoint((*each.keys, *each.wider)) for each in names)


@pytest.mark.parametrize(
    ("patch", "rule", "cases"),
    [
        pytest.param(
            ENDS_AT_PSN_0,
            "psn-order",
            [
                (UC_AT_WRAP, UC_WRITE),
                (UC_AT_WRAP, [UC_SEND_FIRST, UC_SEND_LAST]),
                (
                    Connection(mtu=1024, rq_psn=0xFFFFFF, service="UC"),  # not as if it were 512
                    [
                        UC_WRITE[0].altered(length=1024, fields={"reth.dma_len": 2326}),
                        UC_WRITE[1].altered(length=1024),
                    ],
                ),
            ],
            id="messages of UC at the wrap",
        ),
        pytest.param(
            ABANDONED_IS_NOT_GIVEN_BACK,
            "uc",
            [
                (UC, [UC_SEND_FIRST, UC_SEND_FIRST]),
                (UC, [UC_SEND_FIRST, UC_SEND_LAST.altered(length=0)]),
                (UC, [UC_SEND_FIRST, Packet(int(OpCode.UC_RDMA_WRITE_ONLY))]),
            ],
            id="abandoned messages of UC",
        ),
        pytest.param(
            ATOMICS_HAVE_NO_SSN,
            "limited-message",
            [
                (USUAL, [ATOMIC_WRITE, Post(int(WROpcode.SEND), 257)]),
                (USUAL, [ATOMIC_WRITE, Post(int(WROpcode.RDMA_WRITE_WITH_IMM), 513)]),
                (USUAL, [SEND, ATOMIC_WRITE, SEND]),
            ],
            id="messages without credits",
        ),
        pytest.param(
            FENCE_WAITS_FOR_ALL,
            "fence",
            [
                (USUAL, [SEND, Post(int(WROpcode.RDMA_WRITE), fence=True)]),
                (USUAL, [SEND, Post(int(WROpcode.SEND), fence=True), ACK.altered(psn=("una", -1))]),
                (USUAL, [SEND_IMM, Post(int(WROpcode.SEND), 257, fence=True), ACK]),
            ],
            id="a fence",
        ),
        pytest.param(
            REFUSED_TAKES_ITS_PSN,
            "receive-missing",
            [
                (EMPTY, [SEND_ONLY, SEND_ONLY]),
                (EMPTY, [SEND_ONLY, WRITE.altered(fields={"reth.va": 0xFFFF_FFFF_FFFF_FFFF})]),
                (EMPTY, [SEND_ONLY, Packet(int(OpCode.RC_ATOMIC_WRITE), length=8)]),
            ],
            id="refused requests",
        ),
        pytest.param(
            MESSAGE_BEHIND_A_GAP_IS_LOST,
            "uc",
            [
                (UC, [UC_SEND_FIRST.altered(psn=("expected", -200))]),
                (UC, [Packet(int(OpCode.UC_RDMA_WRITE_ONLY), ("expected", -200), 8, at=7)]),
                (UC, [Packet(int(OpCode.UC_SEND_ONLY), ("expected", -200))]),
            ],
            id="messages of UC behind a gap",
        ),
    ],
)
def test_a_fault_is_one_finding_with_its_rule_wherever_it_shows(
    patch: Patch, rule: str, cases: Sequence[tuple[Connection, Sequence[Step]]]
) -> None:
    names = [named(patch, *steps, connection=connection) for connection, steps in cases]

    assert are_one(names)
    assert {each.rule.rpartition("#")[2] for each in names} == {rule}


@pytest.mark.parametrize(
    ("patch", "cases"),
    [
        pytest.param(
            BEGUN_READS_ARE_FLUSHED,
            [
                (USUAL, [READ, READ_FIRST, READ_MIDDLE]),
                (Connection(rnr_retry=0), [READ, READ_FIRST, RNR_NAK]),
                (Connection(retry_cnt=0), [READ, READ_FIRST, Wait(600_000_000_000)]),
            ],
            id="the status of a request that fails",
        ),
        pytest.param(
            IMMEDIATE_OF_THE_NEWEST_ALONE,
            [
                (USUAL, [SEND_IMM, Post(int(WROpcode.RDMA_WRITE)), ACK]),
                (USUAL, [Post(int(WROpcode.SEND_WITH_IMM), 8), SEND, TIMEOUT]),
            ],
            id="immediate data",
        ),
        pytest.param(
            MIGRATED_WHEN_RETRANSMITTED,
            [
                (USUAL, [SEND, TIMEOUT]),
                (USUAL, [SEND, RNR_NAK, Wait(20_000_000_000)]),
            ],
            id="a field of what is retransmitted",
        ),
    ],
)
def test_a_fault_is_one_finding_wherever_it_shows(
    patch: Patch, cases: Sequence[tuple[Connection, Sequence[Step]]]
) -> None:
    assert are_one([named(patch, *steps, connection=each) for each, steps in cases])
