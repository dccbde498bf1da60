"""The headers before the BTH: made once for a queue pair, recognised once for a sender.

Between two queue pairs these headers hardly change, so both directions keep them: a
`Path` by packet size, an `Arrivals` by their very bytes. Whatever it does not know it
reads with `ibwire_layers`.
"""

from __future__ import annotations

from dataclasses import dataclass
from zlib import crc32 as _zlib_crc32

from ibwire.node import Frame
from ibwire_layers import crc
from ibwire_layers import headers as h
from ibwire_layers.outer import UDP, VLAN, Ethernet, EtherType, IPv4, IPv6, LinkType
from ibwire_layers.packet import (
    IBRoute,
    Packet,
    RoCEv1Route,
    RoCEv2Route,
    Route,
    headers_before_bth,
    icrc_register,
    with_lengths,
)
from ibwire_layers.walk import walk

try:
    from isal.isal_zlib import crc32
except ImportError:
    crc32 = _zlib_crc32

V4_MAPPED = 0xFFFF << 32
"""The GID of an IPv4 address is ::ffff:a.b.c.d."""


def is_v4(gid: int) -> bool:
    """Whether a GID stands for an IPv4 address."""
    return gid >> 32 == 0xFFFF


class Path:
    """Where the packets of one flow go: puts the headers before the BTH and the ICRC behind."""

    __slots__ = ("_headers", "_identification", "_route")

    LIMIT = 64
    """Packet sizes whose headers are kept."""

    def __init__(self, route: Route, *, counts_identification: bool = False) -> None:
        """`counts_identification`: whether the IPv4 identification goes up with each packet."""
        self._route = route
        self._headers: dict[int, tuple[bytes, int]] = {}
        self._identification = 0 if counts_identification else -1

    def frame(self, transport: bytes) -> Frame:
        """The frame of a packet, given from its BTH to its padding."""
        size = len(transport)
        known = self._headers.get(size)
        if known is None:
            known = self._prepare(size)
        if self._identification >= 0:
            known = self._identified(known[0])
        before, register = known
        icrc = crc32(transport[:4] + b"\xff" + transport[5:], register)
        frame = b"".join((before, transport, icrc.to_bytes(4, "little")))
        return frame + crc.vcrc(frame) if isinstance(self._route, IBRoute) else frame

    def _prepare(self, size: int) -> tuple[bytes, int]:
        if len(self._headers) >= self.LIMIT:
            self._headers.clear()
        route = with_lengths(self._route, size)
        known = self._headers[size] = headers_before_bth(route), icrc_register(route)
        return known

    def _identified(self, before: bytes) -> tuple[bytes, int]:
        """The headers with the next IPv4 identification, and the CRC over them."""
        number = self._identification
        self._identification = number + 1 & 0xFFFF
        start = len(before) - IPv4.SIZE - UDP.SIZE
        checksum = int.from_bytes(before[start + 10 : start + 12]) - number
        headers = bytearray(before)
        headers[start + 4 : start + 6] = number.to_bytes(2)
        # One's complement arithmetic: adding to the header subtracts from its checksum.
        headers[start + 10 : start + 12] = (checksum + (checksum >> 16) & 0xFFFF).to_bytes(2)
        masks = (0, crc.IPV4_MASK), (IPv4.SIZE, crc.UDP_MASK)
        return bytes(headers), crc.register(headers[start:], masks, crc.ICRC_SEED)

    @property
    def overhead(self) -> int:
        """Bytes of a frame that are not from the BTH to the padding."""
        vcrc = h.VCRC_SIZE if isinstance(self._route, IBRoute) else 0
        return len(headers_before_bth(self._route)) + h.ICRC_SIZE + vcrc


@dataclass(slots=True)
class Arrival:
    """What the headers before a BTH said; shared by all packets with the same ones."""

    source: int
    """GID of the sender; 0 where there is none (native InfiniBand inside a subnet)."""
    destination: int
    size: int
    """Bytes before the BTH."""
    end: int
    """Where the ICRC ends."""
    register: int
    """CRC of the covered headers."""
    ecn: int
    grh: bytes
    """The 40 bytes that a UD receiver finds in front of the message."""
    route: Route
    """Of the first packet with these headers: its IPv4 identification may be another one."""


