"""Where headers are, by hand: what each hand-made frame holds and why a walk stops."""

from __future__ import annotations

from hypothesis import given, settings

import strategies
from each_case import each_case
from examples import sampled, scaled
from ibwire_layers import headers as h
from ibwire_layers import outer
from ibwire_layers.errors import Fault
from ibwire_layers.outer import LinkType
from ibwire_layers.walk import Protocol, walk
from strategies import HANDMADE, Frame

FRAMES = {frame.name: frame for frame in HANDMADE}

# Name -> headers in the order of the frame, written out.
STACKS = {
    "vxlan": "Ethernet IPv4 UDP VXLAN Ethernet IPv4 UDP BTH RETH ImmDt",
    "vxlan rocev1": "Ethernet IPv4 UDP VXLAN Ethernet GRH BTH RETH ImmDt",
    "erspan i": "Ethernet IPv4 GRE Ethernet IPv4 UDP BTH RETH ImmDt",
    "erspan ii vlan": "Ethernet IPv4 GRE ERSPAN2 Ethernet VLAN IPv4 UDP BTH RETH ImmDt",
    "erspan iii o": "Ethernet IPv4 GRE ERSPAN3 Ethernet IPv4 UDP BTH RETH ImmDt",
    "ipv6 in ip": "Ethernet IPv4 IPv6 UDP BTH RETH ImmDt",
    "mpls ipv6": "Ethernet MPLS MPLS IPv6 UDP BTH RETH ImmDt",
    "mpls pseudowire": "Ethernet MPLS MPLS Ethernet IPv4 UDP BTH RETH ImmDt",
    "mpls control word": "Ethernet MPLS Ethernet IPv4 UDP BTH RETH ImmDt",
    "triple": "Ethernet VLAN VLAN VLAN IPv4 UDP BTH RETH ImmDt",
    "cooked 2 vlan": "SLL2 VLAN IPv4 UDP BTH RETH ImmDt",
    "erf global +3": "ERF LRH GRH BTH RETH ImmDt",
    "erf 2 +1": "ERF Ethernet IPv4 UDP BTH RETH ImmDt",
    "ib raw ethertype": "LRH RWH",
    "ib raw ipv6": "LRH IPv6",
    "erf link": "ERF FlowControl",
    "pfc": "Ethernet PFC",
    "pause": "Ethernet Pause",
    "arp": "Ethernet",
}


@each_case("name", STACKS)
def test_headers_of_a_frame_in_order(name: str) -> None:
    found = walk(FRAMES[name].data, FRAMES[name].link_type)

    assert [layer.header.__name__ for layer in found.layers] == STACKS[name].split()
    assert found.fault is Fault.NONE


