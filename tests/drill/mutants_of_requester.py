"""Faults of the requester, and of the states of a queue pair, by the script that shows each."""

from __future__ import annotations

from mutations import COMPLETER, REQUESTER, RESPONDER, SENDS, Mutation

QP, CREDITS = "rc/qp.py", "rc/credits.py"

REQUESTER_MUTANTS: tuple[tuple[str, Mutation], ...] = (
    # What it sends, and what it makes of right answers.
    (
        "credits/none-kept",
        Mutation(
            "that a peer keeps no credits is not understood",
            CREDITS,
            "        if granted is None:\n            self.limited = False\n",
            "        if granted is None:\n",
        ),
    ),
    (
        "requester/immediate-data",
        Mutation(
            "immediate data is left out",
            REQUESTER,
            "                packet.imm_data = wr.imm_data\n",
            "                packet.imm_data = 0\n",
        ),
    ),
    (
        "requester/invalidate",
        Mutation(
            "the key to invalidate is left out",
            REQUESTER,
            "                packet.invalidate_rkey = wr.invalidate_rkey\n",
            "                packet.invalidate_rkey = wr.rkey\n",
        ),
    ),
    (
        "requester/local-protection",
        Mutation(
            "a local protection fault has the status of a remote one",
            REQUESTER,
            "                wqe.status = WCStatus.LOC_PROT_ERR\n",
            "                wqe.status = WCStatus.REM_ACCESS_ERR\n",
        ),
    ),
    (
        "requester/write-says-where",
        Mutation(
            "a WRITE says the length of its first packet",
            REQUESTER,
            "packet.va, packet.rkey, packet.dma_len = wr.remote_addr, wr.rkey, wqe.length",
            "packet.va, packet.rkey, packet.dma_len = wr.remote_addr, wr.rkey, size",
        ),
    ),
    (
        "requester/segmentation",
        Mutation(
            "a message that fills its packets ends with an empty one",
            REQUESTER,
            "        ends = size <= mtu\n",
            "        ends = size < mtu\n",
        ),
    ),
    (
        "requester/read",
        Mutation(
            "every response of a READ is stored at its start",
            COMPLETER,
            "wqe.wr.sg_list, wqe.received, packet.payload)",
            "wqe.wr.sg_list, 0, packet.payload)",
        ),
    ),
    (
        "requester/one-ack-for-many",
        Mutation(
            "an acknowledgement completes one request",
            COMPLETER,
            "            sends.complete(wqe, _SUCCESS)\n            while wqes and wqes[0]",
            "            sends.complete(wqe, _SUCCESS)\n            break\n"
            "            while wqes and wqes[0]",
        ),
    ),
    (
        "requester/ack-inside-a-message",
        Mutation(
            "an acknowledgement inside a message completes it",
            COMPLETER,
            "            if behind < wqe.packets:\n",
            "            if behind < 1:\n",
        ),
    ),
    (
        "requester/response-acknowledges-what-is-before",
        Mutation(
            "a READ response acknowledges nothing before it",
            COMPLETER,
            "            if not self._acknowledge_before(wqe.first_psn, now):\n",
            "            if False:\n",
        ),
    ),
    (
        "requester/what-was-never-asked",
        Mutation(
            "an answer to what was not sent counts",
            COMPLETER,
            "        if ahead >= (sends.next_psn - sends.una) & MASK:\n",
            "        if ahead > (sends.next_psn - sends.una) & MASK:\n",
        ),
    ),
    (
        "requester/reserved-syndromes",
        Mutation(
            "a reserved syndrome is an acknowledgement",
            COMPLETER,
            "        elif kind is AckKind.NAK:\n",
            "        elif kind is AckKind.RESERVED:\n"
            "            self._acknowledge_before(psn + 1 & MASK, now)\n"
            "        elif kind is AckKind.NAK:\n",
        ),
    ),
    (
        "requester/fatal-naks",
        Mutation(
            "a fatal NAK completes the request that it refuses",
            COMPLETER,
            "        if not self._acknowledge_before(psn if wqe is None else wqe.first_psn, now):\n"
            "            return\n"
            "        if code == NakCode",
            "        if not self._acknowledge_before(psn + 1 & MASK, now):\n            return\n"
            "        if code == NakCode",
        ),
    ),
    (
        "requester/reserved-bit-of-the-syndrome",
        Mutation(
            "the reserved bit of a syndrome is looked at",
            COMPLETER,
            "_KINDS[qp.profile.reserved_bit_fails]",
            "_KINDS[True]",
        ),
    ),
    (
        "requester/half-way-around",
        Mutation(
            "an answer from the future acknowledges all",
            COMPLETER,
            "            if qp.profile.acks_unsent:\n",
            "            if True:\n",
        ),
    ),
    (
        "requester/flush-and-atomic-write",
        Mutation(
            "a FLUSH covers nothing",
            REQUESTER,
            "            packet.dma_len = wr.length\n",
            "            packet.dma_len = 0\n",
        ),
    ),
    (
        "requester/flush-and-atomic-write",
        Mutation(
            "an ATOMIC WRITE brings zeros",
            REQUESTER,
            "            packet.payload = wr.atomic_data\n",
            "            packet.payload = bytes(8)\n",
        ),
    ),
    # Recovery.
    (
        "recovery/bad-responses",
        Mutation(
            "the length of a READ response is not looked at",
            COMPLETER,
            "        right = size == rest <= qp.mtu if form.is_last else size == qp.mtu < rest\n",
            "        right = True\n",
        ),
    ),
    (
        "recovery/read-that-goes-on",
        Mutation(
            "a READ response may go on beyond the end",
            COMPLETER,
            "if form.is_last else size == qp.mtu < rest\n",
            "if form.is_last else size == qp.mtu\n",
        ),
    ),
    (
        "recovery/timeout",
        Mutation(
            "the ACK timeout is half as long",
            "rc/timers.py",
            "    return max(nominal // profile.timer_granularity, 1)",
            "    return max(nominal // 2 // profile.timer_granularity, 1)",
        ),
    ),
    (
        "recovery/timeout-zero-waits-for-ever",
        Mutation(
            "the timeout code 0 is a short time",
            "rc/timers.py",
            "    if nominal is None:\n        return None\n",
            "    if nominal is None:\n        return 4 * US\n",
        ),
    ),
    (
        "recovery/second-nak-is-ignored",
        Mutation(
            "every sequence NAK makes the requester go back",
            SENDS,
            "        if psn in (self.restart_psn, self.psn) or self",
            "        if self",
        ),
    ),
    (
        "credits/fewer-than-before",
        Mutation(
            "credits that have become fewer take the limit back",
            CREDITS,
            "        if serial.is_newer(limit, self.lsn):\n",
            "        if True:\n",
        ),
    ),
    (
        "recovery/from-the-oldest-unacknowledged",
        Mutation(
            "an acknowledgement that makes progress does not start the timer anew",
            SENDS,
            "        self.arm(now)\n        if (psn - self.psn)",
            "        if (psn - self.psn)",
        ),
    ),
    (
        "sequence/behind-a-request-that-was-refused",
        Mutation(
            "what follows a refused request is executed until the NAK has left",
            RESPONDER,
            "        if self.failed:\n            return\n        if len(self.replies)",
            "        if len(self.replies)",
        ),
    ),
    (
        "address/headers-of-the-answers",
        Mutation(
            "answers come from a port that depends on their size",
            "rc/path.py",
            "self._headers.sized(size, self._source_port)",
            "self._headers.sized(size, 0xC000 + size)",
        ),
    ),
    (
        "address/marked-packets",
        Mutation(
            "a packet that was marked is discarded",
            QP,
            "            self.counters.ce_marked += 1\n",
            "            self.counters.ce_marked += 1\n            return\n",
        ),
    ),
    (
        "completions/reads-that-were-not-promised",
        Mutation(
            "a READ may be posted where none is promised",
            "rc/posting.py",
            "    if qp.attr.max_rd_atomic == 0:\n",
            "    if False:\n",
        ),
    ),
    (
        "completions/receive",
        Mutation(
            "the length of a WRITE with immediate data is not told",
            "rc/receive.py",
            "        size = self.filled if byte_len is None else byte_len\n",
            "        size = self.filled\n",
        ),
    ),
    (
        "states/communication-established",
        Mutation(
            "nobody is told of the first request",
            RESPONDER,
            "            if qp.state is QPState.RTR and qp.profile.reports_first_request:\n",
            "            if False:\n",
        ),
    ),
    (
        "states/drained-still-serves",
        Mutation(
            "a queue pair that drains serves nobody",
            QP,
            "        self.accepts_requests = state in TAKES_REQUESTS\n",
            "        self.accepts_requests = state in TAKES_REQUESTS - {QPState.SQD}\n",
        ),
    ),
    (
        "states/drained",
        Mutation(
            "a queue pair that drains begins new requests",
            REQUESTER,
            "(qp.state is not _RTS or not self._start(wqe))",
            "not self._start(wqe)",
        ),
    ),
    (
        "states/posting",
        Mutation(
            "sends are taken in every state",
            QP,
            "        rule = _SEND_RULES[self.state]\n",
            "        rule = Post.QUEUED\n",
        ),
    ),
    (
        "states/reset-forgets",
        Mutation(
            "RESET flushes",
            QP,
            "            self.sends.reset()\n",
            "            self.sends.flush()\n            self.sends.reset()\n",
        ),
    ),
    (
        "states/transitions",
        Mutation(
            "a queue pair moves as it likes",
            QP,
            "        check_transition(self.qp_type, self.state, mask, target, draining=draining)\n",
            "        pass\n",
        ),
    ),
    (
        "unreliable/no-answers",
        Mutation(
            "an unreliable connection acknowledges",
            "rc/unreliable.py",
            '        """Nobody is told."""\n',
            "        Responder._acknowledge(self, psn)\n",
        ),
    ),
    (
        "completions/full-queues",
        Mutation(
            "a receive queue takes any number of requests",
            "rc/receive.py",
            "        if len(self.waiting) >= limit:\n",
            "        if False:\n",
        ),
    ),
    (
        "recovery/duplicate-answers",
        Mutation(
            "a response to a READ that is under way counts whatever its PSN",
            COMPLETER,
            "        psn = packet.psn\n        operation = packet.form.operation\n",
            "        operation = packet.form.operation\n"
            "        is_read = operation is Operation.READ_RESPONSE\n"
            "        psn = self.sends.una if is_read else packet.psn\n"
            "        packet.psn = psn\n",
        ),
    ),
    (
        "recovery/window",
        Mutation(
            "a hundred packets are the window of every implementation",
            REQUESTER,
            "            if (psn - sends.una) & MASK > qp.profile.max_unacked_psns:\n",
            "            if (psn - sends.una) & MASK > 100:\n",
        ),
    ),
    (
        "access/flush-flags",
        Mutation(
            "a FLUSH needs no access",
            RESPONDER,
            "        if not self._permits(access):\n",
            "        access = 0\n        if not self._permits(access):\n",
        ),
    ),
    (
        "access/flush-of-no-kind",
        Mutation(
            "a FLUSH may be of any kind",
            RESPONDER,
            "        if not access or packet.plt > 3 or packet.sel > FlushLevel.MR",
            "        if False",
        ),
    ),
    (
        "read/with-a-payload",
        Mutation(
            "a READ request may have a payload",
            "rc/sizes.py",
            "    return bool(packet.payload) and profile.checks_request_payload\n",
            "    return False\n",
        ),
    ),
    (
        "rnr/immediate-and-invalidate",
        Mutation(
            "a WRITE with immediate data that finds no receive request ends the connection",
            RESPONDER,
            "                return self._refuse_not_ready(packet)\n"
            "            va, rkey, rest = packet",
            "                return self._refuse(packet)\n            va, rkey, rest = packet",
        ),
    ),
    (
        "rnr/inside-a-message",
        Mutation(
            "an RNR NAK acknowledges nothing in its message",
            COMPLETER,
            "        if self.qp.profile.nak_is_progress:\n            return None\n",
            "",
        ),
    ),
    (
        "rnr/progress-inside-a-message",
        Mutation(
            "progress does not give the RNR retries back",
            SENDS,
            "        self.rnr_retries = attr.rnr_retry\n        self.probing",
            "        self.probing",
        ),
    ),
    (
        "rnr/twice-the-same",
        Mutation(
            "an RNR NAK that comes again costs a retry",
            SENDS,
            "        if self.timers.rnr is not None and not self.qp.profile.counts_every_rnr",
            "        if False and self.qp.profile.counts_every_rnr",
        ),
    ),
    (
        "rnr/taken-after-all",
        Mutation(
            "an acknowledgement does not end an RNR wait",
            SENDS,
            "self.timers.rnr is not None and not self.qp.profile.sends_during_rnr_wait",
            "False",
        ),
    ),
    (
        "recovery/read-answered-in-part",
        Mutation(
            "the length of a READ response is not looked at",
            COMPLETER,
            "        if not qp.profile.checks_response_length:\n            if size",
            "        if True:\n            if size",
        ),
    ),
    (
        "recovery/nak-after-nak",
        Mutation(
            "a NAK of an even PSN is not heard",
            COMPLETER,
            "            self.sends.go_back(psn, now, implied=False)\n",
            "            if psn & 1:\n    "
            "            self.sends.go_back(psn, now, implied=False)\n",
        ),
    ),
    (
        "recovery/nak-after-a-timeout",
        Mutation(
            "a NAK after a timeout is not heard",
            SENDS,
            "self.restart_psn = None if self.qp.profile.nak_is_progress else self.una",
            "self.restart_psn = self.una",
        ),
    ),
    (
        "recovery/duplicate-ends-a-read",
        Mutation(
            "a READ response may be too short",
            COMPLETER,
            "        elif not right:\n",
            "        elif size > rest:\n",
        ),
    ),
    # Damage on the way.
    (
        "impairments/every-second-answer-lost",
        Mutation(
            "an acknowledgement completes one request",
            COMPLETER,
            "            sends.complete(wqe, _SUCCESS)\n            while wqes and wqes[0]",
            "            sends.complete(wqe, _SUCCESS)\n            break\n"
            "            while wqes and wqes[0]",
        ),
    ),
)
