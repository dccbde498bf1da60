"""Out-of-order placement and selective repeat: what adapters do for networks with many paths.

Source: docs/reference/transport.md#early-packets, #selective-repeat.
"""

from __future__ import annotations

from typing import Protocol

from ibwire.rc import sack
from ibwire.rc.early import EarlyPackets
from ibwire.rc.packet import TransportPacket
from ibwire.rc.profile import Profile
from ibwire.rc.send_state import SendState
from ibwire_layers.psn import HALF, MASK


class Keeping(Protocol):
    """The responder, as far as a habit acts with it."""

    early: EarlyPackets
    epsn: int

    @property
    def own(self) -> Profile:
        """The profile."""
        ...

    def place(self, packet: TransportPacket) -> None:
        """Write the data of an early packet to memory, if its address is known."""
        ...


def keeps_early(responder: Keeping, packet: TransportPacket) -> bool:
    """A packet that is ahead is kept, and not NAKed until it is `nak_distance` ahead.

    A packet too far ahead is refused, as if nothing were kept.
    """
    early, own = responder.early, responder.own
    is_known = packet.psn in early.packets
    if not early.add(packet, responder.epsn):
        return False
    if not is_known:
        responder.place(packet)
    ahead = (packet.psn - responder.epsn) & MASK
    return not own.nak_distance or ahead < own.nak_distance


def record_of_nak(early: EarlyPackets, expected: int) -> bytes:
    """A NAK carries the ranges that have arrived."""
    return sack.pack(sack.ranges_of(early.packets, expected))


def waits_for_early() -> bool:
    """Responses that are ahead wait; what never comes is found by the ACK timer."""
    return True


def retransmits_missing(sends: SendState, packet: TransportPacket, distance: int) -> bool:
    """Only what is missing is retransmitted, each packet once.

    It is repeated if packets that were sent after its retransmission have arrived.
    """
    first = packet.psn
    ranges = sack.unpack(packet.trailer, first)
    sent = (sends.next_psn - first) & MASK
    if sent >= HALF or (ranges and (ranges[-1][1] - first) & MASK > sent):
        return True  # it names packets that were never sent
    newest = (ranges[-1][1] - 1) & MASK if ranges else first
    missing = first
    for begin, end in ranges or ((first + 1 & MASK, first + 1 & MASK),):
        while missing != begin:
            again = sends.resent.get(missing)
            # The first packet sent after the retransmission has arrived, and enough after it.
            if again is None or _is_after(newest, again, distance):
                sends.resent[missing] = sends.next_psn
                sends.resend.append(missing)
            missing = missing + 1 & MASK
        missing = end
    return True


def _is_after(newest: int, again: int, distance: int) -> bool:
    beyond = (newest - again) & MASK
    return beyond < HALF and beyond + 1 >= distance
