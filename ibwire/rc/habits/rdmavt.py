"""The behaviour of rdmavt, the core of the qib and hfi1 drivers, where it differs.

Source: Linux drivers/infiniband/sw/rdmavt and hw/qib/qib_rc.c.
"""

from __future__ import annotations

from ibwire.rc.packet import TransportPacket
from ibwire.rc.replies import Resource
from ibwire.rc.send_state import SendState, SendWQE


def holds_back(sends: SendState, wqe: SendWQE) -> bool:
    """The one message beyond the credits is sent whole."""
    return False


def gap_outlasts_duplicate() -> bool:
    """After the answer to a duplicate, the gap causes another NAK (`qib_rc_rcv_error`)."""
    return False


def acknowledges_duplicate(packet: TransportPacket) -> bool:
    """A duplicate SEND or WRITE packet is acknowledged when it asks for that."""
    return bool(packet.ack_req)


def accepts_replay(resource: Resource, position: int, end: int) -> bool:
    """A duplicate READ must end where the original ends (`qib_rc_rcv_error`)."""
    return end == resource.length
