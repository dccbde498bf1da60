"""Packets and messages of a case as frames, for the connection that the case runs on.

What a step does not say is right: lengths, padding, checksums and, last of all, the ICRC.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from ibwire.base.node import Frame
from ibwire.drill.packets import built_icrc, pause_frame, with_icrc
from ibwire.fuzz.case import GOOD, NONE, CaseError, Mad, Packet, Pause
from ibwire.fuzz.targets.emulated_device import ADDRESSES
from ibwire.fuzz.vocabulary.cm.encoding import encode_message
from ibwire.fuzz.vocabulary.queue_pair.encoding import Symbols, encode, number_of
from ibwire.rc.device import gid_of, mac_of
from ibwire.rc.path import Path, ethernet_route, is_v4
from ibwire_layers import headers as h
from ibwire_layers.build import enclose
from ibwire_layers.outer import UDP, Ethernet, IPv4, IPv6

SOURCE_PORT = 0xC000
OUTER = ("eth", "ip", "udp")
"""Headers before the BTH that a step may change."""

_OUTER = tuple(f"{part}." for part in OUTER)


@cache
def emulated_binding(version: int) -> Binding:
    """The way to an emulated device over this version of IP."""
    device, fuzzer = ADDRESSES[version]
    return Binding(fuzzer, device)


class Binding:
    """The way from the fuzzer to one device.

    source, destination: IP addresses. macs: of both, if they are not those that an
    emulated network gives. ends: what the private data of connection requests begins with,
    for a service that reads from it which addresses are connected (`ibwire.cm.rdma_cm`).
    """

    def __init__(
        self,
        source: str,
        destination: str,
        macs: tuple[bytes, bytes] | None = None,
        ends: bytes = b"",
    ) -> None:
        gids = gid_of(source), gid_of(destination)
        source_mac, destination_mac = macs or (mac_of(gids[0]), mac_of(gids[1]))
        self.source_mac = source_mac
        self._private_data = ends
        self.route = ethernet_route(
            source=gids[0],
            destination=gids[1],
            source_mac=source_mac,
            destination_mac=destination_mac,
            source_port=SOURCE_PORT,
        )
        self._path = Path(self.route)
        ip = IPv4 if is_v4(gids[1]) else IPv6
        self._masks = {
            f"{part}.{field.name}": (1 << field.width) - 1
            for part, kind in (("eth", Ethernet), ("ip", ip), ("udp", UDP))
            for field in kind.FIELDS
        }
        """Fields of the headers before the BTH, with the bits that have room."""

    def frame(self, packet: Packet, psn: int, symbols: Symbols) -> Frame:
        """The frame of a step. psn: what its PSN counts from, as a number."""
        if isinstance(packet, Mad):
            transport = encode_message(packet, psn, symbols, self._private_data)
        else:
            transport = encode(packet, psn, symbols)
        return self.enclosed(packet, transport, symbols)

    def pause(self, step: Pause) -> Frame:
        """A PFC frame from the fuzzer's port."""
        return pause_frame(self.source_mac, step.priorities, step.quanta)

    def enclosed(self, packet: Packet, transport: bytes, symbols: Symbols) -> Frame:
        """The frame with these bytes from the BTH to the padding."""
        outer: dict[str, Any] = {}
        for name, value in packet.fields.items():
            if name.startswith(_OUTER):
                if name not in self._masks:
                    raise CaseError(f"no field {name} on this route")
                outer[name] = number_of(value, symbols) & self._masks[name]
        if packet.icrc != NONE and not outer and len(transport) >= h.BTH.SIZE:
            frame = self._path.frame(transport)
            if packet.icrc < GOOD:
                return frame[: -h.ICRC_SIZE] + packet.icrc.to_bytes(h.ICRC_SIZE)
            return frame if packet.icrc == GOOD else with_icrc(frame, packet.icrc)
        icrc = built_icrc(packet.icrc)
        frame = enclose(transport, route=self.route, icrc=icrc, **outer)
        return with_icrc(frame, packet.icrc)
