"""A fault that shows at many places is one finding; two faults are two."""

from __future__ import annotations

from collections.abc import Sequence

from fuzz.test_naming import ACK, PLANTED, SEND, SWAP, wrong
from ibwire.fuzz.campaign import Campaign
from ibwire.fuzz.case import Case, Connect, Connection, Packet, Post, Role, Step, Wait
from ibwire.fuzz.judge.naming import Name
from ibwire.fuzz.targets.emulated_device import Emulation
from ibwire.fuzz.targets.emulator import EmulatorTestbed
from ibwire.fuzz.vocabulary.vocabularies import vocabulary_for
from ibwire.rc.connect import ALL_ACCESS
from ibwire.rc.memory import Access
from ibwire.rc.profile import SPEC
from ibwire.rc.work import WROpcode
from ibwire_layers.opcodes import OpCode
from mutants.engine import copied
from mutants.table import Mutant, Patch

RECEIVED_IMMEDIATE = "            imm, flags = packet.imm_data, flags | WCFlags.WITH_IMM\n"
ACK_TIMER = "    return max(nominal // profile.timer_granularity, 1) * profile.timer_granularity\n"
RNR_TIMER = "    table = profile.rnr_timer_us[code] * US * profile.rnr_timer_percent // 100\n"

FAULTS = {
    "immediate data in the order of the host": Patch(
        "rc/receive.py",
        RECEIVED_IMMEDIATE,
        RECEIVED_IMMEDIATE.replace(
            "packet.imm_data",
            "int.from_bytes(packet.imm_data.to_bytes(4, 'little'), 'big')",
        ),
    ),
    "half of the immediate data of a SEND, none of a WRITE": Patch(
        "rc/receive.py",
        RECEIVED_IMMEDIATE,
        RECEIVED_IMMEDIATE.replace(
            "packet.imm_data",
            "packet.imm_data & (0xFFFF if opcode == WCOpcode.RECV else 0)",
        ),
    ),
    "an ACK timer eight times too long": Patch(
        "rc/timers.py", ACK_TIMER, ACK_TIMER.replace("return ", "return 8 * ")
    ),
    "an RNR timer eight times too long": Patch(
        "rc/timers.py", RNR_TIMER, RNR_TIMER.replace("100\n", "100 * 8\n")
    ),
    "no ACK timer for READs": Patch(
        "rc/requester.py",
        "            if timers.ack is None and sends.ack_wait is not None and timers",
        "            if not wqe.plan.is_answered and timers.ack is None "
        "and sends.ack_wait is not None and timers",
    ),
    "credits of READ responses and of answers to atomics ignored": Patch(
        "rc/completer.py",
        "        if packet.form.has_aeth:\n"
        "            sends.credits.update(packet.syndrome, packet.msn)\n"
        "        una = psn + 1 & MASK\n",
        "        una = psn + 1 & MASK\n",
    ),
    "the MSN of a fatal NAK counts its request": Patch(
        "rc/responder.py",
        "        self.replies.append(Reply(psn, self.msn, _NAK | code))\n",
        "        self.replies.append(Reply(psn, self.msn + 1 & MASK, _NAK | code))\n",
    ),
    "the MSN of all responses counts one more": Patch(
        "rc/responder.py",
        "        packet.msn = msn\n        self.qp.address(packet, None)\n",
        "        packet.msn = msn + 1 & MASK\n        self.qp.address(packet, None)\n",
    ),
    "atomics refused with another NAK": Patch(
        "rc/responder.py",
        "        if not self._permits(_REMOTE_ATOMIC) or not self._has_slot():\n"
        "            return self._refuse(packet)\n",
        "        if not self._permits(_REMOTE_ATOMIC) or not self._has_slot():\n"
        "            return self._refuse(packet, NakCode.REMOTE_OPERATIONAL_ERROR)\n",
    ),
    "duplicates acknowledged if they end a message": Patch(
        "rc/responder.py",
        "        elif self._habits.acknowledges_duplicate(packet):\n",
        "        elif packet.form.is_last and self._habits.acknowledges_duplicate(packet):\n",
    ),
    "an ACK of PSN 0 not taken": Patch(
        "rc/completer.py",
        "        ahead = (psn - sends.una) & MASK\n        habits",
        "        if is_ack and psn == 0:\n            return\n"
        "        ahead = (psn - sends.una) & MASK\n        habits",
    ),
    "a READ of several packets takes one PSN more": Patch(
        "rc/requester.py",
        "                following = (wqe.first_psn + wqe.packets) & MASK\n"
        "                sends.cursor += 1\n",
        "                following = (wqe.first_psn + wqe.packets + (wqe.packets > 1)) & MASK\n"
        "                sends.cursor += 1\n",
    ),
    "after an RNR wait it goes on with the second packet": Patch(
        "rc/send_queue.py",
        "            timers.rnr = None\n            self.restart(self.una)\n",
        "            timers.rnr = None\n"
        "            self.restart(self.una + (self.next_psn - self.una > 1) & MASK)\n",
    ),
    "a READ of an exact multiple of the path MTU takes one PSN more": Patch(
        "rc/responder.py",
        "Resource(packet, max(-(-length // qp.mtu), 1), self._pd)",
        "Resource(packet, length // qp.mtu + 1, self._pd)",
    ),
    "the R_Keys of XRC in the domain of the queue pair": Patch(
        "rc/responder.py",
        "return self.qp.pd if self._srq is None else self._srq.pd",
        "return self.qp.pd",
    ),
    "one retry less": Patch(
        "rc/send_queue.py", "        if self.retries == 0:\n", "        if self.retries <= 1:\n"
    ),
    "one credit too many": Patch(
        "rc/responder.py",
        "            return credit_code(len(self.receives.waiting))\n",
        "            return credit_code(len(self.receives.waiting)) + 1\n",
    ),
    "nothing is begun after something was answered": Patch(
        "rc/requester.py",
        "        if wqe.fence and sends.reads:\n",
        "        if sends.una != self.qp.attr.sq_psn or wqe.fence and sends.reads:\n",
    ),
}

