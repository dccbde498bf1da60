"""Devices that do what the specification leaves open are not accused."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from examples import sampled
from fuzz.scripted import Scripted, scripted
from ibwire.base.units import S
from ibwire.fuzz.campaign import Campaign
from ibwire.fuzz.case import Case, Connection, Packet, Post, Receive, Role, Step, Wait
from ibwire.fuzz.judge.comparison import Kind
from ibwire.fuzz.recording import completion_text
from ibwire.fuzz.targets.emulated_device import RECEIVES, SENDS, Emulation
from ibwire.fuzz.targets.emulator import EmulatorTestbed
from ibwire.fuzz.vocabulary.vocabularies import vocabulary_for
from ibwire.rc.profile import SPEC
from ibwire.rc.work import WROpcode
from ibwire_layers.opcodes import OpCode
from mutants.engine import copied
from mutants.table import RIGHT, Mutant, Patch, read_mutants
from mutants.target import open_target

SEND = Packet(int(OpCode.RC_SEND_ONLY))
ACK = Packet(int(OpCode.RC_ACKNOWLEDGE), ("una", 0))
UNALIGNED = Packet(int(OpCode.RC_FETCH_ADD), fields={"atomiceth.va": ("end", -4)})
DATAGRAM = Packet(int(OpCode.UD_SEND_ONLY))
WRITE = Post(int(WROpcode.RDMA_WRITE), 8)

SOURCE_OF_RC = Patch(
    "rc/receive.py",
    "        size = self.filled if byte_len is None else byte_len",
    "        size = self.filled if byte_len is None else byte_len\n"
    "        src_qp = src_qp or 0x123",
)
IMMEDIATE_WITHOUT_FLAG = Patch("rc/receive.py", "        imm = 0\n", "        imm = 0xBADBAD\n")
PKEY_INDEX = Patch(
    "rc/completion.py", "        pkey_index: int = 0,", "        pkey_index: int = 3,"
)
LENGTH_OF_SENDS = Patch(
    "rc/send_queue.py",
    "byte_len=wqe.length if wqe.plan.is_answered else 0,",
    "byte_len=wqe.length,",
)
ERRORS_UNSOLICITED = Patch(
    "rc/receive.py", "        solicited: bool = True,", "        solicited: bool = False,"
)
SCATTER_BEGINS = Patch(
    "rc/sge.py",
    "    if pieces is None:\n        return False\n    done = 0\n",
    "    if pieces is None:\n"
    "        if len(sges) > 1 and offset < sges[0].length:\n"
    "            scatter(keys, pd, sges[:1], offset, data[: sges[0].length - offset])\n"
    "        return False\n"
    "    done = 0\n",
)
BEFORE_THE_HEADER = Patch(
    "rc/unreliable.py",
    "        grh = grh or bytes(GRH_SIZE)\n",
    "        grh = grh or bytes(GRH_SIZE)\n"
    "        if len(grh) == GRH_SIZE and not any(grh[:20]):\n"
    "            grh = bytes([0xA5]) * 20 + grh[20:]\n",
)
IN_THE_HEADER = Patch(
    "rc/unreliable.py",
    "        grh = grh or bytes(GRH_SIZE)\n",
    "        grh = grh or bytes(GRH_SIZE)\n        grh = grh[:20] + bytes([0xA5]) * 20\n",
)

NO_ADDRESS_OF_NO_BYTES = Patch(
    "rc/requester.py",
    "packet.va, packet.rkey, packet.dma_len = wr.remote_addr, wr.rkey, wqe.length",
    "packet.va, packet.rkey, packet.dma_len = (\n"
    "                (wr.remote_addr, wr.rkey, wqe.length) if wqe.length else (0, 0, 0)\n"
    "            )",
)
ANOTHER_ADDRESS = Patch(
    "rc/requester.py",
    "packet.va, packet.rkey, packet.dma_len = wr.remote_addr, wr.rkey, wqe.length",
    "packet.va, packet.rkey, packet.dma_len = wr.remote_addr + 1, wr.rkey, wqe.length",
)
FILLS_BEFORE_IT_REFUSES = Patch(
    "rc/responder.py",
    "        if not receives.fits(len(packet.payload)):\n",
    "        if not receives.fits(len(packet.payload)):\n"
    "            receives.fill(packet.payload[: receives.room - receives.filled])\n",
)
STORES_ONE_BYTE_LESS = Patch(
    "rc/receive.py",
    "if not scatter(self.qp.keys, self._pd, sges, self.filled, data):",
    "if not scatter(self.qp.keys, self._pd, sges, self.filled, data[:-1]):",
)
ROOM_OF_5 = Connection(service="UC", room=5)
TOO_LONG, SHORT = (Packet(int(OpCode.UC_SEND_ONLY), length=size, at=7) for size in (8, 3))
DATAGRAMS = Connection(service="UD", sges=5, room=1064)
WRONG_KEY = Connection(service="UD", sges=5, room=1064, wrong_lkey=5)
READ = Post(int(WROpcode.RDMA_READ), 513, sges=2, wrong_lkey=2)
ANSWER = Packet(int(OpCode.RC_RDMA_READ_RESPONSE_FIRST), ("una", 0), length=512)


DEVICES = read_mutants(RIGHT)


@pytest.mark.parametrize("name", sampled(DEVICES, 5))
def test_a_right_device_of_somebody_else_is_not_accused(name: str) -> None:
    role = Role(DEVICES[name].role)
    vocabulary = vocabulary_for(role)
    make = vocabulary.generators(31, role)
    campaign = Campaign(open_target(name, f"{RIGHT}:{name}").testbed(role), make)

    assert [each.bucket for each in campaign.run(3000)] == []


def device(patch: Patch) -> EmulatorTestbed:
    """An emulator that is changed."""
    return EmulatorTestbed(copied(Mutant("changed", (patch,)))[Emulation.__module__].Emulation)


@pytest.mark.parametrize(
    ("patch", "case"),
    [
        (SOURCE_OF_RC, Case(Connection(), (SEND,))),
        (IMMEDIATE_WITHOUT_FLAG, Case(Connection(), (SEND,))),
        (PKEY_INDEX, Case(Connection(), (SEND,))),
        (PKEY_INDEX, Case(DATAGRAMS, (DATAGRAM,))),
        (LENGTH_OF_SENDS, Case(Connection(), (WRITE, ACK))),
        (ERRORS_UNSOLICITED, Case(Connection(), (UNALIGNED,))),
    ],
)
def test_a_field_of_a_completion_that_is_not_valid_is_not_compared(
    patch: Patch, case: Case
) -> None:
    assert device(patch).replay(case, SPEC) is None


@pytest.mark.parametrize(
    ("patch", "case"),
    [
        (SCATTER_BEGINS, Case(WRONG_KEY, (DATAGRAM.altered(length=1024),))),
        (SCATTER_BEGINS, Case(Connection(mtu=512), (READ, ANSWER))),
        (BEFORE_THE_HEADER, Case(DATAGRAMS, (DATAGRAM, DATAGRAM))),
        (FILLS_BEFORE_IT_REFUSES, Case(ROOM_OF_5, (TOO_LONG, SHORT))),
    ],
)
def test_memory_that_has_no_meaning_is_not_compared(patch: Patch, case: Case) -> None:
    assert device(patch).replay(case, SPEC) is None


def test_what_a_message_of_uc_stores_behind_one_that_was_dropped_is_compared() -> None:
    wrong = copied(Mutant("changed", (FILLS_BEFORE_IT_REFUSES, STORES_ONE_BYTE_LESS)))
    testbed = EmulatorTestbed(wrong[Emulation.__module__].Emulation)

    difference = testbed.replay(Case(ROOM_OF_5, (TOO_LONG, SHORT.altered(at=9))), SPEC)

    assert difference is not None
    assert (difference.step, difference.kind) == (1, Kind.MEMORY)


def test_the_header_before_a_datagram_is_compared() -> None:
    difference = device(IN_THE_HEADER).replay(Case(DATAGRAMS, (DATAGRAM,)), SPEC)

    assert difference is not None
    assert difference.kind is Kind.MEMORY


@pytest.mark.parametrize(
    ("completion", "text"),
    [
        ((RECEIVES, 0, 5, 0, 0, 0, 0, 0, 17, 0), "recv wr_id=0 WR_FLUSH_ERR qp_num=17"),
        ((RECEIVES, 0, 0, 128, 8, 0, 0), "recv wr_id=0 SUCCESS RECV byte_len=8 flags=0"),
        (
            (RECEIVES, 1, 0, 128, 8, 0x2E2F, 8),
            "recv wr_id=1 SUCCESS RECV byte_len=8 invalidated_rkey=0x2e2f flags=WITH_INV",
        ),
        (
            (RECEIVES, 1, 0, 128, 48, 7, 3, 0, 18, 291),
            "recv wr_id=1 SUCCESS RECV byte_len=48 imm_data=0x7 flags=GRH+WITH_IMM"
            " solicited=0 qp_num=18 src_qp=0x123",
        ),
        ((SENDS, 2, 0, 1), "send wr_id=2 SUCCESS RDMA_WRITE"),
        ((SENDS, 2, 0, 2, 8, 0, 0, 0, 17, 0), "send wr_id=2 SUCCESS RDMA_READ byte_len=8"
         " solicited=0 qp_num=17"),
    ],
)  # fmt: skip
def test_a_completion_is_written_with_what_is_valid_in_it(
    completion: tuple[int, ...], text: str
) -> None:
    assert completion_text(completion) == text


def test_a_write_of_no_bytes_has_any_address_and_key() -> None:
    """C9-88; reference/transport#zero-length."""
    empty = Post(int(WROpcode.RDMA_WRITE))
    assert device(NO_ADDRESS_OF_NO_BYTES).replay(Case(Connection(), (empty,)), SPEC) is None
    assert device(ANOTHER_ADDRESS).replay(Case(Connection(), (WRITE,)), SPEC) is not None


