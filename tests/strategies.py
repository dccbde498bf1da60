"""Frames to read: hand-made ones of every kind by name, and random ones for laws.

A builder puts one header before what it is given, with right lengths, so
that `ethernet(ipv4(udp(...)))` reads from the outside in.
"""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Address
from typing import Any

from hypothesis import strategies as st

from ibwire_layers import crc, opcodes, outer
from ibwire_layers import headers as h
from ibwire_layers.outer import ErfType, EtherType, IPProto, LinkType
from ibwire_layers.packet import IBRoute, Packet, RoCEv1Route, RoCEv2Route, Route
from ibwire_layers.schema import Header

SOURCE, DESTINATION = 0x0A000001, 0x0A000002
"""IPv4 addresses of what is carried, 10.0.0.1 and 10.0.0.2; tunnels have 192.0.2.x."""

SOURCE6, DESTINATION6 = 0x20010DB8 << 96 | 1, 0x20010DB8 << 96 | 2

TUNNEL_SOURCE, TUNNEL_DESTINATION = 0xC0000201, 0xC0000202

DEST_QP, PSN = 0x1234, 0x0A0B0C
"""Of every packet that `packet` makes."""

_FILLING = bytes(range(1, 251))


@dataclass(frozen=True, slots=True)
class Frame:
    """One captured frame."""

    name: str
    data: bytes
    link_type: int = LinkType.ETHERNET
    wire_len: int | None = None
    """`None` when it was captured whole."""

    def cut(self, length: int) -> Frame:
        """The same frame as a capture with this snap length shows it."""
        return Frame(f"{self.name}[:{length}]", self.data[:length], self.link_type, len(self.data))

    def __str__(self) -> str:
        return self.name


# What surrounds a packet.


def ethernet(data: bytes, ether_type: int = EtherType.IPV4, *, dst: int = 0x020000000002) -> bytes:
    return outer.Ethernet(dst=dst, src=0x020000000001, type=ether_type).pack() + data


def vlan(data: bytes, ether_type: int = EtherType.IPV4, vid: int = 100) -> bytes:
    return outer.VLAN(pcp=3, vid=vid, type=ether_type).pack() + data


def mpls(data: bytes, *labels: int) -> bytes:
    last = len(labels) - 1
    stack = [outer.MPLS(label=label, s=int(i == last)).pack() for i, label in enumerate(labels)]
    return b"".join(stack) + data


def ipv4(
    data: bytes,
    protocol: int = IPProto.UDP,
    *,
    src: int = SOURCE,
    dst: int = DESTINATION,
    options: bytes = b"",
    mf: int = 0,
    fragment_offset: int = 0,
    total_length: int | None = None,
) -> bytes:
    size = outer.IPv4.SIZE + len(options)
    fixed = outer.IPv4(
        ihl=size // 4,
        total_length=size + len(data) if total_length is None else total_length,
        df=0,
        mf=mf,
        fragment_offset=fragment_offset,
        protocol=protocol,
        src=src,
        dst=dst,
    )
    return fixed.pack() + options + data


def ipv6(data: bytes, next_header: int = IPProto.UDP, extensions: bytes = b"") -> bytes:
    """extensions: headers that follow, of which `next_header` names the first."""
    fixed = outer.IPv6(
        payload_length=len(extensions) + len(data),
        next_header=next_header,
        src=SOURCE6,
        dst=DESTINATION6,
    )
    return fixed.pack() + extensions + data


def udp(data: bytes, port: int = outer.ROCEV2_PORT, *, source: int = 0xC000) -> bytes:
    size = outer.UDP.SIZE + len(data)
    return outer.UDP(src_port=source, dst_port=port, length=size).pack() + data


def gre(data: bytes, protocol: int, *, c: int = 0, k: int = 0, s: int = 0, r: int = 0) -> bytes:
    words = b"".join(bytes([0xE0 + i] * 4) for i in range(c + k + s))
    return outer.GRE(c=c, k=k, s=s, r=r, protocol=protocol).pack() + words + data


