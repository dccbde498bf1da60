"""The reliable-connection transport, and UC, UD and XRC on the same machinery, sans I/O.

A `Device` is a node of a network: it takes frames, gives frames, and never reads a
clock. `ibwire.fabric` connects nodes in virtual time; `ibwire.verbs` puts pyverbs'
names on top.
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
