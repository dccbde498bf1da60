"""Connections in a capture: handshakes, pairing of flows, tracking of PSNs, tables.

    analysis = Analysis()
    for columns in dissect.read("capture.pcap"):
        analysis.take(columns)
    for connection in analysis.finish().connections:
        print(connection.ends, connection.directions[0].lost)

`analyse` does the same for several captures. An `Observer` receives events and messages, a
`PacketObserver` every packet with its status. `states` explains how requests are followed.
The names below are public.
"""

from ibwire.connections.analysis import Analysis
from ibwire.connections.connection import MTUS, Connection, End
from ibwire.connections.counts import DirectionCounts
from ibwire.connections.events import Cause, FlowEvent, FlowEventKind, Message
from ibwire.connections.flow import FlowKey
from ibwire.connections.merge import analyse, follow
from ibwire.connections.observer import Observer
from ibwire.connections.packet_observer import PacketObserver
from ibwire.connections.packets import TransportPacket
from ibwire.connections.pairing import PAIRINGS
from ibwire.connections.states import PacketStatus, RequesterState, ResponderState
from ibwire.connections.status import ConnectionStatus, Status
from ibwire.connections.summary import Summary
from ibwire.connections.tables import TABLES
from ibwire.connections.tracker import RequestTracker

__all__ = [
    "MTUS",
    "PAIRINGS",
    "TABLES",
    "Analysis",
    "Cause",
    "Connection",
    "ConnectionStatus",
    "DirectionCounts",
    "End",
    "FlowEvent",
    "FlowEventKind",
    "FlowKey",
    "Message",
    "Observer",
    "PacketObserver",
    "PacketStatus",
    "RequestTracker",
    "RequesterState",
    "ResponderState",
    "Status",
    "Summary",
    "TransportPacket",
    "analyse",
    "follow",
]
