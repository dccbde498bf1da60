"""Communication management: the messages that set up, change and end connections.

Every message fills the 232 bytes after the common header; the last field is
private data. REQ and LAP pack the words of a path in different orders.
tshark 4.0 knows six of the messages and reads flow label and packet rate of a
REQ wrongly.
"""

from __future__ import annotations

from enum import IntEnum

from ibwire_layers.mad import MTUCode
from ibwire_layers.schema import Header, Show, bits, header, octets


class CMAttribute(IntEnum):
    """Messages, as attribute IDs (IBA 12.6)."""

    CLASS_PORT_INFO = 0x0001
    REQ = 0x0010
    MRA = 0x0011
    REJ = 0x0012
    REP = 0x0013
    RTU = 0x0014
    DREQ = 0x0015
    DREP = 0x0016
    SIDR_REQ = 0x0017
    SIDR_REP = 0x0018
    LAP = 0x0019
    APR = 0x001A


class RejectReason(IntEnum):
    """Why a REJ was sent (IBA 12.6; 35 as Linux names it)."""

    NO_QP = 1
    NO_EEC = 2
    NO_RESOURCES = 3
    TIMEOUT = 4
    UNSUPPORTED = 5
    INVALID_COMM_ID = 6
    INVALID_COMM_INSTANCE = 7
    INVALID_SERVICE_ID = 8
    INVALID_TRANSPORT_TYPE = 9
    STALE_CONNECTION = 10
    RDC_NOT_EXIST = 11
    INVALID_PRIMARY_GID = 12
    INVALID_PRIMARY_LID = 13
    INVALID_PRIMARY_SL = 14
    INVALID_PRIMARY_TRAFFIC_CLASS = 15
    INVALID_PRIMARY_HOP_LIMIT = 16
    INVALID_PRIMARY_PACKET_RATE = 17
    INVALID_ALTERNATE_GID = 18
    INVALID_ALTERNATE_LID = 19
    INVALID_ALTERNATE_SL = 20
    INVALID_ALTERNATE_TRAFFIC_CLASS = 21
    INVALID_ALTERNATE_HOP_LIMIT = 22
    INVALID_ALTERNATE_PACKET_RATE = 23
    PORT_AND_CM_REDIRECT = 24
    PORT_REDIRECT = 25
    INVALID_MTU = 26
    INSUFFICIENT_RESPONDER_RESOURCES = 27
    CONSUMER_DEFINED = 28
    INVALID_RNR_RETRY = 29
    DUPLICATE_LOCAL_COMM_ID = 30
    INVALID_CLASS_VERSION = 31
    INVALID_PRIMARY_FLOW_LABEL = 32
    INVALID_ALTERNATE_FLOW_LABEL = 33
    VENDOR_OPTION_NOT_SUPPORTED = 35


class MessageRejected(IntEnum):
    """The message that a REJ rejects."""

    REQ = 0
    REP = 1
    OTHER = 2


class MessageMRAed(IntEnum):
    """The message that an MRA acknowledges."""

    REQ = 0
    REP = 1
    LAP = 2


class SIDRStatus(IntEnum):
    """Outcome in a SIDR_REP."""

    VALID = 0
    UNSUPPORTED = 1
    REJECTED = 2
    NO_QP = 3
    REDIRECT = 4
    UNSUPPORTED_VERSION = 5


class APStatus(IntEnum):
    """Outcome in an APR."""

    LOADED = 0
    INVALID_COMM_ID = 1
    NOT_SUPPORTED = 2
    REJECTED = 3
    REDIRECT = 4
    IS_CURRENT = 5
    INVALID_QPN = 6
    INVALID_LID = 7
    INVALID_GID = 8
    INVALID_FLOW_LABEL = 9
    INVALID_TRAFFIC_CLASS = 10
    INVALID_HOP_LIMIT = 11
    INVALID_PACKET_RATE = 12
    INVALID_SL = 13


class TransportType(IntEnum):
    """TransportServiceType of a REQ; EXTENDED defers to ExtendedTransportType."""

    RC = 0
    UC = 1
    RD = 2
    EXTENDED = 3