SEGMENTS = "        if 0 < profile.max_unacked_messages <= sends.cursor:"
FENCES = "        if wqe.fence and sends.reads:"
ALIGNED = (
    "        if packet.va & 7 or packet.dma_len != 8 or len(packet.payload) != 8:\n"
    "            return self._refuse(packet)\n"
)
RKEY_FIRST = Patch(
    "rc/responder.py",
    ALIGNED,
    "        grants = qp.keys.grants\n"
    "        if not grants(self._pd, qp.number, packet.rkey, packet.va, 8, _REMOTE_WRITE):\n"
    "            return self._refuse(packet, NakCode.REMOTE_ACCESS_ERROR)\n" + ALIGNED,
)
FENCE_FOR_ALL = Patch("rc/requester.py", FENCES, "        if wqe.fence and sends.cursor:")
MESSAGES_WAIT = Patch(
    "rc/requester.py",
    SEGMENTS,
    "        if plan.is_segmented and sends.reads:\n            return False\n" + SEGMENTS,
)
UNALIGNED_WRITE = Packet(
    int(OpCode.RC_ATOMIC_WRITE), length=8, fields={"reth.va": ("va", 4), "reth.rkey": 0}
)
UNALIGNED_ONLY = UNALIGNED_WRITE.altered(fields={"reth.va": ("va", 4)})
FENCED = Post(int(WROpcode.RDMA_WRITE), 8, fence=True)
READ_8 = Post(int(WROpcode.RDMA_READ), 8)
READ_ANSWER = Packet(int(OpCode.RC_RDMA_READ_RESPONSE_ONLY), ("una", 0), length=8)


