"""Records of subnet administration.

A record is one of these classes, or an identifier with an attribute of subnet
management after it; `management.py` has the table. Layouts without a frame in
the references are those of the SA headers that Linux fabric tools publish
(opa-ff `ib_sa_records.h`, opensm `ib_types.h`) and of tshark.
"""

from __future__ import annotations

from enum import IntEnum

from ibwire_layers.mad import MTUCode
from ibwire_layers.schema import Header, Show, bits, header, octets


class SAAttribute(IntEnum):
    """Attributes of subnet administration (IBA 15.2)."""

    CLASS_PORT_INFO = 0x0001
    NOTICE = 0x0002
    INFORM_INFO = 0x0003
    NODE_RECORD = 0x0011
    PORT_INFO_RECORD = 0x0012
    SL_TO_VL_MAPPING_TABLE_RECORD = 0x0013
    SWITCH_INFO_RECORD = 0x0014
    LINEAR_FORWARDING_TABLE_RECORD = 0x0015
    RANDOM_FORWARDING_TABLE_RECORD = 0x0016
    MULTICAST_FORWARDING_TABLE_RECORD = 0x0017
    SM_INFO_RECORD = 0x0018
    LINK_RECORD = 0x0020
    GUID_INFO_RECORD = 0x0030
    SERVICE_RECORD = 0x0031
    P_KEY_TABLE_RECORD = 0x0033
    PATH_RECORD = 0x0035
    VL_ARBITRATION_TABLE_RECORD = 0x0036
    MC_MEMBER_RECORD = 0x0038
    TRACE_RECORD = 0x0039
    MULTI_PATH_RECORD = 0x003A
    SERVICE_ASSOCIATION_RECORD = 0x003B
    INFORM_INFO_RECORD = 0x00F3


@header("PathRecord", key="pathrecord", section="IBA 15.2")
class PathRecord(Header):
    """How to reach a port."""

    service_id: int = bits(64, "ServiceID", default=0, show=Show.HEX)
    dgid: int = bits(128, "DGID", default=0, show=Show.IPV6, wireshark="infiniband.pathrecord.dgid")
    sgid: int = bits(128, "SGID", default=0, show=Show.IPV6, wireshark="infiniband.pathrecord.sgid")
    dlid: int = bits(16, "DLID", default=0, wireshark="infiniband.pathrecord.dlid")
    slid: int = bits(16, "SLID", default=0, wireshark="infiniband.pathrecord.slid")
    raw_traffic: int = bits(
        1, "RawTraffic", default=0, wireshark="infiniband.pathrecord.rawtraffic"
    )
    reserved: int = bits(3, "Reserved", default=0)
    flow_label: int = bits(
        20, "FlowLabel", default=0, show=Show.HEX, wireshark="infiniband.pathrecord.flowlabel"
    )
    hop_limit: int = bits(8, "HopLimit", default=0, wireshark="infiniband.pathrecord.hoplimit")
    tclass: int = bits(8, "TClass", default=0, wireshark="infiniband.pathrecord.tclass")
    reversible: int = bits(1, "Reversible", default=0, wireshark="infiniband.pathrecord.reversible")
    numb_path: int = bits(7, "NumbPath", default=0, wireshark="infiniband.pathrecord.numbpath")
    pkey: int = bits(
        16, "P_Key", default=0xFFFF, show=Show.HEX, wireshark="infiniband.pathrecord.p_key"
    )
    qos_class: int = bits(12, "QoSClass", default=0)
    sl: int = bits(4, "SL", default=0, wireshark="infiniband.pathrecord.sl")
    mtu_selector: int = bits(
        2,
        "MTUSelector",
        default=0,
        wireshark="infiniband.pathrecord.mtuselector",
        doc="0 greater, 1 less, 2 exactly, 3 largest",
    )
    mtu: int = bits(6, "MTU", default=0, names=MTUCode, wireshark="infiniband.pathrecord.mtu")
    rate_selector: int = bits(
        2, "RateSelector", default=0, wireshark="infiniband.pathrecord.rateselector"
    )
    rate: int = bits(6, "Rate", default=0, wireshark="infiniband.pathrecord.rate")
    packet_life_time_selector: int = bits(
        2,
        "PacketLifeTimeSelector",
        default=0,
        wireshark="infiniband.pathrecord.packetlifetimeselector",
    )
    packet_life_time: int = bits(
        6,
        "PacketLifeTime",
        default=0,
        wireshark="infiniband.pathrecord.packetlifetime",
        doc="4.096 us x 2^n",
    )
    preference: int = bits(8, "Preference", default=0, wireshark="infiniband.pathrecord.preference")
    reserved2: int = bits(48, "Reserved", default=0)


