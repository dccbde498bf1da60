"""Small deliberate faults of the transport, and what shows each of them.

A `Mutation` replaces one snippet of a module, which must occur exactly once, while a
test runs: the code of the function around it is exchanged in place, so that tables and
callers that hold the function see the fault too. A snippet that is gone, or that is
not inside a function, fails loudly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from inspect import CO_OPTIMIZED, getattr_static
from pathlib import Path
from types import CodeType, FunctionType, ModuleType

import laws
import laws_wire as wire
from schedules import Run


@dataclass(frozen=True, slots=True)
class Mutation:
    """One fault."""

    fault: str
    module: str
    """File below `ibwire`."""
    old: str
    new: str
    example: str = ""
    """Name in `law_examples.py`: `law` is broken there."""
    law: Callable[[Run], None] | None = None
    test: str = ""
    """Or the test that fails: its node ID below the directory of tests."""

    def __str__(self) -> str:
        return self.fault


class StaleMutation(Exception):
    """A mutation does not fit the code any more."""


@contextmanager
def applied(mutation: Mutation) -> Iterator[None]:
    """The transport with the fault."""
    name = "ibwire." + mutation.module.removesuffix(".py").replace("/", ".")
    module = import_module(name)
    assert module.__file__ is not None
    source = Path(module.__file__).read_text(encoding="utf-8")
    found = source.count(mutation.old)
    if found != 1:
        raise StaleMutation(f"{mutation.fault}: the snippet occurs {found} times in {name}")
    right = _functions(compile(source, module.__file__, "exec", dont_inherit=True))
    wrong = source.replace(mutation.old, mutation.new)
    faulty = _functions(compile(wrong, module.__file__, "exec", dont_inherit=True))
    changed = [path for path, code in right.items() if not _same(code, faulty.get(path))]
    if not changed:
        raise StaleMutation(f"{mutation.fault}: no function of {name} has changed")
    functions = {path: _function(module, path) for path in changed}
    before = {path: function.__code__ for path, function in functions.items()}
    try:
        for path, function in functions.items():
            function.__code__ = faulty[path]
        yield
    finally:
        for path, function in functions.items():
            function.__code__ = before[path]


def _functions(code: CodeType, path: str = "") -> dict[str, CodeType]:
    """The functions and methods of a module by name, without those inside others."""
    found: dict[str, CodeType] = {}
    for each in code.co_consts:
        if isinstance(each, CodeType) and not each.co_name.startswith("<"):
            if each.co_flags & CO_OPTIMIZED:
                found[path + each.co_name] = each
            else:  # the body of a class
                found |= _functions(each, f"{path}{each.co_name}.")
    return found


def _same(one: object, other: object) -> bool:
    """Whether two constants are alike, code without its line numbers."""
    if not isinstance(one, CodeType) or not isinstance(other, CodeType):
        return one == other
    return (
        one.co_code == other.co_code
        and one.co_names == other.co_names
        and one.co_varnames == other.co_varnames
        and len(one.co_consts) == len(other.co_consts)
        and all(map(_same, one.co_consts, other.co_consts))
    )


def _function(module: ModuleType, path: str) -> FunctionType:
    holder: object = module
    *classes, name = path.split(".")
    for each in classes:
        holder = getattr(holder, each)
    found = getattr_static(holder, name)
    if isinstance(found, property):
        found = found.fget
    elif isinstance(found, staticmethod | classmethod):
        found = found.__func__
    assert isinstance(found, FunctionType)
    return found


RESPONDER, REQUESTER, COMPLETER = "rc/responder.py", "rc/requester.py", "rc/completer.py"
SENDS = "rc/send_queue.py"

MUTATIONS = (
    # The responder: sequence numbers and NAKs.
    Mutation(
        "every packet that is ahead draws a NAK",
        RESPONDER,
        "        if not self._nak_sent:\n",
        "        if True:\n",
        "a middle packet is lost",
        wire.a_gap_draws_one_sequence_nak,
    ),
    Mutation(
        "the NAK latch is never released",
        RESPONDER,
        "                self._nak_sent = False\n                self._withdraw_naks()\n",
        "                self._withdraw_naks()\n",
        "two packets of a message are lost",
        wire.every_gap_draws_a_sequence_nak,
    ),
    Mutation(
        "an RNR NAK does not set the latch",
        RESPONDER,
        "self._nak_sent = not qp.profile.naks_after_rnr",
        "self._nak_sent = False",
        "receives come late, the sender is rdmavt",
        wire.a_gap_draws_one_sequence_nak,
    ),
    Mutation(
        "duplicates advance the MSN",
        RESPONDER,
        "qp.counters.duplicates += 1\n",
        "qp.counters.duplicates += 1\n        self.msn = self.msn + 1 & MASK\n",
        "an ACK is lost",
        wire.msn_counts_the_new_messages_that_are_complete,
    ),
    Mutation(
        "a READ does not advance the MSN",
        RESPONDER,
        "+ resource.count & MASK\n        self.msn = self.msn + 1 & MASK\n",
        "+ resource.count & MASK\n",
        "a fence after a READ",
        wire.msn_counts_the_new_messages_that_are_complete,
    ),
    Mutation(
        "a READ takes one PSN",
        RESPONDER,
        "self.epsn + resource.count & MASK",
        "self.epsn + 1 & MASK",
        "a fence after a READ",
        wire.responses_answer_only_what_was_asked,
    ),
    Mutation(
        "the responder compares PSNs as plain integers",
        RESPONDER,
        "            if ahead >= HALF:\n",
        "            if packet.psn < self.epsn:\n",
        "packets arrive again where the PSN wraps",
        wire.responses_answer_only_what_was_asked,
    ),
    Mutation(
        "a refused packet counts as taken",
        RESPONDER,
        "        timer = qp.attr.min_rnr_timer & 31\n",
        "        timer = qp.attr.min_rnr_timer & 31\n        self.epsn = packet.psn + 1 & MASK\n",
        "receives come late",
        wire.responses_answer_only_what_was_asked,
    ),
    Mutation(
        "a duplicate is acknowledged with its own PSN",
        RESPONDER,
        "self._acknowledge(self.executed_psn if executed else self.epsn - 1 & MASK)",
        "self._acknowledge(self.executed_psn if executed else packet.psn)",
        "a packet arrives again much later",
        wire.responses_answer_only_what_was_asked,
    ),
    Mutation(
        "a duplicate is not acknowledged",
        RESPONDER,
        "packet.ack_req or qp.profile.duplicate_ack is DuplicateAck.EVERY",
        "False",
        "an ACK is lost",
        laws.every_request_succeeds,
    ),
    Mutation(
        "a responder that has refused goes on answering",
        RESPONDER,
        "        if self.failed:\n            return\n        if len(self.replies)",
        "        if len(self.replies)",
        "a bad R_Key while a long READ is being answered",
        wire.a_fatal_nak_is_for_a_request_that_deserves_it,
    ),
    Mutation(
        "NAKs carry credits",
        RESPONDER,
        "                packet.syndrome = reply.syndrome\n",
        "                packet.syndrome = reply.syndrome & 0x60 | self._credits(msn)\n",
        "a middle packet is lost",
        wire.every_gap_draws_a_sequence_nak,
    ),
    # The responder: memory.
    Mutation(
        "a WRITE is stored before its R_Key is checked",
        RESPONDER,
        "            va, rkey, rest = packet.va, packet.rkey, packet.dma_len\n",
        "            va, rkey, rest = packet.va, packet.rkey, packet.dma_len\n"
        "            for region in qp.keys._regions.values():\n"
        "                if 0 <= va - region.iova <= region.length - size:\n"
        "                    region.buffer[va - region.iova :][:size] = packet.payload\n",
        "an unsignalled WRITE with a bad R_Key, and others behind",
        laws.memory_holds_every_message_once_and_nothing_else,
    ),
    Mutation(
        "every packet of a WRITE goes where the first went",
        RESPONDER,
        "            start = self._view_rest - rest\n",
        "            start = 0\n",
        "a middle packet is lost",
        laws.memory_holds_every_message_once_and_nothing_else,
    ),
    Mutation(
        "one byte beyond a region may be read",
        "rc/memory.py",
        "        if not 0 <= offset <= offset + length <= target.length:\n",
        "        if not 0 <= offset <= offset + length <= target.length + 1:\n",
        "a READ of one byte too many",
        wire.a_fatal_nak_is_for_a_request_that_deserves_it,
    ),
    Mutation(
        "a type 2 window serves every queue pair",
        "rc/memory.py",
        "if target.region is None or (target.kind == 2 and target.qp_num != qp_num):",
        "if target.region is None:",
        test="rc/test_windows.py::test_type_2_window_serves_only_the_queue_pair_that_bound_it",
    ),
    Mutation(
        "a window lies anywhere in its region",
        "rc/memory.py",
        "return 0 <= offset <= offset + info.length <= region.length",
        "return offset <= region.length",
        test="rc/test_windows.py::test_window_lies_within_its_region",
    ),
    Mutation(
        "a SEND with invalidate invalidates nothing",
        RESPONDER,
        "        if form.has_invalidate and not qp.keys.invalidate(\n",
        "        if False and not qp.keys.invalidate(\n",
        "everything, both ways",
        laws.invalidation_happens_with_its_message,
    ),
    Mutation(
        "the newest receive request is taken first",
        "rc/receive.py",
        "wr = self.waiting.popleft() if self.waiting",
        "wr = self.waiting.pop() if self.waiting",
        "a middle packet is lost",
        laws.receive_requests_complete_in_order_with_the_messages_that_took_them,
    ),
    Mutation(
        "a receive buffer is filled from where the last one ended",
        "rc/receive.py",
        "        self.current = wr\n        self.filled = 0\n",
        "        self.current = wr\n",
        "unequal buffers, pieces and lengths",
        laws.memory_holds_every_message_once_and_nothing_else,
    ),
    # The responder: READs and atomics.
    Mutation(
        "a READ that is asked for again begins with its first byte",
        RESPONDER,
        "        start = position * qp.mtu\n",
        "        start = (position - reply.first) * qp.mtu\n",
        "a READ response is lost",
        wire.reads_are_answered_piece_by_piece,
    ),
    Mutation(
        "a duplicate atomic is executed again",
        RESPONDER,
        "                self._replay(result, 0)\n",
        "                region, at = qp.keys.find_remote(\n"
        "                    self._pd, qp.number, packet.rkey, packet.va, 8, _REMOTE_ATOMIC\n"
        "                )\n"
        "                region.store64(at, region.load64(at) + packet.swap)\n"
        "                self._replay(result, 0)\n",
        "an atomic arrives again",
        laws.atomics_are_executed_exactly_once,
    ),
    Mutation(
        "a duplicate atomic is answered with the number of now",
        RESPONDER,
        "                self._replay(result, 0)\n",
        "                region, at = qp.keys.find_remote(\n"
        "                    self._pd, qp.number, packet.rkey, packet.va, 8, _REMOTE_ATOMIC\n"
        "                )\n"
        "                result.original = region.load64(at)\n"
        "                self._replay(result, 0)\n",
        "an atomic arrives again",
        wire.an_atomic_is_answered_alike_each_time,
    ),
    Mutation(
        "compare and swap are exchanged",
        RESPONDER,
        "original == packet.compare:\n            region.store64(offset, packet.swap)\n",
        "original == packet.swap:\n            region.store64(offset, packet.compare)\n",
        "answers of atomics are lost",
        laws.atomics_are_executed_exactly_once,
    ),
    Mutation(
        "one READ too many is kept",
        RESPONDER,
        "if len(resources) > max(self.qp.attr.max_dest_rd_atomic, 1):",
        "if len(resources) > max(self.qp.attr.max_dest_rd_atomic, 1) + 1:",
        "more READs and atomics than may be outstanding",
        wire.outstanding_reads_and_atomics_stay_within_the_limit,
    ),
    # The completer.
    Mutation(
        "an ACK behind a READ completes it",
        COMPLETER,
        "            if wqe.plan.is_answered:\n",
        "            if wqe.plan.is_answered and behind < wqe.packets:\n",
        "all responses of a READ are lost, the ACK behind is not",
        laws.memory_holds_every_message_once_and_nothing_else,
    ),
    Mutation(
        "a gap in the responses of a READ goes unnoticed",
        COMPLETER,
        "            if psn != sends.una:\n                if qp.profile.restarts",
        "            if False:\n                if qp.profile.restarts",
        "a READ response is lost",
        laws.memory_holds_every_message_once_and_nothing_else,
    ),
    Mutation(
        "the result of an atomic is stored in the order of the wire",
        COMPLETER,
        'packet.original.to_bytes(8, "little")',
        'packet.original.to_bytes(8, "big")',
        "answers of atomics are lost",
        laws.memory_holds_every_message_once_and_nothing_else,
    ),
    Mutation(
        "the requester compares PSNs as plain integers",
        COMPLETER,
        "        ahead = (psn - sends.una) & MASK\n",
        "        ahead = psn - sends.una if psn >= sends.una else MASK\n",
        "one ACK for a message across the wrap",
        laws.every_request_succeeds,
    ),
    Mutation(
        "a NAK makes the requester begin one packet too late",
        SENDS,
        "            self.restart(psn)\n            self.arm(now)\n",
        "            self.restart(psn + 1 & MASK)\n            self.arm(now)\n",
        "a middle packet is lost",
        wire.who_goes_back_goes_to_the_oldest_unacknowledged,
    ),
    # The requester: what it sends.
    Mutation(
        "a READ is asked for again from its first address",
        REQUESTER,
        "packet.va = wr.remote_addr + done",
        "packet.va = wr.remote_addr",
        "a READ response is lost",
        wire.every_request_says_what_its_psn_stands_for,
    ),
    Mutation(
        "a READ is asked for again in its full length",
        REQUESTER,
        "packet.dma_len = wqe.length - done",
        "packet.dma_len = wqe.length",
        "a READ response is lost",
        wire.every_request_says_what_its_psn_stands_for,
    ),
    Mutation(
        "every packet of a message is solicited",
        REQUESTER,
        "        packet = TransportPacket(form, sends.psn, payload)\n",
        "        packet = TransportPacket(form, sends.psn, payload)\n"
        "        packet.se = int(wqe.solicited)\n",
        "solicited and not",
        wire.every_request_says_what_its_psn_stands_for,
    ),
    Mutation(
        "a WRITE without immediate is solicited",
        "rc/send_state.py",
        "bool(flags & _SOLICITED) and plan.takes_credit",
        "bool(flags & _SOLICITED)",
        "solicited and not",
        wire.every_request_says_what_its_psn_stands_for,
    ),
    Mutation(
        "a fence is passed",
        REQUESTER,
        "        if wqe.fence and sends.reads:\n",
        "        if False:\n",
        "a fence after a READ",
        wire.a_fence_waits_for_reads_and_atomics,
    ),
    Mutation(
        "one READ more than max_rd_atomic is outstanding",
        REQUESTER,
        "sends.reads >= self.qp.attr.max_rd_atomic",
        "sends.reads > self.qp.attr.max_rd_atomic",
        "more READs and atomics than may be outstanding",
        wire.outstanding_reads_and_atomics_stay_within_the_limit,
    ),
    Mutation(
        "the window is not looked at inside a message",
        REQUESTER,
        "            if (psn - sends.una) & MASK > qp.profile.max_unacked_psns:\n",
        "            if False:\n",
        "a message longer than the window of soft-roce",
        wire.requests_stay_between_the_oldest_unacknowledged_and_the_next,
    ),
    Mutation(
        "padding is the rest, not what is missing",
        "rc/packet.py",
        "    pad = -len(payload) & 3\n",
        "    pad = len(payload) & 3\n",
        "unequal buffers, pieces and lengths",
        wire.every_frame_is_a_right_packet,
    ),
    Mutation(
        "the ICRC is not checked",
        "rc/device.py",
        "        if not icrc_fits(frame, arrival):\n",
        "        if False:\n",
        "a packet is damaged",
        laws.memory_holds_every_message_once_and_nothing_else,
    ),
    # Credits.
    Mutation(
        "the credit code is rounded up",
        "rc/credits.py",
        "return bisect_right(aeth.CREDITS, available) - 1",
        "return bisect_right(aeth.CREDITS, available - 1)",
        "a message with immediate where the receiver has many buffers",
        wire.credits_are_the_receive_requests_that_wait,
    ),
    Mutation(
        "fewer credits than before take what was granted back",
        "rc/credits.py",
        "        if serial.is_newer(limit, self.lsn):\n",
        "        if True:\n",
        "credits are short",
        wire.the_credit_limit_never_goes_back,
    ),
    Mutation(
        "more credits are promised than there are receive requests",
        RESPONDER,
        "return credit_code(len(self.receives.waiting))",
        "return credit_code(len(self.receives.waiting) + 3)",
        "credits are short",
        wire.credits_never_run_out_where_receives_wait,
    ),
    Mutation(
        "two messages are started beyond the credits",
        REQUESTER,
        "            if beyond > 1:\n",
        "            if beyond > 2:\n",
        "credits are short",
        wire.at_most_one_message_is_started_beyond_the_credits,
    ),
    Mutation(
        "a message beyond the credits is sent whole",
        REQUESTER,
        "if index and wqe.limited and self._is_held_back(wqe):",
        "if False:",
        "receives come late",
        wire.at_most_one_message_is_started_beyond_the_credits,
    ),
    Mutation(
        "a message that needs no credit takes one",
        REQUESTER,
        "            sends.credits.skip_one()\n",
        "            pass\n",
        test="rc/test_laws_examples.py::test_a_write_takes_no_credit_from_the_send_behind_it",
    ),
    # Timers, retries, completions.
    Mutation(
        "the ACK timer is not started",
        REQUESTER,
        "            if timers.ack is None and sends.ack_wait is not None and timers",
        "            if False and timers",
        "losses that outnumber the retries, with progress between",
        laws.every_work_request_completes_once_and_in_order,
    ),
    Mutation(
        "progress does not push the ACK timer back",
        SENDS,
        "        self.arm(now)\n        if (psn - self.psn)",
        "        if (psn - self.psn)",
        "a READ that takes longer than the timeout",
        wire.nothing_is_sent_twice,
    ),
    Mutation(
        "a NAK costs a retry that a timeout has paid already",
        SENDS,
        "psn in (self.restart_psn, self.psn)",
        "psn == self.restart_psn",
        "a NAK arrives when a timeout has made it go back already",
        laws.every_request_succeeds,
    ),
    Mutation(
        "progress does not give the retries back",
        SENDS,
        "        self.retries = attr.retry_cnt\n"
        "        self.rnr_retries = attr.rnr_retry\n"
        "        self.probing = False\n",
        "        self.rnr_retries = attr.rnr_retry\n        self.probing = False\n",
        "losses that outnumber the retries, with progress between",
        laws.every_request_succeeds,
    ),
    Mutation(
        "a retry costs nothing",
        SENDS,
        "            self.retries -= 1\n",
        "            pass\n",
        "the answers cease",
        wire.a_requester_goes_back_no_more_than_it_may,
    ),
    Mutation(
        "the last retry is not made",
        SENDS,
        "        if self.retries == 0:\n",
        "        if self.retries == 1:\n",
        "the answers cease",
        wire.a_requester_goes_back_no_more_than_it_may,
    ),
    Mutation(
        "the RNR wait is the one of the code before",
        "rc/timers.py",
        "profile.rnr_timer_us[code] * US",
        "profile.rnr_timer_us[code - 1] * US",
        "receives come late",
        wire.an_rnr_nak_is_waited_out,
    ),
    Mutation(
        "an RNR retry costs nothing",
        SENDS,
        "            self.rnr_retries -= 1\n",
        "            pass\n",
        "no receive ever comes",
        laws.every_work_request_completes_once_and_in_order,
    ),
    Mutation(
        "an unsignalled request leaves a completion",
        SENDS,
        "        if wqe.signaled or status is not WCStatus.SUCCESS:\n",
        "        if True:\n",
        "everything, both ways",
        laws.every_work_request_completes_once_and_in_order,
    ),
    Mutation(
        "an unsignalled request that fails leaves no completion",
        SENDS,
        "        if wqe.signaled or status is not WCStatus.SUCCESS:\n",
        "        if wqe.signaled:\n",
        "an unsignalled WRITE with a bad R_Key, and others behind",
        laws.every_work_request_completes_once_and_in_order,
    ),
    Mutation(
        "the newest request is flushed first",
        SENDS,
        "            self.complete(self.wqes[0], WCStatus.WR_FLUSH_ERR)\n",
        "            self.wqes.rotate(1)\n"
        "            self.complete(self.wqes[0], WCStatus.WR_FLUSH_ERR)\n",
        "an unsignalled WRITE with a bad R_Key, and others behind",
        laws.every_work_request_completes_once_and_in_order,
    ),
)