def campaign(patch: Patch, *steps: Step) -> Campaign:
    """A run with one case against an emulator that is changed."""
    return run_of(Case(Connection(timeout=0), steps), patch)


@pytest.mark.parametrize(
    ("name", "patch", "steps"),
    [
        ("atomic_write_alignment_first", RKEY_FIRST, (UNALIGNED_WRITE,)),
        ("fence_waits_for_all", FENCE_FOR_ALL, (WRITE, FENCED, ACK)),
        ("messages_wait_for_reads", MESSAGES_WAIT, (READ_8, WRITE, READ_ANSWER)),
    ],
)
def test_a_choice_of_the_device_is_taken_over(
    name: str, patch: Patch, steps: tuple[Step, ...]
) -> None:
    run = campaign(patch, *steps)

    assert run.one_case(100) is None
    assert list(run.report.taken) == [name]


UNALIGNED_IS_ACCESS_ERROR = Patch(
    "rc/responder.py",
    ALIGNED,
    "        if packet.va & 7:\n"
    "            return self._refuse(packet, NakCode.REMOTE_ACCESS_ERROR)\n" + ALIGNED,
)
FENCE_FOR_NOTHING = Patch("rc/requester.py", FENCES, "        if wqe.fence and not wqe:")
MESSAGE_NEVER_BEGINS = Patch(
    "rc/requester.py",
    SEGMENTS,
    "        if plan.is_segmented and wqe.ssn > 1:\n            return False\n" + SEGMENTS,
)


