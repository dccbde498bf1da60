"""Where in a capture the replay of a responder can begin."""

from __future__ import annotations

from ibwire.rc.packet import TransportPacket
from ibwire.replay.recorded import Exchange, RecordedPacket
from ibwire.replay.report import ReplayReport
from ibwire.replay.response_kinds import is_acknowledge, is_plain_ack, is_refusal, nak_code
from ibwire_layers import syndrome as aeth
from ibwire_layers.opcodes import Operation
from ibwire_layers.psn import MASK, distance
from ibwire_layers.syndrome import AckKind, NakCode

KEEP_START = 1 << 22
"""PSNs after which it no longer matters where the replay began; they repeat after 2 ** 24."""


class Beginning:
    """The first request of a connection that is replayed, and what comes before it.

    Responses whose requests were captured before it, or not at all, cannot be compared.
    """

    def __init__(self, exchange: Exchange, report: ReplayReport, waiting: int) -> None:
        """`waiting` is the largest number of requests that wait for what shows the start."""
        self._exchange = exchange
        self._report = report
        self._waiting = waiting
        self._start: int | None = None
        """PSN of the first replayed request; `None` where the CM shows the first of all."""
        self._answered: int | None = None
        """The highest PSN that was acknowledged before the first replayed request."""

    def begin(self, psn: int) -> None:
        """The replay begins with this PSN."""
        if self._exchange.first_psn is None:
            self._start = psn

    def advance(self, psn: int) -> None:
        """The replay has come to this PSN."""
        if self._start is not None and distance(self._start, psn) > KEEP_START:
            self._start = None

    def take_answer(self, packet: TransportPacket) -> None:
        """Note a response that was recorded before the first replayed request."""
        psn = packet.psn if not is_refusal(packet) else packet.psn - 1
        if self._answered is None or distance(self._answered, psn) > 0:
            self._answered = psn & MASK

    def allows(self, recorded: RecordedPacket, expected: RecordedPacket | None) -> bool:
        """Whether the replay can start with this request."""
        if self._exchange.first_psn is not None:
            return True
        packet = recorded.packet
        answer = expected.packet if expected is not None else None
        if expected is not None and answer is not None:
            if answer.psn == packet.psn and nak_code(answer) == NakCode.INVALID_REQUEST:
                return True  # the request was invalid, not late
            if self._refuses_earlier(recorded, expected):
                asked = [r for r in self._exchange.requests if r.packet.psn == answer.psn]
                if nak_code(answer) == NakCode.PSN_SEQUENCE_ERROR and (
                    not asked or asked[0].packet.form.is_first
                ):
                    return True  # the first request of all was lost
                self._report.leave_out(_REFUSED, recorded.number)
                return False
            if self._is_repeated(recorded, expected):
                self._report.leave_out(_REPEATED, recorded.number)
                return False
            if self._is_duplicate(recorded, expected):
                self._report.leave_out(_DUPLICATE, recorded.number)
                return False
        if self._was_answered(packet, answer):
            self._report.leave_out(_DUPLICATE, recorded.number)
            return False
        if packet.form.is_first:
            return True
        self._report.leave_out(_INSIDE, recorded.number)
        return False

    def is_open(self, request: RecordedPacket, expected: RecordedPacket | None) -> bool:
        """Whether only a later request shows where the replay can start: the one that a NAK asks
        for."""
        if expected is None or not self._refuses_earlier(request, expected):
            return False
        asked = expected.packet.psn
        requests = self._exchange.requests
        return len(requests) < self._waiting and all(each.packet.psn != asked for each in requests)

    def is_before(self, response: RecordedPacket) -> bool:
        """Whether a response answers a request before the first one replayed: also a READ or an
        atomic that is retransmitted later."""
        if self._start is None or distance(self._start, response.packet.psn) >= 0:
            return False
        return not self._report.equal or not is_acknowledge(response.packet)

    def _refuses_earlier(self, request: RecordedPacket, expected: RecordedPacket) -> bool:
        """Whether the next response asks for a request before this one, which is so dropped."""
        answer = expected.packet
        is_nak = answer.form.has_aeth and aeth.kind(answer.syndrome) in (
            AckKind.RNR_NAK,
            AckKind.NAK,
        )
        return (
            self._exchange.first_psn is None
            and request.packet.form.is_first
            and is_nak
            and distance(answer.psn, request.packet.psn) > 0
        )

    def _was_answered(self, packet: TransportPacket, answer: TransportPacket | None) -> bool:
        """Whether a request was acknowledged before, or its response continues that of a READ."""
        if self._answered is not None and distance(self._answered, packet.psn) <= 0:
            return True
        return (
            answer is not None
            and answer.psn == packet.psn
            and packet.form.operation is Operation.READ
            and answer.form.operation is Operation.READ_RESPONSE
            and not answer.form.is_first
        )

    def _is_repeated(self, recorded: RecordedPacket, expected: RecordedPacket) -> bool:
        """Whether the requester goes back before this request before the next response: it may have
        been dropped."""
        return any(
            distance(each.packet.psn, recorded.packet.psn) > 0
            for each in self._exchange.requests
            if each.number < expected.number
        )

    def _is_duplicate(self, recorded: RecordedPacket, expected: RecordedPacket) -> bool:
        """Whether the next response acknowledges more than was sent up to it: it answers duplicates
        of requests before the capture."""
        answer = expected.packet
        if not is_plain_ack(answer) or distance(recorded.packet.psn, answer.psn) <= 0:
            return False
        sent = [recorded, *(r for r in self._exchange.requests if r.number < expected.number)]
        return not recorded.is_apart and all(
            distance(each.packet.psn, answer.psn) > 0
            for each in sent
            if each.packet.form.operation is not Operation.READ
        )


_INSIDE = "request in the middle of a message whose start is not in the capture"
_REFUSED = "request behind one that was refused, before the first one replayed"
_REPEATED = "request that is retransmitted before its response"
_DUPLICATE = "duplicate of a request before the capture"