FAULTS |= {
    "an ACK completes the oldest request alone": Patch(
        "rc/completer.py",
        "            sends.complete(wqe, _SUCCESS)\n            while wqes and wqes[0].done:\n",
        "            sends.complete(wqe, _SUCCESS)\n            break\n"
        "            while wqes and wqes[0].done:\n",
    ),
    "no implied NAK": Patch(
        "rc/completer.py",
        "        elif lost and not self._habits.is_recovering(sends, psn):\n",
        "        elif False:\n",
    ),
    "a SEND LAST with invalidate leaves the window open": Patch(
        "rc/responder.py",
        "        if form.has_invalidate and not qp.keys.invalidate(\n",
        "        if form.has_invalidate and form.is_first and not qp.keys.invalidate(\n",
    ),
    "READs through the window need no key": Patch(
        "rc/responder.py",
        "            is None\n        ):\n"
        "            return self._refuse(packet, NakCode.REMOTE_ACCESS_ERROR)\n"
        "        resource = Resource(packet, max(",
        "            is None and qp.keys._windows.get(packet.rkey) is None\n        ):\n"
        "            return self._refuse(packet, NakCode.REMOTE_ACCESS_ERROR)\n"
        "        resource = Resource(packet, max(",
    ),
    "what begins inside a message of UC is passed over": Patch(
        "rc/unreliable.py",
        "        if packet.psn != self.epsn:\n            self._abandon()\n",
        "        if packet.psn == self.epsn and packet.form.is_first and self._message:\n"
        "            self.epsn = self.epsn + 1 & MASK\n            return\n"
        "        if packet.psn != self.epsn:\n            self._abandon()\n",
    ),
    "the receive request of a dropped message is lost": Patch(
        "rc/receive.py",
        "            self.waiting.appendleft(self.current)\n            self.current = None\n",
        "            self.current = None\n",
    ),
}

