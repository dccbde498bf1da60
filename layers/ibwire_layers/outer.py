"""Headers around the InfiniBand headers: Ethernet, tags, IP, UDP, tunnels, MAC control.

Also the link types of captures and the pseudo-headers that some of them put
first. Sections name the RFC or IEEE standard of the layout.
"""

from __future__ import annotations

from enum import IntEnum

from ibwire_layers.schema import Header, Show, array, bits, header, octets

ROCEV2_PORT = 4791
"""UDP destination port of RoCEv2, both directions (IANA; IBA annex A17)."""

VXLAN_PORT = 4789
"""UDP destination port of VXLAN (RFC 7348)."""

# fmt: off
LOWER_UDP_PORTS = frozenset((
    0, 7, 13, 19, 37, 49, 53, 67, 68, 69, 88, 111, 123, 137, 138, 161, 162, 173, 177, 213, 269,
    319, 320, 389, 427, 434, 464, 473, 496, 500, 502, 513, 514, 520, 521, 524, 525, 539, 546, 547,
    573, 623, 631, 646, 654, 664, 698, 699, 701, 750, 853, 854, 910, 921, 925, 1001, 1044, 1052,
    1069, 1089, 1090, 1091, 1101, 1113, 1153, 1194, 1293, 1547, 1628, 1629, 1645, 1646, 1700,
    1701, 1718, 1719, 1745, 1755, 1812, 1813, 1900, 1985, 2029, 2048, 2055, 2067, 2099, 2123,
    2152, 2157, 2190, 2221, 2222, 2231, 2246, 2268, 2269, 2313, 2345, 2424, 2427, 2428, 2727,
    2887, 2944, 2945, 2948, 2949, 2960, 3000, 3121, 3130, 3205, 3222, 3250, 3333, 3343, 3357,
    3386, 3389, 3452, 3455, 3478, 3483, 3503, 3540, 3544, 3567, 3622, 3671, 3784, 3785, 3792,
    3799, 3804, 3819, 3863, 3956, 4000, 4011, 4058, 4305, 4306, 4307, 4341, 4342, 4500, 4533,
    4534, 4551, 4555, 4556, 4569, 4665, 4672, 4713, 4729, 4739, 4754, 4784, 4789, 4790,
))
# fmt: on
"""UDP ports below 4791 of other protocols: those that tshark 4.0 knows (`tshark -G decodes`)."""

MAC_CONTROL_ADDRESS = 0x0180C2000001
"""Destination of pause and PFC frames (IEEE 802.3 31B.1, 802.1Q 36)."""


def is_rocev2(src_port: int, dst_port: int) -> bool:
    """Whether UDP ports are those of RoCEv2.

    Some senders swap the ports in answers. A datagram from port 4791 is RoCEv2 too, unless its
    destination is a lower port that another protocol has; tshark decides in the same way.
    """
    if dst_port == ROCEV2_PORT:
        return True
    return src_port == ROCEV2_PORT and dst_port not in LOWER_UDP_PORTS


class EtherType(IntEnum):
    """EtherTypes that lead to RDMA or have a name in listings."""

    IPV4 = 0x0800
    ARP = 0x0806
    GRE_TEB = 0x6558
    VLAN = 0x8100
    IPV6 = 0x86DD
    MAC_CONTROL = 0x8808
    MPLS = 0x8847
    MPLS_MULTICAST = 0x8848
    QINQ = 0x88A8
    ERSPAN_II = 0x88BE
    LLDP = 0x88CC
    ROCE = 0x8915
    QINQ_OLD = 0x9100
    ERSPAN_III = 0x22EB


class IPProto(IntEnum):
    """IP protocol numbers that are parsed or have a name in listings (IANA)."""

    HOPOPT = 0
    ICMP = 1
    IGMP = 2
    IPIP = 4
    TCP = 6
    UDP = 17
    IPV6 = 41
    ROUTING = 43
    FRAGMENT = 44
    GRE = 47
    AH = 51
    ICMPV6 = 58
    NO_NEXT = 59
    DEST_OPTS = 60


class LinkType(IntEnum):
    """LINKTYPE_ values of capture files that are read (tcpdump.org/linktypes)."""

    ETHERNET = 1
    RAW_OLD = 12
    RAW_OPENBSD = 14
    RAW_IP = 101
    LINUX_SLL = 113
    ERF = 197
    IPV4 = 228
    IPV6 = 229
    INFINIBAND = 247
    LINUX_SLL2 = 276


class ErfType(IntEnum):
    """Record types of Endace ERF that are read."""

    ETH = 2
    COLOR_ETH = 11
    DSM_COLOR_ETH = 16
    COLOR_HASH_ETH = 20
    INFINIBAND = 21
    INFINIBAND_LINK = 25


@header("Ethernet", key="eth", section="IEEE 802.3")
class Ethernet(Header):
    """Destination, source, EtherType."""

    dst: int = bits(48, "Destination", default=0, show=Show.MAC, wireshark="eth.dst")
    src: int = bits(48, "Source", default=0, show=Show.MAC, wireshark="eth.src")
    type: int = bits(16, "EtherType", default=0x0800, show=Show.HEX, wireshark="eth.type")


