"""A recorded requester against an emulated one.

The recorded requests are read back into work requests, which an emulated requester
posts; it gets the recorded responses, and each request packet that it sends is held
against the next recorded one.

Time decides much of what a requester does, and a capture shows only the outcome. Work
is posted when its first packet is in the capture, timers expire when a packet shows
that they did, and a response is delivered, in order, no later than the first packet
that needs it and never before it arrived. What a packet looks like, where a
retransmission begins and how it goes on is the emulator's own.
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
from ibwire.replay.emulated import Place, queue_pair_at
from ibwire.replay.inferred import InferredKeys, Memory
from ibwire.replay.recorded import Exchange, PacketQueue, RecordedPacket
from ibwire.replay.report import Report, summary_of
from ibwire.replay.responder import LOOKAHEAD, Tap
from ibwire_layers import syndrome as aeth
from ibwire_layers.opcodes import Operation
from ibwire_layers.psn import MASK, distance
from ibwire_layers.syndrome import INVALID_CREDITS, AckKind, NakCode

LONGEST = 16384
"""Packets of a message that wait for its end, without which its length is unknown."""

LAG_NS = 20_000_000
"""How long after its arrival a response may still not have been looked at: guests under
emulation take up to 18 ms (netem-reorder; reference/habits#other-captures)."""

NAK_LAG_NS = 50_000_000
"""The same for a sequence NAK, until the sender goes back (42 ms in big-send-bw-loss.a;
reference/habits#other-captures)."""

MTUS = tuple(MTU_CODES)

RETRIES = 7

UNKNOWN_LENGTH = 1 << 30
"""Bytes taken for a message whose end is not in sight."""


@dataclass(slots=True)
class _Message:
    """A work request as far as its packets have been read."""

    first: TransportPacket
    packets: int = 1
    """PSNs."""
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
        # In two pieces, so that the requester asks for a packet's worth at a time.
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
    """One connection: call `advance` whenever its exchange has got a packet."""

    def __init__(
        self, exchange: Exchange, profile: Profile, memory: Memory, tap: Tap | None = None
    ) -> None:
        self.exchange = exchange
        self.report = Report.of(exchange, "requester", profile.name)
        self._profile = profile
        self._keys = InferredKeys(memory, exchange.key[0])
        self._tap = tap
        self._qp: QueuePair | None = None
        self._now: Time = 0
        self._mtu = 0
        """0 until a packet has shown it."""
        self._following: int | None = None
        """PSN of the first request that has not been read."""
        self._message: _Message | None = None
        """What is being read."""
        self._read = PacketQueue(exchange.backlog)
        """Requests that have been read and not reproduced."""
        self._whole = 0
        """How many of them belong to messages that have been read to their end."""
        self._last_number = 0
        self._work: dict[int, SendWR] = {}
        """By PSN of their first packets, those that have not been posted."""
        self._over = False
        """Whether nothing further can be replayed."""

    def advance(self) -> None:
        """Go on as far as the recorded messages are complete."""
        self._run(closing=False)

    def finish(self) -> Report:
        """Replay what is left; nothing more comes."""
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
        """Read one request; `False` if more of the capture must be known before."""
        packet = recorded.packet
        form = packet.form
        if form.operation not in _OPCODES:
            self.report.infer("no operation that can be posted", recorded.number)
            return True
        if self._following is None:
            first = self.exchange.first_psn
            self._following = packet.psn if first is None or form.is_first else first
        ahead = distance(self._following, packet.psn)
        if ahead > 0:
            self.report.infer("requests before it are not in the capture", recorded.number)
            self._begin_again(packet.psn)
        if ahead >= 0:
            if not form.is_first and self._message is None:
                self.report.infer("the capture begins inside a message", recorded.number)
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
        """Make do with a message whose end the capture does not have, or not soon."""
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
        """Leave out what cannot be reconstructed, and go on with another queue pair."""
        if self._message is not None:
            # The packets read of it are no message; what came before is replayed first.
            for _ in range(len(self._read) - self._whole):
                self._read.pop()
        while self._whole:
            self._whole -= 1
            self._reproduce(self._read.popleft())
        self._message = None
        self._following = psn
        self._work.clear()
        self._qp = None

    def _knows_count(self, packet: TransportPacket, closing: bool) -> bool:
        """Whether it is certain how many PSNs a READ takes."""
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
        """Bring the emulated requester to send what was recorded next."""
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
        responses = self.exchange.responses
        expired = False
        split = 0
        while qp.state is QPState.RTS:
            pending = responses.first
            if pending is not None and pending.number > number:
                pending = None
            if pending is not None and (
                packet.psn == sends.una != sends.next_psn
                and self._would_complete(qp, pending.packet)
            ):
                pending = None  # it came too late to keep this packet from being sent again
            late = False
            if pending is not None:
                limit = NAK_LAG_NS if self._goes_back(qp, pending.packet) else LAG_NS
                late = recorded.time_ns - pending.time_ns > limit
            if pending is not None and self._had_credits(qp, packet, pending.packet):
                late = True
            if not late and sends.psn == packet.psn and sends.cursor < len(sends.wqes):
                emulated = qp.poll_transmit(self._now)
                if emulated is not None:
                    self._compare(qp, emulated, recorded)
                    return
            if (
                pending is not None
                and pending.number != split
                and self._makes_room(qp, pending.packet, packet)
            ):
                split = pending.number
                self.report.infer("left in the room that a NAK made, before going back", number)
                self._deliver(replace(pending, packet=_acknowledgement_in(pending.packet)))
            elif pending is not None:
                responses.popleft()
                self._deliver(pending)
            elif expired or not self._expire(qp, recorded):
                break
            else:
                expired = True
        self.report.differ(number, "packet", summary_of(packet), None)
        if qp.state is QPState.RTS:
            # Both go on from here, and what was recorded has been sent.
            if distance(sends.next_psn, packet.psn) > 0:
                sends.next_psn = packet.psn
            sends.restart(packet.psn)
            qp.poll_transmit(self._now)

    def _post(self, qp: QueuePair, work: SendWR, recorded: RecordedPacket) -> bool:
        """Post a work request; `False` if the send queue has failed or is full."""
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
        """Whether a response is a sequence NAK, and nothing but SENDs and WRITEs is before it."""
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
        """Whether a packet shows that credits were there which only this response can give.

        The first packet of a message beyond the credits asks for an acknowledgement.
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
        """Whether a sequence NAK acknowledges something, and new packets still follow it."""
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
        # Beyond what a READ waits for it is an implied NAK instead, or nothing.
        return not sends.wqes[0].plan.is_answered or response.psn == sends.una

    def _deliver(self, recorded: RecordedPacket) -> None:
        """Let the requester have a response."""
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
        """How many retries there are is for the capture to show."""
        qp.sends.retries = qp.sends.rnr_retries = RETRIES

    def _expire(self, qp: QueuePair, recorded: RecordedPacket) -> bool:
        """Let the timer expire that makes the requester send this packet; `False` if none does."""
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
        place = Place.of_sender(recorded)
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
        """Hold an emulated request against the recorded one."""
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
    """What a sequence NAK says of the packets before it, as an ACK."""
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
"""What is compared beside opcode, PSN and size."""

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
