"""One connection of a manager, and the attributes of its queue pair."""

from __future__ import annotations

import errno
from dataclasses import dataclass
from typing import Any, NamedTuple

from ibwire.base.errors import VerbsError
from ibwire.base.units import Time
from ibwire.cm.messages import Timing, combined_ack_timeout, duration
from ibwire.cm.states import EventKind, State
from ibwire.rc.attributes import AddressVector
from ibwire.rc.connect import bring_up
from ibwire.rc.memory import Access
from ibwire.rc.qp import QueuePair
from ibwire_layers import cm


@dataclass(eq=False, slots=True)
class Listener:
    """A listener for connections to a service, or for its resolution."""

    service_id: int
    backlog: int
    """Requests that may wait for the application's decision."""
    waiting: int = 0
    """Requests that wait."""


class CMTimeouts(NamedTuple):
    """Timeouts and retries of the messages about one connection."""

    response: Time
    """How long to wait for the peer's response."""
    repetition: Time
    """How long the peer may take to retransmit a request."""
    linger: Time
    """How long packets may stay in the network."""
    retries: int
    """Retransmissions of each request."""


@dataclass(eq=False, slots=True)
class Connection:
    """A connection, or the resolution of a service ID; its manager alone changes it."""

    local_id: int
    transaction_id: int
    """Of messages that start an exchange here: REQ, SIDR_REQ, DREQ."""
    request_transaction: int
    """Of the REQ or SIDR_REQ, sent or received, and of the messages that answer it."""
    is_active: bool
    """Whether this side sent the request."""
    request: cm.REQ | cm.SIDR_REQ
    peer: AddressVector
    """Address of the peer's manager."""
    timeouts: CMTimeouts
    listener: Listener | None = None
    state: State = State.IDLE
    remote_id: int = 0
    reply: cm.REP | cm.SIDR_REP | None = None
    local_qpn: int | None = None
    """The local queue pair, once it is known."""
    remote_qpn: int | None = None
    """The peer's, once it is known."""
    remote_guid: int | None = None
    """The peer's CA, once it is known."""
    retries_left: int = 0
    extra_time: Time = 0
    """Time that a sent MRA has requested: the peer may wait that long before it retransmits."""
    deadline: Time | None = None
    last_sent: bytes = b""
    """The MAD that was sent last, for retransmission."""

    @property
    def has_remote_id(self) -> bool:
        """Whether `remote_id` is known; 0 is a valid ID. The first message of the peer has it."""
        return not self.is_active or self.reply is not None

    def queue_pair_attributes(self) -> tuple[AddressVector, dict[str, Any]]:
        """Destination and attributes (fields of `QPAttr`) of the local queue pair.

        Known after the REP is sent or received: EINVAL before. Source:
        reference/cm#request; for the PSNs the data packets of cm-rping and Linux `ib_send_cm_req`,
        `cm_req_handler`.
        """
        request, answer = self.request, self.reply
        if not isinstance(request, cm.REQ) or not isinstance(answer, cm.REP):
            raise VerbsError(errno.EINVAL, f"no REP yet, the connection is in {self.state.name}")
        active = self.is_active
        own, other = (request, answer) if active else (answer, request)
        timeout = request.primary_local_ack_timeout
        if active:
            timeout = combined_ack_timeout(answer.target_ack_delay, max(timeout - 1, 0))
        # The READs that one side executes limit those that the other has outstanding.
        depth = min(own.initiator_depth, other.responder_resources)
        served = min(own.responder_resources, other.initiator_depth)
        address = AddressVector(
            dgid=request.primary_remote_gid if active else request.primary_local_gid,
            sgid_index=self.peer.sgid_index,
            traffic_class=request.primary_traffic_class,
            flow_label=request.primary_flow_label,
            hop_limit=request.primary_hop_limit,
            sl=request.primary_sl,
            dmac=self.peer.dmac,
        )
        return address, {
            "dest_qp_num": self.remote_qpn,
            # Each side gives its expected PSN, which is the first PSN of the other.
            "sq_psn": other.starting_psn,
            "rq_psn": own.starting_psn,
            "path_mtu": request.path_packet_payload_mtu,
            "max_rd_atomic": depth,
            "max_dest_rd_atomic": served,
            "timeout": timeout,
            "retry_cnt": request.retry_count,
            "rnr_retry": other.rnr_retry_count,
            "qp_access_flags": _SERVING if served else _WRITABLE,
        }

    def bring_up(self, qp: QueuePair, **attr: Any) -> None:
        """Move a queue pair from RESET to RTS; `attr` are fields of `QPAttr` that differ.

        The passive side calls it right after `accept`, as the RDMA-CM of Linux: then data
        raises no COMM_EST, and a lost RTU is retransmitted for the repeated REP. The active
        side calls it before `ready`.
        """
        address, attributes = self.queue_pair_attributes()
        bring_up(qp, address, **attributes | attr)


class Event(NamedTuple):
    """An event about a connection for the application."""

    kind: EventKind
    connection: Connection
    private_data: bytes = b""
    """As in the message, with its trailing zeros."""
    reason: int = 0
    """`RejectReason` when REJECTED, `SIDRStatus` when RESOLVED."""
    ari: bytes = b""
    """Additional reject information of a REJ."""


def timeouts_of(request: cm.REQ | cm.SIDR_REQ, timing: Timing, *, is_active: bool) -> CMTimeouts:
    """Timeouts from the fields of a request, and from the local `timing` for the others.

    The sender of a REQ waits for its transfer, for the response time of the peer and for
    the transfer of the answer; the REQ has the corresponding time for the other side (Linux
    `ib_send_cm_req`, `cm_req_handler`). TIMEWAIT takes a local ACK timeout
    (`cm_enter_timewait`).
    """
    if isinstance(request, cm.SIDR_REQ):
        both_ways = 2 * duration(timing.packet_life_time)
        response = duration(timing.response_timeout)
        return CMTimeouts(
            response=response,
            repetition=response,
            linger=both_ways,
            retries=timing.max_cm_retries,
        )
    life = duration(max(request.primary_local_ack_timeout - 1, 0))
    repetition = 2 * life + duration(request.remote_cm_response_timeout)
    return CMTimeouts(
        response=repetition if is_active else duration(request.local_cm_response_timeout),
        repetition=repetition,
        linger=duration(request.primary_local_ack_timeout),
        retries=request.max_cm_retries,
    )


def queue_pair_of(answer: cm.REP, request: cm.REQ | cm.SIDR_REQ) -> int:
    """The queue pair number in a REP to this request."""
    return answer.local_eecn if is_xrc(request) else answer.local_qpn


def reply_to(request: cm.REQ, answer: cm.REP) -> cm.REP:
    """A REP with its queue pair number where the request wants it.

    Source: reference/cm#request; for the SRQ bit Linux `cm_format_rep`.
    """
    if not is_xrc(request) or answer.local_eecn:
        return answer
    return answer.altered(local_qpn=0, local_eecn=answer.local_qpn, srq=True)


def is_xrc(request: cm.REQ | cm.SIDR_REQ) -> bool:
    """Whether a REQ is for an XRC connection, whose REP has the QPN in another field."""
    return (
        isinstance(request, cm.REQ)
        and request.transport_service_type == cm.TransportType.EXTENDED
        and request.extended_transport_type == cm.EXTENDED_XRC
    )


_WRITABLE = int(Access.LOCAL_WRITE | Access.REMOTE_WRITE)
_SERVING = int(_WRITABLE | Access.REMOTE_READ | Access.REMOTE_ATOMIC)
"""Remote access without and with READs and atomics."""
