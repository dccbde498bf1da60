"""The reliable-connection transport, and UC, UD and XRC with the same state machines, sans I/O.

A `Device` is a node of a network: it takes and returns frames and never reads a clock.
`ibwire.fabric` connects nodes in virtual time; `ibwire.verbs` has pyverbs' names for the same
objects.

The names below are public. A device makes protection domains, completion queues and queue
pairs (`QPInit`); `connect` or `bring_up` moves queue pairs to RTS; work requests (`SendWR`,
`RecvWR`, with `SGE`) give completions (`WC`). A `Profile` is the behaviour of one
implementation. The modules are private, except for tests and tools of this project.

Inside, `qp` holds the parts of a queue pair: `send_queue`, `requester`, `completer`,
`receive` and `responder`. `habits` has the steps in which implementations differ.
"""

from ibwire.rc.attributes import AddressVector, AsyncEvent, QPAttr, QPCap, QPState, QPType
from ibwire.rc.connect import bring_up, connect
from ibwire.rc.device import Device
from ibwire.rc.limits import DeviceLimits
from ibwire.rc.memory import Access
from ibwire.rc.profile import PROFILES, Profile
from ibwire.rc.qp import QPInit, QueuePair
from ibwire.rc.work import SGE, WC, RecvWR, SendFlags, SendWR, WCStatus, WROpcode

__all__ = [
    "PROFILES",
    "SGE",
    "WC",
    "Access",
    "AddressVector",
    "AsyncEvent",
    "Device",
    "DeviceLimits",
    "Profile",
    "QPAttr",
    "QPCap",
    "QPInit",
    "QPState",
    "QPType",
    "QueuePair",
    "RecvWR",
    "SendFlags",
    "SendWR",
    "WCStatus",
    "WROpcode",
    "bring_up",
    "connect",
]
