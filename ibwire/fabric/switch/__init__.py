"""A switch of a lossless Ethernet: shared buffer, priorities, PFC, ECN, paths.

`Switch` is the node. What it is made of stands alone, each in a file: its ports, `SharedBuffer` and
its `Account`s, `Ramp` for marks, `Scheduler` for priorities, `Classifier` and `Router`.
"""

from ibwire.fabric.switch.buffer import Account, BufferTooSmall, SharedBuffer
from ibwire.fabric.switch.classes import Classifier, Remark, Trust
from ibwire.fabric.switch.marking import Ramp
from ibwire.fabric.switch.port import PortCounters, PortSettings, PriorityRules
from ibwire.fabric.switch.routing import Router, Strategy
from ibwire.fabric.switch.scheduling import Scheduler
from ibwire.fabric.switch.switch import Switch
from ibwire.fabric.switch.watchdog import Action, QueueWatch, Watchdog

__all__ = [
    "Account",
    "Action",
    "BufferTooSmall",
    "Classifier",
    "PortCounters",
    "PortSettings",
    "PriorityRules",
    "QueueWatch",
    "Ramp",
    "Remark",
    "Router",
    "Scheduler",
    "SharedBuffer",
    "Strategy",
    "Switch",
    "Trust",
    "Watchdog",
]