class Arrivals:
    """Reads the headers before the BTH; those it has seen before are one lookup."""

    LIMIT = 4096
    """Headers kept; a stranger who varies them costs time but no memory."""

    def __init__(self, link_type: int = LinkType.ETHERNET) -> None:
        self._link_type = link_type
        self._known: dict[bytes, Arrival] = {}
        self._numbered: dict[bytes, Numbered] = {}
        """IPv4 headers without their identification and checksum."""
        self._sizes: list[int] = []

    def read(self, frame: Frame) -> Arrival | None:
        """The headers of a frame with a BTH, `None` for any other or damaged one."""
        for size in self._sizes:
            arrival = self._known.get(frame[:size])
            if arrival is not None:
                return arrival if len(frame) >= arrival.end else None
            ip = size - _V4_SIZE
            skeleton = frame[: ip + 4] + frame[ip + 6 : ip + 10] + frame[ip + 12 : size]
            numbered = self._numbered.get(skeleton)
            if numbered is not None:
                return numbered.read(frame, ip)
        return self._examine(frame)

    def _examine(self, frame: Frame) -> Arrival | None:
        found = walk(frame, self._link_type)
        if not found.protocol.is_rdma or found.bth < 0 or found.tunnelled:
            return None
        if found.end > len(frame) or found.end < found.bth + h.BTH.SIZE + h.ICRC_SIZE:
            return None
        route = Packet.parse(frame, self._link_type, strict=False).route
        if not _is_sound(route, found.end - found.bth):
            return None
        arrival = _arrival(route, found.bth, found.end)
        if isinstance(route, RoCEv2Route) and route.udp.checksum:
            # It covers the payload, so these headers alone say nothing of the next packet.
            return arrival if _udp_checksum_fits(route, frame, found.bth, found.end) else None
        if len(self._known) + len(self._numbered) >= self.LIMIT:
            self._known.clear()
            self._numbered.clear()
            self._sizes.clear()
        if isinstance(route, RoCEv2Route) and isinstance(route.ip, IPv4) and route.ip.id:
            # Whoever numbers its packets sends no headers twice.
            if not route.options:
                ip = found.bth - _V4_SIZE
                skeleton = frame[: ip + 4] + frame[ip + 6 : ip + 10] + frame[ip + 12 : found.bth]
                self._numbered[skeleton] = Numbered(arrival, frame[ip : found.bth])
        else:
            self._known[frame[: found.bth]] = arrival
        if found.bth not in self._sizes:
            self._sizes.append(found.bth)
        return arrival


class Numbered:
    """Headers over IPv4 of a sender that gives each packet an identification of its own."""

    __slots__ = ("_after", "_arrival", "_before", "_sum")

    def __init__(self, arrival: Arrival, headers: bytes) -> None:
        """`headers`: IPv4 and UDP."""
        self._arrival = arrival
        masked = bytearray(headers)
        for start, mask in ((0, crc.IPV4_MASK), (IPv4.SIZE, crc.UDP_MASK)):
            for offset, ones in mask:
                masked[start + offset] |= ones
        self._before = crc32(masked[:4], crc.ICRC_SEED)
        self._after = bytes(masked[6:])
        self._sum = _sum16(headers[:4] + headers[6:10] + headers[12 : IPv4.SIZE])

    def read(self, frame: Frame, ip: int) -> Arrival | None:
        """The headers of another packet; `None` for a wrong checksum or a cut frame."""
        arrival = self._arrival
        number, checksum = frame[ip + 4 : ip + 6], frame[ip + 10 : ip + 12]
        total = self._sum + int.from_bytes(number) + int.from_bytes(checksum)
        if (total & 0xFFFF) + (total >> 16) != 0xFFFF or len(frame) < arrival.end:
            return None
        return Arrival(
            arrival.source,
            arrival.destination,
            arrival.size,
            arrival.end,
            crc32(self._after, crc32(number, self._before)),
            arrival.ecn,
            bytes(20) + frame[ip : ip + 20],
            arrival.route,
        )


_V4_SIZE = IPv4.SIZE + UDP.SIZE


def icrc_fits(frame: Frame, arrival: Arrival) -> bool:
    """Whether the ICRC of a frame is right."""
    start, end = arrival.size, arrival.end - 4
    found = crc32(frame[start : start + 4] + b"\xff" + frame[start + 5 : end], arrival.register)
    return found == int.from_bytes(frame[end : end + 4], "little")