UD = Connection(service="UD")
CAS = Post(int(WROpcode.ATOMIC_CMP_AND_SWP))
CAS_ANSWER = Packet(int(OpCode.RC_ATOMIC_ACKNOWLEDGE), ("una", 0))
LONG_SEND = Post(int(WROpcode.SEND), 513)


def groups(faults: str | Sequence[str], *cases: tuple[Connection, Sequence[Step]]) -> list[str]:
    """The group of what each case shows on one device with planted faults."""
    return [each.group for each in names(faults, *cases)]


def names(faults: str | Sequence[str], *cases: tuple[Connection, Sequence[Step]]) -> list[Name]:
    planted = [faults] if isinstance(faults, str) else faults
    patches = tuple(
        patch
        for each in planted
        for patch in (PLANTED[each].patches if each in PLANTED else [FAULTS[each]])
    )
    device = copied(Mutant(" + ".join(planted), patches))[Emulation.__module__].Emulation
    vocabulary = vocabulary_for(Role.BOTH)
    testbed = EmulatorTestbed(device)
    state = Campaign(testbed, vocabulary.generators(1, Role.BOTH, ())).state
    found = []
    for connection, steps in cases:
        case = Case(connection, tuple(steps))
        difference = testbed.replay(case, SPEC)
        assert difference is not None
        found.append(testbed.name_of(state, case, difference, ""))
    return found


USUAL = Connection()
IMMEDIATE = (
    (USUAL, [Packet(int(OpCode.RC_SEND_ONLY_WITH_IMMEDIATE))]),
    (USUAL, [Packet(int(OpCode.RC_RDMA_WRITE_ONLY_WITH_IMMEDIATE))]),
    (UD, [Packet(int(OpCode.UD_SEND_ONLY_WITH_IMMEDIATE))]),
)


def test_immediate_data_that_is_changed_in_one_way_has_one_cause() -> None:
    found = names("immediate data in the order of the host", *IMMEDIATE)

    assert len({each.group for each in found}) == 1
    assert {each.rule for each in found} == {
        "IBA 9.3, 9.4; docs/reference/transport.md#immediate-data"
    }


def test_immediate_data_that_is_changed_in_two_ways_has_two_causes() -> None:
    of_send, of_write, of_datagram = groups(
        "half of the immediate data of a SEND, none of a WRITE", *IMMEDIATE
    )

    assert of_send == of_datagram != of_write


LONG_WRITE = Post(int(WROpcode.RDMA_WRITE), 257)
TOO_SHORT, LONG = Wait(67_108_900_000), Wait(200_000_000_000)
FOR_A_WRITE = (
    (USUAL, [LONG_WRITE, TOO_SHORT]),
    (Connection(timeout=8), [LONG_WRITE, LONG]),
    (USUAL, [LONG_WRITE, wrong(Packet(ACK, ("una", 0)), aeth__syndrome=33), LONG]),
)
FOR_A_READ = (USUAL, [Post(int(WROpcode.RDMA_READ), 8), TOO_SHORT])


def test_all_that_comes_of_the_length_of_the_ack_timer_has_one_cause() -> None:
    found = names("an ACK timer eight times too long", *FOR_A_WRITE, FOR_A_READ)

    assert {each.group for each in found} == {"the ACK timer: time"}
    assert {each.rule for each in found} == {"C9-141; docs/reference/transport.md#ack-timeout"}


def test_a_timer_that_does_not_run_is_not_one_that_is_too_long() -> None:
    *of_writes, of_read = groups(
        ("an ACK timer eight times too long", "no ACK timer for READs"), *FOR_A_WRITE, FOR_A_READ
    )

    assert set(of_writes) == {"the ACK timer: time"}
    assert of_read == "the ACK timer: no answer"


BOTH_TIMERS = "an ACK timer eight times too long", "an RNR timer eight times too long"
NOT_READY = wrong(Packet(ACK, ("una", 0)), aeth__syndrome=42)
AFTER_RNR = Wait(100_000_000_000)


