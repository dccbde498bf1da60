"""Who wants to receive every packet of the connections.

The protocol is not beside `RequestTracker`, which calls it: mypyc compiles no protocol that
`isinstance` asks for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

from ibwire.connections.observer import Observer

if TYPE_CHECKING:
    from ibwire.connections.connection import Connection
    from ibwire.connections.packets import TransportPacket
    from ibwire.connections.states import PacketStatus
    from ibwire.connections.tracked_requests import TrackedRequests


@runtime_checkable
class PacketObserver(Observer, Protocol):
    """Receives every packet besides, which makes the analysis several times slower."""

    def request(
        self, tracker: TrackedRequests, packet: TransportPacket, status: PacketStatus
    ) -> None:
        """A request, before it changes the tracker."""

    def response(
        self, tracker: TrackedRequests, packet: TransportPacket, status: PacketStatus
    ) -> None:
        """A response, before it changes the tracker."""

    def other(self, connection: Connection, direction: int, packet: TransportPacket) -> None:
        """A CNP, a datagram, or a packet with a wrong ICRC."""