def _is_sound(route: Route, size: int) -> bool:
    """Whether lengths agree and the IP header checksum is right."""
    if isinstance(route, RoCEv2Route):
        if route.udp.length != UDP.SIZE + size:
            return False
        return not isinstance(route.ip, IPv4) or _sum16(route.ip.pack() + route.options) == 0xFFFF
    return True


def _udp_checksum_fits(route: RoCEv2Route, frame: Frame, bth: int, end: int) -> bool:
    ip = route.ip
    width = 4 if isinstance(ip, IPv4) else 16
    pseudo = ip.src.to_bytes(width) + ip.dst.to_bytes(width) + b"\0\x11"
    pseudo += route.udp.length.to_bytes(2)
    data = pseudo + frame[bth - UDP.SIZE : end]
    return _sum16(data + b"\0" if len(data) & 1 else data) == 0xFFFF


def _sum16(data: bytes) -> int:
    """One's complement sum (RFC 1071); all ones over data with a right checksum in it."""
    total = sum(data[0::2]) * 256 + sum(data[1::2])
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total


def _arrival(route: Route, size: int, end: int) -> Arrival:
    if isinstance(route, RoCEv2Route):
        ip = route.ip
        if isinstance(ip, IPv4):
            # The IPv4 header takes the last 20 of the 40 bytes (IBA annex A17.4.5.2).
            source, destination = V4_MAPPED | ip.src, V4_MAPPED | ip.dst
            grh = bytes(20) + ip.pack()
        else:
            source, destination, grh = ip.src, ip.dst, ip.pack()
        ecn = ip.ecn
    else:
        header = route.grh
        source, destination = (header.sgid, header.dgid) if header else (0, 0)
        grh = header.pack() if header else bytes(40)
        ecn = 0
    return Arrival(source, destination, size, end, icrc_register(route), ecn, grh, route)


def ethernet_route(
    *,
    source: int,
    destination: int,
    source_mac: bytes,
    destination_mac: bytes,
    source_port: int,
    traffic_class: int = 0,
    hop_limit: int = 64,
    flow_label: int = 0,
    vlan: int | None = None,
    priority: int = 0,
    version: int = 2,
) -> RoCEv2Route | RoCEv1Route:
    """The route of RoCEv2 (`version` 2) or RoCEv1 packets between two GIDs."""
    v4 = is_v4(destination)
    kind = EtherType.ROCE if version == 1 else EtherType.IPV4 if v4 else EtherType.IPV6
    tags: tuple[VLAN, ...] = ()
    eth = Ethernet(
        int.from_bytes(destination_mac),
        int.from_bytes(source_mac),
        kind if vlan is None else EtherType.VLAN,
    )
    if vlan is not None:
        tags = (VLAN(pcp=priority, vid=vlan, type=kind),)
    if version == 1:
        grh = h.GRH(
            tclass=traffic_class,
            flow_label=flow_label,
            hop_lmt=hop_limit,
            sgid=source,
            dgid=destination,
        )
        return RoCEv1Route(grh, eth, tags)
    udp = UDP(src_port=source_port)
    ip: IPv4 | IPv6
    if v4:
        ip = IPv4(
            dscp=traffic_class >> 2,
            ecn=traffic_class & 3,
            ttl=hop_limit,
            src=source & 0xFFFFFFFF,
            dst=destination & 0xFFFFFFFF,
        )
    else:
        ip = IPv6(
            dscp=traffic_class >> 2,
            ecn=traffic_class & 3,
            flow_label=flow_label,
            hop_limit=hop_limit,
            src=source,
            dst=destination,
        )
    return RoCEv2Route(ip, udp, eth, tags)


def ib_route(
    *,
    source: int,
    destination: int,
    slid: int,
    dlid: int,
    sl: int = 0,
    is_global: bool = False,
    traffic_class: int = 0,
    hop_limit: int = 64,
    flow_label: int = 0,
) -> IBRoute:
    """The route of native InfiniBand packets between two LIDs, with a GRH if `is_global`."""
    grh = None
    if is_global:
        grh = h.GRH(
            tclass=traffic_class,
            flow_label=flow_label,
            hop_lmt=hop_limit,
            sgid=source,
            dgid=destination,
        )
    return IBRoute(h.LRH(vl=sl & 7, sl=sl, dlid=dlid, slid=slid), grh)