def test_what_comes_of_two_timers_of_wrong_length_is_no_third_cause() -> None:
    """0.32 ms after the RNR NAK it is sent again, which is late, and 67 ms later, which is not."""
    found = groups(
        BOTH_TIMERS,
        FOR_A_WRITE[0],
        (USUAL, [Post(int(WROpcode.RDMA_WRITE), 513), NOT_READY, AFTER_RNR]),
        (USUAL, [Post(int(WROpcode.RDMA_READ), 8), NOT_READY, AFTER_RNR]),
    )

    assert found == ["the ACK timer: time"] * 3


def test_an_rnr_timer_of_wrong_length_is_a_cause_of_its_own() -> None:
    """Within 20 ms no ACK timer runs out, whatever its length."""
    of_ack, of_rnr = groups(
        BOTH_TIMERS,
        FOR_A_WRITE[0],
        (USUAL, [Post(int(WROpcode.RDMA_WRITE), 257), NOT_READY, Wait(20_000_000_000)]),
    )

    assert of_ack == "the ACK timer: time"
    assert of_rnr == "the wait after an RNR NAK: time"


def test_a_timer_that_does_not_run_is_a_third_cause_beside_two_of_wrong_length() -> None:
    of_length, of_read = groups(
        (*BOTH_TIMERS, "no ACK timer for READs"),
        FOR_A_WRITE[0],
        (USUAL, [Post(int(WROpcode.RDMA_READ), 8), NOT_READY, AFTER_RNR]),
    )

    assert of_length == "the ACK timer: time" != of_read


CREDITS = (
    (USUAL, [CAS, LONG_SEND, CAS_ANSWER]),
    (USUAL, [CAS, CAS_ANSWER, LONG_SEND]),
    (USUAL, [CAS, CAS_ANSWER, Post(int(WROpcode.SEND)), Post(int(WROpcode.SEND))]),
)


def test_all_that_comes_of_credits_that_are_ignored_has_one_cause() -> None:
    found = names("credits of READ responses and of answers to atomics ignored", *CREDITS)

    assert {each.group for each in found} == {"the credits of a response with data"}
    assert {each.rule for each in found} == {
        "IBA 9.7.7.2; docs/reference/transport.md#credits-limit"
    }


def test_a_queue_pair_that_stops_after_an_atomic_does_not_ignore_credits() -> None:
    (found,) = groups(
        "nothing is begun after something was answered", (USUAL, [CAS, CAS_ANSWER, LONG_SEND])
    )

    assert "credits" not in found


def test_a_packet_has_the_name_of_the_opcode_that_it_has_on_the_wire() -> None:
    """A response whose opcode is that of a request is no malformed response."""
    near_the_wrap = Connection(rq_psn=0xFFFFFF)
    begun, reserved = names(
        "psn-compared-without-wrap",
        (near_the_wrap, [wrong(Packet(ACK, ("una", 0)), bth__opcode=0)]),
        (near_the_wrap, [wrong(Packet(ACK, ("una", 0)), bth__opcode=0x19)]),
    )

    assert begun.text == (
        "SEND_FIRST (a request behind a gap across the PSN wrap): "
        "ACK instead of NAK PSN_SEQUENCE_ERROR"
    )
    assert begun.group == reserved.group
    assert begun.rule == reserved.rule == "IBA 9.7.1; docs/reference/transport.md#psn-order"


def test_a_packet_without_its_headers_is_one_however_it_lost_them() -> None:
    connection = Connection()
    cut, short = groups(
        "cut-header-read",
        (connection, [Packet(int(OpCode.RC_RDMA_WRITE_ONLY), cut=14)]),
        (connection, [wrong(SEND, bth__opcode=0x0A)]),
    )

    assert cut == short


def test_a_crash_at_an_opcode_that_no_service_has_is_one_finding() -> None:
    found = names(
        "unknown-opcode-crashes",
        *((USUAL, [wrong(SEND, bth__opcode=opcode)]) for opcode in (0x1F, 0x56)),
    )

    assert len({each.group for each in found}) == 1
    assert {each.rule for each in found} == {
        "IBA 9.7.4.1.2; docs/reference/transport.md#reserved-opcode"
    }


