"""Packets that have arrived before an earlier one: kept until it comes.

The responder keeps requests and executes them in order, the completer keeps READ responses. Data
of a WRITE whose address is known goes to memory at once.

Source: docs/reference/transport.md#early-packets.
"""

from __future__ import annotations

from ibwire.rc.packet import TransportPacket
from ibwire.rc.profile import Profile
from ibwire_layers.opcodes import Operation
from ibwire_layers.psn import HALF, MASK


class EarlyPackets:
    """Packets by PSN. window: the largest distance from the expected PSN that is kept."""

    __slots__ = ("packets", "window")

    def __init__(self, window: int) -> None:
        self.window = window
        self.packets: dict[int, TransportPacket] = {}

    def __len__(self) -> int:
        return len(self.packets)

    def add(self, packet: TransportPacket, expected: int) -> bool:
        """Keep a packet; `False` if it is too far ahead."""
        if (packet.psn - expected) & MASK > self.window:
            return False
        self.packets.setdefault(packet.psn, packet)
        return True

    def take(self, psn: int) -> TransportPacket | None:
        """The packet with this PSN, which is no longer kept."""
        return self.packets.pop(psn, None)

    def take_first(self, expected: int) -> TransportPacket | None:
        """The packet nearest to the expected PSN, which is no longer kept."""
        packet = self.packets.pop(expected, None)
        while packet is None and self.packets:
            psn = min(self.packets, key=lambda each: (each - expected) & MASK)
            packet = self.packets.pop(psn)
            if (psn - expected) & MASK >= HALF:
                self.packets.clear()  # all of them are old
                return None
        return packet

    def write_start(self, psn: int, mtu: int) -> TransportPacket | None:
        """The kept first packet of the WRITE that a PSN belongs to."""
        for packet in self.packets.values():
            form = packet.form
            if form.operation is Operation.WRITE and form.is_first and not form.is_last:
                offset = ((psn - packet.psn) & MASK) * mtu
                if offset < packet.dma_len:
                    return packet
        return None


def early_packets(profile: Profile) -> EarlyPackets:
    """Those of one side of a queue pair; sides that keep none share an object that stays empty."""
    return EarlyPackets(profile.early_window) if profile.places_early else _NONE


_NONE = EarlyPackets(0)
