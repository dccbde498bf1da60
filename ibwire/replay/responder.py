"""Compares a recorded responder with an emulated one.

The recorded requests of a connection are passed to an emulated responder one by one, and
each emulated response is compared with the next recorded one. A request waits
until its recorded response is known, because only that shows some facts: whether a receive
request was posted, a key valid, a buffer large enough. Each of these is listed as
inferred. Everything else, above all opcode, PSN, MSN and syndrome of every response,
comes from the emulator.

Packets are read as a stream and dropped after the comparison.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from typing import Protocol

from ibwire.base.units import NS
from ibwire.rc.attributes import MTU_CODES
from ibwire.rc.memory import Access
from ibwire.rc.packet import TransportPacket, encode
from ibwire.rc.profile import Profile
from ibwire.rc.qp import QueuePair
from ibwire.rc.work import SGE, RecvWR
from ibwire.replay.beginning import Beginning
from ibwire.replay.emulated import PathEnds, queue_pair_at
from ibwire.replay.inferred import InferredKeys, Memory
from ibwire.replay.recorded import Exchange, RecordedPacket
from ibwire.replay.report import ReplayReport, summary_of
from ibwire.replay.response_kinds import is_plain_ack, nak_code
from ibwire_layers import syndrome as aeth
from ibwire_layers.opcodes import Operation
from ibwire_layers.psn import MASK, distance
from ibwire_layers.syndrome import CREDITS, INVALID_CREDITS, AckKind, NakCode

LOOKAHEAD = 2048
"""Largest number of requests that wait for the next response; more are replayed without it."""

UNMATCHED = 256
"""Consecutive emulated responses without a recorded one that are compared."""

READS = 256
"""READ requests whose addresses are kept, to find the memory that their responses show."""

SMALLEST_MTU = 256
LARGEST_MTU = 4096
"""Path MTU until a packet shows it."""

MAX_READ = 1 << 31
"""Bytes of a message (IBA 9.7.2)."""


class ReplayOutput(Protocol):
    """Takes the packets of the emulated connection."""

    def recorded(self, packet: RecordedPacket) -> None:
        """Take a recorded packet that was passed to the emulation."""
        ...

    def emulated(self, frame: bytes, time_ns: int, link: str) -> None:
        """Take a frame that the emulation has sent."""
        ...


@dataclass(slots=True)
class _Read:
    psn: int
    count: int
    va: int
    rkey: int


class ResponderReplay:
    """The replay of one connection: call `advance` after each packet of its exchange."""

    def __init__(
        self, exchange: Exchange, profile: Profile, memory: Memory, tap: ReplayOutput | None = None
    ) -> None:
        self.exchange = exchange
        self.report = ReplayReport.of(exchange, "responder", profile.name)
        self._profile = profile
        self._memory = memory
        self._host = exchange.key[1]
        self._keys = InferredKeys(memory, self._host)
        self._forbidden = False
        """Whether the queue pair does not allow the current request."""
        self._tap = tap
        self._qp: QueuePair | None = None
        self._link = "rocev2"
        self._mtu = 0
        """0 until a packet shows it."""
        self._held: TransportPacket | None = None
        """An emulated response that has not been compared yet."""
        self._reads: deque[_Read] = deque(maxlen=READS)
        self._message: Operation | None = None
        """SEND or WRITE within a message of several packets."""
        self._last_number = 0
        self._last_time = 0
        self._unmatched = 0
        """Emulated responses in a row that were not recorded."""
        self._beginning = Beginning(exchange, self.report, LOOKAHEAD)
        self._knows_msn = exchange.first_psn is not None
        """Whether the MSN is that of the recorded responder."""

    def advance(self) -> None:
        """Replay as far as the recorded responses allow."""
        self._run(closing=False)

    def finish(self) -> ReplayReport:
        """Replay the rest and return the report."""
        self._run(closing=True)
        report = self.report
        exchange = self.exchange
        report.src_qpn = exchange.src_qpn
        report.requests = exchange.seen_requests
        report.responses = exchange.seen_responses
        for rkey, use in self._keys.use.items():
            names = [a.name for a in _REMOTE if a.name and use.access & a]
            what = f"key {rkey:#010x} opens {use.start:#x} to {use.end:#x} for {', '.join(names)}"
            report.infer(what.lower(), exchange.first_number)
        if report.differences and report.left_out and exchange.first_psn is None:
            report.infer(_UNKNOWN_STATE, exchange.first_number)
        return report

    def _run(self, *, closing: bool) -> None:
        requests, responses = self.exchange.requests, self.exchange.responses
        while True:
            expected, request = responses.first, requests.first
            hurried = closing or self.exchange.backlog.is_full
            if expected is None and not hurried and len(requests) < LOOKAHEAD:
                return
            qp = self._qp
            if expected is not None and self._is_left_over(expected):
                responses.popleft()
                self._miss(expected)
                continue
            if self._held is None and qp is not None and qp.responder.replies:
                if self._took_request_earlier(qp, request, expected) and request is not None:
                    if not hurried and self._waits_for_response(request):
                        return
                    self._feed(requests.popleft(), self._response_to(qp, request))
                    continue
                self._held = self._poll(qp, expected)
            if self._held is not None:
                self._compare(self._held, expected)
            elif expected is not None and self._is_unsolicited_credit(request, expected):
                continue
            elif request is not None:
                if expected is not None and self._cannot_answer(expected, request):
                    responses.popleft()
                    self._miss(expected)
                elif not hurried and self._waits_for_more(request, expected):
                    return
                else:
                    self._feed(requests.popleft(), expected)
            elif expected is not None and (hurried or len(responses) > LOOKAHEAD):
                responses.popleft()
                self._miss(expected)
            else:
                return

    # Progress of the recorded responder.

    def _took_request_earlier(
        self, qp: QueuePair, request: RecordedPacket | None, expected: RecordedPacket | None
    ) -> bool:
        """Whether the next response shows that the responder handled this request before it.

        A responder may accept requests while it answers others, or leave them waiting: the MSN
        or the PSN of the response shows which.
        """
        if request is None or expected is None:
            return False
        if request.is_apart or request.number > expected.number:
            return False
        shown = expected.packet
        reply = qp.responder.replies[0]
        ahead = distance(reply.psn + reply.position & MASK, shown.psn)
        coalesces = qp.profile.coalesces_acks and reply.resource is None and reply.syndrome is None
        if ahead > 0:
            return coalesces
        if ahead < 0 or (reply.position > reply.first and shown.form.is_first):
            return self._may_answer_duplicate(qp, expected)
        if coalesces and distance(qp.responder.epsn, request.packet.psn) < 0:
            return True  # one response to all duplicates
        if not shown.form.has_aeth or not self._knows_msn:
            return False
        return self._completes(distance(qp.responder.msn, shown.msn), expected)

    def _may_answer_duplicate(self, qp: QueuePair, expected: RecordedPacket) -> bool:
        """Whether a response may answer duplicate requests before it."""
        return any(
            distance(qp.responder.epsn, request.packet.psn) < 0
            and distance(request.packet.psn, expected.packet.psn) >= 0
            for request in self.exchange.requests
            if request.number < expected.number
        )

    def _completes(self, messages: int, expected: RecordedPacket) -> bool:
        """Whether the requests before a response complete this number of messages, at least one."""
        if messages <= 0:
            return False
        for request in self.exchange.requests:
            if request.number > expected.number:
                break
            messages -= request.packet.form.is_last
            if not messages:
                return True
        return False

    def _waits_for_response(self, request: RecordedPacket) -> bool:
        """Whether the recorded response to a request may still follow."""
        exchange = self.exchange
        if max(len(exchange.requests), len(exchange.responses)) > LOOKAHEAD:
            return False
        return not any(
            each.number > request.number and distance(request.packet.psn, each.packet.psn) >= 0
            for each in exchange.responses
        )

    def _waits_for_result(self, request: RecordedPacket) -> bool:
        """Whether only the response to an atomic, which may follow, shows what it changes."""
        packet = request.packet
        if packet.form.operation not in _ATOMICS or len(self.exchange.requests) >= LOOKAHEAD:
            return False
        if self._memory.is_known((self._host, packet.rkey), packet.va, 8):
            return False
        return self._waits_for_response(request) and self._result_of(packet) is None

    def _result_of(self, packet: TransportPacket) -> TransportPacket | None:
        """The recorded response to an atomic."""
        for response in self.exchange.responses:
            shown = response.packet
            if shown.psn == packet.psn and shown.form.operation is Operation.ATOMIC_ACKNOWLEDGE:
                return shown
        return None

    def _response_to(self, qp: QueuePair, request: RecordedPacket) -> RecordedPacket | None:
        """The recorded response to a request that is accepted while others are being answered."""
        for response in self.exchange.responses:
            shown = response.packet
            ahead = distance(request.packet.psn, shown.psn)
            if response.number < request.number or ahead < 0:
                continue
            if ahead > 0:
                return None
            code = shown.syndrome if shown.form.has_aeth else None
            if all((each.psn, each.syndrome) != (shown.psn, code) for each in qp.responder.replies):
                return response
        return None

    def _is_unsolicited_credit(
        self, request: RecordedPacket | None, expected: RecordedPacket
    ) -> bool:
        """Whether the next response gives unsolicited credits; the emulated responder then does."""
        qp, shown = self._qp, expected.packet
        if qp is None or not qp.profile.live_credits or not is_plain_ack(shown):
            return False
        last = qp.responder.epsn - 1 & MASK
        if shown.psn != last or qp.responder.failed:
            return False
        if request is not None and distance(last, request.packet.psn) <= 0:
            return False  # it may be the response to a duplicate
        self._set_credits(qp, shown, expected.number)
        qp.responder.send_credits()
        qp.receives.waiting.clear()
        if not qp.responder.replies:
            return False
        self.report.infer("receive requests were posted", expected.number)
        return True

    # Requests.

    def _feed(self, recorded: RecordedPacket, expected: RecordedPacket | None) -> None:
        """Pass a request to the responder."""
        packet = recorded.packet
        self._last_number, self._last_time = recorded.number, recorded.time_ns
        self._learn_mtu(packet, expected)
        if self._qp is None:
            if not self._beginning.allows(recorded, expected):
                return
            self._qp = self._create(recorded, expected)
            if self._qp is None:
                return
        qp, keys = self._qp, self._keys
        responder = qp.responder
        if self._mtu and qp.mtu != self._mtu:
            qp.mtu = self._mtu
            qp.attr.path_mtu = MTU_CODES[self._mtu]
        is_next = packet.psn == responder.epsn and not responder.failed
        if is_next and not self._infer(qp, recorded, expected):
            return
        if self._tap is not None:
            self._tap.recorded(recorded)
        if packet.form.operation is Operation.READ:
            count = max(-(-packet.dma_len // qp.mtu), 1)
            self._reads.append(_Read(packet.psn, count, packet.va, packet.rkey))
        before = responder.epsn
        self._beginning.advance(before)
        flags = qp.attr.qp_access_flags
        if self._forbidden:
            qp.attr.qp_access_flags = 0
        keys.expect()
        qp.handle_packet(packet, recorded.time_ns * NS)
        qp.attr.qp_access_flags = flags
        if responder.epsn != before:
            operation = packet.form.operation
            segmented = operation in _SEGMENTED and not packet.form.is_last
            self._message = operation if segmented else None
            keys.release(8 if operation in _ATOMICS else len(packet.payload))
        keys.denied = self._forbidden = False

    def _cannot_answer(self, response: RecordedPacket, request: RecordedPacket) -> bool:
        """Whether a response was recorded before a request, or, where that is a READ and the first
        of all, acknowledges an earlier one: the response to the READ shows the path MTU."""
        if _precedes(response, request):
            return True
        is_read = self._qp is None and request.packet.form.operation is Operation.READ
        is_older = distance(request.packet.psn, response.packet.psn) < 0
        return is_read and is_older and is_plain_ack(response.packet)

    def _waits_for_more(self, request: RecordedPacket, expected: RecordedPacket | None) -> bool:
        """Whether a later packet shows what to do with a request."""
        if self._qp is None and self._beginning.is_open(request, expected):
            return True
        return self._waits_for_result(request)

    def _create(
        self, recorded: RecordedPacket, expected: RecordedPacket | None
    ) -> QueuePair | None:
        """The emulated queue pair, connected as the capture shows it."""
        packet = recorded.packet
        psn = packet.psn
        first = self.exchange.first_psn
        answer = expected.packet if expected is not None else None
        if first is not None:
            psn = first
        elif answer is not None and nak_code(answer) == NakCode.PSN_SEQUENCE_ERROR:
            if distance(answer.psn, psn) > 0:
                psn = answer.psn
                self.report.infer("PSN of the first request, from a NAK for it", recorded.number)
        elif (
            answer is not None
            and is_plain_ack(answer)
            and not answer.msn
            and packet.form.is_last
            and packet.form.operation in _SEGMENTED
        ):
            psn = psn + 1 & MASK
            self.report.infer("a duplicate, as MSN 0 of the answer says", recorded.number)
        here = PathEnds.of_receiver(recorded) if expected is None else PathEnds.of_sender(expected)
        qp = queue_pair_at(
            replace(here, pkey=packet.pkey | 0x8000),
            packet.dest_qp,
            self._profile,
            self._keys,
            dest_qp_num=self.exchange.src_qpn or 0,
            rq_psn=psn,
        )
        if qp is None:
            self.report.infer("its QP number cannot be a connection's", recorded.number)
        else:
            self._link = qp.device.link
            self._beginning.begin(psn)
        return qp

    def _learn_mtu(self, packet: TransportPacket, expected: RecordedPacket | None) -> None:
        """Learn the path MTU from a packet that is neither the last nor the only one."""
        if self._mtu:
            return
        packets = [packet, *([] if expected is None else [expected.packet])]
        if packet.form.operation is Operation.READ and packet.dma_len > SMALLEST_MTU:
            # Its response needs it.
            exchange = self.exchange
            packets += [each.packet for each in (*exchange.responses, *exchange.requests)]
        for shown in packets:
            if shown.form.is_last or shown.form.operation not in _FULL:
                continue
            if len(shown.payload) in MTU_CODES:
                self._mtu = len(shown.payload)
                return

    def _infer(
        self, qp: QueuePair, recorded: RecordedPacket, expected: RecordedPacket | None
    ) -> bool:
        """Arrange what the recorded response shows about the expected request.

        `False` if the request never arrived.
        """
        packet = recorded.packet
        form = packet.form
        answer = expected.packet if expected is not None else None
        syndrome = None
        if (
            answer is not None
            and answer.form.operation is Operation.ACKNOWLEDGE
            and answer.psn == packet.psn
        ):
            syndrome = answer.syndrome
        kind = None if syndrome is None else aeth.kind(syndrome)
        code = None if syndrome is None or kind is not AckKind.NAK else aeth.code(syndrome)
        if code == NakCode.PSN_SEQUENCE_ERROR:
            self.report.infer(
                "lost after the capture point, as a NAK for it shows", recorded.number
            )
            return False
        room = _ENDLESS
        if code is not None and self._is_sound(packet, qp.mtu):
            room = self._infer_refusal(qp, recorded, code)
        waiting = qp.receives.waiting
        waiting.clear()
        if form.takes_receive:
            if kind is AckKind.RNR_NAK and syndrome is not None:
                qp.attr.min_rnr_timer = aeth.code(syndrome)
                what = f"receive queue empty, RNR timer code {aeth.code(syndrome)}"
                self.report.infer(what, recorded.number)
            else:
                waiting.append(room)
        result = self._result_of(packet) if form.operation in _ATOMICS else None
        if result is not None:
            original = result.original.to_bytes(8, "little")
            space = self._host, packet.rkey
            if not self._memory.contradicts(space, packet.va, original):
                self._memory.write(space, packet.va, original)
        return True

    def _infer_refusal(self, qp: QueuePair, recorded: RecordedPacket, code: int) -> RecvWR:
        """Arrange that the responder refuses a valid request with a NAK code.

        Returns the receive request that it finds.
        """
        packet = recorded.packet
        operation, size = packet.form.operation, len(packet.payload)
        if operation is Operation.SEND and code == qp.profile.oversized_send and size:
            self.report.infer("receive buffer too small", recorded.number)
            if packet.form.is_first:
                return RecvWR([SGE(0, size - 1, 0)])
            qp.receives.room = qp.receives.filled + size - 1
        elif code == NakCode.REMOTE_ACCESS_ERROR:
            self._keys.denied = True
            what = "key invalid, without permission, or out of bounds"
            self.report.infer(what, recorded.number)
        elif code == NakCode.REMOTE_OPERATIONAL_ERROR and operation is Operation.SEND:
            self._keys.denied = True
            self.report.infer("receive buffer itself at fault", recorded.number)
        elif code == NakCode.INVALID_REQUEST and operation is not Operation.SEND:
            self._forbidden = True
            self.report.infer("operation not allowed on the queue pair", recorded.number)
        return _ENDLESS

    def _is_sound(self, packet: TransportPacket, mtu: int) -> bool:
        """Whether a request is valid in itself."""
        form = packet.form
        operation = form.operation
        size = len(packet.payload)
        if form.is_first != (self._message is None):
            return False
        if not form.is_first:
            return operation is self._message
        if operation is Operation.WRITE:
            rest = packet.dma_len
            return rest <= MAX_READ and (size == rest if form.is_last else size == mtu < rest)
        if operation is Operation.READ:
            return not size and packet.dma_len <= MAX_READ
        if operation in _ATOMICS:
            return not size and not packet.va & 7
        return operation is not None

    # Responses.

    def _poll(self, qp: QueuePair, expected: RecordedPacket | None) -> TransportPacket | None:
        """The next emulated response, after setting memory and receive queue as recorded."""
        shown = expected.packet if expected is not None else None
        if shown is not None and expected is not None:
            if shown.form.operation is Operation.READ_RESPONSE and shown.payload:
                self._show_memory(shown, expected.number)
            if shown.form.has_aeth and qp.profile.live_credits:
                self._set_credits(qp, shown, expected.number)
        packet = qp.poll_transmit(self._last_time * NS)
        qp.receives.waiting.clear()
        if packet is None:
            return None
        if shown is not None:
            self._learn_msn(qp, packet, shown)
        return self._sent(packet, qp, expected)

    def _learn_msn(self, qp: QueuePair, packet: TransportPacket, shown: TransportPacket) -> None:
        """Take the MSN from the first response: requests do not show it."""
        if self._knows_msn or not (shown.form.has_aeth and packet.form.has_aeth):
            return
        if shown.psn != packet.psn:
            return
        self._knows_msn = True
        if packet.msn != shown.msn:
            missing = shown.msn - packet.msn
            qp.responder.msn = qp.responder.msn + missing & MASK
            for waiting in qp.responder.replies:
                waiting.msn = waiting.msn + missing & MASK
            packet.msn = shown.msn
            self.report.infer(f"MSN {shown.msn} of the first response", self._last_number)

    def _sent(
        self, packet: TransportPacket, qp: QueuePair, expected: RecordedPacket | None
    ) -> TransportPacket:
        """Write an emulated response to the capture."""
        if self._tap is not None and qp.path is not None:
            time_ns = self._last_time if expected is None else expected.time_ns
            self._tap.emulated(qp.path.frame(encode(packet)), time_ns, self._link)
        return packet

    def _show_memory(self, shown: TransportPacket, number: int) -> None:
        """Set memory to the contents that a READ response shows."""
        for read in reversed(self._reads):
            position = (shown.psn - read.psn) & MASK
            if position < read.count:
                va = read.va + position * (self._mtu or LARGEST_MTU)
                space = self._host, read.rkey
                if self._memory.contradicts(space, va, shown.payload):
                    self.report.infer("memory changed by its owner", number)
                self._memory.write(space, va, shown.payload)
                return

    def _set_credits(self, qp: QueuePair, shown: TransportPacket, number: int) -> None:
        """Post as many receive requests as the recorded credits show."""
        if aeth.kind(shown.syndrome) is not AckKind.ACK:
            return
        code = aeth.code(shown.syndrome)
        if code == INVALID_CREDITS:
            qp.profile = replace(qp.profile, live_credits=False)
            self.report.infer("the responder keeps no credits", number)
        else:
            qp.receives.waiting.clear()
            qp.receives.waiting.extend([_ENDLESS] * CREDITS[code])

    def _compare(self, packet: TransportPacket, expected: RecordedPacket | None) -> None:
        """Compare an emulated response with the next recorded one."""
        report = self.report
        if expected is None:
            self._held = None
            what = "no answer recorded; the responder was gone or the capture over"
            report.infer(what, self._last_number)
            self._drop_response()
            return
        shown = expected.packet
        if packet.psn == shown.psn:
            self._held = None
            self._unmatched = 0
            self.exchange.responses.popleft()
            if self._qp is not None:
                self._learn_msn(self._qp, packet, shown)
            self._compare_fields(packet, expected)
            return
        if distance(shown.psn, packet.psn) > 0:
            self.exchange.responses.popleft()
            self._miss(expected)
            return
        self._held = None
        if self._profile.coalesces_acks and is_plain_ack(packet) and not nak_code(shown):
            report.coalesced += 1
        else:
            report.differ(expected.number, "packet", None, summary_of(packet))
            self._unmatched += 1
            if self._unmatched >= UNMATCHED:
                self._drop_response()

    def _drop_response(self) -> None:
        """Drop the rest of a READ response, which may have half a million packets."""
        self._unmatched = 0
        if self._qp is not None:
            self._qp.responder.replies.clear()

    def _compare_fields(self, packet: TransportPacket, expected: RecordedPacket) -> None:
        shown = expected.packet
        number = expected.number
        differ = self.report.differ
        before = len(self.report.differences) + self.report.more_differences
        if packet.form is not shown.form:
            differ(number, "opcode", shown.form.name, packet.form.name)
        elif shown.payload != packet.payload:
            if len(shown.payload) != len(packet.payload):
                differ(number, "payload length", len(shown.payload), len(packet.payload))
            else:
                differ(number, "payload", shown.payload[:16].hex(), packet.payload[:16].hex())
        if packet.form.has_aeth and shown.form.has_aeth:
            if packet.syndrome != shown.syndrome:
                differ(number, "syndrome", shown.syndrome, packet.syndrome)
            if packet.msn != shown.msn:
                differ(number, "msn", shown.msn, packet.msn)
            both = packet.form.operation, shown.form.operation
            if both == _BOTH_ATOMIC and packet.original != shown.original:
                differ(number, "original", shown.original, packet.original)
        if before == len(self.report.differences) + self.report.more_differences:
            self.report.equal += 1

    def _is_left_over(self, response: RecordedPacket) -> bool:
        """Whether the emulated responder has no response of that PSN, because the request came
        before the first one replayed."""
        if self._qp is None or self._held is not None or not self._beginning.is_before(response):
            return False
        replies = self._qp.responder.replies
        return not replies or replies[0].psn != response.packet.psn

    def _miss(self, expected: RecordedPacket) -> None:
        """Report a recorded response that the emulated responder does not send."""
        if self._qp is None:
            self._beginning.take_answer(expected.packet)
        if self._qp is None or self._beginning.is_before(expected):
            self.report.leave_out(_EARLIER, expected.number)
            return
        self.report.differ(expected.number, "packet", summary_of(expected.packet), None)


def _precedes(response: RecordedPacket, request: RecordedPacket) -> bool:
    """Whether a response was recorded before a request, and so cannot answer it."""
    return not request.is_apart and response.number < request.number


_EARLIER = "response to a request before the first one replayed"

_UNKNOWN_STATE = (
    "the capture begins inside the connection; differences may come from requests before it"
)

_ENDLESS = RecvWR([SGE(0, MAX_READ, 0)])
"""A receive request with room for any message."""

_REMOTE = (Access.REMOTE_READ, Access.REMOTE_WRITE, Access.REMOTE_ATOMIC)
_BOTH_ATOMIC = (Operation.ATOMIC_ACKNOWLEDGE, Operation.ATOMIC_ACKNOWLEDGE)
_ATOMICS = (Operation.COMPARE_SWAP, Operation.FETCH_ADD)
_SEGMENTED = (Operation.SEND, Operation.WRITE)
_FULL = (Operation.SEND, Operation.WRITE, Operation.READ_RESPONSE)