EXTENDED_XRC = 1
"""ExtendedTransportType of an XRC connection."""


class PortSpace(IntEnum):
    """Port spaces of the RDMA connection manager, as in a service ID."""

    IPOIB = 0x0002
    TCP = 0x0106
    UDP = 0x0111
    IB = 0x013F


IP_CM_PREFIX = 0x0000000001
"""Upper 40 bits of a service ID of the IP addressing annex; IP protocol and port follow."""


def rdma_cm_service_id(space: int, port: int) -> int:
    """The service ID that RDMA-CM listens on for a port (IBA annex A11)."""
    return space << 16 | port


def rdma_cm_port(service_id: int) -> tuple[int, int] | None:
    """Port space and port of an RDMA-CM service ID, None for any other."""
    space, port = service_id >> 16, service_id & 0xFFFF
    if space >> 8 == IP_CM_PREFIX or space == PortSpace.IPOIB:
        return space, port
    return None


def has_ip_addresses(service_id: int) -> bool:
    """Whether private data begins with the `IPCM` header.

    The IB port space uses GIDs and has no such header.
    """
    space = service_id >> 16
    return space >> 8 == IP_CM_PREFIX and space != PortSpace.IB


@header("CM request for communication", key="cm.req", section="IBA 12.6")
class REQ(Header):
    """Requests a connection.

    tshark shows the GIDs of RoCE as IPv4 under another name, and alternate GIDs as bytes.
    """

    local_comm_id: int = bits(
        32, "LocalCommID", default=0, show=Show.HEX, wireshark="infiniband.cm.req"
    )
    reserved: int = bits(8, "Reserved", default=0)
    vendor_id: int = bits(
        24,
        "VendorID",
        default=0,
        show=Show.HEX,
        doc="of enhanced connection establishment; reserved before",
    )
    service_id: int = bits(
        64, "ServiceID", default=0, show=Show.HEX, wireshark="infiniband.cm.req.serviceid"
    )
    local_ca_guid: int = bits(
        64, "LocalCAGUID", default=0, show=Show.HEX, wireshark="infiniband.cm.req.localcaguid"
    )
    reserved2: int = bits(32, "Reserved", default=0)
    local_qkey: int = bits(
        32, "LocalQ_Key", default=0, show=Show.HEX, wireshark="infiniband.cm.req.localqkey"
    )
    local_qpn: int = bits(
        24, "LocalQPN", default=0, show=Show.HEX, wireshark="infiniband.cm.req.localqpn"
    )
    responder_resources: int = bits(
        8,
        "ResponderResources",
        default=0,
        wireshark="infiniband.cm.req.responderres",
        doc="reads and atomics that the sender can serve at once",
    )
    local_eecn: int = bits(24, "LocalEECN", default=0, wireshark="infiniband.cm.req.localeecn")
    initiator_depth: int = bits(
        8,
        "InitiatorDepth",
        default=0,
        wireshark="infiniband.cm.req.initdepth",
        doc="reads and atomics that the sender will have outstanding",
    )
    remote_eecn: int = bits(24, "RemoteEECN", default=0, wireshark="infiniband.cm.req.remoteeecn")
    remote_cm_response_timeout: int = bits(
        5,
        "RemoteCMResponseTimeout",
        default=0,
        wireshark="infiniband.cm.req.remoteresptout",
        doc="4.096 us x 2^n",
    )
    transport_service_type: int = bits(
        2,
        "TransportServiceType",
        default=0,
        names=TransportType,
        wireshark="infiniband.cm.req.transpsvctype",
    )
    end_to_end_flow_control: int = bits(
        1, "EndToEndFlowControl", default=0, wireshark="infiniband.cm.req.e2eflowctrl"
    )
    starting_psn: int = bits(24, "StartingPSN", default=0, wireshark="infiniband.cm.req.startpsn")
    local_cm_response_timeout: int = bits(
        5,
        "LocalCMResponseTimeout",
        default=0,
        wireshark="infiniband.cm.req.localresptout",
        doc="4.096 us x 2^n",
    )
    retry_count: int = bits(3, "RetryCount", default=0, wireshark="infiniband.cm.req.retrcount")
    pkey: int = bits(16, "P_Key", default=0xFFFF, show=Show.HEX, wireshark="infiniband.cm.req.pkey")
    path_packet_payload_mtu: int = bits(
        4, "PathPacketPayloadMTU", default=0, names=MTUCode, wireshark="infiniband.cm.req.pppmtu"
    )
    rdc_exists: int = bits(1, "RDCExists", default=0, wireshark="infiniband.cm.req.rdcexist")
    rnr_retry_count: int = bits(
        3, "RNRRetryCount", default=0, wireshark="infiniband.cm.req.rnrretrcount", doc="7 for ever"
    )
    max_cm_retries: int = bits(
        4, "MaxCMRetries", default=0, wireshark="infiniband.cm.req.maxcmretr"
    )
    srq: int = bits(
        1, "SRQ", default=0, wireshark="infiniband.cm.req.srq", doc="a shared receive queue exists"
    )
    extended_transport_type: int = bits(
        3,
        "ExtendedTransportType",
        default=0,
        wireshark="infiniband.cm.req.ext_transport",
        doc="1 XRC",
    )
    primary_local_lid: int = bits(
        16, "PrimaryLocalPortLID", default=0, wireshark="infiniband.cm.req.prim_locallid"
    )
    primary_remote_lid: int = bits(
        16, "PrimaryRemotePortLID", default=0, wireshark="infiniband.cm.req.prim_remotelid"
    )
    primary_local_gid: int = bits(
        128,
        "PrimaryLocalPortGID",
        default=0,
        show=Show.IPV6,
        wireshark="infiniband.cm.req.prim_localgid",
    )
    primary_remote_gid: int = bits(
        128,
        "PrimaryRemotePortGID",
        default=0,
        show=Show.IPV6,
        wireshark="infiniband.cm.req.prim_remotegid",
    )
    primary_flow_label: int = bits(20, "PrimaryFlowLabel", default=0, show=Show.HEX)
    primary_reserved: int = bits(6, "Reserved", default=0)
    primary_packet_rate: int = bits(6, "PrimaryPacketRate", default=0)
    primary_traffic_class: int = bits(
        8, "PrimaryTrafficClass", default=0, wireshark="infiniband.cm.req.prim_tfcclass"
    )
    primary_hop_limit: int = bits(
        8, "PrimaryHopLimit", default=0, wireshark="infiniband.cm.req.prim_hoplim"
    )
    primary_sl: int = bits(4, "PrimarySL", default=0, wireshark="infiniband.cm.req.prim_sl")
    primary_subnet_local: int = bits(
        1, "PrimarySubnetLocal", default=0, wireshark="infiniband.cm.req.prim_subnetlocal"
    )
    primary_reserved2: int = bits(3, "Reserved", default=0)
    primary_local_ack_timeout: int = bits(
        5,
        "PrimaryLocalACKTimeout",
        default=0,
        wireshark="infiniband.cm.req.prim_localacktout",
        doc="4.096 us x 2^n",
    )
    primary_reserved3: int = bits(3, "Reserved", default=0)
    alternate_local_lid: int = bits(
        16, "AlternateLocalPortLID", default=0, wireshark="infiniband.cm.req.alt_locallid"
    )
    alternate_remote_lid: int = bits(
        16, "AlternateRemotePortLID", default=0, wireshark="infiniband.cm.req.alt_remotelid"
    )
    alternate_local_gid: int = bits(128, "AlternateLocalPortGID", default=0, show=Show.IPV6)
    alternate_remote_gid: int = bits(128, "AlternateRemotePortGID", default=0, show=Show.IPV6)
    alternate_flow_label: int = bits(20, "AlternateFlowLabel", default=0, show=Show.HEX)
    alternate_reserved: int = bits(6, "Reserved", default=0)
    alternate_packet_rate: int = bits(6, "AlternatePacketRate", default=0)
    alternate_traffic_class: int = bits(
        8, "AlternateTrafficClass", default=0, wireshark="infiniband.cm.req.alt_tfcclass"
    )
    alternate_hop_limit: int = bits(
        8, "AlternateHopLimit", default=0, wireshark="infiniband.cm.req.alt_hoplim"
    )
    alternate_sl: int = bits(4, "AlternateSL", default=0, wireshark="infiniband.cm.req.alt_sl")
    alternate_subnet_local: int = bits(
        1, "AlternateSubnetLocal", default=0, wireshark="infiniband.cm.req.alt_subnetlocal"
    )
    alternate_reserved2: int = bits(3, "Reserved", default=0)
    alternate_local_ack_timeout: int = bits(
        5,
        "AlternateLocalACKTimeout",
        default=0,
        wireshark="infiniband.cm.req.alt_localacktout",
        doc="4.096 us x 2^n",
    )
    sap_supported: int = bits(
        1, "SAPSupported", default=0, doc="suggested alternate path; one public source"
    )
    alternate_reserved3: int = bits(2, "Reserved", default=0)
    private_data: bytes = octets(92, "PrivateData", default=b"")


