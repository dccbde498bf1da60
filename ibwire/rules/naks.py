"""NAKs: once for each loss, for the right PSN, with the right wait, and silence after the last."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, Self

import numpy as np

from ibwire.connections.packets import TransportPacket
from ibwire.connections.states import DUPLICATE, NEW, RETRANSMITTED, PacketStatus
from ibwire.rules.aspects import Aspect
from ibwire.rules.findings import Rule, Severity
from ibwire.rules.history import (
    ACKNOWLEDGES,
    ConnectionCheck,
    RequestHistory,
    Violation,
    distance,
)
from ibwire.rules.packet import Chunk, Mask, PacketRule, opcodes_where
from ibwire.rules.regular import Regular
from ibwire_layers.headers import AETH
from ibwire_layers.opcodes import INFO, Operation, Service, name_of
from ibwire_layers.syndrome import (
    KIND_BITS,
    RNR_TIMER_US,
    AckKind,
    NakCode,
    code,
    describe,
    kind,
)

ONCE = Rule(
    "naks.once",
    "A missing packet is NAKed only once until it arrives.",
    Severity.ERROR,
    "IBA 9.7.5.1, 9.9.3",
    "docs/reference/transport.md#psn-ahead; rxe_resp.c check_psn; drop-one-middle",
)
AFTER_DUPLICATE = Rule(
    "naks.after-duplicate",
    "A missing packet is not NAKed again after a duplicate of an older packet.",
    Severity.WARNING,
    "IBA 9.7.5.1, 9.9.3",
    "docs/reference/transport.md#psn-ahead; docs/reference/habits.md#nak-latch; qib_rc.c "
    "qib_rc_rcv_error",
    ("rdmavt",),
)
AFTER_RNR = Rule(
    "naks.after-rnr",
    "Packets after one that was refused with an RNR NAK are dropped without a NAK.",
    Severity.ERROR,
    "IBA 9.7.5.2.8",
    "docs/reference/transport.md#rnr-tail; docs/reference/habits.md#rxe-rnr-nak",
    ("rxe",),
)
ACKNOWLEDGED = Rule(
    "naks.acknowledged",
    "A packet that was acknowledged is not NAKed.",
    Severity.ERROR,
    "IBA 9.7.5.1",
    "docs/reference/transport.md#response-psn; rxe_resp.c check_psn",
)
RNR_WAIT = Rule(
    "naks.rnr-wait",
    "After an RNR NAK the requester waits at least the time of its timer code.",
    Severity.ERROR,
    "IBA 9.7.5.2.8",
    "docs/reference/transport.md#rnr-wait; docs/reference/habits.md#psif-rnr",
    is_timed=True,
)
RNR_NEW = Rule(
    "naks.rnr-new",
    "While the requester waits after an RNR NAK it sends no new requests.",
    Severity.WARNING,
    "IBA 9.7.5.2.8",
    "docs/reference/transport.md#rnr-wait; docs/reference/habits.md#rxe-rnr-wait; rnr-multi-packet",
    ("rxe",),
    is_timed=True,
)
SILENCE = Rule(
    "naks.silence",
    "After a NAK that ends the connection the responder sends no further response.",
    Severity.ERROR,
    "IBA 9.9.3",
    "docs/reference/transport.md#after-fatal-nak; nak-bad-rkey-write-multi",
)
CODE = Rule(
    "naks.code",
    "An AETH syndrome is an ACK, an RNR NAK, or a NAK with a code defined for the service.",
    Severity.ERROR,
    "IBA 9.7.5.2",
    "docs/reference/transport.md#aeth",
)
OPCODE = Rule(
    "naks.opcode",
    "Only ACKNOWLEDGE packets are NAKs or RNR NAKs.",
    Severity.ERROR,
    "IBA 9.7.5.2",
    "docs/reference/transport.md#aeth",
)
TOO_LONG = Rule(
    "naks.too-long",
    "A SEND longer than the receive buffer gets NAK invalid request (0x61); NAK 0x63 means"
    " a memory error of the responder itself.",
    Severity.NOTE,
    "IBA 9.9.3",
    "docs/reference/transport.md#receive-too-short; docs/reference/habits.md#rxe-send-too-long",
    ("rxe",),
)

RULES: tuple[Rule, ...] = (
    ONCE,
    AFTER_DUPLICATE,
    AFTER_RNR,
    ACKNOWLEDGED,
    RNR_WAIT,
    RNR_NEW,
    SILENCE,
    CODE,
    OPCODE,
    TOO_LONG,
)

TIMER_TOLERANCE = 0.999
"""Of the table: rxe's own has 61.41 ms where the specification has 61.44 (rxe_comp.c)."""
IN_FLIGHT_NS: Final = 1_000_000
"""A request that passes here later after an RNR NAK was sent after that had arrived."""

NO_ACCIDENT: Final = 3
"""From this many on it is the sender and not the network."""

