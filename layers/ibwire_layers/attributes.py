"""Attributes of subnet management.

An attribute takes at most the 64 bytes of SMP data; the rest is reserved.
"""

from __future__ import annotations

from enum import IntEnum

from ibwire_layers.mad import MTUCode as MTUCode
from ibwire_layers.schema import Header, Show, array, bits, header, octets


class SMAttribute(IntEnum):
    """Attributes of subnet management (IBA 14.2)."""

    NOTICE = 0x0002
    NODE_DESCRIPTION = 0x0010
    NODE_INFO = 0x0011
    SWITCH_INFO = 0x0012
    GUID_INFO = 0x0014
    PORT_INFO = 0x0015
    P_KEY_TABLE = 0x0016
    SL_TO_VL_MAPPING_TABLE = 0x0017
    VL_ARBITRATION_TABLE = 0x0018
    LINEAR_FORWARDING_TABLE = 0x0019
    RANDOM_FORWARDING_TABLE = 0x001A
    MULTICAST_FORWARDING_TABLE = 0x001B
    LINK_SPEED_WIDTH_PAIRS_TABLE = 0x001C
    VENDOR_SPECIFIC_MADS_TABLE = 0x001D
    HIERARCHY_INFO = 0x001E
    SM_INFO = 0x0020
    VENDOR_DIAG = 0x0030
    LED_INFO = 0x0031
    CABLE_INFO = 0x0032
    PORT_INFO_EXTENDED = 0x0033
    MLNX_EXTENDED_PORT_INFO = 0xFF90


class NodeType(IntEnum):
    """Type of a node."""

    CA = 1
    SWITCH = 2
    ROUTER = 3


class PortState(IntEnum):
    """Logical state of a port; 0 in a Set leaves it."""

    NO_CHANGE = 0
    DOWN = 1
    INIT = 2
    ARMED = 3
    ACTIVE = 4
    ACTIVE_DEFER = 5


class PortPhysicalState(IntEnum):
    """State of the physical layer; 0 in a Set leaves it."""

    NO_CHANGE = 0
    SLEEP = 1
    POLLING = 2
    DISABLED = 3
    TRAINING = 4
    LINK_UP = 5
    LINK_ERROR_RECOVERY = 6
    PHY_TEST = 7


class SMState(IntEnum):
    """State of a subnet manager."""

    NOT_ACTIVE = 0
    DISCOVERING = 1
    STANDBY = 2
    MASTER = 3


@header("NodeDescription", key="nodedescription", section="IBA 14.2")
class NodeDescription(Header):
    """A name in UTF-8, zero-padded, not necessarily terminated."""

    node_string: bytes = octets(64, "NodeString", default=b"")


@header("NodeInfo", key="nodeinfo", section="IBA 14.2")
class NodeInfo(Header):
    """Properties of a node, and the port that answered."""

    base_version: int = bits(
        8, "BaseVersion", default=1, wireshark="infiniband.nodeinfo.baseversion"
    )
    class_version: int = bits(
        8, "ClassVersion", default=1, wireshark="infiniband.nodeinfo.classversion"
    )
    node_type: int = bits(
        8, "NodeType", default=NodeType.CA, names=NodeType, wireshark="infiniband.nodeinfo.nodetype"
    )
    num_ports: int = bits(8, "NumPorts", default=0, wireshark="infiniband.nodeinfo.numports")
    system_image_guid: int = bits(
        64,
        "SystemImageGUID",
        default=0,
        show=Show.HEX,
        wireshark="infiniband.nodeinfo.systemimageguid",
    )
    node_guid: int = bits(
        64, "NodeGUID", default=0, show=Show.HEX, wireshark="infiniband.nodeinfo.nodeguid"
    )
    port_guid: int = bits(
        64, "PortGUID", default=0, show=Show.HEX, wireshark="infiniband.nodeinfo.portguid"
    )
    partition_cap: int = bits(
        16,
        "PartitionCap",
        default=0,
        wireshark="infiniband.nodeinfo.partitioncap",
        doc="entries of the P_Key table",
    )
    device_id: int = bits(
        16, "DeviceID", default=0, show=Show.HEX, wireshark="infiniband.nodeinfo.deviceid"
    )
    revision: int = bits(
        32, "Revision", default=0, show=Show.HEX, wireshark="infiniband.nodeinfo.revision"
    )
    local_port_num: int = bits(
        8,
        "LocalPortNum",
        default=0,
        wireshark="infiniband.nodeinfo.localportnum",
        doc="port that received the request",
    )
    vendor_id: int = bits(
        24,
        "VendorID",
        default=0,
        show=Show.HEX,
        wireshark="infiniband.nodeinfo.vendorid",
        doc="IEEE OUI",
    )