def tunnel(data: bytes, protocol: int) -> bytes:
    """An outer Ethernet and IPv4."""
    return ethernet(ipv4(data, protocol, src=TUNNEL_SOURCE, dst=TUNNEL_DESTINATION))


def vxlan(data: bytes) -> bytes:
    return tunnel(udp(outer.VXLAN(vni=77).pack() + data, outer.VXLAN_PORT), IPProto.UDP)


def erspan2(data: bytes) -> bytes:
    header = outer.ERSPAN2(vlan=5, session_id=9).pack()
    return tunnel(gre(header + data, EtherType.ERSPAN_II, s=1), IPProto.GRE)


def erspan3(data: bytes, *, o: int = 0) -> bytes:
    header = outer.ERSPAN3(vlan=5, session_id=9, o=o).pack() + bytes(8 * o)
    return tunnel(gre(header + data, EtherType.ERSPAN_III, s=1), IPProto.GRE)


def cooked(data: bytes, protocol: int = EtherType.IPV4) -> bytes:
    return outer.SLL(protocol=protocol).pack() + data


def cooked2(data: bytes, protocol: int = EtherType.IPV4) -> bytes:
    return outer.SLL2(protocol=protocol, interface_index=3).pack() + data


def erf(data: bytes, kind: int, extensions: int = 0) -> bytes:
    head = outer.ERF(more=int(extensions > 0), type=kind, wire_length=len(data)).pack()
    for left in range(extensions - 1, -1, -1):
        head += bytes([0x80 if left else 0]) + bytes(7)
    return head + (bytes(2) if kind not in (ErfType.INFINIBAND, 25) else b"") + data


# What is carried.


def extensions_of(opcode: int) -> tuple[Header, ...]:
    """The extension headers that an opcode demands, filled with different bytes."""
    info = opcodes.INFO.get(opcode)
    return tuple(
        kind.unpack(_FILLING, 7 * i) for i, kind in enumerate(info.headers if info else ())
    )


def packet(
    route: Route,
    opcode: int = opcodes.OpCode.RC_RDMA_WRITE_ONLY_WITH_IMMEDIATE,
    payload: bytes = b"payload",
) -> bytes:
    """A right packet with this route."""
    bth = h.BTH(opcode=opcode, dest_qp=DEST_QP, psn=PSN, ack_req=1)
    return Packet(route, bth, extensions_of(opcode), payload).repaired().build()


ROUTE4 = RoCEv2Route(
    outer.IPv4(src=SOURCE, dst=DESTINATION), outer.UDP(), outer.Ethernet(dst=2, src=1)
)
ROUTE6 = RoCEv2Route(
    outer.IPv6(src=SOURCE6, dst=DESTINATION6),
    outer.UDP(),
    outer.Ethernet(dst=2, src=1, type=EtherType.IPV6),
)
ROUTE1 = RoCEv1Route(
    h.GRH(sgid=SOURCE6, dgid=DESTINATION6), outer.Ethernet(dst=2, src=1, type=EtherType.ROCE)
)
ROUTE_LOCAL = IBRoute(h.LRH(vl=2, sl=1, dlid=3, slid=4))
ROUTE_GLOBAL = IBRoute(h.LRH(dlid=3, slid=4), h.GRH(sgid=SOURCE6, dgid=DESTINATION6))

_INNER4 = packet(ROUTE4)
_INNER6 = packet(ROUTE6)
_INNER1 = packet(ROUTE1)
_IP4, _IP6, _GRH = (data[outer.Ethernet.SIZE :] for data in (_INNER4, _INNER6, _INNER1))
_UDP = _IP4[outer.IPv4.SIZE :]
_LOCAL = packet(ROUTE_LOCAL)
_GLOBAL = packet(ROUTE_GLOBAL)