_AETH = opcodes_where(lambda info: AETH in info.headers)
_WITH_DATA = opcodes_where(
    lambda info: AETH in info.headers and info.operation is not Operation.ACKNOWLEDGE
)
_RD = opcodes_where(lambda info: info.service is Service.RD)
_FATAL = frozenset(
    (
        NakCode.INVALID_REQUEST,
        NakCode.REMOTE_ACCESS_ERROR,
        NakCode.REMOTE_OPERATIONAL_ERROR,
    )
)


def _is_undefined(chunk: Chunk) -> Mask:
    value = chunk["aeth.syndrome"]
    what, number = value >> 5 & 3, value & 31
    unknown = number > NakCode.INVALID_RD_REQUEST
    unknown = unknown | ((number == NakCode.INVALID_RD_REQUEST) & ~chunk.are(_RD))
    wrong = (what == AckKind.RESERVED) | ((what == AckKind.NAK) & unknown) | (value >> 7 != 0)
    mask: Mask = chunk.are(_AETH) & np.asarray(wrong, np.bool_)
    return mask


def _is_refusal(chunk: Chunk) -> Mask:
    what = chunk["aeth.syndrome"] >> 5 & 3
    mask: Mask = chunk.are(_WITH_DATA) & ((what == AckKind.NAK) | (what == AckKind.RNR_NAK))
    return mask


PACKET_RULES: tuple[PacketRule, ...] = (
    PacketRule(
        OPCODE,
        _is_refusal,
        lambda chunk, row: (
            f"{name_of(int(chunk.opcode[row]))} with syndrome "
            f"0x{chunk['aeth.syndrome'][row]:02x}, {describe(int(chunk['aeth.syndrome'][row]))}"
        ),
        aspect=Aspect.SYNDROME,
    ),
    PacketRule(
        CODE,
        _is_undefined,
        lambda chunk, row: (
            f"{name_of(int(chunk.opcode[row]))} with syndrome "
            f"0x{chunk['aeth.syndrome'][row]:02x}, which is reserved"
        ),
        aspect=Aspect.SYNDROME,
    ),
)


