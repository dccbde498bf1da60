"""The two halves of QP1, which receives and sends MADs only.

QP1 is a UD queue pair like any other, with its checks of state, partition, Q_Key and
length. But it has no work requests and no completions: received MADs go to the connection manager
at once, and the messages of the manager go directly to the wire.
"""

from __future__ import annotations

from typing import Protocol

from ibwire.base.units import Time
from ibwire.cm.manager import ConnectionManager
from ibwire.rc.attributes import AddressVector, QPState
from ibwire.rc.device import Device
from ibwire.rc.modification import check_address
from ibwire.rc.packet import FORMS, TransportPacket
from ibwire.rc.path import Arrival, Path
from ibwire.rc.qp import QueuePair
from ibwire.rc.unreliable import QP1, UDResponder, UnreliableRequester
from ibwire_layers.mad import GSI_QKEY
from ibwire_layers.opcodes import OpCode, Operation
from ibwire_layers.packet import IBRoute, RoCEv2Route, Route
from ibwire_layers.psn import MASK


class Managed(Protocol):
    """A device with a connection manager."""

    manager: ConnectionManager


def serve(qp: QueuePair, managed: Managed) -> None:
    """Attach a manager to a UD queue pair in RESET without room for work requests."""
    qp.responder = MADResponder(qp, managed)
    qp.requester = MADRequester(qp, managed)


class MADResponder(UDResponder):
    """Passes datagrams to the manager."""

    __slots__ = ("_device", "_managed", "_route", "_sender_address")

    def __init__(self, qp: QueuePair, managed: Managed) -> None:
        super().__init__(qp, qp.receives)
        self._device = qp.device
        self._managed = managed
        self._route: Route | None = None
        """Route of the last datagram."""
        self._sender_address = AddressVector()
        """Address of its sender."""

    def handle_packet(self, packet: TransportPacket, now: Time) -> None:
        """Process a datagram."""
        qp = self.qp
        if packet.form.operation is not Operation.SEND:
            return
        if packet.qkey != qp.attr.qkey:
            qp.counters.bad_qkey += 1
        elif packet.arrival is None or len(packet.payload) > qp.mtu:
            qp.counters.dropped_messages += 1
        else:
            if packet.arrival.route is not self._route:
                self._route = packet.arrival.route
                self._sender_address = return_address(packet.arrival, self._device)
            self._managed.manager.handle_mad(packet.payload, self._sender_address, now)


class MADRequester(UnreliableRequester):
    """Sends the messages of the manager in RTS; in other states they wait."""

    __slots__ = ("_device", "_managed", "_path", "_to")

    def __init__(self, qp: QueuePair, managed: Managed) -> None:
        super().__init__(qp, qp.sends)
        self._device = qp.device
        self._managed = managed
        self._to: AddressVector | None = None
        """Destination of the last MAD."""
        self._path: Path | None = None

    def poll_transmit(self, now: Time) -> TransportPacket | None:
        """The next packet, or `None` if no packet may be sent."""
        qp = self.qp
        if qp.state is not _RTS:
            return None
        sent = self._managed.manager.poll_transmit(now)
        if sent is None:
            return None
        mad, to = sent
        sends = self.sends
        packet = TransportPacket(_FORM, sends.psn, mad)
        sends.psn = sends.una = sends.next_psn = sends.psn + 1 & MASK
        qp.address(packet, None)
        packet.reserved = qp.profile.request_reserved
        packet.ack_req = int(qp.profile.asks_on_qp1)
        packet.dest_qp, packet.src_qp, packet.qkey = QP1, QP1, GSI_QKEY
        if to is not self._to:
            check_address(self._device, to)
            self._to, self._path = to, self._device.path_to(to, QP1, 0)
        packet.path = self._path
        return packet


def return_address(arrival: Arrival, device: Device) -> AddressVector:
    """The address of the sender of a datagram, from its headers and source MAC address.

    The connection uses the same address (Linux `cm_init_av_for_response`), so a listener
    need not resolve the MAC address of an unknown peer.
    """
    route = arrival.route
    if isinstance(route, RoCEv2Route):
        traffic_class = route.ip.dscp << 2 | route.ip.ecn
    else:
        traffic_class = route.grh.tclass if route.grh is not None else 0
    own = device.gids.index(arrival.destination) if arrival.destination in device.gids else 0
    ethernet = None if isinstance(route, IBRoute) else route.eth
    return AddressVector(
        dgid=arrival.source,
        sgid_index=own,
        traffic_class=traffic_class,
        dmac=ethernet.src.to_bytes(6) if ethernet is not None else None,
    )


_FORM = FORMS[OpCode.UD_SEND_ONLY]
_RTS = QPState.RTS