@header("CM message receipt acknowledgement", key="cm.mra", section="IBA 12.6")
class MRA(Header):
    """Requests more time for the response."""

    local_comm_id: int = bits(32, "LocalCommID", default=0, show=Show.HEX)
    remote_comm_id: int = bits(32, "RemoteCommID", default=0, show=Show.HEX)
    message_mraed: int = bits(2, "MessageMRAed", default=0, names=MessageMRAed)
    reserved: int = bits(6, "Reserved", default=0)
    service_timeout: int = bits(5, "ServiceTimeout", default=0, doc="4.096 us x 2^n")
    reserved2: int = bits(3, "Reserved", default=0)
    private_data: bytes = octets(222, "PrivateData", default=b"")


@header("CM reject", key="cm.rej", section="IBA 12.6")
class REJ(Header):
    """Rejects a connection request or aborts the handshake."""

    local_comm_id: int = bits(
        32, "LocalCommID", default=0, show=Show.HEX, wireshark="infiniband.cm.rej.localcommid"
    )
    remote_comm_id: int = bits(
        32, "RemoteCommID", default=0, show=Show.HEX, wireshark="infiniband.cm.rej.remotecommid"
    )
    message_rejected: int = bits(
        2, "MessageRejected", default=0, names=MessageRejected, wireshark="infiniband.cm.rej.msgrej"
    )
    reserved: int = bits(6, "Reserved", default=0)
    reject_info_length: int = bits(
        7,
        "RejectInfoLength",
        default=0,
        wireshark="infiniband.cm.rej.rejinfolen",
        doc="bytes of ARI in use",
    )
    reserved2: int = bits(1, "Reserved", default=0)
    reason: int = bits(
        16, "Reason", default=0, names=RejectReason, wireshark="infiniband.cm.rej.reason"
    )
    ari: bytes = octets(72, "ARI", default=b"", doc="additional reject information, by reason")
    private_data: bytes = octets(148, "PrivateData", default=b"")