class Refusals(ConnectionCheck):
    """What the responder refused last, and what became of it."""

    __slots__ = (
        "duplicates",
        "eager",
        "excused",
        "fatal",
        "hasty",
        "latest",
        "missing",
        "refused",
        "repeats",
        "waits",
    )

    def __init__(self, history: RequestHistory) -> None:
        super().__init__(history)
        self.missing: TransportPacket | None = None
        """The sequence NAK whose PSN has not arrived since."""
        self.latest: TransportPacket | None = None
        """The newest sequence NAK."""
        self.repeats = 0
        """How often the same was NAKed again."""
        self.duplicates = False
        """An older request has come since."""
        self.refused: TransportPacket | None = None
        """The RNR NAK whose PSN has not arrived since."""
        self.eager: tuple[str, TransportPacket] | None = None
        """Words and packet: the first new request since the RNR NAK."""
        self.excused = False
        """A sequence NAK for the same packet came, too."""
        self.waits = 0
        """Packets that came again after an RNR NAK."""
        self.hasty = 0
        """Those of them that came too soon."""
        self.fatal: TransportPacket | None = None

    def request(self, packet: TransportPacket, status: PacketStatus) -> Iterable[Violation]:
        """The missing one comes, or comes again, or another one in its place."""
        missing, refused = self.missing, self.refused
        if missing is not None:
            step = distance(missing.psn, packet.psn)
            self.duplicates = self.duplicates or step < 0
            if step == 0:
                self.missing = None
        if refused is None or status is DUPLICATE:
            return ()
        return self._after_rnr(packet, status, refused)

    def _after_rnr(
        self, packet: TransportPacket, status: PacketStatus, refused: TransportPacket
    ) -> Iterable[Violation]:
        """A request while one is refused by an RNR NAK."""
        waited = packet.time_ns - refused.time_ns
        asked = RNR_TIMER_US[code(refused.syndrome)] * 1000
        if packet.psn == refused.psn:
            self.refused = None
            if status is RETRANSMITTED and waited >= 0:
                yield from self._has_waited(packet, waited, asked)
        elif status is NEW and IN_FLIGHT_NS < waited < asked and self.eager is None:
            found = f"{name_of(packet.opcode)} of PSN {packet.psn}, which is new"
            words = f"{found}, {waited / 1e6:.3f} ms after an RNR NAK for {asked / 1e6:g} ms"
            self.eager = words, packet

    def _has_waited(self, packet: TransportPacket, waited: int, asked: int) -> Iterable[Violation]:
        """Whether a refused packet was retransmitted too soon, or others were sent in the meantime.

        A requester cannot react to an RNR NAK that is lost after this point: it is the sender
        and not the network only when it ignores most of them.
        """
        eager, self.eager = self.eager, None
        excused, self.excused = self.excused, False
        if excused and waited < asked:
            return
        self.waits += 1
        if waited >= TIMER_TOLERANCE * asked:
            if eager is not None:
                yield RNR_NEW, *eager
            return
        self.hasty += 1
        if self.hasty >= NO_ACCIDENT and 2 * self.hasty > self.waits:
            found = f"PSN {packet.psn} again {waited / 1e6:.3f} ms after the RNR NAK"
            yield RNR_WAIT, f"{found}, expected at least {asked / 1e6:g} ms", packet

    def response(self, packet: TransportPacket, status: PacketStatus) -> Iterable[Violation]:
        """A NAK, or a response that must not come."""
        if status is DUPLICATE:
            return ()
        is_ack = packet.syndrome < 0 or packet.syndrome & KIND_BITS == 0
        if is_ack and self.fatal is None:
            self._settle(packet)
            return ()
        return self._refuse(packet, AckKind.ACK if is_ack else kind(packet.syndrome))

    def _refuse(self, packet: TransportPacket, what: AckKind) -> Iterable[Violation]:
        """A NAK, or a response after one that ended the connection."""
        yield from self._after_the_end(packet)
        if what is AckKind.ACK:
            self._settle(packet)
            return
        if packet.opcode not in ACKNOWLEDGES:
            return
        value = code(packet.syndrome)
        if what is AckKind.RNR_NAK:
            if self.missing is not None and self.missing.psn == packet.psn:
                self.missing = None  # it has come, to be refused
            if self.refused is None or self.refused.psn != packet.psn:
                self.refused = packet
        elif value == NakCode.PSN_SEQUENCE_ERROR and self.history.newest is not None:
            yield from self._sequence(packet)
        elif value in _FATAL:
            self.fatal = packet
            request = self.history.requests.get(packet.psn)
            is_send = request is not None and INFO[request.opcode].operation is Operation.SEND
            if value == NakCode.REMOTE_OPERATIONAL_ERROR and is_send:
                yield TOO_LONG, f"SEND of PSN {packet.psn} got NAK 0x63", packet

    @classmethod
    def mark_alone(cls, checks: Sequence[Self], run: Regular) -> None:
        """All, if something is refused."""
        run.mark_all(bool(each.missing or each.refused or each.fatal) for each in checks)

    def _sequence(self, packet: TransportPacket) -> Iterable[Violation]:
        missing, refused = self.missing, self.refused
        again = missing is not None and missing.psn == packet.psn
        self.repeats = self.repeats + 1 if again else 0
        certain = self._is_no_accident(packet)
        if missing is not None and again:
            if certain:
                yield self._twice(missing, packet)
        elif refused is not None and refused.psn == packet.psn:
            yield AFTER_RNR, f"sequence NAK for PSN {packet.psn} after its RNR NAK", packet
        if refused is not None and refused.psn == packet.psn:
            self.excused = True
        if not again:
            self.missing, self.duplicates = packet, False
        front = self.history.front
        if front is None or distance(packet.psn, front.psn) < 0:
            return
        # Inside a message both have the same MSN, and the network may have changed their order.
        if self.history.was_answered_later(front, packet, least=1):
            found = f"NAK of PSN {packet.psn}"
            yield ACKNOWLEDGED, f"{found}, although {front.psn} had been acknowledged", packet

    def _twice(self, missing: TransportPacket, packet: TransportPacket) -> Violation:
        found = f"PSN {packet.psn} NAKed again (first NAK: packet {missing.number})"
        if self.duplicates:
            return AFTER_DUPLICATE, f"{found} after a duplicate of an older packet", packet
        return ONCE, f"{found}, although it was not sent in between", packet

    def _is_no_accident(self, packet: TransportPacket) -> bool:
        """Whether a NAK was sent again without need.

        It was, if the responder sent nothing in between. Otherwise the packet may have arrived
        unseen, and been refused with an unseen RNR NAK; and without incremented IP
        identifications it may be a duplicate by the network or a mirror, which come in pairs.
        """
        latest, self.latest = self.latest, packet
        if latest is not None and self.history.answer_ids.is_next(latest, packet):
            return True
        return self.repeats >= NO_ACCIDENT - 1

    def _settle(self, packet: TransportPacket) -> None:
        """What is acknowledged has come, whether it was seen here or not."""
        if self.missing is not None and distance(self.missing.psn, packet.psn) >= 0:
            self.missing = None
        if self.refused is not None and distance(self.refused.psn, packet.psn) >= 0:
            self.refused = None

    def _after_the_end(self, packet: TransportPacket) -> Iterable[Violation]:
        fatal = self.fatal
        if fatal is None or distance(fatal.psn, packet.psn) < 0:
            return
        if self.history.was_answered_later(fatal, packet, least=0):
            found = f"{name_of(packet.opcode)} of PSN {packet.psn}"
            yield (
                SILENCE,
                f"{found} after {describe(fatal.syndrome)} in packet {fatal.number}",
                packet,
            )
