"""What completes in a step whose packets differ is said, too: no side does nothing then."""

from __future__ import annotations

from dataclasses import replace

from fuzz.test_names_and_rules import named
from ibwire.fuzz.case import Case, Connection, Packet, Post, Step, Wait
from ibwire.fuzz.judge.choices import CHOICES
from ibwire.fuzz.recording import Recording, record
from ibwire.fuzz.targets.emulated_device import Emulation
from ibwire.fuzz.targets.emulator import Emulator
from ibwire.fuzz.vocabulary.vocabularies import QUEUE_PAIR
from ibwire.rc.work import WROpcode
from ibwire_layers.opcodes import OpCode
from mutants.engine import copied
from mutants.table import Mutant, Patch

TWO = Connection(pairs=2)
INVALIDATING = Packet(int(OpCode.RC_SEND_ONLY_WITH_INVALIDATE), pair=1)
ACK = Packet(int(OpCode.RC_ACKNOWLEDGE), ("una", 0))
ATOMIC = Post(int(WROpcode.ATOMIC_CMP_AND_SWP))

INVALIDATES_ANY_WINDOW = Patch(
    "rc/memory.py",
    "if window.state is WindowState.VALID and window.qp_num != qp_num:",
    "if window.state is WindowState.VALID and window.qp_num is None:",
)
PASSES_ATOMICS_OVER = Patch(
    "rc/completer.py",
    "            if wqe.plan.is_answered:\n                # Inside",
    "            if wqe.plan.is_answered and wqe.plan.operation not in _ATOMICS:\n"
    "                # Inside",
)
RNR_RETRIES_NOT_RESTORED = Patch(
    "rc/send_queue.py",
    "        self.rnr_retries = attr.rnr_retry\n        self.probing = False",
    "        self.probing = False",
)
MIGRATES_WITHOUT_RETRIES = Patch(
    "rc/send_queue.py",
    "                self.retries = self.qp.attr.retry_cnt\n                return True",
    "                return True",
)
RNR_TAKES_A_RETRY = Patch(
    "rc/send_queue.py",
    "        self.timers.rnr = now + rnr_wait(code, self.qp.profile)\n",
    "        self.retries = max(self.retries - 1, 0)\n"
    "        self.timers.rnr = now + rnr_wait(code, self.qp.profile)\n",
)
WRITE = Post(int(WROpcode.RDMA_WRITE), 257)
RNR_NAK = ACK.altered(fields={"aeth.syndrome": 0x21})
AS_RETRY = ", as if an RNR NAK used up one of the retries of retry_cnt"


def recorded(patch: Patch, *steps: Step, connection: Connection) -> Recording:
    """What comes of a case on a device with a planted fault."""
    device = copied(Mutant("planted", (patch,)))[Emulation.__module__].Emulation
    case = Case(connection, steps)
    return record(case, Emulator("planted", {QUEUE_PAIR.name: device}, lambda text: False))


def test_a_side_that_reports_an_error_does_not_do_nothing() -> None:
    """The reference refuses the request, the device completes it."""
    name = named(INVALIDATES_ANY_WINDOW, INVALIDATING, connection=TWO)
    recording = recorded(INVALIDATES_ANY_WINDOW, INVALIDATING, connection=TWO)

    assert name.text.endswith(": ACK instead of REM_INV_REQ_ERR")
    assert recording.expected[0] == "recv wr_id=4 REM_INV_REQ_ERR on queue pair 2"
    assert recording.expected[1] == "recv wr_id=5 WR_FLUSH_ERR on queue pair 2"
    assert recording.got[0].startswith("ACKNOWLEDGE")
    assert recording.got[1].startswith("recv wr_id=4 SUCCESS")


def test_completions_with_success_are_shown_beside_packets() -> None:
    recording = recorded(PASSES_ATOMICS_OVER, ATOMIC, ACK, connection=Connection())

    assert len(recording.expected) == 1
    assert recording.expected[0].startswith("COMPARE_SWAP")
    assert recording.got == ["send wr_id=0 SUCCESS COMP_SWAP"]


def test_what_completes_alike_is_not_shown_beside_packets() -> None:
    wrong_msn = Patch("rc/responder.py", "packet.msn = msn\n", "packet.msn = msn + 1 & MASK\n")
    send = replace(INVALIDATING, opcode=int(OpCode.RC_SEND_ONLY), pair=0)
    recording = recorded(wrong_msn, send, connection=Connection())

    assert len(recording.expected) == len(recording.got) == 1


def test_a_nak_behind_an_rnr_nak_is_not_called_a_gap() -> None:
    about = {each.name: each.about for each in CHOICES}

    assert about["naks_after_rnr"] == (
        "a request behind one that was refused by an RNR NAK draws a sequence NAK"
    )
    assert about["duplicate_clears_nak"].startswith("a gap draws a sequence NAK")


def test_a_device_that_gives_up_in_a_wait_breaks_the_rule_of_its_retries() -> None:
    inside = RNR_NAK.altered(psn=("una", 1), held=True)
    steps = (replace(WRITE, length=513), RNR_NAK, inside, Wait(8_120_000_000))
    name = named(RNR_RETRIES_NOT_RESTORED, *steps, connection=Connection(rnr_retry=1))
    migrating = Connection(timeout=8, retry_cnt=1, rearmed=1)
    armed = ACK.altered(fields={"bth.mig_req": 0})
    other = named(
        *(MIGRATES_WITHOUT_RETRIES, Post(int(WROpcode.FLUSH), 0), armed, Wait(2_097_152_002)),
        connection=migrating,
    )

    assert name.text == (
        "a wait (the wait after an RNR NAK): RNR_RETRY_EXC_ERR instead of WRITE_MIDDLE"
    )
    assert name.rule.endswith("#rnr-retry")
    assert other.text == "a wait (with an alternate path): RETRY_EXC_ERR instead of FLUSH"
    assert other.rule.endswith("#retry-count")


def test_rnr_naks_that_use_up_retries_are_one_cause() -> None:
    """The wait is called by the ACK timer, which expires behind the wait after the RNR NAK."""
    one = named(
        *(RNR_TAKES_A_RETRY, WRITE, Wait(1_048_576_001), RNR_NAK, Wait(1_068_576_001)),
        connection=Connection(timeout=8, retry_cnt=2),
    )
    steps = [RNR_NAK, Wait(10_000_001)] * 4
    many = named(
        *(RNR_TAKES_A_RETRY, Post(int(WROpcode.RDMA_READ), 0), ACK, *steps, RNR_NAK),
        Wait(8_398_608_003),
        connection=Connection(timeout=10),
    )

    assert one.text == f"a wait (the ACK timer): RETRY_EXC_ERR instead of WRITE_FIRST{AS_RETRY}"
    assert many.text == f"a wait (the ACK timer): RETRY_EXC_ERR instead of READ_REQUEST{AS_RETRY}"
    assert one.group == many.group
    assert one.rule.endswith("#retry-count")