@header("CM reply to request", key="cm.rep", section="IBA 12.6")
class REP(Header):
    """Accepts a REQ. The target QPN of an XRC connection is in LocalEECN."""

    local_comm_id: int = bits(
        32, "LocalCommID", default=0, show=Show.HEX, wireshark="infiniband.cm.rep"
    )
    remote_comm_id: int = bits(
        32, "RemoteCommID", default=0, show=Show.HEX, wireshark="infiniband.cm.rep.remotecommid"
    )
    local_qkey: int = bits(
        32, "LocalQ_Key", default=0, show=Show.HEX, wireshark="infiniband.cm.rep.localqkey"
    )
    local_qpn: int = bits(
        24, "LocalQPN", default=0, show=Show.HEX, wireshark="infiniband.cm.rep.localqpn"
    )
    reserved: int = bits(8, "Reserved", default=0)
    local_eecn: int = bits(24, "LocalEECN", default=0, wireshark="infiniband.cm.rep.localeecn")
    reserved2: int = bits(8, "Reserved", default=0)
    starting_psn: int = bits(24, "StartingPSN", default=0, wireshark="infiniband.cm.rep.startpsn")
    reserved3: int = bits(8, "Reserved", default=0)
    responder_resources: int = bits(
        8, "ResponderResources", default=0, wireshark="infiniband.cm.rep.respres"
    )
    initiator_depth: int = bits(
        8, "InitiatorDepth", default=0, wireshark="infiniband.cm.rep.initdepth"
    )
    target_ack_delay: int = bits(
        5,
        "TargetACKDelay",
        default=0,
        wireshark="infiniband.cm.rep.tgtackdelay",
        doc="4.096 us x 2^n",
    )
    failover_accepted: int = bits(
        2, "FailoverAccepted", default=0, wireshark="infiniband.cm.rep.failoveracc"
    )
    end_to_end_flow_control: int = bits(
        1, "EndToEndFlowControl", default=0, wireshark="infiniband.cm.rep.e2eflowctrl"
    )
    rnr_retry_count: int = bits(
        3, "RNRRetryCount", default=0, wireshark="infiniband.cm.rep.rnrretrcount", doc="7 for ever"
    )
    srq: int = bits(1, "SRQ", default=0, wireshark="infiniband.cm.rep.srq")
    reserved4: int = bits(4, "Reserved", default=0)
    local_ca_guid: int = bits(
        64, "LocalCAGUID", default=0, show=Show.HEX, wireshark="infiniband.cm.rep.localcaguid"
    )
    private_data: bytes = octets(196, "PrivateData", default=b"")


