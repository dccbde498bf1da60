"""Messages that a manager builds: REJ, MRA, DREQ, DREP and failed SIDR_REP.

Source: Linux `cm_format_rej`, `cm_issue_rej`, `cm_format_mra`, `cm_format_dreq`,
`cm_issue_drep` for the IDs in each; reference/cm#teardown; cm-reject.
"""

from __future__ import annotations

from collections.abc import Container, Sequence

from ibwire.cm.connection import Connection, is_xrc
from ibwire.cm.messages import padded
from ibwire.cm.states import State
from ibwire.rc.attributes import MTU_BYTES
from ibwire_layers import cm


def rejection(
    connection: Connection,
    guid: int,
    reason: int,
    private_data: bytes = b"",
    ari: bytes = b"",
    about: cm.MessageRejected | None = None,
) -> cm.REJ:
    """The REJ of a connection in its current state.

    guid: of the local CA. about: the rejected message; `None` for that of the state. Until
    the peer's ID is known, only a REJ with the reason TIMEOUT identifies the connection: the
    peer finds it by the GUID and the local ID.
    """
    if not connection.has_remote_id:
        reason = cm.RejectReason.TIMEOUT
    if reason == cm.RejectReason.TIMEOUT:
        ari = guid.to_bytes(8)
    if about is None:
        about = _ABOUT.get(connection.state, cm.MessageRejected.OTHER)
    has_id = connection.state is not State.REQ_RCVD  # the peer has not received it yet
    return _REJ.altered(
        local_comm_id=connection.local_id if has_id else 0,
        remote_comm_id=connection.remote_id,
        message_rejected=about,
        reject_info_length=len(ari),
        reason=reason,
        ari=padded(cm.REJ, ari, "ari"),
        private_data=padded(cm.REJ, private_data),
    )


def refusal(request: cm.REQ, reason: cm.RejectReason, ari: bytes = b"") -> cm.REJ:
    """The REJ to a REQ without a connection."""
    return _REJ.altered(
        remote_comm_id=request.local_comm_id,
        message_rejected=cm.MessageRejected.REQ,
        reject_info_length=len(ari),
        reason=reason,
        ari=padded(cm.REJ, ari, "ari"),
    )


def automatic_refusal(
    request: cm.REQ | cm.SIDR_REQ, services: Container[int], gids: Sequence[int]
) -> cm.REJ | cm.SIDR_REP | None:
    """The refusal of a request that the application need not see, `None` for a valid request.

    services: IDs with a listener. gids: the local GIDs.
    """
    if isinstance(request, cm.SIDR_REQ):
        if request.service_id in services:
            return None
        return sidr_rejection(request, cm.SIDRStatus.UNSUPPORTED)
    if request.service_id not in services:
        return refusal(request, cm.RejectReason.INVALID_SERVICE_ID)
    service = request.transport_service_type
    if service not in (cm.TransportType.RC, cm.TransportType.UC) and not is_xrc(request):
        return refusal(request, cm.RejectReason.INVALID_TRANSPORT_TYPE)
    if request.path_packet_payload_mtu not in MTU_BYTES:
        return refusal(request, cm.RejectReason.INVALID_MTU)
    if request.primary_remote_gid not in gids:
        # The ARI has a GID that would be accepted (Linux `cm_req_handler`).
        gid = gids[0].to_bytes(16)
        return refusal(request, cm.RejectReason.INVALID_PRIMARY_GID, gid)
    return None


def reject_unknown_connection(message: cm.REP | cm.RTU | cm.MRA, reason: cm.RejectReason) -> cm.REJ:
    """The REJ for an unused communication ID."""
    is_rep = isinstance(message, cm.REP)
    return _REJ.altered(
        local_comm_id=message.remote_comm_id,
        remote_comm_id=message.local_comm_id,
        message_rejected=cm.MessageRejected.REP if is_rep else cm.MessageRejected.OTHER,
        reason=reason,
    )


def receipt_acknowledgement(
    connection: Connection, service_timeout: int, private_data: bytes = b""
) -> cm.MRA:
    """The MRA for the REQ or REP that waits for a decision."""
    is_active = connection.is_active
    return cm.MRA(
        local_comm_id=connection.local_id,
        remote_comm_id=connection.remote_id,
        message_mraed=cm.MessageMRAed.REP if is_active else cm.MessageMRAed.REQ,
        service_timeout=service_timeout,
        private_data=padded(cm.MRA, private_data),
    )


def disconnect_request(connection: Connection, private_data: bytes = b"") -> cm.DREQ:
    """The DREQ of a connection."""
    return cm.DREQ(
        local_comm_id=connection.local_id,
        remote_comm_id=connection.remote_id,
        remote_qpn=connection.remote_qpn or 0,
        private_data=padded(cm.DREQ, private_data),
    )


def disconnect_reply(message: cm.DREQ) -> cm.DREP:
    """The DREP to a DREQ, also for an unknown connection."""
    return cm.DREP(local_comm_id=message.remote_comm_id, remote_comm_id=message.local_comm_id)


def sidr_rejection(request: cm.SIDR_REQ, status: cm.SIDRStatus) -> cm.SIDR_REP:
    """The SIDR_REP without a queue pair."""
    return cm.SIDR_REP(request_id=request.request_id, status=status, service_id=request.service_id)


_REJ = cm.REJ()

_ABOUT = {
    State.REQ_RCVD: cm.MessageRejected.REQ,
    State.MRA_REQ_SENT: cm.MessageRejected.REQ,
    State.REP_RCVD: cm.MessageRejected.REP,
    State.MRA_REP_SENT: cm.MessageRejected.REP,
}
