"""The behaviour of rdmavt, the core of the qib and hfi1 drivers, where it differs.

Source: Linux drivers/infiniband/sw/rdmavt and hw/qib/qib_rc.c.
"""

from __future__ import annotations

from ibwire.rc.replies import Resource
from ibwire.rc.send_state import SendState, SendWQE


def holds_back(sends: SendState, wqe: SendWQE) -> bool:
    """The one message beyond the credits is sent whole."""
    return False


def accepts_replay(resource: Resource, position: int, end: int) -> bool:
    """A duplicate READ must end where the original ends (`qib_rc_rcv_error`)."""
    return end == resource.length
