"""Messages of communication management to and from MADs, and the usual REQ and REP.

The messages are the headers of `ibwire_layers.cm`. A connection manager sets communication
IDs and CA GUIDs; the caller sets the other fields.

Source: reference/cm#messages; IBA 13.4 for the common header.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from ibwire.base.errors import EncodeError
from ibwire.base.units import ACK_TIMEOUT_UNIT, Time
from ibwire.rc.attributes import MTU_CODES
from ibwire_layers import cm
from ibwire_layers.mad import MAD, MAD_SIZE, Method, MgmtClass
from ibwire_layers.schema import Header

Message = (
    cm.REQ
    | cm.MRA
    | cm.REJ
    | cm.REP
    | cm.RTU
    | cm.DREQ
    | cm.DREP
    | cm.SIDR_REQ
    | cm.SIDR_REP
    | cm.LAP
    | cm.APR
)

BASE_VERSION = 1
CLASS_VERSION = 2

PERMISSIVE_LID = 0xFFFF
"""In a REQ of RoCE, which has no LIDs (cm-rping)."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Times and retries; times are codes n: 4.096 us x 2^n.

    The defaults are those of the RDMA-CM of Linux 6.1 over rxe, as in the captures.
    """

    packet_life_time: int = 18
    """Time of a packet through the network (`CMA_IBOE_PACKET_LIFETIME`)."""
    ca_ack_delay: int = 15
    """Time until the local device answers a packet (rxe)."""
    response_timeout: int = 20
    """Time until a connection manager answers, on both sides (`CMA_CM_RESPONSE_TIMEOUT`)."""
    max_cm_retries: int = 15
    """`CMA_MAX_CM_RETRIES`."""
    service_timeout: int = 24
    """Time that an MRA requests (`CMA_CM_MRA_SETTING`)."""


LINUX = Timing()


@dataclass(slots=True)
class Received:
    """A received message with its transaction ID."""

    transaction_id: int
    message: Message


def encode(message: Message, transaction_id: int) -> bytes:
    """The 256 bytes of the MAD; `EncodeError` for a field that does not fit."""
    if transaction_id >> 64:
        raise EncodeError("MAD.transaction_id", transaction_id, "a number of 64 bits")
    before, behind = _COMMON[type(message)]
    return before + transaction_id.to_bytes(8) + behind + message.pack()


def decode(data: bytes) -> Received | None:
    """Parse a MAD; `None` for another size, class, version or method, or an unknown message.

    The attribute modifier is ignored: with it a REQ offers vendors' extensions (ECE), and
    a REP in which it is 0 declines them (Linux `cm_format_rep_event`).
    """
    if len(data) != MAD_SIZE:
        return None
    if data[:4] != _KIND:
        return None
    message = _MESSAGES.get(int.from_bytes(data[_ATTRIBUTE_ID]))
    if message is None:
        return None
    return Received(int.from_bytes(data[_TRANSACTION_ID]), message.unpack(data, MAD.SIZE))


def request(
    *,
    service_id: int,
    source: int,
    destination: int,
    qpn: int,
    starting_psn: int,
    mtu: int = 1024,
    service: cm.TransportType = cm.TransportType.RC,
    responder_resources: int = 1,
    initiator_depth: int = 1,
    retry_count: int = 7,
    rnr_retry_count: int = 7,
    flow_label: int = 0,
    traffic_class: int = 0,
    hop_limit: int = 64,
    sl: int = 0,
    srq: bool = False,
    pkey: int = 0xFFFF,
    timing: Timing = LINUX,
    private_data: bytes = b"",
) -> cm.REQ:
    """A REQ from one GID to another over RoCE.

    starting_psn: of the first packet that the peer sends, not of the first one sent here.
    mtu: bytes, of the path. responder_resources: READs and atomics that this side
    executes at once; initiator_depth: that it may have outstanding. flow_label, traffic_class,
    hop_limit: of the connection's packets, in both directions. rnr_retry_count: of the
    peer's queue pair; retry_count: of both. Raises `EncodeError`.
    """
    if mtu not in MTU_CODES:
        raise EncodeError("mtu", mtu, "256, 512, 1024, 2048 or 4096")
    return cm.REQ(
        service_id=service_id,
        local_qpn=qpn,
        responder_resources=responder_resources,
        initiator_depth=initiator_depth,
        remote_cm_response_timeout=timing.response_timeout,
        transport_service_type=service,
        starting_psn=starting_psn,
        local_cm_response_timeout=timing.response_timeout,
        retry_count=retry_count,
        pkey=pkey,
        path_packet_payload_mtu=MTU_CODES[mtu],
        rnr_retry_count=rnr_retry_count,
        max_cm_retries=timing.max_cm_retries,
        srq=srq,
        primary_local_lid=PERMISSIVE_LID,
        primary_remote_lid=PERMISSIVE_LID,
        primary_local_gid=source,
        primary_remote_gid=destination,
        primary_flow_label=flow_label,
        primary_traffic_class=traffic_class,
        primary_hop_limit=hop_limit,
        primary_sl=sl,
        primary_local_ack_timeout=combined_ack_timeout(
            timing.ca_ack_delay, timing.packet_life_time
        ),
        private_data=padded(cm.REQ, private_data),
    )


def reply(
    *,
    qpn: int,
    starting_psn: int,
    responder_resources: int = 1,
    initiator_depth: int = 1,
    rnr_retry_count: int = 7,
    srq: bool = False,
    timing: Timing = LINUX,
    private_data: bytes = b"",
) -> cm.REP:
    """A REP for RC or UC. Raises `EncodeError`.

    starting_psn: of the first packet that the peer sends. rnr_retry_count: of the
    peer's queue pair.
    """
    return cm.REP(
        local_qpn=qpn,
        starting_psn=starting_psn,
        responder_resources=responder_resources,
        initiator_depth=initiator_depth,
        target_ack_delay=timing.ca_ack_delay,
        rnr_retry_count=rnr_retry_count,
        srq=srq,
        private_data=padded(cm.REP, private_data),
    )


H = TypeVar("H", bound=Message)


def padded(message: type[H], data: bytes, name: str = "private_data") -> bytes:
    """Private data, or another field of bytes, padded with zeros; raises `EncodeError`."""
    size = _SIZES[message, name]
    if len(data) > size:
        raise EncodeError(f"{message.__name__}.{name}", data, f"at most {size} bytes")
    return data.ljust(size, b"\0")


def combined_ack_timeout(ca_ack_delay: int, packet_life_time: int) -> int:
    """The code of the local ACK timeout: both transfers and the delay of the responding CA.

    Times are powers of two, so the sum is the larger of the two, or one more where they
    are about the same (reference/cm#timeouts; Linux `cm_ack_timeout`).
    """
    both_ways = packet_life_time + 1
    larger = max(both_ways, ca_ack_delay)
    return min(31, larger + (abs(both_ways - ca_ack_delay) <= 1))


def duration(code: int) -> Time:
    """4.096 us x 2^code, limited to `LONGEST`."""
    return _DURATIONS[min(code, _LAST)]


LONGEST: Time = ACK_TIMEOUT_UNIT << LINUX.service_timeout
"""68.7 s: the longest wait that a peer can cause at once. Codes go to 31, 2.4 hours."""

_LAST = LINUX.service_timeout
_DURATIONS = tuple(ACK_TIMEOUT_UNIT << code for code in range(_LAST + 1))
"""By code."""

_ATTRIBUTES: dict[type[Message], cm.CMAttribute] = {
    cm.REQ: cm.CMAttribute.REQ,
    cm.MRA: cm.CMAttribute.MRA,
    cm.REJ: cm.CMAttribute.REJ,
    cm.REP: cm.CMAttribute.REP,
    cm.RTU: cm.CMAttribute.RTU,
    cm.DREQ: cm.CMAttribute.DREQ,
    cm.DREP: cm.CMAttribute.DREP,
    cm.SIDR_REQ: cm.CMAttribute.SIDR_REQ,
    cm.SIDR_REP: cm.CMAttribute.SIDR_REP,
    cm.LAP: cm.CMAttribute.LAP,
    cm.APR: cm.CMAttribute.APR,
}

_SIZES: dict[tuple[type[Header], str], int] = {
    (message, field.name): field.size // 8 for message in _ATTRIBUTES for field in message.FIELDS
}
"""Bytes of fields."""

_MESSAGES: dict[int, type[Message]] = {
    attribute: message for message, attribute in _ATTRIBUTES.items()
}


def _place(name: str) -> slice:
    """Position of a field of the common header in a MAD."""
    entry = next(field for field in MAD.FIELDS if field.name == name)
    return slice(entry.offset // 8, (entry.offset + entry.size) // 8)


_TRANSACTION_ID, _ATTRIBUTE_ID = _place("transaction_id"), _place("attribute_id")


def _common_header(attribute: cm.CMAttribute) -> tuple[bytes, bytes]:
    """The common header of a message, before and after the transaction ID."""
    whole = MAD(
        base_version=BASE_VERSION,
        mgmt_class=MgmtClass.COMM_MGT,
        class_version=CLASS_VERSION,
        method=Method.SEND,
        attribute_id=attribute,
    ).pack()
    return whole[: _TRANSACTION_ID.start], whole[_TRANSACTION_ID.stop :]


_COMMON = {message: _common_header(attribute) for message, attribute in _ATTRIBUTES.items()}

_KIND = _COMMON[cm.REQ][0][:4]
"""Base version, class, class version and method, the first bytes of every message."""
