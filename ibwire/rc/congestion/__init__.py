"""How fast queue pairs send: rates that congestion sets, and windows that loss sets.

A `RateControl` belongs to one queue pair and says when its next packet may leave; `DCQCN`, `HPCC`,
`Timely`, `Swift`, `DCTCP` and the fixed `RateLimit` are such. A `NotificationPoint` belongs to a
device and says which CE-marked packets it answers with a CNP. The window of
`ibwire.rc.congestion.window` is for live links, where loss is the only sign.
"""

from ibwire.rc.congestion.dcqcn import CONNECTX, DCQCN, HPCC_MODEL, PAPER, Parameters
from ibwire.rc.congestion.dctcp import DCTCP, DCTCPParameters
from ibwire.rc.congestion.delay import Swift, SwiftParameters, Timely, TimelyParameters
from ibwire.rc.congestion.hpcc import HPCC, HPCCParameters
from ibwire.rc.congestion.notification import NotificationPoint, Scope
from ibwire.rc.congestion.rate import (
    UNLIMITED,
    Feedback,
    FeedbackControl,
    Pacer,
    RateControl,
    RateLimit,
)

__all__ = [
    "CONNECTX",
    "DCQCN",
    "DCTCP",
    "HPCC",
    "HPCC_MODEL",
    "PAPER",
    "UNLIMITED",
    "DCTCPParameters",
    "Feedback",
    "FeedbackControl",
    "HPCCParameters",
    "NotificationPoint",
    "Pacer",
    "Parameters",
    "RateControl",
    "RateLimit",
    "Scope",
    "Swift",
    "SwiftParameters",
    "Timely",
    "TimelyParameters",
]