@header("SwitchInfo", key="switchinfo", section="IBA 14.2")
class SwitchInfo(Header):
    """Table sizes and settings of a switch."""

    linear_fdb_cap: int = bits(
        16, "LinearFDBCap", default=0, wireshark="infiniband.switchinfo.linearfdbcap"
    )
    random_fdb_cap: int = bits(
        16, "RandomFDBCap", default=0, wireshark="infiniband.switchinfo.randomfdbcap"
    )
    multicast_fdb_cap: int = bits(
        16, "MulticastFDBCap", default=0, wireshark="infiniband.switchinfo.multicastfdbcap"
    )
    linear_fdb_top: int = bits(
        16, "LinearFDBTop", default=0, wireshark="infiniband.switchinfo.linearfdbtop"
    )
    default_port: int = bits(
        8, "DefaultPort", default=0, wireshark="infiniband.switchinfo.defaultport"
    )
    default_multicast_primary_port: int = bits(
        8,
        "DefaultMulticastPrimaryPort",
        default=0,
        wireshark="infiniband.switchinfo.defaultmulticastprimaryport",
    )
    default_multicast_not_primary_port: int = bits(
        8,
        "DefaultMulticastNotPrimaryPort",
        default=0,
        wireshark="infiniband.switchinfo.defaultmulticastnotprimaryport",
    )
    life_time_value: int = bits(
        5,
        "LifeTimeValue",
        default=0,
        wireshark="infiniband.switchinfo.lifetimevalue",
        doc="4.096 us x 2^n",
    )
    port_state_change: int = bits(
        1, "PortStateChange", default=0, wireshark="infiniband.switchinfo.portstatechange"
    )
    optimized_sl_to_vl_mapping_programming: int = bits(
        2,
        "OptimizedSLtoVLMappingProgramming",
        default=0,
        wireshark="infiniband.switchinfo.optimizedsltovlmappingprogramming",
    )
    lids_per_port: int = bits(
        16, "LIDsPerPort", default=0, wireshark="infiniband.switchinfo.lidsperport"
    )
    partition_enforcement_cap: int = bits(
        16,
        "PartitionEnforcementCap",
        default=0,
        wireshark="infiniband.switchinfo.partitionenforcementcap",
    )
    inbound_enforcement_cap: int = bits(
        1,
        "InboundEnforcementCap",
        default=0,
        wireshark="infiniband.switchinfo.inboundenforcementcap",
    )
    outbound_enforcement_cap: int = bits(
        1,
        "OutboundEnforcementCap",
        default=0,
        wireshark="infiniband.switchinfo.outboundenforcementcap",
    )
    filter_raw_inbound_cap: int = bits(
        1, "FilterRawInboundCap", default=0, wireshark="infiniband.switchinfo.filterrawinboundcap"
    )
    filter_raw_outbound_cap: int = bits(
        1, "FilterRawOutboundCap", default=0, wireshark="infiniband.switchinfo.filterrawoutboundcap"
    )
    enhanced_port0: int = bits(
        1, "EnhancedPort0", default=0, wireshark="infiniband.switchinfo.enhancedportzero"
    )
    reserved: int = bits(3, "Reserved", default=0)
    reserved2: int = bits(8, "Reserved", default=0)
    multicast_fdb_top: int = bits(16, "MulticastFDBTop", default=0)


@header("GUIDInfo", key="guidinfo", section="IBA 14.2")
class GUIDInfo(Header):
    """One block of the GUIDs of a port; the modifier is the block."""

    guid: tuple[int, ...] = array(8, 64, "GUID", default=(), show=Show.HEX, key="guidinfo.guid")