OTHER_VERSION = wrong(SEND, bth__tver=1)


def test_what_comes_of_a_packet_that_is_to_be_ignored_has_one_cause() -> None:
    at_once, later, other = groups(
        ("transport-version-ignored", "stranger-taken-for-peer"),
        (USUAL, [OTHER_VERSION]),
        (USUAL, [wrong(OTHER_VERSION, bth__ack_req=0), SWAP]),
        (USUAL, [wrong(SEND, ip__src=0x0A000009)]),
    )

    assert at_once == later != other


def test_an_answer_to_what_was_never_sent_has_one_cause_whatever_it_says() -> None:
    post = Post(int(WROpcode.RDMA_WRITE), 513)
    found = names(
        "ack-one-beyond-what-was-sent",
        (USUAL, [LONG_SEND, Packet(ACK, ("next", 0))]),
        (USUAL, [LONG_SEND, wrong(Packet(ACK, ("next", 0)), aeth__syndrome=0x60)]),
        (USUAL, [post, Packet(ACK, ("next", 0)), post]),
    )

    assert len({each.group for each in found}) == 1


def test_own_requests_after_a_fatal_nak_are_about_that() -> None:
    (found,) = names(
        "goes-on-after-a-fatal-nak",
        (USUAL, [LONG_SEND, wrong(SEND, bth__opcode=0x02)]),
    )

    assert found.rule.endswith("docs/reference/transport.md#after-fatal-nak")


def test_a_nak_of_a_later_check_shows_that_the_opcode_was_passed_over() -> None:
    write_first = Packet(int(OpCode.RC_RDMA_WRITE_FIRST), length=256, fields={"reth.dma_len": 512})
    add = Packet(int(OpCode.RC_FETCH_ADD))
    executed, refused = names(
        "atomic-inside-a-write",
        (USUAL, [write_first, add]),
        (USUAL, [write_first, wrong(add, atomiceth__rkey=0)]),
    )

    assert refused.wider == (executed.group,)


NO_ATOMICS = Connection(access=int(ALL_ACCESS & ~Access.REMOTE_ATOMIC))
REFUSED = (
    (USUAL, [wrong(SWAP, atomiceth__va=("va", 4))]),
    (USUAL, [Packet(int(OpCode.RC_SEND_LAST), length=8)]),
    (Connection(room=0), [SEND.altered(length=8)]),
)


def test_a_number_that_is_wrong_in_all_fatal_naks_has_one_cause() -> None:
    found = names("the MSN of a fatal NAK counts its request", *REFUSED)

    assert {each.causes for each in found} == {("aeth.msn of a fatal NAK",)}


def test_what_is_wrong_by_as_much_in_every_ack_is_no_other_cause_in_a_nak() -> None:
    of_ack, *of_naks = names("the MSN of all responses counts one more", (USUAL, [SEND]), *REFUSED)

    assert of_ack.causes == ("aeth.msn +1 in every ACK",)
    assert all(of_ack.causes[0] in each.wider for each in of_naks)


def test_what_is_wrong_in_naks_alone_is_no_fault_of_every_ack() -> None:
    found = names("the MSN of a fatal NAK counts its request", *REFUSED)

    assert all("aeth.msn +1 in every ACK" not in each.causes for each in found)


def test_another_nak_for_one_kind_of_requests_has_one_cause() -> None:
    too_many, denied = names(
        "atomics refused with another NAK",
        (Connection(max_dest_rd_atomic=0), [SWAP]),
        (NO_ATOMICS, [Packet(int(OpCode.RC_FETCH_ADD))]),
    )

    assert too_many.causes == denied.causes != ()


