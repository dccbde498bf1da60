"""How fast queue pairs send: rates that congestion sets, and windows that loss sets.

A `RateControl` belongs to one queue pair and says when its next packet may leave; `DCQCN` is
one. A `NotificationPoint` belongs to a device and says which CE-marked packets it answers with a
CNP. The window of `ibwire.rc.congestion.window` is for live links, where loss is the only sign.
"""

from ibwire.rc.congestion.dcqcn import CONNECTX, DCQCN, HPCC_MODEL, PAPER, Parameters
from ibwire.rc.congestion.notification import NotificationPoint, Scope
from ibwire.rc.congestion.rate import RateControl

__all__ = [
    "CONNECTX",
    "DCQCN",
    "HPCC_MODEL",
    "PAPER",
    "NotificationPoint",
    "Parameters",
    "RateControl",
    "Scope",
]
