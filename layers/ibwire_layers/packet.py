"""One InfiniBand transport packet with the headers before it: parse and build.

`Packet.parse` reads a whole frame, `build` writes the same bytes again. What is
`None` in a packet (padding, ICRC, VCRC) is computed by `build`; `repaired` makes
lengths, pad count and checksums right as well. Frames without a BTH are read
with `ibwire_layers.walk` and the classes of `outer` and `headers`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Self, TypeVar

from ibwire_layers import crc, opcodes
from ibwire_layers import headers as h
from ibwire_layers.errors import DecodeError, Fault
from ibwire_layers.outer import UDP, VLAN, Ethernet, IPv4, IPv6, LinkType
from ibwire_layers.schema import Bytes, Header
from ibwire_layers.walk import Layer, Protocol, Walk, walk


class CrcStatus(StrEnum):
    """Result of a CRC check."""

    GOOD = "good"
    BAD = "bad"
    TRUNCATED = "truncated"
    """The capture does not hold all the bytes it covers."""
    ABSENT = "absent"
    """The packet has no CRC, or no room for one."""


@dataclass(frozen=True, slots=True)
class RoCEv2Route:
    """IP and UDP, after an optional Ethernet header."""

    ip: IPv4 | IPv6
    udp: UDP
    eth: Ethernet | None = None
    vlans: tuple[VLAN, ...] = ()
    options: bytes = b""
    """IPv4 options or IPv6 extension headers."""
    prefix: bytes = b""
    """Bytes before these headers: tunnel headers of a mirror, a cooked or ERF header."""


@dataclass(frozen=True, slots=True)
class RoCEv1Route:
    """GRH directly over Ethernet."""

    grh: h.GRH
    eth: Ethernet | None = None
    vlans: tuple[VLAN, ...] = ()
    prefix: bytes = b""


@dataclass(frozen=True, slots=True)
class IBRoute:
    """Native InfiniBand: LRH, and a GRH when the packet crosses subnets."""

    lrh: h.LRH
    grh: h.GRH | None = None
    prefix: bytes = b""


H = TypeVar("H", bound=Header)

Route = RoCEv2Route | RoCEv1Route | IBRoute


@dataclass(frozen=True, slots=True)
class Packet:
    """A packet with a BTH, received or to be sent."""

    route: Route
    bth: h.BTH
    extensions: tuple[Header, ...] = ()
    """Extension headers in wire order, as the opcode requires."""
    payload: bytes = b""
    padding: bytes | None = None
    """`None` for zeros; their number is the pad count."""
    icrc: bytes | None = None
    """Four bytes as sent; `b""` for a missing ICRC, `None` to compute it."""
    vcrc: bytes | None = None
    """Two bytes as sent, native InfiniBand only; as `icrc`."""
    trailer: bytes = b""
    """Bytes after the packet: Ethernet padding and FCS."""
    cut: bool = False
    """The capture ends before the packet does."""
    fault: Fault = Fault.NONE
    """The fault found when the packet was parsed."""

    @classmethod
    def parse(
        cls,
        data: Bytes,
        link_type: int = LinkType.ETHERNET,
        *,
        strict: bool = True,
    ) -> Self:
        """Parse a frame that carries a BTH.

        strict: raise `DecodeError` for any fault; otherwise keep the parsed part
        and the fault. A frame without a BTH always raises `DecodeError`.
        """
        found = walk(data, link_type)
        if found.bth < 0 or (strict and found.fault):
            last = found.layers[-1] if found.layers else Layer(h.BTH, 0, 0)
            fault = found.fault or Fault.NEXT_HEADER
            detail = "" if found.fault else f"not an RDMA packet but {found.protocol.name}"
            raise DecodeError(fault, last.header.__name__, last.offset, detail)
        return cls._of(found)

    @property
    def opcode_name(self) -> str:
        """The specification's name of the opcode."""
        return opcodes.name_of(self.bth.opcode)

    def extension(self, kind: type[H]) -> H | None:
        """The extension header of this type, if the packet has one."""
        for header in self.extensions:
            if isinstance(header, kind):
                return header
        return None

    def build(self) -> bytes:
        """The bytes of the frame; fields that are `None` are computed, all others are as given."""
        packet = self._covered()
        packet += crc.icrc(packet, *self._coverage()) if self.icrc is None else self.icrc
        if isinstance(self.route, IBRoute):
            local = self.route.lrh.pack() if self.route.grh else b""
            packet += crc.vcrc(local + packet) if self.vcrc is None else self.vcrc
        return self._front() + packet + self.trailer

    def computed_icrc(self) -> bytes:
        """The correct ICRC of the packet, four bytes as sent."""
        return crc.icrc(self._covered(), *self._coverage())

    def icrc_status(self) -> CrcStatus:
        """Whether the ICRC of the packet is correct."""
        if self.cut:
            return CrcStatus.TRUNCATED
        if not self.icrc:
            return CrcStatus.ABSENT
        return CrcStatus.GOOD if self.icrc == self.computed_icrc() else CrcStatus.BAD

    def repaired(self) -> Self:
        """A copy with correct pad count, lengths, IP checksum and CRCs.

        The UDP checksum becomes 0, which RoCEv2 allows and most adapters send.
        """
        pad = -len(self.payload) % 4
        fixed = replace(
            self,
            bth=replace(self.bth, pad_count=pad),
            padding=bytes(pad),
            icrc=None,
            vcrc=None,
            cut=False,
            fault=Fault.NONE,
        )
        return replace(fixed, route=with_lengths(self.route, len(fixed.transport())))

    def transport(self) -> bytes:
        """The bytes from the BTH to the padding."""
        padding = bytes(self.bth.pad_count) if self.padding is None else self.padding
        extensions = b"".join(header.pack() for header in self.extensions)
        return self.bth.pack() + extensions + self.payload + padding

    def _front(self) -> bytes:
        """The bytes before those that the ICRC covers."""
        route = self.route
        if isinstance(route, IBRoute):
            return route.prefix + (route.lrh.pack() if route.grh else b"")
        eth = route.eth.pack() if route.eth else b""
        return route.prefix + eth + b"".join(tag.pack() for tag in route.vlans)

    def _covered(self) -> bytes:
        """The bytes that the ICRC covers, unmasked."""
        return _covered_headers(self.route) + self.transport()

    def _coverage(self) -> tuple[tuple[tuple[int, crc.Mask], ...], int]:
        """Masks with their offsets in `_covered`, and the seed."""
        masks, size, seed = _coverage(self.route)
        return (*masks, (size, crc.BTH_MASK)), seed

    @classmethod
    def _of(cls, found: Walk) -> Self:
        data = bytes(found.data)
        bth = h.BTH.unpack(data, found.bth)
        extensions = tuple(
            layer.header.unpack(data, layer.offset)
            for layer in found.layers
            if layer.offset > found.bth
        )
        start = found.bth + h.BTH.SIZE + sum(header.SIZE for header in extensions)
        stop = max(start, found.payload_end)
        unsure = found.fault in (Fault.OPCODE, Fault.PAD_COUNT)
        pad = max(start, stop - (0 if unsure else bth.pad_count))
        after_icrc = stop + (h.ICRC_SIZE if found.has_icrc else 0)
        after = after_icrc + (h.VCRC_SIZE if found.protocol is Protocol.IB else 0)
        return cls(
            route=_route(found, data),
            bth=bth,
            extensions=extensions,
            payload=data[start:pad],
            padding=data[pad:stop],
            icrc=data[stop:after_icrc],
            vcrc=data[after_icrc:after],
            trailer=data[after:],
            cut=found.end > len(data),
            fault=found.fault,
        )


