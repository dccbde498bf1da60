"""One connection as its manager knows it, and what its queue pair must be set to."""

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
    """Somebody who accepts connections to a service, or answers who resolves it."""

    service_id: int
    backlog: int
    """Requests that may wait for the application's decision."""
    waiting: int = 0
    """Those that do."""


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
    """Of what we begin: REQ, SIDR_REQ, DREQ."""
    request_transaction: int
    """Of the REQ or SIDR_REQ, whoever sent it, and of what answers it."""
    is_active: bool
    """Whether the request was ours."""
    request: cm.REQ | cm.SIDR_REQ
    peer: AddressVector
    """Where messages for the peer's manager go."""
    timeouts: CMTimeouts
    listener: Listener | None = None
    state: State = State.IDLE
    remote_id: int = 0
    reply: cm.REP | cm.SIDR_REP | None = None
    local_qpn: int | None = None
    """Our queue pair, once it is known."""
    remote_qpn: int | None = None
    """The peer's, once it is known."""
    remote_guid: int | None = None
    """The peer's CA, once it is known."""
    retries_left: int = 0
    promised: Time = 0
    """What an MRA of ours has asked for: so long may the peer not repeat its question."""
    deadline: Time | None = None
    last: bytes = b""
    """The MAD that was sent last."""

    @property
    def knows_remote(self) -> bool:
        """Whether `remote_id` is the peer's, which 0 may be: it comes with the first message."""
        return not self.is_active or self.reply is not None

    def queue_pair_attributes(self) -> tuple[AddressVector, dict[str, Any]]:
        """Where our queue pair sends to, and its attributes as fields of `QPAttr`.

        Known from the REP on, whichever side sends it: EINVAL before. Source:
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
        # What one side serves bounds what the other has outstanding.
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
            # A side says from which PSN on it listens, and the other sends from there.
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
        """Take a queue pair from RESET to RTS; `attr` are fields of `QPAttr` that differ.

        The passive side does so right after `accept`, as the RDMA-CM of Linux: then data is no
        COMM_EST any more, and a lost RTU comes when the REP is repeated. The active side does
        so before `ready`.
        """
        address, attributes = self.queue_pair_attributes()
        bring_up(qp, address, **attributes | attr)


class Event(NamedTuple):
    """What an application is told about a connection."""

    kind: EventKind
    connection: Connection
    private_data: bytes = b""
    """As in the message, with its trailing zeros."""
    reason: int = 0
    """`RejectReason` when REJECTED, `SIDRStatus` when RESOLVED."""
    ari: bytes = b""
    """What a REJ adds to its reason."""


def timeouts_of(request: cm.REQ | cm.SIDR_REQ, timing: Timing, *, is_active: bool) -> CMTimeouts:
    """What a request says about times, and our own `timing` where it says nothing.

    Whoever has sent a REQ waits for it to get there, for the peer to think, and for the
    answer to get back; the other side is told how long that takes from its end (Linux
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
    """The queue pair that a REP to a request names."""
    return answer.local_eecn if is_xrc(request) else answer.local_qpn


def is_xrc(request: cm.REQ | cm.SIDR_REQ) -> bool:
    """Whether a REQ asks for an XRC connection, whose REP has its QPN elsewhere."""
    return (
        isinstance(request, cm.REQ)
        and request.transport_service_type == cm.TransportType.EXTENDED
        and request.extended_transport_type == cm.EXTENDED_XRC
    )


_WRITABLE = int(Access.LOCAL_WRITE | Access.REMOTE_WRITE)
_SERVING = int(_WRITABLE | Access.REMOTE_READ | Access.REMOTE_ATOMIC)
"""What a peer may do, without and with requests that are answered."""