_ADAPTERS = bytes.fromhex("0002c9000002248a07000001")
"""MAC addresses of a known vendor, by which tshark distinguishes them from a control word."""


def tunnelled() -> list[Frame]:
    """RoCEv2 and RoCEv1 inside every tunnel that is followed."""
    made = {
        "vxlan": vxlan(_INNER4),
        "vxlan ipv6": vxlan(_INNER6),
        "vxlan rocev1": vxlan(_INNER1),
        "vxlan vlan": vxlan(ethernet(vlan(_IP4), EtherType.VLAN)),
        "vlan vxlan": ethernet(vlan(vxlan(_INNER4)[14:]), EtherType.VLAN),
        "qinq vxlan": ethernet(
            vlan(vlan(vxlan(_INNER4)[14:]), EtherType.VLAN, 200), EtherType.QINQ
        ),
        "qinq vxlan vlan": ethernet(
            vlan(
                vlan(vxlan(ethernet(vlan(_IP4, vid=7), EtherType.VLAN))[14:]), EtherType.VLAN, 200
            ),
            EtherType.QINQ,
        ),
        "vxlan in vxlan": vxlan(vxlan(_INNER4)),
        "erspan i": tunnel(gre(_INNER4, EtherType.ERSPAN_II), IPProto.GRE),
        "erspan ii": erspan2(_INNER4),
        "erspan ii vlan": erspan2(ethernet(vlan(_IP4), EtherType.VLAN)),
        "erspan iii": erspan3(_INNER4),
        "erspan iii o": erspan3(_INNER4, o=1),
        "ip in ip": tunnel(_IP4, IPProto.IPIP),
        "ipv6 in ip": tunnel(_IP6, IPProto.IPV6),
        "ip in ipv6": ethernet(ipv6(_IP4, IPProto.IPIP), EtherType.IPV6),
        "ipv6 in ipv6": ethernet(ipv6(_IP6, IPProto.IPV6), EtherType.IPV6),
        "mpls ipv4": ethernet(mpls(_IP4, 16), EtherType.MPLS),
        "mpls ipv6": ethernet(mpls(_IP6, 16, 17), EtherType.MPLS),
        "mpls multicast": ethernet(mpls(_IP4, 16), EtherType.MPLS_MULTICAST),
        "mpls pseudowire": ethernet(mpls(_ADAPTERS + _INNER4[12:], 16, 17), EtherType.MPLS),
        "mpls control word": ethernet(
            mpls(bytes(4) + _ADAPTERS + _INNER4[12:], 16), EtherType.MPLS
        ),
    }
    for flags in range(8):
        c, k, s = flags >> 2, flags >> 1 & 1, flags & 1
        made[f"gre ipv4 c{c}k{k}s{s}"] = tunnel(
            gre(_IP4, EtherType.IPV4, c=c, k=k, s=s), IPProto.GRE
        )
        made[f"gre teb c{c}k{k}s{s}"] = tunnel(
            gre(_INNER4, EtherType.GRE_TEB, c=c, k=k, s=s), IPProto.GRE
        )
    made["gre ipv6"] = tunnel(gre(_IP6, EtherType.IPV6), IPProto.GRE)
    made["gre rocev1"] = tunnel(gre(_GRH, EtherType.ROCE), IPProto.GRE)
    made["gre vlan"] = ethernet(
        vlan(ipv4(gre(vlan(_IP4, vid=7), EtherType.VLAN), IPProto.GRE)), EtherType.VLAN
    )
    return [Frame(name, data) for name, data in made.items()]


def tagged() -> list[Frame]:
    """802.1Q and its doublings."""
    made = {
        "vlan": ethernet(vlan(_IP4), EtherType.VLAN),
        "qinq": ethernet(vlan(vlan(_IP4), EtherType.VLAN, 200), EtherType.QINQ),
        "qinq 9100": ethernet(vlan(vlan(_IP4), EtherType.VLAN, 200), EtherType.QINQ_OLD),
        "double 8100": ethernet(vlan(vlan(_IP4), EtherType.VLAN, 200), EtherType.VLAN),
        "triple": ethernet(
            vlan(vlan(vlan(_IP4), EtherType.VLAN, 200), EtherType.VLAN, 300), EtherType.QINQ
        ),
        "vlan rocev1": ethernet(vlan(_GRH, EtherType.ROCE), EtherType.VLAN),
    }
    return [Frame(name, data) for name, data in made.items()]


