"""Why a connection has failed: its first error, the cause as far as it is known, what to try.

After the first error a queue pair completes all other work requests with WR_FLUSH_ERR. Those may
be polled first, because they are in another completion queue, and say nothing of the cause.
"""

from __future__ import annotations

from collections.abc import Collection

from ibwire.rc.packet import TransportPacket
from ibwire.rc.qp import QueuePair
from ibwire.rc.work import WCStatus

LARGE_MTU = 1024
"""Path MTU in bytes from which a packet may be too large for a part of the way."""


def first_status(qp: QueuePair, status: WCStatus) -> WCStatus:
    """The status of the first error of a queue pair; `status` is that of a failed completion."""
    if status is WCStatus.WR_FLUSH_ERR and qp.first_error is not None:
        return qp.first_error
    return status


def cause(qp: QueuePair, status: WCStatus, options: Collection[str] = ()) -> str:
    """Why a queue pair has failed with the status of its first error, with hints.

    options: of the command, which hints may name.
    """
    if status is WCStatus.RETRY_EXC_ERR:
        return _no_response(qp, options)
    response = qp.wrong_response
    if response is not None:
        return (
            f"the peer's response {response.form.name} with PSN {response.psn} "
            "is not valid for the oldest request"
        )
    request = qp.refused_request
    if request is not None and status in (WCStatus.WR_FLUSH_ERR, WCStatus.LOC_LEN_ERR):
        return (
            f"the peer's request {request.form.name} with PSN {request.psn} and "
            f"{len(request.payload)} bytes is not valid here{_reason(request)}"
        )
    return _CAUSES.get(status, "the connection has failed")


def _reason(request: TransportPacket) -> str:
    """What may be wrong with a request, whose message the responder does not keep."""
    text = "size, access or place in its message"
    if not request.form.is_first:
        text += "; has the first packet been retransmitted with another opcode?"
    return f" ({text})"


def _no_response(qp: QueuePair, options: Collection[str]) -> str:
    """Why no response has arrived for all retries."""
    if qp.counters.packets_received:
        text = "the peer has stopped responding: it is gone, too slow, or packets are lost"
        hints = ["-u with a larger code waits longer"] if "-u" in options else []
        return ": ".join((text, *hints))
    text = "nothing has arrived from the peer's queue pair: the peer is gone, or a firewall drops "
    text += "UDP port 4791"
    if qp.mtu < LARGE_MTU:
        return text
    text += f", or packets of a path MTU of {qp.mtu} are lost on the way"
    return f"{text}: try a smaller one with -m" if "-m" in options else text


_CAUSES = {
    WCStatus.RNR_RETRY_EXC_ERR: "the peer posts no receives: start both ends with the same options",
    WCStatus.REM_ACCESS_ERR: "the peer refuses access to its memory (NAK remote access error)",
    WCStatus.REM_INV_REQ_ERR: "the peer has refused a request (NAK invalid request)",
    WCStatus.REM_OP_ERR: "the peer could not execute a request (NAK remote operational error)",
    WCStatus.WR_FLUSH_ERR: "the connection was closed",
}
