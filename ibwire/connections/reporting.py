"""Reports the events and messages of a connection to the observer of an analysis."""

from __future__ import annotations

from dataclasses import dataclass

from ibwire.connections.connection import Connection
from ibwire.connections.events import Cause, FlowEvent, FlowEventKind, Message
from ibwire.connections.observer import Observer
from ibwire.connections.open_message import OpenMessage
from ibwire.connections.packets import TransportPacket
from ibwire_layers.psn import MASK


@dataclass(frozen=True, slots=True)
class Reporter:
    """The observer of a connection; without one nothing is reported."""

    connection: Connection
    observer: Observer | None = None

    def event(self, event: FlowEvent) -> None:
        """Report an event."""
        if self.observer is not None:
            self.observer.event(event)

    def packet(
        self,
        kind: FlowEventKind,
        direction: int,
        packet: TransportPacket,
        *,
        cause_number: int = 0,
        cause: Cause | None = None,
        delay_ns: int | None = None,
    ) -> None:
        """Report an event that one packet shows by itself."""
        if self.observer is not None:
            self.observer.event(
                FlowEvent.of_packet(
                    packet,
                    kind=kind,
                    connection=self.connection.number,
                    direction=direction,
                    cause_number=cause_number,
                    cause=cause,
                    delay_ns=delay_ns,
                )
            )

    def message(
        self, message: OpenMessage, direction: int, *, number: int = 0, time_ns: int = 0
    ) -> None:
        """Report a message and the response that completes it; 0 and 0 without one.

        direction: of its requests.
        """
        if self.observer is not None:
            self.observer.message(
                Message(
                    connection=self.connection.number,
                    direction=direction,
                    verb=message.verb,
                    first_psn=message.first & MASK,
                    last_psn=message.last & MASK,
                    size=message.size,
                    first_number=message.first_number,
                    last_number=message.last_number,
                    first_ns=message.first_ns,
                    last_ns=message.last_ns,
                    acked_number=number,
                    acked_ns=time_ns,
                    retransmitted_packets=message.retransmitted,
                )
            )