@header("PortInfo", key="portinfo", section="IBA 14.2")
class PortInfo(Header):
    """State and settings of the port named by the modifier.

    Older texts end before CapabilityMask2 and call the byte before LinkRoundTripLatency
    reserved; its LinkSpeedExt...2 fields have one public source.
    """

    mkey: int = bits(64, "M_Key", default=0, show=Show.HEX, wireshark="infiniband.portinfo.m_key")
    gid_prefix: int = bits(
        64,
        "GidPrefix",
        default=0xFE80000000000000,
        show=Show.HEX,
        wireshark="infiniband.portinfo.guid",
    )
    lid: int = bits(16, "LID", default=0, wireshark="infiniband.portinfo.lid")
    master_sm_lid: int = bits(
        16, "MasterSMLID", default=0, wireshark="infiniband.portinfo.mastersmlid"
    )
    capability_mask: int = bits(
        32,
        "CapabilityMask",
        default=0,
        show=Show.HEX,
        wireshark="infiniband.portinfo.capabilitymask",
    )
    diag_code: int = bits(
        16, "DiagCode", default=0, show=Show.HEX, wireshark="infiniband.portinfo.diagcode"
    )
    mkey_lease_period: int = bits(
        16,
        "M_KeyLeasePeriod",
        default=0,
        wireshark="infiniband.portinfo.m_keyleaseperiod",
        doc="seconds",
    )
    local_port_num: int = bits(
        8, "LocalPortNum", default=0, wireshark="infiniband.portinfo.localportnum"
    )
    link_width_enabled: int = bits(
        8,
        "LinkWidthEnabled",
        default=0,
        wireshark="infiniband.portinfo.linkwidthenabled",
        doc="mask: 1 1x, 2 4x, 4 8x, 8 12x, 16 2x",
    )
    link_width_supported: int = bits(
        8,
        "LinkWidthSupported",
        default=0,
        wireshark="infiniband.portinfo.linkwidthsupported",
        doc="mask",
    )
    link_width_active: int = bits(
        8,
        "LinkWidthActive",
        default=0,
        wireshark="infiniband.portinfo.linkwidthactive",
        doc="one bit",
    )
    link_speed_supported: int = bits(
        4,
        "LinkSpeedSupported",
        default=0,
        wireshark="infiniband.portinfo.linkspeedsupported",
        doc="mask: 1 2.5, 2 5, 4 10 Gb/s a lane",
    )
    port_state: int = bits(
        4, "PortState", default=0, names=PortState, wireshark="infiniband.portinfo.portstate"
    )
    port_physical_state: int = bits(
        4,
        "PortPhysicalState",
        default=0,
        names=PortPhysicalState,
        wireshark="infiniband.portinfo.portphysicalstate",
    )
    link_down_default_state: int = bits(
        4,
        "LinkDownDefaultState",
        default=0,
        wireshark="infiniband.portinfo.linkdowndefaultstate",
        doc="1 sleep, 2 polling",
    )
    mkey_protect_bits: int = bits(
        2, "M_KeyProtectBits", default=0, wireshark="infiniband.portinfo.m_keyprotectbits"
    )
    reserved: int = bits(3, "Reserved", default=0)
    lmc: int = bits(
        3,
        "LMC",
        default=0,
        wireshark="infiniband.portinfo.lmc",
        doc="LID mask: the port has 2^LMC LIDs",
    )
    link_speed_active: int = bits(
        4,
        "LinkSpeedActive",
        default=0,
        wireshark="infiniband.portinfo.linkspeedactive",
        doc="one bit",
    )
    link_speed_enabled: int = bits(
        4,
        "LinkSpeedEnabled",
        default=0,
        wireshark="infiniband.portinfo.linkspeedenabled",
        doc="mask",
    )
    neighbor_mtu: int = bits(
        4, "NeighborMTU", default=0, names=MTUCode, wireshark="infiniband.portinfo.neighbormtu"
    )
    master_sm_sl: int = bits(4, "MasterSMSL", default=0, wireshark="infiniband.portinfo.mastersmsl")
    vl_cap: int = bits(
        4,
        "VLCap",
        default=0,
        wireshark="infiniband.portinfo.vlcap",
        doc="1 VL0, 2 VL0-1, 3 VL0-3, 4 VL0-7, 5 VL0-14",
    )
    init_type: int = bits(4, "InitType", default=0, wireshark="infiniband.portinfo.inittype")
    vl_high_limit: int = bits(
        8, "VLHighLimit", default=0, wireshark="infiniband.portinfo.vlhighlimit"
    )
    vl_arbitration_high_cap: int = bits(
        8, "VLArbitrationHighCap", default=0, wireshark="infiniband.portinfo.vlarbitrationhighcap"
    )
    vl_arbitration_low_cap: int = bits(
        8, "VLArbitrationLowCap", default=0, wireshark="infiniband.portinfo.vlarbitrationlowcap"
    )
    init_type_reply: int = bits(
        4, "InitTypeReply", default=0, wireshark="infiniband.portinfo.inittypereply"
    )
    mtu_cap: int = bits(
        4, "MTUCap", default=0, names=MTUCode, wireshark="infiniband.portinfo.mtucap"
    )
    vl_stall_count: int = bits(
        3, "VLStallCount", default=0, wireshark="infiniband.portinfo.vlstallcount"
    )
    hoq_life: int = bits(
        5, "HOQLife", default=0, wireshark="infiniband.portinfo.hoqlife", doc="4.096 us x 2^n"
    )
    operational_vls: int = bits(
        4,
        "OperationalVLs",
        default=0,
        wireshark="infiniband.portinfo.operationalvls",
        doc="as VLCap",
    )
    partition_enforcement_inbound: int = bits(
        1,
        "PartitionEnforcementInbound",
        default=0,
        wireshark="infiniband.portinfo.partitionenforcementinbound",
    )
    partition_enforcement_outbound: int = bits(
        1,
        "PartitionEnforcementOutbound",
        default=0,
        wireshark="infiniband.portinfo.partitionenforcementoutbound",
    )
    filter_raw_inbound: int = bits(
        1, "FilterRawInbound", default=0, wireshark="infiniband.portinfo.filterrawinbound"
    )
    filter_raw_outbound: int = bits(
        1, "FilterRawOutbound", default=0, wireshark="infiniband.portinfo.filterrawoutbound"
    )
    mkey_violations: int = bits(
        16, "M_KeyViolations", default=0, wireshark="infiniband.portinfo.m_keyviolations"
    )
    pkey_violations: int = bits(
        16, "P_KeyViolations", default=0, wireshark="infiniband.portinfo.p_keyviolations"
    )
    qkey_violations: int = bits(
        16, "Q_KeyViolations", default=0, wireshark="infiniband.portinfo.q_keyviolations"
    )
    guid_cap: int = bits(
        8, "GUIDCap", default=0, wireshark="infiniband.portinfo.guidcap", doc="entries of GUIDInfo"
    )
    client_reregister: int = bits(
        1, "ClientReregister", default=0, wireshark="infiniband.portinfo.clientreregister"
    )
    multicast_pkey_trap_suppression_enabled: int = bits(
        2, "MulticastPKeyTrapSuppressionEnabled", default=0
    )
    subnet_timeout: int = bits(
        5,
        "SubnetTimeOut",
        default=0,
        wireshark="infiniband.portinfo.subnettimeout",
        doc="4.096 us x 2^n",
    )
    reserved2: int = bits(3, "Reserved", default=0)
    resp_time_value: int = bits(
        5,
        "RespTimeValue",
        default=0,
        wireshark="infiniband.portinfo.resptimevalue",
        doc="4.096 us x 2^n",
    )
    local_phy_errors: int = bits(
        4, "LocalPhyErrors", default=0, wireshark="infiniband.portinfo.localphyerrors"
    )
    overrun_errors: int = bits(
        4, "OverrunErrors", default=0, wireshark="infiniband.portinfo.overrunerrors"
    )
    max_credit_hint: int = bits(
        16, "MaxCreditHint", default=0, wireshark="infiniband.portinfo.maxcredithint"
    )
    reserved3: int = bits(1, "Reserved", default=0)
    link_speed_ext_active2: int = bits(2, "LinkSpeedExtActive2", default=0, doc="1 XDR")
    link_speed_ext_supported2: int = bits(2, "LinkSpeedExtSupported2", default=0)
    link_speed_ext_enabled2: int = bits(3, "LinkSpeedExtEnabled2", default=0)
    link_round_trip_latency: int = bits(
        24, "LinkRoundTripLatency", default=0, wireshark="infiniband.portinfo.linkroundtriplatency"
    )
    capability_mask2: int = bits(16, "CapabilityMask2", default=0, show=Show.HEX)
    link_speed_ext_active: int = bits(
        4, "LinkSpeedExtActive", default=0, doc="1 FDR, 2 EDR, 4 HDR, 8 NDR"
    )
    link_speed_ext_supported: int = bits(4, "LinkSpeedExtSupported", default=0, doc="mask")
    reserved4: int = bits(3, "Reserved", default=0)
    link_speed_ext_enabled: int = bits(5, "LinkSpeedExtEnabled", default=0, doc="mask")


