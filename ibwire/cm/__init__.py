"""Communication management on QP1: connections made, refused and ended by messages, sans I/O.

A `ConnectionManager` takes MADs and gives MADs; a `ManagedDevice` is a node of a network
whose QP1 it serves. `rdma_cm` has the addressing that `rdma_connect` and rping use.
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
