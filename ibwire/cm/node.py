"""A device with a connection manager on QP1, as a node of a network.

QP1 is a UD queue pair with number 1 and the Q_Key of QP1. What it receives goes to the
connection manager, and it sends only the messages of the manager: work requests cannot be
posted. The first data of a queue pair, which the device reports as COMM_EST, goes to the
manager too.

The application calls the manager's commands, then has its network poll the node
(`Simulator.kick`), and polls events from the manager.
"""

from __future__ import annotations

import errno
import random
from itertools import islice

from ibwire.base.errors import VerbsError
from ibwire.base.node import OPEN, Frame, Grant
from ibwire.base.units import Time
from ibwire.cm.manager import ConnectionManager, identifiers
from ibwire.cm.messages import LINUX, Timing
from ibwire.cm.qp1 import serve
from ibwire.rc.attributes import EventType, QPAttr, QPCap, QPState, QPType
from ibwire.rc.connect import move
from ibwire.rc.device import Device
from ibwire.rc.qp import QPInit, QueuePair
from ibwire.rc.unreliable import QP1
from ibwire_layers.mad import GSI_QKEY


class ManagedDevice:
    """A device over RoCE together with its connection manager.

    ids: generator of communication IDs; on a real network `SystemRandom`, because a third
    party that guesses them can end connections. Raises `VerbsError` EOPNOTSUPP for a native
    InfiniBand port, whose paths need LIDs from subnet management, and EBUSY if the device
    has a QP1 already.
    """

    def __init__(self, device: Device, ids: random.Random, timing: Timing = LINUX) -> None:
        if device.link == "ib":
            raise VerbsError(errno.EOPNOTSUPP, "communication management without RoCE")
        self.device = device
        self.manager = ConnectionManager(
            device.gids,
            ca_guid(device.mac),
            identifiers(ids),
            timing,
            profile=device.profile,
        )
        self.name = device.name
        queue = device.create_cq(1)  # never used: the queue pair has no room for work requests
        cap = QPCap(max_send_wr=0, max_recv_wr=0)
        init = QPInit(QPType.UD, device.alloc_pd(), queue, queue, cap=cap)
        self.qp1 = device.create_qp(init, QP1)
        serve(self.qp1, self)
        _start(self.qp1)

    def receive(self, frame: Frame, now: Time, port: int = 0) -> None:
        """Process a received frame."""
        device = self.device
        known = len(device.events)
        device.receive(frame, now, port)
        if len(device.events) > known:
            for event in islice(device.events, known, None):
                if event.event_type is EventType.COMM_EST and isinstance(event.element, QueuePair):
                    self.manager.handle_established(event.element.number, now)

    def poll_transmit(self, now: Time, port: int = 0, grant: Grant = OPEN) -> Frame | None:
        """The next frame to send, or `None`."""
        if self.manager.has_messages:
            self.qp1.wake()
        return self.device.poll_transmit(now, port, grant)

    def poll_timeout(self) -> Time | None:
        """When to call `handle_timeout` next, or `None`."""
        device, manager = self.device.poll_timeout(), self.manager.poll_timeout()
        if device is None or manager is None:
            return manager if device is None else device
        return min(device, manager)

    def handle_timeout(self, now: Time) -> None:
        """Handle the timers that are due by `now`."""
        self.device.handle_timeout(now)
        self.manager.handle_timeout(now)


def ca_guid(mac: bytes) -> int:
    """The GUID of an adapter with this MAC: the modified EUI-64 (RFC 4291 appendix A; cm-rping)."""
    return int.from_bytes(bytes((mac[0] ^ 2,)) + mac[1:3] + b"\xff\xfe" + mac[3:])


def _start(qp: QueuePair) -> None:
    """Bring QP1 to RTS."""
    attr = QPAttr(qkey=GSI_QKEY)
    for state in (QPState.INIT, QPState.RTR, QPState.RTS):
        move(qp, state, attr)