@header("CM ready to use", key="cm.rtu", section="IBA 12.6")
class RTU(Header):
    """Completes the handshake."""

    local_comm_id: int = bits(
        32, "LocalCommID", default=0, show=Show.HEX, wireshark="infiniband.cm.rtu.localcommid"
    )
    remote_comm_id: int = bits(
        32, "RemoteCommID", default=0, show=Show.HEX, wireshark="infiniband.cm.rtu.remotecommid"
    )
    private_data: bytes = octets(224, "PrivateData", default=b"")


@header("CM disconnection request", key="cm.dreq", section="IBA 12.6")
class DREQ(Header):
    """Ends a connection."""

    local_comm_id: int = bits(
        32, "LocalCommID", default=0, show=Show.HEX, wireshark="infiniband.cm.dreq.localcommid"
    )
    remote_comm_id: int = bits(
        32, "RemoteCommID", default=0, show=Show.HEX, wireshark="infiniband.cm.dreq.remotecommid"
    )
    remote_qpn: int = bits(
        24, "RemoteQPN/EECN", default=0, show=Show.HEX, wireshark="infiniband.cm.req.remoteqpneecn"
    )
    reserved: int = bits(8, "Reserved", default=0)
    private_data: bytes = octets(220, "PrivateData", default=b"")


@header("CM disconnection reply", key="cm.drep", section="IBA 12.6")
class DREP(Header):
    """Answers a DREQ."""

    local_comm_id: int = bits(
        32, "LocalCommID", default=0, show=Show.HEX, wireshark="infiniband.cm.drsp.localcommid"
    )
    remote_comm_id: int = bits(
        32, "RemoteCommID", default=0, show=Show.HEX, wireshark="infiniband.cm.drsp.remotecommid"
    )
    private_data: bytes = octets(224, "PrivateData", default=b"")


@header("CM service ID resolution request", key="cm.sidr_req", section="IBA 12.6")
class SIDR_REQ(Header):
    """Requests the datagram QP of a service ID."""

    request_id: int = bits(32, "RequestID", default=0, show=Show.HEX)
    pkey: int = bits(16, "P_Key", default=0xFFFF, show=Show.HEX)
    reserved: int = bits(16, "Reserved", default=0)
    service_id: int = bits(64, "ServiceID", default=0, show=Show.HEX)
    private_data: bytes = octets(216, "PrivateData", default=b"")


