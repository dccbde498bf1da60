"""Names that readers of findings took for something else."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fuzz.scripted import Scripted
from fuzz.test_names_and_rules import named
from ibwire.base.units import US
from ibwire.fuzz.campaign import Campaign
from ibwire.fuzz.case import Case, Connection, Packet, Post, Receive, Step, Wait
from ibwire.fuzz.judge.comparison import Difference, Kind
from ibwire.fuzz.judge.effects import effect_of
from ibwire.fuzz.judge.naming import Name
from ibwire.fuzz.judge.packet_faults import with_own_faults
from ibwire.fuzz.recording import record
from ibwire.fuzz.targets.emulated_device import Emulation
from ibwire.fuzz.targets.emulator import Emulator, EmulatorTestbed
from ibwire.fuzz.vocabulary.vocabularies import QUEUE_PAIR
from ibwire.rc.memory import Access
from ibwire.rc.profile import SPEC
from ibwire.rc.work import WCStatus, WROpcode
from ibwire_layers.opcodes import OpCode
from ibwire_layers.psn import MASK
from mutants.engine import copied
from mutants.table import Mutant, Patch

UC, UD, TWO = Connection(service="UC"), Connection(service="UD"), Connection(pairs=2)
SEND = Packet(int(OpCode.RC_SEND_ONLY))
WRITE = Packet(int(OpCode.RC_RDMA_WRITE_ONLY))
READ = Packet(int(OpCode.RC_RDMA_READ_REQUEST))
INVALIDATING = Packet(int(OpCode.RC_SEND_ONLY_WITH_INVALIDATE))
ATOMIC_WRITE = Packet(int(OpCode.RC_ATOMIC_WRITE), length=8)
UC_WRITE = Packet(int(OpCode.UC_RDMA_WRITE_ONLY), length=8)
UC_WRITE_IMM = Packet(int(OpCode.UC_RDMA_WRITE_ONLY_WITH_IMMEDIATE))
READ_OF_964 = READ.altered(fields={"reth.va": ("va", 3190), "reth.dma_len": 964})
LONGER_AGAIN = READ.altered(
    psn=("expected", -4), fields={"reth.va": ("va", 3190), "reth.dma_len": 1220}
)
OF_WINDOW = {"reth.va": ("mw.va", 0), "reth.rkey": ("mw.rkey", 0), "reth.dma_len": 4}
ADD = Packet(int(OpCode.RC_FETCH_ADD))
ADD_UNALIGNED = Packet(int(OpCode.RC_FETCH_ADD), fields={"atomiceth.va": ("end", -4)})
FLUSHED = int(WCStatus.WR_FLUSH_ERR)
FEWER = int(Connection().access & ~Access.REMOTE_ATOMIC)

ALWAYS_ESTABLISHED = Patch(
    "rc/responder.py",
    "if qp.state is _RTR and qp.profile.reports_first_request:",
    "if qp.profile.reports_first_request:",
)
KEYS_ARE_EQUAL = Patch(
    "rc/qp.py",
    "return pkey & 0x7FFF == own & 0x7FFF and bool((pkey | own) & 0x8000) and pkey & 0x7FFF != 0",
    "return pkey == own",
)
EMPTY_SGES_NEED_KEYS = Patch(
    "rc/sge.py",
    "        if take <= 0:",
    "        if take <= 0 and (\n"
    "            sge.length or keys.find_local(pd, sge.lkey, sge.addr, 0, access) is not None\n"
    "        ):",
)
DUPLICATES_END_MESSAGES = Patch(
    "rc/responder.py",
    "        elif self._habits.acknowledges_duplicate(packet):\n",
    "        elif self._habits.acknowledges_duplicate(packet):\n"
    "            if packet.form.is_last:\n"
    "                self._message = None\n",
)
NOTHING_FOR_THE_LAST = Patch(
    "rc/responder.py",
    "elif size != qp.mtu or size >= rest or packet.pad_count:",
    "elif size != qp.mtu or size > rest or packet.pad_count:",
)
CREDITS_GO_BACK = Patch(
    "rc/credits.py", "if 0 < (limit - self.lsn) & MASK < HALF:", "if limit != self.lsn:"
)
UC_ENDS_AT_A_WRONG_KEY = Patch(
    "rc/unreliable.py",
    "            self.qp.counters.dropped_messages += 1\n        return False",
    "            self.qp.counters.dropped_messages += 1\n"
    "        if code == NakCode.REMOTE_ACCESS_ERROR:\n"
    "            self.qp.enter_error()\n"
    "        return False",
)
ERR_INSTEAD_OF_SQE = Patch(
    "rc/unreliable.py", "        self.qp.enter_send_error()", "        self.qp.enter_error()"
)
KEY_OF_NO_BYTES = Patch(
    "rc/responder.py",
    "if rest and not qp.keys.grants(self._pd, qp.number, rkey, va, rest, _REMOTE_WRITE):",
    "if (rest or form.has_imm) and not qp.keys.grants(\n"
    "            self._pd, qp.number, rkey, va, rest, _REMOTE_WRITE\n"
    "        ):",
)
INVALIDATES_ANY_WINDOW = Patch(
    "rc/memory.py",
    "if window.state is WindowState.VALID and window.qp_num != qp_num:",
    "if window.state is WindowState.VALID and window.qp_num is None:",
)
OPENS_ANY_WINDOW = Patch(
    "rc/memory.py",
    "if target.region is None or (target.kind == 2 and target.qp_num != qp_num):",
    "if target.region is None:",
)
ATOMIC_WRITE_IS_ATOMIC = Patch(
    "rc/responder.py",
    "        if not self._permits(_REMOTE_WRITE):\n"
    "            return self._refuse(packet)\n"
    "        if packet.va & 7",
    "        if not self._permits(_REMOTE_ATOMIC):\n"
    "            return self._refuse(packet)\n"
    "        if packet.va & 7",
)
UD_ASKS = Patch(
    "rc/unreliable.py",
    "packet.ack_req = int(qp.number == QP1 and qp.profile.asks_on_qp1)",
    "packet.ack_req = 1",
)

FLUSHES_THE_LAST_FIRST = Patch(
    "rc/receive.py",
    "self.current = self.waiting.popleft()\n            self._complete",
    "self.current = self.waiting.pop()\n            self._complete",
)
ACCESS_ERROR_AS_REQUEST_ERROR = Patch(
    "rc/responder.py",
    "NakCode.REMOTE_ACCESS_ERROR: EventType.QP_ACCESS_ERR,",
    "NakCode.REMOTE_ACCESS_ERROR: EventType.QP_REQ_ERR,",
)
EMPTY_SGE_ENDS_THE_LIST = Patch(
    "rc/sge.py",
    "        if size <= 0:\n            break\n",
    "        if size <= 0 or not sge.length:\n            break\n",
)
LONGER_DUPLICATE_IS_CUT = Patch(
    "rc/replies.py",
    "        if end > resource.length or not accepts(resource, position, end):",
    "        end = min(end, resource.length)\n        if not accepts(resource, position, end):",
)
SAVES_ONE_LESS = Patch(
    "rc/responder.py",
    "if len(resources) > max(self.qp.attr.max_dest_rd_atomic, 1):",
    "if len(resources) > max(self.qp.attr.max_dest_rd_atomic - 1, 1):",
)
REPEATED_ACK_GIVES_NOTHING = Patch(
    "rc/completer.py",
    "            if is_ack and ahead == MASK and "
    "self._kinds[packet.syndrome >> 5] is AckKind.ACK:\n"
    "                sends.credits.update(packet.syndrome, packet.msn)\n            return",
    "            return",
)
NAK_OVERTAKES_READ = Patch(
    "rc/completer.py",
    "        if not self.acknowledge_before(habits.acknowledged_by_nak(sends, psn), now):\n"
    "            return\n"
    "        if code == NakCode.PSN",
    "        if not self.acknowledge_before(habits.acknowledged_by_nak(sends, psn), now) and (\n"
    "            code not in _NAK_STATUS or qp.state is _ERR\n"
    "        ):\n"
    "            return\n"
    "        if code == NakCode.PSN",
)
FINDS_BY_LOW_BITS = Patch(
    "rc/habits/spec.py",
    "if resource.psn == packet.psn and resource.form is packet.form:",
    "if not (resource.psn ^ packet.psn) & 0xFF and resource.form is packet.form:",
)
ASKS_FOR_NO_SLOT = Patch(
    "rc/requester.py",
    "if plan.is_answered and sends.reads >= self.qp.attr.max_rd_atomic:",
    "if plan.operation is _READ and sends.reads >= self.qp.attr.max_rd_atomic:",
)
UNASKED_ACK_OF_THE_NEXT = Patch(
    "rc/responder.py",
    "            self._acknowledge(self.epsn - 1 & MASK)",
    "            self._acknowledge(self.epsn)",
)
WRITES_RAISE_NO_LIMIT = Patch(
    "rc/requester.py",
    "        else:\n            sends.credits.skip_one()",
    "        elif plan.is_answered:\n            sends.credits.skip_one()",
)
RNR_NAK_TAKES_A_RETRY = Patch(
    "rc/send_queue.py",
    "        if self.rnr_retries != 7:\n            self.rnr_retries -= 1\n",
    "        if self.rnr_retries != 7:\n            self.rnr_retries -= 1\n"
    "        if not self.use_up_retry():\n            return\n",
)
TIMER_RUNS_IN_THE_RNR_WAIT = Patch(
    "rc/send_queue.py",
    "        self.timers.ack = None\n"
    "        self.restart_psn = self._habits.restart_psn_after_rnr_nak(self)",
    "        self.restart_psn = self._habits.restart_psn_after_rnr_nak(self)",
)
RESPONSE_KEEPS_THE_TIMER = Patch(
    "rc/send_queue.py",
    "            self.restart(psn)\n"
    "        self.arm(now)\n"
    "        if (psn - self.psn) & MASK < HALF and psn != self.psn:",
    "            self.restart(psn)\n"
    "        if not (self.wqes and self.wqes[0].in_response):\n"
    "            self.arm(now)\n"
    "        if (psn - self.psn) & MASK < HALF and psn != self.psn:",
)
WRAPS_ONE_TOO_FAR = Patch(
    "rc/responder.py",
    "self.epsn = self.epsn + resource.count & MASK",
    "after = self.epsn + resource.count\n"
    "        self.epsn = after if after <= MASK else after - MASK",
)


def have_one_cause(*names: Name) -> bool:
    """Whether they have a key in common."""
    return bool(set.intersection(*({*name.keys, *name.wider} for name in names)))


def test_an_event_is_one_finding_whatever_the_packet_is() -> None:
    names = [named(ALWAYS_ESTABLISHED, step) for step in (SEND, READ)]

    assert names[0].text == "SEND_ONLY: event COMM_EST, which is not due"
    assert all(name.rule.endswith("#communication-established") for name in names)
    assert have_one_cause(*names)


def test_a_queue_pair_of_uc_that_goes_to_the_error_state_is_one_finding() -> None:
    shared = Connection(service="UC", srq=1)
    wrong = [
        (UC_WRITE.altered(fields={"reth.rkey": 0}), UC),
        (UC_WRITE.altered(fields={"reth.va": ("end", 0)}), shared),
    ]
    names = [
        named(UC_ENDS_AT_A_WRONG_KEY, step, connection=connection) for step, connection in wrong
    ]

    assert (
        names[0].text == "UC_WRITE_ONLY (an unknown R_Key): the queue pair goes to the error state"
    )
    assert all("#uc" in name.rule and "#qp-state-actions" in name.rule for name in names)
    assert have_one_cause(*names)


@pytest.mark.parametrize("connection", [UC, UD, Connection(service="UC", srq=1)])
def test_a_request_that_fails_moves_uc_and_ud_to_sqe(connection: Connection) -> None:
    post = Post(int(WROpcode.SEND), 8, wrong_lkey=1)

    name = named(ERR_INSTEAD_OF_SQE, post, connection=connection)

    assert name.text == "a posted SEND (a wrong L_Key): the queue pair goes to the error state"
    assert "#qp-transitions" in name.rule
    assert name.group == "the error state of UC and UD after a request that fails"


def test_a_request_of_no_bytes_has_a_wrong_key_only_if_its_key_is_wrong() -> None:
    keys = [{"reth.rkey": ("mw.rkey", 0)}, {"reth.rkey": 0}]
    names = [
        named(KEY_OF_NO_BYTES, UC_WRITE_IMM.altered(fields=fields), connection=UC)
        for fields in keys
    ]

    assert "(a request of no bytes outside its memory)" in names[0].text
    assert "(a request of no bytes with a wrong key)" in names[1].text
    assert not any("C9-88" in name.rule for name in names)
    assert have_one_cause(*names)


def test_the_window_of_another_queue_pair_is_called_so() -> None:
    invalidating = named(INVALIDATES_ANY_WINDOW, INVALIDATING.altered(pair=1), connection=TWO)
    reading = named(OPENS_ANY_WINDOW, READ.altered(pair=1, fields=OF_WINDOW), connection=TWO)

    assert "(a SEND that invalidates the window of another queue pair)" in invalidating.text
    assert "(a READ through the window of another queue pair)" in reading.text


def test_a_request_that_needs_other_rights_names_those_that_are_missing() -> None:
    allowed = Connection(access=FEWER)
    forbidden = Connection(access=int(Connection().access & ~Access.REMOTE_WRITE))
    unknown = ATOMIC_WRITE.altered(fields={"reth.rkey": 0})
    names = [
        named(ATOMIC_WRITE_IS_ATOMIC, step, connection=connection)
        for step, connection in (
            (ATOMIC_WRITE, allowed),
            (ATOMIC_WRITE, forbidden),
            (unknown, allowed),
        )
    ]

    assert names[0].text == (
        "ATOMIC_WRITE on a queue pair without REMOTE_ATOMIC: "
        "NAK INVALID_REQUEST instead of READ_RESPONSE_ONLY"
    )
    assert all(name.rule.endswith("#access-flags") for name in names)
    assert have_one_cause(*names)


def test_a_datagram_that_asks_for_an_ack_has_the_rule_of_that_too() -> None:
    step: Step = Post(int(WROpcode.SEND))

    assert named(UD_ASKS, step, connection=UD).rule.endswith(
        "#ud, docs/reference/transport.md#ack-request"
    )


def test_one_read_too_many_does_not_show_how_many_a_device_allows() -> None:
    one = Connection(max_rd_atomic=1)
    steps = (Post(int(WROpcode.RDMA_READ)), Post(int(WROpcode.ATOMIC_CMP_AND_SWP)))

    name = named(ASKS_FOR_NO_SLOT, *steps, connection=one)

    assert name.text == "a posted ATOMIC_CMP_AND_SWP: COMPARE_SWAP instead of nothing"
    assert name.rule.endswith("#read-limit")


def test_an_unasked_ack_is_wrong_by_itself_whatever_was_refused_or_held_before() -> None:
    empty = Connection(receives=0)
    first = Packet(int(OpCode.RC_SEND_FIRST), length=256, held=True)
    names = [
        named(UNASKED_ACK_OF_THE_NEXT, SEND, Receive(2), connection=empty),
        named(UNASKED_ACK_OF_THE_NEXT, first, Receive(2)),
    ]

    assert names[0].text == "a posted receive: ACK with another bth.psn"
    assert names[1].text == ("SEND_FIRST with a posted receive behind it: ACK with another bth.psn")
    assert have_one_cause(*names)


def test_a_request_that_others_hold_back_names_them() -> None:
    steps = Post(int(WROpcode.RDMA_WRITE)), Post(int(WROpcode.SEND))

    name = named(WRITES_RAISE_NO_LIMIT, *steps)

    assert name.text == "a posted SEND after a posted RDMA_WRITE: nothing instead of SEND_ONLY"
    assert name.rule.endswith("#credits-counted")


def test_rnr_naks_that_use_up_retries_are_one_finding() -> None:
    rnr_nak = Packet(int(OpCode.RC_ACKNOWLEDGE), ("una", 0), fields={"aeth.syndrome": 34})
    gap = Packet(int(OpCode.RC_RDMA_READ_RESPONSE_FIRST), ("una", 1))
    timeout, short = Wait(1_048_576_001), Wait(10_000_000)
    write, read = Post(int(WROpcode.RDMA_WRITE), 257), Post(int(WROpcode.RDMA_READ), 257)
    names = [
        named(RNR_NAK_TAKES_A_RETRY, read, gap, rnr_nak, connection=Connection(retry_cnt=1)),
        named(
            RNR_NAK_TAKES_A_RETRY,
            *(write, timeout, rnr_nak, short, short, timeout),
            connection=Connection(timeout=8, retry_cnt=2),
        ),
    ]

    assert all(name.rule.endswith("#retry-count") for name in names)
    assert have_one_cause(*names)


def test_a_timer_that_runs_in_the_wait_after_an_rnr_nak_is_one_finding() -> None:
    rnr_nak = Packet(int(OpCode.RC_ACKNOWLEDGE), ("una", 0), fields={"aeth.syndrome": 33})
    read = Post(int(WROpcode.RDMA_READ))
    short, usual = Connection(timeout=8, retry_cnt=0), Connection(timeout=10)
    names = [
        named(
            TIMER_RUNS_IN_THE_RNR_WAIT,
            *(read, rnr_nak, Wait(10_000_001), Wait(4_194_304_001)),
            connection=usual,
        ),
        named(
            TIMER_RUNS_IN_THE_RNR_WAIT,
            *(read, rnr_nak.altered(fields={"aeth.syndrome": 60}), Wait(1_048_577_000)),
            connection=short,
        ),
    ]

    assert ": RETRY_EXC_ERR of a posted RDMA_READ too early" in names[1].text
    assert "#rnr-wait" in names[1].rule
    assert have_one_cause(*names)


def test_retries_that_there_are_not_end_too_early_by_the_timer() -> None:
    read = Post(int(WROpcode.RDMA_READ), 257)
    first = Packet(int(OpCode.RC_RDMA_READ_RESPONSE_FIRST), ("una", 0), length=256)

    name = named(
        RESPONSE_KEEPS_THE_TIMER,
        *(read, Wait(1_048_575_000), first, Wait(1000)),
        connection=Connection(timeout=8, retry_cnt=0),
    )

    assert name.text == "a wait (the ACK timer): RETRY_EXC_ERR of a posted RDMA_READ too early"
    assert name.rule.endswith("#ack-timer")


def test_what_is_wrong_at_the_psn_wrap_is_one_finding() -> None:
    at_wrap = Connection(rq_psn=0xFFFFFF)
    long_read = READ.altered(fields={"reth.dma_len": 1280})
    names = [
        named(WRAPS_ONE_TOO_FAR, READ, READ, connection=at_wrap),
        named(
            WRAPS_ONE_TOO_FAR,
            *(long_read, WRITE.altered(held=True), long_read.altered(psn=("expected", -6))),
            connection=at_wrap,
        ),
    ]

    assert all(name.rule.endswith("#psn-order") for name in names)
    assert have_one_cause(*names)


def test_packets_between_a_full_and_a_limited_member_that_are_dropped_are_one_finding() -> None:
    limited = {"bth.pkey": ("pkey", -0x8000)}
    last = Packet(int(OpCode.RC_RDMA_WRITE_LAST), fields=limited)
    of_limited = Connection(pkey_index=3)
    names = [
        named(KEYS_ARE_EQUAL, last),
        named(KEYS_ARE_EQUAL, WRITE.altered(fields=limited)),
        named(KEYS_ARE_EQUAL, SEND, connection=of_limited),
        named(KEYS_ARE_EQUAL, UC_WRITE_IMM, connection=Connection(service="UC", pkey_index=1)),
    ]

    assert names[0].text.endswith(
        ", as if packets between a full and a limited member were dropped"
    )
    assert all(name.rule.endswith("#partition-key") for name in names)
    assert have_one_cause(*names)


def test_a_wrong_key_of_an_sge_without_bytes_is_called_so() -> None:
    several = Connection(sges=5, wrong_lkey=2)
    receive = named(EMPTY_SGES_NEED_KEYS, SEND.altered(length=256), connection=several)
    post = named(EMPTY_SGES_NEED_KEYS, Post(int(WROpcode.SEND), 257, sges=4, wrong_lkey=2))

    assert "a SEND into a receive whose SGE of 0 bytes has a wrong L_Key" in receive.text
    assert post.text.startswith("a posted SEND (an SGE of 0 bytes with a wrong L_Key): ")
    assert all("#sge-list" in name.rule for name in (receive, post))


def test_what_follows_a_duplicate_is_named_after_it() -> None:
    first = Packet(int(OpCode.RC_SEND_FIRST), length=256)
    middle = Packet(int(OpCode.RC_SEND_MIDDLE), length=256)
    again = WRITE.altered(psn=("expected", -1))
    refused = named(DUPLICATES_END_MESSAGES, first, again, middle)
    taken = named(DUPLICATES_END_MESSAGES, first, again, WRITE)

    assert refused.text.startswith("SEND_MIDDLE after a WRITE with an old PSN: ")
    assert " after a WRITE with an old PSN: " in taken.text
    assert all(name.rule.endswith("#duplicates") for name in (refused, taken))
    assert have_one_cause(refused, taken)


def test_a_write_that_leaves_nothing_for_its_last_has_no_more_than_its_reth_says() -> None:
    name = named(NOTHING_FOR_THE_LAST, Packet(int(OpCode.RC_RDMA_WRITE_FIRST), length=256))

    assert "(a WRITE FIRST that leaves nothing for a LAST)" in name.text


def test_a_flushed_request_in_place_of_another_is_named() -> None:
    """Two flushed completions have no flags to compare."""
    difference = Difference(0, Kind.COMPLETION, [(1, 0, FLUSHED)], [(1, 3, FLUSHED)])

    assert effect_of(difference).text == "completion with another wr_id"


def test_requests_that_are_flushed_in_another_order_are_named() -> None:
    name = named(FLUSHES_THE_LAST_FIRST, ADD_UNALIGNED)

    assert name.text.endswith(": requests are flushed in another order")


def test_an_event_in_place_of_another_is_one_finding_whatever_was_refused() -> None:
    refused = [
        READ.altered(fields={"reth.rkey": 0, "reth.dma_len": 8}),
        WRITE.altered(length=8, fields={"reth.va": ("end", 0)}),
    ]
    names = [named(ACCESS_ERROR_AS_REQUEST_ERROR, step) for step in refused]

    assert names[0].text == (
        "READ_REQUEST (an unknown R_Key): event QP_REQ_ERR instead of QP_ACCESS_ERR"
    )
    assert all(name.rule.endswith("#completion-status") for name in names)
    assert have_one_cause(*names)


def test_empty_sges_of_a_request_are_said() -> None:
    post = Post(int(WROpcode.RDMA_WRITE), 8, sges=3)

    assert named(EMPTY_SGE_ENDS_THE_LIST, post, connection=UC).text == (
        "a posted RDMA_WRITE (with SGEs of 0, 0 and 8 bytes): LOC_PROT_ERR instead of UC_WRITE_ONLY"
    )


@pytest.mark.parametrize(
    ("earlier", "last", "said"),
    [
        ([READ_OF_964], LONGER_AGAIN, "a duplicate READ that goes beyond the first one"),
        ([READ_OF_964, WRITE], LONGER_AGAIN.altered(psn=("expected", -5)), "goes beyond the first"),
    ],
)
def test_a_duplicate_says_how_it_differs(earlier: list[Packet], last: Packet, said: str) -> None:
    assert said in named(LONGER_DUPLICATE_IS_CUT, *earlier, last).text


def test_the_oldest_duplicate_that_is_saved_is_called_so() -> None:
    names = [
        named(
            SAVES_ONE_LESS,
            *([READ] * saved),
            READ.altered(psn=("expected", -saved)),
            connection=Connection(max_dest_rd_atomic=saved),
        )
        for saved in (2, 12)
    ]

    assert all("(a duplicate READ, of the oldest that is saved)" in name.text for name in names)
    assert all(name.rule.endswith("#saved-resources") for name in names)
    assert have_one_cause(*names)


def test_acks_that_repeat_the_last_psn_are_one_finding() -> None:
    again = Packet(int(OpCode.RC_ACKNOWLEDGE), ("una", -1))
    post = Post(int(WROpcode.SEND))
    names = [
        named(REPEATED_ACK_GIVES_NOTHING, Post(int(WROpcode.SEND), 513), again),
        named(REPEATED_ACK_GIVES_NOTHING, again, post, post),
    ]

    assert "(an ACK that repeats the last PSN)" in names[0].text
    assert "#credits-ghost" in names[0].rule
    assert have_one_cause(*names)


def test_a_nak_behind_an_unanswered_read_is_called_so() -> None:
    nak = Packet(int(OpCode.RC_ACKNOWLEDGE), ("una", 1), fields={"aeth.syndrome": 98})
    posts = Post(int(WROpcode.RDMA_READ), 8), Post(int(WROpcode.RDMA_WRITE), 8)

    name = named(NAK_OVERTAKES_READ, *posts, nak)

    assert name.text.startswith(
        "ACKNOWLEDGE (a NAK REMOTE_ACCESS_ERROR behind an unanswered READ or atomic): "
    )


def test_a_response_too_many_is_that_of_the_wrong_packet_before() -> None:
    behind = Packet(int(OpCode.RC_RDMA_WRITE_MIDDLE), length=256)

    alone = named(LONGER_DUPLICATE_IS_CUT, READ_OF_964, LONGER_AGAIN)
    name = named(LONGER_DUPLICATE_IS_CUT, READ_OF_964, LONGER_AGAIN.altered(held=True), behind)

    assert " with WRITE_MIDDLE behind it: a READ_RESPONSE_FIRST too many" in name.text
    assert have_one_cause(alone, name)


def test_no_path_mtu_explains_packets_that_differ_in_it() -> None:
    """Requests may differ in AckReq and in nothing else."""
    steps = [
        Post(int(WROpcode.ATOMIC_FETCH_AND_ADD), signaled=False),
        Packet(
            int(OpCode.RC_ATOMIC_ACKNOWLEDGE),
            ("una", 0),
            fields={"aeth.msn": ("ssn", 0), "aeth.syndrome": 2},
        ),
        Post(int(WROpcode.SEND_WITH_INV)),
        Packet(
            int(OpCode.RC_ACKNOWLEDGE),
            ("una", 0),
            fields={"aeth.msn": ("ssn", 0), "aeth.syndrome": 0},
        ),
        Post(int(WROpcode.SEND_WITH_IMM), 513),
    ]
    name = named(CREDITS_GO_BACK, *steps, connection=Connection(mtu=512))

    assert "a SEND_LAST_WITH_IMMEDIATE is missing" in name.text
    assert "as if" not in name.text
    assert "#credits-limit" in name.rule


def test_psns_that_go_back_over_the_wrap_are_named_after_it_only_if_that_matters() -> None:
    """A result is found by the lowest 8 bits of its PSN: far from the wrap, too."""
    steps = [ADD, ADD.altered(psn=("expected", -257))]
    device = copied(Mutant("planted", (FINDS_BY_LOW_BITS,)))[Emulation.__module__].Emulation
    campaign = Campaign(EmulatorTestbed(device), lambda number: Scripted(*steps), explains=False)

    finding = next(iter(campaign.run(10)))

    assert finding.bucket == (
        "FETCH_ADD (a duplicate atomic of which no response is saved): "
        "ATOMIC_ACKNOWLEDGE instead of nothing"
    )
    assert finding.rule.endswith("#duplicate-atomic")


def test_errors_that_a_device_reports_are_shown_where_its_packets_differ() -> None:
    device = copied(Mutant("planted", (EMPTY_SGE_ENDS_THE_LIST,)))[Emulation.__module__].Emulation
    target = Emulator("planted", {QUEUE_PAIR.name: device}, lambda text: True)

    recording = record(Case(UC, (Post(int(WROpcode.RDMA_WRITE), 8, sges=3),)), target)

    assert recording.got == ["send wr_id=0 LOC_PROT_ERR"]


RNR_WAIT_BY_PSN = Patch(
    "rc/send_queue.py",
    "now + rnr_wait(code, self.qp.profile)\n",
    "now + rnr_wait(code, self.qp.profile) * (1 + (self.una & 1))\n",
)
NO_RNR_WAIT_OVER_THE_WRAP = Patch(
    "rc/send_queue.py",
    "        self.timers.rnr = now + rnr_wait(code, self.qp.profile)\n",
    "        long = 1 if self.una < self.next_psn else 1000\n"
    "        self.timers.rnr = now + long * rnr_wait(code, self.qp.profile)\n",
)
AT_WRAP = Connection(sq_psn=MASK, timeout=0)
WAITING = (
    Post(int(WROpcode.RDMA_WRITE), 8),
    Packet(int(OpCode.RC_ACKNOWLEDGE), ("una", 0), fields={"aeth.syndrome": 0x25}),
)


@pytest.mark.parametrize("connection", [AT_WRAP, Connection(sq_psn=501, timeout=0)])
def test_a_timer_that_is_late_has_its_own_rule_wherever_it_is(connection: Connection) -> None:
    shown, long = (
        named(RNR_WAIT_BY_PSN, *WAITING, Wait(time * US), connection=connection)
        for time in (60, 120)
    )

    wait = "a wait (the wait after an RNR NAK)"
    rule = "IBA 9.7.5.2.8; docs/reference/transport.md#rnr-wait"
    assert shown.text == f"{wait}: nothing instead of a retransmitted WRITE_ONLY"
    assert shown.rule == rule
    assert long.text == f"{wait}: it retransmits WRITE_ONLY too late"
    assert long.rule == f"{rule}, docs/reference/transport.md#rnr-timer"


@pytest.mark.parametrize("time", [60, 1000])
def test_a_timer_that_does_not_expire_at_the_psn_wrap_is_named_after_it(time: int) -> None:
    found = named(NO_RNR_WAIT_OVER_THE_WRAP, *WAITING, Wait(time * US), connection=AT_WRAP)

    assert found.text == (
        "a wait (the wait after an RNR NAK at the PSN wrap): "
        "nothing instead of a retransmitted WRITE_ONLY"
    )
    assert found.rule.endswith("#psn-order")


def test_a_request_that_is_sent_again_too_early_is_called_a_retransmission() -> None:
    half = Patch("rc/timers.py", "profile.ack_timer_percent // 100", "50 // 100")
    flush = Post(int(WROpcode.FLUSH))

    name = named(half, flush, Wait(700 * US), connection=Connection(timeout=8))

    assert name.text == "a wait (the ACK timer): a retransmitted FLUSH instead of nothing"


def test_a_response_that_only_the_packet_before_draws_is_said_of_that() -> None:
    """Both have the same PSN: the first one, which has a wrong P_Key, is to be dropped."""
    cached = Patch(
        "rc/qp.py",
        "        if pkey == self._trusted_pkey:\n            return True\n",
        "        if self._trusted_pkey >= 0 and not (pkey ^ self._trusted_pkey) & 0x7FFF:\n"
        "            return True\n",
    )
    limited = Connection(pkey_index=1)
    dropped = ATOMIC_WRITE.altered(fields={"bth.pkey": ("pkey", -32768)}, held=True)
    ack = Packet(int(OpCode.RC_ACKNOWLEDGE), ("una", 0))
    last = Packet(int(OpCode.RC_RDMA_WRITE_ONLY_WITH_IMMEDIATE))
    name = named(cached, ack, dropped, last, connection=limited)
    again = WRITE.altered(fields={"bth.pkey": 0x7FFF})

    assert name.text == (
        "ATOMIC_WRITE (a limited member's P_Key, to a limited member): "
        "READ_RESPONSE_ONLY instead of nothing"
    )
    assert name.group == named(cached, WRITE, again, connection=limited).group


def test_an_old_psn_of_a_request_of_another_kind_is_no_duplicate() -> None:
    first, middle = (
        Packet(int(each), length=256) for each in (OpCode.RC_SEND_FIRST, OpCode.RC_SEND_MIDDLE)
    )
    old = WRITE.altered(psn=("expected", -1))
    steps = (first, old, middle)
    name = named(DUPLICATES_END_MESSAGES, *steps)
    same = named(DUPLICATES_END_MESSAGES, first, SEND.altered(psn=("expected", -1)), middle)
    case = with_own_faults(Case(steps=steps), SPEC)

    assert name.text == (
        "SEND_MIDDLE after a WRITE with an old PSN: NAK INVALID_REQUEST instead of ACK"
    )
    assert same.text.startswith("SEND_MIDDLE after a duplicate SEND: ")
    assert isinstance(case.steps[1], Packet)
    assert case.steps[1].why == "a WRITE with an old PSN"


def test_all_packets_of_one_kind_that_are_missing_are_counted() -> None:
    withdraws = Patch(
        "rc/responder.py",
        "            self._nak_sent &= self._habits.gap_outlasts_duplicate()\n            newest",
        "            self.replies = deque(r for r in self.replies if r.resource is None)\n"
        "            newest",
    )
    add = ADD.altered(held=True)
    late = Packet(int(OpCode.RC_RDMA_WRITE_FIRST), ("expected", -1), length=256)

    assert named(withdraws, add, add, late).text == (
        "WRITE_FIRST (while earlier responses wait): 2 ATOMIC_ACKNOWLEDGEs are missing"
    )


def test_what_other_queue_pairs_retransmit_is_not_wrong_where_a_timer_does_not_run() -> None:
    first_alone = Patch(
        "rc/requester.py",
        "timers.rnr is None:\n                timers.ack = now + sends.ack_wait\n",
        "timers.rnr is None and not (qp.number & 1):\n"
        "                timers.ack = now + sends.ack_wait\n",
    )
    posts = [Post(int(WROpcode.RDMA_WRITE), 8, pair=pair) for pair in range(2)]

    name = named(first_alone, *posts, Wait(1100 * US), connection=Connection(timeout=8, pairs=2))

    assert name.text == "a wait (the ACK timer): a WRITE_ONLY is missing"
    assert name.rule.endswith("#ack-timer")


def test_an_earlier_request_that_a_wrong_key_ends_breaks_the_order_of_completions() -> None:
    ends_the_oldest = Patch(
        "rc/requester.py",
        "                    wqe.status = WCStatus.LOC_PROT_ERR\n"
        "                    sends.retire()\n"
        "                    return None",
        "                    sends.fail(WCStatus.LOC_PROT_ERR)\n                    return None",
    )
    post = Post(int(WROpcode.RDMA_WRITE), 8, sges=2, wrong_lkey=2)
    name = named(ends_the_oldest, Post(int(WROpcode.RDMA_READ), signaled=False), post)

    assert name.text == (
        "a posted RDMA_WRITE (a wrong L_Key): "
        "a completion LOC_PROT_ERR of a posted RDMA_READ, which is not due"
    )
    assert name.rule.endswith("#completion-order")


def test_a_crash_at_a_packet_of_uc_breaks_the_rule_of_uc() -> None:
    never_dropped = Patch(
        "rc/responder.py",
        "            if form.has_imm and not self._habits.has_receive(self.receives, self._srq):\n"
        "                return self._refuse_not_ready(packet)\n"
        "            va, rkey, rest = packet.va",
        "            va, rkey, rest = packet.va",
    )
    name = named(never_dropped, UC_WRITE_IMM, connection=replace(UC, receives=0))

    assert "AssertionError" in name.text
    assert name.rule.endswith("#uc")


def test_a_limit_does_not_explain_what_takes_another_queue_pair() -> None:
    """READs that other queue pairs have not answered count against the limit."""
    counts_all = Patch(
        "rc/responder.py",
        "return self._habits.has_slot(self.resources, self.qp",
        "return self._habits.has_slot(\n"
        "                [r for q in self.qp.device.qps.values() for r in q.responder.resources],\n"
        "                self.qp",
    )
    add = ADD.altered(held=True, pair=1)
    last = ADD.altered(pair=1)
    limited = Connection(max_dest_rd_atomic=2, pairs=3)
    name = named(counts_all, add.altered(pair=2), add, last, connection=limited)

    assert "NAK INVALID_REQUEST instead of ATOMIC_ACKNOWLEDGE" in name.text
    assert "as if" not in name.text
