"""Faults of the transport by the script that shows each: every script must be able to fail.

`KNOWN` names faults of `mutations.py`; `MUTANTS` are those that only a script is needed for.
"""

from __future__ import annotations

from mutations import COMPLETER, REQUESTER, RESPONDER, Mutation

PACKET, QP, DEVICE, CREDITS, MEMORY = (
    "rc/packet.py",
    "rc/qp.py",
    "rc/device.py",
    "rc/credits.py",
    "rc/memory.py",
)
ANSWERS, CONNECTION, MANAGER, MESSAGES = (
    "cm/answers.py",
    "cm/connection.py",
    "cm/manager.py",
    "cm/messages.py",
)

MUTANTS: tuple[tuple[str, Mutation], ...] = (
    # What is discarded in silence.
    (
        "silence/truncated",
        Mutation(
            "a packet shorter than its headers is taken",
            PACKET,
            "    if first > last or flags & 15:\n        return None\n",
            "    if flags & 15:\n        return None\n    data = data[:last] + bytes(64)\n",
        ),
    ),
    (
        "silence/pad-beyond-the-packet",
        Mutation(
            "a pad count beyond the packet is taken",
            PACKET,
            "    if first > last or flags & 15:\n        return None\n",
            "    if flags & 15:\n        return None\n"
            "    if first > last:\n        last, pad = first, 0\n",
        ),
    ),
    (
        "silence/transport-version",
        Mutation(
            "the transport version is not looked at",
            PACKET,
            "    if first > last or flags & 15:\n",
            "    if first > last:\n",
        ),
    ),
    (
        "silence/reserved-bits",
        Mutation(
            "a packet with reserved bits is discarded",
            PACKET,
            "    if destination >> 24:\n",
            "    if destination >> 24 or psn >> 24 & 0x7F:\n        return None\n    if False:\n",
        ),
    ),
    (
        "silence/unknown-queue-pair",
        Mutation(
            "a packet for nobody goes to the first queue pair",
            DEVICE,
            "        qp = self.qps.get(packet.dest_qp)\n",
            "        qp = next(iter(self.qps.values()))\n",
        ),
    ),
    (
        "silence/partition",
        Mutation(
            "the partition is not looked at",
            QP,
            "        own = self._pkey\n",
            "        own = self._pkey\n        return True\n",
        ),
    ),
    (
        "silence/two-limited-members",
        Mutation(
            "limited members of a partition talk to each other",
            QP,
            " and bool((pkey | own) & 0x8000)",
            "",
        ),
    ),
    (
        "silence/foreign-address",
        Mutation(
            "anybody may send on a connection",
            QP,
            "        if arrival.source != self._peer or arrival.destination != self._source:\n",
            "        if False:\n",
        ),
    ),
    (
        "silence/foreign-transport",
        Mutation(
            "the transport service is not looked at",
            QP,
            "        if service is not self.service and service is not Service.CNP:\n",
            "        if False:\n",
        ),
    ),
    (
        "silence/unpadded",
        Mutation(
            "a payload without its padding is taken",
            QP,
            "        if profile.discards_unpadded and len(packet.payload)",
            "        if False and len(packet.payload)",
        ),
    ),
    (
        "silence/states",
        Mutation(
            "requests are taken in every state",
            QP,
            "        self.hears_requests = state in TAKES_REQUESTS\n",
            "        self.hears_requests = True\n",
        ),
    ),
    (
        "silence/responses-in-RTR",
        Mutation(
            "responses to nothing end a connection that has no requester yet",
            QP,
            "        if not (self._hears_responses if form.is_response",
            "        if form.is_response and not self._hears_responses:\n"
            "            self.enter_error()\n"
            "        if not (self._hears_responses if form.is_response",
        ),
    ),
    (
        "silence/other-ports-and-protocols",
        Mutation(
            "the UDP port is not looked at in headers like those that are known",
            "rc/path.py",
            "        + frame[ip + 22 : ip + 24]\n",
            "",
        ),
    ),
    (
        "sequence/inside-a-write",
        Mutation(
            "a READ is taken inside a message",
            RESPONDER,
            "        elif form.is_first or operation is not self._message:\n",
            "        elif operation not in (Operation.READ, self._message):\n",
        ),
    ),
    (
        "sequence/inside-a-send",
        Mutation(
            "a message begins inside another",
            RESPONDER,
            "        elif form.is_first or operation is not self._message:\n",
            "        elif operation is not self._message:\n",
        ),
    ),
    (
        "sequence/message-without-its-first",
        Mutation(
            "a message begins in its middle",
            RESPONDER,
            "            if not form.is_first:\n                self._refuse(packet)\n",
            "            if not form.is_first and not form.is_last:\n"
            "                self._refuse(packet)\n",
        ),
    ),
    (
        "sequence/message-after-a-read",
        Mutation(
            "a message that begins with its middle behind a READ is discarded",
            RESPONDER,
            "            if not form.is_first:\n                self._refuse(packet)\n",
            "            if not form.is_first:\n"
            "                if not self.resources:\n                    self._refuse(packet)\n",
        ),
    ),
    (
        "sequence/reserved-opcodes",
        Mutation(
            "a reserved opcode is discarded",
            RESPONDER,
            "        if operation is None and not qp.profile.naks_reserved_opcode:\n",
            "        if operation is None:\n",
        ),
    ),
    (
        "sequence/nothing-after-a-fatal-nak",
        Mutation(
            "a fatal NAK leaves the queue pair as it was",
            RESPONDER,
            "        if self.failed and not replies:\n            self.qp.enter_error()\n",
            "        if self.failed and not replies:\n            self.failed = False\n",
        ),
    ),
    # Access.
    (
        "access/queue-pair-flags",
        Mutation(
            "the access flags of a queue pair count for nothing",
            RESPONDER,
            "        return access & ~self.qp.attr.qp_access_flags == 0\n",
            "        return True\n",
        ),
    ),
    (
        "access/send-needs-no-flag",
        Mutation(
            "a SEND needs remote access",
            RESPONDER,
            "        if form.is_first and not receives.take(self._srq):\n",
            "        if not self._permits(_REMOTE_WRITE):\n"
            "            return self._refuse(packet)\n"
            "        if form.is_first and not receives.take(self._srq):\n",
        ),
    ),
    (
        "access/region-flags",
        Mutation(
            "the access flags of a region count for nothing",
            MEMORY,
            "target is None or target.pd is not pd or access & ~target.access:",
            "target is None or target.pd is not pd:",
        ),
    ),
    (
        "access/other-domain",
        Mutation(
            "every protection domain is open",
            MEMORY,
            "target is None or target.pd is not pd or access & ~target.access:",
            "target is None or access & ~target.access:",
        ),
    ),
    (
        "access/zero-length",
        Mutation(
            "the R_Key of an empty READ is checked",
            RESPONDER,
            "        if (\n            length\n            and qp.keys.find_remote(",
            "        if (\n            True\n            and qp.keys.find_remote(",
        ),
    ),
    (
        "access/deregistered-inside-a-message",
        Mutation(
            "a WRITE goes on in memory that was taken away",
            RESPONDER,
            "            if self._generation != qp.keys.generation or form.is_first:\n",
            "            if form.is_first:\n",
        ),
    ),
    # Lengths.
    (
        "length/packet-against-path-mtu",
        Mutation(
            "payloads are not held to the path MTU",
            RESPONDER,
            "        if qp.profile.checks_payload_size and not has_right_size(packet, qp.mtu):\n",
            "        if False:\n",
        ),
    ),
    (
        "length/write-against-its-length",
        Mutation(
            "a WRITE may be shorter than it says",
            RESPONDER,
            "            if size != rest or size > qp.mtu",
            "            if size > rest or size > qp.mtu",
        ),
    ),
    (
        "length/write-that-ends-wrong",
        Mutation(
            "the last packet of a WRITE may be short",
            RESPONDER,
            "            if size != rest or size > qp.mtu",
            "            if (size != rest and form.is_first) or size > qp.mtu",
        ),
    ),
    (
        "length/too-large-a-message",
        Mutation(
            "a message may have more than 2^31 bytes",
            "rc/sizes.py",
            "    return length > MAX_MESSAGE and profile.checks_message_length\n",
            "    return False\n",
        ),
    ),
    (
        "length/pad-count",
        Mutation(
            "a WRITE has no padding",
            RESPONDER,
            "packet.pad_count != -size & 3:",
            "packet.pad_count:",
        ),
    ),
    (
        "length/send-larger-than-the-buffer",
        Mutation(
            "a SEND that is too long draws the wrong NAK",
            RESPONDER,
            "            return self._refuse(packet, qp.profile.oversized_send,",
            "            return self._refuse(packet, NakCode.REMOTE_ACCESS_ERROR,",
        ),
    ),
    (
        "length/send-that-outgrows-the-buffer",
        Mutation(
            "every packet of a SEND is held against the whole buffer",
            "rc/receive.py",
            "        return self.filled + size <= self.room\n",
            "        return size <= self.room\n",
        ),
    ),
    (
        "length/receive-buffer-at-fault",
        Mutation(
            "a wrong receive buffer is the requester's fault",
            RESPONDER,
            "                packet, NakCode.REMOTE_OPERATIONAL_ERROR, qp",
            "                packet, NakCode.INVALID_REQUEST, qp",
        ),
    ),
    # READs and atomics at the responder.
    (
        "read/without-ack-request",
        Mutation(
            "a READ that asks for no acknowledgement is not answered",
            RESPONDER,
            "        self._answer(resource)\n        return True\n\n    def _handle_atomic(",
            "        if packet.ack_req:\n            self._answer(resource)\n"
            "        return True\n\n    def _handle_atomic(",
        ),
    ),
    (
        "read/taken-away-meanwhile",
        Mutation(
            "a READ whose memory is gone is acknowledged",
            RESPONDER,
            "            if found is None:\n                self.replies.clear()\n",
            "            if found is None:\n"
            "                self.replies.clear()\n"
            "                self._acknowledge(psn)\n"
            "                return None\n"
            "            if found is None:\n",
        ),
    ),
    (
        "read/none-promised",
        Mutation(
            "one READ is always taken",
            RESPONDER,
            "        return waiting < limit\n",
            "        return waiting < max(limit, 1)\n",
        ),
    ),
    (
        "atomic/fetch-add",
        Mutation(
            "FETCH ADD does not carry",
            RESPONDER,
            "region.store64(offset, original + packet.swap)",
            "region.store64(offset, original ^ packet.swap)",
        ),
    ),
    (
        "atomic/alignment",
        Mutation(
            "atomics may be unaligned",
            RESPONDER,
            "        unaligned = bool(packet.va & 7)\n",
            "        unaligned = False\n",
        ),
    ),
    (
        "atomic/write",
        Mutation(
            "an ATOMIC WRITE stores its bytes the other way round",
            RESPONDER,
            "region.buffer[offset : offset + 8] = packet.payload",
            "region.buffer[offset : offset + 8] = packet.payload[::-1]",
        ),
    ),
    (
        "atomic/write-of-a-wrong-size",
        Mutation(
            "the length of an ATOMIC WRITE is not looked at",
            RESPONDER,
            "        if packet.va & 7 or packet.dma_len != 8 or len(packet.payload) != 8:\n",
            "        if packet.va & 7 or len(packet.payload) != 8:\n",
        ),
    ),
    (
        "duplicates/read-outside-the-original",
        Mutation(
            "a duplicate READ may ask for anything",
            "rc/replies.py",
            "        if packet.rkey != resource.rkey or packet.va != resource.va + done:\n",
            "        if False:\n",
        ),
    ),
    (
        "duplicates/with-a-bad-key",
        Mutation(
            "the R_Key of a duplicate is checked again",
            RESPONDER,
            "        operation = packet.form.operation\n        if operation is Operation.READ:\n",
            "        operation = packet.form.operation\n"
            "        if operation is Operation.WRITE and packet.rkey not in qp.keys._regions:\n"
            "            self._refuse(packet)\n"
            "            return\n"
            "        if operation is Operation.READ:\n",
        ),
    ),
    (
        "duplicates/without-ack-request",
        Mutation(
            "a duplicate that asks for no acknowledgement is refused",
            RESPONDER,
            "        qp.counters.duplicates += 1\n",
            "        qp.counters.duplicates += 1\n"
            "        if not packet.ack_req:\n            self._refuse(packet)\n",
        ),
    ),
    # Acknowledgements and credits of the responder.
    (
        "acks/asked-for",
        Mutation(
            "only the end of a message is acknowledged",
            RESPONDER,
            "            if packet.ack_req and operation in _ACKNOWLEDGED:\n",
            "            if packet.ack_req and form.is_last and operation in _ACKNOWLEDGED:\n",
        ),
    ),
    (
        "acks/coalesced",
        Mutation(
            "of two acknowledgements that wait the older leaves",
            RESPONDER,
            "                last.psn, last.msn = psn, self.msn\n",
            "                pass\n",
        ),
    ),
    (
        "wrap/psn-of-the-responder",
        Mutation(
            "the expected PSN does not wrap",
            RESPONDER,
            "        self.epsn = packet.psn + 1 & MASK\n",
            "        self.epsn = min(packet.psn + 1, MASK)\n",
        ),
    ),
    (
        "credits/none-with-a-shared-queue",
        Mutation(
            "a shared queue gives credits",
            RESPONDER,
            " and qp.receives.srq is None and not qp.is_xrc",
            " and not qp.is_xrc",
        ),
    ),
    # The requester.
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
            "            requester.complete(wqe, WCStatus.SUCCESS)\n"
            "            while wqes and wqes[0]",
            "            requester.complete(wqe, WCStatus.SUCCESS)\n            break\n"
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
            "        if wqe is None or not self._acknowledge_before(wqe.first_psn, now):\n",
            "        if wqe is None:\n",
        ),
    ),
    (
        "requester/what-was-never-asked",
        Mutation(
            "an answer to what was not sent counts",
            COMPLETER,
            "        if ahead >= (requester.next_psn - requester.una) & MASK:\n",
            "        if ahead > (requester.next_psn - requester.una) & MASK:\n",
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
            "        if not self._acknowledge_before(psn, now):\n            return\n"
            "        if code == NakCode",
            "        if not self._acknowledge_before(psn + 1 & MASK, now):\n            return\n"
            "        if code == NakCode",
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
            COMPLETER,
            "        if psn in (requester.restart_psn, requester.psn) or requester",
            "        if requester",
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
            REQUESTER,
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
            "        self.hears_requests = state in TAKES_REQUESTS\n",
            "        self.hears_requests = state in TAKES_REQUESTS and state is not QPState.SQD\n",
        ),
    ),
    (
        "states/drained",
        Mutation(
            "a queue pair that drains begins new requests",
            REQUESTER,
            "(qp.state is not QPState.RTS or not self._start(wqe))",
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
            "            self.requester.reset()\n",
            "            self.requester.flush()\n            self.requester.reset()\n",
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
            "        psn = requester.una if is_read else packet.psn\n"
            "        packet.psn = psn\n",
        ),
    ),
    (
        "recovery/window",
        Mutation(
            "a hundred packets are the window of every implementation",
            REQUESTER,
            "            if (psn - self.una) & MASK > qp.profile.max_unacked_psns:\n",
            "            if (psn - self.una) & MASK > 100:\n",
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
    # Damage on the way.
    (
        "impairments/every-second-answer-lost",
        Mutation(
            "an acknowledgement completes one request",
            COMPLETER,
            "            requester.complete(wqe, WCStatus.SUCCESS)\n"
            "            while wqes and wqes[0]",
            "            requester.complete(wqe, WCStatus.SUCCESS)\n            break\n"
            "            while wqes and wqes[0]",
        ),
    ),
    # How connections are made and ended.
    (
        "cm/request-reply-ready",
        Mutation(
            "both sides begin with the PSN of one",
            CONNECTION,
            '            "sq_psn": other.starting_psn,\n',
            '            "sq_psn": own.starting_psn,\n',
        ),
    ),
    (
        "cm/no-listener",
        Mutation(
            "a service that nobody serves is refused for another reason",
            ANSWERS,
            "        return refusal(request, cm.RejectReason.INVALID_SERVICE_ID)\n",
            "        return refusal(request, cm.RejectReason.NO_RESOURCES)\n",
        ),
    ),
    (
        "cm/refused-by-the-manager",
        Mutation(
            "a path MTU that no queue pair has is taken",
            ANSWERS,
            "    if request.path_packet_payload_mtu not in MTU_BYTES:\n",
            "    if False:\n",
        ),
    ),
    (
        "cm/duplicate-request",
        Mutation(
            "a REQ that comes again is another connection",
            MANAGER,
            "        if known is not None:\n",
            "        if False:\n",
        ),
    ),
    (
        "cm/lost-ready",
        Mutation(
            "a REP is repeated after the time that the peer has for its own",
            CONNECTION,
            "duration(request.local_cm_response_timeout)",
            "duration(request.remote_cm_response_timeout)",
        ),
    ),
    (
        "cm/reply-never-answered",
        Mutation(
            "a question is repeated for ever",
            MANAGER,
            "is Wait.LINGER or not connection.retries_left:\n",
            "is Wait.LINGER:\n",
        ),
    ),
    (
        "cm/request-never-answered",
        Mutation(
            "a REQ is repeated once too often",
            CONNECTION,
            "        request.max_cm_retries,\n",
            "        request.max_cm_retries + 1,\n",
        ),
    ),
    (
        "cm/asks-itself",
        Mutation(
            "a REP that comes again is ignored",
            MANAGER,
            "            if answer.local_comm_id == connection.remote_id:\n",
            "            if False:\n",
        ),
    ),
    (
        "cm/asked-to-wait",
        Mutation(
            "the time that an MRA asks for is not given",
            MANAGER,
            "            time += duration(received.message.service_timeout)\n",
            "            time += 0\n",
        ),
    ),
    (
        "cm/disconnect",
        Mutation(
            "who ends a connection that is over is not answered",
            MANAGER,
            "        if isinstance(message, cm.DREQ):\n            #",
            "        if False:\n            #",
        ),
    ),
    (
        "cm/disconnects-itself",
        Mutation(
            "the last repetition is not made",
            MANAGER,
            "or not connection.retries_left:\n",
            "or connection.retries_left <= 1:\n",
        ),
    ),
    (
        "cm/both-disconnect",
        Mutation(
            "a DREP has the transaction of our own DREQ",
            MANAGER,
            "                transaction = received.transaction_id\n",
            "                transaction = connection.transaction_id\n",
        ),
    ),
    (
        "cm/rejected",
        Mutation(
            "the application is not told why it was refused",
            MANAGER,
            "reason=message.reason, ari=used",
            "ari=used",
        ),
    ),
    (
        "cm/stale",
        Mutation(
            "a peer that has forgotten its connection gets a second one",
            MANAGER,
            "            if stale is not None:\n                # The",
            "            if False:\n                # The",
        ),
    ),
    (
        "cm/wrong-ids",
        Mutation(
            "the queue pair that a DREQ names is not looked at",
            MANAGER,
            "not isinstance(message, cm.DREQ) or message.remote_qpn == connection.local_qpn",
            "True",
        ),
    ),
    (
        "cm/data-before-ready",
        Mutation(
            "the first data does not stand for an RTU",
            MANAGER,
            "        if connection is not None and not connection.is_active:\n",
            "        if False:\n",
        ),
    ),
    (
        "cm/damaged",
        Mutation(
            "the class version is not looked at",
            MESSAGES,
            "        or common.class_version != CLASS_VERSION\n",
            "",
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
)

KNOWN: dict[str, tuple[str, ...]] = {
    "every packet that is ahead draws a NAK": ("sequence/gap-draws-one-nak",),
    "the NAK latch is never released": ("sequence/nak-after-each-gap",),
    "an RNR NAK does not set the latch": ("rnr/tail-is-discarded",),
    "duplicates advance the MSN": ("atomic/flush",),
    "a READ does not advance the MSN": (
        "acks/msn",
        "read/sees-the-write-before",
        "rnr/write-needs-no-receive",
    ),
    "a READ takes one PSN": (
        "duplicates/read",
        "read/more-than-promised",
        "read/next-request-does-not-wait",
    ),
    "the responder compares PSNs as plain integers": (
        "sequence/ahead-region",
        "sequence/behind-region",
    ),
    "a refused packet counts as taken": ("rnr/again-and-again", "rnr/only"),
    "a duplicate is acknowledged with its own PSN": (
        "duplicates/inside-a-message",
        "duplicates/write",
    ),
    "a duplicate is not acknowledged": ("duplicates/inside-a-message",),
    "a responder that has refused goes on answering": (
        "sequence/behind-a-request-that-was-refused",
    ),
    "NAKs carry credits": (
        "access/deregistered",
        "acks/nak-has-the-msn-before",
        "credits/none-in-a-nak",
    ),
    "a WRITE is stored before its R_Key is checked": (
        "access/bad-key",
        "access/partly-valid-write",
    ),
    "every packet of a WRITE goes where the first went": (
        "impairments/overtaken",
        "rnr/write-with-immediate",
        "wrap/gap",
    ),
    "one byte beyond a region may be read": ("access/bounds", "access/memory-window"),
    "a SEND with invalidate invalidates nothing": (
        "access/invalidate-of-a-bad-key",
        "access/invalidated-window",
    ),
    "the newest receive request is taken first": ("completions/queue-overrun",),
    "a receive buffer is filled from where the last one ended": (
        "completions/in-order",
        "duplicates/send",
        "unreliable/resynchronises",
    ),
    "a READ that is asked for again begins with its first byte": (
        "duplicates/read-of-the-rest",
        "wrap/read",
    ),
    "a duplicate atomic is executed again": (
        "atomic/duplicate-of-several",
        "atomic/duplicates-are-not-executed",
        "impairments/everything-twice",
    ),
    "a duplicate atomic is answered with the number of now": ("atomic/duplicate-of-several",),
    "compare and swap are exchanged": ("atomic/compare-swap",),
    "one READ too many is kept": (
        "atomic/flush-that-is-forgotten",
        "atomic/forgotten-result",
    ),
    "an ACK behind a READ completes it": ("recovery/implied-nak",),
    "a gap in the responses of a READ goes unnoticed": ("recovery/read-gap",),
    "the result of an atomic is stored in the order of the wire": ("requester/atomics",),
    "the requester compares PSNs as plain integers": ("wrap/requester",),
    "a NAK makes the requester begin one packet too late": (
        "recovery/nak-completes-what-is-before",
        "recovery/nak-of-the-first",
        "recovery/sequence-nak",
    ),
    "a READ is asked for again from its first address": ("recovery/read-gap",),
    "a READ is asked for again in its full length": ("recovery/read-gap",),
    "every packet of a message is solicited": ("requester/solicited",),
    "a WRITE without immediate is solicited": ("requester/solicited",),
    "a fence is passed": ("requester/fence",),
    "one READ more than max_rd_atomic is outstanding": ("requester/reads-within-the-limit",),
    "padding is the rest, not what is missing": (
        "access/edges-that-are-allowed",
        "read/of-several-packets",
        "read/segmentation",
        "requester/one-packet",
    ),
    "the ICRC is not checked": (
        "address/ipv6",
        "impairments/damaged-on-the-way",
        "silence/wrong-icrc",
        "silence/wrong-icrc-of-an-answer",
    ),
    "the credit code is rounded up": ("credits/granted",),
    "fewer credits than before take what was granted back": ("credits/fewer-than-before",),
    "more credits are promised than there are receive requests": ("credits/granted",),
    "two messages are started beyond the credits": (
        "credits/a-ghost-brings-them",
        "credits/one-message-before-any",
    ),
    "a message beyond the credits is sent whole": ("credits/limited-message",),
    "a message that needs no credit takes one": ("credits/writes-need-none",),
    "the ACK timer is not started": (
        "impairments/late-answer",
        "recovery/late-answer-ends-the-retry",
        "recovery/lost-ack",
        "recovery/read-timeout",
    ),
    "progress does not push the ACK timer back": ("recovery/from-the-oldest-unacknowledged",),
    "progress does not give the retries back": ("recovery/progress-gives-retries-back",),
    "a retry costs nothing": (
        "impairments/everything-lost",
        "recovery/naks-use-up-retries",
        "recovery/retry-count",
    ),
    "the last retry is not made": (
        "impairments/last-retry-arrives",
        "recovery/naks-use-up-retries",
    ),
    "the RNR wait is the one of the code before": (
        "recovery/rnr-in-the-middle",
        "rnr/seven-is-for-ever",
        "rnr/waits-for-the-timer",
    ),
    "an RNR retry costs nothing": ("rnr/retries",),
    "an unsignalled request leaves a completion": ("requester/unsignalled",),
    "an unsignalled request that fails leaves no completion": ("requester/unsignalled-failure",),
    "the newest request is flushed first": (
        "requester/read-takes-its-psns",
        "states/error-flushes",
    ),
}
"""Scripts by the fault of `mutations.py` that they show."""

UNSEEN: dict[str, str] = {
    "a type 2 window serves every queue pair": "a script has one queue pair",
    "a window lies anywhere in its region": "a script binds windows without a work request",
    "the window is not looked at inside a message": "spec has no window that a script reaches",
    "a NAK costs a retry that a timeout has paid already": "what is due leaves at once",
}
"""Faults of `mutations.py` that no script shows, and why."""
