"""Compares a recorded requester with an emulated one.

The recorded requests are converted to work requests, which an emulated requester
executes. It receives the recorded responses, and each request packet that it sends is
compared with the next recorded one.

A requester depends on timing that a capture shows only indirectly. Work requests
are posted when their first packet is in the capture, timers expire when a packet shows
that they did, and a response is delivered, in order, no later than the first packet
that needs it and never before it arrived. The contents of packets, and where a
retransmission begins and continues, come from the emulator.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, replace

from ibwire.base.errors import VerbsError
from ibwire.base.units import NS, Time
from ibwire.rc.attributes import MTU_CODES, QPState
from ibwire.rc.packet import TransportPacket, encode
from ibwire.rc.profile import Profile
from ibwire.rc.qp import QueuePair
from ibwire.rc.work import SGE, SendFlags, SendWR, WROpcode
from ibwire.replay.emulated import PathEnds, queue_pair_at
from ibwire.replay.inferred import InferredKeys, Memory
from ibwire.replay.recorded import Exchange, PacketQueue, RecordedPacket
from ibwire.replay.report import ReplayReport, summary_of
from ibwire.replay.responder import LOOKAHEAD, ReplayOutput
from ibwire_layers import syndrome as aeth
from ibwire_layers.opcodes import Operation
from ibwire_layers.psn import MASK, distance
from ibwire_layers.syndrome import INVALID_CREDITS, AckKind, NakCode

LONGEST = 16384
"""Packets of a message that wait for its end, which shows its length."""

LAG_NS = 20_000_000
"""How long after its arrival a response may still be unprocessed: guests under
emulation take up to 18 ms (netem-reorder; reference/habits#other-captures)."""

NAK_LAG_NS = 50_000_000
"""The same for a sequence NAK, until the sender goes back (42 ms in big-send-bw-loss.a;
reference/habits#other-captures)."""

MTUS = tuple(MTU_CODES)

RETRIES = 7

UNKNOWN_LENGTH = 1 << 30
"""Length assumed for a message whose end is unknown."""


@dataclass(slots=True)
class _Message:
    """A work request of which some packets have been read."""

    first: TransportPacket
    packets: int = 1
    """Number of PSNs."""
    length: int = 0

    def work_request(self, last: TransportPacket) -> SendWR:
        """The work request; `last` is the packet that it ended with."""
        first = self.first
        operation = first.form.operation
        opcode = _OPCODES[operation] if operation is not None else WROpcode.SEND
        if last.form.has_imm:
            opcode = _WITH_IMM.get(opcode, opcode)
        elif last.form.has_invalidate:
            opcode = WROpcode.SEND_WITH_INV
        # In two pieces, so that the requester gathers one packet at a time.
        pieces = [SGE(0, min(self.length, 1), 0), SGE(1, max(self.length - 1, 0), 0)]
        wr = SendWR(opcode, pieces, SendFlags.SIGNALED)
        if last.se:
            wr.send_flags |= SendFlags.SOLICITED
        if last.form.has_imm:
            wr.imm_data = last.imm_data
        elif last.form.has_invalidate:
            wr.invalidate_rkey = last.invalidate_rkey
        if operation is not Operation.SEND:
            wr.remote_addr, wr.rkey = first.va, first.rkey
        if operation is Operation.COMPARE_SWAP:
            wr.compare_add, wr.swap = first.compare, first.swap
        elif operation is Operation.FETCH_ADD:
            wr.compare_add = first.swap
        elif operation is Operation.FLUSH:
            wr.length, wr.flush_type, wr.flush_level = first.dma_len, first.plt, first.sel
        elif operation is Operation.ATOMIC_WRITE:
            wr.atomic_data = first.payload
        return wr


class RequesterReplay:
    """The replay of one connection: call `advance` after each packet of its exchange."""

    def __init__(
        self, exchange: Exchange, profile: Profile, memory: Memory, tap: ReplayOutput | None = None
    ) -> None:
        self.exchange = exchange
        self.report = ReplayReport.of(exchange, "requester", profile.name)
        self._profile = profile
        self._keys = InferredKeys(memory, exchange.key[0])
        self._tap = tap
        self._qp: QueuePair | None = None
        self._now: Time = 0
        self._mtu = 0
        """0 until a packet shows it."""
        self._following: int | None = None
        """PSN of the next request to read."""
        self._start = 0
        """PSN of the first request that can be replayed."""
        self._message: _Message | None = None
        """The message being read."""
        self._read = PacketQueue(exchange.backlog)
        """Requests that are read and not yet reproduced."""
        self._whole = 0
        """How many of them belong to complete messages."""
        self._last_number = 0
        self._work: dict[int, SendWR] = {}
        """Work requests that are not posted yet, by the PSN of their first packets."""
        self._over = False
        """Whether nothing more can be replayed."""

    def advance(self) -> None:
        """Replay as far as the recorded messages are complete."""
        self._run(closing=False)

    def finish(self) -> ReplayReport:
        """Replay the rest and return the report."""
        self._run(closing=True)
        exchange = self.exchange
        while exchange.responses:
            self._deliver(exchange.responses.popleft())
        report = self.report
        report.src_qpn = exchange.src_qpn
        report.requests = exchange.seen_requests
        report.responses = exchange.seen_responses
        return report

    def _run(self, *, closing: bool) -> None:
        exchange = self.exchange
        closing = closing or exchange.backlog.is_full
        if exchange.src_qpn is None and not closing and len(exchange.requests) < LOOKAHEAD:
            return  # its responses are not known yet
        while (request := exchange.requests.first) is not None and self._take(request, closing):
            exchange.requests.popleft()
        if self._message is not None and (closing or len(self._read) > LONGEST):
            self._cut_short(self._message)
        while self._whole:
            self._whole -= 1
            self._reproduce(self._read.popleft())
        limit = 0 if exchange.backlog.is_full else LOOKAHEAD
        while not self._read and len(exchange.responses) > limit:
            self._deliver(exchange.responses.popleft())

    # Recorded requests to work requests.

    def _take(self, recorded: RecordedPacket, closing: bool) -> bool:
        """Read one request; `False` if more of the capture is needed first."""
        packet = recorded.packet
        form = packet.form
        if form.operation not in _OPCODES:
            self.report.infer("no operation that can be posted", recorded.number)
            return True
        if self._following is None:
            first = self.exchange.first_psn
            self._following = packet.psn if first is None or form.is_first else first
            self._start = self._following
        ahead = distance(self._following, packet.psn)
        if distance(self._start, packet.psn) < 0:
            self.report.leave_out("retransmits a request that was left out", recorded.number)
            return True
        if ahead > 0:
            self.report.infer("requests before it are not in the capture", recorded.number)
            self._begin_again(packet.psn)
        if ahead >= 0:
            if not form.is_first and self._message is None:
                what = "request in the middle of a message whose start is not in the capture"
                self.report.leave_out(what, recorded.number)
                self._begin_again(packet.psn + 1 & MASK)
                return True
            if form.operation is Operation.READ and not self._knows_count(packet, closing):
                return False
            if form.is_first and self._message is not None:
                self.report.infer("begins before the message before it has ended", recorded.number)
                self._begin_again(packet.psn)
            self._extend(packet)
        self._read.append(recorded)
        self._last_number = recorded.number
        if self._message is None:
            self._whole = len(self._read)
        return True

    def _extend(self, packet: TransportPacket) -> None:
        """Read the next packet of a message."""
        form = packet.form
        message = self._message
        if message is None:
            message = self._message = _Message(packet)
        else:
            message.packets += 1
        if form.operation in _SEGMENTED:
            message.length += len(packet.payload)
            if not form.is_last:
                self._learn_mtu(packet)
        elif form.operation is Operation.READ:
            message.length = packet.dma_len
            message.packets = max(-(-packet.dma_len // (self._mtu or MTUS[-1])), 1)
        else:
            message.length = 8
        self._following = packet.psn + 1 & MASK
        if form.is_last:
            self._end_message(message, packet)

    def _end_message(self, message: _Message, last: TransportPacket) -> None:
        first = message.first.psn
        self._work[first] = message.work_request(last)
        self._following = first + message.packets & MASK
        self._message = None

    def _cut_short(self, message: _Message) -> None:
        """End a message whose end is missing in the capture, or too far away."""
        what = "the end of its message is not in the capture"
        self.report.infer(what, self._last_number)
        first = message.first
        packets = message.packets
        if first.form.operation is Operation.WRITE and first.dma_len > message.length:
            message.length = first.dma_len
        else:
            message.length = UNKNOWN_LENGTH
        self._end_message(message, first)
        self._following = first.psn + packets & MASK
        self._whole = len(self._read)

    def _begin_again(self, psn: int) -> None:
        """Skip packets that cannot be converted, and continue with another queue pair."""
        if self._message is not None:
            # The packets read of it are not a message; earlier messages are replayed first.
            for _ in range(len(self._read) - self._whole):
                self._read.pop()
        while self._whole:
            self._whole -= 1
            self._reproduce(self._read.popleft())
        self._message = None
        self._following = self._start = psn
        self._work.clear()
        self._qp = None

    def _knows_count(self, packet: TransportPacket, closing: bool) -> bool:
        """Whether the number of PSNs of a READ is known."""
        exchange = self.exchange
        length = packet.dma_len
        if self._mtu or length <= MTUS[0]:
            return True
        for response in exchange.responses:
            shown = response.packet
            if shown.form.operation is Operation.READ_RESPONSE:
                if not shown.form.is_last:
                    self._learn_mtu(shown)
                    return True
                if shown.psn == packet.psn:
                    return True  # a READ RESPONSE ONLY
        for later in exchange.requests:
            count = distance(packet.psn, later.packet.psn)
            if count > 0:
                self._mtu = next((mtu for mtu in MTUS if -(-length // mtu) == count), 0)
                return True
        return closing or len(exchange.requests) >= LOOKAHEAD

    def _learn_mtu(self, packet: TransportPacket) -> None:
        if not self._mtu and len(packet.payload) in MTU_CODES:
            self._mtu = len(packet.payload)

    # The emulated requester.

    def _reproduce(self, recorded: RecordedPacket) -> None:
        """Make the emulated requester send the packet that was recorded next."""
        if self._over:
            return
        packet, number = recorded.packet, recorded.number
        self._now = max(self._now, recorded.time_ns * NS)
        qp = self._qp
        if qp is None:
            qp = self._qp = self._create(recorded)
            if qp is None:
                self._over = True
                return
        sends = qp.sends
        work = self._work.pop(packet.psn, None)
        if work is not None and not self._post(qp, work, recorded):
            return
        if self._send(qp, recorded):
            return
        self.report.differ(number, "packet", summary_of(packet), None)
        if qp.state is QPState.RTS:
            # Both continue from here, as if the recorded packet had been sent.
            if distance(sends.next_psn, packet.psn) > 0:
                sends.next_psn = packet.psn
            sends.restart(packet.psn)
            qp.poll_transmit(self._now)

    def _send(self, qp: QueuePair, recorded: RecordedPacket) -> bool:
        """Deliver responses and expire timers until the requester sends a packet, and compare it.

        `False` if it sends none.
        """
        packet, sends, responses = recorded.packet, qp.sends, self.exchange.responses
        expired = False
        split = 0
        while qp.state is QPState.RTS:
            pending = self._pending(qp, recorded)
            late = pending is not None and self._is_late(qp, pending, recorded)
            if not late and sends.psn == packet.psn and sends.cursor < len(sends.wqes):
                emulated = qp.poll_transmit(self._now)
                if emulated is not None:
                    self._compare(qp, emulated, recorded)
                    return True
            if (
                pending is not None
                and pending.number != split
                and self._makes_room(qp, pending.packet, packet)
            ):
                split = pending.number
                what = "left in the room that a NAK made, before going back"
                self.report.infer(what, recorded.number)
                self._deliver(replace(pending, packet=_acknowledgement_in(pending.packet)))
            elif pending is not None:
                responses.popleft()
                self._deliver(pending)
            elif expired or not self._expire(qp, recorded):
                break
            else:
                expired = True
        return False

    def _pending(self, qp: QueuePair, recorded: RecordedPacket) -> RecordedPacket | None:
        """The next response, if it can have been processed before a packet was sent."""
        pending, packet, sends = self.exchange.responses.first, recorded.packet, qp.sends
        if pending is None or pending.number > recorded.number:
            return None
        is_retransmission = packet.psn == sends.una != sends.next_psn
        if is_retransmission and self._would_complete(qp, pending.packet):
            return None  # it came too late to prevent this retransmission
        return pending

    def _is_late(self, qp: QueuePair, pending: RecordedPacket, recorded: RecordedPacket) -> bool:
        """Whether a response must have been processed before a packet was sent."""
        limit = NAK_LAG_NS if self._goes_back(qp, pending.packet) else LAG_NS
        if recorded.time_ns - pending.time_ns > limit:
            return True
        return self._had_credits(qp, recorded.packet, pending.packet)

    def _post(self, qp: QueuePair, work: SendWR, recorded: RecordedPacket) -> bool:
        """Post a work request; `False` if the queue pair has failed or its send queue is full."""
        if self._mtu:
            qp.mtu = self._mtu
        responses = self.exchange.responses
        while (
            qp.sends.in_use >= qp.cap.max_send_wr
            and (pending := responses.first) is not None
            and pending.number < recorded.number
        ):
            self._deliver(responses.popleft())
        if qp.state is not QPState.RTS or qp.sends.in_use >= qp.cap.max_send_wr:
            self.report.differ(recorded.number, "packet", summary_of(recorded.packet), None)
            return False
        try:
            qp.post_send(work)
        except VerbsError as error:
            self.report.infer(f"cannot be posted: {error.reason}", recorded.number)
            return False
        return True

    def _goes_back(self, qp: QueuePair, response: TransportPacket) -> bool:
        """Whether a response is a sequence NAK with only SENDs and WRITEs before it."""
        if not _is_sequence_nak(response):
            return False
        return not any(
            wqe.plan.is_answered and distance(wqe.first_psn, response.psn) > 0
            for wqe in qp.sends.wqes
            if wqe.started
        )

    def _had_credits(
        self, qp: QueuePair, wanted: TransportPacket, response: TransportPacket
    ) -> bool:
        """Whether a packet shows credits that only this response can have given.

        The first packet of a message beyond the credits requests an acknowledgement.
        """
        sends = qp.sends
        if wanted.ack_req or not wanted.form.is_first or wanted.form.is_last:
            return False
        if wanted.psn != sends.next_psn or sends.cursor >= len(sends.wqes):
            return False
        wqe = sends.wqes[sends.cursor]
        if not wqe.plan.takes_credit or sends.credits.beyond(wqe.ssn) != 1:
            return False
        return not response.form.has_aeth or aeth.kind(response.syndrome) is AckKind.ACK

    def _makes_room(
        self, qp: QueuePair, response: TransportPacket, wanted: TransportPacket
    ) -> bool:
        """Whether a sequence NAK acknowledges packets, and new packets still follow it."""
        sends = qp.sends
        return (
            wanted.psn == sends.next_psn
            and distance(sends.una, response.psn) > 0
            and self._goes_back(qp, response)
        )

    def _would_complete(self, qp: QueuePair, response: TransportPacket) -> bool:
        """Whether a response acknowledges the oldest outstanding packet."""
        sends = qp.sends
        if response.form.has_aeth and aeth.kind(response.syndrome) is not AckKind.ACK:
            return False
        if distance(sends.una, response.psn) < 0 or not sends.wqes:
            return False
        # Beyond the PSN that a READ waits for it is an implied NAK, or has no effect.
        return not sends.wqes[0].plan.is_answered or response.psn == sends.una

    def _deliver(self, recorded: RecordedPacket) -> None:
        """Pass a response to the requester."""
        qp = self._qp
        if qp is None:
            return
        self._learn_mtu_of_response(recorded.packet)
        if self._tap is not None:
            self._tap.recorded(recorded)
        self._now = max(self._now, recorded.time_ns * NS)
        self._refresh(qp)
        qp.handle_packet(recorded.packet, self._now)
        if qp.send_cq is not None:
            qp.send_cq.poll(len(qp.send_cq))

    def _learn_mtu_of_response(self, packet: TransportPacket) -> None:
        if packet.form.operation is Operation.READ_RESPONSE and not packet.form.is_last:
            self._learn_mtu(packet)

    def _refresh(self, qp: QueuePair) -> None:
        """Reset the retry counters: the capture shows how many retries there are."""
        qp.sends.retries = qp.sends.rnr_retries = RETRIES

    def _expire(self, qp: QueuePair, recorded: RecordedPacket) -> bool:
        """Expire the timer that makes the requester send this packet; `False` if there is none."""
        sends, timers = qp.sends, qp.sends.timers
        psn = recorded.packet.psn
        self._refresh(qp)
        if psn != sends.una:
            return False
        if timers.rnr is not None:
            what = "end of an RNR wait"
            timers.ack, timers.rnr = None, self._now
        elif sends.outstanding:
            what = "timeout"
            timers.ack, timers.rnr = self._now, None
        else:
            return False
        self.report.infer(what, recorded.number)
        qp.handle_timeout(self._now)
        return True

    def _create(self, recorded: RecordedPacket) -> QueuePair | None:
        responses = self.exchange.responses
        place = PathEnds.of_sender(recorded)
        if self.exchange.src_qpn is None and not responses:
            self.report.infer("own QP number", recorded.number)
        qp = queue_pair_at(
            place,
            self.exchange.src_qpn or 0,
            self._profile,
            self._keys,
            dest_qp_num=recorded.packet.dest_qp,
            sq_psn=recorded.packet.psn,
            retry_cnt=RETRIES,
            rnr_retry=RETRIES,
        )
        if qp is None:
            self.report.infer("its QP number cannot be a connection's", recorded.number)
        return qp

    def _compare(self, qp: QueuePair, packet: TransportPacket, recorded: RecordedPacket) -> None:
        """Compare an emulated request with the recorded one."""
        shown = recorded.packet
        number = recorded.number
        report = self.report
        before = len(report.differences) + report.more_differences
        if packet.form is not shown.form:
            report.differ(number, "opcode", shown.form.name, packet.form.name)
        else:
            for name in _FIELDS:
                if hasattr(shown, name) and hasattr(packet, name):
                    ours, theirs = getattr(packet, name), getattr(shown, name)
                    if ours != theirs:
                        report.differ(number, name, theirs, ours)
            if len(packet.payload) != len(shown.payload):
                report.differ(number, "payload length", len(shown.payload), len(packet.payload))
        if before == len(report.differences) + report.more_differences:
            report.equal += 1
            packet.payload = shown.payload
        if self._tap is not None and qp.path is not None:
            frame = qp.path.frame(encode(packet))
            self._tap.emulated(frame, recorded.time_ns, qp.device.link)


def _is_sequence_nak(packet: TransportPacket) -> bool:
    is_ack = packet.form.operation is Operation.ACKNOWLEDGE
    return is_ack and packet.syndrome == AckKind.NAK << 5 | NakCode.PSN_SEQUENCE_ERROR


def _acknowledgement_in(nak: TransportPacket) -> TransportPacket:
    """An ACK for the packets that a sequence NAK acknowledges."""
    ack = copy(nak)
    ack.psn = nak.psn - 1 & MASK
    ack.syndrome = INVALID_CREDITS
    return ack


_FIELDS = (
    "ack_req",
    "se",
    "va",
    "rkey",
    "dma_len",
    "swap",
    "compare",
    "imm_data",
    "invalidate_rkey",
    "sel",
    "plt",
)
"""Fields compared in addition to opcode, PSN and size."""

_SEGMENTED = (Operation.SEND, Operation.WRITE)

_OPCODES = {
    Operation.SEND: WROpcode.SEND,
    Operation.WRITE: WROpcode.RDMA_WRITE,
    Operation.READ: WROpcode.RDMA_READ,
    Operation.COMPARE_SWAP: WROpcode.ATOMIC_CMP_AND_SWP,
    Operation.FETCH_ADD: WROpcode.ATOMIC_FETCH_AND_ADD,
    Operation.FLUSH: WROpcode.FLUSH,
    Operation.ATOMIC_WRITE: WROpcode.ATOMIC_WRITE,
}

_WITH_IMM = {
    WROpcode.SEND: WROpcode.SEND_WITH_IMM,
    WROpcode.RDMA_WRITE: WROpcode.RDMA_WRITE_WITH_IMM,
}
