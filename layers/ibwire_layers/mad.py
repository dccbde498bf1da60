"""Management datagrams: the common header and the headers of each management class.

A MAD is 256 bytes in the payload of a UD SEND ONLY: 24 bytes of common header,
headers of the management class, then one attribute. `management.py` has the
headers of each class; `attributes.py`, `performance.py` and `cm.py` hold
the attributes.
"""

from __future__ import annotations

from enum import IntEnum

from ibwire_layers.schema import Header, Show, array, bits, header, octets

MAD_SIZE = 256
"""Bytes of every MAD (IBA 13.4)."""

GSI_QKEY = 0x80010000
"""Q_Key of every MAD to or from QP1."""


class MgmtClass(IntEnum):
    """Management classes (IBA 13.4)."""

    SUBN_LID_ROUTED = 0x01
    SUBN_ADM = 0x03
    PERF = 0x04
    BM = 0x05
    DEV_MGT = 0x06
    COMM_MGT = 0x07
    SNMP = 0x08
    DEV_ADM = 0x10
    BOOT_MGT = 0x11
    BIS = 0x12
    CONG_MGT = 0x21
    SUBN_DIRECTED_ROUTE = 0x81


VENDOR_RANGE_1 = range(0x09, 0x10)
"""Vendor-specific classes whose data follows the common header."""

VENDOR_RANGE_2 = range(0x30, 0x50)
"""Vendor-specific classes with RMPP and the vendor's OUI."""


class Method(IntEnum):
    """Methods, with the response bit 0x80 (IBA 13.4; from 0x12 on 15.2)."""

    GET = 0x01
    SET = 0x02
    SEND = 0x03
    TRAP = 0x05
    REPORT = 0x06
    TRAP_REPRESS = 0x07
    GET_TABLE = 0x12
    GET_TRACE_TABLE = 0x13
    GET_MULTI = 0x14
    DELETE = 0x15
    GET_RESP = 0x81
    REPORT_RESP = 0x86
    GET_TABLE_RESP = 0x92
    GET_MULTI_RESP = 0x94
    DELETE_RESP = 0x95


class Status(IntEnum):
    """Values of the low byte of Status: two flags, and one code under 0x1C (IBA 13.4)."""

    OK = 0x0000
    BUSY = 0x0001
    REDIRECT = 0x0002
    BAD_VERSION = 0x0004
    METHOD_NOT_SUPPORTED = 0x0008
    METHOD_ATTRIBUTE_NOT_SUPPORTED = 0x000C
    INVALID_ATTRIBUTE_VALUE = 0x001C


STATUS_CODE_MASK = 0x001C


class SAStatus(IntEnum):
    """Values of the high byte of Status in subnet administration (IBA 15.2)."""

    NO_RESOURCES = 0x0100
    REQUEST_INVALID = 0x0200
    NO_RECORDS = 0x0300
    TOO_MANY_RECORDS = 0x0400
    INVALID_GID = 0x0500
    INSUFFICIENT_COMPONENTS = 0x0600
    REQUEST_DENIED = 0x0700


class RMPPType(IntEnum):
    """Packet types of a reliable multi-packet transaction (IBA 13.6)."""

    NONE = 0
    DATA = 1
    ACK = 2
    STOP = 3
    ABORT = 4


RMPP_ACTIVE, RMPP_FIRST, RMPP_LAST = 1, 2, 4
"""Bits of RMPPFlags."""


class Trap(IntEnum):
    """Generic trap numbers of a Notice (IBA 14.2)."""

    GID_IN_SERVICE = 64
    GID_OUT_OF_SERVICE = 65
    MULTICAST_GROUP_CREATED = 66
    MULTICAST_GROUP_DELETED = 67
    LINK_STATE_CHANGE = 128
    LOCAL_LINK_INTEGRITY = 129
    EXCESSIVE_BUFFER_OVERRUN = 130
    FLOW_CONTROL_WATCHDOG = 131
    CAPABILITY_CHANGE = 144
    SYSTEM_IMAGE_GUID_CHANGE = 145
    BAD_M_KEY = 256
    BAD_P_KEY = 257
    BAD_Q_KEY = 258
    BAD_P_KEY_AT_SWITCH = 259


