"""Connection management on QP1, sans I/O: connections made, rejected and ended by MADs.

The names below are public. A `ConnectionManager` takes and returns MADs; a `ManagedDevice` is
a device with a manager on its QP1, as a node of a network. `request` and `reply` build the
usual REQ and REP; `Endpoints` and the functions around it add the IP addressing of
`rdma_connect` and rping. `states` has the states of a connection and the table of moves.
"""

from ibwire.cm.connection import Connection, Event, Listener
from ibwire.cm.manager import ConnectionManager, identifiers
from ibwire.cm.messages import LINUX, Timing, reply, request
from ibwire.cm.node import ManagedDevice
from ibwire.cm.rdma_cm import Endpoints, endpoints_of, resolve_reply, resolve_request
from ibwire.cm.states import EventKind, State

__all__ = [
    "LINUX",
    "Connection",
    "ConnectionManager",
    "Endpoints",
    "Event",
    "EventKind",
    "Listener",
    "ManagedDevice",
    "State",
    "Timing",
    "endpoints_of",
    "identifiers",
    "reply",
    "request",
    "resolve_reply",
    "resolve_request",
]
