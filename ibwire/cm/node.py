"""A device whose QP1 is served: a node of a network that can be connected to.

QP1 is an ordinary UD queue pair with number 1 and the Q_Key of QP1. Its receives go to
the connection manager, the manager's messages are its sends, and the first data of a
queue pair, which the device reports as COMM_EST, is told to the manager.

The application calls the manager's commands, then has its network ask the node again
(`Simulator.kick`), and takes events from the manager.
"""

from __future__ import annotations

import errno
import random
from itertools import islice

from ibwire.cm.manager import ConnectionManager, identifiers
from ibwire.cm.messages import LINUX, Timing
from ibwire.errors import VerbsError
from ibwire.node import OPEN, Frame, Grant
from ibwire.rc.attributes import (
    AddressVector,
    EventType,
    QPAttr,
    QPAttrMask,
    QPCap,
    QPState,
    QPType,
)
from ibwire.rc.device import Device
from ibwire.rc.memory import Access
from ibwire.rc.path import V4_MAPPED
from ibwire.rc.qp import QPInit, QueuePair
from ibwire.rc.states import TRANSITIONS
from ibwire.rc.unreliable import GRH_SIZE, QP1
from ibwire.rc.work import SGE, RecvWR, SendFlags, SendWR, WCStatus
from ibwire.units import Time
from ibwire_layers.headers import GRH
from ibwire_layers.mad import GSI_QKEY, MAD_SIZE
from ibwire_layers.outer import IPv4

DEPTH = 128
"""MADs that QP1 can receive before it is looked at, and that can wait to leave it."""


class ManagedDevice:
    """A device over RoCE together with its connection manager.

    ids: what communication IDs are drawn from; live, `SystemRandom`, because a stranger
    who can guess them can end connections. Raises `VerbsError` EOPNOTSUPP for a native
    InfiniBand port, where a path has LIDs that nobody here looks up, and EBUSY if the
    device has a QP1 already.
    """

    def __init__(self, device: Device, ids: random.Random, timing: Timing = LINUX) -> None:
        if device.link == "ib":
            raise VerbsError(errno.EOPNOTSUPP, "communication management without RoCE")
        self.device = device
        self.manager = ConnectionManager(device.gids, ca_guid(device.mac), identifiers(ids), timing)
        self.name = device.name
        pd = device.alloc_pd()
        self._slot = GRH_SIZE + MAD_SIZE
        self._memory = pd.register(DEPTH * self._slot, int(Access.LOCAL_WRITE))
        self._received = device.create_cq(DEPTH)
        self._sent = device.create_cq(DEPTH)
        self.qp1 = device.create_qp(
            QPInit(
                QPType.UD,
                pd,
                self._sent,
                self._received,
                cap=QPCap(max_send_wr=DEPTH, max_recv_wr=DEPTH, max_inline_data=MAD_SIZE),
            ),
            QP1,
        )
        _start(self.qp1)
        for slot in range(DEPTH):
            self._post_recv(slot)

    def receive(self, frame: Frame, now: Time, port: int = 0) -> None:
        """Take a frame that has arrived whole."""
        known = len(self.device.events)
        self.device.receive(frame, now, port)
        for event in islice(self.device.events, known, None):
            if event.event_type is EventType.COMM_EST and isinstance(event.element, QueuePair):
                self.manager.handle_established(event.element.number, now)
        for wc in self._received.poll(DEPTH):
            if wc.status is WCStatus.SUCCESS:
                self._handle(wc.wr_id, wc.byte_len, frame[_SOURCE_MAC], now)
            self._post_recv(wc.wr_id)

    def poll_transmit(self, now: Time, port: int = 0, grant: Grant = OPEN) -> Frame | None:
        """The next frame to send; `None` when there is none that may leave."""
        self._sent.poll(DEPTH)
        while self.qp1.requester.in_use < DEPTH:
            message = self.manager.poll_transmit(now)
            if message is None:
                break
            mad, to = message
            self.qp1.post_send(
                SendWR(
                    send_flags=SendFlags.INLINE | SendFlags.SIGNALED,
                    inline_data=mad,
                    ah=to,
                    remote_qpn=QP1,
                    remote_qkey=GSI_QKEY,
                )
            )
        return self.device.poll_transmit(now, port, grant)

    def poll_timeout(self) -> Time | None:
        """When `handle_timeout` wants to be called; `None` for never."""
        due = (self.device.poll_timeout(), self.manager.poll_timeout())
        return min((time for time in due if time is not None), default=None)

    def handle_timeout(self, now: Time) -> None:
        """Do what is due by `now`."""
        self.device.handle_timeout(now)
        self.manager.handle_timeout(now)

    def _handle(self, slot: int, length: int, mac: bytes, now: Time) -> None:
        data = self._memory.read(self._memory.iova + slot * self._slot, length)
        way = way_back(data[:GRH_SIZE], self.device, mac)
        self.manager.handle_mad(data[GRH_SIZE:], way, now)

    def _post_recv(self, slot: int) -> None:
        memory = self._memory
        sge = SGE(memory.iova + slot * self._slot, self._slot, memory.lkey)
        self.qp1.post_recv(RecvWR([sge], slot))


def way_back(grh: bytes, device: Device, mac: bytes) -> AddressVector:
    """Where the sender of a datagram is, by the 40 bytes in front of it and the MAC it came from.

    Over IPv4 its header takes the last 20 of them (IBA annex A17.4.5.2). The connection
    that is made takes the same way (Linux `cm_init_av_for_response`), so who listens need
    not ask for the MAC address of a stranger.
    """
    if grh[0] >> 4 == 6:
        header = GRH.unpack(grh)
        source, destination, traffic_class = header.sgid, header.dgid, header.tclass
    else:
        ip = IPv4.unpack(grh, GRH_SIZE - IPv4.SIZE)
        source, destination = V4_MAPPED | ip.src, V4_MAPPED | ip.dst
        traffic_class = ip.dscp << 2 | ip.ecn
    own = device.gids.index(destination) if destination in device.gids else 0
    return AddressVector(dgid=source, sgid_index=own, traffic_class=traffic_class, dmac=mac)


def ca_guid(mac: bytes) -> int:
    """The GUID of an adapter with this MAC: the modified EUI-64 (RFC 4291 appendix A; cm-rping)."""
    return int.from_bytes(bytes((mac[0] ^ 2,)) + mac[1:3] + b"\xff\xfe" + mac[3:])


def _start(qp: QueuePair) -> None:
    """Bring QP1 to RTS."""
    attr = QPAttr(qkey=GSI_QKEY)
    before = QPState.RESET
    for state in (QPState.INIT, QPState.RTR, QPState.RTS):
        attr.qp_state = state
        qp.modify(attr, TRANSITIONS[QPType.UD][before, state].required | QPAttrMask.STATE)
        before = state


_SOURCE_MAC = slice(6, 12)
"""Of an Ethernet frame."""
