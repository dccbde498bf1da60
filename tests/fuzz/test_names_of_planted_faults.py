"""Names of faults that somebody has planted who did not know how they are found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from examples import sampled, usual
from fuzz.test_naming import ACK, READ, wrong
from ibwire.base.units import MS, US, S
from ibwire.fuzz.campaign import Campaign
from ibwire.fuzz.case import Case, Command, Connection, Mad, Packet, Post, Role, Step, Wait
from ibwire.fuzz.judge.naming import Name
from ibwire.fuzz.targets.emulated_device import Emulation
from ibwire.fuzz.targets.emulated_manager import managed_emulation
from ibwire.fuzz.targets.emulator import EmulatorTestbed
from ibwire.fuzz.vocabulary.vocabularies import vocabulary_for
from ibwire.rc.profile import SPEC
from ibwire.rc.work import WROpcode
from ibwire_layers.opcodes import OpCode
from mutants.engine import copied
from mutants.table import DEVICES, Mutant, Patch, read_mutants

FAULTS = read_mutants(DEVICES)
USUAL, SGES, UC, UD = (
    Connection(),
    Connection(sges=4),
    Connection(service="UC"),
    Connection(service="UD"),
)

NO_RECEIVE = Connection(receives=0)

WRITE_IMM = Packet(int(OpCode.RC_RDMA_WRITE_ONLY_WITH_IMMEDIATE))
SEND_IMM = Packet(int(OpCode.RC_SEND_ONLY_WITH_IMMEDIATE))
SEND_FIRST = Packet(int(OpCode.RC_SEND_FIRST), length=256)
UC_SEND = Packet(int(OpCode.UC_SEND_ONLY))
UC_FIRST = Packet(int(OpCode.UC_SEND_FIRST))
DATAGRAM = Packet(int(OpCode.UD_SEND_ONLY))
LONG_DATAGRAM = DATAGRAM.altered(length=1024)
READ_FIRST = Packet(int(OpCode.RC_RDMA_READ_RESPONSE_FIRST), ("una", 0), length=256)
ANSWER = Packet(int(OpCode.RC_RDMA_READ_RESPONSE_ONLY), ("una", 0))
LATER_ANSWER = ANSWER.altered(psn=("una", 1))
SWAP, ADD = Packet(int(OpCode.RC_COMPARE_SWAP)), Packet(int(OpCode.RC_FETCH_ADD))
AFTER_TIMEOUT = Wait(75_108 * US)


ACKS_UNASKED = Patch(
    "rc/responder.py",
    "            if packet.ack_req and operation in _ACKNOWLEDGED:\n",
    "            if operation in _ACKNOWLEDGED:\n",
)
ACKS_LAST_UNASKED = Patch(
    "rc/responder.py",
    "            if packet.ack_req and operation in _ACKNOWLEDGED:\n",
    "            if (packet.ack_req or form.is_last) and operation in _ACKNOWLEDGED:\n",
)
KEEPS_NAKS = Patch(
    "rc/responder.py",
    "                self.replies = self._habits.withdraw_naks(self.replies)\n",
    "                pass\n",
)
ACKS_LAST_DUPLICATES = Patch(
    "rc/responder.py",
    "        elif self._habits.acknowledges_duplicate(packet):\n",
    "        elif packet.ack_req or packet.form.is_last:\n",
)
ASKS_ALWAYS = Patch(
    "rc/requester.py",
    "        if sends.since_ack_request >= self._ack_interval:\n",
    "        if sends.since_ack_request >= 1:\n",
)
ASKS_WHEN_IT_RETRANSMITS = replace(
    ASKS_ALWAYS,
    new="        if sends.since_ack_request >= self._ack_interval or psn != sends.next_psn:\n",
)
WINDOW_OF_31 = Patch(
    "rc/profile.py",
    "    max_unacked_psns: int = (1 << 23) - 1\n",
    "    max_unacked_psns: int = 31\n",
)
ONE_MESSAGE = Patch(
    "rc/requester.py",
    "        if in_flight > profile.max_unacked_psns or in_flight + wqe.packets > HALF:\n",
    "        if in_flight or in_flight + wqe.packets > HALF:\n",
)
FLUSHES_ARE_NO_READS = Patch(
    "rc/requester.py",
    "        if plan.operation is _FLUSH and not profile.counts_flushes:\n",
    "        if plan.operation is _FLUSH:\n",
)
ACK_OF_A_READ_ENDS_BEFORE_IT = Patch(
    "rc/completer.py",
    "        if not qp.profile.ack_restarts_read and kind is _ACK and self._is_answered(psn):\n",
    "        if kind is _ACK and self._is_answered(psn):\n",
)
GIVES_NO_CREDITS = Patch(
    "rc/responder.py",
    "            return credit_code(len(self.receives.waiting))\n",
    "            return INVALID_CREDITS\n",
)
LATE_ACK_TIMER = Patch(
    "rc/timers.py",
    "    return max(nominal // profile.timer_granularity, 1) * profile.timer_granularity\n",
    "    return 3 * max(nominal // profile.timer_granularity, 1) * profile.timer_granularity\n",
)
LATE_RNR_TIMER = Patch(
    "rc/timers.py", "    return table if grain == 1", "    return table * 5 // 4 if grain == 1"
)
ODD_RNR_TIMER = replace(LATE_RNR_TIMER, new="    return table * 133 // 100 if grain == 1")
RNR_CODE_20_LATE = replace(
    LATE_RNR_TIMER, new="    return table * (1 + (code == 20)) if grain == 1"
)
TIMEOUT_14_LATE = Patch(
    "rc/timers.py",
    "    nominal = nominal * profile.ack_timer_percent // 100\n",
    "    nominal = nominal * (3 if code == 14 else 1)\n",
)
IGNORES_UNKNOWN = Patch(
    "cm/manager.py",
    "        elif isinstance(message, cm.REP | cm.RTU) and isinstance(message, self._refused):\n",
    "        elif False:\n",
)

IGNORES_UNKNOWN_REP = replace(IGNORES_UNKNOWN, new="        elif isinstance(message, cm.RTU):\n")


def post(verb: WROpcode, length: int = 0, *, sges: int = 1, signaled: bool = True) -> Post:
    return Post(int(verb), length, sges=sges, signaled=signaled)


def ack(offset: int = 0, syndrome: int = 0x1F) -> Packet:
    return wrong(Packet(ACK, ("una", offset)), aeth__syndrome=syndrome)


def mad(message: str) -> Mad:
    return Mad(message=message, exchange=3)


def name_of(fault: str, connection: Connection, steps: Sequence[Step]) -> Name:
    managed = any(isinstance(each, Mad | Command) for each in steps)
    role, made = (Role.CM, managed_emulation) if managed else (Role.BOTH, Emulation)
    device = getattr(copied(FAULTS[fault])[made.__module__], made.__name__)
    vocabulary = vocabulary_for(role)
    testbed = EmulatorTestbed(device, vocabulary)
    state = Campaign(testbed, vocabulary.generators(1, role, ())).state
    case = Case(connection, tuple(steps))
    difference = testbed.replay(case, SPEC)
    assert difference is not None
    return testbed.name_of(state, case, difference, "")


@pytest.mark.parametrize(
    ("fault", "connection", "steps", "text", "anchor"),
    [
        (
            "atomic-result-register-shared",
            USUAL,
            [SWAP.altered(held=True), wrong(ADD, atomiceth__va=("va", 16))],
            "COMPARE_SWAP with FETCH_ADD behind it: "
            "ATOMIC_ACKNOWLEDGE with another atomicacketh.orig",
            "atomics",
        ),
        (
            "error-takes-an-srq-entry",
            Connection(srq=1, srq_limit=8),
            [Post(int(WROpcode.SEND_WITH_IMM), 8, wrong_lkey=1)],
            "a posted SEND_WITH_IMM (a wrong L_Key): event SRQ_LIMIT_REACHED, which is not due",
            "srq-limit",
        ),
        (
            "uc-abandoned-receive-goes-last",
            UD,
            [LONG_DATAGRAM, DATAGRAM],
            "UD_SEND_ONLY after a datagram longer than its receive request: "
            "completion with another wr_id",
            "ud",
        ),
        (
            "ud-grh-room-not-counted",
            UD,
            [LONG_DATAGRAM],
            "UD_SEND_ONLY (a datagram longer than its receive request): "
            "a completion LOC_PROT_ERR of a receive, which is not due",
            "ud",
        ),
        (
            "unsignalled-not-flushed",
            USUAL,
            [post(WROpcode.SEND, signaled=False), Packet(int(OpCode.RC_SEND_MIDDLE))],
            "SEND_MIDDLE (a MIDDLE without its FIRST): a send request is not flushed",
            "flush",
        ),
        (
            "zero-sge-ends-the-list",
            SGES,
            [wrong(SEND_FIRST, bth__ack_req=0).altered(held=True), READ],
            "SEND_FIRST (into a receive of several SGEs, one of 0 bytes): "
            "NAK REMOTE_OPERATIONAL_ERROR instead of nothing",
            "receive-fault",
        ),
        (
            "read-response-into-next-sge",
            USUAL,
            [post(WROpcode.RDMA_READ, 513), READ_FIRST, READ_FIRST],
            "READ_RESPONSE_FIRST (a READ response out of its place): "
            "no completion BAD_RESP_ERR of a posted RDMA_READ",
            "response-mismatch",
        ),
        (
            "uc-wrap",
            Connection(mtu=1024, rq_psn=0xFFFFFF, service="UC"),
            [
                wrong(Packet(int(OpCode.UC_RDMA_WRITE_FIRST), length=1024), reth__dma_len=2326),
                Packet(int(OpCode.UC_RDMA_WRITE_MIDDLE), length=1024),
            ],
            "UC_WRITE_MIDDLE (at the PSN wrap): other bytes in its memory",
            "psn-order",
        ),
        (
            "no-implied-nak-of-atomics",
            Connection(retry_cnt=0),
            [
                post(WROpcode.RDMA_WRITE),
                post(WROpcode.ATOMIC_FETCH_AND_ADD),
                post(WROpcode.FLUSH),
                READ_FIRST.altered(psn=("una", 2), length=0),
            ],
            "READ_RESPONSE_FIRST (a response behind an unanswered READ or atomic): "
            "no completion RETRY_EXC_ERR of a posted ATOMIC_FETCH_AND_ADD",
            "implied-nak",
        ),
        (
            "second-sge-from-the-start",
            USUAL,
            [post(WROpcode.SEND, 513, sges=3), ack()],
            "ACKNOWLEDGE (an ACK): LOC_PROT_ERR instead of SEND_MIDDLE, of a request with 3 SGEs",
            "sge-list",
        ),
        (
            "lap-answered-with-rej",
            USUAL,
            [mad("REQ"), replace(mad("LAP"), held=True), mad("RTU")],
            "RTU in REQ_RCVD after a LAP: REJ STALE_CONNECTION instead of silence",
            "states",
        ),
        (
            "rej-before-rep-of-other-connections",
            USUAL,
            [Command("connect", 3), mad("REP"), mad("REJ")],
            "REJ of the REQ in REP_RCVD: it reports REJECTED instead of nothing",
            "reject-reasons",
        ),
        (
            "backlog-of-one-more",
            USUAL,
            [Mad(message="REQ", exchange=number) for number in (1, 3, 5, 7, 9, 11, 13)],
            "REQ beyond the backlog: it reports CONNECT_REQUEST instead of nothing",
            "request",
        ),
        (
            "drep-ids-of-unknown",
            USUAL,
            [Mad(message="REP", exchange=3, fields={"mad.attribute_id": 21})],
            "DREQ without a connection: another cm.drep.local_comm_id in the DREP",
            "teardown",
        ),
        (
            "read-middle-pad",
            USUAL,
            [wrong(READ, reth__dma_len=937)],
            "READ_REQUEST: READ_RESPONSE_LAST with another bth.pad_count",
            "padding",
        ),
        (
            "nak-fails-next-request",
            USUAL,
            [post(WROpcode.RDMA_READ, 257), ack(1, 0x62)],
            "ACKNOWLEDGE (a NAK REMOTE_ACCESS_ERROR inside a message): "
            "completion REM_OP_ERR of a posted RDMA_READ "
            "instead of REM_ACCESS_ERR of a posted RDMA_READ",
            "completion-status",
        ),
        (
            "stale-of-another-guid",
            USUAL,
            [
                Mad(message="REQ", exchange=1, fields={"req.local_ca_guid": ("own.guid", -1)}),
                Mad(message="REQ", exchange=3, fields={"req.local_qpn": ("own.qpn", -2)}),
            ],
            "REQ with the queue pair number of another CA: REJ STALE_CONNECTION, "
            "and it does not report CONNECT_REQUEST",
            "teardown",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) and " " not in value else "",
)
def test_name_and_rule_of_what_a_device_does_otherwise(
    fault: str, connection: Connection, steps: Sequence[Step], text: str, anchor: str
) -> None:
    name = name_of(fault, connection, steps)

    assert name.text == text
    assert f"#{anchor}" in name.rule


@pytest.mark.parametrize(
    ("fault", "cases"),
    [
        (
            "uc-abandoned-receive-goes-last",
            [(UC, [UC_FIRST, UC_SEND]), (UD, [LONG_DATAGRAM, DATAGRAM])],
        ),
        (
            "zero-sge-ends-the-list",
            [
                (SGES, [SEND_FIRST]),
                (SGES, [Packet(int(OpCode.RC_SEND_ONLY_WITH_IMMEDIATE), length=255)]),
            ],
        ),
        (
            "zero-sge-ends-the-list",
            [
                (USUAL, [post(WROpcode.RDMA_WRITE, 257, sges=4)]),
                (USUAL, [post(WROpcode.SEND_WITH_INV, 257, sges=5)]),
            ],
        ),
        (
            "ack-inside-a-message-ignored",
            [
                (USUAL, [post(WROpcode.SEND, 257), ack(), AFTER_TIMEOUT]),
                (USUAL, [post(WROpcode.RDMA_WRITE, 513), ack(1, 0x21), Wait(20 * MS)]),
                (Connection(rnr_retry=0), [post(WROpcode.RDMA_WRITE, 257), ack(), ack(0, 0x21)]),
            ],
        ),
        (
            "no-implied-nak-of-atomics",
            [
                (
                    USUAL,
                    [
                        post(WROpcode.ATOMIC_WRITE),
                        post(WROpcode.RDMA_READ),
                        ANSWER.altered(psn=("una", 1)),
                    ],
                ),
                (Connection(retry_cnt=0), [post(WROpcode.ATOMIC_WRITE), ack()]),
            ],
        ),
        (
            "rnr-retries-not-renewed",
            [
                (
                    Connection(mtu=512, rnr_retry=1),
                    [
                        post(WROpcode.RDMA_READ, 513),
                        ack(0, 0x22),
                        READ_FIRST.altered(length=512),
                        ack(0, 0x21),
                    ],
                ),
                (
                    Connection(rnr_retry=1),
                    [
                        post(WROpcode.FLUSH),
                        post(WROpcode.RDMA_WRITE),
                        ack(0, 0x22),
                        ANSWER,
                        ack(0, 0x21),
                    ],
                ),
            ],
        ),
        (
            "lap-answered-with-rej",
            [
                (USUAL, [mad("REQ"), mad("LAP")]),
                (USUAL, [Command("connect", 3), mad("APR"), mad("REP")]),
            ],
        ),
        (
            "rnr-refused-send-is-skipped",
            [
                (NO_RECEIVE, [WRITE_IMM, SEND_IMM]),
                (NO_RECEIVE, [WRITE_IMM, wrong(READ, reth__rkey=0)]),
            ],
        ),
        (
            "mra-time-replaces-packet-time",
            [
                (USUAL, [Command("connect", 3), mad("MRA"), Wait(30 * S)]),
                (USUAL, [mad("REQ"), Command("accept", 3), mad("MRA"), Wait(20 * S)]),
            ],
        ),
    ],
)
def test_one_cause_is_one_finding(
    fault: str, cases: Sequence[tuple[Connection, Sequence[Step]]]
) -> None:
    first, *others = (name_of(fault, connection, steps) for connection, steps in cases)

    assert all(set(first.keys) & {*each.keys, *each.wider} for each in others)


def test_wrong_bytes_of_several_sges_are_not_one_cause_with_a_list_that_is_refused() -> None:
    refused = name_of("zero-sge-ends-the-list", USUAL, [post(WROpcode.RDMA_WRITE, 257, sges=4)])
    wrong_bytes = name_of(
        "second-sge-from-the-start", USUAL, [post(WROpcode.SEND_WITH_INV, 1023, sges=3), ack()]
    )

    assert wrong_bytes.text.startswith("ACKNOWLEDGE (an ACK): SEND_MIDDLE with other data")
    assert not {*refused.keys, *refused.wider} & {*wrong_bytes.keys, *wrong_bytes.wider}


@pytest.mark.parametrize("patch", [RNR_CODE_20_LATE, TIMEOUT_14_LATE], ids=["rnr", "ack"])
def test_a_timer_that_is_late_for_one_code_alone_is_no_choice(patch: Patch) -> None:
    device = copied(Mutant("one code", (patch,)))[Emulation.__module__].Emulation
    vocabulary = vocabulary_for(Role.REQUESTER)
    testbed = EmulatorTestbed(device, vocabulary)
    campaign = Campaign(testbed, vocabulary.generators(31, Role.REQUESTER, ()))

    next(campaign.run(100), None)

    assert not any("percent" in name for name in campaign.report.taken)


def test_a_duplicate_read_of_a_longer_one_becomes_that_of_a_short_one() -> None:
    """A wrong MSN of duplicates then looks like no wrong number of PSNs."""
    made = getattr(copied(FAULTS["dup-read-counts-msn"])[Emulation.__module__], Emulation.__name__)
    vocabulary = vocabulary_for(Role.RESPONDER)
    testbed = EmulatorTestbed(made, vocabulary)
    campaign = Campaign(testbed, vocabulary.generators(31, Role.RESPONDER, ()))

    found = list(campaign.run(500))

    assert [each.bucket for each in found] == [
        "READ_REQUEST (a duplicate READ): READ_RESPONSE_ONLY with another aeth.msn"
    ]
    assert found[0].case.packets == 2


@pytest.mark.parametrize(
    ("role", "patch"),
    sampled(
        [
            (Role.RESPONDER, KEEPS_NAKS),
            (Role.RESPONDER, ACKS_LAST_DUPLICATES),
            (Role.REQUESTER, WINDOW_OF_31),
            (Role.REQUESTER, ONE_MESSAGE),
            (Role.REQUESTER, FLUSHES_ARE_NO_READS),
            (Role.REQUESTER, ACK_OF_A_READ_ENDS_BEFORE_IT),
            (Role.REQUESTER, LATE_ACK_TIMER),
            (Role.REQUESTER, LATE_RNR_TIMER),
            (Role.REQUESTER, ODD_RNR_TIMER),
            (Role.CM, IGNORES_UNKNOWN),
            (Role.CM, IGNORES_UNKNOWN_REP),
        ],
        every=5,
        are_tuples=True,
    ),
    ids=lambda value: value.module if isinstance(value, Patch) else str(value),
)
def test_what_is_allowed_is_no_finding(role: Role, patch: Patch) -> None:
    """Choices of a device that the specification leaves open: reference/transport and cm."""
    made = managed_emulation if role is Role.CM else Emulation
    device = getattr(copied(Mutant("allowed", (patch,)))[made.__module__], made.__name__)
    vocabulary = vocabulary_for(role)
    campaign = Campaign(EmulatorTestbed(device, vocabulary), vocabulary.generators(31, role, ()))

    assert [each.bucket for each in campaign.run(3000)] == []
    assert len(campaign.report.choices) == 1


@pytest.mark.parametrize("patch", [ACKS_UNASKED, ACKS_LAST_UNASKED], ids=["all", "last"])
def test_a_responder_may_acknowledge_any_packet(patch: Patch) -> None:
    """IBA 9.7.5.1.2; reference/transport#ack-due. The reference does as the device has done."""
    device = getattr(copied(Mutant("allowed", (patch,)))[Emulation.__module__], Emulation.__name__)
    vocabulary = vocabulary_for(Role.RESPONDER)
    make = vocabulary.generators(31, Role.RESPONDER, ())
    campaign = Campaign(EmulatorTestbed(device, vocabulary), make)

    assert [each.bucket for each in campaign.run(usual(3000, quick=1000))] == []
    assert not campaign.report.choices