def status_names(status: int, mgmt_class: int) -> list[str]:
    """Names of a Status in the specification; empty for success.

    status: without the direction bit of a directed-route SMP.
    """
    names = [flag.name for flag in (Status.BUSY, Status.REDIRECT) if status & flag]
    code = status & STATUS_CODE_MASK
    if code:
        known = code in Status.__members__.values()
        names.append(Status(code).name if known else f"CODE_0x{code:02X}")
    specific = status & 0xFF00
    if specific:
        known = mgmt_class == MgmtClass.SUBN_ADM and specific in SAStatus.__members__.values()
        names.append(SAStatus(specific).name if known else f"CLASS_0x{specific >> 8:02X}")
    return names


class MTUCode(IntEnum):
    """MTU codes of attributes and CM messages (IBA 14.2)."""

    MTU_256 = 1
    MTU_512 = 2
    MTU_1024 = 3
    MTU_2048 = 4
    MTU_4096 = 5


@header("MAD common header", key="mad", section="IBA 13.4")
class MAD(Header):
    """First 24 bytes of every MAD except directed-route SMPs."""

    base_version: int = bits(8, "BaseVersion", default=1, wireshark="infiniband.mad.baseversion")
    mgmt_class: int = bits(
        8,
        "MgmtClass",
        default=MgmtClass.SUBN_LID_ROUTED,
        show=Show.HEX,
        names=MgmtClass,
        wireshark="infiniband.mad.mgmtclass",
        doc="management class",
    )
    class_version: int = bits(8, "ClassVersion", default=1, wireshark="infiniband.mad.classversion")
    method: int = bits(
        8,
        "R, Method",
        default=Method.GET,
        show=Show.HEX,
        names=Method,
        wireshark="infiniband.mad.method",
        doc="bit 7 is R, set in a response",
    )
    status: int = bits(16, "Status", default=0, show=Show.HEX, wireshark="infiniband.mad.status")
    class_specific: int = bits(
        16, "ClassSpecific", default=0, show=Show.HEX, wireshark="infiniband.mad.classspecific"
    )
    transaction_id: int = bits(
        64,
        "TransactionID",
        default=0,
        show=Show.HEX,
        wireshark="infiniband.mad.transactionid",
        doc="chosen by the requester and repeated in the answer",
    )
    attribute_id: int = bits(
        16, "AttributeID", default=0, show=Show.HEX, wireshark="infiniband.mad.attributeid"
    )
    reserved: int = bits(16, "Reserved", default=0)
    attribute_modifier: int = bits(
        32,
        "AttributeModifier",
        default=0,
        show=Show.HEX,
        wireshark="infiniband.mad.attributemodifier",
        doc="selects a part of the attribute: a port, a block",
    )


@header("MAD common header, directed route", key="mad", section="IBA 14.2")
class DirectedRouteMAD(Header):
    """The common header whose Status and ClassSpecific hold direction and hop of an SMP.

    tshark 4.0 always shows D as 0.
    """

    base_version: int = bits(8, "BaseVersion", default=1, wireshark="infiniband.mad.baseversion")
    mgmt_class: int = bits(
        8,
        "MgmtClass",
        default=MgmtClass.SUBN_DIRECTED_ROUTE,
        show=Show.HEX,
        names=MgmtClass,
        wireshark="infiniband.mad.mgmtclass",
        doc="management class",
    )
    class_version: int = bits(8, "ClassVersion", default=1, wireshark="infiniband.mad.classversion")
    method: int = bits(
        8,
        "R, Method",
        default=Method.GET,
        show=Show.HEX,
        names=Method,
        wireshark="infiniband.mad.method",
        doc="bit 7 is R, set in a response",
    )
    d: int = bits(1, "D", default=0, key="smpdirected.d", doc="0 outbound, 1 returning")
    status: int = bits(15, "Status", default=0, show=Show.HEX, key="smpdirected.status")
    hop_pointer: int = bits(
        8,
        "HopPointer",
        default=0,
        wireshark="infiniband.smpdirected.hoppointer",
        doc="incremented from 0 outbound, decremented from HopCount + 1 returning",
    )
    hop_count: int = bits(8, "HopCount", default=0, wireshark="infiniband.smpdirected.hopcount")
    transaction_id: int = bits(
        64,
        "TransactionID",
        default=0,
        show=Show.HEX,
        wireshark="infiniband.mad.transactionid",
        doc="chosen by the requester and repeated in the answer",
    )
    attribute_id: int = bits(
        16, "AttributeID", default=0, show=Show.HEX, wireshark="infiniband.mad.attributeid"
    )
    reserved: int = bits(16, "Reserved", default=0)
    attribute_modifier: int = bits(
        32,
        "AttributeModifier",
        default=0,
        show=Show.HEX,
        wireshark="infiniband.mad.attributemodifier",
        doc="selects a part of the attribute: a port, a block",
    )