@pytest.mark.parametrize(
    ("patch", "steps"),
    [
        (UNALIGNED_IS_ACCESS_ERROR, (UNALIGNED_ONLY,)),
        (FENCE_FOR_NOTHING, (READ_8, FENCED)),
        (MESSAGE_NEVER_BEGINS, (READ_8, WRITE, READ_ANSWER)),
    ],
)
def test_a_fault_that_is_nearly_such_a_choice_is_found(
    patch: Patch, steps: tuple[Step, ...]
) -> None:
    assert campaign(patch, *steps).one_case(100) is not None


READS = "sends.reads >= self.qp.attr.max_rd_atomic:"
AFTER_RNR = "            timers.rnr = None\n            self.restart(self.una)\n"
RNR_CODE = "        timer = qp.attr.min_rnr_timer & 31\n"
CREDITS = "            return credit_code(len(self.receives.waiting))\n"
RNR_NAK = ACK.altered(fields={"aeth.syndrome": 33})
TEN_READS = Case(Connection(timeout=0, max_rd_atomic=10), (READ_8,) * 11)
AFTER_A_WAIT = Case(Connection(timeout=0), (WRITE, WRITE, WRITE, RNR_NAK, Wait(20000000), ACK))
NOT_READY = Case(Connection(timeout=0, receives=0, min_rnr_timer=7), (SEND,))
INVALIDATING = Packet(int(OpCode.RC_SEND_ONLY_WITH_INVALIDATE))
INVALIDATED_TWICE = Case(Connection(timeout=0), (INVALIDATING, INVALIDATING))
GIVES_CREDITS = Case(Connection(timeout=0, receives=7), (SEND,))


def run_of(case: Case, *patches: Patch) -> Campaign:
    """A run with a case against an emulator that is changed."""
    made = copied(Mutant("changed", patches))[Emulation.__module__].Emulation
    return Campaign(EmulatorTestbed(made), lambda number: scripted(case), minimises=False)


@pytest.mark.parametrize(
    ("name", "patch", "case"),
    [
        (
            "reads_divided_by",
            Patch(
                "rc/requester.py", READS, "sends.reads >= max(self.qp.attr.max_rd_atomic // 2, 1):"
            ),
            TEN_READS,
        ),
        (
            "max_unacked_reads",
            Patch("rc/requester.py", READS, "sends.reads >= min(self.qp.attr.max_rd_atomic, 3):"),
            TEN_READS,
        ),
        (
            "rnr_wait_sends_one",
            Patch("rc/send_queue.py", AFTER_RNR, AFTER_RNR + "            self.probe = True\n"),
            AFTER_A_WAIT,
        ),
        (
            "rnr_nak_steps",
            Patch("rc/responder.py", RNR_CODE, RNR_CODE + "        timer += 0 < timer < 31\n"),
            NOT_READY,
        ),
        (
            "credits_divided_by",
            Patch("rc/responder.py", CREDITS, CREDITS.replace("waiting)", "waiting) // 2")),
            GIVES_CREDITS,
        ),
        (
            "frees_windows_again",
            Patch(
                "rc/memory.py",
                "if window is None or window.kind == 1",
                "if window is None or window.state is WindowState.FREE or window.kind == 1",
            ),
            INVALIDATED_TWICE,
        ),
    ],
)
def test_a_limit_that_a_device_sets_itself_is_taken_over(
    name: str, patch: Patch, case: Case
) -> None:
    """reference/transport#read-limit, #psn-window, #rnr-timer, #credits-granted."""
    run = run_of(case, patch)

    assert run.one_case(100) is None
    assert list(run.report.taken) == [name]