@header("P_KeyTable", key="p_keytable", section="IBA 14.2")
class PKeyTable(Header):
    """One block of partition keys; the modifier has the block, above it the port of a switch."""

    pkey: tuple[int, ...] = array(
        32,
        16,
        "P_KeyTableBlock",
        default=(),
        show=Show.HEX,
        key="p_keytable.pkey",
        doc="bit 15 full membership; 0 is no entry",
    )


@header("SLtoVLMappingTable", key="sltovlmappingtable", section="IBA 14.2")
class SLtoVLMappingTable(Header):
    """The virtual lane of each service level, by input and output port of the modifier."""

    vl: tuple[int, ...] = array(
        16, 4, "SLtoVL", default=(), key="sltovlmappingtable.vl", doc="by service level; 15 drops"
    )


@header("VLArbitration entry", key="vlarbitrationtable", section="IBA 14.2")
class VLArbitrationEntry(Header):
    """One turn of the arbiter."""

    reserved: int = bits(4, "Reserved", default=0)
    vl: int = bits(4, "VL", default=0, wireshark="infiniband.vlarbitrationtable.vl")
    weight: int = bits(
        8,
        "Weight",
        default=0,
        wireshark="infiniband.vlarbitrationtable.weight",
        doc="in 64-byte units; 0 skips the entry",
    )