def headers_before_bth(route: Route) -> bytes:
    """All headers before the BTH as sent."""
    return Packet(route, h.BTH(0))._front() + _covered_headers(route)


def masked_headers(route: Route) -> bytes:
    """The covered headers before the BTH, with ones in the bits that the ICRC excludes."""
    return crc.masked(_covered_headers(route), _coverage(route)[0])


def icrc_register(route: Route) -> int:
    """The CRC over the covered headers before the BTH: the seed for the rest of the packet."""
    masks, _, seed = _coverage(route)
    return crc.register(_covered_headers(route), masks, seed)


def _covered_headers(route: Route) -> bytes:
    """The headers before the BTH that the ICRC covers, unmasked."""
    if isinstance(route, RoCEv2Route):
        return route.ip.pack() + route.options + route.udp.pack()
    if isinstance(route, RoCEv1Route):
        return route.grh.pack()
    return (route.grh or route.lrh).pack()


def _coverage(route: Route) -> tuple[tuple[tuple[int, crc.Mask], ...], int, int]:
    """Masks with their offsets in the covered headers, the size of these, and the seed."""
    if isinstance(route, RoCEv2Route):
        ip_mask = crc.IPV4_MASK if isinstance(route.ip, IPv4) else crc.IPV6_MASK
        udp = route.ip.SIZE + len(route.options)
        return ((0, ip_mask), (udp, crc.UDP_MASK)), udp + UDP.SIZE, crc.ICRC_SEED
    if isinstance(route, IBRoute) and route.grh is None:
        return ((0, crc.LRH_MASK),), h.LRH.SIZE, 0
    return ((0, crc.GRH_MASK),), h.GRH.SIZE, crc.ICRC_SEED