@pytest.mark.parametrize(
    ("patch", "case"),
    [
        (Patch("rc/requester.py", READS, "sends.reads > self.qp.attr.max_rd_atomic:"), TEN_READS),
        (
            Patch("rc/send_queue.py", AFTER_RNR, "            timers.rnr = None\n"),
            AFTER_A_WAIT,
        ),
        (Patch("rc/responder.py", RNR_CODE, RNR_CODE + "        timer -= timer > 1\n"), NOT_READY),
        (
            Patch("rc/responder.py", RNR_CODE, RNR_CODE + "        timer += timer == 7\n"),
            NOT_READY,
        ),
        (
            Patch("rc/responder.py", CREDITS, CREDITS.replace("waiting)", "waiting) * 2")),
            GIVES_CREDITS,
        ),
    ],
)
def test_a_fault_that_is_nearly_such_a_limit_is_found(patch: Patch, case: Case) -> None:
    assert run_of(case, patch).one_case(100) is not None


NEW_CREDITS = "            self._acknowledge(self.epsn - 1 & MASK)\n"
NO_NEW_CREDITS = Patch("rc/responder.py", NEW_CREDITS, "            pass\n")
CREDITS_OF_ANOTHER_PSN = Patch("rc/responder.py", NEW_CREDITS, NEW_CREDITS.replace("1", "2"))
WITHOUT_CREDITS = Case(Connection(timeout=0, receives=1), (SEND, Receive(1), Receive(1), SEND))


def test_new_credits_may_wait_for_the_next_ack() -> None:
    """reference/transport#credits-granted. An ACK that carries them is compared."""
    assert run_of(WITHOUT_CREDITS, NO_NEW_CREDITS).one_case(100) is None
    assert run_of(WITHOUT_CREDITS, CREDITS_OF_ANOTHER_PSN).one_case(100) is not None


ASKED = "            if packet.ack_req and operation in _ACKNOWLEDGED:\n"
EVERY_FOURTH = Patch(
    "rc/responder.py",
    ASKED,
    "            if (packet.ack_req or not packet.psn & 3) and operation in _ACKNOWLEDGED:\n",
)
ANSWERS = "    def _answer(self, resource: Resource) -> None:\n"
NO_ACK_BEFORE_RESPONSE = Patch(
    "rc/responder.py",
    ANSWERS,
    ANSWERS + "        last = self.replies[-1] if self.replies else None\n"
    "        if last is not None and last.resource is None and last.syndrome is None:\n"
    "            self.replies.pop()\n",
)
UNASKED = SEND.altered(fields={"bth.ack_req": 0})
HELD = SEND.altered(held=True)
HELD_UNASKED = UNASKED.altered(held=True)
READ_REQUEST = Packet(int(OpCode.RC_RDMA_READ_REQUEST), fields={"reth.dma_len": 8})
"""PSNs begin at a multiple of four."""


@pytest.mark.parametrize(
    ("patch", "steps"),
    [
        (EVERY_FOURTH, (UNASKED, UNASKED)),
        (EVERY_FOURTH, (HELD_UNASKED, UNASKED)),
        (EVERY_FOURTH, (HELD_UNASKED, SEND)),
        (EVERY_FOURTH, (HELD, HELD_UNASKED, READ_REQUEST)),
        (EVERY_FOURTH, (SEND, HELD, HELD, HELD, UNASKED)),
        (EVERY_FOURTH, (UNASKED, UNASKED, UNASKED, UNASKED, Receive(1))),  # with the same credits
        (NO_ACK_BEFORE_RESPONSE, (HELD, READ_REQUEST)),
        (NO_ACK_BEFORE_RESPONSE, (HELD, READ_REQUEST.altered(held=True), SEND)),
    ],
)
def test_an_ack_that_need_not_be_sent_may_be(patch: Patch, steps: tuple[Step, ...]) -> None:
    """IBA 9.7.5.1.2; reference/transport#ack-due, #ack-coalescing."""
    case = Case(Connection(rq_psn=100, receives=4), steps)

    assert device(patch).replay(case, SPEC) is None


