"""A device on a link as every link meets it: where it is, and how frames get there."""

from __future__ import annotations

from collections import deque
from struct import Struct

from ibwire.base.closing import Closing
from ibwire.base.node import Frame
from ibwire.base.units import S, Time
from ibwire.drill.targets.live import ETHERNET_SIZE, SLACK, SOURCE_PORT
from ibwire.drill.targets.restart import Restart, reach_at_start
from ibwire.fuzz.case import CaseError
from ibwire.fuzz.targets.emulated_device import ADDRESS, PEER_ADDRESS
from ibwire.fuzz.targets.link.frames import Pacer, behind_ip, check_addressee, is_pause, stops
from ibwire.fuzz.targets.link.host import Host
from ibwire.fuzz.vocabulary.binding import Binding
from ibwire.programs.endpoint import Endpoint
from ibwire.rc.device import gid_of
from ibwire.rc.path import Path, address_of, ethernet_route, is_v4
from ibwire_layers import headers as h
from ibwire_layers.outer import EtherType

RATE = 10_000
"""Packets a second by default."""


class DeviceLink(Closing):
    """The link on which cases are executed on a device.

    peer: the IP address of the device. tolerance: how late a response may be; after that time
    the device counts as silent. rate: packets per second at most. restart: restarts the device
    when it is dead.
    Raises `LinkError` when there is no route to the peer.
    """

    _leaving: deque[Frame]
    """What the node of the endpoint sends before all else."""

    def __init__(
        self,
        endpoint: Endpoint,
        peer: str,
        *,
        tolerance: Time = SLACK,
        rate: int = RATE,
        restart: Restart | None = None,
    ) -> None:
        self.endpoint = endpoint
        self.peer = peer
        self.tolerance = tolerance
        self.restart = restart
        self.lost = ""
        """Why the device is abandoned; empty while it can be used."""
        self.sent = 0
        """Packets that it was sent, but for those of correct connections and PFC frames."""
        self._stopped: list[Time] = [0] * 8
        """Until when its port may have to wait, by priority."""
        self._pacer = Pacer(rate)
        self._gid = gid_of(peer)
        device = endpoint.device
        vlan = device.vlan
        self._tag = b"" if vlan is None else _TAG.pack(EtherType.VLAN, vlan)
        """VLAN tag of sent frames; cases do not depend on it."""
        self._own = device.gids[reach_at_start(restart, endpoint, self._gid)]
        self.address = address_of(self._own)
        self.host = Host(endpoint, self._gid)
        self._learn(device.neighbours[self._gid])

    def _learn(self, mac: bytes) -> None:
        """What depends on the MAC address of the device, which may come back with another one."""
        own_mac = self.endpoint.device.mac
        self.macs = mac, own_mac
        """Of the device and of ours."""
        route = ethernet_route(
            source=self._gid,
            destination=self._own,
            source_mac=mac,
            destination_mac=own_mac,
            source_port=SOURCE_PORT,
        )
        self._received_path = Path(route)
        self.path = self._received_path if self.is_v4 else EMULATED
        """The headers that all answers get, whatever a device puts there: those of IPv4."""

    def as_received(self, frame: Frame) -> Frame:
        """A response with these headers, as it was received: with its version of IP."""
        if self.is_v4 or not frame.startswith(_EMULATED_MACS):
            return frame
        inside = behind_ip(frame)
        received = self._received_path.frame(inside)
        return received if frame == self.path.frame(inside) else damaged(received)

    @property
    def is_v4(self) -> bool:
        """Whether the device is spoken to over IPv4."""
        return is_v4(self._gid)

    @property
    def paused(self) -> Time:
        """How long the device may still have to wait for its port."""
        return max(*self._stopped, self.endpoint.live.now) - self.endpoint.live.now

    @property
    def largest(self) -> int:
        """Bytes of an IP packet that the interface carries."""
        return self.endpoint.port.mtu

    def send(self, frame: Frame) -> None:
        """Send a frame to the device, within the rate limit.

        Raises `CaseError` for one that the link cannot carry, or that has another destination.
        """
        check_addressee(frame, mac=self.macs[0], own_mac=self.macs[1], address=self.peer)
        if len(frame) > self.largest + ETHERNET_SIZE:
            size = len(frame) - ETHERNET_SIZE
            raise CaseError(f"{size} bytes: the interface's MTU is {self.largest}")
        endpoint = self.endpoint
        if is_pause(frame):
            self._leaving.append(frame)
            for priority, time in stops(frame).items():
                self._stopped[priority] = endpoint.live.now + time
        else:
            self._leaving.append(frame[:_MACS] + self._tag + frame[_MACS:])
            self.sent += 1
        endpoint.run(seconds=self._pacer.pause(endpoint.live.now) / S)


def damaged(frame: Frame) -> Frame:
    """A frame with a wrong ICRC."""
    return frame[:-1] + bytes([frame[-1] ^ 0xFF])


EMULATED = Path(Binding(ADDRESS, PEER_ADDRESS).route)
"""Headers as in an emulation, which are never sent: the judge knows IPv4 only."""

_MACS = 12
"""Bytes before a tag."""
_EMULATED_MACS = EMULATED.frame(bytes(h.BTH.SIZE))[:_MACS]
_TAG = Struct(">HH")