def _route(found: Walk, data: bytes) -> Route:
    """The route of a frame with a BTH."""
    layers = [layer for layer in found.layers if layer.offset < found.bth]
    if found.protocol is Protocol.IB:
        grh = h.GRH.unpack(data, layers.pop().offset) if layers[-1].header is h.GRH else None
        lrh = layers.pop()
        return IBRoute(h.LRH.unpack(data, lrh.offset), grh, prefix=data[: lrh.offset])
    udp = UDP.unpack(data, layers.pop().offset) if found.protocol is Protocol.ROCEV2 else None
    network = layers.pop()
    first = network.offset
    vlans: list[VLAN] = []
    eth = None
    while layers and layers[-1].header is VLAN:
        first = layers.pop().offset
        vlans.insert(0, VLAN.unpack(data, first))
    if layers and layers[-1].header is Ethernet:
        first = layers.pop().offset
        eth = Ethernet.unpack(data, first)
    elif vlans:  # tags after a cooked header or a label stack: all of it is prefix
        vlans, first = [], network.offset
    prefix = data[:first]
    if udp is None:
        return RoCEv1Route(h.GRH.unpack(data, network.offset), eth, tuple(vlans), prefix)
    kind = IPv4 if network.header is IPv4 else IPv6
    options = data[network.offset + kind.SIZE : network.offset + network.size]
    ip = kind.unpack(data, network.offset)
    return RoCEv2Route(ip, udp, eth, tuple(vlans), options, prefix)


def with_lengths(route: Route, transport_size: int) -> Route:
    """The route with the lengths and checksums of a packet of that size.

    transport_size: bytes from the BTH to the padding.
    """
    size = transport_size + h.ICRC_SIZE
    if isinstance(route, IBRoute):
        grh = replace(route.grh, pay_len=size) if route.grh else None
        words = (h.LRH.SIZE + (h.GRH.SIZE if grh else 0) + size) // 4
        lrh = replace(route.lrh, pkt_len=words, lnh=3 if grh else 2)
        return replace(route, lrh=lrh, grh=grh)
    if isinstance(route, RoCEv1Route):
        return replace(route, grh=replace(route.grh, pay_len=size))
    udp = replace(route.udp, length=UDP.SIZE + size, checksum=0)
    after = len(route.options) + udp.length
    if isinstance(route.ip, IPv6):
        return replace(route, udp=udp, ip=replace(route.ip, payload_length=after))
    words = (IPv4.SIZE + len(route.options)) // 4
    ip = replace(route.ip, ihl=words, total_length=IPv4.SIZE + after)
    return with_ip_checksum(replace(route, udp=udp, ip=ip))


def with_ip_checksum(route: Route) -> Route:
    """The route with the right IPv4 header checksum, if it has an IPv4 header."""
    if not isinstance(route, RoCEv2Route) or not isinstance(route.ip, IPv4):
        return route
    ip = replace(route.ip, checksum=0)
    checksum = crc.internet_checksum(ip.pack() + route.options)
    return replace(route, ip=replace(ip, checksum=checksum))