@header("802.1Q tag", key="vlan", section="IEEE 802.1Q")
class VLAN(Header):
    """After the EtherType field, which holds the TPID."""

    pcp: int = bits(3, "PCP", default=0, wireshark="vlan.priority", doc="priority")
    dei: int = bits(1, "DEI", default=0, wireshark="vlan.dei", doc="drop eligible")
    vid: int = bits(12, "VID", default=0, wireshark="vlan.id", doc="VLAN, 0 for priority only")
    type: int = bits(16, "EtherType", default=0x0800, show=Show.HEX, wireshark="vlan.etype")


@header("MPLS label", key="mpls", section="RFC 3032")
class MPLS(Header):
    """One entry of the label stack; the last has S = 1 and names no next header."""

    label: int = bits(20, "Label", default=0, wireshark="mpls.label")
    tc: int = bits(3, "TC", default=0, wireshark="mpls.exp")
    s: int = bits(1, "S", default=1, wireshark="mpls.bottom")
    ttl: int = bits(8, "TTL", default=64, wireshark="mpls.ttl")


@header("MAC control: PAUSE", key="macc", section="IEEE 802.3 annex 31B")
class Pause(Header):
    """Stops the whole port for `pause_time` quanta of 512 bit times; 0 resumes."""

    opcode: int = bits(16, "Opcode", default=0x0001, show=Show.HEX, wireshark="macc.opcode")
    pause_time: int = bits(16, "PauseTime", default=0, wireshark="macc.pause_time")


@header("MAC control: PFC", key="macc", section="IEEE 802.1Q 36")
class PFC(Header):
    """Priority-based flow control: a class is enabled by its bit, bit 0 is class 0.

    An enabled class with time 0 resumes; a class that is not enabled is not spoken of.
    """

    opcode: int = bits(16, "Opcode", default=0x0101, show=Show.HEX, wireshark="macc.opcode")
    class_enable: int = bits(
        16,
        "ClassEnableVector",
        default=0,
        show=Show.HEX,
        wireshark="macc.cbfc.enbv",
        doc="bit n enables class n; the high byte is zero",
    )
    time: tuple[int, ...] = array(
        8, 16, "Time", default=(), key="macc.pfc.time", doc="quanta of 512 bit times by class"
    )


@header("IPv4", key="ip", section="RFC 791")
class IPv4(Header):
    """Without options; IHL counts them in 4-byte words."""

    version: int = bits(4, "Version", default=4, wireshark="ip.version")
    ihl: int = bits(4, "IHL", default=5, key="ip.ihl", doc="header length in 4-byte words")
    dscp: int = bits(6, "DSCP", default=0, wireshark="ip.dsfield.dscp")
    ecn: int = bits(
        2, "ECN", default=0, wireshark="ip.dsfield.ecn", doc="3 = congestion experienced"
    )
    total_length: int = bits(16, "TotalLength", default=0, wireshark="ip.len")
    id: int = bits(16, "Identification", default=0, wireshark="ip.id")
    reserved_flag: int = bits(1, "ReservedFlag", default=0, wireshark="ip.flags.rb")
    df: int = bits(1, "DF", default=1, wireshark="ip.flags.df", doc="do not fragment")
    mf: int = bits(1, "MF", default=0, wireshark="ip.flags.mf", doc="more fragments")
    fragment_offset: int = bits(
        13, "FragmentOffset", default=0, wireshark="ip.frag_offset", doc="in 8-byte units"
    )
    ttl: int = bits(8, "TTL", default=64, wireshark="ip.ttl")
    protocol: int = bits(8, "Protocol", default=17, wireshark="ip.proto")
    checksum: int = bits(16, "HeaderChecksum", default=0, show=Show.HEX, wireshark="ip.checksum")
    src: int = bits(32, "Source", default=0, show=Show.IPV4, wireshark="ip.src")
    dst: int = bits(32, "Destination", default=0, show=Show.IPV4, wireshark="ip.dst")


@header("IPv6", key="ipv6", section="RFC 8200")
class IPv6(Header):
    """The fixed header."""

    version: int = bits(4, "Version", default=6, wireshark="ipv6.version")
    dscp: int = bits(6, "DSCP", default=0, wireshark="ipv6.tclass.dscp")
    ecn: int = bits(
        2, "ECN", default=0, wireshark="ipv6.tclass.ecn", doc="3 = congestion experienced"
    )
    flow_label: int = bits(20, "FlowLabel", default=0, show=Show.HEX, wireshark="ipv6.flow")
    payload_length: int = bits(16, "PayloadLength", default=0, wireshark="ipv6.plen")
    next_header: int = bits(8, "NextHeader", default=17, wireshark="ipv6.nxt")
    hop_limit: int = bits(8, "HopLimit", default=64, wireshark="ipv6.hlim")
    src: int = bits(128, "Source", default=0, show=Show.IPV6, wireshark="ipv6.src")
    dst: int = bits(128, "Destination", default=0, show=Show.IPV6, wireshark="ipv6.dst")