@pytest.mark.parametrize("patch", sampled([ASKS_ALWAYS, ASKS_WHEN_IT_RETRANSMITS], every=2))
def test_a_requester_may_ask_for_an_ack_in_any_packet(patch: Patch) -> None:
    """IBA 9.7.3; reference/transport#ack-request."""
    device = getattr(copied(Mutant("allowed", (patch,)))[Emulation.__module__], Emulation.__name__)
    vocabulary = vocabulary_for(Role.REQUESTER)
    make = vocabulary.generators(31, Role.REQUESTER, ())
    campaign = Campaign(EmulatorTestbed(device, vocabulary), make)

    assert [each.bucket for each in campaign.run(usual(3000, quick=1000))] == []


def test_a_device_without_credits_may_wait_for_those_of_its_peer() -> None:
    device = getattr(
        copied(Mutant("allowed", (GIVES_NO_CREDITS,)))[Emulation.__module__], Emulation.__name__
    )
    vocabulary = vocabulary_for(Role.BOTH)
    make = vocabulary.generators(31, Role.BOTH, ())
    campaign = Campaign(EmulatorTestbed(device, vocabulary), make)

    assert [each.bucket for each in campaign.run(usual(3000, quick=1000))] == []
    assert "live_credits" in campaign.report.taken
