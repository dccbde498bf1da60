"""Responses to the packets of our queue pairs: counted, and classified for a closed loop.

A response belongs to the queue pair that its source address and destination QP number name.
An acknowledgement covers all packets up to its PSN, a NAK those before its PSN; READs and
atomics are each acknowledged by their own response
(IBA 9.7.5.1.2, reference/transport#ack-coalescing).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

from ibwire.base.histogram import Histogram
from ibwire.base.node import Frame
from ibwire.base.units import US, Time
from ibwire.rc.packet import decode
from ibwire.rc.path import Arrivals, icrc_fits
from ibwire.traffic.queue_pairs import QueuePairTraffic
from ibwire_layers import psn, syndrome
from ibwire_layers.opcodes import Operation, Service
from ibwire_layers.syndrome import AckKind, NakCode


class ResponseKind(Enum):
    """The kind of a response."""

    ACKNOWLEDGED = "acknowledged"
    """It acknowledges packets that were unacknowledged."""
    NOTHING_NEW = "nothing new"
    SKIPPED = "skipped"
    """It shows that the response to an earlier READ or atomic was skipped."""
    NAK = "NAK"
    RNR_NAK = "RNR NAK"
    CNP = "CNP"


class Response(NamedTuple):
    """A response to one of the queue pairs."""

    number: int
    """Index of the queue pair."""
    kind: ResponseKind
    syndrome: int


class ResponseTally:
    """Counts of what was sent from a queue pair and what came back."""

    def __init__(self, queue_pair: QueuePairTraffic) -> None:
        self.queue_pair = queue_pair
        self.sent: int | None = None
        """Packets, retransmissions not counted; `None`: not counted yet."""
        self.acknowledged = 0
        """Packets acknowledged without a gap, from the first on."""
        self.acks = 0
        """Positive acknowledgements, without the responses to READs and atomics."""
        self.responses = 0
        """Response packets of READs and atomics."""
        self.naks: Counter[str] = Counter()
        """NAKs by code."""
        self.nak_psn: int | None = None
        """PSN of the last NAK: what the peer expects, if its code is PSN sequence error."""
        self.rnr_naks = 0
        self.cnps = 0
        self.gaps = 0
        """READs and atomics whose response was skipped by that of a later one."""
        self.impossible = 0
        """Acknowledgements of packets that were never sent."""
        self.retransmitted = 0
        """Retransmitted packets."""
        self.timeouts = 0
        """Times a timeout caused going back."""

    @property
    def asked(self) -> int:
        """Packets up to the last that requests an acknowledgement."""
        period = self.queue_pair.period
        return (self.sent or 0) // period * period if period else 0

    @property
    def missing(self) -> int:
        """Packets that should have been acknowledged and were not."""
        return max(self.asked - self.acknowledged, 0)

    @property
    def highest_psn(self) -> int | None:
        """The last PSN that is acknowledged."""
        if not self.acknowledged:
            return None
        return psn.add(self.queue_pair.psn, self.acknowledged * self.queue_pair.step - 1)

    @property
    def next_psn(self) -> int:
        """The first PSN that is not acknowledged."""
        return psn.add(self.queue_pair.psn, self.acknowledged * self.queue_pair.step)

    def as_object(self) -> dict[str, object]:
        """For JSON."""
        return {
            "qpn": self.queue_pair.qpn,
            "src_qpn": self.queue_pair.src_qpn,
            "sent": self.sent,
            "asked": self.asked,
            "acknowledged": self.acknowledged,
            "missing": self.missing,
            "highest_psn": self.highest_psn,
            "acks": self.acks,
            "responses": self.responses,
            "naks": dict(self.naks),
            "nak_psn": self.nak_psn,
            "rnr_naks": self.rnr_naks,
            "cnps": self.cnps,
            "gaps": self.gaps,
            "impossible": self.impossible,
            "retransmitted": self.retransmitted,
            "timeouts": self.timeouts,
        }


class ResponseCounter:
    """Assigns arriving frames to queue pairs and counts them.

    skips: whether a response also acknowledges earlier READs and atomics without a response.
    Without it they stay unacknowledged, for a sender that retransmits them.
    """

    def __init__(self, queue_pairs: Sequence[QueuePairTraffic], *, skips: bool = True) -> None:
        self.tallies = [ResponseTally(each) for each in queue_pairs]
        self.others = 0
        """Frames that are not valid responses to these queue pairs."""
        self.round_trips = Histogram()
        """Nanoseconds from a packet to its acknowledgement, without retransmitted packets."""
        self._numbers = {(each.peer, each.src_qpn): n for n, each in enumerate(queue_pairs)}
        self._arrivals = Arrivals()
        self._skips = skips

    def take(self, frame: Frame) -> Response | None:
        """Count a frame; `None` if it is not a response to these queue pairs."""
        arrival = self._arrivals.read(frame)
        packet = None
        if arrival is not None and icrc_fits(frame, arrival):
            packet = decode(frame, arrival.size, arrival.end - 4)
        number = None
        if arrival is not None and packet is not None:
            number = self._numbers.get((arrival.source, packet.dest_qp))
        if packet is None or number is None:
            self.others += 1
            return None
        tally, form = self.tallies[number], packet.form
        if form.service is Service.CNP:
            tally.cnps += 1
            return Response(number, ResponseKind.CNP, 0)
        if not form.is_response or form.service is not Service.RC or not tally.queue_pair.step:
            self.others += 1
            return None
        value = packet.syndrome if form.has_aeth else syndrome.INVALID_CREDITS
        if form.operation is Operation.ACKNOWLEDGE and syndrome.kind(value) is not AckKind.ACK:
            return Response(number, self._refused(tally, packet.psn, value), value)
        if form.operation is Operation.ACKNOWLEDGE:
            tally.acks += 1
        else:
            tally.responses += 1
        return Response(number, self._acknowledged(tally, packet.psn), value)

    def _refused(self, tally: ResponseTally, at: int, value: int) -> ResponseKind:
        code = syndrome.code(value)
        match syndrome.kind(value):
            case AckKind.NAK:
                known = code in NakCode.__members__.values()
                tally.naks[NakCode(code).name if known else f"CODE_{code}"] += 1
                tally.nak_psn = at
                kind = ResponseKind.NAK
            case AckKind.RNR_NAK:
                tally.rnr_naks += 1
                kind = ResponseKind.RNR_NAK
            case _:
                self.others += 1
                return ResponseKind.NOTHING_NEW
        ahead = psn.distance(tally.next_psn, at)
        if ahead < 0:
            return ResponseKind.NOTHING_NEW
        packets = ahead // tally.queue_pair.step
        if not self._is_possible(tally, packets):
            return ResponseKind.NOTHING_NEW
        if tally.queue_pair.is_answered:
            tally.gaps += packets
        if self._skips or not tally.queue_pair.is_answered:
            tally.acknowledged += packets
        return kind

    def _acknowledged(self, tally: ResponseTally, at: int) -> ResponseKind:
        queue_pair = tally.queue_pair
        ahead = psn.distance(tally.next_psn, at)
        # A READ is acknowledged by the last packet of its response.
        packets, missed = (ahead + 1) // queue_pair.step, ahead // queue_pair.step
        if ahead < 0 or not self._is_possible(tally, packets):
            return ResponseKind.NOTHING_NEW
        if queue_pair.is_answered and missed:
            tally.gaps += missed
            if not self._skips:
                return ResponseKind.SKIPPED
        tally.acknowledged += packets
        return ResponseKind.ACKNOWLEDGED if packets else ResponseKind.NOTHING_NEW

    def _is_possible(self, tally: ResponseTally, packets: int) -> bool:
        """Whether that many more packets were sent."""
        if tally.sent is not None and tally.acknowledged + packets > tally.sent:
            tally.impossible += 1
            return False
        return True


def rnr_time(value: int) -> Time:
    """The delay that the syndrome of an RNR NAK requests (IBA 9.7.5.2.8)."""
    return syndrome.RNR_TIMER_US[syndrome.code(value)] * US