@header("MCMemberRecord", key="mcmemberrecord", section="IBA 15.2")
class MCMemberRecord(Header):
    """Membership of a port in a multicast group."""

    mgid: int = bits(
        128, "MGID", default=0, show=Show.IPV6, wireshark="infiniband.mcmemberrecord.mgid"
    )
    port_gid: int = bits(
        128, "PortGID", default=0, show=Show.IPV6, wireshark="infiniband.mcmemberrecord.portgid"
    )
    qkey: int = bits(
        32, "Q_Key", default=0, show=Show.HEX, wireshark="infiniband.mcmemberrecord.q_key"
    )
    mlid: int = bits(
        16, "MLID", default=0, show=Show.HEX, wireshark="infiniband.mcmemberrecord.mlid"
    )
    mtu_selector: int = bits(
        2, "MTUSelector", default=0, wireshark="infiniband.mcmemberrecord.mtuselector"
    )
    mtu: int = bits(6, "MTU", default=0, names=MTUCode, wireshark="infiniband.mcmemberrecord.mtu")
    tclass: int = bits(8, "TClass", default=0, wireshark="infiniband.mcmemberrecord.tclass")
    pkey: int = bits(
        16, "P_Key", default=0xFFFF, show=Show.HEX, wireshark="infiniband.mcmemberrecord.p_key"
    )
    rate_selector: int = bits(
        2, "RateSelector", default=0, wireshark="infiniband.mcmemberrecord.rateselector"
    )
    rate: int = bits(6, "Rate", default=0, wireshark="infiniband.mcmemberrecord.rate")
    packet_life_time_selector: int = bits(
        2,
        "PacketLifeTimeSelector",
        default=0,
        wireshark="infiniband.mcmemberrecord.packetlifetimeselector",
    )
    packet_life_time: int = bits(
        6,
        "PacketLifeTime",
        default=0,
        wireshark="infiniband.mcmemberrecord.packetlifetime",
        doc="4.096 us x 2^n",
    )
    sl: int = bits(4, "SL", default=0, wireshark="infiniband.mcmemberrecord.sl")
    flow_label: int = bits(
        20, "FlowLabel", default=0, show=Show.HEX, wireshark="infiniband.mcmemberrecord.flowlabel"
    )
    hop_limit: int = bits(8, "HopLimit", default=0, wireshark="infiniband.mcmemberrecord.hoplimit")
    scope: int = bits(4, "Scope", default=0, wireshark="infiniband.mcmemberrecord.scope")
    join_state: int = bits(
        4,
        "JoinState",
        default=0,
        wireshark="infiniband.mcmemberrecord.joinstate",
        doc="bit 0 full, 1 non, 2 send-only non, 3 send-only full member",
    )
    proxy_join: int = bits(
        1, "ProxyJoin", default=0, wireshark="infiniband.mcmemberrecord.proxyjoin"
    )
    reserved: int = bits(7, "Reserved", default=0)
    reserved2: int = bits(48, "Reserved", default=0)


@header("NodeRecord identifier", key="noderecord", section="IBA 15.2")
class NodeRecordID(Header):
    """First part of a NodeRecord, before the attribute."""

    lid: int = bits(16, "LID", default=0, wireshark="infiniband.sa.lid")
    reserved: int = bits(16, "Reserved", default=0)


@header("PortInfoRecord identifier", key="portinforecord", section="IBA 15.2")
class PortInfoRecordID(Header):
    """First part of a PortInfoRecord, before the attribute."""

    endport_lid: int = bits(16, "EndportLID", default=0, wireshark="infiniband.sa.endportlid")
    port_num: int = bits(8, "PortNum", default=0, wireshark="infiniband.sa.portnum")
    options: int = bits(8, "Options", default=0, show=Show.HEX)