@header("CM service ID resolution reply", key="cm.sidr_rep", section="IBA 12.6")
class SIDR_REP(Header):
    """Answers a SIDR_REQ."""

    request_id: int = bits(32, "RequestID", default=0, show=Show.HEX)
    status: int = bits(8, "Status", default=0, names=SIDRStatus)
    additional_info_length: int = bits(
        8, "AdditionalInfoLength", default=0, doc="bytes of AdditionalInfo in use"
    )
    reserved: int = bits(16, "Reserved", default=0)
    qpn: int = bits(24, "QPN", default=0, show=Show.HEX)
    reserved2: int = bits(8, "Reserved", default=0)
    service_id: int = bits(64, "ServiceID", default=0, show=Show.HEX)
    qkey: int = bits(32, "Q_Key", default=0, show=Show.HEX)
    additional_info: bytes = octets(72, "AdditionalInfo", default=b"")
    private_data: bytes = octets(136, "PrivateData", default=b"")


@header("CM load alternate path", key="cm.lap", section="IBA 12.6")
class LAP(Header):
    """Offers an alternate path for a connection that is up."""

    local_comm_id: int = bits(32, "LocalCommID", default=0, show=Show.HEX)
    remote_comm_id: int = bits(32, "RemoteCommID", default=0, show=Show.HEX)
    reserved: int = bits(32, "Reserved", default=0)
    remote_qpn: int = bits(24, "RemoteQPN/EECN", default=0, show=Show.HEX)
    remote_cm_response_timeout: int = bits(
        5, "RemoteCMResponseTimeout", default=0, doc="4.096 us x 2^n"
    )
    reserved2: int = bits(3, "Reserved", default=0)
    reserved3: int = bits(32, "Reserved", default=0)
    alternate_local_lid: int = bits(16, "AlternateLocalPortLID", default=0)
    alternate_remote_lid: int = bits(16, "AlternateRemotePortLID", default=0)
    alternate_local_gid: int = bits(128, "AlternateLocalPortGID", default=0, show=Show.IPV6)
    alternate_remote_gid: int = bits(128, "AlternateRemotePortGID", default=0, show=Show.IPV6)
    alternate_flow_label: int = bits(20, "AlternateFlowLabel", default=0, show=Show.HEX)
    reserved4: int = bits(4, "Reserved", default=0)
    alternate_traffic_class: int = bits(8, "AlternateTrafficClass", default=0)
    alternate_hop_limit: int = bits(8, "AlternateHopLimit", default=0)
    reserved5: int = bits(2, "Reserved", default=0)
    alternate_packet_rate: int = bits(6, "AlternatePacketRate", default=0)
    alternate_sl: int = bits(4, "AlternateSL", default=0)
    alternate_subnet_local: int = bits(1, "AlternateSubnetLocal", default=0)
    reserved6: int = bits(3, "Reserved", default=0)
    alternate_local_ack_timeout: int = bits(
        5, "AlternateLocalACKTimeout", default=0, doc="4.096 us x 2^n"
    )
    reserved7: int = bits(3, "Reserved", default=0)
    private_data: bytes = octets(168, "PrivateData", default=b"")


@header("CM alternate path response", key="cm.apr", section="IBA 12.6")
class APR(Header):
    """Answers a LAP."""

    local_comm_id: int = bits(32, "LocalCommID", default=0, show=Show.HEX)
    remote_comm_id: int = bits(32, "RemoteCommID", default=0, show=Show.HEX)
    additional_info_length: int = bits(
        8, "AdditionalInfoLength", default=0, doc="bytes of AdditionalInfo in use"
    )
    ap_status: int = bits(8, "APStatus", default=0, names=APStatus)
    reserved: int = bits(16, "Reserved", default=0)
    additional_info: bytes = octets(72, "AdditionalInfo", default=b"")
    private_data: bytes = octets(148, "PrivateData", default=b"")