WRONG_UNASKED = Patch(
    "rc/responder.py",
    ASKED,
    "            if not packet.ack_req:\n"
    "                self._acknowledge(packet.psn - 1 & MASK)\n" + ASKED,
)
EARLY_MSN = Patch(
    "rc/responder.py",
    ASKED,
    "            if not packet.ack_req:\n"
    "                self._acknowledge(packet.psn)\n"
    "                self.msn = self.msn + 1 & MASK\n" + ASKED,
)
NO_ACK = Patch("rc/responder.py", ASKED, ASKED.replace("packet.ack_req and", "0 and"))
CREDITS_OF_UNASKED = Patch(
    "rc/responder.py",
    "                packet.syndrome = self._credits(msn)\n            else:",
    "                packet.syndrome = self._credits(msn) + 1\n            else:",
)


@pytest.mark.parametrize(
    ("patch", "steps"),
    [
        (WRONG_UNASKED, (UNASKED,)),
        (EARLY_MSN, (UNASKED,)),
        (NO_ACK, (SEND,)),
        (NO_ACK, (HELD, UNASKED)),
        (CREDITS_OF_UNASKED, (HELD_UNASKED, SEND)),
    ],
)
def test_a_wrong_ack_or_none_at_all_is_found(patch: Patch, steps: tuple[Step, ...]) -> None:
    case = Case(Connection(rq_psn=100, receives=4), steps)

    assert device(patch).replay(case, SPEC) is not None


KEEPS = "len(resources) > max(self.qp.attr.max_dest_rd_atomic, 1)"
KEEPS_ONE_MORE, KEEPS_MANY = (
    Patch("rc/responder.py", KEEPS, more) for more in (f"{KEEPS} + 1", "len(resources) > 128")
)
ADD = Packet(int(OpCode.RC_FETCH_ADD), fields={"atomiceth.swap": 1})
LONG_READ = READ_REQUEST.altered(fields={"reth.dma_len": 1024})
OLD_READ, OLD_ADD = (
    each.altered(psn=("expected", -back)) for each, back in ((LONG_READ, 5), (ADD, 2))
)


@pytest.mark.parametrize("patch", [KEEPS_ONE_MORE, KEEPS_MANY])
@pytest.mark.parametrize(
    "steps",
    [
        (ADD, ADD, OLD_ADD),
        (LONG_READ, ADD, OLD_READ, OLD_READ),
        (LONG_READ, OLD_READ.altered(psn=("expected", -4), held=True), ADD),  # forgotten meanwhile
    ],
)
def test_a_device_may_keep_more_responses_than_it_must(
    patch: Patch, steps: tuple[Step, ...]
) -> None:
    """reference/transport#saved-resources."""
    case = Case(Connection(rq_psn=100, max_dest_rd_atomic=1), steps)

    assert device(patch).replay(case, SPEC) is None


ANOTHER_RESULT = Patch(
    "rc/responder.py",
    "                self._replay(result, 0)\n",
    "                result.original += 1\n                self._replay(result, 0)\n",
)
FORGETS = Patch("rc/responder.py", KEEPS, f"{KEEPS} - 1")


@pytest.mark.parametrize(
    ("patches", "most", "steps"),
    [
        ((KEEPS_MANY, ANOTHER_RESULT), 1, (ADD, ADD, OLD_ADD)),
        ((FORGETS,), 2, (ADD, ADD, OLD_ADD)),
    ],
)
def test_a_wrong_result_or_one_that_is_not_kept_is_found(
    patches: tuple[Patch, ...], most: int, steps: tuple[Step, ...]
) -> None:
    made = copied(Mutant("changed", patches))[Emulation.__module__].Emulation
    case = Case(Connection(rq_psn=100, max_dest_rd_atomic=most), steps)

    assert EmulatorTestbed(made).replay(case, SPEC) is not None


OF_TWO = (LONG_READ.altered(held=True), LONG_READ.altered(held=True, pair=1), SEND)


SHORT_FIRST = Packet(int(OpCode.RC_RDMA_WRITE_FIRST))
FLUSHED = HELD.altered(pair=1), SHORT_FIRST.altered(held=True, pair=1), SHORT_FIRST