@header("SwitchInfoRecord identifier", key="switchinforecord", section="IBA 15.2")
class SwitchInfoRecordID(Header):
    """First part of a SwitchInfoRecord, before the attribute."""

    lid: int = bits(16, "LID", default=0, wireshark="infiniband.sa.lid")
    reserved: int = bits(16, "Reserved", default=0)


@header("SMInfoRecord identifier", key="sminforecord", section="IBA 15.2")
class SMInfoRecordID(Header):
    """First part of an SMInfoRecord, before the attribute."""

    lid: int = bits(16, "LID", default=0, wireshark="infiniband.sa.lid")
    reserved: int = bits(16, "Reserved", default=0)


@header(
    "LinearForwardingTableRecord identifier", key="linearforwardingtablerecord", section="IBA 15.2"
)
class LinearForwardingTableRecordID(Header):
    """First part of a LinearForwardingTableRecord, before the attribute."""

    lid: int = bits(16, "LID", default=0, wireshark="infiniband.sa.lid")
    block_num: int = bits(16, "BlockNum", default=0, wireshark="infiniband.sa.blocknum_sixteenbit")
    reserved: int = bits(32, "Reserved", default=0)


@header(
    "MulticastForwardingTableRecord identifier",
    key="multicastforwardingtablerecord",
    section="IBA 15.2",
)
class MulticastForwardingTableRecordID(Header):
    """First part of a MulticastForwardingTableRecord, before the attribute."""

    lid: int = bits(16, "LID", default=0, wireshark="infiniband.sa.lid")
    position: int = bits(4, "Position", default=0, wireshark="infiniband.sa.position")
    reserved: int = bits(3, "Reserved", default=0)
    block_num: int = bits(9, "BlockNum", default=0, wireshark="infiniband.sa.blocknum_ninebit")
    reserved2: int = bits(32, "Reserved", default=0)


@header("SLtoVLMappingTableRecord identifier", key="sltovlmappingtablerecord", section="IBA 15.2")
class SLtoVLMappingTableRecordID(Header):
    """First part of an SLtoVLMappingTableRecord, before the attribute."""

    lid: int = bits(16, "LID", default=0, wireshark="infiniband.sa.lid")
    input_port_num: int = bits(8, "InputPortNum", default=0, wireshark="infiniband.sa.inputportnum")
    output_port_num: int = bits(
        8, "OutputPortNum", default=0, wireshark="infiniband.sa.outputportnum"
    )
    reserved: int = bits(32, "Reserved", default=0)


@header("VLArbitrationTableRecord identifier", key="vlarbitrationtablerecord", section="IBA 15.2")
class VLArbitrationTableRecordID(Header):
    """First part of a VLArbitrationTableRecord, before the attribute."""

    lid: int = bits(16, "LID", default=0, wireshark="infiniband.sa.lid")
    output_port_num: int = bits(
        8, "OutputPortNum", default=0, wireshark="infiniband.sa.outputportnum"
    )
    block_num: int = bits(8, "BlockNum", default=0, wireshark="infiniband.sa.blocknum_eightbit")
    reserved: int = bits(32, "Reserved", default=0)


@header("P_KeyTableRecord identifier", key="pkeytablerecord", section="IBA 15.2")
class PKeyTableRecordID(Header):
    """First part of a P_KeyTableRecord, before the attribute."""

    lid: int = bits(16, "LID", default=0, wireshark="infiniband.sa.lid")
    block_num: int = bits(16, "BlockNum", default=0, wireshark="infiniband.sa.blocknum_sixteenbit")
    port_num: int = bits(8, "PortNum", default=0, wireshark="infiniband.sa.portnum")
    reserved: int = bits(24, "Reserved", default=0)


@header("GUIDInfoRecord identifier", key="guidinforecord", section="IBA 15.2")
class GUIDInfoRecordID(Header):
    """First part of a GUIDInfoRecord, before the attribute."""

    lid: int = bits(16, "LID", default=0, wireshark="infiniband.sa.lid")
    block_num: int = bits(8, "BlockNum", default=0, wireshark="infiniband.sa.blocknum_eightbit")
    reserved: int = bits(8, "Reserved", default=0)
    reserved2: int = bits(32, "Reserved", default=0)


