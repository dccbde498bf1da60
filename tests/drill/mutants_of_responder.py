"""Faults of the responder, and of what lets packets in, by the script that shows each."""

from __future__ import annotations

from mutations import RESPONDER, Mutation

PACKET, QP, DEVICE, MEMORY = "rc/packet.py", "rc/qp.py", "rc/device.py", "rc/memory.py"

RESPONDER_MUTANTS: tuple[tuple[str, Mutation], ...] = (
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
            "        self.accepts_requests = state in TAKES_REQUESTS\n",
            "        self.accepts_requests = True\n",
        ),
    ),
    (
        "silence/responses-in-RTR",
        Mutation(
            "responses to nothing end a connection that has no requester yet",
            QP,
            "        if not (self._accepts_responses if form.is_response",
            "        if form.is_response and not self._accepts_responses:\n"
            "            self.enter_error()\n"
            "        if not (self._accepts_responses if form.is_response",
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
            "        if handler is None:\n",
            "        if handler is None or operation is None:\n",
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
            " and self.receives.srq is None and not qp.is_xrc",
            " and not qp.is_xrc",
        ),
    ),
)