def test_duplicates_that_are_not_acknowledged_have_one_cause() -> None:
    first = Packet(int(OpCode.RC_SEND_FIRST), ("expected", -1), length=256)
    middle = Packet(int(OpCode.RC_RDMA_WRITE_MIDDLE), ("expected", -1), length=256)
    found = groups(
        "duplicates acknowledged if they end a message", (USUAL, [first]), (USUAL, [middle])
    )

    assert set(found) == {"a duplicate SEND or WRITE: no answer"}


def test_all_that_comes_of_an_ack_that_is_not_taken_has_its_rule() -> None:
    near_the_wrap = Connection(sq_psn=0)
    ack = Packet(ACK, ("una", 0))
    found = names(
        "an ACK of PSN 0 not taken",
        (near_the_wrap, [Post(int(WROpcode.RDMA_WRITE)), ack]),
        (near_the_wrap, [LONG_SEND, ack]),
        (near_the_wrap, [Post(int(WROpcode.RDMA_WRITE), 513), ack, Wait(68_000_000_000)]),
    )

    assert {each.rule for each in found} == {"IBA 9.7.1; docs/reference/transport.md#psn-order"}
    assert len({each.causes[0] for each in found}) == 1
    assert found[2].text == (
        "a wait (the ACK timer at the PSN wrap): a WRITE_FIRST too many, "
        "as if ACKNOWLEDGE (an ACK at the PSN wrap) had not come"
    )


def test_silence_does_not_show_that_a_response_is_not_taken() -> None:
    (found,) = names(
        "an RNR timer eight times too long",
        (USUAL, [Post(int(WROpcode.RDMA_WRITE), 257), NOT_READY, Wait(20_000_000_000)]),
    )

    assert "as if" not in found.text


def test_a_p_key_that_is_not_compared_is_one_finding_with_any_index() -> None:
    usual, of_index = names(
        "pkey-ignored",
        (USUAL, [wrong(SEND, bth__pkey=0x1234)]),
        (Connection(pkey_index=2), [wrong(SEND, bth__pkey=0xFFFF)]),
    )

    assert usual.group in of_index.wider


def test_psns_of_its_own_requests_have_their_own_rule() -> None:
    (found,) = names(
        "a READ of several packets takes one PSN more",
        (USUAL, [Post(int(WROpcode.RDMA_READ), 513), Post(int(WROpcode.RDMA_READ), 8)]),
    )

    assert found.rule == "IBA 9.7.2; docs/reference/transport.md#psn-count"


def test_a_restart_at_another_packet_after_an_rnr_wait_has_one_cause() -> None:
    found = names(
        "after an RNR wait it goes on with the second packet",
        (USUAL, [Post(int(WROpcode.RDMA_WRITE), 513), NOT_READY, Wait(20_000_000_000)]),
        (
            USUAL,
            [
                Post(int(WROpcode.RDMA_WRITE), 769),
                wrong(Packet(ACK, ("una", 1)), aeth__syndrome=42),
                Wait(20_000_000_000),
            ],
        ),
    )

    assert len({each.causes for each in found}) == 1
    assert all("#rnr-wait" in each.rule for each in found)


def test_a_request_of_a_shared_queue_that_a_dropped_message_does_not_end_has_both_rules() -> None:
    (found,) = names(
        "refused-request-back-in-srq",
        (Connection(service="UC", srq=1), [Packet(int(OpCode.UC_SEND_FIRST))]),
    )

    assert found.rule.endswith("#srq, docs/reference/transport.md#uc")


def test_credits_that_are_wrong_by_as_much_in_every_ack_have_one_cause() -> None:
    every, later = names(
        "one credit too many",
        (USUAL, [SEND]),
        (USUAL, [wrong(SEND, bth__ack_req=0), Packet(int(OpCode.RC_RDMA_WRITE_ONLY))]),
    )

    assert every.causes == ("credits +1 in every ACK",)
    assert every.causes[0] in later.keys


READ = Packet(int(OpCode.RC_RDMA_READ_REQUEST), ("expected", 0))
EXACT = wrong(READ, reth__dma_len=512)