@header("LinkRecord", key="linkrecord", section="IBA 15.2")
class LinkRecord(Header):
    """The two ends of a link."""

    from_lid: int = bits(16, "FromLID", default=0, wireshark="infiniband.linkrecord.fromlid")
    from_port: int = bits(8, "FromPort", default=0, wireshark="infiniband.linkrecord.fromport")
    to_port: int = bits(8, "ToPort", default=0, wireshark="infiniband.linkrecord.toport")
    to_lid: int = bits(16, "ToLID", default=0, wireshark="infiniband.linkrecord.tolid")


@header("ServiceRecord", key="servicerecord", section="IBA 15.2")
class ServiceRecord(Header):
    """A service of a port; the service defines the meaning of its data."""

    service_id: int = bits(
        64, "ServiceID", default=0, show=Show.HEX, wireshark="infiniband.linkrecord.serviceid"
    )
    service_gid: int = bits(
        128, "ServiceGID", default=0, show=Show.IPV6, wireshark="infiniband.linkrecord.servicegid"
    )
    service_pkey: int = bits(
        16, "ServiceP_Key", default=0, show=Show.HEX, wireshark="infiniband.linkrecord.servicep_key"
    )
    reserved: int = bits(16, "Reserved", default=0)
    service_lease: int = bits(
        32,
        "ServiceLease",
        default=0,
        wireshark="infiniband.linkrecord.servicelease",
        doc="seconds; all ones for no end",
    )
    service_key: int = bits(
        128, "ServiceKey", default=0, show=Show.HEX, wireshark="infiniband.linkrecord.servicekey"
    )
    service_name: bytes = octets(
        64,
        "ServiceName",
        default=b"",
        wireshark="infiniband.linkrecord.servicename",
        doc="UTF-8, terminated by zero",
    )
    service_data: bytes = octets(64, "ServiceData", default=b"")


@header("InformInfo", key="informinfo", section="IBA 15.2")
class InformInfo(Header):
    """A subscription to notices."""

    gid: int = bits(128, "GID", default=0, show=Show.IPV6, wireshark="infiniband.informinfo.gid")
    lid_range_begin: int = bits(
        16, "LIDRangeBegin", default=0, wireshark="infiniband.informinfo.lidrangebegin"
    )
    lid_range_end: int = bits(
        16, "LIDRangeEnd", default=0, wireshark="infiniband.informinfo.lidrangeend"
    )
    reserved: int = bits(16, "Reserved", default=0)
    is_generic: int = bits(8, "IsGeneric", default=0, wireshark="infiniband.informinfo.isgeneric")
    subscribe: int = bits(8, "Subscribe", default=0, wireshark="infiniband.informinfo.subscribe")
    type: int = bits(16, "Type", default=0, wireshark="infiniband.informinfo.type")
    trap_number: int = bits(
        16, "TrapNumberDeviceID", default=0, wireshark="infiniband.informinfo.trapnumberdeviceid"
    )
    qpn: int = bits(24, "QPN", default=0, wireshark="infiniband.informinfo.qpn")
    reserved2: int = bits(3, "Reserved", default=0)
    resp_time_value: int = bits(
        5, "RespTimeValue", default=0, wireshark="infiniband.informinfo.resptimevalue"
    )
    reserved3: int = bits(8, "Reserved", default=0)
    producer_type: int = bits(
        24,
        "ProducerTypeVendorID",
        default=0,
        wireshark="infiniband.informinfo.producertypevendorid",
    )


@header("InformInfoRecord identifier", key="informinforecord", section="IBA 15.2")
class InformInfoRecordID(Header):
    """First part of an InformInfoRecord, before the attribute."""

    subscriber_gid: int = bits(
        128,
        "SubscriberGID",
        default=0,
        show=Show.IPV6,
        wireshark="infiniband.informinforecord.subscribergid",
    )
    enum: int = bits(16, "Enum", default=0, wireshark="infiniband.informinforecord.enum")
    reserved: int = bits(48, "Reserved", default=0)