@pytest.mark.parametrize("steps", [OF_TWO, FLUSHED, (*OF_TWO[:2], Wait(S))])
def test_a_queue_pair_may_send_several_packets_in_its_turn(steps: tuple[Step, ...]) -> None:
    """Reference/habits#qp-turns."""
    several = replace(SPEC, burst_packets=4)
    testbed = EmulatorTestbed(partial(Emulation, profile=several))

    assert testbed.replay(Case(Connection(pairs=2), steps), SPEC) is None


def test_responses_of_one_queue_pair_in_another_order_are_found() -> None:
    last_first = Patch(
        "rc/responder.py",
        "        reply = replies[0]\n",
        "        replies.rotate(1)\n        reply = replies[0]\n",
    )

    assert device(last_first).replay(Case(Connection(pairs=2), OF_TWO), SPEC) is not None


def timer(factor: str) -> Patch:
    """A device whose ACK timer runs longer by a factor, in which `used` is how many retries are."""
    return Patch(
        "rc/requester.py",
        "timers.rnr is None:\n                timers.ack = now + sends.ack_wait\n",
        "timers.rnr is None:\n"
        "                used = qp.attr.retry_cnt - sends.retries\n"
        f"                timers.ack = now + sends.ack_wait * ({factor})\n",
    )