@header("Subnet management packet, LID routed", key="smplid", section="IBA 14.2")
class SMP(Header):
    """Between the common header and the 64 bytes of the attribute."""

    mkey: int = bits(64, "M_Key", default=0, show=Show.HEX, wireshark="infiniband.smplid.mkey")
    reserved: bytes = octets(32, "Reserved", default=b"")


@header("Subnet management packet, directed route", key="smpdirected", section="IBA 14.2")
class DirectedRouteSMP(Header):
    """As `SMP`, with the LIDs of the LID-routed parts of the path.

    Both are 0xFFFF if the whole path is directed.
    """

    mkey: int = bits(64, "M_Key", default=0, show=Show.HEX, wireshark="infiniband.smplid.mkey")
    dr_slid: int = bits(
        16, "DrSLID", default=0xFFFF, show=Show.HEX, wireshark="infiniband.smpdirected.drslid"
    )
    dr_dlid: int = bits(
        16, "DrDLID", default=0xFFFF, show=Show.HEX, wireshark="infiniband.smpdirected.drdlid"
    )
    reserved: bytes = octets(28, "Reserved", default=b"")


@header("Directed-route paths", key="smpdirected", section="IBA 14.2")
class DirectedRoutePaths(Header):
    """After the attribute: the egress ports of the path and of the return path.

    Hop n has index n; index 0 is not used.
    """

    initial_path: tuple[int, ...] = array(
        64, 8, "InitialPath", default=(), key="smpdirected.initial_path"
    )
    return_path: tuple[int, ...] = array(
        64, 8, "ReturnPath", default=(), key="smpdirected.return_path"
    )


@header("Reliable multi-packet transaction protocol", key="rmpp", section="IBA 13.6")
class RMPP(Header):
    """Splits a transfer over many MADs; all zero if unused.

    RRespTime has 5 bits and RMPPFlags 3, as Linux and rdma-core have them;
    tshark 4.0 splits the byte 4 + 4.
    """

    version: int = bits(8, "RMPPVersion", default=1, wireshark="infiniband.rmpp.rmppversion")
    type: int = bits(8, "RMPPType", default=0, names=RMPPType, wireshark="infiniband.rmpp.rmpptype")
    resp_time: int = bits(5, "RRespTime", default=0, doc="4.096 us x 2^n, 31 for none")
    flags: int = bits(
        3, "RMPPFlags", default=0, show=Show.HEX, doc="bit 0 active, bit 1 first, bit 2 last"
    )
    status: int = bits(
        8,
        "RMPPStatus",
        default=0,
        wireshark="infiniband.rmpp.rmppstatus",
        doc="0 normal, 1 out of resources, 118 to 127 abort codes",
    )
    segment_number: int = bits(
        32, "SegmentNumber", default=0, doc="in a DATA or ACK packet; reserved otherwise"
    )
    payload_length: int = bits(
        32,
        "PayloadLength",
        default=0,
        doc="DATA: bytes of the transfer in the first segment, of this segment in the last, "
        "counting class headers; ACK: NewWindowLast",
    )


@header("Subnet administration", key="sa", section="IBA 15.2")
class SA(Header):
    """After RMPP: layout of the records and their valid components."""

    sm_key: int = bits(64, "SM_Key", default=0, show=Show.HEX, wireshark="infiniband.sa.smkey")
    attribute_offset: int = bits(
        16,
        "AttributeOffset",
        default=0,
        wireshark="infiniband.sa.attributeoffset",
        doc="from one record to the next, in 8-byte units",
    )
    reserved: int = bits(16, "Reserved", default=0)
    component_mask: int = bits(
        64,
        "ComponentMask",
        default=0,
        show=Show.HEX,
        wireshark="infiniband.sa.componentmask",
        doc="bit n set: component n of the record is to be compared or set",
    )


@header("Vendor class, range 2", key="vendor", section="IBA 13.4")
class VendorOUI(Header):
    """After RMPP in classes 0x30 to 0x4F: the vendor of the format."""

    reserved: int = bits(8, "Reserved", default=0)
    oui: int = bits(24, "OUI", default=0, show=Show.HEX)