FAULTS = {
    "ipv4 first fragment": (Fault.FRAGMENT, Protocol.ROCEV2),
    "ipv4 later fragment": (Fault.FRAGMENT, Protocol.IP_FRAGMENT),
    "ipv4 last fragment": (Fault.FRAGMENT, Protocol.IP_FRAGMENT),
    "ipv6 first fragment": (Fault.FRAGMENT, Protocol.ROCEV2),
    "ipv6 later fragment": (Fault.FRAGMENT, Protocol.IP_FRAGMENT),
    "ipv6 atomic fragment": (Fault.NONE, Protocol.ROCEV2),
    "ipv4 length below header": (Fault.LENGTH, Protocol.OTHER),
    "ipv4 length below bth": (Fault.LENGTH, Protocol.ROCEV2),
    "ipv4 no room for icrc": (Fault.LENGTH, Protocol.ROCEV2),
    "ipv4 version 5": (Fault.VERSION, Protocol.OTHER),
    "ipv4 ihl 4": (Fault.VERSION, Protocol.OTHER),
    "ipv6 version 4": (Fault.VERSION, Protocol.OTHER),
    "ipv4 gre routing": (Fault.NEXT_HEADER, Protocol.OTHER),
    "ipv4 gre version 1": (Fault.NEXT_HEADER, Protocol.OTHER),
    "udp length": (Fault.UDP_LENGTH, Protocol.ROCEV2),
    "ipv6 endless extensions": (Fault.NESTING, Protocol.OTHER),
    "ipv6 twenty extensions": (Fault.NONE, Protocol.ROCEV2),
    "ipv6 extension beyond the packet": (Fault.LENGTH, Protocol.OTHER),
    "nested beyond reason": (Fault.NESTING, Protocol.OTHER),
    "ip in ip beyond reason": (Fault.NESTING, Protocol.OTHER),
    "pad count of three without payload": (Fault.PAD_COUNT, Protocol.ROCEV2),
    "rocev2 unknown opcode": (Fault.OPCODE, Protocol.ROCEV2),
    "ib wrong next header": (Fault.NEXT_HEADER, Protocol.OTHER),
    "ib wrong grh version": (Fault.VERSION, Protocol.OTHER),
    "ib length zero": (Fault.LENGTH, Protocol.IB),
    "erf unknown": (Fault.LINK_TYPE, Protocol.OTHER),
    "unknown link type": (Fault.LINK_TYPE, Protocol.OTHER),
    "vxlan of unknown": (Fault.NONE, Protocol.OTHER),
    "vxlan of arp": (Fault.NONE, Protocol.ARP),
    "lldp": (Fault.NONE, Protocol.LLDP),
    "ipv4 tcp": (Fault.NONE, Protocol.TCP),
    "ipv4 other port": (Fault.NONE, Protocol.UDP),
    "ipv4 swapped ports": (Fault.NONE, Protocol.ROCEV2),
    "ipv4 swapped low ports": (Fault.NONE, Protocol.ROCEV2),
    "ipv4 dns from 4791": (Fault.NONE, Protocol.UDP),
    "ipv6 icmp": (Fault.NONE, Protocol.ICMPV6),
    "ipv6 no next": (Fault.NONE, Protocol.IP),
    "mac control": (Fault.NONE, Protocol.MAC_CONTROL),
    "ib raw ethertype": (Fault.NONE, Protocol.IB_RAW),
}


@each_case("name", FAULTS)
def test_fault_and_protocol_of_a_frame(name: str) -> None:
    found = walk(FRAMES[name].data, FRAMES[name].link_type)

    assert (found.fault, found.protocol) == FAULTS[name]


def test_packet_ends_at_its_length_field() -> None:
    frame = FRAMES["rocev2 with trailer"].data

    found = walk(frame)

    assert found.end == len(frame) - 8
    assert found.payload_end == found.end - 4
    assert found.start == 14


def test_an_ip_length_shorter_than_its_header_ends_the_walk() -> None:
    found = walk(FRAMES["ipv4 length zero"].data)

    assert found.fault is Fault.LENGTH
    assert found.bth == -1


def test_offset_of_is_the_innermost() -> None:
    found = walk(FRAMES["vxlan"].data)

    assert found.offset_of(outer.Ethernet) == 50
    assert found.offset_of(outer.IPv4) == 64
    assert found.offset_of(h.GRH) == -1


@each_case("frame", sampled(HANDMADE, 4), ids=str)
def test_cut_frame_has_the_first_headers_of_the_whole_one(frame: Frame) -> None:
    """The cut frame has the headers of the whole frame up to the cut, with another fault."""
    whole = walk(frame.data, frame.link_type)

    for length in range(len(frame.data)):
        cut = walk(frame.data[:length], frame.link_type)
        known = [layer.header for layer in whole.layers]
        assert [layer.header for layer in cut.layers] == known[: len(cut.layers)]
        assert all(layer.offset + layer.header.SIZE <= length for layer in cut.layers)
        if cut.bth >= 0:
            assert (cut.bth, cut.start, cut.end) == (whole.bth, whole.start, whole.end)


@settings(max_examples=scaled(300), deadline=None)
@given(strategies.damaged() | strategies.random_frames)
def test_any_bytes_are_walked(frame: Frame) -> None:
    found = walk(frame.data, frame.link_type)

    for layer in found.layers:
        assert layer.offset + layer.header.SIZE <= len(frame.data)
        layer.header.unpack(frame.data, layer.offset)
    assert len(found.layers) <= 20 + 3
    if found.payload >= 0:
        assert 0 <= found.start < found.bth < found.payload <= found.payload_end


def test_every_link_type_is_walked_or_refused() -> None:
    for link_type in LinkType:
        assert walk(bytes(100), link_type).fault is not Fault.LINK_TYPE or link_type == 197
    assert walk(bytes(100), 147).fault is Fault.LINK_TYPE