@header("VLArbitrationTable", key="vlarbitrationtable", section="IBA 14.2")
class VLArbitrationTable(Header):
    """Half of the high- or low-priority table; 32 entries as `VLArbitrationEntry` reads them."""

    entry: tuple[int, ...] = array(
        32, 16, "VL/Weight", default=(), show=Show.HEX, key="vlarbitrationtable.entry"
    )


@header("LinearForwardingTable", key="linearforwardingtable", section="IBA 14.2")
class LinearForwardingTable(Header):
    """Output ports of the 64 LIDs from 64 x modifier on."""

    port: tuple[int, ...] = array(
        64, 8, "Port", default=(), key="linearforwardingtable.port", doc="255 drops"
    )


@header("MulticastForwardingTable", key="multicastforwardingtable", section="IBA 14.2")
class MulticastForwardingTable(Header):
    """Output ports of 32 multicast LIDs, 16 ports at a time.

    Bits 8:0 of the modifier are the block, from LID 0xC000 on; bits 31:28 are the position p.
    """

    port_mask: tuple[int, ...] = array(
        32,
        16,
        "PortMask",
        default=(),
        show=Show.HEX,
        key="multicastforwardingtable.portmask",
        doc="bit k is port 16 x p + k",
    )


@header("SMInfo", key="sminfo", section="IBA 14.2")
class SMInfo(Header):
    """Identity, priority and state of a subnet manager."""

    guid: int = bits(64, "GUID", default=0, show=Show.HEX, wireshark="infiniband.sminfo.guid")
    sm_key: int = bits(64, "SM_Key", default=0, show=Show.HEX, wireshark="infiniband.sminfo.sm_key")
    act_count: int = bits(32, "ActCount", default=0, wireshark="infiniband.sminfo.actcount")
    priority: int = bits(4, "Priority", default=0, wireshark="infiniband.sminfo.priority")
    sm_state: int = bits(
        4, "SMState", default=0, names=SMState, wireshark="infiniband.sminfo.smstate"
    )
