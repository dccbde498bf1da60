"""Offsets of the headers of one captured frame, from the link header to the payload.

`walk` follows Ethernet, 802.1Q and QinQ tags, MPLS, GRE, ERSPAN, VXLAN, IP in IP, IPv4 with
options and IPv6 with extension headers to RoCEv1, RoCEv2, native InfiniBand, MAC control or
other protocols. It never raises; at invalid bytes it stops with a `Fault`.
`ibwire.dissect.frames` does the same for many frames at once.

The end of a packet comes from the innermost length field (IP total length,
IPv6 payload length, GRH PayLen, LRH PktLen), never from the captured length:
Ethernet padding and FCS follow it. The UDP length is compared but not used.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

from ibwire_layers import headers as h
from ibwire_layers import opcodes, outer
from ibwire_layers.errors import Fault
from ibwire_layers.outer import ErfType, EtherType, IPProto, LinkType
from ibwire_layers.schema import Bytes, Header

MAX_STEPS = 20
"""Maximum number of headers before the BTH; a real mirror stack has about eight."""

GRH_NEXT_IBA = 0x1B
"""GRH NxtHdr of an IBA transport packet (IBA 8.3)."""

ERF_ETHERNET = (ErfType.ETH, ErfType.COLOR_ETH, ErfType.DSM_COLOR_ETH, ErfType.COLOR_HASH_ETH)

IPV6_EXTENSIONS = (
    IPProto.HOPOPT, IPProto.ROUTING, IPProto.FRAGMENT, IPProto.DEST_OPTS, IPProto.AH,
)  # fmt: skip


class Protocol(IntEnum):
    """Protocol of a frame, as far as ibwire distinguishes it."""

    OTHER = 0
    ROCEV2 = 1
    ROCEV1 = 2
    IB = 3
    IB_RAW = 4
    IB_LINK = 5
    PAUSE = 6
    PFC = 7
    ARP = 8
    LLDP = 9
    TCP = 10
    UDP = 11
    ICMP = 12
    ICMPV6 = 13
    MAC_CONTROL = 14
    IP = 15
    IP_FRAGMENT = 16

    @property
    def is_rdma(self) -> bool:
        """Whether a BTH follows."""
        return self in (Protocol.ROCEV2, Protocol.ROCEV1, Protocol.IB)


class Layer(NamedTuple):
    """One header of a frame."""

    header: type[Header]
    offset: int
    """Bytes from the start of the frame."""
    size: int
    """Bytes, including options after the described part."""


@dataclass(slots=True)
class Walk:
    """Result of `walk`. Offsets are from the start of the frame."""

    data: Bytes
    layers: list[Layer] = field(default_factory=list)
    protocol: Protocol = Protocol.OTHER
    fault: Fault = Fault.NONE
    start: int = -1
    """First byte that the ICRC can cover: IP header, GRH or LRH."""
    bth: int = -1
    payload: int = -1
    """First byte after the extension headers; -1 for an unknown opcode."""
    end: int = -1
    """End of the packet with its ICRC by its length field; may be beyond the capture."""
    has_icrc: bool = False
    """Whether the packet has room for an ICRC; its bytes may still be cut off."""
    tunnelled: bool = False

    @property
    def payload_end(self) -> int:
        """End of payload and padding."""
        return self.end - h.ICRC_SIZE if self.has_icrc else self.end

    def offset_of(self, header: type[Header]) -> int:
        """Offset of the innermost header of this type, -1 without one."""
        for layer in reversed(self.layers):
            if layer.header is header:
                return layer.offset
        return -1


def walk(data: Bytes, link_type: int = LinkType.ETHERNET) -> Walk:
    """Find the headers of one frame, as far as it was captured."""
    found = Walk(data)
    step = _LINKS.get(link_type)
    if step is None:
        found.fault = Fault.LINK_TYPE
        return found
    # Each step reads one header and returns the next step, or None at the end.
    position = 0
    for _ in range(MAX_STEPS):
        following = step(found, position)
        if following is None:
            return found
        step, position = following
    found.fault = Fault.NESTING
    return found


_Next = tuple["_Step", int] | None
_Step = Callable[[Walk, int], _Next]


def _enter(found: Walk, header: type[Header], offset: int, size: int | None = None) -> bool:
    """Record a header if it was captured completely; otherwise end the walk."""
    size = header.SIZE if size is None else size
    if offset + size > len(found.data):
        found.fault = Fault.TRUNCATED
        return False
    found.layers.append(Layer(header, offset, size))
    return True


def _u16(found: Walk, offset: int) -> int:
    return found.data[offset] << 8 | found.data[offset + 1]


def _by_ether_type(found: Walk, ether_type: int, offset: int) -> _Next:
    step = _ETHER_TYPES.get(ether_type)
    if step is not None:
        return step, offset
    found.protocol = _PLAIN_ETHER_TYPES.get(ether_type, Protocol.OTHER)
    return None


def _ethernet(found: Walk, offset: int) -> _Next:
    if not _enter(found, outer.Ethernet, offset):
        return None
    return _by_ether_type(found, _u16(found, offset + 12), offset + 14)


def _vlan(found: Walk, offset: int) -> _Next:
    if not _enter(found, outer.VLAN, offset):
        return None
    return _by_ether_type(found, _u16(found, offset + 2), offset + 4)


def _sll(found: Walk, offset: int) -> _Next:
    if not _enter(found, outer.SLL, offset):
        return None
    return _by_ether_type(found, _u16(found, offset + 14), offset + outer.SLL.SIZE)


def _sll2(found: Walk, offset: int) -> _Next:
    if not _enter(found, outer.SLL2, offset):
        return None
    return _by_ether_type(found, _u16(found, offset), offset + outer.SLL2.SIZE)


def _erf(found: Walk, offset: int) -> _Next:
    if len(found.data) < offset + outer.ERF.SIZE:
        found.fault = Fault.TRUNCATED
        return None
    size = outer.ERF.SIZE
    more = found.data[offset + 8] & 0x80
    while more:  # each extension header has 8 bytes; bit 7 of the first byte: another follows
        if len(found.data) < offset + size + 8:
            found.fault = Fault.TRUNCATED
            return None
        more = found.data[offset + size] & 0x80
        size += 8
    kind = found.data[offset + 8] & 0x7F
    if kind in ERF_ETHERNET:
        size += 2  # an offset byte and a pad byte come before the frame
    step = _ERF_TYPES.get(kind)
    if step is None:
        found.fault = Fault.LINK_TYPE
        return None
    found.layers.append(Layer(outer.ERF, offset, size))
    return step, offset + size


def _mpls(found: Walk, offset: int) -> _Next:
    found.tunnelled = True
    if not _enter(found, outer.MPLS, offset):
        return None
    if not found.data[offset + 2] & 1:
        return _mpls, offset + 4
    # The label stack does not identify its payload: an IP version, a pseudowire
    # control word that starts with zeros (RFC 4385), or an Ethernet frame.
    offset += 4
    if offset + 2 > len(found.data):
        found.fault = Fault.TRUNCATED
        return None
    version = found.data[offset] >> 4
    if version == 4:
        return _ipv4, offset
    if version == 6:
        return _ipv6, offset
    return _ethernet, offset if _u16(found, offset) else offset + 4


def _raw_ip(found: Walk, offset: int) -> _Next:
    if offset >= len(found.data):
        found.fault = Fault.TRUNCATED
        return None
    return _ipv6 if found.data[offset] >> 4 == 6 else _ipv4, offset


def _ipv4(found: Walk, offset: int) -> _Next:
    data = found.data
    if offset + outer.IPv4.SIZE > len(data):
        found.fault = Fault.TRUNCATED
        return None
    size = (data[offset] & 0xF) * 4
    if data[offset] >> 4 != 4 or size < outer.IPv4.SIZE:
        found.fault = Fault.VERSION
        return None
    if not _enter(found, outer.IPv4, offset, size):
        return None
    total = _u16(found, offset + 2)
    found.end = offset + total
    found.start = offset
    if total < size:
        found.fault = Fault.LENGTH
        return None
    fragment = _u16(found, offset + 6)
    if fragment & 0x3FFF:
        found.fault = Fault.FRAGMENT
        if fragment & 0x1FFF:
            found.protocol = Protocol.IP_FRAGMENT
            return None
    return _by_ip_protocol(found, data[offset + 9], offset + size)


def _ipv6(found: Walk, offset: int) -> _Next:
    data = found.data
    if offset + outer.IPv6.SIZE > len(data):
        found.fault = Fault.TRUNCATED
        return None
    if data[offset] >> 4 != 6:
        found.fault = Fault.VERSION
        return None
    found.end = offset + outer.IPv6.SIZE + _u16(found, offset + 4)
    found.start = offset
    following, size = data[offset + 6], outer.IPv6.SIZE
    for _ in range(MAX_STEPS):
        if following not in IPV6_EXTENSIONS:
            break
        if offset + size + 8 > len(data):
            found.layers.append(Layer(outer.IPv6, offset, outer.IPv6.SIZE))
            found.fault = Fault.TRUNCATED
            return None
        if following == IPProto.FRAGMENT:
            fragment = _u16(found, offset + size + 2)
            if fragment & 0xFFF9:
                found.fault = Fault.FRAGMENT
            following, size = data[offset + size], size + 8
            if fragment & 0xFFF8:
                found.protocol = Protocol.IP_FRAGMENT
                found.layers.append(Layer(outer.IPv6, offset, size))
                return None
        else:
            units = data[offset + size + 1]
            step = (units + 2) * 4 if following == IPProto.AH else (units + 1) * 8
            following, size = data[offset + size], size + step
    if following in IPV6_EXTENSIONS:
        found.layers.append(Layer(outer.IPv6, offset, outer.IPv6.SIZE))
        found.fault = Fault.NESTING
        return None
    if not _enter(found, outer.IPv6, offset, size):
        found.layers.append(Layer(outer.IPv6, offset, outer.IPv6.SIZE))
        return None
    if offset + size > found.end:
        found.fault = Fault.LENGTH
        return None
    return _by_ip_protocol(found, following, offset + size)


def _by_ip_protocol(found: Walk, protocol: int, offset: int) -> _Next:
    step = _IP_PROTOCOLS.get(protocol)
    if step is not None:
        return step, offset
    found.protocol = _PLAIN_IP_PROTOCOLS.get(protocol, Protocol.IP)
    return None


def _udp(found: Walk, offset: int) -> _Next:
    found.protocol = Protocol.UDP
    if not _enter(found, outer.UDP, offset):
        return None
    source, port = _u16(found, offset), _u16(found, offset + 2)
    offset += outer.UDP.SIZE
    if port == outer.VXLAN_PORT:
        return _vxlan, offset
    if not outer.is_rocev2(source, port):
        return None
    found.protocol = Protocol.ROCEV2
    if found.fault is Fault.NONE and _u16(found, offset - 4) != found.end - offset + 8:
        found.fault = Fault.UDP_LENGTH
    return _bth, offset


def _gre(found: Walk, offset: int) -> _Next:
    found.tunnelled = True
    if offset + outer.GRE.SIZE > len(found.data):
        found.fault = Fault.TRUNCATED
        return None
    flags, protocol = _u16(found, offset), _u16(found, offset + 2)
    size = outer.GRE.SIZE + 4 * (flags >> 15) + 4 * (flags >> 13 & 1) + 4 * (flags >> 12 & 1)
    if not _enter(found, outer.GRE, offset, size):
        return None
    if flags & 0x4007:  # routing present, or a version other than 0
        found.fault = Fault.NEXT_HEADER
        return None
    offset += size
    if protocol == EtherType.ERSPAN_II:
        # Type I has neither a sequence number nor an ERSPAN header.
        return _erspan2 if flags & 0x1000 else _ethernet, offset
    if protocol == EtherType.ERSPAN_III:
        return _erspan3, offset
    if protocol == EtherType.GRE_TEB:
        return _ethernet, offset
    return _by_ether_type(found, protocol, offset)


def _erspan2(found: Walk, offset: int) -> _Next:
    if not _enter(found, outer.ERSPAN2, offset):
        return None
    return _ethernet, offset + outer.ERSPAN2.SIZE


def _erspan3(found: Walk, offset: int) -> _Next:
    if offset + outer.ERSPAN3.SIZE > len(found.data):
        found.fault = Fault.TRUNCATED
        return None
    size = outer.ERSPAN3.SIZE + 8 * (found.data[offset + 11] & 1)
    if not _enter(found, outer.ERSPAN3, offset, size):
        return None
    return _ethernet, offset + size


def _vxlan(found: Walk, offset: int) -> _Next:
    found.tunnelled = True
    if not _enter(found, outer.VXLAN, offset):
        return None
    return _ethernet, offset + outer.VXLAN.SIZE


def _tunnelled_ipv4(found: Walk, offset: int) -> _Next:
    found.tunnelled = True
    return _ipv4, offset


def _tunnelled_ipv6(found: Walk, offset: int) -> _Next:
    found.tunnelled = True
    return _ipv6, offset


def _mac_control(found: Walk, offset: int) -> _Next:
    found.protocol = Protocol.MAC_CONTROL
    if offset + 2 > len(found.data):
        found.fault = Fault.TRUNCATED
        return None
    header, protocol = {
        0x0001: (outer.Pause, Protocol.PAUSE),
        0x0101: (outer.PFC, Protocol.PFC),
    }.get(_u16(found, offset), (None, Protocol.MAC_CONTROL))
    if header is not None and _enter(found, header, offset):
        found.protocol = protocol
    return None


def _roce(found: Walk, offset: int) -> _Next:
    found.start = offset
    return _grh(found, offset, Protocol.ROCEV1)


def _grh(found: Walk, offset: int, protocol: Protocol) -> _Next:
    if not _enter(found, h.GRH, offset):
        return None
    if found.data[offset] >> 4 != 6:
        found.fault = Fault.VERSION
        return None
    if found.data[offset + 6] != GRH_NEXT_IBA:
        found.fault = Fault.NEXT_HEADER
        return None
    found.protocol = protocol
    if protocol is Protocol.ROCEV1:
        found.end = offset + h.GRH.SIZE + _u16(found, offset + 4)
    return _bth, offset + h.GRH.SIZE


def _lrh(found: Walk, offset: int) -> _Next:
    if not _enter(found, h.LRH, offset):
        return None
    found.start = offset
    found.end = offset + (_u16(found, offset + 4) & 0x7FF) * 4
    next_header = found.data[offset + 1] & 3
    offset += h.LRH.SIZE
    if next_header == 3:
        found.start = offset
        return _ib_grh, offset
    if next_header == 2:
        found.protocol = Protocol.IB
        return _bth, offset
    found.protocol = Protocol.IB_RAW
    _enter(found, h.RWH if next_header == 0 else outer.IPv6, offset)
    return None


def _ib_grh(found: Walk, offset: int) -> _Next:
    return _grh(found, offset, Protocol.IB)


def _flow_control(found: Walk, offset: int) -> _Next:
    if _enter(found, h.FlowControl, offset):
        found.protocol = Protocol.IB_LINK
    return None


def _bth(found: Walk, offset: int) -> _Next:
    fragmented = found.fault is Fault.FRAGMENT
    found.has_icrc = not fragmented and found.end - offset >= h.BTH.SIZE + h.ICRC_SIZE
    if offset + h.BTH.SIZE > found.end:
        found.fault = Fault.LENGTH
        return None
    if not _enter(found, h.BTH, offset):
        return None
    found.bth = offset
    info = opcodes.INFO.get(found.data[offset])
    if info is None:
        found.fault = Fault.OPCODE
        return None
    room = min(found.payload_end, len(found.data))
    position = offset + h.BTH.SIZE
    for header in info.headers:
        if position + header.SIZE > room:
            break
        found.layers.append(Layer(header, position, header.SIZE))
        position += header.SIZE
    if offset + info.header_size > found.payload_end:
        found.fault = Fault.LENGTH
    elif offset + info.header_size > len(found.data):
        found.fault = Fault.TRUNCATED
    else:
        found.payload = position
        if not found.has_icrc and not fragmented:
            found.fault = Fault.LENGTH
        elif (found.data[offset + 1] >> 4 & 3) > found.payload_end - position:
            found.fault = Fault.PAD_COUNT
    return None


_LINKS: dict[int, _Step] = {
    LinkType.ETHERNET: _ethernet,
    LinkType.RAW_OLD: _raw_ip,
    LinkType.RAW_OPENBSD: _raw_ip,
    LinkType.RAW_IP: _raw_ip,
    LinkType.IPV4: _ipv4,
    LinkType.IPV6: _ipv6,
    LinkType.LINUX_SLL: _sll,
    LinkType.LINUX_SLL2: _sll2,
    LinkType.ERF: _erf,
    LinkType.INFINIBAND: _lrh,
}

_ERF_TYPES: dict[int, _Step] = {
    **dict.fromkeys(ERF_ETHERNET, _ethernet),
    ErfType.INFINIBAND: _lrh,
    ErfType.INFINIBAND_LINK: _flow_control,
}

_ETHER_TYPES: dict[int, _Step] = {
    EtherType.IPV4: _ipv4,
    EtherType.IPV6: _ipv6,
    EtherType.VLAN: _vlan,
    EtherType.QINQ: _vlan,
    EtherType.QINQ_OLD: _vlan,
    EtherType.MPLS: _mpls,
    EtherType.MPLS_MULTICAST: _mpls,
    EtherType.MAC_CONTROL: _mac_control,
    EtherType.ROCE: _roce,
}

_PLAIN_ETHER_TYPES: dict[int, Protocol] = {
    EtherType.ARP: Protocol.ARP,
    EtherType.LLDP: Protocol.LLDP,
}

_IP_PROTOCOLS: dict[int, _Step] = {
    IPProto.UDP: _udp,
    IPProto.GRE: _gre,
    IPProto.IPIP: _tunnelled_ipv4,
    IPProto.IPV6: _tunnelled_ipv6,
}

_PLAIN_IP_PROTOCOLS: dict[int, Protocol] = {
    IPProto.TCP: Protocol.TCP,
    IPProto.ICMP: Protocol.ICMP,
    IPProto.ICMPV6: Protocol.ICMPV6,
}