def _extension(following: int, size: int = 8) -> bytes:
    return bytes([following, size // 8 - 1]) + bytes(size - 2)


def _fragment_header(following: int, offset: int, more: int) -> bytes:
    return bytes([following, 0]) + (offset << 3 | more).to_bytes(2) + b"\0\0\0\1"


def networked() -> list[Frame]:
    """Options, extension headers, fragments, and IP with another payload."""
    return [*_ipv4_frames(), *_ipv6_frames(), *_other_frames()]


def _ipv4_frames() -> list[Frame]:
    made = {
        "ipv4 options": ipv4(_UDP, options=b"\x94\x04\x00\x00"),
        "ipv4 longest options": ipv4(_UDP, options=b"\x01" * 40),
        "ipv4 first fragment": ipv4(_UDP, mf=1),
        "ipv4 later fragment": ipv4(_UDP, mf=1, fragment_offset=8),
        "ipv4 last fragment": ipv4(_UDP, fragment_offset=8),
        "ipv4 length zero": ipv4(_UDP, total_length=0),
        "ipv4 length below header": ipv4(_UDP, total_length=12),
        "ipv4 length below udp": ipv4(_UDP, total_length=24),
        "ipv4 length below bth": ipv4(_UDP, total_length=36),
        "ipv4 no room for icrc": ipv4(_UDP, total_length=42),
        "ipv4 tcp": ipv4(bytes(20), IPProto.TCP),
        "ipv4 icmp": ipv4(bytes(8), IPProto.ICMP),
        "ipv4 unknown": ipv4(bytes(8), 99),
        "ipv4 other port": ipv4(udp(bytes(20), 53)),
        "ipv4 swapped ports": ipv4(udp(_UDP[8:], 50000, source=outer.ROCEV2_PORT)),
        "ipv4 swapped low ports": ipv4(udp(_UDP[8:], 1234, source=outer.ROCEV2_PORT)),
        "ipv4 dns from 4791": ipv4(udp(_UDP[8:], 53, source=outer.ROCEV2_PORT)),
        "ipv4 version 5": b"\x55" + ipv4(_UDP)[1:],
        "ipv4 ihl 4": b"\x44" + ipv4(_UDP)[1:],
        "udp length": ipv4(_UDP[:4] + b"\0\x10" + _UDP[6:]),
        "ipv4 gre routing": ipv4(gre(_IP4, EtherType.IPV4, r=1), IPProto.GRE),
        "ipv4 gre version 1": ipv4(b"\x00\x01\x08\x00" + _IP4, IPProto.GRE),
        "first fragment of ip in ip": ipv4(_IP4, IPProto.IPIP, mf=1),
        "tunnel to inner version 7": ipv4(b"\x75" + _IP4[1:], IPProto.IPIP),
    }
    return [Frame(name, ethernet(data)) for name, data in made.items()]


def _ipv6_frames() -> list[Frame]:
    to_udp, to_routing = IPProto.UDP, IPProto.ROUTING
    ah = bytes([IPProto.UDP, 4]) + bytes(22)
    chain = _extension(to_routing, 16) + _extension(IPProto.DEST_OPTS, 24) + _extension(IPProto.AH)
    made = {
        "ipv6 hop-by-hop": ipv6(_UDP, IPProto.HOPOPT, _extension(to_udp)),
        "ipv6 routing": ipv6(_UDP, IPProto.ROUTING, _extension(to_udp, 24)),
        "ipv6 destination": ipv6(_UDP, IPProto.DEST_OPTS, _extension(to_udp, 16)),
        "ipv6 authentication": ipv6(_UDP, IPProto.AH, ah),
        "ipv6 chain": ipv6(_UDP, IPProto.HOPOPT, chain + ah),
        "ipv6 atomic fragment": ipv6(_UDP, IPProto.FRAGMENT, _fragment_header(to_udp, 0, 0)),
        "ipv6 first fragment": ipv6(_UDP, IPProto.FRAGMENT, _fragment_header(to_udp, 0, 1)),
        "ipv6 later fragment": ipv6(_UDP, IPProto.FRAGMENT, _fragment_header(to_udp, 9, 0)),
        "ipv6 twenty extensions": ipv6(
            _UDP, IPProto.DEST_OPTS, 19 * _extension(IPProto.DEST_OPTS) + _extension(to_udp)
        ),
        "ipv6 endless extensions": ipv6(_UDP, IPProto.DEST_OPTS, 30 * _extension(60)),
        "ipv6 extension beyond the packet": ipv6(b"", IPProto.HOPOPT, b"\x11\x09" + bytes(6))
        + bytes(80),
        "ipv6 no next": ipv6(b"", IPProto.NO_NEXT),
        "ipv6 icmp": ipv6(bytes(8), IPProto.ICMPV6),
        "ipv6 version 4": b"\x40" + ipv6(_UDP)[1:],
    }
    return [Frame(name, ethernet(data, EtherType.IPV6)) for name, data in made.items()]


def _other_frames() -> list[Frame]:
    made = {
        "arp": ethernet(bytes(28), EtherType.ARP),
        "lldp": ethernet(bytes(28), EtherType.LLDP),
        "unknown": ethernet(bytes(28), 0x1234),
        "vxlan of unknown": vxlan(ethernet(bytes(28), 0x1234)),
        "vxlan of arp": vxlan(ethernet(bytes(28), EtherType.ARP)),
        "vxlan of tcp": vxlan(ethernet(ipv4(bytes(20), IPProto.TCP))),
        "nested beyond reason": ethernet(
            b"".join([vlan(b"", EtherType.VLAN)] * 30) + vlan(_IP4), EtherType.VLAN
        ),
        "ip in ip beyond reason": ethernet(_matryoshka(30)),
    }
    return [Frame(name, data) for name, data in made.items()]


def _matryoshka(depth: int) -> bytes:
    data = _IP4
    for _ in range(depth):
        data = ipv4(data, IPProto.IPIP)
    return data


def transported() -> list[Frame]:
    """Every opcode on every route, with padding and trailers, and BTHs with wrong fields."""
    frames = []
    routes: dict[str, tuple[Route, int]] = {
        "rocev2": (ROUTE4, LinkType.ETHERNET),
        "rocev2 ipv6": (ROUTE6, LinkType.ETHERNET),
        "rocev1": (ROUTE1, LinkType.ETHERNET),
        "ib local": (ROUTE_LOCAL, LinkType.INFINIBAND),
        "ib global": (ROUTE_GLOBAL, LinkType.INFINIBAND),
    }
    for i, opcode in enumerate(opcodes.OpCode):
        name = list(routes)[i % len(routes)]
        route, link_type = routes[name]
        data = packet(route, opcode, bytes(range(i % 13)))
        frames.append(Frame(f"{name} {opcode:#04x}", data, link_type))
    for name, (route, link_type) in routes.items():
        data = packet(route)
        frames.append(Frame(f"{name} with trailer", data + b"\xaa" * 8, link_type))
        frames.append(Frame(f"{name} bad icrc", data[:-6] + bytes(6), link_type))
        frames.append(Frame(f"{name} unknown opcode", packet(route, 0x15), link_type))
        frames.append(Frame(f"{name} empty", packet(route, 0x04, b""), link_type))
    lying = bytearray(packet(ROUTE4, 0x04, b""))
    lying[14 + 28 + 1] |= 0x30
    frames.append(Frame("pad count of three without payload", bytes(lying)))
    to_qp1 = Packet(
        ROUTE4, h.BTH(opcode=0x64, dest_qp=1), extensions_of(0x64), bytes(range(256))
    ).repaired()
    frames.append(Frame("mad", to_qp1.build()))
    return frames


def linked() -> list[Frame]:
    """Every link type, and what is on a link besides packets."""
    flow = bytes.fromhex("01233456d19f")  # reference/wire-formats#flow-control-packet
    raw_ip6 = h.LRH(lnh=1, pkt_len=(8 + len(_IP6)) // 4).pack() + _IP6
    frames = [
        Frame("cooked", cooked(_IP4), LinkType.LINUX_SLL),
        Frame("cooked vlan", cooked(vlan(_IP4), EtherType.VLAN), LinkType.LINUX_SLL),
        Frame("cooked rocev1", cooked(_GRH, EtherType.ROCE), LinkType.LINUX_SLL),
        Frame("cooked 2", cooked2(_IP6, EtherType.IPV6), LinkType.LINUX_SLL2),
        Frame("cooked 2 vlan", cooked2(vlan(_IP4), EtherType.VLAN), LinkType.LINUX_SLL2),
        Frame("ib raw ethertype", h.LRH(lnh=0, pkt_len=10).pack() + bytes(40), LinkType.INFINIBAND),
        Frame("ib raw ipv6", raw_ip6 + crc.vcrc(raw_ip6), LinkType.INFINIBAND),
        Frame("ib length zero", h.LRH(lnh=2, pkt_len=0).pack() + bytes(40), LinkType.INFINIBAND),
        Frame("ib wrong next header", _with(_GLOBAL, 8 + 6, 0x3A), LinkType.INFINIBAND),
        Frame("ib wrong grh version", _with(_GLOBAL, 8, 0x40), LinkType.INFINIBAND),
        Frame("erf link", erf(flow, ErfType.INFINIBAND_LINK), LinkType.ERF),
        Frame("erf link bad", erf(flow[:5] + b"\0", ErfType.INFINIBAND_LINK, 1), LinkType.ERF),
        Frame("erf unknown", erf(_INNER4, 5), LinkType.ERF),
        Frame("unknown link type", _INNER4, 147),
        Frame("pause", ethernet(outer.Pause(pause_time=65535).pack() + bytes(42), 0x8808)),
        Frame(
            "pfc",
            ethernet(
                outer.PFC(class_enable=0x18, time=(0, 0, 0, 7, 8, 0, 0, 0)).pack() + bytes(26),
                EtherType.MAC_CONTROL,
            ),
        ),
        Frame("mac control", ethernet(b"\x00\x02" + bytes(44), EtherType.MAC_CONTROL)),
    ]
    for link_type in (LinkType.RAW_IP, LinkType.RAW_OLD, LinkType.RAW_OPENBSD):
        frames += [Frame(f"raw {link_type}", _IP4, link_type)]
        frames += [Frame(f"raw {link_type} ipv6", _IP6, link_type)]
    for link_type in (LinkType.IPV4, LinkType.IPV6):
        frames += [Frame(f"raw {link_type} ipv4", _IP4, link_type)]
        frames += [Frame(f"raw {link_type} ipv6", _IP6, link_type)]
    for extensions in (0, 1, 3):
        for kind in (2, 11, 16, 20):
            data = erf(_INNER4, kind, extensions)
            frames.append(Frame(f"erf {kind} +{extensions}", data, LinkType.ERF))
        for name, data in {"local": _LOCAL, "global": _GLOBAL}.items():
            data = erf(data, ErfType.INFINIBAND, extensions)
            frames.append(Frame(f"erf {name} +{extensions}", data, LinkType.ERF))
    return frames


def _with(data: bytes, offset: int, value: int) -> bytes:
    return data[:offset] + bytes([value]) + data[offset + 1 :]


HANDMADE: tuple[Frame, ...] = (*tunnelled(), *tagged(), *networked(), *transported(), *linked())
"""All of the above."""

LINK_TYPES = (*(int(link_type) for link_type in LinkType), 147)


@st.composite
def damaged(draw: st.DrawFn) -> Frame:
    """A hand-made frame with some bytes changed, perhaps cut off or with more behind it."""
    frame = draw(st.sampled_from(HANDMADE))
    data = bytearray(frame.data)
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(data) - 1))
        data[at] = draw(
            st.integers(0, 255) | st.sampled_from([data[at] ^ 1 << bit for bit in range(8)])
        )
    length = draw(st.integers(0, len(data)) | st.just(len(data)))
    more = draw(st.binary(max_size=8)) if length == len(data) else b""
    wire_len = draw(st.none() | st.integers(0, 300))
    return Frame(f"damaged {frame.name}", bytes(data[:length]) + more, frame.link_type, wire_len)


random_frames: st.SearchStrategy[Frame] = st.builds(
    Frame, st.just("random"), st.binary(max_size=200), st.sampled_from(LINK_TYPES)
)
"""Anything at all."""


# What the golden frames say, by our names.

_COLUMNS = {
    "vlan.pcp": "vlan.priority",
    "vlan.vid": "vlan.id",
    "ip.dscp": "ip.dsfield.dscp",
    "ip.ecn": "ip.dsfield.ecn",
    "ip.total_length": "ip.len",
    "ip.df": "ip.flags.df",
    "ip6.tc_dscp": "ipv6.tclass.dscp",
    "ip6.tc_ecn": "ipv6.tclass.ecn",
    "ip6.flow_label": "ipv6.flow",
    "ip6.payload_length": "ipv6.plen",
    "ip6.next_header": "ipv6.nxt",
    "ip6.hop_limit": "ipv6.hlim",
    "ip6.src": "ipv6.src",
    "ip6.dst": "ipv6.dst",
    "udp.sport": "udp.srcport",
    "udp.dport": "udp.dstport",
    "lrh.resv2": "lrh.reserved2",
    "lrh.resv5": "lrh.reserved5",
    "bth.resv6": "bth.resv6a",
    "bth.resv7": "bth.reserved7",
    "ieth.r_key": "ieth",
    "atomiceth.swap_or_add": "atomiceth.swapdt",
    "atomiceth.compare": "atomiceth.cmpdt",
    "atomicacketh.orig_remote_data": "atomicacketh.origremdt",
    "macc.cbfc.pause_time": "macc.pfc.time",
    "lpcrc_wire_bytes": "infiniband_link.lpcrc",
}

_NOT_IN_HEADERS = (
    "ip.checksum_ok", "ext_headers", "extra.", "frame_len_no_fcs", "icrc_", "vcrc_", "lpcrc_c",
    "opcode_name", "pad_zero", "payload_", "raw_payload_len", "trailing_bytes_after_ip",
    "apr.", "dreq.", "ipcm.", "mcm.", "mra.", "nodeinfo.", "rej.", "rep.", "req.", "sidr_req.",
)  # fmt: skip
"""How the names begin of what is not a field of a header of the frame; the last row is of MADs."""


def golden_fields(expected: dict[str, Any]) -> dict[str, int | list[int]]:
    """The header fields of a golden frame, by column name and as numbers."""
    fields: dict[str, int | list[int]] = {}
    for name, value in expected.items():
        if name.startswith(_NOT_IN_HEADERS):
            continue
        if name == "eth.type" and "vlan.vid" in expected:
            name = "vlan.etype"  # what the tag leads to
        fields[_COLUMNS.get(name, name)] = _number(name, value)
    return fields


def _number(name: str, value: Any) -> int | list[int]:
    if not isinstance(value, str):
        return value  # type: ignore[no-any-return]
    if name.startswith("ip."):
        return int(IPv4Address(value))
    return int(value.replace(":", ""), 16)
