"""Every word of a name is true, and its rule is that of the fault."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from fuzz.test_naming import ACK, READ, SEND, UC_SEND_FIRST, USUAL, WRITE, wrong
from fuzz.test_unchecked import EVERY_LENGTH, found
from ibwire.fuzz.case import OUTBOX, Case, Connection, Packet, Post, Step, Wait
from ibwire.fuzz.judge.comparison import Difference, Kind
from ibwire.fuzz.judge.naming import Name, name_of
from ibwire.fuzz.targets.emulated_device import Emulation
from ibwire.fuzz.targets.emulator import EmulatorTestbed
from ibwire.fuzz.vocabulary.queue_pair.execution import moments
from ibwire.rc.profile import SPEC, Profile
from ibwire.rc.work import WROpcode
from ibwire_layers.opcodes import OpCode
from mutants.engine import copied
from mutants.table import Mutant, Patch

LAST_INVALIDATES_NOTHING = Patch(
    "rc/responder.py",
    "        if form.has_invalidate and not qp.keys.invalidate(\n",
    "        if form.has_invalidate and form.is_first and not qp.keys.invalidate(\n",
)
GAP_LEAVES_THE_MESSAGE = Patch(
    "rc/unreliable.py",
    "            self._abandon()\n"
    "            if not packet.form.is_first:\n"
    "                return\n",
    "            if not packet.form.is_first:\n"
    "                return\n"
    "            self._abandon()\n",
)
SHORTER_WRITE_TAKEN = Patch(
    "rc/responder.py",
    "            if size != rest or size > qp.mtu or packet.pad_count != -size & 3:\n",
    "            if size > rest or size > qp.mtu or packet.pad_count != -size & 3:\n",
)
LENGTH_OF_THE_LAST_PACKET = Patch(
    "rc/responder.py",
    "            self.receives.finish(packet, WCOpcode.RECV_RDMA_WITH_IMM, self._dma_len)\n",
    "            self.receives.finish(packet, WCOpcode.RECV_RDMA_WITH_IMM, size)\n",
)
ATOMIC_RESULT_REVERSED = Patch(
    "rc/completer.py",
    'original = packet.original.to_bytes(8, "little")  # memory is in host order',
    'original = packet.original.to_bytes(8, "big")',
)
RETRIES_NOT_RESTORED = Patch(
    "rc/send_queue.py",
    "        self.retries = attr.retry_cnt\n"
    "        self.rnr_retries = attr.rnr_retry\n"
    "        self.probing = False\n",
    "        self.rnr_retries = attr.rnr_retry\n        self.probing = False\n",
)
NAKS_COMPLETE_NOTHING = Patch(
    "rc/completer.py",
    "        if not self.acknowledge_before(habits.acknowledged_by_nak(sends, psn), now):\n"
    "            return\n        if code == NakCode.PSN",
    "        if code == NakCode.PSN",
)
LOCAL_INVALIDATE = "            done = qp.keys.invalidate(wr.invalidate_rkey, qp.pd, qp.number)\n"
LOCAL_INVALIDATE_KEEPS_THE_WINDOW = Patch(
    "rc/requester.py", LOCAL_INVALIDATE, "            done = True\n"
)
LOCAL_INVALIDATE_FAILS = Patch("rc/requester.py", LOCAL_INVALIDATE, "            done = False\n")
LOCAL_INVALIDATE_DOES_NOT_WAIT = Patch(
    "rc/requester.py",
    "            if self.sends.wqes[0] is not wqe:  # the local invalidate fence\n",
    "            if False:\n",
)
WINDOW_STAYS_KNOWN = Patch(
    "rc/memory.py",
    "    def _unbind(self, window: MemoryWindow) -> None:\n        self.generation += 1\n",
    "    def _unbind(self, window: MemoryWindow) -> None:\n",
)
LONGER_DATAGRAMS = Patch(
    "rc/unreliable.py",
    "            if qp.service is Service.UD and wqe.length > qp.mtu:\n",
    "            if qp.service is Service.UD and wqe.length > qp.mtu + 8:\n",
)
QKEY_OF_31_BITS = Patch(
    "rc/unreliable.py",
    "        if packet.qkey != qp.attr.qkey:\n",
    "        if (packet.qkey ^ qp.attr.qkey) & 0x7FFF_FFFF:\n",
)
ONE_READ_MORE = Patch(
    "rc/requester.py",
    "        if plan.is_answered and sends.reads >= self.qp.attr.max_rd_atomic:\n",
    "        if plan.is_answered and sends.reads > self.qp.attr.max_rd_atomic:\n",
)
OTHER_NAK_FOR_THE_PSN_BEHIND = Patch(
    "rc/responder.py",
    "        self.replies.append(Reply(psn, self.msn, _NAK | code))\n",
    "        if code == NakCode.REMOTE_ACCESS_ERROR:\n"
    "            psn, code = psn + 1 & MASK, NakCode.INVALID_REQUEST\n"
    "        self.replies.append(Reply(psn, self.msn, _NAK | code))\n",
)
IMMEDIATE_OF_A_WRITE = Patch(
    "rc/receive.py",
    "                imm_data=imm,\n",
    "                imm_data=imm ^ (opcode is WCOpcode.RECV_RDMA_WITH_IMM),\n",
)
REFUSED_WITH_ANOTHER_NAK = Patch(
    "rc/responder.py",
    "        self.replies.append(Reply(psn, self.msn, _NAK | code))\n",
    "        if code == NakCode.REMOTE_ACCESS_ERROR:\n"
    "            code = NakCode.INVALID_REQUEST\n"
    "        self.replies.append(Reply(psn, self.msn, _NAK | code))\n",
)
LAST_WITHOUT_ITS_KEY = Patch(
    "rc/receive.py",
    "        elif packet.form.has_invalidate:\n",
    "        elif packet.form.has_invalidate and packet.form.is_first:\n",
)
ONE_READ_LESS = Patch(
    "rc/requester.py",
    "        if plan.is_answered and sends.reads >= self.qp.attr.max_rd_atomic:\n",
    "        if plan.is_answered and sends.reads >= self.qp.attr.max_rd_atomic - 1:\n",
)

SEND_FIRST = Packet(int(OpCode.RC_SEND_FIRST), length=256)
INVALIDATING_LAST = Packet(int(OpCode.RC_SEND_LAST_WITH_INVALIDATE), length=5)
ASKED = Post(int(WROpcode.RDMA_READ), 8)

INVALIDATE = Post(int(WROpcode.LOCAL_INV))


def named(
    patch: Patch, *steps: Step, connection: Connection = USUAL, profile: Profile = SPEC
) -> Name:
    """The name of what a case shows on a device with a planted fault. profile: of the reference."""
    device = copied(Mutant("planted", (patch,)))[Emulation.__module__].Emulation
    case, testbed = Case(connection, steps), EmulatorTestbed(device)
    difference = testbed.replay(case, profile)
    assert difference is not None
    assert difference.step == len(steps) - 1
    return name_of(case, difference, profile, lambda other: testbed.replay(other, profile))


def test_an_ack_in_place_of_a_nak_is_no_other_ack() -> None:
    """It acknowledges the packet before, too, whose ACK is missing therefore."""
    through_the_window = {"reth.rkey": ("mw.rkey", 0), "reth.va": ("mw.va", 0)}
    name = named(
        LAST_INVALIDATES_NOTHING,
        wrong(SEND_FIRST, bth__ack_req=0),
        INVALIDATING_LAST,
        SEND.altered(held=True),
        WRITE.altered(fields=through_the_window),
    )

    assert ": ACK instead of NAK REMOTE_ACCESS_ERROR" in name.text
    assert name.rule.endswith("#invalidate")


def test_a_gap_that_leaves_a_message_in_a_shared_queue_is_no_fault_of_that_queue_alone() -> None:
    name = named(
        GAP_LEAVES_THE_MESSAGE,
        UC_SEND_FIRST,
        Packet(int(OpCode.UC_SEND_LAST), ("expected", 1)),
        connection=Connection(service="UC", srq=1),
    )

    assert name.text == (
        "UC_SEND_LAST (a packet of UC behind a gap): no completion LOC_LEN_ERR of a receive"
    )
    assert name.rule.endswith("#srq, docs/reference/transport.md#uc")


@pytest.mark.parametrize("short", [wrong(WRITE, bth__pad_count=3), WRITE.altered(cut=32)])
def test_a_write_that_arrives_shorter_than_its_reth_says_is_called_so(short: Packet) -> None:
    """Whether its padding makes it shorter or its end is missing, all else of it being right."""
    name = named(SHORTER_WRITE_TAKEN, short)

    assert name.text == (
        "WRITE_ONLY (a WRITE with less in its end than its RETH says): "
        "ACK instead of NAK INVALID_REQUEST"
    )
    assert name.rule == "C9-93; docs/reference/transport.md#write-length"


def test_a_read_beyond_the_limit_breaks_the_rule_of_that() -> None:
    name = named(ONE_READ_MORE, ASKED, ASKED, connection=Connection(max_rd_atomic=1))

    assert name.text.startswith("a posted RDMA_READ: READ_REQUEST instead of nothing")
    assert name.rule == "IBA 9.7.3.1; docs/reference/transport.md#read-limit"


def test_a_nak_says_all_that_is_wrong_in_it() -> None:
    name = named(OTHER_NAK_FOR_THE_PSN_BEHIND, wrong(READ, reth__rkey=0))

    assert name.text == (
        "READ_REQUEST (an unknown R_Key): "
        "NAK INVALID_REQUEST instead of NAK REMOTE_ACCESS_ERROR, with another bth.psn"
    )
    assert name.rule.endswith("#remote-key, docs/reference/transport.md#response-psn")


def test_a_nak_in_place_of_one_for_an_earlier_packet_may_have_its_own_psn() -> None:
    ahead = SEND.altered(psn=("expected", 1))
    case = Case(steps=(ahead,))
    (due,) = _answers(case)
    (refusal,) = _answers(Case(steps=(wrong(READ, reth__rkey=0).altered(psn=("expected", 0)),)))
    other = bytearray(refusal)
    other[51:54] = (int.from_bytes(other[51:54]) + 1).to_bytes(3)  # the PSN of the BTH

    name = name_of(case, Difference(0, Kind.ANSWER, [due], [bytes(other)]), SPEC)

    assert name.text.endswith("NAK REMOTE_ACCESS_ERROR instead of NAK PSN_SEQUENCE_ERROR")


def _answers(case: Case) -> Sequence[bytes]:
    (moment,) = moments(case, SPEC)
    return [frame for _, frame in moment.answers]


def test_what_is_sent_for_the_first_time_is_not_retransmitted() -> None:
    """In a wait its own timer may let a device begin a request, too."""
    case = Case(steps=(Post(int(WROpcode.RDMA_WRITE)), Wait(1)))
    never_sent = Case(steps=(Post(int(WROpcode.RDMA_WRITE)), Post(int(WROpcode.RDMA_WRITE))))
    frames = [moment.answers[0][1] for moment in moments(never_sent, SPEC)]

    names = [
        name_of(case, Difference(1, Kind.TIME, [9], [8], frames=[frame]), SPEC) for frame in frames
    ]

    assert [each.text.partition(": ")[2] for each in names] == [
        "it retransmits WRITE_ONLY too early",
        "it sends WRITE_ONLY too early",
    ]


def test_a_part_of_a_completion_that_has_a_finding_is_not_named_again() -> None:
    """Although the same completion shows both, and no other one the second."""
    findings = found(EVERY_LENGTH, IMMEDIATE_OF_A_WRITE, packets=2_000)

    assert [each.bucket.partition(": ")[2] for each in findings] == [
        "completion with another byte_len",
        "completion with another imm_data",
    ]
    assert findings[1].case.choices == {"unchecked": "completion.byte_len"}


def test_an_ack_of_psn_0_is_at_the_wrap() -> None:
    ignored = Patch(
        "rc/completer.py", "        if kind is _ACK:\n", "        if kind is _ACK and psn:\n"
    )
    name = named(
        ignored,
        Post(int(WROpcode.RDMA_WRITE)),
        Packet(ACK, ("una", 0)),
        connection=replace(USUAL, sq_psn=0),
    )

    assert name.text.startswith("ACKNOWLEDGE (an ACK at the PSN wrap)")


def test_another_path_mtu_does_not_explain_what_is_wrong_in_something_else() -> None:
    """A WRITE of another path MTU is refused with the same NAK; here its key is wrong."""
    name = named(
        REFUSED_WITH_ANOTHER_NAK,
        wrong(Packet(int(OpCode.RC_RDMA_WRITE_FIRST), length=1024), reth__rkey=("rkey", -4)),
        connection=Connection(mtu=1024),
    )

    assert name.text.endswith("NAK INVALID_REQUEST instead of NAK REMOTE_ACCESS_ERROR")
    assert name.rule.endswith("#remote-key")


def test_two_wrong_parts_of_one_finding_are_not_named_one_by_one() -> None:
    findings = found(LAST_WITHOUT_ITS_KEY, packets=2_000)

    assert [each.bucket.partition(": ")[2] for each in findings] == [
        "completion without the flag WITH_INV"
    ]


def test_a_limit_of_many_reads_is_the_same_one_as_of_few() -> None:
    """A case of more steps than other limits are tried on may be about the same limit."""
    few, many = (
        named(ONE_READ_LESS, *[ASKED] * limit, connection=Connection(max_rd_atomic=limit))
        for limit in (2, 12)
    )

    assert few.group in many.wider


def test_the_completion_of_a_held_packet_is_not_that_of_the_packet_after_it() -> None:
    first = Packet(int(OpCode.RC_RDMA_WRITE_FIRST), length=256, fields={"reth.dma_len": 257})
    last = Packet(int(OpCode.RC_RDMA_WRITE_LAST_WITH_IMMEDIATE), length=1, held=True)
    too_short = Packet(int(OpCode.RC_SEND_FIRST))

    name = named(LENGTH_OF_THE_LAST_PACKET, first, last, too_short)

    assert name.text == "WRITE_LAST_WITH_IMMEDIATE: completion with another byte_len"
    assert name.rule.endswith("#completion-fields")


def test_what_a_send_shows_of_a_response_has_the_cause_of_that() -> None:
    asked = Post(int(WROpcode.ATOMIC_CMP_AND_SWP))
    answer = wrong(
        Packet(int(OpCode.RC_ATOMIC_ACKNOWLEDGE), ("una", 0)),
        atomicacketh__orig=0x102030405060708,
    )
    at_once = named(ATOMIC_RESULT_REVERSED, asked, answer)
    sent = Post(int(WROpcode.SEND), OUTBOX)
    later = named(ATOMIC_RESULT_REVERSED, asked, answer.altered(held=True), sent)

    assert later.text == "a posted SEND after ATOMIC_ACKNOWLEDGE: SEND_FIRST with other data"
    assert later.rule.endswith("#atomics")
    assert set(at_once.causes) & set(later.causes)


def test_a_device_that_has_used_up_its_retries_breaks_the_rule_of_those() -> None:
    ack = Packet(ACK, ("una", 0))
    name = named(
        RETRIES_NOT_RESTORED,
        *[Post(int(WROpcode.SEND)), Wait(8_020_000_000), ack],
        *[Post(int(WROpcode.ATOMIC_WRITE)), ack],
        connection=Connection(timeout=8),
    )

    assert name.text.endswith("RETRY_EXC_ERR instead of ATOMIC_WRITE")
    assert name.rule.endswith("#retry-count")


def test_a_reserved_nak_behind_a_read_is_an_implied_nak() -> None:
    name = named(
        NAKS_COMPLETE_NOTHING,
        Post(int(WROpcode.ATOMIC_WRITE)),
        Post(int(WROpcode.RDMA_READ)),
        wrong(Packet(ACK, ("una", 1)), aeth__syndrome=0x64),
    )

    assert name.text.startswith("ACKNOWLEDGE (a response behind an unanswered READ or atomic)")
    assert name.rule.endswith("#implied-nak")


def test_a_wrong_qkey_is_said_to_be_wrong() -> None:
    packet = wrong(Packet(int(OpCode.UD_SEND_ONLY)), deth__qkey=("qkey", 1 << 31))

    name = named(QKEY_OF_31_BITS, packet, connection=Connection(service="UD"))

    assert (
        name.text
        == "UD_SEND_ONLY (a wrong Q_Key): a completion SUCCESS of a receive, which is not due"
    )
    assert name.rule.endswith("#ud")


def test_a_packet_of_uc_with_an_old_psn_is_behind_no_gap() -> None:
    message_begun = UC_SEND_FIRST, Packet(int(OpCode.UC_SEND_LAST), ("expected", -1), length=1)

    name = named(
        GAP_LEAVES_THE_MESSAGE,
        *message_begun,
        Packet(int(OpCode.UC_SEND_LAST), length=1),
        connection=Connection(service="UC"),
    )

    assert " after a packet of UC with an old PSN" in name.text
    assert name.rule.endswith("#uc")


def test_a_window_that_a_local_invalidate_leaves_open_is_named_with_its_key() -> None:
    through = wrong(WRITE, reth__rkey=("mw.rkey", 0), reth__va=("mw.va", 0))
    name = named(LOCAL_INVALIDATE_KEEPS_THE_WINDOW, INVALIDATE, through)

    key = "the key of an invalidated memory window"
    assert name.text == f"WRITE_ONLY ({key}): ACK instead of NAK REMOTE_ACCESS_ERROR"
    assert name.rule.endswith("#memory-windows, docs/reference/transport.md#invalidate")


def test_a_write_that_goes_on_into_an_invalidated_window_has_the_rule_of_that() -> None:
    said = {"reth.rkey": ("mw.rkey", 0), "reth.va": ("mw.va", 0), "reth.dma_len": 264}
    first = Packet(int(OpCode.RC_RDMA_WRITE_FIRST), length=256, fields=said)
    last = Packet(int(OpCode.RC_RDMA_WRITE_LAST), length=8)
    name = named(WINDOW_STAYS_KNOWN, first, INVALIDATE, last)

    accused = "WRITE_LAST after a posted LOCAL_INV"
    assert name.text == f"{accused}: ACK instead of NAK REMOTE_ACCESS_ERROR"
    assert name.rule.endswith("#invalidate, docs/reference/transport.md#local-invalidate")


def test_how_a_local_invalidate_ends_has_its_rule() -> None:
    write = Post(int(WROpcode.RDMA_WRITE))
    name = named(LOCAL_INVALIDATE_FAILS, INVALIDATE)
    early = named(LOCAL_INVALIDATE_DOES_NOT_WAIT, write, INVALIDATE, write)

    assert name.text.startswith("a posted LOCAL_INV: completion LOC_QP_OP_ERR")
    assert early.text == "a posted RDMA_WRITE: WRITE_ONLY instead of nothing"
    assert {each.rule for each in (name, early)} == {
        "IBA 10.8.3.3; docs/reference/transport.md#local-invalidate"
    }


def test_a_datagram_that_is_too_long_has_the_rule_of_datagrams() -> None:
    long = Post(int(WROpcode.SEND), 4097)
    name = named(LONGER_DATAGRAMS, long, connection=Connection(service="UD"))

    assert name.text == "a posted SEND: OPCODE_0x60 instead of nothing"
    assert name.rule.endswith("#ud")