def test_whatever_follows_a_read_of_a_wrong_number_of_psns_has_one_cause() -> None:
    found = names(
        "a READ of an exact multiple of the path MTU takes one PSN more",
        (USUAL, [EXACT, SEND]),
        (USUAL, [EXACT, Packet(int(OpCode.RC_SEND_ONLY), ("expected", 1))]),
        (USUAL, [EXACT, wrong(READ, reth__dma_len=0x1000000)]),
        (USUAL, [EXACT, SWAP]),
    )

    assert len({each.group for each in found}) == 1
    assert {each.rule for each in found} == {"IBA 9.7.2; docs/reference/transport.md#psn-count"}
    assert all(" after a READ of an exact multiple of the path MTU: " in x.text for x in found)


def test_another_fault_behind_a_read_is_not_named_after_its_psns() -> None:
    (found,) = names("the MSN of a fatal NAK counts its request", (USUAL, [EXACT, _REFUSED]))

    assert "after a READ" not in found.text


_REFUSED = wrong(READ, reth__dma_len=0x1000000)


def test_r_keys_of_xrc_in_another_domain_are_one_cause_for_all_operations() -> None:
    xrc = Connection(service="XRC_RECV")
    fault = "the R_Keys of XRC in the domain of the queue pair"
    found = names(
        fault,
        (xrc, [Packet(int(OpCode.XRC_RDMA_WRITE_ONLY), length=8)]),
        (xrc, [wrong(Packet(int(OpCode.XRC_RDMA_READ_REQUEST)), reth__dma_len=1024)]),
        (xrc, [Packet(int(OpCode.XRC_FETCH_ADD))]),
        (xrc, [Packet(int(OpCode.XRC_SEND_ONLY_WITH_INVALIDATE))]),
    )

    assert len({each.group for each in found}) == 1
    assert {each.rule for each in found} == {"IBA A14; docs/reference/transport.md#xrc"}


ONCE = Connection(retry_cnt=1)


def test_whatever_comes_of_one_retry_less_is_one_cause() -> None:
    read = Post(int(WROpcode.RDMA_READ), 257)
    found = names(
        "one retry less",
        (ONCE, [Post(int(WROpcode.RDMA_WRITE)), wrong(Packet(ACK, ("una", 0)), aeth__syndrome=96)]),
        (ONCE, [Post(int(WROpcode.ATOMIC_FETCH_AND_ADD)), Packet(ACK, ("una", 0))]),
        (ONCE, [read, Packet(int(OpCode.RC_RDMA_READ_RESPONSE_MIDDLE), ("una", 1), length=256)]),
    )

    assert len({each.group for each in found}) == 1
    assert {each.rule for each in found} == {
        "IBA 9.7.6.1.3; docs/reference/transport.md#retry-count"
    }


WRITES = [Post(int(WROpcode.RDMA_WRITE)), Post(int(WROpcode.RDMA_WRITE))]
READ_ANSWER = Packet(int(OpCode.RC_RDMA_READ_RESPONSE_ONLY))


def test_whatever_comes_of_an_ack_that_is_taken_in_part_is_one_cause() -> None:
    """A READ response, too, acknowledges what was sent before its READ; then it may as well be that
    the READ is not taken for lost.
    """
    flush = Post(int(WROpcode.FLUSH))
    plain, implied, later = names(
        "an ACK completes the oldest request alone",
        (USUAL, [*WRITES, Packet(ACK, ("una", 1))]),
        (Connection(retry_cnt=0), [WRITES[0], CAS, flush, READ_ANSWER.altered(psn=("una", 2))]),
        (USUAL, [*WRITES, Packet(ACK, ("una", 1)), flush, Wait(67_108_864_000)]),
    )

    assert plain.group == later.group == "an acknowledgement taken in part"
    assert plain.group in implied.wider
    assert implied.rule.endswith("#implied-nak")
    assert plain.rule == later.rule == "IBA 9.7.5.1.2; docs/reference/transport.md#ack-coalescing"
    assert plain.text == (
        "ACKNOWLEDGE (an ACK): no completion SUCCESS of a posted RDMA_WRITE, "
        "as if it acknowledged only the first request"
    )


