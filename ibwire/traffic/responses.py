"""What comes back to queue pairs of ours that are none: counted, and read for who waits for it.

Answers are told apart by the address they come from and the queue pair they go to. An
acknowledgement stands for all packets up to its PSN, a NAK for those before it; each READ and
atomic has an answer of its own (IBA 9.7.5.1.2, reference/transport#ack-coalescing).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple, Protocol

from ibwire.base.histogram import Histogram
from ibwire.base.node import Frame
from ibwire.base.units import US, Time
from ibwire.rc.packet import decode
from ibwire.rc.path import Arrivals, icrc_fits
from ibwire_layers import psn, syndrome
from ibwire_layers.opcodes import Operation, Service
from ibwire_layers.syndrome import AckKind, NakCode


class Asker(Protocol):
    """A queue pair of ours, as far as answers go."""

    @property
    def peer(self) -> int:
        """GID that answers come from."""
        ...

    @property
    def qpn(self) -> int:
        """The peer's queue pair."""
        ...

    @property
    def src_qpn(self) -> int:
        """The one that answers go to."""
        ...

    @property
    def psn(self) -> int:
        """Of its first packet."""
        ...

    @property
    def step(self) -> int:
        """PSNs that each packet takes; 0: they have no order."""
        ...

    @property
    def period(self) -> int:
        """Each so-many-th packet asks for an answer; 0: none does."""
        ...

    @property
    def is_answered(self) -> bool:
        """Whether each packet has an answer of its own."""
        ...


class Says(Enum):
    """What an answer says."""

    ACKNOWLEDGED = "acknowledged"
    """Packets that were not before."""
    NOTHING = "nothing"
    """Nothing new."""
    GAP = "gap"
    """That a packet was not answered which has an answer of its own."""
    NAK = "NAK"
    WAIT = "RNR NAK"
    SLOW = "CNP"


class Answer(NamedTuple):
    """An answer to one of the queue pairs."""

    number: int
    """Which of them."""
    says: Says
    syndrome: int


class Tally:
    """What was sent from a queue pair and what has come back."""

    def __init__(self, asker: Asker) -> None:
        self.asker = asker
        self.sent: int | None = None
        """Different packets; `None`: nobody counts them yet."""
        self.acknowledged = 0
        """Packets from the first on that are acknowledged."""
        self.acks = 0
        """Positive acknowledgements, those in answers to READs and atomics left out."""
        self.responses = 0
        """Packets that answer READs and atomics."""
        self.naks: Counter[str] = Counter()
        """By code."""
        self.nak_psn: int | None = None
        """Of the last one: what the peer expects, if it was for a PSN."""
        self.rnr_naks = 0
        self.cnps = 0
        self.gaps = 0
        """Packets without the answer of their own, when that of a later one came."""
        self.impossible = 0
        """Acknowledgements of what was never sent."""
        self.repeated = 0
        """Packets that were sent once more."""
        self.timeouts = 0
        """How often the last resort was to go back."""

    @property
    def asked(self) -> int:
        """Packets up to the last that has asked for an answer."""
        period = self.asker.period
        return (self.sent or 0) // period * period if period else 0

    @property
    def missing(self) -> int:
        """Packets that should have been acknowledged and never were."""
        return max(self.asked - self.acknowledged, 0)

    @property
    def highest_psn(self) -> int | None:
        """The last PSN that is acknowledged."""
        if not self.acknowledged:
            return None
        return psn.add(self.asker.psn, self.acknowledged * self.asker.step - 1)

    @property
    def next_psn(self) -> int:
        """The first PSN that is not acknowledged."""
        return psn.add(self.asker.psn, self.acknowledged * self.asker.step)

    def as_object(self) -> dict[str, object]:
        """For JSON."""
        return {
            "qpn": self.asker.qpn,
            "src_qpn": self.asker.src_qpn,
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
            "repeated": self.repeated,
            "timeouts": self.timeouts,
        }


class Answers:
    """Takes what arrives.

    skips: whether an answer stands for earlier packets too that should have had their own.
    Without, they stay unacknowledged, for who can send them again.
    """

    def __init__(self, askers: Sequence[Asker], *, skips: bool = True) -> None:
        self.tallies = [Tally(each) for each in askers]
        self.others = 0
        """Packets for queue pairs of others, and damaged ones."""
        self.round_trips = Histogram()
        """Nanoseconds from a packet to its acknowledgement, of packets that were sent once."""
        self._numbers = {(each.peer, each.src_qpn): n for n, each in enumerate(askers)}
        self._arrivals = Arrivals()
        self._skips = skips

    def take(self, frame: Frame) -> Answer | None:
        """Count a frame; `None` if it is no answer."""
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
            return Answer(number, Says.SLOW, 0)
        if not form.is_response or form.service is not Service.RC or not tally.asker.step:
            self.others += 1
            return None
        said = packet.syndrome if form.has_aeth else syndrome.INVALID_CREDITS
        if form.operation is Operation.ACKNOWLEDGE and syndrome.kind(said) is not AckKind.ACK:
            return Answer(number, self._refused(tally, packet.psn, said), said)
        if form.operation is Operation.ACKNOWLEDGE:
            tally.acks += 1
        else:
            tally.responses += 1
        return Answer(number, self._acknowledged(tally, packet.psn), said)

    def _refused(self, tally: Tally, at: int, said: int) -> Says:
        code = syndrome.code(said)
        match syndrome.kind(said):
            case AckKind.NAK:
                known = code in NakCode.__members__.values()
                tally.naks[NakCode(code).name if known else f"CODE_{code}"] += 1
                tally.nak_psn = at
                says = Says.NAK
            case AckKind.RNR_NAK:
                tally.rnr_naks += 1
                says = Says.WAIT
            case _:
                self.others += 1
                return Says.NOTHING
        ahead = psn.distance(tally.next_psn, at)
        if ahead < 0:
            return Says.NOTHING
        packets = ahead // tally.asker.step
        if not self._is_possible(tally, packets):
            return Says.NOTHING
        if tally.asker.is_answered:
            tally.gaps += packets
        if self._skips or not tally.asker.is_answered:
            tally.acknowledged += packets
        return says

    def _acknowledged(self, tally: Tally, at: int) -> Says:
        asker = tally.asker
        ahead = psn.distance(tally.next_psn, at)
        # The answer to a READ is over with its last packet.
        packets, missed = (ahead + 1) // asker.step, ahead // asker.step
        if ahead < 0 or not self._is_possible(tally, packets):
            return Says.NOTHING
        if asker.is_answered and missed:
            tally.gaps += missed
            if not self._skips:
                return Says.GAP
        tally.acknowledged += packets
        return Says.ACKNOWLEDGED if packets else Says.NOTHING

    def _is_possible(self, tally: Tally, packets: int) -> bool:
        """Whether so many more packets were sent."""
        if tally.sent is not None and tally.acknowledged + packets > tally.sent:
            tally.impossible += 1
            return False
        return True


def rnr_time(said: int) -> Time:
    """How long an RNR NAK asks to wait (IBA 9.7.5.2.8)."""
    return syndrome.RNR_TIMER_US[syndrome.code(said)] * US