@header("UDP", key="udp", section="RFC 768")
class UDP(Header):
    """RoCEv2 uses destination port 4791 in both directions; the source port is entropy."""

    src_port: int = bits(16, "SourcePort", default=0xC000, wireshark="udp.srcport")
    dst_port: int = bits(16, "DestinationPort", default=ROCEV2_PORT, wireshark="udp.dstport")
    length: int = bits(16, "Length", default=0, wireshark="udp.length")
    checksum: int = bits(16, "Checksum", default=0, show=Show.HEX, wireshark="udp.checksum")


@header("GRE", key="gre", section="RFC 2784, RFC 2890")
class GRE(Header):
    """The fixed part; checksum, key and sequence number follow when their flag is set."""

    c: int = bits(1, "C", default=0, doc="checksum present")
    r: int = bits(1, "R", default=0, doc="routing present (RFC 1701)")
    k: int = bits(1, "K", default=0, doc="key present")
    s: int = bits(1, "S", default=0, doc="sequence number present")
    reserved: int = bits(9, "Reserved0", default=0)
    version: int = bits(3, "Ver", default=0)
    protocol: int = bits(16, "ProtocolType", default=0x88BE, show=Show.HEX, wireshark="gre.proto")


@header("ERSPAN type II", key="erspan2", section="draft-foschiano-erspan")
class ERSPAN2(Header):
    """Follows GRE with protocol 0x88BE and a sequence number; an Ethernet frame follows."""

    version: int = bits(4, "Ver", default=1)
    vlan: int = bits(12, "VLAN", default=0)
    cos: int = bits(3, "COS", default=0)
    encap: int = bits(2, "En", default=0)
    truncated: int = bits(1, "T", default=0)
    session_id: int = bits(10, "SessionID", default=0)
    reserved: int = bits(12, "Reserved", default=0)
    index: int = bits(20, "Index", default=0)


@header("ERSPAN type III", key="erspan3", section="draft-foschiano-erspan")
class ERSPAN3(Header):
    """Follows GRE with protocol 0x22EB; O = 1 adds 8 bytes before the frame."""

    version: int = bits(4, "Ver", default=2)
    vlan: int = bits(12, "VLAN", default=0)
    cos: int = bits(3, "COS", default=0)
    bso: int = bits(2, "BSO", default=0)
    truncated: int = bits(1, "T", default=0)
    session_id: int = bits(10, "SessionID", default=0)
    timestamp: int = bits(32, "Timestamp", default=0)
    sgt: int = bits(16, "SGT", default=0)
    p: int = bits(1, "P", default=0)
    frame_type: int = bits(5, "FT", default=0)
    hw_id: int = bits(6, "HwID", default=0)
    direction: int = bits(1, "D", default=0)
    granularity: int = bits(2, "Gra", default=0)
    o: int = bits(1, "O", default=0, doc="platform-specific subheader of 8 bytes follows")


@header("VXLAN", key="vxlan", section="RFC 7348")
class VXLAN(Header):
    """Follows UDP to port 4789; an Ethernet frame follows."""

    flags: int = bits(8, "Flags", default=0x08, show=Show.HEX)
    reserved1: int = bits(24, "Reserved", default=0)
    vni: int = bits(24, "VNI", default=0, wireshark="vxlan.vni")
    reserved2: int = bits(8, "Reserved", default=0)


@header("Linux cooked capture v1", key="sll", section="LINKTYPE_LINUX_SLL")
class SLL(Header):
    """Takes the place of Ethernet when a capture is made on the `any` device."""

    packet_type: int = bits(16, "PacketType", default=0)
    hardware_type: int = bits(16, "ARPHRD", default=1)
    address_length: int = bits(16, "AddressLength", default=6)
    address: bytes = octets(8, "Address", default=b"")
    protocol: int = bits(16, "Protocol", default=0x0800, show=Show.HEX)


@header("Linux cooked capture v2", key="sll2", section="LINKTYPE_LINUX_SLL2")
class SLL2(Header):
    """As version 1, with the interface index."""

    protocol: int = bits(16, "Protocol", default=0x0800, show=Show.HEX)
    reserved: int = bits(16, "Reserved", default=0)
    interface_index: int = bits(32, "InterfaceIndex", default=0)
    hardware_type: int = bits(16, "ARPHRD", default=1)
    packet_type: int = bits(8, "PacketType", default=0)
    address_length: int = bits(8, "AddressLength", default=6)
    address: bytes = octets(8, "Address", default=b"")


@header("Extensible Record Format", key="erf", section="Endace ERF")
class ERF(Header):
    """Precedes each packet of LINKTYPE_ERF; the timestamp is little-endian 32.32 seconds."""

    timestamp: bytes = octets(8, "Timestamp", default=b"")
    more: int = bits(1, "ExtensionHeader", default=0, doc="8-byte extension headers follow")
    type: int = bits(7, "Type", default=21)
    flags: int = bits(8, "Flags", default=0, show=Show.HEX)
    record_length: int = bits(16, "RecordLength", default=0)
    loss: int = bits(16, "LossCounter", default=0)
    wire_length: int = bits(16, "WireLength", default=0)