NAK = ACK.altered(fields={"aeth.syndrome": 0x60})
ALL_RETRIES = (WRITE, Wait(3 * S))
WITH_PROGRESS = (WRITE, WRITE, Wait(S // 4), ACK, Wait(S))
WITH_NAK = (WRITE, WRITE, NAK, Wait(S // 4), NAK.altered(psn=("una", 1)), Wait(S))
WITH_RNR_NAK = (WRITE, Wait(S // 4), ACK.altered(fields={"aeth.syndrome": 0x20}), Wait(S))


@pytest.mark.parametrize("steps", [ALL_RETRIES, WITH_PROGRESS, WITH_NAK, WITH_RNR_NAK])
@pytest.mark.parametrize(
    ("factor", "percents"),
    [
        ("2 if used else 1", "(100, 200)"),
        ("min(1 << used, 4)", "(100, 200, 400)"),
        ("(1, 3, 2, 4)[used & 3]", "(100, 300, 200, 400, 100, 300, 200)"),
    ],
)
def test_an_ack_timer_that_runs_longer_after_a_retry_is_measured(
    factor: str, percents: str, steps: tuple[Step, ...]
) -> None:
    """C9-141; reference/transport#ack-timeout."""
    run = Campaign(device(timer(factor)), lambda number: Scripted(*steps), minimises=False)

    assert run.one_case(100) is None
    assert run.report.taken["ack_timer_percents"] == percents


def test_an_ack_timer_that_runs_longer_from_the_beginning_is_measured_too() -> None:
    after_progress = Patch(
        "rc/send_queue.py",
        "None if self.ack_wait is None else now + self.ack_wait",
        "None if self.ack_wait is None else now + 3 * self.ack_wait",
    )
    made = copied(Mutant("longer", (timer("4 if used else 3"), after_progress)))
    case = Case(Connection(), ALL_RETRIES)
    testbed = EmulatorTestbed(made[Emulation.__module__].Emulation)
    run = Campaign(testbed, lambda number: scripted(case), minimises=False)

    assert run.one_case(100) is None
    assert run.report.taken["ack_timer_percents"] == "(300, 400)"


@pytest.mark.parametrize(
    "factor",
    ["min(1 << used, 8)", "5 if used else 1", "1 + 7 * (used == 3)", "1 - used // 7"],
)
def test_an_ack_timer_that_runs_too_long_or_too_short_after_a_retry_is_found(factor: str) -> None:
    run = Campaign(
        device(timer(factor)),
        lambda number: scripted(Case(Connection(), ALL_RETRIES)),
        minimises=False,
    )

    assert run.one_case(100) is not None


def rnr_wait_of(time: str) -> Patch:
    """A device that waits until another time after an RNR NAK."""
    return Patch("rc/send_queue.py", "now + rnr_wait(code, self.qp.profile)\n", f"{time}\n")


BY_CLOCK = timer("1 + now // 1_000_000 % 4")
BY_QUEUE_PAIR = timer("1 + qp.number % 2")
AFTER_PROGRESS = Patch(
    "rc/send_queue.py",
    "None if self.ack_wait is None else now + self.ack_wait",
    "None if self.ack_wait is None else (now // self.ack_wait + 2) * self.ack_wait",
)
RNR_BY_CLOCK = rnr_wait_of("-(-(now + rnr_wait(code, self.qp.profile)) // 64_000_000) * 64_000_000")
RNR_BY_PSN = rnr_wait_of("now + rnr_wait(code, self.qp.profile) * (1 + (self.una & 1))")
TIMEOUTS = (Wait(S // 7), WRITE, WRITE, Wait(S // 70), ACK, Wait(3 * S))
RNR_NAK = ACK.altered(fields={"aeth.syndrome": 0x21})
RNR_WAITS = (WRITE, RNR_NAK, Wait(S // 50), ACK, Wait(S // 700), WRITE, RNR_NAK, Wait(S // 50))


def followed(*patches: Patch, steps: tuple[Step, ...], **attr: int) -> tuple[str | None, bool]:
    """What is found in a case of a device, and whether its timers are taken for varying ones."""
    made = copied(Mutant("changed", patches))[Emulation.__module__].Emulation
    case = Case(Connection(**attr), steps)
    run = Campaign(EmulatorTestbed(made), lambda number: scripted(case), minimises=False)
    found = run.one_case(100)
    return None if found is None else found.bucket, "timers_vary" in run.report.taken


@pytest.mark.parametrize(
    "patch", [BY_CLOCK, BY_QUEUE_PAIR, AFTER_PROGRESS, RNR_BY_CLOCK, RNR_BY_PSN]
)
def test_a_device_may_wait_for_another_time_each_time(patch: Patch) -> None:
    """C9-141, IBA 9.7.5.2.8; reference/transport#ack-timeout, #rnr-wait."""
    steps = (*TIMEOUTS[:-1], Wait(S // 7), ACK, *RNR_WAITS)

    assert followed(patch, steps=steps, pairs=2) == (None, True)


def test_a_device_whose_waits_vary_makes_no_choice_of_a_constant_length() -> None:
    wheel = Patch(BY_CLOCK.module, BY_CLOCK.old, BY_CLOCK.new.replace("// 1_000_000 % 4", "* 0"))
    made = copied(Mutant("twice", (wheel, RNR_BY_PSN)))[Emulation.__module__].Emulation
    run = Campaign(EmulatorTestbed(made), lambda number: Scripted(*TIMEOUTS), minimises=False)

    assert run.one_case(100) is None
    assert dict(run.report.taken) == {"timers_vary": "True"}


GIVES_UP_EARLY = Patch(
    "rc/send_queue.py",
    "        if self.retries == 0:\n            if self.qp.migrate",
    "        if self.retries == 1:\n            if self.qp.migrate",
)
OTHER_PSN = Patch(
    "rc/send_queue.py",
    "                self.restart(self.una)\n                self._lengthen()",
    "                self.restart(self.una + (self.retries < 2))\n                self._lengthen()",
)
VARIES = "1 + now // 1_000_000 % 4"


@pytest.mark.parametrize(
    ("patches", "steps"),
    [
        ((timer(f"5 if used == 5 else {VARIES}"),), TIMEOUTS),
        ((timer(f"0 if used == 5 else {VARIES}"),), TIMEOUTS),
        ((BY_CLOCK, GIVES_UP_EARLY), TIMEOUTS),
        ((BY_CLOCK, OTHER_PSN), TIMEOUTS),
        ((rnr_wait_of("now + rnr_wait(code, self.qp.profile) * (self.una & 1)"),), RNR_WAITS),
        (
            (
                rnr_wait_of(
                    "now + rnr_wait(code, self.qp.profile) * (1 + (self.una & 1) * code**9)"
                ),
            ),
            (*RNR_WAITS[:-2], RNR_NAK.altered(fields={"aeth.syndrome": 0x2A}), Wait(S)),
        ),
    ],
    ids=["late", "early", "retries", "psn", "no-rnr-wait", "endless-rnr-wait"],
)
def test_a_device_whose_waits_vary_is_compared_in_all_else(
    patches: tuple[Patch, ...], steps: tuple[Step, ...]
) -> None:
    assert followed(*patches, steps=steps)[0] is not None