@header("ClassPortInfo", key="classportinfo", section="IBA 13.4")
class ClassPortInfo(Header):
    """Attribute 0x0001 of every class: capabilities, redirection and trap destination."""

    base_version: int = bits(
        8, "BaseVersion", default=1, wireshark="infiniband.classportinfo.baseversion"
    )
    class_version: int = bits(
        8, "ClassVersion", default=1, wireshark="infiniband.classportinfo.classversion"
    )
    capability_mask: int = bits(
        16,
        "CapabilityMask",
        default=0,
        show=Show.HEX,
        wireshark="infiniband.classportinfo.capabilitymask",
    )
    capability_mask2: int = bits(
        27,
        "CapabilityMask2",
        default=0,
        show=Show.HEX,
        wireshark="infiniband.classportinfo.capabilitymask2",
    )
    resp_time_value: int = bits(
        5,
        "RespTimeValue",
        default=0,
        wireshark="infiniband.classportinfo.resptimevalue",
        doc="4.096 us x 2^n",
    )
    redirect_gid: int = bits(
        128,
        "RedirectGID",
        default=0,
        show=Show.IPV6,
        wireshark="infiniband.classportinfo.redirectgid",
    )
    redirect_tc: int = bits(
        8, "RedirectTC", default=0, wireshark="infiniband.classportinfo.redirecttc"
    )
    redirect_sl: int = bits(
        4, "RedirectSL", default=0, wireshark="infiniband.classportinfo.redirectsl"
    )
    redirect_fl: int = bits(
        20,
        "RedirectFL",
        default=0,
        show=Show.HEX,
        wireshark="infiniband.classportinfo.redirectfl",
    )
    redirect_lid: int = bits(
        16, "RedirectLID", default=0, wireshark="infiniband.classportinfo.redirectlid"
    )
    redirect_pkey: int = bits(
        16,
        "RedirectP_Key",
        default=0,
        show=Show.HEX,
        wireshark="infiniband.classportinfo.redirectpkey",
    )
    reserved: int = bits(8, "Reserved", default=0, wireshark="infiniband.classportinfo.reserved")
    redirect_qp: int = bits(
        24, "RedirectQP", default=0, wireshark="infiniband.classportinfo.redirectqp"
    )
    redirect_qkey: int = bits(
        32,
        "RedirectQ_Key",
        default=0,
        show=Show.HEX,
        wireshark="infiniband.classportinfo.redirectqkey",
    )
    trap_gid: int = bits(
        128, "TrapGID", default=0, show=Show.IPV6, wireshark="infiniband.classportinfo.trapgid"
    )
    trap_tc: int = bits(8, "TrapTC", default=0, wireshark="infiniband.classportinfo.traptc")
    trap_sl: int = bits(4, "TrapSL", default=0, wireshark="infiniband.classportinfo.trapsl")
    trap_fl: int = bits(
        20, "TrapFL", default=0, show=Show.HEX, wireshark="infiniband.classportinfo.trapfl"
    )
    trap_lid: int = bits(16, "TrapLID", default=0, wireshark="infiniband.classportinfo.traplid")
    trap_pkey: int = bits(
        16, "TrapP_Key", default=0, show=Show.HEX, wireshark="infiniband.classportinfo.trappkey"
    )
    trap_hl: int = bits(8, "TrapHL", default=0, doc="hop limit")
    trap_qp: int = bits(24, "TrapQP", default=0, wireshark="infiniband.classportinfo.trapqp")
    trap_qkey: int = bits(
        32, "TrapQ_Key", default=0, show=Show.HEX, wireshark="infiniband.classportinfo.trapqkey"
    )


@header("Notice", key="notice", section="IBA 14.2")
class Notice(Header):
    """Content of a trap or a report."""

    is_generic: int = bits(1, "IsGeneric", default=0, wireshark="infiniband.notice.isgeneric")
    type: int = bits(7, "Type", default=0, wireshark="infiniband.notice.type")
    producer_type: int = bits(
        24,
        "ProducerType",
        default=0,
        wireshark="infiniband.notice.producertypevendorid",
        doc="generic: 1 CA, 2 switch, 3 router, 4 class manager; else the vendor",
    )
    trap_number: int = bits(
        16,
        "TrapNumber",
        default=0,
        names=Trap,
        wireshark="infiniband.notice.trapnumberdeviceid",
        doc="or the device, when not generic",
    )
    issuer_lid: int = bits(16, "IssuerLID", default=0, wireshark="infiniband.notice.issuerlid")
    notice_toggle: int = bits(
        1, "NoticeToggle", default=0, wireshark="infiniband.notice.noticetoggle"
    )
    notice_count: int = bits(
        15, "NoticeCount", default=0, wireshark="infiniband.notice.noticecount"
    )
    data_details: bytes = octets(
        54, "DataDetails", default=b"", wireshark="infiniband.notice.datadetails"
    )