def test_a_missing_implied_nak_is_no_part_of_an_ack() -> None:
    """Where nothing else is acknowledged before; where something is, it may be either."""
    alone, behind_a_write = names(
        ("an ACK completes the oldest request alone", "no implied NAK"),
        (USUAL, [CAS, WRITES[0], Packet(ACK, ("una", 1))]),
        (USUAL, [WRITES[0], CAS, WRITES[0], Packet(ACK, ("una", 2))]),
    )

    assert "#implied-nak" in alone.rule
    assert alone.wider == ()
    assert behind_a_write.wider == ("an acknowledgement taken in part",)


INVALIDATED = [
    Packet(int(OpCode.RC_SEND_FIRST), length=256),
    Packet(int(OpCode.RC_SEND_LAST_WITH_INVALIDATE), length=8),
]
THROUGH_WINDOW = wrong(READ, reth__rkey=("mw.rkey", 0), reth__va=("mw.va", 0), reth__dma_len=8)


def test_whatever_goes_through_a_window_that_was_not_closed_is_one_cause() -> None:
    again = Packet(int(OpCode.RC_SEND_ONLY_WITH_INVALIDATE))
    found = names(
        "a SEND LAST with invalidate leaves the window open",
        (USUAL, [*INVALIDATED, THROUGH_WINDOW]),
        (USUAL, [*INVALIDATED, Connect(Connection(pkey_index=1)), again]),
        (
            USUAL,
            [
                *INVALIDATED,
                Packet(
                    int(OpCode.RC_RDMA_WRITE_ONLY),
                    length=8,
                    fields={"reth.rkey": ("mw.rkey", 0), "reth.va": ("mw.va", 0), "bth.ack_req": 0},
                ),
            ],
        ),
    )

    assert {each.group for each in found} == {
        "a SEND LAST with invalidate that leaves a window open"
    }
    assert {each.rule for each in found} == {
        "IBA 9.4.1.1.3; docs/reference/transport.md#invalidate"
    }
    assert "P_Key" not in found[1].text


def test_another_fault_of_windows_is_named_beside_one_that_is_left_open() -> None:
    left_open, no_key = groups(
        (
            "a SEND LAST with invalidate leaves the window open",
            "READs through the window need no key",
        ),
        (USUAL, [*INVALIDATED, Connect(USUAL), Packet(int(OpCode.RC_SEND_ONLY_WITH_INVALIDATE))]),
        (USUAL, [Packet(int(OpCode.RC_SEND_ONLY_WITH_INVALIDATE)), THROUGH_WINDOW]),
    )

    assert left_open == "a SEND LAST with invalidate that leaves a window open" != no_key


UC = Connection(service="UC")
UC_SEND = Packet(int(OpCode.UC_SEND_ONLY))
UC_BEGUN = Packet(int(OpCode.UC_SEND_FIRST), length=256)


def test_what_follows_a_message_that_is_passed_over_is_about_that() -> None:
    found = names(
        "what begins inside a message of UC is passed over",
        (UC, [UC_BEGUN, UC_SEND, UC_SEND]),
        (UC, [UC_BEGUN, UC_SEND, Packet(int(OpCode.UC_SEND_LAST), length=8)]),
    )

    assert {each.group for each in found} == {"another SEND inside a SEND: passed over"}
    assert found[1].text == (
        "UC_SEND_LAST (a LAST without its FIRST): "
        "a completion SUCCESS of a receive, which is not due, "
        "as if another SEND inside a SEND had not come"
    )


def test_a_lost_receive_request_is_one_cause_whatever_is_wrong_with_its_message() -> None:
    short, long = names(
        "the receive request of a dropped message is lost",
        (UC, [UC_BEGUN.altered(length=0), UC_SEND]),
        (UC, [UC_SEND.altered(length=512), UC_SEND]),
    )

    assert short.causes == long.causes != ()
    assert short.group != long.group
